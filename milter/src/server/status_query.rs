//! `--status`: asks the status socket of a daemon that runs, for people, scripts and container health checks.
//!
//! The answer is that of `status_socket`, a head and a body of known length, so a read to the end and two cuts do.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use socket2::SockRef;

use super::Source;
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
/// nobody answers, 78 when the configuration does not say whom to ask.
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
            // The code says it where nobody reads.
            let _ = io::stdout().write_all(body.as_bytes());
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
    let octets = match address {
        ListenAddress::Unix(path) => {
            UnixStream::connect(path).and_then(|stream| converse(stream, question))
        }
        ListenAddress::Inet(inet) => connect(inet).and_then(|stream| converse(stream, question)),
    };
    read_answer(&octets.map_err(|error| cause(&error))?)
}

/// The first of the addresses that takes a connection.
fn connect(wanted: &InetAddress) -> io::Result<TcpStream> {
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
        match TcpStream::connect_timeout(&SocketAddr::new(address, wanted.port), PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn converse<S: Read + Write + AsFd>(mut stream: S, question: Question) -> io::Result<Vec<u8>> {
    let socket = SockRef::from(&stream);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let path = question.path();
    // Who hangs up before it was asked is another, whose words are read all the same.
    let _ = write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    let mut octets = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut octets) {
        Ok(_) => Ok(octets),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other("it took the question and does not answer"))
        }
        Err(error) => Err(error),
    }
}

fn read_answer(octets: &[u8]) -> Result<(bool, String), String> {
    let text = String::from_utf8_lossy(octets);
    let is_ours = |(head, body): (&str, &str)| {
        let code = head.strip_prefix("HTTP/1.1 ")?.get(..3)?;
        let is_yes = match code {
            "200" => true,
            "503" => false,
            _ => return None,
        };
        // Whoever listens there must not play with the terminal.
        let body = body.chars().filter(|c| *c == '\n' || !is_steering(*c));
        Some((is_yes, body.collect()))
    };
    text.split_once("\r\n\r\n")
        .and_then(is_ours)
        .ok_or_else(|| "something else listens there".to_owned())
}

/// Longer than an answer takes, and shorter than a health check.
const PATIENCE: Duration = Duration::from_secs(2);
const LONGEST_ANSWER: u64 = 1 << 20;

/// Exit codes, by their names in sysexits.h.
const OK: u8 = 0;
const UNAVAILABLE: u8 = 69;
const TEMPFAIL: u8 = 75;
const CONFIG: u8 = 78;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_of_ours_is_taken_for_one() {
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\n";
        let read = |text: &str| read_answer(text.as_bytes());
        assert_eq!(
            read(&format!("{head}a: b\nc\x1b\n")),
            Ok((false, "a: b\nc\n".into()))
        );
        assert_eq!(
            read("HTTP/1.1 200 OK\r\n\r\nok\n"),
            Ok((true, "ok\n".into()))
        );
        for other in [
            "",
            "220 mail.example ESMTP\r\n",
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 \u{fc}\u{fc}\r\n\r\n",
        ] {
            let why = read(other).unwrap_err();
            assert_eq!(why, "something else listens there", "{other:?}");
        }
    }
}
