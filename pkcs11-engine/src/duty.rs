//! What is asked of a token beside signatures, by who must: to verify those of others, and to hash bodies.
//!
//! Nobody who need not does this: software is faster, and what a message brings goes into the module. So what a stranger
//! sends must not look like a fault of the token. A verification that fails is followed by a test whose outcome is known:
//! if the token passes it, it was the stranger's key that the token does not take, and nothing else is done; if not,
//! `worker`'s ladder is climbed. The same test, with a wrong signature in it, is made before the token is relied on, and
//! again and again from then on, whether or not there is mail: nobody else would find out that the token answers wrongly.
//!
//! A digest is begun, fed and ended by steps of their own, since a body comes in its own time. Between two steps its session
//! lies in [`Digests`]; no worker waits for a message.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::ObjectHandle;
use cryptoki::session::Session;
use dkim_core::engine::PublicKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Cause, Fault};
use crate::key::{Failed, Public};
use crate::module::Entered;
use crate::token::{Opened, Token};
use crate::uri::MechanismChoice;
use crate::verify::{self, HeaderBy, KnownAnswer, Method};
use crate::worker::{Attempt, Failure, Worker, failure};

/// What a token is named for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Duty {
    /// To sign with the private key that its URI names.
    Sign,
    /// To verify with keys that are brought to it.
    Verify,
    /// To hash.
    Digest,
}

impl Duty {
    /// What it does, for sentences.
    pub(crate) fn does(self) -> &'static str {
        match self {
            Self::Sign => "signs",
            Self::Verify => "verifies",
            Self::Digest => "hashes",
        }
    }

    /// What it can or cannot do.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Sign => "sign",
            Self::Verify => "verify",
            Self::Digest => "hash",
        }
    }
}

/// One thing that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Asked {
    /// A signature over these octets.
    Sign(Vec<u8>),
    /// Whether a signature is that of a key: [`GOOD`] or [`BAD`].
    Verify(Box<ToVerify>),
    /// A step of a digest: nothing, or the digest if it was the last.
    Digest(Step),
    /// That a digest is not wanted any more.
    Abandon(u64),
}

impl Asked {
    /// Whether it can be asked of another process: what was begun in one is not known to the next.
    pub(crate) fn may_be_repeated(&self) -> bool {
        match self {
            Self::Sign(_) | Self::Verify(_) => true,
            Self::Digest(step) => step.is_first,
            Self::Abandon(_) => false,
        }
    }
}

/// A signature to be verified.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToVerify {
    pub(crate) key: Public,
    pub(crate) octets: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// A step of a digest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Which digest.
    pub(crate) digest: u64,
    pub(crate) octets: Vec<u8>,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

pub(crate) const GOOD: &[u8] = b"good";
pub(crate) const BAD: &[u8] = b"bad";

/// The digests there are, with the sessions of those that are between two steps.
#[derive(Default)]
pub(crate) struct Digests(Mutex<HashMap<u64, Place>>);

/// Where a digest is.
enum Place {
    /// Not begun: it has no session yet.
    Waiting,
    /// Between two steps.
    Lying(Box<Opened>),
    /// Within a step, whose worker has the session.
    InStep,
}

impl Digests {
    /// Keeps room for a digest that begins; whether there is some.
    pub(crate) fn begin(&self, digest: u64, most: usize) -> bool {
        let mut digests = self.lock();
        digests.len() < most && digests.insert(digest, Place::Waiting).is_none()
    }

    /// How many have a session that others could have.
    pub(crate) fn with_session(&self) -> usize {
        let has_one = |place: &&Place| !matches!(place, Place::Waiting);
        self.lock().values().filter(has_one).count()
    }

    /// A worker's session becomes that of a digest.
    fn begun(&self, digest: u64) {
        if let Some(place) = self.lock().get_mut(&digest) {
            *place = Place::InStep;
        }
    }

