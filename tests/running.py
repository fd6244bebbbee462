#!/usr/bin/python3 -B
"""The daemon as a process: start and stop, reload under traffic, signals in the middle of a message, rude clients,
every version of the milter protocol.

Most tests speak the protocol themselves (rig/wire.py); those that count lost messages go through Postfix.
"""
import os, pwd, re, signal, socket, struct, subprocess, threading, time

import rig
from rig import dns, hop, keys, messages, milter, outside, postfix, smtp, wire


def setUpModule():
    global home, rsa, other, records
    home = rig.folder("running")
    rsa, other = keys.Key(home, "rsa"), keys.Key(home, "other")
    records = {"rsa._domainkey.example.com": rsa.record, "other._domainkey.example.com": other.record}


def signer(transport="unix", **options):
    return milter.Milter(transport, **{
        "Mode": "sv", "Canonicalization": "relaxed/simple", "Domain": "example.com", "Selector": "rsa",
        "KeyFile": rsa.path, "InternalHosts": "127.0.0.1", "AuthservID": "mx.rig.test", **options})


def session(daemon, **negotiate):
    """A conversation up to the point where a message may begin."""
    conversation = wire.Conversation(daemon.address)
    conversation.negotiate(**negotiate)
    conversation.connect()
    return conversation


class TestCase(rig.TestCase):
    def works(self, daemon, **negotiate):
        """A message in a new session is signed rightly."""
        with session(daemon, **negotiate) as conversation:
            self.signs(conversation)
            conversation.quit()

    def signs(self, conversation, raw=None, **rest):
        answer, got = conversation.message(raw or messages.plain(), **rest)
        self.assertIn(answer, "ac")
        self.assertEqual(outside.dkimpy_verify(got, records), {"rsa": "pass"})
        return got

    def ended(self, daemon, seconds=10):
        """Waits for the daemon's end, and says how it ended."""
        code = daemon.process.wait(seconds)
        self.assertEqual(code, 0, daemon.log())


