//! The control file: what the test wants of the module just now, and the faults that follow from it.
//!
//! The file is small, so it is read before each call instead of watched: no change is ever missed, whatever the
//! granularity of the file system's clocks. What a line means is known by its reader; here are names and values.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cryptoki_sys::CK_RV;

use crate::key::Key;

/// One state of the control file.
#[derive(Default)]
pub(crate) struct Control {
    /// Later states have higher ones: calls that are held up have earlier ones than those that overtake them.
    pub(crate) version: u64,
    octets: Vec<u8>,
    lines: HashMap<String, Line>,
    key: Option<KeyFile>,
}

/// The value of a name, and how often it has been used in this process.
struct Line {
    value: String,
    used: Arc<AtomicU64>,
}

/// A key file as it was when it was read.
#[derive(Clone)]
struct KeyFile {
    path: PathBuf,
    octets: Vec<u8>,
    key: Option<Arc<Key>>,
}

impl Control {
    /// The value of the last line with this name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.lines.get(name).map(|line| line.value.as_str())
    }

    /// The same as a number, decimal or after `0x`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        number(self.text(name)?)
    }

    /// The same as yes (`1`) or no (`0`).
    pub(crate) fn flag(&self, name: &str, unless_said: bool) -> bool {
        self.number(name).map_or(unless_said, |value| value != 0)
    }

    /// The names in a list with commas.
    pub(crate) fn list(&self, name: &str) -> Option<Vec<&str>> {
        Some(self.text(name)?.split(',').map(str::trim).collect())
    }

    /// The key pair of `key`.
    pub(crate) fn key(&self) -> Option<Arc<Key>> {
        self.key.as_ref()?.key.clone()
    }

    /// The code that `function` is to return instead of doing its work; takes one from a count.
    ///
    /// The value is `code`, `code*count`, or either with `@` and anything behind it, by which the same fault can be
    /// asked for again: a count starts anew when its line changes.
    pub(crate) fn fault(&self, function: &str) -> Option<CK_RV> {
        let line = self.lines.get(function)?;
        let fault = line.value.split('@').next().unwrap_or_default();
        let Some((code, count)) = fault.split_once('*') else {
            return number(fault);
        };
        let (code, count) = (number(code)?, number(count)?);
        let taken = line
            .used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                (used < count).then_some(used + 1)
            });
        taken.is_ok().then_some(code)
    }

    fn parse(octets: Vec<u8>, before: &Self) -> Self {
        let lines: HashMap<String, Line> = String::from_utf8_lossy(&octets)
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| {
                let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
                let used = match before.lines.get(&name) {
                    Some(line) if line.value == value => line.used.clone(),
                    _ => Arc::default(),
                };
                (name, Line { value, used })
            })
            .collect();
        let key = lines
            .get("key")
            .map(|line| KeyFile::read(Path::new(&line.value), before.key.as_ref()));
        Self {
            version: before.version + 1,
            octets,
            lines,
            key,
        }
    }
}

impl KeyFile {
    /// Reads `path`; the key is that of `before` if nothing has changed, since reading a key takes a while.
    fn read(path: &Path, before: Option<&Self>) -> Self {
        let octets = fs::read(path).unwrap_or_default();
        match before {
            Some(before) if before.path == path && before.octets == octets => before.clone(),
            _ => Self {
                key: Key::from_pem(&octets).map(Arc::new),
                path: path.to_owned(),
                octets,
            },
        }
    }
}

/// The control file, read again and again.
pub(crate) struct ControlFile {
    path: Option<PathBuf>,
    read: Mutex<Arc<Control>>,
}

impl ControlFile {
    /// Of this path; without one all is as if the file were empty.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            read: Mutex::default(),
        }
    }

    /// What the file says now. A file that cannot be read says nothing.
    pub(crate) fn now(&self) -> Arc<Control> {
        // Under the lock, so that no older state comes after a newer one.
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let octets = self
            .path
            .as_ref()
            .and_then(|path| fs::read(path).ok())
            .unwrap_or_default();
        if read.octets != octets {
            *read = Arc::new(Control::parse(octets, &read));
        }
        read.clone()
    }

    /// Whether the process is to crash in `function`: `1` each time, `once` for one time in all processes together.
    pub(crate) fn crash(&self, control: &Control, function: &str) -> bool {
        match control.text(&format!("{function}.crash")) {
            Some("1") => true,
            Some("once") => self
                .beside(&format!(".crashed.{function}"))
                .is_some_and(|mark| {
                    fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .open(mark)
                        .is_ok()
                }),
            _ => false,
        }
    }

    /// A file beside the control file, of its name with `suffix`.
    pub(crate) fn beside(&self, suffix: &str) -> Option<PathBuf> {
        let mut path = self.path.clone()?.into_os_string();
        path.push(suffix);
        Some(PathBuf::from(path))
    }
}

/// A number, decimal or after `0x`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
