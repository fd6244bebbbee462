//! How many instructions the hot paths take, counted by callgrind: clocks lie on shared machines, counts do not.
//!
//! `make instructions` runs this and compares with `results/instructions.txt`. Each case runs once, in a process of its
//! own; only what its function below does is counted, what it is given is made before.
//!
//! What the counts see: every instruction of ours, of the standard library and the allocator, and of the C library's
//! copying and comparing. What they do not see:
//!
//! - RSA and Ed25519. No key's operation is run: signatures are fixed octets, and checks are handed back as good.
//! - SHA-256's compression, which is taken out by name ([`HASH`]). On real processors it runs in instructions that
//!   valgrind does not know; the portable form that stands in for it would be most of each count that has a body. Filling
//!   its blocks is counted.
//! - AVX-512, for the same reason: a relaxed body takes the AVX2 form. Nor caches, branch predictors, or system calls:
//!   an instruction is one, whatever it costs.
//!
//! Keys, times and messages are fixed. What chance there is lies in the seeds of hash maps, for headers of more than 64
//! fields and in the daemon's settings: it moves the counts of those cases by less than a thousandth.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "gungraun's macros make modules of groups and cases"
)]

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dkim_benches::workload::{base64_body, header, long_header, message, text_body};
use dkim_core::canonicalization::{Algorithm, BodyCanonicalizer};
use dkim_core::engine::KeyType;
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::{HeaderFields, MessageReader};
use dkim_core::results::{
    AuthenticationResults, MethodResult, Property, ResultWord, claims_authserv_id, format_results,
};
use dkim_core::signature::Signature;
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::verifier::{CheckOutcome, Verdict, Verifier, VerifierConfig};
use dkim_milter::config::{Config, Overrides};
use dkim_milter::keys::{KeySet, Reader};
use dkim_milter::protocol::command::{Command, Offer};
use dkim_milter::protocol::envelope::Envelope;
use dkim_milter::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
use dkim_milter::protocol::macros::MacroPairs;
use dkim_milter::protocol::mta::encode;
use dkim_milter::protocol::peer::Peer;
use dkim_milter::session::{Actions, Now, Session, Work};
use dkim_milter::settings::Settings;
use gungraun::Callgrind;
use gungraun::prelude::*;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// The function that is not counted; entering it turns counting off, leaving it turns it on again. So nothing that is
/// made before may call it: body hashes there are AWS-LC's. If the hash comes from elsewhere one day, this has to follow,
/// or every case with a body grows by far.
const HASH: &str = "--toggle-collect=*sha2*sha256*compress256*";

/// A key of 2048 bits, and what stands for its signatures.
const KEY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../dkim-core/tests/data/keys/rsa2048.pem"
);
const PUBLIC_KEY: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.record");
const SIGNATURE: [u8; 256] = [0x5a; 256];

const UNIX: u64 = 1_800_000_000;

library_benchmark_group!(
    name = parsing,
    benchmarks = [
        read_message,
        parse_signature,
        parse_key_record,
        parse_results,
        find_forged_results
    ]
);
library_benchmark_group!(name = bodies, benchmarks = [relaxed_body, simple_body]);
library_benchmark_group!(name = messages, benchmarks = [sign, verify, write_results]);
library_benchmark_group!(name = milter, benchmarks = [conversation]);

main!(
    config = LibraryBenchmarkConfig::default().tool(Callgrind::with_args(["--cache-sim=no", HASH])),
    library_benchmark_groups = [parsing, bodies, messages, milter]
);

#[library_benchmark]
#[bench::text_4k(raw_message(&header(), 4096))]
#[bench::long_header(raw_message(&long_header(), 0))]
fn read_message(raw: &'static [u8]) -> usize {
    let mut reader = MessageReader::new(1 << 20);
    let mut octets = 0;
    reader
        .read(black_box(raw), |piece| octets += black_box(piece).len())
        .expect("a small header");
    reader.finish();
    octets + black_box(reader.header()).len()
}

