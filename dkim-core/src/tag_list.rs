//! Tag lists: the `name=value; name=value` grammar of signatures and key records (RFC 6376 section 3.2).
//!
//! A list is split and checked for syntax here, and the small grammars that tag values share (lists, base64,
//! decimal numbers) are read here; what a tag means is known by `signature` and `key_record`. Values stay as they
//! travelled: folding white space inside a value is for its reader to drop.

use crate::canonicalization::{Masks, append_without};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{alphabet, engine::DecodePaddingMode};
use std::ops::Range;

/// Far more than any real list has; keeps the duplicate check cheap on hostile ones.
pub const MAX_TAGS: usize = 64;

/// The tags of one list, in order, each name once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagList<'a> {
    octets: &'a [u8],
    tags: Vec<Tag<'a>>,
}

impl<'a> TagList<'a> {
    /// Splits `octets` into tags; a trailing semicolon is allowed.
    ///
    /// Work is linear in `octets` up to [`MAX_TAGS`]; nothing is copied.
    ///
    /// # Errors
    /// The first fault met, with its offset in octets, as RFC 6376 section 3.2 makes one bad tag spoil the whole list.
    pub fn parse(octets: &'a [u8]) -> Result<Self, TagListError> {
        Self::parse_named(octets, is_tag_name)
    }

    /// Splits a key record into tags, as [`parse`](Self::parse) does, but lets names have hyphens: records are written by
    /// hand, and a note of their author's (`x-note=`) is no reason to lose the key.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_record(octets: &'a [u8]) -> Result<Self, TagListError> {
        Self::parse_named(octets, |name| is_tag_name(&name.replace('-', "_")))
    }

    fn parse_named(octets: &'a [u8], is_name: impl Fn(&str) -> bool) -> Result<Self, TagListError> {
        let mut tags: Vec<Tag<'a>> = Vec::with_capacity(12);
        // Looked at all at once, which is cheap; where they stand matters only if there are any.
        let has_controls = octets.iter().fold(false, |has, &o| has | is_control(o));
        let mut offset = 0;
        while offset <= octets.len() {
            let rest = &octets[offset..];
            let spec = &rest[..memchr::memchr(b';', rest).unwrap_or(rest.len())];
            let is_last = spec.len() == rest.len();
            if let Some(tag) = Tag::parse(spec, offset, is_last, has_controls, &is_name)? {
                if tags.iter().any(|earlier| earlier.is(tag.short, tag.name)) {
                    return Err(TagListError::Duplicate {
                        name: tag.name.into(),
                        offset,
                    });
                }
                if tags.len() == MAX_TAGS {
                    return Err(TagListError::TooMany);
                }
                tags.push(tag);
            }
            offset += spec.len() + 1;
        }
        Ok(Self { octets, tags })
    }

    /// The value of `name`, without the white space around it.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.tag(name).map(|tag| &self.octets[tag.value.clone()])
    }

    /// Where the value of `name` stands in the octets that were parsed, with all the white space around it: what
    /// RFC 6376 section 3.7 has deleted from `b=`.
    pub fn raw_range(&self, name: &str) -> Option<Range<usize>> {
        self.tag(name).map(|tag| tag.raw_value.clone())
    }

    /// The name of the first tag.
    pub fn first_name(&self) -> Option<&'a str> {
        self.tags.first().map(|tag| tag.name)
    }

    #[inline]
    fn tag(&self, name: &str) -> Option<&Tag<'a>> {
        let short = short(name);
        self.tags.iter().find(|tag| tag.is(short, name))
    }
}

/// The items of a colon-separated list, each without the white space around it.
pub(crate) fn colon_list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    colon_ranges(value).map(|item| trim_fws(&value[item]))
}

/// Where the items of a colon-separated list stand, each with the white space around it.
pub(crate) fn colon_ranges(value: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = Some(0);
    // The colons among the octets from `block` on that are ahead.
    let (mut block, mut colons) = (0, Masks::of(value).colons);
    std::iter::from_fn(move || {
        let from = start?;
        while colons == 0 {
            block += Masks::WIDTH;
            if block >= value.len() {
                start = None;
                return Some(from..value.len());
            }
            colons = Masks::of(&value[block..]).colons;
        }
        let colon = block + colons.trailing_zeros() as usize;
        colons &= colons - 1;
        start = Some(colon + 1);
        Some(from..colon)
    })
}

