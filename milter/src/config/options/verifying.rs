//! Options of verifying, of the DNS, and of what becomes of a message.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Opt, Preset, Spec};
use crate::config::types::{Action, AuthservId};
use crate::config::values;

pub(in crate::config) static AUTHSERV_ID: Opt<AuthservId> = Opt {
    spec: Spec::new(
        "AuthservID",
        "name",
        Preset::Unset("the MTA's own name, from its macro j"),
        "The name by which Authentication-Results fields are ours. Fields that arrive under it are forged and are removed. \
         \"HOSTNAME\" is the name of the host.",
        "mx.example.com",
    ),
    parse: values::authserv_id,
};

pub(in crate::config) static ALWAYS_ADD_AR_HEADER: Opt<bool> = Opt::switch(
    "AlwaysAddARHeader",
    "no",
    "Whether mail without a signature gets an Authentication-Results field too, saying dkim=none. Such mail without a usable \
     From gets one in any case, saying dkim=permerror.",
);

pub(in crate::config) static REMOVE_AR_FROM: Opt<String> = Opt::data_set(
    "RemoveARFrom",
    Preset::Unset("empty"),
    "Further names whose Authentication-Results fields are removed from arriving mail: \"host.example.com\", or \
     \".example.com\" for all names below it. Fields under our own name are removed in any case.",
    "mx1.example.com, .internal.example.com",
);

pub(in crate::config) static MAXIMUM_SIGNATURES_TO_VERIFY: Opt<u64> = Opt {
    spec: Spec::new(
        "MaximumSignaturesToVerify",
        "number",
        Preset::Value("10"),
        "How many signatures of a message are verified, from the top; the others are reported as not looked at. OpenDKIM's \
         default is 3, too few for mail that is signed with two keys and passes a list.",
        "5",
    ),
    parse: values::number::<1, 100>,
};

pub(in crate::config) static MINIMUM_KEY_BITS: Opt<u64> = Opt {
    spec: Spec::new(
        "MinimumKeyBits",
        "bits",
        Preset::Value("1024"),
        "The size that an RSA key must have for its signatures to count. RFC 8301 forbids less than 1024.",
        "2048",
    ),
    parse: values::key_bits,
};

pub(in crate::config) static CLOCK_DRIFT: Opt<u64> = Opt {
    spec: Spec::new(
        "ClockDrift",
        "seconds",
        Preset::Value("300"),
        "How far the clocks of signers may be off when it is told whether a signature has expired or lies in the future.",
        "60",
    ),
    parse: values::number::<0, 86_400>,
};

pub(in crate::config) static ALLOW_UNSIGNED_TAIL: Opt<bool> = Opt::switch(
    "AllowUnsignedTail",
    "no",
    "Whether a signature may pass that covers, by its l=, only the beginning of the body. Anybody can append to such mail; \
     with no, its result is \"policy\". (OpenDKIM lets it pass. Not an option of it.)",
);

pub(in crate::config) static NAMESERVERS: Opt<Vec<SocketAddr>> = Opt {
    spec: Spec::new(
        "Nameservers",
        "address[:port][, ...]",
        Preset::Unset("those of /etc/resolv.conf"),
        "The name servers to ask, by their IP addresses; one of IPv6 with a port stands in brackets.",
        "127.0.0.1, [::1]:5353",
    ),
    parse: values::nameservers,
};

pub(in crate::config) static DNS_TIMEOUT: Opt<u64> = Opt {
    spec: Spec::new(
        "DNSTimeout",
        "seconds",
        Preset::Value("5"),
        "How long all look-ups for one message may take together; a key that is not known by then counts as a DNS error. To \
         wait for ever (0) is not offered.",
        "8",
    ),
    parse: values::number::<1, 600>,
};

pub(in crate::config) static TEST_PUBLIC_KEYS: Opt<PathBuf> = Opt {
    spec: Spec::new(
        "TestPublicKeys",
        "path",
        Preset::Unset("keys come from the DNS"),
        "A file of key records to use instead of the DNS, for tests: \"name record\" on each line, the record without quotes \
         (2026a._domainkey.example.com v=DKIM1; p=...); or as \"dkim-genkey -a\" writes it, with its whole name.",
        "/etc/dkim-milter/test-records",
    ),
    parse: values::path,
};

const ACTION: &str = "accept | discard | quarantine | reject | tempfail";

impl Opt<Action> {
    const fn action(
        name: &'static str,
        default: Preset,
        about: &'static str,
        example: &'static str,
    ) -> Self {
        Self {
            spec: Spec::new(name, ACTION, default, about, example),
            parse: values::action,
        }
    }
}

pub(in crate::config) static ON_DEFAULT: Opt<Action> = Opt::action(
    "On-Default",
    Preset::Unset("each has its own default"),
    "The value of all the options below that are not set themselves. accept, discard, quarantine, reject and tempfail say \
     what the MTA shall do with the message; their first letters will do.",
    "accept",
);

pub(in crate::config) static ON_NO_SIGNATURE: Opt<Action> = Opt::action(
    "On-NoSignature",
    Preset::Value("accept"),
    "For mail that is to be verified and has no signature.",
    "accept",
);

pub(in crate::config) static ON_BAD_SIGNATURE: Opt<Action> = Opt::action(
    "On-BadSignature",
    Preset::Value("accept"),
    "For mail with signatures of which none passed. A signature whose key says it is being tested (t=y) never leads to more \
     than accept.",
    "reject",
);

pub(in crate::config) static ON_KEY_NOT_FOUND: Opt<Action> = Opt::action(
    "On-KeyNotFound",
    Preset::Value("accept"),
    "For mail whose signatures name keys that the DNS does not have.",
    "reject",
);

pub(in crate::config) static ON_DNS_ERROR: Opt<Action> = Opt::action(
    "On-DNSError",
    Preset::Value("tempfail"),
    "For mail whose signatures cannot be judged because the DNS gave no answer.",
    "accept",
);

pub(in crate::config) static ON_SIGNATURE_ERROR: Opt<Action> = Opt::action(
    "On-SignatureError",
    Preset::Value("reject"),
    "For mail that is to be signed and cannot be, because of itself: its author's domain is too long beside the selector. \
     Mail without a usable From, or with several, is not signed but verified like any other.",
    "accept",
);

pub(in crate::config) static ON_INTERNAL_ERROR: Opt<Action> = Opt::action(
    "On-InternalError",
    Preset::Value("tempfail"),
    "For mail that cannot be signed or verified because of a fault on our side, such as a key that cannot be used or an MTA \
     that takes no header fields.",
    "accept",
);

pub(in crate::config) static ON_SECURITY: Opt<Action> = Opt::action(
    "On-Security",
    Preset::Value("tempfail"),
    "For mail that could be meant to do harm: a header larger than MaximumHeaders.",
    "reject",
);
