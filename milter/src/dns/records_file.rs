//! Key records from a file, for tests and for verifying without a network.
//!
//! Two ways to write one: [`Format::Zone`], much like a zone file, which can also say that a name fails, and
//! [`Format::PublicKeys`], the file of OpenDKIM's `TestPublicKeys`, where entries of a zone file are understood as well.
//! Everything is read and resolved at once, so an answer needs neither the file nor a runtime. A name that is not listed
//! does not exist.

mod zone;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dkim_core::key_record::KeyAnswer;

use super::{InspectFuture, Inspected, KeySource, LookupFuture, query_name};
use crate::shown::cause;

/// How the file is written. In both, empty lines and lines that begin with `#` or `;` say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Entries of a zone file, names taken as absolute:
    ///
    /// ```text
    /// name [TTL] [IN] TXT "string" "string"...      with \" \\ and \DDD (decimal) as escapes
    /// name [TTL] [IN] CNAME target
    /// ! NXDOMAIN|NODATA|SERVFAIL|REFUSED|TIMEOUT name
    /// ; a comment
    /// ```
    ///
    /// An entry may go over several lines in parentheses. A name that ends in `_domainkey` needs the comment of the tool
    /// that made the key, which tells the domain. A `!` line outdoes records of the same name; `TIMEOUT` fails at once. The
    /// TTL is for show. A string may be longer than the DNS allows.
    Zone,
    /// `name record`, the record as it is to be read, without quotes; or an entry of a zone file. The first for a name
    /// counts.
    PublicKeys,
}

/// Key records from a file.
#[derive(Debug)]
pub struct RecordsFile {
    answers: HashMap<String, Inspected>,
    unlisted: Inspected,
}

impl RecordsFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, or the first line in it that makes no sense.
    pub fn read(path: &Path, format: Format) -> Result<Self, RecordsFileError> {
        let octets = std::fs::read(path).map_err(|source| RecordsFileError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::from_octets(&octets, format, path)
    }

    /// Reads what a file holds, which is called `path` in errors.
    ///
    /// # Errors
    /// The first line that makes no sense.
    pub fn from_octets(
        octets: &[u8],
        format: Format,
        path: &Path,
    ) -> Result<Self, RecordsFileError> {
        Self::parse(octets, format).map_err(|(line, fault)| RecordsFileError::Line {
            path: path.to_owned(),
            line,
            fault,
        })
    }

    /// What is known of the key records at `name`; the same as [`KeySource::lookup`], without waiting.
    pub fn answer(&self, name: &str) -> Arc<KeyAnswer> {
        Arc::clone(&self.listed(name).answer)
    }

    fn listed(&self, name: &str) -> &Inspected {
        let listed = query_name(name).and_then(|name| self.answers.get(&name));
        listed.unwrap_or(&self.unlisted)
    }

    fn parse(octets: &[u8], format: Format) -> Result<Self, (usize, LineFault)> {
        let mut names = HashMap::new();
        let (mut rest, mut number) = (octets, 1);
        while !rest.is_empty() {
            let end = rest.iter().position(|&octet| octet == b'\n');
            let octets = end.map_or(rest.len(), |end| end + 1);
            let line = rest[..octets].trim_ascii();
            let stated = match (line.first(), format) {
                (None | Some(b'#' | b';'), _) => None,
                (Some(b'!'), Format::Zone) => Some(outcome_line(&line[1..])),
                (_, Format::PublicKeys) if !zone::is_meant(line) => Some(public_key_line(line)),
                _ => {
                    let entry =
                        zone::entry(rest).map_err(|(below, fault)| (number + below, fault))?;
                    add(&mut names, &entry.name, entry.said, format)
                        .map_err(|fault| (number, fault))?;
                    rest = &rest[entry.octets..];
                    number += entry.lines;
                    continue;
                }
            };
            if let Some(stated) = stated {
                stated
                    .and_then(|(name, said)| add(&mut names, name, said, format))
                    .map_err(|fault| (number, fault))?;
            }
            rest = &rest[octets..];
            number += 1;
        }
        let answers = names
            .keys()
            .map(|name| (name.clone(), resolve(&names, name)))
            .collect();
        Ok(Self {
            answers,
            unlisted: Inspected::bare(Arc::new(KeyAnswer::NoName)),
        })
    }
}

impl KeySource for RecordsFile {
    fn lookup<'a>(&'a self, name: &'a str) -> LookupFuture<'a> {
        Box::pin(std::future::ready(self.answer(name)))
    }

