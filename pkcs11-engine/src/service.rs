//! All that is signed by one module, in the process that has loaded it: which keys are wanted, which of them are open, and
//! the search for those that are not.
//!
//! Keys are asked for by number and reference; whether and when their tokens are there is told by events. A key whose token
//! is away when the program starts is looked for again and again, at most two seconds apart, and signs as soon as it is
//! found; so nothing waits here but the threads of this service. The same service runs in the program itself or in a
//! process of its own (`helper`).

use std::collections::HashMap;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::duty::Duty;
use crate::error::{Fault, call_and_code};
use crate::key::{Failed, KeyFacts, Public};
use crate::listing::{self, TokenListing};
use crate::module::Module;
use crate::reference::Reference;
use crate::session_pool::{Job, Limits, Pool, Report};
use crate::token::{self, Token, WrongPin};
use crate::uri::{TokenFacts, Uri};
use crate::wire::Registered;
use crate::worker::Wanted;

/// What a PIN is known again by without being kept, and what makes that of no use elsewhere.
pub(crate) type Fingerprint = [u8; 32];
pub(crate) type Salt = [u8; 16];

/// What a service has to tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// A key can be signed with, or another duty is done.
    Opened {
        key: u32,
        /// What there is to know of a key.
        facts: Option<Box<KeyFacts>>,
        /// What is odd about it.
        notes: Vec<String>,
    },
    /// Keys can not be signed with, or no more.
    Away { keys: Vec<u32>, fault: Fault },
    /// The keys of a token can be signed with again.
    Back { keys: Vec<u32>, token: String },
    /// What was asked for, or why it was not done.
    Done {
        id: u64,
        result: Result<Vec<u8>, Fault>,
    },
    /// The PINs of a token that are known to be wrong, when that has changed.
    Latched { token: String, wrong: Vec<WrongPin> },
    /// No call into the module returns.
    Stuck { fault: Fault },
}

/// How a service is run.
#[derive(Clone, Debug)]
pub(crate) struct ServiceSettings {
    pub(crate) module: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) salt: Salt,
    /// PINs that are known to be wrong, by their tokens' URIs.
    pub(crate) wrong_pins: Vec<(String, WrongPin)>,
}

pub(crate) struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    settings: ServiceSettings,
    tell: Arc<dyn Fn(Event) + Send + Sync>,
    state: Mutex<State>,
    /// There is something to open, or all ends.
    wanted: Condvar,
    /// The keeper is to end.
    ending: Condvar,
}

#[derive(Default)]
struct State {
    module: Option<Arc<Module>>,
    entries: HashMap<u32, Entry>,
    pools: Vec<Arc<Pool>>,
    /// Which key the opener is at, and since when.
    opening: Option<(u32, Instant)>,
    told_stuck: bool,
    /// When the module was last initialised anew to find a token.
    searched: Option<Instant>,
    stopping: bool,
}

struct Entry {
    reference: Reference,
    duty: Duty,
    /// Its public half, once it was seen: no other is taken for it.
    known: Option<Public>,
    state: EntryState,
    /// A worker looks at it.
    is_looked_at: bool,
}

enum EntryState {
    /// Not tried yet; jobs wait for the outcome.
    New(Vec<Job>),
    /// Found, which is being told; jobs wait until it is.
    Found(Vec<Job>),
    /// Tried without success.
    Failed {
        fault: Fault,
        next: Instant,
        pause: Duration,
    },
    Open(Arc<Pool>),
}

