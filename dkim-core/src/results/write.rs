//! Writing the Authentication-Results field (RFC 8601 section 2.2).
//!
//! Selector, domain and identity of a signature were chosen by whoever wrote the message. So every value goes through
//! one gate, [`clean`], which leaves neither control characters nor broken UTF-8 nor excess, and through one
//! writer, which quotes what is not plainly harmless; and none of them is ever the start of a line.

use crate::domain_name::{Labels, check_signing_domain};
use crate::results::{ResultWord, is_token_octet};
use crate::structured::{is_dot_atom, quote};

/// What one evaluation by one method came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodResult {
    /// The method's name: `dkim` (RFC 8601 section 2.7).
    pub method: &'static str,
    /// How it ended.
    pub result: ResultWord,
    /// A remark for people, in words of ours; written as a comment.
    pub comment: Option<String>,
    /// Why it ended so, in words of ours; written as `reason=`.
    pub reason: Option<String>,
    /// What was evaluated, in the order to be written.
    pub properties: Vec<Property>,
}

/// One `ptype.property=value` (RFC 8601 section 2.3), as `header.d=example.com`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// `header`, `policy`, `smtp` or `body`.
    pub ptype: &'static str,
    /// For `header` and DKIM, a tag of the signature: `d`, `i`, `s`, `a`, `b`.
    pub name: &'static str,
    /// Any octets; those of an identity as `i=` has them, quotes of its local part included.
    pub value: Vec<u8>,
}

/// Writes the value of an Authentication-Results field: one result a line, `dkim=none` if there is none, folds as CRLF
/// and a tab or a space, no line end at the end. Lines keep to 78 octets, counted with the field's name, where a fold is
/// possible and harmless, and always to 998.
///
/// Values and texts come out as valid UTF-8 without control characters, "?" in the place of what was not; past
/// [`MAX_VALUE_LENGTH`] octets they are cut and end in "...". In comments, parentheses and backslashes come out as
/// brackets and slashes. Comments and reasons are folded at their spaces, values
/// never, so that no line starts with octets out of a message.
pub fn format_results(authserv_id: &str, results: &[MethodResult]) -> Vec<u8> {
    let mut lines = Lines {
        octets: Vec::new(),
        column: FIELD_NAME.len(),
    };
    lines.push(&[value(clean(authserv_id.as_bytes())).as_slice(), b";"].concat());
    if results.is_empty() {
        lines.fold();
        lines.push(b"dkim=none");
    }
    for (at, result) in results.iter().enumerate() {
        let mut items = items(result);
        if at + 1 < results.len()
            && let Some(last) = items.last_mut()
        {
            last.octets.push(b';');
        }
        lines.fold();
        for (at, item) in items.iter().enumerate() {
            lines.push_item(item, at == 0);
        }
    }
    lines.octets
}

/// Longest value or text written, in octets before quoting: a local part, an `@` and a domain name fit (RFC 5321 section
/// 4.5.3.1).
pub const MAX_VALUE_LENGTH: usize = 320;

/// Something to be written in one piece, or, if it is text of ours, folded at its spaces.
struct Item {
    octets: Vec<u8>,
    may_fold: bool,
}

impl Item {
    fn result(result: &MethodResult) -> Self {
        let octets = format!("{}={}", result.method, result.result.as_str()).into_bytes();
        Self {
            octets,
            may_fold: false,
        }
    }

    fn comment(text: &str) -> Self {
        Self {
            octets: parenthesize(&clean(text.as_bytes())),
            may_fold: true,
        }
    }

    fn reason(text: &str) -> Self {
        let quoted = quote(clean(text.as_bytes()).as_bytes());
        Self {
            octets: [&b"reason="[..], &quoted].concat(),
            may_fold: true,
        }
    }

    fn property(property: &Property) -> Self {
        let mut octets = format!("{}.{}=", property.ptype, property.name).into_bytes();
        octets.extend(pvalue(clean(&property.value)));
        Self {
            octets,
            may_fold: false,
        }
    }
}

fn items(result: &MethodResult) -> Vec<Item> {
    let mut items = vec![Item::result(result)];
    items.extend(result.comment.as_deref().map(Item::comment));
    items.extend(result.reason.as_deref().map(Item::reason));
    items.extend(result.properties.iter().map(Item::property));
    items
}

/// `value`: a token as it is, all else as a quoted string.
fn value(text: String) -> Vec<u8> {
    if !text.is_empty() && text.bytes().all(is_token_octet) {
        text.into_bytes()
    } else {
        quote(text.as_bytes())
    }
}

