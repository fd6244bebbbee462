//! Where a value came from, as told to the operator.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The place where a setting or an entry of a data set was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file, counted from 1.
    File {
        /// The file, as it was named.
        path: Arc<Path>,
        /// The line.
        line: u32,
    },
    /// The command line; the words that set it, such as `--set Mode=v`.
    CommandLine(Arc<str>),
    /// Nobody wrote it: the option's default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::CommandLine(words) => write!(f, "command line ({words})"),
            Self::Default => f.write_str("default"),
        }
    }
}
