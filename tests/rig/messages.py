"""Messages of our own making: those that every way of signing and verifying must carry, and a seeded generator of
odd ones.

All are octets with CRLF line ends, as SMTP carries them.
"""
import random

DOMAIN = "example.com"


def crlf(text):
    return text.replace("\n", "\r\n").encode()


def plain(subject="Lunch on Thursday", body="Shall we say noon, at the usual place?\n\nAlice\n", author=None):
    """An ordinary message."""
    return crlf(f"""\
From: {author or "Alice Archer <alice@example.com>"}
To: Bob Baker <bob@dest.test>
Subject: {subject}
Date: Thu, 04 Jun 2026 09:30:00 +0200
Message-ID: <20260604.0930@example.com>
MIME-Version: 1.0
Content-Type: text/plain; charset=us-ascii

{body}""")


def of_size(octets):
    """An ordinary message with a body of about so many octets, in lines of 76 and CRLF as base64 has them."""
    line = b"Vm9uIGRlciBTdGlybmUgaGVpw58sIHJpbm50IGRlciBTY2h3ZWnDnywgc29sbCBkYXMgV2VyayBk\r\n"
    return plain(subject="A large attachment", body="") + line * (octets // len(line))


# A field that is folded in the middle of white space, one that is empty, one whose value begins on the next line,
# runs of blanks, tabs, blanks at the ends of lines, and blank lines at the end of the body.
FOLDED = crlf("""\
From: "Archer,\n Alice"   <alice@example.com>
To:bob@dest.test
Cc:
\t"Carol Chandler"\t<carol@dest.test> ,
  dave@dest.test
Subject:    Re:  [list]   a   subject \t with   blanks  \n\t folded   twice \n  over
Date: Thu, 04 Jun 2026 09:31:00 +0200
Message-ID:
 <20260604.0931.folded@example.com>
In-Reply-To: <1@dest.test>
References: <1@dest.test>
\t<2@dest.test>
 <3@dest.test>
X-Empty:
X-Odd:  =?us-ascii?q?a_b?=  ;  p = "q  r"
Keywords: one,  two

First  line\twith\t\tblanks \t
   a line that begins with blanks
. a line that begins with a dot
.
..
From a line that begins as an mbox separator does
last line \t \n\n   \n\n\n""")

EIGHT_BIT = crlf("""\
From: Alice Archer <alice@example.com>
To: bob@dest.test
Subject: Stra\u00dfe
Date: Thu, 04 Jun 2026 09:32:00 +0200
Message-ID: <20260604.0932.8bit@example.com>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 8bit

Die Stra\u00dfe ist \u00fcber den Fl\u00fcssen.
""").replace("Subject: Stra\u00dfe".encode(), b"Subject: Strasse") + b"and octets of no charset: \x80\xff\xa0 \xa0\r\n"

INTERNATIONAL = crlf("""\
From: J\u00f6rg B\u00fccher <j\u00f6rg@b\u00fccher.example>
To: bob@dest.test
Subject: Gr\u00fc\u00dfe aus K\u00f6ln
Date: Thu, 04 Jun 2026 09:33:00 +0200
Message-ID: <20260604.0933.eai@xn--bcher-kva.example>
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 8bit

Sch\u00f6ne Gr\u00fc\u00dfe!
""")

BOUNCE = crlf("""\
From: Mail Delivery System <MAILER-DAEMON@example.com>
To: someone@dest.test
Subject: Undelivered Mail Returned to Sender
Date: Thu, 04 Jun 2026 09:34:00 +0200
Message-ID: <20260604.0934.bounce@example.com>
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: text/plain

The user is unknown.
""")

# For signing: name to (message, envelope sender).
TO_SIGN = {
    "plain": (plain(), "alice@example.com"),
    "folded": (FOLDED, "alice@example.com"),
    "8bit": (EIGHT_BIT, "alice@example.com"),
    "no_body": (plain(body=""), "alice@example.com"),
    "no_blank_line": (plain(body="").removesuffix(b"\r\n"), "alice@example.com"),
    "blank_lines_only": (plain(body="\n\n\n\n"), "alice@example.com"),
    "white_space_only": (plain(body=" \t \n  \n\t\n"), "alice@example.com"),
    "one_octet": (plain(body="x\n"), "alice@example.com"),
    "long_line": (plain(body="y" * 990 + "\n"), "alice@example.com"),
    "null_sender": (BOUNCE, ""),
    "large": (of_size(25 << 20), "alice@example.com"),
}


def odd(seed):
    """The message that a seed stands for: any of the shapes that canonicalization must get right, with one From and
    one Date. Its lines are within 998 octets and end in CRLF; some messages lack the last one, or the blank line."""
    r = random.Random(seed)
    fields = [("From", odd_address(r)), ("Date", " Thu, 04 Jun 2026 09:%02d:00 +0200" % r.randrange(60))]
    for name in r.sample(["To", "Cc", "Subject", "Message-ID", "Reply-To", "MIME-Version", "Content-Type", "X-One",
                          "x-two", "LIST-ID", "Received", "Received", "Comments", "References"], r.randrange(1, 10)):
        fields.append((odd_case(r, name), odd_value(r)))
    r.shuffle(fields)
    header = b"".join(n.encode() + b":" + (v if isinstance(v, bytes) else v.encode()) + b"\r\n" for n, v in fields)
    body = odd_body(r)
    if not body and r.random() < 0.3:
        return header
    return header + b"\r\n" + body


def odd_case(r, name):
    return r.choice([name, name, name.lower(), name.upper(), "".join(r.choice([c.lower(), c.upper()]) for c in name)])


def odd_address(r):
    phrase = r.choice(["", " Alice", ' "Archer,  Alice"', "\r\n\tAlice  \t Archer", ' "a \\" b"', " (a comment)"])
    addresses = ["<alice@example.com>", "<ALICE@Example.COM>", "\r\n <alice@example.com>"]
    # After a display name the address stands in brackets (RFC 5322 section 3.4).
    address = r.choice(addresses if phrase not in ("", " (a comment)") else [*addresses, "alice@example.com"])
    return f"{phrase}{r.choice([' ', '  ', chr(9)])}{address}{r.choice(['', '', ' ', chr(9) + ' '])}"


def odd_value(r):
    """A field's value: words, blanks and folds, at times empty, long, or with octets beyond ASCII."""
    if r.random() < 0.05:
        return r.choice([b"", b" ", b"\t", b"\r\n x", b" \r\n\tx"])
    octets = bytearray(r.choice([b" ", b" ", b"", b"\t", b"  "]))
    length, line, eight_bit = r.choice([5, 20, 60, 300, 3000]), 0, r.random() < 0.2
    while len(octets) < length:
        word = odd_word(r, 24, eight_bit)
        octets += word
        line += len(word)
        if line > 800 or r.random() < 0.15:
            octets += r.choice([b"\r\n ", b"\r\n\t", b" \r\n ", b"\t\r\n  \t", b"\r\n   "])
            line = 0
        else:
            blank = r.choice([b" ", b" ", b"  ", b"\t", b" \t "])
            octets += blank
            line += len(blank)
    octets += odd_word(r, 8, eight_bit) + r.choice([b"", b"", b" ", b"\t", b"  "])
    return bytes(octets)


def odd_word(r, longest, eight_bit):
    octets = bytes(r.choice(b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCXYZ[\\]^_`abcxyz{|}~")
                   for _ in range(r.randrange(1, longest)))
    if eight_bit and r.random() < 0.5:
        octets += r.choice(["\u00fc", "\u65e5\u672c", "\U0001f4e7"]).encode()
    return octets


def odd_body(r):
    kind = r.random()
    if kind < 0.1:
        return b""
    if kind < 0.2:
        return r.choice([b"\r\n", b"\r\n\r\n\r\n", b" \r\n", b"\t \r\n\r\n", b" ", b"x", b".\r\n", b"\r\n\r\nx"])
    size = r.choice([30, 200, 1000, 5000, 70000]) if kind < 0.98 else 600000
    out, length, eight_bit = [], 0, r.random() < 0.3
    while length < size:
        line = odd_line(r, eight_bit)
        # Repeated, or the generator would need longer for a large body than all the verifiers together.
        line *= max(1, size // 20000)
        out.append(line)
        length += len(line)
    out.append(r.choice([b"", b"", b"", b"\r\n", b"\r\n" * 5, b" \r\n\t\r\n", b"no final line end", b"a  b \t"]))
    return b"".join(out)


def odd_line(r, eight_bit):
    if r.random() < 0.15:
        return r.choice([b"\r\n", b"\r\n\r\n", b" \r\n", b"\t\t\r\n", b".\r\n", b"..\r\n", b"From me\r\n"])
    words = [odd_word(r, r.choice([8, 8, 8, 150]), False) for _ in range(r.randrange(1, 6))]
    if eight_bit:
        words.append(bytes(r.randrange(128, 256) for _ in range(r.randrange(1, 10))))
    blanks = [b" ", b" ", b"  ", b"\t", b" \t", b"    "]
    line = b"".join(word + r.choice(blanks) for word in words)
    return r.choice([b"", b"", b"", b" ", b"\t"]) + (line if r.random() < 0.3 else line.rstrip(b" \t")) + b"\r\n"
