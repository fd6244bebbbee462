//! Whether the hot paths take as many instructions as they did: `make instructions`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_benches::instructions::main()
}
