//! Conversations recorded from a real Postfix and a real Sendmail, replayed through the codec.
//!
//! What must come out is in `recorded/expected.conversations`, written by hand.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dkim_milter::protocol::command::Command;
use dkim_milter::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
use dkim_milter::protocol::macros::Macros;
use dkim_milter::protocol::mta::{self, Answer};
use dkim_milter::protocol::negotiation::{Negotiated, Wanted, negotiate, step};
use dkim_milter::protocol::peer::Peer;
use dkim_milter::protocol::reply::Reply;
use dkim_milter::protocol::state::{Order, Sequence};
use proptest::prelude::*;

#[test]
fn each_recording_comes_to_what_was_said_by_smtp() {
    let expected = expected();
    for (name, recording) in recordings() {
        let wanted = part(&expected, &name);
        let stream = recording.stream();
        assert_eq!(
            replay(&stream, &[stream.len()], wanted_by(&name)),
            wanted,
            "{name}"
        );
        assert_eq!(
            replay(&stream, &[1], wanted_by(&name)),
            wanted,
            "{name}, octet by octet"
        );
    }
}

#[test]
fn nothing_is_expected_of_a_recording_that_is_not_there() {
    let (expected, recordings) = (expected(), recordings());
    let whole =
        |name: &&String| part(&expected, name)[0].starts_with("agreed on") && *name != "ours";
    let names: Vec<&String> = expected.keys().filter(whole).collect();
    assert_eq!(names, recordings.keys().collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn how_a_stream_is_cut_makes_no_difference(
        which in any::<prop::sample::Index>(),
        chunks in prop::collection::vec(1usize..200, 1..30),
    ) {
        let recordings = recordings();
        let (name, recording) = recordings.iter().nth(which.index(recordings.len())).unwrap();
        let stream = recording.stream();
        prop_assert_eq!(
            replay(&stream, &chunks, wanted_by(name)),
            replay(&stream, &[stream.len()], wanted_by(name)),
            "{}", name
        );
    }
}

#[test]
fn a_command_is_answered_where_the_mta_waited_for_it() {
    for (name, recording) in recordings() {
        let mut agreed = Negotiated::default();
        for (index, packet) in recording.packets.iter().enumerate() {
            if packet.from_milter {
                continue;
            }
            let answered = recording
                .packets
                .get(index + 1)
                .is_some_and(|next| next.from_milter);
            assert_eq!(
                agreed.expects_reply(packet.octet),
                answered,
                "{name}, packet {index}"
            );
            if let Ok(Command::OptNeg(offer)) = Command::parse(packet.octet, &packet.data) {
                agreed = negotiate(offer, &wanted_by(&name)).unwrap();
            }
        }
    }
}

#[test]
fn our_answers_are_octet_for_octet_those_that_the_mta_took() {
    for (name, recording) in recordings() {
        let wanted = wanted_by(&name);
        let mut agreed = Negotiated::default();
        for packet in &recording.packets {
            if !packet.from_milter {
                if let Ok(Command::OptNeg(offer)) = Command::parse(packet.octet, &packet.data) {
                    agreed = negotiate(offer, &wanted).unwrap();
                }
                continue;
            }
            let reply = match Answer::parse(packet.octet, &packet.data).unwrap() {
                Answer::OptNeg { .. } => Reply::OptNeg {
                    agreed,
                    wanted: &wanted,
                },
                Answer::Continue => Reply::Continue,
                Answer::InsertHeader { .. } => Reply::InsertHeader {
                    index: 0,
                    name: b"X-Recorded",
                    value: b" one;\r\n\ttwo",
                },
                other => panic!("{name}: {other:?}"),
            };
            let mut out = Vec::new();
            reply.encode(agreed.leading_space(), &mut out);
            assert_eq!(out, packet.frame(), "{name}");
        }
    }
}

#[test]
fn our_mta_speaks_as_the_real_ones_do() {
    for (name, recording) in recordings() {
        for packet in recording
            .packets
            .iter()
            .filter(|packet| !packet.from_milter)
        {
            let command = Command::parse(packet.octet, &packet.data).unwrap();
            let mut out = Vec::new();
            mta::encode(&command, &mut out);
            // These two forms of an address are read but not written.
            let rewritten =
                packet.data.starts_with(b"[IPv6:") || packet.data.ends_with(b"unknown\0");
            if !(packet.octet == b'C' && rewritten) {
                assert_eq!(out, packet.frame(), "{name}: {command:?}");
            }
        }
    }
}

#[test]
fn macros_are_in_force_as_long_as_they_should() {
    // At the first command of that octet, after it.
    for (name, at, wanted) in [
        (
            "postfix-plain",
            b'C',
            &[
                ("j", Some("mta.rig.test")),
                ("{client_addr}", Some("127.0.0.1")),
                ("i", None),
            ][..],
        ),
        (
            "postfix-plain",
            b'M',
            &[
                ("mail_addr", Some("ann@example.com")),
                ("{auth_type}", None),
            ],
        ),
        (
            "postfix-plain",
            b'R',
            &[("{rcpt_addr}", Some("bo@example.net")), ("i", None)],
        ),
        (
            "postfix-plain",
            b'T',
            &[
                ("{rcpt_addr}", None),
                ("{mail_addr}", Some("ann@example.com")),
            ],
        ),
        (
            "postfix-plain",
            b'E',
            &[
                ("{daemon_name}", Some("mta.rig.test")),
                ("{mail_addr}", Some("ann@example.com")),
            ],
        ),
        (
            "postfix-plain",
            b'A',
            &[
                ("j", Some("mta.rig.test")),
                ("{mail_addr}", None),
                ("i", None),
            ],
        ),
        (
            "postfix-authenticated",
            b'E',
            &[
                ("{auth_type}", Some("XCLIENT")),
                ("{auth_authen}", Some("ann")),
                ("client_addr", Some("192.0.2.7")),
            ],
        ),
        ("postfix-authenticated", b'A', &[("{auth_type}", None)]),
        ("postfix-null-sender", b'N', &[("{mail_addr}", Some(""))]),
        ("postfix-ipv6", b'N', &[("{client_addr}", Some("IPv6:::1"))]),
        (
            "postfix-unknown-client",
            b'N',
            &[("{client_addr}", Some("unknown"))],
        ),
        (
            "sendmail-plain",
            b'E',
            &[
                ("{daemon_name}", Some("MTA")),
                ("{mail_addr}", Some("ann@example.com")),
                ("{rcpt_addr}", None),
                ("j", Some("mta.rig.test")),
            ],
        ),
        ("sendmail-plain", b'R', &[("{rcpt_mailer}", Some("esmtp"))]),
        (
            "sendmail-ipv6",
            b'L',
            &[("client_addr", Some("IPv6:0:0:0:0:0:0:0:1"))],
        ),
        (
            "sendmail-aborts",
            b'A',
            &[("{mail_addr}", None), ("{daemon_name}", Some("MTA"))],
        ),
    ] {
        let mut macros = Macros::default();
        for packet in recordings()[name]
            .packets
            .iter()
            .filter(|packet| !packet.from_milter)
        {
            match Command::parse(packet.octet, &packet.data).unwrap() {
                Command::Macros { stage, pairs } => assert_eq!(macros.record(stage, pairs), 0),
                command => macros.command(command.code()),
            }
            if packet.octet == at {
                break;
            }
        }
        for (macro_name, value) in wanted {
            let found = macros
                .get(macro_name.as_bytes())
                .map(|value| value.escape_ascii().to_string());
            assert_eq!(
                found.as_deref(),
                *value,
                "{macro_name} at {} of {name}",
                at as char
            );
        }
    }
}

/// What was asked for in a recording of that name.
fn wanted_by(name: &str) -> Wanted {
    let mut wanted = Wanted::default();
    wanted.steps = match name {
        _ if name.contains("-chatty") => step::SKIP | step::HDR_LEADSPC,
        _ if name.contains("-stripped") => wanted.steps & !step::HDR_LEADSPC,
        _ => wanted.steps,
    };
    wanted
}

/// What is read from `stream` if it comes in pieces of the sizes in `chunks`, over and over.
fn replay(stream: &[u8], chunks: &[usize], wanted: Wanted) -> Vec<String> {
    let mut events = Events {
        wanted,
        agreed: Negotiated::default(),
        macros: Macros::default(),
        sequence: Sequence::default(),
        told: Vec::new(),
        queue_id_known: false,
    };
    let (mut left, mut buffer) = (stream, Vec::new());
    for &chunk in chunks.iter().cycle() {
        if left.is_empty() {
            break;
        }
        let (now, later) = left.split_at(chunk.min(left.len()));
        left = later;
        buffer.extend_from_slice(now);
        while let Decoded::Frame(frame) = decode(&buffer, DEFAULT_LIMIT) {
            events.tell(Command::parse(frame.command, &buffer[frame.data]).unwrap());
            buffer.drain(..frame.consumed);
        }
    }
    assert!(buffer.is_empty(), "{buffer:?} is left");
    events.told
}

/// The conversation as lines to compare.
struct Events {
    wanted: Wanted,
    agreed: Negotiated,
    macros: Macros,
    sequence: Sequence,
    told: Vec<String>,
    queue_id_known: bool,
}

impl Events {
    fn tell(&mut self, command: Command<'_>) {
        let order = match self.sequence.advance(command.code()) {
            Order::InOrder => "",
            Order::EndsMessage => " (ends a message)",
            Order::OutOfOrder => " (out of order)",
        };
        if let Command::Macros { stage, pairs } = command {
            assert_eq!(self.macros.record(stage, pairs), 0);
        } else {
            let line = self.line(&command);
            self.told.push(line + order);
            self.macros.command(command.code());
            if matches!(command, Command::EndOfBody(_)) {
                self.macros.message_over();
            }
        }
        match (self.queue_id_known, self.macros.queue_id()) {
            (false, Some(_)) => self.told.push("queue id known".into()),
            (true, None) => self.told.push("queue id gone".into()),
            _ => {}
        }
        self.queue_id_known = self.macros.queue_id().is_some();
    }

    fn line(&mut self, command: &Command<'_>) -> String {
        let text = |octets: &[u8]| octets.escape_ascii().to_string();
        match command {
            Command::OptNeg(offer) => {
                self.agreed = negotiate(*offer, &self.wanted).unwrap();
                let Negotiated {
                    version,
                    actions,
                    steps,
                    ..
                } = self.agreed;
                format!("agreed on {version} {actions:x} {steps:x}")
            }
            Command::Connect { host, peer } => {
                let peer = match peer {
                    Peer::Inet(address, 0) => format!("{address} without a port"),
                    Peer::Inet(address, _) => address.to_string(),
                    Peer::Other { text: other, .. } => format!("?{}", text(other)),
                    Peer::Unknown | Peer::Unix(_) => panic!("{command:?}"),
                };
                format!("connect {} {peer}", text(host))
            }
            Command::Helo(name) => format!("helo {}", text(name)),
            Command::Mail(envelope) | Command::Rcpt(envelope) => {
                let name = if command.code() == b'M' {
                    "mail"
                } else {
                    "rcpt"
                };
                let parameters: String = envelope
                    .parameters()
                    .map(|parameter| format!(" {}", text(parameter)))
                    .collect();
                let address = match envelope.address() {
                    b"" => "<>".into(),
                    address => text(address),
                };
                format!("{name} {address}{parameters}")
            }
            Command::Data => "data".into(),
            Command::Header { name, value } => {
                format!(
                    "{}:{}{}",
                    text(name),
                    text(self.agreed.space_before(value)),
                    text(value)
                )
            }
            Command::EndOfHeader => "end of header".into(),
            Command::Body(octets) => format!("body {}", text(octets)),
            Command::EndOfBody(octets) => format!("end{}", text(octets)),
            Command::Abort => "abort".into(),
            Command::Quit => "quit".into(),
            Command::UnknownSmtp(line) => format!("unknown {}", text(line)),
            Command::Macros { .. } | Command::QuitNewConnection | Command::Unknown(_) => {
                panic!("{command:?}")
            }
        }
    }
}

/// One recorded milter connection.
struct Recording {
    packets: Vec<Packet>,
}

struct Packet {
    from_milter: bool,
    octet: u8,
    data: Vec<u8>,
}

impl Recording {
    /// All that the MTA sent.
    fn stream(&self) -> Vec<u8> {
        self.packets
            .iter()
            .filter(|packet| !packet.from_milter)
            .flat_map(Packet::frame)
            .collect()
    }
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let length = u32::try_from(self.data.len() + 1).unwrap();
        [&length.to_be_bytes()[..], &[self.octet], &self.data].concat()
    }
}

