//! The grammar of the configuration file: `Name value` on each line, comments from `#` on, `Include`.
//!
//! What comes out is a list of statements with their places; whether a name is known and a value right is told later.

use std::path::{Path, PathBuf};

use super::options::INCLUDE;
use super::settings::Report;
use super::{ConfigError, Warning};
use crate::tables::Origin;
use crate::tables::text_lines::{LineFault, ReadFault, TextFile, shown, split_word};

/// A name and the value it is given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// The name, as it is written.
    pub(super) name: String,
    /// The value; never empty.
    pub(super) value: String,
    /// Where they stand.
    pub(super) origin: Origin,
}

/// Reads the file at `path`, and those it includes, in order; relative paths start from `directory`.
pub(super) fn read(path: &Path, directory: &Path, report: &mut Report) -> Vec<Statement> {
    let mut reader = Reader {
        directory,
        report,
        statements: Vec::new(),
        open: Vec::new(),
        files: 0,
    };
    reader.read(path, None);
    reader.statements
}

/// One statement from `name` and the rest of its line.
pub(super) fn statement(
    name: &str,
    value: Option<&str>,
    origin: Origin,
    report: &mut Report,
) -> Option<Statement> {
    let name = name.to_owned();
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Some(Statement {
            name,
            value: value.to_owned(),
            origin,
        }),
        None => {
            report.error(match super::options::find(&name) {
                // A name that runs into its value has none either, but that is not what is wrong with it.
                None if name.contains(['=', ':']) => glued(&name, origin),
                _ => ConfigError::NoValue {
                    origin,
                    name: shown(&name),
                },
            });
            None
        }
    }
}

/// How deep files may include others, as in OpenDKIM.
const MAX_DEPTH: usize = 5;

/// Files that include each other in turn grow fast even so.
const MAX_FILES: usize = 100;

/// A configuration of more octets is none.
const MAX_FILE: u64 = 4 * 1024 * 1024;

struct Reader<'a> {
    directory: &'a Path,
    report: &'a mut Report,
    statements: Vec<Statement>,
    /// The files that are being read, each included by the one before it.
    open: Vec<PathBuf>,
    /// How many files were read.
    files: usize,
}

impl Reader<'_> {
    fn read(&mut self, path: &Path, includer: Option<Origin>) {
        let resolved = self.directory.join(path);
        let file = match TextFile::read(&resolved, path, MAX_FILE) {
            Ok(file) => file,
            Err(fault) => {
                let cause = match fault {
                    ReadFault::System(cause) => cause,
                    ReadFault::TooLarge(limit) => format!("it has more than {limit} octets"),
                };
                let path = path.to_owned();
                self.report.unreadable(ConfigError::Read {
                    origin: includer,
                    path,
                    cause,
                });
                return;
            }
        };
        self.open.push(resolved.canonicalize().unwrap_or(resolved));
        for (origin, line) in file.lines() {
            match line {
                Ok(line) => {
                    if line.comment_touches {
                        self.report.warning(Warning::CommentTouches {
                            origin: origin.clone(),
                        });
                    }
                    let (name, value) = split_word(line.text);
                    let Some(statement) = statement(name, value, origin, self.report) else {
                        continue;
                    };
                    if statement.name.eq_ignore_ascii_case(INCLUDE.name) {
                        self.include(statement);
                    } else {
                        self.statements.push(statement);
                    }
                }
                // More of what is no text would tell nothing new.
                Err(LineFault::NotText(octet)) => {
                    self.report
                        .unreadable(ConfigError::NotText { origin, octet });
                    break;
                }
                Err(LineFault::TooLong) => self.report.error(ConfigError::LineTooLong { origin }),
            }
        }
        self.open.pop();
    }

    fn include(&mut self, statement: Statement) {
        let origin = statement.origin;
        let path = PathBuf::from(statement.value);
        let resolved = self.directory.join(&path);
        let resolved = resolved.canonicalize().unwrap_or(resolved);
        self.files += 1;
        if self.open.contains(&resolved) {
            self.report.error(ConfigError::IncludeLoop { origin, path });
        } else if self.open.len() > MAX_DEPTH {
            self.report.error(ConfigError::IncludeTooDeep {
                origin,
                max: MAX_DEPTH,
            });
        } else if self.files > MAX_FILES {
            self.report.error(ConfigError::IncludeTooMany {
                origin,
                max: MAX_FILES,
            });
        } else {
            self.read(&path, Some(origin));
        }
    }
}

