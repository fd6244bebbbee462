//! What is measured on tokens and is not messages per second: digests beside those of software, and memory that signing
//! loses.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use dkim_benches::exit::{EX_FAILED, EX_IOERR, EX_UNAVAILABLE, of_clap, print};
use dkim_benches::load::process::Watched;
use dkim_benches::rounds::{Subject, interleaved};
use dkim_benches::workload::text_body;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{Fault, Isolation, OnToken, Reference, Settings, Tokens};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Figures of tokens. URIs name the module by module-path and the PIN's file by pin-source.
#[derive(Debug, Parser)]
#[command(name = "token-numbers", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// SHA-256 of bodies by software and by tokens, in interleaved rounds of CPU time; every digest is compared. Tokens
    /// are asked in one call (C_Digest), and in chunks of 65,535 octets, as a milter gets a body (C_DigestUpdate)
    Digest {
        /// URIs of the tokens
        #[arg(required = true, value_name = "URI", value_parser = reference)]
        tokens: Vec<Reference>,
        /// Sizes of the bodies, in octets
        #[arg(long, value_name = "OCTETS,...", value_delimiter = ',', default_values_t = [4 << 10, 64 << 10, 1 << 20])]
        sizes: Vec<usize>,
        /// Rounds, of which the medians count
        #[arg(long, value_name = "N", default_value_t = 15)]
        rounds: usize,
        /// One JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Signs again and again in this process, and says by how much its memory has grown; exit code 1 if that is a
    /// megabyte or more
    Leak {
        /// URI of the key
        #[arg(value_name = "URI", value_parser = boxed_reference)]
        key: Box<Reference>,
        /// How many signatures
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        count: u64,
        /// Threads that sign, and sessions
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        threads: u8,
    },
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return of_clap(&error),
    };
    let measured = match arguments.command {
        Command::Digest {
            tokens,
            sizes,
            rounds,
            json,
        } => digests(&tokens, &sizes, rounds, json),
        Command::Leak {
            key,
            count,
            threads,
        } => leak(&key, count, usize::from(threads)),
    };
    let (text, code) = match measured {
        Ok(measured) => measured,
        Err(error) => {
            eprintln!("token-numbers: {error}");
            return ExitCode::from(EX_UNAVAILABLE);
        }
    };
    match print(&text) {
        Ok(()) => ExitCode::from(code),
        Err(error) => {
            eprintln!("token-numbers: cannot write to standard output: {error}");
            ExitCode::from(EX_IOERR)
        }
    }
}

fn reference(text: &str) -> Result<Reference, String> {
    let uri = Uri::parse(text.as_bytes()).map_err(|error| error.to_string())?;
    Reference::new(uri, None, None, false).map_err(|error| error.to_string())
}

/// Keys would make one variant of an enum far larger than the other.
fn boxed_reference(text: &str) -> Result<Box<Reference>, String> {
    reference(text).map(Box::new)
}

/// A row of the table of digests.
struct Row {
    who: String,
    octets: usize,
    microseconds: f64,
}

fn digests(
    references: &[Reference],
    sizes: &[usize],
    rounds: usize,
    as_json: bool,
) -> Result<(String, u8), Error> {
    let tokens = references
        .iter()
        .map(OnToken::open)
        .collect::<Result<Vec<_>, Fault>>()?;
    let mut rows = Vec::new();
    for &octets in sizes {
        let body = text_body(octets);
        let wanted: [u8; 32] = Sha256::digest(&body).into();
        let wrong = AtomicU64::new(0);
        let check = |digest: Result<[u8; 32], Fault>| {
            if digest != Ok(wanted) {
                wrong.fetch_add(1, Ordering::Relaxed);
            }
        };
        // A sample is some milliseconds.
        let repeats = (SAMPLE / octets).max(1);
        let mut subjects = vec![Subject::new("software", repeats, || {
            check(Ok(Sha256::digest(black_box(&body)).into()));
        })];
        for token in &tokens {
            let model = &token.facts().model;
            subjects.push(Subject::new(format!("{model}, C_Digest"), repeats, || {
                check(token.digest_whole(&body))
            }));
            subjects.push(Subject::new(
                format!("{model}, C_DigestUpdate"),
                repeats,
                || check(token.digest(body.chunks(CHUNK))),
            ));
        }
        let names: Vec<String> = subjects
            .iter()
            .map(|subject| subject.name.clone())
            .collect();
        let medians = interleaved(rounds, &mut subjects);
        drop(subjects);
        if wrong.load(Ordering::Relaxed) > 0 {
            return Err(Error::WrongDigests(wrong.into_inner()));
        }
        rows.extend(names.into_iter().zip(medians).map(|(who, seconds)| Row {
            who,
            octets,
            microseconds: seconds * 1e6,
        }));
    }
    for token in tokens {
        token.close(PATIENCE);
    }
    let mut text = String::new();
    if as_json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| json!({"who": row.who, "octets": row.octets, "us": row.microseconds}))
            .collect();
        text = json!({ "digests": rows }).to_string() + "\n";
    } else {
        for row in rows {
            text += &format!(
                "{:>9} octets  {:<32}{:>10.2} us\n",
                row.octets, row.who, row.microseconds
            );
        }
    }
    Ok((text, 0))
}

fn leak(reference: &Reference, count: u64, threads: usize) -> Result<(String, u8), Error> {
    let settings = Settings {
        isolation: Isolation::None,
        sessions: threads,
        timeout: PATIENCE,
        ..Settings::default()
    };
    let tokens = Tokens::new(settings, |notice| eprintln!("{}", notice.text))?;
    let key = tokens.key(reference)?;
    key.wait(PATIENCE)?;
    let signing = key.signing_key()?;
    let failed = AtomicU64::new(0);
    let sign = |count: u64| {
        let left = AtomicU64::new(count);
        let take = || {
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Ok(left) = take() {
                        if signing.sign(&left.to_be_bytes()).is_err() {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    };
    // What every thread takes once is there after these.
    sign(WARMUP);
    let before = resident()?;
    sign(count);
    let growth = resident()?.saturating_sub(before);
    tokens.shut_down(PATIENCE);
    let failed = failed.into_inner();
    if failed > 0 {
        return Err(Error::Failed(failed));
    }
    let text = format!(
        "{count} signatures by {threads} threads: resident memory was {} KiB and grew by {} KiB\n",
        before >> 10,
        growth >> 10
    );
    Ok((text, if growth < MOST_GROWTH { 0 } else { EX_FAILED }))
}

/// Resident memory of this process in octets; it has no others.
fn resident() -> Result<u64, Error> {
    let own = Watched::new(std::process::id().cast_signed()).and_then(|own| own.memory());
    own.map(|memory| memory.resident).ok_or(Error::NoMemory)
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Token(#[from] Fault),
    #[error("no thread can be started: {0}")]
    Threads(#[from] std::io::Error),
    #[error("{0} digests were wrong, or failed")]
    WrongDigests(u64),
    #[error("{0} signatures failed")]
    Failed(u64),
    #[error("/proc does not tell how much memory this process has")]
    NoMemory,
}

/// How long a token may take to open, and a signature to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Octets of a body that a milter gets at once, at most.
const CHUNK: usize = 65_535;

/// Octets hashed for a sample, if a body is not larger.
const SAMPLE: usize = 4 << 20;

/// Signatures before memory is looked at.
const WARMUP: u64 = 5_000;

/// Memory that may be gained.
const MOST_GROWTH: u64 = 1 << 20;
