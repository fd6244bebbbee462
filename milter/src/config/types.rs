//! The configuration as the rest of the daemon reads it: typed, checked, with every path resolved.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use dkim_core::canonicalization::Canonicalization;
use dkim_core::engine::KeyType;

use pkcs11_engine::Reference;
use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::{OnAway, Uri};

use super::{FieldSelection, Listener};
use crate::tables::{HostList, KeyTable, MacroList, Origin, SigningTable, TextSet};

/// All that is configured. Made by [`Config::load`].
#[derive(Debug)]
pub struct Config {
    /// The log.
    pub logging: Logging,
    /// Sockets and process.
    pub service: Service,
    /// Which of signing and verifying is done.
    pub mode: Mode,
    /// Which mail is for either.
    pub selection: Selection,
    /// How mail is signed.
    pub signing: Signing,
    /// How mail is verified.
    pub verifying: Verifying,
    /// How keys are looked up.
    pub dns: Dns,
    /// What becomes of mail.
    pub actions: Actions,
    /// `Engine`: the name of the engine that signs and verifies; `None` for the default one.
    pub engine: Option<&'static str>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
}

impl Config {
    /// Where the option called `name` (spelt as in the manual) was set; `None` if it was not.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.origins.get(name)
    }
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// `Syslog`: log to syslog.
    pub syslog: bool,
    /// `SyslogFacility`.
    pub facility: Facility,
    /// `SyslogName`: the program name in log lines.
    pub name: String,
    /// `SyslogSuccess`: log what succeeds too.
    pub successes: bool,
    /// `LogWhy`: log what may break a signature on its way.
    pub why: bool,
}

/// A syslog facility (RFC 5424 section 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facility {
    /// Its name in syslog.conf.
    pub name: &'static str,
    /// Its numerical code.
    pub code: u8,
}

/// Sockets and process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `Socket`: where to listen; empty if nothing says so.
    pub listeners: Vec<Listener>,
    /// `StatusSocket`: where it is told how the service is.
    pub status: Option<Listener>,
    /// `UMask`: the process' file mode creation mask.
    pub umask: Option<u32>,
    /// `UserID`: whom to become.
    pub user: Option<UserId>,
    /// `PidFile`: where to write the process ID.
    pub pid_file: Option<PathBuf>,
    /// `Background`: leave the foreground once the service runs.
    pub background: bool,
    /// `MaximumConnections`: how many connections are served at a time.
    pub maximum_connections: usize,
    /// `DrainTimeout`: how long messages under way may take when the service ends.
    pub drain_timeout: Duration,
    /// `BaseDirectory`, or the working directory at start: where relative paths start; all in here are resolved.
    pub base_directory: PathBuf,
}

/// A user and perhaps a group, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserId {
    /// The user.
    pub user: String,
    /// The group; `None` for the user's own groups.
    pub group: Option<String>,
}

/// Which of signing and verifying is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Mail of ours is signed.
    pub sign: bool,
    /// Other mail is verified.
    pub verify: bool,
}

/// Which mail is to be signed, verified or left alone.
#[derive(Debug)]
pub struct Selection {
    /// `InternalHosts`: clients whose mail is signed.
    pub internal_hosts: HostList,
    /// `MTA`: values of `{daemon_name}` with which mail is signed.
    pub mta: TextSet,
    /// `MacroList`: macros with which mail is signed.
    pub macro_list: MacroList,
    /// `ExternalIgnoreList`: clients that may use our domains without being internal.
    pub external_ignore_list: HostList,
    /// `PeerList`: clients whose mail is left alone.
    pub peer_list: HostList,
    /// `ExemptDomains`: authors' domains whose mail is left alone.
    pub exempt_domains: TextSet,
    /// `DontSignMailTo`: recipients whose mail is not signed.
    pub dont_sign_mail_to: TextSet,
    /// `MaximumHeaders`: how many octets a header may have.
    pub maximum_header_octets: usize,
}

/// How mail is signed.
#[derive(Debug)]
pub struct Signing {
    /// Whom to sign for, with which keys; `None` if nothing is signed.
    pub signers: Option<SignerSource>,
    /// `SkipAlreadySigned`: leave out a signature that is there already and valid.
    pub skip_already_signed: bool,
    /// `RequireSafeKeys`: refuse key files that others can read or replace.
    pub require_safe_keys: bool,
    /// `Canonicalization`.
    pub canonicalization: Canonicalization,
    /// `SignatureAlgorithm`: the kind every key must be of whose table entry does not say its own; `None` if any will
    /// do.
    pub key_type: Option<KeyType>,
    /// `SignHeaders`, `OmitHeaders`, `OversignHeaders`.
    pub fields: FieldSelection,
    /// `SignatureTTL`: how long signatures are valid; `None` for ever.
    pub lifetime: Option<Duration>,
    /// `CheckKeyRecords`: what a key record that is not right means; `None` for keys in tokens to be warned of, and others
    /// not to be looked for.
    pub key_records: Option<RecordPolicy>,
    /// Keys in tokens.
    pub tokens: TokenOptions,
}

