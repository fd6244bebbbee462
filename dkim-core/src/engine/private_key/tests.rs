//! Every form a private key comes in, and what is told of those that are none.

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

const PKCS8_PEM: &[u8] = include_bytes!("../../../tests/data/keys/rsa2048.pem");
const PKCS8_DER: &[u8] = include_bytes!("../../../tests/data/keys/rsa2048.pkcs8.der");
const PKCS1_PEM: &[u8] = include_bytes!("../../../tests/data/keys/rsa2048.pkcs1.pem");
const PKCS1_DER: &[u8] = include_bytes!("../../../tests/data/keys/rsa2048.pkcs1.der");
const ED25519_PEM: &[u8] = include_bytes!("../../../tests/data/keys/ed25519.pem");
const ED25519_DER: &[u8] = include_bytes!("../../../tests/data/keys/ed25519.der");
const ED25519_V2_DER: &[u8] = include_bytes!("../../../tests/data/keys/ed25519.v2.der");
const ED25519_PUBLIC: &[u8; 32] = include_bytes!("../../../tests/data/keys/ed25519.record");
const CERTIFICATE_PEM: &[u8] = include_bytes!("../../../tests/data/keys/certificate.pem");
const ENCRYPTED_PEM: &[u8] = include_bytes!("../../../tests/data/keys/encrypted.pem");

fn seed() -> &'static [u8] {
    &ED25519_DER[16..]
}

fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
    .into_bytes()
}

fn with_crlf(pem: &[u8]) -> Vec<u8> {
    pem.split(|&o| o == b'\n')
        .collect::<Vec<_>>()
        .join(&b"\r\n"[..])
}

#[test]
fn every_form_of_an_rsa_key_is_the_same_key() {
    let indented: Vec<u8> = PKCS1_PEM
        .split(|&o| o == b'\n')
        .collect::<Vec<_>>()
        .join(&b"\n    "[..]);
    let one_line: Vec<u8> = PKCS8_PEM
        .split(|&o| o == b'\n')
        .collect::<Vec<_>>()
        .join(&b" "[..]);
    for (form, octets) in [
        ("PKCS#8 PEM", PKCS8_PEM),
        ("PKCS#1 PEM", PKCS1_PEM),
        ("PKCS#8 DER", PKCS8_DER),
        ("PKCS#1 DER", PKCS1_DER),
        ("PKCS#8 base64", STANDARD.encode(PKCS8_DER).as_bytes()),
        ("PKCS#1 base64", STANDARD.encode(PKCS1_DER).as_bytes()),
        (
            "base64 and a line end",
            format!("{}\r\n", STANDARD.encode(PKCS1_DER)).as_bytes(),
        ),
        (
            "base64 unpadded",
            STANDARD.encode(PKCS1_DER).trim_end_matches('=').as_bytes(),
        ),
        ("CRLF", &with_crlf(PKCS1_PEM)),
        ("indented", &indented),
        ("one line", &one_line),
        ("no last line end", PKCS8_PEM.trim_ascii_end()),
        (
            "text before",
            include_bytes!("../../../tests/data/keys/rsa2048.text.pem"),
        ),
        (
            "8-bit text around",
            &[b"cl\xe9 de test\n", PKCS8_PEM, b"\xff\n"].concat(),
        ),
        ("certificate before", &[CERTIFICATE_PEM, PKCS8_PEM].concat()),
        ("the first of two", &[PKCS8_PEM, ED25519_PEM].concat()),
    ] {
        let key = PrivateKey::from_octets(octets).unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!((key.key_type(), key.bits()), (KeyType::Rsa, 2048), "{form}");
        let Secret::Rsa { der, public } = key.secret() else {
            panic!("{form}")
        };
        assert_eq!(&der[..], PKCS1_DER, "{form}");
        assert_eq!(
            public.to_record(),
            include_bytes!("../../../tests/data/keys/rsa2048.record"),
            "{form}"
        );
    }
}

#[test]
fn every_form_of_an_ed25519_key_is_the_same_key() {
    for (form, octets, brings_public) in [
        ("PEM", ED25519_PEM, false),
        ("CRLF", &with_crlf(ED25519_PEM), false),
        ("DER", ED25519_DER, false),
        (
            "base64 of DER",
            STANDARD.encode(ED25519_DER).as_bytes(),
            false,
        ),
        ("version 2 DER", ED25519_V2_DER, true),
        ("version 2 PEM", &pem("PRIVATE KEY", ED25519_V2_DER), true),
        ("seed", seed(), false),
        ("seed in base64", STANDARD.encode(seed()).as_bytes(), false),
        (
            "seed in base64 and LF",
            format!("{}\n", STANDARD.encode(seed())).as_bytes(),
            false,
        ),
        (
            "seed in base64 and CRLF",
            format!("{}\r\n", STANDARD.encode(seed())).as_bytes(),
            false,
        ),
    ] {
        let key = PrivateKey::from_octets(octets).unwrap_or_else(|error| panic!("{form}: {error}"));
        assert_eq!(
            (key.key_type(), key.bits()),
            (KeyType::Ed25519, 256),
            "{form}"
        );
        let Secret::Ed25519 {
            seed: found,
            public,
        } = key.secret()
        else {
            panic!("{form}")
        };
        assert_eq!(&found[..], seed(), "{form}");
        assert_eq!(
            public.as_ref(),
            brings_public.then_some(ED25519_PUBLIC),
            "{form}"
        );
    }
}

