//! The keys that sign: those of `KeyFile` or of the key table, loaded and checked before mail arrives.
//!
//! Each file is read once, however many entries share it, and files are read in parallel. A key that cannot be used does
//! not keep others from signing: it stays as an error, to be reported at start and met by its own domain's mail. Files
//! named after the author's domain are loaded when that domain first writes, within a bound. Nothing here watches files:
//! to reload is to make a new set. Which key signs what is for the tables and for policy.
//!
//! Keys in tokens are named when a set is loaded, and opened by [`KeysInTokens::open`], once the daemon is who it will be:
//! a module must not be initialised before. Their tokens may come and go afterwards.
//!
//! Only the first [`MAX_REPORTED`] errors and warnings are kept for the report; their number is always right.

mod duties;
mod error;
mod load;
mod permissions;
mod tokens;

pub use duties::{AWAY, Duties, Tries, in_general, unavailable};
pub use error::{KeyError, KeyFault, KeyNote, KeyPlace, KeyWarning};
pub use permissions::{FaultKind, PathFault, Reader, Status};
pub use tokens::KeysInTokens;

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

use dkim_core::engine::{self, KeyType, SigningKey};
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::{OnAway, Uri};

use crate::config::{Config, KeyLocation, SignerSource, SingleKey};
use crate::tables::{InlineKey, KeyEntry, KeySource, KeyTable, Origin, SigningKeySource};
use load::{Loaded, Loader};

/// What is needed to sign: who, under which selector, with what.
#[derive(Clone, Debug)]
pub struct SigningIdentity {
    /// The signing domain (`d=`), a host name.
    pub domain: String,
    /// The selector (`s=`).
    pub selector: String,
    /// The key.
    pub key: Arc<dyn SigningKey>,
    /// If it is in a token, what becomes of mail that it cannot sign.
    pub on_away: Option<OnAway>,
}

/// The keys of a configuration.
#[derive(Debug)]
pub struct KeySet {
    loader: Loader,
    /// The kind that `SignatureAlgorithm` asks for.
    key_type: Option<KeyType>,
    files: HashMap<PathBuf, Loaded>,
    /// Keys in the table itself, by the names of their entries.
    inline: HashMap<Box<str>, Loaded>,
    in_tokens: KeysInTokens,
    /// Keys that are not signed with, by signing domain and selector, and why.
    held: RwLock<HashMap<(String, String), String>>,
    /// Files named after authors' domains.
    per_domain: Mutex<HashMap<PathBuf, Arc<dyn SigningKey>>>,
    report: Report,
}

/// What was found while keys were loaded.
#[derive(Debug, Default)]
pub struct Report {
    /// Keys that cannot be used.
    pub errors: Vec<KeyError>,
    /// How many more there are.
    pub more_errors: usize,
    /// What is odd.
    pub warnings: Vec<KeyWarning>,
    /// How many more there are.
    pub more_warnings: usize,
    /// How many keys can be used.
    pub usable: usize,
}

impl KeySet {
    /// Loads every key that `config` names, to be used, and read again on reloads, by `reader`.
    ///
    /// Reads files, and proves each key by a signature: about a millisecond a file and processor.
    pub fn load(config: &Config, reader: Reader) -> Self {
        let mut set = Self {
            loader: Loader {
                engine: config.engine.and_then(engine::engine_by_name),
                reader,
                require_safe: config.signing.require_safe_keys,
            },
            key_type: config.signing.key_type,
            files: HashMap::new(),
            inline: HashMap::new(),
            in_tokens: KeysInTokens::new(config.signing.tokens.clone()),
            held: RwLock::default(),
            per_domain: Mutex::default(),
            report: Report::default(),
        };
        match &config.signing.signers {
            None => {}
            Some(SignerSource::Single(single)) => {
                let origin = config.origin("KeyFile").cloned().unwrap_or(Origin::Default);
                match &single.key {
                    KeyLocation::File(path) => {
                        let place = KeyPlace {
                            origin,
                            name: None,
                            path: Some(path.clone()),
                        };
                        set.load_files(&[(path, place.clone())]);
                        let found = set.fit(place, None, set.file(path));
                        set.report.count(found.err());
                    }
                    KeyLocation::Token(uri) => {
                        let place = KeyPlace {
                            origin,
                            name: None,
                            path: None,
                        };
                        set.refer(place, uri);
                    }
                }
            }
            Some(SignerSource::Tables { keys, .. }) => set.load_table(keys),
        }
        set
    }

    /// Puts `other` keys made of them in the place of those from files.
    #[cfg(test)]
    pub(crate) fn replace(&mut self, other: impl Fn(Arc<dyn SigningKey>) -> Arc<dyn SigningKey>) {
        for key in self.files.values_mut().flatten() {
            *key = other(Arc::clone(key));
        }
    }

