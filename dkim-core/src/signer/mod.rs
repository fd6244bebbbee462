//! Signing (RFC 6376 section 5): header fields and body octets in, DKIM-Signature fields out.
//!
//! The signer has no keys. Once the body has passed it says what is [`to_sign`](Signer::to_sign), for any number of
//! signatures in one pass; each signature handed back becomes a field.

mod field_choice;

pub use field_choice::{DEFAULT_FIELDS, FieldChoice, FieldChoiceError};

use crate::body_digest::{BodyHash, ToDigest};
use crate::body_hashes::{BodyHashes, HashId};
use crate::canonicalization::{Canonicalization, append_field_without};
use crate::domain_name::{is_domain, is_query_name, is_within};
use crate::engine::KeyType;
use crate::field_selection::FieldIndex;
use crate::message::{HeaderField, HeaderFields};
use crate::signature::{FIELD_NAME, Identity, SignatureTemplate};
use std::sync::Arc;

/// One signature that is wanted.
#[derive(Clone, Debug)]
pub struct SignRequest {
    /// `d=`
    pub domain: String,
    /// `s=`
    pub selector: String,
    /// `a=`: the kind of key that will sign.
    pub key_type: KeyType,
    /// `i=`, left out if `None`.
    pub identity: Option<Identity>,
    /// `c=`
    pub canonicalization: Canonicalization,
    /// Which header fields are signed.
    pub fields: Arc<FieldChoice>,
    /// `t=`, seconds since 1970.
    pub timestamp: Option<u64>,
    /// `x=`, seconds since 1970.
    pub expiration: Option<u64>,
    /// `l=`; nobody needs it, and it lets others add to a message.
    pub body_length: BodyLength,
    /// Tags beyond those of RFC 6376, names and values.
    pub extra_tags: Vec<(String, String)>,
}

impl SignRequest {
    /// A request with safe defaults: `relaxed/relaxed`, the default fields, no `i=`, `t=`, `x=` or `l=`.
    pub fn new(domain: impl Into<String>, selector: impl Into<String>, key_type: KeyType) -> Self {
        Self::with_fields(domain, selector, key_type, Arc::default())
    }

    /// The same with a choice of fields, which is dearer to make than all the rest and best made once.
    pub fn with_fields(
        domain: impl Into<String>,
        selector: impl Into<String>,
        key_type: KeyType,
        fields: Arc<FieldChoice>,
    ) -> Self {
        Self {
            domain: domain.into(),
            selector: selector.into(),
            key_type,
            identity: None,
            canonicalization: Canonicalization::RELAXED,
            fields,
            timestamp: None,
            expiration: None,
            body_length: BodyLength::default(),
            extra_tags: Vec::new(),
        }
    }
}

/// How much of the body is signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// All of it, without `l=`, so that nothing can be added.
    #[default]
    Unlimited,
    /// All of it, with its length in `l=`, so that anything can be added.
    Whole,
    /// At most so many octets of its canonical form, with `l=`.
    AtMost(u64),
}

/// The signing of one message.
#[derive(Debug)]
pub struct Signer {
    hashes: BodyHashes,
    /// Of the header.
    fields: FieldIndex,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    request: SignRequest,
    /// Which of the request's names `h=` has.
    fields: Vec<usize>,
    body_hash: HashId,
    /// The field's value up to `b=`, once it is known.
    unsigned: String,
}

/// What a key is to sign.
#[derive(Debug)]
pub struct ToSign {
    /// The place of the request.
    pub request: usize,
    /// The octets, for [`SigningKey::sign`](crate::engine::SigningKey::sign).
    pub octets: Vec<u8>,
}

impl Signer {
    /// Starts on a complete header.
    ///
    /// # Errors
    /// A message or a request that must not be signed.
    pub fn new(header: &HeaderFields, requests: Vec<SignRequest>) -> Result<Self, SignerError> {
        match header.named("From").count() {
            0 => return Err(SignerError::NoFrom),
            1 => (),
            count => return Err(SignerError::SeveralFrom { count }),
        }
        let mut hashes = BodyHashes::default();
        let fields = FieldIndex::new(header);
        let items = requests.into_iter().map(|request| {
            check_request(&request)?;
            let limit = match request.body_length {
                BodyLength::AtMost(octets) => Some(octets),
                BodyLength::Unlimited | BodyLength::Whole => None,
            };
            Ok(Item {
                fields: request.fields.choose(header, &fields),
                body_hash: hashes.add(request.canonicalization.body, limit),
                unsigned: String::new(),
                request,
            })
        });
        let items = items.collect::<Result<_, SignerError>>()?;
        Ok(Self {
            hashes,
            fields,
            items,
        })
    }

    /// Takes the next octets of the body.
    pub fn body(&mut self, chunk: &[u8]) {
        self.hashes.update(chunk);
    }

    /// Ends the body and gives what is to be signed, one piece per request, in order. `header` is the one given to
    /// [`new`](Self::new).
    pub fn to_sign(&mut self, header: &HeaderFields) -> Vec<ToSign> {
        let hashes = std::mem::take(&mut self.hashes).finish();
        self.pieces(header, |id| Some(hashes.get(id)))
    }

    /// The body hashes that are wanted, for who makes them elsewhere: the body is then not fed here, and they are given to
    /// [`to_sign_with`](Self::to_sign_with).
    pub fn to_digest(&self) -> Vec<ToDigest> {
        self.hashes.wanted()
    }

    /// Like [`to_sign`](Self::to_sign), with the hashes of [`to_digest`](Self::to_digest), in its order. Requests whose
    /// hash is missing are left out.
    pub fn to_sign_with(&mut self, header: &HeaderFields, hashes: &[BodyHash]) -> Vec<ToSign> {
        let wanted = std::mem::take(&mut self.hashes);
        self.pieces(header, |id| hashes.get(wanted.place(id)).copied())
    }

