//! Private keys as the tools are given them: the name of a file, or the PKCS#11 URI of a key in a token (RFC 7512).

use super::token_access::{TokenAccess, TokenError, TokenUse};
use super::{EX_CONFIG, EX_IOERR, EX_NOINPUT, EX_USAGE, say};
use crate::shown::cause;
use dkim_core::engine::{
    self, Engine, EngineError, KeyType, MAX_KEY_OCTETS, PrivateKey, PrivateKeyError, SigningKey,
};
use pkcs11_engine::uri::{Uri, UriError};
use pkcs11_engine::{Reference, ReferenceError};
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Where a private key is. Shown without a PIN, whatever was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyName {
    /// In this file.
    File(PathBuf),
    /// In a token.
    Token(Box<Uri>),
}

impl KeyName {
    /// Reads what stands behind `-k`.
    ///
    /// # Errors
    /// It is meant as a URI, and is none.
    pub(super) fn parse(text: &OsStr) -> Result<Self, KeyError> {
        if !Uri::is_meant(text.as_bytes()) {
            return Ok(Self::File(text.into()));
        }
        match Uri::parse(text.as_bytes()) {
            Ok(uri) => Ok(Self::Token(Box::new(uri))),
            Err(error) => Err(KeyError::Uri(error)),
        }
    }
}

impl Display for KeyName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Token(uri) => uri.fmt(f),
        }
    }
}

/// Makes keys ready to sign, and keeps the tokens they are in.
#[derive(Debug)]
pub(super) struct KeyLoader {
    tool: &'static str,
    engine: Option<&'static dyn Engine>,
    tokens: TokenUse,
    /// From the first key in a token on.
    access: Option<TokenAccess>,
}

impl KeyLoader {
    /// Does `work` with keys, and closes their tokens and modules afterwards. Keys in files are signed with by `engine`, or
    /// by the first that takes the key. Warnings go to standard error behind the name of the `tool`.
    ///
    /// # Errors
    /// What `work` says.
    pub(super) fn run<T, E: Display>(
        tool: &'static str,
        engine: Option<&'static dyn Engine>,
        tokens: TokenUse,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut loader = Self {
            tool,
            engine,
            tokens,
            access: None,
        };
        let result = work(&mut loader);
        if let Some(access) = loader.access {
            access.finish(result.as_ref().err().map(ToString::to_string));
        }
        result
    }

    /// The key called `name`, ready to sign.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(super) fn load(&mut self, name: &KeyName) -> Result<Arc<dyn SigningKey>, KeyError> {
        match name {
            KeyName::File(path) => self.load_file(path),
            KeyName::Token(uri) => self.open_token((**uri).clone()),
        }
    }

    /// The key in `octets`, which are those of `name`.
    pub(super) fn load_octets(
        &self,
        name: &dyn Display,
        octets: &[u8],
    ) -> Result<Arc<dyn SigningKey>, KeyError> {
        let key = PrivateKey::from_octets(octets).map_err(|source| KeyError::NotAKey {
            name: name.to_string(),
            source,
        })?;
        let key = match self.engine {
            Some(engine) => engine.signing_key(&key),
            None => engine::signing_key(&key),
        };
        let key = key.map_err(|source| KeyError::Refused {
            name: name.to_string(),
            source,
        })?;
        let bits = key.public_key().bits();
        if key.key_type() == KeyType::Rsa && bits < 2048 {
            let warning = format!(
                "warning: {name}: RSA key of {bits} bits; signers should use at least 2048 (RFC 8301 section 3.2)"
            );
            say(self.tool, &warning);
        }
        Ok(key.into())
    }

    fn load_file(&self, path: &Path) -> Result<Arc<dyn SigningKey>, KeyError> {
        // One octet more than a key may have, for the key's reader to refuse.
        let mut octets = Zeroizing::new(Vec::with_capacity(MAX_KEY_OCTETS + 1));
        let read = File::open(path).and_then(|file| {
            file.take(MAX_KEY_OCTETS as u64 + 1)
                .read_to_end(&mut octets)
        });
        read.map_err(|source| KeyError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        self.load_octets(&path.display(), &octets)
    }

    fn open_token(&mut self, uri: Uri) -> Result<Arc<dyn SigningKey>, KeyError> {
        let reference = reference(uri, &self.tokens)?;
        let access = match &mut self.access {
            Some(access) => access,
            access => {
                let opened = self.tokens.access(self.tool, SESSIONS);
                access.insert(opened.map_err(KeyError::Start)?)
            }
        };
        Ok(access.key(&reference)?)
    }
}

