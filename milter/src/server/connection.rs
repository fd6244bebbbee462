//! One connection from its first octet to its last: reads frames, gives the session its commands, carries out what comes
//! back.
//!
//! All that one read brings is answered by one write. A body chunk is answered before it is hashed, so that the MTA
//! prepares the next one meanwhile. Software keys sign and check here and now; a key that takes its time, and a token that
//! verifies, is awaited by a task, as DNS look-ups are, and such tasks end with the connection. While the end of a message
//! waits for answers no command is taken, but a little is read, to notice when the MTA hangs up.
//!
//! Failing: what does not read as milter packets, an MTA that falls silent within a packet or takes no answer, and a panic
//! close this connection and nothing else; after a panic the command at hand is answered with TEMPFAIL first, if it is one
//! that is answered.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dkim_core::engine::{Completion, Engine, SigningError};
use dkim_core::key_record::KeyAnswer;
use dkim_core::verifier::{Check, CheckOutcome};
use pkcs11_engine::{Fault, TokenDigest, TokenVerifier};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::read_buffer::ReadBuffer;
use super::stream::Stream;
use super::{Phase, Seat, Shared};
use crate::config::Fallback;
use crate::dns::KeySource;
use crate::keys::{AWAY, Tries, in_general, unavailable};
use crate::protocol::command::{Command, code};
use crate::protocol::frame::{DEFAULT_LIMIT, Decoded, Frame};
use crate::protocol::reply::Reply;
use crate::session::{Actions, Now, Session, Work};

/// Serves one MTA until either side is done.
pub(super) struct Connection {
    stream: Stream,
    session: Session,
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
    input: ReadBuffer,
    actions: Actions,
    /// Look-ups, and what keys and tokens take their time for.
    tasks: JoinSet<Answer>,
    /// Given back when the connection ends, however it does.
    _seat: Seat,
    /// The digests that a token makes for the message, by their places.
    digests: HashMap<(u64, usize), TokenDigest>,
    /// When the session wants to be woken.
    wake_at: Option<Instant>,
    /// When something was read last.
    heard_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// The last command, to know what a panic leaves unanswered.
    last_command: u8,
    /// Whether anything was written since the last read.
    has_answered: bool,
}

/// What a task of a connection ends with: for which message, and at what place in its list of names or signatures.
enum Answer {
    Key(u64, usize, Arc<KeyAnswer>),
    Signature(u64, usize, Result<Vec<u8>, SigningError>),
    Check(u64, Box<Check>, CheckOutcome),
    Digest(u64, usize, Result<Vec<u8>, String>),
}

/// Why a connection ends.
#[derive(Debug)]
enum Ending {
    /// The session says so.
    Over,
    /// The MTA has closed it.
    HungUp,
    /// The MTA was silent for too long.
    Silence,
    /// The MTA takes no answers.
    Stuck,
    /// No milter packet.
    NotMilter,
    /// The socket failed.
    Failed(io::Error),
    /// Something panicked.
    Panicked,
    /// The daemon ends.
    Stopped,
}

/// What a connection waited for.
enum Event {
    Read(io::Result<usize>),
    Answered(Option<Answer>),
    Timer,
    Phase,
}

impl Connection {
    /// `refusal` is why no message is taken, if so.
    pub(super) fn new(
        stream: Stream,
        shared: Arc<Shared>,
        phase: watch::Receiver<Phase>,
        seat: Seat,
        refusal: Option<&'static str>,
    ) -> Self {
        let mut session = Session::new(Arc::clone(&shared.settings));
        if let Some(why) = refusal {
            session.refuse_messages(why);
        }
        if stream.is_unix() {
            session.on_unix_socket();
        }
        let heard_at = Instant::now();
        Self {
            stream,
            session,
            timer: Box::pin(sleep_until(heard_at + shared.patience.idle)),
            shared,
            phase,
            input: ReadBuffer::new(),
            actions: Actions::default(),
            tasks: JoinSet::new(),
            digests: HashMap::new(),
            _seat: seat,
            wake_at: None,
            heard_at,
            last_command: code::QUIT,
            has_answered: true,
        }
    }

