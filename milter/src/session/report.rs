//! The words about a message: its Authentication-Results field (RFC 8601) and its line in the log.

use super::Client;
use super::signing::Signed;
use crate::policy::{Answer, Occasion, Order};
use crate::protocol::macros::Macros;
use crate::tables::TextSet;
use dkim_core::address::message_authors;
use dkim_core::message::HeaderFields;
use dkim_core::results::{
    MethodResult, Property, ResultWord, claims_authserv_id, format_results, signature_marks,
};
use dkim_core::signature::algorithm_name;
use dkim_core::verifier::{Reason, Verdict};
use std::fmt::Write as _;

/// The name of the field.
pub(super) const RESULTS_NAME: &str = "Authentication-Results";

/// Which Authentication-Results fields claim to be ours or of one of `others`, counted from 1 at the top (RFC 8601
/// section 5).
pub(super) fn forged_results(
    header: &HeaderFields,
    authserv_id: &str,
    others: &TextSet,
) -> Vec<u32> {
    let is_ours =
        |id: &[u8]| id.eq_ignore_ascii_case(authserv_id.as_bytes()) || others.contains(id);
    let fields = (1..).zip(header.named(RESULTS_NAME));
    fields
        .filter(|(_, field)| claims_authserv_id(field.value(), is_ours))
        .map(|(index, _)| index)
        .collect()
}

/// The value of our Authentication-Results field. `fault` is what is wrong with the author's address: without a
/// signature, it is the result.
pub(super) fn results_value(
    authserv_id: &str,
    verdicts: &[Verdict],
    fault: Option<&str>,
) -> Vec<u8> {
    let marks: Vec<&[u8]> = verdicts
        .iter()
        .map(|verdict| claimed_signature(verdict).as_bytes())
        .collect();
    let marks = signature_marks(&marks);
    let (told, untold) = worth_telling(verdicts);
    let mut results: Vec<MethodResult> = told
        .map(|(index, verdict)| method_result(verdict, marks[index]))
        .collect();
    if untold > 0 {
        results.push(MethodResult {
            method: "dkim",
            result: ResultWord::Neutral,
            comment: None,
            reason: Some(untold_words(untold)),
            properties: Vec::new(),
        });
    }
    if let (true, Some(fault)) = (results.is_empty(), fault) {
        results.push(MethodResult {
            method: "dkim",
            result: ResultWord::PermError,
            comment: None,
            reason: Some(fault.to_owned()),
            properties: Vec::new(),
        });
    }
    // One space after the colon.
    [b" ", &*format_results(authserv_id, &results)].concat()
}

/// Signatures told of that nobody evaluated: malformed ones, and those beyond the limit.
///
/// A header can hold thousands, and what a milter may insert has limits (of 64 kB in Sendmail), beyond which the MTA gives
/// the milter up.
const MOST_UNEVALUATED: usize = 10;

/// The verdicts to be told, each with its place, and how many others there are.
fn worth_telling(verdicts: &[Verdict]) -> (impl Iterator<Item = (usize, &Verdict)>, usize) {
    let is_unevaluated = |verdict: &&Verdict| {
        matches!(
            verdict.reason,
            Reason::Malformed(_) | Reason::TooManySignatures { .. }
        )
    };
    let unevaluated = verdicts.iter().filter(is_unevaluated).count();
    let mut room = MOST_UNEVALUATED;
    let told = verdicts.iter().enumerate().filter(move |(_, verdict)| {
        if !is_unevaluated(verdict) {
            return true;
        }
        let has_room = room > 0;
        room = room.saturating_sub(1);
        has_room
    });
    (told, unevaluated.saturating_sub(MOST_UNEVALUATED))
}

fn untold_words(untold: usize) -> String {
    format!("{untold} more signatures were not evaluated")
}

/// What is wrong with the author's address, if anything.
pub(super) fn author_fault(header: &HeaderFields) -> Option<String> {
    match message_authors(header.named("From").map(|field| field.value())) {
        Err(fault) => Some(fault.to_string()),
        Ok(authors) => authors
            .iter()
            .find_map(|author| author.domain_name().err())
            .map(|fault| fault.to_string()),
    }
}

/// `signed d=... s=... a=...` for each signature, who sent the message, and why we speak for it.
pub(super) fn signed_line(signed: &Signed, sender: &[u8], client: &Client) -> String {
    let mut line = String::from(if signed.made.is_empty() {
        "left alone:"
    } else {
        "signed"
    });
    for order in &signed.made {
        // Writing to a string cannot fail.
        let _ = write!(line, " {}", signer_words(order));
    }
    if !signed.skipped.is_empty() {
        line.push_str(" already signed");
    }
    for order in &signed.skipped {
        let _ = write!(line, " {}", signer_words(order));
    }
    let sender = String::from_utf8_lossy(sender);
    let _ = write!(line, " from=<{sender}>");
    if !sender.eq_ignore_ascii_case(&signed.author) {
        let _ = write!(line, " author=<{}>", signed.author);
    }
    let _ = write!(line, " client={} ({})", name_of(client), signed.trust);
    if let Some(reason) = &signed.broken {
        let _ = write!(line, "; an earlier signature is broken: {reason}");
    }
    for reason in &signed.missing {
        let _ = write!(line, "; without one: {reason}");
    }
    line
}

