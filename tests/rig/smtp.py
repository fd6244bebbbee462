"""An SMTP client that sends octets as they are: no folding, no MIME, no opinion about the message."""
import re, socket


class Client:
    """One session. `xclient` (a dict, e.g. ADDR, NAME, LOGIN) makes the server believe in another client."""

    def __init__(self, port, seconds=60, xclient=None):
        self.socket = socket.create_connection(("127.0.0.1", port), seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("rb")
        self.expect(220)
        self.command("EHLO client.rig.test", 250)
        if xclient:
            self.command("XCLIENT " + " ".join(f"{k}={v}" for k, v in xclient.items()), 220)
            self.command("EHLO client.rig.test", 250)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def reply(self):
        """One reply: its code and its text."""
        text = []
        while True:
            line = self.lines.readline()
            if not line:
                raise ConnectionError(f"the server hung up after {text}")
            text.append(line[4:].decode("latin1").strip())
            if line[3:4] != b"-":
                return int(line[:3]), " ".join(text)

    def expect(self, code):
        got = self.reply()
        if got[0] != code:
            raise ConnectionError(f"wanted {code}, got {got}")
        return got

    def command(self, line, code):
        self.socket.sendall(line.encode() + b"\r\n")
        return self.expect(code)

    def envelope(self, sender, rcpts, options="BODY=8BITMIME"):
        """MAIL, RCPTs and DATA, up to the point where the message may be sent."""
        self.command(f"MAIL FROM:<{sender}> {options}".rstrip(), 250)
        for rcpt in rcpts:
            self.command(f"RCPT TO:<{rcpt}>", 250)
        self.command("DATA", 354)

    def send(self, message, sender, rcpts, options="BODY=8BITMIME"):
        """One message; the server's code and text after the final dot. A message that does not end in CRLF is given
        one, as SMTP cannot carry it otherwise."""
        self.envelope(sender, [rcpts] if isinstance(rcpts, str) else rcpts, options)
        self.socket.sendall(stuffed(message) + b".\r\n")
        return self.reply()

    def quit(self):
        self.command("QUIT", 221)
        self.socket.close()


def stuffed(message):
    """The message with its dots doubled at the start of lines, ending in CRLF."""
    if not message.endswith(b"\r\n"):
        message += b"\r\n"
    return re.sub(rb"(\A|\n)\.", rb"\1..", message)


def send(port, message, sender, rcpts, **rest):
    """One message in a session of its own; the code and text after the final dot."""
    xclient = rest.pop("xclient", None)
    with Client(port, xclient=xclient) as client:
        return client.send(message, sender, rcpts, **rest)


def greets(port):
    """Whether an SMTP server answers on this port."""
    try:
        Client(port, 2).quit()
        return True
    except OSError:
        return False
