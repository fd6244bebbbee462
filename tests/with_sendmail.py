#!/usr/bin/python3 -B
"""Signing and verifying through a real Sendmail 8.17, which differs from Postfix in the edits of headers, in what it
shows of a message, and in its patience.

Sendmail has no XCLIENT: all clients are 127.0.0.1, and the verifying daemons hold another address for internal.
"""
import time

import rig
from rig import dns, hop, keys, messages, milter, outside, sendmail, smtp, wire
from verifying import FORGED, OTHERS

ID = "mx.rig.test"
CANONICALIZATIONS = {"simple/simple": "simple/simple", "relaxed/relaxed": "relaxed/relaxed"}
# Sendmail rewrites a list of addresses that is written oddly, after the milter has seen it.
MESSAGES = {name: value for name, value in messages.TO_SIGN.items() if name not in ("folded", "long_line", "large")} | {
    "folded": (messages.plain(subject="Re:  [list]   a\n\tfolded  \t subject", body="  one \t\n\n two  \n\n\n"),
               "alice@example.com"),
    "large": (messages.of_size(5 << 20), "alice@example.com"),
}


def setUpModule():
    global world
    world = World()


def tearDownModule():
    world.close()


class World:
    def __init__(self):
        home = rig.folder("with-sendmail")
        self.rsa, self.ed25519 = keys.Key(home, "rsa"), keys.Key(home, "ed", "ed25519")
        self.records = {"rsa._domainkey.example.com": self.rsa.record, "rsa._domainkey.double.example": self.rsa.record,
                        "ed._domainkey.double.example": self.ed25519.record}
        (home / "KeyTable").write_text(f"plain example.com:rsa:{self.rsa.path}\n"
                                       f"one double.example:rsa:{self.rsa.path}\n"
                                       f"two double.example:ed:{self.ed25519.path}\n")
        (home / "SigningTable").write_text("*@example.com plain\n*@double.example one\n*@double.example two\n")
        self.dns = dns.Server(self.records | {"silent._domainkey.example.com": dns.SILENT})
        self.hop = hop.Hop()
        self.milters = {}
        for transport in ("unix", "inet"):
            for c in CANONICALIZATIONS:
                self.milters[f"{transport}{c[:3]}"] = milter.Milter(
                    transport, Mode="sv", Canonicalization=c, KeyTable=f"file:{home}/KeyTable",
                    SigningTable=f"refile:{home}/SigningTable", MultipleSignatures="yes", InternalHosts="127.0.0.1")
            self.milters[f"{transport}v"] = milter.Milter(
                transport, Mode="sv", InternalHosts="192.0.2.99", AuthservID=ID, AlwaysAddARHeader="yes",
                Nameservers=f"127.0.0.1:{self.dns.port}", DNSTimeout="3")
        for one in self.milters.values():
            one.start()
        addresses = {name: f"unix:{m.socket}" if m.transport == "unix" else f"inet:{m.port}@127.0.0.1"
                     for name, m in self.milters.items()}
        self.mta = sendmail.Sendmail(addresses, self.hop.port).start()
        self.number = 0

    def close(self):
        self.mta.stop()
        for m in self.milters.values():
            m.stop()
        self.hop.close()
        self.dns.close()

    def through(self, listener, raw, sender="alice@example.com", options=""):
        self.number += 1
        rcpt = f"rcpt{self.number}@dest.test"
        code, text = smtp.send(self.mta.ports[listener], raw, sender, rcpt, options=options)
        if code != 250:
            raise AssertionError(f"{code} {text}")
        return self.hop.wait(rcpt, 30).data

    def signed(self, selector="rsa", raw=None, c="relaxed/relaxed"):
        return outside.dkimpy_sign(raw or messages.plain(), "example.com", selector, self.rsa, c)


