//! What the functions of signing, verifying and digesting do: operations that begin, take parts and end.
//!
//! An operation is its session's. A signature that fails is ended by `module`, since some tokens forget to.

use std::sync::Arc;

use aws_lc_rs::digest::{self, Context, Digest};
use cryptoki_sys::{
    CK_MECHANISM_TYPE, CK_RV, CKA_ALWAYS_AUTHENTICATE, CKA_CLASS, CKA_MODULUS, CKA_PUBLIC_EXPONENT,
    CKA_SIGN, CKM_EDDSA, CKM_RSA_PKCS, CKM_SHA256, CKM_SHA256_RSA_PKCS, CKO_PRIVATE_KEY,
    CKO_PUBLIC_KEY, CKR_DATA_INVALID, CKR_DATA_LEN_RANGE, CKR_DEVICE_ERROR, CKR_FUNCTION_FAILED,
    CKR_KEY_FUNCTION_NOT_PERMITTED, CKR_KEY_HANDLE_INVALID, CKR_KEY_TYPE_INCONSISTENT,
    CKR_MECHANISM_INVALID, CKR_OPERATION_ACTIVE, CKR_OPERATION_NOT_INITIALIZED,
    CKR_SIGNATURE_INVALID, CKR_SIGNATURE_LEN_RANGE, CKR_USER_NOT_LOGGED_IN,
};

use crate::key::{Key, rsa_verifier, sha256_of_digest_info};
use crate::module::Running;
use crate::object::Object;

/// A signature begun.
#[derive(Clone)]
pub(crate) struct Signing {
    mechanism: CK_MECHANISM_TYPE,
    key: Arc<Key>,
    /// Whether the key wants a PIN for this signature that it has not got yet.
    wants_pin: bool,
    /// The message so far; `None` before the first part.
    parts: Option<Vec<u8>>,
}

impl Signing {
    /// The PIN for this signature has been given.
    pub(crate) fn authenticated(&mut self) {
        self.wants_pin = false;
    }
}

/// A verification begun.
#[derive(Clone)]
pub(crate) struct Verifying {
    mechanism: CK_MECHANISM_TYPE,
    key: Object,
    parts: Option<Vec<u8>>,
}

