//! Calls that hang, fail without end, or lie: who waits gets an answer, and nothing wrong gets out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pkcs11_engine::{Fault, Level};

use crate::rig::{
    BOTH, KEY, Place, Rig, in_both, sign, sign_many, signs_within, submit, wait_until,
};

#[test]
fn row_18_mail_does_not_wait_for_a_call_that_hangs_and_others_do_not_notice() {
    in_both(|place| {
        let rig = Rig::new(place);
        let other = Rig::new(place);
        let (key, undisturbed) = (rig.signing(), other.signing());
        rig.fake.set("C_Sign.hang", 1);
        let began = Instant::now();
        let waiting: Vec<_> = (0..20).map(|_| submit(&*key, b"never")).collect();
        assert!(
            began.elapsed() < Duration::from_millis(200),
            "to hand it over takes no time"
        );
        while began.elapsed() < Duration::from_secs(2) {
            let one = Instant::now();
            sign(&*undisturbed, b"by another module").unwrap();
            assert!(
                one.elapsed() < Duration::from_millis(500),
                "{:?}",
                one.elapsed()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        for end in waiting {
            end.try_recv().expect("it has ended").unwrap_err();
        }
        rig.fake.unset("C_Sign.hang");
        signs_within(&*key, Duration::from_secs(5));
        rig.end();
        other.end();
    });
}

#[test]
fn row_18_a_hang_costs_a_message_its_time_limit_at_most() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.signing();
        rig.fake.set("C_Sign.hang", 1);
        let began = Instant::now();
        let error = sign(&*key, b"never").unwrap_err();
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1300), "{took:?}");
        assert!(took > Duration::from_millis(900), "{took:?}");
        assert_eq!(error, "the token gave no answer in time");
        rig.fake.unset("C_Sign.hang");
        rig.end();
    });
}

#[test]
fn row_18_wherever_it_hangs_signing_comes_back_when_the_hang_ends() {
    std::thread::scope(|scope| {
        for function in [
            "C_Initialize",
            "C_GetSlotList",
            "C_GetTokenInfo",
            "C_OpenSession",
            "C_Login",
            "C_FindObjectsInit",
            "C_FindObjects",
            "C_GetAttributeValue",
            "C_SignInit",
            "C_Sign",
        ] {
            for place in BOTH {
                scope.spawn(move || comes_back_after_a_hang(function, place));
            }
        }
    });
}

fn comes_back_after_a_hang(function: &str, place: Place) {
    let line = format!("{function}.hang");
    let rig = Rig::with(place, &[(&line, "1")], |_| {});
    let began = Instant::now();
    let key = rig.tokens().key(&rig.reference(KEY)).unwrap();
    let asked = began.elapsed();
    assert!(
        asked < Duration::from_millis(500),
        "{function}: to ask takes no time: {asked:?}"
    );
    key.wait(Duration::from_secs(3)).expect_err("it hangs");
    rig.fake.unset(&line);
    let what = format!("that the key is seen after {function} hung, {place:?}");
    wait_until(&what, Duration::from_secs(5), || key.signing_key().is_ok());
    signs_within(&*key.signing_key().unwrap(), Duration::from_secs(2));
    rig.end();
}

#[test]
fn row_18_a_login_that_hangs_holds_up_nobody_who_asks_for_the_next_key() {
    let rig = Rig::with(Place::Here, &[("second_key", "other")], |_| {});
    rig.fake.set("C_Login.hang", 1);
    let _key = rig.tokens().key(&rig.reference(KEY)).unwrap();
    wait_until("the hang", Duration::from_secs(2), || {
        rig.fake.held_up("HANGS", "C_Login") > 0
    });
    for _ in 0..10 {
        let began = Instant::now();
        let other = rig
            .tokens()
            .key(&rig.reference("pkcs11:token=fake;object=other"))
            .unwrap();
        // Long enough for the engine to turn to it.
        std::thread::sleep(Duration::from_millis(300));
        drop(other);
        assert!(
            began.elapsed() < Duration::from_millis(600),
            "{:?}",
            began.elapsed()
        );
    }
    rig.fake.unset("C_Login.hang");
}