class Protocol(TestCase):
    """What Postfix and Sendmail of any age may send."""

    @classmethod
    def setUpClass(cls):
        cls.daemons = {"unix": signer().start(), "inet": signer("inet").start()}

    @classmethod
    def tearDownClass(cls):
        for daemon in cls.daemons.values():
            daemon.stop()

    @rig.cases({f"{transport} {version} {actions:x} {steps:x}": (transport, version, actions, steps)
                for transport in ("unix", "inet")
                for version, actions, steps in [(2, 0x3F, 0x7F), (3, 0x3F, 0x17F), (4, 0x3F, 0x37F),
                                                (6, 0x1FF, 0x1FFFFF), (6, 0x1FF, 0x0FFFFF), (6, 0x1F, 0x3F)]})
    def test_every_offer_is_met(self, case):
        """`negotiate` checks that nothing is asked for that was not offered."""
        transport, version, actions, steps = case
        self.works(self.daemons[transport], version=version, actions=actions, steps=steps)

    def test_an_offer_beyond_version_6_is_answered_with_6(self):
        with wire.Conversation(self.daemons["unix"].address) as conversation:
            self.assertEqual(conversation.negotiate(version=17)[0], 6)

    @rig.cases({str(chunk): chunk for chunk in (1, 2, 3, 7, 64, 1023)})
    def test_a_body_may_come_in_chunks_of_any_size(self, chunk):
        for raw in (messages.plain(), messages.FOLDED, messages.plain(body="\n\n \n\n")):
            with session(self.daemons["unix"]) as conversation:
                self.signs(conversation, raw, chunk=chunk)

    def test_leading_space_is_kept_exactly(self):
        """`Subject:x` and `Subject:  x` differ under simple header canonicalization."""
        with signer(Canonicalization="simple/simple") as daemon, session(daemon) as conversation:
            for space in (b"", b" ", b"  ", b"\t", b"\r\n "):
                got = self.signs(conversation, messages.plain().replace(b"Subject: ", b"Subject:" + space))
                self.assertTrue(got.startswith(b"DKIM-Signature: v=1;"), got[:40])

    @rig.cases({"unknown": None, "ipv6": "2001:db8::7", "ipv6 of Sendmail": "IPv6:2001:db8::7",
                "the word unknown": "unknown"})
    def test_clients_of_any_family_are_taken(self, address):
        with wire.Conversation(self.daemons["unix"].address) as conversation:
            conversation.negotiate()
            conversation.connect(address=address)
            answer, got = conversation.message(messages.plain())
            self.assertIn(answer, "ac")
            # A client without a family may be a program on this host (sendmail -bs), and be signed as one.
            if address:
                self.assertEqual(outside.selectors(got), [], "none of these clients is ours")

    def test_a_hundred_messages_on_one_connection(self):
        with session(self.daemons["unix"]) as conversation:
            for n in range(100):
                self.signs(conversation, messages.plain(subject=f"Number {n}", body=f"{n}\n" * (n % 7)))

    def test_an_aborted_message_leaves_nothing_behind(self):
        with session(self.daemons["unix"]) as conversation:
            for stop_after in range(5):
                fields, body = wire.split(messages.plain(subject="Given up", author="eve@elsewhere.example"))
                conversation.envelope()
                if stop_after > 0:
                    for field in fields[:stop_after * 2]:
                        conversation.step("L", conversation.field(field), conversation.macros)
                if stop_after > 3:
                    conversation.step("N")
                    conversation.body(body)
                conversation.abort()
                conversation.abort()
                self.signs(conversation)

    def test_a_new_connection_may_begin_on_the_old_one(self):
        """QUIT_NC (`K`) of version 6."""
        with session(self.daemons["unix"]) as conversation:
            self.signs(conversation)
            conversation.socket.sendall(wire.packet("K"))
            conversation.connect(address="192.0.2.9")
            self.assertEqual(outside.selectors(conversation.message(messages.plain())[1]), [])

    def test_commands_out_of_order_do_not_end_the_connection(self):
        """The session of an MTA would be lost with it. Each is given an answer, where answers are due."""
        with session(self.daemons["unix"], steps=0x1FFFFF & ~sum(wire.NO_REPLY.values())) as conversation:
            for letter, data in [("B", b"body\r\n"), ("N", b""), ("L", b"Subject\0 x\0"), ("T", b""),
                                 ("R", b"<bob@dest.test>\0"), ("E", b"")]:
                if not conversation.steps & wire.NO.get(letter, 0):
                    conversation.socket.sendall(wire.packet(letter, data))
                    self.assertIn(conversation.reply()[0], "catry")
            conversation.abort()
            self.signs(conversation)


