//! What a run came to: counts, percentiles, CPU time and memory, as text for people and as JSON.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where the milter listens.
    pub address: String,
    /// Connections at once.
    pub connections: usize,
    /// Messages over each before the next is opened.
    pub per_connection: u64,
    /// Octets of each message; of several, the mean.
    pub message_octets: usize,
    /// Messages that came back as expected.
    pub messages: u64,
    /// From the first message's start to the last one's end.
    pub seconds: f64,
    /// `messages` by `seconds`.
    pub messages_per_second: f64,
    /// From MAIL, or from the intended start where a rate was given, to the final reply. `None` without messages.
    pub latency_ms: Option<Latency>,
    /// Messages that did not, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Final replies by their letter.
    pub replies: BTreeMap<char, u64>,
    /// Header fields added, by name.
    pub headers_added: BTreeMap<String, u64>,
    /// Messages that got a DKIM-Signature.
    pub signed: u64,
    /// Messages that got an Authentication-Results with dkim=pass.
    pub dkim_pass: u64,
    /// The milter's share of the machine; `None` where its process is not known.
    pub daemon: Option<Daemon>,
    /// This program's share.
    pub generator: Generator,
}

/// Percentiles of latency, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all messages took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
    /// None took longer.
    pub max: f64,
}

/// What the milter took.
#[derive(Clone, Debug, Serialize)]
pub struct Daemon {
    /// Its process.
    pub pid: i32,
    /// With how many descendants, and itself.
    pub processes: usize,
    /// CPU time during the run, all threads. `None` where a process has ended.
    pub cpu_seconds: Option<f64>,
    /// CPU time by message.
    pub cpu_ms_per_message: Option<f64>,
    /// Messages by CPU time.
    pub messages_per_cpu_second: Option<f64>,
    /// The largest resident size ever, in octets.
    pub peak_rss: Option<u64>,
    /// Resident size at the end, in octets.
    pub rss: Option<u64>,
    /// Resident size before there were any connections of ours.
    pub rss_before: Option<u64>,
    /// How many connections were held open and idle.
    pub held: usize,
    /// Resident size with these.
    pub rss_held: Option<u64>,
}

/// What this program took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Generator {
    /// CPU time during the run.
    pub cpu_seconds: f64,
    /// Share of one core.
    pub cpu_share: f64,
}

impl Report {
    /// How many messages did not come back as expected.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

impl Latency {
    /// Of these samples, in any order; `None` for none.
    pub fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let last = samples.last()?;
        let ms = |sample: &Duration| sample.as_secs_f64() * 1000.0;
        Some(Self {
            p50: ms(percentile(&samples, 500)),
            p99: ms(percentile(&samples, 990)),
            p999: ms(percentile(&samples, 999)),
            max: ms(last),
        })
    }
}

/// The smallest of the `sorted` samples, of which there must be one, that so many of 1,000 do not exceed.
fn percentile(sorted: &[Duration], of_1000: usize) -> &Duration {
    let rank = (sorted.len() * of_1000).div_ceil(1000).max(1);
    &sorted[rank - 1]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} messages of {} octets to {}, {} connections, {} messages each",
            self.messages, self.message_octets, self.address, self.connections, self.per_connection
        )?;
        write!(
            f,
            "{:.1} msgs/s in {:.2} s",
            self.messages_per_second, self.seconds
        )?;
        if let Some(Latency {
            p50,
            p99,
            p999,
            max,
        }) = self.latency_ms
        {
            write!(
                f,
                "; latency p50 {p50:.2} ms, p99 {p99:.2} ms, p99.9 {p999:.2} ms, max {max:.2} ms"
            )?;
        }
        writeln!(f)?;
        let replies = listed(&self.replies);
        writeln!(
            f,
            "replies: {replies}; added: {}",
            listed(&self.headers_added)
        )?;
        writeln!(
            f,
            "signed: {}; dkim=pass: {}; errors: {}",
            self.signed,
            self.dkim_pass,
            self.failed()
        )?;
        for (kind, count) in &self.errors {
            writeln!(f, "  {count} x {kind}")?;
        }
        match &self.daemon {
            Some(daemon) => writeln!(f, "{daemon}")?,
            None => writeln!(f, "milter: its process is not known (--pid, --pid-file)")?,
        }
        write!(
            f,
            "milter-load: {:.3} s CPU, {:.0} % of one core",
            self.generator.cpu_seconds,
            100.0 * self.generator.cpu_share
        )
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "milter (process {}", self.pid)?;
        if self.processes > 1 {
            write!(f, " and {} of its descendants", self.processes - 1)?;
        }
        write!(f, "): ")?;
        match (
            self.cpu_seconds,
            self.cpu_ms_per_message,
            self.messages_per_cpu_second,
        ) {
            (Some(cpu), Some(ms), Some(rate)) => write!(
                f,
                "{cpu:.3} s CPU, {ms:.3} ms a message, {rate:.0} messages per CPU second"
            )?,
            (Some(cpu), ..) => write!(f, "{cpu:.3} s CPU")?,
            _ => write!(f, "has ended")?,
        }
        let mib = |octets: u64| octets as f64 / f64::from(1 << 20);
        if let (Some(peak), Some(rss)) = (self.peak_rss, self.rss) {
            write!(
                f,
                "; peak RSS {:.1} MiB, now {:.1} MiB",
                mib(peak),
                mib(rss)
            )?;
        }
        if let (1.., Some(before), Some(held)) = (self.held, self.rss_before, self.rss_held) {
            write!(
                f,
                "; {:.1} MiB with {} idle connections, {:.1} MiB before",
                mib(held),
                self.held,
                mib(before)
            )?;
        }
        Ok(())
    }
}

/// `name count, name count`, or a dash.
fn listed<K: fmt::Display>(counts: &BTreeMap<K, u64>) -> String {
    let all: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    match all.as_slice() {
        [] => "-".into(),
        all => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_so_many_do_not_exceed() {
        let ms = Duration::from_millis;
        let latency = |p50, p99, p999, max| {
            Some(Latency {
                p50,
                p99,
                p999,
                max,
            })
        };
        for (samples, wanted) in [
            (vec![], None),
            (vec![7], latency(7.0, 7.0, 7.0, 7.0)),
            (vec![4, 1, 3, 2], latency(2.0, 4.0, 4.0, 4.0)),
            (vec![5, 1, 3, 2, 4], latency(3.0, 5.0, 5.0, 5.0)),
            ((1..=100).rev().collect(), latency(50.0, 99.0, 100.0, 100.0)),
            ((1..=1000).collect(), latency(500.0, 990.0, 999.0, 1000.0)),
            (
                (1..=2000).collect(),
                latency(1000.0, 1980.0, 1998.0, 2000.0),
            ),
        ] {
            let name = format!("{samples:?}");
            let samples = samples.into_iter().map(ms).collect();
            assert_eq!(Latency::of(samples), wanted, "{name}");
        }
    }
}
