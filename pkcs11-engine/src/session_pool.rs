//! The workers of one token: a bounded queue before them, and a breaker that keeps mail from waiting for a token that is
//! away.
//!
//! Each worker is a thread with a session of its own, since a session does one thing at a time. A token that fails beyond
//! what `worker` mends opens the breaker: what is asked for then fails at once, and a test signature, made every two
//! seconds at most, finds out when the token is back. The same test signature is made when nothing else was for a while:
//! firewalls and devices close what is idle. What has no such check of each answer, a token that verifies or hashes, is
//! tested as often whatever else it does. A token that has room for fewer sessions than there are workers gets fewer
//! workers; where digests have the sessions, others wait for them. Calls cannot be cancelled: that none returns is reported,
//! and what follows is for whoever can end the process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::duty::{Asked, BAD, Digests, GOOD};
use crate::error::{Cause, Fault};
use crate::key::KeyFacts;
use crate::token::Token;
use crate::worker::{Failure, InToken, Purpose, Wanted, Worker};

/// Something to be done.
pub(crate) struct Job {
    pub(crate) id: u64,
    /// The number of the key, or of what else the token was named for.
    pub(crate) key: u32,
    pub(crate) asked: Asked,
    /// Nobody waits for it any more after that.
    pub(crate) deadline: Instant,
}

/// What a pool has to tell.
pub(crate) enum Report {
    /// A job is done.
    Done(u64, Result<Vec<u8>, Fault>),
    /// Keys can be signed with again, or not any more: all of the token or some.
    Keys(Vec<u32>, Result<(), Fault>),
    /// No call into the module returns.
    Stuck(Fault),
}

/// How a pool is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many workers.
    pub(crate) workers: usize,
    /// How many jobs may wait.
    pub(crate) queue: usize,
    /// How long a call may take before it counts as hung.
    pub(crate) hang: Duration,
}

pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    token: Arc<Token>,
    limits: Limits,
    tell: Box<dyn Fn(Report) + Send + Sync>,
    state: Mutex<State>,
    digests: Digests,
    /// There is something to do.
    wake: Condvar,
    /// For those that had no room: the pool ends.
    parked: Condvar,
    /// A worker is gone.
    gone: Condvar,
}

struct State {
    keys: HashMap<u32, Arc<InToken>>,
    /// When duties were tested last, whose answers nobody checks otherwise.
    tested: HashMap<u32, Instant>,
    /// Keys that alone cannot sign, why, and until when they are not tried.
    ailing: HashMap<u32, (Fault, Instant)>,
    queue: VecDeque<Task>,
    /// Jobs for which there is no session before a digest ends.
    waiting: VecDeque<Job>,
    /// Keys to be looked at. While there is mail they get every other turn: a token may have hundreds of keys.
    looks: VecDeque<Box<Look>>,
    was_look: bool,
    breaker: Breaker,
    /// What each worker does.
    busy: Vec<Option<Busy>>,
    /// Workers for whose sessions there is room, as far as is known.
    active: usize,
    /// Workers whose threads run.
    living: usize,
    /// Whether a test signature is queued or being made, and since when.
    probing: Option<Instant>,
    /// Whether it was told that nothing returns.
    told_stuck: bool,
    last_used: Instant,
    stopping: bool,
}

#[derive(Clone, Copy)]
struct Busy {
    since: Instant,
    /// The number of the key that is looked at, if one is.
    look: Option<u32>,
}

enum Task {
    Job(Job),
    /// A digest that is not wanted any more.
    Abandon(u64),
    /// A test signature with the key of that number, or with any.
    Probe(Option<u32>),
    Look(Box<Look>),
}

/// A key to be looked at before it is signed with.
struct Look {
    wanted: Wanted,
    reply: Reply,
}

/// Who is told what a look at a key has come to.
type Reply = Box<dyn FnOnce(LookedAt) + Send>;

/// What there is to know of a key, nothing of other duties, and what is odd; or why it cannot be used.
pub(crate) type LookedAt = Result<(Option<Box<KeyFacts>>, Vec<String>), Fault>;

enum Breaker {
    Closed,
    Open {
        fault: Fault,
        next: Instant,
        pause: Duration,
    },
}

