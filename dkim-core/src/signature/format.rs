//! Writing a DKIM-Signature field (RFC 6376 section 3.5), folded where its grammar allows.
//!
//! Folds stand between tags, beside the colons of `h=` and inside base64, never inside a name. `b=` comes last, so
//! that the octets before it are the same when the field is signed and when it is sent.

use super::{FIELD_NAME, Identity, algorithm_name};
use crate::canonicalization::Canonicalization;
use crate::engine::KeyType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// RFC 5322 section 2.1.1 wants lines of at most 78 octets.
const LINE: usize = 78;
const FOLD: &str = "\r\n\t";

/// All that a DKIM-Signature field says but `b=`.
#[derive(Clone, Debug)]
pub struct SignatureTemplate<'a> {
    /// `a=`
    pub key_type: KeyType,
    /// `c=`
    pub canonicalization: Canonicalization,
    /// `d=`
    pub domain: &'a str,
    /// `s=`
    pub selector: &'a str,
    /// `i=`
    pub identity: Option<&'a Identity>,
    /// `t=`, seconds since 1970
    pub timestamp: Option<u64>,
    /// `x=`, seconds since 1970
    pub expiration: Option<u64>,
    /// `l=`, octets of the canonical body
    pub body_length: Option<u64>,
    /// Further tags, names and values as they shall stand.
    pub extra_tags: &'a [(String, String)],
    /// `h=`, in order
    pub header_names: &'a [&'a str],
    /// `bh=`
    pub body_hash: &'a [u8],
}

impl SignatureTemplate<'_> {
    /// The field's value up to and including `b=`: what follows the colon, first its space, folds as CRLF HTAB.
    pub fn to_value(&self) -> String {
        let mut line = Folder::after(FIELD_NAME.len() + 1);
        line.tag("v", "1");
        line.tag("a", algorithm_name(self.key_type));
        line.tag("c", self.canonicalization.as_str());
        line.tag("d", self.domain);
        line.tag("s", self.selector);
        if let Some(identity) = self.identity {
            line.tag("i", &quoted_printable(identity));
        }
        for (name, number) in [
            ("t", self.timestamp),
            ("x", self.expiration),
            ("l", self.body_length),
        ] {
            if let Some(number) = number {
                line.tag(name, &number.to_string());
            }
        }
        for (name, value) in self.extra_tags {
            line.tag(name, value);
        }
        line.header_names(self.header_names);
        line.base64_tag("bh", self.body_hash);
        line.start("b=", 4);
        line.value
    }

    /// The whole value: `unsigned`, as [`to_value`](Self::to_value) gave it, with `signature` behind its `b=`.
    pub fn with_signature(unsigned: &str, signature: &[u8]) -> String {
        let mut value = String::with_capacity(unsigned.len() + 2 * signature.len());
        value.push_str(unsigned);
        let column = unsigned
            .rfind('\n')
            .map_or(FIELD_NAME.len() + 1 + unsigned.len(), |lf| {
                unsigned.len() - lf - 1
            });
        let mut line = Folder { value, column };
        line.base64(signature);
        line.value
    }
}

/// A value being written, and the octets in its last line.
struct Folder {
    value: String,
    column: usize,
}

impl Folder {
    fn after(column: usize) -> Self {
        Self {
            value: String::with_capacity(1024),
            column,
        }
    }

    fn tag(&mut self, name: &str, value: &str) {
        self.start(name, 2 + value.len());
        self.push("=");
        self.push(value);
        self.push(";");
    }

    /// Begins a tag with `text`, on a new line if it and `more` octets do not fit.
    fn start(&mut self, text: &str, more: usize) {
        if self.column + 1 + text.len() + more > LINE {
            self.fold();
        } else {
            self.push(" ");
        }
        self.push(text);
    }

    fn header_names(&mut self, names: &[&str]) {
        let first = names.first().map_or(0, |name| name.len());
        self.start("h=", first + 1);
        for (index, name) in names.iter().enumerate() {
            let end = if index + 1 == names.len() { ";" } else { ":" };
            if index > 0 && self.column + name.len() + end.len() > LINE {
                self.fold();
            }
            self.push(name);
            self.push(end);
        }
        if names.is_empty() {
            self.push(";");
        }
    }

    fn base64_tag(&mut self, name: &str, octets: &[u8]) {
        // A hash of 32 octets has 44 characters and stays in one piece.
        self.start(name, 2 + octets.len().div_ceil(3) * 4);
        self.push("=");
        self.base64(octets);
        self.push(";");
    }

