//! The author's address: who a message says it is from (RFC 5322 section 3.4, RFC 6532, RFC 6854).
//!
//! The signer chooses its key by the author's domain, so a From that can be read in two ways must not be read at all:
//! what is not an address list by the grammar is an error that names the place, never a guess. The obsolete grammar
//! (RFC 5322 section 4.4) is part of it. Display names and comments are stepped over; encoded words (RFC 2047) are
//! display text and never looked into. Whose address gets which key is for policy to say.

mod parser;

use std::fmt::{self, Display, Formatter};

use crate::domain_name::{DomainNameError, Labels, check_dns_name};
use crate::structured::{is_dot_atom, quote};

/// Reads the value of one From field, folded or not: every mailbox of it in order, those in groups among them.
///
/// A group may be empty (`undisclosed:;`), so there may be no mailbox. Work is linear in `value`.
///
/// # Errors
/// The first fault met, with its offset in octets. One bad address spoils the whole field.
pub fn authors(value: &[u8]) -> Result<Vec<Mailbox>, AddressError> {
    parser::address_list(value)
}

/// Reads the authors of a message, given the values of all its From fields; at least one.
///
/// # Errors
/// RFC 5322 section 3.6 wants exactly one From field with an address; everything else has no author that could be
/// signed for.
pub fn message_authors<'a>(
    from_fields: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Mailbox>, NoAuthor> {
    let mut from_fields = from_fields.into_iter();
    let value = from_fields.next().ok_or(NoAuthor::NoField)?;
    match from_fields.count() {
        0 => {}
        others => return Err(NoAuthor::SeveralFields(others + 1)),
    }
    let mailboxes = authors(value)?;
    if mailboxes.is_empty() {
        Err(NoAuthor::NoMailbox)
    } else {
        Ok(mailboxes)
    }
}

/// An address, without the name that is shown with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    /// What stands before the `@`, as it is meant: without quotes, quoted pairs, comments and folds. Not always UTF-8.
    pub local_part: Vec<u8>,
    /// What stands after the `@`.
    pub domain: Domain,
}

/// What stands after the `@` of an address, without comments and white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// A name of the DNS, ASCII letters in lower case; U-labels stay as they are (RFC 6532).
    Name(Vec<u8>),
    /// An address of a host, its brackets included: `[192.0.2.1]`. No key belongs to it.
    Literal(Vec<u8>),
    /// An RFC 5322 domain that is no name of the DNS.
    Invalid(Vec<u8>, DomainNameError),
    /// Nothing: mail from `root` that no MTA has completed.
    Missing,
}

impl Mailbox {
    /// The domain, if it is one that can be signed for.
    ///
    /// # Errors
    /// Why it is none.
    pub fn domain_name(&self) -> Result<&[u8], NoDomain> {
        match &self.domain {
            Domain::Name(name) => Ok(name),
            Domain::Literal(_) => Err(NoDomain::Literal),
            Domain::Invalid(_, error) => Err(NoDomain::Invalid(*error)),
            Domain::Missing => Err(NoDomain::Missing),
        }
    }
}

/// As an address is written, for people to read: quoted where it must be, U+FFFD for what is not UTF-8.
impl Display for Mailbox {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let local_part = &self.local_part;
        if is_dot_atom(local_part) {
            f.write_str(&String::from_utf8_lossy(local_part))?;
        } else {
            f.write_str(&String::from_utf8_lossy(&quote(local_part)))?;
        }
        match &self.domain {
            Domain::Name(domain) | Domain::Literal(domain) | Domain::Invalid(domain, _) => {
                write!(f, "@{}", String::from_utf8_lossy(domain))
            }
            Domain::Missing => Ok(()),
        }
    }
}

impl Domain {
    fn from_atoms(mut octets: Vec<u8>) -> Self {
        octets.make_ascii_lowercase();
        match check_dns_name(&octets, Labels::Unicode) {
            Ok(()) => Self::Name(octets),
            Err(error) => Self::Invalid(octets, error),
        }
    }
}

/// Why an address has no domain that could be signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDomain {
    /// [`Domain::Missing`]
    #[error("the author's address has no domain")]
    Missing,
    /// [`Domain::Literal`]
    #[error("the domain of the author's address is an address literal")]
    Literal,
    /// [`Domain::Invalid`]
    #[error("the domain of the author's address is not a domain name: {0}")]
    Invalid(DomainNameError),
}

/// Why a message has no author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAuthor {
    /// From is missing.
    #[error("no From field")]
    NoField,
    /// From stands more than once; the number of fields.
    #[error("{0} From fields")]
    SeveralFields(usize),
    /// From holds nothing but empty groups.
    #[error("From names no mailbox")]
    NoMailbox,
    /// From is no list of addresses.
    #[error("From is malformed: {0}")]
    Malformed(#[from] AddressError),
}

