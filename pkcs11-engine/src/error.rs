//! What can go wrong with a token, in the sentences an operator reads. Faults cross from the process that holds the module
//! to the one that has the mail, so they are plain values.
//!
//! What a fault means for the next attempt is decided here too, by [`Cause`]; the attempts themselves are in `worker`.

use cryptoki::error::{Error, RvError};
use serde::{Deserialize, Serialize};

/// Why a token does not do what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Fault {
    /// The module cannot be loaded or does not start.
    #[error("module {module}: {reason}")]
    Module {
        /// Its path.
        module: String,
        /// Why.
        reason: String,
    },
    /// No token is there that matches.
    #[error(
        "no token matches {wanted}; {}",
        present(tokens, "the module shows this user no token", "there are")
    )]
    NoToken {
        /// The URI.
        wanted: String,
        /// The tokens there are, as URIs.
        tokens: Vec<String>,
    },
    /// More than one token matches.
    #[error("{} tokens match {wanted}; name one of them, for instance by its serial: {}", tokens.len(), list(tokens))]
    ManyTokens {
        /// The URI.
        wanted: String,
        /// The tokens that match, as URIs.
        tokens: Vec<String>,
    },
    /// No private key in the token matches.
    #[error(
        "no private key matches {wanted}{}; {}",
        also(other),
        present(keys, "the token shows no private key", "the token has")
    )]
    NoKey {
        /// The URI.
        wanted: String,
        /// What does match and is no private key: a certificate, a public key.
        other: Option<String>,
        /// The private keys there are, as URIs.
        keys: Vec<String>,
    },
    /// More than one private key in the token matches.
    #[error("{} keys match {wanted}; name one of them, for instance by its id: {}", keys.len(), list(keys))]
    ManyKeys {
        /// The URI.
        wanted: String,
        /// The keys that match, as URIs.
        keys: Vec<String>,
    },
    /// The key is there, and not to be signed with.
    #[error("{key}: {reason}")]
    Unfit {
        /// The key's URI.
        key: String,
        /// Why not.
        reason: String,
    },
    /// The token wants a PIN, and there is none that could be tried.
    #[error("token {token}: {reason}")]
    Pin {
        /// The token's URI.
        token: String,
        /// Why nobody is logged in.
        reason: String,
    },
    /// A call of the module failed.
    #[error("token {token}: {call} failed with {code}")]
    Device {
        /// The token's URI, or the key's.
        token: String,
        /// The function.
        call: String,
        /// The return value, by its name in the standard.
        code: String,
    },
    /// The token gave a signature that its public key does not verify.
    #[error(
        "token {token}: its signature is wrong: the token is damaged, or another key has taken this one's place"
    )]
    WrongSignature {
        /// The token's URI.
        token: String,
    },
    /// The token answers wrongly where the right answer is known.
    #[error("token {token}: it {what}: the token is damaged, or its module is")]
    WrongAnswer {
        /// The token's URI.
        token: String,
        /// What it does.
        what: String,
    },
    /// The token is there, and does not do at all what it is named for.
    #[error("token {token}: {reason}")]
    Unable {
        /// The token's URI.
        token: String,
        /// Why not.
        reason: String,
    },
    /// A digest that was begun cannot be ended.
    #[error("token {token}: the digest that was begun is lost: {reason}")]
    DigestLost {
        /// The token's URI.
        token: String,
        /// Why.
        reason: String,
    },
    /// A key that came back is not the one that was there.
    #[error(
        "{key}: there is another key now than when it was loaded; reload to sign with that one"
    )]
    OtherKey {
        /// The key's URI.
        key: String,
    },
    /// Calls into the module do not return.
    #[error("token {token}: no call has returned for {seconds} s")]
    Hung {
        /// The token's URI.
        token: String,
        /// Since when.
        seconds: u64,
    },
    /// More waits than may.
    #[error("{waiting} requests wait for the token already")]
    Full {
        /// How many.
        waiting: usize,
    },
    /// The token took longer than a message waits.
    #[error("the token gave no answer in time")]
    Late,
    /// The process that holds the module is gone, or could not be started.
    #[error("the process that holds the token's module {reason}")]
    Process {
        /// What became of it.
        reason: String,
    },
    /// Nothing is known of the token yet.
    #[error("the token is still being opened")]
    NotYet,
    /// All is being shut down.
    #[error("the use of tokens is being stopped")]
    Stopped,
}

impl Fault {
    /// Whether it may go away by itself, or by what is done to the token, with the configuration as it is.
    pub fn may_pass(&self) -> bool {
        !matches!(
            self,
            Self::ManyTokens { .. }
                | Self::ManyKeys { .. }
                | Self::Unfit { .. }
                | Self::Unable { .. }
                | Self::OtherKey { .. }
        )
    }
}