/// Undoes base64 with folding white space anywhere (RFC 6376 section 2.10); missing padding is forgiven, as every
/// verifier in use does.
pub(crate) fn decode_base64(value: &[u8]) -> Option<Vec<u8>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let folds = |block: &[u8]| {
        let masks = Masks::of(block);
        masks.spaces | masks.crs | masks.lfs
    };
    // The hash of a body is short, and hardly ever folded.
    if value.len() <= Masks::WIDTH && folds(value) == 0 {
        return LENIENT.decode(value).ok();
    }
    let mut compact = Vec::with_capacity(value.len());
    for block in value.chunks(Masks::WIDTH) {
        append_without(&mut compact, block, folds(block));
    }
    LENIENT.decode(compact).ok()
}

/// A decimal number of at most `max_digits` digits; one too large for 64 bits counts as the largest.
pub(crate) fn decimal(value: &[u8], max_digits: usize) -> Option<u64> {
    if value.is_empty() || value.len() > max_digits || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(value.iter().fold(0u64, |number, &digit| {
        number
            .saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    }))
}

/// Not `trim_ascii`: a form feed is no folding white space.
pub(crate) fn trim_fws(octets: &[u8]) -> &[u8] {
    let octets = trim_start_fws(octets);
    let end = octets.iter().rposition(|&o| !is_fws(o));
    &octets[..end.map_or(0, |last| last + 1)]
}

pub(crate) fn trim_start_fws(octets: &[u8]) -> &[u8] {
    let start = octets.iter().position(|&o| !is_fws(o));
    &octets[start.unwrap_or(octets.len())..]
}

/// An octet of folding white space. CR and LF come only as part of a fold: a field's end is not in the list.
pub(crate) fn is_fws(octet: u8) -> bool {
    (octet == b' ') | (octet == b'\t') | (octet == b'\r') | (octet == b'\n')
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tag<'a> {
    name: &'a str,
    /// The name as a number, to compare by.
    short: u64,
    value: Range<usize>,
    raw_value: Range<usize>,
}

impl<'a> Tag<'a> {
    /// Whether `name` is its name, of which `short` is [`short`].
    #[inline]
    fn is(&self, short: u64, name: &str) -> bool {
        self.short == short && (name.len() < 8 || self.name == name)
    }

    /// One `name=value`; nothing but white space is `None`, and fine only as the end of the list.
    fn parse(
        spec: &'a [u8],
        offset: usize,
        is_last: bool,
        has_controls: bool,
        is_name: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>, TagListError> {
        if trim_start_fws(spec).is_empty() {
            return if is_last {
                Ok(None)
            } else {
                Err(TagListError::Empty { offset })
            };
        }
        let equals = spec
            .iter()
            .position(|&o| o == b'=')
            .ok_or(TagListError::NoEquals { offset })?;
        let name = std::str::from_utf8(trim_fws(&spec[..equals]))
            .ok()
            .filter(|name| is_name(name))
            .ok_or(TagListError::BadName { offset })?;
        let raw = &spec[equals + 1..];
        if has_controls && let Some(at) = raw.iter().position(|&o| is_control(o)) {
            return Err(TagListError::ControlCharacter {
                offset: offset + equals + 1 + at,
            });
        }
        let start = offset + equals + 1;
        let lead = raw.len() - trim_start_fws(raw).len();
        Ok(Some(Self {
            name,
            short: short(name),
            value: start + lead..start + lead + trim_fws(raw).len(),
            raw_value: start..start + raw.len(),
        }))
    }
}

/// The first eight octets of a name as a number. Shorter names have numbers of their own, as no name has a NUL.
#[inline]
fn short(name: &str) -> u64 {
    let octets = name.bytes().take(8);
    octets.fold(0, |number, octet| number << 8 | u64::from(octet))
}

/// What is wrong with a tag list, and where (octets from its start).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagListError {
    /// Nothing between two semicolons.
    #[error("empty tag at octet {offset}")]
    Empty {
        /// Where it stands.
        offset: usize,
    },
    /// A tag without `=`.
    #[error("no \"=\" in the tag at octet {offset}")]
    NoEquals {
        /// Where it stands.
        offset: usize,
    },
    /// A name that is not `ALPHA *(ALPHA / DIGIT / "_")`.
    #[error("not a tag name at octet {offset}")]
    BadName {
        /// Where it stands.
        offset: usize,
    },
    /// A name for the second time.
    #[error("tag {name}= stands twice (again at octet {offset})")]
    Duplicate {
        /// The tag's name.
        name: String,
        /// Where it stands for the second time.
        offset: usize,
    },
    /// A control character that is no folding white space.
    #[error("control character in a tag value at octet {offset}")]
    ControlCharacter {
        /// Where it stands.
        offset: usize,
    },
    /// More than [`MAX_TAGS`].
    #[error("more than {MAX_TAGS} tags")]
    TooMany,
}

