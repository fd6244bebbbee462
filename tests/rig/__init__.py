"""What every end-to-end test stands on: programs under test, folders, free ports, waiting, and the way a test
program reports.

The modules beside this one are the outside world of a milter, each on loopback and in a folder of its own:
`postfix` and `sendmail` (private, throw-away MTAs), `hop` (the next hop, which keeps what it gets octet for octet),
`smtp` (a client that sends what it is told to), `dns` (key records, and trouble on demand), `milter` (the daemon),
`wire` (the MTA's side of the milter protocol), `token` (PKCS#11 tokens), `messages`, `keys` and `outside` (other
people's DKIM).

Programs under test are those in target/release; the environment variables MILTER, DKIM_SIGN, DKIM_VERIFY, DKIM_TESTKEY
and DKIM_GENKEY name others, for instance MILTER=/usr/sbin/opendkim to see what a test says of OpenDKIM.
With KEEP=1 in the environment the folders below /tmp are left.

Python is Debian's /usr/bin/python3, because its packages python3-dkim, python3-nacl and python3-prometheus-client are used. Postfix starts as
root, so the tests do.
"""
import atexit, os, pathlib, random, shutil, signal, socket, sys, tempfile, time, unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Folders that are there.
made = []


def program(name):
    """The path of dkim-milter, a tool or milter-load; ends the test program with a sentence if it is not built."""
    variable = "MILTER" if name == "dkim-milter" else name.upper().replace("-", "_")
    path = os.environ.get(variable) or str(ROOT / "target/release" / name)
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: run `make build`, or set {variable}")
    return path


def folder(name):
    """A new folder that every user may enter (Postfix's user must reach queue and sockets), removed at the end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix=f"dkim-{name}-"))
    path.chmod(0o755)
    if not made:
        atexit.register(remove_folders)
    made.append(path)
    return path


def remove_folders():
    """Removes the folders that were made so far, unless they are to be kept."""
    while made:
        path = made.pop()
        if not os.environ.get("KEEP"):
            shutil.rmtree(path, ignore_errors=True)


def free_port():
    """A port on 127.0.0.1 that nobody listens on, from below the range that outgoing connections are given."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def answers(port):
    """Whether somebody accepts connections on 127.0.0.1:port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def until(seconds, test, what):
    """The first true value that test() gives within so many seconds; else TimeoutError saying what was awaited
    (`what` may be a function, for a message that shows the state at the end)."""
    end, pause = time.monotonic() + seconds, 0.005
    while not (value := test()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return value


class TestCase(unittest.TestCase):
    """unittest's, with `@cases`: one method, one test per case."""

    maxDiff = None

    def __init_subclass__(cls, **rest):
        super().__init_subclass__(**rest)
        for name, method in list(vars(cls).items()):
            for case, value in getattr(method, "cases", {}).items():
                def test(self, method=method, value=value):
                    method(self, value)
                test.__doc__ = method.__doc__
                setattr(cls, f"{name}[{case}]", test)
            if hasattr(method, "cases"):
                delattr(cls, name)


def cases(table):
    """Marks a test method to be run once with each value of a table {name: value}."""
    def mark(method):
        method.cases = table
        return method
    return mark


def must_be_root():
    """Ends the program with a sentence unless root runs it."""
    if os.geteuid() != 0:
        sys.exit("must be run as root: a private Postfix starts as root")


def main():
    """Runs the tests of the calling program, or those whose names contain an argument; the last line is `N passed,
    N failed`. A test that was skipped counts as failed, and so does a program in which no test ran: a green line means
    that everything was tried."""
    must_be_root()
    end_on_signals()
    began = time.monotonic()
    names = [n for n in sys.argv[1:] if not n.startswith("-")]
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{n}*" for n in names] or None
    suite = loader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, descriptions=False).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.skipped) + len(result.unexpectedSuccesses)
    passed = max(0, result.testsRun - failed)
    print(f"{os.path.basename(sys.argv[0])}: {time.monotonic() - began:.0f} s")
    sys.exit(summary(passed, failed))


def summary(passed, failed):
    """Prints the last line of a test program and gives its exit code."""
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if passed and not failed else 1


def end_on_signals():
    """Lets SIGTERM and SIGHUP end the program as an exception would: what it started is then stopped by atexit."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
