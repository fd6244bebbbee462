//! The rules of a verifier (RFC 6376 section 6), each by a message that meets or breaks it.

use crate::support::*;
use dkim_core::engine::{KeyType, SigningKey, engine_by_name};
use dkim_core::key_record::KeyAnswer;
use dkim_core::signature::Identity;
use dkim_core::signer::{BodyLength, FieldChoice, SignRequest};
use dkim_core::verifier::{Reason, Verifier, VerifierConfig};
use std::sync::Arc;

const MESSAGE: &[u8] = b"From: ann@example.com\r\nSubject: lunch\r\n\r\nAt noon?\r\n";

/// A request for a signature by the key in `ed25519.pem`.
fn request(selector: &str) -> SignRequest {
    SignRequest::new("example.com", selector, KeyType::Ed25519)
}

fn signed(requests: Vec<SignRequest>) -> Vec<u8> {
    let key = signing_key(key_file!("ed25519.pem"));
    let keys: Vec<&dyn SigningKey> = requests.iter().map(|_| &*key).collect();
    sign(MESSAGE, requests, &keys, 1000)
}

/// What becomes of a signature when `records` are at its name.
fn with_records(message: &[u8], records: &[&str]) -> Vec<String> {
    Setting::new(&|_| KeyAnswer::from_txt(records)).words(message)
}

fn good(_: &str) -> KeyAnswer {
    KeyAnswer::from_txt(&[ed25519_record()])
}

