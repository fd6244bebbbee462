//! The daemon's outside: sockets, connections, time, signals; all that waits, waits here.
//!
//! [`run`] serves what [`Listener`]s accept, one task a connection, until it is told to stop. It knows mail only as far as
//! [`Session`](crate::session::Session) tells it: it brings commands and answers and carries out what comes back. Around it:
//!
//! - [`daemon`] starts it as a program: configuration, privileges, background, signals;
//! - `reload` makes a new state and swaps it in;
//! - `listener`, `stream`, `read_buffer`, `connection` are the way of an octet;
//! - `vitals` knows how the daemon is, by `threads` among others; `status_socket` tells, and `status_query` asks;
//! - `places`, `privileges`, `service_manager` are the system around.
//!
//! What it does when something is short: above `MaximumConnections` a connection is accepted and its messages are refused
//! with TEMPFAIL, because an MTA that waits for an answer stops its own client; out of file descriptors or memory it
//! waits a moment and goes on.

mod background;
mod connection;
pub mod daemon;
mod listener;
mod places;
mod privileges;
mod published;
mod read_buffer;
mod reload;
mod service_manager;
mod status_query;
mod status_socket;
mod stream;
mod threads;
mod tokens;
mod vitals;

pub use listener::{FileOptions, ListenError, ListenFault, Listener};
pub use privileges::{RunAs, UserError};
pub use reload::{LoadError, Loaded, Loader, Source};
pub use status_query::Question;
pub use vitals::Vitals;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::io::Errno;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::dns::KeySource;
use crate::health::Stage;
use crate::settings::Settings;
use connection::Connection;
use stream::{Acceptor, Stream};

/// What the daemon works with at a moment; replaced as a whole by a reload.
pub struct State {
    /// Configuration, tables and keys.
    pub settings: Arc<Settings>,
    /// Where key records come from.
    pub key_records: Arc<dyn KeySource>,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    No,
    /// Accept nothing new, let messages end, then stop.
    Drain,
    /// Stop now.
    Now,
}

/// How long an MTA may keep us waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Between packets. An MTA keeps a connection open as long as its client is there, and a close in between would fail
    /// the messages that this client still has.
    pub idle: Duration,
    /// Within a packet.
    pub packet: Duration,
    /// For taking an answer.
    pub write: Duration,
}

impl Default for Patience {
    /// Idle is libmilter's default and ten seconds.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(7210),
            packet: Duration::from_secs(30),
            write: Duration::from_secs(30),
        }
    }
}

/// How the server is run.
#[derive(Clone)]
pub struct Options {
    /// How long an MTA may keep us waiting.
    pub patience: Patience,
    /// How many connections there can be at all, by the file descriptors that the process may have.
    pub most_connections: usize,
    /// Makes a new state when one is asked for.
    pub loader: Loader,
    /// Notified when a token has come or gone.
    pub changed: Arc<Notify>,
    /// Where it is kept how the daemon is.
    pub vitals: Arc<Vitals>,
}

/// Where a connection is in the daemon's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Everything is served.
    Serving,
    /// Messages that have begun are served to their end.
    Refusing,
    /// Nothing is.
    Closing,
}

/// What all connections share.
struct Shared {
    state: Arc<ArcSwap<State>>,
    /// The settings in force, as sessions ask for them.
    settings: Arc<dyn Fn() -> Arc<Settings> + Send + Sync>,
    patience: Patience,
    started: Instant,
    vitals: Arc<Vitals>,
    most_connections: usize,
}

impl Shared {
    /// How many connections are served, and how many there can be with those whose messages are refused.
    fn limits(&self) -> (usize, usize) {
        let wanted = self
            .state
            .load()
            .settings
            .config
            .service
            .maximum_connections;
        let served = wanted.min(self.most_connections - self.most_connections / 10);
        (served, self.most_connections.min(served.saturating_mul(2)))
    }
}

/// Serves all `listeners` until `stop` says otherwise; reloads whenever `reload` says so.
///
/// When told to drain, it closes the listeners and lets connections go on, as closing one between two messages would
/// fail the rest of its SMTP session; after `DrainTimeout` it refuses new messages and closes what has none in progress;
/// [`GRACE`] later it closes everything. It returns as soon as there is no connection left.
///
/// # Errors
/// A listener cannot be handed to the event loop.
pub async fn run(
    listeners: Vec<Listener>,
    state: Arc<ArcSwap<State>>,
    options: Options,
    reload: mpsc::Receiver<()>,
    mut stop: watch::Receiver<Stop>,
) -> io::Result<()> {
    let in_force = Arc::clone(&state);
    let shared = Arc::new(Shared {
        state: Arc::clone(&state),
        settings: Arc::new(move || Arc::clone(&in_force.load().settings)),
        patience: options.patience,
        started: Instant::now(),

        vitals: Arc::clone(&options.vitals),
        most_connections: options.most_connections,
    });
    let (phase, _) = watch::channel(Phase::Serving);
    let mut tasks = JoinSet::new();
    for listener in listeners {
        let (socket, address, file) = listener.split();
        let acceptor = Acceptor::new(socket)?;
        let (shared, phase) = (Arc::clone(&shared), phase.subscribe());
        tasks.spawn(async move {
            // Removed with this task, after the socket is closed.
            let _file = file;
            accept_all(acceptor, &address, &shared, &phase).await;
        });
    }
    tasks.spawn(reload::on_request(
        reload,
        Arc::clone(&state),
        options.loader,
        Arc::clone(&options.vitals),
    ));
    // It outlives them, and ends when this is dropped.
    let mut to_the_end = JoinSet::new();
    to_the_end.spawn(vitals::watch(
        Arc::clone(&options.vitals),
        Arc::clone(&state),
        options.changed,
    ));
    options.vitals.set_stage(Stage::Serving);
    tasks.spawn(published::watch(Arc::clone(&state)));
    // Without anyone left who could say stop, there is no reason to go on.
    let _ = stop.wait_for(|stop| *stop > Stop::No).await;
    options.vitals.set_stage(Stage::Stopping);
    tasks.shutdown().await;
    drain(&shared, &phase, &mut stop).await;
    Ok(())
}

