//! One signature verified, or some octets hashed, by calls of one session: what those calls are. `on_token` makes them in
//! this process for benchmarks, `worker` for mail; what becomes of a call that fails is for them.
//!
//! The public key is brought to the token as an object of the session, and taken out again.

use cryptoki::context::{Function, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::{Mechanism, MechanismInfo, MechanismType};
use cryptoki::object::{Attribute, KeyType as TokenKeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session;
use cryptoki::slot::Slot;
use dkim_core::engine::{KeyType, PublicKey};
use sha2::{Digest, Sha256};

use crate::key::DIGEST_INFO;
use crate::uri::MechanismChoice;

/// How a token is asked about the signatures of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    mechanism: Asked,
    /// Who hashes the header, where the mechanism does not.
    header: HeaderBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// CKM_RSA_PKCS over the DigestInfo.
    RsaPkcs,
    /// CKM_SHA256_RSA_PKCS: the token hashes the header.
    Sha256RsaPkcs,
    /// CKM_EDDSA over the digest.
    Eddsa,
}

/// Who hashes the octets that were signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderBy {
    /// We, and the token gets the digest: the cheaper way.
    Software,
    /// The token, by the mechanism or by C_Digest: the way for who must.
    Token,
}

impl Method {
    /// How the token in `slot` is asked about signatures of `key`, if it can be.
    ///
    /// # Errors
    /// It does not tell: a token that is gone has every mechanism, as soon as it is back.
    pub(crate) fn of(
        context: &Pkcs11,
        slot: Slot,
        key: &PublicKey,
        choice: MechanismChoice,
        header: HeaderBy,
    ) -> Result<Option<Self>, Error> {
        let bits = key.bits() as usize;
        let has = |mechanism| -> Result<bool, Error> {
            let info = info(context, slot, mechanism)?;
            Ok(info.is_some_and(|info| {
                // Sizes of curves are not told alike.
                info.verify()
                    && (mechanism == MechanismType::EDDSA
                        || info.min_key_size() <= bits
                            && (bits <= info.max_key_size() || info.max_key_size() == 0))
            }))
        };
        // Who names the mechanism that does not hash has it hashed here.
        let header = match choice {
            MechanismChoice::RsaPkcs => HeaderBy::Software,
            MechanismChoice::Auto | MechanismChoice::Sha256RsaPkcs => header,
        };
        let by_digest = |mechanism| -> Result<bool, Error> {
            Ok(has(mechanism)? && (header == HeaderBy::Software || digests(context, slot)?))
        };
        let asked = match key.key_type() {
            KeyType::Ed25519 => vec![Asked::Eddsa],
            KeyType::Rsa => match (choice, header) {
                (MechanismChoice::Auto, HeaderBy::Software) => {
                    vec![Asked::RsaPkcs, Asked::Sha256RsaPkcs]
                }
                (MechanismChoice::Auto, HeaderBy::Token) => {
                    vec![Asked::Sha256RsaPkcs, Asked::RsaPkcs]
                }
                (MechanismChoice::RsaPkcs, _) => vec![Asked::RsaPkcs],
                (MechanismChoice::Sha256RsaPkcs, _) => vec![Asked::Sha256RsaPkcs],
            },
        };
        for mechanism in asked {
            let is_there = match mechanism {
                Asked::RsaPkcs => by_digest(MechanismType::RSA_PKCS)?,
                Asked::Sha256RsaPkcs => has(MechanismType::SHA256_RSA_PKCS)?,
                Asked::Eddsa => by_digest(MechanismType::EDDSA)?,
            };
            if is_there {
                return Ok(Some(Self { mechanism, header }));
            }
        }
        Ok(None)
    }

