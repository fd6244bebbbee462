//! Verifying (RFC 6376 section 6): header fields, body octets and key records in, a verdict per signature out.
//!
//! The verifier asks nobody. At the end of the header it says which names [`to_look_up`](Verifier::to_look_up); answers
//! may come in any order while the body passes. At the end of the body it says what is [`to_check`](Verifier::to_check);
//! each check can be run anywhere, and its outcome handed back. Every signature gets a verdict, whatever is missing.

mod check;
mod verdict;

use check::UsableRecords;
pub use check::{Check, CheckOutcome};
pub use verdict::{Reason, Verdict};

use crate::body_digest::{BodyHash, NoBodyHash, ToDigest};
use crate::body_hashes::{BodyHashes, HashId};
use crate::canonicalization::append_field_without;
use crate::engine::KeyType;
use crate::field_selection::FieldIndex;
use crate::key_record::{KeyAnswer, KeyRecord};
use crate::message::{HeaderField, HeaderFields, name_hash};
use crate::signature::{Claims, FIELD_NAME, Signature};
use std::sync::Arc;

/// What a verifier accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifierConfig {
    /// How many well-formed signatures are evaluated, from the top; the others are reported as not evaluated.
    pub max_signatures: usize,
    /// The smallest RSA key that is accepted, in bits. RFC 8301 section 3.2 allows none below 1024.
    pub min_rsa_bits: u32,
    /// The largest RSA key that is used, in bits; RFC 8301 section 3.2 wants 4096 at least.
    pub max_rsa_bits: u32,
    /// How far clocks may differ when `t=` and `x=` are judged, in seconds.
    pub clock_drift: u64,
    /// Whether a signature passes that leaves octets of the body unsigned (`l=`). RFC 6376 section 8.2 says why not.
    pub accept_unsigned_octets: bool,
    /// Whether a signature passes on a message with several From fields. RFC 6376 section 8.15 says why not.
    pub accept_several_from: bool,
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self {
            max_signatures: 10,
            min_rsa_bits: 1024,
            max_rsa_bits: 8192,
            clock_drift: 300,
            accept_unsigned_octets: false,
            accept_several_from: false,
        }
    }
}

/// The verification of one message.
#[derive(Debug)]
pub struct Verifier {
    config: VerifierConfig,
    items: Vec<Item>,
    key_names: Vec<String>,
    hashes: BodyHashes,
    from_fields: usize,
}

/// One DKIM-Signature field on its way to a verdict.
#[derive(Debug)]
struct Item {
    /// Its place in the header.
    field: usize,
    signature: Option<Signature>,
    claims: Option<Claims>,
    key_name: usize,
    body_hash: Option<HashId>,
    answer: Option<Arc<KeyAnswer>>,
    key_bits: Option<u32>,
    testing: bool,
    unsigned_octets: u64,
    reason: Option<Reason>,
}

impl Verifier {
    /// Reads the signatures in a complete header. `now` is in seconds since 1970; without it no signature is too old or
    /// too new.
    pub fn new(header: &HeaderFields, config: &VerifierConfig, now: Option<u64>) -> Self {
        let mut verifier = Self {
            config: config.clone(),
            items: Vec::new(),
            key_names: Vec::new(),
            hashes: BodyHashes::default(),
            from_fields: header.named("From").count(),
        };
        let mut well_formed = 0;
        let name = FIELD_NAME.as_bytes();
        let places = || header.places_of(name_hash(name), name);
        verifier.items.reserve_exact(places().count());
        for index in places() {
            if let Some(field) = header.get(index) {
                let item = verifier.read(index, field, now, &mut well_formed);
                verifier.items.push(item);
            }
        }
        verifier
    }

    /// The names whose TXT records hold the keys, each once; answers are given by a name's place in this list.
    pub fn to_look_up(&self) -> &[String] {
        &self.key_names
    }

    /// Takes the answer for the name at `index` of [`to_look_up`](Self::to_look_up).
    pub fn answer(&mut self, index: usize, answer: Arc<KeyAnswer>) {
        for item in &mut self.items {
            if item.reason.is_none() && item.key_name == index {
                item.take_answer(&answer, &self.config);
            }
        }
    }

