//! Sockets to listen on: opened by the configuration or handed over by the service manager.
//!
//! A Unix socket is bound under a temporary name and renamed into place once it listens, so that a restart leaves no
//! moment without one, and nobody connects to one whose mode is not yet set. A socket file that a dead process left is
//! replaced; one that a living process listens on is left alone. When a listener is dropped its file goes with it,
//! unless another process has put its own in that place.
//!
//! Everything here is done before the event loop starts.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::{self, Families, Host, InetAddress, ListenAddress};
use crate::shown::cause;

/// A socket that listens; no connection is accepted yet.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: ListeningSocket,
    address: String,
    /// Who wanted it.
    origin: String,
    /// The file to remove in the end.
    file: Option<SocketFile>,
}

#[derive(Debug)]
pub(super) enum ListeningSocket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// How Unix sockets are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Mode bits that they shall not have; `None` for the process' own mask.
    pub umask: Option<u32>,
    /// The user and the group that shall own them.
    pub owner: Option<(u32, u32)>,
}

/// A socket that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {fault}")]
pub struct ListenError {
    /// Where.
    pub address: String,
    /// Why not.
    pub fault: ListenFault,
}

/// Why a socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ListenFault {
    /// The system's reason.
    #[error("{}", cause(.0))]
    System(#[from] io::Error),
    /// Somebody answers there.
    #[error("another process is listening there")]
    InUse,
    /// The path is taken by something that nobody made as a socket.
    #[error("something that is not a socket is there")]
    NotASocket,
    /// The directory is missing.
    #[error("there is no directory {}", .0.display())]
    NoDirectory(PathBuf),
    /// A name without an address of the family.
    #[error("the name {0} has no suitable address")]
    NoAddress(String),
}

impl Listener {
    /// Opens the sockets of `wanted`; each entry may be several.
    ///
    /// # Errors
    /// The first that cannot be had. A loopback address that the host lacks is only logged if there is another one.
    pub fn open(wanted: &config::Listener, options: FileOptions) -> Result<Vec<Self>, ListenError> {
        let opened = match &wanted.address {
            ListenAddress::Unix(path) => open_unix(path, options).map(|listener| vec![listener]),
            ListenAddress::Inet(inet) => open_inet(inet),
        };
        let mut opened = opened.map_err(|fault| ListenError {
            address: format!("{} ({})", wanted.address, wanted.origin),
            fault,
        })?;
        for listener in &mut opened {
            listener.origin = wanted.origin.to_string();
        }
        Ok(opened)
    }

    /// Takes the sockets that the service manager handed over (sd_listen_fds(3)), if any.
    ///
    /// To be called once, before there are threads: it clears the environment variables that tell of them.
    ///
    /// # Errors
    /// A descriptor that is no stream socket.
    pub fn inherited() -> Result<Vec<Self>, ListenError> {
        let mut handed_over = ListenFd::from_env();
        (0..handed_over.len())
            .filter_map(|index| take(&mut handed_over, index).transpose())
            .collect::<io::Result<_>>()
            .map_err(|error| ListenError {
                address: "the socket of the service manager".to_owned(),
                fault: error.into(),
            })
    }

    /// Where it listens, as in the configuration, with the port that was found if any would do.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The TCP address, if it is one.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListeningSocket::Tcp(socket) => socket.local_addr().ok(),
            ListeningSocket::Unix(_) => None,
        }
    }

    /// Whether other hosts can connect.
    pub fn is_open_to_others(&self) -> bool {
        self.tcp_address()
            .is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// Whether it is a socket file that only its owner, and root, can connect to.
    pub fn is_private(&self) -> bool {
        let metadata = self
            .file
            .as_ref()
            .map(|file| fs::symlink_metadata(&file.path));
        metadata.is_some_and(|metadata| {
            metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o022 == 0)
        })
    }

    /// What tells whether MTAs still find the socket, if it is a file.
    pub(super) fn watch(&self) -> Option<FileWatch> {
        let made = self.file.as_ref().map(|file| (&*file.path, file.inode));
        let (path, inode) = match made {
            Some((path, inode)) => (path.to_owned(), inode),
            // The service manager's is as it is now.
            None => {
                let path = match &self.socket {
                    ListeningSocket::Unix(socket) => {
                        socket.local_addr().ok()?.as_pathname()?.to_owned()
                    }
                    ListeningSocket::Tcp(_) => return None,
                };
                let metadata = fs::symlink_metadata(&path).ok()?;
                (path, inode(&metadata))
            }
        };
        Some(FileWatch {
            address: self.address.clone(),
            path,
            inode,
        })
    }

    /// Takes the socket apart from what is to be removed when the latter is dropped.
    pub(super) fn split(self) -> (ListeningSocket, String, Option<SocketFile>) {
        (self.socket, self.address, self.file)
    }
}

