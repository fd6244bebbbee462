//! A key record held against the private key it is for (RFC 6376 section 3.6): what verifiers will make of it.
//!
//! Keys are compared as numbers, since `p=` may hold a SubjectPublicKeyInfo or a bare RSAPublicKey. Whether the answer was
//! signed by DNSSEC is not judged: DKIM does not ask for it. `dkim-testkey` tells it, no more.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dkim_core::engine::{KeyType, PublicKey};
use dkim_core::key_record::{KeyAnswer, KeyRecord, KeyRecordError};
use std::fmt::{self, Display, Formatter};

/// What is wrong with a record, and what is only to be known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordCheck {
    /// What keeps signatures by the key from being verified. Empty if all is well.
    pub(crate) faults: Vec<RecordFault>,
    /// What does not.
    pub(crate) notes: Vec<RecordNote>,
    /// The key in the record.
    pub(crate) published: Option<PublicKey>,
}

impl RecordCheck {
    /// Judges what the DNS said, for `key` if it is known.
    pub(crate) fn new(answer: &KeyAnswer, key: Option<&PublicKey>) -> Self {
        let fault = |fault| Self {
            faults: vec![fault],
            ..Self::default()
        };
        match answer {
            KeyAnswer::NoName => fault(RecordFault::NoName),
            KeyAnswer::NoRecord => fault(RecordFault::NoRecord),
            KeyAnswer::Unavailable(reason) => fault(RecordFault::Unavailable(reason.clone())),
            KeyAnswer::Records(records) => match &records[..] {
                [Ok(record)] => Self::of_record(record, key),
                [Err(error @ KeyRecordError::EndsEarly { .. })] => {
                    fault(RecordFault::Cut(error.clone()))
                }
                [Err(error)] => fault(RecordFault::NoKey(error.clone())),
                records => {
                    let is_right =
                        |record: &KeyRecord| key.is_some_and(|key| record.public_key() == key);
                    let one_is_right = records.iter().flatten().any(is_right);
                    fault(RecordFault::Several {
                        count: records.len(),
                        one_is_right,
                    })
                }
            },
        }
    }

    /// Whether nothing is known, because the DNS did not answer.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.faults[..], [RecordFault::Unavailable(_)])
    }

    fn of_record(record: &KeyRecord, key: Option<&PublicKey>) -> Self {
        let published = record.public_key();
        let mut check = Self::default();
        if let Some(key) = key.filter(|key| *key != published) {
            check.faults.push(RecordFault::OtherKey {
                published: named(published),
                key: named(key),
            });
        }
        if !record.allows_sha256() {
            check.faults.push(RecordFault::NoSha256);
        }
        if !record.is_for_email() {
            check.faults.push(RecordFault::NotForMail);
        }
        match (published.key_type(), published.bits()) {
            (KeyType::Rsa, bits @ ..SHORTEST) => check.faults.push(RecordFault::Short { bits }),
            (KeyType::Rsa, bits @ SHORTEST..RECOMMENDED) => {
                check.notes.push(RecordNote::Short { bits });
            }
            _ => {}
        }
        if record.is_testing() {
            check.notes.push(RecordNote::Testing);
        }
        if record.has_strict_identity() {
            check.notes.push(RecordNote::StrictIdentity);
        }
        check.published = Some(published.clone());
        check
    }
}

/// The faults, or that there is none.
impl Display for RecordCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

