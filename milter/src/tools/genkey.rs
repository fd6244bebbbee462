//! `dkim-genkey`: a new key in a file, and its record for the zone (RFC 6376 section 3.6.1).

use super::new_key::{NewKeyError, new_key};
use super::{EX_CANTCREAT, EX_OK, EX_SOFTWARE, EX_USAGE, Failure, OutputError, say, whole_number};
use crate::record_check::record;
use crate::shown::cause;
use crate::tables::{is_selector, to_host_name};
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Parser};
use dkim_core::engine::{EngineError, KeyType, signing_key};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NAME: &str = "dkim-genkey";

/// Make a private key for DKIM in SELECTOR.private, and its record for the zone in SELECTOR.txt.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    disable_help_flag = true,
    after_help = "Example: dkim-genkey -d example.com -s 2026a -D /etc/dkim",
    after_long_help = "\
Example:
  dkim-genkey -d example.com -s 2026a -D /etc/dkim --type ed25519

Exit codes:
  0   made
  64  the command line makes no sense
  70  no key could be made
  73  a file is there already, or cannot be written
  74  the record cannot be written to standard output"
)]
pub struct GenkeyArguments {
    /// Size of an RSA key: 2048, 3072 or 4096 [default: 2048]
    #[arg(short, long, value_name = "BITS", value_parser = whole_number(1_u32..))]
    bits: Option<u32>,

    /// Domain that will use the key; it is told in a comment of the record
    #[arg(short, long, value_name = "DOMAIN", value_parser = domain)]
    domain: Option<String>,

    /// Directory to write to
    #[arg(short = 'D', long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,

    /// Selector
    #[arg(short, long, value_name = "SELECTOR", default_value = "default", value_parser = selector)]
    selector: String,

    /// Kind of key
    #[arg(long = "type", value_name = "TYPE", default_value = "rsa", value_parser = PossibleValuesParser::new(["rsa", "ed25519"]))]
    kind: String,

    /// Write t=y: the domain is testing DKIM
    #[arg(short, long)]
    testmode: bool,

    /// Write h=: hashes that may be used, with colons between; sha256 must be among them
    #[arg(short, long = "hash-algorithms", value_name = "NAMES", value_parser = hashes)]
    hashes: Option<String>,

    /// Write s=email: the key is for mail only
    #[arg(short, long)]
    restrict: bool,

    /// Write t=s: the domain of i= must be the signing domain itself
    #[arg(short = 'S', long)]
    nosubdomains: bool,

    /// Write the record's whole name, with the domain
    #[arg(short, long = "append-domain", requires = "domain")]
    append_domain: bool,

