//! PEM as private keys are kept in: blocks in any text (RFC 7468), read as loosely as its section 2 lets a parser be.
//!
//! Which labels are keys, and what is inside, `private_key` knows.

use super::PrivateKeyError;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use memchr::{memchr_iter, memmem};
use zeroize::Zeroizing;

/// Whether there is the beginning of a block in `octets`.
pub(super) fn is_pem(octets: &[u8]) -> bool {
    memmem::find(octets, BEGIN).is_some()
}

/// The blocks in `octets`, in order; whatever stands between them is passed over. Ends at the first fault.
pub(super) fn blocks(octets: &[u8]) -> impl Iterator<Item = Result<Block<'_>, PrivateKeyError>> {
    let mut rest = Some((octets, 1));
    std::iter::from_fn(move || {
        let (text, line) = rest.take()?;
        let begin = memmem::find(text, BEGIN)?;
        let line = line + lines(&text[..begin]);
        let block = Block::parse(&text[begin + BEGIN.len()..], line);
        Some(block.map(|(block, behind)| {
            rest = Some((behind, line + lines(block.body)));
            block
        }))
    })
}

/// One block.
pub(super) struct Block<'a> {
    /// What stands in its first line.
    pub(super) label: &'a str,
    body: &'a [u8],
    /// Its first line in the file, from 1.
    line: usize,
}

impl<'a> Block<'a> {
    /// Takes a block from what stands behind [`BEGIN`], and gives what stands behind the block.
    fn parse(text: &'a [u8], line: usize) -> Result<(Self, &'a [u8]), PrivateKeyError> {
        let label = memmem::find(
            &text[..text.len().min(MAX_LABEL_OCTETS + DASHES.len())],
            DASHES,
        )
        .and_then(|end| std::str::from_utf8(&text[..end]).ok())
        .filter(|label| label.bytes().all(|o| o.is_ascii_graphic() || o == b' '))
        .ok_or(PrivateKeyError::BadLabel { line })?;
        let text = &text[label.len() + DASHES.len()..];
        let end = format!("-----END {label}-----");
        let Some(length) = memmem::find(text, end.as_bytes()) else {
            let label = label.to_owned();
            return Err(PrivateKeyError::NoEnd { label, line });
        };
        let body = &text[..length];
        Ok((Self { label, body, line }, &text[length + end.len()..]))
    }

    /// What is inside.
    ///
    /// # Errors
    /// A body under a passphrase, or one that is not base64.
    pub(super) fn decode(&self) -> Result<Zeroizing<Vec<u8>>, PrivateKeyError> {
        // RFC 1421 headers, as OpenSSL writes them before an encrypted PKCS#1 key.
        if memmem::find(self.body, b"ENCRYPTED").is_some() {
            return Err(PrivateKeyError::Encrypted);
        }
        decode_base64(self.body).map_err(|at| match at {
            Some(offset) => PrivateKeyError::BadBase64 {
                line: self.line + lines(&self.body[..offset]),
            },
            None => PrivateKeyError::CutBase64,
        })
    }
}

/// Undoes base64, white space anywhere.
///
/// # Errors
/// Where the first octet stands that is none of base64; `None` if each is and the whole is not.
pub(super) fn decode_base64(octets: &[u8]) -> Result<Zeroizing<Vec<u8>>, Option<usize>> {
    let is_base64 = |o: u8| {
        o.is_ascii_alphanumeric() || matches!(o, b'+' | b'/' | b'=') || o.is_ascii_whitespace()
    };
    if let Some(offset) = octets.iter().position(|&o| !is_base64(o)) {
        return Err(Some(offset));
    }
    // Both sized in advance: a growing vector would leave copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(octets.len()));
    text.extend(octets.iter().filter(|o| !o.is_ascii_whitespace()));
    let mut decoded = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let length = BASE64
        .decode_slice(&text[..], &mut decoded)
        .map_err(|_| None)?;
    decoded.truncate(length);
    Ok(decoded)
}

fn lines(octets: &[u8]) -> usize {
    memchr_iter(b'\n', octets).count()
}

const BEGIN: &[u8] = b"-----BEGIN ";
const DASHES: &[u8] = b"-----";

/// Longer than any label in use.
const MAX_LABEL_OCTETS: usize = 64;

/// Padding may be left out: people copy keys into tables by hand.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_text_with_their_lines() {
        let text = b"a\n\n-----BEGIN A-----\nYWJj\n-----END A-----\n--\n-----BEGIN B C-----\n\n\n?-----END B C-----";
        let found: Vec<Block<'_>> = blocks(text).map(Result::unwrap).collect();
        let labels: Vec<&str> = found.iter().map(|block| block.label).collect();
        assert_eq!(labels, ["A", "B C"]);
        assert_eq!(&found[0].decode().unwrap()[..], b"abc");
        assert_eq!(
            found[1].decode(),
            Err(PrivateKeyError::BadBase64 { line: 10 })
        );
    }

    #[test]
    fn the_first_fault_ends_the_search() {
        for (text, fault) in [
            (
                "-----BEGIN A-----\n-----BEGIN B-----\n-----END B-----",
                "BEGIN A-----\" without",
            ),
            (
                "\n-----BEGIN A\n-----END A-----",
                "line 2: \"-----BEGIN\" without a label",
            ),
        ] {
            let mut blocks = blocks(text.as_bytes());
            let error = blocks
                .next()
                .unwrap()
                .map(|block| block.label)
                .unwrap_err()
                .to_string();
            assert!(error.contains(fault), "{error}");
            assert!(blocks.next().is_none());
        }
    }

    #[test]
    fn base64_is_read_in_any_layout_and_strictly() {
        for (text, octets) in [
            ("YWJj", &b"abc"[..]),
            (" Y\r\nW J\tj\n", b"abc"),
            ("YQ==", b"a"),
            ("YQ", b"a"),
            ("", b""),
        ] {
            assert_eq!(
                decode_base64(text.as_bytes())
                    .as_ref()
                    .map(|found| &found[..]),
                Ok(octets),
                "{text}"
            );
        }
        for (text, fault) in [
            ("YW*j", Some(2)),
            ("YWJj-", Some(4)),
            ("Y", None),
            ("YQ==YQ==", None),
            ("YR==", None),
        ] {
            assert_eq!(decode_base64(text.as_bytes()), Err(fault), "{text}");
        }
    }
}
