//! Replies: what a milter says to an MTA, as octets that hold no more than was meant.
//!
//! Replies are appended to one buffer, so that all that is due goes out in one write; edits of the message come before
//! the reply that ends it. Values reach a message's header from here and nowhere else, so this is where line ends and
//! NUL are put right: whatever a value holds, it stays one field. When which reply is due is for the session.

use super::frame;
use super::negotiation::{Negotiated, Wanted};
use super::reply_code::ReplyCode;

/// One reply, or one edit of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The answer to OPTNEG.
    OptNeg {
        /// What was negotiated.
        agreed: Negotiated,
        /// What it was negotiated with, for the macros to ask for.
        wanted: &'a Wanted,
    },
    /// Go on; to the end of the message, take it.
    Continue,
    /// Take the message, or at CONNECT all of this client's, and ask no more about it.
    Accept,
    /// Refuse for good; to RCPT, that recipient only.
    Reject,
    /// Refuse for now; to RCPT, that recipient only.
    TempFail,
    /// Take the message and throw it away; MAIL to the end of the message only.
    Discard,
    /// Refuse with words of our own; not to CONNECT.
    ReplyCode(&'a ReplyCode),
    /// No more of this body, please; to BODY only, and only if it was negotiated.
    Skip,
    /// Wait, there is more to come; to the end of the message only, and only if the MTA knows it.
    Progress,
    /// Add a field at the bottom.
    AddHeader {
        /// The field's name.
        name: &'a [u8],
        /// All that stands after the colon.
        value: &'a [u8],
    },
    /// Insert a field; at 0 above all others, the MTA's own Received too.
    InsertHeader {
        /// Fields to stand above it.
        index: u32,
        /// The field's name.
        name: &'a [u8],
        /// All that stands after the colon.
        value: &'a [u8],
    },
    /// Give the `index`th field of that name, from 1, another value.
    ChangeHeader {
        /// Counts the fields of that name from the top, from 1.
        index: u32,
        /// The field's name.
        name: &'a [u8],
        /// All that stands after the colon.
        value: &'a [u8],
    },
    /// Delete the `index`th field of that name, from 1. Postfix numbers the fields below anew at once and Sendmail does
    /// not, so several are deleted from the bottom up.
    DeleteHeader {
        /// Counts the fields of that name from the top, from 1.
        index: u32,
        /// The field's name.
        name: &'a [u8],
    },
    /// Have the message held for the postmaster; a reply that ends the message still follows.
    Quarantine {
        /// Why, for the MTA's log.
        reason: &'a str,
    },
}

impl Reply<'_> {
    /// Appends the reply's frame to `out`; `leading_space` is [`Negotiated::leading_space`].
    ///
    /// A header field's value is written as it would stand in the message, from the octet after the colon on, mostly a
    /// space, with CRLF or LF before the white space of a fold. What cannot stand in a field is replaced: NUL and a
    /// lone CR by a space, a line end without white space after it by a fold, a fold onto a blank line by nothing. A
    /// name loses what a name cannot have, and without a name there is no frame.
    pub fn encode(&self, leading_space: bool, out: &mut Vec<u8>) {
        match *self {
            Self::OptNeg { agreed, wanted } => {
                frame::append(out, b'O', |out| agreed.append_answer(wanted, out))
            }
            Self::Continue => frame::append(out, b'c', |_| {}),
            Self::Accept => frame::append(out, b'a', |_| {}),
            Self::Reject => frame::append(out, b'r', |_| {}),
            Self::TempFail => frame::append(out, b't', |_| {}),
            Self::Discard => frame::append(out, b'd', |_| {}),
            Self::ReplyCode(reply) => frame::append(out, b'y', |out| {
                out.extend_from_slice(reply.lines());
                out.push(0);
            }),
            Self::Skip => frame::append(out, b's', |_| {}),
            Self::Progress => frame::append(out, b'p', |_| {}),
            Self::AddHeader { name, value } => {
                append_field(
                    out,
                    b'h',
                    None,
                    name,
                    travelling_value(value, leading_space),
                );
            }
            Self::InsertHeader { index, name, value } => {
                append_field(
                    out,
                    b'i',
                    Some(index),
                    name,
                    travelling_value(value, leading_space),
                );
            }
            Self::ChangeHeader { index, name, value } => {
                let value = match travelling_value(value, leading_space) {
                    // An empty value would delete the field.
                    b"" => b" ",
                    value => value,
                };
                append_field(out, b'm', Some(index), name, value);
            }
            Self::DeleteHeader { index, name } => append_field(out, b'm', Some(index), name, b""),
            Self::Quarantine { reason } => frame::append(out, b'q', |out| {
                out.extend(
                    reason
                        .bytes()
                        .map(|o| if o.is_ascii_control() { b' ' } else { o }),
                );
                out.push(0);
            }),
        }
    }
}

