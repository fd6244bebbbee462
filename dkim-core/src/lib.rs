//! What DKIM is (RFC 6376 with RFC 8301, 8463 and 8616), without I/O, clock, threads or logging.
//!
//! [`signer`] and [`verifier`] are state machines: they are fed header fields and body octets, hand out work
//! (names to look up, octets to sign or to check) and take the answers. Neither calls out; who drives them
//! decides how and when the work is done.
// Vector instructions need it in canonicalization/white_space.rs and engine/montgomery.rs, and nowhere else.
#![deny(unsafe_code)]

pub mod address;
pub mod body_digest;
mod body_hashes;
pub mod canonicalization;
pub mod domain_name;
pub mod engine;
mod field_selection;
pub mod key_record;
pub mod message;
pub mod results;
pub mod signature;
pub mod signer;
mod structured;
pub mod tag_list;
pub mod verifier;
