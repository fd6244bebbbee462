//! `dkim-testkey`: whether the DNS has the records of the keys that sign, before receivers find out (RFC 6376 section 3.6).
//!
//! One key by `-d`, `-s` and `-k`, or all keys of a configuration. What there is in tokens, and how fast it is, is told by
//! `key_list`. What makes a record wrong is known by `record_check`.

use super::config_keys::{Target, Wanted, targets};
use super::key_list::{ListRequest, list};
use super::key_records::{Finding, KeyRecords, RecordsArguments, RecordsError};
use super::private_key::{KeyError, KeyLoader, KeyName};
use super::token_access::TokenArguments;
use super::{
    EX_CONFIG, EX_IOERR, EX_NOINPUT, EX_OK, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, Failure,
    OutputError, say,
};
use crate::config::{CONFIGURATION_FILES, Config, Overrides, default_configuration};
use crate::record_check::{RecordCheck, kind_and_size, record};
use crate::shown::{cause, one_line};
use crate::tables::{is_host_name, is_selector, to_host_name};
use clap::{ArgAction, Parser};
use dkim_core::key_record::KeyAnswer;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(super) const NAME: &str = "dkim-testkey";

/// Something does not fit, and trying again will not help.
pub(super) const WRONG: u8 = 1;

/// Check that the DNS has the record of a private key, or of every key of a configuration; list the keys in tokens.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    after_help = "Example: dkim-testkey -d example.com -s mail -k mail.private",
    after_long_help = "\
Examples:
  dkim-testkey -x /etc/dkim-milter.conf
  dkim-testkey -d example.com -s mail -k 'pkcs11:token=mail;object=2026a' \\
    --pkcs11-module /usr/lib/softhsm/libsofthsm2.so --pkcs11-pin-file pin
  dkim-testkey --list --pkcs11-pin-file pin --speed

Exit codes:
  0   all is right
  1   a record or a key is wrong, or nothing was found to list
  64  the command line makes no sense
  66  a file cannot be opened
  69  a token is not there, or does not answer
  74  reading or writing failed
  75  nothing is wrong as far as is known, but the DNS did not answer
  78  a key, the configuration, or that of the DNS is no good"
)]
pub struct TestkeyArguments {
    /// Signing domain (d=). Without it, all keys of the configuration are checked
    #[arg(short, long, value_name = "DOMAIN", value_parser = domain)]
    domain: Option<String>,

    /// Selector (s=)
    #[arg(short, long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,

    /// File with the private key, or the URI of a key in a token, pkcs11:... Without it, only the record is looked at
    #[arg(short, long, value_name = "KEY", requires_all = ["domain", "selector"], conflicts_with = "config")]
    key: Option<OsString>,

    /// Configuration whose keys are checked, all or those of -d and -s [default: /etc/dkim-milter.conf, or else
    /// /etc/opendkim.conf]
    #[arg(short = 'x', long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Tell more: which key each record was held against, and the record to publish where one is wrong
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    /// List modules, their tokens and private keys, as URIs to be used for keys; with -d and -s, which of them the record has
    #[arg(long, conflicts_with_all = ["key", "config"])]
    list: bool,

    /// List only what this URI matches, pkcs11:...
    #[arg(short, long, value_name = "URI", requires = "list")]
    uri: Option<OsString>,

    /// Measure how many signatures a second each listed key makes, beside software: about six seconds a key
    #[arg(long, requires = "list")]
    speed: bool,

    /// PKCS#11 module by which tokens are reached, for keys whose URI has none; may be repeated with --list, which by
    /// default tries those where packages put them
    #[arg(long = "pkcs11-module", value_name = "FILE")]
    modules: Vec<PathBuf>,

    #[command(flatten)]
    tokens: TokenArguments,

    #[command(flatten)]
    records: RecordsArguments,

    /// Believe what name servers say of DNSSEC although they are on other machines, as with trust-ad in /etc/resolv.conf
    #[arg(long)]
    trust_ad: bool,
}

