//! Our own library, and the primitives alone, as harnesses beside those of the peers (see `benches/peers/run.py`).
//!
//! The argument says which:
//! - `once`: keys and key records parsed once, as the daemon has them;
//! - `per-message`: both parsed for each message, as libopendkim does it;
//! - `operation`: AWS-LC's signing or checking alone, of a digest that is there;
//! - `octets`: the same with SHA-256 over the octets that are hashed for a message: its body and its signed header
//!   fields in canonical form.
//!
//! The first two take a whole message as octets each time.
#![forbid(unsafe_code)]

use aws_lc_rs::digest::{Digest, SHA256, digest};
use aws_lc_rs::signature::{
    ED25519, Ed25519KeyPair, KeyPair as _, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use dkim_benches::peer_protocol::{Job, Refusal, Verdict, Work, serve};
use dkim_benches::rounds::thread_cpu_time;
use dkim_core::canonicalization::{BodyCanonicalizer, Canonicalization};
use dkim_core::engine::{Engine, KeyType, PrivateKey, SigningKey, default_engine};
use dkim_core::key_record::KeyAnswer;
use dkim_core::message::MessageReader;
use dkim_core::results::ResultWord;
use dkim_core::signer::{FieldChoice, SignRequest, Signer};
use dkim_core::verifier::{Reason, Verifier, VerifierConfig};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let (description, load): (_, fn(Job) -> _) = match mode.as_str() {
        "once" => ("dkim-core, keys parsed once", |job| ours(job, false)),
        "per-message" => ("dkim-core, keys parsed per message", |job| ours(job, true)),
        "operation" => ("AWS-LC alone", |job| primitives(job, false)),
        "octets" => ("AWS-LC and its SHA-256 alone", |job| primitives(job, true)),
        _ => {
            eprintln!("usage: peer-ours once|per-message|operation|octets");
            return ExitCode::FAILURE;
        }
    };
    let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
    match serve(description, input, output, thread_cpu_time, load) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer-ours {mode}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// dkim-core as a program uses it.
struct Ours {
    job: Job,
    engine: &'static dyn Engine,
    /// `None` if they are parsed for each message.
    keys: Option<(Box<dyn SigningKey>, Arc<KeyAnswer>)>,
    request: SignRequest,
    made: String,
}

fn ours(job: Job, per_message: bool) -> Result<Box<dyn Work>, Refusal> {
    let engine = default_engine();
    let key = signing_key(&job, engine)?;
    let request = request(&job, key.key_type())?;
    let answer = Arc::new(KeyAnswer::from_txt(&[&job.record]));
    Ok(Box::new(Ours {
        engine,
        keys: (!per_message).then_some((key, answer)),
        request,
        made: String::new(),
        job,
    }))
}

impl Work for Ours {
    fn sign(&mut self) -> Result<(), Refusal> {
        let parsed;
        let key: &dyn SigningKey = match &self.keys {
            Some((key, _)) => key.as_ref(),
            None => {
                parsed = signing_key(&self.job, self.engine)?;
                parsed.as_ref()
            }
        };
        let mut message = Message::read_header(&self.job.message)?;
        let mut request = self.request.clone();
        request.timestamp = Some(now());
        let mut signer =
            Signer::new(message.reader.header(), vec![request]).map_err(Refusal::from_error)?;
        message.read_body(|octets| signer.body(octets))?;
        let pieces = signer.to_sign(message.reader.header());
        let signature = key.sign(&pieces[0].octets).map_err(Refusal::from_error)?;
        self.made = field(&signer, &signature)?;
        Ok(())
    }

    fn signature(&self) -> String {
        self.made.clone()
    }

    fn verify(&mut self) -> Result<Verdict, Refusal> {
        let answer = match &self.keys {
            Some((_, answer)) => answer.clone(),
            None => Arc::new(KeyAnswer::from_txt(&[&self.job.record])),
        };
        let mut message = Message::read_header(&self.job.message)?;
        let header = message.reader.header();
        let mut verifier = Verifier::new(header, &VerifierConfig::default(), Some(now()));
        let name = format!("{}._domainkey.{}", self.job.selector, self.job.domain);
        if verifier.to_look_up() != [name] {
            return Err(Refusal::Error("there is no signature of ours".into()));
        }
        verifier.answer(0, answer);
        message.read_body(|octets| verifier.body(octets))?;
        let verdicts = verifier.finish(message.reader.header(), self.engine);
        match &verdicts[0].reason {
            Reason::Verified { .. } if verdicts[0].result == ResultWord::Pass => Ok(Verdict::Pass),
            why @ (Reason::BodyHash | Reason::Signature) => Ok(Verdict::Fail(why.to_string())),
            why => Err(Refusal::from_error(why)),
        }
    }
}

/// What a signature rests on, done on the octets of a message but without reading it.
struct Primitives {
    signer: Signer,
    key: RawKey,
    /// Header fields and body in canonical form.
    header_octets: Vec<u8>,
    body_octets: Vec<u8>,
    /// The body as it is.
    body: Vec<u8>,
    /// What is signed and checked if nothing is hashed meanwhile.
    header_digest: Digest,
    with_hashes: bool,
    made: Vec<u8>,
}

fn primitives(job: Job, with_hashes: bool) -> Result<Box<dyn Work>, Refusal> {
    let key = signing_key(&job, default_engine())?;
    let mut request = request(&job, key.key_type())?;
    request.timestamp = Some(now());
    let mut canonicalizer = BodyCanonicalizer::new(request.canonicalization.body);
    let mut body_octets = Vec::new();
    let mut body = Vec::new();

    let mut message = Message::read_header(&job.message)?;
    let mut signer =
        Signer::new(message.reader.header(), vec![request]).map_err(Refusal::from_error)?;
    message.read_body(|octets| {
        signer.body(octets);
        body.extend_from_slice(octets);
        canonicalizer.update(octets, &mut |octets| body_octets.extend_from_slice(octets));
    })?;
    canonicalizer.finish(&mut |octets| body_octets.extend_from_slice(octets));
    let header_octets = signer
        .to_sign(message.reader.header())
        .swap_remove(0)
        .octets;

    let mut work = Primitives {
        signer,
        key: RawKey::new(&job, key.key_type())?,
        header_digest: digest(&SHA256, &header_octets),
        header_octets,
        body_octets,
        body,
        with_hashes,
        made: vec![0; 256],
    };
    work.sign()?;
    let other = digest(&SHA256, b"other octets");
    if work.verify()? != Verdict::Pass || work.key.verify(&other, &work.made) {
        return Err(Refusal::Error("the key does not check what it made".into()));
    }
    Ok(Box::new(work))
}

impl Primitives {
    fn digest(&self) -> Digest {
        if self.with_hashes {
            std::hint::black_box(digest(&SHA256, &self.body_octets));
            digest(&SHA256, &self.header_octets)
        } else {
            self.header_digest
        }
    }
}

impl Work for Primitives {
    fn sign(&mut self) -> Result<(), Refusal> {
        let digest = self.digest();
        self.key.sign(&digest, &mut self.made)
    }

    fn signature(&self) -> String {
        field(&self.signer, &self.made).unwrap_or_default()
    }

    fn verify(&mut self) -> Result<Verdict, Refusal> {
        Ok(if self.key.verify(&self.digest(), &self.made) {
            Verdict::Pass
        } else {
            Verdict::Fail("signature".into())
        })
    }

    fn hash(&mut self) -> Result<[u8; 32], Refusal> {
        let digest = digest(&SHA256, &self.body);
        digest.as_ref().try_into().map_err(Refusal::from_error)
    }
}

/// A key pair of AWS-LC's, with nothing of ours around it.
enum RawKey {
    Rsa(Box<RsaKeyPair>, ParsedPublicKey),
    Ed25519(Box<Ed25519KeyPair>, ParsedPublicKey),
}

impl RawKey {
    fn new(job: &Job, key_type: KeyType) -> Result<Self, Refusal> {
        let der = der(&job.key)?;
        Ok(match key_type {
            KeyType::Rsa => {
                let pair = RsaKeyPair::from_der(&der).map_err(Refusal::from_error)?;
                let octets = pair.public_key().as_ref();
                let public = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, octets);
                Self::Rsa(Box::new(pair), public.map_err(Refusal::from_error)?)
            }
            KeyType::Ed25519 => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
                let pair = pair.map_err(Refusal::from_error)?;
                let public = ParsedPublicKey::new(&ED25519, pair.public_key().as_ref());
                Self::Ed25519(Box::new(pair), public.map_err(Refusal::from_error)?)
            }
        })
    }

    /// Ed25519 signs the digest as a message (RFC 8463 section 3).
    fn sign(&self, digest: &Digest, made: &mut Vec<u8>) -> Result<(), Refusal> {
        match self {
            Self::Rsa(pair, _) => {
                made.resize(pair.public_modulus_len(), 0);
                pair.sign_digest(&RSA_PKCS1_SHA256, digest, made)
                    .map_err(Refusal::from_error)
            }
            Self::Ed25519(pair, _) => {
                made.clear();
                made.extend_from_slice(pair.sign(digest.as_ref()).as_ref());
                Ok(())
            }
        }
    }

    fn verify(&self, digest: &Digest, signature: &[u8]) -> bool {
        match self {
            Self::Rsa(_, public) => public.verify_digest_sig(digest, signature).is_ok(),
            Self::Ed25519(_, public) => public.verify_sig(digest.as_ref(), signature).is_ok(),
        }
    }
}

