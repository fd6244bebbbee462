//! URIs as operators write them: what is read, matched and written, what is refused and in which words; in the forms of
//! RFC 7512 section 3, and by properties.

use super::*;
use crate::pin::{PinFault, PinSourceError};
use proptest::prelude::*;

fn parse(text: &str) -> Uri {
    Uri::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> UriError {
    Uri::parse(text.as_bytes()).expect_err(text)
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// A token as SoftHSM describes its own.
fn soft_token() -> TokenFacts {
    TokenFacts {
        label: "Mail keys #2".to_owned(),
        manufacturer: "SoftHSM project".to_owned(),
        model: "SoftHSM v2".to_owned(),
        serial: "5c9e0a41d2b7f386".to_owned(),
        slot_id: 1_391_978_374,
        slot_description: "SoftHSM slot ID 0x52f7f386".to_owned(),
        slot_manufacturer: "SoftHSM slots".to_owned(),
        library_description: "Implementation of PKCS11".to_owned(),
        library_manufacturer: "SoftHSM".to_owned(),
        library_version: (2, 6),
    }
}

#[test]
fn the_forms_of_rfc_7512_section_3_mean_what_it_says() {
    let none = Uri::default;
    for (text, wanted) in [
        (
            "pkcs11:object=mail-pub;type=public",
            Uri {
                object: Some(b"mail-pub".to_vec()),
                object_type: Some(ObjectType::Public),
                ..none()
            },
        ),
        (
            "pkcs11:object=mail;type=private?pin-source=file:/etc/dkim/pin",
            Uri {
                object: Some(b"mail".to_vec()),
                object_type: Some(ObjectType::Private),
                pin: Some(PinSource::File("/etc/dkim/pin".into())),
                ..none()
            },
        ),
        // Number sign and comma, an id of any octets, an empty attribute.
        (
            "pkcs11:token=Token%20%237;manufacturer=Oil,%20Inc.;model=1.0;object=mail;type=cert;\
             id=%00%3B%fF%7a;serial=?pin-source=/etc/pin",
            Uri {
                token: some("Token #7"),
                manufacturer: some("Oil, Inc."),
                model: some("1.0"),
                object: Some(b"mail".to_vec()),
                object_type: Some(ObjectType::Cert),
                id: Some(b"\x00;\xff\x7a".to_vec()),
                serial: some(""),
                pin: Some(PinSource::File("/etc/pin".into())),
                ..none()
            },
        ),
        (
            "pkcs11:object=mail?module-name=softhsm2",
            Uri {
                object: Some(b"mail".to_vec()),
                module_name: some("softhsm2"),
                ..none()
            },
        ),
        (
            "pkcs11:object=mail?module-path=/opt/a%20b/libp11.so.1",
            Uri {
                object: Some(b"mail".to_vec()),
                module_path: Some("/opt/a b/libp11.so.1".into()),
                ..none()
            },
        ),
        (
            "pkcs11:token=mail?pin-value=12%2634",
            Uri {
                token: some("mail"),
                pin: Some(PinSource::Value(
                    Pin::new(Zeroizing::new(b"12&34".to_vec())).unwrap(),
                )),
                ..none()
            },
        ),
        (
            "pkcs11:slot-description=Reader%201;slot-manufacturer=ACME;slot-id=18446744073709551615",
            Uri {
                slot_description: some("Reader 1"),
                slot_manufacturer: some("ACME"),
                slot_id: Some(u64::MAX),
                ..none()
            },
        ),
        (
            "pkcs11:library-manufacturer=Oil,%20Inc.;library-description=Soft;library-version=1.23",
            Uri {
                library_manufacturer: some("Oil, Inc."),
                library_description: some("Soft"),
                library_version: Some((1, 23)),
                ..none()
            },
        ),
        (
            "pkcs11:token=80%25%3B%20by%20Jo;library-version=3;type=secret-key",
            Uri {
                token: some("80%; by Jo"),
                library_version: Some((3, 0)),
                object_type: Some(ObjectType::SecretKey),
                ..none()
            },
        ),
        (
            "pkcs11:token=%C3%A1;type=data",
            Uri {
                token: some("\u{e1}"),
                object_type: Some(ObjectType::Data),
                ..none()
            },
        ),
        // Everything that may stand for itself, in both parts; an empty query; the scheme in capitals.
        (
            "PKCS11:token=-._~:[]@!$'()*+,=&?",
            Uri {
                token: some("-._~:[]@!$'()*+,=&"),
                ..none()
            },
        ),
        (
            "pkcs11:object=?module-path=/?|:[]@!$'()*+,=",
            Uri {
                object: Some(Vec::new()),
                module_path: Some("/?|:[]@!$'()*+,=".into()),
                ..none()
            },
        ),
        (
            "pkcs11:object=mail?x-mechanism=sha256-rsa-pkcs&x-on-token-away=next&pin-source=credential:pin",
            Uri {
                object: Some(b"mail".to_vec()),
                mechanism: Some(MechanismChoice::Sha256RsaPkcs),
                on_away: Some(OnAway::Next),
                pin: Some(PinSource::Credential("pin".to_owned())),
                ..none()
            },
        ),
    ] {
        assert_eq!(parse(text), wanted, "{text}");
    }
}

#[test]
fn words_are_read_and_written_alike() {
    for (word, class) in [
        ("public", ObjectType::Public),
        ("private", ObjectType::Private),
        ("cert", ObjectType::Cert),
        ("secret-key", ObjectType::SecretKey),
        ("data", ObjectType::Data),
    ] {
        let text = format!("pkcs11:type={word}");
        let uri = parse(&text);
        assert_eq!((uri.object_type, uri.to_string()), (Some(class), text));
    }
    for (word, mechanism) in [
        ("auto", MechanismChoice::Auto),
        ("rsa-pkcs", MechanismChoice::RsaPkcs),
        ("sha256-rsa-pkcs", MechanismChoice::Sha256RsaPkcs),
    ] {
        let text = format!("pkcs11:token=a?x-mechanism={word}");
        let uri = parse(&text);
        assert_eq!((uri.mechanism, uri.to_string()), (Some(mechanism), text));
    }
    for (word, away) in [
        ("tempfail", OnAway::Tempfail),
        ("next", OnAway::Next),
        ("accept", OnAway::Accept),
        ("quarantine", OnAway::Quarantine),
    ] {
        let text = format!("pkcs11:token=a?x-on-token-away={word}");
        let uri = parse(&text);
        assert_eq!((uri.on_away, uri.to_string()), (Some(away), text));
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_place() {
    use UriError::*;
    let ampersand = |at| AmpersandInPath { at };
    let empty = |at, separator| EmptyAttribute { at, separator };
    let twice = |name| Duplicate { name };
    let misplaced = |name, part| Misplaced { name, part };
    let too_long = |name, limit| ValueTooLong { name, limit };
    let bad = |name, part, octet, at| BadCharacter {
        name,
        part,
        octet,
        at,
    };
    let (path, query) = (Part::Path, Part::Query);
    for (text, wanted) in [
        ("", NotPkcs11),
        ("pkcs11", NotPkcs11),
        ("/etc/dkim/mail.pem", NotPkcs11),
        ("pkcs11 :token=a", NotPkcs11),
        ("pkcs11:", Empty),
        ("pkcs11:?", Empty),
        ("pkcs11:?module-path=/a", Empty),
        ("pkcs11:;token=a", empty(8, ';')),
        ("pkcs11:token=a;", empty(16, ';')),
        ("pkcs11:token=a;;id=b", empty(16, ';')),
        ("pkcs11:token=a?&pin-source=b", empty(16, '&')),
        ("pkcs11:token=a?pin-source=b&", empty(29, '&')),
        ("pkcs11:token", NoEquals { at: 8 }),
        ("pkcs11:token=a;object", NoEquals { at: 16 }),
        ("pkcs11:token=a?pin-source", NoEquals { at: 16 }),
        ("pkcs11:=a", BadName { at: 8 }),
        ("pkcs11: token=a", BadName { at: 8 }),
        ("pkcs11:tok%65n=a", BadName { at: 8 }),
        ("pkcs11:token=a;token=a", twice("token")),
        ("pkcs11:id=%01;type=cert;id=%01", twice("id")),
        (
            "pkcs11:id=a?pin-source=/a&pin-source=/a",
            twice("pin-source"),
        ),
        (
            "pkcs11:id=a?x-mechanism=auto&x-mechanism=auto",
            twice("x-mechanism"),
        ),
        ("pkcs11:pin-source=/a", misplaced("pin-source", path)),
        ("pkcs11:token=a?object=b", misplaced("object", query)),
        ("pkcs11:token=a&object=b", ampersand(15)),
        ("pkcs11:token=R&D;id=a&x=b", ampersand(22)),
        ("pkcs11:token=a%", BadEscape { at: 15 }),
        ("pkcs11:token=a%2", BadEscape { at: 15 }),
        ("pkcs11:token=a%2;id=b", BadEscape { at: 15 }),
        ("pkcs11:token=%4G", BadEscape { at: 14 }),
        ("pkcs11:token=%+1", BadEscape { at: 14 }),
        ("pkcs11:token=50%%20", BadEscape { at: 16 }),
        ("pkcs11:token=a b", bad("token", path, b' ', 15)),
        ("pkcs11:token=a/b", bad("token", path, b'/', 15)),
        ("pkcs11:object=#1", bad("object", path, b'#', 15)),
        ("pkcs11:object=\u{e9}", bad("object", path, 0xc3, 15)),
        (
            "pkcs11:id=a?module-path=/a;pin-source=/b",
            bad("module-path", query, b';', 27),
        ),
        ("pkcs11:token=%FF", NotUtf8 { name: "token" }),
        (
            "pkcs11:token=123456789012345678901234567890123",
            too_long("token", 32),
        ),
        // 17 letters, but 34 octets.
        (
            "pkcs11:manufacturer=%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1%C3%A1\
             %C3%A1%C3%A1%C3%A1",
            too_long("manufacturer", 32),
        ),
        ("pkcs11:model=12345678901234567", too_long("model", 16)),
        ("pkcs11:serial=12345678901234567", too_long("serial", 16)),
        ("pkcs11:serial=%C3%A1", BadSerial),
        ("pkcs11:serial=1%0A", BadSerial),
        ("pkcs11:slot-id=", BadSlotId),
        ("pkcs11:slot-id=0x1", BadSlotId),
        ("pkcs11:slot-id=+1", BadSlotId),
        ("pkcs11:slot-id=18446744073709551616", BadSlotId),
        ("pkcs11:library-version=", BadLibraryVersion),
        ("pkcs11:library-version=1.", BadLibraryVersion),
        ("pkcs11:library-version=.1", BadLibraryVersion),
        ("pkcs11:library-version=1.2.3", BadLibraryVersion),
        ("pkcs11:library-version=1.256", BadLibraryVersion),
        ("pkcs11:library-version=+1", BadLibraryVersion),
        ("pkcs11:id=a?module-path=", BadModulePath),
        ("pkcs11:id=a?module-path=lib/a.so", BadModulePath),
        ("pkcs11:id=a?module-path=/a%00", BadModulePath),
        ("pkcs11:id=a?module-name=", BadModuleName),
        ("pkcs11:id=a?module-name=/usr/lib/a.so", BadModuleName),
        ("pkcs11:id=a?module-name=..%2Fa", BadModuleName),
        ("pkcs11:id=a?module-name=.a", BadModuleName),
        ("pkcs11:id=a?module-name=a&module-path=/a", TwoModules),
        ("pkcs11:id=a?pin-source=/a&pin-value=1", TwoPins),
        ("pkcs11:id=a?pin-value=1&pin-source=/a", TwoPins),
        ("pkcs11:id=a?pin-value=", PinValue(PinFault::Empty)),
        ("pkcs11:id=a?pin-value=1%002", PinValue(PinFault::Nul)),
        (
            "pkcs11:id=a?pin-source=|/bin/pin",
            PinSource(PinSourceError::Command),
        ),
        ("pkcs11:id=a?pin-source=", PinSource(PinSourceError::Empty)),
    ] {
        assert_eq!(refusal(text), wanted, "{text}");
    }
    let longest = format!("pkcs11:object={}", "a".repeat(MAX_URI_LEN - 14));
    assert_eq!(parse(&longest).to_string(), longest);
    assert_eq!(refusal(&(longest + "a")), TooLong);
}

#[test]
fn a_refusal_says_what_to_do() {
    for (text, wanted) in [
        (
            "pkcs11:tokn=a",
            "attribute \"tokn\" is not known; did you mean token?",
        ),
        (
            "pkcs11:label=a",
            "attribute \"label\" is not known; did you mean object?",
        ),
        (
            "pkcs11:token=a;pinfile=/a",
            "attribute \"pinfile\" is not known; did you mean pin-source, which belongs after a \"?\"?",
        ),
        (
            "pkcs11:token=a?x-elephant=grey",
            "attribute \"x-elephant\" is not known; after a \"?\" there can be pin-source, pin-value, module-name, \
             module-path, x-on-token-away, x-mechanism",
        ),
        (
            "pkcs11:vendor-a=b",
            "attribute \"vendor-a\" is not known; before the \"?\" there can be token, manufacturer, serial, model, \
             object, id, type, slot-id, slot-description, slot-manufacturer, library-manufacturer, \
             library-description, library-version",
        ),
        (
            "pkcs11:module-path=/a",
            "attribute module-path belongs after a \"?\" of the URI",
        ),
        (
            "pkcs11:token=a?object=b",
            "attribute object belongs before the \"?\" of the URI",
        ),
        (
            "pkcs11:type=privat",
            "type cannot be \"privat\": it is public, private, cert, secret-key or data; did you mean private?",
        ),
        (
            "pkcs11:id=a?x-on-token-away=reject",
            "x-on-token-away cannot be \"reject\": it is tempfail, next, accept or quarantine",
        ),
        (
            "pkcs11:id=a?x-mechanism=RSA-PKCS",
            "x-mechanism cannot be \"RSA-PKCS\": it is auto, rsa-pkcs or sha256-rsa-pkcs; did you mean rsa-pkcs?",
        ),
        (
            "pkcs11:token=a/b",
            "\"/\" at character 15 of the URI cannot stand in token: write %2F",
        ),
        (
            "pkcs11:id=a?pin-source=/a;module-path=/b",
            "\";\" at character 26 of the URI cannot stand in pin-source: after the \"?\" attributes are separated by \
             \"&\" (a \";\" of a value is written %3B)",
        ),
        (
            "pkcs11:id=a?pin-value=12\u{7}4",
            "character 25 of the URI cannot stand in pin-value: write it as \"%\" and its two hexadecimal digits",
        ),
        ("pkcs11:id=a?pin-value=", "the PIN in pin-value is empty"),
    ] {
        assert_eq!(refusal(text).to_string(), wanted, "{text}");
    }
    // No more of a long word than helps.
    let sentence = refusal(&format!("pkcs11:{}=a", "x".repeat(1000))).to_string();
    assert!(sentence.starts_with(&format!("attribute \"{}...\" is", "x".repeat(40))));
    let sentence = refusal(&format!("pkcs11:type={}", "x".repeat(1000))).to_string();
    assert!(sentence.contains(&format!("be \"{}...\": it is", "x".repeat(40))));
}

#[test]
fn nothing_shows_the_pin() {
    // What is read: neither as it stands, nor decoded.
    let uri = parse("pkcs11:token=a?pin-value=s3cr%65t&module-path=/a.so");
    let Some(PinSource::Value(pin)) = &uri.pin else {
        panic!("{uri:?}");
    };
    assert_eq!(pin.octets(), b"s3cret");
    assert_eq!(uri.to_string(), "pkcs11:token=a?module-path=/a.so");
    assert!(!format!("{uri:?}").contains("s3cr"));
    assert_eq!(
        parse("pkcs11:token=a?pin-value=s3cret").to_string(),
        "pkcs11:token=a"
    );
    // What is refused, by faults of the PIN and by a pin-value in the wrong place.
    for text in [
        "pkcs11:pin-value=s3cret",
        "pkcs11:token=a;pin-value=s3cret",
        "pkcs11:token=a&pin-value=s3cret",
        "pkcs11:token=a&PIN-VALUE=s3cret",
        "pkcs11:token=a,pin-value=s3cret",
        "pkcs11:object=a,Pin-Value=s3cret",
        "pkcs11:token=a?pin-source=/a?pin-value=s3cret",
        "pkcs11:token=a?module-path=/a|pin-value=s3cret",
        "pkcs11:token=a?module-path=/a;pin-value=s3cret",
        "pkcs11:token=a?pin-value=s3cret&pin-source=/a",
        "pkcs11:token=a?pin-source=/a&pin-value=s3cret",
        "pkcs11:token=a?pin-value=s3cret&pin-value=s3cret",
        "pkcs11:token=a?pin-value=s3cret%",
        "pkcs11:token=a?pin-value=s3cret%4",
        "pkcs11:token=a?pin-value=s3cret;s3cret",
        "pkcs11:token=a?pin-value=s3cret s3cret",
        "pkcs11:token=a?pin-value=\u{1}s3cret",
        "pkcs11:token=a?pin-value=s3cret%00",
        "pkcs11:token=a?pin-value=1&s3cret",
        "pkcs11:token=a?pin-value=1&s3cret=1",
        "pkcs11:token=a?pin-vlaue=s3cret",
        "pkcs11:token=a?pin=s3cret",
        "pkcs11:token=a?s3cret",
    ] {
        let error = refusal(text);
        assert!(
            !format!("{error:?} {error}").contains("s3cr"),
            "{text}: {error:?}"
        );
    }
    assert_eq!(
        refusal("pkcs11:token=a?pin-value=1&2=3").to_string(),
        "the attribute at character 28 of the URI is not known; if it belongs to pin-value, write its \"&\" as %26"
    );
    let text = format!("pkcs11:token=a?pin-value={}", "7".repeat(257));
    assert_eq!(refusal(&text), UriError::PinValue(PinFault::TooLong));
}

#[test]
fn a_uri_in_quotation_marks_is_no_file_and_is_not_shown() {
    for text in [
        "\"pkcs11:token=a?pin-value=s3cret\"",
        "'PKCS11:token=a?pin-value=s3cret'",
        "<pkcs11:token=a?pin-value=s3cret>",
        "\"pkcs11:token=a?pin-value=s3cret",
    ] {
        assert!(Uri::is_meant(text.as_bytes()), "{text}");
        let error = refusal(text);
        assert_eq!(error, UriError::Quoted, "{text}");
        assert!(!error.to_string().contains("s3cret"), "{text}");
    }
    assert!(!Uri::is_meant(b"\"/etc/dkim/key.pem\""));
}

#[test]
fn what_begins_with_the_scheme_is_meant_as_a_uri() {
    for (text, wanted) in [
        ("pkcs11:token=a", true),
        ("PKCS11:", true),
        ("pkcs11", false),
        ("/etc/pkcs11:a", false),
        ("pkcs12:a", false),
        ("", false),
    ] {
        assert_eq!(Uri::is_meant(text.as_bytes()), wanted, "{text}");
    }
}

#[test]
fn every_attribute_restricts_the_token() {
    let facts = soft_token();
    for (attribute, wanted) in [
        ("object=whatever", true),
        ("type=private", true),
        ("token=Mail%20keys%20%232", true),
        ("token=Mail%20keys%20%232%20%20", true),
        ("token=Mail%20keys", false),
        ("token=mail%20keys%20%232", false),
        ("token=", false),
        ("manufacturer=SoftHSM%20project", true),
        ("manufacturer=SoftHSM", false),
        ("model=SoftHSM%20v2", true),
        ("model=SoftHSM%20v3", false),
        ("serial=5c9e0a41d2b7f386", true),
        ("serial=5C9E0A41D2B7F386", false),
        ("slot-id=1391978374", true),
        ("slot-id=0", false),
        ("slot-description=SoftHSM%20slot%20ID%200x52f7f386", true),
        ("slot-description=other", false),
        ("slot-manufacturer=SoftHSM%20slots", true),
        ("slot-manufacturer=other", false),
        ("library-description=Implementation%20of%20PKCS11", true),
        ("library-description=other", false),
        ("library-manufacturer=SoftHSM", true),
        ("library-manufacturer=other", false),
        ("library-version=2.6", true),
        ("library-version=2", false),
        ("token=Mail%20keys%20%232;model=SoftHSM%20v2", true),
        ("token=Mail%20keys%20%232;model=other", false),
    ] {
        let uri = parse(&format!("pkcs11:{attribute}"));
        assert_eq!(uri.matches_token(&facts), wanted, "{attribute}");
    }
    // The empty matches the empty, and blanks the facts have kept do not count.
    let blank = TokenFacts::default();
    assert!(parse("pkcs11:token=;serial=").matches_token(&blank));
    let padded = TokenFacts {
        label: "mail   ".to_owned(),
        ..blank
    };
    assert!(parse("pkcs11:token=mail").matches_token(&padded));
}

#[test]
fn an_object_is_known_by_label_and_id_octet_by_octet() {
    for (attributes, label, id, wanted) in [
        ("token=a", &b"mail"[..], &b"\x01"[..], true),
        ("object=mail", b"mail", b"\x01", true),
        ("object=mail", b"mail2", b"\x01", false),
        ("object=mail", b"Mail", b"\x01", false),
        ("object=mail", b"mail ", b"\x01", false),
        ("object=mail", b"", b"", false),
        ("object=", b"", b"\x01", true),
        ("object=", b"mail", b"\x01", false),
        ("object=%E9", b"\xe9", b"", true),
        ("id=%01", b"mail", b"\x01", true),
        ("id=%01", b"mail", b"\x01\x00", false),
        // Not percent-encoded, so the octets of the digits.
        ("id=01", b"mail", b"\x01", false),
        ("id=01", b"mail", b"\x30\x31", true),
        ("id=", b"mail", b"", true),
        ("id=", b"mail", b"\x01", false),
        ("object=mail;id=%01", b"mail", b"\x01", true),
        ("object=mail;id=%01", b"mail", b"\x02", false),
        ("object=mail;id=%01", b"other", b"\x01", false),
    ] {
        let uri = parse(&format!("pkcs11:{attributes}"));
        assert_eq!(uri.matches_object(label, id), wanted, "{attributes}");
    }
}

#[test]
fn the_uri_of_a_key_is_ready_to_paste() {
    let module = Path::new("/usr/lib/softhsm/libsofthsm2.so");
    let uri = Uri::of_key(&soft_token(), b"mail/2026", b"\x01a", Some(module));
    assert_eq!(
        uri.to_string(),
        "pkcs11:token=Mail%20keys%20%232;manufacturer=SoftHSM%20project;model=SoftHSM%20v2;serial=5c9e0a41d2b7f386;\
         object=mail%2F2026;id=%01%61;type=private?module-path=/usr/lib/softhsm/libsofthsm2.so"
    );
    let uri = Uri::of_key(&TokenFacts::default(), b"", b"", None);
    assert_eq!(
        uri.to_string(),
        "pkcs11:token=;manufacturer=;model=;serial=;object=;id=;type=private"
    );
}

#[test]
fn a_uri_of_a_key_leaves_out_what_no_uri_can_say() {
    let facts = TokenFacts {
        label: "mail\u{fffd}".to_owned(),
        manufacturer: "m".repeat(33),
        model: "v1  ".to_owned(),
        serial: "\u{e9}".to_owned(),
        ..TokenFacts::default()
    };
    let uri = Uri::of_key(&facts, b"a", b"", Some(Path::new("relative.so")));
    assert_eq!(uri.to_string(), "pkcs11:model=v1;object=a;id=;type=private");
    assert!(uri.matches_token(&facts));
}

#[test]
fn what_p11_kit_writes_is_read() {
    // Made by p11_kit_uri_format, which encodes more; the values are those it was given.
    let uri = parse(
        "pkcs11:serial=%25%2CXV;token=4St%27%2Ae-Ok%28a;id=%1E%3F%72%1F%CB%19%71;object=%3E%18%8E",
    );
    assert_eq!(uri.serial, some("%,XV"));
    assert_eq!(uri.token, some("4St'*e-Ok(a"));
    assert_eq!(uri.id, Some(vec![30, 63, 114, 31, 203, 25, 113]));
    assert_eq!(uri.object, Some(vec![62, 24, 142]));
}

#[test]
fn the_canonical_form_is_one_for_all_ways_to_write_it() {
    let canonical = "pkcs11:token=%C3%A1%3B;slot-id=7;library-version=3.0;object=a-b;id=%AB;type=cert\
                     ?module-path=/a&pin-source=/p&x-mechanism=auto&x-on-token-away=accept";
    for text in [
        canonical,
        "pkcs11:type=cert;id=%ab;object=%61%2d%62;library-version=03;slot-id=007;token=%c3%a1%3b%20\
         ?x-on-token-away=accept&x-mechanism=auto&pin-source=file:///p&module-path=%2fa",
    ] {
        assert_eq!(parse(text).to_string(), canonical);
    }
}

/// Octets of a URI: much of it from words and signs that mean something.
fn nearly_uri() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(
        [
            &names::PATH[..],
            &names::QUERY[..],
            &[
                "%", ";", "?", "&", "=", "%20", "%C3", "%00", "/a", "1", "cert", "auto", "next",
                "|",
            ],
        ]
        .concat(),
    );
    let piece = prop_oneof![
        4 => word.prop_map(|word| word.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|octet| vec![octet]),
    ];
    prop::collection::vec(piece, 0..24)
        .prop_map(|pieces| [&b"pkcs11:"[..], &pieces.concat()].concat())
}

prop_compose! {
    fn any_uri()(
        (token, manufacturer, model, serial) in (
            prop::option::of("[ -~]{0,31}[!-~]|\u{e9}*"),
            prop::option::of("[\u{0}-~]{0,31}[!-~]"),
            prop::option::of("(pin-value=|&id=)?[!-~]{0,6}"),
            prop::option::of("[ -~]{0,15}[!-~]"),
        ),
        (slot_id, slot_description, slot_manufacturer) in (
            any::<Option<u64>>(),
            prop::option::of("[!-~]{0,64}"),
            prop::option::of("[!-~]{0,32}"),
        ),
        (library_description, library_manufacturer, library_version) in (
            prop::option::of("[!-~]{0,32}"),
            prop::option::of("[!-~]{0,32}"),
            any::<Option<(u8, u8)>>(),
        ),
        (object, id) in any::<(Vec<u8>, Option<Vec<u8>>)>(),
        object_type in prop::option::of(prop::sample::select(&ObjectType::WORDS[..])),
        (by_name, name, path) in (
            any::<bool>(),
            prop::option::of("[a-z][a-z0-9._+-]{0,9}"),
            prop::option::of("/[ -~]{0,9}"),
        ),
        pin in prop::option::of("/[ -~]{0,9}|credential:[a-z-]{1,9}"),
        mechanism in prop::option::of(prop::sample::select(&MechanismChoice::WORDS[..])),
        on_away in prop::option::of(prop::sample::select(&OnAway::WORDS[..])),
    ) -> Uri {
        let short = |text: Option<String>| text.filter(|text| text.len() <= 32);
        Uri {
            token: short(token),
            manufacturer,
            model,
            serial,
            slot_id,
            slot_description,
            slot_manufacturer,
            library_description,
            library_manufacturer,
            library_version,
            // Or the path might be empty.
            object: Some(object),
            id,
            object_type: object_type.map(|(_, class)| class),
            module_name: name.filter(|_| by_name),
            module_path: path.filter(|_| !by_name).map(PathBuf::from),
            pin: pin.map(|text| PinSource::parse(text.as_bytes()).unwrap()),
            mechanism: mechanism.map(|(_, mechanism)| mechanism),
            on_away: on_away.map(|(_, on_away)| on_away),
        }
    }
}

proptest! {
    #[test]
    fn any_octets_are_a_uri_or_refused(octets in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Uri::parse(&octets);
        let _ = Uri::parse(&[&b"pkcs11:"[..], &octets].concat());
    }

    #[test]
    fn what_is_nearly_a_uri_is_one_or_refused(octets in nearly_uri()) {
        match Uri::parse(&octets) {
            Ok(uri) => {
                let shown = uri.to_string();
                let mut again = Uri::parse(shown.as_bytes()).unwrap();
                prop_assert_eq!(again.to_string(), shown);
                if matches!(uri.pin, Some(PinSource::Value(_))) {
                    prop_assert_eq!(again.pin, None);
                    again.pin = uri.pin.clone();
                }
                prop_assert_eq!(again, uri);
            }
            Err(error) => prop_assert!(error.to_string().len() < 500),
        }
    }

    #[test]
    fn a_uri_reads_back_as_written(uri in any_uri()) {
        let shown = uri.to_string();
        prop_assert!(shown.bytes().all(|o| o.is_ascii_graphic() && o != b'#' && o != b'"'));
        prop_assert_eq!(Uri::parse(shown.as_bytes()), Ok(uri));
    }

    #[test]
    fn the_uri_of_a_key_matches_it_and_no_other(
        label in any::<Vec<u8>>(),
        id in any::<Vec<u8>>(),
        other in any::<(Vec<u8>, Vec<u8>)>(),
        texts in any::<[String; 4]>(),
    ) {
        let [name, manufacturer, model, serial] = texts;
        let facts = TokenFacts { label: name, manufacturer, model, serial, ..soft_token() };
        let uri = Uri::of_key(&facts, &label, &id, None);
        let again = Uri::parse(uri.to_string().as_bytes());
        prop_assert_eq!(again.as_ref(), Ok(&uri));
        prop_assert!(uri.matches_token(&facts));
        prop_assert!(uri.matches_object(&label, &id));
        prop_assert_eq!(uri.matches_object(&other.0, &other.1), (label, id) == other);
    }

    #[test]
    fn a_pin_is_read_as_encoded_and_never_shown(pin in "[a-z]{8}[ -~]{0,40}") {
        let text = format!("pkcs11:token=x?pin-value={}", octets::encode_all(pin.as_bytes()));
        let uri = parse(&text);
        let Some(PinSource::Value(read)) = &uri.pin else { panic!() };
        prop_assert_eq!(read.octets(), pin.as_bytes());
        let shown = format!("{uri:?} {uri}");
        prop_assert!(!shown.contains(&pin));
    }
}
