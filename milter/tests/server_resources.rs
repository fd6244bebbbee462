//! What connections cost: nothing once they are over, little while they idle, and no more than there is.
//!
//! These look at the whole process, so only one of them runs at a time.

mod server_common;

use std::fs::File;
use std::future::pending;
use std::io::{Read, Seek};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dkim_milter::dns::{KeySource, LookupFuture};
use dkim_milter::protocol::command::Command;
use dkim_milter::server::State;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server_common::{Mta, PATIENCE, Setup, descriptors, selector};
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test while no other one runs, and until all that it started is gone.
fn alone(test: impl Future<Output = ()>) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Runtime::new().unwrap().block_on(test);
}

#[test]
fn junk_is_hung_up_on_and_leaves_nothing_behind() {
    alone(async {
        let server = Setup::new().start();
        let hello = b"\0\0\0\x0dO\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff";
        let probes: [(&[u8], bool); 12] = [
            (b"", false),
            (b"\0\0", false),
            (b"\0\0\0\0", true),
            (b"\xff\xff\xff\xff", true),
            (b"GET / HTTP/1.0\r\n\r\n", true),
            (b"EHLO x\r\n", true),
            (hello, false),
            (b"\0\0\0\x06BAAAAJ", false),
            (b"\0\0\0\x04O\x01\x02\x03", true),
            (&[&hello[..], b"\0\0\0\x05Labcd"].concat(), false),
            (b"\0\0\0\x01Q", true),
            (b"\0\0\0\x01K", false),
        ];
        let before = descriptors();
        for _ in 0..20 {
            let mut round = Vec::new();
            for (octets, hangs_up) in probes {
                let octets = octets.to_vec();
                let address = server.tcp;
                round.push(tokio::spawn(async move {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    // A milter that has hung up already is as good.
                    let _ = stream.write_all(&octets).await;
                    if hangs_up {
                        assert!(Mta::new(stream).is_hung_up().await, "{octets:?}");
                    }
                }));
            }
            for probe in round {
                probe.await.unwrap();
            }
        }
        let mut mta = server.connect().await;
        mta.greet().await;
        assert_eq!(selector(&mta.message("example.com", b"x\r\n").await), "r");
        drop(mta);
        assert_eq!(settled(before).await, before);
    });
}

/// A name server that does not answer.
struct Silent;

impl KeySource for Silent {
    fn lookup<'a>(&'a self, _: &'a str) -> LookupFuture<'a> {
        Box::pin(pending())
    }
}

#[test]
fn an_mta_that_hangs_up_while_it_waits_is_noticed() {
    alone(async {
        let setup = Setup::new();
        let settings = setup
            .source()
            .load()
            .map_err(|error| error.errors)
            .unwrap()
            .state
            .settings;
        let server = setup.start_with(State {
            settings,
            key_records: Arc::new(Silent),
        });
        let before = descriptors();
        let mut mta = server.connect().await;
        mta.greet().await;
        assert_eq!(mta.mail().await, 'c');
        let signature = b" v=1; a=rsa-sha256; d=example.net; s=s; h=from; bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=AAAA";
        let (name, value) = (&b"DKIM-Signature"[..], &signature[..]);
        mta.tell(Command::Header { name, value }).await;
        let (name, value) = (&b"From"[..], &b" Bo <bo@example.net>"[..]);
        mta.send(&[
            Command::Header { name, value },
            Command::EndOfHeader,
            Command::EndOfBody(b""),
        ])
        .await;
        sleep(Duration::from_millis(50)).await;
        drop(mta);
        assert_eq!(settled(before).await, before);
    });
}

#[test]
fn an_idle_connection_costs_less_than_ten_kilobytes() {
    alone(async {
        const CONNECTIONS: usize = 1000;
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: maximum,
                maximum,
            },
        )
        .unwrap();
        let server = Setup::new().start();
        let body = b"0123456789abcde\n".repeat(5_000);
        let mut connections = Vec::new();
        let mut before = 0;
        for number in 0..CONNECTIONS + 50 {
            // The first ones warm up what all share.
            if number == 50 {
                before = resident();
            }
            let mut mta = server.connect_unix().await;
            mta.greet().await;
            if number % 10 == 0 {
                assert_eq!(selector(&mta.message("example.com", &body).await), "r");
            }
            connections.push(mta);
        }
        // The MTA's ends are in this process, too.
        let each = resident().saturating_sub(before) / CONNECTIONS;
        assert!(each < 10_000, "{each} octets");
    });
}

#[test]
fn without_descriptors_it_waits_and_does_not_spin() {
    alone(async {
        let server = Setup::new().start();
        server.connect().await.greet().await;
        let clients: Vec<_> = (0..20)
            .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
            .collect();
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let limit = |current: usize| {
            let current = Some(current as u64);
            setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        };
        // Opened while that is possible.
        let mut stat = File::open("/proc/self/stat").unwrap();
        let taken = descriptors();
        limit(taken + 4);
        for client in &clients {
            client.connect(&server.tcp.into()).unwrap();
        }
        let busy = processor_time(&mut stat);
        sleep(Duration::from_secs(1)).await;
        let busy = processor_time(&mut stat) - busy;
        assert!(
            busy < Duration::from_millis(300),
            "{busy:?} busy in a second"
        );
        assert!(!server.running.is_finished());
        limit(10_000);
        for client in clients {
            client.set_nonblocking(true).unwrap();
            let mut mta = Mta::new(TcpStream::from_std(client.into()).unwrap());
            mta.greet().await;
        }
    });
}

/// The descriptors of the process once they are down to `wanted`, or will not be.
async fn settled(wanted: usize) -> usize {
    let patient_until = Instant::now() + PATIENCE;
    while descriptors() > wanted && Instant::now() < patient_until {
        sleep(Duration::from_millis(10)).await;
    }
    descriptors()
}

/// Octets of memory in use.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// What the process has used of the processors.
fn processor_time(stat: &mut File) -> Duration {
    let mut line = String::new();
    stat.rewind().unwrap();
    stat.read_to_string(&mut line).unwrap();
    let fields: Vec<&str> = line.rsplit_once(") ").unwrap().1.split(' ').collect();
    // proc(5): utime and stime, the 14th and 15th field, in hundredths of a second on Linux.
    Duration::from_millis(10)
        * (fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap())
}
