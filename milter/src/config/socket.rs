//! Where to listen: the forms of a socket, and which of them other hosts can reach.
//!
//! The milter protocol has no authentication, so a TCP port that others can reach lets them sign. Ports are therefore
//! of the host itself unless the configuration says otherwise.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use super::values::ValueFault;
use crate::tables::Origin;
use crate::tables::text_lines::shown;

/// A socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where.
    pub address: ListenAddress,
    /// Where that was said.
    pub origin: Origin,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket at this absolute path.
    Unix(PathBuf),
    /// A TCP port.
    Inet(InetAddress),
}

/// A TCP port to listen on, at one or more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InetAddress {
    /// The port; 0 for any that is free.
    pub port: u16,
    /// The addresses.
    pub host: Host,
}

/// The addresses of a TCP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// 127.0.0.1 and ::1, as far as the families say; one that the host lacks may be missing.
    Loopback(Families),
    /// All addresses of the families.
    Any(Families),
    /// This address.
    Address(IpAddr),
    /// The addresses that this name has in the families.
    Name(String, Families),
}

/// Families of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    Both,
}

/// A socket as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RawAddress {
    /// A path, or a port with a host.
    Full(ListenAddress),
    /// A port without a host: which addresses it is open on depends on another option.
    Port(u16, Families),
}

impl Host {
    /// Whether only this host can connect, as far as can be told without looking up names.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Self::Loopback(_) => true,
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Any(_) | Self::Name(..) => false,
        }
    }
}

impl Host {
    /// The addresses that need no look-up.
    fn addresses(&self) -> Vec<IpAddr> {
        let of = |families: &Families, v4: Ipv4Addr, v6: Ipv6Addr| match families {
            Families::V4 => vec![v4.into()],
            Families::V6 => vec![v6.into()],
            Families::Both => vec![v4.into(), v6.into()],
        };
        match self {
            Self::Loopback(families) => of(families, Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
            Self::Any(families) => of(families, Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED),
            Self::Address(address) => vec![*address],
            Self::Name(..) => Vec::new(),
        }
    }
}

impl ListenAddress {
    /// Whether nobody can listen on `other` as well, as far as can be told without looking up names.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            // Paths are equal however many slashes they have.
            (Self::Unix(one), Self::Unix(other)) => one == other,
            (Self::Inet(one), Self::Inet(other)) if one.port == other.port && one.port != 0 => {
                let addresses = other.host.addresses();
                let is_shared = |one: IpAddr| {
                    addresses.iter().any(|other| {
                        one.is_ipv4() == other.is_ipv4()
                            && (one == *other || one.is_unspecified() || other.is_unspecified())
                    })
                };
                one.host == other.host || one.host.addresses().into_iter().any(is_shared)
            }
            _ => false,
        }
    }

    /// Whether only this host can connect, as far as can be told without looking up names.
    pub(super) fn is_of_this_host(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Inet(address) => address.host.is_loopback(),
        }
    }
}

impl RawAddress {
    /// The address, where a port without a host is open to this host only.
    pub(super) fn of_this_host(self) -> ListenAddress {
        match self {
            Self::Full(address) => address,
            Self::Port(port, families) => {
                let families = match families {
                    Families::V6 => Families::V6,
                    // OpenDKIM's "inet:" is IPv4, but a client may try ::1 first.
                    Families::V4 | Families::Both => Families::Both,
                };
                let host = Host::Loopback(families);
                ListenAddress::Inet(InetAddress { port, host })
            }
        }
    }
}

/// The forms of `Socket` and `-p`.
pub(super) fn parse(text: &str) -> Result<RawAddress, ValueFault> {
    let unix = |path: &str| match path.starts_with('/') {
        true if path.len() > MAX_UNIX_PATH => Err(ValueFault::LongSocket(shown(path))),
        true => Ok(RawAddress::Full(ListenAddress::Unix(path.into()))),
        false => Err(ValueFault::RelativeSocket(shown(path))),
    };
    match text.split_once(':') {
        _ if text.starts_with('/') => unix(text),
        Some((form, path)) if is_one_of(form, &["local", "unix"]) => unix(path.trim()),
        Some((form, rest)) if is_one_of(form, &["inet"]) => parse_inet(rest.trim(), false),
        Some((form, rest)) if is_one_of(form, &["inet6"]) => parse_inet(rest.trim(), true),
        _ => Err(ValueFault::NotSocket(shown(text))),
    }
}

