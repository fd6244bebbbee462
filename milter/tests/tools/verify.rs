//! What `dkim-verify` says, in which form, and how it ends.

use crate::harness::*;
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn verify(options: &str, message: &[u8]) -> Ended {
    run(
        VERIFY,
        &format!("--records {} {options}", data("records.zone")),
        message,
    )
}

/// [`MESSAGE`], signed under `selector` with the key in `file`.
fn signed_as(selector: &str, file: &str, options: &str) -> Vec<u8> {
    let ended = run(
        SIGN,
        &format!("-d example.com -s {selector} -k {} {options}", data(file)),
        MESSAGE,
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout
}

fn good() -> Vec<u8> {
    signed_as("rsa", "rsa2048.pem", "")
}

fn replaced(message: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(message).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    text.replacen(from, to, 1).into_bytes()
}

#[test]
fn each_outcome_is_a_line_and_a_code() {
    let ed = |selector| signed_as(selector, "ed25519.pem", "");
    let rsa_line = "d=example.com s=rsa a=rsa-sha256 2048 bits";
    for (message, code, want) in [
        (good(), 0, format!("pass {rsa_line}: signature verified\n")),
        (ed("ed"), 0, "pass d=example.com s=ed a=ed25519-sha256 256 bits: signature verified\n".into()),
        (
            ed("testing"),
            0,
            "pass d=example.com s=testing a=ed25519-sha256 256 bits: signature verified (the domain is testing DKIM, t=y in \
             the key record)\n"
                .into(),
        ),
        (
            replaced(&good(), "noon", "moon"),
            1,
            format!("fail {rsa_line}: body hash did not verify\n"),
        ),
        (
            replaced(&good(), "lunch", "dinner"),
            1,
            format!("fail {rsa_line}: signature did not verify\n"),
        ),
        (
            ed("unknown"),
            1,
            "permerror d=example.com s=unknown a=ed25519-sha256: no key for signature: no such name\n".into(),
        ),
        (
            ed("revoked"),
            1,
            "permerror d=example.com s=revoked a=ed25519-sha256: key revoked (p= is empty)\n".into(),
        ),
        (
            ed("servfail"),
            75,
            "temperror d=example.com s=servfail a=ed25519-sha256: key unavailable: answered SERVFAIL\n".into(),
        ),
        (
            replaced(&good(), "a=rsa-sha256", "a=rsa-sha256; a=x"),
            1,
            "neutral d=? s=? a=?: signature syntax error: tag a= stands twice (again at octet 19)\n".into(),
        ),
        (MESSAGE.to_vec(), 1, "none: message has no DKIM-Signature field\n".into()),
    ] {
        let ended = verify("", &message);
        assert_eq!((ended.text(), ended.code), (want.as_str(), code), "{}", ended.stderr);
    }
}

#[test]
fn one_pass_is_enough_and_only_temporary_errors_ask_to_try_again() {
    let sign_again = |selector: &str, message: &[u8]| {
        let key = data("ed25519.pem");
        run(
            SIGN,
            &format!("-d example.com -s {selector} -k {key}"),
            message,
        )
        .stdout
    };
    for (selectors, code) in [
        (&["servfail"][..], 75),
        (&["servfail", "timeout"], 75),
        (&["servfail", "nodata"], 1),
        (&["nodata", "ed", "servfail"], 0),
    ] {
        let message = selectors
            .iter()
            .fold(MESSAGE.to_vec(), |message, s| sign_again(s, &message));
        let ended = verify("", &message);
        assert_eq!(ended.code, code, "{}", ended.text());
        assert_eq!(ended.text().lines().count(), selectors.len());
    }
}

#[test]
fn json_shows_a_terminal_nothing_that_plays_with_it() {
    let author = "\u{9b}31m\u{202e}\u{61c}\u{2028}\u{feff}\u{e0041}\u{e9}@example.com";
    let ended = verify("--json", format!("From: {author}\r\n\r\n").as_bytes());
    let shown = r"\u009b31m\u202e\u061c\u2028\ufeff\udb40\udc41é@example.com";
    assert!(ended.text().contains(shown), "{}", ended.text());
    let got: Value = serde_json::from_str(ended.text()).unwrap();
    assert_eq!(got["authors"], json!([author]));
}

#[test]
fn json_has_every_field_of_every_signature() {
    let message = signed_as(
        "testing",
        "ed25519.pem",
        "-i ann@example.com -c simple/relaxed --body-length",
    );
    let message = [b"DKIM-Signature: v=1; d=b\xfc\r\n", &message[..], b"PS\r\n"].concat();
    let ended = verify("--json", &message);
    assert_eq!(ended.text().lines().count(), 1);
    let got: Value = serde_json::from_str(ended.text()).unwrap();
    let want = json!({
        "file": "-",
        "signatures": [
            {
                "index": 0, "domain": null, "selector": null, "identity": null, "algorithm": null,
                "canonicalization": "simple/simple", "result": "permerror",
                "reason": "signature missing required tag a=", "key_bits": null, "testing": false, "unsigned_octets": 0,
            },
            {
                "index": 1, "domain": "example.com", "selector": "testing", "identity": "ann@example.com",
                "algorithm": "ed25519-sha256", "canonicalization": "simple/relaxed", "result": "pass",
                "reason": "signature verified, but leaves 4 octets of the body unsigned (l=)",
                "key_bits": 256, "testing": true, "unsigned_octets": 4,
            },
        ],
        "authors": ["ann@example.com"],
    });
    assert_eq!(got, want);
}

#[test]
fn authors_are_those_of_the_one_from_field() {
    for (message, want) in [
        (
            &b"From: A <a@example.com>, \"B\" <b@example.net>\r\n\r\n"[..],
            json!(["a@example.com", "b@example.net"]),
        ),
        (
            b"From: \"x y\"@example.com (comment)\r\n\r\n",
            json!(["\"x y\"@example.com"]),
        ),
        (
            b"From: a@example.com\r\nFrom: b@example.com\r\n\r\n",
            json!([]),
        ),
        (b"From: a@example.com <b@example.com>\r\n\r\n", json!([])),
        (b"To: a@example.com\r\n\r\n", json!([])),
    ] {
        let got: Value = serde_json::from_str(verify("--json", message).text()).unwrap();
        assert_eq!(got["authors"], want, "{}", String::from_utf8_lossy(message));
    }
}

/// A good signature that does not cover all that people see.
#[test]
fn strict_judges_as_the_milter_does() {
    let second_from = [
        b"From: eve@example.net\r\n",
        &signed_as("rsa", "rsa2048.pem", "--sign-headers From")[..],
    ]
    .concat();
    let appended = [
        &signed_as("rsa", "rsa2048.pem", "--body-length")[..],
        b"PS\r\n",
    ]
    .concat();
    for (message, reason) in [
        (
            second_from,
            "signature verified, but the message has 2 From fields",
        ),
        (
            appended,
            "signature verified, but leaves 4 octets of the body unsigned (l=)",
        ),
    ] {
        let ended = verify("", &message);
        assert!(
            ended.code == 0 && ended.text().starts_with("pass "),
            "{}",
            ended.text()
        );
        assert!(
            ended.text().trim_end().ends_with(reason),
            "{}",
            ended.text()
        );
        let ended = verify("--strict", &message);
        assert!(
            ended.code == 1 && ended.text().starts_with("policy "),
            "{}",
            ended.text()
        );
    }
    assert_eq!(verify("--strict", &good()).code, 0);
}

#[test]
fn limits_can_be_set() {
    let expiring = signed_as("rsa", "rsa2048.pem", "--now 1700000000 --expire 1000");
    let short = signed_as("short", "rsa1024.pem", "");
    let twice = run(
        SIGN,
        &format!("-d example.com -s ed -k {}", data("ed25519.pem")),
        &good(),
    )
    .stdout;
    for (options, message, code, reason) in [
        ("--now 1700000000", &expiring, 0, "signature verified"),
        ("--now 1700001300", &expiring, 0, "signature verified"),
        ("--now 1700001301", &expiring, 1, "signature expired (x=)"),
        (
            "--now 1699999699",
            &expiring,
            1,
            "signature made in the future (t=)",
        ),
        ("", &expiring, 1, "signature expired (x=)"),
        ("", &short, 0, "signature verified"),
        (
            "--min-rsa-bits 2048",
            &short,
            1,
            "RSA key of 1024 bits is too small (at least 2048)",
        ),
        ("--min-rsa-bits 2048", &good(), 0, "signature verified"),
        (
            "--max-signatures 1",
            &twice,
            0,
            "not evaluated: more than 1 signatures",
        ),
        ("--engine rustcrypto", &twice, 0, "signature verified"),
        ("--engine aws-lc", &twice, 0, "signature verified"),
    ] {
        let ended = verify(options, message);
        assert_eq!(ended.code, code, "{options}: {}", ended.text());
        assert!(
            ended.text().trim_end().ends_with(reason),
            "{options}: {}",
            ended.text()
        );
    }
}

#[test]
fn several_files_are_named_and_the_worst_decides() {
    let passing = file(&good());
    let failing = file(&replaced(&good(), "noon", "moon"));
    let waiting = file(&signed_as("servfail", "ed25519.pem", ""));
    let nothing = file(b"nothing\r\n");
    let [passing, failing, waiting, nothing] = [&passing, &failing, &waiting, &nothing].map(path);
    for (files, code) in [
        (vec![passing, passing], 0),
        (vec![passing, waiting], 75),
        (vec![waiting, failing, passing], 1),
        (vec![failing, nothing, passing], 65),
        (vec![nothing, "/no/such/file", passing], 66),
    ] {
        let ended = verify(&files.join(" "), b"");
        assert_eq!(ended.code, code, "{}", ended.text());
        for line in ended.text().lines() {
            assert!(
                files
                    .iter()
                    .any(|file| line.starts_with(&format!("{file}: "))),
                "{line}"
            );
        }
        assert_eq!(ended.text().contains(": pass "), files.contains(&passing));
    }
    let ended = verify(&format!("--json {passing} /no/such/file {nothing}"), b"");
    let lines: Vec<Value> = ended
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["file"], passing);
    assert!(lines[0].get("error").is_none());
    assert!(
        lines[1]["error"]
            .as_str()
            .unwrap()
            .starts_with("cannot open /no/such/file: ")
    );
    assert_eq!(
        (&lines[2]["signatures"], &lines[2]["authors"]),
        (&json!([]), &json!([]))
    );
}

