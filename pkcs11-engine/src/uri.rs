//! PKCS#11 URIs (RFC 7512): which key of which token signs, and how to get at it.
//!
//! A URI is read more strictly than section 2.3 asks: what is not known, given twice or in the wrong part is refused, as
//! a URI that a token ignores half of may select another key than the one meant. Beside the attributes of the RFC there
//! are two of our own in the query, `x-on-token-away` and `x-mechanism`. A URI is matched here against what a token says
//! of itself and its objects; asking the token, and refusing what matches twice, is left to who knows the token, as is
//! whether a `pin-value` or a `type` other than `private` will do.
//!
//! Text is compared octet by octet, without Unicode normalization (section 2.5).

mod error;
mod names;
mod octets;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use zeroize::Zeroizing;

pub use self::error::UriError;
pub use self::names::Part;
use self::octets::{Value, encode, encode_all};
use crate::pin::{Pin, PinSource};

/// A PKCS#11 URI. An attribute that is `None` matches everything; one that is empty matches the empty value only.
///
/// What [`fmt::Display`] writes is for logs and for pasting: canonical, without `pin-value`, which is left out rather
/// than replaced, as any replacement would be taken for a PIN where it is pasted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uri {
    /// `token`: the token's label. As all text of the path but `object`, without the blanks at its end that PKCS#11 pads
    /// with.
    pub token: Option<String>,
    /// `manufacturer`: who made the token.
    pub manufacturer: Option<String>,
    /// `model`: the token's model.
    pub model: Option<String>,
    /// `serial`: the token's serial number.
    pub serial: Option<String>,
    /// `slot-id`: the number of the slot, which most modules change at will, so that the operator is to be warned.
    pub slot_id: Option<u64>,
    /// `slot-description`.
    pub slot_description: Option<String>,
    /// `slot-manufacturer`: who made the slot.
    pub slot_manufacturer: Option<String>,
    /// `library-description`: what the module says it is.
    pub library_description: Option<String>,
    /// `library-manufacturer`: who made the module.
    pub library_manufacturer: Option<String>,
    /// `library-version`, major and minor.
    pub library_version: Option<(u8, u8)>,
    /// `object`: CKA_LABEL, as octets, since tokens do not hold to UTF-8 there.
    pub object: Option<Vec<u8>>,
    /// `id`: CKA_ID.
    pub id: Option<Vec<u8>>,
    /// `type`: CKA_CLASS. A signing key is `private`, or this is not given.
    pub object_type: Option<ObjectType>,
    /// `module-name`: the module without path, `lib` and `.so`; never with a `/` in it.
    pub module_name: Option<String>,
    /// `module-path`: the module, or the directory it is in; from the root.
    pub module_path: Option<PathBuf>,
    /// `pin-source` or `pin-value`. The latter is [`PinSource::Value`], for the caller to refuse unless it is allowed.
    pub pin: Option<PinSource>,
    /// `x-mechanism`: how the key signs.
    pub mechanism: Option<MechanismChoice>,
    /// `x-on-token-away`: what becomes of a message that the key cannot sign.
    pub on_away: Option<OnAway>,
}

impl Uri {
    /// Whether `text` is meant as a PKCS#11 URI rather than as the name of a file; so it is in quotation marks, too, of
    /// which [`parse`](Self::parse) then says that they must go: as the name of a file, it would be shown with its PIN.
    pub fn is_meant(text: &[u8]) -> bool {
        strip_scheme(text).is_some() || is_quoted(text)
    }

