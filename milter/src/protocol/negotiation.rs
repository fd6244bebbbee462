//! Negotiation: what an MTA offers and a milter asks for, and what holds from then on.
//!
//! The answer is the intersection, strictly: Postfix cuts off a milter that answers with a higher version or an action
//! it was not offered, Sendmail one that answers with a step it was not offered. Everything else in this room asks
//! [`Negotiated`] what was agreed: whether a command is answered, and how white space after a header field's colon
//! travels.

use super::command::{Offer, code};
use super::frame;

/// What a milter may do to a message, by libmilter's names (SMFIF_).
pub mod action {
    /// Add and insert header fields.
    pub const ADDHDRS: u32 = 0x001;
    /// Change and delete header fields.
    pub const CHGHDRS: u32 = 0x010;
    /// Hold a message for the postmaster.
    pub const QUARANTINE: u32 = 0x020;
    /// Say which macros to send.
    pub const SETSYMLIST: u32 = 0x100;
}

/// Which steps are left out or go unanswered, and how they go, by libmilter's names (SMFIP_).
pub mod step {
    #![allow(
        missing_docs,
        reason = "NO... is not sent by the MTA, NR_... not answered by the milter"
    )]
    pub const NOCONNECT: u32 = 0x001;
    pub const NOHELO: u32 = 0x002;
    pub const NOMAIL: u32 = 0x004;
    pub const NORCPT: u32 = 0x008;
    pub const NOBODY: u32 = 0x010;
    pub const NOHDRS: u32 = 0x020;
    pub const NOEOH: u32 = 0x040;
    pub const NR_HDR: u32 = 0x080;
    pub const NOUNKNOWN: u32 = 0x100;
    pub const NODATA: u32 = 0x200;
    /// SKIP may be answered to BODY: no more of the body, then the end.
    pub const SKIP: u32 = 0x400;
    /// Recipients that the MTA refused are shown too.
    pub const RCPT_REJ: u32 = 0x800;
    pub const NR_CONN: u32 = 0x1000;
    pub const NR_HELO: u32 = 0x2000;
    pub const NR_MAIL: u32 = 0x4000;
    pub const NR_RCPT: u32 = 0x8000;
    pub const NR_DATA: u32 = 0x1_0000;
    pub const NR_UNKN: u32 = 0x2_0000;
    pub const NR_EOH: u32 = 0x4_0000;
    pub const NR_BODY: u32 = 0x8_0000;
    /// Header fields travel with all of the white space after the colon, both ways.
    pub const HDR_LEADSPC: u32 = 0x10_0000;
    /// Packets of up to 256 KiB; of libmilter's own affairs.
    pub const MDS_256K: u32 = 0x1000_0000;
    /// Packets of up to 1 MiB; of libmilter's own affairs.
    pub const MDS_1M: u32 = 0x2000_0000;
}

/// The highest version we speak.
pub const VERSION: u32 = 6;

/// The lowest version we speak; the one before it had no negotiation.
pub const OLDEST_VERSION: u32 = 2;

/// What a milter would have, made once and used for every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bits of [`action`].
    pub actions: u32,
    /// Bits of [`step`].
    pub steps: u32,
    /// The limit that frames are decoded with; larger packets that an MTA offers are accepted if they fit.
    pub frame_limit: usize,
    macro_names: Vec<(MacroStage, Vec<String>)>,
}

/// The commands for which a milter can say which macros it would have; the number is that of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacroStage {
    /// CONNECT.
    Connect = 0,
    /// HELO.
    Helo = 1,
    /// MAIL.
    Mail = 2,
    /// RCPT.
    Rcpt = 3,
    /// DATA.
    Data = 4,
    /// The ends of header and message. Both always have the same macros: Sendmail 8.17 looks at the list of the one to
    /// decide about the other.
    End = 5,
}

