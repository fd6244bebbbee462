#!/usr/bin/env python3
"""Makes the files in this folder anew: test keys, signatures and forgeries for the engine's tests.

Keys and right signatures come from the openssl command (3.0 or newer) and ssh-keygen; forgeries are arithmetic
done here. Nothing comes from the code under test. The keys are published with this file: never use them for mail.

Run it inside this folder; it overwrites what is there.
"""
import hashlib
import pathlib
import subprocess
import tempfile


def openssl(*arguments, octets=None):
    return subprocess.run(["openssl", *arguments], input=octets, capture_output=True, check=True).stdout


def write(name, octets):
    pathlib.Path(name).write_bytes(octets)


# What is signed: folded, 8-bit, a NUL, a bare LF, no line end at the end.
OCTETS = b"from:Ann <ann@a.example>\r\nsubject:one\r\n two \xc3\xa4 \x00\xff\n\r\ndkim-signature:v=1; t=2; b="
HASH = hashlib.sha256(OCTETS).digest()
assert HASH[-1] % 2, "the forgery by cube root needs an odd hash: change OCTETS"
write("octets", OCTETS)


# Private keys in the forms that are read ----------------------------------------------------------------------------

def rsa(name, bits, exponent=65537):
    options = ["-pkeyopt", f"rsa_keygen_bits:{bits}", "-pkeyopt", f"rsa_keygen_pubexp:{exponent}"]
    write(f"{name}.pem", openssl("genpkey", "-algorithm", "RSA", *options))
    write(f"{name}.record", openssl("pkey", "-in", f"{name}.pem", "-pubout", "-outform", "DER"))
    write(f"{name}.sig", openssl("dgst", "-sha256", "-sign", f"{name}.pem", "octets"))


for bits in (768, 1024, 2048, 2050, 3072, 4096):
    rsa(f"rsa{bits}", bits)
rsa("rsa2048-e3", 2048, 3)
rsa("rsa8192", 8192)
pathlib.Path("rsa8192.pem").unlink()
write("rsa2048-empty.sig", openssl("dgst", "-sha256", "-sign", "rsa2048.pem", octets=b""))
write("rsa2048.pkcs8.der", openssl("pkcs8", "-topk8", "-nocrypt", "-in", "rsa2048.pem", "-outform", "DER"))
write("rsa2048.pkcs1.der", openssl("rsa", "-in", "rsa2048.pem", "-outform", "DER", "-traditional"))
write("rsa2048.pkcs1.pem", openssl("rsa", "-in", "rsa2048.pem", "-traditional"))
write("rsa2048.text.pem", openssl("rsa", "-in", "rsa2048.pem", "-text", "-traditional"))
write("rsa2048.bare.record", openssl("rsa", "-in", "rsa2048.pem", "-RSAPublicKey_out", "-outform", "DER"))

for name in ("ed25519", "ed25519-other"):
    write(f"{name}.pem", openssl("genpkey", "-algorithm", "ED25519"))
    write(f"{name}.der", openssl("pkey", "-in", f"{name}.pem", "-outform", "DER"))
    spki = openssl("pkey", "-in", f"{name}.pem", "-pubout", "-outform", "DER")
    write(f"{name}.spki", spki)
    write(f"{name}.record", spki[-32:])
SEED = pathlib.Path("ed25519.der").read_bytes()[-32:]
PUBLIC = pathlib.Path("ed25519.record").read_bytes()
OTHER_PUBLIC = pathlib.Path("ed25519-other.record").read_bytes()


def sign_ed25519(hash):
    with tempfile.NamedTemporaryFile() as file:
        file.write(hash)
        file.flush()
        return openssl("pkeyutl", "-sign", "-rawin", "-inkey", "ed25519.pem", "-in", file.name)


write("ed25519.sig", sign_ed25519(HASH))
write("ed25519-empty.sig", sign_ed25519(hashlib.sha256(b"").digest()))
# OneAsymmetricKey version 2 (RFC 8410 section 10.3), which openssl does not write.
V2 = bytes.fromhex("3051020101300506032b657004220420") + SEED + bytes.fromhex("812100")
write("ed25519.v2.der", V2 + PUBLIC)
write("ed25519.v2-mismatch.der", V2 + OTHER_PUBLIC)

