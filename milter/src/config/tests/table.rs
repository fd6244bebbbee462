//! The table of options against its own word, and against any word.

use std::path::Path;

use proptest::prelude::*;

use super::{Outcome, load, load_with};
use crate::config::build::load_in;
use crate::config::options::{self, Preset};
use crate::config::*;
use crate::tables::test_dir::TestDir;

#[test]
fn defaults_and_examples_in_the_table_are_values() {
    let dir = TestDir::new("config");
    for spec in options::all().filter(|spec| spec.name != options::INCLUDE.name) {
        let default = match spec.default {
            Preset::Value(value) => value,
            Preset::Unset(_) => spec.example,
        };
        for value in [default, spec.example] {
            let outcome = load_with(
                &dir,
                &format!("{} {value}\n", spec.name),
                &Overrides::default(),
            );
            let at_its_line = outcome
                .errors
                .iter()
                .filter(|error| error.starts_with("c:1:"));
            let unexpected: Vec<_> = at_its_line
                .filter(|error| !error.contains(" needs ") && !error.contains("cannot read /etc/"))
                .collect();
            assert!(unexpected.is_empty(), "{unexpected:?}");
        }
    }
}

#[test]
fn the_sample_is_a_configuration() {
    let dir = TestDir::new("config");
    let Outcome {
        config,
        errors,
        warnings,
    } = load_with(&dir, &sample(), &Overrides::default());
    assert_eq!(errors, [""; 0]);
    assert_eq!(
        warnings.len(),
        1,
        "only that there is nothing to sign with: {warnings:?}"
    );
    let config = config.unwrap();
    assert!(config.logging.syslog && config.logging.successes);
    assert_eq!(
        (config.service.umask, config.service.listeners.len()),
        (Some(0o007), 1)
    );
}

#[test]
fn every_name_stands_once() {
    let names = || {
        options::all()
            .map(|spec| spec.name)
            .chain(options::NOT_CARRIED.iter().map(|option| option.name))
    };
    let mut seen = std::collections::BTreeSet::new();
    for name in names() {
        assert!(seen.insert(name.to_ascii_lowercase()), "{name}");
    }
}

#[test]
fn options_of_opendkim_are_known() {
    let dir = TestDir::new("config");
    let names = "AllowSHA1Only AlwaysAddARHeader AuthservID AuthservIDWithJobId AutoRestart \
                 AutoRestartCount AutoRestartRate Background BaseDirectory BodyLengthDB BogusKey \
                 Canonicalization ChangeRootDirectory ClockDrift Diagnostics DNSTimeout Domain \
                 DontSignMailTo EnableCoredumps ExemptDomains ExternalIgnoreList FixCRLF \
                 IgnoreMalformedMail InternalHosts KeepTemporaryFiles KeyFile KeyTable LDAPAuthMechanism \
                 LogResults LogWhy MacroList MaximumHeaders MaximumSignaturesToVerify MaximumSignedBytes \
                 MilterDebug Minimum MinimumKeyBits Mode MTA MTACommand MultipleSignatures MustBeSigned \
                 Nameservers NoHeaderB OmitHeaders On-Default On-BadSignature On-DNSError \
                 On-InternalError On-KeyNotFound On-NoSignature On-Security On-SignatureError \
                 OverSignHeaders PeerList PidFile POPDBFile Quarantine QueryCache RedirectFailuresTo \
                 RemoveARAll RemoveARFrom RemoveOldSignatures ReportAddress RequiredHeaders \
                 RequireSafeKeys ResolverConfiguration Selector SenderHeaders SendReports \
                 SignatureAlgorithm SignatureTTL SignHeaders SigningTable Socket SoftStart SoftwareHeader \
                 StrictHeaders StrictTestMode SubDomains Syslog SyslogFacility SyslogName SyslogSuccess \
                 TemporaryDirectory TestDNSData TestPublicKeys TrustAnchorFile TrustSignaturesFrom UMask \
                 UserID VBR-Type WeakSyntaxChecks";
    for name in names.split(' ') {
        let outcome = load(&dir, &format!("{name} x"));
        let unknown = outcome
            .errors
            .iter()
            .find(|error| error.contains("there is no option"));
        assert_eq!(unknown, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_file_makes_it_panic(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        let dir = TestDir::new("config");
        dir.write("c", octets);
        let _ = load_in(dir.root(), Some(Path::new("c")), &Overrides::default());
    }

    #[test]
    fn no_value_makes_it_panic(
        lines in proptest::collection::vec((any::<prop::sample::Index>(), "(file:|refile:|csl:|inet:|[*!+.-])?[a-z0-9.:/@*%=,|!-]{1,20}( [a-z:%]{1,9})?"), 1..8),
    ) {
        let dir = TestDir::new("config");
        let names: Vec<&str> = options::all().map(|spec| spec.name).collect();
        let content: String = lines.iter().map(|(index, value)| format!("{} {value}\n", index.get(&names))).collect();
        dir.write("c", content);
        let _ = load_in(dir.root(), Some(Path::new("c")), &Overrides::default());
    }
}
