//! Signatures that a token verifies, and bodies that it hashes, which takes its time: the MTA is told so, and always gets an
//! answer.

use super::*;
use dkim_core::signature::FIELD_NAME;
use dkim_core::verifier::CheckOutcome;

/// A session whose checks are put off, and what has become of a signed message so far.
fn waiting(options: &[&str]) -> (Mta, Outcome, Vec<u8>) {
    let mut signer = Mta::new(&["Mode=s", "InternalHosts=198.51.100.7"]);
    let signed = signer.send(MESSAGE.as_bytes()).delivered;
    let verify = ["Mode=v", "Pkcs11Module=/m", "Pkcs11Verify=pkcs11:token=x"];
    let mut mta = Mta::new(&[&verify[..], options].concat());
    mta.token_is_slow = true;
    let outcome = mta.send(&signed);
    (mta, outcome, signed)
}

fn answered(mta: &mut Mta, outcome: CheckOutcome) -> Outcome {
    let Some(Work::Check { message, check }) = mta.pending.pop() else {
        panic!("no check is out");
    };
    let (mut actions, mut after) = (Actions::default(), Outcome::default());
    mta.session.checked(message, &check, outcome, &mut actions);
    mta.take(actions, &mut after);
    after
}

#[test]
fn who_waits_for_a_token_is_told_so_until_it_answers() {
    let (mut mta, outcome, _) = waiting(&[]);
    assert!(outcome.replies.ends_with('-'), "{}", outcome.replies);
    for seconds in [4, 8, 12, 16] {
        let mut progress = Outcome::default();
        mta.wake(&mut progress);
        assert_eq!(mta.now, Duration::from_secs(seconds));
        assert_eq!(progress.replies, "p");
    }
    let after = answered(&mut mta, CheckOutcome::Good { record: 0 });
    assert_eq!(after.replies, "c");
    assert!(after.edits[0].3.contains("dkim=pass"), "{:?}", after.edits);
}

#[test]
fn a_token_that_never_answers_keeps_no_message_for_ever() {
    let (mut mta, _, _) = waiting(&[]);
    let mut last = Outcome::default();
    for _ in 0..5 {
        last = Outcome::default();
        mta.wake(&mut last);
    }
    assert_eq!(mta.now, Duration::from_secs(20));
    assert!(last.code.starts_with("451"), "{last:?}");
    assert!(!mta.session.is_busy());
    // What comes then is of no message.
    let late = answered(&mut mta, CheckOutcome::Good { record: 0 });
    assert_eq!(late.replies, "-");
}

#[test]
fn a_token_that_is_away_is_an_occasion_of_its_own() {
    let away = || CheckOutcome::Unavailable("the token is away".into());
    for (option, code) in [
        ("On-DNSError=accept", "451 4.7.5"),
        ("On-TokenAway=tempfail", "451 4.7.5"),
        ("On-TokenAway=accept", ""),
    ] {
        let (mut mta, _, _) = waiting(&[option]);
        let after = answered(&mut mta, away());
        assert!(after.code.starts_with(code), "{option}: {after:?}");
        if code.is_empty() {
            let results = &after.edits[0].3;
            assert!(results.contains("dkim=temperror"), "{results}");
        }
    }
    let (mut mta, _, _) = waiting(&["On-BadSignature=reject"]);
    let after = answered(&mut mta, CheckOutcome::Refused("too large".into()));
    assert!(after.code.starts_with("550"), "{after:?}");
}

const HASHING: [&str; 2] = ["Pkcs11Module=/m", "Pkcs11Digest=pkcs11:token=x"];

fn hashing(options: &[&str]) -> Mta {
    Mta::new(&[&HASHING[..], options].concat())
}

/// A message whose body is larger than what is handed out at once.
fn large() -> Vec<u8> {
    let mut message = MESSAGE.as_bytes().to_vec();
    message.extend_from_slice(&b"a line of  the body \r\n".repeat(5000));
    message
}

