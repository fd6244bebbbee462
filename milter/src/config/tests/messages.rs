//! What is said about configurations.

use dkim_core::engine::engine_by_name;

use super::{Outcome, load, load_with};
use crate::config::*;
use crate::tables::test_dir::TestDir;

#[test]
fn mistakes_are_told_with_place_and_remedy() {
    let dir = TestDir::new("config");
    dir.write("KT", "k1 a.example:s:/k\n");
    dir.write("bad", "*@a.example\n");
    for (content, wanted) in [
        (
            "Canonicalizaton relaxed",
            &["c:1: there is no option \"Canonicalizaton\"; did you mean Canonicalization?"][..],
        ),
        ("Elephant 1", &["c:1: there is no option \"Elephant\""]),
        ("Mode", &["c:1: Mode has no value"]),
        ("Mode x", &["c:1: Mode: s, v or sv wanted, not \"x\""]),
        (
            "SyslogSuccess maybe",
            &["c:1: SyslogSuccess: yes or no wanted, not \"maybe\""],
        ),
        (
            "KeyFile k\nDomain a.example",
            &["c:1: KeyFile needs Selector, which is not set"],
        ),
        (
            "Selector s",
            &[
                "c:1: Selector needs Domain, which is not set",
                "c:1: Selector needs KeyFile, which is not set",
            ],
        ),
        (
            "Domain a.example",
            &[
                "c:1: Domain needs Selector, which is not set",
                "c:1: Domain needs KeyFile, which is not set",
            ],
        ),
        (
            "Domain a.example\nSelector \"s\"\nKeyFile k",
            &["c:2: Selector: \"\"s\"\" is not a selector, which is of the form label[.label...]"],
        ),
        (
            "KeyTable file:KT",
            &["c:1: KeyTable needs SigningTable, which is not set"],
        ),
        (
            "Socket local:/run/s\nStatusSocket local:/run//s",
            &[
                "c:2: StatusSocket: local:/run//s is taken by the Socket of c:1, where MTAs connect; name another port or path",
            ],
        ),
        (
            "Socket inet:1@localhost\nStatusSocket inet:1@127.0.0.1",
            &[
                "c:2: StatusSocket: inet:1@127.0.0.1 is taken by the Socket of c:1, where MTAs connect; name another port or path",
            ],
        ),
        (
            "Pkcs11Module /m.so\nPkcs11Verify pkcs11:token=t;object=k",
            &[
                "c:2: Pkcs11Verify: attribute object is for a key that signs, and this URI names a token that verifies: leave it out",
            ],
        ),
        (
            "Pkcs11Digest pkcs11:token=t?module-path=/m.so&x-mechanism=rsa-pkcs",
            &[
                "c:1: Pkcs11Digest: attribute x-mechanism is for a key that signs, and this URI names a token that hashes: leave it out",
            ],
        ),
        (
            "SigningTable a.example=k1",
            &["c:1: SigningTable needs KeyTable, which is not set"],
        ),
        (
            "KeyTable file:KT\nSigningTable refile:bad",
            &[
                "bad:1: SigningTable: \"*@a.example\" has no key name; wanted: address, blanks, key name[:identity]",
            ],
        ),
        (
            "KeyTable ./KT\nSigningTable a.example=k",
            &[
                "c:1: KeyTable: a relative path needs its type before it: \"file:./KT\" or \"refile:./KT\"",
            ],
        ),
        (
            "Mode s",
            &[
                "c:1: Mode s has nothing to sign with: set KeyTable and SigningTable, or Domain, Selector and KeyFile",
            ],
        ),
        (
            "SignatureAlgorithm rsa-sha1",
            &[
                "c:1: SignatureAlgorithm: rsa-sha1 must not be used to sign (RFC 8301 section 3.1); leave the option out, and each key decides",
            ],
        ),
        (
            "MaximumHeaders 0",
            &[
                "c:1: MaximumHeaders: 0, which would be no limit, is not supported; a number from 1024 to 16777216 wanted",
            ],
        ),
        (
            "SetupPolicyScript /x.lua",
            &[
                "c:1: SetupPolicyScript of OpenDKIM is not supported: scripts are not supported; to do without it, delete the line",
            ],
        ),
        (
            "RequiredHeaders yes",
            &[
                "c:1: RequiredHeaders of OpenDKIM is not supported: checks of RFC 5322's field counts are the MTA's; several From fields never pass; to do without it, delete the line",
            ],
        ),
        (
            "InternalHosts 10.0.0.0/8, 192.168.1",
            &[
                "c:1: InternalHosts: \"192.168.1\" is not an IP address and cannot be a host name; write all four numbers, or a network such as 192.168.1.0/24",
            ],
        ),
        (
            "SignHeaders From,+Cc",
            &[
                "c:1: SignHeaders: \"+Cc\" changes the default list, which must then be named by the element \"*\"",
            ],
        ),
        (
            "OversignHeaders From To",
            &["c:1: OversignHeaders: \"From To\" is not the name of a header field"],
        ),
        (
            "SignHeaders refile:KT",
            &[
                "c:1: SignHeaders: \"refile:\" cannot be used here, only \"file:\" or a list: these entries are no patterns",
            ],
        ),
        (
            "Domain a.example\nSelector s\nKeyFile pkcs11:objcet=x",
            &["c:3: KeyFile: attribute \"objcet\" is not known; did you mean object?"],
        ),
        (
            "MTA\nUMask 9\nNope 1",
            &[
                "c:1: MTA has no value",
                "c:3: there is no option \"Nope\"",
                "c:2: UMask: an octal number from 000 to 777 wanted, not \"9\"",
            ],
        ),
    ] {
        let outcome = load(&dir, content);
        assert_eq!(outcome.errors, wanted, "{content}");
        assert!(outcome.config.is_none());
    }
}

