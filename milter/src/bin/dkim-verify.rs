//! The tool that verifies the signatures of messages in files.

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_milter::tools::run(dkim_milter::tools::verify::verify)
}
