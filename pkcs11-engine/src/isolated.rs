//! A module in a process of its own, seen from the program: starts it, hands it what is to be signed, and starts another
//! when it crashes or hangs.
//!
//! Who hands something over never waits: one thread writes to the process, one reads from it, one looks after it. What was
//! with a process that ended is given to the next one, once, if there is time left; so a crash costs a message some
//! milliseconds. Signatures are verified here once more, since what comes from that process is no better than the module.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::mem;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dkim_core::engine::{self, VerifyingKey};

use crate::duty::{Asked, BAD, Duty, GOOD};
use crate::error::Fault;
use crate::key::Public;
use crate::listing::TokenListing;
use crate::process::{Process, ending, reap};
use crate::reference::Reference;
use crate::service::{Event, ServiceSettings};
use crate::session_pool::Job;
use crate::token::WrongPin;
use crate::wire::{Answer, Hello, Registered, Request};

pub(crate) struct Isolated {
    inner: Arc<Inner>,
}

struct Inner {
    program: PathBuf,
    settings: ServiceSettings,
    tell: Box<dyn Fn(Told) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What there is to tell.
pub(crate) enum Told {
    /// Of the keys.
    Event(Event),
    /// The process has ended by itself.
    Ended(String),
}

struct State {
    process: Option<Process>,
    /// Counts processes.
    number: u64,
    keys: HashMap<u32, Key>,
    jobs: HashMap<u64, Given>,
    wrong_pins: Vec<(String, WrongPin)>,
    /// Who waits for lists, by their numbers.
    lists: HashMap<u64, mpsc::Sender<Listed>>,
    last_list: u64,
    /// Before that, no process is started.
    start_at: Instant,
    pause: Duration,
    /// Why there is no process.
    fault: Fault,
    /// Since when a token is stuck, and when there was a good signature last.
    stuck: Option<Instant>,
    last_signed: Option<Instant>,
    stopping: bool,
}

type Listed = Result<Vec<TokenListing>, Fault>;

struct Key {
    duty: Duty,
    reference: Reference,
    /// What it was when it was seen first: no other is taken for it, by whichever process.
    seen: Option<(Public, Arc<dyn VerifyingKey>)>,
}

struct Given {
    job: Job,
    tries: u32,
}

/// Jobs that no process was found for, and keys that cannot be signed with without one.
struct Lost {
    keys: Vec<u32>,
    jobs: Vec<u64>,
    fault: Fault,
}

impl Isolated {
    /// Starts nothing but the thread that will; the process is started when there is something to do for it.
    pub(crate) fn start(
        program: PathBuf,
        settings: ServiceSettings,
        tell: impl Fn(Told) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            program,
            state: Mutex::new(State {
                process: None,
                number: 0,
                keys: HashMap::new(),
                jobs: HashMap::new(),
                wrong_pins: settings.wrong_pins.clone(),
                lists: HashMap::new(),
                last_list: 0,
                start_at: Instant::now(),
                pause: Duration::ZERO,
                fault: Fault::NotYet,
                stuck: None,
                last_signed: None,
                stopping: false,
            }),
            settings,
            tell: Box::new(tell),
            changed: Condvar::new(),
        });
        let looked_after = Arc::clone(&inner);
        thread::Builder::new()
            .name("pkcs11-process".to_owned())
            .spawn(move || looked_after.look_after())?;
        Ok(Self { inner })
    }

    pub(crate) fn register(&self, number: u32, duty: Duty, reference: Reference) {
        let mut state = self.inner.state();
        let key = Key {
            duty,
            reference,
            seen: None,
        };
        state.ask(key.registered(number));
        state.keys.insert(number, key);
        self.inner.changed.notify_all();
    }

    pub(crate) fn forget(&self, number: u32) {
        let mut state = self.inner.state();
        state.keys.remove(&number);
        state.ask(Request::Forget(number));
    }

    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.inner.state();
        let is_starting = state.start_at <= Instant::now();
        if state.stopping || state.process.is_none() && !is_starting {
            let fault = if state.stopping {
                Fault::Stopped
            } else {
                state.fault.clone()
            };
            drop(state);
            (self.inner.tell)(Told::Event(Event::Done {
                id: job.id,
                result: Err(fault),
            }));
            return;
        }
        let id = job.id;
        if let Asked::Abandon(_) = job.asked {
            // Nobody waits for it; and where there is no process, there is nothing to abandon.
            state.ask(Request::Do {
                id,
                key: job.key,
                millis: 0,
                asked: job.asked,
            });
            return;
        }
        let given = Given { job, tries: 0 };
        state.jobs.insert(id, given);
        state.give(id);
    }

    /// The tokens and keys that `reference` matches.
    pub(crate) fn list(
        &self,
        reference: Reference,
        within: Duration,
    ) -> Result<Vec<TokenListing>, Fault> {
        let (sender, receiver) = mpsc::channel();
        let mut state = self.inner.state();
        if state.stopping {
            return Err(Fault::Stopped);
        }
        state.last_list += 1;
        let id = state.last_list;
        state.lists.insert(id, sender);
        // Whoever waits for a list waits for a process, too.
        let lost = match &state.process {
            None => self.inner.start_process(&mut state),
            Some(_) => None,
        };
        state.ask(Request::List(id, Box::new(reference)));
        drop(state);
        if let Some(lost) = lost {
            let fault = lost.fault.clone();
            self.inner.state().lists.remove(&id);
            self.inner.tell_lost(lost);
            return Err(fault);
        }
        let listed = receiver.recv_timeout(within).unwrap_or(Err(Fault::Late));
        self.inner.state().lists.remove(&id);
        listed
    }

    /// Ends the process. Whether it ended by itself.
    pub(crate) fn stop(&self, until: Instant) -> bool {
        let mut state = self.inner.state();
        state.stopping = true;
        let left = until.saturating_duration_since(Instant::now());
        let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        state.ask(Request::Stop(millis));
        let process = state.process.take();
        drop(state);
        self.inner.changed.notify_all();
        process.is_none_or(|process| has_ended(process, until))
    }
}

