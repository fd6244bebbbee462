//! Mail that is signed: for whom, with which keys, and what becomes of it if that fails.

use super::*;
use crate::protocol::negotiation::action;

#[test]
fn mail_of_internal_hosts_is_signed_in_every_canonicalization() {
    for canonicalization in [
        "simple/simple",
        "simple/relaxed",
        "relaxed/simple",
        "relaxed/relaxed",
    ] {
        let mut mta = internal(&[&format!("Canonicalization={canonicalization}")]);
        let outcome = mta.send(MESSAGE.as_bytes());
        assert!(outcome.replies.ends_with('c'), "{outcome:?}");
        assert_eq!(
            verdicts(&outcome.delivered),
            [ResultWord::Pass],
            "{canonicalization}"
        );
        assert!(outcome.edits[0].3.starts_with(" v=1; a=rsa-sha256;"));
        assert!(!outcome.edits[0].3.contains('\r'));
    }
}

#[test]
fn without_leading_space_relaxed_signatures_still_hold() {
    let mut mta = internal(&[]);
    mta.offer = Offer {
        version: 2,
        actions: 0x3f,
        steps: 0x7f,
    };
    mta.connect();
    let message = MESSAGE.replace("Subject:x", "Subject: x");
    let outcome = mta.send(message.as_bytes());
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
}

#[test]
fn who_is_signed_for() {
    for (client, macros, from, signs) in [
        ("127.0.0.1", &b""[..], "ann@example.com", true),
        ("::1", b"", "ann@example.com", true),
        ("198.51.100.7", b"", "ann@example.com", false),
        (
            "198.51.100.7",
            b"{auth_type}\0PLAIN\0{auth_authen}\0ann\0",
            "ann@example.com",
            true,
        ),
        ("127.0.0.1", b"", "ann@mail.example.com", true),
        ("127.0.0.1", b"", "ann@other.example", false),
        ("127.0.0.1", b"", "ann@notexample.com", false),
        ("127.0.0.1", b"", "root (Cron Daemon)", false),
        ("127.0.0.1", b"", "ann@example.com, bo@other.example", false),
        ("127.0.0.1", b"", "ann@example.com, bo@example.com", true),
        (
            "127.0.0.1",
            b"",
            "<ann@example.com> <bo@example.com>",
            false,
        ),
    ] {
        let mut mta = Mta::new(&["Mode=s"]);
        mta.client = client;
        mta.macros.push((b'M', macros));
        mta.connect();
        let outcome = mta.send(MESSAGE.replace("Ann <ann@example.com>", from).as_bytes());
        assert_eq!(
            outcome.edits.len(),
            usize::from(signs),
            "{client} {from}: {outcome:?}"
        );
    }
}

#[test]
fn a_sub_domain_is_signed_for_in_its_own_name() {
    let outcome = internal(&[]).send(
        MESSAGE
            .replace("@example.com>\r\nTo", "@news.example.com>\r\nTo")
            .as_bytes(),
    );
    assert!(
        outcome.edits[0].3.contains("d=example.com; s=sel;"),
        "{outcome:?}"
    );
    assert!(outcome.edits[0].3.contains("i=@news.example.com;"));
    assert_eq!(verdicts(&outcome.delivered), [ResultWord::Pass]);
}

#[test]
fn a_key_that_is_missing_stops_its_own_domain_only() {
    let table = format!(
        "KeyTable=csl:k1=example.com:sel:{KEYS}/rsa2048.pem,k2=two.example:sel:/nonexistent.pem"
    );
    let mut mta = internal(&[&table, "SigningTable=csl:example.com=k1,two.example=k2"]);
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
    let outcome = mta.send(
        MESSAGE
            .replace("ann@example.com", "ann@two.example")
            .as_bytes(),
    );
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn a_key_that_does_not_sign_defers_mail() {
    let mut mta = internal(&[]);
    mta.signs = false;
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
    mta.signs = true;
    assert_eq!(mta.send(MESSAGE.as_bytes()).edits.len(), 1);
}

#[test]
fn an_mta_that_takes_no_fields_has_its_mail_deferred() {
    let mut mta = internal(&[]);
    mta.offer.actions = action::CHGHDRS;
    mta.connect();
    let outcome = mta.send(MESSAGE.as_bytes());
    assert_eq!(outcome.code, "451 4.7.0 internal DKIM error", "{outcome:?}");
}

#[test]
fn several_signatures_stand_in_the_table_s_order() {
    let table = format!(
        "KeyTable=csl:a=example.com:rsa:{KEYS}/rsa2048.pem,b=example.com:ed:{KEYS}/ed25519.pem"
    );
    let mut mta = internal(&[
        &table,
        "SigningTable=csl:example.com=a,*=b",
        "MultipleSignatures=yes",
    ]);
    let outcome = mta.send(MESSAGE.as_bytes());
    let delivered = String::from_utf8(outcome.delivered).unwrap();
    let (first, second) = (
        delivered.find("s=rsa").unwrap(),
        delivered.find("s=ed").unwrap(),
    );
    assert!(first < second, "{delivered}");
}

#[test]
fn mail_that_passes_again_is_signed_again_only_if_it_was_changed() {
    let once = internal(&[]).send(MESSAGE.as_bytes()).delivered;
    let changed = [&once[..], b"-- \r\nfooter\r\n"].concat();
    for (options, message, signatures) in [
        (&["SkipAlreadySigned=yes"][..], &once, 0),
        (&["SkipAlreadySigned=yes"], &changed, 1),
        (&["SkipAlreadySigned=no"], &once, 1),
    ] {
        let outcome = internal(options).send(message);
        assert_eq!(outcome.edits.len(), signatures, "{outcome:?}");
    }
}
