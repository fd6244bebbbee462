//! The key record (RFC 6376 section 3.6.1): parsed once, then asked whether it fits a signature.
//!
//! What the DNS said about a name is a [`KeyAnswer`]; it can be shared and kept, and holds the engine's form of a key
//! from its first use on. Asking the DNS is done elsewhere.

use crate::engine::{Engine, EngineError, KeyType, PublicKey, PublicKeyError, VerifyingKey};
use crate::tag_list::{TagList, TagListError, colon_list, decode_base64, is_fws};
use std::sync::OnceLock;

/// The largest record that is read, in octets; a 16384-bit key needs 2800.
pub const MAX_RECORD: usize = 32 * 1024;

/// The most records of one name that are looked at.
pub const MAX_RECORDS: usize = 5;

/// What the DNS says about a key's name.
#[derive(Debug)]
pub enum KeyAnswer {
    /// There are TXT records: what each is as a key record, at most [`MAX_RECORDS`] of them.
    Records(Vec<Result<KeyRecord, KeyRecordError>>),
    /// The name exists, but has no TXT record.
    NoRecord,
    /// The name does not exist.
    NoName,
    /// It could not be found out; why, in one line.
    Unavailable(String),
}

impl KeyAnswer {
    /// Reads the TXT records of a name, each with its strings already joined (RFC 6376 section 3.6.2.2).
    pub fn from_txt<T: AsRef<[u8]>>(records: &[T]) -> Self {
        if records.is_empty() {
            return Self::NoRecord;
        }
        Self::Records(
            records
                .iter()
                .take(MAX_RECORDS)
                .map(|record| KeyRecord::parse(record.as_ref()))
                .collect(),
        )
    }
}

/// A key record that can be used for something.
#[derive(Debug)]
pub struct KeyRecord {
    /// `k=` and `p=`.
    public_key: PublicKey,
    /// Whether `h=` is absent or has `sha256`.
    allows_sha256: bool,
    /// Whether `s=` is absent or has `email` or `*`.
    is_for_email: bool,
    /// `t=y`: the domain is testing DKIM.
    testing: bool,
    /// `t=s`: the domain of `i=` must be `d=` itself.
    strict_identity: bool,
    /// The engine's form of the key, made at first use. A process uses one engine for checking.
    verifying_key: OnceLock<Result<Box<dyn VerifyingKey>, EngineError>>,
}

impl KeyRecord {
    /// Reads one record.
    ///
    /// # Errors
    /// Why it holds no key.
    pub fn parse(record: &[u8]) -> Result<Self, KeyRecordError> {
        if record.len() > MAX_RECORD {
            return Err(KeyRecordError::TooLarge);
        }
        let is_quoted = || record.iter().any(|octet| matches!(octet, b'"' | b'\\'));
        Self::parse_unquoted(record).map_err(|error| match error {
            KeyRecordError::TagList(_)
            | KeyRecordError::Version
            | KeyRecordError::KeyType
            | KeyRecordError::NoKey
            | KeyRecordError::Base64
                if is_quoted() =>
            {
                KeyRecordError::Quoted
            }
            error => error,
        })
    }

    fn parse_unquoted(record: &[u8]) -> Result<Self, KeyRecordError> {
        let tags = TagList::parse_record(record)?;
        if let Some(version) = tags.get("v")
            && (version != b"DKIM1" || tags.first_name() != Some("v"))
        {
            return Err(KeyRecordError::Version);
        }
        let key_type = match tags.get("k") {
            None => KeyType::Rsa,
            Some(k) if k.eq_ignore_ascii_case(b"rsa") => KeyType::Rsa,
            Some(k) if k.eq_ignore_ascii_case(b"ed25519") => KeyType::Ed25519,
            Some(_) => return Err(KeyRecordError::KeyType),
        };
        let p = tags.get("p").ok_or(KeyRecordError::NoKey)?;
        if p.is_empty() {
            return Err(KeyRecordError::Revoked);
        }
        let key =
            decode_base64(p).ok_or_else(|| ends_early(p).unwrap_or(KeyRecordError::Base64))?;
        let lists = |tag, wanted: &[&str]| {
            tags.get(tag).is_none_or(|list| {
                colon_list(list).any(|item| {
                    wanted
                        .iter()
                        .any(|w| item.eq_ignore_ascii_case(w.as_bytes()))
                })
            })
        };
        let has_flag = |flag: &[u8]| {
            tags.get("t")
                .is_some_and(|flags| colon_list(flags).any(|f| f.eq_ignore_ascii_case(flag)))
        };
        Ok(Self {
            public_key: PublicKey::from_record(key_type, &key)
                .map_err(|error| ends_early(p).unwrap_or(error.into()))?,
            allows_sha256: lists("h", &["sha256"]),
            is_for_email: lists("s", &["email", "*"]),
            testing: has_flag(b"y"),
            strict_identity: has_flag(b"s"),
            verifying_key: OnceLock::new(),
        })
    }