    /// Serves the connection to its end, which is logged.
    pub(super) async fn serve(mut self) {
        let ending = match self.run().await {
            ControlFlow::Break(ending) => ending,
            ControlFlow::Continue(never) => match never {},
        };
        match ending {
            Ending::Over | Ending::HungUp | Ending::Stopped => {
                tracing::debug!("connection closed: {ending:?}")
            }
            Ending::NotMilter => tracing::debug!("not a milter packet: connection closed"),
            Ending::Silence | Ending::Stuck if !self.session.in_message() => {
                tracing::debug!("connection closed: {ending:?}");
            }
            Ending::Silence => {
                tracing::warn!("connection closed within a message: the MTA fell silent")
            }
            Ending::Stuck => {
                tracing::warn!("connection closed within a message: the MTA took no answer")
            }
            Ending::Failed(error) => tracing::debug!("connection closed: {error}"),
            Ending::Panicked => tracing::error!("connection closed: internal error, logged above"),
        }
    }

    async fn run(&mut self) -> ControlFlow<Ending, std::convert::Infallible> {
        self.change_phase()?;
        loop {
            let wanted = self.carry_out_frames().await?;
            self.flush().await?;
            if self.actions.close {
                return ControlFlow::Break(Ending::Over);
            }
            if *self.phase.borrow() >= Phase::Refusing
                && !self.session.in_message()
                && !self.session.is_busy()
            {
                return ControlFlow::Break(Ending::Stopped);
            }
            if !self.has_answered {
                self.stream.quick_ack();
            }
            if !self.session.in_message() {
                self.digests.clear();
                self.input.shrink();
                self.shrink_output();
            }
            match self.wait(wanted).await {
                Event::Read(Ok(0)) => return ControlFlow::Break(Ending::HungUp),
                Event::Read(Ok(_)) => {
                    self.heard_at = Instant::now();
                    self.has_answered = false;
                }
                Event::Read(Err(error)) => return ControlFlow::Break(Ending::Failed(error)),
                Event::Answered(Some(answer)) => self.answered(answer).await?,
                Event::Answered(None) => {}
                Event::Timer => self.timer_rang().await?,
                Event::Phase => self.change_phase()?,
            }
        }
    }

    /// Gives the session every frame that is there, as long as it takes commands; how many octets the next frame needs.
    async fn carry_out_frames(&mut self) -> ControlFlow<Ending, usize> {
        while !self.session.is_busy() && !self.actions.close {
            match self.input.decode(DEFAULT_LIMIT) {
                Decoded::Frame(frame) => {
                    self.carry_out(&frame).await?;
                    self.input.consume(&frame);
                }
                Decoded::NeedMore { total } => return ControlFlow::Continue(total),
                Decoded::TooLarge { .. } | Decoded::Empty => {
                    return ControlFlow::Break(Ending::NotMilter);
                }
            }
        }
        ControlFlow::Continue(0)
    }

    async fn carry_out(&mut self, frame: &Frame) -> ControlFlow<Ending> {
        self.last_command = frame.command;
        let now = self.shared.now();
        let data = self.input.data(&frame.data);
        let command = Command::parse(frame.command, data).map_err(|fault| (frame.command, fault));
        let chunk = matches!(command, Ok(Command::Body(_)));
        let survived = survives(&mut self.session, &mut self.actions, |session, actions| {
            session.command(command, now, actions);
        });
        if !survived {
            let is_unanswered = self.session.expects_reply(frame.command);
            return self.panicked(is_unanswered).await;
        }
        if chunk {
            // The answer first: the MTA works while we hash.
            self.flush().await?;
            let chunk = self.input.data(&frame.data);
            if !survives(&mut self.session, &mut self.actions, |session, actions| {
                session.body(chunk);
                session.body_work(actions);
            }) {
                return self.panicked(false).await;
            }
        }
        self.work().await
    }

    /// Tells the session of an event that is no command, and does what follows.
    async fn tell(
        &mut self,
        event: impl FnOnce(&mut Session, Now, &mut Actions),
    ) -> ControlFlow<Ending> {
        let now = self.shared.now();
        let awaits_end = self.session.is_busy() && self.last_command == code::BODYEOB;
        let event = |session: &mut Session, actions: &mut Actions| event(session, now, actions);
        if !survives(&mut self.session, &mut self.actions, event) {
            return self.panicked(awaits_end).await;
        }
        self.work().await
    }

