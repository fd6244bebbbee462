//! Macros: the values that an MTA sends along with its commands, each kept as long as it holds.
//!
//! A MACRO packet names the command it goes with and replaces what an earlier packet said for that command. What came
//! with CONNECT and HELO holds to the end of the client's connection, what came with RCPT for that recipient, the rest
//! to the end of the message; a command clears what came with later ones. MTAs send these packets for any command, for
//! those we refused and without a single value too, so nothing here is ever an error. What a macro means is for policy.

use super::command::code;

/// The macros of one MACRO packet, as they travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacroPairs<'a> {
    octets: &'a [u8],
}

impl<'a> MacroPairs<'a> {
    /// Macros written as `(name NUL value NUL)*`.
    pub fn new(octets: &'a [u8]) -> Self {
        Self { octets }
    }

    /// Name and value of each. A name is mostly `j` or `{auth_type}`.
    ///
    /// A value that the end of the packet cuts off is taken as it is; a name without any value and a value without a
    /// name are left out.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = self.octets;
        std::iter::from_fn(move || {
            let (name, after) = rest.split_at(memchr::memchr(0, rest)?);
            let value = after.get(1..).filter(|value| !value.is_empty())?;
            let end = memchr::memchr(0, value).unwrap_or(value.len());
            rest = value.get(end + 1..).unwrap_or_default();
            Some((name, &value[..end]))
        })
        .filter(|(name, _)| !name.is_empty())
    }

    /// The octets as they travelled.
    pub(super) fn octets(&self) -> &'a [u8] {
        self.octets
    }
}

/// The macros in force on one connection.
///
/// Bounded by [`MAX_MACROS`] for each command and [`MAX_OCTETS`] in all. Buffers are kept from message to message.
#[derive(Debug, Default)]
pub struct Macros {
    /// For each of [`STAGES`], `(name NUL value NUL)*`.
    stages: [Vec<u8>; STAGES.len()],
    /// Empty when not known.
    queue_id: Vec<u8>,
}

/// Macros kept from one packet: a configuration of Sendmail may name 50, one of Postfix any number.
pub const MAX_MACROS: usize = 100;

/// Octets kept of all macros of a connection, names and values with a NUL each. Subject and issuer of a client's
/// certificate are the longest there are, of a few hundred octets.
pub const MAX_OCTETS: usize = 16 * 1024;

impl Macros {
    /// Keeps the macros of a packet in place of what `stage` had; how many of them were over the bounds and left out.
    ///
    /// Macros for an octet that is no command of a mail transaction are of no use and dropped.
    pub fn record(&mut self, stage: u8, pairs: MacroPairs<'_>) -> usize {
        let Some(index) = stage_index(stage) else {
            return 0;
        };
        self.stages[index].clear();
        let mut room = MAX_OCTETS.saturating_sub(self.stages.iter().map(Vec::len).sum());
        let (mut kept, mut left_out) = (0, 0);
        for (name, value) in pairs.iter() {
            let size = name.len() + value.len() + 2;
            if kept == MAX_MACROS || size > room {
                left_out += 1;
                continue;
            }
            kept += 1;
            room -= size;
            for part in [name, &[0], value, &[0]] {
                self.stages[index].extend_from_slice(part);
            }
            if bare(name) == QUEUE_ID && !value.is_empty() {
                self.queue_id.clear();
                self.queue_id.extend_from_slice(value);
            }
        }
        left_out
    }

    /// A command has come, by its octet, after the packet that goes with it: forgets what no longer holds.
    pub fn command(&mut self, command: u8) {
        match command {
            code::ABORT => return self.message_over(),
            code::QUIT_NC => return self.connection_over(),
            _ => {}
        }
        let Some(index) = stage_index(command) else {
            return;
        };
        self.forget_from(index + 1);
        if index > RCPT {
            self.stages[RCPT].clear();
        }
        if command == code::MAIL {
            // The identifier of a message before this one does not hold; one that has come with this command does.
            self.queue_id = self.get(QUEUE_ID).unwrap_or_default().to_vec();
        }
    }

    /// The message is over, finished or not: what came with its commands is forgotten, its queue identifier too.
    /// Harmless when there is none.
    pub fn message_over(&mut self) {
        self.forget_from(MAIL);
    }

    /// The client's connection is over: nothing holds any longer.
    pub fn connection_over(&mut self) {
        self.forget_from(0);
    }

