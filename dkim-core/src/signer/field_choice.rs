//! Which header fields a signer signs (RFC 6376 sections 5.4 and 5.4.1), and the names that `h=` gets for it.

use crate::field_selection::FieldIndex;
use crate::message::{HeaderFields, name_hash};

/// The fields signed by default where present: those of RFC 6376 section 5.4.1, with those that say how the message is
/// to be read (MIME) and what lists add. `Received`, `Return-Path`, `Bcc` and results change on the way and stay out.
pub const DEFAULT_FIELDS: [&str; 30] = [
    "From",
    "Reply-To",
    "Subject",
    "Date",
    "To",
    "Cc",
    "Sender",
    "Message-ID",
    "In-Reply-To",
    "References",
    "Resent-Date",
    "Resent-From",
    "Resent-Sender",
    "Resent-To",
    "Resent-Cc",
    "Resent-Message-ID",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
    "Content-Disposition",
    "Content-ID",
    "Content-Description",
    "List-Id",
    "List-Help",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
    "List-Subscribe",
    "List-Post",
    "List-Owner",
    "List-Archive",
];

/// Mail systems break longer lines, and signatures with them (RFC 5322 section 2.1.1).
const LONGEST_LINE: usize = 998;

/// Names to sign and names to oversign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChoice {
    /// Each name once, with how often it is to stand at least and whether it is oversigned.
    names: Vec<Wish>,
    sign_long_lines: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    name: String,
    /// Of the name.
    hash: u32,
    /// How often the configuration names it; more than once is taken literally.
    listed: usize,
    oversign: bool,
}

impl FieldChoice {
    /// Signs all fields named in `sign` that a message has. A name listed more than once stands exactly so often, and a
    /// name in `oversign` once more than the message has such fields, so that none can be added; what is oversigned is
    /// signed.
    ///
    /// # Errors
    /// A name that is none, or no From among them.
    pub fn new<S: AsRef<str>>(sign: &[S], oversign: &[S]) -> Result<Self, FieldChoiceError> {
        let mut names: Vec<Wish> = Vec::new();
        let both = [(sign, false), (oversign, true)];
        for (name, is_oversigned) in both
            .iter()
            .flat_map(|(list, o)| list.iter().map(move |n| (n.as_ref(), *o)))
        {
            if name.is_empty()
                || !name
                    .bytes()
                    .all(|o| o.is_ascii_graphic() && !matches!(o, b':' | b';'))
            {
                return Err(FieldChoiceError::Name(name.to_owned()));
            }
            let known = names
                .iter_mut()
                .find(|wish| wish.name.eq_ignore_ascii_case(name));
            match known {
                Some(wish) if is_oversigned => wish.oversign = true,
                Some(wish) => wish.listed += 1,
                None => names.push(Wish {
                    name: name.to_owned(),
                    hash: name_hash(name.as_bytes()),
                    listed: usize::from(!is_oversigned),
                    oversign: is_oversigned,
                }),
            }
        }
        if !names
            .iter()
            .any(|wish| wish.name.eq_ignore_ascii_case("From"))
        {
            return Err(FieldChoiceError::FromMissing);
        }
        Ok(Self {
            names,
            sign_long_lines: false,
        })
    }

    /// Whether fields with a line over 998 octets are signed too. Mail systems break such lines later, so by default a
    /// name with such a field is left out, but never From.
    pub fn sign_long_lines(mut self, yes: bool) -> Self {
        self.sign_long_lines = yes;
        self
    }

    /// The names for `h=`, in the order of the lists.
    pub fn names(&self, header: &HeaderFields) -> Vec<&str> {
        let places = self.choose(header, &FieldIndex::new(header)).into_iter();
        places.map(|place| self.name(place)).collect()
    }

    /// The name at a place that [`choose`](Self::choose) gave.
    pub(super) fn name(&self, place: usize) -> &str {
        &self.names[place].name
    }

    /// Where the names for `h=` stand in the lists.
    pub(super) fn choose(&self, header: &HeaderFields, fields: &FieldIndex) -> Vec<usize> {
        let mut places = Vec::with_capacity(self.names.len() + 2);
        // Seldom is there any, and then no name need be looked at for it.
        let has_long_lines = header.iter().any(|field| has_long_line(field.octets()));
        for (place, wish) in self.names.iter().enumerate() {
            let present = fields.count(header, wish.hash, wish.name.as_bytes());
            if present == 0 && !wish.oversign && wish.listed < 2 {
                continue;
            }
            if has_long_lines && self.leaves_out(header, &wish.name) {
                continue;
            }
            let listed = if wish.listed > 1 {
                wish.listed
            } else {
                present
            };
            let mentions = if wish.oversign {
                listed.max(present + 1)
            } else {
                listed
            };
            places.extend(std::iter::repeat_n(place, mentions));
        }
        places
    }