impl Pool {
    /// Starts the workers of `token`; if none can be started there is no pool.
    pub(crate) fn start(
        token: Arc<Token>,
        limits: Limits,
        tell: impl Fn(Report) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            token,
            limits,
            tell: Box::new(tell),
            state: Mutex::new(State {
                keys: HashMap::new(),
                tested: HashMap::new(),
                ailing: HashMap::new(),
                queue: VecDeque::new(),
                waiting: VecDeque::new(),
                looks: VecDeque::new(),
                was_look: false,
                breaker: Breaker::Closed,
                busy: vec![None; limits.workers],
                active: limits.workers,
                living: limits.workers,
                probing: None,
                told_stuck: false,
                last_used: Instant::now(),
                stopping: false,
            }),
            digests: Digests::default(),
            wake: Condvar::new(),
            parked: Condvar::new(),
            gone: Condvar::new(),
        });
        for number in 0..limits.workers {
            let of_thread = Arc::clone(&shared);
            let started = thread::Builder::new()
                .name("pkcs11-worker".to_owned())
                .spawn(move || of_thread.work(number));
            if let Err(error) = started {
                // Out of threads: the others do what they can.
                let mut state = shared.state();
                state.active -= 1;
                state.living -= 1;
                if number + 1 == limits.workers && state.living == 0 {
                    return Err(error);
                }
            }
        }
        Ok(Self { shared })
    }

    pub(crate) fn token(&self) -> &Arc<Token> {
        &self.shared.token
    }

    /// Has the key found, and a test signature made with it. If all is well it can be signed with by the time `reply` is
    /// told, which is done by a worker, and not at all if the pool ends.
    pub(crate) fn open(&self, wanted: Wanted, reply: impl FnOnce(LookedAt) + Send + 'static) {
        let reply = Box::new(reply);
        let look = Box::new(Look { wanted, reply });
        self.shared.state().looks.push_back(look);
        self.shared.wake.notify_one();
    }

    /// Whether there is the key of that number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.shared.state().keys.contains_key(&number)
    }

    /// Whether there is anything to sign with.
    pub(crate) fn has_keys(&self) -> bool {
        !self.shared.state().keys.is_empty()
    }

    /// Forgets the key of that number.
    pub(crate) fn remove(&self, number: u32) {
        let mut state = self.shared.state();
        state.keys.remove(&number);
        state.tested.remove(&number);
        state.ailing.remove(&number);
    }

    /// Why the token is away, if it is.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &self.shared.state().breaker {
            Breaker::Open { fault, .. } => Some(fault.clone()),
            Breaker::Closed => None,
        }
    }

    /// Takes a job; what becomes of it is reported, possibly before this returns.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state();
        if let Asked::Abandon(digest) = job.asked {
            // Behind the steps that may be waiting.
            state.queue.push_back(Task::Abandon(digest));
            drop(state);
            self.shared.wake.notify_one();
            return;
        }
        let refusal = match &state.breaker {
            _ if state.stopping => Some(Fault::Stopped),
            Breaker::Open { fault, .. } => Some(fault.clone()),
            Breaker::Closed if state.asked_for() >= self.shared.limits.queue => Some(Fault::Full {
                waiting: state.asked_for(),
            }),
            Breaker::Closed => match &job.asked {
                Asked::Digest(step)
                    if step.is_first && !self.shared.digests.begin(step.digest, MOST_DIGESTS) =>
                {
                    Some(Fault::Full {
                        waiting: MOST_DIGESTS,
                    })
                }
                _ => None,
            },
        };
        match refusal {
            Some(fault) => {
                drop(state);
                (self.shared.tell)(Report::Done(job.id, Err(fault)));
            }
            None => {
                state.queue.push_back(Task::Job(job));
                drop(state);
                self.shared.wake.notify_one();
            }
        }
    }

    /// Does what is due by the clock; when it is to be called again at the latest, and the numbers of keys a look at which
    /// hangs.
    pub(crate) fn tick(&self, now: Instant) -> (Instant, Vec<u32>) {
        let shared = &self.shared;
        let mut state = shared.state();
        let hang = shared.limits.hang;
        let hangs = |since: &Instant| now.duration_since(*since) >= hang;
        let hung: Vec<Busy> = state
            .busy
            .iter()
            .flatten()
            .filter(|busy| hangs(&busy.since))
            .copied()
            .collect();
        let looks = hung.iter().filter_map(|busy| busy.look).collect();
        state.told_stuck &= !hung.is_empty();
        let is_open = matches!(state.breaker, Breaker::Open { .. });
        if !hung.is_empty() && (hung.len() >= state.active || is_open || state.keys.is_empty()) {
            if state.probing.as_ref().is_some_and(hangs) {
                // Another worker, if there is one, may find out.
                state.queue.retain(|task| !matches!(task, Task::Probe(_)));
                state.probing = None;
            }
            if !state.told_stuck {
                state.told_stuck = true;
                let fault = Fault::Hung {
                    token: shared.token.uri(),
                    seconds: hang.as_secs(),
                };
                shared.open_breaker(state, fault.clone());
                (shared.tell)(Report::Stuck(fault));
                state = shared.state();
            }
        }
        // So that none waits beyond its time for an end that nobody noticed.
        while state.readmit() {
            shared.wake.notify_one();
        }
        let (due, key) = match &state.breaker {
            Breaker::Open { next, .. } => (*next, None),
            Breaker::Closed => {
                let ailing = state
                    .ailing
                    .iter()
                    .map(|(key, (_, until))| (*until, Some(*key)));
                let tests = state
                    .tested
                    .iter()
                    .map(|(key, at)| (*at + IDLE, Some(*key)));
                let idle = (state.last_used + IDLE, None);
                ailing.chain(tests).min().map_or(idle, |due| due.min(idle))
            }
        };
        if now >= due && state.probing.is_none() && !state.keys.is_empty() && !state.stopping {
            state.probing = Some(now);
            state.queue.push_front(Task::Probe(key));
            shared.wake.notify_one();
        }
        let next = if due > now {
            due.min(now + TICK)
        } else {
            now + TICK
        };
        (next, looks)
    }

    /// Ends the workers once the queue is empty, or at `until`, and logs out by closing the last session. Whether all of
    /// them have ended.
    pub(crate) fn stop(&self, until: Instant) -> bool {
        let shared = &self.shared;
        let mut state = shared.state();
        state.stopping = true;
        while state.readmit() {}
        shared.wake.notify_all();
        shared.parked.notify_all();
        while state.living > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared
                .gone
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let is_empty = state.living == 0;
        // One may have come to wait just before it was known that all ends.
        while state.readmit() {}
        let left = mem::take(&mut state.queue);
        let looks = mem::take(&mut state.looks);
        drop(state);
        drop(looks);
        for task in left {
            if let Task::Job(job) = task {
                (shared.tell)(Report::Done(job.id, Err(Fault::Stopped)));
            }
        }
        if is_empty && let Ok(module) = shared.token.module().enter() {
            shared.digests.close(&module);
            shared.token.close(&module);
        }
        is_empty
    }
}