#[library_benchmark]
#[bench::rsa_2048(signature_field(&header(), b"Hello\r\n"))]
fn parse_signature(value: &'static [u8]) -> bool {
    black_box(Signature::parse(black_box(value))).is_ok()
}

#[library_benchmark]
#[bench::rsa_2048(key_record())]
fn parse_key_record(record: &'static [u8]) -> bool {
    black_box(KeyRecord::parse(black_box(record))).is_ok()
}

#[library_benchmark]
#[bench::two_signatures(leaked(format_results("mx.example.net", results())))]
fn parse_results(value: &'static [u8]) -> bool {
    black_box(AuthenticationResults::parse(black_box(value))).is_ok()
}

#[library_benchmark]
#[bench::of_another(leaked(format_results("mx.example.net", results())))]
fn find_forged_results(value: &'static [u8]) -> bool {
    claims_authserv_id(black_box(value), |id| {
        id.eq_ignore_ascii_case(b"mail.example.org")
    })
}

#[library_benchmark]
#[bench::text_64k(leaked(text_body(65_536)))]
#[bench::base64_64k(leaked(base64_body(65_536)))]
fn relaxed_body(body: &'static [u8]) -> usize {
    canonical_octets(Algorithm::Relaxed, body)
}

#[library_benchmark]
#[bench::text_64k(leaked(text_body(65_536)))]
#[bench::base64_64k(leaked(base64_body(65_536)))]
fn simple_body(body: &'static [u8]) -> usize {
    canonical_octets(Algorithm::Simple, body)
}

fn canonical_octets(algorithm: Algorithm, body: &[u8]) -> usize {
    let mut octets = 0;
    let mut sink = |piece: &[u8]| octets += black_box(piece).len();
    let mut canonicalizer = BodyCanonicalizer::new(algorithm);
    canonicalizer.update(black_box(body), &mut sink);
    canonicalizer.finish(&mut sink);
    octets
}

#[library_benchmark]
#[bench::text_4k(args = (leaked(header()), leaked(text_body(4096))), teardown = must_be_signed)]
#[bench::long_header(args = (leaked(long_header()), leaked(Vec::new())), teardown = must_be_signed)]
fn sign(header: &'static HeaderFields, body: &'static [u8]) -> String {
    let mut request = SignRequest::new("example.com", "sel", KeyType::Rsa);
    request.timestamp = Some(UNIX);
    let mut signer = Signer::new(header, vec![request]).expect("a message that can be signed");
    signer.body(black_box(body));
    black_box(signer.to_sign(header));
    signer.field_value(0, &SIGNATURE).expect("the one request")
}

fn must_be_signed(value: String) {
    Signature::parse(value.as_bytes()).expect("a well-formed signature");
}

#[library_benchmark]
#[bench::text_4k(args = [signed(&header(), text_body(4096))], teardown = must_be_verified)]
#[bench::long_header(args = [signed(&long_header(), Vec::new())], teardown = must_be_verified)]
fn verify(message: &'static SignedMessage) -> Vec<Verdict> {
    let SignedMessage { header, body, key } = message;
    let mut verifier = Verifier::new(header, &VerifierConfig::default(), Some(UNIX));
    verifier.answer(0, key.clone());
    verifier.body(black_box(body));
    for check in black_box(verifier.to_check(header)) {
        verifier.checked(&check, CheckOutcome::Good { record: 0 });
    }
    verifier.verdicts(header)
}

fn must_be_verified(verdicts: Vec<Verdict>) {
    assert!(matches!(verdicts[..], [ref one] if one.result == ResultWord::Pass));
}

#[library_benchmark]
#[bench::two_signatures(results())]
fn write_results(results: &'static [MethodResult]) -> usize {
    black_box(format_results("mx.example.net", black_box(results))).len()
}

