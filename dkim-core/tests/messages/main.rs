//! Whole messages, signed and verified: vectors of the RFCs and of other programs, the rules of a verifier, and what is
//! signed here verified here.

mod body_digest;
mod other_signers;
mod rfc_vectors;
mod round_trip;
mod signing;
mod support;
mod verifying;
