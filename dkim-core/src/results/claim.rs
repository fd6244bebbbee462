//! Finding fields that claim to be ours (RFC 8601 section 5).
//!
//! Not a parser: a forged field need not be right, only right enough for some reader behind us. So what counts is how
//! its authserv-id can be read, and what follows does not count at all.

use crate::results::is_token_octet;
use crate::structured::{Scanner, is_fws, unescape};

/// No host name is longer, quoted or not; a longer authserv-id is nobody's we know.
const MAX_ID: usize = 512;

/// Whether `value`, an Authentication-Results field's, speaks in a name that `is_ours` knows; it is asked with the octets
/// as they came, and has to compare without ASCII case.
///
/// White space, folds, control characters and comments before the authserv-id are stepped over, and it may be quoted;
/// white space and comments around its dots, as some readers allow, hide nothing; nor does white space beyond ASCII around
/// it, which other readers strip. An authserv-id with U-labels is to be
/// known in both forms, as the octets have to be equal. Cost is linear in `value`, whatever its length.
pub fn claims_authserv_id(value: &[u8], is_ours: impl Fn(&[u8]) -> bool) -> bool {
    let mut scanner = Scanner::new(value);
    let mut id = Vec::new();
    loop {
        skip_to_text(&mut scanner);
        let start = scanner.offset();
        match scanner.peek() {
            Some(b'"') => match scanner.quoted_string() {
                Ok(inside) => id.extend(unescape(inside)),
                Err(_) => return false,
            },
            _ => id.extend_from_slice(scanner.take_while(|o| is_token_octet(o) || !o.is_ascii())),
        }
        // Checked at every stop: one reader ends the name where another goes on to a dot.
        if is_ours(&id) || !id.is_ascii() && is_ours(strip(&id).as_bytes()) {
            return true;
        }
        let is_at_text = scanner.offset() > start;
        skip_to_text(&mut scanner);
        let goes_on = id.ends_with(b".") || scanner.peek() == Some(b'.');
        if !is_at_text || !goes_on || id.len() > MAX_ID {
            return false;
        }
    }
}

/// The name without what text libraries take for white space or for nothing at its ends, broken octets among it, as a
/// NBSP in another character set is one.
fn strip(id: &[u8]) -> String {
    let id = String::from_utf8_lossy(id);
    let is_nothing = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || matches!(c, '\u{200B}' | '\u{2060}' | '\u{FEFF}' | '\u{FFFD}')
    };
    id.trim_matches(is_nothing).to_owned()
}

