//! PINs: tried once, at the right moment, and by one at a time.

use std::time::Duration;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::session::UserType;
use cryptoki::types::AuthPin;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::{Fault, Isolation, Level};

use crate::rig::{
    KEY, Place, Rig, host_with, in_both, last_host, reference, sign, sign_many, signs_within,
    wait_until, write_pin,
};

const TOKEN: &str = "pkcs11:token=fake;manufacturer=fake-token;model=fault%20injector;serial=0001";

#[test]
fn row_06_a_wrong_pin_is_tried_once_in_1000_messages() {
    in_both(|place| {
        let rig = Rig::with(place, &[("pin", "9999")], |_| {});
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert!(matches!(fault, Fault::Pin { .. }), "{fault}");
        for _ in 0..1000 {
            assert!(key.signing_key().is_err());
            std::thread::sleep(Duration::from_millis(3));
        }
        assert_eq!(rig.count("C_Login"), 1);
        assert_eq!(rig.fake.failed_logins(), 1);
        let told = rig.engine.told(Level::Error);
        assert!(told.len() <= 1, "{told:?}");
        assert!(!format!("{:?}{fault}", rig.engine.all_told()).contains("1234"));
        // The right one, in the same file.
        write_pin(&rig.dir.path().join("pin"), b"9999");
        wait_until("the key is seen", Duration::from_secs(4), || {
            key.signing_key().is_ok()
        });
        assert_eq!(rig.count("C_Login"), 2);
        rig.end();
    });
}

#[test]
fn row_06_a_pin_that_was_changed_while_the_token_was_away_is_tried_once_in_1000_messages() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.signing();
        rig.fake.set_all(&[("pin", "9999"), ("gone", "1")]);
        let (made, errors) = sign_many(&key, 1000, 8);
        assert_eq!(made, 0);
        assert!(
            errors.iter().all(|error| error.contains("PIN")),
            "{:?}",
            errors[0]
        );
        std::thread::sleep(Duration::from_secs(3));
        sign(&*key, b"still").unwrap_err();
        assert_eq!(rig.fake.failed_logins(), 1);
        assert_eq!(
            rig.engine.told(Level::Error).len(),
            1,
            "{:?}",
            rig.engine.all_told()
        );
        write_pin(&rig.dir.path().join("pin"), b"9999");
        signs_within(&*key, Duration::from_secs(4));
        assert_eq!(rig.fake.failed_logins(), 0, "a right one since");
        assert_eq!(rig.count("C_Login"), 3);
        rig.end();
    });
}

#[test]
fn row_06_a_wrong_pin_is_not_tried_again_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let program = host_with(dir.path(), &[]);
    let rig = Rig::with(Place::Apart, &[("pin", "9999")], |settings| {
        settings.isolation = Isolation::Process { program };
    });
    let (key, _) = rig.engine.refusal(&rig.reference(KEY));
    for _ in 0..4 {
        let host = last_host(dir.path());
        kill(Pid::from_raw(host), Signal::SIGKILL).unwrap();
        wait_until("another process", Duration::from_secs(5), || {
            last_host(dir.path()) != host
        });
        wait_until("what it says of the PIN", Duration::from_secs(5), || {
            matches!(key.fault(), Some(Fault::Pin { .. }))
        });
    }
    assert_eq!(rig.count("C_Login"), 1);
    write_pin(&rig.dir.path().join("pin"), b"9999");
    wait_until("the key is seen", Duration::from_secs(5), || {
        key.signing_key().is_ok()
    });
    assert_eq!(rig.count("C_Login"), 2);
    rig.end();
}

