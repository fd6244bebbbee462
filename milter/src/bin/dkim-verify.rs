//! The tool that verifies the signatures of messages in files.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pkcs11_engine::run_if_asked()
        .unwrap_or_else(|| dkim_milter::tools::run(dkim_milter::tools::verify::verify))
}
