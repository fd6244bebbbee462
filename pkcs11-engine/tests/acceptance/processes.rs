//! The process that holds a module: what becomes of messages when it crashes, of it when the program does, and of
//! everything that is left over.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pkcs11_engine::{Fault, Isolation, Level};

use crate::recovery::openssl_key;
use crate::rig::{
    KEY, Place, Rig, host, host_with, last_host, sign, sign_many, signs_within, submit, wait_until,
    write_program,
};

/// A rig whose processes can be found.
fn rig(lines: &[(&str, &str)]) -> (Rig, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let program = host_with(dir.path(), &[]);
    let rig = Rig::with(Place::Apart, lines, |settings| {
        settings.isolation = Isolation::Process { program };
    });
    (rig, dir)
}

fn kill_last(dir: &Path) {
    kill(Pid::from_raw(last_host(dir)), Signal::SIGKILL).unwrap();
}

#[test]
fn messages_outlive_the_process_that_has_them() {
    let (rig, dir) = rig(&[("C_Sign.ms", "20")]);
    let key = rig.signing();
    let ends: Vec<_> = (0..32).map(|_| submit(&*key, b"outlives it")).collect();
    std::thread::sleep(Duration::from_millis(30));
    kill_last(dir.path());
    for end in ends {
        let signature = end.recv().unwrap().unwrap();
        crate::rig::verify(&*key, b"outlives it", &signature);
    }
    let told = rig.engine.told(Level::Warning);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].ends_with("was ended by signal 9; another one is started"),
        "{told:?}"
    );
    assert_eq!(rig.engine.told(Level::Error), Vec::<String>::new());
    rig.end();
}

#[test]
fn wherever_a_module_crashes_the_next_process_signs() {
    std::thread::scope(|scope| {
        for function in [
            "C_Initialize",
            "C_GetSlotList",
            "C_OpenSession",
            "C_Login",
            "C_FindObjects",
            "C_Sign",
        ] {
            scope.spawn(move || {
                let (rig, _dir) = rig(&[(&format!("{function}.crash"), "once")]);
                let key = rig.key();
                sign(&*key.signing_key().unwrap(), b"by the next one").unwrap();
                assert_eq!(rig.fake.held_up("CRASHES", function), 1);
                assert_eq!(
                    rig.engine.told(Level::Error),
                    Vec::<String>::new(),
                    "{function}"
                );
                rig.end();
            });
        }
    });
}

#[test]
fn a_module_that_crashes_on_each_signature_takes_two_processes_and_no_more_for_a_message() {
    let (rig, dir) = rig(&[]);
    let key = rig.signing();
    rig.fake.set("C_Sign.crash", 1);
    let error = sign(&*key, b"crashes it").unwrap_err();
    assert!(
        error.starts_with("the process that holds the token's module was ended by signal 6"),
        "{error}"
    );
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(6) {
        sign(&*key, b"crashes it").unwrap_err();
        std::thread::sleep(Duration::from_millis(10));
    }
    let hosts = fs::read_to_string(dir.path().join("hosts")).unwrap();
    assert!(
        hosts.lines().count() < 12,
        "they are started ever more slowly: {}",
        hosts.lines().count()
    );
    let told = rig.engine.all_told();
    assert!(told.len() <= 3, "{told:?}");
    rig.fake.unset("C_Sign.crash");
    signs_within(&*key, Duration::from_secs(5));
    rig.end();
}

