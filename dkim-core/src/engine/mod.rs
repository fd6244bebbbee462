//! The seam for keys: what can sign and what can check, whoever does it.
//!
//! An [`Engine`] turns key material into keys; a [`SigningKey`] may as well live in a token. Both take the
//! canonicalized header octets that RFC 6376 section 3.7 calls the data hash's input, and do the hashing
//! themselves, because some tokens insist on it. A new engine is one file here and one line in [`engines`].

#[cfg(feature = "aws-lc")]
mod aws_lc;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod der;
#[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
mod ifma;
#[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
mod montgomery;
mod pem;
mod private_key;
mod public_key;
#[cfg(feature = "rustcrypto")]
mod rustcrypto;

pub use private_key::{MAX_KEY_OCTETS, PrivateKey, PrivateKeyError};
pub use public_key::{PublicKey, PublicKeyError};

use std::fmt::{self, Debug};
use std::time::Duration;

#[cfg(not(any(feature = "aws-lc", feature = "rustcrypto")))]
compile_error!("dkim-core needs an engine: turn on the feature \"aws-lc\" or \"rustcrypto\"");

/// The engines built in that this processor can run, the default one first.
pub fn engines() -> &'static [&'static dyn Engine] {
    #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
    if ifma::is_there() {
        return &[
            &ifma::AwsLcIfma,
            &aws_lc::AwsLc,
            #[cfg(feature = "rustcrypto")]
            &rustcrypto::RustCrypto,
        ];
    }
    &[
        #[cfg(feature = "aws-lc")]
        &aws_lc::AwsLc,
        #[cfg(feature = "rustcrypto")]
        &rustcrypto::RustCrypto,
    ]
}

/// The engine to use where nobody chose one.
pub fn default_engine() -> &'static dyn Engine {
    // There is one: the build fails without.
    engines()[0]
}

/// The engine of that name, if it is built in.
pub fn engine_by_name(name: &str) -> Option<&'static dyn Engine> {
    engines()
        .iter()
        .copied()
        .find(|engine| engine.name() == name)
}

/// Makes `key` ready to sign by the first of [`engines`] that can: the default one signs with no RSA key below 2048
/// bits, and such keys are still in use.
///
/// # Errors
/// What each engine said, when none can.
pub fn signing_key(key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
    let mut reasons: Vec<String> = Vec::new();
    for engine in engines() {
        match engine.signing_key(key) {
            Ok(made) => return Ok(made),
            Err(EngineError(reason)) if reasons.contains(&reason) => {}
            Err(EngineError(reason)) => reasons.push(reason),
        }
    }
    Err(EngineError(reasons.join("; ")))
}

/// The kind of a key, which with SHA-256 makes the signing algorithm (RFC 6376 section 3.3, RFC 8463 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// `rsa`: RSASSA-PKCS1-v1_5 over SHA-256.
    Rsa,
    /// `ed25519`: PureEdDSA over the SHA-256 digest.
    Ed25519,
}

/// A private key that is ready to sign. Shared between threads.
pub trait SigningKey: Send + Sync + Debug {
    /// What kind of key it is.
    fn key_type(&self) -> KeyType;

    /// Its public half, as it belongs into the key record.
    fn public_key(&self) -> &PublicKey;

    /// Who signs with it, in output: the name of its engine, or of what else has the key.
    fn engine(&self) -> &'static str {
        "other"
    }

    /// Signs `octets`: SHA-256, then RSASSA-PKCS1-v1_5 (RFC 8017 section 8.2) or Ed25519 over the digest (RFC 8463
    /// section 3).
    ///
    /// # Errors
    /// The engine's reason, in a sentence that holds no secret.
    fn sign(&self, octets: &[u8]) -> Result<Vec<u8>, SigningError>;

    /// Takes `octets` to be signed, and gives the result to `completion`: at once, or later and from any thread. After
    /// `within` nobody waits for it any more, so that what is still in a queue then need not be done.
    ///
    /// This is for keys that wait for a device, and for engines that sign for several messages in one go: they keep what
    /// is submitted and return. By default it is signed here and now, as software keys do best one at a time.
    fn submit(&self, octets: Vec<u8>, within: Duration, completion: Completion) {
        let _ = within;
        completion.complete(self.sign(&octets));
    }
}

/// Where the result of [`SigningKey::submit`] goes. One that is dropped unused reports a failure, so that every
/// submission has an end.
pub struct Completion(Option<Receiver>);

type Receiver = Box<dyn FnOnce(Result<Vec<u8>, SigningError>) + Send>;

impl Completion {
    /// `receiver` is called once, with the result, on the thread that completes or drops this.
    pub fn new(receiver: impl FnOnce(Result<Vec<u8>, SigningError>) + Send + 'static) -> Self {
        Self(Some(Box::new(receiver)))
    }

    /// Hands the result over.
    pub fn complete(mut self, result: Result<Vec<u8>, SigningError>) {
        if let Some(receiver) = self.0.take() {
            receiver(result);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(receiver) = self.0.take() {
            receiver(Err(SigningError(
                "engine gave neither a signature nor a reason".to_owned(),
            )));
        }
    }
}

impl Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

/// A public key that is ready to check signatures. Shared between threads.
pub trait VerifyingKey: Send + Sync + Debug {
    /// Whether `signature` is this key's over `octets`; the counterpart of [`SigningKey::sign`].
    ///
    /// # Errors
    /// [`BadSignature`] for every signature that is not exactly right, whatever its length.
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature>;
}

/// A provider of keys.
pub trait Engine: Send + Sync + Debug {
    /// Its name in options and output: `aws-lc`, `rustcrypto`.
    fn name(&self) -> &'static str;