    /// The names that are left out for their long lines.
    pub fn left_out<'a>(&'a self, header: &'a HeaderFields) -> impl Iterator<Item = &'a str> {
        let names = self.names.iter().map(|wish| wish.name.as_str());
        names.filter(|name| self.leaves_out(header, name))
    }

    fn leaves_out(&self, header: &HeaderFields, name: &str) -> bool {
        !self.sign_long_lines
            && !name.eq_ignore_ascii_case("From")
            && header
                .named(name)
                .any(|field| has_long_line(field.octets()))
    }
}

impl Default for FieldChoice {
    /// [`DEFAULT_FIELDS`], From oversigned.
    fn default() -> Self {
        let wish = |name: &&str| Wish {
            name: (*name).to_owned(),
            hash: name_hash(name.as_bytes()),
            listed: 1,
            oversign: *name == "From",
        };
        Self {
            names: DEFAULT_FIELDS.iter().map(wish).collect(),
            sign_long_lines: false,
        }
    }
}

/// Why a list of names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldChoiceError {
    /// Not the name of a header field.
    #[error("{0:?} is not the name of a header field")]
    Name(String),
    /// RFC 6376 section 5.4: From must be signed.
    #[error("From is not among the header fields to sign (RFC 6376 section 5.4 wants it)")]
    FromMissing,
}

fn has_long_line(field: &[u8]) -> bool {
    field.len() > LONGEST_LINE
        && field
            .split(|&o| o == b'\n')
            .any(|line| line.len() > LONGEST_LINE + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(fields: &[&str]) -> HeaderFields {
        let mut header = HeaderFields::new();
        fields
            .iter()
            .for_each(|field| header.push_raw(field.as_bytes()));
        header
    }

    #[test]
    fn the_list_is_what_was_configured() {
        let header = header(&["From: a", "To: b", "Subject: c", "X-Tag: 1", "x-tag: 2"]);
        for (sign, oversign, want) in [
            ("from:to:subject", "", "from:to:subject"),
            ("from:from:to:to", "", "from:from:to:to"),
            ("from:to:cc:subject", "from:cc", "from:from:to:cc:subject"),
            ("from:x-tag", "x-tag", "from:x-tag:x-tag:x-tag"),
            ("from:x-tag", "", "from:x-tag:x-tag"),
            ("from:from:from", "from", "from:from:from"),
            ("to", "from:reply-to", "to:from:from:reply-to"),
        ] {
            let list = |names: &str| -> Vec<String> {
                names
                    .split(':')
                    .filter(|n| !n.is_empty())
                    .map(String::from)
                    .collect()
            };
            let choice = FieldChoice::new(&list(sign), &list(oversign)).unwrap();
            assert_eq!(choice.names(&header).join(":"), want, "{sign} {oversign}");
        }
    }

    #[test]
    fn from_must_be_signed_and_names_be_names() {
        assert_eq!(
            FieldChoice::new(&["to"], &[]),
            Err(FieldChoiceError::FromMissing)
        );
        for name in ["", "a b", "a:b", "a;b", "\u{fc}"] {
            assert_eq!(
                FieldChoice::new(&["from", name], &[]),
                Err(FieldChoiceError::Name(name.into()))
            );
        }
    }

    #[test]
    fn by_default_present_fields_are_signed_and_from_once_more() {
        let header = header(&[
            "Received: x",
            "From: a",
            "Subject: b",
            "Bcc: c",
            "Content-Type: d",
        ]);
        assert_eq!(
            FieldChoice::default().names(&header),
            ["From", "From", "Subject", "Content-Type"]
        );
    }

    #[test]
    fn fields_that_will_be_refolded_are_left_out() {
        let long = format!("References: {}", "x".repeat(990));
        let folded = format!("Subject: {}\r\n {}", "x".repeat(900), "y".repeat(900));
        let from = format!("From: {}", "x".repeat(2000));
        let header = header(&[&long, &folded, &from]);
        let choice = FieldChoice::new(&["From", "Subject", "References"], &[]).unwrap();
        assert_eq!(choice.names(&header), ["From", "Subject"]);
        assert_eq!(choice.left_out(&header).collect::<Vec<_>>(), ["References"]);
        assert_eq!(
            choice.sign_long_lines(true).names(&header),
            ["From", "Subject", "References"]
        );
    }
}
