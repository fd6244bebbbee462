//! A short speed test: how many signatures a second a key in a token makes, beside software with a key of the same kind
//! and size.
//!
//! Each row takes about a second, so that figures tell twice as fast from half as fast, and not more. The token's
//! signatures are counted as mail would get them, with the way to the module's process and the check in software.

use super::new_key::{NewKeyError, new_key};
use dkim_core::engine::{EngineError, SigningError, SigningKey, signing_key};
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// With how many threads a token is tried, and so how many sessions it needs.
pub(super) const THREADS: [usize; 4] = [1, 2, 4, 8];

/// How long a row takes.
pub(super) const ROW: Duration = Duration::from_secs(1);

/// Signatures per second by so many threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    threads: usize,
    per_second: f64,
}

/// What was measured.
#[derive(Debug, PartialEq)]
pub(super) struct Speed {
    token: Vec<Row>,
    /// Empty where software makes no such key to compare.
    software: Vec<Row>,
}

impl Speed {
    /// Measures `key`, then software: some six seconds.
    ///
    /// # Errors
    /// A signature that fails.
    pub(super) fn measure(key: &dyn SigningKey) -> Result<Self, SpeedError> {
        let token = rows(key, &THREADS)?;
        let software = match new_key(key.key_type(), key.public_key().bits()) {
            Ok(made) => {
                let cores = thread::available_parallelism().map_or(1, usize::from);
                let threads = if cores == 1 { vec![1] } else { vec![1, cores] };
                rows(&*signing_key(&made)?, &threads)?
            }
            Err(NewKeyError::Size { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { token, software })
    }

    /// How many sessions are worth having: beyond, there is less than a tenth to gain.
    fn sessions(&self) -> usize {
        let best = best(&self.token);
        self.token
            .iter()
            .find(|row| row.per_second >= 0.9 * best)
            .map_or(1, |row| row.threads)
    }

    fn conclusion(&self) -> String {
        let (token, software) = (best(&self.token), best(&self.software));
        let sessions = match self.sessions() {
            1 => "one session is enough for this token".to_owned(),
            most if Some(most) == THREADS.last().copied() => {
                format!("more sessions help, up to {most} at least")
            }
            some => format!("{some} sessions help, more do not"),
        };
        if software == 0.0 {
            return format!("{sessions}; software makes no key of this size to compare with");
        }
        if token < DIFFERENT * software && software < DIFFERENT * token {
            return format!(
                "the token and software are about as fast here, or the machine is too busy to tell; {sessions}"
            );
        }
        if token > software {
            return format!(
                "the token is faster here, by {:.1} times; {sessions}",
                token / software
            );
        }
        format!(
            "software is faster here, by {:.1} times; {sessions}. A token is for keeping a key, not for speed",
            software / token
        )
    }
}

/// A line for each row, and one sentence.
impl Display for Speed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, rows) in [("token", &self.token), ("software", &self.software)] {
            for row in rows {
                let plural = if row.threads == 1 { " " } else { "s" };
                writeln!(
                    f,
                    "{name:<9}{:>3} thread{plural}{:>9.0} signatures/s",
                    row.threads, row.per_second
                )?;
            }
        }
        f.write_str(&self.conclusion())
    }
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpeedError {
    /// The token failed.
    #[error("{0}")]
    Signing(#[from] SigningError),
    /// There is no key to compare with.
    #[error("{0}")]
    NewKey(#[from] NewKeyError),
    /// No engine takes the key to compare with.
    #[error("{0}")]
    Engine(#[from] EngineError),
}

fn rows(key: &dyn SigningKey, threads: &[usize]) -> Result<Vec<Row>, SigningError> {
    // What is done once is not measured.
    key.sign(OCTETS)?;
    threads
        .iter()
        .map(|&threads| {
            Ok(Row {
                threads,
                per_second: rate(key, threads)?,
            })
        })
        .collect()
}

/// How many signatures `threads` threads make a second.
fn rate(key: &dyn SigningKey, threads: usize) -> Result<f64, SigningError> {
    let (is_over, failure) = (AtomicBool::new(false), Mutex::new(None));
    let started = Instant::now();
    let made: u32 = thread::scope(|scope| {
        let work = || {
            let mut made = 0;
            while !is_over.load(Ordering::Relaxed) {
                if let Err(error) = key.sign(OCTETS) {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    break;
                }
                made += 1;
                if started.elapsed() >= ROW {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            made
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            // A worker that panicked made none.
            .map(|worker| worker.join().unwrap_or(0))
            .sum()
    });
    let seconds = started.elapsed().as_secs_f64();
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(f64::from(made) / seconds),
    }
}

fn best(rows: &[Row]) -> f64 {
    rows.iter().map(|row| row.per_second).fold(0.0, f64::max)
}

/// How many times as fast is a difference that a second can show.
const DIFFERENT: f64 = 1.2;

/// About what is signed of a header.
const OCTETS: &[u8] = &[b'h'; 1024];

#[cfg(test)]
mod tests {
    use super::*;
    use dkim_core::engine::{KeyType, PublicKey};

    fn speed(token: &[f64], software: &[f64]) -> Speed {
        let rows = |rates: &[f64]| {
            let rows = THREADS.iter().zip(rates);
            rows.map(|(&threads, &per_second)| Row {
                threads,
                per_second,
            })
            .collect()
        };
        Speed {
            token: rows(token),
            software: rows(software),
        }
    }

    #[test]
    fn the_sentence_says_who_is_faster_and_how_many_sessions_help() {
        for (token, software, sentence) in [
            (
                &[1000.0, 1900.0, 1950.0, 1940.0][..],
                &[3000.0, 6000.0][..],
                "software is faster here, by 3.1 times; 2 sessions help, more do not. A token is for keeping a key, not for speed",
            ),
            (
                &[100.0, 100.0, 95.0, 90.0],
                &[20.0, 40.0],
                "the token is faster here, by 2.5 times; one session is enough for this token",
            ),
            (
                &[100.0, 100.0, 95.0, 90.0],
                &[90.0, 110.0],
                "the token and software are about as fast here, or the machine is too busy to tell; one session is enough for this token",
            ),
            (
                &[10.0, 20.0, 40.0, 80.0],
                &[],
                "more sessions help, up to 8 at least; software makes no key of this size to compare with",
            ),
        ] {
            assert_eq!(speed(token, software).conclusion(), sentence);
        }
    }

    #[test]
    fn a_failing_key_ends_the_test() {
        #[derive(Debug)]
        struct Failing(PublicKey);
        impl SigningKey for Failing {
            fn key_type(&self) -> KeyType {
                KeyType::Ed25519
            }
            fn public_key(&self) -> &PublicKey {
                &self.0
            }
            fn sign(&self, _: &[u8]) -> Result<Vec<u8>, SigningError> {
                Err(SigningError("no".to_owned()))
            }
        }
        let octets = include_bytes!("../../../dkim-core/tests/data/keys/ed25519.record");
        let public = PublicKey::from_record(KeyType::Ed25519, octets);
        let failing = Failing(public.unwrap());
        assert!(matches!(
            Speed::measure(&failing),
            Err(SpeedError::Signing(_))
        ));
        assert!(rate(&failing, 2).is_err());
    }
}
