//! New private keys, of the system's random numbers.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::Ed25519KeyPair;
use dkim_core::engine::{KeyType, PrivateKey, PrivateKeyError};
use zeroize::Zeroizing;

/// Makes a key: an RSA key of `bits`, or an Ed25519 key.
///
/// # Errors
/// A size that is not made.
pub(super) fn new_key(key_type: KeyType, bits: u32) -> Result<PrivateKey, NewKeyError> {
    let octets = Zeroizing::new(match key_type {
        KeyType::Ed25519 => Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())?
            .as_ref()
            .to_vec(),
        KeyType::Rsa => {
            let size = match bits {
                2048 => KeySize::Rsa2048,
                3072 => KeySize::Rsa3072,
                4096 => KeySize::Rsa4096,
                bits => return Err(NewKeyError::Size { bits }),
            };
            KeyPair::generate(size)?.as_der()?.as_ref().to_vec()
        }
    });
    Ok(PrivateKey::from_octets(&octets)?)
}

/// Why there is no new key.
#[derive(Debug, thiserror::Error)]
pub enum NewKeyError {
    /// A size that is not made.
    #[error(
        "RSA keys of {bits} bits are not made here: 2048 are right for mail, 3072 and 4096 can be had (RFC 8301 section 3.2)"
    )]
    Size {
        /// The size asked for.
        bits: u32,
    },
    /// The library failed, and says no more.
    #[error("AWS-LC made no key, and gives no reason")]
    Failed,
    /// What it made cannot be read.
    #[error("AWS-LC made a key that cannot be read: {0}")]
    Unread(#[from] PrivateKeyError),
}

impl From<Unspecified> for NewKeyError {
    fn from(_: Unspecified) -> Self {
        Self::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_kind_and_size_asked_for() {
        for (key_type, bits, made) in [(KeyType::Rsa, 2048, 2048), (KeyType::Ed25519, 0, 256)] {
            let key = new_key(key_type, bits).unwrap();
            assert_eq!((key.key_type(), key.bits()), (key_type, made));
        }
        for bits in [0, 512, 1024, 2047, 16384] {
            assert!(matches!(
                new_key(KeyType::Rsa, bits),
                Err(NewKeyError::Size { .. })
            ));
        }
    }
}
