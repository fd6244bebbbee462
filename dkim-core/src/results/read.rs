//! Reading an Authentication-Results field (RFC 8601 section 2.2).
//!
//! For fields that keep to the grammar, white space and comments wherever it allows them, and a little beyond: values
//! may hold what belongs in quotes, as most writers leave them out. A field that does not is an error as a whole. To
//! find forged fields is another matter, see `claim`.

use crate::results::{ResultWord, is_token_octet};
use crate::structured::{Scanner, Unclosed, first_control, is_fws, unescape};

/// A field, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationResults {
    /// Who vouches for it.
    pub authserv_id: Vec<u8>,
    /// What it says, in order; nothing for `none`.
    pub results: Vec<ReadResult>,
}

impl AuthenticationResults {
    /// Reads the value of one field, folded or not. Work is linear in `value`.
    ///
    /// A field without results, `none` left out, is read as one with `none`.
    ///
    /// # Errors
    /// The first fault met, with its offset in octets.
    pub fn parse(value: &[u8]) -> Result<Self, ReadError> {
        if let Some((offset, octet)) = first_control(value) {
            return Err(ReadError::Control { offset, octet });
        }
        Reader {
            scanner: Scanner::new(value),
        }
        .field()
    }
}

/// What a field says of one evaluation. Keywords are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// `dkim`, `spf` and so on.
    pub method: String,
    /// The method's version, 1 if none is written.
    pub version: u32,
    /// Any word; see [`word`](Self::word).
    pub result: String,
    /// The comments after the result's word, in order.
    pub comments: Vec<Vec<u8>>,
    /// The value of `reason=`.
    pub reason: Option<Vec<u8>>,
    /// In order.
    pub properties: Vec<ReadProperty>,
}

impl ReadResult {
    /// The result as one of DKIM's words; any other is to be ignored (RFC 8601 section 4.1).
    pub fn word(&self) -> Option<ResultWord> {
        ResultWord::ALL
            .into_iter()
            .find(|word| word.as_str() == self.result)
    }

    /// The value of the first `ptype.name`, both in lower case.
    pub fn property(&self, ptype: &str, name: &str) -> Option<&[u8]> {
        let is_it = |property: &&ReadProperty| property.ptype == ptype && property.name == name;
        self.properties
            .iter()
            .find(is_it)
            .map(|property| property.value.as_slice())
    }
}

/// One `ptype.name=value`. Keywords are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadProperty {
    /// Where the value comes from: `header`, `smtp`, `policy`.
    pub ptype: String,
    /// What it is.
    pub name: String,
    /// Without quotes; but a local part in quotes keeps them, as in an address.
    pub value: Vec<u8>,
}

/// Why a value could not be read; offsets count from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A control character, or a CR or LF outside of a fold.
    #[error("control character 0x{octet:02X} at octet {offset}")]
    Control {
        /// Where it is.
        offset: usize,
        /// What it is.
        octet: u8,
    },
    /// A comment has no end.
    #[error("the comment at octet {offset} is not closed")]
    UnclosedComment {
        /// Where it starts.
        offset: usize,
    },
    /// A quoted string has no end.
    #[error("the quoted string at octet {offset} is not closed")]
    UnclosedQuotedString {
        /// Where it starts.
        offset: usize,
    },
    /// Something else stands where the grammar has one thing only.
    #[error("{wanted} expected at octet {offset}")]
    Expected {
        /// Where it should be.
        offset: usize,
        /// What should be there.
        wanted: &'static str,
    },
    /// A version of the field that nobody knows (RFC 8601 section 2.6).
    #[error("unknown version at octet {offset}")]
    Version {
        /// Where it starts.
        offset: usize,
    },
}

struct Reader<'a> {
    scanner: Scanner<'a>,
}

