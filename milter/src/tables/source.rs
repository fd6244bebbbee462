//! The seam for data sets: what a source is, which there are, and which one a configured value means.
//!
//! A source hands out entries, in order, as they are written; it knows nothing of their meaning. A new source that can
//! be read whole is one file beside this one and one line in [`SOURCES`].

use std::path::{Path, PathBuf};

use pkcs11_engine::uri::Uri;

use super::file::File;
use super::list::List;
use super::refile::Refile;
use super::text_lines::shown;
use super::{Findings, Origin, TableFault, TableNote};

/// A data set as the configuration names it.
#[derive(Clone, Debug)]
pub struct DataSet<'a> {
    /// The option that names it.
    pub option: &'static str,
    /// The option's value: `type:rest`, `/path`, or a list.
    pub text: &'a str,
    /// Where the option was set.
    pub origin: Origin,
    /// The directory that relative paths start from.
    pub base: &'a Path,
}

/// One entry, borrowed while it is visited.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// The first word, or what stands before the `=` in a list.
    pub(super) key: &'a str,
    /// What follows it, if anything does.
    pub(super) value: Option<&'a str>,
    /// Where it stands.
    pub(super) origin: Origin,
}

/// What takes the entries of a data set.
pub(super) type Visitor<'v> = dyn FnMut(Entry<'_>, &mut Findings) + 'v;

/// A kind of data set: where entries come from.
pub(super) trait Source: Sync {
    /// The word before the colon.
    fn name(&self) -> &'static str;

    /// Whether keys are patterns, in which `*` stands for any octets.
    fn has_patterns(&self) -> bool;

    /// Hands every entry of `set` to `visit`; `rest` is its text without the type. Faults go to `findings`.
    fn read(&self, set: &DataSet<'_>, rest: &str, findings: &mut Findings, visit: &mut Visitor<'_>);
}

/// Every source.
const SOURCES: [&dyn Source; 3] = [&File, &Refile, &List];

/// OpenDKIM's other types, and what takes their place.
const NOT_CARRIED: [(&str, &str); 11] = [
    ("db", INSTEAD_OF_DATABASE),
    ("dsn", INSTEAD_OF_DATABASE),
    ("ldap", INSTEAD_OF_DATABASE),
    ("ldaps", INSTEAD_OF_DATABASE),
    ("ldapi", INSTEAD_OF_DATABASE),
    ("lua", INSTEAD_OF_DATABASE),
    ("memcache", INSTEAD_OF_DATABASE),
    ("erlang", INSTEAD_OF_DATABASE),
    ("mdb", INSTEAD_OF_DATABASE),
    ("socket", INSTEAD_OF_DATABASE),
    ("repute", INSTEAD_OF_DATABASE),
];

const INSTEAD_OF_DATABASE: &str =
    "\"file:\" or \"refile:\" with a file written from it, and reload after each change";

/// A data set whose source is known.
pub(super) struct OpenedSet<'a> {
    set: &'a DataSet<'a>,
    source: &'static dyn Source,
    rest: &'a str,
}

impl DataSet<'_> {
    /// Finds the source; `None` if there is none, which is then in `findings`.
    pub(super) fn find_source(&self, findings: &mut Findings) -> Option<OpenedSet<'_>> {
        match choose(self.text) {
            Ok((source, rest)) => Some(OpenedSet {
                set: self,
                source,
                rest,
            }),
            Err(fault) => {
                findings.error(self.option, self.origin.clone(), fault);
                None
            }
        }
    }

    /// Finds the source and reads all its entries, where none may be a pattern.
    pub(super) fn read_plain(&self, findings: &mut Findings, visit: &mut Visitor<'_>) {
        let Some(opened) = self.find_source(findings) else {
            return;
        };
        if opened.has_patterns() {
            findings.error(
                self.option,
                self.origin.clone(),
                TableFault::PatternsNotAllowed,
            );
            return;
        }
        opened.read(findings, visit);
    }

    /// `path` seen from the base directory.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        resolve(self.base, path)
    }
}

impl OpenedSet<'_> {
    /// Whether keys are patterns.
    pub(super) fn has_patterns(&self) -> bool {
        self.source.has_patterns()
    }

    /// Hands every entry to `visit`.
    pub(super) fn read(&self, findings: &mut Findings, visit: &mut Visitor<'_>) {
        self.source.read(self.set, self.rest, findings, visit);
    }
}

