//! Each line of the control file once: what was asked for happens, and ends when the line is gone.

mod common;

use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use cryptoki::context::Pkcs11;
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, ObjectClass};
use cryptoki::session::UserType;
use cryptoki::slot::Limit;
use cryptoki::types::AuthPin;
use fake_token::{FakeToken, other_key_spki};

#[test]
fn a_code_is_returned_as_often_as_asked_for() {
    let world = World::new();
    let (session, key) = world.ready();
    for _ in 0..2 {
        // The same line again counts anew.
        world.token.set("C_Sign", "0x32*3");
        for _ in 0..3 {
            assert_eq!(
                code(sign(&session, key)),
                (RvError::DeviceRemoved, "Sign".to_owned())
            );
        }
        assert!(world.verifies(&sign(&session, key).unwrap()));
    }
    world.token.set("C_SignInit", "0x80000384");
    for _ in 0..5 {
        assert_eq!(
            code(sign(&session, key)),
            (RvError::VendorDefined(0x8000_0384), "SignInit".to_owned())
        );
    }
    world.token.unset("C_SignInit");
    sign(&session, key).unwrap();
    world.token.set("C_Sign(NULL)", "5*1");
    assert_eq!(rv(sign(&session, key)), RvError::GeneralError);
}

#[test]
fn a_failed_initialization_can_be_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    token.set("C_Initialize", "0x30*2");
    let pkcs11 = Pkcs11::new(token.module()).unwrap();
    assert_eq!(rv(initialize(&pkcs11)), RvError::DeviceError);
    assert_eq!(rv(initialize(&pkcs11)), RvError::DeviceError);
    initialize(&pkcs11).unwrap();
    let codes: Vec<u64> = token
        .calls("C_Initialize")
        .iter()
        .map(|call| call.rv)
        .collect();
    assert_eq!(codes, [0x30, 0x30, 0]);
}

#[test]
fn an_error_ends_the_operation_unless_said_otherwise() {
    let world = World::with(&[("leave_active", "1"), ("C_Sign", "0x30*1")]);
    let (session, key) = world.ready();
    assert_eq!(rv(sign(&session, key)), RvError::DeviceError);
    for _ in 0..2 {
        assert_eq!(
            code(sign(&session, key)),
            (RvError::OperationActive, "SignInit".to_owned())
        );
    }
    sign(&world.session(), key).unwrap();
}

#[test]
fn a_buffer_is_too_small_for_ever() {
    let world = World::with(&[("C_Sign", "0x150")]);
    let (session, key) = world.ready();
    assert_eq!(
        code(sign(&session, key)),
        (RvError::BufferTooSmall, "Sign".to_owned())
    );
}

#[test]
fn a_delay_lasts_its_time_and_no_longer_than_its_line() {
    let world = World::with(&[("C_Sign.ms", "60")]);
    let (session, key) = world.ready();
    let start = Instant::now();
    sign(&session, key).unwrap();
    let elapsed = start.elapsed().as_millis();
    assert!(
        (60..1000).contains(&elapsed),
        "{elapsed} ms: one delay, none for the length"
    );
    world.token.set("C_Sign.ms", 600_000);
    thread::scope(|scope| {
        let signing = scope.spawn(move || sign(&session, key));
        thread::sleep(Duration::from_millis(30));
        assert!(!signing.is_finished());
        world.token.unset("C_Sign.ms");
        assert!(world.verifies(&signing.join().unwrap().unwrap()));
    });
}

#[test]
fn a_hanging_call_goes_on_when_released() {
    let world = World::with(&[("C_Sign.hang", "1")]);
    let (session, key) = world.ready();
    thread::scope(|scope| {
        let signing = scope.spawn(move || sign(&session, key));
        let second = world.session();
        assert!(world.token.wait(
            Duration::from_secs(5),
            |token| token.held_up("HANGS", "C_Sign") == 1
        ));
        second.get_session_info().unwrap();
        assert!(!signing.is_finished());
        world.token.unset("C_Sign.hang");
        assert!(world.verifies(&signing.join().unwrap().unwrap()));
    });
    assert_eq!(world.token.violations(), Vec::<String>::new());
}

