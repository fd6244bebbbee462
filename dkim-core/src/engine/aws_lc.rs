//! The engine over AWS-LC: the fastest of those at hand, in constant time, written in C and assembly.
//!
//! It signs with RSA keys of 2048 to 8192 bits and checks those of 1024 to 8192. Shorter ones are left to the
//! `rustcrypto` engine, as this library does not sign with them.

use super::private_key::Secret;
use super::{
    BadSignature, Engine, EngineError, KeyType, PrivateKey, PublicKey, SigningError, SigningKey,
    VerifyingKey, check_public_half, check_rsa_bits, prove,
};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ED25519, Ed25519KeyPair, KeyPair as _, ParsedPublicKey,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_SHA256, RsaKeyPair,
};
use std::fmt;

#[derive(Debug)]
pub(super) struct AwsLc;

impl Engine for AwsLc {
    fn name(&self) -> &'static str {
        "aws-lc"
    }

    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        let made = match key.secret() {
            Secret::Rsa { der, public } => {
                check_rsa_bits(public.bits())?;
                if public.bits() < SHORTEST_SIGNING_BITS {
                    return Err(EngineError(format!(
                        "aws-lc does not sign with RSA keys below {SHORTEST_SIGNING_BITS} bits, and this one has {}; \
                         the rustcrypto engine does",
                        public.bits()
                    )));
                }
                let pair = RsaKeyPair::from_der(der).map_err(|rejected| {
                    EngineError(format!(
                        "RSA key is damaged or of a kind aws-lc does not take: {rejected}"
                    ))
                })?;
                AwsLcSigningKey {
                    pair: Pair::Rsa(pair),
                    public: public.clone(),
                }
            }
            Secret::Ed25519 { seed, public } => {
                let pair = Ed25519KeyPair::from_seed_unchecked(&seed[..]).map_err(|rejected| {
                    EngineError(format!("Ed25519 key is damaged: {rejected}"))
                })?;
                let public = check_public_half(pair.public_key().as_ref(), public.as_ref())?;
                AwsLcSigningKey {
                    pair: Pair::Ed25519(pair),
                    public,
                }
            }
        };
        prove(&made, self.verifying_key(&made.public)?.as_ref())?;
        Ok(Box::new(made))
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        let parsed = match key {
            PublicKey::Rsa { .. } => {
                check_rsa_bits(key.bits())?;
                ParsedPublicKey::new(
                    &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
                    key.to_record(),
                )
            }
            PublicKey::Ed25519(octets) => ParsedPublicKey::new(&ED25519, octets),
        }
        .map_err(|rejected| {
            EngineError(format!(
                "public key is of a kind aws-lc does not take: {rejected}"
            ))
        })?;
        Ok(Box::new(AwsLcVerifyingKey {
            parsed,
            key_type: key.key_type(),
        }))
    }
}

struct AwsLcSigningKey {
    pair: Pair,
    public: PublicKey,
}

/// AWS-LC wipes both when they are freed.
enum Pair {
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey for AwsLcSigningKey {
    fn key_type(&self) -> KeyType {
        self.public.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        &self.public
    }

    fn engine(&self) -> &'static str {
        AwsLc.name()
    }

    fn sign(&self, octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                // The generator is asked for by the signature and not used: AWS-LC blinds by its own.
                pair.sign(
                    &RSA_PKCS1_SHA256,
                    &SystemRandom::new(),
                    octets,
                    &mut signature,
                )
                .map(|()| signature)
            }
            Pair::Ed25519(pair) => pair
                .try_sign(digest(&SHA256, octets).as_ref())
                .map(|signature| signature.as_ref().to_vec()),
        }
        .map_err(|_| SigningError("aws-lc gave no signature and no reason".to_owned()))
    }
}

impl fmt::Debug for AwsLcSigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsLcSigningKey")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct AwsLcVerifyingKey {
    parsed: ParsedPublicKey,
    key_type: KeyType,
}

impl VerifyingKey for AwsLcVerifyingKey {
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        match self.key_type {
            KeyType::Rsa => self.parsed.verify_sig(octets, signature),
            KeyType::Ed25519 => self
                .parsed
                .verify_sig(digest(&SHA256, octets).as_ref(), signature),
        }
        .map_err(|_| BadSignature)
    }
}

/// A rule of aws-lc-rs, not of DKIM.
const SHORTEST_SIGNING_BITS: u32 = 2048;
