//! One PKCS#11 module in this process: loaded, initialised, and finalized exactly once if it was we who initialised it.
//!
//! The standard leaves C_Finalize undefined while other calls are inside, and three of four modules crash then; so every
//! use of the module goes through [`Module::enter`], which counts who is inside, and the module is re-initialised or
//! finalized only when nobody is. It is never unloaded: vendors' modules have threads of their own. Nothing here is done
//! when a value is dropped, since only the program knows when all is over.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};

use crate::error::{Fault, call_and_code};

#[derive(Debug)]
pub(crate) struct Module {
    path: PathBuf,
    context: Pkcs11,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug)]
struct Gate {
    state: State,
    /// Since when each of those inside has been there, by their numbers, which are given in order.
    inside: BTreeMap<u64, Instant>,
    last_entered: u64,
    /// Counts initialisations: handles of an earlier one are void, and may by chance be those of others now.
    generation: u64,
    /// Whether C_Initialize was ours, so that C_Finalize is.
    owned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not initialised.
    Down,
    /// Being initialised or re-initialised by one thread.
    Changing,
    /// To be used.
    Up,
    /// Over.
    Closed,
}

/// Somebody inside the module, for as long as it is kept.
#[derive(Debug)]
pub(crate) struct Entered<'m> {
    module: &'m Module,
    number: u64,
    generation: u64,
}

impl Module {
    /// Loads the library at `path`; nothing in it is called but C_GetFunctionList.
    pub(crate) fn load(path: &Path) -> Result<Self, Fault> {
        let fault = |reason| Fault::Module {
            module: path.display().to_string(),
            reason,
        };
        if !path.is_absolute() {
            // A bare name would be searched for along a path that others may have a say in.
            return Err(fault("name the file by its whole path".to_owned()));
        }
        if let Err(error) = std::fs::metadata(path) {
            return Err(fault(format!("{error}{}", seen_from(path))));
        }
        let context = Pkcs11::new(path).map_err(|error| fault(cannot_load(path, &error)))?;
        // One reference is never given back, so that the library stays.
        std::mem::forget(context.clone());
        Ok(Self {
            path: path.to_owned(),
            context,
            gate: Mutex::new(Gate {
                state: State::Down,
                inside: BTreeMap::new(),
                last_entered: 0,
                generation: 0,
                owned: false,
            }),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Enters, after initialising the module if that is not done yet.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, Fault> {
        let until = Instant::now() + PATIENCE;
        let mut gate = self.gate();
        loop {
            match gate.state {
                State::Up => {
                    gate.last_entered += 1;
                    let number = gate.last_entered;
                    gate.inside.insert(number, Instant::now());
                    return Ok(Entered {
                        module: self,
                        number,
                        generation: gate.generation,
                    });
                }
                State::Closed => return Err(Fault::Stopped),
                State::Down => {
                    gate.state = State::Changing;
                    drop(gate);
                    let outcome = self.initialize();
                    gate = self.settle(&outcome);
                    outcome?;
                }
                State::Changing => {
                    let now = Instant::now();
                    if now >= until {
                        return Err(self.fault("C_Initialize has not returned".to_owned()));
                    }
                    gate = self.wait(gate, until - now);
                }
            }
        }
    }

    /// Finalizes and initialises the module, unless it is newer than `generation` already, others own it, or somebody
    /// stays inside longer than `patience`. Whether it is newer now.
    pub(crate) fn restart(&self, generation: u64, patience: Duration) -> Result<bool, Fault> {
        let until = Instant::now() + patience;
        let mut gate = self.gate();
        // Whoever is at it already does it for all.
        while gate.state == State::Changing && Instant::now() < until {
            gate = self.wait(gate, until.saturating_duration_since(Instant::now()));
        }
        if gate.generation != generation || gate.state != State::Up {
            return Ok(gate.generation != generation);
        }
        if !gate.owned {
            return Ok(false);
        }
        // Who has been inside that long will hardly leave now; not to hold up all others for that.
        let oldest = gate.inside.values().next();
        if oldest.is_some_and(|since| since.elapsed() >= patience) {
            return Ok(false);
        }
        gate.state = State::Changing;
        let (mut gate, empty) = self.wait_until_empty(gate, patience);
        if gate.state == State::Closed {
            return Err(Fault::Stopped);
        }
        if !empty {
            gate.state = State::Up;
            self.changed.notify_all();
            return Ok(false);
        }
        drop(gate);
        self.finalize();
        let outcome = self.initialize();
        drop(self.settle(&outcome));
        outcome.map(|_| true)
    }

    /// Finalizes the module for good, if it is ours and nobody stays inside longer than `patience`. Whether all is over:
    /// `false` if somebody is still inside, who then must not be disturbed.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut gate = self.gate();
        while gate.state == State::Changing && Instant::now() < until {
            gate = self.wait(gate, until.saturating_duration_since(Instant::now()));
        }
        let was = std::mem::replace(&mut gate.state, State::Closed);
        self.changed.notify_all();
        let patience = until.saturating_duration_since(Instant::now());
        let (gate, empty) = self.wait_until_empty(gate, patience);
        let owned = gate.owned;
        drop(gate);
        if empty && owned && was == State::Up {
            self.finalize();
        }
        empty && was != State::Changing
    }

    fn initialize(&self) -> Result<bool, Fault> {
        let arguments = CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK);
        match self.context.initialize(arguments) {
            Ok(()) => Ok(true),
            // Someone else in this process did it, and will finalize it.
            Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(false),
            Err(error) => {
                let (call, code) = call_and_code(&error);
                let hint = match error {
                    Error::Pkcs11(RvError::ArgumentsBad, _) => WANTS_MORE,
                    Error::Pkcs11(RvError::GeneralError, _) => CANNOT_BEGIN,
                    _ => "",
                };
                Err(self.fault(format!("{call} failed with {code}{hint}")))
            }
        }
    }

    fn finalize(&self) {
        // What it returns changes nothing: there is no second try, and an initialisation that follows says what is wrong.
        let _ = self.context.clone().finalize();
    }

    /// Opens the gate after an attempt to initialise.
    fn settle(&self, outcome: &Result<bool, Fault>) -> MutexGuard<'_, Gate> {
        let mut gate = self.gate();
        if let Ok(owned) = outcome {
            gate.owned = *owned;
            gate.generation += 1;
        }
        // It may have been closed meanwhile: then what was begun here is finalized here.
        match (gate.state, outcome) {
            (State::Closed, Ok(true)) => self.finalize(),
            (State::Closed, _) => {}
            (_, Ok(_)) => gate.state = State::Up,
            (_, Err(_)) => gate.state = State::Down,
        }
        self.changed.notify_all();
        gate
    }

