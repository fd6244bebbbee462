//! A server on loopback ports and Unix sockets within the test's process, and an MTA that talks to it.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dkim_milter::config::{
    Families, Host, InetAddress, ListenAddress, Listener as Wanted, Overrides,
};
use dkim_milter::protocol::command::{Command, Offer};
use dkim_milter::protocol::envelope::Envelope;
use dkim_milter::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
use dkim_milter::protocol::macros::MacroPairs;
use dkim_milter::protocol::mta::{self, Answer};
use dkim_milter::protocol::negotiation::Negotiated;
use dkim_milter::protocol::peer::Peer;
use dkim_milter::server::{
    FileOptions, Listener, Loader, Options, Patience, Source, State, Stop, run,
};
use dkim_milter::tables::Origin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const RSA: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/rsa2048.pem");
pub const ED25519: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/ed25519.pem");

/// A directory of the test's own, removed in the end.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("dkim-server-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, octets: impl AsRef<[u8]>) {
        // At once, as a reload under way may be reading it.
        let whole = self.path(&format!("{name}.new"));
        fs::write(&whole, octets).unwrap();
        fs::rename(whole, self.path(name)).unwrap();
    }

    pub fn write_key(&self, name: &str, octets: &[u8]) {
        self.write(name, octets);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything that a server is started with.
pub struct Setup {
    pub dir: Dir,
    pub options: Vec<String>,
    pub patience: Patience,
    pub most_connections: usize,
}

impl Setup {
    /// One that signs for example.com with selector `r`.
    pub fn new() -> Self {
        let dir = Dir::new();
        dir.write_key("rsa", RSA);
        dir.write("KeyTable", "k example.com:r:./rsa\n");
        dir.write("SigningTable", "*@example.com k\n");
        dir.write("PublicKeys", "");
        let options = vec![
            "AuthservID=mx.example.org".to_owned(),
            "KeyTable=file:KeyTable".to_owned(),
            "SigningTable=refile:SigningTable".to_owned(),
            format!("TestPublicKeys={}", dir.path("PublicKeys").display()),
        ];
        Self {
            dir,
            options,
            patience: Patience::default(),
            most_connections: 10_000,
        }
    }

    pub fn set(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    pub fn source(&self) -> Source {
        self.dir.write(
            "conf",
            format!("BaseDirectory {}\n", self.dir.root().display()),
        );
        Source {
            path: Some(self.dir.path("conf")),
            overrides: Overrides {
                set: self.options.clone(),
                ..Overrides::default()
            },
            look_ups: Arc::default(),
        }
    }

    /// Starts it on one TCP port and one Unix socket.
    pub fn start(self) -> Server {
        let loaded = self
            .source()
            .load()
            .unwrap_or_else(|error| panic!("{:?}", error.errors));
        self.start_with(loaded.state)
    }

    pub fn start_with(self, state: State) -> Server {
        let host = Host::Loopback(Families::V4);
        let addresses = [
            ListenAddress::Inet(InetAddress { port: 0, host }),
            ListenAddress::Unix(self.dir.path("socket")),
        ];
        let mut listeners = Vec::new();
        for address in addresses {
            let wanted = Wanted {
                address,
                origin: Origin::Default,
            };
            listeners.extend(Listener::open(&wanted, FileOptions::default()).unwrap());
        }
        let tcp = listeners[0].tcp_address().unwrap();
        let (stop, stopped) = watch::channel(Stop::No);
        let (reload, reloads) = mpsc::channel(1);
        let state = Arc::new(ArcSwap::from_pointee(state));
        let source = self.source();
        let loader: Loader = Arc::new(move || source.load());
        let options = Options {
            patience: self.patience,
            most_connections: self.most_connections,
            loader,
            changed: Arc::default(),
            vitals: Arc::default(),
        };
        let running = tokio::spawn(run(
            listeners,
            Arc::clone(&state),
            options,
            reloads,
            stopped,
        ));
        Server {
            dir: self.dir,
            tcp,
            state,
            stop,
            reload,
            running,
        }
    }
}

pub struct Server {
    pub dir: Dir,
    pub tcp: SocketAddr,
    pub state: Arc<ArcSwap<State>>,
    pub stop: watch::Sender<Stop>,
    pub reload: mpsc::Sender<()>,
    pub running: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub async fn connect(&self) -> Mta<TcpStream> {
        Mta::new(TcpStream::connect(self.tcp).await.unwrap())
    }

    pub async fn connect_unix(&self) -> Mta<UnixStream> {
        Mta::new(UnixStream::connect(self.dir.path("socket")).await.unwrap())
    }

    /// Reloads, and waits until that is over: `done` looks at the state and says whether it is.
    pub async fn reload(&self, done: impl Fn(&State) -> bool) {
        self.reload.send(()).await.unwrap();
        for _ in 0..500 {
            if done(&self.state.load()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not reloaded");
    }

    /// Waits for the end of [`run`].
    pub async fn ended(self) -> Dir {
        let ended = timeout(PATIENCE, self.running).await;
        ended.expect("must end").unwrap().unwrap();
        self.dir
    }
}

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The MTA's end of a connection. It checks answers as Postfix does.
pub struct Mta<S> {
    pub stream: S,
    unread: Vec<u8>,
    negotiated: Negotiated,
}

/// What a message came to: its edits, and the answer that ended it; each by its letter and its data.
pub type Answers = Vec<(u8, Vec<u8>)>;

impl<S: AsyncRead + AsyncWrite + Unpin> Mta<S> {
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            unread: Vec::new(),
            negotiated: Negotiated::default(),
        }
    }

    pub async fn send(&mut self, commands: &[Command<'_>]) {
        let mut octets = Vec::new();
        for command in commands {
            mta::encode(command, &mut octets);
        }
        self.stream.write_all(&octets).await.unwrap();
    }

    /// All answers to one command. `None`: the milter hung up.
    pub async fn answers(&mut self) -> Option<Answers> {
        let mut answers = Vec::new();
        loop {
            match decode(&self.unread, DEFAULT_LIMIT) {
                Decoded::Frame(frame) => {
                    let data = self.unread[frame.data].to_vec();
                    let ends = Answer::parse(frame.command, &data).unwrap().ends_command();
                    self.unread.drain(..frame.consumed);
                    answers.push((frame.command, data));
                    if ends {
                        return Some(answers);
                    }
                }
                Decoded::NeedMore { .. } => {
                    let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
                    if !matches!(read.expect("an answer must come"), Ok(1..)) {
                        return None;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// One command with its one answer's letter; `!` if the milter hung up.
    pub async fn ask(&mut self, command: Command<'_>) -> char {
        self.send(&[command]).await;
        match self.answers().await.as_deref() {
            Some([(letter, _)]) => char::from(*letter),
            Some(other) => panic!("{other:?}"),
            None => '!',
        }
    }

    /// One command, and its one answer's letter; `c`, to go on, if it is one that goes unanswered.
    pub async fn tell(&mut self, command: Command<'_>) -> char {
        if self.negotiated.expects_reply(command.code()) {
            return self.ask(command).await;
        }
        self.send(&[command]).await;
        'c'
    }

    /// Negotiates as Postfix does, and tells of a client on this host.
    pub async fn greet(&mut self) {
        let offer = Offer {
            version: 6,
            actions: 0x1ff,
            steps: 0x1f_ffff,
        };
        self.send(&[Command::OptNeg(offer)]).await;
        let (letter, data) = self.answers().await.unwrap().remove(0);
        let Ok(Answer::OptNeg {
            version,
            actions,
            steps,
            ..
        }) = Answer::parse(letter, &data)
        else {
            panic!("{letter}")
        };
        self.negotiated = Negotiated {
            version,
            actions,
            steps,
            progress: true,
        };
        let peer = Peer::Inet("127.0.0.1".parse().unwrap(), 40_000);
        let macros = MacroPairs::new(b"j\0mx.example.org\0");
        self.send(&[Command::Macros {
            stage: b'C',
            pairs: macros,
        }])
        .await;
        let host = b"localhost";
        assert_eq!(self.ask(Command::Connect { host, peer }).await, 'c');
    }

    /// The answer to MAIL, a letter.
    pub async fn mail(&mut self) -> char {
        let macros = MacroPairs::new(b"i\x004Fabc\0");
        self.send(&[Command::Macros {
            stage: b'M',
            pairs: macros,
        }])
        .await;
        self.tell(Command::Mail(Envelope::new(b"<ann@example.com>", b"")))
            .await
    }

    /// All between MAIL and the end, for a message by an author at `domain`.
    pub async fn header_and_body(&mut self, domain: &str, body: &[u8]) {
        assert_eq!(
            self.tell(Command::Rcpt(Envelope::new(b"<bo@example.net>", b"")))
                .await,
            'c'
        );
        assert_eq!(self.tell(Command::Data).await, 'c');
        let from = format!(" Ann <ann@{domain}>");
        for (name, value) in [
            ("From", from.as_str()),
            ("Subject", " test"),
            ("Date", " Tue, 06 Jan 2026 10:00:00 +0000"),
        ] {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.tell(Command::Header { name, value }).await;
        }
        assert_eq!(self.ask(Command::EndOfHeader).await, 'c');
        for chunk in body.chunks(65_535) {
            if self.tell(Command::Body(chunk)).await == 's' {
                break;
            }
        }
    }

    pub async fn end(&mut self) -> Answers {
        self.send(&[Command::EndOfBody(b"")]).await;
        self.answers().await.expect("an answer to the end")
    }

    /// A message whole, after [`greet`](Self::greet).
    pub async fn message(&mut self, domain: &str, body: &[u8]) -> Answers {
        assert_eq!(self.mail().await, 'c');
        self.header_and_body(domain, body).await;
        let answers = self.end().await;
        self.send(&[Command::Abort]).await;
        answers
    }

    /// A message after MAIL that may be refused at any step: the letter of the answer that ends it.
    pub async fn try_message(&mut self, domain: &str) -> char {
        let from = format!(" Ann <ann@{domain}>");
        let (name, value) = (&b"From"[..], from.as_bytes());
        let recipient = Command::Rcpt(Envelope::new(b"<bo@example.net>", b""));
        assert_eq!(self.tell(recipient).await, 'c');
        self.tell(Command::Header { name, value }).await;
        match self.ask(Command::EndOfHeader).await {
            'c' => char::from(self.end().await.pop().unwrap().0),
            refused => refused,
        }
    }

    /// Whether the milter has hung up, or does so within the patience of these tests.
    pub async fn is_hung_up(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
        matches!(read, Ok(Ok(0) | Err(_)))
    }
}

/// The selector of the signature among `answers`; empty if there is none.
pub fn selector(answers: &Answers) -> String {
    let fields = answers.iter().filter(|(letter, _)| *letter == b'i');
    let mut fields = fields.map(|(_, data)| String::from_utf8_lossy(data).into_owned());
    let field = fields
        .find(|field| field.contains("DKIM-Signature"))
        .unwrap_or_default();
    let tag = field
        .split(';')
        .find_map(|tag| tag.trim().strip_prefix("s=").map(str::to_owned));
    tag.unwrap_or_default()
}

/// How many descriptors this process has.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
