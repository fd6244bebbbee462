//! The grammar of address lists (RFC 5322 sections 3.4 and 4.4), by one octet of look-ahead.
//!
//! Two liberties beyond the grammar, both without a second reading: an address may lack its domain, and square brackets
//! may stand unquoted in a display name.

use super::{AddressError, Domain, MAX_MAILBOXES, Mailbox};
use crate::structured::{Scanner, Unclosed, first_control, is_atext, unescape};

/// `address-list`, the obsolete forms among it, flattened to its mailboxes.
pub(super) fn address_list(value: &[u8]) -> Result<Vec<Mailbox>, AddressError> {
    if let Some((offset, octet)) = first_control(value) {
        return Err(AddressError::Control { offset, octet });
    }
    let mut parser = Parser {
        scanner: Scanner::new(value),
    };
    let mut mailboxes = Vec::new();
    let mut open_group = None;
    let mut is_empty = true;
    loop {
        match parser.peek_token()? {
            None => break,
            // Null members are obsolete and legal.
            Some(b',') => {
                parser.scanner.step();
                continue;
            }
            Some(b';') if open_group.is_some() => {
                parser.scanner.step();
                open_group = None;
            }
            Some(_) => match parser.address()? {
                Address::Mailbox(_) if mailboxes.len() == MAX_MAILBOXES => {
                    return Err(AddressError::TooMany);
                }
                Address::Mailbox(mailbox) => mailboxes.push(mailbox),
                Address::GroupName { offset } if open_group.is_some() => {
                    return Err(AddressError::NestedGroup { offset });
                }
                Address::GroupName { offset } => {
                    open_group = Some(offset);
                    is_empty = false;
                    continue;
                }
            },
        }
        is_empty = false;
        match parser.peek_token()? {
            None | Some(b',') => {}
            Some(b';') if open_group.is_some() => {}
            Some(octet) => return Err(parser.unexpected(octet)),
        }
    }
    match open_group {
        Some(offset) => Err(AddressError::UnclosedGroup { offset }),
        None if is_empty => Err(AddressError::Empty),
        None => Ok(mailboxes),
    }
}

struct Parser<'a> {
    scanner: Scanner<'a>,
}

enum Address {
    Mailbox(Mailbox),
    /// A group's name and its colon; what follows up to a semicolon is the group.
    GroupName {
        offset: usize,
    },
}

/// A run of words, dots and white space: a local part, a phrase, both or neither.
struct Words {
    /// What the words mean, if they and the dots between them take turns.
    local_part: Option<Vec<u8>>,
    is_phrase: bool,
    is_empty: bool,
}

