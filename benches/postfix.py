#!/usr/bin/python3 -B
"""What a milter costs a mail server: messages through a private Postfix without one, with ours and with OpenDKIM, that
verify, sign, or do both, over UNIX sockets and over TCP, in one run.

usage: postfix.py [--quick] [--rounds N] [--json FILE]

Two mixes as smtp-source sends them, one message a session: 1,000 of 2 KB over 10 sessions, and 50 of 2 MB over 4. Postfix
discards what it has accepted, and its queue is in memory where there is a /dev/shm, so that neither delivery nor disks
are measured. "sign and verify" are two daemons in a row, the verifier first. rspamd and dkimpy-milter are measured too
where they are installed, as far as other_milters.py can set them up.

Nothing is timed that is not shown to work. Before the rounds of a mix, one message goes through each configuration to a
next hop that keeps it, and must have got what it should; then a fifth of the mix goes through a listener like the timed
one whose Postfix logs the fields that milters add, and each of them must be there. Each timed message must come to the size
in the queue of the first one, which is larger than without a milter, as Postfix counts the pointers to what was added.
After the rounds one more message goes to the next hop. Rounds are interleaved, medians count.

Needs root, as Postfix does. --quick has only signing, and two rounds.
"""
import argparse, collections, itertools, pathlib, re, statistics, subprocess, sys, tempfile, time

from side_by_side import (DOMAIN, ID, SELECTOR, SENDER, cpu_seconds, daemon, machine, processes, programs, records_file, say,
                          text_message, versions, write)
import other_milters, rig
from rig import dns, hop, keys, milter, outside, postfix

Mix = collections.namedtuple("Mix", "title octets messages sessions")
MIXES = {"small": Mix("2 KB", 2048, 1000, 10), "large": Mix("2 MB", 2000000, 50, 4)}
WORKS = {"verify": ["v"], "sign": ["s"], "sign and verify": ["v", "s"]}
NO_MILTER = "no milter"
# Recipients are named in the Received field, so these are of one length; the first one's domain is discarded.
RCPT, LOOKED_AT = "bo@dest.test", "bo@look.test"
# How much sizes may differ; two pointers, to what a milter has added and back, are 34 octets.
TOLERANCE = 8

LOGGED = """
/^DKIM-Signature:/ INFO seen signed
/^Authentication-Results:.*dkim=pass/ INFO seen passed
"""


class Configuration:
    """One way of treating mail: `daemons` in the order that a message passes them. The name is that of the listener."""

    def __init__(self, program, work, transport, daemons):
        self.program, self.work, self.transport, self.daemons = program, work, transport, daemons
        self.name = f"{program}, {work}, {transport}" if daemons else NO_MILTER
        # What each message gets of these.
        self.signed, self.passed = work in ("sign", "sign and verify"), work in ("verify", "sign and verify")
        # By mix: the size in the queue of the message that was looked at.
        self.size = {}
        self.samples = collections.defaultdict(lambda: collections.defaultdict(list))
        self.peak = {}

    def addresses(self):
        return ",".join(one.address for one in self.daemons)

    def processes(self):
        return [pid for one in self.daemons for pid in processes(one.process.pid)]