    async fn answered(&mut self, answer: Answer) -> ControlFlow<Ending> {
        let answer = match answer {
            Answer::Check(message, check, outcome) => {
                let outcome = self.by_software(message, &check, outcome);
                Answer::Check(message, check, outcome)
            }
            answer => answer,
        };
        self.tell(|session, now, actions| match answer {
            Answer::Key(message, index, answer) => {
                session.key_answer(message, index, answer, now, actions);
            }
            Answer::Signature(message, index, result) => {
                session.signed(message, index, result, actions);
            }
            Answer::Check(message, check, outcome) => {
                session.checked(message, &check, outcome, actions);
            }
            Answer::Digest(message, place, result) => {
                session.digested(message, place, result, now, actions);
            }
        })
        .await
    }

    /// What a token has said of a signature; or what software says, if the token did not and that is configured.
    fn by_software(&self, message: u64, check: &Check, outcome: CheckOutcome) -> CheckOutcome {
        let (CheckOutcome::Unavailable(why) | CheckOutcome::Refused(why)) = &outcome else {
            return outcome;
        };
        let state = self.shared.state.load();
        if state.settings.duties.fallback() == Fallback::None {
            return outcome;
        }
        self.session.note(
            message,
            &format!("signature verified in software (Pkcs11Fallback): {why}"),
        );
        run(check, state.settings.engine())
    }

    /// Does the work that the session has handed out, until there is no more.
    async fn work(&mut self) -> ControlFlow<Ending> {
        loop {
            if let Some(outcome) = self.actions.outcome.take() {
                self.shared.vitals.metrics.message(&outcome);
            }
            if let Some(at) = self.actions.wake_at.take() {
                self.wake_at = Some(self.shared.started + at);
            }
            let work = std::mem::take(&mut self.actions.work);
            if work.is_empty() {
                return ControlFlow::Continue(());
            }
            for piece in work {
                self.work_on(piece).await?;
            }
        }
    }

    async fn work_on(&mut self, piece: Work) -> ControlFlow<Ending> {
        let awaits_end = self.last_command == code::BODYEOB;
        let shared = Arc::clone(&self.shared);
        let (session, actions) = (&mut self.session, &mut self.actions);
        let survived = match piece {
            Work::LookUp {
                message,
                index,
                name,
                timeout,
            } => {
                let source = Arc::clone(&self.shared.state.load().key_records);
                self.tasks.spawn(async move {
                    Answer::Key(message, index, look_up(source, name, timeout).await)
                });
                return ControlFlow::Continue(());
            }
            Work::Sign {
                message,
                index,
                key,
                octets,
                timeout,
            } => {
                let engine = key.engine();
                let (sender, mut receiver) = oneshot::channel();
                let completion = Completion::new(move |result| {
                    // Nobody is there any more if the connection has ended.
                    let _ = sender.send(result);
                });
                let submit = || key.submit(octets, timeout, completion);
                let result = match catch_unwind(AssertUnwindSafe(submit)) {
                    Err(_) => Err(SigningError(ENGINE_PANICKED.to_owned())),
                    Ok(()) => match receiver.try_recv() {
                        Ok(result) => result,
                        Err(_) => {
                            self.tasks.spawn(async move {
                                let result = late(receiver, timeout).await;
                                shared.vitals.metrics.signature(engine, result.is_ok());
                                Answer::Signature(message, index, result)
                            });
                            return ControlFlow::Continue(());
                        }
                    },
                };
                shared.vitals.metrics.signature(engine, result.is_ok());
                survives(session, actions, |session, actions| {
                    session.signed(message, index, result, actions);
                })
            }
            Work::Digest {
                message,
                place,
                octets,
                is_last,
                timeout: patience,
            } => {
                let receiver = self.feed((message, place), octets, is_last, patience);
                self.tasks.spawn(async move {
                    let away = || Err(AWAY.to_owned());
                    let result = match receiver {
                        Some(receiver) => match timeout(patience + MARGIN, receiver).await {
                            Ok(Ok(Ok(made))) => Ok(made),
                            Ok(Ok(Err(fault))) => Err(in_general(&fault).to_owned()),
                            Ok(Err(_)) | Err(_) => away(),
                        },
                        None => away(),
                    };
                    Answer::Digest(message, place, result)
                });
                return ControlFlow::Continue(());
            }
            Work::Check { message, check } => {
                let state = shared.state.load();
                if let Some(verifier) = state.settings.duties.verifier() {
                    let verifier = verifier.cloned();
                    let patience = state.settings.config.signing.tokens.timeout;
                    self.tasks.spawn(async move {
                        let outcome = check_on_token(&check, verifier, patience).await;
                        Answer::Check(message, Box::new(check), outcome)
                    });
                    return ControlFlow::Continue(());
                }
                let outcome = run(&check, state.settings.engine());
                survives(session, actions, |session, actions| {
                    session.checked(message, &check, outcome, actions);
                })
            }
        };
        if survived {
            ControlFlow::Continue(())
        } else {
            self.panicked(awaits_end).await
        }
    }

