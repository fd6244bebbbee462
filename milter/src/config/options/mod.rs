//! The table of options: every name the configuration knows, and all that is to be told about it.
//!
//! An [`Opt`] holds how its value is read, its default in the words an operator would write, and its description.
//! Nothing about an option is written down anywhere else: the parser reads its default too, and the manual page and the
//! sample are printed from here. Options of OpenDKIM that are not carried stand in `not_carried`.

mod not_carried;
mod operation;
mod signing;
mod tokens;
mod verifying;

pub(super) use not_carried::{NOT_CARRIED, NotCarried, Weight};
pub(super) use operation::*;
pub(super) use signing::*;
pub(super) use tokens::*;
pub(super) use verifying::*;

use super::values::{self, ValueFault};
use crate::tables::nearest;

/// An option whose value is a `T`.
pub(super) struct Opt<T: 'static> {
    /// What is told about it.
    pub(super) spec: Spec,
    /// Reads its value, and its default.
    pub(super) parse: fn(&str) -> Result<T, ValueFault>,
}

/// What is told about an option.
#[derive(Debug)]
pub(super) struct Spec {
    /// Its name; case does not count.
    pub(super) name: &'static str,
    /// The form of its value, as in a synopsis.
    pub(super) form: &'static str,
    /// Its value when nobody sets it.
    pub(super) default: Preset,
    /// What it does, in one paragraph.
    pub(super) about: &'static str,
    /// A value as an operator might write it.
    pub(super) example: &'static str,
    /// How it stands in the sample.
    pub(super) sample: Sample,
}

/// The value of an option that nobody set.
#[derive(Debug)]
pub(super) enum Preset {
    /// This value, as if it were written.
    Value(&'static str),
    /// No value; what that means.
    Unset(&'static str),
}

/// How an option stands in the annotated sample.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sample {
    /// In force, with its example as the value.
    Active,
    /// As a comment.
    Comment,
}

/// Options that belong together.
pub(super) struct Section {
    /// The heading.
    pub(super) title: &'static str,
    /// Its options, in the order in which they are told.
    pub(super) options: &'static [&'static Spec],
}

/// Every option that is carried.
pub(super) static SECTIONS: [Section; 8] = [
    Section {
        title: "The file itself",
        options: &[&INCLUDE, &BASE_DIRECTORY.spec],
    },
    Section {
        title: "Service",
        options: &[
            &SOCKET.spec,
            &STATUS_SOCKET.spec,
            &LISTEN_ANYWHERE.spec,
            &UMASK.spec,
            &USER_ID.spec,
            &PID_FILE.spec,
            &BACKGROUND.spec,
            &MAXIMUM_CONNECTIONS.spec,
            &DRAIN_TIMEOUT.spec,
        ],
    },
    Section {
        title: "Logging",
        options: &[
            &SYSLOG.spec,
            &SYSLOG_FACILITY.spec,
            &SYSLOG_NAME.spec,
            &SYSLOG_SUCCESS.spec,
            &LOG_WHY.spec,
        ],
    },
    Section {
        title: "Which mail is signed, verified or left alone",
        options: &[
            &MODE.spec,
            &INTERNAL_HOSTS.spec,
            &MTA.spec,
            &MACRO_LIST.spec,
            &EXTERNAL_IGNORE_LIST.spec,
            &PEER_LIST.spec,
            &EXEMPT_DOMAINS.spec,
            &DONT_SIGN_MAIL_TO.spec,
            &MAXIMUM_HEADERS.spec,
        ],
    },
    Section {
        title: "Signing",
        options: &[
            &DOMAIN.spec,
            &SUB_DOMAINS.spec,
            &SELECTOR.spec,
            &KEY_FILE.spec,
            &KEY_TABLE.spec,
            &SIGNING_TABLE.spec,
            &MULTIPLE_SIGNATURES.spec,
            &SKIP_ALREADY_SIGNED.spec,
            &REQUIRE_SAFE_KEYS.spec,
            &CANONICALIZATION.spec,
            &SIGNATURE_ALGORITHM.spec,
            &SIGN_HEADERS.spec,
            &OMIT_HEADERS.spec,
            &OVERSIGN_HEADERS.spec,
            &SIGNATURE_TTL.spec,
            &CHECK_KEY_RECORDS.spec,
            &ENGINE.spec,
        ],
    },
    Section {
        title: "PKCS#11 tokens",
        options: &[
            &PKCS11_MODULE.spec,
            &PKCS11_PIN_FILE.spec,
            &PKCS11_ALLOW_PIN_VALUE.spec,
            &PKCS11_ISOLATION.spec,
            &PKCS11_SESSIONS.spec,
            &PKCS11_QUEUE.spec,
            &PKCS11_TIMEOUT.spec,
            &ON_TOKEN_AWAY.spec,
            &PKCS11_VERIFY.spec,
            &PKCS11_DIGEST.spec,
            &PKCS11_FALLBACK.spec,
        ],
    },
    Section {
        title: "Verifying",
        options: &[
            &AUTHSERV_ID.spec,
            &ALWAYS_ADD_AR_HEADER.spec,
            &REMOVE_AR_FROM.spec,
            &MAXIMUM_SIGNATURES_TO_VERIFY.spec,
            &MINIMUM_KEY_BITS.spec,
            &CLOCK_DRIFT.spec,
            &ALLOW_UNSIGNED_TAIL.spec,
            &NAMESERVERS.spec,
            &DNS_TIMEOUT.spec,
            &TEST_PUBLIC_KEYS.spec,
        ],
    },
    Section {
        title: "What becomes of a message",
        options: &[
            &ON_DEFAULT.spec,
            &ON_NO_SIGNATURE.spec,
            &ON_BAD_SIGNATURE.spec,
            &ON_KEY_NOT_FOUND.spec,
            &ON_DNS_ERROR.spec,
            &ON_SIGNATURE_ERROR.spec,
            &ON_INTERNAL_ERROR.spec,
            &ON_SECURITY.spec,
        ],
    },
];

