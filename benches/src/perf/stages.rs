//! Where the time goes: each stage of the work run by itself over the same messages, through the public API of
//! `dkim-core`, in interleaved rounds of CPU time on one thread.
//!
//! Some stages cannot be run alone from outside. Those are differences of two runs of which one does more: they are
//! noisier, and what a stage costs among the others (caches, branch prediction) need not be what it costs alone. What
//! the stages do not explain of the whole is given as such; it can be negative.

use super::mbox::Buffer;
use super::messages::Messages;
use super::run::Failures;
use super::work::{Signing, Verifying, Work, split};
use crate::rounds::{Subject, interleaved, thread_cpu_time};
use dkim_core::canonicalization::{Algorithm, BodyCanonicalizer, Canonicalization};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::HeaderFields;
use dkim_core::signature::{FIELD_NAME, Signature, SignatureTemplate};
use dkim_core::signer::{FieldChoice, SignRequest, Signer};
use dkim_core::verifier::{Check, CheckOutcome, Verifier};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;

/// The stages of the work on the messages, and the whole of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// How many messages were measured on.
    pub messages: usize,
    /// How many rounds the medians are of.
    pub rounds: usize,
    /// Each stage, in the order of the work.
    pub stages: Vec<Stage>,
    /// What the stages do not explain, in microseconds of CPU time per message.
    pub unexplained_us: f64,
    /// All of it, in microseconds of CPU time per message.
    pub whole_us: f64,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// What is done.
    pub name: String,
    /// Microseconds of CPU time per message.
    pub us: f64,
    /// Whether it is a difference of two measurements.
    pub by_difference: bool,
}

/// Measures the stages of `work` on some of `messages`.
///
/// # Errors
/// What went wrong on one of the messages.
pub(super) fn measure(work: &Work<'_>, messages: &Messages) -> Result<Stages, Failures> {
    let samples = samples(work, messages)?;
    let failures = RefCell::new(Failures::default());
    let buffer = RefCell::new(Buffer::default());
    let mut parts: Vec<Part<'_>> = Vec::new();
    parts.push(part(WHOLE, &samples, |sample| {
        let mut buffer = buffer.borrow_mut();
        let outcome = match messages.get(sample.index, &mut buffer) {
            Ok(raw) => work.go(raw).map(black_box),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = outcome {
            failures.borrow_mut().add(sample.index, reason, 1);
        }
    }));
    if messages.are_read() {
        parts.push(part("reading", &samples, |sample| {
            black_box(messages.get(sample.index, &mut buffer.borrow_mut()).is_ok());
        }));
    }
    parts.push(part("parse", &samples, |sample| {
        if let Ok((reader, body)) = split(&sample.raw) {
            black_box((reader.header().len(), body.len()));
        }
    }));
    parts.push(part("body", &samples, |sample| {
        let mut canonicalizer = BodyCanonicalizer::new(sample.canonicalization.body);
        let mut sink = |piece: &[u8]| {
            black_box(piece);
        };
        canonicalizer.update(&sample.body, &mut sink);
        canonicalizer.finish(&mut sink);
    }));
    // The body hash alone: what `simple` does to a body that is canonical already is next to nothing.
    parts.push(part("hash nothing", &samples, |sample| sample.hash(b"")));
    parts.push(part("hash", &samples, |sample| {
        sample.hash(&sample.canonical_body)
    }));
    match work {
        Work::Sign(signing) => sign_parts(signing, &samples, &mut parts),
        Work::Verify(verifying) => verify_parts(verifying, &samples, &mut parts),
    }

    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let (rounds, medians) = medians(parts);
    let failures = failures.into_inner();
    if failures.count > 0 {
        return Err(failures);
    }
    // 0 for what was not measured, as it is not part of this work.
    let us = |name: &str| {
        let place = names.iter().position(|known| *known == name);
        place.map_or(0.0, |place| medians[place] * 1e6 / samples.len() as f64)
    };
    Ok(table(work, messages, us, samples.len(), rounds))
}

/// Puts the stages together from what was measured.
fn table(
    work: &Work<'_>,
    messages: &Messages,
    us: impl Fn(&str) -> f64,
    samples: usize,
    rounds: usize,
) -> Stages {
    let mut stages = Vec::new();
    let mut add = |name: &str, us: f64, by_difference| {
        stages.push(Stage {
            name: name.to_owned(),
            us,
            by_difference,
        });
    };
    if messages.are_read() {
        add("I/O: reading, line ends to CRLF", us("reading"), false);
    }
    let body_hash = us("hash") - us("hash nothing");
    match work {
        Work::Sign(signing) => {
            if signing.per_message_key {
                add("parsing the key, with its proof", us("key"), false);
            }
            add("parse: splitting the message", us("parse"), false);
            add(
                "header: fields chosen, canonicalized",
                us("to sign") - us("template"),
                true,
            );
            add("body canonicalization", us("body"), false);
            add("digest of the body", body_hash, true);
            add(
                "signing, with the header's digest",
                us("cryptography"),
                false,
            );
            add("formatting the field", us("format"), false);
        }
        Work::Verify(verifying) => {
            if verifying.answer.is_none() {
                add("parsing the key record", us("key"), false);
            }
            add(
                "parse: splitting, the signature",
                us("parse") + us("signature"),
                false,
            );
            add(
                "header canonicalization",
                us("to check") - us("other body"),
                true,
            );
            add("body canonicalization", us("body"), false);
            add("digest of the body", body_hash, true);
            add(
                "checking, with the header's digest",
                us("cryptography"),
                false,
            );
            add(
                "verdict, and keeping track",
                us("verdicts") - us("to check") + us("other body") - us("twin's signature"),
                true,
            );
        }
    }
    let whole_us = us(WHOLE);
    Stages {
        messages: samples,
        rounds,
        unexplained_us: whole_us - stages.iter().map(|stage| stage.us).sum::<f64>(),
        stages,
        whole_us,
    }
}

const WHOLE: &str = "whole";

/// Something that is done to each sample in turn.
struct Part<'a> {
    name: &'static str,
    pass: Box<dyn FnMut() + 'a>,
}

