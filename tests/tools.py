#!/usr/bin/python3 -B
"""The tools as a person or a script calls them: arguments, forms of input, output, exit codes, memory; keys in tokens.

What they compute is checked by crosscheck.py.
"""
import base64, json, os, re, shutil, socket, subprocess, threading, time

import rig
from rig import dns, keys, messages, milter, outside, token, wire

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


def run(program, *arguments, stdin=b"", env=None):
    return subprocess.run([rig.program(program), *map(str, arguments)], input=stdin, capture_output=True, timeout=60,
                          env=env)


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


class InToken(rig.TestCase):
    """Tests with a SoftHSM token that has the key 2026a."""

    @classmethod
    def setUpClass(cls):
        cls.home = rig.folder("token")
        cls.module = token.SoftHsm(cls.home)
        cls.module.add_token("mail")
        cls.record = cls.module.add_key("mail", "2026a")
        cls.records = {"2026a._domainkey.example.com": cls.record}
        cls.pin = token.pin_file(cls.home)
        cls.where = ["--pkcs11-module", cls.module.module, "--pkcs11-pin-file", cls.pin]

    def run_with(self, module, program, *arguments):
        return run(program, *arguments, env=os.environ | module.environment)

    def told(self, done, code, sentence):
        """It ended with this code and one line that says so, without the PIN."""
        self.assertEqual(done.returncode, code, done.stderr)
        line, = done.stderr.decode().splitlines()
        self.assertIn(sentence, line)
        self.assertIsNone(re.search(rf"\b{token.PIN}\b", line), line)


class VerifyAndHashOnToken(InToken):
    """For who must: signatures are checked, and bodies hashed, by the token."""
    TOKEN = "pkcs11:token=mail"

    def setUp(self):
        # No PIN: neither of the two needs a login.
        self.on = ["--pkcs11-module", self.module.module]

    def verdict(self, raw, *options):
        """The exit code and the line of dkim-verify."""
        done = self.run_with(self.module, "dkim-verify", "--records", zone, *self.on, *options, file(raw))
        self.assertEqual(done.stderr, b"")
        return done.returncode, done.stdout.decode()

    @rig.cases({"verify": ["--pkcs11-verify", TOKEN], "digest": ["--pkcs11-digest", TOKEN],
                "both": ["--pkcs11-verify", TOKEN, "--pkcs11-digest", TOKEN],
                "in process": ["--pkcs11-verify", TOKEN, "--pkcs11-digest", TOKEN, "--pkcs11-in-process"]})
    def test_verdicts_are_those_of_software(self, options):
        raw = messages.plain()
        for key, canonicalization in [(rsa, "relaxed/simple"), (ed25519, "simple/relaxed")]:
            signed = outside.dkimpy_sign(raw, "example.com", key.path.stem, key, canonicalization)
            for changed in (signed, signed + b"more\r\n", signed.replace(b"Subject: ", b"Subject:  x")):
                want = run("dkim-verify", "--records", zone, file(changed))
                self.assertEqual(self.verdict(changed, *options), (want.returncode, want.stdout.decode()))
            self.assertEqual(self.verdict(signed, *options)[0], 0)

    def test_a_large_body_and_l_are_hashed_as_by_software(self):
        body = b"".join(b"line %d, \t and more \r\n" % n for n in range(20000))
        raw = messages.plain() + body
        now = ["--now", "1800000000"]
        for options in (["-c", "relaxed/relaxed"], ["-c", "simple/simple", "--body-length"]):
            sign = ["dkim-sign", "-d", "example.com", "-s", "rsa", "-k", rsa.path, *now, *options]
            want = run(*sign, file(raw))
            self.assertEqual(want.returncode, 0, want.stderr)
            done = self.run_with(self.module, *sign, *self.on, "--pkcs11-digest", self.TOKEN, file(raw))
            self.assertEqual((done.returncode, done.stderr, done.stdout), (0, want.stderr, want.stdout))
            code, line = self.verdict(done.stdout, *now, "--pkcs11-digest", self.TOKEN)
            self.assertEqual(code, 0, line)

    @rig.cases({"no module": (["--pkcs11-verify", TOKEN], 64, "which module has the token?"),
                "no token": (["--pkcs11-module", token.SoftHsm.module], 64, "--pkcs11-verify"),
                "another": (["--pkcs11-verify", "pkcs11:token=other", "--pkcs11-module", token.SoftHsm.module], 69,
                            "cannot verify: no token matches"),
                "nothing": (["--pkcs11-digest", TOKEN, "--pkcs11-module", "/nowhere.so"], 78, "cannot hash: module"),
                "attribute": (["--pkcs11-digest", "pkcs11:tokn=mail"], 64, "did you mean token?"),
                "pin-value": (["--pkcs11-digest", TOKEN + "?pin-value=" + token.PIN, "--pkcs11-module",
                               token.SoftHsm.module], 64, "ps(1)")})
    def test_bad_input_has_its_sentence(self, case):
        options, code, sentence = case
        done = self.run_with(self.module, "dkim-verify", "--records", zone, *options, file(messages.plain()))
        self.assertEqual((done.returncode, done.stdout), (code, b""), done.stderr)
        self.assertIn(sentence, done.stderr.decode())

    def test_a_token_that_fails_its_test_is_told_before_any_message_is_read(self):
        source = token.FakeToken(self.home)
        signed = outside.dkimpy_sign(messages.plain(), "example.com", "rsa", rsa, "relaxed/relaxed")
        for option, function in (("--pkcs11-verify", "C_VerifyInit"), ("--pkcs11-digest", "C_DigestFinal")):
            # With a key and a hash that are known it does fail, so that no message of anybody is asked about.
            ready = run("dkim-verify", "--records", zone, "--pkcs11-module", source.module, option,
                        "pkcs11:token=fake", file(signed))
            self.assertEqual(ready.returncode, 0, ready.stderr)
            source.set({f"{function}": "0x30"})
            done = run("dkim-verify", "--records", zone, "--pkcs11-module", source.module, option,
                       "pkcs11:token=fake", file(signed))
            source.set({f"{function}": None})
            self.assertEqual((done.returncode, done.stdout), (69, b""), done.stderr)
            self.assertIn(f"{function} failed with CKR_DEVICE_ERROR", done.stderr.decode())