    fn inspect<'a>(&'a self, name: &'a str) -> InspectFuture<'a> {
        Box::pin(std::future::ready(self.listed(name).clone()))
    }
}

/// Why a file of records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordsFileError {
    /// The file is not there or not for us.
    #[error("cannot read {}: {}", path.display(), cause(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line makes no sense.
    #[error("{}:{line}: {fault}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        fault: LineFault,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// A name stands alone.
    #[error("no record after the name")]
    NoRecord,
    /// Something else than the fields of a zone line.
    #[error("not of the form: name [TTL] [IN] TXT \"string\"..., or: name [TTL] [IN] CNAME target")]
    NotARecord,
    /// A parenthesis that stays open.
    #[error("the parenthesis that is opened here is not closed")]
    Unclosed,
    /// `$ORIGIN`, `$TTL`, `$INCLUDE`.
    #[error("{0} is not read here: leave it out, and write each name whole")]
    Directive(String),
    /// A name without its domain.
    #[error(
        "the name \"{0}\" has no domain, and no comment of dkim-genkey tells it: write the whole name, \
         SELECTOR._domainkey.DOMAIN, or make the key with dkim-genkey -d DOMAIN -a"
    )]
    Relative(String),
    /// A record of a type that is not read.
    #[error("record type \"{0}\" is not read here, only TXT and CNAME")]
    OtherType(String),
    /// A string without quotes, or with only one.
    #[error("a string of a TXT record must stand in quotes")]
    Unquoted,
    /// A backslash with nothing good after it.
    #[error("a backslash must be followed by a character or by three digits up to 255")]
    BadEscape,
    /// A `!` line without a known word.
    #[error(
        "\"{0}\" after the exclamation mark is none of NXDOMAIN, NODATA, SERVFAIL, REFUSED, TIMEOUT"
    )]
    UnknownOutcome(String),
    /// A `!` line without exactly one name.
    #[error("not of the form: ! NXDOMAIN|NODATA|SERVFAIL|REFUSED|TIMEOUT name")]
    NotAnOutcome,
    /// A CNAME next to something else (RFC 1034 section 3.6.2).
    #[error("a name with a CNAME can have no other record")]
    CnameAndOther,
}

/// As many as name servers are trusted with.
const MAX_CNAMES: usize = 8;

/// What one line says of a name.
enum Said {
    Txt(Vec<u8>),
    Cname(Vec<u8>),
    Outcome(Outcome),
}

/// What all lines say of a name.
enum Known {
    Records(Vec<Vec<u8>>),
    Cname(Vec<u8>),
    Outcome(Outcome),
}

/// What comes in place of records.
#[derive(Clone, Copy)]
enum Outcome {
    NxDomain,
    NoData,
    ServFail,
    Refused,
    Timeout,
}

fn add(
    names: &mut HashMap<String, Known>,
    name: &[u8],
    said: Said,
    format: Format,
) -> Result<(), LineFault> {
    // A name that the DNS cannot hold is never asked for; a test may list it to show just that.
    let Some(name) = std::str::from_utf8(name).ok().and_then(query_name) else {
        return Ok(());
    };
    match (names.get_mut(&name), said) {
        (Some(Known::Outcome(_)), _) => {}
        (_, Said::Outcome(outcome)) => {
            names.insert(name, Known::Outcome(outcome));
        }
        (None, Said::Txt(record)) => {
            names.insert(name, Known::Records(vec![record]));
        }
        (None, Said::Cname(target)) => {
            names.insert(name, Known::Cname(target));
        }
        (Some(Known::Records(records)), Said::Txt(record)) => {
            if format == Format::Zone {
                records.push(record);
            }
        }
        (Some(_), _) => return Err(LineFault::CnameAndOther),
    }
    Ok(())
}

fn resolve(names: &HashMap<String, Known>, name: &str) -> Inspected {
    let mut end = name.to_owned();
    let answer = follow(names, &mut end);
    Inspected {
        answer: Arc::new(answer),
        cname: (end != name).then_some(end),
        ttl: None,
    }
}

/// The answer for `name`, which becomes the name where CNAMEs end.
fn follow(names: &HashMap<String, Known>, name: &mut String) -> KeyAnswer {
    for _ in 0..=MAX_CNAMES {
        match names.get(name) {
            None => return KeyAnswer::NoName,
            Some(Known::Records(records)) => return KeyAnswer::from_txt(records),
            Some(Known::Outcome(outcome)) => return outcome.answer(),
            Some(Known::Cname(target)) => {
                match std::str::from_utf8(target).ok().and_then(query_name) {
                    Some(target) => *name = target,
                    None => return KeyAnswer::NoName,
                }
            }
        }
    }
    KeyAnswer::Unavailable(format!("CNAMEs that do not end within {MAX_CNAMES} steps"))
}

