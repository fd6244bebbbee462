//! What `dkim-sign` writes, warns of and refuses.

use crate::harness::*;
use std::io::Read;
use std::process::{Command, Stdio};

fn keys(selectors: &[(&str, &str)]) -> String {
    let key = |(selector, file): &(&str, &str)| format!(" -s {selector} -k {}", data(file));
    selectors.iter().map(key).collect()
}

fn header_only(options: &str, message: &[u8]) -> String {
    let ended = run(SIGN, &format!("--header-only {options}"), message);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    String::from_utf8(ended.stdout).unwrap()
}

/// The value of `tag` in the one signature in `fields`, folds undone.
fn tag(fields: &str, tag: &str) -> Option<String> {
    let unfolded: String = fields.split(['\r', '\n', '\t']).collect();
    let (_, value) = unfolded.split_once(':')?;
    let tags: Vec<&str> = value.split(';').map(str::trim).collect();
    let value = tags.iter().find_map(|t| t.strip_prefix(&format!("{tag}=")));
    value.map(str::to_owned)
}

#[test]
fn every_option_has_its_tag() {
    let key = keys(&[("rsa", "rsa2048.pem")]);
    let fields = header_only(
        &format!(
            "-d example.com {key} -c relaxed/simple -i ann;1@mail.example.com --now 1700000000 --expire 3600 --body-length \
             --tag x1=one --tag x2=a=b"
        ),
        MESSAGE,
    );
    for (name, want) in [
        ("v", "1"),
        ("a", "rsa-sha256"),
        ("c", "relaxed/simple"),
        ("d", "example.com"),
        ("s", "rsa"),
        ("i", "ann=3B1@mail.example.com"),
        ("t", "1700000000"),
        ("x", "1700003600"),
        ("l", "10"),
        ("x1", "one"),
        ("x2", "a=b"),
        ("h", "From:From:Subject:To"),
        // printf 'At noon?\r\n' | openssl dgst -sha256 -binary | base64
        ("bh", "4daN71HNdn/d5SSJNrmA4GnDoSU3uSw9/N1YsKJOhFc="),
    ] {
        assert_eq!(
            tag(&fields, name).as_deref(),
            Some(want),
            "{name} in {fields}"
        );
    }
}

#[test]
fn without_options_it_is_relaxed_now_and_never_partial() {
    let fields = header_only(
        &format!("-d example.com {}", keys(&[("ed", "ed25519.pem")])),
        MESSAGE,
    );
    assert_eq!(tag(&fields, "a").as_deref(), Some("ed25519-sha256"));
    assert_eq!(tag(&fields, "c").as_deref(), Some("relaxed/relaxed"));
    for absent in ["i", "x", "l"] {
        assert_eq!(tag(&fields, absent), None);
    }
    let t: u64 = tag(&fields, "t").unwrap().parse().unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!(now.as_secs() - t < 60);
}

#[test]
fn several_signatures_stand_in_the_order_of_their_selectors() {
    let both = keys(&[("rsa", "rsa2048.pem"), ("ed", "ed25519.pem")]);
    for (options, want) in [
        (
            "-d example.com",
            [("example.com", None), ("example.com", None)],
        ),
        (
            "-d example.com -d example.org",
            [("example.com", None), ("example.org", None)],
        ),
        (
            "-d example.com -i @a.example.com",
            [
                ("example.com", Some("@a.example.com")),
                ("example.com", Some("@a.example.com")),
            ],
        ),
        (
            "-d example.com -d example.org -i a@example.com -i b@example.org",
            [
                ("example.com", Some("a@example.com")),
                ("example.org", Some("b@example.org")),
            ],
        ),
    ] {
        let fields = header_only(&format!("{options} {both}"), MESSAGE);
        let fields: Vec<&str> = fields.split_inclusive("\r\n").collect();
        let starts: Vec<usize> = (0..fields.len())
            .filter(|&at| fields[at].starts_with("DKIM-Signature:"))
            .collect();
        assert_eq!((starts.len(), starts[0]), (2, 0));
        for ((field, selector), (domain, identity)) in
            [fields[..starts[1]].concat(), fields[starts[1]..].concat()]
                .iter()
                .zip(["rsa", "ed"])
                .zip(want)
        {
            assert_eq!(tag(field, "s").as_deref(), Some(selector));
            assert_eq!(tag(field, "d").as_deref(), Some(domain));
            assert_eq!(tag(field, "i").as_deref(), identity);
        }
    }
}

