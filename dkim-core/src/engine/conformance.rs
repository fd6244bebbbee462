//! What every engine must do alike: one suite, run here over the engines built in, and by crates that bring another
//! (turn on the feature `conformance` in their dev-dependencies and call [`conformance`] from a test).
//!
//! Right signatures are OpenSSL's, forged ones were computed, both by `tests/data/keys/make.py`; none is an engine's
//! own output. Keys that no engine ever sees, because reading them fails, are tested where they are read.
//!
//! All of it is test code, which panics when a rule is broken and when a vector of its own cannot be read.

use super::{BadSignature, Completion, Engine, KeyType, PrivateKey, PublicKey, VerifyingKey};
use std::sync::mpsc;
use std::time::Duration;

/// Runs the whole suite over `engine`.
///
/// # Panics
/// At the first rule broken, with the rule and the engine's name.
pub fn conformance(engine: &dyn Engine) {
    signing_conformance(engine);
    verifying_conformance(engine);
}

/// Runs the rules for signing, for an engine that cannot check signatures.
///
/// # Panics
/// At the first rule broken, with the rule and the engine's name.
pub fn signing_conformance(engine: &dyn Engine) {
    signatures_are_openssls(engine);
    short_rsa_keys_do_not_sign(engine);
    damaged_keys_do_not_sign(engine);
    seeds_have_the_public_half_of_rfc_8032(engine);
    one_key_signs_for_many_threads(engine);
    a_submission_ends_once_and_as_signing_does(engine);
}

/// Runs the rules for checking signatures.
///
/// # Panics
/// At the first rule broken, with the rule and the engine's name.
pub fn verifying_conformance(engine: &dyn Engine) {
    openssls_signatures_verify(engine);
    rfc_8463_example_verifies(engine);
    altered_signatures_do_not_verify(engine);
    other_octets_and_other_keys_do_not_verify(engine);
    forged_rsa_encodings_do_not_verify(engine);
    forged_ed25519_signatures_do_not_verify(engine);
    rsa_keys_too_short_or_too_long_do_not_verify(engine);
    octets_that_are_no_point_never_verify(engine);
}

fn signatures_are_openssls(engine: &dyn Engine) {
    let name = engine.name();
    for vector in VECTORS {
        let key = match engine.signing_key(&vector.private()) {
            Ok(key) => key,
            // RFC 8301 section 3.2 lets a signer stay with 2048 bits and more.
            Err(_) if vector.bits < 2048 && vector.key_type == KeyType::Rsa => continue,
            Err(error) => panic!("{name} signs with {}: {error}", vector.name),
        };
        assert_eq!(
            key.key_type(),
            vector.key_type,
            "{name} knows the type of {}",
            vector.name
        );
        assert_eq!(
            key.public_key(),
            &vector.public(),
            "{name} knows the public half of {}",
            vector.name
        );
        assert_eq!(
            key.public_key().bits(),
            vector.bits,
            "{name} knows the length of {}",
            vector.name
        );
        for (octets, signature) in vector.signatures {
            assert_eq!(
                &key.sign(octets).unwrap(),
                signature,
                "{name} signs as OpenSSL does with {}",
                vector.name
            );
        }
    }
}

fn short_rsa_keys_do_not_sign(engine: &dyn Engine) {
    let key = PrivateKey::from_octets(RSA_768).unwrap();
    let error = engine
        .signing_key(&key)
        .expect_err("768 bits must not sign")
        .to_string();
    assert!(
        error.contains("768"),
        "{} says how short the key is: {error}",
        engine.name()
    );
}

fn damaged_keys_do_not_sign(engine: &dyn Engine) {
    for damaged in [RSA_DAMAGED, ED25519_MISMATCH] {
        let key = PrivateKey::from_octets(damaged).unwrap();
        assert!(
            engine.signing_key(&key).is_err(),
            "{} refuses halves that do not fit: {key:?}",
            engine.name()
        );
    }
}

fn seeds_have_the_public_half_of_rfc_8032(engine: &dyn Engine) {
    // Section 7.1, tests 1 to 3.
    for (seed, public) in [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ),
    ] {
        let key = engine
            .signing_key(&PrivateKey::from_octets(&hex(seed)).unwrap())
            .unwrap();
        assert_eq!(
            key.public_key().to_record(),
            hex(public),
            "{} derives the public half",
            engine.name()
        );
    }
}