impl State {
    /// Asks the process, if there is one.
    fn ask(&self, request: Request) {
        if let Some(process) = &self.process {
            // A writer that is gone takes the process with it.
            let _ = process.requests.send(request);
        }
    }

    /// Gives the job to the process, if there is one.
    fn give(&mut self, id: u64) {
        let Some(process) = &self.process else {
            return;
        };
        let Some(given) = self.jobs.get_mut(&id) else {
            return;
        };
        given.tries += 1;
        let left = given.job.deadline.saturating_duration_since(Instant::now());
        let _ = process.requests.send(Request::Do {
            id,
            key: given.job.key,
            millis: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
            asked: given.job.asked.clone(),
        });
    }
}

impl Inner {
    /// The thread that starts processes, and ends those that do not answer.
    fn look_after(self: &Arc<Self>) {
        let mut state = self.state();
        while !state.stopping {
            let now = Instant::now();
            let is_wanted = !state.keys.is_empty();
            if state.process.is_none()
                && is_wanted
                && now >= state.start_at
                && let Some(lost) = self.start_process(&mut state)
            {
                drop(state);
                self.tell_lost(lost);
                state = self.state();
                continue;
            }
            if !is_wanted
                && state.jobs.is_empty()
                && state.lists.is_empty()
                && state.process.is_some()
            {
                state = self.end_process(state);
                continue;
            }
            // The process answers each job by its deadline, even if only that it is late.
            let overdue = |given: &Given| now > given.job.deadline + OVERDUE;
            let is_overdue = state.jobs.values().any(overdue);
            state.jobs.retain(|_, given| !overdue(given));
            let is_due = is_overdue || state.stuck.is_some();
            // As long as others sign, that one token hangs does not end them time and again.
            let others_sign = state.last_signed.is_some_and(|at| now < at + RECENT);
            if let Some(process) = &mut state.process {
                let is_young = now < process.started + STUCK_PAUSE;
                let has_ended = matches!(process.child.try_wait(), Ok(Some(_)));
                if has_ended || is_due && !(others_sign && is_young) {
                    process.end();
                }
            }
            let until_start = state.start_at.saturating_duration_since(now);
            let pause = if state.process.is_none() && is_wanted && !until_start.is_zero() {
                until_start.min(TICK)
            } else {
                TICK
            };
            state = self
                .changed
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Ends the process that nobody has keys of any more: its token is logged in to.
    fn end_process<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.ask(Request::Stop(
            u32::try_from(LAST_WORDS.as_millis()).unwrap_or(u32::MAX),
        ));
        let process = state.process.take();
        // What its reader still hears is of no concern.
        state.number += 1;
        drop(state);
        if let Some(process) = process {
            has_ended(process, Instant::now() + LAST_WORDS);
        }
        self.state()
    }

    /// Starts a process, and gives it all there is; what is lost if it cannot be started.
    fn start_process(self: &Arc<Self>, state: &mut State) -> Option<Lost> {
        state.number += 1;
        let number = state.number;
        state.stuck = None;
        state.last_signed = None;
        match self.spawn(state, number) {
            Ok(process) => {
                state.process = Some(process);
                let keys = state.keys.iter();
                let keys: Vec<_> = keys.map(|(number, key)| key.registered(*number)).collect();
                for key in keys {
                    state.ask(key);
                }
                let jobs: Vec<_> = state.jobs.keys().copied().collect();
                for id in jobs {
                    state.give(id);
                }
                None
            }
            Err(error) => {
                state.fault = Fault::Process {
                    reason: format!("cannot be started: {error}"),
                };
                state.pause = (state.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
                state.start_at = Instant::now() + state.pause;
                Some(Lost {
                    keys: state.keys.keys().copied().collect(),
                    jobs: state.jobs.drain().map(|(id, _)| id).collect(),
                    fault: state.fault.clone(),
                })
            }
        }
    }

    /// Tells what is lost. To be called without the lock.
    fn tell_lost(&self, lost: Lost) {
        let Lost { keys, jobs, fault } = lost;
        if !keys.is_empty() {
            (self.tell)(Told::Event(Event::Away {
                keys,
                fault: fault.clone(),
            }));
        }
        for id in jobs {
            (self.tell)(Told::Event(Event::Done {
                id,
                result: Err(fault.clone()),
            }));
        }
    }

    fn spawn(self: &Arc<Self>, state: &State, number: u64) -> io::Result<Process> {
        let limits = self.settings.limits;
        let hello = Request::Hello(Hello {
            module: self.settings.module.as_os_str().as_encoded_bytes().to_vec(),
            workers: limits.workers,
            queue: limits.queue,
            hang_millis: u64::try_from(limits.hang.as_millis()).unwrap_or(u64::MAX),
            salt: self.settings.salt,
            wrong_pins: state.wrong_pins.clone(),
        });
        let reader = Arc::clone(self);
        Process::start(&self.program, hello, move |input| {
            reader.read(input, number);
        })
    }

    /// The thread that reads from process `number`, until that ends.
    fn read(self: &Arc<Self>, mut input: BufReader<UnixStream>, number: u64) {
        while let Ok(Some(answer)) = Answer::read(&mut input) {
            match answer {
                Answer::Event(event) => self.happened(event, number),
                Answer::Listed { id, listed } => {
                    let sender = self.state().lists.remove(&id);
                    if let Some(sender) = sender {
                        let _ = sender.send(listed);
                    }
                }
            }
        }
        self.ended(number);
    }

    fn happened(&self, event: Event, number: u64) {
        let mut state = self.state();
        let event = match event {
            Event::Done { id, result } => {
                // Late ones have been answered.
                let Some(given) = state.jobs.remove(&id) else {
                    return;
                };
                let key = state.keys.get(&given.job.key);
                let seen = key.and_then(|key| key.seen.as_ref());
                let verifying = seen.map(|(_, verifying)| Arc::clone(verifying));
                if result.is_ok() {
                    state.last_signed = Some(Instant::now());
                }
                drop(state);
                Event::Done {
                    id,
                    result: result.and_then(|made| match &given.job.asked {
                        Asked::Sign(octets) => verified(verifying.as_deref(), octets, made),
                        Asked::Verify(_) if made == GOOD || made == BAD => Ok(made),
                        Asked::Digest(step) if made.len() == if step.is_last { 32 } else { 0 } => {
                            Ok(made)
                        }
                        _ => Err(Fault::Process {
                            reason: "gave an answer that is none".to_owned(),
                        }),
                    }),
                }
            }
            Event::Opened { key, facts, notes } => {
                state.stuck = None;
                if let Some(key) = state.keys.get_mut(&key)
                    && key.seen.is_none()
                    && let Some(public) = facts.as_ref().and_then(|facts| facts.public.as_ref())
                    && let Some(to_verify) = public.key()
                    && let Ok(verifying) = engine::default_engine().verifying_key(&to_verify)
                {
                    key.seen = Some((public.clone(), Arc::from(verifying)));
                }
                drop(state);
                Event::Opened { key, facts, notes }
            }
            Event::Latched { token, wrong } => {
                state.wrong_pins.retain(|(known, _)| *known != token);
                state
                    .wrong_pins
                    .extend(wrong.into_iter().map(|wrong| (token.clone(), wrong)));
                return;
            }
            Event::Stuck { fault } => {
                if number == state.number {
                    state.stuck.get_or_insert_with(Instant::now);
                    state.fault = fault.clone();
                }
                drop(state);
                self.changed.notify_all();
                Event::Stuck { fault }
            }
            event @ Event::Away { .. } => {
                drop(state);
                event
            }
            event @ Event::Back { .. } => {
                state.stuck = None;
                drop(state);
                event
            }
        };
        (self.tell)(Told::Event(event));
    }

    /// Process `number` is over: what it had goes to the next one.
    fn ended(self: &Arc<Self>, number: u64) {
        let Some(reason) = self.how_it_ended(number) else {
            return;
        };
        let mut state = self.state();
        if state.number != number {
            return;
        }
        let Some(process) = state.process.take() else {
            return;
        };
        let lived = process.started.elapsed();
        reap(process.child);
        state.pause = if lived >= STEADY {
            Duration::ZERO
        } else {
            (state.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        };
        let pause = state.pause;
        // The first restart is at once even so: what was under way can still be signed.
        let is_first = pause <= SHORTEST_PAUSE;
        state.start_at = Instant::now() + if is_first { Duration::ZERO } else { pause };
        let fault = Fault::Process {
            reason: reason.clone(),
        };
        state.fault = fault.clone();
        let is_lost = |given: &Given| {
            !is_first || given.tries >= MOST_TRIES || !given.job.asked.may_be_repeated()
        };
        let jobs: Vec<u64> = state
            .jobs
            .extract_if(|_, given| is_lost(given))
            .map(|(id, _)| id)
            .collect();
        let keys = if is_first {
            Vec::new()
        } else {
            state.keys.keys().copied().collect()
        };
        let lists = mem::take(&mut state.lists);
        let not_started = if is_first {
            self.start_process(&mut state)
        } else {
            None
        };
        drop(state);
        self.changed.notify_all();
        if is_first {
            // Of those that follow the keys' faults tell.
            (self.tell)(Told::Ended(reason));
        }
        for list in lists.into_values() {
            let _ = list.send(Err(fault.clone()));
        }
        self.tell_lost(Lost { keys, jobs, fault });
        if let Some(lost) = not_started {
            self.tell_lost(lost);
        }
    }

    /// What has become of process `number`, whose socket is closed; nothing if it is not wanted any more.
    fn how_it_ended(&self, number: u64) -> Option<String> {
        let until = Instant::now() + DYING;
        loop {
            let mut state = self.state();
            if state.number != number {
                return None;
            }
            let process = state.process.as_mut()?;
            // It may have closed its socket and live.
            process.end();
            match process.child.try_wait() {
                Ok(Some(status)) => return Some(ending(status)),
                Ok(None) if Instant::now() >= until => return Some("does not end".to_owned()),
                Ok(None) => {}
                Err(error) => return Some(format!("has ended: {error}")),
            }
            // Others may look at the state meanwhile.
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the end of a process that was told to end by `until`, and ends it if it does not. Whether it did.
fn has_ended(mut process: Process, until: Instant) -> bool {
    // A little longer than the process was given.
    let until = until + Duration::from_millis(500);
    while Instant::now() < until {
        match process.child.try_wait() {
            Ok(Some(status)) => {
                process.end();
                // What it has said at last is still to be read.
                while !process.reader.is_finished() && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                return status.success();
            }
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Err(_) => break,
        }
    }
    process.end();
    reap(process.child);
    false
}

fn verified(
    verifying: Option<&dyn VerifyingKey>,
    octets: &[u8],
    signature: Vec<u8>,
) -> Result<Vec<u8>, Fault> {
    match verifying.map(|key| key.verify(octets, &signature)) {
        Some(Ok(())) => Ok(signature),
        _ => Err(Fault::Process {
            reason: "gave a signature that is wrong".to_owned(),
        }),
    }
}

impl Key {
    fn registered(&self, number: u32) -> Request {
        Request::Register(Box::new(Registered {
            number,
            duty: self.duty,
            reference: self.reference.clone(),
            known: self.seen.as_ref().map(|(public, _)| public.clone()),
        }))
    }
}

/// How often a job is given to a process: one that ends each of them is not to take down a third.
const MOST_TRIES: u32 = 2;

/// How long nothing is started after a process that did not live long, at first and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A process that lived that long has not ended for what it was started with.
const STEADY: Duration = Duration::from_secs(10);

/// How long ago a signature may be to tell that tokens sign.
const RECENT: Duration = Duration::from_secs(1);

/// How long a process lives at least that signs with some tokens while others hang.
const STUCK_PAUSE: Duration = Duration::from_secs(30);

/// How long a process takes to be gone once it was ended.
const DYING: Duration = Duration::from_millis(200);

/// How long after a job's deadline its process counts as gone.
const OVERDUE: Duration = Duration::from_secs(2);

/// How long a process that is not wanted any more may take to log out.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How often it is looked whether a process answers.
const TICK: Duration = Duration::from_millis(500);
