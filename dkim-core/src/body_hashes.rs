//! The body hashes of one message (RFC 6376 section 3.7), shared between signatures that want the same.
//!
//! Each canonicalization runs once over a chunk, whatever the number of signatures, and so does its hash: a hash of the
//! first octets (`l=`) is what the one hash is when it has come that far. So no number of lengths makes a body dearer.

use crate::body_digest::{BodyHash, ToDigest};
use crate::canonicalization::{Algorithm, BodyCanonicalizer};
use sha2::{Digest, Sha256};

/// Hashes in the making: a stream for each canonicalization that is wanted.
#[derive(Debug, Default)]
pub(crate) struct BodyHashes {
    simple: Option<Stream>,
    relaxed: Option<Stream>,
}

/// Which hash of a [`BodyHashes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashId {
    algorithm: Algorithm,
    /// Which of the wishes for a part of the body; none for all of it.
    part: Option<usize>,
}

/// One canonical body, its hash, and what that is on its way.
#[derive(Debug)]
struct Stream {
    canonicalizer: BodyCanonicalizer,
    hashes: Hashes,
}

#[derive(Debug, Default)]
struct Hashes {
    octets: u64,
    hasher: Sha256,
    /// Whether the hash of all octets is wanted, so that none may be left out.
    whole: bool,
    parts: Vec<Part>,
}

/// The hash of the first `limit` octets, once there are so many.
#[derive(Debug)]
struct Part {
    limit: u64,
    digest: Option<[u8; 32]>,
}

impl BodyHashes {
    /// The hash of a body in canonical form, or of its first `limit` octets; made only once for the same wish.
    pub(crate) fn add(&mut self, algorithm: Algorithm, limit: Option<u64>) -> HashId {
        let stream = match algorithm {
            Algorithm::Simple => &mut self.simple,
            Algorithm::Relaxed => &mut self.relaxed,
        };
        let stream = stream.get_or_insert_with(|| Stream {
            canonicalizer: BodyCanonicalizer::new(algorithm),
            hashes: Hashes::default(),
        });
        HashId {
            algorithm,
            part: stream.hashes.add(limit),
        }
    }

    /// What is wanted, for who makes the hashes elsewhere.
    pub(crate) fn wanted(&self) -> Vec<ToDigest> {
        let of = |algorithm, stream: &Option<Stream>| {
            let limits = stream.as_ref().map_or(Vec::new(), |s| s.hashes.limits());
            let wanted = limits.into_iter();
            wanted.map(move |limit| ToDigest { algorithm, limit })
        };
        let simple = of(Algorithm::Simple, &self.simple);
        simple
            .chain(of(Algorithm::Relaxed, &self.relaxed))
            .collect()
    }

    /// The place of a hash in what is [`wanted`](Self::wanted).
    pub(crate) fn place(&self, id: HashId) -> usize {
        let hashes = |stream: &Option<Stream>| {
            let hashes = stream.as_ref().map(|stream| &stream.hashes);
            hashes.map_or((0, 0), |hashes| {
                (usize::from(hashes.whole), hashes.parts.len())
            })
        };
        let (simple, relaxed) = (hashes(&self.simple), hashes(&self.relaxed));
        let (before, wholes) = match id.algorithm {
            Algorithm::Simple => (0, simple.0),
            Algorithm::Relaxed => (simple.0 + simple.1, relaxed.0),
        };
        before + id.part.map_or(0, |part| wholes + part)
    }

    /// Takes the next octets of the body.
    pub(crate) fn update(&mut self, chunk: &[u8]) {
        for stream in [&mut self.simple, &mut self.relaxed].into_iter().flatten() {
            let hashes = &mut stream.hashes;
            stream
                .canonicalizer
                .update(chunk, &mut |piece| hashes.update(piece));
        }
    }

    /// Ends the body.
    pub(crate) fn finish(self) -> FinishedHashes {
        FinishedHashes {
            simple: self.simple.map(Stream::finish),
            relaxed: self.relaxed.map(Stream::finish),
        }
    }
}

/// All hashes of a message.
#[derive(Debug)]
pub(crate) struct FinishedHashes {
    simple: Option<Finished>,
    relaxed: Option<Finished>,
}

/// Those of one canonical body.
#[derive(Debug)]
struct Finished {
    whole: BodyHash,
    parts: Vec<Part>,
}

impl FinishedHashes {
    /// The hash that [`BodyHashes::add`] promised.
    pub(crate) fn get(&self, id: HashId) -> BodyHash {
        let finished = match id.algorithm {
            Algorithm::Simple => &self.simple,
            Algorithm::Relaxed => &self.relaxed,
        };
        let Some(finished) = finished else {
            unreachable!("who promised this hash has a stream for it");
        };
        let part = id.part.and_then(|part| finished.parts[part].digest);
        BodyHash {
            // A body that is shorter than the part is all of it.
            digest: part.unwrap_or(finished.whole.digest),
            ..finished.whole
        }
    }
}

#[cfg(test)]
impl FinishedHashes {
    /// All of them, in the order of [`BodyHashes::wanted`]; `wanted` is that.
    pub(crate) fn all(&self, wanted: &[ToDigest]) -> Vec<BodyHash> {
        let find = |wish: &ToDigest| {
            let finished = match wish.algorithm {
                Algorithm::Simple => self.simple.as_ref(),
                Algorithm::Relaxed => self.relaxed.as_ref(),
            };
            let part = finished?
                .parts
                .iter()
                .position(|part| Some(part.limit) == wish.limit);
            let algorithm = wish.algorithm;
            Some(self.get(HashId { algorithm, part }))
        };
        wanted.iter().filter_map(find).collect()
    }
}

