//! Whole conversations without a socket or a sleep: an MTA of a few lines plays messages and does the session's work.

mod log_lines;
mod token_checks;

use super::*;
use crate::config::{Config, Overrides};
use crate::keys::{KeySet, Reader};
use crate::protocol::envelope::Envelope;
use crate::protocol::frame::{DEFAULT_LIMIT, Decoded, decode};
use crate::protocol::macros::MacroPairs;
use crate::protocol::mta::Answer;
use crate::protocol::negotiation::action;
use dkim_core::engine::default_engine;
use dkim_core::key_record::KeyRecord;
use dkim_core::message::MessageReader;
use dkim_core::results::{AuthenticationResults, ResultWord};
use dkim_core::signer::{FieldChoice, SignRequest, Signer};
use dkim_core::verifier::{Verifier, VerifierConfig};
use proptest::prelude::*;
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
        self.now = self.wake_at.take().unwrap();
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

#[test]
fn mail_of_internal_hosts_is_signed_in_every_canonicalization() {
    for canonicalization in [
        "simple/simple",
        "simple/relaxed",
        "relaxed/simple",
        "relaxed/relaxed",
    ] {
        let mut mta = internal(&[&format!("Canonicalization={canonicalization}")]);
        let outcome = mta.send(MESSAGE.as_bytes());
        assert!(outcome.replies.ends_with('c'), "{outcome:?}");
        assert_eq!(
            verdicts(&outcome.delivered),
            [ResultWord::Pass],
            "{canonicalization}"
        );
        assert!(outcome.edits[0].3.starts_with(" v=1; a=rsa-sha256;"));
        assert!(!outcome.edits[0].3.contains('\r'));
    }
}

#[test]
fn without_leading_space_relaxed_signatures_still_hold() {
    let mut mta = internal(&[]);
    mta.offer = Offer {
        version: 2,
        actions: 0x3f,
        steps: 0x7f,
    };
    mta.connect();
    let message = MESSAGE.replace("Subject:x", "Subject: x");
    let outcome = mta.send(message.as_bytes());
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
}

#[test]
fn who_is_signed_for() {
    for (client, macros, from, signs) in [
        ("127.0.0.1", &b""[..], "ann@example.com", true),
        ("::1", b"", "ann@example.com", true),
        ("198.51.100.7", b"", "ann@example.com", false),
        (
            "198.51.100.7",
            b"{auth_type}\0PLAIN\0{auth_authen}\0ann\0",
            "ann@example.com",
            true,
        ),
        ("127.0.0.1", b"", "ann@mail.example.com", true),
        ("127.0.0.1", b"", "ann@other.example", false),
        ("127.0.0.1", b"", "ann@notexample.com", false),
        ("127.0.0.1", b"", "root (Cron Daemon)", false),
        ("127.0.0.1", b"", "ann@example.com, bo@other.example", false),
        ("127.0.0.1", b"", "ann@example.com, bo@example.com", true),
        (
            "127.0.0.1",
            b"",
            "<ann@example.com> <bo@example.com>",
            false,
        ),
    ] {
        let mut mta = Mta::new(&["Mode=s"]);
        mta.client = client;
        mta.macros.push((b'M', macros));
        mta.connect();
        let outcome = mta.send(MESSAGE.replace("Ann <ann@example.com>", from).as_bytes());
        assert_eq!(
            outcome.edits.len(),
            usize::from(signs),
            "{client} {from}: {outcome:?}"
        );
    }
}

#[test]
fn a_sub_domain_is_signed_for_in_its_own_name() {
    let outcome = internal(&[]).send(
        MESSAGE
            .replace("@example.com>\r\nTo", "@news.example.com>\r\nTo")
            .as_bytes(),
    );
    assert!(
        outcome.edits[0].3.contains("d=example.com; s=sel;"),
        "{outcome:?}"
    );
    assert!(outcome.edits[0].3.contains("i=@news.example.com;"));
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
}

