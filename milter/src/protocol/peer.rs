//! The peer of CONNECT: where a client comes from, as an MTA tells it.
//!
//! Nothing here is an error: a client whose address cannot be read is still a client, and what to think of it is for
//! policy.

use std::net::IpAddr;

use super::command::split_string;

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer<'a> {
    /// The MTA does not know.
    Unknown,
    /// A UNIX socket, by its path.
    Unix(&'a [u8]),
    /// An address and a port; the port is 0 for mail submitted on the MTA's own host. An IPv4 address that was mapped
    /// into IPv6 is here as IPv4.
    Inet(IpAddr, u16),
    /// Something else: a family we do not know, or a text that is no address, as `unknown` from Postfix for a client it
    /// knows nothing of.
    Other {
        /// The family octet.
        family: u8,
        /// What stands where the address should.
        text: &'a [u8],
    },
}

impl<'a> Peer<'a> {
    /// `family:u8` and, unless that is `U`, `port:u16 address NUL`. Never an error: a client without a readable address
    /// is still a client.
    pub(super) fn parse(octets: &'a [u8]) -> Self {
        let Some((&family, rest)) = octets.split_first() else {
            return Self::Unknown;
        };
        let (port, text) = match rest.split_first_chunk::<2>() {
            Some((port, rest)) => (u16::from_be_bytes(*port), split_string(rest).0),
            None => (0, &[][..]),
        };
        match (family, parse_address(text)) {
            (b'U', _) => Self::Unknown,
            (b'L', _) => Self::Unix(text),
            (b'4' | b'6', Some(address)) => Self::Inet(address, port),
            _ => Self::Other { family, text },
        }
    }
}

/// An address as Postfix and Sendmail write it: `192.0.2.7`, `2001:db8::1`, `IPv6:2001:db8::1`; a zone is dropped.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let bare = match text.split_first_chunk::<5>() {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case(b"IPv6:") => rest,
        _ => text,
    };
    let bare = bare.split(|&o| o == b'%').next()?;
    let address: IpAddr = std::str::from_utf8(bare).ok()?.parse().ok()?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::command::Command;

    #[test]
    fn a_clients_address_is_never_an_error() {
        let v4 = |address: [u8; 4], port| Peer::Inet(address.into(), port);
        let v6 = |address: [u16; 8], port| Peer::Inet(address.into(), port);
        let other = |family, text| Peer::Other { family, text };
        for (data, host, peer) in [
            (&b"h\0U"[..], &b"h"[..], Peer::Unknown),
            (b"h\0", b"h", Peer::Unknown),
            (b"h", b"h", Peer::Unknown),
            (b"", b"", Peer::Unknown),
            (b"h\0L\0\0/run/x.sock\0", b"h", Peer::Unix(b"/run/x.sock")),
            (
                b"h\x004\x9c\x40192.0.2.7\0",
                b"h",
                v4([192, 0, 2, 7], 40000),
            ),
            (b"h\x004\x9c\x40192.0.2.7", b"h", v4([192, 0, 2, 7], 40000)),
            (b"h\x004\0\0unknown\0", b"h", other(b'4', b"unknown")),
            (
                b"h\x004\0\x19192.0.2.700\0",
                b"h",
                other(b'4', b"192.0.2.700"),
            ),
            (b"h\x004\0\0\xff\0", b"h", other(b'4', b"\xff")),
            (b"h\x004\0", b"h", other(b'4', b"")),
            (
                b"[::1]\x006\0\x19::1\0",
                b"[::1]",
                v6([0, 0, 0, 0, 0, 0, 0, 1], 25),
            ),
            (
                b"h\x006\0\x19IPv6:2001:db8::1\0",
                b"h",
                v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 25),
            ),
            (
                b"h\x006\0\x19ipv6:2001:db8:0:0:0:0:0:1\0",
                b"h",
                v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 25),
            ),
            (
                b"h\x006\0\x19fe80::1%eth0\0",
                b"h",
                v6([0xfe80, 0, 0, 0, 0, 0, 0, 1], 25),
            ),
            (
                b"h\x006\0\x19::ffff:192.0.2.7\0",
                b"h",
                v4([192, 0, 2, 7], 25),
            ),
            (
                b"h\x006\0\x19IPv6:::ffff:192.0.2.7\0",
                b"h",
                v4([192, 0, 2, 7], 25),
            ),
            (b"h\x006\0\x19192.0.2.7\0", b"h", v4([192, 0, 2, 7], 25)),
            (b"h\0x\0\x19192.0.2.7\0", b"h", other(b'x', b"192.0.2.7")),
        ] {
            assert_eq!(
                Command::parse(b'C', data),
                Ok(Command::Connect { host, peer }),
                "{data:?}"
            );
        }
    }
}