    /// Gives a token the next octets of a digest; who will tell what came of it, if there is such a token.
    fn feed(
        &mut self,
        place: (u64, usize),
        octets: Vec<u8>,
        is_last: bool,
        patience: Duration,
    ) -> Option<oneshot::Receiver<Result<Vec<u8>, Fault>>> {
        // Those of messages that are over give their sessions back.
        self.digests.retain(|(message, _), _| *message == place.0);
        let mut digest = match self.digests.remove(&place) {
            Some(digest) => digest,
            None => {
                let state = self.shared.state.load();
                state.settings.duties.digester()?.ok()?.digest()
            }
        };
        let (sender, receiver) = oneshot::channel();
        digest.feed(octets, is_last, patience, |made| {
            // Nobody is there any more if the connection has ended.
            let _ = sender.send(made);
        });
        if !is_last {
            self.digests.insert(place, digest);
        }
        Some(receiver)
    }

    /// Writes all that is due in one go.
    async fn flush(&mut self) -> ControlFlow<Ending> {
        if self.actions.replies.is_empty() {
            return ControlFlow::Continue(());
        }
        let written = timeout(
            self.shared.patience.write,
            self.stream.write_all(&self.actions.replies),
        )
        .await;
        self.actions.replies.clear();
        self.has_answered = true;
        match written {
            Ok(Ok(())) => ControlFlow::Continue(()),
            Ok(Err(error)) => ControlFlow::Break(Ending::Failed(error)),
            Err(_) => ControlFlow::Break(Ending::Stuck),
        }
    }

    /// The session cannot be trusted any more: answers what is unanswered, and ends.
    async fn panicked(&mut self, is_unanswered: bool) -> ControlFlow<Ending> {
        if is_unanswered {
            Reply::TempFail.encode(false, &mut self.actions.replies);
        }
        self.flush().await?;
        ControlFlow::Break(Ending::Panicked)
    }

    async fn wait(&mut self, wanted: usize) -> Event {
        self.set_timer();
        let can_read = !self.session.is_busy() || self.input.len() < READ_AHEAD;
        let Self {
            stream,
            input,
            tasks,
            timer,
            phase,
            ..
        } = self;
        tokio::select! {
            read = stream.read(input.room(wanted)), if can_read => Event::Read(read),
            answer = tasks.join_next(), if !tasks.is_empty() => Event::Answered(answer.and_then(Result::ok)),
            () = timer.as_mut() => Event::Timer,
            () = changed(phase) => Event::Phase,
        }
    }

    /// Makes sure that the timer rings in time. Ringing too early does no harm, so that it need not be set for each
    /// packet anew.
    fn set_timer(&mut self) {
        let silence = self.silent_until();
        let wanted = self.wake_at.map_or(silence, |wake_at| wake_at.min(silence));
        if wanted < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(wanted);
        }
    }

    /// When the MTA has been silent for too long. One that waits for us is not silent.
    fn silent_until(&self) -> Instant {
        let patience = &self.shared.patience;
        let is_within_packet = self.input.len() > 0 && !self.session.is_busy();
        self.heard_at
            + if is_within_packet {
                patience.packet
            } else {
                patience.idle
            }
    }

    async fn timer_rang(&mut self) -> ControlFlow<Ending> {
        let now = Instant::now();
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            return self.tell(Session::wake).await;
        }
        if self.silent_until() <= now {
            return ControlFlow::Break(Ending::Silence);
        }
        ControlFlow::Continue(())
    }

    fn change_phase(&mut self) -> ControlFlow<Ending> {
        match *self.phase.borrow_and_update() {
            Phase::Serving => {}
            Phase::Refusing => self
                .session
                .refuse_messages("this service is being stopped"),
            Phase::Closing => return ControlFlow::Break(Ending::Stopped),
        }
        ControlFlow::Continue(())
    }

    fn shrink_output(&mut self) {
        if self.actions.replies.capacity() > LARGE_OUTPUT {
            self.actions.replies = Vec::new();
        }
    }
}

