//! Asking name servers for TXT records by hickory-resolver: UDP with EDNS, TCP when an answer is truncated, CNAMEs
//! followed, search domains never tried.
//!
//! Each server has a hickory resolver of its own, so that a failure has a name: the next server is asked as soon as one
//! fails, or stays silent for its share of the time, and the first usable answer counts, late ones included. The server
//! that answered last is asked first. Servers that answer wrongly on purpose are not found out here: there is no
//! DNSSEC validation, and the way to the name server is trusted. Who wants to know whether a resolver has validated an
//! answer can ask for that, too; nothing but what a tool says depends on it.
//!
//! Only this file knows hickory, whose interface changes with each minor version.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dkim_core::key_record::KeyAnswer;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer};
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::{DnsRequest, DnsRequestOptions, Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{NameServerPool, PoolContext, TlsConfig, TokioResolver};
use tokio::sync::Semaphore;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::cache::Answered;
use super::resolver::{DNS_PORT, ResolverError};

/// What the configuration says about asking.
pub(super) struct Options {
    /// How long to wait for one server before the next is asked too; `None` for its share of the time.
    patience: Option<Duration>,
    /// Whether a server is asked again after an error.
    second_try: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patience: None,
            second_try: true,
        }
    }
}

/// The addresses that a resolv.conf(5) names, and what it says about asking them; an error is hickory's sentence.
pub(super) fn parse_system_configuration(text: &[u8]) -> Result<(Vec<IpAddr>, Options), String> {
    let (configuration, options) = parse_resolv_conf(text).map_err(|error| error.to_string())?;
    let addresses = configuration
        .name_servers()
        .iter()
        .map(|server| server.ip)
        .collect();
    let options = Options {
        patience: Some(options.timeout),
        second_try: options.attempts > 1,
    };
    Ok((addresses, options))
}

/// The name servers, as a group that answers.
pub(super) struct Servers {
    list: Vec<Server>,
    last_good: AtomicUsize,
    /// How long one server is waited for before the next is asked too.
    patience: Duration,
    timeout: Duration,
    under_way: Semaphore,
}

impl Servers {
    /// Nothing is asked yet.
    pub(super) fn new(
        addresses: &[SocketAddr],
        options: Options,
        timeout: Duration,
    ) -> Result<Self, ResolverError> {
        let list = addresses
            .iter()
            .map(|&address| Server::new(address, timeout, options.second_try))
            .collect::<Result<Vec<_>, _>>()?;
        let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
        let share = timeout / count.saturating_add(1);
        Ok(Self {
            list,
            last_good: AtomicUsize::new(0),
            patience: options
                .patience
                .map_or(share, |patience| patience.min(share)),
            timeout,
            under_way: Semaphore::new(MAX_UNDER_WAY),
        })
    }

    /// Whether all of them are on this machine.
    pub(super) fn are_here(&self) -> bool {
        let mut addresses = self.list.iter().map(|server| server.configuration.ip);
        addresses.all(|ip| ip.is_loopback())
    }

    /// Whether the server that answered last says that it has validated the TXT records of `name` by DNSSEC; `None` if it
    /// does not answer.
    pub(super) async fn validates(&self, name: &str) -> Option<bool> {
        let name = Name::from_ascii(format!("{name}.")).ok()?;
        let server = self.list.get(self.last_good.load(Ordering::Relaxed))?;
        let deadline = Instant::now() + self.timeout;
        timeout_at(deadline, server.validates(name)).await.ok()?
    }

    /// The TXT records of `name`; takes at most the time allowed for one look-up.
    pub(super) async fn ask(&self, name: &str) -> Answered {
        let deadline = Instant::now() + self.timeout;
        let Ok(Ok(_permit)) = timeout_at(deadline, self.under_way.acquire()).await else {
            return failed("too many look-ups at one time".into());
        };
        let name = match Name::from_ascii(format!("{name}.")) {
            Ok(name) => name,
            Err(error) => return failed(error.to_string()),
        };
        let first = self.last_good.load(Ordering::Relaxed);
        let mut to_ask = (0..self.list.len())
            .map(|offset| (first + offset) % self.list.len())
            .peekable();
        let mut silent: Vec<(Id, &str)> = Vec::new();
        let mut faults = Vec::new();
        let mut tries = JoinSet::new();
        loop {
            if let Some(index) = to_ask.next() {
                let server = &self.list[index];
                let answer = server.ask(name.clone());
                let task = tries.spawn(async move { (index, answer.await) });
                silent.push((task.id(), &server.label));
            }
            let until = if to_ask.peek().is_some() {
                deadline.min(Instant::now() + self.patience)
            } else {
                deadline
            };
            let (task, fault) = match timeout_at(until, tries.join_next_with_id()).await {
                Ok(Some(Ok((_, (index, Ok(answered)))))) => {
                    self.last_good.store(index, Ordering::Relaxed);
                    return answered;
                }
                Ok(Some(Ok((task, (_, Err(fault)))))) => (task, fault),
                Ok(Some(Err(error))) => (error.id(), "an answer made the resolver stumble".into()),
                Ok(None) => break,
                Err(_) if until == deadline => break,
                Err(_) => continue,
            };
            silent.retain(|(other, _)| *other != task);
            faults.push(fault);
        }
        if !silent.is_empty() {
            let labels: Vec<_> = silent.iter().map(|(_, label)| *label).collect();
            faults.push(format!(
                "no answer from {} within {}",
                labels.join(" and "),
                seconds(self.timeout)
            ));
        }
        failed(faults.join("; "))
    }
}

