//! The module as a token that nothing is wrong with: what PKCS#11 says, and what real modules were seen to do.

mod common;

use std::process::Command;
use std::thread;
use std::time::Duration;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use common::*;
use cryptoki::context::Pkcs11;
use cryptoki::error::RvError;
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass};
use cryptoki::session::{SessionState, UserType};
use cryptoki::types::AuthPin;
use fake_token::{FakeToken, library};

#[test]
fn raw_rsa_signs_the_digest_info() {
    let world = World::new();
    let (session, key) = world.ready();
    let signature = sign(&session, key).unwrap();
    assert!(world.verifies(&signature));
    let hashed_there = session
        .sign(&Mechanism::Sha256RsaPkcs, key, MESSAGE)
        .unwrap();
    assert_eq!(hashed_there, signature);
    session.sign_init(&Mechanism::Sha256RsaPkcs, key).unwrap();
    for part in MESSAGE.chunks(5) {
        session.sign_update(part).unwrap();
    }
    assert_eq!(session.sign_final().unwrap(), signature);
    assert_eq!(world.token.violations(), Vec::<String>::new());
}

#[test]
fn openssl_makes_the_same_signature() {
    let world = World::new();
    let (session, key) = world.ready();
    let message = world.dir.path().join("message");
    std::fs::write(&message, MESSAGE).unwrap();
    let theirs = Command::new("openssl")
        .args(["dgst", "-sha256", "-sign"])
        .arg(world.dir.path().join("key.pem"))
        .arg(message)
        .output()
        .unwrap();
    assert_eq!(sign(&session, key).unwrap(), theirs.stdout);
}

#[test]
fn raw_rsa_takes_nothing_but_a_digest_info() {
    let world = World::new();
    let (session, key) = world.ready();
    for (data, wanted) in [
        (vec![0; 246], RvError::DataLenRange),
        (vec![0; 51], RvError::DataInvalid),
        (digest_info()[..50].to_vec(), RvError::DataInvalid),
        (digest_info()[19..].to_vec(), RvError::DataInvalid),
    ] {
        assert_eq!(rv(session.sign(&Mechanism::RsaPkcs, key, &data)), wanted);
    }
    assert_eq!(
        rv(session
            .sign_init(&Mechanism::RsaPkcs, key)
            .and_then(|()| session.sign_update(b"part"))),
        RvError::OperationNotInitialized
    );
    assert!(world.verifies(&sign(&session, key).unwrap()));
}

#[test]
fn ed25519_signs_and_shows_its_point() {
    let dir = tempfile::tempdir().unwrap();
    let pem = Command::new("openssl")
        .args(["genpkey", "-algorithm", "ed25519"])
        .output()
        .unwrap();
    let token = FakeToken::with_key(dir.path(), &String::from_utf8(pem.stdout).unwrap());
    let pkcs11 = Pkcs11::new(token.module()).unwrap();
    initialize(&pkcs11).unwrap();
    let session = pkcs11
        .open_ro_session(pkcs11.get_slots_with_token().unwrap()[0])
        .unwrap();
    log_in(&session, "1234").unwrap();
    let key = private_key(&session).unwrap();
    let mechanism = Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Pure));
    let signature = session.sign(&mechanism, key, MESSAGE).unwrap();
    // SubjectPublicKeyInfo of Ed25519 ends with the key (RFC 8410).
    let spki = token.public_key_spki();
    let public = &spki[spki.len() - 32..];
    UnparsedPublicKey::new(&ED25519, public)
        .verify(MESSAGE, &signature)
        .unwrap();
    for (value, point) in [
        ("octets", [&[4, 32], public].concat()),
        ("raw", public.to_vec()),
    ] {
        token.set("ec_point", value);
        let shown = session
            .get_attributes(key, &[AttributeType::EcPoint])
            .unwrap();
        assert_eq!(shown, [Attribute::EcPoint(point)]);
    }
    let curve = |token: &FakeToken, form: &str| {
        token.set("ec_params", form);
        session
            .get_attributes(key, &[AttributeType::EcParams])
            .unwrap()
    };
    // The identifier 1.3.101.112 (RFC 8410), and the name as PrintableString.
    let identifier = Attribute::EcParams(vec![6, 3, 0x2b, 0x65, 0x70]);
    assert_eq!(curve(&token, "oid"), [identifier]);
    assert_eq!(
        curve(&token, "name"),
        [Attribute::EcParams(b"\x13\x0cedwards25519".to_vec())]
    );
    assert_eq!(
        rv(session.sign(&Mechanism::RsaPkcs, key, &digest_info())),
        RvError::KeyTypeInconsistent
    );
}

