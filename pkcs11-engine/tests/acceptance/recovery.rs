//! Tokens that go and come back: what is expected of the first message afterwards.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pkcs11_engine::{Fault, Isolation, Level, Settings};

use crate::rig::{
    Engine, KEY, Place, Rig, host_with, in_both, packaged, settings, sign, sign_many, signs_within,
    wait_until,
};
use crate::softhsm::{self, SoftHsm};

/// A p11-kit server over SoftHSM, ended with the value.
struct Server(Child);

impl Server {
    fn start(hsm: &SoftHsm) -> Self {
        let socket = hsm.path("socket");
        let _ = fs::remove_file(&socket);
        let mut server = Command::new("p11-kit");
        server.args([
            "server",
            "--foreground",
            "--provider",
            softhsm::MODULE,
            "--name",
        ]);
        server
            .arg(&socket)
            .arg("pkcs11:")
            .env("SOFTHSM2_CONF", hsm.configuration());
        let mut child = server
            .stdout(Stdio::piped())
            // It has a process for each client, all of which are to end with it.
            .process_group(0)
            .spawn()
            .expect(
                "p11-kit server starts; the package p11-kit has it, and tests/install installs it",
            );
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        wait_until("the server's socket", Duration::from_secs(5), || {
            socket.exists()
        });
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

#[test]
fn row_01_a_token_server_that_is_restarted_is_used_again_within_3_s() {
    let client = packaged(
        "/usr/lib/x86_64-linux-gnu/pkcs11/p11-kit-client.so",
        "p11-kit-modules",
    );
    let hsm = SoftHsm::new();
    let server = Server::start(&hsm);
    let address = format!("unix:path={}", hsm.path("socket").display());
    let engine = Engine::new(Settings {
        isolation: Isolation::Process {
            program: host_with(hsm.dir.path(), &[("P11_KIT_SERVER_ADDRESS", &address)]),
        },
        ..settings(Place::Apart)
    });
    let key = engine
        .key(&hsm.reference_by(softhsm::KEY, &client))
        .signing_key()
        .unwrap();
    sign(&*key, b"before").unwrap();
    drop(server);
    // Each message has an end, soon.
    let began = Instant::now();
    for _ in 0..5 {
        sign(&*key, b"without the server").unwrap_err();
    }
    assert!(
        began.elapsed() < Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    let server = Server::start(&hsm);
    signs_within(&*key, Duration::from_secs(3));
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
    drop(server);
}

#[test]
fn row_02_handles_are_looked_up_anew_after_a_power_cycle() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.signing();
        sign(&*key, b"before").unwrap();
        let (searches, logins) = (rig.count("C_FindObjectsInit"), rig.count("C_Login"));
        rig.fake.set("gone", 1);
        sign(&*key, b"the first one afterwards").unwrap();
        assert!(rig.count("C_FindObjectsInit") > searches);
        assert_eq!(rig.count("C_Login"), logins + 1);
        assert_eq!(rig.count("C_Finalize"), 0, "{place:?}: the module is well");
        assert_eq!(rig.engine.told(Level::Error), Vec::<String>::new());
        rig.end();
    });
}

#[test]
fn row_02_a_few_failures_cost_no_message() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.signing();
        for _ in 0..10 {
            rig.fake.set("C_Sign", "0x32*2");
            assert_eq!(sign_many(&key, 40, 8), (40, Vec::new()), "{place:?}");
        }
        rig.end();
    });
}

#[test]
fn row_02_whatever_code_a_lost_session_gives() {
    // SESSION_HANDLE_INVALID, OBJECT_HANDLE_INVALID, GENERAL_ERROR, KEY_TYPE_INCONSISTENT, USER_NOT_LOGGED_IN,
    // TOKEN_NOT_PRESENT, FUNCTION_FAILED, a vendor's own.
    for code in [
        "0xb3",
        "0x82",
        "0x5",
        "0x63",
        "0x101",
        "0xe0",
        "0x6",
        "0x80000384",
    ] {
        let rig = Rig::with(Place::Here, &[("gone_rv", code)], |_| {});
        let key = rig.signing();
        rig.fake.set("gone", 1);
        sign(&*key, b"the first one afterwards").unwrap_or_else(|error| panic!("{code}: {error}"));
        rig.end();
    }
}

