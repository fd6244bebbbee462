//! What can be wrong with a configuration, and what is odd about it, as sentences for the operator.

use std::fmt;
use std::path::PathBuf;

use super::values::ValueFault;
use crate::tables::{Origin, TableError, TableNote, TableWarning};

/// A configuration that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// All that is wrong, in the order in which it was met; at least one.
    pub errors: Vec<ConfigError>,
    /// What is odd.
    pub warnings: Vec<Warning>,
}

impl Refused {
    /// Whether nothing is wrong but what stands on the command line.
    pub fn is_of_command_line(&self) -> bool {
        let is_of_command_line =
            |error: &ConfigError| matches!(error.origin(), Some(Origin::CommandLine(_)));
        self.errors.iter().all(is_of_command_line)
    }
}

/// A fault of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A fault of a data set.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A configuration file could not be read.
    #[error("{}cannot read {}: {cause}", place(origin), path.display())]
    Read {
        /// The line that includes it; `None` for the main file.
        origin: Option<Origin>,
        /// The file.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// A line holds what is no text.
    #[error(
        "{origin}: octet 0x{octet:02x} does not belong into a text file in UTF-8; the rest of the file is not read"
    )]
    NotText {
        /// The line.
        origin: Origin,
        /// The first such octet.
        octet: u8,
    },
    /// A line is too long.
    #[error("{origin}: the line is too long")]
    LineTooLong {
        /// The line.
        origin: Origin,
    },
    /// Files include each other too deep.
    #[error("{origin}: Include: files may include others no more than {max} deep")]
    IncludeTooDeep {
        /// The line.
        origin: Origin,
        /// How deep they may.
        max: usize,
    },
    /// A file includes itself.
    #[error("{origin}: Include: {} includes itself", path.display())]
    IncludeLoop {
        /// The line.
        origin: Origin,
        /// The file.
        path: PathBuf,
    },
    /// Too many files are included.
    #[error("{origin}: Include: more than {max} files are included")]
    IncludeTooMany {
        /// The line.
        origin: Origin,
        /// How many may be.
        max: usize,
    },
    /// An option without a value.
    #[error("{origin}: {name} has no value")]
    NoValue {
        /// The line.
        origin: Origin,
        /// The option as it is written.
        name: String,
    },
    /// `--set` without `=`.
    #[error("{origin}: wanted is --set Name=value")]
    NoAssignment {
        /// The argument.
        origin: Origin,
    },
    /// An option that only a file can have.
    #[error("{origin}: {option} can only stand in a file")]
    NotOnCommandLine {
        /// The argument.
        origin: Origin,
        /// The option.
        option: &'static str,
    },
    /// `Name=value` in a file.
    #[error(
        "{origin}: \"{written}\": a blank belongs between the name of an option and its value, as in \"{name} {value}\""
    )]
    NoBlank {
        /// The line.
        origin: Origin,
        /// What is written.
        written: String,
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// No such option.
    #[error("{origin}: there is no option \"{name}\"{}", suggestion(*nearest))]
    Unknown {
        /// The line.
        origin: Origin,
        /// What is written.
        name: String,
        /// The option that may have been meant.
        nearest: Option<&'static str>,
    },
    /// An option of OpenDKIM that is not carried.
    #[error(
        "{origin}: {name} of OpenDKIM is not supported: {why}; to do without it, delete the line"
    )]
    NotCarried {
        /// The line.
        origin: Origin,
        /// The option.
        name: &'static str,
        /// Why, or what to use instead.
        why: &'static str,
    },
    /// A value that is none.
    #[error("{origin}: {option}: {fault}")]
    Value {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// What is wrong.
        fault: ValueFault,
    },
    /// An element of a list of header fields that is none.
    #[error("{origin}: {option}: \"{element}\" is not the name of a header field")]
    NotAField {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// The element.
        element: String,
    },
    /// `+name` or `-name` without `*`.
    #[error(
        "{origin}: {option}: \"{element}\" changes the default list, which must then be named by the element \"*\""
    )]
    ChangeWithoutStar {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// The element.
        element: String,
    },
    /// An option that is nothing without another.
    #[error("{origin}: {option} needs {missing}, which is not set")]
    Needs {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// The other.
        missing: &'static str,
    },
    /// Signing alone, with nothing to sign with.
    #[error(
        "{origin}: Mode s has nothing to sign with: set KeyTable and SigningTable, or Domain, Selector and KeyFile"
    )]
    NothingToSignWith {
        /// Where the mode was set.
        origin: Origin,
    },
    /// A socket that others can reach.
    #[error(
        "{origin}: Socket: others than this host can reach {socket}, and the milter protocol has no authentication: whoever \
         connects can have mail signed; listen on localhost or on a Unix socket, or set ListenAnywhere yes if a firewall \
         keeps others out"
    )]
    Reachable {
        /// Where it was set.
        origin: Origin,
        /// The socket.
        socket: String,
    },
    /// A socket at a name, which may be others' to reach.
    #[error(
        "{origin}: Socket: {name} is not looked up before the start, so others than this host might reach {socket} (or the name \
         is unknown), and the milter protocol has no authentication: listen on localhost, on an address or on a Unix socket, \
         or set ListenAnywhere yes if a firewall keeps others out"
    )]
    MayBeReachable {
        /// Where it was set.
        origin: Origin,
        /// The name.
        name: String,
        /// The socket.
        socket: String,
    },
    /// The milter's own socket for the status.
    #[error(
        "{origin}: StatusSocket: {socket} is taken by the Socket of {by}, where MTAs connect; name another port or path"
    )]
    StatusTaken {
        /// Where it was set.
        origin: Origin,
        /// The socket.
        socket: String,
        /// Where the other was set.
        by: Origin,
    },
    /// More errors than are told.
    #[error("and {count} more errors")]
    More {
        /// How many.
        count: usize,
    },
}

