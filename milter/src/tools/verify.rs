//! `dkim-verify`: messages in, a verdict for each of their signatures out (RFC 6376 section 6).
//!
//! By default the verdict is the arithmetic of RFC 6376: a good signature passes, and the reason says what it does not
//! cover. `--strict` judges as the milter does, where what can be added unseen is no pass. Keys come from the DNS, all
//! of a message's at once and within one deadline, or from a file.

use super::key_records::{KeyRecords, RecordsArguments, RecordsError};
use super::message_input::{InputError, MessageInput};
use super::on_token::{OnToken, OnTokenError, no_body_hash, uri_parser};
use super::report::{MessageReport, SignatureReport, no_signature};
use super::token_access::TokenArguments;
use super::{
    EX_DATAERR, EX_IOERR, EX_NOINPUT, EX_OK, EX_TEMPFAIL, EX_USAGE, Failure, OutputError,
    engine_parser, now, say, whole_number,
};
use crate::shown::one_line;
use clap::Parser;
use dkim_core::address::message_authors;
use dkim_core::engine::{Engine, default_engine};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::verifier::{Verdict, Verifier, VerifierConfig};
use pkcs11_engine::uri::Uri;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
  69  a token is not there, or does not verify or hash now
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

    #[command(flatten)]
    records: RecordsArguments,

    /// Time for t= and x=, in seconds since 1970 [default: now]
    #[arg(long, value_name = "EPOCH", value_parser = whole_number(0_u64..))]
    now: Option<u64>,

    /// Smallest RSA key that is accepted, 1024 at least
    #[arg(long, value_name = "BITS", default_value = "1024", value_parser = whole_number(1024_u32..))]
    min_rsa_bits: u32,

    /// Most signatures of a message that are evaluated
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = whole_number(0_usize..))]
    max_signatures: usize,

    /// Engine to check with [default: the first]
    #[arg(long, value_name = "NAME", value_parser = engine_parser(), conflicts_with = "verify_by")]
    engine: Option<&'static dyn Engine>,

    /// Token that checks signatures, and hashes what they sign, in the place of an engine: pkcs11:token=...
    #[arg(long = "pkcs11-verify", value_name = "URI", value_parser = uri_parser())]
    verify_by: Option<Uri>,

    /// Token that hashes bodies
    #[arg(long = "pkcs11-digest", value_name = "URI", value_parser = uri_parser())]
    digest_by: Option<Uri>,

    /// PKCS#11 module by which these tokens are reached, if their URIs do not say
    #[arg(long = "pkcs11-module", value_name = "FILE")]
    module: Option<PathBuf>,

    #[command(flatten)]
    tokens: TokenArguments,

    /// The messages, with CRLF or LF line ends; - is standard input
    #[arg(default_value = "-", value_name = "FILE")]
    messages: Vec<PathBuf>,
}

/// Verifies as `arguments` say, and writes the result to standard output.
///
/// # Errors
/// Why nothing can be verified. Trouble with one message is only reported, and the next one read.
pub fn verify(arguments: VerifyArguments) -> Result<u8, VerifyError> {
    let records = KeyRecords::open(NAME, &arguments.records, None)?;
    let config = VerifierConfig {
        max_signatures: arguments.max_signatures,
        min_rsa_bits: arguments.min_rsa_bits,
        accept_unsigned_octets: !arguments.strict,
        accept_several_from: !arguments.strict,
        ..VerifierConfig::default()
    };
    let now = arguments.now.unwrap_or_else(now);
    let engine = arguments.engine.unwrap_or_else(default_engine);
    let (verify_by, digest_by) = (&arguments.verify_by, &arguments.digest_by);
    if verify_by.is_none()
        && digest_by.is_none()
        && (arguments.module.is_some() || arguments.tokens.are_given())
    {
        return Err(VerifyError::NoToken);
    }
    let how = arguments.tokens.with_module(arguments.module.as_deref());
    let token = OnToken::open(NAME, &how, verify_by.as_ref(), digest_by.as_ref())?;
    let judge = Judge {
        records: &records,
        config: &config,
        now,
        engine,
        token: &token,
    };
    let verified = verify_all(&arguments, &judge);
    token.finish(None);
    verified
}

fn verify_all(arguments: &VerifyArguments, judge: &Judge<'_>) -> Result<u8, VerifyError> {
    let mut worst = EX_OK;
    for path in &arguments.messages {
        let verified = judge.verify_message(path);
        let code = match &verified {
            Ok((verdicts, _)) => exit_code(verdicts),
            Err(error) => {
                say(NAME, error);
                error.exit_code()
            }
        };
        worst = worse(worst, code);
        let report = report(path, verified);
        write_report(&report, arguments).map_err(OutputError::from)?;
    }
    Ok(worst)
}

/// Why nothing can be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is nobody to ask for keys.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// A token that is to verify or to hash does not.
    #[error(transparent)]
    Token(#[from] OnTokenError),
    /// Options for tokens, and no token.
    #[error(
        "--pkcs11-... options are for --pkcs11-verify and --pkcs11-digest, and neither is given"
    )]
    NoToken,
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Failure for VerifyError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Records(error) => error.exit_code(),
            Self::Token(error) => error.exit_code(),
            Self::NoToken => EX_USAGE,
            Self::Output(error) => error.exit_code(),
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_silent())
    }
}

/// By what messages are judged.
struct Judge<'a> {
    records: &'a KeyRecords,
    config: &'a VerifierConfig,
    now: u64,
    engine: &'a dyn Engine,
    token: &'a OnToken,
}

impl Judge<'_> {
    /// The verdicts on the message at `path`, and its authors.
    fn verify_message(&self, path: &Path) -> Result<(Vec<Verdict>, Vec<String>), InputError> {
        let mut input = MessageInput::open(path, false)?;
        input.read_header()?;
        let mut verifier = Verifier::new(input.header(), self.config, Some(self.now));
        // Before the body, which may then not matter any more.
        self.records
            .look_up(verifier.to_look_up().to_vec(), |index, answer| {
                verifier.answer(index, answer);
            });
        let mut on_token = match verifier.wants_body() {
            true => self.token.body(&verifier.to_digest()),
            false => None,
        };
        input.read_body(|chunk| {
            match &mut on_token {
                Some(body) => body.update(chunk),
                None => verifier.body(chunk),
            }
            verifier.wants_body()
        })?;
        if input.holds_several() {
            say(
                NAME,
                &format!(
                    "warning: {} begins with \"From \" and has more such lines: if it is an mbox of several messages, \
                     give each in a file of its own, as all is judged as one",
                    path.display()
                ),
            );
        }
        let header = input.header();
        let checks = match on_token {
            Some(body) => {
                let hashes = body.finish().into_iter();
                let hashes: Vec<_> = hashes.map(|hash| hash.map_err(no_body_hash)).collect();
                verifier.to_check_with(header, &hashes)
            }
            None => verifier.to_check(header),
        };
        for check in checks {
            let outcome = self.token.check(&check);
            let outcome = outcome.unwrap_or_else(|| check.run(self.engine));
            verifier.checked(&check, outcome);
        }
        Ok((verifier.verdicts(header), authors(header)))
    }
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
