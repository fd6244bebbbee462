//! `t-signperf`, `t-verifyperf` and `bench report` as they are run at a terminal, for a fifth of a second each.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SIGN: &str = env!("CARGO_BIN_EXE_t-signperf");
const VERIFY: &str = env!("CARGO_BIN_EXE_t-verifyperf");
const BENCH: &str = env!("CARGO_BIN_EXE_bench");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dkim-core/tests/data/keys");
/// Short, and 0.2 s that do not depend on what the machine does.
const SHORT: [&str; 4] = ["-t", "0.2", "--warmup", "0.01"];

#[test]
fn both_programs_print_the_two_lines_and_what_figures_depend_on() {
    for (program, doing, done) in [
        (SIGN, "SIGNING", "signed"),
        (VERIFY, "VERIFYING", "verified"),
    ] {
        let output = run(program, &["-s", "ed25519-sha256", "-m", "512"]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            format!(
                "*** {doing} SPEED TEST: relaxed/simple with ed25519-sha256, size 512 for 0.2s"
            )
        );
        let words: Vec<&str> = lines[1].split(' ').collect();
        assert_eq!((words[0], words[2], words[3]), ("***", "messages", done));
        assert!(words[1].parse::<u64>().unwrap() > 0);
        assert!(words[4].strip_prefix('(').unwrap().parse::<u64>().unwrap() > 0);
        assert_eq!(words[5], "msgs/sec)");
        for part in [
            "per CPU second",
            "MB/s",
            "aws-lc-rs 1.",
            "sha2 0.",
            "rustc 1.",
            "MHz",
            "Linux",
            "peak memory",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(output.stderr, b"", "no progress where there is no terminal");
    }
}

#[test]
fn every_engine_mix_and_key_gives_good_signatures_and_verdicts() {
    for line in [
        "--engine aws-lc --key-bits 2048 -b relaxed -h simple",
        "--engine aws-lc --key-bits 3072 --threads 2",
        "--engine rustcrypto --key-bits 1024 -b simple -h simple",
        "--engine rustcrypto -s ed25519-sha256 --mix small --threads 3",
        "--engine aws-lc -s ed25519-sha256 --mix large -b relaxed",
        "--engine aws-lc -s ed25519-sha256 --per-message-key",
        "--engine aws-lc --per-message-key",
        "--engine rustcrypto --key-bits 1024 --per-message-key",
        "--engine rustcrypto --key KEYS/rsa2048.pem -m 2",
        "--key KEYS/ed25519.pem -m 100000 --digest software",
    ] {
        let line = line.replace("KEYS", KEYS);
        let arguments: Vec<&str> = line.split(' ').collect();
        for program in [SIGN, VERIFY] {
            let outcome = json(program, &arguments);
            assert!(outcome["messages"].as_u64().unwrap() > 0, "{line}");
            assert!(outcome["messages_per_second"].as_f64().unwrap() > 0.0);
            assert!(outcome["cpu_seconds"].as_f64().unwrap() > 0.0);
            assert_eq!(outcome["failed"], 0, "{line}");
        }
    }
}

#[test]
fn a_token_signs_verifies_and_digests_and_is_told_of() {
    let token = SoftHsm::new("rsa2048.pem");
    let kept = ["-m", "4096", "-b", "relaxed"];
    for (program, more, engine, digest) in [
        (SIGN, &[][..], "pkcs11 SoftHSM v2, isolated", "software"),
        (
            SIGN,
            &["--pkcs11-in-process", "--threads", "3"],
            "pkcs11 SoftHSM v2, in process",
            "software",
        ),
        (
            SIGN,
            &["--digest", "token", "-h", "simple", "-b", "simple"],
            "pkcs11 SoftHSM v2, isolated",
            "token",
        ),
        (
            SIGN,
            &["--digest", "token", "--pkcs11-in-process", "-m", "200000"],
            "pkcs11 SoftHSM v2, in process",
            "token",
        ),
        (VERIFY, &[], "pkcs11 SoftHSM v2, in process", "software"),
        (
            VERIFY,
            &["--digest", "token", "-h", "simple", "--threads", "2"],
            "pkcs11 SoftHSM v2, in process",
            "token",
        ),
        (
            VERIFY,
            &["--per-message-key", "--threads", "2"],
            "pkcs11 SoftHSM v2, in process",
            "software",
        ),
        (
            VERIFY,
            &["--pkcs11-in-process", "--stages"],
            "pkcs11 SoftHSM v2, in process",
            "software",
        ),
    ] {
        let output = token.run(program, &[&kept, more, &["--json"]].concat());
        let outcome: Value = serde_json::from_str(&stdout(&output))
            .unwrap_or_else(|error| panic!("{more:?}: {error}: {output:?}"));
        assert_eq!(output.status.code(), Some(0), "{more:?}");
        assert_eq!(outcome["engine"], engine, "{more:?}");
        assert_eq!(outcome["digest"], digest, "{more:?}");
        assert_eq!(outcome["failed"], 0);
        assert_eq!(outcome["key_bits"], 2048);
        assert!(outcome["messages"].as_u64().unwrap() > 0);
        assert_eq!(outcome["token"]["manufacturer"], "SoftHSM project");
        assert_eq!(outcome["token"]["mechanism"], "CKM_RSA_PKCS");
        assert!(
            outcome["versions"]["engine"]
                .as_str()
                .unwrap()
                .contains("2.")
        );
        let latency = &outcome["latency"];
        assert!(latency["p50_us"].as_f64().unwrap() <= latency["p99_us"].as_f64().unwrap());
        // RSA is in the CPU time, whichever process it was in.
        let is_isolated = engine.ends_with("isolated");
        assert!(!is_isolated || outcome["module_cpu_seconds"].as_f64().unwrap() > 0.0);
        assert!(program == VERIFY || outcome["cpu_us_per_message"].as_f64().unwrap() > 100.0);
    }
}

#[test]
fn a_token_that_cannot_be_used_says_why_and_nothing_is_measured() {
    let token = SoftHsm::new("ed25519.pem");
    let output = token.run(SIGN, &["-s", "rsa-sha256"]);
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("this key makes ed25519-sha256"), "{error}");
    fs::remove_dir_all(token.folder.path().join("tokens")).unwrap();
    fs::create_dir(token.folder.path().join("tokens")).unwrap();
    for program in [SIGN, VERIFY] {
        let output = token.run(program, &[]);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert_eq!(output.stdout, b"");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("no token matches pkcs11:token=t"), "{error}");
    }
}