/// The key of `uri`, with what is left open by it.
pub(super) fn reference(uri: Uri, tokens: &TokenUse) -> Result<Reference, KeyError> {
    let shown = uri.to_string();
    tokens
        .reference(uri)
        .map_err(|source| KeyError::Reference { uri: shown, source })
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// What begins with `pkcs11:` is no URI. It is not shown: there may be a PIN in it.
    #[error("the URI that begins with pkcs11: {}", within_sentence(.0))]
    Uri(UriError),
    /// Only a URI will do.
    #[error("{} is no URI: it begins with pkcs11:", path.display())]
    NotAUri {
        /// What was given.
        path: PathBuf,
    },
    /// A URI does not name a key to sign with.
    #[error("{uri}: {}", reference_fault(source))]
    Reference {
        /// The URI, without a PIN.
        uri: String,
        /// Why not.
        source: ReferenceError,
    },
    /// A file is not there, or not for us.
    #[error("cannot read key {}: {}", path.display(), cause(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds no private key.
    #[error("{name}: {source}")]
    NotAKey {
        /// The file.
        name: String,
        /// Why not.
        source: PrivateKeyError,
    },
    /// No engine takes the key.
    #[error("{name}: {source}")]
    Refused {
        /// Its file.
        name: String,
        /// Why not.
        source: EngineError,
    },
    /// The system does not let us begin.
    #[error("cannot begin to look for tokens: {}", cause(.0))]
    Start(io::Error),
    /// A token does not give the key.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl KeyError {
    /// The code to end with.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Reference {
                source: ReferenceError::NoSuchName { .. } | ReferenceError::Directory { .. },
                ..
            } => EX_CONFIG,
            Self::Uri(_) | Self::NotAUri { .. } | Self::Reference { .. } => EX_USAGE,
            Self::Unreadable { .. } => EX_NOINPUT,
            Self::NotAKey { .. } | Self::Refused { .. } => EX_CONFIG,
            Self::Start(_) => EX_IOERR,
            Self::Token(error) => error.exit_code(),
        }
    }
}

/// The fault of a URI, as a sentence that goes on from "the URI".
fn within_sentence(error: &UriError) -> String {
    let sentence = error.to_string();
    let rest = sentence
        .strip_prefix("the URI ")
        .filter(|rest| rest.starts_with("is ") || rest.starts_with("names "));
    rest.map_or_else(|| format!("is wrong: {sentence}"), ToOwned::to_owned)
}

/// The options of the tools, where the library speaks of the configuration's.
fn reference_fault(error: &ReferenceError) -> String {
    match error {
        ReferenceError::NoModule => {
            "which module has the token? say so by --pkcs11-module, by Pkcs11Module in the configuration, or by \
             module-path=/path/to/module.so in the URI"
                .to_owned()
        }
        ReferenceError::PinValue => {
            "a pin-value can be seen by others, in ps(1) and in the shell's history: put the PIN into a file that only \
             you can read, and name that by --pkcs11-pin-file or by pin-source in the URI"
                .to_owned()
        }
        error => error.to_string(),
    }
}

/// A tool makes one signature at a time.
const SESSIONS: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::token_access::TokenArguments;

    /// Without any option.
    fn no_options() -> TokenUse {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            tokens: TokenArguments,
        }
        let only = <Only as clap::Parser>::parse_from(["tool"]);
        only.tokens.with_module(None)
    }

    #[test]
    fn what_is_no_uri_is_a_file() {
        for (text, is_file) in [
            ("mail.pem", true),
            ("./pkcs11:object=mail", true),
            ("pkcs11:object=mail", false),
            ("PKCS11:object=mail", false),
        ] {
            let name = KeyName::parse(OsStr::new(text)).unwrap();
            assert_eq!(matches!(name, KeyName::File(_)), is_file, "{text}");
        }
    }

    #[test]
    fn each_fault_of_a_uri_has_its_sentence_and_none_shows_the_pin() {
        for (text, sentence) in [
            (
                "pkcs11:",
                "the URI that begins with pkcs11: names no token and no key",
            ),
            (
                "pkcs11:objekt=a?pin-value=1234",
                "attribute \"objekt\" is not known",
            ),
            ("pkcs11:object=a", "say so by --pkcs11-module"),
            (
                "pkcs11:object=a?module-path=/m.so&pin-value=1234",
                "in ps(1)",
            ),
            (
                "pkcs11:object=a;type=cert?module-path=/m.so",
                "type=cert is not what signs",
            ),
        ] {
            let name = KeyName::parse(OsStr::new(text));
            let loaded = name.and_then(|name| {
                KeyLoader::run("tool", None, no_options(), |loader| loader.load(&name))
            });
            let error = loaded.unwrap_err();
            let shown = error.to_string();
            assert!(shown.contains(sentence), "{text}: {shown}");
            assert!(!shown.contains("1234"), "{shown}");
            assert_eq!(error.exit_code(), EX_USAGE, "{text}");
        }
    }
}
