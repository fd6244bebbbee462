//! Keys that lie in tokens: named with the configuration, opened once the daemon is who it will be, and asked for by the
//! names of their table entries from then on. That of `KeyFile` has the empty name, which no entry has.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pkcs11_engine::uri::{OnAway, Uri};
use pkcs11_engine::{Fault, Reference, TokenKey, Tokens};

use super::MAX_REPORTED;
use super::error::{KeyError, KeyFault, KeyPlace};
use super::load::Loaded;
use crate::config::TokenOptions;

/// The keys in tokens that a configuration names.
#[derive(Debug)]
pub struct KeysInTokens {
    options: TokenOptions,
    named: HashMap<Box<str>, Named>,
    opened: OnceLock<HashMap<Box<str>, Arc<TokenKey>>>,
}

#[derive(Debug)]
struct Named {
    place: KeyPlace,
    reference: Result<Reference, Arc<KeyFault>>,
    on_away: OnAway,
}

impl KeysInTokens {
    /// None yet.
    pub(super) fn new(options: TokenOptions) -> Self {
        Self {
            options,
            named: HashMap::new(),
            opened: OnceLock::new(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Has the keys opened, and waits until it is known of each whether it can sign, at most as long as `patience`. Those
    /// that cannot, and why, at most [`MAX_REPORTED`]; they are tried again and again from now on.
    pub fn open(&self, tokens: &Tokens, patience: Duration) -> Vec<KeyError> {
        let until = Instant::now() + patience;
        let mut faults = Vec::new();
        let opened = self.opened.get_or_init(|| {
            let mut opened = HashMap::new();
            for (name, named) in &self.named {
                match named
                    .reference
                    .as_ref()
                    .map(|reference| tokens.key(reference))
                {
                    Ok(Ok(key)) => {
                        opened.insert(name.clone(), key);
                    }
                    Ok(Err(fault)) => faults.push((named, fault)),
                    // Told when it was named.
                    Err(_) => {}
                }
            }
            opened
        });
        for (name, key) in opened {
            let left = until.saturating_duration_since(Instant::now());
            if let (Err(fault), Some(named)) = (key.wait(left), self.named.get(name)) {
                faults.push((named, fault));
            }
        }
        let mut errors: Vec<_> = faults
            .into_iter()
            .map(|(named, fault)| named.error(named.fault(fault)))
            .collect();
        errors.sort_by_key(|error| error.key.to_string());
        errors.truncate(MAX_REPORTED);
        errors
    }

    /// Those that were opened, and where they are asked for.
    pub fn opened(&self) -> impl Iterator<Item = (&KeyPlace, &Arc<TokenKey>)> {
        let opened = self.opened.get().into_iter().flatten();
        opened.filter_map(|(name, key)| Some((&self.named.get(name)?.place, key)))
    }

    /// Those that cannot sign now and why, one sentence each, at most `most`; and how many there are.
    pub fn away(&self, most: usize) -> (Vec<String>, usize) {
        let (mut told, mut count) = (Vec::new(), 0);
        let opened = self.opened.get();
        for (name, named) in &self.named {
            if named.reference.is_err() {
                // For ever, and told with keys in files.
                continue;
            }
            let key = opened.and_then(|opened| opened.get(name));
            if let Some(fault) = key.map_or(Some(Fault::NotYet), |key| key.fault()) {
                count += 1;
                if told.len() < most {
                    told.push(named.error(named.fault(fault)).to_string());
                }
            }
        }
        told.sort();
        (told, count)
    }

    /// How many can sign now, and how many cannot.
    pub fn count(&self) -> (usize, usize) {
        let can = self
            .opened()
            .filter(|(_, key)| key.fault().is_none())
            .count();
        (can, self.opened().count() - can)
    }

    /// Whether a PIN may stand in a URI.
    pub(super) fn allows_pin_value(&self) -> bool {
        self.options.allow_pin_value
    }

    /// Settles which key `uri` names, with the options for what it leaves open.
    ///
    /// # Errors
    /// It names none.
    pub(super) fn refer(&mut self, place: KeyPlace, uri: &Uri) -> Result<(), KeyError> {
        let options = &self.options;
        let reference = Reference::new(
            uri.clone(),
            options.module.as_deref(),
            options.pin.as_ref(),
            options.allow_pin_value,
        );
        let named = Named {
            reference: reference.map_err(|error| Arc::new(KeyFault::Reference(error))),
            on_away: self.on_away(uri),
            place,
        };
        let error = named.reference.as_ref().err().cloned();
        let result = error.map_or(Ok(()), |fault| Err(named.error(fault)));
        let name = named.place.name.clone().unwrap_or_default();
        self.named.insert(name, named);
        result
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// The key called `name`, whose URI is `uri`, once it was seen; its token may be away even so.
    pub(super) fn key(&self, name: &str, uri: &Uri) -> Loaded {
        let named = self.named.get(name);
        if let Some(Err(fault)) = named.map(|named| &named.reference) {
            return Err(Arc::clone(fault));
        }
        let key = self.opened.get().and_then(|opened| opened.get(name));
        key.map_or(Err(Fault::NotYet), |key| key.signing_key())
            .map_err(|fault| {
                let on_away = self.on_away(uri);
                Arc::new(KeyFault::Token { fault, on_away })
            })
    }

    /// What becomes of mail that the key cannot sign.
    pub(super) fn on_away(&self, uri: &Uri) -> OnAway {
        uri.on_away.unwrap_or(self.options.on_away)
    }
}

impl Named {
    fn fault(&self, fault: Fault) -> Arc<KeyFault> {
        let on_away = self.on_away;
        Arc::new(KeyFault::Token { fault, on_away })
    }

    fn error(&self, fault: Arc<KeyFault>) -> KeyError {
        KeyError {
            key: self.place.clone(),
            fault,
            others: 0,
        }
    }
}