#[test]
fn verdicts_are_reported_on_top() {
    let good = signed(MESSAGE);
    let changed = String::from_utf8(good.clone())
        .unwrap()
        .replace("Hello", "Hallo");
    let not_oversigned = signed_over(MESSAGE, FieldChoice::new(&["From"], &[]).unwrap());
    let two = [&b"From: Eve <eve@example.net>\r\n"[..], &not_oversigned].concat();
    for (message, dns, want, replies) in [
        (good.clone(), Dns::Answers, &["pass"][..], "c"),
        (
            changed.into_bytes(),
            Dns::Answers,
            &["fail body hash did not verify"],
            "c",
        ),
        (
            good.clone(),
            Dns::NoName,
            &["permerror no key for signature: no such name"],
            "c",
        ),
        (good.clone(), Dns::Fails, &[], "y"),
        (MESSAGE.as_bytes().to_vec(), Dns::Answers, &[], "c"),
        (
            two,
            Dns::Answers,
            &["policy signature verified, but the message has 2 From fields"],
            "c",
        ),
        (
            [b"DKIM-Signature: v=1; a=b\r\n", &good[..]].concat(),
            Dns::Answers,
            &["permerror unknown signature algorithm (a=)", "pass"],
            "c",
        ),
        (
            [b"DKIM-Signature: ;;;;\r\n", &good[..]].concat(),
            Dns::Answers,
            &[
                "neutral signature syntax error: empty tag at octet 0",
                "pass",
            ],
            "c",
        ),
    ] {
        let mut mta = Mta::new(&[]);
        mta.dns = dns;
        let outcome = mta.send(&message);
        assert!(outcome.replies.ends_with(replies), "{outcome:?}");
        assert_eq!(our_results(&outcome), want);
    }
}

#[test]
fn on_actions_are_carried_out() {
    let good = signed(MESSAGE);
    let changed = String::from_utf8(good.clone())
        .unwrap()
        .replace("Hello", "Hallo")
        .into_bytes();
    for (option, message, dns, code) in [
        (
            "On-BadSignature=reject",
            &changed,
            Dns::Answers,
            "550 5.7.0 bad DKIM signature data",
        ),
        (
            "On-BadSignature=tempfail",
            &changed,
            Dns::Answers,
            "451 4.7.0 bad DKIM signature data",
        ),
        (
            "On-KeyNotFound=reject",
            &good,
            Dns::NoName,
            "550 5.7.0 no key for DKIM signature",
        ),
        (
            "On-NoSignature=reject",
            &MESSAGE.as_bytes().to_vec(),
            Dns::Answers,
            "550 5.7.0 no DKIM signature data",
        ),
        (
            "On-DNSError=tempfail",
            &good,
            Dns::Fails,
            "451 4.7.5 DKIM key retrieval failed",
        ),
        ("On-DNSError=accept", &good, Dns::Fails, ""),
        ("On-BadSignature=discard", &changed, Dns::Answers, ""),
    ] {
        let mut mta = Mta::new(&[option]);
        mta.dns = dns;
        let outcome = mta.send(message);
        assert_eq!(outcome.code, code, "{option}: {outcome:?}");
        assert_eq!(outcome.replies.ends_with('d'), option.ends_with("discard"));
        // The connection lives on.
        mta.dns = Dns::Answers;
        assert!(mta.send(&good).replies.ends_with('c'));
    }
    let outcome = Mta::new(&["On-BadSignature=quarantine"]).send(&changed);
    assert_eq!(
        outcome.edits.last().map(|edit| edit.0),
        Some('q'),
        "{outcome:?}"
    );
    assert!(outcome.replies.ends_with('c'));
}

#[test]
fn a_slow_resolver_is_bridged_and_a_dead_one_defers() {
    let mut mta = Mta::new(&["DNSTimeout=9"]);
    mta.dns = Dns::Silent;
    let mut outcome = mta.send(&signed(MESSAGE));
    assert!(mta.session.is_busy());
    assert!(outcome.replies.ends_with('-'));
    mta.wake(&mut outcome);
    assert!(outcome.replies.ends_with('p'), "{outcome:?}");
    let late = mta.pending.pop().unwrap();
    let mut actions = Actions::default();
    mta.work(late, &mut actions);
    mta.take(actions, &mut outcome);
    assert!(outcome.replies.ends_with('c'), "{outcome:?}");
    assert_eq!(our_results(&outcome), ["pass"]);

    let mut outcome = mta.send(&signed(MESSAGE));
    for _ in 0..3 {
        mta.wake(&mut outcome);
    }
    assert_eq!(outcome.code, "451 4.7.5 DKIM key retrieval failed");
    assert!(!mta.session.is_busy());
    // The answer comes after all, to nobody.
    let late = mta.pending.pop().unwrap();
    let mut actions = Actions::default();
    mta.work(late, &mut actions);
    assert!(actions.replies.is_empty() && actions.work.is_empty());
}

