//! Tokens that verify and hash: as every engine does, with an answer whatever happens, and apart from those that sign.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use dkim_core::engine::conformance::verifying_conformance;
use dkim_core::engine::{
    BadSignature, Engine, EngineError, KeyType, PrivateKey, PublicKey, SigningKey, VerifyingKey,
    default_engine, engine_by_name, signing_key,
};
use fake_token::FakeToken;
use pkcs11_engine::{Fault, Level, Reference, TokenDigest, TokenVerifier, Tokens};
use sha2::{Digest, Sha256};

use crate::conformance::InNss;
use crate::recovery::openssl_key;
use crate::rig::{self, KEY, Place, Rig, in_both, reference, settings, sign, wait_until};
use crate::softhsm::SoftHsm;

const LONG: Duration = Duration::from_secs(60);
const TOKEN: &str = "pkcs11:token=fake";

#[test]
fn softhsm_verifies_as_every_engine_does() {
    let hsm = SoftHsm::empty();
    hsm.init_token("dkim");
    for uri in [
        "pkcs11:token=dkim",
        "pkcs11:token=dkim?x-mechanism=rsa-pkcs",
    ] {
        let engine = rig::Engine::new(hsm.settings(&[]));
        let reference = reference(uri, crate::softhsm::MODULE.as_ref(), None);
        conforms(&engine.tokens, &reference, None);
        assert_eq!(engine.told(Level::Error), Vec::<String>::new());
        assert!(engine.tokens.shut_down(LONG));
    }
}

#[test]
fn nss_verifies_as_every_engine_does() {
    // It has no Ed25519, which SoftHSM takes.
    let hsm = SoftHsm::empty();
    hsm.init_token("dkim");
    let other = rig::Engine::new(hsm.settings(&[]));
    let ed25519 = reference("pkcs11:token=dkim", crate::softhsm::MODULE.as_ref(), None);
    let ed25519 = other.tokens.verifier(&ed25519).unwrap();
    let nss = InNss::new();
    let engine = rig::Engine::new(nss.settings());
    let uri = "pkcs11:token=NSS%20Generic%20Crypto%20Services";
    conforms(
        &engine.tokens,
        &reference(uri, nss.module(), None),
        Some(ed25519),
    );
    assert!(engine.tokens.shut_down(LONG));
    assert!(other.tokens.shut_down(LONG));
}

fn conforms(tokens: &Tokens, reference: &Reference, ed25519: Option<TokenVerifier>) {
    let verifier = tokens.verifier(reference).unwrap();
    verifier.wait(LONG).unwrap();
    let engine = OnToken {
        verifier,
        ed25519,
        unanswered: Arc::default(),
    };
    verifying_conformance(&engine);
    // A token that answers nothing verifies nothing, and would conform.
    assert_eq!(engine.unanswered.load(Ordering::Relaxed), 0);
}

/// Verifies on tokens, without software for what they do not answer.
#[derive(Debug)]
struct OnToken {
    verifier: TokenVerifier,
    ed25519: Option<TokenVerifier>,
    unanswered: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct KeyOnToken {
    verifier: TokenVerifier,
    key: PublicKey,
    unanswered: Arc<AtomicUsize>,
}

impl Engine for OnToken {
    fn name(&self) -> &'static str {
        "token"
    }

    fn signing_key(&self, _: &PrivateKey) -> Result<Box<dyn SigningKey>, EngineError> {
        unreachable!("it is for verifying")
    }

    fn verifying_key(&self, key: &PublicKey) -> Result<Box<dyn VerifyingKey>, EngineError> {
        // What no engine takes goes to no token.
        default_engine().verifying_key(key)?;
        let other = self
            .ed25519
            .as_ref()
            .filter(|_| key.key_type() == KeyType::Ed25519);
        Ok(Box::new(KeyOnToken {
            verifier: other.unwrap_or(&self.verifier).clone(),
            key: key.clone(),
            unanswered: Arc::clone(&self.unanswered),
        }))
    }
}

impl VerifyingKey for KeyOnToken {
    fn verify(&self, octets: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        match ask(&self.verifier, &self.key, octets, signature) {
            Ok(true) => Ok(()),
            Ok(false) => Err(BadSignature),
            Err(fault) => {
                eprintln!("{fault}");
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                Err(BadSignature)
            }
        }
    }
}

fn ask(
    verifier: &TokenVerifier,
    key: &PublicKey,
    octets: &[u8],
    signature: &[u8],
) -> Result<bool, Fault> {
    let (sender, receiver) = mpsc::channel();
    verifier.submit(key, octets, signature, LONG, move |answer| {
        let _ = sender.send(answer);
    });
    receiver.recv_timeout(LONG).expect("it ends")
}

