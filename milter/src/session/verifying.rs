//! A message that is verified: key records are looked for while the body passes, then every signature is checked, then
//! there are verdicts.
//!
//! Each event is answered with what is to be done next. What the MTA is told in the end follows from the verdicts.

use super::conclusion::{Conclusion, Weight};
use super::digests::Digests;
use super::outcome::Outcome;
use super::report;
use super::step::progress_by;
use super::{Now, Work};
use crate::config::Fallback;
use crate::policy::{Answer, answer_on, judge};
use crate::settings::Settings;
use dkim_core::body_digest::{BodyHash, NoBodyHash};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::verifier::{Check, CheckOutcome, Verdict, Verifier};
use std::sync::Arc;
use std::time::Duration;

/// How long a token may take to hash the last of a body, or to check a message's signatures, whatever its own time-out is.
const TOKEN_TIME: Duration = Duration::from_secs(20);

pub(super) struct Verifying {
    /// Which message of the connection.
    message: u64,
    verifier: Verifier,
    /// Why the message was not signed, if it might have been.
    unsigned: Option<String>,
    /// The hashes that a token makes, if one does.
    digests: Option<Digests>,
    /// Why software hashed what the token should have, until that is told.
    by_software: Option<String>,
    /// Whether software may hash where the token does not.
    software: bool,
    /// Whether a token checks.
    checks_on_token: bool,
    /// How many key records are out.
    unanswered: usize,
    /// Until when they may come.
    keys_by: Duration,
    /// Until when a token may take, once it is waited for at the end.
    token_by: Duration,
    wait: Wait,
}

/// What is awaited.
#[derive(PartialEq, Eq)]
enum Wait {
    /// The end of the body.
    Body,
    /// The token that hashes the body.
    Hashes,
    /// Key records.
    Keys,
    /// So many checks.
    Checks(usize),
}

/// What is to be done next.
pub(super) enum Next {
    /// Nothing: what is awaited has not come.
    Nothing,
    /// To wait: for this work, or for key records that are out already.
    Wait { work: Vec<Work>, wake_at: Duration },
    /// To have signatures checked. Software answers at once; who waits for a token is told so.
    Check {
        work: Vec<Work>,
        wake_at: Option<Duration>,
    },
    /// To take the verdicts.
    Verdicts,
}

/// What became of the signatures.
pub(super) struct Verified {
    /// The verdicts, the topmost signature's first.
    verdicts: Vec<Verdict>,
    /// Why the message was not signed, if it might have been.
    unsigned: Option<String>,
}

impl Verifying {
    /// Starts at the end of the header: also what is to be looked up for `message`.
    pub(super) fn start(
        message: u64,
        header: &HeaderFields,
        unsigned: Option<String>,
        settings: &Settings,
        now: Now,
    ) -> (Self, Vec<Work>) {
        let config = &settings.config;
        let verifier = Verifier::new(header, &settings.verifier, Some(now.unix));
        let names = verifier.to_look_up().iter().enumerate();
        let work = names.map(|(index, name)| Work::LookUp {
            message,
            index,
            name: name.clone(),
            timeout: config.dns.timeout,
        });
        let work: Vec<Work> = work.collect();
        let wants_hashes = settings.duties.digests() && verifier.wants_body();
        let digests = wants_hashes
            .then(|| Digests::new(&verifier.to_digest(), config.signing.tokens.timeout));
        let verifying = Self {
            message,
            digests,
            by_software: None,
            software: settings.duties.fallback() == Fallback::Software,
            checks_on_token: settings.duties.verifies(),
            unanswered: work.len(),
            verifier,
            unsigned,
            keys_by: now.monotonic + config.dns.timeout,
            token_by: Duration::MAX,
            wait: Wait::Body,
        };
        (verifying, work)
    }

    /// Whether the body matters.
    pub(super) fn wants_body(&self) -> bool {
        self.verifier.wants_body()
    }

    pub(super) fn body(&mut self, chunk: &[u8]) {
        if let Some(digests) = &mut self.digests {
            digests.body(chunk);
            if !self.software {
                return;
            }
        }
        self.verifier.body(chunk);
    }

    /// The hashes that a token makes.
    pub(super) fn digests(&self) -> Option<&Digests> {
        self.digests.as_ref()
    }

    /// The same, to go on with.
    pub(super) fn digests_mut(&mut self) -> Option<&mut Digests> {
        self.digests.as_mut()
    }

    /// Ends the body.
    pub(super) fn end_body(&mut self, header: &HeaderFields, now: Now) -> Next {
        if let Some(digests) = &mut self.digests
            && self.verifier.wants_body()
        {
            self.wait = Wait::Hashes;
            self.token_by = now.monotonic + TOKEN_TIME;
            let work = digests.end(self.message);
            if !work.is_empty() {
                return Next::Wait {
                    work,
                    wake_at: progress_by(self.token_by, now),
                };
            }
        }
        self.keys_or_checks(header, now)
    }

    /// The token has hashed the body.
    pub(super) fn hashed(&mut self, header: &HeaderFields, now: Now) -> Next {
        if self.wait != Wait::Hashes {
            return Next::Nothing;
        }
        self.keys_or_checks(header, now)
    }

