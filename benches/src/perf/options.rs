//! The command line of `t-signperf` and `t-verifyperf`: libopendkim's options and more.
//!
//! `-h` is the header's canonicalization, as in libopendkim's programs, so that help is `--help` only.

use super::Task;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use dkim_core::canonicalization::{Algorithm, Canonicalization};
use dkim_core::engine::{Engine, KeyType, default_engine, engine_by_name, engines};
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
    pub engine: &'static dyn Engine,
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

    /// Who signs or checks [default: the first one]
    #[arg(long, value_name = "NAME", value_parser = engine_parser())]
    engine: Option<&'static dyn Engine>,

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

    /// Who computes SHA-256
    #[arg(long, value_name = "WHO", default_value = "software", value_parser = digest_parser(), hide_possible_values = true)]
    digest: String,

    /// Parse the key (signing) or the key record (verifying) for each message, as libopendkim does. Signing so includes
    /// the proof that an engine wants of each key: one signature more, and its check
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
    if arguments.algorithm == Some(KeyType::Ed25519) && arguments.key_bits.is_some() {
        return conflict("--key-bits is for RSA keys; those of ed25519-sha256 have one size");
    }
    if sign_first && !is_mbox {
        return conflict(
            "--sign-first is for --mix mbox:FILE; all other messages are signed anyway",
        );
    }
    if task == Task::Verify && is_mbox && !sign_first && arguments.key.is_none() {
        return conflict(
            "--mix mbox:FILE needs the key that signed its messages (--key FILE), or --sign-first",
        );
    }
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
        engine: arguments.engine.unwrap_or(default_engine()),
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

fn engine_parser() -> impl TypedValueParser<Value = &'static dyn Engine> {
    PossibleValuesParser::new(engines().iter().map(|engine| engine.name()))
        .try_map(|name| engine_by_name(&name).ok_or("engine is not built in"))
}

fn key_bits_parser() -> impl TypedValueParser<Value = u32> {
    PossibleValuesParser::new(["1024", "2048", "3072", "4096"])
        .try_map(|bits| bits.parse().map_err(|_| "not a number of bits"))
}

fn digest_parser() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(["software", "token"]).try_map(|name| match name.as_str() {
        "software" => Ok(name),
        _ => Err("no engine here has a token that could compute digests"),
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
                "[possible values: aws-lc, rustcrypto]\n\n  tip: a similar value exists: 'aws-lc'",
            ),
            (
                "--engine pkcs11:token=x",
                "[possible values: aws-lc, rustcrypto]",
            ),
            ("--digest token", "no engine here has a token"),
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
            }
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
