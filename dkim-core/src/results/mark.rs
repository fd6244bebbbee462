//! Telling signatures apart in results: `header.b` (RFC 6008).
//!
//! A domain may sign twice with one selector, and then only the signatures themselves differ.

use crate::results::MAX_VALUE_LENGTH;

/// The shortest beginning of each signature, of at least eight octets, by which it can be told from the others: what
/// `header.b` reports (RFC 6008 section 4). `signatures` are the values of `b=` without white space. Equal signatures
/// cannot be told apart and come out whole, as do short ones; none comes out longer than [`MAX_VALUE_LENGTH`].
pub fn signature_marks<'a>(signatures: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let bounded: Vec<&[u8]> = signatures
        .iter()
        .map(|b| &b[..b.len().min(MAX_VALUE_LENGTH)])
        .collect();
    let mut order: Vec<usize> = (0..bounded.len()).collect();
    order.sort_by_key(|&at| bounded[at]);
    let mut lengths = vec![MIN_MARK_LENGTH; bounded.len()];
    // In sorted order, what two signatures share is no longer than what neighbours between them share.
    for pair in order.windows(2) {
        let (one, other) = (bounded[pair[0]], bounded[pair[1]]);
        let shared = one
            .iter()
            .zip(other)
            .take_while(|(one, other)| one == other)
            .count();
        for &at in pair {
            lengths[at] = lengths[at].max(shared + 1);
        }
    }
    bounded
        .iter()
        .zip(lengths)
        .map(|(b, length)| &b[..length.min(b.len())])
        .collect()
}

/// RFC 6008 section 4.
const MIN_MARK_LENGTH: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_shortest_beginning_that_tells_signatures_apart() {
        for (signatures, marks) in [
            (&["abcdefghijkl"][..], &["abcdefgh"][..]),
            (&["abcdefghijkl", "mnopqrstuvwx"], &["abcdefgh", "mnopqrst"]),
            (
                &["abcdefghijkl", "abcdefghiXYZ"],
                &["abcdefghij", "abcdefghiX"],
            ),
            (
                &["abcdefgh1x", "mnopqrstu", "abcdefgh2x", "abcdefgh21"],
                &["abcdefgh1", "mnopqrst", "abcdefgh2x", "abcdefgh21"],
            ),
            (&["abc", "abcdefghij"], &["abc", "abcdefgh"]),
            (&["abcdefghij", "abcdefghij"], &["abcdefghij", "abcdefghij"]),
            (&["", ""], &["", ""]),
            (&[], &[]),
        ] {
            let octets: Vec<&[u8]> = signatures.iter().map(|b| b.as_bytes()).collect();
            let wanted: Vec<&[u8]> = marks.iter().map(|b| b.as_bytes()).collect();
            assert_eq!(signature_marks(&octets), wanted, "{signatures:?}");
        }
        let long = [b'a'; 2000];
        let marks = signature_marks(&[&long, &long]);
        assert_eq!(
            marks,
            [&long[..MAX_VALUE_LENGTH], &long[..MAX_VALUE_LENGTH]]
        );
    }
}
