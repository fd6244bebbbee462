//! `milter-load` as a program: against the daemon's server on loopback, and against milters that are told how to behave.

use arc_swap::ArcSwap;
use base64::prelude::{BASE64_STANDARD as STANDARD, Engine as _};
use dkim_benches::workload::{self, RSA_2048_PEM, header, text_body};
use dkim_core::engine::{PrivateKey, default_engine};
use dkim_core::message::HeaderFields;
use dkim_core::signer::{SignRequest, Signer};
use dkim_milter::config::{Families, Host, InetAddress, ListenAddress, Overrides};
use dkim_milter::server::{FileOptions, Listener, Options, Patience, Source, Stop};
use dkim_milter::tables::Origin;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// Runs `milter-load` with JSON as its output: the exit code, and what it said.
fn load(arguments: &[&str]) -> (i32, Value) {
    let (code, said) = say(&[arguments, &["--json"]].concat());
    let report = serde_json::from_str(&said);
    (
        code,
        report.unwrap_or_else(|error| panic!("{error}: {said}")),
    )
}

/// Runs `milter-load`: the exit code, and what it said.
fn say(arguments: &[&str]) -> (i32, String) {
    let _others = if arguments.contains(&"--pid") {
        Alone::Yes(CHILDREN.write().unwrap())
    } else {
        Alone::No(CHILDREN.read().unwrap())
    };
    let done = Command::new(env!("CARGO_BIN_EXE_milter-load"))
        .args(arguments)
        .args(["--limit", "60"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    (done.status.code().unwrap(), said)
}

/// A process is watched with its descendants, and those of this one are the other tests' programs, which end.
static CHILDREN: RwLock<()> = RwLock::new(());

#[allow(dead_code, reason = "guards are there to be dropped")]
enum Alone {
    Yes(RwLockWriteGuard<'static, ()>),
    No(RwLockReadGuard<'static, ()>),
}

/// The daemon's server within this process, on a UNIX socket and a port, until it is dropped.
struct Daemon {
    dir: TempDir,
    tcp: String,
    unix: String,
    _stop: watch::Sender<Stop>,
    _runtime: Runtime,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        fs::write(&key, RSA_2048_PEM).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let public = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.record");
        let records = format!(
            "sel._domainkey.example.com v=DKIM1; p={}
",
            STANDARD.encode(public)
        );
        let place = dir.path().display().to_string();
        fs::write(dir.path().join("records"), records).unwrap();
        fs::write(
            dir.path().join("conf"),
            format!(
                "Domain example.com\nSelector sel\nKeyFile {place}/key\nAuthservID mx.example.org\n\
                 TestPublicKeys {place}/records\n"
            ),
        )
        .unwrap();
        let source = Source {
            path: Some(dir.path().join("conf")),
            overrides: Overrides::default(),
            look_ups: Arc::default(),
        };
        let runtime = Runtime::new().unwrap();
        let _inside = runtime.enter();
        let listeners: Vec<_> = [
            ListenAddress::Inet(InetAddress {
                port: 0,
                host: Host::Loopback(Families::V4),
            }),
            ListenAddress::Unix(dir.path().join("socket")),
        ]
        .into_iter()
        .flat_map(|address| {
            let wanted = dkim_milter::config::Listener {
                address,
                origin: Origin::Default,
            };
            Listener::open(&wanted, FileOptions::default()).unwrap()
        })
        .collect();
        let tcp = listeners[0].tcp_address().unwrap();
        let loaded = source.load();
        let state = loaded
            .unwrap_or_else(|error| panic!("{:?}", error.errors))
            .state;
        let (stop, stopped) = watch::channel(Stop::No);
        let options = Options {
            patience: Patience::default(),
            most_connections: 1000,
            loader: Arc::new(move || source.load()),
            changed: Arc::default(),
            vitals: Arc::default(),
        };
        let state = Arc::new(ArcSwap::from_pointee(state));
        let reloads = mpsc::channel(1).1;
        runtime.spawn(async move {
            dkim_milter::server::run(listeners, state, options, reloads, stopped).await
        });
        Self {
            tcp: format!("inet:{}@{}", tcp.port(), tcp.ip()),
            unix: format!("unix:{place}/socket"),
            dir,
            _stop: stop,
            _runtime: runtime,
        }
    }

    /// A message that the daemon gives a pass, in a file.
    fn signed_message(&self) -> PathBuf {
        let (header, body) = (header(), text_body(2048));
        let key = PrivateKey::from_octets(RSA_2048_PEM).unwrap();
        let key = default_engine().signing_key(&key).unwrap();
        let request = SignRequest::new("example.com", "sel", key.key_type());
        let mut signer = Signer::new(&header, vec![request]).unwrap();
        signer.body(&body);
        let signature = key.sign(&signer.to_sign(&header)[0].octets).unwrap();
        let value = signer.field_value(0, &signature).unwrap();
        let mut signed = HeaderFields::new();
        signed.push(b"DKIM-Signature", b"", value.as_bytes());
        header
            .iter()
            .for_each(|field| signed.push_raw(field.octets()));
        let path = self.dir.path().join("signed.eml");
        fs::write(&path, workload::message(&signed, &body)).unwrap();
        path
    }
}

#[test]
fn every_message_is_signed_over_either_socket_and_all_is_reported() {
    let daemon = Daemon::start();
    for address in [&daemon.unix, &daemon.tcp] {
        let arguments = "-c 4 -n 40 -m 3 --warmup 5 --hold 6 --expect signature --pid".split(' ');
        let pid = std::process::id().to_string();
        let arguments: Vec<_> = [address.as_str()].into_iter().chain(arguments).collect();
        let (code, report) = load(&[&arguments[..], &[&pid]].concat());
        assert_eq!(code, 0, "{report}");
        for (name, wanted) in [("messages", 40), ("signed", 40), ("dkim_pass", 0)] {
            assert_eq!(report[name], wanted, "{name}");
        }
        assert_eq!(report["headers_added"]["DKIM-Signature"], 40);
        assert_eq!(report["replies"]["c"], 40);
        assert_eq!(report["errors"].as_object().unwrap().len(), 0);
        let number = |of: &Value| of.as_f64().unwrap();
        let latency = |of| number(&report["latency_ms"][of]);
        assert!(latency("p50") > 0.0);
        assert!(latency("p50") <= latency("p99") && latency("p99") <= latency("max"));
        let milter = &report["daemon"];
        assert_eq!(milter["pid"], std::process::id());
        assert_eq!(milter["held"], 6);
        assert!(number(&milter["peak_rss"]) >= number(&milter["rss"]));
        // 40 signatures cost something, and the two ways to say it agree.
        let by_message = number(&milter["cpu_ms_per_message"]);
        assert!(by_message > 0.01);
        let both = by_message * number(&milter["messages_per_cpu_second"]);
        assert!((both - 1000.0).abs() < 1.0);
        assert!(number(&report["generator"]["cpu_seconds"]) > 0.0);
    }
}

#[test]
fn the_process_behind_a_unix_socket_is_found() {
    let daemon = Daemon::start();
    let (code, said) = say(&[&daemon.unix, "-n", "3"]);
    assert_eq!(code, 0, "{said}");
    let wanted = format!("milter (process {}", std::process::id());
    assert!(said.contains(&wanted), "{said}");
    let (_, said) = say(&[&daemon.tcp, "-n", "3"]);
    assert!(said.contains("its process is not known"), "{said}");
}

#[test]
fn verified_messages_come_back_with_a_pass() {
    let daemon = Daemon::start();
    let path = daemon.signed_message();
    let path = path.to_str().unwrap();
    let arguments = "-c 3 -n 20 --client 192.0.2.7 --expect dkim=pass".split(' ');
    let arguments: Vec<_> = [daemon.unix.as_str()]
        .into_iter()
        .chain(arguments)
        .collect();
    let (code, report) = load(&[&arguments[..], &[path]].concat());
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["dkim_pass"], 20);
    assert_eq!(report["headers_added"]["Authentication-Results"], 20);
    // One octet more in the body, and it is no pass: what is counted is the verdict.
    let octets = [&fs::read(path).unwrap()[..], b"more\r\n"].concat();
    fs::write(path, octets).unwrap();
    let (code, report) = load(&[&arguments[..], &[path]].concat());
    assert_eq!(code, 1);
    assert_eq!(report["errors"]["came back without dkim=pass"], 20);
    assert_eq!(report["messages"], 0);
}

#[test]
fn a_wrong_expectation_ends_with_1() {
    let daemon = Daemon::start();
    for (expected, client, kind) in [
        ("dkim=pass", "127.0.0.1", "came back without dkim=pass"),
        (
            "signature",
            "192.0.2.7",
            "came back without a DKIM-Signature",
        ),
    ] {
        let arguments = ["-n", "5", "--expect", expected, "--client", client];
        let (code, report) = load(&[&[daemon.unix.as_str()], &arguments[..]].concat());
        assert_eq!(code, 1);
        assert_eq!(report["errors"][kind], 5, "{report}");
        assert_eq!(report["latency_ms"], Value::Null);
    }
}

#[test]
fn a_rate_is_kept_and_a_duration_ends_it() {
    let daemon = Daemon::start();
    let arguments = "-c 4 --rate 100 --duration 0.5".split(' ');
    let arguments: Vec<_> = [daemon.unix.as_str()]
        .into_iter()
        .chain(arguments)
        .collect();
    let (code, report) = load(&arguments);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["messages"], 50);
    assert!(report["seconds"].as_f64().unwrap() > 0.49);
    assert!(report["messages_per_second"].as_f64().unwrap() < 103.0);
}

/// A milter that gives to each command what `script` says for its letter, and nothing where it says nothing; `!` closes
/// the connection. What it was told goes to `told`, one string of letters for each connection.
struct Puppet {
    dir: TempDir,
    told: Receiver<String>,
}

type Script = fn(letter: u8) -> &'static [u8];

impl Puppet {
    fn start(script: Script) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tell = tell.clone();
                std::thread::spawn(move || Self::serve(&stream.unwrap(), script, &tell));
            }
        });
        Self { dir, told }
    }

    fn serve(mut stream: &UnixStream, script: Script, tell: &Sender<String>) {
        let mut letters = String::new();
        let mut length = [0; 4];
        while stream.read_exact(&mut length).is_ok() {
            let mut packet = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut packet).unwrap();
            letters.push(packet[0].into());
            match script(packet[0]) {
                b"!" => break,
                reply => stream.write_all(reply).unwrap(),
            }
        }
        let _ = tell.send(letters);
    }

    fn address(&self) -> String {
        let path: &Path = self.dir.path();
        format!("unix:{}/socket", path.display())
    }
}

