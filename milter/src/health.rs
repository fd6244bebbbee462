//! What the daemon's condition comes to: whether it lives, whether it can sign, and why not; in words that the status
//! socket and the service manager share. Pure: facts go in, reasons come out.
//!
//! *Live* is a process that a restart would not mend: only a stuck event loop makes it not so. *Ready* means that mail gets
//! the signatures that the configuration wants. A key that is missing, a token that is away or a socket that no MTA can
//! find makes it not so, although the process is well. *Degraded* is what somebody should look into while mail is signed:
//! a dead DNS above all, as mail that is verified waits then and mail that is signed does not.

use std::fmt;
use std::time::Duration;

use crate::dns::DnsTrouble;
use crate::shown::one_line;

/// What is known of the daemon at a moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Where it is in its life.
    pub stage: Stage,
    /// How long the event loop has not turned.
    pub silent: Duration,
    /// Threads of the event loop, and how many of them have been busy with one piece of work for long.
    pub threads: (usize, usize),
    /// Keys that can sign, those in tokens included.
    pub usable: usize,
    /// Keys that cannot be used, and table entries without one.
    pub broken: Faults,
    /// Keys in tokens that cannot sign now.
    pub away: Faults,
    /// Tokens that verify or hash, and cannot now.
    pub duties: Vec<&'static str>,
    /// Whether software does their work meanwhile.
    pub software: bool,
    /// Keys that are not signed with as long as their records are not right.
    pub held: Faults,
    /// Socket files that are not as they were made.
    pub sockets: Faults,
    /// What is wrong with the DNS.
    pub dns: Option<DnsTrouble>,
    /// Why the last reload was refused, if it was.
    pub refused_reload: Option<String>,
    /// How long a reload has been under way.
    pub reloading: Option<Duration>,
}

/// What is wrong with things of one kind.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// One sentence each.
    pub told: Vec<String>,
    /// How many are not told of.
    pub untold: usize,
    /// How many things are concerned in all; some may share a sentence.
    pub things: usize,
}

/// Where a daemon is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It takes no mail yet.
    #[default]
    Starting,
    /// It serves.
    Serving,
    /// It takes no new connection any more.
    Stopping,
}

/// Why the daemon is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What it is about, in a word.
    pub about: &'static str,
    /// One sentence.
    pub text: String,
}

/// A verdict on the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why it should be restarted.
    pub dead: Vec<Reason>,
    /// Why mail may not be signed.
    pub not_ready: Vec<Reason>,
    /// What else somebody should look into.
    pub degraded: Vec<Reason>,
    /// All of it in half a line.
    pub summary: String,
}

/// What a daemon comes to, in a word or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All is well.
    Ready,
    /// Mail is signed, and something is wrong.
    Degraded,
    /// Mail may not be signed.
    NotReady,
}

impl Health {
    /// Draws the conclusions.
    pub fn of(facts: &Facts) -> Self {
        let mut health = Self {
            summary: summary(facts),
            ..Self::default()
        };
        health.judge_life(facts);
        health.judge_readiness(facts);
        health.judge_the_rest(facts);
        health
    }

    /// Whether a restart would mend nothing.
    pub fn is_live(&self) -> bool {
        self.dead.is_empty()
    }

    /// Whether mail gets its signatures.
    pub fn readiness(&self) -> Readiness {
        if !self.dead.is_empty() || !self.not_ready.is_empty() {
            Readiness::NotReady
        } else if self.degraded.is_empty() {
            Readiness::Ready
        } else {
            Readiness::Degraded
        }
    }

    /// The answer to whether it lives: a line, or one per reason why not.
    pub fn life_lines(&self) -> String {
        if self.is_live() {
            "ok\n".to_owned()
        } else {
            lines(&self.dead)
        }
    }

    /// The answer to whether it is ready: what it comes to, and one line per reason.
    pub fn readiness_lines(&self) -> String {
        let reasons = [&self.dead, &self.not_ready, &self.degraded].map(|reasons| lines(reasons));
        format!(
            "{}: {}\n{}",
            self.readiness(),
            self.summary,
            reasons.concat()
        )
    }

    fn judge_life(&mut self, facts: &Facts) {
        if facts.silent > LONGEST_SILENCE {
            let text = format!(
                "no worker thread has taken up anything for {} s; connections are not served",
                facts.silent.as_secs()
            );
            self.dead.push(reason("stuck", text));
        }
    }

    fn judge_readiness(&mut self, facts: &Facts) {
        match facts.stage {
            Stage::Starting => self.lacks("starting", "keys are being opened"),
            Stage::Stopping => self.lacks("stopping", "no new connection is taken"),
            Stage::Serving => {}
        }
        for (about, faults) in [
            ("key", &facts.broken),
            ("token", &facts.away),
            ("record", &facts.held),
            ("socket", &facts.sockets),
        ] {
            for text in faults.told.iter().take(MOST_TOLD) {
                self.lacks(about, text);
            }
            let untold = faults.told.len().saturating_sub(MOST_TOLD) + faults.untold;
            if untold > 0 {
                self.lacks(about, &format!("and {untold} more"));
            }
        }
        for duty in facts.duties.iter().filter(|_| !facts.software) {
            self.lacks("token", duty);
        }
    }

