//! From a file's or a table's octets to a key that signs: read, checked, proved.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use dkim_core::engine::{self, Engine, KeyType, MAX_KEY_OCTETS, PrivateKey, SigningKey};
use zeroize::Zeroizing;

use super::error::{KeyFault, KeyNote};
use super::permissions::{FaultKind, Reader, Status, Walk, WalkError, fault};

/// A key as it came out, shared by all who sign with it.
pub(super) type Loaded = Result<Arc<dyn SigningKey>, Arc<KeyFault>>;

/// How keys are loaded.
#[derive(Clone, Debug)]
pub(super) struct Loader {
    /// The engine that signs; `None` for the first that can.
    pub(super) engine: Option<&'static dyn Engine>,
    /// Who will read the keys from now on.
    pub(super) reader: Reader,
    /// Whether keys that others can read or replace are refused.
    pub(super) require_safe: bool,
}

impl Loader {
    /// The key in the file at `path`, and what is odd about it.
    pub(super) fn load_file(&self, path: &Path) -> (Loaded, Vec<KeyNote>) {
        let mut notes = Vec::new();
        let loaded = self
            .read_file(path, &mut notes)
            .and_then(|octets| self.load(&octets, &mut notes));
        (loaded.map_err(Arc::new), notes)
    }

    /// The key in a table's text, and what is odd about it.
    pub(super) fn load_text(&self, text: &str) -> (Loaded, Vec<KeyNote>) {
        let mut notes = Vec::new();
        let loaded = self.load(text.as_bytes(), &mut notes);
        (loaded.map_err(Arc::new), notes)
    }

    fn load(
        &self,
        octets: &[u8],
        notes: &mut Vec<KeyNote>,
    ) -> Result<Arc<dyn SigningKey>, KeyFault> {
        let key = PrivateKey::from_octets(octets)?;
        let bits = key.bits();
        if key.key_type() == KeyType::Rsa {
            match bits {
                ..SHORTEST => return Err(KeyFault::TooShort { bits }),
                SHORTEST..RECOMMENDED => notes.push(KeyNote::Short { bits }),
                RECOMMENDED.. => {}
            }
        }
        let ready = match self.engine {
            Some(engine) => engine.signing_key(&key)?,
            None => engine::signing_key(&key)?,
        };
        Ok(ready.into())
    }

    fn read_file(
        &self,
        path: &Path,
        notes: &mut Vec<KeyNote>,
    ) -> Result<Zeroizing<Vec<u8>>, KeyFault> {
        let walk = Walk::along(path).map_err(|error| match error {
            WalkError::Shut(fault) => KeyFault::Denied(fault),
            WalkError::System(at, cause) => KeyFault::System { at, cause },
        })?;
        let system = |cause| KeyFault::System {
            at: walk.file.clone(),
            cause,
        };
        // Before it is opened: that would wait for a writer if it is a pipe.
        let seen = fs::symlink_metadata(&walk.file).map_err(system)?;
        if !seen.is_file() {
            return Err(KeyFault::NotAFile(walk.file.clone()));
        }
        let file = File::open(&walk.file).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let status = Status::from(&seen);
                KeyFault::Denied(fault(
                    &walk.file,
                    status,
                    FaultKind::CannotRead,
                    &Reader::current(),
                ))
            }
            _ => system(error),
        })?;
        let metadata = file.metadata().map_err(system)?;
        self.check(&walk, Status::from(&metadata), notes)?;
        // Room for all of it from the start: a vector that grows leaves copies behind.
        let mut octets = Zeroizing::new(Vec::with_capacity(MAX_KEY_OCTETS + 1));
        file.take(MAX_KEY_OCTETS as u64 + 1)
            .read_to_end(&mut octets)
            .map_err(system)?;
        if octets.len() > MAX_KEY_OCTETS {
            return Err(KeyFault::TooLarge);
        }
        Ok(octets)
    }

    /// Whether the file that `walk` led to is safe.
    fn check(&self, walk: &Walk, status: Status, notes: &mut Vec<KeyNote>) -> Result<(), KeyFault> {
        let found = walk.judge(status, &self.reader);
        let mut refusals = found.refusals.into_iter();
        if self.require_safe
            && let Some(first) = refusals.next()
        {
            return Err(KeyFault::Unsafe(first));
        }
        notes.extend(refusals.chain(found.warnings).map(KeyNote::Path));
        if self.reader != Reader::current() {
            notes.extend(
                walk.obstacle(status, &self.reader)
                    .map(KeyNote::LostOnReload),
            );
        }
        Ok(())
    }
}

/// RFC 8301 section 3.2: what signers MUST have, and what they SHOULD.
const SHORTEST: u32 = 1024;
const RECOMMENDED: u32 = 2048;