/// What fits into Linux' `sun_path` with the octet that ends it.
const MAX_UNIX_PATH: usize = 107;

fn parse_inet(text: &str, only_v6: bool) -> Result<RawAddress, ValueFault> {
    let (port, host) = match text.split_once('@') {
        Some((port, host)) => (port.trim(), Some(host.trim())),
        None => (text, None),
    };
    let number =
        Some(port).filter(|port| !port.is_empty() && port.bytes().all(|o| o.is_ascii_digit()));
    let Some(number) = number.and_then(|port| port.parse().ok()) else {
        return Err(match port.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => ValueFault::PortLast {
                port: shown(port),
                host: shown(host),
            },
            _ => ValueFault::NotPort(shown(port)),
        });
    };
    let Some(host) = host else {
        // OpenDKIM's "inet:" is IPv4.
        return Ok(RawAddress::Port(
            number,
            if only_v6 { Families::V6 } else { Families::V4 },
        ));
    };
    let host = parse_host(host, only_v6)?;
    Ok(RawAddress::Full(ListenAddress::Inet(InetAddress {
        port: number,
        host,
    })))
}

fn parse_host(text: &str, only_v6: bool) -> Result<Host, ValueFault> {
    let families = if only_v6 {
        Families::V6
    } else {
        Families::Both
    };
    let inner = text
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'));
    match inner.unwrap_or(text).parse::<IpAddr>() {
        Ok(address) if only_v6 && address.is_ipv4() => Err(ValueFault::NotIpv6(address)),
        Ok(address) => Ok(Host::Address(address)),
        Err(_) if text.eq_ignore_ascii_case("localhost") => Ok(Host::Loopback(families)),
        Err(_) if is_host(text) => Ok(Host::Name(text.to_owned(), families)),
        Err(_) => Err(ValueFault::NotHost(shown(text))),
    }
}

/// Not as strict as the names of mail domains: underscores are in use inside container networks.
fn is_host(text: &str) -> bool {
    let is_inner = |o: u8| o.is_ascii_alphanumeric() || matches!(o, b'-' | b'_');
    let is_number = |label: &str| label.bytes().all(|o| o.is_ascii_digit());
    text.split('.')
        .all(|label| !label.is_empty() && label.bytes().all(is_inner))
        && !text.rsplit('.').next().is_some_and(is_number)
}

fn is_one_of(form: &str, forms: &[&str]) -> bool {
    forms.iter().any(|known| known.eq_ignore_ascii_case(form))
}

impl fmt::Display for ListenAddress {
    /// As it would be written in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "local:{}", path.display()),
            Self::Inet(InetAddress { port, host }) => match host {
                Host::Loopback(families) => write!(f, "{}:{port}@localhost", families.form()),
                Host::Any(Families::V6) => write!(f, "inet6:{port}@[::]"),
                Host::Any(_) => write!(f, "inet:{port}@0.0.0.0"),
                Host::Address(IpAddr::V6(address)) => write!(f, "inet6:{port}@[{address}]"),
                Host::Address(address) => write!(f, "inet:{port}@{address}"),
                Host::Name(name, families) => write!(f, "{}:{port}@{name}", families.form()),
            },
        }
    }
}