#[test]
fn pkcs8_is_written_as_openssl_writes_it() {
    for (octets, written) in [
        (PKCS1_DER, PKCS8_PEM),
        (ED25519_V2_DER, ED25519_PEM),
        (seed(), ED25519_PEM),
    ] {
        let key = PrivateKey::from_octets(octets).unwrap();
        assert_eq!(key.to_pkcs8_pem().as_bytes(), written);
    }
}

#[test]
fn forms_that_cannot_sign_are_named() {
    let mismatch = |label, found: Form| PrivateKeyError::LabelMismatch {
        label,
        found: found.name(),
    };
    for (octets, error) in [
        (
            &include_bytes!("../../../tests/data/keys/encrypted.pem")[..],
            PrivateKeyError::Encrypted,
        ),
        (
            include_bytes!("../../../tests/data/keys/encrypted.der"),
            PrivateKeyError::Encrypted,
        ),
        (
            include_bytes!("../../../tests/data/keys/encrypted.pkcs1.pem"),
            PrivateKeyError::Encrypted,
        ),
        (
            &[CERTIFICATE_PEM, ENCRYPTED_PEM].concat(),
            PrivateKeyError::Encrypted,
        ),
        (
            include_bytes!("../../../tests/data/keys/public.pem"),
            PrivateKeyError::Public,
        ),
        (
            include_bytes!("../../../tests/data/keys/public.bare.pem"),
            PrivateKeyError::Public,
        ),
        (
            include_bytes!("../../../tests/data/keys/rsa2048.record"),
            PrivateKeyError::Public,
        ),
        (
            include_bytes!("../../../tests/data/keys/rsa2048.bare.record"),
            PrivateKeyError::Public,
        ),
        (
            include_bytes!("../../../tests/data/keys/ed25519.spki"),
            PrivateKeyError::Public,
        ),
        (CERTIFICATE_PEM, PrivateKeyError::Certificate),
        (
            include_bytes!("../../../tests/data/keys/certificate.der"),
            PrivateKeyError::Certificate,
        ),
        (
            include_bytes!("../../../tests/data/keys/request.pem"),
            PrivateKeyError::Certificate,
        ),
        (
            include_bytes!("../../../tests/data/keys/ec.pem"),
            PrivateKeyError::EllipticCurve,
        ),
        (
            include_bytes!("../../../tests/data/keys/ec.sec1.pem"),
            PrivateKeyError::EllipticCurve,
        ),
        (
            include_bytes!("../../../tests/data/keys/ec.sec1.der"),
            PrivateKeyError::EllipticCurve,
        ),
        (
            include_bytes!("../../../tests/data/keys/openssh.pem"),
            PrivateKeyError::OpenSsh,
        ),
        (
            include_bytes!("../../../tests/data/keys/store.p12"),
            PrivateKeyError::Pkcs12,
        ),
        (
            include_bytes!("../../../tests/data/keys/rsa-pss.pem"),
            PrivateKeyError::RsaPss,
        ),
        (
            include_bytes!("../../../tests/data/keys/three-primes.pem"),
            PrivateKeyError::MultiPrime,
        ),
        (
            include_bytes!("../../../tests/data/keys/ed448.pem"),
            PrivateKeyError::OtherAlgorithm {
                oid: "1.3.101.113".to_owned(),
            },
        ),
        (
            &pem("DSA PRIVATE KEY", b"x"),
            PrivateKeyError::OtherLabel {
                label: "DSA PRIVATE KEY".to_owned(),
            },
        ),
        (
            &pem("RSA PRIVATE KEY", PKCS8_DER),
            mismatch("RSA PRIVATE KEY", Form::Pkcs8),
        ),
        (
            &pem("PRIVATE KEY", PKCS1_DER),
            mismatch("PRIVATE KEY", Form::Pkcs1),
        ),
        (
            &pem(
                "PRIVATE KEY",
                include_bytes!("../../../tests/data/keys/rsa2048.record"),
            ),
            mismatch("PRIVATE KEY", Form::Public),
        ),
    ] {
        assert_eq!(
            PrivateKey::from_octets(octets).unwrap_err(),
            error,
            "{}",
            String::from_utf8_lossy(octets)
        );
    }
}

