//! What is done with a message, and why: pure functions of facts and settings.
//!
//! [`decide`] says at the end of the header whether a message is signed, verified or left alone; [`judge`] says at its
//! end what the MTA is told about a verified message. Nothing here knows the milter protocol, sockets or time; the
//! reasons are the words that operators read in the log.

mod decision;
mod judgement;

pub use decision::{Decision, Facts, Order, Trust, decide, is_peer};
pub use judgement::{Answer, Occasion, answer_on, judge};
