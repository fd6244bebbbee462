//! Messages to send: header fields as they travel, and the body cut into packets once, however often it is sent.

use dkim_core::message::{HeaderFields, HeaderTooLarge, MessageReader};
use dkim_milter::protocol::command::Command;
use dkim_milter::protocol::mta;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::workload::{self, text_body};

/// One message.
pub struct Message {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    packets: Vec<u8>,
    /// Where each packet of the body lies.
    pieces: Vec<Range<usize>>,
    octets: usize,
}

impl Message {
    /// The message that other measuring programs have too: twelve fields, and a body of text of `size` octets.
    pub fn of_text(size: usize) -> Self {
        // The text is made of lines, and the shortest is an empty one.
        Self::new(&workload::header(), &text_body(size.max(2)))
    }

    /// The message in a file, with lines that end in CRLF or LF.
    ///
    /// # Errors
    /// A file that cannot be read, or is no message that an MTA would hand to a milter whole.
    pub fn from_file(path: &Path) -> Result<Self, MessageError> {
        let fault = |fault| MessageError {
            path: path.to_owned(),
            fault,
        };
        let octets = fs::read(path).map_err(|error| fault(Fault::Unreadable(error)))?;
        Self::from_octets(&octets).map_err(fault)
    }

    fn from_octets(octets: &[u8]) -> Result<Self, Fault> {
        let mut reader = MessageReader::new(MAX_HEADER);
        let mut body = Vec::with_capacity(octets.len());
        reader.read(octets, |more| body.extend_from_slice(more))?;
        reader.finish();
        let header = reader.header();
        for field in header.iter() {
            if field.octets().len() > MAX_FIELD {
                return Err(Fault::LongField {
                    octets: field.octets().len(),
                });
            }
            if field.octets().contains(&0) {
                return Err(Fault::Nul);
            }
        }
        if header.is_empty() {
            return Err(Fault::NoHeader);
        }
        Ok(Self::new(header, &body))
    }

    fn new(header: &HeaderFields, body: &[u8]) -> Self {
        let fields = header
            .iter()
            .map(|field| (field.name().to_vec(), with_lf(field.value())));
        let mut packets = Vec::with_capacity(body.len() + 5 * (1 + body.len() / PIECE));
        let pieces = body.chunks(PIECE).map(|piece| {
            let start = packets.len();
            mta::encode(&Command::Body(piece), &mut packets);
            start..packets.len()
        });
        Self {
            fields: fields.collect(),
            pieces: pieces.collect(),
            packets,
            octets: header.octets() + 2 + body.len(),
        }
    }

    /// Name and value of each header field; the value with all of the white space after the colon, and with folds that
    /// begin with LF.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// The packets of the body.
    pub(super) fn body(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &self.packets[piece.clone()])
    }

    /// The size of the whole message, in octets.
    pub fn octets(&self) -> usize {
        self.octets
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message of {} octets", self.octets)
    }
}

/// A message that cannot be sent, and where it is.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct MessageError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a message.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(io::Error),
    /// The header has no end, or far too late.
    #[error("{0}")]
    Header(#[from] HeaderTooLarge),
    /// Not a message.
    #[error("no header field in it")]
    NoHeader,
    /// Postfix would cut it.
    #[error("a header field of {octets} octets; an MTA hands over {MAX_FIELD} at most")]
    LongField {
        /// Its size.
        octets: usize,
    },
    /// Postfix would cut the field there.
    #[error("a NUL in the header")]
    Nul,
}

/// The largest piece of a body that Postfix sends.
const PIECE: usize = 65_535;

/// Where Postfix cuts a header field.
const MAX_FIELD: usize = 60_000;

/// Far beyond what an MTA takes.
const MAX_HEADER: usize = 4 << 20;

/// `value` with LF for each CR LF, as folds travel.
fn with_lf(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for (index, &octet) in value.iter().enumerate() {
        if octet != b'\r' || value.get(index + 1) != Some(&b'\n') {
            out.push(octet);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_travels_with_lf_folds_and_crlf_body_whatever_its_file_has() {
        for raw in [
            &b"From: a\nTo:b,\n c\n\nx\ny\n"[..],
            b"From: a\r\nTo:b,\r\n c\r\n\r\nx\r\ny\r\n",
        ] {
            let message = Message::from_octets(raw).unwrap();
            let fields: Vec<_> = message.fields().collect();
            assert_eq!(
                fields,
                [(&b"From"[..], &b" a"[..]), (&b"To"[..], &b"b,\n c"[..])]
            );
            let body: Vec<_> = message.body().collect();
            assert_eq!(body, [b"\0\0\0\x07Bx\r\ny\r\n"]);
            assert_eq!(message.octets(), 28);
        }
    }

    #[test]
    fn bodies_are_cut_as_postfix_cuts_them() {
        for (size, wanted) in [
            (2, &[2][..]),
            (65_535, &[65_535]),
            (65_536, &[65_535, 1]),
            (200_000, &[65_535, 65_535, 65_535, 3395]),
        ] {
            let message = Message::of_text(size);
            let pieces: Vec<_> = message.body().map(|packet| packet.len() - 5).collect();
            assert_eq!(pieces, wanted);
        }
    }

    #[test]
    fn what_no_mta_would_hand_over_whole_is_refused() {
        let long = [b"Subject: ", &[b'x'; MAX_FIELD][..], b"\r\n\r\n"].concat();
        for (raw, wanted) in [
            (&b""[..], "no header field in it"),
            (b"\r\nbody\r\n", "no header field in it"),
            (b"From: a\0b\r\n\r\n", "a NUL in the header"),
            (
                &long,
                "a header field of 60009 octets; an MTA hands over 60000 at most",
            ),
        ] {
            assert_eq!(Message::from_octets(raw).unwrap_err().to_string(), wanted);
        }
    }
}