    fn base64(&mut self, octets: &[u8]) {
        let text = STANDARD.encode(octets);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            // One octet is kept for a semicolon.
            let room = (LINE - 1).saturating_sub(self.column);
            if room == 0 {
                self.fold();
                continue;
            }
            let (head, tail) = rest.split_at(room.min(rest.len()));
            self.push(head);
            rest = tail;
        }
    }

    fn fold(&mut self) {
        self.value.push_str(FOLD);
        self.column = 1;
    }

    fn push(&mut self, text: &str) {
        self.value.push_str(text);
        self.column += text.len();
    }
}

/// dkim-quoted-printable (RFC 6376 section 2.11): what could end the tag or the line is written as `=XX`.
fn quoted_printable(identity: &Identity) -> String {
    let mut out = String::with_capacity(identity.local_part.len() + identity.domain.len() + 1);
    let local_part = String::from_utf8_lossy(&identity.local_part);
    for c in local_part.chars() {
        match c {
            '!'..='~' if c != ';' && c != '=' => out.push(c),
            _ if !c.is_ascii() && !c.is_control() => out.push(c),
            _ => {
                let mut octets = [0; 4];
                for octet in c.encode_utf8(&mut octets).bytes() {
                    out.push_str(&format!("={octet:02X}"));
                }
            }
        }
    }
    out.push('@');
    out.push_str(&identity.domain);
    out
}

#[cfg(test)]
mod tests {
    use super::super::Signature;
    use super::*;
    use proptest::prelude::*;

    fn template<'a>(
        names: &'a [&'a str],
        selector: &'a str,
        identity: Option<&'a Identity>,
    ) -> SignatureTemplate<'a> {
        SignatureTemplate {
            key_type: KeyType::Rsa,
            canonicalization: Canonicalization::RELAXED,
            domain: "example.com",
            selector,
            identity,
            timestamp: Some(1_700_000_000),
            expiration: Some(1_700_600_000),
            body_length: None,
            extra_tags: &[],
            header_names: names,
            body_hash: &[7; 32],
        }
    }

    #[test]
    fn the_field_as_it_looks() {
        let names = ["From", "To", "Subject", "Date", "Message-ID", "From"];
        let unsigned = template(&names, "sel", None).to_value();
        let value = SignatureTemplate::with_signature(&unsigned, &[0xfb; 64]);
        assert!(value.starts_with(&unsigned));
        assert_eq!(
            format!("DKIM-Signature:{value}"),
            "DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=example.com; s=sel;\r\n\
             \tt=1700000000; x=1700600000; h=From:To:Subject:Date:Message-ID:From;\r\n\
             \tbh=BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=; b=+/v7+/v7+/v7+/v7+/v7+/v7+\r\n\
             \t/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+/v7+w=="
        );
    }

    proptest! {
        #[test]
        fn lines_are_short_and_what_was_written_is_read(
            names in proptest::collection::vec("[A-Za-z-]{1,60}", 0..60),
            selector in "[a-z0-9]{1,20}(\\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,3}",
            local_part in "\\PC{0,12}",
            signature in proptest::collection::vec(any::<u8>(), 1..600),
        ) {
            let names: Vec<String> = std::iter::once("From".to_owned()).chain(names).collect();
            let spelled: Vec<&str> = names.iter().map(String::as_str).collect();
            let identity = Identity { local_part: local_part.clone().into_bytes(), domain: "x.example.com".into() };
            let value = SignatureTemplate::with_signature(&template(&spelled, &selector, Some(&identity)).to_value(), &signature);
            for line in format!("DKIM-Signature:{value}").split("\r\n") {
                prop_assert!(line.len() <= LINE || !line.trim_start().contains(' '), "{line}");
                prop_assert!(!line.trim().is_empty());
            }
            let read = Signature::parse(value.as_bytes()).unwrap();
            prop_assert_eq!(read.header_names(value.as_bytes()).map(|n| String::from_utf8_lossy(n).into_owned()).collect::<Vec<_>>(), names);
            prop_assert_eq!(&read.signature, &signature);
            prop_assert_eq!(read.identity.unwrap().local_part, local_part.into_bytes());
            prop_assert_eq!(read.selector, selector);
            prop_assert_eq!(read.body_hash, vec![7u8; 32]);
        }
    }
}
