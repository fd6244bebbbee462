//! `file:PATH` and `/PATH`: one entry per line, the key up to the first white space, then its value.

use super::source::{DataSet, Entry, Source, Visitor};
use super::text_lines::{TextFile, split_word};
use super::{Findings, TableFault};

/// The source `file:`.
pub(super) struct File;

impl Source for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn has_patterns(&self) -> bool {
        false
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

/// Reads the entries of the file at `path`; `name` is the source's.
pub(super) fn read_lines(
    name: &'static str,
    set: &DataSet<'_>,
    path: &str,
    findings: &mut Findings,
    visit: &mut Visitor<'_>,
) {
    if path.is_empty() {
        findings.error(set.option, set.origin.clone(), TableFault::NoPath { name });
        return;
    }
    let resolved = set.resolve(path);
    let file = match TextFile::read(&resolved, path.as_ref(), MAX_FILE) {
        Ok(file) => file,
        Err(fault) => {
            findings.error(
                set.option,
                set.origin.clone(),
                TableFault::read(resolved, fault),
            );
            return;
        }
    };
    for (origin, line) in file.lines() {
        match line {
            Ok(line) => {
                let (key, value) = split_word(line.text);
                visit(Entry { key, value, origin }, findings);
            }
            Err(fault) => findings.error(set.option, origin, fault.into()),
        }
    }
}

/// The largest file taken, in octets: some millions of entries.
const MAX_FILE: u64 = 512 * 1024 * 1024;