impl Parser<'_> {
    /// `mailbox`, or the beginning of a `group`. Something other than a comma is ahead.
    fn address(&mut self) -> Result<Address, AddressError> {
        let start = self.scanner.offset();
        let words = self.words()?;
        match self.peek_token()? {
            Some(b'@') => {
                let mailbox = self.addr_spec(words.local_part)?;
                match self.peek_token()? {
                    Some(b'<') => Err(AddressError::AddressAsName {
                        offset: self.scanner.offset(),
                    }),
                    _ => Ok(Address::Mailbox(mailbox)),
                }
            }
            Some(b'<') if words.is_phrase || words.is_empty => {
                self.angle_addr().map(Address::Mailbox)
            }
            Some(b':') if words.is_phrase => {
                self.scanner.step();
                Ok(Address::GroupName { offset: start })
            }
            Some(octet) if words.is_empty || !matches!(octet, b',' | b';') => {
                Err(self.unexpected(octet))
            }
            _ => match words.local_part {
                Some(local_part) => Ok(Address::Mailbox(Mailbox {
                    local_part,
                    domain: Domain::Missing,
                })),
                None => Err(AddressError::NoAddress { offset: start }),
            },
        }
    }

    /// `angle-addr`
    fn angle_addr(&mut self) -> Result<Mailbox, AddressError> {
        let start = self.scanner.offset();
        self.scanner.step();
        if matches!(self.peek_token()?, Some(b'@' | b',')) {
            self.route(start)?;
        }
        let words = self.words()?;
        let mailbox = match (self.peek_token()?, words.local_part) {
            (Some(b'@'), local_part) => self.addr_spec(local_part)?,
            (Some(b'>'), Some(local_part)) => Mailbox {
                local_part,
                domain: Domain::Missing,
            },
            (Some(b'>'), None) => return Err(AddressError::NoAddress { offset: start }),
            (Some(octet), _) => return Err(self.unexpected(octet)),
            (None, _) => return Err(AddressError::UnclosedAngle { offset: start }),
        };
        match self.peek_token()? {
            Some(b'>') => {
                self.scanner.step();
                Ok(mailbox)
            }
            Some(octet) => Err(self.unexpected(octet)),
            None => Err(AddressError::UnclosedAngle { offset: start }),
        }
    }

    /// `obs-route`: hosts on the way, to be ignored.
    fn route(&mut self, start: usize) -> Result<(), AddressError> {
        let (mut is_empty, mut after_host) = (true, false);
        loop {
            match self.peek_token()? {
                Some(b',') => {
                    self.scanner.step();
                    after_host = false;
                }
                Some(b'@') if !after_host => {
                    self.scanner.step();
                    self.domain()?;
                    (is_empty, after_host) = (false, true);
                }
                Some(b':') if !is_empty => {
                    self.scanner.step();
                    return Ok(());
                }
                Some(octet) => return Err(self.unexpected(octet)),
                None => return Err(AddressError::UnclosedAngle { offset: start }),
            }
        }
    }

    /// The rest of `addr-spec`, its `@` ahead and the words before it behind.
    fn addr_spec(&mut self, local_part: Option<Vec<u8>>) -> Result<Mailbox, AddressError> {
        let offset = self.scanner.offset();
        let local_part = local_part.ok_or(AddressError::LocalPart { offset })?;
        self.scanner.step();
        Ok(Mailbox {
            local_part,
            domain: self.domain()?,
        })
    }

    /// `domain`: a literal, or atoms with dots between, each with white space and comments around it.
    fn domain(&mut self) -> Result<Domain, AddressError> {
        if self.peek_token()? == Some(b'[') {
            return self.literal();
        }
        let mut octets = self.domain_atom()?.to_vec();
        while self.peek_token()? == Some(b'.') {
            self.scanner.step();
            octets.push(b'.');
            octets.extend_from_slice(self.domain_atom()?);
        }
        Ok(Domain::from_atoms(octets))
    }

    fn domain_atom(&mut self) -> Result<&[u8], AddressError> {
        self.peek_token()?;
        let offset = self.scanner.offset();
        match self.scanner.take_while(is_atext) {
            [] => Err(AddressError::NoDomain { offset }),
            atom => Ok(atom),
        }
    }

    /// `domain-literal`, its bracket ahead; with quoted pairs as they are.
    fn literal(&mut self) -> Result<Domain, AddressError> {
        let start = self.scanner.offset();
        let mut octets = vec![b'['];
        self.scanner.step();
        loop {
            let run = self
                .scanner
                .take_while(|o| !matches!(o, b'[' | b']' | b'\\'));
            octets.extend(run.iter().filter(|o| !o.is_ascii_whitespace()));
            match self.scanner.peek() {
                Some(b']') => {
                    self.scanner.step();
                    octets.push(b']');
                    return Ok(Domain::Literal(octets));
                }
                Some(b'\\') => {
                    self.scanner.step();
                    octets.push(b'\\');
                    octets.extend(self.scanner.step());
                }
                Some(octet) => return Err(self.unexpected(octet)),
                None => return Err(AddressError::UnclosedLiteral { offset: start }),
            }
        }
    }

    /// Words and dots up to anything else; may be none.
    fn words(&mut self) -> Result<Words, AddressError> {
        let mut meant = Vec::new();
        let (mut takes_turns, mut after_word) = (true, false);
        let (mut is_empty, mut is_phrase) = (true, false);
        loop {
            match self.peek_token()? {
                Some(b'.') => {
                    takes_turns &= after_word;
                    after_word = false;
                    self.scanner.step();
                    meant.push(b'.');
                }
                Some(b'[' | b']') => {
                    self.scanner.step();
                    is_phrase |= is_empty;
                    takes_turns = false;
                }
                Some(octet) if octet == b'"' || is_atext(octet) => {
                    takes_turns &= !after_word;
                    after_word = true;
                    is_phrase |= is_empty;
                    if octet == b'"' {
                        meant.extend(unescape(self.scanner.quoted_string()?));
                    } else {
                        meant.extend_from_slice(self.scanner.take_while(is_atext));
                    }
                }
                _ => break,
            }
            is_empty = false;
        }
        Ok(Words {
            local_part: (takes_turns && after_word).then_some(meant),
            is_phrase,
            is_empty,
        })
    }

    /// The octet ahead, once white space and comments are behind.
    fn peek_token(&mut self) -> Result<Option<u8>, AddressError> {
        self.scanner.skip_cfws()?;
        Ok(self.scanner.peek())
    }

    fn unexpected(&self, octet: u8) -> AddressError {
        AddressError::Unexpected {
            offset: self.scanner.offset(),
            octet,
        }
    }
}