fn part<'a>(
    name: &'static str,
    samples: &'a [Sample],
    mut go: impl FnMut(&'a Sample) + 'a,
) -> Part<'a> {
    let pass = Box::new(move || samples.iter().for_each(&mut go));
    Part { name, pass }
}

fn sign_parts<'a>(signing: &'a Signing<'_>, samples: &'a [Sample], parts: &mut Vec<Part<'a>>) {
    if signing.per_message_key {
        parts.push(part("key", samples, |_| {
            black_box(signing.parse_key().is_ok());
        }));
    }
    parts.push(part("to sign", samples, |sample| {
        let request = vec![signing.request.clone()];
        if let Ok(mut signer) = Signer::new(&sample.header, request) {
            black_box(signer.to_sign(&sample.header));
        }
    }));
    let template = |sample: &Sample| {
        let names: Vec<&str> = sample.names.iter().map(String::as_str).collect();
        SignatureTemplate {
            key_type: signing.request.key_type,
            canonicalization: signing.request.canonicalization,
            domain: &signing.request.domain,
            selector: &signing.request.selector,
            identity: None,
            timestamp: signing.request.timestamp,
            expiration: None,
            body_length: None,
            extra_tags: &[],
            header_names: &names,
            body_hash: &[7; 32],
        }
        .to_value()
    };
    parts.push(part("template", samples, move |sample| {
        black_box(template(sample));
    }));
    parts.push(part("format", samples, move |sample| {
        let unsigned = template(sample);
        black_box(SignatureTemplate::with_signature(
            &unsigned,
            &sample.signature,
        ));
    }));
    parts.push(part("cryptography", samples, |sample| {
        black_box(signing.key.ready.sign(&sample.signed_octets).is_ok());
    }));
}

fn verify_parts<'a>(
    verifying: &'a Verifying<'_>,
    samples: &'a [Sample],
    parts: &mut Vec<Part<'a>>,
) {
    if verifying.answer.is_none() {
        parts.push(part("key", samples, |_| {
            if let KeyAnswer::Records(records) = &*verifying.answer()
                && let Some(Ok(record)) = records.first()
            {
                black_box(record.verifying_key(verifying.engine).is_ok());
            }
        }));
    }
    // Kept, whether or not the work parses it for each message: here it is a stage of its own.
    let answer = verifying.answer();
    let begin = move |header| {
        let mut verifier = Verifier::new(header, &verifying.config, None);
        (0..verifier.to_look_up().len()).for_each(|name| verifier.answer(name, answer.clone()));
        verifier
    };
    parts.push(part("signature", samples, |sample| {
        parse_signatures(&sample.header)
    }));
    parts.push(part("twin's signature", samples, |sample| {
        parse_signatures(&sample.twin)
    }));
    // The twin is signed over an empty body: with another one the header is not even looked at.
    let start = begin.clone();
    parts.push(part("other body", samples, move |sample| {
        let mut verifier = start(&sample.twin);
        verifier.body(b"x");
        black_box(verifier.to_check(&sample.twin));
    }));
    let start = begin.clone();
    parts.push(part("to check", samples, move |sample| {
        black_box(start(&sample.twin).to_check(&sample.twin));
    }));
    parts.push(part("verdicts", samples, move |sample| {
        let mut verifier = begin(&sample.twin);
        for check in verifier.to_check(&sample.twin) {
            verifier.checked(&check, CheckOutcome::Good { record: 0 });
        }
        black_box(verifier.verdicts(&sample.twin));
    }));
    parts.push(part("cryptography", samples, |sample| {
        for check in &sample.checks {
            black_box(check.run(verifying.engine));
        }
    }));
}