#[test]
fn the_list_of_fields_is_the_one_asked_for() {
    let message = b"From: ann@example.com\r\nTo: b\r\nSubject: c\r\nX-Tag: 1\r\nX-Tag: 2\r\n\r\n";
    let key = keys(&[("ed", "ed25519.pem")]);
    for (options, want) in [
        ("--sign-headers From:To:Subject", "From:To:Subject"),
        ("--sign-headers From,From,To", "From:From:To"),
        (
            "--sign-headers From:To:Cc --oversign-headers From:Cc",
            "From:From:To:Cc",
        ),
        (
            "--sign-headers From:X-Tag --oversign-headers X-Tag",
            "From:X-Tag:X-Tag:X-Tag",
        ),
        ("--oversign-headers Subject", "From:Subject:Subject:To"),
        ("", "From:From:Subject:To"),
    ] {
        let fields = header_only(&format!("-d example.com {key} {options}"), message);
        assert_eq!(tag(&fields, "h").as_deref(), Some(want), "{options}");
    }
}

#[test]
fn the_message_below_the_new_field_is_untouched() {
    for message in [
        &b"From: ann@example.com\r\nA: 1\r\n\r\nbody\r\n.\n\xff\0\r\n"[..],
        b"From: ann@example.com\nA: 1\n\nbody\n\nlast line without end",
        b"From: ann@example.com\r\n\r\n",
        b"From: ann@example.com\r\n",
        b"From: ann@example.com",
        b"A: 1\r\nFrom: ann@example.com",
    ] {
        let line_end = if message.contains(&b'\r') {
            "\r\n"
        } else {
            "\n"
        };
        for from_file in [false, true] {
            let stored = file(message);
            let (argument, stdin) = if from_file {
                (path(&stored), &b""[..])
            } else {
                ("-", message)
            };
            let output = signed(argument, stdin);
            let fields = output.strip_suffix(message).expect("the message as it was");
            let fields = std::str::from_utf8(fields).unwrap();
            assert!(fields.starts_with("DKIM-Signature: v=1;"), "{fields}");
            let folds = fields.matches(line_end).count();
            assert!(
                folds > 3 && folds == fields.matches('\n').count() && fields.ends_with(line_end)
            );
            assert_eq!(
                fields.matches('\r').count(),
                if line_end == "\n" { 0 } else { folds }
            );
        }
    }
}

#[test]
fn an_mbox_line_stays_on_top() {
    for line_end in ["\n", "\r\n"] {
        let mbox = format!("From ann@example.com Mon Jan  1 00:00:00 2024{line_end}");
        let rest = format!("From: ann@example.com{line_end}{line_end}body{line_end}");
        let output = String::from_utf8(signed("", (mbox.clone() + &rest).as_bytes())).unwrap();
        let below = output.strip_prefix(&mbox).expect("the mbox line first");
        assert!(
            below.starts_with("DKIM-Signature:") && below.ends_with(&rest),
            "{output}"
        );
    }
}

/// RFC 5322 section 4.5.8 allows white space before the colon, even of a first line that is From.
#[test]
fn a_from_field_on_top_is_no_mbox_line() {
    let message = "From : ann@example.com\r\n\r\nbody\r\n";
    let output = String::from_utf8(signed("", message.as_bytes())).unwrap();
    assert!(output.starts_with("DKIM-Signature:") && output.ends_with(message));
    let two = format!(
        "From : eve@example.net\r\n{}",
        "From: ann@example.com\r\n\r\n"
    );
    let arguments = format!("-d example.com {}", keys(&[("rsa", "rsa2048.pem")]));
    let ended = run(SIGN, &arguments, two.as_bytes());
    assert_eq!(ended.code, 65, "{}", ended.stderr);
}

