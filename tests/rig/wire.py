"""The MTA's side of the milter protocol (versions 2 to 6), to speak with the daemon without an MTA.

It behaves as Postfix does where it may choose: a macro packet before each step, ABORT after each message, body
chunks of 65 535 octets.
"""
import re, socket, struct

CHUNK = 65535
# Bits of the step mask: the steps that a milter does not want, those it will not answer, and the leading space.
NO = {"C": 1 << 0, "H": 1 << 1, "M": 1 << 2, "R": 1 << 3, "B": 1 << 4, "L": 1 << 5, "N": 1 << 6, "U": 1 << 8,
      "T": 1 << 9}
NO_REPLY = {"L": 1 << 7, "C": 1 << 12, "H": 1 << 13, "M": 1 << 14, "R": 1 << 15, "T": 1 << 16, "U": 1 << 17,
            "N": 1 << 18, "B": 1 << 19}
LEADING_SPACE = 1 << 20
ALL_ACTIONS, ALL_STEPS = 0x1FF, 0x1FFFFF


class Refused(Exception):
    """The milter's answer was neither `continue` nor any that lets the message go on; `answer` holds it."""

    def __init__(self, answer):
        super().__init__(f"answer {answer!r}")
        self.answer = answer


class Conversation:
    """One connection of an MTA. `steps` is what was agreed upon after `negotiate`."""

    def __init__(self, address, seconds=60):
        kind, _, where = address.partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            # With a time-out set, connecting would fail at once when the backlog is full.
            self.socket.connect(where)
            self.socket.settimeout(seconds)
        else:
            host, _, port = where.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), seconds)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.replies.close()
        self.socket.close()

    def negotiate(self, version=6, actions=ALL_ACTIONS, steps=ALL_STEPS):
        """Offers, and returns the answer's (version, actions, steps); what was not offered must not be asked for."""
        self.socket.sendall(packet("O", struct.pack(">3I", version, actions, steps)))
        letter, data = self.reply()
        answer = struct.unpack(">3I", data[:12])
        if letter != "O" or answer[0] > version or answer[1] & ~actions or answer[2] & ~steps:
            raise ValueError(f"offered {version, actions, steps}, the milter answered {letter} {answer}")
        self.steps = answer[2]
        return answer

    def reply(self):
        """One packet: its letter and its data."""
        size = self.replies.read(4)
        if len(size) < 4:
            raise ConnectionError("the milter hung up")
        body = self.replies.read(struct.unpack(">I", size)[0])
        return chr(body[0]), body[1:]

    def step(self, letter, data=b"", macros=()):
        """One step with its macros, unless the milter does not want it; its answer `s` (skip) is returned, any other
        than `c` (continue) raises Refused."""
        if letter in NO and self.steps & NO[letter]:
            return "c"
        self.socket.sendall(self.packets(letter, data, macros))
        return self.answer(letter)

    def packets(self, letter, data=b"", macros=()):
        """A step with its macros, as octets; nothing if the milter does not want it."""
        if letter in NO and self.steps & NO[letter]:
            return b""
        return packet("D", letter.encode() + strings(*[x for pair in dict(macros).items() for x in pair])) \
            + packet(letter, data)

    def answer(self, letter):
        """Waits for the answer to a step, where the milter gives one."""
        if self.steps & NO_REPLY.get(letter, 0):
            return "c"
        answer = self.reply()
        if answer[0] not in "cs" or (answer[0] == "s" and letter != "B"):
            raise Refused(answer)
        return answer[0]

    def connect(self, host="client.rig.test", address="127.0.0.1", macros=()):
        """CONNECT and HELO; without an address the family is `unknown`."""
        where = (b"6" if ":" in address else b"4") + struct.pack(">H", 40000) + strings(address) if address else b"U"
        self.step("C", strings(host) + where,
                  {"j": "mx.rig.test", "{daemon_name}": "smtpd", **dict(macros)})
        self.step("H", strings(host))

    def envelope(self, sender="alice@example.com", rcpts=("bob@dest.test",), queue_id="4D0C", macros=()):
        """MAIL, RCPT and DATA."""
        # As with Postfix, the queue id is there from DATA on.
        self.macros = {"i": queue_id, **dict(macros)}
        self.step("M", strings(f"<{sender}>"), {"{mail_addr}": sender, **dict(macros)})
        for rcpt in rcpts:
            self.step("R", strings(f"<{rcpt}>"), {"{rcpt_addr}": rcpt})
        self.step("T", macros=self.macros)

    def header(self, fields):
        """The header, as `split` gives it, and its end."""
        if self.steps & NO_REPLY["L"]:
            self.socket.sendall(b"".join(self.packets("L", self.field(f), self.macros) for f in fields))
        else:
            for field in fields:
                self.step("L", self.field(field), self.macros)
        self.step("N", macros=self.macros)

    def field(self, field):
        name, value = field
        if not self.steps & LEADING_SPACE:
            value = value.removeprefix(b" ")
        return name + b"\0" + value.replace(b"\r\n", b"\n") + b"\0"

    def body(self, octets, chunk=CHUNK):
        for at in range(0, len(octets), chunk):
            if self.step("B", octets[at:at + chunk], self.macros) == "s":
                return

    def end(self):
        """End of message: the edits, [(letter, data)...], and the final answer (letter, data)."""
        self.socket.sendall(self.packets("E", macros=self.macros))
        edits = []
        while True:
            letter, data = self.reply()
            if letter in "acdrty":
                return edits, (letter, data)
            if letter != "p":
                edits.append((letter, data))

    def abort(self):
        self.socket.sendall(packet("A"))

    def quit(self):
        self.socket.sendall(packet("Q"))
        self.close()

    def message(self, raw, chunk=CHUNK, **envelope):
        """A whole message: the final answer's letter, and the message as it goes on. The answer and the edits stay in
        `final` and `edits`."""
        fields, body = split(raw)
        try:
            self.envelope(**envelope)
            self.header(fields)
            self.body(body, chunk)
            edits, final = self.end()
        except Refused as early:
            edits, final = [], early.answer
        self.final, self.edits = final, edits
        self.abort()
        blank = b"\r\n\r\n" in raw or raw.startswith(b"\r\n")
        return final[0], applied(edits, fields, body, self.steps & LEADING_SPACE, blank)


