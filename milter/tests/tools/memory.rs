//! Memory does not grow with the message.

use crate::harness::*;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

const MESSAGE_OCTETS: usize = 24 * 1024 * 1024;

/// What a tool may use at its peak: its code, a megabyte of the message in memory and some buffers.
const LIMIT_KIB: usize = 16 * 1024;

fn write_message(pipe: &mut impl Write) {
    pipe.write_all(b"From: ann@example.com\r\n\r\n").unwrap();
    let block = [&[b'x'; 1022][..], b"\r\n"].concat().repeat(64);
    for _ in 0..MESSAGE_OCTETS / block.len() {
        pipe.write_all(&block).unwrap();
    }
}

fn peak_kib(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

fn spawn(tool: &str, arguments: &str) -> Child {
    Command::new(tool)
        .args(arguments.split_ascii_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// One tool's output is the other's input, both pipes; each is measured when it has seen nearly all.
#[test]
fn large_messages_stream_through() {
    let mut sign = spawn(
        SIGN,
        &format!("-d example.com -s ed -k {}", data("ed25519.pem")),
    );
    let mut verify = spawn(VERIFY, &format!("--records {}", data("records.zone")));
    let mut to_sign = sign.stdin.take().unwrap();
    let writer = std::thread::spawn(move || write_message(&mut to_sign));
    let mut signed = sign.stdout.take().unwrap();
    let mut to_verify = verify.stdin.take().unwrap();

    let copied = std::io::copy(
        &mut (&mut signed).take(MESSAGE_OCTETS as u64 - 4096),
        &mut to_verify,
    )
    .unwrap();
    assert_eq!(copied, MESSAGE_OCTETS as u64 - 4096);
    writer.join().unwrap();
    let peaks = [peak_kib(&sign), peak_kib(&verify)];
    std::io::copy(&mut signed, &mut to_verify).unwrap();
    drop(to_verify);

    assert!(sign.wait().unwrap().success());
    let output = verify.wait_with_output().unwrap();
    assert!(
        output.stdout.starts_with(b"pass "),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(
        peaks.iter().all(|&peak| peak < LIMIT_KIB),
        "{peaks:?} KiB of {LIMIT_KIB}"
    );
}