class WithSendmail(rig.TestCase):
    @rig.cases({f"{transport} {c} {name}": (transport, c, name) for transport in ("unix", "inet")
                for c in CANONICALIZATIONS for name in MESSAGES})
    def test_what_we_sign_passes(self, case):
        transport, c, name = case
        raw, sender = MESSAGES[name]
        got = world.through(f"{transport}{c[:3]}", raw, sender, options="BODY=8BITMIME" if name == "8bit" else "")
        fields = wire.split(got)[0]
        self.assertEqual([n.lower() for n, _ in fields[:2]], [b"dkim-signature", b"received"])
        self.assertIn(c.encode(), fields[0][1])
        self.assertEqual(outside.failures(got, world.records), [])

    @rig.cases(CANONICALIZATIONS)
    def test_two_signatures_pass(self, c):
        got = world.through(f"unix{c[:3]}", messages.plain(author="alice@double.example"), "alice@double.example")
        self.assertCountEqual(outside.selectors(got), ["rsa", "ed"])
        self.assertEqual(outside.failures(got, world.records), [])

    def test_fields_that_sendmail_adds_later_are_not_signed(self):
        """It adds an absent Date and Message-ID after the milter: a signature over their absence would break."""
        raw = b"From: alice@example.com\r\nTo: bob@dest.test\r\nSubject: bare\r\n\r\nno date\r\n"
        got = world.through("unixrel", raw)
        self.assertIn(b"\r\nDate: ", got)
        self.assertEqual(outside.failures(got, world.records), [])

    @rig.cases({"unix": "unixv", "inet": "inetv"})
    def test_verdicts_arrive(self, listener):
        for raw, word in [(world.signed(), "pass"), (world.signed(c="simple/simple"), "pass"),
                          (world.signed().replace(b"noon", b"four"), "fail"), (messages.plain(), "none")]:
            got = world.through(listener, raw)
            self.assertEqual([r.word for r in outside.results(got, ID)], [word], got[:300])
            self.assertEqual(wire.split(got)[0][0][0].lower(), b"authentication-results")

    def test_dns_trouble_is_answered_with_451_in_time(self):
        """Sendmail waits 10 s for an answer, and then gives up the milter."""
        began = time.monotonic()
        with smtp.Client(world.mta.ports["unixv"]) as client:
            code, text = client.send(world.signed("silent"), "alice@example.com", "bob@dest.test", options="")
            self.assertEqual(code, 451, text)
            self.assertLess(time.monotonic() - began, 8)
            code, text = client.send(world.signed(), "alice@example.com", "next@dest.test", options="")
            self.assertEqual(code, 250, text)
        self.assertEqual([r.word for r in outside.results(world.hop.wait("next@dest.test", 30).data, ID)], ["pass"])

    @rig.cases({"unix": "unixv", "inet": "inetv"})
    def test_results_in_our_name_are_removed_and_others_kept(self, listener):
        """Sendmail's numbers stay as fields are deleted, where Postfix renumbers them."""
        values = [v for pair in zip(FORGED, OTHERS + [None] * len(FORGED)) for v in pair if v is not None]
        fields = b"".join(b"Authentication-Results:" + v + b"\r\n" for v in values)
        got = world.through(listener, fields + world.signed())
        left = [v for n, v in wire.split(got)[0] if n.lower() == b"authentication-results"]
        self.assertEqual(left[1:], OTHERS)
        self.assertEqual([r.word for r in outside.results(got, ID)], ["pass"])

    @rig.cases(CANONICALIZATIONS)
    def test_several_messages_in_one_session(self, c):
        with smtp.Client(world.mta.ports[f"inet{c[:3]}"]) as client:
            for n in range(5):
                raw = messages.plain(subject=f"Message {n}", body=f"{n}\n" * n)
                code, text = client.send(raw, "alice@example.com", f"series{n}{c[:3]}@dest.test", options="")
                self.assertEqual(code, 250, text)
                client.command("MAIL FROM:<alice@example.com>", 250)
                client.command("RSET", 250)
            client.quit()
        for n in range(5):
            got = world.hop.wait(f"series{n}{c[:3]}@dest.test", 30).data
            self.assertEqual(outside.failures(got, world.records), [])


if __name__ == "__main__":
    rig.main()
