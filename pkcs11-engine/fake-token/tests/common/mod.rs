//! What the tests of the module have in common: a token in a temporary directory, loaded by cryptoki.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::sync::OnceLock;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, Result, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::AuthPin;
use fake_token::FakeToken;
use tempfile::TempDir;

/// A token and the module, initialized.
pub(crate) struct World {
    pub(crate) token: FakeToken,
    pub(crate) pkcs11: Pkcs11,
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With these lines in the control file from the start.
    pub(crate) fn with(lines: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let token = FakeToken::with_key(dir.path(), pem());
        token.set_all(lines);
        let pkcs11 = Pkcs11::new(token.module()).unwrap();
        initialize(&pkcs11).unwrap();
        Self { token, pkcs11, dir }
    }

    pub(crate) fn slot(&self) -> Slot {
        self.pkcs11.get_slots_with_token().unwrap()[0]
    }

    pub(crate) fn session(&self) -> Session {
        self.pkcs11.open_ro_session(self.slot()).unwrap()
    }

    /// A session, logged in, and the key.
    pub(crate) fn ready(&self) -> (Session, ObjectHandle) {
        let session = self.session();
        log_in(&session, "1234").unwrap();
        let key = private_key(&session).unwrap();
        (session, key)
    }

    /// Whether `signature` is of the token's key, over [`MESSAGE`].
    pub(crate) fn verifies(&self, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.token.public_key_spki())
            .verify(MESSAGE, signature)
            .is_ok()
    }
}

/// One key for all tests of a program: to make one takes longer than most of them.
fn pem() -> &'static str {
    static PEM: OnceLock<String> = OnceLock::new();
    PEM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        FakeToken::new(dir.path()).private_key_pem().to_owned()
    })
}

pub(crate) const MESSAGE: &[u8] = b"from:joe@example.org\r\n";

pub(crate) fn initialize(pkcs11: &Pkcs11) -> Result<()> {
    pkcs11.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))
}

pub(crate) fn log_in(session: &Session, pin: &str) -> Result<()> {
    session.login(UserType::User, Some(&AuthPin::new(pin.into())))
}

pub(crate) fn private_keys(session: &Session) -> Result<Vec<ObjectHandle>> {
    session.find_objects(&[Attribute::Class(ObjectClass::PRIVATE_KEY)])
}

pub(crate) fn private_key(session: &Session) -> Option<ObjectHandle> {
    private_keys(session).unwrap().first().copied()
}

/// DigestInfo of SHA-256 (RFC 8017 section 9.2) over [`MESSAGE`].
pub(crate) fn digest_info() -> Vec<u8> {
    let prefix = [
        0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01,
        0x05, 0x00, 0x04, 0x20,
    ];
    [&prefix, digest::digest(&digest::SHA256, MESSAGE).as_ref()].concat()
}

pub(crate) fn sign(session: &Session, key: ObjectHandle) -> Result<Vec<u8>> {
    session.sign(&Mechanism::RsaPkcs, key, &digest_info())
}

/// The code a call failed with, and the function that gave it.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T>) -> (RvError, String) {
    match result {
        Err(Error::Pkcs11(rv, function)) => (rv, format!("{function:?}")),
        other => panic!("no code: {other:?}"),
    }
}

/// The code alone.
pub(crate) fn rv<T: std::fmt::Debug>(result: Result<T>) -> RvError {
    code(result).0
}
