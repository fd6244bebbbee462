//! Names of the DNS as DKIM writes them: signing domains, selectors and the domains of addresses (RFC 6376 sections 3.1
//! and 3.5, RFC 8616 section 5).
//!
//! Syntax only, on octets as they travelled. Turning U-labels into A-labels takes the tables of IDNA and is left to
//! whoever asks the DNS; what is refused here keeps such a step from making another name of what was written.

/// Which labels a name may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Letters, digits and hyphens: names on the wire of the DNS.
    Ascii,
    /// U-labels in UTF-8 as well: names in internationalised mail (RFC 6532, RFC 8616).
    Unicode,
}

/// Checks the `domain-name` of RFC 6376 section 3.5: two labels or more of letters, digits and inner hyphens, each 1 to
/// 63 octets, 253 in all, no dot at the end. U-labels are counted in characters.
///
/// # Errors
/// The first rule that `name` breaks.
pub fn check_signing_domain(name: &[u8], labels: Labels) -> Result<(), DomainNameError> {
    check_labels(name, labels, Underscore::Refused)?;
    if name.contains(&b'.') {
        Ok(())
    } else {
        Err(DomainNameError::OneLabel)
    }
}

/// Checks a selector, or the domain of an address: as [`check_signing_domain`], but one label is enough and
/// underscores, which the DNS allows and people use, are fine.
///
/// # Errors
/// The first rule that `name` breaks.
pub fn check_dns_name(name: &[u8], labels: Labels) -> Result<(), DomainNameError> {
    check_labels(name, labels, Underscore::Allowed)
}

/// Whether `name` may stand in `d=` or `s=`, with U-labels or without.
///
/// Single labels and underscores are let through: names of that form are in use, and the DNS has them.
pub fn is_domain(name: &[u8]) -> bool {
    check_dns_name(name, Labels::Unicode).is_ok()
}

/// Whether the name made of both and `_domainkey` can be asked for (RFC 6376 section 3.6.2.1).
pub fn is_query_name(selector: &[u8], domain: &[u8]) -> bool {
    is_domain(selector)
        && is_domain(domain)
        && selector.len() + "._domainkey.".len() + domain.len() <= MAX_NAME_LENGTH
}

