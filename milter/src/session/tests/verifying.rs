//! Mail that is verified: the results on top of it, the actions on them, and key records that come late or never.

use super::*;

#[test]
fn verdicts_are_reported_on_top() {
    let good = signed(MESSAGE);
    let changed = String::from_utf8(good.clone())
        .unwrap()
        .replace("Hello", "Hallo");
    let not_oversigned = signed_over(MESSAGE, FieldChoice::new(&["From"], &[]).unwrap());
    let two = [&b"From: Eve <eve@example.net>\r\n"[..], &not_oversigned].concat();
    for (message, dns, want, replies) in [
        (good.clone(), Dns::Answers, &["pass"][..], "c"),
        (
            changed.into_bytes(),
            Dns::Answers,
            &["fail body hash did not verify"],
            "c",
        ),
        (
            good.clone(),
            Dns::NoName,
            &["permerror no key for signature: no such name"],
            "c",
        ),
        (good.clone(), Dns::Fails, &[], "y"),
        (MESSAGE.as_bytes().to_vec(), Dns::Answers, &[], "c"),
        (
            two,
            Dns::Answers,
            &["policy signature verified, but the message has 2 From fields"],
            "c",
        ),
        (
            [b"DKIM-Signature: v=1; a=b\r\n", &good[..]].concat(),
            Dns::Answers,
            &["permerror unknown signature algorithm (a=)", "pass"],
            "c",
        ),
        (
            [b"DKIM-Signature: ;;;;\r\n", &good[..]].concat(),
            Dns::Answers,
            &[
                "neutral signature syntax error: empty tag at octet 0",
                "pass",
            ],
            "c",
        ),
    ] {
        let mut mta = Mta::new(&[]);
        mta.dns = dns;
        let outcome = mta.send(&message);
        assert!(outcome.replies.ends_with(replies), "{outcome:?}");
        assert_eq!(our_results(&outcome), want);
    }
}

#[test]
fn on_actions_are_carried_out() {
    let good = signed(MESSAGE);
    let changed = String::from_utf8(good.clone())
        .unwrap()
        .replace("Hello", "Hallo")
        .into_bytes();
    for (option, message, dns, code) in [
        (
            "On-BadSignature=reject",
            &changed,
            Dns::Answers,
            "550 5.7.0 bad DKIM signature data",
        ),
        (
            "On-BadSignature=tempfail",
            &changed,
            Dns::Answers,
            "451 4.7.0 bad DKIM signature data",
        ),
        (
            "On-KeyNotFound=reject",
            &good,
            Dns::NoName,
            "550 5.7.0 no key for DKIM signature",
        ),
        (
            "On-NoSignature=reject",
            &MESSAGE.as_bytes().to_vec(),
            Dns::Answers,
            "550 5.7.0 no DKIM signature data",
        ),
        (
            "On-DNSError=tempfail",
            &good,
            Dns::Fails,
            "451 4.7.5 DKIM key retrieval failed",
        ),
        ("On-DNSError=accept", &good, Dns::Fails, ""),
        ("On-BadSignature=discard", &changed, Dns::Answers, ""),
    ] {
        let mut mta = Mta::new(&[option]);
        mta.dns = dns;
        let outcome = mta.send(message);
        assert_eq!(outcome.code, code, "{option}: {outcome:?}");
        assert_eq!(outcome.replies.ends_with('d'), option.ends_with("discard"));
        // The connection lives on.
        mta.dns = Dns::Answers;
        assert!(mta.send(&good).replies.ends_with('c'));
    }
    let outcome = Mta::new(&["On-BadSignature=quarantine"]).send(&changed);
    assert_eq!(
        outcome.edits.last().map(|edit| edit.0),
        Some('q'),
        "{outcome:?}"
    );
    assert!(outcome.replies.ends_with('c'));
}

