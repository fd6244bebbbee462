//! Reading a DKIM-Signature field (RFC 6376 sections 3.5 and 6.1.1).

use super::{Identity, Signature, algorithm_name};
use crate::canonicalization::Canonicalization;
use crate::domain_name::{is_domain, is_query_name, is_within};
use crate::engine::KeyType;
use crate::tag_list::{
    TagList, TagListError, colon_list, colon_ranges, decimal, decode_base64, is_fws, trim_fws,
    trim_start_fws,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::ops::Range;

/// More names in `h=` than any honest signer writes.
const MAX_HEADER_NAMES: usize = 1000;

/// RFC 6376 section 3.5 limits `l=` to 76 digits; numbers elsewhere are not longer in practice.
const MAX_DIGITS: usize = 76;

impl Signature {
    /// Reads the value of a DKIM-Signature field: everything after the colon.
    ///
    /// # Errors
    /// The first thing in the field that RFC 6376 section 6.1.1 has a verifier refuse without looking further.
    pub fn parse(value: &[u8]) -> Result<Self, SignatureError> {
        let tags = TagList::parse(value)?;
        let required =
            |name: &'static str| tags.get(name).ok_or(SignatureError::Missing { tag: name });

        let range = |tag: &'static str| tags.raw_range(tag).ok_or(SignatureError::Missing { tag });

        if required("v")? != b"1" {
            return Err(SignatureError::Version);
        }
        let key_type = key_type(required("a")?)?;
        let signature =
            non_empty_base64(required("b")?).ok_or(SignatureError::Syntax { tag: "b" })?;
        let body_hash =
            non_empty_base64(required("bh")?).ok_or(SignatureError::Syntax { tag: "bh" })?;
        let domain = required("d")?;
        let selector = required("s")?;
        if !is_domain(domain) {
            return Err(SignatureError::Syntax { tag: "d" });
        }
        if !is_query_name(selector, domain) {
            return Err(SignatureError::Syntax { tag: "s" });
        }
        let header_names = header_names(value, range("h")?)?;
        let canonicalization = match tags.get("c") {
            None => Canonicalization::default(),
            Some(c) => Canonicalization::parse(c).ok_or(SignatureError::Canonicalization)?,
        };
        if let Some(q) = tags.get("q") {
            check_query(q)?;
        }
        let identity = tags
            .get("i")
            .map(|i| parse_identity(i).ok_or(SignatureError::Syntax { tag: "i" }))
            .transpose()?;
        if let Some(identity) = &identity
            && !is_within(identity.domain.as_bytes(), domain)
        {
            return Err(SignatureError::IdentityOutsideDomain);
        }
        let number = |tag: &'static str| {
            tags.get(tag)
                .map(|digits| decimal(digits, MAX_DIGITS).ok_or(SignatureError::Syntax { tag }))
                .transpose()
        };
        let (body_length, timestamp, expiration) = (number("l")?, number("t")?, number("x")?);
        if let (Some(t), Some(x)) = (timestamp, expiration)
            && x <= t
        {
            return Err(SignatureError::ExpiresBeforeSigned);
        }
        Ok(Self {
            key_type,
            signature,
            body_hash,
            canonicalization,
            domain: to_string(domain),
            selector: to_string(selector),
            identity,
            body_length,
            timestamp,
            expiration,
            header_names,
            b_value: range("b")?,
        })
    }
}

/// What a field claims, as far as it can be read: for reports on signatures that cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// `d=`, if it is a domain name.
    pub domain: Option<String>,
    /// `s=`, if it is a name.
    pub selector: Option<String>,
    /// `i=`, if it can be read.
    pub identity: Option<Identity>,
    /// `a=`, if it looks like the name of an algorithm.
    pub algorithm: Option<String>,
    /// `c=`, if it is known; the default if there is none.
    pub canonicalization: Option<Canonicalization>,
    /// `b=` without white space, as written, at most its first 128 octets.
    pub signature: Option<String>,
}