impl Service {
    /// Starts with no key; the module is loaded when the first one is asked for.
    pub(crate) fn start(
        settings: ServiceSettings,
        tell: impl Fn(Event) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let inner = Arc::new(Inner {
            settings,
            tell: Arc::new(tell),
            state: Mutex::default(),
            wanted: Condvar::new(),
            ending: Condvar::new(),
        });
        for (name, work) in [
            ("pkcs11-opener", Inner::open_keys as fn(&Arc<Inner>)),
            ("pkcs11-keeper", Inner::keep),
        ] {
            let inner = Arc::clone(&inner);
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || work(&inner))?;
        }
        Ok(Self { inner })
    }

    /// Has the key that `reference` names opened, to be known as `number`; if it was seen before, by its public half. Or the
    /// token, for another duty.
    pub(crate) fn register(&self, registered: Registered) {
        let Registered {
            number,
            duty,
            reference,
            known,
        } = registered;
        let entry = Entry {
            reference,
            duty,
            known,
            state: EntryState::New(Vec::new()),
            is_looked_at: false,
        };
        self.inner.state().entries.insert(number, entry);
        self.inner.wanted.notify_all();
    }

    /// Forgets the key.
    pub(crate) fn forget(&self, number: u32) {
        let entry = self.inner.state().entries.remove(&number);
        match entry.map(|entry| entry.state) {
            Some(EntryState::Open(pool)) => pool.remove(number),
            Some(EntryState::New(jobs) | EntryState::Found(jobs)) => {
                // Of one that was found, whoever tells it sees that it is forgotten.
                self.inner.refuse(jobs, &Fault::NotYet);
            }
            Some(EntryState::Failed { .. }) | None => {}
        }
    }

    /// Has the tokens and keys listed that `reference` matches, by a thread of its own, since it may hang.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn list(
        &self,
        reference: Reference,
        reply: impl FnOnce(Result<Vec<TokenListing>, Fault>) + Send + 'static,
    ) -> std::io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let list = move || {
            let listed = inner.module(&reference.module).and_then(|module| {
                listing::list(&module, &reference, |facts| inner.token(&module, facts))
            });
            reply(listed);
        };
        let thread = thread::Builder::new().name("pkcs11-list".to_owned());
        thread.spawn(list).map(|_| ())
    }

    /// Takes a job; its end is an event, possibly before this returns.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.inner.state();
        let stopping = state.stopping;
        let fault = match state
            .entries
            .get_mut(&job.key)
            .map(|entry| &mut entry.state)
        {
            Some(EntryState::Open(pool)) => {
                let pool = Arc::clone(pool);
                drop(state);
                pool.submit(job);
                return;
            }
            Some(EntryState::New(jobs) | EntryState::Found(jobs))
                if jobs.len() < self.inner.settings.limits.queue =>
            {
                jobs.push(job);
                return;
            }
            Some(EntryState::New(jobs) | EntryState::Found(jobs)) => Fault::Full {
                waiting: jobs.len(),
            },
            Some(EntryState::Failed { fault, .. }) => fault.clone(),
            None if stopping => Fault::Stopped,
            None => Fault::NotYet,
        };
        drop(state);
        self.inner.refuse(vec![job], &fault);
    }

    /// Ends all: lets queues run empty until `until`, closes sessions, and finalizes the module if that is ours to do.
    /// Whether nobody is left inside the module.
    pub(crate) fn stop(&self, until: Instant) -> bool {
        let mut state = self.inner.state();
        // What waits for keys that were found this moment is still handed over.
        let is_found = |entry: &Entry| matches!(entry.state, EntryState::Found(_));
        while state.entries.values().any(is_found) && Instant::now() < until {
            drop(state);
            thread::sleep(Duration::from_millis(1));
            state = self.inner.state();
        }
        state.stopping = true;
        let (pools, module) = (mem::take(&mut state.pools), state.module.clone());
        let entries = mem::take(&mut state.entries);
        drop(state);
        self.inner.wanted.notify_all();
        self.inner.ending.notify_all();
        for entry in entries.into_values() {
            if let EntryState::New(jobs) | EntryState::Found(jobs) = entry.state {
                self.inner.refuse(jobs, &Fault::Stopped);
            }
        }
        let mut clean = true;
        for pool in pools {
            clean &= pool.stop(until);
        }
        let left = until.saturating_duration_since(Instant::now());
        module.is_none_or(|module| module.close(left.max(LAST_CALLS))) && clean
    }
}

