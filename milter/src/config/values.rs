//! Reading single values: each function takes the text of one and gives its type, or says what was wanted.

use dkim_core::canonicalization::{Algorithm, Canonicalization};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use dkim_core::engine::{KeyType, engine_by_name};

use pkcs11_engine::ReferenceError;
use pkcs11_engine::pin::{PinSource, PinSourceError};
use pkcs11_engine::uri::{OnAway, Uri, UriError};

use super::types::{
    Action, AuthservId, Facility, Fallback, KeyLocation, Mode, RecordPolicy, UserId,
};
use crate::tables::text_lines::shown;
use crate::tables::{is_selector, nearest};

/// Why a text is no value of an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// Not a switch.
    #[error("yes or no wanted, not \"{0}\"")]
    NotYesNo(String),
    /// Not a number, or one out of bounds.
    #[error("a number from {min} to {max} wanted, not \"{text}\"")]
    NotNumber {
        /// The value.
        text: String,
        /// The lowest number allowed.
        min: u64,
        /// The highest number allowed.
        max: u64,
    },
    /// Zero, where it could be meant as no limit.
    #[error("0, which would be no limit, is not supported; a number from {min} to {max} wanted")]
    NoLimit {
        /// The lowest number allowed.
        min: u64,
        /// The highest number allowed.
        max: u64,
    },
    /// A limit that would let weak keys in.
    #[error(
        "signatures with RSA keys of less than 1024 bits must not count (RFC 8301 section 3.2); 1024 or more wanted"
    )]
    WeakKeys,
    /// Not a file mode mask.
    #[error("an octal number from 000 to 777 wanted, not \"{0}\"")]
    NotOctal(String),
    /// None of the words allowed.
    #[error("{wanted} wanted, not \"{text}\"{}", suggestion(*nearest))]
    NotOneOf {
        /// The value.
        text: String,
        /// The words allowed.
        wanted: &'static str,
        /// The one that may have been meant.
        nearest: Option<&'static str>,
    },
    /// An engine that needs what this processor has not.
    #[error(
        "this processor has not the instructions that {0} needs (AVX-512 IFMA); leave the option out, which takes the \
         fastest engine there is, or say aws-lc"
    )]
    NoSuchEngine(&'static str),
    /// rsa-sha1.
    #[error(
        "rsa-sha1 must not be used to sign (RFC 8301 section 3.1); leave the option out, and each key decides"
    )]
    Sha1,
    /// White space in a value that is one word.
    #[error("one word wanted, not \"{0}\"")]
    NotOneWord(String),
    /// Not a selector.
    #[error("\"{0}\" is not a selector, which is of the form label[.label...]")]
    NotSelector(String),
    /// Not a user.
    #[error("user[:group] wanted, not \"{0}\"")]
    NotUser(String),
    /// Not a name server.
    #[error(
        "\"{0}\" is not the IP address of a name server; address, address:port or [address]:port wanted"
    )]
    NotNameServer(String),
    /// A key in a token, whose URI cannot be read.
    #[error("{0}")]
    TokenUri(#[from] UriError),
    /// A token that cannot be referred to.
    #[error("{0}")]
    Token(ReferenceError),
    /// No source of a PIN.
    #[error("{0}")]
    PinSource(#[from] PinSourceError),
    /// Not a socket.
    #[error("\"{0}\" is not a socket; inet:port@host, inet6:port@host or local:/path wanted")]
    NotSocket(String),
    /// Not a port.
    #[error("port \"{0}\" is not a number from 0 to 65535")]
    NotPort(String),
    /// The order in which Postfix writes a socket.
    #[error("the port comes first here, unlike in Postfix: \"inet:{port}@{host}\"")]
    PortLast {
        /// The port.
        port: String,
        /// The host.
        host: String,
    },
    /// Not a host.
    #[error("\"{0}\" is neither an IP address nor the name of a host")]
    NotHost(String),
    /// An address of the other family.
    #[error("{0} is an IPv4 address, which \"inet6:\" cannot listen on; use \"inet:\"")]
    NotIpv6(IpAddr),
    /// A Unix socket whose place depends on who starts.
    #[error("the path \"{0}\" of a Unix socket must be absolute")]
    RelativeSocket(String),
    /// A Unix socket whose path the system cannot take.
    #[error(
        "the path \"{0}\" of a Unix socket has more than the 107 octets that the system allows"
    )]
    LongSocket(String),
}

