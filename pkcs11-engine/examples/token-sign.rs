//! Signs with a key in a token, again and again: shows how the engine is used, and serves its tests.
//!
//! `token-sign MODULE URI [--pin FILE] [--in-process] [--count N] [--threads N]`; prints one line for what an operator is
//! told, and how many signatures there were at the end. The octets signed are the number of the signature, in decimal.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pkcs11_engine::pin::PinSource;
use pkcs11_engine::uri::Uri;
use pkcs11_engine::{Isolation, Reference, Settings, Tokens, run_if_asked};

fn main() -> ExitCode {
    if let Some(code) = run_if_asked() {
        return code;
    }
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next();
    let (Some(module), Some(uri)) = (next(), next()) else {
        eprintln!(
            "usage: token-sign MODULE URI [--pin FILE] [--in-process] [--count N] [--threads N]"
        );
        return ExitCode::from(64);
    };
    let mut settings = Settings::default();
    let (mut pin, mut count, mut threads) = (None, 1, 1);
    while let Some(argument) = next() {
        match &*argument {
            "--pin" => pin = next().map(|path| PinSource::File(path.into())),
            "--in-process" => settings.isolation = Isolation::None,
            "--count" => count = number(next()),
            "--threads" => threads = number(next()),
            _ => return ExitCode::from(64),
        }
    }
    let uri = match Uri::parse(uri.as_bytes()) {
        Ok(uri) => uri,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(64);
        }
    };
    let tokens = Tokens::new(settings, |notice| {
        println!("{:?}: {}", notice.level, notice.text);
    })
    .expect("threads can be started");
    let reference = match Reference::new(uri, Some(&PathBuf::from(module)), pin.as_ref(), false) {
        Ok(reference) => reference,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(64);
        }
    };
    let key = tokens
        .key(&reference)
        .expect("the module's threads can be started");
    let code = match key.wait(Duration::from_secs(10)) {
        Err(fault) => {
            println!("{fault}");
            ExitCode::from(69)
        }
        Ok(_) => {
            let key = key.signing_key().expect("it was seen");
            let (made, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let started = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        while made.load(Ordering::Relaxed) + failed.load(Ordering::Relaxed) < count
                        {
                            let signed = key.sign(b"octets");
                            let counter = if signed.is_ok() { &made } else { &failed };
                            counter.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            println!(
                "{} signatures, {} failures, {:.0} per second",
                made.load(Ordering::Relaxed),
                failed.load(Ordering::Relaxed),
                made.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
            );
            ExitCode::SUCCESS
        }
    };
    println!("clean: {}", tokens.shut_down(Duration::from_secs(5)));
    code
}

fn number(text: Option<String>) -> usize {
    text.and_then(|text| text.parse().ok()).unwrap_or(1)
}
