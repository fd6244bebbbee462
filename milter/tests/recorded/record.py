#!/usr/bin/env python3
"""Record what a real MTA says to a milter.

    record.py postfix  OUT [SCENARIO...]         the installed Postfix, as a private instance; needs root
    record.py sendmail OUT [SCENARIO...]         a Sendmail unpacked below $SENDMAIL_ROOT; needs root

Sendmail need not (and beside Postfix cannot) be installed:

    apt-get download sendmail-bin sendmail-cf sendmail-base libwrap0 m4 libsigsegv2
    for f in *.deb; do dpkg -x "$f" "$SENDMAIL_ROOT"; done
    chmod g-s "$SENDMAIL_ROOT"/usr/libexec/sendmail/sendmail        (or LD_LIBRARY_PATH is ignored)

An always-continue milter stands on a loopback port and keeps each packet, both ways; SMTP dialogues are played to the
MTA in front of it; mail is discarded (Postfix) or stays in a queue that is thrown away (Sendmail). One file per milter
connection is written to OUT, in the form that README.md describes.

The milter asks for what ours asks for ("quiet"), or for every step and reply there is ("chatty").
"""
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

SMTP_PORT, MILTER_PORT = 26251, 26252
HOST = "mta.rig.test"

# --- the milter -------------------------------------------------------------------------------------------------------

NR = {"L": 0x80, "C": 0x1000, "H": 0x2000, "M": 0x4000, "R": 0x8000}
NR |= {"T": 0x10000, "U": 0x20000, "N": 0x40000, "B": 0x80000}
ACTIONS = 0x001 | 0x010 | 0x020 | 0x100  # ADDHDRS CHGHDRS QUARANTINE SETSYMLIST
QUIET = 0x002 | 0x100 | 0x400 | 0x080 | 0x100000  # NOHELO NOUNKNOWN SKIP NR_HDR HDR_LEADSPC
CHATTY = 0x400 | 0x100000  # SKIP HDR_LEADSPC
MACRO_LISTS = [
    (0, b"j {client_addr} {daemon_name}"),
    (2, b"i {auth_type} {auth_authen} {auth_author} {mail_addr} {client_addr}"),
    (4, b"i"),
    (5, b"i"),
    (6, b"i"),
]


class Milter:
    """Continues everything; keeps the packets of each connection."""

    def __init__(self, port):
        self.steps, self.edits, self.connections = QUIET, [], []
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            peer, _ = self.listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            talk = {"frames": [], "over": threading.Event()}
            self.connections.append(talk)
            threading.Thread(target=self.talk, args=(peer, talk), daemon=True).start()

    def talk(self, peer, talk):
        stream, frames, quiet = peer.makefile("rb"), talk["frames"], 0

        def say(command, data=b""):
            frames.append(("<", command + data))
            return struct.pack(">I", len(data) + 1) + command + data

        try:
            while len(word := stream.read(4)) == 4:
                packet = stream.read(struct.unpack(">I", word)[0])
                frames.append((">", packet))
                command, data, answer = chr(packet[0]), packet[1:], b""
                if command == "O":
                    version, actions, steps = struct.unpack(">III", data)
                    actions, quiet = actions & ACTIONS, steps & self.steps
                    answer = struct.pack(">III", min(version, 6), actions, quiet)
                    if actions & 0x100:
                        answer += b"".join(struct.pack(">I", stage) + names + b"\0" for stage, names in MACRO_LISTS)
                    answer = say(b"O", answer)
                elif command == "E":
                    answer = b"".join(say(edit[:1], edit[1:]) for edit in self.edits) + say(b"c")
                elif command in "CHMRTLNBU" and not quiet & NR[command]:
                    answer = say(b"c")
                peer.sendall(answer)
        except OSError:
            pass
        peer.close()
        talk["over"].set()


# --- the MTAs ---------------------------------------------------------------------------------------------------------


