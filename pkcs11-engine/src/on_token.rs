//! What else a token can do for DKIM, and need not: verify signatures, and compute the digest of a body; for benchmarks.
//!
//! An engine of 2009 did both. Software is faster at either: each signature to be verified has another public key, which
//! has to be brought to the token first, and a body costs more on its way there than SHA-256 does here. This is for
//! measuring that, so the module is loaded in this process, not in one of its own: it would be one more way for all those
//! octets. Mail that must be verified on a token goes the way of signatures, see `duty`.
//!
//! Verdicts are right even so: what a token cannot say, because a call failed, is verified in software, and
//! [`OnToken::fault`] tells of it. A failed call is not tried again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::ObjectHandle;
use cryptoki::session::Session;
use cryptoki::slot::Slot;
use dkim_core::engine::{self, BadSignature, PublicKey, VerifyingKey};

use crate::error::{Fault, call_and_code};
use crate::key::Failed;
use crate::module::{Entered, Module};
use crate::reference::Reference;
use crate::service::Salt;
use crate::token::{self, Token};
use crate::uri::{MechanismChoice, TokenFacts, Uri};
use crate::verify::{self, HeaderBy, Method};

/// A token that verifies and digests. Cheap to clone; to be closed once, by [`OnToken::close`].
#[derive(Clone)]
pub struct OnToken {
    inner: Arc<Inner>,
}

struct Inner {
    module: Arc<Module>,
    slot: Slot,
    facts: TokenFacts,
    /// Who logs in, if there is a PIN to do so; neither public keys nor digests need it, but some tokens insist.
    login: Option<Token>,
    choice: MechanismChoice,
    /// Owns the public keys, which go with it; nothing else is done in it. `None` once closed.
    keeper: Mutex<Option<Session>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those that nobody uses now.
    sessions: Vec<Session>,
    /// The first call that failed.
    fault: Option<Fault>,
}

impl OnToken {
    /// Opens the token of `reference`, in this process. Its key is not looked at. Without a PIN nobody is logged in.
    ///
    /// # Errors
    /// The module cannot be used, not exactly one token matches, or its PIN is wrong.
    pub fn open(reference: &Reference) -> Result<Self, Fault> {
        let module = Arc::new(Module::load(&reference.module)?);
        let entered = module.enter()?;
        let wanted = reference.uri.to_string();
        let (slot, facts) =
            token::find(&entered, &reference.uri).map_err(|failed| fault(failed, &wanted))?;
        let login = match &reference.pin {
            None => None,
            Some(pin) => {
                let module = Arc::clone(&module);
                let token = Token::new(module, facts.clone(), salt()?, Vec::new(), |_| ());
                token.take_pin_from(Some(pin));
                Some(token)
            }
        };
        let inner = Inner {
            module: Arc::clone(&module),
            slot,
            facts,
            login,
            choice: reference.mechanism(),
            keeper: Mutex::default(),
            state: Mutex::default(),
        };
        // Logs in, so that a wrong PIN is known now.
        *inner.keeper() = Some(inner.open_session(&entered)?);
        drop(entered);
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The token.
    pub fn facts(&self) -> &TokenFacts {
        &self.inner.facts
    }

    /// Brings `key` into the token as a session object, by C_CreateObject; it is taken out when what is returned is
    /// dropped. So who keeps it pays for that once, and who does not, each time.
    ///
    /// # Errors
    /// A key that no engine takes, or that this token does not.
    pub fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, Fault> {
        let inner = &self.inner;
        let software = engine::default_engine()
            .verifying_key(key)
            .map_err(|error| inner.unfit(error.to_string()))?;
        let entered = inner.module.enter()?;
        let method = inner.method(&entered, key)?;
        let object = inner.import(key)?;
        Ok(Box::new(KeyOnToken {
            token: self.clone(),
            object,
            method,
            software,
        }))
    }

    /// SHA-256 of all `chunks`, one after the other, by C_DigestInit, C_DigestUpdate for each, and C_DigestFinal.
    ///
    /// # Errors
    /// A call that failed.
    pub fn digest<'c>(
        &self,
        chunks: impl IntoIterator<Item = &'c [u8]>,
    ) -> Result<[u8; 32], Fault> {
        self.digest_by(|session| {
            session.digest_init(&Mechanism::Sha256)?;
            for chunk in chunks {
                session.digest_update(chunk)?;
            }
            session.digest_final()
        })
    }

