#!/usr/bin/python3 -B
"""Our daemon beside OpenDKIM, straight on the milter socket: what milter-load measures of both, in one run.

usage: sockets.py [--quick] [--rounds N] [--json FILE]

Same key (RSA-2048), same messages, relaxed/relaxed; each message is checked to come back signed, or with dkim=pass, and
the program fails if one does not. Rounds are interleaved (ours, OpenDKIM, ours, ...) and medians are shown. "per CPU
second" is of the daemon's own CPU time. --quick leaves out the TCP sockets but for one row, and the 25 MB messages; it
takes about a minute.
"""
import argparse, collections, json, os, re, subprocess, sys, time

from side_by_side import (OWN, ROOT, SENDER, STRANGER, daemon, machine, medians, programs, records_file,
                          say, text_message, versions, write)
import rig
from rig import keys, outside

LOAD = os.environ.get("MILTER_LOAD") or str(ROOT / "target/release/milter-load")

Row = collections.namedtuple("Row", "id title unit transport load value better")


def per_cpu_second(report):
    return report["daemon"]["messages_per_cpu_second"]


def per_second(report):
    return report["messages_per_second"]


def latency(percentile):
    return lambda report: report["latency_ms"][percentile]


# A load is made once a round for all rows that name it: (what, connections).
SIGN_1, SIGN_32, SIGN_50, SIGN_LARGE = ("sign", 1), ("sign", 32), ("sign", 50), ("sign large", 4)
VERIFY_10, VERIFY_50 = ("verify", 10), ("verify", 50)
METRICS = [
    ("sign_2k_c32_cpu", "sign 2 KB, 32 connections", "per CPU second", SIGN_32, per_cpu_second, "more"),
    ("sign_2k_c50_p50", "sign 2 KB, 50 connections, p50", "ms", SIGN_50, latency("p50"), "less"),
    ("sign_2k_c50_p99", "sign 2 KB, 50 connections, p99", "ms", SIGN_50, latency("p99"), "less"),
    ("sign_2k_c50_rate", "sign 2 KB, 50 connections", "per second", SIGN_50, per_second, "more"),
    ("sign_2m_c4_rate", "sign 2 MB, 4 connections", "per second", SIGN_LARGE, per_second, "more"),
    ("verify_2k_c10_cpu", "verify 2 KB, 10 connections", "per CPU second", VERIFY_10, per_cpu_second, "more"),
    ("verify_2k_c10_p99", "verify 2 KB, 10 connections, p99", "ms", VERIFY_10, latency("p99"), "less"),
    ("verify_2k_c50_cpu", "verify 2 KB, 50 connections", "per CPU second", VERIFY_50, per_cpu_second, "more"),
    ("verify_2k_c50_p99", "verify 2 KB, 50 connections, p99", "ms", VERIFY_50, latency("p99"), "less"),
    ("sign_2k_c1_p50", "sign 2 KB, 1 connection, p50", "ms", SIGN_1, latency("p50"), "less"),
]


def rows(quick):
    """What is measured, over which sockets."""
    return [Row(f"{id}_{transport}", title, unit, transport, load, value, better)
            for transport in ("unix", "inet") for id, title, unit, load, value, better in METRICS
            if not quick or (transport == "inet") == (load == SIGN_1)]