/// Why octets are no list of addresses; offsets count from the start of the field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no address and no group.
    #[error("there is no address")]
    Empty,
    /// A NUL or another control character, or a CR or LF outside of a fold.
    #[error("control character 0x{octet:02X} at octet {offset}")]
    Control {
        /// Where it is.
        offset: usize,
        /// What it is.
        octet: u8,
    },
    /// A comment has no end.
    #[error("the comment at octet {offset} is not closed")]
    UnclosedComment {
        /// Where it starts.
        offset: usize,
    },
    /// A quoted string has no end.
    #[error("the quoted string at octet {offset} is not closed")]
    UnclosedQuotedString {
        /// Where it starts.
        offset: usize,
    },
    /// An address in angle brackets has no end.
    #[error("the \"<\" at octet {offset} is not closed")]
    UnclosedAngle {
        /// Where it starts.
        offset: usize,
    },
    /// A domain literal has no end.
    #[error("the \"[\" at octet {offset} is not closed")]
    UnclosedLiteral {
        /// Where it starts.
        offset: usize,
    },
    /// A group has no semicolon.
    #[error("the group at octet {offset} is not closed")]
    UnclosedGroup {
        /// Where its name starts.
        offset: usize,
    },
    /// A group within a group.
    #[error("a group within a group at octet {offset}")]
    NestedGroup {
        /// Where the inner one's name starts.
        offset: usize,
    },
    /// Words that are neither an address nor the name before one.
    #[error("words without an address at octet {offset}")]
    NoAddress {
        /// Where they start.
        offset: usize,
    },
    /// An address stands where a display name belongs: `a@example.com <b@example.net>`.
    #[error("the name before the address at octet {offset} is itself an address, without quotes")]
    AddressAsName {
        /// Where the address in angle brackets starts.
        offset: usize,
    },
    /// What stands before an `@` is no local part.
    #[error("no local part before the \"@\" at octet {offset}")]
    LocalPart {
        /// Where the `@` is.
        offset: usize,
    },
    /// What stands after an `@` or a dot is no domain.
    #[error("no domain at octet {offset}")]
    NoDomain {
        /// Where it should be.
        offset: usize,
    },
    /// A character in a place where it means nothing: a missing comma, a semicolon between addresses, a stray bracket.
    #[error("unexpected \"{}\" at octet {offset}", octet.escape_ascii())]
    Unexpected {
        /// Where it is.
        offset: usize,
        /// What it is.
        octet: u8,
    },
    /// More mailboxes than any message is written by.
    #[error("more than {MAX_MAILBOXES} mailboxes")]
    TooMany,
}

/// Far more than any message has authors; bounds memory on hostile fields.
pub const MAX_MAILBOXES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_an_author_only_by_exactly_one_from_field() {
        let (one, other) = (&b" Ann <ann@example.org>"[..], &b" bo@example.net"[..]);
        let group = &b" undisclosed:;"[..];
        let ann = Mailbox {
            local_part: b"ann".to_vec(),
            domain: Domain::Name(b"example.org".to_vec()),
        };
        assert_eq!(message_authors([one]), Ok(vec![ann]));
        assert_eq!(message_authors([]), Err(NoAuthor::NoField));
        assert_eq!(
            message_authors([one, other]),
            Err(NoAuthor::SeveralFields(2))
        );
        assert_eq!(
            message_authors([one, one, one]),
            Err(NoAuthor::SeveralFields(3))
        );
        assert_eq!(message_authors([group]), Err(NoAuthor::NoMailbox));
        assert_eq!(
            message_authors([&b""[..]]),
            Err(NoAuthor::Malformed(AddressError::Empty))
        );
        assert_eq!(
            message_authors([&b""[..], one]),
            Err(NoAuthor::SeveralFields(2))
        );
    }

    #[test]
    fn only_a_dns_name_can_be_signed_for() {
        for (value, domain) in [
            (&b"a@Example.ORG"[..], Ok(&b"example.org"[..])),
            (b"a@my_host.example", Ok(b"my_host.example")),
            (b"a@localhost", Ok(b"localhost")),
            (b"a@xn--bcher-kva.example", Ok(b"xn--bcher-kva.example")),
            (
                "a@B\u{FC}cher.example".as_bytes(),
                Ok("b\u{FC}cher.example".as_bytes()),
            ),
            (b"a", Err(NoDomain::Missing)),
            (b"a@[192.0.2.1]", Err(NoDomain::Literal)),
            // An ideographic full stop is a dot to some, a zero-width space nothing.
            (
                "a@example\u{3002}org".as_bytes(),
                Err(NoDomain::Invalid(DomainNameError::BadCharacter {
                    offset: 7,
                    character: '\u{3002}',
                })),
            ),
            (
                "a@exam\u{200B}ple.org".as_bytes(),
                Err(NoDomain::Invalid(DomainNameError::BadCharacter {
                    offset: 4,
                    character: '\u{200B}',
                })),
            ),
            (
                b"a@ex\xE9.org",
                Err(NoDomain::Invalid(DomainNameError::BadOctet {
                    offset: 2,
                    octet: 0xE9,
                })),
            ),
            (
                b"a@e%.org",
                Err(NoDomain::Invalid(DomainNameError::BadOctet {
                    offset: 1,
                    octet: b'%',
                })),
            ),
        ] {
            let mailboxes = authors(value).unwrap();
            assert_eq!(mailboxes.len(), 1);
            assert_eq!(
                mailboxes[0].domain_name(),
                domain,
                "{}",
                value.escape_ascii()
            );
        }
    }

    #[test]
    fn people_read_an_address_as_it_is_written() {
        for (value, shown) in [
            (&b"Ann <Ann@Example.ORG>"[..], "Ann@example.org"),
            (b"\"a b\" @ example.org", "\"a b\"@example.org"),
            (b"\"a\\\"b\"@example.org", "\"a\\\"b\"@example.org"),
            (b"\"ann\"@example.org", "ann@example.org"),
            (b"\"\"@example.org", "\"\"@example.org"),
            (b"\xE9@[IPv6:::1]", "\u{FFFD}@[IPv6:::1]"),
            (b"root (Cron)", "root"),
        ] {
            assert_eq!(authors(value).unwrap()[0].to_string(), shown);
        }
    }

    #[test]
    fn an_operator_reads_the_place_and_the_fault() {
        let fault = message_authors([&b"a@example.org; b@example.net"[..]]).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "From is malformed: unexpected \";\" at octet 13"
        );
        let fault = authors(b"a@example.org <b@example.net>").unwrap_err();
        let sentence =
            "the name before the address at octet 14 is itself an address, without quotes";
        assert_eq!(fault.to_string(), sentence);
    }
}
