//! The server as a program: from its arguments to its exit code.
//!
//! In this order: configuration, tables, keys; background; signals; sockets; PID file; privileges dropped; the status is
//! told; keys in tokens; the event loop; ready. Tokens are let go last. What is wrong until then is told on standard error
//! and ends it with an exit code of sysexits.h. Afterwards SIGTERM and SIGINT drain (a second one stops at once), SIGHUP and
//! SIGUSR1 reload.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustix::fs::Mode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};

use super::places::Places;
use super::reload::counted;
use super::status_socket::StatusSocket;
use super::tokens::DaemonTokens;
use super::{
    FileOptions, Listener, LoadError, Loaded, Options, Patience, Question, Source, State, Stop,
    Vitals, background, privileges, run, service_manager, status_query,
};
use crate::config::{CONFIGURATION_FILES, Config, Overrides, Service, default_configuration};
use crate::health::Stage;
use crate::log::{DEVICE, Destination, Log};
use crate::shown::{cause, one_line};

pub use background::FLAG as BACKGROUND_FLAG;

/// The program's arguments.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// `-x`: the configuration file.
    pub config: Option<PathBuf>,
    /// `--set` and `-p`.
    pub overrides: Overrides,
    /// `-f`: stay in the foreground, whatever `Background` says.
    pub foreground: bool,
    /// `-n`: check, and do no more.
    pub check: bool,
    /// `--status`: ask the daemon that runs, and do no more.
    pub status: Option<Question>,
    /// `-v`: log debug lines too.
    pub verbose: bool,
    /// This process was started to serve in the background.
    pub in_background: bool,
}

/// Does what `arguments` say, and returns when it is done; to be called once, by a process with one thread.
pub fn main(arguments: &Arguments) -> ExitCode {
    let source = Source {
        path: configuration_file(arguments),
        overrides: arguments.overrides.clone(),
        look_ups: Arc::default(),
    };
    if arguments.check {
        return check(&source);
    }
    if let Some(question) = arguments.status {
        return status_query::ask(&source, question);
    }
    let log = match Log::start() {
        Ok(log) => log,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(SOFTWARE);
        }
    };
    log.set_verbose(arguments.verbose);
    match serve(source, arguments, &log) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            tracing::error!("not started: {}", failure.message);
            if arguments.in_background {
                // Whoever waits at the terminal does not read syslog.
                log.redirect(Destination::StandardError);
                tracing::error!("not started: {}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Why the daemon does not start.
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl ToString) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}

/// What arguments are called beside a file.
const COMMAND_LINE: &str = "the command line";

/// Exit codes, by their names in sysexits.h.
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const SOFTWARE: u8 = 70;
const OSERR: u8 = 71;
const CANTCREAT: u8 = 73;
const NOPERM: u8 = 77;
const CONFIG: u8 = 78;

