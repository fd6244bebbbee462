//! Which token and which key: the one that was meant, or none, and a sentence that helps.

use std::fs;
use std::time::Duration;

use pkcs11_engine::pin::PinSource;
use pkcs11_engine::{Fault, Level, Method};

use crate::recovery::openssl_key;
use crate::rig::{KEY, Place, Rig, in_both, packaged, reference, sign, write_program};
use crate::softhsm::{self, SoftHsm};

const FAKE: &str = "pkcs11:token=fake;manufacturer=fake-token;model=fault%20injector;serial=0001";

/// A key of the fake token as a URI ready to paste.
fn fake_key(label: &str, id: &str) -> String {
    format!("{FAKE};object={label};id=%{id};type=private")
}

#[test]
fn row_22_two_keys_with_one_label_are_refused_and_shown() {
    let hsm = SoftHsm::new();
    hsm.generate("rsa:2048", "dkim", "02", &[]);
    let engine = hsm.engine();
    let (_key, fault) = engine.refusal(&hsm.reference(softhsm::KEY));
    let Fault::ManyKeys { keys, .. } = &fault else {
        panic!("{fault}");
    };
    assert_eq!(keys.len(), 2);
    for (key, id) in keys
        .iter()
        .zip(["%01", "%02"])
        .chain(keys.iter().rev().zip(["%02", "%01"]))
    {
        if key.contains(id) {
            // As it stands there it names one of them.
            engine.key(&hsm.reference(key));
        }
    }
    assert!(fault.to_string().starts_with(&format!(
        "2 keys match {}; name one of them, for instance by its id: pkcs11:",
        softhsm::KEY
    )));
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_22_two_tokens_with_one_label_are_refused_and_shown() {
    let hsm = SoftHsm::new();
    hsm.init_token("dkim");
    let engine = hsm.engine();
    let (_key, fault) = engine.refusal(&hsm.reference(softhsm::KEY));
    let Fault::ManyTokens { tokens, .. } = &fault else {
        panic!("{fault}");
    };
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0], tokens[1], "told apart by their serials");
    assert!(fault.to_string().starts_with(&format!(
        "2 tokens match {}; name one of them, for instance by its serial: pkcs11:token=dkim;",
        softhsm::KEY
    )));
    let (signed, refused): (Vec<_>, Vec<_>) = tokens
        .iter()
        .map(|token| {
            engine
                .tokens
                .key(&hsm.reference(&format!("{token};object=dkim")))
                .unwrap()
        })
        .map(|key| key.wait(Duration::from_secs(10)))
        .partition(Result::is_ok);
    assert_eq!(
        (signed.len(), refused.len()),
        (1, 1),
        "one of them has the key"
    );
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_22_two_tokens_with_one_label_never_get_the_pin() {
    in_both(|place| {
        let rig = Rig::with(place, &[("second_token", "fake")], |_| {});
        let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "2 tokens match {KEY}; name one of them, for instance by its serial: {FAKE}, {}",
                FAKE.replace("0001", "0002")
            )
        );
        assert_eq!(rig.count("C_Login"), 0);
        let second = rig
            .engine
            .key(&rig.reference("pkcs11:token=fake;serial=0002"));
        let public = second.signing_key().unwrap().public_key().clone();
        assert_eq!(
            public.to_record(),
            fake_token::other_key_spki(),
            "that of the other token"
        );
        rig.end();
    });
}

#[test]
fn row_24_a_key_that_wants_its_pin_for_each_signature_signs_again_and_again() {
    in_both(|place| {
        let rig = Rig::with(place, &[("always_auth", "1")], |_| {});
        let key = rig.key();
        let facts = key.wait(Duration::ZERO).unwrap();
        assert_eq!(facts.method, Some(Method::Sha256RsaPkcsWithPin));
        let signing = key.signing_key().unwrap();
        for number in 0..10_u8 {
            sign(&*signing, &[number]).unwrap();
        }
        rig.fake.set("gone", 1);
        sign(&*signing, b"after a power cycle").unwrap();
        rig.end();
    });
}

