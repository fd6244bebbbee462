//! Body hashes that are made elsewhere: signer and verifier say what they would have said with their own.

use crate::support::*;
use dkim_core::body_digest::{BodyHash, BodyStreams, NoBodyHash, ToDigest};
use dkim_core::canonicalization::Canonicalization;
use dkim_core::engine::{KeyType, SigningKey, engine_by_name};
use dkim_core::key_record::KeyAnswer;
use dkim_core::signer::{BodyLength, SignRequest, Signer};
use dkim_core::verifier::{Reason, Verdict, Verifier, VerifierConfig};
use sha2::{Digest, Sha256};
use std::sync::Arc;

const HEADER: &[u8] = b"From: ann@example.com\r\nSubject: Lunch\r\n\r\n";
const BODY: &[u8] = b"Soup  at noon. \r\n\r\nAnn\r\n\r\n\r\n";

fn requests() -> Vec<SignRequest> {
    let canonicalizations = ["relaxed/relaxed", "relaxed/simple", "simple/relaxed"];
    let lengths = [
        BodyLength::Unlimited,
        BodyLength::Whole,
        BodyLength::AtMost(7),
    ];
    let requests = canonicalizations.iter().zip(lengths);
    let requests = requests.map(|(canonicalization, body_length)| SignRequest {
        canonicalization: Canonicalization::parse(canonicalization.as_bytes()).unwrap(),
        body_length,
        timestamp: Some(1_700_000_000),
        ..SignRequest::new("example.com", "ed", KeyType::Ed25519)
    });
    requests.collect()
}

/// The hashes of `body`, made by the way of streams.
fn elsewhere(wanted: &[ToDigest], body: &[u8]) -> Vec<BodyHash> {
    let mut made = vec![Sha256::new(); wanted.len()];
    let mut streams = BodyStreams::new(wanted);
    let mut sink = |place: usize, octets: &[u8]| made[place].update(octets);
    body.chunks(5)
        .for_each(|chunk| streams.update(chunk, &mut sink));
    let counts = streams.finish(&mut sink);
    let hashes = made.into_iter().zip(counts);
    let hashes = hashes.map(|(hash, body_octets)| BodyHash {
        digest: hash.finalize().into(),
        body_octets,
    });
    hashes.collect()
}

fn key() -> Box<dyn SigningKey> {
    signing_key(key_file!("ed25519.pem"))
}

fn signed() -> Vec<u8> {
    let key = key();
    let keys = [&*key; 3];
    sign(&[HEADER, BODY].concat(), requests(), &keys, 1000)
}

fn verdicts(message: &[u8], lose: Option<usize>) -> Vec<Verdict> {
    let (header, body) = read(message, 1000);
    let config = VerifierConfig {
        accept_unsigned_octets: true,
        ..VerifierConfig::default()
    };
    let mut verifier = Verifier::new(&header, &config, None);
    verifier.answer(0, Arc::new(KeyAnswer::from_txt(&[ed25519_record()])));
    let wanted = verifier.to_digest();
    let hashes = elsewhere(&wanted, &body).into_iter().enumerate();
    let hashes: Vec<_> = hashes
        .map(|(place, hash)| match lose == Some(place) {
            true => Err(NoBodyHash::Unavailable("the token is away".to_owned())),
            false => Ok(hash),
        })
        .collect();
    for check in verifier.to_check_with(&header, &hashes) {
        verifier.checked(&check, check.run(engine_by_name("rustcrypto").unwrap()));
    }
    verifier.verdicts(&header)
}

#[test]
fn a_signer_writes_the_same_fields_with_hashes_from_elsewhere() {
    let (header, body) = read(&[HEADER, BODY].concat(), 1000);
    let key = key();
    let mut signer = Signer::new(&header, requests()).unwrap();
    let hashes = elsewhere(&signer.to_digest(), &body);
    let pieces = signer.to_sign_with(&header, &hashes);
    let mut ours = Vec::new();
    for piece in pieces {
        let signature = key.sign(&piece.octets).unwrap();
        let value = signer.field_value(piece.request, &signature).unwrap();
        ours.extend_from_slice(format!("DKIM-Signature:{value}\r\n").as_bytes());
    }
    ours.extend_from_slice(&[HEADER, BODY].concat());
    assert_eq!(ours, signed());
}

#[test]
fn a_signer_leaves_out_what_it_has_no_hash_for() {
    let (header, body) = read(&[HEADER, BODY].concat(), 1000);
    let mut signer = Signer::new(&header, requests()).unwrap();
    let wanted = signer.to_digest();
    let hashes = elsewhere(&wanted, &body);
    let pieces = signer.to_sign_with(&header, &hashes[..1]);
    let places: Vec<usize> = pieces.iter().map(|piece| piece.request).collect();
    // Which hash is first is for the signer to say.
    let forms = requests().into_iter().map(|r| r.canonicalization.body);
    let place = forms
        .collect::<Vec<_>>()
        .iter()
        .position(|form| *form == wanted[0].algorithm);
    assert_eq!(places, [place.unwrap()]);
}

#[test]
fn a_verifier_judges_by_hashes_from_elsewhere_and_says_of_which_there_is_none() {
    let message = signed();
    let words = |verdicts: &[Verdict]| -> Vec<String> {
        let words = verdicts.iter();
        words
            .map(|verdict| format!("{}: {}", verdict.result.as_str(), verdict.reason))
            .collect()
    };
    let good = verdicts(&message, None);
    let setting = Setting {
        config: VerifierConfig {
            accept_unsigned_octets: true,
            ..VerifierConfig::default()
        },
        ..Setting::new(&|_| KeyAnswer::from_txt(&[ed25519_record()]))
    };
    assert_eq!(good, setting.verdicts(&message));
    assert_eq!(setting.words(&message), ["pass"; 3]);
    let changed = [&message[..], b"more\r\n"].concat();
    assert_eq!(verdicts(&changed, None), setting.verdicts(&changed));
    assert_eq!(verdicts(&changed, None)[0].reason, Reason::BodyHash);
    let lost = verdicts(&message, Some(0));
    // One of the three, whichever hash is first.
    let mut lost = words(&lost);
    lost.sort();
    let missing = "temperror: body hash cannot be computed now: the token is away";
    assert_eq!(lost.iter().filter(|word| *word == missing).count(), 1);
    assert!(
        lost[..2].iter().all(|word| word.starts_with("pass")),
        "{lost:?}"
    );
}
