//! What there is in tokens, as URIs that can be pasted where a key file would stand, with what is to be known of each key.
//!
//! A PIN is tried at one token or at none: with several that match, it would bring those that it does not belong to nearer
//! to being locked.

use super::private_key::{KeyError, KeyName, reference};
use super::speed::{Speed, THREADS};
use super::testkey::{NAME, TestkeyError, WRONG};
use super::token_access::{TokenAccess, TokenUse, fault_code};
use super::{EX_OK, EX_UNAVAILABLE, absolute};
use crate::record_check::{RECOMMENDED, RecordCheck, SHORTEST, kind_and_size};
use crate::shown::one_line;
use dkim_core::engine::{KeyType, PublicKey};
use dkim_core::key_record::KeyAnswer;
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{
    Fault, KeyFacts, Public, Reference, TokenListing, installed_modules, told_once,
};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// What is to be listed, and how.
pub(super) struct ListRequest<'a> {
    /// Where to look; empty for where packages put modules.
    pub(super) modules: &'a [PathBuf],
    /// What must match.
    pub(super) uri: Option<&'a OsStr>,
    /// How tokens are opened.
    pub(super) tokens: TokenUse,
    /// A record, by its name, that is held against each key.
    pub(super) record: Option<(String, Arc<KeyAnswer>)>,
    /// Whether keys are measured.
    pub(super) speed: bool,
}

/// Writes the list to standard output.
///
/// # Errors
/// A URI that is none, or no way to look.
pub(super) fn list(request: &ListRequest<'_>) -> Result<u8, TestkeyError> {
    let search = Search::new(request)?;
    let sessions = if request.speed {
        THREADS[THREADS.len() - 1]
    } else {
        1
    };
    let access = request
        .tokens
        .access(NAME, sessions)
        .map_err(TestkeyError::Start)?;
    let listed = search.write(request, &access);
    access.finish(None);
    listed
}

/// Where to look for what.
struct Search {
    /// One for each module, without PIN.
    references: Vec<Reference>,
    pin: Option<PinSource>,
    /// Where modules were looked for, if nobody named any.
    directories: &'static [&'static str],
    /// Whether a URI says what must match.
    is_narrowed: bool,
    /// Whether URIs must name the module, because options would not.
    names_module: bool,
}

/// What a module has.
type Listed = Result<Vec<TokenListing>, Fault>;

impl Search {
    fn new(request: &ListRequest<'_>) -> Result<Self, TestkeyError> {
        let uri = match request.uri.map(KeyName::parse).transpose()? {
            None => None,
            Some(KeyName::Token(uri)) => Some(*uri),
            Some(KeyName::File(path)) => return Err(TestkeyError::Key(KeyError::NotAUri { path })),
        };
        let is_module_in_uri = uri
            .as_ref()
            .is_some_and(|uri| uri.module_path.is_some() || uri.module_name.is_some());
        let (modules, directories) = match request.modules {
            // The URI's own comes first.
            _ if is_module_in_uri => (vec![PathBuf::new()], &[][..]),
            [] => installed_modules(),
            modules => {
                let modules = modules.iter().filter_map(|path| absolute(Some(path)));
                (modules.collect(), &[][..])
            }
        };
        let mut pin = request.tokens.pin.clone();
        let mut references = Vec::new();
        for module in &modules {
            let mut found = match &uri {
                None => Reference::everything(module, None),
                Some(uri) => reference(uri.clone(), &request.tokens.through(module))?,
            };
            pin = found.pin.take().or(pin);
            references.push(found);
        }
        Ok(Self {
            references,
            pin,
            directories,
            is_narrowed: uri.is_some(),
            names_module: is_module_in_uri || request.modules.is_empty(),
        })
    }

