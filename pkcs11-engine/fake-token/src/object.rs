//! The objects of the tokens and their attributes, as the control file has them.

use std::sync::Arc;

use cryptoki_sys::{
    CK_ATTRIBUTE_TYPE, CK_BBOOL, CK_FALSE, CK_RV, CK_TRUE, CK_ULONG, CKA_ALWAYS_AUTHENTICATE,
    CKA_CERTIFICATE_TYPE, CKA_CLASS, CKA_COEFFICIENT, CKA_EC_PARAMS, CKA_EC_POINT, CKA_EXPONENT_1,
    CKA_EXPONENT_2, CKA_EXTRACTABLE, CKA_ID, CKA_KEY_TYPE, CKA_LABEL, CKA_MODULUS,
    CKA_MODULUS_BITS, CKA_NEVER_EXTRACTABLE, CKA_PRIME_1, CKA_PRIME_2, CKA_PRIVATE,
    CKA_PRIVATE_EXPONENT, CKA_PUBLIC_EXPONENT, CKA_SENSITIVE, CKA_SIGN, CKA_TOKEN, CKA_VALUE,
    CKA_VERIFY, CKC_X_509, CKK_EC_EDWARDS, CKK_RSA, CKO_CERTIFICATE, CKO_PRIVATE_KEY,
    CKO_PUBLIC_KEY, CKR_ATTRIBUTE_SENSITIVE, CKR_ATTRIBUTE_TYPE_INVALID,
};

use crate::control::Control;
use crate::key::Key;
use crate::state::TokenIndex;

/// An object and what is to be seen of it.
#[derive(Clone)]
pub(crate) struct Object {
    /// What it is on its token; private keys have `private` in it.
    pub(crate) name: &'static str,
    /// Whether it is hidden without login.
    pub(crate) private: bool,
    /// The key behind it, of a private key.
    pub(crate) key: Option<Arc<Key>>,
    attributes: Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)>,
}

impl Object {
    /// A public key of a session, from the attributes it is made of.
    pub(crate) fn of_session(attributes: Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)>) -> Self {
        Self {
            name: "of session",
            private: false,
            key: None,
            attributes,
        }
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// CKR_ATTRIBUTE_SENSITIVE for the secrets of a private key, CKR_ATTRIBUTE_TYPE_INVALID for what it does not have.
    pub(crate) fn attribute(&self, wanted: CK_ATTRIBUTE_TYPE) -> Result<&[u8], CK_RV> {
        match self.attributes.iter().find(|(of, _)| *of == wanted) {
            Some((_, value)) => Ok(value),
            None if self.key.is_some() && SECRETS.contains(&wanted) => Err(CKR_ATTRIBUTE_SENSITIVE),
            None => Err(CKR_ATTRIBUTE_TYPE_INVALID),
        }
    }

    /// Whether an attribute is there and set.
    pub(crate) fn is(&self, wanted: CK_ATTRIBUTE_TYPE) -> bool {
        self.attribute(wanted) == Ok(&[CK_TRUE])
    }

    /// Whether it has all of these values.
    pub(crate) fn matches(&self, template: &[(CK_ATTRIBUTE_TYPE, Vec<u8>)]) -> bool {
        template
            .iter()
            .all(|(wanted, value)| self.attribute(*wanted) == Ok(value))
    }
}

/// What nobody gets to see of a private key.
const SECRETS: [CK_ATTRIBUTE_TYPE; 7] = [
    CKA_PRIVATE_EXPONENT,
    CKA_PRIME_1,
    CKA_PRIME_2,
    CKA_EXPONENT_1,
    CKA_EXPONENT_2,
    CKA_COEFFICIENT,
    CKA_VALUE,
];

/// All objects of a token, private ones too.
pub(crate) fn objects(token: TokenIndex, control: &Control) -> Vec<Object> {
    let label = control.text("key_label").unwrap_or("dkim");
    let id = control.text("key_id").map_or_else(|| vec![1], from_hex);
    if token != 0 {
        return Key::other().map_or_else(Vec::new, |key| {
            let pair = Pair {
                key: &key,
                shown: &key,
                label,
                id: &id,
                control,
            };
            vec![pair.private_key("private"), pair.public_key("public")]
        });
    }
    let mut objects = Vec::new();
    if let Some(key) = control.key() {
        let shown = Key::other().filter(|_| control.flag("wrong_public", false));
        let pair = Pair {
            key: &key,
            shown: shown.as_ref().unwrap_or(&key),
            label,
            id: &id,
            control,
        };
        let only = control.text("only");
        if only.is_none() {
            objects.push(pair.private_key("private"));
        }
        if matches!(only, None | Some("public")) {
            objects.push(pair.public_key("public"));
        }
        if only == Some("certificate") || control.flag("certificate", false) {
            objects.push(pair.certificate());
        }
    }
    if let (Some(label), Some(key)) = (control.text("second_key"), Key::other()) {
        let id = control
            .text("second_key_id")
            .map_or_else(|| vec![2], from_hex);
        let pair = Pair {
            key: &key,
            shown: &key,
            label,
            id: &id,
            control,
        };
        objects.push(pair.private_key("second private"));
        objects.push(pair.public_key("second public"));
    }
    objects
}