#[test]
fn row_03_a_token_directory_that_was_away_is_used_again() {
    let hsm = SoftHsm::new();
    let engine = hsm.engine();
    let key = engine
        .key(&hsm.reference(softhsm::KEY))
        .signing_key()
        .unwrap();
    sign(&*key, b"before").unwrap();
    let aside = hsm.path("aside");
    fs::rename(hsm.tokens(), &aside).unwrap();
    wait_until("that it does not sign", Duration::from_secs(5), || {
        sign(&*key, b"without").is_err()
    });
    std::thread::sleep(Duration::from_secs(1));
    fs::rename(&aside, hsm.tokens()).unwrap();
    signs_within(&*key, Duration::from_secs(5));
    // How SoftHSM's process ends after that was not clean once in some hundred runs, and is not what this is about.
    engine.tokens.shut_down(Duration::from_secs(5));
}

#[test]
fn row_04_a_token_that_is_not_there_at_the_start_signs_when_it_appears() {
    let hsm = SoftHsm::empty();
    let engine = hsm.engine();
    let (key, fault) = engine.refusal(&hsm.reference(softhsm::KEY));
    assert!(matches!(fault, Fault::NoToken { .. }), "{fault}");
    assert!(key.signing_key().is_err());
    hsm.init_token("dkim");
    hsm.generate("rsa:2048", "dkim", "01", &[]);
    wait_until("the key is seen", Duration::from_secs(5), || {
        key.signing_key().is_ok()
    });
    sign(&*key.signing_key().unwrap(), b"at last").unwrap();
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_04_a_module_that_sees_a_token_only_when_initialised_finds_it_too() {
    in_both(|place| {
        let rig = Rig::with(place, &[("present", "0"), ("needs_init", "1")], |_| {});
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!("no token matches {KEY}; the module shows this user no token")
        );
        rig.fake.set("present", 1);
        wait_until("the key is seen", Duration::from_secs(5), || {
            key.signing_key().is_ok()
        });
        sign(&*key.signing_key().unwrap(), b"at last").unwrap();
        rig.end();
    });
}

#[test]
fn row_05_a_slot_that_has_another_number_is_found_by_its_token() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key = rig.signing();
        for gone in 1..=3 {
            rig.fake.set("gone", gone);
            sign(&*key, b"in another slot").unwrap();
        }
        assert_eq!(rig.engine.told(Level::Error), Vec::<String>::new());
        rig.end();
    });
}

#[test]
fn row_05_a_slot_number_in_the_uri_is_warned_of() {
    let rig = Rig::new(Place::Here);
    let key = rig
        .engine
        .key(&rig.reference("pkcs11:slot-id=1;object=dkim"));
    let notes = key.notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].ends_with(
            ": is named by slot-id, a number that most modules change at will; name the token by token or serial"
        ),
        "{notes:?}"
    );
    rig.end();
}

