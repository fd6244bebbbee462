//! Where log lines go: standard error in the foreground, syslog (RFC 3164) in the background.
//!
//! Everything that is said goes through `tracing` and comes out here, one line an event: first the message, then the
//! other fields as `name=value`. This is the one place where what strangers wrote is made harmless: no control character
//! gets past [`line`], whatever the caller put in. What is worth a line is decided where it happens; here only levels
//! count. Events of this program have the target [`MESSAGE`] (the line of a message), [`PROTOCOL`] or the path of their module;
//! what libraries say is passed on from [`Level::DEBUG`] only.
//!
//! Failing: standard error that cannot be written to loses the line; so does a syslog socket that is gone or full, but
//! the next line that gets through says how many were lost. Logging never waits for syslog.

mod line;
mod syslog;

pub use syslog::DEVICE;

use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::SetGlobalDefaultError;
use tracing::{Event, Level, Metadata, Subscriber};

use line::Line;
use syslog::Syslog;

/// The target of the line that each message gets: `tracing::info!(target: log::MESSAGE, ...)`.
pub const MESSAGE: &str = "message";

/// The target of what an MTA does wrong.
pub const PROTOCOL: &str = "protocol";

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard error: with the time before each line, or, where it is the systemd journal, with the priority.
    StandardError,
    /// The local syslog.
    Syslog {
        /// The facility of every line, by its number (RFC 3164 section 4.1.1).
        facility: u8,
        /// The program's name in every line.
        name: String,
    },
    /// Nowhere at all.
    Nowhere,
}

/// The process's log.
#[derive(Clone, Debug)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sink: Mutex<Sink>,
    is_verbose: AtomicBool,
}

#[derive(Debug)]
enum Sink {
    StandardError { is_journal: bool },
    Syslog(Syslog),
    Nowhere,
}

impl Log {
    /// Takes all events of the process from now on, and panics too, and writes them to standard error.
    ///
    /// # Errors
    /// Something in the process takes them already.
    pub fn start() -> Result<Self, SetGlobalDefaultError> {
        let log = Self(Arc::new(Shared {
            sink: Mutex::new(Sink::open(Destination::StandardError)),
            is_verbose: AtomicBool::new(false),
        }));
        tracing::subscriber::set_global_default(Logger(Arc::clone(&log.0)))?;
        std::panic::set_hook(Box::new(log_panic));
        Ok(log)
    }

    /// Sends lines to `destination` from now on.
    pub fn redirect(&self, destination: Destination) {
        *self.0.sink() = Sink::open(destination);
    }

