//! What name servers said, for as long as it holds: parsed key answers by name.
//!
//! Bounded in time (the records' TTL within [`CacheLimits`]), in entries and in octets, so that a stranger who sends
//! mail with ever new names costs no more than a full cache. Names asked for while the same question is under way wait
//! for its answer, and an answer is kept even when nobody waits for it any more. Time is tokio's, so that tests can
//! turn the clock. Asking is for whoever calls.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dkim_core::key_record::KeyAnswer;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long and how much a [`Resolver`](super::Resolver) remembers.
#[derive(Clone, Debug)]
pub struct CacheLimits {
    /// Shortest time that found records are kept, whatever their TTL.
    pub shortest: Duration,
    /// Longest time that found records are kept, whatever their TTL.
    pub longest: Duration,
    /// Longest time that "no such name" and "no record" are kept: a key just published is missed no longer.
    pub negative: Duration,
    /// How long a failure is kept, so that a dead server is not asked for each message anew.
    pub failure: Duration,
    /// Most names kept.
    pub entries: usize,
    /// Most octets kept, by a rough count.
    pub octets: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            shortest: Duration::from_secs(1),
            longest: Duration::from_secs(24 * 60 * 60),
            negative: Duration::from_secs(60),
            failure: Duration::from_secs(5),
            entries: 16_384,
            octets: 32 << 20,
        }
    }
}

impl CacheLimits {
    fn lifetime(&self, answer: &KeyAnswer, ttl: Option<Duration>) -> Duration {
        match answer {
            KeyAnswer::Records(_) => ttl
                .unwrap_or(self.shortest)
                .max(self.shortest)
                .min(self.longest),
            // Without a TTL from the zone nothing says that the absence will last (RFC 2308 section 5).
            KeyAnswer::NoRecord | KeyAnswer::NoName => {
                ttl.unwrap_or(self.failure).min(self.negative)
            }
            KeyAnswer::Unavailable(_) => self.failure,
        }
    }
}

/// What was answered.
pub(super) struct Answered {
    pub(super) answer: KeyAnswer,
    /// Where the records are, if CNAMEs lead there.
    pub(super) cname: Option<String>,
    /// How long it holds, by the answerer's word.
    pub(super) ttl: Option<Duration>,
    /// How large the records were before they were parsed.
    pub(super) octets: usize,
}

impl Answered {
    /// `answer`, of which no more is known.
    pub(super) fn bare(answer: KeyAnswer) -> Self {
        Self {
            answer,
            cname: None,
            ttl: None,
            octets: 0,
        }
    }
}

/// Key answers by name.
pub(super) struct Cache {
    limits: CacheLimits,
    state: Mutex<State>,
}

/// Two generations: what is new or was used lately, and what was before. When the young one is half of what is
/// allowed, it becomes the old one and the old one is forgotten; what is found in the old one moves to the young one.
/// So the least used names go first, at no cost worth counting.
#[derive(Default)]
struct State {
    young: Generation,
    old: Generation,
    under_way: HashMap<String, Answer>,
}

/// Holds the answer once there is one; closed without one when whoever asked came to grief.
type Answer = watch::Receiver<Option<Arc<KeyAnswer>>>;

#[derive(Default)]
struct Generation {
    entries: HashMap<String, Entry>,
    octets: usize,
}

struct Entry {
    answer: Arc<KeyAnswer>,
    expires: Instant,
    octets: usize,
}

