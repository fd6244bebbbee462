"""A private Sendmail: Debian's packages, fetched and unpacked into a folder, never installed.

The packages are kept in target/sendmail, so that they are fetched once. Sendmail conflicts with Postfix as a
package, which is why it is not installed beside it.
"""
import atexit, os, shutil, signal, subprocess

from . import ROOT, folder, free_port, smtp, until

PACKAGES = ["sendmail-bin", "sendmail-cf", "sendmail-base", "libwrap0"]

MC = """
OSTYPE(`linux')dnl
define(`confDOMAIN_NAME', `mx.rig.test')dnl
define(`confSERVICE_SWITCH_FILE', `{home}/switch')dnl
define(`confPID_FILE', `{home}/pid')dnl
define(`QUEUE_DIR', `{home}/queue')dnl
define(`STATUS_FILE', `{home}/statistics')dnl
define(`HELP_FILE', `{home}/help')dnl
define(`ALIAS_FILE', `')dnl
define(`confDONT_BLAME_SENDMAIL', `TrustStickyBit')dnl
define(`confDEF_USER_ID', `65534:65534')dnl
define(`confDELIVERY_MODE', `background')dnl
define(`confTO_IDENT', `0')dnl
define(`confBIND_OPTS', `-DNSRCH -DEFNAMES')dnl
define(`SMART_HOST', `esmtp:[127.0.0.1]')dnl
define(`ESMTP_MAILER_ARGS', `TCP $h {next_hop}')dnl
FEATURE(`nocanonify')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`promiscuous_relay')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`accept_unqualified_senders')dnl
{filters}{daemons}MAILER(`smtp')dnl
"""


class Sendmail:
    """`listeners` maps a name to the milter's address in Sendmail's notation (`unix:/path`, `inet:port@host`), and
    `ports` has the port of each. Mail goes on to the port `next_hop`."""

    def __init__(self, listeners, next_hop):
        self.unpacked = unpacked()
        self.home = folder("sendmail")
        (self.home / "queue").mkdir(mode=0o700)
        (self.home / "switch").write_text("hosts files\naliases files\n")
        (self.home / "statistics").touch()
        self.ports = {name: free_port() for name in listeners}
        filters = "".join(f"MAIL_FILTER(`{name}', `S={address}, F=T')dnl\n" for name, address in listeners.items())
        daemons = "".join(f"DAEMON_OPTIONS(`Port={self.ports[name]}, Addr=127.0.0.1, Name={name}, I={name}')dnl\n"
                          for name in listeners)
        source = MC.format(home=self.home, next_hop=next_hop, filters=filters, daemons=daemons)
        cf = self.unpacked / "usr/share/sendmail/cf"
        done = subprocess.run(["m4", f"-D_CF_DIR_={cf}/", cf / "m4/cf.m4", "-"], input=source, capture_output=True,
                              text=True, check=True)
        self.configuration = self.home / "sendmail.cf"
        self.configuration.write_text(done.stdout)

    def start(self):
        atexit.register(self.stop)
        libraries = self.unpacked / "usr/lib" / f"{os.uname().machine}-linux-gnu"
        program = self.unpacked / "usr/libexec/sendmail/sendmail"
        command = [program, "-bD", "-q1m", "-C", self.configuration]
        if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode == 0:
            # It waits a minute for a host name with a dot; so it gets one, which nobody else sees.
            command = ["unshare", "--uts", "sh", "-c", 'hostname mx.rig.test && exec "$@"', "sendmail", *command]
        self.output = open(self.home / "output", "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                                        start_new_session=True, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)})
        for port in self.ports.values():
            until(90, lambda: self.process.poll() is not None or smtp.greets(port), "Sendmail to answer")
        if self.process.poll() is not None:
            raise RuntimeError(f"Sendmail ended: {(self.home / 'output').read_text()}")
        return self

    def stop(self):
        """Ends the daemon and those that it has forked, which are its process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(10)
            self.output.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


def unpacked():
    """The folder with the unpacked packages; fetches them first if need be. subprocess.CalledProcessError when they
    cannot be had."""
    keep = ROOT / "target/sendmail"
    if not (keep / "complete").exists():
        shutil.rmtree(keep, ignore_errors=True)
        keep.mkdir(parents=True)
        subprocess.run(["apt-get", "-qq", "download", *PACKAGES], cwd=keep, check=True, timeout=300)
        for package in keep.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, keep], check=True)
            package.unlink()
        # Its mail submission program would be set-group-ID.
        for path in keep.rglob("sendmail"):
            if path.is_file():
                path.chmod(0o755)
        (keep / "complete").touch()
    return keep
