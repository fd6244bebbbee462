//! What the MTA is told: the On-* actions (RFC 6376 section 6.3).

use crate::config::{Action, Actions};
use dkim_core::results::ResultWord;
use dkim_core::verifier::{Reason, Verdict};
use pkcs11_engine::uri::OnAway;

/// What the MTA is told at the end of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Go on.
    Accept,
    /// Say yes and throw it away.
    Discard,
    /// Put it aside, for this reason.
    Quarantine(String),
    /// Refuse it for good, with an enhanced status code (RFC 3463) and a few words.
    Reject(&'static str, &'static str),
    /// Refuse it for now, likewise.
    TempFail(&'static str, &'static str),
}

/// What an On-* option is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// No signature at all.
    NoSignature,
    /// Signatures, and none is good.
    BadSignature,
    /// No signature is good, for lack of keys.
    KeyNotFound,
    /// No signature is good yet: the DNS did not answer.
    DnsError,
    /// Something is wrong here, not with the message.
    InternalError,
    /// The message is beyond limits that protect this host.
    Security,
    /// The message cannot be signed, because of itself.
    SignatureError,
    /// The key is in a token that does not sign now; what is to be done then.
    TokenAway(OnAway),
    /// No signature is good yet: the token that verifies, or hashes, does not do so now; what is to be done then.
    TokenCannotVerify(OnAway),
}

impl Occasion {
    /// The option's name.
    pub fn option(self) -> &'static str {
        match self {
            Self::NoSignature => "On-NoSignature",
            Self::BadSignature => "On-BadSignature",
            Self::KeyNotFound => "On-KeyNotFound",
            Self::DnsError => "On-DNSError",
            Self::InternalError => "On-InternalError",
            Self::Security => "On-Security",
            Self::SignatureError => "On-SignatureError",
            Self::TokenAway(_) | Self::TokenCannotVerify(_) => "On-TokenAway",
        }
    }
}

/// What a verified message meets: `None` if a signature passed, else the occasion.
///
/// One that may pass later outweighs those that failed for good, so that nobody loses mail to a dead resolver. `on_away` is
/// what becomes of mail that is not judged for lack of a token.
pub fn judge(verdicts: &[Verdict], on_away: OnAway) -> Option<Occasion> {
    let is = |word| move |verdict: &Verdict| verdict.result == word;
    if verdicts.is_empty() {
        Some(Occasion::NoSignature)
    } else if verdicts.iter().any(is(ResultWord::Pass)) {
        None
    } else if verdicts.iter().any(lacks_token) {
        Some(Occasion::TokenCannotVerify(on_away))
    } else if verdicts.iter().any(is(ResultWord::TempError)) {
        Some(Occasion::DnsError)
    } else if verdicts.iter().all(lacks_key) {
        Some(Occasion::KeyNotFound)
    } else {
        Some(Occasion::BadSignature)
    }
}

/// The answer that the configuration gives on an occasion. `verdicts` are those of the message: a domain that says it is
/// testing is not held to its signatures (RFC 6376 section 3.6.1, `t=y`).
pub fn answer_on(
    actions: &Actions,
    occasion: Occasion,
    verdicts: &[Verdict],
    detail: &str,
) -> Answer {
    let is_testing = !verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.testing);
    match action_on(actions, occasion) {
        Action::Accept => Answer::Accept,
        _ if is_testing => Answer::Accept,
        Action::Discard => Answer::Discard,
        Action::Quarantine => Answer::Quarantine(format!("{}: {detail}", text(occasion))),
        Action::Reject => Answer::Reject(
            if occasion == Occasion::Security {
                "5.3.4"
            } else {
                "5.7.0"
            },
            text(occasion),
        ),
        Action::TempFail => Answer::TempFail(
            match occasion {
                Occasion::DnsError | Occasion::TokenAway(_) | Occasion::TokenCannotVerify(_) => {
                    "4.7.5"
                }
                _ => "4.7.0",
            },
            text(occasion),
        ),
    }
}

fn action_on(actions: &Actions, occasion: Occasion) -> Action {
    match occasion {
        Occasion::NoSignature => actions.no_signature,
        Occasion::BadSignature => actions.bad_signature,
        Occasion::KeyNotFound => actions.key_not_found,
        Occasion::DnsError => actions.dns_error,
        Occasion::InternalError => actions.internal_error,
        Occasion::Security => actions.security,
        Occasion::SignatureError => actions.signature_error,
        Occasion::TokenAway(on_away) | Occasion::TokenCannotVerify(on_away) => match on_away {
            OnAway::Accept => Action::Accept,
            OnAway::Quarantine => Action::Quarantine,
            // Where there is no next key, it is deferred; and nobody verifies with another one.
            OnAway::Tempfail | OnAway::Next => Action::TempFail,
        },
    }
}