impl ConfigError {
    /// Where it is.
    fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Table(TableError { origin, .. })
            | Self::NotText { origin, .. }
            | Self::LineTooLong { origin }
            | Self::IncludeTooDeep { origin, .. }
            | Self::IncludeLoop { origin, .. }
            | Self::IncludeTooMany { origin, .. }
            | Self::NoValue { origin, .. }
            | Self::NoAssignment { origin }
            | Self::NotOnCommandLine { origin, .. }
            | Self::NoBlank { origin, .. }
            | Self::Unknown { origin, .. }
            | Self::NotCarried { origin, .. }
            | Self::Value { origin, .. }
            | Self::NotAField { origin, .. }
            | Self::ChangeWithoutStar { origin, .. }
            | Self::Needs { origin, .. }
            | Self::NothingToSignWith { origin }
            | Self::Reachable { origin, .. }
            | Self::MayBeReachable { origin, .. }
            | Self::StatusTaken { origin, .. } => Some(origin),
            Self::Read { origin, .. } => origin.as_ref(),
            Self::More { .. } => None,
        }
    }
}

/// Something odd about the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Something odd about a data set.
    Table(TableWarning),
    /// An option that was set before.
    Twice {
        /// Where it was set last, which counts.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// Where it was set before.
        before: Origin,
    },
    /// An option of OpenDKIM that is not carried, and is not missed.
    NotCarried {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// Why not, or what to use instead.
        why: &'static str,
    },
    /// A comment that may be meant as a part of the value.
    CommentTouches {
        /// The line.
        origin: Origin,
    },
    /// An option that has no effect beside another.
    NoEffect {
        /// Where it was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// Why.
        because: &'static str,
    },
    /// Options about header fields that contradict each other.
    Field {
        /// Where the option was set.
        origin: Origin,
        /// The option.
        option: &'static str,
        /// The header field.
        name: String,
        /// What holds.
        note: &'static str,
    },
    /// No socket is named.
    NoSocket,
    /// The same socket twice.
    SocketTwice {
        /// Where it was set again.
        origin: Origin,
        /// The socket.
        socket: String,
        /// Where it was set before.
        before: Origin,
    },
    /// A port without a host, which OpenDKIM would open to everybody.
    LoopbackOnly {
        /// Where it was set.
        origin: Origin,
        /// What it is taken for.
        socket: String,
    },
    /// A socket that others can reach, by permission.
    Reachable {
        /// Where it was set.
        origin: Origin,
        /// The socket.
        socket: String,
    },
    /// A status socket that others can reach.
    StatusReachable {
        /// Where it was set.
        origin: Origin,
        /// The socket.
        socket: String,
    },
    /// Nothing is signed, although the mode would have it.
    NothingToSignWith,
    /// A domain of mail in a list of hosts.
    MailDomainAsHost {
        /// Where the list was set.
        origin: Origin,
        /// The domain.
        domain: String,
    },
    /// A log that nobody sees.
    NotLogged,
}

impl Warning {
    /// Whether it tells of mail that cannot be handled as the configuration says, so that a check should not succeed
    /// although the service can start.
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Table(TableWarning {
                note: TableNote::UnknownKey { .. },
                ..
            })
        )
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(warning) => warning.fmt(f),
            Self::Twice { origin, option, before } => {
                write!(f, "{origin}: {option} is set already at {before}; this line counts")
            }
            Self::NotCarried { origin, option, why } => write!(f, "{origin}: {option} has no effect: {why}"),
            Self::CommentTouches { origin } => write!(
                f,
                "{origin}: everything from \"#\" on is a comment, although it stands right behind other text"
            ),
            Self::NoEffect { origin, option, because } => write!(f, "{origin}: {option} has no effect: {because}"),
            Self::Field { origin, option, name, note } => write!(f, "{origin}: {option}: {name} {note}"),
            Self::NoSocket => f.write_str(
                "no Socket is set, here or with -p: only sockets that the service manager hands over are listened on",
            ),
            Self::SocketTwice { origin, socket, before } => {
                write!(f, "{origin}: Socket: {socket} is listened on already, by {before}")
            }
            Self::LoopbackOnly { origin, socket } => write!(
                f,
                "{origin}: Socket: a port without a host is open to this host only, as {socket}; OpenDKIM would open it to \
                 everybody, which takes ListenAnywhere yes"
            ),
            Self::Reachable { origin, socket } => write!(
                f,
                "{origin}: Socket: others than this host can reach {socket}, as ListenAnywhere allows; a firewall must keep \
                 them out"
            ),
            Self::StatusReachable { origin, socket } => write!(
                f,
                "{origin}: StatusSocket: others than this host may reach {socket}, and read names of keys and files and how \
                 much mail there is; let only who watches the service reach it"
            ),
            Self::NothingToSignWith => f.write_str(
                "there is nothing to sign with, so mail is only verified: set KeyTable and SigningTable, or Domain, Selector \
                 and KeyFile, or say Mode v",
            ),
            Self::MailDomainAsHost { origin, domain } => write!(
                f,
                "{origin}: InternalHosts: \"{domain}\" is a domain that is signed for, but here it means the client host of \
                 that name; the list is of hosts and networks, not of mail domains"
            ),
            Self::NotLogged => f.write_str("nothing is logged: Background is yes and Syslog is no"),
        }
    }
}

fn place(origin: &Option<Origin>) -> String {
    origin
        .as_ref()
        .map_or_else(String::new, |origin| format!("{origin}: Include: "))
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}
