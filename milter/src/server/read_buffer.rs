//! What was read from a connection and not yet used: one buffer, from which frames are borrowed.
//!
//! It grows as octets arrive, never because a length word says so, and goes back to next to nothing when a connection
//! idles. Octets move only when a frame that is not yet complete has no room behind it.

use std::ops::Range;

use crate::protocol::frame::{self, Decoded, Frame};

/// The buffer; frames lie between `start` and the end of `octets`.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    octets: Vec<u8>,
    start: usize,
}

/// Capacity of an idle connection: enough for any packet before a message's header.
const IDLE: usize = 1024;

/// Least room to read into once a packet did not fit an idle connection's buffer.
const BUSY: usize = 16 * 1024;

impl ReadBuffer {
    pub(super) fn new() -> Self {
        Self {
            octets: Vec::with_capacity(IDLE),
            start: 0,
        }
    }

    /// The next frame, if it is there; its place is for [`data`](Self::data).
    pub(super) fn decode(&self, limit: usize) -> Decoded {
        frame::decode(&self.octets[self.start..], limit)
    }

    /// The octets at `place`, as a frame has it.
    pub(super) fn data(&self, place: &Range<usize>) -> &[u8] {
        &self.octets[self.start..][place.clone()]
    }

    /// Drops `frame`, which was next.
    pub(super) fn consume(&mut self, frame: &Frame) {
        self.start += frame.consumed;
        if self.start == self.octets.len() {
            self.octets.clear();
            self.start = 0;
        }
    }

    /// How many octets are not yet used.
    pub(super) fn len(&self) -> usize {
        self.octets.len() - self.start
    }

    /// The vector to read into, with room behind its end; `wanted` octets in all make up the next frame.
    pub(super) fn room(&mut self, wanted: usize) -> &mut Vec<u8> {
        let missing = wanted.saturating_sub(self.len());
        let spare = self.octets.capacity() - self.octets.len();
        // An idle buffer that was not filled by the last read will do for the next.
        let enough = if self.octets.capacity() > IDLE {
            missing.max(IDLE)
        } else {
            1
        };
        if spare < enough {
            self.make_room(missing);
        }
        &mut self.octets
    }

    /// Gives memory back, if nothing is left in it.
    pub(super) fn shrink(&mut self) {
        if self.octets.is_empty() && self.octets.capacity() > IDLE {
            self.octets = Vec::with_capacity(IDLE);
        }
    }

    /// Moves what is left to the front, and grows where that is not enough: at most to twice of what has arrived.
    fn make_room(&mut self, missing: usize) {
        self.octets.drain(..self.start);
        self.start = 0;
        let room = missing.min(self.octets.len()).max(BUSY);
        self.octets.reserve_exact(room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frame::DEFAULT_LIMIT;

    fn packet(data: usize) -> Vec<u8> {
        let length = u32::try_from(data + 1).unwrap();
        [&length.to_be_bytes()[..], b"B", &vec![b'x'; data]].concat()
    }

    /// Reads as a socket would that always has `chunk` octets at hand; gives the frames' lengths and the largest capacity.
    fn read(buffer: &mut ReadBuffer, mut stream: &[u8], chunk: usize) -> (Vec<usize>, usize) {
        let (mut frames, mut capacity) = (Vec::new(), 0);
        loop {
            let wanted = match buffer.decode(DEFAULT_LIMIT) {
                Decoded::Frame(frame) => {
                    assert!(buffer.data(&frame.data).iter().all(|o| *o == b'x'));
                    frames.push(frame.data.len());
                    buffer.consume(&frame);
                    continue;
                }
                Decoded::NeedMore { total } => total,
                other => panic!("{other:?}"),
            };
            if stream.is_empty() {
                return (frames, capacity);
            }
            let room = buffer.room(wanted);
            let spare = room.capacity() - room.len();
            assert!(spare > 0);
            let (now, later) = stream.split_at(spare.min(chunk).min(stream.len()));
            room.extend_from_slice(now);
            assert_eq!(
                room.capacity() - room.len(),
                spare - now.len(),
                "must not grow by itself"
            );
            capacity = capacity.max(room.capacity());
            stream = later;
        }
    }

    #[test]
    fn frames_of_all_sizes_pass_in_chunks_of_all_sizes() {
        let sizes = [
            0, 1, 5, 1000, 1019, 1020, 5000, 65_535, 0, 65_535, 200_000, 3,
        ];
        let stream = sizes.map(packet).concat();
        for chunk in [1, 7, 1000, 4096, 65_536, usize::MAX] {
            let mut buffer = ReadBuffer::new();
            let (frames, capacity) = read(&mut buffer, &stream, chunk);
            assert_eq!(frames, sizes);
            assert!(capacity < 500_000, "{capacity}");
            buffer.shrink();
            assert_eq!(buffer.octets.capacity(), IDLE);
        }
    }

    #[test]
    fn a_length_word_alone_claims_no_memory() {
        let mut buffer = ReadBuffer::new();
        let (frames, capacity) = read(&mut buffer, &packet(1_000_000)[..100], usize::MAX);
        assert_eq!((frames, capacity), (vec![], IDLE));
        let (_, capacity) = read(&mut buffer, &vec![b'x'; 40_000], 1460);
        assert!(capacity < 100_000, "{capacity}");
    }
}
