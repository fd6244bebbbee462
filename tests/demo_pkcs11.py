#!/usr/bin/python3 -B
"""The demonstration with a key that never leaves its token: a token of SoftHSM, a key made in it, one message from a
sender's Postfix, where the token signs it, to a receiver's Postfix, where it is verified; then the same message by
dkim-sign. All is private to this program, on loopback ports and in folders below /tmp.

The exit code is 0 only if both were signed and pass with our verifier, dkimpy and Mail::DKIM, and neither a process nor
a file is left.
"""
import os, subprocess, sys

import rig
from rig import dns, hop, messages, milter, outside, postfix, smtp, token

SENDER, RECEIVER = "example.com", "mx.dest.test"
URI = "pkcs11:token=dkim;object=mail;type=private"


def main():
    rig.must_be_root()
    rig.end_on_signals()
    home = rig.folder("demo-pkcs11")
    say("1. A token of SoftHSM, and a key of 2048 bits made in it by pkcs11-tool")
    softhsm = token.SoftHsm(home)
    softhsm.add_token("dkim")
    record = softhsm.add_key("dkim", "mail")
    print(softhsm.tool("dkim", "--list-objects", "--type", "privkey").decode(), end="")
    say("2. Its record, from the token's public key, in a DNS server on loopback")
    name = f"mail._domainkey.{SENDER}"
    records = {name: record}
    print(f"{name}. IN TXT \"{record[:60]}...\"")
    server = dns.Server(records)
    pin = token.pin_file(home)

    delivered = by_milter(softhsm, pin, server)
    say("6. What was delivered")
    print(delivered.decode("latin1").replace("\r\n", "\n"), end="")
    say("7. The verdicts")
    found = {"our verifying milter": [r.word for r in outside.results(delivered, RECEIVER)]}
    right = passes(found | verdicts(delivered, records))

    say("8. The same message by dkim-sign")
    signed = by_dkim_sign(softhsm, pin)
    print(signed.partition(b"\r\nFrom:")[0].decode("latin1").replace("\r\n", "\n"))
    found = {"dkim-verify": by_dkim_verify(signed, home, records)}
    right &= passes(found | verdicts(signed, records))

    say("9. What is left")
    server.close()
    folders = list(rig.made)
    rig.remove_folders()
    processes = [pid for folder in folders for pid in token.with_word(folder)]
    files = [str(folder) for folder in folders if folder.exists()]
    print(f"processes: {processes or 'none'}\nfiles: {files or 'none'}")
    right &= not processes and not files
    print("\nAll is well." if right else "\nThis is not as it should be.")
    sys.exit(not right)


def by_milter(softhsm, pin, server):
    """The message as it is delivered."""
    mailbox = hop.Hop()
    signer = milter.Milter(Mode="s", Domain=SENDER, Selector="mail", KeyFile=URI, Pkcs11Module=softhsm.module,
                           Pkcs11PinFile=pin, Canonicalization="relaxed/simple", InternalHosts="127.0.0.1",
                           Nameservers=f"127.0.0.1:{server.port}")
    signer.environment = softhsm.environment
    verifier = milter.Milter("inet", Mode="v", AuthservID=RECEIVER, Nameservers=f"127.0.0.1:{server.port}")
    say(f"3. The signing milter on {signer.address}; SOFTHSM2_CONF is in its environment")
    print(signer.configuration.read_text(), end="")
    with signer, verifier:
        print(f"process {signer.process.pid}; the process that has module and PIN: {token.helpers(signer.process.pid)}")
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
    mailbox.close()
    return delivered


def by_dkim_sign(softhsm, pin):
    command = [rig.program("dkim-sign"), "-d", SENDER, "-s", "mail", "-k", URI, "--pkcs11-module", softhsm.module,
               "--pkcs11-pin-file", str(pin)]
    print(" ".join(command))
    done = subprocess.run(command, input=messages.plain(), capture_output=True,
                          env={**os.environ, **softhsm.environment})
    if done.returncode:
        sys.exit(f"dkim-sign ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout


def by_dkim_verify(raw, home, records):
    file = home / "records"
    file.write_text("".join(f"{name} 60 IN TXT {' '.join(quoted(text))}\n" for name, text in records.items()))
    done = subprocess.run([rig.program("dkim-verify"), "--records", file], input=raw, capture_output=True)
    return ["pass" if done.returncode == 0 else (done.stdout + done.stderr).decode()]


def quoted(text):
    """The strings of a TXT record, as a zone file has them."""
    return [f'"{text[at:at + 250]}"' for at in range(0, len(text), 250)]


def verdicts(raw, records):
    return {"dkimpy": list(outside.dkimpy_verify(raw, records).values()),
            "Mail::DKIM": list(outside.mail_dkim_verify([raw], records)[0].values())}


def passes(words):
    for who, verdict in words.items():
        print(f"{who}: {', '.join(verdict) or 'nothing'}")
    return all(verdict == ["pass"] for verdict in words.values())


def say(line):
    print(f"\n==> {line}", flush=True)


if __name__ == "__main__":
    main()
