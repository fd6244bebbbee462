//! The command line of `t-signperf` and `t-verifyperf`: libopendkim's options and more.
//!
//! `-h` is the header's canonicalization, as in libopendkim's programs, so that help is `--help` only.

use super::Task;
use super::token::TokenChoice;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use dkim_core::canonicalization::{Algorithm, Canonicalization};
use dkim_core::engine::{Engine, KeyType, default_engine, engine_by_name, engines};
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{Reference, ReferenceError};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What is measured, and how.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Signing or verifying.
    pub task: Task,
    /// `c=`
    pub canonicalization: Canonicalization,
    /// The messages.
    pub mix: Mix,
    /// Verifying: sign the messages of an mbox first.
    pub sign_first: bool,
    /// The length of the timed window.
    pub window: Duration,
    /// How long the same is done before the window.
    pub warmup: Duration,
    /// Who signs or checks.
    pub engine: EngineChoice,
    /// Who computes the digest of the body.
    pub digest: DigestBy,
    /// `a=` if it was asked for.
    pub key_type: Option<KeyType>,
    /// Where the key comes from.
    pub key: KeySource,
    /// Whether key and key record are parsed for each message.
    pub per_message_key: bool,
    /// How many threads work at once.
    pub threads: usize,
    /// Whether stages are measured too.
    pub stages: bool,
    /// What the machine is called in reports, if not by its CPU.
    pub label: Option<String>,
    /// JSON instead of text.
    pub json: bool,
}

/// Who signs or checks.
#[derive(Clone, Debug)]
pub(super) enum EngineChoice {
    /// An engine that is built in.
    BuiltIn(&'static dyn Engine),
    /// A token, with the key in it.
    Token(Box<TokenChoice>),
}

/// Who computes the digest of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DigestBy {
    /// We.
    Software,
    /// The token.
    Token,
}

impl DigestBy {
    /// As it is called in options and output.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Token => "token",
        }
    }
}

/// Which messages are worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// One message with a text body of so many octets (`-m`).
    Size(usize),
    /// Sizes like those of ordinary mail, 0.5 to 8 KB.
    Small,
    /// 1 to 4 MB, base64 and text.
    Large,
    /// Those of an mbox.
    Mbox(PathBuf),
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(octets) => write!(f, "size {octets}"),
            Self::Small => f.write_str("mix small"),
            Self::Large => f.write_str("mix large"),
            Self::Mbox(path) => write!(f, "mix mbox:{}", path.display()),
        }
    }
}

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// A file.
    File(PathBuf),
    /// Made at start, of the size asked for if it is RSA.
    Made {
        /// Bits of an RSA key, if they were asked for.
        bits: Option<u32>,
    },
}

impl Options {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// What clap has to say: a fault, or the help that was asked for.
    pub(super) fn from_command_line<I, T>(task: Task, arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        match task {
            Task::Sign => {
                let mut command = SignArguments::command();
                let matches = command.try_get_matches_from_mut(arguments)?;
                let arguments = SignArguments::from_arg_matches(&matches)?;
                options(task, arguments.common, false, &mut command)
            }
            Task::Verify => {
                let mut command = VerifyArguments::command();
                let matches = command.try_get_matches_from_mut(arguments)?;
                let arguments = VerifyArguments::from_arg_matches(&matches)?;
                options(task, arguments.common, arguments.sign_first, &mut command)
            }
        }
    }
}

/// Measure how many messages are signed in a second.
///
/// Each go splits a raw message, canonicalizes and hashes it, signs, and formats the DKIM-Signature field. Every field
/// is compared, octet for octet, with the first one made for the same message (both algorithms give one signature
/// only), and those first ones are verified after the timed window.
#[derive(Debug, Parser)]
#[command(name = "t-signperf", version, disable_help_flag = true, args_override_self = true, after_help = AFTER_HELP)]
struct SignArguments {
    #[command(flatten)]
    common: CommonArguments,
}