# Forms that are refused by name -------------------------------------------------------------------------------------

write("encrypted.pem", openssl("pkcs8", "-topk8", "-in", "rsa1024.pem", "-passout", "pass:x"))
write("encrypted.der", openssl("pkcs8", "-topk8", "-in", "rsa1024.pem", "-passout", "pass:x", "-outform", "DER"))
write("encrypted.pkcs1.pem", openssl("rsa", "-in", "rsa1024.pem", "-traditional", "-aes128", "-passout", "pass:x"))
write("public.pem", openssl("pkey", "-in", "rsa1024.pem", "-pubout"))
write("public.bare.pem", openssl("rsa", "-in", "rsa1024.pem", "-RSAPublicKey_out"))
certificate = ["req", "-new", "-key", "rsa1024.pem", "-subj", "/CN=a.example"]
write("request.pem", openssl(*certificate))
write("certificate.pem", openssl(*certificate, "-x509", "-days", "36500"))
write("certificate.der", openssl("x509", "-in", "certificate.pem", "-outform", "DER"))
store = ["pkcs12", "-export", "-inkey", "rsa1024.pem", "-in", "certificate.pem"]
write("store.p12", openssl(*store, "-passout", "pass:x"))
write("ec.sec1.pem", openssl("ecparam", "-name", "prime256v1", "-genkey"))
write("ec.pem", openssl("pkcs8", "-topk8", "-nocrypt", "-in", "ec.sec1.pem"))
write("ec.sec1.der", openssl("ec", "-in", "ec.sec1.pem", "-outform", "DER"))
write("ec.spki", openssl("pkey", "-in", "ec.pem", "-pubout", "-outform", "DER"))
write("rsa-pss.pem", openssl("genpkey", "-algorithm", "RSA-PSS", "-pkeyopt", "rsa_keygen_bits:1024"))
write("rsa-pss.spki", openssl("pkey", "-in", "rsa-pss.pem", "-pubout", "-outform", "DER"))
write("ed448.pem", openssl("genpkey", "-algorithm", "ED448"))
write("ed448.spki", openssl("pkey", "-in", "ed448.pem", "-pubout", "-outform", "DER"))
write("three-primes.pem", openssl(
    "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-pkeyopt", "rsa_keygen_primes:3"))
pathlib.Path("openssh.pem").unlink(missing_ok=True)
subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-N", "", "-C", "", "-f", "openssh.pem"], check=True)
pathlib.Path("openssh.pem.pub").unlink()

# A key whose halves do not belong together: one octet of the modulus changed, still odd.
damaged = bytearray(pathlib.Path("rsa2048.pkcs1.der").read_bytes())
damaged[100] ^= 0x40
write("rsa2048.damaged.der", bytes(damaged))


# RSA forgeries (RFC 8017 section 8.2.2): right by the private key's arithmetic, wrong inside ------------------------

def numbers(name):
    """n, e, d of a key."""
    text = openssl("rsa", "-in", f"{name}.pem", "-noout", "-text").decode()
    found, current = {}, None
    for line in text.splitlines():
        if line and not line.startswith(" "):
            current, _, rest = line.partition(":")
            found[current] = rest
        else:
            found[current] += line
    modulus, private = (int(found[key].replace(":", "").replace(" ", ""), 16) for key in ("modulus", "privateExponent"))
    return modulus, int(found["publicExponent"].split()[0]), private


N, E, D = numbers("rsa2048")
SHA256 = bytes.fromhex("3031300d060960864801650304020105000420")
SHA1 = bytes.fromhex("3021300906052b0e03021a05000414") + hashlib.sha1(OCTETS).digest()


def encoded(tail, length=256, kind=1, fill=0xFF):
    return bytes([0, kind]) + bytes([fill]) * (length - len(tail) - 3) + b"\0" + tail


def forge(name, em):
    assert len(em) == 256
    write(f"forged-{name}.sig", pow(int.from_bytes(em, "big"), D, N).to_bytes(256, "big"))