/// Why signatures by the key are not verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordFault {
    /// NXDOMAIN.
    #[error("no record: the name does not exist in the DNS")]
    NoName,
    /// NODATA.
    #[error("no record: the name is there, but has no TXT record")]
    NoRecord,
    /// The DNS gave no answer.
    #[error("not known: the DNS did not say ({0})")]
    Unavailable(String),
    /// More than one TXT record.
    #[error(
        "there are {count} TXT records, and a verifier may take any one of them (RFC 6376 section 3.6.2.2){}",
        if *.one_is_right { "; one of them is right: delete the others" } else { "" }
    )]
    Several {
        /// How many, as far as they are looked at.
        count: usize,
        /// Whether one has the key.
        one_is_right: bool,
    },
    /// The record holds no key.
    #[error("{0}")]
    NoKey(KeyRecordError),
    /// The record holds the beginning of a key.
    #[error(
        "{0}; a string there holds 255 characters, so give the whole record, as several strings, to a form that takes it"
    )]
    Cut(KeyRecordError),
    /// The record holds a key, and not this one.
    #[error("the record has another key: {published} there, {key} here")]
    OtherKey {
        /// The record's.
        published: String,
        /// The private key's.
        key: String,
    },
    /// `h=` without `sha256`.
    #[error(
        "h= in the record does not have sha256, by which all signatures are made (RFC 8301 section 3.1)"
    )]
    NoSha256,
    /// `s=` without `email`.
    #[error("s= in the record says that the key is not for mail: neither email nor * is there")]
    NotForMail,
    /// Too short for verifiers.
    #[error(
        "RSA key of {bits} bits: verifiers accept none with less than {SHORTEST} (RFC 8301 section 3.2)"
    )]
    Short {
        /// Its size.
        bits: u32,
    },
}

/// What is to be known of a record that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordNote {
    /// `t=y`.
    #[error(
        "t=y: the domain is testing DKIM, and verifiers treat its mail as if it were not signed"
    )]
    Testing,
    /// `t=s`.
    #[error("t=s: the domain of i= must be the signing domain itself, and no name below it")]
    StrictIdentity,
    /// Shorter than signers should use.
    #[error("RSA key of {bits} bits: {RECOMMENDED} should be used (RFC 8301 section 3.2)")]
    Short {
        /// Its size.
        bits: u32,
    },
}

/// The key record of `key`, with the `tags` (`t=y`) between `k=` and `p=`.
pub(crate) fn record(key: &PublicKey, tags: &[String]) -> String {
    let kind = match key.key_type() {
        KeyType::Rsa => "rsa",
        KeyType::Ed25519 => "ed25519",
    };
    let mut record = format!("v=DKIM1; k={kind}; ");
    for tag in tags {
        record.push_str(tag);
        record.push_str("; ");
    }
    record.push_str("p=");
    STANDARD.encode_string(key.to_record(), &mut record);
    record
}

/// Kind and size, and the end of the key in base64, by which people tell keys apart.
pub(crate) fn named(key: &PublicKey) -> String {
    let base64 = STANDARD.encode(key.to_record());
    let base64 = base64.trim_end_matches('=');
    // RSA keys all end in their exponent, which is mostly the same.
    let without = if key.key_type() == KeyType::Rsa { 8 } else { 0 };
    let end = base64.len().saturating_sub(without);
    format!(
        "{} with ...{}",
        kind_and_size(key),
        &base64[end.saturating_sub(8)..end]
    )
}

/// `RSA of 2048 bits`, `Ed25519`.
pub(crate) fn kind_and_size(key: &PublicKey) -> String {
    match key.key_type() {
        KeyType::Rsa => format!("RSA of {} bits", key.bits()),
        KeyType::Ed25519 => "Ed25519".to_owned(),
    }
}

