//! One private key in a token: found by its URI and by nothing else, looked at once, and signed with.
//!
//! The digest is taken here and the token gets a DigestInfo (RFC 8017 section 9.2, note 1): tokens that hash truncate long
//! input, or refuse it, or need the octets sent to them. Tokens that insist on hashing get the octets to be signed, which
//! are the header's and never the body's. Sessions, logins and what to do when a call fails are for `token` and `worker`.

use cryptoki::context::Pkcs11;
use cryptoki::error::Error;
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{
    Attribute, AttributeType, KeyType as TokenKeyType, ObjectClass, ObjectHandle,
};
use cryptoki::session::Session;
use cryptoki::slot::Slot;
use dkim_core::engine::{KeyType, PublicKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Fault;
use crate::uri::{MechanismChoice, TokenFacts, Uri};

/// What there is to know of a private key in a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFacts {
    /// Its URI, complete enough to name it alone.
    pub uri: String,
    /// The token it is in.
    pub token: TokenFacts,
    /// CKA_LABEL.
    pub label: Vec<u8>,
    /// CKA_ID.
    pub id: Vec<u8>,
    /// Its public half, if it is of a kind that DKIM knows and the token tells.
    pub public: Option<Public>,
    /// What it is instead, if it is of a kind that DKIM does not know: `EC`.
    pub other_kind: Option<String>,
    /// CKA_SIGN, if the token tells.
    pub can_sign: Option<bool>,
    /// CKA_EXTRACTABLE, if the token tells.
    pub extractable: Option<bool>,
    /// CKA_ALWAYS_AUTHENTICATE: the PIN is wanted for each signature.
    pub always_authenticate: bool,
    /// How the token is asked to sign; `None` if it cannot be.
    pub method: Option<Method>,
}

impl KeyFacts {
    /// What kind of key it is and how it signs, in a few words.
    pub fn summary(&self) -> String {
        let kind = match self.public.as_ref().and_then(Public::key) {
            Some(key) if key.key_type() == KeyType::Rsa => format!("RSA of {} bits", key.bits()),
            Some(_) => "Ed25519".to_owned(),
            None => match &self.other_kind {
                Some(kind) => format!("{kind} key, which is not for mail"),
                None => "a key whose public half is not told".to_owned(),
            },
        };
        match self.method {
            Some(method) => format!("{kind}, by {}", method.mechanism()),
            None => format!("{kind}, which the token does not sign with"),
        }
    }
}

/// A public key, as it crosses from one process to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Public {
    is_rsa: bool,
    /// What belongs into `p=`.
    record: Vec<u8>,
}

impl Public {
    pub(crate) fn of(key: &PublicKey) -> Self {
        Self {
            is_rsa: key.key_type() == KeyType::Rsa,
            record: key.to_record(),
        }
    }

    /// The key, unless the other process made it up.
    pub fn key(&self) -> Option<PublicKey> {
        let key_type = if self.is_rsa {
            KeyType::Rsa
        } else {
            KeyType::Ed25519
        };
        PublicKey::from_record(key_type, &self.record).ok()
    }
}

/// How a token is asked to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// CKM_RSA_PKCS over the DigestInfo.
    RsaPkcs,
    /// CKM_SHA256_RSA_PKCS: the token hashes the header.
    Sha256RsaPkcs,
    /// The same in several calls, with the PIN in between: the way for CKA_ALWAYS_AUTHENTICATE.
    Sha256RsaPkcsWithPin,
    /// CKM_EDDSA over the digest (RFC 8463 section 3).
    Eddsa,
    /// The same for CKA_ALWAYS_AUTHENTICATE.
    EddsaWithPin,
}

impl Method {
    /// Its mechanism's name in the standard.
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::RsaPkcs => "CKM_RSA_PKCS",
            Self::Sha256RsaPkcs | Self::Sha256RsaPkcsWithPin => "CKM_SHA256_RSA_PKCS",
            Self::Eddsa | Self::EddsaWithPin => "CKM_EDDSA",
        }
    }
}

