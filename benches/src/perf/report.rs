//! What a run says, as text: libopendkim's two lines, and what they leave out.

use super::Task;
use super::outcome::Outcome;
use super::stages::Stages;
use std::fmt::Write;

/// The two lines of libopendkim's programs, each with its line end: what is done, and what came of it.
pub(super) fn two_lines(outcome: &Outcome) -> String {
    let (doing, done) = match outcome.task {
        Task::Sign => ("SIGNING", "signed"),
        Task::Verify => ("VERIFYING", "verified"),
    };
    format!(
        "*** {doing} SPEED TEST: {} with {}, {} for {}s\n*** {} messages {done} ({:.0} msgs/sec)\n",
        outcome.canonicalization,
        outcome.algorithm,
        outcome.workload,
        outcome.seconds,
        outcome.messages,
        outcome.messages_per_second.floor(),
    )
}

/// The whole text.
pub(super) fn text(outcome: &Outcome) -> String {
    let mut text = two_lines(outcome);
    for (name, value) in lines(outcome) {
        line(&mut text, name, &value);
    }
    if let Some(stages) = &outcome.stages {
        text.push_str(&stage_lines(stages));
    }
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "    {name:<12}{value}");
}

fn lines(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let (machine, versions) = (&outcome.machine, &outcome.versions);
    let threads = match outcome.threads {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let cores = match machine.cores {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    };
    let parsed = match (outcome.per_message_key, outcome.task) {
        (false, _) => "parsed once",
        (true, Task::Sign) => "parsed and proved for each message",
        (true, Task::Verify) => "its record parsed for each message",
    };
    let checked = match outcome.task {
        Task::Sign => {
            "each signature against the first of the same message, those by every engine after the window"
        }
        Task::Verify => "each verdict",
    };
    let mut lines = vec![
        (
            "CPU time",
            format!(
                "{:.1} us per message; {:.0} messages per CPU second; the process took {:.2} s of CPU in {:.2} s{}",
                outcome.cpu_us_per_message,
                outcome.messages_per_cpu_second,
                outcome.process_cpu_seconds,
                outcome.wall_seconds,
                match outcome.module_cpu_seconds {
                    Some(seconds) => format!(", and that of the module {seconds:.2} s"),
                    None => String::new(),
                }
            ),
        ),
        (
            "throughput",
            format!(
                "{:.1} MB/s, header and body; {} different messages",
                outcome.megabytes_per_second, outcome.distinct_messages
            ),
        ),
        ("key", format!("{} bits, {parsed}", outcome.key_bits)),
        (
            "engine",
            format!(
                "{} ({}); digest {} ({})",
                outcome.engine,
                versions.engine,
                match outcome.digest.as_str() {
                    "token" => "of the body on the token, the header's in software",
                    _ => "in software",
                },
                versions.digest
            ),
        ),
        (
            "built",
            format!("dkim-core {}, {}", versions.dkim_core, versions.rustc),
        ),
        ("CPU", format!("{}, {}", machine.cpu, machine.clock())),
        ("cores", format!("{threads} on {cores}; {}", machine.kernel)),
    ];
    if let Some(token) = &outcome.token {
        lines.push((
            "token",
            format!(
                "{} by {}; {} in {}{}; {}",
                token.model,
                token.manufacturer,
                token.module,
                match token.in_process {
                    true => "this process",
                    false => "a process of its own",
                },
                match token.sessions {
                    Some(sessions) => format!(", {sessions} sessions"),
                    None => String::new(),
                },
                token.mechanism
            ),
        ));
    }
    if let Some(latency) = &outcome.latency {
        let (p50, p99) = (latency.p50_us, latency.p99_us);
        lines.push(("latency", format!("p50 {p50:.0} us, p99 {p99:.0} us")));
    }
    if let Some(label) = &outcome.label {
        lines.push(("label", label.clone()));
    }
    if let Some(octets) = outcome.peak_memory {
        lines.push(("peak memory", format!("{:.1} MB", octets as f64 / 1e6)));
    }
    lines.push(("checked", checked.to_owned()));
    lines
}

fn stage_lines(stages: &Stages) -> String {
    let mut text = String::new();
    line(
        &mut text,
        "stages",
        &format!(
            "us of CPU per message, one thread, medians of {} rounds on {} {}",
            stages.rounds,
            stages.messages,
            if stages.messages == 1 {
                "message"
            } else {
                "messages"
            }
        ),
    );
    let mut row = |name: &str, us: f64, note: &str| {
        // What rounds to zero has no sign.
        let us = (100.0 * us).round() / 100.0 + 0.0;
        let share = (1000.0 * us / stages.whole_us).round() / 10.0 + 0.0;
        let _ = writeln!(text, "      {name:<36}{us:>10.2}{share:>7.1} %{note}");
    };
    for stage in &stages.stages {
        let note = if stage.by_difference { "  *" } else { "" };
        row(&stage.name, stage.us, note);
    }
    row("not explained by these", stages.unexplained_us, "");
    row("the whole", stages.whole_us, "");
    if stages.stages.iter().any(|stage| stage.by_difference) {
        text.push_str("      * a difference of two measurements, noisier than the others\n");
    }
    text
}

/// What was not good, for standard error; nothing if all was.
pub(super) fn failure_text(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.failed == 0 {
        return text;
    }
    let what = match outcome.task {
        Task::Sign => "signatures",
        Task::Verify => "verdicts",
    };
    let _ = writeln!(text, "{} {what} were not good:", outcome.failed);
    let mut told = 0;
    for failure in &outcome.failures {
        told += failure.times;
        let _ = writeln!(
            text,
            "  {}: {} ({} times)",
            failure.message, failure.reason, failure.times
        );
    }
    if told < outcome.failed {
        let _ = writeln!(text, "  and {} on other messages", outcome.failed - told);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::outcome::tests::outcome;
    use crate::perf::run::Failures;
    use crate::perf::stages::Stage;

    #[test]
    fn the_two_lines_are_libopendkims() {
        let mut outcome = outcome();
        (outcome.messages, outcome.messages_per_second) = (7458, 1491.6);
        assert_eq!(
            two_lines(&outcome),
            "*** SIGNING SPEED TEST: relaxed/simple with rsa-sha256, size 1024 for 5s\n\
             *** 7458 messages signed (1491 msgs/sec)\n"
        );
        outcome.task = Task::Verify;
        (outcome.messages, outcome.messages_per_second) = (20740, 4148.0);
        assert_eq!(
            two_lines(&outcome),
            "*** VERIFYING SPEED TEST: relaxed/simple with rsa-sha256, size 1024 for 5s\n\
             *** 20740 messages verified (4148 msgs/sec)\n"
        );
        outcome.seconds = 0.25;
        assert!(two_lines(&outcome).contains("size 1024 for 0.25s\n"));
    }

    #[test]
    fn what_follows_the_two_lines_says_all_that_figures_depend_on() {
        let text = text(&outcome());
        let lines: Vec<&str> = text.lines().collect();
        for (line, wanted) in [
            (
                2,
                "    CPU time    500.0 us per message; 2000 messages per CPU second; the process took 4.12 s of CPU in 5.00 s",
            ),
            (
                3,
                "    throughput  3.2 MB/s, header and body; 1 different messages",
            ),
            (4, "    key         2048 bits, parsed once"),
            (
                5,
                "    engine      aws-lc (aws-lc-rs 1.19.0); digest in software (sha2 0.11.1)",
            ),
            (6, "    built       dkim-core 0.1.0, rustc 1.95.0"),
            (7, "    CPU         Some CPU, 2000 MHz"),
            (8, "    cores       1 thread on 4 cores; Linux 6.1"),
            (9, "    peak memory 8.0 MB"),
        ] {
            assert_eq!(lines[line], wanted);
        }
    }

    #[test]
    fn stages_are_shares_of_the_whole() {
        let stages = Stages {
            messages: 1,
            rounds: 5,
            stages: vec![
                Stage {
                    name: "parse".into(),
                    us: 1.0,
                    by_difference: false,
                },
                Stage {
                    name: "header".into(),
                    us: 2.5,
                    by_difference: true,
                },
                Stage {
                    name: "digest".into(),
                    us: -0.001,
                    by_difference: true,
                },
            ],
            unexplained_us: 0.5,
            whole_us: 4.0,
        };
        assert_eq!(
            stage_lines(&stages),
            "    stages      us of CPU per message, one thread, medians of 5 rounds on 1 message\n\
             \x20     parse                                     1.00   25.0 %\n\
             \x20     header                                    2.50   62.5 %  *\n\
             \x20     digest                                    0.00    0.0 %  *\n\
             \x20     not explained by these                    0.50   12.5 %\n\
             \x20     the whole                                 4.00  100.0 %\n\
             \x20     * a difference of two measurements, noisier than the others\n"
        );
    }

    #[test]
    fn failures_are_told_with_their_messages() {
        let mut outcome = outcome();
        assert_eq!(failure_text(&outcome), "");
        let mut failures = Failures::default();
        (0..7).for_each(|index| failures.add(index, "bad".into(), 2));
        outcome.set_failures(failures, |index| format!("m{index}"));
        assert_eq!(
            failure_text(&outcome),
            "14 signatures were not good:\n  m0: bad (2 times)\n  m1: bad (2 times)\n  m2: bad (2 times)\n  \
             m3: bad (2 times)\n  m4: bad (2 times)\n  and 4 on other messages\n"
        );
    }
}
