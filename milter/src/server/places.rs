//! Whether the directories are there in which a start makes its files, for a check that makes none.
//!
//! What is wrong is told in the words of the start. A directory below `/run` may be made only by the start itself, by
//! `RuntimeDirectory=` of a systemd unit, or by the system, after tmpfiles.d: that it is missing is only odd.

use std::fs;
use std::io;
use std::path::Path;

use super::{ListenError, ListenFault};
use crate::config::{ListenAddress, Listener, Service};
use crate::shown::cause;

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// What a start would fail for.
    pub(super) errors: Vec<String>,
    /// What may be there by then.
    pub(super) warnings: Vec<String>,
}

impl Places {
    /// Looks for the directories of sockets and of the PID file.
    pub(super) fn look(service: &Service) -> Self {
        let mut found = Self::default();
        for listener in &service.listeners {
            found.socket(listener, "");
        }
        if let Some(listener) = &service.status {
            found.socket(listener, "StatusSocket: ");
        }
        if let Some(path) = &service.pid_file
            && let Some(error) = fault_of(directory(path))
        {
            let told = format!("PidFile: {}: {}", path.display(), cause(&error));
            found.add(directory(path), told);
        }
        found
    }

    fn socket(&mut self, listener: &Listener, option: &str) {
        let ListenAddress::Unix(path) = &listener.address else {
            return;
        };
        let directory = directory(path);
        if fault_of(directory).is_some() {
            let error = ListenError {
                address: format!("{} ({})", listener.address, listener.origin),
                fault: ListenFault::NoDirectory(directory.to_owned()),
            };
            self.add(directory, format!("{option}{error}"));
        }
    }

    fn add(&mut self, directory: &Path, told: String) {
        let is_made_at_start = ["/run", "/var/run"]
            .iter()
            .any(|made| directory != Path::new(made) && directory.starts_with(made));
        if is_made_at_start && !directory.exists() {
            self.warnings.push(format!(
                "{told}; a start fails unless RuntimeDirectory= of the systemd unit, or tmpfiles.d, makes {} before",
                directory.display()
            ));
        } else {
            self.errors.push(told);
        }
    }
}

/// What is told at start, too, of a base directory that is not there: relative paths fail, each with its own message.
pub(super) fn base_directory(service: &Service) -> Option<String> {
    let base = &service.base_directory;
    let error = fault_of(base)?;
    Some(format!(
        "BaseDirectory: {}: {}; no file with a relative path will be found",
        base.display(),
        cause(&error)
    ))
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or("/".as_ref())
}

fn fault_of(directory: &Path) -> Option<io::Error> {
    match fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => None,
        Ok(_) => Some(rustix::io::Errno::NOTDIR.into()),
        Err(error) => Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};
    use crate::tables::test_dir::TestDir;

    fn service(set: &[&str]) -> Service {
        let overrides = Overrides {
            set: set.iter().map(ToString::to_string).collect(),
            ..Overrides::default()
        };
        Config::load(None, &overrides).unwrap().0.service
    }

    #[test]
    fn a_missing_directory_is_told_in_the_words_of_the_start() {
        let dir = TestDir::new("places");
        let here = dir.root().display();
        let file = dir.write("file", "");
        let found = Places::look(&service(&[
            &format!("Socket=local:{here}/none/s"),
            &format!("StatusSocket=local:{}/t", file.display()),
            &format!("PidFile={here}/none/pid"),
        ]));
        assert_eq!(
            found.errors,
            [
                format!(
                    "cannot listen on local:{here}/none/s (command line (--set Socket=local:{here}/none/s)): there is no directory {here}/none"
                ),
                format!(
                    "StatusSocket: cannot listen on local:{here}/file/t (command line (--set StatusSocket=local:{here}/file/t)): there is no \
                     directory {here}/file"
                ),
                format!("PidFile: {here}/none/pid: No such file or directory"),
            ]
        );
        assert_eq!(found.warnings, [""; 0]);
        let there = Places::look(&service(&[
            &format!("Socket=local:{here}/s"),
            "StatusSocket=inet:0@localhost",
            &format!("PidFile={here}/pid"),
        ]));
        assert_eq!(there, Places::default());
    }

    #[test]
    fn a_directory_that_the_start_makes_may_be_missing() {
        let found = Places::look(&service(&[
            "Socket=local:/run/no-such-directory/s",
            "PidFile=/run/no-such-directory/pid",
        ]));
        assert_eq!(found.errors, [""; 0]);
        assert_eq!(found.warnings.len(), 2);
        for warning in found.warnings {
            assert!(
                warning.ends_with(
                    "; a start fails unless RuntimeDirectory= of the systemd unit, or tmpfiles.d, makes \
                     /run/no-such-directory before"
                ),
                "{warning}"
            );
        }
    }

    #[test]
    fn a_missing_base_directory_is_told() {
        assert_eq!(
            base_directory(&service(&["BaseDirectory=/no-such-directory"])).unwrap(),
            "BaseDirectory: /no-such-directory: No such file or directory; no file with a relative path will be found"
        );
        assert_eq!(base_directory(&service(&["BaseDirectory=/"])), None);
    }
}