/// Yes or no, by the first letter, as OpenDKIM has it.
pub(super) fn switch(text: &str) -> Result<bool, ValueFault> {
    match text.as_bytes().first() {
        Some(b't' | b'T' | b'y' | b'Y' | b'1') => Ok(true),
        Some(b'f' | b'F' | b'n' | b'N' | b'0') => Ok(false),
        _ => Err(ValueFault::NotYesNo(shown(text))),
    }
}

/// A number from `MIN` to `MAX`.
pub(super) fn number<const MIN: u64, const MAX: u64>(text: &str) -> Result<u64, ValueFault> {
    let (min, max) = (MIN, MAX);
    let digits = Some(text).filter(|text| text.bytes().all(|o| o.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        Some(0) => Err(ValueFault::NoLimit { min, max }),
        _ => Err(ValueFault::NotNumber {
            text: shown(text),
            min,
            max,
        }),
    }
}

/// The size of an RSA key in bits.
pub(super) fn key_bits(text: &str) -> Result<u64, ValueFault> {
    match number::<0, 16_384>(text)? {
        0..1024 => Err(ValueFault::WeakKeys),
        bits => Ok(bits),
    }
}

/// Any text.
pub(super) fn text(text: &str) -> Result<String, ValueFault> {
    Ok(text.to_owned())
}

/// A text without white space.
pub(super) fn word(text: &str) -> Result<String, ValueFault> {
    match text.contains(char::is_whitespace) {
        true => Err(ValueFault::NotOneWord(shown(text))),
        false => Ok(text.to_owned()),
    }
}

/// A path, as it is written.
pub(super) fn path(text: &str) -> Result<PathBuf, ValueFault> {
    Ok(text.into())
}

/// The path of a private key, or the URI of one in a token.
pub(super) fn key_location(text: &str) -> Result<KeyLocation, ValueFault> {
    Ok(match Uri::is_meant(text.as_bytes()) {
        true => KeyLocation::Token(Box::new(Uri::parse(text.as_bytes())?)),
        false => KeyLocation::File(path(text)?),
    })
}

/// The URI of a token.
pub(super) fn token_uri(text: &str) -> Result<Uri, ValueFault> {
    Ok(Uri::parse(text.as_bytes())?)
}

/// Who does what a token does not.
pub(super) fn fallback(text: &str) -> Result<Fallback, ValueFault> {
    match text {
        _ if text.eq_ignore_ascii_case("none") => Ok(Fallback::None),
        _ if text.eq_ignore_ascii_case("software") => Ok(Fallback::Software),
        _ => Err(not_one_of(text, &["none", "software"], "none or software")),
    }
}

/// Where a PIN comes from.
pub(super) fn pin_source(text: &str) -> Result<PinSource, ValueFault> {
    Ok(PinSource::parse(text.as_bytes())?)
}

/// What key records that are not right mean.
pub(super) fn record_policy(text: &str) -> Result<RecordPolicy, ValueFault> {
    let words = ["no", "warn", "hold"];
    let meant = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case(text));
    match meant {
        Some(0) => Ok(RecordPolicy::Ignore),
        Some(1) => Ok(RecordPolicy::Warn),
        Some(_) => Ok(RecordPolicy::Hold),
        None => Err(not_one_of(text, &words, "hold, no or warn")),
    }
}

/// Where PKCS#11 modules are loaded.
pub(super) fn isolation(text: &str) -> Result<bool, ValueFault> {
    match text {
        _ if text.eq_ignore_ascii_case("process") => Ok(true),
        _ if text.eq_ignore_ascii_case("none") => Ok(false),
        _ => Err(not_one_of(text, &["process", "none"], "process or none")),
    }
}

