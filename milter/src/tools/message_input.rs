//! A message from a file or standard input, as a stream of chunks, and once more as it was.
//!
//! Memory does not depend on the size of the message. What can be read twice is read twice; of a pipe, what is beyond
//! a first megabyte is kept in a temporary file without a name, which vanishes with the process. What the octets mean
//! is known by `dkim-core`'s `MessageReader`.

use super::{EX_DATAERR, EX_IOERR, EX_NOINPUT, OutputError};
use crate::shown::cause;
use dkim_core::message::{HeaderField, HeaderFields, HeaderTooLarge, MessageReader};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use tempfile::SpooledTempFile;

/// Headers beyond this are no mail; mail systems stop at a tenth of it.
const MAX_HEADER: usize = 1024 * 1024;

/// How much of a pipe is kept in memory.
const MAX_IN_MEMORY: usize = 1024 * 1024;

const CHUNK: usize = 64 * 1024;

/// A message being read.
#[derive(Debug)]
pub(super) struct MessageInput {
    path: PathBuf,
    octets: Octets,
    reader: MessageReader,
    /// What came with the end of the header, in CRLF form.
    body_start: Vec<u8>,
    separators: Separators,
    buffer: Vec<u8>,
}

impl MessageInput {
    /// Opens the file at `path`, or standard input for `-`. What is to be [copied](Self::copy_with) later must be
    /// `kept`.
    pub(super) fn open(path: &Path, kept: bool) -> Result<Self, InputError> {
        let opened = if path == Path::new("-") {
            io::stdin().as_fd().try_clone_to_owned().map(File::from)
        } else {
            File::open(path)
        };
        let octets = opened.and_then(|file| Octets::new(file, kept));
        let octets = octets.map_err(|source| InputError::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            octets,
            reader: MessageReader::new(MAX_HEADER),
            body_start: Vec::new(),
            separators: Separators::default(),
            buffer: vec![0; CHUNK],
        })
    }

    /// Reads up to the body.
    ///
    /// # Errors
    /// Octets that cannot be read, or that are no message.
    pub(super) fn read_header(&mut self) -> Result<(), InputError> {
        while !self.reader.in_body() {
            let count = self.fill()?;
            if count == 0 {
                self.reader.finish();
                break;
            }
            let body_start = &mut self.body_start;
            let read = self.reader.read(&self.buffer[..count], |octets| {
                body_start.extend_from_slice(octets)
            });
            read.map_err(|source| InputError::HeaderTooLarge {
                path: self.path.clone(),
                source,
            })?;
        }
        if is_header(self.reader.header()) {
            Ok(())
        } else {
            Err(InputError::NotAMessage {
                path: self.path.clone(),
            })
        }
    }

    /// The header, complete once it has been [read](Self::read_header).
    pub(super) fn header(&self) -> &HeaderFields {
        self.reader.header()
    }

    /// How lines end in the message as it is stored.
    pub(super) fn line_end(&self) -> &'static str {
        if self.reader.has_lf_lines() {
            "\n"
        } else {
            "\r\n"
        }
    }

    /// Whether this looks like a folder in mbox form with several messages, as far as the body has been read.
    pub(super) fn holds_several(&self) -> bool {
        self.reader.has_mbox_line() && self.separators.found
    }

    /// Reads the body and gives it to `body`, in CRLF form, piece by piece, until there is no more or `body` wants no
    /// more. A pipe is read to its end in any case, so that its writer can finish.
    pub(super) fn read_body(
        &mut self,
        mut body: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), InputError> {
        let body_start = std::mem::take(&mut self.body_start);
        let separators = &mut self.separators;
        separators.look_at(&body_start);
        let mut wanted = body(&body_start);
        while wanted || !self.octets.is_regular {
            let count = self.fill()?;
            if count == 0 {
                break;
            }
            // In the body there is no limit to exceed.
            let separators = &mut self.separators;
            let _ = self.reader.read(&self.buffer[..count], |octets| {
                separators.look_at(octets);
                wanted = wanted && body(octets);
            });
        }
        Ok(())
    }

    /// Writes the whole message as it was stored, `fields` above all others but below an mbox `From ` line.
    pub(super) fn copy_with(
        &mut self,
        fields: &[u8],
        output: &mut impl Write,
    ) -> Result<(), CopyError> {
        let size = self.octets.seen;
        self.octets
            .rewind()
            .map_err(|error| self.unreadable(error))?;
        let mut copied = 0;
        let mut is_above = true;
        let is_mbox = self.reader.has_mbox_line();
        loop {
            let count = self.fill()?;
            if count == 0 {
                break;
            }
            copied += count as u64;
            let mut chunk = &self.buffer[..count];
            if is_above && is_mbox {
                let end = memchr::memchr(b'\n', chunk).map(|at| at + 1);
                let (line, rest) = chunk.split_at(end.unwrap_or(count));
                output.write_all(line).map_err(OutputError::from)?;
                chunk = rest;
                if end.is_none() {
                    continue;
                }
            }
            if std::mem::take(&mut is_above) {
                output.write_all(fields).map_err(OutputError::from)?;
            }
            output.write_all(chunk).map_err(OutputError::from)?;
        }
        if copied == size {
            Ok(())
        } else {
            Err(CopyError::Changed {
                path: self.path.clone(),
            })
        }
    }

    /// The next octets into the buffer; how many, 0 at the end.
    ///
    /// The buffer is filled as far as possible, so that a pipe that gives octets one by one costs no more than a file.
    fn fill(&mut self) -> Result<usize, InputError> {
        let mut count = 0;
        while count < self.buffer.len() {
            match self.octets.read(&mut self.buffer[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        Ok(count)
    }

    fn unreadable(&self, source: io::Error) -> InputError {
        InputError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

/// Looks for lines that begin with `From ` after an empty one, by which an mbox parts messages.
#[derive(Debug)]
struct Separators {
    /// The last octets seen, as a line may come in pieces.
    tail: Vec<u8>,
    found: bool,
}

impl Default for Separators {
    /// At the start of a body, which an empty line stands before.
    fn default() -> Self {
        Self {
            tail: b"\r\n\r\n".to_vec(),
            found: false,
        }
    }
}

impl Separators {
    fn look_at(&mut self, octets: &[u8]) {
        if self.found || octets.is_empty() {
            return;
        }
        let start = octets.len().min(SEPARATOR.len());
        self.tail.extend_from_slice(&octets[..start]);
        let find = |octets| memchr::memmem::find(octets, SEPARATOR).is_some();
        self.found = find(&self.tail) || find(octets);
        let last = &octets[octets.len() - start..];
        if start == SEPARATOR.len() {
            self.tail.clear();
            self.tail.extend_from_slice(last);
        }
        let more = self.tail.len().saturating_sub(SEPARATOR.len() - 1);
        self.tail.drain(..more);
    }
}

const SEPARATOR: &[u8] = b"\r\n\r\nFrom ";

/// Where the octets come from.
#[derive(Debug)]
struct Octets {
    file: File,
    is_regular: bool,
    /// Where the message begins in a regular file, which standard input may be.
    start: u64,
    /// What was read from a pipe.
    spool: Option<SpooledTempFile>,
    /// How many octets were read the first time.
    seen: u64,
    is_second_time: bool,
}

impl Octets {
    fn new(mut file: File, kept: bool) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        if kind.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let is_regular = kind.is_file();
        Ok(Self {
            start: if is_regular {
                file.stream_position()?
            } else {
                0
            },
            file,
            is_regular,
            spool: (kept && !is_regular).then(|| SpooledTempFile::new(MAX_IN_MEMORY)),
            seen: 0,
            is_second_time: false,
        })
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.is_second_time = true;
        match &mut self.spool {
            Some(spool) => spool.rewind(),
            None => self.file.seek(SeekFrom::Start(self.start)).map(|_| ()),
        }
    }
}

impl Read for Octets {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_second_time {
            return match &mut self.spool {
                Some(spool) => spool.read(buffer),
                None => self.file.read(buffer),
            };
        }
        let count = self.file.read(buffer)?;
        self.seen += count as u64;
        if let Some(spool) = &mut self.spool {
            spool.write_all(&buffer[..count]).map_err(|error| {
                let directory = std::env::temp_dir();
                let why = format!("cannot keep it in {}: {error}", directory.display());
                io::Error::new(error.kind(), why)
            })?;
        }
        Ok(count)
    }
}

/// Whether this can be the header of a message: a line in it is a header field (RFC 5322 section 2.2), and the first one
/// is no continuation, which would become part of what is put above it.
fn is_header(header: &HeaderFields) -> bool {
    let is_field = |field: HeaderField<'_>| {
        let name = field.name();
        let has_colon = field.octets()[..field.value_offset()].ends_with(b":");
        has_colon && !name.is_empty() && name.iter().all(u8::is_ascii_graphic)
    };
    let begins_with_text = header.get(0).is_some_and(|field| {
        !field.octets().starts_with(b" ") && !field.octets().starts_with(b"\t")
    });
    begins_with_text && header.iter().any(is_field)
}

/// Why there is no message to work on.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It is not there, or not for us.
    #[error("cannot open {}: {}", shown(path), cause(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be read to its end.
    #[error("cannot read {}: {}", shown(path), cause(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no header field in it.
    #[error("{} is not a message: no header field at its beginning", shown(path))]
    NotAMessage {
        /// The file.
        path: PathBuf,
    },
    /// Its header does not end.
    #[error("{} is not a message: {source}", shown(path))]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        source: HeaderTooLarge,
    },
}

