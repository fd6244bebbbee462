//! What the functions of slots, sessions, logins and objects do: a token with a PIN and a few keys.
//!
//! Operations are `operation`'s. Nothing here knows of pointers (`abi`) or of faults (`module`).

use std::fs;

use cryptoki_sys::{
    CK_ATTRIBUTE_TYPE, CK_EFFECTIVELY_INFINITE, CK_FLAGS, CK_MECHANISM_INFO, CK_MECHANISM_TYPE,
    CK_RV, CK_SESSION_INFO, CK_TOKEN_INFO, CK_ULONG, CK_UNAVAILABLE_INFORMATION, CK_USER_TYPE,
    CK_VERSION, CKA_CLASS, CKA_KEY_TYPE, CKA_MODULUS, CKA_PUBLIC_EXPONENT, CKA_TOKEN, CKF_DIGEST,
    CKF_HW, CKF_LOGIN_REQUIRED, CKF_PROTECTED_AUTHENTICATION_PATH, CKF_RNG, CKF_RW_SESSION,
    CKF_SERIAL_SESSION, CKF_SIGN, CKF_TOKEN_INITIALIZED, CKF_USER_PIN_COUNT_LOW,
    CKF_USER_PIN_FINAL_TRY, CKF_USER_PIN_INITIALIZED, CKF_USER_PIN_LOCKED, CKF_VERIFY, CKK_RSA,
    CKM_EDDSA, CKM_RSA_PKCS, CKM_SHA256, CKM_SHA256_RSA_PKCS, CKO_PUBLIC_KEY, CKR_ARGUMENTS_BAD,
    CKR_ATTRIBUTE_VALUE_INVALID, CKR_FUNCTION_FAILED, CKR_MECHANISM_INVALID, CKR_OPERATION_ACTIVE,
    CKR_OPERATION_NOT_INITIALIZED, CKR_PIN_INCORRECT, CKR_PIN_LOCKED, CKR_SESSION_COUNT,
    CKR_SESSION_PARALLEL_NOT_SUPPORTED, CKR_TEMPLATE_INCOMPLETE, CKR_USER_ALREADY_LOGGED_IN,
    CKR_USER_NOT_LOGGED_IN, CKR_USER_PIN_NOT_INITIALIZED, CKR_USER_TYPE_INVALID,
    CKS_RO_PUBLIC_SESSION, CKS_RO_USER_FUNCTIONS, CKS_RW_PUBLIC_SESSION, CKS_RW_USER_FUNCTIONS,
    CKU_CONTEXT_SPECIFIC, CKU_USER,
};

use crate::module::Running;
use crate::object::Object;
use crate::state::TokenIndex;

/// Slots and tokens.
impl Running {
    /// C_GetSlotList.
    pub(crate) fn slots(&self, with_token: bool) -> Result<Vec<u64>, CK_RV> {
        self.state(|state| {
            let mut slots = state.slots(&self.control);
            slots.retain(|&(_, token)| !with_token || state.is_present(token));
            Ok(slots.into_iter().map(|(slot, _)| slot).collect())
        })
    }

    /// C_GetSlotInfo: whether a token is there.
    pub(crate) fn slot_has_token(&self, slot: u64) -> Result<bool, CK_RV> {
        self.state(|state| match state.token(slot, &self.control) {
            Ok(_) => Ok(true),
            Err(cryptoki_sys::CKR_TOKEN_NOT_PRESENT) => Ok(false),
            Err(rv) => Err(rv),
        })
    }

