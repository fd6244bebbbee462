//! Signatures that a token verifies, which takes its time: the MTA is told so, and always gets an answer.

use super::*;
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
