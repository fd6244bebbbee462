//! Leaving the foreground without forking: the program starts itself once more, and the first process waits until the
//! second one serves.
//!
//! The second process is told by a flag, keeps standard error until it is ready, so that whoever started the first reads
//! what is wrong, and says that it is ready on its standard output, which is a pipe. The first then returns; if the pipe
//! closes before, it returns what the second did.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

/// The flag, without its hyphens, that tells the second process what it is.
pub const FLAG: &str = "in-background";

const READY: &[u8] = b"ready\n";

/// Starts the program again with the same arguments and waits until it serves; its exit code, 0 if it does.
///
/// # Errors
/// It cannot be started.
pub(super) fn start() -> io::Result<u8> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg(format!("--{FLAG}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        // Bounded: the other end is this program, but costs nothing to distrust.
        pipe.by_ref()
            .take(READY.len() as u64)
            .read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(0);
    }
    let code = child.wait()?.code();
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .unwrap_or(FAILED))
}

/// EX_SOFTWARE of sysexits.h: it ended, but not by itself.
const FAILED: u8 = 70;

/// In the second process: a session of its own, away from the terminal's signals.
pub(super) fn detach() {
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!("setsid: {error}");
    }
}

/// In the second process: lets the first return, and lets go of the terminal.
///
/// # Errors
/// The first is gone, or there is no `/dev/null`.
pub(super) fn ready() -> io::Result<()> {
    let mut pipe = io::stdout();
    pipe.write_all(READY)?;
    pipe.flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
