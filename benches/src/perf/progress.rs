//! What happens meanwhile, on standard error and only if that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// A line that is written over and over, and wiped at the end.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    start: Instant,
    whole: Duration,
    is_shown: bool,
}

impl Progress {
    /// Begins something that takes `whole`, zero if nobody knows.
    pub(super) fn new(what: &'static str, whole: Duration) -> Self {
        let progress = Self {
            what,
            start: Instant::now(),
            whole,
            is_shown: io::stderr().is_terminal(),
        };
        progress.show();
        progress
    }

    /// Shows how far it has come, and sleeps for as long as nobody minds: less where little is left.
    pub(super) fn show_and_wait(&self) {
        self.show();
        let left = self.whole.saturating_sub(self.start.elapsed());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(200)));
    }

    fn show(&self) {
        if self.is_shown {
            let line = match self.whole {
                Duration::ZERO => format!("\r{} ... ", self.what),
                whole => format!(
                    "\r{}: {:.1} of {:.1} s ",
                    self.what,
                    self.start.elapsed().min(whole).as_secs_f64(),
                    whole.as_secs_f64()
                ),
            };
            // A terminal that has gone is no reason to stop.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
