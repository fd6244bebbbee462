//! Key records from the DNS, behind one trait (RFC 6376 section 3.6.2, RFC 8616).
//!
//! [`KeySource`] is the seam: [`Resolver`] asks name servers and remembers what they said, [`RecordsFile`] answers from
//! a file, for tests and for `dkim-verify --records`. Both give parsed answers, shared, so that a key is parsed once
//! however many messages it signed. What an answer means for a signature is for `dkim-core`; how long a message may
//! wait is for the caller, who drops the future or sets the deadline of [`look_up_all`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dkim_core::domain_name::is_domain;
use dkim_core::key_record::KeyAnswer;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

mod cache;
mod hickory;
mod look_ups;
mod records_file;
mod resolver;

pub use cache::CacheLimits;
pub use look_ups::{DnsTrouble, LookUpCounts, LookUps};
pub use records_file::{Format, LineFault, RecordsFile, RecordsFileError};
pub use resolver::{
    NameserverError, Resolver, ResolverError, SYSTEM_CONFIGURATION, parse_nameserver,
};

/// Where key records come from.
pub trait KeySource: Send + Sync {
    /// What is known of the key records at `name` (`selector._domainkey.domain`, U-labels or A-labels, without or with
    /// a final dot, letters without case).
    ///
    /// Always answers, and in bounded time of its own; trouble is an answer too. A name that the DNS cannot hold is not
    /// asked for: it does not exist.
    fn lookup<'a>(&'a self, name: &'a str) -> LookupFuture<'a>;

    /// The same, asked anew and with what else was told: for who looks after records, and not for mail. Unless the source
    /// says more, it is the answer alone.
    fn inspect<'a>(&'a self, name: &'a str) -> InspectFuture<'a> {
        Box::pin(async move { Inspected::bare(self.lookup(name).await) })
    }
}

/// The answer to come; dropping it gives the question up.
pub type LookupFuture<'a> = Pin<Box<dyn Future<Output = Arc<KeyAnswer>> + Send + 'a>>;

/// The same with what else was told.
pub type InspectFuture<'a> = Pin<Box<dyn Future<Output = Inspected> + Send + 'a>>;

/// An answer, and what else was told with it.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// The answer.
    pub answer: Arc<KeyAnswer>,
    /// Where the records are, if one or more CNAMEs lead there.
    pub cname: Option<String>,
    /// How long the answer holds, by the answerer's word.
    pub ttl: Option<Duration>,
}

impl Inspected {
    /// `answer`, with which no more was told.
    pub fn bare(answer: Arc<KeyAnswer>) -> Self {
        Self {
            answer,
            cname: None,
            ttl: None,
        }
    }
}

/// Starts the look-up of all `names` at once and gives each answer as it comes, with its place in `names`; what has not
/// come at `deadline` is answered as failed. Dropping the set gives up what is still under way.
///
/// Must be called within a tokio runtime.
pub fn look_up_all(
    source: &Arc<dyn KeySource>,
    names: Vec<String>,
    deadline: Instant,
) -> JoinSet<(usize, Arc<KeyAnswer>)> {
    let mut lookups = JoinSet::new();
    for (index, name) in names.into_iter().enumerate() {
        let source = Arc::clone(source);
        lookups.spawn(async move {
            let answer = match timeout_at(deadline, source.lookup(&name)).await {
                Ok(answer) => answer,
                Err(_) => Arc::new(KeyAnswer::Unavailable(
                    "no answer from the DNS in time".into(),
                )),
            };
            (index, answer)
        });
    }
    lookups
}

/// `name` as it is asked for: U-labels turned into A-labels (RFC 8616 section 4), lower case, no final dot; `None` if
/// the DNS cannot hold it.
fn query_name(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    // No 63 octets of an A-label stand for more than as many characters.
    if name.len() > 4 * 253 {
        return None;
    }
    // One label at a time: an ASCII label, "_domainkey" above all, is not for IDNA to judge.
    let labels: Option<Vec<_>> = name.split('.').map(a_label).collect();
    labels
        .map(|labels| labels.join("."))
        .filter(|name| is_domain(name.as_bytes()))
}

fn a_label(label: &str) -> Option<String> {
    if label.is_ascii() {
        return Some(label.to_ascii_lowercase());
    }
    let ascii = idna::domain_to_ascii(label).ok()?;
    // What IDNA would map to something else (a soft hyphen to nothing, wide letters to narrow ones) is no U-label, and
    // must not be taken for the name it resembles.
    let (unicode, well_formed) = idna::domain_to_unicode(&ascii);
    (well_formed.is_ok() && unicode == label.to_lowercase()).then_some(ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u_labels_become_a_labels_and_the_rest_stays() {
        for (name, want) in [
            ("s._domainkey.example.org", "s._domainkey.example.org"),
            ("S._DomainKey.EXAMPLE.org.", "s._domainkey.example.org"),
            (
                "_s_1.a-b.xn--bcher-kva.example",
                "_s_1.a-b.xn--bcher-kva.example",
            ),
            // No A-label, but nothing that the DNS could not hold.
            ("xn--a.example", "xn--a.example"),
            ("r3---sn.example", "r3---sn.example"),
            (
                "schl\u{fc}ssel._domainkey.b\u{fc}cher.example",
                "xn--schlssel-95a._domainkey.xn--bcher-kva.example",
            ),
            ("B\u{dc}CHER.example", "xn--bcher-kva.example"),
            ("fu\u{df}.example", "xn--fu-hia.example"),
            (
                "\u{4f8b}\u{3048}.\u{30c6}\u{30b9}\u{30c8}",
                "xn--r8jz45g.xn--zckzah",
            ),
        ] {
            assert_eq!(query_name(name).as_deref(), Some(want), "{name}");
        }
    }

    #[test]
    fn what_the_dns_cannot_hold_is_no_name() {
        let long_label = "a".repeat(64) + ".example";
        let long_a_label = "\u{fc}".repeat(60) + ".example";
        let long_name = "a.".repeat(127) + "a";
        let huge = "\u{fc}".repeat(100_000);
        for name in [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a b",
            "a\0b",
            "a\tb",
            "*.a",
            "a\\.b",
            "a/b",
            "a@b",
            "a(b",
            &long_label,
            &long_a_label,
            &long_name,
            &huge,
            "\u{ad}.example",
            "exam\u{ad}ple.org",
            "\u{ff45}xample.org",
            "a\u{3002}b",
            "\u{2024}a",
            "xn--\u{fc}",
            "\u{200f}a.example",
            "\u{fffd}.example",
        ] {
            assert_eq!(query_name(name), None, "{name:?}");
        }
    }
}