class Rudeness(TestCase):
    OFFER = wire.packet("O", struct.pack(">3I", 6, wire.ALL_ACTIONS, 0x3F))
    JUNK = {
        "connect and close": b"",
        "half a length": b"\0\0",
        "length 0": b"\0\0\0\0",
        "length 4294967295": b"\xff\xff\xff\xff",
        "HTTP": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "SMTP": b"EHLO probe.example\r\n",
        "TLS": bytes.fromhex("16030100c8010000c40303"),
        "negotiation and close": OFFER,
        "negotiation of version 1": wire.packet("O", b"\0\0\0\1\0\0\0\x0f\0\0\0\x3f"),
        "negotiation of 3 octets": wire.packet("O", b"\0\0\6"),
        "body first": wire.packet("B", b"x" * 70000),
        "header without NUL": OFFER + wire.packet("L", b"Subject x"),
        "macros without an end": OFFER + wire.packet("D", b"Ci\0x"),
        "unknown command": OFFER + wire.packet("Z", b"?"),
        "quit at once": wire.packet("Q"),
        "quit, new connection": wire.packet("K"),
    }

    @rig.cases({"unix": "unix", "inet": "inet"})
    def test_junk_does_no_harm(self, transport):
        with signer(transport) as daemon:
            self.works(daemon)
            descriptors, memory = daemon.descriptors(), daemon.peak_memory()

            def worker(part):
                for junk in part:
                    try:
                        with wire.Conversation(daemon.address) as conversation:
                            conversation.socket.sendall(junk)
                    except OSError:
                        pass  # it hung up first, which is its right

            jobs = list(self.JUNK.values()) * 100
            threads = [threading.Thread(target=worker, args=(jobs[n::50],), daemon=True) for n in range(50)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertTrue(daemon.alive(), daemon.log())
            began = time.monotonic()
            self.works(daemon)
            self.assertLess(time.monotonic() - began, 1)
            rig.until(5, lambda: daemon.descriptors() <= descriptors,
                      lambda: f"{descriptors} open descriptors, not {daemon.descriptors()}")
            self.assertLess(daemon.peak_memory() - memory, 30 << 20, "no length word is believed")

    def test_idle_connections_hold_nothing_up(self):
        with signer() as daemon:
            idle = [session(daemon) for _ in range(300)]
            began = time.monotonic()
            self.works(daemon)
            self.assertLess(time.monotonic() - began, 2)
            for conversation in idle[::50]:
                self.signs(conversation)
            for conversation in idle:
                conversation.close()

    def test_a_header_without_end_is_bounded(self):
        """It is answered, with whatever the policy is, and the connection lives."""
        with signer() as daemon, session(daemon) as conversation:
            memory = daemon.peak_memory()
            raw = b"".join(b"X-%d: %s\r\n" % (n, b"x" * 60000) for n in range(400)) + messages.plain()
            self.assertIn(conversation.message(raw)[0], "acty")
            self.assertLess(daemon.peak_memory() - memory, 16 << 20)
            self.signs(conversation)


class Stopping(TestCase):
    def test_keys_are_kept_out_of_core_files(self):
        with signer() as daemon:
            with open(f"/proc/{daemon.process.pid}/limits") as file:
                limits = file.read()
        self.assertRegex(limits, r"Max core file size +0 +0 ")

    def test_sigterm_ends_an_idle_daemon_at_once(self):
        with signer() as daemon:
            began = time.monotonic()
            daemon.signal("SIGTERM")
            self.ended(daemon)
            self.assertLess(time.monotonic() - began, 2)
            self.assertFalse(daemon.socket.exists(), "its socket is gone")

    def test_sigterm_lets_a_message_be_finished(self):
        with signer() as daemon:
            with session(daemon) as conversation:
                fields, body = wire.split(messages.of_size(1 << 20))
                conversation.envelope()
                conversation.header(fields)
                conversation.body(body[:500000])
                daemon.signal("SIGTERM")
                time.sleep(0.5)
                conversation.body(body[500000:])
                edits, final = conversation.end()
                self.assertIn(final[0], "ac")
                got = wire.applied(edits, fields, body)
                self.assertEqual(outside.dkimpy_verify(got, records), {"rsa": "pass"})
                conversation.abort()
                conversation.quit()
            self.ended(daemon)

    @rig.cases({"unix": "unix", "inet": "inet"})
    def test_sigterm_costs_no_message_in_postfix(self, transport):
        next_hop = hop.Hop()
        with signer(transport) as daemon, postfix.Postfix({"in": daemon.address}, next_hop.port) as mta:
            with smtp.Client(mta.ports["in"]) as client:
                client.envelope("alice@example.com", ["bob@dest.test"])
                raw = messages.of_size(1 << 20)
                client.socket.sendall(smtp.stuffed(raw[:600000].rpartition(b"\r\n")[0]))
                time.sleep(0.3)
                daemon.signal("SIGTERM")
                time.sleep(0.5)
                client.socket.sendall(b"The end.\r\n.\r\n")
                code, text = client.reply()
                self.assertEqual(code, 250, text)
                client.quit()
            self.assertEqual(outside.dkimpy_verify(next_hop.wait("bob@dest.test").data, records), {"rsa": "pass"})
            self.ended(daemon)
        next_hop.close()

    def test_sigterm_ends_it_in_spite_of_a_client_that_stays(self):
        """An MTA keeps its connection as long as its client idles; the deadline ends that."""
        with signer() as daemon, session(daemon):
            daemon.signal("SIGTERM")
            self.ended(daemon, 60)

    def test_a_stale_socket_is_taken_over(self):
        daemon = signer()
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(daemon.socket))
        with daemon:
            rig.until(5, lambda: self.connects(daemon), "the new daemon to listen")
            self.works(daemon)

    @staticmethod
    def connects(daemon):
        try:
            wire.Conversation(daemon.address).close()
            return True
        except OSError:
            return False


