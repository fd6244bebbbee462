//! What the log says of conversations.

use super::*;
use std::fmt;
use std::sync::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Keeps what is logged at INFO or above.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{}: ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{value:?}"));
    }
}

/// What `act` has logged.
pub(super) fn logged(act: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    // As long as there is but one subscriber, tracing asks that of the thread that comes to a line first, and keeps the
    // answer for all: a test without any would keep others from getting the line.
    let _second = Dispatch::new(Lines::default());
    tracing::subscriber::with_default(lines.clone(), act);
    lines.0.lock().unwrap().drain(..).collect()
}

/// What is logged of `message`, its queue identifier aside.
fn lines_of(mut mta: Mta, message: &[u8]) -> Vec<String> {
    let lines = logged(|| drop(mta.send(message)));
    lines
        .iter()
        .map(|line| line.replacen("4Fabc: ", "", 1))
        .collect()
}

#[test]
fn who_only_tries_the_port_leaves_no_line_and_an_mta_s_faults_are_told_once() {
    let header = || Command::Header {
        name: b"X",
        value: b"y",
    };
    let mut mta = Mta::new(&[]);
    let probe = || {
        let mut actions = Actions::default();
        mta.session.command(
            Err((code::OPTNEG, CommandError::HeaderWithoutValue)),
            mta.now(),
            &mut actions,
        );
        for command in [Command::Body(b"x"), header(), Command::QuitNewConnection] {
            mta.say(command, &mut Outcome::default());
        }
    };
    assert_eq!(logged(probe), [""; 0]);

    let mail = || {
        let mut mta = Mta::new(&[]);
        for command in [
            header(),
            Command::Mail(Envelope::new(b"<>", b"")),
            Command::Connect {
                host: b"x",
                peer: Peer::Unknown,
            },
            header(),
        ] {
            mta.say(command, &mut Outcome::default());
        }
    };
    assert_eq!(logged(mail), ["WARN: command 'L' out of order"]);
}

#[test]
fn why_mail_of_ours_was_not_signed_is_told() {
    let from = |author: &str| MESSAGE.replace("Ann <ann@example.com>", author);
    for (mta, author, wanted) in [
        (
            internal(&[]),
            "ann@other.example",
            "INFO: verified: dkim=none; not signed: other.example is not in Domain",
        ),
        (
            internal(&[]),
            "ann@example.com, bo@other.example",
            "INFO: verified: dkim=none; not signed: authors of different domains",
        ),
        (
            Mta::new(&[]),
            "ann@example.com",
            "INFO: verified: dkim=none; not signed: external client sends as example.com",
        ),
        (
            Mta::new(&[]),
            "ann@other.example",
            "INFO: verified: dkim=none",
        ),
    ] {
        assert_eq!(lines_of(mta, from(author).as_bytes()), [wanted]);
    }
}

#[test]
fn an_author_s_fault_is_told_once_and_as_in_the_results() {
    for (from, fault) in [
        ("", "no From field"),
        (
            "From: root (Cron Daemon)\r\n",
            "the author's address has no domain",
        ),
        ("From: nobody:;\r\n", "From names no mailbox"),
    ] {
        let message = format!("{from}To: bo@example.net\r\n\r\nx\r\n");
        let outcome = Mta::new(&[]).send(message.as_bytes());
        assert_eq!(our_results(&outcome), [format!("permerror {fault}")]);
        let line = format!("INFO: verified: dkim=permerror: {fault}");
        assert_eq!(lines_of(Mta::new(&[]), message.as_bytes()), [&*line]);
        assert_eq!(
            lines_of(internal(&[]), message.as_bytes()),
            [format!("{line}; not signed")]
        );
    }
}

#[test]
fn an_author_who_is_not_the_sender_is_told() {
    let signed = "INFO: signed d=example.com s=sel a=rsa-sha256 from=<ann@example.com>";
    let client = "client=client.example[127.0.0.1] (internal host)";
    let line = |from: &str| {
        let message = MESSAGE.replace("Ann <ann@example.com>", from);
        lines_of(internal(&[]), message.as_bytes())
    };
    assert_eq!(
        line("Ann <ann@EXAMPLE.com>"),
        [format!("{signed} {client}")]
    );
    assert_eq!(
        line("The Boss <boss@example.com>"),
        [format!("{signed} author=<boss@example.com> {client}")]
    );
}

#[test]
fn a_client_without_a_name_is_told_once() {
    for (name, wanted) in [
        ("client.example", "client=client.example[127.0.0.1]"),
        ("[127.0.0.1]", "client=[127.0.0.1]"),
        ("", "client=[127.0.0.1]"),
    ] {
        let mut mta = internal(&[]);
        let mut outcome = Outcome::default();
        mta.say(
            Command::Connect {
                host: name.as_bytes(),
                peer: Peer::Inet("127.0.0.1".parse().unwrap(), 25),
            },
            &mut outcome,
        );
        let lines = lines_of(mta, MESSAGE.as_bytes());
        let line = format!(
            "INFO: signed d=example.com s=sel a=rsa-sha256 from=<ann@example.com> {wanted} (internal host)"
        );
        assert_eq!(lines, [line]);
    }
}

#[test]
fn what_became_of_an_earlier_signature_is_told() {
    let once = internal(&[]).send(MESSAGE.as_bytes()).delivered;
    let changed = [&once[..], b"-- \r\nfooter\r\n"].concat();
    let (key, client) = (
        "d=example.com s=sel a=rsa-sha256",
        "from=<ann@example.com> client=client.example[127.0.0.1] (internal host)",
    );
    let skipping = || internal(&["SkipAlreadySigned=yes"]);
    assert_eq!(
        lines_of(skipping(), &once),
        [format!("INFO: left alone: already signed {key} {client}")]
    );
    let broken = "an earlier signature is broken: body hash did not verify";
    assert_eq!(
        lines_of(skipping(), &changed),
        [format!("WARN: signed {key} {client}; {broken}")]
    );
}

#[test]
fn mail_that_goes_unsigned_for_a_fault_of_ours_is_a_warning_in_one_line() {
    let tables = [
        "KeyTable=csl:k=example.com:sel:/nonexistent.pem",
        "SigningTable=csl:example.com=k",
        "On-InternalError=accept",
        "SyslogSuccess=no",
    ];
    let lines = lines_of(internal(&tables), MESSAGE.as_bytes());
    let wanted = "No such file or directory (On-InternalError)";
    assert!(lines[0].starts_with("WARN: left alone: "), "{lines:?}");
    assert!(lines[0].ends_with(wanted), "{lines:?}");
    assert_eq!(lines.len(), 1, "{lines:?}");
}
