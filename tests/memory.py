#!/usr/bin/python3 -B
"""Peak memory of the daemon with many large messages at once: 200 of 25 MB, half of them to be signed, half to be
verified, all in the middle of their bodies at the same time, straight on the milter socket.

usage: memory.py [--messages 200] [--megabytes 25] [--limit 100] [--transport unix|inet]

The figure is VmHWM of /proc/PID/status: the largest resident size the process ever had. Over the limit (MiB), or with
an answer that is not a good signature or a pass, the program fails.
"""
import argparse, itertools, sys, threading, time

import rig
from rig import keys, messages, milter, outside, wire

ID = "mx.rig.test"


def main():
    options = argparse.ArgumentParser(description="Peak memory of the daemon with many large messages at once.")
    options.add_argument("--messages", type=int, default=200)
    options.add_argument("--megabytes", type=int, default=25)
    options.add_argument("--limit", type=int, default=100)
    options.add_argument("--transport", choices=["unix", "inet"], default="unix")
    options = options.parse_args()
    rig.end_on_signals()
    home = rig.folder("memory")
    key = keys.Key(home, "rsa")
    records = {"rsa._domainkey.example.com": key.record}
    (home / "records").write_text("".join(f"{name} {text}\n" for name, text in records.items()))
    raw = messages.of_size(options.megabytes * 1000000)
    signed = outside.dkimpy_sign(raw, "example.com", "rsa", key, "relaxed/relaxed")
    daemon = milter.Milter(options.transport, Mode="sv", Domain="example.com", Selector="rsa", KeyFile=key.path,
                           Canonicalization="relaxed/relaxed", InternalHosts="127.0.0.1", AuthservID=ID,
                           TestPublicKeys=home / "records")
    with daemon:
        before, began = daemon.peak_memory(), time.monotonic()
        to_sign, to_verify = Message(raw), Message(signed)
        senders = [Sender(daemon.address, message, message is to_sign)
                   for _, message in zip(range(options.messages), itertools.cycle([to_sign, to_verify]))]
        # Half of each body, then the other half: the slowest is in the middle of its own before any is finished.
        for stage in (Sender.begin, Sender.first_half, Sender.second_half):
            run_all(stage, senders)
        taken, peak = time.monotonic() - began, daemon.peak_memory()
    wrong = [w for w in (s.wrong() for s in senders) if w]
    # dkimpy needs a second for 25 MB; two signatures stand for all, as all messages are the same.
    for sender in [s for s in senders if s.signs and not s.wrong()][:2]:
        words = outside.dkimpy_verify(sender.head + to_sign.body, records).values()
        wrong += [f"dkimpy: {word}" for word in words if word != "pass"]
    for line in sorted(set(wrong)):
        print(f"{wrong.count(line)} x {line}")
    total = options.messages * len(raw) / 1e6
    print(f"{options.messages} messages of {len(raw) / 1e6:.1f} MB at once over {options.transport}: {taken:.1f} s "
          f"({total / taken:.0f} MB/s); peak resident size {peak / 2**20:.1f} MiB "
          f"(VmHWM; {before / 2**20:.1f} MiB before; limit {options.limit} MiB)")
    over = peak > options.limit << 20
    sys.exit(rig.summary(options.messages - len(wrong) + (not over), len(wrong) + over))


class Message:
    """A message, split and cut into packets once, as all connections share it: `halves` are the chunks of its body."""

    def __init__(self, raw):
        self.fields, self.body = wire.split(raw)
        chunks = [self.body[n:n + wire.CHUNK] for n in range(0, len(self.body), wire.CHUNK)]
        self.halves = chunks[:len(chunks) // 2], chunks[len(chunks) // 2:]
        self.packets = [b"".join(wire.packet("B", chunk) for chunk in half) for half in self.halves]


class Sender:
    """One connection with one message, from a client that is ours (to be signed) or not."""

    def __init__(self, address, message, signs):
        self.message, self.signs = message, signs
        self.conversation, self.fault = wire.Conversation(address, 300), None

    def begin(self):
        self.conversation.negotiate()
        self.conversation.connect(address="127.0.0.1" if self.signs else "192.0.2.7")
        self.conversation.envelope()
        self.conversation.header(self.message.fields)

    def first_half(self):
        self.send(0)

    def second_half(self):
        self.send(1)
        edits, (self.answer, _) = self.conversation.end()
        # The header only: the body would be copied for each of 200.
        self.head = wire.applied(edits, self.message.fields, b"")
        self.conversation.quit()

    def send(self, half):
        """Where the milter answers no body packet (SMFIP_NR_BODY), all go out in one write."""
        if self.conversation.steps & wire.NO_REPLY["B"]:
            self.conversation.socket.sendall(self.message.packets[half])
        else:
            for chunk in self.message.halves[half]:
                self.conversation.body(chunk)

    def wrong(self):
        """What was not right about the answer, or None."""
        if self.fault:
            return f"the conversation ended early: {self.fault!r}"
        if self.answer not in "ac":
            return f"answer {self.answer}"
        if self.signs:
            return None if outside.selectors(self.head) == ["rsa"] else "no signature"
        words = [r.word for r in outside.results(self.head, ID)]
        return None if words == ["pass"] else f"results {words}"


def run_all(stage, senders):
    """Runs a stage of all senders at once, and waits for all."""
    def one(sender):
        try:
            if not sender.fault:
                stage(sender)
        except (OSError, ValueError, wire.Refused) as fault:
            sender.fault = fault

    threads = [threading.Thread(target=one, args=(sender,), daemon=True) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