#[test]
fn row_24_the_same_over_softhsm() {
    let hsm = SoftHsm::empty();
    hsm.init_token("dkim");
    hsm.generate("rsa:2048", "dkim", "01", &["--always-auth"]);
    let engine = hsm.engine();
    let key = engine
        .key(&hsm.reference(softhsm::KEY))
        .signing_key()
        .unwrap();
    for number in 0..10_u8 {
        sign(&*key, &[number]).unwrap();
    }
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn row_24_or_is_refused_with_a_sentence_at_once() {
    let lines = [("always_auth", "1"), ("mechanisms", "rsa-pkcs")];
    let rig = Rig::with(Place::Here, &lines, |_| {});
    let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
    assert_eq!(
        fault.to_string(),
        format!(
            "{}: the key wants its PIN for each signature (CKA_ALWAYS_AUTHENTICATE), for which the token needs \
             CKM_SHA256_RSA_PKCS, and it has not",
            fake_key("dkim", "01")
        )
    );
    rig.end();
}

#[test]
fn row_26_a_module_whose_c_get_interface_fails_is_to_be_loaded_by_the_proxy() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_GetInterface", "0x54")], |_| {});
        let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "module {}: C_GetInterface failed with CKR_FUNCTION_NOT_SUPPORTED; load it through p11-kit-proxy.so, \
                 which asks for less",
                rig.fake.module().display()
            )
        );
        rig.end();
    });
}

#[test]
fn row_30_a_label_that_is_not_there_is_never_another() {
    let rig = Rig::with(Place::Here, &[("second_token", "second")], |_| {});
    for (uri, sentence) in [
        (
            "pkcs11:token=wrong;object=dkim",
            format!(
                "no token matches pkcs11:token=wrong;object=dkim; there are {FAKE}, \
                 pkcs11:token=second;manufacturer=fake-token;model=fault%20injector;serial=0002"
            ),
        ),
        (
            "pkcs11:token=fake;object=wrong",
            format!(
                "no private key matches pkcs11:token=fake;object=wrong; the token has {}",
                fake_key("dkim", "01")
            ),
        ),
        (
            "pkcs11:token=fake;object=dkim;id=%05",
            format!(
                "no private key matches pkcs11:token=fake;object=dkim;id=%05; the token has {}",
                fake_key("dkim", "01")
            ),
        ),
    ] {
        let (key, fault) = rig.engine.refusal(&rig.reference(uri));
        assert_eq!(fault.to_string(), sentence);
        assert!(key.signing_key().is_err());
    }
    assert_eq!(rig.count("C_Sign"), 0);
    rig.end();
}

#[test]
fn what_is_no_key_to_sign_with_is_said_in_a_sentence() {
    let unfit = |reason: &str| format!("{}: {reason}", fake_key("dkim", "01"));
    for (lines, sentence) in [
        (
            &[("only", "certificate")][..],
            format!(
                "no private key matches {KEY} (there is a certificate of that name, which cannot sign); the token shows \
                 no private key"
            ),
        ),
        (
            &[("only", "public")],
            format!(
                "no private key matches {KEY} (there is a public key of that name, which cannot sign); the token shows \
                 no private key"
            ),
        ),
        (
            &[("can_sign", "0")],
            unfit("may not sign: its CKA_SIGN is false; make a key with that usage"),
        ),
        (
            &[("mechanisms", "eddsa,sha256")],
            unfit(
                "the token signs neither by CKM_RSA_PKCS nor by CKM_SHA256_RSA_PKCS with 2048 bits, or not by the one \
                 that x-mechanism asks for",
            ),
        ),
        (
            &[("mechanism_sign", "0")],
            unfit(
                "the token signs neither by CKM_RSA_PKCS nor by CKM_SHA256_RSA_PKCS with 2048 bits, or not by the one \
                 that x-mechanism asks for",
            ),
        ),
        (
            &[("max_key_bits", "1024")],
            unfit(
                "the token signs neither by CKM_RSA_PKCS nor by CKM_SHA256_RSA_PKCS with 2048 bits, or not by the one \
                 that x-mechanism asks for",
            ),
        ),
        (
            &[("wrong_public", "1")],
            format!(
                "token {FAKE}: its signature is wrong: the token is damaged, or another key has taken this one's place"
            ),
        ),
        (
            &[("absent", "C_Sign")],
            format!(
                "token {FAKE}: a call failed with CKR_FUNCTION_NOT_SUPPORTED: the module has no such function"
            ),
        ),
    ] {
        let rig = Rig::with(Place::Here, lines, |_| {});
        let key = rig.tokens().key(&rig.reference(KEY)).unwrap();
        let fault = key
            .wait(Duration::from_secs(10))
            .expect_err(&format!("{lines:?}"));
        assert_eq!(fault.to_string(), sentence, "{lines:?}");
        assert!(key.signing_key().is_err());
        rig.end();
    }
}