    /// Reads a URI; the scheme in any case, all names and words in lower case. Work is linear in `text`.
    ///
    /// # Errors
    /// The first fault met; see [`UriError`]. A URI without any attribute in its path is refused, as it would stand for
    /// every key there is.
    pub fn parse(text: &[u8]) -> Result<Self, UriError> {
        if text.len() > MAX_URI_LEN {
            return Err(UriError::TooLong);
        }
        if is_quoted(text) {
            return Err(UriError::Quoted);
        }
        let rest = strip_scheme(text).ok_or(UriError::NotPkcs11)?;
        let start = text.len() - rest.len();
        let path_len = rest.iter().position(|&o| o == b'?').unwrap_or(rest.len());
        let path = &rest[..path_len];
        if path.is_empty() {
            return Err(UriError::Empty);
        }
        // Before anything of it is shown: it may be a pin-value behind the wrong separator.
        refuse_ampersands(path, start)?;
        let mut uri = Self::default();
        let mut seen = Vec::with_capacity(8);
        uri.take_all(path, start, Part::Path, &mut seen)?;
        // The query may be empty, but not begin or end with a separator.
        if let Some(query) = rest.get(path_len + 1..).filter(|query| !query.is_empty()) {
            uri.take_all(query, start + path_len + 1, Part::Query, &mut seen)?;
        }
        if uri.module_name.is_some() && uri.module_path.is_some() {
            return Err(UriError::TwoModules);
        }
        Ok(uri)
    }

    /// Whether both name the same by their paths, however it is then to be reached and used.
    pub(crate) fn names_as(&self, other: &Self) -> bool {
        let path_alone = |uri: &Self| Self {
            module_name: None,
            module_path: None,
            pin: None,
            mechanism: None,
            on_away: None,
            ..uri.clone()
        };
        path_alone(self) == path_alone(other)
    }

    /// The URI of a private key: as precise as can be by what stays the same, so `token`, `manufacturer`, `model` and
    /// `serial`, empty or not, `object` and `id`, and `type`, with `module-path` if it is given.
    ///
    /// What no URI can say is left out: text that is longer than its field in PKCS#11 or was not UTF-8 (and holds the
    /// replacement character now), a serial number that is not ASCII, and a relative path. The label must be short
    /// enough for [`MAX_URI_LEN`].
    pub fn of_key(token: &TokenFacts, label: &[u8], id: &[u8], module_path: Option<&Path>) -> Self {
        Self {
            token: sayable(&token.label, LABEL_LEN),
            manufacturer: sayable(&token.manufacturer, MANUFACTURER_LEN),
            model: sayable(&token.model, MODEL_LEN),
            serial: sayable(&token.serial, SERIAL_LEN).filter(|serial| is_serial(serial)),
            object: Some(label.to_vec()),
            id: Some(id.to_vec()),
            object_type: Some(ObjectType::Private),
            module_path: module_path
                .filter(|path| path.is_absolute())
                .map(Path::to_owned),
            ..Self::default()
        }
    }

    /// The URI of a token, by what stays the same.
    pub fn of_token(token: &TokenFacts) -> Self {
        Self {
            object: None,
            id: None,
            object_type: None,
            ..Self::of_key(token, b"", b"", None)
        }
    }

    /// Whether the token, its slot and its module are what the URI says (section 2.5). The module attributes of the
    /// query are for who loads modules.
    pub fn matches_token(&self, facts: &TokenFacts) -> bool {
        let text = |wanted: &Option<String>, fact: &str| {
            wanted
                .as_deref()
                .is_none_or(|wanted| without_padding(wanted) == without_padding(fact))
        };
        text(&self.token, &facts.label)
            && text(&self.manufacturer, &facts.manufacturer)
            && text(&self.model, &facts.model)
            && text(&self.serial, &facts.serial)
            && text(&self.slot_description, &facts.slot_description)
            && text(&self.slot_manufacturer, &facts.slot_manufacturer)
            && text(&self.library_description, &facts.library_description)
            && text(&self.library_manufacturer, &facts.library_manufacturer)
            && self.slot_id.is_none_or(|wanted| wanted == facts.slot_id)
            && self
                .library_version
                .is_none_or(|wanted| wanted == facts.library_version)
    }

    /// Whether an object with this CKA_LABEL and CKA_ID (empty where it has none) is one the URI means, as far as these
    /// go; [`Uri::object_type`] is for the caller to look at.
    pub fn matches_object(&self, label: &[u8], id: &[u8]) -> bool {
        let octets = |wanted: &Option<Vec<u8>>, fact: &[u8]| {
            wanted.as_deref().is_none_or(|wanted| wanted == fact)
        };
        octets(&self.object, label) && octets(&self.id, id)
    }