class SignInToken(InToken):
    URI = "pkcs11:token=mail;object=2026a"

    def sign(self, uri, *more):
        return self.run_with(self.module, "dkim-sign", "-d", "example.com", "-s", "2026a", "-k", uri, *more,
                             file(messages.plain()))

    @rig.cases({"process": [], "in-process": ["--pkcs11-in-process"]})
    def test_others_verify_what_the_token_signed(self, how):
        done = self.sign(self.URI, *self.where, *how)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertTrue(done.stdout.endswith(messages.plain()))
        self.assertEqual(outside.dkimpy_verify(done.stdout, self.records), {"2026a": "pass"})
        self.assertEqual(outside.mail_dkim_verify([done.stdout], self.records), [{"2026a": "pass"}])

    def test_the_uri_may_say_all(self):
        done = self.sign(f"{self.URI}?module-path={self.module.module}&pin-source={self.pin}")
        self.assertEqual(outside.dkimpy_verify(done.stdout, self.records), {"2026a": "pass"})

    def test_a_wrong_pin_is_told_once_and_without_what_a_daemon_does(self):
        wrong = self.home / "wrong"
        wrong.write_text("000000")
        wrong.chmod(0o600)
        done = self.sign(self.URI, "--pkcs11-module", self.module.module, "--pkcs11-pin-file", wrong)
        self.told(done, 78, f"CKR_PIN_INCORRECT; the PIN from PIN file {wrong} is wrong")

    def test_a_key_in_a_file_may_sign_beside_it(self):
        done = self.sign(self.URI, *self.where, "-s", "rsa", "-k", rsa.path)
        self.assertEqual(set(outside.dkimpy_verify(done.stdout, self.records | records).values()), {"pass"})
        self.assertCountEqual(outside.selectors(done.stdout), ["2026a", "rsa"])

    @rig.cases({"no module": (URI, [], 64, "which module has the token?"),
                "pin-value": (URI + "?pin-value=" + token.PIN, ["--pkcs11-module", token.SoftHsm.module], 64, "ps(1)"),
                "attribute": ("pkcs11:tokn=mail", [], 64, "did you mean token?"),
                "ampersand": ("pkcs11:token=mail&object=2026a", [], 64, '"&"'),
                "certificate": (URI + ";type=cert", ["--pkcs11-module", token.SoftHsm.module], 64, "type=cert"),
                "nowhere": (URI, ["--pkcs11-module", "/nowhere.so"], 78, "/nowhere.so: No such file"),
                "no library": (URI, ["--pkcs11-module", "/etc/passwd"], 78, "/etc/passwd: cannot be loaded"),
                "no module in it": (URI, ["--pkcs11-module", "/usr/lib/x86_64-linux-gnu/libz.so.1"], 78,
                                    "is no PKCS#11 module"),
                "no pin": (URI, ["--pkcs11-module", token.SoftHsm.module], 78, "wants a PIN"),
                "engine": (URI, ["--pkcs11-module", token.SoftHsm.module, "--engine", "aws-lc"], 64, "--engine")})
    def test_bad_input_has_its_sentence(self, case):
        uri, options, code, sentence = case
        done = self.sign(uri, *options)
        self.told(done, code, sentence)
        self.assertEqual(done.stdout, b"")

    def test_a_token_that_is_not_there_is_unavailable(self):
        self.told(self.sign("pkcs11:token=other;object=2026a", *self.where), 69, "no token matches")

    def test_another_key_is_never_taken(self):
        self.told(self.sign("pkcs11:token=mail;object=2026b", *self.where), 78, "object=2026a;id=%01;type=private")

    def test_a_pin_file_that_others_can_read_is_refused(self):
        path = token.pin_file(self.home, name="open")
        path.chmod(0o644)
        self.told(self.sign(self.URI, *self.where[:2], "--pkcs11-pin-file", path), 78, "is not kept from others")

    def test_a_wrong_pin_is_told(self):
        wrong = token.pin_file(self.home, "9753", "wrong")
        self.told(self.sign(self.URI, *self.where[:2], "--pkcs11-pin-file", wrong), 78, "CKR_PIN_INCORRECT")

    def test_two_keys_or_two_tokens_of_one_name_are_refused_and_told(self):
        module = token.SoftHsm(rig.folder("tokens"))
        module.add_token("mail")
        module.add_key("mail", "twin", "01"), module.add_key("mail", "twin", "02")

        def sign(uri):
            return self.run_with(module, "dkim-sign", "-d", "example.com", "-s", "a", "-k", uri, *self.where,
                                 file(messages.plain()))
        done = sign("pkcs11:token=mail;object=twin")
        self.told(done, 78, "2 keys match")
        self.assertEqual(len(set(re.findall(rb"object=twin;id=%0[12]", done.stderr))), 2)
        module.add_token("mail")
        done = sign("pkcs11:token=mail;object=twin;id=%01")
        self.told(done, 78, "2 tokens match")
        self.assertEqual(len(set(re.findall(rb"serial=[0-9a-f]+", done.stderr))), 2)

    @rig.cases({"refused": ({"C_Sign": "0x6"}, 69, "C_Sign failed with CKR_FUNCTION_FAILED"),
                "garbage": ({"corrupt": 1}, 69, "its signature is wrong"),
                "no signature": ({"can_sign": 0}, 78, "CKA_SIGN is false"),
                "hangs": ({"C_OpenSession.ms": 60000}, 69, "the token has not answered within 10 s")})
    def test_a_token_that_fails_gives_no_signature(self, case):
        values, code, sentence = case
        _, done = self.sign_by_fake(values)
        self.assertEqual((done.returncode, done.stdout), (code, b""), done.stderr)
        self.assertIn(sentence, done.stderr.decode())

    @rig.cases({"once": ("once", 0), "each time": (1, 69)})
    def test_what_follows_a_crash_is_no_concern_of_a_tool_that_ends(self, case):
        crash, code = case
        fake, done = self.sign_by_fake({"C_Sign.crash": crash})
        self.assertEqual((done.returncode, bool(done.stdout)), (code, code == 0), done.stderr)
        warning, *errors = done.stderr.decode().splitlines()
        self.assertEqual(warning, f"dkim-sign: warning: the process that holds {fake.module} was ended by signal 6")
        self.assertEqual(len(errors), code != 0, errors)

    def sign_by_fake(self, lines):
        """A module with such lines in its control file, and what became of a message that it should sign."""
        fake = token.FakeToken(self.home)
        fake.set(lines=lines)
        return fake, self.run_with(
            fake, "dkim-sign", "-d", "example.com", "-s", "fake", "-k", "pkcs11:type=private", "--pkcs11-module",
            fake.module, "--pkcs11-pin-file", self.pin, file(messages.plain()))