#[test]
fn every_failure_has_its_code_and_its_sentence() {
    let bad_records = file(b"a.example. 300 IN TXT unquoted\n");
    let records = data("records.zone");
    for (arguments, stdin, code, sentence) in [
        ("--jsno".to_owned(), MESSAGE, 64, "--json"),
        ("--now tomorrow".into(), MESSAGE, 64, "--now"),
        (
            "--nameserver localhost".into(),
            MESSAGE,
            64,
            "is no IP address",
        ),
        ("--min-rsa-bits 512".into(), MESSAGE, 64, "1024"),
        ("--engine openssl".into(), MESSAGE, 64, "rustcrypto"),
        (
            format!("--records {records} --nameserver 127.0.0.1"),
            MESSAGE,
            64,
            "cannot be used with",
        ),
        (
            format!("--records {records}"),
            b"",
            65,
            "standard input is not a message",
        ),
        (
            format!("--records {records}"),
            b"\x89PNG\r\n\x1a\n\0\0",
            65,
            "not a message",
        ),
        (
            format!("--records {records} /no/such/file"),
            MESSAGE,
            66,
            "cannot open /no/such/file",
        ),
        (
            format!("--records {records} /tmp"),
            MESSAGE,
            66,
            "cannot open /tmp: is a directory",
        ),
        (
            "--records /no/such/records".into(),
            MESSAGE,
            66,
            "/no/such/records",
        ),
        (
            format!("--records {}", path(&bad_records)),
            MESSAGE,
            78,
            ":1: a string of a TXT record must stand in quotes",
        ),
    ] {
        let ended = run(VERIFY, &arguments, stdin);
        assert_eq!(ended.code, code, "{arguments}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(sentence),
            "{arguments}: {}",
            ended.stderr
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_news() {
    let message = file(&good());
    let mut child = Command::new(VERIFY)
        .args(["--records", &data("records.zone"), path(&message)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn what_is_shown_cannot_play_with_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("a\x1b[2Jb");
    std::fs::write(&odd, good()).unwrap();
    let records = data("records.zone");
    let ended = run_with(
        VERIFY,
        &["--records", &records, text(&odd), "/no/\x1b[31m"],
        b"",
    );
    assert!(
        !ended.text().contains('\x1b') && ended.text().contains("a\\u{1b}[2Jb: pass "),
        "{:?}",
        ended.text()
    );
    assert!(!ended.stderr.contains('\x1b'), "{:?}", ended.stderr);
}

/// Answers every query for TXT with what `records.zone` holds for the selector, or not at all.
fn name_server(answers: bool) -> String {
    let zone = std::fs::read_to_string(data("records.zone")).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((length, peer)) = socket.recv_from(&mut packet) {
            if answers {
                socket
                    .send_to(&reply(&packet[..length], &zone), peer)
                    .unwrap();
            }
        }
    });
    address
}

fn reply(query: &[u8], zone: &str) -> Vec<u8> {
    let (mut name, mut at) = (String::new(), 12);
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        name += &String::from_utf8(query[at + 1..end].to_ascii_lowercase()).unwrap();
        name.push('.');
        at = end;
    }
    let line = zone
        .lines()
        .find(|line| line.split(' ').next() == Some(&name));
    let found = u8::from(line.is_some());
    // One question, no additional records; NXDOMAIN where there is no answer.
    let mut reply = vec![
        query[0],
        query[1],
        0x81,
        0x80 | (3 * (1 - found)),
        0,
        1,
        0,
        found,
        0,
        0,
        0,
        0,
    ];
    reply.extend_from_slice(&query[12..at + 5]);
    if let Some(line) = line {
        let strings: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        let data: Vec<u8> = strings
            .iter()
            .flat_map(|s| [&[s.len() as u8], s.as_bytes()].concat())
            .collect();
        reply.extend_from_slice(&[0xc0, 12, 0, 16, 0, 1, 0, 0, 1, 0]);
        reply.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        reply.extend_from_slice(&data);
    }
    reply
}

#[test]
fn name_servers_are_asked() {
    let server = name_server(true);
    let message = run(
        SIGN,
        &format!("-d example.com -s unknown -k {}", data("ed25519.pem")),
        &good(),
    )
    .stdout;
    let ended = run(VERIFY, &format!("--nameserver {server}"), &message);
    assert_eq!(
        ended.text(),
        "permerror d=example.com s=unknown a=ed25519-sha256: no key for signature: no such name\n\
         pass d=example.com s=rsa a=rsa-sha256 2048 bits: signature verified\n"
    );
    assert_eq!(ended.code, 0);
}

#[test]
fn silent_name_servers_cost_one_deadline_for_all_names() {
    let server = name_server(false);
    let message = (0..5).fold(MESSAGE.to_vec(), |message, n| {
        let key = data("ed25519.pem");
        run(SIGN, &format!("-d example.com -s s{n} -k {key}"), &message).stdout
    });
    let begin = Instant::now();
    let ended = run(
        VERIFY,
        &format!("--timeout 1 --nameserver {server}"),
        &message,
    );
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(ended.code, 75, "{}", ended.text());
    assert_eq!(ended.text().matches("temperror ").count(), 5);
}