/// What becomes of mail whose key is in a token that is away.
pub(super) fn on_away(text: &str) -> Result<OnAway, ValueFault> {
    let all = [
        OnAway::Tempfail,
        OnAway::Next,
        OnAway::Accept,
        OnAway::Quarantine,
    ];
    let words = ["tempfail", "next", "accept", "quarantine"];
    let meant = words
        .iter()
        .position(|word| word.eq_ignore_ascii_case(text));
    match meant.and_then(|at| all.get(at)) {
        Some(on_away) => Ok(*on_away),
        None => Err(not_one_of(
            text,
            &words,
            "accept, next, quarantine or tempfail",
        )),
    }
}

/// A file mode creation mask.
pub(super) fn umask(text: &str) -> Result<u32, ValueFault> {
    Some(text)
        .filter(|text| text.bytes().all(|o| o.is_ascii_digit()))
        .and_then(|text| u32::from_str_radix(text, 8).ok())
        .filter(|&mask| mask <= 0o777)
        .ok_or_else(|| ValueFault::NotOctal(shown(text)))
}

/// `user[:group]`
pub(super) fn user_id(text: &str) -> Result<UserId, ValueFault> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains([' ', '\t', ':', '/']);
    if !is_name(user) || !group.is_none_or(is_name) {
        return Err(ValueFault::NotUser(shown(text)));
    }
    Ok(UserId {
        user: user.to_owned(),
        group: group.map(str::to_owned),
    })
}

/// A syslog facility by name.
pub(super) fn facility(text: &str) -> Result<Facility, ValueFault> {
    let name = one_of(
        text,
        &FACILITIES.map(|(name, _)| name),
        "the name of a syslog facility",
    )?;
    let found = FACILITIES.iter().find(|(known, _)| *known == name);
    found
        .map(|&(name, code)| Facility { name, code })
        .ok_or_else(|| not_one_of(text, &[], "the name of a syslog facility"))
}

/// The letters of the modes.
pub(super) fn mode(text: &str) -> Result<Mode, ValueFault> {
    match &*text.to_ascii_lowercase() {
        "s" => Ok(Mode {
            sign: true,
            verify: false,
        }),
        "v" => Ok(Mode {
            sign: false,
            verify: true,
        }),
        "sv" | "vs" => Ok(Mode {
            sign: true,
            verify: true,
        }),
        _ => Err(not_one_of(text, &[], "s, v or sv")),
    }
}

/// `header[/body]`; the body is simple if it is not named.
pub(super) fn canonicalization(text: &str) -> Result<Canonicalization, ValueFault> {
    let one = |word: &str| -> Result<Algorithm, ValueFault> {
        let words = ["simple", "relaxed"];
        let word = one_of(
            word,
            &words,
            "simple or relaxed, or two of them as header/body,",
        )?;
        Ok(if word == "simple" {
            Algorithm::Simple
        } else {
            Algorithm::Relaxed
        })
    };
    let (header, body) = text.split_once('/').unwrap_or((text, "simple"));
    Ok(Canonicalization {
        header: one(header.trim())?,
        body: one(body.trim())?,
    })
}

/// A signing algorithm, as the kind of key it needs.
pub(super) fn algorithm(text: &str) -> Result<KeyType, ValueFault> {
    match one_of(
        text,
        &["rsa-sha256", "ed25519-sha256", "rsa-sha1"],
        "rsa-sha256 or ed25519-sha256",
    )? {
        "rsa-sha256" => Ok(KeyType::Rsa),
        "ed25519-sha256" => Ok(KeyType::Ed25519),
        _ => Err(ValueFault::Sha1),
    }
}

/// A selector.
pub(super) fn selector(text: &str) -> Result<String, ValueFault> {
    match is_selector(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueFault::NotSelector(shown(text))),
    }
}

/// The name of an engine.
pub(super) fn engine(text: &str) -> Result<&'static str, ValueFault> {
    let name = one_of(
        text,
        &["aws-lc-ifma", "aws-lc", "rustcrypto"],
        "aws-lc-ifma, aws-lc or rustcrypto",
    )?;
    match engine_by_name(name) {
        Some(_) => Ok(name),
        None => Err(ValueFault::NoSuchEngine(name)),
    }
}

