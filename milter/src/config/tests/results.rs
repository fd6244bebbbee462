//! What configurations come to.

use dkim_core::canonicalization::{Algorithm, Canonicalization};
use std::path::Path;
use std::time::Duration;

use dkim_core::engine::KeyType;

use super::{Outcome, QUIET, config, load, load_with};
use crate::config::*;
use crate::tables::Origin;
use crate::tables::test_dir::TestDir;

#[test]
fn without_a_word_the_defaults_hold() {
    let (config, warnings) = Config::load(None, &Overrides::default()).unwrap();
    let Config {
        logging,
        service,
        mode,
        selection,
        signing,
        verifying,
        dns,
        actions,
        engine,
        ..
    } = &config;
    assert_eq!(
        (logging.syslog, logging.successes, logging.why),
        (true, true, false)
    );
    assert_eq!(
        (logging.facility.name, logging.facility.code, &*logging.name),
        ("mail", 2, "dkim-milter")
    );
    assert_eq!(
        (
            service.listeners.len(),
            service.umask,
            &service.user,
            &service.pid_file
        ),
        (0, None, &None, &None)
    );
    assert_eq!(
        (service.background, service.maximum_connections),
        (true, 2000)
    );
    assert_eq!(service.drain_timeout, Duration::from_secs(30));
    assert_eq!(service.base_directory, std::env::current_dir().unwrap());
    assert_eq!(
        *mode,
        Mode {
            sign: true,
            verify: true
        }
    );
    for (address, internal) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("127.0.0.2", false),
        ("10.0.0.1", false),
    ] {
        let address = address.parse().ok();
        assert_eq!(
            selection.internal_hosts.contains(None, address),
            internal,
            "{address:?}"
        );
        assert!(!selection.external_ignore_list.contains(None, address));
        assert!(!selection.peer_list.contains(None, address));
    }
    assert!(selection.mta.is_empty() && selection.macro_list.rules.is_empty());
    assert!(selection.exempt_domains.is_empty() && selection.dont_sign_mail_to.is_empty());
    assert_eq!(selection.maximum_header_octets, 262_144);
    assert!(signing.signers.is_none() && !signing.skip_already_signed && signing.require_safe_keys);
    assert_eq!(signing.canonicalization, Canonicalization::RELAXED);
    assert_eq!(
        (signing.key_type, signing.lifetime, *engine),
        (None, None, None)
    );
    let fields = signing.fields.resolve(&["From", "To", "Comments"]);
    assert_eq!(
        (fields.sign.join(" "), fields.oversign.join(" ")),
        ("From To".to_owned(), "From".to_owned())
    );
    assert_eq!(verifying.authserv_id, AuthservId::OfMta);
    assert!(
        !verifying.always_add_results
            && verifying.remove_results_of.is_empty()
            && !verifying.allow_unsigned_tail
    );
    assert_eq!(
        (verifying.maximum_signatures, verifying.minimum_key_bits),
        (10, 1024)
    );
    assert_eq!(
        (verifying.clock_drift, dns.timeout),
        (Duration::from_secs(300), Duration::from_secs(5))
    );
    assert!(dns.name_servers.is_empty() && dns.test_public_keys.is_none());
    let Actions {
        no_signature,
        bad_signature,
        key_not_found,
        dns_error,
        signature_error,
        internal_error,
        security,
    } = actions;
    assert_eq!(
        [no_signature, bad_signature, key_not_found],
        [&Action::Accept; 3]
    );
    assert_eq!(
        [dns_error, internal_error, security],
        [&Action::TempFail; 3]
    );
    assert_eq!(*signature_error, Action::Reject);
    assert_eq!(config.origin("Mode"), None);
    assert_eq!(warnings, [Warning::NoSocket, Warning::NothingToSignWith]);
}

