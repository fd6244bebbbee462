#!/usr/bin/python3 -B
"""Verifying through a real Postfix: the Authentication-Results field that it delivers, what becomes of forged ones,
and what the client is told when a message cannot be judged.

Messages are signed by dkimpy, keys come from a DNS server on loopback, and clients are strangers (XCLIENT). One
daemon on unix: and one on inet: have the defaults; one more has every On-* action set to be strict.
"""
import time

import rig
from rig import dns, hop, keys, messages, milter, outside, postfix, smtp, wire

ID = "mx.rig.test"
LISTENERS = {name: name for name in ("unix", "inet")}
STRANGER = {"ADDR": "192.0.2.7", "NAME": "client.example"}


def setUpModule():
    global world
    world = World()


def tearDownModule():
    world.close()


class World:
    def __init__(self):
        home = rig.folder("verifying")
        self.rsa, self.ed25519 = keys.Key(home, "rsa"), keys.Key(home, "ed", "ed25519")
        self.rsa4096, self.rsa1024 = keys.Key(home, "large", bits=4096), keys.Key(home, "small", bits=1024)
        self.dns = dns.Server({
            "rsa._domainkey.example.com": self.rsa.record,
            "ed._domainkey.example.com": self.ed25519.record,
            "small._domainkey.example.com": self.rsa1024.record,
            # Over 512 octets: in several strings, and over TCP where the client does not take so much over UDP.
            "large._domainkey.example.com": self.rsa4096.record + "; n=" + "a long note " * 60,
            "revoked._domainkey.example.com": "v=DKIM1; k=rsa; p=",
            "silent._domainkey.example.com": dns.SILENT,
            "servfail._domainkey.example.com": dns.SERVFAIL,
            "nodata._domainkey.example.com": dns.NODATA,
        })
        self.hop = hop.Hop()
        nameserver = f"127.0.0.1:{self.dns.port}"
        if rig.program("dkim-milter").endswith("opendkim"):
            nameserver = nameserver.replace(":", "@")
        options = dict(Mode="sv", InternalHosts="127.0.0.1", AuthservID=ID, Nameservers=nameserver, DNSTimeout="2",
                       AlwaysAddARHeader="yes")
        self.milters = {
            "unix": milter.Milter("unix", **options).start(),
            "inet": milter.Milter("inet", **options).start(),
            "strict": milter.Milter("unix", **options, **{
                "On-BadSignature": "reject", "On-NoSignature": "reject", "On-KeyNotFound": "reject"}).start(),
        }
        self.postfix = postfix.Postfix({n: m.address for n, m in self.milters.items()}, self.hop.port).start()
        self.number = 0

    def close(self):
        self.postfix.stop()
        for m in self.milters.values():
            m.stop()
        self.hop.close()
        self.dns.close()

    def signed(self, selector="rsa", raw=None, key=None, c="relaxed/relaxed"):
        return outside.dkimpy_sign(raw or messages.plain(), "example.com", selector, key or self.rsa, c)

    def send(self, listener, raw, sender="alice@example.com", **rest):
        """Sends a message as a stranger; the answer's code and text, and the recipient to wait for."""
        self.number += 1
        rcpt = f"rcpt{self.number}@dest.test"
        return *smtp.send(self.postfix.ports[listener], raw, sender, rcpt, xclient=STRANGER, **rest), rcpt

    def through(self, listener, raw, **rest):
        """What was delivered of a message from a stranger, and its results."""
        code, text, rcpt = self.send(listener, raw, **rest)
        if code != 250:
            raise AssertionError(f"{code} {text}")
        got = self.hop.wait(rcpt).data
        return got, outside.results(got, ID)


