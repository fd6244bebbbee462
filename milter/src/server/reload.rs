//! A state of the daemon from configuration, tables, keys and resolver; and the swap of one for another.
//!
//! A new state is made whole before it replaces the old one, beside the event loop. It is all or nothing: with any error
//! in the configuration or the tables, or when a key that signs now could not be loaded again, the old state stays; so it
//! does when the sockets are gone from the configuration, which one that is half written is.
//! Messages that have begun keep the state they began with.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::places::base_directory;
use super::privileges::{RunAs, UserError};
use super::{State, Vitals, service_manager};
use crate::config::{Config, Overrides, RecordPolicy, Service, Warning};
use crate::dns::{
    CacheLimits, Format, KeySource, LookUps, RecordsFile, Resolver, SYSTEM_CONFIGURATION,
};
use crate::keys::{KeySet, Reader};
use crate::settings::Settings;

/// Where a state is made from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The configuration file; `None` for the command line alone.
    pub path: Option<PathBuf>,
    /// What the command line sets.
    pub overrides: Overrides,
    /// Where look-ups of all its states are counted.
    pub look_ups: Arc<LookUps>,
}

/// A state, and what is to be told of it.
pub struct Loaded {
    /// The state.
    pub state: State,
    /// Whom `UserID` names.
    pub run_as: Option<RunAs>,
    /// Keys that cannot be used, one line each.
    pub key_errors: Vec<String>,
    /// What is odd, one line each.
    pub warnings: Vec<String>,
}

/// Why there is no state: all that is wrong, and what is odd beside it; one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadError {
    /// What is wrong.
    pub errors: Vec<String>,
    /// What is odd.
    pub warnings: Vec<String>,
    /// Whether all that is wrong stands on the command line.
    pub by_arguments: bool,
}

/// Makes a state; called beside the event loop.
pub type Loader = Arc<dyn Fn() -> Result<Loaded, LoadError> + Send + Sync>;

impl Source {
    /// Reads configuration, tables and keys.
    ///
    /// # Errors
    /// All that is wrong but for keys, which keep nobody else's mail from being signed.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let (config, warnings) =
            Config::load(self.path.as_deref(), &self.overrides).map_err(|refused| LoadError {
                by_arguments: refused.is_of_command_line(),
                errors: lines(&refused.errors),
                warnings: lines(&refused.warnings),
            })?;
        let (faults, warnings): (Vec<_>, Vec<_>) =
            warnings.into_iter().partition(Warning::is_fault);
        let mut warnings = lines(&warnings);
        match complete(config, lines(&faults), &self.look_ups, &mut warnings) {
            Ok(loaded) => Ok(Loaded { warnings, ..loaded }),
            Err(error) => Err(LoadError {
                by_arguments: false,
                errors: vec![error],
                warnings,
            }),
        }
    }
}

/// All that comes after the configuration; what is odd is added to `warnings`.
fn complete(
    config: Config,
    faults: Vec<String>,
    look_ups: &Arc<LookUps>,
    warnings: &mut Vec<String>,
) -> Result<Loaded, String> {
    let find = |wanted| {
        RunAs::find(wanted).map_err(|error: UserError| at_origin(&config, "UserID", &error))
    };
    let run_as = config.service.user.as_ref().map(find).transpose()?;
    let key_records = key_records(&config, look_ups, warnings)?;
    let reader = match &run_as {
        // Who is not root stays who it is; that it cannot become another is told when it tries.
        Some(run_as) if rustix::process::geteuid().is_root() => run_as.reader(),
        _ => Reader::current(),
    };
    if config.origin("BaseDirectory").is_some() {
        let told = base_directory(&config.service);
        warnings.extend(told.map(|told| at_origin(&config, "BaseDirectory", &told)));
    }
    if !config.signing.require_safe_keys {
        warnings.push(
            "RequireSafeKeys is off: keys that others can read or replace are used".to_owned(),
        );
    }
    let keys = KeySet::load(&config, reader);
    let report = keys.report();
    let mut key_errors = faults.clone();
    key_errors.extend(lines(&report.errors));
    if report.more_errors > 0 {
        key_errors.push(format!("{} more keys cannot be used", report.more_errors));
    }
    warnings.extend(lines(&report.warnings));
    if report.more_warnings > 0 {
        warnings.push(format!("{} more warnings about keys", report.more_warnings));
    }
    let mut settings =
        Settings::new(config, keys, host_name()).map_err(|error| error.to_string())?;
    settings.faults = faults;
    let state = State {
        settings: Arc::new(settings),
        key_records,
    };
    Ok(Loaded {
        state,
        run_as,
        key_errors,
        warnings: Vec::new(),
    })
}

/// `error`, with the place where `option` is set before it.
fn at_origin(config: &Config, option: &str, error: &impl ToString) -> String {
    match config.origin(option) {
        Some(origin) => format!("{origin}: {}", error.to_string()),
        None => error.to_string(),
    }
}

