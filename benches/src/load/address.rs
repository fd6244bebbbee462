//! Where a milter listens, in the notations of OpenDKIM and of Postfix.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// A milter's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket.
    Unix(PathBuf),
    /// A TCP port of a host, given by name or address.
    Inet {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// `unix:PATH`, `local:PATH`, `inet:PORT@HOST`, `inet:HOST:PORT`, `inet:PORT` (of 127.0.0.1); `inet6` like `inet`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (form, rest) = text.split_once(':').ok_or(AddressError::NoForm)?;
        match form {
            "unix" | "local" if rest.is_empty() => Err(AddressError::NoPath),
            "unix" | "local" => Ok(Self::Unix(rest.into())),
            "inet" | "inet6" => {
                let (host, port) = match (rest.split_once('@'), rest.rsplit_once(':')) {
                    (Some((port, host)), _) | (None, Some((host, port))) => (host, port),
                    (None, None) if form == "inet6" => ("::1", rest),
                    (None, None) => ("127.0.0.1", rest),
                };
                let host = host.trim_start_matches('[').trim_end_matches(']');
                match port.parse() {
                    Ok(port) if port > 0 && !host.is_empty() => Ok(Self::Inet {
                        host: host.into(),
                        port,
                    }),
                    _ => Err(AddressError::NotInet(rest.into())),
                }
            }
            _ => Err(AddressError::NoForm),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Inet { host, port } => write!(f, "inet:{port}@{host}"),
        }
    }
}

/// A socket to connect to.
#[derive(Clone, Debug)]
pub enum Target {
    /// A UNIX socket.
    Unix(PathBuf),
    /// An address and a port.
    Inet(SocketAddr),
}

impl Address {
    /// The socket that this is. Load is for one's own machine: another host's is refused unless `remote` is allowed.
    ///
    /// # Errors
    /// A host without an address, or not this one.
    pub fn target(&self, remote: bool) -> Result<Target, TargetError> {
        let (host, port) = match self {
            Self::Unix(path) => return Ok(Target::Unix(path.clone())),
            Self::Inet { host, port } => (host, *port),
        };
        let found = (host.as_str(), port).to_socket_addrs();
        let address = found
            .and_then(|mut all| all.next().ok_or(io::ErrorKind::NotFound.into()))
            .map_err(|source| TargetError::NoHost {
                host: host.clone(),
                source,
            })?;
        if remote || address.ip().to_canonical().is_loopback() {
            Ok(Target::Inet(address))
        } else {
            Err(TargetError::Remote(address))
        }
    }
}

/// Why a text is no address of a milter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Neither of the known forms.
    #[error("an address is unix:PATH, local:PATH, inet:PORT@HOST or inet:HOST:PORT")]
    NoForm,
    /// `unix:` and nothing.
    #[error("a path must follow the colon")]
    NoPath,
    /// No port, or no host.
    #[error("{0:?} is neither PORT@HOST nor HOST:PORT")]
    NotInet(String),
}

/// Why there is no load on an address.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It cannot be found.
    #[error("host {host}: {source}")]
    NoHost {
        /// The host.
        host: String,
        /// Why not.
        source: io::Error,
    },
    /// It is another's.
    #[error("{0} is not on this host; --allow-remote if it shall have load")]
    Remote(SocketAddr),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_name_a_socket() {
        let inet = |host: &str, port| {
            Ok(Address::Inet {
                host: host.into(),
                port,
            })
        };
        for (text, wanted) in [
            ("unix:/run/a:b", Ok(Address::Unix("/run/a:b".into()))),
            ("local:run/m", Ok(Address::Unix("run/m".into()))),
            ("inet:8891@127.0.0.1", inet("127.0.0.1", 8891)),
            ("inet:127.0.0.1:8891", inet("127.0.0.1", 8891)),
            ("inet:localhost:8891", inet("localhost", 8891)),
            ("inet:8891", inet("127.0.0.1", 8891)),
            ("inet:[::1]:8891", inet("::1", 8891)),
            ("inet6:8891@::1", inet("::1", 8891)),
            ("inet6:8891", inet("::1", 8891)),
            ("unix:", Err(AddressError::NoPath)),
            ("/run/milter", Err(AddressError::NoForm)),
            ("tcp:127.0.0.1:1", Err(AddressError::NoForm)),
            ("inet:0", Err(AddressError::NotInet("0".into()))),
            ("inet:70000@h", Err(AddressError::NotInet("70000@h".into()))),
            ("inet:@h", Err(AddressError::NotInet("@h".into()))),
            ("inet:host:", Err(AddressError::NotInet("host:".into()))),
        ] {
            assert_eq!(text.parse::<Address>(), wanted, "{text}");
        }
    }

    #[test]
    fn another_host_is_left_alone_unless_allowed() {
        for (text, is_here) in [
            ("unix:/run/m", true),
            ("inet:9@127.0.0.1", true),
            ("inet:9@127.7.7.7", true),
            ("inet6:9@::1", true),
            ("inet:9@192.0.2.1", false),
            ("inet6:9@::ffff:192.0.2.1", false),
            ("inet:9@0.0.0.0", false),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.target(false).is_ok(), is_here, "{text}");
            assert!(address.target(true).is_ok(), "{text}");
        }
    }
}
