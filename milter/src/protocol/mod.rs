//! The milter wire protocol, versions 2 to 6: frames, commands, replies, negotiation; no I/O.
//!
//! An MTA connects, offers what it can do and then tells a mail session step by step; most steps want an answer. Who
//! reads and writes the octets, and what the answers are, is decided elsewhere: this room only turns octets into
//! [`command::Command`]s and [`reply::Reply`]s into octets, and keeps the rules that both ends share.
//!
//! - [`frame`] cuts the stream into packets, without copying and without trusting a length;
//! - [`command`] reads what an MTA says, with [`peer`] and [`envelope`] for who says it to whom;
//! - [`negotiation`] settles version, actions and steps, and so which commands are answered;
//! - [`macros`] keeps the values an MTA sends along, each as long as it holds;
//! - [`state`] knows which command may follow which;
//! - [`reply`] writes answers and message edits, so that nothing can be smuggled in by a value, [`reply_code`] those in
//!   words of our own;
//! - [`mta`] is the other end of it all, for load generators and tests.
//!
//! The protocol has no standard. What is written here follows the documentation of libmilter and what Postfix 3.7 and
//! Sendmail 8.17 were seen to do; `tests/recorded` holds conversations with both.

pub mod command;
pub mod envelope;
pub mod frame;
pub mod macros;
pub mod mta;
pub mod negotiation;
pub mod peer;
pub mod reply;
pub mod reply_code;
pub mod state;

#[cfg(test)]
mod tests {
    use super::command::Command;
    use super::frame::{DEFAULT_LIMIT, Decoded, decode};
    use super::negotiation::{Wanted, negotiate};
    use super::state::{Order, Sequence};

    /// What comes of all that a peer sends before it closes: a line for each frame, and why there are no more.
    fn outcome(mut read: &[u8]) -> Vec<String> {
        let mut sequence = Sequence::default();
        let mut lines = Vec::new();
        loop {
            match decode(read, DEFAULT_LIMIT) {
                Decoded::Frame(frame) => {
                    let order = match sequence.advance(frame.command) {
                        Order::OutOfOrder => " out of order",
                        Order::InOrder | Order::EndsMessage => "",
                    };
                    lines.push(match Command::parse(frame.command, &read[frame.data]) {
                        Ok(Command::OptNeg(offer)) => match negotiate(offer, &Wanted::default()) {
                            Ok(agreed) => format!("agreed on {}{order}", agreed.version),
                            Err(error) => error.to_string(),
                        },
                        Ok(command) => format!("{}{order}", command.code() as char),
                        Err(error) => format!("{error}{order}"),
                    });
                    read = &read[frame.consumed..];
                }
                Decoded::NeedMore { total } => {
                    if !read.is_empty() {
                        lines.push(format!("{} of {total} octets", read.len()));
                    }
                    return lines;
                }
                Decoded::TooLarge { length } => {
                    lines.push(format!("a length of {length}"));
                    return lines;
                }
                Decoded::Empty => {
                    lines.push("a length of nothing".into());
                    return lines;
                }
            }
        }
    }

    #[test]
    fn probes_and_junk_have_an_outcome_and_do_no_harm() {
        let offer = |version: u8| {
            [
                b"\0\0\0\x0dO\0\0\0",
                &[version][..],
                b"\0\0\x01\x7f\0\0\x03\xff",
            ]
            .concat()
        };
        let after_offer = |more: &[u8]| [&offer(6), more].concat();
        for (sent, wanted) in [
            (vec![], &[][..]),
            (vec![0, 0], &["2 of 4 octets"]),
            (vec![0; 4], &["a length of nothing"]),
            (vec![0xff; 4], &["a length of 4294967295"]),
            (
                b"OPTIONS * HTTP/1.1\r\n\r\n".to_vec(),
                &["a length of 1330664521"],
            ),
            (b"HELO probe\r\n".to_vec(), &["a length of 1212501071"]),
            (
                b"\x16\x03\x01\x02\0\x01".to_vec(),
                &["a length of 369295618"],
            ),
            (offer(6), &["agreed on 6"]),
            (offer(2), &["agreed on 2"]),
            (
                offer(1),
                &["the MTA speaks milter protocol version 1, and 2 is the oldest that we speak"],
            ),
            (offer(255), &["agreed on 6"]),
            (
                after_offer(&offer(6)),
                &["agreed on 6", "agreed on 6 out of order"],
            ),
            (b"\0\0\0\x05Bbody".to_vec(), &["B out of order"]),
            (b"\0\0\0\x05Bbo".to_vec(), &["7 of 9 octets"]),
            (
                b"\0\0\0\x05O\0\0\0\x06".to_vec(),
                &["OPTNEG with 4 octets of data instead of 12"],
            ),
            (
                after_offer(b"\0\0\0\x06LX-Odd"),
                &[
                    "agreed on 6",
                    "HEADER without a NUL between name and value out of order",
                ],
            ),
            (b"\0\0\0\x01Q".to_vec(), &["Q"]),
            (b"\0\0\0\x01K".to_vec(), &["K out of order"]),
            (b"\0\0\0\x01\xff".to_vec(), &["\u{ff} out of order"]),
        ] {
            assert_eq!(outcome(&sent), wanted, "{sent:?}");
        }
    }
}