#[test]
#[ignore = "a part of other tests, which run it with a module"]
fn child_signs_once() {
    let Some(module) = std::env::var_os("MODULE") else {
        return;
    };
    let pkcs11 = Pkcs11::new(module).unwrap();
    initialize(&pkcs11).unwrap();
    let session = pkcs11
        .open_ro_session(pkcs11.get_slots_with_token().unwrap()[0])
        .unwrap();
    log_in(&session, "1234").unwrap();
    sign(&session, private_key(&session).unwrap()).unwrap();
}

#[test]
#[ignore = "a part of other tests, which run it with a module"]
fn child_finalizes_too_early() {
    let Some(module) = std::env::var_os("MODULE") else {
        return;
    };
    let pkcs11 = Pkcs11::new(module).unwrap();
    initialize(&pkcs11).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| pkcs11.get_library_info());
        thread::sleep(Duration::from_millis(50));
        pkcs11.clone().finalize().unwrap();
    });
}

fn child(token: &FakeToken) -> ExitStatus {
    child_test(token, "child_signs_once", &[])
}

/// Runs one of the tests above in a process of its own.
fn child_test(token: &FakeToken, name: &str, environment: &[(&str, &str)]) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", name])
        .env("MODULE", token.module())
        .envs(environment.iter().copied())
        .output()
        .unwrap()
        .status
}

#[test]
fn an_early_finalization_can_crash() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    token.set("C_GetInfo.ms", 200);
    assert!(child_test(&token, "child_finalizes_too_early", &[]).success());
    token.set("finalize_crash", 1);
    assert!(!child_test(&token, "child_finalizes_too_early", &[]).success());
    assert_eq!(token.violations().len(), 2);
    assert_eq!(token.held_up("CRASHES", "C_Finalize"), 1);
}

#[test]
fn the_environment_can_forbid_loading() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    let forbidden = [("FAKE_TOKEN_NO_LIST", "1")];
    assert!(!child_test(&token, "child_signs_once", &forbidden).success());
    assert_eq!(token.calls("C_GetFunctionList")[0].rv, 6);
    assert_eq!(token.calls("C_Initialize"), []);
}

#[test]
fn a_crash_takes_the_process_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    for _ in 0..2 {
        token.set("C_Sign.crash", "once");
        assert!(!child(&token).success());
        assert!(child(&token).success());
    }
    token.set("C_Sign.crash", 1);
    assert!(!child(&token).success());
    assert!(!child(&token).success());
    assert_eq!(token.held_up("CRASHES", "C_Sign"), 4);
    assert_eq!(token.calls("C_Sign").len(), 2);
}

#[test]
fn wrong_pins_of_all_processes_count() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    token.set("pin", "87654321");
    assert!(!child(&token).success());
    assert!(!child(&token).success());
    assert_eq!(token.failed_logins(), 2);
    token.set("pin", "1234");
    assert!(child(&token).success());
    assert_eq!(token.failed_logins(), 0);
}

#[test]
fn engines_are_as_many_as_said_and_take_their_time() {
    let world = World::with(&[("engine.us", "20000"), ("parallel", "2")]);
    let (session, key) = world.ready();
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            let session = world.session();
            scope.spawn(move || sign(&session, key).unwrap());
        }
    });
    // Four signatures on two engines.
    let elapsed = start.elapsed().as_millis();
    assert!((40..2000).contains(&elapsed), "{elapsed} ms");
    drop(session);
}

#[test]
fn sessions_are_refused_above_the_limit() {
    let world = World::with(&[("max_sessions", "2")]);
    let slot = world.slot();
    let first = world.session();
    let _second = world.session();
    assert_eq!(
        rv(world.pkcs11.open_ro_session(slot)),
        RvError::SessionCount
    );
    drop(first);
    let _third = world.session();
    let most = || {
        world
            .pkcs11
            .get_token_info(slot)
            .unwrap()
            .max_session_count()
    };
    assert!(matches!(most(), Limit::Max(2)));
    world.token.set("sessions_info", "effectively_infinite");
    assert!(matches!(most(), Limit::Infinite));
    world.token.set("sessions_info", "unavailable");
    assert!(matches!(most(), Limit::Unavailable));
}

