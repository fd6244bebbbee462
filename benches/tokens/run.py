#!/usr/bin/python3 -B
"""Keys in tokens beside keys in files, in one run: `make bench-tokens`.

usage: run.py [--quick] [--rounds N] [--seconds S] [--json FILE] [--outcomes FOLDER [--label TEXT]] [--leak]

Makes a SoftHSM token and an NSS database (a second module) in a folder of its own, both with the same RSA keys, runs
t-signperf and t-verifyperf with each engine in interleaved rounds, and prints the medians. Every signature and verdict is
checked by those programs, every digest by token-numbers; whatever is wrong ends the run with exit code 1.

  --quick     RSA-2048 on one thread only, and shorter windows
  --rounds    how often each is run (3)
  --seconds   the length of each window (0.6)
  --json      all figures
  --outcomes  the last run of each token engine, one thread, 4 KB, as files for `bench report`
  --label     what the machine is called in those files
  --leak      nothing but 100,000 signatures by SoftHSM, and what they cost in memory: a minute or two
"""
import argparse, json, os, pathlib, shutil, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "benches"))
from side_by_side import machine, medians, say, write

SOFTHSM = "/usr/lib/softhsm/libsofthsm2.so"
# What hands NSS its parameters; the engine's tests need it, too.
SHIM = HERE.parent.parent / "pkcs11-engine/tests/acceptance/nss-with-parameters.c"
SOFTOKN = ("/usr/lib/x86_64-linux-gnu/libsoftokn3.so", "/usr/lib/aarch64-linux-gnu/libsoftokn3.so", "/usr/lib64/libsoftokn3.so")
PIN = "4711"
KEYS = ("rsa-2048", "rsa-4096", "ed25519")
SIZES = (4096, 65536, 1048576)


def main():
    options = argparse.ArgumentParser(description="Keys in tokens beside keys in files.")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=0.6)
    options.add_argument("--json", metavar="FILE")
    options.add_argument("--outcomes", metavar="FOLDER")
    options.add_argument("--label", metavar="TEXT")
    options.add_argument("--leak", action="store_true")
    options = options.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Tokens(pathlib.Path(folder))
        if options.leak:
            return print(run("token-numbers", "leak", tokens.uri("SoftHSM", "rsa-2048"), env=tokens.env), end="")
        samples, last = measure(tokens, options)
        uris = map(tokens.uri, tokens.modules)
        digests = json.loads(run("token-numbers", "digest", "--json", *uris, env=tokens.env))["digests"]
    found = {case: medians(all) for case, all in samples.items()}
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print("; ".join(sorted({text for outcome in last.values() for text in (
        outcome["versions"]["engine"], outcome["versions"]["digest"])})) + "\n")
    show(found)
    show_digests(found, digests)
    print(f"\n{time.monotonic() - began:.0f} s")
    if options.outcomes:
        keep(last, pathlib.Path(options.outcomes))
    write(options.json, {"machine": about, "digests": digests, "rows": [
        case._asdict() | {"medians": found[case], "samples": samples[case]} for case in found]})