impl Outcome {
    fn from_word(word: &[u8]) -> Option<Self> {
        match word.to_ascii_uppercase().as_slice() {
            b"NXDOMAIN" => Some(Self::NxDomain),
            b"NODATA" => Some(Self::NoData),
            b"SERVFAIL" => Some(Self::ServFail),
            b"REFUSED" => Some(Self::Refused),
            b"TIMEOUT" => Some(Self::Timeout),
            _ => None,
        }
    }

    fn answer(self) -> KeyAnswer {
        match self {
            Self::NxDomain => KeyAnswer::NoName,
            Self::NoData => KeyAnswer::NoRecord,
            Self::ServFail => KeyAnswer::Unavailable("answered SERVFAIL".into()),
            Self::Refused => KeyAnswer::Unavailable("answered REFUSED".into()),
            Self::Timeout => KeyAnswer::Unavailable("no answer in time".into()),
        }
    }
}

fn public_key_line(line: &[u8]) -> Result<(&[u8], Said), LineFault> {
    let (name, record) = next_word(line);
    if record.is_empty() {
        Err(LineFault::NoRecord)
    } else if zone::is_relative(name) {
        Err(LineFault::Relative(
            String::from_utf8_lossy(name).into_owned(),
        ))
    } else {
        Ok((name, Said::Txt(record.to_vec())))
    }
}

fn outcome_line(rest: &[u8]) -> Result<(&[u8], Said), LineFault> {
    let (word, rest) = next_word(rest.trim_ascii());
    if word.is_empty() {
        return Err(LineFault::NotAnOutcome);
    }
    let outcome = Outcome::from_word(word)
        .ok_or_else(|| LineFault::UnknownOutcome(String::from_utf8_lossy(word).into_owned()))?;
    match next_word(rest) {
        (b"", _) => Err(LineFault::NotAnOutcome),
        (name, b"") => Ok((name, Said::Outcome(outcome))),
        _ => Err(LineFault::NotAnOutcome),
    }
}

