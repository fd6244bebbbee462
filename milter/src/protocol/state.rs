//! State: which command may follow which, `O (C H)? { M R* T? L* N? B* E | ... A }* Q|K`.
//!
//! MTAs keep to the order, but not all of them to the same one, and each leaves out what was refused in the
//! negotiation: within a message commands may be missing but not come back. A command out of order is never a reason to
//! close a connection, so all that is said here is what it means for the message in progress; what to do is for the
//! session.

use super::command::code;

/// Where a connection is, from one command to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    state: State,
}

/// What a command means where it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It comes in its place.
    InOrder,
    /// It comes in its place but for a message in progress, which is over without an ABORT: Postfix sends HELO in the
    /// middle of one, then ABORT.
    EndsMessage,
    /// It has no place here and changes nothing, except that a message in progress is over, for part of it is not
    /// known. Its answer, if one is expected, is to continue.
    OutOfOrder,
}

impl Sequence {
    /// Takes the next command, by its octet, also of one that could not be read. An octet that is no command has no
    /// place but does no harm to a message either.
    pub fn advance(&mut self, command: u8) -> Order {
        let ended = |order| {
            if self.in_message() {
                Order::EndsMessage
            } else {
                order
            }
        };
        let (order, next) = match (command, self.state) {
            (code::MACRO, state) => (Order::InOrder, state),
            (code::QUIT, _) => (Order::InOrder, State::Closed),
            (_, State::Closed) => (Order::OutOfOrder, State::Closed),
            (code::OPTNEG, State::Start) => (Order::InOrder, State::Idle),
            (_, State::Start) => (Order::OutOfOrder, State::Start),
            (code::ABORT, _) => (Order::InOrder, State::Idle),
            (code::UNKNOWN, state) => (Order::InOrder, state),
            // CONNECT without QUIT_NC before it: what is known of the client before would be wrong of this one.
            (code::CONNECT | code::HELO | code::QUIT_NC, _) => (ended(Order::InOrder), State::Idle),
            (code::MAIL, _) => (ended(Order::InOrder), State::Message(0)),
            (_, State::Message(last)) => {
                match MESSAGE.iter().position(|&(step, _)| step == command) {
                    Some(step) if step > last || step == last && MESSAGE[step].1 => {
                        let next = if command == code::BODYEOB {
                            State::Idle
                        } else {
                            State::Message(step)
                        };
                        (Order::InOrder, next)
                    }
                    None if command != code::OPTNEG => (Order::InOrder, State::Message(last)),
                    _ => (Order::OutOfOrder, State::Idle),
                }
            }
            (_, State::Idle) => (Order::OutOfOrder, State::Idle),
        };
        self.state = next;
        order
    }

    /// A reply has ended the message before its last command: what still comes of it is out of order.
    pub fn message_over(&mut self) {
        if self.in_message() {
            self.state = State::Idle;
        }
    }

    /// Whether there is a message between MAIL and its end.
    pub fn in_message(&self) -> bool {
        matches!(self.state, State::Message(_))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before OPTNEG.
    #[default]
    Start,
    /// Between messages, with or without a client.
    Idle,
    /// In a message, whose last command is at this place of [`MESSAGE`].
    Message(usize),
    /// After QUIT.
    Closed,
}

/// The commands of a message in their order, and whether they may repeat.
const MESSAGE: [(u8, bool); 7] = [
    (code::MAIL, false),
    (code::RCPT, true),
    (code::DATA, false),
    (code::HEADER, true),
    (code::EOH, false),
    (code::BODY, true),
    (code::BODYEOB, false),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The orders of `commands`, one letter each: `.` in order, `e` ends a message, `!` out of order.
    fn orders(commands: &str) -> String {
        let mut sequence = Sequence::default();
        commands
            .bytes()
            .map(|command| match sequence.advance(command) {
                Order::InOrder => '.',
                Order::EndsMessage => 'e',
                Order::OutOfOrder => '!',
            })
            .collect()
    }

    #[test]
    fn every_order_that_mtas_keep_to_is_in_order() {
        for commands in [
            "ODCDHDMDRDTDLDLDNDBDEAAQ",
            "OCMRRTLLNBBEAAMRTLNEAAQ",
            "OCHMRTLNBEMRTLNBEQ",
            "OCMRLNBEQ",
            "OCMRAMAQ",
            "OMRNEQ",
            "OMLBEQ",
            "OME",
            "OCHHUMURUTUQ",
            "OCHMRTNEKCHMRTNEQ",
            "OCAAQ",
            "OQ",
            "Q",
            "OCMRAQ",
            "DOQ",
        ] {
            assert_eq!(orders(commands), ".".repeat(commands.len()), "{commands}");
        }
    }

    #[test]
    fn a_command_without_a_place_is_told() {
        for (commands, wanted) in [
            ("BOCM", "!..."),
            ("AOC", "!.."),
            ("KCMO", "!!!."),
            ("OCO", "..!"),
            ("OCRTLNBE", "..!!!!!!"),
            ("OCMRNLBEMRE", ".....!!!..."),
            ("OCMRTTE", ".....!!"),
            ("OCMRTRE", ".....!!"),
            ("OCMRNNE", ".....!!"),
            ("OCMREBA", ".....!."),
            ("OCM!RE", "......"),
            ("OC!M", "..!."),
            ("OCMOE", "...!!"),
            ("OQM", "..!"),
            ("QO", ".!"),
            ("QQ", ".."),
        ] {
            assert_eq!(orders(commands), wanted, "{commands}");
        }
    }

    #[test]
    fn a_message_can_end_without_abort() {
        for (commands, wanted) in [
            ("OCHMHAAMR", "....e...."),
            ("OCMRMRTNE", "....e...."),
            ("OCMRTLKCM", "......e.."),
            ("OCMRCMR", "....e.."),
        ] {
            assert_eq!(orders(commands), wanted, "{commands}");
        }
    }

    #[test]
    fn a_message_ended_by_a_reply_is_not_ended_again() {
        let mut sequence = Sequence::default();
        for command in *b"OCM" {
            assert_eq!(sequence.advance(command), Order::InOrder);
        }
        assert!(sequence.in_message());
        sequence.message_over();
        assert!(!sequence.in_message());
        assert_eq!(sequence.advance(b'R'), Order::OutOfOrder);
        assert_eq!(sequence.advance(b'M'), Order::InOrder);
    }

    proptest! {
        #[test]
        fn any_commands_have_an_order(commands in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut sequence = Sequence::default();
            for command in commands {
                let was_in_message = sequence.in_message();
                match sequence.advance(command) {
                    Order::EndsMessage => prop_assert!(was_in_message),
                    Order::OutOfOrder => prop_assert!(!sequence.in_message()),
                    Order::InOrder => {}
                }
            }
        }
    }
}