#[test]
fn a_process_goes_when_its_program_is_killed() {
    let (rig, dir) = rig(&[]);
    let program = dir.path().join("host");
    for hang in [false, true] {
        if hang {
            rig.fake.set("C_Sign.hang", 1);
        }
        let mut child = Command::new(host())
            .arg(rig.fake.module())
            .arg(KEY)
            .arg("--pin")
            .arg(rig.dir.path().join("pin"))
            .args(["--count", "1000000"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let _ = &program;
        assert!(rig.fake.wait(Duration::from_secs(5), |fake| {
            fake.calls("C_SignInit")
                .iter()
                .any(|call| is_child(call.process, child.id()))
        }));
        let hosts: Vec<u32> = rig
            .fake
            .calls("C_SignInit")
            .iter()
            .map(|call| call.process)
            .filter(|host| is_child(*host, child.id()))
            .collect();
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("that it is gone", Duration::from_secs(2), || {
            hosts
                .iter()
                .all(|host| !Path::new(&format!("/proc/{host}")).exists() || is_zombie(*host))
        });
        rig.fake.unset("C_Sign.hang");
    }
}

fn status(process: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn is_child(process: u32, of: u32) -> bool {
    status(process, "PPid:") == Some(of.to_string())
}

/// Ended, and nobody's child that would ask for its status.
fn is_zombie(process: u32) -> bool {
    status(process, "State:").is_some_and(|state| state.starts_with('Z'))
}

#[test]
fn signals_for_the_program_do_not_move_its_process() {
    let (rig, dir) = rig(&[]);
    let key = rig.signing();
    let host = Pid::from_raw(last_host(dir.path()));
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGQUIT,
    ] {
        kill(host, signal).unwrap();
    }
    assert_eq!(sign_many(&key, 40, 4), (40, Vec::new()));
    assert_eq!(last_host(dir.path()), host.as_raw());
    rig.end();
}

#[test]
fn a_process_that_stands_still_is_replaced() {
    let (rig, dir) = rig(&[]);
    let key = rig.signing();
    let host = last_host(dir.path());
    kill(Pid::from_raw(host), Signal::SIGSTOP).unwrap();
    let began = Instant::now();
    sign(&*key, b"never").unwrap_err();
    assert!(
        began.elapsed() < Duration::from_millis(1300),
        "{:?}",
        began.elapsed()
    );
    signs_within(&*key, Duration::from_secs(5));
    assert_ne!(last_host(dir.path()), host);
    rig.end();
}

#[test]
fn what_a_module_has_started_does_not_hide_the_end_of_its_process() {
    // Something that has the socket, too, and lives on.
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "#!/bin/sh\nexec 3<&0\nsleep 20 <&3 &\nexec 3<&-\necho $! >> {}\necho $$ >> {}\nexec {} \"$@\"\n",
        dir.path().join("sleepers").display(),
        dir.path().join("hosts").display(),
        host().display()
    );
    let program = write_program(&dir.path().join("host"), &text);
    let rig = Rig::with(Place::Apart, &[], |settings| {
        settings.isolation = Isolation::Process { program };
    });
    let key = rig.signing();
    kill_last(dir.path());
    signs_within(&*key, Duration::from_secs(2));
    assert!(rig.tokens().shut_down(Duration::from_secs(5)));
    for sleeper in fs::read_to_string(dir.path().join("sleepers"))
        .unwrap()
        .lines()
    {
        let _ = kill(Pid::from_raw(sleeper.parse().unwrap()), Signal::SIGKILL);
    }
}

#[test]
fn a_key_that_was_exchanged_while_the_process_was_away_does_not_sign() {
    let (rig, dir) = rig(&[]);
    let key = rig.key();
    let signing = key.signing_key().unwrap();
    sign(&*signing, b"before").unwrap();
    let file = rig.dir.path().join("new.pem");
    fs::write(&file, openssl_key(2048)).unwrap();
    rig.fake.set("key", file.display());
    kill_last(dir.path());
    wait_until("that it is another key", Duration::from_secs(5), || {
        matches!(key.fault(), Some(Fault::OtherKey { .. }))
    });
    // Whoever had it before gets no signature, and by no means one of the other key.
    for _ in 0..10 {
        let error = sign(&*signing, b"by another").unwrap_err();
        assert!(
            error.contains("there is another key now than when it was loaded"),
            "{error}"
        );
    }
    rig.end();
}

#[test]
fn restarts_leave_no_descriptors_threads_or_zombies() {
    // In a program of its own, where nothing else comes and goes: this one, once more, for one test.
    if std::env::var_os("ALONE").is_none() {
        let test = "processes::restarts_leave_no_descriptors_threads_or_zombies";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone
            .args(["--exact", test, "--nocapture"])
            .env("ALONE", "1");
        crate::rig::run(&mut alone, "of this test");
        return;
    }
    let (rig, dir) = rig(&[]);
    let key = rig.signing();
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let restart = || {
        let host = last_host(dir.path());
        kill_last(dir.path());
        wait_until("another process", Duration::from_secs(5), || {
            last_host(dir.path()) != host
        });
        signs_within(&*key, Duration::from_secs(5));
    };
    restart();
    let before = (count("fd"), count("task"));
    for _ in 0..8 {
        restart();
    }
    let settled = || (count("fd"), count("task")) == before;
    wait_until("that all is as before", Duration::from_secs(2), settled);
    let hosts = fs::read_to_string(dir.path().join("hosts")).unwrap();
    let zombies = hosts
        .lines()
        .filter(|host| is_zombie(host.parse().unwrap()))
        .count();
    assert_eq!(zombies, 0);
    rig.end();
    let gone = hosts
        .lines()
        .all(|host| !Path::new(&format!("/proc/{host}")).exists());
    assert!(gone, "{hosts}");
}

#[test]
fn keys_come_and_go_while_others_ask_for_them() {
    crate::rig::in_both(|place| {
        let rig = Rig::with(place, &[("second_key", "other")], |settings| {
            // More keys than anybody asks for are looked at meanwhile.
            settings.timeout = Duration::from_secs(5);
        });
        let kept = rig.signing();
        let until = Instant::now() + Duration::from_millis(700);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let rig = &rig;
                scope.spawn(move || {
                    let uri =
                        ["pkcs11:token=fake;object=other", "pkcs11:token=fake;id=%02"][number % 2];
                    while Instant::now() < until {
                        let key = rig.tokens().key(&rig.reference(uri)).unwrap();
                        drop(key);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                });
            }
            while Instant::now() < until {
                sign(&*kept, b"meanwhile").unwrap();
            }
        });
        sign(&*kept, b"afterwards").unwrap();
        rig.end();
    });
}
