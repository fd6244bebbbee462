#!/usr/bin/python3
"""Makes signed.mbox: an mbox with one message that dkimpy signed with dkim-core's ed25519.pem.

A line of its body begins with "From ", which an mbox keeps as ">From ". Needs Debian's python3-dkim and python3-nacl.
Run it in its own folder.
"""

import base64
import subprocess

import dkim

PEM = "../../../dkim-core/tests/data/keys/ed25519.pem"
MESSAGE = (
    b"From: Ann <ann@example.com>\r\n"
    b"To: Bo <bo@example.net>\r\n"
    b"Subject: kept in an mbox\r\n"
    b"Date: Tue, 06 Jan 2026 10:00:00 +0000\r\n"
    b"\r\n"
    b"Two  spaces, and a line to be quoted:\r\n"
    b"From here on all is well.\r\n"
    b"> From is no such line.\r\n"
)

der = subprocess.run(["openssl", "pkey", "-in", PEM, "-outform", "DER"], check=True, capture_output=True).stdout
seed = base64.b64encode(der[-32:])
field = dkim.sign(MESSAGE, b"perf", b"example.com", seed, canonicalize=(b"relaxed", b"relaxed"),
                  signature_algorithm=b"ed25519-sha256")
stored = (field + MESSAGE).replace(b"\r\n", b"\n").replace(b"\nFrom here", b"\n>From here")
with open("signed.mbox", "wb") as file:
    file.write(b"From ann@example.com Tue Jan  6 10:00:00 2026\n" + stored)
