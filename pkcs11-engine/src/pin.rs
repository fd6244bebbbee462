//! PINs and where they come from: a file, a systemd credential, or the URI itself (RFC 7512 section 2.4).
//!
//! A source is read anew for each login and what was read is not kept, so that a changed PIN needs no restart. A PIN
//! lives in one buffer, allocated at full size and zeroized when dropped; nothing here shows it. When a PIN may be tried
//! is not decided here: [`Pin::fingerprint`] lets the one who decides tell a changed PIN from the one that was wrong.
//!
//! Of the way to a file only the file itself is judged, not the directories on it, and access lists beyond the mode bits
//! are left to the kernel.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Where a PIN is found.
///
/// A token whose PIN is typed at a pad of its own has no source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinSource {
    /// A file that holds the PIN and nothing else, but for one line end.
    File(PathBuf),
    /// The systemd credential of this name: a file in `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// The PIN itself, from `pin-value`.
    Value(Pin),
}

impl PinSource {
    /// Reads what a `pin-source` attribute (decoded) or an option such as `Pkcs11PinFile` says: `/path`, `file:/path`,
    /// `file:///path`, `credential:NAME`, or a path that begins elsewhere, with or without `file:`: at the working
    /// directory, unless [`seen_from`](Self::seen_from) says where.
    ///
    /// The path after `file:` is taken as it stands, as the URI around it has been decoded already.
    ///
    /// # Errors
    /// Anything else, above all a command to run.
    pub fn parse(octets: &[u8]) -> Result<Self, PinSourceError> {
        if octets.is_empty() {
            return Err(PinSourceError::Empty);
        }
        if octets.contains(&0) {
            return Err(PinSourceError::Nul);
        }
        if octets.starts_with(b"|") {
            return Err(PinSourceError::Command);
        }
        let Some((scheme, rest)) = split_scheme(octets) else {
            return Ok(Self::File(path(octets)));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => file_of_uri(rest),
            "credential" => Ok(Self::Credential(credential_name(rest)?)),
            _ => Err(PinSourceError::Scheme {
                scheme: scheme.chars().take(MAX_SHOWN).collect(),
            }),
        }
    }

    /// The same, a path that does not begin at the root taken from `base`.
    #[must_use]
    pub fn seen_from(self, base: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(base.join(path).components().collect()),
            other => other,
        }
    }

    /// Reads the PIN; `credentials` is the value of `$CREDENTIALS_DIRECTORY`, if there is one.
    ///
    /// Of a file, one line end (LF or CRLF) is dropped. The file must not be readable by others than its owner; a group
    /// may read it where root owns it, as it does systemd's credentials.
    ///
    /// # Errors
    /// The file cannot be read, is no plain file, is not kept from others, or holds what cannot be a PIN.
    pub fn read(&self, credentials: Option<&Path>) -> Result<Pin, PinError> {
        match self {
            Self::File(path) => read_file(path),
            Self::Credential(name) => {
                let directory =
                    credentials.ok_or_else(|| PinError::NoCredentials { name: name.clone() })?;
                read_file(&directory.join(name))
            }
            Self::Value(pin) => Ok(pin.clone()),
        }
    }

    /// What [`PinSource::parse`] makes this source of; nothing for a PIN itself, which is not to be shown.
    pub(crate) fn to_octets(&self) -> Option<Vec<u8>> {
        match self {
            Self::File(path) => Some(path.as_os_str().as_bytes().to_vec()),
            Self::Credential(name) => Some(format!("credential:{name}").into_bytes()),
            Self::Value(_) => None,
        }
    }
}

/// Names the source, for messages; never the PIN.
impl fmt::Display for PinSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "PIN file {}", path.display()),
            Self::Credential(name) => write!(f, "credential {name}"),
            Self::Value(_) => f.write_str("pin-value"),
        }
    }
}

/// A PIN: 1 to [`MAX_PIN_LEN`] octets without NUL, zeroized when dropped, shown by nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Pin(Zeroizing<Vec<u8>>);

