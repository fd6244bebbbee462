//! The C side: the symbols of the module and its function list.
//!
//! What functions do is `token`'s and `operation`'s; `pointer` has the way from pointers to slices. Each function trusts its caller as PKCS#11 has it do: a pointer is null or
//! points to as much as the length beside it says, and stays so during the call.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::c_void;
use std::sync::OnceLock;

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_BBOOL, CK_BYTE, CK_C_INITIALIZE_ARGS, CK_FLAGS, CK_FUNCTION_LIST, CK_INFO,
    CK_INTERFACE, CK_MECHANISM, CK_MECHANISM_INFO, CK_MECHANISM_TYPE, CK_NOTIFY, CK_OBJECT_HANDLE,
    CK_RV, CK_SESSION_HANDLE, CK_SESSION_INFO, CK_SLOT_ID, CK_SLOT_INFO, CK_TOKEN_INFO, CK_ULONG,
    CK_UNAVAILABLE_INFORMATION, CK_USER_TYPE, CK_UTF8CHAR, CK_VERSION, CKF_HW_SLOT,
    CKF_OS_LOCKING_OK, CKF_REMOVABLE_DEVICE, CKF_TOKEN_PRESENT, CKR_ARGUMENTS_BAD,
    CKR_FUNCTION_FAILED, CKR_OK,
};

use crate::control::Control;
use crate::module::{Module, Running};
use crate::pointer::{deliver, kind, slice, slice_mut, values, write};
use crate::token::padded;

/// The list of functions, PKCS#11 2.40.
///
/// # Safety
/// `list` is null or may be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn C_GetFunctionList(list: *mut *mut CK_FUNCTION_LIST) -> CK_RV {
    Module::get().call_anytime("C_GetFunctionList", |control| {
        if std::env::var_os("FAKE_TOKEN_NO_LIST").is_some() {
            return CKR_FUNCTION_FAILED;
        }
        // SAFETY: by this function's own contract.
        code(unsafe { write(list, function_list(control)) })
    })
}

/// The interface of PKCS#11 3.0, by which a caller gets the same list of 2.40: it is here to fail on request, as that of
/// a client newer than its token does.
///
/// # Safety
/// `interface` is null or may be written to; the name, if there is one, ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn C_GetInterface(
    _name: *mut CK_UTF8CHAR,
    _version: *mut CK_VERSION,
    interface: *mut *mut CK_INTERFACE,
    _flags: CK_FLAGS,
) -> CK_RV {
    Module::get().call_anytime("C_GetInterface", |control| {
        // Not given back: callers keep it as long as the module is loaded.
        let made = Box::leak(Box::new(CK_INTERFACE {
            pInterfaceName: c"PKCS 11".as_ptr().cast_mut().cast(),
            pFunctionList: function_list(control).cast(),
            flags: 0,
        }));
        // SAFETY: by this function's own contract.
        code(unsafe { write(interface, std::ptr::from_mut(made)) })
    })
}

/// A list without the functions that `absent` names.
fn function_list(control: &Control) -> *mut CK_FUNCTION_LIST {
    static WHOLE: OnceLock<CK_FUNCTION_LIST> = OnceLock::new();
    let mut list = *WHOLE.get_or_init(whole_list);
    for absent in control.list("absent").unwrap_or_default() {
        match absent {
            "C_GetAttributeValue" => list.C_GetAttributeValue = None,
            "C_GetSessionInfo" => list.C_GetSessionInfo = None,
            "C_GetMechanismInfo" => list.C_GetMechanismInfo = None,
            "C_GetMechanismList" => list.C_GetMechanismList = None,
            "C_Finalize" => list.C_Finalize = None,
            "C_Sign" => list.C_Sign = None,
            "C_SignUpdate" => list.C_SignUpdate = None,
            "C_SignFinal" => list.C_SignFinal = None,
            "C_CreateObject" => list.C_CreateObject = None,
            "C_DigestInit" => list.C_DigestInit = None,
            "C_VerifyInit" => list.C_VerifyInit = None,
            _ => {}
        }
    }
    // Not given back: callers keep it as long as the module is loaded.
    Box::leak(Box::new(list))
}

