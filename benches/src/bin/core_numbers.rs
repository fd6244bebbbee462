//! Signing and verifying one message on one core, beside AWS-LC's operations alone, in one run.
//!
//! Each row is a ratio: what the primitives cost by themselves, of what our whole work costs that rests on them. Rounds of
//! both are interleaved, measured in CPU time of the thread, and their medians count: clocks lie on shared machines,
//! ratios within one run hardly do. Every verdict and signature is checked. Keys, key records and lists of header fields
//! are made once, as the daemon has them. `--json` prints the rows for programs. It panics if a key of its own or a verdict
//! is not as it must be: no figure is better than a wrong one.
#![forbid(unsafe_code)]

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair, ParsedPublicKey, RsaKeyPair};
use dkim_benches::rounds::{Subject, interleaved};
use dkim_benches::workload::{
    ED25519_DER, ED25519_PEM, RSA_2048_DER, RSA_2048_PEM, base64_body, header, long_header,
    text_body,
};
use dkim_core::engine::{Engine, PrivateKey, SigningKey, default_engine, engine_by_name};
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::signer::{FieldChoice, SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use serde::Serialize;
use std::sync::Arc;

/// What is compared.
#[derive(Clone, Serialize)]
struct Row {
    /// For programs.
    name: &'static str,
    work: &'static str,
    against: &'static str,
    /// Microseconds of CPU time.
    work_us: f64,
    against_us: f64,
    /// `against` of `work`; for header octets beside body octets the other way round.
    ratio: f64,
}

const ROUNDS: usize = 31;
const MEGABYTE: usize = 1 << 20;

fn main() {
    let bench = Bench::new();
    let rows = [
        bench.small(),
        bench.large(),
        bench.ed25519(),
        bench.header_heavy(),
    ]
    .concat();
    if std::env::args().any(|argument| argument == "--json") {
        let text = serde_json::to_string_pretty(&rows).expect("numbers and text have a JSON form");
        println!("{text}");
        return;
    }
    println!("One core, CPU time, medians of {ROUNDS} interleaved rounds");
    for row in rows {
        println!(
            "{:5.2}  {} {:.1} us; {} {:.1} us",
            row.ratio, row.work, row.work_us, row.against, row.against_us
        );
    }
}

/// Keys in our form and in that of the library below.
struct Bench {
    /// What is taken where nobody chooses: on some processors AWS-LC with RSA arithmetic of our own.
    engine: &'static dyn Engine,
    /// AWS-LC alone, as the primitives are its.
    aws_lc: &'static dyn Engine,
    rsa: Key,
    ed25519: Key,
    raw_rsa: RsaKeyPair,
    raw_rsa_public: ParsedPublicKey,
    raw_ed25519: Ed25519KeyPair,
    random: SystemRandom,
}

struct Key {
    key: Box<dyn SigningKey>,
    record: Arc<KeyAnswer>,
    /// Another, as each keeps the form of the engine that it has met first.
    record_of_aws_lc: Arc<KeyAnswer>,
}

/// A message and what its signature covers.
struct Sample {
    header: HeaderFields,
    fields: Arc<FieldChoice>,
    body: Arc<Vec<u8>>,
    /// The header with its signature.
    signed: HeaderFields,
    /// What the key has signed, and the signature.
    octets: Vec<u8>,
    signature: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let aws_lc = engine_by_name("aws-lc").expect("built with aws-lc");
        let key = |pem| {
            let key = aws_lc
                .signing_key(&PrivateKey::from_octets(pem).expect("a test key"))
                .expect("a test key");
            let record = || {
                let record = KeyRecord::of(key.public_key().clone());
                Arc::new(KeyAnswer::Records(vec![Ok(record)]))
            };
            let (record, record_of_aws_lc) = (record(), record());
            Key {
                key,
                record,
                record_of_aws_lc,
            }
        };
        let raw_rsa = RsaKeyPair::from_pkcs8(RSA_2048_DER).expect("a test key");
        let raw_rsa_public = ParsedPublicKey::new(
            &signature::RSA_PKCS1_2048_8192_SHA256,
            raw_rsa.public_key().as_ref(),
        )
        .expect("a public key");
        Self {
            engine: default_engine(),
            aws_lc,
            rsa: key(RSA_2048_PEM),
            ed25519: key(ED25519_PEM),
            raw_rsa,
            raw_rsa_public,
            raw_ed25519: Ed25519KeyPair::from_pkcs8_maybe_unchecked(ED25519_DER)
                .expect("a test key"),
            random: SystemRandom::new(),
        }
    }

    /// 4 KB of text with an RSA key.
    fn small(&self) -> Vec<Row> {
        let sample = Sample::new(header(), &text(4096), &self.rsa);
        let [sign, raw_sign, verify, by_aws_lc, raw_verify] = medians([
            Subject::new("", 20, || self.sign(&sample, &self.rsa)),
            Subject::new("", 20, || self.raw_rsa_sign(&sample)),
            Subject::new("", 300, || self.verify(&sample, &self.rsa)),
            Subject::new("", 300, || {
                self.verify_by_aws_lc(&sample, &self.rsa);
            }),
            Subject::new("", 300, || {
                hash(&sample.body);
                self.raw_rsa_verify(&sample);
            }),
        ]);
        vec![
            row(
                "sign-rsa-4k",
                "sign RSA-2048, 4 KB",
                sign,
                "RSA sign alone",
                raw_sign,
            ),
            row(
                "verify-rsa-4k",
                "verify RSA-2048, 4 KB",
                verify,
                "AWS-LC RSA verify + SHA-256",
                raw_verify,
            ),
            row(
                "verify-rsa-4k-aws-lc",
                "the same, engine aws-lc",
                by_aws_lc,
                "AWS-LC RSA verify + SHA-256",
                raw_verify,
            ),
        ]
    }

    /// A megabyte, where the hash is nearly all. An RSA signature takes half as long as the hash of this body: signing is
    /// therefore shown by Ed25519 beside SHA-256 alone, and by RSA beside both.
    fn large(&self) -> Vec<Row> {
        // One body for all that are compared, or some would find it in the processor's cache and others not.
        let (text, base64) = (text(MEGABYTE), Arc::new(base64_body(MEGABYTE)));
        let rsa = Sample::new(header(), &text, &self.rsa);
        let ed25519 = Sample::new(header(), &text, &self.ed25519);
        let attachment = Sample::new(header(), &base64, &self.rsa);
        let attachment_ed25519 = Sample::new(header(), &base64, &self.ed25519);
        let [
            sha,
            verify,
            sign,
            sign_rsa,
            raw_rsa,
            sha_base64,
            verify_base64,
            sign_base64,
        ] = medians([
            Subject::new("", 3, || hash(&rsa.body)),
            Subject::new("", 3, || self.verify(&rsa, &self.rsa)),
            Subject::new("", 3, || self.sign(&ed25519, &self.ed25519)),
            Subject::new("", 3, || self.sign(&rsa, &self.rsa)),
            Subject::new("", 3, || {
                hash(&rsa.body);
                self.raw_rsa_sign(&rsa);
            }),
            Subject::new("", 3, || hash(&attachment.body)),
            Subject::new("", 3, || self.verify(&attachment, &self.rsa)),
            Subject::new("", 3, || {
                self.sign(&attachment_ed25519, &self.ed25519);
            }),
        ]);
        let alone = "SHA-256 alone";
        vec![
            row(
                "verify-text-1m",
                "verify RSA-2048, 1 MB text",
                verify,
                alone,
                sha,
            ),
            row("sign-text-1m", "sign Ed25519, 1 MB text", sign, alone, sha),
            row(
                "sign-rsa-text-1m",
                "sign RSA-2048, 1 MB text",
                sign_rsa,
                alone,
                sha,
            ),
            row(
                "sign-rsa-text-1m-both",
                "sign RSA-2048, 1 MB text",
                sign_rsa,
                "RSA sign + SHA-256",
                raw_rsa,
            ),
            row(
                "verify-base64-1m",
                "verify RSA-2048, 1 MB base64",
                verify_base64,
                alone,
                sha_base64,
            ),
            row(
                "sign-base64-1m",
                "sign Ed25519, 1 MB base64",
                sign_base64,
                alone,
                sha_base64,
            ),
        ]
    }

    fn ed25519(&self) -> Vec<Row> {
        let sample = Sample::new(header(), &text(4096), &self.ed25519);
        let [sign, raw] = medians([
            Subject::new("", 300, || self.sign(&sample, &self.ed25519)),
            Subject::new("", 300, || {
                hash(&sample.body);
                let digest = digest::digest(&digest::SHA256, &sample.octets);
                let signature = self.raw_ed25519.try_sign(digest.as_ref());
                assert_eq!(
                    signature.expect("a signature").as_ref(),
                    sample.signature,
                    "Ed25519 is deterministic"
                );
            }),
        ]);
        vec![row(
            "sign-ed25519-4k",
            "sign Ed25519, 4 KB",
            sign,
            "Ed25519 sign + SHA-256",
            raw,
        )]
    }

    /// What an octet of the header costs beside one of the body: both messages without the RSA, which they share.
    fn header_heavy(&self) -> Vec<Row> {
        let heavy = Sample::new(long_header(), &text(512), &self.rsa);
        let bodied = Sample::new(header(), &text(heavy.header.octets()), &self.rsa);
        let [headers, body, raw] = medians([
            Subject::new("", 100, || {
                self.verify_by_aws_lc(&heavy, &self.rsa);
            }),
            Subject::new("", 100, || {
                self.verify_by_aws_lc(&bodied, &self.rsa);
            }),
            Subject::new("", 100, || self.raw_rsa_verify(&bodied)),
        ]);
        vec![Row {
            ratio: (headers - raw) / (body - raw),
            ..row(
                "verify-headers-30k",
                "verify 200 header fields of 30 KB, less RSA",
                headers - raw,
                "a body of 30 KB, less RSA",
                body - raw,
            )
        }]
    }

    fn sign(&self, sample: &Sample, key: &Key) {
        let signed = sample.sign(&*key.key);
        assert_eq!(signed.1, sample.signature, "both kinds are deterministic");
    }

    fn verify(&self, sample: &Sample, key: &Key) {
        verify_by(self.engine, &key.record, sample);
    }

    fn verify_by_aws_lc(&self, sample: &Sample, key: &Key) {
        verify_by(self.aws_lc, &key.record_of_aws_lc, sample);
    }
    fn raw_rsa_sign(&self, sample: &Sample) {
        let mut out = [0; 256];
        self.raw_rsa
            .sign(
                &signature::RSA_PKCS1_SHA256,
                &self.random,
                &sample.octets,
                &mut out,
            )
            .expect("a signature");
        assert_eq!(out, *sample.signature, "RSA PKCS #1 v1.5 is deterministic");
    }

    fn raw_rsa_verify(&self, sample: &Sample) {
        self.raw_rsa_public
            .verify_sig(&sample.octets, &sample.signature)
            .expect("a good signature");
    }
}

