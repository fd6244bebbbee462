//! What the daemon knows of its own condition, gathered where it happens and put together when somebody asks.
//!
//! Whoever asks may not disturb mail, and must get an answer when the event loop is stuck: so all that is read here is
//! atomics, locks that are held for a few instructions, and the directory entries of socket files. No name is looked up, no
//! key used, no token called, no line logged. What has to be found out beforehand is found out by [`watch`], on the event
//! loop: its beat, and whether tokens that nobody has used lately are still there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption};
use dkim_core::engine::Completion;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use super::listener::FileWatch;
use super::threads::Threads;
use super::{Census, State, service_manager};
use crate::config::Fallback;
use crate::dns::LookUps;
use crate::health::{Facts, Faults, Health, MOST_TOLD, Readiness, Stage};
use crate::metrics::{Gauges, Metrics};

/// What the daemon knows of its own condition.
#[derive(Debug)]
pub struct Vitals {
    began: Instant,
    began_unix: u64,
    stage: AtomicUsize,
    /// When the event loop turned last, in milliseconds since `began`.
    beat: AtomicU64,
    /// When the reload that is under way began, likewise; [`NONE`] if there is none.
    reload_began: AtomicU64,
    refused_reload: ArcSwapOption<String>,
    sockets: Vec<FileWatch>,
    threads: Option<Threads>,
    look_ups: Arc<LookUps>,
    /// What is counted.
    pub(super) metrics: Metrics,
    /// The connections there are.
    pub(super) census: Arc<Census>,
    /// What the service manager was told last.
    told: Mutex<Option<String>>,
    /// Whether tokens are tried now and then, so that their state is known before mail comes.
    tries_tokens: bool,
}

impl Default for Vitals {
    fn default() -> Self {
        Self::new(Vec::new(), Arc::default())
    }
}

impl Vitals {
    /// Of a daemon that begins, has `sockets`, and counts its `look_ups`.
    pub(super) fn new(sockets: Vec<FileWatch>, look_ups: Arc<LookUps>) -> Self {
        Self {
            began: Instant::now(),
            began_unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            stage: AtomicUsize::new(STARTING),
            beat: AtomicU64::default(),
            reload_began: AtomicU64::new(NONE),
            refused_reload: ArcSwapOption::default(),
            sockets,
            threads: None,
            look_ups,
            metrics: Metrics::default(),
            census: Arc::default(),
            told: Mutex::default(),
            tries_tokens: false,
        }
    }

    /// Those of a daemon that somebody may ask: the threads of `runtime` are looked after, and tokens.
    pub(super) fn asked_for(self, runtime: &tokio::runtime::Handle) -> Self {
        Self {
            threads: Some(Threads::new(runtime.metrics())),
            tries_tokens: true,
            ..self
        }
    }

    /// The condition of the daemon, which works with `state`; of one that has ended if there is none.
    pub(super) fn health(&self, state: Option<&State>) -> Health {
        Health::of(&self.facts(state))
    }

    /// What Prometheus reads.
    pub(super) fn metrics_text(&self, state: Option<&State>) -> String {
        let health = self.health(state);
        let mut gauges = Gauges {
            live: health.is_live(),
            ready: health.readiness() != Readiness::NotReady,
            degraded: !health.degraded.is_empty(),
            connections: self.census.open(),
            look_ups: self.look_ups.counts(),
            started: self.began_unix,
            ..Gauges::default()
        };
        if let Some(state) = state {
            let keys = &state.settings.keys;
            let in_tokens = keys.in_tokens();
            gauges.in_files = (keys.report().usable, broken(state).things);
            gauges.in_tokens = (in_tokens.count().0, in_tokens.away(0).1);
            gauges.held = keys.held().len();
        }
        self.metrics.text(&gauges)
    }

    /// Tells the service manager that the daemon serves, and how it is, which this returns.
    pub(super) fn tell_ready(&self, state: &State) -> String {
        let status = self.health(Some(state)).summary;
        self.is_news(&status);
        service_manager::ready(&status);
        status
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        let number = match stage {
            Stage::Starting => STARTING,
            Stage::Serving => SERVING,
            Stage::Stopping => STOPPING,
        };
        // The beat begins with it.
        self.beats();
        self.stage.store(number, Ordering::Relaxed);
    }

    /// A reload begins.
    pub(super) fn reload_begins(&self) {
        self.reload_began.store(self.now(), Ordering::Relaxed);
    }

    /// It has ended; `refusal` is why nothing was taken, if so.
    pub(super) fn reload_ended(&self, refusal: Option<String>) {
        self.metrics.reload(refusal.is_none());
        self.refused_reload.store(refusal.map(Arc::new));
        self.reload_began.store(NONE, Ordering::Relaxed);
    }

    /// Looks whether the threads of the event loop get on; to be called every second or so, from elsewhere.
    pub(super) fn look_at_threads(&self) {
        if let Some(threads) = &self.threads {
            threads.look();
        }
    }