class Tokens:
    """Both tokens in `folder`, and how each key is named there."""

    def __init__(self, folder):
        self.folder, self.modules = folder, {}
        self.env = os.environ | {"SOFTHSM2_CONF": str(folder / "softhsm2.conf"), "NSS_PARAMETERS":
                                 f"configDir='sql:{folder}/nss' certPrefix='' keyPrefix='' secmod='secmod.db' flags=readOnly"}
        self.command("openssl", "genpkey", "-quiet", "-algorithm", "ED25519", "-out", self.key("ed25519"))
        for bits in (2048, 4096):
            self.command("openssl", "genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", f"rsa_keygen_bits:{bits}",
                         "-out", self.key(f"rsa-{bits}"))
        self.make_softhsm()
        self.make_nss()

    def key(self, name):
        return self.folder / f"{name}.pem"

    def make_softhsm(self):
        (self.folder / "tokens").mkdir()
        (self.folder / "softhsm2.conf").write_text(f"directories.tokendir = {self.folder}/tokens\n")
        pin = self.folder / "pin"
        pin.touch(mode=0o600)
        pin.write_text(PIN + "\n")
        self.command("softhsm2-util", "--init-token", "--free", "--label", "bench", "--so-pin", "12345678", "--pin", PIN)
        for number, name in enumerate(KEYS):
            self.command("softhsm2-util", "--import", self.key(name), "--token", "bench", "--label", name, "--id", f"0{number}",
                         "--pin", PIN)
        self.modules["SoftHSM"] = ("token=bench", f"module-path={SOFTHSM}&pin-source={pin}")

    def make_nss(self):
        """Without a password: with one, NSS derives the key that opens a private key anew for each signature, 30 ms of
        PBKDF2, and nothing else would be measured. It knows no Ed25519 yet."""
        library = next((path for path in SOFTOKN if os.path.exists(path)), None)
        if not library or not shutil.which("pk12util"):
            print("run.py: no NSS (libnss3, libnss3-tools): SoftHSM is the only token", file=sys.stderr)
            return
        module, base = self.folder / "softokn.so", f"sql:{self.folder}/nss"
        (self.folder / "nss").mkdir()
        self.env["NSS_MODULE"] = library
        self.command("cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", module, SHIM)
        self.command("certutil", "-N", "-d", base, "--empty-password")
        for name in KEYS[:2]:
            certificate, both = self.folder / f"{name}.crt", self.folder / f"{name}.p12"
            self.command("openssl", "req", "-x509", "-new", "-key", self.key(name), "-subj", f"/CN={name}", "-out", certificate)
            self.command("openssl", "pkcs12", "-export", "-inkey", self.key(name), "-in", certificate, "-name", name,
                         "-passout", "pass:x", "-out", both)
            self.command("pk12util", "-i", both, "-d", base, "-W", "x", "-K", "")
        self.modules["NSS softokn"] = ("token=NSS%20Certificate%20DB", f"module-path={module}")

    def uri(self, module, name=None):
        path, query = self.modules[module]
        return f"pkcs11:{path}{f';object={name}' if name else ''}?{query}"

    def has(self, engine, name):
        return engine.module is None or engine.module == "SoftHSM" or (engine.module in self.modules and name != "ed25519")

    def command(self, *words):
        run(*words, env=self.env)


class Engine:
    def __init__(self, name, module=None, isolated=False, signs=True):
        self.name, self.module, self.isolated, self.signs = name, module, isolated, signs

    def options(self, tokens, key):
        if not self.module:
            return ["--engine", self.name, "--key", tokens.key(key)]
        return ["--engine", tokens.uri(self.module, key)] + ([] if self.isolated else ["--pkcs11-in-process"])


# The first is there on some processors only, and signs by the next.
HAS_IFMA = " avx512ifma" in pathlib.Path("/proc/cpuinfo").read_text()
ENGINES = [*([Engine("aws-lc-ifma", signs=False)] if HAS_IFMA else []), Engine("aws-lc"), Engine("rustcrypto"), *(
    Engine(f"{module}, {'isolated' if isolated else 'in process'}", module, isolated)
    for module in ("SoftHSM", "NSS softokn") for isolated in (False, True))]


class Case(tuple):
    """What is run: task, key, threads, octets, engine's name, and an option more or none."""
    FIELDS = ("task", "key", "threads", "octets", "engine", "more")

    def __new__(cls, *values):
        return super().__new__(cls, values)

    def __getattr__(self, name):
        return self[self.FIELDS.index(name)]

    def _asdict(self):
        return dict(zip(self.FIELDS, self))


def cases(tokens, quick):
    """Each with its engine."""
    all_threads = (1,) if quick else (1, 2, 4)
    for engine in ENGINES:
        for key in KEYS[:1] if quick else KEYS:
            if not tokens.has(engine, key):
                continue
            for threads in all_threads if key == "rsa-2048" else (1,):
                if engine.signs:
                    yield engine, Case("sign", key, threads, 4096, engine.name, "")
                # Verifying is never isolated.
                if key == "rsa-2048" and not engine.isolated:
                    yield engine, Case("verify", key, threads, 4096, engine.name, "")
        if engine.isolated or not tokens.has(engine, "rsa-2048"):
            continue
        yield engine, Case("verify", "rsa-2048", 1, 4096, engine.name, "--per-message-key")
        if engine.module:
            for octets in SIZES:
                for who in ("software", "token"):
                    yield engine, Case("sign", "rsa-2048", 1, octets, engine.name, f"--digest={who}")


def measure(tokens, options):
    samples, last = {}, {}
    seconds = min(options.seconds, 0.3) if options.quick else options.seconds
    for round in range(options.rounds):
        for engine, case in cases(tokens, options.quick):
            say(f"round {round + 1} of {options.rounds}: {' '.join(map(str, case))}")
            # Verifying is fast: half the time is as good.
            window = seconds / 2 if case.task == "verify" else seconds
            more = [case.more] if case.more else []
            more += ["--label", options.label] if options.label else []
            outcome = json.loads(run(f"t-{case.task}perf", "-h", "relaxed", "-b", "relaxed", "-m", case.octets, "-t", window,
                                     "--warmup", 0.1, "--threads", case.threads, "--json", *more,
                                     *engine.options(tokens, case.key), env=tokens.env))
            here = outcome["process_cpu_seconds"] / outcome["messages"] * 1e6
            for name, value in (("rate", outcome["messages_per_second"]), ("p50", outcome["latency"]["p50_us"]),
                                ("here", here if engine.module else outcome["cpu_us_per_message"]),
                                ("total", outcome["cpu_us_per_message"])):
                samples.setdefault(case, {}).setdefault(name, []).append(value)
            last[case] = outcome
    return samples, last