class Testkey(rig.TestCase):
    def check(self, *arguments):
        return run("dkim-testkey", *arguments)

    @rig.cases({"right": ("rsa", "rsa", 0, "ok      rsa._domainkey.example.com: the record has the key, RSA of 2048"),
                "ed25519": ("ed", "ed", 0, "ok      ed._domainkey.example.com: the record has the key, Ed25519"),
                "other key": ("rsa", "ed", 1, "the record has another key: RSA of 2048 bits"),
                "no record": ("absent", "rsa", 1, "wrong   absent._domainkey.example.com: no record"),
                "servfail": ("trouble", "rsa", 75, "unknown trouble._domainkey.example.com: not known"),
                "record alone": ("rsa", None, 0, "the record has a key")})
    def test_a_record_fits_or_not(self, case):
        selector, key, code, line = case
        path = {"rsa": rsa.path, "ed": ed25519.path}.get(key)
        done = self.check("-d", "example.com", "-s", selector, *(["-k", path] if key else []), "--records", zone)
        self.assertEqual((done.returncode, done.stderr), (code, b""))
        self.assertIn(line, done.stdout.decode().splitlines()[0])

    @rig.cases({"revoked": ("v=DKIM1; p=", "key revoked"), "hash": ("v=DKIM1; h=sha1; p={}", "does not have sha256"),
                "service": ("v=DKIM1; s=other; p={}", "not for mail"), "kind": ("k=dsa; p={}", "unknown key type"),
                "two": (["v=DKIM1; p={}", "v=DKIM1; p="], "2 TXT records"),
                "cut": (f"v=DKIM1; k=rsa; p={{:.{255 - len('v=DKIM1; k=rsa; p=')}}}", "p= ends early in the key record"),
                "quotes": (r'\"v=DKIM1; p={}\"', "quotation marks or backslashes"), "spf": ("v=spf1 -all", "not a key record"),
                "testing": ("v=DKIM1; t=y; p={}", None), "bare": ("v=DKIM1; p={bare}", None)})
    def test_what_can_be_wrong_with_a_record(self, case):
        texts, sentence = case
        public = rsa.record.partition("p=")[2]
        bare = keys.openssl("rsa", "-in", rsa.path, "-RSAPublicKey_out", "-outform", "DER")
        fill = lambda text: text.format(public, bare=base64.b64encode(bare).decode())
        path = home / "one.record"
        path.write_text("".join(f'a._domainkey.example.com 300 IN TXT "{fill(text)}"\n'
                                for text in ([texts] if isinstance(texts, str) else texts)))
        done = self.check("-d", "example.com", "-s", "a", "-k", rsa.path, "--records", path)
        self.assertEqual(done.returncode, 1 if sentence else 0, done.stdout)
        self.assertIn(sentence or "ok ", done.stdout.decode())
        self.assertEqual("testing" in done.stdout.decode(), "t=y" in texts)

    def test_a_zone_s_name_that_stands_twice_is_found(self):
        path = home / "twice.record"
        path.write_text(f'a._domainkey.example.com.example.com 300 IN TXT "{rsa.record}"\n')
        done = self.check("-d", "example.com", "-s", "a", "-k", rsa.path, "--records", path)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no record: the name does not exist in the DNS; but a._domainkey.example.com.example.com has one",
                      done.stdout.decode())

    def test_it_is_told_who_did_not_answer(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            server = f"127.0.0.1:{silent.getsockname()[1]}"
            done = self.check("-d", "example.com", "-s", "a", "--nameserver", server, "--timeout", "1")
        self.assertEqual(done.returncode, 75, done.stdout)
        self.assertIn(f"not known: the DNS did not say (no answer from {server} within 1 s)", done.stdout.decode())

    def test_the_dns_is_asked(self):
        server = dns.Server(records)
        try:
            done = self.check("-d", "example.com", "-s", "rsa", "-k", rsa.path, "--nameserver", f"127.0.0.1:{server.port}")
            self.assertEqual(done.returncode, 0, done.stderr)
            # Once for the record, and once for whether DNSSEC has signed it.
            self.assertEqual(server.asked["rsa._domainkey.example.com"], 2)
        finally:
            server.close()

    @rig.cases({"validated": (True, "; key DNSSEC signed"), "not": (False, "; key not DNSSEC signed")})
    def test_dnssec_is_told_without_alarm(self, case):
        validates, words = case
        server = dns.Server(records, validates=validates)
        try:
            done = self.check("-d", "example.com", "-s", "rsa", "-k", rsa.path, "--nameserver", f"127.0.0.1:{server.port}")
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertTrue(done.stdout.decode().endswith(f"RSA of 2048 bits{words}\n"), done.stdout)
        finally:
            server.close()

    def test_a_cname_is_named(self):
        provider = "a.keys.provider.example"
        zone = {"a._domainkey.example.com": dns.Cname(provider), provider: rsa.record}
        path = home / "cname.record"
        path.write_text(f'{provider} 300 IN TXT "{rsa.record}"\na._domainkey.example.com 300 IN CNAME {provider}.\n')
        server = dns.Server(zone)
        try:
            for where in (["--records", path], ["--nameserver", f"127.0.0.1:{server.port}"]):
                for key, code in ((rsa.path, 0), (ed25519.path, 1)):
                    done = self.check("-d", "example.com", "-s", "a", "-k", key, *where)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn(f", through CNAME {provider}", done.stdout.decode())
        finally:
            server.close()

    def test_every_key_of_a_configuration(self):
        (home / "keytable").write_text(f"one example.com:rsa:{rsa.path}\ntwo example.com:absent:{rsa.path}\n"
                                       f"three example.com:ed:{home}/nokey\nfour %:rsa:{rsa.path}\n")
        (home / "signingtable").write_text("example.com one\n")
        configuration = home / "milter.conf"
        configuration.write_text(f"KeyTable file:{home}/keytable\nSigningTable file:{home}/signingtable\n"
                                 "Socket inet:8891@127.0.0.1\n")
        done = self.check("-x", configuration, "--records", zone)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = done.stdout.decode().splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["ok", "wrong", "wrong"])
        self.assertIn("nokey", lines[2])
        self.assertIn(b'"four"', done.stderr)
        done = self.check("-x", configuration, "-d", "example.com", "-s", "rsa", "--records", zone)
        self.assertEqual((done.returncode, done.stdout.count(b"ok ")), (0, 2), done.stderr)
        self.assertEqual(self.check("-x", "/nowhere").returncode, 66)

    def test_a_single_key_of_a_configuration_and_its_records(self):
        (home / "public").write_text("".join(f"{name} {text}\n" for name, text in records.items()))
        configuration = home / "single.conf"
        configuration.write_text(f"Domain example.com, example.org\nSelector rsa\nKeyFile {rsa.path}\n"
                                 f"TestPublicKeys {home}/public\nSocket inet:8891@127.0.0.1\n")
        done = self.check("-x", configuration)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual([line.split()[:2] for line in done.stdout.decode().splitlines()],
                         [["ok", "rsa._domainkey.example.com:"], ["wrong", "rsa._domainkey.example.org:"]])

    def test_usage_and_missing_files(self):
        self.assertEqual(self.check("--frobnicate").returncode, 64)
        self.assertEqual(self.check("-k", rsa.path).returncode, 64)
        self.assertEqual(self.check("--speed", "-d", "example.com", "-s", "rsa").returncode, 64)
        self.assertEqual(self.check("-d", "example.com", "-s", "rsa", "-k", "/nowhere", "--records", zone).returncode, 66)
        self.assertEqual(self.check("-d", "example.com", "-s", "rsa", "--records", "/nowhere").returncode, 66)