/// The option called `name`.
pub(super) fn find(name: &str) -> Option<&'static Spec> {
    all().find(|spec| spec.name.eq_ignore_ascii_case(name))
}

/// The option of OpenDKIM called `name`, if it is not carried.
pub(super) fn find_not_carried(name: &str) -> Option<&'static NotCarried> {
    NOT_CARRIED
        .iter()
        .find(|option| option.name.eq_ignore_ascii_case(name))
}

/// The option that `name` most likely stands for.
pub(super) fn suggest(name: &str) -> Option<&'static str> {
    nearest(name, all().map(|spec| spec.name))
        .or_else(|| nearest(name, NOT_CARRIED.iter().map(|option| option.name)))
}

/// Every option that is carried, in order.
pub(super) fn all() -> impl Iterator<Item = &'static Spec> {
    SECTIONS.iter().flat_map(|section| section.options).copied()
}

/// Forms that many options share.
const YES_NO: &str = "yes | no";
const DATA_SET: &str = "data set";

impl<T: PartialEq> Opt<T> {
    /// Whether `value` is what holds anyway.
    pub(in crate::config) fn is_default(&self, value: &T) -> bool {
        match self.spec.default {
            Preset::Value(default) => (self.parse)(default).is_ok_and(|default| default == *value),
            Preset::Unset(_) => false,
        }
    }
}

impl Opt<bool> {
    /// A switch.
    const fn switch(name: &'static str, default: &'static str, about: &'static str) -> Self {
        Self {
            spec: Spec::new(
                name,
                YES_NO,
                Preset::Value(default),
                about,
                opposite(default),
            ),
            parse: values::switch,
        }
    }
}

impl Opt<String> {
    /// A data set, opened once all options are known.
    const fn data_set(
        name: &'static str,
        default: Preset,
        about: &'static str,
        example: &'static str,
    ) -> Self {
        Self {
            spec: Spec::new(name, DATA_SET, default, about, example),
            parse: values::text,
        }
    }
}

impl Spec {
    const fn new(
        name: &'static str,
        form: &'static str,
        default: Preset,
        about: &'static str,
        example: &'static str,
    ) -> Self {
        Self {
            name,
            form,
            default,
            about,
            example,
            sample: Sample::Comment,
        }
    }

    /// In force in the sample.
    const fn active(self) -> Self {
        Self {
            sample: Sample::Active,
            ..self
        }
    }
}

/// The other value of a switch, which makes the better example.
const fn opposite(value: &'static str) -> &'static str {
    match value.as_bytes() {
        b"yes" => "no",
        _ => "yes",
    }
}