fn parse_signatures(header: &HeaderFields) {
    for field in header.named(FIELD_NAME) {
        black_box(Signature::parse(field.value()).is_ok());
    }
}

/// One message, with all that the stages begin with.
struct Sample {
    index: usize,
    raw: Vec<u8>,
    header: HeaderFields,
    body: Vec<u8>,
    canonicalization: Canonicalization,
    canonical_body: Vec<u8>,
    /// A request that costs as little as can be beside the hash of a body.
    least_request: SignRequest,
    /// Signing: the names in `h=`.
    names: Vec<String>,
    /// Signing: what the key signs.
    signed_octets: Vec<u8>,
    /// Octets of a signature's length.
    signature: Vec<u8>,
    /// Verifying: the header with one signature, which is over an empty body.
    twin: HeaderFields,
    /// Verifying: what is to be checked.
    checks: Vec<Check>,
}

impl Sample {
    /// Hashes `body`, which is canonical, and does little else.
    fn hash(&self, body: &[u8]) {
        if let Ok(mut signer) = Signer::new(&self.header, vec![self.least_request.clone()]) {
            signer.body(body);
            black_box(signer.to_sign(&self.header));
        }
    }
}

/// Messages from all over the mix, up to a number and a size that can be gone through many times.
fn samples(work: &Work<'_>, messages: &Messages) -> Result<Vec<Sample>, Failures> {
    const MOST: usize = 32;
    const OCTETS: usize = 16 << 20;
    let mut samples: Vec<Sample> = Vec::new();
    let mut octets = 0;
    let mut buffer = Buffer::default();
    let count = messages.len().min(MOST);
    for index in (0..count).map(|nth| nth * messages.len() / count) {
        let sample = messages
            .get(index, &mut buffer)
            .map_err(|error| error.to_string())
            .and_then(|raw| sample(work, index, raw));
        let sample = sample.map_err(|reason| {
            let mut failures = Failures::default();
            failures.add(index, reason, 1);
            failures
        })?;
        octets += sample.raw.len();
        if octets > OCTETS && !samples.is_empty() {
            break;
        }
        samples.push(sample);
    }
    Ok(samples)
}

fn sample(work: &Work<'_>, index: usize, raw: &[u8]) -> Result<Sample, String> {
    let (reader, body) = split(raw)?;
    let header = reader.header().clone();
    let (key, request) = match work {
        Work::Sign(signing) => (signing.key, signing.request.clone()),
        Work::Verify(verifying) => {
            let signature = header
                .named(FIELD_NAME)
                .find_map(|field| Signature::parse(field.value()).ok())
                .ok_or("message has no signature that can be read")?;
            let mut request =
                SignRequest::new(signature.domain, signature.selector, signature.key_type);
            request.canonicalization = signature.canonicalization;
            request.timestamp = signature.timestamp;
            (verifying.key, request)
        }
    };
    let canonicalization = request.canonicalization;
    let mut canonical_body = Vec::with_capacity(body.len());
    let mut canonicalizer = BodyCanonicalizer::new(canonicalization.body);
    canonicalizer.update(body, &mut |piece| canonical_body.extend_from_slice(piece));
    canonicalizer.finish(&mut |piece| canonical_body.extend_from_slice(piece));

    let mut least_request = request.clone();
    least_request.canonicalization.body = Algorithm::Simple;
    least_request.fields =
        Arc::new(FieldChoice::new(&["From"], &[]).map_err(|error| error.to_string())?);
    let names = request.fields.names(&header);
    let names = names.into_iter().map(str::to_owned).collect();
    let signature = vec![0x5a; key.bits().div_ceil(8) as usize * signature_factor(key.algorithm())];

    let unsigned = unsigned(&header);
    let mut signer = Signer::new(&unsigned, vec![request]).map_err(|error| error.to_string())?;
    // No body: the octets have the same length whatever was hashed.
    let signed_octets = signer
        .to_sign(&unsigned)
        .pop()
        .map(|piece| piece.octets)
        .unwrap_or_default();
    let mut twin = HeaderFields::new();
    if let Some(value) = signer.field_value(0, &signature) {
        twin.push(FIELD_NAME.as_bytes(), b"", value.as_bytes());
    }
    for field in unsigned.iter() {
        twin.push_raw(field.octets());
    }
    let checks = match work {
        Work::Sign(_) => Vec::new(),
        Work::Verify(verifying) => {
            let mut verifier = Verifier::new(&header, &verifying.config, None);
            let answer = verifying.answer();
            (0..verifier.to_look_up().len()).for_each(|name| verifier.answer(name, answer.clone()));
            verifier.body(body);
            verifier.to_check(&header)
        }
    };
    Ok(Sample {
        index,
        raw: raw.to_vec(),
        body: body.to_vec(),
        canonicalization,
        canonical_body,
        least_request,
        names,
        signed_octets,
        signature,
        twin,
        checks,
        header,
    })
}

