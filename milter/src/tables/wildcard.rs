//! Wildcard patterns: `*` stands for any octets, also none; every other octet for itself.

use memchr::memmem;

/// Whether `pattern` matches all of `text`.
///
/// Work is linear in the two together: the pieces between stars are sought from left to right, and the leftmost place
/// of each leaves the most room for those after it, so nothing is ever tried twice.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let Some(first_star) = memchr::memchr(b'*', pattern) else {
        return pattern == text;
    };
    // `pattern` has a star, so the last piece begins behind the first one.
    let last_star = memchr::memrchr(b'*', pattern).unwrap_or(first_star);
    let (head, tail) = (&pattern[..first_star], &pattern[last_star + 1..]);
    if text.len() < head.len() + tail.len() || !text.starts_with(head) || !text.ends_with(tail) {
        return false;
    }
    let mut rest = &text[head.len()..text.len() - tail.len()];
    pattern[first_star..last_star]
        .split(|&o| o == b'*')
        .all(|piece| match memmem::find(rest, piece) {
            Some(at) => {
                rest = &rest[at + piece.len()..];
                true
            }
            None => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_any_octets_and_all_else_for_itself() {
        for (pattern, text, wanted) in [
            ("", "", true),
            ("*", "", true),
            ("**", "x", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*@example.com", "ann@example.com", true),
            ("*@example.com", "ann@example.com.evil", false),
            ("*@*.example.com", "ann@example.com", false),
            ("*@*.example.com", "ann@a.b.example.com", true),
            ("a.c", "abc", false),
            ("a?c", "abc", false),
            ("[ab]", "a", false),
            ("a+", "aa", false),
            ("*b*b*", "ab", false),
            ("*b*b*", "abcb", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                wanted,
                "{pattern} {text}"
            );
        }
    }

    /// As a definition: a star eats nothing, or one octet more.
    fn model(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                model(rest, text) || !text.is_empty() && model(pattern, &text[1..])
            }
            ([p, pattern @ ..], [t, text @ ..]) => p == t && model(pattern, text),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                model(pattern.as_bytes(), text.as_bytes())
            );
        }
    }

    #[test]
    fn hostile_text_takes_no_backtracking() {
        let pattern = "*a".repeat(5_000) + "*b*";
        let text = "a".repeat(100_000);
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
