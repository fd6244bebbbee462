#!/usr/bin/python3 -B
"""Signing through a real Postfix: what it delivers must carry our signature, other people's verifiers must pass it,
and nothing else of the message may have changed.

A daemon for each of unix: and inet:, simple/simple and relaxed/relaxed, each behind a port of one private Postfix.
"""
import re, statistics, subprocess, time

import rig
from rig import hop, keys, messages, milter, outside, postfix, smtp, wire

LISTENERS = {f"{transport}-{c}": (transport, c) for transport in ("unix", "inet")
             for c in ("simple/simple", "relaxed/relaxed")}
IDN = "xn--bcher-kva.example"


def setUpModule():
    global world
    world = World()


def tearDownModule():
    world.close()


class World:
    """The daemons, their keys and tables, the Postfix before them and the hop behind it."""

    def __init__(self):
        self.home = rig.folder("signing")
        self.rsa = keys.Key(self.home, "rsa")
        self.ed25519 = keys.Key(self.home, "ed25519", "ed25519")
        self.records = {f"{selector}._domainkey.{domain}": key.record
                        for domain in ("example.com", "double.example", IDN)
                        for selector, key in (("rsa", self.rsa), ("ed", self.ed25519))}
        (self.home / "KeyTable").write_text(
            f"plain example.com:rsa:{self.rsa.path}\n"
            f"one double.example:rsa:{self.rsa.path}\n"
            f"two double.example:ed:{self.ed25519.path}\n"
            f"idn {IDN}:rsa:{self.rsa.path}\n")
        (self.home / "SigningTable").write_text(
            f"*@example.com plain\n*@double.example one\n*@double.example two\n*@{IDN} idn\n")
        self.hop = hop.Hop()
        self.milters = {name: milter.Milter(
            transport, Canonicalization=c, Mode="sv", InternalHosts="127.0.0.1", MultipleSignatures="yes",
            KeyTable=f"file:{self.home}/KeyTable", SigningTable=f"refile:{self.home}/SigningTable",
            OversignHeaders="From", AuthservID="mx.rig.test").start() for name, (transport, c) in LISTENERS.items()}
        addresses = {name: m.address for name, m in self.milters.items()}
        self.postfix = postfix.Postfix(addresses, self.hop.port, local_milters=addresses["unix-simple/simple"],
                                       origin="example.com").start()
        self.number = 0

    def close(self):
        self.postfix.stop()
        for m in self.milters.values():
            m.stop()
        self.hop.close()

    def rcpt(self):
        """A recipient that nobody had before, so that what comes out is known to be what went in."""
        self.number += 1
        return f"rcpt{self.number}@dest.test"

    def through(self, listener, raw, sender="alice@example.com", **rest):
        """Sends a message and returns what was delivered, and its queue id."""
        rcpt = self.rcpt()
        code, text = smtp.send(self.postfix.ports[listener], raw, sender, rcpt, **rest)
        if code != 250:
            raise AssertionError(f"{code} {text}\n{self.postfix.log()[-2000:]}")
        return self.hop.wait(rcpt).data, text.split()[-1]