#[test]
fn row_06_a_pin_that_was_wrong_once_may_be_right_later() {
    let dir = tempfile::tempdir().unwrap();
    let program = host_with(dir.path(), &[]);
    let rig = Rig::with(Place::Apart, &[("pin", "9999")], |settings| {
        settings.isolation = Isolation::Process { program };
    });
    let pin = rig.dir.path().join("pin");
    let (key, _) = rig.engine.refusal(&rig.reference(KEY));
    write_pin(&pin, b"9999");
    wait_until("the key is seen", Duration::from_secs(5), || {
        key.signing_key().is_ok()
    });
    let signing = key.signing_key().unwrap();
    sign(&*signing, b"by the right one").unwrap();
    // The token has the first one now, and so has the file.
    rig.fake.set("pin", "1234");
    write_pin(&pin, b"1234");
    kill(Pid::from_raw(last_host(dir.path())), Signal::SIGKILL).unwrap();
    signs_within(&*signing, Duration::from_secs(5));
    let wrong = rig
        .fake
        .calls("C_Login")
        .iter()
        .filter(|call| call.note == "wrong")
        .count();
    assert_eq!(wrong, 1);
    rig.end();
}

#[test]
fn row_06_wrong_pins_of_two_sources_are_each_tried_once_and_the_right_one_is_used() {
    in_both(|place| {
        let rig = Rig::with(
            place,
            &[("pin", "9999"), ("tries", "5"), ("second_key", "other")],
            |_| {},
        );
        write_pin(&rig.dir.path().join("stale"), b"4321");
        let stale = PinSource::File(rig.dir.path().join("stale"));
        let module = rig.fake.module();
        let (first, _) = rig.engine.refusal(&rig.reference(KEY));
        let uri = "pkcs11:token=fake;object=other";
        let (second, _) = rig.engine.refusal(&reference(uri, &module, Some(&stale)));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(rig.count("C_Login"), 2);
        // One of them is right now; the other stays as it is.
        write_pin(&rig.dir.path().join("pin"), b"9999");
        for key in [first, second] {
            wait_until("the key is seen", Duration::from_secs(5), || {
                key.signing_key().is_ok()
            });
            for gone in 1..=3 {
                rig.fake.set("gone", gone);
                sign(&*key.signing_key().unwrap(), b"after a power cycle").unwrap();
            }
        }
        let wrong = rig
            .fake
            .calls("C_Login")
            .iter()
            .filter(|call| call.note == "wrong")
            .count();
        assert_eq!(wrong, 2);
        rig.end();
    });
}

#[test]
fn row_06_a_list_does_not_try_a_pin_that_is_known_to_be_wrong() {
    in_both(|place| {
        let rig = Rig::with(place, &[("pin", "9999")], |_| {});
        let _key = rig.engine.refusal(&rig.reference(KEY));
        for _ in 0..5 {
            let listed = rig
                .tokens()
                .list(&rig.reference("pkcs11:token=fake"))
                .unwrap();
            assert!(listed[0].not_logged_in.is_some());
        }
        assert_eq!(rig.count("C_Login"), 1);
        rig.end();
    });
}

#[test]
fn row_07_no_login_at_the_final_try_nor_when_locked() {
    for (failures, sentence) in [
        (
            2,
            "one more wrong PIN would lock it, so that it is not tried; log in once by hand with the right one",
        ),
        (
            3,
            "its PIN is locked; unlock it with the security officer's",
        ),
    ] {
        let rig = Rig::new(Place::Here);
        rig.fake.set_failed_logins(failures);
        let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(fault.to_string(), format!("token {TOKEN}: {sentence}"));
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(rig.count("C_Login"), 0);
        rig.end();
    }
}

#[test]
fn row_08_a_locked_pin_that_no_flag_tells_of_is_tried_once_and_names_the_token() {
    in_both(|place| {
        let rig = Rig::with(place, &[("locked_flags", "0"), ("C_Login", "0xa4")], |_| {});
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        let sentence = fault.to_string();
        assert!(
            sentence.starts_with(&format!("token {TOKEN}: ")),
            "{sentence}"
        );
        assert!(sentence.contains("CKR_PIN_LOCKED"), "{sentence}");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(rig.count("C_Login"), 1);
        assert_eq!(
            key.fault(),
            Some(fault),
            "the same sentence as long as nothing changes"
        );
        rig.end();
    });
}

