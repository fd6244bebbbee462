"""A DNS server on loopback for TXT records, over UDP and TCP, that can also be in trouble.

`zone` maps a name in lower case to its answer: a text (one TXT record, in strings of at most 255 octets), a list of
texts (as many records), a Cname (the name of another answer), or one of the words SERVFAIL, NXDOMAIN, NODATA, and
SILENT for no answer at all. Names that are not in it do not exist. The zone may be changed while the server runs;
`asked` counts the questions. A server that `validates` says of every answer that DNSSEC has signed it, to who asks for
that (RFC 6840, section 5.8). `ttl` is that of the records.
"""
import collections, socketserver, struct, threading

from . import free_port

TXT, CNAME, OPT = 16, 5, 41
SERVFAIL, NXDOMAIN, NODATA, SILENT = "SERVFAIL", "NXDOMAIN", "NODATA", "SILENT"


Cname = collections.namedtuple("Cname", "target")


class Server:
    def __init__(self, zone=None, validates=False, ttl=60):
        self.zone, self.asked = dict(zone or {}), collections.Counter()
        self.validates, self.ttl = validates, ttl
        self.port = free_port()
        server = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self):
                answer = server.answer(self.request[0], truncate=True)
                if answer:
                    self.request[1].sendto(answer, self.client_address)

        class Tcp(socketserver.StreamRequestHandler):
            def handle(self):
                while len(size := self.rfile.read(2)) == 2:
                    answer = server.answer(self.rfile.read(struct.unpack(">H", size)[0]), truncate=False)
                    if answer:
                        self.wfile.write(struct.pack(">H", len(answer)) + answer)

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self.servers = [socketserver.ThreadingUDPServer(("127.0.0.1", self.port), Udp),
                        socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Tcp)]
        for one in self.servers:
            one.daemon_threads = True
            threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        for one in self.servers:
            one.shutdown()
            one.server_close()

    def answer(self, query, truncate):
        """The answer to a query (RFC 1035, section 4), or None to stay silent. Over UDP an answer that is larger
        than the client takes is cut, so that it comes back over TCP."""
        ident, = struct.unpack(">H", query[:2])
        name, at = read_name(query, 12)
        kind, = struct.unpack(">H", query[at:at + 2])
        question, extra = query[12:at + 4], query[at + 4:]
        limit = 512
        if extra[:3] == b"\0\0\x29":
            limit = max(limit, struct.unpack(">H", extra[3:5])[0])
        self.asked[name] += 1
        entry, records, owner, count = self.zone.get(name, NXDOMAIN), b"", b"\xc0\x0c", 0
        if isinstance(entry, Cname):
            owner = b"".join(bytes([len(label)]) + label.encode() for label in entry.target.split(".")) + b"\0"
            records, count = record(b"\xc0\x0c", CNAME, self.ttl, owner), 1
            entry = self.zone.get(entry.target, NXDOMAIN)
        if entry == SILENT:
            return None
        code = {SERVFAIL: 2, NXDOMAIN: 3}.get(entry, 0) if isinstance(entry, str) else 0
        texts = []
        if kind == TXT and entry not in (SERVFAIL, NXDOMAIN, NODATA):
            texts = [entry] if isinstance(entry, str) else entry
        records += b"".join(record(owner, TXT, self.ttl, strings(text)) for text in texts)
        wants_ad = query[3] & 0x20 or extra[7:8] and extra[7] & 0x80
        flags = 0x8580 | code | (0x20 if self.validates and wants_ad else 0)
        if truncate and 12 + len(question) + len(records) > limit:
            return struct.pack(">6H", ident, flags | 0x0200, 1, 0, 0, 0) + question
        return struct.pack(">6H", ident, flags, 1, count + len(texts), 0, 0) + question + records


def record(owner, kind, ttl, data):
    return owner + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data


def strings(text):
    """A TXT record's data: strings of at most 255 octets, each behind its length."""
    octets = text.encode()
    pieces = [octets[i:i + 255] for i in range(0, len(octets), 255)] or [b""]
    return b"".join(bytes([len(piece)]) + piece for piece in pieces)


def read_name(packet, at):
    """A name without compression (a question has none), in lower case, and where it ends."""
    labels = []
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode("latin1").lower())
        at += 1 + packet[at]
    return ".".join(labels), at + 1