    /// Takes the answer for the name at `index` of those to look up, if it comes in time.
    pub(super) fn key_answer(
        &mut self,
        index: usize,
        answer: Arc<KeyAnswer>,
        header: &HeaderFields,
        now: Now,
    ) -> Next {
        if matches!(self.wait, Wait::Checks(_)) || now.monotonic > self.keys_by {
            return Next::Nothing;
        }
        self.verifier.answer(index, answer);
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.wait != Wait::Keys || self.wants_keys() {
            return Next::Nothing;
        }
        self.check(header, now)
    }

    pub(super) fn checked(&mut self, check: &Check, outcome: CheckOutcome) -> Next {
        let Wait::Checks(left) = &mut self.wait else {
            return Next::Nothing;
        };
        self.verifier.checked(check, outcome);
        *left = left.saturating_sub(1);
        match left {
            0 => Next::Verdicts,
            _ => Next::Nothing,
        }
    }

    /// Until when what is awaited may come, once the body is over.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.wait {
            Wait::Body => None,
            Wait::Keys => Some(self.keys_by),
            Wait::Hashes | Wait::Checks(_) => Some(self.token_by),
        }
    }

    /// Goes on without what has not come by the deadline.
    pub(super) fn give_up(&mut self, header: &HeaderFields, now: Now) -> Next {
        match self.wait {
            Wait::Body => Next::Nothing,
            Wait::Hashes | Wait::Keys => self.keys_or_checks(header, now),
            Wait::Checks(_) => Next::Verdicts,
        }
    }

    /// What is worth telling besides, once.
    pub(super) fn take_note(&mut self) -> Option<String> {
        let why = self.by_software.take()?;
        Some(format!("body hashed in software (Pkcs11Fallback): {why}"))
    }

    /// The verdicts; a signature that was not checked by now has one that says so.
    pub(super) fn finish(self, header: &HeaderFields) -> Verified {
        Verified {
            verdicts: self.verifier.verdicts(header),
            unsigned: self.unsigned,
        }
    }

    /// The body is hashed, or will not be: waits for keys as long as there is time, or else hands out the checks.
    fn keys_or_checks(&mut self, header: &HeaderFields, now: Now) -> Next {
        if self.wants_keys() && now.monotonic < self.keys_by {
            self.wait = Wait::Keys;
            return Next::Wait {
                work: Vec::new(),
                wake_at: progress_by(self.keys_by, now),
            };
        }
        self.check(header, now)
    }

    /// Whether keys are out that matter.
    fn wants_keys(&self) -> bool {
        self.unanswered > 0 && self.verifier.wants_body()
    }

    /// The keys are there, or their time is over: hands out the checks.
    fn check(&mut self, header: &HeaderFields, now: Now) -> Next {
        let checks = match self.hashes() {
            Some(hashes) => self.verifier.to_check_with(header, &hashes),
            None => self.verifier.to_check(header),
        };
        if checks.is_empty() {
            return Next::Verdicts;
        }
        self.wait = Wait::Checks(checks.len());
        if self.checks_on_token {
            self.token_by = now.monotonic + TOKEN_TIME;
        }
        let message = self.message;
        let work = checks
            .into_iter()
            .map(|check| Work::Check { message, check });
        Next::Check {
            work: work.collect(),
            wake_at: self
                .checks_on_token
                .then(|| progress_by(self.token_by, now)),
        }
    }

    /// The hashes that a token made, or why it did not; none if software makes them.
    fn hashes(&mut self) -> Option<Vec<Result<BodyHash, NoBodyHash>>> {
        let hashes = self.digests.as_ref()?.hashes();
        let failed = hashes.iter().find_map(|hash| hash.as_ref().err());
        match failed {
            Some(NoBodyHash::Unavailable(why) | NoBodyHash::Refused(why)) if self.software => {
                self.by_software = Some(why.clone());
                None
            }
            _ => Some(hashes),
        }
    }
}

impl Verified {
    /// How the message ends, whose results are those of `authserv_id`.
    pub(super) fn conclude(
        self,
        header: &HeaderFields,
        authserv_id: &str,
        settings: &Settings,
    ) -> Conclusion {
        let Self { verdicts, unsigned } = self;
        let config = &settings.config;
        let occasion = judge(&verdicts, config.signing.tokens.on_away);
        let answer = match occasion {
            None => Answer::Accept,
            Some(occasion) => {
                let why = report::first_reason(&verdicts);
                answer_on(&config.actions, occasion, &verdicts, &why)
            }
        };
        let mut inserted = Vec::new();
        let author_fault = report::author_fault(header);
        let author_fault = author_fault.as_deref();
        if !verdicts.is_empty() || config.verifying.always_add_results || author_fault.is_some() {
            let value = report::results_value(authserv_id, &verdicts, author_fault);
            inserted.push((report::RESULTS_NAME, value));
        }
        let unsigned = unsigned.as_deref();
        Conclusion {
            outcome: Outcome::verified(&verdicts, &answer),
            inserted,
            line: report::verified_line(&verdicts, author_fault, unsigned, occasion, &answer),
            weight: match answer {
                Answer::Accept => Weight::Success,
                _ => Weight::Refusal,
            },
            answer,
        }
    }
}