#[test]
fn what_is_no_module_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("text.so"), "no library\n").unwrap();
    fs::write(path("empty.so"), "").unwrap();
    // The head of a library for another processor: the machine in it is a 32-bit ARM.
    let mut arm = fs::read(fake_token::library()).unwrap();
    arm[18] = 40;
    fs::write(path("arm.so"), &arm).unwrap();
    let libc = packaged("/lib/x86_64-linux-gnu/libc.so.6", "libc6");
    for (module, sentence) in [
        (path("none.so"), "No such file or directory (os error 2)"),
        (path("text.so"), "cannot be loaded: "),
        (path("empty.so"), "cannot be loaded: "),
        (path("arm.so"), "cannot be loaded: "),
        (libc, "is no PKCS#11 module: it has no "),
        ("libsofthsm2.so".into(), "name the file by its whole path"),
    ] {
        let rig = Rig::new(Place::Apart);
        let (_key, fault) = rig.engine.refusal(&reference(KEY, &module, None));
        let begins = format!("module {}: {sentence}", module.display());
        let found = fault.to_string();
        assert!(found.starts_with(&begins), "{found}");
        assert!(
            !found.contains('\n') && found.matches(&*module.to_string_lossy()).count() <= 2,
            "{found}"
        );
        assert!(fault.may_pass(), "it may be installed");
        rig.end();
    }
}

#[test]
fn a_module_whose_function_list_fails_is_said_in_a_sentence() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_GetFunctionList", "0x5")], |_| {});
        let (_key, fault) = rig.engine.refusal(&rig.reference(KEY));
        assert_eq!(
            fault.to_string(),
            format!(
                "module {}: C_GetFunctionList failed with CKR_GENERAL_ERROR",
                rig.fake.module().display()
            )
        );
        rig.end();
    });
}

#[test]
fn a_program_that_cannot_hold_the_module_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for (program, sentence) in [
        (
            dir.path().join("none"),
            "cannot be started: No such file or directory (os error 2)".to_owned(),
        ),
        (
            write_program(&dir.path().join("false"), "#!/bin/sh\nexit 3\n"),
            "has ended with exit code 3".to_owned(),
        ),
    ] {
        let rig = Rig::with(Place::Apart, &[], |settings| {
            settings.isolation = pkcs11_engine::Isolation::Process { program };
        });
        let key = rig.engine.tokens.key(&rig.reference(KEY)).unwrap();
        let fault = key.wait(Duration::from_secs(5)).unwrap_err();
        assert_eq!(
            fault.to_string(),
            format!("the process that holds the token's module {sentence}")
        );
        // Some of the tries are over by then; they are not news.
        std::thread::sleep(Duration::from_secs(3));
        assert!(
            rig.engine.all_told().len() <= 2,
            "{:?}",
            rig.engine.all_told()
        );
        // How a program ends that holds no module is its own affair.
        drop(rig);
    }
}

#[test]
fn a_key_of_1024_bits_signs_with_a_warning_and_one_of_768_not() {
    let hsm = SoftHsm::new();
    hsm.import("dkim", &openssl_key(1024), "short", "08");
    hsm.import("dkim", &openssl_key(768), "shorter", "07");
    let engine = hsm.engine();
    let short = engine.key(&hsm.reference("pkcs11:token=dkim;object=short"));
    sign(&*short.signing_key().unwrap(), b"by a short key").unwrap();
    let notes = short.notes();
    assert!(
        notes.iter().any(|note| note
            .ends_with("RSA key of 1024 bits; 2048 should be used (RFC 8301 section 3.2)")),
        "{notes:?}"
    );
    let (_key, fault) = engine.refusal(&hsm.reference("pkcs11:token=dkim;object=shorter"));
    let sentence = fault.to_string();
    assert!(
        sentence.ends_with(
            ";object=shorter;id=%07;type=private: RSA key of 768 bits is too short: at least 1024 are needed (RFC 8301 \
             section 3.2), and 2048 should be used"
        ),
        "{sentence}"
    );
    assert!(engine.tokens.shut_down(Duration::from_secs(5)));
}

