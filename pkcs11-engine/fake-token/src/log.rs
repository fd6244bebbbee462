//! The call log: one line for each call, written by the module and read by the tests.
//!
//! A line is `microseconds process thread function code note`, the time since 1970 and the code in hexadecimal. Lines of
//! the words in [`WORDS`] tell of something else than a finished call. PINs are never written.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cryptoki_sys::CK_RV;

/// One call that has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it returned, in microseconds since 1970.
    pub micros: u64,
    /// The process it was made in.
    pub process: u32,
    /// The thread, as the kernel numbers it.
    pub thread: u32,
    /// The function, such as `C_Sign`; `C_Sign(NULL)` if only the length was asked for.
    pub function: String,
    /// What it returned.
    pub rv: u64,
    /// What else is to be said: `right` or `wrong` after `C_Login`, `no-locking` after `C_Initialize` without
    /// CKF_OS_LOCKING_OK; else empty.
    pub note: String,
}

impl Call {
    /// Reads a line; `None` if it is not about a call that has returned.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        Some(Self {
            micros: words.next()?.parse().ok()?,
            process: words.next()?.parse().ok()?,
            thread: words.next()?.parse().ok()?,
            function: words
                .next()
                .filter(|word| !WORDS.contains(word))?
                .to_owned(),
            rv: u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?,
            note: words.next().unwrap_or_default().to_owned(),
        })
    }
}

/// What stands in place of a function's name: something that no program may do, a call in a child that has not
/// initialized the module, and calls that do not return.
pub(crate) const WORDS: [&str; 4] = ["VIOLATION", "FORKED-CHILD", "HANGS", "CRASHES"];

/// The log, as the module writes it.
pub(crate) struct Log {
    path: Option<PathBuf>,
    create: bool,
}

impl Log {
    /// To this file. If it is not to be made, there is no log unless the test has made it: a module that lies where
    /// cargo puts it is not to leave files there.
    pub(crate) fn new(path: Option<PathBuf>, create: bool) -> Self {
        Self { path, create }
    }

    /// Writes that `function` has returned `rv`.
    pub(crate) fn call(&self, function: &str, rv: CK_RV, note: &str) {
        self.line(&format!("{function} {rv:#x} {note}"));
    }

    /// Writes one of [`WORDS`] and what it is about.
    pub(crate) fn word(&self, word: &str, about: &str) {
        self.line(&format!("{word} {about}"));
    }

    /// One write, to a file opened for it: no descriptor is left that a program could close as one of its own.
    fn line(&self, text: &str) {
        let Some(path) = &self.path else { return };
        let micros = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_micros());
        let line = format!(
            "{micros} {} {} {}\n",
            std::process::id(),
            rustix::thread::gettid().as_raw_nonzero(),
            text.trim_end(),
        );
        // A test that misses its lines says so better than the module could.
        let _ = OpenOptions::new()
            .append(true)
            .create(self.create)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