    /// Takes the attributes of one part, which begins at `offset`; `seen` are the names taken so far.
    fn take_all(
        &mut self,
        octets: &[u8],
        mut offset: usize,
        part: Part,
        seen: &mut Vec<&'static str>,
    ) -> Result<(), UriError> {
        for attribute in octets.split(|&o| o == part.separator()) {
            let value = split_attribute(attribute, offset, part, seen)?;
            if seen.contains(&value.name) {
                return Err(UriError::Duplicate { name: value.name });
            }
            seen.push(value.name);
            self.take(value)?;
            offset += attribute.len() + 1;
        }
        Ok(())
    }

    /// Takes one attribute.
    fn take(&mut self, value: Value<'_>) -> Result<(), UriError> {
        match value.name {
            "token" => self.token = Some(text(value, LABEL_LEN)?),
            "manufacturer" => self.manufacturer = Some(text(value, MANUFACTURER_LEN)?),
            "model" => self.model = Some(text(value, MODEL_LEN)?),
            "serial" => {
                let serial = text(value, SERIAL_LEN)?;
                if !is_serial(&serial) {
                    return Err(UriError::BadSerial);
                }
                self.serial = Some(serial);
            }
            "slot-id" => self.slot_id = Some(slot_id(value)?),
            "slot-description" => self.slot_description = Some(text(value, SLOT_DESCRIPTION_LEN)?),
            "slot-manufacturer" => self.slot_manufacturer = Some(text(value, MANUFACTURER_LEN)?),
            "library-description" => self.library_description = Some(text(value, LIBRARY_LEN)?),
            "library-manufacturer" => {
                self.library_manufacturer = Some(text(value, MANUFACTURER_LEN)?);
            }
            "library-version" => self.library_version = Some(library_version(value)?),
            "object" => self.object = Some(value.decode()?),
            "id" => self.id = Some(value.decode()?),
            "type" => self.object_type = Some(one_of(value, &ObjectType::WORDS)?),
            "module-name" => self.module_name = Some(module_name(value)?),
            "module-path" => self.module_path = Some(module_path(value)?),
            "pin-source" => {
                let source = PinSource::parse(&value.decode()?).map_err(UriError::PinSource)?;
                self.take_pin(source)?;
            }
            "pin-value" => self.take_pin(PinSource::Value(pin_value(value)?))?,
            "x-mechanism" => self.mechanism = Some(one_of(value, &MechanismChoice::WORDS)?),
            "x-on-token-away" => self.on_away = Some(one_of(value, &OnAway::WORDS)?),
            // The names are those of `names`, and the tests give each of them.
            name => unreachable!("attribute {name} is listed but not taken"),
        }
        Ok(())
    }

    fn take_pin(&mut self, source: PinSource) -> Result<(), UriError> {
        if self.pin.replace(source).is_some() {
            return Err(UriError::TwoPins);
        }
        Ok(())
    }

    /// The attributes of the path, encoded, in the order of [`fmt::Display`].
    fn path_attributes(&self) -> Vec<String> {
        let mut list = Vec::new();
        let mut push = |name: &str, value: Option<String>| {
            list.extend(value.map(|value| format!("{name}={value}")));
        };
        let text = |value: &Option<String>| {
            value
                .as_ref()
                .map(|text| encode(text.as_bytes(), Part::Path))
        };
        push("token", text(&self.token));
        push("manufacturer", text(&self.manufacturer));
        push("model", text(&self.model));
        push("serial", text(&self.serial));
        push("slot-id", self.slot_id.map(|id| id.to_string()));
        push("slot-description", text(&self.slot_description));
        push("slot-manufacturer", text(&self.slot_manufacturer));
        push("library-description", text(&self.library_description));
        push("library-manufacturer", text(&self.library_manufacturer));
        let version = self.library_version;
        push(
            "library-version",
            version.map(|(major, minor)| format!("{major}.{minor}")),
        );
        let object = self.object.as_deref();
        push("object", object.map(|label| encode(label, Part::Path)));
        push("id", self.id.as_deref().map(encode_all));
        push("type", self.object_type.map(|class| class.to_string()));
        list
    }