#[test]
fn hashes_of_a_token_make_the_signatures_and_verdicts_of_software() {
    for message in [MESSAGE.as_bytes().to_vec(), large()] {
        let sign = ["Mode=s", "InternalHosts=198.51.100.7"];
        let by_token = hashing(&sign).send(&message).delivered;
        assert_eq!(by_token, Mta::new(&sign).send(&message).delivered);
        for changed in [by_token.clone(), [&by_token[..], b"more\r\n"].concat()] {
            let outcome = hashing(&["Mode=v"]).send(&changed);
            let want = Mta::new(&["Mode=v"]).send(&changed);
            assert_eq!(outcome.edits, want.edits);
            assert_eq!(outcome.edits.len(), 1);
        }
    }
}

#[test]
fn key_records_and_hashes_may_come_in_any_order() {
    for keys_first in [true, false] {
        let mut mta = hashing(&["Mode=v", "DNSTimeout=9"]);
        (mta.dns, mta.token_is_slow) = (Dns::Silent, true);
        let mut outcome = mta.send(&signed(MESSAGE));
        mta.token_is_slow = false;
        let mut work = std::mem::take(&mut mta.pending);
        assert!(matches!(
            work[..],
            [Work::LookUp { .. }, Work::Digest { .. }]
        ));
        if !keys_first {
            work.reverse();
        }
        for (work, replies) in work.into_iter().zip(["-", "-c"]) {
            mta.wake(&mut outcome);
            assert!(outcome.replies.ends_with('p'), "{outcome:?}");
            let (mut actions, mut after) = (Actions::default(), Outcome::default());
            mta.work(work, &mut actions);
            mta.take(actions, &mut after);
            assert_eq!(after.replies, replies, "keys first: {keys_first}");
            outcome = after;
        }
        assert_eq!(our_results(&outcome), ["pass"]);
    }
}

#[test]
fn key_records_are_awaited_no_longer_because_the_body_is_slow() {
    for options in [
        &["DNSTimeout=9"][..],
        &["DNSTimeout=9", HASHING[0], HASHING[1]],
    ] {
        let mut mta = Mta::new(options);
        mta.dns = Dns::Silent;
        mta.body_time = Duration::from_secs(10);
        let mut outcome = mta.send(&signed(MESSAGE));
        // No more than a timer that rings at once.
        if mta.session.is_busy() {
            mta.wake(&mut outcome);
        }
        assert_eq!(mta.now, mta.body_time);
        assert_eq!(outcome.code, "451 4.7.5 DKIM key retrieval failed");
        assert!(!outcome.replies.contains('p'), "{outcome:?}");
        assert!(!mta.session.is_busy());
    }
}

