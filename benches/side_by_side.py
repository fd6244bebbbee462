"""What the programs that measure daemons side by side share: the daemons themselves, CPU clocks, and how results are
kept and shown.

Rounds are interleaved and the median counts. Ratios within one run are what may be compared; the machine is named
beside them because nothing else may.
"""
import json, os, pathlib, statistics, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import rig
from rig import milter

OPENDKIM = "/usr/sbin/opendkim"
DOMAIN, SELECTOR, SENDER, ID = "example.com", "rsa", "ann@example.com", "mx.rig.test"
# Clients, as Postfix or milter-load tell of them: mail of the first is signed, of the second verified.
OWN, STRANGER = "127.0.0.1", "192.0.2.7"


def programs():
    """The daemons to compare, by the name they have in tables, ours first."""
    if not os.access(OPENDKIM, os.X_OK):
        sys.exit(f"{OPENDKIM} is not there: run `make packages`")
    return {"ours": rig.program("dkim-milter"), "OpenDKIM": OPENDKIM}


def daemon(path, transport, key, records, **options):
    """A daemon that is not started yet, with the configuration that all have. Neither logs what it does with each
    message: OpenDKIM cannot without syslogd."""
    return milter.Milter(transport, path=path, **{
        "Domain": DOMAIN, "Selector": SELECTOR, "KeyFile": key.path, "Canonicalization": "relaxed/relaxed", "Mode": "sv",
        "InternalHosts": OWN, "AuthservID": ID, "TestPublicKeys": records, "LogWhy": "no", "SyslogSuccess": "no",
        **options})


def records_file(folder, key):
    """A file with the key's record, as TestPublicKeys wants it."""
    path = folder / "records"
    path.write_text(f"{SELECTOR}._domainkey.{DOMAIN} {key.record}\n")
    return path


def text_message(octets):
    """A message with a body of so many octets, in lines of words as people write them."""
    line = b"Whatever can be said in a line of its own is said here, twice  over if need be.\r\n"
    body = line * (octets // len(line) + 1)
    return b"".join(field + b"\r\n" for field in (
        b"Received: from client.example.com (client.example.com [192.0.2.7])\r\n\tby mx.example.com with ESMTPS id 4F00"
        b"\r\n\tfor <bo@dest.test>; Thu,  4 Jun 2026 09:30:00 +0200",
        b"From: Ann Archer <ann@example.com>",
        b"To: Bo Baker <bo@dest.test>,\r\n Cy Cooper <cy@dest.test>",
        b"Subject: what was said in the meeting, and by whom",
        b"Date: Thu, 04 Jun 2026 09:30:00 +0200",
        b"Message-ID: <20260604.0930.1@example.com>",
        b"In-Reply-To: <20260603.1715.4@example.com>",
        b"References: <20260601.1100.2@example.com>\r\n <20260603.1715.4@example.com>",
        b"MIME-Version: 1.0",
        b"Content-Type: text/plain; charset=us-ascii",
        b"Content-Transfer-Encoding: 7bit")) + b"\r\n" + body[:octets - 2] + b"\r\n"


def processes(pid):
    """This process and all that descend from it, for daemons that work in several."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of a process may have anything in it, but for what follows its last bracket.
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_seconds(pids):
    """CPU time of each process so far, of all its threads, those that have ended too (the clock of
    clock_getcpuclockid(3), whose number Linux makes of the process'); nothing of processes that have ended."""
    found = {}
    for pid in pids:
        try:
            found[pid] = time.clock_gettime(~pid << 3 | 2)
        except OSError:
            continue
    return found


def medians(samples):
    """The median of each list."""
    return {name: statistics.median(values) for name, values in samples.items() if values}


def machine():
    """What is measured on, and the load on it so far."""
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
            "load": round(os.getloadavg()[0], 2)}


def versions():
    """The versions of what is compared."""
    def first_line(*command):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        return (done.stdout + done.stderr).strip().split("\n")[0]
    return {"ours": first_line(rig.program("dkim-milter"), "-V"), "OpenDKIM": first_line(OPENDKIM, "-V")}


def write(path, result):
    """Keeps a result as JSON, whole or not at all."""
    if path:
        new = pathlib.Path(f"{path}.new")
        new.write_text(json.dumps(result, indent=2) + "\n")
        new.rename(path)


def say(text):
    """Progress, for somebody who watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