    /// The value of a macro, from the latest command that had it; `i` and `{i}` are one name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let name = bare(name);
        self.stages.iter().rev().find_map(|octets| {
            MacroPairs::new(octets)
                .iter()
                .find_map(|(own, value)| (bare(own) == name).then_some(value))
        })
    }

    /// The message's queue identifier, whichever command had it, to the end of the message.
    ///
    /// Sendmail tells it with MAIL, Postfix with the second RCPT, with DATA or later, and what told it once may not do
    /// so again.
    pub fn queue_id(&self) -> Option<&[u8]> {
        (!self.queue_id.is_empty()).then_some(&self.queue_id)
    }

    fn forget_from(&mut self, index: usize) {
        if index <= MAIL {
            self.queue_id.clear();
        }
        self.stages[index..].iter_mut().for_each(Vec::clear);
    }
}

/// The commands that have macros, in the order in which they come.
const STAGES: [u8; 9] = [
    code::CONNECT,
    code::HELO,
    code::MAIL,
    code::RCPT,
    code::DATA,
    code::HEADER,
    code::EOH,
    code::BODY,
    code::BODYEOB,
];

/// The place of MAIL in [`STAGES`].
const MAIL: usize = 2;

/// The place of RCPT in [`STAGES`].
const RCPT: usize = 3;

/// The macro that holds the queue identifier.
const QUEUE_ID: &[u8] = b"i";

fn stage_index(command: u8) -> Option<usize> {
    STAGES.iter().position(|&stage| stage == command)
}

