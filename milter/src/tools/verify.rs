//! `dkim-verify`: messages in, a verdict for each of their signatures out (RFC 6376 section 6).
//!
//! By default the verdict is the arithmetic of RFC 6376: a good signature passes, and the reason says what it does not
//! cover. `--strict` judges as the milter does, where what can be added unseen is no pass. Keys come from the DNS, all
//! of a message's at once and within one deadline, or from a file.

use super::message_input::{InputError, MessageInput};
use super::report::{MessageReport, SignatureReport, no_signature};
use super::{
    EX_CONFIG, EX_DATAERR, EX_IOERR, EX_NOINPUT, EX_OK, EX_TEMPFAIL, Failure, OutputError,
    engine_parser, now, say,
};
use crate::dns::{
    CacheLimits, Format, KeySource, RecordsFile, RecordsFileError, Resolver, ResolverError,
    SYSTEM_CONFIGURATION, look_up_all, parse_nameserver,
};
use crate::shown::{cause, one_line};
use clap::Parser;
use dkim_core::address::message_authors;
use dkim_core::engine::{Engine, default_engine};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::verifier::{Verdict, Verifier, VerifierConfig};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

const NAME: &str = "dkim-verify";

/// No signature passed, and trying again will not help.
const NO_PASS: u8 = 1;

/// Verify the DKIM signatures of messages: one line each with verdict, domain, selector, algorithm, size of the key and
/// reason.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    after_help = "Example: dkim-verify message",
    after_long_help = "\
Verdicts: pass, fail (body or header was changed, or the key is another), permerror (it can never be
judged), temperror (it cannot be judged now), neutral (it cannot be read), policy (not accepted here).

Exit codes; of several messages the worst counts, in this order from best to worst:
  0   a signature passed
  75  none passed, and for all of them the reason is only temporary
  1   none passed
  65  not a message
  66  the message cannot be opened
  74  reading or writing failed
and before any message is read:
  64  the command line makes no sense
  66  the file of records cannot be opened
  78  the file of records or the configuration of the DNS is no good"
)]
pub struct VerifyArguments {
    /// Write one JSON object for each message, one on a line
    #[arg(long)]
    json: bool,

    /// Judge as the milter does by default: a signature does not pass if l= leaves octets of the body unsigned, or if
    /// there are several From fields
    #[arg(long)]
    strict: bool,

    /// Take key records from FILE and not from the DNS: lines of the form NAME TTL IN TXT "STRING"..., or
    /// ! NXDOMAIN|NODATA|SERVFAIL|REFUSED|TIMEOUT NAME; a name that is not listed does not exist
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nameservers", "timeout"])]
    records: Option<PathBuf>,

    /// Name server to ask, and not those of /etc/resolv.conf; may be given more than once
    #[arg(long = "nameserver", value_name = "IP[:PORT]", value_parser = parse_nameserver)]
    nameservers: Vec<SocketAddr>,

    /// Seconds that the DNS may take for all keys of a message
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,

    /// Time for t= and x=, in seconds since 1970 [default: now]
    #[arg(long, value_name = "EPOCH")]
    now: Option<u64>,

    /// Smallest RSA key that is accepted, 1024 at least
    #[arg(long, value_name = "BITS", default_value = "1024", value_parser = clap::value_parser!(u32).range(1024..))]
    min_rsa_bits: u32,

    /// Most signatures of a message that are evaluated
    #[arg(long, value_name = "COUNT", default_value = "10")]
    max_signatures: usize,

    /// Engine to check with [default: the first]
    #[arg(long, value_name = "NAME", value_parser = engine_parser())]
    engine: Option<&'static dyn Engine>,

    /// The messages, with CRLF or LF line ends; - is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    messages: Vec<PathBuf>,
}

/// Verifies as `arguments` say, and writes the result to standard output.
///
/// # Errors
/// Why nothing can be verified. Trouble with one message is only reported, and the next one read.
pub fn verify(arguments: VerifyArguments) -> Result<u8, VerifyError> {
    let keys = Keys::new(&arguments)?;
    let config = VerifierConfig {
        max_signatures: arguments.max_signatures,
        min_rsa_bits: arguments.min_rsa_bits,
        accept_unsigned_octets: !arguments.strict,
        accept_several_from: !arguments.strict,
        ..VerifierConfig::default()
    };
    let now = arguments.now.unwrap_or_else(now);
    let engine = arguments.engine.unwrap_or_else(default_engine);
    let mut worst = EX_OK;
    for path in &arguments.messages {
        let verified = verify_message(path, &keys, &config, now, engine);
        let code = match &verified {
            Ok((verdicts, _)) => exit_code(verdicts),
            Err(error) => {
                say(NAME, error);
                error.exit_code()
            }
        };
        worst = worse(worst, code);
        let report = report(path, verified);
        write_report(&report, &arguments).map_err(OutputError::from)?;
    }
    Ok(worst)
}

/// Why nothing can be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file of records is no good.
    #[error("{0}")]
    Records(#[from] RecordsFileError),
    /// There is nobody to ask.
    #[error("{0}; name servers can be given with --nameserver")]
    Resolver(#[from] ResolverError),
    /// The system does not let us wait for the DNS.
    #[error("cannot begin: {}", cause(.0))]
    Runtime(io::Error),
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Failure for VerifyError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Records(RecordsFileError::Unreadable { .. }) => EX_NOINPUT,
            Self::Records(_) | Self::Resolver(_) => EX_CONFIG,
            Self::Runtime(_) => EX_IOERR,
            Self::Output(error) => error.exit_code(),
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_silent())
    }
}

