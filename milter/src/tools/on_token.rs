//! Tokens that verify or hash for the tools, for who must have that in a module: opened first, asked one thing at a time.

use super::token_access::{TokenAccess, TokenError, TokenUse};
use super::{EX_UNAVAILABLE, EX_USAGE, Failure};
use crate::keys::Tries;
use clap::builder::{OsStringValueParser, TypedValueParser};
use dkim_core::body_digest::{BodyHash, BodyStreams, NoBodyHash, ToDigest};
use dkim_core::verifier::{Check, CheckOutcome};
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{Fault, ReferenceError, TokenDigest, TokenDigester, TokenTask, TokenVerifier};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc;

/// The tokens of a tool. To be [finished](Self::finish) in the end.
#[derive(Debug, Default)]
pub(super) struct OnToken {
    access: Option<TokenAccess>,
    verifier: Option<TokenVerifier>,
    digester: Option<TokenDigester>,
}

/// Why there is no token to verify or to hash with.
#[derive(Debug, thiserror::Error)]
pub enum OnTokenError {
    /// The options name none.
    #[error("{option}: {}", reference_sentence(source))]
    Reference {
        /// The option.
        option: &'static str,
        /// What is wrong.
        source: ReferenceError,
    },
    /// No thread can be started.
    #[error("tokens cannot be used: {0}")]
    Threads(std::io::Error),
    /// It is not there, or does not do it.
    #[error(transparent)]
    Token(TokenError),
}

impl Failure for OnTokenError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Reference { .. } => EX_USAGE,
            Self::Threads(_) => EX_UNAVAILABLE,
            Self::Token(error) => error.exit_code(),
        }
    }
}

impl OnToken {
    /// Opens the tokens that `verify` and `digest` name, if they do, for the `tool`.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn open(
        tool: &'static str,
        how: &TokenUse,
        verify: Option<&Uri>,
        digest: Option<&Uri>,
    ) -> Result<Self, OnTokenError> {
        if verify.is_none() && digest.is_none() {
            return Ok(Self::default());
        }
        let access = how.access(tool, 1).map_err(OnTokenError::Threads)?;
        let refer = |option, uri: &Uri, does| {
            how.reference(uri.clone())
                .and_then(|reference| reference.of_token(does))
                .map_err(|source| OnTokenError::Reference { option, source })
        };
        let opened = || -> Result<_, OnTokenError> {
            let verifier = match verify {
                Some(uri) => {
                    Some(access.verifier(&refer("--pkcs11-verify", uri, TokenTask::Verifies)?))
                }
                None => None,
            };
            let digester = match digest {
                Some(uri) => {
                    Some(access.digester(&refer("--pkcs11-digest", uri, TokenTask::Digests)?))
                }
                None => None,
            };
            let verifier = verifier.transpose().map_err(OnTokenError::Token)?;
            let digester = digester.transpose().map_err(OnTokenError::Token)?;
            Ok((verifier, digester))
        };
        match opened() {
            Ok((verifier, digester)) => Ok(Self {
                access: Some(access),
                verifier,
                digester,
            }),
            Err(error) => {
                access.finish(Some(error.to_string()));
                Err(error)
            }
        }
    }

    /// What the token says of a signature, if one verifies.
    pub(super) fn check(&self, check: &Check) -> Option<CheckOutcome> {
        let verifier = self.verifier.as_ref()?;
        let mut tries = Tries::default();
        loop {
            let (record, key) = match tries.next(check) {
                Ok(next) => next,
                Err(outcome) => return Some(outcome),
            };
            let answer = wait(|then| {
                let patience = super::token_access::PATIENCE;
                verifier.submit(key, check.octets(), check.signature(), patience, then);
            });
            if let Some(outcome) = tries.answered(record, answer) {
                return Some(outcome);
            }
        }
    }

    /// A body that the token hashes, if one does.
    pub(super) fn body(&self, wanted: &[ToDigest]) -> Option<BodyOnToken> {
        let digester = self.digester.as_ref()?;
        Some(BodyOnToken {
            streams: BodyStreams::new(wanted),
            digests: wanted
                .iter()
                .map(|_| Digesting {
                    digest: digester.digest(),
                    octets: Vec::new(),
                    fault: None,
                })
                .collect(),
        })
    }

    /// Closes sessions and modules.
    pub(super) fn finish(self, failure: Option<String>) {
        if let Some(access) = self.access {
            access.finish(failure);
        }
    }
}

