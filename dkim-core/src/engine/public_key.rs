//! Public keys as numbers: what a key record's `p=` holds (RFC 6376 section 3.6.1, RFC 8463 section 4).
//!
//! What no honest key can be is refused here, once for all engines: even numbers, exponents of 1 or of many bits,
//! points of small order. How long a key must at least be is policy and left to the verifier, by [`PublicKey::bits`].

use super::KeyType;
use super::der::{SequenceFault, elements};
use pkcs1::{RsaPublicKeyRef, UintRef};
use pkcs8::ObjectIdentifier;
use pkcs8::der::asn1::BitStringRef;
use pkcs8::der::{Decode, Encode, Tag};
use pkcs8::spki::SubjectPublicKeyInfoRef;

/// A public key, read from a key record or taken from a private key. Made by [`from_record`](Self::from_record) and
/// [`from_rsa_numbers`](Self::from_rsa_numbers) only, so that every one has passed their checks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PublicKey {
    /// The modulus and the public exponent, big-endian without leading zeros.
    #[non_exhaustive]
    Rsa {
        /// The modulus.
        modulus: Vec<u8>,
        /// The public exponent.
        exponent: Vec<u8>,
    },
    /// The 32 octets of an Ed25519 public key (RFC 8032 section 5.1.5).
    #[non_exhaustive]
    Ed25519([u8; 32]),
}

impl PublicKey {
    /// Reads what `p=` holds, base64 already undone: for RSA a SubjectPublicKeyInfo or a bare RSAPublicKey, in DER; for
    /// Ed25519 the 32 octets. Linear in `octets`, whatever they are.
    ///
    /// # Errors
    /// Octets that are no such key, or numbers no such key may have.
    pub fn from_record(key_type: KeyType, octets: &[u8]) -> Result<Self, PublicKeyError> {
        match key_type {
            _ if octets.is_empty() => Err(PublicKeyError::Empty),
            KeyType::Rsa => rsa_from_der(octets),
            KeyType::Ed25519 => ed25519_from_octets(octets),
        }
    }

    /// Takes the two numbers of an RSA key, big-endian; leading zeros are dropped.
    ///
    /// # Errors
    /// Numbers no RSA key may have.
    pub fn from_rsa_numbers(modulus: &[u8], exponent: &[u8]) -> Result<Self, PublicKeyError> {
        let modulus = without_leading_zeros(modulus);
        let exponent = without_leading_zeros(exponent);
        let bits = bit_length(modulus);
        if bits > MAX_MODULUS_BITS {
            return Err(PublicKeyError::ModulusTooLong { bits });
        }
        if modulus.last().is_none_or(|o| o % 2 == 0) {
            return Err(PublicKeyError::ModulusEven);
        }
        match (exponent, bit_length(exponent)) {
            (_, bits) if bits > MAX_EXPONENT_BITS => {
                return Err(PublicKeyError::ExponentTooLong { bits });
            }
            ([] | [1], _) => return Err(PublicKeyError::ExponentTooSmall),
            ([.., last], _) if last % 2 == 0 => return Err(PublicKeyError::ExponentEven),
            _ => {}
        }
        Ok(Self::Rsa {
            modulus: modulus.to_vec(),
            exponent: exponent.to_vec(),
        })
    }

    /// What belongs into `p=` before base64: SubjectPublicKeyInfo in DER, or the 32 octets of Ed25519.
    pub fn to_record(&self) -> Vec<u8> {
        match self {
            Self::Rsa { modulus, exponent } => rsa_to_der(modulus, exponent)
                // DER as written here ends at 256 MiB; the numbers were bounded when the key was made.
                .expect("a key of bounded size has a DER form"),
            Self::Ed25519(octets) => octets.to_vec(),
        }
    }

    /// What kind of key it is.
    pub fn key_type(&self) -> KeyType {
        match self {
            Self::Rsa { .. } => KeyType::Rsa,
            Self::Ed25519(_) => KeyType::Ed25519,
        }
    }

    /// Its size in bits: the modulus' length, or 256.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Rsa { modulus, .. } => bit_length(modulus),
            Self::Ed25519(_) => 256,
        }
    }
}

