#!/usr/bin/python3 -B
"""The daemon with tokens that verify and hash (Pkcs11Verify, Pkcs11Digest): which verdicts there are, and what becomes of mail while the token
does what tokens do. pkcs11-engine/fake-token stands for those in trouble, SoftHSM for real ones.
"""
import threading, time

import rig
from rig import keys, messages, milter, outside, token, wire

import tokens

ADDRESS = "192.0.2.9"
NAME = "s._domainkey.token.example"
DEFERRED = "451 4.7.5 DKIM verification temporarily unavailable"
UNSIGNED = messages.plain(subject="Lunch", author="alice@token.example")
TESTED = 25  # seconds between two tests of a token
PLACES = {"process": "process", "none": "none"}


def setUpModule():
    global home, rsa, ed25519, short, signed
    home = rig.folder("token-duties")
    tokens.setUpModule()
    rsa, short = keys.Key(home, "rsa"), keys.Key(home, "short", bits=1024)
    ed25519 = keys.Key(home, "ed25519", "ed25519")
    # One message for each key, by the selector of the key.
    signed = {selector: outside.dkimpy_sign(UNSIGNED, "token.example", selector, key, "relaxed/relaxed")
              for selector, key in signers().items()}


def signers():
    return {"rsa": rsa, "short": short, "ed": ed25519}


def daemon(source, **options):
    """A daemon that verifies by a token of `source`, and signs mail of soft.example with a key in a file."""
    records = home / "records"
    records.write_text("".join(f"{selector}._domainkey.token.example {key.record}\n"
                               for selector, key in signers().items()))
    options = {
        "Mode": "sv", "InternalHosts": "127.0.0.1", "AuthservID": "mx.rig.test", "Domain": "soft.example",
        "Selector": "soft", "KeyFile": rsa.path, "Pkcs11Module": source.module, "Pkcs11Verify": "pkcs11:token=fake",
        "Pkcs11Timeout": 1, "TestPublicKeys": records, "LogWhy": "yes", **options}
    made = milter.Milter(**{name: value for name, value in options.items() if value is not None})
    made.environment = dict(source.environment)
    return made


class TestCase(tokens.TestCase):
    def sent(self, daemon, raw):
        """The answer to a message from outside, and the message as it goes on: (text, message)."""
        with tokens.session(daemon, address=ADDRESS) as conversation:
            _, got = conversation.message(raw)
            return tokens.text_of(conversation.final), got

    def judges(self, daemon, raw, **words):
        """The message is accepted, with these words by selector."""
        answer, got = self.sent(daemon, raw)
        self.assertEqual(answer, "accepted", daemon.log())
        self.assertEqual(outside.verdicts(got, "mx.rig.test", by="header.s"), words, daemon.log())

    def defers(self, daemon, raw):
        answer, _ = self.sent(daemon, raw)
        self.assertTrue(answer.startswith(DEFERRED), f"{answer}\n{daemon.log()}")

    def judges_again(self, daemon):
        def passes():
            return outside.verdicts(self.sent(daemon, signed["rsa"])[1], "mx.rig.test", by="header.s") == {"rsa": "pass"}

        rig.until(5, passes, lambda: f"a verdict:\n{daemon.log()}")


