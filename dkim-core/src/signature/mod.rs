//! The DKIM-Signature field (RFC 6376 section 3.5): what it says, read by `parse` and written by `format`.
//!
//! A signature that reads well is well-formed and consistent in itself; whether it is good is for `verifier`.

mod format;
mod parse;

pub use format::SignatureTemplate;
pub use parse::{Claims, SignatureError};

use crate::canonicalization::Canonicalization;
use crate::engine::KeyType;
use std::ops::Range;

/// The name of the field.
pub const FIELD_NAME: &str = "DKIM-Signature";

/// What a well-formed DKIM-Signature field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// `a=`: the kind of key; the hash is always SHA-256 (RFC 8301, RFC 8463).
    pub key_type: KeyType,
    /// `b=`, base64 undone.
    pub signature: Vec<u8>,
    /// `bh=`, base64 undone.
    pub body_hash: Vec<u8>,
    /// `c=`, by default `simple/simple`.
    pub canonicalization: Canonicalization,
    /// `d=`, the signing domain as written: a valid name, perhaps with U-labels (RFC 8616).
    pub domain: String,
    /// `s=`, the selector as written: a valid name.
    pub selector: String,
    /// `i=`, the agent or user identity, or `None` for the default, `@` and the signing domain.
    pub identity: Option<Identity>,
    /// `l=`, how many octets of the canonical body are hashed.
    pub body_length: Option<u64>,
    /// `t=`, seconds since 1970.
    pub timestamp: Option<u64>,
    /// `x=`, seconds since 1970.
    pub expiration: Option<u64>,
    /// Where the names in `h=` stand in the field's value.
    header_names: Vec<Range<usize>>,
    /// Where the value of `b=` stands in the field's value, all white space around it included.
    b_value: Range<usize>,
}

/// The value of `i=`, its quoted-printable undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// All before the last `@`, octets of any kind; empty if nobody in particular is named.
    pub local_part: Vec<u8>,
    /// The domain, a valid name within the signing domain.
    pub domain: String,
}

impl Signature {
    /// The names in `h=`, taken from the value the signature was read from.
    pub(crate) fn header_names<'a>(&self, value: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.header_names.iter().map(|name| &value[name.clone()])
    }

    /// What RFC 6376 section 3.7 has deleted from the value before it is hashed.
    pub(crate) fn b_value(&self) -> Range<usize> {
        self.b_value.clone()
    }

    /// The name whose TXT records hold the key (RFC 6376 section 3.6.2.1), as written in the signature.
    pub fn key_name(&self) -> String {
        [&self.selector, "._domainkey.", &self.domain].concat()
    }
}

/// The name of `key_type`'s algorithm in `a=`.
pub fn algorithm_name(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "rsa-sha256",
        KeyType::Ed25519 => "ed25519-sha256",
    }
}