fn whole_list() -> CK_FUNCTION_LIST {
    CK_FUNCTION_LIST {
        version: CK_VERSION {
            major: 2,
            minor: 40,
        },
        C_Initialize: Some(C_Initialize),
        C_Finalize: Some(C_Finalize),
        C_GetInfo: Some(C_GetInfo),
        C_GetFunctionList: Some(C_GetFunctionList),
        C_GetSlotList: Some(C_GetSlotList),
        C_GetSlotInfo: Some(C_GetSlotInfo),
        C_GetTokenInfo: Some(C_GetTokenInfo),
        C_GetMechanismList: Some(C_GetMechanismList),
        C_GetMechanismInfo: Some(C_GetMechanismInfo),
        C_OpenSession: Some(C_OpenSession),
        C_CloseSession: Some(C_CloseSession),
        C_CloseAllSessions: Some(C_CloseAllSessions),
        C_GetSessionInfo: Some(C_GetSessionInfo),
        C_Login: Some(C_Login),
        C_Logout: Some(C_Logout),
        C_CreateObject: Some(C_CreateObject),
        C_DestroyObject: Some(C_DestroyObject),
        C_GetAttributeValue: Some(C_GetAttributeValue),
        C_FindObjectsInit: Some(C_FindObjectsInit),
        C_FindObjects: Some(C_FindObjects),
        C_FindObjectsFinal: Some(C_FindObjectsFinal),
        C_DigestInit: Some(C_DigestInit),
        C_Digest: Some(C_Digest),
        C_DigestUpdate: Some(C_DigestUpdate),
        C_DigestFinal: Some(C_DigestFinal),
        C_SignInit: Some(C_SignInit),
        C_Sign: Some(C_Sign),
        C_SignUpdate: Some(C_SignUpdate),
        C_SignFinal: Some(C_SignFinal),
        C_VerifyInit: Some(C_VerifyInit),
        C_Verify: Some(C_Verify),
        C_VerifyUpdate: Some(C_VerifyUpdate),
        C_VerifyFinal: Some(C_VerifyFinal),
        ..CK_FUNCTION_LIST::default()
    }
}

unsafe extern "C" fn C_Initialize(arguments: *mut c_void) -> CK_RV {
    // SAFETY: null, or the structure that the caller means.
    let given = unsafe { arguments.cast::<CK_C_INITIALIZE_ARGS>().as_ref() };
    let locking = given.is_some_and(|given| given.flags & CKF_OS_LOCKING_OK != 0);
    let rv = match given {
        Some(given) if !given.pReserved.is_null() => CKR_ARGUMENTS_BAD,
        _ => CKR_OK,
    };
    Module::get().initialize(rv, if locking { "" } else { "no-locking" })
}

unsafe extern "C" fn C_Finalize(reserved: *mut c_void) -> CK_RV {
    Module::get().finalize(if reserved.is_null() {
        CKR_OK
    } else {
        CKR_ARGUMENTS_BAD
    })
}

unsafe extern "C" fn C_GetInfo(info: *mut CK_INFO) -> CK_RV {
    call("C_GetInfo", None, |_| {
        let made = CK_INFO {
            cryptokiVersion: CK_VERSION {
                major: 2,
                minor: 40,
            },
            manufacturerID: padded("fake-token"),
            flags: 0,
            libraryDescription: padded("fault injector"),
            libraryVersion: CK_VERSION { major: 1, minor: 0 },
        };
        // SAFETY: null or the caller's.
        unsafe { write(info, made) }
    })
}

unsafe extern "C" fn C_GetSlotList(
    with_token: CK_BBOOL,
    slots: *mut CK_SLOT_ID,
    count: *mut CK_ULONG,
) -> CK_RV {
    call("C_GetSlotList", None, |running| {
        let made = running.slots(with_token != 0)?;
        // SAFETY: null or the caller's, as many as the count says.
        unsafe { deliver(slots, count, made.len(), || Ok(made)) }
    })
}