#[test]
fn calls_need_exactly_one_initialization() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    let pkcs11 = Pkcs11::new(token.module()).unwrap();
    assert_eq!(
        rv(pkcs11.get_slots_with_token()),
        RvError::CryptokiNotInitialized
    );
    initialize(&pkcs11).unwrap();
    assert_eq!(rv(initialize(&pkcs11)), RvError::CryptokiAlreadyInitialized);
    pkcs11.clone().finalize().unwrap();
    assert_eq!(
        rv(pkcs11.clone().finalize()),
        RvError::CryptokiNotInitialized
    );
    assert_eq!(
        rv(pkcs11.get_slots_with_token()),
        RvError::CryptokiNotInitialized
    );
}

#[test]
fn handles_start_at_1_after_each_initialization() {
    let world = World::new();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (session, key) = world.ready();
        seen.push((format!("{session}"), key));
        // Its drop would close the session of the next turn.
        std::mem::forget(session);
        world.pkcs11.clone().finalize().unwrap();
        initialize(&world.pkcs11).unwrap();
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].0.contains('1'), "{seen:?}");
}

#[test]
fn two_modules_in_one_process_know_nothing_of_each_other() {
    let (one, other) = (World::new(), World::new());
    one.token.set("label", "one");
    let label = |world: &World| {
        world
            .pkcs11
            .get_token_info(world.slot())
            .unwrap()
            .label()
            .to_owned()
    };
    assert_eq!(
        (label(&one), label(&other)),
        ("one".to_owned(), "fake".to_owned())
    );
    one.pkcs11.clone().finalize().unwrap();
    let (session, key) = other.ready();
    assert!(other.verifies(&sign(&session, key).unwrap()));
    assert_eq!(one.token.calls("C_Sign").len(), 0);
    assert_eq!(other.token.calls("C_Sign").len(), 1);
}

#[test]
fn a_login_is_the_process_s_and_ends_with_the_last_session() {
    let world = World::new();
    let (first, second) = (world.session(), world.session());
    assert_eq!(private_key(&first), None);
    log_in(&first, "1234").unwrap();
    assert_eq!(rv(log_in(&second, "1234")), RvError::UserAlreadyLoggedIn);
    let key = private_key(&second).unwrap();
    assert_eq!(private_key(&first), Some(key));
    drop(first);
    sign(&second, key).unwrap();
    drop(second);
    let third = world.session();
    assert_eq!(
        third.get_session_info().unwrap().session_state(),
        SessionState::RoPublic
    );
    assert_eq!(private_key(&third), None);
    log_in(&third, "1234").unwrap();
    assert_ne!(
        private_key(&third),
        Some(key),
        "the old handle is void for ever"
    );
}

#[test]
fn a_logout_makes_private_objects_vanish() {
    let world = World::new();
    let (session, key) = world.ready();
    let other = world.session();
    other.logout().unwrap();
    assert_eq!(code(sign(&session, key)).0, RvError::KeyHandleInvalid);
    assert_eq!(private_key(&session), None);
    log_in(&other, "1234").unwrap();
    assert_eq!(code(sign(&session, key)).0, RvError::KeyHandleInvalid);
    sign(&session, private_key(&session).unwrap()).unwrap();
}

#[test]
fn wrong_pins_are_counted_in_flags_and_lock() {
    let world = World::with(&[("tries", "3")]);
    let session = world.session();
    let flags = || {
        let info = world.pkcs11.get_token_info(world.slot()).unwrap();
        (
            info.user_pin_count_low(),
            info.user_pin_final_try(),
            info.user_pin_locked(),
        )
    };
    assert_eq!(flags(), (false, false, false));
    assert_eq!(rv(log_in(&session, "4321")), RvError::PinIncorrect);
    assert_eq!(flags(), (true, false, false));
    assert_eq!(rv(log_in(&session, "4321")), RvError::PinIncorrect);
    assert_eq!(flags(), (true, true, false));
    log_in(&session, "1234").unwrap();
    assert_eq!(flags(), (false, false, false));
    session.logout().unwrap();
    world.token.set_failed_logins(2);
    assert_eq!(flags(), (true, true, false));
    assert_eq!(rv(log_in(&session, "4321")), RvError::PinIncorrect);
    assert_eq!(flags(), (true, false, true));
    assert_eq!(rv(log_in(&session, "1234")), RvError::PinLocked);
    world.token.set("locked_flags", 0);
    assert_eq!(flags(), (false, false, false));
    let notes: Vec<_> = world
        .token
        .calls("C_Login")
        .into_iter()
        .map(|call| call.note)
        .collect();
    assert_eq!(notes, ["wrong", "wrong", "right", "wrong", "right"]);
    assert_eq!(world.token.failed_logins(), 3);
}

#[test]
fn a_pin_is_never_in_the_log() {
    let world = World::with(&[("pin", "98765432")]);
    let session = world.session();
    let _ = log_in(&session, "12345678");
    log_in(&session, "98765432").unwrap();
    let log = std::fs::read_to_string(world.token.log()).unwrap();
    assert!(
        !log.contains("98765432") && !log.contains("12345678"),
        "{log}"
    );
}

