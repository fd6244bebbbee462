//! Verdicts: what became of each signature, why, and the RFC 8601 word for it.

use crate::engine::PublicKeyError;
use crate::key_record::KeyRecordError;
use crate::results::ResultWord;
use crate::signature::{Claims, SignatureError};

/// The result of one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which DKIM-Signature field, counted from 0 at the top.
    pub index: usize,
    /// The word for it.
    pub result: ResultWord,
    /// Why.
    pub reason: Reason,
    /// What the field claims, as far as it could be read.
    pub claims: Claims,
    /// The size of the key, if there is one.
    pub key_bits: Option<u32>,
    /// Whether the key record says that the domain is testing (`t=y`); such mail is to be treated as if unsigned
    /// (RFC 6376 section 3.6.1).
    pub testing: bool,
    /// How many octets of the body, in canonical form, `l=` leaves unsigned.
    pub unsigned_octets: u64,
}

/// Why a signature has its result. `Display` is the sentence that operators read, in logs and in results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It is good. What it does not protect is said as well, where that is accepted.
    #[error("signature verified{}", reservations(*.unsigned_octets, *.from_fields))]
    Verified {
        /// How many octets of the body it leaves unsigned (`l=`).
        unsigned_octets: u64,
        /// How many From fields the message has.
        from_fields: usize,
    },
    /// The field cannot be used.
    #[error("{0}")]
    Malformed(SignatureError),
    /// It is one too many.
    #[error("not evaluated: more than {limit} signatures")]
    TooManySignatures {
        /// How many are evaluated.
        limit: usize,
    },
    /// `x=` has passed.
    #[error("signature expired (x=)")]
    Expired,
    /// `t=` has not come yet.
    #[error("signature made in the future (t=)")]
    FromTheFuture,
    /// The DNS has no key at the name.
    #[error("{}", if *.name_exists { "no key for signature: name has no TXT record" } else { "no key for signature: no such name" })]
    NoKey {
        /// Whether the name exists.
        name_exists: bool,
    },
    /// The DNS could not be asked.
    #[error("key unavailable: {0}")]
    KeyUnavailable(String),
    /// What the DNS has is no key.
    #[error("{0}")]
    KeyRecord(KeyRecordError),
    /// `k=` does not fit `a=`.
    #[error("inappropriate key algorithm (k= of the key record does not fit a=)")]
    KeyTypeMismatch,
    /// `h=` of the record has no sha256.
    #[error("inappropriate hash algorithm (h= of the key record has no sha256)")]
    HashNotAllowed,
    /// `s=` of the record has no email.
    #[error("key is not for email (s= of the key record)")]
    NotForEmail,
    /// `t=s`, and the domain of `i=` is not `d=`.
    #[error("domain of i= must be that of d= (t=s in the key record)")]
    IdentityNotDomain,
    /// The key is too small to mean anything.
    #[error("RSA key of {bits} bits is too small (at least {least})")]
    KeyTooSmall {
        /// Its size.
        bits: u32,
        /// The least size accepted.
        least: u32,
    },
    /// The key is so large that checking would cost too much.
    #[error("RSA key of {bits} bits is too large (at most {most})")]
    KeyTooLarge {
        /// Its size.
        bits: u32,
        /// The largest size accepted.
        most: u32,
    },
    /// The engine cannot use the key.
    #[error("unusable key: {0}")]
    EngineRefusesKey(String),
    /// Who checks signatures could not be asked.
    #[error("signature cannot be checked now: {0}")]
    CheckUnavailable(String),
    /// Who checks signatures here checks none of that key.
    #[error("signature is not checked here: {0}")]
    CheckRefused(String),
    /// Who makes body hashes could not be asked.
    #[error("body hash cannot be computed now: {0}")]
    BodyHashUnavailable(String),
    /// The body ends before `l=` octets.
    #[error("body is shorter than l=")]
    BodyShorterThanLength,
    /// The body is not what was signed.
    #[error("body hash did not verify")]
    BodyHash,
    /// The header is not what was signed, or the key is not the signer's.
    #[error("signature did not verify")]
    Signature,
    /// It is good, but covers only the head of the body.
    #[error("signature leaves {0} octets of the body unsigned (l=)")]
    UnsignedOctets(u64),
    /// It is good, but nobody can say who the author is.
    #[error("signature verified, but the message has {0} From fields")]
    SeveralFrom(usize),
    /// Nobody checked it.
    #[error("signature was not checked")]
    NotChecked,
}

