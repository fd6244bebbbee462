//! What is signed here is verified here, whatever the message, the canonicalization, the engine and the chunks.

use crate::support::*;
use dkim_core::canonicalization::{Algorithm, Canonicalization};
use dkim_core::engine::{KeyType, PrivateKey, SigningKey, engines};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::MessageReader;
use dkim_core::signer::{BodyLength, SignRequest, Signer};
use proptest::prelude::*;

fn key_record(name: &str) -> KeyAnswer {
    match name {
        "rsa._domainkey.example.com" => KeyAnswer::from_txt(&[rsa_record()]),
        "ed._domainkey.example.com" => KeyAnswer::from_txt(&[ed25519_record()]),
        _ => KeyAnswer::NoName,
    }
}

fn canonicalizations() -> impl Strategy<Value = Canonicalization> {
    let algorithm = || prop_oneof![Just(Algorithm::Simple), Just(Algorithm::Relaxed)];
    (algorithm(), algorithm()).prop_map(|(header, body)| Canonicalization { header, body })
}

/// A field value with white space, folds and octets of every kind; no line is empty, so that it stays one field.
fn values() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-z:;=<>@]{1,8}".prop_map(String::into_bytes),
        2 => Just(b" ".to_vec()),
        1 => Just(b" \t ".to_vec()),
        1 => Just(b"\r\n ".to_vec()),
        1 => Just(b"\r\n\t x".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => prop::collection::vec(0x80u8.., 1..4),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| {
        let mut value = pieces.concat();
        // A CR at the end would become part of the line end.
        while value.last() == Some(&b'\r') {
            value.pop();
        }
        value
    })
}

fn headers() -> impl Strategy<Value = Vec<u8>> {
    let names = prop_oneof![
        Just("Subject"),
        Just("To"),
        Just("to "),
        Just("X-Tag"),
        Just("Reply-To"),
        Just("Received"),
        Just("DATE")
    ];
    let fields = prop::collection::vec((names, values()), 0..12);
    (fields, any::<prop::sample::Index>()).prop_map(|(fields, from_at)| {
        let mut lines: Vec<Vec<u8>> = fields
            .iter()
            .map(|(name, value)| [name.as_bytes(), b":", value, b"\r\n"].concat())
            .collect();
        lines.insert(
            from_at.index(lines.len() + 1),
            b"From: ann@example.com\r\n".to_vec(),
        );
        lines.concat()
    })
}

fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-z.]{1,9}".prop_map(String::into_bytes),
        2 => Just(b" ".to_vec()),
        1 => Just(b"\t ".to_vec()),
        3 => Just(b"\r\n".to_vec()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Octets that end lines, fields and headers in all ways.
fn octets() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => Just("\r\n"),
        3 => Just("\n"),
        1 => Just("\r"),
        2 => Just(" "),
        2 => Just("X: 1"),
        2 => Just("to:"),
        2 => Just("a"),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

fn request(selector: &str, key_type: KeyType, canonicalization: Canonicalization) -> SignRequest {
    SignRequest {
        canonicalization,
        timestamp: Some(1_700_000_000),
        ..SignRequest::new("example.com", selector, key_type)
    }
}

fn message(header: &[u8], body: &[u8]) -> Vec<u8> {
    [header, b"\r\n", body].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_message_passes_whoever_signs_and_verifies(
        header in headers(),
        body in bodies(),
        (one, other) in (canonicalizations(), canonicalizations()),
        (sign_chunk, verify_chunk) in (1usize..60, 1usize..60),
        with_length: bool,
    ) {
        let private = PrivateKey::from_octets(key_file!("ed25519.pem")).unwrap();
        for (index, &engine) in engines().iter().enumerate() {
            let key = engine.signing_key(&private).unwrap();
            let body_length = if with_length { BodyLength::Whole } else { BodyLength::Unlimited };
            let requests = vec![
                SignRequest { body_length, ..request("ed", KeyType::Ed25519, one) },
                request("ed", KeyType::Ed25519, other),
            ];
            let signed = sign(&message(&header, &body), requests, &[&*key, &*key], sign_chunk);
            // The other engine verifies.
            let engine = engines()[(index + 1) % engines().len()];
            let setting = Setting { engine, chunk: verify_chunk, ..Setting::new(&key_record) };
            prop_assert_eq!(setting.words(&signed), ["pass", "pass"]);
        }
    }

    /// Whatever the lines of a message end in, its signature goes on top and is right.
    #[test]
    fn any_octets_that_can_be_signed_pass(
        before in octets(),
        after in octets(),
        canonicalization in canonicalizations(),
        chunk in 1usize..40,
    ) {
        let raw = [&before[..], b"From: ann@example.com", &after].concat();
        prop_assume!(!raw.starts_with(b" ") && !raw.starts_with(b"\t"));
        let mut reader = MessageReader::new(100_000);
        let mut body = Vec::new();
        reader.read(&raw, |octets| body.extend_from_slice(octets)).unwrap();
        reader.finish();
        let requests = vec![request("ed", KeyType::Ed25519, canonicalization)];
        if let Ok(mut signer) = Signer::new(reader.header(), requests) {
            body.chunks(chunk).for_each(|chunk| signer.body(chunk));
            let to_sign = &signer.to_sign(reader.header())[0];
            let signature = signing_key(key_file!("ed25519.pem")).sign(&to_sign.octets).unwrap();
            let field = format!("DKIM-Signature:{}\r\n", signer.field_value(0, &signature).unwrap());
            let field = if reader.has_lf_lines() { field.replace("\r\n", "\n") } else { field };
            let signed = [field.as_bytes(), &raw].concat();
            let setting = Setting { chunk, ..Setting::new(&key_record) };
            prop_assert_eq!(setting.words(&signed), ["pass"]);
        }
    }

    #[test]
    fn no_letter_of_body_or_author_may_change(
        header in headers(),
        body in bodies(),
        canonicalization in canonicalizations(),
        at: prop::sample::Index,
    ) {
        let key = signing_key(key_file!("ed25519.pem"));
        let body = [&body[..], b"end"].concat();
        let original = message(&header, &body);
        let signed = sign(&original, vec![request("ed", KeyType::Ed25519, canonicalization)], &[&*key], 1000);
        let body_start = signed.len() - body.len();
        let letters: Vec<usize> = (body_start..signed.len()).filter(|&at| signed[at].is_ascii_lowercase()).collect();
        let author = signed.windows(7).position(|octets| octets == b"ann@exa").unwrap();
        for (at, want) in [
            (letters[at.index(letters.len())], "fail: body hash did not verify"),
            (author, "fail: signature did not verify"),
        ] {
            let mut changed = signed.clone();
            changed[at] = if changed[at] == b'z' { b'y' } else { changed[at] + 1 };
            prop_assert_eq!(Setting::new(&key_record).words(&changed), [want]);
        }
    }
}

#[test]
fn rsa_passes_in_every_canonicalization_whoever_signs_and_verifies() {
    let private = PrivateKey::from_octets(key_file!("rsa2048.pem")).unwrap();
    let keys: Vec<Box<dyn SigningKey>> = engines()
        .iter()
        .map(|engine| engine.signing_key(&private).unwrap())
        .collect();
    let text = message(
        b"Subject:  a  b \r\n\tc\r\nFrom: ann@example.com\r\n",
        b" a \t b \r\n\r\n.\r\n \r\n\r\n",
    );
    for key in &keys {
        let all = [
            "simple/simple",
            "simple/relaxed",
            "relaxed/simple",
            "relaxed/relaxed",
        ];
        let requests = all.map(|c| {
            request(
                "rsa",
                KeyType::Rsa,
                Canonicalization::parse(c.as_bytes()).unwrap(),
            )
        });
        let signed = sign(&text, requests.to_vec(), &[&**key; 4], 3);
        for &engine in engines() {
            let setting = Setting {
                engine,
                ..Setting::new(&key_record)
            };
            assert_eq!(setting.words(&signed), ["pass"; 4], "{}", engine.name());
        }
    }
}
