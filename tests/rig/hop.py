"""The next hop: an SMTP server on loopback that keeps every message exactly as it came.

Recipients whose local part starts with `refused` get a 550, so that the MTA before it writes a bounce.
"""
import collections, re, socketserver, threading

from . import free_port

Kept = collections.namedtuple("Kept", "sender rcpts data options")


class Hop:
    """Listens from construction to `close`. `port` is where."""

    def __init__(self):
        self.messages, self.arrived = [], threading.Condition()
        self.port = free_port()
        hop = self

        class Session(socketserver.StreamRequestHandler):
            def handle(self):
                hop.serve(self.rfile, self.wfile)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Session, bind_and_activate=False)
        self.server.allow_reuse_address = self.server.daemon_threads = True
        self.server.request_queue_size = 128
        self.server.server_bind()
        self.server.server_activate()
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def wait(self, rcpt, seconds=10, count=1):
        """The first message kept for this recipient; waits for it, or for so many of them (then: the list)."""
        def mine():
            return [m for m in self.messages if rcpt in m.rcpts]
        with self.arrived:
            if not self.arrived.wait_for(lambda: len(mine()) >= count, seconds):
                raise TimeoutError(f"{len(mine())} of {count} messages for {rcpt} came within {seconds} s")
            return mine()[0] if count == 1 else mine()

    def serve(self, rfile, wfile):
        def say(text):
            wfile.write(text.encode() + b"\r\n")
        say("220 hop.rig.test ESMTP")
        sender, options, rcpts = "", "", []
        while line := rfile.readline(65536):
            verb = line[:4].upper()
            if verb == b"EHLO":
                say("250-hop.rig.test\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 104857600")
            elif verb == b"MAIL":
                sender, options = re.match(r"(?i)MAIL FROM:<(.*?)> ?(.*)", line.decode().strip()).groups()
                rcpts = []
                say("250 ok")
            elif verb == b"RCPT":
                rcpt = re.match(r"(?i)RCPT TO:<(.*?)>", line.decode().strip())[1]
                if rcpt.startswith("refused"):
                    say("550 5.1.1 no such user")
                else:
                    rcpts.append(rcpt)
                    say("250 ok")
            elif verb == b"DATA" and rcpts:
                say("354 go on")
                data = read_data(rfile)
                if data is None:
                    return
                with self.arrived:
                    self.messages.append(Kept(sender, rcpts, data, options))
                    self.arrived.notify_all()
                say("250 kept")
            elif verb == b"DATA":
                say("554 no recipients")
            elif verb == b"QUIT":
                return say("221 bye")
            else:
                say("250 ok")


def read_data(rfile):
    """The octets up to the final dot, unstuffed; None when the connection ended first."""
    lines = []
    while (line := rfile.readline()) != b".\r\n":
        if not line:
            return None
        lines.append(line[1:] if line.startswith(b".") else line)
    return b"".join(lines)