/// The fault of `Name=value`, written as one word.
fn glued(written: &str, origin: Origin) -> ConfigError {
    let (name, value) = written.split_once(['=', ':']).unwrap_or((written, ""));
    match super::options::find(name) {
        Some(spec) => ConfigError::NoBlank {
            origin,
            written: shown(written),
            name: spec.name,
            value: shown(value),
        },
        None => ConfigError::Unknown {
            origin,
            name: shown(written),
            nearest: super::options::suggest(name),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::test_dir::TestDir;

    fn read_all(dir: &TestDir) -> (Vec<String>, Vec<String>, Vec<String>) {
        let mut report = Report::default();
        let statements = read("main".as_ref(), dir.root(), &mut report);
        let statements = statements
            .iter()
            .map(|s| format!("{} {}={}", s.origin, s.name, s.value))
            .collect();
        let (errors, warnings) = report.finish();
        (
            statements,
            errors.iter().map(ToString::to_string).collect(),
            warnings.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn a_line_is_a_name_and_its_value() {
        let dir = TestDir::new("grammar");
        dir.write("main", "# c\n\nMode sv\r\n  Selector\t 2026 # which\n\tDomain a.example, b.example \nKeyFile /etc/a#b\n");
        let (statements, errors, warnings) = read_all(&dir);
        assert_eq!(
            statements,
            [
                "main:3 Mode=sv",
                "main:4 Selector=2026",
                "main:5 Domain=a.example, b.example",
                "main:6 KeyFile=/etc/a"
            ]
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            warnings,
            [
                "main:6: everything from \"#\" on is a comment, although it stands right behind other text"
            ]
        );
    }

    #[test]
    fn a_name_needs_a_value_behind_a_blank() {
        let dir = TestDir::new("grammar");
        dir.write("main", "Mode\nMode=sv\nMode:sv\nMoed=sv\nMode #sv\n");
        let (statements, errors, _) = read_all(&dir);
        assert_eq!(statements, [""; 0]);
        assert_eq!(
            errors,
            [
                "main:1: Mode has no value",
                "main:2: \"Mode=sv\": a blank belongs between the name of an option and its value, as in \"Mode sv\"",
                "main:3: \"Mode:sv\": a blank belongs between the name of an option and its value, as in \"Mode sv\"",
                "main:4: there is no option \"Moed=sv\"; did you mean Mode?",
                "main:5: Mode has no value",
            ]
        );
    }

    #[test]
    fn includes_are_read_in_place_five_deep() {
        let dir = TestDir::new("grammar");
        dir.write("main", "A 1\ninclude 1\nB 2\n");
        for depth in 1..=5 {
            dir.write(
                &depth.to_string(),
                format!("X {depth}\nInclude {}\n", depth + 1),
            );
        }
        dir.write("6", "X 6\n");
        let (statements, errors, _) = read_all(&dir);
        assert_eq!(
            statements,
            [
                "main:1 A=1",
                "1:1 X=1",
                "2:1 X=2",
                "3:1 X=3",
                "4:1 X=4",
                "5:1 X=5",
                "main:3 B=2"
            ]
        );
        assert_eq!(
            errors,
            ["5:2: Include: files may include others no more than 5 deep"]
        );
    }

    #[test]
    fn includes_that_cannot_be_are_told_with_their_line() {
        let dir = TestDir::new("grammar");
        dir.write("main", "Include absent\nInclude ./other\n");
        dir.write("other", "Include main\n");
        let (_, errors, _) = read_all(&dir);
        assert_eq!(
            errors,
            [
                "main:1: Include: cannot read absent: No such file or directory",
                "other:1: Include: main includes itself"
            ]
            .map(|text| text.replace("other", "./other"))
        );
        dir.write("main", "Include leaf\n".repeat(101));
        dir.write("leaf", "A 1\n");
        let (statements, errors, _) = read_all(&dir);
        assert_eq!(statements.len(), 100);
        assert_eq!(
            errors,
            ["main:101: Include: more than 100 files are included"]
        );
    }

    #[test]
    fn binary_junk_is_one_error_with_its_line() {
        let dir = TestDir::new("grammar");
        let junk: Vec<u8> = (0..=255).cycle().take(4096).collect();
        dir.write("main", junk);
        let (_, errors, _) = read_all(&dir);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("main:1: octet 0x00 does not belong into a text file"),
            "{errors:?}"
        );
        std::fs::remove_file(dir.path("main")).unwrap();
        let (_, errors, _) = read_all(&dir);
        assert_eq!(errors, ["cannot read main: No such file or directory"]);
    }
}
