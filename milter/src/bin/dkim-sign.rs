//! The tool that signs a message from a file.

use std::process::ExitCode;

fn main() -> ExitCode {
    dkim_milter::tools::run(dkim_milter::tools::sign::sign)
}