impl Pin {
    /// Takes `octets` as a PIN, as they are; they need not be UTF-8.
    ///
    /// # Errors
    /// They cannot be a PIN.
    pub fn new(octets: Zeroizing<Vec<u8>>) -> Result<Self, PinFault> {
        if octets.is_empty() {
            return Err(PinFault::Empty);
        }
        if octets.len() > MAX_PIN_LEN {
            return Err(PinFault::TooLong);
        }
        if octets.contains(&0) {
            return Err(PinFault::Nul);
        }
        Ok(Self(octets))
    }

    /// The octets, for C_Login only.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }

    /// SHA-256 of `salt` and the PIN: the same for the same PIN, so that a wrong one is not tried twice, and of no use
    /// without the salt, which is to be random and to stay in the process.
    pub fn fingerprint(&self, salt: &[u8; 16]) -> [u8; 32] {
        // Its buffer keeps the last octets until it is dropped, and is cleared then: see Cargo.toml.
        let mut hasher = Sha256::new();
        hasher.update(salt);
        hasher.update(&*self.0);
        hasher.finalize().into()
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pin([hidden])")
    }
}

/// The longest PIN taken, in octets: far more than tokens take, which end between 8 and 64, or 255.
pub const MAX_PIN_LEN: usize = 256;

/// Why the text of a source is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinSourceError {
    /// Nothing there.
    #[error("the PIN source is empty: name a file or credential:NAME")]
    Empty,
    /// A NUL in it.
    #[error("the PIN source has a NUL in it, which no path has")]
    Nul,
    /// `|command`, which RFC 7512 speaks of and its erratum 4813 comes back to.
    #[error(
        "a PIN is not read from a command (\"|...\"), as who writes the URI could run any: put the PIN into a file that \
         only the daemon can read, or use credential:NAME"
    )]
    Command,
    /// A scheme other than `file` and `credential`.
    #[error(
        "a PIN is not read from \"{scheme}:\": name a file or credential:NAME (a path with a colon in it: begin it with \
         \"./\" or \"/\")"
    )]
    Scheme {
        /// The scheme, shortened.
        scheme: String,
    },
    /// `file:` without a path.
    #[error("\"file:\" wants a path, as in file:/etc/dkim/pin")]
    NoPath,
    /// `file://host/path`.
    #[error("\"file:\" reads files of this host only: write file:/path or file:///path")]
    OtherHost,
    /// No name a credential could have.
    #[error(
        "after \"credential:\" the name of a systemd credential is wanted, as in LoadCredential=NAME:/path: at most 255 \
         printable characters without blank, \"/\" and \":\""
    )]
    CredentialName,
}

/// Why octets are no PIN; reads on from what holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinFault {
    /// No octets.
    #[error("is empty")]
    Empty,
    /// More than [`MAX_PIN_LEN`].
    #[error("is longer than {MAX_PIN_LEN} octets")]
    TooLong,
    /// A NUL among them.
    #[error("has a NUL in it")]
    Nul,
}

/// Why no PIN can be read from its source.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// A credential is wanted, and there are none.
    #[error(
        "no credential {name}: $CREDENTIALS_DIRECTORY is not set; start the daemon by systemd, with \
         LoadCredential={name}:/path/to/pin in the unit"
    )]
    NoCredentials {
        /// Its name.
        name: String,
    },
    /// The file cannot be opened or read.
    #[error("cannot read the PIN file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// A directory, device, socket or pipe.
    #[error("{} is not a plain file: a PIN is read from nothing else", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// Others can read or change the file.
    #[error("the PIN file {} is not kept from others (mode {mode:04o}); to mend: chmod {mend} {}", path.display(),
        path.display())]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What to give chmod.
        mend: &'static str,
    },
    /// What it holds is no PIN.
    #[error("the PIN in {} {fault}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: PinFault,
    },
}

