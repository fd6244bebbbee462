//! Connections over socket pairs: what one read and one write hold, panics, MTAs that do not listen.

use super::*;
use crate::config::{Config, Overrides};
use crate::dns::{Format, RecordsFile};
use crate::keys::{KeySet, Reader};
use crate::server::{Census, Patience, State};
use crate::settings::Settings;
use crate::tables::test_dir::TestDir;
use arc_swap::ArcSwap;
use dkim_core::engine::{KeyType, PublicKey, SigningKey};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// An MTA's end of a connection that is being served; the settings, with `options`, can be asked for `calls` times
/// before a panic. With sockets of the kind SEQPACKET each write at one end is one read at the other.
fn serve(kind: SocketType, options: &[String], calls: usize, patience: Patience) -> UnixStream {
    serve_with(kind, options, calls, patience, |key| key)
}

/// The same, with keys made of those that `options` name.
fn serve_with(
    kind: SocketType,
    options: &[String],
    calls: usize,
    patience: Patience,
    other: impl Fn(Arc<dyn SigningKey>) -> Arc<dyn SigningKey>,
) -> UnixStream {
    let overrides = Overrides {
        set: options.to_vec(),
        ..Overrides::default()
    };
    let (config, _) = Config::load(None, &overrides).unwrap();
    let mut keys = KeySet::load(&config, Reader::current());
    keys.replace(other);
    let settings = Arc::new(Settings::new(config, keys, "host.example".to_owned()).unwrap());
    let key_records = RecordsFile::from_octets(b"", Format::PublicKeys, "none".as_ref()).unwrap();
    let state = State {
        settings: Arc::clone(&settings),
        key_records: Arc::new(key_records),
    };
    let called = AtomicUsize::new(0);
    let shared = Arc::new(Shared {
        state: Arc::new(ArcSwap::from_pointee(state)),
        settings: Arc::new(move || {
            assert!(
                called.fetch_add(1, Ordering::Relaxed) < calls,
                "as the test wants it"
            );
            Arc::clone(&settings)
        }),
        patience,
        started: Instant::now(),
        vitals: Arc::default(),
        most_connections: 10,
    });
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap();
    let [ours, theirs] = [ours, theirs].map(|end| UnixStream::from_std(end.into()).unwrap());
    let (phase, phases) = watch::channel(Phase::Serving);
    let seat = Census::enter(&shared.vitals.census);
    let connection = Connection::new(Stream::Unix(theirs), shared, phases, seat, None);
    tokio::spawn(async move {
        let _phase = phase;
        connection.serve().await;
    });
    ours
}

#[tokio::test]
async fn all_answers_to_one_read_are_one_write() {
    let dir = TestDir::new("connection");
    let key = dir.write(
        "key",
        include_bytes!("../../../../dkim-core/tests/data/keys/rsa2048.pem"),
    );
    let options = [
        "Domain=example.com".to_owned(),
        "Selector=s".to_owned(),
        format!("KeyFile={}", key.display()),
        "RequireSafeKeys=no".to_owned(),
    ];
    let mut mta = serve(
        SocketType::SEQPACKET,
        &options,
        usize::MAX,
        Patience::default(),
    );
    let mut buffer = vec![0; 10_000];
    let connect = b"\0\0\0\x10Cx\x004\0\x00127.0.0.1\0";
    let envelope = b"\0\0\0\x05M<a>\0\0\0\0\x05R<b>\0";
    for (commands, wanted) in [
        (
            &[OPTNEG_ANSWERED, connect].concat()[..],
            &b"\0\0\0\x01c"[..],
        ),
        (envelope, b"\0\0\0\x01c\0\0\0\x01c"),
        (
            b"\0\0\0\x17LFrom\0 <a@example.com>\0\0\0\0\x01N",
            b"\0\0\0\x01c",
        ),
        (b"\0\0\0\x04Bx\r\n\0\0\0\x01E", b"\0\0\0\x01c"),
        (
            &[&b"\0\0\0\x01A"[..], envelope].concat(),
            b"\0\0\0\x01c\0\0\0\x01c",
        ),
    ] {
        mta.write_all(commands).await.unwrap();
        let body_first = commands.contains(&b'B') && commands.ends_with(b"E");
        if body_first {
            // Before the chunk is hashed.
            assert_eq!(read(&mta, &mut buffer).await, b"\0\0\0\x01c");
        }
        let answer = read(&mta, &mut buffer).await;
        assert!(
            answer.ends_with(wanted),
            "{}",
            String::from_utf8_lossy(answer)
        );
        let is_signed = answer.windows(14).any(|window| window == b"DKIM-Signature");
        assert_eq!(is_signed, body_first);
    }
}

/// A key that signs for several messages in one go, on a thread of its own once there are enough; or that fails them all.
#[derive(Debug)]
struct BatchKey {
    key: Arc<dyn SigningKey>,
    queue: Mutex<Vec<(Vec<u8>, Completion)>>,
    batch: usize,
    fails: bool,
}

