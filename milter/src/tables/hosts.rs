//! Host lists: which clients are internal, peers, or not worth a word.
//!
//! An entry is a host name, `.domain` for all hosts below it, an IP address or a network (`10.0.0.0/8`), where the
//! address may stand in brackets; `!` before it makes it an exception. The client's name is asked for first, whole and
//! then domain by domain, then its address by the narrowest network; the first answer counts, so an exception for a
//! host stands against a network around it. In a `refile:` an entry with `*` is a pattern for names and for addresses
//! as text, asked after the plain entries.
//!
//! A name counts only as far as the MTA has verified it: whoever asks must leave out one it has not.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::domain::{climb, to_ascii};
use super::prefix_set::{Network, PrefixSet};
use super::source::Entry;
use super::text_lines::shown;
use super::wildcard;
use super::{DataSet, Findings, HostFault, TableFault, TableNote};

/// A host list, read and indexed.
#[derive(Debug, Default)]
pub struct HostList {
    /// Host names, and whether they are members.
    names: HashMap<Box<str>, bool>,
    /// Domains, for the hosts below them.
    domains: HashMap<Box<str>, bool>,
    networks: PrefixSet,
    patterns: Vec<(Box<str>, bool)>,
}

impl HostList {
    /// Reads and checks `set`; names in messages are those of its option.
    ///
    /// What is wrong or odd goes to `findings`; with an error among it, the list must not be used.
    pub fn open(set: &DataSet<'_>, findings: &mut Findings) -> Self {
        let mut list = Self::default();
        if let Some(opened) = set.find_source(findings) {
            let has_patterns = opened.has_patterns();
            opened.read(findings, &mut |entry, findings| {
                list.add(set.option, &entry, has_patterns, findings);
            });
        }
        list
    }

    /// Whether the client is in the list.
    ///
    /// `name` is its host name if the MTA has verified it, or `localhost` for mail submitted on the host itself;
    /// `address` is its IP address. The host `localhost` without an address is taken for 127.0.0.1 and ::1, as some
    /// MTAs give none for local mail.
    pub fn contains(&self, name: Option<&[u8]>, address: Option<IpAddr>) -> bool {
        let name = name
            .and_then(|name| std::str::from_utf8(name).ok())
            .filter(|name| name.len() <= MAX_QUERY)
            .map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let is_local = address.is_none() && name.as_deref() == Some("localhost");
        let by_name = name.and_then(|name| self.look_up_name(&name));
        let by_address = || match address {
            Some(address) => self.look_up_address(address),
            None if is_local => self
                .look_up_address(Ipv4Addr::LOCALHOST.into())
                .or_else(|| self.look_up_address(Ipv6Addr::LOCALHOST.into())),
            None => None,
        };
        by_name.or_else(by_address).unwrap_or(false)
    }

    /// The plain host names in the list, in lower case, without exceptions.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names
            .iter()
            .filter(|&(_, member)| *member)
            .map(|(name, _)| &**name)
    }

    fn look_up_name(&self, name: &str) -> Option<bool> {
        let by_domain = || {
            climb(name)
                .skip(1)
                .find_map(|domain| self.domains.get(domain))
        };
        let plain = self.names.get(name).or_else(by_domain).copied();
        plain.or_else(|| self.look_up_pattern(name))
    }

    fn look_up_address(&self, address: IpAddr) -> Option<bool> {
        let by_text = || self.look_up_pattern(&address.to_canonical().to_string());
        self.networks.look_up(address).or_else(by_text)
    }

    fn look_up_pattern(&self, text: &str) -> Option<bool> {
        self.patterns
            .iter()
            .find(|(pattern, _)| wildcard::matches(pattern.as_bytes(), text.as_bytes()))
            .map(|&(_, member)| member)
    }

    fn add(
        &mut self,
        option: &'static str,
        entry: &Entry<'_>,
        has_patterns: bool,
        findings: &mut Findings,
    ) {
        let text = || shown(entry.key);
        let (plain, member) = match entry.key.strip_prefix('!') {
            Some(plain) => (plain.trim_start(), false),
            None => (entry.key, true),
        };
        let mut warn = |note| findings.warning(option, entry.origin.clone(), note);
        if let Some(rest) = entry.value {
            let (key, text) = (text(), shown(rest));
            warn(TableNote::ExtraText { key, text });
        }
        match parse(plain, has_patterns) {
            Ok(Host::Nobody) => {}
            Ok(Host::Name(name)) => insert(&mut self.names, name, member),
            Ok(Host::Domain(domain)) => insert(&mut self.domains, domain, member),
            Ok(Host::Pattern(pattern)) => {
                if member && pattern.bytes().all(|o| o == b'*') {
                    warn(TableNote::EveryHost { text: text() });
                }
                self.patterns.push((pattern.into(), member));
            }
            Ok(Host::Network { network, written }) => {
                if network.address() != written {
                    let network = format!("{}/{}", network.address(), network.length());
                    warn(TableNote::HostBits {
                        text: text(),
                        network,
                    });
                }
                if member && network.length() == 0 {
                    warn(TableNote::EveryHost { text: text() });
                }
                self.networks.insert(network, member);
            }
            Err(fault) => {
                let text = text();
                findings.error(
                    option,
                    entry.origin.clone(),
                    TableFault::BadHost { text, fault },
                );
            }
        }
    }
}

