//! The timed window: threads do the same to one message after the other until time is up.
//!
//! Clocks are monotonic and CPU time is that of the working threads. What is checked inside the window costs a
//! comparison of octets; what needs an engine to be checked is kept and checked afterwards.

use super::latency::Latencies;
use super::mbox::Buffer;
use super::messages::Messages;
use super::progress::Progress;
use super::work::{Verifying, Work, with_field};
use crate::load::process::Watched;
use crate::rounds::{process_cpu_time, thread_cpu_time};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

/// What was done in the window.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The longest any thread worked.
    pub wall: Duration,
    /// Messages in a second of the clock, all threads together.
    pub rate: f64,
    /// Messages that were good.
    pub messages: u64,
    /// Octets of all messages worked on.
    pub octets: u64,
    /// CPU time of the threads.
    pub cpu: Duration,
    /// CPU time of the whole process meanwhile.
    pub process_cpu: Duration,
    /// CPU time meanwhile of the processes that this one has started, if there are any.
    pub children_cpu: Option<Duration>,
    /// How long single messages took.
    pub latencies: Latencies,
    /// How many different messages were worked on.
    pub distinct: usize,
    /// What was not good.
    pub failures: Failures,
}

/// What was not good: counted in full, told for the first few messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How often.
    pub count: u64,
    /// Message by message: why, and how often.
    pub reasons: BTreeMap<usize, (String, u64)>,
}

impl Failures {
    /// Takes note of `times` failures of the message at `index`.
    pub fn add(&mut self, index: usize, reason: String, times: u64) {
        self.count += times;
        if self.reasons.len() < MOST_REASONS || self.reasons.contains_key(&index) {
            self.reasons.entry(index).or_insert((reason, 0)).1 += times;
        }
    }

    fn add_all(&mut self, other: Self) {
        let told: u64 = other.reasons.values().map(|(_, times)| times).sum();
        self.count += other.count - told;
        for (index, (reason, times)) in other.reasons {
            self.add(index, reason, times);
        }
    }
}

/// Nobody reads more.
const MOST_REASONS: usize = 5;

/// Does `work` to `messages` on `threads` threads, first for `warmup` and uncounted, then for `window`; each thread
/// does at least one message in each. Signatures are then verified by each of `checkers`.
pub(super) fn run(
    work: &Work<'_>,
    messages: &Messages,
    threads: usize,
    warmup: Duration,
    window: Duration,
    checkers: &[Verifying<'_>],
) -> Window {
    let gate = RwLock::new(());
    let (workers, process_cpu, children_cpu) = std::thread::scope(|scope| {
        // Nobody panics while holding the gate, so that a poisoned one is as good.
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let (warming, all_warm) = mpsc::channel::<()>();
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (gate, warming) = (&gate, warming.clone());
                scope.spawn(move || {
                    // Threads begin at different messages.
                    let mut worker = Worker::new(messages, thread * messages.len() / threads);
                    worker.work_for(work, warmup);
                    worker.count = Count::default();
                    drop(warming);
                    drop(gate.read());
                    worker.work_for(work, window);
                    worker
                })
            })
            .collect();
        drop(warming);
        // Ends when the last of them is warm, or has panicked; nothing is ever sent.
        let _ = all_warm.recv();
        let children = Children::watch();
        let before = process_cpu_time();
        drop(closed);
        let progress = Progress::new("working", window);
        while handles.iter().any(|handle| !handle.is_finished()) {
            progress.show_and_wait();
        }
        drop(progress);
        let workers: Vec<Worker<'_>> = handles
            .into_iter()
            .map(|handle| {
                handle
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect();
        let children_cpu = children.and_then(|children| children.cpu_since());
        (workers, process_cpu_time() - before, children_cpu)
    });

    let mut result = Window {
        process_cpu,
        children_cpu,
        ..Window::default()
    };
    let mut firsts = Firsts::new();
    let mut seen = vec![false; messages.len()];
    for worker in workers {
        let count = worker.count;
        result.wall = result.wall.max(count.wall);
        result.cpu += count.cpu;
        result.messages += count.messages;
        result.octets += count.octets;
        result.latencies.add_all(&count.latencies);
        result.rate += count.messages as f64 / count.wall.as_secs_f64();
        result.failures.add_all(count.failures);
        (0..seen.len()).for_each(|index| seen[index] |= worker.seen[index]);
        merge(&mut firsts, worker.firsts, &mut result);
    }
    result.distinct = seen.iter().filter(|seen| **seen).count();
    verify_firsts(&firsts, messages, checkers, &mut result);
    result
}

/// The processes that this one has started: who holds a token's module.
struct Children {
    watched: Watched,
    before: Duration,
}

impl Children {
    /// `None` if there are none.
    fn watch() -> Option<Self> {
        let watched = Watched::new(std::process::id().cast_signed())?;
        if watched.processes() < 2 {
            return None;
        }
        let before = watched.cpu_time()?.saturating_sub(process_cpu_time());
        Some(Self { watched, before })
    }

    /// `None` if one has ended.
    fn cpu_since(&self) -> Option<Duration> {
        let now = self.watched.cpu_time()?.saturating_sub(process_cpu_time());
        Some(now.saturating_sub(self.before))
    }
}

/// The first field made for each message, and how often it was made again in the window.
type Firsts = BTreeMap<usize, (String, u64)>;

struct Worker<'m> {
    messages: &'m Messages,
    next: usize,
    buffer: Buffer,
    firsts: Firsts,
    seen: Vec<bool>,
    count: Count,
}

