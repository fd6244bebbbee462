//! One message, from MAIL to the answer at its end.
//!
//! At the end of the header policy decides once; then the body goes into the hashes it is wanted for, and at its end
//! the message waits for keys, checks or signatures, within one deadline. Whatever fails, there is an answer.

use super::digests::Digests;
use super::outcome::{Course, Outcome};
use super::report;
use super::signing::{Signing, Wanted};
use super::step::{Step, Told, temp_fail};
use super::{Now, Surroundings, Work};
use crate::config::Fallback;
use crate::policy::{Answer, Decision, Facts, Occasion, answer_on, decide, judge};
use crate::protocol::negotiation::action;
use crate::protocol::reply_code::ReplyCode;
use crate::settings::Settings;
use dkim_core::body_digest::NoBodyHash;
use dkim_core::engine::SigningError;
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::signature::FIELD_NAME;
use dkim_core::verifier::{Check, CheckOutcome, Verdict, Verifier};
use std::sync::Arc;
use std::time::Duration;

/// An MTA that waits is told at least so often that there is more to come; Sendmail gives up after 10 s.
const PROGRESS_EVERY: Duration = Duration::from_secs(4);

/// How long a token may take to hash the last of a body, or to check a message's signatures, whatever its own time-out is.
const TOKEN_TIME: Duration = Duration::from_secs(20);

/// One message.
pub(super) struct Message {
    id: u64,
    settings: Arc<Settings>,
    sender: Vec<u8>,
    /// A recipient that `DontSignMailTo` names.
    exempt_recipient: Option<String>,
    header: HeaderFields,
    /// Why the message cannot be judged.
    spoiled: Option<(Occasion, String)>,
    authserv_id: String,
    /// The Authentication-Results fields that claim to be ours, counted from 1 at the top.
    forged: Vec<u32>,
    phase: Phase,
}

enum Phase {
    Header,
    Signing(Box<Signing>),
    Verifying(Box<Verifying>),
    /// Nothing but forged results is touched.
    Alone {
        reason: String,
        weight: Weight,
        course: Course,
    },
    Over,
}

/// What the line about a message weighs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// It was accepted, which `SyslogSuccess` may keep out of the log.
    Success,
    /// It was not accepted as it is.
    Refusal,
    /// Somebody here should look into it.
    Warning,
}

struct Verifying {
    verifier: Verifier,
    /// The hashes that a token makes, if one does.
    digests: Option<Digests>,
    /// Why the message was not signed, if it might have been.
    unsigned: Option<String>,
    unanswered: usize,
    /// Until when key records may come.
    deadline: Duration,
    /// Until when a token may take, once it is waited for at the end.
    token_deadline: Duration,
    wait: Wait,
}

#[derive(PartialEq, Eq)]
enum Wait {
    /// For the end of the body.
    Body,
    /// For the token that hashes the body.
    Hashes,
    /// For key records.
    Keys,
    /// For so many checks.
    Checks(usize),
}