/// Longer than any host name; keeps look-ups cheap for what is none.
const MAX_QUERY: usize = 255;

enum Host {
    /// `-` or `.`, by which operators say that a list is empty.
    Nobody,
    Name(String),
    Domain(String),
    Pattern(String),
    /// A network, and the address from which it was made.
    Network {
        network: Network,
        written: IpAddr,
    },
}

fn insert(map: &mut HashMap<Box<str>, bool>, name: String, member: bool) {
    *map.entry(name.into()).or_insert(member) &= member;
}

fn parse(text: &str, has_patterns: bool) -> Result<Host, HostFault> {
    if matches!(text, "-" | ".") {
        return Ok(Host::Nobody);
    }
    if text.contains([' ', '\t', ',']) {
        return Err(HostFault::Several);
    }
    if text.contains('@') {
        return Err(HostFault::MailAddress);
    }
    if text.contains('*') {
        let pattern = has_patterns.then(|| Host::Pattern(to_ascii(text)));
        return pattern.ok_or(HostFault::Wildcard);
    }
    if let Some(host) = parse_network(text)? {
        return Ok(host);
    }
    if text.contains(':') {
        return Err(HostFault::NotIpv6);
    }
    let name = to_ascii(text.strip_suffix('.').unwrap_or(text));
    let (plain, below) = match name.strip_prefix('.') {
        Some(domain) => (domain, true),
        None => (&*name, false),
    };
    if !is_name(plain) {
        return Err(HostFault::NotAHost);
    }
    // The last label of a name is never a number (RFC 3696 section 2), so this was meant as an address.
    let is_number = |label: &str| label.bytes().all(|o| o.is_ascii_digit());
    match plain.rsplit('.').next() {
        Some(label) if is_number(label) && plain.contains('-') => Err(HostFault::Range),
        Some(label) if is_number(label) => Err(HostFault::Number),
        _ if below => Ok(Host::Domain(plain.to_owned())),
        _ => Ok(Host::Name(name)),
    }
}

/// An address or a network, in brackets or not; `None` if `text` is neither and does not look like one.
fn parse_network(text: &str) -> Result<Option<Host>, HostFault> {
    let unbracketed = match text.strip_prefix('[') {
        // `[address]`, `[address]/length` and `[address/length]`
        Some(inner) => inner.replacen(']', "", 1),
        None => text.to_owned(),
    };
    let (address, length) = match unbracketed.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (&*unbracketed, None),
    };
    let Ok(written) = address.parse::<IpAddr>() else {
        return if length.is_some() {
            Err(HostFault::NoAddress)
        } else {
            Ok(None)
        };
    };
    let max = if written.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => max,
        Some(length) => Some(length)
            .filter(|length| length.bytes().all(|o| o.is_ascii_digit()))
            .and_then(|length| length.parse().ok())
            .ok_or(HostFault::PrefixLength { max })?,
    };
    let network = Network::new(written, length).ok_or(HostFault::PrefixLength { max })?;
    Ok(Some(Host::Network {
        network,
        written: if network.address().is_ipv4() {
            written.to_canonical()
        } else {
            written
        },
    }))
}

