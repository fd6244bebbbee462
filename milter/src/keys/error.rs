//! What can be wrong, or only odd, with a private key, in the sentences an operator reads.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use dkim_core::engine::{EngineError, KeyType, MAX_KEY_OCTETS, PrivateKeyError};

use pkcs11_engine::uri::OnAway;
use pkcs11_engine::{Fault, ReferenceError};

use super::permissions::PathFault;
use crate::shown;
use crate::tables::{NotAHostName, Origin};

/// A key that cannot be used, and where it was asked for.
#[derive(Clone, Debug)]
pub struct KeyError {
    /// Which key.
    pub key: KeyPlace,
    /// Why it cannot be used.
    pub fault: Arc<KeyFault>,
    /// How many further keys are in the same file and share its fault.
    pub others: usize,
}

/// Something odd about a key that is used all the same.
#[derive(Clone, Debug)]
pub struct KeyWarning {
    /// Which key.
    pub key: KeyPlace,
    /// What is odd.
    pub note: KeyNote,
}

/// Which key, as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// Where it was written.
    pub origin: Origin,
    /// Its name in the key table; `None` for that of `KeyFile`.
    pub name: Option<Box<str>>,
    /// Its file; `None` for one in the table itself.
    pub path: Option<PathBuf>,
}

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFault {
    /// The file or a directory before it cannot be read, or is not there.
    #[error("{}: {}", at.display(), shown::cause(cause))]
    System {
        /// Which.
        at: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// A directory, a socket or the like.
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    /// A file or directory without the permission that is needed.
    #[error("permission denied: {0}")]
    Denied(PathFault),
    /// A file that others can read or replace.
    #[error("the key is not safe: {0}")]
    Unsafe(PathFault),
    /// A file larger than any key.
    #[error("larger than {MAX_KEY_OCTETS} octets, which no private key is")]
    TooLarge,
    /// No private key, or none of ours.
    #[error("{0}")]
    Malformed(#[from] PrivateKeyError),
    /// An RSA key that no verifier accepts.
    #[error(
        "RSA key of {bits} bits is too short: at least 1024 are needed (RFC 8301 section 3.2), and 2048 should be used"
    )]
    TooShort {
        /// Its size.
        bits: u32,
    },
    /// No engine can sign with it.
    #[error("{0}")]
    Unusable(#[from] EngineError),
    /// A key of another kind than was asked for.
    #[error("this is an {} key, but {} asks for {}", kind(*found), if *by_table { "its KeyTable entry" } else { "SignatureAlgorithm" }, algorithm(*wanted))]
    WrongType {
        /// What it is.
        found: KeyType,
        /// What was asked for.
        wanted: KeyType,
        /// Whether the table asked, rather than the option.
        by_table: bool,
    },
    /// What names a key in a token does not lead to one.
    #[error("{0}")]
    Reference(#[from] ReferenceError),
    /// A key in a token that cannot sign now.
    #[error("{fault}")]
    Token {
        /// Why not.
        fault: Fault,
        /// What becomes of its mail.
        on_away: OnAway,
    },
    /// A key whose record is not as it must be.
    #[error("not signed with, as its record is not right: {0} (CheckKeyRecords)")]
    NotPublished(String),
    /// The author's domain cannot stand in a path.
    #[error("{0}")]
    AuthorDomain(#[from] NotAHostName),
}

/// What is odd about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyNote {
    /// An RSA key that receivers may take for too short.
    Short {
        /// Its size.
        bits: u32,
    },
    /// A file or directory that others could do something with.
    Path(PathFault),
    /// The key was read as root and cannot be read by the daemon's own user, as which a service manager may start it.
    LostOnReload(PathFault),
    /// The key's URI has the PIN itself.
    PinInOpen,
    /// The key's URI has the number of a slot.
    SlotNumber,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.fault {
            KeyFault::System { at, cause } if self.key.path.as_ref() == Some(at) => {
                write!(f, "{}: {}", self.key, shown::cause(cause))?;
            }
            fault => write!(f, "{}: {fault}", self.key)?,
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, " (and so {others} more keys in that file)"),
        }
    }
}

impl std::error::Error for KeyError {}

impl fmt::Display for KeyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.note)
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        match (&self.name, &self.path) {
            (Some(name), Some(path)) => write!(f, "key \"{name}\" in {}", path.display()),
            (Some(name), None) => write!(f, "key \"{name}\""),
            (None, Some(path)) => write!(f, "KeyFile {}", path.display()),
            (None, None) => f.write_str("KeyFile"),
        }
    }
}

impl fmt::Display for KeyNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { bits } => write!(
                f,
                "RSA key of {bits} bits; 2048 should be used (RFC 8301 section 3.2)"
            ),
            Self::Path(fault) => write!(f, "{fault}"),
            Self::LostOnReload(fault) => write!(
                f,
                "read as root, but a start as that user, and every reload, will fail: {fault}"
            ),
            Self::PinInOpen => f.write_str(
                "pin-value puts the PIN into this file and each copy of it; name a file that has it by pin-source",
            ),
            Self::SlotNumber => f.write_str(
                "slot-id is a number that modules change at will; leave it out, and name the token",
            ),
        }
    }
}

fn kind(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "RSA",
        KeyType::Ed25519 => "Ed25519",
    }
}

fn algorithm(key_type: KeyType) -> &'static str {
    match key_type {
        KeyType::Rsa => "rsa-sha256",
        KeyType::Ed25519 => "ed25519-sha256",
    }
}
