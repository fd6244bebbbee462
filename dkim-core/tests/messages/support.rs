//! What drives a signer and a verifier in the tests.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dkim_core::engine::{Engine, PrivateKey, SigningKey, engine_by_name};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::{HeaderFields, MessageReader};
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::verifier::{Verdict, Verifier, VerifierConfig};
use std::sync::Arc;

macro_rules! key_file {
    ($name:literal) => {
        &include_bytes!(concat!("../data/keys/", $name))[..]
    };
}
pub(crate) use key_file;

/// The record of a public key, as octets of `p=`, that openssl took out of the private key.
pub(crate) fn record(tags: &str, key: &[u8]) -> String {
    format!("{tags}p={}", STANDARD.encode(key))
}

pub(crate) fn rsa_record() -> String {
    record("v=DKIM1; ", key_file!("rsa2048.record"))
}

pub(crate) fn ed25519_record() -> String {
    record("v=DKIM1; k=ed25519; ", key_file!("ed25519.record"))
}

/// The key in one of the files beside the messages, in the pure-Rust engine, which signs with keys of any size.
pub(crate) fn signing_key(file: &[u8]) -> Box<dyn SigningKey> {
    let key = PrivateKey::from_octets(file).unwrap();
    let engine = engine_by_name("rustcrypto").unwrap();
    engine.signing_key(&key).unwrap()
}

/// The header and the body of `message`, read in chunks of `size`.
pub(crate) fn read(message: &[u8], size: usize) -> (HeaderFields, Vec<u8>) {
    let mut reader = MessageReader::new(1024 * 1024);
    let mut body = Vec::new();
    for chunk in message.chunks(size) {
        reader
            .read(chunk, |octets| body.extend_from_slice(octets))
            .unwrap();
    }
    reader.finish();
    (reader.header().clone(), body)
}

/// `message`, which has CRLF line ends, with a field on top for each request, its body read in chunks of `size`.
pub(crate) fn sign(
    message: &[u8],
    requests: Vec<SignRequest>,
    keys: &[&dyn SigningKey],
    size: usize,
) -> Vec<u8> {
    let (header, body) = read(message, message.len().max(1));
    let mut signer = Signer::new(&header, requests).unwrap();
    body.chunks(size).for_each(|chunk| signer.body(chunk));
    let mut signed = Vec::new();
    for to_sign in signer.to_sign(&header) {
        let signature = keys[to_sign.request].sign(&to_sign.octets).unwrap();
        let value = signer.field_value(to_sign.request, &signature).unwrap();
        signed.extend_from_slice(format!("DKIM-Signature:{value}\r\n").as_bytes());
    }
    signed.extend_from_slice(message);
    signed
}

/// How a message is verified.
pub(crate) struct Setting<'a> {
    pub(crate) answer: &'a dyn Fn(&str) -> KeyAnswer,
    pub(crate) config: VerifierConfig,
    pub(crate) now: Option<u64>,
    pub(crate) engine: &'static dyn Engine,
    pub(crate) chunk: usize,
}

impl<'a> Setting<'a> {
    pub(crate) fn new(answer: &'a dyn Fn(&str) -> KeyAnswer) -> Self {
        Self {
            answer,
            config: VerifierConfig::default(),
            now: None,
            engine: engine_by_name("rustcrypto").unwrap(),
            chunk: 1000,
        }
    }

    pub(crate) fn verdicts(&self, message: &[u8]) -> Vec<Verdict> {
        let (header, body) = read(message, self.chunk);
        let mut verifier = Verifier::new(&header, &self.config, self.now);
        for (index, name) in verifier.to_look_up().to_vec().iter().enumerate() {
            verifier.answer(index, Arc::new((self.answer)(name)));
        }
        body.chunks(self.chunk)
            .for_each(|chunk| verifier.body(chunk));
        verifier.finish(&header, self.engine)
    }

    /// The words of all verdicts, with the reason of each that is not `pass`.
    pub(crate) fn words(&self, message: &[u8]) -> Vec<String> {
        let verdicts = self.verdicts(message);
        verdicts
            .iter()
            .map(|verdict| match verdict.result.as_str() {
                "pass" => "pass".to_owned(),
                word => format!("{word}: {}", verdict.reason),
            })
            .collect()
    }
}
