//! What the program and the process that holds the module say to each other, over a pair of sockets: a length, a kind, a
//! body. Signatures, of which there are many, have a form of their own; the rest is JSON.
//!
//! Both ends are this program, of one version. Still, who reads bounds what is read: vendors' code lives at the other end.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::duty::{Asked, Duty, Step, ToVerify};
use crate::error::Fault;
use crate::key::Public;
use crate::listing::TokenListing;
use crate::pin::{Pin, PinSource};
use crate::reference::Reference;
use crate::service::{Event, Salt};
use crate::token::WrongPin;
use crate::uri::Uri;

/// What the program asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Request {
    /// The first of all.
    Hello(Hello),
    Register(Box<Registered>),
    Forget(u32),
    Do {
        id: u64,
        key: u32,
        /// How long anybody waits, in milliseconds.
        millis: u32,
        asked: Asked,
    },
    /// All tokens that match, with their keys.
    List(u64, Box<Reference>),
    /// The end, within so many milliseconds.
    Stop(u32),
}

/// A key that is asked for, or a token for another duty.
#[derive(Debug, PartialEq)]
pub(crate) struct Registered {
    pub(crate) number: u32,
    pub(crate) duty: Duty,
    pub(crate) reference: Reference,
    /// Its public half, if it was seen before.
    pub(crate) known: Option<Public>,
}

/// How the service is to be run.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) module: Vec<u8>,
    pub(crate) workers: usize,
    pub(crate) queue: usize,
    pub(crate) hang_millis: u64,
    pub(crate) salt: Salt,
    pub(crate) wrong_pins: Vec<(String, WrongPin)>,
}

/// What the other process tells.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Event(Event),
    Listed {
        id: u64,
        listed: Result<Vec<TokenListing>, Fault>,
    },
}

/// A key's reference, in forms that JSON has.
#[derive(Serialize, Deserialize)]
struct PlainReference {
    uri: String,
    module: Vec<u8>,
    pin: PlainPin,
}

#[derive(Serialize, Deserialize)]
enum PlainPin {
    None,
    File(Vec<u8>),
    Credential(String),
    Value(Zeroizing<Vec<u8>>),
}

impl Request {
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Hello(hello) => write(to, kind::HELLO, &json(hello)?),
            Self::Register(registered) => {
                let reference = plain(&registered.reference);
                let body = json(&(
                    registered.number,
                    registered.duty,
                    reference,
                    &registered.known,
                ))?;
                write(to, kind::REGISTER, &body)
            }
            Self::Forget(number) => write(to, kind::FORGET, &number.to_be_bytes()),
            Self::Do {
                id,
                key,
                millis,
                asked,
            } => {
                let mut body = Vec::with_capacity(64 + asked.octets());
                body.extend_from_slice(&id.to_be_bytes());
                body.extend_from_slice(&key.to_be_bytes());
                body.extend_from_slice(&millis.to_be_bytes());
                let kind = asked.write(&mut body)?;
                write(to, kind, &body)
            }
            Self::List(id, reference) => write(to, kind::LIST, &json(&(id, plain(reference)))?),
            Self::Stop(millis) => write(to, kind::STOP, &millis.to_be_bytes()),
        }
    }

    /// The next request; `None` at the end.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let Some((kind, body)) = read(from)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            kind::HELLO => Self::Hello(from_json(&body)?),
            kind::REGISTER => {
                type Plain = (u32, Duty, PlainReference, Option<Public>);
                let (number, duty, plain, known): Plain = from_json(&body)?;
                let reference = reference(plain)?;
                Self::Register(Box::new(Registered {
                    number,
                    duty,
                    reference,
                    known,
                }))
            }
            kind::FORGET => Self::Forget(u32::from_be_bytes(array(&body)?)),
            kind::SIGN | kind::VERIFY | kind::DIGEST | kind::ABANDON => {
                let mut rest = &body[..];
                Self::Do {
                    id: u64::from_be_bytes(take(&mut rest)?),
                    key: u32::from_be_bytes(take(&mut rest)?),
                    millis: u32::from_be_bytes(take(&mut rest)?),
                    asked: Asked::read(kind, rest)?,
                }
            }
            kind::LIST => {
                let (id, plain): (u64, PlainReference) = from_json(&body)?;
                Self::List(id, Box::new(reference(plain)?))
            }
            kind::STOP => Self::Stop(u32::from_be_bytes(array(&body)?)),
            _ => return Err(garbage()),
        }))
    }
}

impl Asked {
    /// About how much there is to write.
    fn octets(&self) -> usize {
        match self {
            Self::Sign(octets) => octets.len(),
            // A key has at most some hundred octets.
            Self::Verify(wanted) => 1500 + wanted.octets.len() + wanted.signature.len(),
            Self::Digest(step) => step.octets.len(),
            Self::Abandon(_) => 0,
        }
    }