#[test]
fn standard_input_may_be_a_file_that_was_read_from() {
    let stored = file(&[b"not ours\r\n", MESSAGE].concat());
    let mut stdin = stored.reopen().unwrap();
    stdin.read_exact(&mut [0; 10]).unwrap();
    let output = Command::new(SIGN)
        .args(
            format!("-d example.com {}", keys(&[("rsa", "rsa2048.pem")])).split_ascii_whitespace(),
        )
        .stdin(stdin)
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"DKIM-Signature:") && output.stdout.ends_with(MESSAGE));
    assert!(!output.stdout.windows(8).any(|octets| octets == b"not ours"));
}

#[test]
fn lines_are_short_and_folds_legal_for_any_selector() {
    let names: Vec<String> = (0..60)
        .map(|n| {
            format!(
                "X-A-Rather-Long-Name-For-A-Field-{n:02}-{}",
                "x".repeat(n % 24)
            )
        })
        .collect();
    let message = names
        .iter()
        .map(|name| format!("{name}: v\r\n"))
        .collect::<String>()
        + "From: ann@example.com\r\n\r\n";
    let fields = header_only(
        &format!(
            "-d example.com -s long.selector-name-2026-01 -k {} --sign-headers From:{}",
            data("rsa2048.pem"),
            names.join(":")
        ),
        message.as_bytes(),
    );
    assert!(fields.lines().all(|line| line.len() <= 78), "{fields}");
    assert_eq!(
        tag(&fields, "h").unwrap(),
        format!("From:{}", names.join(":"))
    );
    assert!(fields.rfind("b=") > fields.find("bh="));
}

#[test]
fn what_should_not_be_is_warned_of() {
    let long_line = format!(
        "From: ann@example.com\r\nReferences: {}\r\n\r\n",
        "x".repeat(1000)
    );
    for (options, message, want) in [
        ("--body-length", MESSAGE, "with l= anybody can add"),
        (
            "",
            long_line.as_bytes(),
            "warning: References is not signed",
        ),
        (
            "",
            b"From: ann@example.com\r\n\r\na\nb\r\n",
            "CR or LF by itself",
        ),
        (
            "",
            b"From: ann@example.com\r\nX: a\rb\r\n\r\n",
            "CR or LF by itself",
        ),
        ("", b"From: ann@example.com\n\na\rb\n", "CR or LF by itself"),
        ("", MESSAGE, ""),
    ] {
        let ended = run(
            SIGN,
            &format!(
                "-d example.com {} {options}",
                keys(&[("ed", "ed25519.pem")])
            ),
            message,
        );
        assert_eq!(ended.code, 0);
        assert!(
            ended.stderr.contains(want) && ended.stderr.is_empty() == want.is_empty(),
            "{}",
            ended.stderr
        );
    }
    let ended = run(
        SIGN,
        &format!("-d example.com {}", keys(&[("short", "rsa1024.pem")])),
        MESSAGE,
    );
    assert!(
        ended.stderr.contains("rsa1024.pem: RSA key of 1024 bits"),
        "{}",
        ended.stderr
    );
}

