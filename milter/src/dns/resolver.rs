//! Key records from name servers: which servers those are, and what they said.
//!
//! Which servers comes from the operator or from resolv.conf(5); asking them is for `hickory`, remembering for `cache`.
//! Reading a configuration again means a new [`Resolver`].

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dkim_core::key_record::KeyAnswer;

use super::cache::{Answered, Cache, CacheLimits};
use super::hickory::{Options, Servers, parse_system_configuration};
use super::{InspectFuture, Inspected, KeySource, LookUps, LookupFuture, query_name};
use crate::shown::cause;

/// Where the system says which name servers to ask, resolv.conf(5).
pub const SYSTEM_CONFIGURATION: &str = "/etc/resolv.conf";

/// Key records from name servers, with a cache.
///
/// To be used within a tokio runtime, the same one as long as it lives.
pub struct Resolver {
    servers: Arc<Servers>,
    cache: Arc<Cache>,
    look_ups: Arc<LookUps>,
    warning: Option<String>,
    /// Whether what the servers say of DNSSEC is believed wherever they are.
    trusts_ad: bool,
}

impl Resolver {
    /// Asks `servers`, each look-up taking at most `timeout`.
    ///
    /// # Errors
    /// No server given, or hickory refusing its configuration.
    pub fn with_servers(
        servers: &[SocketAddr],
        timeout: Duration,
        limits: CacheLimits,
    ) -> Result<Self, ResolverError> {
        Self::new(servers, Options::default(), timeout, limits)
    }

    /// Asks the servers that `path`, commonly [`SYSTEM_CONFIGURATION`], names, each look-up taking at most `timeout`.
    ///
    /// Of its options, `timeout` (how long to wait before the next server is asked too), `attempts:1` (no second try) and
    /// `trust-ad` (believe what the servers say of DNSSEC) count. A file that is missing or names no server means the
    /// server on this machine, as resolv.conf(5) says;
    /// [`warning`](Self::warning) then tells.
    ///
    /// # Errors
    /// The file cannot be read, or its servers cannot be used.
    pub fn from_resolv_conf(
        path: &Path,
        timeout: Duration,
        limits: CacheLimits,
    ) -> Result<Self, ResolverError> {
        let system = read_resolv_conf(path)?;
        Ok(Self {
            warning: system.warning,
            trusts_ad: system.trusts_ad,
            ..Self::new(&system.servers, system.options, timeout, limits)?
        })
    }

    /// Counts in `look_ups` from now on.
    pub fn counting(self, look_ups: Arc<LookUps>) -> Self {
        Self { look_ups, ..self }
    }

    /// What an operator should be told about the configuration, if anything.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Whether the server that is asked has validated the records at `name` by DNSSEC. `None` if it does not tell, or need
    /// not be believed: on the way from another machine anybody can say so (RFC 4035 section 4.9.3), unless the way
    /// `is_trusted`.
    pub async fn validates(&self, name: &str, is_trusted: bool) -> Option<bool> {
        if is_trusted || self.trusts_ad || self.servers.are_here() {
            self.servers.validates(&query_name(name)?).await
        } else {
            None
        }
    }

    /// Asks for `name`, in the form that [`query_name`] gives.
    fn ask(&self, name: String) -> impl Future<Output = Answered> + Send + use<> {
        let (servers, look_ups) = (Arc::clone(&self.servers), Arc::clone(&self.look_ups));
        look_ups.count_asked();
        async move {
            let answered = servers.ask(&name).await;
            look_ups.count_answer(&answered.answer);
            answered
        }
    }

    fn new(
        servers: &[SocketAddr],
        options: Options,
        timeout: Duration,
        limits: CacheLimits,
    ) -> Result<Self, ResolverError> {
        if servers.is_empty() {
            return Err(ResolverError::NoServers);
        }
        Ok(Self {
            servers: Arc::new(Servers::new(servers, options, timeout)?),
            cache: Cache::new(limits),
            look_ups: Arc::default(),
            warning: None,
            trusts_ad: false,
        })
    }
}

