//! Sessions: as many as there is room for, kept, never shared, and what they cost.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dkim_core::engine::SigningKey;

use crate::rig::{Engine, Place, Rig, in_both, last_host, sign, sign_many};
use crate::softhsm::{KEY, SoftHsm, Spy};

#[test]
fn row_09_a_token_with_few_sessions_gets_few_workers() {
    in_both(|place| {
        let rig = Rig::with(place, &[("max_sessions", "2")], |settings| {
            settings.sessions = 8
        });
        let key = rig.signing();
        assert_eq!(sign_many(&key, 200, 16), (200, Vec::new()));
        assert_eq!(rig.count("C_Initialize"), 1);
        assert_eq!(rig.count("C_Finalize"), 0);
        let refused = rig
            .fake
            .calls("C_OpenSession")
            .iter()
            .filter(|call| call.rv == 0xb1)
            .count();
        assert!(refused <= 8, "{refused}: one try for each worker");
        assert_eq!(rig.fake.calls("C_Login").len(), 1);
        rig.end();
    });
}

#[test]
fn row_10_numbers_of_sessions_that_mean_nothing_are_no_limit() {
    for says in ["effectively_infinite", "unavailable"] {
        let rig = Rig::with(Place::Here, &[("sessions_info", says)], |_| {});
        let key = rig.signing();
        assert_eq!(sign_many(&key, 40, 8), (40, Vec::new()), "{says}");
        rig.end();
    }
}

#[test]
fn row_11_one_login_and_no_logout_for_10000_signatures() {
    let hsm = SoftHsm::new();
    let spy = Spy::new(&hsm);
    let mut settings = hsm.settings(&spy.variables());
    settings.sessions = 8;
    settings.timeout = Duration::from_secs(5);
    let engine = Engine::new(settings);
    let key = engine
        .key(&hsm.reference_by(KEY, &spy.module))
        .signing_key()
        .unwrap();
    assert_eq!(sign_many(&key, 10_000, 8), (10_000, Vec::new()));
    assert_eq!((spy.count("C_Login"), spy.count("C_Logout")), (1, 0));
    assert_eq!(spy.count("C_Initialize"), 1);
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
    assert_eq!((spy.count("C_Logout"), spy.count("C_Finalize")), (0, 1));
}

#[test]
fn row_13_a_session_that_a_failure_has_wedged_is_thrown_away() {
    in_both(|place| {
        let rig = Rig::with(place, &[("leave_active", "1")], |_| {});
        let key = rig.signing();
        for function in ["C_Sign", "C_Sign(NULL)", "C_SignInit"] {
            rig.fake.set(function, "0x30*1");
            assert_eq!(sign_many(&key, 40, 8), (40, Vec::new()), "{function}");
        }
        let wedged = rig
            .fake
            .calls("C_SignInit")
            .iter()
            .filter(|call| call.rv == 0x90)
            .count();
        assert_eq!(wedged, 0, "CKR_OPERATION_ACTIVE");
        rig.end();
    });
}

#[test]
fn row_23_a_key_among_300_is_looked_up_once_for_each_session() {
    let hsm = SoftHsm::new();
    let before = objects(&hsm);
    hsm.generate("rsa:2048", "of the crowd", "02", &[]);
    let pair: Vec<_> = objects(&hsm).difference(&before).cloned().collect();
    // As they lie there: with the pair itself 300 more keys than anybody would generate in a test.
    for (number, object) in
        (0..299).flat_map(|number| pair.iter().map(move |object| (number, object)))
    {
        let name = format!(
            "{number:08x}-0000-0000-0000-00000000000{}",
            u8::from(pair[0] == *object)
        );
        fs::copy(object, object.with_file_name(format!("{name}.object"))).unwrap();
        fs::write(object.with_file_name(format!("{name}.lock")), "").unwrap();
    }
    let spy = Spy::new(&hsm);
    let mut settings = hsm.settings(&spy.variables());
    settings.timeout = Duration::from_secs(5);
    let engine = Engine::new(settings);
    let key = engine
        .key(&hsm.reference_by(KEY, &spy.module))
        .signing_key()
        .unwrap();
    assert_eq!(sign_many(&key, 400, 8), (400, Vec::new()));
    // The session that holds the login looks for nothing; the first look at the key is one more search.
    let sessions = spy.count("C_OpenSession") - 1;
    assert!((1..=4).contains(&sessions), "{sessions}");
    assert_eq!(spy.count("C_FindObjectsInit"), sessions + 1);
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

/// The files of the token's objects.
fn objects(hsm: &SoftHsm) -> BTreeSet<PathBuf> {
    let token = fs::read_dir(hsm.tokens()).unwrap().next().unwrap().unwrap();
    let files = fs::read_dir(token.path()).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "object")
        })
        .collect()
}

#[test]
fn row_25_memory_does_not_grow_by_signatures() {
    // Of the full count and limit, which `cargo test -- --ignored` is for, a tenth.
    memory_grows_less_than(10_000, 100);
}

#[test]
#[ignore = "takes a minute; a tenth of it is not ignored"]
fn row_25_memory_grows_by_less_than_1_mb_in_100000_signatures() {
    memory_grows_less_than(100_000, 1000);
}

fn memory_grows_less_than(signatures: usize, kilobytes: u64) {
    let hsm = SoftHsm::new();
    let mut settings = hsm.settings(&[]);
    settings.timeout = Duration::from_secs(5);
    let engine = Engine::new(settings);
    let key = engine.key(&hsm.reference(KEY)).signing_key().unwrap();
    let host = last_host(hsm.dir.path());
    // Until all there is to be warmed is warm.
    assert_eq!(sign_many(&key, 3000, 8).0, 3000);
    let before = resident(host);
    assert_eq!(sign_many(&key, signatures, 8), (signatures, Vec::new()));
    let after = resident(host);
    assert!(
        after < before + kilobytes,
        "{before} kB before {signatures} signatures, {after} kB afterwards"
    );
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

/// Kilobytes of memory that a process has.
fn resident(process: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn row_27_a_module_that_always_wants_a_longer_buffer_is_asked_a_few_times() {
    in_both(|place| {
        let rig = Rig::new(place);
        let key: Arc<dyn SigningKey> = rig.signing();
        rig.fake.forget_calls();
        rig.fake.set("C_Sign", "0x150");
        let began = Instant::now();
        let error = sign(&*key, b"never").unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(
            error.contains("C_Sign failed with CKR_BUFFER_TOO_SMALL"),
            "{error}"
        );
        let asked = rig.count("C_Sign");
        assert!(asked <= 6, "{asked}");
        rig.fake.unset("C_Sign");
        crate::rig::signs_within(&*key, Duration::from_secs(4));
        rig.end();
    });
}
