//! Whether the worker threads of the event loop get on, by what the runtime counts of each anyway, so that mail pays
//! nothing for it.
//!
//! A thread that waits for work has an odd count of its goings to sleep and wakings; one that has work raises the time that
//! it was busy every few pieces. One that does neither for long is in a piece of work that does not end: a lock, a log that
//! takes no line, a loop.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::RuntimeMetrics;

/// The worker threads of a runtime.
#[derive(Debug)]
pub(super) struct Threads {
    metrics: RuntimeMetrics,
    /// Of each thread, what was seen last; only who looks has it.
    seen: Mutex<Vec<Seen>>,
    stuck: AtomicUsize,
}

/// What was seen of a thread, and when first.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    pace: Pace,
}

/// What changes as long as a thread gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// How often it went to sleep and woke up: odd while it sleeps.
    turns: u64,
    /// How long it has been busy.
    busy: Duration,
}

impl Threads {
    pub(super) fn new(metrics: RuntimeMetrics) -> Self {
        let now = Instant::now();
        let seen = (0..metrics.num_workers())
            .map(|thread| Seen {
                at: now,
                pace: Pace::of(&metrics, thread),
            })
            .collect();
        Self {
            metrics,
            seen: Mutex::new(seen),
            stuck: AtomicUsize::new(0),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.metrics.num_workers()
    }

    /// How many are stuck, as far as was seen at the last look.
    pub(super) fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Looks at each.
    pub(super) fn look(&self) {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stuck = 0;
        for (thread, seen) in seen.iter_mut().enumerate() {
            let pace = Pace::of(&self.metrics, thread);
            if pace.is_progress_since(&seen.pace) {
                *seen = Seen { at: now, pace };
            } else if now.duration_since(seen.at) > LONGEST_PIECE {
                stuck += 1;
            }
        }
        self.stuck.store(stuck, Ordering::Relaxed);
    }
}

impl Pace {
    fn of(metrics: &RuntimeMetrics, thread: usize) -> Self {
        Self {
            turns: metrics.worker_park_unpark_count(thread),
            busy: metrics.worker_total_busy_duration(thread),
        }
    }

    fn is_progress_since(&self, before: &Self) -> bool {
        let sleeps = self.turns % 2 == 1;
        sleeps || self != before
    }
}

/// A signature takes milliseconds, a body chunk less.
const LONGEST_PIECE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The clock is turned by aging what was seen.
    fn age(threads: &Threads) {
        for seen in threads.seen.lock().unwrap().iter_mut() {
            seen.at -= LONGEST_PIECE + Duration::from_secs(1);
        }
    }

    #[test]
    fn a_thread_that_does_not_come_back_is_stuck_and_one_that_sleeps_or_works_is_not() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let threads = Threads::new(runtime.metrics());
        // Idle threads sleep.
        std::thread::sleep(Duration::from_millis(100));
        age(&threads);
        threads.look();
        assert_eq!((threads.count(), threads.stuck()), (2, 0));
        // A busy one gets on.
        let busy = runtime.spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(50));
            age(&threads);
            threads.look();
            assert_eq!(threads.stuck(), 0);
        }
        busy.abort();
        // One that waits for what does not come is stuck.
        let (release, released) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            let _ = released.recv();
        });
        has_begun.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        threads.look();
        assert_eq!(threads.stuck(), 0, "not yet");
        age(&threads);
        threads.look();
        assert_eq!(threads.stuck(), 1);
        drop(release);
        std::thread::sleep(Duration::from_millis(50));
        threads.look();
        assert_eq!(threads.stuck(), 0);
    }
}