/// The file of a Unix socket; removed on drop if it is still the one that was made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|metadata| inode(&metadata) == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!("socket {} stays: {error}", self.path.display());
        }
    }
}

/// Knows the file of a Unix socket again.
#[derive(Clone, Debug)]
pub(super) struct FileWatch {
    address: String,
    path: PathBuf,
    inode: (u64, u64),
}

impl FileWatch {
    /// Why an MTA that wants to connect does not find us, if so; without connecting.
    pub(super) fn fault(&self) -> Option<String> {
        let why = match fs::symlink_metadata(&self.path) {
            Ok(metadata) if inode(&metadata) == self.inode => return None,
            Ok(_) => "was replaced: MTAs reach another process or none",
            Err(error) if is_absence(&error) => "was removed: no MTA can connect",
            // Whoever has become another user may not be let in there; MTAs may.
            Err(_) => return None,
        };
        Some(format!("{} {why}; a restart makes it anew", self.address))
    }
}

fn is_absence(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind())
}

fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn take(handed_over: &mut ListenFd, index: usize) -> io::Result<Option<Listener>> {
    // A wrong kind leaves the descriptor where it is.
    let socket = match handed_over.take_unix_listener(index) {
        Ok(socket) => socket.map(ListeningSocket::Unix),
        Err(_) => handed_over
            .take_tcp_listener(index)?
            .map(ListeningSocket::Tcp),
    };
    let Some(socket) = socket else {
        return Ok(None);
    };
    let address = match &socket {
        ListeningSocket::Tcp(socket) => {
            socket.set_nonblocking(true)?;
            told(socket.local_addr()?)
        }
        ListeningSocket::Unix(socket) => {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            address.as_pathname().map_or_else(
                || "an unnamed Unix socket".to_owned(),
                |path| format!("local:{}", path.display()),
            )
        }
    };
    Ok(Some(Listener {
        socket,
        address,
        origin: "the service manager".to_owned(),
        file: None,
    }))
}

fn open_inet(wanted: &InetAddress) -> Result<Vec<Listener>, ListenFault> {
    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let port = wanted.port;
    match &wanted.host {
        Host::Loopback(Families::V4) => open_all(&[V4], port),
        Host::Loopback(Families::V6) => open_all(&[V6], port),
        Host::Loopback(Families::Both) => open_either(&[V4, V6], port),
        Host::Any(families) => {
            let any = [
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            ];
            match families {
                Families::V4 => open_all(&any[..1], port),
                Families::V6 => open_all(&any[1..], port),
                Families::Both => open_either(&any, port),
            }
        }
        Host::Address(address) => open_all(&[*address], port),
        Host::Name(name, families) => {
            let mut addresses: Vec<IpAddr> = (name.as_str(), port)
                .to_socket_addrs()?
                .map(|found| found.ip())
                .collect();
            addresses.retain(|address| match families {
                Families::V4 => address.is_ipv4(),
                Families::V6 => address.is_ipv6(),
                Families::Both => true,
            });
            addresses.dedup();
            if addresses.is_empty() {
                return Err(ListenFault::NoAddress(name.clone()));
            }
            open_all(&addresses, port)
        }
    }
}

/// One port, at every one of `addresses`.
fn open_all(addresses: &[IpAddr], mut port: u16) -> Result<Vec<Listener>, ListenFault> {
    let mut opened = Vec::new();
    for address in addresses {
        let listener = open_tcp(SocketAddr::new(*address, port))?;
        port = listener.tcp_address().map_or(port, |found| found.port());
        opened.push(listener);
    }
    Ok(opened)
}

