#!/usr/bin/python3 -B
"""The daemon with keys in PKCS#11 tokens: what it says of bad ones, and what becomes of mail while tokens do what
tokens do. SoftHSM stands for real ones, pkcs11-engine/fake-token for those in trouble.

Mail of token.example is signed by the token with the selector `tok`, that of soft.example by a key in a file. With
--long, faults are held for 20 seconds, and SoftHSM is stopped 100 times, too.
"""
import concurrent.futures, itertools, json, os, pwd, random, re, shutil, signal, socket, struct, subprocess, sys
import threading, time

import rig
from rig import keys, messages, milter, outside, token, wire

LONG = "--long" in sys.argv
URI = "pkcs11:token=fake;object=dkim"
RECOVERY = 5  # seconds from a token's return to the first signature
DEFERRED = "451 4.7.5"
# What p99 may be in any case: a machine whose time is rationed stops everything for 100 ms now and then. A token that
# hung in the way of others would cost a second.
FLOOR = 150  # ms


def setUpModule():
    global home, soft, pin
    home = rig.folder("tokens")
    soft = keys.Key(home, "soft")
    pin = token.pin_file(home)


def signer(source, uri=URI, entries=None, **options):
    """A daemon that signs with the key that `uri` names in the module of `source`; `entries` are (domain, selector,
    key) where there are others."""
    daemon = milter.Milter(**{
        "Mode": "sv", "InternalHosts": "127.0.0.1", "AuthservID": "mx.rig.test", "Pkcs11Module": source.module,
        "Pkcs11PinFile": pin, "Pkcs11Timeout": 1, "TestPublicKeys": records_file(source), **options})
    daemon.options |= {"KeyTable": f"file:{daemon.home}/KeyTable", "SigningTable": f"refile:{daemon.home}/SigningTable"}
    write_tables(daemon, entries or [("token.example", "tok", uri), ("soft.example", "soft", soft.path)])
    daemon.environment = dict(source.environment)
    return daemon


def write_tables(daemon, entries):
    (daemon.home / "KeyTable").write_text("".join(
        f"key{n} {domain}:{selector}:{key}\n" for n, (domain, selector, key) in enumerate(entries)))
    (daemon.home / "SigningTable").write_text("".join(
        f"*@{domain} key{n}\n" for n, (domain, _, _) in enumerate(entries)))
    daemon.write()


def records(source):
    return {"tok._domainkey.token.example": source.record, "soft._domainkey.token.example": soft.record,
            "soft._domainkey.soft.example": soft.record}


def records_file(source):
    """OpenDKIM's form, which the daemon reads."""
    path = home / f"records{id(source)}"
    path.write_text("".join(f"{name} {text}\n" for name, text in records(source).items()))
    return path


def mail(domain="token.example", subject="Lunch"):
    return messages.plain(subject=subject, author=f"alice@{domain}")


def session(daemon, **connect):
    conversation = wire.Conversation(daemon.address, 30)
    conversation.negotiate()
    conversation.connect(**connect)
    return conversation


class TestCase(rig.TestCase):
    def sent(self, daemon, domain="token.example"):
        """The answer to a message in a session of its own, and the message as it goes on: (text, message)."""
        with session(daemon) as conversation:
            _, got = conversation.message(mail(domain))
            self.edits = conversation.edits
            return text_of(conversation.final), got

    def signs(self, daemon, source, domain="token.example", selector="tok"):
        answer, got = self.sent(daemon, domain)
        self.assertEqual(answer, "accepted", daemon.log())
        self.assertEqual(outside.dkimpy_verify(got, records(source)), {selector: "pass"}, daemon.log())

    def defers(self, daemon, domain="token.example"):
        answer, got = self.sent(daemon, domain)
        self.assertTrue(answer.startswith(DEFERRED), f"{answer}\n{daemon.log()}")
        self.assertEqual(outside.selectors(got), [])

    def signs_again(self, daemon, source):
        rig.until(RECOVERY, lambda: "tok" in outside.selectors(self.sent(daemon)[1]),
                  lambda: f"a signature:\n{daemon.log()[-3000:]}")
        self.signs(daemon, source)

    def ended(self, daemon, seconds=10):
        self.assertEqual(daemon.process.wait(seconds), 0, daemon.log())

    def clean(self, source):
        self.assertEqual(source.crimes(), [])


def text_of(final):
    """A final answer: `accepted`, or the text of a refusal."""
    letter, data = final
    return {"a": "accepted", "c": "accepted", "t": "4xx"}.get(letter) or data.rstrip(b"\0").decode("latin1")