    /// The session of a digest, which is to be put back.
    fn take(&self, digest: u64) -> Option<Opened> {
        let mut digests = self.lock();
        let place = digests.get_mut(&digest)?;
        match std::mem::replace(place, Place::InStep) {
            Place::Lying(opened) => Some(*opened),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Keeps the session until the next step; gives it back if the digest was abandoned meanwhile.
    fn put(&self, digest: u64, opened: Opened) -> Option<Opened> {
        match self.lock().entry(digest) {
            Entry::Occupied(mut entry) => {
                entry.insert(Place::Lying(Box::new(opened)));
                None
            }
            Entry::Vacant(_) => Some(opened),
        }
    }

    /// Ends a digest, with its session unless a step has it.
    fn end(&self, digest: u64) -> Option<Opened> {
        match self.lock().remove(&digest)? {
            Place::Lying(opened) => Some(*opened),
            Place::Waiting | Place::InStep => None,
        }
    }

    /// Ends all.
    pub(crate) fn close(&self, module: &Entered<'_>) {
        let digests = std::mem::take(&mut *self.lock());
        for place in digests.into_values() {
            if let Place::Lying(opened) = place {
                close(*opened, module);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No session outlives what it was opened for, nor is one closed that another initialisation has given to somebody else.
fn close(opened: Opened, module: &Entered<'_>) {
    if opened.generation == module.generation() {
        // It may be gone already.
        let _ = opened.session.close();
    }
}

impl Worker {
    /// Tests whether the token does its `duty`, by all means there are until `deadline`.
    pub(crate) fn test(
        &mut self,
        token: &Token,
        duty: Duty,
        choice: MechanismChoice,
        deadline: Instant,
    ) -> Result<(), Failure> {
        self.climb(token, deadline, |worker, module| match duty {
            Duty::Verify => worker.verify_known(token, module, choice),
            Duty::Digest => worker.digest_known(token, module),
            // It has a key, and is tested by that.
            Duty::Sign => Ok(()),
        })
    }

    /// Whether the signature is that of the key.
    pub(crate) fn verify(
        &mut self,
        token: &Token,
        choice: MechanismChoice,
        wanted: &ToVerify,
        deadline: Instant,
    ) -> Result<bool, Failure> {
        let Some(key) = wanted.key.key() else {
            return Err(refused(token, "a key that is none".to_owned()));
        };
        let mut is_second = false;
        loop {
            let failed = {
                let module = token.module().enter().map_err(device)?;
                match self.verify_once(token, &module, choice, &key, wanted) {
                    Ok(is_good) => return Ok(is_good),
                    Err(failed) => {
                        self.discard(&module);
                        failure(failed, token)
                    }
                }
            };
            if failed.cause != Cause::Device || Instant::now() >= deadline {
                return Err(failed);
            }
            // Which of the two is to blame, the token or what was asked of it?
            self.test(token, Duty::Verify, choice, deadline)?;
            if std::mem::replace(&mut is_second, true) {
                let why = match failed.fault {
                    Fault::Device { call, code, .. } => format!("{call} failed with {code}"),
                    fault => fault.to_string(),
                };
                return Err(refused(token, why));
            }
        }
    }

    /// A step of a digest that has its place in `digests`; one that fails is to be abandoned.
    pub(crate) fn digest(
        &mut self,
        token: &Token,
        digests: &Digests,
        step: &Step,
        deadline: Instant,
    ) -> Result<Vec<u8>, Failure> {
        let (made, opened) = if step.is_first {
            self.begin_digest(token, digests, step, deadline)?
        } else {
            self.go_on_with_digest(token, digests, step, deadline)?
        };
        match opened {
            None => drop(digests.end(step.digest)),
            Some(opened) => {
                let module = token.module().enter().map_err(device)?;
                if let Some(opened) = digests.put(step.digest, opened) {
                    close(opened, &module);
                }
            }
        }
        Ok(made)
    }

    /// Ends a digest that nobody wants any more.
    pub(crate) fn abandon(token: &Token, digests: &Digests, digest: u64) {
        if let Some(opened) = digests.end(digest)
            && let Ok(module) = token.module().enter()
        {
            close(opened, &module);
        }
    }

    /// Begins a digest in the worker's own session, which then is the digest's.
    fn begin_digest(
        &mut self,
        token: &Token,
        digests: &Digests,
        step: &Step,
        deadline: Instant,
    ) -> Result<(Vec<u8>, Option<Opened>), Failure> {
        self.climb(token, deadline, |worker, module| {
            let session = &worker.hold(token, module)?.opened.session;
            session.digest_init(&Mechanism::Sha256)?;
            let made = feed(session, step)?;
            if step.is_last {
                return Ok((made, None));
            }
            digests.begun(step.digest);
            Ok((made, worker.give_away()))
        })
    }

    fn go_on_with_digest(
        &mut self,
        token: &Token,
        digests: &Digests,
        step: &Step,
        deadline: Instant,
    ) -> Result<(Vec<u8>, Option<Opened>), Failure> {
        let lost = |why: &str| Failure {
            fault: Fault::DigestLost {
                token: token.uri(),
                reason: why.to_owned(),
            },
            cause: Cause::Key,
        };
        let failed = {
            let module = token.module().enter().map_err(device)?;
            let Some(opened) = digests.take(step.digest) else {
                return Err(lost("it is not known here"));
            };
            if opened.generation != module.generation() {
                return Err(lost("the module was initialised anew"));
            }
            match feed(&opened.session, step) {
                Ok(made) if step.is_last => {
                    close(opened, &module);
                    return Ok((made, None));
                }
                Ok(made) => return Ok((made, Some(opened))),
                Err(error) => {
                    close(opened, &module);
                    failure(error.into(), token)
                }
            }
        };
        // What was fed is gone, whoever is to blame; but others want to know whether the token is.
        self.test(token, Duty::Digest, MechanismChoice::Auto, deadline)?;
        Err(lost(&failed.fault.to_string()))
    }

    fn verify_once(
        &mut self,
        token: &Token,
        module: &Entered<'_>,
        choice: MechanismChoice,
        key: &PublicKey,
        wanted: &ToVerify,
    ) -> Result<bool, Attempt> {
        let opened = &self.hold(token, module)?.opened;
        let method = Method::of(module, opened.slot, key, choice, HeaderBy::Token)?
            .ok_or_else(|| lacks(&opened.session, unfit(token, cannot(key))))?;
        with_key(&opened.session, token, key, |session, object| {
            method.ask(session, object, &wanted.octets, &wanted.signature)
        })
    }

    fn verify_known(
        &mut self,
        token: &Token,
        module: &Entered<'_>,
        choice: MechanismChoice,
    ) -> Result<(), Attempt> {
        let opened = &self.hold(token, module)?.opened;
        let known =
            KnownAnswer::new().ok_or_else(|| unable(token, "its test is damaged".to_owned()))?;
        let key = &known.key;
        let method = Method::of(module, opened.slot, key, choice, HeaderBy::Token)?
            .ok_or_else(|| lacks(&opened.session, unable(token, cannot(key))))?;
        let answers = with_key(&opened.session, token, key, |session, object| {
            let ask =
                |signature: &[u8]| method.ask(session, object, KnownAnswer::OCTETS, signature);
            Ok((ask(&known.good)?, ask(&known.bad)?))
        })?;
        match answers {
            (true, false) => Ok(()),
            (true, true) => Err(wrong(token, "takes a wrong signature for a good one")),
            (false, _) => Err(wrong(token, "takes a good signature for a wrong one")),
        }
    }

    fn digest_known(&mut self, token: &Token, module: &Entered<'_>) -> Result<(), Attempt> {
        let opened = &self.hold(token, module)?.opened;
        if !verify::digests(module, opened.slot)? {
            let why = "the token does not compute SHA-256 (CKM_SHA256)".to_owned();
            return Err(lacks(&opened.session, unable(token, why)));
        }
        let session = &opened.session;
        session.digest_init(&Mechanism::Sha256)?;
        session.digest_update(KnownAnswer::OCTETS)?;
        let made = session.digest_final()?;
        if made == Sha256::digest(KnownAnswer::OCTETS).to_vec() {
            Ok(())
        } else {
            Err(wrong(token, "computes a wrong SHA-256"))
        }
    }
}

/// Feeds the octets of a step, and ends the digest if it is the last.
fn feed(session: &Session, step: &Step) -> Result<Vec<u8>, Error> {
    if !step.octets.is_empty() {
        session.digest_update(&step.octets)?;
    }
    if step.is_last {
        session.digest_final()
    } else {
        Ok(Vec::new())
    }
}

/// Does `go` with `key` as an object of the session.
fn with_key<T>(
    session: &Session,
    token: &Token,
    key: &PublicKey,
    go: impl FnOnce(&Session, ObjectHandle) -> Result<T, Error>,
) -> Result<T, Attempt> {
    let object = verify::import(session, key).map_err(|error| match error {
        Error::Pkcs11(RvError::SessionReadOnly, _) => {
            Attempt::from(unable(token, READ_ONLY.to_owned()))
        }
        error => error.into(),
    })?;
    // Where it fails, object and session go together.
    let done = go(session, object)?;
    session.destroy_object(object)?;
    Ok(done)
}

fn cannot(key: &PublicKey) -> String {
    let what = verify::kind_of(key);
    format!("the token does not verify {what}")
}

/// What the token does not have, if it is there: the mechanisms of one that is gone are not there either.
fn lacks(session: &Session, told: Failed) -> Attempt {
    match session.get_session_info() {
        Ok(_) => told.into(),
        Err(error) => error.into(),
    }
}

fn unfit(token: &Token, reason: String) -> Failed {
    Failed::Fault(Fault::Unfit {
        key: token.uri(),
        reason,
    })
}

fn unable(token: &Token, reason: String) -> Failed {
    Failed::Fault(Fault::Unable {
        token: token.uri(),
        reason,
    })
}

fn wrong(token: &Token, what: &str) -> Attempt {
    Failed::Fault(Fault::WrongAnswer {
        token: token.uri(),
        what: what.to_owned(),
    })
    .into()
}

/// A key that the token fails on, and only on that.
fn refused(token: &Token, why: String) -> Failure {
    Failure {
        fault: Fault::Unfit {
            key: token.uri(),
            reason: format!("the token does not take the key: {why}"),
        },
        cause: Cause::Key,
    }
}

fn device(fault: Fault) -> Failure {
    let cause = Cause::Device;
    Failure { fault, cause }
}

const READ_ONLY: &str = "the token takes no public key into a read-only session (CKR_SESSION_READ_ONLY), so that it \
     cannot verify";
