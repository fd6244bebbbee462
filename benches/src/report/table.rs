//! Runs sorted into tables and rows, and what a row is beside the base row.

use crate::perf::Task;
use crate::perf::outcome::Outcome;
use crate::rounds::median;
use clap::ValueEnum;

/// Which messages per second are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Rate {
    /// Of the clock
    Wall,
    /// Of CPU time
    Cpu,
}

impl Rate {
    /// For headings.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Wall => "messages per second",
            Self::Cpu => "messages per second of CPU time",
        }
    }

    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Wall => outcome.messages_per_second,
            Self::Cpu => outcome.messages_per_cpu_second,
        }
    }
}

/// All rows of one workload, in the order in which their first runs were given.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) workload: String,
    pub(super) rows: Vec<Row>,
    /// The row that is 100 %, if it is here.
    pub(super) base: Option<usize>,
}

/// A machine and an engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) machine: String,
    pub(super) engine: String,
    pub(super) mhz: Option<f64>,
    pub(super) is_virtual: bool,
    pub(super) sign: Option<Figure>,
    pub(super) verify: Option<Figure>,
}

impl Row {
    /// How `--base` names it.
    pub(super) fn name(&self) -> String {
        format!("{}, {}", self.machine, self.engine)
    }

    /// What was measured of `task`.
    pub(super) fn figure(&self, task: Task) -> Option<Figure> {
        match task {
            Task::Sign => self.sign,
            Task::Verify => self.verify,
        }
    }
}

/// What was measured, and the share of the base row's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    /// Messages per second, the median of all runs.
    pub(super) rate: f64,
    /// In percent of the base row's.
    pub(super) percent: Option<f64>,
    /// The same if this row had the base row's clock.
    pub(super) corrected: Option<f64>,
}

/// Sorts `outcomes` into tables. `base` is the row that is 100 %, by the machine's label or by "LABEL, ENGINE"; in a
/// table with several rows of that label it is the first. Without it, it is the first row of each table.
///
/// # Errors
/// No row is called `base`.
pub(super) fn tables(
    outcomes: &[Outcome],
    base: Option<&str>,
    rate: Rate,
) -> Result<Vec<Table>, BaseError> {
    let mut groups: Vec<(String, Vec<Group<'_>>)> = Vec::new();
    for outcome in outcomes {
        let workload = workload(outcome);
        let place = place_or_push(
            &mut groups,
            |(known, _)| *known == workload,
            || (workload.clone(), Vec::new()),
        );
        let rows = &mut groups[place].1;
        let (machine, engine) = (machine(outcome), engine(outcome));
        let place = place_or_push(
            rows,
            |row| row.machine == machine && row.engine == engine,
            || Group {
                machine: machine.clone(),
                engine: engine.clone(),
                runs: Vec::new(),
            },
        );
        rows[place].runs.push(outcome);
    }
    let tables: Vec<Table> = groups
        .iter()
        .map(|(workload, groups)| table(workload, groups, base, rate))
        .collect();
    match base {
        Some(base) if tables.iter().all(|table| table.base.is_none()) => {
            Err(BaseError::new(base, &tables))
        }
        _ => Ok(tables),
    }
}

struct Group<'a> {
    machine: String,
    engine: String,
    runs: Vec<&'a Outcome>,
}

fn place_or_push<T>(
    all: &mut Vec<T>,
    is_it: impl FnMut(&T) -> bool,
    make: impl FnOnce() -> T,
) -> usize {
    all.iter().position(is_it).unwrap_or_else(|| {
        all.push(make());
        all.len() - 1
    })
}

fn workload(outcome: &Outcome) -> String {
    let threads = match outcome.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    format!(
        "{}, {} bits, {}, {}, {threads}",
        outcome.algorithm, outcome.key_bits, outcome.canonicalization, outcome.workload
    )
}

fn machine(outcome: &Outcome) -> String {
    outcome
        .label
        .as_ref()
        .unwrap_or(&outcome.machine.cpu)
        .clone()
}

fn engine(outcome: &Outcome) -> String {
    let mut name = outcome.engine.clone();
    if outcome.digest != "software" {
        name += &format!(" (digest on the {})", outcome.digest);
    }
    if outcome.per_message_key {
        name += " (key per message)";
    }
    name
}