    fn facts(&self, state: Option<&State>) -> Facts {
        let reload_began = self.reload_began.load(Ordering::Relaxed);
        let stage = match self.stage.load(Ordering::Relaxed) {
            STARTING => Stage::Starting,
            SERVING => Stage::Serving,
            _ => Stage::Stopping,
        };
        let mut facts = Facts {
            stage,
            // Before it serves, nobody beats.
            silent: match stage {
                Stage::Starting => Duration::ZERO,
                Stage::Serving | Stage::Stopping => self.since(self.beat.load(Ordering::Relaxed)),
            },
            threads: self
                .threads
                .as_ref()
                .map_or((0, 0), |threads| (threads.count(), threads.stuck())),
            sockets: match stage {
                // They are closed one by one.
                Stage::Stopping => Faults::default(),
                Stage::Starting | Stage::Serving => self.socket_faults().into(),
            },
            dns: self.look_ups.trouble(),
            refused_reload: self
                .refused_reload
                .load()
                .as_ref()
                .map(|why| why.to_string()),
            reloading: (reload_began != NONE).then(|| self.since(reload_began)),
            ..Facts::default()
        };
        if let Some(state) = state {
            let keys = &state.settings.keys;
            let in_tokens = keys.in_tokens();
            facts.usable = keys.report().usable + in_tokens.count().0;
            facts.broken = broken(state);
            if stage != Stage::Starting {
                let (told, things) = in_tokens.away(MOST_TOLD);
                facts.away = Faults {
                    untold: things - told.len(),
                    told,
                    things,
                };
                let duties = &state.settings.duties;
                facts.duties = duties.away();
                facts.software = duties.fallback() == Fallback::Software;
            }
            facts.held = keys.held().into();
        }
        facts
    }

    /// Whether the service manager was told something else last; it is told this now.
    fn is_news(&self, status: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = told.as_deref() != Some(status);
        if is_news {
            *told = Some(status.to_owned());
        }
        is_news
    }

    fn socket_faults(&self) -> Vec<String> {
        self.sockets.iter().filter_map(FileWatch::fault).collect()
    }

    fn beats(&self) {
        self.beat.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NONE)
    }

    fn since(&self, then: u64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(then))
    }
}

/// What is wrong with keys for good.
fn broken(state: &State) -> Faults {
    let report = state.settings.keys.report();
    let errors = report.errors.iter();
    let things = errors.clone().map(|error| error.others + 1).sum::<usize>();
    let faults = &state.settings.faults;
    Faults {
        told: errors
            .map(ToString::to_string)
            .chain(faults.iter().cloned())
            .collect(),
        untold: report.more_errors,
        things: things + report.more_errors + faults.len(),
    }
}

/// Beats, tries tokens, and tells the service manager and the log what has changed; for ever. `changed` is notified when a
/// token has come or gone.
pub(super) async fn watch(vitals: Arc<Vitals>, state: Arc<ArcSwap<State>>, changed: Arc<Notify>) {
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sockets = Vec::new();
    for count in 0_u64.. {
        tokio::select! {
            _ = beat.tick() => vitals.beats(),
            () = changed.notified() => {}
        }
        let status = vitals.health(Some(&state.load())).summary;
        if vitals.is_news(&status) {
            service_manager::status(&status);
        }
        tell_sockets(&vitals, &mut sockets);
        if vitals.tries_tokens && count % TRIED_EVERY == TRIED_EVERY - 1 {
            try_tokens(&state.load());
        }
    }
}

/// Logs what has become of socket files since it was `told`.
fn tell_sockets(vitals: &Vitals, told: &mut Vec<String>) {
    let faults = vitals.socket_faults();
    if faults != *told {
        for fault in &faults {
            tracing::error!("{fault}");
        }
        if faults.is_empty() {
            tracing::info!("all sockets are as they were made");
        }
        *told = faults;
    }
}

/// Has one key of each token that seems well sign something. Who finds out that it is gone tells of it, as ever.
fn try_tokens(state: &State) {
    let timeout = state.settings.config.signing.tokens.timeout;
    let mut tried = Vec::new();
    for (_, key) in state.settings.keys.in_tokens().opened() {
        // At once, as nobody waits that long here.
        let Ok(facts) = key.wait(Duration::ZERO) else {
            continue;
        };
        if tried.contains(&facts.token) {
            continue;
        }
        if let Ok(key) = key.signing_key() {
            let is_of_no_use = Completion::new(|_| ());
            key.submit(b"test".to_vec(), timeout, is_of_no_use);
            tried.push(facts.token);
        }
    }
}

const BEAT: Duration = Duration::from_secs(1);

/// How many beats there are between two trials of a token.
const TRIED_EVERY: u64 = 20;

/// No moment.
const NONE: u64 = u64::MAX;

const STARTING: usize = 0;
const SERVING: usize = 1;
const STOPPING: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_that_does_not_beat_is_noticed_once_it_serves() {
        let began = Instant::now() - Duration::from_secs(60);
        let vitals = Vitals {
            began,
            ..Vitals::default()
        };
        assert!(vitals.health(None).is_live());
        vitals.set_stage(Stage::Serving);
        assert!(vitals.health(None).is_live());
        vitals.beat.store(0, Ordering::Relaxed);
        assert!(!vitals.health(None).is_live());
        vitals.beats();
        let health = vitals.health(None);
        assert!(health.is_live());
        assert_eq!(health.readiness(), Readiness::Ready);
    }

    #[test]
    fn a_refused_reload_is_told_until_one_is_taken() {
        let vitals = Vitals::default();
        vitals.set_stage(Stage::Serving);
        vitals.reload_begins();
        vitals.reload_ended(Some("conf:1: nonsense".into()));
        assert_eq!(vitals.health(None).readiness(), Readiness::Degraded);
        vitals.reload_begins();
        vitals.reload_ended(None);
        assert_eq!(vitals.health(None).readiness(), Readiness::Ready);
        let text = vitals.metrics_text(None);
        for outcome in ["taken", "refused"] {
            let wanted = format!("dkim_milter_reloads_total{{outcome=\"{outcome}\"}} 1\n");
            assert!(text.contains(&wanted), "{text}");
        }
    }
}