impl Inner {
    /// The opener's thread: opens what is to be opened.
    fn open_keys(self: &Arc<Self>) {
        let mut state = self.state();
        while !state.stopping {
            let now = Instant::now();
            let due = |entry: &Entry| match &entry.state {
                _ if entry.is_looked_at => None,
                EntryState::New(_) => Some(now),
                EntryState::Failed { next, .. } => Some(*next),
                EntryState::Found(_) | EntryState::Open(_) => None,
            };
            let next = state
                .entries
                .iter()
                .filter_map(|(number, entry)| Some((due(entry)?, *number)))
                .min();
            state = match next {
                Some((at, number)) if at <= now => {
                    state.opening = Some((number, now));
                    let Some(entry) = state.entries.get_mut(&number) else {
                        continue;
                    };
                    entry.is_looked_at = true;
                    let wanted = Registered {
                        number,
                        duty: entry.duty,
                        reference: entry.reference.clone(),
                        known: entry.known.clone(),
                    };
                    drop(state);
                    let reference = wanted.reference.clone();
                    if let Err(fault) = self.open(wanted) {
                        self.failed(number, &reference, fault);
                    }
                    let mut state = self.state();
                    state.opening = None;
                    state.told_stuck = false;
                    state
                }
                Some((at, _)) => {
                    self.wanted
                        .wait_timeout(state, at - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .wanted
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The keeper's thread: what is due by the clock.
    fn keep(self: &Arc<Self>) {
        let hang = self.settings.limits.hang;
        let mut state = self.state();
        while !state.stopping {
            let now = Instant::now();
            let for_long = |since: Instant| now.duration_since(since) >= hang;
            let mut hanging = Vec::new();
            if let Some((number, since)) = state.opening.filter(|(_, since)| for_long(*since)) {
                hanging.push(number);
                if for_long(since + hang) && !state.told_stuck {
                    state.told_stuck = true;
                    drop(state);
                    (self.tell)(Event::Stuck { fault: self.hung() });
                    state = self.state();
                }
            }
            let pools = state.pools.clone();
            drop(state);
            let mut next = now + Duration::from_secs(1);
            for pool in &pools {
                let (due, looks) = pool.tick(now);
                next = next.min(due);
                hanging.extend(looks);
            }
            for number in hanging {
                self.hangs(number);
            }
            state = self.state();
            if state.stopping {
                return;
            }
            state = self
                .ending
                .wait_timeout(state, next.saturating_duration_since(Instant::now()))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn hung(&self) -> Fault {
        Fault::Hung {
            token: self.settings.module.display().to_string(),
            seconds: self.settings.limits.hang.as_secs(),
        }
    }

    /// Says of a key that it cannot sign because an attempt to open it hangs. When the attempt is over all goes on.
    fn hangs(&self, number: u32) {
        let mut state = self.state();
        let Some(entry) = state.entries.get_mut(&number) else {
            return;
        };
        if !entry.is_looked_at || !matches!(entry.state, EntryState::New(_)) {
            return;
        }
        let reference = entry.reference.clone();
        drop(state);
        self.keep_fault(number, &reference, self.hung(), true);
    }

    /// A key can be signed with.
    fn opened(
        &self,
        number: u32,
        reference: &Reference,
        pool: &Arc<Pool>,
        facts: Option<Box<KeyFacts>>,
        notes: Vec<String>,
    ) {
        let mut state = self.state();
        let Some(entry) = entry_of(&mut state, number, reference) else {
            drop(state);
            pool.remove(number);
            return;
        };
        entry.known = facts.as_ref().and_then(|facts| facts.public.clone());
        // Who is told may ask for signatures at once: they wait until all is told.
        entry.state = match mem::replace(&mut entry.state, EntryState::Found(Vec::new())) {
            EntryState::New(jobs) => EntryState::Found(jobs),
            _ => EntryState::Found(Vec::new()),
        };
        drop(state);
        (self.tell)(Event::Opened {
            key: number,
            facts,
            notes,
        });
        loop {
            let mut state = self.state();
            let Some(entry) = entry_of(&mut state, number, reference) else {
                drop(state);
                pool.remove(number);
                return;
            };
            let EntryState::Found(jobs) = &mut entry.state else {
                return;
            };
            let jobs = mem::take(jobs);
            if jobs.is_empty() {
                entry.is_looked_at = false;
                entry.state = EntryState::Open(Arc::clone(pool));
                break;
            }
            drop(state);
            jobs.into_iter().for_each(|job| pool.submit(job));
        }
        if !pool.has(number) {
            // The token went meanwhile, and its keys with it: see `lost`.
            self.failed(number, reference, pool.fault().unwrap_or(Fault::NotYet));
        }
    }

    /// An attempt to open a key has come to nothing.
    fn failed(&self, number: u32, reference: &Reference, fault: Fault) {
        self.keep_fault(number, reference, fault, false);
        self.wanted.notify_all();
    }

    /// Keeps why a key cannot be opened, and tells it if it is news.
    fn keep_fault(&self, number: u32, reference: &Reference, fault: Fault, is_looked_at: bool) {
        let mut state = self.state();
        let Some(entry) = entry_of(&mut state, number, reference) else {
            return;
        };
        entry.is_looked_at = is_looked_at;
        let pause = match &entry.state {
            EntryState::Failed { pause, .. } => (*pause * 2).min(LONGEST_PAUSE),
            _ => SHORTEST_PAUSE,
        };
        let pause = match &fault {
            Fault::OtherKey { .. } => LONGEST_PAUSE,
            fault if fault.may_pass() => pause,
            _ => FOR_PEOPLE,
        };
        let failed = EntryState::Failed {
            fault: fault.clone(),
            next: Instant::now() + pause,
            pause,
        };
        let was = mem::replace(&mut entry.state, failed);
        drop(state);
        let is_news = match &was {
            EntryState::Failed { fault: known, .. } => fault.is_news_after(known),
            _ => true,
        };
        if is_news {
            (self.tell)(Event::Away {
                keys: vec![number],
                fault: fault.clone(),
            });
        }
        if let EntryState::New(jobs) | EntryState::Found(jobs) = was {
            self.refuse(jobs, &fault);
        }
    }

    /// `token` is not there any more. Another may have come in its place, made anew under the same label: so
    /// its keys are looked for by what was asked for.
    fn lost(&self, token: &Arc<Token>, keys: &[u32], fault: &Fault) {
        let pools = self.state().pools.clone();
        let is_it = |known: &&Arc<Pool>| Arc::ptr_eq(known.token(), token);
        let Some(pool) = pools.iter().find(is_it) else {
            return;
        };
        // In this order: who opens one of them at the same time looks afterwards whether it is there still.
        for number in keys {
            pool.remove(*number);
        }
        let mut state = self.state();
        for number in keys {
            if let Some(entry) = state.entries.get_mut(number)
                && matches!(&entry.state, EntryState::Open(of_key) if Arc::ptr_eq(of_key, pool))
            {
                entry.state = EntryState::Failed {
                    fault: fault.clone(),
                    next: Instant::now() + SHORTEST_PAUSE,
                    pause: SHORTEST_PAUSE,
                };
            }
        }
        drop(state);
        self.wanted.notify_all();
    }

    /// Has the key opened that `reference` names; what comes of it is told by a worker of its token.
    fn open(self: &Arc<Self>, registered: Registered) -> Result<(), Fault> {
        let Registered {
            number,
            duty,
            reference,
            known,
        } = registered;
        let module = self.module(&reference.module)?;
        let token = self.find_token(&module, &reference.uri)?;
        let pool = self.pool(&module, token)?;
        if duty == Duty::Sign {
            pool.token().need_login();
        }
        pool.token().take_pin_from(reference.pin.as_ref());
        let wanted = Wanted {
            number,
            duty,
            uri: reference.uri.clone(),
            choice: reference.mechanism(),
            known,
        };
        let inner = Arc::clone(self);
        let of_key = Arc::clone(&pool);
        pool.open(wanted, move |looked| match looked {
            Ok((facts, notes)) => inner.opened(number, &reference, &of_key, facts, notes),
            Err(fault) => inner.failed(number, &reference, fault),
        });
        Ok(())
    }

    /// The module, loaded when it is first wanted.
    fn module(&self, path: &Path) -> Result<Arc<Module>, Fault> {
        if let Some(module) = &self.state().module {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(Module::load(path)?);
        let mut state = self.state();
        if state.stopping {
            return Err(Fault::Stopped);
        }
        Ok(Arc::clone(state.module.get_or_insert(module)))
    }

    /// The one token that `uri` names. Some modules see a new token only once they are initialised anew, which is done if
    /// it is ours to do.
    fn find_token(&self, module: &Module, uri: &Uri) -> Result<TokenFacts, Fault> {
        let entered = module.enter()?;
        let generation = entered.generation();
        let fault = match find(&entered, uri, module) {
            Err(fault @ (Fault::NoToken { .. } | Fault::Module { .. })) => fault,
            other => return other,
        };
        drop(entered);
        if !self.may_search() || !module.restart(generation, Duration::from_secs(1))? {
            return Err(fault);
        }
        find(&module.enter()?, uri, module)
    }

    /// Whether a new initialisation is due, which interrupts the tokens that do sign.
    fn may_search(&self) -> bool {
        let mut state = self.state();
        let others_sign = state
            .pools
            .iter()
            .any(|pool| pool.has_keys() && pool.fault().is_none());
        let pause = if others_sign {
            SEARCH_PAUSE
        } else {
            Duration::ZERO
        };
        let due = state.searched.is_none_or(|at| at.elapsed() >= pause);
        if due {
            state.searched = Some(Instant::now());
        }
        due
    }

    /// The token, as it is known here.
    fn token(self: &Arc<Self>, module: &Arc<Module>, facts: &TokenFacts) -> Arc<Token> {
        let known = self.pool_of(&self.state(), facts);
        known.map_or_else(
            || Arc::new(self.new_token(module, facts.clone())),
            |pool| Arc::clone(pool.token()),
        )
    }

    fn pool_of(&self, state: &State, facts: &TokenFacts) -> Option<Arc<Pool>> {
        let mut pools = state.pools.iter();
        let pool = pools.find(|pool| pool.token().facts().is_same_token(facts));
        pool.map(Arc::clone)
    }

    fn new_token(&self, module: &Arc<Module>, facts: TokenFacts) -> Token {
        let uri = Uri::of_token(&facts).to_string();
        let known = self.settings.wrong_pins.iter();
        let wrong = known
            .filter(|(token, _)| *token == uri)
            .map(|(_, wrong)| wrong.clone())
            .collect();
        let tell = Arc::clone(&self.tell);
        Token::new(
            Arc::clone(module),
            facts,
            self.settings.salt,
            wrong,
            move |wrong| {
                tell(Event::Latched {
                    token: uri.clone(),
                    wrong,
                });
            },
        )
    }

    /// The pool of `token`, started if this is its first key.
    fn pool(self: &Arc<Self>, module: &Arc<Module>, facts: TokenFacts) -> Result<Arc<Pool>, Fault> {
        let mut state = self.state();
        if state.stopping {
            return Err(Fault::Stopped);
        }
        if let Some(known) = self.pool_of(&state, &facts) {
            return Ok(known);
        }
        let uri = Uri::of_token(&facts).to_string();
        let token = Arc::new(self.new_token(module, facts));
        // The pools belong to this; a worker that outlives it has nobody to tell.
        let (inner, of_pool) = (Arc::downgrade(self), Arc::clone(&token));
        let pool = Pool::start(token, self.settings.limits, move |report| {
            let Some(inner) = inner.upgrade() else { return };
            let event = match report {
                Report::Done(id, result) => Event::Done { id, result },
                Report::Keys(keys, Ok(())) => Event::Back {
                    keys,
                    token: uri.clone(),
                },
                Report::Keys(keys, Err(fault)) => {
                    if matches!(fault, Fault::NoToken { .. }) {
                        inner.lost(&of_pool, &keys, &fault);
                    }
                    Event::Away { keys, fault }
                }
                Report::Stuck(fault) => Event::Stuck { fault },
            };
            (inner.tell)(event);
        });
        let pool = Arc::new(pool.map_err(|error| Fault::Module {
            module: module.path().display().to_string(),
            reason: error.to_string(),
        })?);
        state.pools.push(Arc::clone(&pool));
        Ok(pool)
    }

    fn refuse(&self, jobs: Vec<Job>, fault: &Fault) {
        for job in jobs {
            (self.tell)(Event::Done {
                id: job.id,
                result: Err(fault.clone()),
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of that number, unless it was forgotten or replaced.
fn entry_of<'s>(state: &'s mut State, number: u32, reference: &Reference) -> Option<&'s mut Entry> {
    let entry = state.entries.get_mut(&number);
    entry.filter(|entry| entry.reference == *reference)
}

fn find(
    entered: &crate::module::Entered<'_>,
    uri: &Uri,
    module: &Module,
) -> Result<TokenFacts, Fault> {
    match token::find(entered, uri) {
        Ok((_, facts)) => Ok(facts),
        Err(Failed::Fault(fault)) => Err(fault),
        Err(Failed::Call(error)) => {
            let (call, code) = call_and_code(&error);
            Err(Fault::Module {
                module: module.path().display().to_string(),
                reason: format!("{call} failed with {code}"),
            })
        }
    }
}

/// How long a key that cannot be opened is left alone, at first and at most; and one that only a change by people helps.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const FOR_PEOPLE: Duration = Duration::from_secs(30);

/// How often a module is initialised anew in search of one token while it signs with others.
const SEARCH_PAUSE: Duration = Duration::from_secs(4);

/// How long the last calls may take at the end, when the queues have taken all the time there was.
const LAST_CALLS: Duration = Duration::from_millis(200);