    fn write(&self, request: &ListRequest<'_>, access: &TokenAccess) -> Result<u8, TestkeyError> {
        let mut output = io::stdout().lock();
        if !self.directories.is_empty() {
            let directories = self.directories.join(", ");
            if self.references.is_empty() {
                writeln!(
                    output,
                    "there is no module in {directories}; name one by --pkcs11-module"
                )?;
            } else {
                writeln!(output, "modules in {directories}:")?;
            }
        }
        let mut listed = self.list(access);
        let locked = listed.iter().flatten().flatten();
        let locked = locked.filter(|token| is_locked(token)).count();
        if let (1, Some(pin)) = (locked, &self.pin) {
            self.list_with_pin(&mut listed, pin, access);
        }
        let mut outcome = Outcome::default();
        for (reference, listed) in self.references.iter().zip(&listed) {
            let module = one_line(&reference.module.display().to_string());
            match listed {
                Err(fault) => {
                    let sentence = match fault {
                        Fault::Module { reason, .. } => reason.clone(),
                        Fault::Late => "has not answered for a minute".to_owned(),
                        fault => fault.to_string(),
                    };
                    writeln!(output, "{module}: {}", one_line(&sentence))?;
                    if self.directories.is_empty() {
                        outcome.failed = Some(fault_code(fault));
                    }
                }
                Ok(listed) => {
                    let count = match listed.len() {
                        0 => self.without("token"),
                        1 => "1 token".to_owned(),
                        count => format!("{count} tokens"),
                    };
                    writeln!(output, "{module}: {count}")?;
                    for token in listed {
                        self.write_token(token, locked, &mut output)?;
                        for key in &token.keys {
                            let place = Place {
                                module: &reference.module,
                                key,
                            };
                            self.write_key(&place, request, access, &mut outcome, &mut output)?;
                        }
                    }
                }
            }
        }
        output.flush()?;
        Ok(outcome.code())
    }

    /// Asks all modules at once: one that hangs keeps nobody longer than itself.
    fn list(&self, access: &TokenAccess) -> Vec<Listed> {
        thread::scope(|scope| {
            let ask = |reference| scope.spawn(move || access.list(reference));
            let asked: Vec<_> = self.references.iter().map(ask).collect();
            let listed = asked.into_iter().map(|asked| asked.join());
            listed
                .map(|listed| listed.unwrap_or(Err(Fault::Late)))
                .collect()
        })
    }

    /// Lists the only token that wants a PIN once more, with it.
    fn list_with_pin(&self, listed: &mut [Listed], pin: &PinSource, access: &TokenAccess) {
        for (reference, listed) in self.references.iter().zip(listed) {
            let Some(token) = listed.iter_mut().flatten().find(|token| is_locked(token)) else {
                continue;
            };
            let by_name = Uri::of_token(&token.facts);
            let reference = Reference {
                uri: Uri {
                    token: by_name.token,
                    manufacturer: by_name.manufacturer,
                    model: by_name.model,
                    serial: by_name.serial,
                    ..reference.uri.clone()
                },
                pin: Some(pin.clone()),
                ..reference.clone()
            };
            match access.list(&reference).map(|mut listed| listed.pop()) {
                Ok(Some(opened)) => *token = opened,
                // It went away meanwhile, and is shown as it was.
                Ok(None) => {}
                Err(fault) => token.not_logged_in = Some(fault),
            }
        }
    }

    fn write_token(
        &self,
        token: &TokenListing,
        locked: usize,
        output: &mut impl Write,
    ) -> io::Result<()> {
        writeln!(output, "  {}", one_line(&token.uri))?;
        let fault = token.not_logged_in.as_ref().filter(|_| is_locked(token));
        let sentence = match (fault, &self.pin) {
            (None, _) if token.keys.is_empty() => self.without("private key"),
            (None, _) => return Ok(()),
            (Some(_), None) => {
                "private keys are hidden until somebody logs in: name the file with the PIN by --pkcs11-pin-file"
                    .to_owned()
            }
            (Some(_), Some(_)) if locked > 1 => format!(
                "private keys are hidden: the PIN is not tried, as {locked} tokens want one; name this one by -u"
            ),
            (Some(Fault::Pin { reason, .. }), Some(_)) => {
                format!("private keys are hidden, as nobody is logged in: {}", told_once(reason))
            }
            (Some(fault), Some(_)) => {
                format!("private keys are hidden, as nobody is logged in: {}", told_once(&fault.to_string()))
            }
        };
        writeln!(output, "      {}", one_line(&sentence))
    }

