//! Whole conversations without a socket or a sleep: an MTA of a few lines plays messages and does the session's work.

mod log_lines;
mod rudeness;
mod signing;
mod token_checks;
mod verifying;

use super::*;
use crate::config::{Config, Overrides};
use crate::keys::{KeySet, Reader};
use crate::protocol::envelope::Envelope;
use crate::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
use crate::protocol::macros::MacroPairs;
use crate::protocol::mta::Answer;
use dkim_core::engine::default_engine;
use dkim_core::key_record::KeyRecord;
use dkim_core::message::MessageReader;
use dkim_core::results::{AuthenticationResults, ResultWord};
use dkim_core::signer::{FieldChoice, SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

const UNIX: u64 = 1_800_000_000;
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dkim-core/tests/data/keys");
const MESSAGE: &str = "From: Ann <ann@example.com>\r\nTo: bo@example.net\r\nSubject:x\r\n y\r\nMessage-ID:\r\n <1@example.com>\r\n\r\nHello  you \r\n\r\n";

/// What the DNS does.
#[derive(Clone, Copy, PartialEq)]
enum Dns {
    Answers,
    NoName,
    Fails,
    Silent,
}

struct Mta {
    session: Session,
    settings: Arc<Settings>,
    now: Duration,
    /// How long the body takes to come.
    body_time: Duration,
    dns: Dns,
    /// Whether keys are at hand.
    signs: bool,
    offer: Offer,
    /// Whether what checks takes its time.
    token_is_slow: bool,
    /// What a token hashes.
    digests: HashMap<(u64, usize), Sha256>,
    /// What was put off: the answers of a silent DNS, what a slow token is asked for.
    pending: Vec<Work>,
    wake_at: Option<Duration>,
    closed: bool,
    client: &'static str,
    macros: Vec<(u8, &'static [u8])>,
}

/// What became of a message.
#[derive(Debug, Default)]
struct Outcome {
    /// The octets of the replies, edits aside, command by command; `-` for none.
    replies: String,
    code: String,
    edits: Vec<(char, u32, String, String)>,
    delivered: Vec<u8>,
}

fn settings(options: &[&str]) -> Arc<Settings> {
    let key = format!("KeyFile={KEYS}/rsa2048.pem");
    let defaults = [
        "Domain=example.com",
        "Selector=sel",
        &key,
        "RequireSafeKeys=no",
        "AuthservID=mx.example.org",
        "SubDomains=yes",
    ];
    let has_tables = options.iter().any(|option| option.starts_with("KeyTable"));
    let options = defaults
        .iter()
        .filter(|_| !has_tables)
        .chain(options)
        .chain(&["RequireSafeKeys=no"]);
    let set = options.map(ToString::to_string).collect();
    let (config, _) = Config::load(
        None,
        &Overrides {
            set,
            sockets: Vec::new(),
        },
    )
    .unwrap();
    let keys = KeySet::load(&config, Reader::current());
    Arc::new(Settings::new(config, keys, "host.example.org".into()).unwrap())
}

impl Mta {
    fn new(options: &[&str]) -> Self {
        let settings = settings(options);
        let source = settings.clone();
        let mut mta = Self {
            session: Session::new(Arc::new(move || source.clone())),
            settings,
            now: Duration::ZERO,
            body_time: Duration::ZERO,
            dns: Dns::Answers,
            signs: true,
            token_is_slow: false,
            digests: HashMap::new(),
            offer: Offer {
                version: 6,
                actions: 0x1ff,
                steps: 0x1f_ffff,
            },
            pending: Vec::new(),
            wake_at: None,
            closed: false,
            client: "198.51.100.7",
            macros: vec![(b'M', b"i\x004Fabc\0")],
        };
        mta.connect();
        mta
    }

    fn connect(&mut self) {
        let source = self.settings.clone();
        self.session = Session::new(Arc::new(move || source.clone()));
        self.begin();
    }

    fn begin(&mut self) {
        let mut outcome = Outcome::default();
        self.say(Command::OptNeg(self.offer), &mut outcome);
        let peer = Peer::Inet(self.client.parse().unwrap(), 25);
        self.say(
            Command::Connect {
                host: b"client.example",
                peer,
            },
            &mut outcome,
        );
    }

    /// Negotiates anew, on a Unix socket that takes messages or not.
    fn on_unix_socket(&mut self, refusal: Option<&'static str>) {
        let source = self.settings.clone();
        self.session = Session::new(Arc::new(move || source.clone()));
        self.session.on_unix_socket();
        if let Some(why) = refusal {
            self.session.refuse_messages(why);
        }
        self.begin();
    }

    /// Sends one command and takes in what comes back.
    fn say(&mut self, command: Command<'_>, outcome: &mut Outcome) {
        let mut actions = Actions::default();
        let chunk = match &command {
            Command::Body(chunk) => Some(*chunk),
            _ => None,
        };
        self.session.command(Ok(command), self.now(), &mut actions);
        if let Some(chunk) = chunk {
            self.session.body(chunk);
            self.session.body_work(&mut actions);
        }
        self.take(actions, outcome);
    }

    fn now(&self) -> Now {
        Now {
            monotonic: self.now,
            unix: UNIX,
        }
    }

    fn take(&mut self, mut actions: Actions, outcome: &mut Outcome) {
        loop {
            read_replies(&actions.replies, outcome);
            self.closed |= actions.close;
            if actions.wake_at.is_some() {
                self.wake_at = actions.wake_at;
            }
            let mut next = Actions::default();
            for work in std::mem::take(&mut actions.work) {
                match work {
                    Work::LookUp { .. } if self.dns == Dns::Silent => self.pending.push(work),
                    Work::Check { .. } | Work::Digest { .. } if self.token_is_slow => {
                        self.pending.push(work);
                    }
                    work => self.work(work, &mut next),
                }
            }
            if next.replies.is_empty() && next.work.is_empty() && next.wake_at.is_none() {
                break;
            }
            actions = next;
        }
    }

    fn work(&mut self, work: Work, actions: &mut Actions) {
        match work {
            Work::LookUp { message, index, .. } => {
                let answer = match self.dns {
                    Dns::NoName => KeyAnswer::NoName,
                    Dns::Fails => KeyAnswer::Unavailable("SERVFAIL".into()),
                    Dns::Answers | Dns::Silent => {
                        KeyAnswer::Records(vec![Ok(KeyRecord::of(key().public_key().clone()))])
                    }
                };
                self.session
                    .key_answer(message, index, Arc::new(answer), self.now(), actions);
            }
            Work::Sign {
                message,
                index,
                key,
                octets,
                ..
            } => {
                let signature = if self.signs {
                    key.sign(&octets)
                } else {
                    Err(SigningError("token is gone".into()))
                };
                self.session.signed(message, index, signature, actions);
            }
            Work::Digest {
                message,
                place,
                octets,
                is_last,
                ..
            } => {
                let mut hash = self.digests.remove(&(message, place)).unwrap_or_default();
                hash.update(&octets);
                let made = match is_last {
                    true => hash.finalize().to_vec(),
                    false => {
                        self.digests.insert((message, place), hash);
                        Vec::new()
                    }
                };
                self.session
                    .digested(message, place, Ok(made), self.now(), actions);
            }
            Work::Check { message, check } => {
                let outcome = check.run(default_engine());
                self.session.checked(message, &check, outcome, actions);
            }
        }
    }

    fn wake(&mut self, outcome: &mut Outcome) {
        self.now = self.now.max(self.wake_at.take().unwrap());
        let mut actions = Actions::default();
        self.session.wake(self.now(), &mut actions);
        self.take(actions, outcome);
    }

    /// Plays one message; what it looks like afterwards is what Postfix would make of it.
    fn send(&mut self, message: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        let (header, body) = split(message);
        for (stage, pairs) in self.macros.clone() {
            self.say(
                Command::Macros {
                    stage,
                    pairs: MacroPairs::new(pairs),
                },
                &mut outcome,
            );
        }
        self.say(
            Command::Mail(Envelope::new(b"<ann@example.com>", b"")),
            &mut outcome,
        );
        self.say(
            Command::Rcpt(Envelope::new(b"<bo@example.net>", b"")),
            &mut outcome,
        );
        for (name, value) in &header {
            let stripped = value.strip_prefix(" ").unwrap_or(value);
            let value = if self.session.negotiated.leading_space() {
                value
            } else {
                stripped
            };
            self.say(
                Command::Header {
                    name: name.as_bytes(),
                    value: value.replace("\r\n", "\n").as_bytes(),
                },
                &mut outcome,
            );
        }
        self.say(Command::EndOfHeader, &mut outcome);
        // An answer for the whole message ends it.
        if !outcome.replies.ends_with(['a', 'y']) {
            for chunk in body.chunks(7) {
                if !outcome.replies.ends_with('s') {
                    self.say(Command::Body(chunk), &mut outcome);
                }
            }
            self.now += self.body_time;
            self.say(Command::EndOfBody(b""), &mut outcome);
        }
        outcome.delivered = deliver(
            header,
            body,
            &outcome.edits,
            self.session.negotiated.leading_space(),
        );
        outcome
    }
}

fn key() -> Box<dyn SigningKey> {
    let octets = std::fs::read(format!("{KEYS}/rsa2048.pem")).unwrap();
    let key = dkim_core::engine::PrivateKey::from_octets(&octets).unwrap();
    default_engine().signing_key(&key).unwrap()
}

fn read_replies(octets: &[u8], outcome: &mut Outcome) {
    let mut rest = octets;
    if rest.is_empty() {
        outcome.replies.push('-');
    }
    while !rest.is_empty() {
        let Decoded::Frame(frame) = decode(rest, DEFAULT_LIMIT) else {
            panic!("half a reply")
        };
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        match Answer::parse(frame.command, &rest[frame.data.clone()]).unwrap() {
            Answer::InsertHeader { index, name, value } => {
                outcome.edits.push(('i', index, text(name), text(value)))
            }
            Answer::ChangeHeader { index, name, value } => {
                outcome.edits.push(('m', index, text(name), text(value)))
            }
            Answer::Quarantine(reason) => outcome.edits.push(('q', 0, String::new(), text(reason))),
            Answer::ReplyCode(code) => {
                outcome.replies.push('y');
                outcome.code = text(code);
            }
            Answer::OptNeg { .. } => (),
            _ => outcome.replies.push(char::from(frame.command)),
        }
        rest = &rest[frame.consumed..];
    }
}

fn split(message: &[u8]) -> (Vec<(String, String)>, Vec<u8>) {
    let mut body = Vec::new();
    let mut reader = MessageReader::new(1 << 20);
    reader
        .read(message, |octets| body.extend_from_slice(octets))
        .unwrap();
    reader.finish();
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    let fields = reader
        .header()
        .iter()
        .map(|field| (text(field.name()), text(field.value())));
    (fields.collect(), body)
}

/// Postfix: deletions renumber at once, insertions at 0 go on top.
fn deliver(
    mut header: Vec<(String, String)>,
    body: Vec<u8>,
    edits: &[(char, u32, String, String)],
    leading_space: bool,
) -> Vec<u8> {
    for (kind, index, name, value) in edits {
        match kind {
            'm' => {
                assert_eq!(value, "", "only deletions");
                let own = header
                    .iter()
                    .enumerate()
                    .filter(|(_, field)| field.0.eq_ignore_ascii_case(name));
                let at = own.map(|(at, _)| at).nth(*index as usize - 1).unwrap();
                header.remove(at);
            }
            'i' => {
                let space = if leading_space { "" } else { " " };
                header.insert(
                    *index as usize,
                    (
                        name.clone(),
                        format!("{space}{}", value.replace('\n', "\r\n")),
                    ),
                );
            }
            _ => (),
        }
    }
    let fields = header
        .iter()
        .map(|(name, value)| format!("{name}:{value}\r\n"));
    [fields.collect::<String>().as_bytes(), b"\r\n", &body].concat()
}

/// The verdicts on a message, with our key for every name.
fn verdicts(message: &[u8]) -> Vec<ResultWord> {
    let mut reader = MessageReader::new(1 << 20);
    let mut body = Vec::new();
    reader
        .read(message, |octets| body.extend_from_slice(octets))
        .unwrap();
    reader.finish();
    let mut verifier = Verifier::new(reader.header(), &VerifierConfig::default(), Some(UNIX));
    for index in 0..verifier.to_look_up().len() {
        let answer = KeyAnswer::Records(vec![Ok(KeyRecord::of(key().public_key().clone()))]);
        verifier.answer(index, Arc::new(answer));
    }
    verifier.body(&body);
    verifier
        .finish(reader.header(), default_engine())
        .iter()
        .map(|verdict| verdict.result)
        .collect()
}

fn signed(message: &str) -> Vec<u8> {
    signed_over(message, FieldChoice::default())
}

fn signed_over(message: &str, choice: FieldChoice) -> Vec<u8> {
    let (fields, body) = split(message.as_bytes());
    let mut header = HeaderFields::new();
    fields
        .iter()
        .for_each(|(name, value)| header.push(name.as_bytes(), b"", value.as_bytes()));
    let mut request = SignRequest::new("example.com", "sel", key().key_type());
    request.fields = Arc::new(choice);
    let mut signer = Signer::new(&header, vec![request]).unwrap();
    signer.body(&body);
    let pieces = signer.to_sign(&header);
    let value = signer
        .field_value(0, &key().sign(&pieces[0].octets).unwrap())
        .unwrap();
    [
        b"DKIM-Signature:",
        value.as_bytes(),
        b"\r\n",
        message.as_bytes(),
    ]
    .concat()
}

fn internal(options: &[&str]) -> Mta {
    let mut mta = Mta::new(options);
    mta.client = "127.0.0.1";
    mta.connect();
    mta
}

/// Our results in a delivered message, as `word reason`.
fn our_results(outcome: &Outcome) -> Vec<String> {
    let insertion = outcome
        .edits
        .iter()
        .find(|edit| edit.0 == 'i' && edit.2 == "Authentication-Results");
    let Some((.., value)) = insertion else {
        return Vec::new();
    };
    let results = AuthenticationResults::parse(value.replace('\n', "\r\n").as_bytes()).unwrap();
    assert_eq!(results.authserv_id, b"mx.example.org");
    let words = results.results.iter().map(|result| {
        let reason = result
            .reason
            .as_deref()
            .map(String::from_utf8_lossy)
            .unwrap_or_default();
        format!("{} {reason}", result.result).trim_end().to_owned()
    });
    words.collect()
}