impl Claims {
    /// Reads the value of a DKIM-Signature field.
    pub fn read(value: &[u8]) -> Self {
        let Ok(tags) = TagList::parse(value) else {
            return Self::default();
        };
        let name = |tag| tags.get(tag).filter(|name| is_domain(name)).map(to_string);
        Self {
            domain: name("d"),
            selector: name("s"),
            identity: tags.get("i").and_then(parse_identity),
            algorithm: tags
                .get("a")
                .filter(|a| is_algorithm_like(a))
                .map(to_string),
            canonicalization: match tags.get("c") {
                None => Some(Canonicalization::default()),
                Some(c) => Canonicalization::parse(c),
            },
            signature: tags.get("b").map(|b| {
                b.iter()
                    .filter(|o| o.is_ascii_alphanumeric() || matches!(o, b'+' | b'/' | b'='))
                    .take(128)
                    .map(|&o| char::from(o))
                    .collect()
            }),
        }
    }
}

impl Signature {
    /// What a field claims that could be read, and its signature.
    pub(crate) fn into_claims(self) -> (Claims, Vec<u8>) {
        let head = &self.signature[..self.signature.len().min(96)];
        let claims = Claims {
            signature: Some(STANDARD.encode(head)),
            domain: Some(self.domain),
            selector: Some(self.selector),
            identity: self.identity,
            algorithm: Some(algorithm_name(self.key_type).to_owned()),
            canonicalization: Some(self.canonicalization),
        };
        (claims, self.signature)
    }
}

/// Why a DKIM-Signature field is no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// It is no tag list.
    #[error("signature syntax error: {0}")]
    TagList(#[from] TagListError),
    /// A required tag is not there.
    #[error("signature missing required tag {tag}=")]
    Missing {
        /// The tag's name.
        tag: &'static str,
    },
    /// A tag's value does not follow its grammar.
    #[error("signature syntax error in {tag}=")]
    Syntax {
        /// The tag's name.
        tag: &'static str,
    },
    /// `v=` is not 1.
    #[error("incompatible signature version (v= is not 1)")]
    Version,
    /// `a=` names an algorithm nobody here knows.
    #[error("unknown signature algorithm (a=)")]
    Algorithm,
    /// `a=rsa-sha1`.
    #[error("rsa-sha1 must not be used (RFC 8301)")]
    Sha1,
    /// `c=` names an algorithm nobody here knows.
    #[error("unknown canonicalization (c=)")]
    Canonicalization,
    /// `q=` offers no `dns/txt`.
    #[error("unknown query method (q=)")]
    Query,
    /// `h=` has no From.
    #[error("From field not signed (h=)")]
    FromNotSigned,
    /// `h=` is longer than anybody needs.
    #[error("more than {MAX_HEADER_NAMES} names in h=")]
    TooManyHeaderNames,
    /// The domain of `i=` is neither `d=` nor beneath it.
    #[error("domain mismatch (i= is outside d=)")]
    IdentityOutsideDomain,
    /// `x=` is not after `t=`.
    #[error("signature expires before it was made (x= is not after t=)")]
    ExpiresBeforeSigned,
}

fn key_type(a: &[u8]) -> Result<KeyType, SignatureError> {
    if a.eq_ignore_ascii_case(b"rsa-sha256") {
        Ok(KeyType::Rsa)
    } else if a.eq_ignore_ascii_case(b"ed25519-sha256") {
        Ok(KeyType::Ed25519)
    } else if a.eq_ignore_ascii_case(b"rsa-sha1") {
        Err(SignatureError::Sha1)
    } else {
        Err(SignatureError::Algorithm)
    }
}

fn non_empty_base64(value: &[u8]) -> Option<Vec<u8>> {
    decode_base64(value).filter(|octets| !octets.is_empty())
}

