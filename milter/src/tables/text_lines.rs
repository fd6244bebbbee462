//! Text files an operator writes, line by line: the configuration file and `file:`/`refile:` data sets.
//!
//! Both have the same outer form: one item per line, `#` starts a comment wherever it stands, blank lines and carriage
//! returns at line ends mean nothing. Reading is bounded, so that a device or a mistaken path cannot eat the memory;
//! what is no text is told with its line. What a line means is left to the caller.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use memchr::memchr;
use zeroize::Zeroizing;

use super::Origin;
use crate::shown::cause;

/// The longest line taken, in octets; a 16384-bit RSA key in base64 takes 13 KB.
pub(crate) const MAX_LINE: usize = 64 * 1024;

/// A file read whole.
pub(crate) struct TextFile {
    path: Arc<Path>,
    /// Wiped when dropped: a key table may hold private keys.
    octets: Zeroizing<Vec<u8>>,
}

/// What is left of a line without its comment and the white space around it; never empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The text.
    pub(crate) text: &'a str,
    /// A comment follows without white space before it, which may have been meant as a part of the value.
    pub(crate) comment_touches: bool,
}

/// Why a file was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The operating system's reason.
    System(String),
    /// It has more than this many octets.
    TooLarge(u64),
}

/// Why a line is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFault {
    /// It holds this octet, a control character or one that is not UTF-8.
    NotText(u8),
    /// It has more than [`MAX_LINE`] octets.
    TooLong,
}

impl TextFile {
    /// Reads the file at `path`, which has at most `limit` octets; messages name it as `name`.
    pub(crate) fn read(path: &Path, name: &Path, limit: u64) -> Result<Self, ReadFault> {
        let system = |error: io::Error| ReadFault::System(cause(&error));
        let file = File::open(path).map_err(system)?;
        // A first size that fits saves the copies that growing would leave behind.
        let expected = file.metadata().map_or(0, |data| data.len().min(limit));
        let mut octets = Zeroizing::new(Vec::with_capacity(
            usize::try_from(expected).unwrap_or(0) + 1,
        ));
        file.take(limit + 1)
            .read_to_end(&mut octets)
            .map_err(system)?;
        if octets.len() as u64 > limit {
            return Err(ReadFault::TooLarge(limit));
        }
        Ok(Self {
            path: name.into(),
            octets,
        })
    }

    /// Every line that says something, with its place; a fault does not end the walk.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (Origin, Result<Line<'_>, LineFault>)> {
        // A byte order mark is what some editors leave at the start; it means nothing in UTF-8.
        let octets = self
            .octets
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(&self.octets);
        octets
            .split(|&o| o == b'\n')
            .zip(1..)
            .filter_map(|(octets, line)| {
                let content = read_line(octets).transpose()?;
                let path = Arc::clone(&self.path);
                Some((Origin::File { path, line }, content))
            })
    }
}

/// `text` as it is quoted in messages: its beginning, where it is long.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// How many characters of a text are quoted.
const MAX_SHOWN: usize = 100;

/// The first word of `text`, and what follows the white space behind it.
pub(crate) fn split_word(text: &str) -> (&str, Option<&str>) {
    match text.bytes().position(|o| matches!(o, b' ' | b'\t')) {
        Some(end) => (
            &text[..end],
            Some(text[end..].trim_start_matches([' ', '\t'])),
        ),
        None => (text, None),
    }
}

/// `None` for a line without content.
fn read_line(octets: &[u8]) -> Result<Option<Line<'_>>, LineFault> {
    if octets.len() > MAX_LINE {
        return Err(LineFault::TooLong);
    }
    // The comment goes first: its octets may be of any encoding.
    let comment = memchr(b'#', octets);
    let content = &octets[..comment.unwrap_or(octets.len())];
    let text = std::str::from_utf8(content)
        .map_err(|error| LineFault::NotText(content[error.valid_up_to()]))?;
    let Some((start, last)) = extent(content) else {
        return Ok(None);
    };
    let comment_touches = comment == Some(last + 1);
    let text = &text[start..=last];
    if let Some(control) = text
        .bytes()
        .find(|o| (*o < b' ' && *o != b'\t') || *o == 0x7f)
    {
        return Err(LineFault::NotText(control));
    }
    Ok(Some(Line {
        text,
        comment_touches,
    }))
}

/// The first and the last octet that is not white space.
fn extent(octets: &[u8]) -> Option<(usize, usize)> {
    let says_something = |o: &u8| !matches!(o, b' ' | b'\t' | b'\r');
    Some((
        octets.iter().position(says_something)?,
        octets.iter().rposition(says_something)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::test_dir::TestDir;

    type Told = (u32, Result<(String, bool), LineFault>);

    fn lines(octets: &[u8]) -> Vec<Told> {
        let dir = TestDir::new("text_lines");
        let path = dir.write("f", octets);
        let file = TextFile::read(&path, &path, 1 << 20).unwrap();
        file.lines()
            .map(|(origin, line)| {
                let Origin::File { line: number, .. } = origin else {
                    panic!("{origin}")
                };
                (
                    number,
                    line.map(|line| (line.text.to_owned(), line.comment_touches)),
                )
            })
            .collect()
    }

    #[test]
    fn comments_blank_lines_and_line_ends_are_dropped() {
        let told = |number, text: &str, touches| (number, Ok((text.to_owned(), touches)));
        assert_eq!(
            lines(b"\xef\xbb\xbfa b # c\r\n\r\n \t#only\xff\nx#y\n  last \r"),
            [
                told(1, "a b", false),
                told(4, "x", true),
                told(5, "last", false)
            ]
        );
    }

    #[test]
    fn what_is_no_text_is_told_with_its_line() {
        let long = [b'x'; MAX_LINE + 1];
        for (octets, fault) in [
            (&b"\n\na\x00b"[..], (3, Err(LineFault::NotText(0)))),
            (b"a\rb", (1, Err(LineFault::NotText(b'\r')))),
            (b"a\x7f", (1, Err(LineFault::NotText(0x7f)))),
            (b"\x0c\n", (1, Err(LineFault::NotText(0x0c)))),
            (b"Dom\xe4ne", (1, Err(LineFault::NotText(0xe4)))),
            (&long, (1, Err(LineFault::TooLong))),
        ] {
            assert_eq!(lines(octets), [fault], "{octets:?}");
        }
        assert_eq!(lines(b"\x00\nb").len(), 2, "the walk goes on");
    }

    #[test]
    fn reading_is_bounded_and_says_why_it_failed() {
        let dir = TestDir::new("text_limit");
        let path = dir.write("f", b"12345678");
        assert!(TextFile::read(&path, &path, 8).is_ok());
        assert_eq!(
            TextFile::read(&path, &path, 7).err(),
            Some(ReadFault::TooLarge(7))
        );
        let zero = Path::new("/dev/zero");
        assert_eq!(
            TextFile::read(zero, zero, 99).err(),
            Some(ReadFault::TooLarge(99))
        );
        for (path, cause) in [
            (dir.path("absent"), "No such file or directory"),
            (dir.path("."), "Is a directory"),
        ] {
            assert_eq!(
                TextFile::read(&path, &path, 9).err(),
                Some(ReadFault::System(cause.to_owned()))
            );
        }
    }
}