/// The contract of [`SigningKey::submit`](super::SigningKey::submit), whoever overrides it.
fn a_submission_ends_once_and_as_signing_does(engine: &dyn Engine) {
    for vector in VECTORS
        .iter()
        .filter(|v| ["rsa2048", "ed25519"].contains(&v.name))
    {
        let key = engine.signing_key(&vector.private()).unwrap();
        let (octets, signature) = vector.signatures[0];
        let (sender, receiver) = mpsc::channel();
        let completion = Completion::new(move |result| sender.send(result).unwrap());
        key.submit(octets.to_vec(), Duration::from_secs(20), completion);
        // The sender goes with the completion, so that this waits for its end and sees whatever came.
        let ends: Vec<_> = receiver.iter().collect();
        assert_eq!(
            ends,
            [Ok(signature.to_vec())],
            "{} completes a submission to {} once",
            engine.name(),
            vector.name
        );
    }
}

fn one_key_signs_for_many_threads(engine: &dyn Engine) {
    for vector in VECTORS
        .iter()
        .filter(|v| ["rsa2048", "ed25519"].contains(&v.name))
    {
        let key = engine.signing_key(&vector.private()).unwrap();
        let (octets, signature) = vector.signatures[0];
        let sign = || (0..2).all(|_| key.sign(octets).as_deref() == Ok(signature));
        let all_right = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(sign));
            threads.into_iter().all(|thread| thread.join().unwrap())
        });
        assert!(all_right, "{} signs alike in all threads", engine.name());
    }
}

fn openssls_signatures_verify(engine: &dyn Engine) {
    for vector in VECTORS {
        let key = verifying_key(engine, &vector.public());
        for (octets, signature) in vector.signatures {
            assert_eq!(
                key.verify(octets, signature),
                Ok(()),
                "{} checks with {}",
                engine.name(),
                vector.name
            );
        }
    }
    let longest = PublicKey::from_record(KeyType::Rsa, RSA_8192_RECORD).unwrap();
    let verified = verifying_key(engine, &longest).verify(OCTETS, RSA_8192_SIGNATURE);
    assert_eq!(verified, Ok(()), "{} checks with 8192 bits", engine.name());
}

/// The header hash's input of RFC 8463 appendix A.3, canonicalized by hand.
fn rfc_8463_example_verifies(engine: &dyn Engine) {
    let message = "from:Joe SixPack <joe@football.example.com>\r\n\
        to:Suzie Q <suzie@shopping.example.net>\r\n\
        subject:Is dinner ready?\r\n\
        date:Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r\n\
        message-id:<20030712040037.46341.5F8J@football.example.com>\r\n";
    let rest = "t=1528637909; h=from : to : subject : date : message-id : from : subject : date; \
        bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=; b=";
    for (key_type, algorithm, selector, public, signature) in [
        (
            KeyType::Ed25519,
            "ed25519-sha256",
            "brisbane",
            "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
            "/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11BusFa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==",
        ),
        (
            KeyType::Rsa,
            "rsa-sha256",
            "test",
            "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQiY/J16JYi0Qvx/byY\
             zCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w\
             3QIDAQAB",
            "F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGs\
             geefOsk2JzdA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=",
        ),
    ] {
        let octets = format!(
            "{message}dkim-signature:v=1; a={algorithm}; c=relaxed/relaxed; d=football.example.com; \
             i=@football.example.com; q=dns/txt; s={selector}; {rest}"
        );
        let key = verifying_key(
            engine,
            &PublicKey::from_record(key_type, &base64(public)).unwrap(),
        );
        assert_eq!(
            key.verify(octets.as_bytes(), &base64(signature)),
            Ok(()),
            "{} checks RFC 8463's {algorithm}",
            engine.name()
        );
    }
}

