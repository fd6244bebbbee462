//! One worker's way to a signature: its session, the keys it has found, and the ladder it climbs when a call fails.
//!
//! Which return value a module gives for one and the same event differs from module to module, so it hardly decides what
//! is done: the session is thrown away in any case, and then a new session, a new login with the slots looked through, and
//! at last a new initialisation of the module are tried. What is decided by the return value is what must not be tried: a
//! PIN that was wrong, one more session where there is no room, a key that cannot. Every signature is verified here before
//! it goes anywhere. How many workers there are, and what becomes of the others when a token is away, is for
//! `session_pool`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cryptoki::object::ObjectHandle;
use cryptoki::session::Session;
use dkim_core::engine::{self, PublicKey, VerifyingKey};

use crate::duty::Duty;
use crate::error::{Cause, Fault, call_and_code};
use crate::key::{self, Failed, KeyFacts, Method, Public};
use crate::module::Entered;
use crate::token::{Opened, Token};
use crate::uri::{MechanismChoice, Uri};

/// What a token is relied on for: a key that was found in it and is to be signed with, or another duty.
pub(crate) struct InToken {
    /// Its number here.
    pub(crate) number: u32,
    pub(crate) purpose: Purpose,
}

pub(crate) enum Purpose {
    Sign(Box<KeyInToken>),
    Verify(MechanismChoice),
    Digest,
}

/// A key to sign with.
pub(crate) struct KeyInToken {
    /// Its number here.
    number: u32,
    /// What was asked for.
    uri: Uri,
    /// How it signs.
    method: Method,
    /// Its public half.
    public: PublicKey,
    /// What its signatures are verified with.
    verifying: Box<dyn VerifyingKey>,
}

/// A key to be found and looked at, or another duty to be tested.
pub(crate) struct Wanted {
    /// Its number here.
    pub(crate) number: u32,
    pub(crate) duty: Duty,
    pub(crate) uri: Uri,
    pub(crate) choice: MechanismChoice,
    /// Its public half, if it was seen before: no other is taken for it.
    pub(crate) known: Option<Public>,
}

/// A key that was looked at.
pub(crate) struct Looked {
    pub(crate) found: Arc<InToken>,
    /// What there is to know of a key.
    pub(crate) facts: Option<Box<KeyFacts>>,
    /// What is odd about it.
    pub(crate) notes: Vec<String>,
}

/// What a worker holds from one signature to the next.
#[derive(Default)]
pub(crate) struct Worker {
    held: Option<Held>,
}

pub(crate) struct Held {
    pub(crate) opened: Opened,
    /// By the keys' numbers.
    handles: HashMap<u32, ObjectHandle>,
}

/// A signature that did not come about.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) fault: Fault,
    pub(crate) cause: Cause,
}

impl Failure {
    /// Whether it is about one key or duty of the token, and says nothing of what else the token does.
    pub(crate) fn is_of_one(&self) -> bool {
        self.cause == Cause::Key || self.is_lie()
    }

    /// Whether the token was found to answer wrongly where the right answer is known.
    pub(crate) fn is_lie(&self) -> bool {
        matches!(self.fault, Fault::WrongAnswer { .. })
    }
}

/// What is done after the next failure.
#[derive(Clone, Copy)]
enum Rung {
    Session,
    Login,
    Module,
    Over,
}

impl Worker {
    /// A signature over `octets`, by all means there are until `deadline`.
    pub(crate) fn sign(
        &mut self,
        token: &Token,
        key: &KeyInToken,
        octets: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        self.climb(token, deadline, |worker, module| {
            worker.attempt(token, module, key, octets)
        })
    }

    /// Sees whether the token does what `found` is in it for: signs `octets`, or does another test.
    pub(crate) fn probe(
        &mut self,
        token: &Token,
        found: &InToken,
        octets: &[u8],
        deadline: Instant,
    ) -> Result<(), Failure> {
        match &found.purpose {
            Purpose::Sign(key) => self.sign(token, key, octets, deadline).map(drop),
            Purpose::Verify(choice) => self.test(token, Duty::Verify, *choice, deadline),
            Purpose::Digest => self.test(token, Duty::Digest, MechanismChoice::Auto, deadline),
        }
    }

