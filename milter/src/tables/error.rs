//! What can be wrong with a data set, and what is odd about it.
//!
//! Errors keep the configuration from being used; warnings do not. Each has its option, its place and one cause, and
//! reads as a sentence for the operator. No text of a private key is ever part of one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use pkcs11_engine::uri::UriError;

use super::Origin;
use super::text_lines::{LineFault, MAX_LINE, ReadFault};

/// A fault of a data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {option}: {fault}")]
pub struct TableError {
    /// The option that names the data set.
    pub option: &'static str,
    /// Where the fault is: a line of the data set, or where the option was set.
    pub origin: Origin,
    /// What is wrong.
    pub fault: TableFault,
}

/// What is wrong with a data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// The operating system did not let it be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        cause: String,
    },
    /// The file is too large.
    #[error("{} has more than {limit} octets", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The octets allowed.
        limit: u64,
    },
    /// A line holds what is no text.
    #[error("octet 0x{octet:02x} does not belong into a text file in UTF-8")]
    NotText {
        /// The first such octet.
        octet: u8,
    },
    /// A line is too long.
    #[error("the line has more than {MAX_LINE} octets")]
    LineTooLong,
    /// No such type of data set.
    #[error("no type of data set is called \"{name}:\"{}", suggestion(*nearest))]
    UnknownType {
        /// The word before the colon.
        name: String,
        /// The type that may have been meant.
        nearest: Option<&'static str>,
    },
    /// A type of data set OpenDKIM has and we have not.
    #[error("data sets of type \"{name}:\" are not supported; use {instead}")]
    TypeNotCarried {
        /// The word before the colon.
        name: &'static str,
        /// What to use.
        instead: &'static str,
    },
    /// A relative path without a type would be taken for a list.
    #[error("a relative path needs its type before it: \"file:{path}\" or \"refile:{path}\"")]
    PathWithoutType {
        /// The path.
        path: String,
    },
    /// A type without a path behind it.
    #[error("no path after \"{name}:\"")]
    NoPath {
        /// The type.
        name: &'static str,
    },
    /// `refile:` where patterns mean nothing.
    #[error(
        "\"refile:\" cannot be used here, only \"file:\" or a list: these entries are no patterns"
    )]
    PatternsNotAllowed,
    /// A signing table entry without a key name.
    #[error("\"{pattern}\" has no key name; wanted: address, blanks, key name[:identity]")]
    NoKeyName {
        /// The first word of the entry.
        pattern: String,
    },
    /// A signing table entry with too much on it.
    #[error("\"{value}\" is not one key name; wanted: address, blanks, key name[:identity]")]
    NotOneKeyName {
        /// What stands behind the pattern.
        value: String,
    },
    /// An identity that can be no `i=`.
    #[error("identity \"{identity}\" is not of the form [local-part]@domain")]
    BadIdentity {
        /// The identity.
        identity: String,
    },
    /// A key table entry without its three fields.
    #[error("key \"{name}\" is not followed by domain:selector:key")]
    KeyFields {
        /// The key's name.
        name: String,
    },
    /// A signing domain that is no domain name.
    #[error("signing domain \"{domain}\" of key \"{name}\" is neither a domain name nor \"%\"")]
    BadSigningDomain {
        /// The key's name.
        name: String,
        /// The first field.
        domain: String,
    },
    /// A selector that is none.
    #[error("selector \"{selector}\" of key \"{name}\" is not of the form label[.label...]")]
    BadSelector {
        /// The key's name.
        name: String,
        /// The second field.
        selector: String,
    },
    /// A key that is neither a path nor a key.
    #[error(
        "the third field of key \"{name}\" is neither a path, which begins with \"/\", \"./\" or \"../\", nor a private key \
         in base64"
    )]
    NeitherPathNorKey {
        /// The key's name.
        name: String,
    },
    /// A key in a token, whose URI cannot be read.
    #[error("key \"{name}\": {fault}")]
    TokenUri {
        /// The key's name.
        name: String,
        /// What is wrong with the URI.
        fault: UriError,
    },
    /// A fourth field that is no algorithm.
    #[error(
        "the fourth field of key \"{name}\" is \"{algorithm}\"; wanted: rsa-sha256, ed25519-sha256 or no fourth field"
    )]
    BadAlgorithm {
        /// The key's name.
        name: String,
        /// The fourth field.
        algorithm: String,
    },
    /// rsa-sha1 as the fourth field.
    #[error(
        "key \"{name}\" asks for rsa-sha1, which must not be used to sign (RFC 8301 section 3.1)"
    )]
    Sha1 {
        /// The key's name.
        name: String,
    },
    /// An entry of a host list that is none.
    #[error("\"{text}\" {fault}")]
    BadHost {
        /// The entry.
        text: String,
        /// Why it is none.
        fault: HostFault,
    },
    /// An entry that is no domain name.
    #[error("\"{text}\" is not a domain name")]
    BadDomain {
        /// The entry.
        text: String,
    },
    /// More of the kind than are told.
    #[error("and {count} more errors in this data set")]
    More {
        /// How many.
        count: usize,
    },
}