#[test]
fn a_removed_token_takes_its_sessions_with_it() {
    let world = World::new();
    let (session, key) = world.ready();
    let slot = world.slot();
    world.token.set("present", 0);
    assert_eq!(rv(sign(&session, key)), RvError::DeviceRemoved);
    assert_eq!(world.pkcs11.get_slots_with_token().unwrap(), []);
    assert_eq!(world.pkcs11.get_all_slots().unwrap(), [slot]);
    assert_eq!(
        rv(world.pkcs11.get_token_info(slot)),
        RvError::TokenNotPresent
    );
    assert_eq!(
        rv(world.pkcs11.open_ro_session(slot)),
        RvError::TokenNotPresent
    );
    world.token.set("present", 1);
    assert_eq!(rv(sign(&session, key)), RvError::SessionHandleInvalid);
    let (session, key) = world.ready();
    assert!(world.verifies(&sign(&session, key).unwrap()));
}

#[test]
fn a_power_cycle_moves_slot_and_handles() {
    let world = World::new();
    let (session, key) = world.ready();
    let slot = world.slot();
    world.token.set("gone", 1);
    assert_eq!(rv(sign(&session, key)), RvError::SessionHandleInvalid);
    assert_ne!(world.slot(), slot);
    assert_eq!(
        rv(world.pkcs11.open_ro_session(slot)),
        RvError::SlotIdInvalid
    );
    let new = world.session();
    assert_eq!(private_key(&new), None, "the login is lost");
    log_in(&new, "1234").unwrap();
    let moved = private_key(&new).unwrap();
    assert_ne!(moved, key);
    assert_eq!(rv(sign(&new, key)), RvError::KeyHandleInvalid);
    assert!(world.verifies(&sign(&new, moved).unwrap()));
    world.token.set_all(&[("gone", "2"), ("gone_rv", "0x32")]);
    assert_eq!(rv(sign(&new, moved)), RvError::DeviceRemoved);
}

#[test]
fn a_power_cycle_breaks_the_signature_under_way() {
    let world = World::with(&[("engine.us", "100000")]);
    let (session, key) = world.ready();
    thread::scope(|scope| {
        let signing = scope.spawn(move || rv(sign(&session, key)));
        thread::sleep(Duration::from_millis(30));
        world.token.set("gone", 1);
        assert_eq!(signing.join().unwrap(), RvError::DeviceRemoved);
    });
}

#[test]
fn some_modules_see_a_token_again_only_after_initialization() {
    let world = World::with(&[("needs_init", "1")]);
    let (session, key) = world.ready();
    world.token.set("gone", 1);
    assert_eq!(rv(sign(&session, key)), RvError::DeviceError);
    assert_eq!(world.pkcs11.get_slots_with_token().unwrap(), []);
    world.pkcs11.clone().finalize().unwrap();
    world.token.set("present", 0);
    initialize(&world.pkcs11).unwrap();
    world.token.set("present", 1);
    assert_eq!(world.pkcs11.get_slots_with_token().unwrap(), []);
    world.pkcs11.clone().finalize().unwrap();
    initialize(&world.pkcs11).unwrap();
    std::mem::forget(session);
    let (session, key) = world.ready();
    sign(&session, key).unwrap();
}

#[test]
fn corrupt_signatures_do_not_verify() {
    let world = World::with(&[("corrupt", "1")]);
    let (session, key) = world.ready();
    let garbage = sign(&session, key).unwrap();
    assert!(garbage.len() == 256 && !world.verifies(&garbage));
    world.token.set("corrupt", "short");
    assert_eq!(sign(&session, key).unwrap().len(), 255);
    world.token.unset("corrupt");
    assert!(world.verifies(&sign(&session, key).unwrap()));
}

