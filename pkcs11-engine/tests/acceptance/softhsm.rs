//! Tokens of SoftHSM, each set of them in a directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pkcs11_engine::pin::PinSource;
use pkcs11_engine::{Isolation, Reference, Settings};

use crate::rig::{Engine, Place, host_with, packaged, reference, run, settings, write_pin};

pub(crate) const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";

#[derive(Debug)]
pub(crate) struct SoftHsm {
    pub(crate) dir: tempfile::TempDir,
}

impl SoftHsm {
    /// Without any token.
    pub(crate) fn empty() -> Self {
        packaged(MODULE, "softhsm2");
        let hsm = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(hsm.tokens()).unwrap();
        let text = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
            hsm.tokens().display()
        );
        fs::write(hsm.configuration(), text).unwrap();
        write_pin(&hsm.path("pin"), b"1234\n");
        hsm
    }

    /// With a token `dkim` and an RSA key `dkim` in it.
    pub(crate) fn new() -> Self {
        let hsm = Self::empty();
        hsm.init_token("dkim");
        hsm.generate("rsa:2048", "dkim", "01", &[]);
        hsm
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn tokens(&self) -> PathBuf {
        self.path("tokens")
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.path("softhsm2.conf")
    }

    pub(crate) fn init_token(&self, label: &str) {
        let mut command = self.util();
        command.args([
            "--init-token",
            "--free",
            "--pin",
            "1234",
            "--so-pin",
            "5678",
            "--label",
            label,
        ]);
        run(&mut command, "softhsm2");
    }

    /// Puts a key in PKCS#8 and its public half into the token.
    pub(crate) fn import(&self, token: &str, pem: &str, label: &str, id: &str) {
        let file = self.path(&format!("import-{token}-{id}.pem"));
        fs::write(&file, pem).unwrap();
        let mut command = self.util();
        command.args([
            "--pin", "1234", "--token", token, "--label", label, "--id", id, "--import",
        ]);
        run(command.arg(&file), "softhsm2");
    }

    /// Generates a key pair in the token `dkim`.
    pub(crate) fn generate(&self, kind: &str, label: &str, id: &str, more: &[&str]) {
        let mut command = self.tool();
        command.args(["--token-label", "dkim", "--keypairgen", "--key-type", kind]);
        command.args(["--label", label, "--id", id]).args(more);
        run(&mut command, "opensc");
    }

    pub(crate) fn delete_token(&self, label: &str) {
        run(
            self.util().args(["--delete-token", "--token", label]),
            "softhsm2",
        );
    }

    /// pkcs11-tool, logged in.
    pub(crate) fn tool(&self) -> Command {
        let mut command = Command::new("pkcs11-tool");
        command.env("SOFTHSM2_CONF", self.configuration());
        command.args(["--module", MODULE, "--login", "--pin", "1234"]);
        command
    }

    fn util(&self) -> Command {
        let mut command = Command::new("softhsm2-util");
        command.env("SOFTHSM2_CONF", self.configuration());
        command
    }

    /// How to use it: in a process of its own, whose environment says where the tokens are, with more variables.
    pub(crate) fn settings(&self, variables: &[(&str, &str)]) -> Settings {
        let configuration = self.configuration();
        let mut all = vec![("SOFTHSM2_CONF", configuration.to_str().unwrap())];
        all.extend(variables);
        Settings {
            isolation: Isolation::Process {
                program: host_with(self.dir.path(), &all),
            },
            ..settings(Place::Apart)
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::new(self.settings(&[]))
    }

    pub(crate) fn reference(&self, uri: &str) -> Reference {
        self.reference_by(uri, Path::new(MODULE))
    }

    /// The same through another module.
    pub(crate) fn reference_by(&self, uri: &str, module: &Path) -> Reference {
        let pin = PinSource::File(self.path("pin"));
        reference(uri, module, Some(&pin))
    }
}

/// The key that [`SoftHsm::new`] makes.
pub(crate) const KEY: &str = "pkcs11:token=dkim;object=dkim;type=private";

/// pkcs11-spy in front of SoftHSM: its log has every call.
pub(crate) struct Spy {
    log: PathBuf,
    pub(crate) module: PathBuf,
}

impl Spy {
    pub(crate) fn new(hsm: &SoftHsm) -> Self {
        Self {
            log: hsm.path("spy.log"),
            module: packaged(
                "/usr/lib/x86_64-linux-gnu/pkcs11/pkcs11-spy.so",
                "opensc-pkcs11",
            ),
        }
    }

    /// For the process that has the module.
    pub(crate) fn variables(&self) -> [(&'static str, &str); 2] {
        [
            ("PKCS11SPY", MODULE),
            ("PKCS11SPY_OUTPUT", self.log.to_str().unwrap()),
        ]
    }

    /// How often `function` was called.
    pub(crate) fn count(&self, function: &str) -> usize {
        let log = fs::read(&self.log).unwrap();
        // `12: C_Login` begins each call.
        let name = format!(": {function}");
        let lines = log.split(|octet| *octet == b'\n');
        lines
            .filter(|line| {
                line.first().is_some_and(u8::is_ascii_digit) && line.ends_with(name.as_bytes())
            })
            .count()
    }
}
