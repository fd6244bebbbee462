//! One process that holds a module, as its parent has it: started with a socket for standard input, written to and read
//! from by a thread each, and ended. When one is started or ended, and what becomes of its work, is for `isolated`.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::helper::ARGUMENT;
use crate::wire::Request;

pub(crate) struct Process {
    pub(crate) child: Child,
    /// Its socket, to be shut when it is to be over.
    socket: UnixStream,
    pub(crate) started: Instant,
    /// What it is asked for is written by a thread, so that nobody waits for it here.
    pub(crate) requests: mpsc::Sender<Request>,
    /// Who reads from it.
    pub(crate) reader: JoinHandle<()>,
}

impl Process {
    /// Starts `program`, which is told `hello` first; `read` is run by a thread of its own.
    pub(crate) fn start(
        program: &Path,
        hello: Request,
        read: impl FnOnce(BufReader<UnixStream>) + Send + 'static,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut output = ours.try_clone()?;
        let socket = ours.try_clone()?;
        let mut child = Command::new(program)
            .arg(ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        let (requests, to_write) = mpsc::channel();
        let write = move || {
            let mut next = Some(hello);
            while let Some(request) = next {
                if request.write(&mut output).is_err() {
                    break;
                }
                next = to_write.recv().ok();
            }
            // The reader then ends too, and all else follows.
            let _ = output.shutdown(Shutdown::Write);
        };
        let read = move || read(BufReader::new(ours));
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let threads = named("pkcs11-writer")
            .spawn(write)
            .and_then(|_| named("pkcs11-reader").spawn(read));
        match threads {
            Ok(reader) => Ok(Self {
                child,
                socket,
                started: Instant::now(),
                requests,
                reader,
            }),
            Err(error) => {
                let _ = child.kill();
                reap(child);
                Err(error)
            }
        }
    }

    /// Ends it; the thread that reads from it does the rest.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        // The module may have started something that has the other end, too; or the process cannot be ended, in the middle
        // of a device's business.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Sees a process to its end, which may be far away, without waiting for it here.
pub(crate) fn reap(mut child: Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    // Without a thread it stays behind, as something that has ended, until this program ends.
    let _ = thread::Builder::new()
        .name("pkcs11-reaper".to_owned())
        .spawn(move || child.wait());
}

/// What has become of a process, to be read on from what it was.
pub(crate) fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("has ended with exit code {code}"),
        (None, None) => "has ended".to_owned(),
    }
}