    /// What was found while loading.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The key called `name` in `table`, for an author at `author_domain`, a host name in lower case.
    ///
    /// `None` if the table has no such name. A file named after the author's domain that was not used before is read
    /// now: some tens of microseconds, and a millisecond if there is a key in it.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn look_up(
        &self,
        table: &KeyTable,
        name: &str,
        author_domain: &str,
    ) -> Option<Result<SigningIdentity, KeyError>> {
        let entry = table.look_up(name)?;
        let identity = self.identity(entry, author_domain);
        Some(identity.and_then(|identity| self.unless_held(place(entry, None), identity)))
    }

    /// The key that `KeyFile` names, to sign for `domain`.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn single(
        &self,
        origin: &Origin,
        single: &SingleKey,
        domain: &str,
    ) -> Result<SigningIdentity, KeyError> {
        let (place, identity) = self.single_identity(origin, single, domain);
        identity.and_then(|identity| self.unless_held(place, identity))
    }

    /// Every key whose signing domain is known without an author, and that can sign now; with its place. Those `in_tokens`
    /// only, or those in files too, but for files named after domains.
    pub fn identities(&self, config: &Config, in_tokens: bool) -> Vec<(KeyPlace, SigningIdentity)> {
        let identities: Vec<_> = match &config.signing.signers {
            None => Vec::new(),
            Some(SignerSource::Single(single))
                if in_tokens && matches!(single.key, KeyLocation::File(_)) =>
            {
                Vec::new()
            }
            Some(SignerSource::Single(single)) => {
                let origin = config.origin("KeyFile").unwrap_or(&Origin::Default);
                let (domains, _) = single.domains.plain();
                let identity = |domain| self.single_identity(origin, single, domain);
                domains.into_iter().map(identity).collect()
            }
            Some(SignerSource::Tables { keys, .. }) => keys
                .entries()
                .filter(|entry| entry.domain.is_some())
                .filter(|entry| match entry.source {
                    KeySource::FilePerDomain { .. } => false,
                    KeySource::File(_) | KeySource::Inline(_) => !in_tokens,
                    KeySource::Token(_) => true,
                })
                .map(|entry| (place(entry, None), self.identity(entry, "")))
                .collect(),
        };
        let can_sign = |(place, identity): (_, Result<_, _>)| Some((place, identity.ok()?));
        identities.into_iter().filter_map(can_sign).collect()
    }

    /// Has mail of the key not signed with it, for the reason `why`; `None` to have it signed again. Whether it was held
    /// before.
    pub fn hold(&self, domain: &str, selector: &str, why: Option<String>) -> bool {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let name = (domain.to_owned(), selector.to_owned());
        let before = match why {
            Some(why) => held.insert(name, why),
            None => held.remove(&name),
        };
        before.is_some()
    }

    /// What is held, one sentence each.
    pub fn held(&self) -> Vec<String> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let told = |((domain, selector), why): (&(String, String), &String)| {
            format!("{selector}._domainkey.{domain}: {why}")
        };
        held.iter().map(told).collect()
    }

    /// Holds what `before` holds, of what `config` still names.
    pub fn hold_as(&self, before: &Self, config: &Config) {
        let mut held = before
            .held
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !held.is_empty() {
            let named = names(config);
            held.retain(|(domain, selector), _| named.contains(&(&**domain, &**selector)));
        }
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn unless_held(
        &self,
        key: KeyPlace,
        identity: SigningIdentity,
    ) -> Result<SigningIdentity, KeyError> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            return Ok(identity);
        }
        let name = (identity.domain, identity.selector);
        match held.get(&name) {
            Some(why) => Err(KeyError {
                key,
                fault: Arc::new(KeyFault::NotPublished(why.clone())),
                others: 0,
            }),
            None => Ok(SigningIdentity {
                domain: name.0,
                selector: name.1,
                ..identity
            }),
        }
    }

    fn single_identity(
        &self,
        origin: &Origin,
        single: &SingleKey,
        domain: &str,
    ) -> (KeyPlace, Result<SigningIdentity, KeyError>) {
        let (path, loaded, on_away) = match &single.key {
            KeyLocation::File(path) => (Some(path.clone()), self.file(path), None),
            KeyLocation::Token(uri) => (
                None,
                self.in_tokens.key("", uri),
                Some(self.in_tokens.on_away(uri)),
            ),
        };
        let place = KeyPlace {
            origin: origin.clone(),
            name: None,
            path,
        };
        let key = self.fit(place.clone(), None, loaded);
        let identity = key.map(|key| SigningIdentity {
            domain: domain.to_owned(),
            selector: single.selector.clone(),
            key,
            on_away,
        });
        (place, identity)
    }

    /// Keys in tokens, to be opened once the daemon is who it will be.
    pub fn in_tokens(&self) -> &KeysInTokens {
        &self.in_tokens
    }

    /// The keys, by their names, that `before` could use and this set cannot; each set with its configuration. At most
    /// [`MAX_REPORTED`].
    pub fn lost_since(
        &self,
        config: &Config,
        before: &Self,
        config_before: &Config,
    ) -> Vec<KeyError> {
        if self.report.errors.is_empty() {
            return Vec::new();
        }
        match (&config.signing.signers, &config_before.signing.signers) {
            (Some(SignerSource::Single(_)), Some(SignerSource::Single(_)))
                if before.report.errors.is_empty() =>
            {
                self.report.errors.clone()
            }
            (
                Some(SignerSource::Tables { keys, .. }),
                Some(SignerSource::Tables {
                    keys: keys_before, ..
                }),
            ) => {
                let could_be_used = |name: &str| {
                    let entry = keys_before.look_up(name);
                    entry
                        .and_then(|entry| before.entry(entry))
                        .is_some_and(|loaded| loaded.is_ok())
                };
                keys.entries()
                    .filter_map(|entry| {
                        self.entry(entry)?
                            .err()
                            .filter(|_| could_be_used(&entry.name))
                    })
                    .take(MAX_REPORTED)
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn identity(&self, entry: &KeyEntry, author_domain: &str) -> Result<SigningIdentity, KeyError> {
        let choice = entry.for_author(author_domain).map_err(|fault| KeyError {
            key: place(entry, None),
            fault: Arc::new(fault.into()),
            others: 0,
        })?;
        let (path, loaded, on_away) = match &choice.source {
            SigningKeySource::File(path) => (Some(&**path), self.file(path), None),
            SigningKeySource::Inline(key) => (None, self.inline_key(&entry.name, key), None),
            SigningKeySource::Token(uri) => {
                let loaded = self.in_tokens.key(&entry.name, uri);
                (None, loaded, Some(self.in_tokens.on_away(uri)))
            }
        };
        let key = self.fit(place(entry, path), choice.key_type, loaded)?;
        Ok(SigningIdentity {
            domain: choice.domain.into_owned(),
            selector: choice.selector.to_owned(),
            key,
            on_away,
        })
    }

    /// `loaded`, if it is of the kind that was asked for: by its table entry, or else by the option.
    fn fit(
        &self,
        key: KeyPlace,
        by_table: Option<KeyType>,
        loaded: Loaded,
    ) -> Result<Arc<dyn SigningKey>, KeyError> {
        let fault = match (loaded, by_table.or(self.key_type)) {
            (Ok(ready), Some(wanted)) if ready.key_type() != wanted => {
                Arc::new(KeyFault::WrongType {
                    found: ready.key_type(),
                    wanted,
                    by_table: by_table.is_some(),
                })
            }
            (Ok(ready), _) => return Ok(ready),
            (Err(fault), _) => fault,
        };
        Err(KeyError {
            key,
            fault,
            others: 0,
        })
    }

    /// The key in the file at `path`. One that was not loaded before mail arrived is loaded when it is first asked for;
    /// of these only keys are remembered, for a fault may be mended meanwhile.
    fn file(&self, path: &Path) -> Loaded {
        if let Some(loaded) = self.files.get(path) {
            return loaded.clone();
        }
        let cache = || {
            self.per_domain
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(key) = cache().get(path) {
            return Ok(Arc::clone(key));
        }
        let (loaded, _) = self.loader.load_file(path);
        if let Ok(key) = &loaded {
            let mut cache = cache();
            if cache.len() >= MAX_PER_DOMAIN {
                cache.clear();
            }
            cache.insert(path.to_owned(), Arc::clone(key));
        }
        loaded
    }

    fn inline_key(&self, name: &str, key: &InlineKey) -> Loaded {
        match self.inline.get(name) {
            Some(loaded) => loaded.clone(),
            None => self.loader.load_text(key.text()).0,
        }
    }

    /// Settles which key in a token the URI names.
    fn refer(&mut self, place: KeyPlace, uri: &Uri) {
        if matches!(uri.pin, Some(PinSource::Value(_))) && self.in_tokens.allows_pin_value() {
            self.report.warn(place.clone(), KeyNote::PinInOpen);
        }
        if uri.slot_id.is_some() {
            self.report.warn(place.clone(), KeyNote::SlotNumber);
        }
        if let Err(error) = self.in_tokens.refer(place, uri) {
            self.report.count(Some(error));
        }
    }

    fn load_table(&mut self, table: &KeyTable) {
        let mut seen = HashSet::new();
        let mut files = Vec::new();
        for entry in table.entries() {
            match &entry.source {
                KeySource::File(path) if seen.insert(path) => {
                    files.push((&**path, place(entry, Some(path))))
                }
                KeySource::Inline(key) if !self.inline.contains_key(&entry.name) => {
                    let (loaded, notes) = self.loader.load_text(key.text());
                    for note in notes {
                        self.report.warn(place(entry, None), note);
                    }
                    self.inline.insert(entry.name.clone(), loaded);
                }
                KeySource::Token(uri) if !self.in_tokens.contains(&entry.name) => {
                    self.refer(place(entry, None), uri);
                }
                KeySource::File(_)
                | KeySource::Inline(_)
                | KeySource::Token(_)
                | KeySource::FilePerDomain { .. } => {}
            }
        }
        self.load_files(&files);
        for entry in table.entries() {
            if let Some(loaded) = self.entry(entry) {
                self.report.count(loaded.err());
            }
        }
    }

    /// The key of `entry`, unless which one that is depends on the author, or whether it can sign on a token.
    fn entry(&self, entry: &KeyEntry) -> Option<Result<Arc<dyn SigningKey>, KeyError>> {
        let (path, loaded) = match &entry.source {
            KeySource::File(path) => (Some(&**path), self.file(path)),
            KeySource::Inline(key) => (None, self.inline_key(&entry.name, key)),
            KeySource::FilePerDomain { .. } | KeySource::Token(_) => return None,
        };
        Some(self.fit(place(entry, path), entry.key_type, loaded))
    }

    /// Loads `files`, on as many threads as there are processors.
    fn load_files(&mut self, files: &[(&Path, KeyPlace)]) {
        let loader = &self.loader;
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                match files.get(index) {
                    Some((path, _)) => found.push((index, loader.load_file(path))),
                    None => return found,
                }
            }
        };
        let threads = thread::available_parallelism()
            .map_or(1, NonZero::get)
            .min(files.len());
        let mut found: Vec<_> = if threads <= 1 {
            work()
        } else {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                // A thread that came to grief leaves files out; they are loaded when they are asked for.
                threads
                    .into_iter()
                    .filter_map(|thread| thread.join().ok())
                    .flatten()
                    .collect()
            })
        };
        found.sort_unstable_by_key(|(index, _)| *index);
        let mut told = HashSet::new();
        for (index, (loaded, notes)) in found {
            let (path, place) = &files[index];
            for note in notes {
                // One directory is on the way to many files.
                let is_new = match &note {
                    KeyNote::Path(fault) | KeyNote::LostOnReload(fault) => {
                        told.insert((fault.path.clone(), fault.kind))
                    }
                    KeyNote::Short { .. } | KeyNote::PinInOpen | KeyNote::SlotNumber => true,
                };
                if is_new {
                    self.report.warn(place.clone(), note);
                }
            }
            self.files.insert((*path).to_owned(), loaded);
        }
    }
}