// From the first octet of a connection to the last, without a socket: frames read, commands parsed, replies written.
#[library_benchmark]
#[bench::sign_2k(args = [signing()], teardown = must_insert_signature)]
#[bench::verify_2k(args = [verifying()], teardown = must_report_pass)]
fn conversation(mut milter: Milter) -> Milter {
    let mut octets = black_box(milter.sent);
    let now = Now {
        monotonic: Duration::ZERO,
        unix: UNIX,
    };
    while let Decoded::Frame(frame) = decode(octets, DEFAULT_LIMIT) {
        let mut actions = Actions::default();
        let command = Command::parse(frame.command, &octets[frame.data]).expect("a good command");
        let chunk = match &command {
            Command::Body(chunk) => *chunk,
            _ => b"",
        };
        milter.session.command(Ok(command), now, &mut actions);
        milter.session.body(chunk);
        octets = &octets[frame.consumed..];
        milter.replies.append(&mut actions.replies);
        while let Some(work) = actions.work.pop() {
            match work {
                Work::LookUp { message, index, .. } => {
                    let key = milter.key.clone();
                    milter
                        .session
                        .key_answer(message, index, key, now, &mut actions);
                }
                Work::Sign { message, index, .. } => {
                    let signature = Ok(SIGNATURE.to_vec());
                    milter
                        .session
                        .signed(message, index, signature, &mut actions);
                }
                Work::Check { message, check } => {
                    let outcome = CheckOutcome::Good { record: 0 };
                    milter
                        .session
                        .checked(message, &check, outcome, &mut actions);
                }
                Work::Digest { .. } => unreachable!("no token is configured"),
            }
            milter.replies.append(&mut actions.replies);
        }
    }
    milter
}

fn must_insert_signature(milter: Milter) {
    milter.must_have_replied(b"\0DKIM-Signature\0");
}

fn must_report_pass(milter: Milter) {
    milter.must_have_replied(b"dkim=pass");
}

/// One end of a connection, and what the other says.
struct Milter {
    session: Session,
    sent: &'static [u8],
    replies: Vec<u8>,
    key: Arc<KeyAnswer>,
}

impl Milter {
    /// Room for replies is there already: how a buffer grows is not what is measured.
    fn new(client: &str, header: &HeaderFields, body: &[u8]) -> Self {
        let settings = settings();
        Self {
            session: Session::new(Arc::new(move || settings.clone())),
            sent: leaked(what_an_mta_sends(client, header, body)),
            replies: Vec::with_capacity(4096),
            key: key_answer(),
        }
    }

    fn must_have_replied(&self, octets: &[u8]) {
        let has_replied = self
            .replies
            .windows(octets.len())
            .any(|part| part == octets);
        assert!(has_replied, "{}", self.replies.escape_ascii());
    }
}

fn signing() -> Milter {
    Milter::new("127.0.0.1", &header(), &text_body(2048))
}

fn verifying() -> Milter {
    let SignedMessage { header, body, .. } = signed(&header(), text_body(2048));
    Milter::new("198.51.100.7", header, body)
}

fn settings() -> Arc<Settings> {
    let set = [
        "Domain=example.com",
        "Selector=sel",
        &format!("KeyFile={KEY}"),
        "RequireSafeKeys=no",
        "AuthservID=mx.example.org",
    ];
    let overrides = Overrides {
        set: set.map(String::from).to_vec(),
        sockets: Vec::new(),
    };
    let (config, _) = Config::load(None, &overrides).expect("a good configuration");
    let keys = KeySet::load(&config, Reader::current());
    Arc::new(Settings::new(config, keys, "mx.example.org".into()).expect("good settings"))
}

fn what_an_mta_sends(client: &str, header: &HeaderFields, body: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    let mut send = |command: Command<'_>| encode(&command, &mut octets);
    send(Command::OptNeg(Offer {
        version: 6,
        actions: 0x1ff,
        steps: 0x1f_ffff,
    }));
    send(Command::Connect {
        host: b"client.example.net",
        peer: Peer::Inet(client.parse().expect("an address"), 25),
    });
    send(Command::Helo(b"client.example.net"));
    send(Command::Macros {
        stage: b'M',
        pairs: MacroPairs::new(b"i\x004Fabc\0{mail_addr}\0ann@example.com\0"),
    });
    send(Command::Mail(Envelope::new(b"<ann@example.com>", b"")));
    send(Command::Rcpt(Envelope::new(b"<bo@example.net>", b"")));
    send(Command::Data);
    for field in header.iter() {
        // With its folds as Postfix sends them.
        let value = String::from_utf8_lossy(field.value()).replace("\r\n", "\n");
        send(Command::Header {
            name: field.name(),
            value: value.as_bytes(),
        });
    }
    send(Command::EndOfHeader);
    send(Command::Body(body));
    send(Command::EndOfBody(b""));
    send(Command::Quit);
    octets
}