    /// There is none.
    fn without(&self, what: &str) -> String {
        if self.is_narrowed {
            format!("no {what} that matches")
        } else {
            format!("no {what}")
        }
    }

    fn write_key(
        &self,
        place: &Place<'_>,
        request: &ListRequest<'_>,
        access: &TokenAccess,
        outcome: &mut Outcome,
        output: &mut impl Write,
    ) -> Result<(), TestkeyError> {
        let key = place.key;
        let uri = place.uri(self.names_module);
        writeln!(output, "    {}", one_line(&uri.to_string()))?;
        let public = key.public.as_ref().and_then(Public::key);
        writeln!(output, "      {}", one_line(&told(key, public.as_ref())))?;
        match (&request.record, &public) {
            (Some((name, answer)), Some(public)) => {
                let check = RecordCheck::new(answer, Some(public));
                let fits = check.faults.is_empty();
                outcome.found |= fits;
                let sentence = if fits {
                    "the record has this key".to_owned()
                } else {
                    check.to_string()
                };
                writeln!(output, "      {name}: {}", one_line(&sentence))?;
            }
            (Some(_), None) => {}
            (None, _) => outcome.found = true,
        }
        if request.speed && can_sign(key, public.as_ref()) {
            // It takes seconds, and somebody watches.
            output.flush()?;
            let measured = self
                .key(&uri, &request.tokens.through(place.module))
                .map_err(|error| error.to_string())
                .and_then(|reference| {
                    let key = access.key(&reference).map_err(|error| error.to_string())?;
                    Speed::measure(&*key).map_err(|error| error.to_string())
                });
            match measured {
                Ok(speed) => {
                    for line in speed.to_string().lines() {
                        writeln!(output, "      {line}")?;
                    }
                }
                Err(sentence) => {
                    writeln!(output, "      not measured: {}", one_line(&sentence))?;
                    outcome.failed = Some(EX_UNAVAILABLE);
                }
            }
        }
        Ok(())
    }

    fn key(&self, uri: &Uri, tokens: &TokenUse) -> Result<Reference, KeyError> {
        let mut reference = reference(uri.clone(), tokens)?;
        reference.pin = self.pin.clone();
        Ok(reference)
    }
}

/// Whether the token wants a PIN that it has not got.
fn is_locked(token: &TokenListing) -> bool {
    token.login_required && token.not_logged_in.is_some()
}

/// A key, and in which module.
struct Place<'a> {
    module: &'a Path,
    key: &'a KeyFacts,
}

impl Place<'_> {
    fn uri(&self, names_module: bool) -> Uri {
        let module = names_module.then_some(self.module);
        Uri::of_key(&self.key.token, &self.key.label, &self.key.id, module)
    }
}

/// How it went.
#[derive(Default)]
struct Outcome {
    /// A key that was wanted is there.
    found: bool,
    /// Something that was named cannot be used.
    failed: Option<u8>,
}

impl Outcome {
    fn code(&self) -> u8 {
        match (self.failed, self.found) {
            (Some(code), _) => code,
            (None, true) => EX_OK,
            (None, false) => WRONG,
        }
    }
}

