//! The DKIM milter: the daemon and what the command-line tools share.
#![forbid(unsafe_code)]

pub mod config;
pub mod dns;
pub mod health;
pub mod keys;
pub mod log;
pub mod metrics;
pub mod policy;
pub mod protocol;
mod record_check;
pub mod server;
pub mod session;
pub mod settings;
mod shown;
pub mod tables;
pub mod tools;