/// The first word of `text`, and what follows it without the white space between.
fn next_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use dkim_core::key_record::KeyRecordError;
    use proptest::prelude::*;

    use super::*;

    /// Records without a key will do here; each is told by why it has none.
    fn said(file: &RecordsFile, name: &str) -> String {
        match &*file.answer(name) {
            KeyAnswer::Records(records) => {
                let faults: Vec<_> = records
                    .iter()
                    .map(|record| record.as_ref().unwrap_err().to_string())
                    .collect();
                faults.join(" | ")
            }
            KeyAnswer::NoRecord => "no record".into(),
            KeyAnswer::NoName => "no name".into(),
            KeyAnswer::Unavailable(reason) => reason.clone(),
        }
    }

    const REVOKED: &str = "key revoked (p= is empty)";
    const UNKNOWN: &str = "unknown key type in the key record (k=)";

    #[test]
    fn a_zone_file_gives_records_names_and_failures() {
        let text = br#"
; a comment
# another
a._domainkey.example.org. 300 IN TXT "v=DKI" "M1; p" "" "="
a._domainkey.Example.ORG 300 in txt "k=x; p=\065A"
cut.example.org 300 IN CNAME cut2.example.org.
cut2.example.org 300 IN CNAME a._domainkey.example.org
dangling.example.org 300 IN CNAME nowhere.example.org
refused.example.org 300 IN CNAME re.example.org
loop.example.org 300 IN CNAME loop2.example.org
loop2.example.org 300 IN CNAME loop.example.org
sel._domainkey.b\.cher.example 300 IN TXT "p="
s._domainkey.example.org(a;"b). 300 IN TXT "p="
! NXDOMAIN nx.example.org
! NODATA nodata.example.org
! SERVFAIL sf.example.org
! refused re.example.org.
! TIMEOUT to.example.org
to.example.org 300 IN TXT "p="
"#;
        let u_label = "s._domainkey.b\u{fc}cher.example 300 IN TXT \"p=\"\r\n".as_bytes();
        let text = [
            text,
            u_label,
            b"s._domainkey.b\xffcher.example 300 IN TXT \"p=\"",
        ]
        .concat();
        let file = RecordsFile::parse(&text, Format::Zone).unwrap();
        let both = format!("{REVOKED} | {UNKNOWN}");
        for (name, want) in [
            ("A._DomainKey.example.org", both.as_str()),
            ("a._domainkey.example.org.", &both),
            ("cut.example.org", &both),
            ("dangling.example.org", "no name"),
            ("refused.example.org", "answered REFUSED"),
            ("loop.example.org", "CNAMEs that do not end within 8 steps"),
            ("nx.example.org", "no name"),
            ("unlisted.example.org", "no name"),
            ("sel._domainkey.b\\.cher.example", "no name"),
            ("nodata.example.org", "no record"),
            ("sf.example.org", "answered SERVFAIL"),
            ("re.example.org", "answered REFUSED"),
            ("to.example.org", "no answer in time"),
            ("s._domainkey.xn--bcher-kva.example", REVOKED),
            ("s._domainkey.B\u{dc}CHER.example", REVOKED),
        ] {
            assert_eq!(said(&file, name), want, "{name}");
        }
    }

    #[test]
    fn a_public_keys_file_has_names_and_bare_records_of_which_the_first_counts() {
        let text = b"# keys\n\na._domainkey.example.org  v=DKIM1; p= \n\tb.example.org\tp=;n=\"x\" # y\r\n\
                     A._domainkey.EXAMPLE.org k=x; p=A\nc.example.org 300 IN TXT \"p=\"\n";
        let file = RecordsFile::parse(text, Format::PublicKeys).unwrap();
        for (name, want) in [
            ("a._domainkey.example.org", REVOKED),
            ("b.example.org", REVOKED),
            ("d.example.org", "no name"),
        ] {
            assert_eq!(said(&file, name), want, "{name}");
        }
        // An entry of a zone file is read as one.
        assert_eq!(said(&file, "c.example.org"), REVOKED);
    }

    #[test]
    fn a_line_without_sense_is_named() {
        for (format, line, fault) in [
            (Format::Zone, "a.example.org", LineFault::NotARecord),
            (
                Format::Zone,
                "a.example.org 300 IN TXT",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org IN IN TXT \"p=\"",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org v=DKIM1; p=",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org TXT ( ( \"p=\" ) )",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org TXT ( \"p=\"",
                LineFault::Unclosed,
            ),
            (
                Format::Zone,
                "$ORIGIN example.org.",
                LineFault::Directive("$ORIGIN".into()),
            ),
            (
                Format::Zone,
                "a._domainkey TXT \"p=\" ; the key",
                LineFault::Relative("a._domainkey".into()),
            ),
            (
                Format::Zone,
                "a._domainkey TXT \"p=\" ; key b of example.org",
                LineFault::Relative("a._domainkey".into()),
            ),
            // An owner that is left out.
            (
                Format::Zone,
                "\tIN TXT \"p=\"",
                LineFault::Relative("IN".into()),
            ),
            (
                Format::PublicKeys,
                "a.example.org \"v=DKIM1; p=\"",
                LineFault::NotARecord,
            ),
            (
                Format::PublicKeys,
                "a.example.org IN TXT v=DKIM1; p=",
                LineFault::Unquoted,
            ),
            (
                Format::PublicKeys,
                "a._domainkey p=",
                LineFault::Relative("a._domainkey".into()),
            ),
            (
                Format::Zone,
                "a.example.org 300 CH TXT \"p=\"",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN CNAME b c",
                LineFault::NotARecord,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN A 192.0.2.1",
                LineFault::OtherType("A".into()),
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT p=",
                LineFault::Unquoted,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT \"p=",
                LineFault::Unquoted,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT \"p=\" x",
                LineFault::Unquoted,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT \"\\256\"",
                LineFault::BadEscape,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT \"\\25\"",
                LineFault::BadEscape,
            ),
            (
                Format::Zone,
                "a.example.org 300 IN TXT \"\\",
                LineFault::BadEscape,
            ),
            (
                Format::Zone,
                "! NXDOMIAN a.example.org",
                LineFault::UnknownOutcome("NXDOMIAN".into()),
            ),
            (Format::Zone, "!", LineFault::NotAnOutcome),
            (Format::Zone, "! NXDOMAIN", LineFault::NotAnOutcome),
            (Format::Zone, "! NXDOMAIN a b", LineFault::NotAnOutcome),
            (
                Format::Zone,
                "first.example.org 300 IN CNAME b.example.org",
                LineFault::CnameAndOther,
            ),
            (Format::PublicKeys, "a.example.org", LineFault::NoRecord),
        ] {
            let first = match format {
                Format::Zone => "first.example.org 300 IN TXT \"p=\"",
                Format::PublicKeys => "first.example.org p=",
            };
            let text = format!("{first}\n\n{line}\n{first}\n");
            assert_eq!(
                RecordsFile::parse(text.as_bytes(), format).unwrap_err(),
                (3, fault),
                "{line}"
            );
        }
    }

    #[test]
    fn an_entry_may_go_over_lines_and_leave_out_ttl_and_class() {
        let text = br#"
a.example.org. IN TXT "p="   ; ( not opened
b.example.org TXT ("p" ; with a ) comment
  # "no comment here"
"#;
        // A `#` is none within an entry.
        let (line, fault) = RecordsFile::parse(text, Format::Zone).unwrap_err();
        assert_eq!((line, fault), (3, LineFault::Unclosed));
        let text = br#"
a.example.org. IN TXT "p="   ; ( not opened
b.example.org TXT ("p" ; with a ) comment
  "=" )
c.example.org IN 1h TXT ( "p="
)
d.example.org 1d12h IN CNAME ( a.example.org. )
e.example.org TXT"p="
f._domainkey	IN	TXT	( "p="
	"" )  ; key f of example.org
g._domainkey	IN	TXT	( "v=DKIM1; h=sha256; k=rsa; "
	  "p=" )  ; ----- DKIM key g for example.org
g._domainkey.example.net.	IN	TXT	( "v=DKIM1; k=rsa; "
	  "p=" )  ; ----- DKIM key g for example.net
"#;
        for format in [Format::Zone, Format::PublicKeys] {
            let file = RecordsFile::parse(text, format).unwrap();
            for name in "a b c d f._domainkey g._domainkey".split(' ') {
                assert_eq!(
                    said(&file, &format!("{name}.example.org")),
                    REVOKED,
                    "{name}"
                );
            }
            assert_eq!(said(&file, "g._domainkey.example.net"), REVOKED);
        }
        let file = RecordsFile::parse(text, Format::Zone).unwrap();
        assert_eq!(said(&file, "e.example.org"), REVOKED);
        // Lines are counted through entries.
        let text = [&text[..], b"a.example.org TXT (\n \"p=\"\n\"\\2\" )"].concat();
        for format in [Format::Zone, Format::PublicKeys] {
            let error = RecordsFile::parse(&text, format).unwrap_err();
            assert_eq!(error, (17, LineFault::BadEscape));
        }
    }

    #[test]
    fn an_error_says_where() {
        let path = std::env::temp_dir().join(format!("records-{}", std::process::id()));
        std::fs::write(
            &path,
            "a.example.org 300 IN TXT \"p=\"\na.example.org 300 IN TXT p=\n",
        )
        .unwrap();
        let line = RecordsFile::read(&path, Format::Zone)
            .unwrap_err()
            .to_string();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            line,
            format!(
                "{}:2: a string of a TXT record must stand in quotes",
                path.display()
            )
        );
        let missing = RecordsFile::read(&path, Format::Zone).unwrap_err();
        assert!(matches!(missing, RecordsFileError::Unreadable { .. }));
    }

    #[tokio::test]
    async fn waiting_for_the_answer_gives_the_same() {
        let file = RecordsFile::parse(b"a.example.org p=", Format::PublicKeys).unwrap();
        assert!(Arc::ptr_eq(
            &file.lookup("A.example.org").await,
            &file.answer("a.example.org")
        ));
        assert!(matches!(
            &*file.answer("a.example.org"),
            KeyAnswer::Records(records) if matches!(records[..], [Err(KeyRecordError::Revoked)])
        ));
    }

    proptest! {
        #[test]
        fn any_octets_can_be_quoted(strings in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)) {
            let mut line = b"a.b 1 IN TXT".to_vec();
            for string in &strings {
                line.extend(b" \"");
                for &octet in string {
                    match octet {
                        b'"' | b'\\' => line.extend([b'\\', octet]),
                        b' '..=b'~' => line.push(octet),
                        _ => line.extend(format!("\\{octet:03}").bytes()),
                    }
                }
                line.push(b'"');
            }
            let Ok(zone::Entry { said: Said::Txt(record), .. }) = zone::entry(&line) else { panic!("not read") };
            prop_assert_eq!(record, strings.concat());
        }

        #[test]
        fn any_file_is_read_or_refused(text in "([a-c.! ();\"\\\\0-9\n]|IN|TXT|CNAME|NXDOMAIN){0,60}") {
            for format in [Format::Zone, Format::PublicKeys] {
                let _ = RecordsFile::parse(text.as_bytes(), format);
            }
        }
    }
}
