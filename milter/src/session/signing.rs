//! A message that is signed: the body goes into the signer, then every key answers, then there are fields to insert.
//!
//! Signatures of ours that the message already has are verified meanwhile, if `SkipAlreadySigned` says so.

use super::conclusion::{Conclusion, Weight};
use super::digests::Digests;
use super::earlier::EarlierSignatures;
use super::notes::BodyNotes;
use super::outcome::{Course, Outcome};
use super::report;
use super::{Client, Now, Work};
use crate::config::Fallback;
use crate::policy::{Answer, Occasion, Order, Trust};
use crate::settings::Settings;
use dkim_core::body_digest::{BodyHash, NoBodyHash};
use dkim_core::engine::SigningError;
use dkim_core::message::HeaderFields;
use dkim_core::signature::FIELD_NAME;
use dkim_core::signer::{SignRequest, Signer, SignerError};
use dkim_core::verifier::{Check, CheckOutcome};
use pkcs11_engine::uri::OnAway;
use std::time::Duration;

/// How long a key may take to sign. Software keys answer at once.
const SIGNING_TIME: Duration = Duration::from_secs(20);

pub(super) struct Signing {
    signer: Signer,
    orders: Vec<Order>,
    trust: Trust,
    author: String,
    notes: BodyNotes,
    /// Signatures of ours that the message already has, if they matter.
    earlier: Option<EarlierSignatures>,
    /// Why signatures are missing that are no hindrance.
    missing: Vec<String>,
    /// The hashes that a token makes, if one does, and how many of them are the signer's.
    digests: Option<(Digests, usize)>,
    /// Why software hashed what the token should have.
    by_software: Option<String>,
    /// Whether software may hash where the token does not.
    software: bool,
    /// Until when the token may take for the last of the body, once it is over.
    hashed_by: Option<Duration>,
    /// Once the body is over: what is awaited.
    awaited: Option<Awaited>,
}

/// What is wanted for a message.
pub(super) struct Wanted {
    /// The signatures.
    pub(super) orders: Vec<Order>,
    /// Why we speak for it.
    pub(super) trust: Trust,
    /// The author's address, for people to read.
    pub(super) author: String,
    /// Why some signatures cannot be made, which is no hindrance.
    pub(super) missing: Vec<String>,
}

struct Awaited {
    /// What each key answered.
    answers: Vec<Asked>,
    /// How many checks of earlier signatures are out.
    checks: usize,
    deadline: Duration,
}

/// How far an order is.
enum Asked {
    /// Held back, with the octets to sign, as long as the order before it may be carried out.
    NotYet(Vec<u8>),
    Waiting,
    Answered(Result<Vec<u8>, SigningError>),
}

/// What became of the orders.
pub(super) struct Signed {
    /// The values of the fields to insert, the first order's first.
    pub(super) values: Vec<String>,
    /// The orders they are of.
    pub(super) made: Vec<Order>,
    /// Orders that an earlier signature fulfils.
    pub(super) skipped: Vec<Order>,
    /// Why the first earlier signature that is broken is so.
    pub(super) broken: Option<String>,
    /// Why we speak for the message.
    pub(super) trust: Trust,
    /// The author's address, for people to read.
    pub(super) author: String,
    /// Why signatures are missing that are no hindrance.
    pub(super) missing: Vec<String>,
    /// What is worth telling besides.
    pub(super) notes: Vec<String>,
}

impl Signing {
    /// Starts at the end of the header.
    pub(super) fn start(
        header: &HeaderFields,
        wanted: Wanted,
        settings: &Settings,
        now: Now,
    ) -> Result<Self, SignerError> {
        let Wanted {
            orders,
            trust,
            author,
            missing,
        } = wanted;
        let config = &settings.config.signing;
        let requests = orders.iter().map(|order| SignRequest {
            identity: order.identity.clone(),
            canonicalization: config.canonicalization,
            timestamp: Some(now.unix),
            expiration: config
                .lifetime
                .map(|lifetime| now.unix.saturating_add(lifetime.as_secs())),
            ..SignRequest::with_fields(
                &*order.signer.domain,
                &*order.signer.selector,
                order.signer.key.key_type(),
                settings.fields.clone(),
            )
        });
        let signer = Signer::new(header, requests.collect())?;
        let earlier = config
            .skip_already_signed
            .then(|| EarlierSignatures::find(header, &orders, &settings.verifier, now));
        let earlier = earlier.flatten();
        let digests = settings.duties.digests().then(|| {
            let mut wanted = signer.to_digest();
            let of_signer = wanted.len();
            if let Some(earlier) = &earlier {
                wanted.extend(earlier.to_digest());
            }
            (
                Digests::new(&wanted, settings.config.signing.tokens.timeout),
                of_signer,
            )
        });
        Ok(Self {
            digests,
            software: settings.duties.fallback() == Fallback::Software,
            hashed_by: None,
            by_software: None,
            signer,
            orders,
            trust,
            author,
            notes: BodyNotes::default(),
            earlier,
            missing,
            awaited: None,
        })
    }