const CONTINUE: &[u8] = b"\0\0\0\x01c";
const SKIP: &[u8] = b"\0\0\0\x01s";

/// The letters of a conversation, each step with the macros before it: connection, messages, end.
fn letters(connection: &str, message: &str, messages: usize) -> String {
    format!("O{connection}{}Q", message.repeat(messages)).replace(' ', "")
}

#[test]
fn steps_come_in_postfix_order_with_macros_before_each() {
    let puppet = Puppet::start(usual);
    let (code, report) = load(&[&puppet.address(), "-n", "3", "-m", "2", "--size", "100000"]);
    assert_eq!(code, 0, "{report}");
    let header = "DL".repeat(12);
    let message = format!("DM DR DT {header} DN DB DB DE A");
    assert_eq!(puppet.told.recv().unwrap(), letters("DC DH", "", 0));
    assert_eq!(puppet.told.recv().unwrap(), letters("DC DH", &message, 2));
    assert_eq!(puppet.told.recv().unwrap(), letters("DC DH", &message, 1));
}

#[test]
fn refused_steps_are_left_out_unanswered_ones_not_waited_for_and_skip_is_obeyed() {
    // NOHELO, NODATA, SKIP; no reply to CONNECT, MAIL, RCPT, header fields and their end.
    let puppet = Puppet::start(|letter| match letter {
        b'O' => b"\0\0\0\x0dO\0\0\0\x06\0\0\0\x01\0\x04\xd6\x82",
        b'B' => SKIP,
        b'E' => CONTINUE,
        _ => b"",
    });
    let (code, report) = load(&[
        &puppet.address(),
        "-n",
        "1",
        "--size",
        "1000000",
        "--timeout",
        "5",
    ]);
    assert_eq!(code, 0, "{report}");
    let message = format!("DM DR D {} DN DB DE A", "DL".repeat(12));
    assert_eq!(puppet.told.recv().unwrap(), letters("DC D", "", 0));
    assert_eq!(puppet.told.recv().unwrap(), letters("DC D", &message, 1));
}