impl Message {
    pub(super) fn new(
        id: u64,
        settings: Arc<Settings>,
        sender: &[u8],
        header: HeaderFields,
    ) -> Self {
        Self {
            id,
            settings,
            sender: sender.to_vec(),
            exempt_recipient: None,
            header,
            spoiled: None,
            authserv_id: String::new(),
            forged: Vec::new(),
            phase: Phase::Header,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn into_header(self) -> HeaderFields {
        self.header
    }

    /// Whether the end has come and answers have not.
    pub(super) fn is_waiting(&self) -> bool {
        match &self.phase {
            Phase::Signing(signing) => {
                signing.deadline().is_some()
                    || signing
                        .digests()
                        .is_some_and(|digests| digests.is_waiting())
            }
            Phase::Verifying(verifying) => {
                verifying.wait != Wait::Body
                    || verifying.digests.as_ref().is_some_and(Digests::is_waiting)
            }
            Phase::Header | Phase::Alone { .. } | Phase::Over => false,
        }
    }

    /// Whether the MTA has its answer.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether the body matters.
    pub(super) fn wants_body(&self) -> bool {
        match &self.phase {
            Phase::Signing(_) => true,
            Phase::Verifying(verifying) => verifying.verifier.wants_body(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => false,
        }
    }

    pub(super) fn recipient(&mut self, address: &[u8]) {
        if self.exempt_recipient.is_none()
            && self
                .settings
                .config
                .selection
                .dont_sign_mail_to
                .contains(address)
        {
            self.exempt_recipient = Some(String::from_utf8_lossy(address).into_owned());
        }
    }

    /// Takes a field; `space` stands between the colon and `value`.
    pub(super) fn header_field(&mut self, name: &[u8], space: &[u8], value: &[u8]) {
        if self.spoiled.is_some() {
            return;
        }
        let limit = self.settings.config.selection.maximum_header_octets;
        if self.header.octets() + name.len() + value.len() + 4 > limit {
            let why = format!("header is larger than {limit} octets (MaximumHeaders)");
            self.spoiled = Some((Occasion::Security, why));
        } else {
            self.header.push(name, space, value);
        }
    }

    /// The MTA said something that cannot be read: the message cannot be judged.
    pub(super) fn spoil(&mut self, why: String) {
        self.spoiled.get_or_insert((Occasion::InternalError, why));
    }

    pub(super) fn end_of_header(&mut self, around: Surroundings<'_>, now: Now) -> Step {
        if !matches!(self.phase, Phase::Header) {
            return Step::tell(Told::Continue);
        }
        if let Some((occasion, why)) = self.spoiled.take() {
            return self.refuse_or_leave(occasion, &why, around);
        }
        let settings = self.settings.clone();
        self.authserv_id = settings.authserv_id(around.macros.get(b"j"));
        if around.negotiated.may(action::CHGHDRS) {
            let others = &settings.config.verifying.remove_results_of;
            self.forged = report::forged_results(&self.header, &self.authserv_id, others);
        }
        let decision = decide(
            &settings,
            &Facts {
                client_name: &around.client.name,
                client_address: around.client.address,
                macros: &|name| around.macros.get(name),
                exempt_recipient: self.exempt_recipient.as_deref(),
                header: &self.header,
            },
        );
        match decision {
            Decision::Sign {
                orders,
                trust,
                author,
                missing,
            } => self.start_signing(
                Wanted {
                    orders,
                    trust,
                    author,
                    missing,
                },
                around,
                now,
            ),
            Decision::Verify { unsigned } => self.start_verifying(unsigned, now),
            Decision::LeaveAlone { reason } => {
                self.leave_alone(reason, Weight::Success, Course::LeftAlone, around)
            }
            Decision::CannotSign { reason, on_away } => {
                let occasion = on_away.map_or(Occasion::InternalError, Occasion::TokenAway);
                self.refuse_or_leave(occasion, &reason, around)
            }
        }
    }

    pub(super) fn body(&mut self, chunk: &[u8]) {
        match &mut self.phase {
            Phase::Signing(signing) => signing.body(chunk),
            Phase::Verifying(verifying) => {
                if let Some(digests) = &mut verifying.digests {
                    digests.body(chunk);
                    if self.settings.duties.fallback() == Fallback::None {
                        return;
                    }
                }
                verifying.verifier.body(chunk);
            }
            Phase::Header | Phase::Alone { .. } | Phase::Over => (),
        }
    }

    /// What a token is to do with the body that has come.
    pub(super) fn body_work(&mut self) -> Vec<Work> {
        let digests = match &mut self.phase {
            Phase::Signing(signing) => signing.digests_mut(),
            Phase::Verifying(verifying) => verifying.digests.as_mut(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => None,
        };
        digests.map_or_else(Vec::new, |digests| digests.steps(self.id))
    }

    /// Takes what came of a step of a hash.
    pub(super) fn digested(
        &mut self,
        place: usize,
        result: Result<Vec<u8>, String>,
        around: Surroundings<'_>,
        now: Now,
    ) -> Step {
        let digests = match &mut self.phase {
            Phase::Signing(signing) => signing.digests_mut(),
            Phase::Verifying(verifying) => verifying.digests.as_mut(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => None,
        };
        let Some(digests) = digests else {
            return Step::default();
        };
        digests.digested(place, result);
        if digests.has_ended() && !digests.is_waiting() {
            return self.hashed(around, now);
        }
        Step::default()
    }

    /// The token has hashed the body, or its time is over.
    fn hashed(&mut self, around: Surroundings<'_>, now: Now) -> Step {
        match &mut self.phase {
            Phase::Signing(signing) if signing.is_hashing() => {
                match signing.end_body(self.id, &self.header, now) {
                    Ok(work) => Step {
                        work,
                        wake_at: Some(now.monotonic + PROGRESS_EVERY),
                        ..Step::default()
                    },
                    Err(why) => {
                        let on_away = self.settings.config.signing.tokens.on_away;
                        let why = format!("cannot sign: body cannot be hashed now: {why}");
                        self.refuse(Occasion::TokenAway(on_away), &why, &[], around)
                    }
                }
            }
            Phase::Verifying(verifying) if verifying.wait == Wait::Hashes => {
                let wants_keys = verifying.unanswered > 0 && verifying.verifier.wants_body();
                if wants_keys && now.monotonic < verifying.deadline {
                    verifying.wait = Wait::Keys;
                    return Step {
                        wake_at: Some(verifying.deadline.min(now.monotonic + PROGRESS_EVERY)),
                        ..Step::default()
                    };
                }
                self.check(around, now)
            }
            _ => Step::default(),
        }
    }

    pub(super) fn end_of_body(&mut self, around: Surroundings<'_>, now: Now) -> Step {
        if let Some((occasion, why)) = self.spoiled.take() {
            return self.refuse(occasion, &why, &[], around);
        }
        match &mut self.phase {
            Phase::Header => self.refuse(
                Occasion::InternalError,
                "message without an end of header",
                &[],
                around,
            ),
            Phase::Signing(signing) => {
                let work = match signing.end_digests(self.id, now) {
                    Some(work) => work,
                    // Without a token there is nothing that could fail.
                    None => signing
                        .end_body(self.id, &self.header, now)
                        .unwrap_or_default(),
                };
                Step {
                    work,
                    wake_at: Some(now.monotonic + PROGRESS_EVERY),
                    ..Step::default()
                }
            }
            Phase::Verifying(verifying)
                if verifying.digests.is_some() && verifying.verifier.wants_body() =>
            {
                verifying.wait = Wait::Hashes;
                verifying.token_deadline = now.monotonic + TOKEN_TIME;
                let work = match &mut verifying.digests {
                    Some(digests) => digests.end(self.id),
                    None => Vec::new(),
                };
                if work.is_empty() {
                    return self.hashed(around, now);
                }
                Step {
                    work,
                    wake_at: Some(now.monotonic + PROGRESS_EVERY),
                    ..Step::default()
                }
            }
            Phase::Verifying(verifying)
                if verifying.unanswered > 0 && verifying.verifier.wants_body() =>
            {
                verifying.wait = Wait::Keys;
                Step {
                    wake_at: Some(verifying.deadline.min(now.monotonic + PROGRESS_EVERY)),
                    ..Step::default()
                }
            }
            Phase::Verifying(_) => self.check(around, now),
            Phase::Alone {
                reason,
                weight,
                course,
            } => {
                let (line, weight) = (format!("left alone: {reason}"), *weight);
                let outcome = Outcome::new(*course, &Answer::Accept);
                self.finish(Answer::Accept, outcome, Vec::new(), &line, weight, around)
            }
            Phase::Over => Step::tell(Told::Continue),
        }
    }

    pub(super) fn key_answer(
        &mut self,
        index: usize,
        answer: Arc<KeyAnswer>,
        around: Surroundings<'_>,
        now: Now,
    ) -> Step {
        let Phase::Verifying(verifying) = &mut self.phase else {
            return Step::default();
        };
        if matches!(verifying.wait, Wait::Checks(_)) || now.monotonic > verifying.deadline {
            return Step::default();
        }
        verifying.verifier.answer(index, answer);
        verifying.unanswered = verifying.unanswered.saturating_sub(1);
        let is_complete = verifying.unanswered == 0 || !verifying.verifier.wants_body();
        if is_complete && verifying.wait == Wait::Keys {
            self.check(around, now)
        } else {
            Step::default()
        }
    }

    pub(super) fn signed(
        &mut self,
        index: usize,
        result: Result<Vec<u8>, SigningError>,
        around: Surroundings<'_>,
    ) -> Step {
        if let Phase::Signing(signing) = &mut self.phase {
            let further = signing.signed(self.id, index, result);
            if signing.is_complete() {
                return self.finish_signing(around);
            }
            return Step {
                work: further.into_iter().collect(),
                ..Step::default()
            };
        }
        Step::default()
    }

    pub(super) fn checked(
        &mut self,
        check: &Check,
        outcome: CheckOutcome,
        around: Surroundings<'_>,
    ) -> Step {
        match &mut self.phase {
            Phase::Verifying(verifying) => {
                let Wait::Checks(left) = &mut verifying.wait else {
                    return Step::default();
                };
                verifying.verifier.checked(check, outcome);
                *left = left.saturating_sub(1);
                if *left == 0 {
                    return self.finish_verifying(around);
                }
            }
            Phase::Signing(signing) => {
                signing.checked(check, outcome);
                if signing.is_complete() {
                    return self.finish_signing(around);
                }
            }
            Phase::Header | Phase::Alone { .. } | Phase::Over => (),
        }
        Step::default()
    }

    pub(super) fn wake(&mut self, around: Surroundings<'_>, now: Now) -> Step {
        let deadline = match &self.phase {
            Phase::Verifying(verifying) => match verifying.wait {
                Wait::Body => None,
                Wait::Keys => Some(verifying.deadline),
                Wait::Hashes | Wait::Checks(_) => Some(verifying.token_deadline),
            },
            Phase::Signing(signing) => signing.deadline(),
            _ => None,
        };
        let Some(deadline) = deadline else {
            return Step::default();
        };
        if now.monotonic >= deadline {
            return match &self.phase {
                Phase::Signing(signing) if signing.is_hashing() => self.hashed(around, now),
                Phase::Verifying(verifying) if verifying.wait == Wait::Hashes => {
                    self.hashed(around, now)
                }
                Phase::Signing(_) => self.finish_signing(around),
                Phase::Verifying(verifying) if matches!(verifying.wait, Wait::Checks(_)) => {
                    self.finish_verifying(around)
                }
                _ => self.check(around, now),
            };
        }
        let mut step = Step {
            wake_at: Some(deadline.min(now.monotonic + PROGRESS_EVERY)),
            ..Step::default()
        };
        if around.negotiated.progress {
            step.answers.push(Told::Progress);
        }
        step
    }

    fn start_signing(&mut self, wanted: Wanted, around: Surroundings<'_>, now: Now) -> Step {
        if !around.negotiated.may(action::ADDHDRS) {
            let why = "the MTA does not let a milter add header fields";
            return self.refuse_or_leave(Occasion::InternalError, why, around);
        }
        match Signing::start(&self.header, wanted, &self.settings, now) {
            Ok(signing) => {
                self.phase = Phase::Signing(Box::new(signing));
                Step::tell(Told::Continue)
            }
            Err(error) => {
                self.refuse_or_leave(Occasion::SignatureError, &error.to_string(), around)
            }
        }
    }

    fn start_verifying(&mut self, unsigned: Option<String>, now: Now) -> Step {
        let config = &self.settings.config;
        let verifier = Verifier::new(&self.header, &self.settings.verifier, Some(now.unix));
        let names = verifier.to_look_up().iter().enumerate();
        let work = names.map(|(index, name)| Work::LookUp {
            message: self.id,
            index,
            name: name.clone(),
            timeout: config.dns.timeout,
        });
        let work: Vec<Work> = work.collect();
        let wants_hashes = self.settings.duties.digests() && verifier.wants_body();
        let digests = wants_hashes.then(|| {
            let timeout = config.signing.tokens.timeout;
            Digests::new(&verifier.to_digest(), timeout)
        });
        self.phase = Phase::Verifying(Box::new(Verifying {
            digests,
            token_deadline: Duration::MAX,
            unanswered: work.len(),
            verifier,
            unsigned,
            deadline: now.monotonic + config.dns.timeout,
            wait: Wait::Body,
        }));
        Step {
            answers: vec![Told::Continue],
            work,
            ..Step::default()
        }
    }

    fn leave_alone(
        &mut self,
        reason: String,
        weight: Weight,
        course: Course,
        around: Surroundings<'_>,
    ) -> Step {
        if self.forged.is_empty() {
            let line = format!("left alone: {reason}");
            self.log(&line, weight, around);
            self.phase = Phase::Over;
            return Step {
                outcome: Some(Outcome::new(course, &Answer::Accept)),
                ..Step::tell(Told::Accept)
            };
        }
        self.phase = Phase::Alone {
            reason,
            weight,
            course,
        };
        Step::tell(Told::Continue)
    }

    /// The keys are there, or their time is over: hands out the checks.
    fn check(&mut self, around: Surroundings<'_>, now: Now) -> Step {
        let Phase::Verifying(verifying) = &mut self.phase else {
            return Step::default();
        };
        let hashes = verifying.digests.as_ref().map(Digests::hashes);
        let is_software = self.settings.duties.fallback() == Fallback::Software;
        let failed = hashes
            .iter()
            .flatten()
            .find_map(|hash| hash.as_ref().err().cloned());
        let mut note = None;
        let checks = match (hashes, failed) {
            (Some(_), Some(NoBodyHash::Unavailable(why) | NoBodyHash::Refused(why)))
                if is_software =>
            {
                note = Some(format!("body hashed in software (Pkcs11Fallback): {why}"));
                verifying.verifier.to_check(&self.header)
            }
            (Some(hashes), _) => verifying.verifier.to_check_with(&self.header, &hashes),
            (None, _) => verifying.verifier.to_check(&self.header),
        };
        if let Some(note) = note {
            self.note(&note, around);
        }
        let Phase::Verifying(verifying) = &mut self.phase else {
            return Step::default();
        };
        if checks.is_empty() {
            return self.finish_verifying(around);
        }
        verifying.wait = Wait::Checks(checks.len());
        // Software answers at once; who waits for a token is told so.
        let takes_time = self.settings.duties.verifies();
        if takes_time {
            verifying.token_deadline = now.monotonic + TOKEN_TIME;
        }
        let message = self.id;
        Step {
            work: checks
                .into_iter()
                .map(|check| Work::Check { message, check })
                .collect(),
            wake_at: takes_time.then(|| now.monotonic + PROGRESS_EVERY),
            ..Step::default()
        }
    }

    fn finish_signing(&mut self, around: Surroundings<'_>) -> Step {
        let Phase::Signing(signing) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Step::default();
        };
        let signed = match signing.finish(&self.header) {
            Ok(signed) => signed,
            Err((occasion, why)) => return self.refuse(occasion, &why, &[], around),
        };
        let line = report::signed_line(&signed, &self.sender, around.client);
        for note in &signed.notes {
            self.note(note, around);
        }
        for name in self.settings.fields.left_out(&self.header) {
            self.note(
                &format!("{name} has a line over 998 octets and was not signed"),
                around,
            );
        }
        let weight = if signed.broken.is_some() || !signed.missing.is_empty() {
            Weight::Warning
        } else {
            Weight::Success
        };
        // The last goes in first: each goes on top of those before it.
        let values = signed.values.into_iter().rev();
        let inserted = values
            .map(|value| (FIELD_NAME, value.into_bytes()))
            .collect();
        let course = if signed.made.is_empty() && signed.skipped.is_empty() {
            Course::Failed
        } else {
            Course::Signed
        };
        let outcome = Outcome::new(course, &Answer::Accept);
        self.finish(Answer::Accept, outcome, inserted, &line, weight, around)
    }

    fn finish_verifying(&mut self, around: Surroundings<'_>) -> Step {
        let Phase::Verifying(verifying) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Step::default();
        };
        let verdicts = verifying.verifier.verdicts(&self.header);
        let settings = self.settings.clone();
        let occasion = judge(&verdicts, settings.config.signing.tokens.on_away);
        let answer = match occasion {
            None => Answer::Accept,
            Some(occasion) => answer_on(
                &settings.config.actions,
                occasion,
                &verdicts,
                &report::first_reason(&verdicts),
            ),
        };
        let mut inserted = Vec::new();
        let author_fault = report::author_fault(&self.header);
        if !verdicts.is_empty()
            || settings.config.verifying.always_add_results
            || author_fault.is_some()
        {
            let value =
                report::results_value(&self.authserv_id, &verdicts, author_fault.as_deref());
            inserted.push((report::RESULTS_NAME, value));
        }
        let line = report::verified_line(
            &verdicts,
            author_fault.as_deref(),
            verifying.unsigned.as_deref(),
            occasion,
            &answer,
        );
        let weight = match answer {
            Answer::Accept => Weight::Success,
            _ => Weight::Refusal,
        };
        let outcome = Outcome::verified(&verdicts, &answer);
        self.finish(answer, outcome, inserted, &line, weight, around)
    }

    /// An occasion at the end of the header: refuses at once, or leaves the message alone if that is what is configured.
    fn refuse_or_leave(&mut self, occasion: Occasion, why: &str, around: Surroundings<'_>) -> Step {
        match answer_on(&self.settings.config.actions, occasion, &[], why) {
            Answer::Accept => {
                let reason = format!("{why} ({})", occasion.option());
                self.leave_alone(reason, Weight::Warning, Course::Failed, around)
            }
            Answer::Quarantine(_) => {
                self.spoiled = Some((occasion, why.to_owned()));
                self.phase = Phase::Alone {
                    reason: why.to_owned(),
                    weight: Weight::Refusal,
                    course: Course::Failed,
                };
                Step::tell(Told::Continue)
            }
            Answer::Discard | Answer::Reject(..) | Answer::TempFail(..) => {
                self.refuse(occasion, why, &[], around)
            }
        }
    }

    /// An occasion that ends the message.
    fn refuse(
        &mut self,
        occasion: Occasion,
        why: &str,
        verdicts: &[Verdict],
        around: Surroundings<'_>,
    ) -> Step {
        let answer = answer_on(&self.settings.config.actions, occasion, verdicts, why);
        let line = format!(
            "{}: {why} ({})",
            report::outcome(&answer),
            occasion.option()
        );
        // Going on as if nothing were wrong is what is configured, not what is well.
        let weight = match answer {
            Answer::Accept => Weight::Warning,
            _ => Weight::Refusal,
        };
        let outcome = Outcome::new(Course::Failed, &answer);
        self.finish(answer, outcome, Vec::new(), &line, weight, around)
    }

    fn finish(
        &mut self,
        answer: Answer,
        outcome: Outcome,
        inserted: Vec<(&'static str, Vec<u8>)>,
        line: &str,
        weight: Weight,
        around: Surroundings<'_>,
    ) -> Step {
        self.phase = Phase::Over;
        self.log(line, weight, around);
        let mut answers = Vec::new();
        if matches!(answer, Answer::Accept | Answer::Quarantine(_)) {
            // From the bottom up: Postfix numbers anew after each deletion, Sendmail does not.
            let forged = self.forged.iter().rev();
            answers.extend(forged.map(|&index| Told::Delete {
                index,
                name: report::RESULTS_NAME,
            }));
            if around.negotiated.may(action::ADDHDRS) {
                let fields = inserted.into_iter();
                answers.extend(fields.map(|(name, value)| Told::Insert { name, value }));
            }
        }
        let last = match answer {
            Answer::Accept => Told::Continue,
            Answer::Discard => Told::Discard,
            Answer::Quarantine(reason) if around.negotiated.may(action::QUARANTINE) => {
                answers.push(Told::Quarantine(reason));
                Told::Continue
            }
            Answer::Quarantine(_) => temp_fail("4.7.0", "message would have been quarantined"),
            Answer::Reject(enhanced, text) => {
                ReplyCode::new(550, enhanced, text).map_or(Told::Reject, Told::Code)
            }
            Answer::TempFail(enhanced, text) => temp_fail(enhanced, text),
        };
        answers.push(last);
        Step {
            answers,
            outcome: Some(outcome),
            ..Step::default()
        }
    }

    /// The one line about a message.
    fn log(&self, line: &str, weight: Weight, around: Surroundings<'_>) {
        let id = report::queue_id(around.macros);
        match weight {
            Weight::Success if !self.settings.config.logging.successes => {
                tracing::debug!(target: "message", "{id}: {line}");
            }
            Weight::Success | Weight::Refusal => {
                tracing::info!(target: "message", "{id}: {line}");
            }
            Weight::Warning => tracing::warn!(target: "message", "{id}: {line}"),
        }
    }

    /// Something else worth knowing of a message.
    pub(super) fn note(&self, what: &str, around: Surroundings<'_>) {
        if self.settings.config.logging.why {
            tracing::info!(target: "message", "{}: note: {what}", report::queue_id(around.macros));
        } else {
            tracing::debug!(target: "message", "{}: note: {what}", report::queue_id(around.macros));
        }
    }
}