impl Reader<'_> {
    /// `authres-payload`
    fn field(mut self) -> Result<AuthenticationResults, ReadError> {
        self.scanner.skip_cfws()?;
        let authserv_id = match self.scanner.peek() {
            Some(b'"') => unescape(self.scanner.quoted_string()?),
            _ => self
                .run("authserv-id", |o| is_token_octet(o) || !o.is_ascii())?
                .to_vec(),
        };
        self.scanner.skip_cfws()?;
        let offset = self.scanner.offset();
        if let Some(version) = self.version(offset)?
            && version != 1
        {
            return Err(ReadError::Version { offset });
        }
        let mut results = Vec::new();
        while self.more_results()? {
            if let Some(result) = self.result()? {
                results.push(result);
            } else if results.is_empty() && self.scanner.peek().is_none() {
                break;
            } else {
                return Err(self.expected("\"=\""));
            }
        }
        Ok(AuthenticationResults {
            authserv_id,
            results,
        })
    }

    /// Steps over a semicolon, if something follows it.
    fn more_results(&mut self) -> Result<bool, ReadError> {
        self.scanner.skip_cfws()?;
        if self.scanner.peek().is_none() {
            return Ok(false);
        }
        self.expect(b';', "\";\"")?;
        self.scanner.skip_cfws()?;
        Ok(self.scanner.peek().is_some())
    }

    /// `resinfo` after its semicolon; nothing for a lone `none`.
    fn result(&mut self) -> Result<Option<ReadResult>, ReadError> {
        let method = self.keyword("method")?;
        self.scanner.skip_cfws()?;
        let mut version = 1;
        if self.scanner.eat(b'/') {
            self.scanner.skip_cfws()?;
            let offset = self.scanner.offset();
            version = self.version(offset)?.ok_or(ReadError::Version { offset })?;
        } else if method == "none" && self.scanner.peek() != Some(b'=') {
            return Ok(None);
        }
        self.expect(b'=', "\"=\"")?;
        self.scanner.skip_cfws()?;
        let result = self.keyword("result")?;
        let mut read = ReadResult {
            method,
            version,
            result,
            comments: Vec::new(),
            reason: None,
            properties: Vec::new(),
        };
        loop {
            while let Some(comment) = self.scanner.next_comment()? {
                read.comments.push(unescape(comment));
            }
            if matches!(self.scanner.peek(), None | Some(b';')) {
                return Ok(Some(read));
            }
            self.detail(&mut read)?;
        }
    }

    /// `reasonspec` or one `propspec`
    fn detail(&mut self, read: &mut ReadResult) -> Result<(), ReadError> {
        let word = self.keyword("property")?;
        self.scanner.skip_cfws()?;
        if word == "reason" && read.reason.is_none() && self.scanner.eat(b'=') {
            read.reason = Some(self.value()?);
            return Ok(());
        }
        self.expect(b'.', "\".\"")?;
        self.scanner.skip_cfws()?;
        let name = self.keyword("property")?;
        self.scanner.skip_cfws()?;
        self.expect(b'=', "\"=\"")?;
        let value = self.value()?;
        read.properties.push(ReadProperty {
            ptype: word,
            name,
            value,
        });
        Ok(())
    }

    /// `value` or `pvalue`
    fn value(&mut self) -> Result<Vec<u8>, ReadError> {
        self.scanner.skip_cfws()?;
        if self.scanner.peek() != Some(b'"') {
            return Ok(self.run("value", is_bare)?.to_vec());
        }
        let inside = self.scanner.quoted_string()?;
        if self.scanner.peek() != Some(b'@') {
            return Ok(unescape(inside));
        }
        let domain = self.scanner.take_while(is_bare);
        let local_part = inside.iter().filter(|o| !matches!(o, b'\r' | b'\n'));
        Ok([b'"']
            .iter()
            .chain(local_part)
            .chain(b"\"")
            .chain(domain)
            .copied()
            .collect())
    }

    /// Digits and the white space after them, if they are next.
    fn version(&mut self, offset: usize) -> Result<Option<u32>, ReadError> {
        let digits = self.scanner.take_while(|o| o.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        self.scanner.skip_cfws()?;
        let number = str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok());
        number.map(Some).ok_or(ReadError::Version { offset })
    }

    /// `Keyword` (RFC 5321 section 4.1.2), and underscores; in lower case.
    fn keyword(&mut self, wanted: &'static str) -> Result<String, ReadError> {
        let octets = self.run(wanted, |o| {
            o.is_ascii_alphanumeric() || matches!(o, b'-' | b'_')
        })?;
        Ok(octets
            .iter()
            .map(|o| char::from(o.to_ascii_lowercase()))
            .collect())
    }

    /// At least one octet that is `fitting`.
    fn run(
        &mut self,
        wanted: &'static str,
        fitting: impl Fn(u8) -> bool,
    ) -> Result<&[u8], ReadError> {
        let offset = self.scanner.offset();
        match self.scanner.take_while(fitting) {
            [] => Err(ReadError::Expected { offset, wanted }),
            octets => Ok(octets),
        }
    }

    fn expect(&mut self, octet: u8, wanted: &'static str) -> Result<(), ReadError> {
        if self.scanner.eat(octet) {
            Ok(())
        } else {
            Err(self.expected(wanted))
        }
    }

    fn expected(&self, wanted: &'static str) -> ReadError {
        ReadError::Expected {
            offset: self.scanner.offset(),
            wanted,
        }
    }
}

