//! What `dkim-sign` signs, `dkim-verify` and an independent verifier find good: every canonicalization and every form in
//! which messages are stored.

use crate::harness::*;
use std::process::Command;

/// Messages that canonicalization and the splitting of messages may trip over, with CRLF line ends.
const MESSAGES: [&str; 8] = [
    "From: ann@example.com\r\nSubject: plain\r\n\r\nHello.\r\n",
    "From: ann@example.com\r\nSubject: no body\r\n\r\n",
    "From: ann@example.com\r\nSubject: no body and no line before it\r\n",
    "From: ann@example.com\r\nSubject: no final line end\r\n\r\nHello.\r\nBye",
    "From: ann@example.com\r\nSubject: blank lines at the end\r\n\r\nHello.\r\n\r\n \r\n\r\n\r\n",
    "From: ann@example.com\r\nSubject: nothing but blank lines\r\n\r\n\r\n\r\n\r\n",
    "from: Ann Example\r\n <ann@example.com>\r\nSubject:  odd   white\t \r\n\t space \r\nSUBJECT:\r\n X\r\n\r\n  a \t b  \r\n\tc\t\r\n",
    "From: \"\u{c4}nn\" <ann@example.com>\r\nSubject: acht Bit \u{fc}\r\nX-Unsigned: x\r\n\r\n\u{20ac}\u{a0}\r\n.\r\n..\r\n",
];

const CANONICALIZATIONS: [&str; 4] = [
    "simple/simple",
    "simple/relaxed",
    "relaxed/simple",
    "relaxed/relaxed",
];

const MBOX_LINE: &str = "From ann@example.com Thu Jan  1 00:00:00 1970\r\n";

/// All messages in all forms, those with CRLF signed by both keys and the others, for speed, by Ed25519.
fn signed_in_all_ways(directory: &std::path::Path) -> Vec<String> {
    let ed = format!("-s ed -k {}", data("ed25519.pem"));
    let both = format!("-s rsa -k {} {ed}", data("rsa2048.pem"));
    let mut files = Vec::new();
    for (index, message) in MESSAGES.iter().enumerate() {
        for (form, line_end, mbox, keys, canonicalizations) in [
            ("crlf", "\r\n", "", &both, &CANONICALIZATIONS[..]),
            ("lf", "\n", "", &ed, &CANONICALIZATIONS),
            ("mbox", "\n", MBOX_LINE, &ed, &["simple/simple"]),
        ] {
            let stored = format!("{mbox}{message}").replace("\r\n", line_end);
            for canonicalization in canonicalizations {
                let ended = run(
                    SIGN,
                    &format!("-d example.com {keys} -c {canonicalization}"),
                    stored.as_bytes(),
                );
                assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
                let name = format!("{index}-{form}-{}", canonicalization.replace('/', "-"));
                let path = directory.join(name);
                std::fs::write(&path, ended.stdout).unwrap();
                files.push(text(&path).to_owned());
            }
        }
    }
    files
}

#[test]
fn what_is_signed_is_verified_here_and_by_dkimpy() {
    let directory = tempfile::tempdir().unwrap();
    let files = signed_in_all_ways(directory.path());
    assert_eq!(files.len(), 8 * 9);
    let signatures = 8 * (4 * 2 + 5);

    let arguments = format!(
        "--strict --records {} {}",
        data("records.zone"),
        files.join(" ")
    );
    let ended = run(VERIFY, &arguments, b"");
    for line in ended.text().lines() {
        assert!(line.contains(": pass "), "{line}");
    }
    assert_eq!((ended.code, ended.text().lines().count()), (0, signatures));

    let script = data("dkimpy_verify.py");
    let output = Command::new("/usr/bin/python3")
        .args([&script, &data("records.zone")])
        .args(&files)
        .output()
        .expect("/usr/bin/python3");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "python3-dkim: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(said.lines().count(), signatures, "{said}");
    assert!(said.lines().all(|line| line.ends_with(" pass")), "{said}");
}