def show(found):
    heads = ["key", "threads", "engine", "sign/s", "% aws-lc", "p50 us", "CPU us here", "CPU us in all", "% aws-lc",
             "verify/s", "% aws-lc", "CPU us"]
    rows = []
    for key in KEYS:
        for threads in (1, 2, 4):
            of = lambda task, engine, what: found.get(Case(task, key, threads, 4096, engine, ""), {}).get(what)
            for engine in ENGINES:
                if of("sign" if engine.signs else "verify", engine.name, "rate") is None:
                    continue
                share = lambda task, what: percent(of(task, engine.name, what), of(task, "aws-lc", what))
                sign = {what: number(of("sign", engine.name, what)) for what in ("rate", "p50", "here", "total")}
                rows.append([key, threads, engine.name, sign["rate"], share("sign", "rate"), sign["p50"],
                             sign["here"], sign["total"],
                             percent(of("sign", "aws-lc", "total"), of("sign", engine.name, "total")),
                             number(of("verify", engine.name, "rate")), share("verify", "rate"),
                             number(of("verify", engine.name, "total"))])
    table("RSA and Ed25519, 4 KB, relaxed/relaxed. CPU is that of our process, and of all with the one that has the module. A\n"
          "token verifies in process, with the public key kept in it:", heads, rows)
    rows = []
    for engine in ENGINES:
        rate = lambda more, name=engine.name: found.get(Case("verify", "rsa-2048", 1, 4096, name, more), {}).get("rate")
        if rate("--per-message-key"):
            each, base = rate("--per-message-key"), rate("--per-message-key", "aws-lc")
            rows.append([engine.name.removesuffix(", in process"), number(rate("")), number(each), percent(each, base)])
    table("Verifying RSA-2048, 4 KB, one thread, with the key kept, and brought to engine or token for each message:",
          ["engine", "kept, verify/s", "each, verify/s", "% aws-lc"], rows)


def show_digests(found, digests):
    software = {row["octets"]: row["us"] for row in digests if row["who"] == "software"}
    table("SHA-256 alone, us of CPU, and in % of software:", ["who", *map(size, software)], [
        [who] + [f"{row['us']:.1f} ({100 * row['us'] / software[row['octets']]:.0f} %)" for row in digests if row["who"] == who]
        for who in dict.fromkeys(row["who"] for row in digests)])
    rows = []
    for engine in ENGINES:
        for who in ("software", "token"):
            rates = [found.get(Case("sign", "rsa-2048", 1, octets, engine.name, f"--digest={who}")) for octets in SIZES]
            if all(rates):
                rows.append([engine.name, who] + [f"{number(rate['rate'])}, {rate['total']:.0f} us" for rate in rates])
    table("Messages signed with RSA-2048 in process, one thread, by who computes the body's digest: sign/s, CPU us in all:",
          ["engine", "digest", *map(size, SIZES)], rows)


def number(value):
    return "-" if value is None else f"{value:,.0f}"


def percent(value, base):
    return f"{100 * value / base:.1f}" if value and base else "-"


def size(octets):
    return f"{octets >> 10} KB" if octets < 1 << 20 else f"{octets >> 20} MB"


def table(title, heads, rows):
    print(title)
    widths = [max(len(str(row[column])) for row in [heads, *rows]) for column in range(len(heads))]
    # Words to the left, numbers to the right.
    is_word = [rows and str(rows[0][column])[0].isalpha() for column in range(len(heads))]
    for row in [heads, *rows]:
        cells = (str(cell).ljust(width) if word else str(cell).rjust(width) for cell, width, word in zip(row, widths, is_word))
        print("  " + "  ".join(cells).rstrip())
    print()


def keep(last, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for case, outcome in last.items():
        if case.threads == 1 and case.octets == 4096 and not case.more and outcome["token"]:
            name = case.engine.lower().replace(", ", "-").replace(" ", "-")
            write(folder / f"{case.key}-pkcs11-{name}-{case.task}-1.json", outcome)


def run(program, *options, env):
    """What it prints. One of ours is that which was built last."""
    ours = ROOT / "target/release" / program
    words = [str(word) for word in (ours if ours.exists() else program, *options)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"run.py: {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
