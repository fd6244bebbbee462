#!/usr/bin/python3 -B
"""The table of what is to be reached and what is: `make bench`.

usage: table.py [--json FILE] [--markdown] [--only core|peers|sockets|postfix ...]

Runs the measuring programs in their quick forms, one after the other, and sets each ratio beside the one to be reached.
Every program fails if a message does not come back signed, or with the right verdict; then this one does, too. A ratio
that is not reached is no failure: it is marked.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile, time

from side_by_side import ROOT, machine, write

# How a ratio is bounded by what is to be reached.
LEAST, MOST = ">=", "<="


def main():
    options = argparse.ArgumentParser(description="What is to be reached, and what is.")
    options.add_argument("--json", metavar="FILE")
    options.add_argument("--markdown", action="store_true")
    options.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = options.parse_args()
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.only:
            print(f"{part} ...", file=sys.stderr, flush=True)
            rows += PARTS[part](pathlib.Path(folder))
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    show(rows, options.markdown)
    missed = sum(not is_met(*row[2:]) for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} reached; {time.monotonic() - began:.0f} s")
    names = ("work", "against", "ratio", "bound", "reach")
    write(options.json, {"machine": about, "rows": [dict(zip(names, row)) | {"met": is_met(*row[2:])} for row in rows]})


def core(_folder):
    rows = {row["name"]: row for row in json.loads(run("taskset", "-c", max(os.sched_getaffinity(0)), release("core-numbers"), "--json"))}
    reach = {"sign-rsa-4k": 0.97, "verify-rsa-4k": 0.90, "verify-rsa-4k-aws-lc": 0.90, "verify-text-1m": 0.85, "sign-text-1m": 0.85,
             "sign-rsa-text-1m": 0.85, "verify-base64-1m": 0.95, "sign-base64-1m": 0.95, "sign-ed25519-4k": 0.85}
    found = [(rows[name]["work"], rows[name]["against"], rows[name]["ratio"], LEAST, least)
             for name, least in reach.items()]
    heavy = rows["verify-headers-30k"]
    return found + [(heavy["work"], heavy["against"], heavy["ratio"], MOST, 1.5)]


def peers(folder):
    file = folder / "peers.json"
    run(ROOT / "benches/peers/run.py", "--quick", "--json", file)
    found = {(row["peer"], row["operation"]): row["time_to_ours"] for row in json.loads(file.read_text())["results"]
             if row["octets"] == 4096 and row["algorithm"].startswith("rsa") and row["canonicalization"] == "relaxed/relaxed"}
    return [(f"{operation} RSA-2048, 4 KB, raw message to {result}", peer, found[peer, operation], LEAST, least)
            for operation, result, peer, least in [("sign", "field", "libopendkim", 3.4),
                                                   ("verify", "verdict", "libopendkim", 8),
                                                   ("verify", "verdict", "mail-auth", 1.35)]]


def sockets(folder):
    file = folder / "sockets.json"
    alone = [signperf()]
    run(ROOT / "benches/sockets.py", "--quick", "--json", file)
    alone.append(signperf())
    rows = {row["id"]: row for row in json.loads(file.read_text())["rows"]}
    signing = rows["sign_2k_c32_cpu_unix"]["ours"] / (sum(alone) / len(alone))
    other = "OpenDKIM"
    from sockets import peak_memory
    peak = peak_memory()["ours"][0]
    return [
        ("socket, sign 2 KB, 32 connections, per CPU second", "t-signperf, 2 KB", signing, LEAST, 0.85),
        ("socket, verify 2 KB, 10 connections, per CPU second", other, rows["verify_2k_c10_cpu_unix"]["ratio"], LEAST, 4),
        ("socket, verify 2 KB, 50 connections, per CPU second", other, rows["verify_2k_c50_cpu_unix"]["ratio"], LEAST, 4),
        ("socket, verify 2 KB, 10 connections, p99", other, rows["verify_2k_c10_p99_unix"]["ratio"], MOST, 1),
        ("socket, verify 2 KB, 50 connections, p99", other, rows["verify_2k_c50_p99_unix"]["ratio"], MOST, 1),
        ("socket, sign 2 KB, 50 connections, p99", other, rows["sign_2k_c50_p99_unix"]["ratio"], MOST, 0.13),
        ("socket, sign 2 MB, 4 connections", other, rows["sign_2m_c4_rate_unix"]["ratio"], LEAST, 2),
        ("RSS with 1,000 idle connections, MB", "", rows["rss_idle_1000"]["ours"] * 2**20 / 1e6, MOST, 30),
        ("peak RSS with 200 x 25 MB in flight, MB", "", peak * 2**20 / 1e6, MOST, 60),
    ]


def postfix(folder):
    file = folder / "postfix.json"
    run(ROOT / "benches/postfix.py", "--quick", "--json", file)
    rows = json.loads(file.read_text())["rows"]
    ratio = {(row["mix"], row["transport"]): row["ratio_to_no_milter"] for row in rows
             if row["program"] == "ours" and row["work"] == "sign"}
    return [(f"through Postfix, sign, {what}, {transport}", "no milter", ratio[mix, transport], LEAST, least)
            for mix, what, least in (("small", "1,000 small", 0.55), ("large", "50 of 2 MB", 0.72))
            for transport in ("unix", "inet")]


PARTS = {"core": core, "peers": peers, "sockets": sockets, "postfix": postfix}


def signperf():
    """Messages signed in a second of CPU time, without a milter around it. On all cores, as the daemon does: two threads of
    one core slow each other down."""
    found = json.loads(run(release("t-signperf"), "-h", "relaxed", "-b", "relaxed", "-m", "2048", "-t", "2", "--json",
                           "--threads", os.cpu_count()))
    return found["messages_per_cpu_second"]


def release(name):
    return ROOT / "target/release" / name


def run(*command):
    command = [str(word) for word in command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"table.py: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def is_met(ratio, bound, reach):
    """By what is printed: two digits behind the point, or more would be claimed than a run can tell."""
    return round(ratio, 2) >= reach if bound == LEAST else round(ratio, 2) <= reach


def show(rows, markdown):
    heads = ("work", "against", "measured", "reach", "")
    cells = [(work, against, f"{ratio:.2f}", f"{bound} {reach:g}", "met" if is_met(ratio, bound, reach) else "MISSED")
             for work, against, ratio, bound, reach in rows]
    if markdown:
        print("\n".join("| " + " | ".join(row) + " |" for row in [heads, ("---",) * len(heads), *cells]))
        return
    widths = [max(len(row[column]) for row in [heads, *cells]) for column in range(len(heads))]
    for row in [heads, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
