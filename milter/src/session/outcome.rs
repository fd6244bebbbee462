//! What a message came to, for those who count: no word of it is the message's own.

use crate::policy::Answer;
use dkim_core::results::ResultWord;
use dkim_core::verifier::Verdict;

/// What a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was decided.
    pub course: Course,
    /// What the MTA was told.
    pub ending: Ending,
    /// How many signatures had each result, in the order of [`ResultWord::ALL`]; a message without one counts as `none`.
    /// Small, as it goes along with every step of a conversation.
    pub verdicts: [u16; ResultWord::ALL.len()],
}

/// What was decided about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// It was signed, or had the signatures already.
    Signed,
    /// It was verified.
    Verified,
    /// Neither was wanted.
    LeftAlone,
    /// It should have been signed or verified, and could not be.
    Failed,
}

/// What the MTA was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// To go on.
    Accepted,
    /// To try again later.
    Deferred,
    /// To refuse it.
    Rejected,
    /// To throw it away.
    Discarded,
    /// To put it aside.
    Quarantined,
}

impl Outcome {
    /// Of a message that was not verified.
    pub(super) fn new(course: Course, answer: &Answer) -> Self {
        Self {
            course,
            ending: Ending::of(answer),
            verdicts: [0; ResultWord::ALL.len()],
        }
    }

    /// Of a message that was.
    pub(super) fn verified(verdicts: &[Verdict], answer: &Answer) -> Self {
        let mut outcome = Self::new(Course::Verified, answer);
        let mut count = |result| {
            if let Some(place) = ResultWord::ALL.iter().position(|word| *word == result) {
                let count = &mut outcome.verdicts[place];
                *count = count.saturating_add(1);
            }
        };
        verdicts.iter().for_each(|verdict| count(verdict.result));
        if verdicts.is_empty() {
            count(ResultWord::None);
        }
        outcome
    }
}

impl Course {
    /// Every course.
    pub const ALL: [Self; 4] = [Self::Signed, Self::Verified, Self::LeftAlone, Self::Failed];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Signed => "signed",
            Self::Verified => "verified",
            Self::LeftAlone => "left_alone",
            Self::Failed => "failed",
        }
    }
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 5] = [
        Self::Accepted,
        Self::Deferred,
        Self::Rejected,
        Self::Discarded,
        Self::Quarantined,
    ];

    fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Accept => Self::Accepted,
            Answer::TempFail(..) => Self::Deferred,
            Answer::Reject(..) => Self::Rejected,
            Answer::Discard => Self::Discarded,
            Answer::Quarantine(_) => Self::Quarantined,
        }
    }

    /// Its name, as the log has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Deferred => "deferred",
            Self::Rejected => "rejected",
            Self::Discarded => "discarded",
            Self::Quarantined => "quarantined",
        }
    }
}