def main():
    options = argparse.ArgumentParser(description="Our daemon beside OpenDKIM on the milter socket.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, help="5, or 4 with --quick")
    options.add_argument("--json", metavar="FILE")
    options = options.parse_args()
    rounds, seconds = options.rounds or (4 if options.quick else 5), 0.8 if options.quick else 1.5
    if not os.access(LOAD, os.X_OK):
        sys.exit(f"{LOAD} is not there: run `make build`, or set MILTER_LOAD")
    rig.end_on_signals()
    began, measured_on, home = time.monotonic(), machine(), rig.folder("sockets")
    key = keys.Key(home, "rsa")
    records = records_file(home, key)
    files = {"sign": text_message(2048), "sign large": text_message(2000000)}
    files["verify"] = outside.dkimpy_sign(files["sign"], "example.com", "rsa", key, "relaxed/relaxed")
    for name, raw in files.items():
        (home / name).write_bytes(raw)
    wanted = rows(options.quick)
    daemons = {(name, transport): daemon(path, transport, key, records).start()
               for name, path in programs().items() for transport in sorted({row.transport for row in wanted})}
    samples = {row: collections.defaultdict(list) for row in wanted}
    busy = 0
    for round in range(rounds):
        say(f"round {round + 1} of {rounds}")
        for load, transport in dict.fromkeys((row.load, row.transport) for row in wanted):
            for name in programs():
                report = measure(daemons[name, transport], home, load, seconds)
                busy = max(busy, report["generator"]["cpu_share"])
                for row in wanted:
                    if (row.load, row.transport) == (load, transport):
                        samples[row][name].append(row.value(report))
    for one in daemons.values():
        one.stop()
    table = [result(row.id, f"{row.title} ({row.transport})", row.unit, row.better, samples[row]) for row in wanted]
    say("memory")
    table.append(result("rss_idle_1000", "RSS, 1,000 idle connections (unix)", "MiB", "less", idle_memory(key, records)))
    if not options.quick:
        table.append(result("rss_peak_200_25m", "peak RSS, 200 messages of 25 MB at once (unix)", "MiB", "less",
                            peak_memory()))
    show(table)
    taken = time.monotonic() - began
    print(f"medians of {rounds} interleaved rounds of {seconds} s each; milter-load itself took at most {busy:.0%} of a "
          f"core; {taken:.0f} s in all")
    write(options.json, {"machine": measured_on, "versions": versions(), "rounds": rounds, "seconds_per_sample": seconds,
                         "generator_cpu_share": busy, "rows": table})


def measure(daemon, home, load, seconds):
    """One report of milter-load; the program ends if a message did not come back as it should."""
    what, connections = load
    verifies = what == "verify"
    return run_load(daemon, "--connections", connections, "--duration", seconds, "--warmup", 2 * connections,
                    "--client", STRANGER if verifies else OWN, "--expect", "dkim=pass" if verifies else "signature",
                    home / what)


def run_load(daemon, *arguments):
    command = [LOAD, daemon.address, "--json", "--limit", 60, "--sender", SENDER, "--pid", daemon.process.pid, *arguments]
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{daemon.path}: {' '.join(map(str, command))} ended with {done.returncode}:\n"
                 f"{done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def idle_memory(key, records):
    """Resident size with 1,000 idle connections, in MiB, of daemons that have done nothing before."""
    found = {}
    for name, path in programs().items():
        with daemon(path, "unix", key, records) as one:
            report = run_load(one, "--hold", 1000, "--messages", 10, "--expect", "signature")
            found[name] = [report["daemon"]["rss_held"] / 2**20]
    return found


def peak_memory():
    """Peak resident size with 200 messages of 25 MB at once, in MiB: what tests/memory.py says."""
    found = {}
    for name, path in programs().items():
        say(f"200 x 25 MB, {name}")
        done = subprocess.run([ROOT / "tests/memory.py", "--limit", "1000"], env={**os.environ, "MILTER": path},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        size = re.search(r"peak resident size ([\d.]+) MiB", done.stdout)
        if done.returncode or not size:
            sys.exit(f"tests/memory.py with {path}:\n{done.stdout}{done.stderr}")
        found[name] = [float(size[1])]
    return found


def result(id, title, unit, better, samples):
    middle = medians(samples)
    return {"id": id, "title": title, "unit": unit, "better": better, **middle,
            "ratio": middle["ours"] / middle["OpenDKIM"], "samples": dict(samples)}


def show(table):
    width = max(len(row["title"]) for row in table) + 2
    print(f"{'':{width}}{'':15}{'ours':>10}{'OpenDKIM':>10}{'ratio':>8}")
    for row in table:
        print(f"{row['title']:{width}}{row['unit']:15}{row['ours']:10.1f}{row['OpenDKIM']:10.1f}{row['ratio']:8.2f}")
    print("(ratio: ours / OpenDKIM; of ms and MiB, less is better)")


if __name__ == "__main__":
    main()