/// Measure how many messages are verified in a second.
///
/// Each go splits a raw signed message, reads the signature, canonicalizes and hashes, checks, and gives the verdicts.
/// A message counts if a signature on it passes; any other verdict is a failure.
#[derive(Debug, Parser)]
#[command(name = "t-verifyperf", version, disable_help_flag = true, args_override_self = true, after_help = AFTER_HELP)]
struct VerifyArguments {
    #[command(flatten)]
    common: CommonArguments,

    /// With --mix mbox:FILE: take the signatures out of its messages, and sign them before anything is timed. Without,
    /// the messages must be signed already, by the key given with --key, and -b and -h say nothing
    #[arg(long)]
    sign_first: bool,
}

const AFTER_HELP: &str = "\
Exit codes:
  0   all was measured and all was good
  1   a signature or a verdict was not as it should be
  64  the command line makes no sense
  65  a key or an mbox is no good
  66  a key or an mbox cannot be read
  69  a token cannot be used
  74  writing failed";

#[derive(Debug, Args)]
struct CommonArguments {
    /// Canonicalization of the body
    #[arg(short = 'b', value_name = "ALGORITHM", default_value = "simple", value_parser = canonicalization_parser())]
    body: Algorithm,

    /// Canonicalization of the header
    #[arg(short = 'h', value_name = "ALGORITHM", default_value = "relaxed", value_parser = canonicalization_parser())]
    header: Algorithm,

    /// Octets of the message's body, at least 2 (an empty line)
    #[arg(short = 'm', value_name = "BYTES", default_value_t = 1024, value_parser = parse_size, conflicts_with = "mix")]
    size: usize,

    /// Signing algorithm: rsa-sha256 or ed25519-sha256 [default: that of the key, or rsa-sha256]
    #[arg(short = 's', value_name = "ALGORITHM", value_parser = algorithm_parser(), hide_possible_values = true)]
    algorithm: Option<KeyType>,

    /// Length of the timed window
    #[arg(short = 't', value_name = "SECONDS", default_value = "5", allow_negative_numbers = true, value_parser = parse_window)]
    window: Duration,

    /// How long to do the same before the window, uncounted
    #[arg(long, value_name = "SECONDS", default_value = "0.5", allow_negative_numbers = true, value_parser = parse_seconds)]
    warmup: Duration,

    /// Who signs or checks: aws-lc-ifma (where the processor has AVX-512 IFMA), aws-lc, rustcrypto, or pkcs11:URI, which
    /// names a private key in a token (RFC 7512)
    /// [default: the first one]
    #[arg(long, value_name = "NAME|pkcs11:URI", value_parser = EngineParser)]
    engine: Option<EngineArgument>,

    /// Module of the token, if its URI does not say
    #[arg(long, value_name = "FILE")]
    pkcs11_module: Option<PathBuf>,

    /// File with the token's PIN, if its URI does not say
    #[arg(long, value_name = "FILE")]
    pkcs11_pin_file: Option<PathBuf>,

    /// Load the module in this process; what verifies on a token, or digests, does so in any case
    #[arg(long)]
    pkcs11_in_process: bool,

    /// Sessions of the token, and threads that sign by it [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pkcs11_sessions: Option<u8>,

    /// File with the private key: PEM, DER, or the base64 of an Ed25519 seed
    #[arg(long, value_name = "FILE", conflicts_with = "key_bits")]
    key: Option<PathBuf>,

    /// Size of the RSA key that is made at start [default: 2048]. That of 1024 bits is always the same, and only some
    /// engines sign with it
    #[arg(long, value_name = "BITS", value_parser = key_bits_parser())]
    key_bits: Option<u32>,

    /// Threads that work at once, with one key for all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// Messages to work on instead of one of -m BYTES: small (nine of 0.5 to 8 KB), large (six of 1 to 4 MB, text and
    /// base64), or mbox:FILE, read from the file each time
    #[arg(long, value_name = "small|large|mbox:FILE", value_parser = MixParser, hide_possible_values = true)]
    mix: Option<Mix>,