fn rsa_from_der(octets: &[u8]) -> Result<PublicKey, PublicKeyError> {
    let elements = elements(octets).map_err(|fault| match fault {
        SequenceFault::Truncated { missing } => PublicKeyError::Truncated { missing },
        SequenceFault::Trailing { extra } => PublicKeyError::Trailing { extra },
        SequenceFault::NotSequence | SequenceFault::Damaged => PublicKeyError::NotDer,
    })?;
    let is_spki = elements
        .first()
        .is_some_and(|e| e.header().tag() == Tag::Sequence);
    let key = if is_spki {
        let info = SubjectPublicKeyInfoRef::from_der(octets).map_err(|_| PublicKeyError::NotDer)?;
        check_algorithm(info.algorithm.oid)?;
        // RFC 3279 section 2.3.1 wants NULL here; records without it work everywhere else, so they do here.
        if info.algorithm.parameters.is_some_and(|p| !p.is_null()) {
            return Err(PublicKeyError::NotDer);
        }
        let inner = info
            .subject_public_key
            .as_bytes()
            .ok_or(PublicKeyError::NotDer)?;
        RsaPublicKeyRef::from_der(inner)
    } else {
        RsaPublicKeyRef::from_der(octets)
    }
    .map_err(|_| PublicKeyError::NotDer)?;
    PublicKey::from_rsa_numbers(key.modulus.as_bytes(), key.public_exponent.as_bytes())
}

fn check_algorithm(oid: ObjectIdentifier) -> Result<(), PublicKeyError> {
    match oid {
        pkcs1::ALGORITHM_OID => Ok(()),
        OID_RSA_PSS => Err(PublicKeyError::RsaPss),
        OID_EC => Err(PublicKeyError::EllipticCurve),
        OID_ED25519 => Err(PublicKeyError::Ed25519AsRsa),
        other => Err(PublicKeyError::OtherAlgorithm {
            oid: other.to_string(),
        }),
    }
}

fn rsa_to_der(modulus: &[u8], exponent: &[u8]) -> pkcs8::der::Result<Vec<u8>> {
    let key = RsaPublicKeyRef {
        modulus: UintRef::new(modulus)?,
        public_exponent: UintRef::new(exponent)?,
    }
    .to_der()?;
    SubjectPublicKeyInfoRef {
        algorithm: pkcs1::ALGORITHM_ID,
        subject_public_key: BitStringRef::from_bytes(&key)?,
    }
    .to_der()
}

fn ed25519_from_octets(octets: &[u8]) -> Result<PublicKey, PublicKeyError> {
    let Ok(key) = <[u8; 32]>::try_from(octets) else {
        return Err(match SubjectPublicKeyInfoRef::from_der(octets) {
            Ok(info) if info.algorithm.oid == OID_ED25519 => PublicKeyError::Ed25519AsDer,
            Ok(_) => PublicKeyError::RsaAsEd25519,
            Err(_) => PublicKeyError::Ed25519Length {
                found: octets.len(),
            },
        });
    };
    // Little-endian; the topmost bit is the sign of x and no part of the number (RFC 8032 section 5.1.2).
    let mut y = key;
    y[31] &= 0x7f;
    if y.iter().rev().ge(FIELD_PRIME.iter().rev()) {
        return Err(PublicKeyError::Ed25519NotCanonical);
    }
    if SMALL_ORDER.contains(&y) {
        return Err(PublicKeyError::Ed25519SmallOrder);
    }
    Ok(PublicKey::Ed25519(key))
}

fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let start = number.iter().position(|&o| o != 0).unwrap_or(number.len());
    &number[start..]
}

/// The bits of a big-endian number without leading zeros. Numbers beyond 512 MiB are no concern: DER ends before.
fn bit_length(number: &[u8]) -> u32 {
    match number {
        [] => 0,
        [first, rest @ ..] => {
            let whole = u32::try_from(rest.len())
                .unwrap_or(u32::MAX)
                .saturating_mul(8);
            whole.saturating_add(8 - first.leading_zeros())
        }
    }
}