/// Which of the two it is depends on the processor; the list of engines tells.
#[test]
fn an_engine_that_the_processor_cannot_run_is_refused_and_not_replaced() {
    let dir = TestDir::new("config");
    let outcome = load(&dir, "Mode v\nEngine aws-lc-ifma");
    match engine_by_name("aws-lc-ifma") {
        Some(_) => assert_eq!(outcome.config.unwrap().engine, Some("aws-lc-ifma")),
        None => assert_eq!(
            outcome.errors,
            [
                "c:2: Engine: this processor has not the instructions that aws-lc-ifma needs (AVX-512 IFMA); leave the option out, \
              which takes the fastest engine there is, or say aws-lc"
            ]
        ),
    }
    assert_eq!(
        load(&dir, "Mode v\nEngine aws-lc-ifam").errors,
        [
            "c:2: Engine: aws-lc-ifma, aws-lc or rustcrypto wanted, not \"aws-lc-ifam\"; did you mean aws-lc-ifma?"
        ]
    );
}

#[test]
fn oddities_are_warned_of_and_the_configuration_is_used() {
    let dir = TestDir::new("config");
    dir.write("KT", "k1 a.example:s:/k\n");
    dir.write("ST", "*@a.example k1\n");
    let key = "Domain a.example\nSelector s\nKeyFile /k\n";
    let unsigned = "there is nothing to sign with, so mail is only verified: set KeyTable and SigningTable, or Domain, Selector \
                    and KeyFile, or say Mode v";
    for (content, wanted) in [
        (
            "Mode s\nMode v".to_owned(),
            &["c:2: Mode is set already at c:1; this line counts"][..],
        ),
        ("Mode sv".to_owned(), &[unsigned]),
        (
            format!("Mode s\n{key}Pkcs11Verify pkcs11:token=x?module-path=/m"),
            &["c:5: Pkcs11Verify has no effect: Mode s verifies nothing"],
        ),
        (
            format!(
                "Mode s\n{key}SkipAlreadySigned yes\nPkcs11Verify pkcs11:token=x?module-path=/m"
            ),
            &[],
        ),
        (
            "Mode v\nPkcs11Fallback software".to_owned(),
            &["c:2: Pkcs11Fallback has no effect: there is neither Pkcs11Verify nor Pkcs11Digest"],
        ),
        (
            "Mode v\nTrustAnchorFile /etc/root.key".to_owned(),
            &[
                "c:2: TrustAnchorFile has no effect: DNSSEC is left to the resolver: let Nameservers name one that validates",
            ],
        ),
        (
            "Mode v\nAutoRestart yes\nRequiredHeaders no".to_owned(),
            &[
                "c:2: AutoRestart has no effect: use Restart= of the systemd unit",
                "c:3: RequiredHeaders has no effect: checks of RFC 5322's field counts are the MTA's; several From fields never pass",
            ],
        ),
        (
            "Mode v\nKeyFile /k".to_owned(),
            &["c:2: KeyFile has no effect: Mode v signs nothing"],
        ),
        (
            "Mode v\nSubDomains yes".to_owned(),
            &["c:2: SubDomains has no effect: Mode v signs nothing"],
        ),
        (
            "Mode v\nSubDomains no\nMultipleSignatures no".to_owned(),
            &[],
        ),
        (
            "SubDomains yes".to_owned(),
            &[
                "c:1: SubDomains has no effect: there is no Domain",
                unsigned,
            ],
        ),
        (
            format!("{key}MultipleSignatures yes"),
            &["c:4: MultipleSignatures has no effect: there is no SigningTable"],
        ),
        (
            format!("{key}InternalHosts 127.0.0.1, a.example"),
            &[
                "c:4: InternalHosts: \"a.example\" is a domain that is signed for, but here it means the client host of that name; the \
               list is of hosts and networks, not of mail domains",
            ],
        ),
        (
            "KeyTable file:KT\nSigningTable refile:ST\nInternalHosts a.example".to_owned(),
            &[
                "c:3: InternalHosts: \"a.example\" is a domain that is signed for, but here it means the client host of that name; the \
               list is of hosts and networks, not of mail domains",
            ],
        ),
        (
            format!("{key}OversignHeaders From,Cc\nSignHeaders From"),
            &["c:4: OversignHeaders: Cc is signed, although SignHeaders does not have it"],
        ),
    ] {
        let outcome = load(&dir, &content);
        assert_eq!(outcome.errors, [""; 0], "{content}");
        assert_eq!(outcome.warnings, wanted, "{content}");
    }
}

