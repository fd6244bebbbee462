//! One message, from MAIL to the answer at its end.
//!
//! At the end of the header policy decides once; then the body goes into the hashes it is wanted for, and at its end
//! the message waits for keys, checks or signatures, within one deadline. Whatever fails, there is an answer.

use super::conclusion::{Conclusion, Weight};
use super::digests::Digests;
use super::outcome::Course;
use super::report;
use super::signing::{Signing, Wanted};
use super::step::{Step, Told, progress_by};
use super::verifying::{Next, Verifying};
use super::{Now, Surroundings, Work};
use crate::policy::{Answer, Decision, Facts, Occasion, answer_on, decide};
use crate::protocol::negotiation::action;
use crate::settings::Settings;
use dkim_core::engine::SigningError;
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::verifier::{Check, CheckOutcome};
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
                        self.refuse(Occasion::TokenAway(on_away), &why, around)
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
            return self.refuse(occasion, &why, around);
        }
        match &mut self.phase {
            Phase::Header => self.refuse(
                Occasion::InternalError,
                "message without an end of header",
                around,
            ),
            Phase::Signing(signing) => {
                let work = match signing.end_digests(self.id, now) {
                    // The token has failed before, or had all.
                    Some(work) if work.is_empty() => return self.hashed(around, now),
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
                let conclusion = Conclusion::alone(reason, *weight, *course);
                self.finish(conclusion, around)
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
            let conclusion = Conclusion::alone(&reason, weight, course);
            conclusion.log(&self.settings, around.macros);
            self.phase = Phase::Over;
            return Step {
                outcome: Some(conclusion.outcome),
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
            Err((occasion, why)) => return self.refuse(occasion, &why, around),
        };
        for note in &signed.notes {
            self.note(note, around);
        }
        for name in self.settings.fields.left_out(&self.header) {
            self.note(
                &format!("{name} has a line over 998 octets and was not signed"),
                around,
            );
        }
        let conclusion = signed.conclude(&self.sender, around.client);
        self.finish(conclusion, around)
    }

    fn finish_verifying(&mut self, around: Surroundings<'_>) -> Step {
        let Phase::Verifying(verifying) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Step::default();
        };
        let verified = verifying.finish(&self.header);
        let conclusion = verified.conclude(&self.header, &self.authserv_id, &self.settings);
        self.finish(conclusion, around)
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
                self.refuse(occasion, why, around)
            }
        }
    }

    /// An occasion that ends the message.
    fn refuse(&mut self, occasion: Occasion, why: &str, around: Surroundings<'_>) -> Step {
        let conclusion = Conclusion::on(occasion, why, &self.settings);
        self.finish(conclusion, around)
    }

    fn finish(&mut self, conclusion: Conclusion, around: Surroundings<'_>) -> Step {
        self.phase = Phase::Over;
        conclusion.log(&self.settings, around.macros);
        conclusion.into_step(&self.forged, around.negotiated)
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
