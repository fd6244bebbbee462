//! The tool that verifies the signatures of messages in files.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_milter::tools::run(dkim_milter::tools::verify::verify)
}
