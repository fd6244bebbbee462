//! The resolver, against name servers on loopback.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use dkim_core::key_record::{KeyAnswer, KeyRecordError};
use dkim_milter::dns::{CacheLimits, KeySource, Resolver, look_up_all};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout};

mod dns_loopback;

use dns_loopback::{NameServer, Say, TXT, Transport, cname, query, txt};

const NAME: &str = "s._domainkey.example.org";
/// Long enough for a busy machine, where an answer comes; where none does, the test takes as long.
const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn strings_join_with_nothing_between_and_records_stay_apart() {
    let strings = [&b"v=DK"[..], b"", b"IM1; k", b"=", b"x; p=AA"];
    let records = vec![
        txt(NAME, &strings),
        txt(NAME, &[b"p=", b"", b";"]),
        txt(NAME, &[b"v", b"=spf1"]),
    ];
    let server = NameServer::start([(NAME, Say::Records(records))]).await;
    assert_eq!(
        said(resolver(&server, LONG).lookup(NAME).await),
        format!("{UNKNOWN} | {REVOKED} | {}", KeyRecordError::Version)
    );
}

#[tokio::test]
async fn large_answers_come_by_edns_and_larger_ones_by_tcp() {
    let (large, larger) = ("large.example.org", "larger.example.org");
    let filler = [b'x'; 250];
    let strings = |count| {
        [
            &[&b"n="[..]],
            vec![&filler[..]; count].as_slice(),
            &[b"; p="],
        ]
        .concat()
    };
    let server = NameServer::start([
        (large, Say::Records(vec![txt(large, &strings(4))])),
        (larger, Say::Records(vec![txt(larger, &strings(12))])),
    ])
    .await;
    let resolver = resolver(&server, LONG);
    assert_eq!(said(resolver.lookup(large).await), REVOKED);
    assert_eq!(said(resolver.lookup(larger).await), REVOKED);
    assert_eq!(
        server.asked(),
        [
            query(large, TXT, Transport::Udp),
            query(larger, TXT, Transport::Udp),
            query(larger, TXT, Transport::Tcp)
        ]
    );
}

#[tokio::test]
async fn cnames_are_followed_in_one_answer_or_step_by_step() {
    let server = NameServer::start([
        (
            "whole.example.org",
            Say::Records(vec![
                cname("whole.example.org", "b.example.net"),
                cname("B.example.net", "c.example.net"),
                txt("c.example.NET", &[b"p="]),
                txt("elsewhere.example.net", &[b"k=x; p=AA"]),
            ]),
        ),
        (
            "step.example.org",
            Say::Records(vec![cname("step.example.org", "step2.example.org")]),
        ),
        (
            "step2.example.org",
            Say::Records(vec![cname("step2.example.org", "step3.example.org")]),
        ),
        (
            "step3.example.org",
            Say::Records(vec![txt("step3.example.org", &[b"p="])]),
        ),
        (
            "dangling.example.org",
            Say::Records(vec![cname("dangling.example.org", "nowhere.example.org")]),
        ),
        (
            "empty.example.org",
            Say::Records(vec![cname("empty.example.org", "nodata.example.org")]),
        ),
        ("nodata.example.org", Say::NoData { soa: None }),
    ])
    .await;
    let resolver = resolver(&server, LONG);
    for (name, want, end) in [
        ("whole.example.org", REVOKED, Some("c.example.net")),
        ("step.example.org", REVOKED, Some("step3.example.org")),
        ("step3.example.org", REVOKED, None),
        ("dangling.example.org", "no name", None),
        ("empty.example.org", "no record", None),
    ] {
        assert_eq!(said(resolver.lookup(name).await), want, "{name}");
        let told = resolver.inspect(name).await;
        assert_eq!(told.cname.as_deref(), end, "{name}");
        assert_eq!(said(told.answer), want, "{name}");
    }
}