/// Look-ups at one time; each may hold a few sockets. What is beyond waits, within its time.
const MAX_UNDER_WAY: usize = 256;

/// As many CNAMEs as hickory follows.
const MAX_CNAMES: usize = 8;

fn failed(reason: String) -> Answered {
    Answered::bare(KeyAnswer::Unavailable(reason))
}

/// `duration` as people write it.
fn seconds(duration: Duration) -> String {
    let tenths = (duration.as_secs_f64() * 10.0).round() / 10.0;
    format!("{tenths} s")
}

/// One name server.
struct Server {
    /// The address as operators write it, the port only when it is not 53.
    label: String,
    configuration: NameServerConfig,
    hickory: TokioResolver,
}

impl Server {
    fn new(
        address: SocketAddr,
        timeout: Duration,
        second_try: bool,
    ) -> Result<Self, ResolverError> {
        let mut server = NameServerConfig::udp_and_tcp(address.ip());
        for connection in &mut server.connections {
            connection.port = address.port();
        }
        let mut builder = TokioResolver::builder_with_config(
            ResolverConfig::from_name_servers(vec![server.clone()]),
            TokioRuntimeProvider::default(),
        );
        let options = builder.options_mut();
        // Never the first to give up: who asks does, and knows what to say.
        options.timeout = timeout.saturating_mul(2);
        // After an error of the server or the network; a lost packet is sent again within one attempt.
        options.attempts = usize::from(second_try);
        options.edns0 = true;
        // Ours holds parsed keys, and failures too.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        let hickory = builder.build().map_err(|error| ResolverError::SetUp {
            server: address,
            reason: error.to_string(),
        })?;
        let label = if address.port() == DNS_PORT {
            address.ip().to_string()
        } else {
            address.to_string()
        };
        Ok(Self {
            label,
            configuration: server,
            hickory,
        })
    }

    /// Whether the server says that it has validated the TXT records of `name`. Resolvers tell only who asks by the same
    /// bit (RFC 6840 section 5.7), which hickory's look-ups cannot.
    async fn validates(&self, name: Name) -> Option<bool> {
        let context = PoolContext::new(self.hickory.options().clone(), TlsConfig::new().ok()?);
        let pool = NameServerPool::from_config(
            [self.configuration.clone()],
            Arc::new(context),
            TokioRuntimeProvider::default(),
        );
        let query = Query::query(name, RecordType::TXT);
        let mut request = DnsRequest::from_query(query, DnsRequestOptions::default());
        request.metadata.authentic_data = true;
        let response = pool.send(request).first_answer().await.ok()?;
        Some(response.metadata.authentic_data)
    }

    /// What this server says about the TXT records of `name`; an error is a fault that another server may not have.
    fn ask(&self, name: Name) -> impl Future<Output = Result<Answered, String>> + Send + 'static {
        let (hickory, label) = (self.hickory.clone(), self.label.clone());
        async move {
            match hickory.lookup(name.clone(), RecordType::TXT).await {
                Ok(lookup) => Ok(found(&name, &lookup).unwrap_or_else(|| endless(&label))),
                Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                    absent(&hickory, &label, none).await
                }
                Err(error) => Err(fault(&label, &error)),
            }
        }
    }
}

/// The TXT records where the CNAMEs from `name` end; `None` if they do not.
///
/// Owners are compared here again, as hickory also passes on what it was not asked for.
fn found(name: &Name, lookup: &Lookup) -> Option<Answered> {
    let answers = lookup.answers();
    let mut owner = name;
    let mut steps = 0;
    while let Some(target) = answers.iter().find_map(|record| cname_of(record, owner)) {
        owner = target;
        steps += 1;
        if steps > MAX_CNAMES {
            return None;
        }
    }
    let records: Vec<Vec<u8>> = answers
        .iter()
        .filter(|record| record.name == *owner)
        .filter_map(|record| {
            if let RData::TXT(txt) = &record.data {
                Some(txt.txt_data.concat())
            } else {
                None
            }
        })
        .collect();
    Some(Answered {
        answer: KeyAnswer::from_txt(&records),
        cname: (steps > 0).then(|| plain(owner)),
        ttl: answers
            .iter()
            .map(|record| record.ttl)
            .min()
            .map(|ttl| Duration::from_secs(ttl.into())),
        octets: records.iter().map(Vec::len).sum(),
    })
}

