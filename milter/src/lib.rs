//! The DKIM milter: the daemon and what the command-line tools share.
#![forbid(unsafe_code)]

pub mod config;
pub mod dns;
pub mod protocol;
mod shown;
pub mod tables;