impl SigningKey for BatchKey {
    fn key_type(&self) -> KeyType {
        self.key.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        self.key.public_key()
    }

    fn sign(&self, _octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        panic!("the server submits")
    }

    fn submit(&self, octets: Vec<u8>, _within: Duration, completion: Completion) {
        let mut queue = self.queue.lock().unwrap();
        queue.push((octets, completion));
        if queue.len() == self.batch {
            let (batch, key, fails) = (queue.split_off(0), Arc::clone(&self.key), self.fails);
            thread::spawn(move || {
                for (octets, completion) in batch {
                    if !fails {
                        completion.complete(key.sign(&octets));
                    }
                }
            });
        }
    }
}

#[tokio::test]
async fn a_key_may_answer_later_and_for_several_messages_at_once() {
    let dir = TestDir::new("batch");
    let key = dir.write(
        "key",
        include_bytes!("../../../../dkim-core/tests/data/keys/rsa2048.pem"),
    );
    let options = [
        "Domain=example.com".to_owned(),
        "Selector=s".to_owned(),
        format!("KeyFile={}", key.display()),
        "RequireSafeKeys=no".to_owned(),
    ];
    for (fails, wanted) in [(false, &b"DKIM-Signature"[..]), (true, b"451 4.7.0")] {
        let shared = std::sync::OnceLock::new();
        let batch_key = |key: Arc<dyn SigningKey>| -> Arc<dyn SigningKey> {
            let batch_key = || BatchKey {
                key,
                queue: Mutex::default(),
                batch: 3,
                fails,
            };
            Arc::<BatchKey>::clone(shared.get_or_init(|| Arc::new(batch_key())))
        };
        let mut mtas: Vec<_> = (0..3)
            .map(|_| {
                let patience = Patience::default();
                serve_with(
                    SocketType::STREAM,
                    &options,
                    usize::MAX,
                    patience,
                    batch_key,
                )
            })
            .collect();
        let message = [
            OPTNEG,
            b"\0\0\0\x10Cx\x004\0\x00127.0.0.1\0\0\0\0\x05M<a>\0\0\0\0\x05R<b>\0",
            b"\0\0\0\x17LFrom\0 <a@example.com>\0\0\0\0\x01N\0\0\0\x04Bx\r\n\0\0\0\x01E",
        ]
        .concat();
        for mta in &mut mtas {
            mta.write_all(&message).await.unwrap();
        }
        for mta in &mut mtas {
            let mut answers = Vec::new();
            while !answers.windows(wanted.len()).any(|window| window == wanted) {
                let read = timeout(Duration::from_secs(10), mta.read_buf(&mut answers)).await;
                assert!(
                    read.unwrap().unwrap() > 0,
                    "{}",
                    String::from_utf8_lossy(&answers)
                );
            }
        }
    }
}

/// A key that breaks every other submission, and gives what it kept of it a wrong end within the next one.
#[derive(Debug)]
struct OddKey {
    key: Arc<dyn SigningKey>,
    kept: Mutex<Option<Completion>>,
    panics: bool,
}

impl SigningKey for OddKey {
    fn key_type(&self) -> KeyType {
        self.key.key_type()
    }

    fn public_key(&self) -> &PublicKey {
        self.key.public_key()
    }

    fn sign(&self, _octets: &[u8]) -> Result<Vec<u8>, SigningError> {
        panic!("the server submits")
    }

    fn submit(&self, octets: Vec<u8>, _within: Duration, completion: Completion) {
        let kept = self.kept.lock().unwrap().take();
        let Some(kept) = kept else {
            *self.kept.lock().unwrap() = Some(completion);
            assert!(!self.panics, "as the test wants it");
            return;
        };
        let key = Arc::clone(&self.key);
        let other = thread::spawn(move || {
            kept.complete(Ok(vec![0; 256]));
            completion.complete(key.sign(&octets));
        });
        // The clock of the test does not wait for threads.
        other.join().unwrap();
    }
}

/// A batch engine may be late by any time, or fail with messages in its queue.
#[tokio::test(start_paused = true)]
async fn a_late_signature_does_not_reach_the_next_message() {
    let dir = TestDir::new("late");
    let key = dir.write(
        "key",
        include_bytes!("../../../../dkim-core/tests/data/keys/rsa2048.pem"),
    );
    let options = [
        "Domain=example.com".to_owned(),
        "Selector=s".to_owned(),
        format!("KeyFile={}", key.display()),
        "RequireSafeKeys=no".to_owned(),
    ];
    for panics in [false, true] {
        let odd = |key| -> Arc<dyn SigningKey> {
            Arc::new(OddKey {
                key,
                kept: Mutex::default(),
                panics,
            })
        };
        let patience = Patience::default();
        let mut mta = serve_with(SocketType::STREAM, &options, usize::MAX, patience, odd);
        let connect = b"\0\0\0\x10Cx\x004\0\x00127.0.0.1\0";
        mta.write_all(&[OPTNEG, connect].concat()).await.unwrap();
        for wanted in [
            &b"451 4.7.0"[..],
            b"DKIM-Signature",
            b"451 4.7.0",
            b"DKIM-Signature",
        ] {
            let message = [
                &b"\0\0\0\x05M<a>\0\0\0\0\x05R<b>\0\0\0\0\x17LFrom\0 <a@example.com>\0"[..],
                b"\0\0\0\x01N\0\0\0\x04Bx\r\n\0\0\0\x01E\0\0\0\x01A",
            ];
            mta.write_all(&message.concat()).await.unwrap();
            let mut answers = Vec::new();
            while !answers.windows(wanted.len()).any(|window| window == wanted) {
                let read = timeout(Duration::from_secs(60), mta.read_buf(&mut answers)).await;
                let said = String::from_utf8_lossy(&answers);
                assert!(read.is_ok_and(|read| read.unwrap() > 0), "{panics} {said}");
            }
            let said = String::from_utf8_lossy(&answers);
            assert!(!said.contains("AAAAAAAAAAAAAAAA"), "{panics} {said}");
        }
    }
}