unsafe extern "C" fn C_GetSlotInfo(slot: CK_SLOT_ID, info: *mut CK_SLOT_INFO) -> CK_RV {
    call("C_GetSlotInfo", None, |running| {
        let present = running.slot_has_token(slot)?;
        let made = CK_SLOT_INFO {
            slotDescription: padded("fake slot"),
            manufacturerID: padded("fake-token"),
            flags: CKF_REMOVABLE_DEVICE | CKF_HW_SLOT | if present { CKF_TOKEN_PRESENT } else { 0 },
            hardwareVersion: CK_VERSION { major: 1, minor: 0 },
            firmwareVersion: CK_VERSION { major: 1, minor: 0 },
        };
        // SAFETY: null or the caller's.
        unsafe { write(info, made) }
    })
}

unsafe extern "C" fn C_GetTokenInfo(slot: CK_SLOT_ID, info: *mut CK_TOKEN_INFO) -> CK_RV {
    call("C_GetTokenInfo", None, |running| {
        // SAFETY: null or the caller's.
        unsafe { write(info, running.token_info(slot)?) }
    })
}

unsafe extern "C" fn C_GetMechanismList(
    slot: CK_SLOT_ID,
    mechanisms: *mut CK_MECHANISM_TYPE,
    count: *mut CK_ULONG,
) -> CK_RV {
    call("C_GetMechanismList", None, |running| {
        let made = running.mechanisms(slot)?;
        // SAFETY: null or the caller's, as many as the count says.
        unsafe { deliver(mechanisms, count, made.len(), || Ok(made)) }
    })
}

unsafe extern "C" fn C_GetMechanismInfo(
    slot: CK_SLOT_ID,
    mechanism: CK_MECHANISM_TYPE,
    info: *mut CK_MECHANISM_INFO,
) -> CK_RV {
    call("C_GetMechanismInfo", None, |running| {
        // SAFETY: null or the caller's.
        unsafe { write(info, running.mechanism_info(slot, mechanism)?) }
    })
}

unsafe extern "C" fn C_OpenSession(
    slot: CK_SLOT_ID,
    flags: CK_FLAGS,
    _application: *mut c_void,
    _notify: CK_NOTIFY,
    session: *mut CK_SESSION_HANDLE,
) -> CK_RV {
    call("C_OpenSession", None, |running| {
        if session.is_null() {
            return Err(CKR_ARGUMENTS_BAD);
        }
        // SAFETY: the caller's.
        unsafe { write(session, running.open_session(slot, flags)?) }
    })
}

unsafe extern "C" fn C_CloseSession(session: CK_SESSION_HANDLE) -> CK_RV {
    call("C_CloseSession", Some(session), Running::close_session)
}

unsafe extern "C" fn C_CloseAllSessions(slot: CK_SLOT_ID) -> CK_RV {
    call("C_CloseAllSessions", None, |running| {
        running.close_all_sessions(slot)
    })
}

unsafe extern "C" fn C_GetSessionInfo(
    session: CK_SESSION_HANDLE,
    info: *mut CK_SESSION_INFO,
) -> CK_RV {
    call("C_GetSessionInfo", Some(session), |running| {
        // SAFETY: null or the caller's.
        unsafe { write(info, running.session_info()?) }
    })
}

unsafe extern "C" fn C_Login(
    session: CK_SESSION_HANDLE,
    user: CK_USER_TYPE,
    pin: *mut CK_UTF8CHAR,
    length: CK_ULONG,
) -> CK_RV {
    call("C_Login", Some(session), |running| {
        let pin = if pin.is_null() {
            None
        } else {
            // SAFETY: the caller's, of this length.
            Some(unsafe { slice(pin, length) }?)
        };
        running.login(user, pin)
    })
}

unsafe extern "C" fn C_Logout(session: CK_SESSION_HANDLE) -> CK_RV {
    call("C_Logout", Some(session), Running::logout)
}

