//! Which value of an option counts: the command line before the file, the last line before earlier ones, the default
//! last.

use std::collections::BTreeMap;
use std::path::Path;

use super::grammar::{self, Statement};
use super::options::{self, INCLUDE, Opt, Preset, SOCKET, STATUS_SOCKET};
use super::socket::ListenAddress;
use super::{ConfigError, Warning};
use crate::tables::Origin;
use crate::tables::text_lines::shown;

/// What the command line sets, over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The arguments of `--set`: `Name=value`.
    pub set: Vec<String>,
    /// The arguments of `-p`: sockets, as the values of `Socket`.
    pub sockets: Vec<String>,
}

/// Where the status is told by the configuration file at `path` with `overrides` over it; nothing else in it need be right.
///
/// # Errors
/// The file cannot be read, or the option not be understood.
pub fn status_socket(
    path: Option<&Path>,
    overrides: &Overrides,
) -> Result<Option<ListenAddress>, Vec<ConfigError>> {
    let directory = std::env::current_dir().unwrap_or_default();
    let mut others = Report::default();
    let mut settings = Settings::collect(path, overrides, &directory, &mut others);
    let mut own = Report::default();
    let setting = settings.take(&STATUS_SOCKET, &mut own);
    let (mut errors, _) = own.finish();
    if setting.is_none() && errors.is_empty() {
        // It may be in a file that could not be read.
        errors.extend(others.finish_unless_whole());
    }
    if errors.is_empty() {
        Ok(setting.map(|setting| setting.value.of_this_host()))
    } else {
        Err(errors)
    }
}

/// A value that was set, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting<T> {
    /// The value.
    pub(super) value: T,
    /// Where it was set.
    pub(super) origin: Origin,
}