class EveryMessage(rig.TestCase):
    """Each message of a table, through each daemon."""

    @classmethod
    def setUpClass(cls):
        cls.delivered, sent = {}, []
        for listener in LISTENERS:
            for name, (raw, sender) in messages.TO_SIGN.items():
                rcpt = world.rcpt()
                sent.append((f"{listener} {name}", rcpt, smtp.send(world.postfix.ports[listener], raw, sender, rcpt)))
        for case, rcpt, (code, text) in sent:
            cls.delivered[case] = world.hop.wait(rcpt, 60).data if code == 250 else f"{code} {text}"
        # Perl once for all of them; the large one once only, as Mail::DKIM needs seconds for it.
        raws = {case: raw for case, raw in cls.delivered.items()
                if isinstance(raw, bytes) and (len(raw) < 1 << 20 or case.startswith("unix-relaxed"))}
        cls.mail_dkim = dict(zip(raws, outside.mail_dkim_verify(list(raws.values()), world.records)))

    @rig.cases({f"{listener} {name}": (listener, name)
                for listener in LISTENERS for name in messages.TO_SIGN})
    def test_is_signed_and_passes(self, case):
        listener, name = case
        raw, got = messages.TO_SIGN[name][0], self.delivered[f"{listener} {name}"]
        self.assertIsInstance(got, bytes)
        fields, _ = wire.split(got)
        tags = signature_tags(fields[0])
        self.assertEqual((tags["d"], tags["s"], tags["c"]), ("example.com", "rsa", LISTENERS[listener][1]))
        self.assertEqual(re.split(r"\s*:\s*", tags["h"].lower()).count("from"), 2, "From is oversigned")
        self.assertEqual([n.lower() for n, _ in fields[:2]], [b"dkim-signature", b"received"])
        rest = got.split(b"\r\n" + fields[2][0] + b":", 1)[1]
        self.assertTrue(fields[2][0] + b":" + rest == raw, "what was sent follows unchanged")
        self.assertEqual(outside.dkimpy_verify(got, world.records), {"rsa": "pass"})
        self.assertIn(self.mail_dkim.get(f"{listener} {name}"), [{"rsa": "pass"}, None])


