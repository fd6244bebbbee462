//! Reading what `--json` gave, with the place of whatever is wrong in it.

use crate::perf::outcome::Outcome;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// All runs in a file: one JSON object, or several one after the other.
///
/// # Errors
/// A file that cannot be read or holds something else, and a run in which something failed: its figures mean nothing.
pub(super) fn load(path: &Path) -> Result<Vec<Outcome>, LoadError> {
    let octets = fs::read(path).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut outcomes = Vec::new();
    for outcome in serde_json::Deserializer::from_slice(&octets).into_iter::<Outcome>() {
        let outcome = outcome.map_err(|error| LoadError::json(path, &error))?;
        if outcome.failed > 0 || outcome.messages == 0 {
            return Err(LoadError::FailedRun {
                path: path.to_owned(),
                failed: outcome.failed,
            });
        }
        let rates = [outcome.messages_per_second, outcome.messages_per_cpu_second];
        if !rates
            .iter()
            .chain(&outcome.machine.mhz)
            .all(|figure| *figure > 0.0)
        {
            return Err(LoadError::NoFigure(path.to_owned()));
        }
        outcomes.push(outcome);
    }
    if outcomes.is_empty() {
        return Err(LoadError::Empty(path.to_owned()));
    }
    Ok(outcomes)
}

/// Why a file is no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// There is something else in it.
    #[error("{}: line {line}, column {column}: {what}; a run of t-signperf or t-verifyperf with --json is expected", path.display())]
    Json {
        path: PathBuf,
        line: usize,
        column: usize,
        what: String,
    },
    /// There is nothing in it.
    #[error("{}: empty; a run of t-signperf or t-verifyperf with --json is expected", .0.display())]
    Empty(PathBuf),
    /// What it measured was not what it should have been.
    #[error("{}: a run in which {failed} failed, so that its figures mean nothing", path.display())]
    FailedRun { path: PathBuf, failed: u64 },
    /// A clock or a rate that no run has, and that shares cannot be made of.
    #[error("{}: a clock or messages per second that are not above 0", .0.display())]
    NoFigure(PathBuf),
}

impl LoadError {
    fn json(path: &Path, error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let what = error.to_string();
        // It ends in the place, which stands at the front here.
        let place = format!(" at line {line} column {column}");
        Self::Json {
            path: path.to_owned(),
            line,
            column,
            what: what.strip_suffix(&place).unwrap_or(&what).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::outcome::tests::outcome;
    use std::io::Write;

    fn load_octets(octets: &str) -> Result<Vec<Outcome>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(octets.as_bytes()).unwrap();
        let path = file.path().display().to_string();
        load(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn a_file_may_hold_several_runs() {
        let json = serde_json::to_string_pretty(&outcome()).unwrap();
        assert_eq!(load_octets(&json), Ok(vec![outcome()]));
        let both = load_octets(&format!("{json}\n{json}\n")).unwrap();
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let json = serde_json::to_string_pretty(&outcome()).unwrap();
        let mut failed = outcome();
        failed.failed = 3;
        let (mut still, mut slow) = (outcome(), outcome());
        still.machine.mhz = Some(0.0);
        slow.messages_per_second = -1.0;
        for (octets, wanted) in [
            ("".to_owned(), "FILE: empty; a run of"),
            (
                "\n\n7".to_owned(),
                "FILE: line 3, column 1: invalid type: integer `7`, expected struct Outcome; a run",
            ),
            (
                "{\n\"task\": 1}".to_owned(),
                "FILE: line 2, column 9: expected value; a run",
            ),
            (
                json.replace("dkim-perf-1", "dkim-perf-9"),
                "FILE: line 2, column 25: unknown variant `dkim-perf-9`, expected `dkim-perf-1`; a run",
            ),
            (
                json.replace("\"engine\": \"aws-lc\",", ""),
                "missing field `engine`; a run",
            ),
            (json[..60].to_owned(), "EOF while parsing"),
            (json.clone() + "x", "expected value; a run"),
            (
                serde_json::to_string(&failed).unwrap(),
                "FILE: a run in which 3 failed, so that its figures mean nothing",
            ),
            (
                serde_json::to_string(&still).unwrap(),
                "FILE: a clock or messages per second that are not above 0",
            ),
            (
                serde_json::to_string(&slow).unwrap(),
                "FILE: a clock or messages per second that are not above 0",
            ),
        ] {
            let error = load_octets(&octets).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
