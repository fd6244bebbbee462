//! Tokens that verify signatures or hash bodies (`Pkcs11Verify`, `Pkcs11Digest`), for who must have that in a module: named
//! with the configuration, opened once the daemon is who it will be. Nobody else is concerned with any of it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dkim_core::engine::PublicKey;
use dkim_core::verifier::{Check, CheckOutcome};
use pkcs11_engine::{Fault, Reference, TokenDigester, TokenVerifier, Tokens};

use crate::config::{Config, Fallback};

/// The tokens that a configuration names for more than keys.
#[derive(Debug, Default)]
pub struct Duties {
    verify: Option<Reference>,
    digest: Option<Reference>,
    /// Where these two were set.
    origins: [String; 2],
    fallback: Fallback,
    verifier: OnceLock<TokenVerifier>,
    digester: OnceLock<TokenDigester>,
}

impl Duties {
    /// What the options of `config` name; nothing is opened yet.
    pub fn new(config: &Config) -> Self {
        let options = &config.signing.tokens;
        let place = |option| match config.origin(option) {
            Some(origin) => format!("{origin}: {option}"),
            None => option.to_owned(),
        };
        Self {
            origins: [place("Pkcs11Verify"), place("Pkcs11Digest")],
            verify: options.verify.clone(),
            digest: options.digest.clone(),
            fallback: options.fallback,
            ..Self::default()
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.verify.is_none() && self.digest.is_none()
    }

    /// Whether signatures are verified on a token.
    pub fn verifies(&self) -> bool {
        self.verify.is_some()
    }

    /// Whether bodies are hashed by a token.
    pub fn digests(&self) -> bool {
        self.digest.is_some()
    }

    /// What is done while a token is away.
    pub fn fallback(&self) -> Fallback {
        self.fallback
    }

    /// Has the tokens opened, and waits until it is known of each whether it does what it is named for, at most as long as
    /// `patience`. What is wrong, one line each; it is tried again and again from now on.
    pub fn open(&self, tokens: &Tokens, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let mut errors = Vec::new();
        let [of_verify, of_digest] = &self.origins;
        if let Some(reference) = &self.verify {
            let opened = open(&self.verifier, || tokens.verifier(reference));
            if let Err(fault) = opened.and_then(|verifier| verifier.wait(left())) {
                errors.push(format!(
                    "{of_verify}: {} cannot verify: {fault}; {}",
                    reference.uri,
                    self.meanwhile()
                ));
            }
        }
        if let Some(reference) = &self.digest {
            let opened = open(&self.digester, || tokens.digester(reference));
            if let Err(fault) = opened.and_then(|digester| digester.wait(left())) {
                errors.push(format!(
                    "{of_digest}: {} cannot hash: {fault}; {}",
                    reference.uri,
                    self.meanwhile()
                ));
            }
        }
        errors
    }

    /// The token that verifies, if one is named.
    ///
    /// # Errors
    /// It was not opened.
    pub fn verifier(&self) -> Option<Result<&TokenVerifier, Fault>> {
        self.verify.as_ref()?;
        Some(self.verifier.get().ok_or(Fault::NotYet))
    }

    /// The token that hashes, if one is named.
    ///
    /// # Errors
    /// It was not opened.
    pub fn digester(&self) -> Option<Result<&TokenDigester, Fault>> {
        self.digest.as_ref()?;
        Some(self.digester.get().ok_or(Fault::NotYet))
    }

    /// What of it cannot be done now, in a few words.
    pub fn away(&self) -> Vec<&'static str> {
        let verifies = self.verifier.get().is_some_and(|it| it.fault().is_none());
        let digests = self.digester.get().is_some_and(|it| it.fault().is_none());
        let mut away = Vec::new();
        if self.verifies() && !verifies {
            away.push("the token that verifies is away");
        }
        if self.digests() && !digests {
            away.push("the token that hashes is away");
        }
        away
    }

    fn meanwhile(&self) -> &'static str {
        match self.fallback {
            Fallback::None => "until it can, On-TokenAway says what becomes of such mail",
            Fallback::Software => "until it can, software does it (Pkcs11Fallback)",
        }
    }
}

