//! A key in a PKCS#11 token in the place of one that is made, and a token in the place of an engine.
//!
//! Signing goes the way it goes in the daemon: through [`Tokens`], in a process of its own unless that is asked for
//! otherwise. Verifying and digests on the token are what the daemon does not do, and always in this process.

use super::error::PerfError;
use super::keys::{Key, record};
use super::outcome::TokenUsed;
use dkim_core::body_digest::{BodyHash, BodyStreams, ToDigest};
use dkim_core::engine::{
    Engine, EngineError, KeyType, PrivateKey, PublicKey, SigningKey, VerifyingKey,
};
use pkcs11_engine::{Isolation, KeyFacts, Level, OnToken, Reference, Settings, TokenKey, Tokens};
use std::sync::Arc;
use std::time::Duration;

/// Which key in which token, and how the token is used.
#[derive(Clone, Debug)]
pub(super) struct TokenChoice {
    /// The key.
    pub reference: Reference,
    /// Whether the module is loaded in this process.
    pub in_process: bool,
    /// How many sessions there are to sign.
    pub sessions: usize,
}

/// A key in a token, ready to sign, and the token if it is to do more than that.
pub(super) struct InToken {
    tokens: Tokens,
    key: Arc<TokenKey>,
    facts: KeyFacts,
    choice: TokenChoice,
    on_token: Option<OnToken>,
}

impl InToken {
    /// Opens the token; `does_more` if it is to verify or to digest, too.
    ///
    /// # Errors
    /// The engine's, in its sentence.
    pub(super) fn open(choice: &TokenChoice, does_more: bool) -> Result<Self, PerfError> {
        let mut settings = Settings {
            sessions: choice.sessions,
            timeout: PATIENCE,
            ..Settings::default()
        };
        if choice.in_process {
            settings.isolation = Isolation::None;
        }
        let tokens = Tokens::new(settings, |notice| {
            if notice.level != Level::Info {
                eprintln!("{}", notice.text);
            }
        })
        .map_err(PerfError::Threads)?;
        let key = tokens.key(&choice.reference)?;
        let facts = key.wait(PATIENCE)?;
        // After the key, whose module so is the one that is initialised, and finalized.
        let on_token = match does_more {
            true => Some(OnToken::open(&choice.reference)?),
            false => None,
        };
        Ok(Self {
            tokens,
            key,
            facts,
            choice: choice.clone(),
            on_token,
        })
    }

    /// The key, if it is of the kind that is `wanted`.
    ///
    /// # Errors
    /// It is of the other.
    pub(super) fn key(&self, wanted: Option<KeyType>) -> Result<Key, PerfError> {
        let ready = self.key.signing_key()?;
        let found = ready.key_type();
        match wanted {
            Some(wanted) if wanted != found => Err(PerfError::KeyType {
                path: self.facts.uri.clone().into(),
                found,
                wanted,
            }),
            _ => Ok(Key {
                pem: None,
                record: record(ready.public_key()),
                ready,
            }),
        }
    }

    /// The token as an engine that verifies.
    pub(super) fn engine(&self) -> Option<TokenEngine> {
        self.on_token.clone().map(TokenEngine)
    }

    /// The token as who digests bodies.
    pub(super) fn digest(&self) -> Option<TokenDigest> {
        self.on_token.clone().map(TokenDigest)
    }

    /// What was used, for the output.
    pub(super) fn used(&self, signs: bool) -> TokenUsed {
        let token = &self.facts.token;
        let (major, minor) = token.library_version;
        TokenUsed {
            module: self.choice.reference.module.display().to_string(),
            library: format!(
                "{}: {} {major}.{minor}",
                token.library_manufacturer, token.library_description
            ),
            model: token.model.clone(),
            manufacturer: token.manufacturer.clone(),
            mechanism: self
                .facts
                .method
                .map_or("none", |method| method.mechanism())
                .to_owned(),
            in_process: self.choice.in_process || !signs,
            sessions: signs.then_some(self.choice.sessions),
        }
    }

    /// Closes all of it.
    ///
    /// # Errors
    /// A call failed while the token verified, so that what was measured is not the token.
    pub(super) fn close(self) -> Result<(), PerfError> {
        let fault = self.on_token.as_ref().and_then(OnToken::fault);
        if let Some(on_token) = &self.on_token {
            on_token.close(PATIENCE);
        }
        self.tokens.shut_down(PATIENCE);
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// How long a token is waited for: some are slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// An engine that verifies on a token. It makes no key ready to sign: those of the token do not come out of it.
#[derive(Debug)]
pub(super) struct TokenEngine(OnToken);

impl Engine for TokenEngine {
    fn name(&self) -> &'static str {
        "pkcs11"
    }

    fn signing_key(&self, _: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        Err(EngineError("keys are not put into tokens here".to_owned()))
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        self.0
            .verifying_key(key)
            .map_err(|fault| EngineError(fault.to_string()))
    }
}

/// Body hashes by a token.
#[derive(Debug)]
pub(super) struct TokenDigest(OnToken);

impl TokenDigest {
    /// The hashes of `body` that are `wanted`: its canonical form goes to the token in chunks as large as a milter gets
    /// them.
    ///
    /// # Errors
    /// A call that failed.
    pub(super) fn body_hashes(
        &self,
        wanted: &[ToDigest],
        body: &[u8],
    ) -> Result<Vec<BodyHash>, String> {
        let mut streams = BodyStreams::new(wanted);
        let room = || Vec::with_capacity(body.len() + 2);
        let mut canonical: Vec<Vec<u8>> = wanted.iter().map(|_| room()).collect();
        let mut sink = |place: usize, octets: &[u8]| canonical[place].extend_from_slice(octets);
        streams.update(body, &mut sink);
        let counts = streams.finish(&mut sink);
        let hashes = canonical.iter().zip(counts);
        let hashes = hashes.map(|(octets, body_octets)| {
            let digest = self.0.digest(octets.chunks(CHUNK));
            digest.map(|digest| BodyHash {
                digest,
                body_octets,
            })
        });
        hashes
            .collect::<Result<_, _>>()
            .map_err(|fault| fault.to_string())
    }
}

/// Octets of a body that a milter gets at once, at most.
const CHUNK: usize = 65_535;
