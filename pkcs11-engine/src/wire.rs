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
    Sign {
        id: u64,
        key: u32,
        /// How long anybody waits, in milliseconds.
        millis: u32,
        octets: Vec<u8>,
    },
    /// All tokens that match, with their keys.
    List(u64, Box<Reference>),
    /// The end, within so many milliseconds.
    Stop(u32),
}

/// A key that is asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Registered {
    pub(crate) number: u32,
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
                let body = json(&(registered.number, reference, &registered.known))?;
                write(to, kind::REGISTER, &body)
            }
            Self::Forget(number) => write(to, kind::FORGET, &number.to_be_bytes()),
            Self::Sign {
                id,
                key,
                millis,
                octets,
            } => {
                let head = [
                    &id.to_be_bytes()[..],
                    &key.to_be_bytes(),
                    &millis.to_be_bytes(),
                ];
                write(to, kind::SIGN, &[&head.concat()[..], octets].concat())
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
                let (number, plain, known): (u32, PlainReference, Option<Public>) =
                    from_json(&body)?;
                let reference = reference(plain)?;
                Self::Register(Box::new(Registered {
                    number,
                    reference,
                    known,
                }))
            }
            kind::FORGET => Self::Forget(u32::from_be_bytes(array(&body)?)),
            kind::SIGN => Self::Sign {
                id: u64::from_be_bytes(array(&body)?),
                key: u32::from_be_bytes(array(body.get(8..).unwrap_or_default())?),
                millis: u32::from_be_bytes(array(body.get(12..).unwrap_or_default())?),
                octets: body.get(16..).unwrap_or_default().to_vec(),
            },
            kind::LIST => {
                let (id, plain): (u64, PlainReference) = from_json(&body)?;
                Self::List(id, Box::new(reference(plain)?))
            }
            kind::STOP => Self::Stop(u32::from_be_bytes(array(&body)?)),
            _ => return Err(garbage()),
        }))
    }
}

impl Answer {
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Event(Event::Signed {
                id,
                result: Ok(signature),
            }) => write(
                to,
                kind::SIGNED,
                &[&id.to_be_bytes()[..], signature].concat(),
            ),
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
            kind::SIGNED => Self::Event(Event::Signed {
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
    pub(super) const LIST: u8 = b'l';
    pub(super) const STOP: u8 = b'q';
    pub(super) const SIGNED: u8 = b'S';
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

    #[test]
    fn a_signal_does_not_end_what_is_read() {
        let mut octets = Vec::new();
        let sign = Request::Sign {
            id: 7,
            key: 8,
            millis: 9,
            octets: b"octets".to_vec(),
        };
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
            octets.push(kind::SIGNED);
            assert!(Answer::read(&mut &octets[..]).is_err());
        }
    }
}