/// The octets of hexadecimal digits; what is none ends them.
fn from_hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map_while(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// A key pair and what its objects have in common.
struct Pair<'a> {
    key: &'a Arc<Key>,
    /// The key whose public numbers are shown.
    shown: &'a Key,
    label: &'a str,
    id: &'a [u8],
    control: &'a Control,
}

impl Pair<'_> {
    fn private_key(&self, name: &'static str) -> Object {
        let extractable = self.control.flag("extractable", false);
        let mut attributes = self.common(CKO_PRIVATE_KEY, true);
        attributes.extend(self.public_numbers(false));
        attributes.extend([
            (CKA_KEY_TYPE, self.key_type()),
            (CKA_SIGN, boolean(self.control.flag("can_sign", true))),
            (CKA_SENSITIVE, boolean(!extractable)),
            (CKA_EXTRACTABLE, boolean(extractable)),
            (CKA_NEVER_EXTRACTABLE, boolean(!extractable)),
            (
                CKA_ALWAYS_AUTHENTICATE,
                boolean(self.control.flag("always_auth", false)),
            ),
        ]);
        Object {
            name,
            private: true,
            key: Some(self.key.clone()),
            attributes,
        }
    }

    fn public_key(&self, name: &'static str) -> Object {
        let mut attributes = self.common(CKO_PUBLIC_KEY, false);
        attributes.extend(self.public_numbers(true));
        attributes.extend([(CKA_KEY_TYPE, self.key_type()), (CKA_VERIFY, boolean(true))]);
        Object {
            name,
            private: false,
            key: None,
            attributes,
        }
    }

    /// Of a certificate there is enough to find it, and to see that it is none of a key.
    fn certificate(&self) -> Object {
        let mut attributes = self.common(CKO_CERTIFICATE, false);
        attributes.push((CKA_CERTIFICATE_TYPE, ulong(CKC_X_509)));
        Object {
            name: "certificate",
            private: false,
            key: None,
            attributes,
        }
    }

    fn common(&self, class: CK_ULONG, private: bool) -> Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)> {
        vec![
            (CKA_CLASS, ulong(class)),
            (CKA_TOKEN, boolean(true)),
            (CKA_PRIVATE, boolean(private)),
            (CKA_LABEL, self.label.as_bytes().to_vec()),
            (CKA_ID, self.id.to_vec()),
        ]
    }

    fn key_type(&self) -> Vec<u8> {
        ulong(match **self.key {
            Key::Rsa(_) => CKK_RSA,
            Key::Ed25519(_) => CKK_EC_EDWARDS,
        })
    }

    /// Modulus and exponent, or curve and point; the modulus's length only on public keys, as most tokens have it.
    fn public_numbers(&self, with_bits: bool) -> Vec<(CK_ATTRIBUTE_TYPE, Vec<u8>)> {
        if let Some((mut modulus, exponent)) = self.shown.rsa_numbers() {
            if let Some(bits) = self.control.number("modulus_bits") {
                modulus.truncate(usize::try_from(bits / 8).unwrap_or(usize::MAX));
            }
            let bits = modulus.len() as CK_ULONG * 8;
            let mut numbers = vec![(CKA_MODULUS, modulus), (CKA_PUBLIC_EXPONENT, exponent)];
            if with_bits {
                numbers.push((CKA_MODULUS_BITS, ulong(bits)));
            }
            return numbers;
        }
        let Some(mut point) = self.shown.ed25519_public() else {
            return Vec::new();
        };
        if self.control.text("ec_point") != Some("raw") {
            // An OCTET STRING, as the text of PKCS#11 once wanted it and many tokens still have it.
            point.splice(0..0, [0x04, 32]);
        }
        let curve = match self.control.text("ec_params") {
            Some("name") => b"\x13\x0cedwards25519".to_vec(),
            _ => vec![0x06, 0x03, 0x2b, 0x65, 0x70],
        };
        vec![(CKA_EC_PARAMS, curve), (CKA_EC_POINT, point)]
    }
}

fn boolean(value: bool) -> Vec<u8> {
    let value: CK_BBOOL = if value { CK_TRUE } else { CK_FALSE };
    vec![value]
}

fn ulong(value: CK_ULONG) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}
