//! `--status`: asks the status socket of a daemon that runs, for people, scripts and container health checks.
//!
//! The answer is that of `status_socket`, a head and a body of known length, so a read to the end and two cuts do. Whoever
//! else may have the socket is believed nothing, and cannot have this wait for longer than a health check does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::Source;
use super::status_socket::SERVER;
use crate::config::{Families, Host, InetAddress, ListenAddress, status_socket};
use crate::shown::{cause, is_steering, one_line};

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether it lives.
    Live,
    /// Whether it can sign.
    Ready,
    /// What it has counted.
    Metrics,
}

impl Question {
    /// The question of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "live" => Some(Self::Live),
            "ready" => Some(Self::Ready),
            "metrics" => Some(Self::Metrics),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Live => "/live",
            Self::Ready => "/ready",
            Self::Metrics => "/metrics",
        }
    }
}

/// Asks the daemon of the configuration, prints what it says, and gives the exit code: 0 for yes, 75 for no, 69 when
/// nobody answers, 74 for counters that cannot be written, 78 when the configuration does not say whom to ask.
pub(super) fn ask(source: &Source, question: Question) -> ExitCode {
    let address = match status_socket(source.path.as_deref(), &source.overrides) {
        Ok(Some(address)) => address,
        Ok(None) => {
            let place = match &source.path {
                Some(path) => path.display().to_string(),
                None => "the configuration".to_owned(),
            };
            eprintln!(
                "error: {}",
                one_line(&format!(
                    "StatusSocket is not set in {place}; set it, and restart"
                ))
            );
            return ExitCode::from(CONFIG);
        }
        Err(errors) => {
            for error in errors {
                eprintln!("error: {}", one_line(&error.to_string()));
            }
            return ExitCode::from(CONFIG);
        }
    };
    if matches!(&address, ListenAddress::Inet(InetAddress { port: 0, .. })) {
        eprintln!("error: StatusSocket has port 0, which is another at each start; name a port");
        return ExitCode::from(CONFIG);
    }
    match answer(&address, question) {
        Ok((is_yes, body)) => {
            let mut output = io::stdout();
            let written = output.write_all(body.as_bytes());
            match written.and_then(|()| output.flush()) {
                // Who has read enough has.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                // The other answers are in the code, where nobody reads.
                Err(error) if question == Question::Metrics => {
                    eprintln!("error: standard output: {}", cause(&error));
                    return ExitCode::from(IOERR);
                }
                Ok(()) | Err(_) => {}
            }
            ExitCode::from(if is_yes { OK } else { TEMPFAIL })
        }
        Err(why) => {
            eprintln!(
                "error: {}",
                one_line(&format!("no answer from {address}: {why}"))
            );
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// Whether the answer is yes, and what it says.
fn answer(address: &ListenAddress, question: Question) -> Result<(bool, String), String> {
    let until = Instant::now() + PATIENCE;
    let connected = match address {
        ListenAddress::Unix(path) => connect_unix(path, until),
        ListenAddress::Inet(inet) => connect_inet(inet, until),
    };
    let octets = connected.and_then(|socket| converse(socket, question, until));
    read_answer(&octets.map_err(|error| cause(&error))?)
}

/// The kernel has who connects wait as long as the queue of those who do is full, which is that of a daemon that is
/// stopped.
fn connect_unix(path: &Path, until: Instant) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(left(until)?))?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other("it takes no connection"))
        }
        done => done.map(|()| socket),
    }
}

