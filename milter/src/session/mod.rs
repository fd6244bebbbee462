//! One MTA connection: events in, actions out; owns the message's state and awaits nothing.
//!
//! The server gives it each command and each answer to work it handed out, always with the time, and carries out what
//! it gets back: octets to write, work to do, a time to wake up at. Nothing here knows sockets, the DNS or threads.
//! `message` walks one message from its header to the answer at its end, `signing` and `verifying` are its two ways there;
//! `conclusion` is what it ends with, and `report` words results and log lines.

mod conclusion;
mod digests;
mod earlier;
mod message;
mod notes;
mod outcome;
mod report;
mod signing;
mod step;
#[cfg(test)]
mod tests;
mod verifying;

pub use outcome::{Course, Ending, Outcome};

use crate::policy::{Answer, is_peer};
use crate::protocol::command::{Command, CommandError, Offer, code};
use crate::protocol::macros::Macros;
use crate::protocol::negotiation::{Negotiated, negotiate};
use crate::protocol::peer::Peer;
use crate::protocol::reply::Reply;
use crate::protocol::state::{Order, Sequence};
use crate::settings::Settings;
use dkim_core::engine::{SigningError, SigningKey};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::verifier::{Check, CheckOutcome};
use message::Message;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use step::Step;

/// The time of an event.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since some moment before the connection; never goes back.
    pub monotonic: Duration,
    /// Seconds since 1970.
    pub unix: u64,
}

/// What the server is to do, in this order: write the replies, do the work, close.
#[derive(Debug, Default)]
pub struct Actions {
    /// Encoded replies, to be written in one go.
    pub replies: Vec<u8>,
    /// Work, each piece answered by an event, in any order.
    pub work: Vec<Work>,
    /// When to call [`Session::wake`], in [`Now::monotonic`]; replaces an earlier wish, `None` leaves it.
    pub wake_at: Option<Duration>,
    /// What the message came to, once that is settled.
    pub outcome: Option<Outcome>,
    /// The conversation is over.
    pub close: bool,
}

/// A piece of work; `message` tells answers that come too late from those that are awaited.
#[derive(Debug)]
pub enum Work {
    /// Ask for the TXT records of `name`, within `timeout`; answered by [`Session::key_answer`].
    LookUp {
        /// Which message of the connection.
        message: u64,
        /// Which of its names.
        index: usize,
        /// The name.
        name: String,
        /// How long the answer is awaited.
        timeout: Duration,
    },
    /// Sign; answered by [`Session::signed`].
    Sign {
        /// Which message of the connection.
        message: u64,
        /// Which of its signatures.
        index: usize,
        /// The key that signs.
        key: Arc<dyn SigningKey>,
        /// What it signs.
        octets: Vec<u8>,
        /// How long the signature is awaited.
        timeout: Duration,
    },
    /// Have a token hash a piece of the body; answered by [`Session::digested`]. The steps of one hash are handed out one
    /// after the other.
    Digest {
        /// Which message of the connection.
        message: u64,
        /// Which of its hashes.
        place: usize,
        /// The octets.
        octets: Vec<u8>,
        /// Whether they are the last.
        is_last: bool,
        /// How long that is awaited.
        timeout: Duration,
    },
    /// Check with the engine; answered by [`Session::checked`].
    Check {
        /// Which message of the connection.
        message: u64,
        /// What is to be checked.
        check: Check,
    },
}

/// The settings in force, asked for at each connection and each message.
pub type SettingsSource = Arc<dyn Fn() -> Arc<Settings> + Send + Sync>;

/// One MTA connection.
pub struct Session {
    settings: SettingsSource,
    negotiated: Negotiated,
    sequence: Sequence,
    client: Client,
    macros: Macros,
    message: Option<Message>,
    /// The header's buffer between messages.
    header: HeaderFields,
    messages: u64,
    refusal: Option<&'static str>,
    /// Whether the MTA may go on without answers where none is needed.
    is_unix: bool,
    /// What the client did wrong before its first message.
    oddity: Option<String>,
    has_warned: bool,
}

