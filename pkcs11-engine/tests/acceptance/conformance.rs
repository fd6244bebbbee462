//! The suite that every engine goes through, over real modules: keys are imported into a token and signed with there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dkim_core::engine::conformance::signing_conformance;
use dkim_core::engine::{
    Completion, Engine, EngineError, KeyType, PrivateKey, PublicKey, SigningError, SigningKey,
    VerifyingKey, default_engine, engine_by_name,
};
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::{Isolation, Reference, Settings};

use crate::recovery::openssl_key;
use crate::rig::{self, Place, host_with, packaged, reference, run, settings, write_pin};
use crate::softhsm::SoftHsm;

#[test]
fn softhsm_conforms() {
    signing_conformance(&InSoftHsm::new());
}

#[test]
fn nss_conforms() {
    signing_conformance(&InNss::new());
}

#[test]
fn signatures_of_rsa_keys_are_octet_for_octet_those_of_aws_lc() {
    let engines: [&dyn Engine; 2] = [&InSoftHsm::new(), &InNss::new()];
    for bits in [2048, 4096] {
        let pem = openssl_key(bits);
        let key = PrivateKey::from_octets(pem.as_bytes()).unwrap();
        let in_software = engine_by_name("aws-lc").unwrap().signing_key(&key).unwrap();
        for engine in engines {
            let in_token = engine.signing_key(&key).unwrap();
            assert_eq!(in_token.public_key(), in_software.public_key());
            for octets in [&b""[..], b"dkim-signature:v=1; a=rsa-sha256", &[0xff; 5000]] {
                assert_eq!(
                    in_token.sign(octets).unwrap(),
                    in_software.sign(octets).unwrap(),
                    "{bits} bits in {}",
                    engine.name()
                );
            }
        }
    }
}

/// Imports keys into a token of SoftHSM.
#[derive(Debug)]
struct InSoftHsm {
    opener: Opener,
    hsm: SoftHsm,
}

impl InSoftHsm {
    fn new() -> Self {
        let hsm = SoftHsm::empty();
        hsm.init_token("dkim");
        Self {
            opener: Opener::new(hsm.settings(&[])),
            hsm,
        }
    }
}

impl Engine for InSoftHsm {
    fn name(&self) -> &'static str {
        "SoftHSM"
    }

    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        if key.key_type() == KeyType::Ed25519 {
            // The form it is imported in has no public half, so that one that does not fit is lost on the way.
            default_engine().signing_key(key)?;
        }
        let id = self.opener.next_id();
        self.hsm
            .import("dkim", &key.to_pkcs8_pem(), &format!("key {id}"), &id);
        self.opener
            .open(&self.hsm.reference(&format!("pkcs11:token=dkim;id=%{id}")))
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        default_engine().verifying_key(key)
    }
}

/// Imports RSA keys into a database of NSS, by way of PKCS#12; it has no Ed25519, which SoftHSM takes.
#[derive(Debug)]
pub(crate) struct InNss {
    opener: Opener,
    settings: Settings,
    ed25519: InSoftHsm,
    module: PathBuf,
    dir: tempfile::TempDir,
}

const SOFTOKN: &str = "/usr/lib/x86_64-linux-gnu/libsoftokn3.so";