/// A token with one key, by the tools of Debian's package softhsm2.
struct SoftHsm {
    folder: tempfile::TempDir,
}

impl SoftHsm {
    fn new(key: &str) -> Self {
        let token = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let path = |name: &str| token.folder.path().join(name);
        fs::create_dir(path("tokens")).unwrap();
        let configuration = format!("directories.tokendir = {}\n", path("tokens").display());
        fs::write(path("softhsm2.conf"), configuration).unwrap();
        fs::write(path("pin"), "4711\n").unwrap();
        fs::set_permissions(path("pin"), fs::Permissions::from_mode(0o600)).unwrap();
        let key = format!("{KEYS}/{key}");
        for words in [
            &[
                "--init-token",
                "--free",
                "--label",
                "t",
                "--so-pin",
                "12345678",
                "--pin",
                "4711",
            ][..],
            &[
                "--import", &key, "--token", "t", "--label", "k", "--id", "01", "--pin", "4711",
            ],
        ] {
            let output = token.command("softhsm2-util").args(words).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        token
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let pin = self.folder.path().join("pin");
        self.command(program)
            .args(["--engine", "pkcs11:token=t;object=k"])
            .args(["--pkcs11-module", "/usr/lib/softhsm/libsofthsm2.so"])
            .arg("--pkcs11-pin-file")
            .arg(pin)
            .args(SHORT)
            .args(arguments)
            .output()
            .unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SOFTHSM2_CONF", self.folder.path().join("softhsm2.conf"));
        command
    }
}

#[test]
fn an_engine_verifies_what_it_would_not_sign() {
    let outcome = json(VERIFY, &["--engine", "aws-lc", "--key-bits", "1024"]);
    assert_eq!(outcome["engine"], "aws-lc");
    assert_eq!(outcome["key_bits"], 1024);
}

#[test]
fn stages_and_their_remainder_are_the_whole_and_none_is_missing() {
    for (program, count) in [(SIGN, 6), (VERIFY, 6)] {
        let outcome = json(
            program,
            &[
                "-s",
                "ed25519-sha256",
                "-b",
                "relaxed",
                "-m",
                "4096",
                "--stages",
            ],
        );
        let stages = &outcome["stages"];
        let us = |value: &Value| value["us"].as_f64().unwrap();
        let list = stages["stages"].as_array().unwrap();
        assert_eq!(list.len(), count);
        let whole = stages["whole_us"].as_f64().unwrap();
        let sum: f64 = list.iter().map(us).sum();
        let unexplained = stages["unexplained_us"].as_f64().unwrap();
        assert!((sum + unexplained - whole).abs() < whole * 1e-6);
        // What costs most is there: far more than nothing, and not more than all.
        let most = list.iter().map(us).fold(0.0, f64::max);
        assert!(most > 0.2 * whole && most < 1.5 * whole, "{stages}");
    }
}

#[test]
fn an_mbox_is_signed_and_verified_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let mbox = folder.path().join("m box");
    fs::write(&mbox, two_messages()).unwrap();
    let mix = format!("mbox:{}", mbox.display());
    let outcome = json(SIGN, &["--mix", &mix, "-s", "ed25519-sha256", "--stages"]);
    assert_eq!(outcome["distinct_messages"], 2);
    let stages = outcome["stages"]["stages"].as_array().unwrap();
    assert!(stages[0]["name"].as_str().unwrap().starts_with("I/O"));
    let outcome = json(
        VERIFY,
        &["--mix", &mix, "-s", "ed25519-sha256", "--sign-first"],
    );
    assert_eq!(
        (&outcome["failed"], &outcome["distinct_messages"]),
        (&Value::from(0), &Value::from(2))
    );
}