/// What to send for a header field's value so that the MTA writes `value` after the colon.
///
/// With `leading_space` agreed the MTA writes what it is given, and all of `value` is sent. Without, the MTA puts one
/// space after the colon by itself, so that exactly one leading space is taken away; a value that does not begin with a
/// space gets one that it did not have, and a signature over it must not be of simple canonicalization.
fn travelling_value(value: &[u8], leading_space: bool) -> &[u8] {
    match value.strip_prefix(b" ") {
        Some(rest) if !leading_space => rest,
        _ => value,
    }
}

/// Appends an edit of the header: `[index:u32] name NUL value NUL`.
fn append_field(out: &mut Vec<u8>, reply: u8, index: Option<u32>, name: &[u8], value: &[u8]) {
    // RFC 5322 section 3.6.8: printable and not a colon.
    let in_a_name = |o: &u8| o.is_ascii_graphic() && *o != b':';
    if !name.iter().any(in_a_name) {
        return;
    }
    frame::append(out, reply, |out| {
        if let Some(index) = index {
            out.extend_from_slice(&index.to_be_bytes());
        }
        out.extend(name.iter().filter(|o| in_a_name(o)));
        out.push(0);
        append_value(out, value);
        out.push(0);
    });
}

/// Appends a value that is one field's whatever it holds: every LF has a tab or space and then something visible after
/// it, and there is neither CR nor NUL.
fn append_value(out: &mut Vec<u8>, value: &[u8]) {
    let mut last_fold = None;
    let mut octets = value.iter().copied().peekable();
    while let Some(octet) = octets.next() {
        match octet {
            b'\r' if octets.peek() == Some(&b'\n') => {}
            b'\r' | 0 => out.push(b' '),
            b'\n' => {
                drop_blank_line(out, last_fold);
                last_fold = Some(out.len());
                out.push(b'\n');
                if !matches!(octets.peek(), Some(b' ' | b'\t')) {
                    out.push(b'\t');
                }
            }
            _ => out.push(octet),
        }
    }
    drop_blank_line(out, last_fold);
}