/// Why octets are no public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Nothing at all; in a key record this means revoked (RFC 6376 section 3.6.1).
    #[error("public key is empty")]
    Empty,
    /// The DER goes on behind the last octet.
    #[error("public key is cut off: {missing} octets are missing at its end")]
    Truncated {
        /// How many octets are missing.
        missing: u32,
    },
    /// The DER ends before the last octet.
    #[error("public key has {extra} octets too many at its end")]
    Trailing {
        /// How many octets are too many.
        extra: u32,
    },
    /// Neither of the two structures an RSA key record may hold.
    #[error("not an RSA public key: neither SubjectPublicKeyInfo nor RSAPublicKey in DER")]
    NotDer,
    /// The key may sign by RSASSA-PSS only (RFC 4055).
    #[error("public key is for RSA-PSS only, which DKIM does not use")]
    RsaPss,
    /// An elliptic-curve key for ECDSA.
    #[error("public key is an elliptic-curve key (ECDSA), which DKIM does not use")]
    EllipticCurve,
    /// An Ed25519 key under `k=rsa`.
    #[error(
        "public key is an Ed25519 key in DER, not RSA; Ed25519 belongs under k=ed25519, as its 32 octets alone"
    )]
    Ed25519AsRsa,
    /// Some other algorithm's key.
    #[error("public key is for algorithm {oid}, not RSA")]
    OtherAlgorithm {
        /// The algorithm's object identifier, in dots.
        oid: String,
    },
    /// The modulus is even or zero.
    #[error("RSA modulus is even, so it is no product of two primes")]
    ModulusEven,
    /// The modulus is longer than any use.
    #[error("RSA modulus has {bits} bits, more than {MAX_MODULUS_BITS}")]
    ModulusTooLong {
        /// Its length in bits.
        bits: u32,
    },
    /// The exponent is 0 or 1: every signature, or none, would verify.
    #[error("RSA public exponent is less than 3, so anybody can sign")]
    ExponentTooSmall,
    /// The exponent is even.
    #[error("RSA public exponent is even")]
    ExponentEven,
    /// The exponent is long enough to make verifying a burden.
    #[error("RSA public exponent has {bits} bits, more than {MAX_EXPONENT_BITS}")]
    ExponentTooLong {
        /// Its length in bits.
        bits: u32,
    },
    /// An Ed25519 key of another length.
    #[error("Ed25519 public key has {found} octets instead of 32")]
    Ed25519Length {
        /// How many there are.
        found: usize,
    },
    /// An Ed25519 key in SubjectPublicKeyInfo.
    #[error(
        "Ed25519 public key is wrapped in DER; RFC 8463 wants its 32 octets alone (the last 32)"
    )]
    Ed25519AsDer,
    /// An RSA or other key under `k=ed25519`.
    #[error("public key is not an Ed25519 key but another in DER")]
    RsaAsEd25519,
    /// The number is not below the field's prime (RFC 8032 section 5.1.3).
    #[error("Ed25519 public key is not a canonical number")]
    Ed25519NotCanonical,
    /// One of the eight points under which one signature fits many messages.
    #[error("Ed25519 public key is a point of small order, so anybody can sign")]
    Ed25519SmallOrder,
}

/// More than any engine checks; longer ones are not kept, so that a record cannot cost more than its own length.
const MAX_MODULUS_BITS: u32 = 16_384;

/// What AWS-LC and the rsa crate bear. Longer exponents serve only to make verifying slow.
const MAX_EXPONENT_BITS: u32 = 33;

/// RFC 4055 section 1.2.
pub(super) const OID_RSA_PSS: ObjectIdentifier =
    ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
/// RFC 5480 section 2.1.1.
pub(super) const OID_EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
/// RFC 8410 section 3.
pub(super) const OID_ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// 2^255 - 19, little-endian.
const FIELD_PRIME: [u8; 32] = {
    let mut prime = [0xff; 32];
    prime[0] = 0xed;
    prime[31] = 0x7f;
    prime
};