/// RFC 6376 section 3.5: names of header fields, and From among them (section 6.1.1). Gives where they stand in `value`, of
/// which the list is at `list`.
fn header_names(value: &[u8], list: Range<usize>) -> Result<Vec<Range<usize>>, SignatureError> {
    const SYNTAX: SignatureError = SignatureError::Syntax { tag: "h" };
    let octets = &value[list.clone()];
    // RFC 5322 section 2.2: names are printable. Looked at all at once, which is cheap; white space within a name is found
    // by there being more of it than around names.
    let is_clean = |is, &o: &u8| is & (o.is_ascii_graphic() | is_fws(o));
    if !octets.iter().fold(true, is_clean) {
        return Err(SYNTAX);
    }
    let mut white_space = octets.iter().filter(|&&o| is_fws(o)).count();
    let mut names = Vec::with_capacity(24);
    let mut has_from = false;
    for range in colon_ranges(octets) {
        let item = &octets[range.clone()];
        let name = trim_start_fws(item);
        let before = item.len() - name.len();
        let name = trim_fws(name);
        if name.is_empty() {
            return Err(SYNTAX);
        }
        if names.len() == MAX_HEADER_NAMES {
            return Err(SignatureError::TooManyHeaderNames);
        }
        white_space -= item.len() - name.len();
        has_from |= name.eq_ignore_ascii_case(b"from");
        let at = list.start + range.start + before;
        names.push(at..at + name.len());
    }
    match (white_space, has_from) {
        (0, true) => Ok(names),
        (0, false) => Err(SignatureError::FromNotSigned),
        _ => Err(SYNTAX),
    }
}

/// RFC 6376 section 3.5: unknown methods are passed over, but `dns/txt` must be among them.
fn check_query(q: &[u8]) -> Result<(), SignatureError> {
    let offers_dns = colon_list(q).any(|method| {
        method.eq_ignore_ascii_case(b"dns/txt") || method.eq_ignore_ascii_case(b"dns")
    });
    offers_dns.then_some(()).ok_or(SignatureError::Query)
}

/// `[Local-part] "@" domain-name` in dkim-quoted-printable (RFC 6376 section 2.11).
fn parse_identity(value: &[u8]) -> Option<Identity> {
    let octets = undo_quoted_printable(value)?;
    let at = octets.iter().rposition(|&o| o == b'@')?;
    let (local_part, domain) = (&octets[..at], &octets[at + 1..]);
    is_domain(domain).then(|| Identity {
        local_part: local_part.to_vec(),
        domain: to_string(domain),
    })
}

