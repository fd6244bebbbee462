//! A PKCS#11 module that behaves like real ones and fails on request: a test helper, never installed.
//!
//! The crate is two things. As a shared library (`libfake_token.so`) it is the module, for any program that loads one.
//! As a Rust library it is [`FakeToken`], by which a test makes such a module, says what it is to do, and reads what
//! has been asked of it:
//!
//! ```no_run
//! let dir = std::path::Path::new("/tmp/a-directory-of-this-test");
//! let token = fake_token::FakeToken::new(dir);
//! // Load token.module() here, or in a child process, and sign.
//! token.set("C_Sign", "0x32*3"); // the next three signatures: CKR_DEVICE_REMOVED
//! assert_eq!(token.violations(), Vec::<String>::new());
//! ```
//!
//! # Where it looks
//! The control file is `control` in the directory the module was loaded from, or that of the environment variable
//! `FAKE_TOKEN_CONTROL`; the log is `log` beside it, or that of `FAKE_TOKEN_LOG`. [`FakeToken::new`] copies the module
//! into the test's directory, so that each test has its own module with its own state, also several in one process.
//!
//! # What it is like
//! Handles of sessions and objects start at 1 after each C_Initialize. A login is the process's; closing the last
//! session logs out; private objects are hidden without login, and after C_Logout their handles are void for ever.
//! Wrong PINs are counted in a file, for all processes, with CKF_USER_PIN_COUNT_LOW, FINAL_TRY and LOCKED. C_SignInit in a
//! session where an operation is active fails with CKR_OPERATION_ACTIVE. C_Sign without a buffer says the length and
//! ends nothing; no fault touches it, and the log has it as `C_Sign(NULL)`. A child that has not called C_Initialize
//! after a fork gets CKR_CRYPTOKI_NOT_INITIALIZED. CKM_RSA_PKCS takes the DigestInfo of SHA-256 and nothing else. The file
//! stays loaded when a program closes it, with its state. The first signature of a process takes 30 to 50 ms longer, in
//! which aws-lc gathers randomness.
//!
//! # The control file
//! Lines `name=value`; read before each call and while one is held up; replaced by a rename. Numbers are decimal or
//! after `0x`; `1` is yes and `0` is no.
//!
//! Faults, for any function, here C_Sign:
//!
//! | line | what happens |
//! |---|---|
//! | `C_Sign=0x32` | each call returns this code, vendors' too (`0x80000384`), without doing its work |
//! | `C_Sign=0x32*3` | the next three calls of a process; a changed line counts anew, `0x32*3@2` is one |
//! | `C_Sign.ms=3000` | each call takes so much longer, unless the line is gone before |
//! | `C_Sign.hang=1` | each call hangs until the line is gone |
//! | `C_Sign.crash=1` | the process aborts; with `once`, the first process that comes here and no other |
//! | `C_Sign(NULL)=...` | the same for questions of length |
//! | `leave_active=1` | what fails does not end its operation: the session is wedged |
//! | `finalize_crash=1` | C_Finalize with a call inside aborts the process |
//! | `corrupt=1`, `corrupt=short` | garbage for signatures; signatures without their last octet |
//! | `absent=C_SignFinal,...` | function pointers that are null; read when the module is loaded |
//! | `C_GetInterface=0x54` | loading fails where a program does not go on to C_GetFunctionList |
//! | `C_GetFunctionList=0x5` | loading fails; so it does with `FAKE_TOKEN_NO_LIST` in the environment |
//!
//! The device:
//!
//! | line | what happens |
//! |---|---|
//! | `present=0` | taken out: sessions die (CKR_DEVICE_REMOVED), no slot has the token |
//! | `gone=N` | another N is a power cycle: sessions, handles and login are lost (CKR_SESSION_HANDLE_INVALID, or the code of `gone_rv`; CKR_DEVICE_REMOVED for signatures under way), slot and object handles have other numbers |
//! | `needs_init=1` | what was lost by `present` or `gone`, and a token that is not there at C_Initialize, is not seen again (CKR_DEVICE_ERROR) before C_Finalize and C_Initialize |
//! | `engine.us=N` | a signature takes so many microseconds of an engine |
//! | `parallel=N` | so many engines; 1 unless said, any number without `engine.us` |
//! | `max_sessions=N` | more are refused with CKR_SESSION_COUNT, in each process |
//! | `sessions_info=` | the most sessions in the token information: `effectively_infinite` or `unavailable` |
//! | `mechanisms=` | of `rsa-pkcs,sha256-rsa-pkcs,eddsa,sha256`, which are all there if not said |
//! | `verify_fails_bits=N` | C_Verify fails with keys of so many bits, and with no others (CKR_DEVICE_ERROR) |
//! | `mechanism_sign=0` | no CKF_SIGN in C_GetMechanismInfo |
//! | `max_key_bits=N` | the largest RSA key in C_GetMechanismInfo, 4096 unless said |
//! | `label=`, `serial=` | of the token, `fake` and `0001` unless said |
//! | `second_token=LABEL` | another token in another slot, with the other key under the first key's label |
//! | `second_serial=` | its serial number, `0002` unless said |
//!
//! The PIN:
//!
//! | line | what happens |
//! |---|---|
//! | `pin=` | the PIN, `1234` unless said |
//! | `tries=N` | wrong PINs before it is locked, 3 unless said; [`FakeToken::set_failed_logins`] sets those made |
//! | `locked_flags=0` | the token's flags do not tell of wrong PINs |
//! | `login_required=0` | private objects are for all, CKF_LOGIN_REQUIRED is not set, C_Login fails |
//! | `protected_path=1` | the PIN is typed elsewhere: C_Login wants none, and no signature either |
//!
//! The objects:
//!
//! | line | what happens |
//! |---|---|
//! | `key=FILE` | the key pair: PKCS#8 in PEM, RSA from 2048 bits or Ed25519; none without it |
//! | `key_label=`, `key_id=` | of the first key, `dkim` and `01` unless said |
//! | `second_key=LABEL` | a second key pair, the other key, on the first token |
//! | `second_key_id=` | its identifier, `02` unless said |
//! | `wrong_public=1` | public values are shown of the other key |
//! | `only=certificate`, `only=public` | nothing else is there of the first key |
//! | `certificate=1` | a certificate is there too |
//! | `can_sign=0` | CKA_SIGN is false, and C_SignInit refused |
//! | `always_auth=1` | CKA_ALWAYS_AUTHENTICATE: a context-specific login for each signature |
//! | `extractable=1` | CKA_EXTRACTABLE, and not CKA_SENSITIVE |
//! | `modulus_bits=N` | the modulus is cut to so many bits where it is shown, for keys too short for aws-lc |
//! | `ec_point=raw`, `ec_params=name` | the point without OCTET STRING; the curve by name instead of identifier |
//!
//! # The log
//! A line for each call that has returned: `microseconds process thread function code note`. Other lines have one of
//! these words in the function's place: `VIOLATION` (two calls at once in one session; C_Finalize with calls inside),
//! `FORKED-CHILD` (a call in a child without C_Initialize), `HANGS` and `CRASHES` (calls that do not return). PINs are not
//! in it: the note of C_Login is `right` or `wrong`, or nothing if the PIN was not looked at.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]

mod abi;
mod control;
mod fake;
mod key;
mod log;
mod module;
mod object;
mod operation;
mod pointer;
mod state;
mod token;

pub use fake::{FakeToken, library, other_key_spki};
pub use log::Call;