/// A key of so many bits, and a signature of it over `octets`, made in software.
fn signed(bits: u32) -> (PublicKey, Vec<u8>) {
    let pem = openssl_key(bits);
    let private = PrivateKey::from_octets(pem.as_bytes()).unwrap();
    // Which signs with short keys, too.
    let engine = engine_by_name("rustcrypto").unwrap();
    let key = engine.signing_key(&private).unwrap();
    (key.public_key().clone(), key.sign(b"octets").unwrap())
}

/// A verifier of the fake token, without a PIN, that is ready.
fn verifier(rig: &Rig) -> TokenVerifier {
    let verifier = rig.tokens().verifier(&open_to_all(rig, TOKEN)).unwrap();
    verifier.wait(LONG).unwrap();
    verifier
}

fn open_to_all(rig: &Rig, uri: &str) -> Reference {
    reference(uri, &rig.fake.module(), None)
}

fn step(digest: &mut TokenDigest, octets: &[u8], is_last: bool) -> Result<Vec<u8>, Fault> {
    let (sender, receiver) = mpsc::channel();
    digest.feed(octets.to_vec(), is_last, LONG, move |made| {
        let _ = sender.send(made);
    });
    receiver.recv_timeout(LONG).expect("it ends")
}

#[test]
fn good_is_good_and_bad_is_bad_without_a_login_and_all_sessions_are_given_back() {
    in_both(|place| {
        let rig = Rig::new(place);
        let verifier = verifier(&rig);
        let (key, good) = signed(2048);
        for _ in 0..20 {
            assert_eq!(ask(&verifier, &key, b"octets", &good), Ok(true));
            assert_eq!(ask(&verifier, &key, b"other", &good), Ok(false));
            assert_eq!(ask(&verifier, &key, b"octets", b"short"), Ok(false));
        }
        assert_eq!(rig.count("C_Login"), 0);
        assert_eq!(rig.count("C_CreateObject"), rig.count("C_DestroyObject"));
        rig.end();
    });
}

#[test]
fn a_token_that_takes_everything_for_good_is_found_out_before_it_is_relied_on() {
    in_both(|place| {
        let rig = Rig::with(place, &[("C_Verify", "0x0")], |_| {});
        let verifier = rig.tokens().verifier(&open_to_all(&rig, TOKEN)).unwrap();
        let fault = verifier.wait(LONG).unwrap_err().to_string();
        assert!(
            fault.contains("takes a wrong signature for a good one"),
            "{fault}"
        );
        let (key, good) = signed(2048);
        ask(&verifier, &key, b"octets", &good).unwrap_err();
        rig.fake.unset("C_Verify");
        wait_until("that it verifies", Duration::from_secs(5), || {
            ask(&verifier, &key, b"octets", &good) == Ok(true)
        });
        rig.end();
    });
}

#[test]
fn a_hang_costs_a_verification_its_time_limit_and_no_more() {
    in_both(|place| {
        let rig = Rig::new(place);
        let verifier = verifier(&rig);
        let (key, good) = signed(2048);
        rig.fake.set("C_Verify.hang", 1);
        let began = Instant::now();
        assert_eq!(ask(&verifier, &key, b"octets", &good), Err(Fault::Late));
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1400), "{took:?}");
        rig.fake.unset("C_Verify.hang");
        wait_until("that it verifies", Duration::from_secs(5), || {
            ask(&verifier, &key, b"octets", &good) == Ok(true)
        });
        rig.end();
    });
}

#[test]
fn a_token_that_is_gone_gives_no_verdict_and_comes_back() {
    in_both(|place| {
        let rig = Rig::new(place);
        let verifier = verifier(&rig);
        let (key, good) = signed(2048);
        rig.fake.set("present", 0);
        for signature in [&good[..], &[0; 256]] {
            let fault = ask(&verifier, &key, b"octets", signature).unwrap_err();
            assert!(fault.may_pass(), "{fault}");
        }
        wait_until("the news", Duration::from_secs(5), || {
            let told = rig.engine.told(Level::Error);
            told.iter().any(|text| text.contains("cannot verify"))
        });
        assert!(verifier.fault().is_some());
        rig.fake.unset("present");
        wait_until("that it verifies", Duration::from_secs(5), || {
            ask(&verifier, &key, b"octets", &good) == Ok(true)
        });
        assert_eq!(verifier.fault(), None);
        let told = rig.engine.all_told();
        assert!(
            told.iter().any(|text| text.contains("verifies")),
            "{told:?}"
        );
        rig.end();
    });
}