    /// What is to be signed where `hash_of` gives the body hash.
    fn pieces(
        &mut self,
        header: &HeaderFields,
        hash_of: impl Fn(HashId) -> Option<BodyHash>,
    ) -> Vec<ToSign> {
        let fields = &self.fields;
        let mut field = Vec::new();
        let items = self.items.iter_mut().enumerate();
        items
            .filter_map(|(request, item)| {
                let hash = hash_of(item.body_hash)?;
                let choice = &item.request.fields;
                let names: Vec<&str> = item
                    .fields
                    .iter()
                    .map(|&place| choice.name(place))
                    .collect();
                let template = item.template(&names, &hash.digest, hash.body_octets);
                let unsigned = template.to_value();
                field.clear();
                field.reserve(FIELD_NAME.len() + 1 + unsigned.len());
                field.extend_from_slice(FIELD_NAME.as_bytes());
                field.push(b':');
                field.extend_from_slice(unsigned.as_bytes());
                let algorithm = item.request.canonicalization.header;
                let names = names.iter().map(|name| name.as_bytes());
                let mut octets = Vec::with_capacity(2048);
                fields.append_selected(&mut octets, header, None, names, algorithm);
                let field = HeaderField::from_octets(&field);
                let end = field.value().len();
                append_field_without(&mut octets, field, algorithm, end..end);
                item.unsigned = unsigned;
                Some(ToSign { request, octets })
            })
            .collect()
    }

    /// The value of the DKIM-Signature field that holds `signature`: what follows the colon, folds as CRLF HTAB.
    ///
    /// The octets in [`ToSign`] were made for exactly this field. Fields go on top of the message.
    pub fn field_value(&self, request: usize, signature: &[u8]) -> Option<String> {
        let item = self.items.get(request)?;
        Some(SignatureTemplate::with_signature(&item.unsigned, signature))
    }
}

impl Item {
    fn template<'a>(
        &'a self,
        header_names: &'a [&'a str],
        body_hash: &'a [u8],
        body_octets: u64,
    ) -> SignatureTemplate<'a> {
        SignatureTemplate {
            key_type: self.request.key_type,
            canonicalization: self.request.canonicalization,
            domain: &self.request.domain,
            selector: &self.request.selector,
            identity: self.request.identity.as_ref(),
            timestamp: self.request.timestamp,
            expiration: self.request.expiration,
            body_length: match self.request.body_length {
                BodyLength::Unlimited => None,
                BodyLength::Whole => Some(body_octets),
                BodyLength::AtMost(octets) => Some(octets.min(body_octets)),
            },
            extra_tags: &self.request.extra_tags,
            header_names,
            body_hash,
        }
    }
}

/// Why a message is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Nobody says who the author is.
    #[error("message has no From field")]
    NoFrom,
    /// Several fields say who the author is.
    #[error("message has {count} From fields")]
    SeveralFrom {
        /// How many.
        count: usize,
    },
    /// `d=` cannot be asked for in the DNS.
    #[error("signing domain {0:?} is not a domain name")]
    Domain(String),
    /// `s=` cannot be asked for in the DNS.
    #[error("selector {0:?} is not a name, or too long with its domain")]
    Selector(String),
    /// `i=` is not within `d=`.
    #[error("identity's domain {identity:?} is not within the signing domain {domain:?}")]
    IdentityOutsideDomain {
        /// The domain of `i=`.
        identity: String,
        /// `d=`.
        domain: String,
    },
    /// An extra tag has no good name or value, or one that RFC 6376 defines.
    #[error(
        "tag {0}= cannot be added: it has a meaning, stands twice, or is not of the form of a tag"
    )]
    Tag(String),
    /// `x=` is not after `t=`.
    #[error("signature would expire before it is made")]
    ExpiresBeforeSigned,
}

fn check_request(request: &SignRequest) -> Result<(), SignerError> {
    let (domain, selector) = (&request.domain, &request.selector);
    if !is_domain(domain.as_bytes()) {
        return Err(SignerError::Domain(domain.clone()));
    }
    if !is_query_name(selector.as_bytes(), domain.as_bytes()) {
        return Err(SignerError::Selector(selector.clone()));
    }
    if let Some(identity) = &request.identity
        && !(is_domain(identity.domain.as_bytes())
            && is_within(identity.domain.as_bytes(), domain.as_bytes()))
    {
        return Err(SignerError::IdentityOutsideDomain {
            identity: identity.domain.clone(),
            domain: domain.clone(),
        });
    }
    if let (Some(t), Some(x)) = (request.timestamp, request.expiration)
        && x <= t
    {
        return Err(SignerError::ExpiresBeforeSigned);
    }
    let tags = &request.extra_tags;
    for (place, (name, value)) in tags.iter().enumerate() {
        let is_known = KNOWN_TAGS.contains(&name.as_str())
            || tags[..place].iter().any(|(earlier, _)| earlier == name);
        if is_known || !is_tag(name, value) {
            return Err(SignerError::Tag(name.clone()));
        }
    }
    Ok(())
}

/// The tags that the signer writes itself, and `q=` and `z=`, whose meaning RFC 6376 section 3.5 fixes.
const KNOWN_TAGS: [&str; 14] = [
    "v", "a", "b", "bh", "c", "d", "h", "i", "l", "q", "s", "t", "x", "z",
];

fn is_tag(name: &str, value: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|o| o.is_ascii_alphanumeric() || o == b'_')
        && value.bytes().all(|o| o.is_ascii_graphic() && o != b';')
        && name.len() + value.len() < 900
}