/// An Ed25519 signature is twice as long as its key.
fn signature_factor(algorithm: &str) -> usize {
    match algorithm {
        "ed25519-sha256" => 2,
        _ => 1,
    }
}

fn unsigned(header: &HeaderFields) -> HeaderFields {
    let mut unsigned = HeaderFields::new();
    for field in header.iter() {
        if !field.is_named(FIELD_NAME.as_bytes()) {
            unsigned.push_raw(field.octets());
        }
    }
    unsigned
}

/// Rounds of all parts, and the median seconds of a pass of each. A sample lasts about five milliseconds, and everything
/// about five seconds.
fn medians(mut parts: Vec<Part<'_>>) -> (usize, Vec<f64>) {
    const SAMPLE: f64 = 0.005;
    const ALL: f64 = 5.0;
    let seconds: Vec<f64> = parts
        .iter_mut()
        .map(|part| {
            let start = thread_cpu_time();
            (part.pass)();
            (thread_cpu_time() - start).as_secs_f64()
        })
        .collect();
    let round: f64 = seconds.iter().map(|once| once.max(SAMPLE)).sum();
    // Odd, so that there is a middle.
    let rounds = ((ALL / round) as usize).clamp(5, 21) | 1;
    let mut subjects: Vec<Subject<'_>> = parts
        .into_iter()
        .zip(&seconds)
        .map(|(part, once)| {
            let repeats = (SAMPLE / once.max(1e-7)) as usize;
            Subject::new(part.name, repeats.clamp(1, 10_000), part.pass)
        })
        .collect();
    (rounds, interleaved(rounds, &mut subjects))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::keys::Key;
    use crate::perf::options::{KeySource, Mix};
    use dkim_core::engine::{KeyType, default_engine};

    #[test]
    fn stages_and_what_they_leave_unexplained_make_the_whole() {
        let source = KeySource::Made { bits: None };
        let key = Key::get(&source, Some(KeyType::Ed25519), None).unwrap();
        let engine = default_engine();
        let unsigned = Messages::of(&Mix::Size(4096)).unwrap();
        let signing = Signing::new(engine, &key, Canonicalization::RELAXED, false);
        let signed = unsigned.signed(&signing).unwrap();
        for (work, messages) in [
            (Work::Sign(signing), &unsigned),
            (Work::Verify(Verifying::new(engine, &key, false)), &signed),
        ] {
            // Each part counts 10 us, but the whole 100 and what is subtracted 1.
            let us = |name: &str| match name {
                WHOLE => 100.0,
                "hash nothing" | "template" | "other body" | "twin's signature" => 1.0,
                _ => 10.0,
            };
            let stages = table(&work, messages, us, 1, 5);
            let sum: f64 = stages.stages.iter().map(|stage| stage.us).sum();
            assert!((sum + stages.unexplained_us - 100.0).abs() < 1e-9);
            // Signing: parse 10, header 9, body 10, digest 9, signing 10, format 10. Verifying: parse 20, header 9,
            // body 10, digest 9, checking 10, verdict 10 - 10 + 1 - 1.
            assert!((sum - 58.0).abs() < 1e-9, "{stages:?}");
        }
    }

    #[test]
    fn what_is_prepared_is_what_the_work_meets() {
        let source = KeySource::Made { bits: None };
        let key = Key::get(&source, Some(KeyType::Ed25519), None).unwrap();
        let signing = Signing::new(default_engine(), &key, Canonicalization::RELAXED, false);
        let messages = Messages::of(&Mix::Size(4096))
            .unwrap()
            .signed(&signing)
            .unwrap();
        let work = Work::Verify(Verifying::new(default_engine(), &key, false));
        let samples = samples(&work, &messages).map_err(|_| ()).unwrap();
        let sample = &samples[0];
        assert_eq!(sample.checks.len(), 1);
        assert!(matches!(
            sample.checks[0].run(default_engine()),
            CheckOutcome::Good { record: 0 }
        ));
        // The twin has a header of the same size, and is checked without a body only.
        assert_eq!(sample.twin.octets(), sample.header.octets());
        let Work::Verify(verifying) = &work else {
            unreachable!()
        };
        for (body, checks) in [(&b""[..], 1), (b"x", 0)] {
            let mut verifier = Verifier::new(&sample.twin, &verifying.config, None);
            verifier.answer(0, verifying.answer());
            verifier.body(body);
            assert_eq!(verifier.to_check(&sample.twin).len(), checks);
        }
    }
}
