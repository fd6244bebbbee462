//! The way in: keys in tokens by their references, as signing keys like any other.
//!
//! [`Tokens`] belongs to the program, which makes it once and shuts it down last. A [`TokenKey`] is one key that was asked
//! for, whether its token is there or not. Once it has been seen it is a [`SigningKey`]; from then on it knows its public
//! half, and takes no other key for it. What is submitted ends by its deadline, whatever becomes of the token.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dkim_core::engine::{Completion, KeyType, PublicKey, SigningError, SigningKey};

use crate::duty::{Asked, Duty};
use crate::error::Fault;
use crate::isolated::{Isolated, Told};
use crate::key::KeyFacts;
use crate::listing::TokenListing;
use crate::reference::Reference;
use crate::service::{Event, Salt, Service, ServiceSettings};
use crate::session_pool::{Job, Limits};
use crate::settings::{Isolation, Level, Notice, Settings};
use crate::wire::Registered;

/// All tokens of a program. Cheap to clone.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    settings: Settings,
    salt: Salt,
    notify: Box<dyn Fn(Notice) + Send + Sync>,
    state: Mutex<State>,
    pending: Mutex<Pending>,
    /// A deadline is earlier than all before.
    alarm: Condvar,
    /// Numbers digests.
    pub(crate) digests: AtomicU64,
}

#[derive(Default)]
struct State {
    hosts: HashMap<Place, Arc<Host>>,
    keys: HashMap<u32, Weak<TokenKey>>,
    last_key: u32,
    stopped: bool,
}

/// Which module, and whether what strangers send goes into it: that has a process of its own.
type Place = (PathBuf, bool);

/// Who has a module.
enum Host {
    Here(Service),
    Apart(Isolated),
}

#[derive(Default)]
struct Pending {
    completions: HashMap<u64, (Then, Instant)>,
    deadlines: BTreeSet<(Instant, u64)>,
    last: u64,
    stopped: bool,
}

/// Who is told how something ended.
pub(crate) type Then = Box<dyn FnOnce(Result<Vec<u8>, Fault>) + Send>;

/// A key in a token, as it was asked for; or, within this crate, a token with another duty.
pub struct TokenKey {
    number: u32,
    duty: Duty,
    reference: Reference,
    host: Arc<Host>,
    pub(crate) tokens: Arc<Inner>,
    state: Mutex<KeyState>,
    changed: Condvar,
}

#[derive(Default)]
struct KeyState {
    /// What it is, once it was seen; never another afterwards.
    seen: Option<Seen>,
    /// Why it cannot sign now.
    fault: Option<Fault>,
    /// How many wait for the first outcome, who will tell it.
    waiting: usize,
}

struct Seen {
    /// What there is to know of a key.
    key: Option<(Box<KeyFacts>, PublicKey)>,
    notes: Vec<String>,
}

