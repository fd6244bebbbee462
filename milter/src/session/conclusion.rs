//! How a message ends: what the MTA is told, which fields come and go, and the one line about it.

use super::outcome::{Course, Outcome};
use super::report;
use super::step::{Step, Told, temp_fail};
use crate::policy::{Answer, Occasion, answer_on};
use crate::protocol::macros::Macros;
use crate::protocol::negotiation::{Negotiated, action};
use crate::protocol::reply_code::ReplyCode;
use crate::settings::Settings;

/// How a message ends.
pub(super) struct Conclusion {
    pub(super) answer: Answer,
    pub(super) outcome: Outcome,
    /// Fields that go on top, each above those before it.
    pub(super) inserted: Vec<(&'static str, Vec<u8>)>,
    /// What is told of it.
    pub(super) line: String,
    pub(super) weight: Weight,
}

/// What the line about a message weighs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// It was accepted, which `SyslogSuccess` may keep out of the log.
    Success,
    /// It was not accepted as it is.
    Refusal,
    /// Somebody here should look into it.
    Warning,
}

impl Conclusion {
    /// Of a message that is left alone.
    pub(super) fn alone(reason: &str, weight: Weight, course: Course) -> Self {
        Self {
            answer: Answer::Accept,
            outcome: Outcome::new(course, &Answer::Accept),
            inserted: Vec::new(),
            line: format!("left alone: {reason}"),
            weight,
        }
    }

    /// Of a message that an occasion ends.
    pub(super) fn on(occasion: Occasion, why: &str, settings: &Settings) -> Self {
        let answer = answer_on(&settings.config.actions, occasion, &[], why);
        Self {
            outcome: Outcome::new(Course::Failed, &answer),
            inserted: Vec::new(),
            line: format!(
                "{}: {why} ({})",
                report::outcome(&answer),
                occasion.option()
            ),
            // Going on as if nothing were wrong is what is configured, not what is well.
            weight: match answer {
                Answer::Accept => Weight::Warning,
                _ => Weight::Refusal,
            },
            answer,
        }
    }

    /// Writes the line.
    pub(super) fn log(&self, settings: &Settings, macros: &Macros) {
        let id = report::queue_id(macros);
        let line = &self.line;
        match self.weight {
            Weight::Success if !settings.config.logging.successes => {
                tracing::debug!(target: "message", "{id}: {line}");
            }
            Weight::Success | Weight::Refusal => {
                tracing::info!(target: "message", "{id}: {line}");
            }
            Weight::Warning => tracing::warn!(target: "message", "{id}: {line}"),
        }
    }

    /// The replies that end the message; `forged` results are deleted if it is delivered.
    pub(super) fn into_step(self, forged: &[u32], negotiated: &Negotiated) -> Step {
        let mut answers = Vec::new();
        if matches!(self.answer, Answer::Accept | Answer::Quarantine(_)) {
            // From the bottom up: Postfix numbers anew after each deletion, Sendmail does not.
            let forged = forged.iter().rev();
            answers.extend(forged.map(|&index| Told::Delete {
                index,
                name: report::RESULTS_NAME,
            }));
            if negotiated.may(action::ADDHDRS) {
                let fields = self.inserted.into_iter();
                answers.extend(fields.map(|(name, value)| Told::Insert { name, value }));
            }
        }
        let last = match self.answer {
            Answer::Accept => Told::Continue,
            Answer::Discard => Told::Discard,
            Answer::Quarantine(reason) if negotiated.may(action::QUARANTINE) => {
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
            outcome: Some(self.outcome),
            ..Step::default()
        }
    }
}
