//! How looking up key records has gone lately: counts, and whether the DNS seems to be dead.
//!
//! Nothing is asked for that: it is drawn from what mail had looked up, and the watch over our own records. One domain
//! whose name servers are broken is no dead DNS, so an answer to any other question shortly before speaks for it. Writing
//! is a few atomic operations beside a question that takes milliseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use dkim_core::key_record::KeyAnswer;

/// What became of look-ups. It outlives the [`Resolver`](super::Resolver)s that a reload makes.
#[derive(Debug)]
pub struct LookUps {
    began: Instant,
    wanted: AtomicU64,
    asked: AtomicU64,
    found: AtomicU64,
    absent: AtomicU64,
    failed: AtomicU64,
    /// Failures since the last answer.
    failed_since: AtomicU64,
    /// In milliseconds since `began`; [`NEVER`] if there was none.
    last_answer: AtomicU64,
    last_failure: AtomicU64,
    last_reason: ArcSwapOption<String>,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookUpCounts {
    /// Look-ups answered from memory, or by a question that was under way.
    pub known: u64,
    /// Those for which name servers were asked.
    pub asked: u64,
    /// Of these: there were records.
    pub found: u64,
    /// The name or its records do not exist.
    pub absent: u64,
    /// No usable answer.
    pub failed: u64,
}

/// A DNS that seems to be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsTrouble {
    /// How many look-ups failed since the last answer.
    pub failures: u64,
    /// How long ago that answer was, if there was one.
    pub last_answer: Option<Duration>,
    /// Why the last one failed.
    pub reason: String,
}

impl Default for LookUps {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            wanted: AtomicU64::default(),
            asked: AtomicU64::default(),
            found: AtomicU64::default(),
            absent: AtomicU64::default(),
            failed: AtomicU64::default(),
            failed_since: AtomicU64::default(),
            last_answer: AtomicU64::new(NEVER),
            last_failure: AtomicU64::new(NEVER),
            last_reason: ArcSwapOption::default(),
        }
    }
}