#[test]
fn logins_are_as_the_token_wants_them() {
    let world = World::with(&[("login_required", "0")]);
    let session = world.session();
    assert!(
        !world
            .pkcs11
            .get_token_info(world.slot())
            .unwrap()
            .login_required()
    );
    assert!(world.verifies(&sign(&session, private_key(&session).unwrap()).unwrap()));
    assert_eq!(rv(log_in(&session, "1234")), RvError::UserPinNotInitialized);
    world.token.set_all(&[
        ("login_required", "1"),
        ("protected_path", "1"),
        ("C_Login", "0xa4*1"),
    ]);
    let info = world.pkcs11.get_token_info(world.slot()).unwrap();
    assert!(info.login_required() && info.protected_authentication_path());
    assert_eq!(rv(session.login(UserType::User, None)), RvError::PinLocked);
    assert_eq!(rv(log_in(&session, "1234")), RvError::ArgumentsBad);
    session.login(UserType::User, None).unwrap();
    sign(&session, private_key(&session).unwrap()).unwrap();
}

#[test]
fn a_pin_can_change_while_the_module_is_loaded() {
    let world = World::new();
    world.token.set("pin", "abcdef");
    let session = world.session();
    assert_eq!(rv(log_in(&session, "1234")), RvError::PinIncorrect);
    log_in(&session, "abcdef").unwrap();
}

#[test]
fn two_tokens_can_have_one_label() {
    let world = World::with(&[
        ("label", "mail"),
        ("second_token", "mail"),
        ("serial", "77"),
        ("second_serial", "78"),
    ]);
    let slots = world.pkcs11.get_slots_with_token().unwrap();
    let of: Vec<(String, String)> = slots
        .iter()
        .map(|&slot| world.pkcs11.get_token_info(slot).unwrap())
        .map(|info| (info.label().to_owned(), info.serial_number().to_owned()))
        .collect();
    let same = |serial: &str| ("mail".to_owned(), serial.to_owned());
    assert_eq!(of, [same("77"), same("78")]);
    let session = world.pkcs11.open_ro_session(slots[1]).unwrap();
    log_in(&session, "1234").unwrap();
    let signature = sign(&session, private_key(&session).unwrap()).unwrap();
    assert!(
        !world.verifies(&signature),
        "another key under the same label"
    );
    assert_eq!(
        private_key(&world.session()),
        None,
        "a login is one token's"
    );
    world.token.set("present", 0);
    assert_eq!(world.pkcs11.get_slots_with_token().unwrap(), [slots[1]]);
    sign(&session, private_key(&session).unwrap()).unwrap();
}

#[test]
fn two_keys_can_have_one_label() {
    let world = World::with(&[
        ("key_label", "mail"),
        ("key_id", "0aff"),
        ("second_key", "mail"),
        ("second_key_id", "beef"),
    ]);
    let (session, _) = world.ready();
    let keys = session
        .find_objects(&[
            Attribute::Class(ObjectClass::PRIVATE_KEY),
            Attribute::Label(b"mail".to_vec()),
        ])
        .unwrap();
    let ids: Vec<_> = keys
        .iter()
        .map(|&key| session.get_attributes(key, &[AttributeType::Id]).unwrap())
        .collect();
    assert_eq!(
        ids,
        [
            vec![Attribute::Id(vec![0x0a, 0xff])],
            vec![Attribute::Id(vec![0xbe, 0xef])]
        ]
    );
    assert!(world.verifies(&sign(&session, keys[0]).unwrap()));
    assert!(!world.verifies(&sign(&session, keys[1]).unwrap()));
}

#[test]
fn public_values_can_be_those_of_another_key() {
    let world = World::with(&[("wrong_public", "1")]);
    let (session, key) = world.ready();
    let shown = session
        .get_attributes(key, &[AttributeType::Modulus])
        .unwrap();
    let [Attribute::Modulus(modulus)] = &shown[..] else {
        panic!("{shown:?}")
    };
    let has = |spki: Vec<u8>| spki.windows(256).any(|window| window == modulus);
    assert!(has(other_key_spki()) && !has(world.token.public_key_spki()));
    assert!(world.verifies(&sign(&session, key).unwrap()));
}

