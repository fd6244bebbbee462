//! What is done with figures once they are taken: `bench report`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_benches::report::main()
}
