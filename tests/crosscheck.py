#!/usr/bin/python3 -B
"""The cross-check matrix: odd messages signed by us, by dkimpy, Mail::DKIM and OpenDKIM, and judged by all four.

usage: crosscheck.py [--first SEED] [--count MESSAGES]           (0 and 200)

Each message (rig/messages.py, `odd`) is signed in the four canonicalizations with RSA and Ed25519 by every signer,
and carries all these signatures together. Everybody's verdict on ours, and ours on everybody's, must be `pass`. In
one canonicalization of each message an octet is then changed; no verdict may be `pass` any more. A disagreement is
printed with its seed; the message is left in target/crosscheck. Those that RFC 6376 explains are in EXPLAINED.

Where a message does not end in CRLF, the others get it with one, as SMTP would carry it: RFC 6376, section 3.4.3 and
3.4.4, says that both have the same hash, but Mail::DKIM and dkimpy hash what they are given.
"""
import argparse, collections, concurrent.futures, json, os, random, shutil, subprocess, sys, time

import rig
from rig import keys, messages, outside

DOMAIN = "example.com"
CANONICALIZATIONS = ["simple/simple", "simple/relaxed", "relaxed/simple", "relaxed/relaxed"]
# The selectors say who signed; each signer's RSA and Ed25519 keys are the same two.
OURS = ["ours-rsa", "ours-ed"]
THEIRS = ["dkimpy-rsa", "dkimpy-ed", "maildkim-rsa", "opendkim-rsa", "opendkim-ed"]

Explained = collections.namedtuple("Explained", "reason applies")
# What may differ from `pass`, exactly when, and why. `applies` gets the judge, the signer's selector, the
# canonicalization, and the verdict of every judge on this signature.
EXPLAINED = [
    Explained("Mail::DKIM 1.20230212 knows no Ed25519 (RFC 8463)",
              lambda judge, signer, c, verdicts: judge == "maildkim" and signer.endswith("-ed")),
    Explained("OpenDKIM folds b= of an Ed25519 signature after it has hashed the field; under simple header "
              "canonicalization every fold counts (RFC 6376, sections 3.4.1 and 3.7), so nobody can pass it",
              lambda judge, signer, c, verdicts: signer == "opendkim-ed" and c.startswith("simple/")
              and verdicts["ours"] == "fail" and verdicts["dkimpy"] != "pass"),
]


def main():
    rig.end_on_signals()
    options = argparse.ArgumentParser(usage="crosscheck.py [--first SEED] [--count MESSAGES]")
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=200)
    options = options.parse_args()
    began = time.monotonic()
    seeds = range(options.first, options.first + options.count)
    matrix = Matrix(rig.folder("crosscheck"),
                    {(seed, c): messages.odd(seed) for seed in seeds for c in CANONICALIZATIONS})
    matrix.sign()
    matrix.judge()
    passed, failed = matrix.compare()
    print(f"crosscheck.py: {options.count} messages, {time.monotonic() - began:.0f} s")
    sys.exit(rig.summary(passed, failed))


