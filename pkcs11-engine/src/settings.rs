//! How tokens are used, and what is told of them: what a program settles when it makes [`Tokens`](crate::Tokens).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How tokens are used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where modules are loaded.
    pub isolation: Isolation,
    /// How many sessions, and threads, a token gets.
    pub sessions: usize,
    /// How many signatures may wait for a token.
    pub queue: usize,
    /// How long a signature may take.
    pub timeout: Duration,
}

impl Default for Settings {
    /// A process per module, this program's; 4 sessions; 64 waiting; 5 s.
    fn default() -> Self {
        Self {
            isolation: Isolation::Process {
                program: PathBuf::from("/proc/self/exe"),
            },
            sessions: 4,
            queue: 64,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Where modules are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Each in a process of its own.
    Process {
        /// A program that begins with [`run_if_asked`](crate::run_if_asked).
        program: PathBuf,
    },
    /// In this process.
    None,
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How grave it is.
    pub level: Level,
    /// One sentence.
    pub text: String,
    /// What is done about it. That concerns who goes on, and not a tool that ends at once.
    pub measure: Option<&'static str>,
}

/// All of it, in one line.
impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.measure {
            Some(measure) => write!(f, "; {measure}"),
            None => Ok(()),
        }
    }
}

/// `sentence`, which a fault or a notice has, for a tool that ends at once: that a wrong PIN is remembered concerns only
/// who goes on.
pub fn told_once(sentence: &str) -> String {
    sentence.replace(NOT_AGAIN, "is wrong")
}

/// What becomes of a wrong PIN.
pub(crate) const NOT_AGAIN: &str = "is not tried again until it changes";

/// How grave a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// All is well, again.
    Info,
    /// Odd.
    Warning,
    /// Mail is not signed.
    Error,
}
