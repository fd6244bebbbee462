//! Connections: messages get their answers, limits and silence are dealt with.

mod server_common;

use std::sync::Arc;
use std::time::Duration;

use dkim_core::key_record::KeyAnswer;
use dkim_milter::dns::{KeySource, LookupFuture};
use dkim_milter::protocol::command::Command;
use dkim_milter::protocol::envelope::Envelope;
use dkim_milter::server::{Patience, State};
use server_common::{PATIENCE, Setup, selector};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep};

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_signed_over_tcp_and_unix_sockets() {
    let server = Setup::new().start();
    let body = b"line\r\n".repeat(50_000);
    let mut tcp = server.connect().await;
    tcp.greet().await;
    let mut unix = server.connect_unix().await;
    unix.greet().await;
    for _ in 0..3 {
        assert_eq!(selector(&tcp.message("example.com", &body).await), "r");
        assert_eq!(selector(&unix.message("example.com", b"").await), "r");
        assert_eq!(selector(&unix.message("other.example", b"").await), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_messages_are_refused_and_nobody_waits() {
    let server = Setup::new().set("MaximumConnections=3").start();
    let mut served = Vec::new();
    for _ in 0..3 {
        let mut mta = server.connect().await;
        mta.greet().await;
        served.push(mta);
    }
    let mut refused = server.connect_unix().await;
    refused.greet().await;
    refused
        .send(&[Command::Mail(Envelope::new(b"<a@b.example>", b""))])
        .await;
    let answer = refused.answers().await.unwrap().remove(0);
    assert!(
        answer.0 == b't' || answer.0 == b'y' && answer.1.starts_with(b"4"),
        "{answer:?}"
    );
    for mta in &mut served {
        assert_eq!(mta.mail().await, 'c');
    }
    drop((served, refused));
    let patient_until = Instant::now() + PATIENCE;
    loop {
        let mut mta = server.connect().await;
        mta.greet().await;
        if mta.mail().await == 'c' {
            break;
        }
        assert!(Instant::now() < patient_until, "still refused");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mta_that_falls_silent_is_hung_up_on() {
    let mut setup = Setup::new();
    setup.patience = Patience {
        idle: Duration::from_millis(400),
        packet: Duration::from_millis(100),
        write: Duration::from_secs(5),
    };
    let server = setup.start();
    let (mut within, mut between) = (server.connect().await, server.connect().await);
    within.greet().await;
    between.greet().await;
    within.stream.write_all(b"\0\0\0\x50").await.unwrap();
    let start = Instant::now();
    assert!(within.is_hung_up().await);
    assert!(
        start.elapsed() < Duration::from_millis(350),
        "{:?}",
        start.elapsed()
    );
    assert!(between.is_hung_up().await);
    assert!(
        start.elapsed() > Duration::from_millis(350),
        "{:?}",
        start.elapsed()
    );
}

/// Answers late, or comes to grief.
struct Odd {
    delay: Duration,
    panics: bool,
}

impl KeySource for Odd {
    fn lookup<'a>(&'a self, _: &'a str) -> LookupFuture<'a> {
        Box::pin(async {
            sleep(self.delay).await;
            assert!(!self.panics, "as the test wants it");
            Arc::new(KeyAnswer::NoName)
        })
    }
}

/// The last answer to a message with a signature by example.net.
async fn verified_with(source: Odd) -> (String, Duration) {
    let setup = Setup::new();
    let settings = setup
        .source()
        .load()
        .map_err(|error| error.errors)
        .unwrap()
        .state
        .settings;
    let server = setup.start_with(State {
        settings,
        key_records: Arc::new(source),
    });
    let mut mta = server.connect().await;
    mta.greet().await;
    assert_eq!(mta.mail().await, 'c');
    let signature = b" v=1; a=rsa-sha256; d=example.net; s=s; h=from; bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=AAAA";
    assert_eq!(
        mta.ask(Command::Rcpt(Envelope::new(b"<b@c.example>", b"")))
            .await,
        'c'
    );
    let (name, value) = (&b"DKIM-Signature"[..], &signature[..]);
    mta.tell(Command::Header { name, value }).await;
    let (name, value) = (&b"From"[..], &b" Bo <bo@example.net>"[..]);
    mta.tell(Command::Header { name, value }).await;
    assert_eq!(mta.ask(Command::EndOfHeader).await, 'c');
    let start = Instant::now();
    let (letter, data) = mta.end().await.pop().unwrap();
    (
        format!("{}{}", char::from(letter), String::from_utf8_lossy(&data)),
        start.elapsed(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_message_waits_for_the_dns() {
    let delay = Duration::from_millis(200);
    let (answer, waited) = verified_with(Odd {
        delay,
        panics: false,
    })
    .await;
    assert_eq!(answer, "c");
    assert!(waited > Duration::from_millis(150), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_resolver_is_a_dns_error() {
    let delay = Duration::ZERO;
    let (answer, _) = verified_with(Odd {
        delay,
        panics: true,
    })
    .await;
    assert!(answer.starts_with("y4") || answer == "t", "{answer}");
}
