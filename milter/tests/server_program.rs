//! The program: what it says at the terminal, its exit codes, signals, the background, its user.

mod server_common;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use server_common::{Dir, PATIENCE, RSA};

const PROGRAM: &str = env!("CARGO_BIN_EXE_dkim-milter");

/// A configuration that works, and its directory.
fn configured(more: &str) -> Dir {
    let dir = Dir::new();
    dir.write_key("rsa", RSA);
    dir.write("KeyTable", "k example.com:r:./rsa\n");
    dir.write("SigningTable", "*@example.com k\n");
    dir.write("PublicKeys", "");
    let base = dir.root().display();
    dir.write(
        "conf",
        format!(
            "BaseDirectory {base}\nKeyTable file:KeyTable\nSigningTable refile:SigningTable\n\
             TestPublicKeys {base}/PublicKeys\nSocket local:{base}/socket\nUMask 007\nSyslog yes\n{more}"
        ),
    );
    dir
}

fn program(dir: &Dir, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .arg("-x")
        .arg(dir.path("conf"))
        .args(arguments)
        .stdin(Stdio::null());
    command
}

fn finish(dir: &Dir, arguments: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = program(dir, arguments).output().unwrap();
    let said = [stdout, stderr].concat();
    let here = format!("{}/", dir.root().display());
    (
        status.code(),
        String::from_utf8(said).unwrap().replace(&here, ""),
    )
}

/// A program in the foreground, ended with the test.
struct Foreground(Child);

