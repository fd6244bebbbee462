//! What can be wrong with a PKCS#11 URI, and how to put it right.

use super::MAX_URI_LEN;
use super::names::Part;
use crate::pin::{PinFault, PinSourceError};

/// Why a text is no PKCS#11 URI that can be used. None of it shows what may be of a `pin-value`.
///
/// `at` is the place in the URI, in octets from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme, or none.
    #[error("a PKCS#11 URI begins with \"pkcs11:\"")]
    NotPkcs11,
    /// Quotation marks around it.
    #[error("write the URI without the quotation marks or brackets around it")]
    Quoted,
    /// Longer than [`MAX_URI_LEN`].
    #[error(
        "the URI is longer than {MAX_URI_LEN} octets: name the key by token, and object or id, only"
    )]
    TooLong,
    /// No attribute before the query: it would stand for any key of any token.
    #[error(
        "the URI names no token and no key: write pkcs11:token=LABEL;object=LABEL, with the labels of both"
    )]
    Empty,
    /// `&name=` in the path, which is allowed there and never meant.
    #[error(
        "\"&\" at character {at} of the URI, before the query: attributes are separated by \";\" up to the \"?\", and \
         by \"&\" after it (a \"&\" of a value is written %26)"
    )]
    AmpersandInPath {
        /// The place of the `&`.
        at: usize,
    },
    /// `pin-value=` within the value of another attribute, behind something that separates nothing.
    #[error(
        "pin-value stands within the value of {name}: write it after a \"?\" or, behind another attribute, a \"&\""
    )]
    PinInValue {
        /// The attribute.
        name: &'static str,
    },
    /// Nothing between two separators, or after the last.
    #[error(
        "an attribute is missing at character {at} of the URI: leave out the \"{separator}\" too many"
    )]
    EmptyAttribute {
        /// Where the attribute would be.
        at: usize,
        /// What separates attributes there.
        separator: char,
    },
    /// An attribute without `=`.
    #[error("no \"=\" in the attribute at character {at} of the URI: write name=value")]
    NoEquals {
        /// Where the attribute begins.
        at: usize,
    },
    /// What stands before the `=` is no name.
    #[error(
        "the attribute at character {at} of the URI has no name made of letters, digits, \"-\" and \"_\""
    )]
    BadName {
        /// Where the attribute begins.
        at: usize,
    },
    /// A name that is not known.
    #[error("attribute \"{name}\" is not known; {}", advice(*meant, *part))]
    Unknown {
        /// The name, shortened.
        name: String,
        /// Where it stands.
        part: Part,
        /// What it may stand for.
        meant: Option<&'static str>,
    },
    /// A name that is not known, behind `pin-value`: maybe a piece of the PIN, so that it is not shown.
    #[error(
        "the attribute at character {at} of the URI is not known; if it belongs to pin-value, write its \"&\" as %26"
    )]
    UnknownAfterPin {
        /// Where the attribute begins.
        at: usize,
    },
    /// An attribute of the other part.
    #[error("attribute {name} belongs {} of the URI", part.other())]
    Misplaced {
        /// The attribute.
        name: &'static str,
        /// Where it stands.
        part: Part,
    },
    /// An attribute given twice.
    #[error("attribute {name} is given twice: leave one out")]
    Duplicate {
        /// The attribute.
        name: &'static str,
    },
    /// `%` without two digits.
    #[error(
        "\"%\" at character {at} of the URI is not followed by two hexadecimal digits (a \"%\" of a value is written \
         %25)"
    )]
    BadEscape {
        /// The place of the `%`.
        at: usize,
    },
    /// A character that has to be encoded.
    #[error("\"{}\" at character {at} of the URI cannot stand in {name}: {}", octet.escape_ascii(),
        remedy(*octet, *part))]
    BadCharacter {
        /// The attribute.
        name: &'static str,
        /// Where it stands.
        part: Part,
        /// The octet.
        octet: u8,
        /// Its place.
        at: usize,
    },
    /// A character of the PIN that has to be encoded; it is not shown.
    #[error(
        "character {at} of the URI cannot stand in pin-value: write it as \"%\" and its two hexadecimal digits"
    )]
    BadPinCharacter {
        /// Its place.
        at: usize,
    },
    /// More octets than a field of PKCS#11 has.
    #[error(
        "{name} is longer than the {limit} octets that PKCS#11 has for it, so no token can match"
    )]
    ValueTooLong {
        /// The attribute.
        name: &'static str,
        /// Most octets, decoded.
        limit: usize,
    },
    /// Not UTF-8, in a field of PKCS#11 that is.
    #[error("{name} is not UTF-8 when decoded, so no token can match")]
    NotUtf8 {
        /// The attribute.
        name: &'static str,
    },
    /// Serial numbers are printable ASCII.
    #[error("serial has other characters than printable ASCII, so no token can match")]
    BadSerial,
    /// A value that is not one of a few words.
    #[error("{name} cannot be \"{value}\": it is {}{}", one_of(words), did_you_mean(*meant))]
    NotOneOf {
        /// The attribute.
        name: &'static str,
        /// The value, shortened.
        value: String,
        /// What it can be.
        words: Vec<&'static str>,
        /// What it may stand for.
        meant: Option<&'static str>,
    },
    /// Not a decimal number of 64 bits.
    #[error(
        "slot-id is not a decimal number; better leave it out, as slots change their numbers, and give token"
    )]
    BadSlotId,
    /// Not `M` or `M.N`.
    #[error("library-version is not of the form MAJOR.MINOR, two decimal numbers up to 255")]
    BadLibraryVersion,
    /// A relative path, or none.
    #[error(
        "module-path is not a path from the root, as in module-path=/usr/lib/softhsm/libsofthsm2.so"
    )]
    BadModulePath,
    /// A path, file name or nothing.
    #[error(
        "module-name is not the name of a module, as softhsm2 is of libsofthsm2.so: give a path by module-path instead"
    )]
    BadModuleName,
    /// Two modules named.
    #[error("both module-name and module-path are given: leave one out")]
    TwoModules,
    /// Two PINs named (RFC 7512 section 2.4).
    #[error("both pin-source and pin-value are given: leave out pin-value")]
    TwoPins,
    /// `pin-source` names none.
    #[error("pin-source: {0}")]
    PinSource(PinSourceError),
    /// `pin-value` cannot be a PIN.
    #[error("the PIN in pin-value {0}")]
    PinValue(PinFault),
}

/// What to write instead of a name that is not known.
fn advice(meant: Option<&'static str>, part: Part) -> String {
    match meant {
        Some(meant) if part.names().contains(&meant) => format!("did you mean {meant}?"),
        Some(meant) => format!("did you mean {meant}, which belongs {}?", part.other()),
        None => format!("{part} there can be {}", part.names().join(", ")),
    }
}

/// How to write an octet that cannot stand for itself.
fn remedy(octet: u8, part: Part) -> String {
    if part == Part::Query && octet == b';' {
        "after the \"?\" attributes are separated by \"&\" (a \";\" of a value is written %3B)"
            .to_owned()
    } else {
        format!("write %{octet:02X}")
    }
}

fn one_of(words: &[&str]) -> String {
    match words {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

fn did_you_mean(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}
