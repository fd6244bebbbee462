//! The messages of an mbox, found once and read from the file one at a time, in the form they have on the wire.
//!
//! A message begins after a line with `From ` that is the first or follows an empty one, and that empty line is not the
//! message's. Line ends become CRLF, and a line of `>`s and `From ` loses one `>` (the form called mboxrd): what was
//! signed is the message and not how it was kept.

use super::error::PerfError;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An open mbox.
#[derive(Debug)]
pub(super) struct Mbox {
    path: PathBuf,
    file: File,
    spans: Vec<Span>,
}

/// Where a message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
    /// Line of the file, from 1.
    line: usize,
}

/// Room for one message as it is read; kept between messages.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    file: Vec<u8>,
    wire: Vec<u8>,
}

impl Mbox {
    /// Opens the file at `path` and finds its messages. Reads it once, in memory that depends on their number only.
    ///
    /// # Errors
    /// A file that cannot be read, is no file of a known end (a pipe, a device), is no mbox, or has a message over [`MAX_MESSAGE`].
    pub(super) fn open(path: &Path) -> Result<Self, PerfError> {
        let unreadable = |source| PerfError::Mbox {
            path: path.to_owned(),
            source,
        };
        // Opening a pipe waits for its writer, and some devices never end.
        let kind = std::fs::metadata(path).map_err(unreadable)?;
        if !kind.is_file() && !kind.is_dir() {
            return Err(unreadable(io::Error::other("not a regular file")));
        }
        let file = File::open(path).map_err(unreadable)?;
        let spans = find(BufReader::with_capacity(1 << 16, &file)).map_err(unreadable)?;
        let spans = spans.ok_or_else(|| PerfError::NotMbox(path.to_owned()))?;
        if let Some(span) = spans
            .iter()
            .find(|span| span.end - span.start > MAX_MESSAGE)
        {
            return Err(PerfError::MboxMessageTooLarge {
                path: path.to_owned(),
                line: span.line,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            spans,
        })
    }

    /// How many messages there are; one at least.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// What the message at `index` is called in reports.
    pub(super) fn name(&self, index: usize) -> String {
        format!(
            "{}: message {} (line {})",
            self.path.display(),
            index + 1,
            self.spans[index].line
        )
    }

    /// The message at `index`, from 0, as on the wire.
    ///
    /// # Errors
    /// Whatever reading says; the end of the file if it has become shorter.
    pub(super) fn read<'b>(&self, index: usize, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
        let span = self.spans[index];
        // Not above MAX_MESSAGE.
        buffer.file.resize((span.end - span.start) as usize, 0);
        self.file.read_exact_at(&mut buffer.file, span.start)?;
        buffer.wire.clear();
        to_wire(&buffer.file, &mut buffer.wire);
        Ok(&buffer.wire)
    }
}

/// A message is held whole in memory.
pub(super) const MAX_MESSAGE: u64 = 256 * 1024 * 1024;

/// All messages; `None` if the file does not begin like an mbox.
fn find(mut file: impl BufRead) -> io::Result<Option<Vec<Span>>> {
    let mut spans: Vec<Span> = Vec::new();
    // Where the line before this one starts, if it is empty.
    let mut blank = None;
    let (mut start, mut number) = (0, 1);
    loop {
        let line = Line::read(&mut file)?;
        let end = start + line.octets;
        if line.octets == 0 {
            if let Some(last) = spans.last_mut() {
                last.end = blank.unwrap_or(start).max(last.start);
            }
            return Ok((!spans.is_empty()).then_some(spans));
        }
        if line.head() == b"From " && (number == 1 || blank.is_some()) {
            if let (Some(last), Some(blank)) = (spans.last_mut(), blank) {
                last.end = blank.max(last.start);
            }
            spans.push(Span {
                start: end,
                end,
                line: number,
            });
        } else if number == 1 {
            return Ok(None);
        }
        blank = matches!(line.head(), b"\n" | b"\r\n").then_some(start);
        start = end;
        number += 1;
    }
}

/// What matters of a line, however long it is.
#[derive(Default)]
struct Line {
    octets: u64,
    head: [u8; 5],
}

