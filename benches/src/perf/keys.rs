//! The key that all threads share: from a file, or made at start.

use super::error::PerfError;
use super::options::KeySource;
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::Ed25519KeyPair;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dkim_core::engine::{Engine, KeyType, PrivateKey, PublicKey, SigningKey, signing_key};
use dkim_core::signature::algorithm_name;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A key, in the forms that are needed.
#[derive(Debug)]
pub(super) struct Key {
    /// The private key as PEM, for parsing it anew; `None` of a key that is in a token.
    pub pem: Option<Zeroizing<String>>,
    /// The same, ready.
    pub ready: Arc<dyn SigningKey>,
    /// The text of the key record.
    pub record: String,
}

impl Key {
    /// Reads or makes the key, of `key_type` if one is asked for, and makes it ready with `engine`, or with the first
    /// engine that takes it.
    ///
    /// # Errors
    /// A file that cannot be read or holds no such key, and a key that the engine does not take.
    pub(super) fn get(
        source: &KeySource,
        key_type: Option<KeyType>,
        engine: Option<&dyn Engine>,
    ) -> Result<Self, PerfError> {
        let key = match source {
            KeySource::File(path) => read(path, key_type)?,
            KeySource::Made { bits } => make(key_type.unwrap_or(KeyType::Rsa), *bits)?,
        };
        let ready = match engine {
            Some(engine) => engine.signing_key(&key)?,
            None => signing_key(&key)?,
        };
        Ok(Self {
            pem: Some(key.to_pkcs8_pem()),
            record: record(ready.public_key()),
            ready: ready.into(),
        })
    }

    /// The name in `a=` of what it makes.
    pub(super) fn algorithm(&self) -> &'static str {
        algorithm_name(self.ready.key_type())
    }

    /// Its size in bits.
    pub(super) fn bits(&self) -> u32 {
        self.ready.public_key().bits()
    }
}

fn read(path: &Path, wanted: Option<KeyType>) -> Result<PrivateKey, PerfError> {
    let octets = fs::read(path).map_err(|source| PerfError::KeyFile {
        path: path.to_owned(),
        source,
    })?;
    let key =
        PrivateKey::from_octets(&Zeroizing::new(octets)).map_err(|source| PerfError::Key {
            path: path.to_owned(),
            source,
        })?;
    match wanted {
        Some(wanted) if wanted != key.key_type() => Err(PerfError::KeyType {
            path: path.to_owned(),
            found: key.key_type(),
            wanted,
        }),
        _ => Ok(key),
    }
}

fn make(key_type: KeyType, bits: Option<u32>) -> Result<PrivateKey, PerfError> {
    let failed = |_| PerfError::KeyNotMade("aws-lc gave none, and no reason".to_owned());
    let der = match (key_type, bits.unwrap_or(2048)) {
        (KeyType::Ed25519, _) => Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(failed)?
            .as_ref()
            .to_vec(),
        // AWS-LC makes none this short.
        (KeyType::Rsa, 1024) => RSA_1024_PEM.to_vec(),
        (KeyType::Rsa, bits) => {
            let size = match bits {
                2048 => KeySize::Rsa2048,
                3072 => KeySize::Rsa3072,
                4096 => KeySize::Rsa4096,
                other => {
                    return Err(PerfError::KeyNotMade(format!(
                        "RSA keys have 1024, 2048, 3072 or 4096 bits here, not {other}"
                    )));
                }
            };
            let pair = KeyPair::generate(size).map_err(failed)?;
            pair.as_der().map_err(failed)?.as_ref().to_vec()
        }
    };
    PrivateKey::from_octets(&Zeroizing::new(der))
        .map_err(|error| PerfError::KeyNotMade(error.to_string()))
}

/// A private RSA key of 1024 bits, made for tests.
const RSA_1024_PEM: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/rsa1024.pem");

/// The text of the key record for `key`.
pub(super) fn record(key: &PublicKey) -> String {
    let kind = match key.key_type() {
        KeyType::Rsa => "rsa",
        KeyType::Ed25519 => "ed25519",
    };
    format!("v=DKIM1; k={kind}; p={}", STANDARD.encode(key.to_record()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::engine::engine_by_name;

    #[test]
    fn keys_that_are_made_have_the_kind_and_size_asked_for() {
        let made = |key_type, bits| make(key_type, bits).map(|key| (key.key_type(), key.bits()));
        assert_eq!(made(KeyType::Rsa, None).unwrap(), (KeyType::Rsa, 2048));
        assert_eq!(
            made(KeyType::Rsa, Some(1024)).unwrap(),
            (KeyType::Rsa, 1024)
        );
        assert_eq!(
            made(KeyType::Ed25519, None).unwrap(),
            (KeyType::Ed25519, 256)
        );
        assert!(made(KeyType::Rsa, Some(1000)).is_err());
    }

    #[test]
    fn a_key_that_one_engine_refuses_another_may_take() {
        let source = KeySource::Made { bits: Some(1024) };
        let aws_lc = engine_by_name("aws-lc");
        assert!(matches!(
            Key::get(&source, None, aws_lc),
            Err(PerfError::Engine(_))
        ));
        assert_eq!(Key::get(&source, None, None).unwrap().bits(), 1024);
    }

    #[test]
    fn a_key_file_decides_the_algorithm_unless_it_contradicts() {
        let engine = engine_by_name("rustcrypto");
        let file = |name: &str| {
            let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/../dkim-core/tests/data/keys/");
            KeySource::File(format!("{keys}{name}").into())
        };
        let key = Key::get(&file("ed25519.pem"), None, engine).unwrap();
        assert_eq!((key.algorithm(), key.bits()), ("ed25519-sha256", 256));
        assert!(matches!(
            Key::get(&file("ed25519.pem"), Some(KeyType::Rsa), engine),
            Err(PerfError::KeyType { .. })
        ));
        assert!(matches!(
            Key::get(&file("public.pem"), None, engine),
            Err(PerfError::Key { .. })
        ));
        assert!(matches!(
            Key::get(&file("none.pem"), None, engine),
            Err(PerfError::KeyFile { .. })
        ));
    }

    #[test]
    fn the_record_holds_the_public_half_as_openssl_writes_it() {
        let engine = engine_by_name("aws-lc").unwrap();
        let key = PrivateKey::from_octets(crate::workload::RSA_2048_PEM).unwrap();
        let text = record(engine.signing_key(&key).unwrap().public_key());
        let p = text.strip_prefix("v=DKIM1; k=rsa; p=").unwrap();
        let spki = include_bytes!("../../../dkim-core/tests/data/keys/rsa2048.record");
        assert_eq!(STANDARD.decode(p).unwrap(), spki);
    }
}