class TestkeyInToken(InToken):
    def list(self, *arguments):
        return self.run_with(self.module, "dkim-testkey", "--list", *arguments)

    def zone(self, record):
        path = self.home / "zone"
        path.write_text(f'2026a._domainkey.example.com 300 IN TXT "{record[:200]}" "{record[200:]}"\n')
        return path

    @rig.cases({"right": (True, 0, "ok"), "other": (False, 1, "wrong")})
    def test_a_record_fits_or_not(self, case):
        right, code, word = case
        zone = self.zone(self.record if right else rsa.record)
        done = self.run_with(self.module, "dkim-testkey", "-d", "example.com", "-s", "2026a", "-k",
                             "pkcs11:token=mail;object=2026a", *self.where, "--records", zone)
        self.assertEqual((done.returncode, done.stderr), (code, b""))
        self.assertTrue(done.stdout.startswith(word.encode()), done.stdout)

    def test_what_is_listed_can_be_signed_with(self):
        done = self.list("--pkcs11-pin-file", self.pin)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        text = done.stdout.decode()
        uri, = re.findall(r"^ +(pkcs11:\S+type=private\S*)$", text, re.MULTILINE)
        self.assertIn(f"module-path={self.module.module}", uri)
        self.assertIn("RSA of 2048 bits; signs by CKM_RSA_PKCS; cannot leave the token", text)
        signed = self.run_with(self.module, "dkim-sign", "-d", "example.com", "-s", "2026a", "-k", uri,
                               "--pkcs11-pin-file", self.pin, file(messages.plain()))
        self.assertEqual(outside.dkimpy_verify(signed.stdout, self.records), {"2026a": "pass"})
        named = self.list(*self.where).stdout.decode()
        self.assertNotIn("module-path", named)
        self.assertIn("type=private\n", named)

    def test_slow_modules_are_asked_at_once(self):
        fake = token.FakeToken(self.home)
        fake.set(lines={"C_GetSlotList.ms": 500})
        modules = [fake.home / f"slow{n}.so" for n in range(4)]
        for path in modules:
            shutil.copy(fake.module, path)

        def seconds(modules):
            started = time.monotonic()
            done = self.run_with(fake, "dkim-testkey", "--list", *(f"--pkcs11-module={path}" for path in modules))
            self.assertEqual(done.stdout.count(b": 1 token"), len(modules), done.stdout + done.stderr)
            return time.monotonic() - started

        self.assertLess(seconds(modules), 2 * seconds(modules[:1]))

    def test_a_module_that_wants_parameters_is_told_how_to_get_them(self):
        done = run("dkim-testkey", "--list", "--pkcs11-module", "/usr/lib/x86_64-linux-gnu/libsoftokn3.so")
        self.assertEqual((done.returncode, done.stderr), (78, b""), done.stdout)
        self.assertRegex(done.stdout.decode(), "CKR_ARGUMENTS_BAD: .* x-init-reserved .* p11-kit-proxy.so\n$")

    def test_without_a_pin_keys_are_hidden(self):
        done = self.list("--pkcs11-module", self.module.module)
        self.assertEqual(done.returncode, 1)
        self.assertIn("hidden until somebody logs in", done.stdout.decode())
        self.assertNotIn("type=private", done.stdout.decode())

    def test_the_record_is_held_against_each_key(self):
        name = ["-d", "example.com", "-s", "2026a", "--records"]
        done = self.list(*self.where, *name, self.zone(self.record))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2026a._domainkey.example.com: the record has this key", done.stdout.decode())
        done = self.list(*self.where, *name, self.zone(rsa.record))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the record has another key", done.stdout.decode())

    def test_a_pin_is_not_tried_at_several_tokens(self):
        module = token.SoftHsm(rig.folder("tokens"))
        module.add_token("one"), module.add_token("two")
        module.add_key("one", "key")
        done = self.run_with(module, "dkim-testkey", "--list", *self.where)
        self.assertIn("the PIN is not tried, as 2 tokens want one", done.stdout.decode())
        done = self.run_with(module, "dkim-testkey", "--list", *self.where, "-u", "pkcs11:token=one")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("object=key", done.stdout.decode())

    def test_a_wrong_pin_is_tried_once(self):
        fake = token.FakeToken(self.home)
        wrong = token.pin_file(self.home, "9753", "wrong")
        done = self.run_with(fake, "dkim-testkey", "--list", "--pkcs11-module", fake.module, "--pkcs11-pin-file", wrong)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("CKR_PIN_INCORRECT", done.stdout.decode())
        self.assertEqual(len(fake.calls("C_Login")), 1)

    def test_keys_in_tokens_of_a_configuration(self):
        configuration = self.home / "milter.conf"
        (self.home / "keytable").write_text("one example.com:2026a:pkcs11:token=mail;object=2026a\n"
                                            "two example.com:2026b:pkcs11:token=other;object=2026a\n")
        (self.home / "signingtable").write_text("example.com one\n")
        configuration.write_text(f"KeyTable file:{self.home}/keytable\nSigningTable file:{self.home}/signingtable\n"
                                 f"Pkcs11Module {self.module.module}\nPkcs11PinFile {self.pin}\n")
        done = self.run_with(self.module, "dkim-testkey", "-x", configuration, "--records", self.zone(self.record))
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertEqual([line.split()[0] for line in done.stdout.decode().splitlines()], ["ok", "unknown"])
        self.assertIn("no token matches", done.stdout.decode())
        done = self.run_with(self.module, "dkim-testkey", "-x", configuration, "-s", "2026a", "--records",
                             self.zone(rsa.record))
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_speed_is_measured_beside_software(self):
        done = self.list(*self.where, "--speed")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        text = done.stdout.decode()
        rows = re.findall(r"^ +(token|software) +(\d+) threads? +(\d+) signatures/s$", text, re.MULTILINE)
        self.assertEqual([int(n) for who, n, _ in rows if who == "token"], [1, 2, 4, 8])
        self.assertTrue(all(int(rate) > 10 for _, _, rate in rows), rows)
        self.assertRegex(text, "faster here, by|about as fast here")

    def test_a_module_that_cannot_be_used_is_told(self):
        done = self.list("--pkcs11-module", "/nowhere.so")
        self.assertEqual((done.returncode, done.stderr), (78, b""))
        self.assertIn("/nowhere.so: No such file", done.stdout.decode())


