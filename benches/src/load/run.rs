//! A run: so many connections that send so many messages, as fast as answers come or at a rate, and never longer than a
//! limit.
//!
//! Without a rate the next message of a connection starts when the last one is answered (a closed loop): what a milter can
//! do at most. With one, each message has a moment at which it is due, and its latency counts from there even if all
//! connections are busy then (an open loop): what a user would see.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout_at};

use super::address::{Address, Target};
use super::connection::{Client, Connection, Failure};
use super::message::Message;
use super::pace::Pacer;
use super::process::{Memory, Watched};
use super::report::{Daemon, Generator, Latency, Report};
use crate::rounds::process_cpu_time;

/// What to do.
#[derive(Debug)]
pub struct Plan {
    /// The milter.
    pub address: Address,
    /// Its socket.
    pub target: Target,
    /// What is sent; several messages take turns. There must be one.
    pub messages: Vec<Message>,
    /// Who sends it.
    pub client: Client,
    /// Connections at once.
    pub connections: usize,
    /// How many messages; without a count, as many as `duration` lets through.
    pub count: Option<u64>,
    /// Messages over a connection before the next one is opened.
    pub per_connection: u64,
    /// Messages before those that count.
    pub warmup: u64,
    /// Messages by second that are due.
    pub rate: Option<f64>,
    /// No message starts after this.
    pub duration: Option<Duration>,
    /// Idle connections that are open all the while.
    pub held: usize,
    /// What has to come back.
    pub expected: Expected,
    /// How long the milter may take for a reply.
    pub patience: Duration,
    /// How long everything may take.
    pub limit: Duration,
    /// The milter's process, if it is known.
    pub watched: Option<Watched>,
}

/// What each message must come back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing but an answer that lets it go on.
    Nothing,
    /// A new DKIM-Signature.
    Signature,
    /// A new Authentication-Results with dkim=pass.
    Pass,
}

/// Carries out `plan`.
///
/// # Errors
/// A milter that cannot be spoken with at all, or a system that does not give what is needed. What goes wrong with a
/// message is counted in the report.
pub fn run(plan: Plan) -> Result<Report, RunError> {
    raise_descriptor_limit(&plan)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(RunError::System)?;
    LocalSet::new().block_on(&runtime, carry_out(plan))
}

async fn carry_out(mut plan: Plan) -> Result<Report, RunError> {
    let deadline = Instant::now() + plan.limit;
    let open = async |plan: &Plan| {
        let opened = Connection::open(&plan.target, &plan.client, plan.patience);
        let opened = timeout_at(deadline.into(), opened).await;
        opened
            .unwrap_or(Err(Failure::TimeLimit))
            .map_err(RunError::Unreachable)
    };
    let first = open(&plan).await?;
    if plan.watched.is_none() {
        // Process 1 has opened the socket for somebody else.
        let pid = first.peer_pid().filter(|pid| *pid > 1);
        plan.watched = pid.and_then(Watched::new);
    }
    first.quit().await;

    let watched = plan.watched.clone();
    let memory = || watched.as_ref().and_then(Watched::memory);
    let memory_before = memory();
    let mut held = Vec::with_capacity(plan.held);
    for _ in 0..plan.held {
        held.push(open(&plan).await?);
    }
    if !held.is_empty() {
        sleep(SETTLING).await;
    }
    let memory_held = memory();

    let plan = Rc::new(plan);
    if plan.warmup > 0 {
        let warmup = Phase::new(&plan, plan.warmup, None, None)?;
        Phase::finish(warmup, deadline).await?;
    }
    let cpu_time = || watched.as_ref().and_then(Watched::cpu_time);
    let (own_before, cpu_before) = (process_cpu_time(), cpu_time());
    let count = plan.count.unwrap_or(u64::MAX);
    let phase = Phase::new(&plan, count, plan.rate, plan.duration)?;
    let phase = Phase::finish(phase, deadline).await?;
    let (own, cpu) = (process_cpu_time() - own_before, cpu_time());
    let memory_after = memory();

    let mut tally = phase.tally.take();
    for connection in &mut held {
        if connection.is_lost().await {
            tally.count_error("held connection lost", 1);
        }
    }
    for connection in held {
        connection.quit().await;
    }
    let seconds = phase.last_end.get().duration_since(phase.start);
    let cpu = cpu.zip(cpu_before).map(|(after, before)| after - before);
    let daemon = watched.as_ref().map(|watched| {
        let memories = [memory_before, memory_held, memory_after];
        describe(watched, &plan, tally.finished, cpu, memories)
    });
    Ok(report(&plan, tally, seconds, own, daemon))
}

