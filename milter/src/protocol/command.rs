//! Commands: what an MTA says to a milter.
//!
//! A command is read from the octet and the data of one [`frame`](super::frame) and borrows from it. Nothing is
//! decoded: names, addresses and values are the octets that travelled. A command that lacks what it is made of is an
//! error as data, so that whoever talks to the MTA can still answer it. Which command may follow which is for
//! [`state`](super::state).

use super::envelope::Envelope;
use super::macros::MacroPairs;
use super::peer::Peer;

/// The octets that name commands, by libmilter's names.
pub mod code {
    #![allow(missing_docs, reason = "each is the command of its name in Command")]
    pub const ABORT: u8 = b'A';
    pub const BODY: u8 = b'B';
    pub const CONNECT: u8 = b'C';
    pub const MACRO: u8 = b'D';
    pub const BODYEOB: u8 = b'E';
    pub const HELO: u8 = b'H';
    pub const QUIT_NC: u8 = b'K';
    pub const HEADER: u8 = b'L';
    pub const MAIL: u8 = b'M';
    pub const EOH: u8 = b'N';
    pub const OPTNEG: u8 = b'O';
    pub const QUIT: u8 = b'Q';
    pub const RCPT: u8 = b'R';
    pub const DATA: u8 = b'T';
    pub const UNKNOWN: u8 = b'U';
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The MTA's offer, first on a connection.
    OptNeg(Offer),
    /// Values that go with the command to come; sent for any stage, empty too, and for commands we refused.
    Macros {
        /// The octet of the command they go with; 0 where the packet had none.
        stage: u8,
        /// The macros.
        pairs: MacroPairs<'a>,
    },
    /// A client has connected to the MTA.
    Connect {
        /// The client's name as the MTA verified it, or its address in brackets.
        host: &'a [u8],
        /// Where it comes from.
        peer: Peer<'a>,
    },
    /// HELO or EHLO, with its argument.
    Helo(&'a [u8]),
    /// MAIL FROM.
    Mail(Envelope<'a>),
    /// RCPT TO, once for each recipient.
    Rcpt(Envelope<'a>),
    /// DATA, or the first BDAT.
    Data,
    /// One header field.
    Header {
        /// The name, without the colon.
        name: &'a [u8],
        /// The value, with folds as LF and white space, without the last line end. Whether it begins with all of the
        /// white space after the colon is settled in [`negotiation`](super::negotiation).
        value: &'a [u8],
    },
    /// The end of the header; sent for a message without any, too.
    EndOfHeader,
    /// A piece of the body, cut anywhere, with CRLF line ends.
    Body(&'a [u8]),
    /// The end of the message, with a last piece of the body, most often empty.
    EndOfBody(&'a [u8]),
    /// The message in progress, if any, is over; sent after finished ones too.
    Abort,
    /// The MTA is about to close.
    Quit,
    /// The client is gone; another follows on this connection, under what was negotiated.
    QuitNewConnection,
    /// An SMTP command that the MTA does not know: the line or the verb.
    UnknownSmtp(&'a [u8]),
    /// A command octet that we do not know.
    Unknown(u8),
}

impl<'a> Command<'a> {
    /// Reads the command of a frame. The data of a command that has none is ignored.
    ///
    /// Work is linear in `data`; nothing is copied.
    ///
    /// # Errors
    /// OPTNEG, MAIL, RCPT and HEADER have parts that cannot be guessed; their faults are told with the command. Every
    /// other command can be read from any octets.
    pub fn parse(command: u8, data: &'a [u8]) -> Result<Self, CommandError> {
        Ok(match command {
            code::OPTNEG => Self::OptNeg(Offer::parse(data)?),
            code::MACRO => {
                let (stage, pairs) = data
                    .split_first()
                    .map_or((0, data), |(&stage, pairs)| (stage, pairs));
                Self::Macros {
                    stage,
                    pairs: MacroPairs::new(pairs),
                }
            }
            code::CONNECT => {
                let (host, rest) = split_string(data);
                Self::Connect {
                    host,
                    peer: Peer::parse(rest),
                }
            }
            code::HELO => Self::Helo(split_string(data).0),
            code::MAIL => Self::Mail(Envelope::parse(data, "MAIL")?),
            code::RCPT => Self::Rcpt(Envelope::parse(data, "RCPT")?),
            code::DATA => Self::Data,
            code::HEADER => header(data)?,
            code::EOH => Self::EndOfHeader,
            code::BODY => Self::Body(data),
            code::BODYEOB => Self::EndOfBody(data),
            code::ABORT => Self::Abort,
            code::QUIT => Self::Quit,
            code::QUIT_NC => Self::QuitNewConnection,
            code::UNKNOWN => Self::UnknownSmtp(split_string(data).0),
            other => Self::Unknown(other),
        })
    }

    /// The octet that names this command.
    pub fn code(&self) -> u8 {
        match self {
            Self::OptNeg(_) => code::OPTNEG,
            Self::Macros { .. } => code::MACRO,
            Self::Connect { .. } => code::CONNECT,
            Self::Helo(_) => code::HELO,
            Self::Mail(_) => code::MAIL,
            Self::Rcpt(_) => code::RCPT,
            Self::Data => code::DATA,
            Self::Header { .. } => code::HEADER,
            Self::EndOfHeader => code::EOH,
            Self::Body(_) => code::BODY,
            Self::EndOfBody(_) => code::BODYEOB,
            Self::Abort => code::ABORT,
            Self::Quit => code::QUIT,
            Self::QuitNewConnection => code::QUIT_NC,
            Self::UnknownSmtp(_) => code::UNKNOWN,
            Self::Unknown(other) => *other,
        }
    }
}

/// What an MTA offers: its version, what it lets a milter do, which steps it can leave out and which features it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The highest version it speaks.
    pub version: u32,
    /// Bits of [`action`](super::negotiation::action).
    pub actions: u32,
    /// Bits of [`step`](super::negotiation::step).
    pub steps: u32,
}

impl Offer {
    /// Three words; whatever follows is from the future.
    fn parse(data: &[u8]) -> Result<Self, CommandError> {
        let word = |at: usize| {
            data.get(at..)
                .and_then(|rest| rest.first_chunk::<4>())
                .map(|octets| u32::from_be_bytes(*octets))
                .ok_or(CommandError::ShortOffer { octets: data.len() })
        };
        Ok(Self {
            version: word(0)?,
            actions: word(4)?,
            steps: word(8)?,
        })
    }
}

/// Why a command cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// OPTNEG is three words of four octets.
    #[error("OPTNEG with {octets} octets of data instead of 12")]
    ShortOffer {
        /// Octets of data.
        octets: usize,
    },
    /// MAIL or RCPT without data; even a null sender is one NUL.
    #[error("{command} without an argument")]
    NoArgument {
        /// MAIL or RCPT.
        command: &'static str,
    },
    /// MAIL or RCPT cut off.
    #[error("{command} with a last argument that does not end in NUL")]
    Unterminated {
        /// MAIL or RCPT.
        command: &'static str,
    },
    /// HEADER cut off in the name.
    #[error("HEADER without a NUL between name and value")]
    HeaderWithoutValue,
    /// HEADER cut off in the value.
    #[error("HEADER with a value that does not end in NUL")]
    HeaderUnterminated,
    /// HEADER with a NUL in its value, or two fields in one: which octets the MTA has cannot be known.
    #[error("HEADER with {octets} octets after the end of the value")]
    HeaderSurplus {
        /// Octets after the value's NUL.
        octets: usize,
    },
}

/// `name NUL value NUL`, and nothing more.
fn header(data: &[u8]) -> Result<Command<'_>, CommandError> {
    let end = |octets: &[u8]| memchr::memchr(0, octets);
    let name_end = end(data).ok_or(CommandError::HeaderWithoutValue)?;
    let (name, rest) = (&data[..name_end], &data[name_end + 1..]);
    let value_end = end(rest).ok_or(CommandError::HeaderUnterminated)?;
    match rest.len() - value_end - 1 {
        0 => Ok(Command::Header {
            name,
            value: &rest[..value_end],
        }),
        octets => Err(CommandError::HeaderSurplus { octets }),
    }
}

/// The octets before the first NUL, and those after it; a string that the end of the data cuts off is taken as it is.
pub(super) fn split_string(data: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(0, data) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn each_command_is_read_from_its_octet_and_data() {
        let offer = Offer {
            version: 6,
            actions: 0x1ff,
            steps: 0x1f_ffff,
        };
        for (octet, data, wanted) in [
            (
                b'O',
                &b"\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff"[..],
                Command::OptNeg(offer),
            ),
            (
                b'O',
                b"\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xffmore",
                Command::OptNeg(offer),
            ),
            (b'H', b"client.example\0", Command::Helo(b"client.example")),
            (b'H', b"cut off", Command::Helo(b"cut off")),
            (b'H', b"", Command::Helo(b"")),
            (
                b'M',
                b"<a@b>\0SIZE=9\0",
                Command::Mail(Envelope::new(b"<a@b>", b"SIZE=9\0")),
            ),
            (b'M', b"\0", Command::Mail(Envelope::new(b"", b""))),
            (
                b'R',
                b"<a@b>\0",
                Command::Rcpt(Envelope::new(b"<a@b>", b"")),
            ),
            (b'T', b"", Command::Data),
            (b'T', b"surplus", Command::Data),
            (
                b'L',
                b"Subject\0 x\n\ty\0",
                Command::Header {
                    name: b"Subject",
                    value: b" x\n\ty",
                },
            ),
            (
                b'L',
                b"X\0\0",
                Command::Header {
                    name: b"X",
                    value: b"",
                },
            ),
            (
                b'L',
                b"\0\0",
                Command::Header {
                    name: b"",
                    value: b"",
                },
            ),
            (b'N', b"", Command::EndOfHeader),
            (b'B', b"a\0\r\n", Command::Body(b"a\0\r\n")),
            (b'E', b"", Command::EndOfBody(b"")),
            (b'E', b"last\r\n", Command::EndOfBody(b"last\r\n")),
            (b'A', b"", Command::Abort),
            (b'Q', b"", Command::Quit),
            (b'K', b"", Command::QuitNewConnection),
            (b'U', b"FROB it\0", Command::UnknownSmtp(b"FROB it")),
            (b'!', b"anything", Command::Unknown(b'!')),
            (0, b"", Command::Unknown(0)),
        ] {
            let command = Command::parse(octet, data);
            assert_eq!(command.as_ref(), Ok(&wanted), "{} {data:?}", octet as char);
            assert_eq!(wanted.code(), octet);
        }
    }

    #[test]
    fn a_malformed_command_is_told_with_its_fault() {
        for (octet, data, fault) in [
            (
                b'O',
                &b"\x01\x02\x03"[..],
                "OPTNEG with 3 octets of data instead of 12",
            ),
            (b'O', b"", "OPTNEG with 0 octets of data instead of 12"),
            (b'M', b"", "MAIL without an argument"),
            (b'R', b"", "RCPT without an argument"),
            (
                b'R',
                b"<a@b",
                "RCPT with a last argument that does not end in NUL",
            ),
            (
                b'M',
                b"<a@b>\0SIZE",
                "MAIL with a last argument that does not end in NUL",
            ),
            (b'L', b"abcd", "HEADER without a NUL between name and value"),
            (b'L', b"", "HEADER without a NUL between name and value"),
            (
                b'L',
                b"a\0b",
                "HEADER with a value that does not end in NUL",
            ),
            (
                b'L',
                b"a\0b\0c\0",
                "HEADER with 2 octets after the end of the value",
            ),
        ] {
            let error = Command::parse(octet, data).unwrap_err();
            assert_eq!(error.to_string(), fault);
        }
    }

    proptest! {
        #[test]
        fn any_octets_make_a_command_or_a_fault(command in any::<u8>(), data in vec(any::<u8>(), 0..80)) {
            for command in [command].into_iter().chain(*b"ABCDEHKLMNOQRTU") {
                match Command::parse(command, &data) {
                    Ok(Command::Macros { pairs, .. }) => prop_assert!(pairs.iter().count() <= data.len()),
                    Ok(Command::Mail(envelope) | Command::Rcpt(envelope)) => {
                        prop_assert!(envelope.address().len() <= data.len());
                        prop_assert!(envelope.parameters().count() <= data.len());
                    }
                    _ => {}
                }
            }
        }
    }
}