fn key_records(
    config: &Config,
    look_ups: &Arc<LookUps>,
    warnings: &mut Vec<String>,
) -> Result<Arc<dyn KeySource>, String> {
    let dns = &config.dns;
    if let Some(path) = &dns.test_public_keys {
        let file = RecordsFile::read(path, Format::PublicKeys).map_err(|error| {
            at_origin(
                config,
                "TestPublicKeys",
                &format!("TestPublicKeys: {error}"),
            )
        })?;
        return Ok(Arc::new(file));
    }
    let limits = CacheLimits::default();
    let resolver = if dns.name_servers.is_empty() {
        Resolver::from_resolv_conf(SYSTEM_CONFIGURATION.as_ref(), dns.timeout, limits)
    } else {
        Resolver::with_servers(&dns.name_servers, dns.timeout, limits)
    };
    let resolver = resolver.map_err(|error| format!("name servers: {error}"))?;
    warnings.extend(
        resolver
            .warning()
            .map(|warning| format!("name servers: {warning}")),
    );
    Ok(Arc::new(resolver.counting(Arc::clone(look_ups))))
}

/// `1 key`, `2 keys`.
pub(super) fn counted(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn lines<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

/// Reloads on each request, for ever; requests that come while one is carried out are carried out together.
pub(super) async fn on_request(
    mut requests: mpsc::Receiver<()>,
    state: Arc<ArcSwap<State>>,
    loader: Loader,
    vitals: Arc<Vitals>,
) {
    while requests.recv().await.is_some() {
        service_manager::reloading();
        vitals.reload_begins();
        let (in_force, loader) = (state.load_full(), Arc::clone(&loader));
        let made = tokio::task::spawn_blocking(move || make(&in_force, &loader));
        let refusal = match made.await {
            Ok(Ok(next)) => {
                state.store(Arc::new(next));
                None
            }
            Ok(Err(why)) => {
                tracing::error!("not reloaded: all stays as it was");
                Some(why)
            }
            Err(error) => {
                tracing::error!("not reloaded: {error}; all stays as it was");
                Some(error.to_string())
            }
        };
        let is_taken = refusal.is_none();
        vitals.reload_ended(refusal);
        let status = vitals.tell_ready(&state.load());
        if is_taken {
            tracing::info!("reloaded: {status}");
        }
    }
}

/// The next state, after telling what there is to tell; or why the one in force is to stay.
fn make(in_force: &State, loader: &Loader) -> Result<State, String> {
    let loaded = loader().map_err(|error| {
        for warning in &error.warnings {
            tracing::warn!("{warning}");
        }
        for error in &error.errors {
            tracing::error!("{error}");
        }
        first_of(&error.errors)
    })?;
    loaded.tell();
    let (old, new) = (&in_force.settings, &loaded.state.settings);
    let lost = new.keys.lost_since(&new.config, &old.keys, &old.config);
    if !lost.is_empty() {
        tracing::error!(
            "{} that signed could not be loaded again",
            counted(lost.len(), "key")
        );
        return Err(first_of(&lost));
    }
    if new.faults.len() > old.faults.len() {
        let why = "more entries of SigningTable than before name a key that is not there";
        tracing::error!("{why}");
        return Err(why.to_owned());
    }
    if new.config.service.listeners.is_empty() && !old.config.service.listeners.is_empty() {
        // It would not start either: a file that is being written, most likely.
        let why = "no socket to listen on: Socket is gone from the configuration";
        tracing::error!("{why}");
        return Err(why.to_owned());
    }
    if new.config.signing.signers.is_none() && old.config.signing.signers.is_some() {
        tracing::warn!("nothing is signed any more: no key is configured");
    }
    if new.config.signing.key_records == Some(RecordPolicy::Hold) {
        // What is known to be wrong stays so until it is found right.
        new.keys.hold_as(&old.keys, &new.config);
    }
    tell_restart_needed(&old.config, &new.config);
    Ok(loaded.state)
}

/// The first of what is wrong, and how much there is besides.
fn first_of<T: ToString>(errors: &[T]) -> String {
    match errors {
        [] => String::new(),
        [only] => only.to_string(),
        [first, others @ ..] => format!("{} (and {} more)", first.to_string(), others.len()),
    }
}

impl Loaded {
    /// Logs what there is to tell.
    pub(super) fn tell(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        for error in &self.key_errors {
            tracing::error!("{error}");
        }
    }
}

/// Some options are looked at only once.
fn tell_restart_needed(old: &Config, new: &Config) {
    let (was, is) = (&old.service, &new.service);
    let (log_was, log_is) = (&old.logging, &new.logging);
    let (tokens_were, tokens_are) = (&old.signing.tokens, &new.signing.tokens);
    let addresses = |service: &Service| -> Vec<_> {
        service
            .listeners
            .iter()
            .map(|one| one.address.clone())
            .collect()
    };
    for (has_changed, option) in [
        (addresses(was) != addresses(is), "Socket"),
        (
            was.status.as_ref().map(|one| &one.address)
                != is.status.as_ref().map(|one| &one.address),
            "StatusSocket",
        ),
        (was.umask != is.umask, "UMask"),
        (was.user != is.user, "UserID"),
        (was.pid_file != is.pid_file, "PidFile"),
        (was.background != is.background, "Background"),
        (log_was.syslog != log_is.syslog, "Syslog"),
        (log_was.facility != log_is.facility, "SyslogFacility"),
        (log_was.name != log_is.name, "SyslogName"),
        (
            tokens_were.isolated != tokens_are.isolated,
            "Pkcs11Isolation",
        ),
        (
            tokens_were.sessions != tokens_are.sessions,
            "Pkcs11Sessions",
        ),
        (tokens_were.queue != tokens_are.queue, "Pkcs11Queue"),
        (tokens_were.timeout != tokens_are.timeout, "Pkcs11Timeout"),
    ] {
        if has_changed {
            tracing::warn!("{option} was changed, which takes effect at the next start only");
        }
    }
}