/// `pvalue`: an identity or a domain name as it is, all else as a `value`.
fn pvalue(text: String) -> Vec<u8> {
    if is_identity(&text) {
        text.into_bytes()
    } else {
        value(text)
    }
}

/// `[ [ local-part ] "@" ] domain-name`, without white space and comments, UTF-8 allowed (RFC 8616 section 5).
fn is_identity(text: &str) -> bool {
    let (local_part, domain) = text.rsplit_once('@').unwrap_or(("", text));
    let is_local_part =
        local_part.is_empty() || is_dot_atom(local_part.as_bytes()) || is_quoted_string(local_part);
    is_local_part && check_signing_domain(domain.as_bytes(), Labels::Unicode).is_ok()
}

fn is_quoted_string(text: &str) -> bool {
    let Some(inside) = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
    else {
        return false;
    };
    let mut octets = inside.bytes();
    while let Some(octet) = octets.next() {
        if octet == b'"' || (octet == b'\\' && octets.next().is_none()) {
            return false;
        }
    }
    true
}

/// A comment without quoted pairs: readers are in use that end it at an escaped parenthesis, and go on to read what
/// follows as results.
fn parenthesize(text: &str) -> Vec<u8> {
    let plain = text.chars().map(|character| match character {
        '(' => '[',
        ')' => ']',
        '\\' => '/',
        other => other,
    });
    format!("({})", plain.collect::<String>()).into_bytes()
}

/// What may be shown of `octets`: valid UTF-8 of bounded length and without characters that steer a terminal or the
/// direction of text.
fn clean(octets: &[u8]) -> String {
    let mut text = String::new();
    for chunk in octets.utf8_chunks() {
        let broken = (!chunk.invalid().is_empty()).then_some('?');
        for character in chunk.valid().chars().chain(broken) {
            let shown = if steers(character) { '?' } else { character };
            if text.len() + shown.len_utf8() > MAX_VALUE_LENGTH {
                text.push_str("...");
                return text;
            }
            text.push(shown);
        }
    }
    text
}

/// Control characters, line and paragraph separators, and marks that turn the direction of text (UAX #9).
fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}'
        )
}

/// A field in the making.
struct Lines {
    octets: Vec<u8>,
    /// How many octets the last line has.
    column: usize,
}

impl Lines {
    /// Writes `item`, after a space or on a new line if it is not the first of its line.
    fn push_item(&mut self, item: &Item, is_first: bool) {
        let pieces = if item.may_fold {
            split_at_spaces(&item.octets)
        } else {
            vec![item.octets.as_slice()]
        };
        for (at, piece) in pieces.into_iter().enumerate() {
            if at > 0 {
                // The space that a piece starts with makes the fold.
                if self.column + piece.len() > LINE_LENGTH {
                    self.octets.extend_from_slice(b"\r\n");
                    self.column = 0;
                }
            } else if !is_first {
                if self.column + 1 + piece.len() > LINE_LENGTH {
                    self.fold();
                } else {
                    self.push(b" ");
                }
            }
            self.push(piece);
        }
    }

    fn fold(&mut self) {
        self.octets.extend_from_slice(b"\r\n\t");
        self.column = 1;
    }

    fn push(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
        self.column += octets.len();
    }
}

