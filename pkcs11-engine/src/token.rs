//! One token: found among the slots by what its URI says, logged in once for all sessions, with a PIN that is tried once.
//!
//! Slot numbers move, sessions and logins die with a token that is pulled, and a module that was initialised anew has
//! forgotten everything; so slot and login belong to an *epoch*, and who meets a failure asks for the next one. Logins
//! are made one at a time. A PIN that was wrong is not tried again until its source holds another: tokens lock themselves
//! after three tries.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cryptoki::context::Pkcs11;
use cryptoki::error::{Error, RvError};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::RawAuthPin;
use serde::{Deserialize, Serialize};

use crate::error::{Cause, Fault, call_and_code};
use crate::key::Failed;
use crate::module::{Entered, Module};
use crate::pin::{Pin, PinSource};
use crate::service::{Fingerprint, Salt};
use crate::settings::NOT_AGAIN;
use crate::uri::{TokenFacts, Uri};

pub(crate) struct Token {
    module: Arc<Module>,
    facts: TokenFacts,
    salt: Salt,
    /// Told of the PINs that are known to be wrong, when that changes.
    latched: Box<dyn Fn(Vec<WrongPin>) + Send + Sync>,
    /// Apart from `access`, which is held while the token is logged in to, however long that takes.
    pins: Mutex<Pins>,
    access: Mutex<Access>,
}

/// Where PINs come from, and what is known of them.
struct Pins {
    /// The one that was asked for last, or has worked last, comes first. There is more than one only where keys of one
    /// token name several.
    sources: Vec<Source>,
    /// What was wrong in an earlier process, from whichever source.
    inherited: Vec<WrongPin>,
    /// What was told last.
    told: Vec<WrongPin>,
    /// Whether anything was asked for that only who is logged in gets to see.
    login_needed: bool,
}

struct Source {
    source: PinSource,
    /// What it held when that was wrong.
    wrong: Option<WrongPin>,
}

/// A PIN that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrongPin {
    pub(crate) fingerprint: Fingerprint,
    /// What the token said to it.
    pub(crate) answer: String,
}

struct Access {
    epoch: u64,
    /// Slot and login of this epoch, once they are there.
    open: Option<Open>,
    /// When it was last given up because a key was not to be seen.
    given_up: Option<Instant>,
}

struct Open {
    generation: u64,
    slot: Slot,
    /// Holds the login, which ends with the last session of the token. Never closed when dropped: the module may have been
    /// initialised anew, and the handle be another's.
    login: Session,
}

/// A session that is logged in, and of which time.
pub(crate) struct Opened {
    pub(crate) session: Session,
    pub(crate) slot: Slot,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
}

