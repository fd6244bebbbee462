//! Options for keys in PKCS#11 tokens.

use std::path::PathBuf;

use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::{OnAway, Uri};

use super::{Opt, Preset, Spec};
use crate::config::types::Fallback;
use crate::config::values;

pub(in crate::config) static PKCS11_MODULE: Opt<PathBuf> = Opt {
    spec: Spec::new(
        "Pkcs11Module",
        "path",
        Preset::Unset("none"),
        "The PKCS#11 module, a shared library, of keys whose URI has neither module-path nor module-name. A token is used for \
         the keys that name it and for nothing else. What a URI can say is told in PKCS#11 URIS of dkim-milter.conf(5). (Not \
         an option of OpenDKIM, as none of those for tokens.)",
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

pub(in crate::config) static PKCS11_VERIFY: Opt<Uri> = Opt {
    spec: Spec::new(
        "Pkcs11Verify",
        "pkcs11:URI",
        Preset::Unset("none: signatures are verified in software"),
        "For who must have all cryptography in a certified module: the token that verifies signatures, with the signer's \
         key brought to it for each. It hashes the header, too; x-mechanism=rsa-pkcs in the URI has that done in \
         software. The URI names a token (pkcs11:token=LABEL), not a key. What strangers sign goes into the module, so it \
         has a process of its own, apart from the one that signs, and no PIN unless the URI has pin-source. Software is \
         faster, and a token that calls a wrong signature good, or a good one wrong, is found out by a test with known \
         signatures only, before it is relied on and every 25 seconds. See Pkcs11Fallback.",
        "pkcs11:token=hsm?module-path=/usr/lib/softhsm/libsofthsm2.so",
    ),
    parse: values::token_uri,
};

pub(in crate::config) static PKCS11_DIGEST: Opt<Uri> = Opt {
    spec: Spec::new(
        "Pkcs11Digest",
        "pkcs11:URI",
        Preset::Unset("none: bodies are hashed in software"),
        "For who must, likewise: the token that computes SHA-256 of bodies, of mail that is signed and of mail that is \
         verified. The whole body goes there, and the MTA waits for that; each hash takes a session of the token while \
         the body passes, and at most 32 do at a time; where the token has fewer, others wait for one until \
         Pkcs11Timeout. What a key in a token signs is hashed there with x-mechanism=sha256-rsa-pkcs in the key's URI. A \
         message gets at most four hashes; where its signatures want more (l=), the others are policy.",
        "pkcs11:token=hsm?module-path=/usr/lib/softhsm/libsofthsm2.so",
    ),
    parse: values::token_uri,
};

pub(in crate::config) static PKCS11_FALLBACK: Opt<Fallback> = Opt {
    spec: Spec::new(
        "Pkcs11Fallback",
        "none | software",
        Preset::Value("none"),
        "What is done when the token of Pkcs11Verify or Pkcs11Digest is away, or does not take the kind or size of a key. \
         With none, a signature is temperror while the token is away, and On-TokenAway says what becomes of mail that has \
         no good signature then, and of mail to be signed whose body is not hashed, next counting as tempfail; and a \
         signature whose key the token does not take is policy, which is a matter of On-BadSignature. With software, \
         Engine verifies and software hashes what the token does not, which is noted of each message (LogWhy); bodies \
         are then hashed by both.",
        "software",
    ),
    parse: values::fallback,
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