    /// C_GetTokenInfo.
    pub(crate) fn token_info(&self, slot: u64) -> Result<CK_TOKEN_INFO, CK_RV> {
        let control = &self.control;
        let (token, open) = self.state(|state| {
            let token = state.token(slot, control)?;
            Ok((token, state.open_sessions(token)))
        })?;
        let most = match control.text("sessions_info") {
            Some("unavailable") => CK_UNAVAILABLE_INFORMATION,
            Some(_) => CK_EFFECTIVELY_INFINITE,
            None => control
                .number("max_sessions")
                .unwrap_or(CK_EFFECTIVELY_INFINITE),
        };
        let (label, serial) = match token {
            0 => (
                control.text("label").unwrap_or("fake"),
                control.text("serial").unwrap_or("0001"),
            ),
            _ => (
                control.text("second_token").unwrap_or_default(),
                control.text("second_serial").unwrap_or("0002"),
            ),
        };
        Ok(CK_TOKEN_INFO {
            label: padded(label),
            manufacturerID: padded("fake-token"),
            model: padded("fault injector"),
            serialNumber: padded(serial),
            flags: self.token_flags(token),
            ulMaxSessionCount: most,
            ulSessionCount: open as CK_ULONG,
            ulMaxRwSessionCount: most,
            ulRwSessionCount: CK_UNAVAILABLE_INFORMATION,
            ulMaxPinLen: 64,
            ulMinPinLen: 4,
            ulTotalPublicMemory: CK_UNAVAILABLE_INFORMATION,
            ulFreePublicMemory: CK_UNAVAILABLE_INFORMATION,
            ulTotalPrivateMemory: CK_UNAVAILABLE_INFORMATION,
            ulFreePrivateMemory: CK_UNAVAILABLE_INFORMATION,
            hardwareVersion: CK_VERSION { major: 1, minor: 0 },
            firmwareVersion: CK_VERSION { major: 1, minor: 0 },
            utcTime: padded(""),
        })
    }

    fn token_flags(&self, token: TokenIndex) -> CK_FLAGS {
        let mut flags = CKF_RNG | CKF_TOKEN_INITIALIZED;
        if self.control.flag("login_required", true) {
            flags |= CKF_LOGIN_REQUIRED | CKF_USER_PIN_INITIALIZED;
        }
        if self.control.flag("protected_path", false) {
            flags |= CKF_PROTECTED_AUTHENTICATION_PATH;
        }
        if self.control.flag("locked_flags", true) {
            let failures = self.failures(token);
            if failures > 0 {
                flags |= CKF_USER_PIN_COUNT_LOW;
            }
            if failures + 1 == self.tries() {
                flags |= CKF_USER_PIN_FINAL_TRY;
            }
            if failures >= self.tries() {
                flags |= CKF_USER_PIN_LOCKED;
            }
        }
        flags
    }

    /// C_GetMechanismList.
    pub(crate) fn mechanisms(&self, slot: u64) -> Result<Vec<CK_MECHANISM_TYPE>, CK_RV> {
        self.state(|state| state.token(slot, &self.control))?;
        let listed = self.control.list("mechanisms");
        Ok(MECHANISMS
            .iter()
            .filter(|(name, _)| listed.as_ref().is_none_or(|listed| listed.contains(name)))
            .map(|&(_, mechanism)| mechanism)
            .collect())
    }

    /// C_GetMechanismInfo.
    pub(crate) fn mechanism_info(
        &self,
        slot: u64,
        mechanism: CK_MECHANISM_TYPE,
    ) -> Result<CK_MECHANISM_INFO, CK_RV> {
        if !self.mechanisms(slot)?.contains(&mechanism) {
            return Err(CKR_MECHANISM_INVALID);
        }
        let signs = if self.control.flag("mechanism_sign", true) {
            CKF_SIGN
        } else {
            0
        };
        let (min, max, flags) = match mechanism {
            CKM_SHA256 => (0, 0, CKF_DIGEST),
            CKM_EDDSA => (255, 255, signs | CKF_HW),
            _ => (
                1024,
                self.control.number("max_key_bits").unwrap_or(4096),
                signs | CKF_VERIFY | CKF_HW,
            ),
        };
        Ok(CK_MECHANISM_INFO {
            ulMinKeySize: min,
            ulMaxKeySize: max,
            flags,
        })
    }

    /// Whether operations may begin with a mechanism: the list is the same for both tokens.
    pub(crate) fn offers(&self, mechanism: CK_MECHANISM_TYPE) -> Result<(), CK_RV> {
        let listed = self.control.list("mechanisms");
        MECHANISMS
            .iter()
            .find(|&&(name, of)| {
                of == mechanism && listed.as_ref().is_none_or(|listed| listed.contains(&name))
            })
            .map(|_| ())
            .ok_or(CKR_MECHANISM_INVALID)
    }
}

/// The mechanisms there are, by their names in the control file.
const MECHANISMS: [(&str, CK_MECHANISM_TYPE); 4] = [
    ("rsa-pkcs", CKM_RSA_PKCS),
    ("sha256-rsa-pkcs", CKM_SHA256_RSA_PKCS),
    ("eddsa", CKM_EDDSA),
    ("sha256", CKM_SHA256),
];

