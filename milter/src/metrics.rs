//! What is counted for those who watch many daemons, and the text that Prometheus reads (exposition format 0.0.4).
//!
//! Counting is one atomic addition. Every label has a handful of values that are written here or in the types that they
//! come from; nothing of a message ever becomes one, so that no stranger can make them more. What is true at a moment only
//! (keys, connections) is not kept here but handed in when it is asked for.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use dkim_core::results::ResultWord;

use crate::dns::LookUpCounts;
use crate::session::{Course, Ending, Outcome};

/// The counters of a daemon, from its start to its end.
#[derive(Debug, Default)]
pub struct Metrics {
    messages: [[Counter; Ending::ALL.len()]; Course::ALL.len()],
    verdicts: [Counter; ResultWord::ALL.len()],
    signatures: [[Counter; OUTCOMES.len()]; ENGINES.len()],
    reloads: [Counter; RELOADS.len()],
    connections: Counter,
    refused_connections: Counter,
}

/// What is true at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Whether a restart would mend nothing.
    pub live: bool,
    /// Whether mail gets its signatures.
    pub ready: bool,
    /// Whether something else is wrong.
    pub degraded: bool,
    /// Keys in files and tables: those that can sign, and those that cannot.
    pub in_files: (usize, usize),
    /// Keys in tokens, likewise.
    pub in_tokens: (usize, usize),
    /// Keys whose mail is held for their records.
    pub held: usize,
    /// Connections that are open.
    pub connections: usize,
    /// Look-ups of key records.
    pub look_ups: LookUpCounts,
    /// Seconds since 1970 when it started.
    pub started: u64,
}

#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Metrics {
    /// A message has come to its end.
    pub fn message(&self, outcome: &Outcome) {
        let course = Course::ALL.iter().position(|one| *one == outcome.course);
        let ending = Ending::ALL.iter().position(|one| *one == outcome.ending);
        if let (Some(course), Some(ending)) = (course, ending) {
            self.messages[course][ending].add(1);
        }
        for (counter, count) in self.verdicts.iter().zip(outcome.verdicts) {
            counter.add(u64::from(count));
        }
    }

    /// A key of `engine` was asked for a signature, and gave it or not.
    pub fn signature(&self, engine: &str, is_made: bool) {
        let known = ENGINES.iter().position(|name| *name == engine);
        let place = known.unwrap_or(ENGINES.len() - 1);
        self.signatures[place][usize::from(!is_made)].add(1);
    }

    /// A reload was carried out or refused.
    pub fn reload(&self, is_taken: bool) {
        self.reloads[usize::from(!is_taken)].add(1);
    }

    /// A connection was accepted; its messages are refused if there are too many.
    pub fn connection(&self, is_refused: bool) {
        self.connections.add(1);
        self.refused_connections.add(u64::from(is_refused));
    }

    /// All of it, with what is true now.
    pub fn text(&self, gauges: &Gauges) -> String {
        let mut page = Page::default();
        page.family("build_info", GAUGE, "What runs.");
        page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.family(
            "start_time_seconds",
            GAUGE,
            "When it started, in seconds since 1970.",
        );
        page.sample(&[], gauges.started);
        for (name, help, value) in [
            ("live", "1 unless it is stuck.", gauges.live),
            ("ready", "1 unless mail may go unsigned.", gauges.ready),
            ("degraded", "1 if something else is wrong.", gauges.degraded),
        ] {
            page.family(name, GAUGE, help);
            page.sample(&[], u64::from(value));
        }
        self.mail(&mut page);
        self.keys(&mut page, gauges);
        self.look_ups(&mut page, &gauges.look_ups);
        page.family(
            "connections",
            GAUGE,
            "Connections from the MTA that are open.",
        );
        page.sample(&[], count(gauges.connections));
        page.family("connections_total", COUNTER, "Connections from the MTA.");
        page.sample(&[], self.connections.get());
        let help = "Connections over MaximumConnections, whose mail was deferred.";
        page.family("connections_refused_total", COUNTER, help);
        page.sample(&[], self.refused_connections.get());
        page.family(
            "reloads_total",
            COUNTER,
            "Reloads, by whether the new state was taken.",
        );
        for (outcome, counter) in RELOADS.iter().zip(&self.reloads) {
            page.sample(&[("outcome", outcome)], counter.get());
        }
        page.text
    }

    fn mail(&self, page: &mut Page) {
        let help = "Messages, by what was decided and what the MTA was told.";
        page.family("messages_total", COUNTER, help);
        for (course, endings) in Course::ALL.iter().zip(&self.messages) {
            for (ending, counter) in Ending::ALL.iter().zip(endings) {
                let labels = [("decision", course.as_str()), ("answer", ending.as_str())];
                page.sample(&labels, counter.get());
            }
        }
        let help = "Signatures of others by their results; none for messages without one.";
        page.family("verdicts_total", COUNTER, help);
        for (word, counter) in ResultWord::ALL.iter().zip(&self.verdicts) {
            page.sample(&[("result", word.as_str())], counter.get());
        }
        let help = "Signatures that keys were asked for, by who has the key.";
        page.family("signatures_total", COUNTER, help);
        for (engine, outcomes) in ENGINES.iter().zip(&self.signatures) {
            for (outcome, counter) in OUTCOMES.iter().zip(outcomes) {
                let labels = [("engine", *engine), ("outcome", *outcome)];
                page.sample(&labels, counter.get());
            }
        }
    }

    fn keys(&self, page: &mut Page, gauges: &Gauges) {
        page.family(
            "keys",
            GAUGE,
            "Keys, by where they are and whether they can sign.",
        );
        for (place, (usable, unusable)) in [("file", gauges.in_files), ("token", gauges.in_tokens)]
        {
            for (state, keys) in [("usable", usable), ("unusable", unusable)] {
                page.sample(&[("place", place), ("state", state)], count(keys));
            }
        }
        page.family(
            "keys_held",
            GAUGE,
            "Keys not signed with because of their records.",
        );
        page.sample(&[], count(gauges.held));
    }

    fn look_ups(&self, page: &mut Page, counts: &LookUpCounts) {
        let help = "Look-ups of key records: known from before (hit), or asked for (miss).";
        page.family("key_record_cache_total", COUNTER, help);
        for (outcome, count) in [("hit", counts.known), ("miss", counts.asked)] {
            page.sample(&[("outcome", outcome)], count);
        }
        let help = "What name servers said: records, none, or nothing usable.";
        page.family("key_record_answers_total", COUNTER, help);
        for (outcome, count) in [
            ("found", counts.found),
            ("absent", counts.absent),
            ("failed", counts.failed),
        ] {
            page.sample(&[("outcome", outcome)], count);
        }
    }
}