impl Line {
    /// The next line with its end; no octets at the end of the file.
    fn read(file: &mut impl BufRead) -> io::Result<Self> {
        let mut line = Self::default();
        loop {
            let chunk = file.fill_buf()?;
            let newline = memchr::memchr(b'\n', chunk);
            let taken = newline.map_or(chunk.len(), |at| at + 1);
            for (octet, place) in chunk[..taken]
                .iter()
                .zip(line.head.iter_mut().skip(line.octets.min(5) as usize))
            {
                *place = *octet;
            }
            line.octets += taken as u64;
            file.consume(taken);
            if newline.is_some() || taken == 0 {
                return Ok(line);
            }
        }
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.octets.min(5) as usize]
    }
}

/// Appends `stored` as it was on the wire.
fn to_wire(stored: &[u8], wire: &mut Vec<u8>) {
    wire.reserve(stored.len() + stored.len() / 32);
    let mut rest = stored;
    while !rest.is_empty() {
        let newline = memchr::memchr(b'\n', rest);
        let (mut line, end) = match newline {
            Some(at) => (&rest[..at], &b"\r\n"[..]),
            None => (rest, &b""[..]),
        };
        rest = &rest[newline.map_or(rest.len(), |at| at + 1)..];
        if newline.is_some() {
            line = line.strip_suffix(b"\r").unwrap_or(line);
        }
        if line.first() == Some(&b'>') && is_quoted_from(line) {
            line = &line[1..];
        }
        wire.extend_from_slice(line);
        wire.extend_from_slice(end);
    }
}

fn is_quoted_from(line: &[u8]) -> bool {
    let text = line.iter().position(|&o| o != b'>').unwrap_or(line.len());
    line[text..].starts_with(b"From ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn messages(octets: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(octets).unwrap();
        let mbox = Mbox::open(file.path()).unwrap();
        let mut buffer = Buffer::default();
        (0..mbox.len())
            .map(|index| {
                let line = mbox.spans[index].line;
                (line, mbox.read(index, &mut buffer).unwrap().to_vec())
            })
            .collect()
    }

    #[test]
    fn messages_come_as_they_were_on_the_wire() {
        let found = messages(b"From x\nFrom: a\n\nbody\n\nFrom y\nFrom: b\n\nlast\n\n");
        assert_eq!(
            found,
            [
                (1, b"From: a\r\n\r\nbody\r\n".to_vec()),
                (6, b"From: b\r\n\r\nlast\r\n".to_vec()),
            ]
        );
        let quoted: Vec<u8> = [
            &b"From ann Tue Jan  6 10:00:00 2026\nFrom: a\n\n>From me, quoted\n>From you\n"[..],
            b">>From both\n> From none\n\n",
        ]
        .concat();
        assert_eq!(
            messages(&quoted)[0].1,
            b"From: a\r\n\r\nFrom me, quoted\r\nFrom you\r\n>From both\r\n> From none\r\n"
        );
    }

    #[test]
    fn a_from_line_separates_only_after_an_empty_line() {
        let found =
            messages(b"From x\r\nTo: a\r\nFrom no separator\r\n\r\nbody\r\nFrom here too\r\n");
        assert_eq!(
            found,
            [(
                1,
                b"To: a\r\nFrom no separator\r\n\r\nbody\r\nFrom here too\r\n".to_vec()
            )]
        );
    }

    #[test]
    fn odd_ends_lose_and_add_nothing() {
        for (stored, wire) in [
            (&b"From x\n"[..], vec![&b""[..]]),
            (b"From x\n\nFrom y\n", vec![b"", b""]),
            (b"From x\nA: b\n\ncut", vec![b"A: b\r\n\r\ncut"]),
            (b"From x\nA: b\n\n\n\n", vec![b"A: b\r\n\r\n\r\n"]),
        ] {
            let found: Vec<_> = messages(stored).into_iter().map(|(_, raw)| raw).collect();
            assert_eq!(found, wire, "{}", String::from_utf8_lossy(stored));
        }
    }

    #[test]
    fn other_files_are_refused() {
        for octets in [&b""[..], b"From: a\n\nbody\n", b"\nFrom x\n"] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(octets).unwrap();
            assert!(matches!(
                Mbox::open(file.path()),
                Err(PerfError::NotMbox(_))
            ));
        }
        let endless = Mbox::open(Path::new("/dev/zero"));
        let endless = endless.map_err(|error| error.to_string()).unwrap_err();
        assert_eq!(endless, "/dev/zero: cannot be read: not a regular file");
        assert!(matches!(
            Mbox::open(Path::new("/no/such/mbox")),
            Err(PerfError::Mbox { .. })
        ));
    }
}