impl Default for Wanted {
    /// What signing and verifying take, with as few packets as that allows.
    ///
    /// Header fields are not answered, which saves a round trip each. Body pieces are, since only an answer can be SKIP.
    /// MAIL, RCPT and DATA are not refused and are answered: Postfix would follow up an unanswered packet by a small write
    /// that waits for a delayed acknowledgment, 40 ms a message. Where nothing is acknowledged there is
    /// [`with_envelope_unanswered`](Self::with_envelope_unanswered).
    fn default() -> Self {
        let names =
            |stage, names: &[&str]| (stage, names.iter().map(ToString::to_string).collect());
        Self {
            actions: action::ADDHDRS | action::CHGHDRS | action::QUARANTINE | action::SETSYMLIST,
            steps: step::NOHELO | step::NOUNKNOWN | step::SKIP | step::NR_HDR | step::HDR_LEADSPC,
            frame_limit: frame::DEFAULT_LIMIT,
            macro_names: vec![
                names(
                    MacroStage::Connect,
                    &["j", "{client_addr}", "{daemon_name}"],
                ),
                names(
                    MacroStage::Mail,
                    &[
                        "i",
                        "{auth_type}",
                        "{auth_authen}",
                        "{auth_author}",
                        "{mail_addr}",
                        "{client_addr}",
                    ],
                ),
                names(MacroStage::Data, &["i"]),
                names(MacroStage::End, &["i"]),
            ],
        }
    }
}

impl Wanted {
    /// The same for Unix sockets, which acknowledge nothing: MAIL, RCPT and DATA go unanswered there, which saves a round
    /// trip each.
    pub fn with_envelope_unanswered(mut self) -> Self {
        self.steps |= step::NR_MAIL | step::NR_RCPT | step::NR_DATA;
        self
    }

    /// Asks for one more macro with the commands of `stage`; `auth_ssf` and `{auth_ssf}` are one name.
    ///
    /// The list of a stage replaces what the MTA would send with it by its own configuration; a stage without a list is
    /// left to the MTA.
    ///
    /// # Errors
    /// A name that the protocol cannot carry, or one too many for Sendmail.
    pub fn ask_macro(&mut self, stage: MacroStage, name: &str) -> Result<(), MacroNameError> {
        let bare = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'))
            .unwrap_or(name);
        if bare.is_empty()
            || !bare
                .bytes()
                .all(|o| o.is_ascii_graphic() && o != b'{' && o != b'}')
        {
            return Err(MacroNameError::NotAName { name: name.into() });
        }
        let name = if bare.len() == 1 {
            bare.into()
        } else {
            format!("{{{bare}}}")
        };
        let index = self
            .macro_names
            .iter()
            .position(|(own, _)| *own == stage)
            .unwrap_or_else(|| {
                self.macro_names.push((stage, Vec::new()));
                self.macro_names.len() - 1
            });
        let names = &mut self.macro_names[index].1;
        if names.contains(&name) {
            return Ok(());
        }
        if names.len() == MAX_MACRO_NAMES {
            return Err(MacroNameError::TooMany { name });
        }
        names.push(name);
        Ok(())
    }

    /// Appends the lists as they travel, `(stage:u32 "name name" NUL)*`.
    fn append_macro_lists(&self, out: &mut Vec<u8>) {
        for (stage, names) in &self.macro_names {
            let stages: &[u32] = match stage {
                MacroStage::End => &[5, 6],
                other => &[*other as u32],
            };
            for stage in stages {
                out.extend_from_slice(&stage.to_be_bytes());
                out.extend_from_slice(names.join(" ").as_bytes());
                out.push(0);
            }
        }
    }
}

/// Why a macro cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MacroNameError {
    /// A macro's name is one character, or several in braces, printable and without a space.
    #[error("{name:?} is no name of a macro")]
    NotAName {
        /// The name as given.
        name: String,
    },
    /// Sendmail takes no more.
    #[error("macro {name}: more than {MAX_MACRO_NAMES} macros for one command")]
    TooMany {
        /// The name as sent.
        name: String,
    },
}

/// Sendmail's limit on the names of one list.
const MAX_MACRO_NAMES: usize = 50;

/// What was agreed with the MTA. Before there is an offer, the default: nothing, and everything is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The version that both speak.
    pub version: u32,
    /// Bits of [`action`] that the milter may take.
    pub actions: u32,
    /// Bits of [`step`] that hold.
    pub steps: u32,
    /// Whether the MTA knows PROGRESS, as reply to the end of the message.
    ///
    /// There is no bit for it. It came with Sendmail 8.13, as QUARANTINE did, when the version was still 2.
    pub progress: bool,
}