#[test]
fn values_go_where_they_belong() {
    let config = config(
        "SyslogFacility local1\nSyslogName n\nSyslogSuccess yes\nLogWhy yes\nUMask 027\nUserID u:g\nPidFile run/p\nBackground no\n\
         MaximumConnections 7\nDrainTimeout 8\nBaseDirectory /base\nMode sv\nInternalHosts 10.0.0.0/8\nMTA a\nMacroList m=v\n\
         ExternalIgnoreList 10.0.0.1\nPeerList 10.0.0.2\nExemptDomains e.example\nDontSignMailTo x@y.example\nMaximumHeaders 2048\n\
         Domain d.example\nSubDomains yes\nSelector s\nKeyFile k.pem\nSkipAlreadySigned yes\nRequireSafeKeys no\n\
         Canonicalization simple/relaxed\nSignatureAlgorithm ed25519-sha256\nSignHeaders From,To\nOmitHeaders To\n\
         OversignHeaders .\nSignatureTTL 9\nEngine RustCrypto\nAuthservID HOSTNAME\nAlwaysAddARHeader yes\nRemoveARFrom .r.example\n\
         MaximumSignaturesToVerify 4\nMinimumKeyBits 2048\nClockDrift 0\nAllowUnsignedTail yes\nNameservers 127.0.0.1:5300\n\
         DNSTimeout 6\nTestPublicKeys keys\nOn-Default discard\nOn-DNSError accept",
    );
    let logging = &config.logging;
    assert_eq!(
        (
            logging.facility.code,
            &*logging.name,
            logging.syslog,
            logging.successes,
            logging.why
        ),
        (17, "n", true, true, true)
    );
    let service = &config.service;
    assert_eq!(
        (
            service.umask,
            service.background,
            service.maximum_connections
        ),
        (Some(0o027), false, 7)
    );
    assert_eq!(
        (service.drain_timeout, service.pid_file.as_deref()),
        (Duration::from_secs(8), Some(Path::new("/base/run/p")))
    );
    let user = service.user.as_ref().unwrap();
    assert_eq!((&*user.user, user.group.as_deref()), ("u", Some("g")));
    assert_eq!(
        service.listeners[0].address,
        ListenAddress::Unix("/run/s".into())
    );
    let selection = &config.selection;
    let at = |address: &str| address.parse().ok();
    assert!(
        selection.internal_hosts.contains(None, at("10.1.1.1"))
            && !selection.internal_hosts.contains(None, at("127.0.0.1"))
    );
    assert!(
        selection
            .external_ignore_list
            .contains(None, at("10.0.0.1"))
            && selection.peer_list.contains(None, at("10.0.0.2"))
    );
    assert!(selection.mta.contains(b"a") && selection.exempt_domains.contains(b"E.example"));
    assert!(
        selection
            .macro_list
            .matches(|name| (name == "m").then_some(&b"v"[..]))
    );
    assert!(selection.dont_sign_mail_to.contains(b"X@y.example"));
    assert_eq!(selection.maximum_header_octets, 2048);
    let signing = &config.signing;
    let Some(SignerSource::Single(single)) = &signing.signers else {
        panic!("{:?}", signing.signers)
    };
    assert_eq!(
        (&*single.selector, &single.key),
        ("s", &KeyLocation::File("/base/k.pem".into()))
    );
    assert_eq!(single.signing_domain("a.d.example"), Some("d.example"));
    assert_eq!(single.signing_domain("example"), None);
    assert!(signing.skip_already_signed && !signing.require_safe_keys);
    let wanted = (Algorithm::Simple, Algorithm::Relaxed);
    assert_eq!(
        (
            signing.canonicalization.header,
            signing.canonicalization.body
        ),
        wanted
    );
    assert_eq!(
        (signing.key_type, signing.lifetime),
        (Some(KeyType::Ed25519), Some(Duration::from_secs(9)))
    );
    let fields = signing.fields.resolve(&["From", "Subject"]);
    assert_eq!(
        (fields.sign.join(" "), fields.oversign.len()),
        ("From".to_owned(), 0)
    );
    assert_eq!(config.engine, Some("rustcrypto"));
    let verifying = &config.verifying;
    assert_eq!(
        (&verifying.authserv_id, verifying.always_add_results),
        (&AuthservId::OfHost, true)
    );
    assert!(verifying.remove_results_of.contains(b"a.r.example") && verifying.allow_unsigned_tail);
    assert_eq!(
        (
            verifying.maximum_signatures,
            verifying.minimum_key_bits,
            verifying.clock_drift
        ),
        (4, 2048, Duration::ZERO)
    );
    assert_eq!(config.dns.name_servers, ["127.0.0.1:5300".parse().unwrap()]);
    assert_eq!(
        (config.dns.timeout, config.dns.test_public_keys.as_deref()),
        (Duration::from_secs(6), Some(Path::new("/base/keys")))
    );
    assert_eq!(
        (config.actions.dns_error, config.actions.no_signature),
        (Action::Accept, Action::Discard)
    );
    assert_eq!(
        (config.actions.signature_error, config.actions.security),
        (Action::Discard, Action::Discard)
    );
    assert_eq!(config.origin("UMask").unwrap().to_string(), "c:5");
}

