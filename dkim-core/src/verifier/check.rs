//! One signature to be checked: what was signed, the signature, and the keys that may have made it.

use super::{VerifierConfig, refusal};
use crate::engine::{Engine, PublicKey};
use crate::key_record::{KeyAnswer, KeyRecord};
use crate::signature::Signature;
use std::sync::Arc;

/// Work for an engine: nothing else of a message is needed to do it.
#[derive(Debug)]
pub struct Check {
    pub(super) item: usize,
    pub(super) octets: Vec<u8>,
    pub(super) signature: Vec<u8>,
    pub(super) answer: Arc<KeyAnswer>,
    /// Which records of the answer may serve.
    pub(super) records: UsableRecords,
}

/// The places of the records whose keys may have made a signature, the first few.
#[derive(Debug, Default)]
pub(super) struct UsableRecords {
    places: [usize; MOST_KEYS],
    count: usize,
}

/// Several keys at one name are a left-over or a mistake; each costs a check.
const MOST_KEYS: usize = 3;

impl UsableRecords {
    pub(super) fn new(signature: &Signature, answer: &KeyAnswer, config: &VerifierConfig) -> Self {
        let mut usable = Self::default();
        if let KeyAnswer::Records(records) = answer {
            let places = records.iter().enumerate();
            for (place, _) in places
                .filter(|(_, record)| refusal(signature, record, config).is_none())
                .take(MOST_KEYS)
            {
                usable.places[usable.count] = place;
                usable.count += 1;
            }
        }
        usable
    }

    pub(super) fn places(&self) -> &[usize] {
        &self.places[..self.count]
    }
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The signature is that of a key.
    Good {
        /// Which record of the answer holds it.
        record: usize,
    },
    /// It is not.
    Bad,
    /// The engine cannot use any of the keys; its reason.
    Unusable(String),
    /// Nobody can say now; why. No engine in software gives this, but a token may be away.
    Unavailable(String),
    /// Nobody here will ever say; why. Nor does software give this, which takes every key that is accepted.
    Refused(String),
}

impl Check {
    /// Tries the keys with `engine`, until one has made the signature.
    pub fn run(&self, engine: &dyn Engine) -> CheckOutcome {
        let mut outcome = CheckOutcome::Bad;
        for (index, record) in self.records() {
            match record.verifying_key(engine) {
                Err(error) => outcome = CheckOutcome::Unusable(error.to_string()),
                Ok(key) if key.verify(&self.octets, &self.signature).is_ok() => {
                    return CheckOutcome::Good { record: index };
                }
                Ok(_) => outcome = CheckOutcome::Bad,
            }
        }
        outcome
    }

    /// What was signed, for who does not check with an engine.
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The signature that is to be checked.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// The keys that may have made it, and the place of each one's record.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &PublicKey)> {
        self.records()
            .map(|(index, record)| (index, record.public_key()))
    }

    fn records(&self) -> impl Iterator<Item = (usize, &KeyRecord)> {
        let records = match &*self.answer {
            KeyAnswer::Records(records) => records.as_slice(),
            _ => &[],
        };
        self.records
            .places()
            .iter()
            .filter_map(|&index| Some((index, records.get(index)?.as_ref().ok()?)))
    }
}
