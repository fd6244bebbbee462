//! What is taken for a PIN and for its source, and that no PIN is shown; right values by hand, and by sha256sum(1).

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn file(path: &str) -> Result<PinSource, PinSourceError> {
    Ok(PinSource::File(path.into()))
}

#[test]
fn a_source_is_a_file_or_a_credential_and_nothing_else() {
    let credential = |name: &str| Ok(PinSource::Credential(name.to_owned()));
    let scheme = |scheme: &str| {
        Err(PinSourceError::Scheme {
            scheme: scheme.to_owned(),
        })
    };
    for (text, wanted) in [
        ("/etc/dkim/pin", file("/etc/dkim/pin")),
        ("file:/etc/dkim/pin", file("/etc/dkim/pin")),
        ("file:///etc/dkim/pin", file("/etc/dkim/pin")),
        ("FILE://localhost/etc/dkim/pin", file("/etc/dkim/pin")),
        ("file:/etc/a%20pin", file("/etc/a%20pin")),
        ("file:////etc/pin", file("//etc/pin")),
        ("pin.txt", file("pin.txt")),
        ("file:pin.txt", file("pin.txt")),
        ("file:./a%20pin", file("./a%20pin")),
        ("./a:pin", file("./a:pin")),
        ("/etc/pin|cat", file("/etc/pin|cat")),
        ("1:pin", file("1:pin")),
        ("credential:dkim-pin", credential("dkim-pin")),
        ("Credential:dkim.pin", credential("dkim.pin")),
        ("", Err(PinSourceError::Empty)),
        ("|/usr/bin/getpin", Err(PinSourceError::Command)),
        ("https://example.com/pin", scheme("https")),
        ("pkcs11:token=other", scheme("pkcs11")),
        ("env:PIN", scheme("env")),
        ("file:", Err(PinSourceError::NoPath)),
        ("file://", Err(PinSourceError::NoPath)),
        ("file://example.com", Err(PinSourceError::NoPath)),
        ("file://example.com/pin", Err(PinSourceError::OtherHost)),
        ("/etc/pin\0", Err(PinSourceError::Nul)),
        ("credential:", Err(PinSourceError::CredentialName)),
        ("credential:..", Err(PinSourceError::CredentialName)),
        ("credential:a/b", Err(PinSourceError::CredentialName)),
        (
            "credential:/etc/shadow",
            Err(PinSourceError::CredentialName),
        ),
        ("credential:a b", Err(PinSourceError::CredentialName)),
        ("credential:a:b", Err(PinSourceError::CredentialName)),
    ] {
        assert_eq!(PinSource::parse(text.as_bytes()), wanted, "{text}");
    }
}

#[test]
fn a_path_that_begins_elsewhere_is_seen_from_a_directory() {
    for (text, wanted) in [
        ("pin", "/etc/dkim/pin"),
        ("./sub/pin", "/etc/dkim/sub/pin"),
        ("file:./pin", "/etc/dkim/pin"),
        ("file:../pin", "/etc/dkim/../pin"),
        ("/run/pin", "/run/pin"),
        ("file:///run/pin", "/run/pin"),
    ] {
        let source = PinSource::parse(text.as_bytes()).unwrap();
        let seen = source.seen_from(Path::new("/etc/dkim"));
        assert_eq!(seen, PinSource::File(wanted.into()), "{text}");
    }
    let credential = PinSource::Credential("pin".to_owned());
    assert_eq!(credential.clone().seen_from(Path::new("/etc")), credential);
}

#[test]
fn a_refused_command_says_why_and_what_else() {
    let error = PinSource::parse(b"|/usr/bin/getpin --slot 1").unwrap_err();
    assert_eq!(
        error.to_string(),
        "a PIN is not read from a command (\"|...\"), as who writes the URI could run any: put the PIN into a file \
         that only the daemon can read, or use credential:NAME"
    );
}

/// What a file with `content` and `mode` gives: the PIN, or the sentence with the directory cut out.
fn read_back(content: &[u8], mode: u32) -> Result<Vec<u8>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pin");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    match PinSource::File(path).read(None) {
        Ok(pin) => Ok(pin.octets().to_vec()),
        Err(error) => {
            let directory = format!("{}/", directory.path().display());
            Err(error.to_string().replace(&directory, ""))
        }
    }
}

#[test]
fn one_line_end_is_dropped_once() {
    for (content, pin) in [
        (&b"1234"[..], &b"1234"[..]),
        (b"1234\n", b"1234"),
        (b"1234\r\n", b"1234"),
        (b"1234\n\n", b"1234\n"),
        (b"1234\r\n\r\n", b"1234\r\n"),
        (b"1234\n\r\n", b"1234\n"),
        (b"1234\r", b"1234\r"),
        (b" 12 34 ", b" 12 34 "),
        (b"\n1234", b"\n1234"),
        (b"\xe9\xff", b"\xe9\xff"),
    ] {
        assert_eq!(read_back(content, 0o600).as_deref(), Ok(pin), "{content:?}");
    }
}

#[test]
fn a_pin_has_1_to_256_octets_and_no_nul() {
    let longest = [b'7'; 256];
    for end in [&b""[..], b"\n", b"\r\n"] {
        let content = [&longest[..], end].concat();
        assert_eq!(read_back(&content, 0o600).as_deref(), Ok(&longest[..]));
        let content = [&longest[..], b"7", end].concat();
        let wanted = "the PIN in pin is longer than 256 octets";
        assert_eq!(read_back(&content, 0o600), Err(wanted.to_owned()));
    }
    for (content, wanted) in [
        (&b""[..], "the PIN in pin is empty"),
        (b"\n", "the PIN in pin is empty"),
        (b"\r\n", "the PIN in pin is empty"),
        (b"12\x0034", "the PIN in pin has a NUL in it"),
        (&[b'7'; 100_000], "the PIN in pin is longer than 256 octets"),
    ] {
        assert_eq!(read_back(content, 0o600), Err(wanted.to_owned()));
    }
}