class Verdicts(rig.TestCase):
    def one(self, found):
        self.assertEqual(len(found), 1, found)
        return found[0]

    @rig.cases({f"{listener} {name}": (listener, raw) for listener in LISTENERS for name, raw in [
        ("plain", messages.plain()), ("folded", messages.FOLDED), ("8bit", messages.EIGHT_BIT),
        ("no_body", messages.plain(body="")), ("null_sender", messages.BOUNCE), ("large", messages.of_size(3 << 20))]})
    def test_a_good_signature_passes(self, case):
        listener, raw = case
        for c in ("simple/simple", "relaxed/relaxed"):
            got, found = world.through(listener, world.signed(raw=raw, c=c))
            result = self.one(found)
            self.assertEqual(result.word, "pass", result.text)
            self.assertEqual(result.properties["header.d"], "example.com")
            self.assertEqual(result.properties["header.s"], "rsa")
            # RFC 8601, section 4: above the trace fields, so that it is known who wrote it.
            self.assertEqual([n.lower() for n, _ in wire.split(got)[0][:2]], [b"authentication-results", b"received"])
            self.assertTrue(got.endswith(raw), "what was sent follows unchanged")

    @rig.cases({"ed25519": ("ed", "ed25519"), "rsa4096": ("large", "rsa4096"), "rsa1024": ("small", "rsa1024")})
    def test_other_keys_pass(self, case):
        selector, key = case
        _, found = world.through("unix", world.signed(selector, key=getattr(world, key)))
        self.assertEqual(self.one(found).word, "pass", found)

    @rig.cases(LISTENERS)
    def test_smtputf8_mail_passes(self, listener):
        raw = world.signed(raw=messages.INTERNATIONAL)
        _, found = world.through(listener, raw, options="BODY=8BITMIME SMTPUTF8")
        self.assertEqual(self.one(found).word, "pass", found)

    @rig.cases(LISTENERS)
    def test_each_of_two_signatures_has_its_result(self, listener):
        raw = world.signed("ed", raw=world.signed(), key=world.ed25519)
        _, found = world.through(listener, raw)
        self.assertCountEqual([(r.properties["header.s"], r.word) for r in found], [("rsa", "pass"), ("ed", "pass")])
        self.assertIn("header.b", found[0].properties, "two signatures of one domain are told apart")

    @rig.cases(LISTENERS)
    def test_a_changed_body_fails(self, listener):
        _, found = world.through(listener, world.signed().replace(b"noon", b"four"))
        self.assertEqual(self.one(found).word, "fail", found)

    @rig.cases(LISTENERS)
    def test_a_changed_header_fails(self, listener):
        _, found = world.through(listener, world.signed().replace(b"Thursday", b"Saturday"))
        self.assertEqual(self.one(found).word, "fail", found)

    @rig.cases(LISTENERS)
    def test_no_signature_is_none(self, listener):
        _, found = world.through(listener, messages.plain())
        self.assertEqual(self.one(found).word, "none", found)

    @rig.cases({s: s for s in ("absent", "nodata", "revoked")})
    def test_a_key_that_is_not_there_is_permanent(self, selector):
        """RFC 6376, section 6.1.2; RFC 8601, section 2.7.1."""
        _, found = world.through("unix", world.signed(selector))
        self.assertEqual(self.one(found).word, "permerror", found)

    def test_a_malformed_signature_hides_no_good_one(self):
        raw = b"DKIM-Signature: v=1; a=rsa-sha256; d=example.com; this is no tag\r\n" + world.signed()
        _, found = world.through("unix", raw)
        self.assertIn("pass", [r.word for r in found])
        self.assertEqual(len(found), 2, found)


class Trouble(rig.TestCase):
    @rig.cases({f"{listener} {s}": (listener, s) for listener in LISTENERS for s in ("servfail", "silent")})
    def test_dns_trouble_is_answered_with_451(self, case):
        listener, selector = case
        began = time.monotonic()
        code, text, _ = world.send(listener, world.signed(selector))
        self.assertEqual(code, 451, text)
        self.assertLess(time.monotonic() - began, 8, "within Sendmail's patience")

    def test_a_pass_beside_dns_trouble_is_delivered(self):
        _, found = world.through("unix", world.signed("silent", raw=world.signed()))
        self.assertCountEqual([(r.properties["header.s"], r.word) for r in found],
                              [("rsa", "pass"), ("silent", "temperror")])

    def test_the_session_lives_on_after_a_451(self):
        with smtp.Client(world.postfix.ports["unix"], xclient=STRANGER) as client:
            code, text = client.send(world.signed("servfail"), "alice@example.com", "first@dest.test")
            self.assertEqual(code, 451, text)
            code, text = client.send(world.signed(), "alice@example.com", "second@dest.test")
            self.assertEqual(code, 250, text)
        self.assertEqual([r.word for r in outside.results(world.hop.wait("second@dest.test").data, ID)], ["pass"])

    def test_strict_actions_reject(self):
        for raw in (world.signed().replace(b"noon", b"four"), messages.plain(), world.signed("absent")):
            code, text, _ = world.send("strict", raw)
            self.assertEqual(code, 550, text)
        code, text, _ = world.send("strict", world.signed())
        self.assertEqual(code, 250, text)

    @rig.cases(LISTENERS)
    def test_the_log_says_what_was_found(self, listener):
        code, text, _ = world.send(listener, world.signed())
        world.milters[listener].logged(text.split()[-1], r"\bverified\b.*pass")
        code, text, _ = world.send(listener, world.signed().replace(b"noon", b"four"))
        world.milters[listener].logged(text.split()[-1], r"\bverified\b.*fail")


