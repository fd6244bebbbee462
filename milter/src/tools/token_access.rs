//! Tokens as the tools use them: options, a short wait, warnings on standard error, and an orderly end.

use super::{EX_CONFIG, EX_UNAVAILABLE, absolute, say};
use crate::config::TokenOptions;
use clap::builder::{OsStringValueParser, TypedValueParser};
use dkim_core::engine::SigningKey;
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{
    Fault, Isolation, Level, Reference, ReferenceError, Settings, TokenDigester, TokenListing,
    TokenVerifier, Tokens, told_once,
};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How tokens are opened; which module is used, each tool says by itself.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TokenArguments {
    /// File with the token's PIN, or credential:NAME for a credential of systemd; pin-source in a URI comes before it
    #[arg(long = "pkcs11-pin-file", value_name = "FILE", value_parser = pin_source_parser())]
    pin: Option<PinSource>,

    /// Load modules into this process, and not each into a process of its own
    #[arg(long = "pkcs11-in-process")]
    in_process: bool,
}

/// How tokens are used, by options and perhaps a configuration.
#[derive(Clone, Debug)]
pub(super) struct TokenUse {
    /// The module for URIs that name none.
    pub(super) module: Option<PathBuf>,
    /// Where the PIN comes from for URIs that do not say.
    pub(super) pin: Option<PinSource>,
    /// Take PINs that stand in URIs.
    allow_pin_value: bool,
    in_process: bool,
}

/// The tokens of a tool. To be [finished](Self::finish) in the end.
#[derive(Debug)]
pub(super) struct TokenAccess {
    tool: &'static str,
    tokens: Tokens,
    told: Arc<Told>,
}

/// What was told of tokens.
#[derive(Debug, Default)]
struct Told {
    /// The warnings, each of which is told once.
    warnings: Mutex<BTreeSet<String>>,
    /// The errors, in order: one may be what the tool fails with, too.
    errors: Mutex<Vec<String>>,
}

/// A key in a token cannot sign, or a token not verify or hash.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{uri} cannot {verb}: {reason}")]
pub struct TokenError {
    /// Its URI.
    uri: String,
    /// What it cannot do.
    verb: &'static str,
    /// Why, in one sentence.
    reason: String,
    code: u8,
}

impl TokenArguments {
    /// Whether any of them is there.
    pub(super) fn are_given(&self) -> bool {
        self.pin.is_some() || self.in_process
    }

    /// With `module` for URIs that name none.
    pub(super) fn with_module(&self, module: Option<&Path>) -> TokenUse {
        TokenUse {
            module: absolute(module),
            pin: self.pin.clone(),
            allow_pin_value: false,
            in_process: self.in_process,
        }
    }
}

impl TokenUse {
    /// What the configuration says where the command line says nothing.
    pub(super) fn or(self, options: &TokenOptions) -> Self {
        Self {
            module: self.module.or_else(|| options.module.clone()),
            pin: self.pin.or_else(|| options.pin.clone()),
            allow_pin_value: options.allow_pin_value,
            in_process: self.in_process || !options.isolated,
        }
    }

    /// The same, by `module`.
    pub(super) fn through(&self, module: &Path) -> Self {
        Self {
            module: Some(module.to_owned()),
            ..self.clone()
        }
    }

    /// The key of `uri`, with what is left open by it.
    pub(super) fn reference(&self, uri: Uri) -> Result<Reference, ReferenceError> {
        Reference::new(
            uri,
            self.module.as_deref(),
            self.pin.as_ref(),
            self.allow_pin_value,
        )
    }

    /// Opens nothing yet. Each token gets `sessions`; warnings go to standard error behind the name of the `tool`.
    ///
    /// # Errors
    /// The system gives no thread, or no random numbers.
    pub(super) fn access(&self, tool: &'static str, sessions: usize) -> io::Result<TokenAccess> {
        let told = Arc::<Told>::default();
        let mut settings = Settings {
            sessions,
            timeout: PATIENCE,
            ..Settings::default()
        };
        if self.in_process {
            settings.isolation = Isolation::None;
        }
        let telling = Arc::clone(&told);
        let tokens = Tokens::new(settings, move |notice| match notice.level {
            Level::Info => {}
            Level::Warning => telling.warn(tool, notice.text),
            Level::Error => lock(&telling.errors).push(told_once(&notice.text)),
        })?;
        Ok(TokenAccess { tool, tokens, told })
    }
}

