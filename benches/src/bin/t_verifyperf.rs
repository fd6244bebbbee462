//! How many messages are verified in a second; libopendkim has a program of that name.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_benches::perf::main(dkim_benches::perf::Task::Verify)
}
