//! What a message wants of the server: replies with what they say, work, a time to be woken at.

use super::outcome::Outcome;
use super::{Now, Work};
use crate::protocol::reply::Reply;
use crate::protocol::reply_code::ReplyCode;
use std::time::Duration;

/// An MTA that waits is told at least so often that there is more to come; Sendmail gives up after 10 s.
const PROGRESS_EVERY: Duration = Duration::from_secs(4);

/// When who waits until `deadline` is to be woken next.
pub(super) fn progress_by(deadline: Duration, now: Now) -> Duration {
    deadline.min(now.monotonic + PROGRESS_EVERY)
}

/// What a message wants of the server.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) answers: Vec<Told>,
    pub(super) work: Vec<Work>,
    pub(super) wake_at: Option<Duration>,
    /// Once it is over.
    pub(super) outcome: Option<Outcome>,
}

impl Step {
    pub(super) fn tell(told: Told) -> Self {
        Self {
            answers: vec![told],
            ..Self::default()
        }
    }

    /// To have this work done, if any, and to be woken while it is awaited.
    pub(super) fn wait(work: Vec<Work>, wake_at: Option<Duration>) -> Self {
        Self {
            work,
            wake_at,
            ..Self::default()
        }
    }
}

/// A reply with what it says.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Continue,
    Accept,
    Discard,
    Reject,
    TempFail,
    Code(ReplyCode),
    Progress,
    Insert { name: &'static str, value: Vec<u8> },
    Delete { index: u32, name: &'static str },
    Quarantine(String),
}

impl Told {
    pub(super) fn reply(&self) -> Reply<'_> {
        match self {
            Self::Continue => Reply::Continue,
            Self::Accept => Reply::Accept,
            Self::Discard => Reply::Discard,
            Self::Reject => Reply::Reject,
            Self::TempFail => Reply::TempFail,
            Self::Code(code) => Reply::ReplyCode(code),
            Self::Progress => Reply::Progress,
            Self::Insert { name, value } => Reply::InsertHeader {
                index: 0,
                name: name.as_bytes(),
                value,
            },
            Self::Delete { index, name } => Reply::DeleteHeader {
                index: *index,
                name: name.as_bytes(),
            },
            Self::Quarantine(reason) => Reply::Quarantine { reason },
        }
    }
}

/// A refusal for now, with an enhanced code of class 4 and a few words of ours.
pub(super) fn temp_fail(enhanced: &str, why: &str) -> Told {
    ReplyCode::new(451, enhanced, why).map_or(Told::TempFail, Told::Code)
}