/// Settles what holds between an MTA that makes `offer` and a milter that would have `wanted`.
///
/// # Errors
/// A version that we do not speak, to which there is no answer but to close the connection.
pub fn negotiate(offer: Offer, wanted: &Wanted) -> Result<Negotiated, NegotiationError> {
    if offer.version < OLDEST_VERSION {
        return Err(NegotiationError::TooOld {
            version: offer.version,
        });
    }
    // An MTA of old that names nothing has what there was at the time.
    let or_heritage = |bits: u32, heritage: u32| if bits == 0 { heritage } else { bits };
    let offered_actions = or_heritage(offer.actions, 0x0f);
    let offered_steps = or_heritage(offer.steps, 0x3f);
    Ok(Negotiated {
        version: offer.version.min(VERSION),
        actions: offered_actions & wanted.actions,
        steps: offered_steps & wanted.steps & !MDS | packet_size(offered_steps, wanted.frame_limit),
        progress: offer.version > OLDEST_VERSION || offered_actions & action::QUARANTINE != 0,
    })
}

/// Why there is nothing to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Nothing that is in use today.
    #[error(
        "the MTA speaks milter protocol version {version}, and {OLDEST_VERSION} is the oldest that we speak"
    )]
    TooOld {
        /// The version offered.
        version: u32,
    },
}

impl Negotiated {
    /// Whether the milter may take all of `actions`, bits of [`action`].
    pub fn may(&self, actions: u32) -> bool {
        self.actions & actions == actions
    }

    /// Whether SKIP may be answered to BODY.
    pub fn skip(&self) -> bool {
        self.steps & step::SKIP != 0
    }

    /// Whether a header field's value travels with all of the white space after the colon, in both directions.
    pub fn leading_space(&self) -> bool {
        self.steps & step::HDR_LEADSPC != 0
    }

    /// What to put between a received header field's colon and its value to have the field as it is in the message.
    ///
    /// With [`leading_space`](Self::leading_space) nothing: the value is complete. Without, the MTA has taken away one
    /// space if there was one, and whether there was cannot be known: a space is the best guess, except before a tab or
    /// a fold, where next to nobody writes one. A guess is good enough for relaxed canonicalization only.
    pub fn space_before(&self, value: &[u8]) -> &'static [u8] {
        match value.first() {
            _ if self.leading_space() => b"",
            Some(b'\t' | b'\n') => b"",
            _ => b" ",
        }
    }

    /// Whether a command, by its octet, is to be answered; answering one that is not, or keeping silent to one that is,
    /// breaks the connection. Commands that nobody knows are answered, for an MTA that waits in vain hangs.
    pub fn expects_reply(&self, command: u8) -> bool {
        let unanswered = match command {
            code::MACRO | code::ABORT | code::QUIT | code::QUIT_NC => return false,
            code::CONNECT => step::NR_CONN,
            code::HELO => step::NR_HELO,
            code::MAIL => step::NR_MAIL,
            code::RCPT => step::NR_RCPT,
            code::DATA => step::NR_DATA,
            code::HEADER => step::NR_HDR,
            code::EOH => step::NR_EOH,
            code::BODY => step::NR_BODY,
            code::UNKNOWN => step::NR_UNKN,
            _ => return true,
        };
        self.steps & unanswered == 0
    }

    /// Appends the data of the answer to OPTNEG; `wanted` is what was negotiated with.
    pub(super) fn append_answer(&self, wanted: &Wanted, out: &mut Vec<u8>) {
        for word in [self.version, self.actions, self.steps] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        if self.may(action::SETSYMLIST) {
            wanted.append_macro_lists(out);
        }
    }
}

/// The bits that tell packet sizes.
const MDS: u32 = step::MDS_256K | step::MDS_1M;

