//! One connection's socket, TCP or Unix, and what TCP needs so that nobody waits for nothing.
//!
//! Postfix does not switch off Nagle's algorithm: a packet that gets no answer makes its next small one wait for our
//! acknowledgement, which the kernel holds back for 40 ms unless told otherwise each time. Hence
//! [`quick_ack`](Stream::quick_ack).

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::listener::ListeningSocket;

/// A socket that accepts connections on the event loop.
#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// Hands `socket` to the event loop of the current runtime.
    pub(super) fn new(socket: ListeningSocket) -> io::Result<Self> {
        Ok(match socket {
            ListeningSocket::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
            ListeningSocket::Unix(socket) => Self::Unix(UnixListener::from_std(socket)?),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = tune(&stream) {
                    tracing::debug!("socket options: {error}");
                }
                Stream::Tcp(stream)
            }
            Self::Unix(listener) => Stream::Unix(listener.accept().await?.0),
        })
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Reads what is there into the spare capacity of `buffer`, waiting until there is something; 0 at the end of the
    /// stream. Nothing is lost when it is dropped before it is done.
    pub(super) async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_buf(buffer).await,
            Self::Unix(stream) => stream.read_buf(buffer).await,
        }
    }

    pub(super) async fn write_all(&mut self, octets: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(octets).await,
            Self::Unix(stream) => stream.write_all(octets).await,
        }
    }

    pub(super) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Has what was read acknowledged now, where no answer will carry the acknowledgement.
    pub(super) fn quick_ack(&self) {
        if let Self::Tcp(stream) = self {
            // If it fails the MTA waits a little, no more.
            let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
        }
    }
}

/// Answers leave at once, and an MTA's host that died is noticed within minutes.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(300))
        .with_interval(Duration::from_secs(60))
        .with_retries(5);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
