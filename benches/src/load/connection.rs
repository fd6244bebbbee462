//! One connection of an MTA: negotiation, the steps of a message, and what can go wrong on the way.
//!
//! Order and packets are Postfix' (`protocol::mta` knows the octets): each step has a macro packet before it, even one
//! that the milter does not want; what is not answered is gathered and goes out with the next thing that is; a piece of
//! the body is answered or not as was agreed. A reply that would make Postfix drop the milter is an error here.

use dkim_milter::protocol::command::{Command, Offer, code};
use dkim_milter::protocol::envelope::Envelope;
use dkim_milter::protocol::frame::{self, DEFAULT_LIMIT, Decoded, Frame};
use dkim_milter::protocol::macros::MacroPairs;
use dkim_milter::protocol::mta::{self, Answer, AnswerError};
use dkim_milter::protocol::negotiation::{Negotiated, VERSION, step};
use dkim_milter::protocol::peer::Peer;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::address::Target;
use super::message::Message;

/// Who the mail comes from, as the MTA tells.
#[derive(Clone, Debug)]
pub struct Client {
    /// The SMTP client's address.
    pub address: IpAddr,
    /// The envelope sender, without brackets.
    pub sender: String,
}

/// A connection that a milter has accepted, from negotiation to QUIT.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    agreed: Negotiated,
    /// How long a reply, or room for what is sent, may take.
    patience: Duration,
    /// Packets that wait for the next one that is answered.
    gathered: Vec<u8>,
    read: Vec<u8>,
    /// How much of `read` has been used.
    used: usize,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How a message, or a step of it, went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next step.
    Step,
    /// The end of the body.
    End,
    /// Nothing more; the message is accepted.
    Over,
}

impl Connection {
    /// Connects, negotiates, and tells of `client`.
    pub(super) async fn open(
        target: &Target,
        client: &Client,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let mut connection = Self {
            socket: Socket::connect(target, patience).await?,
            agreed: Negotiated::default(),
            patience,
            gathered: Vec::with_capacity(4096),
            read: Vec::with_capacity(READ_BUFFER),
            used: 0,
        };
        connection.negotiate().await?;
        connection.tell_of(client).await?;
        Ok(connection)
    }

    /// The process that listens, where the system says it: on UNIX sockets.
    pub(super) fn peer_pid(&self) -> Option<i32> {
        match &self.socket {
            Socket::Tcp(_) => None,
            Socket::Unix(stream) => stream.peer_cred().ok()?.pid(),
        }
    }

    /// Sends one message; `added` is called with name and value of each header field that the milter adds. The result
    /// is the final reply's letter.
    pub(super) async fn message(
        &mut self,
        message: &Message,
        client: &Client,
        queue_id: &str,
        mut added: impl FnMut(&[u8], &[u8]),
    ) -> Result<char, Failure> {
        let accepted = Ok('a');
        let sender = &client.sender;
        let argument = format!("<{sender}>");
        let parameters = format!("SIZE={}\0", message.octets());
        let command = Command::Mail(Envelope::new(argument.as_bytes(), parameters.as_bytes()));
        let macros = format!("{{mail_addr}}\0{sender}\0{{mail_host}}\0\0{{mail_mailer}}\0smtp\0");
        if self.step(&command, &macros).await? == Next::Over {
            return accepted;
        }
        let command = Command::Rcpt(Envelope::new(b"<bo@example.net>", b""));
        let macros = "{rcpt_addr}\0bo@example.net\0{rcpt_host}\0example.net\0{rcpt_mailer}\0smtp\0";
        if self.step(&command, macros).await? == Next::Over {
            return accepted;
        }
        // As with Postfix, the queue id is known from here on.
        let macros = format!("i\0{queue_id}\0");
        if self.step(&Command::Data, &macros).await? == Next::Over {
            return accepted;
        }
        for (name, value) in message.fields() {
            let value = match value {
                [b' ', rest @ ..] if !self.agreed.leading_space() => rest,
                _ => value,
            };
            let command = Command::Header { name, value };
            if self.step(&command, &macros).await? == Next::Over {
                return accepted;
            }
        }
        if self.step(&Command::EndOfHeader, &macros).await? == Next::Over {
            return accepted;
        }
        for packet in message.body() {
            match self.body(packet, &macros).await? {
                Next::Step => {}
                Next::End => break,
                Next::Over => return accepted,
            }
        }
        self.gather_macros(code::BODYEOB, &macros);
        mta::encode(&Command::EndOfBody(b""), &mut self.gathered);
        self.flush(b"").await?;
        let letter = self.final_reply(&mut added).await?;
        if self.used < self.read.len() {
            return Err(Failure::Unasked);
        }
        // Postfix says so after finished messages too.
        mta::encode(&Command::Abort, &mut self.gathered);
        Ok(letter)
    }