impl Counter {
    fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The text while it is written.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    /// Begins what is called `name`.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Writing to a string cannot fail; so below.
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(self.text, "# TYPE {PREFIX}{name} {kind}");
    }

    /// One value of it. Labels hold nothing that would have to be escaped.
    fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\""))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{PREFIX}{}{labels} {value}", self.name);
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

const PREFIX: &str = "dkim_milter_";
const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

/// Who has keys; the last stands for all others.
const ENGINES: [&str; 4] = ["aws-lc", "rustcrypto", "pkcs11", "other"];

/// What became of a signature.
const OUTCOMES: [&str; 2] = ["made", "failed"];

/// What became of a reload.
const RELOADS: [&str; 2] = ["taken", "refused"];

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::engine::{PrivateKey, engines};

    #[test]
    fn what_happened_is_in_the_text_and_nothing_else_is() {
        let metrics = Metrics::default();
        let before = metrics.text(&Gauges::default());
        metrics.message(&Outcome {
            course: Course::Verified,
            ending: Ending::Rejected,
            verdicts: [0, 1, 2, 0, 0, 0, 0],
        });
        metrics.signature("pkcs11", false);
        metrics.signature("made up", true);
        metrics.reload(false);
        metrics.connection(true);
        let after = metrics.text(&Gauges {
            in_tokens: (3, 4),
            ..Gauges::default()
        });
        let changed: Vec<_> = after
            .lines()
            .zip(before.lines())
            .filter_map(|(after, before)| (after != before).then_some(after))
            .collect();
        assert_eq!(
            changed,
            [
                "dkim_milter_messages_total{decision=\"verified\",answer=\"rejected\"} 1",
                "dkim_milter_verdicts_total{result=\"pass\"} 1",
                "dkim_milter_verdicts_total{result=\"fail\"} 2",
                "dkim_milter_signatures_total{engine=\"pkcs11\",outcome=\"failed\"} 1",
                "dkim_milter_signatures_total{engine=\"other\",outcome=\"made\"} 1",
                "dkim_milter_keys{place=\"token\",state=\"usable\"} 3",
                "dkim_milter_keys{place=\"token\",state=\"unusable\"} 4",
                "dkim_milter_connections_total 1",
                "dkim_milter_connections_refused_total 1",
                "dkim_milter_reloads_total{outcome=\"refused\"} 1",
            ]
        );
        assert_eq!(after.lines().count(), before.lines().count());
    }

    #[test]
    fn every_engine_that_is_built_in_signs_under_a_label() {
        let key = include_bytes!("../../dkim-core/tests/data/keys/ed25519.pem");
        let key = PrivateKey::from_octets(key).unwrap();
        for engine in engines() {
            let signs = engine.signing_key(&key).unwrap().engine();
            assert!(ENGINES.contains(&signs), "{signs}");
        }
    }
}