/// Checks or lists as `arguments` say, and writes the result to standard output.
///
/// # Errors
/// Why nothing can be checked. Of many keys, each that cannot be used is only reported.
pub fn test_key(arguments: TestkeyArguments) -> Result<u8, TestkeyError> {
    if arguments.list {
        return list_keys(&arguments);
    }
    if arguments.modules.len() > 1 {
        return Err(TestkeyError::SeveralModules);
    }
    let module = arguments.modules.first().map(PathBuf::as_path);
    let tokens = arguments.tokens.with_module(module);
    match (&arguments.domain, &arguments.selector, &arguments.config) {
        (Some(domain), Some(selector), None) => KeyLoader::run(NAME, None, tokens, |loader| {
            check_one(&arguments, domain, selector, loader)
        }),
        _ => {
            let (path, config) = configuration(arguments.config.as_deref())?;
            let tokens = tokens.or(&config.signing.tokens);
            KeyLoader::run(NAME, None, tokens, |loader| {
                check_configuration(&arguments, path, &config, loader)
            })
        }
    }
}

/// Why nothing is checked.
#[derive(Debug, thiserror::Error)]
pub enum TestkeyError {
    /// Several modules, where one key is to be found.
    #[error(
        "--pkcs11-module is given more than once, which is for --list: name the key's own, or write module-path into its URI"
    )]
    SeveralModules,
    /// `-d` without `-s`, or the other way round.
    #[error("with --list, -d and -s belong together: the record is at SELECTOR._domainkey.DOMAIN")]
    HalfAName,
    /// A key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is nobody to ask for records.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// No configuration to take keys from.
    #[error(
        "no key to check: {} are not there; name a configuration by -x, or a key by -d, -s and -k",
        CONFIGURATION_FILES.join(" and ")
    )]
    NoConfiguration,
    /// The configuration cannot be opened.
    #[error("cannot read {}: {}", path.display(), cause(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration is no good; its faults have been told.
    #[error("{}: {errors} {} in the configuration", path.display(), if *errors == 1 { "error" } else { "errors" })]
    Configuration {
        /// The file.
        path: PathBuf,
        /// How many.
        errors: usize,
    },
    /// The configuration has no such key.
    #[error("{}: no key to check: {why}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// The system does not let us begin.
    #[error("cannot begin to look for tokens: {}", cause(.0))]
    Start(io::Error),
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl From<io::Error> for TestkeyError {
    fn from(error: io::Error) -> Self {
        Self::Output(error.into())
    }
}

impl Failure for TestkeyError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::SeveralModules | Self::HalfAName => EX_USAGE,
            Self::Key(error) => error.exit_code(),
            Self::Records(error) => error.exit_code(),
            Self::NoConfiguration | Self::Unreadable { .. } => EX_NOINPUT,
            Self::Configuration { .. } | Self::NoKey { .. } => EX_CONFIG,
            Self::Start(_) => EX_IOERR,
            Self::Output(error) => error.exit_code(),
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_silent())
    }
}

fn check_one(
    arguments: &TestkeyArguments,
    domain: &str,
    selector: &str,
    loader: &mut KeyLoader,
) -> Result<u8, TestkeyError> {
    let name = arguments.key.as_deref().map(KeyName::parse).transpose()?;
    let key = name.as_ref().map(|name| loader.load(name)).transpose()?;
    let records = KeyRecords::open(NAME, &arguments.records, None)?;
    let target = Target {
        domain: domain.to_owned(),
        selector: selector.to_owned(),
        told: name.map_or_else(|| "none".to_owned(), |name| name.to_string()),
        key: Ok(key),
    };
    Ok(report(vec![target], &records, arguments)?)
}

fn check_configuration(
    arguments: &TestkeyArguments,
    path: PathBuf,
    config: &Config,
    loader: &mut KeyLoader,
) -> Result<u8, TestkeyError> {
    let records = KeyRecords::open(NAME, &arguments.records, Some(&config.dns))?;
    let wanted = Wanted {
        domain: arguments.domain.as_deref(),
        selector: arguments.selector.as_deref(),
    };
    let (targets, skipped) = targets(config, &wanted, loader);
    for sentence in &skipped {
        say(NAME, &format!("not checked: {sentence}"));
    }
    if targets.is_empty() {
        let why = if config.signing.signers.is_none() {
            "it names none"
        } else if !skipped.is_empty() {
            "all are made of the author's domain"
        } else {
            "none has the domain of -d and the selector of -s"
        };
        return Err(TestkeyError::NoKey { path, why });
    }
    Ok(report(targets, &records, arguments)?)
}

