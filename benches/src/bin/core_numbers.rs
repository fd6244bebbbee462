//! Signing and verifying one message on one core, beside AWS-LC's operations alone, in one run.
//!
//! Rounds of each are interleaved and measured in CPU time of the thread, and the median counts: clocks lie on shared
//! machines, ratios within one run hardly do. Every verdict and signature is checked. Keys and key records are parsed
//! once, as the daemon has them.
#![forbid(unsafe_code)]

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, KeyPair, RsaKeyPair};
use dkim_benches::rounds::{Subject, interleaved};
use dkim_benches::workload::{RSA_2048_DER, RSA_2048_PEM, header, text_body};
use dkim_core::engine::{PrivateKey, SigningKey, engine_by_name};
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use std::sync::Arc;

const ROUNDS: usize = 21;

fn main() {
    let engine = engine_by_name("aws-lc").expect("built with aws-lc");
    let key = PrivateKey::from_octets(RSA_2048_PEM).expect("a test key");
    let key = engine.signing_key(&key).expect("a test key");
    let raw = RsaKeyPair::from_pkcs8(RSA_2048_DER).expect("a test key");
    let answer = Arc::new(KeyAnswer::Records(vec![Ok(KeyRecord::of(
        key.public_key().clone(),
    ))]));
    let random = SystemRandom::new();
    let header = header();
    let octets = [b'x'; 700];
    let mut out = vec![0; raw.public_modulus_len()];
    raw.sign(&signature::RSA_PKCS1_SHA256, &random, &octets, &mut out)
        .expect("a signature");
    let public = signature::ParsedPublicKey::new(
        &signature::RSA_PKCS1_2048_8192_SHA256,
        raw.public_key().as_ref(),
    )
    .expect("a public key");

    println!(
        "RSA-2048, relaxed/relaxed, one core, CPU time, medians of {ROUNDS} interleaved rounds"
    );
    for size in [4096, 65_536, 1_048_576] {
        let body = text_body(size);
        let signed = signed(&header, &body, &*key);
        let repeats = (40_000_000 / (size + 40_000)).max(4);
        let mut raw_out = out.clone();
        let medians = interleaved(
            ROUNDS,
            &mut [
                Subject::new("RSA sign", repeats, || {
                    raw.sign(&signature::RSA_PKCS1_SHA256, &random, &octets, &mut raw_out)
                        .expect("a signature");
                }),
                Subject::new("sign", repeats, || drop(sign(&header, &body, &*key))),
                Subject::new("RSA verify", repeats, || {
                    public.verify_sig(&octets, &out).expect("a good signature")
                }),
                Subject::new("verify", repeats, || {
                    let mut verifier = Verifier::new(&signed, &VerifierConfig::default(), None);
                    verifier.answer(0, answer.clone());
                    verifier.body(&body);
                    let verdicts = verifier.finish(&signed, engine);
                    assert_eq!(verdicts[0].result, ResultWord::Pass);
                }),
                Subject::new("SHA-256", repeats, || {
                    std::hint::black_box(digest::digest(&digest::SHA256, &body));
                }),
            ],
        );
        let [sign_raw, sign, verify_raw, verify, hash] = <[f64; 5]>::try_from(medians)
            .expect("five subjects")
            .map(|seconds| seconds * 1e6);
        println!("body of {size} octets:");
        println!("  SHA-256 alone {hash:8.1} us");
        for (what, raw, ours) in [("sign", sign_raw, sign), ("verify", verify_raw, verify)] {
            println!(
                "  {what:6} {ours:8.1} us, {:6.0}/s; RSA alone {raw:7.1} us; RSA and SHA-256 alone are {:.2} of it",
                1e6 / ours,
                (raw + hash) / ours
            );
        }
    }
}

fn sign(header: &HeaderFields, body: &[u8], key: &dyn SigningKey) -> String {
    let mut request = SignRequest::new("example.com", "sel", key.key_type());
    request.timestamp = Some(1_800_000_000);
    let mut signer = Signer::new(header, vec![request]).expect("a message that can be signed");
    signer.body(body);
    let pieces = signer.to_sign(header);
    let signature = key.sign(&pieces[0].octets).expect("a signature");
    signer.field_value(0, &signature).expect("one request")
}

fn signed(header: &HeaderFields, body: &[u8], key: &dyn SigningKey) -> HeaderFields {
    let mut signed = HeaderFields::new();
    signed.push(b"DKIM-Signature", b"", sign(header, body, key).as_bytes());
    for field in header.iter() {
        signed.push_raw(field.octets());
    }
    signed
}