    /// The attributes of the query but for `pin-value`, encoded, in the order of [`fmt::Display`].
    fn query_attributes(&self) -> Vec<String> {
        let mut list = Vec::new();
        let mut push = |name: &str, value: Option<String>| {
            list.extend(value.map(|value| format!("{name}={value}")));
        };
        let encode = |octets: &[u8]| encode(octets, Part::Query);
        let name = self.module_name.as_ref();
        push("module-name", name.map(|name| encode(name.as_bytes())));
        let path = self.module_path.as_ref();
        push(
            "module-path",
            path.map(|path| encode(path.as_os_str().as_bytes())),
        );
        let source = self.pin.as_ref().and_then(PinSource::to_octets);
        push("pin-source", source.map(|source| encode(&source)));
        push("x-mechanism", self.mechanism.map(|word| word.to_string()));
        push("x-on-token-away", self.on_away.map(|word| word.to_string()));
        list
    }
}

/// The canonical form: attributes in a fixed order, nothing encoded that need not be, but for `&`, `=` and all of `id`,
/// upper-case digits (section 2.6); never a `pin-value`.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pkcs11:{}", self.path_attributes().join(";"))?;
        let query = self.query_attributes();
        if !query.is_empty() {
            write!(f, "?{}", query.join("&"))?;
        }
        Ok(())
    }
}

/// What a token, its slot and its module say of themselves, as UTF-8 and without the blanks at the end that PKCS#11 pads
/// with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFacts {
    /// `label` of CK_TOKEN_INFO.
    pub label: String,
    /// `manufacturerID` of CK_TOKEN_INFO.
    pub manufacturer: String,
    /// `model` of CK_TOKEN_INFO.
    pub model: String,
    /// `serialNumber` of CK_TOKEN_INFO.
    pub serial: String,
    /// The slot's CK_SLOT_ID.
    pub slot_id: u64,
    /// `slotDescription` of CK_SLOT_INFO.
    pub slot_description: String,
    /// `manufacturerID` of CK_SLOT_INFO.
    pub slot_manufacturer: String,
    /// `libraryDescription` of CK_INFO.
    pub library_description: String,
    /// `manufacturerID` of CK_INFO.
    pub library_manufacturer: String,
    /// `libraryVersion` of CK_INFO, major and minor.
    pub library_version: (u8, u8),
}

impl TokenFacts {
    /// Whether both are of one token, whatever slot it is in.
    pub fn is_same_token(&self, other: &Self) -> bool {
        let lasting = |facts: &Self| {
            [
                &facts.label,
                &facts.manufacturer,
                &facts.model,
                &facts.serial,
            ]
            .map(Clone::clone)
        };
        lasting(self) == lasting(other)
    }
}

/// What kind of object is meant: the words of `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectType {
    /// CKO_PUBLIC_KEY.
    Public,
    /// CKO_PRIVATE_KEY.
    Private,
    /// CKO_CERTIFICATE.
    Cert,
    /// CKO_SECRET_KEY.
    SecretKey,
    /// CKO_DATA.
    Data,
}

impl ObjectType {
    const WORDS: [(&'static str, Self); 5] = [
        ("public", Self::Public),
        ("private", Self::Private),
        ("cert", Self::Cert),
        ("secret-key", Self::SecretKey),
        ("data", Self::Data),
    ];
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(*self, &Self::WORDS))
    }
}

/// How a key signs: the words of `x-mechanism`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MechanismChoice {
    /// By what the kind of key and the token suggest.
    Auto,
    /// CKM_RSA_PKCS: the DigestInfo is made in software.
    RsaPkcs,
    /// CKM_SHA256_RSA_PKCS: the token hashes.
    Sha256RsaPkcs,
}

impl MechanismChoice {
    const WORDS: [(&'static str, Self); 3] = [
        ("auto", Self::Auto),
        ("rsa-pkcs", Self::RsaPkcs),
        ("sha256-rsa-pkcs", Self::Sha256RsaPkcs),
    ];
}

impl fmt::Display for MechanismChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(*self, &Self::WORDS))
    }
}

/// What becomes of a message while the token of its key is away: the words of `x-on-token-away`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnAway {
    /// It is deferred.
    Tempfail,
    /// The next signer signs it.
    Next,
    /// It passes unsigned.
    Accept,
    /// The mail server keeps it.
    Quarantine,
}