/// One port, at those of `addresses` whose family the host has.
fn open_either(addresses: &[IpAddr], mut port: u16) -> Result<Vec<Listener>, ListenFault> {
    let mut opened: Vec<Listener> = Vec::new();
    let mut missing = None;
    for address in addresses {
        match open_tcp(SocketAddr::new(*address, port)) {
            Ok(listener) => {
                port = listener.tcp_address().map_or(port, |found| found.port());
                opened.push(listener);
            }
            Err(error) if lacks_family(&error) => missing = Some((address, error)),
            Err(error) => return Err(error.into()),
        }
    }
    match missing {
        Some((_, error)) if opened.is_empty() => Err(error.into()),
        Some((address, error)) => {
            tracing::warn!("not listening on {address}, which this host lacks: {error}");
            Ok(opened)
        }
        None => Ok(opened),
    }
}

fn lacks_family(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL]
        .contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
}

fn open_tcp(address: SocketAddr) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Without it, connections of a process just ended keep the port for a minute.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let socket = std::net::TcpListener::from(socket);
    Ok(Listener {
        address: told(socket.local_addr()?),
        socket: ListeningSocket::Tcp(socket),
        origin: String::new(),
        file: None,
    })
}

fn told(address: SocketAddr) -> String {
    let form = if address.is_ipv6() { "inet6" } else { "inet" };
    match address.ip() {
        IpAddr::V4(ip) => format!("{form}:{}@{ip}", address.port()),
        IpAddr::V6(ip) => format!("{form}:{}@[{ip}]", address.port()),
    }
}

fn open_unix(path: &Path, options: FileOptions) -> Result<Listener, ListenFault> {
    let directory = path.parent().unwrap_or("/".as_ref());
    if !directory.is_dir() {
        return Err(ListenFault::NoDirectory(directory.to_owned()));
    }
    refuse_living(path)?;
    let temporary = directory.join(format!(".{:x}", std::process::id()));
    let made = make_unix(&temporary, path, options);
    if made.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    Ok(made?)
}

/// Fails if `path` is taken by anything but a socket that nobody listens on.
fn refuse_living(path: &Path) -> Result<(), ListenFault> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ListenFault::NotASocket),
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // One that is alive and busy would have us wait.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error.into()),
        Ok(()) | Err(_) => Err(ListenFault::InUse),
    }
}

fn make_unix(temporary: &Path, path: &Path, options: FileOptions) -> io::Result<Listener> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(temporary)?)?;
    give_away(temporary, options)?;
    socket.listen(BACKLOG)?;
    let inode = inode(&fs::symlink_metadata(temporary)?);
    fs::rename(temporary, path)?;
    Ok(Listener {
        socket: ListeningSocket::Unix(socket.into()),
        address: format!("local:{}", path.display()),
        origin: String::new(),
        file: Some(SocketFile {
            path: path.to_owned(),
            inode,
        }),
    })
}