/// How long messages in progress may still take once [`Stop::Drain`]'s time is over.
pub const GRACE: Duration = Duration::from_secs(5);

async fn drain(shared: &Shared, phase: &watch::Sender<Phase>, stop: &mut watch::Receiver<Stop>) {
    let census = &shared.vitals.census;
    let patience = shared.state.load().settings.config.service.drain_timeout;
    for (next, patience) in [(Phase::Refusing, patience), (Phase::Closing, GRACE)] {
        tokio::select! {
            () = census.wait_below(1) => return,
            () = sleep(patience) => {}
            _ = stop.wait_for(|stop| *stop == Stop::Now) => {}
        }
        let left = census.open();
        tracing::info!(
            "stopping: {} left, {}",
            reload::counted(left, "connection"),
            match next {
                Phase::Refusing => "new messages are refused",
                _ => "closing them",
            }
        );
        phase.send_replace(next);
    }
    // One that is stuck in a write ends with the process.
    let _ = timeout(Duration::from_secs(1), census.wait_below(1)).await;
}

/// Accepts for ever.
async fn accept_all(
    acceptor: Acceptor,
    address: &str,
    shared: &Arc<Shared>,
    phase: &watch::Receiver<Phase>,
) {
    let mut trouble = Trouble::default();
    let mut is_full = false;
    loop {
        shared.vitals.census.wait_below(shared.limits().1).await;
        match acceptor.accept().await {
            Ok(stream) => {
                trouble.pause = SHORTEST_PAUSE;
                start(stream, shared, phase, &mut is_full);
            }
            Err(error) if is_of_one_connection(&error) => {
                tracing::debug!(
                    "a connection to {address} was lost before it was accepted: {error}"
                );
            }
            Err(error) => trouble.wait(address, &error).await,
        }
    }
}

/// Starts the task of a connection; over the limit, one whose messages are refused.
fn start(stream: Stream, shared: &Arc<Shared>, phase: &watch::Receiver<Phase>, is_full: &mut bool) {
    let (limit, _) = shared.limits();
    let seat = Census::enter(&shared.vitals.census);
    let refusal = (seat.number > limit).then_some("too many connections");
    shared.vitals.metrics.connection(refusal.is_some());
    if refusal.is_some() && !*is_full {
        tracing::warn!(
            "{limit} connections are open: messages on further ones are refused for now (MaximumConnections)"
        );
    }
    // Said again only after it was well below.
    *is_full = refusal.is_some() || *is_full && seat.number > limit - limit / 10;
    let connection = Connection::new(stream, Arc::clone(shared), phase.clone(), seat, refusal);
    tokio::spawn(connection.serve());
}

/// What happens while the system has no more sockets to give.
struct Trouble {
    pause: Duration,
    told_at: Option<Instant>,
}

impl Default for Trouble {
    fn default() -> Self {
        Self {
            pause: SHORTEST_PAUSE,
            told_at: None,
        }
    }
}

impl Trouble {
    /// Says so, though not every time, and waits for better times.
    async fn wait(&mut self, address: &str, error: &io::Error) {
        if self.told_at.is_none_or(|at| at.elapsed() > TOLD_AGAIN) {
            tracing::error!("no connection to {address} can be accepted: {error}; trying again");
            self.told_at = Some(Instant::now());
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// Whether the error is of the one connection, so that the next one can be accepted at once (accept(2), "Error
/// handling"). Any other would come again at once: no descriptors, no memory, a socket that is none.
fn is_of_one_connection(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    [
        Errno::CONNABORTED,
        Errno::CONNRESET,
        Errno::INTR,
        Errno::PERM,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::TIMEDOUT,
    ]
    .into_iter()
    .any(|of_one| errno == Some(of_one))
}

/// How many connections there are.
#[derive(Debug, Default)]
struct Census {
    open: AtomicUsize,
    left: Notify,
}

/// One connection's place in the census, for as long as it is kept.
#[derive(Debug)]
struct Seat {
    census: Arc<Census>,
    /// How many connections there were with this one.
    number: usize,
}

impl Census {
    fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn enter(census: &Arc<Self>) -> Seat {
        Seat {
            census: Arc::clone(census),
            number: census.open.fetch_add(1, Ordering::AcqRel) + 1,
        }
    }

    /// Waits until there are fewer than `limit` connections.
    async fn wait_below(&self, limit: usize) {
        loop {
            let left = self.left.notified();
            if self.open() < limit.max(1) {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.census.open.fetch_sub(1, Ordering::AcqRel);
        self.census.left.notify_waiters();
    }
}