    /// Whether the body still matters; if not, it need not be fed.
    pub fn wants_body(&self) -> bool {
        self.items.iter().any(|item| item.reason.is_none())
    }

    /// Takes the next octets of the body.
    pub fn body(&mut self, chunk: &[u8]) {
        if self.wants_body() {
            self.hashes.update(chunk);
        }
    }

    /// Ends the body and says which signatures are to be checked. `header` is the one given to [`new`](Self::new).
    ///
    /// A name that was not answered by now counts as one that could not be looked up.
    pub fn to_check(&mut self, header: &HeaderFields) -> Vec<Check> {
        let hashes = std::mem::take(&mut self.hashes).finish();
        self.checks(header, |id| Ok(hashes.get(id)))
    }

    /// The body hashes that are wanted, for who makes them elsewhere: the body is then not fed here, and they are given to
    /// [`to_check_with`](Self::to_check_with).
    pub fn to_digest(&self) -> Vec<ToDigest> {
        self.hashes.wanted()
    }

    /// Like [`to_check`](Self::to_check), with the hashes of [`to_digest`](Self::to_digest), in its order; or why there
    /// is none, which leaves open what became of the body.
    pub fn to_check_with(
        &mut self,
        header: &HeaderFields,
        hashes: &[Result<BodyHash, NoBodyHash>],
    ) -> Vec<Check> {
        let wanted = std::mem::take(&mut self.hashes);
        self.checks(header, |id| match hashes.get(wanted.place(id)) {
            Some(hash) => hash.clone(),
            None => Err(NoBodyHash::Unavailable("nobody made it".to_owned())),
        })
    }

    /// The checks of what has the body hash that `hash_of` gives.
    fn checks(
        &mut self,
        header: &HeaderFields,
        hash_of: impl Fn(HashId) -> Result<BodyHash, NoBodyHash>,
    ) -> Vec<Check> {
        let fields = FieldIndex::new(header);
        let mut checks = Vec::new();
        for (index, item) in self.items.iter_mut().enumerate() {
            let (None, Some(signature), Some(hash)) =
                (&item.reason, &item.signature, item.body_hash)
            else {
                continue;
            };
            let Some(answer) = item.answer.clone() else {
                item.reason = Some(Reason::KeyUnavailable("no answer in time".into()));
                continue;
            };
            let hash = match hash_of(hash) {
                Ok(hash) => hash,
                Err(no_hash) => {
                    item.reason = Some(match no_hash {
                        NoBodyHash::Unavailable(why) => Reason::BodyHashUnavailable(why),
                        NoBodyHash::Refused(why) => Reason::CheckRefused(why),
                    });
                    continue;
                }
            };
            if let Some(length) = signature.body_length {
                if length > hash.body_octets {
                    item.reason = Some(Reason::BodyShorterThanLength);
                    continue;
                }
                item.unsigned_octets = hash.body_octets - length;
            }
            if signature.body_hash != hash.digest {
                item.reason = Some(Reason::BodyHash);
                continue;
            }
            let Some(field) = header.get(item.field) else {
                continue;
            };
            let octets = signed_octets(signature, header, item.field, field, &fields);
            let records = UsableRecords::new(signature, &answer, &self.config);
            // All that is wanted of it from here on are its claims.
            let Some(signature) = item.signature.take() else {
                continue;
            };
            let (claims, signature) = signature.into_claims();
            item.claims = Some(claims);
            checks.push(Check {
                item: index,
                octets,
                signature,
                records,
                answer,
            });
        }
        checks
    }

