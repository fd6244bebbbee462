//! Signatures of ours that a message already has (`SkipAlreadySigned`): mail that passes twice, before and after a
//! content filter, is signed again only if the filter broke the first signature.
//!
//! They are verified with the keys at hand; nothing is asked of the DNS.

use super::Now;
use crate::policy::Order;
use dkim_core::body_digest::{BodyHash, NoBodyHash, ToDigest};
use dkim_core::key_record::{KeyAnswer, KeyRecord};
use dkim_core::message::HeaderFields;
use dkim_core::results::ResultWord;
use dkim_core::verifier::{Check, CheckOutcome, Verdict, Verifier, VerifierConfig};
use std::sync::Arc;

/// The verification of earlier signatures.
pub(super) struct EarlierSignatures(Verifier);

impl EarlierSignatures {
    /// Looks for signatures that `orders` would make again.
    pub(super) fn find(
        header: &HeaderFields,
        orders: &[Order],
        config: &VerifierConfig,
        now: Now,
    ) -> Option<Self> {
        let mut verifier = Verifier::new(header, config, Some(now.unix));
        let names = verifier.to_look_up().to_vec();
        let mut has_own = false;
        for (index, name) in names.iter().enumerate() {
            let own = orders.iter().find(|order| {
                let signer = &order.signer;
                name.eq_ignore_ascii_case(&format!(
                    "{}._domainkey.{}",
                    signer.selector, signer.domain
                ))
            });
            has_own |= own.is_some();
            let answer = match own {
                Some(order) => KeyAnswer::Records(vec![Ok(KeyRecord::of(
                    order.signer.key.public_key().clone(),
                ))]),
                None => KeyAnswer::NoName,
            };
            verifier.answer(index, Arc::new(answer));
        }
        has_own.then_some(Self(verifier))
    }

    pub(super) fn body(&mut self, chunk: &[u8]) {
        self.0.body(chunk);
    }

    /// The body hashes that are wanted, for a token that makes them.
    pub(super) fn to_digest(&self) -> Vec<ToDigest> {
        self.0.to_digest()
    }

    pub(super) fn end_body_with(
        &mut self,
        header: &HeaderFields,
        hashes: &[Result<BodyHash, NoBodyHash>],
    ) -> Vec<Check> {
        self.0.to_check_with(header, hashes)
    }

    pub(super) fn end_body(&mut self, header: &HeaderFields) -> Vec<Check> {
        self.0.to_check(header)
    }

    pub(super) fn checked(&mut self, check: &Check, outcome: CheckOutcome) {
        self.0.checked(check, outcome);
    }

    pub(super) fn verdicts(self, header: &HeaderFields) -> Vec<Earlier> {
        self.0.verdicts(header).into_iter().map(Earlier).collect()
    }
}

/// One earlier signature, with its verdict.
pub(super) struct Earlier(Verdict);

impl Earlier {
    /// Whether `order` would make it again.
    pub(super) fn is_of(&self, order: &Order) -> bool {
        let is = |claim: &Option<String>, name: &str| {
            claim
                .as_ref()
                .is_some_and(|claim| claim.eq_ignore_ascii_case(name))
        };
        is(&self.0.claims.domain, &order.signer.domain)
            && is(&self.0.claims.selector, &order.signer.selector)
    }

    pub(super) fn is_good(&self) -> bool {
        self.0.result == ResultWord::Pass
    }

    pub(super) fn reason(&self) -> String {
        self.0.reason.to_string()
    }
}
