//! One go: what is done to one raw message, from its octets to its DKIM-Signature field or its verdict.
//!
//! Both begin by splitting the message, as every program does that has it from a file or a socket. Key and key record
//! are parsed once, or for each message if that is asked for.

use super::keys::Key;
use super::token::TokenDigest;
use dkim_core::canonicalization::Canonicalization;
use dkim_core::engine::{Engine, EngineError, PrivateKey, SigningKey};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::{HeaderFields, MessageReader};
use dkim_core::results::ResultWord;
use dkim_core::signature::FIELD_NAME;
use dkim_core::signer::{SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use std::sync::Arc;

/// What is done to each message.
#[derive(Debug)]
pub(super) enum Work<'a> {
    /// It is signed.
    Sign(Signing<'a>),
    /// It is verified.
    Verify(Verifying<'a>),
}

impl Work<'_> {
    /// Does it to `raw`; signing gives the value of the field.
    ///
    /// # Errors
    /// Why there is no signature, or why the verdict is not `pass`.
    pub(super) fn go(&self, raw: &[u8]) -> Result<Option<String>, String> {
        match self {
            Self::Sign(signing) => signing.sign(raw).map(Some),
            Self::Verify(verifying) => verifying.verify(raw).map(|()| None),
        }
    }
}

/// How messages are signed.
#[derive(Debug)]
pub(super) struct Signing<'a> {
    /// Who makes the key ready if it is parsed for each message.
    pub engine: &'a dyn Engine,
    /// With which key.
    pub key: &'a Key,
    /// Whether the key is parsed for each message.
    pub per_message_key: bool,
    /// What is asked of the signer.
    pub request: SignRequest,
    /// The token that hashes the body, if one does.
    pub digest: Option<TokenDigest>,
}

impl<'a> Signing<'a> {
    /// Signing as the programs do it: the default fields, and always the same time, so that a message has one signature
    /// and no other.
    pub(super) fn new(
        engine: &'a dyn Engine,
        key: &'a Key,
        canonicalization: Canonicalization,
        per_message_key: bool,
    ) -> Self {
        let mut request = SignRequest::new("example.com", "perf", key.ready.key_type());
        request.canonicalization = canonicalization;
        request.timestamp = Some(1_800_000_000);
        Self {
            engine,
            key,
            per_message_key,
            request,
            digest: None,
        }
    }

    /// The value of the DKIM-Signature field for `raw`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn sign(&self, raw: &[u8]) -> Result<String, String> {
        let parsed = match self.per_message_key {
            true => Some(self.parse_key().map_err(|error| error.to_string())?),
            false => None,
        };
        let key = parsed.as_deref().unwrap_or(&*self.key.ready);
        let (reader, body) = split(raw)?;
        let header = reader.header();
        let mut signer =
            Signer::new(header, vec![self.request.clone()]).map_err(|error| error.to_string())?;
        let pieces = match &self.digest {
            Some(digest) => {
                let hashes = digest.body_hashes(&signer.to_digest(), body)?;
                signer.to_sign_with(header, &hashes)
            }
            None => {
                signer.body(body);
                signer.to_sign(header)
            }
        };
        let piece = pieces.first().ok_or("the signer gave nothing to sign")?;
        let signature = key.sign(&piece.octets).map_err(|error| error.to_string())?;
        signer
            .field_value(piece.request, &signature)
            .ok_or_else(|| "the signer gave no field".to_owned())
    }

    /// Parses the key anew and makes it ready.
    ///
    /// # Errors
    /// Those of the engine.
    pub(super) fn parse_key(&self) -> Result<Box<dyn SigningKey>, EngineError> {
        let pem = self.key.pem.as_ref();
        let pem = pem.ok_or_else(|| EngineError("a key in a token cannot be parsed".to_owned()))?;
        let key = PrivateKey::from_octets(pem.as_bytes())
            .map_err(|error| EngineError(error.to_string()))?;
        self.engine.signing_key(&key)
    }
}

/// How messages are verified.
#[derive(Debug)]
pub(super) struct Verifying<'a> {
    /// Who checks.
    pub engine: &'a dyn Engine,
    /// With whose public half.
    pub key: &'a Key,
    /// The key record, parsed; `None` if it is parsed for each message.
    pub answer: Option<Arc<KeyAnswer>>,
    /// What is accepted.
    pub config: VerifierConfig,
    /// The token that hashes the body, if one does.
    pub digest: Option<TokenDigest>,
}

impl<'a> Verifying<'a> {
    /// Verifying as the programs do it: whatever name a signature gives, the record of `key` is there.
    pub(super) fn new(engine: &'a dyn Engine, key: &'a Key, per_message_key: bool) -> Self {
        Self {
            engine,
            key,
            answer: (!per_message_key).then(|| parse_record(key)),
            config: VerifierConfig::default(),
            digest: None,
        }
    }

