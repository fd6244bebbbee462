#!/usr/bin/python3 -B
"""Our library beside others', side by side in one run: `make bench-peers`.

usage: run.py [--quick | --check] [--only TEXT] [--rounds N] [--sample SECONDS] [--json FILE]

Each peer is a process that lives through the whole run (a harness; benches/src/peer_protocol.rs has the protocol), gets
the same octets as all others, and measures the CPU time of its own thread. Rounds are interleaved; the median of a
peer's rounds counts, and its ratio to ours in the same run.

No number without a check. Each signature that a harness hands out (one before the rounds, and the last of each round)
is verified by our library, and the first by dkimpy too; all must have signed the same header fields. Each harness that
verifies must pass the message it is timed on, in every go, and must fail it with one octet of the body changed, and
with one of a signed field. Whatever is not as it should be ends the run with exit code 1, except what KNOWN_GAPS lists,
which gets no number.

  --quick     RSA, relaxed/relaxed, 4 KB and 1 MB of text only: less than a minute
  --check     checks only, no times
  --only      cases whose name contains TEXT, such as "base64" or "4 KB text, relaxed"
  --rounds    rounds that count, after one that does not (31)
  --sample    CPU seconds that a peer works in a round, as far as single messages allow (0.008);
              a peer that needs longer for one message sits out some rounds
  --json      all samples, medians and ratios
"""
import argparse, atexit, base64, collections, hashlib, json, os, pathlib, random, re, select, statistics
import subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from rig import end_on_signals, keys, outside

HERE = ROOT / "benches/peers"
OURS = ROOT / "target/release/peer-ours"
MAIL_AUTH = ROOT / "target/peers/mail-auth/release/peer-mail-auth"

# Name, command, and what it is asked to do; the first is the one that others are compared with.
PEERS = [
    ("ours", [OURS, "once"], ("sign", "verify")),
    ("ours, keys parsed per message", [OURS, "per-message"], ("sign", "verify")),
    ("mail-auth", [MAIL_AUTH, "whole"], ("sign", "verify")),
    ("mail-auth, in pieces", [MAIL_AUTH, "stream"], ("sign",)),
    ("libopendkim", [ROOT / "target/peers/opendkim"], ("sign", "verify")),
    ("Mail::DKIM", ["/usr/bin/perl", HERE / "mail_dkim.pl"], ("sign", "verify")),
    ("dkimpy", ["/usr/bin/python3", "-B", HERE / "dkimpy.py"], ("sign", "verify")),
]
# They do the same work on the octets that are signed, but read no message, so that they have no verdict to check; that
# their keys tell good signatures from bad ones they prove when they are loaded.
PRIMITIVES = [
    ("primitive and SHA-256, same octets", [OURS, "octets"], ("sign", "verify")),
    ("primitive alone", [OURS, "operation"], ("sign", "verify", "hash")),
]
BASIS = PEERS[0][0]
HASH = "SHA-256 alone, body"

# (peer, algorithm, canonicalization or "", operation): why there is no number. A gap that has closed is an error too.
KNOWN_GAPS = {
    ("Mail::DKIM", "ed25519-sha256", "", "sign"): "Mail::DKIM before 1.20230630 has no Ed25519",
    ("Mail::DKIM", "ed25519-sha256", "", "verify"): "Mail::DKIM before 1.20230630 has no Ed25519",
    ("libopendkim", "ed25519-sha256", "simple/simple", "sign"):
        "libopendkim's signature does not verify: it folds the field otherwise than it was hashed",
}

DOMAIN, SELECTOR = "example.com", "peers"
SIGNED = ["From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Content-Type", "Content-Transfer-Encoding",
          "In-Reply-To", "References"]
