//! The MTA's end of the protocol: commands written, replies read.
//!
//! A load generator and tests speak to a milter through this. It checks replies as Postfix does, so that a milter that
//! passes here is not cut off there; it does not keep the order of commands, for who tests a milter also wants to break
//! it.

use super::command::Command;
use super::frame;
use super::peer::Peer;

/// Appends the frame of a command to `out`.
///
/// Strings are sent as they are: a NUL in one makes a malformed command. [`Peer::Other`] is sent with port 0.
pub fn encode(command: &Command<'_>, out: &mut Vec<u8>) {
    frame::append(out, command.code(), |out| match command {
        Command::OptNeg(offer) => append_words(out, [offer.version, offer.actions, offer.steps]),
        Command::Macros { stage, pairs } => {
            out.push(*stage);
            out.extend_from_slice(pairs.octets());
        }
        Command::Connect { host, peer } => {
            append_string(out, host);
            append_peer(out, peer);
        }
        Command::Helo(string) | Command::UnknownSmtp(string) => append_string(out, string),
        Command::Mail(envelope) | Command::Rcpt(envelope) => {
            append_string(out, envelope.argument());
            out.extend_from_slice(envelope.raw_parameters());
        }
        Command::Header { name, value } => {
            append_string(out, name);
            append_string(out, value);
        }
        Command::Body(octets) | Command::EndOfBody(octets) => out.extend_from_slice(octets),
        Command::Data
        | Command::EndOfHeader
        | Command::Abort
        | Command::Quit
        | Command::QuitNewConnection
        | Command::Unknown(_) => {}
    });
}

/// What a milter answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the reply of its name in Reply")]
pub enum Answer<'a> {
    OptNeg {
        version: u32,
        actions: u32,
        steps: u32,
        /// `(stage:u32 "name name" NUL)*`
        macro_lists: &'a [u8],
    },
    Continue,
    Accept,
    Reject,
    TempFail,
    Discard,
    /// The lines, with CRLF between them.
    ReplyCode(&'a [u8]),
    Skip,
    Progress,
    AddHeader {
        name: &'a [u8],
        value: &'a [u8],
    },
    InsertHeader {
        index: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// With an empty value, the field is deleted.
    ChangeHeader {
        index: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// The reason.
    Quarantine(&'a [u8]),
}

impl<'a> Answer<'a> {
    /// Reads the reply of a frame.
    ///
    /// # Errors
    /// What makes an MTA drop a milter: an octet that is no reply of ours, data where none belongs or not as it should
    /// be.
    pub fn parse(reply: u8, data: &'a [u8]) -> Result<Self, AnswerError> {
        let malformed = AnswerError::Malformed {
            reply: reply as char,
        };
        let bare = |answer| {
            if data.is_empty() {
                Ok(answer)
            } else {
                Err(malformed)
            }
        };
        let string = || one_string(data).ok_or(malformed);
        match reply {
            b'O' => {
                let (version, rest) = word(data).ok_or(malformed)?;
                let (actions, rest) = word(rest).ok_or(malformed)?;
                let (steps, macro_lists) = word(rest).ok_or(malformed)?;
                Ok(Self::OptNeg {
                    version,
                    actions,
                    steps,
                    macro_lists,
                })
            }
            b'c' => bare(Self::Continue),
            b'a' => bare(Self::Accept),
            b'r' => bare(Self::Reject),
            b't' => bare(Self::TempFail),
            b'd' => bare(Self::Discard),
            b's' => bare(Self::Skip),
            b'p' => bare(Self::Progress),
            b'y' => string().map(Self::ReplyCode),
            b'q' => string().map(Self::Quarantine),
            b'h' => {
                let (name, value) = two_strings(data).ok_or(malformed)?;
                Ok(Self::AddHeader { name, value })
            }
            b'i' | b'm' => {
                let (index, rest) = word(data).ok_or(malformed)?;
                let (name, value) = two_strings(rest).ok_or(malformed)?;
                Ok(match reply {
                    b'i' => Self::InsertHeader { index, name, value },
                    _ => Self::ChangeHeader { index, name, value },
                })
            }
            _ => Err(AnswerError::Unknown {
                reply: reply as char,
            }),
        }
    }

    /// Whether the command is answered by this, so that the next one may be sent; PROGRESS and the edits are followed
    /// by more.
    pub fn ends_command(&self) -> bool {
        !matches!(
            self,
            Self::Progress
                | Self::AddHeader { .. }
                | Self::InsertHeader { .. }
                | Self::ChangeHeader { .. }
                | Self::Quarantine(_)
        )
    }
}

/// Why an MTA would drop a milter for a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No reply that our milter gives.
    #[error("{reply:?} is no reply that is known here")]
    Unknown {
        /// The reply's octet.
        reply: char,
    },
    /// Data that the reply does not have.
    #[error("reply {reply:?} with data that are not its own")]
    Malformed {
        /// The reply's octet.
        reply: char,
    },
}

fn append_words(out: &mut Vec<u8>, words: [u32; 3]) {
    for word in words {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

fn append_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(string);
    out.push(0);
}

/// `family:u8 [port:u16 address NUL]`
fn append_peer(out: &mut Vec<u8>, peer: &Peer<'_>) {
    let mut append = |family, port: u16, text: &[u8]| {
        out.push(family);
        out.extend_from_slice(&port.to_be_bytes());
        append_string(out, text);
    };
    match peer {
        Peer::Unknown => out.push(b'U'),
        Peer::Unix(path) => append(b'L', 0, path),
        Peer::Inet(address, port) => {
            let family = if address.is_ipv4() { b'4' } else { b'6' };
            append(family, *port, address.to_string().as_bytes());
        }
        Peer::Other { family, text } => append(*family, 0, text),
    }
}

fn word(data: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = data.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*word), rest))
}