fn open<T>(place: &OnceLock<T>, make: impl FnOnce() -> Result<T, Fault>) -> Result<&T, Fault> {
    if let Some(opened) = place.get() {
        return Ok(opened);
    }
    let made = make()?;
    Ok(place.get_or_init(|| made))
}

/// A check that a token does not do now.
pub fn unavailable(fault: &Fault) -> CheckOutcome {
    CheckOutcome::Unavailable(in_general(fault).to_owned())
}

/// What is said of a fault to recipients: which tokens there are here is none of their business, and in the log.
pub fn in_general(fault: &Fault) -> &'static str {
    match fault {
        Fault::Late => "the token gave no answer in time",
        Fault::Full { .. } => "too much waits for the token",
        _ => AWAY,
    }
}

/// Most faults, in general.
pub const AWAY: &str = "the token is away";

/// A check on its way through a token, key by key: several records at one name are tried in turn.
#[derive(Debug, Default)]
pub struct Tries {
    tried: usize,
    refused: Option<String>,
}

impl Tries {
    /// The next key to be asked about, with the place of its record; or what has come of it all.
    ///
    /// # Errors
    /// There is no further key: the outcome.
    pub fn next<'c>(&mut self, check: &'c Check) -> Result<(usize, &'c PublicKey), CheckOutcome> {
        let next = check.keys().nth(self.tried);
        self.tried += 1;
        next.ok_or_else(|| match self.refused.take() {
            Some(why) => CheckOutcome::Refused(why),
            None => CheckOutcome::Bad,
        })
    }

    /// Takes the token's answer about the key of `record`; the outcome, if no further key matters.
    pub fn answered(&mut self, record: usize, answer: Result<bool, Fault>) -> Option<CheckOutcome> {
        match answer {
            Ok(true) => Some(CheckOutcome::Good { record }),
            Ok(false) => None,
            Err(Fault::Unfit { reason, .. }) => {
                self.refused.get_or_insert(reason);
                None
            }
            Err(fault) => Some(unavailable(&fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::key_record::KeyAnswer;
    use dkim_core::message::HeaderFields;
    use dkim_core::signature::FIELD_NAME;
    use dkim_core::verifier::{Verifier, VerifierConfig};
    use std::sync::Arc;

    /// A check with two keys.
    fn check() -> Check {
        let ed25519 = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        let mut header = HeaderFields::new();
        // SHA-256 of no body.
        let value = b" v=1; a=ed25519-sha256; c=relaxed/relaxed; d=example.com; s=s; h=From; \
            bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=AAAA";
        header.push(FIELD_NAME.as_bytes(), b"", value);
        header.push(b"From", b" ", b"a@example.com");
        let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
        verifier.answer(0, Arc::new(KeyAnswer::from_txt(&[ed25519, ed25519])));
        verifier.to_check(&header).pop().unwrap()
    }

    fn outcome(answers: [Result<bool, Fault>; 2]) -> CheckOutcome {
        let (check, mut tries) = (check(), Tries::default());
        let mut answers = answers.into_iter();
        loop {
            match tries.next(&check) {
                Err(outcome) => return outcome,
                Ok((record, _)) => {
                    let answer = answers.next().unwrap();
                    if let Some(outcome) = tries.answered(record, answer) {
                        return outcome;
                    }
                }
            }
        }
    }

    #[test]
    fn a_good_key_decides_and_one_that_is_not_taken_leaves_it_open() {
        let unfit = || {
            Err(Fault::Unfit {
                key: "token".into(),
                reason: "why".into(),
            })
        };
        let refused = || CheckOutcome::Refused("why".into());
        let away = || unavailable(&Fault::Late);
        for (answers, want) in [
            ([Ok(true), Ok(true)], CheckOutcome::Good { record: 0 }),
            ([Ok(false), Ok(true)], CheckOutcome::Good { record: 1 }),
            ([Ok(false), Ok(false)], CheckOutcome::Bad),
            ([unfit(), Ok(true)], CheckOutcome::Good { record: 1 }),
            ([unfit(), Ok(false)], refused()),
            ([Ok(false), unfit()], refused()),
            ([Err(Fault::Late), Ok(true)], away()),
            ([Ok(false), Err(Fault::Late)], away()),
        ] {
            assert_eq!(outcome(answers.clone()), want, "{answers:?}");
        }
    }
}