/// Splits `text` before each run of spaces; as something follows every run, no piece is all white space.
fn split_at_spaces(text: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, pair) in text.windows(2).enumerate() {
        if pair[0] != b' ' && pair[1] == b' ' {
            pieces.push(&text[start..=at]);
            start = at + 1;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

const FIELD_NAME: &str = "Authentication-Results: ";
/// RFC 5322 section 2.1.1.
const LINE_LENGTH: usize = 78;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::AuthenticationResults;
    use proptest::prelude::*;

    fn header(name: &'static str, value: impl AsRef<[u8]>) -> Property {
        Property {
            ptype: "header",
            name,
            value: value.as_ref().to_vec(),
        }
    }

    fn pass(properties: Vec<Property>) -> MethodResult {
        MethodResult {
            method: "dkim",
            result: ResultWord::Pass,
            comment: None,
            reason: None,
            properties,
        }
    }

    /// How `value` is written after `header.i=`.
    fn written(value: &[u8]) -> String {
        let field = format_results("x", &[pass(vec![header("i", value)])]);
        let field = String::from_utf8(field).unwrap();
        let (_, written) = field.split_once("header.i=").unwrap();
        written.to_owned()
    }

    #[test]
    fn a_result_takes_a_line_and_long_ones_are_folded_between_their_parts() {
        let first = MethodResult {
            comment: Some("2048-bit key".to_owned()),
            ..pass(vec![
                header("d", "example.com"),
                header("i", "@example.com"),
                header("a", "rsa-sha256"),
                header("s", "s2026"),
                header("b", "q7/Xk+Pa"),
            ])
        };
        let second = MethodResult {
            result: ResultWord::Fail,
            reason: Some("body hash did not verify".to_owned()),
            ..pass(vec![header("d", "example.net")])
        };
        let field = format_results("mail.example.org", &[first, second]);
        let wanted = "mail.example.org;\r\n\
            \tdkim=pass (2048-bit key) header.d=example.com header.i=@example.com\r\n\
            \theader.a=rsa-sha256 header.s=s2026 header.b=\"q7/Xk+Pa\";\r\n\
            \tdkim=fail reason=\"body hash did not verify\" header.d=example.net";
        assert_eq!(String::from_utf8(field).unwrap(), wanted);
    }

    #[test]
    fn a_message_without_signature_has_the_result_none() {
        assert_eq!(
            format_results("mail.example.org", &[]),
            b"mail.example.org;\r\n\tdkim=none"
        );
        assert_eq!(format_results("a b", &[]), b"\"a b\";\r\n\tdkim=none");
    }

    #[test]
    fn only_tokens_names_and_identities_go_without_quotes() {
        for (value, wanted) in [
            (&b"rsa-sha256"[..], "rsa-sha256"),
            (b"a_b.c+d", "a_b.c+d"),
            (b"Example.com", "Example.com"),
            ("b\u{FC}cher.example".as_bytes(), "b\u{FC}cher.example"),
            (b"@example.com", "@example.com"),
            (b"joe@example.com", "joe@example.com"),
            (b"j.o'e+x@example.com", "j.o'e+x@example.com"),
            (
                "\u{FC}@b\u{FC}cher.example".as_bytes(),
                "\u{FC}@b\u{FC}cher.example",
            ),
            (b"\"a b\"@example.com", "\"a b\"@example.com"),
            (b"\"a\\\"b\"@example.com", "\"a\\\"b\"@example.com"),
            (b"\"a@b\"@example.com", "\"a@b\"@example.com"),
            (b"", "\"\""),
            (b"a b", "\"a b\""),
            (b"a/b", "\"a/b\""),
            (b"a=b", "\"a=b\""),
            (b"a\\b\"c", "\"a\\\\b\\\"c\""),
            ("\u{FC}".as_bytes(), "\"\u{FC}\""),
            (b"@", "\"@\""),
            (b"joe@", "\"joe@\""),
            (b"joe@localhost", "\"joe@localhost\""),
            (b"joe@exa mple.com", "\"joe@exa mple.com\""),
            (b"joe@example.com.", "\"joe@example.com.\""),
            (b"a b@example.com", "\"a b@example.com\""),
            (b"a..b@example.com", "\"a..b@example.com\""),
            (b"\"@example.com", "\"\\\"@example.com\""),
            (b"\"a\"b\"@example.com", "\"\\\"a\\\"b\\\"@example.com\""),
            (b"\"a\\\"@example.com", "\"\\\"a\\\\\\\"@example.com\""),
        ] {
            assert_eq!(written(value), wanted, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn nothing_from_a_message_breaks_out() {
        for (value, wanted) in [
            (
                &b"x; dkim=pass header.d=example.net"[..],
                "\"x; dkim=pass header.d=example.net\"",
            ),
            (
                b"\"x; dkim=pass header.d=example.net\"@example.com",
                "\"x; dkim=pass header.d=example.net\"@example.com",
            ),
            (
                b"\"x\"; dkim=pass@example.com",
                "\"\\\"x\\\"; dkim=pass@example.com\"",
            ),
            (
                b"\"a\r\nAuthentication-Results: x; spf=pass\"@example.com",
                "\"a??Authentication-Results: x; spf=pass\"@example.com",
            ),
            (b"a\r\n\tb", "\"a???b\""),
            (b"a\0b@example.com", "a?b@example.com"),
            (b"a(b)@example.com", "\"a(b)@example.com\""),
            (b"a\x7F\x1B[2J", "\"a??[2J\""),
            (b"a\xFF\xC3b", "\"a??b\""),
            ("a\u{85}\u{2028}\u{202E}\u{2066}b".as_bytes(), "\"a????b\""),
        ] {
            assert_eq!(written(value), wanted, "{}", value.escape_ascii());
        }
        let result = MethodResult {
            comment: Some("a) ; spf=pass (\\\r\n".to_owned()),
            reason: Some("\"; spf=pass \\".to_owned()),
            ..pass(vec![])
        };
        let field = format_results("x", &[result]);
        let wanted = "x;\r\n\tdkim=pass (a] ; spf=pass [/??) reason=\"\\\"; spf=pass \\\\\"";
        assert_eq!(String::from_utf8(field).unwrap(), wanted);
    }

    #[test]
    fn long_values_are_cut_where_it_can_be_seen() {
        let fits = "a".repeat(MAX_VALUE_LENGTH);
        assert_eq!(written(fits.as_bytes()), fits);
        assert_eq!(written(format!("{fits}b").as_bytes()), format!("{fits}..."));
        let identity = format!("{}@example.com", "a".repeat(5000));
        assert_eq!(written(identity.as_bytes()), format!("{fits}..."));
        // Never within a character, and never to another identity.
        let wide = "\u{20AC}".repeat(200);
        assert_eq!(
            written(wide.as_bytes()),
            format!("\"{}...\"", "\u{20AC}".repeat(106))
        );
        let other = format!("@example.com{}", ".a".repeat(200));
        assert!(written(other.as_bytes()).starts_with("\"@example.com.a"));
    }

    #[test]
    fn texts_of_ours_fold_at_spaces_and_values_never() {
        let words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
        let result = MethodResult {
            reason: Some(words.to_owned()),
            comment: Some("see  above".to_owned()),
            ..pass(vec![header("s", words)])
        };
        let field = format_results("x", &[result]);
        let wanted = "x;\r\n\
            \tdkim=pass (see  above) reason=\"one two three four five six seven eight nine\r\n\
            \x20ten eleven twelve thirteen fourteen fifteen\"\r\n\
            \theader.s=\"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen\"";
        assert_eq!(String::from_utf8(field).unwrap(), wanted);
    }

    /// What every field must be, whatever is in it.
    fn assert_is_one_field(field: &[u8]) {
        let text = str::from_utf8(field).unwrap();
        let lines: Vec<&str> = text.split("\r\n").collect();
        for (at, line) in lines.iter().enumerate() {
            let line = if at == 0 {
                *line
            } else {
                line.strip_prefix(['\t', ' ']).unwrap()
            };
            assert!(!line.chars().any(char::is_control), "{text:?}");
            assert!(!line.trim_matches(' ').is_empty(), "{text:?}");
            assert!(line.len() < 998, "{text:?}");
        }
    }

    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let fragment = prop_oneof![
            4 => prop::sample::select(b"\";=\\()@.,:<> \t\r\n\0\x1B\x7F\x80\xC3\xFFab".to_vec()).prop_map(|o| vec![o]),
            1 => any::<u8>().prop_map(|o| vec![o]),
            1 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
            1 => Just(b"\r\nAuthentication-Results: x; dkim=pass".to_vec()),
            1 => Just(b"; dkim=pass header.d=example.net ".to_vec()),
            1 => Just(b"\"@example.com".to_vec()),
        ];
        prop::collection::vec(fragment, 0..40).prop_map(|fragments| fragments.concat())
    }

    /// What is fit to be written: it comes back as it was.
    fn harmless() -> impl Strategy<Value = String> {
        prop_oneof![
            "[ -~\u{E9}\u{20AC}\u{1F600}]{0,80}",
            "[a-z.\"\\\\ ;@]{0,12}@[a-z]{1,8}\\.example",
            "\"([ -!#-\\[\\]-~]|\\\\[ -~]){0,20}\"@b\u{FC}cher\\.example",
        ]
    }

    prop_compose! {
        fn results(value: BoxedStrategy<Vec<u8>>, text: BoxedStrategy<String>)(
            results in prop::collection::vec((
                prop::sample::select(ResultWord::ALL.to_vec()),
                prop::option::of(text.clone()),
                prop::option::of(text.clone()),
                prop::collection::vec((prop::sample::select(vec!["d", "i", "s", "b"]), value.clone()), 0..5),
            ), 1..4),
        ) -> Vec<MethodResult> {
            let result = |(result, comment, reason, properties): (_, _, _, Vec<_>)| MethodResult {
                method: "dkim",
                result,
                comment,
                reason,
                properties: properties.into_iter().map(|(name, value)| header(name, value)).collect(),
            };
            results.into_iter().map(result).collect()
        }
    }

    fn bracketed(comment: &str) -> String {
        comment
            .replace('(', "[")
            .replace(')', "]")
            .replace('\\', "/")
    }

    /// What is left of `octets` in the field, by other means than [`clean`].
    fn visible(octets: &[u8]) -> String {
        let is_mark = |c| {
            "\u{61C}\u{200E}\u{200F}\u{2028}\u{2029}\u{202A}\u{202B}\u{202C}\u{202D}\u{202E}\u{2066}\u{2067}\u{2068}\u{2069}".contains(c)
        };
        String::from_utf8_lossy(octets).replace(
            |c: char| c < ' ' || ('\u{7F}'..'\u{A0}').contains(&c) || is_mark(c) || c == '\u{FFFD}',
            "?",
        )
    }

    /// The octets of `read`, its U+FFFD, which may as well have been broken UTF-8, as "?".
    fn plain(read: &[u8]) -> String {
        str::from_utf8(read).unwrap().replace('\u{FFFD}', "?")
    }

    /// Reads `field` and compares all that it says with `results`, as far as they can be shown.
    fn assert_says(field: &[u8], authserv_id: &str, results: &[MethodResult]) {
        let same = |read: &[u8], given: &[u8]| match read.strip_suffix(b"...") {
            Some(cut) if read.len() + 3 > MAX_VALUE_LENGTH => {
                visible(given).starts_with(&plain(cut))
            }
            _ => plain(read) == visible(given),
        };
        let read = AuthenticationResults::parse(field).unwrap();
        assert!(same(&read.authserv_id, authserv_id.as_bytes()));
        assert_eq!(read.results.len(), results.len());
        for (read, given) in read.results.iter().zip(results) {
            assert_eq!(
                (read.method.as_str(), read.version, read.word()),
                ("dkim", 1, Some(given.result))
            );
            assert_eq!(read.comments.len(), usize::from(given.comment.is_some()));
            for (read, given) in read.comments.iter().zip(&given.comment) {
                let given = bracketed(given);
                assert!(same(read, given.as_bytes()), "{read:?} {given:?}");
            }
            assert_eq!(read.reason.is_some(), given.reason.is_some());
            for (read, given) in read.reason.iter().zip(&given.reason) {
                assert!(same(read, given.as_bytes()), "{read:?} {given:?}");
            }
            assert_eq!(read.properties.len(), given.properties.len());
            for (read, given) in read.properties.iter().zip(&given.properties) {
                assert_eq!(
                    (read.ptype.as_str(), read.name.as_str()),
                    (given.ptype, given.name)
                );
                assert!(
                    same(&read.value, &given.value),
                    "{} {}",
                    read.value.escape_ascii(),
                    given.value.escape_ascii()
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn hostile_octets_stay_in_their_place(
            id in hostile(),
            results in results(hostile().boxed(), hostile().prop_map(|o| String::from_utf8_lossy(&o).into_owned()).boxed()),
        ) {
            let id = String::from_utf8_lossy(&id).into_owned();
            let field = format_results(&id, &results);
            assert_is_one_field(&field);
            assert_says(&field, &id, &results);
            // The same as a milter sees it.
            let field = str::from_utf8(&field).unwrap().replace("\r\n", "\n");
            assert_says(field.as_bytes(), &id, &results);
        }

        #[test]
        fn what_is_written_is_read_as_it_was(
            results in results(harmless().prop_map(String::into_bytes).boxed(), harmless().boxed()),
        ) {
            let field = format_results("mail.example.org", &results);
            assert_is_one_field(&field);
            let read = AuthenticationResults::parse(&field).unwrap();
            prop_assert_eq!(read.authserv_id, b"mail.example.org");
            for (read, given) in read.results.into_iter().zip(results) {
                prop_assert_eq!(read.word(), Some(given.result));
                prop_assert_eq!(read.comments, Vec::from_iter(given.comment.map(|text| bracketed(&text).into_bytes())));
                prop_assert_eq!(read.reason, given.reason.map(String::into_bytes));
                let values = |property: &Property| property.value.clone();
                let given: Vec<_> = given.properties.iter().map(values).collect();
                let read: Vec<_> = read.properties.into_iter().map(|property| property.value).collect();
                prop_assert_eq!(read, given);
            }
        }

        #[test]
        fn lines_keep_to_78_octets_where_a_fold_is_possible(
            results in results("[a-z]{1,90}".prop_map(String::into_bytes).boxed(), "[a-z]{1,90}( {1,3}[a-z]{1,30}){0,9}".boxed()),
        ) {
            let field = String::from_utf8(format_results("mail.example.org", &results)).unwrap();
            for line in field.split("\r\n").filter(|line| line.len() > 78) {
                prop_assert!(!line[1..].contains(' '), "{}", line);
            }
        }
    }
}