/// Not `is_host_name`: clients' names in the DNS do have underscores.
fn is_name(text: &str) -> bool {
    let is_inner = |o: u8| o.is_ascii_alphanumeric() || matches!(o, b'-' | b'_');
    text.len() <= MAX_QUERY
        && text
            .split('.')
            .all(|label| !label.is_empty() && label.bytes().all(is_inner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Origin;
    use crate::tables::test_dir::TestDir;

    fn open(kind: &str, content: &str) -> (HostList, Vec<String>, Vec<String>) {
        let dir = TestDir::new("hosts");
        dir.write("T", content);
        let mut findings = Findings::default();
        let text = match kind {
            "list" => content.to_owned(),
            _ => format!("{kind}:T"),
        };
        let set = DataSet {
            option: "InternalHosts",
            text: &text,
            origin: Origin::File {
                path: std::path::Path::new("c").into(),
                line: 7,
            },
            base: dir.root(),
        };
        let list = HostList::open(&set, &mut findings);
        let (errors, warnings) = findings.finish(|_| Origin::Default);
        (
            list,
            errors.iter().map(ToString::to_string).collect(),
            warnings.iter().map(ToString::to_string).collect(),
        )
    }

    fn contains(list: &HostList, name: &str, address: &str) -> bool {
        list.contains(
            Some(name.as_bytes()).filter(|name| !name.is_empty()),
            address.parse().ok(),
        )
    }

    #[test]
    fn each_form_of_entry_matches_its_hosts() {
        for (entries, name, address, wanted) in [
            ("192.168.7.1/24", "h.lan", "192.168.7.77", true),
            ("192.168.7.0/24", "h.lan", "192.168.8.1", false),
            ("127.0.0.1/8", "localhost", "127.0.0.1", true),
            ("127.0.0.1/8", "localhost", "", true),
            ("127.0.0.1/8", "other", "", false),
            ("::1", "localhost", "", true),
            ("localhost", "localhost", "", true),
            ("10.0.0.0/8", "", "", false),
            ("::1", "localhost", "::1", true),
            ("2001:db8:1::/48", "h", "2001:DB8:1:0:0::5", true),
            ("2001:db8:1::/48", "h", "2001:db8:2::5", false),
            ("10.0.0.0/8", "h", "::ffff:10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "h", "10.1.2.3", true),
            ("0.0.0.0/0", "h", "203.0.113.1", true),
            ("!10.0.0.5, 10.0.0.0/8", "h", "10.0.0.5", false),
            ("10.0.0.0/8, !10.0.0.5", "h", "10.0.0.5", false),
            ("10.0.0.0/8, !10.0.0.5", "h", "10.0.0.6", true),
            ("!10.0.0.0/8, 10.0.0.5", "h", "10.0.0.5", true),
            ("[10.0.0.5]", "h", "10.0.0.5", true),
            ("[2001:db8::]/32", "h", "2001:db8::1", true),
            ("[2001:db8::/32]", "h", "2001:db8::1", true),
            (".example.com", "mail.example.com", "203.0.113.1", true),
            (".example.com", "a.mail.Example.COM.", "203.0.113.1", true),
            (".example.com", "", "203.0.113.1", false),
            (".example.com", "example.com", "203.0.113.1", false),
            (".example.com", "notexample.com", "203.0.113.1", false),
            ("example.com", "mail.example.com", "203.0.113.1", false),
            ("Mail.Example.com", "mail.example.com", "203.0.113.1", true),
            (
                ".example.com, !bad.example.com",
                "bad.example.com",
                "203.0.113.1",
                false,
            ),
            (
                "!.example.com, 10.0.0.0/8",
                "a.example.com",
                "10.0.0.1",
                false,
            ),
            (
                "!10.0.0.5, mail.example.com",
                "mail.example.com",
                "10.0.0.5",
                true,
            ),
            ("my_host.example", "my_host.example", "10.0.0.5", true),
            ("-", "-", "127.0.0.1", false),
        ] {
            let (list, errors, _) = open("list", entries);
            assert_eq!(errors, [""; 0], "{entries}");
            assert_eq!(
                contains(&list, name, address),
                wanted,
                "{entries}: {name} {address}"
            );
        }
    }

    #[test]
    fn what_could_match_no_host_is_refused_with_its_place() {
        for (entry, fault) in [
            (
                "192.168.1.0/33",
                "has a prefix length that is not a number from 0 to 32",
            ),
            (
                "10.0.0.0/255.0.0.0",
                "has a prefix length that is not a number from 0 to 32",
            ),
            (
                "10.0.0.0/+8",
                "has a prefix length that is not a number from 0 to 32",
            ),
            (
                "2001:db8::/129",
                "has a prefix length that is not a number from 0 to 128",
            ),
            (
                "10.0.0.0/",
                "has a prefix length that is not a number from 0 to 32",
            ),
            (
                "example.com/24",
                "is no network: no IP address before the \"/\"",
            ),
            (
                "192.168.1",
                "is not an IP address and cannot be a host name",
            ),
            (
                "10.0.0.256",
                "is not an IP address and cannot be a host name",
            ),
            (
                "192.0.2/24",
                "is no network: no IP address before the \"/\"",
            ),
            (
                "10.0.0.0-10.0.0.9",
                "is a range of addresses; write networks, such as 10.0.0.0/29",
            ),
            ("2001:db8::g", "is not an IPv6 address"),
            (
                "ann@example.com",
                "is a mail address; this list is of client hosts",
            ),
            (
                "*.example.com",
                "has a wildcard, which only \"refile:\" data sets know",
            ),
            (
                "exa mple.com",
                "is more than one entry; separate entries by commas",
            ),
            (
                "a..b",
                "is neither a host name, nor a .domain, an IP address or a network",
            ),
            ("/etc", "is no network: no IP address before the \"/\""),
        ] {
            let (_, errors, _) = open("list", &format!("127.0.0.1, {entry}"));
            assert_eq!(errors.len(), 1, "{entry}: {errors:?}");
            let wanted = format!("c:7: InternalHosts: \"{entry}\" {fault}");
            assert!(errors[0].starts_with(&wanted), "{}", errors[0]);
            if !entry.contains(' ') {
                let (_, errors, _) = open("file", &format!("127.0.0.1\n{entry}\n"));
                assert!(
                    errors[0].starts_with(&format!("T:2: InternalHosts: \"{entry}\"")),
                    "{errors:?}"
                );
            }
        }
    }

    #[test]
    fn host_bits_and_everybody_are_warned_of() {
        let (_, errors, warnings) = open(
            "file",
            "192.168.7.1/24\n0.0.0.0/0\n::/0\n10.0.0.1 mail\n!0.0.0.0/0\n",
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            warnings,
            [
                "T:1: InternalHosts: \"192.168.7.1/24\" has bits set behind its prefix; taken as 192.168.7.0/24",
                "T:2: InternalHosts: \"0.0.0.0/0\" matches every host",
                "T:3: InternalHosts: \"::/0\" matches every host",
                "T:4: InternalHosts: \"mail\" after \"10.0.0.1\" means nothing here: one entry on a line",
            ]
        );
    }

    #[test]
    fn a_refile_has_the_same_entries_and_patterns() {
        let (list, errors, warnings) = open(
            "refile",
            "127.0.0.1\n10.0.0.0/8\n!10.1.*\n!bad.*\n192.168.*\n*.example.com\n",
        );
        assert_eq!((errors, warnings), (vec![], vec![]));
        for (name, address, wanted) in [
            ("h", "127.0.0.1", true),
            ("h", "10.1.2.3", true),
            ("h", "192.168.3.4", true),
            ("h", "193.168.3.4", false),
            ("a.example.com", "203.0.113.1", true),
            ("bad.example.com", "127.0.0.1", false),
            ("example.com", "203.0.113.1", false),
        ] {
            assert_eq!(contains(&list, name, address), wanted, "{name} {address}");
        }
        let (list, _, warnings) = open("refile", "*\n");
        assert!(contains(&list, "x", "203.0.113.1"));
        assert_eq!(warnings.len(), 1);
    }
}