class Matrix:
    """`plain` has the message of each case, (seed, canonicalization); `cases` the signed ones, to which (seed,
    canonicalization, "changed") are added; `verdicts` what every judge says: {judge: {case: {selector: word}}}."""

    def __init__(self, home, plain):
        self.home, self.plain = home, plain
        self.rsa, self.ed25519 = keys.Key(home, "rsa"), keys.Key(home, "ed", "ed25519")
        self.records = {f"{s}._domainkey.{DOMAIN}": (self.rsa if s.endswith("rsa") else self.ed25519).record
                        for s in OURS + THEIRS}

    def sign(self):
        """Every signer's fields, on top of the message."""
        as_sent = {case: with_line_end(raw) for case, raw in self.plain.items()}
        fields = {case: b"" for case in self.plain}
        for part in (self.ours(), self.dkimpy(as_sent), self.mail_dkim(as_sent), self.opendkim(as_sent)):
            for case, added in part.items():
                fields[case] = added + fields[case]
        self.cases = {case: fields[case] + raw for case, raw in as_sent.items()}
        for (seed, c), raw in self.plain.items():
            if c == CANONICALIZATIONS[seed % len(CANONICALIZATIONS)]:
                self.cases[seed, c, "changed"] = fields[seed, c] + changed(as_sent[seed, c], seed)

    def ours(self):
        """Signed by dkim-sign; one process a message, as it takes one."""
        program, self.own = rig.program("dkim-sign"), {}
        for (seed, _), raw in self.plain.items():
            (self.home / f"{seed}.eml").write_bytes(raw)

        def sign(case):
            command = [program, "-d", DOMAIN, "-c", case[1], "-s", OURS[0], "-k", self.rsa.path,
                       "-s", OURS[1], "-k", self.ed25519.path, self.home / f"{case[0]}.eml"]
            done = subprocess.run(command, capture_output=True)
            message = self.plain[case].removesuffix(b"\r\n")
            if done.returncode or not done.stdout.removesuffix(b"\r\n").endswith(message):
                print(f"seed {case[0]}, {case[1]}: dkim-sign ended with {done.returncode} {done.stderr.decode()}, "
                      "or did not give the message back as it was")
                return b""
            self.own[case] = done.stdout
            return done.stdout[:done.stdout.rindex(message)]

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(self.plain, pool.map(sign, self.plain)))

    def dkimpy(self, as_sent):
        out = {}
        for case, raw in as_sent.items():
            one = outside.dkimpy_sign(raw, DOMAIN, THEIRS[0], self.rsa, case[1])
            two = outside.dkimpy_sign(raw, DOMAIN, THEIRS[1], self.ed25519, case[1])
            out[case] = two.removesuffix(raw) + one.removesuffix(raw)
        return out

    def mail_dkim(self, as_sent):
        jobs = [(raw, case[1]) for case, raw in as_sent.items()]
        signed = outside.mail_dkim_sign(jobs, DOMAIN, THEIRS[2], self.rsa)
        return {case: s.removesuffix(raw) for s, (case, raw) in zip(signed, as_sent.items())}

    def opendkim(self, as_sent):
        out = collections.defaultdict(bytes)
        for c in CANONICALIZATIONS:
            for selector, key in ((THEIRS[3], self.rsa), (THEIRS[4], self.ed25519)):
                with outside.OpenDkim.signer(DOMAIN, selector, key, c) as signer:
                    for case, raw in as_sent.items():
                        if case[1] == c:
                            out[case] += signer.sign(raw).removesuffix(raw)
        return out

    def judge(self):
        judges = {"ours": lambda: self.dkim_verify("all", self.cases), "dkimpy": self.dkimpy_verify,
                  "maildkim": self.mail_dkim_verify, "opendkim": self.opendkim_verify,
                  # What dkim-sign wrote, octet for octet: without a final line end, where the message had none.
                  "own": lambda: self.dkim_verify("own", self.own)}
        with concurrent.futures.ThreadPoolExecutor(len(judges)) as pool:
            verdicts = {name: pool.submit(judge) for name, judge in judges.items()}
        self.verdicts = {name: future.result() for name, future in verdicts.items()}
        self.own_verdicts = self.verdicts.pop("own")

    def dkimpy_verify(self):
        # It is slow, so it judges only what is asked below.
        only = [*OURS, "opendkim-ed"]
        return {case: outside.dkimpy_verify(raw, self.records, only) for case, raw in self.cases.items()}

    def mail_dkim_verify(self):
        return dict(zip(self.cases, outside.mail_dkim_verify(list(self.cases.values()), self.records)))

    def opendkim_verify(self):
        verifier = outside.OpenDkim.verifier(self.records)
        verifier.options["MaximumSignaturesToVerify"] = len(OURS + THEIRS)
        verifier.write()
        with verifier:
            return {case: verifier.verify(raw) for case, raw in self.cases.items()}

    def dkim_verify(self, name, cases):
        """Many messages for each process; their files are in a folder of this name."""
        (self.home / name).mkdir()
        zone = self.home / name / "records"
        zone.write_text("".join(f"{name}. 300 IN TXT {quoted(text)}\n" for name, text in self.records.items()))
        paths = {}
        for number, (case, raw) in enumerate(cases.items()):
            paths[case] = str(self.home / name / f"{number}.eml")
            with open(paths[case], "wb") as file:
                file.write(raw)
        found, files = {}, list(paths.values())
        for at in range(0, len(files), 250):
            done = subprocess.run([rig.program("dkim-verify"), "--json", "--records", zone, *files[at:at + 250]],
                                  capture_output=True)
            for line in done.stdout.splitlines():
                one = json.loads(line)
                found[one["file"]] = {s["selector"]: s["result"] for s in one["signatures"]}
            if len(found) < len(files[at:at + 250]):
                print(f"dkim-verify ended with {done.returncode} and left messages out: {done.stderr[-500:].decode()}")
        return {case: found.get(path, {}) for case, path in paths.items()}

    def compare(self):
        """Prints the disagreements; how many verdicts were right, and how many not."""
        passed, wrong, explained = 0, collections.defaultdict(list), collections.Counter()
        for case in self.cases:
            for judge, signer in [(j, s) for j in self.verdicts for s in (OURS + THEIRS if j == "ours" else OURS)]:
                verdicts = {j: self.verdicts[j][case].get(signer, "nothing") for j in self.verdicts}
                if (verdicts[judge] == "pass") != ("changed" in case):
                    passed += 1
                elif found := [e.reason for e in EXPLAINED if e.applies(judge, signer, case[1], verdicts)]:
                    explained[found[0]] += 1
                else:
                    wrong[case, signer, str(verdicts)].append(judge)
        for case in self.plain:
            for signer in OURS:
                if (word := self.own_verdicts.get(case, {}).get(signer, "nothing")) == "pass":
                    passed += 1
                else:
                    wrong[case, signer, f"dkim-verify on what dkim-sign wrote: {word}"].append("ours")
        self.report(wrong, explained)
        return passed, sum(map(len, wrong.values()))

    def report(self, wrong, explained):
        kept = rig.ROOT / "target/crosscheck"
        shutil.rmtree(kept, ignore_errors=True)
        for (case, signer, verdicts), judges in wrong.items():
            kept.mkdir(parents=True, exist_ok=True)
            path = kept / ("-".join(map(str, case)).replace("/", "-") + ".eml")
            path.write_bytes(self.cases[case])
            print(f"seed {case[0]}, {', '.join(case[1:])}: {signer} is not right for {', '.join(judges)}: "
                  f"{verdicts}; {path}")
        for reason, count in explained.items():
            print(f"explained, {count} times: {reason}")


def with_line_end(raw):
    return raw if raw.endswith(b"\r\n") else raw + b"\r\n"


def changed(raw, seed):
    """The message with one octet changed that every canonicalization shows: a visible one of the body, or for odd
    seeds, and where the body has none, a digit of the Date field."""
    r = random.Random(seed)
    head, blank, body = raw.partition(b"\r\n\r\n")
    visible = [n for n, octet in enumerate(body[:5000]) if octet > 32]
    if seed % 2 and visible:
        at = r.choice(visible)
        return head + blank + body[:at] + (b"A" if body[at] != 65 else b"B") + body[at + 1:]
    return raw.replace(b"Jun 2026", b"Jun 2027", 1)


def quoted(text):
    """A text as the strings of a TXT record in a zone file."""
    return " ".join(f'"{text[n:n + 200]}"' for n in range(0, len(text), 200))


if __name__ == "__main__":
    main()