#[test]
fn what_is_not_set_is_missed_only_if_nobody_tried_to_set_it() {
    let dir = TestDir::new("config");
    let no_socket = "no Socket is set, here or with -p: only sockets that the service manager hands over are listened on";
    for (content, wanted) in [
        ("Mode v", &[no_socket][..]),
        ("Mode v\nSocket relative.sock", &[]),
        ("Mode v\nSocket /s", &[]),
        ("Mode sv\n\0", &[]),
        ("Include not-there", &[]),
    ] {
        let outcome = load_with(&dir, content, &Overrides::default());
        assert_eq!(outcome.warnings, wanted, "{content:?}");
    }
}

#[test]
fn others_reach_a_socket_only_by_permission() {
    let dir = TestDir::new("config");
    let listen = |content: &str| {
        let content = format!("Mode v\nSyslog yes\n{content}");
        let Outcome {
            config,
            errors,
            warnings,
        } = load_with(&dir, &content, &Overrides::default());
        let sockets: Vec<String> = config
            .iter()
            .flat_map(|config| &config.service.listeners)
            .map(|listener| format!("{} {}", listener.origin, listener.address))
            .collect();
        (sockets.join(", "), errors.join(", "), warnings.join(", "))
    };
    let (sockets, errors, warnings) =
        listen("Socket local:/a\nSocket inet:1@localhost\nSocket inet6:2@[::1]");
    assert_eq!(
        sockets,
        "c:3 local:/a, c:4 inet:1@localhost, c:5 inet6:2@[::1]"
    );
    assert_eq!((&*errors, &*warnings), ("", ""));
    for reachable in [
        "inet:1@0.0.0.0",
        "inet:1@10.0.0.1",
        "inet6:1@[::]",
        "inet:1@mail.example",
    ] {
        let (_, errors, _) = listen(&format!("Socket {reachable}"));
        let wanted = match reachable {
            "inet:1@mail.example" => "c:3: Socket: mail.example is not looked up before the start, so others than this host \
                might reach inet:1@mail.example (or the name is unknown), and the milter protocol has no auth"
                .to_owned(),
            _ => format!(
                "c:3: Socket: others than this host can reach {reachable}, and the milter protocol has no auth"
            ),
        };
        assert!(errors.starts_with(&wanted), "{errors}");
        let (sockets, errors, warnings) =
            listen(&format!("Socket {reachable}\nListenAnywhere yes"));
        assert_eq!((&*sockets, &*errors), (&*format!("c:3 {reachable}"), ""));
        assert!(
            warnings.contains("a firewall must keep them out"),
            "{warnings}"
        );
    }
    let (sockets, _, warnings) = listen("Socket inet:1");
    assert_eq!(sockets, "c:3 inet:1@localhost");
    assert!(
        warnings.contains("a port without a host is open to this host only, as inet:1@localhost"),
        "{warnings}"
    );
    let (sockets, ..) = listen("Socket inet:1\nListenAnywhere yes");
    assert_eq!(sockets, "c:3 inet:1@0.0.0.0");
    let (sockets, _, warnings) = listen("Socket /a\nSocket unix:/a");
    assert_eq!(
        (&*sockets, &*warnings),
        (
            "c:3 local:/a",
            "c:4: Socket: local:/a is listened on already, by c:3"
        )
    );
}

