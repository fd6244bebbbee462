//! The tool that signs a message from a file.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_milter::tools::run(dkim_milter::tools::sign::sign)
}
