//! Options that choose mail, and those of signing.

use dkim_core::engine::KeyType;

use super::{Opt, Preset, Spec};
use crate::config::types::{KeyLocation, Mode, RecordPolicy};
use crate::config::values;
use dkim_core::canonicalization::Canonicalization;

const EMPTY: Preset = Preset::Unset("empty");

pub(in crate::config) static MODE: Opt<Mode> = Opt {
    spec: Spec::new(
        "Mode",
        "s | v | sv",
        Preset::Value("sv"),
        "What to do: sign (s), verify (v) or both (sv). Mail that is for the other mode is accepted untouched.",
        "sv",
    )
    .active(),
    parse: values::mode,
};

pub(in crate::config) static INTERNAL_HOSTS: Opt<String> = Opt::data_set(
    "InternalHosts",
    Preset::Value("127.0.0.1, ::1"),
    "Clients whose mail is signed rather than verified; so is mail of authenticated users. An entry is a host name, \
     \".domain\" for all hosts below it, an IP address or a network such as 10.0.0.0/8; \"!\" before it makes it an \
     exception. The client's name is tried first, then its address; of several networks the narrowest counts. Names \
     count only if the MTA has verified them. A client \"localhost\" without an address, as mail submitted on the host itself \
     may have, counts as 127.0.0.1 and ::1. These are names of hosts, not domains of mail addresses.",
    "127.0.0.1, ::1, 192.0.2.0/24",
);

pub(in crate::config) static MTA: Opt<String> = Opt::data_set(
    "MTA",
    EMPTY,
    "Names of MTA listeners, as the macro {daemon_name} tells them, whose mail is signed.",
    "ORIGINATING",
);

pub(in crate::config) static MACRO_LIST: Opt<String> = Opt::data_set(
    "MacroList",
    EMPTY,
    "Macros of the MTA that mark mail to be signed: \"name\" if any value will do, \"name=value1|value2\" if one of these is \
     wanted. Case counts. The MTA must be told to send the macro. Not as \"refile:\".",
    "daemon_name=ORIGINATING|submission",
);

pub(in crate::config) static EXTERNAL_IGNORE_LIST: Opt<String> = Opt::data_set(
    "ExternalIgnoreList",
    EMPTY,
    "Hosts, written as in InternalHosts, that may send mail of our domains without being internal; it is not signed, and not \
     logged as odd either.",
    "192.0.2.25, .lists.example.net",
);

pub(in crate::config) static PEER_LIST: Opt<String> = Opt::data_set(
    "PeerList",
    EMPTY,
    "Hosts, written as in InternalHosts, whose connections are left alone: nothing is signed, verified, removed or \
     logged.",
    "192.0.2.53",
);

pub(in crate::config) static EXEMPT_DOMAINS: Opt<String> = Opt::data_set(
    "ExemptDomains",
    EMPTY,
    "Domains whose mail, by the author's address, is left alone. \"*\" in an entry stands for any text.",
    "exempt.example, *.exempt.example",
);

pub(in crate::config) static DONT_SIGN_MAIL_TO: Opt<String> = Opt::data_set(
    "DontSignMailTo",
    EMPTY,
    "Mail addresses; a message is not signed if any of its recipients is among them. \"*\" in an entry stands for any text.",
    "fax@example.com, *@pager.example.com",
);

pub(in crate::config) static MAXIMUM_HEADERS: Opt<u64> = Opt {
    spec: Spec::new(
        "MaximumHeaders",
        "octets",
        Preset::Value("262144"),
        "How large the header of a message may be. What becomes of larger ones says On-Security. OpenDKIM's default is \
         65536, which real mail exceeds; no limit (0) is not offered, as it bounds the memory in use.",
        "131072",
    ),
    parse: values::number::<1024, 16_777_216>,
};