    /// Appends it, and gives its kind.
    fn write(&self, body: &mut Vec<u8>) -> io::Result<u8> {
        let mut piece = |octets: &[u8]| -> io::Result<()> {
            let length = u32::try_from(octets.len()).map_err(|_| garbage())?;
            body.extend_from_slice(&length.to_be_bytes());
            body.extend_from_slice(octets);
            Ok(())
        };
        Ok(match self {
            Self::Sign(octets) => {
                body.extend_from_slice(octets);
                kind::SIGN
            }
            Self::Verify(wanted) => {
                piece(&json(&wanted.key)?)?;
                piece(&wanted.signature)?;
                body.extend_from_slice(&wanted.octets);
                kind::VERIFY
            }
            Self::Digest(step) => {
                body.extend_from_slice(&step.digest.to_be_bytes());
                body.extend_from_slice(&[step.is_first.into(), step.is_last.into()]);
                body.extend_from_slice(&step.octets);
                kind::DIGEST
            }
            Self::Abandon(digest) => {
                body.extend_from_slice(&digest.to_be_bytes());
                kind::ABANDON
            }
        })
    }

    fn read(kind: u8, mut rest: &[u8]) -> io::Result<Self> {
        Ok(match kind {
            kind::SIGN => Self::Sign(rest.to_vec()),
            kind::VERIFY => {
                let key = from_json(piece(&mut rest)?)?;
                let signature = piece(&mut rest)?.to_vec();
                let octets = rest.to_vec();
                Self::Verify(Box::new(ToVerify {
                    key,
                    octets,
                    signature,
                }))
            }
            kind::DIGEST => {
                let digest = u64::from_be_bytes(take(&mut rest)?);
                let [is_first, is_last] = take::<2>(&mut rest)?.map(|octet| octet != 0);
                Self::Digest(Step {
                    digest,
                    octets: rest.to_vec(),
                    is_first,
                    is_last,
                })
            }
            kind::ABANDON => Self::Abandon(u64::from_be_bytes(take(&mut rest)?)),
            _ => return Err(garbage()),
        })
    }
}

impl Answer {
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Event(Event::Done {
                id,
                result: Ok(signature),
            }) => write(to, kind::DONE, &[&id.to_be_bytes()[..], signature].concat()),
            Self::Event(event) => write(to, kind::EVENT, &json(event)?),
            Self::Listed { id, listed } => write(to, kind::LISTED, &json(&(id, listed))?),
        }
    }

    /// The next answer; `None` at the end.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let Some((kind, body)) = read(from)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            kind::DONE => Self::Event(Event::Done {
                id: u64::from_be_bytes(array(&body)?),
                result: Ok(body.get(8..).unwrap_or_default().to_vec()),
            }),
            kind::EVENT => Self::Event(from_json(&body)?),
            kind::LISTED => {
                let (id, listed) = from_json(&body)?;
                Self::Listed { id, listed }
            }
            _ => return Err(garbage()),
        }))
    }
}

mod kind {
    pub(super) const HELLO: u8 = b'h';
    pub(super) const REGISTER: u8 = b'r';
    pub(super) const FORGET: u8 = b'f';
    pub(super) const SIGN: u8 = b's';
    pub(super) const VERIFY: u8 = b'v';
    pub(super) const DIGEST: u8 = b'd';
    pub(super) const ABANDON: u8 = b'a';
    pub(super) const LIST: u8 = b'l';
    pub(super) const STOP: u8 = b'q';
    pub(super) const DONE: u8 = b'D';
    pub(super) const EVENT: u8 = b'E';
    pub(super) const LISTED: u8 = b'L';
}

/// One write, so that frames of several threads need no more than a lock.
fn write(to: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| garbage())?;
    let mut frame = Zeroizing::new(Vec::with_capacity(5 + body.len()));
    frame.extend_from_slice(&length.to_be_bytes());
    frame.push(kind);
    frame.extend_from_slice(body);
    to.write_all(&frame)
}

fn read(from: &mut impl Read) -> io::Result<Option<(u8, Zeroizing<Vec<u8>>)>> {
    let mut head = [0; 5];
    let begun = loop {
        match from.read(&mut head[..1]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if begun == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let length = u32::from_be_bytes(array(&head)?) as usize;
    if length > LONGEST {
        return Err(garbage());
    }
    let mut body = Zeroizing::new(vec![0; length]);
    from.read_exact(&mut body)?;
    Ok(Some((head[4], body)))
}

fn json(value: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut octets = Zeroizing::new(Vec::with_capacity(JSON_ROOM));
    serde_json::to_writer(&mut *octets, value)?;
    Ok(octets)
}

fn from_json<'b, T: Deserialize<'b>>(body: &'b [u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(body)?)
}

/// The first octets of `body`.
fn array<const N: usize>(body: &[u8]) -> io::Result<[u8; N]> {
    body.first_chunk().copied().ok_or_else(garbage)
}

/// Takes the first octets off `rest`.
fn take<const N: usize>(rest: &mut &[u8]) -> io::Result<[u8; N]> {
    let (octets, behind) = rest.split_first_chunk().ok_or_else(garbage)?;
    *rest = behind;
    Ok(*octets)
}

/// Takes octets with their length before them off `rest`.
fn piece<'b>(rest: &mut &'b [u8]) -> io::Result<&'b [u8]> {
    let length = u32::from_be_bytes(take(rest)?) as usize;
    let (octets, behind) = rest.split_at_checked(length).ok_or_else(garbage)?;
    *rest = behind;
    Ok(octets)
}