class BadInput(TestCase):
    """`-n` says it in one sentence with the place, and exits with 78; a daemon serves its other keys meanwhile."""

    @classmethod
    def setUpClass(cls):
        cls.home = rig.folder("bad-input")
        cls.hsm = hsm = token.SoftHsm(cls.home)
        hsm.record = soft.record
        for label in ("dkim", "twin", "twin"):
            hsm.add_token(label)
        for label, ident, algorithm in [("mail", "01", "rsa:2048"), ("short", "02", "rsa:1024"),
                                        ("tiny", "03", "rsa:768"), ("double", "04", "rsa:1024"),
                                        ("double", "05", "rsa:1024"), ("elliptic", "08", "EC:prime256v1")]:
            hsm.add_key("dkim", label, ident, algorithm)
        keys.openssl("req", "-x509", "-key", soft.path, "-subj", "/CN=rig.test", "-outform", "DER", "-out",
                     cls.home / "certificate")
        hsm.import_object("dkim", "cert", (cls.home / "certificate").read_bytes(), "certificate", "06")
        hsm.import_object("dkim", "pubkey", keys.openssl("pkey", "-in", soft.path, "-pubout", "-outform", "DER"),
                          "public", "07")
        token.pin_file(cls.home, name="open").chmod(0o644)
        token.pin_file(cls.home, name="wrong", pin="9999")
        token.pin_file(cls.home, name="empty", pin="").write_text("")
        (cls.home / "text.so").write_text("#!/bin/sh\n" * 100)
        header = b"\x7fELF%c\1\1" + bytes(9)
        (cls.home / "i386.so").write_bytes(header % 1 + struct.pack(
            "<HHIIIIIHHHHHH", 3, 3, 1, 0, 0, 0, 0, 52, 32, 0, 40, 0, 0) + bytes(200))
        (cls.home / "arm64.so").write_bytes(header % 2 + struct.pack(
            "<HHIQQQIHHHHHH", 3, 183, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0) + bytes(200))
        library(cls.home / "other.so", "int other(void) { return 1; }")
        library(cls.home / "libmissing.so", "int missing(void) { return 1; }")
        library(cls.home / "needs.so", "int missing(void); int needs(void) { return missing(); }", "-lmissing")
        (cls.home / "libmissing.so").unlink()
        cls.fake = token.FakeToken(cls.home)

    # The URI, options, and what the one sentence has.
    SOFTHSM = {
        "a missing module": ("mail?module-path=/nowhere/m.so", {}, "module /nowhere/m.so: No such file"),
        "a text file": ("mail?module-path=HOME/text.so", {}, "HOME/text.so: cannot be loaded: invalid ELF header"),
        "a 32-bit library": ("mail?module-path=HOME/i386.so", {}, "HOME/i386.so: cannot be loaded: wrong ELF class"),
        "a library of another machine": ("mail?module-path=HOME/arm64.so", {}, "HOME/arm64.so: cannot be loaded: it was "
                                         "made for another kind of processor"),
        "a library without one it needs": ("mail?module-path=HOME/needs.so", {}, "HOME/needs.so: cannot be loaded: "
                                           "libmissing.so: cannot open"),
        "a library that is no module": ("mail?module-path=HOME/other.so", {}, "is no PKCS#11 module: it has no "
                                        "C_GetFunctionList"),
        "a directory": ("mail?module-path=HOME", {}, "HOME is a directory; name the module's file"),
        "a missing PIN file": ("mail", {"Pkcs11PinFile": "/nowhere/pin"}, "cannot read the PIN file /nowhere/pin: No"),
        "a PIN file of others": ("mail", {"Pkcs11PinFile": "HOME/open"}, r"HOME/open is not kept from others "
                                 r"\(mode 0644\); to mend: chmod"),
        "an empty PIN file": ("mail", {"Pkcs11PinFile": "HOME/empty"}, "the PIN in HOME/empty is empty"),
        "a wrong PIN": ("mail", {"Pkcs11PinFile": "HOME/wrong"}, "C_Login failed with CKR_PIN_INCORRECT; the PIN from "
                        "PIN file HOME/wrong is not tried again until it changes"),
        "no credential": ("mail", {"Pkcs11PinFile": "credential:dkim"}, "LoadCredential=dkim:"),
        "a command for the PIN": ("mail?pin-source=|cat%20/pin", {}, "a PIN is not read from a command"),
        "a PIN in the open": ("mail?pin-value=1234", {}, "pin-value puts the PIN into the open"),
        "no such token": ("pkcs11:token=nosuch;object=mail", {}, "no token matches pkcs11:token=nosuch;object=mail; "
                          "there are pkcs11:token="),
        "two tokens of one label": ("pkcs11:token=twin;object=mail", {}, "2 tokens match .*; name one of them, .* "
                                    "pkcs11:token=twin;.*serial=.*pkcs11:token=twin;.*serial="),
        "no such key": ("nosuch", {}, "no private key matches pkcs11:token=dkim;object=nosuch; the token has .*"
                        "object=mail;id=%01"),
        "two keys of one label": ("double", {}, "2 keys match .*object=double;id=%0[45].*object=double;id=%0[45]"),
        "a certificate": ("certificate", {}, r"\(there is a certificate of that name, which cannot sign\)"),
        "a public key": ("public", {}, r"\(there is a public key of that name, which cannot sign\)"),
        "type=cert": ("mail;type=cert", {}, "type=cert is not what signs"),
        "an EC key": ("elliptic", {}, "object=elliptic.*: EC key, RSA or Ed25519 wanted"),
        "768 bits": ("tiny", {}, "RSA key of 768 bits is too short: at least 1024 are needed"),
        "an empty URI": ("pkcs11:", {}, "names no token and no key"),
        "a URI in quotation marks": ('"pkcs11:token=dkim;object=mail?pin-value=0815"', {},
                                     "without the quotation marks or brackets around it$"),
        "an unknown attribute": ("pkcs11:tokn=dkim", {}, "attribute \"tokn\" is not known; did you mean token"),
        "an attribute twice": ("mail;token=dkim", {}, "attribute token is given twice"),
        "half an escape": ("pkcs11:token=dk%2", {}, "is not followed by two hexadecimal digits"),
        "a wrong separator": ("pkcs11:token=dkim&object=mail", {}, "attributes are separated by"),
        "an attribute in the wrong part": ("mail?serial=1", {}, "serial"),
        "an unknown policy": ("mail?x-on-token-away=nxt", {}, "did you mean next"),
        "no module": ("mail", {"Pkcs11Module": None}, "which module has the token"),
    }

    @rig.cases(SOFTHSM)
    def test_check_names_place_and_fault(self, case):
        uri, options, words = case
        if "pkcs11:" not in uri:
            uri = f"pkcs11:token=dkim;object={uri}"
        options = {name: str(value).replace("HOME", str(self.home)) for name, value in options.items()}
        self.refused(self.hsm, uri.replace("HOME", str(self.home)), words, options)

    FAKE = {
        "C_GetFunctionList fails": ({"C_GetFunctionList": "0x5"}, "C_GetFunctionList failed with CKR_GENERAL_ERROR"),
        "C_GetInterface fails": ({"C_GetInterface": "0x54"}, "C_GetInterface failed with .* p11-kit-proxy.so"),
        "C_Initialize fails": ({"C_Initialize": "0x30"}, "C_Initialize failed with CKR_DEVICE_ERROR"),
        "C_Initialize finds nothing": ({"C_Initialize": "0x5"}, "CKR_GENERAL_ERROR: .* SOFTHSM2_CONF .*tokendir"),
        "C_Initialize wants more": ({"C_Initialize": "0x7"}, "CKR_ARGUMENTS_BAD: .* parameters .* p11-kit-proxy.so"),
        "it hangs": ({"C_Initialize.hang": 1}, "still being opened|no call has returned|in time"),
        "it crashes": ({"C_Initialize.crash": 1}, "the process that holds the token's module"),
        "a key that cannot sign": ({"can_sign": 0}, "may not sign: its CKA_SIGN is false"),
        "no mechanism": ({"mechanisms": "sha256"}, "signs neither by CKM_RSA_PKCS nor by CKM_SHA256_RSA_PKCS"),
        "the public key is another's": ({"wrong_public": 1}, "its signature is wrong"),
        "it signs garbage": ({"corrupt": 1}, "its signature is wrong"),
        "two tokens": ({"second_token": "fake"}, "2 tokens match .*serial=0001.*serial=0002"),
        "two keys": ({"second_key": "dkim"}, "2 keys match .*id=%01.*id=%02"),
        "a certificate": ({"only": "certificate"}, "there is a certificate of that name"),
        "a public key": ({"only": "public"}, "there is a public key of that name"),
        "no token": ({"present": 0}, "the module shows this user no token"),
    }

    @rig.cases(FAKE)
    def test_check_names_place_and_fault_of_a_token(self, case):
        values, words = case
        self.fake.set(values)
        try:
            self.refused(self.fake, URI, words, {})
        finally:
            self.fake.set(dict.fromkeys(values))
        self.clean(self.fake)

    def refused(self, source, uri, words, options):
        daemon = signer(source, uri, **options)
        daemon.options = {name: value for name, value in daemon.options.items() if value != "None"}
        daemon.write()
        done = check(daemon)
        self.assertEqual(done.returncode, 78, done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(f"{daemon.home}/KeyTable:1: ", errors[0])
        self.assertRegex(errors[0], words.replace("HOME", str(self.home)))
        self.assertNotIn("1234", errors[0].replace(str(daemon.home), ""))
        self.serves_others(daemon, uri)

    def serves_others(self, daemon, uri):
        """Unless the configuration itself is wrong, which it does not start with."""
        try:
            daemon.start()
        except RuntimeError as error:
            self.assertIn("ended with 78", str(error))
            self.assertIn("KeyTable:1: KeyTable: ", str(error), "the URI cannot be read")
            return
        try:
            self.signs(daemon, self.fake, "soft.example", "soft")
            answer, got = self.sent(daemon)
            self.assertRegex(answer, "^4")
            self.assertEqual(outside.selectors(got), [], "not by another key")
            daemon.signal("SIGTERM")
            self.ended(daemon)
        finally:
            daemon.stop()

    @rig.cases({"Pkcs11Modul": ("/m.so", "did you mean Pkcs11Module"), "Pkcs11Isolation": ("proces", "mean process"),
                "Pkcs11Sessions": ("0", "from 1 to 64"), "Pkcs11Queue": ("many", "from 1 to 1024"),
                "Pkcs11Timeout": ("1h", "from 1 to 15"), "On-TokenAway": ("reject", "tempfail"),
                "On-TokenAwya": ("next", "did you mean On-TokenAway"), "Pkcs11PinFile": ("|cat", "from a command"),
                "Pkcs11AllowPinValue": ("maybe", "maybe")})
    def test_check_names_options_that_are_wrong(self, case):
        value, words = case
        option = self.id().partition("[")[2].rstrip("]")
        daemon = signer(self.fake, **{option: value})
        done = check(daemon)
        self.assertEqual(done.returncode, 78)
        line = 1 + list(daemon.options).index(option)
        self.assertRegex(done.stderr, f"error: {daemon.configuration}:{line}: .*{words}")

    def test_a_short_key_signs_with_a_warning(self):
        """RFC 8301 section 3.2: 1024 bits are the least, 2048 should be used; as with keys in files."""
        done = check(signer(self.hsm, "pkcs11:token=dkim;object=short"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "KeyTable:1: .*RSA key of 1024 bits; 2048 should be used")

    def test_check_looks_as_the_user_that_the_daemon_will_be(self):
        """Root can read any PIN, which says nothing of the daemon."""
        done = check(signer(self.fake, UserID="nobody"))
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertRegex(done.stderr, f"KeyTable:1: .*cannot read the PIN file {pin}: Permission denied")

    def test_a_pin_value_is_taken_where_it_is_allowed(self):
        done = check(signer(self.hsm, "pkcs11:token=dkim;object=mail?pin-value=1234", Pkcs11AllowPinValue="yes"))
        self.assertEqual((done.returncode, "1234" in done.stderr), (0, False), done.stderr)
        self.assertRegex(done.stderr, 'warning: .*KeyTable:1: key "key0": pin-value puts the PIN into this file')

    def test_a_pin_source_is_seen_from_the_base_directory(self):
        """And not from where the daemon happens to be."""
        for source in ("pins/pin", "./pins/pin", "file:pins/pin", "file:./pins/pin"):
            daemon = signer(self.hsm, f"pkcs11:token=dkim;object=mail?pin-source={source}", Pkcs11PinFile="/nowhere")
            daemon.options["BaseDirectory"] = daemon.home
            daemon.write()
            (daemon.home / "pins").mkdir()
            (daemon.home / "pins/pin").write_text("1234")
            (daemon.home / "pins/pin").chmod(0o600)
            done = check(daemon)
            self.assertEqual((done.returncode, done.stderr.count("PIN")), (0, 0), done.stderr)

    def test_a_slot_number_is_taken_with_a_warning(self):
        shown = self.hsm.run("softhsm2-util", "--show-slots").decode()
        slots = re.split(r"^Slot (?=\d)", shown, flags=re.MULTILINE)[1:]
        [slot] = [slot.split()[0] for slot in slots if re.search(r"Label: +dkim\b", slot)]
        done = check(signer(self.hsm, f"pkcs11:slot-id={slot};token=dkim;object=mail"))
        self.assertRegex(done.stderr, 'warning: .*KeyTable:1: key "key0": slot-id is a number that modules change')
        self.assertEqual(done.returncode, 0, done.stderr)


def library(path, text, *needs):
    """Compiles a shared library."""
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", "-x", "none", f"-L{path.parent}", *needs],
                   input=text.encode(), check=True)


def check(daemon):
    return subprocess.run([daemon.path, "-n", "-x", daemon.configuration], capture_output=True, text=True, timeout=30,
                          env={**os.environ, **daemon.environment})

class Traffic:
    """Mail of token.example at a steady rate over some connections, each message kept with its answer."""

    def __init__(self, daemon, rate=200, connections=32):
        self.daemon, self.rate = daemon, rate
        self.answers, self.numbers, self.stopped = [], itertools.count(), threading.Event()
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(connections)]
        for thread in self.threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def work(self):
        conversation = None
        while True:
            number = next(self.numbers)
            due = self.began + number / self.rate
            if self.stopped.wait(max(0, due - time.monotonic())):
                return
            sent = time.monotonic()
            try:
                conversation = conversation or session(self.daemon)
                _, got = conversation.message(mail(subject=f"Number {number}"))
                answer = text_of(conversation.final)
            except OSError as error:
                conversation, answer, got = None, f"lost: {error}", b""
            self.answers.append((sent, time.monotonic(), answer, got))

    def signed_since(self, when):
        """When the first message that was sent after `when` was signed, or None."""
        return min((end for sent, end, answer, _ in list(self.answers) if sent >= when and answer == "accepted"),
                   default=None)


