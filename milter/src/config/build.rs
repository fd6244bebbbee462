//! From settings to the typed configuration: each value is read, each data set opened, and what they mean to each other
//! checked.

use dkim_core::canonicalization::Canonicalization;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pkcs11_engine::uri::{OnAway, Uri};
use pkcs11_engine::{Reference, TokenTask};

use super::fields::{ElementFault, FieldSelection, NameList};
use super::options::{self, Opt};
use super::settings::{Overrides, Report, Setting, Settings};
use super::socket::{Host, InetAddress, ListenAddress, Listener, RawAddress};
use super::types::{
    Action, Actions, AuthservId, Config, Dns, Facility, Fallback, KeyLocation, Logging, Mode,
    RecordPolicy, Selection, Service, SignerSource, Signing, SingleKey, TokenOptions, Verifying,
};
use super::values::ValueFault;
use super::{ConfigError, Refused, Warning};
use crate::tables::text_lines::shown;
use crate::tables::{
    DataSet, Findings, HostList, KeySource, KeyTable, MacroList, Origin, SigningTable, TextKind,
    TextSet, read_words, resolve, seen_from,
};

impl Config {
    /// Reads the configuration file at `path` (none: only defaults and the command line), with `overrides` over it, and
    /// all data sets it names. Returns it with what is odd about it.
    ///
    /// Nothing else is touched: no key file is read, no socket opened, no name looked up. To reload is to load again.
    ///
    /// # Errors
    /// All that is wrong, not only the first fault.
    pub fn load(
        path: Option<&Path>,
        overrides: &Overrides,
    ) -> Result<(Self, Vec<Warning>), Refused> {
        // Without a working directory relative paths fail one by one, with their own messages.
        let directory = std::env::current_dir().unwrap_or_default();
        load_in(&directory, path, overrides)
    }
}

pub(super) fn load_in(
    directory: &Path,
    path: Option<&Path>,
    overrides: &Overrides,
) -> Result<(Config, Vec<Warning>), Refused> {
    let mut report = Report::default();
    let settings = Settings::collect(path, overrides, directory, &mut report);
    Builder::new(settings, directory, report).build()
}

struct Builder {
    settings: Settings,
    report: Report,
    findings: Findings,
    /// Where each option was set.
    origins: BTreeMap<&'static str, Origin>,
    /// Where relative paths start.
    base: PathBuf,
}

impl Builder {
    fn new(mut settings: Settings, directory: &Path, mut report: Report) -> Self {
        let origins = settings.origins();
        let base = settings.take(&options::BASE_DIRECTORY, &mut report);
        Self {
            settings,
            report,
            findings: Findings::default(),
            origins,
            base: base.map_or_else(
                || directory.to_owned(),
                |base| resolve(directory, base.value),
            ),
        }
    }

    fn build(mut self) -> Result<(Config, Vec<Warning>), Refused> {
        let mode = self.setting(&options::MODE);
        let logging = self.logging();
        let service = self.service();
        if service.background && !logging.syslog {
            self.report.warning(Warning::NotLogged);
        }
        let selection = self.selection();
        let signing = self.signing(mode.as_ref(), &selection);
        let config = Config {
            logging,
            service,
            mode: mode.map_or(
                Mode {
                    sign: true,
                    verify: true,
                },
                |mode| mode.value,
            ),
            selection,
            signing,
            verifying: self.verifying(),
            dns: self.dns(),
            actions: self.actions(),
            engine: self.value(&options::ENGINE),
            origins: self.origins,
        };
        debug_assert!(
            self.settings.are_taken(),
            "nobody reads {:?}",
            self.settings
        );
        let (errors, warnings) = self
            .findings
            .finish(|option| config.origin(option).cloned().unwrap_or(Origin::Default));
        for error in errors {
            self.report.error(error.into());
        }
        for warning in warnings {
            self.report.warning(Warning::Table(warning));
        }
        match self.report.finish() {
            (errors, warnings) if errors.is_empty() => Ok((config, warnings)),
            (errors, warnings) => Err(Refused { errors, warnings }),
        }
    }