#[test]
fn an_unsigned_message_fails_by_name_and_the_others_count() {
    let folder = tempfile::tempdir().unwrap();
    let mbox = folder.path().join("mbox");
    let key = format!("{KEYS}/ed25519.pem");
    let mut octets = signed_by_dkimpy().into_bytes();
    octets.extend_from_slice(b"\n");
    octets.extend_from_slice(&two_messages());
    fs::write(&mbox, octets).unwrap();
    let mix = format!("mbox:{}", mbox.display());
    let output = run(VERIFY, &["--mix", &mix, "--key", &key]);
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    for index in [2, 3] {
        assert!(
            error.contains(&format!("mbox: message {index} (line ")),
            "{error}"
        );
    }
    assert!(error.contains("message is not signed"), "{error}");
    assert!(!error.contains("message 1 "), "{error}");
    let text = stdout(&output);
    assert!(text.starts_with("*** VERIFYING SPEED TEST: as signed with ed25519-sha256, mix mbox:"));
    assert!(!text.contains("*** 0 messages"));
}

#[test]
fn a_wrong_key_verifies_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mbox = folder.path().join("mbox");
    fs::write(&mbox, signed_by_dkimpy()).unwrap();
    let mix = format!("mbox:{}", mbox.display());
    let with_key = |name: &str| {
        let key = format!("{KEYS}/{name}");
        run(VERIFY, &["--mix", &mix, "--key", &key, "--json"])
    };
    assert_eq!(with_key("ed25519.pem").status.code(), Some(0));
    let output = with_key("ed25519-other.pem");
    assert_eq!(output.status.code(), Some(1));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(outcome["messages"], 0);
    assert!(outcome["failed"].as_u64().unwrap() > 0);
    assert_eq!(
        outcome["failures"][0]["reason"],
        "fail: signature did not verify"
    );
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("signature did not verify")
    );
}

