//! Runs a tool and tells what came of it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::NamedTempFile;

pub(crate) const SIGN: &str = env!("CARGO_BIN_EXE_dkim-sign");
pub(crate) const VERIFY: &str = env!("CARGO_BIN_EXE_dkim-verify");

/// A message whose author has a key in `data/records.zone`.
pub(crate) const MESSAGE: &[u8] =
    b"From: Ann <ann@example.com>\r\nTo: bo@example.net\r\nSubject: lunch\r\n\r\nAt noon?\r\n";

/// What a tool left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Runs `tool` with `arguments`, divided at blanks, and `stdin`.
pub(crate) fn run(tool: &str, arguments: &str, stdin: &[u8]) -> Ended {
    let arguments: Vec<&str> = arguments.split_ascii_whitespace().collect();
    run_with(tool, &arguments, stdin)
}

pub(crate) fn run_with(tool: &str, arguments: &[&str], stdin: &[u8]) -> Ended {
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    // A tool that fails early does not read, which is its right.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Ended {
        code: output.status.code().unwrap(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The path of a file in `data`.
pub(crate) fn data(name: &str) -> String {
    format!("{}/tests/tools/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A file with `octets` in it.
pub(crate) fn file(octets: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(octets).unwrap();
    file
}

pub(crate) fn path(file: &NamedTempFile) -> &str {
    text(file.path())
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `message`, signed with `options` and the 2048-bit key of selector `rsa`.
pub(crate) fn signed(options: &str, message: &[u8]) -> Vec<u8> {
    let key = data("rsa2048.pem");
    let ended = run(
        SIGN,
        &format!("-d example.com -s rsa -k {key} {options}"),
        message,
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout
}