HEADER = b"""\
Return-Path: <ann@example.com>
Received: from client.example.com (client.example.com [192.0.2.7])
\tby mx.example.net (Postfix) with ESMTPS id 4Fabc
\tfor <bo@example.net>; Tue,  6 Jan 2026 10:00:01 +0000 (UTC)
From: Ann Sender <ann@example.com>
To: Bo Reader <bo@example.net>,
 Cy Reader <cy@example.net>
Subject: figures of the quarter, and what they mean
Date: Tue, 06 Jan 2026 10:00:00 +0000
Message-ID: <20260106.100000.1@example.com>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit
User-Agent: Post/1.0
In-Reply-To: <20260105.090000.7@example.net>
References: <20260101.080000.1@example.net>
 <20260105.090000.7@example.net>

""".replace(b"\n", b"\r\n")
SIZES = {"512 B": 512, "4 KB": 4096, "64 KB": 65536, "1 MB": 1048576}


class Wrong(Exception):
    """What spoils the run, as a sentence."""


class BadSignature(Wrong):
    """A peer's signature does not verify."""


class Unsupported(Exception):
    """A harness has no such thing; its sentence."""


class Harness:
    """A peer's process."""

    def __init__(self, name, command, core=None):
        if not os.access(command[0], os.X_OK):
            raise Wrong(f"{command[0]} is not there: run `make bench-peers`")
        self.name, self.buffer = name, b""
        pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        bufsize=0, preexec_fn=pin)
        atexit.register(self.end)
        self.description = self.answer("ready")

    def load(self, case, key, message):
        pem = key.pkcs1 if case.algorithm == "rsa-sha256" else key.path.read_bytes()
        record = key.record.encode()
        words = [case.algorithm, DOMAIN, SELECTOR, case.canonicalization, ":".join(SIGNED),
                 str(len(pem)), str(len(record)), str(len(message))]
        self.say(f"load {' '.join(words)}\n".encode() + pem + record + message)
        self.answer("loaded")

    def sign(self, goes):
        """CPU nanoseconds."""
        return int(self.ask(f"sign {goes}", "signed"))

    def verify(self, goes):
        """CPU nanoseconds."""
        return int(self.ask(f"verify {goes}", "verified"))

    def hash(self, goes):
        """CPU nanoseconds, and the digest in hexadecimal."""
        taken, digest = self.ask(f"hash {goes}", "hashed").split()
        return int(taken), digest

    def signature(self):
        """The field that was made last, with its line end."""
        return self.take(int(self.ask("signature", "signature"))) + b"\r\n"

    def verdict(self):
        """"pass" or "fail REASON"."""
        return self.ask("verdict", "pass|fail.*", whole=True)

    def ask(self, command, expected, whole=False):
        self.say(command.encode() + b"\n")
        return self.answer(expected, whole)

    def say(self, octets):
        view = memoryview(octets)
        try:
            while view:
                view = view[self.process.stdin.write(view):]
        except BrokenPipeError:
            raise Wrong(f"{self.name}: the harness has ended")

    def answer(self, expected, whole=False):
        """The rest of a line that begins with this word, or all of it."""
        while b"\n" not in self.buffer:
            self.read()
        line, _, self.buffer = self.buffer.partition(b"\n")
        line = line.decode("utf-8", "replace")
        if line.startswith("unsupported "):
            raise Unsupported(line.removeprefix("unsupported "))
        if not re.fullmatch(expected if whole else f"{expected}( .*)?", line):
            raise Wrong(f"{self.name}: {line}")
        return line if whole else line.partition(" ")[2]

    def take(self, size):
        while len(self.buffer) < size:
            self.read()
        octets, self.buffer = self.buffer[:size], self.buffer[size:]
        return octets

    def read(self):
        output = self.process.stdout.fileno()
        if not select.select([output], [], [], 120)[0]:
            raise Wrong(f"{self.name}: no answer within 120 s")
        octets = os.read(output, 1 << 20)
        if not octets:
            raise Wrong(f"{self.name}: the harness has ended")
        self.buffer += octets

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Case:
    """One message, one kind of key, one canonicalization."""

    def __init__(self, size, kind, canonicalization, algorithm):
        self.size, self.kind, self.canonicalization, self.algorithm = size, kind, canonicalization, algorithm
        key = "RSA-2048" if algorithm == "rsa-sha256" else "Ed25519"
        self.name = f"{size} {kind}, {canonicalization}, {key}"
        self.body = (text if kind == "text" else attachment)(SIZES[size])
        self.message = HEADER + self.body


