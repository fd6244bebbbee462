//! Stopping and reloading: messages end, sessions are not torn, a bad configuration changes nothing.

mod server_common;

use std::time::Duration;

use dkim_milter::protocol::command::Command;
use dkim_milter::server::Stop;
use server_common::{Setup, selector};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

#[tokio::test(flavor = "multi_thread")]
async fn with_nobody_connected_it_stops_at_once_and_takes_its_socket_away() {
    let server = Setup::new().start();
    let mut mta = server.connect().await;
    mta.greet().await;
    mta.send(&[Command::Quit]).await;
    assert!(mta.is_hung_up().await);
    let start = Instant::now();
    server.stop.send_replace(Stop::Drain);
    let dir = server.ended().await;
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(!dir.path("socket").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_lets_sessions_go_on_until_they_quit() {
    let server = Setup::new().start();
    let mut mta = server.connect().await;
    mta.greet().await;
    assert_eq!(mta.mail().await, 'c');
    server.stop.send_replace(Stop::Drain);
    let address = server.tcp;
    while TcpStream::connect(address).await.is_ok() {
        sleep(Duration::from_millis(10)).await;
    }
    mta.header_and_body("example.com", b"x\r\n").await;
    assert_eq!(selector(&mta.end().await), "r");
    // The next message of the same client.
    assert_eq!(selector(&mta.message("example.com", b"y\r\n").await), "r");
    assert!(!server.running.is_finished());
    mta.send(&[Command::Quit]).await;
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_drain_time_only_messages_in_progress_go_on() {
    let server = Setup::new().set("DrainTimeout=0").start();
    let (mut within, mut between) = (server.connect().await, server.connect_unix().await);
    within.greet().await;
    between.greet().await;
    assert_eq!(within.mail().await, 'c');
    server.stop.send_replace(Stop::Drain);
    assert!(between.is_hung_up().await);
    within.header_and_body("example.com", b"x\r\n").await;
    assert_eq!(selector(&within.end().await), "r");
    assert!(within.is_hung_up().await);
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_does_not_end_is_not_waited_for_for_ever() {
    let server = Setup::new().set("DrainTimeout=0").start();
    let mut mta = server.connect().await;
    mta.greet().await;
    assert_eq!(mta.mail().await, 'c');
    let start = Instant::now();
    server.stop.send_replace(Stop::Drain);
    sleep(Duration::from_millis(300)).await;
    assert!(!server.running.is_finished());
    server.stop.send_replace(Stop::Now);
    assert!(mta.is_hung_up().await);
    server.ended().await;
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_counts_from_the_next_message_on() {
    let server = Setup::new().start();
    let mut mta = server.connect().await;
    mta.greet().await;
    assert_eq!(mta.mail().await, 'c');
    let before = server.state.load_full();
    server.dir.write("KeyTable", "k example.com:new:./rsa\n");
    server.reload(|state| !std::ptr::eq(state, &*before)).await;
    mta.header_and_body("example.com", b"x\r\n").await;
    assert_eq!(selector(&mta.end().await), "r");
    assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_configuration_or_a_lost_key_changes_nothing() {
    let server = Setup::new().start();
    let mut mta = server.connect().await;
    mta.greet().await;
    let before = server.state.load_full();
    for (signing_table, key_table) in [
        ("*@example.com k k k\n", "k example.com:new:./rsa\n"),
        ("*@example.com k\n", "k example.com:new:./missing\n"),
        ("*@example.com k\n", "other example.com:new:./rsa\n"),
        ("*@example.com k\n", ""),
    ] {
        server.dir.write("KeyTable", key_table);
        server.dir.write("SigningTable", signing_table);
        for _ in 0..3 {
            // One is carried out and one waits: the third is taken once the first is through.
            server.reload.send(()).await.unwrap();
        }
        assert!(
            std::ptr::eq(&*server.state.load_full(), &*before),
            "{signing_table}"
        );
        assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "r");
    }
    server.dir.write("KeyTable", "k example.com:new:./rsa\n");
    server.reload(|state| !std::ptr::eq(state, &*before)).await;
    assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_key_is_its_own_domains_matter_and_a_mended_one_is_picked_up() {
    let setup = Setup::new();
    setup.dir.write(
        "KeyTable",
        "k example.com:r:./rsa\nk2 two.example:two:./two\n",
    );
    setup
        .dir
        .write("SigningTable", "*@example.com k\n*@two.example k2\n");
    let server = setup.start();
    let mut mta = server.connect().await;
    mta.greet().await;
    assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "r");
    assert_eq!(mta.mail().await, 'c');
    let answer = mta.try_message("two.example").await;
    assert!(answer == 't' || answer == 'y', "{answer}");
    mta.send(&[Command::Abort]).await;
    server.dir.write_key("two", server_common::ED25519);
    let before = server.state.load_full();
    server.reload(|state| !std::ptr::eq(state, &*before)).await;
    assert_eq!(selector(&mta.message("two.example", b"x\r\n").await), "two");
    assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "r");
}
