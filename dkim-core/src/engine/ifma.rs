//! The engine over AWS-LC, with RSA signatures checked by arithmetic of our own: for processors with AVX-512 IFMA, on which
//! that takes a third of the time.
//!
//! It signs as AWS-LC does. Checking is nothing secret, and what DKIM needs of it is one power and one comparison: the
//! encoded message is made here and compared whole, so that there is no padding to be read (RFC 8017 section 8.2.2). What
//! is not equal, AWS-LC is asked again: a fault here could cost time, and no good signature its verdict.

use super::aws_lc::AwsLc;
use super::montgomery::{self, PublicOperation};
use super::{BadSignature, Engine, EngineError, PrivateKey, PublicKey, SigningKey, VerifyingKey};
use aws_lc_rs::digest::{SHA256, digest};

#[derive(Debug)]
pub(super) struct AwsLcIfma;

/// Whether this processor has what the engine needs.
pub(super) fn is_there() -> bool {
    montgomery::is_there()
}

impl Engine for AwsLcIfma {
    fn name(&self) -> &'static str {
        "aws-lc-ifma"
    }

    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        AwsLc.signing_key(key)
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        let aws_lc = AwsLc.verifying_key(key)?;
        let PublicKey::Rsa { modulus, exponent } = key else {
            return Ok(aws_lc);
        };
        if *exponent != EXPONENT {
            return Ok(aws_lc);
        }
        match montgomery::public_operation(modulus) {
            Some(operation) => Ok(Box::new(RsaKey {
                operation,
                octets: modulus.len(),
                aws_lc,
            })),
            None => Ok(aws_lc),
        }
    }
}

#[derive(Debug)]
struct RsaKey {
    operation: Box<dyn PublicOperation>,
    /// How long the modulus is.
    octets: usize,
    aws_lc: Box<dyn VerifyingKey>,
}

impl VerifyingKey for RsaKey {
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let mut room = [0; montgomery::LONGEST];
        let encoded = &mut room[..self.octets];
        encode(octets, encoded);
        if self.operation.yields(signature, encoded) {
            return Ok(());
        }
        self.aws_lc.verify(octets, signature)
    }
}

/// EMSA-PKCS1-v1_5 with SHA-256 (RFC 8017 section 9.2). `encoded` is as long as a modulus of at least 1024 bits, so that
/// all has room.
fn encode(octets: &[u8], encoded: &mut [u8]) {
    let hash = digest(&SHA256, octets);
    let (padding, rest) = encoded.split_at_mut(encoded.len() - DIGEST_INFO.len() - HASH_OCTETS);
    padding.fill(0xff);
    padding[..2].copy_from_slice(&[0, 1]);
    padding[padding.len() - 1] = 0;
    let (info, room) = rest.split_at_mut(DIGEST_INFO.len());
    info.copy_from_slice(&DIGEST_INFO);
    room.copy_from_slice(hash.as_ref());
}

/// What stands before a SHA-256 hash (RFC 8017 section 9.2, note 1).
const DIGEST_INFO: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

const HASH_OCTETS: usize = 32;

/// The exponent of all but every key there is: 65537, big-endian. Others are AWS-LC's.
const EXPONENT: [u8; 3] = [1, 0, 1];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::KeyType;

    /// A signature that only AWS-LC confirms passes too, but slowly: that it is confirmed here needs a test of its own.
    #[test]
    fn openssls_signatures_are_confirmed_without_aws_lc() {
        if !is_there() {
            return;
        }
        let octets = include_bytes!("../../tests/data/keys/octets");
        for (record, signature) in [
            (
                &include_bytes!("../../tests/data/keys/rsa1024.record")[..],
                &include_bytes!("../../tests/data/keys/rsa1024.sig")[..],
            ),
            (
                include_bytes!("../../tests/data/keys/rsa2048.record"),
                include_bytes!("../../tests/data/keys/rsa2048.sig"),
            ),
            (
                include_bytes!("../../tests/data/keys/rsa2050.record"),
                include_bytes!("../../tests/data/keys/rsa2050.sig"),
            ),
            (
                include_bytes!("../../tests/data/keys/rsa3072.record"),
                include_bytes!("../../tests/data/keys/rsa3072.sig"),
            ),
            (
                include_bytes!("../../tests/data/keys/rsa4096.record"),
                include_bytes!("../../tests/data/keys/rsa4096.sig"),
            ),
        ] {
            let PublicKey::Rsa { modulus, .. } =
                PublicKey::from_record(KeyType::Rsa, record).unwrap()
            else {
                panic!("an RSA key");
            };
            let mut encoded = vec![0; modulus.len()];
            encode(octets, &mut encoded);
            let operation = montgomery::public_operation(&modulus).unwrap();
            assert!(operation.yields(signature, &encoded), "{}", modulus.len());
            encode(b"other", &mut encoded);
            assert!(!operation.yields(signature, &encoded), "{}", modulus.len());
        }
    }
}