/// Who the MTA talks to.
#[derive(Debug, Default)]
struct Client {
    name: Vec<u8>,
    address: Option<IpAddr>,
}

/// What a message may need to know of its connection.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    client: &'a Client,
    macros: &'a Macros,
    negotiated: &'a Negotiated,
}

/// A buffer larger than this is given back after a message, so that idle connections cost little.
const KEPT_HEADER: usize = 4096;

impl Session {
    /// A new connection.
    pub fn new(settings: SettingsSource) -> Self {
        Self {
            settings,
            negotiated: Negotiated::default(),
            sequence: Sequence::default(),
            client: Client::default(),
            macros: Macros::default(),
            message: None,
            header: HeaderFields::new(),
            messages: 0,
            refusal: None,
            is_unix: false,
            oddity: None,
            has_warned: false,
        }
    }

    /// Takes a parsed command, or its octet and the fault if it could not be parsed.
    ///
    /// A body chunk is only answered here: the server writes the replies first, so that the MTA can go on, and then
    /// gives the chunk to [`body`](Self::body).
    pub fn command(
        &mut self,
        command: Result<Command<'_>, (u8, CommandError)>,
        now: Now,
        actions: &mut Actions,
    ) {
        let octet = command
            .as_ref()
            .map_or_else(|(octet, _)| *octet, Command::code);
        if octet != code::MACRO {
            self.macros.command(octet);
        }
        match self.sequence.advance(octet) {
            Order::InOrder => (),
            Order::EndsMessage => self.drop_message(),
            Order::OutOfOrder => {
                self.warn(&format!("command {:?} out of order", char::from(octet)));
                self.drop_message();
                return self.answer(octet, Reply::Continue, actions);
            }
        }
        match command {
            Ok(command) => self.in_order(command, now, actions),
            Err((_, fault)) => self.malformed(octet, fault, actions),
        }
    }

    /// Hashes a body chunk that was announced by [`command`](Self::command).
    pub fn body(&mut self, chunk: &[u8]) {
        if let Some(message) = &mut self.message {
            message.body(chunk);
        }
    }

    /// What a token is to do with the body that has come so far; to be asked for after [`body`](Self::body).
    pub fn body_work(&mut self, actions: &mut Actions) {
        if let Some(message) = &mut self.message {
            actions.work.extend(message.body_work());
        }
    }

    /// Takes the answer to [`Work::Digest`].
    pub fn digested(
        &mut self,
        message: u64,
        place: usize,
        result: Result<Vec<u8>, String>,
        now: Now,
        actions: &mut Actions,
    ) {
        self.answered(message, actions, |message, around| {
            message.digested(place, result, around, now)
        });
    }

    /// Takes the answer to [`Work::LookUp`].
    pub fn key_answer(
        &mut self,
        message: u64,
        index: usize,
        answer: Arc<KeyAnswer>,
        now: Now,
        actions: &mut Actions,
    ) {
        self.answered(message, actions, |message, around| {
            message.key_answer(index, answer, around, now)
        });
    }

    /// Takes the answer to [`Work::Sign`].
    pub fn signed(
        &mut self,
        message: u64,
        index: usize,
        result: Result<Vec<u8>, SigningError>,
        actions: &mut Actions,
    ) {
        self.answered(message, actions, |message, around| {
            message.signed(index, result, around)
        });
    }

    /// Takes the answer to [`Work::Check`].
    pub fn checked(
        &mut self,
        message: u64,
        check: &Check,
        outcome: CheckOutcome,
        actions: &mut Actions,
    ) {
        self.answered(message, actions, |message, around| {
            message.checked(check, outcome, around)
        });
    }

    /// Notes something of a message that is worth knowing beside its line.
    pub fn note(&self, message: u64, what: &str) {
        let around = Surroundings {
            client: &self.client,
            macros: &self.macros,
            negotiated: &self.negotiated,
        };
        if let Some(message) = self.message.as_ref().filter(|known| known.id() == message) {
            message.note(what, around);
        }
    }

