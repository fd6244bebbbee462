//! The command-line tools, and what they share: how they take their arguments, fail, warn and end.
//!
//! Exit codes are those of sysexits.h(3), so that a mail system that runs a tool knows whether to try again. What a tool
//! does is in the file of its name; the binaries only call it.

mod config_keys;
pub mod genkey;
mod key_list;
mod key_records;
mod message_input;
mod new_key;
mod on_token;
mod private_key;
mod report;
pub mod sign;
mod speed;
pub mod testkey;
mod token_access;
pub mod verify;

use crate::shown::{cause, one_line};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use dkim_core::engine::{Engine, engine_by_name, engines};
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::ops::RangeFrom;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::SystemTime;

/// Runs `tool` with the arguments of the command line, and says how the process is to end.
///
/// Bad arguments end with 64 and a hint, `--help` and `--version` with 0. A failure is one line on standard error. A
/// reader that closes standard output early (`| head -1`) is no failure worth a word.
pub fn run<A: clap::Parser, E: Failure>(tool: impl FnOnce(A) -> Result<u8, E>) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Where it cannot be shown, the code has to do.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EX_USAGE } else { EX_OK });
        }
    };
    match tool(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.is_silent() {
                say(A::command().get_name(), &failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Why a tool gives up. `Display` names the thing, the place and what to do.
pub trait Failure: Error {
    /// The code to end with.
    fn exit_code(&self) -> u8;

    /// Whether nobody wants to hear of it.
    fn is_silent(&self) -> bool {
        false
    }
}

/// Writes `what` to standard error, behind the tool's `name`, on one line.
fn say(name: &str, what: &impl std::fmt::Display) {
    // Nobody is left to be told that standard error is closed.
    let _ = writeln!(io::stderr(), "{name}: {}", one_line(&what.to_string()));
}

/// The time, in seconds since 1970.
fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

/// `path` as it is found from anywhere, for those who do not take another.
fn absolute(path: Option<&Path>) -> Option<PathBuf> {
    path.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

/// Reads a whole number in `range`, and says so where there is none.
fn whole_number<T: Copy + Display + FromStr + PartialOrd>(
    range: RangeFrom<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if number >= range.start => Ok(number),
        _ => Err(format!("a whole number is wanted, {} or more", range.start)),
    }
}

/// `count` times, as people say it.
fn times(count: usize) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

/// Reads the name of an engine.
fn engine_parser() -> impl TypedValueParser<Value = &'static dyn Engine> {
    let names = engines().iter().map(|engine| engine.name());
    PossibleValuesParser::new(names)
        .try_map(|name| engine_by_name(&name).ok_or("engine is not built in"))
}

/// Standard output does not take what is written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The reader has gone.
    #[error("standard output is closed")]
    Closed,
    /// Anything else, a full disk among them.
    #[error("cannot write to standard output: {}", cause(.0))]
    Failed(io::Error),
}

impl OutputError {
    fn exit_code(&self) -> u8 {
        EX_IOERR
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Closed)
    }
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Failed(error),
        }
    }
}

/// All is well.
const EX_OK: u8 = 0;
/// The command line makes no sense.
const EX_USAGE: u8 = 64;
/// The message is none, or cannot be signed.
const EX_DATAERR: u8 = 65;
/// A file is not there, or not for us.
const EX_NOINPUT: u8 = 66;
/// A token is not there, or does not answer.
const EX_UNAVAILABLE: u8 = 69;
/// An engine failed.
const EX_SOFTWARE: u8 = 70;
/// A file is there already, or cannot be made.
const EX_CANTCREAT: u8 = 73;
/// Reading or writing failed half-way.
const EX_IOERR: u8 = 74;
/// Later it may go better.
const EX_TEMPFAIL: u8 = 75;
/// A key, a list of records or the resolver's configuration is no good.
const EX_CONFIG: u8 = 78;
/// Fails unless `command` is well defined and `manual`, an mdoc page, tells of each of its options.
#[cfg(test)]
fn check_command_line(mut command: clap::Command, manual: &str) {
    command.build();
    command.clone().debug_assert();
    for option in command
        .get_arguments()
        .filter_map(|option| option.get_long())
    {
        let is_told = ["\n", " "]
            .iter()
            .any(|end| manual.contains(&format!(" Fl \\-{option}{end}")));
        assert!(is_told, "{option}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_told_what_is_wanted() {
        let read = whole_number(1024_u32..);
        assert_eq!(read("4096"), Ok(4096));
        for text in ["1h", "", "-1", "512", "4294967296"] {
            assert_eq!(
                read(text).unwrap_err(),
                "a whole number is wanted, 1024 or more",
                "{text}"
            );
        }
    }
}