/// One string and its NUL, and nothing more.
fn one_string(data: &[u8]) -> Option<&[u8]> {
    data.strip_suffix(&[0])
        .filter(|string| !string.contains(&0))
}

/// Two strings and their NULs, and nothing more.
fn two_strings(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(0, data)?;
    Some((&data[..end], one_string(&data[end + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::Offer;
    use crate::protocol::envelope::Envelope;
    use crate::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
    use crate::protocol::macros::MacroPairs;
    use crate::protocol::negotiation::{Wanted, negotiate};
    use crate::protocol::reply::Reply;
    use crate::protocol::reply_code::ReplyCode;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The one frame that `octets` are.
    fn only_frame(octets: &[u8]) -> (u8, &[u8]) {
        match decode(octets, DEFAULT_LIMIT) {
            Decoded::Frame(frame) if frame.consumed == octets.len() => {
                (frame.command, &octets[frame.data])
            }
            other => panic!("{other:?}"),
        }
    }

    fn answer(octets: &[u8]) -> Answer<'_> {
        let (reply, data) = only_frame(octets);
        Answer::parse(reply, data).unwrap()
    }

    #[test]
    fn commands_are_the_octets_of_the_protocol() {
        let offer = Offer {
            version: 2,
            actions: 0x3f,
            steps: 0x7f,
        };
        let pairs = MacroPairs::new(b"j\0h\0");
        for (command, wanted) in [
            (
                Command::OptNeg(offer),
                &b"\0\0\0\x0dO\0\0\0\x02\0\0\0\x3f\0\0\0\x7f"[..],
            ),
            (
                Command::Macros { stage: b'C', pairs },
                b"\0\0\0\x06DCj\0h\0",
            ),
            (
                Command::Connect {
                    host: b"h",
                    peer: Peer::Inet([192, 0, 2, 7].into(), 40000),
                },
                b"\0\0\0\x10Ch\x004\x9c\x40192.0.2.7\0",
            ),
            (
                Command::Connect {
                    host: b"h",
                    peer: Peer::Unknown,
                },
                b"\0\0\0\x04Ch\0U",
            ),
            (
                Command::Mail(Envelope::new(b"<a@b>", b"SIZE=9\0")),
                b"\0\0\0\x0eM<a@b>\0SIZE=9\0",
            ),
            (
                Command::Header {
                    name: b"A",
                    value: b" b",
                },
                b"\0\0\0\x06LA\0 b\0",
            ),
            (Command::Body(b"x\r\n"), b"\0\0\0\x04Bx\r\n"),
            (Command::EndOfBody(b""), b"\0\0\0\x01E"),
            (Command::Quit, b"\0\0\0\x01Q"),
        ] {
            let mut out = Vec::new();
            encode(&command, &mut out);
            assert_eq!(out, wanted, "{command:?}");
        }
    }

    #[test]
    fn each_reply_is_read_as_it_was_meant() {
        let words = ReplyCode::new(550, "5.7.1", "100%\nno").unwrap();
        let (name, value) = (&b"X"[..], &b" a\n\tb"[..]);
        for (reply, wanted, ends) in [
            (Reply::Continue, Answer::Continue, true),
            (Reply::Accept, Answer::Accept, true),
            (Reply::Reject, Answer::Reject, true),
            (Reply::TempFail, Answer::TempFail, true),
            (Reply::Discard, Answer::Discard, true),
            (Reply::Skip, Answer::Skip, true),
            (Reply::Progress, Answer::Progress, false),
            (
                Reply::ReplyCode(&words),
                Answer::ReplyCode(b"550-5.7.1 100%%\r\n550 5.7.1 no"),
                true,
            ),
            (
                Reply::AddHeader { name, value },
                Answer::AddHeader { name, value },
                false,
            ),
            (
                Reply::InsertHeader {
                    index: 0,
                    name,
                    value,
                },
                Answer::InsertHeader {
                    index: 0,
                    name,
                    value,
                },
                false,
            ),
            (
                Reply::ChangeHeader {
                    index: 2,
                    name,
                    value,
                },
                Answer::ChangeHeader {
                    index: 2,
                    name,
                    value,
                },
                false,
            ),
            (
                Reply::DeleteHeader { index: 2, name },
                Answer::ChangeHeader {
                    index: 2,
                    name,
                    value: b"",
                },
                false,
            ),
            (
                Reply::Quarantine { reason: "why" },
                Answer::Quarantine(b"why"),
                false,
            ),
        ] {
            let mut out = Vec::new();
            reply.encode(true, &mut out);
            assert_eq!(answer(&out), wanted);
            assert_eq!(wanted.ends_command(), ends, "{wanted:?}");
        }
        let offer = Offer {
            version: 6,
            actions: 0x1ff,
            steps: 0x1f_ffff,
        };
        let wanted = Wanted::default();
        let agreed = negotiate(offer, &wanted).unwrap();
        let mut out = Vec::new();
        Reply::OptNeg {
            agreed,
            wanted: &wanted,
        }
        .encode(true, &mut out);
        let Answer::OptNeg {
            version,
            actions,
            steps,
            ..
        } = answer(&out)
        else {
            panic!("{out:?}");
        };
        assert_eq!(
            (version, actions, steps),
            (agreed.version, agreed.actions, agreed.steps)
        );
    }

    #[test]
    fn what_makes_an_mta_drop_a_milter_is_an_error() {
        for (reply, data) in [
            (b'c', &b"\0"[..]),
            (b't', b"x"),
            (b'y', b"550 5.7.1 no"),
            (b'y', b"550 5.7.1 \0no\0"),
            (b'y', b""),
            (b'h', b"name\0value"),
            (b'h', b"name"),
            (b'i', b"\0\0\0"),
            (b'i', b"\0\0\0\0name\0"),
            (b'm', b"\0\0\0\x01name\0a\0b\0"),
            (b'O', b"\0\0\0\x06\0\0\0\0\0\0\0"),
        ] {
            let reply_octet = reply as char;
            assert_eq!(
                Answer::parse(reply, data),
                Err(AnswerError::Malformed { reply: reply_octet }),
                "{reply_octet} {data:?}"
            );
        }
        assert_eq!(
            Answer::parse(b'f', b""),
            Err(AnswerError::Unknown { reply: 'f' })
        );
    }

    /// Octets without NUL, as strings on the wire have them.
    fn string() -> impl Strategy<Value = Vec<u8>> {
        vec(1u8.., 0..24)
    }

    proptest! {
        #[test]
        fn what_one_end_writes_the_other_reads(
            a in string(), b in string(), octets in vec(any::<u8>(), 0..64),
            words: (u32, u32, u32), address: [u16; 8], v4: [u8; 4], port: u16, stage: u8,
        ) {
            let parameters = [&b[..], b"\0"].concat();
            let v6 = std::net::Ipv6Addr::from(address);
            let peers = [
                Peer::Unknown,
                Peer::Unix(&b),
                Peer::Inet(v4.into(), port),
                Peer::Inet(std::net::IpAddr::V6(v6).to_canonical(), port),
                Peer::Other { family: b'4', text: b"unknown" },
            ];
            let offer = Offer { version: words.0, actions: words.1, steps: words.2 };
            let mut commands = vec![
                Command::OptNeg(offer),
                Command::Macros { stage, pairs: MacroPairs::new(&octets) },
                Command::Helo(&a),
                Command::Mail(Envelope::new(&a, &parameters)),
                Command::Rcpt(Envelope::new(&a, b"")),
                Command::Data,
                Command::Header { name: &a, value: &b },
                Command::EndOfHeader,
                Command::Body(&octets),
                Command::EndOfBody(&octets),
                Command::Abort,
                Command::Quit,
                Command::QuitNewConnection,
                Command::UnknownSmtp(&a),
                Command::Unknown(b'z'),
            ];
            commands.extend(peers.map(|peer| Command::Connect { host: &a, peer }));
            for command in commands {
                let mut out = Vec::new();
                encode(&command, &mut out);
                let (octet, data) = only_frame(&out);
                prop_assert_eq!(Command::parse(octet, data), Ok(command));
            }
        }

        #[test]
        fn edits_arrive_as_given(name in "[!-9;-~]{1,20}", words in vec("[!-~]{1,8}", 1..6), index: u32) {
            let value = format!(" {}", words.join("\n\t"));
            let (name, value) = (name.as_bytes(), value.as_bytes());
            for leading_space in [true, false] {
                let mut out = Vec::new();
                Reply::InsertHeader { index, name, value }.encode(leading_space, &mut out);
                let value = if leading_space { value } else { &value[1..] };
                prop_assert_eq!(answer(&out), Answer::InsertHeader { index, name, value });
            }
        }

        #[test]
        fn any_octets_make_an_answer_or_an_error(reply: u8, data in vec(any::<u8>(), 0..40)) {
            for reply in [reply].into_iter().chain(*b"Ocartdspyqhim") {
                let _ = Answer::parse(reply, &data);
            }
        }
    }
}
