//! Reply codes: an answer to an SMTP command in a milter's own words, checked before an MTA has to.

/// A reply to an SMTP command in words of our own, checked once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyCode {
    lines: Vec<u8>,
}

impl ReplyCode {
    /// `code` is 4xx or 5xx, `enhanced` an enhanced status code of the same class (RFC 3463), `text` one or more lines
    /// of printable ASCII with `\n` between them.
    ///
    /// A `%` is doubled, for MTAs read the text as a format.
    ///
    /// # Errors
    /// The first thing that an MTA would not take: Postfix and Sendmail drop a milter that sends such a reply, and
    /// refuse the client's further messages with it.
    pub fn new(code: u16, enhanced: &str, text: &str) -> Result<Self, ReplyCodeError> {
        if !(400..600).contains(&code) {
            return Err(ReplyCodeError::NotARefusal { code });
        }
        let digits =
            |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|o| o.is_ascii_digit());
        let well_formed = enhanced.split('.').count() == 3 && enhanced.split('.').all(digits);
        if !well_formed || enhanced.split('.').next() != Some(&(code / 100).to_string()) {
            return Err(ReplyCodeError::ClassesDiffer {
                code,
                enhanced: enhanced.into(),
            });
        }
        let count = text.split('\n').count();
        if count > MAX_LINES {
            return Err(ReplyCodeError::TooManyLines { lines: count });
        }
        let mut lines = Vec::with_capacity(text.len() + count * 16);
        for (number, line) in (1..).zip(text.split('\n')) {
            if line.is_empty() {
                return Err(ReplyCodeError::EmptyLine { line: number });
            }
            if let Some(character) = line.chars().find(|c| !matches!(c, ' '..='~')) {
                return Err(ReplyCodeError::NotPrintable {
                    line: number,
                    character,
                });
            }
            let line = line.replace('%', "%%");
            if line.len() > MAX_LINE {
                return Err(ReplyCodeError::LineTooLong {
                    line: number,
                    octets: line.len(),
                });
            }
            let (separator, end) = if number == count {
                (' ', "")
            } else {
                ('-', "\r\n")
            };
            lines.extend_from_slice(format!("{code}{separator}{enhanced} {line}{end}").as_bytes());
        }
        Ok(Self { lines })
    }

    /// The lines as they travel, with CRLF between them.
    pub(super) fn lines(&self) -> &[u8] {
        &self.lines
    }
}

/// Why a reply to an SMTP command is none that an MTA takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyCodeError {
    /// Milters can only refuse by words.
    #[error("reply code {code} is neither 4xx nor 5xx")]
    NotARefusal {
        /// The code.
        code: u16,
    },
    /// Not an enhanced code, or one of another class.
    #[error("{enhanced:?} is no enhanced status code of the class of {code}")]
    ClassesDiffer {
        /// The code.
        code: u16,
        /// The enhanced code.
        enhanced: String,
    },
    /// More lines than Sendmail takes.
    #[error("a reply of {lines} lines, and {MAX_LINES} is the most")]
    TooManyLines {
        /// Lines of the text.
        lines: usize,
    },
    /// A line without text.
    #[error("line {line} of the reply is empty")]
    EmptyLine {
        /// Counted from 1.
        line: usize,
    },
    /// Text that SMTP cannot carry.
    #[error("line {line} of the reply has {character:?}, which is not printable ASCII")]
    NotPrintable {
        /// Counted from 1.
        line: usize,
        /// The first of them.
        character: char,
    },
    /// A line longer than Sendmail takes, with each `%` counted twice.
    #[error("line {line} of the reply has {octets} octets, and {MAX_LINE} is the most")]
    LineTooLong {
        /// Counted from 1.
        line: usize,
        /// Octets of the line's text.
        octets: usize,
    },
}

/// Sendmail's limit on the lines of a reply.
const MAX_LINES: usize = 32;

/// Sendmail's limit on the octets of a reply's line.
const MAX_LINE: usize = 980;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_in_words_is_what_both_mtas_take() {
        for (code, enhanced, text, wanted) in [
            (550, "5.7.1", "no", "550 5.7.1 no"),
            (451, "4.7.123", "100% sure", "451 4.7.123 100%% sure"),
            (
                550,
                "5.7.20",
                "one\ntwo",
                "550-5.7.20 one\r\n550 5.7.20 two",
            ),
        ] {
            let reply = ReplyCode::new(code, enhanced, text).unwrap();
            assert_eq!(reply.lines, wanted.as_bytes());
        }
        let long = "x".repeat(980);
        ReplyCode::new(550, "5.7.1", &long).unwrap();
        let lines = vec!["x"; 32].join("\n");
        ReplyCode::new(550, "5.7.1", &lines).unwrap();
    }

    #[test]
    fn a_reply_that_an_mta_would_not_take_is_refused_with_the_reason() {
        let long = "x".repeat(981);
        let percents = "%".repeat(491);
        let lines = vec!["x"; 33].join("\n");
        for (code, enhanced, text, fault) in [
            (250, "2.0.0", "ok", "reply code 250 is neither 4xx nor 5xx"),
            (600, "6.0.0", "no", "reply code 600 is neither 4xx nor 5xx"),
            (
                550,
                "4.7.1",
                "no",
                "\"4.7.1\" is no enhanced status code of the class of 550",
            ),
            (
                550,
                "5.7",
                "no",
                "\"5.7\" is no enhanced status code of the class of 550",
            ),
            (
                550,
                "5.7.1.1",
                "no",
                "\"5.7.1.1\" is no enhanced status code of the class of 550",
            ),
            (
                550,
                "5.7.1234",
                "no",
                "\"5.7.1234\" is no enhanced status code of the class of 550",
            ),
            (
                550,
                "5..1",
                "no",
                "\"5..1\" is no enhanced status code of the class of 550",
            ),
            (
                550,
                "5.7.1 ",
                "no",
                "\"5.7.1 \" is no enhanced status code of the class of 550",
            ),
            (550, "5.7.1", "", "line 1 of the reply is empty"),
            (550, "5.7.1", "a\n", "line 2 of the reply is empty"),
            (
                550,
                "5.7.1",
                "a\nb\r",
                "line 2 of the reply has '\\r', which is not printable ASCII",
            ),
            (
                550,
                "5.7.1",
                "ü",
                "line 1 of the reply has 'ü', which is not printable ASCII",
            ),
            (
                550,
                "5.7.1",
                "a\0",
                "line 1 of the reply has '\\0', which is not printable ASCII",
            ),
            (
                550,
                "5.7.1",
                &long,
                "line 1 of the reply has 981 octets, and 980 is the most",
            ),
            (
                550,
                "5.7.1",
                &percents,
                "line 1 of the reply has 982 octets, and 980 is the most",
            ),
            (
                550,
                "5.7.1",
                &lines,
                "a reply of 33 lines, and 32 is the most",
            ),
        ] {
            let error = ReplyCode::new(code, enhanced, text).unwrap_err();
            assert_eq!(error.to_string(), fault);
        }
    }
}
