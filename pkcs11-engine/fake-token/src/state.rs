//! What the module keeps from one call to the next: sessions, logins, handles, and what it has seen of the world.
//!
//! All of it is of one process and one C_Initialize: numbers start at 1 again after the next one, as those of real
//! modules do.

use std::collections::{HashMap, VecDeque};

use aws_lc_rs::digest::Context;
use cryptoki_sys::{
    CK_RV, CKR_DEVICE_ERROR, CKR_DEVICE_REMOVED, CKR_OBJECT_HANDLE_INVALID,
    CKR_SESSION_HANDLE_INVALID, CKR_SLOT_ID_INVALID, CKR_TOKEN_NOT_PRESENT,
};

use crate::control::Control;
use crate::object::{Object, objects};
use crate::operation::{Signing, Verifying};

/// The two tokens there can be; the second one only with `second_token`.
pub(crate) type TokenIndex = usize;

/// The state of one C_Initialize.
pub(crate) struct State {
    pub(crate) sessions: HashMap<u64, Session>,
    /// Calls in the module now.
    pub(crate) inside: usize,
    pub(crate) logged_in: [bool; 2],
    handles: HashMap<u64, Handle>,
    next_session: u64,
    next_object: u64,
    /// The newest state of the control file that has been looked at.
    control: u64,
    /// The `gone` of the control file when it was last looked at.
    gone: u64,
    present: bool,
    /// The token is out of reach until the next C_Initialize.
    lost: bool,
}

/// What an object's handle stands for.
enum Handle {
    /// The object of this name on a token.
    Stored(TokenIndex, &'static str),
    /// An object of one session, by the session's handle.
    OfSession(u64, Object),
}

/// An open session, or one whose token has gone.
pub(crate) struct Session {
    pub(crate) token: TokenIndex,
    pub(crate) writes: bool,
    pub(crate) dead: bool,
    /// Calls in it now: more than one is a violation.
    pub(crate) inside: usize,
    /// The last call that came in.
    pub(crate) last: &'static str,
    pub(crate) find: Option<VecDeque<u64>>,
    pub(crate) sign: Option<Signing>,
    pub(crate) verify: Option<Verifying>,
    pub(crate) digest: Option<Context>,
}

impl Session {
    /// Ends the operation that `function` is a part of.
    pub(crate) fn end_operation(&mut self, function: &str) {
        match function {
            "C_Sign" | "C_SignUpdate" | "C_SignFinal" => self.sign = None,
            "C_Verify" | "C_VerifyUpdate" | "C_VerifyFinal" => self.verify = None,
            "C_Digest" | "C_DigestUpdate" | "C_DigestFinal" => self.digest = None,
            _ => {}
        }
    }
}

impl State {
    /// That of a fresh C_Initialize.
    pub(crate) fn new(control: &Control) -> Self {
        let gone = control.number("gone").unwrap_or(0);
        let present = control.flag("present", true);
        Self {
            sessions: HashMap::new(),
            inside: 0,
            logged_in: [false; 2],
            handles: HashMap::new(),
            next_session: 1,
            next_object: first_object(gone),
            control: control.version,
            gone,
            present,
            lost: !present && control.flag("needs_init", false),
        }
    }

    /// Sees what has happened to the token since the last look.
    pub(crate) fn notice(&mut self, control: &Control) {
        if control.version <= self.control {
            return;
        }
        self.control = control.version;
        let gone = control.number("gone").unwrap_or(0);
        let present = control.flag("present", true);
        if gone != self.gone || (self.present && !present) {
            self.lose_token(0);
            self.lost = control.flag("needs_init", false);
            if gone != self.gone {
                self.next_object = self.next_object.max(first_object(gone));
            }
        }
        (self.gone, self.present) = (gone, present);
    }

    /// Whether a call on `session` may go on.
    pub(crate) fn check(&self, session: Option<u64>, control: &Control) -> Result<(), CK_RV> {
        let Some(handle) = session else { return Ok(()) };
        let found = self
            .sessions
            .get(&handle)
            .ok_or(CKR_SESSION_HANDLE_INVALID)?;
        if !found.dead {
            return Ok(());
        }
        Err(if self.lost {
            CKR_DEVICE_ERROR
        } else if !self.present {
            CKR_DEVICE_REMOVED
        } else {
            control
                .number("gone_rv")
                .unwrap_or(CKR_SESSION_HANDLE_INVALID)
        })
    }

    /// The slots, each with its token.
    pub(crate) fn slots(&self, control: &Control) -> Vec<(u64, TokenIndex)> {
        // Odd numbers for the first: the second token stays where it is.
        let mut slots = vec![(1 + 2 * self.gone, 0)];
        if control.text("second_token").is_some() {
            slots.push((SECOND_SLOT, 1));
        }
        slots.sort_unstable();
        slots
    }

    /// Whether there is a token in a slot that one can talk to.
    pub(crate) fn is_present(&self, token: TokenIndex) -> bool {
        token != 0 || (self.present && !self.lost)
    }

    /// The token in `slot`.
    pub(crate) fn token(&self, slot: u64, control: &Control) -> Result<TokenIndex, CK_RV> {
        let (_, token) = self
            .slots(control)
            .into_iter()
            .find(|&(number, _)| number == slot)
            .ok_or(CKR_SLOT_ID_INVALID)?;
        if !self.is_present(token) {
            return Err(CKR_TOKEN_NOT_PRESENT);
        }
        Ok(token)
    }