class Reloading(TestCase):
    def test_reload_under_traffic_loses_nothing(self):
        """Ten times SIGHUP while four clients send, the last time with another key."""
        table = home / "KeyTable"
        table.write_text(f"key example.com:rsa:{rsa.path}\n")
        signing = home / "SigningTable"
        signing.write_text("*@example.com key\n")
        next_hop = hop.Hop()
        daemon = milter.Milter(Mode="sv", KeyTable=f"file:{table}", SigningTable=f"refile:{signing}",
                               InternalHosts="127.0.0.1", Canonicalization="relaxed/relaxed")
        with daemon, postfix.Postfix({"in": daemon.address}, next_hop.port) as mta:
            answers, go_on = [], threading.Event()

            def traffic(rcpt):
                while not go_on.is_set():
                    with smtp.Client(mta.ports["in"]) as client:
                        for _ in range(5):
                            answers.append((rcpt, *client.send(messages.plain(), "alice@example.com", rcpt)))

            threads = [threading.Thread(target=traffic, args=(f"many{n}@dest.test",), daemon=True) for n in range(4)]
            for thread in threads:
                thread.start()
            for n in range(10):
                time.sleep(0.2)
                if n == 9:
                    table.write_text(f"key example.com:other:{other.path}\n")
                daemon.signal("SIGHUP")
            time.sleep(0.5)
            go_on.set()
            for thread in threads:
                thread.join()
            self.assertEqual([a for a in answers if a[1] != 250], [])
            self.assertGreater(len(answers), 40)
            for n in range(4):
                rcpt = f"many{n}@dest.test"
                for message in next_hop.wait(rcpt, 30, count=sum(a[0] == rcpt for a in answers)):
                    self.assertIn(outside.dkimpy_verify(message.data, records), [{"rsa": "pass"}, {"other": "pass"}])
            smtp.send(mta.ports["in"], messages.plain(), "alice@example.com", "last@dest.test")
            self.assertEqual(outside.selectors(next_hop.wait("last@dest.test").data), ["other"])
        next_hop.close()

    @rig.cases({name: name for name in ("SIGHUP", "SIGUSR1")})
    def test_a_signal_reloads_the_configuration(self, name):
        with signer() as daemon, session(daemon) as before:
            daemon.options |= {"Selector": "other", "KeyFile": other.path}
            daemon.write()
            daemon.signal(name)
            rig.until(5, lambda: self.selector(daemon) == "other", "the new configuration")
            self.assertIn(before.message(messages.plain())[0], "ac", "the old connection lives on")

    @rig.cases({"an unknown option": {"Selectro": "other"}, "a key that is not there": {"KeyFile": "/nowhere.pem"}})
    def test_a_bad_configuration_is_not_taken(self, change):
        with signer() as daemon:
            daemon.options |= change
            daemon.write()
            daemon.signal("SIGHUP")
            daemon.logged("Selectro" if "Selectro" in change else "/nowhere.pem")
            self.works(daemon)
            self.assertTrue(daemon.alive())

    @staticmethod
    def selector(daemon):
        with session(daemon) as conversation:
            return outside.selectors(conversation.message(messages.plain())[1])[0]

    def test_systemd_is_told(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.settimeout(10)
            notify.bind(str(home / "notify"))
            daemon = signer()
            daemon.environment["NOTIFY_SOCKET"] = str(home / "notify")
            with daemon:
                self.assertIn(b"READY=1", self.told(notify, b"READY=1"))
                daemon.signal("SIGHUP")
                self.told(notify, b"RELOADING=1")
                self.told(notify, b"READY=1")
                daemon.signal("SIGTERM")
                self.told(notify, b"STOPPING=1")
                self.ended(daemon)

    @staticmethod
    def told(notify, word):
        """Reads notifications until one has this line."""
        while word not in (got := notify.recv(4096)).splitlines():
            pass
        return got


class KeyRecords(rig.TestCase):
    """CheckKeyRecords: mail never waits for it, and what the records say counts as soon as it is known."""

    def setUp(self):
        home = rig.folder("key-records")
        right, other = (keys.Key(home, name) for name in ("right", "other"))
        entries = {"good.example": [("new", right)], "wrong.example": [("new", right)], "none.example": [("new", right)],
                   "silent.example": [("new", right)], "older.example": [("new", right), ("old", other)]}
        self.names = list(entries)
        (home / "KeyTable").write_text("".join(
            f"{s}-{d} {d}:{s}:{key.path}\n" for d, keys_of in entries.items() for s, key in keys_of))
        (home / "SigningTable").write_text("".join(
            f"*@{d} {s}-{d}\n" for d, keys_of in entries.items() for s, _ in keys_of))
        self.dns = dns.Server({"new._domainkey.good.example": right.record, "new._domainkey.wrong.example": other.record,
                               "new._domainkey.silent.example": dns.SILENT, "old._domainkey.older.example": other.record})
        self.addCleanup(self.dns.close)
        self.options = {"Mode": "s", "KeyTable": f"file:{home}/KeyTable", "SigningTable": f"refile:{home}/SigningTable",
                        "Nameservers": f"127.0.0.1:{self.dns.port}", "DNSTimeout": "2", "InternalHosts": "127.0.0.1"}

    def signed_by(self, daemon):
        """The selectors that mail of each domain is signed with; None for mail that is deferred."""
        found = {}
        with session(daemon) as conversation:
            for name in self.names:
                raw = messages.plain(author=f"a@{name}")
                answer, got = conversation.message(raw, sender=f"a@{name}")
                found[name] = outside.selectors(got) if answer in "ac" else None
        return found

    def test_without_the_option_nothing_is_asked(self):
        with milter.Milter("inet", **self.options) as daemon:
            time.sleep(1)
            self.assertEqual(set(map(tuple, self.signed_by(daemon).values())), {("new",)})
        self.assertEqual(dict(self.dns.asked), {})

    def test_warn_says_it_once_and_signs(self):
        with milter.Milter("inet", CheckKeyRecords="warn", **self.options) as daemon:
            rig.until(10, lambda: daemon.log().count("_domainkey.") >= 3, daemon.log)
            self.assertEqual(set(map(tuple, self.signed_by(daemon).values())), {("new",)})
            log = daemon.log()
        for name, words in (("wrong", "another key"), ("none", "does not exist"), ("older", "does not exist")):
            lines = [line for line in log.splitlines() if f"new._domainkey.{name}.example" in line]
            self.assertEqual(len(lines), 1, log)
            self.assertIn(words, lines[0])
        self.assertNotIn("_domainkey.good", log)
        self.assertNotIn("_domainkey.silent", log)

    def test_hold_signs_with_what_is_published_only(self):
        with milter.Milter("inet", CheckKeyRecords="hold", **self.options) as daemon:
            rig.until(10, lambda: daemon.log().count("is not signed with until") >= 3, daemon.log)
            wanted = {"good.example": ["new"], "wrong.example": None, "none.example": None,
                      # A DNS that does not answer must not stop mail.
                      "silent.example": ["new"], "older.example": ["old"]}
            self.assertEqual(self.signed_by(daemon), wanted)
            daemon.signal("SIGHUP")
            rig.until(10, lambda: "reloaded" in daemon.log(), daemon.log)
            self.assertEqual(self.signed_by(daemon), wanted)
            # A record is not waited for by who reloads, and that its key signs again is told all the same.
            self.assertNotIn("signs again", daemon.log())
            self.dns.zone["new._domainkey.wrong.example"] = self.dns.zone["new._domainkey.good.example"]
            daemon.signal("SIGHUP")
            rig.until(10, lambda: "signs again" in daemon.log(), daemon.log)
            self.assertEqual(self.signed_by(daemon), wanted | {"wrong.example": ["new"]})
        told, = [line for line in daemon.log().splitlines() if "signs again" in line]
        self.assertIn("new._domainkey.wrong.example: the record is right now; the key signs again", told)

    def test_names_that_get_no_answer_do_not_keep_others_waiting(self):
        home = rig.folder("key-records")
        key = keys.Key(home, "key")
        # One after the other, these would take half a minute.
        silent = [f"silent{n:02}.example" for n in range(15)]
        (home / "KeyTable").write_text("".join(f"{d} {d}:new:{key.path}\n" for d in [*silent, "wrong.example"]))
        (home / "SigningTable").write_text("".join(f"*@{d} {d}\n" for d in [*silent, "wrong.example"]))
        self.dns.zone |= {f"new._domainkey.{d}": dns.SILENT for d in silent}
        options = self.options | {"KeyTable": f"file:{home}/KeyTable", "SigningTable": f"refile:{home}/SigningTable"}
        with milter.Milter("inet", CheckKeyRecords="hold", **options) as daemon:
            rig.until(5, lambda: "is not signed with until" in daemon.log(), daemon.log)
            self.assertIn("new._domainkey.wrong.example: the record has another key", daemon.log())


class Starting(TestCase):
    """The command line, and the daemon in the background."""

    def run_it(self, daemon, *arguments):
        return subprocess.run([daemon.path, "-x", daemon.configuration, *arguments], capture_output=True, text=True,
                              timeout=20)

    def test_check_says_yes_to_a_good_file(self):
        done = self.run_it(signer(), "-n")
        self.assertEqual(done.returncode, 0, done.stderr)

    @rig.cases({"a near miss": ({"Canonicalisation": "simple"}, "Canonicalization"),
                "a bad value": ({"Canonicalization": "strict"}, "strict"),
                "a missing key": ({"KeyFile": "/nowhere.pem"}, "/nowhere.pem"),
                "a missing table": ({"SigningTable": "refile:/nowhere", "KeyTable": "file:/nowhere"}, "/nowhere")})
    def test_check_names_the_place_and_the_fault(self, case):
        change, word = case
        daemon = signer(**change)
        done = self.run_it(daemon, "-n")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(word, done.stderr + done.stdout)
        line = 1 + list(daemon.options).index(next(iter(change)))
        self.assertIn(f"{daemon.configuration}:{line}", done.stderr + done.stdout)

    def test_it_does_not_start_with_a_bad_file(self):
        done = self.run_it(signer(Canonicalisation="simple"), "-f")
        self.assertNotEqual(done.returncode, 0)

    def test_set_overrides_the_file(self):
        daemon = signer()
        daemon.arguments = ["--set", "Canonicalization=simple/relaxed"]
        with daemon, session(daemon) as conversation:
            self.assertIn(b"c=simple/relaxed", self.signs(conversation))

    def test_p_overrides_the_socket(self):
        daemon = signer()
        daemon.socket = home / "another"
        daemon.address = f"unix:{daemon.socket}"
        daemon.arguments = ["-p", f"local:{daemon.socket}"]
        with daemon:
            self.works(daemon)

    def test_version_and_help(self):
        path = rig.program("dkim-milter")
        self.assertRegex(subprocess.run([path, "-V"], capture_output=True, text=True).stdout, r"\d+\.\d+\.\d+")
        self.assertIn("-x", subprocess.run([path, "--help"], capture_output=True, text=True).stdout)

    def test_in_the_background_it_is_ready_when_the_command_returns(self):
        """PID file written, socket there with the mode of UMask, user given up, keys read before."""
        run = home / "run"
        run.mkdir()
        os.chown(run, *(pwd.getpwnam("nobody")[n] for n in (2, 3)))
        daemon = signer(Background="yes", PidFile=f"{run}/pid", UserID="nobody", UMask="007",
                        Socket=f"local:{run}/socket")
        daemon.socket, daemon.address = run / "socket", f"unix:{run}/socket"
        done = subprocess.run([daemon.path, "-x", daemon.configuration], timeout=20, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0)
        pid = int((run / "pid").read_text())
        try:
            status = open(f"/proc/{pid}/status").read()
            for kind in ("Uid", "Gid"):
                ids = re.search(rf"{kind}:\s+(.*)", status)[1].split()
                self.assertNotIn("0", ids, "root is given up, saved ids too")
            self.assertEqual(daemon.socket.stat().st_mode & 0o777, 0o770)
            self.works(daemon)
        finally:
            os.kill(pid, signal.SIGTERM)
        rig.until(10, lambda: not postfix.running(pid), "it to end")
        self.assertFalse((run / "pid").exists(), "the PID file is gone")


if __name__ == "__main__":
    rig.main()
