//! What a signer refuses and what it covers (RFC 6376 section 5).

use crate::support::*;
use dkim_core::engine::KeyType;
use dkim_core::signature::Identity;
use dkim_core::signer::{FieldChoice, SignRequest, Signer, SignerError};
use std::sync::Arc;

const MESSAGE: &[u8] =
    b"From: ann@example.com\r\nSubject: upper\r\nSubject: lower\r\n\r\nAt noon?\r\n";

fn request() -> SignRequest {
    SignRequest::new("example.com", "s", KeyType::Ed25519)
}

fn tags(tags: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    tags.iter().map(owned).collect()
}

/// The octets to be signed for `request`, as text.
fn to_sign(message: &[u8], request: SignRequest) -> String {
    let (header, body) = read(message, 1000);
    let mut signer = Signer::new(&header, vec![request]).unwrap();
    signer.body(&body);
    String::from_utf8(signer.to_sign(&header).remove(0).octets).unwrap()
}

#[test]
fn what_must_not_be_signed_is_refused() {
    let long = "a".repeat(60);
    let deep = [long.as_str(); 4].join(".");
    for (request, want) in [
        (
            SignRequest::new("example..com", "s", KeyType::Rsa),
            "signing domain \"example..com\" is not a domain name",
        ),
        (
            SignRequest::new("", "s", KeyType::Rsa),
            "signing domain \"\" is not a domain name",
        ),
        (
            SignRequest::new("example.com", "a b", KeyType::Rsa),
            "selector \"a b\" is not a name, or too long with its domain",
        ),
        (
            SignRequest::new(&deep, "s", KeyType::Rsa),
            "selector \"s\" is not a name, or too long with its domain",
        ),
        (
            SignRequest {
                identity: Some(Identity {
                    local_part: Vec::new(),
                    domain: "notexample.com".into(),
                }),
                ..request()
            },
            "identity's domain \"notexample.com\" is not within the signing domain \"example.com\"",
        ),
        (
            SignRequest {
                timestamp: Some(5),
                expiration: Some(5),
                ..request()
            },
            "signature would expire before it is made",
        ),
    ] {
        let (header, _) = read(MESSAGE, 1000);
        let error = Signer::new(&header, vec![request]).unwrap_err();
        assert_eq!(error.to_string(), want);
    }
    for (message, want) in [
        (&b"Subject: x\r\n\r\n"[..], SignerError::NoFrom),
        (
            b"From: a\r\nFROM : b\r\n\r\n",
            SignerError::SeveralFrom { count: 2 },
        ),
    ] {
        let (header, _) = read(message, 1000);
        assert_eq!(Signer::new(&header, vec![request()]).unwrap_err(), want);
    }
}

#[test]
fn extra_tags_are_those_nobody_has_defined() {
    let (header, _) = read(MESSAGE, 1000);
    for (extra, bad) in [
        (tags(&[("x1", "a=b"), ("y_2", "")]), None),
        (tags(&[("z", "From:x")]), Some("z")),
        (tags(&[("bh", "x")]), Some("bh")),
        (tags(&[("x1", "a"), ("x1", "b")]), Some("x1")),
        (tags(&[("x-1", "a")]), Some("x-1")),
        (tags(&[("1", "a")]), Some("1")),
        (tags(&[("", "a")]), Some("")),
        (tags(&[("x1", "a;d=evil.example")]), Some("x1")),
        (tags(&[("x1", "a\r\nEvil: x")]), Some("x1")),
        (tags(&[("x1", &"a".repeat(1000))]), Some("x1")),
    ] {
        let request = SignRequest {
            extra_tags: extra,
            ..request()
        };
        let refused = Signer::new(&header, vec![request]).err();
        assert_eq!(refused, bad.map(|name| SignerError::Tag(name.to_owned())));
    }
}

/// RFC 6376 sections 3.7 and 5.4.2: fields from the bottom up, then the signature itself without a line end.
#[test]
fn what_is_signed_is_written_out() {
    let fields = FieldChoice::new(&["From", "Subject", "Subject", "Cc"], &["Subject"]).unwrap();
    let request = SignRequest {
        fields: Arc::new(fields),
        timestamp: Some(7),
        ..request()
    };
    assert_eq!(
        to_sign(MESSAGE, request),
        // printf 'At noon?\r\n' | openssl dgst -sha256 -binary | base64
        "from:ann@example.com\r\n\
         subject:lower\r\n\
         subject:upper\r\n\
         dkim-signature:v=1; a=ed25519-sha256; c=relaxed/relaxed; d=example.com; s=s; t=7; \
         h=From:Subject:Subject:Subject; bh=4daN71HNdn/d5SSJNrmA4GnDoSU3uSw9/N1YsKJOhFc=; b="
    );
}

#[test]
fn only_requests_have_fields() {
    let (header, _) = read(MESSAGE, 1000);
    let mut signer = Signer::new(&header, vec![request()]).unwrap();
    assert_eq!(signer.to_sign(&header).len(), 1);
    assert!(signer.field_value(0, &[1; 64]).is_some());
    assert!(signer.field_value(1, &[1; 64]).is_none());
}
