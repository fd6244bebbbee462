//! Private keys as they lie in files and tables: PEM, DER, base64 of DER, and Ed25519 seeds.
//!
//! The form is told from the octets; forms that DKIM cannot use are named. Whether the numbers belong together is for
//! the engine to prove when it makes the key ready. Secrets are kept in memory that is zeroized on drop and never shown
//! by `Debug` or in an error; the caller's own copy of the file is the caller's to wipe.

use super::der::{SequenceFault, elements};
use super::public_key::{OID_EC, OID_ED25519, OID_RSA_PSS};
use super::{KeyType, PublicKey, PublicKeyError, pem};
use pkcs1::RsaPrivateKeyRef;
use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::asn1::OctetStringRef;
use pkcs8::der::pem::LineEnding;
use pkcs8::der::{Decode, SecretDocument, Tag};
use pkcs8::spki::AlgorithmIdentifierRef;
use std::fmt;
use zeroize::Zeroizing;

/// A private key, read and not yet used; an [`Engine`](super::Engine) makes it a
/// [`SigningKey`](super::SigningKey), which also knows the public half.
pub struct PrivateKey(Secret);

/// What an engine makes its own key from.
pub(super) enum Secret {
    Rsa {
        /// RSAPrivateKey in DER (RFC 8017 appendix A.1.2), two primes.
        der: Zeroizing<Vec<u8>>,
        /// Its modulus and public exponent.
        public: PublicKey,
    },
    Ed25519 {
        /// RFC 8032 section 5.1.5.
        seed: Zeroizing<[u8; 32]>,
        /// The public half where the file brings one (RFC 8410 section 7): not yet compared with the seed.
        public: Option<[u8; 32]>,
    },
}

impl PrivateKey {
    /// Reads a private key from a file's or a table value's octets, which may be
    ///
    /// - PEM with PKCS#1 (`RSA PRIVATE KEY`) or PKCS#8 (`PRIVATE KEY`, RSA or Ed25519, versions 1 and 2): the first
    ///   such block counts; text around it, white space and the kind of line ends do not;
    /// - the DER that PEM would hold, or its base64, as OpenDKIM takes keys in a table;
    /// - an Ed25519 seed: its 32 octets, or their base64.
    ///
    /// Linear in `octets`, up to [`MAX_KEY_OCTETS`].
    ///
    /// # Errors
    /// What the octets are instead, or where they are damaged; no error shows any of them but a PEM label.
    pub fn from_octets(octets: &[u8]) -> Result<Self, PrivateKeyError> {
        if octets.len() > MAX_KEY_OCTETS {
            return Err(PrivateKeyError::TooLong {
                found: octets.len(),
            });
        }
        if octets.trim_ascii().is_empty() {
            return Err(PrivateKeyError::Empty);
        }
        if pem::is_pem(octets) {
            return from_pem(octets);
        }
        let is_text = octets
            .iter()
            .all(|o| o.is_ascii_graphic() || o.is_ascii_whitespace());
        if is_text {
            return from_base64(octets);
        }
        match <[u8; 32]>::try_from(octets) {
            Ok(seed) => Ok(Self::from_seed(Zeroizing::new(seed), None)),
            Err(_) => from_der(octets),
        }
    }

    /// What kind of key it is.
    pub fn key_type(&self) -> KeyType {
        match self.0 {
            Secret::Rsa { .. } => KeyType::Rsa,
            Secret::Ed25519 { .. } => KeyType::Ed25519,
        }
    }

    /// Its size in bits: the modulus' length, or 256.
    pub fn bits(&self) -> u32 {
        match &self.0 {
            Secret::Rsa { public, .. } => public.bits(),
            Secret::Ed25519 { .. } => 256,
        }
    }

    /// The key as `PRIVATE KEY` in PEM (RFC 5958, RFC 8410), with LF line ends.
    pub fn to_pkcs8_pem(&self) -> Zeroizing<String> {
        self.pkcs8()
            .and_then(|document| Ok(document.to_pem("PRIVATE KEY", LineEnding::LF)?))
            // Fails for keys beyond 256 MiB only, and this one came from at most MAX_KEY_OCTETS.
            .expect("a key of bounded size has a PEM form")
    }