class TestkeyKilled(rig.TestCase):
    def test_what_loads_a_module_that_hangs_goes_with_it(self):
        pipe = home / "pipe.so"
        # Opening it waits for a writer, who never comes.
        os.mkfifo(pipe)
        with subprocess.Popen([rig.program("dkim-testkey"), "--list", "--pkcs11-module", pipe],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            rig.until(10, lambda: token.helpers(process.pid), lambda: "the process that loads the module")
            time.sleep(0.5)
            helpers = token.helpers(process.pid)
            process.kill()
        rig.until(5, lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in helpers), lambda: f"the end of {helpers}")


class Words(rig.TestCase):
    """What tools say where something small is wrong, and how they end."""

    @rig.cases({
        "no configuration": ("dkim-testkey", ["-x", "/nowhere/conf"], 66, "cannot read /nowhere/conf: No such file"),
        "a time with a unit": ("dkim-sign", ["-d", "a.test", "-s", "a", "-k", "a", "--expire", "1h"], 64,
                               "a whole number is wanted, 1 or more"),
        "a size too small": ("dkim-verify", ["--min-rsa-bits", "512"], 64, "a whole number is wanted, 1024 or more"),
        "a key too few": ("dkim-sign", ["-d", "a.test", "-s", "a", "-s", "b", "-k", "a"], 64,
                          "-s is given twice and -k once"),
    })
    def test_an_argument_is_told_what_is_wanted(self, case):
        program, arguments, code, words = case
        done = run(program, *arguments)
        self.assertEqual(done.returncode, code)
        self.assertIn(words, done.stderr.decode())

    @rig.cases({"two": (b"From a\n%b\nFrom b\n%b", True), "one": (b"From a\n%b%b", False)})
    def test_an_mbox_of_several_messages_is_warned_of(self, case):
        form, is_warned = case
        message = signed().replace(b"\r\n", b"\n")
        raw = form % (message, message if is_warned else b"")
        done = run("dkim-verify", "--records", zone, stdin=raw)
        self.assertEqual(done.returncode, 1 if is_warned else 0)
        self.assertEqual(b"mbox of several messages" in done.stderr, is_warned, done.stderr)

    @rig.cases({"relative": [], "whole": ["-a"]})
    def test_a_record_is_read_as_it_was_written(self, how):
        folder = rig.folder("written")
        made = run("dkim-genkey", "-D", folder, "-d", "example.com", "-s", "new", *how)
        self.assertEqual(made.returncode, 0)
        done = run("dkim-testkey", "-d", "example.com", "-s", "new", "-k", folder / "new.private", "--records",
                   folder / "new.txt")
        self.assertEqual((done.returncode, done.stderr), (0, b""), done.stdout)