    /// Finds what is wanted, looks at it, and tests it: with a key, signs `octets`.
    pub(crate) fn look(
        &mut self,
        token: &Token,
        wanted: &Wanted,
        octets: &[u8],
        deadline: Instant,
    ) -> Result<Looked, Failure> {
        let purpose = match wanted.duty {
            Duty::Sign => return self.look_at_key(token, wanted, octets, deadline),
            Duty::Verify => Purpose::Verify(wanted.choice),
            Duty::Digest => Purpose::Digest,
        };
        self.test(token, wanted.duty, wanted.choice, deadline)?;
        Ok(Looked {
            found: Arc::new(InToken {
                number: wanted.number,
                purpose,
            }),
            facts: None,
            notes: Vec::new(),
        })
    }

    fn look_at_key(
        &mut self,
        token: &Token,
        wanted: &Wanted,
        octets: &[u8],
        deadline: Instant,
    ) -> Result<Looked, Failure> {
        self.climb(token, deadline, |worker, module| {
            let (facts, method, public, mut notes) = worker.see(token, module, wanted)?;
            let is_other = |known: &Public| known.key().is_some_and(|known| known != public);
            if wanted.known.as_ref().is_some_and(is_other) {
                return Err(Failed::Fault(Fault::OtherKey { key: facts.uri }).into());
            }
            let verifying = engine::default_engine()
                .verifying_key(&public)
                .map_err(|error| {
                    Failed::Fault(Fault::Unfit {
                        key: facts.uri.clone(),
                        reason: error.to_string(),
                    })
                })?;
            let key = Box::new(KeyInToken {
                number: wanted.number,
                uri: wanted.uri.clone(),
                method,
                public,
                verifying,
            });
            worker.attempt(token, module, &key, octets)?;
            if wanted.uri.slot_id.is_some() {
                notes.push(format!(
                    "{}: is named by slot-id, a number that most modules change at will; name the token by token or serial",
                    facts.uri
                ));
            }
            Ok(Looked {
                found: Arc::new(InToken {
                    number: wanted.number,
                    purpose: Purpose::Sign(key),
                }),
                facts: Some(Box::new(facts)),
                notes,
            })
        })
    }