#[test]
fn a_second_signature_in_a_session_waits_for_the_first() {
    let world = World::new();
    let (session, key) = world.ready();
    session.sign_init(&Mechanism::Sha256RsaPkcs, key).unwrap();
    for _ in 0..2 {
        assert_eq!(rv(sign(&session, key)), RvError::OperationActive);
    }
    session.sign_update(MESSAGE).unwrap();
    assert!(world.verifies(&session.sign_final().unwrap()));
    sign(&session, key).unwrap();
}

#[test]
fn attributes_are_answered_each_for_itself() {
    let world = World::new();
    let (session, key) = world.ready();
    let wanted = [
        AttributeType::Class,
        AttributeType::KeyType,
        AttributeType::Label,
        AttributeType::Id,
        AttributeType::Token,
        AttributeType::Private,
        AttributeType::Sign,
        AttributeType::PrivateExponent,
        AttributeType::ModulusBits,
        AttributeType::AllowedMechanisms,
        AttributeType::AlwaysAuthenticate,
        AttributeType::Sensitive,
        AttributeType::Extractable,
        AttributeType::NeverExtractable,
        AttributeType::PublicExponent,
    ];
    let shown = session.get_attributes(key, &wanted).unwrap();
    let right = [
        Attribute::Class(ObjectClass::PRIVATE_KEY),
        Attribute::KeyType(KeyType::RSA),
        Attribute::Label(b"dkim".to_vec()),
        Attribute::Id(vec![1]),
        Attribute::Token(true),
        Attribute::Private(true),
        Attribute::Sign(true),
        Attribute::AlwaysAuthenticate(false),
        Attribute::Sensitive(true),
        Attribute::Extractable(false),
        Attribute::NeverExtractable(true),
        Attribute::PublicExponent(vec![1, 0, 1]),
    ];
    // In an order of cryptoki's.
    assert_eq!(shown.len(), right.len(), "{shown:?}");
    for attribute in right {
        assert!(shown.contains(&attribute), "{attribute:?} in {shown:?}");
    }
    let public = session
        .find_objects(&[Attribute::Class(ObjectClass::PUBLIC_KEY)])
        .unwrap()[0];
    let Some(Attribute::Modulus(modulus)) = session
        .get_attributes(public, &[AttributeType::Modulus])
        .unwrap()
        .pop()
    else {
        panic!("a modulus")
    };
    let spki = world.token.public_key_spki();
    assert!(modulus.len() == 256 && spki.windows(256).any(|window| window == modulus));
    assert_eq!(
        session
            .get_attributes(public, &[AttributeType::ModulusBits])
            .unwrap(),
        [Attribute::ModulusBits(2048.into())]
    );
}

#[test]
fn verification_and_digest_are_there_too() {
    let world = World::new();
    let (session, key) = world.ready();
    let signature = sign(&session, key).unwrap();
    let numbers = session
        .get_attributes(
            key,
            &[AttributeType::Modulus, AttributeType::PublicExponent],
        )
        .unwrap();
    let mut template = vec![
        Attribute::Class(ObjectClass::PUBLIC_KEY),
        Attribute::KeyType(KeyType::RSA),
        Attribute::Token(false),
        Attribute::Verify(true),
    ];
    template.extend(numbers);
    let public = session.create_object(&template).unwrap();
    session
        .verify(&Mechanism::RsaPkcs, public, &digest_info(), &signature)
        .unwrap();
    session
        .verify(&Mechanism::Sha256RsaPkcs, public, MESSAGE, &signature)
        .unwrap();
    assert_eq!(
        rv(session.verify(&Mechanism::Sha256RsaPkcs, public, b"another", &signature)),
        RvError::SignatureInvalid
    );
    session
        .verify_init(&Mechanism::Sha256RsaPkcs, public)
        .unwrap();
    session.verify_update(MESSAGE).unwrap();
    session.verify_final(&signature).unwrap();
    session.destroy_object(public).unwrap();
    assert_eq!(
        rv(session.verify(&Mechanism::RsaPkcs, public, &digest_info(), &signature)),
        RvError::KeyHandleInvalid
    );

    let here = digest::digest(&digest::SHA256, MESSAGE);
    assert_eq!(
        session.digest(&Mechanism::Sha256, MESSAGE).unwrap(),
        here.as_ref()
    );
    session.digest_init(&Mechanism::Sha256).unwrap();
    for part in MESSAGE.chunks(3) {
        session.digest_update(part).unwrap();
    }
    assert_eq!(session.digest_final().unwrap(), here.as_ref());
}