    fn logging(&mut self) -> Logging {
        Logging {
            syslog: self.switch(&options::SYSLOG),
            facility: self.value(&options::SYSLOG_FACILITY).unwrap_or(Facility {
                name: "mail",
                code: 2,
            }),
            name: self.value(&options::SYSLOG_NAME).unwrap_or_default(),
            successes: self.switch(&options::SYSLOG_SUCCESS),
            why: self.switch(&options::LOG_WHY),
        }
    }

    fn service(&mut self) -> Service {
        let listeners = self.listeners();
        Service {
            status: self.status(&listeners),
            listeners,
            umask: self.value(&options::UMASK),
            user: self.value(&options::USER_ID),
            pid_file: self.path(&options::PID_FILE),
            background: self.switch(&options::BACKGROUND),
            maximum_connections: self.count(&options::MAXIMUM_CONNECTIONS),
            drain_timeout: self.seconds(&options::DRAIN_TIMEOUT),
            base_directory: self.base.clone(),
        }
    }

    fn listeners(&mut self) -> Vec<Listener> {
        let anywhere = self.switch(&options::LISTEN_ANYWHERE);
        let mut listeners: Vec<Listener> = Vec::new();
        // A socket that is wrong is an error of its own.
        let is_any_set = self.settings.has(&options::SOCKET);
        let sockets = self.settings.take_all(&options::SOCKET, &mut self.report);
        for Setting { value, origin } in sockets {
            let address = self.complete(value, &origin, anywhere);
            let socket = address.to_string();
            let is_loopback = address.is_of_this_host();
            if let Some(before) = listeners
                .iter()
                .find(|listener| listener.address == address)
            {
                let before = before.origin.clone();
                self.report.warning(Warning::SocketTwice {
                    origin,
                    socket,
                    before,
                });
                continue;
            }
            if !is_loopback && anywhere {
                let origin = origin.clone();
                self.report.warning(Warning::Reachable { origin, socket });
            } else if !is_loopback {
                let origin = origin.clone();
                self.report.error(match &address {
                    ListenAddress::Inet(InetAddress {
                        host: Host::Name(name, _),
                        ..
                    }) => ConfigError::MayBeReachable {
                        origin,
                        name: name.clone(),
                        socket,
                    },
                    _ => ConfigError::Reachable { origin, socket },
                });
            }
            listeners.push(Listener { address, origin });
        }
        if !is_any_set {
            self.report.missing(Warning::NoSocket);
        }
        listeners
    }

    fn status(&mut self, listeners: &[Listener]) -> Option<Listener> {
        let Setting { value, origin } = self.setting(&options::STATUS_SOCKET)?;
        let address = value.of_this_host();
        let taken = listeners
            .iter()
            .find(|listener| listener.address.excludes(&address));
        if let Some(taken) = taken {
            self.report.error(ConfigError::StatusTaken {
                origin,
                socket: address.to_string(),
                by: taken.origin.clone(),
            });
            return None;
        }
        if !address.is_of_this_host() {
            let (origin, socket) = (origin.clone(), address.to_string());
            self.report
                .warning(Warning::StatusReachable { origin, socket });
        }
        Some(Listener { address, origin })
    }

    /// Gives a port without a host its addresses.
    fn complete(&mut self, raw: RawAddress, origin: &Origin, anywhere: bool) -> ListenAddress {
        match raw {
            RawAddress::Full(address) => address,
            RawAddress::Port(port, families) if anywhere => {
                let host = Host::Any(families);
                ListenAddress::Inet(InetAddress { port, host })
            }
            port => {
                let address = port.of_this_host();
                self.report.warning(Warning::LoopbackOnly {
                    origin: origin.clone(),
                    socket: address.to_string(),
                });
                address
            }
        }
    }

    fn selection(&mut self) -> Selection {
        Selection {
            internal_hosts: self.hosts(&options::INTERNAL_HOSTS),
            mta: self.texts(&options::MTA, TextKind::Name),
            macro_list: self
                .data_set(&options::MACRO_LIST, MacroList::open)
                .unwrap_or_default(),
            external_ignore_list: self.hosts(&options::EXTERNAL_IGNORE_LIST),
            peer_list: self.hosts(&options::PEER_LIST),
            exempt_domains: self.texts(&options::EXEMPT_DOMAINS, TextKind::Domain),
            dont_sign_mail_to: self.texts(&options::DONT_SIGN_MAIL_TO, TextKind::Address),
            maximum_header_octets: self.count(&options::MAXIMUM_HEADERS),
        }
    }