/// `path` as seen from `base`, without any `.` in it; `..` stays, as symbolic links may be about.
pub(crate) fn resolve(base: &Path, path: impl AsRef<Path>) -> PathBuf {
    base.join(path).components().collect()
}

/// `uri` with the file of its PIN as seen from `base`.
pub(crate) fn seen_from(base: &Path, mut uri: Box<Uri>) -> Box<Uri> {
    uri.pin = uri.pin.map(|pin| pin.seen_from(base));
    uri
}

/// The keys of the entries of `set`, of which none may be a pattern, in order.
pub(crate) fn read_words(set: &DataSet<'_>, findings: &mut Findings) -> Vec<String> {
    let mut words = Vec::new();
    set.read_plain(findings, &mut |entry, findings| {
        if let Some(rest) = entry.value {
            let (key, text) = (shown(entry.key), shown(rest));
            findings.warning(
                set.option,
                entry.origin.clone(),
                TableNote::ExtraText { key, text },
            );
        }
        words.push(entry.key.to_owned());
    });
    words
}

/// The source that `text` means, and what it is given to read.
fn choose(text: &str) -> Result<(&'static dyn Source, &str), TableFault> {
    let list = (&List as &'static dyn Source, text);
    if text.starts_with('/') {
        return Ok((&File, text));
    }
    if text.starts_with("./") || text.starts_with("../") {
        return Err(TableFault::PathWithoutType { path: shown(text) });
    }
    let Some((name, rest)) = text.split_once(':') else {
        return Ok(list);
    };
    let name = name.trim();
    if let Some(&source) = SOURCES
        .iter()
        .find(|source| source.name().eq_ignore_ascii_case(name))
    {
        return Ok((source, rest.trim()));
    }
    if let Some(&(name, instead)) = NOT_CARRIED
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
    {
        return Err(TableFault::TypeNotCarried { name, instead });
    }
    if could_be_a_type(name) {
        return Err(TableFault::UnknownType {
            name: shown(name),
            nearest: super::nearest(name, SOURCES.iter().map(|source| source.name())),
        });
    }
    Ok(list)
}

/// Lists have colons too: in IPv6 addresses, and in the values of `key=value`. A type is a plain word before the first
/// one, and no hexadecimal number.
fn could_be_a_type(name: &str) -> bool {
    name.len() > 1
        && name.bytes().all(|o| o.is_ascii_alphabetic())
        && !(name.len() <= 4 && name.bytes().all(|o| o.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_value_tells_the_source() {
        for (text, wanted) in [
            ("file:/etc/x", "file /etc/x"),
            ("refile: ./x", "refile ./x"),
            ("REFILE:x", "refile x"),
            ("/etc/x", "file /etc/x"),
            ("csl:a,b", "csl a,b"),
            ("a, b", "csl a, b"),
            ("127.0.0.1,::1", "csl 127.0.0.1,::1"),
            ("::1", "csl ::1"),
            ("fe80::1", "csl fe80::1"),
            ("dead:beef::1", "csl dead:beef::1"),
            ("[2001:db8::1]", "csl [2001:db8::1]"),
            (
                "example.com=k1:@example.com",
                "csl example.com=k1:@example.com",
            ),
        ] {
            let (source, rest) = choose(text).map_err(|fault| fault.to_string()).unwrap();
            assert_eq!(format!("{} {rest}", source.name()), wanted);
        }
    }

    #[test]
    fn a_type_we_do_not_have_is_named() {
        for (text, wanted) in [
            (
                "dsn:mysql://u:p@3306+db/x",
                "data sets of type \"dsn:\" are not supported; use \"file:\" or \"refile:\"",
            ),
            ("ldap://x", "data sets of type \"ldap:\" are not supported"),
            (
                "fiel:/etc/x",
                "no type of data set is called \"fiel:\"; did you mean \"file:\"?",
            ),
            ("regex:/etc/x", "no type of data set is called \"regex:\""),
            (
                "./KeyTable",
                "a relative path needs its type before it: \"file:./KeyTable\" or \"refile:./KeyTable\"",
            ),
        ] {
            let fault = choose(text).err().unwrap().to_string();
            assert!(fault.starts_with(wanted), "{fault}");
        }
    }
}