#[test]
fn a_file_that_others_can_read_is_refused_with_the_remedy() {
    let mend = if rustix::process::geteuid().is_root() {
        "g-wx,o="
    } else {
        "go="
    };
    assert_eq!(
        read_back(b"1234\n", 0o644),
        Err(format!(
            "the PIN file pin is not kept from others (mode 0644); to mend: chmod {mend} pin"
        ))
    );
}

#[test]
fn a_group_may_read_what_root_owns_and_nobody_may_write() {
    const DAEMON: u32 = 990;
    for (owner, mode, wanted) in [
        (DAEMON, 0o400, None),
        (DAEMON, 0o600, None),
        (DAEMON, 0o700, None),
        (DAEMON, 0o440, Some("go=")),
        (DAEMON, 0o604, Some("go=")),
        (DAEMON, 0o602, Some("go=")),
        (DAEMON, 0o610, Some("go=")),
        (ROOT, 0o400, None),
        (ROOT, 0o440, None),
        (ROOT, 0o640, None),
        (ROOT, 0o660, Some("g-wx,o=")),
        (ROOT, 0o650, Some("g-wx,o=")),
        (ROOT, 0o444, Some("g-wx,o=")),
        (ROOT, 0o641, Some("g-wx,o=")),
    ] {
        // With the type of a plain file, as the system hands it out.
        let mended = mend_permissions(owner, 0o100_000 | mode);
        assert_eq!(mended, wanted, "{owner} {mode:o}");
    }
}

#[test]
fn only_plain_files_are_read_and_none_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for path in [
        pipe.as_path(),
        directory.path(),
        Path::new("/dev/null"),
        Path::new("/dev/zero"),
    ] {
        let error = PinSource::File(path.into()).read(None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} is not a plain file: a PIN is read from nothing else",
                path.display()
            )
        );
    }
    let missing = directory.path().join("missing");
    let error = PinSource::File(missing.clone()).read(None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot read the PIN file {}: No such file or directory (os error 2)",
            missing.display()
        )
    );
}

#[test]
fn a_credential_is_a_file_in_the_directory_given() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dkim-pin");
    fs::write(&path, "4711\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let source = PinSource::parse(b"credential:dkim-pin").unwrap();
    let pin = source.read(Some(directory.path())).unwrap();
    assert_eq!(pin.octets(), b"4711");
    assert_eq!(
        source.read(None).unwrap_err().to_string(),
        "no credential dkim-pin: $CREDENTIALS_DIRECTORY is not set; start the daemon by systemd, with \
         LoadCredential=dkim-pin:/path/to/pin in the unit"
    );
}

#[test]
fn a_changed_file_is_seen_at_the_next_reading() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pin");
    let source = PinSource::File(path.clone());
    let salt = [9; 16];
    let mut seen = Vec::new();
    for content in ["1111", "2222\n", "2222"] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        seen.push(source.read(None).unwrap().fingerprint(&salt));
    }
    assert_ne!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2], "a line end is no change");
}

#[test]
fn a_fingerprint_is_sha256_of_salt_and_pin() {
    let salt: [u8; 16] = std::array::from_fn(|i| i as u8);
    let pin = Pin::new(Zeroizing::new(b"1234".to_vec())).unwrap();
    // (printf '\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17'; printf 1234) | sha256sum
    let wanted = "bad0b4f7cae08eb7c1b5acc763a8ed25242e2c9173e81f3f624b1fa5303cf6ce";
    let hex: String = pin
        .fingerprint(&salt)
        .iter()
        .map(|octet| format!("{octet:02x}"))
        .collect();
    assert_eq!(hex, wanted);
    assert_ne!(pin.fingerprint(&[0; 16]), pin.fingerprint(&salt));
}

#[test]
fn nothing_shows_a_pin() {
    let pin = Pin::new(Zeroizing::new(b"s3cret".to_vec())).unwrap();
    let source = PinSource::Value(pin.clone());
    assert_eq!(format!("{pin:?}"), "Pin([hidden])");
    assert_eq!(format!("{source:?}"), "Value(Pin([hidden]))");
    assert_eq!(source.to_string(), "pin-value");
    assert_eq!(source.to_octets(), None);
    // Nor is it in the way of an error: one octet too many of it.
    let fault = Pin::new(Zeroizing::new(b"s3cret\0".to_vec())).unwrap_err();
    assert!(!format!("{fault:?} {fault}").contains("s3cret"));
}

proptest! {
    #[test]
    fn any_octets_are_a_source_or_refused(octets in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = PinSource::parse(&octets);
    }

    #[test]
    fn a_source_reads_back_as_written(text in "(file:/{1,3}|credential:|/)?[ -~]{0,12}") {
        if let Ok(source) = PinSource::parse(text.as_bytes()) {
            prop_assert_eq!(PinSource::parse(&source.to_octets().unwrap()), Ok(source));
        }
    }

    #[test]
    fn at_most_one_line_end_goes(octets in "[\r\na]{0,6}") {
        let left = without_line_end(octets.as_bytes());
        let cut = &octets.as_bytes()[left.len()..];
        prop_assert!(octets.as_bytes().starts_with(left));
        prop_assert_eq!(cut.is_empty(), !octets.ends_with('\n'));
        prop_assert!(cut.is_empty() || cut == b"\n" && !left.ends_with(b"\r") || cut == b"\r\n");
    }
}