def main():
    options = argparse.ArgumentParser(description="What a milter costs a mail server, ours beside OpenDKIM.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, help="3, or 2 with --quick")
    options.add_argument("--json", metavar="FILE")
    options = options.parse_args()
    rounds = options.rounds or (2 if options.quick else 3)
    rig.must_be_root()
    rig.end_on_signals()
    began, measured_on = time.monotonic(), machine()
    if pathlib.Path("/dev/shm").is_dir():
        tempfile.tempdir = "/dev/shm"
    home = rig.folder("bench")
    key = keys.Key(home, "rsa")
    files = messages(home, key)
    next_hop = hop.Hop()
    configurations = [Configuration(None, None, None, [])] + [
        started(name, path, work, transport, key, records_file(home, key))
        for work in (["sign"] if options.quick else WORKS)
        for transport in ("unix", "inet")
        for name, path in programs().items()]
    if not options.quick:
        configurations += others(key)
    mta = server(home, configurations, next_hop)
    with mta:
        for mix in MIXES:
            for one in configurations:
                prove(mta, next_hop, one, mix, files[mix])
                count(mta, one, mix, files[mix])
                # Starts as many of Postfix' processes as will be needed.
                send(mta, one.name, files[mix], 2 * MIXES[mix].sessions, MIXES[mix].sessions)
            for round in range(rounds):
                for one in configurations:
                    say(f"{mix}, round {round + 1} of {rounds}: {one.name}")
                    measure(mta, one, mix, files[mix])
            for one in configurations:
                prove(mta, next_hop, one, mix, files[mix])
                one.peak[mix] = sum(map(milter.peak_memory, one.processes())) / 2**20
    for one in configurations:
        for each in one.daemons:
            each.stop()
    table = [row(one, mix, configurations[0]) for mix in MIXES for one in configurations]
    show(table, rounds)
    for name in other_milters.missing():
        print(f"{name}: not installed, not measured")
    if options.quick and other_milters.installed():
        print("other milters are measured without --quick")
    print(f"{time.monotonic() - began:.0f} s in all")
    write(options.json, {"machine": measured_on, "versions": versions(), "rounds": rounds,
                         "mixes": {name: mix._asdict() for name, mix in MIXES.items()}, "rows": table})


def others(key):
    """A configuration for each of the other milters that is installed and each thing that it does."""
    found, name_server = [], dns.Server({f"{SELECTOR}._domainkey.{DOMAIN}": key.record})
    for kind, path in other_milters.installed().items():
        for work in kind.works:
            for transport in ("unix", "inet"):
                one = kind(path, transport, WORKS[work][0], key, name_server.port, ID)
                found.append(Configuration(kind.name, work, transport, [one.start()]))
    return found


def server(home, configurations, next_hop):
    """A Postfix with two listeners for each configuration: one of its name, and one that logs what milters add."""
    listeners = {one.name: one.addresses() for one in configurations}
    listeners |= {logged(name): f"{milters} -o cleanup_service_name=logging" for name, milters in listeners.items()}
    mta = postfix.Postfix(listeners)
    (home / "logged").write_text(LOGGED)
    with open(mta.home / "etc/main.cf", "a") as main_cf:
        domain = LOOKED_AT.partition("@")[2]
        main_cf.write(f"transport_maps = inline:{{ {{ {domain} = smtp:[127.0.0.1]:{next_hop.port} }} }}\n")
    with open(mta.home / "etc/master.cf", "a") as master_cf:
        master_cf.write(f"logging unix n - n - 0 cleanup -o milter_header_checks=regexp:{home}/logged\n")
    return mta


def logged(name):
    """The name of the listener that logs."""
    return f"{name}, logged"


def started(name, path, work, transport, key, records):
    """A configuration, with its daemons running."""
    daemons = []
    for mode in WORKS[work]:
        # Postfix tells of one client, this host: a verifier must not take its mail for its own, and a signer behind it
        # must not take the results for forged.
        internal, name_in_results = ("192.0.2.99", ID) if mode == "v" else ("127.0.0.1", f"signer.{ID}")
        daemons.append(daemon(path, transport, key, records, Mode=mode, InternalHosts=internal,
                              AuthservID=name_in_results).start())
    return Configuration(name, work, transport, daemons)


def messages(home, key):
    """A file for each mix. All are signed, for verifiers; a signer signs them once more."""
    files = {}
    for name, mix in MIXES.items():
        raw = outside.dkimpy_sign(text_message(mix.octets), DOMAIN, SELECTOR, key, "relaxed/relaxed")
        files[name] = home / f"{name}.eml"
        # smtp-source ends each line with CRLF.
        files[name].write_bytes(raw.replace(b"\r\n", b"\n"))
    return files


def send(mta, listener, file, count, sessions, rcpt=RCPT, watched=()):
    """Sends messages, and waits until they have left the queue, so that nothing is left to do when others are timed. Gives
    the seconds until Postfix had taken all, the CPU seconds of `watched` processes until then, and what it logged."""
    log, before = Log(mta), cpu_seconds(watched)
    command = ["smtp-source", "-s", sessions, "-m", count, "-f", SENDER, "-t", rcpt, "-F", file,
               f"127.0.0.1:{mta.ports[listener]}"]
    began = time.monotonic()
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120)
    taken = time.monotonic() - began
    # A milter is done with a message before the client is told.
    cpu = sum(after - before[pid] for pid, after in cpu_seconds(before).items())
    if done.returncode or done.stderr:
        sys.exit(f"{listener}: smtp-source ended with {done.returncode}: {done.stdout}{done.stderr}\n{mta.log()[-2000:]}")
    log.wait(count)
    return taken, cpu, log


