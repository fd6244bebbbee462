//! Frames: the packets a milter connection is made of, `length:u32 command:u8 data[length - 1]`, big-endian.
//!
//! The decoder looks at what a caller has read so far and says what is there. It keeps nothing, copies nothing and
//! allocates nothing: a frame is described by its place in the caller's buffer. What a command means is for
//! [`command`](super::command) and [`reply`](super::reply).

use std::ops::Range;

/// The default limit on a frame's length word: 1 MiB.
///
/// libmilter and Postfix send at most 65 536; a Sendmail that offers `MDS_1M` may send exactly this much. More is no
/// milter packet at all: the first four octets of an HTTP request read as a length over 1 GiB.
pub const DEFAULT_LIMIT: usize = 1 << 20;

/// Octets of the length word.
const LENGTH_WORD: usize = 4;

/// What stands at the start of a read buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The frame is not all there: the buffer must hold `total` octets before asking again is of use. At most the
    /// limit and the length word, so a caller may reserve that much.
    NeedMore {
        /// Octets from the start of the buffer.
        total: usize,
    },
    /// A whole frame.
    Frame(Frame),
    /// A length above the limit, of which nothing but the length word was looked at. The stream cannot be followed
    /// from here on.
    TooLarge {
        /// The length word.
        length: u32,
    },
    /// A length of 0, without even a command. The stream cannot be trusted from here on.
    Empty,
}

/// Where a frame lies in the buffer that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The command or reply octet.
    pub command: u8,
    /// The place of the data.
    pub data: Range<usize>,
    /// Octets to drop from the start of the buffer once the data has been used.
    pub consumed: usize,
}

/// Looks for a frame at the start of `read`; `limit` bounds the length word, that is command and data together.
///
/// Constant work, whatever the length word says.
pub fn decode(read: &[u8], limit: usize) -> Decoded {
    let Some((word, rest)) = read.split_first_chunk::<LENGTH_WORD>() else {
        return Decoded::NeedMore { total: LENGTH_WORD };
    };
    let length = u32::from_be_bytes(*word);
    let Some(total) = usize::try_from(length)
        .ok()
        .filter(|&length| length <= limit)
        .and_then(|length| length.checked_add(LENGTH_WORD))
    else {
        return Decoded::TooLarge { length };
    };
    if length == 0 {
        return Decoded::Empty;
    }
    match rest.first() {
        Some(&command) if read.len() >= total => Decoded::Frame(Frame {
            command,
            data: LENGTH_WORD + 1..total,
            consumed: total,
        }),
        _ => Decoded::NeedMore { total },
    }
}

/// Appends a frame of `command` and of what `data` appends.
///
/// The length word is 32 bits wide; data of 4 GiB has no frame, and callers have none.
pub(super) fn append(out: &mut Vec<u8>, command: u8, data: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, command]);
    data(out);
    let length = out.len() - start - LENGTH_WORD;
    let word = u32::try_from(length).unwrap_or(u32::MAX);
    out[start..start + LENGTH_WORD].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn what_is_there_is_told_from_what_is_missing() {
        let frame = |command, end: usize| {
            Decoded::Frame(Frame {
                command,
                data: 5..end,
                consumed: end,
            })
        };
        for (read, wanted) in [
            (&b""[..], Decoded::NeedMore { total: 4 }),
            (b"\0\0\0", Decoded::NeedMore { total: 4 }),
            (b"\0\0\0\x01", Decoded::NeedMore { total: 5 }),
            (b"\0\0\0\x01Q", frame(b'Q', 5)),
            (b"\0\0\0\x01QAAAA", frame(b'Q', 5)),
            (b"\0\0\0\x04Hab", Decoded::NeedMore { total: 8 }),
            (b"\0\0\0\x04Hab\0", frame(b'H', 8)),
            (b"\0\0\x01\0", Decoded::NeedMore { total: 260 }),
            (b"\0\0\0\0", Decoded::Empty),
            (b"\0\0\0\0Q", Decoded::Empty),
        ] {
            assert_eq!(decode(read, DEFAULT_LIMIT), wanted, "{read:?}");
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_from_the_length_word_alone() {
        for (read, length) in [
            (&b"\xff\xff\xff\xff"[..], 0xffff_ffff),
            (b"\x00\x10\x00\x01", 0x10_0001),
            (b"GET / HTTP/1.1\r\n\r\n", 0x4745_5420),
            (b"EHLO x\r\n", 0x4548_4c4f),
        ] {
            assert_eq!(
                decode(read, DEFAULT_LIMIT),
                Decoded::TooLarge { length },
                "{read:?}"
            );
        }
        assert_eq!(
            decode(b"\x00\x10\x00\x00", DEFAULT_LIMIT),
            Decoded::NeedMore { total: 0x10_0004 }
        );
        assert_eq!(decode(b"\0\0\0\x09B", 8), Decoded::TooLarge { length: 9 });
        assert_eq!(decode(b"\0\0\0\x08B", 8), Decoded::NeedMore { total: 12 });
    }

    proptest! {
        #[test]
        fn any_octets_are_decoded_within_them(read in vec(any::<u8>(), 0..64), limit in 0usize..64) {
            match decode(&read, limit) {
                Decoded::Frame(frame) => {
                    prop_assert!(frame.consumed <= read.len());
                    prop_assert_eq!(frame.data.end, frame.consumed);
                    prop_assert_eq!(read[4], frame.command);
                }
                Decoded::NeedMore { total } => {
                    prop_assert!(total > read.len());
                    prop_assert!(total <= limit + 4);
                }
                Decoded::TooLarge { length } => prop_assert!(length as usize > limit),
                Decoded::Empty => prop_assert_eq!(&read[..4], &[0; 4]),
            }
        }

        #[test]
        fn any_chunking_of_a_stream_gives_the_same_frames(
            frames in vec((any::<u8>(), vec(any::<u8>(), 0..40)), 0..12),
            chunks in vec(1usize..50, 1..20),
        ) {
            let mut stream = Vec::new();
            for (command, data) in &frames {
                append(&mut stream, *command, |out| out.extend_from_slice(data));
            }
            let (mut buffer, mut seen) = (Vec::new(), Vec::new());
            let mut left = stream.as_slice();
            for chunk in chunks.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (now, later) = left.split_at((*chunk).min(left.len()));
                left = later;
                buffer.extend_from_slice(now);
                while let Decoded::Frame(frame) = decode(&buffer, DEFAULT_LIMIT) {
                    seen.push((frame.command, buffer[frame.data].to_vec()));
                    buffer.drain(..frame.consumed);
                }
            }
            prop_assert!(buffer.is_empty());
            prop_assert_eq!(seen, frames);
        }
    }
}