fn altered_signatures_do_not_verify(engine: &dyn Engine) {
    for vector in VECTORS {
        let key = verifying_key(engine, &vector.public());
        let (octets, good) = vector.signatures[0];
        let end = good.len() - 1;
        let flipped = |at: usize, bit: u8| {
            let mut bad = good.to_vec();
            bad[at] ^= bit;
            bad
        };
        for (alteration, bad) in [
            ("first bit flipped", flipped(0, 0x80)),
            ("a bit in the middle flipped", flipped(end / 2, 1)),
            ("last bit flipped", flipped(end, 1)),
            ("topmost bit of the last octet flipped", flipped(end, 0x80)),
            ("empty", vec![]),
            ("one octet", vec![good[0]]),
            ("last octet gone", good[..end].to_vec()),
            ("first octet gone", good[1..].to_vec()),
            ("an octet more", [good, &[0]].concat()),
            ("a zero before", [&[0], good].concat()),
            ("all zero", vec![0; good.len()]),
            ("all ones", vec![0xff; good.len()]),
            ("one", [&vec![0; end][..], &[1]].concat()),
            ("as long as a mail", vec![0x5a; 1 << 20]),
        ] {
            refuses(
                engine,
                &*key,
                octets,
                &bad,
                &format!("{} signature: {alteration}", vector.name),
            );
        }
    }
}

fn other_octets_and_other_keys_do_not_verify(engine: &dyn Engine) {
    for vector in VECTORS {
        let key = verifying_key(engine, &vector.public());
        let (octets, signature) = vector.signatures[0];
        let mut other = octets.to_vec();
        other.push(b' ');
        refuses(
            engine,
            &*key,
            &other,
            signature,
            "one octet more was signed",
        );
        refuses(
            engine,
            &*key,
            &octets[1..],
            signature,
            "one octet less was signed",
        );
        refuses(engine, &*key, b"", signature, "nothing was signed");
        for stranger in VECTORS.iter().filter(|v| v.name != vector.name) {
            refuses(
                engine,
                &*key,
                octets,
                stranger.signatures[0].1,
                "the signature is another key's",
            );
        }
    }
    let other = PublicKey::from_record(KeyType::Ed25519, ED25519_OTHER).unwrap();
    refuses(
        engine,
        &*verifying_key(engine, &other),
        OCTETS,
        ED25519_SIGNATURE,
        "the key is another",
    );
}

fn forged_rsa_encodings_do_not_verify(engine: &dyn Engine) {
    for (record, forgeries) in [
        (RSA_2048, FORGED_2048),
        (RSA_E3, FORGED_E3),
        (RSA_2050, FORGED_2050),
    ] {
        let key = verifying_key(
            engine,
            &PublicKey::from_record(KeyType::Rsa, record).unwrap(),
        );
        for (forgery, signature) in forgeries {
            refuses(engine, &*key, OCTETS, signature, forgery);
        }
    }
}

fn forged_ed25519_signatures_do_not_verify(engine: &dyn Engine) {
    let key = verifying_key(
        engine,
        &PublicKey::from_record(KeyType::Ed25519, ED25519).unwrap(),
    );
    for (forgery, signature) in FORGED_ED25519 {
        refuses(engine, &*key, OCTETS, signature, forgery);
    }
    // Only the key's owner can make this one, and by RFC 8032 section 5.1.7 it is right: no engine is to differ.
    assert_eq!(
        key.verify(OCTETS, ED25519_NEUTRAL_R),
        Ok(()),
        "{} takes the neutral point as R",
        engine.name()
    );
}

fn rsa_keys_too_short_or_too_long_do_not_verify(engine: &dyn Engine) {
    let short = PublicKey::from_record(KeyType::Rsa, RSA_768_RECORD).unwrap();
    let long = PublicKey::from_rsa_numbers(&[0xff; 1025], &[3]).unwrap();
    for (key, bits) in [(short, "768"), (long, "8200")] {
        let error = engine.verifying_key(&key).expect_err(bits).to_string();
        assert!(
            error.contains(bits),
            "{} says how long the key is: {error}",
            engine.name()
        );
    }
}

/// An engine may find it out when it takes the key or when it checks.
fn octets_that_are_no_point_never_verify(engine: &dyn Engine) {
    // No x belongs to y = 2.
    let mut octets = [0; 32];
    octets[0] = 2;
    let key = PublicKey::from_record(KeyType::Ed25519, &octets).unwrap();
    if let Ok(key) = engine.verifying_key(&key) {
        refuses(
            engine,
            &*key,
            OCTETS,
            ED25519_SIGNATURE,
            "the key is no point",
        );
    }
}

fn verifying_key(engine: &dyn Engine, key: &PublicKey) -> Box<dyn VerifyingKey> {
    match engine.verifying_key(key) {
        Ok(key) => key,
        Err(error) => panic!("{} takes {key:?}: {error}", engine.name()),
    }
}