fn verify_by(engine: &dyn Engine, record: &Arc<KeyAnswer>, sample: &Sample) {
    let mut verifier = Verifier::new(&sample.signed, &VerifierConfig::default(), None);
    verifier.answer(0, record.clone());
    verifier.body(&sample.body);
    let verdicts = verifier.finish(&sample.signed, engine);
    assert_eq!(verdicts[0].result, ResultWord::Pass);
}

impl Sample {
    fn new(header: HeaderFields, body: &Arc<Vec<u8>>, key: &Key) -> Self {
        let names: Vec<String> = header
            .iter()
            .map(|field| String::from_utf8_lossy(field.name()).into_owned())
            .filter(|name| name != "User-Agent")
            .collect();
        let mut sample = Self {
            header,
            fields: Arc::new(
                FieldChoice::new(&names, &["From".to_owned()]).expect("names with From"),
            ),
            body: body.clone(),
            signed: HeaderFields::new(),
            octets: Vec::new(),
            signature: Vec::new(),
        };
        let (octets, signature, value) = sample.sign(&*key.key);
        sample.signed.push(b"DKIM-Signature", b"", value.as_bytes());
        for field in sample.header.iter() {
            sample.signed.push_raw(field.octets());
        }
        (sample.octets, sample.signature) = (octets, signature);
        sample
    }

