"""Other people's DKIM, which must agree with ours: dkimpy in this process, Mail::DKIM in one process of Perl for all
messages, and OpenDKIM as a milter.

Each signer takes and gives whole messages as octets. Each verifier gives for a message a dictionary
{selector: "pass" | "fail" | other}, the result of each signature by its selector; `records` maps the names of key
records to their texts.
"""
import collections, os, pathlib, re, struct, subprocess, tempfile

import dkim

from . import milter, wire

HERE = pathlib.Path(__file__).resolve().parent


def dkimpy_sign(raw, domain, selector, key, canonicalization):
    """The message with dkimpy's signature on top."""
    rsa = key.algorithm == "rsa"
    header, body = canonicalization.encode().split(b"/")
    field = dkim.DKIM(raw).sign(
        selector.encode(), domain.encode(), key.pkcs1 if rsa else key.seed,
        signature_algorithm=b"rsa-sha256" if rsa else b"ed25519-sha256", canonicalize=(header, body))
    return field + raw


def dkimpy_verify(raw, records, only=None):
    """The results of all signatures, or of `only` those with these selectors."""
    # dkimpy asks for names with a final dot.
    def look_up(name, timeout=5):
        return records.get(name.decode().rstrip("."), "").encode() or None
    results = {}
    message = dkim.DKIM(raw)
    for index, selector in enumerate(selectors(raw)):
        if only and selector not in only:
            continue
        try:
            results[selector] = "pass" if message.verify(idx=index, dnsfunc=look_up) else "fail"
        except dkim.DKIMException as error:
            results[selector] = f"fail ({error})"
    return results


def selectors(raw):
    """The selectors of the message's signatures, from the top."""
    fields, _ = wire.split(raw)
    return [re.search(rb"[;\s]s\s*=\s*([^;\s]+)", b";" + value)[1].decode()
            for name, value in fields if name.lower() == b"dkim-signature"]


def mail_dkim_verify(raws, records):
    """The results of many messages, in order."""
    lines = perl("verify", raws, records=records)
    return [dict(pair.split("=", 1) for pair in line.decode("latin1").split("\t") if pair) for line in lines]


def mail_dkim_sign(jobs, domain, selector, key):
    """Signs many messages with RSA; jobs are (raw, canonicalization)."""
    fields = perl("sign", [part for raw, c in jobs for part in (c.encode(), raw)],
                  options=[domain, selector, str(key.pkcs1_path)])
    return [field + b"\r\n" + raw for field, (raw, _) in zip(fields, jobs, strict=True)]


def perl(what, parts, records=None, options=()):
    """Runs mail_dkim.pl: octet strings in, octet strings out, each behind its length (32 bits)."""
    with tempfile.NamedTemporaryFile("w", suffix=".records") as file:
        file.writelines(f"{name} {text}\n" for name, text in (records or {}).items())
        file.flush()
        done = subprocess.run(["/usr/bin/perl", HERE / "mail_dkim.pl", what, file.name, *options],
                              input=b"".join(struct.pack(">I", len(p)) + p for p in parts), stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError(f"mail_dkim.pl ended with {done.returncode}")
    out, at = [], 0
    while at < len(done.stdout):
        size, = struct.unpack_from(">I", done.stdout, at)
        out.append(done.stdout[at + 4:at + 4 + size])
        at += 4 + size
    return out


class OpenDkim(milter.Milter):
    """Debian's opendkim behind a UNIX socket, with the fields of its configuration as `options`."""

    def __init__(self, transport="unix", **options):
        super().__init__(transport, path="/usr/sbin/opendkim", **options)
        self.conversation = None

    @classmethod
    def verifier(cls, records):
        """One that finds its keys in `records`."""
        made = cls(Mode="v", AuthservID="judge.rig.test", InternalHosts="csl:192.0.2.99")
        file = made.home / "records"
        file.write_text("".join(f"{name} {text}\n" for name, text in records.items()))
        made.options["TestPublicKeys"] = file
        made.write()
        return made

    @classmethod
    def signer(cls, domain, selector, key, canonicalization):
        algorithm = "rsa-sha256" if key.algorithm == "rsa" else "ed25519-sha256"
        return cls(Mode="s", Domain=domain, Selector=selector, KeyFile=key.path, SignatureAlgorithm=algorithm,
                   Canonicalization=canonicalization, InternalHosts="127.0.0.1")

    def pass_through(self, raw):
        """The final answer's letter, and the message as the daemon lets it go on."""
        if not self.conversation:
            self.conversation = wire.Conversation(self.address)
            self.conversation.negotiate()
            self.conversation.connect()
        return self.conversation.message(raw)

    def sign(self, raw):
        answer, signed = self.pass_through(raw)
        if not signed.startswith(b"DKIM-Signature:"):
            raise RuntimeError(f"opendkim answered {answer!r} and did not sign")
        return signed

    def verify(self, raw):
        answer, judged = self.pass_through(raw)
        return verdicts(judged, "judge.rig.test", by="header.s") or {s: f"no result ({answer})" for s in selectors(raw)}

    def stop(self, seconds=15):
        if self.conversation:
            self.conversation.close()
        return super().stop(seconds)


Result = collections.namedtuple("Result", "word text properties")


def results(raw, authserv_id):
    """The dkim results in the Authentication-Results fields of this authserv-id (RFC 8601, section 2.2)."""
    found = []
    for name, value in wire.split(raw)[0]:
        parts = [re.sub(r"\s+", " ", p).strip() for p in split_at_semicolons(value.decode("latin1"))]
        if name.lower() == b"authentication-results" and parts[0] == authserv_id:
            for part in parts[1:]:
                if match := re.match(r"dkim ?= ?(\w+)", part):
                    found.append(Result(match[1], part, dict(re.findall(r"(header\.\w+)=(\S+)", part))))
    return found


def split_at_semicolons(text):
    """The parts of a field's value between semicolons that are in no comment and no quoted string."""
    parts, depth, quoted = [""], 0, False
    for piece in re.findall(r"\\.|.", text, re.DOTALL):
        if piece == '"' and not depth:
            quoted = not quoted
        elif piece in "()" and not quoted:
            depth += 1 if piece == "(" else -1
        if piece == ";" and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def verdicts(raw, authserv_id, by):
    """The result words by one of their properties."""
    return {r.properties.get(by): r.word for r in results(raw, authserv_id)}


def failures(raw, records):
    """What dkimpy and Mail::DKIM find wrong with a message whose signatures all should pass, as lines of text."""
    wrong = []
    if not selectors(raw):
        wrong.append("there is no DKIM-Signature")
    for selector, word in dkimpy_verify(raw, records).items():
        if word != "pass":
            wrong.append(f"dkimpy, s={selector}: {word}")
    for selector, word in mail_dkim_verify([raw], records)[0].items():
        # Mail::DKIM knows no Ed25519 before 1.20230630.
        if word != "pass" and "ed25519" not in records.get(key_name(raw, selector), ""):
            wrong.append(f"Mail::DKIM, s={selector}: {word}")
    return wrong


def key_name(raw, selector):
    """Where the key of the signature with this selector is."""
    for name, value in wire.split(raw)[0]:
        if name.lower() == b"dkim-signature":
            tags = dict(re.findall(r"(?:^|;)\s*(\w+)\s*=\s*([^;]*)", value.decode("latin1")))
            if tags.get("s", "").strip() == selector:
                return f"{selector}._domainkey.{tags['d'].strip()}"
    return ""