/// Steps over white space, control characters and comments. A comment without an end swallows the field.
fn skip_to_text(scanner: &mut Scanner<'_>) {
    loop {
        scanner.take_while(|o| is_fws(o) || o.is_ascii_control());
        if scanner.peek() != Some(b'(') || scanner.next_comment().is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OURS: [&str; 2] = ["mail.example.org", "b\u{FC}ro.example"];

    fn is_claimed(value: &[u8]) -> bool {
        claims_authserv_id(value, |id| {
            OURS.iter()
                .any(|ours| ours.as_bytes().eq_ignore_ascii_case(id))
        })
    }

    #[test]
    fn a_field_is_ours_however_our_name_is_written() {
        for value in [
            "mail.example.org; dkim=pass header.d=example.com",
            " mail.example.org; none",
            "Mail.EXAMPLE.org; none",
            "mail.example.org 1; none",
            "mail.example.org 2; what=ever",
            "\"mail.example.org\"; none",
            "\"ma\\il\\.example.org\"; none",
            "(a) (b (c) \\) \") mail.example.org; none",
            "(other.example; dkim=pass) mail.example.org; none",
            "mail.example.org(a); none",
            "mail.example.org (a) 1 (b) ; none",
            "\r\n \t\r\n\tmail.example.org\r\n\t; none",
            "\n mail.example.org\n ; none",
            "\x0B\x0C\0mail.example.org; none",
            "mail . example (x)\r\n .org; none",
            "\"mail\" . \"example.org\"; none",
            "mail.example.org .other.example; none",
            "b\u{FC}ro.example; none",
            "B\u{FC}RO.Example; none",
            // Tails that nobody can parse.
            "mail.example.org",
            "mail.example.org;",
            "mail.example.org; =;=;=",
            "mail.example.org=pass",
            "mail.example.org/1; none",
            "mail.example.org (",
            "mail.example.org \"",
            "mail.example.org\0; none",
            "mail.example.org; \"(",
        ] {
            assert!(is_claimed(value.as_bytes()), "{}", value.escape_debug());
        }
    }

    #[test]
    fn a_field_of_others_is_left_alone() {
        for value in [
            "",
            " \r\n\t",
            ";",
            "; mail.example.org; none",
            "other.example; none",
            "other.example (mail.example.org); none",
            "other.example; dkim=pass header.d=mail.example.org",
            "other.example; dkim=none, mail.example.org; dkim=pass",
            "other.example mail.example.org; none",
            "dkim=pass header.d=example.com",
            "i=1; mail.example.org; dkim=pass",
            "mail.example.org.; none",
            "mail.example.org.other.example; none",
            "mail.example.org-x; none",
            "xmail.example.org; none",
            "mail.example; none",
            "mail..example.org; none",
            "mail.ex\u{430}mple.org; none",
            "\"mail.example.org; none",
            "\" mail.example.org\"; none",
            "(mail.example.org; none",
            "(\\) mail.example.org; none",
            "b\u{F6}ro.example; none",
        ] {
            assert!(!is_claimed(value.as_bytes()), "{}", value.escape_debug());
        }
        assert!(!claims_authserv_id(b"mail.example.org; none", |_| false));
    }

    #[test]
    fn length_hides_nothing_and_costs_linear_time() {
        const MANY: usize = 1 << 18;
        for (before, after) in [
            ("(", ")"),
            ("( ", "\r\n ) "),
            ("(\\(", ")"),
            (" \r\n", " "),
            ("(()", ")"),
        ] {
            let value = format!(
                "{}{}mail.example.org",
                before.repeat(MANY),
                after.repeat(MANY)
            );
            assert!(is_claimed(value.as_bytes()), "{before}");
        }
        let tail = format!("mail.example.org; dkim=pass; x={}", "A".repeat(MANY));
        assert!(is_claimed(tail.as_bytes()));
        for part in ["(", ".", ". ", "mail. ", "\"", "\\", "\"\".", "\0", "a.(x)"] {
            assert!(!is_claimed(part.repeat(MANY).as_bytes()), "{part}");
        }
    }

    /// As Python's `str.strip` does, of octets read as UTF-8 or as Latin-1.
    #[test]
    fn white_space_beyond_ascii_hides_nothing() {
        for space in [
            "\u{A0}", "\u{85}", "\u{2003}", "\u{3000}", "\u{FEFF}", "\u{200B}",
        ] {
            for name in ["mail.example.org", "b\u{FC}ro.example"] {
                assert!(is_claimed(format!("{space}{name}; none").as_bytes()));
                assert!(is_claimed(format!(" {name}{space}; none").as_bytes()));
            }
        }
        assert!(is_claimed(b" \xA0mail.example.org\xA0; none"));
        assert!(!is_claimed("mail.example\u{A0}.org; none".as_bytes()));
    }

    proptest! {
        #[test]
        fn nothing_around_our_name_hides_it(
            before in "([ \t]|\r\n |\\([a-z;.\" ]*\\)){0,5}",
            quoted in any::<bool>(),
            after in "(|[ ;\t(\0=].*)",
        ) {
            let id = if quoted { "\"mail.example.org\"" } else { "mail.example.org" };
            let value = [&before, id, &after].concat();
            prop_assert!(is_claimed(value.as_bytes()));
        }

        #[test]
        fn no_octets_make_it_panic_or_spin(value in prop::collection::vec(prop_oneof![
            prop::sample::select(b"mail.example.org().;\\\" \t\r\n\0\xFF".to_vec()),
            any::<u8>(),
        ], 0..64)) {
            let _ = is_claimed(&value);
        }
    }
}
