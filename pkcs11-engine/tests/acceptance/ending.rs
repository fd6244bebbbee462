//! The end: C_Finalize once, last, by who initialised, with nobody inside; and exits that are clean.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};

use crate::rig::{KEY, Place, Rig, host, in_both, run, sign, sign_many, signs_within, submit};
use crate::softhsm::{self, SoftHsm};

#[test]
fn row_14_c_finalize_comes_last_and_with_nobody_inside() {
    in_both(|place| {
        for _ in 0..15 {
            let rig = Rig::with(place, &[("finalize_crash", "1")], |_| {});
            let key = rig.signing();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            let _ = sign(&*key, b"until the end");
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
                assert!(rig.tokens().shut_down(Duration::from_secs(5)), "{place:?}");
                over.store(true, Ordering::Relaxed);
            });
            assert_eq!(
                sign(&*key, b"afterwards").unwrap_err(),
                "the use of tokens is being stopped"
            );
            let calls = rig.fake.all_calls();
            assert_eq!(rig.count("C_Finalize"), 1);
            let last = calls.last().unwrap();
            assert_eq!((&*last.function, last.rv), ("C_Finalize", 0));
            assert_eq!(rig.count("C_Logout"), 0);
        }
    });
}

#[test]
fn row_14_what_waits_is_signed_before_the_end_and_what_has_no_time_ends_too() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_Sign.ms", "20")], |settings| {
            settings.sessions = 2
        });
        let key = rig.signing();
        let ends: Vec<_> = (0..20).map(|_| submit(&*key, b"before the end")).collect();
        assert!(rig.tokens().shut_down(Duration::from_secs(5)));
        for end in ends {
            let signed = end.try_recv().expect("at once");
            signed.unwrap_or_else(|error| panic!("{place:?}: {error}"));
        }
        // And one that hangs.
        let rig = Rig::new(place);
        let key = rig.signing();
        rig.fake.set("C_Sign.hang", 1);
        let end = submit(&*key, b"never");
        assert!(rig.fake.wait(
            Duration::from_secs(2),
            |fake| fake.held_up("HANGS", "C_Sign") > 0
        ));
        let began = Instant::now();
        assert!(
            !rig.tokens().shut_down(Duration::from_millis(100)),
            "somebody is inside"
        );
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(
            end.try_recv().expect("at once"),
            Err("the use of tokens is being stopped".to_owned())
        );
        assert_eq!(rig.count("C_Finalize"), 0, "not while somebody is inside");
        rig.fake.unset("C_Sign.hang");
    });
}

#[test]
fn row_15_a_module_that_others_have_initialised_is_left_as_it_is() {
    let rig = Rig::new(Place::Here);
    let module = Pkcs11::new(rig.fake.module()).unwrap();
    module
        .initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))
        .unwrap();
    let slot = module.get_slots_with_token().unwrap()[0];
    let session = module.open_ro_session(slot).unwrap();
    let key = rig.signing();
    assert_eq!(sign_many(&key, 40, 4), (40, Vec::new()));
    // Recovery does without a new initialisation, too.
    for gone in 1..=3 {
        rig.fake.set("gone", gone);
        signs_within(&*key, Duration::from_secs(5));
    }
    let slot = module.get_slots_with_token().unwrap()[0];
    drop(session);
    let session = module.open_ro_session(slot).unwrap();
    assert!(rig.tokens().shut_down(Duration::from_secs(5)));
    assert_eq!((rig.count("C_Finalize"), rig.count("C_Logout")), (0, 0));
    assert_eq!(rig.count("C_CloseAllSessions"), 0);
    session.get_session_info().expect("it lives");
}

#[test]
fn row_16_programs_end_with_status_0_with_and_without_load() {
    let hsm = SoftHsm::new();
    let fake = Rig::with(Place::Here, &[("finalize_crash", "1")], |_| {});
    let pin = fake.dir.path().join("pin");
    for round in 0..10 {
        for (module, uri, in_process) in [
            (softhsm::MODULE.into(), softhsm::KEY, true),
            (softhsm::MODULE.into(), softhsm::KEY, false),
            (fake.fake.module(), KEY, true),
            (fake.fake.module(), KEY, false),
        ] {
            let mut program = Command::new(host());
            program.arg(&module).arg(uri).arg("--pin").arg(&pin);
            program
                .env("SOFTHSM2_CONF", hsm.configuration())
                .stdin(Stdio::null());
            if in_process {
                program.arg("--in-process");
            }
            if round % 2 == 0 {
                program.args(["--count", "50", "--threads", "4"]);
            }
            let output = run(&mut program, "softhsm2");
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(
                said.contains(" 0 failures") && said.contains("clean: true"),
                "{said}"
            );
        }
    }
}