def cases():
    return [Case(size, kind, canonicalization, algorithm)
            for algorithm in ("rsa-sha256", "ed25519-sha256")
            for canonicalization in ("relaxed/relaxed", "simple/simple")
            for size, kind in [*((size, "text") for size in SIZES), ("1 MB", "base64")]]


def text(size):
    """Lines as people write them: a double space in each, a trailing space now and then, empty lines."""
    body, line = bytearray(), 0
    while len(body) < size:
        line += 1
        body += b"" if line % 10 else b"\r\n"
        body += b"The quick brown fox jumps over the lazy dog.  Then it rests, for a while"
        body += b"\r\n" if line % 25 else b" \r\n"
    return bytes(body[:size - 2]).rstrip(b"\r\n").ljust(size - 2, b".") + b"\r\n"


def attachment(size):
    """Lines of 76 octets of base64."""
    body = base64.encodebytes(random.Random(1).randbytes(size)).replace(b"\n", b"\r\n")
    return body[:size - 2].rstrip(b"\r\n").ljust(size - 2, b"A") + b"\r\n"


def changed(octets, start):
    """The same with one letter or digit changed, the first one from `start` on."""
    at = start + re.search(rb"[A-Za-z0-9]", octets[start:]).start()
    return octets[:at] + (b"b" if octets[at:at + 1] == b"a" else b"a") + octets[at + 1:]


