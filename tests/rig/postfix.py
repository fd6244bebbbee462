"""A private, throw-away Postfix: its own configuration, queue, log and ports; nothing of the system's own is touched.

BUGS: Postfix starts as root only, and takes about a second to do so.
"""
import atexit, os, pathlib, shutil, signal, subprocess

from . import folder, free_port, smtp, until

MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
# Postfix's own log daemon: there may be no syslogd.
maillog_file = {home}/log
maillog_file_prefixes = {home}
myhostname = {hostname}
myorigin = {origin}
mydestination =
alias_maps =
alias_database =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
# Strangers in tests have addresses from RFC 5737.
mynetworks = 127.0.0.0/8 192.0.2.0/24
smtpd_authorized_xclient_hosts = 127.0.0.0/8
smtpd_recipient_restrictions = permit_mynetworks, reject
smtpd_relay_restrictions = permit_mynetworks, reject
default_transport = {transport}
# No look-ups in the DNS.
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtpd_peername_lookup = no
smtp_tls_security_level = none
smtpd_tls_security_level = none
message_size_limit = 104857600
mailbox_size_limit = 0
# Or a busy queue slows acceptance down.
in_flow_delay = 0
milter_default_action = tempfail
non_smtpd_milters = {local_milters}
internal_mail_filter_classes = bounce
smtputf8_enable = yes
"""

MASTER = """
pickup   unix n - n 1 1 pickup
cleanup  unix n - n - 0 cleanup
qmgr     unix n - n 300 1 qmgr
rewrite  unix - - n - - trivial-rewrite
bounce   unix - - n - 0 bounce
defer    unix - - n - 0 bounce
trace    unix - - n - 0 bounce
verify   unix - - n - 1 verify
flush    unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp     unix - - n - - smtp
error    unix - - n - - error
retry    unix - - n - - error
discard  unix - - n - - discard
anvil    unix - - n - 1 anvil
showq    unix n - n - - showq
postlog  unix-dgram n - n - 1 postlogd
"""


class Postfix:
    """`listeners` maps a name to the milter that its port passes mail through ("" for none), in Postfix's notation;
    `ports` then has the port of each. Mail goes on to `next_hop` (a port), or is discarded if that is None. Mail from
    sendmail(1) and bounces pass through `local_milters`. `origin` completes addresses without a domain."""

    def __init__(self, listeners, next_hop=None, local_milters="", origin="rig.test", hostname="mx.rig.test"):
        self.home = folder("postfix")
        for name in ("etc", "queue", "data"):
            (self.home / name).mkdir()
        shutil.chown(self.home / "data", "postfix")
        self.ports = {name: free_port() for name in listeners}
        transport = f"smtp:[127.0.0.1]:{next_hop}" if next_hop else "discard:"
        (self.home / "etc/main.cf").write_text(
            MAIN.format(home=self.home, transport=transport, local_milters=local_milters, origin=origin,
                        hostname=hostname))
        (self.home / "etc/master.cf").write_text("".join(
            f"127.0.0.1:{self.ports[name]} inet n - n - - smtpd -o smtpd_milters={milter}\n"
            for name, milter in listeners.items()) + MASTER)

    def start(self):
        atexit.register(self.stop)
        done = self.run("postfix", "start")
        if done.returncode:
            raise RuntimeError(f"postfix start: {done.stderr}{self.log()}")
        for port in self.ports.values():
            until(10, lambda: smtp.greets(port), lambda: f"Postfix to answer: {self.log()}")
        return self

    def stop(self):
        """Ends the master process, which ends its own."""
        try:
            master = int((self.home / "queue/pid/master.pid").read_text())
            os.kill(master, signal.SIGTERM)
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return
        until(10, lambda: not running(master), "Postfix to end")

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def run(self, command, *arguments, stdin=None):
        """One of Postfix's commands, upon this instance."""
        path = shutil.which(command, path=os.environ["PATH"] + ":/usr/sbin")
        return subprocess.run([path, "-c" if command == "postfix" else "-C", self.home / "etc", *arguments],
                              input=stdin, capture_output=True, timeout=60)

    def sendmail(self, message, sender, rcpt):
        """Hands a message to sendmail(1), as a local program would: lines end in LF."""
        done = self.run("sendmail", "-i", "-f", sender, rcpt, stdin=message.replace(b"\r\n", b"\n"))
        if done.returncode:
            raise RuntimeError(f"sendmail: {done.stderr}")

    def log(self):
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def running(pid):
    """Whether this process exists and has not ended (one whose parent has yet to ask for its exit code has)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False