#[test]
fn a_key_that_can_be_copied_out_of_the_token_is_odd_and_signs() {
    let rig = Rig::with(Place::Here, &[("extractable", "1")], |_| {});
    let key = rig.key();
    assert_eq!(
        key.notes(),
        [format!(
            "{}: the token lets this key be copied out of it (CKA_EXTRACTABLE)",
            fake_key("dkim", "01")
        )]
    );
    sign(&*key.signing_key().unwrap(), b"signed").unwrap();
    assert_eq!(rig.engine.told(Level::Error), Vec::<String>::new());
    rig.end();
}

#[test]
fn a_token_that_hashes_itself_gives_the_same_signature() {
    let rig = Rig::new(Place::Here);
    let by_us = rig.key();
    let by_token = rig
        .engine
        .key(&rig.reference(&format!("{KEY}?x-mechanism=sha256-rsa-pkcs")));
    assert_eq!(
        by_us.wait(Duration::ZERO).unwrap().method,
        Some(Method::RsaPkcs)
    );
    assert_eq!(
        by_token.wait(Duration::ZERO).unwrap().method,
        Some(Method::Sha256RsaPkcs)
    );
    let signature = sign(&*by_us.signing_key().unwrap(), b"octets").unwrap();
    assert_eq!(
        sign(&*by_token.signing_key().unwrap(), b"octets").unwrap(),
        signature
    );
    rig.end();
    // And without being told to, where the token has nothing else.
    let rig = Rig::with(Place::Here, &[("mechanisms", "sha256-rsa-pkcs")], |_| {});
    let key = rig.key();
    assert_eq!(
        key.wait(Duration::ZERO).unwrap().method,
        Some(Method::Sha256RsaPkcs)
    );
    sign(&*key.signing_key().unwrap(), b"octets").unwrap();
    rig.end();
}

#[test]
fn lists_show_what_can_be_pasted_and_are_not_mixed_up() {
    in_both(|place| {
        let rig = Rig::with(
            place,
            &[("second_token", "second"), ("second_key", "other")],
            |_| {},
        );
        let all = rig
            .tokens()
            .list(&rig.reference("pkcs11:manufacturer=fake-token"))
            .unwrap();
        assert_eq!(all.len(), 2);
        assert!(
            all.iter()
                .all(|token| token.not_logged_in.is_some() && token.keys.is_empty())
        );
        assert_eq!(rig.count("C_Login"), 0, "the PIN is one token's");
        // Many at a time: each gets what it asked for.
        std::thread::scope(|scope| {
            for number in 0..8 {
                let rig = &rig;
                scope.spawn(move || {
                    let token = ["fake", "second"][number % 2];
                    let listed = rig
                        .tokens()
                        .list(&rig.reference(&format!("pkcs11:token={token}")))
                        .unwrap();
                    assert_eq!(listed.len(), 1);
                    assert_eq!(listed[0].facts.label, token);
                    assert_eq!(listed[0].keys.len(), [2, 1][number % 2], "{token}");
                });
            }
        });
        let listed = rig
            .tokens()
            .list(&rig.reference("pkcs11:token=fake"))
            .unwrap();
        let pin = PinSource::File(rig.dir.path().join("pin"));
        for key in &listed[0].keys {
            let pasted = rig
                .engine
                .key(&reference(&key.uri, &rig.fake.module(), Some(&pin)));
            sign(&*pasted.signing_key().unwrap(), b"pasted").unwrap();
        }
        let list = rig.reference("pkcs11:token=fake");
        let tokens = rig.tokens().clone();
        rig.end();
        assert_eq!(tokens.list(&list), Err(Fault::Stopped));
    });
}