/// A body on its way through a token.
pub(super) struct BodyOnToken {
    streams: BodyStreams,
    digests: Vec<Digesting>,
}

struct Digesting {
    digest: TokenDigest,
    /// What is still to be given to the token.
    octets: Vec<u8>,
    fault: Option<Fault>,
}

impl BodyOnToken {
    /// Takes the next octets of the body.
    pub(super) fn update(&mut self, chunk: &[u8]) {
        let digests = &mut self.digests;
        self.streams.update(chunk, &mut |place, octets| {
            digests[place].take(octets);
        });
    }

    /// The hashes, in the order in which they are wanted; or why there is none.
    pub(super) fn finish(mut self) -> Vec<Result<BodyHash, Fault>> {
        let digests = &mut self.digests;
        let counts = self.streams.finish(&mut |place, octets| {
            digests[place].take(octets);
        });
        let digests = self.digests.into_iter().zip(counts);
        digests
            .map(|(digest, body_octets)| {
                digest.finish().map(|digest| BodyHash {
                    digest,
                    body_octets,
                })
            })
            .collect()
    }
}

impl Digesting {
    fn take(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
        if self.octets.len() >= CHUNK {
            self.feed(false);
        }
    }

    fn feed(&mut self, is_last: bool) -> Vec<u8> {
        let octets = std::mem::take(&mut self.octets);
        if self.fault.is_some() {
            return Vec::new();
        }
        let patience = super::token_access::PATIENCE;
        match wait(|then| self.digest.feed(octets, is_last, patience, then)) {
            Ok(made) => made,
            Err(fault) => {
                self.fault = Some(fault);
                Vec::new()
            }
        }
    }

    fn finish(mut self) -> Result<[u8; 32], Fault> {
        let made = self.feed(true);
        match self.fault {
            Some(fault) => Err(fault),
            None => made.try_into().map_err(|_| Fault::Late),
        }
    }
}

/// Why a verifier gets no body hash.
pub(super) fn no_body_hash(fault: Fault) -> NoBodyHash {
    NoBodyHash::Unavailable(fault.to_string())
}

/// Waits for the answer to what `ask` asks; the token has a deadline.
fn wait<T: Send + 'static>(
    ask: impl FnOnce(Box<dyn FnOnce(Result<T, Fault>) + Send>),
) -> Result<T, Fault> {
    let (sender, receiver) = mpsc::channel();
    ask(Box::new(move |answer| {
        // Who waits is there.
        let _ = sender.send(answer);
    }));
    receiver.recv().unwrap_or(Err(Fault::Late))
}

/// The URI of a token at the command line.
pub(super) fn uri_parser() -> impl TypedValueParser<Value = Uri> {
    OsStringValueParser::new().try_map(|text| Uri::parse(text.as_bytes()))
}

fn reference_sentence(error: &ReferenceError) -> String {
    match error {
        // Its own names the daemon's options.
        ReferenceError::NoModule => {
            "which module has the token? say so by --pkcs11-module, or by module-path in the URI".to_owned()
        }
        ReferenceError::PinValue => {
            "pin-value puts the PIN where ps(1) shows it: name a file by --pkcs11-pin-file, or by pin-source in the URI"
                .to_owned()
        }
        error => error.to_string(),
    }
}

/// Octets of a body that go to a token at once.
const CHUNK: usize = 65_535;