# Every way of writing our name that a reader would take for ours (RFC 8601, sections 2.2 and 5).
FORGED = [
    b" mx.rig.test; dkim=pass header.d=bank.example",
    b"mx.rig.test;dkim=pass header.d=bank.example",
    b" MX.Rig.Test; dkim=pass header.d=bank.example",
    b" mx.rig.test 1; dkim=pass header.d=bank.example",
    b" (a comment) mx.rig.test (another \\) one); spf=pass smtp.mailfrom=bank.example",
    b"\r\n\tmx.rig.test;\r\n\tdkim=pass header.d=bank.example",
    b' "mx.rig.test"; dkim=pass header.d=bank.example',
    b' "mx\\.rig.test"; dkim=pass',
    b" mx.rig.test; none",
    b" mx.rig.test",
    b" mx.rig.test; dkim=pass (" + b"x" * 700 + b"\r\n " + b"y" * 700 + b"\r\n " + b"z" * 5000 + b")",
    b" mx.rig.test; this is no result at all;;= (",
]
OTHERS = [
    b" other.rig.test; dkim=pass header.d=bank.example",
    b" mx.rig.test.example; dkim=pass",
    b" xmx.rig.test; dkim=pass",
    b" rig.test; dkim=fail reason=\"mx.rig.test; dkim=pass\"",
    b" (mx.rig.test) elsewhere.example; none",
]


class Forged(rig.TestCase):
    def check(self, listener, raw, words):
        """All forged fields are gone, the others are there in order, ours is on top."""
        values = [v for pair in zip(FORGED, OTHERS + [None] * len(FORGED)) for v in pair if v is not None]
        fields = b"".join(b"Authentication-Results:" + v + b"\r\n" for v in values)
        head, tail = raw.split(b"Subject:", 1)
        got, found = world.through(listener, head + fields + b"Subject:" + tail)
        left = [v for n, v in wire.split(got)[0] if n.lower() == b"authentication-results"]
        self.assertEqual(left[len(left) - len(OTHERS):], OTHERS)
        self.assertEqual(len(left), len(OTHERS) + 1, left)
        self.assertEqual([r.word for r in found], words)

    @rig.cases(LISTENERS)
    def test_results_in_our_name_are_removed_and_others_kept(self, listener):
        self.check(listener, world.signed(), ["pass"])

    @rig.cases(LISTENERS)
    def test_they_are_removed_from_unsigned_mail(self, listener):
        self.check(listener, messages.plain(), ["none"])

    def test_they_are_removed_when_a_signature_is_malformed(self):
        raw = b"DKIM-Signature: nonsense\r\n" + world.signed()
        got, found = world.through("unix", b"Authentication-Results:" + FORGED[0] + b"\r\n" + raw)
        self.assertNotIn(b"bank.example", got)
        self.assertIn("pass", [r.word for r in found])

    def test_they_are_removed_when_there_is_no_author(self):
        raw = b"Authentication-Results:" + FORGED[0] + b"\r\n" + messages.plain().split(b"\r\n", 1)[1]
        code, text, rcpt = world.send("unix", raw)
        self.assertEqual(code, 250, text)
        self.assertNotIn(b"bank.example", world.hop.wait(rcpt).data)


if __name__ == "__main__":
    rig.main()