/// Every option that was set, by name; repeatable ones with all their values.
#[derive(Debug, Default)]
pub(super) struct Settings(BTreeMap<&'static str, Vec<Setting<String>>>);

/// Collects errors and warnings.
#[derive(Debug, Default)]
pub(super) struct Report {
    errors: Vec<ConfigError>,
    warnings: Vec<Warning>,
    /// Whether a file could not be read to its end, so that nobody knows what else is set.
    is_partial: bool,
    /// Errors beyond [`MAX_ERRORS`].
    more: usize,
}

/// How many errors are told; more would only hide the first ones.
const MAX_ERRORS: usize = 200;

impl Settings {
    /// Reads the file at `path`, if there is one, and the command line.
    pub(super) fn collect(
        path: Option<&Path>,
        overrides: &Overrides,
        directory: &Path,
        report: &mut Report,
    ) -> Self {
        let mut file = Self::default();
        for statement in path
            .map(|path| grammar::read(path, directory, report))
            .unwrap_or_default()
        {
            file.add(statement, report);
        }
        let mut command_line = Self::default();
        for assignment in &overrides.set {
            let origin = Origin::CommandLine(format!("--set {}", shown(assignment)).into());
            match assignment.split_once('=') {
                Some((name, value)) => {
                    if let Some(statement) =
                        grammar::statement(name.trim(), Some(value.trim()), origin, report)
                    {
                        command_line.add(statement, report);
                    }
                }
                None => report.error(ConfigError::NoAssignment { origin }),
            }
        }
        for socket in &overrides.sockets {
            let origin = Origin::CommandLine(format!("-p {}", shown(socket)).into());
            let name = SOCKET.spec.name.to_owned();
            let value = socket.clone();
            command_line.add(
                Statement {
                    name,
                    value,
                    origin,
                },
                report,
            );
        }
        file.0.extend(command_line.0);
        file
    }

    /// Where each option was set; of a repeatable one, where last.
    pub(super) fn origins(&self) -> BTreeMap<&'static str, Origin> {
        self.0
            .iter()
            .filter_map(|(name, settings)| Some((*name, settings.last()?.origin.clone())))
            .collect()
    }

    /// Whether `option` was set.
    pub(super) fn has<T>(&self, option: &Opt<T>) -> bool {
        self.0.contains_key(option.spec.name)
    }

    /// Where the option called `name` was set, if it was and has not been taken.
    pub(super) fn origin(&self, name: &str) -> Option<&Origin> {
        Some(&self.0.get(name)?.last()?.origin)
    }

    /// The value of `option`, or its default; `None` if it has neither, or one that is wrong, which `report` then has.
    pub(super) fn take<T>(&mut self, option: &Opt<T>, report: &mut Report) -> Option<Setting<T>> {
        match (self.0.remove(option.spec.name), &option.spec.default) {
            (Some(settings), _) => parse(option, settings.into_iter().next_back()?, report),
            (None, Preset::Value(value)) => {
                let value = (*value).to_owned();
                let origin = Origin::Default;
                parse(option, Setting { value, origin }, report)
            }
            (None, Preset::Unset(_)) => None,
        }
    }

    /// All values of `option`, which has no default.
    pub(super) fn take_all<T>(&mut self, option: &Opt<T>, report: &mut Report) -> Vec<Setting<T>> {
        let settings = self.0.remove(option.spec.name).unwrap_or_default();
        settings
            .into_iter()
            .filter_map(|setting| parse(option, setting, report))
            .collect()
    }

    /// Whether every option that was set has been taken.
    pub(super) fn are_taken(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, statement: Statement, report: &mut Report) {
        let Statement {
            name,
            value,
            origin,
        } = statement;
        if let Some(spec) = options::find(&name) {
            // The grammar has carried out those of files.
            if spec.name == INCLUDE.name {
                let option = spec.name;
                report.error(ConfigError::NotOnCommandLine { origin, option });
                return;
            }
            let settings = self.0.entry(spec.name).or_default();
            if let Some(before) = settings.last().filter(|_| spec.name != SOCKET.spec.name) {
                report.warning(Warning::Twice {
                    origin: origin.clone(),
                    option: spec.name,
                    before: before.origin.clone(),
                });
            }
            settings.push(Setting { value, origin });
        } else if let Some(option) = options::find_not_carried(&name) {
            let (name, why) = (option.name, option.why);
            if option.is_error(&value) {
                report.error(ConfigError::NotCarried { origin, name, why });
            } else {
                report.warning(Warning::NotCarried {
                    origin,
                    option: name,
                    why,
                });
            }
        } else {
            let nearest = if report.is_full() {
                None
            } else {
                options::suggest(&name)
            };
            let name = shown(&name);
            report.error(ConfigError::Unknown {
                origin,
                name,
                nearest,
            });
        }
    }
}

impl Report {
    pub(super) fn error(&mut self, error: ConfigError) {
        if self.is_full() {
            self.more += 1;
        } else {
            self.errors.push(error);
        }
    }

    /// Whether a further error would only be counted.
    fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// An error that keeps a file, or the rest of it, from being read.
    pub(super) fn unreadable(&mut self, error: ConfigError) {
        self.is_partial = true;
        self.error(error);
    }

    pub(super) fn warning(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }

    /// A warning that something is not set.
    pub(super) fn missing(&mut self, warning: Warning) {
        if !self.is_partial {
            self.warning(warning);
        }
    }

    /// All errors, if a file could not be read to its end.
    pub(super) fn finish_unless_whole(self) -> Vec<ConfigError> {
        if self.is_partial {
            self.finish().0
        } else {
            Vec::new()
        }
    }

    /// All errors and warnings.
    pub(super) fn finish(mut self) -> (Vec<ConfigError>, Vec<Warning>) {
        if self.more > 0 {
            self.errors.push(ConfigError::More { count: self.more });
        }
        (self.errors, self.warnings)
    }
}

fn parse<T>(option: &Opt<T>, setting: Setting<String>, report: &mut Report) -> Option<Setting<T>> {
    let Setting { value, origin } = setting;
    match (option.parse)(&value) {
        Ok(value) => Some(Setting { value, origin }),
        Err(fault) => {
            let option = option.spec.name;
            report.error(ConfigError::Value {
                origin,
                option,
                fault,
            });
            None
        }
    }
}
