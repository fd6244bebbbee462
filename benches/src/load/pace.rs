//! Messages due at a rate, more exactly than the millisecond of a runtime's timers: latency counts from when a message is
//! due.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Lets one message after the other go when it is due.
pub(super) struct Pacer {
    start: Instant,
    rate: f64,
    due: Arc<Semaphore>,
}

impl Pacer {
    /// One that lets `rate` messages go by second, the first of them now.
    ///
    /// A thread of its own sleeps in between; it ends when it next wakes up after the pacer has been dropped.
    pub(super) fn start(rate: f64) -> io::Result<Self> {
        let start = Instant::now();
        let due = Arc::new(Semaphore::new(0));
        let permits = Arc::downgrade(&due);
        thread::Builder::new().spawn(move || {
            for index in 0.. {
                let moment = start + after(index, rate);
                thread::sleep(moment.saturating_duration_since(Instant::now()));
                match permits.upgrade() {
                    Some(permits) => permits.add_permits(1),
                    None => break,
                }
            }
        })?;
        Ok(Self { start, rate, due })
    }

    /// When the message at `index`, counted from 0, is due.
    pub(super) fn moment(&self, index: u64) -> Instant {
        self.start + after(index, self.rate)
    }

    /// Waits until the next message is due. Each call is for one message; who waits first goes first.
    pub(super) async fn next(&self) {
        // The semaphore is never closed; if it were, there would be nothing to wait for.
        if let Ok(permit) = self.due.acquire().await {
            permit.forget();
        }
    }
}

fn after(index: u64, rate: f64) -> Duration {
    Duration::from_secs_f64(index as f64 / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_goes_before_it_is_due() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let pacer = Pacer::start(500.0).unwrap();
            assert_eq!(
                pacer.moment(250) - pacer.moment(0),
                Duration::from_millis(500)
            );
            for index in 0..10 {
                pacer.next().await;
                assert!(Instant::now() >= pacer.moment(index));
            }
        });
    }
}