#[test]
fn a_key_that_the_token_fails_on_is_no_fault_of_the_token() {
    in_both(|place| {
        let lines = [("verify_fails_bits", "1024"), ("max_key_bits", "3072")];
        let rig = Rig::with(place, &lines, |_| {});
        let verifier = verifier(&rig);
        let initialised = rig.count("C_Initialize");
        for bits in [1024, 4096] {
            let (key, good) = signed(bits);
            let fault = ask(&verifier, &key, b"octets", &good).unwrap_err();
            assert!(matches!(fault, Fault::Unfit { .. }), "{bits}: {fault}");
        }
        let pem = include_bytes!("../../../dkim-core/tests/data/keys/ed25519.pem");
        let ed25519 = signing_key(&PrivateKey::from_octets(pem).unwrap()).unwrap();
        let signature = ed25519.sign(b"octets").unwrap();
        let fault = ask(&verifier, ed25519.public_key(), b"octets", &signature).unwrap_err();
        assert!(!matches!(fault, Fault::Late), "{fault}");
        assert_eq!(verifier.fault(), None);
        let (key, good) = signed(2048);
        assert_eq!(ask(&verifier, &key, b"octets", &good), Ok(true));
        assert_eq!(rig.count("C_Initialize"), initialised);
        assert_eq!(rig.engine.told(Level::Error), Vec::<String>::new());
        rig.end();
    });
}

#[test]
fn a_call_that_fails_once_is_made_again() {
    in_both(|place| {
        let rig = Rig::new(place);
        let verifier = verifier(&rig);
        let (key, good) = signed(2048);
        for function in [
            "C_CreateObject",
            "C_VerifyInit",
            "C_Verify",
            "C_DestroyObject",
        ] {
            rig.fake.set(function, "0x30*1");
            assert_eq!(
                ask(&verifier, &key, b"octets", &good),
                Ok(true),
                "{function}"
            );
            rig.fake.unset(function);
        }
        rig.end();
    });
}

#[test]
fn what_crashes_while_it_verifies_takes_no_signature_with_it() {
    let rig = Rig::new(Place::Apart);
    let signing = rig.signing();
    let verifier = verifier(&rig);
    let (key, good) = signed(2048);
    rig.fake.set("C_Verify.crash", 1);
    ask(&verifier, &key, b"octets", &good).unwrap_err();
    let warnings = rig.engine.told(Level::Warning);
    assert!(warnings.iter().any(|text| text.contains("another one is")));
    let initialised = rig.count("C_Initialize");
    for _ in 0..20 {
        sign(&*signing, b"meanwhile").unwrap();
    }
    rig.fake.unset("C_Verify.crash");
    wait_until("that it verifies", Duration::from_secs(6), || {
        ask(&verifier, &key, b"octets", &good) == Ok(true)
    });
    assert!(initialised >= 2, "one for each process");
    rig.end();
}

#[test]
fn a_key_and_a_verifier_of_one_token_do_not_get_in_each_others_way() {
    in_both(|place| {
        let rig = Rig::new(place);
        // First nobody is logged in; then the key needs it.
        let verifier = verifier(&rig);
        let signing = rig.signing();
        let (key, good) = signed(2048);
        for _ in 0..5 {
            sign(&*signing, b"octets").unwrap();
            assert_eq!(ask(&verifier, &key, b"octets", &good), Ok(true));
        }
        // The URI of a key names a token as well.
        let by_key = rig.tokens().verifier(&open_to_all(&rig, KEY)).unwrap();
        by_key.wait(LONG).unwrap();
        assert_eq!(ask(&by_key, &key, b"octets", &good), Ok(true));
        rig.end();
    });
}

#[test]
fn digests_are_sha_256_however_the_octets_come_and_whoever_else_is_at_it() {
    in_both(|place| {
        let rig = Rig::new(place);
        let digester = rig.tokens().digester(&open_to_all(&rig, TOKEN)).unwrap();
        digester.wait(LONG).unwrap();
        let octets: Vec<u8> = (0..200_000_u32).map(|n| (n * 7) as u8).collect();
        let wanted = Sha256::digest(&octets).to_vec();
        // All at the same time, a step each.
        let sizes = [999, 65_536, 100_000, 200_000];
        let mut digests = sizes.map(|size| (digester.digest(), octets.chunks(size)));
        let mut left = digests.len();
        while left > 0 {
            left = 0;
            for (digest, chunks) in &mut digests {
                if let Some(chunk) = chunks.next() {
                    assert_eq!(step(digest, chunk, false), Ok(Vec::new()));
                    left += 1;
                }
            }
        }
        for (mut digest, _) in digests {
            assert_eq!(step(&mut digest, b"", true), Ok(wanted.clone()));
        }
        let nothing = Sha256::digest(b"").to_vec();
        assert_eq!(step(&mut digester.digest(), b"", true), Ok(nothing));
        let whole = Sha256::digest(b"abc").to_vec();
        assert_eq!(step(&mut digester.digest(), b"abc", true), Ok(whole));
        rig.end();
    });
}

