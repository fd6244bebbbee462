//! A message that is signed: the body goes into the signer, then every key answers, then there are fields to insert.
//!
//! Signatures of ours that the message already has are verified meanwhile, if `SkipAlreadySigned` says so.

use super::earlier::EarlierSignatures;
use super::notes::BodyNotes;
use super::report;
use super::{Now, Work};
use crate::policy::{Order, Trust};
use crate::settings::Settings;
use dkim_core::engine::SigningError;
use dkim_core::message::HeaderFields;
use dkim_core::signer::{SignRequest, Signer, SignerError};
use dkim_core::verifier::{Check, CheckOutcome};
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
    /// Once the body is over: what is awaited.
    awaited: Option<Awaited>,
}

struct Awaited {
    /// What each key answered.
    answers: Vec<Option<Result<Vec<u8>, SigningError>>>,
    /// How many checks of earlier signatures are out.
    checks: usize,
    deadline: Duration,
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
    /// What is worth telling besides.
    pub(super) notes: Vec<String>,
}

impl Signing {
    /// Starts at the end of the header.
    pub(super) fn start(
        header: &HeaderFields,
        orders: Vec<Order>,
        trust: Trust,
        author: String,
        settings: &Settings,
        now: Now,
    ) -> Result<Self, SignerError> {
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
        Ok(Self {
            signer,
            orders,
            trust,
            author,
            notes: BodyNotes::default(),
            earlier: earlier.flatten(),
            awaited: None,
        })
    }

    pub(super) fn body(&mut self, chunk: &[u8]) {
        self.signer.body(chunk);
        self.notes.update(chunk);
        if let Some(earlier) = &mut self.earlier {
            earlier.body(chunk);
        }
    }

    /// Ends the body: what keys and the engine have to do for `message`.
    pub(super) fn end_body(&mut self, message: u64, header: &HeaderFields, now: Now) -> Vec<Work> {
        let to_sign = self.signer.to_sign(header);
        let checks = match &mut self.earlier {
            Some(earlier) => earlier.end_body(header),
            None => Vec::new(),
        };
        self.awaited = Some(Awaited {
            answers: to_sign.iter().map(|_| None).collect(),
            checks: checks.len(),
            deadline: now.monotonic + SIGNING_TIME,
        });
        let checks = checks
            .into_iter()
            .map(|check| Work::Check { message, check });
        let signatures = to_sign.into_iter().map(|piece| Work::Sign {
            message,
            index: piece.request,
            key: self.orders[piece.request].signer.key.clone(),
            octets: piece.octets,
            timeout: SIGNING_TIME,
        });
        checks.chain(signatures).collect()
    }

    pub(super) fn signed(&mut self, index: usize, result: Result<Vec<u8>, SigningError>) {
        if let Some(awaited) = &mut self.awaited
            && let Some(answer) = awaited.answers.get_mut(index)
        {
            answer.get_or_insert(result);
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
        self.awaited.as_ref().map(|awaited| awaited.deadline)
    }

    /// Whether all have answered.
    pub(super) fn is_complete(&self) -> bool {
        let awaited = self.awaited.as_ref();
        awaited.is_some_and(|awaited| {
            awaited.checks == 0 && awaited.answers.iter().all(Option::is_some)
        })
    }

    /// Makes fields of the answers; who has not answered has failed.
    ///
    /// # Errors
    /// What cannot be signed, and why.
    pub(super) fn finish(self, header: &HeaderFields) -> Result<Signed, String> {
        let mut signed = Signed {
            values: Vec::new(),
            made: Vec::new(),
            skipped: Vec::new(),
            broken: None,
            trust: self.trust,
            author: self.author,
            notes: self.notes.warnings(),
        };
        let earlier = self.earlier.map(|earlier| earlier.verdicts(header));
        let earlier = earlier.unwrap_or_default();
        let answers = self.awaited.map(|awaited| awaited.answers);
        let answers = answers.unwrap_or_default();
        for ((index, order), answer) in self.orders.into_iter().enumerate().zip(answers) {
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
            let signature = answer
                .unwrap_or_else(|| Err(SigningError("key did not answer in time".into())))
                .map_err(|error| format!("cannot sign {words}: {error}"))?;
            signed
                .values
                .extend(self.signer.field_value(index, &signature));
            signed.made.push(order);
        }
        Ok(signed)
    }
}