    fn pkcs8(&self) -> pkcs8::Result<SecretDocument> {
        match &self.0 {
            Secret::Rsa { der, .. } => {
                PrivateKeyInfoRef::new(pkcs1::ALGORITHM_ID, OctetStringRef::new(der)?).try_into()
            }
            Secret::Ed25519 { seed, .. } => {
                // CurvePrivateKey, an OCTET STRING inside the OCTET STRING (RFC 8410 section 7).
                let mut wrapped = Zeroizing::new([0; 34]);
                wrapped[..2].copy_from_slice(&[0x04, 32]);
                wrapped[2..].copy_from_slice(&seed[..]);
                PrivateKeyInfoRef::new(ED25519_ALGORITHM, OctetStringRef::new(&wrapped[..])?)
                    .try_into()
            }
        }
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.0
    }

    fn from_seed(seed: Zeroizing<[u8; 32]>, public: Option<[u8; 32]>) -> Self {
        Self(Secret::Ed25519 { seed, public })
    }
}

impl fmt::Debug for PrivateKey {
    /// Kind and size, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey")
            .field("key_type", &self.key_type())
            .field("bits", &self.bits())
            .finish_non_exhaustive()
    }
}

fn from_pem(octets: &[u8]) -> Result<PrivateKey, PrivateKeyError> {
    let mut unusable: Option<&str> = None;
    for block in pem::blocks(octets) {
        let block = block?;
        let form = match block.label {
            "RSA PRIVATE KEY" => Form::Pkcs1,
            "PRIVATE KEY" => Form::Pkcs8,
            label => {
                // A private key tells more about what went wrong than the certificate beside it.
                let tells_more =
                    |kept: &str| label.contains("PRIVATE") && !kept.contains("PRIVATE");
                if unusable.is_none_or(tells_more) {
                    unusable = Some(label);
                }
                continue;
            }
        };
        let der = block.decode()?;
        return match form_of(&der)? {
            found if found == form => read_form(found, &der),
            found => Err(PrivateKeyError::LabelMismatch {
                label: form.pem_label(),
                found: found.name(),
            }),
        };
    }
    Err(unusable.map_or(PrivateKeyError::NotAKey, label_error))
}

fn label_error(label: &str) -> PrivateKeyError {
    match label {
        "ENCRYPTED PRIVATE KEY" => PrivateKeyError::Encrypted,
        "OPENSSH PRIVATE KEY" => PrivateKeyError::OpenSsh,
        "EC PRIVATE KEY" | "EC PARAMETERS" => PrivateKeyError::EllipticCurve,
        "PUBLIC KEY" | "RSA PUBLIC KEY" => PrivateKeyError::Public,
        "CERTIFICATE" | "TRUSTED CERTIFICATE" | "X509 CERTIFICATE" | "CERTIFICATE REQUEST" => {
            PrivateKeyError::Certificate
        }
        other => PrivateKeyError::OtherLabel {
            label: other.to_owned(),
        },
    }
}

fn from_base64(octets: &[u8]) -> Result<PrivateKey, PrivateKeyError> {
    let decoded = pem::decode_base64(octets).map_err(|_| {
        // The base64 of a SEQUENCE of that length begins so.
        if octets.trim_ascii_start().starts_with(b"MI") {
            PrivateKeyError::CutBase64
        } else {
            PrivateKeyError::NotAKey
        }
    })?;
    match <[u8; 32]>::try_from(&decoded[..]) {
        Ok(seed) => Ok(PrivateKey::from_seed(Zeroizing::new(seed), None)),
        Err(_) => from_der(&decoded),
    }
}

fn from_der(der: &[u8]) -> Result<PrivateKey, PrivateKeyError> {
    match form_of(der)? {
        Form::Pkcs1 => read_form(Form::Pkcs1, der),
        Form::Pkcs8 => read_form(Form::Pkcs8, der),
        Form::Encrypted => Err(PrivateKeyError::Encrypted),
        Form::Sec1 => Err(PrivateKeyError::EllipticCurve),
        Form::Public => Err(PrivateKeyError::Public),
        Form::Certificate => Err(PrivateKeyError::Certificate),
        Form::Pkcs12 => Err(PrivateKeyError::Pkcs12),
    }
}

