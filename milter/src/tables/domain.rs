//! Domain names as tables hold them: lower case, A-labels, nothing that is no host name.
//!
//! A name from a message may end up in a path or in a signature, so it is let in only when it has the form of a host
//! name (RFC 1123 section 2.1, RFC 5321 section 2.3.5). U-labels that an operator writes are turned into A-labels
//! (RFC 5890 section 2.3.2.1), the form in which RFC 8616 section 4 has domains signed and looked up.

/// Whether `name` is a host name in lower case: letters, digits and hyphens in labels of 1 to 63 octets that neither
/// begin nor end with a hyphen, 253 octets in all. A single label is one; a dot at the end is not.
pub fn is_host_name(name: &str) -> bool {
    name.len() <= MAX_NAME && !name.contains('_') && name.split('.').all(is_label)
}

/// `text` as a host name: lower case, U-labels turned into A-labels, a dot at the end dropped.
///
/// Returns `None` for what is no host name, in the sense of [`is_host_name`].
pub fn to_host_name(text: &str) -> Option<String> {
    let name = to_ascii(text.strip_suffix('.').unwrap_or(text));
    is_host_name(&name).then_some(name)
}

/// Whether `text` is a selector: labels of letters, digits, hyphens and underscores (RFC 6376 section 3.1; underscores
/// are not in its grammar, but in use).
pub(crate) fn is_selector(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text
            .split('.')
            .all(|label| is_label(&label.to_ascii_lowercase()))
}

/// `text` in lower case with U-labels turned into A-labels, where that can be done; `*` and anything else stays.
pub(super) fn to_ascii(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    idna::domain_to_ascii(text).unwrap_or_else(|_| text.to_lowercase())
}

/// `name` and then each domain above it: `a.b.c`, `b.c`, `c`.
pub(super) fn climb(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        name.split_once('.').map(|(_, above)| above)
    })
}

/// RFC 1035 section 3.1 allows 255 octets on the wire, which leaves 253 written.
pub(super) const MAX_NAME: usize = 253;

fn is_label(label: &str) -> bool {
    let is_inner = |o: u8| matches!(o, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=63).contains(&label.len())
        && label.bytes().all(is_inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_names_are_let_in() {
        let long = format!("{}.example", "a".repeat(63));
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
        for good in [
            "shop.example",
            "xn--bcher-kva.example",
            "localhost",
            "1.example",
            &long,
            &longest,
        ] {
            assert!(is_host_name(good), "{good}");
        }
        let too_long = format!("a{longest}");
        let label = "a".repeat(64);
        for bad in [
            "",
            ".",
            "a..b",
            ".a",
            "a.",
            "../../etc/passwd",
            "a/b.example",
            "%.example",
            "Shop.example",
            "-a.b",
            "a-.b",
            "[192.0.2.1]",
            "a b",
            "a\0b",
            "b\u{fc}cher.example",
            "a_b.example",
            &too_long,
            &label,
        ] {
            assert!(!is_host_name(bad), "{bad}");
        }
    }

    /// A-labels from Python's encodings.idna and RFC 3492 section 7.1.
    #[test]
    fn u_labels_become_a_labels() {
        for (text, name) in [
            ("B\u{fc}cher.Example", Some("xn--bcher-kva.example")),
            ("\u{4f8b}\u{3048}.test.", Some("xn--r8jz45g.test")),
            ("Example.COM.", Some("example.com")),
            ("a b.example", None),
            ("../x", None),
        ] {
            assert_eq!(to_host_name(text).as_deref(), name, "{text}");
        }
        assert_eq!(to_ascii("*.B\u{fc}cher.example"), "*.xn--bcher-kva.example");
    }

    #[test]
    fn selectors_may_have_dots_and_underscores() {
        for (text, good) in [
            ("s1", true),
            ("2024.Mail", true),
            ("a_b", true),
            ("", false),
            ("a..b", false),
            ("a b", false),
            ("a/b", false),
            ("\"mail\"", false),
        ] {
            assert_eq!(is_selector(text), good, "{text}");
        }
    }

    #[test]
    fn climbing_gives_each_domain_above() {
        assert_eq!(climb("a.b.c").collect::<Vec<_>>(), ["a.b.c", "b.c", "c"]);
    }
}