/// `scheme:rest`, where what stands before the first colon can be a scheme (RFC 3986 section 3.1).
fn split_scheme(octets: &[u8]) -> Option<(&str, &[u8])> {
    let colon = octets.iter().position(|&o| o == b':')?;
    let scheme = std::str::from_utf8(&octets[..colon]).ok()?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|o| o.is_ascii_alphanumeric() || b"+-.".contains(&o));
    is_scheme.then_some((scheme, &octets[colon + 1..]))
}

/// The file of what follows `file:`: a path from the root, with or without an empty host (RFC 8089 section 2), or one from
/// elsewhere, as people write it.
fn file_of_uri(rest: &[u8]) -> Result<PinSource, PinSourceError> {
    let Some(after_slashes) = rest.strip_prefix(b"//") else {
        return if rest.is_empty() {
            Err(PinSourceError::NoPath)
        } else {
            Ok(PinSource::File(path(rest)))
        };
    };
    let slash = after_slashes
        .iter()
        .position(|&o| o == b'/')
        .ok_or(PinSourceError::NoPath)?;
    let (host, absolute) = after_slashes.split_at(slash);
    if host.is_empty() || host.eq_ignore_ascii_case(b"localhost") {
        Ok(PinSource::File(path(absolute)))
    } else {
        Err(PinSourceError::OtherHost)
    }
}

/// Checks the name of a credential: it becomes a file name, and must not lead out of its directory.
fn credential_name(octets: &[u8]) -> Result<String, PinSourceError> {
    let is_plain = |&o: &u8| o.is_ascii_graphic() && o != b'/' && o != b':';
    if octets.is_empty()
        || octets.len() > 255
        || octets == b"."
        || octets == b".."
        || !octets.iter().all(is_plain)
    {
        return Err(PinSourceError::CredentialName);
    }
    Ok(octets.iter().copied().map(char::from).collect())
}

fn path(octets: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(octets))
}

fn read_file(path: &Path) -> Result<Pin, PinError> {
    let unreadable = |reason| PinError::Unreadable {
        path: path.to_owned(),
        reason,
    };
    // Not to wait for a writer, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unreadable(e.into()))?;
    let file = File::from(opened);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(PinError::NotAFile {
            path: path.to_owned(),
        });
    }
    if let Some(mend) = mend_permissions(metadata.uid(), metadata.mode()) {
        return Err(PinError::OpenToOthers {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
            mend,
        });
    }
    let octets = read_octets(&file).map_err(unreadable)?;
    Pin::new(octets).map_err(|fault| PinError::Content {
        path: path.to_owned(),
        fault,
    })
}

/// What to give chmod, if others than `owner` can read or change a file of this `mode`.
///
/// Where root lets a group read its file, it does so on purpose: systemd for credentials, whose mode 0440 stands for an
/// access list, and operators with `root:daemon 0640`, by which the daemon can read its PIN and not change it.
fn mend_permissions(owner: u32, mode: u32) -> Option<&'static str> {
    if owner == ROOT {
        (mode & 0o037 != 0).then_some("g-wx,o=")
    } else {
        (mode & 0o077 != 0).then_some("go=")
    }
}

const ROOT: u32 = 0;

/// All of `file` that can be a PIN, without one line end, in a buffer that was never moved.
fn read_octets(mut file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room for a line end, and for one octet more, by which a longer file is known.
    let mut octets = Zeroizing::new(vec![0; MAX_PIN_LEN + 3]);
    let mut filled = 0;
    while filled < octets.len() {
        match file.read(&mut octets[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let length = without_line_end(&octets[..filled]).len();
    octets.truncate(length);
    Ok(octets)
}

/// One LF or CRLF less, as an editor or `echo` puts at the end.
fn without_line_end(octets: &[u8]) -> &[u8] {
    let Some(line) = octets.strip_suffix(b"\n") else {
        return octets;
    };
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Longest piece of a wrong text shown in a message, in characters.
const MAX_SHOWN: usize = 40;

#[cfg(test)]
mod tests;