/// The largest packet size that is offered and fits `limit`, as the one bit that accepts it; none for 64 KiB.
fn packet_size(offered: u32, limit: usize) -> u32 {
    [(step::MDS_1M, 1 << 20), (step::MDS_256K, 1 << 18)]
        .into_iter()
        .find(|&(bit, size)| offered & bit != 0 && size <= limit)
        .map_or(0, |(bit, _)| bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::Reply;
    use proptest::prelude::*;

    fn offer(version: u32, actions: u32, steps: u32) -> Offer {
        Offer {
            version,
            actions,
            steps,
        }
    }

    #[test]
    fn the_answer_is_the_intersection_for_every_mta_there_is() {
        for (name, offered, version, actions, steps) in [
            (
                "Postfix and Sendmail 8.17",
                (6, 0x1ff, 0x1f_ffff),
                6,
                0x131,
                0x10_0582,
            ),
            ("Postfix as version 4", (4, 0x1ff, 0x37f), 4, 0x131, 0x102),
            ("Postfix as version 3", (3, 0x1ff, 0x17f), 3, 0x131, 0x102),
            ("Postfix as version 2", (2, 0x1ff, 0x7f), 2, 0x131, 0x002),
            ("version 2 of the time", (2, 0x3f, 0x7f), 2, 0x031, 0x002),
            ("one that names nothing", (2, 0, 0), 2, 0x001, 0x002),
            (
                "one without spaces",
                (6, 0x1ff, 0x0f_ffff),
                6,
                0x131,
                0x0582,
            ),
            (
                "one from the future",
                (9, !0, 0x0fff_ffff),
                6,
                0x131,
                0x10_0582,
            ),
            (
                "one that may do nothing of ours",
                (6, 0x40, 0x400),
                6,
                0,
                0x400,
            ),
        ] {
            let (offered_version, offered_actions, offered_steps) = offered;
            let agreed = negotiate(
                offer(offered_version, offered_actions, offered_steps),
                &Wanted::default(),
            )
            .unwrap();
            assert_eq!(
                (agreed.version, agreed.actions, agreed.steps),
                (version, actions, steps),
                "{name}"
            );
        }
    }

    #[test]
    fn an_offer_of_nothing_is_what_there_was_at_the_time() {
        let mut wanted = Wanted::default();
        (wanted.actions, wanted.steps) = (!0, !0);
        let agreed = negotiate(offer(2, 0, 0), &wanted).unwrap();
        assert_eq!((agreed.actions, agreed.steps), (0x0f, 0x3f));
    }

    #[test]
    fn a_version_before_2_is_refused() {
        for version in [0, 1] {
            assert_eq!(
                negotiate(offer(version, 0x1ff, 0x7f), &Wanted::default()),
                Err(NegotiationError::TooOld { version })
            );
        }
    }

    #[test]
    fn a_packet_size_is_echoed_as_one_bit_if_it_is_offered_and_fits() {
        let (kilo, mega) = (step::MDS_256K, step::MDS_1M);
        for (offered, limit, echoed) in [
            (0, usize::MAX, 0),
            (kilo, 1 << 20, kilo),
            (mega, 1 << 20, mega),
            (kilo | mega, 1 << 20, mega),
            (kilo | mega, (1 << 20) - 1, kilo),
            (mega, 1 << 18, 0),
            (kilo | mega, 1 << 16, 0),
        ] {
            let wanted = Wanted {
                frame_limit: limit,
                steps: step::SKIP | kilo | mega,
                ..Wanted::default()
            };
            let agreed = negotiate(offer(6, 0x1ff, offered | step::SKIP), &wanted).unwrap();
            assert_eq!(agreed.steps, echoed | step::SKIP, "{offered:#x} {limit}");
        }
    }

    #[test]
    fn progress_is_known_by_version_3_or_by_the_action_of_its_age() {
        for (version, actions, progress) in [
            (2, 0x1f, false),
            (2, 0x3f, true),
            (3, 0x1f, true),
            (6, 0x1ff, true),
        ] {
            let agreed = negotiate(offer(version, actions, 0x7f), &Wanted::default()).unwrap();
            assert_eq!(
                agreed.progress, progress,
                "version {version}, actions {actions:#x}"
            );
        }
    }

    #[test]
    fn what_is_answered_follows_the_bits_agreed() {
        let quiet = negotiate(offer(6, 0x1ff, 0x1f_ffff), &Wanted::default()).unwrap();
        let old = negotiate(offer(2, 0x3f, 0x7f), &Wanted::default()).unwrap();
        for (agreed, answered, unanswered) in [
            (quiet, "OCHMRTNBEU!", "DAQKL"),
            (old, "OCHMRTLNBEU!", "DAQK"),
            (Negotiated::default(), "OCHMRTLNBEU!", "DAQK"),
        ] {
            for command in answered.bytes() {
                assert!(agreed.expects_reply(command), "{}", command as char);
            }
            for command in unanswered.bytes() {
                assert!(!agreed.expects_reply(command), "{}", command as char);
            }
        }
        for (bit, command) in [
            (0x80, b'L'),
            (0x1000, b'C'),
            (0x2000, b'H'),
            (0x4000, b'M'),
            (0x8000, b'R'),
            (0x1_0000, b'T'),
            (0x2_0000, b'U'),
            (0x4_0000, b'N'),
            (0x8_0000, b'B'),
        ] {
            let all_but = Negotiated {
                steps: !bit,
                ..quiet
            };
            assert!(all_but.expects_reply(command));
            let only = Negotiated {
                steps: bit,
                ..quiet
            };
            assert!(!only.expects_reply(command));
        }
    }

    #[test]
    fn the_space_after_the_colon_is_known_or_guessed() {
        let exact = negotiate(offer(6, 0x1ff, 0x1f_ffff), &Wanted::default()).unwrap();
        let guessed = negotiate(offer(6, 0x1ff, 0x0f_ffff), &Wanted::default()).unwrap();
        for value in [&b""[..], b"x", b" x", b"\tx", b"\n x"] {
            assert_eq!(exact.space_before(value), b"");
        }
        for (value, space) in [
            (&b""[..], &b" "[..]),
            (b"x", b" "),
            (b" x", b" "),
            (b"\tx", b""),
            (b"\n x", b""),
        ] {
            assert_eq!(guessed.space_before(value), space, "{value:?}");
        }
    }

    #[test]
    fn macro_lists_go_out_only_where_they_are_offered() {
        let answer = |actions| {
            let wanted = Wanted::default();
            let agreed = negotiate(offer(6, actions, 0x1f_ffff), &wanted).unwrap();
            let mut out = Vec::new();
            Reply::OptNeg {
                agreed,
                wanted: &wanted,
            }
            .encode(false, &mut out);
            out
        };
        let words = |length: u8, actions: u8| {
            [
                &[0, 0, 0, length, b'O', 0, 0, 0, 6, 0, 0],
                &[0, actions][..],
                &[0, 0x10, 0x05, 0x82],
            ]
            .concat()
        };
        assert_eq!(answer(0xff), words(13, 0x31));
        let lists = b"\0\0\0\0j {client_addr} {daemon_name}\0\
            \0\0\0\x02i {auth_type} {auth_authen} {auth_author} {mail_addr} {client_addr}\0\
            \0\0\0\x04i\0\0\0\0\x05i\0\0\0\0\x06i\0";
        let mut wanted = words(13 + lists.len() as u8, 0x31);
        wanted[11] = 1;
        wanted.extend_from_slice(lists);
        assert_eq!(answer(0x1ff), wanted);
    }

    #[test]
    fn a_macro_is_asked_for_once_and_by_a_name_that_travels() {
        let mut wanted = Wanted::default();
        for (stage, name) in [
            (MacroStage::Connect, "daemon_name"),
            (MacroStage::Connect, "{v}"),
            (MacroStage::Rcpt, "rcpt_addr"),
            (MacroStage::End, "{msg_id}"),
        ] {
            wanted.ask_macro(stage, name).unwrap();
        }
        let mut out = Vec::new();
        wanted.append_macro_lists(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("\0\0\0\0j {client_addr} {daemon_name} v\0"),
            "{text:?}"
        );
        assert!(
            text.contains("\0\0\0\x05i {msg_id}\0\0\0\0\x06i {msg_id}\0"),
            "{text:?}"
        );
        assert!(text.ends_with("\0\0\0\x03{rcpt_addr}\0"), "{text:?}");

        for name in ["", "{}", "a b", "a\0b", "{a", "a}", "ü"] {
            let error = wanted.ask_macro(MacroStage::Helo, name).unwrap_err();
            assert_eq!(error, MacroNameError::NotAName { name: name.into() });
        }
        for number in 0..50 {
            wanted
                .ask_macro(MacroStage::Helo, &format!("m{number}"))
                .unwrap();
        }
        let error = wanted.ask_macro(MacroStage::Helo, "m50").unwrap_err();
        assert_eq!(
            error.to_string(),
            "macro {m50}: more than 50 macros for one command"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_agreed_that_is_not_both_offered_and_wanted(
            version in 2u32.., actions in 1u32.., steps in 1u32.., wanted_actions: u32, wanted_steps: u32,
        ) {
            let wanted = Wanted { actions: wanted_actions, steps: wanted_steps, ..Wanted::default() };
            let agreed = negotiate(offer(version, actions, steps), &wanted).unwrap();
            prop_assert!(agreed.version <= version && agreed.version <= 6);
            prop_assert_eq!(agreed.actions & !(actions & wanted_actions), 0);
            prop_assert_eq!(agreed.steps & !steps, 0);
            prop_assert_eq!(agreed.steps & !(wanted_steps | MDS), 0);
            prop_assert!((agreed.steps & MDS).count_ones() <= 1);
        }
    }
}