/// RFC 8301 section 3.2: what verifiers must not accept less of, and what signers should have.
pub(crate) const SHORTEST: u32 = 1024;
pub(crate) const RECOMMENDED: u32 = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.record");
    const BARE: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.bare.record");
    const RSA_1024: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa1024.record");
    const ED25519: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/ed25519.record");

    fn key(key_type: KeyType, octets: &[u8]) -> PublicKey {
        PublicKey::from_record(key_type, octets).unwrap()
    }

    /// `text` as a record, with the keys in the places of their names.
    fn filled(text: &str) -> String {
        text.replace("{rsa}", &STANDARD.encode(RSA))
            .replace("{bare}", &STANDARD.encode(BARE))
            .replace("{old}", &STANDARD.encode(RSA_1024))
            .replace("{ed}", &STANDARD.encode(ED25519))
    }

    fn check(records: &[&str]) -> RecordCheck {
        let records: Vec<_> = records.iter().map(|text| filled(text)).collect();
        RecordCheck::new(
            &KeyAnswer::from_txt(&records),
            Some(&key(KeyType::Rsa, RSA)),
        )
    }

    #[test]
    fn the_same_numbers_are_the_same_key_however_written() {
        for record in ["v=DKIM1; k=rsa; p={rsa}", "p={rsa}", "k=rsa; p={bare}"] {
            let check = check(&[record]);
            assert_eq!(
                (&check.faults[..], &check.notes[..]),
                (&[][..], &[][..]),
                "{record}"
            );
            assert_eq!(check.published, Some(key(KeyType::Rsa, RSA)));
        }
    }

    #[test]
    fn each_fault_has_its_sentence() {
        for (records, sentence) in [
            (&[][..], "no record: the name is there"),
            (&["v=DKIM1; p="], "key revoked"),
            (&["v=spf1 -all"], "not a key record"),
            (&["v=DKIM1; k=dsa; p={rsa}"], "unknown key type"),
            (&["v=DKIM1; p=x*"], "p= is not base64"),
            (
                &["v=DKIM1; p=MIIBIjANBgkqhkiG9w0B"],
                "the rest was cut off on its way into the DNS; a string there holds 255 characters",
            ),
            (
                &["v=DKIM1; h=sha1; p={rsa}"],
                "h= in the record does not have sha256",
            ),
            (&["v=DKIM1; s=tlsrpt; p={rsa}"], "s= in the record says"),
            (
                &["v=DKIM1; k=ed25519; p={ed}"],
                "the record has another key: Ed25519 with ...",
            ),
            (
                &["v=DKIM1; p={old}"],
                "the record has another key: RSA of 1024 bits with ...",
            ),
            (
                &["p={rsa}", "p={old}"],
                "2 TXT records, and a verifier may take any one of them (RFC 6376 section 3.6.2.2); one of them is right",
            ),
            (&["p={old}", "v=spf1 -all"], "2 TXT records"),
        ] {
            let check = check(records);
            let shown = check.to_string();
            assert!(shown.contains(sentence), "{records:?}: {shown}");
            assert!(!check.is_unknown());
        }
        let nowhere = RecordCheck::new(&KeyAnswer::NoName, None);
        assert!(nowhere.to_string().contains("does not exist"), "{nowhere}");
    }

    #[test]
    fn several_faults_of_a_record_are_all_told() {
        let check = check(&["v=DKIM1; h=sha1; s=x; p={old}"]);
        assert_eq!(check.faults.len(), 3, "{check}");
    }

    #[test]
    fn what_does_no_harm_is_a_note() {
        let check = check(&["v=DKIM1; t=y:s; h=sha1:sha256; s=email; p={rsa}"]);
        assert_eq!(check.faults, []);
        assert_eq!(
            check.notes,
            [RecordNote::Testing, RecordNote::StrictIdentity]
        );
    }

    #[test]
    fn without_an_answer_nothing_is_known() {
        let check = RecordCheck::new(&KeyAnswer::Unavailable("answered SERVFAIL".into()), None);
        assert!(check.is_unknown());
        assert!(check.to_string().contains("answered SERVFAIL"));
    }

    #[test]
    fn a_record_that_is_written_is_read_back() {
        for (key, tags) in [
            (key(KeyType::Rsa, RSA), &["t=y".to_owned()][..]),
            (key(KeyType::Ed25519, ED25519), &[]),
        ] {
            let text = record(&key, tags);
            let read = KeyRecord::parse(text.as_bytes()).unwrap();
            assert_eq!(*read.public_key(), key, "{text}");
            assert_eq!(read.is_testing(), !tags.is_empty());
        }
    }
}