/// What is expected, by the name of the recording or of the part.
fn expected() -> BTreeMap<String, Vec<String>> {
    let mut parts = BTreeMap::new();
    let mut name = "";
    for line in include_str!("recorded/expected.conversations").lines() {
        if let Some(next) = line.strip_prefix("= ") {
            name = next;
            assert!(
                parts.insert(name.to_string(), Vec::new()).is_none(),
                "{name} twice"
            );
        } else if !line.is_empty() && !line.starts_with('#') {
            // A bar shows where a line that ends in a space, or else would in doubt, ends.
            let line = line.strip_suffix('|').unwrap_or(line);
            parts.get_mut(name).unwrap().push(line.to_string());
        }
    }
    parts
}

/// What is expected under `name`, with the parts it stands on in place.
fn part(expected: &BTreeMap<String, Vec<String>>, name: &str) -> Vec<String> {
    let lines = expected
        .get(name)
        .unwrap_or_else(|| panic!("nothing is expected of {name}"));
    let in_place = |line: &String| match line.strip_prefix('@') {
        Some(other) => part(expected, other),
        None => vec![line.clone()],
    };
    lines.iter().flat_map(in_place).collect()
}

/// All recordings, by the name of the file.
fn recordings() -> BTreeMap<String, Recording> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded");
    let mut recordings = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            let text = std::fs::read_to_string(&path).unwrap();
            let packets = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(packet)
                .collect();
            recordings.insert(name, Recording { packets });
        }
    }
    recordings
}

/// A line of a recording, as `recorded/README.md` describes it.
fn packet(line: &str) -> Packet {
    let (direction, rest) = line.split_once(' ').unwrap();
    let (octet, rest) = rest.split_once(' ').unwrap();
    let quoted = rest
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap();
    let mut data = Vec::new();
    let mut characters = quoted.bytes();
    while let Some(character) = characters.next() {
        data.push(match character {
            b'\\' => match characters.next().unwrap() {
                b'0' => 0,
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => {
                    let digits = [characters.next().unwrap(), characters.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
            other => other,
        });
    }
    Packet {
        from_milter: direction == "<",
        octet: octet.as_bytes()[0],
        data,
    }
}