    fn signing(&mut self, mode: Option<&Setting<Mode>>, selection: &Selection) -> Signing {
        let on_away = self
            .value(&options::ON_TOKEN_AWAY)
            .unwrap_or(OnAway::Tempfail);
        let key_records = self.value(&options::CHECK_KEY_RECORDS);
        let stand_ins = StandIns {
            on_away,
            held: key_records == Some(RecordPolicy::Hold),
        };
        let signers = match mode {
            Some(mode) if !mode.value.sign => self.no_signers(),
            mode => self.signers(mode, &stand_ins),
        };
        let hosts = self.origins.get(options::INTERNAL_HOSTS.spec.name).cloned();
        if let (Some(signers), Some(origin)) = (&signers, hosts) {
            self.check_hosts(signers, &selection.internal_hosts, &origin);
        }
        let skip_already_signed = self.switch(&options::SKIP_ALREADY_SIGNED);
        let verifies = mode.is_none_or(|mode| mode.value.verify) || skip_already_signed;
        let verify = &options::PKCS11_VERIFY.spec.name;
        if !verifies && let Some(origin) = self.origins.get(verify).cloned() {
            self.report.warning(Warning::NoEffect {
                origin,
                option: verify,
                because: "Mode s verifies nothing",
            });
        }
        Signing {
            signers,
            skip_already_signed,
            require_safe_keys: self.switch(&options::REQUIRE_SAFE_KEYS),
            canonicalization: self
                .value(&options::CANONICALIZATION)
                .unwrap_or(Canonicalization::RELAXED),
            key_type: self.value(&options::SIGNATURE_ALGORITHM),
            fields: self.fields(),
            lifetime: Some(self.seconds(&options::SIGNATURE_TTL)).filter(|ttl| !ttl.is_zero()),
            key_records,
            tokens: self.tokens(on_away),
        }
    }

    fn tokens(&mut self, on_away: OnAway) -> TokenOptions {
        let module = self.path(&options::PKCS11_MODULE);
        let allow_pin_value = self.switch(&options::PKCS11_ALLOW_PIN_VALUE);
        let mut token = |option, does| self.token(option, does, module.as_deref(), allow_pin_value);
        let verify = token(&options::PKCS11_VERIFY, TokenTask::Verifies);
        let digest = token(&options::PKCS11_DIGEST, TokenTask::Digests);
        let fallback = self.setting(&options::PKCS11_FALLBACK);
        let is_used = verify.is_some() || digest.is_some();
        let software = fallback.filter(|setting| setting.value == Fallback::Software);
        let fallback = software.as_ref().map(|setting| setting.value);
        if !is_used {
            let because = "there is neither Pkcs11Verify nor Pkcs11Digest";
            self.no_effect(&options::PKCS11_FALLBACK, software, because);
        }
        TokenOptions {
            module,
            pin: self
                .value(&options::PKCS11_PIN_FILE)
                .map(|pin| pin.seen_from(&self.base)),
            allow_pin_value,
            isolated: self.switch(&options::PKCS11_ISOLATION),
            sessions: self.count(&options::PKCS11_SESSIONS),
            queue: self.count(&options::PKCS11_QUEUE),
            timeout: self.seconds(&options::PKCS11_TIMEOUT),
            on_away,
            verify,
            digest,
            fallback: fallback.unwrap_or_default(),
        }
    }

    /// The token that `option` names. Its PIN is for the keys: what only verifies or hashes logs in if the URI says how.
    fn token(
        &mut self,
        option: &'static Opt<Uri>,
        does: TokenTask,
        module: Option<&Path>,
        allow_pin_value: bool,
    ) -> Option<Reference> {
        let Setting { value, origin } = self.setting(option)?;
        let uri = *seen_from(&self.base, Box::new(value));
        let reference = Reference::new(uri, module, None, allow_pin_value);
        match reference.and_then(|reference| reference.of_token(does)) {
            Ok(reference) => Some(reference),
            Err(error) => {
                self.report.error(ConfigError::Value {
                    origin,
                    option: option.spec.name,
                    fault: ValueFault::Token(error),
                });
                None
            }
        }
    }

