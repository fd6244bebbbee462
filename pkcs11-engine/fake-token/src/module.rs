//! The module in its process: what happens before and after the work of each call.
//!
//! [`Module::call`] is the way in for all functions but C_Initialize: it finds violations of the rules for callers,
//! makes the faults that the control file asks for, keeps the log, and lets no panic out. What functions do is
//! `token`'s; what they keep is `state`'s.

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cryptoki_sys::{
    CK_RV, CKR_BUFFER_TOO_SMALL, CKR_CRYPTOKI_ALREADY_INITIALIZED, CKR_CRYPTOKI_NOT_INITIALIZED,
    CKR_DEVICE_REMOVED, CKR_FUNCTION_FAILED, CKR_OK,
};

use crate::control::{Control, ControlFile};
use crate::log::Log;
use crate::state::State;

/// All there is of the module in one process.
pub(crate) struct Module {
    pub(crate) file: ControlFile,
    log: Log,
    state: Mutex<Option<State>>,
    /// Who has initialized; 0 for nobody.
    process: AtomicU32,
    /// How often it has been initialized, by which a call knows that this has happened while it was inside.
    incarnation: AtomicU64,
    /// Signatures being made, and the news that one is finished.
    engines: Mutex<u64>,
    engine_free: Condvar,
}

