//! Key records as the tools get them: from the DNS, or from a file.

use super::{EX_CONFIG, EX_IOERR, EX_NOINPUT, say};
use crate::config::Dns;
use crate::dns::{
    CacheLimits, Format, Inspected, KeySource, RecordsFile, RecordsFileError, Resolver,
    ResolverError, SYSTEM_CONFIGURATION, look_up_all, parse_nameserver,
};
use crate::shown::cause;
use dkim_core::key_record::KeyAnswer;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Whom to ask.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RecordsArguments {
    /// Take key records from FILE and not from the DNS: entries of the form NAME [TTL] [IN] TXT "STRING"..., or
    /// ! NXDOMAIN|NODATA|SERVFAIL|REFUSED|TIMEOUT NAME; a name that is not listed does not exist
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nameservers", "timeout"])]
    records: Option<PathBuf>,

    /// Name server to ask, and not those of /etc/resolv.conf; may be given more than once
    #[arg(long = "nameserver", value_name = "IP[:PORT]", value_parser = parse_nameserver)]
    nameservers: Vec<SocketAddr>,

    /// Seconds that the DNS may take for all that is looked up at once [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
}

/// Where key records come from, and something to wait with.
pub(super) struct KeyRecords {
    runtime: Runtime,
    source: Arc<dyn KeySource>,
    /// The source, if it is the DNS.
    resolver: Option<Arc<Resolver>>,
    timeout: Duration,
}

impl KeyRecords {
    /// As `arguments` say, or else a `configuration`, or else the system. Warnings go to standard error behind the name
    /// of the `tool`.
    pub(super) fn open(
        tool: &str,
        arguments: &RecordsArguments,
        configuration: Option<&Dns>,
    ) -> Result<Self, RecordsError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(RecordsError::Runtime)?;
        let timeout = match (arguments.timeout, configuration) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(dns)) => dns.timeout,
            (None, None) => TIMEOUT,
        };
        let of_file = configuration
            .filter(|_| arguments.nameservers.is_empty())
            .and_then(|dns| dns.test_public_keys.as_deref());
        let mut dns = None;
        let source: Arc<dyn KeySource> = match (&arguments.records, of_file) {
            (Some(path), _) => Arc::new(RecordsFile::read(path, Format::Zone)?),
            (None, Some(path)) => Arc::new(RecordsFile::read(path, Format::PublicKeys)?),
            (None, None) => {
                let servers = match configuration {
                    Some(dns) if arguments.nameservers.is_empty() => &dns.name_servers,
                    _ => &arguments.nameservers,
                };
                let _entered = runtime.enter();
                let resolver = Arc::new(resolver(tool, servers, timeout)?);
                dns = Some(Arc::clone(&resolver));
                resolver
            }
        };
        Ok(Self {
            runtime,
            source,
            resolver: dns,
            timeout,
        })
    }

    /// Looks all `names` up at once and gives each answer, with its place in `names`, to `take`; what is missing at the
    /// deadline is an answer too.
    pub(super) fn look_up(&self, names: Vec<String>, mut take: impl FnMut(usize, Arc<KeyAnswer>)) {
        if names.is_empty() {
            return;
        }
        self.runtime.block_on(async {
            let deadline = Instant::now() + self.timeout;
            let mut lookups = look_up_all(&self.source, names, deadline);
            while let Some(done) = lookups.join_next().await {
                // A look-up that broke down leaves its name unanswered.
                if let Ok((index, answer)) = done {
                    take(index, answer);
                }
            }
        });
    }

    /// Looks all `names` up at once, with what else is told of each; what name servers on other machines say of DNSSEC is
    /// believed if the way there `is_trusted`.
    pub(super) fn inspect(&self, names: Vec<String>, is_trusted: bool) -> Vec<Finding> {
        // The source has as much time, and knows better who did not answer.
        let deadline = Instant::now() + self.timeout + GRACE;
        let mut found = vec![Finding::late(); names.len()];
        self.runtime.block_on(async {
            let mut under_way = JoinSet::new();
            for (index, name) in names.into_iter().enumerate() {
                let (source, resolver) = (Arc::clone(&self.source), self.resolver.clone());
                under_way.spawn(async move {
                    let told = timeout_at(deadline, source.inspect(&name)).await.ok()?;
                    let mut finding = Finding {
                        told,
                        validated: None,
                    };
                    if let (Some(dns), KeyAnswer::Records(_)) = (resolver, &*finding.told.answer) {
                        let asked = timeout_at(deadline, dns.validates(&name, is_trusted)).await;
                        finding.validated = asked.ok().flatten();
                    }
                    Some((index, finding))
                });
            }
            while let Some(done) = under_way.join_next().await {
                if let Ok(Some((index, finding))) = done {
                    found[index] = finding;
                }
            }
        });
        found
    }
}

/// What was found out of one name.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// The answer, with what came with it.
    pub(super) told: Inspected,
    /// Whether DNSSEC has signed it, in the opinion of a resolver that can be believed.
    pub(super) validated: Option<bool>,
}

impl Finding {
    /// Nothing.
    fn late() -> Self {
        let answer = KeyAnswer::Unavailable("no answer from the DNS in time".to_owned());
        Self {
            told: Inspected::bare(Arc::new(answer)),
            validated: None,
        }
    }
}

/// Why nobody can be asked.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file of records is no good.
    #[error("{0}")]
    File(#[from] RecordsFileError),
    /// There is nobody to ask.
    #[error("{0}; name servers can be given with --nameserver")]
    Resolver(#[from] ResolverError),
    /// The system does not let us wait for the DNS.
    #[error("cannot begin: {}", cause(.0))]
    Runtime(io::Error),
}

impl RecordsError {
    /// The code to end with.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::File(RecordsFileError::Unreadable { .. }) => EX_NOINPUT,
            Self::File(_) | Self::Resolver(_) => EX_CONFIG,
            Self::Runtime(_) => EX_IOERR,
        }
    }
}

fn resolver(
    tool: &str,
    servers: &[SocketAddr],
    timeout: Duration,
) -> Result<Resolver, ResolverError> {
    if !servers.is_empty() {
        return Resolver::with_servers(servers, timeout, CacheLimits::default());
    }
    let path = Path::new(SYSTEM_CONFIGURATION);
    let resolver = Resolver::from_resolv_conf(path, timeout, CacheLimits::default())?;
    if let Some(warning) = resolver.warning() {
        say(tool, &format!("warning: {warning}"));
    }
    Ok(resolver)
}

const TIMEOUT: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_millis(500);