class Genkey(rig.TestCase):
    def setUp(self):
        self.folder = rig.folder("genkey")

    def make(self, *arguments):
        return run("dkim-genkey", "-D", self.folder, "-d", "example.com", "-s", "new", *arguments)

    def record(self, text):
        return "".join(re.findall(r'"([^"]*)"', text))

    @rig.cases({"rsa": ["--type", "rsa"], "ed25519": ["--type", "ed25519"], "default": [], "3072": ["-b", "3072"]})
    def test_the_key_signs_and_the_record_verifies(self, how):
        done = self.make(*how)
        private, public = self.folder / "new.private", self.folder / "new.txt"
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr.decode(), rf"^dkim-genkey: .*\(chown dkim-milter: {private}\)\n$" if os.geteuid() == 0
                         else "^$")
        self.assertEqual([path.stat().st_mode & 0o777 for path in (private, public)], [0o600, 0o600])
        self.assertEqual(public.read_bytes(), done.stdout)
        text = done.stdout.decode()
        self.assertTrue(text.startswith("new._domainkey\tIN\tTXT\t( \"v=DKIM1; k="))
        self.assertTrue(all(len(string) <= 255 for string in re.findall(r'"([^"]*)"', text)))
        keys.openssl("pkey", "-in", private, "-noout")
        signed = run("dkim-sign", "-d", "example.com", "-s", "new", "-k", private, file(messages.plain())).stdout
        results = outside.dkimpy_verify(signed, {"new._domainkey.example.com": self.record(text)})
        self.assertEqual(results, {"new": "pass"})

    def test_tags(self):
        text = self.make("-t", "-S", "-r", "-h", "sha256", "-a").stdout.decode()
        self.assertTrue(text.startswith("new._domainkey.example.com.\t"))
        self.assertTrue(self.record(text).startswith("v=DKIM1; k=rsa; h=sha256; s=email; t=y:s; p="))

    def test_nothing_is_written_over(self):
        (self.folder / "new.txt").write_text("mine")
        done = self.make()
        self.assertEqual(done.returncode, 73, done.stderr)
        self.assertFalse((self.folder / "new.private").exists())
        self.assertEqual((self.folder / "new.txt").read_text(), "mine")

    def test_usage(self):
        for wrong in (["--frobnicate"], ["-b", "1024"], ["-h", "sha1"], ["--type", "dsa"], ["-s", "a/b"]):
            self.assertEqual(self.make(*wrong).returncode, 64, wrong)


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