class Signing(rig.TestCase):
    def passes(self, raw, selectors=("rsa",)):
        self.assertCountEqual(outside.selectors(raw), selectors)
        self.assertEqual(outside.failures(raw, world.records), [])

    @rig.cases({name: name for name in LISTENERS})
    def test_rsa_and_ed25519_on_one_message(self, listener):
        raw = messages.plain(author="alice@double.example")
        got, _ = world.through(listener, raw, "alice@double.example")
        self.passes(got, ["rsa", "ed"])
        algorithms = {signature_tags(f)["a"] for f in wire.split(got)[0] if f[0].lower() == b"dkim-signature"}
        self.assertEqual(algorithms, {"rsa-sha256", "ed25519-sha256"})

    @rig.cases({name: name for name in LISTENERS})
    def test_smtputf8_mail_is_signed_for_the_a_label(self, listener):
        got, _ = world.through(listener, messages.INTERNATIONAL, "j\u00f6rg@b\u00fccher.example",
                               options="BODY=8BITMIME SMTPUTF8")
        self.passes(got)
        self.assertEqual(signature_tags(wire.split(got)[0][0])["d"], IDN)

    def test_two_recipients_get_the_same_signed_message(self):
        rcpts = [world.rcpt(), world.rcpt()]
        port = world.postfix.ports["unix-relaxed/relaxed"]
        code, text = smtp.send(port, messages.plain(), "alice@example.com", rcpts)
        self.assertEqual(code, 250, text)
        one, two = (world.hop.wait(rcpt).data for rcpt in rcpts)
        self.assertEqual(one, two)
        self.passes(one)

    @rig.cases({name: name for name in LISTENERS})
    def test_several_messages_in_one_session(self, listener):
        """Each is judged by itself: a message without a key, an envelope that is given up and a body that is changed
        leave nothing behind."""
        sent = []
        with smtp.Client(world.postfix.ports[listener]) as client:
            for n, author in enumerate(["alice@example.com", "eve@elsewhere.example", "alice@double.example",
                                        "alice@example.com", "alice@example.com"]):
                raw, rcpt = messages.plain(subject=f"Message {n}", body=f"{n}\n" * n, author=author), world.rcpt()
                code, text = client.send(raw, author, rcpt)
                self.assertEqual(code, 250, text)
                sent.append((rcpt, author))
                client.command("MAIL FROM:<alice@example.com>", 250)
                client.command("RSET", 250)
            client.quit()
        for rcpt, author in sent:
            got = world.hop.wait(rcpt).data
            wanted = {"eve@elsewhere.example": [], "alice@double.example": ["rsa", "ed"]}.get(author, ["rsa"])
            self.assertCountEqual(outside.selectors(got), wanted, author)
            if wanted:
                self.passes(got, wanted)

    def test_mail_by_sendmail_is_signed(self):
        rcpt = world.rcpt()
        world.postfix.sendmail(messages.FOLDED, "alice@example.com", rcpt)
        self.passes(world.hop.wait(rcpt).data)

    def test_mail_by_sendmail_with_completed_fields_is_signed(self):
        """Postfix adds From, Date and Message-ID, and the domain to the author's address, before we see them."""
        rcpt = world.rcpt()
        world.postfix.sendmail(b"From: alice\r\nSubject: cron\r\n\r\nAll is well.\r\n", "alice", rcpt)
        got = world.hop.wait(rcpt).data
        self.passes(got)
        self.assertIn("date", signature_tags(wire.split(got)[0][0])["h"].lower())

    def test_a_bounce_that_postfix_writes_is_signed(self):
        """The null sender says nothing, the author's domain does."""
        world.number += 1
        sender = f"sender{world.number}@example.com"
        port = world.postfix.ports["unix-simple/simple"]
        code, text = smtp.send(port, messages.plain(), sender, "refused@dest.test")
        self.assertEqual(code, 250, text)
        kept = world.hop.wait(sender)
        self.assertEqual(kept.sender, "")
        self.assertIn(b"<MAILER-DAEMON@example.com>", kept.data)
        self.passes(kept.data)

    @rig.cases({name: name for name in LISTENERS})
    def test_the_log_says_what_was_done_with_each_message(self, listener):
        _, queue_id = world.through(listener, messages.plain())
        world.milters[listener].logged(queue_id, r"\bsigned\b")
        _, queue_id = world.through(listener, messages.plain(author="eve@elsewhere.example"), "eve@elsewhere.example")
        world.milters[listener].logged(queue_id, r"\b(verified|left alone)\b")

    @rig.cases({name: name for name in LISTENERS})
    def test_a_stranger_who_writes_as_us_is_not_signed(self, listener):
        got, queue_id = world.through(listener, messages.plain(),
                                      xclient={"ADDR": "192.0.2.7", "NAME": "client.example"})
        self.assertEqual(outside.selectors(got), [])
        world.milters[listener].logged(queue_id, r"\b(verified|left alone)\b")

    @rig.cases({name: name for name in LISTENERS})
    def test_a_stranger_who_has_logged_in_is_signed(self, listener):
        got, _ = world.through(listener, messages.plain(),
                               xclient={"ADDR": "192.0.2.7", "NAME": "client.example", "LOGIN": "alice"})
        self.passes(got)

    def test_two_from_fields_are_not_signed(self):
        raw = b"From: eve@elsewhere.example\r\n" + messages.plain()
        got, _ = world.through("unix-relaxed/relaxed", raw)
        self.assertEqual(outside.selectors(got), [])

    def test_inet_is_not_slower_than_unix_by_a_delayed_acknowledgement(self):
        """Nagle and delayed acknowledgement cost 40 ms and more for each message, once they meet."""
        times = {"unix-relaxed/relaxed": [], "inet-relaxed/relaxed": []}
        for _ in range(25):
            for listener, taken in times.items():
                with smtp.Client(world.postfix.ports[listener]) as client:
                    began = time.monotonic()
                    code, text = client.send(messages.plain(), "alice@example.com", "many@dest.test")
                    taken.append(time.monotonic() - began)
                    self.assertEqual(code, 250, text)
        unix, inet = (statistics.median(t) * 1000 for t in times.values())
        self.assertLess(inet, unix + 15, f"unix {unix:.1f} ms, inet {inet:.1f} ms")


def signature_tags(field):
    """The tags of a DKIM-Signature field, white space at their ends removed."""
    name, value = field
    if name.lower() != b"dkim-signature":
        raise AssertionError(f"the first field is {name}")
    return {k.strip(): v.strip() for k, _, v in (t.partition("=") for t in value.decode("latin1").split(";"))}


if __name__ == "__main__":
    rig.main()