    /// Whether debug lines are written, too; they are not at start.
    pub fn set_verbose(&self, is_verbose: bool) {
        self.0.is_verbose.store(is_verbose, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

impl Shared {
    fn sink(&self) -> MutexGuard<'_, Sink> {
        // A panic while a line was written leaves a sink that can write the next one.
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    fn open(destination: Destination) -> Self {
        match destination {
            Destination::StandardError => Self::StandardError {
                is_journal: is_journal(),
            },
            Destination::Syslog { facility, name } => {
                Self::Syslog(Syslog::new(DEVICE.into(), facility, &name))
            }
            Destination::Nowhere => Self::Nowhere,
        }
    }

    fn write(&mut self, level: Level, text: &str) {
        match self {
            Self::StandardError { is_journal } => {
                let line = if *is_journal {
                    line::for_journal(level, text)
                } else {
                    let since_1970 = SystemTime::now()
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or_default();
                    line::for_reader(since_1970.as_secs(), level, text)
                };
                // Nobody is left to be told that standard error is gone.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            Self::Syslog(syslog) => syslog.write(level, text),
            Self::Nowhere => {}
        }
    }
}

/// Whether standard error is the journal, as systemd.exec(5) has it: `JOURNAL_STREAM` names its device and inode.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").ok();
    let opened = std::fs::metadata("/proc/self/fd/2").ok();
    match (named, opened) {
        (Some(named), Some(opened)) => named == format!("{}:{}", opened.dev(), opened.ino()),
        _ => false,
    }
}

/// A panic as one line; the thread's unwinding is for its runtime.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let what = match (
        payload.downcast_ref::<&str>(),
        payload.downcast_ref::<String>(),
    ) {
        (Some(what), _) => *what,
        (None, Some(what)) => what,
        (None, None) => "no reason given",
    };
    match panic.location() {
        Some(place) => tracing::error!(
            "internal error: {what} at {}:{}",
            place.file(),
            place.line()
        ),
        None => tracing::error!("internal error: {what}"),
    }
}

/// The subscriber; it knows events only.
struct Logger(Arc<Shared>);

impl Subscriber for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_own = [MESSAGE, PROTOCOL].contains(&metadata.target())
            || metadata.target().starts_with("dkim_");
        let is_verbose = self.0.is_verbose.load(Ordering::Relaxed);
        metadata.is_event()
            && *metadata.level()
                <= if is_verbose {
                    Level::DEBUG
                } else {
                    Level::INFO
                }
            && (is_own || is_verbose)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0
            .sink()
            .write(*event.metadata().level(), &line.finish());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    /// Runs `act` with a log to a syslog socket of its own, and gives what arrived there.
    fn logged(is_verbose: bool, act: impl FnOnce()) -> Vec<String> {
        let path = socket_path();
        let syslog = UnixDatagram::bind(&path).unwrap();
        syslog.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared {
            sink: Mutex::new(Sink::Syslog(Syslog::new(path.clone(), 2, "dkim"))),
            is_verbose: AtomicBool::new(is_verbose),
        });
        tracing::subscriber::with_default(Logger(shared), act);
        let mut lines = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(octets) = syslog.recv(&mut buffer) {
            let line = String::from_utf8(buffer[..octets].to_vec()).unwrap();
            lines.push(line.replace(&format!("[{}]", std::process::id()), "[pid]"));
        }
        std::fs::remove_file(path).unwrap();
        lines
    }

    fn socket_path() -> PathBuf {
        use std::sync::atomic::AtomicUsize;
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        std::env::temp_dir().join(format!("dkim-log-{}-{number}", std::process::id()))
    }

    #[test]
    fn an_event_is_one_line_with_its_priority_and_fields() {
        let lines = logged(false, || {
            tracing::info!(target: MESSAGE, queue_id = "4Fabc", count = 2, "signed");
            tracing::warn!("odd");
            tracing::error!("bad: {}", "thing");
        });
        assert_eq!(
            lines,
            [
                "<22>dkim[pid]: signed queue_id=4Fabc count=2",
                "<20>dkim[pid]: odd",
                "<19>dkim[pid]: bad: thing"
            ]
        );
    }

    #[test]
    fn what_a_stranger_wrote_cannot_begin_a_line_or_steer_a_terminal() {
        let lines = logged(false, || {
            let name = "a\r\n<22>postfix: fake\x1b[2J\0\u{85}\u{2028}\u{202e}b\u{e9}";
            tracing::info!(subject = name, "from {name}");
        });
        let escaped = "a\\r\\n<22>postfix: fake\\x1b[2J\\0\\u{85}\\u{2028}\\u{202e}b\u{e9}";
        assert_eq!(
            lines,
            [format!("<22>dkim[pid]: from {escaped} subject={escaped}")]
        );
    }

    #[test]
    fn debug_lines_and_what_libraries_say_are_for_the_verbose() {
        let act = || {
            tracing::debug!("not a milter packet");
            tracing::warn!(target: "hickory_resolver::x", "strange");
            tracing::trace!("step");
        };
        assert_eq!(logged(false, act), [""; 0]);
        assert_eq!(
            logged(true, act),
            [
                "<23>dkim[pid]: not a milter packet",
                "<20>dkim[pid]: strange"
            ]
        );
    }

    #[test]
    fn a_line_is_bounded() {
        let lines = logged(false, || tracing::info!("{}", "\u{e9}".repeat(10_000)));
        assert!(
            lines[0].len() < 5000 && lines[0].ends_with("..."),
            "{}",
            lines[0].len()
        );
    }
}
