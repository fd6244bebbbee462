//! What `benches/peers/run.py` and the harnesses of the peers say to each other, and the side of a harness.
//!
//! A harness is a process that lives through all rounds, so that the rounds of several can take turns. It begins with
//! `ready DESCRIPTION`, then reads commands from standard input, a line each, and answers each with a line:
//!
//! | command | answer |
//! |---|---|
//! | `load ALGORITHM DOMAIN SELECTOR CANONICALIZATION FIELDS KEY RECORD MESSAGE`, then three octet strings | `loaded` |
//! | `sign N` | `signed NANOSECONDS` |
//! | `signature` | `signature SIZE`, then as many octets: the DKIM-Signature field made last, without its line end |
//! | `verify N` | `verified NANOSECONDS`; any verdict but pass is an error |
//! | `verdict` | `pass`, or `fail REASON` for a signature that does not belong to the message |
//! | `hash N` | `hashed NANOSECONDS HEX`: SHA-256 over the body as it is |
//!
//! The times are of the CPU, of the thread that did the work, for all N goes. The last three words of `load` are the
//! sizes of a private key in PEM (PKCS#1 for RSA, PKCS#8 for Ed25519), of a key record's text, and of a whole message
//! with CRLF line ends. FIELDS are the names of the header fields to sign, with colons between. Instead of its answer,
//! any command may get `error SENTENCE`, or `unsupported SENTENCE` where a peer has no such thing. The end of standard
//! input ends a harness.
//!
//! Nothing but the standard library is used here: the harness of mail-auth, which is no part of this workspace, takes
//! this very file.

use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

/// What a harness is to work on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// `a=`: `rsa-sha256` or `ed25519-sha256`.
    pub algorithm: String,
    /// `d=`
    pub domain: String,
    /// `s=`
    pub selector: String,
    /// `c=`
    pub canonicalization: String,
    /// The names of the fields to sign.
    pub fields: Vec<String>,
    /// The private key in PEM.
    pub key: Vec<u8>,
    /// The text of the key record.
    pub record: Vec<u8>,
    /// The message, which has a signature if it is to be verified.
    pub message: Vec<u8>,
}

/// A message and its keys, ready to be worked on again and again.
pub trait Work {
    /// Signs the message once and keeps the field.
    ///
    /// # Errors
    /// Whatever kept it from being signed.
    fn sign(&mut self) -> Result<(), Refusal>;

    /// The DKIM-Signature field that was made last, without its line end.
    fn signature(&self) -> String;

    /// Verifies the message once.
    ///
    /// # Errors
    /// What is neither a pass nor a signature that does not belong to the message.
    fn verify(&mut self) -> Result<Verdict, Refusal>;

    /// SHA-256 over the body as it is.
    ///
    /// # Errors
    /// For those that measure no primitives.
    fn hash(&mut self) -> Result<[u8; 32], Refusal> {
        Err(Refusal::Unsupported("it hashes nothing by itself".into()))
    }
}

/// What a harness finds of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The signature is good.
    Pass,
    /// Header or body are not what was signed; the reason.
    Fail(String),
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Something went wrong.
    Error(String),
    /// There is no such thing here.
    Unsupported(String),
}

impl Refusal {
    /// An error with the text of `cause`.
    pub fn from_error(cause: impl fmt::Display) -> Self {
        Self::Error(cause.to_string())
    }
}

/// Answers the commands in `input` until it ends; `load` makes a job ready, `clock` reads the CPU time of this thread.
///
/// # Errors
/// Input that ends in the middle of a command, or output that nobody takes.
pub fn serve(
    description: &str,
    mut input: impl BufRead,
    mut output: impl Write,
    clock: impl Fn() -> Duration,
    load: impl Fn(Job) -> Result<Box<dyn Work>, Refusal>,
) -> io::Result<()> {
    writeln!(output, "ready {}", one_line(description))?;
    output.flush()?;
    let mut work: Option<Box<dyn Work>> = None;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match (words.as_slice(), &mut work) {
            (["load", words @ ..], work) => {
                // The octets are taken even if the job is refused, as more commands come behind them.
                let job = read_job(words, &mut input)?;
                *work = None;
                load(job).map(|loaded| {
                    *work = Some(loaded);
                    Answer::Line("loaded".into())
                })
            }
            (words, Some(work)) => answer(words, work.as_mut(), &clock),
            (_, None) => Err(Refusal::Error("nothing is loaded".into())),
        };
        match answer {
            Ok(Answer::Line(text)) => writeln!(output, "{text}")?,
            Ok(Answer::Octets(octets)) => {
                writeln!(output, "signature {}", octets.len())?;
                output.write_all(octets.as_bytes())?;
            }
            Err(Refusal::Error(why)) => writeln!(output, "error {}", one_line(&why))?,
            Err(Refusal::Unsupported(why)) => writeln!(output, "unsupported {}", one_line(&why))?,
        }
        output.flush()?;
    }
}

enum Answer {
    Line(String),
    Octets(String),
}

fn answer(
    words: &[&str],
    work: &mut dyn Work,
    clock: &impl Fn() -> Duration,
) -> Result<Answer, Refusal> {
    let line = match *words {
        ["sign", goes] => {
            let taken = timed(goes, clock, || work.sign())?;
            format!("signed {taken}")
        }
        ["verify", goes] => {
            let taken = timed(goes, clock, || match work.verify()? {
                Verdict::Pass => Ok(()),
                Verdict::Fail(why) => Err(Refusal::Error(format!("did not pass: {why}"))),
            })?;
            format!("verified {taken}")
        }
        ["hash", goes] => {
            let mut digest = [0; 32];
            let taken = timed(goes, clock, || {
                digest = std::hint::black_box(work.hash()?);
                Ok(())
            })?;
            let hex: String = digest.iter().map(|octet| format!("{octet:02x}")).collect();
            format!("hashed {taken} {hex}")
        }
        ["verdict"] => match work.verify()? {
            Verdict::Pass => "pass".into(),
            Verdict::Fail(why) => format!("fail {}", one_line(&why)),
        },
        ["signature"] => return Ok(Answer::Octets(work.signature())),
        _ => {
            return Err(Refusal::Error(format!(
                "no such command: {}",
                words.join(" ")
            )));
        }
    };
    Ok(Answer::Line(line))
}