fn report(
    plan: &Plan,
    tally: Tally,
    wall: Duration,
    own_cpu: Duration,
    daemon: Option<Daemon>,
) -> Report {
    let seconds = wall.as_secs_f64();
    let by_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let octets: usize = plan.messages.iter().map(Message::octets).sum();
    Report {
        address: plan.address.to_string(),
        connections: plan.connections,
        per_connection: plan.per_connection,
        message_octets: octets / plan.messages.len().max(1),
        messages: tally.finished,
        seconds,
        messages_per_second: by_second(tally.finished as f64),
        latency_ms: Latency::of(tally.latencies),
        errors: tally.errors,
        replies: tally.replies,
        headers_added: tally.added,
        signed: tally.signed,
        dkim_pass: tally.passed,
        daemon,
        generator: Generator {
            cpu_seconds: own_cpu.as_secs_f64(),
            cpu_share: by_second(own_cpu.as_secs_f64()),
        },
    }
}

/// What the milter took; `memories` are from before all, with the held connections, and from the end.
fn describe(
    watched: &Watched,
    plan: &Plan,
    messages: u64,
    cpu: Option<Duration>,
    memories: [Option<Memory>; 3],
) -> Daemon {
    let [before, held, after] = memories;
    let messages = messages as f64;
    let cpu = cpu.map(|cpu| cpu.as_secs_f64());
    let measured = cpu.filter(|cpu| messages > 0.0 && *cpu > 0.0);
    Daemon {
        pid: watched.pid(),
        processes: watched.processes(),
        cpu_seconds: cpu,
        cpu_ms_per_message: measured.map(|cpu| 1000.0 * cpu / messages),
        messages_per_cpu_second: measured.map(|cpu| messages / cpu),
        peak_rss: after.map(|memory| memory.peak),
        rss: after.map(|memory| memory.resident),
        rss_before: before.map(|memory| memory.resident),
        held: plan.held,
        rss_held: held.map(|memory| memory.resident),
    }
}

/// Messages that are sent in one go, with what all connections share.
struct Phase {
    plan: Rc<Plan>,
    count: u64,
    pacer: Option<Pacer>,
    start: Instant,
    end: Option<Instant>,
    next: Cell<u64>,
    last_end: Cell<Instant>,
    tally: RefCell<Tally>,
}

/// What has come back.
#[derive(Default)]
struct Tally {
    finished: u64,
    latencies: Vec<Duration>,
    errors: BTreeMap<String, u64>,
    replies: BTreeMap<char, u64>,
    added: BTreeMap<String, u64>,
    signed: u64,
    passed: u64,
}

/// A message to send.
struct Turn {
    index: u64,
    due: Option<Instant>,
}

impl Phase {
    fn new(
        plan: &Rc<Plan>,
        count: u64,
        rate: Option<f64>,
        duration: Option<Duration>,
    ) -> Result<Rc<Self>, RunError> {
        let pacer = rate.map(Pacer::start).transpose();
        let pacer = pacer.map_err(RunError::System)?;
        let start = pacer
            .as_ref()
            .map_or_else(Instant::now, |pacer| pacer.moment(0));
        Ok(Rc::new(Self {
            plan: Rc::clone(plan),
            count,
            pacer,
            start,
            end: duration.map(|duration| start + duration),
            next: Cell::new(0),
            last_end: Cell::new(start),
            tally: RefCell::default(),
        }))
    }