/// The y of the eight points whose order divides 8, little-endian, x's sign left out: the curve's cofactor is 8
/// (RFC 8032 section 5.1), so these and no others.
const SMALL_ORDER: [[u8; 32]; 5] = [
    // y = 1: order 1.
    {
        let mut one = [0; 32];
        one[0] = 1;
        one
    },
    // y = -1: order 2.
    {
        let mut minus_one = FIELD_PRIME;
        minus_one[0] -= 1;
        minus_one
    },
    // y = 0: order 4.
    [0; 32],
    // Order 8, and its negative.
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RSA: &[u8] = include_bytes!("../../tests/data/keys/rsa2048.record");
    const RSA_BARE: &[u8] = include_bytes!("../../tests/data/keys/rsa2048.bare.record");
    const ED25519: &[u8; 32] = include_bytes!("../../tests/data/keys/ed25519.record");
    const ED25519_SPKI: &[u8] = include_bytes!("../../tests/data/keys/ed25519.spki");

    #[test]
    fn both_structures_hold_the_same_rsa_key() {
        let key = PublicKey::from_record(KeyType::Rsa, RSA).unwrap();
        assert_eq!(
            PublicKey::from_record(KeyType::Rsa, RSA_BARE).as_ref(),
            Ok(&key)
        );
        assert_eq!((key.key_type(), key.bits()), (KeyType::Rsa, 2048));
        let PublicKey::Rsa { modulus, exponent } = &key else {
            panic!("{key:?}")
        };
        assert_eq!(exponent, &[1, 0, 1]);
        // RSAPublicKey: a header of four octets, another of four and a zero, the modulus, the exponent.
        assert_eq!(modulus, &RSA_BARE[9..9 + 256]);
        assert_eq!(key.to_record(), RSA, "written as openssl writes it");
    }

    #[test]
    fn ed25519_is_its_32_octets() {
        let key = PublicKey::from_record(KeyType::Ed25519, ED25519).unwrap();
        assert_eq!(key, PublicKey::Ed25519(*ED25519));
        assert_eq!((key.key_type(), key.bits()), (KeyType::Ed25519, 256));
        assert_eq!(key.to_record(), ED25519);
    }

    #[test]
    fn absent_parameters_are_borne() {
        assert_eq!(&RSA[..6], b"\x30\x82\x01\x22\x30\x0d");
        assert_eq!(&RSA[17..19], b"\x05\x00");
        let without = [b"\x30\x82\x01\x20\x30\x0b", &RSA[6..17], &RSA[19..]].concat();
        assert_eq!(
            PublicKey::from_record(KeyType::Rsa, &without),
            PublicKey::from_record(KeyType::Rsa, RSA)
        );
        let mut others = RSA.to_vec();
        others[17] = 0x04;
        assert_eq!(
            PublicKey::from_record(KeyType::Rsa, &others),
            Err(PublicKeyError::NotDer)
        );
    }

    #[test]
    fn what_is_no_rsa_key_is_named() {
        let nothing = PublicKey::from_record(KeyType::Rsa, b"");
        assert_eq!(nothing, Err(PublicKeyError::Empty));
        for (octets, error) in [
            (&RSA[..200], PublicKeyError::Truncated { missing: 94 }),
            (
                &[RSA, b"\0\0"].concat(),
                PublicKeyError::Trailing { extra: 2 },
            ),
            (b"no key at all", PublicKeyError::NotDer),
            (ED25519, PublicKeyError::NotDer),
            // A negative modulus, and one with a zero too many.
            (
                b"\x30\x07\x02\x02\x80\x01\x02\x01\x03",
                PublicKeyError::NotDer,
            ),
            (
                b"\x30\x08\x02\x03\x00\x00\x81\x02\x01\x03",
                PublicKeyError::NotDer,
            ),
            (
                b"\x30\x06\x02\x01\x0e\x02\x01\x03",
                PublicKeyError::ModulusEven,
            ),
            (
                b"\x30\x06\x02\x01\x0f\x02\x01\x01",
                PublicKeyError::ExponentTooSmall,
            ),
            (ED25519_SPKI, PublicKeyError::Ed25519AsRsa),
            (
                include_bytes!("../../tests/data/keys/rsa-pss.spki"),
                PublicKeyError::RsaPss,
            ),
            (
                include_bytes!("../../tests/data/keys/ec.spki"),
                PublicKeyError::EllipticCurve,
            ),
            (
                include_bytes!("../../tests/data/keys/ed448.spki"),
                PublicKeyError::OtherAlgorithm {
                    oid: "1.3.101.113".to_owned(),
                },
            ),
            (
                include_bytes!("../../tests/data/keys/certificate.der"),
                PublicKeyError::NotDer,
            ),
            (
                include_bytes!("../../tests/data/keys/rsa2048.pkcs1.der"),
                PublicKeyError::NotDer,
            ),
        ] {
            assert_eq!(
                PublicKey::from_record(KeyType::Rsa, octets),
                Err(error),
                "{octets:02x?}"
            );
        }
    }

    #[test]
    fn numbers_no_rsa_key_may_have_are_refused() {
        let longest = [&[0xff; 2047][..], &[0xff]].concat();
        let too_long = [&[1][..], &longest].concat();
        let three = &[3][..];
        for (modulus, exponent, error) in [
            (&b""[..], three, PublicKeyError::ModulusEven),
            (b"\0\0", three, PublicKeyError::ModulusEven),
            (b"\xff\xfe", three, PublicKeyError::ModulusEven),
            (
                &too_long,
                three,
                PublicKeyError::ModulusTooLong { bits: 16_385 },
            ),
            (b"\xff\xff", b"", PublicKeyError::ExponentTooSmall),
            (b"\xff\xff", b"\0", PublicKeyError::ExponentTooSmall),
            (b"\xff\xff", b"\0\x01", PublicKeyError::ExponentTooSmall),
            (b"\xff\xff", b"\x02", PublicKeyError::ExponentEven),
            (b"\xff\xff", b"\x01\0\0", PublicKeyError::ExponentEven),
            (
                b"\xff\xff",
                b"\x02\0\0\0\x01",
                PublicKeyError::ExponentTooLong { bits: 34 },
            ),
            (
                b"\xff\xff",
                &longest,
                PublicKeyError::ExponentTooLong { bits: 16_384 },
            ),
        ] {
            assert_eq!(
                PublicKey::from_rsa_numbers(modulus, exponent),
                Err(error),
                "{modulus:x?} {exponent:x?}"
            );
        }
        assert_eq!(
            PublicKey::from_rsa_numbers(&longest, b"\x01\0\0\0\x01")
                .unwrap()
                .bits(),
            16_384
        );
    }

    #[test]
    fn the_length_in_bits_is_exact() {
        for (modulus, bits) in [
            (&b"\x01"[..], 1),
            (b"\x7f\xff", 15),
            (b"\xff\xff", 16),
            (b"\0\0\x01\x01", 9),
        ] {
            assert_eq!(
                PublicKey::from_rsa_numbers(modulus, b"\x03")
                    .unwrap()
                    .bits(),
                bits,
                "{modulus:x?}"
            );
        }
    }

    #[test]
    fn what_is_no_ed25519_key_is_named() {
        for (octets, error) in [
            (&b""[..], PublicKeyError::Empty),
            (&ED25519[..31], PublicKeyError::Ed25519Length { found: 31 }),
            (
                &[&ED25519[..], b"\0"].concat(),
                PublicKeyError::Ed25519Length { found: 33 },
            ),
            (ED25519_SPKI, PublicKeyError::Ed25519AsDer),
            (RSA, PublicKeyError::RsaAsEd25519),
        ] {
            assert_eq!(
                PublicKey::from_record(KeyType::Ed25519, octets),
                Err(error),
                "{octets:02x?}"
            );
        }
    }

    #[test]
    fn points_of_small_order_are_refused_with_either_sign() {
        for mut point in SMALL_ORDER {
            for sign in [0, 0x80] {
                point[31] = point[31] & 0x7f | sign;
                assert_eq!(
                    PublicKey::from_record(KeyType::Ed25519, &point),
                    Err(PublicKeyError::Ed25519SmallOrder),
                    "{point:02x?}"
                );
            }
        }
    }

    #[test]
    fn numbers_from_the_prime_on_are_refused() {
        for low in 0xed..=0xff {
            for high in [0x7f, 0xff] {
                let mut number = [0xff; 32];
                (number[0], number[31]) = (low, high);
                assert_eq!(
                    PublicKey::from_record(KeyType::Ed25519, &number),
                    Err(PublicKeyError::Ed25519NotCanonical),
                    "{number:02x?}"
                );
            }
        }
        // The last below it that is of no small order.
        let mut number = FIELD_PRIME;
        number[0] -= 2;
        assert!(PublicKey::from_record(KeyType::Ed25519, &number).is_ok());
    }

    proptest! {
        #[test]
        fn numbers_survive_the_record(
            mut modulus in proptest::collection::vec(any::<u8>(), 1..600),
            exponent in 1_u32..0x8000_0000,
        ) {
            *modulus.last_mut().unwrap() |= 1;
            let exponent = (exponent * 2 + 1).to_be_bytes();
            let key = PublicKey::from_rsa_numbers(&modulus, &exponent).unwrap();
            prop_assert_eq!(PublicKey::from_record(KeyType::Rsa, &key.to_record()), Ok(key));
        }

        #[test]
        fn no_octets_cause_a_panic(octets in proptest::collection::vec(any::<u8>(), 0..80)) {
            for key_type in [KeyType::Rsa, KeyType::Ed25519] {
                let _ = PublicKey::from_record(key_type, &octets);
            }
        }

        #[test]
        fn no_change_of_a_key_causes_a_panic(at in 0..RSA.len(), octet: u8, cut in 0..RSA.len()) {
            let mut changed = RSA.to_vec();
            changed[at] = octet;
            let _ = PublicKey::from_record(KeyType::Rsa, &changed);
            prop_assert!(PublicKey::from_record(KeyType::Rsa, &changed[..cut]).is_err());
        }
    }
}