    /// Takes the outcome of a check.
    pub fn checked(&mut self, check: &Check, outcome: CheckOutcome) {
        let Some(item) = self.items.get_mut(check.item) else {
            return;
        };
        if let CheckOutcome::Good { record } = outcome
            && let KeyAnswer::Records(records) = &*check.answer
            && let Some(Ok(record)) = records.get(record)
        {
            (item.key_bits, item.testing) = facts(record);
        }
        item.reason = Some(match outcome {
            CheckOutcome::Bad => Reason::Signature,
            CheckOutcome::Unusable(why) => Reason::EngineRefusesKey(why),
            CheckOutcome::Unavailable(why) => Reason::CheckUnavailable(why),
            CheckOutcome::Refused(why) => Reason::CheckRefused(why),
            CheckOutcome::Good { .. }
                if item.unsigned_octets > 0 && !self.config.accept_unsigned_octets =>
            {
                Reason::UnsignedOctets(item.unsigned_octets)
            }
            CheckOutcome::Good { .. }
                if self.from_fields > 1 && !self.config.accept_several_from =>
            {
                Reason::SeveralFrom(self.from_fields)
            }
            CheckOutcome::Good { .. } => Reason::Verified {
                unsigned_octets: item.unsigned_octets,
                from_fields: self.from_fields,
            },
        });
    }

    /// The verdicts, one per DKIM-Signature field from the top.
    ///
    /// A signature that is still undecided gets [`Reason::KeyUnavailable`] or [`Reason::NotChecked`].
    pub fn verdicts(self, header: &HeaderFields) -> Vec<Verdict> {
        let items = self.items.into_iter().enumerate();
        items
            .map(|(index, item)| {
                let value = header
                    .get(item.field)
                    .map_or(&b""[..], |field| field.value());
                let claims = match (item.claims, item.signature) {
                    (Some(claims), _) => claims,
                    (None, Some(signature)) => signature.into_claims().0,
                    (None, None) => Claims::read(value),
                };
                let reason = item.reason.unwrap_or(match item.answer {
                    None => Reason::KeyUnavailable("no answer in time".into()),
                    Some(_) => Reason::NotChecked,
                });
                Verdict {
                    index,
                    result: reason.word(),
                    reason,
                    claims,
                    key_bits: item.key_bits,
                    testing: item.testing,
                    unsigned_octets: item.unsigned_octets,
                }
            })
            .collect()
    }

    /// Runs the checks with `engine` right here, for callers with nothing better to do meanwhile.
    pub fn finish(
        mut self,
        header: &HeaderFields,
        engine: &dyn crate::engine::Engine,
    ) -> Vec<Verdict> {
        for check in self.to_check(header) {
            let outcome = check.run(engine);
            self.checked(&check, outcome);
        }
        self.verdicts(header)
    }

    fn read(
        &mut self,
        index: usize,
        field: HeaderField<'_>,
        now: Option<u64>,
        well_formed: &mut usize,
    ) -> Item {
        let mut item = Item {
            field: index,
            signature: None,
            claims: None,
            key_name: usize::MAX,
            body_hash: None,
            answer: None,
            key_bits: None,
            testing: false,
            unsigned_octets: 0,
            reason: None,
        };
        let signature = match Signature::parse(field.value()) {
            Ok(signature) => signature,
            Err(error) => {
                item.claims = Some(Claims::read(field.value()));
                item.reason = Some(Reason::Malformed(error));
                return item;
            }
        };
        *well_formed += 1;
        item.reason = if *well_formed > self.config.max_signatures {
            Some(Reason::TooManySignatures {
                limit: self.config.max_signatures,
            })
        } else {
            untimely(&signature, now, self.config.clock_drift)
        };
        if item.reason.is_none() {
            let canonicalization = signature.canonicalization.body;
            item.body_hash = Some(self.hashes.add(canonicalization, signature.body_length));
            item.key_name = self.key_name(&signature);
        }
        item.signature = Some(signature);
        item
    }

    fn key_name(&mut self, signature: &Signature) -> usize {
        let name = signature.key_name();
        let known = self
            .key_names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(&name));
        known.unwrap_or_else(|| {
            self.key_names.push(name);
            self.key_names.len() - 1
        })
    }
}