    /// Ends the connection as an MTA does. That the milter has gone already is no fault now.
    pub(super) async fn quit(mut self) {
        mta::encode(&Command::Quit, &mut self.gathered);
        let _ = self.flush(b"").await;
    }

    /// Whether the milter has closed the connection, or says something unasked.
    pub(super) async fn is_lost(&mut self) -> bool {
        timeout(Duration::ZERO, self.socket.read(&mut self.read))
            .await
            .is_ok()
    }

    async fn negotiate(&mut self) -> Result<(), Failure> {
        let offer = Offer {
            version: VERSION,
            actions: OFFERED_ACTIONS,
            steps: OFFERED_STEPS,
        };
        mta::encode(&Command::OptNeg(offer), &mut self.gathered);
        self.flush(b"").await?;
        let frame = self.frame(code::OPTNEG).await?;
        let answer = Answer::parse(frame.command, &self.read[frame.data])?;
        let Answer::OptNeg {
            version,
            actions,
            steps,
            ..
        } = answer
        else {
            return Err(Failure::out_of_place(frame.command, code::OPTNEG));
        };
        if version > VERSION || actions & !OFFERED_ACTIONS != 0 || steps & !OFFERED_STEPS != 0 {
            return Err(Failure::NotOffered);
        }
        self.agreed = Negotiated {
            version,
            actions,
            steps,
            progress: true,
        };
        Ok(())
    }

    /// CONNECT and HELO.
    async fn tell_of(&mut self, client: &Client) -> Result<(), Failure> {
        let address = client.address;
        let host = if address.is_loopback() {
            "localhost".to_owned()
        } else {
            format!("[{address}]")
        };
        let macros = format!(
            "j\0mx.example.net\0{{daemon_name}}\0smtpd\0v\0milter-load\0_\0{host} [{address}]\0\
             {{client_addr}}\0{address}\0"
        );
        let connect = Command::Connect {
            host: host.as_bytes(),
            peer: Peer::Inet(address, 40_000),
        };
        let helo = Command::Helo(b"client.example.com");
        if self.step(&connect, &macros).await? == Next::Over
            || self.step(&helo, "").await? == Next::Over
        {
            return Err(Failure::WantsNone);
        }
        Ok(())
    }

    /// One step that is not BODY.
    async fn step(&mut self, command: &Command<'_>, macros: &str) -> Result<Next, Failure> {
        self.gather_macros(command.code(), macros);
        if self.refuses(command.code()) {
            return Ok(Next::Step);
        }
        mta::encode(command, &mut self.gathered);
        self.after(command.code(), b"").await
    }

    /// One piece of the body, made into a packet beforehand.
    async fn body(&mut self, packet: &[u8], macros: &str) -> Result<Next, Failure> {
        self.gather_macros(code::BODY, macros);
        if self.refuses(code::BODY) {
            return Ok(Next::Step);
        }
        if self.agreed.expects_reply(code::BODY) {
            return self.after(code::BODY, packet).await;
        }
        self.flush(packet).await?;
        Ok(Next::Step)
    }

    /// What comes of a command that has been gathered, with `packet` to be sent behind.
    async fn after(&mut self, command: u8, packet: &[u8]) -> Result<Next, Failure> {
        if !self.agreed.expects_reply(command) {
            return Ok(Next::Step);
        }
        self.flush(packet).await?;
        loop {
            let frame = self.frame(command).await?;
            let answer = Answer::parse(frame.command, &self.read[frame.data])?;
            return match answer {
                Answer::Continue => Ok(Next::Step),
                Answer::Accept => Ok(Next::Over),
                Answer::Skip if command == code::BODY => Ok(Next::End),
                Answer::Progress => continue,
                Answer::Reject | Answer::TempFail | Answer::Discard | Answer::ReplyCode(_) => {
                    Err(Failure::refused(frame.command, &answer, command))
                }
                _ => Err(Failure::out_of_place(frame.command, command)),
            };
        }
    }