fn undo_quoted_printable(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(value.len());
    let mut octets = value.iter().copied().filter(|&o| !is_fws(o));
    while let Some(octet) = octets.next() {
        if octet == b'=' {
            let mut hex = || octets.next().and_then(|o| char::from(o).to_digit(16));
            let (high, low) = (hex()?, hex()?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(octet);
        }
    }
    Some(out)
}

fn is_algorithm_like(a: &[u8]) -> bool {
    !a.is_empty() && a.len() <= 64 && a.iter().all(|o| o.is_ascii_alphanumeric() || *o == b'-')
}

/// For octets that were checked to be UTF-8 already.
fn to_string(octets: &[u8]) -> String {
    String::from_utf8_lossy(trim_fws(octets)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = " v=1; a=rsa-sha256; c=relaxed/simple; d=example.com; s=sel; t=100; x=200;\r\n\th=From : To:\r\n\t subject; \
         i=ann=40home@mail.example.com; l=5; bh=AAEC; z=From:x|To:y; b=AA\r\n\t==";

    fn with(from: &str, to: &str) -> Result<Signature, SignatureError> {
        assert!(GOOD.contains(from), "{from}");
        Signature::parse(GOOD.replacen(from, to, 1).as_bytes())
    }

    #[test]
    fn every_tag_is_read() {
        let signature = Signature::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(signature.key_type, KeyType::Rsa);
        assert_eq!(signature.signature, [0]);
        assert_eq!(signature.body_hash, [0, 1, 2]);
        assert_eq!(signature.canonicalization.to_string(), "relaxed/simple");
        assert_eq!(signature.key_name(), "sel._domainkey.example.com");
        let identity = signature.identity.clone().unwrap();
        assert_eq!(identity.local_part, b"ann@home");
        assert_eq!(identity.domain, "mail.example.com");
        assert_eq!(
            (
                signature.body_length,
                signature.timestamp,
                signature.expiration
            ),
            (Some(5), Some(100), Some(200))
        );
        let names: Vec<_> = signature.header_names(GOOD.as_bytes()).collect();
        assert_eq!(names, [&b"From"[..], b"To", b"subject"]);
        assert_eq!(&GOOD[signature.b_value()], "AA\r\n\t==");
    }

    #[test]
    fn each_rule_has_its_error() {
        use SignatureError::*;
        for (from, to, want) in [
            (" v=1;", "", Missing { tag: "v" }),
            ("a=rsa-sha256; ", "", Missing { tag: "a" }),
            (" b=AA\r\n\t==", "", Missing { tag: "b" }),
            ("bh=AAEC; ", "", Missing { tag: "bh" }),
            ("d=example.com; ", "", Missing { tag: "d" }),
            ("s=sel; ", "", Missing { tag: "s" }),
            ("h=From : To:\r\n\t subject; ", "", Missing { tag: "h" }),
            ("v=1", "v=1.0", Version),
            ("v=1", "v=", Version),
            ("rsa-sha256", "rsa-sha1", Sha1),
            ("rsa-sha256", "rsa-sha512", Algorithm),
            ("relaxed/simple", "relaxed/nofws", Canonicalization),
            ("AA\r\n\t==", "A*==", Syntax { tag: "b" }),
            ("AA\r\n\t==", "", Syntax { tag: "b" }),
            ("bh=AAEC", "bh=%", Syntax { tag: "bh" }),
            ("d=example.com", "d=example.com.", Syntax { tag: "d" }),
            ("d=example.com", "d=", Syntax { tag: "d" }),
            ("d=example.com", "d=exa(mple.com", Syntax { tag: "d" }),
            ("s=sel", "s=*", Syntax { tag: "s" }),
            ("From : To", "From : T\r\n\to", Syntax { tag: "h" }),
            ("From : To", "From :: To", Syntax { tag: "h" }),
            ("From : To", "Fromx : To", FromNotSigned),
            ("mail.example.com", "example.org", IdentityOutsideDomain),
            ("mail.example.com", "badexample.com", IdentityOutsideDomain),
            ("=40home@mail.example.com", "", Syntax { tag: "i" }),
            ("=40", "=4", Syntax { tag: "i" }),
            ("l=5", "l=", Syntax { tag: "l" }),
            ("l=5", "l=-1", Syntax { tag: "l" }),
            ("x=200", "x=0x20", Syntax { tag: "x" }),
            ("x=200", "x=100", ExpiresBeforeSigned),
            ("c=", "q=dns/srv; c=", Query),
        ] {
            assert_eq!(with(from, to), Err(want), "{from:?} -> {to:?}");
        }
    }

    #[test]
    fn what_is_tolerated() {
        for (from, to) in [
            ("rsa-sha256", "RSA-SHA256"),
            ("c=relaxed/simple; ", ""),
            ("c=", "q=http/x : dns/txt; c="),
            ("c=", "xb=AA; c="),
            ("To:", "To,Subject:"),
            ("t=100; ", ""),
        ] {
            assert!(with(from, to).is_ok(), "{from:?} -> {to:?}");
        }
    }

    #[test]
    fn no_c_means_simple_simple() {
        let signature = with("c=relaxed/simple; ", "").unwrap();
        assert_eq!(signature.canonicalization, Canonicalization::default());
    }

    #[test]
    fn too_many_header_names_are_refused() {
        let many = "x:".repeat(MAX_HEADER_NAMES);
        assert_eq!(
            with("From : To", &format!("{many}From : To")),
            Err(SignatureError::TooManyHeaderNames)
        );
    }

    #[test]
    fn claims_hold_what_can_be_read_and_nothing_else() {
        let claims =
            Claims::read(b"v=9; a=foo-bar; d=example.org; s=a b; i=@x.example.org; b=QU \r\n JD(");
        assert_eq!(claims.domain.as_deref(), Some("example.org"));
        assert_eq!(claims.selector, None);
        assert_eq!(claims.algorithm.as_deref(), Some("foo-bar"));
        assert_eq!(claims.identity.unwrap().domain, "x.example.org");
        assert_eq!(claims.signature.as_deref(), Some("QUJD"));
        assert_eq!(Claims::read(b"d=a; d=b"), Claims::default());
    }
}