/// `ALPHA *(ALPHA / DIGIT / "_")`
fn is_tag_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|o| o.is_ascii_alphanumeric() || o == b'_')
}

fn is_control(octet: u8) -> bool {
    (octet < b' ' && !is_fws(octet)) || octet == 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_keep_their_inner_white_space() {
        let list = TagList::parse(b"h = from :\r\n\tto; b=AB\r\n CD;").unwrap();
        assert_eq!(list.get("h"), Some(&b"from :\r\n\tto"[..]));
        assert_eq!(list.get("b"), Some(&b"AB\r\n CD"[..]));
        assert_eq!(list.get("x"), None);
        assert_eq!(list.first_name(), Some("h"));
    }

    #[test]
    fn raw_range_covers_all_white_space_around_the_value() {
        let octets = b"v=1; b=\r\n AB\r\n CD ; d=x";
        let list = TagList::parse(octets).unwrap();
        assert_eq!(
            &octets[list.raw_range("b").unwrap()],
            &b"\r\n AB\r\n CD "[..]
        );
    }

    #[test]
    fn one_bad_tag_spoils_the_list() {
        for (octets, fault) in [
            (
                &b"v=1; d=a; d=b"[..],
                TagListError::Duplicate {
                    name: "d".into(),
                    offset: 9,
                },
            ),
            (b"v=1;; d=a", TagListError::Empty { offset: 4 }),
            (b"; d=a", TagListError::Empty { offset: 0 }),
            (b"v=1; d", TagListError::NoEquals { offset: 4 }),
            (b"v=1; 1d=a", TagListError::BadName { offset: 4 }),
            (b"v=1; x-y=a", TagListError::BadName { offset: 4 }),
            (b"v=1; d=a\0b", TagListError::ControlCharacter { offset: 8 }),
            (
                b"v=1; d=a\x0c",
                TagListError::ControlCharacter { offset: 8 },
            ),
        ] {
            assert_eq!(
                TagList::parse(octets),
                Err(fault),
                "{}",
                String::from_utf8_lossy(octets)
            );
        }
    }

    #[test]
    fn only_key_records_have_hyphens_in_names() {
        let octets = b"p=AAAA; x-note=1";
        let list = TagList::parse_record(octets).unwrap();
        assert_eq!(list.get("x-note"), Some(&b"1"[..]));
        let fault = TagListError::BadName { offset: 7 };
        assert_eq!(TagList::parse(octets), Err(fault));
        for (octets, offset) in [
            (&b"p=A; -x=1"[..], 4),
            (b"p=A; 1-x=1", 4),
            (b"p=A; x+y=1", 4),
        ] {
            let fault = TagListError::BadName { offset };
            assert_eq!(TagList::parse_record(octets), Err(fault));
        }
    }

    #[test]
    fn names_differ_by_case() {
        let list = TagList::parse(b"V=2; v=1").unwrap();
        assert_eq!(list.get("v"), Some(&b"1"[..]));
        assert_eq!(list.get("V"), Some(&b"2"[..]));
    }

    #[test]
    fn too_many_tags_are_refused() {
        let long: Vec<u8> = (0..=MAX_TAGS)
            .flat_map(|n| format!("t{n}=1;").into_bytes())
            .collect();
        assert_eq!(TagList::parse(&long), Err(TagListError::TooMany));
    }

    #[test]
    fn base64_may_be_folded_anywhere_and_lack_padding() {
        for (value, want) in [
            (&b"QUJDRA=="[..], Some(&b"ABCD"[..])),
            (b"QU\r\n JD\tRA==", Some(b"ABCD")),
            (b"QUJDRA", Some(b"ABCD")),
            (b"", Some(b"")),
            (b"QUJD*A==", None),
            (b"QUJDR", None),
            (b"QUJD=RA=", None),
        ] {
            assert_eq!(decode_base64(value).as_deref(), want);
        }
    }

    #[test]
    fn numbers_are_digits_alone_and_never_overflow() {
        for (value, want) in [
            (&b"0"[..], Some(0)),
            (b"0001", Some(1)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"99999999999999999999999", Some(u64::MAX)),
            (b"", None),
            (b"-1", None),
            (b"1 2", None),
            (b"0x1f", None),
        ] {
            assert_eq!(decimal(value, 76), want);
        }
        assert_eq!(decimal(&[b'1'; 77], 76), None);
    }

    proptest! {
        #[test]
        fn ranges_lie_within_the_octets(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = TagList::parse(&octets) {
                for tag in &list.tags {
                    prop_assert!(tag.raw_value.start <= tag.value.start && tag.value.end <= tag.raw_value.end);
                    prop_assert!(octets.get(tag.raw_value.clone()).is_some());
                }
            }
        }
    }
}