    /// Whom to sign for: by the tables if one of them is set, else by the options for a single key.
    fn signers(
        &mut self,
        mode: Option<&Setting<Mode>>,
        stand_ins: &StandIns,
    ) -> Option<SignerSource> {
        if self.settings.has(&options::KEY_TABLE) || self.settings.has(&options::SIGNING_TABLE) {
            self.ignore_single_key("KeyTable and SigningTable say what is signed");
            return self.table_signers(stand_ins);
        }
        let multiple = self
            .setting(&options::MULTIPLE_SIGNATURES)
            .filter(|multiple| multiple.value);
        self.no_effect(
            &options::MULTIPLE_SIGNATURES,
            multiple,
            "there is no SigningTable",
        );
        let needed = [
            options::DOMAIN.spec.name,
            options::SELECTOR.spec.name,
            options::KEY_FILE.spec.name,
        ];
        let (set, missing): (Vec<_>, Vec<_>) = needed
            .into_iter()
            .partition(|name| self.settings.origin(name).is_some());
        // One of them alone is a mistake; that another is missing is told at the last that is there.
        match set
            .last()
            .and_then(|&option| Some((option, self.settings.origin(option)?.clone())))
        {
            None => {
                self.ignore_single_key("there is no Domain");
                self.report_unsigned(mode);
                return None;
            }
            Some((option, origin)) => {
                for missing in missing {
                    let origin = origin.clone();
                    self.report.error(ConfigError::Needs {
                        origin,
                        option,
                        missing,
                    });
                }
            }
        }
        let domain = self.setting(&options::DOMAIN);
        let selector = self.value(&options::SELECTOR);
        let key = self.value(&options::KEY_FILE);
        let sub_domains = self.switch(&options::SUB_DOMAINS);
        let set = data_set(&options::DOMAIN, domain.as_ref()?, &self.base);
        Some(SignerSource::Single(SingleKey {
            domains: TextSet::open(&set, TextKind::Domain, &mut self.findings),
            sub_domains,
            selector: selector?,
            key: match key? {
                KeyLocation::File(path) => KeyLocation::File(resolve(&self.base, path)),
                KeyLocation::Token(uri) => KeyLocation::Token(seen_from(&self.base, uri)),
            },
        }))
    }

    fn table_signers(&mut self, stand_ins: &StandIns) -> Option<SignerSource> {
        let key_table = self.setting(&options::KEY_TABLE);
        let signing_table = self.setting(&options::SIGNING_TABLE);
        let multiple = self.switch(&options::MULTIPLE_SIGNATURES);
        let (key_table, signing_table) = match (key_table, signing_table) {
            (Some(key_table), Some(signing_table)) => (key_table, signing_table),
            (Some(one), None) => {
                return self.needs(&options::KEY_TABLE, one.origin, &options::SIGNING_TABLE);
            }
            (None, Some(one)) => {
                return self.needs(&options::SIGNING_TABLE, one.origin, &options::KEY_TABLE);
            }
            (None, None) => return None,
        };
        let keys = KeyTable::open(
            &data_set(&options::KEY_TABLE, &key_table, &self.base),
            &mut self.findings,
        );
        let set = data_set(&options::SIGNING_TABLE, &signing_table, &self.base);
        let signing = SigningTable::open(
            &set,
            multiple,
            &|name| stand_ins.are_of(&keys, name),
            &mut self.findings,
        );
        // Keys that are missing because their lines are wrong are told already.
        if !self.findings.has_errors() {
            signing.check_keys(set.option, &keys, &mut self.findings);
        }
        Some(SignerSource::Tables { signing, keys })
    }

    /// Takes what is about signers and tells that it has no effect.
    fn no_signers(&mut self) -> Option<SignerSource> {
        let because = "Mode v signs nothing";
        self.ignore_single_key(because);
        for option in [&options::KEY_TABLE, &options::SIGNING_TABLE] {
            let setting = self.setting(option);
            self.no_effect(option, setting, because);
        }
        let multiple = self.setting(&options::MULTIPLE_SIGNATURES);
        self.no_effect(&options::MULTIPLE_SIGNATURES, multiple, because);
        None
    }

