//! From pointers to slices and values, and back: the conventions of PKCS#11 for arguments, each once.
//!
//! What `abi` does for functions, this does for arguments; the two have all unsafe code of the crate.
#![allow(unsafe_code)]

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_ATTRIBUTE_TYPE, CK_MECHANISM, CK_MECHANISM_TYPE, CK_RV, CK_ULONG,
    CKR_ARGUMENTS_BAD, CKR_BUFFER_TOO_SMALL,
};

/// Writes one value.
///
/// # Safety
/// `place` is null or may be written to.
pub(crate) unsafe fn write<T>(place: *mut T, value: T) -> Result<(), CK_RV> {
    if place.is_null() {
        return Err(CKR_ARGUMENTS_BAD);
    }
    // SAFETY: not null, hence to be written to.
    unsafe { place.write(value) };
    Ok(())
}

/// Reads what the caller has; nothing may be null.
///
/// # Safety
/// `start` is null or points to `length` values that nobody changes during the call.
pub(crate) unsafe fn slice<'a, T>(start: *const T, length: CK_ULONG) -> Result<&'a [T], CK_RV> {
    let length = usize::try_from(length).map_err(|_| CKR_ARGUMENTS_BAD)?;
    match (start.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(CKR_ARGUMENTS_BAD),
        // SAFETY: not null, hence so many values.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(start, length) }),
    }
}

/// The same, to write to.
///
/// # Safety
/// `start` is null or points to `length` values that are this call's alone.
pub(crate) unsafe fn slice_mut<'a, T>(
    start: *mut T,
    length: CK_ULONG,
) -> Result<&'a mut [T], CK_RV> {
    let length = usize::try_from(length).map_err(|_| CKR_ARGUMENTS_BAD)?;
    match (start.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(CKR_ARGUMENTS_BAD),
        // SAFETY: not null, hence so many values.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts_mut(start, length) }),
    }
}

/// The mechanism's number; none of those here has parameters that matter.
///
/// # Safety
/// `mechanism` is null or points to one.
pub(crate) unsafe fn kind(mechanism: *const CK_MECHANISM) -> Option<CK_MECHANISM_TYPE> {
    // SAFETY: null or a mechanism.
    unsafe { mechanism.as_ref() }.map(|mechanism| mechanism.mechanism)
}

/// The attributes of a template with their values.
///
/// # Safety
/// `template` is null or points to `count` attributes with values as long as they say.
pub(crate) unsafe fn values(
    template: *const CK_ATTRIBUTE,
    count: CK_ULONG,
) -> Result<Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)>, CK_RV> {
    // SAFETY: null or so many attributes.
    unsafe { slice(template, count) }?
        .iter()
        .map(|attribute| {
            // SAFETY: the value is null or as long as the attribute says.
            let value = unsafe { slice(attribute.pValue.cast::<u8>(), attribute.ulValueLen) }?;
            Ok((attribute.type_, value.to_vec()))
        })
        .collect()
}

/// Answers as functions with an output of variable length do (PKCS#11, "Conventions for functions returning output in
/// a variable-length buffer"): without a place only the length, with a small one CKR_BUFFER_TOO_SMALL.
///
/// # Safety
/// `length` is null or may be read and written; `place` is null or has room for as many values as it says.
pub(crate) unsafe fn deliver<T: Copy>(
    place: *mut T,
    length: *mut CK_ULONG,
    needed: usize,
    make: impl FnOnce() -> Result<Vec<T>, CK_RV>,
) -> Result<(), CK_RV> {
    // SAFETY: null or the caller's.
    let length = unsafe { length.as_mut() }.ok_or(CKR_ARGUMENTS_BAD)?;
    let room = std::mem::replace(length, needed as CK_ULONG);
    if place.is_null() {
        return Ok(());
    }
    if room < needed as CK_ULONG {
        return Err(CKR_BUFFER_TOO_SMALL);
    }
    let made = make()?;
    *length = made.len() as CK_ULONG;
    // SAFETY: `place` has room for `room` values, at least as many as are needed.
    unsafe { slice_mut(place, room) }?[..made.len()].copy_from_slice(&made);
    Ok(())
}
