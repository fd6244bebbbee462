//! What tokens and keys a module shows, for people who look for the URI to write down.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Fault, call_and_code};
use crate::key::{self, Failed, KeyFacts};
use crate::module::Module;
use crate::reference::Reference;
use crate::token::{self, Token};
use crate::uri::{TokenFacts, Uri};

/// One token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenListing {
    /// Its URI.
    pub uri: String,
    /// What it says of itself.
    pub facts: TokenFacts,
    /// Whether private keys are shown only to who is logged in.
    pub login_required: bool,
    /// Why nobody is logged in, if somebody should be.
    pub not_logged_in: Option<Fault>,
    /// Its private keys, as far as they are shown.
    pub keys: Vec<KeyFacts>,
}

/// The tokens of `module` that the URI of `reference` matches, and in each the private keys that it matches, looked at
/// with its PIN if it has one. `known` gives the token as it is known already, if it is: with what its PINs have come to,
/// and a login that others need.
///
/// # Errors
/// A call that fails.
pub(crate) fn list(
    module: &Module,
    reference: &Reference,
    known: impl Fn(&TokenFacts) -> Arc<Token>,
) -> Result<Vec<TokenListing>, Fault> {
    let entered = module.enter()?;
    let fault = |error| {
        let (call, code) = call_and_code(&error);
        Fault::Module {
            module: module.path().display().to_string(),
            reason: format!("{call} failed with {code}"),
        }
    };
    let mut tokens = token::tokens(&entered).map_err(fault)?;
    tokens.retain(|(_, facts)| reference.uri.matches_token(facts));
    // A PIN is one token's; tried at another, it would bring that one nearer to being locked.
    let may_log_in = tokens.len() == 1;
    let mut listed = Vec::new();
    for (slot, facts) in tokens {
        let mut listing = TokenListing {
            uri: Uri::of_token(&facts).to_string(),
            facts: facts.clone(),
            login_required: entered
                .get_token_info(slot)
                .is_ok_and(|info| info.login_required()),
            not_logged_in: None,
            keys: Vec::new(),
        };
        let token = known(&facts);
        if may_log_in {
            token.need_login();
            token.take_pin_from(reference.pin.as_ref());
        }
        let opened = if may_log_in {
            token.session(&entered)
        } else {
            Err(Failed::Fault(Fault::Pin {
                token: token.uri(),
                reason:
                    "is one of several; name it, for instance by its serial, to have it logged in"
                        .to_owned(),
            }))
        };
        let session = match opened {
            Ok(opened) => opened.session,
            Err(failed) => {
                listing.not_logged_in = Some(match failed {
                    Failed::Fault(fault) => fault,
                    Failed::Call(error) => fault(error),
                });
                // What is there to be seen without a login.
                entered.open_ro_session(slot).map_err(fault)?
            }
        };
        for key in key::find_all(&session).map_err(fault)? {
            let facts = key::facts(&entered, slot, &session, key, &facts, reference.mechanism())
                .map_err(fault)?;
            if reference.uri.matches_object(&facts.label, &facts.id) {
                listing.keys.push(facts);
            }
        }
        let _ = session.close();
        // Unless others have it, too.
        if let Some(token) = Arc::into_inner(token) {
            token.close(&entered);
        }
        listed.push(listing);
    }
    Ok(listed)
}