/// A message that lies in memory, on its way through the reader that all our programs use.
struct Message<'a> {
    reader: MessageReader,
    body: &'a [u8],
}

impl<'a> Message<'a> {
    fn read_header(octets: &'a [u8]) -> Result<Self, Refusal> {
        // The body is not to come before somebody can take it.
        let end = memchr::memmem::find(octets, b"\r\n\r\n").map_or(octets.len(), |at| at + 4);
        let (header, body) = octets.split_at(end);
        let mut reader = MessageReader::new(MAX_HEADER);
        reader.read(header, |_| {}).map_err(Refusal::from_error)?;
        Ok(Self { reader, body })
    }

    fn read_body(&mut self, take: impl FnMut(&[u8])) -> Result<(), Refusal> {
        let read = self.reader.read(self.body, take);
        self.reader.finish();
        read.map_err(Refusal::from_error)
    }
}

fn signing_key(job: &Job, engine: &dyn Engine) -> Result<Box<dyn SigningKey>, Refusal> {
    let key = PrivateKey::from_octets(&job.key).map_err(Refusal::from_error)?;
    engine.signing_key(&key).map_err(Refusal::from_error)
}

fn request(job: &Job, key_type: KeyType) -> Result<SignRequest, Refusal> {
    let mut request = SignRequest::new(&job.domain, &job.selector, key_type);
    request.canonicalization = Canonicalization::parse(job.canonicalization.as_bytes())
        .ok_or_else(|| Refusal::Error(format!("no such c=: {}", job.canonicalization)))?;
    // Nothing oversigned: everybody signs the same fields.
    let fields = FieldChoice::new::<String>(&job.fields, &[]).map_err(Refusal::from_error)?;
    request.fields = Arc::new(fields);
    Ok(request)
}

fn field(signer: &Signer, signature: &[u8]) -> Result<String, Refusal> {
    let value = signer.field_value(0, signature);
    let value = value.ok_or_else(|| Refusal::Error("the signer has no field".into()))?;
    Ok(format!("DKIM-Signature:{value}"))
}

/// The octets of a PEM file with one block.
fn der(pem: &[u8]) -> Result<Vec<u8>, Refusal> {
    let text = std::str::from_utf8(pem).map_err(Refusal::from_error)?;
    let lines = text.lines().filter(|line| !line.starts_with("-----"));
    BASE64
        .decode(lines.collect::<String>())
        .map_err(Refusal::from_error)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

const MAX_HEADER: usize = 1024 * 1024;