#[test]
fn row_05_a_token_made_anew_with_the_same_key_is_taken_by_its_label() {
    let pem = openssl_key(2048);
    let hsm = SoftHsm::empty();
    hsm.init_token("dkim");
    hsm.import("dkim", &pem, "dkim", "01");
    let engine = hsm.engine();
    let key = engine
        .key(&hsm.reference(softhsm::KEY))
        .signing_key()
        .unwrap();
    sign(&*key, b"before").unwrap();
    hsm.delete_token("dkim");
    wait_until("that it does not sign", Duration::from_secs(5), || {
        sign(&*key, b"without").is_err()
    });
    // Another serial, another slot.
    hsm.init_token("dkim");
    hsm.import("dkim", &pem, "dkim", "01");
    signs_within(&*key, Duration::from_secs(5));
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_05_a_token_made_anew_with_another_key_does_not_sign() {
    let hsm = SoftHsm::new();
    let engine = hsm.engine();
    let reference = hsm.reference(softhsm::KEY);
    let key = engine.key(&reference);
    let signing = key.signing_key().unwrap();
    hsm.delete_token("dkim");
    hsm.init_token("dkim");
    hsm.generate("rsa:2048", "dkim", "01", &[]);
    let is_other = || matches!(key.fault(), Some(Fault::OtherKey { .. }));
    let _ = sign(&*signing, b"as long as the session lives");
    wait_until("that it is another key", Duration::from_secs(8), || {
        let _ = sign(&*signing, b"by another key");
        is_other()
    });
    for _ in 0..10 {
        let error = sign(&*signing, b"by another key").unwrap_err();
        assert!(error.contains("another key"), "{error}");
    }
    // Who asks for it anew gets the new one, as a reload does while the old one is in use.
    let new = engine.key(&reference).signing_key().unwrap();
    sign(&*new, b"by the new one").unwrap();
    sign(&*signing, b"by another key").unwrap_err();
    drop((key, signing));
    sign(&*new, b"by the new one").unwrap();
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_19_an_idle_session_is_kept_alive_and_a_dead_one_replaced_before_mail_comes() {
    let rig = Rig::new(Place::Apart);
    let key = rig.signing();
    let signatures = rig.count("C_Sign");
    rig.fake.set("gone", 1);
    // Nobody asks for anything.
    wait_until(
        "a signature that nobody asked for",
        Duration::from_secs(30),
        || {
            rig.fake
                .calls("C_Sign")
                .iter()
                .skip(signatures)
                .any(|call| call.rv == 0)
        },
    );
    let logins = rig.count("C_Login");
    sign(&*key, b"the first one").unwrap();
    assert_eq!(rig.count("C_Login"), logins, "all was mended already");
    rig.end();
}

#[test]
fn row_29_a_module_that_does_not_start_is_tried_again() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_Initialize", "0x30*5")], |_| {});
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "module {}: C_Initialize failed with CKR_DEVICE_ERROR",
                rig.fake.module().display()
            )
        );
        wait_until("the key is seen", Duration::from_secs(8), || {
            key.signing_key().is_ok()
        });
        assert_eq!(rig.count("C_Initialize"), 6, "one by one, not in a loop");
        sign(&*key.signing_key().unwrap(), b"at last").unwrap();
        rig.end();
    });
}

#[test]
fn row_32_sessions_of_an_earlier_initialisation_are_not_closed_in_the_new_one() {
    in_both(|place| {
        let rig = Rig::with(place, &[("needs_init", "1")], |_| {});
        let key = rig.signing();
        for gone in 1..=3 {
            rig.fake.forget_calls();
            rig.fake.set("gone", gone);
            assert_eq!(sign_many(&key, 40, 4), (40, Vec::new()));
            assert_eq!(rig.count("C_Finalize"), 1);
            let calls = rig.fake.all_calls();
            let anew = calls
                .iter()
                .position(|call| call.function == "C_Initialize")
                .unwrap();
            for call in &calls[anew..] {
                assert_eq!(call.rv, 0, "{call:?}");
                assert_ne!(call.function, "C_CloseSession", "{call:?}");
            }
        }
        rig.end();
    });
}

#[test]
fn a_module_that_is_installed_later_is_used() {
    in_both(|place| {
        let rig = Rig::new(place);
        let aside = rig.dir.path().join("aside.so");
        fs::rename(rig.fake.module(), &aside).unwrap();
        let (key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "module {}: No such file or directory (os error 2)",
                rig.fake.module().display()
            )
        );
        fs::rename(&aside, rig.fake.module()).unwrap();
        wait_until("the key is seen", Duration::from_secs(4), || {
            key.signing_key().is_ok()
        });
        rig.end();
    });
}

#[test]
fn a_key_that_is_deleted_is_told_and_signs_when_it_is_made_again() {
    in_both(|place| {
        let rig = Rig::with(place, &[("second_key", "other")], |_| {});
        let key = rig.key();
        let signing = key.signing_key().unwrap();
        let other = rig
            .engine
            .key(&rig.reference("pkcs11:token=fake;object=other"))
            .signing_key()
            .unwrap();
        rig.fake.set("key_label", "away");
        // A session may still have its handle.
        rig.fake.set("gone", 1);
        let error = sign(&*signing, b"without the key").unwrap_err();
        assert!(error.starts_with("no private key matches "), "{error}");
        assert!(error.contains("object=away"), "{error}");
        let told = || rig.engine.told(Level::Error);
        wait_until("that it is known", Duration::from_secs(1), || {
            key.fault().is_some() && told().len() == 1
        });
        for _ in 0..50 {
            sign(&*other, b"by the other key").unwrap();
            sign(&*signing, b"without the key").unwrap_err();
        }
        assert_eq!(told().len(), 1, "{:?}", told());
        assert_eq!(
            rig.count("C_Finalize"),
            0,
            "one key is no reason to disturb the others"
        );
        rig.fake.set("key_label", "dkim");
        // Without mail: readiness is known too.
        wait_until("that it signs", Duration::from_secs(4), || {
            key.fault().is_none()
        });
        sign(&*signing, b"again").unwrap();
        rig.end();
    });
}