    /// The time asked for has come.
    pub fn wake(&mut self, now: Now, actions: &mut Actions) {
        if let Some(message) = self.message.as_ref().filter(|message| message.is_waiting()) {
            self.answered(message.id(), actions, |message, around| {
                message.wake(around, now)
            });
        }
    }

    /// Whether the end of a message waits for answers, or a token for its body: no further command may be given until then.
    pub fn is_busy(&self) -> bool {
        self.message.as_ref().is_some_and(Message::is_waiting)
    }

    /// Whether a message is between MAIL and its end.
    pub fn in_message(&self) -> bool {
        self.sequence.in_message() || self.is_busy()
    }

    /// Refuses new messages from now on, for a while; why is told to the client.
    pub fn refuse_messages(&mut self, why: &'static str) {
        self.refusal = Some(why);
    }

    /// Says, before the negotiation, that the connection is a Unix socket: the MTA is then asked for no answers to MAIL, RCPT
    /// and DATA, unless messages are refused.
    pub fn on_unix_socket(&mut self) {
        self.is_unix = true;
    }

    /// Whether the MTA waits for an answer to a command, by its octet.
    pub fn expects_reply(&self, command: u8) -> bool {
        self.negotiated.expects_reply(command)
    }

    fn in_order(&mut self, command: Command<'_>, now: Now, actions: &mut Actions) {
        let octet = command.code();
        match command {
            Command::OptNeg(offer) => self.negotiate(offer, actions),
            Command::Macros { stage, pairs } => {
                self.macros.record(stage, pairs);
            }
            Command::Connect { host, peer } => self.connect(host, peer, actions),
            Command::Mail(envelope) => match self.refusal {
                Some(why) => {
                    self.sequence.message_over();
                    let refusal = Answer::TempFail("4.3.2", why);
                    actions.outcome = Some(Outcome::new(Course::Failed, &refusal));
                    self.answer(octet, step::temp_fail("4.3.2", why).reply(), actions);
                }
                None => {
                    self.start_message(envelope.address());
                    self.answer(octet, Reply::Continue, actions);
                }
            },
            Command::Rcpt(envelope) => {
                if let Some(message) = &mut self.message {
                    message.recipient(envelope.address());
                }
                self.answer(octet, Reply::Continue, actions);
            }
            Command::Header { name, value } => {
                let space = self.negotiated.space_before(value);
                if let Some(message) = &mut self.message {
                    message.header_field(name, space, value);
                }
                self.answer(octet, Reply::Continue, actions);
            }
            Command::EndOfHeader => self.step(octet, actions, |message, around| {
                message.end_of_header(around, now)
            }),
            Command::Body(_) => {
                let wants_body = self.message.as_ref().is_some_and(Message::wants_body);
                let reply = if !wants_body && self.negotiated.skip() {
                    Reply::Skip
                } else {
                    Reply::Continue
                };
                self.answer(octet, reply, actions);
            }
            Command::EndOfBody(chunk) => {
                self.body(chunk);
                self.step(octet, actions, |message, around| {
                    message.end_of_body(around, now)
                });
            }
            Command::Abort => self.drop_message(),
            Command::Quit => {
                self.drop_message();
                actions.close = true;
            }
            Command::QuitNewConnection => self.client = Client::default(),
            Command::Helo(_) | Command::Data | Command::UnknownSmtp(_) | Command::Unknown(_) => {
                self.answer(octet, Reply::Continue, actions);
            }
        }
    }

    fn negotiate(&mut self, offer: Offer, actions: &mut Actions) {
        let settings = (self.settings)();
        let wanted = match self.is_unix && self.refusal.is_none() {
            true => &settings.wanted_on_unix,
            false => &settings.wanted,
        };
        match negotiate(offer, wanted) {
            Ok(agreed) => {
                Reply::OptNeg { agreed, wanted }.encode(false, &mut actions.replies);
                self.negotiated = agreed;
            }
            Err(error) => {
                // No probe: a whole offer comes from an MTA.
                tracing::warn!(target: "protocol", "{error}");
                actions.close = true;
            }
        }
    }