/// The structures that are told apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Pkcs1,
    Pkcs8,
    Encrypted,
    Sec1,
    Public,
    Certificate,
    Pkcs12,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Pkcs1 => "a PKCS#1 key (\"RSA PRIVATE KEY\")",
            Self::Pkcs8 => "a PKCS#8 key (\"PRIVATE KEY\")",
            Self::Encrypted => "an encrypted key (\"ENCRYPTED PRIVATE KEY\")",
            Self::Sec1 => "an elliptic-curve key (\"EC PRIVATE KEY\")",
            Self::Public => "a public key",
            Self::Certificate => "a certificate or a request for one",
            Self::Pkcs12 => "a PKCS#12 store",
        }
    }

    /// The label of the two forms that are read.
    fn pem_label(self) -> &'static str {
        if self == Self::Pkcs1 {
            "RSA PRIVATE KEY"
        } else {
            "PRIVATE KEY"
        }
    }
}

/// Tells a structure by the kinds of its outermost elements.
fn form_of(der: &[u8]) -> Result<Form, PrivateKeyError> {
    let elements = elements(der).map_err(|fault| match fault {
        SequenceFault::NotSequence => PrivateKeyError::NotAKey,
        SequenceFault::Truncated { missing } => PrivateKeyError::Truncated { missing },
        SequenceFault::Trailing { extra } => PrivateKeyError::Trailing { extra },
        SequenceFault::Damaged => PrivateKeyError::Damaged,
    })?;
    let tags: Vec<Tag> = elements.iter().map(|e| e.header().tag()).collect();
    match tags[..] {
        [Tag::Integer, Tag::Sequence, Tag::OctetString, ..] => Ok(Form::Pkcs8),
        [Tag::Integer, Tag::Sequence, ..] => Ok(Form::Pkcs12),
        [Tag::Integer, Tag::Integer] | [Tag::Sequence, Tag::BitString] => Ok(Form::Public),
        // Nine numbers, and more primes where there are more.
        [Tag::Integer, Tag::Integer, ..] if tags.len() >= 9 => Ok(Form::Pkcs1),
        [Tag::Integer, Tag::OctetString, ..] => Ok(Form::Sec1),
        [Tag::Sequence, Tag::OctetString] => Ok(Form::Encrypted),
        [Tag::Sequence, Tag::Sequence, Tag::BitString] => Ok(Form::Certificate),
        _ => Err(PrivateKeyError::NotAKey),
    }
}

/// Reads one of the two forms a private key may have.
fn read_form(form: Form, der: &[u8]) -> Result<PrivateKey, PrivateKeyError> {
    if form == Form::Pkcs1 {
        return read_pkcs1(der);
    }
    let info = PrivateKeyInfoRef::from_der(der).map_err(|_| PrivateKeyError::Damaged)?;
    match info.algorithm.oid {
        pkcs1::ALGORITHM_OID => read_pkcs1(info.private_key.as_bytes()),
        OID_ED25519 => {
            let seed = <&OctetStringRef>::from_der(info.private_key.as_bytes())
                .ok()
                .and_then(|inner| <[u8; 32]>::try_from(inner.as_bytes()).ok())
                .map(Zeroizing::new)
                .ok_or(PrivateKeyError::Damaged)?;
            let public = match info.public_key {
                None => None,
                Some(bits) => Some(
                    bits.as_bytes()
                        .and_then(|octets| octets.try_into().ok())
                        .ok_or(PrivateKeyError::Damaged)?,
                ),
            };
            Ok(PrivateKey::from_seed(seed, public))
        }
        OID_RSA_PSS => Err(PrivateKeyError::RsaPss),
        OID_EC => Err(PrivateKeyError::EllipticCurve),
        other => Err(PrivateKeyError::OtherAlgorithm {
            oid: other.to_string(),
        }),
    }
}

fn read_pkcs1(der: &[u8]) -> Result<PrivateKey, PrivateKeyError> {
    let key = RsaPrivateKeyRef::from_der(der).map_err(|_| PrivateKeyError::Damaged)?;
    if key.other_prime_infos.is_some() {
        return Err(PrivateKeyError::MultiPrime);
    }
    let public =
        PublicKey::from_rsa_numbers(key.modulus.as_bytes(), key.public_exponent.as_bytes())?;
    Ok(PrivateKey(Secret::Rsa {
        der: Zeroizing::new(der.to_vec()),
        public,
    }))
}