#[test]
fn row_18_a_token_that_hangs_leaves_the_other_one_of_its_module_alone() {
    in_both(|place| {
        let rig = Rig::with(place, &[("second_token", "second")], |_| {});
        let here = rig.engine.key(&rig.reference("pkcs11:token=second"));
        let here = here.signing_key().unwrap();
        let key = rig.key();
        let hangs = key.signing_key().unwrap();
        let process = rig.fake.calls("C_Sign")[0].process;
        // The first token is the one that has to be logged in to again.
        rig.fake.set_all(&[("C_Login.hang", "1"), ("gone", "1")]);
        let began = Instant::now();
        let waiting: Vec<_> = (0..20).map(|_| submit(&*hangs, b"never")).collect();
        let mut longest = Duration::ZERO;
        while began.elapsed() < Duration::from_secs(5) {
            let one = Instant::now();
            sign(&*here, b"undisturbed").unwrap();
            longest = longest.max(one.elapsed());
            std::thread::sleep(Duration::from_millis(3));
        }
        assert!(longest < Duration::from_millis(500), "{longest:?}");
        for end in waiting {
            end.try_recv().expect("it has ended").unwrap_err();
        }
        assert!(
            matches!(key.fault(), Some(Fault::Hung { .. })),
            "{:?}",
            key.fault()
        );
        let told = rig.engine.told(Level::Error);
        assert_eq!(told.len(), 1, "{told:?}");
        rig.fake.unset("C_Login.hang");
        signs_within(&*hangs, Duration::from_secs(5));
        assert_eq!(
            rig.fake.calls("C_Sign").last().unwrap().process,
            process,
            "the same one still"
        );
        rig.end();
    });
}

#[test]
fn row_20_one_line_for_each_change_in_1000_messages() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.key();
        let signing = key.signing_key().unwrap();
        rig.fake.set("C_SignInit", "0x30");
        for _ in 0..1000 {
            sign(&*signing, b"away").unwrap_err();
            std::thread::sleep(Duration::from_millis(3));
        }
        let told = rig.engine.all_told();
        assert_eq!(told.len(), 1, "{told:?}");
        let line = &rig.engine.told(Level::Error)[0];
        assert!(
            line.contains("C_SignInit failed with CKR_DEVICE_ERROR"),
            "{line}"
        );
        assert!(key.fault().is_some());
        assert_eq!(rig.tokens().faults().len(), 1);
        rig.fake.unset("C_SignInit");
        signs_within(&*signing, Duration::from_secs(5));
        for _ in 0..1000 {
            sign(&*signing, b"back").unwrap();
        }
        let told = rig.engine.all_told();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            rig.engine.told(Level::Info)[0].ends_with(" signs again"),
            "{told:?}"
        );
        assert_eq!((key.fault(), rig.tokens().faults()), (None, Vec::new()));
        rig.end();
    });
}

#[test]
fn row_21_a_wrong_signature_never_gets_out_and_opens_the_breaker() {
    for (value, place) in [
        ("1", Place::Here),
        ("1", Place::Apart),
        ("short", Place::Here),
        ("short", Place::Apart),
    ] {
        let rig = Rig::new(place);
        let key = rig.signing();
        rig.fake.set("corrupt", value);
        // `sign` itself refuses what is wrong.
        let (made, errors) = sign_many(&key, 200, 4);
        assert_eq!(made, 0);
        assert!(
            errors
                .iter()
                .any(|error| error.contains("its signature is wrong")),
            "{:?}",
            errors[0]
        );
        let asked = rig.count("C_Sign");
        assert!(asked < 60, "{asked}: the breaker is open");
        rig.fake.unset("corrupt");
        signs_within(&*key, Duration::from_secs(5));
        rig.end();
    }
}

