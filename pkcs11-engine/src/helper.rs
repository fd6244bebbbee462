//! The process that holds a module: this program, started once more, with a socket for standard input.
//!
//! Vendors' modules crash, hang, start threads and fork; in here they can do so without touching mail. The process owns
//! module and PIN and has no part in anything else. It ends when the other end of its socket is closed, however that came
//! about, and is not moved by signals meant for the program: those that end a service go to all its processes at once.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::service::{Service, ServiceSettings};
use crate::session_pool::{Job, Limits};
use crate::wire::{Answer, Hello, Request, path};

/// The only argument of such a process.
pub(crate) const ARGUMENT: &str = "--pkcs11-module-host";

/// If this process was started to hold a module, does so to the end and returns the exit code. To be called first thing
/// in `main` of every program that uses [`Isolation::Process`](crate::Isolation::Process).
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT || arguments.next().is_some() {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{ARGUMENT} is for the program's own use: {error}");
            ExitCode::from(USAGE)
        }
    })
}

fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // That it is a socket; whoever types the argument at a terminal has none.
    socket.peer_addr()?;
    keep_to_ourselves();
    // What a module starts has no business with it.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let mut input = BufReader::new(socket.try_clone()?);
    let Some(Request::Hello(hello)) = Request::read(&mut input)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let output = Arc::new(Mutex::new(socket));
    let to_program = Arc::clone(&output);
    let service = Service::start(settings(hello), move |event| {
        send(&to_program, &Answer::Event(event));
    })?;
    let (until, is_asked) = loop {
        match Request::read(&mut input) {
            Ok(Some(Request::Register(registered))) => service.register(*registered),
            Ok(Some(Request::Forget(number))) => service.forget(number),
            Ok(Some(Request::Do {
                id,
                key,
                millis,
                asked,
            })) => service.submit(Job {
                id,
                key,
                asked,
                deadline: Instant::now() + Duration::from_millis(millis.into()),
            }),
            Ok(Some(Request::List(id, reference))) => {
                let output = Arc::clone(&output);
                // If no thread can be started, who waits for the answer will wait no longer than it takes.
                let _ = service.list(*reference, move |listed| {
                    send(&output, &Answer::Listed { id, listed });
                });
            }
            Ok(Some(Request::Stop(millis))) => {
                break (Instant::now() + Duration::from_millis(millis.into()), true);
            }
            // The program is gone, and so is everybody who waits.
            Ok(None | Some(Request::Hello(_))) | Err(_) => break (Instant::now(), false),
        }
    };
    if service.stop(until) && is_asked {
        Ok(())
    } else {
        // Somebody may be inside the module, or its loading, for good. A proper exit would run into that, and nobody is
        // there to end a process that does.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        Ok(())
    }
}

fn settings(hello: Hello) -> ServiceSettings {
    ServiceSettings {
        module: path(hello.module),
        limits: Limits {
            workers: hello.workers,
            queue: hello.queue,
            hang: Duration::from_millis(hello.hang_millis),
        },
        salt: hello.salt,
        wrong_pins: hello.wrong_pins,
    }
}

fn send(output: &Mutex<UnixStream>, answer: &Answer) {
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    // If the program is gone, the reading end knows.
    let _ = answer.write(&mut *output);
}

/// No core with a PIN in it, no debugger, and no signal but those that cannot be helped.
fn keep_to_ourselves() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let mut ignored = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
    ] {
        ignored.add(signal);
    }
    // Before there are threads, so that none has them.
    let _ = ignored.thread_block();
}

/// EX_USAGE of sysexits.h.
const USAGE: u8 = 64;