impl TokenAccess {
    /// The key that `reference` names, once its token has answered.
    ///
    /// # Errors
    /// It cannot sign, or is not there.
    pub(super) fn key(&self, reference: &Reference) -> Result<Arc<dyn SigningKey>, TokenError> {
        let opened = self.tokens.key(reference).and_then(|key| {
            key.wait(PATIENCE)?;
            for note in key.notes() {
                self.told.warn(self.tool, note);
            }
            key.signing_key()
        });
        opened.map_err(|fault| TokenError::new(reference.uri.to_string(), "sign", &fault))
    }

    /// The token that `reference` names, to verify, once it has answered.
    ///
    /// # Errors
    /// It does not, or is not there.
    pub(super) fn verifier(&self, reference: &Reference) -> Result<TokenVerifier, TokenError> {
        let opened = self.tokens.verifier(reference).and_then(|verifier| {
            verifier.wait(PATIENCE)?;
            Ok(verifier)
        });
        opened.map_err(|fault| TokenError::new(reference.uri.to_string(), "verify", &fault))
    }

    /// The same, to hash.
    ///
    /// # Errors
    /// It does not, or is not there.
    pub(super) fn digester(&self, reference: &Reference) -> Result<TokenDigester, TokenError> {
        let opened = self.tokens.digester(reference).and_then(|digester| {
            digester.wait(PATIENCE)?;
            Ok(digester)
        });
        opened.map_err(|fault| TokenError::new(reference.uri.to_string(), "hash", &fault))
    }

    /// The tokens and keys of the module of `reference` that it matches.
    ///
    /// # Errors
    /// The module cannot be used.
    pub(super) fn list(&self, reference: &Reference) -> Result<Vec<TokenListing>, Fault> {
        self.tokens.list(reference)
    }

    /// Closes sessions and modules, and tells of each error that is not the `failure` that the tool ends with.
    pub(super) fn finish(self, failure: Option<String>) {
        self.tokens.shut_down(CLOSING);
        let errors = std::mem::take(&mut *lock(&self.told.errors));
        for error in errors {
            if failure.as_ref() != Some(&error) {
                say(self.tool, &error);
            }
        }
    }
}

impl Told {
    /// Warns, unless that was done before.
    fn warn(&self, tool: &str, text: String) {
        let warning = format!("warning: {text}");
        if lock(&self.warnings).insert(text) {
            say(tool, &warning);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TokenError {
    fn new(uri: String, verb: &'static str, fault: &Fault) -> Self {
        Self {
            uri,
            verb,
            reason: match fault {
                Fault::NotYet => {
                    format!("the token has not answered within {} s", PATIENCE.as_secs())
                }
                fault => told_once(&fault.to_string()),
            },
            code: fault_code(fault),
        }
    }

    /// The code to end with.
    pub(super) fn exit_code(&self) -> u8 {
        self.code
    }
}

/// The code of sysexits.h for `fault`: whether something is to be changed, or to be waited for.
pub(super) fn fault_code(fault: &Fault) -> u8 {
    match fault {
        Fault::Module { .. } | Fault::NoKey { .. } | Fault::Pin { .. } => EX_CONFIG,
        fault if fault.may_pass() => EX_UNAVAILABLE,
        _ => EX_CONFIG,
    }
}

fn pin_source_parser() -> impl TypedValueParser<Value = PinSource> {
    OsStringValueParser::new().try_map(|text| PinSource::parse(text.as_bytes()))
}

/// How long a token may take to be closed, when nothing is asked of it any more.
const CLOSING: Duration = Duration::from_secs(2);

/// How long a token may take to be opened, or to make a signature.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
