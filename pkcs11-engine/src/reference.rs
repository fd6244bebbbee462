//! From what operators write to what is needed to sign: the URI, and options for what it leaves open.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::pin::PinSource;
use crate::uri::{MechanismChoice, ObjectType, Uri};

/// What names a key and opens its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The key's URI.
    pub uri: Uri,
    /// The module's library.
    pub module: PathBuf,
    /// Where the PIN comes from; `None` for a token that is logged in at its own pad, or not at all.
    pub pin: Option<PinSource>,
}

impl Reference {
    /// The key of `uri`. What the URI does not say is taken from `module` and `pin`. A PIN in the URI itself is refused
    /// unless `allow_pin_value`: it would be in the configuration, its copies, and shell histories.
    ///
    /// # Errors
    /// There is no module to load, or the URI is not that of a private key.
    pub fn new(
        uri: Uri,
        module: Option<&Path>,
        pin: Option<&PinSource>,
        allow_pin_value: bool,
    ) -> Result<Self, ReferenceError> {
        if let Some(found) = uri
            .object_type
            .filter(|found| *found != ObjectType::Private)
        {
            return Err(ReferenceError::NotPrivate { found });
        }
        if matches!(uri.pin, Some(PinSource::Value(_))) && !allow_pin_value {
            return Err(ReferenceError::PinValue);
        }
        let module = match (&uri.module_path, &uri.module_name, module) {
            (Some(path), _, _) => path.clone(),
            (None, Some(name), _) => by_name(name)?,
            (None, None, Some(path)) => path.to_owned(),
            (None, None, None) => return Err(ReferenceError::NoModule),
        };
        if module.is_dir() {
            return Err(ReferenceError::Directory { path: module });
        }
        Ok(Self {
            pin: uri.pin.clone().or_else(|| pin.cloned()),
            module,
            uri,
        })
    }

    /// The same for a token that is named for something else than to sign with a key of its own: that it `does` with keys
    /// that are brought to it, or with none. Only what verifies has mechanisms to choose from.
    ///
    /// # Errors
    /// The URI says something that would mean nothing there.
    pub fn of_token(self, does: TokenTask) -> Result<Self, ReferenceError> {
        let uri = &self.uri;
        let meaningless = [
            ("object", uri.object.is_some()),
            ("id", uri.id.is_some()),
            ("type", uri.object_type.is_some()),
            ("x-on-token-away", uri.on_away.is_some()),
            (
                "x-mechanism",
                uri.mechanism.is_some() && does == TokenTask::Digests,
            ),
        ];
        match meaningless.iter().find(|(_, is_given)| *is_given) {
            Some((attribute, _)) => Err(ReferenceError::NotOfToken { attribute, does }),
            None => Ok(self),
        }
    }

    /// All tokens and keys of `module`, which is not one key to sign with: for lists. `pin` is tried where there is one
    /// token only.
    pub fn everything(module: &Path, pin: Option<&PinSource>) -> Self {
        Self {
            uri: Uri::default(),
            module: module.to_owned(),
            pin: pin.cloned(),
        }
    }

    /// By which mechanism an RSA key signs.
    pub(crate) fn mechanism(&self) -> MechanismChoice {
        self.uri.mechanism.unwrap_or(MechanismChoice::Auto)
    }
}

/// What a token is named for, where that is not to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenTask {
    /// To verify.
    Verifies,
    /// To hash.
    Digests,
}

/// Why a URI cannot be used as a key to sign with, or as a token to verify or hash with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Nobody says which module.
    #[error(
        "which module has the token? say so by module-path=/path/to/module.so in the URI, or by Pkcs11Module"
    )]
    NoModule,
    /// A module that is not there under that name.
    #[error("no module is called {name}: there is none of {}", .tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoSuchName {
        /// The name.
        name: String,
        /// The files it could be.
        tried: Vec<PathBuf>,
    },
    /// A directory in the place of a module.
    #[error("module-path: {} is a directory; name the module's file", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
    },
    /// A PIN in the open.
    #[error(
        "pin-value puts the PIN into the open: name a file by pin-source, or allow it by Pkcs11AllowPinValue"
    )]
    PinValue,
    /// An attribute that means nothing where the token alone is named.
    #[error(
        "attribute {attribute} is for a key that signs, and this URI names a token that {}: leave it out",
        match does {
            TokenTask::Verifies => "verifies",
            TokenTask::Digests => "hashes",
        }
    )]
    NotOfToken {
        /// Which.
        attribute: &'static str,
        /// What the token is named for.
        does: TokenTask,
    },
    /// The URI of a certificate, or of a public key.
    #[error("type={found} is not what signs; a private key is needed: type=private")]
    NotPrivate {
        /// What it names.
        found: ObjectType,
    },
}

