//! `milter-load`: load on a milter, without an MTA. What it does is in `dkim_benches::load`; here are its arguments.
#![forbid(unsafe_code)]

use clap::{ArgGroup, Parser, ValueEnum};
use dkim_benches::load::address::{Address, TargetError};
use dkim_benches::load::connection::Client;
use dkim_benches::load::message::{Fault, Message, MessageError};
use dkim_benches::load::process::Watched;
use dkim_benches::load::run::{Expected, Plan, RunError, run};
use dkim_milter::tools::{self, Failure, OutputError};
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Load on a milter, without an MTA: messages over many connections at once, and what became of them
///
/// Speaks the milter protocol as Postfix does, to any milter. Prints messages by second, latency from MAIL to the final
/// reply, what came back, and what the milter took of CPU and memory. Exits with 1 if a message failed or did not come
/// back as expected.
#[derive(Debug, Parser)]
#[command(name = "milter-load", version, group = ArgGroup::new("what").args(["size", "files"]))]
struct Cli {
    /// Where the milter listens: unix:PATH, local:PATH, inet:PORT@HOST or inet:HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: Address,

    /// Messages to send, in turn, with CRLF or LF; without any, one is made
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Octets in the body of the message that is made, which has 12 header fields of 0.7 KB in all
    #[arg(long, value_name = "OCTETS", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(2..=MAX_BODY))]
    size: u32,

    /// Connections at once
    #[arg(short = 'c', long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,

    /// Messages in all [default: 1000, or as many as --duration lets through]
    #[arg(short = 'n', long, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(..=MAX_MESSAGES))]
    messages: Option<u64>,

    /// Messages over a connection, before it is closed and another opened
    #[arg(short = 'm', long, value_name = "NUMBER", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    per_connection: u64,

    /// Start no message after so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,

    /// Messages due by second; latency counts from when a message is due. Without: as fast as answers come
    #[arg(long, value_name = "NUMBER", value_parser = rate)]
    rate: Option<f64>,

    /// Messages before those that count
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=MAX_MESSAGES))]
    warmup: u64,

    /// What each message must come back with
    #[arg(long, value_name = "WHAT", default_value = "none")]
    expect: Expect,

    /// The SMTP client's address that the milter is told; signers sign for their own host
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    client: IpAddr,

    /// The envelope sender
    #[arg(long, value_name = "ADDRESS", default_value = "ann@example.com", value_parser = sender)]
    sender: String,

    /// Idle connections to keep open all the while
    #[arg(long, value_name = "NUMBER", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=100_000))]
    hold: u32,

    /// The milter's process, counted with its descendants [default: the one that listens, for a UNIX socket]
    #[arg(long, value_name = "PID", conflicts_with = "pid_file")]
    pid: Option<i32>,

    /// A file with the milter's process
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,

    /// How long the milter may take for a reply
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    timeout: Duration,

    /// How long everything may take
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    limit: Duration,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Let a milter of another host have load
    #[arg(long)]
    allow_remote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Expect {
    /// A new DKIM-Signature
    Signature,
    /// A new Authentication-Results with dkim=pass
    #[value(name = "dkim=pass")]
    DkimPass,
    /// Nothing but an answer that lets it go on
    None,
}

fn main() -> ExitCode {
    tools::run(load)
}

fn load(cli: Cli) -> Result<u8, LoadError> {
    let json = cli.json;
    let address = cli.address.clone();
    let report = run(cli.into_plan()?).map_err(|source| LoadError::Run { address, source })?;
    let text = if json {
        serde_json::to_string_pretty(&report).map_err(io::Error::from)
    } else {
        Ok(report.to_string())
    };
    text.and_then(|text| writeln!(io::stdout(), "{text}"))
        .map_err(OutputError::from)?;
    Ok(u8::from(report.failed() > 0))
}

impl Cli {
    fn into_plan(self) -> Result<Plan, LoadError> {
        let messages = match self.files.as_slice() {
            [] => vec![Message::of_text(self.size as usize)],
            files => files
                .iter()
                .map(|path| Message::from_file(path))
                .collect::<Result<_, _>>()?,
        };
        let pid = match &self.pid_file {
            Some(path) => Some(read_pid(path)?),
            None => self.pid,
        };
        let watched = pid.map(|pid| Watched::new(pid).ok_or(LoadError::NoProcess(pid)));
        Ok(Plan {
            target: self.address.target(self.allow_remote)?,
            address: self.address,
            messages,
            client: Client {
                address: self.client,
                sender: self.sender,
            },
            connections: self.connections as usize,
            count: match (self.messages, self.duration) {
                (None, None) => Some(1000),
                (count, _) => count,
            },
            per_connection: self.per_connection,
            warmup: self.warmup,
            rate: self.rate,
            duration: self.duration,
            held: self.hold as usize,
            expected: match self.expect {
                Expect::Signature => Expected::Signature,
                Expect::DkimPass => Expected::Pass,
                Expect::None => Expected::Nothing,
            },
            patience: self.timeout,
            limit: self.limit,
            watched: watched.transpose()?,
        })
    }
}

fn read_pid(path: &Path) -> Result<i32, LoadError> {
    let fault = |source| LoadError::PidFile {
        path: path.to_owned(),
        source,
    };
    let text = fs::read_to_string(path).map_err(fault)?;
    let pid = text.trim().parse();
    pid.map_err(|_| fault(io::Error::other("no number of a process in it")))
}

/// A time in seconds, above 0 and no longer than a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|s| *s > 0.0 && *s <= 86_400.0);
    let number = number.ok_or("a number of seconds above 0, at most 86400")?;
    Ok(Duration::from_secs_f64(number))
}

