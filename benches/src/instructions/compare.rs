//! What was counted beside what is stored, case by case, with the words for people.

use super::{Measured, Stored};
use std::collections::BTreeSet;
use std::fmt;

/// How far a count may be from the stored one, in percent of it.
const BOUND: u64 = 3;

/// A run beside what is stored.
#[derive(Debug)]
pub(super) struct Comparison {
    rows: Vec<Row>,
    /// Where the settings differ, in words.
    differences: Vec<String>,
}

#[derive(Debug)]
struct Row {
    name: String,
    stored: Option<u64>,
    measured: Option<u64>,
    outcome: Outcome,
    folder: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Within the bound.
    Same,
    /// Fewer, beyond the bound.
    Fewer,
    /// More, beyond the bound.
    More,
    /// A case without a stored count.
    NotStored,
    /// A stored count without its case.
    NotMeasured,
}

impl Comparison {
    pub(super) fn new(stored: &Stored, measured: &Measured) -> Self {
        let names: BTreeSet<&String> = stored.counts.keys().chain(measured.cases.keys()).collect();
        let rows = names.into_iter().map(|name| {
            let case = measured.cases.get(name);
            let (stored, measured) = (
                stored.counts.get(name).copied(),
                case.map(|case| case.count),
            );
            Row {
                name: name.clone(),
                stored,
                measured,
                outcome: outcome(stored, measured),
                folder: case.map(|case| case.folder.clone()).unwrap_or_default(),
            }
        });
        let rows = rows.collect();
        let differences = measured.setting.iter().filter_map(|(name, now)| {
            let then = stored.setting.get(name).map_or("nothing", String::as_str);
            (then != now).then(|| format!("{name}: stored {then}, measured {now}"))
        });
        Self {
            rows,
            differences: differences.collect(),
        }
    }

    /// How many cases are red.
    pub(super) fn failed(&self) -> usize {
        self.rows
            .iter()
            .filter(|row| row.outcome.is_failure())
            .count()
    }
}

fn outcome(stored: Option<u64>, measured: Option<u64>) -> Outcome {
    match (stored, measured) {
        (None, _) => Outcome::NotStored,
        (_, None) => Outcome::NotMeasured,
        (Some(stored), Some(measured)) => {
            let (scaled, bound) = (100 * u128::from(measured), u128::from(stored));
            if scaled > bound * u128::from(100 + BOUND) {
                Outcome::More
            } else if scaled < bound * u128::from(100 - BOUND) {
                Outcome::Fewer
            } else {
                Outcome::Same
            }
        }
    }
}

impl Outcome {
    fn is_failure(self) -> bool {
        match self {
            Self::Same | Self::Fewer => false,
            Self::More | Self::NotStored | Self::NotMeasured => true,
        }
    }

    /// What is to be said of it, if anything.
    fn words(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Fewer => "  fewer: store the better figure",
            Self::More => "  TOO MANY",
            Self::NotStored => "  NOT STORED",
            Self::NotMeasured => "  NOT MEASURED",
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .rows
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0);
        writeln!(f, "{:width$} {:>9} {:>9}", "", "stored", "measured")?;
        for row in &self.rows {
            let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
            let (stored, measured) = (count(row.stored), count(row.measured));
            write!(f, "{:width$} {stored:>9} {measured:>9}", row.name)?;
            if let (Some(stored), Some(measured)) = (row.stored, row.measured) {
                let percent = 100.0 * (measured as f64 / stored as f64 - 1.0);
                write!(f, "  {percent:+7.2} %")?;
            }
            writeln!(f, "{}", row.outcome.words())?;
        }
        if self.rows.iter().any(|row| row.outcome != Outcome::Same) {
            self.advice(f)?;
        }
        let failed = self.failed();
        writeln!(f, "{} passed, {failed} failed", self.rows.len() - failed)
    }
}

