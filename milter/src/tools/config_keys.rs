//! The keys of a configuration, each with the name that its record must have.

use super::private_key::{KeyError, KeyLoader, KeyName};
use crate::config::{Config, KeyLocation, SignerSource, SingleKey};
use crate::tables::{KeyEntry, SigningKeySource};
use dkim_core::engine::SigningKey;
use pkcs11_engine::uri::Uri;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A key to be held against its record.
pub(super) struct Target {
    /// The signing domain.
    pub(super) domain: String,
    /// The selector.
    pub(super) selector: String,
    /// The key, in words.
    pub(super) told: String,
    /// The key; `None` to look at the record alone.
    pub(super) key: Result<Option<Arc<dyn SigningKey>>, KeyError>,
}

/// Which of the keys are wanted.
pub(super) struct Wanted<'a> {
    /// The signing domain, a host name; also the author's where an entry wants to know.
    pub(super) domain: Option<&'a str>,
    /// The selector.
    pub(super) selector: Option<&'a str>,
}

/// The keys of `config` that are `wanted`, and what cannot be told without an author, in sentences.
pub(super) fn targets(
    config: &Config,
    wanted: &Wanted<'_>,
    loader: &mut KeyLoader,
) -> (Vec<Target>, Vec<String>) {
    let mut keys = Keys {
        loader,
        files: HashMap::new(),
    };
    let (mut targets, mut skipped) = (Vec::new(), Vec::new());
    match &config.signing.signers {
        None => {}
        Some(SignerSource::Single(single)) => {
            of_single(single, wanted, &mut keys, &mut targets, &mut skipped);
        }
        Some(SignerSource::Tables { keys: table, .. }) => {
            for entry in table.entries() {
                of_entry(entry, wanted, &mut keys, &mut targets, &mut skipped);
            }
        }
    }
    (targets, skipped)
}

/// Keys, those in files loaded once however many entries share them.
struct Keys<'l> {
    loader: &'l mut KeyLoader,
    files: HashMap<PathBuf, Arc<dyn SigningKey>>,
}

impl Keys<'_> {
    fn file(&mut self, path: &Path) -> Result<Option<Arc<dyn SigningKey>>, KeyError> {
        if let Some(key) = self.files.get(path) {
            return Ok(Some(Arc::clone(key)));
        }
        let key = self.loader.load(&KeyName::File(path.to_owned()))?;
        self.files.insert(path.to_owned(), Arc::clone(&key));
        Ok(Some(key))
    }

    fn token(&mut self, uri: &Uri) -> Result<Option<Arc<dyn SigningKey>>, KeyError> {
        let name = KeyName::Token(Box::new(uri.clone()));
        self.loader.load(&name).map(Some)
    }
}

fn of_single(
    single: &SingleKey,
    wanted: &Wanted<'_>,
    keys: &mut Keys<'_>,
    targets: &mut Vec<Target>,
    skipped: &mut Vec<String>,
) {
    if !wanted.has_selector(&single.selector) {
        return;
    }
    let domains = match wanted.domain {
        Some(domain) => single.signing_domain(domain).into_iter().collect(),
        None => {
            let (domains, has_patterns) = single.domains.plain();
            if has_patterns {
                skipped.push(
                    "Domain has patterns, and what they match is not known here: name a domain by -d"
                        .to_owned(),
                );
            }
            domains
        }
    };
    targets.extend(domains.into_iter().map(|domain| Target {
        domain: domain.to_owned(),
        selector: single.selector.clone(),
        told: match &single.key {
            KeyLocation::File(path) => path.display().to_string(),
            KeyLocation::Token(uri) => uri.to_string(),
        },
        key: match &single.key {
            KeyLocation::File(path) => keys.file(path),
            KeyLocation::Token(uri) => keys.token(uri),
        },
    }));
}

fn of_entry(
    entry: &KeyEntry,
    wanted: &Wanted<'_>,
    keys: &mut Keys<'_>,
    targets: &mut Vec<Target>,
    skipped: &mut Vec<String>,
) {
    let is_of_other_domain = |domain| wanted.domain.is_some_and(|wanted| wanted != domain);
    if !wanted.has_selector(&entry.selector)
        || entry.domain.as_deref().is_some_and(is_of_other_domain)
    {
        return;
    }
    // Where the entry does not ask for an author, an empty one will do.
    let Ok(choice) = entry.for_author(wanted.domain.unwrap_or_default()) else {
        skipped.push(format!(
            "{}: key \"{}\" is made of the author's domain: name one by -d",
            entry.origin, entry.name
        ));
        return;
    };
    let (told, key) = match &choice.source {
        SigningKeySource::File(path) => (path.display().to_string(), keys.file(path)),
        SigningKeySource::Inline(key) => {
            let told = format!("the key in {}", entry.origin);
            let loaded = keys.loader.load_octets(&told, key.text().as_bytes());
            (told, loaded.map(Some))
        }
        SigningKeySource::Token(uri) => (uri.to_string(), keys.token(uri)),
    };
    targets.push(Target {
        domain: choice.domain.into_owned(),
        selector: choice.selector.to_owned(),
        told: format!("\"{}\" ({}), {told}", entry.name, entry.origin),
        key,
    });
}

impl Wanted<'_> {
    fn has_selector(&self, selector: &str) -> bool {
        self.selector.is_none_or(|wanted| wanted == selector)
    }
}