    fn connect(&mut self, host: &[u8], peer: Peer<'_>, actions: &mut Actions) {
        self.client = Client {
            name: host.to_vec(),
            address: match peer {
                Peer::Inet(address, _) => Some(address),
                Peer::Unknown | Peer::Unix(_) | Peer::Other { .. } => None,
            },
        };
        let is_peer = is_peer(&(self.settings)(), &self.client.name, self.client.address);
        let reply = if is_peer {
            Reply::Accept
        } else {
            Reply::Continue
        };
        self.answer(code::CONNECT, reply, actions);
    }

    fn malformed(&mut self, octet: u8, fault: CommandError, actions: &mut Actions) {
        self.warn(&format!("malformed milter command: {fault}"));
        if octet == code::OPTNEG {
            actions.close = true;
        } else if octet == code::MAIL && self.expects_reply(octet) {
            self.sequence.message_over();
            self.answer(octet, Reply::TempFail, actions);
        } else {
            if octet == code::MAIL {
                self.start_message(b"");
            }
            if let Some(message) = &mut self.message {
                message.spoil(fault.to_string());
            }
            self.answer(octet, Reply::Continue, actions);
        }
    }

    /// Answers a command, if the MTA expects it.
    fn answer(&self, command: u8, reply: Reply<'_>, actions: &mut Actions) {
        if self.negotiated.expects_reply(command) {
            reply.encode(self.negotiated.leading_space(), &mut actions.replies);
        }
    }

    /// Has the message take a step, as the answer to `command`.
    fn step(
        &mut self,
        command: u8,
        actions: &mut Actions,
        event: impl FnOnce(&mut Message, Surroundings<'_>) -> Step,
    ) {
        let around = Surroundings {
            client: &self.client,
            macros: &self.macros,
            negotiated: &self.negotiated,
        };
        let Some(message) = &mut self.message else {
            // The message was refused or passed on earlier.
            return self.answer(command, Reply::Continue, actions);
        };
        let step = event(message, around);
        if step.wake_at.is_some() {
            actions.wake_at = step.wake_at;
        }
        if step.outcome.is_some() {
            actions.outcome = step.outcome;
        }
        actions.work.extend(step.work);
        for answer in &step.answers {
            self.answer(command, answer.reply(), actions);
        }
        if self.message.as_ref().is_some_and(Message::is_over) {
            self.drop_message();
            self.sequence.message_over();
            self.macros.message_over();
        }
    }

    /// Has the message take a step on the answer to its work, unless it is over.
    fn answered(
        &mut self,
        id: u64,
        actions: &mut Actions,
        event: impl FnOnce(&mut Message, Surroundings<'_>) -> Step,
    ) {
        if self
            .message
            .as_ref()
            .is_some_and(|message| message.id() == id)
        {
            self.step(code::BODYEOB, actions, event);
        }
    }

    fn start_message(&mut self, sender: &[u8]) {
        self.messages += 1;
        if let Some(oddity) = self.oddity.take() {
            self.warn(&oddity);
        }
        let header = std::mem::take(&mut self.header);
        self.message = Some(Message::new(
            self.messages,
            (self.settings)(),
            sender,
            header,
        ));
    }

    fn drop_message(&mut self) {
        if let Some(message) = self.message.take() {
            self.header = message.into_header();
            self.header.clear(KEPT_HEADER);
        }
    }

    /// What an MTA does wrong is told once a connection, and no sooner than it sends a message: until then it may be
    /// anybody who tries the port.
    fn warn(&mut self, what: &str) {
        if self.messages == 0 {
            tracing::debug!(target: "protocol", "{what}");
            self.oddity.get_or_insert_with(|| what.to_owned());
        } else if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(target: "protocol", "{what}");
        }
    }
}
