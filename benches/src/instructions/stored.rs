//! The file of stored counts: text for people, sorted, so that a change of it reads well.

use super::Measured;
use std::collections::BTreeMap;
use std::fmt;

/// On what counts depend beside the code: compiler, valgrind, system, processor; each by its name.
pub(super) type Setting = BTreeMap<String, String>;

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// Where it was counted.
    pub(super) setting: Setting,
    /// Counts by the names of the cases.
    pub(super) counts: BTreeMap<String, u64>,
}

impl Stored {
    /// What is to be stored of a run.
    pub(super) fn of(measured: &Measured) -> Self {
        let counts = measured.cases.iter();
        Self {
            setting: measured.setting.clone(),
            counts: counts
                .map(|(name, case)| (name.clone(), case.count))
                .collect(),
        }
    }

    /// Reads `# remark`, `name: value` of the setting and `case count` lines.
    pub(super) fn parse(text: &str) -> Result<Self, StoredError> {
        let mut stored = Self::default();
        let lines = text.lines().zip(1..);
        for (line, number) in lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#')) {
            let is_new = if let Some((name, value)) = line.split_once(": ") {
                let old = stored.setting.insert(name.into(), value.trim().into());
                old.is_none()
            } else {
                let (name, count) = line
                    .split_once(' ')
                    .and_then(|(name, count)| Some((name, count.trim().parse().ok()?)))
                    .filter(|(_, count)| *count > 0)
                    .ok_or(StoredError::Line(number))?;
                stored.counts.insert(name.into(), count).is_none()
            };
            if !is_new {
                return Err(StoredError::Twice(number));
            }
        }
        Ok(stored)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for (name, value) in &self.setting {
            writeln!(f, "{name}: {value}")?;
        }
        writeln!(f)?;
        let width = self.counts.keys().map(String::len).max().unwrap_or(0);
        for (name, count) in &self.counts {
            writeln!(f, "{name:width$} {count:>9}")?;
        }
        Ok(())
    }
}

const HEAD: &str = "\
# Instructions of the cases in ../benches/instructions.rs, which says what they are. `make instructions` compares with
# these; `make instructions-store` writes them, when they are meant to change: ../README.md says when that is.

";

/// Why a file of counts cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StoredError {
    /// The line with that number.
    #[error("line {0} is neither a remark, nor `name: value`, nor a case and its count")]
    Line(usize),
    /// The same.
    #[error("line {0} says something for the second time")]
    Twice(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_sorted() {
        let stored = Stored {
            setting: [("rustc".to_owned(), "rustc 1.95.0 (0 2026-04-14)".to_owned())].into(),
            counts: [
                ("b::long_name::x".to_owned(), 7),
                ("a::f".to_owned(), 1_234_567),
            ]
            .into(),
        };
        let text = stored.to_string();
        assert!(
            text.ends_with(
                "\n\nrustc: rustc 1.95.0 (0 2026-04-14)\n\na::f              1234567\nb::long_name::x         7\n"
            ),
            "{text}"
        );
        assert_eq!(Stored::parse(&text), Ok(stored));
    }

    #[test]
    fn faults_have_their_line() {
        for (text, error) in [
            ("# x\n\na::f 12\na::g\n", StoredError::Line(4)),
            ("a::f many\n", StoredError::Line(1)),
            ("a::f 0\n", StoredError::Line(1)),
            ("a::f -5\n", StoredError::Line(1)),
            ("a::f 12\na::f 12\n", StoredError::Twice(2)),
            ("rustc: 1\nrustc: 2\n", StoredError::Twice(2)),
        ] {
            assert_eq!(Stored::parse(text), Err(error), "{text}");
        }
    }
}