/// The one private key in `session`'s token that `uri` names.
pub(crate) fn find(
    session: &Session,
    uri: &Uri,
    token: &TokenFacts,
) -> Result<ObjectHandle, Failed> {
    let mut found = matching(session, uri, ObjectClass::PRIVATE_KEY)?;
    match (found.pop(), found.len()) {
        (Some(key), 0) => Ok(key),
        (Some(last), _) => {
            found.push(last);
            Err(Failed::Fault(Fault::ManyKeys {
                wanted: uri.to_string(),
                keys: uris(session, &found, token)?,
            }))
        }
        (None, _) => {
            let mut other = None;
            for (class, name) in [
                (ObjectClass::CERTIFICATE, "a certificate"),
                (ObjectClass::PUBLIC_KEY, "a public key"),
            ] {
                if other.is_none() && !matching(session, uri, class)?.is_empty() {
                    other = Some(name.to_owned());
                }
            }
            let all = session.find_objects(&[Attribute::Class(ObjectClass::PRIVATE_KEY)])?;
            Err(Failed::Fault(Fault::NoKey {
                wanted: uri.to_string(),
                other,
                keys: uris(session, &all, token)?,
            }))
        }
    }
}

/// Every private key that `session` shows.
pub(crate) fn find_all(session: &Session) -> Result<Vec<ObjectHandle>, Error> {
    session.find_objects(&[Attribute::Class(ObjectClass::PRIVATE_KEY)])
}

fn matching(session: &Session, uri: &Uri, class: ObjectClass) -> Result<Vec<ObjectHandle>, Error> {
    let mut template = vec![Attribute::Class(class)];
    template.extend(uri.object.clone().map(Attribute::Label));
    template.extend(uri.id.clone().map(Attribute::Id));
    session.find_objects(&template)
}

fn uris(
    session: &Session,
    keys: &[ObjectHandle],
    token: &TokenFacts,
) -> Result<Vec<String>, Error> {
    let mut uris = Vec::new();
    for key in keys.iter().take(MOST_LISTED) {
        let (label, id) = names(session, *key)?;
        uris.push(Uri::of_key(token, &label, &id, None).to_string());
    }
    Ok(uris)
}

fn names(session: &Session, key: ObjectHandle) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let (mut label, mut id) = (Vec::new(), Vec::new());
    for attribute in session.get_attributes(key, &[AttributeType::Label, AttributeType::Id])? {
        match attribute {
            Attribute::Label(octets) => label = octets,
            Attribute::Id(octets) => id = octets,
            _ => {}
        }
    }
    Ok((label, id))
}

/// Looks at `key`, which is in the token in `slot`.
pub(crate) fn facts(
    context: &Pkcs11,
    slot: Slot,
    session: &Session,
    key: ObjectHandle,
    token: &TokenFacts,
    choice: MechanismChoice,
) -> Result<KeyFacts, Error> {
    let (label, id) = names(session, key)?;
    let mut seen = Seen::default();
    seen.look(session, key)?;
    if seen.public().is_none() && !id.is_empty() {
        // Some tokens tell the numbers of the public key only.
        let template = [
            Attribute::Class(ObjectClass::PUBLIC_KEY),
            Attribute::Id(id.clone()),
        ];
        if let [public] = session.find_objects(&template)?[..] {
            seen.look_at_public(session, public)?;
        }
    }
    let public = seen.public();
    let method = match seen.kind {
        Some(TokenKeyType::RSA) => rsa_method(context, slot, &seen, choice),
        Some(TokenKeyType::EC_EDWARDS) => {
            let has_it = can_sign_with(context, slot, MechanismType::EDDSA).is_some();
            match seen.always_authenticate {
                _ if !has_it => None,
                true => Some(Method::EddsaWithPin),
                false => Some(Method::Eddsa),
            }
        }
        _ => None,
    };
    Ok(KeyFacts {
        uri: Uri::of_key(token, &label, &id, None).to_string(),
        token: token.clone(),
        label,
        id,
        public: public.as_ref().map(Public::of),
        other_kind: seen.kind.and_then(other_kind),
        can_sign: seen.sign,
        extractable: seen.extractable,
        always_authenticate: seen.always_authenticate,
        method,
    })
}

