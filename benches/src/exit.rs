//! How the measuring programs end: the exit codes of sysexits, and what clap has to say.

use std::io::{self, Write};
use std::process::ExitCode;

/// Something that was measured failed.
pub const EX_FAILED: u8 = 1;
/// The command line makes no sense.
pub const EX_USAGE: u8 = 64;
/// What was read is not what it should be.
pub const EX_DATAERR: u8 = 65;
/// A file cannot be opened or read.
pub const EX_NOINPUT: u8 = 66;
/// Something that is needed is not there.
pub const EX_UNAVAILABLE: u8 = 69;
/// A file cannot be written.
pub const EX_CANTCREAT: u8 = 73;
/// Standard output does not take what is written.
pub const EX_IOERR: u8 = 74;

/// Prints what clap made of a command line, which may be the help that was asked for, and gives the exit code for it.
pub fn of_clap(error: &clap::Error) -> ExitCode {
    // There is nobody left to tell if this fails.
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::from(EX_USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

/// Writes `text` to standard output.
///
/// # Errors
/// Whatever standard output says, a reader that has gone among it.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