impl InputError {
    /// The code a tool ends with for it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Open { .. } => EX_NOINPUT,
            Self::Read { .. } => EX_IOERR,
            Self::NotAMessage { .. } | Self::HeaderTooLarge { .. } => EX_DATAERR,
        }
    }
}

/// Why a message could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// It cannot be read again.
    #[error(transparent)]
    Input(#[from] InputError),
    /// It cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// What was written is not what was signed.
    #[error("{} changed while it was being signed; sign it again", shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl CopyError {
    /// The code a tool ends with for it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_code(),
            Self::Output(error) => error.exit_code(),
            Self::Changed { .. } => EX_IOERR,
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_silent())
    }
}

/// A path as it is shown to people.
pub(super) fn shown(path: &Path) -> std::path::Display<'_> {
    if path == Path::new("-") {
        Path::new("standard input").display()
    } else {
        path.display()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_message_of_an_mbox_is_seen_wherever_pieces_end() {
        for (body, is_there) in [
            ("a\r\n\r\nFrom b\r\n", true),
            ("\r\nFrom b", true),
            ("a\r\nFrom b\r\n\r\n From c\r\n\r\nFrom: d\r\n", false),
        ] {
            for size in 1..body.len() {
                let mut separators = Separators::default();
                for piece in body.as_bytes().chunks(size) {
                    separators.look_at(piece);
                }
                assert_eq!(separators.found, is_there, "{body:?} {size}");
            }
        }
    }
}