/// Text as the structures have it: cut or filled up with spaces.
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, octet) in field.iter_mut().zip(text.bytes()) {
        *place = octet;
    }
    field
}

/// Sessions and logins.
impl Running {
    /// C_OpenSession.
    pub(crate) fn open_session(&self, slot: u64, flags: CK_FLAGS) -> Result<u64, CK_RV> {
        if flags & CKF_SERIAL_SESSION == 0 {
            return Err(CKR_SESSION_PARALLEL_NOT_SUPPORTED);
        }
        self.state(|state| {
            let token = state.token(slot, &self.control)?;
            let open = state.open_sessions(0) + state.open_sessions(1);
            let most = self.control.number("max_sessions").unwrap_or(0);
            if most > 0 && open as u64 >= most {
                return Err(CKR_SESSION_COUNT);
            }
            Ok(state.open(token, flags & CKF_RW_SESSION != 0))
        })
    }

    /// C_CloseSession.
    pub(crate) fn close_session(&self) -> Result<(), CK_RV> {
        self.state(|state| {
            state
                .close(self.session)
                .map(|_| ())
                .ok_or(CKR_FUNCTION_FAILED)
        })
    }

    /// C_CloseAllSessions.
    pub(crate) fn close_all_sessions(&self, slot: u64) -> Result<(), CK_RV> {
        self.state(|state| {
            let token = state.token(slot, &self.control)?;
            let all: Vec<u64> = state
                .sessions
                .iter()
                .filter(|(_, session)| session.token == token)
                .map(|(&handle, _)| handle)
                .collect();
            for handle in all {
                if state.close(handle).is_some_and(|closed| closed.inside > 0) {
                    self.module.violation(&format!(
                        "C_CloseAllSessions with a call in session {handle}"
                    ));
                }
            }
            Ok(())
        })
    }

    /// C_GetSessionInfo.
    pub(crate) fn session_info(&self) -> Result<CK_SESSION_INFO, CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            let (token, writes) = (session.token, session.writes);
            let slot = state
                .slots(&self.control)
                .into_iter()
                .find(|&(_, of)| of == token);
            Ok(CK_SESSION_INFO {
                slotID: slot.map_or(0, |(slot, _)| slot),
                state: match (writes, state.logged_in[token]) {
                    (false, false) => CKS_RO_PUBLIC_SESSION,
                    (false, true) => CKS_RO_USER_FUNCTIONS,
                    (true, false) => CKS_RW_PUBLIC_SESSION,
                    (true, true) => CKS_RW_USER_FUNCTIONS,
                },
                flags: CKF_SERIAL_SESSION | if writes { CKF_RW_SESSION } else { 0 },
                ulDeviceError: 0,
            })
        })
    }

    /// C_Login; without a PIN for the protected path.
    pub(crate) fn login(&self, user: CK_USER_TYPE, pin: Option<&[u8]>) -> Result<(), CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            let (token, signs) = (session.token, session.sign.is_some());
            match user {
                CKU_USER if !self.control.flag("login_required", true) => {
                    return Err(CKR_USER_PIN_NOT_INITIALIZED);
                }
                CKU_USER if state.logged_in[token] => return Err(CKR_USER_ALREADY_LOGGED_IN),
                CKU_USER => {}
                CKU_CONTEXT_SPECIFIC if !signs => {
                    return Err(CKR_OPERATION_NOT_INITIALIZED);
                }
                CKU_CONTEXT_SPECIFIC => {}
                _ => return Err(CKR_USER_TYPE_INVALID),
            }
            self.try_pin(token, pin)?;
            match &mut state.session(self.session)?.sign {
                Some(signing) if user == CKU_CONTEXT_SPECIFIC => signing.authenticated(),
                _ => state.logged_in[token] = true,
            }
            Ok(())
        })
    }

    /// One try of the PIN, counted in a file: the counter is the token's, whatever process talks to it.
    fn try_pin(&self, token: TokenIndex, pin: Option<&[u8]>) -> Result<(), CK_RV> {
        let protected = self.control.flag("protected_path", false);
        let right = match pin {
            None if protected => true,
            Some(pin) if !protected => pin == self.control.text("pin").unwrap_or("1234").as_bytes(),
            _ => return Err(CKR_ARGUMENTS_BAD),
        };
        let failures = self.failures(token);
        if failures >= self.tries() {
            self.note(if right { "right" } else { "wrong" });
            return Err(CKR_PIN_LOCKED);
        }
        if !right {
            self.note("wrong");
            self.set_failures(token, failures + 1);
            return Err(CKR_PIN_INCORRECT);
        }
        self.note("right");
        if failures > 0 {
            self.set_failures(token, 0);
        }
        Ok(())
    }

    fn tries(&self) -> u64 {
        self.control.number("tries").unwrap_or(3)
    }

    fn failures(&self, token: TokenIndex) -> u64 {
        self.module
            .file
            .beside(FAILURES[token])
            .and_then(|path| fs::read_to_string(path).ok())
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    fn set_failures(&self, token: TokenIndex, failures: u64) {
        if let Some(path) = self.module.file.beside(FAILURES[token]) {
            // A module that may not write forgets wrong PINs; the log has them all the same.
            let _ = fs::write(path, failures.to_string());
        }
    }

    /// C_Logout.
    pub(crate) fn logout(&self) -> Result<(), CK_RV> {
        self.state(|state| {
            let token = state.session(self.session)?.token;
            if !state.logged_in[token] {
                return Err(CKR_USER_NOT_LOGGED_IN);
            }
            state.log_out(token);
            Ok(())
        })
    }
}

