//! Running the cases, and reading what gungraun says of them: one JSON object a case, one a line.

use super::stored::Setting;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::process::{Command, Stdio};

/// What was counted, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// On what the counts depend.
    pub(super) setting: Setting,
    /// By the names of the cases: `group::function::id`.
    pub(super) cases: BTreeMap<String, Case>,
}

/// One case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Its instructions.
    pub(super) count: u64,
    /// The folder in which callgrind's profile lies.
    pub(super) folder: String,
}

/// Runs every case, in processes of their own, by cargo.
pub(super) fn measure() -> Result<Measured, MeasuredError> {
    let setting = setting()?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Of the whole workspace, so that all is built with the same features as for its tests, and not for a second time.
    let run = Command::new(cargo)
        .args(["bench", "--quiet", "--workspace"])
        .args(["--bench", "instructions", "--", "--output-format=json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(MeasuredError::Cargo)?;
    if !run.status.success() {
        return Err(MeasuredError::Failed);
    }
    let cases = read(&String::from_utf8_lossy(&run.stdout))?;
    Ok(Measured { setting, cases })
}

fn setting() -> Result<Setting, MeasuredError> {
    let valgrind = Command::new("valgrind")
        .arg("--version")
        .output()
        .map_err(MeasuredError::Valgrind)?;
    let valgrind = String::from_utf8_lossy(&valgrind.stdout);
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .unwrap_or("unknown");
    let settings = [
        ("rustc", env!("DKIM_BENCHES_RUSTC")),
        ("valgrind", valgrind.trim()),
        ("system", system.trim_matches('"')),
        ("processor", processor()),
    ];
    Ok(settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into())
}

/// What kind of code runs: valgrind knows vectors of 256 bits at most.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return "x86_64 without AVX2";
    }
    env::consts::ARCH
}

fn read(lines: &str) -> Result<BTreeMap<String, Case>, MeasuredError> {
    let mut cases = BTreeMap::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let summary: Summary = serde_json::from_str(line).map_err(MeasuredError::Json)?;
        let path = summary.module_path;
        let path = path.strip_prefix("instructions::").unwrap_or(&path);
        let name = match summary.id {
            Some(id) => format!("{path}::{id}"),
            None => path.to_owned(),
        };
        let counts = summary.profiles.into_iter();
        let count = counts
            .filter_map(|profile| profile.data.total.metrics.instructions)
            .map(|metric| metric.values.new)
            .sum();
        if count == 0 {
            return Err(MeasuredError::Nothing(name));
        }
        let folder = summary.output_dir;
        cases.insert(name, Case { count, folder });
    }
    if cases.is_empty() {
        return Err(MeasuredError::NoCases);
    }
    Ok(cases)
}

/// As much of gungraun's summary, version 7, as is wanted.
#[derive(Deserialize)]
struct Summary {
    module_path: String,
    id: Option<String>,
    output_dir: String,
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    metrics: Metrics,
}

#[derive(Deserialize)]
struct Metrics {
    #[serde(rename = "Ir")]
    instructions: Option<Metric>,
}

#[derive(Deserialize)]
struct Metric {
    values: Values,
}

/// There are also `old` ones, of an earlier run.
#[derive(Deserialize)]
struct Values {
    new: u64,
}

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeasuredError {
    #[error("valgrind: {0}; Debian's package of that name brings it")]
    Valgrind(io::Error),
    #[error("cargo: {0}")]
    Cargo(io::Error),
    #[error(
        "the cases could not be run; gungraun-runner has to be of the same version as gungraun, and `make \
         gungraun-runner` installs it"
    )]
    Failed,
    #[error("what gungraun says of a case cannot be understood: {0}")]
    Json(serde_json::Error),
    #[error("{0}: no instruction was counted")]
    Nothing(String),
    #[error("no case was run")]
    NoCases,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As gungraun 0.20 words it, shortened.
    fn line(id: &str, count: u64, old: &str) -> String {
        format!(
            r#"{{"baselines":[null,null],"function_name":"sign","group":"messages","id":{id},"module_path":"instructions::messages::sign","output_dir":"target/gungraun/sign","profiles":[{{"data":{{"parts":[],"total":{{"metrics":{{"Ir":{{"values":{{"new":{count}{old}}}}}}},"regressions":[]}}}},"tool":"Callgrind"}}],"version":"7"}}"#
        )
    }

    #[test]
    fn a_line_is_a_case_with_or_without_an_earlier_run() {
        let lines = [
            line("\"text_4k\"", 67200, ""),
            String::new(),
            line("\"long\"", 5, ",\"old\":6"),
            line("null", 9, ""),
        ];
        let cases = read(&lines.join("\n")).unwrap();
        let counts: Vec<(&str, u64)> = cases
            .iter()
            .map(|(n, case)| (n.as_str(), case.count))
            .collect();
        assert_eq!(
            counts,
            [
                ("messages::sign", 9),
                ("messages::sign::long", 5),
                ("messages::sign::text_4k", 67200)
            ]
        );
        assert_eq!(cases["messages::sign::long"].folder, "target/gungraun/sign");
    }

    #[test]
    fn nothing_counted_is_an_error() {
        for (lines, error) in [
            (String::new(), "no case was run"),
            (
                line("\"text_4k\"", 0, ""),
                "messages::sign::text_4k: no instruction was counted",
            ),
        ] {
            assert_eq!(read(&lines).unwrap_err().to_string(), error);
        }
        assert!(matches!(read("{}"), Err(MeasuredError::Json(_))));
    }
}
