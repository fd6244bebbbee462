//! Options for keys in PKCS#11 tokens.

use std::path::PathBuf;

use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::OnAway;

use super::{Opt, Preset, Spec};
use crate::config::values;

pub(in crate::config) static PKCS11_MODULE: Opt<PathBuf> = Opt {
    spec: Spec::new(
        "Pkcs11Module",
        "path",
        Preset::Unset("none"),
        "The PKCS#11 module, a shared library, of keys whose URI has neither module-path nor module-name. A token is used for \
         the keys that name it and for nothing else. (Not an option of OpenDKIM, as none of those for tokens.)",
        "/usr/lib/softhsm/libsofthsm2.so",
    ),
    parse: values::path,
};

pub(in crate::config) static PKCS11_PIN_FILE: Opt<PinSource> = Opt {
    spec: Spec::new(
        "Pkcs11PinFile",
        "path | credential:NAME",
        Preset::Unset("none"),
        "Where the PIN comes from for tokens whose keys' URIs have no pin-source: a file that holds it and that nobody else can \
         read, or a systemd credential (LoadCredential). It is read at each login, so that a changed PIN needs no restart. A \
         PIN that was wrong is not tried again until it changes, as a token locks itself after a few tries.",
        "/etc/dkim-milter/pin",
    ),
    parse: values::pin_source,
};

pub(in crate::config) static PKCS11_ALLOW_PIN_VALUE: Opt<bool> = Opt::switch(
    "Pkcs11AllowPinValue",
    "no",
    "Whether a PIN may stand in a URI (pin-value), and so in the configuration and in all its copies.",
);

pub(in crate::config) static PKCS11_ISOLATION: Opt<bool> = Opt {
    spec: Spec::new(
        "Pkcs11Isolation",
        "process | none",
        Preset::Value("process"),
        "Where a module is loaded: in a process of its own, which has the PIN too, so that a module that crashes or hangs is \
         ended and started again without harm; or in the daemon itself, which saves a tenth of a millisecond per signature.",
        "none",
    ),
    parse: values::isolation,
};

pub(in crate::config) static PKCS11_SESSIONS: Opt<u64> = Opt {
    spec: Spec::new(
        "Pkcs11Sessions",
        "number",
        Preset::Value("4"),
        "How many sessions, and signatures at a time, a token gets. More than it can work on only let messages wait; \
         dkim-testkey --speed measures it. A token that has room for fewer gets fewer.",
        "2",
    ),
    parse: values::number::<1, 64>,
};

pub(in crate::config) static PKCS11_QUEUE: Opt<u64> = Opt {
    spec: Spec::new(
        "Pkcs11Queue",
        "number",
        Preset::Value("64"),
        "How many signatures may wait for a token. What comes beyond is as if the token were away.",
        "16",
    ),
    parse: values::number::<1, 1024>,
};

pub(in crate::config) static PKCS11_TIMEOUT: Opt<u64> = Opt {
    spec: Spec::new(
        "Pkcs11Timeout",
        "seconds",
        Preset::Value("5"),
        "How long a token may take for a signature. What takes longer is as if the token were away; and when no call has \
         returned for that long, the process that holds the module is ended and started again.",
        "3",
    ),
    parse: values::number::<1, 15>,
};

pub(in crate::config) static ON_TOKEN_AWAY: Opt<OnAway> = Opt {
    spec: Spec::new(
        "On-TokenAway",
        "tempfail | next | accept | quarantine",
        Preset::Value("tempfail"),
        "For mail to be signed with a key in a token that does not sign now: tempfail defers it; next signs it with the next key \
         that SigningTable has for its author, and defers it if there is none; accept lets it pass without that \
         signature; quarantine puts it aside. A key's URI can say otherwise for that key: x-on-token-away=next. Clients \
         that submit mail show their users a deferral, and do not try again by themselves.",
        "next",
    ),
    parse: values::on_away,
};
