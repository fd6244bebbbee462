#!/usr/bin/python3 -B
"""The demonstration: one message from a sender's Postfix, where it is signed, to a receiver's Postfix, where it is
verified. Both are private to this program, on loopback ports and in folders below /tmp; nothing is left behind.

The exit code is 0 only if the message was signed, passed at the receiver, and passes with dkimpy and Mail::DKIM too.
"""
import sys

import rig
from rig import dns, hop, keys, messages, milter, outside, postfix, smtp

SENDER, RECEIVER = "example.com", "mx.dest.test"


def main():
    rig.must_be_root()
    rig.end_on_signals()
    say("1. A key of 2048 bits, and its record in a DNS server on loopback")
    home = rig.folder("demo")
    key = keys.Key(home, "mail")
    records = {f"mail._domainkey.{SENDER}": key.record}
    server = dns.Server(records)
    print(f"mail._domainkey.{SENDER}. IN TXT \"{key.record[:60]}...\"")

    mailbox = hop.Hop()
    signer = milter.Milter(Mode="s", Domain=SENDER, Selector="mail", KeyFile=key.path,
                           Canonicalization="relaxed/simple", OversignHeaders="From", InternalHosts="127.0.0.1")
    verifier = milter.Milter("inet", Mode="v", AuthservID=RECEIVER, Nameservers=f"127.0.0.1:{server.port}")
    say(f"2. The signing milter on {signer.address}")
    print(signer.configuration.read_text(), end="")
    say(f"3. The verifying milter on {verifier.address}")
    print(verifier.configuration.read_text(), end="")
    with signer, verifier:
        receiver = postfix.Postfix({"in": verifier.address}, mailbox.port, hostname=RECEIVER)
        sender = postfix.Postfix({"in": signer.address}, receiver.ports["in"], hostname=f"mail.{SENDER}")
        with receiver, sender:
            say("4. Two private Postfixes; a message goes in at the sender's")
            code, text = smtp.send(sender.ports["in"], messages.plain(), f"alice@{SENDER}", "bob@dest.test")
            print(f"{code} {text}")
            if code != 250:
                sys.exit(f"the message was refused\n{signer.log()}")
            delivered = mailbox.wait("bob@dest.test", 30).data
        say("5. What the daemons logged")
        print(signer.log() + verifier.log(), end="")
    say("6. What was delivered")
    print(delivered.decode("latin1").replace("\r\n", "\n"), end="")

    say("7. The verdicts")
    found = outside.results(delivered, RECEIVER)
    words = {"our verifying milter": [r.word for r in found],
             "dkimpy": list(outside.dkimpy_verify(delivered, records).values()),
             "Mail::DKIM": list(outside.mail_dkim_verify([delivered], records)[0].values())}
    for who, verdict in words.items():
        print(f"{who}: {', '.join(verdict) or 'nothing'}")
    right = all(verdict == ["pass"] for verdict in words.values())
    print("\nAll is well." if right else "\nThis is not as it should be.")
    sys.exit(not right)


def say(line):
    print(f"\n==> {line}", flush=True)


if __name__ == "__main__":
    main()