#[test]
fn there_can_be_less_than_a_private_key() {
    let world = World::with(&[("only", "certificate")]);
    let session = world.session();
    log_in(&session, "1234").unwrap();
    let classes = || {
        session
            .find_objects(&[Attribute::Label(b"dkim".to_vec())])
            .unwrap()
            .into_iter()
            .flat_map(|object| {
                session
                    .get_attributes(object, &[AttributeType::Class])
                    .unwrap()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(classes(), [Attribute::Class(ObjectClass::CERTIFICATE)]);
    world.token.set("only", "public");
    assert_eq!(classes(), [Attribute::Class(ObjectClass::PUBLIC_KEY)]);
    world.token.unset("only");
    world.token.set("certificate", 1);
    assert_eq!(classes().len(), 3);
}

#[test]
fn keys_can_be_unfit() {
    let world = World::with(&[
        ("can_sign", "0"),
        ("extractable", "1"),
        ("modulus_bits", "1024"),
    ]);
    let (session, key) = world.ready();
    assert_eq!(rv(sign(&session, key)), RvError::KeyFunctionNotPermitted);
    let wanted = [
        AttributeType::Sign,
        AttributeType::Extractable,
        AttributeType::Sensitive,
        AttributeType::Modulus,
    ];
    let shown = session.get_attributes(key, &wanted).unwrap();
    for right in [
        Attribute::Sign(false),
        Attribute::Extractable(true),
        Attribute::Sensitive(false),
    ] {
        assert!(shown.contains(&right), "{shown:?}");
    }
    assert!(
        shown
            .iter()
            .any(|shown| matches!(shown, Attribute::Modulus(modulus) if modulus.len() == 128))
    );
}

#[test]
fn loading_can_fail() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    token.set("C_GetInterface", "0x54");
    assert_eq!(
        code(Pkcs11::new(token.module())),
        (RvError::FunctionNotSupported, "GetInterface".to_owned())
    );
    token.unset("C_GetInterface");
    token.set("C_GetFunctionList", "5");
    assert_eq!(
        code(Pkcs11::new(token.module())),
        (RvError::GeneralError, "GetFunctionList".to_owned())
    );
    token.unset("C_GetFunctionList");
    token.set("absent", "C_SignFinal,C_Finalize");
    let pkcs11 = Pkcs11::new(token.module()).unwrap();
    initialize(&pkcs11).unwrap();
    assert!(matches!(pkcs11.finalize(), Err(Error::NullFunctionPointer)));
}

#[test]
fn a_context_specific_pin_counts_like_any_other() {
    let world = World::with(&[("always_auth", "1")]);
    let (session, key) = world.ready();
    session.sign_init(&Mechanism::Sha256RsaPkcs, key).unwrap();
    let wrong = session.login(
        UserType::ContextSpecific,
        Some(&AuthPin::new("0000".into())),
    );
    assert_eq!(rv(wrong), RvError::PinIncorrect);
    assert_eq!(world.token.failed_logins(), 1);
}

#[test]
fn a_power_cycle_happens_once_though_an_older_call_comes_after_it() {
    let world = World::with(&[("second_token", "other"), ("engine.us", "150000")]);
    let slots = world.pkcs11.get_slots_with_token().unwrap();
    let elsewhere = world.pkcs11.open_ro_session(slots[1]).unwrap();
    log_in(&elsewhere, "1234").unwrap();
    let key = private_key(&elsewhere).unwrap();
    thread::scope(|scope| {
        let signing = scope.spawn(move || sign(&elsewhere, key));
        thread::sleep(Duration::from_millis(50));
        world.token.set("gone", 1);
        let slot = world.pkcs11.get_slots_with_token().unwrap()[1];
        let session = world.pkcs11.open_ro_session(slot).unwrap();
        signing.join().unwrap().unwrap();
        session.get_session_info().unwrap();
    });
}