unsafe extern "C" fn C_CreateObject(
    session: CK_SESSION_HANDLE,
    template: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
    object: *mut CK_OBJECT_HANDLE,
) -> CK_RV {
    call("C_CreateObject", Some(session), |running| {
        // SAFETY: null or the caller's, as many as the count says.
        let template = unsafe { values(template, count) }?;
        // SAFETY: null or the caller's.
        unsafe { write(object, running.create_object(template)?) }
    })
}

unsafe extern "C" fn C_DestroyObject(
    session: CK_SESSION_HANDLE,
    object: CK_OBJECT_HANDLE,
) -> CK_RV {
    call("C_DestroyObject", Some(session), |running| {
        running.destroy_object(object)
    })
}

unsafe extern "C" fn C_GetAttributeValue(
    session: CK_SESSION_HANDLE,
    object: CK_OBJECT_HANDLE,
    template: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    call("C_GetAttributeValue", Some(session), |running| {
        let object = running.object(object)?;
        // SAFETY: null or the caller's, as many as the count says, and nobody else's during the call.
        let template = unsafe { slice_mut(template, count) }?;
        // Each attribute is answered, whatever there is to say of another one.
        let mut result = Ok(());
        for wanted in template {
            let answer = object.attribute(wanted.type_).and_then(|value| {
                if wanted.pValue.is_null() {
                    wanted.ulValueLen = value.len() as CK_ULONG;
                    return Ok(());
                }
                // SAFETY: not null, hence the caller's and of the length beside it.
                unsafe {
                    deliver(
                        wanted.pValue.cast(),
                        &mut wanted.ulValueLen,
                        value.len(),
                        || Ok(value.to_vec()),
                    )
                }
            });
            if answer.is_err() {
                wanted.ulValueLen = CK_UNAVAILABLE_INFORMATION;
                result = answer;
            }
        }
        result
    })
}

unsafe extern "C" fn C_FindObjectsInit(
    session: CK_SESSION_HANDLE,
    template: *mut CK_ATTRIBUTE,
    count: CK_ULONG,
) -> CK_RV {
    call("C_FindObjectsInit", Some(session), |running| {
        // SAFETY: null or the caller's, as many as the count says.
        running.find_init(&unsafe { values(template, count) }?)
    })
}

unsafe extern "C" fn C_FindObjects(
    session: CK_SESSION_HANDLE,
    objects: *mut CK_OBJECT_HANDLE,
    most: CK_ULONG,
    count: *mut CK_ULONG,
) -> CK_RV {
    call("C_FindObjects", Some(session), |running| {
        // SAFETY: null or the caller's, as many as it says.
        let room = unsafe { slice_mut(objects, most) }?;
        let found = running.find(room.len())?;
        room[..found.len()].copy_from_slice(&found);
        // SAFETY: null or the caller's.
        unsafe { write(count, found.len() as CK_ULONG) }
    })
}

unsafe extern "C" fn C_FindObjectsFinal(session: CK_SESSION_HANDLE) -> CK_RV {
    call("C_FindObjectsFinal", Some(session), Running::find_final)
}

unsafe extern "C" fn C_DigestInit(
    session: CK_SESSION_HANDLE,
    mechanism: *mut CK_MECHANISM,
) -> CK_RV {
    call("C_DigestInit", Some(session), |running| {
        // SAFETY: null or the caller's.
        running.digest_init(unsafe { kind(mechanism) })
    })
}

unsafe extern "C" fn C_Digest(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    digest: *mut CK_BYTE,
    digest_length: *mut CK_ULONG,
) -> CK_RV {
    let name = if digest.is_null() {
        "C_Digest(NULL)"
    } else {
        "C_Digest"
    };
    call(name, Some(session), |running| {
        // SAFETY: null or the caller's, of these lengths.
        unsafe {
            let data = slice(data, length)?;
            deliver(digest, digest_length, running.digest_length()?, || {
                running.digest_update(data)?;
                running.digest_final()
            })
        }
    })
}