/// The first of the addresses that takes a connection.
fn connect_inet(wanted: &InetAddress, until: Instant) -> io::Result<Socket> {
    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let addresses = match &wanted.host {
        // What is open on all addresses is open on this one.
        Host::Loopback(families) | Host::Any(families) => match families {
            Families::V4 => vec![V4],
            Families::V6 => vec![V6],
            Families::Both => vec![V4, V6],
        },
        Host::Address(address) if address.is_unspecified() && address.is_ipv4() => vec![V4],
        Host::Address(address) if address.is_unspecified() => vec![V6],
        Host::Address(address) => vec![*address],
        Host::Name(name, _) => (name.as_str(), wanted.port)
            .to_socket_addrs()?
            .map(|address| address.ip())
            .collect(),
    };
    let mut last = io::Error::other("the name has no address");
    for address in addresses {
        let address = SocketAddr::new(address, wanted.port);
        let connected =
            Socket::new(Domain::for_address(address), Type::STREAM, None).and_then(|socket| {
                socket.connect_timeout(&address.into(), left(until)?)?;
                Ok(socket)
            });
        match connected {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn converse(mut socket: Socket, question: Question, until: Instant) -> io::Result<Vec<u8>> {
    socket.set_write_timeout(Some(left(until)?))?;
    let path = question.path();
    let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    // Who hangs up before it was asked is another, whose words are read all the same.
    let _ = socket.write_all(asked.as_bytes());
    let mut octets = Vec::new();
    let mut part = vec![0; 16 * 1024];
    while octets.len() < LONGEST_ANSWER {
        // Anew for each read: an octet now and then is no answer.
        socket.set_read_timeout(Some(left(until)?))?;
        match socket.read(&mut part) {
            Ok(0) => break,
            Ok(read) => octets.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(octets)
}

/// How long may still be waited.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    // A time-out of nothing would be none.
    if left < Duration::from_millis(1) {
        Err(silent())
    } else {
        Ok(left)
    }
}

fn silent() -> io::Error {
    io::Error::other("it took the question and does not answer")
}

/// Only a whole answer of a daemon of ours is one: another program may have the port, and say 200 to everything.
fn read_answer(octets: &[u8]) -> Result<(bool, String), String> {
    let text = String::from_utf8_lossy(octets);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let field = |name: &str| {
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    };
    let code = head
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let is_yes = match code {
        Some("200") => true,
        Some("503") => false,
        _ => return Err(OTHER.to_owned()),
    };
    if field("server") != Some(SERVER) {
        return Err(OTHER.to_owned());
    }
    if field("content-length") != Some(&body.len().to_string()) {
        return Err("its answer is cut off".to_owned());
    }
    // Whoever calls itself ours must not play with the terminal.
    let shown = body.chars().filter(|c| *c == '\n' || !is_steering(*c));
    Ok((is_yes, shown.collect()))
}

const OTHER: &str = "something else listens there";

/// Longer than an answer takes, and shorter than a health check.
const PATIENCE: Duration = Duration::from_secs(3);
const LONGEST_ANSWER: usize = 1 << 20;

/// Exit codes, by their names in sysexits.h.
const OK: u8 = 0;
const UNAVAILABLE: u8 = 69;
const IOERR: u8 = 74;
const TEMPFAIL: u8 = 75;
const CONFIG: u8 = 78;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_of_ours_is_taken_for_one() {
        let read = |text: &str| read_answer(text.as_bytes());
        let fields = "content-type: text/plain\r\nServer: dkim-milter\r\nContent-Length";
        assert_eq!(
            read(&format!(
                "HTTP/1.1 503 Service Unavailable\r\n{fields}: 7\r\n\r\na: b\nc\x1b\n"
            )),
            Err("its answer is cut off".into())
        );
        assert_eq!(
            read(&format!(
                "HTTP/1.1 503 Service Unavailable\r\n{fields}: 8\r\n\r\na: b\nc\x1b\n"
            )),
            Ok((false, "a: b\nc\n".into()))
        );
        assert_eq!(
            read(&format!("HTTP/1.1 200 OK\r\n{fields}: 3\r\n\r\nok\n")),
            Ok((true, "ok\n".into()))
        );
        for other in [
            "",
            "220 mail.example ESMTP\r\n",
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n",
            "HTTP/1.1 200 OK\r\nserver: nginx\r\ncontent-length: 3\r\n\r\nok\n",
            "HTTP/1.1 \u{fc}\u{fc}\r\n\r\n",
        ] {
            let why = read(other).unwrap_err();
            assert_eq!(why, "something else listens there", "{other:?}");
        }
    }
}