#[test]
fn tables_are_opened_from_the_base_directory() {
    let dir = TestDir::new("config");
    std::fs::create_dir(dir.path("sub")).unwrap();
    dir.write("sub/KT", "k1 %:s:./keys/%.pem\n");
    dir.write("sub/ST", "*@a.example k1:@%\n*@b.example k2\n");
    let outcome = load(
        &dir,
        "BaseDirectory sub\nKeyTable refile:KT\nSigningTable refile:./ST\nMultipleSignatures yes\nDomain d.example",
    );
    assert_eq!(
        outcome.warnings,
        [
            "c:5: Domain has no effect: KeyTable and SigningTable say what is signed",
            "./ST:2: SigningTable: key \"k2\" is not in the KeyTable: mail this entry matches cannot be signed",
        ]
    );
    let config = outcome.config.unwrap();
    let Some(SignerSource::Tables { signing, keys }) = &config.signing.signers else {
        panic!("{:?}", config.signing.signers)
    };
    let found = signing.look_up(b"ann", "a.example");
    assert_eq!(
        (&*found[0].key_name, found[0].identity.as_deref()),
        ("k1", Some("@a.example"))
    );
    let choice = keys.look_up("k1").unwrap().for_author("a.example").unwrap();
    let crate::tables::SigningKeySource::File(path) = choice.source else {
        panic!("a file")
    };
    assert_eq!(path, dir.path("sub/keys/a.example.pem"));
}

#[test]
fn a_specific_action_counts_for_more_than_the_default_one() {
    for content in [
        "On-Default reject\nOn-BadSignature accept",
        "On-BadSignature accept\nOn-Default reject",
    ] {
        let actions = config(content).actions;
        assert_eq!(
            (
                actions.bad_signature,
                actions.no_signature,
                actions.dns_error
            ),
            (Action::Accept, Action::Reject, Action::Reject)
        );
    }
}

#[test]
fn the_command_line_counts_for_more_than_the_file() {
    let dir = TestDir::new("config");
    let overrides = |set: &[&str], sockets: &[&str]| Overrides {
        set: set.iter().map(|&text| text.to_owned()).collect(),
        sockets: sockets.iter().map(|&text| text.to_owned()).collect(),
    };
    let given = overrides(
        &["mode=v", "DNSTimeout = 9", "Nameservers=[::1]:53"],
        &["inet:9@localhost", "/x"],
    );
    let outcome = load_with(&dir, "Mode s\nDNSTimeout 0\nSocket /y\nSyslog yes", &given);
    let config = outcome.config.unwrap();
    assert_eq!(outcome.warnings, [""; 0]);
    assert_eq!(
        (config.mode.sign, config.dns.timeout),
        (false, Duration::from_secs(9))
    );
    let listeners: Vec<String> = config
        .service
        .listeners
        .iter()
        .map(|listener| listener.origin.to_string())
        .collect();
    assert_eq!(
        listeners,
        ["command line (-p inet:9@localhost)", "command line (-p /x)"]
    );
    assert_eq!(
        config.origin("Mode"),
        Some(&Origin::CommandLine("--set mode=v".into()))
    );
    for (set, wanted) in [
        (
            "Mode",
            "command line (--set Mode): wanted is --set Name=value",
        ),
        ("Mode=", "command line (--set Mode=): Mode has no value"),
        (
            "Moed=v",
            "command line (--set Moed=v): there is no option \"Moed\"; did you mean Mode?",
        ),
        (
            "Include=/x",
            "command line (--set Include=/x): Include can only stand in a file",
        ),
    ] {
        let outcome = load_with(&dir, QUIET, &overrides(&[set], &[]));
        assert_eq!(outcome.errors, [wanted]);
    }
}

#[test]
fn a_verifying_file_of_opendkim_works_as_it_is() {
    let dir = TestDir::new("config");
    let content = "Syslog\t\t\tyes\nSyslogSuccess\t\tyes\n#LogWhy\t\t\tno\nCanonicalization\trelaxed/simple\nOversignHeaders\t\tFrom\n\
                   UserID\t\t\topendkim\nUMask\t\t\t007\nSocket\t\t\tlocal:/run/opendkim/opendkim.sock\n\
                   PidFile\t\t\t/run/opendkim/opendkim.pid\nTrustAnchorFile\t\t/usr/share/dns/root.key\n";
    let Outcome {
        config,
        errors,
        warnings,
    } = load_with(&dir, content, &Overrides::default());
    assert_eq!(errors, [""; 0]);
    assert_eq!(warnings.len(), 2, "no keys, no DNSSEC: {warnings:?}");
    assert_eq!(
        config.unwrap().signing.canonicalization.body,
        Algorithm::Simple
    );
}