#[test]
fn row_12_logins_are_made_one_at_a_time() {
    let rig = Rig::with(Place::Here, &[("C_Login.ms", "200")], |settings| {
        settings.sessions = 8
    });
    let key = rig.signing();
    for gone in 1..=2 {
        rig.fake.set("gone", gone);
        assert_eq!(sign_many(&key, 64, 8), (64, Vec::new()));
    }
    let logins = rig.fake.calls("C_Login");
    assert_eq!(
        logins.len(),
        3,
        "one for each life of the token: {logins:?}"
    );
    assert!(logins.iter().all(|call| call.rv == 0), "{logins:?}");
    rig.end();
}

#[test]
fn row_12_who_is_logged_in_already_is_logged_in() {
    let rig = Rig::new(Place::Here);
    let module = Pkcs11::new(rig.fake.module()).unwrap();
    module
        .initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))
        .unwrap();
    let slot = module.get_slots_with_token().unwrap()[0];
    let session = module.open_ro_session(slot).unwrap();
    session
        .login(UserType::User, Some(&AuthPin::new("1234".into())))
        .unwrap();
    let key = rig.signing();
    sign(&*key, b"with another's login").unwrap();
    assert_eq!(rig.fake.calls("C_Login").last().unwrap().rv, 0x100);
    rig.engine.tokens.shut_down(Duration::from_secs(5));
    assert_eq!(rig.count("C_Logout"), 0);
    drop(session);
}

#[test]
fn row_28_both_forms_of_pin_source_and_one_line_end_of_either_kind() {
    let rig = Rig::new(Place::Here);
    let file = rig.dir.path().join("source");
    let path = file.display().to_string();
    for (octets, is_right) in [
        (&b"1234"[..], true),
        (b"1234\n", true),
        (b"1234\r\n", true),
        (b"1234\n\n", false),
        (b"1234 \n", false),
    ] {
        for source in [
            path.clone(),
            format!("file:{path}"),
            format!("file://{path}"),
        ] {
            write_pin(&file, octets);
            let place = Rig::new(Place::Here);
            let uri = format!("{KEY}?pin-source={source}");
            let key = place
                .engine
                .tokens
                .key(&reference(&uri, &place.fake.module(), None))
                .unwrap();
            let outcome = key.wait(Duration::from_secs(10));
            assert_eq!(
                outcome.is_ok(),
                is_right,
                "{octets:?} of {source}: {outcome:?}"
            );
        }
    }
}

#[test]
fn a_pin_file_that_appears_later_is_read_then() {
    in_both(|place| {
        let rig = Rig::new(place);
        let pin = rig.dir.path().join("pin");
        std::fs::remove_file(&pin).unwrap();
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "token {TOKEN}: cannot read the PIN file {}: No such file or directory (os error 2)",
                pin.display()
            )
        );
        write_pin(&pin, b"1234\n");
        wait_until("the key is seen", Duration::from_secs(4), || {
            key.signing_key().is_ok()
        });
        assert_eq!(rig.count("C_Login"), 1);
        rig.end();
    });
}

#[test]
fn a_pin_file_that_others_can_read_is_refused() {
    let rig = Rig::new(Place::Here);
    let pin = rig.dir.path().join("pin");
    std::fs::set_permissions(&pin, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
    let sentence = fault.to_string();
    assert!(
        sentence.contains("is not kept from others (mode 0644); to mend: chmod "),
        "{sentence}"
    );
    assert_eq!(rig.count("C_Login"), 0);
    rig.end();
}

#[test]
fn a_token_that_wants_no_login_gets_none_and_one_with_a_pad_gets_no_pin() {
    for (line, logins) in [("login_required=0", 0), ("protected_path=1", 1)] {
        let (name, value) = line.split_once('=').unwrap();
        let rig = Rig::with(Place::Here, &[(name, value)], |_| {});
        let key = rig.engine.key(&reference(KEY, &rig.fake.module(), None));
        sign(&*key.signing_key().unwrap(), b"without a PIN").unwrap();
        assert_eq!(rig.count("C_Login"), logins, "{line}");
        rig.end();
    }
}