class Postfix:
    name = "Postfix"

    def __init__(self, home):
        self.etc = home + "/etc"
        for part in ("etc", "queue", "data"):
            os.mkdir(home + "/" + part)
        shutil.chown(home + "/data", "postfix")
        with open(self.etc + "/main.cf", "w") as f:
            f.write(f"""compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
maillog_file = {home}/log
maillog_file_prefixes = {home}
myhostname = {HOST}
mydestination =
alias_maps =
inet_interfaces = 127.0.0.1, ::1
inet_protocols = all
mynetworks = 127.0.0.0/8 [::1]/128
smtpd_relay_restrictions = reject_unauth_destination
smtpd_authorized_xclient_hosts = 127.0.0.0/8
smtp_dns_support_level = disabled
relay_domains = example.com, example.net
relay_transport = discard:
default_transport = discard:
smtpd_milters = inet:127.0.0.1:{MILTER_PORT}
non_smtpd_milters = inet:127.0.0.1:{MILTER_PORT}
milter_default_action = tempfail
""")
        with open(self.etc + "/master.cf", "w") as f:
            f.write(f"""127.0.0.1:{SMTP_PORT} inet n - n - - smtpd
[::1]:{SMTP_PORT} inet n - n - - smtpd
pickup unix n - n 1 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
showq unix n - n - - showq
postlog unix-dgram n - n - 1 postlogd
""")
        self.run("postfix", "start")
        self.version = self.run("postconf", "-h", "mail_version").strip()

    def run(self, tool, *arguments):
        return subprocess.run([tool, "-c", self.etc, *arguments], check=True, text=True, capture_output=True).stdout

    def configure(self, setting):
        self.run("postconf", "-e", setting)
        self.run("postfix", "reload")
        time.sleep(1.5)

    def submit(self, sender, recipient, message):
        subprocess.run(["sendmail", "-C", self.etc, "-f", sender, "-i", recipient], input=message, check=True)

    def stop(self):
        self.run("postfix", "stop")