/// A name for Authentication-Results, or `HOSTNAME`.
pub(super) fn authserv_id(text: &str) -> Result<AuthservId, ValueFault> {
    match text.eq_ignore_ascii_case("HOSTNAME") {
        true => Ok(AuthservId::OfHost),
        false => word(text).map(AuthservId::Name),
    }
}

/// Name servers, separated by commas or white space.
pub(super) fn nameservers(text: &str) -> Result<Vec<SocketAddr>, ValueFault> {
    text.split([',', ' ', '\t'])
        .filter(|server| !server.is_empty())
        .map(|server| {
            let inner = server
                .strip_prefix('[')
                .and_then(|inner| inner.strip_suffix(']'));
            let address = inner
                .unwrap_or(server)
                .parse()
                .map(|address: IpAddr| (address, DNS_PORT).into());
            address
                .or_else(|_| server.parse())
                .map_err(|_| ValueFault::NotNameServer(shown(server)))
        })
        .collect()
}

/// What becomes of a message; the first letter will do.
pub(super) fn action(text: &str) -> Result<Action, ValueFault> {
    let actions = [
        Action::Accept,
        Action::Discard,
        Action::Quarantine,
        Action::Reject,
        Action::TempFail,
    ];
    let is_meant = |action: &Action| {
        let word = action.as_str();
        word.eq_ignore_ascii_case(text) || word[..1].eq_ignore_ascii_case(text)
    };
    actions.into_iter().find(is_meant).ok_or_else(|| {
        not_one_of(
            text,
            &actions.map(Action::as_str),
            "accept, discard, quarantine, reject or tempfail",
        )
    })
}

const DNS_PORT: u16 = 53;

/// Names as in syslog.conf, codes as in RFC 5424 table 1.
const FACILITIES: [(&str, u8); 20] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

fn one_of(
    text: &str,
    words: &[&'static str],
    wanted: &'static str,
) -> Result<&'static str, ValueFault> {
    let found = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    found
        .copied()
        .ok_or_else(|| not_one_of(text, words, wanted))
}

