//! The messages that are measured on, made here so that every program measures the same.

use dkim_core::message::HeaderFields;

/// A private RSA key of 2048 bits, PEM, made for tests.
pub const RSA_2048_PEM: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.pem");

/// The same as PKCS#8 in DER.
pub const RSA_2048_DER: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/rsa2048.pkcs8.der");

/// A private Ed25519 key, PEM, made for tests.
pub const ED25519_PEM: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/ed25519.pem");

/// The same as PKCS#8 in DER.
pub const ED25519_DER: &[u8] = include_bytes!("../../dkim-core/tests/data/keys/ed25519.der");

/// Twelve fields as an MTA hands them over, about 800 octets; seven of them or so get signed.
pub fn header() -> HeaderFields {
    let mut header = HeaderFields::new();
    for field in [
        "Received: from client.example.com (client.example.com [192.0.2.7])\r\n\tby mx.example.net (Postfix) with ESMTPS id 4Fabc\r\n\tfor <bo@example.net>; Tue,  6 Jan 2026 10:00:01 +0000 (UTC)",
        "From: Ann Sender <ann@example.com>",
        "To: Bo Reader <bo@example.net>,\r\n Cy Reader <cy@example.net>",
        "Subject: figures of the quarter, and what they mean",
        "Date: Tue, 06 Jan 2026 10:00:00 +0000",
        "Message-ID: <20260106.100000.1@example.com>",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Transfer-Encoding: 7bit",
        "User-Agent: Post/1.0",
        "In-Reply-To: <20260105.090000.7@example.net>",
        "References: <20260101.080000.1@example.net>\r\n <20260105.090000.7@example.net>",
    ] {
        header.push_raw(field.as_bytes());
    }
    header
}

/// 200 fields, about 30 KB: those of [`header`], below what mailing lists, filters and gateways put on top of a message.
/// Many share a name, and many are folded.
pub fn long_header() -> HeaderFields {
    let mut long = HeaderFields::new();
    let ordinary = header();
    for number in 0..200 - ordinary.len() {
        let field = match number % 4 {
            0 => format!(
                "Received: from relay{number}.example.net (relay{number}.example.net [192.0.2.{number}])\r\n\tby mx.example.net \
                 (Postfix) with ESMTPS id 4F{number:04}\r\n\tfor <bo@example.net>; Tue,  6 Jan 2026 10:00:01 +0000 (UTC)"
            ),
            1 => format!(
                "X-Filter-{number}: score=0.{number:03} required=5.0  tests=HEADER_IN_ORDER,\r\n\tBODY_OF_WORDS,NO_LINKS \
                 version=4.0.{number} host=filter.example.net"
            ),
            2 => format!(
                "X-Gateway: id={number:08}; queue=incoming; policy=default; tenant=example.net; \
                 route=direct; seen=20260106T1000{number:03}Z; trust=none; reason=\"first of its kind\""
            ),
            _ => format!(
                "List-Note-{number}: <https://lists.example.net/readers/notes/{number}>,\r\n \
                 <mailto:readers-request@lists.example.net?subject=note-{number}>"
            ),
        };
        long.push_raw(field.as_bytes());
    }
    for field in ordinary.iter() {
        long.push_raw(field.octets());
    }
    long
}

/// Lines of words as people write them: a double space in each, a trailing space now and then, empty lines; `size` octets.
pub fn text_body(size: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(size + 80);
    let mut line = 0;
    while body.len() < size {
        line += 1;
        if line % 10 == 0 {
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(
            b"The quick brown fox jumps over the lazy dog.  Then it rests, for a",
        );
        body.extend_from_slice(if line % 25 == 0 {
            b" while \r\n"
        } else {
            b" while\r\n"
        });
    }
    body.truncate(size - 2);
    body.extend_from_slice(b"\r\n");
    body
}

/// An attachment: lines of 76 octets of base64; `size` octets.
pub fn base64_body(size: usize) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = Vec::with_capacity(size + 80);
    let mut state = 1u64;
    while body.len() < size {
        for _ in 0..76 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            body.push(ALPHABET[(state >> 58) as usize]);
        }
        body.extend_from_slice(b"\r\n");
    }
    body.truncate(size - 2);
    body.extend_from_slice(b"\r\n");
    body
}

/// `header` and `body` as one message.
pub fn message(header: &HeaderFields, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(header.octets() + 2 + body.len());
    for field in header.iter() {
        message.extend_from_slice(field.octets());
        message.extend_from_slice(b"\r\n");
    }
    message.extend_from_slice(b"\r\n");
    message.extend_from_slice(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_header_has_200_fields_and_30_kilobytes() {
        let header = long_header();
        assert_eq!(header.len(), 200);
        assert!(
            (28_000..32_000).contains(&header.octets()),
            "{}",
            header.octets()
        );
        assert_eq!(header.named("From").count(), 1);
    }

    #[test]
    fn bodies_have_their_size_and_are_lines() {
        for size in [512, 4096, 65_536] {
            for body in [text_body(size), base64_body(size)] {
                assert_eq!(body.len(), size);
                assert!(body.ends_with(b"\r\n"));
                assert!(body.split(|&o| o == b'\n').all(|line| line.len() < 90));
            }
        }
    }
}
