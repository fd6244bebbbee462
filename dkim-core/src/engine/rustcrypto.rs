//! The engine over the RustCrypto crates `rsa`, `ed25519-dalek` and `sha2`: Rust alone, for builds without a C
//! compiler, and for RSA keys of 1024 bits, which AWS-LC does not sign with.
//!
//! RSA signing blinds base, exponents and moduli with the system's random numbers, and checks each signature against
//! faults; all this makes it several times slower than AWS-LC.

use super::private_key::Secret;
use super::{
    BadSignature, Engine, EngineError, KeyType, PrivateKey, PublicKey, SigningError, SigningKey,
    VerifyingKey, check_public_half, check_rsa_bits, prove,
};
use ed25519_dalek::{Signer, Verifier};
use rsa::BoxedUint;
use rsa::pkcs1::DecodeRsaPrivateKey;
use sha2::{Digest, Sha256};
use std::fmt;

#[derive(Debug)]
pub(super) struct RustCrypto;

impl Engine for RustCrypto {
    fn name(&self) -> &'static str {
        "rustcrypto"
    }

    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        let made = match key.secret() {
            Secret::Rsa { der, public } => {
                check_rsa_bits(public.bits())?;
                let key = rsa::PrivateKey::from_pkcs1_der(der).map_err(|error| {
                    EngineError(format!(
                        "RSA key is damaged or of a kind rustcrypto does not take: {error}"
                    ))
                })?;
                RustCryptoSigningKey {
                    pair: Pair::Rsa(Box::new(key)),
                    public: public.clone(),
                }
            }
            Secret::Ed25519 { seed, public } => {
                let key = Box::new(ed25519_dalek::SigningKey::from_bytes(seed));
                let public = check_public_half(key.verifying_key().as_bytes(), public.as_ref())?;
                RustCryptoSigningKey {
                    pair: Pair::Ed25519(key),
                    public,
                }
            }
        };
        prove(&made, self.verifying_key(&made.public)?.as_ref())?;
        Ok(Box::new(made))
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        match key {
            PublicKey::Rsa { modulus, exponent } => {
                check_rsa_bits(key.bits())?;
                let key = rsa::PublicKey::new(
                    BoxedUint::from_be_slice_vartime(modulus),
                    BoxedUint::from_be_slice_vartime(exponent),
                )
                .map_err(|error| {
                    EngineError(format!(
                        "public key is of a kind rustcrypto does not take: {error}"
                    ))
                })?;
                Ok(Box::new(RustCryptoVerifyingKey::Rsa(key)))
            }
            PublicKey::Ed25519(octets) => ed25519_dalek::VerifyingKey::from_bytes(octets)
                .map(|key| Box::new(RustCryptoVerifyingKey::Ed25519(key)) as Box<dyn VerifyingKey>)
                .map_err(|_| EngineError("Ed25519 public key is no point of the curve".to_owned())),
        }
    }
}

struct RustCryptoSigningKey {
    pair: Pair,
    public: PublicKey,
}

/// Both are zeroized on drop, and boxed so that moving them leaves no copy behind.
enum Pair {
    Rsa(Box<rsa::PrivateKey>),
    Ed25519(Box<ed25519_dalek::SigningKey>),
}

impl SigningKey for RustCryptoSigningKey {
    fn key_type(&self) -> KeyType {
        self.public.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        &self.public
    }

    fn engine(&self) -> &'static str {
        RustCrypto.name()
    }

    fn sign(&self, octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        match &self.pair {
            Pair::Rsa(key) => key
                .pkcs1v15_sign::<Sha256>(octets)
                .map_err(|error| SigningError(format!("rustcrypto gave no signature: {error}"))),
            Pair::Ed25519(key) => key
                .try_sign(&Sha256::digest(octets))
                .map(|signature| signature.to_vec())
                .map_err(|error| SigningError(format!("rustcrypto gave no signature: {error}"))),
        }
    }
}

impl fmt::Debug for RustCryptoSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RustCryptoSigningKey")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum RustCryptoVerifyingKey {
    Rsa(rsa::PublicKey),
    Ed25519(ed25519_dalek::VerifyingKey),
}

impl VerifyingKey for RustCryptoVerifyingKey {
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        match self {
            Self::Rsa(key) => key
                .pkcs1v15_verify::<Sha256>(octets, signature)
                .map_err(|_| BadSignature),
            // Not `verify_strict`: keys of small order were refused when the key was read, and what else it refuses
            // (a small-order R, which only the key's owner can make) RFC 8032 and the other engine accept.
            Self::Ed25519(key) => ed25519_dalek::Signature::from_slice(signature)
                .and_then(|signature| key.verify(&Sha256::digest(octets), &signature))
                .map_err(|_| BadSignature),
        }
    }
}