    pub(super) fn body(&mut self, chunk: &[u8]) {
        self.notes.update(chunk);
        if let Some((digests, _)) = &mut self.digests {
            digests.body(chunk);
            if !self.software {
                return;
            }
        }
        self.signer.body(chunk);
        if let Some(earlier) = &mut self.earlier {
            earlier.body(chunk);
        }
    }

    /// The hashes that a token makes.
    pub(super) fn digests(&self) -> Option<&Digests> {
        self.digests.as_ref().map(|(digests, _)| digests)
    }

    /// The same, to go on with.
    pub(super) fn digests_mut(&mut self) -> Option<&mut Digests> {
        self.digests.as_mut().map(|(digests, _)| digests)
    }

    /// Ends the body: what a token has to do for `message` first.
    pub(super) fn end_digests(&mut self, message: u64, now: Now) -> Option<Vec<Work>> {
        let (digests, _) = self.digests.as_mut()?;
        self.hashed_by = Some(now.monotonic + SIGNING_TIME);
        Some(digests.end(message))
    }

    /// Whether the last of the body is with a token.
    pub(super) fn is_hashing(&self) -> bool {
        self.hashed_by.is_some() && self.awaited.is_none()
    }

    /// Ends the body: what keys and the engine have to do for `message`.
    ///
    /// # Errors
    /// Why the body is not hashed by the token that should.
    pub(super) fn end_body(
        &mut self,
        message: u64,
        header: &HeaderFields,
        now: Now,
    ) -> Result<Vec<Work>, String> {
        let (to_sign, checks) = match self.hashes()? {
            Some((hashes, of_earlier)) => {
                let to_sign = self.signer.to_sign_with(header, &hashes);
                let earlier = self.earlier.as_mut();
                let checks = earlier.map(|earlier| earlier.end_body_with(header, &of_earlier));
                (to_sign, checks)
            }
            None => {
                let to_sign = self.signer.to_sign(header);
                let earlier = self.earlier.as_mut();
                (to_sign, earlier.map(|earlier| earlier.end_body(header)))
            }
        };
        let checks = checks.unwrap_or_default();
        let number_of_checks = checks.len();
        let checks = checks
            .into_iter()
            .map(|check| Work::Check { message, check });
        let mut work: Vec<Work> = checks.collect();
        let mut answers: Vec<Asked> = self.orders.iter().map(|_| Asked::Waiting).collect();
        for piece in to_sign {
            let order = &self.orders[piece.request];
            if order.instead_of.is_some() {
                answers[piece.request] = Asked::NotYet(piece.octets);
            } else {
                work.push(sign(message, piece.request, order, piece.octets));
            }
        }
        self.awaited = Some(Awaited {
            answers,
            checks: number_of_checks,
            deadline: now.monotonic + SIGNING_TIME,
        });
        Ok(work)
    }

    /// The hashes that a token made, the signer's and those of earlier signatures; none if software makes them.
    fn hashes(&mut self) -> Result<Option<OfToken>, String> {
        let Some((digests, of_signer)) = &self.digests else {
            return Ok(None);
        };
        let mut hashes = digests.hashes();
        let of_earlier = hashes.split_off(*of_signer);
        match hashes.into_iter().collect() {
            Ok(hashes) => Ok(Some((hashes, of_earlier))),
            Err(NoBodyHash::Unavailable(why) | NoBodyHash::Refused(why)) if self.software => {
                self.by_software = Some(why);
                Ok(None)
            }
            Err(NoBodyHash::Unavailable(why) | NoBodyHash::Refused(why)) => Err(why),
        }
    }

    /// Takes the answer of a key; what is to be asked of another one in its place.
    pub(super) fn signed(
        &mut self,
        message: u64,
        index: usize,
        result: Result<Vec<u8>, SigningError>,
    ) -> Option<Work> {
        let awaited = self.awaited.as_mut()?;
        let answer = awaited.answers.get_mut(index)?;
        if !matches!(answer, Asked::Waiting) {
            return None;
        }
        let has_failed = result.is_err();
        *answer = Asked::Answered(result);
        let is_next = |order: &Order| order.instead_of == Some(index);
        let next = self.orders.iter().position(is_next)?;
        let held = awaited.answers.get_mut(next)?;
        match held {
            Asked::NotYet(octets) if has_failed => {
                let octets = std::mem::take(octets);
                *held = Asked::Waiting;
                Some(sign(message, next, &self.orders[next], octets))
            }
            _ => None,
        }
    }

