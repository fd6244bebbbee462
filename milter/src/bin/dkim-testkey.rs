//! The tool that holds keys against their records in the DNS, and lists those in tokens.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pkcs11_engine::run_if_asked()
        .unwrap_or_else(|| dkim_milter::tools::run(dkim_milter::tools::testkey::test_key))
}