impl Tokens {
    /// No module is loaded and no process started before a key is asked for. `notify` is told what an operator should
    /// know, from any thread.
    ///
    /// # Errors
    /// No thread can be started, or the system has no random numbers.
    pub fn new(
        settings: Settings,
        notify: impl Fn(Notice) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let mut salt = Salt::default();
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())?;
        let inner = Arc::new(Inner {
            settings,
            salt,
            notify: Box::new(notify),
            state: Mutex::default(),
            pending: Mutex::default(),
            alarm: Condvar::new(),
            digests: AtomicU64::new(1),
        });
        let timekeeper = Arc::clone(&inner);
        thread::Builder::new()
            .name("pkcs11-time".to_owned())
            .spawn(move || timekeeper.keep_time())?;
        Ok(Self { inner })
    }

    /// The key that `reference` names; the same one as long as anybody has it, unless another key has taken its place. Its
    /// token is looked for from now on, by threads of their own.
    ///
    /// # Errors
    /// All was shut down, or no thread can be started.
    pub fn key(&self, reference: &Reference) -> Result<Arc<TokenKey>, Fault> {
        self.named(reference, Duty::Sign)
    }

    /// What `reference` names for that `duty`.
    pub(crate) fn named(&self, reference: &Reference, duty: Duty) -> Result<Arc<TokenKey>, Fault> {
        let mut state = self.inner.state();
        if state.stopped {
            return Err(Fault::Stopped);
        }
        // All of them are held until the lock is not: the last one who has a key needs it to forget the key.
        let known: Vec<_> = state.keys.values().filter_map(Weak::upgrade).collect();
        let is_it = |key: &&Arc<TokenKey>| {
            // One whose place another key has taken stays what it is, for those who have it.
            key.duty == duty
                && key.reference == *reference
                && !matches!(key.fault(), Some(Fault::OtherKey { .. }))
        };
        if let Some(key) = known.iter().find(is_it) {
            let key = Arc::clone(key);
            drop(state);
            return Ok(key);
        }
        let host = self.host(&mut state, reference, duty)?;
        state.last_key += 1;
        let key = Arc::new(TokenKey {
            number: state.last_key,
            duty,
            reference: reference.clone(),
            host,
            tokens: Arc::clone(&self.inner),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        state.keys.insert(key.number, Arc::downgrade(&key));
        drop(state);
        drop(known);
        match &*key.host {
            Host::Here(service) => service.register(Registered {
                number: key.number,
                duty,
                reference: reference.clone(),
                known: None,
            }),
            Host::Apart(process) => process.register(key.number, duty, reference.clone()),
        }
        Ok(key)
    }

    /// The tokens and private keys that `reference` matches, which may be all there are. Its PIN is tried if exactly one
    /// token matches.
    ///
    /// # Errors
    /// The module cannot be used, or does not answer.
    pub fn list(&self, reference: &Reference) -> Result<Vec<TokenListing>, Fault> {
        let host = self.host(&mut self.inner.state(), reference, Duty::Sign)?;
        match &*host {
            Host::Here(service) => {
                let (sender, receiver) = mpsc::channel();
                let reply = move |listed| {
                    // Whoever asked may have given up.
                    let _ = sender.send(listed);
                };
                service
                    .list(reference.clone(), reply)
                    .map_err(|error| Fault::Module {
                        module: reference.module.display().to_string(),
                        reason: error.to_string(),
                    })?;
                receiver.recv_timeout(LISTING).unwrap_or(Err(Fault::Late))
            }
            Host::Apart(process) => process.list(reference.clone(), LISTING),
        }
    }

    /// Why keys cannot sign now, each fault once, with how many keys it concerns.
    pub fn faults(&self) -> Vec<(Fault, usize)> {
        let keys: Vec<_> = {
            let state = self.inner.state();
            state.keys.values().filter_map(Weak::upgrade).collect()
        };
        let mut faults: Vec<(Fault, usize)> = Vec::new();
        for fault in distinct(&keys).iter().filter_map(|key| key.fault()) {
            match faults.iter_mut().find(|(known, _)| *known == fault) {
                Some((_, count)) => *count += 1,
                None => faults.push((fault, 1)),
            }
        }
        faults
    }

    /// Ends all: what waits is signed if there is time within `within`, sessions are closed, modules finalized if that is
    /// ours to do and nobody is inside. To be called once, at the end; afterwards nothing is signed. Whether nothing had
    /// to be left as it was.
    pub fn shut_down(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut state = self.inner.state();
        state.stopped = true;
        let hosts = std::mem::take(&mut state.hosts);
        drop(state);
        let mut clean = true;
        for host in hosts.into_values() {
            clean &= match &*host {
                Host::Here(service) => service.stop(until),
                Host::Apart(process) => process.stop(until),
            };
        }
        let mut pending = self.inner.pending();
        pending.stopped = true;
        let left: Vec<u64> = pending.completions.keys().copied().collect();
        drop(pending);
        for id in left {
            self.inner.complete(id, Err(Fault::Stopped));
        }
        self.inner.alarm.notify_all();
        clean
    }

    /// Who has the module, started if nobody has.
    fn host(
        &self,
        state: &mut State,
        reference: &Reference,
        duty: Duty,
    ) -> Result<Arc<Host>, Fault> {
        if state.stopped {
            return Err(Fault::Stopped);
        }
        // In one process there is one C_Initialize for all.
        let has_processes = self.inner.settings.isolation != Isolation::None;
        let place = (
            reference.module.clone(),
            has_processes && duty != Duty::Sign,
        );
        if let Some(host) = state.hosts.get(&place) {
            return Ok(Arc::clone(host));
        }
        let settings = &self.inner.settings;
        let service = ServiceSettings {
            module: reference.module.clone(),
            limits: Limits {
                workers: settings.sessions.max(1),
                queue: settings.queue.max(1),
                hang: settings.timeout,
            },
            salt: self.inner.salt,
            wrong_pins: Vec::new(),
        };
        // Who is told does not keep what tells it.
        let told = Arc::downgrade(&self.inner);
        let module = reference.module.clone();
        let started = match &settings.isolation {
            Isolation::None => Service::start(service, move |event| {
                if let Some(inner) = told.upgrade() {
                    inner.happened(event);
                }
            })
            .map(Host::Here),
            Isolation::Process { program } => {
                Isolated::start(program.clone(), service, move |what| {
                    let Some(inner) = told.upgrade() else { return };
                    match what {
                        Told::Event(event) => inner.happened(event),
                        Told::Ended(reason) => (inner.notify)(Notice {
                            level: Level::Warning,
                            text: format!("the process that holds {} {reason}", module.display()),
                            measure: Some("another one is started"),
                        }),
                    }
                })
                .map(Host::Apart)
            }
        };
        let host = Arc::new(started.map_err(|error| Fault::Module {
            module: reference.module.display().to_string(),
            reason: error.to_string(),
        })?);
        state.hosts.insert(place, Arc::clone(&host));
        Ok(host)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Inner {
    fn happened(&self, event: Event) {
        match event {
            Event::Done { id, result } => self.complete(id, result),
            Event::Opened { key, facts, notes } => self.opened(key, facts, notes),
            Event::Away { keys, fault } => {
                let keys = self.keys(&keys);
                let mut is_news = false;
                for key in &keys {
                    is_news |= key.set_fault(&fault);
                }
                if is_news {
                    let text = match &distinct(&keys)[..] {
                        [key] => key.cannot(&fault),
                        keys if keys.iter().all(|key| key.duty == Duty::Sign) => {
                            format!("{} keys cannot sign: {fault}", keys.len())
                        }
                        keys => {
                            format!(
                                "{} keys and duties are without a token: {fault}",
                                keys.len()
                            )
                        }
                    };
                    self.notice(Level::Error, text);
                }
            }
            Event::Back { keys, token } => {
                let mut back: Vec<&str> = Vec::new();
                for key in self.keys(&keys) {
                    if key.clear_fault() && !back.contains(&key.duty.does()) {
                        back.push(key.duty.does());
                    }
                }
                if !back.is_empty() {
                    let does = back.join(" and ");
                    self.notice(Level::Info, format!("token {token} {does} again"));
                }
            }
            // For who restarts processes; of each key it is told by itself that it is away.
            Event::Stuck { .. } | Event::Latched { .. } => {}
        }
    }

    fn opened(&self, number: u32, facts: Option<Box<KeyFacts>>, notes: Vec<String>) {
        let Some(key) = self.keys(&[number]).pop() else {
            return;
        };
        let found = facts.and_then(|facts| {
            let public = facts.public.as_ref()?.key()?;
            Some((facts, public))
        });
        if found.is_some() != (key.duty == Duty::Sign) {
            return;
        }
        let mut state = key.state();
        let is_first = state.seen.is_none();
        let before = state.seen.as_ref().and_then(|seen| seen.key.as_ref());
        let fault = match (before, &found) {
            (Some((_, known)), Some((facts, public))) if known != public => Some(Fault::OtherKey {
                key: facts.uri.clone(),
            }),
            _ => None,
        };
        let before = std::mem::replace(&mut state.fault, fault.clone());
        let is_told = is_first && before.is_none() && state.waiting > 0;
        let text = match &fault {
            Some(fault) => key.cannot(fault),
            None => match &found {
                Some((facts, _)) => format!("{} signs: {}", key.reference.uri, facts.summary()),
                None => format!("{} {}", key.reference.uri, key.duty.does()),
            },
        };
        if is_first {
            state.seen = Some(Seen {
                key: found,
                notes: notes.clone(),
            });
        }
        drop(state);
        key.changed.notify_all();
        match fault {
            Some(_) => self.notice(Level::Error, text),
            None if is_told => return,
            None if is_first || before.is_some() => self.notice(Level::Info, text),
            None => {}
        }
        if is_first {
            for note in notes {
                self.notice(Level::Warning, note);
            }
        }
    }

    /// Takes a job for the key, and the promise to complete it.
    fn submit(&self, key: &TokenKey, asked: Asked, within: Duration, then: Then) {
        let deadline = Instant::now() + within.min(self.settings.timeout);
        let mut pending = self.pending();
        let waiting = pending.completions.len();
        if waiting >= MOST_PENDING || pending.stopped {
            let fault = if pending.stopped {
                Fault::Stopped
            } else {
                Fault::Full { waiting }
            };
            drop(pending);
            return then(Err(fault));
        }
        pending.last += 1;
        let id = pending.last;
        pending.completions.insert(id, (then, deadline));
        let is_first = pending
            .deadlines
            .first()
            .is_none_or(|(first, _)| deadline < *first);
        pending.deadlines.insert((deadline, id));
        drop(pending);
        if is_first {
            self.alarm.notify_all();
        }
        let job = Job {
            id,
            key: key.number,
            asked,
            deadline,
        };
        key.host.submit(job);
    }

    fn complete(&self, id: u64, result: Result<Vec<u8>, Fault>) {
        let mut pending = self.pending();
        let Some((then, deadline)) = pending.completions.remove(&id) else {
            return;
        };
        pending.deadlines.remove(&(deadline, id));
        drop(pending);
        then(result);
    }

    /// The timekeeper's thread: what is late is over.
    fn keep_time(&self) {
        let mut pending = self.pending();
        loop {
            let now = Instant::now();
            let first = pending.deadlines.first().copied();
            pending = match first {
                Some((deadline, id)) if deadline <= now => {
                    drop(pending);
                    self.complete(id, Err(Fault::Late));
                    self.pending()
                }
                _ if pending.stopped && first.is_none() => return,
                Some((deadline, _)) => {
                    self.alarm
                        .wait_timeout(pending, deadline - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .alarm
                    .wait(pending)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn keys(&self, numbers: &[u32]) -> Vec<Arc<TokenKey>> {
        let state = self.state();
        numbers
            .iter()
            .filter_map(|number| state.keys.get(number)?.upgrade())
            .collect()
    }

    fn notice(&self, level: Level, text: String) {
        (self.notify)(Notice {
            level,
            text,
            measure: None,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `keys`, each once: one whose URI a reload has changed in how it is used is there twice until the last message has ended
/// that began before. The newest stands for both.
fn distinct(keys: &[Arc<TokenKey>]) -> Vec<&Arc<TokenKey>> {
    let mut newest: Vec<&Arc<TokenKey>> = Vec::new();
    for key in keys {
        let is_it = |other: &&mut &Arc<TokenKey>| {
            other.duty == key.duty
                && other.reference.module == key.reference.module
                && other.reference.uri.names_as(&key.reference.uri)
        };
        match newest.iter_mut().find(is_it) {
            Some(other) if other.number < key.number => *other = key,
            Some(_) => {}
            None => newest.push(key),
        }
    }
    newest
}

impl Host {
    fn submit(&self, job: Job) {
        match self {
            Self::Here(service) => service.submit(job),
            Self::Apart(process) => process.submit(job),
        }
    }
}

impl TokenKey {
    /// Asks for something; `then` is told how it ended.
    pub(crate) fn ask(&self, asked: Asked, within: Duration, then: Then) {
        self.tokens.submit(self, asked, within, then);
    }

    /// Has a digest abandoned, of which nobody is told.
    pub(crate) fn abandon(&self, digest: u64) {
        self.host.submit(Job {
            // No number of anything that is awaited.
            id: 0,
            key: self.number,
            asked: Asked::Abandon(digest),
            deadline: Instant::now(),
        });
    }

    fn cannot(&self, fault: &Fault) -> String {
        let verb = self.duty.verb();
        format!("{} cannot {verb}: {fault}", self.reference.uri)
    }

    /// Waits until it is known whether the key can sign, at most as long as `within`. Who waits for the first outcome gets
    /// it here, and there is no notice of it.
    ///
    /// # Errors
    /// Why it cannot, or not yet.
    pub fn wait(&self, within: Duration) -> Result<KeyFacts, Fault> {
        self.wait_for_outcome(within)?;
        let state = self.state();
        let seen = state.seen.as_ref().and_then(|seen| seen.key.as_ref());
        seen.map_or(Err(Fault::NotYet), |(facts, _)| Ok((**facts).clone()))
    }

    /// The same, without what there is to know of a key.
    pub(crate) fn wait_for_outcome(&self, within: Duration) -> Result<(), Fault> {
        let until = Instant::now() + within;
        let mut state = self.state();
        state.waiting += 1;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let outcome = match (&state.fault, &state.seen) {
                (Some(fault), _) => Some(Err(fault.clone())),
                (None, Some(_)) => Some(Ok(())),
                (None, None) if left.is_zero() => Some(Err(Fault::NotYet)),
                (None, None) => None,
            };
            if let Some(outcome) = outcome {
                state.waiting -= 1;
                return outcome;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The key, to sign with, once it was seen; its token may be away even so.
    ///
    /// # Errors
    /// Why it was not seen yet.
    pub fn signing_key(self: &Arc<Self>) -> Result<Arc<dyn SigningKey>, Fault> {
        let state = self.state();
        match (&state.seen, &state.fault) {
            (_, Some(fault @ Fault::OtherKey { .. })) => Err(fault.clone()),
            (
                Some(Seen {
                    key: Some((_, public)),
                    ..
                }),
                _,
            ) => Ok(Arc::new(SeenKey {
                key: Arc::clone(self),
                public: public.clone(),
            })),
            (_, fault) => Err(fault.clone().unwrap_or(Fault::NotYet)),
        }
    }

    /// Why it cannot sign now, if so.
    pub fn fault(&self) -> Option<Fault> {
        let state = self.state();
        match (&state.fault, &state.seen) {
            (Some(fault), _) => Some(fault.clone()),
            (None, Some(_)) => None,
            (None, None) => Some(Fault::NotYet),
        }
    }

    /// What is odd about it, once it was seen.
    pub fn notes(&self) -> Vec<String> {
        let state = self.state();
        state
            .seen
            .as_ref()
            .map_or_else(Vec::new, |seen| seen.notes.clone())
    }

    /// Keeps the fault; whether it is news.
    fn set_fault(&self, fault: &Fault) -> bool {
        let mut state = self.state();
        let is_told = state.seen.is_none() && state.fault.is_none() && state.waiting > 0;
        let before = state.fault.replace(fault.clone());
        drop(state);
        self.changed.notify_all();
        !is_told && before.is_none_or(|before| fault.is_news_after(&before))
    }

    /// Whether there was a fault, which there is no more.
    fn clear_fault(&self) -> bool {
        let mut state = self.state();
        let before = state.fault.take();
        drop(state);
        self.changed.notify_all();
        before.is_some()
    }

    fn state(&self) -> MutexGuard<'_, KeyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TokenKey {
    fn drop(&mut self) {
        self.tokens.state().keys.remove(&self.number);
        match &*self.host {
            Host::Here(service) => service.forget(self.number),
            Host::Apart(process) => process.forget(self.number),
        }
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey")
            .field("uri", &self.reference.uri)
            .finish_non_exhaustive()
    }
}

/// A key that was seen.
#[derive(Debug)]
struct SeenKey {
    key: Arc<TokenKey>,
    public: PublicKey,
}

impl SigningKey for SeenKey {
    fn key_type(&self) -> KeyType {
        self.public.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        &self.public
    }

    fn engine(&self) -> &'static str {
        "pkcs11"
    }

    /// Waits for the token, at most as long as a signature may take.
    fn sign(&self, octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        let (sender, receiver) = mpsc::channel();
        let completion = Completion::new(move |result| {
            // Who waited is there: it waits without end.
            let _ = sender.send(result);
        });
        self.submit(octets.to_vec(), Duration::MAX, completion);
        receiver
            .recv()
            .unwrap_or_else(|_| Err(signing_error(&Fault::Late)))
    }

    fn submit(&self, octets: Vec<u8>, within: Duration, completion: Completion) {
        let then = move |made: Result<Vec<u8>, Fault>| {
            completion.complete(made.map_err(|fault| signing_error(&fault)));
        };
        self.key.ask(Asked::Sign(octets), within, Box::new(then));
    }
}

fn signing_error(fault: &Fault) -> SigningError {
    SigningError(fault.to_string())
}

/// How many signatures may wait for all tokens together: some megabytes.
const MOST_PENDING: usize = 4096;

/// How long a list of keys may take: some tokens read every object anew.
const LISTING: Duration = Duration::from_secs(60);