impl Fault {
    /// Whether an operator learns anything from this one after `known`: a token that is away stays away, whichever call
    /// fails, and whatever other tokens there are meanwhile.
    pub(crate) fn is_news_after(&self, known: &Self) -> bool {
        match (self, known) {
            (Self::NoToken { .. }, Self::NoToken { .. })
            | (Self::Device { .. }, Self::Device { .. })
            | (Self::Hung { .. }, Self::Hung { .. }) => false,
            (new, known) => new != known,
        }
    }
}

/// What a failed call says about the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Something is wrong with session, login, token or module: worth going up the ladder for.
    Device,
    /// The PIN is wrong, locked, expired: never to be tried again as it is.
    Pin,
    /// There is no room for one more session.
    Capacity,
    /// It is about this key or these octets.
    Key,
}

impl Cause {
    pub(crate) fn of(error: &Error) -> Self {
        let Error::Pkcs11(code, _) = error else {
            return Self::Device;
        };
        match code {
            RvError::PinIncorrect
            | RvError::PinInvalid
            | RvError::PinLenRange
            | RvError::PinExpired
            | RvError::PinLocked
            | RvError::UserPinNotInitialized => Self::Pin,
            RvError::SessionCount | RvError::DeviceMemory | RvError::HostMemory => Self::Capacity,
            RvError::DataInvalid
            | RvError::DataLenRange
            | RvError::KeyFunctionNotPermitted
            | RvError::KeySizeRange
            | RvError::KeyTypeInconsistent
            | RvError::MechanismInvalid
            | RvError::MechanismParamInvalid => Self::Key,
            _ => Self::Device,
        }
    }
}

/// The failed call and its return value, by their names in the standard.
pub(crate) fn call_and_code(error: &Error) -> (String, String) {
    match error {
        Error::Pkcs11(code, function) => (format!("C_{function:?}"), code_name(*code)),
        Error::NullFunctionPointer => (
            "a call".into(),
            "CKR_FUNCTION_NOT_SUPPORTED: the module has no such function".into(),
        ),
        other => ("a call".into(), other.to_string()),
    }
}

/// `SessionHandleInvalid` is CKR_SESSION_HANDLE_INVALID.
fn code_name(code: RvError) -> String {
    match code {
        RvError::VendorDefined(number) | RvError::UnknownErrorCode(number) => {
            format!("{number:#x}")
        }
        named => {
            let mut name = "CKR".to_owned();
            for letter in format!("{named:?}").chars() {
                if letter.is_ascii_uppercase() {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            name
        }
    }
}

fn present(what: &[String], none: &str, some: &str) -> String {
    if what.is_empty() {
        none.to_owned()
    } else {
        format!("{some} {}", list(what))
    }
}

fn list(uris: &[String]) -> String {
    let mut shown = uris[..uris.len().min(MOST_SHOWN)].join(", ");
    if uris.len() > MOST_SHOWN {
        shown.push_str(&format!(", and {} more", uris.len() - MOST_SHOWN));
    }
    shown
}

fn also(other: &Option<String>) -> String {
    match other {
        Some(other) => format!(" (there is {other} of that name, which cannot sign)"),
        None => String::new(),
    }
}

/// How many URIs a sentence may have.
const MOST_SHOWN: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use cryptoki::context::Function;

    #[test]
    fn codes_have_their_names_in_the_standard() {
        for (code, name) in [
            (RvError::SessionHandleInvalid, "CKR_SESSION_HANDLE_INVALID"),
            (RvError::PinIncorrect, "CKR_PIN_INCORRECT"),
            (
                RvError::CryptokiNotInitialized,
                "CKR_CRYPTOKI_NOT_INITIALIZED",
            ),
            (RvError::UnknownErrorCode(0x8000_0384), "0x80000384"),
        ] {
            let error = Error::Pkcs11(code, Function::SignInit);
            assert_eq!(
                call_and_code(&error),
                ("C_SignInit".to_owned(), name.to_owned())
            );
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let keys = (0..12).map(|n| format!("pkcs11:id=%{n:02}")).collect();
        let fault = Fault::ManyKeys {
            wanted: "pkcs11:".into(),
            keys,
        };
        let sentence = fault.to_string();
        assert!(sentence.starts_with("12 keys match pkcs11:;"), "{sentence}");
        assert!(
            sentence.ends_with("pkcs11:id=%09, and 2 more"),
            "{sentence}"
        );
    }

    #[test]
    fn a_lone_certificate_is_told_of() {
        let fault = Fault::NoKey {
            wanted: "pkcs11:object=mail".into(),
            other: Some("a certificate".into()),
            keys: vec![],
        };
        assert_eq!(
            fault.to_string(),
            "no private key matches pkcs11:object=mail (there is a certificate of that name, which cannot sign); \
             the token shows no private key"
        );
    }
}