impl Reason {
    /// The word for this reason (RFC 8601 section 2.7.1).
    ///
    /// `neutral` is for fields that cannot be read, `permerror` for what can never be judged, `fail` for what was judged
    /// and found wrong, `policy` for what is good or might be and is not accepted here, `temperror` for what may be
    /// judged later.
    pub fn word(&self) -> ResultWord {
        match self {
            Self::Verified { .. } => ResultWord::Pass,
            Self::Malformed(error) => malformed_word(error),
            Self::NoKey { .. }
            | Self::KeyTypeMismatch
            | Self::HashNotAllowed
            | Self::NotForEmail
            | Self::IdentityNotDomain
            | Self::KeyTooSmall { .. }
            | Self::BodyShorterThanLength
            | Self::Expired => ResultWord::PermError,
            // Numbers that no honest key has: no signature is one of theirs.
            Self::KeyRecord(KeyRecordError::Key(error)) if is_about_numbers(error) => {
                ResultWord::Fail
            }
            Self::KeyRecord(_) => ResultWord::PermError,
            Self::KeyUnavailable(_)
            | Self::CheckUnavailable(_)
            | Self::BodyHashUnavailable(_)
            | Self::NotChecked => ResultWord::TempError,
            Self::KeyTooLarge { .. }
            | Self::EngineRefusesKey(_)
            | Self::BodyHash
            | Self::Signature => ResultWord::Fail,
            Self::TooManySignatures { .. }
            | Self::FromTheFuture
            | Self::CheckRefused(_)
            | Self::UnsignedOctets(_)
            | Self::SeveralFrom(_) => ResultWord::Policy,
        }
    }
}

fn malformed_word(error: &SignatureError) -> ResultWord {
    match error {
        SignatureError::TagList(_)
        | SignatureError::Syntax { .. }
        | SignatureError::TooManyHeaderNames => ResultWord::Neutral,
        SignatureError::Missing { .. }
        | SignatureError::Version
        | SignatureError::Algorithm
        | SignatureError::Sha1
        | SignatureError::Canonicalization
        | SignatureError::Query
        | SignatureError::FromNotSigned
        | SignatureError::IdentityOutsideDomain
        | SignatureError::ExpiresBeforeSigned => ResultWord::PermError,
    }
}

/// Whether the key could be read, and is one that no honest key can be.
fn is_about_numbers(error: &PublicKeyError) -> bool {
    match error {
        PublicKeyError::ModulusEven
        | PublicKeyError::ModulusTooLong { .. }
        | PublicKeyError::ExponentTooSmall
        | PublicKeyError::ExponentEven
        | PublicKeyError::ExponentTooLong { .. }
        | PublicKeyError::Ed25519NotCanonical
        | PublicKeyError::Ed25519SmallOrder => true,
        PublicKeyError::Empty
        | PublicKeyError::Truncated { .. }
        | PublicKeyError::Trailing { .. }
        | PublicKeyError::NotDer
        | PublicKeyError::RsaPss
        | PublicKeyError::EllipticCurve
        | PublicKeyError::Ed25519AsRsa
        | PublicKeyError::OtherAlgorithm { .. }
        | PublicKeyError::Ed25519Length { .. }
        | PublicKeyError::Ed25519AsDer
        | PublicKeyError::RsaAsEd25519 => false,
    }
}

