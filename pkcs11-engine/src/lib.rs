//! Signing keys that live in PKCS#11 tokens, as `dkim-core` knows signing keys; nothing here knows of mail.
//!
//! From the outside in:
//!
//! - `tokens`: the way in. Keys by their references; deadlines; `settings`: how they are used, and what an operator is told;
//! - `isolated`, `process`, `wire`, `helper`: a module in a process of its own, seen from the program, on the way, and from
//!   within;
//! - `service`: all that is signed by one module, wherever it runs; the search for tokens that are away;
//! - `session_pool`, `worker`: a token's threads, its breaker, and the way to one signature;
//! - `token`, `key`, `module`: slot and login; one key; C_Initialize and C_Finalize;
//! - `serving`, `duty`, `verify`: tokens that verify and hash, for who must: the way in, what a worker does, which calls it
//!   makes;
//! - `on_token`: the same in this process, for benchmarks;
//! - `uri`, `pin`, `reference`: what operators write, and what it comes to; `listing`: what they may copy; `error`: what
//!   they read.
//!
//! A token is used for the keys that name it and for nothing else. C_Finalize is called once, last, by
//! [`Tokens::shut_down`], if C_Initialize was ours, and never while anybody is inside the module.
#![forbid(unsafe_code)]

mod duty;
mod error;
mod helper;
mod isolated;
mod key;
mod listing;
mod module;
mod on_token;
pub mod pin;
mod process;
mod reference;
mod service;
mod serving;
mod session_pool;
mod settings;
mod token;
mod tokens;
pub mod uri;
mod verify;
mod wire;
mod worker;

pub use error::Fault;
pub use helper::run_if_asked;
pub use key::{KeyFacts, Method, Public};
pub use listing::TokenListing;
pub use on_token::OnToken;
pub use reference::{Reference, ReferenceError, TokenTask, installed_modules};
pub use serving::{TokenDigest, TokenDigester, TokenVerifier};
pub use settings::{Isolation, Level, Notice, Settings, told_once};
pub use tokens::{TokenKey, Tokens};