/// Whether `name` is `domain` or lies beneath it, ASCII letters compared without case.
pub fn is_within(name: &[u8], domain: &[u8]) -> bool {
    name.len().checked_sub(domain.len()).is_some_and(|start| {
        name[start..].eq_ignore_ascii_case(domain) && (start == 0 || name[start - 1] == b'.')
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Underscore {
    Allowed,
    Refused,
}

fn check_labels(
    name: &[u8],
    labels: Labels,
    underscore: Underscore,
) -> Result<(), DomainNameError> {
    if name.is_empty() {
        return Err(DomainNameError::Empty);
    }
    // No name that long is right in any reading, so nothing more is done with it.
    if name.len() > MAX_NAME_LENGTH * MAX_CHARACTER_LENGTH {
        return Err(DomainNameError::TooLong);
    }
    let mut length = 0;
    let mut offset = 0;
    for label in name.split(|&o| o == b'.') {
        length += check_label(label, offset, labels, underscore)? + 1;
        offset += label.len() + 1;
    }
    if length - 1 > MAX_NAME_LENGTH {
        Err(DomainNameError::TooLong)
    } else {
        Ok(())
    }
}

/// The label's length in characters.
fn check_label(
    label: &[u8],
    offset: usize,
    labels: Labels,
    underscore: Underscore,
) -> Result<usize, DomainNameError> {
    if label.is_empty() {
        return Err(DomainNameError::EmptyLabel { offset });
    }
    let bad_octet = |at: usize| DomainNameError::BadOctet {
        offset: offset + at,
        octet: label[at],
    };
    let mut length = 0;
    let text = if label.iter().all(u8::is_ascii_alphanumeric) {
        // Nearly all are, and then there is no more to see.
        length = label.len();
        ""
    } else {
        std::str::from_utf8(label).map_err(|error| bad_octet(error.valid_up_to()))?
    };
    for (at, character) in text.char_indices() {
        let is_fine = match character {
            '-' => true,
            '_' => underscore == Underscore::Allowed,
            _ if character.is_ascii() => character.is_ascii_alphanumeric(),
            _ if labels == Labels::Ascii => return Err(bad_octet(at)),
            _ => !is_treacherous(character),
        };
        if !is_fine {
            return Err(if character.is_ascii() {
                bad_octet(at)
            } else {
                DomainNameError::BadCharacter {
                    offset: offset + at,
                    character,
                }
            });
        }
        length += 1;
    }
    if label.starts_with(b"-") || label.ends_with(b"-") {
        return Err(DomainNameError::OuterHyphen { offset });
    }
    if length > MAX_LABEL_LENGTH {
        Err(DomainNameError::LongLabel { offset })
    } else {
        Ok(length)
    }
}

/// Characters that no U-label has (RFC 5892) and that a lenient conversion drops, or reads as a dot or as ASCII. Not all
/// that IDNA forbids: that is for the conversion to know.
fn is_treacherous(character: char) -> bool {
    // The zero-width joiners are right in some scripts (RFC 5892 appendix A).
    !matches!(character, '\u{200C}' | '\u{200D}')
        && (character.is_control()
            || character.is_whitespace()
            || TREACHEROUS
                .iter()
                .any(|&(first, last)| (first..=last).contains(&character)))
}

const TREACHEROUS: [(char, char); 21] = [
    // Invisible or ignored.
    ('\u{00AD}', '\u{00AD}'),
    ('\u{034F}', '\u{034F}'),
    ('\u{061C}', '\u{061C}'),
    ('\u{115F}', '\u{1160}'),
    ('\u{17B4}', '\u{17B5}'),
    ('\u{180B}', '\u{180F}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{FE00}', '\u{FE0F}'),
    ('\u{FEFF}', '\u{FEFF}'),
    ('\u{FFF0}', '\u{FFFF}'),
    ('\u{E0000}', '\u{E0FFF}'),
    // Punctuation, symbols and letters in disguise, among them direction marks and a dot leader.
    ('\u{2000}', '\u{2BFF}'),
    ('\u{1D400}', '\u{1D7FF}'),
    ('\u{1F000}', '\u{1FBFF}'),
    // The ideographic full stop, and small, full and half width forms.
    ('\u{3000}', '\u{3004}'),
    ('\u{3008}', '\u{3020}'),
    ('\u{FE10}', '\u{FE1F}'),
    ('\u{FE50}', '\u{FE6F}'),
    ('\u{FF00}', '\u{FFEF}'),
    // Whatever somebody wants it to be.
    ('\u{E000}', '\u{F8FF}'),
    ('\u{F0000}', '\u{10FFFF}'),
];

/// RFC 1035 section 2.3.4, without the length octet of the root.
const MAX_NAME_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;
/// In UTF-8, octets.
const MAX_CHARACTER_LENGTH: usize = 4;

/// Why octets are no domain name; offsets count from the start of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainNameError {
    /// There is nothing.
    #[error("the name is empty")]
    Empty,
    /// Two dots in a row, or one at the start or the end.
    #[error("an empty label at octet {offset}")]
    EmptyLabel {
        /// Where the label should be.
        offset: usize,
    },
    /// An octet that no label holds, or one that is not UTF-8.
    #[error("octet 0x{octet:02X} at octet {offset} belongs in no domain name")]
    BadOctet {
        /// Where it is.
        offset: usize,
        /// What it is.
        octet: u8,
    },
    /// A character beyond ASCII that no label holds.
    #[error("character U+{:04X} at octet {offset} belongs in no domain name", u32::from(*.character))]
    BadCharacter {
        /// Where it starts.
        offset: usize,
        /// What it is.
        character: char,
    },
    /// A label starts or ends with a hyphen.
    #[error("the label at octet {offset} starts or ends with a hyphen")]
    OuterHyphen {
        /// Where the label starts.
        offset: usize,
    },
    /// A label of more than 63 octets.
    #[error("the label at octet {offset} is longer than {MAX_LABEL_LENGTH}")]
    LongLabel {
        /// Where the label starts.
        offset: usize,
    },
    /// More than 253 octets in all.
    #[error("the name is longer than {MAX_NAME_LENGTH}")]
    TooLong,
    /// A signing domain without a dot.
    #[error("the name has only one label")]
    OneLabel,
}

#[cfg(test)]
mod tests {
    use super::DomainNameError::*;
    use super::*;

    #[test]
    fn signing_domains_are_letters_digits_and_inner_hyphens() {
        for (name, outcome) in [
            (&b"example.com"[..], Ok(())),
            (b"EXAMPLE.Com", Ok(())),
            (b"a.b", Ok(())),
            (b"1.2.3.4", Ok(())),
            (b"xn--bcher-kva.example", Ok(())),
            (b"mail-1.example.com", Ok(())),
            (b"", Err(Empty)),
            (b"localhost", Err(OneLabel)),
            (b".", Err(EmptyLabel { offset: 0 })),
            (b"example.com.", Err(EmptyLabel { offset: 12 })),
            (b"example..com", Err(EmptyLabel { offset: 8 })),
            (b".example.com", Err(EmptyLabel { offset: 0 })),
            (b"-a.com", Err(OuterHyphen { offset: 0 })),
            (b"a.b-", Err(OuterHyphen { offset: 2 })),
            (
                b"a_b.com",
                Err(BadOctet {
                    offset: 1,
                    octet: b'_',
                }),
            ),
            (
                b"a b.com",
                Err(BadOctet {
                    offset: 1,
                    octet: b' ',
                }),
            ),
            (
                b"a.c\0m",
                Err(BadOctet {
                    offset: 3,
                    octet: 0,
                }),
            ),
            (b"../etc", Err(EmptyLabel { offset: 0 })),
            (
                b"a/b.com",
                Err(BadOctet {
                    offset: 1,
                    octet: b'/',
                }),
            ),
            (
                b"a%b.com",
                Err(BadOctet {
                    offset: 1,
                    octet: b'%',
                }),
            ),
            (
                b"[1.2.3.4]",
                Err(BadOctet {
                    offset: 0,
                    octet: b'[',
                }),
            ),
            (
                "a.b\u{FC}c".as_bytes(),
                Err(BadOctet {
                    offset: 3,
                    octet: 0xC3,
                }),
            ),
        ] {
            assert_eq!(
                check_signing_domain(name, Labels::Ascii),
                outcome,
                "{}",
                name.escape_ascii()
            );
        }
    }

    #[test]
    fn selectors_may_be_one_label_and_have_underscores() {
        for name in [&b"s1"[..], b"2026-01", b"jan.2026", b"_s_1", b"a_.b"] {
            assert_eq!(
                check_dns_name(name, Labels::Ascii),
                Ok(()),
                "{}",
                name.escape_ascii()
            );
        }
        assert_eq!(
            check_dns_name(b"a.", Labels::Ascii),
            Err(EmptyLabel { offset: 2 })
        );
        assert_eq!(
            check_dns_name(b"a*", Labels::Ascii),
            Err(BadOctet {
                offset: 1,
                octet: b'*'
            })
        );
    }

    #[test]
    fn labels_have_63_octets_and_names_253_at_most() {
        let label = "a".repeat(63);
        let fits = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(fits.len(), 253);
        assert_eq!(check_signing_domain(fits.as_bytes(), Labels::Ascii), Ok(()));
        assert_eq!(
            check_signing_domain(format!("{fits}a").as_bytes(), Labels::Ascii),
            Err(TooLong)
        );
        assert_eq!(
            check_signing_domain(format!("b.{label}a").as_bytes(), Labels::Ascii),
            Err(LongLabel { offset: 2 })
        );
        assert_eq!(
            check_signing_domain(&[b'a'; 1_000_000], Labels::Ascii),
            Err(TooLong)
        );
    }

    #[test]
    fn u_labels_are_utf8_without_characters_that_become_others() {
        for name in [
            "b\u{FC}cher.example",
            "\u{43F}\u{440}\u{438}\u{43C}\u{435}\u{440}.\u{440}\u{444}",
        ] {
            assert_eq!(
                check_signing_domain(name.as_bytes(), Labels::Unicode),
                Ok(()),
                "{name}"
            );
        }
        // A Persian and a Hindi word that need a joiner; the latter also a combining mark.
        for name in [
            "\u{646}\u{627}\u{645}\u{647}\u{200C}\u{627}.example",
            "\u{915}\u{94D}\u{200D}\u{937}.example",
        ] {
            assert_eq!(
                check_signing_domain(name.as_bytes(), Labels::Unicode),
                Ok(()),
                "{name}"
            );
        }
        for character in [
            '\u{3002}',
            '\u{FF0E}',
            '\u{FF61}',
            '\u{2024}',
            '\u{200B}',
            '\u{2060}',
            '\u{FEFF}',
            '\u{AD}',
            '\u{A0}',
            '\u{85}',
            '\u{202E}',
            '\u{FF41}',
            '\u{24D0}',
            '\u{212A}',
            '\u{1D41A}',
            '\u{E0061}',
            '\u{FFFD}',
        ] {
            let name = format!("ex{character}ample.com");
            let fault = Err(BadCharacter {
                offset: 2,
                character,
            });
            assert_eq!(
                check_signing_domain(name.as_bytes(), Labels::Unicode),
                fault,
                "{character:?}"
            );
        }
        let latin_1 = check_signing_domain(b"a.b\xFCcher", Labels::Unicode);
        assert_eq!(
            latin_1,
            Err(BadOctet {
                offset: 3,
                octet: 0xFC
            })
        );
    }

    #[test]
    fn u_labels_are_counted_in_characters() {
        let thai = "\u{E01}".repeat(30);
        assert_eq!(
            check_signing_domain(format!("{thai}.example").as_bytes(), Labels::Unicode),
            Ok(())
        );
        let long = "\u{E01}".repeat(64);
        let fault = Err(LongLabel { offset: 0 });
        assert_eq!(
            check_signing_domain(format!("{long}.example").as_bytes(), Labels::Unicode),
            fault
        );
    }

    #[test]
    fn within_means_whole_labels() {
        for (name, domain, want) in [
            ("example.org", "example.org", true),
            ("Mail.Example.org", "example.ORG", true),
            ("evilexample.org", "example.org", false),
            ("org", "example.org", false),
        ] {
            assert_eq!(
                is_within(name.as_bytes(), domain.as_bytes()),
                want,
                "{name}"
            );
        }
    }

    #[test]
    fn a_query_name_must_fit() {
        let long = b"abcdefg.".repeat(30);
        assert!(is_query_name(b"sel", b"example.com"));
        assert!(!is_query_name(b"sel", &long[..239]));
        assert!(!is_query_name(b"*", b"example.com"));
    }
}