impl Token {
    /// The token that `facts` describe. `wrong` are PINs known to be wrong from an earlier process; `latched` is told
    /// when that changes.
    pub(crate) fn new(
        module: Arc<Module>,
        facts: TokenFacts,
        salt: Salt,
        wrong: Vec<WrongPin>,
        latched: impl Fn(Vec<WrongPin>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            module,
            facts,
            salt,
            latched: Box::new(latched),
            pins: Mutex::new(Pins {
                sources: Vec::new(),
                inherited: wrong.clone(),
                told: wrong,
                login_needed: false,
            }),
            access: Mutex::new(Access {
                epoch: 0,
                open: None,
                given_up: None,
            }),
        }
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    pub(crate) fn facts(&self) -> &TokenFacts {
        &self.facts
    }

    /// Its URI, for sentences.
    pub(crate) fn uri(&self) -> String {
        Uri::of_token(&self.facts).to_string()
    }

    /// Takes the PIN from `source` from now on, if it can be had there.
    pub(crate) fn take_pin_from(&self, source: Option<&PinSource>) {
        let Some(source) = source else { return };
        let mut pins = self.pins();
        if !pins.sources.iter().any(|known| known.source == *source) {
            let source = source.clone();
            pins.sources.insert(
                0,
                Source {
                    source,
                    wrong: None,
                },
            );
        }
    }

    /// Has a login from now on count as needed: who signs sees no key without. What verifies or hashes needs none, but does log
    /// in where there is a PIN.
    pub(crate) fn need_login(&self) {
        self.pins().login_needed = true;
    }

    /// Opens a session of the token's present epoch, after finding its slot and logging in if that is to be done.
    pub(crate) fn session(&self, module: &Entered<'_>) -> Result<Opened, Failed> {
        let mut access = self.access();
        if access
            .open
            .as_ref()
            .is_none_or(|open| open.generation != module.generation())
        {
            access.epoch += 1;
            access.open = None;
            let slot = self.slot(module)?;
            let login = module.open_ro_session_no_drop(slot)?;
            if let Err(failed) = self.log_in(module, slot, &login) {
                // Nobody else knows of it.
                let _ = login.close();
                return Err(failed);
            }
            access.open = Some(Open {
                generation: module.generation(),
                slot,
                login,
            });
        }
        let epoch = access.epoch;
        let slot = access.open.as_ref().map(|open| open.slot);
        // Not under the lock: others need not wait for it.
        drop(access);
        let Some(slot) = slot else {
            return Err(Failed::Fault(Fault::NotYet));
        };
        let session = module.open_ro_session_no_drop(slot);
        if let Err(error) = &session
            && Cause::of(error) == Cause::Device
        {
            // The slot may be another's by now: it is looked for anew.
            self.renew(module, epoch);
        }
        Ok(Opened {
            session: session?,
            slot,
            generation: module.generation(),
            epoch,
        })
    }

    /// Has the next session look for the slot and log in anew, unless that was done since `epoch`.
    pub(crate) fn renew(&self, module: &Entered<'_>, epoch: u64) {
        let mut access = self.access();
        if access.epoch != epoch {
            return;
        }
        if let Some(open) = access.open.take()
            && open.generation == module.generation()
        {
            // It may be gone with the token; no matter.
            let _ = open.login.close();
        }
    }

    /// The same because a key was not to be seen, as it is not to who is logged out. Whether it was done: a key that is
    /// not there is no reason to log in again and again.
    pub(crate) fn renew_for_key(&self, module: &Entered<'_>, epoch: u64) -> bool {
        {
            let mut access = self.access();
            if access
                .given_up
                .is_some_and(|at| at.elapsed() < GIVING_UP_PAUSE)
            {
                return access.epoch != epoch;
            }
            access.given_up = Some(Instant::now());
        }
        self.renew(module, epoch);
        true
    }

    /// The login that a key with CKA_ALWAYS_AUTHENTICATE wants for each signature.
    pub(crate) fn authenticate(&self, session: &Session) -> Result<(), Failed> {
        let _one_at_a_time = self.access();
        self.give_pin(session, UserType::ContextSpecific, || Ok(()))
    }

    /// Closes the session that holds the login.
    pub(crate) fn close(&self, module: &Entered<'_>) {
        let mut access = self.access();
        if let Some(open) = access.open.take()
            && open.generation == module.generation()
        {
            let _ = open.login.close();
        }
    }

    /// The slot it is in now.
    fn slot(&self, module: &Pkcs11) -> Result<Slot, Failed> {
        let mut present = Vec::new();
        let mut found = Vec::new();
        for (slot, facts) in tokens(module)? {
            if facts.is_same_token(&self.facts) {
                found.push(slot);
            }
            present.push(Uri::of_token(&facts).to_string());
        }
        match found[..] {
            [slot] => Ok(slot),
            [] => Err(Failed::Fault(Fault::NoToken {
                wanted: self.uri(),
                tokens: present,
            })),
            _ => Err(Failed::Fault(Fault::ManyTokens {
                wanted: self.uri(),
                tokens: present,
            })),
        }
    }

    fn log_in(&self, module: &Pkcs11, slot: Slot, session: &Session) -> Result<(), Failed> {
        let info = module.get_token_info(slot)?;
        if !info.login_required() {
            return Ok(());
        }
        {
            let pins = self.pins();
            if !pins.login_needed && pins.sources.is_empty() {
                return Ok(());
            }
        }
        if info.protected_authentication_path() && self.pins().sources.is_empty() {
            self.may_try(&info)?;
            return match session.login(UserType::User, None) {
                Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
                other => Ok(other?),
            };
        }
        self.give_pin(session, UserType::User, || {
            self.may_try(&module.get_token_info(slot)?)
        })
    }

    /// Whether the token leaves room for a try that may fail.
    fn may_try(&self, info: &TokenInfo) -> Result<(), Failed> {
        let reason = if info.user_pin_locked() {
            "its PIN is locked; unlock it with the security officer's"
        } else if info.user_pin_final_try() {
            "one more wrong PIN would lock it, so that it is not tried; log in once by hand with the right one"
        } else {
            return Ok(());
        };
        Err(self.pin_fault(reason.to_owned()))
    }

    /// Logs in with the first PIN that is not known to be wrong, if `may_try` lets it.
    fn give_pin(
        &self,
        session: &Session,
        user: UserType,
        may_try: impl Fn() -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        loop {
            let (source, pin) = self.choose_pin().map_err(|reason| self.pin_fault(reason))?;
            may_try()?;
            let given = RawAuthPin::new(Box::new(pin.octets().to_vec()));
            match session.login_with_raw(user, &given) {
                Ok(()) => {
                    self.was_right(&source);
                    return Ok(());
                }
                // By whomever, with whatever: it says nothing of this PIN.
                Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => return Ok(()),
                Err(error) if Cause::of(&error) == Cause::Pin => {
                    let (call, code) = call_and_code(&error);
                    let wrong = WrongPin {
                        fingerprint: pin.fingerprint(&self.salt),
                        answer: format!("{call} failed with {code}"),
                    };
                    self.was_wrong(&source, wrong);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A PIN to be tried and where it is from; or why there is none, which is the same sentence as long as nothing
    /// changes.
    fn choose_pin(&self) -> Result<(PinSource, Pin), String> {
        let sources: Vec<PinSource> = self
            .pins()
            .sources
            .iter()
            .map(|known| known.source.clone())
            .collect();
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY");
        let mut reason = None;
        for source in sources {
            let why_not = match source.read(credentials.as_deref().map(Path::new)) {
                Err(error) => error.to_string(),
                Ok(pin) => match self.known_as_wrong(&source, pin.fingerprint(&self.salt)) {
                    None => return Ok((source, pin)),
                    Some(answer) => format!("{answer}; the PIN from {source} {NOT_AGAIN}"),
                },
            };
            reason.get_or_insert(why_not);
        }
        Err(reason.unwrap_or_else(|| NO_PIN.to_owned()))
    }

    /// What the token said to the PIN that `source` holds now, if that was wrong.
    fn known_as_wrong(&self, source: &PinSource, fingerprint: Fingerprint) -> Option<String> {
        let mut pins = self.pins();
        for known in &mut pins.sources {
            // It holds another now, and may hold the same one again later: after the token's was changed.
            if known.source == *source {
                known
                    .wrong
                    .take_if(|wrong| wrong.fingerprint != fingerprint);
            }
        }
        pins.wrong()
            .find(|wrong| wrong.fingerprint == fingerprint)
            .map(|wrong| wrong.answer.clone())
    }

    fn was_wrong(&self, source: &PinSource, wrong: WrongPin) {
        let mut pins = self.pins();
        match pins
            .sources
            .iter_mut()
            .find(|known| known.source == *source)
        {
            Some(known) => known.wrong = Some(wrong),
            None => pins.inherited.push(wrong),
        }
        self.tell(pins);
    }

    fn was_right(&self, source: &PinSource) {
        let mut pins = self.pins();
        pins.inherited.clear();
        let is_it = |known: &Source| known.source == *source;
        if let Some(place) = pins.sources.iter().position(is_it) {
            let mut known = pins.sources.remove(place);
            known.wrong = None;
            pins.sources.insert(0, known);
        }
        self.tell(pins);
    }

    /// Tells which PINs are known to be wrong, if that has changed.
    fn tell(&self, mut pins: MutexGuard<'_, Pins>) {
        let all: Vec<_> = pins.wrong().cloned().collect();
        if all != pins.told {
            pins.told.clone_from(&all);
            drop(pins);
            (self.latched)(all);
        }
    }

    fn pin_fault(&self, reason: String) -> Failed {
        Failed::Fault(Fault::Pin {
            token: self.uri(),
            reason,
        })
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pins {
    fn wrong(&self) -> impl Iterator<Item = &WrongPin> {
        let of_sources = self.sources.iter().filter_map(|known| known.wrong.as_ref());
        of_sources.chain(&self.inherited)
    }
}

/// The one token of `module` that `uri` names.
pub(crate) fn find(module: &Pkcs11, uri: &Uri) -> Result<(Slot, TokenFacts), Failed> {
    let present = tokens(module)?;
    let uris = |tokens: &[(Slot, TokenFacts)]| {
        tokens
            .iter()
            .map(|(_, facts)| Uri::of_token(facts).to_string())
            .collect::<Vec<_>>()
    };
    let (mut found, others): (Vec<_>, Vec<_>) = present
        .into_iter()
        .partition(|(_, facts)| uri.matches_token(facts));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(Failed::Fault(Fault::NoToken {
            wanted: uri.to_string(),
            tokens: uris(&others),
        })),
        _ => Err(Failed::Fault(Fault::ManyTokens {
            wanted: uri.to_string(),
            tokens: uris(&found),
        })),
    }
}

/// The initialised tokens that are in slots now.
pub(crate) fn tokens(module: &Pkcs11) -> Result<Vec<(Slot, TokenFacts)>, Error> {
    let library = module.get_library_info().ok();
    let mut tokens = Vec::new();
    for slot in module.get_slots_with_token()? {
        // A token may go while the list is walked.
        let (Ok(info), Ok(slot_info)) = (module.get_token_info(slot), module.get_slot_info(slot))
        else {
            continue;
        };
        if !info.token_initialized() {
            continue;
        }
        let text = |text: &str| text.trim_end().to_owned();
        tokens.push((
            slot,
            TokenFacts {
                label: text(info.label()),
                manufacturer: text(info.manufacturer_id()),
                model: text(info.model()),
                serial: text(info.serial_number()),
                slot_id: slot.id(),
                slot_description: text(slot_info.slot_description()),
                slot_manufacturer: text(slot_info.manufacturer_id()),
                library_description: library
                    .as_ref()
                    .map_or_else(String::new, |info| text(info.library_description())),
                library_manufacturer: library
                    .as_ref()
                    .map_or_else(String::new, |info| text(info.manufacturer_id())),
                library_version: library.as_ref().map_or((0, 0), |info| {
                    (
                        info.library_version().major(),
                        info.library_version().minor(),
                    )
                }),
            },
        ));
    }
    Ok(tokens)
}

/// How long a login stands that was made to see a key that was not to be seen.
const GIVING_UP_PAUSE: Duration = Duration::from_secs(4);

const NO_PIN: &str = "wants a PIN: name the file that holds it, by pin-source in the key's URI, by Pkcs11PinFile, or at \
                      the command line by --pkcs11-pin-file";