/// `d=... s=... a=...`
pub(super) fn signer_words(order: &Order) -> String {
    let signer = &order.signer;
    let algorithm = algorithm_name(signer.key.key_type());
    format!("d={} s={} a={algorithm}", signer.domain, signer.selector)
}

/// `verified: ` and each verdict, what was done about them, and why the message was not signed. `fault` is what is wrong
/// with the author's address.
pub(super) fn verified_line(
    verdicts: &[Verdict],
    fault: Option<&str>,
    unsigned: Option<&str>,
    occasion: Option<Occasion>,
    answer: &Answer,
) -> String {
    let mut line = String::from("verified: ");
    let fault = fault.filter(|_| verdicts.is_empty());
    match fault {
        Some(fault) => {
            // Writing to a string cannot fail.
            let _ = write!(line, "dkim={}: {fault}", ResultWord::PermError.as_str());
        }
        None if verdicts.is_empty() => line.push_str("dkim=none"),
        None => (),
    }
    let (told, untold) = worth_telling(verdicts);
    for (at, (_, verdict)) in told.enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        let _ = write!(line, "{separator}dkim={}", verdict.result.as_str());
        for (tag, value) in [
            ("d", &verdict.claims.domain),
            ("s", &verdict.claims.selector),
            ("a", &verdict.claims.algorithm),
        ] {
            if let Some(value) = value {
                let _ = write!(line, " {tag}={value}");
            }
        }
        if let Some(bits) = verdict.key_bits {
            let _ = write!(line, " ({bits}-bit key)");
        }
        if verdict.result != ResultWord::Pass {
            let _ = write!(line, ": {}", verdict.reason);
        }
    }
    if untold > 0 {
        let _ = write!(line, ", {}", untold_words(untold));
    }
    if *answer != Answer::Accept {
        let option = occasion.map_or("", Occasion::option);
        let _ = write!(line, "; {} ({option})", outcome(answer));
    }
    match unsigned {
        // One reason for both.
        Some(reason) if fault == Some(reason) => line.push_str("; not signed"),
        Some(reason) => {
            let _ = write!(line, "; not signed: {reason}");
        }
        None => (),
    }
    line
}

/// What became of a message, in a word.
pub(super) fn outcome(answer: &Answer) -> &'static str {
    match answer {
        Answer::Accept => "accepted",
        Answer::Discard => "discarded",
        Answer::Quarantine(_) => "quarantined",
        Answer::Reject(..) => "rejected",
        Answer::TempFail(..) => "deferred",
    }
}

/// The reason of the first signature that did not pass.
pub(super) fn first_reason(verdicts: &[Verdict]) -> String {
    verdicts.first().map_or_else(
        || "no signature".into(),
        |verdict| verdict.reason.to_string(),
    )
}

/// The queue identifier, or a word for its lack.
pub(super) fn queue_id(macros: &Macros) -> String {
    macros.queue_id().map_or_else(
        || "NOQUEUE".into(),
        |id| String::from_utf8_lossy(id).into_owned(),
    )
}

fn name_of(client: &Client) -> String {
    let name = String::from_utf8_lossy(&client.name);
    match client.address {
        // Postfix has the address in brackets for the name of a client whose name is not known, or not verified.
        Some(address) if name.starts_with('[') => format!("[{address}]"),
        Some(address) => format!("{name}[{address}]"),
        None => name.into_owned(),
    }
}

fn claimed_signature(verdict: &Verdict) -> &str {
    verdict.claims.signature.as_deref().unwrap_or_default()
}

fn method_result(verdict: &Verdict, mark: &[u8]) -> MethodResult {
    let claims = &verdict.claims;
    let identity = claims
        .identity
        .as_ref()
        .map(|identity| [&identity.local_part[..], b"@", identity.domain.as_bytes()].concat());
    let text = |value: &Option<String>| value.as_ref().map(|value| value.clone().into_bytes());
    let mark = (!mark.is_empty()).then(|| mark.to_vec());
    let properties = [
        ("d", text(&claims.domain)),
        ("i", identity),
        ("s", text(&claims.selector)),
        ("a", text(&claims.algorithm)),
        ("b", mark),
    ];
    MethodResult {
        method: "dkim",
        result: verdict.result,
        comment: verdict.key_bits.map(|bits| {
            format!(
                "{bits}-bit key{}",
                if verdict.testing { ", testing" } else { "" }
            )
        }),
        reason: (!matches!(
            verdict.reason,
            Reason::Verified {
                from_fields: 0 | 1,
                unsigned_octets: 0
            }
        ))
        .then(|| verdict.reason.to_string()),
        properties: properties
            .into_iter()
            .filter_map(|(name, value)| {
                Some(Property {
                    ptype: "header",
                    name,
                    value: value?,
                })
            })
            .collect(),
    }
}