    /// Makes `key` ready to sign and proves it once by a signature that is checked.
    ///
    /// # Errors
    /// Keys that the engine cannot use, or that fail the proof.
    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError>;

    /// Makes `key` ready to check signatures.
    ///
    /// # Errors
    /// Keys that the engine cannot use.
    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError>;
}

/// The signature does not belong to the octets and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("signature did not verify")]
pub struct BadSignature;

/// Why an engine gave no signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SigningError(pub String);

/// Why an engine cannot use a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// Refuses RSA keys no engine is to use: too short to be safe, or longer than the libraries take.
fn check_rsa_bits(bits: u32) -> Result<(), EngineError> {
    match bits {
        ..SHORTEST_RSA_BITS => Err(EngineError(format!(
            "RSA key of {bits} bits is too short: at least {SHORTEST_RSA_BITS} are needed (RFC 8301 section 3.2)"
        ))),
        SHORTEST_RSA_BITS..=LONGEST_RSA_BITS => Ok(()),
        _ => Err(EngineError(format!(
            "RSA key of {bits} bits is too long: at most {LONGEST_RSA_BITS} are taken"
        ))),
    }
}

/// The public half an engine derived from an Ed25519 seed, which must be the one that came with the seed, if one came.
fn check_public_half(derived: &[u8], given: Option<&[u8; 32]>) -> Result<PublicKey, EngineError> {
    if given.is_some_and(|given| given != derived) {
        return Err(EngineError(
            "Ed25519 key is damaged: its public half does not belong to its private half"
                .to_owned(),
        ));
    }
    PublicKey::from_record(KeyType::Ed25519, derived)
        .map_err(|error| EngineError(error.to_string()))
}

/// Signs once and checks the signature with the public half, so that a key whose halves do not fit is found when it is
/// loaded and not by the receivers of its mail.
fn prove(signing: &dyn SigningKey, verifying: &dyn VerifyingKey) -> Result<(), EngineError> {
    let octets = b"a signature to prove the key";
    let signature = signing
        .sign(octets)
        .map_err(|SigningError(reason)| EngineError(reason))?;
    verifying
        .verify(octets, &signature)
        .map_err(|BadSignature| {
            EngineError(
                "key is damaged: its public half does not verify what its private half signed"
                    .to_owned(),
            )
        })
}

/// RFC 8301 section 3.2: less is neither signed with nor valid.
const SHORTEST_RSA_BITS: u32 = 1024;

/// What both libraries take; beyond 4096 is for policy to allow.
const LONGEST_RSA_BITS: u32 = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_submission_has_one_end() {
        let key = PrivateKey::from_octets(include_bytes!("../../tests/data/keys/ed25519.pem"));
        let key = signing_key(&key.unwrap()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let completion = |name: &'static str| {
            let sender = sender.clone();
            Completion::new(move |result| sender.send((name, result)).unwrap())
        };
        key.submit(b"x".to_vec(), Duration::ZERO, completion("signed"));
        drop(completion("dropped"));
        drop(sender);
        let ends: Vec<_> = receiver.iter().collect();
        assert_eq!(ends[0], ("signed", key.sign(b"x")));
        assert!(ends[0].1.is_ok());
        assert!(matches!(&ends[1], ("dropped", Err(SigningError(_)))));
        assert_eq!(ends.len(), 2);
    }

    #[test]
    fn engines_are_found_by_their_names_only() {
        for engine in engines() {
            assert_eq!(engine_by_name(engine.name()).unwrap().name(), engine.name());
        }
        assert!(engine_by_name("openssl").is_none());
        assert!(engine_by_name("").is_none());
        assert_eq!(default_engine().name(), engines()[0].name());
        let fastest_first = ["aws-lc-ifma", "aws-lc", "rustcrypto"];
        let places = engines().iter().map(|engine| {
            let place = fastest_first.iter().position(|name| *name == engine.name());
            place.expect("an engine whose place is known")
        });
        assert!(places.is_sorted());
    }

    #[test]
    fn a_key_goes_to_the_first_engine_that_takes_it() {
        for (octets, bits) in [
            (
                &include_bytes!("../../tests/data/keys/rsa1024.pem")[..],
                1024,
            ),
            (include_bytes!("../../tests/data/keys/rsa2048.pem"), 2048),
            (include_bytes!("../../tests/data/keys/ed25519.pem"), 256),
        ] {
            let key = PrivateKey::from_octets(octets).unwrap();
            match signing_key(&key) {
                Ok(key) => assert_eq!(key.public_key().bits(), bits),
                Err(error) => assert!(!cfg!(feature = "rustcrypto") && bits == 1024, "{error}"),
            }
        }
    }

    #[test]
    fn what_every_engine_says_is_said_once() {
        let key =
            PrivateKey::from_octets(include_bytes!("../../tests/data/keys/rsa768.pem")).unwrap();
        assert_eq!(
            signing_key(&key).unwrap_err().to_string(),
            "RSA key of 768 bits is too short: at least 1024 are needed (RFC 8301 section 3.2)"
        );
    }

    #[test]
    fn debug_of_ready_keys_shows_no_secret() {
        let pem = include_bytes!("../../tests/data/keys/ed25519.pem");
        let der = include_bytes!("../../tests/data/keys/ed25519.der");
        let seed = &der[16..];
        for engine in engines() {
            let key = engine
                .signing_key(&PrivateKey::from_octets(pem).unwrap())
                .unwrap();
            let shown = format!("{key:?}");
            assert!(
                !shown.contains(format!("{seed:?}").trim_matches(['[', ']'])),
                "{shown}"
            );
            let hex: String = seed.iter().map(|o| format!("{o:02x}")).collect();
            assert!(!shown.contains(&hex), "{shown}");
        }
    }
}
