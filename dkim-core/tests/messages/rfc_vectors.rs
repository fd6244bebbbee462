//! The signed messages of the RFCs (RFC 6376 appendix A.2, RFC 8463 appendix A), checked by every engine.

use crate::support::Setting;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dkim_core::engine::{KeyType, PrivateKey, engines};
use dkim_core::key_record::KeyAnswer;
use dkim_core::verifier::Reason;

/// RFC 6376 appendix A.2 as printed, its lines ended by CRLF. `simple` signs white space, and setting the text has
/// changed it twice since the message was signed: [`as_signed`] undoes that.
const RFC_6376: &str = "\
DKIM-Signature: v=1; a=rsa-sha256; s=brisbane; d=example.com;\r
     c=simple/simple; q=dns/txt; i=joe@football.example.com;\r
     h=Received : From : To : Subject : Date : Message-ID;\r
     bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
     b=AuUoFEfDxTDkHlLXSZEpZj79LICEps6eda7W3deTVFOk4yAUoqOB\r
     4nujc7YopdG5dWLSdNg6xNAZpOPr+kHxt1IrE+NahM6L/LbvaHut\r
     KVdkLLkpVaVVQPzeRDI009SO2Il5Lu7rDNH6mZckBdrIx0orEtZV\r
     4bmp/YzhwvcubU4=;\r
Received: from client1.football.example.com  [192.0.2.1]\r
     by submitserver.example.com with SUBMISSION;\r
     Fri, 11 Jul 2003 21:01:54 -0700 (PDT)\r
From: Joe SixPack <joe@football.example.com>\r
To: Suzie Q <suzie@shopping.example.net>\r
Subject: Is dinner ready?\r
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r
Message-ID: <20030712040037.46341.5F8J@football.example.com>\r
\r
Hi.\r
\r
We lost the game.  Are you hungry yet?\r
\r
Joe.\r
";

/// The message that `bh=` and `b=` of RFC 6376 appendix A.2 are right for: folds of six blanks where five are printed,
/// and one blank behind a full stop where two are.
fn as_signed() -> String {
    RFC_6376
        .replace("\r\n     ", "\r\n      ")
        .replace("game.  Are", "game. Are")
}

/// RFC 8463 appendix A.3 as printed, its lines ended by CRLF.
const RFC_8463: &str = "\
DKIM-Signature: v=1; a=ed25519-sha256; c=relaxed/relaxed;\r
 d=football.example.com; i=@football.example.com;\r
 q=dns/txt; s=brisbane; t=1528637909; h=from : to :\r
 subject : date : message-id : from : subject : date;\r
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
 b=/gCrinpcQOoIfuHNQIbq4pgh9kyIK3AQUdt9OdqQehSwhEIug4D11Bus\r
 Fa3bT3FY5OsU7ZbnKELq+eXdp1Q1Dw==\r
DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed;\r
 d=football.example.com; i=@football.example.com;\r
 q=dns/txt; s=test; t=1528637909; h=from : to : subject :\r
 date : message-id : from : subject : date;\r
 bh=2jUSOH9NhtVGCQWNr9BrIAPreKQjO6Sn7XIkfJVOzv8=;\r
 b=F45dVWDfMbQDGHJFlXUNB2HKfbCeLRyhDXgFpEL8GwpsRe0IeIixNTe3\r
 DhCVlUrSjV4BwcVcOF6+FF3Zo9Rpo1tFOeS9mPYQTnGdaSGsgeefOsk2Jz\r
 dA+L10TeYt9BgDfQNZtKdN1WO//KgIqXP7OdEFE4LjFYNcUxZQ4FADY+8=\r
From: Joe SixPack <joe@football.example.com>\r
To: Suzie Q <suzie@shopping.example.net>\r
Subject: Is dinner ready?\r
Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r
Message-ID: <20030712040037.46341.5F8J@football.example.com>\r
\r
Hi.\r
\r
We lost the game.  Are you hungry yet?\r
\r
Joe.\r
";

/// RFC 8463 appendix A.3's header as `relaxed` has it (RFC 6376 section 3.4.2), by hand; the second mentions in `h=`
/// stand for nothing.
const RFC_8463_HEADER: &str = "\
from:Joe SixPack <joe@football.example.com>\r
to:Suzie Q <suzie@shopping.example.net>\r
subject:Is dinner ready?\r
date:Fri, 11 Jul 2003 21:00:37 -0700 (PDT)\r
message-id:<20030712040037.46341.5F8J@football.example.com>\r
";

const RFC_8463_ED25519_SECRET: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";

const RFC_8463_RSA_SECRET: &str = "\
-----BEGIN RSA PRIVATE KEY-----
MIICXQIBAAKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhdR6wy5bdOKb2jLQi
Y/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqM
KrM3rG4hstT5QjvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB
AoGAH0cxOhFZDgzXWhDhnAJDw5s4roOXN4OhjiXa8W7Y3rhX3FJqmJSPuC8N9vQm
6SVbaLAE4SG5mLMueHlh4KXffEpuLEiNp9Ss3O4YfLiQpbRqE7Tm5SxKjvvQoZZe
zHorimOaChRL2it47iuWxzxSiRMv4c+j70GiWdxXnxe4UoECQQDzJB/0U58W7RZy
6enGVj2kWF732CoWFZWzi1FicudrBFoy63QwcowpoCazKtvZGMNlPWnC7x/6o8Gc
uSe0ga2xAkEA8C7PipPm1/1fTRQvj1o/dDmZp243044ZNyxjg+/OPN0oWCbXIGxy
WvmZbXriOWoSALJTjExEgraHEgnXssuk7QJBALl5ICsYMu6hMxO73gnfNayNgPxd
WFV6Z7ULnKyV7HSVYF0hgYOHjeYe9gaMtiJYoo0zGN+L3AAtNP9huqkWlzECQE1a
licIeVlo1e+qJ6Mgqr0Q7Aa7falZ448ccbSFYEPD6oFxiOl9Y9se9iYHZKKfIcst
o7DUw1/hz2Ck4N5JrgUCQQCyKveNvjzkkd8HjYs0SwM0fPjK16//5qDZ2UiDGnOe
uEzxBDAr518Z8VFbR41in3W4Y3yCDgQlLlcETrS+zYcL
-----END RSA PRIVATE KEY-----
";