#[test]
fn octets_that_are_no_key_are_told_from_damaged_keys() {
    let not_base64 =
        String::from_utf8(PKCS8_PEM.to_vec())
            .unwrap()
            .replacen('\n', "\nab\ncd\\n", 1);
    let no_end = &PKCS8_PEM[..PKCS8_PEM.len() - 12];
    let cut_base64 = STANDARD.encode(PKCS1_DER);
    let label = "PRIVATE KEY".to_owned();
    let cut = |der: &[u8]| PrivateKeyError::Truncated {
        missing: der.len() as u32 - 300,
    };
    for (octets, error) in [
        (&b""[..], PrivateKeyError::Empty),
        (b" \r\n\t\n", PrivateKeyError::Empty),
        (
            &vec![b'A'; MAX_KEY_OCTETS + 1],
            PrivateKeyError::TooLong {
                found: MAX_KEY_OCTETS + 1,
            },
        ),
        (b"Subject: not a key\n", PrivateKeyError::NotAKey),
        (
            b"this sentence has 32 characters!",
            PrivateKeyError::NotAKey,
        ),
        (b"thisisnokey=", PrivateKeyError::NotAKey),
        (b"\xff\xfe-\0-\0", PrivateKeyError::NotAKey),
        (&[seed(), b"\n"].concat(), PrivateKeyError::NotAKey),
        (
            STANDARD
                .encode([seed(), ED25519_PUBLIC].concat())
                .as_bytes(),
            PrivateKeyError::NotAKey,
        ),
        (
            b"-----BEGIN PRIVATE KEY",
            PrivateKeyError::BadLabel { line: 1 },
        ),
        (
            b"\n\n-----BEGIN \xff-----",
            PrivateKeyError::BadLabel { line: 3 },
        ),
        (
            no_end,
            PrivateKeyError::NoEnd {
                label: label.clone(),
                line: 1,
            },
        ),
        (
            &pem("PRIVATE KEY", b"")[..29],
            PrivateKeyError::NoEnd { label, line: 1 },
        ),
        (&pem("PRIVATE KEY", b""), PrivateKeyError::NotAKey),
        (
            not_base64.as_bytes(),
            PrivateKeyError::BadBase64 { line: 3 },
        ),
        (&cut_base64.as_bytes()[..401], PrivateKeyError::CutBase64),
        (&cut_base64.as_bytes()[..400], cut(PKCS1_DER)),
        (&pem("RSA PRIVATE KEY", &PKCS1_DER[..300]), cut(PKCS1_DER)),
        (&PKCS8_DER[..300], cut(PKCS8_DER)),
        (
            &[PKCS8_DER, b"\n"].concat(),
            PrivateKeyError::Trailing { extra: 1 },
        ),
        (
            &[&ED25519_DER[..15], b"\x1f", seed()].concat(),
            PrivateKeyError::Damaged,
        ),
    ] {
        assert_eq!(
            PrivateKey::from_octets(octets).unwrap_err(),
            error,
            "{}",
            String::from_utf8_lossy(octets)
        );
    }
}

#[test]
fn impossible_numbers_are_refused_when_read() {
    let mut even = PKCS1_DER.to_vec();
    // The last octet of the modulus: header 4, version 3, header 4, a zero, 256 octets.
    even[4 + 3 + 4 + 256] &= 0xfe;
    let error = PrivateKey::from_octets(&even).unwrap_err();
    assert_eq!(error, PrivateKeyError::Numbers(PublicKeyError::ModulusEven));
}

#[test]
fn debug_shows_no_secret() {
    let key = PrivateKey::from_octets(seed()).unwrap();
    assert_eq!(
        format!("{key:?}"),
        "PrivateKey { key_type: Ed25519, bits: 256, .. }"
    );
}

#[test]
fn many_begin_lines_cost_little() {
    let octets = b"-----BEGIN X-----\n-----END X-----\n".repeat(MAX_KEY_OCTETS / 34);
    let error = PrivateKeyError::OtherLabel {
        label: "X".to_owned(),
    };
    assert_eq!(PrivateKey::from_octets(&octets).unwrap_err(), error);
}

proptest! {
    #[test]
    fn no_octets_cause_a_panic(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = PrivateKey::from_octets(&octets);
    }

    #[test]
    fn no_change_of_a_key_causes_a_panic(at in 0..PKCS8_DER.len(), octet: u8) {
        let mut changed = PKCS8_DER.to_vec();
        changed[at] = octet;
        let _ = PrivateKey::from_octets(&changed);
    }

    #[test]
    fn cut_keys_are_refused(at in 0..PKCS8_DER.len()) {
        // Whatever octets are 32 may be a seed.
        prop_assume!(at != 32);
        prop_assert!(PrivateKey::from_octets(&PKCS8_DER[..at]).is_err());
        prop_assert!(PrivateKey::from_octets(&PKCS8_PEM[..at]).is_err());
    }
}
