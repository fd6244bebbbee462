#!/usr/bin/python3 -B
"""How long a message takes through Postfix: ours beside OpenDKIM's, over unix: and inet:, in one run, message by
message in turn.

usage: latency.py [--messages 200] [--octets 2000]

Times are from connecting to the answer after the final dot, one message a session, signed with RSA-2048, discarded by
Postfix. They are worth as much as the machine was idle; compare within one run only.
"""
import argparse, os, sys, time

import rig
from rig import keys, messages, milter, outside, postfix, smtp, wire


def main():
    options = argparse.ArgumentParser(description="Latency of a signed message through Postfix, beside OpenDKIM's.")
    options.add_argument("--messages", type=int, default=200)
    options.add_argument("--octets", type=int, default=2000)
    options = options.parse_args()
    rig.must_be_root()
    rig.end_on_signals()
    home = rig.folder("numbers")
    key = keys.Key(home, "rsa")
    settings = dict(Mode="sv", Domain="example.com", Selector="rsa", KeyFile=key.path, InternalHosts="127.0.0.1",
                    Canonicalization="relaxed/relaxed")
    daemons = {f"{name} {transport}": milter.Milter(transport, path=path, **settings).start()
               for name, path in (("ours", rig.program("dkim-milter")), ("OpenDKIM", "/usr/sbin/opendkim"))
               for transport in ("unix", "inet")}
    listeners = {"no milter": ""} | {name: daemon.address for name, daemon in daemons.items()}
    raw = messages.of_size(options.octets)
    for name, daemon in daemons.items():
        with wire.Conversation(daemon.address) as conversation:
            conversation.negotiate()
            conversation.connect()
            if outside.selectors(conversation.message(raw)[1]) != ["rsa"]:
                sys.exit(f"{name} does not sign")
    taken = {name: [] for name in listeners}
    with postfix.Postfix(listeners) as mta:
        for n in range(options.messages + 5):
            for name in listeners:
                began = time.monotonic()
                code, text = smtp.send(mta.ports[name], raw, "alice@example.com", "bob@dest.test")
                if code != 250:
                    sys.exit(f"{name}: {code} {text}")
                # The first few start Postfix's processes.
                if n >= 5:
                    taken[name].append((time.monotonic() - began) * 1000)
    for daemon in daemons.values():
        daemon.stop()
    print(f"{options.messages} messages of {len(raw)} octets each, one a session; load {os.getloadavg()[0]:.1f}, "
          f"{os.cpu_count()} CPUs; milliseconds")
    print(f"{'':16}{'p50':>8}{'p90':>8}{'p99':>8}")
    for name, times in taken.items():
        times.sort()
        print(f"{name:16}" + "".join(f"{times[int(len(times) * part)]:8.2f}" for part in (0.5, 0.9, 0.99)))


if __name__ == "__main__":
    main()