#[test]
fn an_always_authenticate_key_wants_a_pin_for_each_signature() {
    let world = World::with(&[("always_auth", "1")]);
    let (session, key) = world.ready();
    for _ in 0..2 {
        assert_eq!(rv(sign(&session, key)), RvError::UserNotLoggedIn);
        session.sign_init(&Mechanism::Sha256RsaPkcs, key).unwrap();
        session
            .login(
                UserType::ContextSpecific,
                Some(&AuthPin::new("1234".into())),
            )
            .unwrap();
        session.sign_update(MESSAGE).unwrap();
        assert!(world.verifies(&session.sign_final().unwrap()));
    }
}

#[test]
fn mechanisms_are_those_listed() {
    let world = World::new();
    let listed = || world.pkcs11.get_mechanism_list(world.slot()).unwrap();
    assert_eq!(listed().len(), 4);
    world.token.set("mechanisms", "sha256-rsa-pkcs");
    assert_eq!(listed(), [MechanismType::SHA256_RSA_PKCS]);
    let (session, key) = world.ready();
    assert_eq!(rv(sign(&session, key)), RvError::MechanismInvalid);
    let info = || {
        world
            .pkcs11
            .get_mechanism_info(world.slot(), MechanismType::SHA256_RSA_PKCS)
            .unwrap()
    };
    assert!(info().sign() && info().max_key_size() == 4096);
    world
        .token
        .set_all(&[("mechanism_sign", "0"), ("max_key_bits", "1024")]);
    assert!(!info().sign() && info().max_key_size() == 1024);
}

#[test]
fn two_calls_in_one_session_are_a_violation() {
    let world = World::new();
    // Handles start again, so that two owners of one session are easily had: cryptoki itself gives only one.
    let old = world.session();
    world.pkcs11.clone().finalize().unwrap();
    initialize(&world.pkcs11).unwrap();
    let new = world.session();
    assert_eq!(world.token.violations(), Vec::<String>::new());
    world.token.set("C_GetSessionInfo.ms", 100);
    thread::scope(|scope| {
        scope.spawn(move || old.get_session_info().map(|_| std::mem::forget(old)));
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            let _ = world.pkcs11.get_slots_with_token();
        });
        new.get_session_info().unwrap();
    });
    let violations = world.token.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(
        violations[0].ends_with("VIOLATION C_GetSessionInfo in session 1 beside C_GetSessionInfo"),
        "{violations:?}"
    );
}

#[test]
fn a_finalization_with_a_call_inside_is_a_violation() {
    let world = World::with(&[("C_GetSessionInfo.hang", "1")]);
    let session = world.session();
    thread::scope(|scope| {
        let inside = scope.spawn(move || rv(session.get_session_info()));
        assert!(world.token.wait(Duration::from_secs(5), |token| {
            token.held_up("HANGS", "C_GetSessionInfo") == 1
        }));
        world.pkcs11.clone().finalize().unwrap();
        world.token.unset("C_GetSessionInfo.hang");
        assert_eq!(inside.join().unwrap(), RvError::CryptokiNotInitialized);
    });
    let violations = world.token.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(
        violations[0].ends_with("VIOLATION C_Finalize with 1 calls inside"),
        "{violations:?}"
    );
}

/// A process that forks, in a language where this needs no unsafe code; the calls by their places in the list.
const FORKS: &str = "
import ctypes, os, sys
module = ctypes.CDLL(sys.argv[1])
functions = ctypes.POINTER(ctypes.c_void_p)()
assert module.C_GetFunctionList(ctypes.byref(functions)) == 0
def call(place, *arguments):
    return ctypes.CFUNCTYPE(ctypes.c_ulong, *[ctypes.c_void_p] * len(arguments))(functions[1 + place])(*arguments)
info = ctypes.create_string_buffer(200)
INITIALIZE, FINALIZE, GET_INFO = 0, 1, 2
assert call(INITIALIZE, None) == 0
child = os.fork()
if child == 0:
    codes = [call(GET_INFO, info), call(INITIALIZE, None), call(GET_INFO, info), call(FINALIZE, None)]
    os._exit(0 if codes == [0x190, 0, 0, 0] else 1)
assert os.waitpid(child, 0)[1] == 0
assert call(GET_INFO, info) == 0
assert call(FINALIZE, None) == 0
";

#[test]
fn a_forked_child_has_to_initialize_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let token = FakeToken::new(dir.path());
    // The module where cargo has put it, and the files by the environment.
    let status = Command::new("python3")
        .args(["-c", FORKS])
        .arg(library())
        .envs(token.environment())
        .status()
        .unwrap();
    assert!(status.success());
    let violations = token.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(
        violations[0].contains("FORKED-CHILD C_GetInfo initialized by"),
        "{violations:?}"
    );
    let calls = token.calls("C_Initialize");
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].process, calls[1].process);
    assert_eq!(calls[0].note, "no-locking");
}
