//! The tool that makes a key and its record.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_milter::tools::run(dkim_milter::tools::genkey::generate_key)
}