    fn ignore_single_key(&mut self, because: &'static str) {
        for option in [&options::DOMAIN, &options::SELECTOR] {
            let setting = self.setting(option);
            self.no_effect(option, setting, because);
        }
        let key_file = self.setting(&options::KEY_FILE);
        self.no_effect(&options::KEY_FILE, key_file, because);
        let sub_domains = self.setting(&options::SUB_DOMAINS);
        self.no_effect(&options::SUB_DOMAINS, sub_domains, because);
    }

    /// Tells that there is nothing to sign with; without a `mode` there is a worse fault.
    fn report_unsigned(&mut self, mode: Option<&Setting<Mode>>) {
        match mode {
            Some(mode) if !mode.value.verify => {
                let origin = mode.origin.clone();
                self.report.error(ConfigError::NothingToSignWith { origin });
            }
            Some(_) => self.report.missing(Warning::NothingToSignWith),
            None => {}
        }
    }

    /// A domain of mail in a list of hosts seems to work until mail comes from anywhere else.
    fn check_hosts(&mut self, signers: &SignerSource, hosts: &HostList, origin: &Origin) {
        let names: HashSet<&str> = hosts.names().collect();
        let signed: BTreeSet<&str> = match signers {
            _ if names.is_empty() => return,
            SignerSource::Single(single) => names
                .into_iter()
                .filter(|name| single.domains.contains(name.as_bytes()))
                .collect(),
            SignerSource::Tables { keys, .. } => keys
                .entries()
                .filter_map(|entry| entry.domain.as_deref())
                .filter(|domain| names.contains(domain))
                .collect(),
        };
        for domain in signed {
            self.report.warning(Warning::MailDomainAsHost {
                origin: origin.clone(),
                domain: domain.to_owned(),
            });
        }
    }

    fn fields(&mut self) -> FieldSelection {
        let (sign, sign_origin) = self.names(&options::SIGN_HEADERS);
        let (omit, omit_origin) = self.names(&options::OMIT_HEADERS);
        let (oversign, oversign_origin) = self.names(&options::OVERSIGN_HEADERS);
        let fields = FieldSelection {
            sign,
            omit: omit.unwrap_or_default(),
            oversign: oversign.unwrap_or_default(),
        };
        for warning in fields.contradictions(&sign_origin, &omit_origin, &oversign_origin) {
            self.report.warning(warning);
        }
        fields
    }

    /// A list of header fields, and where it was set.
    fn names(&mut self, option: &'static Opt<String>) -> (Option<NameList>, Origin) {
        let Some(setting) = self.setting(option) else {
            return (None, Origin::Default);
        };
        let words = read_words(&data_set(option, &setting, &self.base), &mut self.findings);
        let list = NameList::parse(words.iter().map(String::as_str), |element, fault| {
            let (origin, option, element) =
                (setting.origin.clone(), option.spec.name, shown(element));
            self.report.error(match fault {
                ElementFault::NotAField => ConfigError::NotAField {
                    origin,
                    option,
                    element,
                },
                ElementFault::ChangeWithoutStar => ConfigError::ChangeWithoutStar {
                    origin,
                    option,
                    element,
                },
            });
        });
        (Some(list), setting.origin)
    }

    fn verifying(&mut self) -> Verifying {
        Verifying {
            authserv_id: self
                .value(&options::AUTHSERV_ID)
                .unwrap_or(AuthservId::OfMta),
            always_add_results: self.switch(&options::ALWAYS_ADD_AR_HEADER),
            remove_results_of: self.texts(&options::REMOVE_AR_FROM, TextKind::DomainOrBelow),
            maximum_signatures: self.count(&options::MAXIMUM_SIGNATURES_TO_VERIFY),
            // The option's bounds are within 32 bits.
            minimum_key_bits: u32::try_from(
                self.value(&options::MINIMUM_KEY_BITS).unwrap_or_default(),
            )
            .unwrap_or(u32::MAX),
            clock_drift: self.seconds(&options::CLOCK_DRIFT),
            allow_unsigned_tail: self.switch(&options::ALLOW_UNSIGNED_TAIL),
        }
    }

    fn dns(&mut self) -> Dns {
        Dns {
            name_servers: self.value(&options::NAMESERVERS).unwrap_or_default(),
            timeout: self.seconds(&options::DNS_TIMEOUT),
            test_public_keys: self.path(&options::TEST_PUBLIC_KEYS),
        }
    }