    /// Show the options, at length
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Makes a key as `arguments` say, and writes its record to standard output, too.
///
/// # Errors
/// Why there is none. What was there before stays, and nothing is left half made.
pub fn generate_key(arguments: GenkeyArguments) -> Result<u8, GenkeyError> {
    let key_type = match &*arguments.kind {
        "ed25519" if arguments.bits.is_some() => return Err(GenkeyError::SizeOfEd25519),
        "ed25519" => KeyType::Ed25519,
        _ => KeyType::Rsa,
    };
    let key = new_key(key_type, arguments.bits.unwrap_or(RSA_BITS))?;
    let ready = signing_key(&key)?;
    let text = zone_entry(&arguments, &record(ready.public_key(), &arguments.tags()));
    let file = |ending| {
        arguments
            .directory
            .join(format!("{}.{ending}", arguments.selector))
    };
    let (private, public) = (file("private"), file("txt"));
    write(&private, key.to_pkcs8_pem().as_bytes())?;
    if let Err(error) = write(&public, text.as_bytes()) {
        // A key without its record is of no use, and would be in the way next time.
        let _ = fs::remove_file(&private);
        return Err(error);
    }
    if rustix::process::geteuid().is_root() {
        let (path, owner) = (private.display(), "dkim-milter");
        say(
            NAME,
            &format!(
                "{path} is root's: the user of the daemon must be able to read it (chown {owner}: {path})"
            ),
        );
    }
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(OutputError::from)?;
    Ok(EX_OK)
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum GenkeyError {
    /// A size, where there is no choice.
    #[error(
        "--bits is for RSA keys: an Ed25519 key has one size (RFC 8463 section 4); leave it out"
    )]
    SizeOfEd25519,
    /// None can be made.
    #[error(transparent)]
    New(#[from] NewKeyError),
    /// What was made cannot sign.
    #[error("the new key does not sign: {0}")]
    Engine(#[from] EngineError),
    /// A file is there.
    #[error("{} is there already, and a key is not written over another: choose a new selector", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {}", path.display(), cause(source))]
    Unwritten {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record cannot be shown; key and record are in their files.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Failure for GenkeyError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::SizeOfEd25519 | Self::New(NewKeyError::Size { .. }) => EX_USAGE,
            Self::New(_) | Self::Engine(_) => EX_SOFTWARE,
            Self::Exists { .. } | Self::Unwritten { .. } => EX_CANTCREAT,
            Self::Output(error) => error.exit_code(),
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_silent())
    }
}

impl GenkeyArguments {
    /// The record's tags between `k=` and `p=`.
    fn tags(&self) -> Vec<String> {
        let mut tags = Vec::new();
        tags.extend(self.hashes.as_ref().map(|hashes| format!("h={hashes}")));
        tags.extend(self.restrict.then(|| "s=email".to_owned()));
        let flags: Vec<&str> = [(self.testmode, "y"), (self.nosubdomains, "s")]
            .iter()
            .filter_map(|&(is_set, flag)| is_set.then_some(flag))
            .collect();
        if !flags.is_empty() {
            tags.push(format!("t={}", flags.join(":")));
        }
        tags
    }
}

/// `record` as it stands in a zone file, in strings of at most 255 octets (RFC 1035 section 3.3).
fn zone_entry(arguments: &GenkeyArguments, record: &str) -> String {
    let mut name = format!("{}._domainkey", arguments.selector);
    if let Some(domain) = arguments
        .domain
        .as_ref()
        .filter(|_| arguments.append_domain)
    {
        name.push_str(&format!(".{domain}."));
    }
    // All of it is ASCII.
    let strings: Vec<String> = record
        .as_bytes()
        .chunks(LONGEST_STRING)
        .map(|octets| format!("\"{}\"", String::from_utf8_lossy(octets)))
        .collect();
    let comment = arguments
        .domain
        .as_ref()
        .map_or_else(String::new, |domain| {
            format!("  ; key {} of {domain}", arguments.selector)
        });
    format!("{name}\tIN\tTXT\t( {} ){comment}\n", strings.join("\n\t"))
}

/// Writes a file that is not there yet and that only its owner can read.
fn write(path: &Path, octets: &[u8]) -> Result<(), GenkeyError> {
    let unwritten = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => GenkeyError::Exists {
            path: path.to_owned(),
        },
        _ => GenkeyError::Unwritten {
            path: path.to_owned(),
            source,
        },
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(unwritten)?;
    let written = file.write_all(octets).and_then(|()| file.sync_all());
    written.map_err(|source| {
        let _ = fs::remove_file(path);
        unwritten(source)
    })
}

fn domain(text: &str) -> Result<String, String> {
    to_host_name(text).ok_or_else(|| "no domain name".to_owned())
}

fn selector(text: &str) -> Result<String, String> {
    if is_selector(text) {
        Ok(text.to_owned())
    } else {
        Err("no selector: labels of letters, digits, - and _, with dots between".to_owned())
    }
}

fn hashes(text: &str) -> Result<String, String> {
    let names: Vec<&str> = text.split(':').map(str::trim).collect();
    let is_name = |name: &&str| {
        !name.is_empty() && name.bytes().all(|o| o.is_ascii_alphanumeric() || o == b'-')
    };
    if !names.iter().all(is_name) {
        return Err("no list of names with colons between".to_owned());
    }
    if !names.contains(&"sha256") {
        return Err(
            "without sha256 no signature by the key is valid (RFC 8301 section 3.1)".to_owned(),
        );
    }
    Ok(names.join(":"))
}

/// What is right for mail (RFC 8301 section 3.2).
const RSA_BITS: u32 = 2048;

/// The longest string of a TXT record.
const LONGEST_STRING: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::{Format, RecordsFile};
    use crate::tools::check_command_line;
    use clap::CommandFactory;
    use dkim_core::key_record::KeyAnswer;