/// The configuration at `path`, or at the first place that has one.
fn configuration(path: Option<&Path>) -> Result<(PathBuf, Config), TestkeyError> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => default_configuration().ok_or(TestkeyError::NoConfiguration)?,
    };
    if let Err(source) = File::open(&path) {
        return Err(TestkeyError::Unreadable { path, source });
    }
    match Config::load(Some(&path), &Overrides::default()) {
        Ok((config, _)) => Ok((path, config)),
        Err(refused) => {
            for error in &refused.errors {
                say(NAME, error);
            }
            Err(TestkeyError::Configuration {
                path,
                errors: refused.errors.len(),
            })
        }
    }
}

/// Looks the records of `targets` up and writes a line for each, in their order.
fn report(
    targets: Vec<Target>,
    records: &KeyRecords,
    arguments: &TestkeyArguments,
) -> io::Result<u8> {
    let mut worst = EX_OK;
    let mut targets = targets.into_iter().peekable();
    while targets.peek().is_some() {
        let some: Vec<_> = targets.by_ref().take(AT_ONCE).collect();
        let names = some.iter().map(Target::record_name).collect();
        let found = records.inspect(names, arguments.trust_ad);
        let hints = hints(&some, &found, records);
        let mut output = io::stdout().lock();
        for ((target, finding), hint) in some.iter().zip(found).zip(hints) {
            let code = write_line(target, &finding, &hint, arguments.verbose > 0, &mut output)?;
            worst = worse(worst, code);
        }
    }
    Ok(worst)
}

/// What to say more of each target: where else its record is.
fn hints(targets: &[Target], found: &[Finding], records: &KeyRecords) -> Vec<String> {
    let mut hints = vec![String::new(); targets.len()];
    let mut elsewhere = Vec::new();
    for (index, (target, finding)) in targets.iter().zip(found).enumerate() {
        if let KeyAnswer::NoName | KeyAnswer::NoRecord = *finding.told.answer {
            elsewhere.push((index, target.twice()));
        }
    }
    let names = elsewhere.iter().map(|(_, name)| name.clone()).collect();
    for ((index, name), finding) in elsewhere.iter().zip(records.inspect(names, false)) {
        if matches!(*finding.told.answer, KeyAnswer::Records(_)) {
            hints[*index] = format!(
                "; but {name} has one: the zone's name was added to a name that had it already, so leave it out there, or \
                 end the name with a dot"
            );
        }
    }
    hints
}

impl Target {
    fn record_name(&self) -> String {
        record_name(&self.selector, &self.domain)
    }

    /// Where the record is if its whole name was entered as one within the zone.
    fn twice(&self) -> String {
        format!("{}.{}", self.record_name(), self.domain)
    }
}

/// Where the key record is (RFC 6376 section 3.6.2.1).
fn record_name(selector: &str, domain: &str) -> String {
    format!("{selector}._domainkey.{domain}")
}

fn write_line(
    target: &Target,
    finding: &Finding,
    hint: &str,
    is_verbose: bool,
    output: &mut impl Write,
) -> io::Result<u8> {
    let name = one_line(&target.record_name());
    let key = match &target.key {
        Ok(key) => key.as_ref().map(|key| key.public_key()),
        Err(error) => {
            let code = match error.exit_code() {
                EX_UNAVAILABLE => EX_UNAVAILABLE,
                _ => WRONG,
            };
            let word = word(code);
            writeln!(output, "{word:<8}{name}: {}", one_line(&error.to_string()))?;
            return Ok(code);
        }
    };
    let check = RecordCheck::new(&finding.told.answer, key);
    let cname = finding.told.cname.as_ref();
    let cname = cname.map_or_else(String::new, |name| format!(", through CNAME {name}"));
    let signed = match finding.validated {
        Some(true) => "; key DNSSEC signed",
        Some(false) => "; key not DNSSEC signed",
        None => "",
    };
    let code = match &check.faults[..] {
        [] => EX_OK,
        _ if check.is_unknown() => EX_TEMPFAIL,
        _ => WRONG,
    };
    let sentence = match (&check.published, key) {
        _ if code != EX_OK => format!("{check}{cname}{hint}"),
        (Some(key), Some(_)) => {
            let key = kind_and_size(key);
            format!("the record has the key, {key}{cname}{signed}")
        }
        (Some(key), None) => {
            let key = kind_and_size(key);
            format!("the record has a key, {key}{cname}{signed}; with -k it is compared")
        }
        (None, _) => String::new(),
    };
    writeln!(output, "{:<8}{name}: {}", word(code), one_line(&sentence))?;
    for note in &check.notes {
        writeln!(output, "{:<8}{name}: {note}", "note")?;
    }
    if is_verbose {
        writeln!(output, "{:<8}key: {}", "", one_line(&target.told))?;
        if let Some(key) = key.filter(|_| code == WRONG) {
            writeln!(output, "{:<8}to publish: {}", "", record(key, &[]))?;
        }
    }
    Ok(code)
}

