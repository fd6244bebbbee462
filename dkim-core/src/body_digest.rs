//! The seam for digests of bodies that are made elsewhere, in a token for one (RFC 6376 section 3.7).
//!
//! [`Signer`](crate::signer::Signer) and [`Verifier`](crate::verifier::Verifier) say which hashes they want. Whoever makes
//! them feeds the body to [`BodyStreams`] instead, which gives the canonical octets of each, and hands the finished hashes
//! back at the end. Software needs none of this: it hashes by `body_hashes`, where signatures share what they have in
//! common. A digest that is made elsewhere cannot be looked at on its way, so that here each is a stream of its own.

use crate::canonicalization::{Algorithm, BodyCanonicalizer};

/// A body hash that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToDigest {
    /// The canonical form of the body.
    pub algorithm: Algorithm,
    /// How many of its first octets count (`l=`); all if `None`.
    pub limit: Option<u64>,
}

/// A finished hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyHash {
    /// SHA-256 of what was hashed.
    pub digest: [u8; 32],
    /// How many octets the whole canonical body has.
    pub body_octets: u64,
}

/// Why there is no hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoBodyHash {
    /// Who makes them cannot do so now; why.
    Unavailable(String),
    /// It will not be made; why.
    Refused(String),
}

/// A body on its way to whoever makes its hashes.
#[derive(Debug)]
pub struct BodyStreams {
    streams: Vec<Stream>,
}

/// One canonical form, and the hashes that want it.
#[derive(Debug)]
struct Stream {
    canonicalizer: BodyCanonicalizer,
    octets: Octets,
    algorithm: Algorithm,
}

#[derive(Debug, Default)]
struct Octets {
    /// How many there were.
    count: u64,
    /// The places of the hashes, and how many octets each of them still takes.
    wishes: Vec<(usize, u64)>,
}

impl BodyStreams {
    /// The start of a body of which the hashes in `wanted` are made.
    pub fn new(wanted: &[ToDigest]) -> Self {
        let mut streams: Vec<Stream> = Vec::new();
        for (place, wish) in wanted.iter().enumerate() {
            let known = streams.iter().position(|s| s.algorithm == wish.algorithm);
            let known = known.unwrap_or_else(|| {
                streams.push(Stream {
                    canonicalizer: BodyCanonicalizer::new(wish.algorithm),
                    octets: Octets::default(),
                    algorithm: wish.algorithm,
                });
                streams.len() - 1
            });
            let left = wish.limit.unwrap_or(u64::MAX);
            streams[known].octets.wishes.push((place, left));
        }
        Self { streams }
    }

    /// Takes the next octets of the body; `sink` gets the place of a hash in what was wanted, and octets that go into it.
    pub fn update(&mut self, chunk: &[u8], sink: &mut impl FnMut(usize, &[u8])) {
        for stream in &mut self.streams {
            let octets = &mut stream.octets;
            stream
                .canonicalizer
                .update(chunk, &mut |piece| octets.give(piece, sink));
        }
    }

    /// Ends the body: `sink` gets the last octets. How many octets the whole canonical body has, for each hash that was
    /// wanted.
    pub fn finish(self, sink: &mut impl FnMut(usize, &[u8])) -> Vec<u64> {
        let mut counts = Vec::new();
        for stream in self.streams {
            let mut octets = stream.octets;
            stream
                .canonicalizer
                .finish(&mut |piece| octets.give(piece, sink));
            counts.extend(
                octets
                    .wishes
                    .iter()
                    .map(|(place, _)| (*place, octets.count)),
            );
        }
        counts.sort_unstable();
        counts.into_iter().map(|(_, count)| count).collect()
    }
}

impl Octets {
    fn give(&mut self, piece: &[u8], sink: &mut impl FnMut(usize, &[u8])) {
        self.count += piece.len() as u64;
        for (place, left) in &mut self.wishes {
            let length = usize::try_from(*left).map_or(piece.len(), |left| left.min(piece.len()));
            if length > 0 {
                sink(*place, &piece[..length]);
                *left -= length as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_hashes::BodyHashes;
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    proptest! {
        /// What goes elsewhere is what would have been hashed here.
        #[test]
        fn streams_hold_what_software_hashes(
            body in proptest::collection::vec(proptest::sample::select(b"ab \t\r\n".to_vec()), 0..80),
            wishes in proptest::collection::vec((any::<bool>(), proptest::option::of(0u64..60)), 0..5),
            chunk in 1usize..20,
        ) {
            let mut hashes = BodyHashes::default();
            for (simple, limit) in wishes {
                let algorithm = if simple { Algorithm::Simple } else { Algorithm::Relaxed };
                hashes.add(algorithm, limit);
            }
            let wanted = hashes.wanted();
            let mut made = vec![Sha256::new(); wanted.len()];
            let mut streams = BodyStreams::new(&wanted);
            let mut sink = |place: usize, octets: &[u8]| made[place].update(octets);
            for chunk in body.chunks(chunk) {
                hashes.update(chunk);
                streams.update(chunk, &mut sink);
            }
            let counts = streams.finish(&mut sink);
            prop_assert_eq!(counts.len(), wanted.len());
            let ours: Vec<BodyHash> = made.into_iter().zip(counts).map(|(hash, body_octets)| BodyHash {
                digest: hash.finalize().into(),
                body_octets,
            }).collect();
            prop_assert_eq!(hashes.finish().all(&wanted), ours);
        }
    }
}