    /// What was signed, the signature, and the field's value.
    fn sign(&self, key: &dyn SigningKey) -> (Vec<u8>, Vec<u8>, String) {
        let request = SignRequest {
            timestamp: Some(1_800_000_000),
            ..SignRequest::with_fields("example.com", "sel", key.key_type(), self.fields.clone())
        };
        let mut signer = Signer::new(&self.header, vec![request]).expect("a message to sign");
        signer.body(&self.body);
        let piece = signer.to_sign(&self.header).remove(0);
        let signature = key.sign(&piece.octets).expect("a signature");
        let value = signer.field_value(0, &signature).expect("one request");
        (piece.octets, signature, value)
    }
}

fn text(size: usize) -> Arc<Vec<u8>> {
    Arc::new(text_body(size))
}

fn hash(octets: &[u8]) {
    std::hint::black_box(digest::digest(&digest::SHA256, octets));
}

fn row(
    name: &'static str,
    work: &'static str,
    work_us: f64,
    against: &'static str,
    against_us: f64,
) -> Row {
    Row {
        name,
        work,
        against,
        work_us,
        against_us,
        ratio: against_us / work_us,
    }
}

/// In microseconds.
fn medians<const N: usize>(mut subjects: [Subject<'_>; N]) -> [f64; N] {
    let medians = interleaved(ROUNDS, &mut subjects);
    // One for each subject.
    std::array::from_fn(|index| medians[index] * 1e6)
}