    /// Who computes SHA-256 of the body: software, or the token that signs or verifies
    #[arg(long, value_name = "software|token", default_value = "software", value_parser = digest_parser(), hide_possible_values = true)]
    digest: DigestBy,

    /// Parse the key (signing) or the key record (verifying) for each message, as libopendkim does. Signing so includes
    /// the proof that an engine wants of each key: one signature more, and its check. A token that verifies then gets
    /// the public key for each message anew
    #[arg(long)]
    per_message_key: bool,

    /// Measure the stages of the work too, each by itself on one thread, after the timed window
    #[arg(long)]
    stages: bool,

    /// What this machine is called in reports [default: its CPU model]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// One JSON object on standard output instead of text
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// What clap cannot check, and the defaults that depend on other options.
fn options(
    task: Task,
    arguments: CommonArguments,
    sign_first: bool,
    command: &mut clap::Command,
) -> Result<Options, clap::Error> {
    let mix = arguments.mix.unwrap_or(Mix::Size(arguments.size));
    let is_mbox = matches!(mix, Mix::Mbox(_));
    let mut conflict = |sentence: &str| Err(command.error(ErrorKind::ArgumentConflict, sentence));
    let has_token = matches!(arguments.engine, Some(EngineArgument::Token(_)));
    if has_token {
        if arguments.key.is_some() || arguments.key_bits.is_some() {
            return conflict(
                "with --engine pkcs11:URI the key is the token's; --key and --key-bits are for others",
            );
        }
        if task == Task::Sign && arguments.per_message_key {
            return conflict(
                "--per-message-key is for keys that can be parsed; one in a token cannot",
            );
        }
        if task == Task::Sign && arguments.stages {
            return conflict(
                "--stages is CPU time of one thread, which a token's signatures are not made on; verifying has them",
            );
        }
    } else if arguments.pkcs11_module.is_some()
        || arguments.pkcs11_pin_file.is_some()
        || arguments.pkcs11_in_process
        || arguments.pkcs11_sessions.is_some()
    {
        return conflict("--pkcs11-... options are for --engine pkcs11:URI");
    }
    if arguments.digest == DigestBy::Token {
        if !has_token {
            return conflict("--digest token needs a token: --engine pkcs11:URI");
        }
        if arguments.stages {
            return conflict(
                "--stages measures the digest in software; with --digest token it would show what is not done",
            );
        }
    }
    if arguments.algorithm == Some(KeyType::Ed25519) && arguments.key_bits.is_some() {
        return conflict("--key-bits is for RSA keys; those of ed25519-sha256 have one size");
    }
    if sign_first && !is_mbox {
        return conflict(
            "--sign-first is for --mix mbox:FILE; all other messages are signed anyway",
        );
    }
    if task == Task::Verify && is_mbox && !sign_first && arguments.key.is_none() && !has_token {
        return conflict(
            "--mix mbox:FILE needs the key that signed its messages (--key FILE), or --sign-first",
        );
    }
    let engine = match arguments.engine {
        None => EngineChoice::BuiltIn(default_engine()),
        Some(EngineArgument::BuiltIn(engine)) => EngineChoice::BuiltIn(engine),
        Some(EngineArgument::Token(uri)) => {
            let pin = arguments.pkcs11_pin_file.map(PinSource::File);
            let module = arguments.pkcs11_module.as_deref();
            let reference = Reference::new(*uri, module, pin.as_ref(), false).map_err(|error| {
                let sentence = match error {
                    // Its own names the daemon's options.
                    ReferenceError::NoModule => NO_MODULE.to_owned(),
                    ReferenceError::PinValue => PIN_VALUE.to_owned(),
                    error => error.to_string(),
                };
                command.error(ErrorKind::ValueValidation, sentence)
            })?;
            EngineChoice::Token(Box::new(TokenChoice {
                reference,
                in_process: arguments.pkcs11_in_process,
                sessions: arguments.pkcs11_sessions.map_or(4, usize::from),
            }))
        }
    };
    Ok(Options {
        task,
        canonicalization: Canonicalization {
            header: arguments.header,
            body: arguments.body,
        },
        mix,
        sign_first,
        window: arguments.window,
        warmup: arguments.warmup,
        engine,
        digest: arguments.digest,
        key_type: arguments.algorithm,
        key: match arguments.key {
            Some(path) => KeySource::File(path),
            None => KeySource::Made {
                bits: arguments.key_bits,
            },
        },
        per_message_key: arguments.per_message_key,
        threads: usize::from(arguments.threads),
        stages: arguments.stages,
        label: arguments.label,
        json: arguments.json,
    })
}

const NO_MODULE: &str =
    "which module has the token? Say so by --pkcs11-module, or by module-path in the URI";

const PIN_VALUE: &str = "pin-value puts the PIN into the open: name a file by --pkcs11-pin-file, or by pin-source in the URI";

fn canonicalization_parser() -> impl TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(["simple", "relaxed"]).try_map(|name| {
        Algorithm::from_name(name.as_bytes()).ok_or("no such canonicalization algorithm")
    })
}

