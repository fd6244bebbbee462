//! Canonicalization (RFC 6376 section 3.4): the forms of header fields and bodies that are hashed.
//!
//! `header` turns fields into octets, `body` works on chunks of any size with the same result. Both know only SP and
//! HTAB as white space (RFC 6376 section 2.8) and CRLF as a line end; a bare CR or LF is an octet like others.

mod body;
mod header;
mod white_space;

pub use body::BodyCanonicalizer;
pub(crate) use header::{append_field, append_field_without};
pub(crate) use white_space::{Masks, append_without};

/// One of the two algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Nearly no change is tolerated.
    #[default]
    Simple,
    /// White space may change, and header fields may be folded anew.
    Relaxed,
}

impl Algorithm {
    /// Its name in `c=`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Relaxed => "relaxed",
        }
    }

    /// The algorithm of that name, without regard to case.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        [Self::Simple, Self::Relaxed]
            .into_iter()
            .find(|algorithm| name.eq_ignore_ascii_case(algorithm.as_str().as_bytes()))
    }
}

/// The value of `c=`: an algorithm for the header and one for the body (RFC 6376 section 3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Canonicalization {
    /// For header fields.
    pub header: Algorithm,
    /// For the body.
    pub body: Algorithm,
}

impl Canonicalization {
    /// `relaxed/relaxed`, which survives what mail systems do to white space.
    pub const RELAXED: Self = Self {
        header: Algorithm::Relaxed,
        body: Algorithm::Relaxed,
    };

    /// Reads `header/body`, or `header` alone, which leaves the body `simple`.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut names = value.splitn(2, |&o| o == b'/');
        let header = Algorithm::from_name(names.next()?)?;
        let body = match names.next() {
            Some(name) => Algorithm::from_name(name)?,
            None => Algorithm::Simple,
        };
        Some(Self { header, body })
    }

    /// The value of `c=` that says so, both algorithms named.
    pub fn as_str(self) -> &'static str {
        match (self.header, self.body) {
            (Algorithm::Simple, Algorithm::Simple) => "simple/simple",
            (Algorithm::Simple, Algorithm::Relaxed) => "simple/relaxed",
            (Algorithm::Relaxed, Algorithm::Simple) => "relaxed/simple",
            (Algorithm::Relaxed, Algorithm::Relaxed) => "relaxed/relaxed",
        }
    }
}

impl std::fmt::Display for Canonicalization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_the_header_algorithm() {
        for (value, want) in [
            ("simple/simple", Some("simple/simple")),
            ("relaxed/simple", Some("relaxed/simple")),
            ("Simple/RELAXED", Some("simple/relaxed")),
            ("relaxed", Some("relaxed/simple")),
            ("simple", Some("simple/simple")),
            ("", None),
            ("relaxed/", None),
            ("/relaxed", None),
            ("nowsp", None),
            ("simple/simple/simple", None),
        ] {
            assert_eq!(
                Canonicalization::parse(value.as_bytes()).map(|c| c.to_string()),
                want.map(String::from),
                "{value}"
            );
        }
    }
}
