//! Key sets made from key tables and key files.

use super::*;
use crate::config::Overrides;
use crate::tables::test_dir::TestDir;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const RSA: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/rsa2048.pem");
const SHORT: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/rsa1024.pem");
const TOO_SHORT: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/rsa768.pem");
const ED25519: &[u8] = include_bytes!("../../../dkim-core/tests/data/keys/ed25519.pem");

/// A directory with keys and tables, and what is made of it.
struct Keys {
    dir: TestDir,
    options: Vec<String>,
}

impl Keys {
    fn new() -> Self {
        let dir = TestDir::new("keys");
        // Test directories lie in one that everybody can write to.
        fs::set_permissions(dir.root(), fs::Permissions::from_mode(0o700)).unwrap();
        let base = dir.root().display();
        let options = vec![
            format!("BaseDirectory={base}"),
            "KeyTable=file:KeyTable".to_owned(),
            "SigningTable=refile:SigningTable".to_owned(),
        ];
        let keys = Self { dir, options };
        keys.dir.write("SigningTable", "*@example.com k1\n");
        for (name, octets) in [
            ("rsa", RSA),
            ("short", SHORT),
            ("tooshort", TOO_SHORT),
            ("ed", ED25519),
        ] {
            keys.write(name, octets, 0o600);
        }
        keys
    }

    fn set(&mut self, option: &str) -> &mut Self {
        self.options.push(option.to_owned());
        self
    }