impl Stream {
    fn finish(self) -> Finished {
        let mut hashes = self.hashes;
        self.canonicalizer.finish(&mut |piece| hashes.update(piece));
        Finished {
            whole: BodyHash {
                digest: hashes.hasher.finalize().into(),
                body_octets: hashes.octets,
            },
            parts: hashes.parts,
        }
    }
}

impl Hashes {
    fn add(&mut self, limit: Option<u64>) -> Option<usize> {
        let Some(limit) = limit else {
            self.whole = true;
            return None;
        };
        let known = self.parts.iter().position(|part| part.limit == limit);
        Some(known.unwrap_or_else(|| {
            self.parts.push(Part {
                limit,
                digest: None,
            });
            self.parts.len() - 1
        }))
    }

    /// How much of the body each hash is of, none standing for all of it.
    fn limits(&self) -> Vec<Option<u64>> {
        let whole = self.whole.then_some(None);
        let parts = self.parts.iter().map(|part| Some(part.limit));
        whole.into_iter().chain(parts).collect()
    }

    fn update(&mut self, piece: &[u8]) {
        if self.parts.is_empty() {
            self.hasher.update(piece);
        } else {
            self.update_parts(piece);
        }
        self.octets += piece.len() as u64;
    }

    fn update_parts(&mut self, piece: &[u8]) {
        let (mut rest, mut octets) = (piece, self.octets);
        while let Some(limit) = self.next_limit() {
            let room = usize::try_from(limit - octets).unwrap_or(usize::MAX);
            if rest.len() <= room {
                break;
            }
            let (head, tail) = rest.split_at(room);
            self.hasher.update(head);
            (rest, octets) = (tail, limit);
            let digest = self.hasher.clone().finalize().into();
            let reached = self.parts.iter_mut().filter(|part| part.limit == limit);
            reached.for_each(|part| part.digest = Some(digest));
        }
        if self.whole || self.next_limit().is_some() {
            self.hasher.update(rest);
        }
    }

    /// The least number of octets that is wanted and was not passed.
    fn next_limit(&self) -> Option<u64> {
        let open = self.parts.iter().filter(|part| part.digest.is_none());
        open.map(|part| part.limit).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values by `printf ... | sha256sum`.
    #[test]
    fn wishes_are_shared_and_limits_count_canonical_octets() {
        let mut hashes = BodyHashes::default();
        let whole = hashes.add(Algorithm::Relaxed, None);
        let two = hashes.add(Algorithm::Relaxed, Some(2));
        let simple = hashes.add(Algorithm::Simple, None);
        let none = hashes.add(Algorithm::Simple, Some(0));
        let more = hashes.add(Algorithm::Relaxed, Some(99));
        assert_eq!(hashes.add(Algorithm::Relaxed, Some(2)), two);
        for chunk in [&b"a "[..], b"  b\r", b"\n\r\n"] {
            hashes.update(chunk);
        }
        let finished = hashes.finish();
        for (id, hex, octets) in [
            (
                whole,
                "4ae1198f28938d4a755c7a46a662f0f5729aca3cb714cae4e37d60b84c4ee9cc",
                5,
            ),
            (
                two,
                "6583dcd6056fd32aadd0d2d0be920de99f6ff08b80065e4b9142aaa4169391cb",
                5,
            ),
            (
                simple,
                "48166f6d9b132ef68c86b675ab8d45349f8f3868f8f24f26aa8440c99d9189ee",
                7,
            ),
            (
                none,
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
                7,
            ),
            (
                more,
                "4ae1198f28938d4a755c7a46a662f0f5729aca3cb714cae4e37d60b84c4ee9cc",
                5,
            ),
        ] {
            let hash = finished.get(id);
            let got: String = hash.digest.iter().map(|o| format!("{o:02x}")).collect();
            assert_eq!((got.as_str(), hash.body_octets), (hex, octets));
        }
    }

    proptest! {
        #[test]
        fn each_length_has_the_hash_of_so_many_octets(
            body in proptest::collection::vec(any::<u8>().prop_filter("is text", |o| !b" \t\r\n".contains(o)), 0..50),
            limits in proptest::collection::vec(proptest::option::of(0u64..60), 1..6),
            chunk in 1usize..20,
        ) {
            let mut hashes = BodyHashes::default();
            let ids: Vec<HashId> = limits.iter().map(|limit| hashes.add(Algorithm::Simple, *limit)).collect();
            body.chunks(chunk).for_each(|chunk| hashes.update(chunk));
            let finished = hashes.finish();
            let canonical = [&body[..], b"\r\n"].concat();
            for (id, limit) in ids.into_iter().zip(limits) {
                let length = limit.map_or(canonical.len(), |limit| canonical.len().min(limit as usize));
                let want: [u8; 32] = Sha256::digest(&canonical[..length]).into();
                prop_assert_eq!(finished.get(id).digest, want);
            }
        }
    }

    /// Ten lengths, each of them over a body of its own, take ten times as long.
    #[test]
    fn many_lengths_cost_no_more_than_one() {
        let time = |lengths: u64| {
            let mut hashes = BodyHashes::default();
            for length in 0..lengths {
                hashes.add(Algorithm::Simple, Some(1 << (30 + length)));
            }
            let started = std::time::Instant::now();
            (0..100).for_each(|_| hashes.update(&[b'x'; 1000]));
            started.elapsed()
        };
        let (one, many) = (time(1), time(30));
        assert!(many < one * 10, "{one:?} for one, {many:?} for 30");
    }
}
