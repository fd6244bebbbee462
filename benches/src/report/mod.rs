//! `bench report`: runs of `t-signperf` and `t-verifyperf` on several machines and engines, put side by side as the
//! table of 2009 did: messages per second, in percent of one row, and the same as if all had one clock.

mod load;
mod markdown;
mod svg;
mod table;
mod text;

use crate::exit::{EX_CANTCREAT, EX_DATAERR, EX_IOERR, EX_NOINPUT, EX_USAGE, of_clap, print};
use clap::{Parser, Subcommand, ValueEnum};
use load::{LoadError, load};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use table::{BaseError, Rate, tables};

/// What is done with figures once they are taken.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put runs of t-signperf and t-verifyperf side by side
    ///
    /// One table for each workload (algorithm, size of the key, canonicalization, messages, threads), one row for each
    /// machine and engine. % is the share of the base row's messages per second; cor% the same as if the row's clock
    /// were the base row's. Several runs of the same count as their median.
    #[command(after_help = "\
Example: bench report results/*.json --base 'my laptop, aws-lc' --format svg --out plot.svg

Exit codes:
  0   reported
  64  the command line makes no sense
  65  a file holds something else, or a run that failed
  66  a file cannot be read
  73  the report cannot be written to its file
  74  writing to standard output failed")]
    Report(ReportArguments),
}

#[derive(Debug, clap::Args)]
struct ReportArguments {
    /// Files with what --json gave, one object or several in each
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The row that is 100 %: the label of a machine, or "LABEL, ENGINE" [default: the first row of each table]
    #[arg(long, value_name = "LABEL")]
    base: Option<String>,

    /// What the machine of a file is called, instead of what the file says; repeatable
    #[arg(long = "label", value_name = "FILE=LABEL", value_parser = parse_label)]
    labels: Vec<(PathBuf, String)>,

    /// Form of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,

    /// Messages per second of the clock, or of CPU time, which tells more where other programs ran meanwhile
    #[arg(long, value_enum, default_value_t = Rate::Wall)]
    rate: Rate,

    /// Where the report goes [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Columns
    Text,
    /// Markdown tables
    Markdown,
    /// Bars, for light and dark backgrounds
    Svg,
}

fn parse_label(text: &str) -> Result<(PathBuf, String), &'static str> {
    match text.rsplit_once('=') {
        Some((file, label)) if !file.is_empty() && !label.is_empty() => {
            Ok((file.into(), label.to_owned()))
        }
        _ => Err("FILE=LABEL is wanted"),
    }
}

/// The program `bench`, with the command line of this process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return of_clap(&error),
    };
    let Command::Report(arguments) = arguments.command;
    match report(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench report: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn report(arguments: &ReportArguments) -> Result<(), ReportError> {
    let unused = |(file, _): &&(PathBuf, String)| !arguments.files.contains(file);
    if let Some((file, _)) = arguments.labels.iter().find(unused) {
        return Err(ReportError::LabelOfNoFile(file.clone()));
    }
    let mut outcomes = Vec::new();
    for file in &arguments.files {
        let label = arguments.labels.iter().find(|(of, _)| of == file);
        let mut loaded = load(file)?;
        if let Some((_, label)) = label {
            loaded
                .iter_mut()
                .for_each(|outcome| outcome.label = Some(label.clone()));
        }
        outcomes.append(&mut loaded);
    }
    let tables = tables(&outcomes, arguments.base.as_deref(), arguments.rate)?;
    let report = match arguments.format {
        ReportFormat::Text => text::render(&tables, arguments.rate),
        ReportFormat::Markdown => markdown::render(&tables, arguments.rate),
        ReportFormat::Svg => svg::render(&tables, arguments.rate),
    };
    match &arguments.out {
        None => print(&report).map_err(ReportError::Output),
        Some(path) => fs::write(path, report).map_err(|source| ReportError::Write {
            path: path.clone(),
            source,
        }),
    }
}

#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("--base: {0}")]
    Base(#[from] BaseError),
    #[error("--label: {} is not among the files", .0.display())]
    LabelOfNoFile(PathBuf),
    #[error("{}: cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl ReportError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Load(LoadError::Read { .. }) => EX_NOINPUT,
            Self::Load(_) => EX_DATAERR,
            Self::Base(_) | Self::LabelOfNoFile(_) => EX_USAGE,
            Self::Write { .. } => EX_CANTCREAT,
            Self::Output(_) => EX_IOERR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_label_belongs_to_a_file() {
        assert_eq!(
            parse_label("a=b.json=old"),
            Ok(("a=b.json".into(), "old".into()))
        );
        for text in ["old", "=old", "a.json="] {
            assert!(parse_label(text).is_err(), "{text}");
        }
    }
}