fn algorithm_parser() -> impl TypedValueParser<Value = KeyType> {
    PossibleValuesParser::new([
        PossibleValue::new("rsa-sha256"),
        PossibleValue::new("ed25519-sha256"),
        PossibleValue::new("rsa-sha1").hide(true),
    ])
    .try_map(|name| match name.as_str() {
        "rsa-sha256" => Ok(KeyType::Rsa),
        "ed25519-sha256" => Ok(KeyType::Ed25519),
        _ => Err("rsa-sha1 must neither be signed with nor verified (RFC 8301 section 3.1)"),
    })
}

/// What `--engine` says.
#[derive(Clone, Debug)]
enum EngineArgument {
    BuiltIn(&'static dyn Engine),
    Token(Box<Uri>),
}

/// The name of an engine, or a URI, which need not be Unicode.
#[derive(Clone)]
struct EngineParser;

impl TypedValueParser for EngineParser {
    type Value = EngineArgument;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<EngineArgument, clap::Error> {
        use std::os::unix::ffi::OsStrExt;
        if Uri::is_meant(value.as_bytes()) {
            return match Uri::parse(value.as_bytes()) {
                Ok(uri) => Ok(EngineArgument::Token(Box::new(uri))),
                // Not with the value: there may be a PIN in it.
                Err(error) => Err(command.clone().error(
                    ErrorKind::ValueValidation,
                    format!("the URI of --engine: {error}"),
                )),
            };
        }
        let names = engines().iter().map(|engine| engine.name());
        let name = PossibleValuesParser::new(names.chain(["pkcs11:URI"]))
            .parse_ref(command, argument, value)?;
        match engine_by_name(&name) {
            Some(engine) => Ok(EngineArgument::BuiltIn(engine)),
            None => Err(command.clone().error(
                ErrorKind::ValueValidation,
                "--engine pkcs11:URI wants the URI of a private key in a token",
            )),
        }
    }
}

fn key_bits_parser() -> impl TypedValueParser<Value = u32> {
    PossibleValuesParser::new(["1024", "2048", "3072", "4096"])
        .try_map(|bits| bits.parse().map_err(|_| "not a number of bits"))
}

fn digest_parser() -> impl TypedValueParser<Value = DigestBy> {
    PossibleValuesParser::new(["software", "token"]).map(|name| match name.as_str() {
        "token" => DigestBy::Token,
        _ => DigestBy::Software,
    })
}

fn parse_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 2..=MAX_SIZE) => Ok(size),
        _ => Err(format!("a number of octets from 2 to {MAX_SIZE} is wanted")),
    }
}

/// Memory is taken for the whole message.
const MAX_SIZE: usize = 256 * 1024 * 1024;

