//! Which header fields are signed: `SignHeaders`, `OmitHeaders` and `OversignHeaders`, and how they bear on each other.

use super::Warning;
use crate::tables::Origin;

/// What the three options say, before the signer's own default list is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSelection {
    pub(super) sign: Option<NameList>,
    pub(super) omit: NameList,
    pub(super) oversign: NameList,
}

/// The header fields of a signature, as names in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedFields {
    /// Those to sign, as often as a message has them, or as often as they stand here if that is more than once.
    pub sign: Vec<String>,
    /// Those of them to sign once more than that.
    pub oversign: Vec<String>,
}

/// A list of names, or changes to a default list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameList {
    /// `*`: the rest are changes.
    pub(super) from_default: bool,
    /// Names to add.
    pub(super) add: Vec<String>,
    /// Names to take from the default.
    pub(super) remove: Vec<String>,
}

/// Why an element belongs into no list of header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementFault {
    /// No name of a header field, or one that `h=` cannot hold.
    NotAField,
    /// `+name` or `-name` without `*`.
    ChangeWithoutStar,
}

impl FieldSelection {
    /// The fields to sign, where `default` is the signer's list.
    ///
    /// From is always among them, and so is what is oversigned, even if it is to be omitted.
    pub fn resolve(&self, default: &[&str]) -> SignedFields {
        let omit = self.omit.resolve(&OMIT_DEFAULT);
        let oversign = self.oversign.resolve(&OVERSIGN_DEFAULT);
        let mut sign = match &self.sign {
            Some(list) => list.resolve(default),
            None => default.iter().map(|&name| name.to_owned()).collect(),
        };
        sign.retain(|name| !contains(&omit, name) || name.eq_ignore_ascii_case(FROM));
        if !contains(&sign, FROM) {
            sign.insert(0, FROM.to_owned());
        }
        for name in &oversign {
            if !contains(&sign, name) {
                sign.push(name.clone());
            }
        }
        SignedFields { sign, oversign }
    }

    /// What the options say that does not hold; each with the origin of its option.
    pub(super) fn contradictions(
        &self,
        sign: &Origin,
        omit: &Origin,
        oversign: &Origin,
    ) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let omitted = self.omit.resolve(&OMIT_DEFAULT);
        let oversigned = self.oversign.resolve(&OVERSIGN_DEFAULT);
        let mut warn = |origin: &Origin, option, name: &str, note| {
            warnings.push(Warning::Field {
                origin: origin.clone(),
                option,
                name: name.to_owned(),
                note,
            });
        };
        if let Some(list) = &self.sign {
            let takes_from = list.from_default && contains(&list.remove, FROM);
            if takes_from || !list.from_default && !contains(&list.add, FROM) {
                warn(
                    sign,
                    "SignHeaders",
                    FROM,
                    "is signed all the same (RFC 6376 section 5.4)",
                );
            }
            for name in list.add.iter().filter(|name| contains(&omitted, name)) {
                if !contains(&oversigned, name) && !name.eq_ignore_ascii_case(FROM) {
                    warn(
                        sign,
                        "SignHeaders",
                        name,
                        "is not signed, because OmitHeaders has it too",
                    );
                }
            }
            if !list.from_default {
                for name in oversigned.iter().filter(|name| !contains(&list.add, name)) {
                    if !name.eq_ignore_ascii_case(FROM) {
                        warn(
                            oversign,
                            "OversignHeaders",
                            name,
                            "is signed, although SignHeaders does not have it",
                        );
                    }
                }
            }
        }
        for name in &omitted {
            if name.eq_ignore_ascii_case(FROM) {
                warn(
                    omit,
                    "OmitHeaders",
                    name,
                    "is signed all the same (RFC 6376 section 5.4)",
                );
            } else if contains(&oversigned, name) {
                warn(
                    omit,
                    "OmitHeaders",
                    name,
                    "is signed, because OversignHeaders has it too",
                );
            }
        }
        warnings
    }
}

impl NameList {
    /// Reads the elements of a list; those at fault are handed to `fault`.
    pub(super) fn parse<'e>(
        elements: impl Iterator<Item = &'e str> + Clone,
        mut fault: impl FnMut(&str, ElementFault),
    ) -> Self {
        let mut list = Self {
            from_default: elements.clone().any(|element| element == "*"),
            ..Self::default()
        };
        // "." and "-" are how operators say that a list is empty.
        for element in elements.filter(|element| !matches!(*element, "*" | "." | "-")) {
            let (change, name) = match element.as_bytes().first() {
                Some(&sign @ (b'+' | b'-')) => (Some(sign), element[1..].trim_start()),
                _ => (None, element),
            };
            let names = match change {
                Some(b'-') => &mut list.remove,
                _ => &mut list.add,
            };
            if !is_field_name(name) {
                fault(element, ElementFault::NotAField);
            } else if change.is_some() && !list.from_default {
                fault(element, ElementFault::ChangeWithoutStar);
            } else {
                names.push(name.to_owned());
            }
        }
        list
    }

    /// The names, where `default` is what `*` stands for.
    fn resolve(&self, default: &[&str]) -> Vec<String> {
        let kept = default
            .iter()
            .filter(|name| self.from_default && !contains(&self.remove, name));
        let mut names: Vec<String> = kept.map(|&name| name.to_owned()).collect();
        for name in &self.add {
            // A name that a list of its own has twice is meant twice; the default list has it already.
            let is_new = !self.from_default || !contains(&names, name);
            if is_new && !contains(&self.remove, name) {
                names.push(name.clone());
            }
        }
        names
    }
}