impl Module {
    /// The module of this process, or of this copy of the file if several are loaded.
    pub(crate) fn get() -> &'static Self {
        static MODULE: OnceLock<Module> = OnceLock::new();
        MODULE.get_or_init(|| {
            let variable = |name| std::env::var_os(name).map(PathBuf::from);
            let here = own_file().and_then(|file| file.parent().map(Path::to_owned));
            let control = variable("FAKE_TOKEN_CONTROL").or_else(|| Some(here?.join("control")));
            let said = variable("FAKE_TOKEN_LOG");
            let create = said.is_some();
            let log = said.or_else(|| Some(control.as_ref()?.with_file_name("log")));
            Self {
                file: ControlFile::new(control),
                log: Log::new(log, create),
                state: Mutex::new(None),
                process: AtomicU32::new(0),
                incarnation: AtomicU64::new(0),
                engines: Mutex::new(0),
                engine_free: Condvar::new(),
            }
        })
    }

    /// A call outside of Cryptoki's life: faults and log, no state.
    pub(crate) fn call_anytime(
        &self,
        function: &'static str,
        work: impl FnOnce(&Control) -> CK_RV,
    ) -> CK_RV {
        let rv = shielded(|| {
            let control = self.file.now();
            self.faults(function).unwrap_or_else(|| work(&control))
        });
        self.log.call(function, rv, "");
        rv
    }

    /// C_Initialize, with what is wrong with its arguments.
    pub(crate) fn initialize(&self, arguments: CK_RV, note: &str) -> CK_RV {
        let rv = shielded(|| {
            if let Some(fault) = self.faults("C_Initialize") {
                return fault;
            }
            let control = self.file.now();
            let mut state = self.lock();
            // After a fork the child is an application of its own.
            if state.is_some() && self.process.load(Ordering::SeqCst) == process::id() {
                return CKR_CRYPTOKI_ALREADY_INITIALIZED;
            }
            if arguments == CKR_OK {
                *state = Some(State::new(&control));
                self.process.store(process::id(), Ordering::SeqCst);
                self.incarnation.fetch_add(1, Ordering::SeqCst);
            }
            arguments
        });
        self.log.call("C_Initialize", rv, note);
        rv
    }

    /// C_Finalize.
    pub(crate) fn finalize(&'static self, arguments: CK_RV) -> CK_RV {
        self.call("C_Finalize", None, |running| {
            if arguments != CKR_OK {
                return Err(arguments);
            }
            let mut state = self.lock();
            let others = state.as_ref().map_or(0, |state| state.inside - 1);
            if others > 0 {
                self.log.word(
                    "VIOLATION",
                    &format!("C_Finalize with {others} calls inside"),
                );
                if running.control.flag("finalize_crash", false) {
                    self.log.word("CRASHES", "C_Finalize");
                    process::abort();
                }
            }
            *state = None;
            self.process.store(0, Ordering::SeqCst);
            Ok(())
        })
    }

    /// Any other call, on `session` if it has one.
    pub(crate) fn call(
        &'static self,
        function: &'static str,
        session: Option<u64>,
        work: impl FnOnce(&Running) -> Result<(), CK_RV>,
    ) -> CK_RV {
        let note = Cell::new("");
        let rv = shielded(|| {
            let owner = self.process.load(Ordering::SeqCst);
            if owner == 0 {
                return CKR_CRYPTOKI_NOT_INITIALIZED;
            }
            if owner != process::id() {
                self.log.word(
                    "FORKED-CHILD",
                    &format!("{function} initialized by {owner}"),
                );
                return CKR_CRYPTOKI_NOT_INITIALIZED;
            }
            let incarnation = self.incarnation.load(Ordering::SeqCst);
            let mut running = Running {
                module: self,
                control: self.file.now(),
                function,
                session: session.unwrap_or(0),
                incarnation,
                note: Cell::new(""),
            };
            if let Err(rv) = running.enter(session) {
                return rv;
            }
            let result = self.faults(function).map_or(Ok(()), Err);
            // Much may have happened while the call was held up.
            running.control = self.file.now();
            let result = result
                .and_then(|()| running.state(|state| state.check(session, &running.control)))
                .and_then(|()| work(&running));
            note.set(running.note.get());
            running.leave(session, result)
        });
        self.log.call(function, rv, note.get());
        rv
    }

    /// What the control file asks for before the work of a call: a crash, a delay, a code to return.
    ///
    /// Delays end when their line is gone, so that tests need not wait for what they no longer want.
    fn faults(&self, function: &str) -> Option<CK_RV> {
        if self.file.crash(&self.file.now(), function) {
            self.log.word("CRASHES", function);
            process::abort();
        }
        let (hang, delay) = (format!("{function}.hang"), format!("{function}.ms"));
        if self.file.now().flag(&hang, false) {
            self.log.word("HANGS", function);
        }
        let start = Instant::now();
        loop {
            let control = self.file.now();
            let elapsed = start.elapsed();
            let left = control
                .number(&delay)
                .and_then(|ms| Duration::from_millis(ms).checked_sub(elapsed));
            if control.flag(&hang, false) {
                std::thread::sleep(POLL);
            } else if let Some(left) = left.filter(|left| !left.is_zero()) {
                std::thread::sleep(left.min(POLL));
            } else {
                return control.fault(function);
            }
        }
    }

    /// Makes a signature on one of the engines: waits for one, and has it for its time.
    pub(crate) fn engine<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut busy = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let control = self.file.now();
            let micros = control.number("engine.us").unwrap_or(0);
            let most = if micros > 0 { 1 } else { u64::MAX };
            if *busy < control.number("parallel").unwrap_or(most).max(1) {
                *busy += 1;
                drop(busy);
                let end = Instant::now() + Duration::from_micros(micros);
                let done = work();
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                *self.engines.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                self.engine_free.notify_one();
                return done;
            }
            busy = self
                .engine_free
                .wait_timeout(busy, POLL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Writes down what no caller may do.
    pub(crate) fn violation(&self, about: &str) {
        self.log.word("VIOLATION", about);
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a call that is held up looks whether it still is to be.
const POLL: Duration = Duration::from_millis(2);

/// One call inside the module.
pub(crate) struct Running {
    pub(crate) module: &'static Module,
    pub(crate) control: Arc<Control>,
    pub(crate) session: u64,
    function: &'static str,
    incarnation: u64,
    note: Cell<&'static str>,
}

impl Running {
    /// Does something with the state, under its lock; fails if it is that of another C_Initialize by now.
    pub(crate) fn state<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, CK_RV>,
    ) -> Result<T, CK_RV> {
        let mut state = self.module.lock();
        match state.as_mut() {
            Some(state) if self.module.incarnation.load(Ordering::SeqCst) == self.incarnation => {
                state.notice(&self.control);
                work(state)
            }
            _ => Err(CKR_CRYPTOKI_NOT_INITIALIZED),
        }
    }

    /// Looks at the world again after work that took long: a token may have gone meanwhile.
    pub(crate) fn still_there(&self) -> Result<(), CK_RV> {
        let control = self.module.file.now();
        self.state(|state| {
            state.notice(&control);
            let alive = state
                .sessions
                .get(&self.session)
                .is_some_and(|session| !session.dead);
            if alive {
                Ok(())
            } else {
                Err(CKR_DEVICE_REMOVED)
            }
        })
    }

    /// What the log is to say beside the code.
    pub(crate) fn note(&self, note: &'static str) {
        self.note.set(note);
    }

    /// Takes the session, and sees whether another call has it.
    fn enter(&self, session: Option<u64>) -> Result<(), CK_RV> {
        self.state(|state| {
            state.check(session, &self.control)?;
            state.inside += 1;
            if let Some(found) = session.and_then(|handle| state.sessions.get_mut(&handle)) {
                if found.inside > 0 {
                    let about = format!(
                        "{} in session {} beside {}",
                        self.function, self.session, found.last
                    );
                    self.module.violation(&about);
                }
                found.inside += 1;
                found.last = self.function;
            }
            Ok(())
        })
    }

    /// Gives the session back; what failed ends its operation, unless the module is to be one that forgets this.
    fn leave(&self, session: Option<u64>, result: Result<(), CK_RV>) -> CK_RV {
        let keep = self.control.flag("leave_active", false) || result == Err(CKR_BUFFER_TOO_SMALL);
        let left = self.state(|state| {
            state.inside -= 1;
            if let Some(found) = session.and_then(|handle| state.sessions.get_mut(&handle)) {
                found.inside -= 1;
                if result.is_err() && !keep {
                    found.end_operation(self.function);
                }
            }
            Ok(())
        });
        match (result, left) {
            (Err(rv), _) => rv,
            // C_Finalize itself leaves nothing behind.
            (Ok(()), Err(rv)) if self.function != "C_Finalize" => rv,
            _ => CKR_OK,
        }
    }
}

/// Runs `work`; a panic becomes a code, since it must not leave through C.
fn shielded(work: impl FnOnce() -> CK_RV) -> CK_RV {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(CKR_FUNCTION_FAILED)
}

/// The file this code was loaded from, by what the kernel has mapped at the address of a function.
fn own_file() -> Option<PathBuf> {
    let address = own_file as *const () as usize;
    fs::read_to_string("/proc/self/maps")
        .ok()?
        .lines()
        .find_map(|line| {
            let (start, rest) = line.split_once('-')?;
            let (end, _) = rest.split_once(' ')?;
            let range =
                usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            let path = line.find('/').map(|at| PathBuf::from(&line[at..]))?;
            range.contains(&address).then_some(path)
        })
}
