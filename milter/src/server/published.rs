//! Whether the records of our keys are in the DNS as they must be, looked up in the background; mail never waits for it.
//!
//! Records are asked for at start, after a reload and once a day; those that are not right, every few minutes until they
//! are; some at once, so that names that get no answer do not keep others waiting. One line is logged when what is known
//! of a record changes. A DNS that does not answer says nothing about a record: what was known stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dkim_core::key_record::KeyAnswer;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::State;
use crate::config::RecordPolicy;
use crate::dns::KeySource;
use crate::keys::{KeyPlace, SigningIdentity};
use crate::record_check::RecordCheck;

/// Looks after the records of all keys, for ever.
pub(super) async fn watch(state: Arc<ArcSwap<State>>) {
    let mut known: HashMap<_, Known> = HashMap::new();
    let mut of = state.load_full();
    // How many keys there are to sign with in tokens, as was last seen.
    let mut there = None;
    loop {
        let now = state.load_full();
        if !Arc::ptr_eq(&of, &now) {
            known.clear();
            of = now;
            there = None;
        }
        let are_there = Some(of.settings.keys.in_tokens().count());
        let is_due = known.values().any(|one| one.due <= Some(Instant::now()));
        if is_due || there != are_there {
            there = are_there;
            check_due(&of, &mut known).await;
        }
        sleep(TICK).await;
    }
}

/// What is known of one record.
#[derive(Default)]
struct Known {
    /// What is wrong with it.
    fault: Option<String>,
    /// When it is asked for again; `None` for at once.
    due: Option<Instant>,
}

/// Asks for the records that are due, and draws the conclusion from each as soon as it is there.
async fn check_due(state: &State, known: &mut HashMap<(String, String), Known>) {
    let settings = &state.settings;
    let config = &settings.config;
    let policy = config.signing.key_records.unwrap_or(RecordPolicy::Warn);
    if policy == RecordPolicy::Ignore {
        return;
    }
    let in_tokens = config.signing.key_records.is_none();
    let mut due = Vec::new();
    for (place, identity) in settings.keys.identities(config, in_tokens) {
        let name = (identity.domain.clone(), identity.selector.clone());
        let one = known.entry(name.clone()).or_default();
        if one.due.is_none_or(|due| due <= Instant::now()) {
            // Entries that share a record have it asked for once.
            one.due = Some(Instant::now() + UNKNOWN);
            due.push((record_name(&identity), (name, place, identity)));
        }
    }
    let draw_conclusion = |(name, place, identity): (_, KeyPlace, SigningIdentity),
                           answer: &KeyAnswer| {
        let one = known.entry(name).or_default();
        let check = RecordCheck::new(answer, Some(identity.key.public_key()));
        let pause = if check.is_unknown() {
            tracing::debug!("{place}: {}: {check}", record_name(&identity));
            UNKNOWN
        } else {
            let fault = (!check.faults.is_empty()).then(|| check.to_string());
            conclude(state, &place, &identity, policy, one, fault.clone());
            if fault.is_some() { WRONG } else { RIGHT }
        };
        one.due = Some(Instant::now() + pause);
    };
    look_up_all(&state.key_records, due, draw_conclusion).await;
}

/// Looks all names up, at most [`AT_ONCE`] at a time, and gives each answer with what belongs to the name, in the order in
/// which they come.
async fn look_up_all<T: Send + 'static>(
    source: &Arc<dyn KeySource>,
    names: Vec<(String, T)>,
    mut answered: impl FnMut(T, &KeyAnswer),
) {
    let mut names = names.into_iter();
    let mut under_way = JoinSet::new();
    loop {
        for (name, belonging) in names.by_ref().take(AT_ONCE - under_way.len()) {
            let source = Arc::clone(source);
            under_way.spawn(async move { (belonging, source.lookup(&name).await) });
        }
        match under_way.join_next().await {
            Some(Ok((belonging, answer))) => answered(belonging, &answer),
            // Its look-up has panicked: nothing is known.
            Some(Err(_)) => {}
            None => return,
        }
    }
}

fn conclude(
    state: &State,
    place: &KeyPlace,
    identity: &SigningIdentity,
    policy: RecordPolicy,
    known: &mut Known,
    fault: Option<String>,
) {
    let name = record_name(identity);
    let keys = &state.settings.keys;
    // Over a reload, what is known here is forgotten, and what is held is not.
    let was_held = policy == RecordPolicy::Hold
        && keys.hold(&identity.domain, &identity.selector, fault.clone());
    match (&fault, &known.fault) {
        (Some(fault), before) if before.as_ref() != Some(fault) => {
            let consequence = match policy {
                RecordPolicy::Hold => "; the key is not signed with until that is mended",
                RecordPolicy::Warn | RecordPolicy::Ignore => "",
            };
            tracing::warn!("{place}: {name}: {fault}{consequence}");
        }
        (None, _) if was_held => {
            tracing::info!("{place}: {name}: the record is right now; the key signs again");
        }
        (None, Some(_)) => tracing::info!("{place}: {name}: the record is right now"),
        _ => {}
    }
    known.fault = fault;
}

fn record_name(identity: &SigningIdentity) -> String {
    format!("{}._domainkey.{}", identity.selector, identity.domain)
}

