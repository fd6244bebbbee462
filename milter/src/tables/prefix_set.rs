//! IP networks, found by the longest prefix.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 and IPv6, each with a yes or a no.
#[derive(Debug, Default)]
pub(super) struct PrefixSet {
    v4: Prefixes,
    v6: Prefixes,
}

/// A network: the prefix' octets, all others zero, and its length in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    length: u8,
}

impl PrefixSet {
    /// Adds `network`; where it is both a yes and a no, the no stays.
    pub(super) fn insert(&mut self, network: Network, member: bool) {
        match network.address {
            IpAddr::V4(address) => self
                .v4
                .insert(v4_bits(address), 96 + network.length, member),
            IpAddr::V6(address) => self.v6.insert(address.to_bits(), network.length, member),
        }
    }

    /// What the narrowest network around `address` says. IPv4-mapped addresses are IPv4 (RFC 4291 section 2.5.5.2).
    ///
    /// Takes one look-up per prefix length in use, at most 129.
    pub(super) fn look_up(&self, address: IpAddr) -> Option<bool> {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.look_up(v4_bits(address)),
            IpAddr::V6(address) => self.v6.look_up(address.to_bits()),
        }
    }
}

impl Network {
    /// The network of `length` bits around `address`, its host bits dropped; `None` for a length beyond the address.
    ///
    /// A network of IPv4-mapped addresses is one of IPv4.
    pub(super) fn new(address: IpAddr, length: u8) -> Option<Self> {
        match address {
            IpAddr::V4(address) if length <= 32 => {
                // In 128 bits the 32 of an address are the last ones; the mask leaves only them.
                let bits = (v4_bits(address) & mask(96 + length)) as u32;
                let address = Ipv4Addr::from_bits(bits).into();
                Some(Self { address, length })
            }
            IpAddr::V6(address) if length <= 128 => {
                match (address.to_ipv4_mapped(), length.checked_sub(96)) {
                    (Some(mapped), Some(length)) => Self::new(mapped.into(), length),
                    _ => {
                        let address = Ipv6Addr::from_bits(address.to_bits() & mask(length)).into();
                        Some(Self { address, length })
                    }
                }
            }
            _ => None,
        }
    }

    /// Its lowest address.
    pub(super) fn address(self) -> IpAddr {
        self.address
    }

    /// Its prefix length.
    pub(super) fn length(self) -> u8 {
        self.length
    }
}

/// Prefixes of one family, by their length in 128 bits, the longest first.
#[derive(Debug, Default)]
struct Prefixes(Vec<(u8, HashMap<u128, bool>)>);

impl Prefixes {
    fn insert(&mut self, bits: u128, length: u8, member: bool) {
        let place = self.0.partition_point(|&(other, _)| other > length);
        if self.0.get(place).is_none_or(|&(other, _)| other != length) {
            self.0.insert(place, (length, HashMap::new()));
        }
        let entry = self.0[place].1.entry(bits).or_insert(member);
        *entry &= member;
    }

    fn look_up(&self, bits: u128) -> Option<bool> {
        self.0
            .iter()
            .find_map(|(length, prefixes)| prefixes.get(&(bits & mask(*length))).copied())
    }
}

/// The 32 bits of an IPv4 address are the last of 128 here.
fn v4_bits(address: Ipv4Addr) -> u128 {
    u128::from(address.to_bits())
}

/// The first `length` of 128 bits.
fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        let (address, length) = text.split_once('/').unwrap();
        Network::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn set(networks: &[(&str, bool)]) -> PrefixSet {
        let mut set = PrefixSet::default();
        for &(text, member) in networks {
            set.insert(network(text), member);
        }
        set
    }

    #[test]
    fn host_bits_are_dropped_and_mapped_networks_are_ipv4() {
        for (text, wanted) in [
            ("192.168.1.77/24", "192.168.1.0/24"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("10.1.2.3/9", "10.0.0.0/9"),
            ("2001:db8::ffff/33", "2001:db8::/33"),
            ("::1/128", "::1/128"),
            ("ff::/0", "::/0"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
        ] {
            let Network { address, length } = network(text);
            assert_eq!(format!("{address}/{length}"), wanted);
        }
        assert_eq!(Network::new("1.2.3.4".parse().unwrap(), 33), None);
        assert_eq!(Network::new("::1".parse().unwrap(), 129), None);
    }

    #[test]
    fn the_narrowest_network_decides() {
        let set = set(&[
            ("10.0.0.0/8", true),
            ("10.1.0.0/16", false),
            ("10.1.2.3/32", true),
            ("10.1.2.4/32", true),
            ("10.1.2.4/32", false),
            ("2001:db8::/32", true),
            ("2001:db8::1/128", false),
        ]);
        for (address, wanted) in [
            ("10.9.9.9", Some(true)),
            ("10.1.9.9", Some(false)),
            ("10.1.2.3", Some(true)),
            ("10.1.2.4", Some(false)),
            ("11.0.0.1", None),
            ("::ffff:10.9.9.9", Some(true)),
            ("2001:DB8::2", Some(true)),
            ("2001:db8::1", Some(false)),
            ("::a09:909", None),
        ] {
            assert_eq!(set.look_up(address.parse().unwrap()), wanted, "{address}");
        }
    }

    #[test]
    fn a_default_route_is_of_one_family() {
        let v6 = set(&[("::/0", true)]);
        assert_eq!(v6.look_up("1.2.3.4".parse().unwrap()), None);
        assert_eq!(v6.look_up("::ffff:1.2.3.4".parse().unwrap()), None);
        let v4 = set(&[("0.0.0.0/0", true)]);
        assert_eq!(v4.look_up("::1".parse().unwrap()), None);
        assert_eq!(v4.look_up("1.2.3.4".parse().unwrap()), Some(true));
    }

    proptest! {
        #[test]
        fn agrees_with_comparing_bit_by_bit(networks in proptest::collection::vec((0u32..16, 28u8..=32, any::<bool>()), 0..8), address in 0u32..16) {
            let mut set = PrefixSet::default();
            for &(bits, length, member) in &networks {
                set.insert(Network::new(Ipv4Addr::from_bits(bits).into(), length).unwrap(), member);
            }
            let contains = |&&(bits, length, _): &&(u32, u8, bool)| (0..length).all(|bit| (bits ^ address) << bit >> 31 == 0);
            let longest = networks.iter().filter(contains).map(|&(_, length, _)| length).max();
            let wanted = longest.map(|longest| networks.iter().filter(contains).filter(|n| n.1 == longest).all(|n| n.2));
            prop_assert_eq!(set.look_up(Ipv4Addr::from_bits(address).into()), wanted);
        }
    }
}
