#!/usr/bin/python3 -B
"""dkim-sign and dkim-verify as a person or a script calls them: arguments, forms of input, output, exit codes, memory.

What they compute is checked by crosscheck.py.
"""
import json, os, subprocess, threading, time

import rig
from rig import dns, keys, messages, milter, outside, wire

KEYS = {"index", "domain", "selector", "identity", "algorithm", "canonicalization", "result", "reason", "key_bits",
        "testing", "unsigned_octets"}


def setUpModule():
    global home, rsa, ed25519, records, zone
    home = rig.folder("tools")
    rsa, ed25519 = keys.Key(home, "rsa"), keys.Key(home, "ed", "ed25519")
    records = {"rsa._domainkey.example.com": rsa.record, "ed._domainkey.example.com": ed25519.record}
    zone = home / "records"
    zone.write_text("".join(f'{name}. 300 IN TXT "{text[:200]}" "{text[200:]}"\n' for name, text in records.items())
                    + "! SERVFAIL trouble._domainkey.example.com\n! TIMEOUT late._domainkey.example.com\n")


def run(program, *arguments, stdin=b""):
    return subprocess.run([rig.program(program), *map(str, arguments)], input=stdin, capture_output=True, timeout=60)


def signed(selector="rsa", raw=None):
    return outside.dkimpy_sign(raw or messages.plain(), "example.com", selector, rsa, "relaxed/relaxed")


def file(raw):
    path = home / "message.eml"
    path.write_bytes(raw)
    return path


class Sign(rig.TestCase):
    ARGUMENTS = ["-d", "example.com", "-s", "rsa", "-k"]

    def sign(self, *more, stdin=b""):
        done = run("dkim-sign", *self.ARGUMENTS, rsa.path, *more, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def passes(self, raw):
        self.assertTrue(outside.selectors(raw))
        self.assertEqual(set(outside.dkimpy_verify(raw, records).values()), {"pass"})

    def tags(self, raw):
        name, value = wire.split(raw)[0][0]
        self.assertEqual(name, b"DKIM-Signature")
        return {k.strip(): v.strip() for k, _, v in (t.partition("=") for t in value.decode().split(";"))}

    def test_the_signature_stands_on_top_of_the_message(self):
        got = self.sign(file(messages.FOLDED))
        self.assertTrue(got.endswith(messages.FOLDED))
        self.passes(got)

    def test_the_message_comes_from_standard_input_too(self):
        for name in ([], ["-"]):
            got = self.sign(*name, stdin=messages.plain())
            self.assertTrue(got.endswith(messages.plain()))
            self.passes(got)

    def test_lines_may_end_in_lf(self):
        """The signature is for the message as SMTP carries it."""
        got = self.sign("--now", "1780000000", file(messages.FOLDED.replace(b"\r\n", b"\n")))
        as_crlf = got.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self.assertEqual(as_crlf, self.sign("--now", "1780000000", file(messages.FOLDED)))
        self.passes(as_crlf)

    def test_the_separator_of_an_mbox_is_not_signed(self):
        separator = b"From alice@example.com Thu Jun  4 09:30:00 2026\r\n"
        got = self.sign("--header-only", file(separator + messages.plain()))
        self.passes(got + messages.plain())

    def test_header_only_gives_the_field_alone(self):
        got = self.sign("--header-only", file(messages.plain()))
        self.assertTrue(got.startswith(b"DKIM-Signature:"))
        self.assertTrue(got.endswith(b"\r\n"))
        self.passes(got + messages.plain())

    def test_now_is_the_time_of_the_signature(self):
        self.assertEqual(self.tags(self.sign("--now", "1780000000", file(messages.plain())))["t"], "1780000000")

    @rig.cases({c: c for c in ("simple/simple", "simple/relaxed", "relaxed/simple", "relaxed/relaxed")})
    def test_canonicalization(self, c):
        got = self.sign("-c", c, file(messages.FOLDED))
        self.assertEqual(self.tags(got)["c"], c)
        self.passes(got)

    def test_identity(self):
        got = self.sign("-i", "alice@mail.example.com", file(messages.plain()))
        self.assertEqual(self.tags(got)["i"], "alice@mail.example.com")
        self.passes(got)
        self.assertNotEqual(run("dkim-sign", *self.ARGUMENTS, rsa.path, "-i", "a@elsewhere.example",
                                file(messages.plain())).returncode, 0)

    def test_several_keys_make_several_signatures(self):
        got = self.sign("-s", "ed", "-k", ed25519.path, file(messages.plain()))
        self.assertCountEqual(outside.selectors(got), ["rsa", "ed"])
        self.passes(got)

    @rig.cases({"none": b"", "two": b"From: a@example.com\r\nFrom: b@example.com\r\n"})
    def test_a_message_without_one_from_field_is_not_signed(self, fields):
        raw = fields + messages.plain().split(b"\r\n", 1)[1]
        done = run("dkim-sign", *self.ARGUMENTS, rsa.path, file(raw))
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, b"")
        self.assertIn(b"From", done.stderr)

    def test_a_key_of_another_form_is_named(self):
        path = home / "public.pem"
        path.write_bytes(keys.openssl("pkey", "-in", rsa.path, "-pubout"))
        done = run("dkim-sign", *self.ARGUMENTS, path, file(messages.plain()))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"public", done.stderr.lower().replace(str(path).encode(), b""))

    @rig.cases({"pkcs1": ["rsa", "-traditional"], "pkcs1 der": ["rsa", "-traditional", "-outform", "DER"],
                "pkcs8 der": ["pkey", "-outform", "DER"]})
    def test_keys_come_in_every_form(self, how):
        path = home / "form"
        path.write_bytes(keys.openssl(how[0], "-in", rsa.path, *how[1:]))
        path.chmod(0o600)
        done = run("dkim-sign", *self.ARGUMENTS, path, file(messages.plain()))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.passes(done.stdout)

    def test_usage_and_missing_files(self):
        self.assertEqual(run("dkim-sign").returncode, 64)
        self.assertEqual(run("dkim-sign", "--frobnicate").returncode, 64)
        self.assertEqual(run("dkim-sign", *self.ARGUMENTS, rsa.path, "/nowhere").returncode, 66)
        done = run("dkim-sign", *self.ARGUMENTS, "/nowhere", file(messages.plain()))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"/nowhere", done.stderr)