#[tokio::test]
async fn of_dnssec_only_servers_here_or_trusted_are_believed() {
    let server = NameServer::start([(NAME, Say::Records(vec![txt(NAME, &[b"p="])]))]).await;
    let here = resolver(&server, LONG);
    assert_eq!(here.validates(NAME, false).await, Some(false));
    let servers = [server.address, (Ipv4Addr::new(192, 0, 2, 1), 53).into()];
    let partly = Resolver::with_servers(&servers, LONG, CacheLimits::default()).unwrap();
    assert_eq!(partly.validates(NAME, true).await, Some(false));
    let asked = server.asked().len();
    assert_eq!(partly.validates(NAME, false).await, None);
    assert_eq!(server.asked().len(), asked, "asked in vain");
}

#[tokio::test]
async fn cnames_without_end_are_given_up() {
    let server = NameServer::start([
        (
            "a.example.org",
            Say::Records(vec![cname("a.example.org", "b.example.org")]),
        ),
        (
            "b.example.org",
            Say::Records(vec![cname("b.example.org", "a.example.org")]),
        ),
        (
            "self.example.org",
            Say::Records(vec![cname("self.example.org", "self.example.org")]),
        ),
        (
            "whole.example.org",
            Say::Records(vec![
                cname("whole.example.org", "other.example.org"),
                cname("other.example.org", "whole.example.org"),
            ]),
        ),
        (
            "beside.example.org",
            Say::Records(vec![
                cname("beside.example.org", "beside.example.org"),
                txt("beside.example.org", &[b"p="]),
            ]),
        ),
    ])
    .await;
    let resolver = resolver(&server, LONG);
    let want = format!(
        "{} answered with CNAMEs that do not end within 8 steps",
        server.address
    );
    for name in [
        "a.example.org",
        "self.example.org",
        "whole.example.org",
        "beside.example.org",
    ] {
        let before = server.asked().len();
        assert_eq!(said(resolver.lookup(name).await), want, "{name}");
        assert!(
            server.asked().len() - before <= 10,
            "{name}: {:?}",
            server.asked()
        );
    }
}

#[tokio::test]
async fn absences_are_no_failures_and_told_apart() {
    let server = NameServer::start([
        ("nx.example.org", Say::NoName { soa: Some(300) }),
        ("nx-bare.example.org", Say::NoName { soa: None }),
        ("nodata.example.org", Say::NoData { soa: Some(300) }),
        ("nodata-bare.example.org", Say::NoData { soa: None }),
        (
            "foreign.example.org",
            Say::Records(vec![txt("other.example.org", &[b"p="])]),
        ),
    ])
    .await;
    let resolver = resolver(&server, LONG);
    for (name, want) in [
        ("nx.example.org", "no name"),
        ("nx-bare.example.org", "no name"),
        ("unlisted.example.org", "no name"),
        ("nodata.example.org", "no record"),
        ("nodata-bare.example.org", "no record"),
        ("foreign.example.org", "no record"),
    ] {
        assert_eq!(said(resolver.lookup(name).await), want, "{name}");
    }
}

#[tokio::test]
async fn a_failure_says_which_server_did_what() {
    for (say, want) in [
        (Say::Code(1), "SERVER answered FORMERR"),
        (Say::Code(2), "SERVER answered SERVFAIL"),
        (Say::Code(4), "SERVER answered NOTIMP"),
        (Say::Code(5), "SERVER answered REFUSED"),
        (Say::Code(14), "SERVER answered with error 14"),
        (Say::Silence, "no answer from SERVER within 0.4 s"),
        (Say::Garbage, "SERVER gave an answer that cannot be read: "),
        (
            Say::TruncatedAndHungUp,
            "SERVER gave a truncated answer by UDP and no whole one by TCP",
        ),
    ] {
        let server = NameServer::start([(NAME, say.clone())]).await;
        let allowed = if matches!(say, Say::Silence) {
            SHORT
        } else {
            LONG
        };
        let got = said(resolver(&server, allowed).lookup(NAME).await);
        let want = want.replace("SERVER", &server.address.to_string());
        assert!(got.starts_with(&want), "{say:?}: {got}");
    }
}

