//! Whether the records of our keys are in the DNS as they must be, looked up in the background; mail never waits for it.
//!
//! Records are asked for at start, after a reload and once a day; those that are not right, every few minutes until they
//! are. One line is logged when what is known of a record changes. A DNS that does not answer says nothing about a
//! record: what was known stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, sleep};

use super::State;
use crate::config::RecordPolicy;
use crate::keys::{KeyPlace, SigningIdentity};
use crate::record_check::RecordCheck;

/// Looks after the records of all keys, for ever.
pub(super) async fn watch(state: Arc<ArcSwap<State>>) {
    let mut known: HashMap<_, Known> = HashMap::new();
    let mut of = state.load_full();
    // How many keys there are to sign with in tokens, as was last seen.
    let mut there = None;
    loop {
        let now = state.load_full();
        if !Arc::ptr_eq(&of, &now) {
            known.clear();
            of = now;
            there = None;
        }
        let are_there = Some(of.settings.keys.in_tokens().count());
        let is_due = known.values().any(|one| one.due <= Some(Instant::now()));
        if is_due || there != are_there {
            there = are_there;
            check_due(&of, &mut known).await;
        }
        sleep(TICK).await;
    }
}

/// What is known of one record.
#[derive(Default)]
struct Known {
    /// What is wrong with it.
    fault: Option<String>,
    /// When it is asked for again; `None` for at once.
    due: Option<Instant>,
}

/// Asks for the records that are due, one after the other, and draws the conclusions.
async fn check_due(state: &State, known: &mut HashMap<(String, String), Known>) {
    let settings = &state.settings;
    let config = &settings.config;
    let policy = config.signing.key_records.unwrap_or(RecordPolicy::Warn);
    if policy == RecordPolicy::Ignore {
        return;
    }
    let in_tokens = config.signing.key_records.is_none();
    for (place, identity) in settings.keys.identities(config, in_tokens) {
        let name = (identity.domain.clone(), identity.selector.clone());
        let one = known.entry(name).or_default();
        if one.due.is_some_and(|due| due > Instant::now()) {
            continue;
        }
        let check = check(state, &identity).await;
        let pause = if check.is_unknown() {
            tracing::debug!("{place}: {}: {check}", record_name(&identity));
            UNKNOWN
        } else {
            let fault = (!check.faults.is_empty()).then(|| check.to_string());
            conclude(state, &place, &identity, policy, one, fault.clone());
            if fault.is_some() { WRONG } else { RIGHT }
        };
        one.due = Some(Instant::now() + pause);
    }
}

async fn check(state: &State, identity: &SigningIdentity) -> RecordCheck {
    let answer = state.key_records.lookup(&record_name(identity)).await;
    RecordCheck::new(&answer, Some(identity.key.public_key()))
}

fn conclude(
    state: &State,
    place: &KeyPlace,
    identity: &SigningIdentity,
    policy: RecordPolicy,
    known: &mut Known,
    fault: Option<String>,
) {
    let name = record_name(identity);
    match (&fault, &known.fault) {
        (Some(fault), before) if before.as_ref() != Some(fault) => {
            let consequence = match policy {
                RecordPolicy::Hold => "; the key is not signed with until that is mended",
                RecordPolicy::Warn | RecordPolicy::Ignore => "",
            };
            tracing::warn!("{place}: {name}: {fault}{consequence}");
        }
        (None, Some(_)) => tracing::info!("{place}: {name}: the record is right now"),
        _ => {}
    }
    if policy == RecordPolicy::Hold {
        let keys = &state.settings.keys;
        keys.hold(&identity.domain, &identity.selector, fault.clone());
    }
    known.fault = fault;
}

fn record_name(identity: &SigningIdentity) -> String {
    format!("{}._domainkey.{}", identity.selector, identity.domain)
}

/// How often it is looked what is due.
const TICK: Duration = Duration::from_secs(5);

/// How long what was found is believed.
const RIGHT: Duration = Duration::from_secs(24 * 60 * 60);
const WRONG: Duration = Duration::from_secs(5 * 60);
const UNKNOWN: Duration = Duration::from_secs(15 * 60);