def packet(letter, data=b""):
    return struct.pack(">I", len(data) + 1) + letter.encode() + data


def strings(*texts):
    return b"".join((t.encode() if isinstance(t, str) else t) + b"\0" for t in texts)


def split(raw):
    """The header fields [(name, value)...], values as they stand after the colon without the final CRLF, and the
    body."""
    head, blank, body = raw.partition(b"\r\n\r\n")
    if raw.startswith(b"\r\n"):
        head, body = b"", raw[2:]
    elif not blank:
        head = head.removesuffix(b"\r\n")
    fields = re.split(rb"\r\n(?![ \t])", head) if head else []
    return [tuple(f.split(b":", 1)) for f in fields], body


def applied(edits, fields, body, leading_space=True, blank=True):
    """The message after the milter's edits of its header, made in order as Postfix makes them: a deletion renumbers
    the fields behind it at once. A message may end with its header, without a `blank` line."""
    fields = list(fields)
    space = b"" if leading_space else b" "
    for letter, data in edits:
        at, data = struct.unpack(">I", data[:4])[0] if letter in "im" else None, data[4:] if letter in "im" else data
        if letter not in "him":
            continue
        name, value = data.split(b"\0")[:2]
        # A final CR or LF, or a CR anywhere, would go out as CR CR LF.
        if b"\r" in value or value.endswith(b"\n"):
            raise ValueError(f"the milter wrote {name!r} with wrong line ends: {value!r}")
        new = (name, space + value.replace(b"\n", b"\r\n"))
        if letter == "i":
            fields.insert(at, new)
        elif letter == "h":
            fields.append(new)
        else:
            same = [n for n, f in enumerate(fields) if f[0].lower() == name.lower()]
            if at > len(same):
                continue
            fields[same[at - 1]:same[at - 1] + 1] = [new] if value else []
    return b"".join(n + b":" + v + b"\r\n" for n, v in fields) + (b"\r\n" if blank else b"") + body