    #[test]
    fn the_command_line_is_well_defined_and_in_the_manual() {
        let manual = include_str!("../../../docs/dkim-genkey.1");
        check_command_line(GenkeyArguments::command(), manual);
    }

    fn arguments(more: &[&str]) -> GenkeyArguments {
        let given = ["dkim-genkey", "-d", "example.com", "-s", "mail"];
        GenkeyArguments::parse_from(given.iter().chain(more))
    }

    #[test]
    fn tags_stand_before_the_key() {
        for (more, tags) in [
            (&[][..], &[][..]),
            (&["-t"], &["t=y"]),
            (&["-S", "-t", "-r"], &["s=email", "t=y:s"]),
            (&["-h", "sha256"], &["h=sha256"]),
        ] {
            assert_eq!(arguments(more).tags(), tags, "{more:?}");
        }
        assert!(hashes("sha1").is_err());
        assert!(hashes("sha256;p=").is_err());
    }

    #[test]
    fn a_long_record_is_cut_into_strings_that_join_to_it() {
        let record = format!("v=DKIM1; k=rsa; p={}", "A".repeat(700));
        let entry = zone_entry(&arguments(&["-a"]), &record);
        let strings: Vec<&str> = entry.split('"').skip(1).step_by(2).collect();
        assert_eq!(strings.concat(), record);
        assert_eq!(
            strings.iter().map(|s| s.len()).collect::<Vec<_>>(),
            [255, 255, 208]
        );
        assert!(entry.starts_with("mail._domainkey.example.com.\tIN\tTXT\t( \"v=DKIM1"));
        assert!(entry.ends_with(" )  ; key mail of example.com\n"));
    }

    #[test]
    fn what_is_written_can_be_read_back() {
        for more in [&[][..], &["-a"]] {
            let entry = zone_entry(&arguments(more), &format!("p={}", "A".repeat(700)));
            for format in [Format::Zone, Format::PublicKeys] {
                let file = RecordsFile::from_octets(entry.as_bytes(), format, Path::new("zone"));
                let answer = file.unwrap().answer("mail._domainkey.example.com");
                assert!(matches!(&*answer, KeyAnswer::Records(_)), "{more:?}");
            }
        }
        // Without a domain, no comment tells it.
        let bare = GenkeyArguments::parse_from(["dkim-genkey", "-s", "mail"]);
        let entry = zone_entry(&bare, "p=");
        let error = RecordsFile::from_octets(entry.as_bytes(), Format::Zone, Path::new("zone"));
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("zone:1: the name \"mail._domainkey\" has no domain"),
            "{error}"
        );
    }

    #[test]
    fn an_ed25519_key_has_no_choice_of_size() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        let given = arguments(&["-D", place, "--type", "ed25519", "-b", "4096"]);
        let error = generate_key(given).unwrap_err();
        assert_eq!(error.exit_code(), EX_USAGE);
        assert!(error.to_string().starts_with("--bits is for RSA keys"));
        assert_eq!(fs::read_dir(place).unwrap().count(), 0);
    }

    #[test]
    fn a_key_is_not_written_over_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mail.private");
        write(&path, b"one").unwrap();
        assert!(matches!(
            write(&path, b"two"),
            Err(GenkeyError::Exists { .. })
        ));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