    /// SHA-256 of `octets` by C_DigestInit and C_Digest.
    ///
    /// # Errors
    /// A call that failed.
    pub fn digest_whole(&self, octets: &[u8]) -> Result<[u8; 32], Fault> {
        self.digest_by(|session| session.digest(&Mechanism::Sha256, octets))
    }

    fn digest_by(
        &self,
        go: impl FnOnce(&Session) -> Result<Vec<u8>, Error>,
    ) -> Result<[u8; 32], Fault> {
        let inner = &self.inner;
        let entered = inner.module.enter()?;
        let digest = inner.with_session(&entered, go)?;
        let digest = digest.map_err(|error| inner.device(&error))?;
        digest
            .try_into()
            .map_err(|_| inner.unfit("its SHA-256 has another length than 32 octets".to_owned()))
    }

    /// The first call that failed since it was opened while a signature was verified, which then was verified in software.
    pub fn fault(&self) -> Option<Fault> {
        self.inner.state().fault.clone()
    }

    /// Closes all sessions and finalizes the module, if that is ours to do and nobody stays inside it longer than
    /// `within`. Whether all is over. What is used afterwards fails, or works in software.
    pub fn close(&self, within: Duration) -> bool {
        let inner = &self.inner;
        if let Ok(entered) = inner.module.enter() {
            let sessions = std::mem::take(&mut inner.state().sessions);
            for session in sessions.into_iter().chain(inner.keeper().take()) {
                // They may be gone already.
                let _ = session.close();
            }
            if let Some(login) = &inner.login {
                login.close(&entered);
            }
        }
        inner.module.close(within)
    }
}

impl fmt::Debug for OnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnToken")
            .field("token", &self.inner.uri())
            .finish_non_exhaustive()
    }
}

/// A public key in a token.
#[derive(Debug)]
struct KeyOnToken {
    token: OnToken,
    object: ObjectHandle,
    method: Method,
    /// For when a call fails.
    software: Box<dyn VerifyingKey>,
}

impl VerifyingKey for KeyOnToken {
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        let inner = &self.token.inner;
        let ask = |session: &Session| self.method.ask(session, self.object, octets, signature);
        let verified = inner
            .module
            .enter()
            .and_then(|entered| inner.with_session(&entered, ask));
        match verified {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(BadSignature),
            Ok(Err(error)) => {
                inner.note(inner.device(&error));
                self.software.verify(octets, signature)
            }
            Err(fault) => {
                inner.note(fault);
                self.software.verify(octets, signature)
            }
        }
    }
}

impl Drop for KeyOnToken {
    fn drop(&mut self) {
        let inner = &self.token.inner;
        if let Ok(_entered) = inner.module.enter()
            && let Some(keeper) = &*inner.keeper()
        {
            // It goes with its session in any case.
            let _ = keeper.destroy_object(self.object);
        }
    }
}

impl Inner {
    /// Does `go` in a session of its own, which is kept for the next unless it fails: a failed call may have left an
    /// operation active, which blocks a session for good.
    fn with_session<T>(
        &self,
        entered: &Entered<'_>,
        go: impl FnOnce(&Session) -> Result<T, Error>,
    ) -> Result<Result<T, Error>, Fault> {
        let idle = self.state().sessions.pop();
        let session = match idle {
            Some(session) => session,
            None => self.open_session(entered)?,
        };
        let result = go(&session);
        if result.is_ok() {
            self.state().sessions.push(session);
        } else {
            // It may be gone already.
            let _ = session.close();
        }
        Ok(result)
    }

    fn open_session(&self, entered: &Entered<'_>) -> Result<Session, Fault> {
        match &self.login {
            Some(login) => login
                .session(entered)
                .map(|opened| opened.session)
                .map_err(|failed| fault(failed, &self.uri())),
            None => entered
                .open_ro_session_no_drop(self.slot)
                .map_err(|error| self.device(&error)),
        }
    }