/// The file that was asked for, or the first there is; as it is found from anywhere.
fn configuration_file(arguments: &Arguments) -> Option<PathBuf> {
    match &arguments.config {
        Some(path) => Some(std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        None => default_configuration(),
    }
}

/// `-n`: tells what is wrong and odd, keys included.
fn check(source: &Source) -> ExitCode {
    let (errors, warnings, code) = match source.load() {
        Ok(mut loaded) => {
            // Before another user looks for them, whom tokens are opened as.
            let places = Places::look(&loaded.state.settings.config.service);
            check_tokens(&mut loaded);
            loaded.key_errors.extend(places.errors);
            loaded.warnings.extend(places.warnings);
            (loaded.key_errors, loaded.warnings, CONFIG)
        }
        Err(refused) => {
            let code = code_of(&refused);
            (refused.errors, refused.warnings, code)
        }
    };
    for warning in &warnings {
        eprintln!("warning: {}", one_line(warning));
    }
    for error in &errors {
        eprintln!("error: {}", one_line(error));
    }
    let checked = match code {
        USAGE => COMMAND_LINE.to_owned(),
        _ => one_line(&told_path(source)),
    };
    if errors.is_empty() {
        println!(
            "{checked}: no errors, {}",
            counted(warnings.len(), "warning")
        );
        ExitCode::SUCCESS
    } else {
        println!(
            "{checked}: {}, {}",
            counted(errors.len(), "error"),
            counted(warnings.len(), "warning")
        );
        ExitCode::from(code)
    }
}

/// Whose fault a refusal is: the file's, or that of the arguments alone.
fn code_of(refused: &LoadError) -> u8 {
    if refused.by_arguments { USAGE } else { CONFIG }
}

/// Tells of keys in tokens, too: as the user that the daemon will be, who has to get at PIN and token.
fn check_tokens(loaded: &mut Loaded) {
    let settings = &loaded.state.settings;
    if settings.keys.in_tokens().is_empty() && settings.duties.is_empty() {
        return;
    }
    if let Some(run_as) = &loaded.run_as
        && rustix::process::geteuid().is_root()
        && let Err(error) = run_as.assume()
    {
        loaded.key_errors.push(format!("tokens: {error}"));
        return;
    }
    let tokens = DaemonTokens::default();
    tokens.open(&loaded.state.settings).add_to(loaded);
    tokens.shut_down(LAST_SIGNATURES);
}

fn told_path(source: &Source) -> String {
    match &source.path {
        Some(path) => path.display().to_string(),
        None => format!(
            "no configuration file ({} is not there)",
            CONFIGURATION_FILES.join(" or ")
        ),
    }
}

fn serve(source: Source, arguments: &Arguments, log: &Log) -> Result<u8, Failure> {
    if arguments.in_background {
        background::detach();
    }
    privileges::forbid_core_files();
    let loaded = source.load().map_err(|refused| {
        for warning in &refused.warnings {
            tracing::warn!("{warning}");
        }
        for error in &refused.errors {
            tracing::error!("{error}");
        }
        let count = counted(refused.errors.len(), "error");
        let code = code_of(&refused);
        let place = match code {
            USAGE => COMMAND_LINE.to_owned(),
            _ => told_path(&source),
        };
        Failure::new(code, format!("{count} in {place}"))
    })?;
    let settings = Arc::clone(&loaded.state.settings);
    let service = &settings.config.service;
    if service.background && !arguments.foreground && !arguments.in_background {
        return background::start().map_err(|error| Failure::new(OSERR, error));
    }
    if let Some(run_as) = &loaded.run_as {
        // Before sockets and keys are blamed for what the other user could have done.
        run_as
            .may_be_assumed()
            .map_err(|error| Failure::new(NOPERM, error))?;
    }
    let loaded_before = told(loaded, arguments, &settings.config, log);
    tracing::info!("configuration: {}", told_path(&source));
    if let Some(mask) = service.umask {
        rustix::process::umask(Mode::from_raw_mode(mask));
    }
    let most_connections = privileges::raise_descriptor_limit();
    let wanted = service.maximum_connections;
    if most_connections < wanted {
        tracing::warn!(
            "the limit on open files allows {most_connections} connections, not the {wanted} of MaximumConnections; \
             LimitNOFILE or ulimit -n raises it"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(OSERR, error))?;
    // Who sees the socket may send signals: from here on they are kept until they can be obeyed.
    let signals = {
        let _inside = runtime.enter();
        Signals::new().map_err(|error| Failure::new(OSERR, error))?
    };
    let listeners = open_listeners(service, &loaded_before)?;
    let status_listeners = open_status(service, &loaded_before)?;
    let pid_path = service.pid_file.clone();
    let pid_file = pid_path.as_deref().map(PidFile::write).transpose();
    let _pid_file =
        pid_file.map_err(|error| Failure::new(CANTCREAT, format!("PidFile: {error}")))?;
    if let Some(run_as) = &loaded_before.run_as {
        run_as
            .assume()
            .map_err(|error| Failure::new(NOPERM, error))?;
    }
    if rustix::process::geteuid().is_root() {
        tracing::warn!("running as root, which is not needed: set UserID to a user of its own");
    }
    let watched = listeners.iter().filter_map(Listener::watch).collect();
    let mut vitals = Vitals::new(watched, Arc::clone(&source.look_ups));
    if !status_listeners.is_empty() {
        vitals = vitals.asked_for(runtime.handle());
    }
    let vitals = Arc::new(vitals);
    let state = Arc::new(ArcSwap::from_pointee(loaded_before.state));
    // Before tokens are opened, which may take its time.
    let _status_socket = StatusSocket::serve(status_listeners, Arc::clone(&vitals), &state)
        .map_err(|error| Failure::new(OSERR, error))?;
    // Not before: a module belongs to the process and the user that initialise it.
    let changed = Arc::new(Notify::new());
    let on_change = Arc::clone(&changed);
    let tokens = Arc::new(DaemonTokens::new(Arc::new(move || on_change.notify_one())));
    tokens.open(&settings).tell();
    // From now on who serves has it, so that its keys are let go when a reload has replaced it.
    drop(settings);
    let of_loader = Arc::clone(&tokens);
    let options = Options {
        patience: Patience::default(),
        most_connections,
        loader: Arc::new(move || {
            let mut loaded = source.load()?;
            of_loader.open(&loaded.state.settings).add_to(&mut loaded);
            Ok(loaded)
        }),
        changed,
        vitals,
    };
    let in_background = arguments.in_background;
    let ended = runtime.block_on(until_stopped(
        signals,
        listeners,
        state,
        options,
        in_background,
    ));
    // Not waiting for a reload that may be under way.
    runtime.shutdown_background();
    tokens.shut_down(LAST_SIGNATURES);
    ended.map_err(|error| Failure::new(OSERR, error))?;
    tracing::info!("stopped");
    Ok(0)
}

/// Tells what was found while loading where it is read: on standard error, and in the background's log.
fn told(loaded: Loaded, arguments: &Arguments, config: &Config, log: &Log) -> Loaded {
    loaded.tell();
    if arguments.in_background {
        let logging = &config.logging;
        if logging.syslog && !Path::new(DEVICE).exists() {
            tracing::warn!(
                "there is no {DEVICE}: nothing is logged until a syslog daemon runs; -f logs to standard error"
            );
        }
        log.redirect(if logging.syslog {
            Destination::Syslog {
                facility: logging.facility.code,
                name: logging.name.clone(),
            }
        } else {
            Destination::Nowhere
        });
        loaded.tell();
    }
    loaded
}

/// The sockets that were handed over, or else those of the configuration.
fn open_listeners(service: &Service, loaded: &Loaded) -> Result<Vec<Listener>, Failure> {
    let unavailable = |error| Failure::new(UNAVAILABLE, error);
    let mut listeners = Listener::inherited().map_err(unavailable)?;
    if listeners.is_empty() {
        let options = file_options(service, loaded);
        for wanted in &service.listeners {
            listeners.extend(Listener::open(wanted, options).map_err(unavailable)?);
        }
    } else if !service.listeners.is_empty() {
        tracing::info!("Socket is not used: the service manager has handed sockets over");
    }
    if listeners.is_empty() {
        return Err(Failure::new(
            CONFIG,
            "no socket to listen on: set Socket, or give -p",
        ));
    }
    for listener in &listeners {
        tracing::info!("listening on {listener}");
        if listener.is_open_to_others() {
            let address = listener.address();
            tracing::warn!(
                "{address} can be reached from other hosts: whoever connects there can have mail signed"
            );
        }
        if listener.is_private() {
            let address = listener.address();
            tracing::warn!(
                "{address} is for its owner only; for an MTA under another user set UMask, to 007 for its group"
            );
        }
    }
    Ok(listeners)
}

/// The status socket, if there is to be one.
fn open_status(service: &Service, loaded: &Loaded) -> Result<Vec<Listener>, Failure> {
    let Some(wanted) = &service.status else {
        return Ok(Vec::new());
    };
    let listeners = Listener::open(wanted, file_options(service, loaded))
        .map_err(|error| Failure::new(UNAVAILABLE, format!("StatusSocket: {error}")))?;
    for listener in &listeners {
        tracing::info!("status is told on {listener}");
        if listener.is_open_to_others() {
            let address = listener.address();
            tracing::warn!(
                "{address} can be reached from other hosts: whoever connects there is told names of keys and files"
            );
        }
    }
    Ok(listeners)
}

/// How socket files are made.
fn file_options(service: &Service, loaded: &Loaded) -> FileOptions {
    FileOptions {
        umask: service.umask,
        owner: loaded
            .run_as
            .as_ref()
            .filter(|run_as| !run_as.is_current())
            .map(|run_as| run_as.owner()),
    }
}

/// How long signatures that wait for a token may still take when all has ended.
const LAST_SIGNATURES: std::time::Duration = std::time::Duration::from_secs(2);

async fn until_stopped(
    signals: Signals,
    listeners: Vec<Listener>,
    state: Arc<ArcSwap<State>>,
    options: Options,
    in_background: bool,
) -> io::Result<()> {
    let (stop, stopped) = watch::channel(Stop::No);
    let (reload, reloads) = mpsc::channel(1);
    options.vitals.set_stage(Stage::Serving);
    tokio::spawn(signals.obey(stop, reload));
    tokio::spawn(service_manager::feed_watchdog());
    if in_background {
        background::ready()?;
    }
    let status = options.vitals.tell_ready(&state.load());
    tracing::info!("ready: {status}");
    run(listeners, state, options, reloads, stopped).await
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    async fn obey(mut self, stop: watch::Sender<Stop>, reload: mpsc::Sender<()>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => obey_stop(&stop),
                _ = self.interrupt.recv() => obey_stop(&stop),
                // If one is waiting to be carried out already, it will do.
                _ = self.hang_up.recv() => drop(reload.try_send(())),
                _ = self.user.recv() => drop(reload.try_send(())),
            }
        }
    }
}