    /// The edits after the end of the body, and the reply after them.
    async fn final_reply(&mut self, added: &mut impl FnMut(&[u8], &[u8])) -> Result<char, Failure> {
        loop {
            let frame = self.frame(code::BODYEOB).await?;
            if OTHER_EDITS.contains(&frame.command) {
                continue;
            }
            let answer = Answer::parse(frame.command, &self.read[frame.data])?;
            match answer {
                Answer::Continue | Answer::Accept => return Ok(char::from(frame.command)),
                Answer::AddHeader { name, value } | Answer::InsertHeader { name, value, .. } => {
                    added(name, value);
                }
                Answer::ChangeHeader { .. } | Answer::Quarantine(_) | Answer::Progress => {}
                Answer::Reject | Answer::TempFail | Answer::Discard | Answer::ReplyCode(_) => {
                    return Err(Failure::refused(frame.command, &answer, code::BODYEOB));
                }
                Answer::Skip | Answer::OptNeg { .. } => {
                    return Err(Failure::out_of_place(frame.command, code::BODYEOB));
                }
            }
        }
    }

    fn gather_macros(&mut self, stage: u8, macros: &str) {
        let pairs = MacroPairs::new(macros.as_bytes());
        mta::encode(&Command::Macros { stage, pairs }, &mut self.gathered);
    }

    /// Whether the milter does not want a command.
    fn refuses(&self, command: u8) -> bool {
        let refusal = match command {
            code::CONNECT => step::NOCONNECT,
            code::HELO => step::NOHELO,
            code::MAIL => step::NOMAIL,
            code::RCPT => step::NORCPT,
            code::DATA => step::NODATA,
            code::HEADER => step::NOHDRS,
            code::EOH => step::NOEOH,
            code::BODY => step::NOBODY,
            _ => 0,
        };
        self.agreed.steps & refusal != 0
    }

    /// Writes what has gathered, and `packet` behind it. Nothing is due from the milter at such a moment: what it has said
    /// besides would be taken for the answer to what is written now.
    async fn flush(&mut self, mut packet: &[u8]) -> Result<(), Failure> {
        if self.used < self.read.len() {
            return Err(Failure::Unasked);
        }
        let mut gathered = self.gathered.as_slice();
        while !gathered.is_empty() || !packet.is_empty() {
            let both = [IoSlice::new(gathered), IoSlice::new(packet)];
            let write = timeout(self.patience, self.socket.write(&both)).await;
            let written = write.map_err(|_| Failure::TakesNothing)??;
            if written == 0 {
                return Err(Failure::Broken(io::ErrorKind::WriteZero));
            }
            let of_gathered = written.min(gathered.len());
            gathered = &gathered[of_gathered..];
            packet = &packet[written - of_gathered..];
        }
        self.gathered.clear();
        Ok(())
    }

    /// The next packet from the milter, in answer to `command`; it stays in `read` until the next is asked for.
    async fn frame(&mut self, command: u8) -> Result<Frame, Failure> {
        loop {
            match frame::decode(&self.read[self.used..], DEFAULT_LIMIT) {
                Decoded::Frame(mut frame) => {
                    frame.data = frame.data.start + self.used..frame.data.end + self.used;
                    self.used += frame.consumed;
                    return Ok(frame);
                }
                Decoded::NeedMore { .. } => {
                    self.read.drain(..self.used);
                    self.used = 0;
                    let read = timeout(self.patience, self.socket.read(&mut self.read)).await;
                    let read = read.map_err(|_| Failure::no_answer(command))??;
                    if read == 0 {
                        return Err(Failure::closed(command));
                    }
                }
                Decoded::TooLarge { .. } | Decoded::Empty => return Err(Failure::NotAPacket),
            }
        }
    }
}