/// What a good signature does not protect.
fn reservations(unsigned_octets: u64, from_fields: usize) -> String {
    let unsigned = format!("leaves {unsigned_octets} octets of the body unsigned (l=)");
    let several = format!("the message has {from_fields} From fields");
    match (unsigned_octets > 0, from_fields > 1) {
        (false, false) => String::new(),
        (true, false) => format!(", but {unsigned}"),
        (false, true) => format!(", but {several}"),
        (true, true) => format!(", but {unsigned}, and {several}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag_list::TagListError;

    /// RFC 8601 section 2.7.1, and RFC 6376 section 6.1 for what is permanent.
    #[test]
    fn each_reason_has_its_word_and_its_sentence() {
        use ResultWord::*;
        let malformed = Reason::Malformed;
        let key = |error| Reason::KeyRecord(KeyRecordError::Key(error));
        for (reason, word, sentence) in [
            (
                Reason::Verified {
                    unsigned_octets: 0,
                    from_fields: 1,
                },
                Pass,
                "signature verified",
            ),
            (
                Reason::Verified {
                    unsigned_octets: 5,
                    from_fields: 2,
                },
                Pass,
                "signature verified, but leaves 5 octets of the body unsigned (l=), and the message has 2 From fields",
            ),
            (
                malformed(SignatureError::TagList(TagListError::TooMany)),
                Neutral,
                "signature syntax error: more than 64 tags",
            ),
            (
                malformed(SignatureError::Syntax { tag: "b" }),
                Neutral,
                "signature syntax error in b=",
            ),
            (
                malformed(SignatureError::TooManyHeaderNames),
                Neutral,
                "more than 1000 names in h=",
            ),
            (
                malformed(SignatureError::Missing { tag: "bh" }),
                PermError,
                "signature missing required tag bh=",
            ),
            (
                malformed(SignatureError::Version),
                PermError,
                "incompatible signature version (v= is not 1)",
            ),
            (
                malformed(SignatureError::Algorithm),
                PermError,
                "unknown signature algorithm (a=)",
            ),
            (
                malformed(SignatureError::Sha1),
                PermError,
                "rsa-sha1 must not be used (RFC 8301)",
            ),
            (
                malformed(SignatureError::Canonicalization),
                PermError,
                "unknown canonicalization (c=)",
            ),
            (
                malformed(SignatureError::Query),
                PermError,
                "unknown query method (q=)",
            ),
            (
                malformed(SignatureError::FromNotSigned),
                PermError,
                "From field not signed (h=)",
            ),
            (
                malformed(SignatureError::IdentityOutsideDomain),
                PermError,
                "domain mismatch (i= is outside d=)",
            ),
            (
                malformed(SignatureError::ExpiresBeforeSigned),
                PermError,
                "signature expires before it was made (x= is not after t=)",
            ),
            (
                Reason::TooManySignatures { limit: 10 },
                Policy,
                "not evaluated: more than 10 signatures",
            ),
            (Reason::Expired, PermError, "signature expired (x=)"),
            (
                Reason::FromTheFuture,
                Policy,
                "signature made in the future (t=)",
            ),
            (
                Reason::NoKey { name_exists: true },
                PermError,
                "no key for signature: name has no TXT record",
            ),
            (
                Reason::NoKey { name_exists: false },
                PermError,
                "no key for signature: no such name",
            ),
            (
                Reason::KeyUnavailable("no answer".into()),
                TempError,
                "key unavailable: no answer",
            ),
            (
                Reason::KeyRecord(KeyRecordError::Revoked),
                PermError,
                "key revoked (p= is empty)",
            ),
            (
                Reason::KeyRecord(KeyRecordError::NoKey),
                PermError,
                "no key in the key record (p= is missing)",
            ),
            (
                key(PublicKeyError::RsaPss),
                PermError,
                "unusable key in the key record: public key is for RSA-PSS only, which DKIM does not use",
            ),
            (
                key(PublicKeyError::ModulusEven),
                Fail,
                "unusable key in the key record: RSA modulus is even, so it is no product of two primes",
            ),
            (
                key(PublicKeyError::ExponentTooLong { bits: 2048 }),
                Fail,
                "unusable key in the key record: RSA public exponent has 2048 bits, more than 33",
            ),
            (
                Reason::KeyTypeMismatch,
                PermError,
                "inappropriate key algorithm (k= of the key record does not fit a=)",
            ),
            (
                Reason::HashNotAllowed,
                PermError,
                "inappropriate hash algorithm (h= of the key record has no sha256)",
            ),
            (
                Reason::NotForEmail,
                PermError,
                "key is not for email (s= of the key record)",
            ),
            (
                Reason::IdentityNotDomain,
                PermError,
                "domain of i= must be that of d= (t=s in the key record)",
            ),
            (
                Reason::KeyTooSmall {
                    bits: 512,
                    least: 1024,
                },
                PermError,
                "RSA key of 512 bits is too small (at least 1024)",
            ),
            (
                Reason::KeyTooLarge {
                    bits: 16384,
                    most: 8192,
                },
                Fail,
                "RSA key of 16384 bits is too large (at most 8192)",
            ),
            (
                Reason::EngineRefusesKey("why".into()),
                Fail,
                "unusable key: why",
            ),
            (
                Reason::BodyShorterThanLength,
                PermError,
                "body is shorter than l=",
            ),
            (
                Reason::CheckUnavailable("why".into()),
                TempError,
                "signature cannot be checked now: why",
            ),
            (
                Reason::CheckRefused("why".into()),
                Policy,
                "signature is not checked here: why",
            ),
            (
                Reason::BodyHashUnavailable("why".into()),
                TempError,
                "body hash cannot be computed now: why",
            ),
            (Reason::BodyHash, Fail, "body hash did not verify"),
            (Reason::Signature, Fail, "signature did not verify"),
            (
                Reason::UnsignedOctets(5),
                Policy,
                "signature leaves 5 octets of the body unsigned (l=)",
            ),
            (
                Reason::SeveralFrom(2),
                Policy,
                "signature verified, but the message has 2 From fields",
            ),
            (Reason::NotChecked, TempError, "signature was not checked"),
        ] {
            assert_eq!(
                (reason.word(), reason.to_string().as_str()),
                (word, sentence)
            );
        }
    }
}
