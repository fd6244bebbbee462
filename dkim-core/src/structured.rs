//! Tokens of structured header fields: white space, comments, quoted strings, atoms (RFC 5322 section 3.2, widened to
//! UTF-8 by RFC 6532).
//!
//! What the readers of From and of Authentication-Results have in common. What a token means, and which of them may
//! follow each other, is theirs to know. Everything is one pass over octets; comments nest by a counter, not by
//! recursion, so no depth is too deep.

/// A place in the value of a header field.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<'a> {
    octets: &'a [u8],
    offset: usize,
}

impl<'a> Scanner<'a> {
    /// Starts at the first octet of `octets`, a field's value with or without its folds.
    pub(crate) fn new(octets: &'a [u8]) -> Self {
        Self { octets, offset: 0 }
    }

    /// How many octets are behind.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The octet ahead.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.octets.get(self.offset).copied()
    }

    /// Steps over the octet ahead, and gives it.
    pub(crate) fn step(&mut self) -> Option<u8> {
        let octet = self.peek();
        self.offset += usize::from(octet.is_some());
        octet
    }

    /// Steps over `octet` if it is the one ahead, and says whether it was.
    pub(crate) fn eat(&mut self, octet: u8) -> bool {
        let is_there = self.peek() == Some(octet);
        self.offset += usize::from(is_there);
        is_there
    }

    /// Steps over all octets ahead that are `wanted`; may be none.
    pub(crate) fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.octets[self.offset..];
        let length = rest.iter().position(|&o| !wanted(o)).unwrap_or(rest.len());
        self.offset += length;
        &rest[..length]
    }

    /// Steps over white space, folds and comments: `[CFWS]`.
    pub(crate) fn skip_cfws(&mut self) -> Result<(), Unclosed> {
        while self.next_comment()?.is_some() {}
        Ok(())
    }

    /// Steps over white space and folds, and over one comment if that is what follows; gives what is between its
    /// parentheses, as it travelled.
    pub(crate) fn next_comment(&mut self) -> Result<Option<&'a [u8]>, Unclosed> {
        self.take_while(is_fws);
        let start = self.offset;
        if !self.eat(b'(') {
            return Ok(None);
        }
        let mut depth = 1;
        while depth > 0 {
            self.take_while(|o| !matches!(o, b'(' | b')' | b'\\'));
            match self.step() {
                Some(b'(') => depth += 1,
                Some(b')') => depth -= 1,
                Some(_) => _ = self.step(),
                None => return Err(Unclosed::Comment { offset: start }),
            }
        }
        Ok(Some(&self.octets[start + 1..self.offset - 1]))
    }

    /// Steps over the quoted string ahead; gives what is between its quotes, as it travelled. To be called when
    /// [`peek`](Self::peek) is a quote.
    pub(crate) fn quoted_string(&mut self) -> Result<&'a [u8], Unclosed> {
        let start = self.offset;
        self.step();
        loop {
            self.take_while(|o| !matches!(o, b'"' | b'\\'));
            match self.step() {
                Some(b'"') => return Ok(&self.octets[start + 1..self.offset - 1]),
                Some(_) => _ = self.step(),
                None => return Err(Unclosed::QuotedString { offset: start }),
            }
        }
    }
}

/// Something that was opened at `offset` and runs past the field's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unclosed {
    /// A comment.
    Comment { offset: usize },
    /// A quoted string.
    QuotedString { offset: usize },
}

/// What the inside of a quoted string or a comment means: quoted pairs undone, line ends of folds dropped.
pub(crate) fn unescape(inside: &[u8]) -> Vec<u8> {
    let mut meant = Vec::with_capacity(inside.len());
    let mut octets = inside.iter().copied();
    while let Some(octet) = octets.next() {
        let octet = if octet == b'\\' {
            octets.next()
        } else {
            Some(octet)
        };
        meant.extend(octet.filter(|o| !matches!(o, b'\r' | b'\n')));
    }
    meant
}