impl Cache {
    pub(super) fn new(limits: CacheLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
        })
    }

    /// The answer for `name`, in the form that [`query_name`](super::query_name) gives, from memory or else by `ask`,
    /// whose future runs to its end in a task of its own, whether or not this one is dropped.
    pub(super) async fn get<F>(
        self: &Arc<Self>,
        name: String,
        ask: impl FnOnce(String) -> F,
    ) -> Arc<KeyAnswer>
    where
        F: Future<Output = Answered> + Send + 'static,
    {
        let mut answer = match self.find_or_claim(&name) {
            Found::Known(answer) => return answer,
            Found::UnderWay(answer) => answer,
            Found::Claimed(claim, answer) => {
                let ask = ask(name);
                tokio::spawn(async move { claim.settle(ask.await) });
                answer
            }
        };
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => Arc::clone(answer),
            Ok(None) | Err(_) => {
                Arc::new(KeyAnswer::Unavailable("the look-up was cut short".into()))
            }
        }
    }

    fn find_or_claim(self: &Arc<Self>, name: &str) -> Found {
        let mut state = self.state();
        if let Some(answer) = state.find(name, &self.limits) {
            return Found::Known(answer);
        }
        if let Some(answer) = state.under_way.get(name) {
            return Found::UnderWay(answer.clone());
        }
        let (sender, answer) = watch::channel(None);
        state.under_way.insert(name.to_owned(), answer.clone());
        Found::Claimed(
            Claim {
                cache: Arc::clone(self),
                name: name.to_owned(),
                sender,
            },
            answer,
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere while the lock was held leaves maps that are still maps; at worst an answer is missing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Found {
    Known(Arc<KeyAnswer>),
    UnderWay(Answer),
    Claimed(Claim, Answer),
}

/// The duty to find the answer for `name`; dropped without settling, it frees the name for the next who asks.
struct Claim {
    cache: Arc<Cache>,
    name: String,
    sender: watch::Sender<Option<Arc<KeyAnswer>>>,
}

impl Claim {
    fn settle(self, answered: Answered) {
        let limits = &self.cache.limits;
        let expires = Instant::now() + limits.lifetime(&answered.answer, answered.ttl);
        let octets = cost(&self.name, &answered);
        let answer = Arc::new(answered.answer);
        let entry = Entry {
            answer: Arc::clone(&answer),
            expires,
            octets,
        };
        self.cache.state().insert(self.name.clone(), entry, limits);
        self.sender.send_replace(Some(answer));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cache.state().under_way.remove(&self.name);
    }
}

impl State {
    fn find(&mut self, name: &str, limits: &CacheLimits) -> Option<Arc<KeyAnswer>> {
        let now = Instant::now();
        if let Some(entry) = self.young.entries.get(name) {
            if now < entry.expires {
                return Some(Arc::clone(&entry.answer));
            }
            self.young.remove(name);
        }
        let entry = self.old.remove(name).filter(|entry| now < entry.expires)?;
        let answer = Arc::clone(&entry.answer);
        self.insert(name.to_owned(), entry, limits);
        Some(answer)
    }

    fn insert(&mut self, name: String, entry: Entry, limits: &CacheLimits) {
        let (entries, octets) = (limits.entries / 2, limits.octets / 2);
        if entry.octets > octets || entries == 0 {
            return;
        }
        if self.young.entries.len() >= entries || self.young.octets + entry.octets > octets {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&name);
        self.young.insert(name, entry);
    }
}

impl Generation {
    fn insert(&mut self, name: String, entry: Entry) {
        self.octets += entry.octets;
        if let Some(replaced) = self.entries.insert(name, entry) {
            self.octets -= replaced.octets;
        }
    }

    fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        self.octets -= entry.octets;
        Some(entry)
    }
}

/// Roughly what an entry takes: the map around it, and for each record its octets as parsed and an engine's key.
fn cost(name: &str, answered: &Answered) -> usize {
    const ENTRY: usize = 256;
    const RECORD: usize = 3072;
    let answer = match &answered.answer {
        KeyAnswer::Records(records) => records.len() * RECORD + answered.octets,
        KeyAnswer::Unavailable(reason) => reason.len(),
        KeyAnswer::NoRecord | KeyAnswer::NoName => 0,
    };
    ENTRY + name.len() + answer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, sleep, timeout};

    use super::*;

    fn records(ttl: u64) -> Answered {
        Answered {
            ttl: Some(Duration::from_secs(ttl)),
            octets: 2,
            ..Answered::bare(KeyAnswer::from_txt(&["p="]))
        }
    }

    fn other(answer: KeyAnswer, ttl: Option<u64>) -> Answered {
        Answered {
            ttl: ttl.map(Duration::from_secs),
            ..Answered::bare(answer)
        }
    }

    /// A cache and a count of the questions that came through it.
    struct Counted {
        cache: Arc<Cache>,
        asked: AtomicUsize,
    }

    impl Counted {
        fn new(limits: CacheLimits) -> Self {
            Self {
                cache: Cache::new(limits),
                asked: AtomicUsize::new(0),
            }
        }

        /// Asks for `name`, and says whether `answer` had to be fetched for it.
        async fn is_asked(&self, name: &str, answer: Answered) -> bool {
            let before = self.asked.load(Ordering::Relaxed);
            let ask = |_| {
                self.asked.fetch_add(1, Ordering::Relaxed);
                std::future::ready(answer)
            };
            self.cache.get(name.to_owned(), ask).await;
            self.asked.load(Ordering::Relaxed) > before
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_live_as_long_as_their_ttl_within_the_limits() {
        let unavailable = || KeyAnswer::Unavailable("SERVFAIL".into());
        let (day, minute) = (24 * 60 * 60, 60);
        for (answer, lives) in [
            (&(|| records(300)) as &dyn Fn() -> Answered, 300),
            (&|| records(0), 1),
            (&|| records(7 * day), day),
            (&|| other(KeyAnswer::NoName, Some(30)), 30),
            (&|| other(KeyAnswer::NoName, Some(day)), minute),
            (&|| other(KeyAnswer::NoName, None), 5),
            (&|| other(KeyAnswer::NoRecord, Some(day)), minute),
            (&|| other(unavailable(), None), 5),
        ] {
            let counted = Counted::new(CacheLimits::default());
            assert!(counted.is_asked("a", answer()).await);
            advance(Duration::from_secs(lives) - Duration::from_millis(10)).await;
            assert!(!counted.is_asked("a", answer()).await, "{lives} s");
            advance(Duration::from_millis(20)).await;
            assert!(counted.is_asked("a", answer()).await, "{lives} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hit_does_not_prolong_a_life() {
        let counted = Counted::new(CacheLimits {
            entries: 4,
            ..CacheLimits::default()
        });
        counted.is_asked("a", records(300)).await;
        for name in ["b", "c", "d"] {
            advance(Duration::from_secs(90)).await;
            counted.is_asked(name, records(3000)).await;
            assert!(!counted.is_asked("a", records(300)).await, "{name}");
        }
        advance(Duration::from_secs(31)).await;
        assert!(counted.is_asked("a", records(300)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_entries_is_bounded_and_what_is_used_stays() {
        let counted = Counted::new(CacheLimits {
            entries: 10,
            ..CacheLimits::default()
        });
        counted.is_asked("used", records(3000)).await;
        for number in 0..100 {
            assert!(counted.is_asked(&number.to_string(), records(3000)).await);
            assert!(!counted.is_asked("used", records(3000)).await, "{number}");
            let state = counted.cache.state();
            assert!(state.young.entries.len() + state.old.entries.len() <= 10);
        }
        assert!(!counted.is_asked("99", records(3000)).await);
        assert!(counted.is_asked("0", records(3000)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_octets_is_bounded_and_counted_right() {
        let limits = CacheLimits {
            octets: 100_000,
            ..CacheLimits::default()
        };
        let counted = Counted::new(limits);
        for number in 0..200 {
            let answer = Answered {
                octets: 300 * (number % 40),
                ..records(1 + number as u64 % 3)
            };
            counted.is_asked(&(number % 50).to_string(), answer).await;
            advance(Duration::from_millis(700)).await;
            let state = counted.cache.state();
            for generation in [&state.young, &state.old] {
                let sum: usize = generation.entries.values().map(|entry| entry.octets).sum();
                assert_eq!(generation.octets, sum);
            }
            assert!(state.young.octets + state.old.octets <= 100_000);
        }
        let huge = || Answered {
            octets: 60_000,
            ..records(300)
        };
        assert!(counted.is_asked("huge", huge()).await);
        assert!(counted.is_asked("huge", huge()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_under_way_is_joined_and_outlives_who_asked() {
        let counted = Arc::new(Counted::new(CacheLimits::default()));
        let get = |counted: Arc<Counted>| async move {
            let cache = Arc::clone(&counted.cache);
            let ask = |_| async move {
                counted.asked.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(2)).await;
                records(300)
            };
            cache.get("a".to_owned(), ask).await
        };
        assert!(
            timeout(Duration::from_secs(1), get(Arc::clone(&counted)))
                .await
                .is_err()
        );
        let (first, second) = tokio::join!(get(Arc::clone(&counted)), get(Arc::clone(&counted)));
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(counted.asked.load(Ordering::Relaxed), 1);
        assert!(counted.cache.state().under_way.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_came_to_grief_is_answered_and_forgotten() {
        let counted = Counted::new(CacheLimits::default());
        let answer = counted
            .cache
            .get("a".to_owned(), |_| async { panic!("meant to") })
            .await;
        assert!(
            matches!(&*answer, KeyAnswer::Unavailable(reason) if reason == "the look-up was cut short")
        );
        assert!(counted.is_asked("a", records(300)).await);
    }
}
