//! One entry of a zone file (RFC 1035 section 5.1), as far as key records need it.
//!
//! It is read as people and the tools that make keys write it: with or without TTL and class, over several lines in
//! parentheses, with comments. What a zone file says of other entries (`$ORIGIN`, an owner left out) is refused, since a
//! name that is made up would only look like a missing record. Just the comment of `dkim-genkey`, or of OpenDKIM's, may
//! complete a name: `; key SELECTOR of DOMAIN`, `; ----- DKIM key SELECTOR for DOMAIN`.

use super::{LineFault, Said};

/// An entry, and what it took.
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) said: Said,
    /// How many octets it is long, the end of its last line included.
    pub(super) octets: usize,
    /// In how many lines.
    pub(super) lines: usize,
}

/// Whether `line` is meant as an entry: something with a type that is read here, or a record in quotes.
pub(super) fn is_meant(line: &[u8]) -> bool {
    let mut words = line
        .split(|octet| octet.is_ascii_whitespace() || *octet == b'(')
        .filter(|word| !word.is_empty())
        .skip(1)
        .skip_while(|word| is_class(word) || is_ttl(word));
    words.next().is_some_and(|word| {
        word.starts_with(b"\"")
            || [&b"TXT"[..], b"CNAME"]
                .iter()
                .any(|kind| is_same(word, kind))
    })
}

/// Reads the entry at the start of `text`.
///
/// # Errors
/// What is wrong, and how many lines below the first.
pub(super) fn entry(text: &[u8]) -> Result<Entry, (usize, LineFault)> {
    let mut reader = Reader {
        rest: text,
        line: 0,
    };
    let (tokens, comment) = reader.tokens()?;
    let (name, said) = meaning(tokens, comment).map_err(|fault| (0, fault))?;
    Ok(Entry {
        name,
        said,
        octets: text.len() - reader.rest.len(),
        lines: reader.line,
    })
}

/// A word, or a string from between quotes.
enum Token<'a> {
    Word(&'a [u8]),
    Text(Vec<u8>),
}

/// Those of a record, and the last comment in it.
type Tokens<'a> = (Vec<Token<'a>>, &'a [u8]);

struct Reader<'a> {
    rest: &'a [u8],
    /// Lines that have ended.
    line: usize,
}

impl<'a> Reader<'a> {
    /// All up to the end of the line that ends outside parentheses, and the last comment.
    fn tokens(&mut self) -> Result<Tokens<'a>, (usize, LineFault)> {
        let (mut tokens, mut comment) = (Vec::new(), &b""[..]);
        let mut opened = None;
        loop {
            match self.rest {
                [] => {
                    self.line += 1;
                    return match opened {
                        Some(line) => Err((line, LineFault::Unclosed)),
                        None => Ok((tokens, comment)),
                    };
                }
                [b'\n', after @ ..] => {
                    self.rest = after;
                    self.line += 1;
                    if opened.is_none() {
                        return Ok((tokens, comment));
                    }
                }
                [b'(', after @ ..] if opened.is_none() => {
                    self.rest = after;
                    opened = Some(self.line);
                }
                [b')', after @ ..] if opened.is_some() => {
                    self.rest = after;
                    opened = None;
                }
                [b'(' | b')', ..] => return Err((self.line, LineFault::NotARecord)),
                [b';', ..] => comment = self.take_until(|octet| octet == b'\n'),
                [b'"', after @ ..] => {
                    let (text, after) = quoted(after).map_err(|fault| (self.line, fault))?;
                    tokens.push(Token::Text(text));
                    self.rest = after;
                }
                [octet, after @ ..] if octet.is_ascii_whitespace() => self.rest = after,
                // The name is taken as it stands: what is asked for may have anything in it.
                _ if tokens.is_empty() => tokens.push(Token::Word(
                    self.take_until(|octet| octet.is_ascii_whitespace()),
                )),
                _ => tokens.push(Token::Word(self.take_until(|octet| {
                    octet.is_ascii_whitespace() || b"();\"".contains(&octet)
                }))),
            }
        }
    }

    fn take_until(&mut self, is_end: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&octet| is_end(octet));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// The string at the start of `rest`, behind its first quote, and what follows it.