impl Foreground {
    fn start(mut command: Command) -> Self {
        Self(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Its exit status, and all that it has logged.
    fn wait(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        (self.0.wait().unwrap(), log)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// What a milter says to Postfix's offer: an OPTNEG frame.
fn greet(mut stream: impl Read + Write) {
    stream
        .write_all(b"\0\0\0\x0dO\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff")
        .unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[4..], *b"O\0\0\0\x06");
}

fn is_served(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[test]
fn a_check_tells_all_that_is_wrong_and_exits_with_78() {
    let dir = configured("");
    let (code, said) = finish(&dir, &["-n"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no errors"), "{said}");
    dir.write(
        "KeyTable",
        "k example.com:r:./rsa\nk2 two.example:r:./missing\n",
    );
    let (code, said) = finish(&dir, &["-n"]);
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("error: KeyTable:2: key \"k2\" in missing: No such file or directory"),
        "{said}"
    );
    dir.write("KeyTable", "other example.com:r:./rsa\n");
    let (code, said) = finish(&dir, &["-n"]);
    assert_eq!(code, Some(78), "a signing table without its key: {said}");
    assert!(said.contains("error: SigningTable:1: "), "{said}");
    let (code, said) = finish(
        &dir,
        &[
            "-n",
            "--set",
            "Cannonicalization=relaxed",
            "--set",
            "Mode=x",
        ],
    );
    assert_eq!(code, Some(64), "all of it is in the arguments: {said}");
    assert!(
        said.contains("Canonicalization") && said.contains("Mode"),
        "{said}"
    );
}

#[test]
fn wrong_use_and_help_have_their_exit_codes() {
    let dir = configured("");
    for (arguments, code, text) in [
        (&["--bogus"][..], 64, "--bogus"),
        (&["--help"], 0, "--foreground"),
        (&["-V"], 0, env!("CARGO_PKG_VERSION")),
        (&["-f", "-p", "local:relative"], 64, "must be absolute"),
        (
            &["-f", "-p", "local:/no/such/directory/socket"],
            69,
            "there is no directory /no/such/directory",
        ),
        (
            &["-f", "--set", "UserID=no-such-user"],
            78,
            "command line (--set UserID=no-such-user): UserID: there is no user \"no-such-user\"",
        ),
        (
            &["-f", "--set", "PidFile=/no/such/directory/pid"],
            73,
            "PidFile: /no/such/directory/pid: No such file or directory\n",
        ),
    ] {
        let (found, said) = finish(&dir, arguments);
        assert_eq!(found, Some(code), "{arguments:?} {said}");
        assert!(said.contains(text), "{arguments:?} {said}");
        assert!(!said.contains("in-background"), "{said}");
    }
}

#[test]
fn in_the_foreground_it_serves_reloads_and_stops_by_signals() {
    let dir = configured("");
    let daemon = Foreground::start(program(
        &dir,
        &[
            "-f",
            "-p",
            "inet:0@localhost",
            "-p",
            &format!("local:{}", dir.path("other").display()),
        ],
    ));
    until("served", || is_served(&dir.path("other")));
    assert!(!dir.path("socket").exists(), "-p replaces Socket");
    greet(UnixStream::connect(dir.path("other")).unwrap());
    dir.write(
        "KeyTable",
        "k example.com:r:./rsa\nk2 two.example:r:./missing\n",
    );
    for signal in [Signal::HUP, Signal::USR1] {
        kill_process(daemon.pid(), signal).unwrap();
        sleep(Duration::from_millis(200));
    }
    greet(UnixStream::connect(dir.path("other")).unwrap());
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("listening on inet:"), "{log}");
    assert!(log.contains("mode 0770 (command line"), "{log}");
    assert_eq!(
        log.matches("reloaded: 1 key; 1 cannot be used").count(),
        2,
        "{log}"
    );
    assert!(log.contains("key \"k2\""), "{log}");
    assert!(!dir.path("other").exists());
}

/// As an editor or a copy leaves it for a moment.
#[test]
fn an_emptied_configuration_is_not_taken() {
    let dir = configured("");
    let daemon = Foreground::start(program(&dir, &["-f"]));
    until("served", || is_served(&dir.path("socket")));
    greet(UnixStream::connect(dir.path("socket")).unwrap());
    let whole = fs::read(dir.path("conf")).unwrap();
    dir.write("conf", "");
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    sleep(Duration::from_millis(300));
    dir.write("conf", whole);
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    sleep(Duration::from_millis(300));
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (_, log) = daemon.wait();
    let outcomes: Vec<_> = log
        .lines()
        .filter(|line| line.contains("reloaded"))
        .collect();
    assert!(outcomes[0].contains("not reloaded"), "{log}");
    assert!(outcomes[1].contains("reloaded: 1 key"), "{log}");
}

#[test]
fn the_service_manager_is_told() {
    let dir = configured("");
    let manager = UnixDatagram::bind(dir.path("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut buffer = [0; 1000];
        let octets = loop {
            match manager.recv(&mut buffer) {
                // A child of another test has ended.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8_lossy(&buffer[..octets]).into_owned()
    };
    let mut command = program(&dir, &["-f"]);
    command
        .env("NOTIFY_SOCKET", dir.path("notify"))
        .env("WATCHDOG_USEC", "3600000000");
    let daemon = Foreground::start(command);
    let next = || loop {
        let said = told();
        if !said.contains("WATCHDOG=1") {
            return said;
        }
    };
    assert!(next().starts_with("READY=1"));
    assert!(is_served(&dir.path("socket")));
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(next().starts_with("READY=1"));
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    assert!(next().starts_with("STOPPING=1"));
}

#[test]
fn in_the_background_the_command_returns_once_it_serves() {
    let dir = configured("");
    let pid_file = dir.path("pid");
    let set = format!("PidFile={}", pid_file.display());
    let started = program(&dir, &["--set", &set]).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    assert!(is_served(&dir.path("socket")));
    // Syslog is set.
    let told = String::from_utf8_lossy(&started.stderr).contains("there is no /dev/log");
    assert_eq!(told, !Path::new("/dev/log").exists(), "{started:?}");
    let pid: i32 = fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    let second = program(&dir, &["--set", &set]).output().unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    until("ended", || {
        test_kill_process(pid).is_err() || is_zombie(pid)
    });
    assert!(!pid_file.exists() && !dir.path("socket").exists());
    assert_eq!(second.status.code(), Some(69));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        said.contains("another process is listening there"),
        "{said}"
    );
}

/// The directory may belong to a user who must not have root write elsewhere.
#[test]
fn a_link_in_the_place_of_the_pid_file_is_replaced_and_not_followed() {
    let dir = configured("");
    dir.write("precious", "kept");
    let pid_file = dir.path("pid");
    std::os::unix::fs::symlink(dir.path("precious"), &pid_file).unwrap();
    let set = format!("PidFile={}", pid_file.display());
    let daemon = Foreground::start(program(&dir, &["-f", "--set", &set]));
    until("served", || is_served(&dir.path("socket")));
    greet(UnixStream::connect(dir.path("socket")).unwrap());
    let written = fs::read_to_string(&pid_file).unwrap();
    assert_eq!(written, format!("{}\n", daemon.pid().as_raw_nonzero()));
    assert_eq!(fs::read(dir.path("precious")).unwrap(), b"kept");
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (_, log) = daemon.wait();
    assert!(!pid_file.exists(), "{log}");
}

/// Ended, and not waited for by whoever inherited it.
fn is_zombie(pid: Pid) -> bool {
    let stat =
        fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.contains(") Z ")
}

#[test]
fn errors_in_the_background_reach_the_terminal() {
    let dir = configured("");
    let (code, said) = finish(&dir, &["-p", "local:/no/such/directory/socket"]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("there is no directory"), "{said}");
}

#[test]
fn started_as_root_it_becomes_its_user_and_says_what_a_reload_will_miss() {
    if !geteuid().is_root() {
        return;
    }
    let dir = configured("UserID 54321:54322\n");
    fs::set_permissions(dir.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Foreground::start(program(&dir, &["-f"]));
    until("served", || is_served(&dir.path("socket")));
    // Served by the event loop, which starts last.
    greet(UnixStream::connect(dir.path("socket")).unwrap());
    let socket = fs::metadata(dir.path("socket")).unwrap();
    assert_eq!(
        (socket.uid(), socket.gid(), socket.mode() & 0o777),
        (54_321, 54_322, 0o770)
    );
    let process =
        fs::read_to_string(format!("/proc/{}/status", daemon.pid().as_raw_nonzero())).unwrap();
    for line in [
        "Uid:\t54321\t54321\t54321\t54321",
        "Gid:\t54322\t54322\t54322\t54322",
        "Groups:\t54322",
    ] {
        assert!(process.contains(line), "{process}");
    }
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (_, log) = daemon.wait();
    assert!(
        log.contains("read as root, but a start as that user, and every reload, will fail: user 54321 cannot read"),
        "{log}"
    );
}

#[test]
fn that_it_runs_as_root_is_warned_of_when_it_starts() {
    let dir = configured("");
    let daemon = Foreground::start(program(&dir, &["-f"]));
    until("served", || is_served(&dir.path("socket")));
    greet(UnixStream::connect(dir.path("socket")).unwrap());
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (_, log) = daemon.wait();
    assert_eq!(
        log.contains("running as root, which is not needed"),
        geteuid().is_root(),
        "{log}"
    );
}

#[test]
fn who_cannot_become_its_user_is_told_that_and_nothing_about_sockets() {
    if !geteuid().is_root() {
        return;
    }
    let dir = configured("UserID 54321:54322\nSocket local:/no/such/directory/socket\n");
    // The program is where others may not come.
    let copy = dir.path("dkim-milter");
    fs::copy(PROGRAM, &copy).unwrap();
    fs::set_permissions(dir.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let Output { status, stderr, .. } = Command::new(copy)
        .arg("-f")
        .arg("-x")
        .arg(dir.path("conf"))
        .uid(54_323)
        .gid(54_323)
        .output()
        .unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(77), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("UserID is not the user that this runs as (54323)"),
        "{said}"
    );
}

#[test]
fn sockets_that_the_service_manager_opened_are_taken_over() {
    let dir = configured("");
    // Opened and handed over as sd_listen_fds(3) has it, by a language that lets one.
    const HAND_OVER: &str = "import os, socket, sys\n\
        s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(5); os.dup2(s.fileno(), 3); os.set_inheritable(3, True)\n\
        os.environ['LISTEN_FDS'] = '1'; os.environ['LISTEN_PID'] = str(os.getpid())\n\
        os.execv(sys.argv[2], sys.argv[2:])";
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = Command::new("python3");
    command
        .args(["-c", HAND_OVER, &port.to_string(), PROGRAM, "-f", "-x"])
        .arg(dir.path("conf"));
    let daemon = Foreground::start(command);
    until("served", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    greet(TcpStream::connect(("127.0.0.1", port)).unwrap());
    assert!(!dir.path("socket").exists());
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(
        log.contains(&format!(
            "listening on inet:{port}@127.0.0.1 (the service manager)"
        )),
        "{log}"
    );
}