#[test]
fn the_status_is_told_to_this_host_unless_the_configuration_says_otherwise() {
    let dir = TestDir::new("config");
    let listen = |value: &str| {
        let outcome = load(&dir, &format!("ListenAnywhere yes\nStatusSocket {value}"));
        let status = outcome.config.and_then(|config| config.service.status);
        let address = status.map(|status| status.address.to_string());
        (
            address,
            outcome.errors.join(", "),
            outcome
                .warnings
                .iter()
                .find(|warning| warning.contains("StatusSocket"))
                .cloned(),
        )
    };
    for (value, wanted) in [
        ("inet:1", "inet:1@localhost"),
        ("inet6:1", "inet6:1@localhost"),
        ("inet:1@127.0.0.1", "inet:1@127.0.0.1"),
        ("local:/run/status", "local:/run/status"),
    ] {
        let wanted = (Some(wanted.to_owned()), String::new(), None);
        assert_eq!(listen(value), wanted);
    }
    let (address, errors, warning) = listen("inet:1@0.0.0.0");
    assert_eq!(
        (address.unwrap(), errors),
        ("inet:1@0.0.0.0".into(), String::new())
    );
    let warning = warning.unwrap();
    let wanted = "c:2: StatusSocket: others than this host may reach inet:1@0.0.0.0, and read";
    assert!(warning.starts_with(wanted), "{warning}");
    let (_, errors, _) = listen("inet:http");
    assert_eq!(
        errors,
        "c:2: StatusSocket: port \"http\" is not a number from 0 to 65535"
    );
    assert!(load(&dir, "").config.unwrap().service.status.is_none());
}

