//! Notes which compiler builds the measuring programs: figures mean little without it.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_default();
    let version = match version.trim() {
        "" => "a rustc that did not say its version",
        version => version,
    };
    println!("cargo::rustc-env=DKIM_BENCHES_RUSTC={version}");
}
