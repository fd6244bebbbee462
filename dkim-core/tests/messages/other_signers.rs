//! Messages that other programs have signed; `data/messages/make.py` made them.

use crate::support::*;
use dkim_core::engine::engines;
use dkim_core::key_record::KeyAnswer;

const MESSAGE: &[u8] = include_bytes!("../data/messages/signed-by-others.eml");

fn key_record(name: &str) -> KeyAnswer {
    match name {
        "rsa._domainkey.example.com" => KeyAnswer::from_txt(&[rsa_record()]),
        "ed._domainkey.example.com" => KeyAnswer::from_txt(&[ed25519_record()]),
        _ => KeyAnswer::NoName,
    }
}

#[test]
fn what_dkimpy_and_mail_dkim_sign_passes_in_any_chunks() {
    for &engine in engines() {
        for chunk in [1, 7, 100_000] {
            let setting = Setting {
                engine,
                chunk,
                ..Setting::new(&key_record)
            };
            assert_eq!(
                setting.words(MESSAGE),
                ["pass"; 8],
                "{} by {chunk}",
                engine.name()
            );
        }
    }
}

#[test]
fn a_file_with_lf_line_ends_is_the_same_message() {
    let lf: Vec<u8> = MESSAGE
        .iter()
        .copied()
        .filter(|&octet| octet != b'\r')
        .collect();
    assert_eq!(Setting::new(&key_record).words(&lf), ["pass"; 8]);
}

/// From the top: dkimpy by RSA `relaxed/relaxed` and `simple/simple`, by Ed25519 `relaxed/simple` and `simple/relaxed`;
/// Mail::DKIM by RSA `relaxed/relaxed`, `simple/simple`, `relaxed`, `simple/relaxed`.
#[test]
fn each_change_breaks_those_it_should() {
    let (pass, body, header) = (
        "pass",
        "fail: body hash did not verify",
        "fail: signature did not verify",
    );
    for (from, to, want) in [
        // White space inside a line of the body.
        (
            "a\tb",
            "a b",
            [pass, body, body, pass, pass, body, body, pass],
        ),
        (
            "white space \t \r\n",
            "white space\r\n",
            [pass, body, body, pass, pass, body, body, pass],
        ),
        ("white space", "whitespace", [body; 8]),
        ("\u{a0}", " ", [body; 8]),
        // White space and folds in the header.
        (
            "\r\n\tCy <",
            " Cy <",
            [pass, header, pass, header, pass, header, pass, header],
        ),
        (
            "Subject:",
            "SUBJECT :",
            [pass, header, pass, header, pass, header, pass, header],
        ),
        ("upper", "UPPER", [header; 8]),
        // Fields that are not signed.
        ("from d by a", "from e by a", [pass; 8]),
        // dkimpy's are oversigned.
        (
            "Date:",
            "Reply-To: eve@example.net\r\nDate:",
            [header, header, header, header, pass, pass, pass, pass],
        ),
        // The field below is the one that is signed.
        (
            "X-Trace: upper",
            "X-Trace: new\r\nX-Trace: upper",
            [pass; 8],
        ),
        ("From: =?", "X-Trace: new\r\nFrom: =?", [header; 8]),
    ] {
        let text = std::str::from_utf8(MESSAGE).unwrap();
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        assert_eq!(
            Setting::new(&key_record).words(changed.as_bytes()),
            want,
            "{from:?} -> {to:?}"
        );
    }
}