/// What there is to know of `key`, whose public half is `public`.
fn told(key: &KeyFacts, public: Option<&PublicKey>) -> String {
    let Some(public) = public else {
        return match &key.other_kind {
            Some(kind) => format!("not for mail: {kind} key, RSA or Ed25519 wanted"),
            None => "not for mail: the token does not tell its public half, or it is none of RSA or Ed25519"
                .to_owned(),
        };
    };
    let mut told = vec![kind_and_size(public)];
    told.push(match (key.can_sign, key.method) {
        _ if is_too_short(public) => "too short to sign with".to_owned(),
        (Some(false), _) => "may not sign (CKA_SIGN is false)".to_owned(),
        (_, None) => "the token has no mechanism to sign by".to_owned(),
        (_, Some(method)) => format!("signs by {}", method.mechanism()),
    });
    told.push(
        match key.extractable {
            Some(true) => "can be copied out of the token (CKA_EXTRACTABLE)",
            Some(false) => "cannot leave the token",
            None => "whether it can leave the token is not told",
        }
        .to_owned(),
    );
    if key.always_authenticate {
        told.push("wants the PIN for each signature (CKA_ALWAYS_AUTHENTICATE)".to_owned());
    }
    if is_too_short(public) {
        told.push(format!(
            "verifiers accept none with less than {SHORTEST} bits (RFC 8301 section 3.2)"
        ));
    } else if public.key_type() == KeyType::Rsa && public.bits() < RECOMMENDED {
        told.push(format!(
            "{RECOMMENDED} bits should be used (RFC 8301 section 3.2)"
        ));
    }
    told.join("; ")
}

fn can_sign(key: &KeyFacts, public: Option<&PublicKey>) -> bool {
    let is_of_use = public.is_some_and(|public| !is_too_short(public));
    key.method.is_some() && key.can_sign != Some(false) && is_of_use
}

fn is_too_short(public: &PublicKey) -> bool {
    public.key_type() == KeyType::Rsa && public.bits() < SHORTEST
}

#[cfg(test)]
mod tests {
    use super::*;
    use pkcs11_engine::Method;

    fn facts() -> KeyFacts {
        KeyFacts {
            uri: String::new(),
            token: Default::default(),
            label: b"2026a".to_vec(),
            id: vec![1],
            public: None,
            other_kind: None,
            can_sign: Some(true),
            extractable: Some(false),
            always_authenticate: false,
            method: Some(Method::RsaPkcs),
        }
    }

    #[test]
    fn a_uri_names_its_module_where_no_option_does() {
        let key = facts();
        let place = Place {
            module: Path::new("/m.so"),
            key: &key,
        };
        let short = place.uri(false).to_string();
        assert!(
            short.ends_with("object=2026a;id=%01;type=private"),
            "{short}"
        );
        assert_eq!(
            place.uri(true).to_string(),
            format!("{short}?module-path=/m.so")
        );
    }

    #[test]
    fn what_was_named_and_failed_counts_more_than_what_was_found() {
        for (found, failed, code) in [
            (true, None, 0),
            (false, None, 1),
            (true, Some(78), 78),
            (false, Some(69), 69),
        ] {
            assert_eq!(Outcome { found, failed }.code(), code);
        }
    }

    #[test]
    fn a_key_that_verifiers_refuse_is_not_one_that_signs() {
        for (bits, word, of_use) in [
            (512, "too short to sign with", false),
            (1024, "2048 bits should be used", true),
            (2048, "signs by CKM_RSA_PKCS", true),
        ] {
            let modulus = [&[0x80][..], &vec![0; bits / 8 - 2], &[1]].concat();
            let public = PublicKey::from_rsa_numbers(&modulus, &[1, 0, 1]).unwrap();
            let key = facts();
            let told = told(&key, Some(&public));
            assert!(told.contains(word), "{told}");
            assert_eq!(told.contains("signs by"), of_use, "{told}");
            assert_eq!(can_sign(&key, Some(&public)), of_use, "{bits}");
        }
    }

    #[test]
    fn a_key_without_a_public_half_is_not_for_mail() {
        assert!(told(&facts(), None).starts_with("not for mail: the token does not tell"));
        let elliptic = KeyFacts {
            other_kind: Some("EC".to_owned()),
            ..facts()
        };
        assert_eq!(
            told(&elliptic, None),
            "not for mail: EC key, RSA or Ed25519 wanted"
        );
        assert!(!can_sign(&facts(), None));
    }
}