impl Families {
    fn form(self) -> &'static str {
        match self {
            Self::V4 | Self::Both => "inet",
            Self::V6 => "inet6",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        match parse(text) {
            Ok(RawAddress::Full(address)) => address.to_string(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn each_form_is_read() {
        for (text, wanted) in [
            ("inet:18891@127.0.0.1", "inet:18891@127.0.0.1"),
            ("INET:18891@[127.0.0.1]", "inet:18891@127.0.0.1"),
            ("inet6:18891@::1", "inet6:18891@[::1]"),
            ("inet6:18891@[::1]", "inet6:18891@[::1]"),
            ("inet:18891@[2001:db8::1]", "inet6:18891@[2001:db8::1]"),
            ("inet:0@localhost", "inet:0@localhost"),
            ("inet6:1@localhost", "inet6:1@localhost"),
            ("inet:8891@milter_1.example", "inet:8891@milter_1.example"),
            ("inet: 8891 @ 10.0.0.1", "inet:8891@10.0.0.1"),
            ("local:/run/x/d.sock", "local:/run/x/d.sock"),
            ("unix:/run/x/d.sock", "local:/run/x/d.sock"),
            ("/run/x/d.sock", "local:/run/x/d.sock"),
            ("/run/x:y@z", "local:/run/x:y@z"),
        ] {
            assert_eq!(full(text), wanted);
        }
        assert_eq!(
            parse("inet:18891"),
            Ok(RawAddress::Port(18891, Families::V4))
        );
        assert_eq!(
            parse("inet6:18891"),
            Ok(RawAddress::Port(18891, Families::V6))
        );
        assert_eq!(
            parse("inet:1@localhost"),
            Ok(RawAddress::Full(ListenAddress::Inet(InetAddress {
                port: 1,
                host: Host::Loopback(Families::Both)
            })))
        );
    }

    #[test]
    fn two_sockets_exclude_each_other_where_their_addresses_meet() {
        let full = |text: &str| parse(text).unwrap().of_this_host();
        for (one, other, excludes) in [
            ("local:/run/s", "/run//s", true),
            ("local:/run/s", "local:/run/t", false),
            ("inet:1@localhost", "inet:1@127.0.0.1", true),
            ("inet:1@localhost", "inet6:1@::1", true),
            ("inet:1@localhost", "inet:2@localhost", false),
            ("inet:1@0.0.0.0", "inet:1", true),
            ("inet6:1@::", "inet:1@10.0.0.1", false),
            ("inet:1@10.0.0.1", "inet:1@127.0.0.1", false),
            ("inet:1@mx.example", "inet:1@mx.example", true),
            ("inet:0@localhost", "inet:0@localhost", false),
            ("local:/run/s", "inet:1", false),
        ] {
            assert_eq!(full(one).excludes(&full(other)), excludes, "{one} {other}");
            assert_eq!(full(other).excludes(&full(one)), excludes, "{other} {one}");
        }
    }

    #[test]
    fn other_forms_are_refused_with_what_was_wanted() {
        for (text, wanted) in [
            (
                "local:relative.sock",
                "the path \"relative.sock\" of a Unix socket must be absolute",
            ),
            ("unix:", "the path \"\" of a Unix socket must be absolute"),
            (
                "inet:http@localhost",
                "port \"http\" is not a number from 0 to 65535",
            ),
            ("inet:70000@localhost", "port \"70000\" is not a number"),
            ("inet:", "port \"\" is not a number"),
            (
                "inet:localhost:8891",
                "the port comes first here, unlike in Postfix: \"inet:8891@localhost\"",
            ),
            (
                "inet6:1@127.0.0.1",
                "127.0.0.1 is an IPv4 address, which \"inet6:\" cannot listen on",
            ),
            (
                "inet:1@",
                "\"\" is neither an IP address nor the name of a host",
            ),
            ("inet:1@10.0.0", "\"10.0.0\" is neither an IP address"),
            ("inet:1@[::1", "\"[::1\" is neither an IP address"),
            (
                "fd:3",
                "\"fd:3\" is not a socket; inet:port@host, inet6:port@host or local:/path wanted",
            ),
            ("8891", "\"8891\" is not a socket"),
            (&format!("/{}", "x".repeat(107)), "the path \"/xxx"),
            ("relative.sock", "\"relative.sock\" is not a socket"),
        ] {
            let fault = parse(text).unwrap_err().to_string();
            assert!(fault.starts_with(wanted), "{text}: {fault}");
        }
    }

    #[test]
    fn only_loopback_is_out_of_reach() {
        for (host, wanted) in [
            (Host::Loopback(Families::Both), true),
            (Host::Address("127.9.9.9".parse().unwrap()), true),
            (Host::Address("::1".parse().unwrap()), true),
            (Host::Address("::ffff:127.0.0.1".parse().unwrap()), true),
            (Host::Address("0.0.0.0".parse().unwrap()), false),
            (Host::Address("::".parse().unwrap()), false),
            (Host::Address("10.0.0.1".parse().unwrap()), false),
            (Host::Any(Families::V4), false),
            (Host::Name("mail.example".to_owned(), Families::Both), false),
        ] {
            assert_eq!(host.is_loopback(), wanted, "{host:?}");
        }
    }
}