#[test]
fn where_the_status_is_told_is_found_whatever_else_is_wrong() {
    let dir = TestDir::new("config");
    let path = dir.path("c");
    let find = |content: &str, set: &[&str]| {
        dir.write("c", content);
        let overrides = Overrides {
            set: set.iter().map(ToString::to_string).collect(),
            ..Overrides::default()
        };
        let found = status_socket(Some(&path), &overrides);
        found
            .map(|address| address.map(|address| address.to_string()))
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let wanted = Ok(Some("inet:1@localhost".to_owned()));
    assert_eq!(
        find("Nonsense\nStatusSocket inet:1\nKeyTable file:/none", &[]),
        wanted
    );
    assert_eq!(find("", &["StatusSocket=inet:1"]), wanted);
    assert_eq!(
        find("StatusSocket inet:2", &["StatusSocket=inet:1"]),
        wanted
    );
    assert_eq!(find("Nonsense", &[]), Ok(None));
    let errors = find("StatusSocket x", &[]).unwrap_err();
    assert!(
        errors[0].contains("c:1: StatusSocket: \"x\" is not a socket"),
        "{errors:?}"
    );
    let errors = find("Include /nowhere/c", &[]).unwrap_err();
    assert!(errors[0].contains("/nowhere/c"), "{errors:?}");
}

#[test]
fn errors_are_bounded_in_number_and_length() {
    let dir = TestDir::new("config");
    let outcome = load(&dir, &"nonsense here\n".repeat(10_000));
    assert_eq!(
        (
            outcome.errors.len(),
            outcome.errors.last().unwrap().as_str()
        ),
        (201, "and 9800 more errors")
    );
    dir.write("KT", "nonsense\n".repeat(10_000));
    let outcome = load(&dir, "KeyTable file:KT\nSigningTable a.example=k");
    assert_eq!(
        (
            outcome.errors.len(),
            outcome.errors.last().unwrap().as_str()
        ),
        (21, "c:1: KeyTable: and 9980 more errors in this data set")
    );
    let outcome = load(
        &dir,
        &format!(
            "{0} 1\nMode {0}\nSocket {0}\nMTA={0}\n{0}=1",
            "x".repeat(60_000)
        ),
    );
    assert!(
        outcome.errors.iter().all(|error| error.len() < 400),
        "{:?}",
        outcome.errors
    );
    assert_eq!(outcome.errors.len(), 5);
}

#[test]
fn a_second_entry_that_stands_in_for_the_first_is_not_warned_of() {
    let hidden = |options: &str, away: &str, first: &str| {
        let dir = TestDir::new("config");
        dir.write(
            "KT",
            format!("token a.example:s:pkcs11:object=k{away}\nfile a.example:t:/k.pem\n"),
        );
        let second = if first == "token" { "file" } else { "token" };
        dir.write("ST", format!("*@a.example {first}\n*@a.example {second}\n"));
        let content =
            format!("KeyTable file:KT\nSigningTable refile:ST\nPkcs11Module /m.so\n{options}");
        let outcome = load(&dir, &content);
        assert_eq!(outcome.errors, [""; 0]);
        let warnings = outcome.warnings.iter();
        warnings
            .filter(|told| told.contains("stands already at"))
            .count()
    };
    for (options, away, first, wanted) in [
        ("", "", "token", 1),
        ("", "?x-on-token-away=next", "token", 0),
        ("On-TokenAway next", "", "token", 0),
        ("On-TokenAway next", "?x-on-token-away=accept", "token", 1),
        ("On-TokenAway next", "", "file", 1),
        ("CheckKeyRecords hold", "", "file", 0),
        ("CheckKeyRecords warn", "", "file", 1),
    ] {
        assert_eq!(
            hidden(options, away, first),
            wanted,
            "{options} {away} {first}"
        );
    }
}

#[test]
fn faults_of_arguments_alone_are_told_from_those_of_the_file() {
    for (content, set, sockets, wanted) in [
        ("", vec!["Nonsense=1"], vec![], true),
        ("", vec!["Nonsense"], vec!["inet:x"], true),
        ("Nonsense 1", vec!["Nonsense=1"], vec![], false),
        ("Nonsense 1", vec![], vec![], false),
    ] {
        let dir = TestDir::new("config");
        dir.write("c", content);
        let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
        let overrides = Overrides {
            set: owned(set),
            sockets: owned(sockets),
        };
        let refused =
            super::super::build::load_in(dir.root(), Some("c".as_ref()), &overrides).unwrap_err();
        assert_eq!(refused.is_of_command_line(), wanted, "{:?}", refused.errors);
    }
}