impl InNss {
    pub(crate) fn new() -> Self {
        packaged(SOFTOKN, "libnss3");
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("database")).unwrap();
        write_pin(&path("pin"), b"1234");
        let mut make = Self::tool("certutil");
        make.args(["-N", "-d"])
            .arg(format!("sql:{}", path("database").display()));
        run(make.arg("-f").arg(path("pin")), "libnss3-tools");
        let mut compile = Command::new("cc");
        compile
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(path("nss.so"));
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/nss-with-parameters.c");
        run(compile.arg(source), "gcc");
        let parameters = format!(
            "configdir='sql:{}' certPrefix='' keyPrefix='' secmod='secmod.db' flags=",
            path("database").display()
        );
        let program = host_with(
            dir.path(),
            &[("NSS_PARAMETERS", &parameters), ("NSS_MODULE", SOFTOKN)],
        );
        let settings = Settings {
            isolation: Isolation::Process { program },
            ..settings(Place::Apart)
        };
        Self {
            opener: Opener::new(settings.clone()),
            settings,
            ed25519: InSoftHsm::new(),
            module: path("nss.so"),
            dir,
        }
    }

    /// How its module is used.
    pub(crate) fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// The module, which is softokn with its parameters.
    pub(crate) fn module(&self) -> &Path {
        &self.module
    }

    /// A program of NSS. How it stretches passwords is not what is tested, and takes most of the time.
    fn tool(name: &str) -> Command {
        let mut command = Command::new(name);
        command.envs([
            ("NSS_MIN_MP_PBE_ITERATION_COUNT", "1"),
            ("NSS_MAX_MP_PBE_ITERATION_COUNT", "1"),
        ]);
        command
    }

    fn import(&self, pem: &str, label: &str) -> Result<(), EngineError> {
        let path = |name: &str| self.dir.path().join(name);
        fs::write(path("key.pem"), pem).unwrap();
        fs::set_permissions(path("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        let mut certify = Command::new("openssl");
        certify
            .args(["req", "-new", "-x509", "-days", "9", "-subj"])
            .arg(format!("/CN={label}"));
        certify
            .arg("-key")
            .arg(path("key.pem"))
            .arg("-out")
            .arg(path("certificate.pem"));
        let mut pack = Command::new("openssl");
        pack.args([
            "pkcs12", "-export", "-passout", "pass:-", "-name", label, "-inkey",
        ])
        .arg(path("key.pem"));
        pack.arg("-in")
            .arg(path("certificate.pem"))
            .arg("-out")
            .arg(path("key.p12"));
        let mut import = Self::tool("pk12util");
        import.arg("-i").arg(path("key.p12")).arg("-d");
        import.arg(format!("sql:{}", path("database").display()));
        import.arg("-k").arg(path("pin")).args(["-W", "-"]);
        for mut step in [certify, pack, import] {
            let output = step.output().unwrap();
            if !output.status.success() {
                return Err(EngineError(
                    String::from_utf8_lossy(&output.stderr).into_owned(),
                ));
            }
        }
        Ok(())
    }
}

impl Engine for InNss {
    fn name(&self) -> &'static str {
        "NSS"
    }

    fn signing_key(&self, key: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        if key.key_type() == KeyType::Ed25519 {
            return self.ed25519.signing_key(key);
        }
        let label = format!("key-{}", self.opener.next_id());
        self.import(&key.to_pkcs8_pem(), &label)?;
        let uri = format!("pkcs11:token=NSS%20Certificate%20DB;object={label}");
        let pin = PinSource::File(self.dir.path().join("pin"));
        self.opener.open(&reference(&uri, &self.module, Some(&pin)))
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        default_engine().verifying_key(key)
    }
}

/// Opens keys that were imported.
struct Opener {
    engine: rig::Engine,
    last_id: AtomicUsize,
}

impl Opener {
    fn new(settings: Settings) -> Self {
        Self {
            engine: rig::Engine::new(Settings {
                timeout: Duration::from_secs(15),
                ..settings
            }),
            last_id: AtomicUsize::new(0),
        }
    }

    /// Two digits for a key that has none yet.
    fn next_id(&self) -> String {
        format!("{:02}", self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn open(&self, reference: &Reference) -> Result<Box<dyn SigningKey>, EngineError> {
        let key = self.engine.tokens.key(reference).unwrap();
        key.wait(Duration::from_secs(20))
            .map_err(|fault| EngineError(fault.to_string()))?;
        Ok(Box::new(Opened(key.signing_key().unwrap())))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.engine.tokens.shut_down(Duration::from_secs(5));
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

/// The key in the form in which the suite wants it.
#[derive(Debug)]
struct Opened(Arc<dyn SigningKey>);

impl SigningKey for Opened {
    fn key_type(&self) -> KeyType {
        self.0.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        self.0.public_key()
    }

    fn sign(&self, octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        self.0.sign(octets)
    }

    fn submit(&self, octets: Vec<u8>, within: Duration, completion: Completion) {
        self.0.submit(octets, within, completion);
    }
}