fn lacks_key(verdict: &Verdict) -> bool {
    matches!(verdict.reason, Reason::NoKey { .. } | Reason::KeyRecord(_))
}

fn lacks_token(verdict: &Verdict) -> bool {
    matches!(
        verdict.reason,
        Reason::CheckUnavailable(_) | Reason::BodyHashUnavailable(_)
    )
}

fn text(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::NoSignature => "no DKIM signature data",
        Occasion::BadSignature => "bad DKIM signature data",
        Occasion::KeyNotFound => "no key for DKIM signature",
        Occasion::DnsError => "DKIM key retrieval failed",
        Occasion::InternalError => "internal DKIM error",
        Occasion::Security => "message exceeds DKIM limits",
        Occasion::SignatureError => "DKIM signing error",
        Occasion::TokenAway(_) => "DKIM signing temporarily unavailable",
        Occasion::TokenCannotVerify(_) => "DKIM verification temporarily unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::signature::Claims;

    fn verdict(reason: Reason, testing: bool) -> Verdict {
        Verdict {
            index: 0,
            result: reason.word(),
            reason,
            claims: Claims::default(),
            key_bits: None,
            testing,
            unsigned_octets: 0,
        }
    }

    fn good() -> Verdict {
        let reason = Reason::Verified {
            from_fields: 1,
            unsigned_octets: 0,
        };
        verdict(reason, false)
    }

    fn verdicts(reasons: &[Reason]) -> Vec<Verdict> {
        reasons
            .iter()
            .map(|reason| verdict(reason.clone(), false))
            .collect()
    }

    #[test]
    fn a_pass_outweighs_all_and_a_key_that_may_come_outweighs_failures() {
        let later = || Reason::KeyUnavailable("SERVFAIL".into());
        let away = || Reason::CheckUnavailable("away".into());
        let no_key = || Reason::NoKey { name_exists: false };
        for (reasons, want) in [
            (vec![], Occasion::NoSignature),
            (vec![Reason::BodyHash], Occasion::BadSignature),
            (vec![no_key()], Occasion::KeyNotFound),
            (vec![no_key(), Reason::BodyHash], Occasion::BadSignature),
            (vec![Reason::BodyHash, later()], Occasion::DnsError),
            (vec![Reason::SeveralFrom(2)], Occasion::BadSignature),
            (
                vec![Reason::BodyHash, away(), later()],
                Occasion::TokenCannotVerify(OnAway::Accept),
            ),
            (
                vec![Reason::BodyHashUnavailable("away".into())],
                Occasion::TokenCannotVerify(OnAway::Accept),
            ),
            (
                vec![Reason::CheckRefused("too large".into())],
                Occasion::BadSignature,
            ),
        ] {
            let mut verdicts = verdicts(&reasons);
            assert_eq!(judge(&verdicts, OnAway::Accept), Some(want), "{reasons:?}");
            verdicts.push(good());
            assert_eq!(
                judge(&verdicts, OnAway::Accept),
                None,
                "{reasons:?} and a pass"
            );
        }
    }

    #[test]
    fn a_domain_that_is_testing_loses_no_mail() {
        let actions = Actions {
            no_signature: Action::Reject,
            bad_signature: Action::Reject,
            key_not_found: Action::Discard,
            dns_error: Action::TempFail,
            signature_error: Action::Reject,
            internal_error: Action::TempFail,
            security: Action::Quarantine,
        };
        let testing = [verdict(Reason::Signature, true)];
        let deferring = Actions {
            bad_signature: Action::TempFail,
            ..actions
        };
        assert_eq!(
            answer_on(&deferring, Occasion::BadSignature, &testing, ""),
            Answer::Accept
        );
        assert_eq!(
            answer_on(&actions, Occasion::BadSignature, &testing, ""),
            Answer::Accept
        );
        assert_eq!(
            answer_on(&actions, Occasion::KeyNotFound, &testing, ""),
            Answer::Accept
        );
        let serious = [
            verdict(Reason::Signature, true),
            verdict(Reason::Signature, false),
        ];
        assert_eq!(
            answer_on(&actions, Occasion::BadSignature, &serious, ""),
            Answer::Reject("5.7.0", "bad DKIM signature data")
        );
        assert_eq!(
            answer_on(&actions, Occasion::DnsError, &[], ""),
            Answer::TempFail("4.7.5", "DKIM key retrieval failed")
        );
        for (on_away, want) in [
            (OnAway::Accept, Answer::Accept),
            (
                OnAway::Next,
                Answer::TempFail("4.7.5", "DKIM verification temporarily unavailable"),
            ),
        ] {
            assert_eq!(
                answer_on(&actions, Occasion::TokenCannotVerify(on_away), &[], ""),
                want
            );
        }
        assert_eq!(
            answer_on(&actions, Occasion::Security, &[], "too large"),
            Answer::Quarantine("message exceeds DKIM limits: too large".into())
        );
    }
}