#[test]
fn a_body_that_software_hashes_for_a_token_is_told_and_has_a_verdict() {
    let mut mta = hashing(&["Mode=v", "Pkcs11Fallback=software", "LogWhy=yes"]);
    let message = signed(MESSAGE);
    mta.token_is_slow = true;
    mta.send(&message);
    mta.token_is_slow = false;
    let mut after = Outcome::default();
    let lines = log_lines::logged(|| hashing_fails(&mut mta, &mut after));
    assert_eq!(our_results(&after), ["pass"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        lines[0],
        "INFO: 4Fabc: note: body hashed in software (Pkcs11Fallback): the token is away"
    );
    assert!(
        lines[1].starts_with("INFO: 4Fabc: verified: dkim=pass"),
        "{lines:?}"
    );
}

#[test]
fn the_mta_is_not_heard_while_a_token_has_its_chunk_and_told_of_progress_at_the_end_only() {
    let signed = Mta::new(&["Mode=s", "InternalHosts=198.51.100.7"])
        .send(&large())
        .delivered;
    let mut mta = hashing(&["Mode=v"]);
    mta.token_is_slow = true;
    let (header, body) = split(&signed);
    let mut outcome = Outcome::default();
    mta.say(
        Command::Mail(Envelope::new(b"<a@example.com>", b"")),
        &mut outcome,
    );
    for (name, value) in &header {
        let (name, value) = (name.as_bytes(), value.replace("\r\n", "\n"));
        let value = value.as_bytes();
        mta.say(Command::Header { name, value }, &mut outcome);
    }
    mta.say(Command::EndOfHeader, &mut outcome);
    mta.say(Command::Body(&body[..1000]), &mut outcome);
    assert!(!mta.session.is_busy(), "there is little yet");
    mta.say(Command::Body(&body[1000..60_000]), &mut outcome);
    assert!(mta.session.is_busy());
    assert_eq!(mta.pending.len(), 1);
    let step = mta.pending.pop().unwrap();
    let mut actions = Actions::default();
    mta.work(step, &mut actions);
    assert!(!mta.session.is_busy());
    assert!(actions.replies.is_empty() && actions.work.is_empty());
    mta.say(Command::EndOfBody(&body[60_000..]), &mut outcome);
    assert!(mta.session.is_busy());
    let mut waiting = Outcome::default();
    mta.wake(&mut waiting);
    assert_eq!(waiting.replies, "p");
    // It never answers.
    for _ in 0..4 {
        waiting = Outcome::default();
        mta.wake(&mut waiting);
    }
    assert!(waiting.code.starts_with("451 4.7.5"), "{waiting:?}");
    assert!(!mta.session.is_busy());
}

/// The token does not do what it was asked for last.
fn hashing_fails(mta: &mut Mta, after: &mut Outcome) {
    let Some(Work::Digest { message, place, .. }) = mta.pending.pop() else {
        panic!("nothing is to be hashed");
    };
    let mut actions = Actions::default();
    let away = Err("the token is away".to_owned());
    mta.session
        .digested(message, place, away, mta.now(), &mut actions);
    mta.take(actions, after);
}

#[test]
fn what_is_to_be_signed_and_is_not_hashed_is_no_signature() {
    for (option, code) in [
        ("On-TokenAway=tempfail", "451 4.7.5"),
        ("On-TokenAway=accept", ""),
        ("Pkcs11Fallback=software", ""),
    ] {
        let mut mta = hashing(&["Mode=s", "InternalHosts=198.51.100.7", option]);
        mta.token_is_slow = true;
        mta.send(MESSAGE.as_bytes());
        let mut after = Outcome::default();
        hashing_fails(&mut mta, &mut after);
        assert!(after.code.starts_with(code), "{option}: {after:?}");
        assert_eq!(after.code.is_empty(), code.is_empty(), "{option}");
        let is_signed = after.edits.iter().any(|edit| edit.2 == FIELD_NAME);
        assert_eq!(is_signed, option.ends_with("software"), "{option}");
    }
}

/// Then there is nothing left to hash, and nobody to wait for.
#[test]
fn a_token_that_fails_within_the_body_is_not_waited_for_at_its_end() {
    for (option, code) in [
        ("On-TokenAway=tempfail", "451 4.7.5"),
        ("On-TokenAway=accept", ""),
        ("Pkcs11Fallback=software", ""),
    ] {
        let mut mta = hashing(&["Mode=s", "InternalHosts=198.51.100.7", option]);
        mta.token_is_slow = true;
        let message = large();
        let (header, body) = split(&message);
        let mut outcome = Outcome::default();
        mta.say(
            Command::Mail(Envelope::new(b"<a@example.com>", b"")),
            &mut outcome,
        );
        for (name, value) in &header {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            mta.say(Command::Header { name, value }, &mut outcome);
        }
        mta.say(Command::EndOfHeader, &mut outcome);
        mta.say(Command::Body(&body[..60_000]), &mut outcome);
        hashing_fails(&mut mta, &mut outcome);
        let mut end = Outcome::default();
        mta.say(Command::EndOfBody(&body[60_000..]), &mut end);
        assert!(!mta.session.is_busy(), "{option}");
        assert!(end.code.starts_with(code), "{option}: {end:?}");
        assert_eq!(end.code.is_empty(), code.is_empty(), "{option}");
        let is_signed = end.edits.iter().any(|edit| edit.2 == FIELD_NAME);
        assert_eq!(is_signed, option.ends_with("software"), "{option}");
    }
}