    /// Whether a signature of `raw` passes.
    ///
    /// # Errors
    /// The reason of its first signature if none does.
    pub(super) fn verify(&self, raw: &[u8]) -> Result<(), String> {
        let (reader, body) = split(raw)?;
        let header = reader.header();
        let mut verifier = Verifier::new(header, &self.config, None);
        let names = verifier.to_look_up().len();
        if names > 0 {
            let answer = self.answer();
            (0..names).for_each(|name| verifier.answer(name, answer.clone()));
        }
        let verdicts = match &self.digest {
            Some(digest) => {
                let hashes = digest.body_hashes(&verifier.to_digest(), body)?;
                let hashes: Vec<_> = hashes.into_iter().map(Ok).collect();
                for check in verifier.to_check_with(header, &hashes) {
                    let outcome = check.run(self.engine);
                    verifier.checked(&check, outcome);
                }
                verifier.verdicts(header)
            }
            None => {
                verifier.body(body);
                verifier.finish(header, self.engine)
            }
        };
        if verdicts
            .iter()
            .any(|verdict| verdict.result == ResultWord::Pass)
        {
            return Ok(());
        }
        Err(verdicts.first().map_or_else(
            || "message is not signed".to_owned(),
            |verdict| format!("{}: {}", verdict.result.as_str(), verdict.reason),
        ))
    }

    /// What the DNS would say.
    pub(super) fn answer(&self) -> Arc<KeyAnswer> {
        match &self.answer {
            Some(answer) => answer.clone(),
            None => parse_record(self.key),
        }
    }
}

fn parse_record(key: &Key) -> Arc<KeyAnswer> {
    Arc::new(KeyAnswer::from_txt(&[key.record.as_bytes()]))
}

/// Splits a message in CRLF form into its header, read to the end, and its body.
///
/// # Errors
/// A header larger than [`MAX_HEADER`].
pub(super) fn split(raw: &[u8]) -> Result<(MessageReader, &[u8]), String> {
    let mut reader = MessageReader::new(MAX_HEADER);
    let mut rest = raw;
    while !reader.in_body() && !rest.is_empty() {
        let line = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
        // A line by itself: nothing of the body is in it.
        reader
            .read(&rest[..line], |_| ())
            .map_err(|error| error.to_string())?;
        rest = &rest[line..];
    }
    reader.finish();
    Ok((reader, rest))
}

/// More than mail systems pass on.
const MAX_HEADER: usize = 1 << 20;

/// `raw` with a DKIM-Signature field of that value on top.
pub(super) fn with_field(value: &str, raw: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(FIELD_NAME.len() + 3 + value.len() + raw.len());
    for piece in [FIELD_NAME.as_bytes(), b":", value.as_bytes(), b"\r\n", raw] {
        message.extend_from_slice(piece);
    }
    message
}

/// `raw` without its DKIM-Signature fields.
///
/// # Errors
/// Those of [`split`].
pub(super) fn without_signatures(raw: &[u8]) -> Result<Vec<u8>, String> {
    let (reader, body) = split(raw)?;
    let mut header = HeaderFields::new();
    for field in reader.header().iter() {
        if !field.is_named(FIELD_NAME.as_bytes()) {
            header.push_raw(field.octets());
        }
    }
    Ok(crate::workload::message(&header, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::options::KeySource;
    use dkim_core::engine::{KeyType, default_engine};

    fn key() -> Key {
        let source = KeySource::Made { bits: None };
        Key::get(&source, Some(KeyType::Ed25519), None).unwrap()
    }

    #[test]
    fn what_is_signed_verifies_whether_keys_are_kept_or_not() {
        let (key, raw) = (key(), b"From: a@example.com\r\n\r\nbody\r\n");
        for per_message_key in [false, true] {
            let signing = Signing::new(
                default_engine(),
                &key,
                Canonicalization::RELAXED,
                per_message_key,
            );
            let signed = with_field(&signing.sign(raw).unwrap(), raw);
            let verifying = Verifying::new(default_engine(), &key, per_message_key);
            assert_eq!(verifying.verify(&signed), Ok(()));
            assert_eq!(without_signatures(&signed).unwrap(), raw);
        }
    }

    #[test]
    fn what_is_not_good_has_its_reason() {
        let (one, other) = (key(), key());
        let raw = b"From: a@example.com\r\n\r\nbody\r\n";
        let signing = Signing::new(default_engine(), &one, Canonicalization::RELAXED, false);
        let signed = with_field(&signing.sign(raw).unwrap(), raw);
        let reason = |key, raw: &[u8]| Verifying::new(default_engine(), key, false).verify(raw);
        assert_eq!(
            reason(&other, &signed),
            Err("fail: signature did not verify".into())
        );
        assert_eq!(
            reason(&one, &[&signed[..], b"more\r\n"].concat()),
            Err("fail: body hash did not verify".into())
        );
        assert_eq!(reason(&one, raw), Err("message is not signed".into()));
        assert_eq!(
            signing.sign(b"To: b\r\n\r\n"),
            Err("message has no From field".into())
        );
    }

    #[test]
    fn a_message_is_split_at_its_first_empty_line() {
        for (raw, fields, body) in [
            (&b"A: b\r\n c\r\nD: e\r\n\r\n\r\nx"[..], 2, &b"\r\nx"[..]),
            (b"A: b\r\n", 1, b""),
            (b"A: b", 1, b""),
            (b"\r\nx", 0, b"x"),
        ] {
            let (reader, rest) = split(raw).unwrap();
            assert_eq!((reader.header().len(), rest), (fields, body));
        }
        assert!(split(&vec![b'a'; MAX_HEADER + 1]).is_err());
    }
}