unsafe extern "C" fn C_DigestUpdate(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    call("C_DigestUpdate", Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        running.digest_update(unsafe { slice(part, length) }?)
    })
}

unsafe extern "C" fn C_DigestFinal(
    session: CK_SESSION_HANDLE,
    digest: *mut CK_BYTE,
    digest_length: *mut CK_ULONG,
) -> CK_RV {
    let name = if digest.is_null() {
        "C_DigestFinal(NULL)"
    } else {
        "C_DigestFinal"
    };
    call(name, Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        unsafe {
            deliver(digest, digest_length, running.digest_length()?, || {
                running.digest_final()
            })
        }
    })
}

unsafe extern "C" fn C_SignInit(
    session: CK_SESSION_HANDLE,
    mechanism: *mut CK_MECHANISM,
    key: CK_OBJECT_HANDLE,
) -> CK_RV {
    call("C_SignInit", Some(session), |running| {
        // SAFETY: null or the caller's.
        running.sign_init(unsafe { kind(mechanism) }, key)
    })
}

unsafe extern "C" fn C_Sign(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    signature: *mut CK_BYTE,
    signature_length: *mut CK_ULONG,
) -> CK_RV {
    let name = if signature.is_null() {
        "C_Sign(NULL)"
    } else {
        "C_Sign"
    };
    call(name, Some(session), |running| {
        // SAFETY: null or the caller's, of these lengths.
        unsafe {
            let data = slice(data, length)?;
            deliver(
                signature,
                signature_length,
                running.signature_length()?,
                || running.sign(data),
            )
        }
    })
}

unsafe extern "C" fn C_SignUpdate(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    call("C_SignUpdate", Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        running.sign_update(unsafe { slice(part, length) }?)
    })
}

unsafe extern "C" fn C_SignFinal(
    session: CK_SESSION_HANDLE,
    signature: *mut CK_BYTE,
    signature_length: *mut CK_ULONG,
) -> CK_RV {
    let name = if signature.is_null() {
        "C_SignFinal(NULL)"
    } else {
        "C_SignFinal"
    };
    call(name, Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        unsafe {
            deliver(
                signature,
                signature_length,
                running.signature_length()?,
                || running.sign_final(),
            )
        }
    })
}

unsafe extern "C" fn C_VerifyInit(
    session: CK_SESSION_HANDLE,
    mechanism: *mut CK_MECHANISM,
    key: CK_OBJECT_HANDLE,
) -> CK_RV {
    call("C_VerifyInit", Some(session), |running| {
        // SAFETY: null or the caller's.
        running.verify_init(unsafe { kind(mechanism) }, key)
    })
}

unsafe extern "C" fn C_Verify(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    length: CK_ULONG,
    signature: *mut CK_BYTE,
    signature_length: CK_ULONG,
) -> CK_RV {
    call("C_Verify", Some(session), |running| {
        // SAFETY: null or the caller's, of these lengths.
        let (data, signature) =
            unsafe { (slice(data, length)?, slice(signature, signature_length)?) };
        running.verify(data, signature)
    })
}

unsafe extern "C" fn C_VerifyUpdate(
    session: CK_SESSION_HANDLE,
    part: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    call("C_VerifyUpdate", Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        running.verify_update(unsafe { slice(part, length) }?)
    })
}

unsafe extern "C" fn C_VerifyFinal(
    session: CK_SESSION_HANDLE,
    signature: *mut CK_BYTE,
    signature_length: CK_ULONG,
) -> CK_RV {
    call("C_VerifyFinal", Some(session), |running| {
        // SAFETY: null or the caller's, of this length.
        running.verify_final(unsafe { slice(signature, signature_length) }?)
    })
}

fn call(
    function: &'static str,
    session: Option<CK_SESSION_HANDLE>,
    work: impl FnOnce(&Running) -> Result<(), CK_RV>,
) -> CK_RV {
    Module::get().call(function, session, work)
}

fn code(result: Result<(), CK_RV>) -> CK_RV {
    result.err().unwrap_or(CKR_OK)
}
