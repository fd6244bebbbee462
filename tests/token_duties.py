#!/usr/bin/python3 -B
"""The daemon with tokens that verify (Pkcs11Verify): which verdicts there are, and what becomes of mail while the token
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
    made = milter.Milter(**{
        "Mode": "sv", "InternalHosts": "127.0.0.1", "AuthservID": "mx.rig.test", "Domain": "soft.example",
        "Selector": "soft", "KeyFile": rsa.path, "Pkcs11Module": source.module, "Pkcs11Verify": "pkcs11:token=fake",
        "Pkcs11Timeout": 1, "TestPublicKeys": records, "LogWhy": "yes", **options})
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


class Configuration(TestCase):
    REFUSED = {
        "no module": ({"Pkcs11Module": None}, r"Pkcs11Verify: which module has the token\?"),
        "no URI": ({"Pkcs11Verify": "token=fake"}, "Pkcs11Verify: "),
        "an unknown attribute": ({"Pkcs11Verify": "pkcs11:tokn=fake"}, 'attribute "tokn" is not known'),
        "a PIN in the open": ({"Pkcs11Verify": "pkcs11:token=fake?pin-value=1234"}, "pin-value puts the PIN"),
        "a fallback that is none": ({"Pkcs11Fallback": "sofware"}, "did you mean software"),
        "a token that is not there": ({"Pkcs11Verify": "pkcs11:token=other"}, "Pkcs11Verify: .* cannot verify: no token"),
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
        self.assertRegex(done.stderr, "Pkcs11Fallback .*there is no Pkcs11Verify|Pkcs11Fallback: .*no Pkcs11Verify")

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