#[test]
fn a_key_that_another_took_the_place_of_does_not_sign_and_takes_no_other_with_it() {
    in_both(|place| {
        let rig = Rig::with(place, &[("second_key", "other")], |_| {});
        let key = rig.key();
        let signing = key.signing_key().unwrap();
        let other = rig
            .engine
            .key(&rig.reference("pkcs11:token=fake;object=other"))
            .signing_key()
            .unwrap();
        let file = rig.dir.path().join("new.pem");
        fs::write(&file, openssl_key(2048)).unwrap();
        rig.fake.set("key", file.display());
        wait_until("that it does not sign", Duration::from_secs(2), || {
            sign(&*signing, b"by another").is_err()
        });
        wait_until("that this is known", Duration::from_secs(5), || {
            matches!(key.fault(), Some(Fault::OtherKey { .. }))
        });
        for _ in 0..50 {
            sign(&*other, b"undisturbed").unwrap();
            let error = sign(&*signing, b"by another").unwrap_err();
            assert!(
                error.contains("there is another key now than when it was loaded"),
                "{error}"
            );
        }
        assert_eq!(
            rig.engine.told(Level::Error).len(),
            1,
            "{:?}",
            rig.engine.all_told()
        );
        // The right one again.
        rig.fake
            .set("key", rig.dir.path().join("key.pem").display());
        signs_within(&*signing, Duration::from_secs(5));
        rig.end();
    });
}

#[test]
fn a_token_of_the_same_module_signs_on_while_another_is_looked_for() {
    in_both(|place| {
        let rig = Rig::with(
            place,
            &[("second_token", "second"), ("needs_init", "1")],
            |_| {},
        );
        let here = rig
            .engine
            .key(&rig.reference("pkcs11:token=second"))
            .signing_key()
            .unwrap();
        let gone = rig.signing();
        rig.fake.set("present", 0);
        let _ = sign(&*gone, b"without").unwrap_err();
        let began = Instant::now();
        let mut made = 0;
        while began.elapsed() < Duration::from_secs(4) {
            let one = Instant::now();
            sign(&*here, b"undisturbed").unwrap();
            assert!(
                one.elapsed() < Duration::from_millis(500),
                "{:?}",
                one.elapsed()
            );
            made += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(made > 500, "{made}");
        rig.fake.set("present", 1);
        signs_within(&*gone, Duration::from_secs(5));
        assert_eq!(
            rig.engine.told(Level::Error).len(),
            1,
            "{:?}",
            rig.engine.all_told()
        );
        rig.end();
    });
}

/// A fresh RSA key in PKCS#8.
pub(crate) fn openssl_key(bits: u32) -> String {
    let mut command = Command::new("openssl");
    command.args(["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt"]);
    command.arg(format!("rsa_keygen_bits:{bits}"));
    String::from_utf8(crate::rig::run(&mut command, "openssl").stdout).unwrap()
}

#[test]
fn a_key_that_is_used_in_another_way_after_a_reload_is_one_key() {
    in_both(|place| {
        let rig = Rig::new(place);
        // As long as a message that began before the reload has the one, both are there.
        let before = rig.key();
        let after = rig
            .engine
            .key(&rig.reference(&format!("{KEY}?x-on-token-away=next")));
        rig.fake.set("C_Sign", "0x30");
        rig.fake.set("C_GetSlotList", "0x30");
        let signing = after.signing_key().unwrap();
        let _ = sign(&*signing, b"a message");
        wait_until("the notice", Duration::from_secs(10), || {
            !rig.engine.told(Level::Error).is_empty()
        });
        let told = rig.engine.told(Level::Error);
        assert!(
            told[0].starts_with(&format!("{KEY}?x-on-token-away=next cannot sign: ")),
            "{told:?}"
        );
        assert!(!told.concat().contains("2 keys"), "{told:?}");
        assert_eq!(rig.tokens().faults()[0].1, 1);
        drop(before);
    });
}
