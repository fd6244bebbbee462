"""Other milters to measure beside ours, where they are installed: rspamd with nothing but its DKIM modules, and
dkimpy-milter. Each has the interface of `rig.milter.Milter`, as far as the programs here use it.
"""
import atexit, os, shutil, subprocess

from side_by_side import DOMAIN, SELECTOR
import rig
from rig import answers, free_port, until


class Other:
    """A milter in the foreground, that signs (mode "s") or verifies ("v"). `key` is to sign with, and to verify what it
    signed; `name_server` is the port on 127.0.0.1 of a name server that has its record. `authserv_id` names it in
    results."""

    def __init__(self, path, transport, mode, key, name_server, authserv_id):
        self.path, self.transport, self.mode, self.key = path, transport, mode, key
        self.name_server, self.authserv_id = name_server, authserv_id
        self.home, self.process = rig.folder("other"), None
        if transport == "unix":
            self.socket = self.home / "socket"
            self.address = f"unix:{self.socket}"
        else:
            self.port = free_port()
            self.address = f"inet:127.0.0.1:{self.port}"

    def start(self):
        atexit.register(self.stop)
        self.configuration = self.home / "conf"
        self.configuration.write_text(self.configured())
        with open(self.home / "output", "ab") as output:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(30, self.listens, lambda: f"{self.path} to listen on {self.address}:\n{self.log()}")
        return self

    def listens(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.path} ended with {self.process.returncode}:\n{self.log()}")
        return self.socket.is_socket() if self.transport == "unix" else answers(self.port)

    def stop(self):
        """SIGTERM, and SIGKILL if that is not enough; children end with their parent."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*"))
                       if path.name in ("output", "log"))


class Dkimpy(Other):
    """dkimpy-milter, which has OpenDKIM's configuration and can be given the key's record."""

    name, works = "dkimpy-milter", ["verify", "sign"]

    def configured(self):
        socket = f"local:{self.socket}" if self.transport == "unix" else f"inet:{self.port}@127.0.0.1"
        internal = "127.0.0.1" if self.mode == "s" else "192.0.2.99"
        lines = [f"Socket {socket}", "UMask 000", "Syslog no", f"Mode {self.mode}", f"AuthservID {self.authserv_id}",
                 f"InternalHosts {internal}", "Canonicalization relaxed/relaxed", f"PidFile {self.home}/pid",
                 "UserID root"]
        if self.mode == "s":
            lines += [f"Domain {DOMAIN}", f"Selector {SELECTOR}", f"KeyFile {self.key.path}"]
        else:
            lines += [f"DNSOverride {self.key.record}"]
        return "\n".join(lines) + "\n"

    def command(self):
        return [self.path, self.configuration]


class Rspamd(Other):
    """rspamd as a milter that scans by itself, in as many processes as there are cores, with its signing module only.

    BUGS: it does not verify here. It does verify when told so, but its module for header fields wants more of a
    configuration than this before it writes the results down, and a verdict that nobody sees proves nothing.
    """

    name, works = "rspamd", ["sign"]

    def configured(self):
        socket = f"{self.socket} mode=0666" if self.transport == "unix" else f"127.0.0.1:{self.port}"
        return f"""
options {{
  pidfile = "{self.home}/pid"; tempdir = "{self.home}"; hs_cache_dir = "{self.home}"; url_tld = "/dev/null";
  filters = "dkim"; local_addrs = ["127.0.0.0/8"]; dns {{ nameserver = ["127.0.0.1:{self.name_server}"]; }}
}}
logging {{ type = "file"; filename = "{self.home}/log"; level = "error"; }}
worker "rspamd_proxy" {{
  bind_socket = "{socket}"; milter = yes; timeout = 120s; count = {len(os.sched_getaffinity(0))};
  upstream "local" {{ default = yes; self_scan = yes; }}
}}
modules {{ path = "$PLUGINSDIR/dkim_signing.lua"; }}
dkim_signing {{
  sign_local = true; use_esld = false; use_redis = false; allow_username_mismatch = true;
  domain {{ {DOMAIN} {{ path = "{self.key.path}"; selector = "{SELECTOR}"; }} }}
}}
"""

    def command(self):
        return [self.path, "-f", "--insecure", "-u", "root", "-g", "root", "-c", self.configuration]


def installed():
    """Those that are here, each by its path."""
    found = {kind: shutil.which(kind.name) for kind in (Rspamd, Dkimpy)}
    return {kind: path for kind, path in found.items() if path}


def missing():
    """The names of those that are not."""
    return [kind.name for kind in (Rspamd, Dkimpy) if kind not in installed()]