#[test]
fn every_submission_has_one_end_whatever_happens() {
    in_both(|place| {
        let rig = Rig::with(place, &[], |settings| settings.queue = 1024);
        let key = rig.signing();
        let faults = [
            ("C_Sign", "0x32*2"),
            ("C_Sign.ms", "30"),
            ("gone", "1"),
            ("C_SignInit", "0xb3*5"),
            ("corrupt", "1"),
            ("C_OpenSession", "0xb1*3"),
            ("gone", "2"),
            ("C_Login", "0x30*2"),
            ("present", "0"),
            ("present", "1"),
        ];
        let mut ends = Vec::new();
        for (name, value) in faults {
            rig.fake.set(name, value);
            for number in 0..50_u8 {
                ends.push((number, submit(&*key, &[number])));
                std::thread::sleep(Duration::from_millis(5));
            }
            rig.fake.unset("C_Sign.ms");
            rig.fake.unset("corrupt");
        }
        let (mut signed, mut errors) = (0, BTreeMap::new());
        for (number, end) in ends {
            match end
                .recv_timeout(Duration::from_secs(3))
                .expect("it ends in time")
            {
                Ok(signature) => {
                    crate::rig::verify(&*key, &[number], &signature);
                    signed += 1;
                }
                Err(error) => *errors.entry(error).or_insert(0) += 1,
            }
            assert!(end.try_recv().is_err(), "once");
        }
        assert!(signed > 50, "{place:?}: {signed}, {errors:#?}");
        signs_within(&*key, Duration::from_secs(5));
        rig.end();
    });
}

#[test]
fn what_waits_is_bounded_and_ends_in_time() {
    in_both(|place| {
        let rig = Rig::with(place, &[], |settings| settings.queue = 10_000);
        let key = rig.signing();
        rig.fake.set("C_Sign.hang", 1);
        let began = Instant::now();
        let ends: Vec<_> = (0..6000).map(|_| submit(&*key, b"many")).collect();
        // All of them within the time of one, or some would have made room again.
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        let at_once = ends.iter().filter(|end| end.try_recv().is_ok()).count();
        assert!(at_once >= 6000 - 4096, "{at_once}");
        std::thread::sleep(Duration::from_millis(1500).saturating_sub(began.elapsed()));
        let in_time = ends.iter().filter(|end| end.try_recv().is_ok()).count();
        assert_eq!(at_once + in_time, 6000);
        rig.fake.unset("C_Sign.hang");
        signs_within(&*key, Duration::from_secs(5));
        rig.end();
    });
}

#[test]
fn mail_is_signed_while_many_keys_are_looked_at() {
    let rig = Rig::with(Place::Here, &[("second_key", "other")], |settings| {
        settings.sessions = 1;
    });
    let key = rig.signing();
    rig.fake.set("engine.us", 20_000);
    // Each of these is looked at with a signature.
    let others: Vec<_> = (0..100)
        .map(|number| {
            let uri = format!("pkcs11:token=fake;object=other?pin-source=/{number}");
            rig.tokens().key(&rig.reference(&uri)).unwrap()
        })
        .collect();
    for _ in 0..20 {
        let began = Instant::now();
        sign(&*key, b"meanwhile").unwrap();
        assert!(
            began.elapsed() < Duration::from_millis(300),
            "{:?}",
            began.elapsed()
        );
    }
    assert!(
        others.iter().any(|other| other.signing_key().is_err()),
        "there were many"
    );
    rig.fake.unset("engine.us");
    rig.end();
}

#[test]
fn a_full_queue_says_so_at_once() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_Sign.ms", "100")], |settings| {
            settings.queue = 4;
            settings.sessions = 1;
        });
        let key = rig.signing();
        let began = Instant::now();
        let ends: Vec<_> = (0..40).map(|_| submit(&*key, b"many")).collect();
        let refused = ends
            .iter()
            .filter_map(|end| end.recv_timeout(Duration::from_millis(60)).ok())
            .filter(|end| {
                end.as_ref()
                    .is_err_and(|error| error.contains("requests wait for the token already"))
            })
            .count();
        assert!(refused >= 30, "{refused}");
        assert!(began.elapsed() < Duration::from_millis(900));
        rig.end();
    });
}