fn replaced(message: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(message).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn what_the_record_says_decides() {
    let plain = signed(vec![request("s")]);
    let identity = |domain: &str| {
        Some(Identity {
            local_part: b"ann".to_vec(),
            domain: domain.into(),
        })
    };
    let own = signed(vec![SignRequest {
        identity: identity("EXAMPLE.com"),
        ..request("s")
    }]);
    let sub = signed(vec![SignRequest {
        identity: identity("mail.example.com"),
        ..request("s")
    }]);
    let ed = |tags: &str| record(&format!("k=ed25519; {tags}"), key_file!("ed25519.record"));
    for (message, record, want) in [
        (&plain, ed25519_record(), "pass"),
        (&plain, ed("h=sha256; s=email; "), "pass"),
        (
            &plain,
            ed("h=sha1; "),
            "permerror: inappropriate hash algorithm (h= of the key record has no sha256)",
        ),
        (
            &plain,
            ed("s=tls; "),
            "permerror: key is not for email (s= of the key record)",
        ),
        (&plain, ed("t=s; "), "pass"),
        (&own, ed("t=s; "), "pass"),
        (&sub, ed("t=y; "), "pass"),
        (
            &sub,
            ed("t=y:s; "),
            "permerror: domain of i= must be that of d= (t=s in the key record)",
        ),
        (
            &plain,
            rsa_record(),
            "permerror: inappropriate key algorithm (k= of the key record does not fit a=)",
        ),
        (
            &plain,
            record("k=ed25519; ", key_file!("ed25519-other.record")),
            "fail: signature did not verify",
        ),
        (
            &plain,
            "k=ed25519; p=".into(),
            "permerror: key revoked (p= is empty)",
        ),
        (
            &plain,
            "v=spf1 -all".into(),
            "permerror: not a key record (v= is there and is not DKIM1, or not first)",
        ),
        (
            &plain,
            "some text".into(),
            "permerror: key record syntax error: no \"=\" in the tag at octet 0",
        ),
    ] {
        assert_eq!(with_records(message, &[&record]), [want], "{record}");
    }
}

/// RFC 6376 section 3.6.2.2 has one record only; people leave others there.
#[test]
fn of_several_records_the_usable_ones_count() {
    let message = signed(vec![request("s")]);
    let (good, other) = (
        ed25519_record(),
        record("k=ed25519; ", key_file!("ed25519-other.record")),
    );
    let (good, other) = (good.as_str(), other.as_str());
    let (revoked, rsa) = ("k=ed25519; p=", rsa_record());
    for (records, want) in [
        (vec!["google-site-verification=x", good], "pass"),
        (vec![revoked, good], "pass"),
        (vec![&rsa, good], "pass"),
        (vec![other, good], "pass"),
        (vec![good, other], "pass"),
        (vec![other, other], "fail: signature did not verify"),
        (
            vec![revoked, "text"],
            "permerror: key revoked (p= is empty)",
        ),
        (
            vec!["text", revoked],
            "permerror: key record syntax error: no \"=\" in the tag at octet 0",
        ),
        // Each key costs a check, each record a reading.
        (
            vec![other, other, other, good],
            "fail: signature did not verify",
        ),
        (vec!["text", "text", "text", "text", good], "pass"),
        (
            vec!["text", "text", "text", "text", "text", good],
            "permerror: key record syntax error: no \"=\" in the tag at octet 0",
        ),
        (
            vec![],
            "permerror: no key for signature: name has no TXT record",
        ),
    ] {
        assert_eq!(with_records(&message, &records), [want], "{records:?}");
    }
}

#[test]
fn the_key_that_verified_is_reported() {
    let key = signing_key(key_file!("rsa2048.pem"));
    let requests = vec![SignRequest::new("example.com", "s", KeyType::Rsa)];
    let message = sign(MESSAGE, requests, &[&*key], 1000);
    let old = record("t=y; ", key_file!("rsa1024.record"));
    for (records, bits, testing) in [
        ([old.clone(), rsa_record()], 2048, false),
        ([rsa_record(), old.clone()], 2048, false),
        ([old.clone(), old.clone()], 1024, true),
    ] {
        let answer = |_: &str| KeyAnswer::from_txt(&records);
        let verdict = &Setting::new(&answer).verdicts(&message)[0];
        assert_eq!((verdict.key_bits, verdict.testing), (Some(bits), testing));
    }
}

#[test]
fn small_and_large_rsa_keys_are_refused_and_told() {
    let config = |min_rsa_bits, max_rsa_bits| VerifierConfig {
        min_rsa_bits,
        max_rsa_bits,
        ..VerifierConfig::default()
    };
    let key = signing_key(key_file!("rsa1024.pem"));
    let message = sign(
        MESSAGE,
        vec![SignRequest::new("example.com", "s", KeyType::Rsa)],
        &[&*key],
        1000,
    );
    let weak = replaced(&message, "s=s", "s=w");
    let answer = |name: &str| match name {
        "w._domainkey.example.com" => {
            KeyAnswer::from_txt(&[record("", key_file!("rsa768.record"))])
        }
        _ => KeyAnswer::from_txt(&[record("", key_file!("rsa1024.record"))]),
    };
    for (message, config, bits, want) in [
        (&message, config(1024, 8192), 1024, "pass"),
        (
            &message,
            config(2048, 8192),
            1024,
            "permerror: RSA key of 1024 bits is too small (at least 2048)",
        ),
        (
            &message,
            config(1024, 1000),
            1024,
            "fail: RSA key of 1024 bits is too large (at most 1000)",
        ),
        (
            &weak,
            config(1024, 8192),
            768,
            "permerror: RSA key of 768 bits is too small (at least 1024)",
        ),
        // RFC 8301 section 3.2 leaves nobody a choice.
        (
            &weak,
            config(512, 8192),
            768,
            "permerror: RSA key of 768 bits is too small (at least 1024)",
        ),
    ] {
        let setting = Setting {
            config,
            ..Setting::new(&answer)
        };
        assert_eq!(setting.words(message), [want]);
        assert_eq!(setting.verdicts(message)[0].key_bits, Some(bits));
    }
}

#[test]
fn testing_domains_are_told_also_when_they_fail() {
    let answer =
        |_: &str| KeyAnswer::from_txt(&[record("k=ed25519; t=y; ", key_file!("ed25519.record"))]);
    let message = signed(vec![request("s")]);
    for (message, word) in [
        (message.clone(), "pass"),
        (replaced(&message, "noon", "moon"), "fail"),
    ] {
        let verdict = &Setting::new(&answer).verdicts(&message)[0];
        assert_eq!(
            (verdict.result.as_str(), verdict.testing, verdict.key_bits),
            (word, true, Some(256))
        );
    }
    assert!(!Setting::new(&good).verdicts(&message)[0].testing);
}

#[test]
fn time_is_judged_with_the_drift_allowed_on_both_sides() {
    let message = signed(vec![SignRequest {
        timestamp: Some(10_000),
        expiration: Some(20_000),
        ..request("s")
    }]);
    for (now, want) in [
        (None, "pass"),
        (Some(9_699), "policy: signature made in the future (t=)"),
        (Some(9_700), "pass"),
        (Some(20_300), "pass"),
        (Some(20_301), "permerror: signature expired (x=)"),
        (Some(u64::MAX), "permerror: signature expired (x=)"),
    ] {
        let setting = Setting {
            now,
            ..Setting::new(&good)
        };
        assert_eq!(setting.words(&message), [want], "{now:?}");
    }
    let eternal = signed(vec![SignRequest {
        timestamp: Some(0),
        expiration: Some(u64::MAX),
        ..request("s")
    }]);
    assert_eq!(
        Setting {
            now: Some(u64::MAX),
            ..Setting::new(&good)
        }
        .words(&eternal),
        ["pass"]
    );
}

#[test]
fn l_says_how_much_is_signed() {
    let limited = |octets| {
        signed(vec![SignRequest {
            body_length: BodyLength::AtMost(octets),
            ..request("s")
        }])
    };
    let more = |message: Vec<u8>| [&message[..], b"PS\r\n"].concat();
    let policy =
        |octets: u64| format!("policy: signature leaves {octets} octets of the body unsigned (l=)");
    let accepting = VerifierConfig {
        accept_unsigned_octets: true,
        ..VerifierConfig::default()
    };
    for (message, want, unsigned) in [
        (limited(100), "pass".into(), 0),
        (limited(10), "pass".into(), 0),
        (more(limited(10)), policy(4), 4),
        (limited(2), policy(8), 8),
        (limited(0), policy(10), 10),
        (replaced(&more(limited(10)), "PS", "XX"), policy(4), 4),
        (
            replaced(&limited(2), "At", "Up"),
            "fail: body hash did not verify".into(),
            8,
        ),
        (
            replaced(&limited(10), "?\r\n", ""),
            "permerror: body is shorter than l=".into(),
            0,
        ),
    ] {
        let verdict = &Setting::new(&good).verdicts(&message)[0];
        assert_eq!(Setting::new(&good).words(&message)[0], want);
        assert_eq!(verdict.unsigned_octets, unsigned, "{want}");
        if want.starts_with("policy") {
            let setting = Setting {
                config: accepting.clone(),
                ..Setting::new(&good)
            };
            let verdict = &setting.verdicts(&message)[0];
            assert_eq!(
                verdict.reason,
                Reason::Verified {
                    unsigned_octets: unsigned,
                    from_fields: 1
                }
            );
            assert_eq!(verdict.unsigned_octets, unsigned);
        }
    }
}

#[test]
fn a_second_from_is_no_pass_unless_accepted() {
    let fields = Arc::new(FieldChoice::new(&["From"], &[]).unwrap());
    let once = signed(vec![SignRequest {
        fields,
        ..request("s")
    }]);
    let oversigned = signed(vec![request("s")]);
    let above = |message: &[u8]| [b"From: eve@example.net\r\n", message].concat();
    let accepting = VerifierConfig {
        accept_several_from: true,
        ..VerifierConfig::default()
    };
    for (message, by_default, accepted) in [
        (
            above(&once),
            "policy: signature verified, but the message has 2 From fields",
            Reason::Verified {
                unsigned_octets: 0,
                from_fields: 2,
            },
        ),
        (
            above(&oversigned),
            "fail: signature did not verify",
            Reason::Signature,
        ),
        (
            replaced(&once, "Subject:", "FROM : eve@example.net\r\nSubject:"),
            "fail: signature did not verify",
            Reason::Signature,
        ),
    ] {
        assert_eq!(Setting::new(&good).words(&message), [by_default]);
        let setting = Setting {
            config: accepting.clone(),
            ..Setting::new(&good)
        };
        assert_eq!(setting.verdicts(&message)[0].reason, accepted);
    }
}

#[test]
fn only_the_first_well_formed_signatures_are_evaluated_and_all_are_reported() {
    let message = signed((0..5).map(|n| request(&format!("s{n}"))).collect());
    let message = [b"DKIM-Signature: no signature\r\n", &message[..]].concat();
    let config = VerifierConfig {
        max_signatures: 2,
        ..VerifierConfig::default()
    };
    let (header, _) = read(&message, 1000);
    let verifier = Verifier::new(&header, &config, None);
    assert_eq!(
        verifier.to_look_up(),
        ["s0._domainkey.example.com", "s1._domainkey.example.com"]
    );
    let setting = Setting {
        config,
        ..Setting::new(&good)
    };
    let syntax = "neutral: signature syntax error: no \"=\" in the tag at octet 0";
    let too_many = "policy: not evaluated: more than 2 signatures";
    assert_eq!(
        setting.words(&message),
        [syntax, "pass", "pass", too_many, too_many, too_many]
    );
    let indexes: Vec<usize> = setting
        .verdicts(&message)
        .iter()
        .map(|verdict| verdict.index)
        .collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn signatures_with_one_key_ask_for_it_once() {
    let message = signed(vec![
        request("s"),
        request("S"),
        SignRequest::new("EXAMPLE.com", "s", KeyType::Ed25519),
    ]);
    let (header, _) = read(&message, 1000);
    let verifier = Verifier::new(&header, &VerifierConfig::default(), None);
    assert_eq!(verifier.to_look_up(), ["s._domainkey.example.com"]);
    assert_eq!(Setting::new(&good).words(&message), ["pass"; 3]);
}

#[test]
fn answers_may_come_in_any_order_and_at_any_time_before_the_checks() {
    let message = signed(vec![request("a"), request("b"), request("c")]);
    let (header, body) = read(&message, 1000);
    let engine = engine_by_name("rustcrypto").unwrap();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        for before_body in 0..=3 {
            let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
            let answer = |verifier: &mut Verifier, index: usize| {
                let answer = match index {
                    1 => KeyAnswer::NoName,
                    _ => good(""),
                };
                verifier.answer(index, Arc::new(answer));
            };
            order[..before_body]
                .iter()
                .for_each(|&index| answer(&mut verifier, index));
            verifier.body(&body);
            order[before_body..]
                .iter()
                .for_each(|&index| answer(&mut verifier, index));
            let words: Vec<&str> = verifier
                .finish(&header, engine)
                .iter()
                .map(|verdict| verdict.result.as_str())
                .collect();
            assert_eq!(
                words,
                ["pass", "permerror", "pass"],
                "{order:?} {before_body}"
            );
        }
    }
}

#[test]
fn checks_may_be_answered_in_any_order_and_those_that_are_not_are_temporary() {
    let message = signed(vec![request("a"), request("b"), request("c")]);
    let (header, body) = read(&message, 1000);
    let engine = engine_by_name("rustcrypto").unwrap();
    let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
    (0..3).for_each(|index| verifier.answer(index, Arc::new(good(""))));
    verifier.body(&body);
    let checks = verifier.to_check(&header);
    for check in [&checks[2], &checks[0]] {
        verifier.checked(check, check.run(engine));
    }
    let verdicts = verifier.verdicts(&header);
    let words: Vec<&str> = verdicts
        .iter()
        .map(|verdict| verdict.result.as_str())
        .collect();
    assert_eq!(words, ["pass", "temperror", "pass"]);
    assert_eq!(verdicts[1].reason, Reason::NotChecked);
}

#[test]
fn names_without_an_answer_are_temporary_errors() {
    let message = signed(vec![request("a"), request("b")]);
    let (header, body) = read(&message, 1000);
    let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
    verifier.answer(
        0,
        Arc::new(KeyAnswer::Unavailable("192.0.2.1 answered SERVFAIL".into())),
    );
    // An answer that nobody asked for.
    verifier.answer(7, Arc::new(KeyAnswer::NoName));
    verifier.body(&body);
    let verdicts = verifier.finish(&header, engine_by_name("rustcrypto").unwrap());
    let said: Vec<(&str, String)> = verdicts
        .iter()
        .map(|verdict| (verdict.result.as_str(), verdict.reason.to_string()))
        .collect();
    assert_eq!(
        said,
        [
            (
                "temperror",
                "key unavailable: 192.0.2.1 answered SERVFAIL".to_owned()
            ),
            ("temperror", "key unavailable: no answer in time".to_owned()),
        ]
    );
}

#[test]
fn the_body_is_wanted_as_long_as_it_can_matter() {
    let two = signed(vec![request("a"), request("b")]);
    let malformed = replaced(&signed(vec![request("a")]), "a=ed25519-sha256", "a=x");
    let wants = |message: &[u8], answers: &[(usize, KeyAnswer)], now| {
        let (header, _) = read(message, 1000);
        let mut verifier = Verifier::new(&header, &VerifierConfig::default(), now);
        for (index, answer) in answers {
            let answer = match answer {
                KeyAnswer::NoName => KeyAnswer::NoName,
                _ => good(""),
            };
            verifier.answer(*index, Arc::new(answer));
        }
        verifier.wants_body()
    };
    assert!(!wants(MESSAGE, &[], None));
    assert!(!wants(&malformed, &[], None));
    assert!(wants(&two, &[], None));
    assert!(wants(&two, &[(0, KeyAnswer::NoName)], None));
    assert!(!wants(
        &two,
        &[(0, KeyAnswer::NoName), (1, KeyAnswer::NoName)],
        None
    ));
    assert!(wants(
        &two,
        &[(0, KeyAnswer::NoName), (1, KeyAnswer::NoRecord)],
        None
    ));
    let expired = signed(vec![SignRequest {
        timestamp: Some(1),
        expiration: Some(2),
        ..request("a")
    }]);
    assert!(!wants(&expired, &[], Some(1000)));
}

/// A body that is not fed because nobody wants it changes no verdict.
#[test]
fn what_is_decided_before_the_body_stays_decided() {
    let message = signed(vec![request("a")]);
    let (header, body) = read(&message, 1000);
    for fed in [false, true] {
        let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
        verifier.answer(0, Arc::new(KeyAnswer::NoName));
        verifier.answer(0, Arc::new(good("")));
        if fed {
            verifier.body(&body);
        }
        let verdicts = verifier.finish(&header, engine_by_name("rustcrypto").unwrap());
        assert_eq!(verdicts[0].reason, Reason::NoKey { name_exists: false });
    }
}

#[test]
fn the_body_may_come_in_any_chunks() {
    let message = signed(vec![request("s")]);
    for chunk in [1, 2, 3, 5, 1000] {
        assert_eq!(
            Setting {
                chunk,
                ..Setting::new(&good)
            }
            .words(&message),
            ["pass"]
        );
    }
}

#[test]
fn fields_that_cannot_be_used_are_reported_with_what_they_claim() {
    let message = b"DKIM-Signature: v=1; a=rsa-sha1; c=relaxed; d=example.com; s=sel; i=ann@example.com; h=from; bh=AA==; b=AA==\r\n\
                    DKIM-Signature: v=1; a=rsa-sha256; a=rsa-sha256; d=example.com\r\n\
                    From: ann@example.com\r\n\r\n";
    let verdicts = Setting::new(&good).verdicts(message);
    let claims = &verdicts[0].claims;
    assert_eq!(verdicts[0].result.as_str(), "permerror");
    assert_eq!(
        (claims.domain.as_deref(), claims.selector.as_deref()),
        (Some("example.com"), Some("sel"))
    );
    assert_eq!(claims.algorithm.as_deref(), Some("rsa-sha1"));
    assert_eq!(
        claims.canonicalization.unwrap().to_string(),
        "relaxed/simple"
    );
    assert_eq!(claims.identity.as_ref().unwrap().local_part, b"ann");
    assert_eq!(
        (
            verdicts[1].result.as_str(),
            verdicts[1].claims.domain.as_deref()
        ),
        ("neutral", None)
    );
    assert_eq!(
        verdicts
            .iter()
            .filter_map(|verdict| verdict.key_bits)
            .count(),
        0
    );
}
