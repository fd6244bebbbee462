#!/usr/bin/python3
"""Makes signed-by-others.eml: one message, signed by dkimpy and by Mail::DKIM in all their canonicalizations.

Needs Debian's python3-dkim, python3-nacl and libmail-dkim-perl. Run it in its own folder.
"""

import base64
import subprocess

import dkim

KEYS = "../keys/"
MESSAGE = (
    "X-Trace: upper\r\n\tone\r\n"
    "Received: from d by a; Sun, 31 Dec 2023 23:59:59 +0000\r\n"
    "x-trace: lower \r\n"
    "From: =?UTF-8?Q?=C3=84nn?= Example\r\n <ann@example.com>\r\n"
    "To: Bo  <bo@example.net>,\r\n\tCy <cy@example.org>  \r\n"
    "Subject:  two  spaces\tand a tab \r\n"
    "Date: Mon, 1 Jan 2024 01:00:00 +0100\r\n"
    "Content-Type: text/plain; charset=utf-8\r\n"
    "\r\n"
    "  Leading and trailing white space \t \r\n"
    "a\tb  c \x0b\x0c\r\n"
    ".\r\n"
    "\r\n"
    "\u00e4\u20ac\u00a0\r\n"
    " \r\n"
    "\r\n\r\n"
).encode()
NAMES = [b"x-trace", b"x-trace", b"from", b"to", b"subject", b"date", b"content-type", b"reply-to", b"from"]
PERL = """
use Mail::DKIM::Signer;
my ($key, $message) = @ARGV;
for my $method ('relaxed/relaxed', 'simple/simple', 'relaxed', 'simple/relaxed') {
    my $signer = Mail::DKIM::Signer->new(Algorithm => 'rsa-sha256', Method => $method, Domain => 'example.com',
        Selector => 'rsa', KeyFile => $key, Headers => 'X-Trace');
    $signer->PRINT($message);
    $signer->CLOSE;
    print $signer->signature->as_string, "\\r\\n";
}
"""


def key(name):
    with open(KEYS + name, "rb") as file:
        return file.read()


rsa = (b"rsa-sha256", b"rsa", key("rsa2048.pem"))
# PKCS#8 ends with the seed.
ed25519 = (b"ed25519-sha256", b"ed", base64.b64encode(key("ed25519.der")[16:48]))
fields = []
for (algorithm, selector, private), header, body in [
    (rsa, b"relaxed", b"relaxed"),
    (rsa, b"simple", b"simple"),
    (ed25519, b"relaxed", b"simple"),
    (ed25519, b"simple", b"relaxed"),
]:
    signer = dkim.DKIM(MESSAGE, signature_algorithm=algorithm)
    fields.append(signer.sign(selector, b"example.com", private, canonicalize=(header, body), include_headers=NAMES))
perl = ["perl", "-e", PERL, KEYS + "rsa2048.pkcs1.pem", MESSAGE]
fields.append(subprocess.run(perl, check=True, capture_output=True).stdout)
with open("signed-by-others.eml", "wb") as file:
    file.write(b"".join(fields) + MESSAGE)