impl State {
    /// How many jobs there are that nobody works on.
    fn asked_for(&self) -> usize {
        self.queue.len() + self.waiting.len()
    }

    /// Has the job that has waited longest for a session tried again, if there is one.
    fn readmit(&mut self) -> bool {
        let job = self.waiting.pop_front();
        let is_one = job.is_some();
        self.queue.extend(job.map(Task::Job));
        is_one
    }

    /// What a worker is to do now: a job or a key to be looked at, by turns where there are both.
    fn take_task(&mut self) -> Option<Task> {
        self.was_look = !self.looks.is_empty() && (self.queue.is_empty() || !self.was_look);
        if self.was_look {
            self.looks.pop_front().map(Task::Look)
        } else {
            self.queue.pop_front()
        }
    }
}

impl Shared {
    fn work(&self, number: usize) {
        let mut worker = Worker::default();
        while let Some(task) = self.next(number) {
            let room = match task {
                Task::Job(job) => self.work_on(&mut worker, job),
                Task::Abandon(digest) => {
                    Worker::abandon(&self.token, &self.digests, digest);
                    if self.state().readmit() {
                        self.wake.notify_one();
                    }
                    true
                }
                Task::Probe(key) => self.probe(&mut worker, key),
                Task::Look(look) => self.look(&mut worker, look),
            };
            self.state().busy[number] = None;
            if !room {
                self.park();
            }
        }
        if let Ok(module) = self.token.module().enter() {
            worker.close(&module);
        }
        self.state().living -= 1;
        self.gone.notify_all();
    }

