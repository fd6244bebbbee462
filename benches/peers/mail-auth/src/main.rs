//! mail-auth as a harness (see `benches/src/peer_protocol.rs`, which is also this one's).
//!
//! Private keys and key records are parsed once; records are found in a cache of parsed ones, as mail-auth wants it, so
//! that verifying never waits. The argument says how messages are signed: `whole` or `stream`, in pieces of 64 KiB.
//! There is no verifying in pieces.
#![forbid(unsafe_code)]

#[allow(dead_code)]
#[path = "../../../src/peer_protocol.rs"]
mod peer_protocol;

use mail_auth::crypto::{DkimKey, Ed25519Key, RsaKey, Sha256};
use mail_auth::dkim::{Canonicalization, DkimError, DkimSigner, DomainKey};
use mail_auth::dns::TxtRecordParser;
use mail_auth::headers::HeaderWriter;
use mail_auth::hickory_resolver::config::{ResolverConfig, ResolverOpts};
use mail_auth::signer::Ready;
use mail_auth::{
    AuthenticatedMessage, DkimResult, DnsCache, Error, MessageAuthenticator, NoCache, Parameters,
    ResolverCache, TxtRecord,
};
use peer_protocol::{Job, Refusal, Verdict, Work, serve};
use rustix::time::{ClockId, clock_gettime};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let (description, load): (_, fn(Job) -> _) = match mode.as_str() {
        "whole" => ("whole messages", |job| load(job, false)),
        "stream" => ("signing in pieces of 64 KiB", |job| load(job, true)),
        _ => {
            eprintln!("usage: peer-mail-auth whole|stream");
            return ExitCode::FAILURE;
        }
    };
    let description = format!("mail-auth {}, {description}", version());
    let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
    match serve(&description, input, output, thread_cpu_time, load) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer-mail-auth {mode}: {error}");
            ExitCode::FAILURE
        }
    }
}

struct MailAuth {
    message: Vec<u8>,
    signer: DkimSigner<DkimKey, Ready>,
    in_pieces: bool,
    authenticator: MessageAuthenticator,
    records: Records,
    made: String,
}

fn load(job: Job, in_pieces: bool) -> Result<Box<dyn Work>, Refusal> {
    let key = PrivateKeyDer::from_pem_slice(&job.key).map_err(Refusal::from_error)?;
    let key = match job.algorithm.as_str() {
        "rsa-sha256" => DkimKey::from(RsaKey::<Sha256>::from_key_der(key).map_err(refused)?),
        "ed25519-sha256" => DkimKey::from(
            Ed25519Key::from_pkcs8_maybe_unchecked_der(key.secret_der()).map_err(refused)?,
        ),
        other => return Err(Refusal::Unsupported(format!("no such algorithm: {other}"))),
    };
    let (header, body) = match job.canonicalization.as_str() {
        "relaxed/relaxed" => (Canonicalization::Relaxed, Canonicalization::Relaxed),
        "simple/simple" => (Canonicalization::Simple, Canonicalization::Simple),
        other => return Err(Refusal::Unsupported(format!("c={other}"))),
    };
    let name = format!("{}._domainkey.{}.", job.selector, job.domain);
    let record = DomainKey::parse(&job.record).map_err(refused)?;
    // It has no servers: a question that the cache does not answer is an error, not a packet.
    let authenticator = MessageAuthenticator::new(
        ResolverConfig::from_parts(None, Vec::new(), Vec::new()),
        ResolverOpts::default(),
    );
    Ok(Box::new(MailAuth {
        signer: DkimSigner::from_key(key)
            .domain(job.domain)
            .selector(job.selector)
            .headers(job.fields)
            .header_canonicalization(header)
            .body_canonicalization(body),
        message: job.message,
        in_pieces,
        authenticator: authenticator.map_err(Refusal::from_error)?,
        records: Records(HashMap::from([(name.into(), TxtRecord::from(record))])),
        made: String::new(),
    }))
}

impl Work for MailAuth {
    fn sign(&mut self) -> Result<(), Refusal> {
        let signature = if self.in_pieces {
            let mut stream = self.signer.sign_streaming();
            self.message
                .chunks(65_536)
                .for_each(|piece| stream.write(piece));
            stream.finish()
        } else {
            self.signer.sign(&self.message)
        };
        self.made = signature.map_err(refused)?.to_header();
        Ok(())
    }

    fn signature(&self) -> String {
        self.made.trim_end().to_owned()
    }

    fn verify(&mut self) -> Result<Verdict, Refusal> {
        if self.in_pieces {
            return Err(Refusal::Unsupported(
                "only signing is done in pieces".into(),
            ));
        }
        let message = AuthenticatedMessage::parse(&self.message)
            .ok_or_else(|| Refusal::Error("not a message".into()))?;
        let parameters = Parameters::new(&message).with_cache(&self.records);
        let verifying = pin!(self.authenticator.verify_dkim(parameters));
        // With the record in the cache there is nothing to wait for.
        let Poll::Ready(outputs) = verifying.poll(&mut Context::from_waker(Waker::noop())) else {
            return Err(Refusal::Error("the cache did not have the record".into()));
        };
        match outputs.as_slice() {
            [output] => match output.result() {
                DkimResult::Pass => Ok(Verdict::Pass),
                DkimResult::Neutral(why @ Error::Dkim(DkimError::BodyHashMismatch))
                | DkimResult::Fail(why @ Error::Crypto(_)) => Ok(Verdict::Fail(why.to_string())),
                other => Err(Refusal::Error(format!("{other:?}"))),
            },
            outputs => Err(Refusal::Error(format!("{} results", outputs.len()))),
        }
    }
}

/// Key records, parsed and there for good.
struct Records(HashMap<Box<str>, TxtRecord>);

impl ResolverCache<Box<str>, TxtRecord> for Records {
    fn get<Q>(&self, name: &Q) -> Option<TxtRecord>
    where
        Box<str>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get(name).cloned()
    }

    fn remove<Q>(&self, _: &Q) -> Option<TxtRecord>
    where
        Box<str>: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        None
    }

    fn insert(&self, _: Box<str>, _: TxtRecord, _: Instant) {}
}

impl DnsCache for Records {
    type Txt = Self;
    type Mx = NoCache;
    type Ipv4 = NoCache;
    type Ipv6 = NoCache;
    type Ptr = NoCache;

    fn txt(&self) -> Option<&Self> {
        Some(self)
    }

    fn mx(&self) -> Option<&NoCache> {
        None
    }

    fn ipv4(&self) -> Option<&NoCache> {
        None
    }

    fn ipv6(&self) -> Option<&NoCache> {
        None
    }

    fn ptr(&self) -> Option<&NoCache> {
        None
    }
}

fn refused(error: Error) -> Refusal {
    Refusal::from_error(error)
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative, and nanoseconds are below 10^9.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What Cargo.lock says of mail-auth.
fn version() -> &'static str {
    let (_, package) = include_str!("../Cargo.lock")
        .split_once("name = \"mail-auth\"\nversion = \"")
        .unwrap_or_default();
    package.split('"').next().unwrap_or_default()
}
