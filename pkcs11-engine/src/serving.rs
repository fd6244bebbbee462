//! Tokens that verify, or hash bodies, for who must have it so: asked for like keys, and used like them. What is submitted
//! ends by its deadline, whatever becomes of the token.
//!
//! What is verified comes from strangers, and goes into the module as it is; so modules that verify or hash have a process
//! of their own, apart from the one that signs. It has no PIN unless the token's URI itself says where one is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dkim_core::engine::PublicKey;

use crate::duty::{Asked, Duty, GOOD, Step, ToVerify};
use crate::error::Fault;
use crate::key::Public;
use crate::reference::Reference;
use crate::tokens::{TokenKey, Tokens};

/// A token that verifies. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TokenVerifier(Arc<TokenKey>);

/// A token that computes SHA-256. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TokenDigester(Arc<TokenKey>);

/// One digest by a token, fed step by step; the next step is to be made when the one before has ended. One that is dropped
/// before its end gives its session back.
#[derive(Debug)]
pub struct TokenDigest {
    by: Arc<TokenKey>,
    number: u64,
    state: DigestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DigestState {
    New,
    Begun,
    Ended,
}

impl Tokens {
    /// The token of `reference`, to verify with keys that are brought to it; it is looked for from now on. An RSA signature
    /// is verified by CKM_SHA256_RSA_PKCS, so that the token hashes the header as well, or by C_Digest and what it has for
    /// digests; with `x-mechanism=rsa-pkcs` the header is hashed here.
    ///
    /// # Errors
    /// All was shut down, or no thread can be started.
    pub fn verifier(&self, reference: &Reference) -> Result<TokenVerifier, Fault> {
        self.named(reference, Duty::Verify).map(TokenVerifier)
    }

    /// The token of `reference`, to compute SHA-256.
    ///
    /// # Errors
    /// All was shut down, or no thread can be started.
    pub fn digester(&self, reference: &Reference) -> Result<TokenDigester, Fault> {
        self.named(reference, Duty::Digest).map(TokenDigester)
    }
}

impl TokenVerifier {
    /// Has it verified whether `signature` over `octets` is that of `key`; `then` is told, once, at once or later and from
    /// any thread, at the latest after `within` or the time-out of [`Settings`](crate::Settings). [`Fault::Unfit`] is
    /// for a key that the token does not take; all others may pass.
    pub fn submit(
        &self,
        key: &PublicKey,
        octets: &[u8],
        signature: &[u8],
        within: Duration,
        then: impl FnOnce(Result<bool, Fault>) + Send + 'static,
    ) {
        let wanted = ToVerify {
            key: Public::of(key),
            octets: octets.to_vec(),
            signature: signature.to_vec(),
        };
        let then = move |made: Result<Vec<u8>, Fault>| then(made.map(|made| made == GOOD));
        self.0
            .ask(Asked::Verify(Box::new(wanted)), within, Box::new(then));
    }

    /// Waits until it is known whether it verifies, at most as long as `within`.
    ///
    /// # Errors
    /// Why it does not, or not yet.
    pub fn wait(&self, within: Duration) -> Result<(), Fault> {
        self.0.wait_for_outcome(within)
    }

    /// Why it does not verify now, if so.
    pub fn fault(&self) -> Option<Fault> {
        self.0.fault()
    }
}

impl TokenDigester {
    /// A digest that is still to be begun, by its first step.
    pub fn digest(&self) -> TokenDigest {
        TokenDigest {
            by: Arc::clone(&self.0),
            number: self.0.tokens.digests.fetch_add(1, Ordering::Relaxed),
            state: DigestState::New,
        }
    }

    /// Waits until it is known whether it hashes, at most as long as `within`.
    ///
    /// # Errors
    /// Why it does not, or not yet.
    pub fn wait(&self, within: Duration) -> Result<(), Fault> {
        self.0.wait_for_outcome(within)
    }

    /// Why it does not hash now, if so.
    pub fn fault(&self) -> Option<Fault> {
        self.0.fault()
    }
}

impl TokenDigest {
    /// Feeds `octets`; `then` is told when that is done, once, and gets the digest if they are the last, or nothing.
    pub fn feed(
        &mut self,
        octets: Vec<u8>,
        is_last: bool,
        within: Duration,
        then: impl FnOnce(Result<Vec<u8>, Fault>) + Send + 'static,
    ) {
        let step = Step {
            digest: self.number,
            octets,
            is_first: self.state == DigestState::New,
            is_last,
        };
        self.state = match is_last {
            true => DigestState::Ended,
            false => DigestState::Begun,
        };
        self.by.ask(Asked::Digest(step), within, Box::new(then));
    }
}

impl Drop for TokenDigest {
    fn drop(&mut self) {
        if self.state == DigestState::Begun {
            self.by.abandon(self.number);
        }
    }
}