/// Signatures.
impl Running {
    /// C_SignInit; without a mechanism it ends what has begun (PKCS#11 3.0).
    pub(crate) fn sign_init(
        &self,
        mechanism: Option<CK_MECHANISM_TYPE>,
        key: u64,
    ) -> Result<(), CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            let Some(mechanism) = mechanism else {
                session.sign = None;
                return Ok(());
            };
            if session.sign.is_some() {
                return Err(CKR_OPERATION_ACTIVE);
            }
            self.offers(mechanism)?;
            let token = session.token;
            let object = state
                .object(token, key, &self.control)
                .map_err(|_| CKR_KEY_HANDLE_INVALID)?;
            let class = object.attribute(CKA_CLASS);
            if class != Ok(&CKO_PRIVATE_KEY.to_ne_bytes()) || !object.is(CKA_SIGN) {
                return Err(CKR_KEY_FUNCTION_NOT_PERMITTED);
            }
            let key = object.key.clone().ok_or(CKR_KEY_HANDLE_INVALID)?;
            match (&*key, mechanism) {
                (Key::Rsa(_), CKM_RSA_PKCS | CKM_SHA256_RSA_PKCS)
                | (Key::Ed25519(_), CKM_EDDSA) => {}
                _ => return Err(CKR_KEY_TYPE_INCONSISTENT),
            }
            let wants_pin = object.is(CKA_ALWAYS_AUTHENTICATE);
            state.session(self.session)?.sign = Some(Signing {
                mechanism,
                key,
                wants_pin,
                parts: None,
            });
            Ok(())
        })
    }

    /// Octets of the signature that has begun.
    pub(crate) fn signature_length(&self) -> Result<usize, CK_RV> {
        let length = self.signing()?.key.signature_length();
        Ok(match self.control.text("corrupt") {
            Some("short") => length - 1,
            _ => length,
        })
    }

    /// C_Sign.
    pub(crate) fn sign(&self, data: &[u8]) -> Result<Vec<u8>, CK_RV> {
        let signing = self.signing()?;
        if signing.parts.is_some() {
            return Err(CKR_OPERATION_ACTIVE);
        }
        self.finish_signing(&signing, data)
    }

    /// C_SignUpdate, for the mechanisms that hash.
    pub(crate) fn sign_update(&self, part: &[u8]) -> Result<(), CK_RV> {
        self.state(|state| {
            let signing = state.session(self.session)?.sign.as_mut();
            let signing = signing.ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
            if signing.mechanism != CKM_SHA256_RSA_PKCS {
                return Err(CKR_OPERATION_NOT_INITIALIZED);
            }
            if signing.wants_pin {
                return Err(CKR_USER_NOT_LOGGED_IN);
            }
            signing
                .parts
                .get_or_insert_default()
                .extend_from_slice(part);
            Ok(())
        })
    }

    /// C_SignFinal.
    pub(crate) fn sign_final(&self) -> Result<Vec<u8>, CK_RV> {
        let signing = self.signing()?;
        let message = signing
            .parts
            .as_ref()
            .ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        self.finish_signing(&signing, message)
    }

    fn signing(&self) -> Result<Signing, CK_RV> {
        self.state(|state| {
            let signing = state.session(self.session)?.sign.clone();
            signing.ok_or(CKR_OPERATION_NOT_INITIALIZED)
        })
    }

    fn finish_signing(&self, signing: &Signing, data: &[u8]) -> Result<Vec<u8>, CK_RV> {
        if signing.wants_pin {
            return Err(CKR_USER_NOT_LOGGED_IN);
        }
        let digest_info = if signing.mechanism == CKM_RSA_PKCS {
            if data.len() + 11 > signing.key.signature_length() {
                return Err(CKR_DATA_LEN_RANGE);
            }
            Some(sha256_of_digest_info(data).ok_or(CKR_DATA_INVALID)?)
        } else {
            None
        };
        let made = self.module.engine(|| match digest_info {
            Some(value) => signing.key.sign_sha256(value),
            None => signing.key.sign_message(data),
        });
        let mut signature = made.ok_or(CKR_FUNCTION_FAILED)?;
        self.still_there()?;
        self.state(|state| {
            state.session(self.session)?.sign = None;
            Ok(())
        })?;
        match self.control.text("corrupt") {
            Some("short") => drop(signature.pop()),
            Some("1") => signature.iter_mut().for_each(|octet| *octet ^= 0x5a),
            _ => {}
        }
        Ok(signature)
    }
}

