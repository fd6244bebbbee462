//! Signing and verifying one message on one core, beside AWS-LC's operations alone, in one run.
//!
//! Rounds of each are interleaved and measured in CPU time of the thread, and the median counts: clocks lie on shared
//! machines, ratios within one run hardly do. Every verdict and signature is checked. Keys and key records are parsed
//! once, as the daemon has them.
#![forbid(unsafe_code)]

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, KeyPair, RsaKeyPair};
use dkim_core::engine::{PrivateKey, SigningKey, engine_by_name};
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const ROUNDS: usize = 21;
const KEY: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.pem");
const KEY_DER: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.pkcs8.der");

fn main() {
    let engine = engine_by_name("aws-lc").expect("built with aws-lc");
    let key = PrivateKey::from_octets(KEY).expect("a test key");
    let key = engine.signing_key(&key).expect("a test key");
    let raw = RsaKeyPair::from_pkcs8(KEY_DER).expect("a test key");
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
        let body = body(size);
        let signed = signed(&header, &body, &*key);
        let repeats = (40_000_000 / (size + 40_000)).max(4);
        let mut samples: [Vec<f64>; 5] = Default::default();
        for _ in 0..ROUNDS {
            let mut measure =
                |index: usize, work: &mut dyn FnMut()| samples[index].push(time(repeats, work));
            measure(0, &mut || {
                raw.sign(&signature::RSA_PKCS1_SHA256, &random, &octets, &mut out)
                    .expect("a signature");
            });
            measure(1, &mut || drop(sign(&header, &body, &*key)));
            measure(2, &mut || {
                public.verify_sig(&octets, &out).expect("a good signature")
            });
            measure(3, &mut || {
                let mut verifier = Verifier::new(&signed, &VerifierConfig::default(), None);
                verifier.answer(0, answer.clone());
                verifier.body(&body);
                let verdicts = verifier.finish(&signed, engine);
                assert_eq!(verdicts[0].result, ResultWord::Pass);
            });
            measure(4, &mut || {
                std::hint::black_box(digest::digest(&digest::SHA256, &body));
            });
        }
        let [sign_raw, sign, verify_raw, verify, hash] = samples.map(median);
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

fn header() -> HeaderFields {
    let mut header = HeaderFields::new();
    for field in [
        "Received: from client.example.com (client.example.com [192.0.2.7])\r\n\tby mx.example.net (Postfix) with ESMTPS id 4Fabc\r\n\tfor <bo@example.net>; Tue,  6 Jan 2026 10:00:01 +0000 (UTC)",
        "From: Ann Sender <ann@example.com>",
        "To: Bo Reader <bo@example.net>,\r\n Cy Reader <cy@example.net>",
        "Subject: figures of the quarter, and what they mean",
        "Date: Tue, 06 Jan 2026 10:00:00 +0000",
        "Message-ID: <20260106.100000.1@example.com>",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 7bit",
        "User-Agent: Post/1.0",
        "In-Reply-To: <20260105.090000.7@example.net>",
        "References: <20260101.080000.1@example.net>\r\n <20260105.090000.7@example.net>",
    ] {
        header.push_raw(field.as_bytes());
    }
    header
}

/// Lines of words as people write them: some double spaces, a trailing space now and then, empty lines.
fn body(size: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(size + 80);
    let mut line = 0;
    while body.len() < size {
        line += 1;
        if line % 10 == 0 {
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(
            b"The quick brown fox jumps over the lazy dog.  Then it rests, for a",
        );
        body.extend_from_slice(if line % 25 == 0 {
            b" while \r\n"
        } else {
            b" while\r\n"
        });
    }
    body.truncate(size - 2);
    body.extend_from_slice(b"\r\n");
    body
}

/// Microseconds of CPU time for one of `repeats` runs.
fn time(repeats: usize, work: &mut dyn FnMut()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let start = now();
    (0..repeats).for_each(|_| work());
    (now() - start) / repeats as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