def prove(mta, next_hop, one, mix, file):
    """One message through to the next hop, which must have got what this configuration is for."""
    _, _, log = send(mta, one.name, file, 1, 1, LOOKED_AT)
    raw = next_hop.wait(LOOKED_AT, 20).data
    next_hop.messages.clear()
    one.size[mix], = log.sizes()
    signatures, words = outside.selectors(raw), [r.word for r in outside.results(raw, ID)]
    if (signatures, words) != ([SELECTOR] * (1 + one.signed), ["pass"] * one.passed):
        sys.exit(f"{one.name}, {mix}: {len(signatures)} signatures, results {words}\n"
                 + "".join(each.log() for each in one.daemons))


def count(mta, one, mix, file):
    """Many messages at once, each of which must get what this configuration is for."""
    messages = MIXES[mix].messages // 5
    _, _, log = send(mta, logged(one.name), file, messages, MIXES[mix].sessions)
    for wanted, what in (one.signed, "signed"), (one.passed, "passed"):
        found = log.text().count(f": seen {what}\n")
        if found != messages * wanted:
            sys.exit(f"{one.name}, {mix}: {found} of {messages} messages were {what}")


class Log:
    """What Postfix logs from now on."""

    def __init__(self, mta):
        self.mta, self.path = mta, mta.home / "log"
        self.at = self.path.stat().st_size if self.path.exists() else 0

    def text(self):
        with open(self.path, errors="replace") as log:
            log.seek(self.at)
            return log.read()

    def wait(self, count):
        """Waits until so many messages have left the queue."""
        rig.until(60, lambda: self.text().count(": removed\n") >= count,
                  lambda: f"{count} messages to leave the queue:\n{self.text()[-2000:]}")

    def sizes(self):
        """The sizes of messages in the queue, as qmgr(8) logs them."""
        return [int(size) for size in re.findall(r"qmgr\[\d+\]: \w+: from=<\S*>, size=(\d+),", self.text())]


def measure(mta, one, mix, file):
    """One sample of one configuration."""
    count, sessions = MIXES[mix].messages, MIXES[mix].sessions
    taken, cpu, log = send(mta, one.name, file, count, sessions, watched=one.processes())
    sizes = log.sizes()
    first = one.size[mix]
    wrong = [size for size in sizes if abs(size - first) > TOLERANCE]
    if len(sizes) != count or wrong:
        sys.exit(f"{one.name}, {mix}: {len(sizes)} messages of {count} in the queue, {len(wrong)} of them not of "
                 f"{first} octets as the one that was looked at, but of {sorted(set(wrong))[:5]}")
    one.samples[mix]["per second"].append(count / taken)
    one.samples[mix]["CPU ms"].append(1000 * cpu / count)


def row(one, mix, without):
    """The medians of one configuration and mix."""
    middle = {name: statistics.median(values) for name, values in one.samples[mix].items()}
    rate = middle["per second"]
    return {"mix": mix, "program": one.program or NO_MILTER, "work": one.work, "transport": one.transport,
            "messages_per_second": rate,
            "ratio_to_no_milter": rate / statistics.median(without.samples[mix]["per second"]),
            "daemon_cpu_ms_per_message": middle["CPU ms"] if one.daemons else None,
            "daemon_peak_rss_mib": one.peak[mix] if one.daemons else None,
            "samples": {name: list(values) for name, values in one.samples[mix].items()}}


def show(table, rounds):
    for mix, rows in itertools.groupby(table, lambda row: row["mix"]):
        about = MIXES[mix]
        print(f"{about.messages} messages of {about.title}, {about.sessions} sessions, one message each; medians of "
              f"{rounds} rounds")
        print(f"{'':17}{'':6}{'':15}{'msgs/s':>8}{'of none':>9}{'CPU ms':>9}{'peak MiB':>10}")
        for one in rows:
            name = f"{one['work'] or '-':17}{one['transport'] or '-':6}{one['program']:15}"
            rest = "" if one["work"] is None else \
                f"{one['daemon_cpu_ms_per_message']:9.3f}{one['daemon_peak_rss_mib']:10.1f}"
            print(f"{name}{one['messages_per_second']:8.1f}{one['ratio_to_no_milter']:9.2f}{rest}")
    print("(of none: against no milter in the same run; CPU ms: of the milter's processes, by message)")


if __name__ == "__main__":
    main()