/// Sets mode and owner of the socket file that was just made.
///
/// The directory may be the daemon's user's, who must not have root do the same to a file of another's by putting a link
/// in that place: so it is done to what was opened and looked at, not to a path.
fn give_away(made: &Path, options: FileOptions) -> io::Result<()> {
    let file = rustix::fs::open(
        made,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    if !metadata.file_type().is_socket() {
        return Err(io::Error::other("somebody replaced the socket file"));
    }
    if let Some((user, group)) = options.owner {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        rustix::fs::chownat(&file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
    }
    if let Some(umask) = options.umask
        && metadata.mode() & 0o777 != 0o777 & !umask
    {
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(opened, fs::Permissions::from_mode(0o777 & !umask))?;
    }
    Ok(())
}

impl fmt::Display for Listener {
    /// The address, for a socket file who may connect, and who wanted it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        if let Some(Ok(metadata)) = self
            .file
            .as_ref()
            .map(|file| fs::symlink_metadata(&file.path))
        {
            let mode = metadata.permissions().mode() & 0o777;
            write!(
                f,
                ", owner {}:{}, mode {mode:04o}",
                metadata.uid(),
                metadata.gid()
            )?;
        }
        write!(f, " ({})", self.origin)
    }
}

/// How many connections wait for us to accept them; the system caps it (net.core.somaxconn).
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Origin;
    use crate::tables::test_dir::TestDir;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    fn open(address: ListenAddress, options: FileOptions) -> Result<Vec<Listener>, String> {
        let wanted = config::Listener {
            address,
            origin: Origin::Default,
        };
        Listener::open(&wanted, options).map_err(|error| error.to_string())
    }

    fn inet(host: Host) -> Vec<Listener> {
        open(
            ListenAddress::Inet(InetAddress { port: 0, host }),
            FileOptions::default(),
        )
        .unwrap()
    }

    #[test]
    fn localhost_is_both_families_on_one_port() {
        let listeners = inet(Host::Loopback(Families::Both));
        let port = listeners[0].tcp_address().unwrap().port();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        if listeners.len() > 1 {
            assert!(TcpStream::connect(("::1", port)).is_ok());
        }
        assert_eq!(listeners[0].address(), format!("inet:{port}@127.0.0.1"));
        assert!(!listeners[0].is_open_to_others());
        assert!(inet(Host::Any(Families::V4))[0].is_open_to_others());
        assert_eq!(
            inet(Host::Name("localhost".to_owned(), Families::V4)).len(),
            1
        );
    }

    #[test]
    fn a_socket_file_has_the_mode_that_was_asked_for() {
        let dir = TestDir::new("socket");
        for (umask, mode) in [(0o007, 0o770), (0o117, 0o660), (0, 0o777)] {
            let options = FileOptions {
                umask: Some(umask),
                owner: None,
            };
            let _listener = open(ListenAddress::Unix(dir.path("s")), options).unwrap();
            let found = fs::symlink_metadata(dir.path("s"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777;
            assert_eq!(found, mode, "{umask:o}");
        }
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let dir = TestDir::new("socket");
        let address = || ListenAddress::Unix(dir.path("s"));
        drop(std::os::unix::net::UnixListener::bind(dir.path("s")).unwrap());
        let living = open(address(), FileOptions::default()).unwrap();
        assert!(UnixStream::connect(dir.path("s")).is_ok());
        let error = open(address(), FileOptions::default()).unwrap_err();
        let wanted = format!(
            "cannot listen on local:{} (default): another process is listening there",
            dir.path("s").display()
        );
        assert_eq!(error, wanted);
        drop(living);
        assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 0);
        dir.write("s", "");
        assert!(
            open(address(), FileOptions::default())
                .unwrap_err()
                .contains("not a socket")
        );
        let error = open(
            ListenAddress::Unix(dir.path("none/s")),
            FileOptions::default(),
        )
        .unwrap_err();
        assert!(
            error.ends_with(&format!(
                "there is no directory {}",
                dir.path("none").display()
            )),
            "{error}"
        );
    }

    #[test]
    fn a_socket_file_that_is_gone_or_another_is_noticed() {
        let dir = TestDir::new("socket");
        let made = open(ListenAddress::Unix(dir.path("s")), FileOptions::default()).unwrap();
        let watch = made[0].watch().unwrap();
        assert_eq!(watch.fault(), None);
        fs::rename(dir.path("s"), dir.path("t")).unwrap();
        let fault = watch.fault().unwrap();
        let wanted = format!("local:{} was removed: ", dir.path("s").display());
        assert!(fault.starts_with(&wanted), "{fault}");
        dir.write("s", "");
        let fault = watch.fault().unwrap();
        assert!(fault.contains("s was replaced: "), "{fault}");
        fs::rename(dir.path("t"), dir.path("s")).unwrap();
        assert_eq!(watch.fault(), None);
        assert!(inet(Host::Loopback(Families::V4))[0].watch().is_none());
    }

    #[test]
    fn a_socket_that_another_process_put_there_stays() {
        let dir = TestDir::new("socket");
        let mut ours = open(ListenAddress::Unix(dir.path("s")), FileOptions::default()).unwrap();
        let (socket, _, file) = ours.remove(0).split();
        // What a successor finds once we no longer listen.
        drop(socket);
        let _theirs = open(ListenAddress::Unix(dir.path("s")), FileOptions::default()).unwrap();
        drop(file);
        assert!(UnixStream::connect(dir.path("s")).is_ok());
    }
}