# How a token breaks and how it is mended.
FAULTS = {
    "device removed and back": ({"present": 0}, {"present": None}),
    "removed, then seen by C_Initialize": ({"present": 0, "needs_init": 1}, {"present": None}),
    "slots renumbered": ({"gone": 1}, {}),
    "calls hang": ({"C_Sign.hang": 1}, {"C_Sign.hang": None}),
    "garbage signatures": ({"corrupt": 1}, {"corrupt": None}),
    "PIN changed": ({"pin": "9999", "gone": 1}, "PIN"),
    "module crashes once": ({"C_Sign.crash": "once"}, {}),
    "helper process killed": ("kill", {}),
}
IN_PROCESS = {f"{name}, in process": (*FAULTS[name], {"Pkcs11Isolation": "none"})
              for name in ("removed, then seen by C_Initialize", "calls hang", "PIN changed")}


def latencies(daemons, seconds):
    """p99 of mail that the key in a file signs, in milliseconds, of each daemon; by milter-load, all at a time."""
    loads = []
    for daemon in daemons:
        file = daemon.home / "other"
        file.write_bytes(mail("soft.example"))
        loads.append(subprocess.Popen(
            [rig.program("milter-load"), daemon.address, file, "-c", "4", "--rate", "100", "--duration", str(seconds),
             "--json", "--expect", "signature", "--sender", "alice@soft.example"], stdout=subprocess.PIPE))
    said = [load.communicate()[0] for load in loads]
    if any(load.returncode for load in loads):
        raise AssertionError(f"mail of the other key failed: {said}")
    return [json.loads(one)["latency_ms"]["p99"] for one in said]


