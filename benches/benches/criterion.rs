//! How long parts of the work take, for people who change them: `cargo bench -p dkim-benches --bench criterion`.
//!
//! Criterion compares with its own last run on this machine, in wall-clock time: on a shared machine, believe it only
//! where it says the same twice. What is held to a bound is in `instructions.rs`, what is compared with others in
//! `t-signperf`, `t-verifyperf` and `make bench-peers`.
//!
//! Signing and verifying are whole, with AWS-LC and RSA of 2048 bits; the other groups are our own code alone.
#![forbid(unsafe_code)]

use criterion::{BenchmarkId, Criterion, Throughput};
use dkim_benches::workload::{RSA_2048_PEM, base64_body, header, long_header, message, text_body};
use dkim_core::canonicalization::{Algorithm, BodyCanonicalizer};
use dkim_core::engine::{Engine, PrivateKey, SigningKey, default_engine};
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::{HeaderFields, MessageReader};
use dkim_core::results::ResultWord;
use dkim_core::signature::Signature;
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::tag_list::TagList;
use dkim_core::verifier::{CheckOutcome, Verifier, VerifierConfig};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const SIZES: [usize; 3] = [4096, 65_536, 1_048_576];

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let bench = Bench::new();
    bench.sign(&mut criterion);
    bench.verify(&mut criterion);
    bench.header(&mut criterion);
    bench.parse(&mut criterion);
    body(&mut criterion);
    criterion.final_summary();
}

/// A key, ready to sign and to check.
struct Bench {
    engine: &'static dyn Engine,
    key: Box<dyn SigningKey>,
    answer: Arc<KeyAnswer>,
}

impl Bench {
    fn new() -> Self {
        let engine = default_engine();
        let key = PrivateKey::from_octets(RSA_2048_PEM).expect("a test key");
        let key = engine.signing_key(&key).expect("a test key");
        let record = KeyRecord::of(key.public_key().clone());
        Self {
            engine,
            key,
            answer: Arc::new(KeyAnswer::Records(vec![Ok(record)])),
        }
    }

    /// From fields and body to the value of the new field.
    fn sign(&self, criterion: &mut Criterion) {
        let header = header();
        let mut group = criterion.benchmark_group("sign");
        for size in SIZES {
            let body = text_body(size);
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new("text", size), |b| {
                b.iter(|| self.signature(&header, &body));
            });
        }
        group.finish();
    }

    /// From fields and body to the verdict, the key record at hand.
    fn verify(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group("verify");
        for size in SIZES {
            let body = text_body(size);
            let header = self.signed(&header(), &body);
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new("text", size), |b| {
                b.iter(|| {
                    let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
                    verifier.answer(0, self.answer.clone());
                    verifier.body(&body);
                    let verdicts = verifier.finish(&header, self.engine);
                    assert_eq!(verdicts[0].result, ResultWord::Pass);
                });
            });
        }
        group.finish();
    }

    /// Messages without a body, verified but for the key's operation: their signature read, and the header's canonical
    /// form made.
    fn header(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group("header");
        for (name, header) in [("12 fields", header()), ("200 fields", long_header())] {
            let header = self.signed(&header, b"");
            group.throughput(Throughput::Bytes(header.octets() as u64));
            group.bench_function(name, |b| {
                b.iter(|| {
                    let mut verifier = Verifier::new(&header, &VerifierConfig::default(), None);
                    verifier.answer(0, self.answer.clone());
                    for check in black_box(verifier.to_check(&header)) {
                        verifier.checked(&check, CheckOutcome::Good { record: 0 });
                    }
                    let verdicts = verifier.verdicts(&header);
                    assert_eq!(verdicts[0].result, ResultWord::Pass);
                });
            });
        }
        group.finish();
    }

    /// What is read: a message, a DKIM-Signature field, and the tag list that it is.
    fn parse(&self, criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group("parse");
        for (name, header) in [
            ("message, 12 fields", header()),
            ("message, 200 fields", long_header()),
        ] {
            let raw = message(&header, b"");
            group.throughput(Throughput::Bytes(raw.len() as u64));
            group.bench_function(name, |b| {
                b.iter(|| {
                    let mut reader = MessageReader::new(1 << 20);
                    reader
                        .read(&raw, |piece| {
                            black_box(piece);
                        })
                        .expect("a small header");
                    reader.finish();
                    black_box(reader.header().len())
                });
            });
        }
        let value = self.signature(&header(), b"Hello\r\n");
        group.throughput(Throughput::Bytes(value.len() as u64));
        group.bench_function("signature", |b| {
            b.iter(|| Signature::parse(black_box(value.as_bytes())).expect("a good signature"));
        });
        group.bench_function("tag list", |b| {
            b.iter(|| {
                let list = TagList::parse(black_box(value.as_bytes())).expect("a good list");
                black_box(list.get("bh"));
            });
        });
        group.finish();
    }

    fn signature(&self, header: &HeaderFields, body: &[u8]) -> String {
        let mut request = SignRequest::new("example.com", "sel", self.key.key_type());
        request.timestamp = Some(1_800_000_000);
        let mut signer = Signer::new(header, vec![request]).expect("a message that can be signed");
        signer.body(body);
        let pieces = signer.to_sign(header);
        let signature = self.key.sign(&pieces[0].octets).expect("a signature");
        signer.field_value(0, &signature).expect("one request")
    }

    fn signed(&self, header: &HeaderFields, body: &[u8]) -> HeaderFields {
        let mut signed = HeaderFields::new();
        let value = self.signature(header, body);
        signed.push(b"DKIM-Signature", b"", value.as_bytes());
        for field in header.iter() {
            signed.push_raw(field.octets());
        }
        signed
    }
}

/// The relaxed form of bodies, given to nobody. The simple one is the body itself, passed on in one piece.
fn body(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("relaxed body");
    for size in SIZES {
        for (name, body) in [("text", text_body(size)), ("base64", base64_body(size))] {
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    let mut sink = |piece: &[u8]| {
                        black_box(piece);
                    };
                    let mut canonicalizer = BodyCanonicalizer::new(Algorithm::Relaxed);
                    canonicalizer.update(black_box(&body), &mut sink);
                    canonicalizer.finish(&mut sink);
                });
            });
        }
    }
    group.finish();
}
