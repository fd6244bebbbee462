//! Body hashes that a token makes (`Pkcs11Digest`): the canonical octets are handed out in steps, and until the token has
//! them the MTA is not heard. So a connection keeps no more of a body than a step and a chunk for each hash, however slow
//! the token is; and a token is asked for a few hashes of a message at most, whatever lengths its signatures give.

use super::Work;
use dkim_core::body_digest::{BodyHash, BodyStreams, NoBodyHash, ToDigest};
use std::time::Duration;

/// The hashes of one message.
pub(super) struct Digests {
    streams: BodyStreams,
    hashes: Vec<Hash>,
    /// How many hashes are wanted that are not made.
    refused: usize,
    /// How many octets each canonical form has, once the body is over.
    counts: Vec<u64>,
    /// Steps that are out.
    out: usize,
    has_ended: bool,
    timeout: Duration,
}

#[derive(Default)]
struct Hash {
    /// Octets that were not handed out yet.
    octets: Vec<u8>,
    /// What has become of it, once that is known.
    made: Option<Result<[u8; 32], String>>,
}

/// How many octets are handed out at once, at least.
const STEP: usize = 32 * 1024;

/// How many hashes of one message a token makes. Mail has one or two; each is a session of the token.
const MOST: usize = 4;

impl Digests {
    /// The start of a body; a step may take as long as `timeout`.
    pub(super) fn new(wanted: &[ToDigest], timeout: Duration) -> Self {
        let made = &wanted[..wanted.len().min(MOST)];
        Self {
            streams: BodyStreams::new(made),
            hashes: made.iter().map(|_| Hash::default()).collect(),
            refused: wanted.len() - made.len(),
            counts: Vec::new(),
            out: 0,
            has_ended: false,
            timeout,
        }
    }

    /// Takes the next octets of the body.
    pub(super) fn body(&mut self, chunk: &[u8]) {
        let hashes = &mut self.hashes;
        self.streams
            .update(chunk, &mut |place, octets| hashes[place].take(octets));
    }

    /// What the token is to do for `message` while the body passes, if there is enough.
    pub(super) fn steps(&mut self, message: u64) -> Vec<Work> {
        let is_due = |hash: &Hash| hash.octets.len() >= STEP;
        if self.has_ended || !self.hashes.iter().any(is_due) {
            return Vec::new();
        }
        self.hand_out(message, false)
    }

    /// Ends the body: the last steps.
    pub(super) fn end(&mut self, message: u64) -> Vec<Work> {
        let streams = std::mem::replace(&mut self.streams, BodyStreams::new(&[]));
        let hashes = &mut self.hashes;
        self.counts = streams.finish(&mut |place, octets| hashes[place].take(octets));
        self.has_ended = true;
        self.hand_out(message, true)
    }

    /// Takes what came of a step.
    pub(super) fn digested(&mut self, place: usize, result: Result<Vec<u8>, String>) {
        self.out = self.out.saturating_sub(1);
        let Some(hash) = self.hashes.get_mut(place) else {
            return;
        };
        match result {
            Err(why) => hash.made = Some(Err(why)),
            Ok(digest) => {
                if let Ok(digest) = digest.try_into() {
                    hash.made.get_or_insert(Ok(digest));
                }
            }
        }
    }

    /// Whether steps are out.
    pub(super) fn is_waiting(&self) -> bool {
        self.out > 0
    }

    /// Whether the last steps were handed out.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The hashes, in the order in which they are wanted.
    pub(super) fn hashes(&self) -> Vec<Result<BodyHash, NoBodyHash>> {
        let made = self.hashes.iter().zip(&self.counts);
        let made = made.map(|(hash, &body_octets)| match &hash.made {
            Some(Ok(digest)) => Ok(BodyHash {
                digest: *digest,
                body_octets,
            }),
            Some(Err(why)) => Err(NoBodyHash::Unavailable(why.clone())),
            None => Err(NoBodyHash::Unavailable(LATE.to_owned())),
        });
        let refused = || NoBodyHash::Refused(format!("token makes at most {MOST} body hashes"));
        made.chain((0..self.refused).map(|_| Err(refused())))
            .collect()
    }

    fn hand_out(&mut self, message: u64, is_last: bool) -> Vec<Work> {
        let mut work = Vec::new();
        for (place, hash) in self.hashes.iter_mut().enumerate() {
            let octets = std::mem::take(&mut hash.octets);
            if hash.made.is_none() && (is_last || !octets.is_empty()) {
                work.push(Work::Digest {
                    message,
                    place,
                    octets,
                    is_last,
                    timeout: self.timeout,
                });
            }
        }
        self.out += work.len();
        work
    }
}

impl Hash {
    fn take(&mut self, octets: &[u8]) {
        if self.made.is_none() {
            self.octets.extend_from_slice(octets);
        }
    }
}

/// Why there is no hash if no step has failed.
const LATE: &str = "the token gave no answer in time";
