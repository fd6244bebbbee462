//! What does not go by the book: mail that cannot be judged, is refused or broken off, and commands in any order.

use super::*;
use proptest::prelude::*;

#[test]
fn what_cannot_be_judged_is_deferred_and_the_connection_lives() {
    let mut mta = internal(&["MaximumHeaders=1024"]);
    let long = format!("X: {}\r\n{MESSAGE}", "y".repeat(1000));
    assert_eq!(
        mta.send(long.as_bytes()).code,
        "451 4.7.0 message exceeds DKIM limits"
    );
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.edits.len(), 1, "{outcome:?}");

    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    let mut actions = Actions::default();
    mta.session.command(
        Err((code::HEADER, CommandError::HeaderWithoutValue)),
        mta.now(),
        &mut actions,
    );
    assert!(actions.replies.is_empty(), "header fields are not answered");
    mta.say(Command::EndOfHeader, &mut outcome);
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error");
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

/// What is wrong with a command that gets no answer is answered later.
#[test]
fn a_sender_that_cannot_be_read_is_refused_where_mail_goes_unanswered() {
    let mut mta = internal(&[]);
    mta.on_unix_socket(None);
    assert!(!mta.session.expects_reply(code::MAIL));
    let mut actions = Actions::default();
    mta.session.command(
        Err((code::MAIL, CommandError::NoArgument { command: "MAIL" })),
        mta.now(),
        &mut actions,
    );
    assert!(actions.replies.is_empty());
    let mut outcome = Outcome::default();
    mta.say(Command::Rcpt(Envelope::new(b"<>", b"")), &mut outcome);
    mta.say(Command::EndOfHeader, &mut outcome);
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error");
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn a_full_daemon_answers_mail_on_a_unix_socket() {
    let mut mta = internal(&[]);
    mta.on_unix_socket(Some("too many connections"));
    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    assert_eq!(outcome.code, "451 4.3.2 too many connections");
}

#[test]
fn messages_are_refused_while_told_so() {
    let mut mta = internal(&[]);
    mta.session.refuse_messages("too many connections");
    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    assert_eq!(outcome.code, "451 4.3.2 too many connections");
}

#[test]
fn an_aborted_message_leaves_nothing_behind() {
    let mut mta = internal(&[]);
    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    mta.say(
        Command::Header {
            name: b"From",
            value: b" x@other.example",
        },
        &mut outcome,
    );
    mta.say(Command::Abort, &mut outcome);
    mta.say(Command::Abort, &mut outcome);
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
    let mut outcome = Outcome::default();
    mta.say(Command::Quit, &mut outcome);
    assert!(mta.closed);
}

fn any_command() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let octet = prop::sample::select(b"OCDHMRTLNBEAKQU!".to_vec());
    let data = prop_oneof![
        Just(b"From\0 ann@example.com\0".to_vec()),
        Just(b"<ann@example.com>\0".to_vec()),
        Just(b"client\x004\0\x19127.0.0.1\0".to_vec()),
        Just(b"\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff".to_vec()),
        Just(
            b"DKIM-Signature\0 v=1; a=rsa-sha256; d=example.com; s=sel; h=from; bh=AAAA; b=AAAA\0"
                .to_vec()
        ),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    (octet, data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_order_of_commands_panics_and_what_expects_an_answer_gets_one(commands in prop::collection::vec(any_command(), 0..40)) {
        let mut mta = internal(&[]);
        for (octet, data) in commands {
            if octet == b'Q' || octet == b'O' {
                continue;
            }
            let expects = mta.session.negotiated.expects_reply(octet);
            let mut actions = Actions::default();
            let command = Command::parse(octet, &data);
            let chunk = match &command {
                Ok(Command::Body(chunk)) => Some(*chunk),
                _ => None,
            };
            mta.session.command(command.map_err(|fault| (octet, fault)), mta.now(), &mut actions);
            if let Some(chunk) = chunk {
                mta.session.body(chunk);
            }
            let mut outcome = Outcome::default();
            mta.take(actions, &mut outcome);
            let answers = outcome.replies.chars().filter(|reply| *reply != '-').count();
            prop_assert_eq!(answers, usize::from(expects), "{} {:?}", char::from(octet), outcome);
        }
    }
}