/// Messages by second.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| *n >= 0.001 && *n <= 1e6);
    number.ok_or_else(|| "a number of messages, from 0.001 to 1000000".into())
}

/// An address as it travels, where a NUL would end it.
fn sender(text: &str) -> Result<String, String> {
    let is_plain = !text.chars().any(|c| c.is_control() || "<>".contains(c));
    is_plain
        .then(|| text.to_owned())
        .ok_or_else(|| "an address without brackets".into())
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{0}")]
    Message(#[from] MessageError),
    #[error("{0}")]
    Target(#[from] TargetError),
    #[error("{}: {source}", path.display())]
    PidFile { path: PathBuf, source: io::Error },
    #[error("there is no process {0}")]
    NoProcess(i32),
    #[error("{address}: {source}")]
    Run { address: Address, source: RunError },
    #[error("{0}")]
    Output(#[from] OutputError),
}

impl Failure for LoadError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Target(TargetError::Remote(_)) => EX_USAGE,
            Self::Message(MessageError {
                fault: Fault::Unreadable(_),
                ..
            })
            | Self::PidFile { .. } => EX_NOINPUT,
            Self::Message(_) => EX_DATAERR,
            Self::Target(TargetError::NoHost { .. }) => EX_NOHOST,
            Self::NoProcess(_)
            | Self::Run {
                source: RunError::Unreachable(_),
                ..
            } => EX_UNAVAILABLE,
            Self::Run { .. } => EX_OSERR,
            Self::Output(_) => EX_IOERR,
        }
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Output(OutputError::Closed))
    }
}

/// 256 MiB, far beyond what an MTA takes.
const MAX_BODY: i64 = 256 << 20;

/// The latency of each is kept.
const MAX_MESSAGES: u64 = 100_000_000;

// Codes of sysexits.h.
const EX_USAGE: u8 = 64;
const EX_DATAERR: u8 = 65;
const EX_NOINPUT: u8 = 66;
const EX_NOHOST: u8 = 68;
const EX_UNAVAILABLE: u8 = 69;
const EX_OSERR: u8 = 71;
const EX_IOERR: u8 = 74;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &str) -> Result<Cli, String> {
        let words = ["milter-load"].into_iter().chain(line.split(' '));
        Cli::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_well_defined() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_not_said_is_a_thousand_messages_of_2_kb() {
        let plan = parsed("unix:/s").unwrap().into_plan().unwrap();
        assert_eq!(
            (plan.count, plan.connections, plan.per_connection),
            (Some(1000), 1, 10)
        );
        assert_eq!(plan.messages.len(), 1);
        assert!((2600..3000).contains(&plan.messages[0].octets()));
        assert_eq!(plan.expected, Expected::Nothing);
        assert!(plan.client.address.is_loopback());
        assert!(plan.watched.is_none());
    }

    #[test]
    fn each_option_reaches_the_plan() {
        let line = "inet:9@127.0.0.1 -c 3 -n 7 -m 2 --size 100 --rate 2.5 --duration 1.5 --warmup 4 --hold 5 \
                    --expect dkim=pass --client 192.0.2.7 --sender a@b --timeout 2 --limit 9";
        let words = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let plan = parsed(&words).unwrap().into_plan().unwrap();
        assert_eq!(
            (plan.connections, plan.count, plan.per_connection),
            (3, Some(7), 2)
        );
        assert_eq!((plan.rate, plan.warmup, plan.held), (Some(2.5), 4, 5));
        assert_eq!(plan.duration, Some(Duration::from_millis(1500)));
        assert_eq!(plan.expected, Expected::Pass);
        assert_eq!(plan.client.address.to_string(), "192.0.2.7");
        assert_eq!(plan.client.sender, "a@b");
        assert_eq!(plan.patience, Duration::from_secs(2));
        assert_eq!(plan.limit, Duration::from_secs(9));
        let plan = parsed("unix:/s --duration 2").unwrap().into_plan().unwrap();
        assert_eq!(plan.count, None);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (line, wanted) in [
            ("unix:", "a path must follow the colon"),
            ("unix:/s -c 0", "0 is not in 1..=100000"),
            ("unix:/s -m 0", "0 is not in 1.."),
            ("unix:/s --size 1", "1 is not in 2..="),
            ("unix:/s --rate 0", "a number of messages"),
            ("unix:/s --rate nan", "a number of messages"),
            ("unix:/s --limit inf", "a number of seconds"),
            ("unix:/s --expect pass", "signature, dkim=pass, none"),
            ("unix:/s --sender <a@b>", "an address without brackets"),
            ("unix:/s --size 9 file", "cannot be used with"),
            ("unix:/s --pid 1 --pid-file f", "cannot be used with"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }

    #[test]
    fn exit_codes_are_those_of_sysexits() {
        for (line, code) in [
            ("inet:9@192.0.2.1", EX_USAGE),
            ("unix:/s /nonexistent/message", EX_NOINPUT),
            ("unix:/s /dev/null", EX_DATAERR),
            ("unix:/s --pid-file /nonexistent/pid", EX_NOINPUT),
            ("unix:/s --pid-file /dev/null", EX_NOINPUT),
            ("unix:/s --pid 2147483647", EX_UNAVAILABLE),
            ("unix:/nonexistent/socket", EX_UNAVAILABLE),
        ] {
            let error = load(parsed(line).unwrap()).unwrap_err();
            assert_eq!(error.exit_code(), code, "{line}: {error}");
        }
    }
}