impl OnAway {
    const WORDS: [(&'static str, Self); 4] = [
        ("tempfail", Self::Tempfail),
        ("next", Self::Next),
        ("accept", Self::Accept),
        ("quarantine", Self::Quarantine),
    ];
}

impl fmt::Display for OnAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(*self, &Self::WORDS))
    }
}

/// The longest URI read, in octets: room for a path of PATH_MAX and long labels, each octet encoded.
pub const MAX_URI_LEN: usize = 16_384;

/// Lengths of the fields of CK_TOKEN_INFO, CK_SLOT_INFO and CK_INFO, in octets.
const LABEL_LEN: usize = 32;
const MANUFACTURER_LEN: usize = 32;
const MODEL_LEN: usize = 16;
const SERIAL_LEN: usize = 16;
const SLOT_DESCRIPTION_LEN: usize = 64;
const LIBRARY_LEN: usize = 32;

/// Whether a URI stands behind quotation marks or an angle bracket.
fn is_quoted(text: &[u8]) -> bool {
    let start = text.iter().position(|octet| !b"\"'`<".contains(octet));
    start.is_some_and(|start| start > 0 && strip_scheme(&text[start..]).is_some())
}

fn strip_scheme(text: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = text.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(rest)
}

const SCHEME: &[u8] = b"pkcs11:";

/// Refuses `&name=` in the path, which begins at `start`: by the grammar it is part of a value, but who writes it means
/// another attribute.
fn refuse_ampersands(path: &[u8], start: usize) -> Result<(), UriError> {
    let mut offset = start;
    for (i, piece) in path.split(|&o| o == b'&').enumerate() {
        let name_len = piece.iter().take_while(|&&o| is_name_octet(o)).count();
        if i > 0 && name_len > 0 && piece.get(name_len) == Some(&b'=') {
            return Err(UriError::AmpersandInPath { at: offset });
        }
        offset += piece.len() + 1;
    }
    Ok(())
}

/// Splits `name=value`, which begins at `offset`, and finds the name among those of `part`.
fn split_attribute<'a>(
    attribute: &'a [u8],
    offset: usize,
    part: Part,
    seen: &[&'static str],
) -> Result<Value<'a>, UriError> {
    let at = offset + 1;
    if attribute.is_empty() {
        return Err(UriError::EmptyAttribute {
            at,
            separator: part.separator().into(),
        });
    }
    let equals = attribute
        .iter()
        .position(|&o| o == b'=')
        .ok_or(UriError::NoEquals { at })?;
    let (name, raw) = (&attribute[..equals], &attribute[equals + 1..]);
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.is_empty() && name.bytes().all(is_name_octet))
        .ok_or(UriError::BadName { at })?;
    let find = |part: Part| part.names().iter().copied().find(|known| *known == name);
    if let Some(name) = find(part) {
        // Such a value would be shown, and the PIN in it.
        if name != "pin-value" && holds_pin_value(raw) {
            return Err(UriError::PinInValue { name });
        }
        Ok(Value {
            name,
            raw,
            offset: offset + equals + 1,
            part,
        })
    } else if let Some(name) = find(part.other()) {
        Err(UriError::Misplaced { name, part })
    } else if seen.contains(&"pin-value") {
        Err(UriError::UnknownAfterPin { at })
    } else {
        Err(UriError::Unknown {
            name: shown(name.as_bytes()),
            part,
            meant: names::meant(name, part),
        })
    }
}

fn holds_pin_value(raw: &[u8]) -> bool {
    const PIN_VALUE: &[u8] = b"pin-value=";
    raw.windows(PIN_VALUE.len())
        .any(|window| window.eq_ignore_ascii_case(PIN_VALUE))
}

/// `pk11-v-attr-nm-char`
fn is_name_octet(octet: u8) -> bool {
    octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_'
}

/// Text for a field of `limit` octets.
fn text(value: Value<'_>, limit: usize) -> Result<String, UriError> {
    let name = value.name;
    let mut text = String::from_utf8(value.decode()?).map_err(|_| UriError::NotUtf8 { name })?;
    text.truncate(without_padding(&text).len());
    if text.len() > limit {
        return Err(UriError::ValueTooLong { name, limit });
    }
    Ok(text)
}