class Verifying(TestCase):
    @rig.cases(PLACES)
    def test_verdicts_are_those_of_software_and_the_tokens_own(self, isolation):
        """Nobody logs in, and with a process of its own the module is never called on the daemon's threads."""
        source = token.FakeToken(home)
        with daemon(source, Pkcs11Isolation=isolation) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            self.judges(made, signed["short"], short="pass")
            self.judges(made, signed["rsa"].replace(b"Lunch", b"Launch"), rsa="fail")
            self.judges(made, signed["rsa"] + b"more\r\n", rsa="fail")
            both = signed["short"][:signed["short"].index(b"From:")] + signed["rsa"]
            self.judges(made, both, rsa="pass", short="pass")
            answer, got = self.sent(made, UNSIGNED)
            self.assertEqual((answer, outside.verdicts(got, "mx.rig.test", by="header.s")), ("accepted", {}))
            pids = {call.pid for call in source.calls()}
            self.assertEqual(made.process.pid in pids, isolation == "none")
            # The test with a known answer is two of them; the body hash that is wrong never comes to the token.
            self.assertGreaterEqual(len(source.calls("C_Verify")), 2 + 5)
            self.assertEqual(source.calls("C_Login"), [])
            self.assertEqual(len(source.calls("C_CreateObject")), len(source.calls("C_DestroyObject")))
            made.signal("SIGTERM")
            self.ended(made)
        self.assertEqual(source.calls()[-1].function, "C_Finalize")
        self.clean(source)

    def test_softhsm_verifies_both_algorithms(self):
        folder = rig.folder("softhsm-verifies")
        source = token.SoftHsm(folder)
        source.add_token("dkim")
        with daemon(source, Pkcs11Verify="pkcs11:token=dkim", Pkcs11Timeout=5) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            self.judges(made, signed["ed"], ed="pass")
            for raw, words in [(signed["ed"], {"ed": "fail"}), (signed["rsa"], {"rsa": "fail"})]:
                self.judges(made, raw.replace(b"Lunch", b"Launch"), **words)

    def test_many_messages_at_once(self):
        source = token.FakeToken(home)
        with daemon(source, Pkcs11Timeout=10) as made:
            wrong = []

            def run():
                for _ in range(20):
                    answer, got = self.sent(made, signed["rsa"])
                    if (answer, outside.verdicts(got, "mx.rig.test", by="header.s")) != ("accepted", {"rsa": "pass"}):
                        wrong.append(answer)

            threads = [threading.Thread(target=run) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
        self.clean(source)


class Away(TestCase):
    @rig.cases(PLACES)
    def test_mail_is_deferred_and_other_mail_is_not(self, isolation):
        source = token.FakeToken(home)
        with daemon(source, Pkcs11Isolation=isolation) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            source.set(present=0)
            self.defers(made, signed["rsa"])
            # What software finds wrong with the body needs no token.
            self.judges(made, signed["rsa"] + b"more\r\n", rsa="fail")
            self.assertEqual(self.sent(made, UNSIGNED)[0], "accepted")
            with tokens.session(made) as conversation:
                _, got = conversation.message(messages.plain(author="a@soft.example"))
            self.assertEqual(outside.selectors(got), ["soft"])
            made.logged("token=fake cannot verify: ")
            source.set(present=None)
            self.judges_again(made)
            made.logged("token pkcs11:token=fake.* verifies again|token=fake verifies$")
            self.assertEqual(len(tokens.said(made, "cannot verify: ")), 1, made.log())
        self.clean(source)

    @rig.cases({"accept": ("accept", "accepted"), "next": ("next", DEFERRED), "tempfail": ("tempfail", DEFERRED)})
    def test_on_token_away_says_what_becomes_of_it(self, case):
        action, want = case
        source = token.FakeToken(home, present=0)
        with daemon(source, **{"On-TokenAway": action}) as made:
            made.logged("Pkcs11Verify: pkcs11:token=fake cannot verify: no token matches .*On-TokenAway")
            answer, got = self.sent(made, signed["rsa"])
            self.assertTrue(answer.startswith(want), answer)
            if action == "accept":
                self.assertEqual(outside.verdicts(got, "mx.rig.test", by="header.s"), {"rsa": "temperror"})
                self.assertIn(b"signature cannot be checked now: the", got)
                self.assertNotIn(b"pkcs11:", got, "it goes to recipients")
            source.set(present=None)
            self.judges_again(made)

    def test_software_may_stand_in_and_it_is_noted(self):
        source = token.FakeToken(home, present=0)
        with daemon(source, Pkcs11Fallback="software") as made:
            self.judges(made, signed["rsa"], rsa="pass")
            self.judges(made, signed["rsa"].replace(b"Lunch", b"Launch"), rsa="fail")
            made.logged(r"note: signature verified in software \(Pkcs11Fallback\): the token is away")
            made.logged("Pkcs11Verify: .* until it can, software does it")

    def test_a_key_that_the_token_does_not_take(self):
        source = token.FakeToken(home, verify_fails_bits=1024)
        with daemon(source) as made:
            # The fake token verifies no Ed25519.
            for selector in ("short", "ed"):
                self.judges(made, signed[selector], **{selector: "policy"})
            self.judges(made, signed["rsa"], rsa="pass")
            self.assertEqual(tokens.said(made, "cannot verify: "), [])
        with daemon(source, Pkcs11Fallback="software") as made:
            for selector in ("short", "ed"):
                self.judges(made, signed[selector], **{selector: "pass"})
            self.judges(made, signed["short"].replace(b"Lunch", b"Launch"), short="fail")
        self.clean(source)

    @rig.cases(PLACES)
    def test_a_hang_costs_no_more_than_its_time_and_nobody_else_waits(self, isolation):
        source = token.FakeToken(home)
        with daemon(source, Pkcs11Isolation=isolation) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            source.set({"C_Verify.hang": 1})
            began, answers = time.monotonic(), []

            def waiting():
                answers.append((self.sent(made, signed["rsa"])[0], time.monotonic() - began))

            threads = [threading.Thread(target=waiting) for _ in range(10)]
            for thread in threads:
                thread.start()
            for _ in range(5):
                one = time.monotonic()
                self.assertEqual(self.sent(made, UNSIGNED)[0], "accepted")
                self.assertLess(time.monotonic() - one, 0.5)
            for thread in threads:
                thread.join()
            for answer, seconds in answers:
                self.assertTrue(answer.startswith(DEFERRED), answer)
                self.assertLess(seconds, 2)
            self.assertEqual(len(answers), 10)
            source.set({"C_Verify.hang": None})
            self.judges_again(made)
        self.clean(source)

    def test_a_crash_takes_no_signature_with_it(self):
        source = token.FakeToken(home)
        signing = tokens.signer(source, Pkcs11Verify="pkcs11:token=fake")
        with signing as made:
            rig.until(5, lambda: len(token.helpers(made.process.pid)) == 2, lambda: made.log())
            source.set({"C_Verify.crash": 1})
            raw = outside.dkimpy_sign(UNSIGNED, "token.example", "tok", source.key, "relaxed/relaxed")
            self.defers(made, raw)
            with tokens.session(made) as conversation:
                _, got = conversation.message(tokens.mail())
            self.assertEqual(outside.selectors(got), ["tok"])
            source.set({"C_Verify.crash": None})
            rig.until(6, lambda: self.sent(made, raw)[0] == "accepted", lambda: made.log())
        self.clean(source)

    def test_a_token_that_calls_everything_good_is_not_relied_on(self):
        source = token.FakeToken(home)
        source.set({"C_Verify": "0x0"})
        with daemon(source) as made:
            made.logged("it takes a wrong signature for a good one")
            self.defers(made, signed["rsa"].replace(b"Lunch", b"Launch"))

    @rig.cases({"good": ("0x0", b"Launch"), "wrong": ("0xc0", b"Lunch")})
    def test_a_token_that_begins_to_lie_is_found_out_while_mail_flows(self, case):
        code, subject = case
        source, raw = token.FakeToken(home), signed["rsa"].replace(b"Lunch", case[1])
        # The other duty of the same token is not concerned.
        with daemon(source, Pkcs11Digest="pkcs11:token=fake") as made:
            right, lie = ("fail", "pass") if subject == b"Launch" else ("pass", "fail")
            self.judges(made, raw, rsa=right)
            source.set({"C_Verify": code})
            self.judges(made, raw, rsa=lie)

            def is_deferred():
                answer = self.sent(made, raw)[0]
                time.sleep(0.1)
                return answer.startswith(DEFERRED)

            rig.until(TESTED + 5, is_deferred, lambda: f"the lie to be found out:\n{made.log()}")
            for _ in range(40):
                self.defers(made, raw)
                time.sleep(0.1)
            with tokens.session(made) as conversation:
                _, got = conversation.message(messages.plain(author="a@soft.example"))
            self.assertEqual(outside.selectors(got), ["soft"])
            self.assertEqual(len(tokens.said(made, f"it takes a {dict(good='wrong', wrong='good')[self.case()]} sig")), 1)
            source.set({"C_Verify": None})
            self.judges_again(made)
        self.clean(source)

    def case(self):
        return self.id().partition("[")[2].rstrip("]")

    def test_a_token_that_does_not_verify_at_all_is_away_and_no_fault_of_signers(self):
        source = token.FakeToken(home, mechanisms="sha256")
        with daemon(source, **{"On-BadSignature": "reject"}) as made:
            made.logged(f"error: {made.configuration}:\\d+: Pkcs11Verify: .*does not verify RSA of 2048 bits; .*On-TokenAway")
            self.defers(made, signed["rsa"])
        with daemon(source, Pkcs11Fallback="software") as made:
            self.judges(made, signed["rsa"], rsa="pass")


class Hashing(TestCase):
    """Pkcs11Digest, with Pkcs11Verify and without: bodies go to the token while they pass."""
    LARGE = messages.of_size(3_000_000)

    def hashing(self, source, **options):
        return daemon(source, **{"Pkcs11Verify": None, "Pkcs11Digest": "pkcs11:token=fake", **options})

    def signs(self, made, raw=None):
        """The answer to mail of ours, and the selectors of its signatures, which are good."""
        with tokens.session(made) as conversation:
            _, got = conversation.message(raw or messages.plain(author="a@soft.example"))
        words = outside.dkimpy_verify(got, {"soft._domainkey.soft.example": rsa.record})
        self.assertEqual(set(words.values()) - {"pass"}, set())
        return tokens.text_of(conversation.final), [*words]

    @rig.cases({f"{place}, {canonicalization}": (place, canonicalization)
                for place in PLACES for canonicalization in ("relaxed/relaxed", "simple/simple")})
    def test_signatures_and_verdicts_are_those_of_software(self, case):
        isolation, canonicalization = case
        source = token.FakeToken(home)
        large = self.LARGE.replace(b"alice@example.com", b"a@soft.example")
        with self.hashing(source, Pkcs11Isolation=isolation, Canonicalization=canonicalization) as made:
            self.assertEqual(self.signs(made), ("accepted", ["soft"]))
            self.assertEqual(self.signs(made, large), ("accepted", ["soft"]))
            for raw in (UNSIGNED, self.LARGE, UNSIGNED.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"):
                good = outside.dkimpy_sign(raw, "token.example", "rsa", rsa, canonicalization)
                self.judges(made, good, rsa="pass")
                self.judges(made, good + b"more\r\n", rsa="fail")
            self.assertGreater(len(source.calls("C_DigestUpdate")), 3_000_000 * 3 // 70_000)
            self.assertEqual(made.process.pid in {call.pid for call in source.calls()}, isolation == "none")
            # Small chunks are gathered.
            before = len(source.calls("C_DigestUpdate"))
            with tokens.session(made, address=ADDRESS) as conversation:
                conversation.message(outside.dkimpy_sign(self.LARGE[:60_000], "token.example", "rsa", rsa,
                                                         canonicalization), chunk=100)
            self.assertLess(len(source.calls("C_DigestUpdate")) - before, 6)
            made.signal("SIGTERM")
            self.ended(made)
        opened, closed = (len([c for c in source.calls(f) if not c.code]) for f in ("C_OpenSession", "C_CloseSession"))
        self.assertEqual(opened, closed)
        self.clean(source)

    def test_all_of_it_on_softhsm(self):
        folder = rig.folder("softhsm-hashes")
        source = token.SoftHsm(folder)
        source.add_token("dkim")
        with self.hashing(source, Pkcs11Verify="pkcs11:token=dkim", Pkcs11Digest="pkcs11:token=dkim",
                          Pkcs11Timeout=5) as made:
            self.assertEqual(self.signs(made), ("accepted", ["soft"]))
            self.judges(made, signed["rsa"], rsa="pass")
            self.judges(made, signed["ed"], ed="pass")
            self.judges(made, signed["ed"] + b"more\r\n", ed="fail")

    def test_signatures_with_lengths_of_their_own(self):
        """Four hashes of a message are made; what more is wanted is no pass, and no fault of ours."""
        raw, many = UNSIGNED, UNSIGNED
        sign = outside.dkim.DKIM
        for n in range(6):
            field = sign(raw).sign(b"rsa", b"token.example", rsa.pkcs1, canonicalize=(b"relaxed", b"relaxed"),
                                   length=True, include_headers=[b"from"])
            # Each over another beginning of the same body.
            many = field + many
            raw = raw + b"line\r\n"
        whole = many.partition(b"\r\n\r\n")
        many = whole[0] + b"\r\n\r\n" + raw.partition(b"\r\n\r\n")[2]
        source = token.FakeToken(home)
        for fallback, want in (("none", 4), ("software", 6)):
            with self.hashing(source, Pkcs11Fallback=fallback, AllowUnsignedTail="yes") as made:
                answer, got = self.sent(made, many)
                words = [r.word for r in outside.results(got, "mx.rig.test")]
                self.assertEqual((answer, words.count("pass"), words.count("policy")), ("accepted", want, 6 - want), got)

    @rig.cases(PLACES)
    def test_mail_is_deferred_while_the_token_is_away(self, isolation):
        source = token.FakeToken(home)
        with self.hashing(source, Pkcs11Isolation=isolation) as made:
            self.assertEqual(self.signs(made), ("accepted", ["soft"]))
            source.set(present=0)
            answer, _ = self.signs(made)
            self.assertTrue(answer.startswith("451 4.7.5 DKIM signing temporarily unavailable"), answer)
            self.defers(made, signed["rsa"])
            # Nothing of it is hashed, by anybody.
            self.assertEqual(self.sent(made, UNSIGNED)[0], "accepted")
            made.logged("token=fake cannot hash: ")
            source.set(present=None)
            self.judges_again(made)
            rig.until(5, lambda: self.signs(made) == ("accepted", ["soft"]), lambda: made.log())
        self.clean(source)

    def test_software_may_stand_in_also_in_the_middle_of_a_body(self):
        source = token.FakeToken(home)
        good = outside.dkimpy_sign(self.LARGE, "token.example", "rsa", rsa, "relaxed/relaxed")
        with self.hashing(source, Pkcs11Fallback="software") as made:
            self.judges(made, good, rsa="pass")
            for line in ("C_DigestUpdate", "C_DigestFinal", "C_DigestInit"):
                source.set({line: "0x30"})
                self.judges(made, good, rsa="pass")
                self.judges(made, good + b"more\r\n", rsa="fail")
                self.assertEqual(self.signs(made), ("accepted", ["soft"]))
                source.set({line: None})
            made.logged(r"note: body hashed in software \(Pkcs11Fallback\): the token is away")
        self.clean(source)

    @rig.cases({"fails": {"C_DigestUpdate": "0x30"}, "hangs": {"C_DigestUpdate.hang": 1},
                "crashes": {"C_DigestUpdate.crash": "once"}, "is taken out": {"present": 0},
                "loses its sessions": {"gone": 1}})
    def test_what_happens_in_the_middle_of_a_body_costs_that_message_its_answer(self, fault):
        source = token.FakeToken(home)
        good = outside.dkimpy_sign(self.LARGE, "token.example", "rsa", rsa, "relaxed/relaxed")
        with self.hashing(source) as made:
            self.judges(made, good, rsa="pass")
            with tokens.session(made, address=ADDRESS) as conversation:
                fields, body = wire.split(good)
                conversation.envelope()
                conversation.header(fields)
                conversation.body(body[:1_000_000])
                source.set(fault)
                began = time.monotonic()
                conversation.body(body[1_000_000:])
                _, final = conversation.end()
                self.assertTrue(tokens.text_of(final).startswith(DEFERRED), made.log())
                self.assertLess(time.monotonic() - began, 3)
            source.set({name: None for name in fault if name != "gone"})
            self.judges_again(made)
            self.judges(made, good, rsa="pass")
        self.clean(source)

    @rig.cases({"six": 6, "three": 3})
    def test_a_token_with_few_sessions_is_full_and_not_away(self, sessions):
        source = token.FakeToken(home, max_sessions=sessions)
        source.set({"C_DigestUpdate.ms": 2})
        good = outside.dkimpy_sign(self.LARGE, "token.example", "rsa", rsa, "relaxed/relaxed")
        with self.hashing(source, Pkcs11Verify="pkcs11:token=fake", Pkcs11Timeout=10) as made:
            answers = []

            def run():
                answer, got = self.sent(made, good)
                answers.append((answer, outside.verdicts(got, "mx.rig.test", by="header.s")))

            threads = [threading.Thread(target=run) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(answers, [("accepted", {"rsa": "pass"})] * 16, made.log())
            self.assertEqual(tokens.said(made, "CKR_SESSION_COUNT"), [])
        self.clean(source)

    def test_who_hangs_up_gives_the_session_back(self):
        source = token.FakeToken(home)
        good = outside.dkimpy_sign(self.LARGE, "token.example", "rsa", rsa, "relaxed/relaxed")
        fields, body = wire.split(good)
        with self.hashing(source) as made:
            for n in range(40):
                with tokens.session(made, address=ADDRESS) as conversation:
                    conversation.envelope()
                    conversation.header(fields)
                    conversation.body(body[:200_000])
                    if n % 2:
                        conversation.abort()
            rig.until(5, lambda: len(source.calls("C_OpenSession")) - len(source.calls("C_CloseSession")) <= 5,
                      "the sessions of digests to be closed")
            self.judges(made, good, rsa="pass")
        self.clean(source)

    def test_memory_does_not_grow_with_what_waits_for_a_slow_token(self):
        source = token.FakeToken(home)
        source.set({"C_DigestUpdate.ms": 10})
        good = outside.dkimpy_sign(messages.of_size(10_000_000), "token.example", "rsa", rsa, "relaxed/relaxed")
        with self.hashing(source, Pkcs11Timeout=10, DNSTimeout=20) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            before, answers = made.peak_memory(), []
            threads = [threading.Thread(target=lambda: answers.append(self.sent(made, good)[0])) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(answers, ["accepted"] * 20)
            # 200 MB have passed.
            self.assertLess(made.peak_memory() - before, 20 << 20)


class Configuration(TestCase):
    REFUSED = {
        "no module": ({"Pkcs11Module": None}, r"milter.conf:\d+: Pkcs11Verify: which module has the token\?"),
        "no URI": ({"Pkcs11Verify": "token=fake"}, "Pkcs11Verify: "),
        "an unknown attribute": ({"Pkcs11Verify": "pkcs11:tokn=fake"}, 'attribute "tokn" is not known'),
        "a PIN in the open": ({"Pkcs11Verify": "pkcs11:token=fake?pin-value=1234"}, "pin-value puts the PIN"),
        "a key": ({"Pkcs11Verify": "pkcs11:token=fake;object=dkim"}, r"milter.conf:\d+: Pkcs11Verify: attribute object is for a key"),
        "a mechanism to hash": ({"Pkcs11Verify": None, "Pkcs11Digest": "pkcs11:token=fake?x-mechanism=rsa-pkcs"},
                                r"milter.conf:\d+: Pkcs11Digest: attribute x-mechanism is for a key"),
        "a fallback that is none": ({"Pkcs11Fallback": "sofware"}, "did you mean software"),
        "a token that is not there": ({"Pkcs11Verify": "pkcs11:token=other"}, r"milter.conf:\d+: Pkcs11Verify: .* cannot verify: no token"),
    }

    @rig.cases(REFUSED)
    def test_what_is_wrong_is_told_with_its_option(self, case):
        options, words = case
        made = daemon(token.FakeToken(home), **options)
        made.options = {name: value for name, value in made.options.items() if value is not None}
        made.write()
        done = tokens.check(made)
        self.assertEqual(done.returncode, 78, done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, errors)
        self.assertRegex(errors[0], words)
        self.assertNotIn("1234", errors[0])

    def test_a_fallback_for_nothing_is_told(self):
        made = daemon(token.FakeToken(home), Pkcs11Fallback="software")
        del made.options["Pkcs11Verify"]
        made.write()
        done = tokens.check(made)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "Pkcs11Fallback .*there is neither Pkcs11Verify nor Pkcs11Digest")

    def test_a_reload_takes_the_token_away_and_brings_it_back(self):
        source = token.FakeToken(home)
        with daemon(source) as made:
            self.judges(made, signed["rsa"], rsa="pass")
            verified = len(source.calls("C_Verify"))
            uri = made.options.pop("Pkcs11Verify")
            made.write()
            made.signal("SIGHUP")
            made.logged("reloaded")
            self.judges(made, signed["rsa"], rsa="pass")
            # What looks after published records has the old state for some seconds.
            rig.until(10, lambda: not token.helpers(made.process.pid), lambda: made.log())
            self.assertEqual(len(source.calls("C_Verify")), verified)
            made.options["Pkcs11Verify"] = uri
            made.write()
            made.signal("SIGHUP")
            rig.until(5, lambda: (self.judges(made, signed["rsa"], rsa="pass"),
                                  len(source.calls("C_Verify")) > verified)[1], "the token to verify again")
        self.clean(source)


if __name__ == "__main__":
    rig.main()