fn word(code: u8) -> &'static str {
    match code {
        EX_OK => "ok",
        WRONG => "wrong",
        _ => "unknown",
    }
}

/// The worse of two codes.
fn worse(one: u8, other: u8) -> u8 {
    const FROM_BEST: [u8; 4] = [EX_OK, EX_TEMPFAIL, EX_UNAVAILABLE, WRONG];
    let rank = |code| FROM_BEST.iter().position(|&known| known == code);
    if rank(other) > rank(one) { other } else { one }
}

fn list_keys(arguments: &TestkeyArguments) -> Result<u8, TestkeyError> {
    let name = match (&arguments.selector, &arguments.domain) {
        (None, None) => None,
        (Some(selector), Some(domain)) => Some(record_name(selector, domain)),
        _ => return Err(TestkeyError::HalfAName),
    };
    let answer = match name {
        None => None,
        Some(name) => {
            let records = KeyRecords::open(NAME, &arguments.records, None)?;
            let found = records.inspect(vec![name.clone()], false).pop();
            found.map(|finding| (name, finding.told.answer))
        }
    };
    list(&ListRequest {
        modules: &arguments.modules,
        uri: arguments.uri.as_deref(),
        tokens: arguments.tokens.with_module(None),
        record: answer,
        speed: arguments.speed,
    })
}

fn domain(text: &str) -> Result<String, String> {
    to_host_name(text)
        .filter(|name| is_host_name(name))
        .ok_or_else(|| "no domain name".to_owned())
}

fn selector(text: &str) -> Result<String, String> {
    if is_selector(text) {
        Ok(text.to_owned())
    } else {
        Err("no selector: labels of letters, digits, - and _, with dots between".to_owned())
    }
}

/// How many names are asked for at once.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::Inspected;
    use crate::tools::check_command_line;
    use clap::CommandFactory;
    use dkim_core::engine::{PrivateKey, signing_key};
    use std::sync::Arc;

    #[test]
    fn the_command_line_is_well_defined_and_in_the_manual() {
        let manual = include_str!("../../../docs/dkim-testkey.1");
        check_command_line(TestkeyArguments::command(), manual);
    }

    #[test]
    fn what_is_wrong_is_worse_than_what_is_not_known() {
        for (one, other, want) in [(0, 75, 75), (75, 69, 69), (69, 1, 1), (1, 0, 1), (0, 0, 0)] {
            assert_eq!(worse(one, other), want, "{one} {other}");
        }
    }

    #[test]
    fn a_line_begins_with_the_outcome_and_tells_what_to_publish() {
        let pem = include_bytes!("../../../dkim-core/tests/data/keys/ed25519.pem");
        let key = signing_key(&PrivateKey::from_octets(pem).unwrap()).unwrap();
        let right = record(key.public_key(), &["t=y".to_owned()]);
        let target = Target {
            domain: "example.com".to_owned(),
            selector: "ed".to_owned(),
            told: "ed.pem".to_owned(),
            key: Ok(Some(Arc::from(key))),
        };
        for (answer, code, first, last) in [
            (
                KeyAnswer::from_txt(&[&right]),
                0,
                "ok      ed._domainkey.example.com: the record has the key, Ed25519",
                "        key: ed.pem",
            ),
            (
                KeyAnswer::NoName,
                1,
                "wrong   ed._domainkey.example.com: no record: the name does not exist in the DNS",
                &*format!("        to publish: {}", right.replace("t=y; ", "")),
            ),
            (
                KeyAnswer::Unavailable("answered SERVFAIL".to_owned()),
                75,
                "unknown ed._domainkey.example.com: not known: the DNS did not say (answered SERVFAIL)",
                "        key: ed.pem",
            ),
        ] {
            let mut output = Vec::new();
            let finding = Finding {
                told: Inspected::bare(Arc::new(answer)),
                validated: None,
            };
            assert_eq!(
                write_line(&target, &finding, "", true, &mut output).unwrap(),
                code
            );
            let lines = String::from_utf8(output).unwrap();
            assert_eq!(lines.lines().next(), Some(first));
            assert_eq!(lines.lines().last(), Some(last));
        }
    }
}