    /// The next task, once there is one; `None` at the end.
    fn next(&self, number: usize) -> Option<Task> {
        let mut state = self.state();
        loop {
            if let Some(task) = state.take_task() {
                let look = match &task {
                    Task::Look(look) => Some(look.wanted.number),
                    _ => None,
                };
                let since = Instant::now();
                state.busy[number] = Some(Busy { since, look });
                return Some(task);
            }
            if state.stopping {
                return None;
            }
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does `job`; `false` if the token has no room for this worker.
    fn work_on(&self, worker: &mut Worker, job: Job) -> bool {
        let state = self.state();
        let refusal = match &state.breaker {
            Breaker::Open { fault, .. } => Some(fault.clone()),
            Breaker::Closed if Instant::now() >= job.deadline => Some(Fault::Late),
            Breaker::Closed => match state.ailing.get(&job.key) {
                // A duty that failed its test is not relied on before it passes one.
                Some((fault, until))
                    if Instant::now() < *until || !matches!(job.asked, Asked::Sign(_)) =>
                {
                    Some(fault.clone())
                }
                _ => None,
            },
        };
        let key = state.keys.get(&job.key).cloned();
        drop(state);
        let result = match (refusal, key) {
            (Some(fault), _) => Err(fault),
            (None, None) => Err(Fault::NotYet),
            (None, Some(key)) => match self.attempt(worker, &key, &job) {
                Ok(made) => {
                    // Of a duty, only its test says that it is done rightly.
                    let is_proof = matches!(job.asked, Asked::Sign(_));
                    self.works(is_proof.then_some(job.key));
                    Ok(made)
                }
                Err(failure) if failure.cause == Cause::Capacity && self.is_full_of_digests() => {
                    self.state().waiting.push_back(job);
                    return true;
                }
                Err(failure) if failure.cause == Cause::Capacity && self.leaves_to_others() => {
                    self.state().queue.push_front(Task::Job(job));
                    self.wake.notify_one();
                    return false;
                }
                // What one message brought says nothing of the next.
                Err(failure) if says_nothing(&failure, &job.asked) => Err(failure.fault),
                Err(failure) => Err(self.fails(job.key, failure)),
            },
        };
        if let (Asked::Digest(step), Err(_)) = (&job.asked, &result) {
            // Whatever there was of it.
            Worker::abandon(&self.token, &self.digests, step.digest);
        }
        // There may be room now: of a digest, or of a worker who has a session.
        if self.state().readmit() {
            self.wake.notify_one();
        }
        (self.tell)(Report::Done(job.id, result));
        true
    }

    fn attempt(&self, worker: &mut Worker, found: &InToken, job: &Job) -> Result<Vec<u8>, Failure> {
        let (token, deadline) = (&*self.token, job.deadline);
        match (&found.purpose, &job.asked) {
            (Purpose::Sign(key), Asked::Sign(octets)) => worker.sign(token, key, octets, deadline),
            (Purpose::Verify(choice), Asked::Verify(wanted)) => worker
                .verify(token, *choice, wanted, deadline)
                .map(|is_good| if is_good { GOOD } else { BAD }.to_vec()),
            (Purpose::Digest, Asked::Digest(step)) => {
                worker.digest(token, &self.digests, step, deadline)
            }
            // Nobody here asks for that; who does so all the same is told.
            _ => Err(Failure {
                fault: Fault::NotYet,
                cause: Cause::Key,
            }),
        }
    }

    /// Makes a test signature; `false` if the token has no room for this worker.
    fn probe(&self, worker: &mut Worker, number: Option<u32>) -> bool {
        let key = {
            let state = self.state();
            // One that is well says more of the token.
            let well = state
                .keys
                .values()
                .find(|key| !state.ailing.contains_key(&key.number));
            match number {
                Some(number) => state.keys.get(&number).cloned(),
                None => well.or(state.keys.values().next()).cloned(),
            }
        };
        let mut has_room = true;
        if let Some(key) = key {
            let deadline = Instant::now() + self.limits.hang;
            match worker.probe(&self.token, &key, PROBE, deadline) {
                Ok(()) => self.works(Some(key.number)),
                // It is made again at the next tick.
                Err(failure) if failure.cause == Cause::Capacity && self.is_full_of_digests() => {
                    self.state().probing = None;
                    return true;
                }
                Err(failure) if failure.cause == Cause::Capacity && self.leaves_to_others() => {
                    has_room = false;
                }
                Err(failure) => {
                    // A key that cannot is no reason to give up the token.
                    let is_of_key = failure.is_of_one();
                    self.fails(key.number, failure);
                    if is_of_key {
                        self.works(None);
                    }
                }
            }
            let mut state = self.state();
            if let Some(tested) = state.tested.get_mut(&key.number) {
                *tested = Instant::now();
            }
        }
        self.state().probing = None;
        has_room
    }

    /// Looks at a key; `false` if the token has no room for this worker.
    fn look(&self, worker: &mut Worker, look: Box<Look>) -> bool {
        let deadline = Instant::now() + self.limits.hang;
        let result = match worker.look(&self.token, &look.wanted, PROBE, deadline) {
            Ok(looked) => {
                // Before the key counts as the token's: what it has come to is told by who has asked.
                self.works(None);
                let mut state = self.state();
                if !matches!(looked.found.purpose, Purpose::Sign(_)) {
                    state.tested.insert(look.wanted.number, Instant::now());
                }
                state.keys.insert(look.wanted.number, looked.found);
                state.ailing.remove(&look.wanted.number);
                drop(state);
                Ok((looked.facts, looked.notes))
            }
            Err(failure) if failure.cause == Cause::Capacity && self.leaves_to_others() => {
                self.state().looks.push_front(look);
                self.wake.notify_one();
                return false;
            }
            Err(failure) => Err(failure.fault),
        };
        (look.reply)(result);
        true
    }

    /// The token has signed, with the key of that number if one is given.
    fn works(&self, number: Option<u32>) {
        let mut state = self.state();
        state.last_used = Instant::now();
        state.told_stuck = false;
        let mut well = Vec::new();
        if let Some(number) = number
            && state.ailing.remove(&number).is_some()
        {
            well.push(number);
        }
        if matches!(state.breaker, Breaker::Open { .. }) {
            state.breaker = Breaker::Closed;
            let ailing = |key: &&u32| state.ailing.contains_key(key);
            well = state
                .keys
                .keys()
                .filter(|key| !ailing(key))
                .copied()
                .collect();
        }
        drop(state);
        if !well.is_empty() {
            (self.tell)(Report::Keys(well, Ok(())));
        }
    }

    /// The token has not signed with the key of that number; the fault.
    fn fails(&self, number: u32, failure: Failure) -> Fault {
        let mut state = self.state();
        let now = Instant::now();
        state.last_used = now;
        let is_of_one = failure.is_of_one();
        let fault = failure.fault;
        if is_of_one {
            let ails = (fault.clone(), now + LONGEST_PAUSE);
            let before = state
                .keys
                .contains_key(&number)
                .then(|| state.ailing.insert(number, ails));
            drop(state);
            // Nothing to tell of a key that was forgotten meanwhile.
            let is_news = before
                .is_some_and(|before| before.is_none_or(|(known, _)| fault.is_news_after(&known)));
            if is_news {
                (self.tell)(Report::Keys(vec![number], Err(fault.clone())));
            }
        } else {
            self.open_breaker(state, fault.clone());
        }
        fault
    }

    /// Opens the breaker, or keeps it open for longer.
    fn open_breaker(&self, mut state: MutexGuard<'_, State>, fault: Fault) {
        let now = Instant::now();
        let is_news = match &mut state.breaker {
            Breaker::Closed => {
                state.breaker = Breaker::Open {
                    fault: fault.clone(),
                    next: now + SHORTEST_PAUSE,
                    pause: SHORTEST_PAUSE,
                };
                true
            }
            Breaker::Open {
                fault: known,
                next,
                pause,
            } => {
                if now >= *next {
                    *pause = (*pause * 2).min(LONGEST_PAUSE);
                    *next = now + *pause;
                }
                let is_news = fault.is_news_after(known);
                *known = fault.clone();
                is_news
            }
        };
        let keys = state.keys.keys().copied().collect();
        drop(state);
        if is_news {
            (self.tell)(Report::Keys(keys, Err(fault)));
        }
    }

    /// Whether digests have sessions, so that there will be room when they end: nothing is wrong with the token then.
    fn is_full_of_digests(&self) -> bool {
        self.digests.with_session() > 0 && !self.state().stopping
    }

    /// Whether there are other workers left to do what this one has no session for; if so, it counts no more.
    fn leaves_to_others(&self) -> bool {
        let mut state = self.state();
        let others = state.active > 1;
        if others {
            state.active -= 1;
        }
        others
    }

    /// Waits until there may be room again.
    fn park(&self) {
        let until = Instant::now() + PARKED;
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stopping {
                state.active += 1;
                return;
            }
            state = self
                .parked
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure is about what was asked alone, so that the token goes on. A key to sign with fails for all messages.
fn says_nothing(failure: &Failure, asked: &Asked) -> bool {
    let is_of_token =
        matches!(asked, Asked::Sign(_)) || matches!(failure.fault, Fault::Unable { .. });
    failure.cause == Cause::Key && !is_of_token
}

/// What is signed to see whether a token does.
const PROBE: &[u8] = b"a signature to see whether the token signs";

/// How many digests a token may have under way, each of which has a session.
const MOST_DIGESTS: usize = 32;

/// How long a token that is away is left alone, at first and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a token may be idle: some close sessions after 30 s.
const IDLE: Duration = Duration::from_secs(25);

/// How long a worker without a session waits before it tries for one again.
const PARKED: Duration = Duration::from_secs(60);

/// How often it is looked whether calls hang.
const TICK: Duration = Duration::from_millis(500);