    /// The record of a key that one has oneself, without any restriction.
    pub fn of(public_key: PublicKey) -> Self {
        Self {
            public_key,
            allows_sha256: true,
            is_for_email: true,
            testing: false,
            strict_identity: false,
            verifying_key: OnceLock::new(),
        }
    }

    /// The key.
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Whether the record allows SHA-256 (`h=`).
    pub fn allows_sha256(&self) -> bool {
        self.allows_sha256
    }

    /// Whether the record is for mail (`s=`).
    pub fn is_for_email(&self) -> bool {
        self.is_for_email
    }

    /// Whether the domain says that it is testing (`t=y`).
    pub fn is_testing(&self) -> bool {
        self.testing
    }

    /// Whether the domain of `i=` must be the signing domain itself (`t=s`).
    pub fn has_strict_identity(&self) -> bool {
        self.strict_identity
    }

    /// The key in `engine`'s form, which is made at the first call.
    ///
    /// # Errors
    /// The engine cannot use this key.
    pub fn verifying_key(&self, engine: &dyn Engine) -> Result<&dyn VerifyingKey, &EngineError> {
        self.verifying_key
            .get_or_init(|| engine.verifying_key(&self.public_key))
            .as_ref()
            .map(AsRef::as_ref)
    }
}

/// Whether `p=` is the beginning of a key: as much as can be read of it says that there is more (DER). Forms for the DNS
/// that take 255 octets and drop the rest make such records.
fn ends_early(p: &[u8]) -> Option<KeyRecordError> {
    let mut text: Vec<u8> = p.iter().copied().filter(|&octet| !is_fws(octet)).collect();
    text.truncate(text.len() / 4 * 4);
    let octets = decode_base64(&text)?;
    let whole = match octets[..] {
        [0x30, 0x81, length, ..] => 3 + usize::from(length),
        [0x30, 0x82, high, low, ..] => 4 + usize::from(u16::from_be_bytes([high, low])),
        _ => return None,
    };
    (octets.len() < whole).then_some(KeyRecordError::EndsEarly {
        octets: octets.len(),
        whole,
    })
}