impl Item {
    fn take_answer(&mut self, answer: &Arc<KeyAnswer>, config: &VerifierConfig) {
        let Some(signature) = &self.signature else {
            return;
        };
        match &**answer {
            KeyAnswer::NoName => self.reason = Some(Reason::NoKey { name_exists: false }),
            KeyAnswer::NoRecord => self.reason = Some(Reason::NoKey { name_exists: true }),
            KeyAnswer::Unavailable(why) => self.reason = Some(Reason::KeyUnavailable(why.clone())),
            KeyAnswer::Records(records) => {
                let record = UsableRecords::new(signature, answer, config)
                    .places()
                    .first()
                    .map(|&index| &records[index])
                    .or_else(|| records.iter().find(|record| record.is_ok()));
                if let Some(Ok(record)) = record {
                    (self.key_bits, self.testing) = facts(record);
                }
                let mut refusals = records
                    .iter()
                    .map(|record| refusal(signature, record, config));
                if refusals.clone().all(|refusal| refusal.is_some()) {
                    self.reason = refusals
                        .next()
                        .flatten()
                        .or(Some(Reason::NoKey { name_exists: true }));
                }
            }
        }
        self.answer = Some(answer.clone());
    }
}

/// The size of the key, and whether its domain is testing: of the record that verified, or else of the first that could.
fn facts(record: &KeyRecord) -> (Option<u32>, bool) {
    (Some(record.public_key().bits()), record.is_testing())
}

/// RFC 6376 section 3.5 on `t=` and `x=`.
fn untimely(signature: &Signature, now: Option<u64>, drift: u64) -> Option<Reason> {
    let now = now?;
    if signature
        .expiration
        .is_some_and(|x| x.saturating_add(drift) < now)
    {
        Some(Reason::Expired)
    } else if signature
        .timestamp
        .is_some_and(|t| t > now.saturating_add(drift))
    {
        Some(Reason::FromTheFuture)
    } else {
        None
    }
}

/// Why a record cannot serve for this signature (RFC 6376 section 6.1.2, RFC 8301 section 3.2).
fn refusal(
    signature: &Signature,
    record: &Result<KeyRecord, crate::key_record::KeyRecordError>,
    config: &VerifierConfig,
) -> Option<Reason> {
    let record = match record {
        Ok(record) => record,
        Err(error) => return Some(Reason::KeyRecord(error.clone())),
    };
    let key = record.public_key();
    let is_rsa = key.key_type() == KeyType::Rsa;
    if key.key_type() != signature.key_type {
        Some(Reason::KeyTypeMismatch)
    } else if !record.allows_sha256() {
        Some(Reason::HashNotAllowed)
    } else if !record.is_for_email() {
        Some(Reason::NotForEmail)
    } else if record.has_strict_identity() && has_sub_domain_identity(signature) {
        Some(Reason::IdentityNotDomain)
    } else if is_rsa && key.bits() < config.min_rsa_bits.max(1024) {
        Some(Reason::KeyTooSmall {
            bits: key.bits(),
            least: config.min_rsa_bits.max(1024),
        })
    } else if is_rsa && key.bits() > config.max_rsa_bits {
        Some(Reason::KeyTooLarge {
            bits: key.bits(),
            most: config.max_rsa_bits,
        })
    } else {
        None
    }
}

fn has_sub_domain_identity(signature: &Signature) -> bool {
    let identity = signature.identity.as_ref();
    identity.is_some_and(|identity| !identity.domain.eq_ignore_ascii_case(&signature.domain))
}

/// The input of the data hash (RFC 6376 section 3.7): the fields in `h=`, then the signature itself without its `b=`.
fn signed_octets(
    signature: &Signature,
    header: &HeaderFields,
    own: usize,
    field: HeaderField<'_>,
    fields: &FieldIndex,
) -> Vec<u8> {
    // What is relaxed is hardly ever longer than it was; of long headers it may be a small part.
    let mut octets = Vec::with_capacity(header.octets().clamp(2048, 1 << 16));
    let algorithm = signature.canonicalization.header;
    fields.append_selected(
        &mut octets,
        header,
        Some(own),
        signature.header_names(field.value()),
        algorithm,
    );
    append_field_without(&mut octets, field, algorithm, signature.b_value());
    octets
}