#[test]
fn what_cannot_be_done_is_told_by_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let no_mbox = folder.path().join("no-mbox");
    fs::write(&no_mbox, "From: a\n\nbody\n").unwrap();
    let no_mbox = format!("mbox:{}", no_mbox.display());
    let public = format!("{KEYS}/public.pem");
    for (arguments, code, reason) in [
        (&["-s", "rsa-sha1"][..], 64, "RFC 8301"),
        (
            &["--engine", "openssl"],
            64,
            "aws-lc, rustcrypto, pkcs11:URI",
        ),
        (&["--engine", "pkcs11:token=x"], 64, "by --pkcs11-module"),
        (
            &["--key", "/no/such/key"],
            66,
            "/no/such/key: cannot be read",
        ),
        (&["--key", &public], 65, "this is a public key"),
        (
            &["--mix", "mbox:/no/such/mbox", "--key", &public],
            65,
            "this is a public key",
        ),
        (&["--mix", &no_mbox, "--key", KEYS], 66, "cannot be read"),
    ] {
        for program in [SIGN, VERIFY] {
            let output = run(program, arguments);
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
            assert!(error.contains(reason), "{arguments:?}: {error}");
            assert_eq!(output.stdout, b"");
        }
    }
    for arguments in [&["--mix", &no_mbox][..], &["--key-bits", "1024"]] {
        let output = run(SIGN, &[arguments, &["--engine", "aws-lc"]].concat());
        assert_eq!(output.status.code(), Some(65), "{arguments:?}");
    }
    let output = run(SIGN, &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("-h <ALGORITHM>"));
}

#[test]
fn a_message_that_cannot_be_signed_fails_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mbox = folder.path().join("mbox");
    fs::write(&mbox, b"From x\nTo: a\n\nno author\n").unwrap();
    let output = run(SIGN, &["--mix", &format!("mbox:{}", mbox.display())]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("message 1 (line 1): message has no From field"),
        "{error}"
    );
}

#[test]
fn runs_become_a_report_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (program, name) in [(SIGN, "sign.json"), (VERIFY, "verify.json")] {
        let output = run(
            program,
            &[
                "-s",
                "ed25519-sha256",
                "--engine",
                "aws-lc",
                "--json",
                "--label",
                "this one",
            ],
        );
        let path = folder.path().join(name);
        fs::write(&path, output.stdout).unwrap();
        files.push(path);
    }
    let report = |more: &[&str]| {
        Command::new(BENCH)
            .arg("report")
            .args(&files)
            .args(more)
            .output()
            .unwrap()
    };
    let text = stdout(&report(&["--base", "this one, aws-lc"]));
    let row = text
        .lines()
        .find(|line| line.starts_with("this one  aws-lc"))
        .unwrap();
    assert_eq!(
        row.matches(" 100").count(),
        if row.contains(" -") { 2 } else { 4 },
        "{text}"
    );
    assert!(stdout(&report(&["--format", "markdown"])).contains("| this one | aws-lc |"));
    let svg = folder.path().join("plot.svg");
    let output = report(&["--format", "svg", "--out", svg.to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    let renamed = format!("{}=other", files[0].display());
    assert!(stdout(&report(&["--label", &renamed])).contains("\nother "));

    for (more, code, reason) in [
        (
            &["--base", "that one"][..],
            64,
            "there are \"this one, aws-lc\"",
        ),
        (
            &["--label", "none.json=x"],
            64,
            "none.json is not among the files",
        ),
        (&["--out", "/no/such/folder/x"], 73, "cannot be written"),
        (&["/no/such.json"], 66, "/no/such.json: cannot be read"),
    ] {
        let output = report(more);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    fs::write(&files[0], "{\n  \"format\": 1\n}\n").unwrap();
    let output = report(&[]);
    assert_eq!(output.status.code(), Some(65));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("sign.json: line 2, column 13: "), "{error}");
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(SHORT)
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs a program that must succeed, and reads its JSON.
fn json(program: &str, arguments: &[&str]) -> Value {
    let output = run(program, &[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn two_messages() -> Vec<u8> {
    b"From ann Tue Jan  6 10:00:00 2026\nFrom: ann@example.com\nSubject: one\n\n>From here\n\n\
      From bo Tue Jan  6 10:00:01 2026\nFrom: bo@example.com\nSubject: two\n\ntext\n"
        .to_vec()
}

/// An mbox with one message, signed by dkimpy with `ed25519.pem`.
fn signed_by_dkimpy() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/signed.mbox"))
        .unwrap()
}
