//! What the tests have in common: a module in a directory of its own, the engine over it, and what the engine has told.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use dkim_core::engine::{Completion, SigningKey, default_engine};
use fake_token::FakeToken;
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{Fault, Isolation, Level, Notice, Reference, Settings, TokenKey, Tokens};

/// Where the module is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this process.
    Here,
    /// In one of its own.
    Apart,
}

/// Both places, for tests that hold in either.
pub(crate) const BOTH: [Place; 2] = [Place::Here, Place::Apart];

/// Runs a test in both, at the same time.
pub(crate) fn in_both(test: impl Fn(Place) + Sync) {
    std::thread::scope(|scope| {
        for place in BOTH {
            let test = &test;
            scope.spawn(move || test(place));
        }
    });
}

/// The engine, and what it has told.
pub(crate) struct Engine {
    pub(crate) tokens: Tokens,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Engine {
    pub(crate) fn new(settings: Settings) -> Self {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&notices);
        let tokens = Tokens::new(settings, move |notice| told.lock().unwrap().push(notice))
            .expect("threads can be started");
        Self { tokens, notices }
    }

    /// What was told of this level so far.
    pub(crate) fn told(&self, level: Level) -> Vec<String> {
        let notices = self.notices.lock().unwrap();
        let of_level = notices.iter().filter(|notice| notice.level == level);
        of_level.map(ToString::to_string).collect()
    }

    /// All that was told so far.
    pub(crate) fn all_told(&self) -> Vec<String> {
        let notices = self.notices.lock().unwrap();
        let texts = notices
            .iter()
            .map(|notice| format!("{:?}: {notice}", notice.level));
        texts.collect()
    }

    /// The key of `reference`, which signs within 10 s.
    pub(crate) fn key(&self, reference: &Reference) -> Arc<TokenKey> {
        let key = self.tokens.key(reference).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(fault) = key.wait(Duration::from_secs(10)) {
            assert!(Instant::now() < until, "{fault}");
            std::thread::sleep(Duration::from_millis(5));
        }
        key
    }

    /// Why the key of `reference` cannot sign, as it is known first.
    pub(crate) fn refusal(&self, reference: &Reference) -> (Arc<TokenKey>, Fault) {
        let key = self.tokens.key(reference).unwrap();
        let fault = key
            .wait(Duration::from_secs(10))
            .expect_err("it cannot sign");
        (key, fault)
    }
}

/// A fake token in a directory of its own, with the engine over it. Whatever is done with it, no rule of the standard may
/// have been broken.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) fake: FakeToken,
    pub(crate) dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new(place: Place) -> Self {
        Self::with(place, &[], |_| {})
    }

    /// With lines in the control file, and other settings than the usual ones.
    pub(crate) fn with(
        place: Place,
        lines: &[(&str, &str)],
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeToken::new(dir.path());
        fake.set_all(lines);
        write_pin(&dir.path().join("pin"), b"1234");
        let mut settings = settings(place);
        change(&mut settings);
        Self {
            engine: Engine::new(settings),
            fake,
            dir,
        }
    }

    /// The reference of `uri`, with the PIN in the file `pin`.
    pub(crate) fn reference(&self, uri: &str) -> Reference {
        let pin = PinSource::File(self.dir.path().join("pin"));
        reference(uri, &self.fake.module(), Some(&pin))
    }

    /// The key of the token, ready to sign.
    pub(crate) fn key(&self) -> Arc<TokenKey> {
        self.engine.key(&self.reference(KEY))
    }

    /// The same, to sign with.
    pub(crate) fn signing(&self) -> Arc<dyn SigningKey> {
        self.key().signing_key().unwrap()
    }

    /// How often the module was asked for `function`.
    pub(crate) fn count(&self, function: &str) -> usize {
        self.fake.calls(function).len()
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.engine.tokens
    }

    /// The end of all, which must be clean.
    pub(crate) fn end(self) {
        assert!(
            self.engine.tokens.shut_down(Duration::from_secs(5)),
            "somebody is left inside"
        );
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.tokens.shut_down(Duration::from_millis(300));
        if !std::thread::panicking() {
            assert_eq!(self.fake.violations(), Vec::<String>::new());
        }
    }
}

/// The key of a fake token that nothing else was said of.
pub(crate) const KEY: &str = "pkcs11:token=fake;object=dkim;type=private";

/// Time-outs of a second, so that what hangs is known soon.
pub(crate) fn settings(place: Place) -> Settings {
    Settings {
        isolation: match place {
            Place::Here => Isolation::None,
            Place::Apart => Isolation::Process { program: host() },
        },
        timeout: Duration::from_secs(1),
        ..Settings::default()
    }
}

