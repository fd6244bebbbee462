//! The configuration: the language of the file, the options, their checks, and the typed result.
//!
//! The language is OpenDKIM's, so that a file in use there works here: `Name value` lines, the same names, the same
//! data sets. `options` is the one table of what there is; the checker, the suggestions for misspelt names, the manual
//! page and the annotated sample are all made from it. A file goes through `grammar` (lines) and `settings` (which
//! value counts) to `build` (types and cross-checks), and every fault on the way is collected, so that an operator sees
//! all of them at once, each with its place.
//!
//! Data sets are opened by `tables`; key files, sockets and name servers are touched by those who use them.

mod build;
mod document;
mod error;
mod fields;
mod grammar;
mod options;
mod settings;
mod socket;
#[cfg(test)]
mod tests;
mod types;
mod values;

pub use document::{manual_page, sample};
pub use error::{ConfigError, Refused, Warning};
pub use fields::{FieldSelection, SignedFields};
pub use settings::{Overrides, status_socket};
pub use socket::{Families, Host, InetAddress, ListenAddress, Listener};
pub use types::{
    Action, Actions, AuthservId, Config, Dns, Facility, Fallback, KeyLocation, Logging, Mode,
    RecordPolicy, Selection, Service, SignerSource, Signing, SingleKey, TokenOptions, UserId,
    Verifying,
};
pub use values::ValueFault;

use std::path::PathBuf;

/// Where the configuration is looked for if nobody names it, the second being OpenDKIM's.
pub const CONFIGURATION_FILES: [&str; 2] = ["/etc/dkim-milter.conf", "/etc/opendkim.conf"];

/// The first of [`CONFIGURATION_FILES`] that there is.
pub fn default_configuration() -> Option<PathBuf> {
    CONFIGURATION_FILES
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
}