/// The first octet that no structured field may hold, with its offset: a control character that is not a tab, or a CR
/// or LF that is no part of a fold or of the field's own line end. Folds may be CRLF or, as milters see them, LF.
pub(crate) fn first_control(octets: &[u8]) -> Option<(usize, u8)> {
    let ends_line = |lf: usize| matches!(octets.get(lf + 1), None | Some(b' ' | b'\t'));
    octets
        .iter()
        .copied()
        .enumerate()
        .find(|&(at, octet)| match octet {
            b'\t' => false,
            b'\n' => !ends_line(at),
            b'\r' => octets.get(at + 1) != Some(&b'\n') || !ends_line(at + 1),
            octet => octet.is_ascii_control(),
        })
}

/// White space and the octets of folds.
pub(crate) fn is_fws(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t' | b'\r' | b'\n')
}

/// `atext`; every octet past ASCII counts as one (RFC 6532 section 3.2), valid UTF-8 or not.
pub(crate) fn is_atext(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || !octet.is_ascii() || b"!#$%&'*+-/=?^_`{|}~".contains(&octet)
}

/// `dot-atom-text`
pub(crate) fn is_dot_atom(octets: &[u8]) -> bool {
    octets
        .split(|&o| o == b'.')
        .all(|atom| !atom.is_empty() && atom.iter().all(|&o| is_atext(o)))
}

/// Writes `octets` as a quoted string: quotes around, a backslash before quotes and backslashes.
pub(crate) fn quote(octets: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(octets.len() + 2);
    quoted.push(b'"');
    for &octet in octets {
        if matches!(octet, b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(octet);
    }
    quoted.push(b'"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_nest_and_hide_their_quoted_pairs() {
        for (octets, inside, rest) in [
            (&b"(a)b"[..], &b"a"[..], Some(b'b')),
            (b" \r\n\t(a (b (c)) d)", b"a (b (c)) d", None),
            (b"(\\))x", b"\\)", Some(b'x')),
            (b"(\\\\)x", b"\\\\", Some(b'x')),
            (b"(\"))x", b"\"", Some(b')')),
            (b"()", b"", None),
        ] {
            let mut scanner = Scanner::new(octets);
            assert_eq!(scanner.next_comment(), Ok(Some(inside)));
            assert_eq!(scanner.peek(), rest, "{}", String::from_utf8_lossy(octets));
        }
    }

    #[test]
    fn what_is_never_closed_is_told_with_its_place() {
        for octets in [&b" ("[..], b" (()", b" (\\)", b" (\\"] {
            let fault = Err(Unclosed::Comment { offset: 1 });
            assert_eq!(
                Scanner::new(octets).skip_cfws(),
                fault,
                "{}",
                String::from_utf8_lossy(octets)
            );
        }
        for octets in [&b"\""[..], b"\"a", b"\"\\\"", b"\"\\"] {
            let fault = Err(Unclosed::QuotedString { offset: 0 });
            assert_eq!(
                Scanner::new(octets).quoted_string(),
                fault,
                "{}",
                String::from_utf8_lossy(octets)
            );
        }
    }

    #[test]
    fn a_fold_and_a_backslash_are_invisible() {
        assert_eq!(unescape(b"a\\\"b\r\n c\\\\\n\td\\e"), b"a\"b c\\\tde");
        assert_eq!(unescape(b"\\"), b"");
    }

    #[test]
    fn only_folds_and_tabs_are_no_control_characters() {
        for (octets, found) in [
            (&b"a\tb\r\n c\n\td \xC3\xBC\x80"[..], None),
            (b"a\r\n", None),
            (b"a\n", None),
            (b"a\r", Some((1, b'\r'))),
            (b"a\rb", Some((1, b'\r'))),
            (b"a\r\r\n b", Some((1, b'\r'))),
            (b"a\nb", Some((1, b'\n'))),
            (b"a\r\nb", Some((1, b'\r'))),
            (b"\0", Some((0, 0))),
            (b"a\x0B", Some((1, 0x0B))),
            (b"\x7F", Some((0, 0x7F))),
        ] {
            assert_eq!(first_control(octets), found, "{}", octets.escape_ascii());
        }
    }
}
