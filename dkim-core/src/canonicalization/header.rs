//! Header fields, canonicalized into a buffer (RFC 6376 sections 3.4.1 and 3.4.2).

use super::Algorithm;
use super::white_space::{append_relaxed, append_unfolded};
use crate::message::HeaderField;
use std::ops::Range;

/// Appends `field` in its canonical form, with its final CRLF.
pub(crate) fn append_field(out: &mut Vec<u8>, field: HeaderField<'_>, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Simple => out.extend_from_slice(field.octets()),
        Algorithm::Relaxed => {
            append_relaxed(out, field.name(), without_leading_space(field.value()));
            trim_end(out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a DKIM-Signature field as RFC 6376 section 3.7 step 2 wants it: without what stands at `deleted` in its
/// value, and without a final CRLF.
pub(crate) fn append_field_without(
    out: &mut Vec<u8>,
    field: HeaderField<'_>,
    algorithm: Algorithm,
    deleted: Range<usize>,
) {
    let value = field.value();
    let (before, after) = (&value[..deleted.start], &value[deleted.end..]);
    match algorithm {
        Algorithm::Simple => {
            out.extend_from_slice(&field.octets()[..field.value_offset()]);
            out.extend_from_slice(before);
            out.extend_from_slice(after);
        }
        Algorithm::Relaxed => {
            let before = without_leading_space(before);
            append_relaxed(out, field.name(), before);
            let follows_space = before.is_empty() || out.last() == Some(&b' ');
            append_unfolded(
                out,
                if follows_space {
                    without_leading_space(after)
                } else {
                    after
                },
            );
            trim_end(out);
        }
    }
}

fn without_leading_space(value: &[u8]) -> &[u8] {
    let mut rest = value;
    loop {
        rest = match rest {
            [b' ' | b'\t', behind @ ..] => behind,
            [b'\r', b'\n', b' ' | b'\t', behind @ ..] => behind,
            _ => return rest,
        };
    }
}

/// Takes back the white space at the end of a value, which stands behind a colon at least.
fn trim_end(out: &mut Vec<u8>) {
    if out.last() == Some(&b' ') {
        out.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::HeaderFields;
    use proptest::prelude::*;

    fn canonical(raw: &[u8], algorithm: Algorithm) -> String {
        let mut header = HeaderFields::new();
        header.push_raw(raw);
        let mut out = b"earlier: \r\n".to_vec();
        append_field(&mut out, header.get(0).unwrap(), algorithm);
        String::from_utf8(out[11..].to_vec()).unwrap()
    }

    /// The first two rows are RFC 6376 section 3.4.5's example.
    #[test]
    fn relaxed_unfolds_and_reduces_white_space() {
        for (raw, want) in [
            ("A: X", "a:X\r\n"),
            ("B : Y\t\r\n\tZ  ", "b:Y Z\r\n"),
            ("Subject:x", "subject:x\r\n"),
            ("Subject:\r\n \r\n x", "subject:x\r\n"),
            ("Subject:", "subject:\r\n"),
            ("Subject: \t ", "subject:\r\n"),
            ("Subject: a:  :b", "subject:a: :b\r\n"),
            ("Subject: a\x0c\x0b b", "subject:a\x0c\x0b b\r\n"),
            ("Subject: a\rb\r\n c", "subject:a\rb c\r\n"),
            ("SUBJECT: \u{c4}\u{a0}", "subject:\u{c4}\u{a0}\r\n"),
        ] {
            assert_eq!(
                canonical(raw.as_bytes(), Algorithm::Relaxed),
                want,
                "{raw:?}"
            );
        }
    }

    /// The rules as RFC 6376 section 3.4.2 words them, one after the other and without regard to cost.
    fn by_the_book(value: &[u8]) -> Vec<u8> {
        let mut unfolded: Vec<u8> = Vec::new();
        for (at, &octet) in value.iter().enumerate() {
            let is_fold = |at: usize| matches!(value[at..], [b'\r', b'\n', b' ' | b'\t', ..]);
            if !(is_fold(at) || at > 0 && is_fold(at - 1)) {
                unfolded.push(octet);
            }
        }
        let is_space = |octet: &u8| matches!(octet, b' ' | b'\t');
        let mut reduced: Vec<u8> = Vec::new();
        for octet in unfolded {
            match octet {
                b' ' | b'\t' if reduced.last() == Some(&b' ') => (),
                b' ' | b'\t' => reduced.push(b' '),
                other => reduced.push(other),
            }
        }
        let start = reduced
            .iter()
            .position(|o| !is_space(o))
            .unwrap_or(reduced.len());
        let end = reduced
            .iter()
            .rposition(|o| !is_space(o))
            .map_or(start, |last| last + 1);
        reduced[start..end].to_vec()
    }

    proptest! {
        #[test]
        fn any_value_becomes_what_the_rules_say(
            value in proptest::collection::vec(prop_oneof![
                6 => Just(b' '), 2 => Just(b'\t'), 3 => Just(b'\r'), 3 => Just(b'\n'), 12 => Just(b'a'), 1 => any::<u8>()
            ], 0..300),
            cut in 0usize..300,
        ) {
            let raw = [b"Name:", &value[..]].concat();
            let wanted = [b"name:", &by_the_book(&value)[..]].concat();
            let field = HeaderField::from_octets(&raw);
            let mut out = Vec::new();
            append_field(&mut out, field, Algorithm::Relaxed);
            prop_assert_eq!(&out[..], &[&wanted[..], b"\r\n"].concat()[..]);
            // In two pieces, where the first ends in text.
            let cut = cut.min(value.len());
            if cut == 0 || !b" \t\r\n".contains(&value[cut - 1]) {
                let mut out = Vec::new();
                append_field_without(&mut out, field, Algorithm::Relaxed, cut..cut);
                prop_assert_eq!(&out[..], &wanted[..]);
            }
        }
    }

    #[test]
    fn simple_changes_nothing() {
        for raw in ["B : Y\t\r\n\tZ  ", "Subject:", "X: \r\n a"] {
            assert_eq!(
                canonical(raw.as_bytes(), Algorithm::Simple),
                format!("{raw}\r\n")
            );
        }
    }

    #[test]
    fn a_deleted_range_leaves_no_trace_and_no_line_end() {
        let mut header = HeaderFields::new();
        header.push_raw(b"DKIM-Signature: v=1;\r\n b=\r\n  AB\r\n CD ; d=x ");
        let field = header.get(0).unwrap();
        let start = field.value().iter().position(|&o| o == b'b').unwrap() + 2;
        let end = field.value().iter().rposition(|&o| o == b';').unwrap();
        for (algorithm, want) in [
            (Algorithm::Relaxed, "dkim-signature:v=1; b=; d=x"),
            (Algorithm::Simple, "DKIM-Signature: v=1;\r\n b=; d=x "),
        ] {
            let mut out = Vec::new();
            append_field_without(&mut out, field, algorithm, start..end);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