    fn judge_the_rest(&mut self, facts: &Facts) {
        for duty in facts.duties.iter().filter(|_| facts.software) {
            let text = format!("{duty}; software does its work (Pkcs11Fallback)");
            self.degraded.push(reason("token", text));
        }
        if let Some(trouble) = &facts.dns {
            self.degraded.push(reason("dns", trouble.to_string()));
        }
        if let Some(why) = &facts.refused_reload {
            let text = format!("the last one was refused, and what was loaded before holds: {why}");
            self.degraded.push(reason("reload", text));
        }
        if let Some(time) = facts.reloading.filter(|time| *time > LONGEST_RELOAD) {
            let text = format!("one has been under way for {} s", time.as_secs());
            self.degraded.push(reason("reload", text));
        }
        let (threads, stuck) = facts.threads;
        if stuck > 0 && self.is_live() {
            let text = format!(
                "worker threads busy with one piece of work for long: {stuck} of {threads}"
            );
            self.degraded.push(reason("stuck", text));
        }
    }

    fn lacks(&mut self, about: &'static str, text: &str) {
        self.not_ready.push(reason(about, text.to_owned()));
    }
}

impl From<Vec<String>> for Faults {
    fn from(told: Vec<String>) -> Self {
        Self {
            things: told.len(),
            untold: 0,
            told,
        }
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Degraded => "ready, degraded",
            Self::NotReady => "not ready",
        })
    }
}

