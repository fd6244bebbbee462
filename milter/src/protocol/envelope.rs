//! The envelope of MAIL and RCPT: an address and its ESMTP parameters.
//!
//! The address is what SMTP had, without its angle brackets; whether it is one is not looked at.

use super::command::{CommandError, split_string};

/// The argument and the parameters of MAIL or RCPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    argument: &'a [u8],
    parameters: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// An envelope to send: `argument` is the address in angle brackets, `parameters` the ESMTP parameters, each with a
    /// NUL after it.
    pub fn new(argument: &'a [u8], parameters: &'a [u8]) -> Self {
        Self {
            argument,
            parameters,
        }
    }

    /// The address without the angle brackets around it; empty for the null sender.
    ///
    /// A `>` within a quoted local part does not end it. An argument without brackets, as for mail submitted on the
    /// MTA's own host, is an address as a whole.
    pub fn address(&self) -> &'a [u8] {
        self.split_argument().0
    }

    /// The ESMTP parameters, `SIZE=400` or `SMTPUTF8`.
    ///
    /// Sendmail up to 8.17.1 leaves them in the argument, after the address, where it was built with SMTPUTF8; they are
    /// found there too.
    pub fn parameters(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let behind_the_address = self.split_argument().1.split(|&o| o == b' ');
        let own = self.parameters.split(|&o| o == 0);
        behind_the_address
            .chain(own)
            .filter(|parameter| !parameter.is_empty())
    }

    /// The argument as it was sent.
    pub(super) fn argument(&self) -> &'a [u8] {
        self.argument
    }

    /// The parameters as they were sent, each with its NUL.
    pub(super) fn raw_parameters(&self) -> &'a [u8] {
        self.parameters
    }

    /// `(NUL-terminated string)+`, the first of them the argument.
    pub(super) fn parse(data: &'a [u8], command: &'static str) -> Result<Self, CommandError> {
        match data.last() {
            None => Err(CommandError::NoArgument { command }),
            Some(0) => {
                let (argument, parameters) = split_string(data);
                Ok(Self {
                    argument,
                    parameters,
                })
            }
            Some(_) => Err(CommandError::Unterminated { command }),
        }
    }

    /// The address, and what follows its closing bracket.
    fn split_argument(&self) -> (&'a [u8], &'a [u8]) {
        let argument = self.argument.trim_ascii();
        let Some(path) = argument.strip_prefix(b"<") else {
            return (argument, &[]);
        };
        match closing_bracket(path).or_else(|| path.iter().rposition(|&o| o == b'>')) {
            Some(end) => (&path[..end], &path[end + 1..]),
            None => (path, &[]),
        }
    }
}

/// The place of the `>` that ends a path, past quoted strings and what a backslash quotes in them.
fn closing_bracket(path: &[u8]) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    path.iter().position(|&octet| {
        if escaped {
            escaped = false;
            return false;
        }
        match octet {
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'>' => return !quoted,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn envelope<'a>(argument: &'a [u8], parameters: &'a [u8]) -> Envelope<'a> {
        Envelope {
            argument,
            parameters,
        }
    }

    #[test]
    fn an_address_is_what_the_angle_brackets_hold() {
        for (argument, parameters, address, wanted) in [
            (
                &b"<a@b.example>"[..],
                &b""[..],
                &b"a@b.example"[..],
                &[][..],
            ),
            (b"a@b.example", b"", b"a@b.example", &[]),
            (b"<>", b"", b"", &[]),
            (b"", b"", b"", &[]),
            (b" <a@b> ", b"", b"a@b", &[]),
            (b"<\"a>b\"@c>", b"", b"\"a>b\"@c", &[]),
            (b"<\"a\\\">b\"@c>", b"", b"\"a\\\">b\"@c", &[]),
            (b"<\"a@c>", b"", b"\"a@c", &[]),
            (b"<a@b", b"", b"a@b", &[]),
            (b"\"c d\"@e", b"", b"\"c d\"@e", &[]),
            (
                b"<\"c d\"@e>",
                b"SIZE=1\0SMTPUTF8\0",
                b"\"c d\"@e",
                &[&b"SIZE=1"[..], b"SMTPUTF8"],
            ),
            (
                b"<\xc3\xbc@\xc3\xbc.example>",
                b"",
                b"\xc3\xbc@\xc3\xbc.example",
                &[],
            ),
            (
                b"<a@b> SMTPUTF8 SIZE=1",
                b"",
                b"a@b",
                &[b"SMTPUTF8", b"SIZE=1"],
            ),
            (
                b"<a@b> BODY=7BIT",
                b"SIZE=1\0",
                b"a@b",
                &[b"BODY=7BIT", b"SIZE=1"],
            ),
        ] {
            let envelope = envelope(argument, parameters);
            assert_eq!(envelope.address(), address, "{argument:?}");
            assert_eq!(
                envelope.parameters().collect::<Vec<_>>(),
                wanted,
                "{argument:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn addresses_of_all_kinds_survive_the_envelope(path in "[a-z\"> \\\\@.]{0,20}") {
            let argument = format!("<{path}>");
            let address = envelope(argument.as_bytes(), b"").address();
            prop_assert!(path.as_bytes().starts_with(address));
        }
    }
}