/// Why an entry of a host list matches no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFault {
    /// A prefix length beyond the address.
    #[error("has a prefix length that is not a number from 0 to {max}")]
    PrefixLength {
        /// The address' length in bits.
        max: u8,
    },
    /// A prefix length behind something else.
    #[error("is no network: no IP address before the \"/\"")]
    NoAddress,
    /// `10.0.0.0-10.0.0.9`
    #[error("is a range of addresses; write networks, such as 10.0.0.0/29")]
    Range,
    /// `192.168.1`, `300.1.1.1`
    #[error(
        "is not an IP address and cannot be a host name; write all four numbers, or a network such as 192.168.1.0/24"
    )]
    Number,
    /// Colons, but no IPv6 address.
    #[error("is not an IPv6 address")]
    NotIpv6,
    /// `ann@example.com`
    #[error("is a mail address; this list is of client hosts")]
    MailAddress,
    /// White space inside.
    #[error("is more than one entry; separate entries by commas")]
    Several,
    /// `*` in a data set without patterns.
    #[error(
        "has a wildcard, which only \"refile:\" data sets know; for the hosts below a domain write \".example.com\""
    )]
    Wildcard,
    /// Nothing of all that.
    #[error("is neither a host name, nor a .domain, an IP address or a network")]
    NotAHost,
}

/// Something odd about a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWarning {
    /// The option that names the data set.
    pub option: &'static str,
    /// Where it is.
    pub origin: Origin,
    /// What is odd.
    pub note: TableNote,
}

impl fmt::Display for TableWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.origin, self.option, self.note)
    }
}

/// What is odd about a data set. (An error type by form only: for its sentences.)
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableNote {
    /// A network with host bits set.
    #[error("\"{text}\" has bits set behind its prefix; taken as {network}")]
    HostBits {
        /// As written.
        text: String,
        /// As taken.
        network: String,
    },
    /// An entry that all hosts match.
    #[error("\"{text}\" matches every host")]
    EveryHost {
        /// The entry.
        text: String,
    },
    /// A wildcard where none is known.
    #[error(
        "\"{pattern}\" can never match: only \"refile:\" data sets know wildcards; here a domain is written \"example.com\" and \
         the domains below it \".example.com\""
    )]
    WildcardWithoutPatterns {
        /// The entry.
        pattern: String,
    },
    /// A pattern that is no address.
    #[error(
        "\"{pattern}\" can never match: a pattern must match the whole address, as \"*@example.com\" does"
    )]
    NotAnAddress {
        /// The entry.
        pattern: String,
    },
    /// An entry that an earlier one hides.
    #[error("\"{key}\" stands already at {first}, which counts{}", if *by_multiple { "; \"MultipleSignatures yes\" would use both" } else { "" })]
    Twice {
        /// The entry's key.
        key: String,
        /// Where it stands first.
        first: Origin,
        /// The set is a signing table.
        by_multiple: bool,
    },
    /// Words behind an entry that takes none.
    #[error("\"{text}\" after \"{key}\" means nothing here: one entry on a line")]
    ExtraText {
        /// The entry.
        key: String,
        /// The rest of the line.
        text: String,
    },
    /// A signing table entry that names a key the key table has not.
    #[error("key \"{name}\" is not in the KeyTable: mail this entry matches cannot be signed")]
    UnknownKey {
        /// The key's name.
        name: String,
    },
    /// More of the kind than are told.
    #[error("and {count} more warnings for this data set")]
    More {
        /// How many.
        count: usize,
    },
}

/// Collects what is found while data sets are opened; of each data set only the first 20 of a kind are
/// kept, so that a table with a mistake on each of its many lines stays readable.
#[derive(Debug, Default)]
pub struct Findings {
    errors: Vec<TableError>,
    warnings: Vec<TableWarning>,
    /// How many errors and warnings each option's data set has had.
    counts: BTreeMap<&'static str, (usize, usize)>,
}

/// How many errors, and how many warnings, of one data set are told.
pub(crate) const MAX_FINDINGS: usize = 20;

impl Findings {
    /// Notes an error.
    pub(super) fn error(&mut self, option: &'static str, origin: Origin, fault: TableFault) {
        let (count, _) = self.counts.entry(option).or_default();
        *count += 1;
        if *count <= MAX_FINDINGS {
            self.errors.push(TableError {
                option,
                origin,
                fault,
            });
        }
    }

    /// Notes a warning.
    pub(super) fn warning(&mut self, option: &'static str, origin: Origin, note: TableNote) {
        let (_, count) = self.counts.entry(option).or_default();
        *count += 1;
        if *count <= MAX_FINDINGS {
            self.warnings.push(TableWarning {
                option,
                origin,
                note,
            });
        }
    }

    /// Whether there is an error among what was found.
    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// All that was found, with a last line for what was not kept; the data set's place is told by `origin_of`.
    pub fn finish(
        mut self,
        origin_of: impl Fn(&str) -> Origin,
    ) -> (Vec<TableError>, Vec<TableWarning>) {
        for (option, (errors, warnings)) in self.counts {
            let origin = origin_of(option);
            if let Some(count) = errors.checked_sub(MAX_FINDINGS).filter(|&count| count > 0) {
                let fault = TableFault::More { count };
                self.errors.push(TableError {
                    option,
                    origin: origin.clone(),
                    fault,
                });
            }
            if let Some(count) = warnings
                .checked_sub(MAX_FINDINGS)
                .filter(|&count| count > 0)
            {
                let note = TableNote::More { count };
                self.warnings.push(TableWarning {
                    option,
                    origin,
                    note,
                });
            }
        }
        (self.errors, self.warnings)
    }
}

impl From<LineFault> for TableFault {
    fn from(fault: LineFault) -> Self {
        match fault {
            LineFault::NotText(octet) => Self::NotText { octet },
            LineFault::TooLong => Self::LineTooLong,
        }
    }
}

impl TableFault {
    /// `fault` of the file at `path`.
    pub(super) fn read(path: PathBuf, fault: ReadFault) -> Self {
        match fault {
            ReadFault::System(cause) => Self::Read { path, cause },
            ReadFault::TooLarge(limit) => Self::TooLarge { path, limit },
        }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| {
        format!("; did you mean \"{nearest}:\"?")
    })
}