/// A name without braces.
fn bare(name: &[u8]) -> &[u8] {
    name.strip_prefix(b"{")
        .and_then(|name| name.strip_suffix(b"}"))
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn record(macros: &mut Macros, stage: u8, octets: &[u8]) {
        assert_eq!(macros.record(stage, MacroPairs::new(octets)), 0);
    }

    /// A store that has seen `script`: `D` and a stage octet records what follows, any other octet is that command.
    fn after(script: &[&[u8]]) -> Macros {
        let mut macros = Macros::default();
        for line in script {
            match line {
                [b'D', stage, pairs @ ..] => record(&mut macros, *stage, pairs),
                [command] => macros.command(*command),
                _ => panic!("{line:?}"),
            }
        }
        macros
    }

    #[test]
    fn odd_packets_give_the_pairs_that_are_there() {
        for (octets, wanted) in [
            (&b""[..], &[][..]),
            (b"i\x00ABC\0", &[(&b"i"[..], &b"ABC"[..])]),
            (b"i\x00ABC", &[(b"i", b"ABC")]),
            (
                b"{mail_addr}\0\0j\0h\0",
                &[(b"{mail_addr}", b""), (b"j", b"h")],
            ),
            (b"i", &[]),
            (b"i\0", &[]),
            (b"i\0\0", &[(b"i", b"")]),
            (b"\0orphan\0j\0h\0", &[(b"j", b"h")]),
            (b"\0\0\0\0", &[]),
            (b"j\0h\0i", &[(b"j", b"h")]),
        ] {
            assert_eq!(
                MacroPairs::new(octets).iter().collect::<Vec<_>>(),
                wanted,
                "{octets:?}"
            );
        }
    }

    #[test]
    fn a_name_is_found_in_either_spelling() {
        let macros = after(&[b"DCj\0host\0{daemon_name}\0MTA\0{v}\x00V\0"]);
        for (name, value) in [
            (&b"j"[..], Some(&b"host"[..])),
            (b"{j}", Some(b"host")),
            (b"daemon_name", Some(b"MTA")),
            (b"{daemon_name}", Some(b"MTA")),
            (b"v", Some(b"V")),
            (b"J", None),
            (b"{daemon", None),
            (b"", None),
        ] {
            assert_eq!(macros.get(name), value, "{name:?}");
        }
    }

    #[test]
    fn a_macro_holds_as_long_as_its_command_says() {
        let connected: &[&[u8]] = &[b"DCj\0h\0", b"C", b"DH{tls_version}\0TLSv1.3\0", b"H"];
        let mailed: &[&[u8]] = &[b"DM{auth_type}\0PLAIN\0", b"M"];
        let told: &[&[u8]] = &[b"DR{rcpt_addr}\0b@c\0", b"R"];
        let ended: &[&[u8]] = &[
            b"DTx\x001\0",
            b"T",
            b"DNy\x001\0",
            b"N",
            b"DEz\x001\0",
            b"E",
        ];
        for (then, held, gone) in [
            (
                &[][..],
                &["j", "tls_version", "auth_type", "x", "y", "z"][..],
                &["rcpt_addr"][..],
            ),
            (
                &[&b"A"[..]],
                &["j", "tls_version"],
                &["auth_type", "x", "y", "z"],
            ),
            (
                &[b"DM", b"M"],
                &["j", "tls_version"],
                &["auth_type", "x", "y", "z"],
            ),
            (&[b"DH", b"H"], &["j"], &["tls_version", "auth_type", "x"]),
            (
                &[b"DCq\x001\0", b"C"],
                &["q"],
                &["j", "tls_version", "auth_type"],
            ),
            (&[b"K"], &[], &["j", "tls_version", "auth_type"]),
            (
                &[b"DU", b"U", b"O", b"D!i\x009\0", b"!"],
                &["j", "auth_type", "z"],
                &["i"],
            ),
        ] {
            let macros = after(&[connected, mailed, told, ended, then].concat());
            for name in held {
                assert!(
                    macros.get(name.as_bytes()).is_some(),
                    "{name} after {then:?}"
                );
            }
            for name in gone {
                assert_eq!(macros.get(name.as_bytes()), None, "{name} after {then:?}");
            }
        }
    }

    #[test]
    fn a_recipients_macros_are_the_last_ones_told() {
        let macros = after(&[
            b"M",
            b"DR{rcpt_addr}\0a@b\0{rcpt_host}\0b\0",
            b"R",
            b"DR{rcpt_addr}\0c@d\0",
            b"R",
        ]);
        assert_eq!(macros.get(b"rcpt_addr"), Some(&b"c@d"[..]));
        assert_eq!(macros.get(b"rcpt_host"), None);
    }

    #[test]
    fn the_latest_command_that_has_a_macro_gives_its_value() {
        let macros = after(&[b"DCx\0connect\0", b"C", b"DMx\0mail\0", b"M", b"DN", b"N"]);
        assert_eq!(macros.get(b"x"), Some(&b"mail"[..]));
    }

    #[test]
    fn the_queue_id_is_kept_to_the_end_of_the_message() {
        for (script, wanted) in [
            (
                &[
                    &b"DMi\x00Q1\0"[..],
                    b"M",
                    b"DR",
                    b"R",
                    b"DT",
                    b"T",
                    b"DE",
                    b"E",
                ][..],
                Some(&b"Q1"[..]),
            ),
            (
                &[b"M", b"DRi\x00Q1\0", b"R", b"DR", b"R", b"N", b"E"],
                Some(b"Q1"),
            ),
            (&[b"M", b"R", b"DE{i}\x00Q1\0", b"E"], Some(b"Q1")),
            (&[b"DHi\x00Q1\0", b"H", b"DM", b"M"], Some(b"Q1")),
            (&[b"DMi\x00Q1\0", b"M", b"E", b"A", b"A"], None),
            (
                &[b"DMi\x00Q1\0", b"M", b"E", b"DMi\x00Q2\0", b"M"],
                Some(b"Q2"),
            ),
            // A second message, not told apart by ABORT, and not yet with an identifier.
            (&[b"M", b"DTi\x00Q1\0", b"T", b"E", b"DM", b"M"], None),
            (&[b"DMi\x00Q1\0", b"M", b"DTi\0\0", b"T"], Some(b"Q1")),
        ] {
            assert_eq!(after(script).queue_id(), wanted, "{script:?}");
        }
        let mut macros = after(&[b"DMi\x00Q1\0", b"M", b"E"]);
        macros.message_over();
        assert_eq!(macros.queue_id(), None);
    }

    #[test]
    fn macros_over_the_bounds_are_left_out_and_counted() {
        let mut macros = Macros::default();
        let many = b"n\0v\0".repeat(MAX_MACROS + 7);
        assert_eq!(macros.record(b'C', MacroPairs::new(&many)), 7);
        macros.connection_over();
        let long = [
            &b"a\0"[..],
            &vec![b'x'; MAX_OCTETS],
            b"\0{auth_type}\0PLAIN\0",
        ]
        .concat();
        assert_eq!(macros.record(b'M', MacroPairs::new(&long)), 1);
        assert_eq!(
            macros.get(b"auth_type"),
            Some(&b"PLAIN"[..]),
            "what fits is kept"
        );
    }

    proptest! {
        #[test]
        fn any_packets_stay_within_the_bounds(
            packets in vec((any::<u8>(), vec(0u8..4, 0..40), 1usize..400), 0..20)
        ) {
            let mut macros = Macros::default();
            for (octet, data, times) in &packets {
                let stage = STAGES[usize::from(*octet) % STAGES.len()];
                macros.record(stage, MacroPairs::new(&data.repeat(*times)));
                prop_assert!(macros.stages.iter().map(Vec::len).sum::<usize>() <= MAX_OCTETS);
                macros.get(b"\x01");
                macros.command(*octet);
            }
        }
    }
}