    /// Sends all messages, or those that the time until `deadline` is enough for.
    async fn finish(phase: Rc<Self>, deadline: Instant) -> Result<Rc<Self>, RunError> {
        let mut connections = JoinSet::new();
        for _ in 0..phase.plan.connections {
            connections.spawn_local(send_in_turn(Rc::clone(&phase)));
        }
        if io::stderr().is_terminal() {
            let shown = Rc::clone(&phase);
            let progress = tokio::task::spawn_local(async move { shown.show_progress().await });
            let ended = phase.join(&mut connections, deadline).await;
            progress.abort();
            // Nobody is left to be told that standard error is closed.
            let _ = write!(io::stderr(), "\r\x1b[K");
            ended?;
        } else {
            phase.join(&mut connections, deadline).await?;
        }
        Ok(phase)
    }

    async fn join(&self, connections: &mut JoinSet<()>, deadline: Instant) -> Result<(), RunError> {
        let all = async {
            while let Some(ended) = connections.join_next().await {
                // A task that has panicked is a fault of this program.
                ended.map_err(io::Error::other)?;
            }
            Ok(())
        };
        match timeout_at(deadline.into(), all).await {
            Ok(ended) => ended.map_err(RunError::System),
            Err(_) => {
                connections.shutdown().await;
                let mut tally = self.tally.borrow_mut();
                let asked = match self.count {
                    u64::MAX => self.next.get(),
                    count => count,
                };
                let known = tally.finished + tally.errors.values().sum::<u64>();
                let missing = asked.saturating_sub(known);
                tally.count_error(&Failure::TimeLimit.to_string(), missing);
                Ok(())
            }
        }
    }

    async fn show_progress(&self) {
        loop {
            sleep(Duration::from_millis(500)).await;
            let done = self.tally.borrow().finished;
            let of = match self.count {
                u64::MAX => String::new(),
                count => format!(" of {count}"),
            };
            let _ = write!(io::stderr(), "\r{done}{of} messages");
        }
    }

    fn turn(&self) -> Option<Turn> {
        let index = self.next.get();
        let due = self.pacer.as_ref().map(|pacer| pacer.moment(index));
        let is_late = |end| due.unwrap_or_else(Instant::now) >= end;
        if index >= self.count || self.end.is_some_and(is_late) {
            return None;
        }
        self.next.set(index + 1);
        Some(Turn { index, due })
    }

    /// Sends one message and counts what comes back. Whether the connection can be used for the next.
    async fn send(&self, connection: &mut Connection, turn: &Turn) -> bool {
        let plan = &self.plan;
        let begin = turn.due.unwrap_or_else(Instant::now);
        let message = &plan.messages[(turn.index % plan.messages.len() as u64) as usize];
        let (mut is_signed, mut has_passed) = (false, false);
        let added = |name: &[u8], value: &[u8]| {
            is_signed |= name.eq_ignore_ascii_case(b"DKIM-Signature");
            has_passed |= name.eq_ignore_ascii_case(b"Authentication-Results") && says_pass(value);
            self.tally.borrow_mut().count_field(name);
        };
        let queue_id = format!("{:08X}", turn.index);
        let sent = connection
            .message(message, &plan.client, &queue_id, added)
            .await;
        let end = Instant::now();
        let mut tally = self.tally.borrow_mut();
        let reply = match sent {
            Ok(reply) => reply,
            Err(failure) => {
                tally.count_error(&failure.to_string(), 1);
                return false;
            }
        };
        *tally.replies.entry(reply).or_default() += 1;
        tally.signed += u64::from(is_signed);
        tally.passed += u64::from(has_passed);
        let missing = match plan.expected {
            Expected::Signature if !is_signed => Some("a DKIM-Signature"),
            Expected::Pass if !has_passed => Some("dkim=pass"),
            _ => None,
        };
        match missing {
            Some(missing) => tally.count_error(&Failure::Without(missing).to_string(), 1),
            None => {
                tally.finished += 1;
                tally.latencies.push(end - begin);
                self.last_end.set(end);
            }
        }
        true
    }
}

