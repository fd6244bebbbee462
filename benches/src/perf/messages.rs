//! The messages that are worked on, by number: in memory, or read from an mbox each time.

use super::error::PerfError;
use super::mbox::{Buffer, Mbox};
use super::options::Mix;
use super::work::{Signing, with_field, without_signatures};
use crate::workload::{base64_body, header, message, text_body};
use std::io;

/// Raw messages as on the wire, one at least.
#[derive(Debug)]
pub(super) enum Messages {
    /// Made here, or signed here.
    Memory(Vec<Named>),
    /// In a file.
    Mbox(Mbox),
}

/// A message and what it is called in reports.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    raw: Vec<u8>,
}

impl Messages {
    /// Those of `mix`, unsigned unless an mbox has signed ones.
    ///
    /// # Errors
    /// Those of [`Mbox::open`].
    pub(super) fn of(mix: &Mix) -> Result<Self, PerfError> {
        let bodies: Vec<Vec<u8>> = match mix {
            Mix::Size(octets) => vec![text_body(*octets)],
            Mix::Small => SMALL.iter().map(|size| text_body(*size)).collect(),
            Mix::Large => LARGE
                .iter()
                .map(|&(megabytes, is_text)| match is_text {
                    true => text_body(megabytes << 20),
                    false => base64_body(megabytes << 20),
                })
                .collect(),
            Mix::Mbox(path) => return Ok(Self::Mbox(Mbox::open(path)?)),
        };
        let header = header();
        let named = bodies.iter().enumerate().map(|(index, body)| Named {
            name: format!("message {} of {mix}", index + 1),
            raw: message(&header, body),
        });
        Ok(Self::Memory(named.collect()))
    }

    /// The same messages, each with one signature, in memory.
    ///
    /// # Errors
    /// A message that cannot be read or signed.
    pub(super) fn signed(&self, signing: &Signing<'_>) -> Result<Self, PerfError> {
        let mut buffer = Buffer::default();
        let signed = (0..self.len()).map(|index| {
            let fail = |reason: String| PerfError::NotSigned {
                name: self.name(index),
                reason,
            };
            let raw = self
                .get(index, &mut buffer)
                .map_err(|error| fail(error.to_string()))?;
            let raw = without_signatures(raw).map_err(fail)?;
            let field = signing.sign(&raw).map_err(fail)?;
            Ok(Named {
                name: self.name(index),
                raw: with_field(&field, &raw),
            })
        });
        signed.collect::<Result<_, _>>().map(Self::Memory)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory(messages) => messages.len(),
            Self::Mbox(mbox) => mbox.len(),
        }
    }

    /// What the one at `index` is called in reports.
    pub(super) fn name(&self, index: usize) -> String {
        match self {
            Self::Memory(messages) => messages[index].name.clone(),
            Self::Mbox(mbox) => mbox.name(index),
        }
    }

    /// The one at `index`, from 0. `buffer` is room for those that are read from a file.
    ///
    /// # Errors
    /// Whatever reading says.
    pub(super) fn get<'a>(&'a self, index: usize, buffer: &'a mut Buffer) -> io::Result<&'a [u8]> {
        match self {
            Self::Memory(messages) => Ok(&messages[index].raw),
            Self::Mbox(mbox) => mbox.read(index, buffer),
        }
    }

    /// Whether getting one reads a file.
    pub(super) fn are_read(&self) -> bool {
        matches!(self, Self::Mbox(_))
    }
}

/// Octets of the bodies of the small mix: most mail is short, and none is empty.
const SMALL: [usize; 9] = [512, 700, 1024, 1500, 2048, 3072, 4096, 6144, 8192];

/// Megabytes of the bodies of the large mix, and whether each is text; what is large in mail is mostly base64.
const LARGE: [(usize, bool); 6] = [
    (1, true),
    (1, false),
    (2, false),
    (2, true),
    (3, false),
    (4, false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_have_the_sizes_they_say() {
        let header = message(&header(), b"").len();
        let mut buffer = Buffer::default();
        let sizes = |mix, buffer: &mut Buffer| {
            let messages = Messages::of(&mix).unwrap();
            (0..messages.len())
                .map(|index| messages.get(index, buffer).unwrap().len() - header)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(Mix::Size(2), &mut buffer), [2]);
        assert_eq!(sizes(Mix::Size(4096), &mut buffer), [4096]);
        assert_eq!(sizes(Mix::Small, &mut buffer), SMALL);
        let large = sizes(Mix::Large, &mut buffer);
        assert!(large.iter().all(|size| (1 << 20..=4 << 20).contains(size)));
    }
}