#[test]
fn a_slow_resolver_is_bridged_and_a_dead_one_defers() {
    let mut mta = Mta::new(&["DNSTimeout=9"]);
    mta.dns = Dns::Silent;
    let mut outcome = mta.send(&signed(MESSAGE));
    assert!(mta.session.is_busy());
    assert!(outcome.replies.ends_with('-'));
    mta.wake(&mut outcome);
    assert!(outcome.replies.ends_with('p'), "{outcome:?}");
    let late = mta.pending.pop().unwrap();
    let mut actions = Actions::default();
    mta.work(late, &mut actions);
    mta.take(actions, &mut outcome);
    assert!(outcome.replies.ends_with('c'), "{outcome:?}");
    assert_eq!(our_results(&outcome), ["pass"]);

    let mut outcome = mta.send(&signed(MESSAGE));
    for _ in 0..3 {
        mta.wake(&mut outcome);
    }
    assert_eq!(outcome.code, "451 4.7.5 DKIM key retrieval failed");
    assert!(!mta.session.is_busy());
    // The answer comes after all, to nobody.
    let late = mta.pending.pop().unwrap();
    let mut actions = Actions::default();
    mta.work(late, &mut actions);
    assert!(actions.replies.is_empty() && actions.work.is_empty());
}

#[test]
fn no_number_of_signatures_makes_the_results_long() {
    let junk = "DKIM-Signature: x\r\n".repeat(2000);
    let good = internal(&[]).send(MESSAGE.as_bytes()).delivered;
    let outcome = Mta::new(&[]).send(&[junk.as_bytes(), &good].concat());
    assert!(outcome.edits[0].3.len() < 2000, "{outcome:?}");
    let results = our_results(&outcome);
    assert_eq!(results.len(), 12);
    assert_eq!(
        results[9..],
        [
            "neutral signature syntax error: no \"=\" in the tag at octet 0",
            "pass",
            "neutral 1990 more signatures were not evaluated"
        ]
    );
}

#[test]
fn forged_results_go_from_the_bottom_up_and_others_stay() {
    let fields = "Authentication-Results: mx.example.org; dkim=pass\r\nAuthentication-Results: other.example; dkim=pass\r\n\
                  authentication-results: (x) \"MX.example.org\" 1; none\r\nAuthentication-Results: two.example; none\r\n";
    for (options, client, left) in [
        (
            &["RemoveARFrom=two.example"][..],
            "198.51.100.7",
            &["other.example"][..],
        ),
        (&[], "198.51.100.7", &["other.example", "two.example"]),
        (
            &["Mode=s"],
            "198.51.100.7",
            &["other.example", "two.example"],
        ),
        (&["Mode=s"], "127.0.0.1", &["other.example", "two.example"]),
        (
            &["PeerList=198.51.100.7"],
            "127.0.0.1",
            &["other.example", "two.example"],
        ),
    ] {
        let mut mta = Mta::new(options);
        mta.client = client;
        mta.connect();
        let outcome = mta.send(format!("{fields}{MESSAGE}").as_bytes());
        let indexes: Vec<u32> = outcome
            .edits
            .iter()
            .filter(|edit| edit.0 == 'm')
            .map(|edit| edit.1)
            .collect();
        assert!(indexes.is_sorted_by(|a, b| a > b), "{indexes:?}");
        let delivered = String::from_utf8(outcome.delivered).unwrap();
        let kept = delivered
            .split("\r\n")
            .filter_map(|line| line.strip_prefix("Authentication-Results: "));
        let kept: Vec<_> = kept
            .filter(|value| !value.starts_with("mx.example.org;\r\n"))
            .map(|v| v.split(';').next().unwrap())
            .collect();
        assert_eq!(kept, left, "{options:?}");
    }
}

#[test]
fn bodies_that_nobody_needs_are_skipped() {
    let outcome = Mta::new(&[]).send(MESSAGE.as_bytes());
    assert_eq!(outcome.replies, "-cc----csc");
    let outcome = Mta::new(&["Mode=s"]).send(MESSAGE.as_bytes());
    assert_eq!(
        &outcome.replies[..8],
        "-cc----a",
        "left alone at once: {outcome:?}"
    );
}