fn garbage() -> io::Error {
    io::Error::from(io::ErrorKind::InvalidData)
}

fn plain(reference: &Reference) -> PlainReference {
    PlainReference {
        uri: reference.uri.to_string(),
        module: reference.module.as_os_str().as_bytes().to_vec(),
        pin: match &reference.pin {
            None => PlainPin::None,
            Some(PinSource::File(path)) => PlainPin::File(path.as_os_str().as_bytes().to_vec()),
            Some(PinSource::Credential(name)) => PlainPin::Credential(name.clone()),
            Some(PinSource::Value(pin)) => PlainPin::Value(Zeroizing::new(pin.octets().to_vec())),
        },
    }
}

fn reference(plain: PlainReference) -> io::Result<Reference> {
    Ok(Reference {
        uri: match &*plain.uri {
            EVERYTHING => Uri::default(),
            uri => Uri::parse(uri.as_bytes()).map_err(|_| garbage())?,
        },
        module: path(plain.module),
        pin: match plain.pin {
            PlainPin::None => None,
            PlainPin::File(octets) => Some(PinSource::File(path(octets))),
            PlainPin::Credential(name) => Some(PinSource::Credential(name)),
            PlainPin::Value(octets) => {
                Some(PinSource::Value(Pin::new(octets).map_err(|_| garbage())?))
            }
        },
    })
}

pub(crate) fn path(octets: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(octets))
}

/// How the URI that matches everything is written, which nobody may write as a key's.
const EVERYTHING: &str = "pkcs11:";

/// The longest body: a list of some ten thousand keys.
const LONGEST: usize = 16 << 20;

/// What nearly all JSON here fits in, so that buffers with a PIN in them do not move.
const JSON_ROOM: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one octet at a time, and is interrupted before each.
    struct Slow<'o> {
        octets: &'o [u8],
        interrupted: bool,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.interrupted = !self.interrupted;
            if self.interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let length = self.octets.len().min(to.len()).min(1);
            to[..length].copy_from_slice(&self.octets[..length]);
            self.octets = &self.octets[length..];
            Ok(length)
        }
    }

    fn asking(asked: Asked) -> Request {
        Request::Do {
            id: 7,
            key: 8,
            millis: 9,
            asked,
        }
    }

    #[test]
    fn what_is_asked_is_read_as_it_was_written_and_never_beyond_its_end() {
        let known = crate::verify::KnownAnswer::new().unwrap();
        let to_verify = ToVerify {
            key: Public::of(&known.key),
            octets: b"octets".to_vec(),
            signature: known.good,
        };
        let step = Step {
            digest: 1 << 40,
            octets: b"body".to_vec(),
            is_first: true,
            is_last: false,
        };
        for asked in [
            Asked::Sign(Vec::new()),
            Asked::Verify(Box::new(to_verify)),
            Asked::Digest(step),
            Asked::Abandon(u64::MAX),
        ] {
            let request = asking(asked);
            let mut octets = Vec::new();
            request.write(&mut octets).unwrap();
            assert_eq!(Request::read(&mut &octets[..]).unwrap(), Some(request));
            let (kind, body) = (octets[4], &octets[5..]);
            for length in 0..body.len() {
                let mut short = Vec::new();
                write(&mut short, kind, &body[..length]).unwrap();
                // What is cut may be something else, but is never more than there is.
                let _ = Request::read(&mut &short[..]);
            }
        }
    }

    #[test]
    fn a_signal_does_not_end_what_is_read() {
        let mut octets = Vec::new();
        let sign = asking(Asked::Sign(b"octets".to_vec()));
        sign.write(&mut octets).unwrap();
        Request::Stop(10).write(&mut octets).unwrap();
        let mut slow = Slow {
            octets: &octets,
            interrupted: false,
        };
        assert_eq!(Request::read(&mut slow).unwrap(), Some(sign));
        assert_eq!(Request::read(&mut slow).unwrap(), Some(Request::Stop(10)));
        assert_eq!(Request::read(&mut slow).unwrap(), None);
    }

    #[test]
    fn what_claims_to_be_too_long_is_refused_before_there_is_room_for_it() {
        for length in [u32::MAX, 1 << 25] {
            let mut octets = length.to_be_bytes().to_vec();
            octets.push(kind::DONE);
            assert!(Answer::read(&mut &octets[..]).is_err());
        }
    }
}