    /// An open session.
    pub(crate) fn session(&mut self, handle: u64) -> Result<&mut Session, CK_RV> {
        self.sessions
            .get_mut(&handle)
            .filter(|session| !session.dead)
            .ok_or(CKR_SESSION_HANDLE_INVALID)
    }

    /// Sessions that a token has open.
    pub(crate) fn open_sessions(&self, token: TokenIndex) -> usize {
        self.sessions
            .values()
            .filter(|session| session.token == token && !session.dead)
            .count()
    }

    /// Opens a session with `token`.
    pub(crate) fn open(&mut self, token: TokenIndex, writes: bool) -> u64 {
        let handle = self.next_session;
        self.next_session += 1;
        let session = Session {
            token,
            writes,
            dead: false,
            inside: 0,
            last: "",
            find: None,
            sign: None,
            verify: None,
            digest: None,
        };
        self.sessions.insert(handle, session);
        handle
    }

    /// Closes a session and what is its own; the last one of a token logs out.
    pub(crate) fn close(&mut self, handle: u64) -> Option<Session> {
        let closed = self.sessions.remove(&handle)?;
        self.handles
            .retain(|_, object| !matches!(object, Handle::OfSession(owner, _) if *owner == handle));
        if self.open_sessions(closed.token) == 0 {
            self.log_out(closed.token);
        }
        Some(closed)
    }

    /// Makes private objects vanish: their handles are void for ever.
    pub(crate) fn log_out(&mut self, token: TokenIndex) {
        self.logged_in[token] = false;
        self.handles
            .retain(|_, object| !matches!(object, Handle::Stored(of, name) if *of == token && name.contains("private")));
    }

    /// The objects of `token` that can be seen now.
    pub(crate) fn visible(&self, token: TokenIndex, control: &Control) -> Vec<Object> {
        let all = self.logged_in[token] || !control.flag("login_required", true);
        let mut objects = objects(token, control);
        objects.retain(|object| all || !object.private);
        objects
    }

    /// The handle of a stored object, a new one if it has none.
    pub(crate) fn handle_of(&mut self, token: TokenIndex, name: &'static str) -> u64 {
        let known = self
            .handles
            .iter()
            .find(|(_, object)| matches!(object, Handle::Stored(of, known) if *of == token && *known == name));
        match known {
            Some((&handle, _)) => handle,
            None => self.number(Handle::Stored(token, name)),
        }
    }

    /// Keeps an object of `session` and gives its handle.
    pub(crate) fn add_object(&mut self, session: u64, object: Object) -> u64 {
        self.number(Handle::OfSession(session, object))
    }

    /// Handles of `session`'s own objects.
    pub(crate) fn own_objects(&self, session: u64) -> Vec<(u64, &Object)> {
        self.handles
            .iter()
            .filter_map(|(&handle, object)| match object {
                Handle::OfSession(owner, object) if *owner == session => Some((handle, object)),
                _ => None,
            })
            .collect()
    }

    /// Forgets an object of a session; those on the token cannot be destroyed.
    pub(crate) fn destroy(&mut self, handle: u64) -> Result<(), CK_RV> {
        match self.handles.get(&handle) {
            Some(Handle::OfSession(..)) => {
                self.handles.remove(&handle);
                Ok(())
            }
            Some(Handle::Stored(..)) => Err(cryptoki_sys::CKR_ACTION_PROHIBITED),
            None => Err(CKR_OBJECT_HANDLE_INVALID),
        }
    }

    /// The object behind a handle, as seen from a session with `token`.
    pub(crate) fn object(
        &self,
        token: TokenIndex,
        handle: u64,
        control: &Control,
    ) -> Result<Object, CK_RV> {
        match self.handles.get(&handle) {
            Some(Handle::OfSession(_, object)) => Ok(object.clone()),
            Some(&Handle::Stored(of, name)) if of == token => self
                .visible(token, control)
                .into_iter()
                .find(|object| object.name == name)
                .ok_or(CKR_OBJECT_HANDLE_INVALID),
            _ => Err(CKR_OBJECT_HANDLE_INVALID),
        }
    }

    fn number(&mut self, object: Handle) -> u64 {
        let handle = self.next_object;
        self.next_object += 1;
        self.handles.insert(handle, object);
        handle
    }

    /// Power cycle or removal: sessions, login and handles are no more.
    fn lose_token(&mut self, token: TokenIndex) {
        self.logged_in[token] = false;
        let mut dead = Vec::new();
        for (&handle, session) in &mut self.sessions {
            if session.token == token {
                session.dead = true;
                dead.push(handle);
            }
        }
        self.handles.retain(|_, object| match object {
            Handle::Stored(of, _) => *of != token,
            Handle::OfSession(owner, _) => !dead.contains(owner),
        });
    }
}

/// The slot of the second token: even, as no slot of the first one is.
const SECOND_SLOT: u64 = 2;

/// The first handle of an object, by how often the token has gone.
fn first_object(gone: u64) -> u64 {
    1 + gone.saturating_mul(100)
}
