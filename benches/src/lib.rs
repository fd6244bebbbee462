//! What the measuring programs share: the messages they work on, clocks, and how rounds are taken.
//!
//! Each program is one file (or folder) in `src/bin` and measures one thing; nothing here is installed.
#![forbid(unsafe_code)]

pub mod exit;
pub mod instructions;
pub mod load;
pub mod machine;
pub mod peer_protocol;
pub mod perf;
pub mod report;
pub mod rounds;
pub mod versions;
pub mod workload;