fn not_one_of(text: &str, words: &[&'static str], wanted: &'static str) -> ValueFault {
    ValueFault::NotOneOf {
        text: shown(text),
        wanted,
        nearest: nearest(text, words.iter().copied()),
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_told_by_their_first_letter() {
        for (text, wanted) in [
            ("yes", Some(true)),
            ("True", Some(true)),
            ("1", Some(true)),
            ("no", Some(false)),
            ("FALSE", Some(false)),
            ("0", Some(false)),
            ("maybe", None),
            ("on", None),
        ] {
            assert_eq!(switch(text).ok(), wanted, "{text}");
        }
        assert_eq!(
            switch("maybe").unwrap_err().to_string(),
            "yes or no wanted, not \"maybe\""
        );
    }

    #[test]
    fn numbers_are_digits_within_bounds() {
        assert_eq!(number::<1, 60>("60"), Ok(60));
        for text in [
            "61",
            "-1",
            "+1",
            "1s",
            "0x1",
            "1.5",
            "99999999999999999999",
            "\u{663}",
        ] {
            let wanted = format!("a number from 1 to 60 wanted, not \"{text}\"");
            assert_eq!(number::<1, 60>(text).unwrap_err().to_string(), wanted);
        }
        assert_eq!(
            number::<1, 60>("0"),
            Err(ValueFault::NoLimit { min: 1, max: 60 })
        );
        assert_eq!(number::<0, 60>("0"), Ok(0));
        assert_eq!(key_bits("1024"), Ok(1024));
        assert_eq!(
            (key_bits("0"), key_bits("512")),
            (Err(ValueFault::WeakKeys), Err(ValueFault::WeakKeys))
        );
    }

    #[test]
    fn masks_are_octal() {
        for (text, wanted) in [
            ("007", Some(7)),
            ("0022", Some(0o22)),
            ("777", Some(0o777)),
            ("1000", None),
            ("8", None),
            ("+7", None),
        ] {
            assert_eq!(umask(text).ok(), wanted, "{text}");
        }
    }

    #[test]
    fn one_canonicalization_is_the_header_s() {
        use Algorithm::{Relaxed, Simple};
        for (text, wanted) in [
            ("relaxed", Some((Relaxed, Simple))),
            ("simple", Some((Simple, Simple))),
            ("Relaxed/Relaxed", Some((Relaxed, Relaxed))),
            ("simple / relaxed", Some((Simple, Relaxed))),
            ("relaxed/", None),
            ("relaxed/simple/simple", None),
            ("nofws", None),
        ] {
            let pair = canonicalization(text)
                .ok()
                .map(|pair| (pair.header, pair.body));
            assert_eq!(pair, wanted, "{text}");
        }
        let fault = canonicalization("relaxd").unwrap_err().to_string();
        assert!(
            fault.ends_with("not \"relaxd\"; did you mean relaxed?"),
            "{fault}"
        );
    }

    #[test]
    fn sha1_is_refused_with_the_reason() {
        assert_eq!(algorithm("RSA-SHA256"), Ok(KeyType::Rsa));
        assert_eq!(algorithm("ed25519-sha256"), Ok(KeyType::Ed25519));
        assert!(
            algorithm("rsa-sha1")
                .unwrap_err()
                .to_string()
                .contains("RFC 8301")
        );
        assert!(algorithm("rsa").is_err());
    }

    #[test]
    fn name_servers_have_addresses_and_perhaps_ports() {
        let read = |text| {
            nameservers(text)
                .map(|servers| servers.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            read("127.0.0.1,127.0.0.1:5353, ::1 [::1]:5353,[2001:db8::1]").unwrap(),
            [
                "127.0.0.1:53",
                "127.0.0.1:5353",
                "[::1]:53",
                "[::1]:5353",
                "[2001:db8::1]:53"
            ]
        );
        for text in [
            "dns.example",
            "127.0.0.1:x",
            "127.0.0.1:70000",
            "[::1",
            "127.0.0.1;127.0.0.2",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn actions_have_letters_too() {
        for (text, wanted) in [
            ("accept", Some(Action::Accept)),
            ("D", Some(Action::Discard)),
            ("Quarantine", Some(Action::Quarantine)),
            ("r", Some(Action::Reject)),
            ("t", Some(Action::TempFail)),
            ("acc", None),
            ("", None),
        ] {
            assert_eq!(action(text).ok(), wanted, "{text}");
        }
        assert!(
            action("temp-fail")
                .unwrap_err()
                .to_string()
                .ends_with("did you mean tempfail?")
        );
    }

    #[test]
    fn users_facilities_and_names() {
        let user = user_id("dkim:mail").unwrap();
        assert_eq!((&*user.user, user.group.as_deref()), ("dkim", Some("mail")));
        for text in [":mail", "dkim:", "a:b:c", "a b"] {
            assert!(user_id(text).is_err(), "{text}");
        }
        assert_eq!(facility("LOCAL3").map(|facility| facility.code), Ok(19));
        assert_eq!(
            facility("mial").unwrap_err().to_string(),
            "the name of a syslog facility wanted, not \"mial\"; did you mean mail?"
        );
        assert_eq!(authserv_id("HOSTNAME"), Ok(AuthservId::OfHost));
        assert_eq!(
            authserv_id("mx.example"),
            Ok(AuthservId::Name("mx.example".to_owned()))
        );
        assert!(authserv_id("mx example").is_err());
        assert!(selector("\"mail\"").is_err());
        assert!(matches!(
            key_location("pkcs11:token=x"),
            Ok(KeyLocation::Token(_))
        ));
        assert!(matches!(
            key_location("PKCS11:objekt=x"),
            Err(ValueFault::TokenUri(_))
        ));
        assert!(matches!(
            key_location("/k/pkcs11:x"),
            Ok(KeyLocation::File(_))
        ));
    }
}