    fn wait_until_empty<'g>(
        &self,
        mut gate: MutexGuard<'g, Gate>,
        patience: Duration,
    ) -> (MutexGuard<'g, Gate>, bool) {
        let until = Instant::now() + patience;
        while !gate.inside.is_empty() {
            let now = Instant::now();
            if now >= until {
                return (gate, false);
            }
            gate = self.wait(gate, until - now);
        }
        (gate, true)
    }

    fn wait<'g>(&self, gate: MutexGuard<'g, Gate>, patience: Duration) -> MutexGuard<'g, Gate> {
        self.changed
            .wait_timeout(gate, patience)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, reason: String) -> Fault {
        Fault::Module {
            module: self.path.display().to_string(),
            reason,
        }
    }
}

impl Entered<'_> {
    /// Which initialisation this is inside of.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

impl Deref for Entered<'_> {
    type Target = Pkcs11;

    fn deref(&self) -> &Pkcs11 {
        &self.module.context
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut gate = self.module.gate();
        gate.inside.remove(&self.number);
        if gate.inside.is_empty() && gate.state != State::Up {
            self.module.changed.notify_all();
        }
    }
}

/// Why the library at `path` is no module that can be used.
fn cannot_load(path: &Path, error: &Error) -> String {
    match error {
        Error::LibraryLoading(error) => {
            let sentence = error.to_string();
            format!("cannot be loaded: {}", loader_says(path, &sentence))
        }
        Error::MissingSymbol(name) => format!("is no PKCS#11 module: it has no {name}"),
        Error::Pkcs11(_, cryptoki::context::Function::GetInterface) => {
            let (call, code) = call_and_code(error);
            format!(
                "{call} failed with {code}; load it through p11-kit-proxy.so, which asks for less"
            )
        }
        error => {
            let (call, code) = call_and_code(error);
            format!("{call} failed with {code}")
        }
    }
}

/// The loader's `sentence` without the path, which is in ours already. It may begin with a library that the module needs
/// instead; and of a file that is there, but for another processor, it says that there is none.
fn loader_says<'a>(path: &Path, sentence: &'a str) -> &'a str {
    let of_module = sentence
        .strip_prefix(&*path.to_string_lossy())
        .and_then(|rest| rest.strip_prefix(": "));
    match of_module {
        Some("cannot open shared object file: No such file or directory") => {
            "it was made for another kind of processor"
        }
        Some(rest) => rest,
        None => sentence,
    }
}

/// What to say of a `path` below the working directory: it was most likely given as a bare name, which is no name to be
/// searched for.
fn seen_from(path: &Path) -> String {
    match (std::env::current_dir(), path.parent()) {
        (Ok(here), Some(parent)) if here == parent => format!(
            "; a bare name is seen from the working directory, {}, and not searched for: give the module's whole path",
            here.display()
        ),
        _ => String::new(),
    }
}

/// What is done for a module that says no more, as SoftHSM does.
const CANNOT_BEGIN: &str = ": the module may not find its configuration or its store; with SoftHSM, SOFTHSM2_CONF must name \
                            a file that this user can read, and directories.tokendir in it a directory that is there";

/// What is done for a module such as NSS softokn, which refuses arguments as the standard has them.
const WANTS_MORE: &str = ": the module may want parameters of its own, as NSS softokn does; give them by x-init-reserved \
                          in a module file of p11-kit, and load p11-kit-proxy.so";

/// How long one thread waits for another that initialises the module.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_told_to_be_seen_from_here() {
        let here = std::env::current_dir().unwrap();
        let said = |path: &Path| Module::load(path).unwrap_err().to_string();
        let wanted = format!(
            "working directory, {}, and not searched for",
            here.display()
        );
        assert!(said(&here.join("no-such-module.so")).contains(&wanted));
        assert!(!said(Path::new("/no/such/module.so")).contains("bare name"));
    }
}
