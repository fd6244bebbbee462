//! The key pairs of the token: read from PEM, signing as a token does, and their public halves.
//!
//! Mechanisms are checked where operations begin; here is arithmetic only, and all of it is aws-lc's.

use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    Ed25519KeyPair, KeyPair, ParsedPublicKey, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};

/// A key pair the token holds.
pub(crate) enum Key {
    /// Of RSA, 2048 bits or more, as aws-lc wants it.
    Rsa(RsaKeyPair),
    /// Of Ed25519.
    Ed25519(Ed25519KeyPair),
}

impl Key {
    /// Reads an unencrypted PKCS#8 key in PEM; `None` for anything else.
    pub(crate) fn from_pem(pem: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(pem).ok()?;
        let inner = text.split("-----BEGIN PRIVATE KEY-----").nth(1)?;
        let inner = inner.split("-----END PRIVATE KEY-----").next()?;
        let inner: String = inner.split_whitespace().collect();
        let der = BASE64_STANDARD.decode(inner).ok()?;
        match RsaKeyPair::from_pkcs8(&der) {
            Ok(pair) => Some(Self::Rsa(pair)),
            Err(_) => Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der)
                .ok()
                .map(Self::Ed25519),
        }
    }

    /// The second key of this crate: what `second_key`, `second_token` and `wrong_public` show. The same everywhere,
    /// so that several processes agree on it.
    pub(crate) fn other() -> Option<Arc<Self>> {
        static OTHER: OnceLock<Option<Arc<Key>>> = OnceLock::new();
        OTHER
            .get_or_init(|| Key::from_pem(include_bytes!("other_key.pem")).map(Arc::new))
            .clone()
    }

    /// Octets that a signature has.
    pub(crate) fn signature_length(&self) -> usize {
        match self {
            Self::Rsa(pair) => pair.public_modulus_len(),
            Self::Ed25519(_) => 64,
        }
    }

    /// RSASSA-PKCS1-v1_5 over a SHA-256 value; `None` if this is no RSA key.
    pub(crate) fn sign_sha256(&self, value: &[u8]) -> Option<Vec<u8>> {
        let Self::Rsa(pair) = self else { return None };
        let value = Digest::import_less_safe(value, &digest::SHA256).ok()?;
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign_digest(&RSA_PKCS1_SHA256, &value, &mut signature)
            .ok()?;
        Some(signature)
    }

    /// The same, over a message.
    pub(crate) fn sign_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(
                    &RSA_PKCS1_SHA256,
                    &SystemRandom::new(),
                    message,
                    &mut signature,
                )
                .ok()?;
                Some(signature)
            }
            Self::Ed25519(pair) => Some(pair.try_sign(message).ok()?.as_ref().to_vec()),
        }
    }

    /// Modulus and public exponent, big-endian without leading zeros.
    pub(crate) fn rsa_numbers(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let Self::Rsa(pair) = self else { return None };
        let sequence = element(pair.public_key().as_ref(), 0x30)?.0;
        let (modulus, rest) = element(sequence, 0x02)?;
        let (exponent, _) = element(rest, 0x02)?;
        Some((unsigned(modulus), unsigned(exponent)))
    }

    /// The 32 octets of an Ed25519 public key.
    pub(crate) fn ed25519_public(&self) -> Option<Vec<u8>> {
        let Self::Ed25519(pair) = self else {
            return None;
        };
        Some(pair.public_key().as_ref().to_vec())
    }

    /// The public key as SubjectPublicKeyInfo (RFC 5280).
    pub(crate) fn spki(&self) -> Option<Vec<u8>> {
        let der: PublicKeyX509Der<'_> = match self {
            Self::Rsa(pair) => pair.public_key().as_der().ok()?,
            Self::Ed25519(pair) => pair.public_key().as_der().ok()?,
        };
        Some(der.as_ref().to_vec())
    }
}

/// A public RSA key to verify with, from its numbers.
pub(crate) fn rsa_verifier(modulus: &[u8], exponent: &[u8]) -> Option<ParsedPublicKey> {
    let components = RsaPublicKeyComponents {
        n: unsigned(modulus),
        e: unsigned(exponent),
    };
    components
        .to_parsed_public_key(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
        .ok()
}

/// The SHA-256 value in a DigestInfo (RFC 8017 section 9.2); `None` for any other data.
pub(crate) fn sha256_of_digest_info(data: &[u8]) -> Option<&[u8]> {
    data.strip_prefix(SHA256_DIGEST_INFO)
        .filter(|value| value.len() == 32)
}

/// What stands before the 32 octets (RFC 8017 section 9.2, note 1).
const SHA256_DIGEST_INFO: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

/// The content of the DER element at the start of `octets`, if it has this tag, and what follows it.
fn element(octets: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = octets.split_first()?;
    let (&short, rest) = rest.split_first()?;
    if first != tag {
        return None;
    }
    let (length, rest) = match short {
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => (
            usize::from(*rest.first()?) << 8 | usize::from(*rest.get(1)?),
            rest.get(2..)?,
        ),
        0..=0x7f => (usize::from(short), rest),
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// A number without the zeros before it.
fn unsigned(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|&&octet| octet == 0).count();
    number[zeros..].to_vec()
}
