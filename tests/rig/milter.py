"""The daemon under test, started in the foreground with a configuration of the test's own."""
import atexit, os, pathlib, re, signal, subprocess

from . import answers, folder, free_port, program, until


class Milter:
    """One daemon. `options` are lines of its configuration (a list for an option that is repeated). It listens on a
    UNIX socket, or on 127.0.0.1 for transport="inet". `address` is where, in the notation of Postfix; `home` is its
    folder; `arguments` and `environment` may be set before it is started. Another program of the same configuration
    language can be named with `path`."""

    def __init__(self, transport="unix", path=None, **options):
        self.path = path or program("dkim-milter")
        self.home = folder("milter")
        if transport == "unix":
            self.socket = self.home / "socket"
            self.address = f"unix:{self.socket}"
            options = {"Socket": f"local:{self.socket}", "UMask": "000", **options}
        else:
            self.port = free_port()
            self.address = f"inet:127.0.0.1:{self.port}"
            options = {"Socket": f"inet:{self.port}@127.0.0.1", **options}
        self.transport, self.process = transport, None
        self.arguments, self.environment = [], {}
        if self.is_opendkim():
            # It takes no key below /tmp for safe.
            options["RequireSafeKeys"] = "no"
        self.options = {"Background": "no", "Syslog": "no", "LogWhy": "yes", "SyslogSuccess": "yes", **options}
        self.write()

    def is_opendkim(self):
        return os.path.basename(self.path) == "opendkim"

    def write(self):
        """Puts the options into the configuration file, for the next start or reload."""
        self.configuration = self.home / "milter.conf"
        self.configuration.write_text("".join(
            f"{name} {one}\n" for name, value in self.options.items()
            for one in (value if isinstance(value, list) else [value])))

    def start(self):
        atexit.register(self.stop)
        self.stderr = open(self.home / "log", "ab")
        self.process = subprocess.Popen([self.path, "-f", "-x", self.configuration, *self.arguments],
                                        stdin=subprocess.DEVNULL, stdout=self.stderr, stderr=self.stderr,
                                        env={**os.environ, **self.environment})
        until(10, self.listens, lambda: f"{self.path} to listen on {self.address}:\n{self.log()}")
        return self

    def listens(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.path} ended with {self.process.returncode}:\n{self.log()}")
        return self.socket.is_socket() if self.transport == "unix" else answers(self.port)

    def stop(self, seconds=15):
        """SIGTERM, and the exit code (None if it was not running); OpenDKIM is killed, as nobody asks how it ends."""
        if not self.process:
            return None
        if self.is_opendkim():
            self.process.kill()
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.stderr.close()
            self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def signal(self, name):
        self.process.send_signal(getattr(signal, name))

    def alive(self):
        return self.process.poll() is None

    def log(self):
        return (self.home / "log").read_text(errors="replace")

    def logged(self, *patterns, seconds=5):
        """Waits for a log line that matches all these regular expressions, and gives it."""
        def line():
            return next((l for l in self.log().splitlines() if all(re.search(p, l) for p in patterns)), None)
        return until(seconds, line, lambda: f"a log line with {patterns}:\n{self.log()}")

    def descriptors(self):
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def peak_memory(self):
        return peak_memory(self.process.pid)


def peak_memory(pid):
    """The largest resident size of a process so far, in octets (VmHWM of proc(5), which counts in KiB); 0 when it has
    ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)