impl From<Unclosed> for ReadError {
    fn from(unclosed: Unclosed) -> Self {
        match unclosed {
            Unclosed::Comment { offset } => Self::UnclosedComment { offset },
            Unclosed::QuotedString { offset } => Self::UnclosedQuotedString { offset },
        }
    }
}

/// What ends no value when it stands without quotes.
fn is_bare(octet: u8) -> bool {
    !is_fws(octet) && !matches!(octet, b';' | b'(' | b')' | b'"')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a field says, in one line: `id | method/version=word ptype.name=value ... reason=... (comment)`
    fn said(value: &str) -> Result<String, String> {
        let field =
            AuthenticationResults::parse(value.as_bytes()).map_err(|error| error.to_string())?;
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        let mut said = vec![text(&field.authserv_id)];
        for result in field.results {
            said.push(format!(
                "| {}/{}={}",
                result.method, result.version, result.result
            ));
            said.extend(
                result
                    .properties
                    .iter()
                    .map(|p| format!("{}.{}={}", p.ptype, p.name, text(&p.value))),
            );
            said.extend(
                result
                    .reason
                    .iter()
                    .map(|reason| format!("reason={}", text(reason))),
            );
            said.extend(
                result
                    .comments
                    .iter()
                    .map(|comment| format!("({})", text(comment))),
            );
        }
        Ok(said.join(" "))
    }

    #[test]
    fn fields_by_the_grammar_are_read() {
        for (value, wanted) in [
            // After the examples of RFC 8601 appendix B.
            ("example.org 1; none", "example.org"),
            (
                "example.com;\r\n          spf=pass smtp.mailfrom=example.net",
                "example.com | spf/1=pass smtp.mailfrom=example.net",
            ),
            (
                "example.com;\n auth=pass (cram-md5) smtp.auth=sender@example.net;\n spf=pass smtp.mailfrom=example.net",
                "example.com | auth/1=pass smtp.auth=sender@example.net (cram-md5) | spf/1=pass smtp.mailfrom=example.net",
            ),
            (
                "foo.example.net (foobar) 1 (baz);\r\n    dkim (Because I like it) / 1 (One yay) = (wait for it) fail\r\n\
                 \t  policy (A dot can go here) . (like that) expired\r\n      (this surprised me) = (as I wasn't expecting it) 1362471462",
                "foo.example.net | dkim/1=fail policy.expired=1362471462",
            ),
            // Shapes of everyday fields.
            (
                "mx.example; dkim=pass (2048-bit key) header.d=example.org header.i=@example.org header.b=a/B+c=",
                "mx.example | dkim/1=pass header.d=example.org header.i=@example.org header.b=a/B+c= (2048-bit key)",
            ),
            (
                "mx.example; dkim=fail reason=\"body; \\\"hash\\\"\" (x (y)) header.i=\"a;b\"@example.org; spf=none",
                "mx.example | dkim/1=fail header.i=\"a;b\"@example.org reason=body; \"hash\" (x (y)) | spf/1=none",
            ),
            (
                "mx.example; dkim=pass header.d=a.example reason=x",
                "mx.example | dkim/1=pass header.d=a.example reason=x",
            ),
            (
                "mx.example; DKIM=Pass Header.D=A.example",
                "mx.example | dkim/1=pass header.d=A.example",
            ),
            (
                "mx.example; x-try=maybe; dkim/2=pass",
                "mx.example | x-try/1=maybe | dkim/2=pass",
            ),
            (
                "mx.example; dkim=pass header.i=\"@a;b\"; spf=fail",
                "mx.example | dkim/1=pass header.i=@a;b | spf/1=fail",
            ),
            (
                "mx.example;dkim=pass(a)header.d=\"a b\";",
                "mx.example | dkim/1=pass header.d=a b (a)",
            ),
            ("\"mx \\\"x\\\"\" ; none", "mx \"x\""),
            ("m\u{FC}.example; none", "m\u{FC}.example"),
            ("mx.example; none=none", "mx.example | none/1=none"),
            ("mx.example", "mx.example"),
            ("mx.example;", "mx.example"),
        ] {
            assert_eq!(
                said(value).as_deref(),
                Ok(wanted),
                "{}",
                value.escape_debug()
            );
        }
    }

    #[test]
    fn a_field_not_by_the_grammar_is_an_error_with_its_place() {
        for (value, fault) in [
            ("", "authserv-id expected at octet 0"),
            (" ; none", "authserv-id expected at octet 1"),
            (
                "dkim=pass header.d=example.com",
                "\";\" expected at octet 4",
            ),
            ("i=1; mx.example; dkim=pass", "\";\" expected at octet 1"),
            ("mx/example; dkim=pass", "\";\" expected at octet 2"),
            ("mx example; dkim=pass", "\";\" expected at octet 3"),
            ("mx.example 2; dkim=pass", "unknown version at octet 11"),
            (
                "mx.example 99999999999; dkim=pass",
                "unknown version at octet 11",
            ),
            ("mx.example; dkim/x=pass", "unknown version at octet 17"),
            ("mx.example; (null)=pass", "method expected at octet 18"),
            ("mx.example; dkim=", "result expected at octet 17"),
            ("mx.example; dkim", "\"=\" expected at octet 16"),
            ("mx.example; =;=;=", "method expected at octet 12"),
            ("mx.example;; dkim=pass", "method expected at octet 11"),
            ("mx.example; none; dkim=pass", "\"=\" expected at octet 16"),
            ("mx.example; dkim=pass; none", "\"=\" expected at octet 27"),
            (
                "mx.example; dkim=pass dkim=pass",
                "\".\" expected at octet 26",
            ),
            (
                "mx.example; dkim=pass header.d",
                "\"=\" expected at octet 30",
            ),
            (
                "mx.example; dkim=pass header.d=",
                "value expected at octet 31",
            ),
            (
                "mx.example; dkim=pass header.d=a b",
                "\".\" expected at octet 34",
            ),
            (
                "mx.example; dkim=pass reason=a reason=b",
                "\".\" expected at octet 37",
            ),
            (
                "mx.example; dkim=pass header.d=\"a",
                "the quoted string at octet 31 is not closed",
            ),
            (
                "mx.example; dkim=pass (a",
                "the comment at octet 22 is not closed",
            ),
            (
                "mx.example; dkim=pass header.d=a\0",
                "control character 0x00 at octet 32",
            ),
            (
                "mx.example;\r\ndkim=pass",
                "control character 0x0D at octet 11",
            ),
        ] {
            assert_eq!(
                said(value),
                Err(fault.to_owned()),
                "{}",
                value.escape_debug()
            );
        }
    }

    #[test]
    fn only_dkims_words_are_words_and_the_first_property_counts() {
        let field = b"x; dkim=pass header.d=a.example header.d=b.example; dkim=timeout";
        let results = AuthenticationResults::parse(field).unwrap().results;
        assert_eq!(results[0].word(), Some(ResultWord::Pass));
        assert_eq!(results[0].property("header", "d"), Some(&b"a.example"[..]));
        assert_eq!(results[0].property("header", "i"), None);
        assert_eq!(results[1].word(), None);
    }

    #[test]
    fn length_costs_linear_time() {
        const MANY: usize = 1 << 16;
        for part in ["(", "\"", "; a=b", " c.d=e", "()", "\\", " (x)", ";", "/1"] {
            let value = format!("x; a=b{}", part.repeat(MANY));
            let _ = AuthenticationResults::parse(value.as_bytes());
        }
        let many = format!("x{}", "; a=b c.d=e (f)".repeat(MANY));
        assert_eq!(
            AuthenticationResults::parse(many.as_bytes())
                .unwrap()
                .results
                .len(),
            MANY
        );
    }

    proptest! {
        #[test]
        fn no_octets_make_it_panic(value in prop::collection::vec(prop_oneof![
            prop::sample::select(b"a=b.c/1;()\\\"@ \t\r\n\0\xFF".to_vec()),
            any::<u8>(),
        ], 0..64)) {
            let _ = AuthenticationResults::parse(&value);
        }
    }
}