pub(in crate::config) static DOMAIN: Opt<String> = Opt::data_set(
    "Domain",
    EMPTY,
    "The domains to sign for with the one key of KeyFile; \"*\" in an entry stands for any text. For several keys use \
     KeyTable and SigningTable instead, beside which this has no effect.",
    "example.com, example.org",
);

pub(in crate::config) static SUB_DOMAINS: Opt<bool> = Opt::switch(
    "SubDomains",
    "no",
    "Whether mail of domains below those in Domain is signed too, in the name of the domain listed there.",
);

pub(in crate::config) static SELECTOR: Opt<String> = Opt {
    spec: Spec::new(
        "Selector",
        "selector",
        Preset::Unset("none"),
        "The selector of the key in KeyFile: its public half is published at selector._domainkey.domain.",
        "2026a",
    ),
    parse: values::selector,
};

pub(in crate::config) static KEY_FILE: Opt<KeyLocation> = Opt {
    spec: Spec::new(
        "KeyFile",
        "path | pkcs11:...",
        Preset::Unset("none"),
        "The private key to sign with, RSA or Ed25519, in PEM; or the PKCS#11 URI of a key in a token. Needs Domain and \
         Selector. dkim-genkey makes one.",
        "/etc/dkimkeys/example.com.pem",
    ),
    parse: values::key_location,
};

pub(in crate::config) static KEY_TABLE: Opt<String> = Opt::data_set(
    "KeyTable",
    EMPTY,
    "Names of keys and what they stand for: \"name domain:selector:key[:algorithm]\". A domain of \"%\" is the author's. The \
     key is the path of a file, beginning with \"/\", \"./\" or \"../\", where each \"%\" is the author's domain, or the key \
     itself in base64, or the PKCS#11 URI of a key in a token, beginning with \"pkcs11:\". The algorithm is rsa-sha256 or ed25519-sha256; without one the key decides. Names are found \
     exactly. Needs SigningTable.",
    "file:/etc/dkim-milter/KeyTable",
);

pub(in crate::config) static SIGNING_TABLE: Opt<String> = Opt::data_set(
    "SigningTable",
    EMPTY,
    "Which keys sign for which authors: \"address key-name[:identity]\". As \"refile:\" the address is a pattern for the whole \
     address, with \"*\" for any text, and the first one in the file that matches counts. Otherwise what is sought is \
     user@host, then host, for each domain above it user@.domain and .domain, then user@*, then *. A key name of \"%\" is \
     the author's domain. The identity, with \"%\" for the author's domain, becomes the signature's i=, if it lies \
     within the signing domain.",
    "refile:/etc/dkim-milter/SigningTable",
);

pub(in crate::config) static MULTIPLE_SIGNATURES: Opt<bool> = Opt::switch(
    "MultipleSignatures",
    "no",
    "Whether every entry of SigningTable that matches adds a signature, rather than the first alone; so mail can be signed \
     with RSA and Ed25519 keys at once.",
);

pub(in crate::config) static SKIP_ALREADY_SIGNED: Opt<bool> = Opt::switch(
    "SkipAlreadySigned",
    "no",
    "Whether a signature is left out where the message has one already by the same domain and selector that is still valid, \
     as when mail passes the same host twice. (Not an option of OpenDKIM.)",
);

pub(in crate::config) static REQUIRE_SAFE_KEYS: Opt<bool> = Opt::switch(
    "RequireSafeKeys",
    "yes",
    "Whether a key file is refused if users other than its owner and group can read it, or can write to it or to a directory \
     above it. With no, that is only warned of.",
);

pub(in crate::config) static CANONICALIZATION: Opt<Canonicalization> = Opt {
    spec: Spec::new(
        "Canonicalization",
        "header[/body]",
        Preset::Value("relaxed/relaxed"),
        "How header and body are made equal before they are hashed, each relaxed or simple. One word is for the header, and \
         the body is then simple. OpenDKIM's default is simple/simple, which breaks when a header field is folded anew on \
         the way; to have it, write it.",
        "relaxed/simple",
    ),
    parse: values::canonicalization,
};

