//! Whole configurations, from the file to the result.

mod messages;
mod results;
mod table;

use std::path::Path;

use super::build::load_in;
use super::*;
use crate::tables::test_dir::TestDir;

/// A socket and a log, so that only what a test is about is warned of.
const QUIET: &str = "Socket /run/s\nSyslog yes\n";

struct Outcome {
    config: Option<Config>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

fn load_with(dir: &TestDir, content: &str, overrides: &Overrides) -> Outcome {
    dir.write("c", content);
    let (config, errors, warnings) = match load_in(dir.root(), Some(Path::new("c")), overrides) {
        Ok((config, warnings)) => (Some(config), vec![], warnings),
        Err(refused) => (None, refused.errors, refused.warnings),
    };
    Outcome {
        config,
        errors: errors.iter().map(ToString::to_string).collect(),
        warnings: warnings.iter().map(ToString::to_string).collect(),
    }
}

fn load(dir: &TestDir, content: &str) -> Outcome {
    load_with(dir, &format!("{content}\n{QUIET}"), &Overrides::default())
}

fn config(content: &str) -> Config {
    let dir = TestDir::new("config");
    let outcome = load(&dir, content);
    outcome
        .config
        .unwrap_or_else(|| panic!("{:?}", outcome.errors))
}