fn refuses(
    engine: &dyn Engine,
    key: &dyn VerifyingKey,
    octets: &[u8],
    signature: &[u8],
    because: &str,
) {
    assert_eq!(
        key.verify(octets, signature),
        Err(BadSignature),
        "{} refuses: {because}",
        engine.name()
    );
}

fn hex(digits: &str) -> Vec<u8> {
    let digit = |d: u8| (d as char).to_digit(16).unwrap() as u8;
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}

/// A key with signatures OpenSSL made by it.
struct Vector {
    name: &'static str,
    key_type: KeyType,
    bits: u32,
    private: &'static [u8],
    record: &'static [u8],
    /// Octets and their signature.
    signatures: &'static [(&'static [u8], &'static [u8])],
}

impl Vector {
    fn private(&self) -> PrivateKey {
        PrivateKey::from_octets(self.private).unwrap()
    }

    fn public(&self) -> PublicKey {
        PublicKey::from_record(self.key_type, self.record).unwrap()
    }
}

/// Lengths in use, one whose modulus does not fill its octets, and the smallest exponent.
const VECTORS: &[Vector] = &[
    Vector {
        name: "rsa1024",
        key_type: KeyType::Rsa,
        bits: 1024,
        private: include_bytes!("../../tests/data/keys/rsa1024.pem"),
        record: include_bytes!("../../tests/data/keys/rsa1024.record"),
        signatures: &[(OCTETS, include_bytes!("../../tests/data/keys/rsa1024.sig"))],
    },
    Vector {
        name: "rsa2048",
        key_type: KeyType::Rsa,
        bits: 2048,
        private: include_bytes!("../../tests/data/keys/rsa2048.pem"),
        record: RSA_2048,
        signatures: &[
            (OCTETS, include_bytes!("../../tests/data/keys/rsa2048.sig")),
            (
                b"",
                include_bytes!("../../tests/data/keys/rsa2048-empty.sig"),
            ),
        ],
    },
    Vector {
        name: "rsa2050",
        key_type: KeyType::Rsa,
        bits: 2050,
        private: include_bytes!("../../tests/data/keys/rsa2050.pem"),
        record: RSA_2050,
        signatures: &[(OCTETS, include_bytes!("../../tests/data/keys/rsa2050.sig"))],
    },
    Vector {
        name: "rsa2048-e3",
        key_type: KeyType::Rsa,
        bits: 2048,
        private: include_bytes!("../../tests/data/keys/rsa2048-e3.pem"),
        record: RSA_E3,
        signatures: &[(
            OCTETS,
            include_bytes!("../../tests/data/keys/rsa2048-e3.sig"),
        )],
    },
    Vector {
        name: "rsa3072",
        key_type: KeyType::Rsa,
        bits: 3072,
        private: include_bytes!("../../tests/data/keys/rsa3072.pem"),
        record: include_bytes!("../../tests/data/keys/rsa3072.record"),
        signatures: &[(OCTETS, include_bytes!("../../tests/data/keys/rsa3072.sig"))],
    },
    Vector {
        name: "rsa4096",
        key_type: KeyType::Rsa,
        bits: 4096,
        private: include_bytes!("../../tests/data/keys/rsa4096.pem"),
        record: include_bytes!("../../tests/data/keys/rsa4096.record"),
        signatures: &[(OCTETS, include_bytes!("../../tests/data/keys/rsa4096.sig"))],
    },
    Vector {
        name: "ed25519",
        key_type: KeyType::Ed25519,
        bits: 256,
        private: include_bytes!("../../tests/data/keys/ed25519.pem"),
        record: ED25519,
        signatures: &[
            (OCTETS, ED25519_SIGNATURE),
            (
                b"",
                include_bytes!("../../tests/data/keys/ed25519-empty.sig"),
            ),
        ],
    },
];

/// What is signed: folds, 8-bit octets, a NUL, a bare LF.
const OCTETS: &[u8] = include_bytes!("../../tests/data/keys/octets");