fn parse_window(text: &str) -> Result<Duration, String> {
    match parse_seconds(text) {
        Ok(Duration::ZERO) | Err(_) => Err(format!(
            "seconds above 0 and at most {MAX_SECONDS} are wanted, such as 5 or 0.5"
        )),
        window => window,
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!(
            "seconds from 0 to {MAX_SECONDS} are wanted, such as 0 or 0.5"
        )),
    }
}

const MAX_SECONDS: f64 = 86_400.0;

/// `small`, `large` or `mbox:FILE`, where FILE need not be Unicode.
#[derive(Clone)]
struct MixParser;

impl TypedValueParser for MixParser {
    type Value = Mix;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Mix, clap::Error> {
        use std::os::unix::ffi::OsStrExt;
        match value.as_bytes().strip_prefix(b"mbox:") {
            Some(path) if !path.is_empty() => Ok(Mix::Mbox(OsStr::from_bytes(path).into())),
            // Its error has the names there are, and the nearest.
            _ => PossibleValuesParser::new(["small", "large", "mbox:FILE"])
                .parse_ref(command, argument, value)
                .map(|name| match name.as_str() {
                    "large" => Mix::Large,
                    _ => Mix::Small,
                }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(task: Task, line: &str) -> Result<Options, String> {
        let arguments = ["t-perf"].into_iter().chain(line.split_whitespace());
        Options::from_command_line(task, arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_libopendkim() {
        for task in [Task::Sign, Task::Verify] {
            let options = parse(task, "").unwrap();
            assert_eq!(options.canonicalization.to_string(), "relaxed/simple");
            assert_eq!(options.mix, Mix::Size(1024));
            assert_eq!(options.window, Duration::from_secs(5));
            assert_eq!(options.warmup, Duration::from_millis(500));
            assert_eq!(options.key, KeySource::Made { bits: None });
            assert_eq!((options.threads, options.key_type), (1, None));
        }
    }

    #[test]
    fn flags_of_libopendkim_mean_what_they_mean_there() {
        let options = parse(
            Task::Sign,
            "-b relaxed -h simple -m 4096 -s ed25519-sha256 -t 0.25",
        )
        .unwrap();
        assert_eq!(options.canonicalization.header, Algorithm::Simple);
        assert_eq!(options.canonicalization.body, Algorithm::Relaxed);
        assert_eq!(options.mix, Mix::Size(4096));
        assert_eq!(options.key_type, Some(KeyType::Ed25519));
        assert_eq!(options.window, Duration::from_millis(250));
    }

    #[test]
    fn mixes_are_named_or_a_file() {
        for (text, mix) in [
            ("small", Mix::Small),
            ("large", Mix::Large),
            ("mbox:a:b c", Mix::Mbox("a:b c".into())),
            ("mbox:small", Mix::Mbox("small".into())),
        ] {
            let options =
                Options::from_command_line(Task::Sign, ["t-signperf", "--mix", text]).unwrap();
            assert_eq!(options.mix, mix);
        }
        assert_eq!(Mix::Size(7).to_string(), "size 7");
        assert_eq!(Mix::Mbox("x".into()).to_string(), "mix mbox:x");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (line, reason) in [
            ("-s rsa-sha1", "RFC 8301"),
            ("-s rsa-sha265", "'rsa-sha256'"),
            ("-b relaxd", "'relaxed'"),
            (
                "--engine aws-lcc",
                "aws-lc, rustcrypto, pkcs11:URI]\n\n  tip: a similar value exists: 'aws-lc'",
            ),
            ("--engine pkcs11:URI", "the URI of --engine"),
            ("--engine pkcs11:token=x", "which module has the token"),
            (
                "--engine pkcs11:token=x?pin-value=1234 --pkcs11-module /m",
                "pin-value puts the PIN into the open",
            ),
            (
                "--engine pkcs11:token=x --pkcs11-module /m --key k",
                "the key is the token's",
            ),
            (
                "--engine pkcs11:token=x --pkcs11-module /m --key-bits 2048",
                "the key is the token's",
            ),
            ("--pkcs11-in-process", "are for --engine pkcs11:URI"),
            (
                "--engine aws-lc --pkcs11-sessions 2",
                "are for --engine pkcs11:URI",
            ),
            (
                "--engine pkcs11:token=x --pkcs11-module /m --pkcs11-sessions 0",
                "1..=64",
            ),
            ("--digest token", "needs a token"),
            ("--digest tokn", "'token'"),
            ("--mix smal", "'small'"),
            ("--mix mbox:", "mbox:FILE"),
            ("-m 1", "from 2 to"),
            ("-m 1x", "from 2 to"),
            ("-t 0", "above 0"),
            ("-t -1", "above 0"),
            ("-t NaN", "above 0"),
            ("--warmup inf", "from 0 to"),
            ("--threads 0", "1..=1024"),
            ("--key-bits 1000", "1024, 2048, 3072, 4096"),
            ("--key x --key-bits 2048", "cannot be used with"),
            ("-m 4096 --mix small", "cannot be used with"),
            ("-s ed25519-sha256 --key-bits 2048", "for RSA keys"),
        ] {
            for task in [Task::Sign, Task::Verify] {
                let error = parse(task, line).unwrap_err();
                assert!(error.contains(reason), "{line}: {error}");
                assert!(!error.contains("1234"), "{line}: {error}");
            }
        }
        let token = "--engine pkcs11:token=x --pkcs11-module /m";
        for (task, option, reason) in [
            (Task::Sign, "--per-message-key", "one in a token cannot"),
            (Task::Sign, "--stages", "verifying has them"),
            (
                Task::Verify,
                "--digest token --stages",
                "the digest in software",
            ),
        ] {
            let error = parse(task, &format!("{token} {option}")).unwrap_err();
            assert!(error.contains(reason), "{option}: {error}");
        }
        for (line, reason) in [
            ("--mix mbox:x", "--sign-first"),
            ("--sign-first --mix small", "is for --mix mbox:FILE"),
        ] {
            let error = parse(Task::Verify, line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
        assert!(parse(Task::Sign, "--mix mbox:x").is_ok());
        assert!(parse(Task::Sign, "--mix mbox:x --sign-first").is_err());
    }

    #[test]
    fn a_token_is_named_by_its_uri_and_opened_by_options() {
        let line = "--engine pkcs11:token=x;object=k --pkcs11-module /m --pkcs11-pin-file /p --digest token";
        let options = parse(Task::Sign, line).unwrap();
        assert_eq!(options.digest, DigestBy::Token);
        let EngineChoice::Token(token) = options.engine else {
            panic!("{:?}", options.engine);
        };
        assert_eq!(token.reference.module, PathBuf::from("/m"));
        assert_eq!(token.reference.pin, Some(PinSource::File("/p".into())));
        assert_eq!((token.in_process, token.sessions), (false, 4));
        assert_eq!(parse(Task::Verify, line).unwrap().digest, DigestBy::Token);
        let line = "--engine pkcs11:object=k?module-path=/n --pkcs11-in-process --pkcs11-sessions 2 --mix mbox:x";
        let EngineChoice::Token(token) = parse(Task::Verify, line).unwrap().engine else {
            panic!("no token");
        };
        assert_eq!(token.reference.module, PathBuf::from("/n"));
        assert_eq!((token.in_process, token.sessions), (true, 2));
    }

    #[test]
    fn h_is_no_help() {
        let error = Options::from_command_line(Task::Sign, ["t-signperf", "-h"]).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::DisplayHelp);
        let help = Options::from_command_line(Task::Sign, ["t-signperf", "--help"]).unwrap_err();
        assert_eq!(help.kind(), ErrorKind::DisplayHelp);
        assert!(help.to_string().contains("-h <ALGORITHM>"));
    }

    #[test]
    fn the_command_lines_are_well_formed() {
        SignArguments::command().debug_assert();
        VerifyArguments::command().debug_assert();
    }
}
