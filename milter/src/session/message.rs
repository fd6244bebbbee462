//! One message, from MAIL to the answer at its end.
//!
//! At the end of the header policy decides once; then the body goes into the hashes it is wanted for, and at its end
//! the message waits for keys, checks or signatures, within one deadline. Whatever fails, there is an answer.

use super::digests::Digests;
use super::outcome::{Course, Outcome};
use super::report;
use super::signing::{Signing, Wanted};
use super::step::{Step, Told, progress_by, temp_fail};
use super::verifying::{Next, Verified, Verifying};
use super::{Now, Surroundings, Work};
use crate::policy::{Answer, Decision, Facts, Occasion, answer_on, decide, judge};
use crate::protocol::negotiation::action;
use crate::protocol::reply_code::ReplyCode;
use crate::settings::Settings;
use dkim_core::engine::SigningError;
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::signature::FIELD_NAME;
use dkim_core::verifier::{Check, CheckOutcome, Verdict};
use std::sync::Arc;
use std::time::Duration;

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
        let digests = match &self.phase {
            Phase::Signing(signing) => signing.digests(),
            Phase::Verifying(verifying) => verifying.digests(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => None,
        };
        self.deadline().is_some() || digests.is_some_and(Digests::is_waiting)
    }

    /// Whether the MTA has its answer.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether the body matters.
    pub(super) fn wants_body(&self) -> bool {
        match &self.phase {
            Phase::Signing(_) => true,
            Phase::Verifying(verifying) => verifying.wants_body(),
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
            Phase::Verifying(verifying) => verifying.body(chunk),
            Phase::Header | Phase::Alone { .. } | Phase::Over => (),
        }
    }

    /// What a token is to do with the body that has come.
    pub(super) fn body_work(&mut self) -> Vec<Work> {
        let message = self.id;
        self.digests_mut()
            .map_or_else(Vec::new, |digests| digests.steps(message))
    }

    /// Takes what came of a step of a hash.
    pub(super) fn digested(
        &mut self,
        place: usize,
        result: Result<Vec<u8>, String>,
        around: Surroundings<'_>,
        now: Now,
    ) -> Step {
        let Some(digests) = self.digests_mut() else {
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
                    Ok(work) => Step::wait(work, self.wake_at(now)),
                    Err(why) => {
                        let on_away = self.settings.config.signing.tokens.on_away;
                        let why = format!("cannot sign: body cannot be hashed now: {why}");
                        self.refuse(Occasion::TokenAway(on_away), &why, &[], around)
                    }
                }
            }
            Phase::Verifying(verifying) => {
                let next = verifying.hashed(&self.header, now);
                self.go_on(next, around)
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
                Step::wait(work, self.wake_at(now))
            }
            Phase::Verifying(verifying) => {
                let next = verifying.end_body(&self.header, now);
                self.go_on(next, around)
            }
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
        let next = verifying.key_answer(index, answer, &self.header, now);
        self.go_on(next, around)
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
                let next = verifying.checked(check, outcome);
                return self.go_on(next, around);
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
        let Some(deadline) = self.deadline() else {
            return Step::default();
        };
        if now.monotonic >= deadline {
            return match &mut self.phase {
                Phase::Signing(signing) if signing.is_hashing() => self.hashed(around, now),
                Phase::Signing(_) => self.finish_signing(around),
                Phase::Verifying(verifying) => {
                    let next = verifying.give_up(&self.header, now);
                    self.go_on(next, around)
                }
                Phase::Header | Phase::Alone { .. } | Phase::Over => Step::default(),
            };
        }
        let mut step = Step::wait(Vec::new(), self.wake_at(now));
        if around.negotiated.progress {
            step.answers.push(Told::Progress);
        }
        step
    }

    /// The hashes that a token makes of the body.
    fn digests_mut(&mut self) -> Option<&mut Digests> {
        match &mut self.phase {
            Phase::Signing(signing) => signing.digests_mut(),
            Phase::Verifying(verifying) => verifying.digests_mut(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => None,
        }
    }

    /// Until when what is awaited at the end may come.
    fn deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Signing(signing) => signing.deadline(),
            Phase::Verifying(verifying) => verifying.deadline(),
            Phase::Header | Phase::Alone { .. } | Phase::Over => None,
        }
    }

    /// When the MTA that waits is to be told so next.
    fn wake_at(&self, now: Now) -> Option<Duration> {
        Some(progress_by(self.deadline()?, now))
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
        let (verifying, work) =
            Verifying::start(self.id, &self.header, unsigned, &self.settings, now);
        self.phase = Phase::Verifying(Box::new(verifying));
        Step {
            answers: vec![Told::Continue],
            work,
            ..Step::default()
        }
    }

    /// Goes on with verifying.
    fn go_on(&mut self, next: Next, around: Surroundings<'_>) -> Step {
        if let Phase::Verifying(verifying) = &mut self.phase
            && let Some(note) = verifying.take_note()
        {
            self.note(&note, around);
        }
        match next {
            Next::Nothing => Step::default(),
            Next::Wait { work, wake_at } => Step::wait(work, Some(wake_at)),
            Next::Check { work, wake_at } => Step::wait(work, wake_at),
            Next::Verdicts => self.finish_verifying(around),
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
        let Verified { verdicts, unsigned } = verifying.finish(&self.header);
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
            unsigned.as_deref(),
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
