//! `instruction-counts`: runs the cases of `benches/instructions.rs` under callgrind and compares with what is stored.
//!
//! What is counted, and how, is said there; here counts are read, compared and stored, and the outcome is worded.

mod compare;
mod measured;
mod stored;

use crate::exit::{
    EX_CANTCREAT, EX_DATAERR, EX_FAILED, EX_IOERR, EX_NOINPUT, EX_UNAVAILABLE, of_clap, print,
};
use clap::Parser;
use compare::Comparison;
use measured::{Measured, MeasuredError, measure};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use stored::{Stored, StoredError};

/// Compare the instructions that the hot paths take with those stored
///
/// Runs the cases of benches/benches/instructions.rs under callgrind, by cargo, from the root of the sources. More than
/// 3 % more instructions than stored is a failure; more than 3 % less is told, so that the better figure gets stored. The
/// last line is "N passed, N failed", a case each.
#[derive(Debug, Parser)]
#[command(
    name = "instruction-counts",
    version,
    after_help = "\
Exit codes:
  0   every case is within the bound, or below it
  1   a case takes too many instructions, is not stored, or is stored and was not measured
  64  the command line makes no sense
  65  the stored counts cannot be understood
  66  there are no stored counts
  69  the cases could not be run
  73  the counts cannot be stored
  74  writing to standard output failed"
)]
struct Arguments {
    /// Store what was counted, instead of comparing
    #[arg(long)]
    store: bool,

    /// Where counts are stored
    #[arg(
        long,
        value_name = "FILE",
        default_value = "benches/results/instructions.txt"
    )]
    file: PathBuf,
}

/// The whole program: counts, then compares or stores.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return of_clap(&error),
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("instruction-counts: {error}");
            ExitCode::from(error.code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, CountsError> {
    let path = || arguments.file.display().to_string();
    if arguments.store {
        let measured = measure()?;
        let text = Stored::of(&measured).to_string();
        fs::write(&arguments.file, text).map_err(|error| CountsError::Write(path(), error))?;
        let line = format!("{}: {} counts stored\n", path(), measured.cases.len());
        return say(&line, ExitCode::SUCCESS);
    }
    // Read before anything is run: a fault in it is told at once.
    let text =
        fs::read_to_string(&arguments.file).map_err(|error| CountsError::Read(path(), error))?;
    let stored = Stored::parse(&text).map_err(|error| CountsError::Stored(path(), error))?;
    let comparison = Comparison::new(&stored, &measure()?);
    let code = if comparison.failed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EX_FAILED)
    };
    say(&comparison.to_string(), code)
}

fn say(text: &str, code: ExitCode) -> Result<ExitCode, CountsError> {
    print(text).map_err(CountsError::Print)?;
    Ok(code)
}

/// Why counts were neither compared nor stored.
#[derive(Debug, thiserror::Error)]
enum CountsError {
    #[error(transparent)]
    Measure(#[from] MeasuredError),
    #[error("{0}: {1}; `make instructions-store` writes it")]
    Read(String, std::io::Error),
    #[error("{0}: {1}")]
    Stored(String, StoredError),
    #[error("{0}: {1}")]
    Write(String, std::io::Error),
    #[error("standard output: {0}")]
    Print(std::io::Error),
}

impl CountsError {
    fn code(&self) -> u8 {
        match self {
            Self::Measure(_) => EX_UNAVAILABLE,
            Self::Read(..) => EX_NOINPUT,
            Self::Stored(..) => EX_DATAERR,
            Self::Write(..) => EX_CANTCREAT,
            Self::Print(_) => EX_IOERR,
        }
    }
}