#[test]
fn no_number_of_signatures_makes_the_results_long() {
    let junk = "DKIM-Signature: x\r\n".repeat(2000);
    let good = internal(&[]).send(MESSAGE.as_bytes()).delivered;
    let outcome = Mta::new(&[]).send(&[junk.as_bytes(), &good].concat());
    assert!(outcome.edits[0].3.len() < 2000, "{outcome:?}");
    let results = our_results(&outcome);
    assert_eq!(results.len(), 12);
    assert_eq!(
        results[9..],
        [
            "neutral signature syntax error: no \"=\" in the tag at octet 0",
            "pass",
            "neutral 1990 more signatures were not evaluated"
        ]
    );
}

#[test]
fn forged_results_go_from_the_bottom_up_and_others_stay() {
    let fields = "Authentication-Results: mx.example.org; dkim=pass\r\nAuthentication-Results: other.example; dkim=pass\r\n\
                  authentication-results: (x) \"MX.example.org\" 1; none\r\nAuthentication-Results: two.example; none\r\n";
    for (options, client, left) in [
        (
            &["RemoveARFrom=two.example"][..],
            "198.51.100.7",
            &["other.example"][..],
        ),
        (&[], "198.51.100.7", &["other.example", "two.example"]),
        (
            &["Mode=s"],
            "198.51.100.7",
            &["other.example", "two.example"],
        ),
        (&["Mode=s"], "127.0.0.1", &["other.example", "two.example"]),
        (
            &["PeerList=198.51.100.7"],
            "127.0.0.1",
            &["other.example", "two.example"],
        ),
    ] {
        let mut mta = Mta::new(options);
        mta.client = client;
        mta.connect();
        let outcome = mta.send(format!("{fields}{MESSAGE}").as_bytes());
        let indexes: Vec<u32> = outcome
            .edits
            .iter()
            .filter(|edit| edit.0 == 'm')
            .map(|edit| edit.1)
            .collect();
        assert!(indexes.is_sorted_by(|a, b| a > b), "{indexes:?}");
        let delivered = String::from_utf8(outcome.delivered).unwrap();
        let kept = delivered
            .split("\r\n")
            .filter_map(|line| line.strip_prefix("Authentication-Results: "));
        let kept: Vec<_> = kept
            .filter(|value| !value.starts_with("mx.example.org;\r\n"))
            .map(|v| v.split(';').next().unwrap())
            .collect();
        assert_eq!(kept, left, "{options:?}");
    }
}

#[test]
fn bodies_that_nobody_needs_are_skipped() {
    let outcome = Mta::new(&[]).send(MESSAGE.as_bytes());
    assert_eq!(outcome.replies, "-cc----csc");
    let outcome = Mta::new(&["Mode=s"]).send(MESSAGE.as_bytes());
    assert_eq!(
        &outcome.replies[..8],
        "-cc----a",
        "left alone at once: {outcome:?}"
    );
}

