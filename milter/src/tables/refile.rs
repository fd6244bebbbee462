//! `refile:PATH`: as `file:`, but keys are patterns, in which `*` stands for any octets.
//!
//! The name is OpenDKIM's and older than the wildcards: regular expressions they are not, and every octet but `*`
//! stands for itself.

use super::Findings;
use super::file::read_lines;
use super::source::{DataSet, Source, Visitor};

/// The source `refile:`.
pub(super) struct Refile;

impl Source for Refile {
    fn name(&self) -> &'static str {
        "refile"
    }

    fn has_patterns(&self) -> bool {
        true
    }

    fn read(
        &self,
        set: &DataSet<'_>,
        rest: &str,
        findings: &mut Findings,
        visit: &mut Visitor<'_>,
    ) {
        read_lines(self.name(), set, rest, findings, visit);
    }
}
