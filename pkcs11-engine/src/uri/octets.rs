//! Percent-encoding of attribute values: which octets stand for themselves in which part (RFC 7512 section 2.3).

use std::fmt::Write;

use super::UriError;
use super::names::Part;

/// A value as it stands in a URI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    /// The attribute's name.
    pub(super) name: &'static str,
    /// The encoded octets.
    pub(super) raw: &'a [u8],
    /// Where in the URI they begin, in octets from 0.
    pub(super) offset: usize,
    /// Where in the URI they stand.
    pub(super) part: Part,
}

impl Value<'_> {
    /// Appends the decoded octets to `decoded`, which needs room for no more than there are encoded ones.
    pub(super) fn decode_into(&self, decoded: &mut Vec<u8>) -> Result<(), UriError> {
        let mut rest = self.raw;
        while let Some((&octet, after)) = rest.split_first() {
            // Counted from 1, as editors do.
            let at = self.offset + self.raw.len() - rest.len() + 1;
            rest = after;
            if octet == b'%' {
                let (digits, after) = rest
                    .split_first_chunk::<2>()
                    .ok_or(UriError::BadEscape { at })?;
                let value = hex(digits).ok_or(UriError::BadEscape { at })?;
                decoded.push(value);
                rest = after;
            } else if stands_for_itself(octet, self.part) {
                decoded.push(octet);
            } else if self.name == "pin-value" {
                return Err(UriError::BadPinCharacter { at });
            } else {
                return Err(UriError::BadCharacter {
                    name: self.name,
                    part: self.part,
                    octet,
                    at,
                });
            }
        }
        Ok(())
    }

    /// The decoded octets.
    pub(super) fn decode(&self) -> Result<Vec<u8>, UriError> {
        let mut decoded = Vec::with_capacity(self.raw.len());
        self.decode_into(&mut decoded)?;
        Ok(decoded)
    }
}

/// Encodes what has to be, and `&` and `=` too, so that nothing within a value looks like an attribute: to a person, or
/// to [`super::Uri::parse`], which refuses some of it.
pub(super) fn encode(octets: &[u8], part: Part) -> String {
    let mut encoded = String::with_capacity(octets.len());
    for &octet in octets {
        if stands_for_itself(octet, part) && octet != b'&' && octet != b'=' {
            encoded.push(octet.into());
        } else {
            push_encoded(&mut encoded, octet);
        }
    }
    encoded
}

/// Encodes every octet, as `id` wants it.
pub(super) fn encode_all(octets: &[u8]) -> String {
    let mut encoded = String::with_capacity(3 * octets.len());
    for &octet in octets {
        push_encoded(&mut encoded, octet);
    }
    encoded
}

fn push_encoded(encoded: &mut String, octet: u8) {
    // Writing to a string does not fail.
    let _ = write!(encoded, "%{octet:02X}");
}

/// `pk11-pchar` and `pk11-qchar` without `pct-encoded`.
fn stands_for_itself(octet: u8, part: Part) -> bool {
    octet.is_ascii_alphanumeric()
        || b"-._~:[]@!$'()*+,=".contains(&octet)
        || match part {
            Part::Path => octet == b'&',
            Part::Query => b"/?|".contains(&octet),
        }
}

fn hex(digits: &[u8; 2]) -> Option<u8> {
    let digit = |octet: u8| char::from(octet).to_digit(16);
    // Two digits of four bits each.
    u8::try_from(digit(digits[0])? << 4 | digit(digits[1])?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_octets_that_stand_for_themselves_are_those_of_the_grammar() {
        let all: Vec<u8> = (0..=255).collect();
        let plain = |part| -> String {
            all.iter()
                .filter(|&&octet| stands_for_itself(octet, part))
                .map(|&octet| char::from(octet))
                .collect()
        };
        assert_eq!(
            plain(Part::Path),
            "!$&'()*+,-.0123456789:=@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz~"
        );
        assert_eq!(
            plain(Part::Query),
            "!$'()*+,-./0123456789:=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz|~"
        );
    }

    #[test]
    fn what_must_be_encoded_is() {
        for (octets, path, query) in [
            (
                &b"mail-2026_a.b~c"[..],
                "mail-2026_a.b~c",
                "mail-2026_a.b~c",
            ),
            (b"a b", "a%20b", "a%20b"),
            (b"50%", "50%25", "50%25"),
            (b"a;b", "a%3Bb", "a%3Bb"),
            (b"a/b?c", "a%2Fb%3Fc", "a/b?c"),
            (b"#1", "%231", "%231"),
            (b"R&D", "R%26D", "R%26D"),
            (b"a=b,(c)", "a%3Db,(c)", "a%3Db,(c)"),
            (b"!$'*+:@[]", "!$'*+:@[]", "!$'*+:@[]"),
            (
                "Schl\u{fc}ssel".as_bytes(),
                "Schl%C3%BCssel",
                "Schl%C3%BCssel",
            ),
            (b"\0\n\x7f\xff", "%00%0A%7F%FF", "%00%0A%7F%FF"),
        ] {
            assert_eq!(encode(octets, Part::Path), path);
            assert_eq!(encode(octets, Part::Query), query);
        }
        assert_eq!(encode_all(b"\x01aZ\xca"), "%01%61%5A%CA");
    }
}
