//! The DKIM milter: the daemon and what the command-line tools share.
#![forbid(unsafe_code)]

pub mod protocol;