impl fmt::Display for DnsTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failures {
            1 => f.write_str("the last look-up failed")?,
            more => write!(f, "the last {more} look-ups failed")?,
        }
        match self.last_answer {
            Some(ago) => write!(f, ", and none was answered for {} s", ago.as_secs())?,
            None => f.write_str(", and none was ever answered")?,
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

/// `1 key; 1 cannot be used; 1 in tokens that are away`, and what else there is.
fn summary(facts: &Facts) -> String {
    let mut parts = vec![match facts.usable {
        1 => "1 key".to_owned(),
        more => format!("{more} keys"),
    }];
    let mut count = |count: usize, what: &str| {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    };
    count(facts.broken.things, "cannot be used");
    count(facts.away.things, "in tokens that are away");
    count(facts.held.things, "not signed with, for their records");
    match facts.stage {
        Stage::Starting => parts.push("starting".to_owned()),
        Stage::Stopping => parts.push("stopping".to_owned()),
        Stage::Serving => {}
    }
    parts.extend(facts.duties.iter().map(|duty| (*duty).to_owned()));
    parts.extend(facts.sockets.told.first().cloned());
    if facts.silent > LONGEST_SILENCE {
        parts.push("stuck".to_owned());
    }
    if facts.dns.is_some() {
        parts.push("the DNS does not answer".to_owned());
    }
    if facts.refused_reload.is_some() {
        parts.push("the last reload was refused".to_owned());
    }
    one_line(&parts.join("; "))
}

fn reason(about: &'static str, text: String) -> Reason {
    Reason { about, text }
}

/// One line each, whatever names of files and what name servers say hold: who reads it may be at a terminal.
fn lines(reasons: &[Reason]) -> String {
    let line = |reason: &Reason| format!("{}: {}\n", reason.about, one_line(&reason.text));
    reasons.iter().map(line).collect()
}

/// The event loop beats every second; a loaded machine is late by less than this.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Loading ten thousand keys takes less.
const LONGEST_RELOAD: Duration = Duration::from_secs(60);

/// How many reasons of a kind are told.
pub const MOST_TOLD: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Facts {
        Facts {
            stage: Stage::Serving,
            silent: Duration::from_millis(700),
            threads: (2, 0),
            usable: 2,
            ..Facts::default()
        }
    }

    /// What /live and /ready say, the lines of the latter behind each other.
    fn told(facts: &Facts) -> (bool, Readiness, String) {
        let health = Health::of(facts);
        let lines = health.readiness_lines().trim_end().replace('\n', " | ");
        (health.is_live(), health.readiness(), lines)
    }

    #[test]
    fn each_state_of_the_daemon_is_told_from_the_others() {
        use Readiness::{Degraded, NotReady, Ready};
        let dead_dns = DnsTrouble {
            failures: 3,
            last_answer: Some(Duration::from_secs(40)),
            reason: "no answer from 127.0.0.1:53".into(),
        };
        for (facts, live, readiness, lines) in [
            (well(), true, Ready, "ready: 2 keys"),
            (
                Facts {
                    usable: 1,
                    broken: vec!["KeyTable:2: key \"k2\" in k.pem: No such file".into()].into(),
                    ..well()
                },
                true,
                NotReady,
                "not ready: 1 key; 1 cannot be used | key: KeyTable:2: key \"k2\" in k.pem: No such file",
            ),
            (
                Facts {
                    duties: vec!["the token that verifies is away"],
                    ..well()
                },
                true,
                NotReady,
                "not ready: 2 keys; the token that verifies is away | token: the token that verifies is away",
            ),
            (
                Facts {
                    duties: vec!["the token that hashes is away"],
                    software: true,
                    ..well()
                },
                true,
                Degraded,
                "ready, degraded: 2 keys; the token that hashes is away | token: the token that hashes is away; software \
                 does its work (Pkcs11Fallback)",
            ),
            (
                Facts {
                    usable: 1,
                    away: vec!["KeyTable:1: key \"k1\": no token matches".into()].into(),
                    ..well()
                },
                true,
                NotReady,
                "not ready: 1 key; 1 in tokens that are away | token: KeyTable:1: key \"k1\": no token matches",
            ),
            (
                Facts {
                    dns: Some(dead_dns),
                    ..well()
                },
                true,
                Degraded,
                "ready, degraded: 2 keys; the DNS does not answer | dns: the last 3 look-ups failed, and none was answered \
                 for 40 s: no answer from 127.0.0.1:53",
            ),
            (
                Facts {
                    sockets: vec!["local:/run/s was removed".into()].into(),
                    ..well()
                },
                true,
                NotReady,
                "not ready: 2 keys; local:/run/s was removed | socket: local:/run/s was removed",
            ),
            (
                Facts {
                    silent: Duration::from_secs(11),
                    threads: (2, 2),
                    ..well()
                },
                false,
                NotReady,
                "not ready: 2 keys; stuck | stuck: no worker thread has taken up anything for 11 s; connections are not \
                 served",
            ),
            (
                Facts {
                    threads: (2, 1),
                    ..well()
                },
                true,
                Degraded,
                "ready, degraded: 2 keys | stuck: worker threads busy with one piece of work for long: 1 of 2",
            ),
            (
                Facts {
                    refused_reload: Some("1 key that signed could not be loaded again".into()),
                    ..well()
                },
                true,
                Degraded,
                "ready, degraded: 2 keys; the last reload was refused | reload: the last one was refused, and what was \
                 loaded before holds: 1 key that signed could not be loaded again",
            ),
            (
                Facts {
                    held: vec!["s._domainkey.example.com: does not exist".into()].into(),
                    ..well()
                },
                true,
                NotReady,
                "not ready: 2 keys; 1 not signed with, for their records | record: s._domainkey.example.com: does not exist",
            ),
            (
                Facts {
                    stage: Stage::Starting,
                    ..well()
                },
                true,
                NotReady,
                "not ready: 2 keys; starting | starting: keys are being opened",
            ),
            (
                Facts {
                    stage: Stage::Stopping,
                    ..well()
                },
                true,
                NotReady,
                "not ready: 2 keys; stopping | stopping: no new connection is taken",
            ),
            (
                Facts {
                    reloading: Some(Duration::from_secs(61)),
                    ..well()
                },
                true,
                Degraded,
                "ready, degraded: 2 keys | reload: one has been under way for 61 s",
            ),
            (
                Facts {
                    reloading: Some(Duration::from_secs(59)),
                    ..well()
                },
                true,
                Ready,
                "ready: 2 keys",
            ),
        ] {
            assert_eq!(told(&facts), (live, readiness, lines.to_owned()));
        }
    }

    #[test]
    fn what_is_worse_decides_and_nothing_is_left_out() {
        let facts = Facts {
            broken: vec!["broken".into()].into(),
            refused_reload: Some("refused".into()),
            silent: Duration::from_secs(60),
            ..well()
        };
        let (live, readiness, lines) = told(&facts);
        assert!(!live && readiness == Readiness::NotReady);
        let about: Vec<_> = lines.split(" | ").skip(1).map(|line| &line[..4]).collect();
        assert_eq!(about, ["stuc", "key:", "relo"]);
        assert!(Health::of(&facts).life_lines().starts_with("stuck: "));
        assert_eq!(Health::of(&well()).life_lines(), "ok\n");
    }

    #[test]
    fn a_reason_is_one_line_and_plays_with_no_terminal() {
        let facts = Facts {
            broken: vec!["/no\u{9b}31m/\u{202e}yek: No such\nready: 9 keys".into()].into(),
            sockets: vec!["local:/a\x1b[2J was removed".into()].into(),
            refused_reload: Some("Fo\u{9b}o\r\n".into()),
            ..well()
        };
        let health = Health::of(&facts);
        for text in [health.readiness_lines(), health.summary.clone()] {
            let is_plain = |c: char| c == '\n' || !crate::shown::is_steering(c);
            assert!(text.chars().all(is_plain), "{text:?}");
        }
        let lines = health.readiness_lines();
        assert_eq!(lines.lines().count(), 4, "{lines}");
        assert!(lines.contains("key: /no\\u{9b}31m/"), "{lines}");
    }

    #[test]
    fn the_list_of_reasons_is_bounded() {
        let facts = Facts {
            broken: Faults {
                told: (0..100).map(|n| n.to_string()).collect(),
                untold: 400,
                things: 505,
            },
            ..well()
        };
        let health = Health::of(&facts);
        assert_eq!(health.not_ready.len(), MOST_TOLD + 1);
        assert_eq!(health.not_ready[MOST_TOLD].text, "and 480 more");
        assert!(health.summary.contains("505 cannot be used"));
    }
}