    /// How the token is asked about signatures of `key`.
    fn method(&self, entered: &Entered<'_>, key: &PublicKey) -> Result<Method, Fault> {
        let method = Method::of(entered, self.slot, key, self.choice, HeaderBy::Software)
            .map_err(|error| self.device(&error))?;
        let what = verify::kind_of(key);
        method.ok_or_else(|| self.unfit(format!("the token does not verify {what}")))
    }

    /// Makes `key` an object of the keeper's session.
    fn import(&self, key: &PublicKey) -> Result<ObjectHandle, Fault> {
        let keeper = self.keeper();
        let keeper = keeper.as_ref().ok_or(Fault::Stopped)?;
        verify::import(keeper, key).map_err(|error| match error {
            Error::Pkcs11(RvError::SessionReadOnly, _) => self.unfit(READ_ONLY.to_owned()),
            error => self.device(&error),
        })
    }

    fn uri(&self) -> String {
        Uri::of_token(&self.facts).to_string()
    }

    fn device(&self, error: &Error) -> Fault {
        device(error, &self.uri())
    }

    fn unfit(&self, reason: String) -> Fault {
        Fault::Unfit {
            key: self.uri(),
            reason,
        }
    }

    /// Keeps the first fault.
    fn note(&self, fault: Fault) {
        self.state().fault.get_or_insert(fault);
    }

    fn keeper(&self) -> MutexGuard<'_, Option<Session>> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fault(failed: Failed, token: &str) -> Fault {
    match failed {
        Failed::Fault(fault) => fault,
        Failed::Call(error) => device(&error, token),
    }
}

fn device(error: &Error, token: &str) -> Fault {
    let (call, code) = call_and_code(error);
    Fault::Device {
        token: token.to_owned(),
        call,
        code,
    }
}

/// A number that fingerprints of PINs begin with.
fn salt() -> Result<Salt, Fault> {
    let mut salt = Salt::default();
    rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
        .map(|_| salt)
        .map_err(|error| Fault::Process {
            reason: format!("has no random numbers: {error}"),
        })
}