fn quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), LineFault> {
    let mut text = Vec::new();
    loop {
        match rest {
            [] | [b'\n', ..] => return Err(LineFault::Unquoted),
            [b'"', after @ ..] => return Ok((text, after)),
            [b'\\', a @ b'0'..=b'9', after @ ..] => {
                let [b @ b'0'..=b'9', c @ b'0'..=b'9', after @ ..] = after else {
                    return Err(LineFault::BadEscape);
                };
                let value = [a, b, c]
                    .iter()
                    .fold(0, |value, &digit| 10 * value + u16::from(digit - b'0'));
                text.push(u8::try_from(value).map_err(|_| LineFault::BadEscape)?);
                rest = after;
            }
            [b'\\'] | [b'\\', b'\n' | b'\r', ..] => return Err(LineFault::BadEscape),
            [b'\\', octet, after @ ..] | [octet, after @ ..] => {
                text.push(*octet);
                rest = after;
            }
        }
    }
}

fn meaning(tokens: Vec<Token<'_>>, comment: &[u8]) -> Result<(Vec<u8>, Said), LineFault> {
    let mut tokens = tokens.into_iter();
    let mut word = || match tokens.next() {
        Some(Token::Word(word)) => Ok(word),
        _ => Err(LineFault::NotARecord),
    };
    let name = word()?;
    if name.starts_with(b"$") {
        return Err(LineFault::Directive(shown(name)));
    }
    let mut kind = word()?;
    let (mut class, mut ttl) = (false, false);
    loop {
        // In either order (RFC 1035 section 5.1).
        let seen = match kind {
            kind if is_class(kind) => &mut class,
            kind if is_ttl(kind) => &mut ttl,
            _ => break,
        };
        if std::mem::replace(seen, true) {
            return Err(LineFault::NotARecord);
        }
        kind = word()?;
    }
    let data: Vec<_> = tokens.collect();
    let said = if is_same(kind, b"TXT") {
        Said::Txt(joined(data)?)
    } else if is_same(kind, b"CNAME") {
        match data[..] {
            [Token::Word(target)] => Said::Cname(target.to_vec()),
            _ => return Err(LineFault::NotARecord),
        }
    } else if !data.is_empty()
        && kind.iter().all(u8::is_ascii_alphanumeric)
        && !is_other_class(kind)
    {
        return Err(LineFault::OtherType(shown(kind)));
    } else {
        return Err(LineFault::NotARecord);
    };
    Ok((whole(name, comment)?, said))
}

/// The strings of a TXT record, put together.
fn joined(data: Vec<Token<'_>>) -> Result<Vec<u8>, LineFault> {
    if data.is_empty() {
        return Err(LineFault::NotARecord);
    }
    let mut joined = Vec::new();
    for token in data {
        match token {
            Token::Text(text) => joined.extend(text),
            Token::Word(_) => return Err(LineFault::Unquoted),
        }
    }
    Ok(joined)
}

/// `name`, with the domain that the `comment` of a tool tells if there is none in it.
fn whole(name: &[u8], comment: &[u8]) -> Result<Vec<u8>, LineFault> {
    if !is_relative(name) {
        return Ok(name.to_vec());
    }
    let words: Vec<_> = comment
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .collect();
    let (selector, domain) = match words[..] {
        [b";", b"key", selector, b"of", domain]
        | [b";", b"-----", b"DKIM", b"key", selector, b"for", domain] => (selector, domain),
        _ => return Err(LineFault::Relative(shown(name))),
    };
    if name.strip_suffix(b"._domainkey") != Some(selector) {
        return Err(LineFault::Relative(shown(name)));
    }
    Ok([name, b".", domain].concat())
}

/// Whether the domain is missing: no key record is at a name that ends so.
pub(super) fn is_relative(name: &[u8]) -> bool {
    let last = name.rsplit(|&octet| octet == b'.').next();
    last.is_some_and(|last| is_same(last, b"_domainkey")) || !name.contains(&b'.')
}

fn is_class(word: &[u8]) -> bool {
    is_same(word, b"IN")
}

fn is_other_class(word: &[u8]) -> bool {
    [&b"CH"[..], b"CS", b"HS"]
        .iter()
        .any(|class| is_same(word, class))
}

/// `300`, or `1h30m` as BIND writes it.
fn is_ttl(word: &[u8]) -> bool {
    word.first().is_some_and(u8::is_ascii_digit)
        && word
            .iter()
            .all(|octet| octet.is_ascii_digit() || b"smhdw".contains(&octet.to_ascii_lowercase()))
}

fn is_same(word: &[u8], other: &[u8]) -> bool {
    word.eq_ignore_ascii_case(other)
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}