impl Comparison {
    fn advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nThe bound is {BOUND} %. Where a change is meant, `make instructions-store` stores it."
        )?;
        for row in self.rows.iter().filter(|row| row.outcome == Outcome::More) {
            writeln!(f, "{}: callgrind_annotate {}/*.out", row.name, row.folder)?;
        }
        if !self.differences.is_empty() {
            writeln!(
                f,
                "Not all was as when the counts were stored, and that alone may change them:"
            )?;
        }
        for difference in &self.differences {
            writeln!(f, "  {difference}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::Case;
    use super::*;

    fn compared(stored: &[(&str, u64)], measured: &[(&str, u64)], rustc: &str) -> Comparison {
        let setting = |rustc: &str| [("rustc".to_owned(), rustc.to_owned())].into();
        let stored = Stored {
            setting: setting("rustc 1.95.0"),
            counts: stored
                .iter()
                .map(|(name, count)| ((*name).into(), *count))
                .collect(),
        };
        let case = |count| Case {
            count,
            folder: "target/gungraun/f".into(),
        };
        let measured = Measured {
            setting: setting(rustc),
            cases: measured
                .iter()
                .map(|(name, count)| ((*name).into(), case(*count)))
                .collect(),
        };
        Comparison::new(&stored, &measured)
    }

    #[test]
    fn three_percent_are_allowed_and_no_more() {
        for (stored, measured, wanted) in [
            (Some(1000), Some(1000), Outcome::Same),
            (Some(1000), Some(1030), Outcome::Same),
            (Some(1000), Some(1031), Outcome::More),
            (Some(1000), Some(970), Outcome::Same),
            (Some(1000), Some(969), Outcome::Fewer),
            (Some(10), Some(11), Outcome::More),
            (Some(u64::MAX), Some(u64::MAX), Outcome::Same),
            (None, Some(5), Outcome::NotStored),
            (Some(5), None, Outcome::NotMeasured),
        ] {
            assert_eq!(outcome(stored, measured), wanted, "{stored:?} {measured:?}");
        }
    }

    #[test]
    fn a_case_that_takes_more_is_named_with_both_counts_and_percent() {
        let comparison = compared(
            &[("a::f", 100_000), ("a::g", 500)],
            &[("a::f", 105_250), ("a::g", 501)],
            "rustc 1.96.0",
        );
        assert_eq!(comparison.failed(), 1);
        assert_eq!(
            comparison.to_string(),
            "        stored  measured\n\
             a::f    100000    105250    +5.25 %  TOO MANY\n\
             a::g       500       501    +0.20 %\n\
             \n\
             The bound is 3 %. Where a change is meant, `make instructions-store` stores it.\n\
             a::f: callgrind_annotate target/gungraun/f/*.out\n\
             Not all was as when the counts were stored, and that alone may change them:\n  \
               rustc: stored rustc 1.95.0, measured rustc 1.96.0\n\
             \n\
             1 passed, 1 failed\n"
        );
    }

    #[test]
    fn fewer_is_told_and_no_failure() {
        let comparison = compared(&[("a::f", 1000)], &[("a::f", 900)], "rustc 1.95.0");
        let text = comparison.to_string();
        assert!(
            text.contains("-10.00 %  fewer: store the better figure\n"),
            "{text}"
        );
        assert!(text.ends_with("\n1 passed, 0 failed\n"), "{text}");
        assert!(!text.contains("rustc"), "{text}");
    }

    #[test]
    fn cases_come_and_go_only_with_their_counts() {
        let comparison = compared(&[("a::old", 7)], &[("a::new", 8)], "rustc 1.95.0");
        let text = comparison.to_string();
        assert!(
            text.contains("a::new         -         8  NOT STORED\n"),
            "{text}"
        );
        assert!(
            text.contains("a::old         7         -  NOT MEASURED\n"),
            "{text}"
        );
        assert!(text.ends_with("\n0 passed, 2 failed\n"), "{text}");
    }

    #[test]
    fn an_even_run_says_no_more_than_its_table() {
        let comparison = compared(&[("a::f", 1000)], &[("a::f", 1000)], "rustc 1.96.0");
        assert_eq!(
            comparison.to_string(),
            "        stored  measured\na::f      1000      1000    +0.00 %\n1 passed, 0 failed\n"
        );
    }
}