    fn actions(&mut self) -> Actions {
        let default = self.value(&options::ON_DEFAULT);
        let mut action = |option: &Opt<Action>| {
            let default = default.filter(|_| !self.settings.has(option));
            let own = self.value(option);
            default.or(own).unwrap_or(Action::TempFail)
        };
        Actions {
            no_signature: action(&options::ON_NO_SIGNATURE),
            bad_signature: action(&options::ON_BAD_SIGNATURE),
            key_not_found: action(&options::ON_KEY_NOT_FOUND),
            dns_error: action(&options::ON_DNS_ERROR),
            signature_error: action(&options::ON_SIGNATURE_ERROR),
            internal_error: action(&options::ON_INTERNAL_ERROR),
            security: action(&options::ON_SECURITY),
        }
    }

    fn setting<T>(&mut self, option: &Opt<T>) -> Option<Setting<T>> {
        self.settings.take(option, &mut self.report)
    }

    fn value<T>(&mut self, option: &Opt<T>) -> Option<T> {
        self.setting(option).map(|setting| setting.value)
    }

    /// A value that is missing is one that was wrong; then it does not matter what stands in for it.
    fn switch(&mut self, option: &Opt<bool>) -> bool {
        self.value(option).unwrap_or_default()
    }

    fn seconds(&mut self, option: &Opt<u64>) -> Duration {
        Duration::from_secs(self.value(option).unwrap_or_default())
    }

    fn count(&mut self, option: &Opt<u64>) -> usize {
        // The bounds of counts are within 32 bits.
        usize::try_from(self.value(option).unwrap_or_default()).unwrap_or(usize::MAX)
    }

    fn path(&mut self, option: &Opt<PathBuf>) -> Option<PathBuf> {
        self.value(option).map(|path| resolve(&self.base, path))
    }

    fn hosts(&mut self, option: &'static Opt<String>) -> HostList {
        self.data_set(option, HostList::open).unwrap_or_default()
    }

    fn texts(&mut self, option: &'static Opt<String>, kind: TextKind) -> TextSet {
        self.data_set(option, |set, findings| TextSet::open(set, kind, findings))
            .unwrap_or_else(|| TextSet::empty(kind))
    }

    fn data_set<T>(
        &mut self,
        option: &'static Opt<String>,
        open: impl FnOnce(&DataSet<'_>, &mut Findings) -> T,
    ) -> Option<T> {
        let setting = self.setting(option)?;
        Some(open(
            &data_set(option, &setting, &self.base),
            &mut self.findings,
        ))
    }

    fn needs<A, B, T>(&mut self, option: &Opt<A>, origin: Origin, missing: &Opt<B>) -> Option<T> {
        let (option, missing) = (option.spec.name, missing.spec.name);
        self.report.error(ConfigError::Needs {
            origin,
            option,
            missing,
        });
        None
    }

    fn no_effect<T: PartialEq>(
        &mut self,
        option: &Opt<T>,
        setting: Option<Setting<T>>,
        because: &'static str,
    ) {
        if let Some(Setting { origin, .. }) =
            setting.filter(|setting| !option.is_default(&setting.value))
        {
            let option = option.spec.name;
            self.report.warning(Warning::NoEffect {
                origin,
                option,
                because,
            });
        }
    }
}

/// Which keys have the next one in the signing table stand in for them.
struct StandIns {
    /// What is done for a token that is away, if its URI does not say.
    on_away: OnAway,
    /// Whether keys without a record are not signed with.
    held: bool,
}

impl StandIns {
    /// Whether there may be one for the key called `name`.
    fn are_of(&self, keys: &KeyTable, name: &str) -> bool {
        self.held
            || matches!(
                keys.look_up(name).map(|entry| &entry.source),
                Some(KeySource::Token(uri)) if uri.on_away.unwrap_or(self.on_away) == OnAway::Next
            )
    }
}

fn data_set<'a>(
    option: &'static Opt<String>,
    setting: &'a Setting<String>,
    base: &'a Path,
) -> DataSet<'a> {
    DataSet {
        option: option.spec.name,
        text: &setting.value,
        origin: setting.origin.clone(),
        base,
    }
}