/// Verification and digests.
impl Running {
    /// C_VerifyInit.
    pub(crate) fn verify_init(
        &self,
        mechanism: Option<CK_MECHANISM_TYPE>,
        key: u64,
    ) -> Result<(), CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            let Some(mechanism) = mechanism else {
                session.verify = None;
                return Ok(());
            };
            if session.verify.is_some() {
                return Err(CKR_OPERATION_ACTIVE);
            }
            if !matches!(mechanism, CKM_RSA_PKCS | CKM_SHA256_RSA_PKCS) {
                return Err(CKR_MECHANISM_INVALID);
            }
            self.offers(mechanism)?;
            let token = session.token;
            let key = state
                .object(token, key, &self.control)
                .map_err(|_| CKR_KEY_HANDLE_INVALID)?;
            if key.attribute(CKA_CLASS) != Ok(&CKO_PUBLIC_KEY.to_ne_bytes()) {
                return Err(CKR_KEY_FUNCTION_NOT_PERMITTED);
            }
            state.session(self.session)?.verify = Some(Verifying {
                mechanism,
                key,
                parts: None,
            });
            Ok(())
        })
    }

    /// C_Verify.
    pub(crate) fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CK_RV> {
        let verifying = self.take_verifying()?;
        let bits = verifying.key.attribute(CKA_MODULUS).map(<[u8]>::len);
        let fails = self.control.number("verify_fails_bits");
        if fails.is_some_and(|fails| bits.map(|octets| octets as u64 * 8) == Ok(fails)) {
            return Err(CKR_DEVICE_ERROR);
        }
        let value = match verifying.mechanism {
            CKM_RSA_PKCS => {
                let value = sha256_of_digest_info(data).ok_or(CKR_DATA_INVALID)?;
                Digest::import_less_safe(value, &digest::SHA256).map_err(|_| CKR_DATA_INVALID)?
            }
            _ => digest::digest(&digest::SHA256, data),
        };
        check_signature(&verifying.key, &value, signature)
    }

    /// C_VerifyUpdate.
    pub(crate) fn verify_update(&self, part: &[u8]) -> Result<(), CK_RV> {
        self.state(|state| {
            let verifying = state.session(self.session)?.verify.as_mut();
            let verifying = verifying
                .filter(|verifying| verifying.mechanism == CKM_SHA256_RSA_PKCS)
                .ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
            verifying
                .parts
                .get_or_insert_default()
                .extend_from_slice(part);
            Ok(())
        })
    }

    /// C_VerifyFinal.
    pub(crate) fn verify_final(&self, signature: &[u8]) -> Result<(), CK_RV> {
        let verifying = self.take_verifying()?;
        let message = verifying.parts.ok_or(CKR_OPERATION_NOT_INITIALIZED)?;
        check_signature(
            &verifying.key,
            &digest::digest(&digest::SHA256, &message),
            signature,
        )
    }

    fn take_verifying(&self) -> Result<Verifying, CK_RV> {
        self.state(|state| {
            let verifying = state.session(self.session)?.verify.take();
            verifying.ok_or(CKR_OPERATION_NOT_INITIALIZED)
        })
    }

    /// C_DigestInit.
    pub(crate) fn digest_init(&self, mechanism: Option<CK_MECHANISM_TYPE>) -> Result<(), CK_RV> {
        self.state(|state| {
            let session = state.session(self.session)?;
            let Some(mechanism) = mechanism else {
                session.digest = None;
                return Ok(());
            };
            if session.digest.is_some() {
                return Err(CKR_OPERATION_ACTIVE);
            }
            if mechanism != CKM_SHA256 {
                return Err(CKR_MECHANISM_INVALID);
            }
            self.offers(mechanism)?;
            session.digest = Some(Context::new(&digest::SHA256));
            Ok(())
        })
    }

    /// C_DigestUpdate; in a session of its own a digest needs no lock on the rest, so the context is taken out.
    pub(crate) fn digest_update(&self, part: &[u8]) -> Result<(), CK_RV> {
        let mut digest = self.take_digest()?;
        digest.update(part);
        self.state(|state| {
            state.session(self.session)?.digest = Some(digest);
            Ok(())
        })
    }

    /// Octets of the digest that has begun.
    pub(crate) fn digest_length(&self) -> Result<usize, CK_RV> {
        self.state(|state| {
            let digest = state.session(self.session)?.digest.as_ref();
            Ok(digest
                .ok_or(CKR_OPERATION_NOT_INITIALIZED)?
                .algorithm()
                .output_len())
        })
    }

    /// C_DigestFinal.
    pub(crate) fn digest_final(&self) -> Result<Vec<u8>, CK_RV> {
        Ok(self.take_digest()?.finish().as_ref().to_vec())
    }

    fn take_digest(&self) -> Result<Context, CK_RV> {
        self.state(|state| {
            let digest = state.session(self.session)?.digest.take();
            digest.ok_or(CKR_OPERATION_NOT_INITIALIZED)
        })
    }
}

fn check_signature(key: &Object, value: &Digest, signature: &[u8]) -> Result<(), CK_RV> {
    let modulus = key
        .attribute(CKA_MODULUS)
        .map_err(|_| CKR_KEY_TYPE_INCONSISTENT)?;
    let exponent = key
        .attribute(CKA_PUBLIC_EXPONENT)
        .map_err(|_| CKR_KEY_TYPE_INCONSISTENT)?;
    if signature.len() != modulus.iter().skip_while(|&&octet| octet == 0).count() {
        return Err(CKR_SIGNATURE_LEN_RANGE);
    }
    let key = rsa_verifier(modulus, exponent).ok_or(CKR_KEY_TYPE_INCONSISTENT)?;
    key.verify_digest_sig(value, signature)
        .map_err(|_| CKR_SIGNATURE_INVALID)
}