#[tokio::test]
async fn silence_ends_in_time_and_is_remembered() {
    let server = NameServer::start([(NAME, Say::Silence)]).await;
    let resolver = resolver(&server, SHORT);
    let start = Instant::now();
    let answer = resolver.lookup(NAME).await;
    assert!(
        (SHORT..SHORT * 5).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    let asked = server.asked().len();
    let again = resolver.lookup(NAME).await;
    assert!(Arc::ptr_eq(&answer, &again));
    assert_eq!(server.asked().len(), asked);
}

#[tokio::test]
async fn a_port_without_a_server_fails_in_time() {
    let unused = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let resolver = Resolver::with_servers(&[unused], SHORT, CacheLimits::default()).unwrap();
    let start = Instant::now();
    assert_eq!(
        said(resolver.lookup(NAME).await),
        format!("no answer from {unused} within 0.4 s")
    );
    assert!(start.elapsed() < SHORT * 5, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_late_answer_counts_within_the_time_allowed() {
    let server = NameServer::start([(
        NAME,
        Say::Late(Duration::from_millis(800), Box::new(revoked())),
    )])
    .await;
    assert_eq!(said(resolver(&server, LONG).lookup(NAME).await), REVOKED);
    let want = format!("no answer from {} within 0.4 s", server.address);
    assert_eq!(said(resolver(&server, SHORT).lookup(NAME).await), want);
}

#[tokio::test]
async fn letters_have_no_case_and_a_final_dot_no_meaning() {
    let records = vec![txt("S._DomainKey.EXAMPLE.org", &[b"p="])];
    let server = NameServer::start([(NAME, Say::Records(records))]).await;
    let resolver = resolver(&server, LONG);
    for name in [
        NAME,
        "S._DOMAINKEY.Example.Org",
        "s._domainkey.example.org.",
    ] {
        assert_eq!(said(resolver.lookup(name).await), REVOKED, "{name}");
    }
    assert_eq!(server.asked(), [query(NAME, TXT, Transport::Udp)]);
}

#[tokio::test]
async fn u_labels_are_asked_for_as_a_labels() {
    let ascii = "xn--schlssel-95a._domainkey.xn--bcher-kva.example";
    let server = NameServer::start([(ascii, Say::Records(vec![txt(ascii, &[b"p="])]))]).await;
    let answer = resolver(&server, LONG)
        .lookup("schl\u{fc}ssel._domainkey.B\u{dc}CHER.example")
        .await;
    assert_eq!(said(answer), REVOKED);
    assert_eq!(server.asked(), [query(ascii, TXT, Transport::Udp)]);
}

#[tokio::test]
async fn what_is_no_name_is_not_asked_for() {
    let server = NameServer::start([]).await;
    let resolver = resolver(&server, SHORT);
    for name in [
        "",
        ".",
        "a..example",
        "a b.example",
        "a\0.example",
        "*.example",
        "a\\.b.example",
        "a.xn--\u{fc}",
    ] {
        assert_eq!(said(resolver.lookup(name).await), "no name", "{name:?}");
    }
    assert_eq!(server.asked(), []);
}

#[tokio::test]
async fn the_same_question_is_asked_once() {
    let absent = "nx.example.org";
    let server = NameServer::start([
        (
            NAME,
            Say::Late(Duration::from_millis(50), Box::new(revoked())),
        ),
        (absent, Say::NoName { soa: Some(300) }),
    ])
    .await;
    let resolver: Arc<dyn KeySource> = Arc::new(resolver(&server, LONG));
    let mut lookups = look_up_all(&resolver, vec![NAME.to_owned(); 20], Instant::now() + LONG);
    while let Some(lookup) = lookups.join_next().await {
        assert_eq!(said(lookup.unwrap().1), REVOKED);
    }
    for name in [NAME, absent, absent] {
        resolver.lookup(name).await;
    }
    assert_eq!(
        server.asked(),
        [
            query(NAME, TXT, Transport::Udp),
            query(absent, TXT, Transport::Udp)
        ]
    );
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_kept() {
    let server = NameServer::start([(
        NAME,
        Say::Late(Duration::from_millis(300), Box::new(revoked())),
    )])
    .await;
    let resolver = resolver(&server, LONG);
    assert!(
        timeout(Duration::from_millis(30), resolver.lookup(NAME))
            .await
            .is_err()
    );
    sleep(Duration::from_millis(700)).await;
    assert_eq!(
        said(
            timeout(Duration::ZERO, resolver.lookup(NAME))
                .await
                .unwrap()
        ),
        REVOKED
    );
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn the_next_server_is_asked_when_one_fails_and_then_first() {
    let other = "t._domainkey.example.org";
    for say in [Say::Code(2), Say::Code(5), Say::Silence, Say::Garbage] {
        let bad = NameServer::start([(NAME, say.clone()), (other, say.clone())]).await;
        let good = NameServer::start([(NAME, revoked())]).await;
        let servers = [bad.address, good.address];
        let resolver =
            Resolver::with_servers(&servers, Duration::from_millis(900), CacheLimits::default())
                .unwrap();
        assert_eq!(said(resolver.lookup(NAME).await), REVOKED, "{say:?}");
        let asked = bad.asked().len();
        assert!(asked >= 1, "{say:?}");
        assert_eq!(said(resolver.lookup(other).await), "no name", "{say:?}");
        assert_eq!(bad.asked().len(), asked, "{say:?}");
    }
}

#[tokio::test]
async fn when_all_servers_fail_each_is_named() {
    let first = NameServer::start([(NAME, Say::Silence)]).await;
    let second = NameServer::start([(NAME, Say::Code(2))]).await;
    let servers = [first.address, second.address];
    let resolver = Resolver::with_servers(&servers, SHORT, CacheLimits::default()).unwrap();
    let want = format!(
        "{} answered SERVFAIL; no answer from {} within 0.4 s",
        second.address, first.address
    );
    assert_eq!(said(resolver.lookup(NAME).await), want);
}

#[tokio::test]
async fn answers_are_given_as_they_come_until_the_deadline() {
    let late = "late._domainkey.example.org";
    let server = NameServer::start([(NAME, revoked()), (late, Say::Silence)]).await;
    let resolver: Arc<dyn KeySource> = Arc::new(resolver(&server, LONG));
    let mut lookups = look_up_all(
        &resolver,
        vec![late.into(), NAME.into()],
        Instant::now() + SHORT,
    );
    let mut next = async || {
        lookups
            .join_next()
            .await
            .map(Result::unwrap)
            .map(|(index, answer)| (index, said(answer)))
    };
    assert_eq!(next().await, Some((1, REVOKED.into())));
    assert_eq!(
        next().await,
        Some((0, "no answer from the DNS in time".into()))
    );
    assert_eq!(next().await, None);
}

fn resolver(server: &NameServer, timeout: Duration) -> Resolver {
    Resolver::with_servers(&[server.address], timeout, CacheLimits::default()).unwrap()
}

/// Records without a key will do here; each is told by why it has none.
fn said(answer: Arc<KeyAnswer>) -> String {
    match &*answer {
        KeyAnswer::Records(records) => {
            let faults: Vec<_> = records
                .iter()
                .map(|record| record.as_ref().unwrap_err().to_string())
                .collect();
            faults.join(" | ")
        }
        KeyAnswer::NoRecord => "no record".into(),
        KeyAnswer::NoName => "no name".into(),
        KeyAnswer::Unavailable(reason) => reason.clone(),
    }
}

const REVOKED: &str = "key revoked (p= is empty)";
const UNKNOWN: &str = "unknown key type in the key record (k=)";

fn revoked() -> Say {
    Say::Records(vec![txt(NAME, &[b"p="])])
}