/// Else each message leaves one behind while the MTA stays connected.
#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_signature_longer_than_its_message() {
    let (_kept, receiver) = oneshot::channel();
    let patience = Duration::from_secs(20);
    let waited = timeout(2 * patience, late(receiver, patience)).await;
    assert!(matches!(waited, Ok(Err(SigningError(_)))));
}

/// What one read gives. (Tokio's own takes a short read for the last one, which it is of streams only.)
async fn read<'b>(mta: &UnixStream, buffer: &'b mut [u8]) -> &'b [u8] {
    let read = mta.async_io(Interest::READABLE, || {
        Ok(recv(mta, &mut *buffer, RecvFlags::empty())?.0)
    });
    let octets = timeout(Duration::from_secs(10), read).await;
    &buffer[..octets.expect("an answer must come").unwrap()]
}

const OPTNEG: &[u8] = b"\0\0\0\x0dO\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff";

/// Of an MTA that wants MAIL, RCPT and DATA answered.
const OPTNEG_ANSWERED: &[u8] = b"\0\0\0\x0dO\0\0\0\x06\0\0\x01\xff\0\x1e\x3f\xff";

#[tokio::test]
async fn an_envelope_on_a_unix_socket_goes_unanswered_and_what_follows_is_answered() {
    let mut mta = serve(SocketType::SEQPACKET, &[], usize::MAX, Patience::default());
    let connect = b"\0\0\0\x10Cx\x004\0\x00127.0.0.1\0";
    let envelope = b"\0\0\0\x05M<a>\0\0\0\0\x05R<b>\0\0\0\0\x01T";
    let rest = b"\0\0\0\x17LFrom\0 <a@example.com>\0\0\0\0\x01N";
    let mut buffer = vec![0; 1000];
    mta.write_all(&[OPTNEG, connect].concat()).await.unwrap();
    assert!(read(&mta, &mut buffer).await.ends_with(b"\0\0\0\x01c"));
    mta.write_all(&[&envelope[..], rest].concat())
        .await
        .unwrap();
    assert_eq!(read(&mta, &mut buffer).await, b"\0\0\0\x01c");
    mta.write_all(b"\0\0\0\x01E").await.unwrap();
    let answer = read(&mta, &mut buffer).await;
    assert!(matches!(answer, [.., b'c' | b'a']), "{answer:?}");
}

#[tokio::test]
async fn a_panic_is_answered_with_tempfail_and_ends_the_connection() {
    for (commands, wanted) in [
        (
            &[OPTNEG_ANSWERED, b"\0\0\0\x04CxU\0", b"\0\0\0\x05M<a>\0"].concat()[..],
            &b"\0\0\0\x01c\0\0\0\x01t"[..],
        ),
        (&[OPTNEG, b"\0\0\0\x04CxU\0"].concat(), b"\0\0\0\x01c"),
    ] {
        let mut mta = serve(SocketType::STREAM, &[], 2, Patience::default());
        mta.write_all(commands).await.unwrap();
        let mut answers = vec![0; 4096];
        let mut octets = 0;
        while !answers[..octets].ends_with(wanted) {
            let read = timeout(Duration::from_secs(10), mta.read(&mut answers[octets..])).await;
            let read = read.unwrap().unwrap();
            assert!(read > 0, "{:?}", &answers[..octets]);
            octets += read;
        }
        if wanted.ends_with(b"t") {
            assert_eq!(mta.read(&mut answers).await.unwrap(), 0);
        }
    }
}

#[tokio::test]
async fn an_mta_that_takes_no_answers_is_hung_up_on() {
    let write = Duration::from_millis(200);
    let mut mta = serve(
        SocketType::STREAM,
        &[],
        2,
        Patience {
            write,
            ..Patience::default()
        },
    );
    mta.write_all(OPTNEG).await.unwrap();
    let helo = b"\0\0\0\x03Hx\0".repeat(1000);
    let talking = async { while mta.write_all(&helo).await.is_ok() {} };
    timeout(Duration::from_secs(10), talking)
        .await
        .expect("must be hung up on");
}