/// How many look-ups may be under way: with more, a name server might take it for an attack.
const AT_ONCE: usize = 32;

/// How often it is looked what is due.
const TICK: Duration = Duration::from_secs(5);

/// How long what was found is believed.
const RIGHT: Duration = Duration::from_secs(24 * 60 * 60);
const WRONG: Duration = Duration::from_secs(5 * 60);
const UNKNOWN: Duration = Duration::from_secs(15 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};
    use crate::dns::LookupFuture;
    use crate::keys::{KeySet, Reader};
    use crate::record_check::record;
    use crate::settings::Settings;
    use crate::tables::test_dir::TestDir;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::advance;

    /// Answers after the seconds that a name begins with.
    #[derive(Default)]
    struct Slow {
        under_way: AtomicUsize,
        most: AtomicUsize,
    }

    impl KeySource for Slow {
        fn lookup<'a>(&'a self, name: &'a str) -> LookupFuture<'a> {
            Box::pin(async move {
                let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
                self.most.fetch_max(now, Ordering::Relaxed);
                let (seconds, _) = name.split_once('.').unwrap();
                sleep(Duration::from_secs(seconds.parse().unwrap())).await;
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                Arc::new(KeyAnswer::Unavailable(name.to_owned()))
            })
        }
    }

    /// Which names were answered in which order, after how many seconds, and how many look-ups were under way at most.
    async fn looked_up(names: &[&str]) -> (Vec<String>, u64, usize) {
        let slow = Arc::new(Slow::default());
        let source: Arc<dyn KeySource> = Arc::<Slow>::clone(&slow);
        let names = names
            .iter()
            .map(|name| (name.to_string(), name.to_string()));
        let (started, mut order) = (Instant::now(), Vec::new());
        look_up_all(&source, names.collect(), |name: String, answer| {
            assert!(matches!(answer, KeyAnswer::Unavailable(of) if *of == name));
            order.push(name);
        })
        .await;
        let seconds = started.elapsed().as_secs();
        (order, seconds, slow.most.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_late_keeps_nobody_waiting() {
        let (order, seconds, most) = looked_up(&["9.a", "5.b", "1.c"]).await;
        assert_eq!(order, ["1.c", "5.b", "9.a"]);
        assert_eq!((seconds, most), (9, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_asked_for_a_bounded_number_at_a_time() {
        let (order, seconds, most) = looked_up(&["2.x"; 3 * AT_ONCE + 1]).await;
        assert_eq!(order.len(), 3 * AT_ONCE + 1);
        assert_eq!((seconds, most), (8, AT_ONCE));
        assert_eq!(looked_up(&[]).await, (Vec::new(), 0, 0));
    }

    /// A zone of one name, which counts the questions.
    struct Zone(Mutex<(Arc<KeyAnswer>, usize)>);

    impl KeySource for Zone {
        fn lookup<'a>(&'a self, _: &'a str) -> LookupFuture<'a> {
            let mut zone = self.0.lock().unwrap();
            zone.1 += 1;
            Box::pin(std::future::ready(Arc::clone(&zone.0)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_is_looked_at_again_when_the_manual_says_so() {
        let dir = TestDir::new("published");
        let key = include_bytes!("../../../dkim-core/tests/data/keys/rsa2048.pem");
        let path = dir.write("key", key);
        let set = [
            "Domain=example.com",
            "Selector=s",
            "CheckKeyRecords=hold",
            &format!("KeyFile={}", path.display()),
            "RequireSafeKeys=no",
        ];
        let overrides = Overrides {
            set: set.map(str::to_owned).to_vec(),
            ..Overrides::default()
        };
        let (config, _) = Config::load(None, &overrides).unwrap();
        let keys = KeySet::load(&config, Reader::current());
        let settings = Settings::new(config, keys, "host.example".to_owned()).unwrap();
        let missing = Arc::new(KeyAnswer::NoName);
        let zone = Arc::new(Zone(Mutex::new((Arc::clone(&missing), 0))));
        let state = State {
            settings: Arc::new(settings),
            key_records: Arc::<Zone>::clone(&zone),
        };
        let settings = &state.settings;
        let (_, identity) = settings.keys.identities(&settings.config, false).remove(0);
        let right = Arc::new(KeyAnswer::from_txt(&[record(
            identity.key.public_key(),
            &[],
        )]));
        let unknown = Arc::new(KeyAnswer::Unavailable("no answer".to_owned()));
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let mut known = HashMap::new();
        let mut asked = 0;
        for (answer, is_held, pause) in [
            (&missing, true, minutes(5)),
            (&unknown, true, minutes(15)),
            (&right, false, minutes(24 * 60)),
            (&unknown, false, minutes(15)),
            (&missing, true, minutes(5)),
            (&right, false, minutes(24 * 60)),
        ] {
            zone.0.lock().unwrap().0 = Arc::clone(answer);
            asked += 1;
            for wait in [Duration::ZERO, pause - Duration::from_secs(1)] {
                advance(wait).await;
                check_due(&state, &mut known).await;
                assert_eq!(zone.0.lock().unwrap().1, asked);
                assert_eq!(state.settings.keys.held().is_empty(), !is_held);
            }
            advance(Duration::from_secs(1)).await;
        }
    }
}