/// Why octets are no private key that DKIM can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivateKeyError {
    /// Nothing, or white space only.
    #[error("private key is empty")]
    Empty,
    /// More than any key.
    #[error("{found} octets are too many for a private key (at most {MAX_KEY_OCTETS})")]
    TooLong {
        /// How many there are.
        found: usize,
    },
    /// None of the forms.
    #[error(
        "not a private key: neither PEM nor DER nor the base64 of DER, nor an Ed25519 seed of 32 octets"
    )]
    NotAKey,
    /// A `BEGIN` line that does not end as it should.
    #[error("line {line}: \"-----BEGIN\" without a label and \"-----\" behind it")]
    BadLabel {
        /// Line of the file, from 1.
        line: usize,
    },
    /// No `END` line.
    #[error(
        "line {line}: \"-----BEGIN {label}-----\" without \"-----END {label}-----\" after it; is the file cut off?"
    )]
    NoEnd {
        /// What stands in the `BEGIN` line.
        label: String,
        /// Line of the file, from 1.
        line: usize,
    },
    /// Something else inside a PEM block.
    #[error("line {line}: not base64")]
    BadBase64 {
        /// Line of the file, from 1.
        line: usize,
    },
    /// Base64 of an impossible length, or with padding inside.
    #[error("base64 of the private key is cut off or damaged")]
    CutBase64,
    /// The DER goes on behind the last octet.
    #[error("private key is cut off: {missing} octets are missing at its end")]
    Truncated {
        /// How many octets are missing.
        missing: u32,
    },
    /// The DER ends before the last octet.
    #[error("private key has {extra} octets too many at its end")]
    Trailing {
        /// How many octets are too many.
        extra: u32,
    },
    /// The outside is that of a key, the inside is not.
    #[error("private key is damaged: its DER cannot be read")]
    Damaged,
    /// The PEM label says one form, the octets are another.
    #[error("labelled \"{label}\", but {found} is inside")]
    LabelMismatch {
        /// The label.
        label: &'static str,
        /// What the octets are.
        found: &'static str,
    },
    /// A key under a passphrase.
    #[error(
        "private key is encrypted; there is nobody to ask for a passphrase, so store it without (openssl pkey)"
    )]
    Encrypted,
    /// A public key.
    #[error("this is a public key; the private one is needed to sign")]
    Public,
    /// A certificate, or a request for one.
    #[error("this is a certificate or a request for one; the private key is needed to sign")]
    Certificate,
    /// A key for ECDSA.
    #[error(
        "this is an elliptic-curve key (ECDSA), which DKIM does not use; it takes RSA or Ed25519"
    )]
    EllipticCurve,
    /// OpenSSH's own form.
    #[error(
        "this is a private key in OpenSSH's own form; turn it into PEM (ssh-keygen -p -m PKCS8)"
    )]
    OpenSsh,
    /// A PKCS#12 store.
    #[error("this is a PKCS#12 store; take the key out of it (openssl pkcs12 -nodes -nocerts)")]
    Pkcs12,
    /// The key may sign by RSASSA-PSS only (RFC 4055).
    #[error("this key is for RSA-PSS only, which DKIM does not use")]
    RsaPss,
    /// More than two primes (RFC 8017 section 3.2).
    #[error("this RSA key has more than two primes, which no engine takes")]
    MultiPrime,
    /// Some other PEM.
    #[error("PEM holds \"{label}\", not a private key for RSA or Ed25519")]
    OtherLabel {
        /// What stands in the `BEGIN` line.
        label: String,
    },
    /// A PKCS#8 key for some other algorithm.
    #[error("private key is for algorithm {oid}; DKIM takes RSA or Ed25519")]
    OtherAlgorithm {
        /// The algorithm's object identifier, in dots.
        oid: String,
    },
    /// The public numbers inside are impossible.
    #[error("private key is damaged: {0}")]
    Numbers(#[from] PublicKeyError),
}

/// Far more than a key of 16384 bits printed by `openssl rsa -text` needs.
pub const MAX_KEY_OCTETS: usize = 128 * 1024;

/// RFC 8410 section 3: no parameters.
const ED25519_ALGORITHM: AlgorithmIdentifierRef<'static> = AlgorithmIdentifierRef {
    oid: OID_ED25519,
    parameters: None,
};

#[cfg(test)]
mod tests;