    fn write(&self, name: &str, octets: &[u8], mode: u32) {
        let path = self.dir.write(name, octets);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn load(&self, table: &str) -> (Config, KeySet) {
        self.dir.write("KeyTable", table);
        let overrides = Overrides {
            set: self.options.clone(),
            ..Overrides::default()
        };
        let (config, _) = Config::load(None, &overrides).unwrap();
        let keys = KeySet::load(&config, Reader::current());
        (config, keys)
    }

    /// Errors and warnings, without the directory and what is said of the one above it.
    fn told(&self, keys: &KeySet) -> (Vec<String>, Vec<String>) {
        let here = format!("{}/", self.dir.root().display());
        let told = |text: String| text.replace(&here, "");
        let report = keys.report();
        let warnings = report.warnings.iter().map(ToString::to_string);
        (
            report
                .errors
                .iter()
                .map(|error| told(error.to_string()))
                .collect(),
            warnings
                .filter(|text| !text.contains("everybody can put files"))
                .map(told)
                .collect(),
        )
    }
}

fn table(config: &Config) -> &KeyTable {
    match &config.signing.signers {
        Some(SignerSource::Tables { keys, .. }) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_that_cannot_be_used_is_told_with_its_place_and_keeps_no_other_from_signing() {
    let keys = Keys::new();
    keys.write("garbage", b"not a key\n", 0o600);
    fs::create_dir(keys.dir.path("dir")).unwrap();
    let (config, set) = keys.load(
        "k1 example.com:r:./rsa\nk2 two.example:r:./missing\nk3 three.example:r:./garbage\nk4 four.example:r:./tooshort\n\
         k5 five.example:r:./none/key\nk6 six.example:r:./dir\nk7 %:r:./ed\n",
    );
    let (errors, _) = keys.told(&set);
    assert_eq!(
        errors,
        [
            "KeyTable:2: key \"k2\" in missing: No such file or directory",
            "KeyTable:3: key \"k3\" in garbage: not a private key: neither PEM nor DER nor the base64 of DER, nor an Ed25519 seed of 32 octets",
            "KeyTable:4: key \"k4\" in tooshort: RSA key of 768 bits is too short: at least 1024 are needed (RFC 8301 section 3.2), and 2048 should be used",
            "KeyTable:5: key \"k5\" in none/key: none: No such file or directory",
            "KeyTable:6: key \"k6\" in dir: dir is not a file",
        ]
    );
    assert_eq!(set.report().usable, 2);
    let table = table(&config);
    let identity = set.look_up(table, "k1", "example.com").unwrap().unwrap();
    assert_eq!(
        (&*identity.domain, &*identity.selector),
        ("example.com", "r")
    );
    assert_eq!(identity.key.key_type(), KeyType::Rsa);
    let identity = set.look_up(table, "k7", "shop.example").unwrap().unwrap();
    assert_eq!(
        (&*identity.domain, identity.key.key_type()),
        ("shop.example", KeyType::Ed25519)
    );
    assert!(set.look_up(table, "k2", "two.example").unwrap().is_err());
    assert!(set.look_up(table, "k9", "example.com").is_none());
    let error = set.look_up(table, "k7", "../shop").unwrap().unwrap_err();
    assert!(error.to_string().contains("no host name"), "{error}");
}

#[test]
fn a_key_of_another_kind_than_asked_for_is_an_error() {
    let mut keys = Keys::new();
    keys.set("SignatureAlgorithm=rsa-sha256");
    let (_, set) = keys.load("a a.example:s:./ed\nb b.example:s:./ed:ed25519-sha256\nc c.example:s:./rsa:ed25519-sha256\n");
    let (errors, _) = keys.told(&set);
    assert_eq!(
        errors,
        [
            "KeyTable:1: key \"a\" in ed: this is an Ed25519 key, but SignatureAlgorithm asks for rsa-sha256",
            "KeyTable:3: key \"c\" in rsa: this is an RSA key, but its KeyTable entry asks for ed25519-sha256",
        ]
    );
}

#[test]
fn a_short_key_is_warned_of_once() {
    let keys = Keys::new();
    let (_, set) = keys.load("a a.example:s:./short\nb b.example:s:./short\n");
    let warning = "KeyTable:1: key \"a\" in short: RSA key of 1024 bits; 2048 should be used (RFC 8301 section 3.2)";
    assert_eq!(keys.told(&set), (vec![], vec![warning.to_owned()]));
}

#[test]
fn an_unsafe_key_is_refused_or_only_warned_of_as_the_option_says() {
    let mut keys = Keys::new();
    keys.write("open", RSA, 0o644);
    let (_, set) = keys.load("a a.example:s:./open\n");
    let (errors, _) = keys.told(&set);
    assert!(
        errors[0].starts_with(
            "KeyTable:1: key \"a\" in open: the key is not safe: open can be read by everybody"
        ),
        "{errors:?}"
    );
    assert!(
        errors[0].contains("mode 0644); to mend: chmod o= open"),
        "{errors:?}"
    );
    keys.set("RequireSafeKeys=no");
    let (_, set) = keys.load("a a.example:s:./open\n");
    let (errors, warnings) = keys.told(&set);
    assert_eq!(errors, [""; 0]);
    assert!(
        warnings[0].contains("open can be read by everybody"),
        "{warnings:?}"
    );
}

#[test]
fn a_key_in_the_table_signs_too() {
    let keys = Keys::new();
    let base64: String = std::str::from_utf8(RSA)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect();
    let (config, set) = keys.load(&format!(
        "a a.example:s:{base64}\nb b.example:s:{}\n",
        "A".repeat(80)
    ));
    let (errors, _) = keys.told(&set);
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("KeyTable:2: key \"b\": "),
        "{errors:?}"
    );
    assert!(
        set.look_up(table(&config), "a", "a.example")
            .unwrap()
            .is_ok()
    );
}

#[test]
fn files_of_domains_are_read_when_they_are_needed_and_picked_up_when_they_come() {
    let keys = Keys::new();
    let (config, set) = keys.load("k %:s:./keys/%/key\n");
    assert_eq!(keys.told(&set).0, [""; 0]);
    let look_up = || set.look_up(table(&config), "k", "shop.example").unwrap();
    assert!(
        look_up()
            .unwrap_err()
            .to_string()
            .ends_with("No such file or directory")
    );
    fs::create_dir_all(keys.dir.path("keys/shop.example")).unwrap();
    symlink("../../rsa", keys.dir.path("keys/shop.example/key")).unwrap();
    assert!(look_up().is_ok());
    fs::remove_file(keys.dir.path("rsa")).unwrap();
    assert!(look_up().is_ok());
}

#[test]
fn a_file_that_many_share_is_read_once_and_its_fault_told_once() {
    let keys = Keys::new();
    let content = (0..50_000).fold(String::new(), |mut content, number| {
        let file = ["rsa", "missing"][number % 2];
        let _ = writeln!(content, "k{number} d{number}.example:s:./{file}");
        content
    });
    let (config, set) = keys.load(&content);
    assert_eq!(set.files.len(), 2);
    assert_eq!(set.report().usable, 25_000);
    let (errors, _) = keys.told(&set);
    let wanted = "KeyTable:2: key \"k1\" in missing: No such file or directory (and so 24999 more keys in that file)";
    assert_eq!(errors, [wanted]);
    let key = |name| {
        set.look_up(table(&config), name, "x.example")
            .unwrap()
            .unwrap()
            .key
    };
    assert!(Arc::ptr_eq(&key("k0"), &key("k49998")));
}

#[test]
fn only_keys_that_could_be_used_before_are_lost() {
    let keys = Keys::new();
    keys.write("b", b"not a key\n", 0o600);
    let before = keys.load("a a.example:s:./rsa\nb b.example:s:./b\n");
    let lost = |table: &str| {
        let (config, set) = keys.load(table);
        let lost = set.lost_since(&config, &before.1, &before.0);
        lost.into_iter()
            .map(|error| error.key.name.unwrap().into_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lost("a a.example:s:./rsa\nb b.example:s:./b\nc c.example:s:./missing\n"),
        [""; 0]
    );
    assert_eq!(lost("a a.example:s:./missing\n"), ["a"]);
    assert_eq!(lost("b b.example:s:./b\n"), [""; 0]);
    keys.write("rsa", b"", 0o600);
    assert_eq!(lost("a a.example:s:./rsa\n"), ["a"]);
}
