//! Data sets: the tables and lists that the configuration names, read once and looked up per message.
//!
//! A data set is written `type:rest`, `/path` or `a, b, c`, as OpenDKIM writes it. Where its entries come from is a
//! `source`, one file each (`file`, `refile`, `list`); what they mean is told by the tables beside them:
//! [`SigningTable`], [`KeyTable`], [`HostList`], [`TextSet`], [`MacroList`]. Everything is read, checked and indexed
//! when it is opened, so a look-up neither waits nor fails, and its cost does not grow with the table except for
//! wildcard patterns that have no domain to be found by. Nothing here watches files: to reload is to open again.
//!
//! What a table's answer leads to is policy's matter; that a key file can be read is `keys`' matter.

mod domain;
mod error;
mod file;
mod hosts;
mod key_table;
mod list;
mod macro_list;
mod nearest;
mod origin;
mod pattern_index;
mod prefix_set;
mod refile;
mod signing_table;
mod source;
#[cfg(test)]
pub(crate) mod test_dir;
pub(crate) mod text_lines;
mod text_set;
mod wildcard;

pub(crate) use domain::is_selector;
pub use domain::{is_host_name, to_host_name};
pub use error::{Findings, HostFault, TableError, TableFault, TableNote, TableWarning};
pub use hosts::HostList;
pub use key_table::{
    InlineKey, KeyEntry, KeySource, KeyTable, NotAHostName, SigningKeyChoice, SigningKeySource,
};
pub use macro_list::{MacroList, MacroRule};
pub(crate) use nearest::nearest;
pub use origin::Origin;
pub use signing_table::{SignerChoice, SigningTable};
pub use source::DataSet;
pub(crate) use source::{read_words, resolve, seen_from};
pub use text_set::{TextKind, TextSet};