class Verify(rig.TestCase):
    def json(self, raw, code, *more):
        done = run("dkim-verify", "--json", "--records", zone, *more, file(raw))
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout)

    def test_json_says_everything(self):
        got = self.json(signed(), 0)
        self.assertEqual(got["file"], str(home / "message.eml"))
        self.assertIn("alice@example.com", json.dumps(got["authors"]))
        signature, = got["signatures"]
        self.assertLessEqual(KEYS, set(signature))
        wanted = {"index": 0, "domain": "example.com", "selector": "rsa", "identity": "@example.com",
                  "algorithm": "rsa-sha256", "canonicalization": "relaxed/relaxed", "result": "pass", "key_bits": 2048,
                  "testing": False, "unsigned_octets": 0}
        self.assertEqual({name: signature[name] for name in wanted}, wanted)

    def test_every_field_is_counted_from_the_top(self):
        raw = b"DKIM-Signature: what is this\r\n" + signed("trouble", raw=signed())
        got = self.json(raw, 0)["signatures"]
        self.assertEqual([s["index"] for s in got], [0, 1, 2])
        self.assertEqual([s["result"] for s in got][1:], ["temperror", "pass"])
        self.assertIn(got[0]["result"], ["neutral", "permerror"])
        self.assertTrue(got[0]["reason"])

    @rig.cases({"pass": (lambda: signed(), 0, ["pass"]),
                "body": (lambda: signed().replace(b"noon", b"four"), 1, ["fail"]),
                "header": (lambda: signed().replace(b"Thursday", b"Sunday"), 1, ["fail"]),
                "unsigned": (lambda: messages.plain(), 1, []), "no key": (lambda: signed("absent"), 1, ["permerror"]),
                "servfail": (lambda: signed("trouble"), 75, ["temperror"]),
                "time-out": (lambda: signed("late"), 75, ["temperror"])})
    def test_verdicts_and_exit_codes(self, case):
        make, code, words = case
        got = self.json(make(), code)["signatures"]
        self.assertEqual([s["result"] for s in got], words)
        self.assertTrue(all(s["reason"] for s in got if s["result"] != "pass"))

    def test_the_reason_tells_body_and_header_apart(self):
        body = self.json(signed().replace(b"noon", b"four"), 1)["signatures"][0]["reason"]
        header = self.json(signed().replace(b"Thursday", b"Sunday"), 1)["signatures"][0]["reason"]
        self.assertIn("body", body.lower())
        self.assertNotIn("body", header.lower())

    def test_a_person_is_told_in_one_line(self):
        done = run("dkim-verify", "--records", zone, file(signed()))
        line, = [l for l in done.stdout.decode().splitlines() if "example.com" in l]
        for word in ("pass", "rsa", "rsa-sha256", "2048"):
            self.assertIn(word, line)

    def test_lines_may_end_in_lf_and_an_mbox_separator_may_lead(self):
        raw = signed(raw=messages.FOLDED).replace(b"\r\n", b"\n")
        self.json(raw, 0)
        self.json(b"From alice@example.com Thu Jun  4 09:30:00 2026\n" + raw, 0)

    def test_standard_input(self):
        for name in ([], ["-"]):
            self.assertEqual(run("dkim-verify", "--records", zone, *name, stdin=signed()).returncode, 0)

    def test_several_files_give_one_line_each(self):
        good, bad = home / "good.eml", home / "bad.eml"
        good.write_bytes(signed())
        bad.write_bytes(messages.plain())
        done = run("dkim-verify", "--json", "--records", zone, good, bad)
        self.assertEqual([len(json.loads(line)["signatures"]) for line in done.stdout.splitlines()], [1, 0])

    def test_nameserver(self):
        server = dns.Server(records | {"trouble._domainkey.example.com": dns.SERVFAIL})
        try:
            where = ["--nameserver", f"127.0.0.1:{server.port}"]
            self.assertEqual(run("dkim-verify", *where, file(signed())).returncode, 0)
            self.assertEqual(run("dkim-verify", *where, file(signed("trouble"))).returncode, 75)
            self.assertEqual(run("dkim-verify", *where, file(signed("absent"))).returncode, 1)
        finally:
            server.close()

    def test_now_decides_about_expiry(self):
        signer = outside.OpenDkim.signer("example.com", "rsa", rsa, "relaxed/relaxed")
        signer.options["SignatureTTL"] = "3600"
        signer.write()
        with signer:
            raw = signer.sign(messages.plain())
        self.json(raw, 0)
        self.json(raw, 0, "--now", int(time.time()) + 3000)
        self.assertNotEqual(self.json(raw, 1, "--now", int(time.time()) + 7200)["signatures"][0]["result"], "pass")

    def test_usage_and_missing_files(self):
        self.assertEqual(run("dkim-verify", "--frobnicate").returncode, 64)
        self.assertEqual(run("dkim-verify", "--records", zone, "/nowhere").returncode, 66)
        self.assertEqual(run("dkim-verify", "--records", zone, file(b"\0\1\2 this is no header\r\n")).returncode, 65)