/// A fact as a value that [`text`] takes, if it is one.
fn sayable(fact: &str, limit: usize) -> Option<String> {
    let fact = without_padding(fact);
    let is_sayable = fact.len() <= limit && !fact.contains(char::REPLACEMENT_CHARACTER);
    is_sayable.then(|| fact.to_owned())
}

fn without_padding(text: &str) -> &str {
    text.trim_end_matches(' ')
}

fn is_serial(text: &str) -> bool {
    text.bytes().all(|o| o == b' ' || o.is_ascii_graphic())
}

fn slot_id(value: Value<'_>) -> Result<u64, UriError> {
    decimal(&value.decode()?).ok_or(UriError::BadSlotId)
}

/// `1*DIGIT [ "." 1*DIGIT ]`, of one octet each; without a minor version that is 0.
fn library_version(value: Value<'_>) -> Result<(u8, u8), UriError> {
    let decoded = value.decode()?;
    let mut numbers = decoded.splitn(2, |&o| o == b'.');
    let mut number = || numbers.next().map(decimal::<u8>);
    let (major, minor) = (number().flatten(), number().unwrap_or(Some(0)));
    major.zip(minor).ok_or(UriError::BadLibraryVersion)
}

/// A number of digits and nothing else, not even a sign.
fn decimal<T: std::str::FromStr>(octets: &[u8]) -> Option<T> {
    if !octets.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(octets).ok()?.parse().ok()
}

/// A name that can be put between `lib` and `.so` and leads nowhere else.
fn module_name(value: Value<'_>) -> Result<String, UriError> {
    let decoded = value.decode()?;
    let is_plain = |&o: &u8| o.is_ascii_alphanumeric() || b"-_.+".contains(&o);
    if decoded.is_empty()
        || decoded.len() > 255
        || decoded.starts_with(b".")
        || !decoded.iter().all(is_plain)
    {
        return Err(UriError::BadModuleName);
    }
    Ok(decoded.into_iter().map(char::from).collect())
}

fn module_path(value: Value<'_>) -> Result<PathBuf, UriError> {
    let decoded = value.decode()?;
    if !decoded.starts_with(b"/") || decoded.contains(&0) {
        return Err(UriError::BadModulePath);
    }
    Ok(OsString::from_vec(decoded).into())
}

fn pin_value(value: Value<'_>) -> Result<Pin, UriError> {
    // Of full size from the start, so that no copy is left where it grew.
    let mut octets = Zeroizing::new(Vec::with_capacity(value.raw.len()));
    value.decode_into(&mut octets)?;
    Pin::new(octets).map_err(UriError::PinValue)
}

/// What the word that is the value stands for.
fn one_of<T: Copy>(value: Value<'_>, words: &[(&'static str, T)]) -> Result<T, UriError> {
    let decoded = value.decode()?;
    if let Some((_, meaning)) = words.iter().find(|(word, _)| word.as_bytes() == decoded) {
        return Ok(*meaning);
    }
    let typed = String::from_utf8_lossy(&decoded);
    let words: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
    Err(UriError::NotOneOf {
        name: value.name,
        value: shown(&decoded),
        meant: names::nearest(&typed, words.iter().copied()),
        words,
    })
}

/// The word for `meaning`.
fn word<T: PartialEq>(meaning: T, words: &[(&'static str, T)]) -> &'static str {
    let found = words.iter().find(|(_, other)| *other == meaning);
    // Each list has all of its kind, and the tests go through them.
    found.map_or("", |(word, _)| word)
}

/// `octets` for a message: printable, and no more of them than help.
fn shown(octets: &[u8]) -> String {
    let shortened = octets.get(..MAX_SHOWN);
    let shown = shortened.unwrap_or(octets).escape_ascii().to_string();
    if shortened.is_some() {
        shown + "..."
    } else {
        shown
    }
}

/// Most octets of a wrong word shown.
const MAX_SHOWN: usize = 40;

#[cfg(test)]
mod tests;