class Faults(TestCase):
    """200 messages a second while the token fails: each is signed rightly or deferred, mail of another key has no
    part in it, and signing comes back by itself."""

    table = []

    @classmethod
    def tearDownClass(cls):
        print("\n\n200 messages a second on a token, and 100 of another key, whose p99 is in ms: quiet, under the fault, "
              "and under the\nfault in a daemon without tokens; at most twice the first or the last, or "
              f"{FLOOR}.\n{'':44} {'sent':>5} {'signed':>6} {'451':>5} {'lost':>4} {'wrong':>5} {'wrong PINs':>10} "
              f"{'back in ms':>10}  {'quiet':>6} {'fault':>6} {'beside':>6}")
        for name, *counts, back, quiet, faulty, beside in cls.table:
            sent, signed, deferred, lost, wrong, pins = counts
            print(f"{name:44} {sent:5} {signed:6} {deferred:5} {lost:4} {wrong:5} {pins:10} {back * 1000:10.0f}  "
                  f"{quiet:6.1f} {faulty:6.1f} {beside:6.1f}")

    @rig.cases({name: (*case, {}) for name, case in FAULTS.items()} | IN_PROCESS)
    def test_no_message_is_lost(self, case):
        broken, mended, options = case
        source = token.FakeToken(home)
        pins = token.pin_file(source.home)
        quiet_time, fault_time = (6, 20) if LONG else (1.2, 1.2)
        # Without tokens; it tells how busy the machine is.
        control = signer(source, entries=[("soft.example", "soft", soft.path)])
        with control, signer(source, Pkcs11PinFile=pins, **options) as daemon:
            self.signs(daemon, source)
            with Traffic(daemon) as traffic:
                quiet, _ = latencies([daemon, control], quiet_time)
                if broken == "kill":
                    os.kill(token.helpers(daemon.process.pid)[0], signal.SIGKILL)
                else:
                    source.set(broken)
                began = time.monotonic()
                faulty, control_faulty = latencies([daemon, control], fault_time)
                if mended == "PIN":
                    pins.write_text("9999\n")
                else:
                    source.set(mended)
                mended_at = time.monotonic() if mended else began
                back = rig.until(RECOVERY + 5, lambda: traffic.signed_since(mended_at),
                                 lambda: f"a signature:\n{daemon.log()[-3000:]}") - mended_at
                time.sleep(0.3)
            self.signs(daemon, source)
            self.assertTrue(daemon.alive())
            daemon.signal("SIGTERM")
            self.ended(daemon)
        signed = [got for _, _, answer, got in traffic.answers if answer == "accepted"]
        deferred = sum(answer.startswith(DEFERRED) for _, _, answer, _ in traffic.answers)
        lost = [answer for _, _, answer, _ in traffic.answers
                if answer != "accepted" and not answer.startswith(DEFERRED)]
        wrong = wrong_ones(signed, source)
        name = self.id().partition("[")[2].rstrip("]")
        self.table.append((name, len(traffic.answers), len(signed), deferred, len(lost), wrong, source.wrong_logins(),
                           back, quiet, faulty, control_faulty))
        self.assertEqual(lost, [])
        self.assertEqual(wrong, 0)
        self.assertEqual(source.wrong_logins(), 1 if mended == "PIN" else 0)
        self.assertLess(back, RECOVERY)
        self.assertLess(faulty, max(2 * quiet, 2 * control_faulty, FLOOR))
        self.clean(source)
        if mended:
            self.assertGreater(deferred, 0, "the fault was felt")