/// Why `facts` are not those of a key to sign mail with; what is only odd about it, if they are.
pub(crate) fn check(facts: &KeyFacts) -> Result<(PublicKey, Method, Vec<String>), Fault> {
    let unfit = |reason: String| Fault::Unfit {
        key: facts.uri.clone(),
        reason,
    };
    if let Some(kind) = &facts.other_kind {
        return Err(unfit(format!(
            "{kind} key, RSA or Ed25519 wanted: mail is signed with no other (RFC 6376, RFC 8463)"
        )));
    }
    let public = facts.public.as_ref().and_then(Public::key).ok_or_else(|| {
        unfit(
            "the token does not tell the key's public half, or it is none of RSA or Ed25519; put the public key beside \
             it, with the same id"
                .to_owned(),
        )
    })?;
    let bits = public.bits();
    match public.key_type() {
        KeyType::Rsa if bits < SHORTEST => {
            return Err(unfit(format!(
                "RSA key of {bits} bits is too short: at least {SHORTEST} are needed (RFC 8301 section 3.2), and {RECOMMENDED} should be used"
            )));
        }
        KeyType::Rsa if bits > LONGEST => {
            return Err(unfit(format!(
                "RSA key of {bits} bits is too long: at most {LONGEST} are signed with"
            )));
        }
        _ => {}
    }
    if facts.can_sign == Some(false) {
        return Err(unfit(
            "may not sign: its CKA_SIGN is false; make a key with that usage".to_owned(),
        ));
    }
    let Some(method) = facts.method else {
        return Err(unfit(match (public.key_type(), facts.always_authenticate) {
            (KeyType::Rsa, false) => format!(
                "the token signs neither by CKM_RSA_PKCS nor by CKM_SHA256_RSA_PKCS with {bits} bits, or not by the one that x-mechanism asks for"
            ),
            (KeyType::Rsa, true) => "the key wants its PIN for each signature (CKA_ALWAYS_AUTHENTICATE), for which the \
                 token needs CKM_SHA256_RSA_PKCS, and it has not"
                .to_owned(),
            (KeyType::Ed25519, _) => "the token has an Ed25519 key but no CKM_EDDSA".to_owned(),
        }));
    };
    let mut notes = Vec::new();
    if public.key_type() == KeyType::Rsa && bits < RECOMMENDED {
        notes.push(format!(
            "{}: RSA key of {bits} bits; {RECOMMENDED} should be used (RFC 8301 section 3.2)",
            facts.uri
        ));
    }
    if facts.extractable == Some(true) {
        notes.push(format!(
            "{}: the token lets this key be copied out of it (CKA_EXTRACTABLE)",
            facts.uri
        ));
    }
    if public.key_type() == KeyType::Ed25519 && facts.token.manufacturer.contains("SoftHSM") {
        notes.push(format!(
            "{}: SoftHSM loses some 90 octets of memory with each Ed25519 signature",
            facts.uri
        ));
    }
    Ok((public, method, notes))
}

/// What people call `kind`, if it is none that DKIM knows.
fn other_kind(kind: TokenKeyType) -> Option<String> {
    match kind {
        TokenKeyType::RSA | TokenKeyType::EC_EDWARDS => None,
        TokenKeyType::EC => Some("EC".to_owned()),
        TokenKeyType::EC_MONTGOMERY => Some("EC Montgomery".to_owned()),
        TokenKeyType::DSA => Some("DSA".to_owned()),
        other => Some(other.to_string()),
    }
}

/// Signs `octets`; `pin` is asked for the login that a method with a PIN needs in between.
pub(crate) fn sign(
    session: &Session,
    key: ObjectHandle,
    method: Method,
    octets: &[u8],
    pin: impl FnOnce(&Session) -> Result<(), Failed>,
) -> Result<Vec<u8>, Failed> {
    let eddsa = || Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Pure));
    let digest = || Sha256::digest(octets);
    Ok(match method {
        Method::RsaPkcs => {
            let info = [DIGEST_INFO, &digest()[..]].concat();
            session.sign(&Mechanism::RsaPkcs, key, &info)?
        }
        Method::Sha256RsaPkcs => session.sign(&Mechanism::Sha256RsaPkcs, key, octets)?,
        Method::Eddsa => session.sign(&eddsa(), key, &digest())?,
        Method::Sha256RsaPkcsWithPin => {
            session.sign_init(&Mechanism::Sha256RsaPkcs, key)?;
            pin(session)?;
            session.sign_update(octets)?;
            session.sign_final()?
        }
        Method::EddsaWithPin => {
            session.sign_init(&eddsa(), key)?;
            pin(session)?;
            session.sign_update(&digest())?;
            session.sign_final()?
        }
    })
}

/// A call that failed, or what was found instead of a key.
#[derive(Debug)]
pub(crate) enum Failed {
    Call(Error),
    Fault(Fault),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

/// What a token told of a key. Attributes it does not have are left out by it.
#[derive(Default)]
struct Seen {
    kind: Option<TokenKeyType>,
    modulus: Vec<u8>,
    exponent: Vec<u8>,
    point: Vec<u8>,
    sign: Option<bool>,
    extractable: Option<bool>,
    always_authenticate: bool,
    mechanisms: Vec<MechanismType>,
}

impl Seen {
    fn look(&mut self, session: &Session, key: ObjectHandle) -> Result<(), Error> {
        let kinds = session.get_attributes(key, &[AttributeType::KeyType])?;
        self.take(kinds);
        let mut wanted = vec![
            AttributeType::Sign,
            AttributeType::Extractable,
            AttributeType::AlwaysAuthenticate,
            AttributeType::AllowedMechanisms,
        ];
        wanted.extend(self.public_attributes());
        // One at a time where the token refuses all for one that it does not know.
        match session.get_attributes(key, &wanted) {
            Ok(attributes) => self.take(attributes),
            Err(_) => {
                for one in wanted {
                    if let Ok(attributes) = session.get_attributes(key, &[one]) {
                        self.take(attributes);
                    }
                }
            }
        }
        Ok(())
    }

