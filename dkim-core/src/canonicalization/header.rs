//! Header fields, canonicalized into a buffer (RFC 6376 sections 3.4.1 and 3.4.2).

use super::Algorithm;
use crate::message::HeaderField;
use std::ops::Range;

/// Appends `field` in its canonical form, with its final CRLF.
pub(crate) fn append_field(out: &mut Vec<u8>, field: HeaderField<'_>, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Simple => out.extend_from_slice(field.octets()),
        Algorithm::Relaxed => {
            let value_start = append_relaxed_name(out, field);
            append_relaxed(out, value_start, field.value());
            trim_end(out, value_start);
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
            let value_start = append_relaxed_name(out, field);
            append_relaxed(out, value_start, before);
            append_relaxed(out, value_start, after);
            trim_end(out, value_start);
        }
    }
}

fn append_relaxed_name(out: &mut Vec<u8>, field: HeaderField<'_>) -> usize {
    let start = out.len();
    out.extend_from_slice(field.name());
    out[start..].make_ascii_lowercase();
    out.push(b':');
    out.len()
}

/// Unfolds, and makes each run of white space one SP; none at the start of the value.
fn append_relaxed(out: &mut Vec<u8>, value_start: usize, value: &[u8]) {
    out.reserve(value.len());
    let mut rest = value;
    while let Some(&octet) = rest.first() {
        let taken = match rest {
            [b'\r', b'\n', b' ' | b'\t', ..] => 2,
            [b' ' | b'\t', ..] => {
                if out.len() > value_start && out.last() != Some(&b' ') {
                    out.push(b' ');
                }
                1
            }
            _ => {
                out.push(octet);
                let run = unchanged(&rest[1..]);
                out.extend_from_slice(&rest[1..1 + run]);
                1 + run
            }
        };
        rest = &rest[taken..];
    }
}

/// How many octets of `text`, which follows text, are as they should be: up to a tab, to an SP beside other white space,
/// and to a CR, behind which the line may be folded.
///
/// Small blocks are tested as a whole, in a form that compilers turn into vector instructions; most hold no such place.
fn unchanged(text: &[u8]) -> usize {
    const BLOCK: usize = 16;
    let may_change = |octet: u8, next: u8| {
        (octet == b'\t')
            | (octet == b'\r')
            | ((octet == b' ') & ((next == b' ') | (next == b'\t') | (next == b'\r')))
    };
    let mut at = 0;
    while at + BLOCK < text.len() {
        let (here, next) = (&text[at..at + BLOCK], &text[at + 1..at + 1 + BLOCK]);
        let pairs = here.iter().zip(next);
        if pairs.fold(false, |may, (&octet, &next)| may | may_change(octet, next)) {
            break;
        }
        at += BLOCK;
    }
    let end = text[at..].iter().enumerate().position(|(offset, &octet)| {
        may_change(octet, text.get(at + offset + 1).copied().unwrap_or(0))
    });
    end.map_or(text.len(), |end| at + end)
}

fn trim_end(out: &mut Vec<u8>, value_start: usize) {
    if out.len() > value_start && out.last() == Some(&b' ') {
        out.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::HeaderFields;

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