/// Takes a fold away if nothing but white space has followed it: some readers take a blank line for the header's end.
fn drop_blank_line(out: &mut Vec<u8>, fold: Option<usize>) {
    if let Some(fold) = fold
        && out[fold..]
            .iter()
            .all(|o| matches!(o, b' ' | b'\t' | b'\n'))
    {
        out.truncate(fold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(reply: Reply<'_>, leading_space: bool) -> Vec<u8> {
        let mut out = Vec::new();
        reply.encode(leading_space, &mut out);
        out
    }

    #[test]
    fn each_reply_is_the_octets_of_the_protocol() {
        let refused = ReplyCode::new(451, "4.7.5", "key server").unwrap();
        let (name, value) = (&b"X-A"[..], &b" b\r\n\tc"[..]);
        for (reply, wanted) in [
            (Reply::Continue, &b"\0\0\0\x01c"[..]),
            (Reply::Accept, b"\0\0\0\x01a"),
            (Reply::Reject, b"\0\0\0\x01r"),
            (Reply::TempFail, b"\0\0\0\x01t"),
            (Reply::Discard, b"\0\0\0\x01d"),
            (Reply::Skip, b"\0\0\0\x01s"),
            (Reply::Progress, b"\0\0\0\x01p"),
            (
                Reply::ReplyCode(&refused),
                b"\0\0\0\x16y451 4.7.5 key server\0",
            ),
            (
                Reply::AddHeader { name, value },
                b"\0\0\0\x0bhX-A\0 b\n\tc\0",
            ),
            (
                Reply::InsertHeader {
                    index: 0,
                    name,
                    value,
                },
                b"\0\0\0\x0fi\0\0\0\0X-A\0 b\n\tc\0",
            ),
            (
                Reply::ChangeHeader {
                    index: 258,
                    name,
                    value,
                },
                b"\0\0\0\x0fm\0\0\x01\x02X-A\0 b\n\tc\0",
            ),
            (
                Reply::DeleteHeader { index: 3, name },
                b"\0\0\0\x0am\0\0\0\x03X-A\0\0",
            ),
            (
                Reply::Quarantine {
                    reason: "odd\r\none\0",
                },
                b"\0\0\0\x0bqodd  one \0",
            ),
        ] {
            assert_eq!(encoded(reply, true), wanted, "{reply:?}");
        }
    }

    #[test]
    fn replies_gather_in_one_buffer() {
        let mut out = Vec::new();
        for reply in [
            Reply::DeleteHeader {
                index: 1,
                name: b"X",
            },
            Reply::InsertHeader {
                index: 0,
                name: b"Y",
                value: b" z",
            },
            Reply::Continue,
        ] {
            reply.encode(true, &mut out);
        }
        assert_eq!(
            out,
            b"\0\0\0\x08m\0\0\0\x01X\0\0\0\0\0\x0ai\0\0\0\0Y\0 z\0\0\0\0\x01c"
        );
    }

    #[test]
    fn one_leading_space_is_left_to_an_mta_that_adds_it() {
        for (value, with, without) in [
            (&b" v"[..], &b" v"[..], &b"v"[..]),
            (b"  v", b"  v", b" v"),
            (b"v", b"v", b"v"),
            (b"\tv", b"\tv", b"\tv"),
            (b"\r\n v", b"\n v", b"\n v"),
            (b"", b"", b""),
        ] {
            let sent = |leading_space| {
                let value = travelling_value(value, leading_space);
                let octets = encoded(Reply::AddHeader { name: b"X", value }, true);
                octets[7..octets.len() - 1].to_vec()
            };
            assert_eq!(sent(true), with, "{value:?}");
            assert_eq!(sent(false), without, "{value:?}");
        }
    }

    #[test]
    fn a_change_to_nothing_does_not_delete() {
        for (value, leading_space) in [(&b""[..], true), (b"", false), (b" ", false), (b" ", true)]
        {
            let name = b"X";
            assert_eq!(
                encoded(
                    Reply::ChangeHeader {
                        index: 1,
                        name,
                        value
                    },
                    leading_space
                ),
                b"\0\0\0\x09m\0\0\0\x01X\0 \0",
                "{value:?}"
            );
        }
    }

    #[test]
    fn nothing_gets_out_of_a_value() {
        for (value, wanted) in [
            (&b" a\r\n\tb"[..], &b" a\n\tb"[..]),
            (b" a\n b", b" a\n b"),
            (b" a\nEvil: b", b" a\n\tEvil: b"),
            (b" a\r\nEvil: b", b" a\n\tEvil: b"),
            (b" a\r\n\r\nbody", b" a\n\tbody"),
            (b" a\n \n\t\nb", b" a\n\tb"),
            (b" a\rb", b" a b"),
            (b" a\r\r\n b", b" a \n b"),
            (b" a\n\rb", b" a\n\t b"),
            (b" a\0b", b" a b"),
            (b" a\n", b" a"),
            (b" a\r\n", b" a"),
            (b" a\r\n\t", b" a"),
            (b" a\n\n\n", b" a"),
            (b"\n <x>", b"\n <x>"),
            (b"\n", b""),
            (b"\r", b" "),
            (b"\x7f\xff", b"\x7f\xff"),
        ] {
            let mut out = Vec::new();
            append_value(&mut out, value);
            assert_eq!(out, wanted, "{value:?}");
        }
    }

    #[test]
    fn a_name_loses_what_no_name_has() {
        let name_of = |name| encoded(Reply::DeleteHeader { index: 1, name }, true);
        assert_eq!(name_of(b"X: a\r\n\0B"), b"\0\0\0\x0am\0\0\0\x01XaB\0\0");
        assert_eq!(name_of(b"\r\n: "), b"");
        assert_eq!(name_of(b""), b"");
    }

    proptest! {
        #[test]
        fn any_value_stays_one_field(value in vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), Just(b'\t'), Just(0), Just(b'a'), any::<u8>()], 0..60)
        ) {
            let mut out = Vec::new();
            append_value(&mut out, &value);
            prop_assert!(!out.iter().any(|o| matches!(o, 0 | b'\r')));
            let mut lines = out.split(|&o| o == b'\n');
            lines.next();
            for line in lines {
                prop_assert!(matches!(line.first(), Some(b' ' | b'\t')), "{:?}", out);
                prop_assert!(line.iter().any(|o| !matches!(o, b' ' | b'\t')), "{:?}", out);
            }
            // What was visible still is, in its order.
            let visible = |octets: &[u8]| {
                let mut octets = octets.to_vec();
                octets.retain(|o| !matches!(o, 0 | b'\r' | b'\n' | b' ' | b'\t'));
                octets
            };
            prop_assert_eq!(visible(&out), visible(&value));
        }

        #[test]
        fn a_well_folded_value_is_not_touched(words in vec("[!-~]{1,8}", 1..8), fold in "\n[ \t]") {
            let value = format!(" {}", words.join(&fold));
            let mut out = Vec::new();
            append_value(&mut out, value.as_bytes());
            prop_assert_eq!(out, value.into_bytes());
        }
    }
}