/// What the record of a key means that is not there, or is of another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordPolicy {
    /// Nothing: it is not looked for.
    Ignore,
    /// A line in the log.
    Warn,
    /// The key is not signed with.
    Hold,
}

/// How keys in PKCS#11 tokens are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// `Pkcs11Module`: the module for URIs that name none.
    pub module: Option<PathBuf>,
    /// `Pkcs11PinFile`: where the PIN comes from for URIs that do not say.
    pub pin: Option<PinSource>,
    /// `Pkcs11AllowPinValue`: take PINs that stand in URIs.
    pub allow_pin_value: bool,
    /// `Pkcs11Isolation`: load modules in processes of their own.
    pub isolated: bool,
    /// `Pkcs11Sessions`: how many sessions a token gets.
    pub sessions: usize,
    /// `Pkcs11Queue`: how many signatures may wait for a token.
    pub queue: usize,
    /// `Pkcs11Timeout`: how long a signature may take.
    pub timeout: Duration,
    /// `On-TokenAway`: what becomes of mail while the token is away, if the key's URI does not say.
    pub on_away: OnAway,
    /// `Pkcs11Verify`: the token that verifies signatures; software if `None`.
    pub verify: Option<Reference>,
    /// `Pkcs11Digest`: the token that hashes bodies; software if `None`.
    pub digest: Option<Reference>,
    /// `Pkcs11Fallback`: who does what those two do not.
    pub fallback: Fallback,
}

/// Who verifies or hashes when a token does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nobody.
    #[default]
    None,
    /// Software.
    Software,
}

/// Whom to sign for, with which keys.
#[derive(Debug)]
pub enum SignerSource {
    /// One key for a set of domains.
    Single(SingleKey),
    /// `SigningTable` and `KeyTable`.
    Tables {
        /// The keys' names by author; with `MultipleSignatures` it finds several.
        signing: SigningTable,
        /// The keys by name.
        keys: KeyTable,
    },
}

/// `Domain`, `Selector`, `KeyFile` and `SubDomains`.
#[derive(Debug)]
pub struct SingleKey {
    /// The domains signed for.
    pub domains: TextSet,
    /// Domains below them are signed for too, in their name.
    pub sub_domains: bool,
    /// The selector.
    pub selector: String,
    /// Where the private key is.
    pub key: KeyLocation,
}

/// Where a private key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// In this file.
    File(PathBuf),
    /// In the token that this URI names.
    Token(Box<Uri>),
}

impl SingleKey {
    /// The signing domain for an author at `author_domain`, a host name in lower case; `None` if it is not signed for.
    pub fn signing_domain<'d>(&self, author_domain: &'d str) -> Option<&'d str> {
        self.domains.covering(author_domain, self.sub_domains)
    }
}

/// How mail is verified.
#[derive(Debug)]
pub struct Verifying {
    /// `AuthservID`: our name in Authentication-Results.
    pub authserv_id: AuthservId,
    /// `AlwaysAddARHeader`: report mail without signatures too.
    pub always_add_results: bool,
    /// `RemoveARFrom`: further names whose results are removed.
    pub remove_results_of: TextSet,
    /// `MaximumSignaturesToVerify`: how many signatures are looked at, from the top.
    pub maximum_signatures: usize,
    /// `MinimumKeyBits`: the size RSA keys must have, in bits.
    pub minimum_key_bits: u32,
    /// `ClockDrift`: how far clocks may be off.
    pub clock_drift: Duration,
    /// `AllowUnsignedTail`: let signatures pass that leave the end of the body unsigned.
    pub allow_unsigned_tail: bool,
}

/// The name under which results are reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthservId {
    /// The MTA's, from its macro `j`.
    OfMta,
    /// The host's.
    OfHost,
    /// This one.
    Name(String),
}

/// How keys are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// `Nameservers`: whom to ask; if empty, those of the system.
    pub name_servers: Vec<SocketAddr>,
    /// `DNSTimeout`: how long all look-ups of a message may take.
    pub timeout: Duration,
    /// `TestPublicKeys`: a file of key records that is asked instead.
    pub test_public_keys: Option<PathBuf>,
}

/// What becomes of mail, by what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// `On-NoSignature`
    pub no_signature: Action,
    /// `On-BadSignature`
    pub bad_signature: Action,
    /// `On-KeyNotFound`
    pub key_not_found: Action,
    /// `On-DNSError`
    pub dns_error: Action,
    /// `On-SignatureError`
    pub signature_error: Action,
    /// `On-InternalError`
    pub internal_error: Action,
    /// `On-Security`
    pub security: Action,
}

/// What the MTA is told to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it pass.
    Accept,
    /// Take it and drop it.
    Discard,
    /// Put it in quarantine.
    Quarantine,
    /// Refuse it for good.
    Reject,
    /// Refuse it for now.
    TempFail,
}

impl Action {
    /// Its word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Discard => "discard",
            Self::Quarantine => "quarantine",
            Self::Reject => "reject",
            Self::TempFail => "tempfail",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