class Sendmail:
    name = "Sendmail"

    def __init__(self, home):
        root = os.environ["SENDMAIL_ROOT"]
        libraries = {"LD_LIBRARY_PATH": f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"}
        self.environment = {**os.environ, **libraries}
        os.mkdir(home + "/queue", 0o700)
        for name, text in (("switch", "hosts files\n"), ("local-host-names", HOST + "\n")):
            with open(f"{home}/{name}", "w") as f:
                f.write(text)
        cf_dir = root + "/usr/share/sendmail/cf"
        source = f"""divert(-1)
include(`{cf_dir}/m4/cf.m4')
divert(0)
OSTYPE(`linux')
define(`confSERVICE_SWITCH_FILE', `{home}/switch')
define(`confPID_FILE', `{home}/pid')
define(`confCW_FILE', `{home}/local-host-names')
define(`QUEUE_DIR', `{home}/queue')
define(`STATUS_FILE', `{home}/statistics')
undefine(`ALIAS_FILE')
define(`confDOMAIN_NAME', `{HOST}')
define(`confDELIVERY_MODE', `q')
define(`confTO_IDENT', `0')
define(`confDONT_PROBE_INTERFACES', `true')
FEATURE(`no_default_msa')
FEATURE(`nocanonify')
FEATURE(`promiscuous_relay')
FEATURE(`accept_unresolvable_domains')
FEATURE(`accept_unqualified_senders')
DAEMON_OPTIONS(`Name=MTA, Family=inet, Addr=127.0.0.1, Port={SMTP_PORT}')
DAEMON_OPTIONS(`Name=MTA6, Family=inet6, Addr=::1, Port={SMTP_PORT}')
INPUT_MAIL_FILTER(`record', `S=inet:{MILTER_PORT}@127.0.0.1, F=T')
MAILER(`local')
MAILER(`smtp')
"""
        cf = subprocess.run([root + "/usr/bin/m4", f"-D_CF_DIR_={cf_dir}/", "-"], input=source, text=True, check=True,
                            capture_output=True, env=self.environment).stdout
        with open(home + "/sendmail.cf", "w") as f:
            f.write(cf)
        binary = root + "/usr/libexec/sendmail/sendmail"
        self.process = subprocess.Popen([binary, "-C", home + "/sendmail.cf", "-bD", "-X", home + "/traffic"],
                                        env=self.environment)
        about = subprocess.run([binary, "-d0.1", "-bt", "-C", home + "/sendmail.cf"], input="", text=True,
                               capture_output=True, env=self.environment).stdout
        self.version = re.search(r"Version (\S+)", about)[1]

    def stop(self):
        self.process.terminate()
        self.process.wait()


# --- the dialogues ----------------------------------------------------------------------------------------------------


class Client:
    """Speaks SMTP exactly as told: no library that would mend the message."""

    def __init__(self, family):
        address = ("::1" if family == socket.AF_INET6 else "127.0.0.1", SMTP_PORT)
        self.socket = socket.create_connection(address, 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")
        self.reply("2")

    def reply(self, wanted):
        while (line := self.stream.readline())[3:4] == b"-":
            pass
        if not line.decode("latin1").startswith(wanted):
            raise SystemExit(f"wanted {wanted}, got {line!r}")

    def say(self, line, wanted="2"):
        self.socket.sendall(line + b"\r\n")
        self.reply(wanted)

    def data(self, message):
        self.say(b"DATA", "354")
        self.socket.sendall(re.sub(rb"(?m)^\.", b"..", message) + b".\r\n")
        self.reply("2")

    def send(self, message, sender=b"<ann@example.com>", recipients=(b"<bo@example.net>",)):
        self.say(b"MAIL FROM:" + sender)
        for recipient in recipients:
            self.say(b"RCPT TO:" + recipient)
        self.data(message)

    def quit(self):
        self.say(b"QUIT")
        self.socket.close()


def crlf(text):
    return text.encode().replace(b"\n", b"\r\n")


HEAD = ("From: Ann <ann@example.com>\nTo: Bo <bo@example.net>\nDate: Tue, 06 Jan 2026 10:00:00 +0000\n"
        "Message-ID: <1@example.com>\n")
PLAIN = crlf(HEAD + "Subject: apples\n\nTen boxes,\n.dot first\n\n")
SECOND = crlf(HEAD + "Subject: pears\n\nNone left.\n")
EIGHT = crlf(HEAD + "Subject: 8-bit\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n"
             "Content-Transfer-Encoding: 8bit\n\nGrüße, 日本\n")
NO_BODY = crlf(HEAD + "Subject: nothing\n")
ODD = crlf(HEAD + "Subject:x\nX-Two:  blanks\nX-Tab:\tvalue\nX-Folded: one\n two\n\tthree\n"
           "X-Fold-First:\n <long@example.com>\nX-Empty:\nX-Blank: \nX-Space : before\n\ntext\n")
UTF8 = crlf("From: Jörg <jörg@bücher.example>\nTo: <bo@example.net>\nDate: Tue, 06 Jan 2026 10:00:00 +0000\n"
            "Message-ID: <2@example.com>\nSubject: Äpfel\n\nZehn Kisten, schöne.\n")
NOTICE = crlf("From: <postmaster@example.com>\nTo: <ann@example.com>\nDate: Tue, 06 Jan 2026 10:00:00 +0000\n"
              "Message-ID: <3@example.com>\nSubject: Undelivered\n\nIt came back.\n")


def dialogue(family=socket.AF_INET, pretend=None):
    """A session past its greeting; `pretend` is what XCLIENT says of the client."""
    client = Client(family)
    if pretend:
        client.say(b"XCLIENT " + pretend)
    client.say(b"EHLO client.rig.test")
    return client


def plain(mta):
    client = dialogue()
    client.send(PLAIN)
    client.quit()


def eight_bit(mta):
    client = dialogue()
    client.send(EIGHT, sender=b"<ann@example.com> BODY=8BITMIME")
    client.quit()


def smtputf8(mta):
    client = dialogue()
    client.send(UTF8, sender="<jörg@bücher.example> BODY=8BITMIME SMTPUTF8".encode())
    client.quit()


def no_body(mta):
    client = dialogue()
    client.send(NO_BODY)
    client.quit()


def two_recipients(mta):
    client = dialogue()
    client.send(PLAIN, sender=b"<ann@example.com> SIZE=400", recipients=(b"<bo@example.net>", b'<"c d"@example.net>'))
    client.quit()


def two_messages(mta):
    client = dialogue()
    client.send(PLAIN)
    client.send(SECOND)
    client.quit()


def null_sender(mta):
    client = dialogue()
    client.send(NOTICE, sender=b"<>", recipients=(b"<ann@example.com>",))
    client.quit()


def odd_headers(mta):
    client = dialogue()
    client.send(ODD)
    client.quit()


def aborts(mta):
    """RSET after RCPT, a greeting in mid-message, then a client that is gone in the middle of its data."""
    client = dialogue()
    client.say(b"MAIL FROM:<ann@example.com>")
    client.say(b"RCPT TO:<bo@example.net>")
    client.say(b"RSET")
    client.say(b"MAIL FROM:<ann@example.com>")
    client.say(b"EHLO again.rig.test")
    client.say(b"MAIL FROM:<ann@example.com>")
    client.say(b"RCPT TO:<bo@example.net>")
    client.say(b"DATA", "354")
    client.socket.sendall(b"From: Ann <ann@example.com>\r\nSubject: cut")
    time.sleep(0.3)
    client.stream.close()
    client.socket.close()


def ipv6(mta):
    client = dialogue(family=socket.AF_INET6)
    client.send(SECOND)
    client.quit()


def chatty(mta):
    """Nothing refused, everything answered; a verb that does not exist."""
    client = dialogue()
    client.say(b"FROBNICATE now", "5")
    client.send(SECOND)
    client.quit()


def chatty_aborts(mta):
    """The same as aborts, to a milter that is told of greetings."""
    aborts(mta)


def stripped(mta):
    """The fields of odd_headers to a milter that has not asked for the white space after the colon."""
    odd_headers(mta)


def unknown_client(mta):
    client = dialogue(pretend=b"NAME=[UNAVAILABLE] ADDR=[UNAVAILABLE]")
    client.send(SECOND)
    client.quit()


def authenticated(mta):
    client = dialogue(pretend=b"NAME=laptop.example.com ADDR=192.0.2.7 PORT=40000 LOGIN=ann")
    client.send(SECOND)
    client.quit()


def bdat(mta):
    client = dialogue()
    client.say(b"MAIL FROM:<ann@example.com>")
    client.say(b"RCPT TO:<bo@example.net>")
    for chunk, last in ((SECOND[:20], b""), (SECOND[20:], b" LAST")):
        client.socket.sendall(b"BDAT %d%s\r\n%s" % (len(chunk), last, chunk))
        client.reply("2")
    client.quit()


def submitted(mta):
    mta.submit("ann@example.com", "bo@example.net", PLAIN.replace(b"\r\n", b"\n"))


def submitted_bounce(mta):
    mta.submit("<>", "ann@example.com", NOTICE.replace(b"\r\n", b"\n"))


BOTH = [plain, eight_bit, no_body, two_recipients, two_messages, null_sender, odd_headers, aborts, ipv6]
BOTH += [chatty, chatty_aborts, stripped]
POSTFIX = BOTH + [smtputf8, unknown_client, authenticated, bdat, submitted, submitted_bounce]
OLD = [(plain, 2), (odd_headers, 2), (plain, 3), (plain, 4)]


# --- the recording ----------------------------------------------------------------------------------------------------


def escape(octets):
    short = {0: "\\0", 9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 92: "\\\\"}
    return "".join(short.get(o) or (chr(o) if 32 <= o < 127 else "\\x%02x" % o) for o in octets)


def record(mta, milter, scenario, out, version=6):
    milter.steps = {chatty: CHATTY, chatty_aborts: CHATTY, stripped: QUIET & ~0x100000}.get(scenario, QUIET)
    milter.edits = [b"i\0\0\0\0X-Recorded\0 one;\n\ttwo\0"] if scenario is chatty else []
    milter.connections.clear()
    scenario(mta)
    deadline = time.time() + 10
    while not milter.connections and time.time() < deadline:
        time.sleep(0.05)
    for talk in milter.connections:
        talk["over"].wait(10)
    # A connection without a message is no conversation: Postfix's XCLIENT starts the session over.
    talks = [t for t in milter.connections if any(p[:1] == b"M" for d, p in t["frames"] if d == ">")]
    if len(talks) != 1:
        raise SystemExit(f"{scenario.__name__}: {len(talks)} conversations")
    suffix = "" if version == 6 else f"-v{version}"
    path = f"{out}/{mta.name.lower()}-{scenario.__name__.replace('_', '-')}{suffix}.txt"
    with open(path, "w") as f:
        f.write(f"# {mta.name} {mta.version}, {scenario.__name__.replace('_', ' ')}")
        f.write("\n" if version == 6 else f", milter_protocol = {version}\n")
        for direction, packet in talks[0]["frames"]:
            f.write(f'{direction} {chr(packet[0])} "{escape(packet[1:])}"\n')
    print(path)


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("postfix", "sendmail"):
        raise SystemExit(__doc__)
    home = tempfile.mkdtemp(prefix="record-milter-")
    os.chmod(home, 0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    milter = Milter(MILTER_PORT)
    mta = (Postfix if sys.argv[1] == "postfix" else Sendmail)(home)
    wanted = sys.argv[3:]
    try:
        time.sleep(2)
        for scenario in POSTFIX if mta.name == "Postfix" else BOTH:
            if not wanted or scenario.__name__ in wanted:
                record(mta, milter, scenario, sys.argv[2])
        if mta.name == "Postfix" and (not wanted or "old" in wanted):
            for scenario, version in OLD:
                mta.configure(f"milter_protocol={version}")
                record(mta, milter, scenario, sys.argv[2], version)
    finally:
        mta.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
