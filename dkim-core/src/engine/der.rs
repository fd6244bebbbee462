//! The little DER both key readers share: the outermost SEQUENCE, told apart from its damaged forms.
//!
//! What stands inside is read by `pkcs1` and `pkcs8`; which kind of key it is, by `public_key` and `private_key`.

use pkcs8::der::asn1::AnyRef;
use pkcs8::der::{Decode, Header, Reader, SliceReader, Tag};

/// The elements directly inside the SEQUENCE that `octets` are, in order; nothing is copied.
///
/// # Errors
/// Octets that are no SEQUENCE, more or fewer than it says, or whose elements cannot be told apart.
pub(super) fn elements(octets: &[u8]) -> Result<Vec<AnyRef<'_>>, SequenceFault> {
    let mut reader = SliceReader::new(octets).map_err(|_| SequenceFault::NotSequence)?;
    let header = Header::decode(&mut reader).map_err(|_| SequenceFault::NotSequence)?;
    if header.tag() != Tag::Sequence {
        return Err(SequenceFault::NotSequence);
    }
    let (says, holds) = (
        u32::from(header.length()),
        u32::from(reader.remaining_len()),
    );
    if says > holds {
        return Err(SequenceFault::Truncated {
            missing: says - holds,
        });
    }
    if says < holds {
        return Err(SequenceFault::Trailing {
            extra: holds - says,
        });
    }
    let mut elements = Vec::new();
    while !reader.is_finished() {
        if elements.len() == MAX_ELEMENTS {
            return Err(SequenceFault::Damaged);
        }
        elements.push(AnyRef::decode(&mut reader).map_err(|_| SequenceFault::Damaged)?);
    }
    Ok(elements)
}

/// What keeps octets from being one SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceFault {
    /// They do not begin with one.
    NotSequence,
    /// It goes on behind the last octet.
    Truncated {
        /// How many octets are missing.
        missing: u32,
    },
    /// It ends before the last octet.
    Trailing {
        /// How many octets are too many.
        extra: u32,
    },
    /// An element inside is not DER.
    Damaged,
}

/// The longest of the structures looked for, RSAPrivateKey, has ten.
const MAX_ELEMENTS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_taken_whole_or_its_fault_is_told() {
        assert_eq!(elements(b"\x30\x00").unwrap(), []);
        let tags = elements(b"\x30\x05\x02\x01\x07\x05\x00").unwrap();
        assert_eq!(
            tags.iter().map(|e| e.header().tag()).collect::<Vec<_>>(),
            [Tag::Integer, Tag::Null]
        );
        let many = [&b"\x30\x16"[..], &[5, 0].repeat(11)].concat();
        for (octets, fault) in [
            (&b""[..], SequenceFault::NotSequence),
            (b"\x02\x01\x07", SequenceFault::NotSequence),
            (b"\x30", SequenceFault::NotSequence),
            (b"\x30\x80\x00\x00", SequenceFault::NotSequence),
            (
                b"\x30\x05\x02\x01\x07",
                SequenceFault::Truncated { missing: 2 },
            ),
            (
                b"\x30\x03\x02\x01\x07\x05\x00",
                SequenceFault::Trailing { extra: 2 },
            ),
            (b"\x30\x03\x02\x02\x07", SequenceFault::Damaged),
            (&many, SequenceFault::Damaged),
        ] {
            assert_eq!(elements(octets).unwrap_err(), fault, "{octets:02x?}");
        }
    }
}