#[test]
fn there_are_so_many_digests_at_once_and_those_that_are_dropped_make_room() {
    in_both(|place| {
        let rig = Rig::new(place);
        let digester = rig.tokens().digester(&open_to_all(&rig, TOKEN)).unwrap();
        digester.wait(LONG).unwrap();
        let mut begun: Vec<_> = (0..32).map(|_| digester.digest()).collect();
        for digest in &mut begun {
            step(digest, b"begun", false).unwrap();
        }
        let fault = step(&mut digester.digest(), b"one too many", false).unwrap_err();
        assert!(matches!(fault, Fault::Full { .. }), "{fault}");
        assert!(digester.fault().is_none());
        let closed = rig.count("C_CloseSession");
        drop(begun);
        wait_until("their sessions closed", Duration::from_secs(5), || {
            rig.count("C_CloseSession") >= closed + 32
        });
        let mut again: Vec<_> = (0..32).map(|_| digester.digest()).collect();
        for digest in &mut again {
            step(digest, b"begun", false).unwrap();
        }
        rig.end();
    });
}

#[test]
fn a_digest_that_is_interrupted_fails_and_the_next_one_does_not() {
    in_both(|place| {
        for (line, value) in [
            ("gone", "1"),
            ("C_DigestUpdate", "0x30*1"),
            ("C_DigestUpdate.crash", "once"),
            ("C_DigestUpdate.hang", "1"),
        ] {
            if place == Place::Here && value == "once" {
                continue;
            }
            let rig = Rig::new(place);
            let digester = rig.tokens().digester(&open_to_all(&rig, TOKEN)).unwrap();
            digester.wait(LONG).unwrap();
            let mut digest = digester.digest();
            step(&mut digest, b"begun", false).unwrap();
            rig.fake.set(line, value);
            step(&mut digest, b"and never ended", false).unwrap_err();
            step(&mut digest, b"", true).unwrap_err();
            if value == "1" && line != "gone" {
                rig.fake.unset(line);
            }
            let whole = Sha256::digest(b"abc").to_vec();
            wait_until(line, Duration::from_secs(6), || {
                step(&mut digester.digest(), b"abc", true).as_ref() == Ok(&whole)
            });
            rig.end();
        }
    });
}

#[test]
fn a_token_that_does_not_what_it_is_named_for_says_so() {
    for (mechanisms, wanted) in [
        ("sha256", "does not verify RSA of 2048 bits"),
        ("rsa-pkcs", "does not verify RSA of 2048 bits"),
    ] {
        let rig = Rig::with(Place::Apart, &[("mechanisms", mechanisms)], |_| {});
        let verifier = rig.tokens().verifier(&open_to_all(&rig, TOKEN)).unwrap();
        let fault = verifier.wait(LONG).unwrap_err().to_string();
        assert!(fault.contains(wanted), "{mechanisms}: {fault}");
        rig.end();
    }
    // Who lets the header be hashed here can use a token that does not hash.
    let rig = Rig::with(Place::Apart, &[("mechanisms", "rsa-pkcs")], |_| {});
    let uri = format!("{TOKEN}?x-mechanism=rsa-pkcs");
    let verifier = rig.tokens().verifier(&open_to_all(&rig, &uri)).unwrap();
    verifier.wait(LONG).unwrap();
    let digester = rig.tokens().digester(&open_to_all(&rig, TOKEN)).unwrap();
    let fault = digester.wait(LONG).unwrap_err().to_string();
    assert!(fault.contains("does not compute SHA-256"), "{fault}");
    let (key, good) = signed(2048);
    assert_eq!(ask(&verifier, &key, b"octets", &good), Ok(true));
    rig.end();
}

#[test]
fn what_verifies_apart_has_no_pin_and_ends_with_the_last_who_wants_it() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeToken::new(dir.path());
    let mut settings = settings(Place::Apart);
    settings.isolation = pkcs11_engine::Isolation::Process {
        program: rig::host_with(dir.path(), &[]),
    };
    let engine = rig::Engine::new(settings);
    let verifier = engine
        .tokens
        .verifier(&reference(TOKEN, &fake.module(), None))
        .unwrap();
    verifier.wait(LONG).unwrap();
    let host = rig::last_host(dir.path());
    drop(verifier);
    wait_until("the end of the process", Duration::from_secs(5), || {
        !fs::exists(format!("/proc/{host}")).unwrap()
    });
    assert_eq!(fake.calls("C_Login").len(), 0);
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert!(engine.tokens.shut_down(LONG));
}