    pub(super) fn checked(&mut self, check: &Check, outcome: CheckOutcome) {
        if let (Some(awaited), Some(earlier)) = (&mut self.awaited, &mut self.earlier) {
            earlier.checked(check, outcome);
            awaited.checks = awaited.checks.saturating_sub(1);
        }
    }

    /// Until when keys may answer, once they are asked.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let awaited = self.awaited.as_ref().map(|awaited| awaited.deadline);
        awaited.or(self.hashed_by)
    }

    /// Whether all have answered.
    pub(super) fn is_complete(&self) -> bool {
        let awaited = self.awaited.as_ref();
        awaited.is_some_and(|awaited| {
            let is_waiting = |asked: &Asked| matches!(asked, Asked::Waiting);
            awaited.checks == 0 && !awaited.answers.iter().any(is_waiting)
        })
    }

    /// Makes fields of the answers; who has not answered has failed.
    ///
    /// # Errors
    /// What cannot be signed and why, and on which occasion that is.
    pub(super) fn finish(self, header: &HeaderFields) -> Result<Signed, (Occasion, String)> {
        let mut signed = Signed {
            values: Vec::new(),
            made: Vec::new(),
            skipped: Vec::new(),
            broken: None,
            trust: self.trust,
            author: self.author,
            missing: self.missing,
            notes: self.notes.warnings(),
        };
        signed.notes.extend(
            self.by_software
                .map(|why| format!("body hashed in software (Pkcs11Fallback): {why}")),
        );
        // What is to be done if no other key signs.
        let mut refusal = None;
        let earlier = self.earlier.map(|earlier| earlier.verdicts(header));
        let earlier = earlier.unwrap_or_default();
        let answers = self.awaited.map(|awaited| awaited.answers);
        let answers = answers.unwrap_or_default();
        for ((index, order), answer) in self.orders.into_iter().enumerate().zip(answers) {
            if matches!(answer, Asked::NotYet(_)) {
                continue;
            }
            let words = report::signer_words(&order);
            let own = earlier.iter().filter(|earlier| earlier.is_of(&order));
            let (good, broken): (Vec<_>, Vec<_>) = own.partition(|earlier| earlier.is_good());
            if !good.is_empty() {
                signed.skipped.push(order);
                continue;
            }
            if let Some(broken) = broken.first() {
                signed.broken.get_or_insert_with(|| broken.reason());
            }
            let answer = match answer {
                Asked::Answered(answer) => answer,
                Asked::Waiting => Err(SigningError("key did not answer in time".into())),
                Asked::NotYet(_) => continue,
            };
            match answer {
                Ok(signature) => {
                    signed
                        .values
                        .extend(self.signer.field_value(index, &signature));
                    signed.made.push(order);
                }
                Err(error) => {
                    let why = format!("cannot sign {words}: {error}");
                    match order.signer.on_away {
                        None => return Err((Occasion::InternalError, why)),
                        Some(on_away @ (OnAway::Tempfail | OnAway::Quarantine)) => {
                            return Err((Occasion::TokenAway(on_away), why));
                        }
                        Some(on_away @ (OnAway::Next | OnAway::Accept)) => {
                            signed.missing.push(why.clone());
                            refusal.get_or_insert((Occasion::TokenAway(on_away), why));
                        }
                    }
                }
            }
        }
        match refusal {
            Some(refusal) if signed.made.is_empty() && signed.skipped.is_empty() => Err(refusal),
            _ => Ok(signed),
        }
    }
}

impl Signed {
    /// How the message ends.
    pub(super) fn conclude(self, sender: &[u8], client: &Client) -> Conclusion {
        let line = report::signed_line(&self, sender, client);
        let weight = if self.broken.is_some() || !self.missing.is_empty() {
            Weight::Warning
        } else {
            Weight::Success
        };
        let course = if self.made.is_empty() && self.skipped.is_empty() {
            Course::Failed
        } else {
            Course::Signed
        };
        // The last goes in first: each goes on top of those before it.
        let values = self.values.into_iter().rev();
        Conclusion {
            answer: Answer::Accept,
            outcome: Outcome::new(course, &Answer::Accept),
            inserted: values
                .map(|value| (FIELD_NAME, value.into_bytes()))
                .collect(),
            line,
            weight,
        }
    }
}

/// The hashes of the signer, and those of earlier signatures.
type OfToken = (Vec<BodyHash>, Vec<Result<BodyHash, NoBodyHash>>);

fn sign(message: u64, index: usize, order: &Order, octets: Vec<u8>) -> Work {
    Work::Sign {
        message,
        index,
        key: order.signer.key.clone(),
        octets,
        timeout: SIGNING_TIME,
    }
}