right = encoded(SHA256 + HASH)
forge("none", right)
assert pathlib.Path("forged-none.sig").read_bytes() == pathlib.Path("rsa2048.sig").read_bytes()
pathlib.Path("forged-none.sig").unlink()
forge("no-null", encoded(bytes.fromhex("302f300b0609608648016503040201") + b"\x04\x20" + HASH))
forge("sha1", encoded(SHA1))
forge("sha512-name", encoded(SHA256.replace(b"\x04\x02\x01", b"\x04\x02\x03") + HASH))
forge("bare-hash", encoded(HASH))
forge("long-lengths", encoded(bytes.fromhex("308131300d06096086480165030402010500048120") + HASH))
parameters = bytes.fromhex("303b3017060960864801650304020104" + "0a") + b"x" * 10
forge("octets-in-parameters", encoded(parameters + b"\x04\x20" + HASH))
forge("hash-cut", encoded(bytes.fromhex("3030300d06096086480165030402010500041f") + HASH[:31]))
forge("garbage-behind", b"\0\1" + b"\xff" * 8 + b"\0" + SHA256 + HASH + b"\xaa" * (256 - 11 - 51))
forge("garbage-in-padding", right[:40] + b"\xfe" + right[41:])
forge("padding-ends-early", right[:100] + b"\0" + right[101:])
forge("kind-2", encoded(SHA256 + HASH, kind=2))
forge("kind-0", encoded(SHA256 + HASH, kind=0, fill=0))
forge("wrong-hash", encoded(SHA256 + hashlib.sha256(b"other").digest()))

# Without the private key, where the exponent is 3: a cube root whose cube begins with the right octets, and one whose
# cube ends with them.
N3, E3, D3 = numbers("rsa2048-e3")
assert E3 == 3


def cube_root(number):
    low, high = 0, 1 << (number.bit_length() // 3 + 2)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle ** 3 <= number else (low, middle - 1)
    return low


head = b"\0\1" + b"\xff" * 8 + b"\0" + SHA256 + HASH
root = cube_root(int.from_bytes(head + b"\xff" * (256 - len(head)), "big"))
assert (root ** 3).to_bytes(256, "big").startswith(head)
write("forged-cube-root.sig", root.to_bytes(256, "big"))
# An odd number has a cube root modulo every power of two; the cube is not reduced when it stays below the modulus.
tail = b"\0" + SHA256 + HASH
modulus = 1 << (8 * len(tail))
value = int.from_bytes(tail, "big")
root = pow(value, pow(3, -1, modulus // 4), modulus)
assert (root ** 3).to_bytes(256, "big").endswith(tail) and root ** 3 < N3
write("forged-cube-tail.sig", root.to_bytes(256, "big"))

# The signature plus the modulus: the same number modulo the modulus (RFC 8017 section 5.2.2 step 1).
N2050, _, _ = numbers("rsa2050")
good = int.from_bytes(pathlib.Path("rsa2050.sig").read_bytes(), "big")
write("forged-plus-modulus.sig", (good + N2050).to_bytes(257, "big"))


# Ed25519 forgeries (RFC 8032 section 5.1.7) --------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493


def from_little(octets):
    return int.from_bytes(octets, "little")


signature = pathlib.Path("ed25519.sig").read_bytes()
write("forged-ed25519-s-plus-order.sig", signature[:32] + (from_little(signature[32:]) + L).to_bytes(32, "little"))


def with_r(r):
    """The signature whose R is the neutral point, in the encoding given."""
    secret = bytearray(hashlib.sha512(SEED).digest()[:32])
    secret[0] &= 248
    secret[31] = secret[31] & 127 | 64
    k = from_little(hashlib.sha512(r + PUBLIC + HASH).digest())
    return r + (k * from_little(secret) % L).to_bytes(32, "little")


write("ed25519-neutral-r.sig", with_r((1).to_bytes(32, "little")))
write("forged-ed25519-r-not-canonical.sig", with_r((P + 1).to_bytes(32, "little")))
