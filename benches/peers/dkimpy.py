#!/usr/bin/python3 -B
"""dkimpy as a harness: benches/src/peer_protocol.rs says what it is told and what it answers.

dkimpy takes keys as text and parses them for each message; the key record's text comes from memory.
"""
import base64, importlib.metadata, sys, time

import dkim


class Refusal(Exception):
    """Its text is an answer: `error SENTENCE` or `unsupported SENTENCE`."""


class Work:
    """A message and its keys."""

    def __init__(self, words, key, record, message):
        self.algorithm, self.domain, self.selector, canonicalization, fields = (w.encode() for w in words)
        if self.algorithm not in (b"rsa-sha256", b"ed25519-sha256"):
            raise Refusal(f"unsupported no such algorithm: {words[0]}")
        self.canonicalization = tuple(canonicalization.split(b"/"))
        self.fields = fields.split(b":")
        self.key, self.record, self.message = key, record, message
        if self.algorithm == b"ed25519-sha256":
            # dkimpy wants the seed, which is the last 32 octets of the PKCS#8 form (RFC 8410, section 7).
            der = base64.b64decode(b"".join(line for line in key.splitlines() if not line.startswith(b"---")))
            self.key = base64.b64encode(der[-32:])
        self.name = self.selector + b"._domainkey." + self.domain + b"."
        self.made = b""

    def sign(self):
        self.made = dkim.DKIM(self.message).sign(
            self.selector, self.domain, self.key, signature_algorithm=self.algorithm,
            canonicalize=self.canonicalization, include_headers=self.fields)

    def verify(self):
        """None if it passes, or why it does not."""
        try:
            return None if dkim.DKIM(self.message).verify(dnsfunc=self.look_up) else "signature"
        except dkim.ValidationError as error:
            if "body hash mismatch" in str(error):
                return "body hash"
            raise Refusal(f"error {error}")

    def verify_to_pass(self):
        if why := self.verify():
            raise Refusal(f"error did not pass: {why}")

    def look_up(self, name, timeout=5):
        return self.record if name == self.name else None


def main():
    work = None
    answer(f"ready dkimpy {importlib.metadata.version('dkimpy')}, keys parsed per message")
    for line in iter(sys.stdin.buffer.readline, b""):
        try:
            match line.decode().split():
                case ["load", *words]:
                    parts = [sys.stdin.buffer.read(int(size)) for size in words[5:]]
                    work = Work(words[:5], *parts)
                    answer("loaded")
                case _ if not work:
                    answer("error nothing is loaded")
                case ["sign", goes]:
                    answer(f"signed {timed(work.sign, goes)}")
                case ["signature"]:
                    field = work.made.rstrip()
                    answer(f"signature {len(field)}", field)
                case ["verify", goes]:
                    answer(f"verified {timed(work.verify_to_pass, goes)}")
                case ["verdict"]:
                    why = work.verify()
                    answer(f"fail {why}" if why else "pass")
                case words:
                    answer(f"unsupported no such command: {' '.join(words)}")
        except Refusal as refusal:
            answer(str(refusal))
        except dkim.DKIMException as error:
            answer(f"error {type(error).__name__}: {error}")


def timed(go, goes):
    """CPU nanoseconds of this thread for so many goes."""
    goes = int(goes)
    start = time.thread_time_ns()
    for _ in range(goes):
        go()
    return time.thread_time_ns() - start


def answer(line, octets=b""):
    sys.stdout.buffer.write(" ".join(line.split()).encode() + b"\n" + octets)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