    /// Attempts something again and again, each time after more was made anew than the last time.
    pub(crate) fn climb<T>(
        &mut self,
        token: &Token,
        deadline: Instant,
        mut attempt: impl FnMut(&mut Self, &Entered<'_>) -> Result<T, Attempt>,
    ) -> Result<T, Failure> {
        let mut rung = if self.held.is_some() {
            Rung::Session
        } else {
            Rung::Login
        };
        loop {
            let module = token.module().enter().map_err(|fault| Failure {
                fault,
                cause: Cause::Device,
            })?;
            let generation = module.generation();
            let failed = match attempt(self, &module) {
                Ok(made) => return Ok(made),
                Err(failed) => failed,
            };
            let epoch = self.held.as_ref().map(|held| held.opened.epoch);
            self.discard(&module);
            let failure = failure(failed, token);
            let climbs = match (failure.cause, rung) {
                (Cause::Device, Rung::Over) | (Cause::Pin | Cause::Capacity, _) => false,
                // Who is logged out sees no private key; but a key that is gone is no fault of the token.
                (Cause::Key, Rung::Login) => {
                    matches!(failure.fault, Fault::NoKey { .. })
                        && epoch.is_some_and(|epoch| token.renew_for_key(&module, epoch))
                }
                (Cause::Device, _) | (Cause::Key, Rung::Session) => true,
                (Cause::Key, _) => false,
            };
            if !climbs || Instant::now() >= deadline {
                return Err(failure);
            }
            rung = match rung {
                Rung::Session => Rung::Login,
                Rung::Login => {
                    if let Some(epoch) = epoch {
                        token.renew(&module, epoch);
                    }
                    Rung::Module
                }
                Rung::Module | Rung::Over => {
                    drop(module);
                    match token.module().restart(generation, RESTART_PATIENCE) {
                        Ok(true) => Rung::Over,
                        Ok(false) => return Err(failure),
                        Err(fault) => {
                            let cause = Cause::Device;
                            return Err(Failure { fault, cause });
                        }
                    }
                }
            };
        }
    }

    /// The session that is held, for somebody else.
    pub(crate) fn give_away(&mut self) -> Option<Opened> {
        self.held.take().map(|held| held.opened)
    }

    /// Gives the session back.
    pub(crate) fn close(&mut self, module: &Entered<'_>) {
        self.discard(module);
    }

    fn see(
        &mut self,
        token: &Token,
        module: &Entered<'_>,
        wanted: &Wanted,
    ) -> Result<(KeyFacts, Method, PublicKey, Vec<String>), Failed> {
        let opened = &self.hold(token, module)?.opened;
        let key = key::find(&opened.session, &wanted.uri, token.facts())?;
        let facts = key::facts(
            module,
            opened.slot,
            &opened.session,
            key,
            token.facts(),
            wanted.choice,
        )?;
        let (public, method, notes) = key::check(&facts).map_err(Failed::Fault)?;
        Ok((facts, method, public, notes))
    }

    /// What is held, after opening a session if there is none of this initialisation.
    pub(crate) fn hold(
        &mut self,
        token: &Token,
        module: &Entered<'_>,
    ) -> Result<&mut Held, Failed> {
        let is_void = |held: &Held| held.opened.generation != module.generation();
        if self.held.as_ref().is_some_and(is_void) {
            self.held = None;
        }
        Ok(match &mut self.held {
            Some(held) => held,
            none => none.insert(Held {
                opened: token.session(module)?,
                handles: HashMap::new(),
            }),
        })
    }

    fn attempt(
        &mut self,
        token: &Token,
        module: &Entered<'_>,
        key: &KeyInToken,
        octets: &[u8],
    ) -> Result<Vec<u8>, Attempt> {
        let held = self.hold(token, module)?;
        let session: &Session = &held.opened.session;
        let handle = match held.handles.get(&key.number) {
            Some(handle) => *handle,
            None => {
                let handle = key::find(session, &key.uri, token.facts())?;
                held.handles.insert(key.number, handle);
                handle
            }
        };
        let signature = key::sign(session, handle, key.method, octets, |session| {
            token.authenticate(session)
        })?;
        match key.verifying.verify(octets, &signature) {
            Ok(()) => Ok(signature),
            Err(_) if is_other(key, module, &held.opened, handle, token) => {
                Err(Failed::Fault(Fault::OtherKey {
                    key: key.uri.to_string(),
                })
                .into())
            }
            Err(_) => Err(Attempt::Wrong),
        }
    }

    /// No session outlives a failure: a module may have left an operation active in it, which blocks it for good.
    pub(crate) fn discard(&mut self, module: &Entered<'_>) {
        if let Some(held) = self.held.take()
            && held.opened.generation == module.generation()
        {
            // It may be gone already.
            let _ = held.opened.session.close();
        }
    }
}

/// Whether the token itself says that `handle` is not `key` any more.
fn is_other(
    key: &KeyInToken,
    module: &Entered<'_>,
    opened: &Opened,
    handle: ObjectHandle,
    token: &Token,
) -> bool {
    let choice = MechanismChoice::Auto;
    let facts = key::facts(
        module,
        opened.slot,
        &opened.session,
        handle,
        token.facts(),
        choice,
    );
    let public = facts.ok().and_then(|facts| facts.public?.key());
    public.is_some_and(|public| public != key.public)
}

/// What came of one attempt.
pub(crate) enum Attempt {
    Failed(Failed),
    Wrong,
}

impl<T: Into<Failed>> From<T> for Attempt {
    fn from(failed: T) -> Self {
        Self::Failed(failed.into())
    }
}

pub(crate) fn failure(attempt: Attempt, token: &Token) -> Failure {
    match attempt {
        Attempt::Wrong => Failure {
            fault: Fault::WrongSignature { token: token.uri() },
            cause: Cause::Device,
        },
        Attempt::Failed(Failed::Call(error)) => {
            let (call, code) = call_and_code(&error);
            Failure {
                cause: Cause::of(&error),
                fault: Fault::Device {
                    token: token.uri(),
                    call,
                    code,
                },
            }
        }
        Attempt::Failed(Failed::Fault(fault)) => Failure {
            cause: match fault {
                Fault::Pin { .. } => Cause::Pin,
                Fault::NoKey { .. }
                | Fault::ManyKeys { .. }
                | Fault::Unfit { .. }
                | Fault::Unable { .. }
                | Fault::OtherKey { .. } => Cause::Key,
                _ => Cause::Device,
            },
            fault,
        },
    }
}

/// How long others may stay inside a module that is to be initialised anew.
const RESTART_PATIENCE: Duration = Duration::from_secs(1);