fn table(workload: &str, groups: &[Group<'_>], base: Option<&str>, rate: Rate) -> Table {
    let mut rows: Vec<Row> = groups.iter().map(|group| row(group, rate)).collect();
    let base = match base {
        None => Some(0),
        Some(base) => rows
            .iter()
            .position(|row| row.machine == base || row.name() == base),
    };
    if let Some(base) = base.map(|base| rows[base].clone()) {
        for row in &mut rows {
            let clocks = base.mhz.zip(row.mhz).map(|(base, own)| base / own);
            compare(&mut row.sign, base.sign, clocks);
            compare(&mut row.verify, base.verify, clocks);
        }
    }
    Table {
        workload: workload.to_owned(),
        rows,
        base,
    }
}

fn row(group: &Group<'_>, rate: Rate) -> Row {
    let figure = |task| {
        let runs = group.runs.iter().filter(|run| run.task == task);
        let rates: Vec<f64> = runs.map(|run| rate.of(run)).collect();
        (!rates.is_empty()).then(|| Figure {
            rate: median(rates),
            percent: None,
            corrected: None,
        })
    };
    let clocks: Vec<f64> = group
        .runs
        .iter()
        .filter_map(|run| run.machine.mhz)
        .collect();
    Row {
        machine: group.machine.clone(),
        engine: group.engine.clone(),
        // Clocks that follow the load differ from run to run.
        mhz: (!clocks.is_empty()).then(|| median(clocks)),
        is_virtual: group.runs.iter().any(|run| run.machine.is_virtual),
        sign: figure(Task::Sign),
        verify: figure(Task::Verify),
    }
}

/// Sets the shares of `figure`. `clocks` is the base row's clock by this row's.
fn compare(figure: &mut Option<Figure>, base: Option<Figure>, clocks: Option<f64>) {
    if let (Some(figure), Some(base)) = (figure, base) {
        let percent = 100.0 * figure.rate / base.rate;
        figure.percent = Some(percent);
        figure.corrected = clocks.map(|clocks| percent * clocks);
    }
}

/// There is no such row.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no row is called {wanted:?}; there are {}", .rows.join("; "))]
pub(super) struct BaseError {
    wanted: String,
    rows: Vec<String>,
}

impl BaseError {
    fn new(wanted: &str, tables: &[Table]) -> Self {
        let mut rows: Vec<String> = Vec::new();
        for row in tables.iter().flat_map(|table| &table.rows) {
            let name = format!("{:?}", row.name());
            if !rows.contains(&name) {
                rows.push(name);
            }
        }
        Self {
            wanted: wanted.to_owned(),
            rows,
        }
    }
}

/// What is said under every table whose clocks may not be real.
pub(super) fn has_virtual_clock(table: &Table) -> bool {
    table
        .rows
        .iter()
        .any(|row| row.is_virtual && row.mhz.is_some())
}

/// The clock as shown, with a star if it may not be the real one.
pub(super) fn clock(row: &Row) -> String {
    match row.mhz {
        None => "-".to_owned(),
        Some(mhz) => format!("{mhz:.0}{}", if row.is_virtual { "*" } else { "" }),
    }
}

/// The note for the star.
pub(super) const VIRTUAL_CLOCK: &str =
    "* the clock a virtual machine is told; cor% is only as good as it";

/// The three cells of a figure: messages per second, %, cor%.
pub(super) fn cells(figure: Option<Figure>) -> [String; 3] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    [
        number(figure.map(|figure| figure.rate)),
        number(figure.and_then(|figure| figure.percent)),
        number(figure.and_then(|figure| figure.corrected)),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::perf::outcome::tests::outcome;

    /// Two machines: a old one of 2000 MHz that signs 1600 and verifies 8000, and a new one of 2500 MHz that signs 3000
    /// with one engine and verifies nothing, and signs 400 with another.
    pub(in crate::report) fn runs() -> Vec<Outcome> {
        let run = |label: &str, engine: &str, mhz, task, rate| {
            let mut run = outcome();
            run.label = Some(label.to_owned());
            run.engine = engine.to_owned();
            run.machine.mhz = mhz;
            run.task = task;
            run.messages_per_second = rate;
            run.messages_per_cpu_second = 2.0 * rate;
            run
        };
        vec![
            run("old", "aws-lc", Some(2000.0), Task::Sign, 1600.0),
            run("new", "aws-lc", Some(2500.0), Task::Sign, 3000.0),
            run("new", "rustcrypto", Some(2500.0), Task::Sign, 400.0),
            run("old", "aws-lc", Some(2000.0), Task::Verify, 8000.0),
            run("new", "rustcrypto", Some(2500.0), Task::Verify, 8000.0),
        ]
    }

    #[test]
    fn rows_are_compared_with_the_base_row_by_hand() {
        let tables = tables(&runs(), Some("old"), Rate::Wall).unwrap();
        assert_eq!(tables.len(), 1);
        let table = &tables[0];
        assert_eq!(
            table.workload,
            "rsa-sha256, 2048 bits, relaxed/simple, size 1024, 1 thread"
        );
        assert_eq!(table.base, Some(0));
        let shown: Vec<_> = table
            .rows
            .iter()
            .map(|row| {
                let [sign, verify] = [cells(row.sign), cells(row.verify)];
                format!(
                    "{} {} {} {}",
                    row.name(),
                    clock(row),
                    sign.join(" "),
                    verify.join(" ")
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "old, aws-lc 2000 1600 100 100 8000 100 100",
                // 3000 / 1600 = 187.5 %; by 2000 / 2500 that is 150 %.
                "new, aws-lc 2500 3000 188 150 - - -",
                // 400 / 1600 = 25 %, 20 % by clock; 100 % and 80 %.
                "new, rustcrypto 2500 400 25 20 8000 100 80",
            ]
        );
    }

    #[test]
    fn the_base_is_named_by_machine_or_by_machine_and_engine() {
        let base = |name| tables(&runs(), name, Rate::Wall).map(|tables| tables[0].base);
        assert_eq!(base(None), Ok(Some(0)));
        assert_eq!(base(Some("new")), Ok(Some(1)));
        assert_eq!(base(Some("new, rustcrypto")), Ok(Some(2)));
        assert_eq!(
            base(Some("nwe")).unwrap_err().to_string(),
            "no row is called \"nwe\"; there are \"old, aws-lc\"; \"new, aws-lc\"; \"new, rustcrypto\""
        );
    }

    #[test]
    fn workloads_have_tables_of_their_own_and_runs_of_the_same_a_median() {
        let mut runs = runs();
        for (task, rate) in [
            (Task::Sign, 1800.0),
            (Task::Sign, 1700.0),
            (Task::Verify, 5.0),
        ] {
            let mut run = runs[0].clone();
            (run.task, run.messages_per_second) = (task, rate);
            if task == Task::Verify {
                (run.key_bits, run.label, run.machine.mhz) = (4096, None, None);
            }
            runs.push(run);
        }
        let tables = tables(&runs, Some("old"), Rate::Wall).unwrap();
        // Of 1600, 1800, 1700.
        assert_eq!(
            tables[0].rows[0].sign.map(|figure| figure.rate),
            Some(1700.0)
        );
        assert_eq!(tables[1].rows[0].machine, "Some CPU");
        assert_eq!(
            (tables[1].base, clock(&tables[1].rows[0])),
            (None, "-".into())
        );
        assert_eq!(cells(tables[1].rows[0].verify), ["5", "-", "-"]);
    }

    #[test]
    fn rates_are_of_the_clock_or_of_cpu_time() {
        let tables = tables(&runs(), None, Rate::Cpu).unwrap();
        assert_eq!(cells(tables[0].rows[1].sign), ["6000", "188", "150"]);
    }

    #[test]
    fn keys_parsed_per_message_and_digests_by_a_token_make_other_rows() {
        let mut runs = runs();
        for (digest, per_message_key, name) in [
            ("software", true, "old, aws-lc (key per message)"),
            ("token", false, "old, aws-lc (digest on the token)"),
        ] {
            runs[1] = runs[0].clone();
            runs[1].digest = digest.into();
            runs[1].per_message_key = per_message_key;
            let tables = tables(&runs, None, Rate::Wall).unwrap();
            assert_eq!(tables[0].rows[1].name(), name);
        }
    }
}