/// Why a TXT record holds no key for mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRecordError {
    /// It is longer than [`MAX_RECORD`].
    #[error("key record is larger than {MAX_RECORD} octets")]
    TooLarge,
    /// It is no tag list.
    #[error("key record syntax error: {0}")]
    TagList(#[from] TagListError),
    /// It says it is something else, or says what it is too late.
    #[error("not a key record (v= is there and is not DKIM1, or not first)")]
    Version,
    /// `k=` is unknown.
    #[error("unknown key type in the key record (k=)")]
    KeyType,
    /// There is no `p=`.
    #[error("no key in the key record (p= is missing)")]
    NoKey,
    /// `p=` is empty.
    #[error("key revoked (p= is empty)")]
    Revoked,
    /// `p=` is not base64.
    #[error("key record syntax error: p= is not base64")]
    Base64,
    /// `p=` ends within the key.
    #[error(
        "p= ends early in the key record, after {octets} of {whole} octets: the rest was cut off on its way into the DNS"
    )]
    EndsEarly {
        /// How much of the key is there.
        octets: usize,
        /// How long it says it is.
        whole: usize,
    },
    /// Quotation marks or backslashes are part of the record.
    #[error(
        "key record has quotation marks or backslashes in it, which belong into a zone file and not into the DNS"
    )]
    Quoted,
    /// `p=` holds something else than such a key.
    #[error("unusable key in the key record: {0}")]
    Key(#[from] PublicKeyError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engines;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    const RSA: &[u8] = include_bytes!("../tests/data/keys/rsa2048.record");
    const ED25519: &[u8] = include_bytes!("../tests/data/keys/ed25519.record");

    /// `text` with the keys in the places of their names.
    fn filled(text: &str) -> String {
        text.replace("{rsa}", &STANDARD.encode(RSA))
            .replace("{ed}", &STANDARD.encode(ED25519))
    }

    fn parse(text: &str) -> Result<KeyRecord, KeyRecordError> {
        KeyRecord::parse(filled(text).as_bytes())
    }

    #[test]
    fn what_was_cut_off_or_quoted_is_called_so() {
        let (whole, cut) = (RSA.len(), |text: &str, at| text[..at].to_owned());
        let record = filled("v=DKIM1; k=rsa; p={rsa}");
        // What a form keeps that takes one string; and ends that are no end of a base64 group.
        for at in [255, 254, 253, 252, record.len() - 1 - 4] {
            let octets = (at - "v=DKIM1; k=rsa; p=".len()) / 4 * 3;
            let error = KeyRecord::parse(cut(&record, at).as_bytes()).unwrap_err();
            assert_eq!(error, KeyRecordError::EndsEarly { octets, whole }, "{at}");
        }
        for text in [
            r#""v=DKIM1; k=rsa; p={rsa}""#,
            r#"v=DKIM1; k=rsa; " "p={rsa}"#,
            r"v=DKIM1\; k=rsa\; p={rsa}",
            r#"v="DKIM1"; p={rsa}"#,
        ] {
            assert_eq!(parse(text).unwrap_err(), KeyRecordError::Quoted, "{text}");
        }
        // A note may have them.
        assert!(parse(r#"v=DKIM1; n="by hand"; p={rsa}"#).is_ok());
        assert_eq!(parse(r#"n="x"; p="#).unwrap_err(), KeyRecordError::Revoked);
    }

    #[test]
    fn records_in_use_are_read_however_loose() {
        for (text, key_type, bits) in [
            ("v=DKIM1; k=rsa; p={rsa}", KeyType::Rsa, 2048),
            ("v=DKIM1; k=ed25519; p={ed}", KeyType::Ed25519, 256),
            ("p={rsa}", KeyType::Rsa, 2048),
            ("p={rsa};", KeyType::Rsa, 2048),
            ("p={rsa} ; ", KeyType::Rsa, 2048),
            ("k=ed25519;p={ed}", KeyType::Ed25519, 256),
            ("\t v = DKIM1 ; k = rsa ; p = {rsa} ", KeyType::Rsa, 2048),
            ("v=DKIM1; K=x; k=RSA; p={rsa}", KeyType::Rsa, 2048),
            (
                "v=DKIM1; g=*; n=by hand; x-note=1; p={rsa}",
                KeyType::Rsa,
                2048,
            ),
            ("v=DKIM1;\r\n p={rsa}", KeyType::Rsa, 2048),
        ] {
            let record = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let key = record.public_key();
            assert_eq!((key.key_type(), key.bits()), (key_type, bits), "{text}");
        }
        let key = STANDARD.encode(RSA);
        for break_at in [1, 76, 77] {
            let broken: Vec<&str> = (0..key.len())
                .step_by(break_at)
                .map(|at| &key[at..key.len().min(at + break_at)])
                .collect();
            let text = format!("p={}", broken.join(" "));
            assert_eq!(parse(&text).unwrap().public_key().bits(), 2048);
        }
    }

    #[test]
    fn what_is_no_key_has_its_reason() {
        for (text, want) in [
            ("", "no key in the key record (p= is missing)"),
            ("v=DKIM1", "no key in the key record (p= is missing)"),
            ("v=DKIM1; k=rsa; p=", "key revoked (p= is empty)"),
            ("p= \t;", "key revoked (p= is empty)"),
            (
                "p={rsa}; v=DKIM1",
                "not a key record (v= is there and is not DKIM1, or not first)",
            ),
            (
                "v=dkim1; p={rsa}",
                "not a key record (v= is there and is not DKIM1, or not first)",
            ),
            (
                "v=DKIM1.0; p={rsa}",
                "not a key record (v= is there and is not DKIM1, or not first)",
            ),
            (
                "v=; p={rsa}",
                "not a key record (v= is there and is not DKIM1, or not first)",
            ),
            (
                "v=DMARC1; p=none",
                "not a key record (v= is there and is not DKIM1, or not first)",
            ),
            ("k=dsa; p={rsa}", "unknown key type in the key record (k=)"),
            ("k=; p={rsa}", "unknown key type in the key record (k=)"),
            ("p=a*b", "key record syntax error: p= is not base64"),
            (
                "p=-----BEGIN PUBLIC KEY-----{rsa}",
                "key record syntax error: p= is not base64",
            ),
            (
                "p=QUJD",
                "unusable key in the key record: not an RSA public key: neither SubjectPublicKeyInfo nor RSAPublicKey in DER",
            ),
            (
                "k=ed25519; p=QUJD",
                "unusable key in the key record: Ed25519 public key has 3 octets instead of 32",
            ),
            (
                "k=ed25519; p={rsa}",
                "unusable key in the key record: public key is not an Ed25519 key but another in DER",
            ),
            (
                "\"v=DKIM1; p={rsa}\"",
                "key record has quotation marks or backslashes in it, which belong into a zone file and not into the DNS",
            ),
            (
                "k=rsa; k=rsa; p={rsa}",
                "key record syntax error: tag k= stands twice (again at octet 6)",
            ),
            (
                "p=AAAA;; k=rsa",
                "key record syntax error: empty tag at octet 7",
            ),
            // Pasted twice, with and without something between.
            (
                "v=DKIM1; p=AAAA;v=DKIM1; p=AAAA",
                "key record syntax error: tag v= stands twice (again at octet 16)",
            ),
            (
                "v=DKIM1; p=AAAAv=DKIM1; p=AAAA",
                "key record syntax error: tag p= stands twice (again at octet 23)",
            ),
            (
                "v=DKIM1; p=AAAA v=DKIM1",
                "key record syntax error: p= is not base64",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), want, "{text}");
        }
        let large = "x".repeat(MAX_RECORD + 1);
        assert_eq!(parse(&large).unwrap_err(), KeyRecordError::TooLarge);
        assert!(parse(&format!("p={{rsa}}; n={}", "x".repeat(MAX_RECORD - 500))).is_ok());
    }

    #[test]
    fn restrictions_are_read() {
        for (tags, sha256, email, testing, strict) in [
            ("", true, true, false, false),
            ("h=sha256; ", true, true, false, false),
            ("h=sha1 : SHA256; ", true, true, false, false),
            ("h=sha1; ", false, true, false, false),
            ("h=rsa-sha256; ", false, true, false, false),
            ("h=; ", false, true, false, false),
            ("s=*; ", true, true, false, false),
            ("s=tls : email; ", true, true, false, false),
            ("s=tls; ", true, false, false, false),
            ("s=; ", true, false, false, false),
            ("t=y; ", true, true, true, false),
            ("t=s; ", true, true, false, true),
            ("t= y : s ; ", true, true, true, true),
            ("t=yes; ", true, true, false, false),
            ("t=; ", true, true, false, false),
        ] {
            let record = parse(&format!("v=DKIM1; {tags}p={{rsa}}")).unwrap();
            assert_eq!(
                (
                    record.allows_sha256(),
                    record.is_for_email(),
                    record.is_testing(),
                    record.has_strict_identity()
                ),
                (sha256, email, testing, strict),
                "{tags}"
            );
        }
    }

    #[test]
    fn only_the_first_records_of_a_name_are_read() {
        assert!(matches!(
            KeyAnswer::from_txt::<&[u8]>(&[]),
            KeyAnswer::NoRecord
        ));
        let records = vec![filled("p={rsa}"); MAX_RECORDS + 3];
        match KeyAnswer::from_txt(&records) {
            KeyAnswer::Records(records) => assert_eq!(records.len(), MAX_RECORDS),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_engine_s_form_of_a_key_is_made_once() {
        let record = parse("p={rsa}").unwrap();
        let first = record.verifying_key(engines()[0]).unwrap();
        let second = record.verifying_key(engines()[0]).unwrap();
        assert!(std::ptr::addr_eq(first, second));
    }
}