/// The key records of RFC 6376 appendix C and RFC 8463 appendix A.2, their strings joined.
fn key_record(name: &str) -> KeyAnswer {
    let record = match name {
        "brisbane._domainkey.example.com" => {
            "v=DKIM1; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDwIRP/UC3SBsEmGqZ9ZJW3/DkMoGeLnQg1fWn7/zYt\
             IxN2SnFCjxOCKG9v3b4jYfcTNh5ijSsq631uBItLa7od+v/RtdC2UzJ1lWT947qR+Rcac2gbto/NMqJ0fzfVjH4OuKhi\
             tdY9tf6mcwGjaNBcWToIMmPSPDdQPNUYckcQ2QIDAQAB"
        }
        "brisbane._domainkey.football.example.com" => {
            "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
        }
        "test._domainkey.football.example.com" => {
            "v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDkHlOQoBTzWRiGs5V6NpP3idY6Wk08a5qhd\
             R6wy5bdOKb2jLQiY/J16JYi0Qvx/byYzCNb3W91y3FutACDfzwQ/BC/e/8uBsCR+yz1Lxj+PL6lHvqMKrM3rG4hstT5Q\
             jvHO9PzoxZyVYLzBfO2EeC3Ip3G+2kryOTIKT+l/K4w3QIDAQAB"
        }
        _ => return KeyAnswer::NoName,
    };
    KeyAnswer::from_txt(&[record])
}

#[test]
fn the_message_of_rfc_6376_passes_as_signed_and_not_as_printed() {
    for &engine in engines() {
        let setting = Setting {
            engine,
            ..Setting::new(&key_record)
        };
        let verdict = &setting.verdicts(as_signed().as_bytes())[0];
        assert_eq!(
            (&verdict.reason, verdict.key_bits),
            (
                &Reason::Verified {
                    unsigned_octets: 0,
                    from_fields: 1
                },
                Some(1024)
            ),
            "{}",
            engine.name()
        );
        for (changed, reason) in [
            (RFC_6376.to_owned(), Reason::BodyHash),
            (
                RFC_6376.replace("game.  Are", "game. Are"),
                Reason::Signature,
            ),
            (as_signed().replace("dinner", "lunch"), Reason::Signature),
            (as_signed().replace("hungry", "thirsty"), Reason::BodyHash),
        ] {
            assert_eq!(setting.verdicts(changed.as_bytes())[0].reason, reason);
        }
    }
}

#[test]
fn both_signatures_of_rfc_8463_pass() {
    let swapped = RFC_8463
        .replace("s=test", "s=x")
        .replace("s=brisbane", "s=test")
        .replace("s=x", "s=brisbane");
    for &engine in engines() {
        let setting = Setting {
            engine,
            ..Setting::new(&key_record)
        };
        assert_eq!(
            setting.words(RFC_8463.as_bytes()),
            ["pass", "pass"],
            "{}",
            engine.name()
        );
        let verdicts = setting.verdicts(swapped.as_bytes());
        assert!(
            verdicts
                .iter()
                .all(|verdict| verdict.reason == Reason::KeyTypeMismatch),
            "{verdicts:?}"
        );
        let verdicts = setting.verdicts(RFC_8463.replace("ready?", "ready!").as_bytes());
        assert!(
            verdicts
                .iter()
                .all(|verdict| verdict.reason == Reason::Signature),
            "{verdicts:?}"
        );
    }
}

/// Both algorithms give one signature only for one input, so the secret keys must give what is printed.
#[test]
fn the_secret_keys_of_rfc_8463_give_the_printed_signatures() {
    let fields: Vec<&str> = RFC_8463.split("DKIM-Signature: ").skip(1).collect();
    for (secret, field, key_type) in [
        (RFC_8463_ED25519_SECRET, fields[0], KeyType::Ed25519),
        (RFC_8463_RSA_SECRET, fields[1], KeyType::Rsa),
    ] {
        let field = field.split("From:").next().unwrap();
        let (tags, signature) = field.split_once(" b=").unwrap();
        let signature = STANDARD
            .decode(signature.replace(['\r', '\n', ' '], ""))
            .unwrap();
        let octets = format!(
            "{RFC_8463_HEADER}dkim-signature:{} b=",
            tags.replace("\r\n", "")
        );
        let key = PrivateKey::from_octets(secret.as_bytes()).unwrap();
        let mut signed = 0;
        for engine in engines() {
            // The default engine signs with no RSA key of 1024 bits.
            if let Ok(key) = engine.signing_key(&key) {
                assert_eq!(key.key_type(), key_type);
                assert_eq!(
                    key.sign(octets.as_bytes()).unwrap(),
                    signature,
                    "{}",
                    engine.name()
                );
                signed += 1;
            }
        }
        let wanted = if key_type == KeyType::Rsa {
            1
        } else {
            engines().len()
        };
        assert_eq!(signed, wanted);
    }
}