#[test]
fn every_failure_has_its_code_and_its_sentence() {
    let good = keys(&[("rsa", "rsa2048.pem")]);
    let both = keys(&[("rsa", "rsa2048.pem"), ("ed", "ed25519.pem")]);
    let no_key = file(b"no key");
    let two_from: &[u8] = b"From: a@example.com\r\nFrom: b@example.com\r\n\r\n";
    let huge = [b"From: a@example.com\r\nX: ", &[b'x'; 1_100_000][..]].concat();
    for (arguments, message, code, sentence) in [
        (good.clone(), MESSAGE, 64, "--domain"),
        (
            format!("-d example.com {good} -c relaxd/simple"),
            MESSAGE,
            64,
            "relaxed/simple",
        ),
        (
            format!("-d example.com {good} --expire 0"),
            MESSAGE,
            64,
            "--expire",
        ),
        (
            format!("-d example.com {good} --exipre 5"),
            MESSAGE,
            64,
            "--expire",
        ),
        (
            format!("-d example.com {good} --engine aws"),
            MESSAGE,
            64,
            "aws-lc",
        ),
        (
            format!("-d example.com {good} -i example.com"),
            MESSAGE,
            64,
            "LOCAL@DOMAIN",
        ),
        (
            format!("-d example.com {good} -i a@example.org"),
            MESSAGE,
            64,
            "\"example.org\" is not within",
        ),
        (
            format!("-d example..com {good}"),
            MESSAGE,
            64,
            "\"example..com\" is not a domain name",
        ),
        (
            format!("-d example.com {good} --tag d=x"),
            MESSAGE,
            64,
            "tag d=",
        ),
        (
            format!("-d example.com {good} --tag d"),
            MESSAGE,
            64,
            "NAME=VALUE",
        ),
        (
            format!("-d example.com {good} --sign-headers To"),
            MESSAGE,
            64,
            "From is not among",
        ),
        (
            format!("-d example.com {good} --sign-headers From:a;b"),
            MESSAGE,
            64,
            "\"a;b\" is not the name",
        ),
        (
            format!("-d example.com {good} -s more"),
            MESSAGE,
            64,
            "-s is given twice and -k once: give one key",
        ),
        (
            format!("-d example.com -d b.example -d c.example {both}"),
            MESSAGE,
            64,
            "-d is given 3 times and -s twice: give -d once",
        ),
        (
            format!("-d example.com {good}"),
            b"",
            65,
            "standard input is not a message",
        ),
        (
            format!("-d example.com {good}"),
            b"\r\nFrom: a@example.com\r\n",
            65,
            "not a message",
        ),
        (
            format!("-d example.com {good}"),
            b" a\r\nFrom: a@example.com\r\n",
            65,
            "not a message",
        ),
        (
            format!("-d example.com {good}"),
            b"no header\r\nat all\r\n",
            65,
            "not a message",
        ),
        (
            format!("-d example.com {good}"),
            &huge,
            65,
            "larger than 1048576 octets",
        ),
        (
            format!("-d example.com {good}"),
            b"To: b@example.com\r\n\r\n",
            65,
            "no From field",
        ),
        (
            format!("-d example.com {good}"),
            two_from,
            65,
            "2 From fields",
        ),
        (
            format!("-d example.com {good}"),
            b"From: a@b@example.com\r\n\r\n",
            65,
            "From field cannot be read",
        ),
        (
            format!("-d example.com {good}"),
            b"From: a@exam\xe2\x80\x8bple.com\r\n\r\n",
            65,
            "not signed",
        ),
        (
            format!("-d example.com {good} /no/such/file"),
            MESSAGE,
            66,
            "cannot open /no/such/file",
        ),
        (
            format!("-d example.com {good} /"),
            MESSAGE,
            66,
            "cannot open /: is a directory",
        ),
        (
            "-d example.com -s a -k /no/such/key".into(),
            MESSAGE,
            66,
            "cannot read key /no/such/key",
        ),
        (
            format!("-d example.com -s a -k {}", path(&no_key)),
            MESSAGE,
            78,
            "not a private key",
        ),
        (
            format!("-d example.com -s a -k {}", data("records.zone")),
            MESSAGE,
            78,
            "records.zone: not a private key",
        ),
    ] {
        let ended = run(SIGN, &arguments, message);
        assert_eq!(ended.code, code, "{arguments}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(sentence),
            "{arguments}: {}",
            ended.stderr
        );
        assert!(ended.stdout.is_empty());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_news_and_a_full_disk_is() {
    let stored = file(&[MESSAGE, &b"0123456789abcdef\r\n".repeat(100_000)[..]].concat());
    let arguments = format!(
        "-d example.com {} {}",
        keys(&[("ed", "ed25519.pem")]),
        path(&stored)
    );
    let mut child = Command::new(SIGN)
        .args(arguments.split_ascii_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(74), &b""[..])
    );

    let output = Command::new(SIGN)
        .args(arguments.split_ascii_whitespace())
        .stdout(std::fs::File::create("/dev/full").unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(74));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("dkim-sign: cannot write to standard output: "),
        "{stderr}"
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for tool in [SIGN, VERIFY] {
        let help = run(tool, "--help", b"");
        assert_eq!((help.code, help.stderr.as_str()), (0, ""));
        assert!(help.text().contains("Exit codes"));
        let version = run(tool, "--version", b"");
        assert_eq!(version.code, 0);
        assert!(
            version
                .text()
                .trim_end()
                .ends_with(env!("CARGO_PKG_VERSION"))
        );
    }
}