impl KeySource for Resolver {
    fn lookup<'a>(&'a self, name: &'a str) -> LookupFuture<'a> {
        Box::pin(async move {
            let Some(name) = query_name(name) else {
                return Arc::new(KeyAnswer::NoName);
            };
            self.look_ups.count_wanted();
            self.cache.get(name, |name| self.ask(name)).await
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> InspectFuture<'a> {
        Box::pin(async move {
            let answered = match query_name(name) {
                None => Answered::bare(KeyAnswer::NoName),
                Some(name) => {
                    self.look_ups.count_wanted();
                    self.ask(name).await
                }
            };
            Inspected {
                answer: Arc::new(answered.answer),
                cname: answered.cname,
                ttl: answered.ttl,
            }
        })
    }
}

/// Reads a name server as an operator writes it: `192.0.2.1`, `192.0.2.1:5353`, `2001:db8::1`, `[2001:db8::1]:5353`.
///
/// # Errors
/// Anything else, host names included.
pub fn parse_nameserver(text: &str) -> Result<SocketAddr, NameserverError> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, DNS_PORT),
        Err(_) => text.parse().map_err(|_| NameserverError::NotAnAddress {
            text: text.to_owned(),
        })?,
    };
    if address.port() == 0 {
        Err(NameserverError::PortZero {
            text: text.to_owned(),
        })
    } else {
        Ok(address)
    }
}

/// Why a name server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameserverError {
    /// Neither an address nor an address with a port.
    #[error(
        "\"{text}\" is no IP address, with a port or without: write 192.0.2.1, 192.0.2.1:53, 2001:db8::1 or [2001:db8::1]:53"
    )]
    NotAnAddress {
        /// As written.
        text: String,
    },
    /// Nothing listens there.
    #[error("\"{text}\" has port 0, where no name server can be")]
    PortZero {
        /// As written.
        text: String,
    },
}

/// Why there is no resolver.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// An empty list.
    #[error("no name server to ask")]
    NoServers,
    /// The system's configuration is there but cannot be read.
    #[error("cannot read {}: {}", path.display(), cause(source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system's configuration makes no sense.
    #[error("cannot use {}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What hickory said.
        reason: String,
    },
    /// hickory does not want to begin.
    #[error("cannot set up name server {server}: {reason}")]
    SetUp {
        /// As given.
        server: SocketAddr,
        /// What hickory said.
        reason: String,
    },
}

pub(super) const DNS_PORT: u16 = 53;

const LOCAL_INSTEAD: &str = "asking the name server on this machine, 127.0.0.1";

/// What the system's configuration comes to.
struct SystemConfiguration {
    servers: Vec<SocketAddr>,
    /// How they are asked.
    options: Options,
    /// Whether what they say of DNSSEC is believed.
    trusts_ad: bool,
    /// What to say about the file.
    warning: Option<String>,
}

fn read_resolv_conf(path: &Path) -> Result<SystemConfiguration, ResolverError> {
    let (mut text, mut warning) = (Vec::new(), None);
    match std::fs::read(path) {
        Ok(octets) => text = octets,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            warning = Some(format!(
                "{} does not exist; {LOCAL_INSTEAD}",
                path.display()
            ));
        }
        Err(source) => {
            return Err(ResolverError::Unreadable {
                path: path.to_owned(),
                source,
            });
        }
    }
    if !names_a_server(&text) {
        warning.get_or_insert_with(|| {
            format!("{} names no name server; {LOCAL_INSTEAD}", path.display())
        });
        text.extend_from_slice(b"\nnameserver 127.0.0.1\n");
    }
    let (addresses, options) =
        parse_system_configuration(&text).map_err(|reason| ResolverError::Unusable {
            path: path.to_owned(),
            reason,
        })?;
    let servers = addresses
        .into_iter()
        .map(|address| SocketAddr::new(address, DNS_PORT))
        .collect();
    Ok(SystemConfiguration {
        servers,
        options,
        trusts_ad: trusts_ad(&text),
        warning,
    })
}

/// Whether `options trust-ad` is there, which hickory does not pass on.
fn trusts_ad(resolv_conf: &[u8]) -> bool {
    resolv_conf.split(|&o| o == b'\n').any(|line| {
        let mut words = line.split(u8::is_ascii_whitespace);
        words.find(|word| !word.is_empty()) == Some(b"options")
            && words.any(|word| word == b"trust-ad")
    })
}