const FROM: &str = "From";

/// The defaults of the options that have one of their own; the table of options tells them too.
const OMIT_DEFAULT: [&str; 7] = [
    "Return-Path",
    "Received",
    "Comments",
    "Keywords",
    "Bcc",
    "Resent-Bcc",
    "DKIM-Signature",
];
const OVERSIGN_DEFAULT: [&str; 1] = [FROM];

fn contains(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// RFC 5322 section 3.6.8, less the semicolon, which would end the `h=` tag.
fn is_field_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|o| o.is_ascii_graphic() && !matches!(o, b':' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::{OMIT_HEADERS, OVERSIGN_HEADERS, Preset};

    const DEFAULT: [&str; 4] = ["From", "To", "Subject", "Comments"];

    fn list(text: &str) -> (NameList, Vec<(String, ElementFault)>) {
        let mut faults = Vec::new();
        let elements = text
            .split(',')
            .map(str::trim)
            .filter(|element| !element.is_empty());
        let list = NameList::parse(elements, |element, fault| {
            faults.push((element.to_owned(), fault))
        });
        (list, faults)
    }

    fn selection(sign: Option<&str>, omit: &str, oversign: &str) -> FieldSelection {
        FieldSelection {
            sign: sign.map(|sign| list(sign).0),
            omit: list(omit).0,
            oversign: list(oversign).0,
        }
    }

    #[test]
    fn a_star_changes_the_default_and_all_else_replaces_it() {
        for (sign, omit, oversign, signed, oversigned) in [
            (None, "*", "*", "From To Subject Comments", "From"),
            (None, "Subject", "From", "From To Comments", "From"),
            (None, "*,+To", ".", "From Subject", ""),
            (None, "*,-Comments", ".", "From To Subject Comments", ""),
            (Some("from,to"), "*", "From", "from to", "From"),
            (
                Some("*,+X-Tag,-to"),
                "*",
                "*,+cc",
                "From Subject X-Tag cc",
                "From cc",
            ),
            (Some("*,X-Tag"), "*", ".", "From To Subject X-Tag", ""),
            (Some("to,subject"), "*", ".", "From to subject", ""),
            (Some("*,-from"), "from", "-", "From To Subject Comments", ""),
            (Some("from,to,to,TO"), "*", ".", "from to to TO", ""),
            (Some("from"), "Cc", "Cc", "from Cc", "Cc"),
        ] {
            let fields = selection(sign, omit, oversign).resolve(&DEFAULT);
            let omits_comments = omit.starts_with('*') && !omit.contains("-Comments");
            let wanted = if omits_comments {
                signed.replace(" Comments", "")
            } else {
                signed.to_owned()
            };
            assert_eq!(fields.sign.join(" "), wanted, "{sign:?} {omit} {oversign}");
            assert_eq!(
                fields.oversign.join(" "),
                oversigned,
                "{sign:?} {omit} {oversign}"
            );
        }
    }

    #[test]
    fn what_h_cannot_hold_is_refused() {
        for (text, fault) in [
            ("From To", ElementFault::NotAField),
            ("a:b", ElementFault::NotAField),
            ("a;b", ElementFault::NotAField),
            ("*, +", ElementFault::NotAField),
            ("B\u{e9}", ElementFault::NotAField),
            ("+Cc", ElementFault::ChangeWithoutStar),
            ("From,-Cc", ElementFault::ChangeWithoutStar),
        ] {
            assert_eq!(
                list(text).1.iter().map(|fault| fault.1).collect::<Vec<_>>(),
                [fault],
                "{text}"
            );
        }
    }

    #[test]
    fn contradictions_are_told() {
        let told = |sign, omit, oversign| {
            let origin = |text: &str| Origin::CommandLine(text.into());
            selection(sign, omit, oversign)
                .contradictions(&origin("s"), &origin("o"), &origin("v"))
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(told(None, "*", "*"), [""; 0]);
        assert_eq!(told(Some("From,To"), "*", "From,To"), [""; 0]);
        assert_eq!(
            told(Some("To"), "*", "From"),
            ["command line (s): SignHeaders: From is signed all the same (RFC 6376 section 5.4)"]
        );
        assert_eq!(
            told(Some("From,Received"), "*", "From"),
            [
                "command line (s): SignHeaders: Received is not signed, because OmitHeaders has it too"
            ]
        );
        assert_eq!(
            told(Some("From"), "*", "From,Cc"),
            [
                "command line (v): OversignHeaders: Cc is signed, although SignHeaders does not have it"
            ]
        );
        assert_eq!(
            told(None, "From,Cc", "Cc"),
            [
                "command line (o): OmitHeaders: From is signed all the same (RFC 6376 section 5.4)",
                "command line (o): OmitHeaders: Cc is signed, because OversignHeaders has it too",
            ]
        );
    }

    #[test]
    fn the_defaults_are_those_of_the_table_of_options() {
        let of = |preset: &Preset| match preset {
            Preset::Value(value) => value.to_string(),
            Preset::Unset(_) => panic!("unset"),
        };
        assert_eq!(of(&OMIT_HEADERS.spec.default), OMIT_DEFAULT.join(", "));
        assert_eq!(
            of(&OVERSIGN_HEADERS.spec.default),
            OVERSIGN_DEFAULT.join(", ")
        );
    }
}