impl Shared {
    /// The time as the session wants it.
    fn now(&self) -> Now {
        Now {
            monotonic: self.started.elapsed(),
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }
}

/// Whether `event` gets through without a panic; one that does not leaves no answers behind.
fn survives(
    session: &mut Session,
    actions: &mut Actions,
    event: impl FnOnce(&mut Session, &mut Actions),
) -> bool {
    let due = actions.replies.len();
    let done = catch_unwind(AssertUnwindSafe(|| event(session, actions)));
    if done.is_err() {
        actions.replies.truncate(due);
    }
    done.is_ok()
}

/// Never fails and never panics; takes no longer than `patience`.
async fn look_up(source: Arc<dyn KeySource>, name: String, patience: Duration) -> Arc<KeyAnswer> {
    let mut lookup = source.lookup(&name);
    let guarded = poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| lookup.as_mut().poll(context))).unwrap_or_else(|_| {
            Poll::Ready(Arc::new(KeyAnswer::Unavailable(
                "internal error in the resolver".to_owned(),
            )))
        })
    });
    timeout(patience, guarded).await.unwrap_or_else(|_| {
        Arc::new(KeyAnswer::Unavailable(
            "no answer from the DNS in time".to_owned(),
        ))
    })
}

/// A signature that is not there at once. It takes no longer than `patience`: a key that keeps its completions for ever
/// must not leave a task behind for each message.
async fn late(
    receiver: oneshot::Receiver<Result<Vec<u8>, SigningError>>,
    patience: Duration,
) -> Result<Vec<u8>, SigningError> {
    let failed = |why: &str| Err(SigningError(why.to_owned()));
    match timeout(patience, receiver).await {
        Ok(Ok(result)) => result,
        // A completion always answers, even when it is dropped.
        Ok(Err(_)) => failed(ENGINE_PANICKED),
        Err(_) => failed("key did not answer in time"),
    }
}

/// Checks in software, here and now. Never panics.
fn run(check: &Check, engine: &dyn Engine) -> CheckOutcome {
    catch_unwind(AssertUnwindSafe(|| check.run(engine)))
        .unwrap_or_else(|_| CheckOutcome::Unusable(ENGINE_PANICKED.to_owned()))
}

/// Has a token check, which takes no longer than `patience` for all keys there are.
async fn check_on_token(
    check: &Check,
    verifier: Result<TokenVerifier, Fault>,
    patience: Duration,
) -> CheckOutcome {
    let verifier = match verifier {
        Ok(verifier) => verifier,
        Err(fault) => return unavailable(&fault),
    };
    let until = Instant::now() + patience;
    let mut tries = Tries::default();
    loop {
        let (record, key) = match tries.next(check) {
            Ok(next) => next,
            Err(outcome) => return outcome,
        };
        let left = until.saturating_duration_since(Instant::now());
        let (sender, receiver) = oneshot::channel();
        verifier.submit(key, check.octets(), check.signature(), left, |answer| {
            // Nobody is there any more if the connection has ended.
            let _ = sender.send(answer);
        });
        // It has a deadline of its own; this one is for what should not be.
        let answer = match timeout(left + MARGIN, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Fault::Late),
        };
        if let Some(outcome) = tries.answered(record, answer) {
            return outcome;
        }
    }
}

/// How much longer than a token's own deadline is waited for it.
const MARGIN: Duration = Duration::from_secs(1);

/// The next change of phase; none comes once the server is gone.
async fn changed(phase: &mut watch::Receiver<Phase>) {
    if phase.changed().await.is_err() {
        pending().await
    }
}

const ENGINE_PANICKED: &str = "internal error in the engine";

/// How much is read ahead while a message's end waits for answers.
const READ_AHEAD: usize = 4096;

/// Larger output buffers are given back between messages.
const LARGE_OUTPUT: usize = 1024;

#[cfg(test)]
mod tests;