const READ_ONLY: &str = "the token takes no public key into a read-only session (CKR_SESSION_READ_ONLY), so that it \
     cannot verify; leave that to software";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin::PinSource;
    use dkim_core::engine::conformance::verifying_conformance;
    use dkim_core::engine::{Engine, EngineError, PrivateKey, SigningKey};
    use sha2::{Digest, Sha256};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    /// SoftHSM reads its configuration's name from the environment, which only a process of its own can set; so each
    /// test runs itself once more, with a token made for it.
    fn with_softhsm(test: &str, go: impl FnOnce(&Path)) {
        if let Some(folder) = std::env::var_os(FOLDER) {
            return go(Path::new(&folder));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("tokens")).unwrap();
        let configuration = format!("directories.tokendir = {}\n", path("tokens").display());
        std::fs::write(path("softhsm2.conf"), configuration).unwrap();
        std::fs::write(path("pin"), "4711\n").unwrap();
        std::fs::set_permissions(path("pin"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let run = |command: &mut Command| {
            let output = command
                .env("SOFTHSM2_CONF", path("softhsm2.conf"))
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            let told = told + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{told}");
            assert!(!told.contains("0 passed"), "{told}");
        };
        // Debian's package softhsm2 has it.
        run(Command::new("softhsm2-util").args([
            "--init-token",
            "--free",
            "--label",
            "on",
            "--so-pin",
            "12345678",
            "--pin",
            "4711",
        ]));
        let test = format!("on_token::tests::{test}");
        run(Command::new(std::env::current_exe().unwrap())
            .args([&test, "--exact"])
            .env(FOLDER, folder.path()));
    }

    const FOLDER: &str = "PKCS11_ENGINE_TEST_TOKEN";

    fn open(folder: &Path, uri: &str, pin: bool) -> Result<OnToken, Fault> {
        let pin = pin.then(|| PinSource::File(folder.join("pin")));
        let uri = Uri::parse(uri.as_bytes()).unwrap();
        let module = Path::new("/usr/lib/softhsm/libsofthsm2.so");
        OnToken::open(&Reference::new(uri, Some(module), pin.as_ref(), false).unwrap())
    }

    #[derive(Debug)]
    struct OnTokenEngine(OnToken);

    impl Engine for OnTokenEngine {
        fn name(&self) -> &'static str {
            "on token"
        }

        fn signing_key(&self, _: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
            unreachable!("it is for verifying")
        }

        fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
            self.0
                .verifying_key(key)
                .map_err(|fault| EngineError(fault.to_string()))
        }
    }

    #[test]
    fn a_token_verifies_as_every_engine_does() {
        with_softhsm("a_token_verifies_as_every_engine_does", |folder| {
            for (uri, pin) in [
                ("pkcs11:token=on", false),
                ("pkcs11:token=on?x-mechanism=sha256-rsa-pkcs", true),
            ] {
                let token = open(folder, uri, pin).unwrap();
                let engine = OnTokenEngine(token.clone());
                verifying_conformance(&engine);
                // Or it was software that conformed.
                assert_eq!(token.fault(), None, "{uri}");
                assert!(token.close(Duration::from_secs(1)));
            }
        });
    }

    #[test]
    fn digests_are_sha_256_however_the_octets_come() {
        with_softhsm("digests_are_sha_256_however_the_octets_come", |folder| {
            let token = open(folder, "pkcs11:token=on", false).unwrap();
            let octets: Vec<u8> = (0..100_000_u32).map(|n| (n * 7) as u8).collect();
            let wanted: [u8; 32] = Sha256::digest(&octets).into();
            for size in [999, 65_536, 100_000] {
                assert_eq!(token.digest(octets.chunks(size)), Ok(wanted), "{size}");
            }
            assert_eq!(token.digest_whole(&octets), Ok(wanted));
            let nothing: [u8; 32] = Sha256::digest(b"").into();
            assert_eq!(token.digest([&b""[..]]), Ok(nothing));
            assert_eq!(
                token.digest([&b"a"[..], b"bc"]),
                Ok(Sha256::digest(b"abc").into())
            );
            assert!(token.close(Duration::from_secs(1)));
            assert_eq!(token.digest_whole(b"abc"), Err(Fault::Stopped));
        });
    }

    #[test]
    fn verdicts_stay_right_when_the_token_fails_and_it_is_told() {
        with_softhsm(
            "verdicts_stay_right_when_the_token_fails_and_it_is_told",
            |folder| {
                let token = open(folder, "pkcs11:token=on", true).unwrap();
                let octets = include_bytes!("../../dkim-core/tests/data/keys/ed25519.pem");
                let private =
                    engine::signing_key(&PrivateKey::from_octets(octets).unwrap()).unwrap();
                let key = token.verifying_key(private.public_key()).unwrap();
                let signature = private.sign(b"octets").unwrap();
                assert_eq!(key.verify(b"octets", &signature), Ok(()));
                assert_eq!(token.fault(), None);
                // The object goes, as with a token that is pulled.
                token.inner.keeper().take().unwrap().close().unwrap();
                assert_eq!(key.verify(b"octets", &signature), Ok(()));
                assert_eq!(key.verify(b"other", &signature), Err(BadSignature));
                let fault = token.fault().unwrap().to_string();
                assert!(fault.contains("C_VerifyInit failed with CKR_"), "{fault}");
                assert!(token.close(Duration::from_secs(1)));
                assert_eq!(key.verify(b"octets", &signature), Ok(()));
                assert!(matches!(
                    token.verifying_key(private.public_key()),
                    Err(Fault::Stopped)
                ));
            },
        );
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        with_softhsm("what_cannot_be_opened_says_why", |folder| {
            let error = open(folder, "pkcs11:token=off", false)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("no token matches") && error.contains("token=on"),
                "{error}"
            );
            std::fs::write(folder.join("pin"), "1234").unwrap();
            let error = open(folder, "pkcs11:token=on", true).unwrap_err();
            assert!(matches!(error, Fault::Pin { .. }), "{error}");
        });
    }
}
