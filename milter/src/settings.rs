//! What a reload replaces: configuration, tables and keys, in one immutable piece that a message keeps to its end.

use crate::config::{AuthservId, Config};
use crate::keys::{Duties, KeySet};
use crate::protocol::negotiation::{MacroNameError, MacroStage, Wanted};
use dkim_core::engine::{Engine, default_engine, engine_by_name};
use dkim_core::signer::{DEFAULT_FIELDS, FieldChoice, FieldChoiceError};
use dkim_core::verifier::VerifierConfig;
use std::sync::Arc;

/// One state of the configuration, complete and checked.
#[derive(Debug)]
pub struct Settings {
    /// The options.
    pub config: Config,
    /// The keys that the options and tables name, loaded.
    pub keys: KeySet,
    /// The tokens that verify or hash, if any are named.
    pub duties: Duties,
    /// The header fields to sign.
    pub fields: Arc<FieldChoice>,
    /// What the verifier accepts.
    pub verifier: VerifierConfig,
    /// What an MTA is asked for.
    pub wanted: Wanted,
    /// The same on a Unix socket.
    pub wanted_on_unix: Wanted,
    /// Table entries whose mail cannot be handled as they say; each in one line.
    pub faults: Vec<String>,
    host_name: String,
}

impl Settings {
    /// Puts together what `config` says and the `keys` loaded for it. `host_name` is this host's name.
    ///
    /// # Errors
    /// An option that only now turns out to be of no use.
    pub fn new(config: Config, keys: KeySet, host_name: String) -> Result<Self, SettingsError> {
        let fields = config.signing.fields.resolve(&DEFAULT_FIELDS);
        let mut wanted = Wanted::default();
        for rule in &config.selection.macro_list.rules {
            for stage in [MacroStage::Connect, MacroStage::Mail, MacroStage::End] {
                wanted.ask_macro(stage, &rule.name)?;
            }
        }
        let verifying = &config.verifying;
        Ok(Self {
            fields: Arc::new(FieldChoice::new(&fields.sign, &fields.oversign)?),
            verifier: VerifierConfig {
                max_signatures: verifying.maximum_signatures,
                min_rsa_bits: verifying.minimum_key_bits,
                clock_drift: verifying.clock_drift.as_secs(),
                accept_unsigned_octets: verifying.allow_unsigned_tail,
                ..VerifierConfig::default()
            },
            duties: Duties::new(&config),
            wanted_on_unix: wanted.clone().with_envelope_unanswered(),
            wanted,
            faults: Vec::new(),
            host_name,
            keys,
            config,
        })
    }

    /// The name under which results are reported; `of_mta` is the MTA's own name, if it told.
    pub fn authserv_id(&self, of_mta: Option<&[u8]>) -> String {
        match &self.config.verifying.authserv_id {
            AuthservId::Name(name) => name.clone(),
            AuthservId::OfHost => self.host_name.clone(),
            AuthservId::OfMta => of_mta
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| self.host_name.clone()),
        }
    }

    /// The engine that checks signatures, unless a token does.
    pub fn engine(&self) -> &'static dyn Engine {
        let named = self.config.engine.and_then(engine_by_name);
        named.unwrap_or_else(default_engine)
    }
}

/// Why options cannot be put to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `SignHeaders` and its like.
    #[error("SignHeaders: {0}")]
    Fields(#[from] FieldChoiceError),
    /// `MacroList`.
    #[error("MacroList: {0}")]
    Macro(#[from] MacroNameError),
}
