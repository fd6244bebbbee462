//! The local syslog: datagrams to `/dev/log` in the form of RFC 3164.
//!
//! The time is left to the syslog daemon (RFC 3164 section 4.3.3 has it add what is missing): it knows the local zone.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use tracing::Level;

use super::line::severity;

/// The socket of the local syslog daemon.
pub const DEVICE: &str = "/dev/log";

/// A connection to the syslog daemon, made anew whenever it breaks.
#[derive(Debug)]
pub(super) struct Syslog {
    path: PathBuf,
    facility: u8,
    tag: String,
    socket: Option<UnixDatagram>,
    lost: u64,
}

impl Syslog {
    /// Connects when the first line is written.
    pub(super) fn new(path: PathBuf, facility: u8, name: &str) -> Self {
        Self {
            path,
            facility,
            tag: format!("{name}[{}]: ", std::process::id()),
            socket: None,
            lost: 0,
        }
    }

    /// Writes a line, or counts it as lost; a count goes out before the next line that can be written.
    pub(super) fn write(&mut self, level: Level, text: &str) {
        if self.lost > 0 {
            let note = format!("lines lost before this one: {}", self.lost);
            if self.send(Level::WARN, &note).is_ok() {
                self.lost = 0;
            }
        }
        if self.send(level, text).is_err() {
            self.lost += 1;
        }
    }

    fn send(&mut self, level: Level, text: &str) -> io::Result<()> {
        let datagram = format!(
            "<{}>{}{text}",
            u16::from(self.facility) * 8 + u16::from(severity(level)),
            self.tag
        );
        if let Some(socket) = &self.socket {
            match socket.send(datagram.as_bytes()) {
                Ok(_) => return Ok(()),
                // Full: the daemon lives and does not keep up.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => self.socket = None,
            }
        }
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(&self.path)?;
        socket.send(datagram.as_bytes())?;
        self.socket = Some(socket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_daemon_is_found_again_and_told_what_was_lost() {
        let path = std::env::temp_dir().join(format!("dkim-syslog-{}", std::process::id()));
        let mut syslog = Syslog::new(path.clone(), 2, "dkim");
        let mut buffer = [0; 200];
        let mut told = |daemon: &UnixDatagram| {
            let octets = daemon.recv(&mut buffer).unwrap();
            let line = String::from_utf8_lossy(&buffer[..octets]).into_owned();
            line.split_once(": ").unwrap().1.to_owned()
        };
        syslog.write(Level::INFO, "nobody");
        let first = UnixDatagram::bind(&path).unwrap();
        syslog.write(Level::INFO, "one");
        assert_eq!(told(&first), "lines lost before this one: 1");
        assert_eq!(told(&first), "one");
        drop(first);
        std::fs::remove_file(&path).unwrap();
        syslog.write(Level::INFO, "two");
        syslog.write(Level::INFO, "three");
        let second = UnixDatagram::bind(&path).unwrap();
        syslog.write(Level::INFO, "four");
        assert_eq!(told(&second), "lines lost before this one: 2");
        assert_eq!(told(&second), "four");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_daemon_that_does_not_read_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("dkim-syslog-full-{}", std::process::id()));
        let daemon = UnixDatagram::bind(&path).unwrap();
        let mut syslog = Syslog::new(path.clone(), 2, "dkim");
        let text = "x".repeat(4000);
        for _ in 0..10_000 {
            syslog.write(Level::INFO, &text);
        }
        assert!(syslog.lost > 0);
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
    }
}