    /// Whether `signature` is that of `key`, which is an object already.
    pub(crate) fn ask(
        self,
        session: &Session,
        key: ObjectHandle,
        octets: &[u8],
        signature: &[u8],
    ) -> Result<bool, Error> {
        let digest = || match self.header {
            HeaderBy::Software => Ok(Sha256::digest(octets).to_vec()),
            HeaderBy::Token => session.digest(&Mechanism::Sha256, octets),
        };
        let answer = match self.mechanism {
            Asked::RsaPkcs => {
                let info = [DIGEST_INFO, &digest()?].concat();
                session.verify(&Mechanism::RsaPkcs, key, &info, signature)
            }
            Asked::Sha256RsaPkcs => {
                session.verify(&Mechanism::Sha256RsaPkcs, key, octets, signature)
            }
            Asked::Eddsa => {
                let params = EddsaParams::new(EddsaSignatureScheme::Pure);
                session.verify(&Mechanism::Eddsa(params), key, &digest()?, signature)
            }
        };
        match answer {
            Ok(()) => Ok(true),
            Err(error) if says_bad(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the token in `slot` computes SHA-256.
///
/// # Errors
/// It does not tell.
pub(crate) fn digests(context: &Pkcs11, slot: Slot) -> Result<bool, Error> {
    let info = info(context, slot, MechanismType::SHA256)?;
    Ok(info.is_some_and(|info| info.digest()))
}

/// What the token says of a mechanism, if it has it.
fn info(
    context: &Pkcs11,
    slot: Slot,
    mechanism: MechanismType,
) -> Result<Option<MechanismInfo>, Error> {
    match context.get_mechanism_info(slot, mechanism) {
        Ok(info) => Ok(Some(info)),
        Err(Error::Pkcs11(RvError::MechanismInvalid, _)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a token is said not to do.
pub(crate) fn kind_of(key: &PublicKey) -> String {
    match key.key_type() {
        KeyType::Ed25519 => "Ed25519".to_owned(),
        KeyType::Rsa => format!("RSA of {} bits", key.bits()),
    }
}

/// Makes `key` an object of `session`, with which it goes.
pub(crate) fn import(session: &Session, key: &PublicKey) -> Result<ObjectHandle, Error> {
    let mut outcome = Err(Error::NullFunctionPointer);
    // At least one form is tried.
    for numbers in numbers(key) {
        let mut template = vec![
            Attribute::Class(ObjectClass::PUBLIC_KEY),
            Attribute::Token(false),
            Attribute::Private(false),
            Attribute::Verify(true),
        ];
        template.extend(numbers);
        outcome = session.create_object(&template);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// What tells one key from another, in the forms that tokens take, the usual one first.
fn numbers(key: &PublicKey) -> Vec<Vec<Attribute>> {
    match key {
        PublicKey::Rsa {
            modulus, exponent, ..
        } => vec![vec![
            Attribute::KeyType(TokenKeyType::RSA),
            Attribute::Modulus(modulus.clone()),
            Attribute::PublicExponent(exponent.clone()),
        ]],
        ed25519 => [CURVE_BY_NAME, CURVE_BY_NUMBER]
            .iter()
            .map(|curve| {
                vec![
                    Attribute::KeyType(TokenKeyType::EC_EDWARDS),
                    Attribute::EcParams(curve.to_vec()),
                    // An OCTET STRING in DER.
                    Attribute::EcPoint([&[4, 32], &ed25519.to_record()[..]].concat()),
                ]
            })
            .collect(),
    }
}

/// Whether it is the signature's fault.
fn says_bad(error: &Error) -> bool {
    matches!(
        error,
        Error::Pkcs11(
            RvError::SignatureInvalid | RvError::SignatureLenRange,
            Function::Verify
        )
    )
}

/// What a token is asked to see whether it verifies: a signature made by OpenSSL with a key that nobody has any more.
pub(crate) struct KnownAnswer {
    pub(crate) key: PublicKey,
    pub(crate) good: Vec<u8>,
    /// The same with one octet changed.
    pub(crate) bad: Vec<u8>,
}

impl KnownAnswer {
    /// The octets that were signed.
    pub(crate) const OCTETS: &[u8] = b"a signature to see whether the token verifies";

    /// Nothing, if what was built in is damaged.
    pub(crate) fn new() -> Option<Self> {
        let good = include_bytes!("known-answer/signature").to_vec();
        let mut bad = good.clone();
        *bad.last_mut()? ^= 1;
        let record = include_bytes!("known-answer/key");
        let key = PublicKey::from_record(KeyType::Rsa, record).ok()?;
        Some(Self { key, good, bad })
    }
}

/// CKA_EC_PARAMS of Ed25519: the PrintableString "edwards25519" (PKCS#11 3.0), or the OBJECT IDENTIFIER of RFC 8410.
const CURVE_BY_NAME: &[u8] = b"\x13\x0cedwards25519";
const CURVE_BY_NUMBER: &[u8] = b"\x06\x03\x2b\x65\x70";

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::engine::engines;

    #[test]
    fn the_known_answer_is_that_of_every_engine() {
        let known = KnownAnswer::new().unwrap();
        for engine in engines() {
            let key = engine.verifying_key(&known.key).unwrap();
            assert!(key.verify(KnownAnswer::OCTETS, &known.good).is_ok());
            assert!(key.verify(KnownAnswer::OCTETS, &known.bad).is_err());
        }
    }
}