#[test]
fn what_cannot_be_judged_is_deferred_and_the_connection_lives() {
    let mut mta = internal(&["MaximumHeaders=1024"]);
    let long = format!("X: {}\r\n{MESSAGE}", "y".repeat(1000));
    assert_eq!(
        mta.send(long.as_bytes()).code,
        "451 4.7.0 message exceeds DKIM limits"
    );
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.edits.len(), 1, "{outcome:?}");

    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    let mut actions = Actions::default();
    mta.session.command(
        Err((code::HEADER, CommandError::HeaderWithoutValue)),
        mta.now(),
        &mut actions,
    );
    assert!(actions.replies.is_empty(), "header fields are not answered");
    mta.say(Command::EndOfHeader, &mut outcome);
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error");
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn a_key_that_is_missing_stops_its_own_domain_only() {
    let table = format!(
        "KeyTable=csl:k1=example.com:sel:{KEYS}/rsa2048.pem,k2=two.example:sel:/nonexistent.pem"
    );
    let mut mta = internal(&[&table, "SigningTable=csl:example.com=k1,two.example=k2"]);
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
    let outcome = mta.send(
        MESSAGE
            .replace("ann@example.com", "ann@two.example")
            .as_bytes(),
    );
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn a_key_that_does_not_sign_defers_mail() {
    let mut mta = internal(&[]);
    mta.signs = false;
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
    mta.signs = true;
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn an_mta_that_takes_no_fields_has_its_mail_deferred() {
    let mut mta = internal(&[]);
    mta.offer.actions = action::CHGHDRS;
    mta.connect();
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
}

#[test]
fn several_signatures_stand_in_the_table_s_order() {
    let table = format!(
        "KeyTable=csl:a=example.com:rsa:{KEYS}/rsa2048.pem,b=example.com:ed:{KEYS}/ed25519.pem"
    );
    let mut mta = internal(&[
        &table,
        "SigningTable=csl:example.com=a,*=b",
        "MultipleSignatures=yes",
    ]);
    let outcome = mta.send(MESSAGE.as_bytes());
    let delivered = String::from_utf8(outcome.delivered).unwrap();
    let (first, second) = (
        delivered.find("s=rsa").unwrap(),
        delivered.find("s=ed").unwrap(),
    );
    assert!(first < second, "{delivered}");
}

#[test]
fn mail_that_passes_again_is_signed_again_only_if_it_was_changed() {
    let once = internal(&[]).send(MESSAGE.as_bytes()).delivered;
    let changed = [&once[..], b"-- \r\nfooter\r\n"].concat();
    for (options, message, signatures) in [
        (&["SkipAlreadySigned=yes"][..], &once, 0),
        (&["SkipAlreadySigned=yes"], &changed, 1),
        (&["SkipAlreadySigned=no"], &once, 1),
    ] {
        let outcome = internal(options).send(message);
        assert_eq!(outcome.edits.len(), signatures, "{outcome:?}");
    }
}

#[test]
fn messages_are_refused_while_told_so() {
    let mut mta = internal(&[]);
    mta.session.refuse_messages("too many connections");
    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    assert_eq!(outcome.code, "451 4.3.2 too many connections");
}

#[test]
fn an_aborted_message_leaves_nothing_behind() {
    let mut mta = internal(&[]);
    let mut outcome = Outcome::default();
    mta.say(Command::Mail(Envelope::new(b"<>", b"")), &mut outcome);
    mta.say(
        Command::Header {
            name: b"From",
            value: b" x@other.example",
        },
        &mut outcome,
    );
    mta.say(Command::Abort, &mut outcome);
    mta.say(Command::Abort, &mut outcome);
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
    let mut outcome = Outcome::default();
    mta.say(Command::Quit, &mut outcome);
    assert!(mta.closed);
}

fn any_command() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let octet = prop::sample::select(b"OCDHMRTLNBEAKQU!".to_vec());
    let data = prop_oneof![
        Just(b"From\0 ann@example.com\0".to_vec()),
        Just(b"<ann@example.com>\0".to_vec()),
        Just(b"client\x004\0\x19127.0.0.1\0".to_vec()),
        Just(b"\0\0\0\x06\0\0\x01\xff\0\x1f\xff\xff".to_vec()),
        Just(
            b"DKIM-Signature\0 v=1; a=rsa-sha256; d=example.com; s=sel; h=from; bh=AAAA; b=AAAA\0"
                .to_vec()
        ),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    (octet, data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_order_of_commands_panics_and_what_expects_an_answer_gets_one(commands in prop::collection::vec(any_command(), 0..40)) {
        let mut mta = internal(&[]);
        for (octet, data) in commands {
            if octet == b'Q' || octet == b'O' {
                continue;
            }
            let expects = mta.session.negotiated.expects_reply(octet);
            let mut actions = Actions::default();
            let command = Command::parse(octet, &data);
            let chunk = match &command {
                Ok(Command::Body(chunk)) => Some(*chunk),
                _ => None,
            };
            mta.session.command(command.map_err(|fault| (octet, fault)), mta.now(), &mut actions);
            if let Some(chunk) = chunk {
                mta.session.body(chunk);
            }
            let mut outcome = Outcome::default();
            mta.take(actions, &mut outcome);
            let answers = outcome.replies.chars().filter(|reply| *reply != '-').count();
            prop_assert_eq!(answers, usize::from(expects), "{} {:?}", char::from(octet), outcome);
        }
    }
}
