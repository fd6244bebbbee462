//! What a run says, as data: printed as JSON by `--json`, and read back by `bench report`.

use super::Task;
use super::latency::Latency;
use super::run::Failures;
use super::stages::Stages;
use crate::machine::Machine;
use crate::versions::Versions;
use serde::{Deserialize, Serialize};

/// All that is known about one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What this is.
    pub format: Format,
    /// Signing or verifying.
    pub task: Task,
    /// What the machine is called, if somebody gave it a name.
    pub label: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// Versions of what did the work.
    pub versions: Versions,
    /// The engine's name, with the token's model and where its module was.
    pub engine: String,
    /// The token, if there was one.
    #[serde(default)]
    pub token: Option<TokenUsed>,
    /// Who computed SHA-256.
    pub digest: String,
    /// `c=`: header, then body; `as signed` where the messages brought their signatures.
    pub canonicalization: String,
    /// `a=`
    pub algorithm: String,
    /// Size of the key in bits.
    pub key_bits: u32,
    /// Whether key and key record were parsed for each message.
    pub per_message_key: bool,
    /// Which messages: `size 1024`, `mix small`.
    pub workload: String,
    /// How many different ones were worked on.
    pub distinct_messages: usize,
    /// Threads that worked.
    pub threads: usize,
    /// Length of the window asked for, in seconds.
    pub seconds: f64,
    /// Seconds of the same before it, uncounted.
    pub warmup_seconds: f64,
    /// Seconds by a monotonic clock until the last thread was done.
    pub wall_seconds: f64,
    /// CPU time of the working threads; with a token, of all threads and of the process that has its module.
    pub cpu_seconds: f64,
    /// CPU time of the whole process meanwhile.
    pub process_cpu_seconds: f64,
    /// CPU time of the process that has the token's module, if that is another.
    #[serde(default)]
    pub module_cpu_seconds: Option<f64>,
    /// How long single messages took.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// Messages that were good.
    pub messages: u64,
    /// Octets of all messages worked on.
    pub octets: u64,
    /// Good messages in a second, all threads together.
    pub messages_per_second: f64,
    /// Good messages in a second of CPU time.
    pub messages_per_cpu_second: f64,
    /// CPU time for a message worked on, in microseconds.
    pub cpu_us_per_message: f64,
    /// Megabytes (10^6 octets) worked on in a second.
    pub megabytes_per_second: f64,
    /// Peak memory of the process in octets, the messages in memory included.
    pub peak_memory: Option<u64>,
    /// Shares of the stages, if they were asked for.
    pub stages: Option<Stages>,
    /// How much was not good.
    pub failed: u64,
    /// Why, for the first few messages.
    pub failures: Vec<Failure>,
}

/// A token, and how it was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsed {
    /// The module's path.
    pub module: String,
    /// What the module says of itself, with its version.
    pub library: String,
    /// The token's model.
    pub model: String,
    /// Who made the token.
    pub manufacturer: String,
    /// The mechanism that signs.
    pub mechanism: String,
    /// Whether the module was in this process.
    pub in_process: bool,
    /// How many sessions there were to sign.
    pub sessions: Option<usize>,
}

impl TokenUsed {
    /// What the engine is called: `pkcs11 SoftHSM v2, isolated`.
    pub fn engine(&self) -> String {
        let place = match self.in_process {
            true => "in process",
            false => "isolated",
        };
        format!("pkcs11 {}, {place}", self.model)
    }
}

/// The shape of the data; another number when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// The first.
    #[serde(rename = "dkim-perf-1")]
    V1,
}

/// What was not good about a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which message.
    pub message: String,
    /// Why.
    pub reason: String,
    /// How often.
    pub times: u64,
}

impl Outcome {
    /// What was not good, with the names of messages.
    pub fn set_failures(&mut self, failures: Failures, name: impl Fn(usize) -> String) {
        self.failed = failures.count;
        let reasons = failures.reasons.into_iter();
        self.failures = reasons
            .map(|(index, (reason, times))| Failure {
                message: name(index),
                reason,
                times,
            })
            .collect();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An outcome with round numbers.
    pub(crate) fn outcome() -> Outcome {
        Outcome {
            format: Format::V1,
            task: Task::Sign,
            label: None,
            machine: Machine {
                cpu: "Some CPU".into(),
                mhz: Some(2000.0),
                is_virtual: false,
                cores: 4,
                kernel: "Linux 6.1".into(),
            },
            versions: Versions {
                dkim_core: "0.1.0".into(),
                engine: "aws-lc-rs 1.19.0".into(),
                digest: "sha2 0.11.1".into(),
                rustc: "rustc 1.95.0".into(),
            },
            engine: "aws-lc".into(),
            token: None,
            digest: "software".into(),
            canonicalization: "relaxed/simple".into(),
            algorithm: "rsa-sha256".into(),
            key_bits: 2048,
            per_message_key: false,
            workload: "size 1024".into(),
            distinct_messages: 1,
            threads: 1,
            seconds: 5.0,
            warmup_seconds: 0.5,
            wall_seconds: 5.0,
            cpu_seconds: 4.0,
            process_cpu_seconds: 4.125,
            module_cpu_seconds: None,
            latency: None,
            messages: 8000,
            octets: 16_000_000,
            messages_per_second: 1600.0,
            messages_per_cpu_second: 2000.0,
            cpu_us_per_message: 500.0,
            megabytes_per_second: 3.2,
            peak_memory: Some(8_000_000),
            stages: None,
            failed: 0,
            failures: Vec::new(),
        }
    }

    #[test]
    fn json_gives_back_what_it_was_made_of() {
        let mut outcome = outcome();
        outcome.label = Some("a \"label\"".into());
        outcome.stages = Some(Stages {
            messages: 1,
            rounds: 5,
            stages: vec![super::super::stages::Stage {
                name: "parse".into(),
                us: 1.25,
                by_difference: false,
            }],
            unexplained_us: -0.5,
            whole_us: 0.75,
        });
        let mut failures = Failures::default();
        failures.add(3, "bad".into(), 2);
        outcome.set_failures(failures, |index| format!("message {index}"));
        let json = serde_json::to_string(&outcome).unwrap();
        assert!(json.contains(r#""format":"dkim-perf-1","task":"sign""#));
        assert!(json.contains(r#"{"message":"message 3","reason":"bad","times":2}"#));
        assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
    }
}