/// The program that holds modules: the example, which cargo builds before the tests run.
pub(crate) fn host() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let host = profile.join("examples/token-sign");
    assert!(
        host.is_file(),
        "{} is not built: run `cargo test --package pkcs11-engine`, or build it by `cargo build --examples`",
        host.display()
    );
    host
}

/// A program in `dir` that starts [`host`] with variables in its environment: those of this process are everybody's.
pub(crate) fn host_with(dir: &Path, variables: &[(&str, &str)]) -> PathBuf {
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in variables {
        script += &format!("export {name}=\"{value}\"\n");
    }
    script += &format!("echo $$ >> {}\n", dir.join("hosts").display());
    script += &format!("exec {} \"$@\"\n", host().display());
    write_program(&dir.join("host"), &script)
}

/// Writes a script to be executed.
pub(crate) fn write_program(path: &Path, text: &str) -> PathBuf {
    // By another process: one that this one forks meanwhile would have it open to write, and it could not be executed.
    let status = Command::new("/bin/sh")
        .args(["-c", "printf %s \"$2\" > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .arg(text)
        .status();
    assert!(status.unwrap().success());
    path.to_owned()
}

/// The process that was started last by the program of [`host_with`].
pub(crate) fn last_host(dir: &Path) -> i32 {
    let hosts = fs::read_to_string(dir.join("hosts")).unwrap();
    hosts.lines().last().unwrap().parse().unwrap()
}

pub(crate) fn reference(uri: &str, module: &Path, pin: Option<&PinSource>) -> Reference {
    let uri = Uri::parse(uri.as_bytes()).unwrap();
    Reference::new(uri, Some(module), pin, false).unwrap()
}

/// Writes a PIN file that only its owner can read.
pub(crate) fn write_pin(path: &Path, octets: &[u8]) {
    // Whole or not at all: the engine may be reading it.
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    std::io::Write::write_all(&mut options.open(&new).unwrap(), octets).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

/// Signs, and has the signature verified in software: what comes out is right or an error.
pub(crate) fn sign(key: &dyn SigningKey, octets: &[u8]) -> Result<Vec<u8>, String> {
    let signature = key.sign(octets).map_err(|error| error.to_string())?;
    verify(key, octets, &signature);
    Ok(signature)
}

pub(crate) fn verify(key: &dyn SigningKey, octets: &[u8], signature: &[u8]) {
    let verifying = default_engine().verifying_key(key.public_key()).unwrap();
    verifying
        .verify(octets, signature)
        .expect("no wrong signature gets out");
}

/// Signs `count` messages, `at_once` of them at a time; how many were signed, and what the others got.
pub(crate) fn sign_many(
    key: &Arc<dyn SigningKey>,
    count: usize,
    at_once: usize,
) -> (usize, Vec<String>) {
    let (next, errors) = (Mutex::new(0..count), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(number) = next.lock().unwrap().next() else {
                        return;
                    };
                    if let Err(error) = sign(&**key, number.to_string().as_bytes()) {
                        errors.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap();
    (count - errors.len(), errors)
}

/// Gives `octets` away to be signed, and where the end of it will be told.
pub(crate) fn submit(
    key: &dyn SigningKey,
    octets: &[u8],
) -> mpsc::Receiver<Result<Vec<u8>, String>> {
    let (sender, receiver) = mpsc::channel();
    let completion = Completion::new(move |result| {
        let _ = sender.send(result.map_err(|error| error.to_string()));
    });
    key.submit(octets.to_vec(), Duration::from_secs(60), completion);
    receiver
}

/// Signs again and again until that succeeds, at most so long; how long it took.
pub(crate) fn signs_within(key: &dyn SigningKey, at_most: Duration) -> Duration {
    let began = Instant::now();
    loop {
        match sign(key, b"once more") {
            Ok(_) => return began.elapsed(),
            Err(error) => assert!(began.elapsed() < at_most, "after {at_most:?}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for something, at most so long.
pub(crate) fn wait_until(what: &str, at_most: Duration, holds: impl Fn() -> bool) {
    let until = Instant::now() + at_most;
    while !holds() {
        assert!(Instant::now() < until, "not within {at_most:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program of a Debian package, which has to succeed.
pub(crate) fn run(command: &mut Command, package: &str) -> Output {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; is the package {package} installed? tests/install does that")
    });
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A file of a Debian package.
pub(crate) fn packaged(path: &str, package: &str) -> PathBuf {
    let path = PathBuf::from(path);
    assert!(
        path.exists(),
        "{} is not there: install the package {package}, as tests/install does",
        path.display()
    );
    path
}