    fn look_at_public(&mut self, session: &Session, key: ObjectHandle) -> Result<(), Error> {
        let wanted = self.public_attributes();
        let attributes = session.get_attributes(key, wanted)?;
        self.take(attributes);
        Ok(())
    }

    fn public_attributes(&self) -> &'static [AttributeType] {
        match self.kind {
            Some(TokenKeyType::RSA) => &[AttributeType::Modulus, AttributeType::PublicExponent],
            Some(TokenKeyType::EC_EDWARDS) => &[AttributeType::EcPoint],
            _ => &[],
        }
    }

    fn take(&mut self, attributes: Vec<Attribute>) {
        for attribute in attributes {
            match attribute {
                Attribute::KeyType(kind) => self.kind = Some(kind),
                Attribute::Modulus(octets) => self.modulus = octets,
                Attribute::PublicExponent(octets) => self.exponent = octets,
                Attribute::EcPoint(octets) => self.point = octets,
                Attribute::Sign(yes) => self.sign = Some(yes),
                Attribute::Extractable(yes) => self.extractable = Some(yes),
                Attribute::AlwaysAuthenticate(yes) => self.always_authenticate = yes,
                Attribute::AllowedMechanisms(list) => self.mechanisms = list,
                _ => {}
            }
        }
    }

    fn public(&self) -> Option<PublicKey> {
        match self.kind? {
            TokenKeyType::RSA => PublicKey::from_rsa_numbers(&self.modulus, &self.exponent).ok(),
            TokenKeyType::EC_EDWARDS => {
                // Bare, or as an OCTET STRING in DER: tokens do either.
                let point = match &self.point[..] {
                    [4, 32, point @ ..] if point.len() == 32 => point,
                    point => point,
                };
                PublicKey::from_record(KeyType::Ed25519, point).ok()
            }
            _ => None,
        }
    }

    fn allows(&self, mechanism: MechanismType) -> bool {
        self.mechanisms.is_empty() || self.mechanisms.contains(&mechanism)
    }
}

fn rsa_method(
    context: &Pkcs11,
    slot: Slot,
    seen: &Seen,
    choice: MechanismChoice,
) -> Option<Method> {
    let bits = seen.public().map_or(0, |key| key.bits() as usize);
    let has = |mechanism: MechanismType| {
        seen.allows(mechanism)
            && can_sign_with(context, slot, mechanism)
                .is_some_and(|(least, most)| least <= bits && (bits <= most || most == 0))
    };
    let raw = || has(MechanismType::RSA_PKCS).then_some(Method::RsaPkcs);
    let hashing = || has(MechanismType::SHA256_RSA_PKCS).then_some(Method::Sha256RsaPkcs);
    if seen.always_authenticate {
        // CKM_RSA_PKCS has no step between its two calls at which cryptoki could log in.
        return match choice {
            MechanismChoice::RsaPkcs => None,
            _ => hashing().map(|_| Method::Sha256RsaPkcsWithPin),
        };
    }
    match choice {
        MechanismChoice::Auto => raw().or_else(hashing),
        MechanismChoice::RsaPkcs => raw(),
        MechanismChoice::Sha256RsaPkcs => hashing(),
    }
}

/// The sizes in bits that the token signs with, if it signs by `mechanism` at all.
fn can_sign_with(context: &Pkcs11, slot: Slot, mechanism: MechanismType) -> Option<(usize, usize)> {
    let info = context.get_mechanism_info(slot, mechanism).ok()?;
    info.sign()
        .then(|| (info.min_key_size(), info.max_key_size()))
}

/// What stands before a SHA-256 digest in a DigestInfo (RFC 8017 section 9.2, note 1).
pub(crate) const DIGEST_INFO: &[u8] = &[
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

/// RFC 8301 section 3.2: what signers MUST have, and what they SHOULD; and what the engines check.
const SHORTEST: u32 = 1024;
const RECOMMENDED: u32 = 2048;
const LONGEST: u32 = 4096;

/// How many keys are looked at to be named in a sentence.
const MOST_LISTED: usize = 11;