pub(in crate::config) static SIGNATURE_ALGORITHM: Opt<KeyType> = Opt {
    spec: Spec::new(
        "SignatureAlgorithm",
        "rsa-sha256 | ed25519-sha256",
        Preset::Unset("each key decides"),
        "The algorithm to sign with. A key of another kind is then an error, unless its KeyTable entry names its algorithm. \
         Needed by none; rsa-sha1 must not be used any more (RFC 8301).",
        "rsa-sha256",
    ),
    parse: values::algorithm,
};

pub(in crate::config) static SIGN_HEADERS: Opt<String> = Opt::data_set(
    "SignHeaders",
    Preset::Unset("the fields of RFC 6376 section 5.4.1, and those of MIME and of mailing lists"),
    "The header fields to sign where a message has them. A list with the element \"*\" changes the default instead of \
     replacing it: \"*,+name\" adds a field, \"*,-name\" takes one away. From is always signed.",
    "*,+X-Mailer,-Reply-To",
);

pub(in crate::config) static OMIT_HEADERS: Opt<String> = Opt::data_set(
    "OmitHeaders",
    Preset::Value("Return-Path, Received, Comments, Keywords, Bcc, Resent-Bcc, DKIM-Signature"),
    "The header fields never to sign, which counts for more than SignHeaders. \"*\" changes the default as there, and \".\" \
     alone omits none. From cannot be omitted.",
    "*,+X-Spam-Status",
);

pub(in crate::config) static OVERSIGN_HEADERS: Opt<String> = Opt::data_set(
    "OversignHeaders",
    Preset::Value("From"),
    "The header fields to sign once more than a message has them, so that nobody can add another without breaking the \
     signature. They are signed even if SignHeaders does not name them. \"*\" changes the default as there, and \".\" alone \
     oversigns none. OpenDKIM's default is none.",
    "From,To,Subject,Date",
);

pub(in crate::config) static SIGNATURE_TTL: Opt<u64> = Opt {
    spec: Spec::new(
        "SignatureTTL",
        "seconds",
        Preset::Unset("signatures do not expire"),
        "How long after signing a signature is valid (its x=). 0 is as if it were not set.",
        "1209600",
    ),
    parse: values::number::<0, 315_360_000>,
};

pub(in crate::config) static CHECK_KEY_RECORDS: Opt<RecordPolicy> = Opt {
    spec: Spec::new(
        "CheckKeyRecords",
        "hold | no | warn",
        Preset::Unset("warn for keys in tokens, no for others"),
        "Whether the records of our keys are looked for in the DNS, in the background, at start and once a day: with warn, one \
         that is not there or has another key is told in the log; with hold, such a key is not signed with until its \
         record is right, and the next one that SigningTable has for the author signs in its place, or mail is deferred \
         if there is none. It is held once the DNS has said so, seconds after start or reload. A record known to be wrong is \
         looked at again every 5 minutes and at each reload; between reloads, one that is there with another key counts \
         until its TTL is over, so reload once it is mended. The log says of a key that it \"is not signed with until that is \
         mended\", and then that \"the record is right now; the key signs again\". A DNS that does not answer changes \
         nothing, and is asked again after 15 minutes. Keys of domains that are known only with an author are not looked \
         for. (Not an option of OpenDKIM.)",
        "hold",
    ),
    parse: values::record_policy,
};

pub(in crate::config) static ENGINE: Opt<&'static str> = Opt {
    spec: Spec::new(
        "Engine",
        "aws-lc-ifma | aws-lc | rustcrypto",
        Preset::Unset("the first of them that the processor can run"),
        "Which cryptographic library signs and verifies. Aws-lc-ifma signs as aws-lc does and checks RSA signatures in a third \
         of the time, by arithmetic of our own for processors with AVX-512 IFMA; what that does not confirm, AWS-LC is \
         asked again. (Not an option of OpenDKIM.)",
        "rustcrypto",
    ),
    parse: values::engine,
};