#[derive(Default)]
struct Count {
    wall: Duration,
    cpu: Duration,
    messages: u64,
    octets: u64,
    latencies: Latencies,
    failures: Failures,
}

impl<'m> Worker<'m> {
    fn new(messages: &'m Messages, first: usize) -> Self {
        Self {
            messages,
            next: first,
            buffer: Buffer::default(),
            firsts: Firsts::new(),
            seen: vec![false; messages.len()],
            count: Count::default(),
        }
    }

    fn work_for(&mut self, work: &Work<'_>, time: Duration) {
        for (_, times) in self.firsts.values_mut() {
            *times = 0;
        }
        self.seen.fill(false);
        let (start, cpu) = (Instant::now(), thread_cpu_time());
        let mut before = Duration::ZERO;
        loop {
            self.go(work);
            let wall = start.elapsed();
            self.count.latencies.add(wall - before);
            before = wall;
            if wall >= time {
                self.count.wall = wall;
                self.count.cpu = thread_cpu_time() - cpu;
                return;
            }
        }
    }

    fn go(&mut self, work: &Work<'_>) {
        let index = self.next;
        self.next = (index + 1) % self.messages.len();
        self.seen[index] = true;
        let outcome = match self.messages.get(index, &mut self.buffer) {
            Ok(raw) => {
                self.count.octets += raw.len() as u64;
                work.go(raw)
            }
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        let outcome = outcome.and_then(|field| match field {
            Some(field) => self.compare(index, field),
            None => Ok(()),
        });
        match outcome {
            Ok(()) => self.count.messages += 1,
            Err(reason) => self.count.failures.add(index, reason, 1),
        }
    }

    /// Both algorithms are deterministic: all fields of a message are the same as the first, which is verified later.
    fn compare(&mut self, index: usize, field: String) -> Result<(), String> {
        match self.firsts.get_mut(&index) {
            Some((first, times)) if *first == field => *times += 1,
            Some(_) => return Err(DIFFERS.to_owned()),
            None => {
                self.firsts.insert(index, (field, 1));
            }
        }
        Ok(())
    }
}

const DIFFERS: &str = "the signature differs from the first one of the same message";

/// Puts the fields of a thread to those of the others, which must have made the same.
fn merge(all: &mut Firsts, of_one: Firsts, result: &mut Window) {
    for (index, (field, times)) in of_one {
        match all.get_mut(&index) {
            None => {
                all.insert(index, (field, times));
            }
            Some((first, made)) if *first == field => *made += times,
            Some(_) => fail(result, index, DIFFERS, times),
        }
    }
}

/// Verifies the first field of each message; if it is bad, so are all that are like it.
fn verify_firsts(
    firsts: &Firsts,
    messages: &Messages,
    checkers: &[Verifying<'_>],
    result: &mut Window,
) {
    let mut buffer = Buffer::default();
    for (&index, (field, times)) in firsts {
        let outcome = match messages.get(index, &mut buffer) {
            Ok(raw) => {
                let signed = with_field(field, raw);
                checkers.iter().try_for_each(|checker| {
                    checker
                        .verify(&signed)
                        .map_err(|reason| format!("{}: {reason}", checker.engine.name()))
                })
            }
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        if let Err(reason) = outcome {
            // At least once, for a signature that was made before the window only.
            fail(result, index, &reason, (*times).max(1));
        }
    }
}

/// What counted as good was not.
fn fail(result: &mut Window, index: usize, reason: &str, times: u64) {
    let before = result.messages;
    result.messages = before.saturating_sub(times);
    if before > 0 {
        result.rate *= result.messages as f64 / before as f64;
    }
    result.failures.add(index, reason.to_owned(), times);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::keys::Key;
    use crate::perf::options::{KeySource, Mix};
    use crate::perf::work::Signing;
    use dkim_core::canonicalization::Canonicalization;
    use dkim_core::engine::{KeyType, default_engine, engines};

    fn key() -> Key {
        let source = KeySource::Made { bits: None };
        Key::get(&source, Some(KeyType::Ed25519), None).unwrap()
    }

    fn signing(key: &Key) -> Signing<'_> {
        Signing::new(default_engine(), key, Canonicalization::RELAXED, false)
    }

    fn checkers(key: &Key) -> Vec<Verifying<'_>> {
        let engines = engines().iter();
        engines
            .map(|engine| Verifying::new(*engine, key, false))
            .collect()
    }

    const TIME: Duration = Duration::from_millis(20);

    #[test]
    fn all_threads_work_and_every_message_is_counted() {
        let key = key();
        let messages = Messages::of(&Mix::Small).unwrap();
        let work = Work::Sign(signing(&key));
        let window = run(&work, &messages, 2, TIME, TIME, &checkers(&key));
        assert_eq!(window.failures, Failures::default());
        assert!(window.messages > 2 && window.octets > 1000 * window.messages);
        assert!(window.wall >= TIME && window.cpu > Duration::ZERO);
        assert!(window.rate > 0.0 && window.distinct > 1);
    }

    #[test]
    fn a_signature_that_does_not_verify_takes_away_all_that_are_like_it() {
        let (key, other) = (key(), key());
        let messages = Messages::of(&Mix::Size(64)).unwrap();
        let window = run(
            &Work::Sign(signing(&key)),
            &messages,
            2,
            Duration::ZERO,
            TIME,
            &checkers(&other),
        );
        assert_eq!((window.messages, window.rate), (0, 0.0));
        assert!(window.failures.count > 0);
        assert_eq!(
            window.failures.reasons[&0].0,
            format!("{}: fail: signature did not verify", engines()[0].name())
        );
    }

    #[test]
    fn a_verdict_that_is_not_pass_is_a_failure() {
        let (key, other) = (key(), key());
        let messages = Messages::of(&Mix::Size(64))
            .unwrap()
            .signed(&signing(&key))
            .unwrap();
        let run = |key| {
            let work = Work::Verify(Verifying::new(default_engine(), key, false));
            run(&work, &messages, 1, Duration::ZERO, TIME, &[])
        };
        assert_eq!(run(&key).failures.count, 0);
        let window = run(&other);
        assert_eq!(window.messages, 0);
        assert_eq!(
            window.failures.reasons[&0],
            (
                "fail: signature did not verify".into(),
                window.failures.count
            )
        );
    }

    #[test]
    fn a_signature_unlike_the_first_of_its_message_is_a_failure() {
        let messages = Messages::of(&Mix::Size(64)).unwrap();
        let mut worker = Worker::new(&messages, 0);
        assert_eq!(worker.compare(0, "one".into()), Ok(()));
        assert_eq!(worker.compare(0, "one".into()), Ok(()));
        assert_eq!(worker.compare(0, "other".into()), Err(DIFFERS.into()));
        let mut all = Firsts::from([(0, ("other".to_owned(), 6))]);
        let mut result = Window {
            messages: 8,
            rate: 4.0,
            ..Window::default()
        };
        merge(&mut all, worker.firsts, &mut result);
        assert_eq!((result.messages, result.rate), (6, 3.0));
        assert_eq!(result.failures.reasons[&0], (DIFFERS.into(), 2));
    }

    #[test]
    fn failures_are_counted_in_full_and_told_for_the_first_few() {
        let mut failures = Failures::default();
        (0..100).for_each(|index| failures.add(index, "bad".into(), 2));
        failures.add(0, "bad again".into(), 1);
        assert_eq!((failures.count, failures.reasons.len()), (201, 5));
        assert_eq!(failures.reasons[&0], ("bad".into(), 3));
        let mut all = Failures::default();
        all.add_all(failures.clone());
        assert_eq!(all, failures);
    }
}