class Memory(rig.TestCase):
    """Constant, however large the message: 200 MB by file and by pipe."""
    MEGABYTES, LIMIT = 200, 40 << 20

    @classmethod
    def setUpClass(cls):
        cls.path = home / "huge.eml"
        with open(cls.path, "wb") as out:
            piece = messages.of_size(1 << 20)
            out.write(piece)
            body = piece.partition(b"\r\n\r\n")[2]
            for _ in range(cls.MEGABYTES - 1):
                out.write(body)

    @classmethod
    def tearDownClass(cls):
        cls.path.unlink()

    def peak(self, program, *arguments, stdin=None, stdout=subprocess.DEVNULL):
        """Runs a program to its end; its exit code and its largest resident size, in octets. The size is read again
        and again while it runs: what wait4(2) tells would include the size of this process, from before exec(2)."""
        peak = 0
        with subprocess.Popen([rig.program(program), *map(str, arguments)], stdin=stdin, stdout=stdout) as process:
            while process.poll() is None:
                peak = max(peak, milter.peak_memory(process.pid))
                time.sleep(0.005)
        return process.returncode, peak

    @rig.cases({"file": False, "pipe": True})
    def test_signing_and_verifying(self, pipe):
        out = home / "huge.signed.eml"
        with open(self.path, "rb") as source, open(out, "wb") as target:
            code, peak = self.peak("dkim-sign", *Sign.ARGUMENTS, rsa.path, "-" if pipe else self.path,
                                   stdin=self.piped(source) if pipe else None, stdout=target)
        self.assertEqual(code, 0)
        self.assertLess(peak, self.LIMIT)
        with open(out, "rb") as source:
            code, peak = self.peak("dkim-verify", "--records", zone, "-" if pipe else out,
                                   stdin=self.piped(source) if pipe else None)
        self.assertEqual(code, 0)
        self.assertLess(peak, self.LIMIT)
        out.unlink()

    @staticmethod
    def piped(source):
        """The reading end of a pipe through which a file comes: what cannot be rewound."""
        reading, writing = os.pipe()

        def copy():
            with open(writing, "wb") as pipe:
                while piece := source.read(1 << 16):
                    pipe.write(piece)

        threading.Thread(target=copy, daemon=True).start()
        return reading


if __name__ == "__main__":
    rig.main()