#[test]
fn what_a_milter_does_wrong_is_counted_by_kind_and_ends_with_1() {
    let cases: [(Script, &str); 8] = [
        (
            |letter| if letter == b'M' { b"" } else { usual(letter) },
            "no answer to MAIL in time",
        ),
        (
            |letter| if letter == b'E' { b"!" } else { usual(letter) },
            "connection closed instead of an answer to end of message",
        ),
        (
            |letter| {
                if letter == b'R' {
                    b"\0\0\0\x01r"
                } else {
                    usual(letter)
                }
            },
            "refused at RCPT by r",
        ),
        (
            |letter| match letter {
                b'E' => b"\0\0\0\x11y451 4.7.1 later\0",
                _ => usual(letter),
            },
            "refused at end of message by 451",
        ),
        (
            |letter| if letter == b'N' { SKIP } else { usual(letter) },
            "reply 's' to end of header",
        ),
        (
            |letter| {
                if letter == b'B' {
                    b"\0\0\0\x02cx"
                } else {
                    usual(letter)
                }
            },
            "reply 'c' with data that are not its own",
        ),
        (
            |letter| {
                if letter == b'B' {
                    b"HTTP/1.1"
                } else {
                    usual(letter)
                }
            },
            "no milter packet",
        ),
        (
            |letter| {
                if letter == b'B' {
                    b"\0\0\0\x01z"
                } else {
                    usual(letter)
                }
            },
            "'z' is no reply that is known here",
        ),
    ];
    for (script, kind) in cases {
        let puppet = Puppet::start(script);
        let (code, report) = load(&[&puppet.address(), "-n", "2", "-c", "2", "--timeout", "1"]);
        assert_eq!(code, 1, "{kind}");
        assert_eq!(report["errors"][kind], 2, "{kind}: {report}");
        assert_eq!(report["messages"], 0, "{kind}");
    }
}