impl LookUps {
    /// How often what happened.
    pub fn counts(&self) -> LookUpCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let asked = of(&self.asked);
        LookUpCounts {
            known: of(&self.wanted).saturating_sub(asked),
            asked,
            found: of(&self.found),
            absent: of(&self.absent),
            failed: of(&self.failed),
        }
    }

    /// Whether the DNS seems to be dead: the last look-up failed not long ago, and none was answered shortly before, or
    /// several have failed since.
    pub fn trouble(&self) -> Option<DnsTrouble> {
        self.trouble_at(self.began.elapsed())
    }

    /// Something is looked up.
    pub(super) fn count_wanted(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// Name servers are asked for it.
    pub(super) fn count_asked(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// They have answered, or not.
    pub(super) fn count_answer(&self, answer: &KeyAnswer) {
        self.count_answer_at(answer, self.began.elapsed());
    }

    fn count_answer_at(&self, answer: &KeyAnswer, now: Duration) {
        let kind = match answer {
            KeyAnswer::Records(_) => &self.found,
            KeyAnswer::NoRecord | KeyAnswer::NoName => &self.absent,
            KeyAnswer::Unavailable(_) => &self.failed,
        };
        kind.fetch_add(1, Ordering::Relaxed);
        let now = millis(now);
        if let KeyAnswer::Unavailable(reason) = answer {
            self.failed_since.fetch_add(1, Ordering::Relaxed);
            self.last_reason.store(Some(Arc::new(reason.clone())));
            self.last_failure.store(now, Ordering::Relaxed);
        } else {
            self.failed_since.store(0, Ordering::Relaxed);
            self.last_answer.store(now, Ordering::Relaxed);
        }
    }

    fn trouble_at(&self, now: Duration) -> Option<DnsTrouble> {
        let failures = self.failed_since.load(Ordering::Relaxed);
        let last_failure = self.last_failure.load(Ordering::Relaxed);
        let last_answer = self.last_answer.load(Ordering::Relaxed);
        if failures == 0 || last_failure == NEVER {
            return None;
        }
        let since = |then| millis(now).saturating_sub(then);
        let is_recent = since(last_failure) <= millis(BELIEVED);
        let is_silent = last_answer == NEVER
            || last_failure >= last_answer + millis(SHORTLY)
            || failures >= SEVERAL;
        (is_recent && is_silent).then(|| DnsTrouble {
            failures,
            last_answer: (last_answer != NEVER).then(|| Duration::from_millis(since(last_answer))),
            reason: self
                .last_reason
                .load()
                .as_ref()
                .map_or_else(String::new, |reason| reason.to_string()),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}

const NEVER: u64 = u64::MAX;

/// An answer that was given so shortly before a failure speaks for the DNS.
const SHORTLY: Duration = Duration::from_secs(5);

/// So many failures without an answer in between speak against it.
const SEVERAL: u64 = 3;

/// How long a failure says something of now.
const BELIEVED: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> KeyAnswer {
        KeyAnswer::Unavailable("SERVFAIL from 192.0.2.1:53".into())
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_dns_that_never_answered_is_in_trouble_at_its_first_failure() {
        let look_ups = LookUps::default();
        assert_eq!(look_ups.trouble_at(at(1)), None);
        look_ups.count_answer_at(&failure(), at(2));
        look_ups.count_answer_at(&failure(), at(3));
        let wanted = DnsTrouble {
            failures: 2,
            last_answer: None,
            reason: "SERVFAIL from 192.0.2.1:53".into(),
        };
        assert_eq!(look_ups.trouble_at(at(4)), Some(wanted));
    }

    #[test]
    fn a_domain_in_trouble_is_not_a_dns_in_trouble() {
        let look_ups = LookUps::default();
        look_ups.count_answer_at(&KeyAnswer::NoName, at(100));
        look_ups.count_answer_at(&failure(), at(104));
        assert_eq!(look_ups.trouble_at(at(104)), None);
        look_ups.count_answer_at(&failure(), at(105));
        let trouble = look_ups.trouble_at(at(115)).unwrap();
        assert_eq!((trouble.failures, trouble.last_answer), (2, Some(at(15))));
    }

    #[test]
    fn several_failures_are_trouble_however_lately_there_was_an_answer() {
        let look_ups = LookUps::default();
        look_ups.count_answer_at(&KeyAnswer::NoName, at(100));
        for failures in 1..=3 {
            look_ups.count_answer_at(&failure(), at(101));
            let trouble = look_ups.trouble_at(at(101));
            assert_eq!(trouble.is_some(), failures == 3, "{failures}");
        }
    }

    #[test]
    fn trouble_ends_with_an_answer_and_is_not_believed_for_ever() {
        let look_ups = LookUps::default();
        look_ups.count_answer_at(&failure(), at(1));
        assert!(look_ups.trouble_at(at(601)).is_some());
        assert_eq!(look_ups.trouble_at(at(602)), None);
        look_ups.count_answer_at(&failure(), at(700));
        assert!(look_ups.trouble_at(at(700)).is_some());
        look_ups.count_answer_at(&KeyAnswer::from_txt(&["p="]), at(701));
        assert_eq!(look_ups.trouble_at(at(701)), None);
    }

    #[test]
    fn every_look_up_is_counted_once() {
        let look_ups = LookUps::default();
        for _ in 0..5 {
            look_ups.count_wanted();
        }
        for answer in [KeyAnswer::from_txt(&["p="]), KeyAnswer::NoRecord, failure()] {
            look_ups.count_asked();
            look_ups.count_answer(&answer);
        }
        let wanted = LookUpCounts {
            known: 2,
            asked: 3,
            found: 1,
            absent: 1,
            failed: 1,
        };
        assert_eq!(look_ups.counts(), wanted);
    }
}
