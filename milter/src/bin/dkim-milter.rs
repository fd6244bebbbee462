//! The daemon: arguments in, exit code out.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use dkim_milter::config::Overrides;
use dkim_milter::server::Question;
use dkim_milter::server::daemon::{Arguments, BACKGROUND_FLAG, main as serve};

/// Signs outgoing and verifies incoming mail for Postfix and Sendmail, by DKIM (RFC 6376).
///
/// SIGHUP or SIGUSR1 reloads configuration, tables and keys; SIGTERM ends it once messages in progress are through.
#[derive(Debug, Parser)]
#[command(name = "dkim-milter", version, disable_version_flag = true)]
struct Cli {
    /// Configuration file [default: /etc/dkim-milter.conf, or else /etc/opendkim.conf]
    #[arg(short = 'x', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where the MTA connects, instead of Socket in the file: inet:PORT[@HOST], inet6:PORT[@HOST], local:/PATH; repeatable
    #[arg(short = 'p', long = "socket", value_name = "SOCKET")]
    sockets: Vec<String>,

    /// Stay in the foreground and log to standard error, whatever Background says
    #[arg(short = 'f', long)]
    foreground: bool,

    /// Check configuration, tables and keys, print all that is wrong or odd, and exit (78 if anything is wrong, 64 if only arguments are)
    #[arg(short = 'n', long)]
    check: bool,

    /// Ask the daemon that runs with this configuration, by its StatusSocket, whether it lives, whether it can sign and
    /// why not, or what it has counted; 75 if not, 69 if nobody answers, 78 if no StatusSocket is set
    #[arg(long, value_name = "QUESTION", value_parser = ["live", "ready", "metrics"],
          conflicts_with_all = ["check", "foreground"])]
    status: Option<String>,

    /// Set an option, over the file; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Log more, to find out why something does not work
    #[arg(short = 'v', long)]
    verbose: bool,

    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,

    #[arg(long = BACKGROUND_FLAG, hide = true)]
    in_background: bool,
}

fn main() -> ExitCode {
    if let Some(code) = pkcs11_engine::run_if_asked() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no faults; nobody is left to be told if this cannot be printed.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    serve(&Arguments {
        config: cli.config,
        overrides: Overrides {
            set: cli.set,
            sockets: cli.sockets,
        },
        foreground: cli.foreground,
        check: cli.check,
        status: cli.status.as_deref().and_then(Question::named),
        verbose: cli.verbose,
        in_background: cli.in_background,
    })
}

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;