impl Socket {
    async fn connect(target: &Target, patience: Duration) -> Result<Self, Failure> {
        let connect = async {
            match target {
                Target::Inet(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Ok(Self::Tcp(stream))
                }
                Target::Unix(path) => loop {
                    match UnixStream::connect(path).await {
                        // The milter's queue of connections is full: where a blocking socket would wait.
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            sleep(Duration::from_millis(1)).await;
                        }
                        other => break Ok(Self::Unix(other?)),
                    }
                },
            }
        };
        let connected = timeout(patience, connect).await;
        let connected = connected.unwrap_or(Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|error: io::Error| Failure::Connect(error.kind()))
    }

    async fn write(&mut self, octets: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(octets).await,
            Self::Unix(stream) => stream.write_vectored(octets).await,
        }
    }

    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        into.reserve(READ_BUFFER - into.len().min(READ_BUFFER / 2));
        match self {
            Self::Tcp(stream) => stream.read_buf(into).await,
            Self::Unix(stream) => stream.read_buf(into).await,
        }
    }
}

/// Why a message did not go through as it should; the text is the kind under which it is counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody there.
    #[error("cannot connect: {0}")]
    Connect(io::ErrorKind),
    /// Silence.
    #[error("no answer to {command} in time")]
    NoAnswer {
        /// What was sent.
        command: &'static str,
    },
    /// The end of the connection.
    #[error("connection closed instead of an answer to {command}")]
    Closed {
        /// What was sent.
        command: &'static str,
    },
    /// The milter does not read.
    #[error("what is sent is not taken in time")]
    TakesNothing,
    /// The connection broke while reading or writing.
    #[error("connection lost: {0}")]
    Broken(io::ErrorKind),
    /// An answer to the offer with something else in it.
    #[error("the milter asks for what was not offered")]
    NotOffered,
    /// It accepted the whole connection.
    #[error("the milter accepts all of the connection and wants no messages")]
    WantsNone,
    /// A length that no packet has.
    #[error("no milter packet")]
    NotAPacket,
    /// A reply that would make an MTA drop the milter.
    #[error("{0}")]
    Reply(#[from] AnswerError),
    /// A reply that is known, at the wrong time.
    #[error("reply {reply:?} to {command}")]
    OutOfPlace {
        /// The reply's letter.
        reply: char,
        /// What was sent.
        command: &'static str,
    },
    /// More replies than commands.
    #[error("reply to nothing that was asked")]
    Unasked,
    /// The milter does not want the message.
    #[error("refused at {command} by {reply}")]
    Refused {
        /// The reply's letter, or its code.
        reply: String,
        /// What was sent.
        command: &'static str,
    },
    /// The milter let the message go without doing what was to be done.
    #[error("came back without {0}")]
    Without(&'static str),
    /// The run was over first.
    #[error("not finished within the time limit")]
    TimeLimit,
}

impl Failure {
    fn no_answer(command: u8) -> Self {
        let command = name(command);
        Self::NoAnswer { command }
    }

    fn closed(command: u8) -> Self {
        let command = name(command);
        Self::Closed { command }
    }

    fn out_of_place(reply: u8, command: u8) -> Self {
        Self::OutOfPlace {
            reply: reply.into(),
            command: name(command),
        }
    }

    fn refused(letter: u8, answer: &Answer<'_>, command: u8) -> Self {
        // Of a reply in words only the code is kept: the words may name the message, and each would be a kind.
        let reply = match answer {
            Answer::ReplyCode(text) => String::from_utf8_lossy(&text[..text.len().min(3)]).into(),
            _ => char::from(letter).into(),
        };
        Self::Refused {
            reply,
            command: name(command),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.kind())
    }
}

fn name(command: u8) -> &'static str {
    match command {
        code::OPTNEG => "OPTNEG",
        code::CONNECT => "CONNECT",
        code::HELO => "HELO",
        code::MAIL => "MAIL",
        code::RCPT => "RCPT",
        code::DATA => "DATA",
        code::HEADER => "HEADER",
        code::EOH => "end of header",
        code::BODY => "BODY",
        _ => "end of message",
    }
}

/// All that Postfix offers.
const OFFERED_ACTIONS: u32 = 0x1ff;
/// All that Postfix offers.
const OFFERED_STEPS: u32 = 0x1f_ffff;

/// Replies at the end of a message that change it in ways that do not matter here: body, sender, recipients.
const OTHER_EDITS: &[u8] = b"be+2-";

/// Enough for the edits and the answer to a message in one go.
const READ_BUFFER: usize = 8192;