/// What one connection after the other does in its place.
async fn send_in_turn(phase: Rc<Phase>) {
    let plan = Rc::clone(&phase.plan);
    let mut connection = None;
    let mut sent = 0;
    while let Some(turn) = phase.turn() {
        if let Some(pacer) = &phase.pacer {
            pacer.next().await;
        }
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(&plan.target, &plan.client, plan.patience).await {
                Ok(new) => {
                    sent = 0;
                    new
                }
                Err(failure) => {
                    phase
                        .tally
                        .borrow_mut()
                        .count_error(&failure.to_string(), 1);
                    sleep(AFTER_A_REFUSAL).await;
                    continue;
                }
            },
        };
        if !phase.send(&mut open, &turn).await {
            continue;
        }
        sent += 1;
        if sent < plan.per_connection {
            connection = Some(open);
        } else {
            open.quit().await;
        }
    }
    if let Some(open) = connection {
        open.quit().await;
    }
}

impl Tally {
    fn count_error(&mut self, kind: &str, count: u64) {
        if count > 0 {
            *self.errors.entry(kind.to_owned()).or_default() += count;
        }
    }

    fn count_field(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        if let Some(count) = self.added.get_mut(name.as_ref()) {
            *count += 1;
        } else if self.added.len() < MAX_NAMES {
            self.added.insert(name.into_owned(), 1);
        }
    }
}

/// Whether the value of an Authentication-Results has a result `dkim=pass` (RFC 8601 section 2.2). A comment with a
/// semicolon is not looked through: the result behind it still begins after one.
fn says_pass(value: &[u8]) -> bool {
    value.split(|&o| o == b';').skip(1).any(|part| {
        let Some((method, result)) = part.trim_ascii().split_at_checked(4) else {
            return false;
        };
        let result = result.trim_ascii_start().strip_prefix(b"=");
        let word = result.and_then(|result| result.trim_ascii_start().split_at_checked(4));
        method.eq_ignore_ascii_case(b"dkim")
            && word.is_some_and(|(word, rest)| {
                let ends = !rest.first().is_some_and(|o| o.is_ascii_alphanumeric());
                word.eq_ignore_ascii_case(b"pass") && ends
            })
    })
}

/// Takes as many descriptors as the system lets this process have.
fn raise_descriptor_limit(plan: &Plan) -> Result<(), RunError> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // If it is not enough then, that is told below.
    let _ = setrlimit(Resource::Nofile, raised);
    let needed = (plan.connections + plan.held + OTHER_DESCRIPTORS) as u64;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(RunError::Descriptors { needed, limit }),
        _ => Ok(()),
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no milter, or none that can be spoken with.
    #[error("{0}")]
    Unreachable(Failure),
    /// Too many connections for this process.
    #[error("{needed} files and sockets are needed, and {limit} can be open (ulimit -n)")]
    Descriptors {
        /// How many it takes.
        needed: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The system does not give what is needed.
    #[error("{0}")]
    System(io::Error),
}

/// After this, what a milter does upon a connection is done.
const SETTLING: Duration = Duration::from_millis(300);

/// A milter that cannot be reached is not asked again at once.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(100);

/// A milter that invents names must not fill the memory.
const MAX_NAMES: usize = 100;

/// Standard streams, the runtime's own, and some.
const OTHER_DESCRIPTORS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_a_result_and_not_a_word_somewhere() {
        for (value, wanted) in [
            (" mx.example; dkim=pass header.d=example.com", true),
            (" mx.example;\n\tdkim=pass (2048-bit key) header.d=x", true),
            (" mx.example 1; spf=fail; DKIM = Pass", true),
            ("mx.example; dkim=fail reason=\"dkim=pass\"", false),
            ("mx.example; dkim=passed", false),
            ("mx.example; dkim=none", false),
            ("mx.example; dkim-atps=pass", false),
            ("dkim=pass", false),
            ("mx.example; none", false),
            ("mx.example; dkim", false),
            ("", false),
        ] {
            assert_eq!(says_pass(value.as_bytes()), wanted, "{value}");
        }
    }
}
