//! `t-signperf` and `t-verifyperf`: messages per second, as libopendkim's programs of those names measure them, without
//! their faults.
//!
//! Theirs count whole seconds of the wall clock, do not look at verdicts, forget the size that was asked for, and parse
//! a PEM for every message. Here clocks are monotonic and CPU time is taken too, every signature and every verdict is
//! checked, and keys are parsed once unless the same as theirs is asked for.

mod error;
mod keys;
pub mod latency;
mod mbox;
mod messages;
mod options;
pub mod outcome;
mod progress;
mod report;
mod run;
mod stages;
mod token;
mod work;

use crate::exit::{EX_FAILED, of_clap, print};
use crate::machine::{Machine, peak_rss};
use crate::versions::Versions;
use dkim_core::engine::{Engine, default_engine, engines};
use error::PerfError;
use keys::Key;
use messages::Messages;
use options::{DigestBy, EngineChoice, Options};
use outcome::{Format, Outcome, TokenUsed};
use progress::Progress;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;
use token::InToken;
use work::{Signing, Verifying, Work};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Signing.
    Sign,
    /// Verifying.
    Verify,
}

impl Task {
    fn program(self) -> &'static str {
        match self {
            Self::Sign => "t-signperf",
            Self::Verify => "t-verifyperf",
        }
    }
}

/// The program for `task`, with the command line of this process. Or the process that has a token's module, if this one
/// was started to be that.
pub fn main(task: Task) -> ExitCode {
    if let Some(code) = pkcs11_engine::run_if_asked() {
        return code;
    }
    let options = match Options::from_command_line(task, std::env::args_os()) {
        Ok(options) => options,
        Err(error) => return of_clap(&error),
    };
    match measure_and_print(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}: {error}", task.program());
            ExitCode::from(error.exit_code())
        }
    }
}

fn measure_and_print(options: &Options) -> Result<ExitCode, PerfError> {
    let outcome = measure(options)?;
    let text = match options.json {
        true => json(&outcome)?,
        false => report::text(&outcome),
    };
    print(&text).map_err(PerfError::Output)?;
    if outcome.failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let program = options.task.program();
    eprint!("{program}: {}", report::failure_text(&outcome));
    Ok(ExitCode::from(EX_FAILED))
}

fn json(outcome: &Outcome) -> Result<String, PerfError> {
    let json = serde_json::to_string_pretty(outcome);
    json.map(|json| json + "\n")
        .map_err(|error| PerfError::Output(error.into()))
}

/// Makes key and messages ready, measures, and gathers what there is to say.
fn measure(options: &Options) -> Result<Outcome, PerfError> {
    let preparing = Progress::new("preparing key and messages", Duration::ZERO);
    let in_token = match &options.engine {
        EngineChoice::BuiltIn(_) => None,
        EngineChoice::Token(choice) => {
            let does_more = options.task == Task::Verify || options.digest == DigestBy::Token;
            Some(InToken::open(choice, does_more)?)
        }
    };
    let token_engine = in_token.as_ref().and_then(InToken::engine);
    let engine: &dyn Engine = match (&options.engine, &token_engine) {
        (EngineChoice::BuiltIn(engine), _) => *engine,
        (EngineChoice::Token(_), Some(engine)) => engine,
        // It signs, which is for the key to do.
        (EngineChoice::Token(_), None) => default_engine(),
    };
    let key = match &in_token {
        Some(token) => token.key(options.key_type)?,
        None => {
            // Whoever verifies may be unable to sign, with RSA keys of 1024 bits for one.
            let signer = (options.task == Task::Sign).then_some(engine);
            Key::get(&options.key, options.key_type, signer)?
        }
    };
    let mut messages = Messages::of(&options.mix)?;
    let mut signing = Signing::new(
        engine,
        &key,
        options.canonicalization,
        options.task == Task::Sign && options.per_message_key,
    );
    let digest = || match options.digest {
        DigestBy::Token => in_token.as_ref().and_then(InToken::digest),
        DigestBy::Software => None,
    };
    if options.task == Task::Sign {
        signing.digest = digest();
    }
    let mut canonicalization = options.canonicalization.to_string();
    let work = match options.task {
        Task::Sign => Work::Sign(signing),
        Task::Verify => {
            if messages.are_read() && !options.sign_first {
                canonicalization = "as signed".to_owned();
            } else {
                messages = messages.signed(&signing)?;
            }
            let mut verifying = Verifying::new(engine, &key, options.per_message_key);
            verifying.digest = digest();
            Work::Verify(verifying)
        }
    };
    let checkers: Vec<Verifying<'_>> = engines()
        .iter()
        .map(|engine| Verifying::new(*engine, &key, false))
        .collect();
    drop(preparing);

    let mut window = run::run(
        &work,
        &messages,
        options.threads,
        options.warmup,
        options.window,
        &checkers,
    );
    // Before the stages, which keep copies of messages.
    let peak_memory = peak_rss(None);
    let mut stages = None;
    if options.stages && window.failures.count == 0 {
        let _progress = Progress::new("measuring stages", Duration::ZERO);
        match stages::measure(&work, &messages) {
            Ok(measured) => stages = Some(measured),
            Err(failures) => window.failures = failures,
        }
    }

    let wall = window.wall.as_secs_f64();
    let process_cpu = window.process_cpu.as_secs_f64();
    let module_cpu = window.children_cpu.map(|cpu| cpu.as_secs_f64());
    // A token's signatures are made by threads, or a process, of their own.
    let cpu = match &in_token {
        Some(_) => process_cpu + module_cpu.unwrap_or(0.0),
        None => window.cpu.as_secs_f64(),
    };
    let token = in_token
        .as_ref()
        .map(|token| token.used(options.task == Task::Sign));
    let mut versions = Versions::of(engine.name());
    if let Some(token) = &token {
        versions.engine.clone_from(&token.library);
        if options.digest == DigestBy::Token {
            versions.digest.clone_from(&token.library);
        }
    }
    let worked_on = (window.messages + window.failures.count) as f64;
    let mut outcome = Outcome {
        format: Format::V1,
        task: options.task,
        label: options.label.clone(),
        machine: Machine::read(),
        versions,
        engine: token
            .as_ref()
            .map_or_else(|| engine.name().to_owned(), TokenUsed::engine),
        token,
        digest: options.digest.as_str().to_owned(),
        canonicalization,
        algorithm: key.algorithm().to_owned(),
        key_bits: key.bits(),
        per_message_key: options.per_message_key,
        workload: options.mix.to_string(),
        distinct_messages: window.distinct,
        threads: options.threads,
        seconds: options.window.as_secs_f64(),
        warmup_seconds: options.warmup.as_secs_f64(),
        wall_seconds: wall,
        cpu_seconds: cpu,
        process_cpu_seconds: process_cpu,
        module_cpu_seconds: module_cpu,
        latency: window.latencies.percentiles(),
        messages: window.messages,
        octets: window.octets,
        messages_per_second: window.rate,
        messages_per_cpu_second: window.messages as f64 / cpu,
        cpu_us_per_message: cpu * 1e6 / worked_on,
        megabytes_per_second: window.octets as f64 / 1e6 / wall,
        peak_memory,
        stages,
        failed: 0,
        failures: Vec::new(),
    };
    outcome.set_failures(window.failures, |index| messages.name(index));
    // What is kept of keys on the token goes first.
    drop((work, checkers));
    drop(token_engine);
    if let Some(token) = in_token {
        token.close()?;
    }
    Ok(outcome)
}
