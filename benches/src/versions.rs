//! Which versions of what were measured: from the lock file this was built with, and from the compiler.

use serde::{Deserialize, Serialize};

/// Versions of what does the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Of `dkim-core`.
    pub dkim_core: String,
    /// The engine's libraries, with versions: `aws-lc-rs 1.19.0`.
    pub engine: String,
    /// The library of the body hash, with version.
    pub digest: String,
    /// What `rustc --version` said.
    pub rustc: String,
}

impl Versions {
    /// Those of this build, for the engine of that name.
    pub fn of(engine: &str) -> Self {
        let libraries: &[&str] = match engine {
            "aws-lc" | "aws-lc-ifma" => &["aws-lc-rs", "aws-lc-sys"],
            "rustcrypto" => &["rsa", "ed25519-dalek"],
            _ => &[],
        };
        Self {
            dkim_core: version("dkim-core"),
            engine: named(libraries),
            digest: named(&["sha2"]),
            rustc: env!("DKIM_BENCHES_RUSTC").to_owned(),
        }
    }
}

const LOCK: &str = include_str!("../../Cargo.lock");

fn named(libraries: &[&str]) -> String {
    let named = libraries
        .iter()
        .map(|name| format!("{name} {}", version(name)));
    named.collect::<Vec<_>>().join(", ")
}

fn version(name: &str) -> String {
    version_in(LOCK, name).unwrap_or("unknown").to_owned()
}

/// The version of the package `name` in a lock file; of several, the last one, which is the newest and ours.
fn version_in<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str, key: &str| line.strip_prefix(key)?.strip_suffix('"');
    let mut found = None;
    let mut is_wanted = false;
    for line in lock.lines() {
        if let Some(package) = value(line, "name = \"") {
            is_wanted = package == name;
        } else if let Some(version) = value(line, "version = \"")
            && is_wanted
        {
            found = Some(version);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"rsa\"\nversion = \"0.10.0\"\n\n[[package]]\n\
                    name = \"rsa-extra\"\nversion = \"7.0.0\"\n\n[[package]]\nname = \"sha2\"\nversion = \"0.10.9\"\n\n\
                    [[package]]\nname = \"sha2\"\nversion = \"0.11.1\"\ndependencies = [\n \"cfg-if\",\n]\n";
        for (name, version) in [
            ("rsa", Some("0.10.0")),
            ("sha2", Some("0.11.1")),
            ("rs", None),
        ] {
            assert_eq!(version_in(lock, name), version, "{name}");
        }
    }

    #[test]
    fn every_engine_built_in_has_libraries_with_versions() {
        for engine in dkim_core::engine::engines() {
            let versions = Versions::of(engine.name());
            assert!(
                versions.engine.contains(' ') && !versions.engine.contains("unknown"),
                "{}",
                versions.engine
            );
            assert_ne!(versions.dkim_core, "unknown");
            assert!(versions.rustc.starts_with("rustc "), "{}", versions.rustc);
        }
    }
}
