//! Why nothing could be measured, in the sentences that the person at the terminal reads.

use crate::exit::{EX_DATAERR, EX_IOERR, EX_NOINPUT, EX_UNAVAILABLE};
use dkim_core::engine::{EngineError, PrivateKeyError};
use dkim_core::signature::algorithm_name;
use pkcs11_engine::Fault;
use std::io;
use std::path::PathBuf;

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum PerfError {
    /// The file with the key.
    #[error("{}: cannot be read: {source}", path.display())]
    KeyFile {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in it.
    #[error("{}: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What the octets are.
        source: PrivateKeyError,
    },
    /// The key is of the other kind.
    #[error("{}: this key makes {}, but -s wants {}", path.display(), algorithm_name(*.found), algorithm_name(*.wanted))]
    KeyType {
        /// The file.
        path: PathBuf,
        /// Its kind.
        found: dkim_core::engine::KeyType,
        /// The kind that was asked for.
        wanted: dkim_core::engine::KeyType,
    },
    /// No key could be made.
    #[error("no key could be made: {0}")]
    KeyNotMade(String),
    /// The engine does not take the key.
    #[error("the key cannot be used: {0}")]
    Engine(#[from] EngineError),
    /// The token, or its key, cannot be used.
    #[error(transparent)]
    Token(#[from] Fault),
    /// What a token needs to be used.
    #[error("no thread can be started: {0}")]
    Threads(io::Error),
    /// The mbox.
    #[error("{}: cannot be read: {source}", path.display())]
    Mbox {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in it.
    #[error("{}: not an mbox: its first line does not begin with \"From \"", .0.display())]
    NotMbox(PathBuf),
    /// One of its messages is larger than anybody sends.
    #[error("{}: the message at line {line} is larger than {} MB", path.display(), super::mbox::MAX_MESSAGE >> 20)]
    MboxMessageTooLarge {
        /// The mbox.
        path: PathBuf,
        /// Where the message begins.
        line: usize,
    },
    /// A message that was to be signed before verifying.
    #[error("{name}: cannot be signed: {reason}")]
    NotSigned {
        /// The message.
        name: String,
        /// Why.
        reason: String,
    },
    /// Standard output.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl PerfError {
    /// The exit code for it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::KeyFile { .. } | Self::Mbox { .. } => EX_NOINPUT,
            Self::Token(_) | Self::Threads(_) => EX_UNAVAILABLE,
            Self::Output(_) => EX_IOERR,
            Self::Key { .. }
            | Self::KeyType { .. }
            | Self::KeyNotMade(_)
            | Self::Engine(_)
            | Self::NotMbox(_)
            | Self::MboxMessageTooLarge { .. }
            | Self::NotSigned { .. } => EX_DATAERR,
        }
    }
}