def wrong_ones(raws, source):
    """How many of the messages do not pass by dkim-verify, or among fifty of them by dkimpy."""
    folder = rig.folder("signed")
    zone = folder / "records"
    zone.write_text("".join(f"{name} 60 IN TXT {strings(text)}\n" for name, text in records(source).items()))
    paths = []
    for number, raw in enumerate(raws):
        paths.append(folder / str(number))
        paths[-1].write_bytes(raw)
    done = subprocess.run([rig.program("dkim-verify"), "--json", "--records", zone, *paths], capture_output=True,
                          text=True)
    passed = sum([one["result"] for one in json.loads(line)["signatures"]] == ["pass"]
                 for line in done.stdout.splitlines())
    sample = random.sample(raws, min(50, len(raws)))
    wrong = sum(outside.dkimpy_verify(raw, records(source)) != {"tok": "pass"} for raw in sample)
    return max(len(raws) - passed, wrong)


def strings(text):
    """The strings of a TXT record, as a zone file has them."""
    return " ".join(f'"{text[at:at + 250]}"' for at in range(0, len(text), 250))


class Ending(TestCase):
    """SIGTERM while four workers sign: C_Finalize is called once, last, and with nobody inside; the exit code is 0."""

    def test_100_times_in_a_process_of_its_own(self):
        self.repeat(token.FakeToken(home, **{"engine.us": 3000, "parallel": 4}), 100, "process")

    def test_100_times_in_the_daemon(self):
        self.repeat(token.FakeToken(home, **{"engine.us": 3000, "parallel": 4}), 100, "none")

    @rig.cases({"process": "process", "none": "none"})
    def test_a_second_signal_does_not_wait_for_mail(self, isolation):
        source = token.FakeToken(home, **{"engine.us": 20000})
        with signer(source, Pkcs11Isolation=isolation) as daemon:
            self.signs(daemon, source)
            holder = daemon.process.pid if isolation == "none" else token.helpers(daemon.process.pid)[0]
            threads = [threading.Thread(target=client, args=(daemon, threading.Event(), False)) for _ in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
            daemon.signal("SIGTERM")
            time.sleep(0.05)
            daemon.signal("SIGTERM")
            self.ended(daemon, 4)
            for thread in threads:
                thread.join()
        calls = [call.function for call in source.calls(pid=holder)]
        self.assertEqual((calls[-1], calls.count("C_Finalize")), ("C_Finalize", 1))
        self.clean(source)

    def test_the_module_ends_with_a_daemon_that_is_killed(self):
        source = token.FakeToken(home)
        with signer(source) as daemon:
            self.signs(daemon, source)
            holder, = token.helpers(daemon.process.pid)
            daemon.signal("SIGKILL")
            rig.until(5, lambda: not alive(holder), "the process that holds the module to end")
        self.assertEqual(source.calls()[-1].function, "C_Finalize")
        self.clean(source)

    @rig.cases({"process": "process", "none": "none"})
    def test_with_softhsm(self, isolation):
        softhsm = token.SoftHsm(rig.folder("softhsm"))
        softhsm.add_token("fake")
        softhsm.record = softhsm.add_key("fake", "dkim")
        self.repeat(softhsm, 100 if LONG else 20, isolation)

    def repeat(self, source, times, isolation):
        """Half of the times with clients that hang up while the token signs for them."""
        # Four at a time start slowly on a busy machine.
        daemons = [signer(source, Pkcs11Isolation=isolation, Pkcs11Timeout=5, DrainTimeout=1) for _ in range(4)]
        turns = itertools.count()

        def some(daemon):
            for turn in iter(lambda: next(turns), None):
                if turn >= times:
                    return
                self.once(daemon, source, isolation, rude=turn % 2, pause=random.uniform(0, 0.06))

        with concurrent.futures.ThreadPoolExecutor(len(daemons)) as pool:
            for done in [pool.submit(some, daemon) for daemon in daemons]:
                done.result()
        if isinstance(source, token.FakeToken):
            self.clean(source)

    def once(self, daemon, source, isolation, rude, pause):
        daemon.start()
        pid = daemon.process.pid
        rig.until(10, lambda: " ready: " in daemon.log().rpartition("configuration: ")[2], lambda: daemon.log())
        holder = pid if isolation == "none" else token.helpers(pid)[0]
        stopping = threading.Event()
        threads = [threading.Thread(target=client, args=(daemon, stopping, rude), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(pause)
        daemon.signal("SIGTERM")
        stopping.set()
        self.ended(daemon)
        for thread in threads:
            thread.join()
        daemon.stop()
        self.assertFalse(os.path.exists(f"/proc/{holder}"))
        self.assertNotIn("did not end in time", daemon.log())
        if isinstance(source, token.FakeToken):
            calls = [call.function for call in source.calls(pid=holder)]
            self.assertEqual((calls[-1], calls.count("C_Finalize"), calls.count("C_Initialize")), ("C_Finalize", 1, 1))
            self.assertEqual(daemon.log().count("error"), 0, daemon.log())


def client(daemon, stopping, rude):
    """Mail after mail until it is `stopping`; if it is `rude`, then without waiting for the last answer."""
    try:
        with session(daemon) as conversation:
            fields, body = wire.split(mail())
            while True:
                conversation.envelope()
                conversation.header(fields)
                conversation.body(body)
                if rude and stopping.is_set():
                    conversation.socket.sendall(conversation.packets("E", macros=conversation.macros))
                    return
                conversation.end()
                conversation.abort()
                if stopping.is_set():
                    return
    except (OSError, wire.Refused):
        pass  # it has stopped listening


class Starting(TestCase):
    @rig.cases({"process": "process", "none": "none"})
    def test_the_module_is_initialized_by_who_has_given_up_root(self, isolation):
        """And by nobody before: not by the command, not before the daemon is in the background, not as root."""
        source = token.FakeToken(home)
        run = rig.folder("run")
        user = pwd.getpwnam("nobody")
        own = token.pin_file(run)
        for path in (run, own):
            os.chown(path, user.pw_uid, user.pw_gid)
        daemon = signer(source, Pkcs11Isolation=isolation, Background="yes", PidFile=f"{run}/pid", UserID="nobody",
                        Socket=f"local:{run}/socket", Pkcs11PinFile=own)
        daemon.socket, daemon.address = run / "socket", f"unix:{run}/socket"
        done = subprocess.run([daemon.path, "-x", daemon.configuration], timeout=20, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0)
        pid = int((run / "pid").read_text())
        try:
            answer, got = self.sent(daemon)
            self.assertEqual((answer, outside.selectors(got)), ("accepted", ["tok"]))
            holder = pid if isolation == "none" else token.helpers(pid)[0]
            self.assertEqual({call.pid for call in source.calls()}, {holder})
            self.assertEqual(len(source.calls("C_Initialize")), 1)
            for kind, own_id in (("Uid", user.pw_uid), ("Gid", user.pw_gid)):
                self.assertEqual(status(holder, kind).split(), [str(own_id)] * 4)
        finally:
            os.kill(pid, signal.SIGTERM)
        rig.until(10, lambda: not os.path.exists(f"/proc/{pid}"), "it to end")
        self.assertEqual(source.calls()[-1].function, "C_Finalize")
        self.clean(source)

    @rig.cases({"process": "process", "none": "none"})
    def test_the_pin_may_be_a_credential(self, isolation):
        """As systemd has them: root's, for the daemon's group to read, in a directory that the environment names."""
        source = token.FakeToken(home)
        credentials = rig.folder("credentials")
        (credentials / "token-pin").write_text(token.PIN)
        (credentials / "token-pin").chmod(0o440)
        shutil.chown(credentials / "token-pin", "root", pwd.getpwnam("nobody").pw_gid)
        daemon = signer(source, Pkcs11Isolation=isolation, Pkcs11PinFile="credential:token-pin", UserID="nobody")
        daemon.environment["CREDENTIALS_DIRECTORY"] = str(credentials)
        with daemon:
            self.signs(daemon, source)
        self.clean(source)

    def test_a_token_that_comes_later_is_signed_with(self):
        source = token.FakeToken(home, present=0)
        with signer(source) as daemon:
            self.defers(daemon)
            self.signs(daemon, source, "soft.example", "soft")
            source.set(present=None)
            self.signs_again(daemon, source)
            daemon.logged("token=fake.* signs: RSA of 2048 bits")
        self.clean(source)

    def test_a_thousand_entries_may_name_one_key(self):
        source = token.FakeToken(home)
        entries = [(f"d{n}.example", "tok", URI) for n in range(1000)]
        began = time.monotonic()
        with signer(source, entries=entries) as daemon:
            self.assertLess(time.monotonic() - began, 3)
            for n in (0, 499, 999):
                answer, got = self.sent(daemon, f"d{n}.example")
                self.assertEqual(answer, "accepted")
                record = {f"tok._domainkey.d{n}.example": source.record}
                self.assertEqual(outside.dkimpy_verify(got, record), {"tok": "pass"})
            self.assertLessEqual(len(source.calls("C_Login")), 1)
            self.assertLess(len(source.calls("C_FindObjectsInit")), 20)
            source.set(present=0)
            rig.until(5, lambda: self.sent(daemon, "d7.example")[0].startswith(DEFERRED), "the token to be missed")
            time.sleep(0.5)
            self.assertEqual(len(said(daemon, "cannot sign: ")), 1, daemon.log())
        self.clean(source)


class Hanging(TestCase):
    @staticmethod
    def seconds(do):
        began = time.monotonic()
        do()
        return time.monotonic() - began

    @rig.cases({"process": "process", "none": "none"})
    def test_waiting_mail_is_deferred_and_nothing_else_waits(self, isolation):
        source = token.FakeToken(home)
        signed = outside.dkimpy_sign(mail(), "token.example", "soft", soft, "relaxed/relaxed")
        with signer(source, Pkcs11Isolation=isolation, Pkcs11Timeout=2) as daemon:
            self.signs(daemon, source)
            source.set({"C_Sign.hang": 1})
            answers = []

            def waiting():
                began = time.monotonic()
                answers.append((self.sent(daemon)[0], time.monotonic() - began))

            threads = [threading.Thread(target=waiting) for _ in range(20)]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
            for _ in range(20):
                began = time.monotonic()
                self.signs(daemon, source, "soft.example", "soft")
                with session(daemon, address="192.0.2.9") as conversation:
                    _, got = conversation.message(signed)
                self.assertEqual(outside.verdicts(got, "mx.rig.test", by="header.s"), {"soft": "pass"})
                self.assertLess(time.monotonic() - began, 1)
            for thread in threads:
                thread.join()
            for answer, seconds in answers:
                self.assertTrue(answer.startswith(DEFERRED), answer)
                self.assertLess(seconds, 2.5)
            self.assertEqual(len(answers), 20)
            if isolation == "none":
                # Once it is known to hang, nobody waits for it.
                rig.until(5, lambda: self.seconds(lambda: self.defers(daemon)) < 0.5, "deferrals at once")
            else:
                source.set({"C_Sign.hang": None})
                self.signs_again(daemon, source)
            daemon.signal("SIGTERM")
            self.ended(daemon)
        if isolation == "none":
            self.assertEqual(source.calls("C_Finalize"), [], "somebody is inside for good")
        self.clean(source)


class Away(TestCase):
    """On-TokenAway, for the message that first meets the fault and for those after it."""

    def with_token_away(self, daemon, source, test):
        with daemon:
            self.signs(daemon, source)
            source.set(present=0)
            for _ in range(3):
                test()
            source.set(present=None)
            self.signs_again(daemon, source)
        self.clean(source)

    OPTION = {"option": ("", {}), "key": ("?x-on-token-away=", {"On-TokenAway": "accept"})}

    @rig.cases(OPTION)
    def test_tempfail(self, case):
        daemon, source = self.daemon(case, "tempfail")
        self.with_token_away(daemon, source, lambda: self.defers(daemon))
        daemon.logged("deferred", "token", "On-TokenAway")

    @rig.cases(OPTION)
    def test_accept(self, case):
        daemon, source = self.daemon(case, "accept")

        def passes_unsigned():
            answer, got = self.sent(daemon)
            self.assertEqual((answer, outside.selectors(got)), ("accepted", []))

        self.with_token_away(daemon, source, passes_unsigned)
        daemon.logged("accepted", "token", "On-TokenAway")

    @rig.cases(OPTION)
    def test_quarantine(self, case):
        daemon, source = self.daemon(case, "quarantine")

        def is_quarantined():
            answer, got = self.sent(daemon)
            self.assertEqual((answer, outside.selectors(got)), ("accepted", []))
            self.assertEqual([letter for letter, _ in self.edits if letter == "q"], ["q"])

        self.with_token_away(daemon, source, is_quarantined)
        daemon.logged("quarantined", "token", "On-TokenAway")

    @rig.cases(OPTION)
    def test_next(self, case):
        """The second selector, of a key in a file, takes over, and is not used else."""
        daemon, source = self.daemon(case, "next", [("token.example", "soft", soft.path)])
        self.with_token_away(daemon, source, lambda: self.signs(daemon, source, selector="soft"))

    def test_next_without_another_key_defers(self):
        daemon, source = self.daemon(("", {}), "next")
        self.with_token_away(daemon, source, lambda: self.defers(daemon))

    def daemon(self, case, word, more=()):
        attribute, options = case
        source = token.FakeToken(home)
        uri = URI + (attribute + word if attribute else "")
        options = {"On-TokenAway": word} | options
        if word == "accept" and attribute:
            options = {"On-TokenAway": "tempfail"}
        return signer(source, entries=[("token.example", "tok", uri), *more], **options), source


class Telling(TestCase):
    def test_one_line_for_each_change_of_state(self):
        """Over 1,000 messages; those have a line each, as all have."""
        source = token.FakeToken(home)
        with signer(source) as daemon:
            self.signs(daemon, source)
            source.set(C_SignInit="0x30")
            with session(daemon) as conversation:
                for _ in range(1000):
                    conversation.message(mail())
                    self.assertTrue(text_of(conversation.final).startswith(DEFERRED))
            source.set(C_SignInit=None)
            self.signs_again(daemon, source)
            log = daemon.log()
            self.assertEqual(len(said(daemon, "error: .*cannot sign: ")), 1, log[-3000:])
            self.assertEqual(len(said(daemon, "signs again")), 1, log[-3000:])
            others = [line for line in log.partition(" ready: ")[2].splitlines()[1:]
                      if not re.search("On-TokenAway|signed d=", line)]
            self.assertEqual(len(others), 2, others)
        self.clean(source)

    def test_the_service_manager_is_told(self):
        source = token.FakeToken(home)
        folder = rig.folder("notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.settimeout(10)
            notify.bind(str(folder / "socket"))
            daemon = signer(source)
            daemon.environment["NOTIFY_SOCKET"] = str(folder / "socket")
            with daemon:
                self.assertEqual(self.told(notify, "STATUS"), "2 keys")
                source.set(present=0)
                rig.until(5, lambda: self.sent(daemon)[0].startswith(DEFERRED), "the token to be missed")
                self.assertEqual(self.told(notify, "STATUS"), "1 key; 1 in tokens that are away")
                source.set(present=None)
                self.assertEqual(self.told(notify, "STATUS"), "2 keys")

    @staticmethod
    def told(notify, name):
        while True:
            for line in notify.recv(4096).decode().splitlines():
                if line.startswith(f"{name}="):
                    return line.partition("=")[2]


class Reloading(TestCase):
    """Under traffic: what the old key has begun it finishes, and all that comes after is signed by the new one."""

    def reload(self, before, change, **options):
        """What was signed since, after a reload under traffic with a change to the daemon's options or tables."""
        with signer(before, **options) as daemon:
            self.signs(daemon, before)
            with Traffic(daemon, connections=16) as traffic:
                time.sleep(0.3)
                change(daemon)
                daemon.signal("SIGHUP")
                daemon.logged(" reloaded: ")
                reloaded = time.monotonic()
                time.sleep(0.5)
            self.assertEqual([answer for _, _, answer, _ in traffic.answers if answer != "accepted"], [],
                             daemon.log()[-3000:])
            self.assertGreater(len(traffic.answers), 50)
            yield daemon
            first = [got for _, end, _, got in traffic.answers if end < reloaded]
            last = [got for sent, _, _, got in traffic.answers if sent > reloaded + 0.05]
            self.assertGreater(len(last), 10)
            yield traffic, first, last
            daemon.signal("SIGTERM")
            self.ended(daemon)
        self.clean(before)

    def test_another_module(self):
        old, new = token.FakeToken(home), token.FakeToken(home)
        new_records = {"new._domainkey.token.example": new.record}

        def change(daemon):
            daemon.options |= {"Pkcs11Module": new.module}
            write_tables(daemon, [("token.example", "new", URI)])

        steps = self.reload(old, change)
        daemon = next(steps)
        rig.until(5, lambda: len(token.helpers(daemon.process.pid)) == 1,
                  lambda: f"the old module's process to end: {token.helpers(daemon.process.pid)}")
        _, first, last = next(steps)
        self.assertEqual(wrong_ones([raw for raw in first if outside.selectors(raw) == ["tok"]], old), 0)
        for raw in last:
            self.assertEqual(outside.selectors(raw), ["new"])
        self.assertEqual(outside.dkimpy_verify(last[-1], new_records), {"new": "pass"})
        self.assertEqual(list(steps), [])
        self.assertEqual(old.calls()[-1].function, "C_Finalize")
        self.clean(new)

    def test_another_key_of_the_token(self):
        source = token.FakeToken(home, second_key="second")

        def change(daemon):
            write_tables(daemon, [("token.example", "second", "pkcs11:token=fake;object=second")])

        steps = self.reload(source, change)
        daemon = next(steps)
        logins = len(source.calls("C_Login"))
        _, first, last = next(steps)
        self.assertEqual(wrong_ones([raw for raw in first if outside.selectors(raw) == ["tok"]], source), 0)
        for raw in last:
            self.assertEqual(outside.selectors(raw), ["second"])
        self.assertEqual(logins, 1, "the token stays open")
        self.assertEqual(list(steps), [])

    def test_another_pin_file(self):
        """The old one is gone, and the token wants its login anew."""
        source = token.FakeToken(home)
        old = token.pin_file(source.home, name="old")

        def change(daemon):
            daemon.options |= {"Pkcs11PinFile": token.pin_file(source.home, name="new")}
            daemon.write()

        steps = self.reload(source, change, Pkcs11PinFile=old)
        daemon = next(steps)
        old.unlink()
        source.set(gone=1)
        self.signs_again(daemon, source)
        self.assertEqual(source.wrong_logins(), 0)
        next(steps)
        self.assertEqual(list(steps), [])

    def test_a_token_that_is_away_keeps_no_reload_from_being_done(self):
        source = token.FakeToken(home)
        with signer(source) as daemon:
            source.set(present=0)
            rig.until(5, lambda: self.sent(daemon)[0].startswith(DEFERRED), "the token to be missed")
            daemon.signal("SIGHUP")
            daemon.logged("(not )?reloaded: ")
            self.signs(daemon, source, "soft.example", "soft")
            source.set(present=None)
            self.signs_again(daemon, source)

    def test_a_bad_uri_is_not_taken(self):
        source = token.FakeToken(home)
        with signer(source) as daemon:
            write_tables(daemon, [("token.example", "tok", "pkcs11:tokn=fake")])
            daemon.signal("SIGHUP")
            daemon.logged("not reloaded")
            self.signs(daemon, source)


class Secrets(TestCase):
    PIN = "Very-5ecret"

    def test_the_pin_is_nowhere_to_be_seen(self):
        """Neither in logs nor in ps(1), whatever happens to the token."""
        source = token.FakeToken(home, pin=self.PIN)
        pins = token.pin_file(source.home, self.PIN)
        log = ""
        for uri in (f"{URI}?pin-value={self.PIN}", URI, f"{URI}&pin-value={self.PIN}", f"{URI};pin-value={self.PIN}",
                    f"{URI}?pin-value={self.PIN}&pin-value={self.PIN}", f"{URI}?pin-valeu={self.PIN}"):
            daemon = signer(source, uri, Pkcs11AllowPinValue="yes", Pkcs11PinFile=pins)
            done = check(daemon)
            log += done.stdout + done.stderr
            daemon.arguments = ["-v"]
            if done.returncode:
                continue
            with daemon:
                self.signs(daemon, source)
                processes = [daemon.process.pid, *token.helpers(daemon.process.pid)]
                self.assertEqual(len(processes), 2)
                for pid in processes:
                    for file in ("cmdline", "environ"):
                        self.assertNotIn(self.PIN.encode(), open(f"/proc/{pid}/{file}", "rb").read())
                source.set(gone=1, C_Login="0xa0*1")
                self.sent(daemon)
                source.set(C_Login=None, gone=2, present=0)
                self.defers(daemon)
                source.set(present=None)
            log += daemon.log()
        self.assertIn("pin-value", log)
        self.assertNotIn(self.PIN, log)
        self.assertNotIn(self.PIN, "\n".join(source.lines()))

    def test_the_process_that_has_it_leaves_no_core_and_is_not_looked_into(self):
        """Its user is the daemon's, and even to that user its /proc entry belongs to root (PR_SET_DUMPABLE)."""
        source = token.FakeToken(home)
        user = pwd.getpwnam("nobody")
        own = token.pin_file(source.home)
        os.chown(own, user.pw_uid, user.pw_gid)
        with signer(source, UserID="nobody", Pkcs11PinFile=own) as daemon:
            self.signs(daemon, source)
            holder, = token.helpers(daemon.process.pid)
            self.assertEqual(status(holder, "Uid").split()[0], str(user.pw_uid))
            self.assertEqual(os.stat(f"/proc/{holder}/environ").st_uid, 0)
            limits = open(f"/proc/{holder}/limits").read()
            self.assertRegex(limits, r"Max core file size +0 +0 ")
            for file in ("environ", "mem", "maps", "fd"):
                as_user = ["setpriv", "--reuid", "nobody", "--clear-groups"]
                done = subprocess.run([*as_user, "cat", f"/proc/{holder}/{file}"], capture_output=True, text=True)
                self.assertIn("Permission denied", done.stderr)
            files = {os.readlink(f"/proc/{holder}/fd/{fd}") for fd in os.listdir(f"/proc/{holder}/fd")}
            self.assertEqual(sum(file.startswith("socket:") for file in files), 1, f"that to the daemon alone: {files}")


def alive(pid):
    """Whether there is such a process, and not what is left of one that nobody has waited for."""
    try:
        return status(pid, "State")[0] != "Z"
    except OSError:
        return False


def status(pid, name):
    return re.search(rf"^{name}:\s*(.*)", open(f"/proc/{pid}/status").read(), re.MULTILINE)[1]


def said(daemon, pattern):
    return [line for line in daemon.log().splitlines() if re.search(pattern, line)]


if __name__ == "__main__":
    rig.main()