impl From<Unclosed> for AddressError {
    fn from(unclosed: Unclosed) -> Self {
        match unclosed {
            Unclosed::Comment { offset } => Self::UnclosedComment { offset },
            Unclosed::QuotedString { offset } => Self::UnclosedQuotedString { offset },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `local@domain` for every mailbox; nothing after the `@` that is missing.
    fn read(value: &[u8]) -> Result<Vec<String>, AddressError> {
        let mailboxes = address_list(value)?;
        let write = |mailbox: Mailbox| {
            let local_part = mailbox.local_part.escape_ascii().to_string();
            match mailbox.domain {
                Domain::Name(domain) | Domain::Literal(domain) | Domain::Invalid(domain, _) => {
                    format!("{local_part}@{}", domain.escape_ascii())
                }
                Domain::Missing => local_part,
            }
        };
        Ok(mailboxes.into_iter().map(write).collect())
    }

    #[test]
    fn addresses_are_read_by_the_grammar() {
        for (value, addresses) in [
            (&b" ann@example.org"[..], &["ann@example.org"][..]),
            (b"<ann@example.org>", &["ann@example.org"]),
            (b"Ann <ann@example.org>\r\n", &["ann@example.org"]),
            (b"\"Lee, Ann\" <ann@example.org>", &["ann@example.org"]),
            (b"\"x@example.net\" <ann@example.org>", &["ann@example.org"]),
            (
                b"\"<x@example.net>,\\\"\" <ann@example.org>",
                &["ann@example.org"],
            ),
            (b"A. B. Lee <ann@example.org>", &["ann@example.org"]),
            (b"Lee\"Ann\"<ann@example.org>", &["ann@example.org"]),
            (b"[Sales] Ann [x] <ann@example.org>", &["ann@example.org"]),
            (b"Andr\xE9 <ann@example.org>", &["ann@example.org"]),
            (
                b"=?utf-8?q?=3Cx=40example.net=3E?= <ann@example.org>",
                &["ann@example.org"],
            ),
            (b"Ann\r\n\t<ann@example.org>", &["ann@example.org"]),
            (b"Ann\n <ann@example.org>", &["ann@example.org"]),
            // Local parts.
            (b"a.b+c=d/e@example.org", &["a.b+c=d/e@example.org"]),
            (b"\"a b\"@example.org", &["a b@example.org"]),
            (
                b"\"x@example.net\"@example.org",
                &["x@example.net@example.org"],
            ),
            (
                b"\"<x@example.net>\"@example.org",
                &["<x@example.net>@example.org"],
            ),
            (b"\"a\\,\\\\b\"@example.org", &["a,\\\\b@example.org"]),
            (b"\"a\r\n b\"@example.org", &["a b@example.org"]),
            (b"a.\"b c\".d@example.org", &["a.b c.d@example.org"]),
            (b"\xC3\xA9@example.org", &["\\xc3\\xa9@example.org"]),
            // Comments and white space.
            (b"ann@example.org (Ann)", &["ann@example.org"]),
            (
                b"(a) ann (b) @ (c) example (d) . (e) org (f)",
                &["ann@example.org"],
            ),
            (b"a (x) . (y) b@example.org", &["a.b@example.org"]),
            (
                b"(<x@example.net>, (nested \\) \" ) y) ann@example.org",
                &["ann@example.org"],
            ),
            (
                b"Ann (a) < (b) ann@example.org (c) > (d)",
                &["ann@example.org"],
            ),
            // Lists.
            (
                b"a@example.org, b@example.net",
                &["a@example.org", "b@example.net"],
            ),
            (
                b"a@example.org,B <b@example.net>",
                &["a@example.org", "b@example.net"],
            ),
            (b", ,a@example.org,, (x) ,", &["a@example.org"]),
            // Groups.
            (b"undisclosed:;", &[]),
            (b"U: (nobody) ;", &[]),
            (b"U: ,;", &[]),
            (
                b"A B: a@example.org, B <b@example.net>;",
                &["a@example.org", "b@example.net"],
            ),
            (
                b"A:a@example.org;, \"B\": ;, c@example.net",
                &["a@example.org", "c@example.net"],
            ),
            // Routes.
            (
                b"<@a.example,@b.example:ann@example.org>",
                &["ann@example.org"],
            ),
            (
                b"A < @a.example , , (x) @ b . example : ann@example.org >",
                &["ann@example.org"],
            ),
            (b"<,@a.example,:ann@example.org>", &["ann@example.org"]),
            // Literals.
            (b"ann@[192.0.2.1]", &["ann@[192.0.2.1]"]),
            (b"<ann@[IPv6:2001:db8::1]>", &["ann@[IPv6:2001:db8::1]"]),
            (b"ann@[ a \\] b ]", &["ann@[a\\\\]b]"]),
            // Without a domain.
            (b"root (Cron Daemon)", &["root"]),
            (b"root", &["root"]),
            (b"A. Lee, <b@example.net>", &["A.Lee", "b@example.net"]),
            (b"Cron Daemon <root>", &["root"]),
            (
                b"=?utf-8?q?=3Cx=40example.net=3E?=,<ann@example.org>",
                &["=?utf-8?q?=3Cx=40example.net=3E?=", "ann@example.org"],
            ),
            (b"Lee, Ann <ann@example.org>", &["Lee", "ann@example.org"]),
        ] {
            let wanted = addresses.iter().map(ToString::to_string).collect();
            assert_eq!(read(value), Ok(wanted), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn what_is_not_by_the_grammar_is_no_guess() {
        for (value, fault) in [
            ("", "there is no address"),
            (" \r\n\t", "there is no address"),
            (",,", "there is no address"),
            ("(only a comment)", "there is no address"),
            (
                "a@example.org <b@example.net>",
                "the name before the address at octet 14 is itself an address, without quotes",
            ),
            (
                "<a@example.org> <b@example.net>",
                "unexpected \"<\" at octet 16",
            ),
            (
                "<a@example.org>, x <b@example.net>c",
                "unexpected \"c\" at octet 34",
            ),
            (
                "<a@example.org>\\,<b@example.net>",
                "unexpected \"\\\\\" at octet 15",
            ),
            (
                "a@example.org b@example.net",
                "unexpected \"b\" at octet 14",
            ),
            (
                "a@example.org; b@example.net",
                "unexpected \";\" at octet 13",
            ),
            ("; a@example.org", "unexpected \";\" at octet 0"),
            ("A:;;", "unexpected \";\" at octet 3"),
            ("A:a@example.org b;", "unexpected \"b\" at octet 16"),
            ("A:a@example.org", "the group at octet 0 is not closed"),
            ("a@example.org, A:", "the group at octet 15 is not closed"),
            ("A:B:;;", "a group within a group at octet 2"),
            (":;", "unexpected \":\" at octet 0"),
            ("a@example.org@example.net", "unexpected \"@\" at octet 13"),
            ("a@example.org)", "unexpected \")\" at octet 13"),
            ("a@example.org>", "unexpected \">\" at octet 13"),
            ("<<a@example.org>>", "unexpected \"<\" at octet 1"),
            ("<a@example.org", "the \"<\" at octet 0 is not closed"),
            ("Ann <", "the \"<\" at octet 4 is not closed"),
            ("<>", "words without an address at octet 0"),
            ("<a b>", "words without an address at octet 0"),
            ("<A <a@example.org>", "unexpected \"<\" at octet 3"),
            (
                "<a@example.org, b@example.net>",
                "unexpected \",\" at octet 14",
            ),
            ("<@a.example a@example.org>", "unexpected \"a\" at octet 12"),
            ("<@a.example>", "unexpected \">\" at octet 11"),
            ("<,a@example.org>", "unexpected \"a\" at octet 2"),
            ("<@a.example:", "the \"<\" at octet 0 is not closed"),
            ("Ann Lee", "words without an address at octet 0"),
            (
                "Ann Lee@example.org",
                "no local part before the \"@\" at octet 7",
            ),
            ("@example.org", "no local part before the \"@\" at octet 0"),
            ("<A:@example.org>", "unexpected \":\" at octet 2"),
            (
                ".a@example.org",
                "no local part before the \"@\" at octet 2",
            ),
            (
                "a.@example.org",
                "no local part before the \"@\" at octet 2",
            ),
            (
                "a..b@example.org",
                "no local part before the \"@\" at octet 4",
            ),
            (".Ann <a@example.org>", "unexpected \"<\" at octet 5"),
            ("a@", "no domain at octet 2"),
            ("a@,b@example.net", "no domain at octet 2"),
            ("a@example.", "no domain at octet 10"),
            ("a@.example", "no domain at octet 2"),
            ("a@example..org", "no domain at octet 10"),
            ("a@\"example.org\"", "no domain at octet 2"),
            ("a@[192.0.2.1", "the \"[\" at octet 2 is not closed"),
            ("a@[[x]]", "unexpected \"[\" at octet 3"),
            ("a@[x\\", "the \"[\" at octet 2 is not closed"),
            ("a@[x].example", "unexpected \".\" at octet 5"),
            (
                "\"Ann <a@example.org>",
                "the quoted string at octet 0 is not closed",
            ),
            (
                "\"Ann\\\" <a@example.org>",
                "the quoted string at octet 0 is not closed",
            ),
            ("(Ann a@example.org", "the comment at octet 0 is not closed"),
            (
                "(Ann \\) a@example.org",
                "the comment at octet 0 is not closed",
            ),
            ("a@example.org (", "the comment at octet 14 is not closed"),
            ("a\0@example.org", "control character 0x00 at octet 1"),
            ("\"a\\\0\"@example.org", "control character 0x00 at octet 3"),
            ("(\x07) a@example.org", "control character 0x07 at octet 1"),
            (
                "a@example.org\r\nb@example.net",
                "control character 0x0D at octet 13",
            ),
            (
                "a@example.org,\nb@example.net",
                "control character 0x0A at octet 14",
            ),
        ] {
            let sentence = read(value.as_bytes()).unwrap_err().to_string();
            assert_eq!(sentence, fault, "{}", value.escape_debug());
        }
    }

    #[test]
    fn hostile_lists_cost_linear_time_and_little_memory() {
        const MANY: usize = 1 << 18;
        for octet in b"(,<>@.:;\"[]\\ a\xFF" {
            let _ = address_list(&vec![*octet; MANY]);
        }
        for part in [
            "()", "(\\", "a:", "a.", "a,", "\"\"", "@a,", "<a@", "a@b,", "[\\",
        ] {
            let _ = address_list(part.repeat(MANY / part.len()).as_bytes());
            let _ = address_list(format!("<@{}", part.repeat(MANY / part.len())).as_bytes());
        }
        let deep = format!("{}{}a@example.org", "(".repeat(MANY), ")".repeat(MANY));
        assert_eq!(read(deep.as_bytes()), Ok(vec!["a@example.org".to_owned()]));
        assert_eq!(
            read("a@b,".repeat(MAX_MAILBOXES).as_bytes()).map(|list| list.len()),
            Ok(MAX_MAILBOXES)
        );
        assert_eq!(
            read("a@b,".repeat(MAX_MAILBOXES + 1).as_bytes()),
            Err(AddressError::TooMany)
        );
    }

    /// White space and comments as may stand between any two tokens, addresses in disguise among them.
    fn cfws() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => Just(""),
            2 => Just(" "),
            1 => Just("\r\n\t"),
            1 => Just("\n "),
            1 => Just("(a@b.example)"),
            1 => Just(" (<x@y> (\\)\\\\) \", ) "),
        ];
        piece.prop_map(str::to_owned)
    }

    /// A local part as it is written, and what it means.
    fn local_part() -> impl Strategy<Value = (String, String)> {
        prop_oneof![
            "[a-z0-9!#$%&'*+/=?^_`{|}~-]{1,6}(\\.[A-Z0-9]{1,4}){0,2}"
                .prop_map(|atom| (atom.clone(), atom)),
            "[ -~\u{E9}]{0,8}".prop_map(|meant| {
                let written = meant.replace('\\', "\\\\").replace('"', "\\\"");
                (format!("\"{written}\""), meant)
            }),
        ]
    }

    fn display_name() -> impl Strategy<Value = &'static str> {
        prop_oneof![
            Just(""),
            Just("Ann"),
            Just("A. B"),
            Just("\"a@b.example, <x@y>; \\\" (\""),
            Just("=?utf-8?q?a=40b?= c"),
        ]
    }

    prop_compose! {
        /// A mailbox as it is written, and what it means.
        fn mailbox()(
            (local, meant) in local_part(),
            labels in prop::collection::vec("[a-z]{1,5}", 1..4),
            name in display_name(),
            is_angle in any::<bool>(),
            spaces in prop::collection::vec(cfws(), 8),
        ) -> (String, String) {
            let [s0, s1, s2, s3, s4, s5, s6, s7] = spaces.try_into().unwrap();
            let domain = labels.join(&format!("{s3}.{s4}"));
            let address = format!("{s0}{local}{s1}@{s2}{domain}{s5}");
            let written = if is_angle { format!("{s6}{name}{s7}<{address}>{s0}") } else { address };
            (written, format!("{meant}@{}", labels.join(".")))
        }
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_composed(list in prop::collection::vec(mailbox(), 1..5), group in any::<bool>()) {
            let (written, meant): (Vec<_>, Vec<_>) = list.into_iter().unzip();
            let mut value = written.join(",");
            if group {
                value = format!("Some one:{value};");
            }
            let read: Vec<Vec<u8>> = address_list(value.as_bytes())
                .unwrap()
                .into_iter()
                .map(|mailbox| {
                    let Domain::Name(domain) = mailbox.domain else { panic!("{mailbox:?}") };
                    [mailbox.local_part, domain].join(&b'@')
                })
                .collect();
            let meant: Vec<Vec<u8>> = meant.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(read, meant);
        }

        #[test]
        fn no_octets_make_it_panic(value in prop::collection::vec(prop_oneof![
            prop::sample::select(b"ab.@<>(),;:\\\"[] \t\r\n\0\xFF".to_vec()),
            any::<u8>(),
        ], 0..64)) {
            let _ = address_list(&value);
        }
    }
}
