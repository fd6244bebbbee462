//! The tests' side: makes a module in a directory, writes its control file, reads its log.
//!
//! Whatever fails here fails the test, so functions panic with what went wrong instead of returning it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::RsaKeyPair;
use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::key::Key;
use crate::log::{Call, WORDS};
use crate::token::FAILURES;

/// The module as cargo has built it, found beside the program that runs.
///
/// # Panics
/// If it is not there: the program does not depend on this crate, or has been moved.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    program
        .ancestors()
        .skip(1)
        .take(3)
        .flat_map(|dir| [dir.join("deps").join(FILE), dir.join(FILE)])
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no {FILE} beside {}", program.display()))
}

const FILE: &str = "libfake_token.so";

/// The public half, as SubjectPublicKeyInfo, of the other key: that of `second_key`, `second_token` and `wrong_public`.
///
/// # Panics
/// Never: the key is part of this crate.
pub fn other_key_spki() -> Vec<u8> {
    Key::other()
        .and_then(|key| key.spki())
        .expect("the key of this crate can be read")
}

/// A module in a directory of its own, with one RSA or Ed25519 key.
///
/// Any number of processes may load [`module`](Self::module); the log has the calls of all.
pub struct FakeToken {
    dir: PathBuf,
    key: String,
    values: Mutex<Values>,
}

/// What the control file says, and how many faults have been asked for.
struct Values {
    lines: BTreeMap<String, String>,
    faults: u64,
}

impl FakeToken {
    /// Makes one in `dir`, which has to be there, with a fresh RSA key of 2048 bits.
    ///
    /// # Panics
    /// If a file cannot be written, or no module has been built.
    pub fn new(dir: &Path) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("an RSA key");
        let der = pair.as_der().expect("the key in DER");
        let text = BASE64_STANDARD.encode(der.as_ref());
        let lines: Vec<&str> = text
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).expect("base64 is ASCII"))
            .collect();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            lines.join("\n")
        );
        Self::with_key(dir, &pem)
    }

    /// The same with a given key, PKCS#8 in PEM.
    ///
    /// # Panics
    /// As [`new`](Self::new), and if the key cannot be read.
    pub fn with_key(dir: &Path, pem: &str) -> Self {
        let dir = fs::canonicalize(dir).expect("the directory is there");
        assert!(
            Key::from_pem(pem.as_bytes()).is_some(),
            "a key of RSA or Ed25519 in PKCS#8"
        );
        // A copy, not a link: the loader tells modules apart by their inodes.
        fs::copy(library(), dir.join(FILE)).expect("the module can be copied");
        fs::write(dir.join("key.pem"), pem).expect("the key can be written");
        let lines = BTreeMap::from([("key".to_owned(), dir.join("key.pem").display().to_string())]);
        let token = Self {
            dir,
            key: pem.to_owned(),
            values: Mutex::new(Values { lines, faults: 0 }),
        };
        for written_by_the_module in ["log", "control.failures", "control.failures2"] {
            let path = token.dir.join(written_by_the_module);
            fs::write(&path, "").expect("files can be made");
            // Also by a daemon that has put down its privileges.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))
                .expect("modes can be set");
        }
        token.change(|_| {});
        token
    }

    /// The module to load.
    pub fn module(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// The control file.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control")
    }

    /// The log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Variables for child processes that load the module from elsewhere, such as from [`library`].
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("FAKE_TOKEN_CONTROL", self.control()),
            ("FAKE_TOKEN_LOG", self.log()),
        ]
    }

    /// Sets one line of the control file; counts and crashes start anew, even if the value is the same as before.
    ///
    /// # Panics
    /// If the file cannot be written, or name or value would be more than one line.
    pub fn set(&self, name: &str, value: impl ToString) {
        self.set_all(&[(name, &value.to_string())]);
    }

    /// Sets several lines at once.
    ///
    /// # Panics
    /// As [`set`](Self::set).
    pub fn set_all(&self, lines: &[(&str, &str)]) {
        self.change(|values| {
            for &(name, value) in lines {
                assert!(
                    !format!("{name}{value}").contains('\n') && !name.contains('='),
                    "one line: {name}"
                );
                if let Some(function) = name.strip_suffix(".crash") {
                    let _ = fs::remove_file(self.dir.join(format!("control.crashed.{function}")));
                }
                let mut value = value.to_owned();
                if name.starts_with("C_") && value.contains('*') && !value.contains('@') {
                    values.faults += 1;
                    value = format!("{value}@{}", values.faults);
                }
                values.lines.insert(name.to_owned(), value);
            }
        });
    }

    /// Takes a line out of the control file, if it is there.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn unset(&self, name: &str) {
        self.change(|values| {
            values.lines.remove(name);
        });
    }

    /// All calls that have returned, in the order of the log.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn all_calls(&self) -> Vec<Call> {
        self.lines()
            .iter()
            .filter_map(|line| Call::parse(line))
            .collect()
    }

    /// Those of one function.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn calls(&self, function: &str) -> Vec<Call> {
        let mut calls = self.all_calls();
        calls.retain(|call| call.function == function);
        calls
    }

    /// The lines of the log that tell of a broken rule: `VIOLATION` and `FORKED-CHILD`.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn violations(&self) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| matches!(line.split(' ').nth(3), Some("VIOLATION" | "FORKED-CHILD")));
        lines
    }

    /// How many lines tell of `word` (`HANGS` or `CRASHES`) in `function`.
    ///
    /// # Panics
    /// If the log cannot be read, or there is no such word.
    pub fn held_up(&self, word: &str, function: &str) -> usize {
        assert!(WORDS.contains(&word), "a word of the log");
        let about = format!("{word} {function}");
        self.lines()
            .iter()
            .filter(|line| line.ends_with(&about))
            .count()
    }

    /// Waits until `condition` holds, at most so long; whether it does.
    pub fn wait(&self, at_most: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::now() + at_most;
        loop {
            if condition(self) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Empties the log.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn forget_calls(&self) {
        fs::write(self.log(), "").expect("the log can be emptied");
    }

    /// Wrong PINs since the last right one, on the first token.
    pub fn failed_logins(&self) -> u64 {
        fs::read_to_string(self.failures())
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Sets them.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn set_failed_logins(&self, failures: u64) {
        fs::write(self.failures(), failures.to_string()).expect("the count can be written");
    }

    /// The public key as SubjectPublicKeyInfo.
    ///
    /// # Panics
    /// Never: the key was read when the token was made.
    pub fn public_key_spki(&self) -> Vec<u8> {
        Key::from_pem(self.key.as_bytes())
            .and_then(|key| key.spki())
            .expect("a key that was read before")
    }

    /// The private key, PKCS#8 in PEM: to compare with signatures made in software.
    pub fn private_key_pem(&self) -> &str {
        &self.key
    }

    fn failures(&self) -> PathBuf {
        self.dir.join(format!("control{}", FAILURES[0]))
    }

    fn lines(&self) -> Vec<String> {
        let log = fs::read_to_string(self.log()).expect("the log can be read");
        // A line that is being written is for the next look.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// Changes the lines, and the file by a rename: the module sees all of a change or nothing.
    fn change(&self, change: impl FnOnce(&mut Values)) {
        let mut values = self
            .values
            .lock()
            .expect("no other thread of the test has failed");
        change(&mut values);
        let text: String = values
            .lines
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        let new = self.dir.join("control.new");
        fs::write(&new, text).expect("the control file can be written");
        fs::rename(new, self.control()).expect("the control file can be replaced");
    }
}