/// `name` in lower case, without the final dot.
fn plain(name: &Name) -> String {
    let text = name.to_ascii().to_ascii_lowercase();
    text.trim_end_matches('.').to_owned()
}

fn cname_of<'a>(record: &'a Record, owner: &Name) -> Option<&'a Name> {
    match &record.data {
        RData::CNAME(target) if record.name == *owner => Some(&target.0),
        _ => None,
    }
}

/// Which absence it is.
async fn absent(hickory: &TokioResolver, label: &str, none: NoRecords) -> Result<Answered, String> {
    let ttl = none.negative_ttl.map(|ttl| Duration::from_secs(ttl.into()));
    match none.response_code {
        ResponseCode::NXDomain => Ok(Answered {
            ttl,
            ..Answered::bare(KeyAnswer::NoName)
        }),
        ResponseCode::NoError => {
            // hickory calls a chain of CNAMEs that it gave up on an absence as well. A zone that knows of an absence
            // says so with its SOA; without one, a CNAME where hickory stopped tells that the chain goes on.
            if none.soa.is_none() && leads_on(hickory, none.query.name()).await {
                return Ok(endless(label));
            }
            Ok(Answered {
                ttl,
                ..Answered::bare(KeyAnswer::NoRecord)
            })
        }
        code => Err(answered(label, code)),
    }
}

fn endless(label: &str) -> Answered {
    failed(format!(
        "{label} answered with CNAMEs that do not end within {MAX_CNAMES} steps"
    ))
}

async fn leads_on(hickory: &TokioResolver, name: &Name) -> bool {
    match hickory.lookup(name.clone(), RecordType::CNAME).await {
        Ok(lookup) => lookup
            .answers()
            .iter()
            .any(|record| cname_of(record, name).is_some()),
        Err(_) => false,
    }
}

/// The sentence for a fault of the server `label` or of the way to it.
fn fault(label: &str, error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::ResponseCode(code)) => answered(label, *code),
        NetError::Timeout => format!("no answer from {label}"),
        NetError::Io(error) => format!("{label} cannot be reached: {error}"),
        NetError::Proto(error) => format!("{label} gave an answer that cannot be read: {error}"),
        NetError::Truncated => {
            format!("{label} gave a truncated answer by UDP and no whole one by TCP")
        }
        NetError::NoConnections => {
            format!("{label} cannot be reached: there is no way to it from this machine's network")
        }
        other => format!("{label}: {other}"),
    }
}

fn answered(label: &str, code: ResponseCode) -> String {
    match code {
        ResponseCode::FormErr => format!("{label} answered FORMERR"),
        ResponseCode::ServFail => format!("{label} answered SERVFAIL"),
        ResponseCode::NotImp => format!("{label} answered NOTIMP"),
        ResponseCode::Refused => format!("{label} answered REFUSED"),
        code => format!("{label} answered with error {}", u16::from(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_system_configuration_count() {
        const TIMEOUT: Duration = Duration::from_secs(6);
        let servers = "nameserver 192.0.2.1\nnameserver 2001:db8::1\n";
        for (line, patience, attempts) in [
            ("", TIMEOUT / 3, 1),
            ("options timeout:1 attempts:1\n", Duration::from_secs(1), 0),
            ("options timeout:30 attempts:5\n", TIMEOUT / 3, 1),
        ] {
            let text = format!("{servers}{line}");
            let (addresses, options) = parse_system_configuration(text.as_bytes()).unwrap();
            let addresses: Vec<_> = addresses
                .into_iter()
                .map(|ip| SocketAddr::new(ip, DNS_PORT))
                .collect();
            let servers = Servers::new(&addresses, options, TIMEOUT).unwrap();
            assert_eq!(servers.patience, patience, "{line}");
            for (server, label) in servers.list.iter().zip(["192.0.2.1", "2001:db8::1"]) {
                assert_eq!(server.label, label);
                assert_eq!(server.hickory.options().attempts, attempts, "{line}");
                assert!(server.hickory.options().edns0, "{line}");
            }
        }
    }

    #[test]
    fn times_are_written_as_people_write_them() {
        for (milliseconds, want) in [(5000, "5 s"), (250, "0.3 s"), (1500, "1.5 s"), (0, "0 s")] {
            assert_eq!(seconds(Duration::from_millis(milliseconds)), want);
        }
    }

    #[test]
    fn a_server_without_a_way_to_it_is_told_in_words() {
        let told = fault("192.0.2.1", &NetError::NoConnections);
        assert!(
            told.starts_with("192.0.2.1 cannot be reached: there is no way"),
            "{told}"
        );
    }
}