/// Nanoseconds for all `goes` of `go`.
fn timed(
    goes: &str,
    clock: &impl Fn() -> Duration,
    mut go: impl FnMut() -> Result<(), Refusal>,
) -> Result<u128, Refusal> {
    let goes: u32 = goes
        .parse()
        .ok()
        .filter(|&goes| goes > 0)
        .ok_or_else(|| Refusal::Error(format!("not a number of goes: {goes}")))?;
    let start = clock();
    for _ in 0..goes {
        go()?;
    }
    Ok((clock() - start).as_nanos())
}

fn read_job(words: &[&str], input: &mut impl Read) -> io::Result<Job> {
    let invalid = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "load: words are missing or wrong",
        )
    };
    let &[
        algorithm,
        domain,
        selector,
        canonicalization,
        fields,
        key,
        record,
        message,
    ] = words
    else {
        return Err(invalid());
    };
    let mut octets = |size: &str| {
        let size = size.parse().ok().filter(|&size| size <= MAX_OCTETS);
        let mut octets = vec![0; size.ok_or_else(invalid)?];
        input.read_exact(&mut octets)?;
        io::Result::Ok(octets)
    };
    Ok(Job {
        algorithm: algorithm.into(),
        domain: domain.into(),
        selector: selector.into(),
        canonicalization: canonicalization.into(),
        fields: fields.split(':').map(String::from).collect(),
        key: octets(key)?,
        record: octets(record)?,
        message: octets(message)?,
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// More than any message that is measured.
const MAX_OCTETS: usize = 256 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Signs anything, and passes messages that begin with `good`.
    struct Pretender {
        job: Job,
        signed: u32,
    }

    impl Work for Pretender {
        fn sign(&mut self) -> Result<(), Refusal> {
            self.signed += 1;
            Ok(())
        }

        fn signature(&self) -> String {
            format!("DKIM-Signature: {}", self.signed)
        }

        fn verify(&mut self) -> Result<Verdict, Refusal> {
            Ok(if self.job.message.starts_with(b"good") {
                Verdict::Pass
            } else {
                Verdict::Fail("body\r\nhash".into())
            })
        }
    }

    /// What a harness says to `commands`, on a clock that goes on by a microsecond whenever it is read.
    fn conversation(commands: &[u8]) -> io::Result<String> {
        let time = Cell::new(Duration::ZERO);
        let clock = || {
            time.set(time.get() + Duration::from_micros(1));
            time.get()
        };
        let mut output = Vec::new();
        serve("pretender 1", commands, &mut output, clock, |job| {
            if job.algorithm == "none" {
                return Err(Refusal::Unsupported("no such algorithm".into()));
            }
            Ok(Box::new(Pretender { job, signed: 0 }))
        })?;
        Ok(String::from_utf8(output).expect("text"))
    }

    #[test]
    fn each_command_has_its_answer() {
        let load = "load rsa-sha256 example.com s relaxed/simple From:To 3 2 4\nkeyrr";
        for (commands, answers) in [
            (format!("{load}good"), "loaded\n"),
            (
                format!("{load}goodsign 2\nsignature\nsign 1\nsignature\n"),
                "loaded\nsigned 1000\nsignature 17\nDKIM-Signature: 2signed 1000\nsignature 17\nDKIM-Signature: 3",
            ),
            (
                format!("{load}goodverify 3\nverdict\n"),
                "loaded\nverified 1000\npass\n",
            ),
            (
                format!("{load}evilverify 3\nverdict\n"),
                "loaded\nerror did not pass: body hash\nfail body hash\n",
            ),
            (
                format!("{load}goodhash 1\n"),
                "loaded\nunsupported it hashes nothing by itself\n",
            ),
            ("sign 1\n".into(), "error nothing is loaded\n"),
            (
                format!("{load}goodsign 0\nsign x\nsing 1\n"),
                "loaded\nerror not a number of goes: 0\nerror not a number of goes: x\nerror no such command: sing 1\n",
            ),
        ] {
            let said = conversation(commands.as_bytes()).expect("a conversation");
            assert_eq!(said, format!("ready pretender 1\n{answers}"), "{commands}");
        }
    }

    #[test]
    fn octets_of_a_refused_job_are_no_commands_and_the_job_before_is_gone() {
        let commands = "load rsa-sha256 d s c f 0 0 4\ngood\
                        load none d s c f 0 0 7\nsign 1\nsign 1\n";
        assert_eq!(
            conversation(commands.as_bytes()).expect("a conversation"),
            "ready pretender 1\nloaded\nunsupported no such algorithm\nerror nothing is loaded\n"
        );
    }

    #[test]
    fn input_that_ends_early_or_announces_nonsense_is_an_error() {
        for commands in [
            "load rsa-sha256 d s c f 1 1 9\nxyshort",
            "load rsa-sha256 d s c f 1 1\n",
            "load rsa-sha256 d s c f 1 1 99999999999999\n",
            "load rsa-sha256 d s c f 1 1 -1\n",
        ] {
            assert!(conversation(commands.as_bytes()).is_err(), "{commands}");
        }
    }
}
