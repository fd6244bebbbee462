//! The tokens of the daemon: made when a configuration first names a key in one, shut down last.
//!
//! A module is loaded, or its process started, by the daemon as the user that it has become, and not before. What happens
//! to tokens afterwards goes to the log, one line for each change, and to the service manager's status.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pkcs11_engine::{Isolation, Level, Notice, Settings, Tokens};

use super::Loaded;
use crate::config::TokenOptions;
use crate::shown::one_line;

/// The tokens, once there are any.
#[derive(Default)]
pub(super) struct DaemonTokens {
    tokens: Mutex<Option<Tokens>>,
    on_change: Option<OnChange>,
}

/// What is to be told of keys in tokens, one line each.
#[derive(Default)]
pub(super) struct Found {
    /// Keys that cannot sign now.
    pub(super) errors: Vec<String>,
    /// What is odd.
    pub(super) warnings: Vec<String>,
}

impl Found {
    /// Adds it to what is to be told of `loaded`.
    pub(super) fn add_to(self, loaded: &mut Loaded) {
        loaded.key_errors.extend(self.errors);
        loaded.warnings.extend(self.warnings);
    }

    /// Logs it.
    pub(super) fn tell(&self) {
        for warning in &self.warnings {
            tracing::warn!("{}", one_line(warning));
        }
        for error in &self.errors {
            tracing::error!("{}", one_line(error));
        }
    }
}

/// What is done when a token comes or goes.
pub(super) type OnChange = Arc<dyn Fn() + Send + Sync>;

impl DaemonTokens {
    /// `on_change` is called when a token has come or gone.
    pub(super) fn new(on_change: OnChange) -> Self {
        Self {
            tokens: Mutex::default(),
            on_change: Some(on_change),
        }
    }

    /// Opens the keys in tokens that `settings` name, and tokens with other duties; what is wrong and what is odd about them.
    pub(super) fn open(&self, settings: &crate::settings::Settings) -> Found {
        let keys = settings.keys.in_tokens();
        let mut found = Found::default();
        if keys.is_empty() && settings.duties.is_empty() {
            return found;
        }
        let options = &settings.config.signing.tokens;
        match self.tokens(options) {
            Ok(tokens) => {
                let patience = options.timeout + MARGIN;
                let errors = keys.open(&tokens, patience);
                found.errors.extend(errors.iter().map(ToString::to_string));
                found.errors.extend(settings.duties.open(&tokens, patience));
            }
            Err(error) => found.errors.push(format!("tokens: {error}")),
        }
        for (place, key) in keys.opened() {
            let notes = key.notes().into_iter();
            found
                .warnings
                .extend(notes.map(|note| format!("{place}: {note}")));
        }
        found
    }

    /// Ends all: signs what waits, logs out, finalizes modules; within `within`.
    pub(super) fn shut_down(&self, within: Duration) {
        let tokens = self.lock().take();
        if let Some(tokens) = tokens
            && !tokens.shut_down(within)
        {
            tracing::warn!(
                "a PKCS#11 module did not end as it should, or not in time; nothing waits for it any more"
            );
        }
    }

    fn tokens(&self, options: &TokenOptions) -> std::io::Result<Tokens> {
        let mut tokens = self.lock();
        if let Some(tokens) = &*tokens {
            return Ok(tokens.clone());
        }
        let on_change = self.on_change.clone();
        let made = Tokens::new(settings(options), move |notice| {
            log(&notice);
            if let Some(on_change) = &on_change {
                on_change();
            }
        })?;
        Ok(tokens.insert(made).clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Tokens>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settings(options: &TokenOptions) -> Settings {
    Settings {
        isolation: if options.isolated {
            Settings::default().isolation
        } else {
            Isolation::None
        },
        sessions: options.sessions,
        queue: options.queue,
        timeout: options.timeout,
    }
}

fn log(notice: &Notice) {
    let text = one_line(&notice.to_string());
    match notice.level {
        Level::Info => tracing::info!("{text}"),
        Level::Warning => tracing::warn!("{text}"),
        Level::Error => tracing::error!("{text}"),
    }
}

/// How much longer than a signature it may take until it is known whether a key signs.
const MARGIN: Duration = Duration::from_secs(1);