/// The files that count wrong PINs: the control file's name and this.
pub(crate) const FAILURES: [&str; 2] = [".failures", ".failures2"];

/// Objects.
impl Running {
    /// C_FindObjectsInit.
    pub(crate) fn find_init(&self, template: &[(CK_ATTRIBUTE_TYPE, Vec<u8>)]) -> Result<(), CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            if session.find.is_some() {
                return Err(CKR_OPERATION_ACTIVE);
            }
            let token = session.token;
            let mut found: Vec<u64> = state
                .own_objects(self.session)
                .into_iter()
                .filter(|(_, object)| object.matches(template))
                .map(|(handle, _)| handle)
                .collect();
            for object in state.visible(token, &self.control) {
                if object.matches(template) {
                    found.push(state.handle_of(token, object.name));
                }
            }
            state.session(self.session)?.find = Some(found.into());
            Ok(())
        })
    }

    /// C_FindObjects: at most so many.
    pub(crate) fn find(&self, most: usize) -> Result<Vec<u64>, CK_RV> {
        self.state(|state| {
            let found = &mut state.session(self.session)?.find;
            let found = found.as_mut().ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
            Ok(found.drain(..most.min(found.len())).collect())
        })
    }

    /// C_FindObjectsFinal.
    pub(crate) fn find_final(&self) -> Result<(), CK_RV> {
        self.state(|state| {
            let found = state.session(self.session)?.find.take();
            found.map(|_| ()).ok_or(CKR_OPERATION_NOT_INITIALIZED)
        })
    }

    /// The object behind a handle.
    pub(crate) fn object(&self, handle: u64) -> Result<Object, CK_RV> {
        self.state(|state| {
            let token = state.session(self.session)?.token;
            state.object(token, handle, &self.control)
        })
    }

    /// C_CreateObject: public RSA keys for the session, nothing else.
    pub(crate) fn create_object(
        &self,
        template: Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)>,
    ) -> Result<u64, CK_RV> {
        let object = Object::of_session(template);
        let is =
            |attribute, value: CK_ULONG| object.attribute(attribute) == Ok(&value.to_ne_bytes());
        if !is(CKA_CLASS, CKO_PUBLIC_KEY) || !is(CKA_KEY_TYPE, CKK_RSA) || object.is(CKA_TOKEN) {
            return Err(CKR_ATTRIBUTE_VALUE_INVALID);
        }
        if object.attribute(CKA_MODULUS).is_err() || object.attribute(CKA_PUBLIC_EXPONENT).is_err()
        {
            return Err(CKR_TEMPLATE_INCOMPLETE);
        }
        self.state(|state| Ok(state.add_object(self.session, object)))
    }

    /// C_DestroyObject.
    pub(crate) fn destroy_object(&self, handle: u64) -> Result<(), CK_RV> {
        self.state(|state| state.destroy(handle))
    }
}