/// Else every later answer is taken for that to the command behind it, and the latencies mean nothing.
#[test]
fn replies_beyond_those_due_are_errors() {
    for (letters, errors) in [(&b"E"[..], 3), (b"M", 3)] {
        let script: Script = match letters {
            b"E" => |letter| match letter {
                b'E' => b"\0\0\0\x01c\0\0\0\x01c",
                _ => usual(letter),
            },
            _ => |letter| match letter {
                b'M' => b"\0\0\0\x01c\0\0\0\x01c",
                _ => usual(letter),
            },
        };
        let puppet = Puppet::start(script);
        let (code, report) = load(&[&puppet.address(), "-n", "3", "--timeout", "1"]);
        assert_eq!(code, 1, "{report}");
        assert_eq!(
            report["errors"]["reply to nothing that was asked"], errors,
            "{report}"
        );
    }
}

/// What a milter says that has nothing to say.
fn usual(letter: u8) -> &'static [u8] {
    match letter {
        b'O' => b"\0\0\0\x0dO\0\0\0\x06\0\0\0\x01\0\0\0\0",
        b'D' | b'A' | b'Q' => b"",
        _ => CONTINUE,
    }
}

#[test]
fn a_milter_that_cannot_be_spoken_with_ends_with_69_and_a_sentence() {
    for (script, wanted) in [
        (
            (|_| b"!") as Script,
            "connection closed instead of an answer to OPTNEG",
        ),
        (|_| b"", "no answer to OPTNEG in time"),
        (
            |_| b"\0\0\0\x0dO\0\0\0\x07\0\0\0\x01\0\0\0\0",
            "the milter asks for what was not offered",
        ),
        (
            |_| b"\0\0\0\x0dO\0\0\0\x06\0\0\0\x01\x10\0\0\0",
            "the milter asks for what was not offered",
        ),
        (
            |letter| {
                if letter == b'C' {
                    b"\0\0\0\x01a"
                } else {
                    usual(letter)
                }
            },
            "the milter accepts all of the connection and wants no messages",
        ),
    ] {
        let puppet = Puppet::start(script);
        let (code, said) = say(&[&puppet.address(), "--timeout", "1"]);
        assert_eq!(code, 69, "{said}");
        assert_eq!(
            said,
            format!("milter-load: {}: {wanted}\n", puppet.address())
        );
    }
}

#[test]
fn a_milter_that_hangs_is_left_at_the_limit() {
    let puppet = Puppet::start(|letter| if letter == b'E' { b"" } else { usual(letter) });
    let address = puppet.address();
    let _others = CHILDREN.read().unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_milter-load"))
        .args([&address, "-n", "9", "-c", "2", "--limit", "0.5"])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(
        said.contains("9 x not finished within the time limit"),
        "{said}"
    );
}