impl Report {
    /// Counts a key that can be used, or the error that it cannot.
    fn count(&mut self, error: Option<KeyError>) {
        let Some(error) = error else {
            self.usable += 1;
            return;
        };
        let shares = |known: &&mut KeyError| {
            error.key.path.is_some() && Arc::ptr_eq(&known.fault, &error.fault)
        };
        if let Some(known) = self.errors.iter_mut().find(shares) {
            known.others += 1;
        } else if self.errors.len() < MAX_REPORTED {
            self.errors.push(error);
        } else {
            self.more_errors += 1;
        }
    }

    fn warn(&mut self, key: KeyPlace, note: KeyNote) {
        if self.warnings.len() < MAX_REPORTED {
            self.warnings.push(KeyWarning { key, note });
        } else {
            self.more_warnings += 1;
        }
    }
}

/// Signing domains, as far as they are known without an author, and selectors.
fn names(config: &Config) -> HashSet<(&str, &str)> {
    match &config.signing.signers {
        None => HashSet::new(),
        Some(SignerSource::Single(single)) => {
            let (domains, _) = single.domains.plain();
            let name = |domain| (domain, &*single.selector);
            domains.into_iter().map(name).collect()
        }
        Some(SignerSource::Tables { keys, .. }) => keys
            .entries()
            .filter_map(|entry| Some((entry.domain.as_deref()?, &*entry.selector)))
            .collect(),
    }
}

fn place(entry: &KeyEntry, path: Option<&Path>) -> KeyPlace {
    KeyPlace {
        origin: entry.origin.clone(),
        name: Some(entry.name.clone()),
        path: path.map(Path::to_owned),
    }
}

/// How many errors, and how many warnings, are told.
pub const MAX_REPORTED: usize = 100;

/// How many keys of files named after domains are remembered: some megabytes.
const MAX_PER_DOMAIN: usize = 4096;

#[cfg(test)]
mod tests;