/// Whether a `nameserver` line is there, for hickory to judge.
fn names_a_server(resolv_conf: &[u8]) -> bool {
    resolv_conf.split(|&o| o == b'\n').any(|line| {
        line.trim_ascii_start()
            .strip_prefix(b"nameserver")
            .is_some_and(|rest| !rest.trim_ascii().is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn a_name_server_is_an_address_with_or_without_a_port() {
        for (text, want) in [
            ("192.0.2.1", "192.0.2.1:53"),
            ("192.0.2.1:5353", "192.0.2.1:5353"),
            ("2001:db8::1", "[2001:db8::1]:53"),
            ("[2001:db8::1]", "[2001:db8::1]:53"),
            ("[2001:db8::1]:5353", "[2001:db8::1]:5353"),
        ] {
            assert_eq!(
                parse_nameserver(text)
                    .map(|address| address.to_string())
                    .as_deref(),
                Ok(want),
                "{text}"
            );
        }
        for text in [
            "",
            "ns.example.org",
            "192.0.2",
            "192.0.2.1:",
            "192.0.2.1:99999",
            "[192.0.2.1",
            " 192.0.2.1",
        ] {
            assert_eq!(
                parse_nameserver(text),
                Err(NameserverError::NotAnAddress {
                    text: text.to_owned()
                })
            );
        }
        let text = "192.0.2.1:0".to_owned();
        assert_eq!(
            parse_nameserver(&text),
            Err(NameserverError::PortZero { text })
        );
    }

    fn from_text(name: &str, text: &str) -> Result<(String, Option<String>), ResolverError> {
        let path = std::env::temp_dir().join(format!("resolv.conf-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let read = read_resolv_conf(&path);
        std::fs::remove_file(&path).unwrap();
        let system = read?;
        let servers: Vec<_> = system.servers.iter().map(ToString::to_string).collect();
        Ok((servers.join(" "), system.warning))
    }

    #[test]
    fn the_system_configuration_names_the_servers() {
        let text =
            "search example.net\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:2\n";
        let (servers, warning) = from_text("plain", text).unwrap();
        assert_eq!(servers, "192.0.2.1:53 [2001:db8::1]:53");
        assert_eq!(warning, None);
    }

    #[test]
    fn the_system_configuration_says_whether_to_believe_of_dnssec() {
        for (text, wanted) in [
            ("options trust-ad\n", true),
            (
                "nameserver 192.0.2.1\n  options\tedns0 trust-ad ndots:2",
                true,
            ),
            ("options edns0\n", false),
            (
                "options trust-ad-not\n# options trust-ad\nsearch trust-ad",
                false,
            ),
        ] {
            assert_eq!(trusts_ad(text.as_bytes()), wanted, "{text}");
        }
    }

    #[test]
    fn a_system_configuration_without_servers_means_this_machine_and_says_so() {
        for (name, text) in [
            ("empty", ""),
            ("bare", "nameserver\n"),
            ("comment", "# nameserver 192.0.2.1\nsearch a"),
        ] {
            let (servers, warning) = from_text(name, text).unwrap();
            assert_eq!(servers, "127.0.0.1:53", "{name}");
            assert!(warning.unwrap().contains("names no name server"), "{name}");
        }
        let missing = Path::new("/nonexistent/resolv.conf");
        let resolver =
            Resolver::from_resolv_conf(missing, TIMEOUT, CacheLimits::default()).unwrap();
        assert_eq!(
            resolver.warning(),
            Some(
                "/nonexistent/resolv.conf does not exist; asking the name server on this machine, 127.0.0.1"
            )
        );
    }

    #[test]
    fn what_cannot_be_used_is_an_error() {
        let unreadable = read_resolv_conf(&std::env::temp_dir());
        assert!(matches!(unreadable, Err(ResolverError::Unreadable { .. })));
        assert!(matches!(
            from_text("nonsense", "nameserver nowhere\n"),
            Err(ResolverError::Unusable { .. })
        ));
        let none = Resolver::with_servers(&[], TIMEOUT, CacheLimits::default());
        assert!(matches!(none, Err(ResolverError::NoServers)));
    }
}