/// A message with a signature that is right but for the key's operation.
struct SignedMessage {
    header: &'static HeaderFields,
    body: &'static [u8],
    key: Arc<KeyAnswer>,
}

fn signed(header: &HeaderFields, body: Vec<u8>) -> &'static SignedMessage {
    let mut fields = HeaderFields::new();
    fields.push(b"DKIM-Signature", b"", signature_field(header, &body));
    for field in header.iter() {
        fields.push_raw(field.octets());
    }
    leaked(SignedMessage {
        header: leaked(fields),
        body: leaked(body),
        key: key_answer(),
    })
}

/// The value of a DKIM-Signature field for this message, written as signers do, by hand.
fn signature_field(header: &HeaderFields, body: &[u8]) -> &'static [u8] {
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut canonicalizer = BodyCanonicalizer::new(Algorithm::Relaxed);
    canonicalizer.update(body, &mut |piece| hash.update(piece));
    canonicalizer.finish(&mut |piece| hash.update(piece));
    let signed = [
        "From",
        "To",
        "Subject",
        "Date",
        "Message-ID",
        "MIME-Version",
        "Content-Type",
        "References",
    ];
    let names: Vec<&str> = header
        .iter()
        .filter_map(|field| {
            signed
                .into_iter()
                .find(|name| field.is_named(name.as_bytes()))
        })
        .collect();
    let signature = STANDARD.encode(SIGNATURE);
    let (lines, last) = signature.split_at(5 * 64);
    let lines: String = lines
        .as_bytes()
        .chunks(64)
        .map(|line| format!("{}\r\n\t", String::from_utf8_lossy(line)))
        .collect();
    let value = format!(
        " v=1; a=rsa-sha256; c=relaxed/relaxed; d=example.com; s=sel;\r\n\tt={UNIX}; h={}:From;\r\n\t\
         bh={};\r\n\tb={lines}{last}",
        names.join(":"),
        STANDARD.encode(hash.finish()),
    );
    leaked(value.into_bytes())
}

fn key_answer() -> Arc<KeyAnswer> {
    Arc::new(KeyAnswer::from_txt(&[key_record()]))
}

fn key_record() -> &'static [u8] {
    leaked(format!("v=DKIM1; k=rsa; p={}", STANDARD.encode(PUBLIC_KEY)).into_bytes())
}

/// What is said of two signatures, one of which has a reason.
fn results() -> &'static [MethodResult] {
    let property = |name, value: &str| Property {
        ptype: "header",
        name,
        value: value.into(),
    };
    let pass = MethodResult {
        method: "dkim",
        result: ResultWord::Pass,
        comment: Some("2048-bit key".into()),
        reason: None,
        properties: vec![
            property("d", "example.com"),
            property("i", "\"ann sender\"@example.com"),
            property("s", "sel"),
            property("a", "rsa-sha256"),
            property("b", "WlpaWlpa"),
        ],
    };
    let mut fail = pass.clone();
    fail.result = ResultWord::Fail;
    fail.reason = Some("body hash did not verify".into());
    leaked(vec![pass, fail])
}

fn raw_message(header: &HeaderFields, body_octets: usize) -> &'static [u8] {
    let body = if body_octets == 0 {
        Vec::new()
    } else {
        text_body(body_octets)
    };
    leaked(message(header, &body))
}

/// Kept to the end of the process, so that giving memory back is counted only for what was taken in the case itself.
fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