const RSA_768: &[u8] = include_bytes!("../../tests/data/keys/rsa768.pem");
const RSA_768_RECORD: &[u8] = include_bytes!("../../tests/data/keys/rsa768.record");
const RSA_8192_RECORD: &[u8] = include_bytes!("../../tests/data/keys/rsa8192.record");
const RSA_8192_SIGNATURE: &[u8] = include_bytes!("../../tests/data/keys/rsa8192.sig");
const RSA_2048: &[u8] = include_bytes!("../../tests/data/keys/rsa2048.record");
const RSA_2050: &[u8] = include_bytes!("../../tests/data/keys/rsa2050.record");
const RSA_E3: &[u8] = include_bytes!("../../tests/data/keys/rsa2048-e3.record");
const RSA_DAMAGED: &[u8] = include_bytes!("../../tests/data/keys/rsa2048.damaged.der");
const ED25519: &[u8] = include_bytes!("../../tests/data/keys/ed25519.record");
const ED25519_OTHER: &[u8] = include_bytes!("../../tests/data/keys/ed25519-other.record");
const ED25519_MISMATCH: &[u8] = include_bytes!("../../tests/data/keys/ed25519.v2-mismatch.der");
const ED25519_SIGNATURE: &[u8] = include_bytes!("../../tests/data/keys/ed25519.sig");
const ED25519_NEUTRAL_R: &[u8] = include_bytes!("../../tests/data/keys/ed25519-neutral-r.sig");

/// Each a name and a signature over [`OCTETS`].
type Forgeries = &'static [(&'static str, &'static [u8])];

/// RFC 8017 section 8.2.2 compares the whole encoded message, and these differ from it in one thing each.
const FORGED_2048: Forgeries = &[
    (
        "DigestInfo without NULL",
        include_bytes!("../../tests/data/keys/forged-no-null.sig"),
    ),
    (
        "SHA-1",
        include_bytes!("../../tests/data/keys/forged-sha1.sig"),
    ),
    (
        "DigestInfo names SHA-512",
        include_bytes!("../../tests/data/keys/forged-sha512-name.sig"),
    ),
    (
        "no DigestInfo",
        include_bytes!("../../tests/data/keys/forged-bare-hash.sig"),
    ),
    (
        "lengths in long form",
        include_bytes!("../../tests/data/keys/forged-long-lengths.sig"),
    ),
    (
        "octets in the parameters",
        include_bytes!("../../tests/data/keys/forged-octets-in-parameters.sig"),
    ),
    (
        "hash cut by an octet",
        include_bytes!("../../tests/data/keys/forged-hash-cut.sig"),
    ),
    (
        "garbage behind the hash",
        include_bytes!("../../tests/data/keys/forged-garbage-behind.sig"),
    ),
    (
        "garbage in the padding",
        include_bytes!("../../tests/data/keys/forged-garbage-in-padding.sig"),
    ),
    (
        "padding ends early",
        include_bytes!("../../tests/data/keys/forged-padding-ends-early.sig"),
    ),
    (
        "padding of kind 2",
        include_bytes!("../../tests/data/keys/forged-kind-2.sig"),
    ),
    (
        "padding of kind 0",
        include_bytes!("../../tests/data/keys/forged-kind-0.sig"),
    ),
    (
        "another hash",
        include_bytes!("../../tests/data/keys/forged-wrong-hash.sig"),
    ),
];

/// Made without the private key.
const FORGED_E3: Forgeries = &[
    (
        "cube root, garbage behind",
        include_bytes!("../../tests/data/keys/forged-cube-root.sig"),
    ),
    (
        "cube root, garbage before",
        include_bytes!("../../tests/data/keys/forged-cube-tail.sig"),
    ),
];

const FORGED_2050: Forgeries = &[(
    "signature plus modulus",
    include_bytes!("../../tests/data/keys/forged-plus-modulus.sig"),
)];

const FORGED_ED25519: Forgeries = &[
    (
        "S plus the order",
        include_bytes!("../../tests/data/keys/forged-ed25519-s-plus-order.sig"),
    ),
    (
        "R not canonical",
        include_bytes!("../../tests/data/keys/forged-ed25519-r-not-canonical.sig"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engines;
    use proptest::prelude::*;

    #[test]
    fn every_engine_conforms() {
        assert!(!engines().is_empty());
        for engine in engines() {
            conformance(*engine);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn what_one_engine_signs_every_other_verifies(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
            for vector in VECTORS.iter().filter(|v| ["rsa2048", "ed25519"].contains(&v.name)) {
                for signing in engines() {
                    let key = signing.signing_key(&vector.private()).unwrap();
                    let signature = key.sign(&octets).unwrap();
                    for verifying in engines() {
                        let key = verifying_key(*verifying, key.public_key());
                        prop_assert_eq!(key.verify(&octets, &signature), Ok(()));
                    }
                }
            }
        }
    }
}
