//! The names of attributes, which part of a URI each belongs to, and which one a wrong name may stand for.

use std::fmt;

/// The attributes of the path (RFC 7512 section 2.3).
pub(super) const PATH: [&str; 13] = [
    "token",
    "manufacturer",
    "serial",
    "model",
    "object",
    "id",
    "type",
    "slot-id",
    "slot-description",
    "slot-manufacturer",
    "library-manufacturer",
    "library-description",
    "library-version",
];

/// The attributes of the query: those of RFC 7512 section 2.3 and our own.
pub(super) const QUERY: [&str; 6] = [
    "pin-source",
    "pin-value",
    "module-name",
    "module-path",
    "x-on-token-away",
    "x-mechanism",
];

/// Names from drafts of RFC 7512, of options of other programs and of PKCS#11, and the attribute that is meant.
const OTHERWISE_KNOWN: [(&str, &str); 7] = [
    ("pinfile", "pin-source"),
    ("objecttype", "type"),
    ("object-type", "type"),
    ("label", "object"),
    ("slot", "slot-id"),
    ("class", "type"),
    ("module", "module-path"),
];

/// The two parts of a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What says which token and key: attributes between `;`.
    Path,
    /// What says how to get at them, after the `?`: attributes between `&`.
    Query,
}

impl Part {
    /// The attributes that belong here.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Path => &PATH,
            Self::Query => &QUERY,
        }
    }

    /// What stands between two attributes.
    pub(super) fn separator(self) -> u8 {
        match self {
            Self::Path => b';',
            Self::Query => b'&',
        }
    }

    /// The other part.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Path => Self::Query,
            Self::Query => Self::Path,
        }
    }
}

/// Says where in a URI the part is.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Path => "before the \"?\"",
            Self::Query => "after a \"?\"",
        })
    }
}

/// The attribute that `typed`, found in `part`, most likely stands for.
pub(super) fn meant(typed: &str, part: Part) -> Option<&'static str> {
    let typed = typed.to_ascii_lowercase();
    OTHERWISE_KNOWN
        .iter()
        .find(|(name, _)| *name == typed)
        .map(|&(_, meant)| meant)
        .or_else(|| nearest(&typed, part.names().iter().copied()))
        .or_else(|| nearest(&typed, part.other().names().iter().copied()))
}

/// The one of `words` that is fewest edits from `typed`, if there is one near: one edit for short words, up to three
/// for long ones.
pub(super) fn nearest(
    typed: &str,
    words: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    if typed.len() > MAX_TYPED {
        return None;
    }
    let allowed = (typed.len() / 4).clamp(1, 3);
    words
        .map(|word| (edits(typed.as_bytes(), word.as_bytes()), word))
        .filter(|&(edits, _)| edits <= allowed)
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, word)| word)
}

/// Octets added, left out, changed, or exchanged with their neighbour between `a` and `b`; case does not count.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let same = |i: usize, j: usize| a[i].eq_ignore_ascii_case(&b[j]);
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let changed = last[j] + usize::from(!same(i, j));
            let mut fewest = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && same(i, j - 1) && same(i - 1, j) {
                let exchanged: &usize = &before[j - 1];
                fewest = fewest.min(exchanged + 1);
            }
            row.push(fewest);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Longer than any word; keeps the work small for junk.
const MAX_TYPED: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_as_by_hand() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("Token", "token", 0),
            ("tokne", "token", 1),
            ("toke", "token", 1),
            ("abcd", "acbd", 1),
            ("saturday", "sunday", 3),
        ] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), wanted, "{a} {b}");
        }
    }

    #[test]
    fn a_wrong_name_leads_to_the_one_that_is_meant() {
        for (typed, part, wanted) in [
            ("tokn", Part::Path, Some("token")),
            ("Token", Part::Path, Some("token")),
            ("objct", Part::Path, Some("object")),
            ("manufacturor", Part::Path, Some("manufacturer")),
            (
                "libary-manufacturer",
                Part::Path,
                Some("library-manufacturer"),
            ),
            ("pin-sorce", Part::Path, Some("pin-source")),
            ("pinfile", Part::Path, Some("pin-source")),
            ("label", Part::Path, Some("object")),
            ("objecttype", Part::Path, Some("type")),
            ("module_path", Part::Query, Some("module-path")),
            ("x-on-tokenaway", Part::Query, Some("x-on-token-away")),
            ("x-mechansim", Part::Query, Some("x-mechanism")),
            ("x-elephant", Part::Query, None),
            ("elephant", Part::Path, None),
        ] {
            assert_eq!(meant(typed, part), wanted, "{typed}");
        }
        assert_eq!(meant(&"x".repeat(1 << 20), Part::Path), None);
    }
}