/// Where key records come from, and something to wait with.
struct Keys {
    runtime: Runtime,
    source: Arc<dyn KeySource>,
    timeout: Duration,
}

impl Keys {
    fn new(arguments: &VerifyArguments) -> Result<Self, VerifyError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(VerifyError::Runtime)?;
        let timeout = Duration::from_secs(arguments.timeout);
        let source: Arc<dyn KeySource> = match &arguments.records {
            Some(path) => Arc::new(RecordsFile::read(path, Format::Zone)?),
            None => {
                let _entered = runtime.enter();
                Arc::new(resolver(&arguments.nameservers, timeout)?)
            }
        };
        Ok(Self {
            runtime,
            source,
            timeout,
        })
    }

    /// Looks up what `verifier` asks for, all at once; what is missing at the deadline is an answer too.
    fn answer(&self, verifier: &mut Verifier) {
        let names = verifier.to_look_up().to_vec();
        if names.is_empty() {
            return;
        }
        self.runtime.block_on(async {
            let deadline = Instant::now() + self.timeout;
            let mut lookups = look_up_all(&self.source, names, deadline);
            while let Some(done) = lookups.join_next().await {
                // A look-up that broke down leaves its name unanswered, which the verifier knows how to judge.
                if let Ok((index, answer)) = done {
                    verifier.answer(index, answer);
                }
            }
        });
    }
}

fn resolver(servers: &[SocketAddr], timeout: Duration) -> Result<Resolver, ResolverError> {
    if !servers.is_empty() {
        return Resolver::with_servers(servers, timeout, CacheLimits::default());
    }
    let path = Path::new(SYSTEM_CONFIGURATION);
    let resolver = Resolver::from_resolv_conf(path, timeout, CacheLimits::default())?;
    if let Some(warning) = resolver.warning() {
        say(NAME, &format!("warning: {warning}"));
    }
    Ok(resolver)
}

/// The verdicts on the message at `path`, and its authors.
fn verify_message(
    path: &Path,
    keys: &Keys,
    config: &VerifierConfig,
    now: u64,
    engine: &dyn Engine,
) -> Result<(Vec<Verdict>, Vec<String>), InputError> {
    let mut input = MessageInput::open(path, false)?;
    input.read_header()?;
    let mut verifier = Verifier::new(input.header(), config, Some(now));
    // Before the body, which may then not matter any more.
    keys.answer(&mut verifier);
    input.read_body(|chunk| {
        verifier.body(chunk);
        verifier.wants_body()
    })?;
    let verdicts = verifier.finish(input.header(), engine);
    Ok((verdicts, authors(input.header())))
}

fn authors(header: &HeaderFields) -> Vec<String> {
    let authors = message_authors(header.named("From").map(|field| field.value()));
    authors.map_or(Vec::new(), |authors| {
        authors.iter().map(ToString::to_string).collect()
    })
}

fn report(path: &Path, verified: Result<(Vec<Verdict>, Vec<String>), InputError>) -> MessageReport {
    let mut report = MessageReport {
        file: path.to_string_lossy().into_owned(),
        signatures: Vec::new(),
        authors: Vec::new(),
        error: None,
    };
    match verified {
        Ok((verdicts, authors)) => {
            report.signatures = verdicts.iter().map(SignatureReport::from).collect();
            report.authors = authors;
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    report
}

fn write_report(report: &MessageReport, arguments: &VerifyArguments) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if arguments.json {
        report.write_json(&mut output)?;
        return writeln!(output);
    }
    if report.error.is_some() {
        return Ok(());
    }
    // Like grep: the file's name only where it tells something.
    let file = match arguments.messages.len() {
        1 => String::new(),
        _ => format!("{}: ", one_line(&report.file)),
    };
    if report.signatures.is_empty() {
        writeln!(output, "{file}{}", no_signature())?;
    }
    for signature in &report.signatures {
        writeln!(output, "{file}{signature}")?;
    }
    Ok(())
}

fn exit_code(verdicts: &[Verdict]) -> u8 {
    let is = |word| move |verdict: &Verdict| verdict.result == word;
    if verdicts.iter().any(is(ResultWord::Pass)) {
        EX_OK
    } else if !verdicts.is_empty() && verdicts.iter().all(is(ResultWord::TempError)) {
        EX_TEMPFAIL
    } else {
        NO_PASS
    }
}

/// The worse of two codes.
fn worse(one: u8, other: u8) -> u8 {
    const FROM_BEST: [u8; 6] = [
        EX_OK,
        EX_TEMPFAIL,
        NO_PASS,
        EX_DATAERR,
        EX_NOINPUT,
        EX_IOERR,
    ];
    let rank = |code| FROM_BEST.iter().position(|&known| known == code);
    if rank(other) > rank(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::check_command_line;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_defined_and_in_the_manual() {
        let manual = include_str!("../../../docs/dkim-verify.1");
        check_command_line(VerifyArguments::command(), manual);
    }

    #[test]
    fn the_worst_message_decides() {
        for (one, other, want) in [
            (0, 0, 0),
            (0, 75, 75),
            (75, 1, 1),
            (1, 75, 1),
            (65, 1, 65),
            (65, 66, 66),
            (66, 0, 66),
        ] {
            assert_eq!(worse(one, other), want, "{one} {other}");
        }
    }
}