/// The modules that are where packages put modules, each once, for who does not know which to name; and where that is.
///
/// OpenSC's `pkcs11-spy` is left out: it writes down PINs.
pub fn installed_modules() -> (Vec<PathBuf>, &'static [&'static str]) {
    let mut modules = Vec::new();
    let mut seen = BTreeSet::new();
    for directory in MODULE_DIRECTORIES {
        let mut files: Vec<_> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "so"))
            .filter(|path| path.file_stem().is_none_or(|name| name != SPY))
            .collect();
        files.sort();
        modules.extend(files.into_iter().filter(|path| {
            let real = path.canonicalize();
            seen.insert(real.unwrap_or_else(|_| path.clone()))
        }));
    }
    (modules, &MODULE_DIRECTORIES)
}

const SPY: &str = "pkcs11-spy";

/// The module of that name where packages put modules (RFC 7512 section 2.3 leaves it to the system).
fn by_name(name: &str) -> Result<PathBuf, ReferenceError> {
    let mut tried = Vec::new();
    for directory in MODULE_DIRECTORIES {
        for file in [format!("lib{name}.so"), format!("{name}.so")] {
            let path = Path::new(directory).join(file);
            if path.exists() {
                return Ok(path);
            }
            tried.push(path);
        }
    }
    Err(ReferenceError::NoSuchName {
        name: name.to_owned(),
        tried,
    })
}

/// Where modules are, in Debian's packages and in others'.
const MODULE_DIRECTORIES: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/pkcs11",
    "/usr/lib/aarch64-linux-gnu/pkcs11",
    "/usr/lib64/pkcs11",
    "/usr/lib/pkcs11",
    "/usr/lib/softhsm",
    "/usr/lib64/softhsm",
    "/usr/local/lib/pkcs11",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(uri: &str, module: Option<&str>) -> Result<Reference, ReferenceError> {
        let uri = Uri::parse(uri.as_bytes()).unwrap();
        let pin = PinSource::File("/of/option".into());
        Reference::new(uri, module.map(Path::new), Some(&pin), false)
    }

    #[test]
    fn what_the_uri_says_comes_before_the_options() {
        let of_uri = reference(
            "pkcs11:object=a?module-path=/m.so&pin-source=/p",
            Some("/n.so"),
        )
        .unwrap();
        assert_eq!(of_uri.module, Path::new("/m.so"));
        assert_eq!(of_uri.pin, Some(PinSource::File("/p".into())));
        let of_options = reference("pkcs11:object=a", Some("/n.so")).unwrap();
        assert_eq!(of_options.module, Path::new("/n.so"));
        assert_eq!(of_options.pin, Some(PinSource::File("/of/option".into())));
    }

    #[test]
    fn what_is_of_a_key_is_refused_where_a_token_is_named() {
        use TokenTask::{Digests, Verifies};
        for (uri, does, attribute) in [
            ("pkcs11:token=t", Verifies, None),
            ("pkcs11:token=t", Digests, None),
            ("pkcs11:token=t?x-mechanism=rsa-pkcs", Verifies, None),
            (
                "pkcs11:token=t?x-mechanism=rsa-pkcs",
                Digests,
                Some("x-mechanism"),
            ),
            ("pkcs11:token=t;object=a", Verifies, Some("object")),
            ("pkcs11:token=t;id=%01", Digests, Some("id")),
            ("pkcs11:token=t;type=private", Verifies, Some("type")),
            (
                "pkcs11:token=t?x-on-token-away=next",
                Verifies,
                Some("x-on-token-away"),
            ),
        ] {
            let found = reference(uri, Some("/n.so")).unwrap().of_token(does);
            let wanted = attribute.map(|attribute| ReferenceError::NotOfToken { attribute, does });
            assert_eq!(found.err(), wanted, "{uri}");
        }
    }

    #[test]
    fn what_cannot_sign_or_is_not_said_is_refused() {
        for (uri, module, sentence) in [
            ("pkcs11:object=a", None, "which module has the token?"),
            (
                "pkcs11:type=cert",
                Some("/n.so"),
                "type=cert is not what signs",
            ),
            (
                "pkcs11:type=public",
                Some("/n.so"),
                "type=public is not what signs",
            ),
            (
                "pkcs11:object=a?pin-value=1234",
                Some("/n.so"),
                "pin-value puts the PIN into the open",
            ),
            (
                "pkcs11:object=a?module-name=nosuch",
                None,
                "no module is called nosuch",
            ),
            (
                "pkcs11:object=a?module-path=/usr",
                None,
                "/usr is a directory",
            ),
        ] {
            let error = reference(uri, module).unwrap_err().to_string();
            assert!(error.contains(sentence), "{uri}: {error}");
            assert!(!error.contains("1234"), "{error}");
        }
    }
}