class Run:
    def __init__(self, options):
        self.options = options
        cores = sorted(os.sched_getaffinity(0))
        self.core = None
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:1])
            self.core = cores[-1]
        folder = tempfile.TemporaryDirectory(prefix="dkim-peers-")
        atexit.register(folder.cleanup)
        self.keys = {f"{algorithm}-sha256": keys.Key(pathlib.Path(folder.name), algorithm, algorithm)
                     for algorithm in ("rsa", "ed25519")}
        self.harnesses = {name: Harness(name, command, self.core) for name, command, _ in [*PEERS, *PRIMITIVES]}
        self.judge = Harness("our verifier", [OURS, "once"])
        self.gaps, self.results = {}, []

    def measure(self, case):
        """Checks one case and takes its times; gives the table's rows."""
        key = self.keys[case.algorithm]
        signers = self.signers(case, key)
        times = {"sign": self.rounds(case, key, "sign", signers)}
        signed = self.signed_by_dkimpy(case, key)
        verifiers = self.verifiers(case, key, signed)
        times["verify"] = self.rounds(case, key, "verify", verifiers)
        return times

    def signers(self, case, key):
        """Lets everybody sign once, and gives those whose signatures are good."""
        good, fields_of = [], {}
        for name, _, operations in [*PEERS, *PRIMITIVES]:
            harness = self.harnesses[name]
            with Gap(self, name, case, "sign"):
                harness.load(case, key, case.message)
                harness.sign(1)
                field = harness.signature()
                self.judged(name, case, key, field)
                records = {f"{SELECTOR}._domainkey.{DOMAIN}": key.record}
                found = outside.dkimpy_verify(field + case.message, records)
                if found != {SELECTOR: "pass"}:
                    raise BadSignature(f"{name}, {case.name}: dkimpy says of its signature: {found}")
                fields_of[name] = signed_fields(field)
                good.append(name)
            if "hash" in operations:
                _, digest = harness.hash(1)
                if digest != hashlib.sha256(case.body).hexdigest():
                    raise Wrong(f"{name}, {case.name}: this is not the SHA-256 of the body: {digest}")
        for name, fields in fields_of.items():
            if fields != sorted(f.lower() for f in SIGNED):
                raise Wrong(f"{name}, {case.name}: signs other fields than it should: {fields}")
        return good

    def judged(self, name, case, key, field):
        """Our verifier must pass the message with this field on top."""
        self.judge.load(case, key, field + case.message)
        if (verdict := self.judge.verdict()) != "pass":
            raise BadSignature(f"{name}, {case.name}: we say of its signature: {verdict}")

    def signed_by_dkimpy(self, case, key):
        """What is verified by all was signed by none of those that are to be fast."""
        harness = self.harnesses["dkimpy"]
        harness.load(case, key, case.message)
        harness.sign(1)
        return harness.signature() + case.message

    def verifiers(self, case, key, signed):
        """Lets everybody verify the message, and what it is not; gives those that tell one from the other."""
        body_at = signed.index(b"\r\n\r\n") + 4
        others = {"one octet of the body changed": changed(signed, (body_at + len(signed)) // 2),
                  "one octet of the Subject changed": changed(signed, signed.index(b"\r\nSubject: ") + 11)}
        good = []
        for name, _, operations in PEERS:
            if "verify" not in operations:
                continue
            harness = self.harnesses[name]
            with Gap(self, name, case, "verify"):
                for what, other in others.items():
                    harness.load(case, key, other)
                    verdict = harness.verdict()
                    if not verdict.startswith("fail"):
                        raise Wrong(f"{name}, {case.name}: verdict {verdict} with {what}")
                harness.load(case, key, signed)
                if (verdict := harness.verdict()) != "pass":
                    raise Wrong(f"{name}, {case.name}: verdict {verdict} of a good message")
                good.append(name)
        # They keep what they made of the message before it was signed.
        return good + [name for name, _, operations in PRIMITIVES if "verify" in operations]

    def rounds(self, case, key, operation, names):
        """Nanoseconds per go, a list of samples for each name."""
        if self.options.check:
            return {}
        subjects = {name: getattr(self.harnesses[name], operation) for name in names}
        subjects[HASH] = lambda goes: self.harnesses[PRIMITIVES[-1][0]].hash(goes)[0]
        goes, every = {}, {}
        for name, go in subjects.items():
            go(1)
            share = go(2) / 2 / (self.options.sample * 1e9)
            goes[name] = max(1, min(100_000, round(1 / max(share, 1e-9))))
            every[name] = max(1, min(round(share), self.options.rounds // 5))
        samples = {name: [] for name in subjects}
        for number in range(self.options.rounds + 1):
            # Nobody always comes behind the same one.
            order = list(subjects)[number % len(subjects):] + list(subjects)[:number % len(subjects)]
            for name in order:
                if number % every[name]:
                    continue
                go = subjects[name]
                taken = go(goes[name]) / goes[name]
                if operation == "sign" and name != HASH:
                    self.judged(name, case, key, self.harnesses[name].signature())
                if number:
                    samples[name].append(taken)
        return samples

    def table(self, case, times):
        """Prints one case."""
        width = max(len(name) for name, *_ in [*PEERS, *PRIMITIVES])
        heads = "".join(f"  {operation + '/s':>9} {'us':>10} {'ratio':>7}" for operation in times)
        print(f"\n{case.name}\n{'':{width + 2}}{heads}")
        for name in [name for name, *_ in [*PEERS, *PRIMITIVES]] + [HASH]:
            row = ""
            for operation, samples in times.items():
                if name not in samples:
                    row += f"  {'-':>9} {'-':>10} {'-':>7}"
                    continue
                taken = statistics.median(samples[name])
                ratio = taken / statistics.median(samples[BASIS])
                row += f"  {1e9 / taken:9.0f} {taken / 1e3:10.1f} {ratio:7.2f}"
                self.results.append({
                    "body": case.kind, "octets": len(case.body), "canonicalization": case.canonicalization,
                    "algorithm": case.algorithm, "peer": name, "operation": operation,
                    "messages_per_cpu_second": 1e9 / taken, "us_per_message": taken / 1e3, "time_to_ours": ratio,
                    "samples_us": [round(sample / 1e3, 3) for sample in samples[name]]})
            print(f"  {name:{width}}{row}")
        spreads = ", ".join(f"{operation} {spread(samples[BASIS]):.0f} %" for operation, samples in times.items())
        print(f"  the middle half of our samples spans, of the median: {spreads}", flush=True)


class Gap:
    """Lets what KNOWN_GAPS lists pass without a number, and nothing else; what is listed and works is wrong too."""

    def __init__(self, run, name, case, operation):
        self.run, self.place = run, f"{name}, {case.name}, {operation}"
        self.known = (KNOWN_GAPS.get((name, case.algorithm, case.canonicalization, operation))
                      or KNOWN_GAPS.get((name, case.algorithm, "", operation)))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if self.known and kind in (BadSignature, Unsupported):
            self.run.gaps[self.place] = self.known
            return True
        if self.known and not kind:
            raise Wrong(f"{self.place}: works, though KNOWN_GAPS says: {self.known}")
        if kind is Unsupported:
            raise Wrong(f"{self.place}: {error}")
        return False


def spread(samples):
    """How far the middle half of the samples reaches, in percent of the median: what a busy machine does to them."""
    if len(samples) < 2:
        return 0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return 100 * (high - low) / middle


def signed_fields(field):
    """The names in h=, in lower case and sorted."""
    value = re.sub(rb"\s+", b"", field.partition(b":")[2])
    tags = dict(tag.split(b"=", 1) for tag in value.split(b";") if tag)
    return sorted(name.decode().lower() for name in tags[b"h"].split(b":"))


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {name: re.search(rf"^{name}\s*: (.*)", text, re.MULTILINE) for name in ("model name", "cpu MHz")}
    return {name: match[1] if match else "unknown" for name, match in found.items()} | {"cores": os.cpu_count()}


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quick", action="store_true")
    only.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--sample", type=float, default=0.008)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.rounds < 1 or not 0 < options.sample <= 10:
        parser.error("a round at least, and samples of at most 10 s")
    if options.check and options.json:
        parser.error("a check has no numbers to write")
    return options


def main():
    end_on_signals()
    options = arguments()
    began = time.monotonic()
    quick = ("4 KB text, relaxed/relaxed, RSA-2048", "1 MB text, relaxed/relaxed, RSA-2048")
    # "4 KB" is not to mean 64 KB.
    only = rf"(?<!\d){re.escape(options.only)}"
    chosen = [case for case in cases() if re.search(only, case.name) and (not options.quick or case.name in quick)]
    if not chosen:
        sys.exit(f"no case has {options.only!r} in its name")
    run = Run(options)
    about = machine()
    print(f"{about['model name']}, {about['cpu MHz']} MHz, {about['cores']} cores; "
          + (f"peers on core {run.core}, this program on another" if run.core is not None else "nothing is pinned"))
    for harness in run.harnesses.values():
        print(f"  {harness.name}: {harness.description}")
    if not options.check:
        print(f"CPU time of one thread, medians of {options.rounds} interleaved rounds; ratio: time by that of ours")
    for case in chosen:
        times = run.measure(case)
        if options.check:
            print(f"  right verdicts: {case.name}", flush=True)
        else:
            run.table(case, times)
    print()
    for why, count in collections.Counter(run.gaps.values()).items():
        print(f"no number in {count} places: {why}")
    if options.json:
        peers = {harness.name: harness.description for harness in run.harnesses.values()}
        options.json.write_text(json.dumps(
            {"machine": about, "rounds": options.rounds, "peers": peers, "results": run.results, "gaps": run.gaps},
            indent=1) + "\n")
    print(f"{len(chosen)} cases, every signature and verdict checked, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except Wrong as wrong:
        sys.exit(f"peers/run.py: {wrong}")