fn obey_stop(stop: &watch::Sender<Stop>) {
    let next = match *stop.borrow() {
        Stop::No => Stop::Drain,
        Stop::Drain | Stop::Now => Stop::Now,
    };
    if next == Stop::Drain {
        service_manager::stopping();
        tracing::info!("stopping: messages in progress are finished");
    }
    stop.send_replace(next);
}

/// A file with this process' ID, removed in the end as far as that is allowed.
struct PidFile<'a> {
    path: &'a Path,
    /// Device and inode: after the change of user the content may not be ours to read.
    identity: (u64, u64),
}

impl<'a> PidFile<'a> {
    /// The directory may be the daemon's user's, who must not have root write through a link: so a file of a new name is
    /// made, and put in the place of whatever is there.
    fn write(path: &'a Path) -> Result<Self, String> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{:x}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        let write = || {
            writeln!(File::create_new(&temporary)?, "{}", std::process::id())?;
            fs::rename(&temporary, path)?;
            let identity = identity(path)?;
            Ok(Self { path, identity })
        };
        write().map_err(|error: io::Error| {
            let _ = fs::remove_file(&temporary);
            format!("{}: {}", path.display(), cause(&error))
        })
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if identity(self.path).is_ok_and(|identity| identity == self.identity) {
            // The directory may be another user's.
            let _ = fs::remove_file(self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
