"""PKCS#11 tokens for tests: SoftHSM's, in a folder instead of /var, and the module that fails on request.

Both have `module` (the library's path) and `environment` (variables for who loads it). A module belongs to whoever
loads it: nothing here does, but for pkcs11-tool(1), which is a process of its own.
"""
import base64, collections, itertools, os, pathlib, re, shutil, subprocess, sys

from . import ROOT, keys

PIN = "1234"


def pin_file(folder, pin=PIN, name="pin"):
    """A file with a PIN that nobody else can read."""
    path = folder / name
    path.touch(0o600)
    path.write_text(pin + "\n")
    return path


class SoftHsm:
    """Tokens of SoftHSM below `folder`, none at first."""

    module = "/usr/lib/softhsm/libsofthsm2.so"

    def __init__(self, folder):
        if not os.path.exists(self.module):
            sys.exit(f"{self.module} is not there: run `make packages`")
        self.folder, configuration = folder / "tokens", folder / "softhsm2.conf"
        self.folder.mkdir()
        configuration.write_text(
            f"directories.tokendir = {self.folder}\nobjectstore.backend = file\nlog.level = ERROR\n")
        self.environment = {"SOFTHSM2_CONF": str(configuration)}

    def run(self, *command):
        """The standard output of a program that uses the module."""
        environment = {**os.environ, **self.environment, "TOKEN_PIN": PIN}
        done = subprocess.run([*map(str, command)], capture_output=True, env=environment)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.decode()}")
        return done.stdout

    def tool(self, token, *arguments):
        """pkcs11-tool(1), logged in to a token."""
        return self.run("pkcs11-tool", "--module", self.module, "--token-label", token, "--login", "--pin",
                        "env:TOKEN_PIN", *arguments)

    def add_token(self, label):
        self.run("softhsm2-util", "--init-token", "--free", "--label", label, "--pin", PIN, "--so-pin", "12345678")

    def add_key(self, token, label, ident="01", algorithm="rsa:2048"):
        """Makes a key pair within the token, and gives the record of its public half."""
        self.tool(token, "--keypairgen", "--key-type", algorithm, "--label", label, "--id", ident, "--usage-sign")
        public = self.tool(token, "--read-object", "--type", "pubkey", "--id", ident)
        return f"v=DKIM1; k=rsa; p={base64.b64encode(public).decode()}"

    def import_object(self, token, kind, der, label, ident="01"):
        """Writes an object of a kind (privkey, pubkey, cert) into the token."""
        path = self.folder.parent / f"{label}.der"
        path.write_bytes(der)
        self.tool(token, "--write-object", path, "--type", kind, "--label", label, "--id", ident)


Call = collections.namedtuple("Call", "micros pid thread function code note")


class FakeToken:
    """The module of pkcs11-engine/fake-token with an RSA key, in a folder of its own; what can be set is written there
    in src/lib.rs. `record` is the key's."""

    count = itertools.count()

    def __init__(self, folder, **values):
        library = ROOT / "target/release/libfake_token.so"
        if not library.exists():
            sys.exit(f"{library} is not there: run `make build`")
        self.home = folder / f"fake{next(self.count)}"
        self.home.mkdir()
        # For daemons that have given up root.
        self.home.chmod(0o777)
        self.module = shutil.copy(library, self.home)
        self.environment = {}
        self.key = keys.Key(self.home, "key")
        self.key.path.chmod(0o644)
        self.record = self.key.record
        for name in ("log", "control.failures", "control.failures2"):
            (self.home / name).touch()
            (self.home / name).chmod(0o666)
        self.values = {"key": self.key.path}
        self.set(**values)

    def set(self, lines=None, **values):
        """Changes the control file: names that are no words stand in the dictionary `lines`, and None takes a line
        away. It is in force when this returns."""
        for name, value in {**(lines or {}), **values}.items():
            self.values.pop(name, None)
            if value is not None:
                self.values[name] = value
        new = self.home / "control.new"
        new.write_text("".join(f"{name}={value}\n" for name, value in self.values.items()))
        new.rename(self.home / "control")

    def lines(self):
        """The lines of the log that are complete; others are being written."""
        text = (self.home / "log").read_text()
        return text[:text.rfind("\n") + 1].splitlines()

    def calls(self, function=None, pid=None):
        """The calls that have returned, or those of one function or process."""
        found = []
        for line in self.lines():
            parts = [*line.split(" ", 5), ""]
            if not parts[3].isupper():
                call = Call(int(parts[0]), int(parts[1]), int(parts[2]), parts[3], int(parts[4], 16), parts[5])
                if function in (None, call.function) and pid in (None, call.pid):
                    found.append(call)
        return found

    def crimes(self):
        """Lines that tell of what no program may do."""
        return [line for line in self.lines() if re.search(r" (VIOLATION|FORKED-CHILD)\b", line)]

    def wrong_logins(self):
        return sum(call.note == "wrong" for call in self.calls("C_Login"))


def helpers(pid):
    """The processes that hold modules for the process `pid`."""
    return [child for child in children(pid) if b"--pkcs11-module-host" in command_line(child)]


def children(pid):
    try:
        return [int(word) for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()
                for word in (thread / "children").read_text().split()]
    except OSError:
        return []


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def with_word(word):
    """The processes that have `word` in their command line or environment, but for this one."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
        except OSError:
            continue
        if str(word).encode() in text and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found
