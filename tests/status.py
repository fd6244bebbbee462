#!/usr/bin/python3 -B
"""The status socket of the daemon in each state that it must tell from the others, and `dkim-milter --status`.

Requests are made by Python's http.client, metrics are read by the parser of Prometheus' own client library, and what a
probe may not do (ask the DNS, call a token, connect as an MTA) is counted where it would arrive.
"""
import concurrent.futures, contextlib, fcntl, http.client, os, re, shutil, signal, socket, statistics, subprocess, threading, time

from prometheus_client.parser import text_string_to_metric_families

import rig
from rig import dns, keys, messages, milter, outside, token, wire

PROBE = 5  # ms that a probe may take
SILENCE = 10  # seconds after which the event loop counts as stuck
TRIED = 20  # seconds between two trials of a token


def setUpModule():
    global home, first, second, pin
    home = rig.folder("status")
    first, second = keys.Key(home, "first"), keys.Key(home, "second")
    pin = token.pin_file(home)


class Daemon(milter.Milter):
    """With a status socket, and two keys by tables: that of example.com, and that of two.example."""

    def __init__(self, transport="unix", keys=None, **options):
        super().__init__(transport)
        self.status = rig.free_port()
        self.options |= {
            "Mode": "sv", "InternalHosts": "127.0.0.1", "AuthservID": "mx.rig.test", "DrainTimeout": 3,
            "StatusSocket": f"inet:{self.status}@127.0.0.1", "KeyTable": f"file:{self.home}/KeyTable",
            "SigningTable": f"refile:{self.home}/SigningTable", **options}
        one, two = keys or (shutil.copy(first.path, self.home / "one"), shutil.copy(second.path, self.home / "two"))
        (self.home / "KeyTable").write_text(f"k1 example.com:r:{one}\nk2 two.example:r:{two}\n")
        (self.home / "SigningTable").write_text("*@example.com k1\n*@two.example k2\n")
        self.write()

    def listens(self):
        """On both sockets: they are opened one after the other."""
        is_told = self.options.get("StatusSocket") == f"inet:{self.status}@127.0.0.1"
        return super().listens() and (not is_told or rig.answers(self.status))

    def get(self, path, method="GET", timeout=5):
        """The code and the text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.status, timeout=timeout)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            self.headers = dict(answer.getheaders())
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self, question, *arguments):
        return subprocess.run([self.path, "--status", question, "-x", self.configuration, *arguments],
                              capture_output=True, text=True, timeout=20, env={**os.environ, **self.environment})

    def metrics(self):
        """Values by their names and labels: {(name, label value...): value}."""
        code, text = self.get("/metrics")
        assert code == 200, text
        return {(sample.name.removeprefix("dkim_milter_"), *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text) for sample in family.samples}


def session(daemon, **connect):
    conversation = wire.Conversation(daemon.address, 30)
    conversation.negotiate()
    conversation.connect(**connect)
    return conversation


def sent(daemon, author="alice@example.com", raw=None, **connect):
    """The answer's letter, and the message as it goes on."""
    with session(daemon, **connect) as conversation:
        return conversation.message(raw or messages.plain(author=author))


class TestCase(rig.TestCase):
    def is_well(self, daemon, keys="2 keys"):
        self.assertEqual(daemon.get("/live"), (200, "ok\n"))
        self.assertEqual(daemon.get("/ready"), (200, f"ready: {keys}\n"))
        done = daemon.ask("ready")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, f"ready: {keys}\n", ""))

    def is_not_ready(self, daemon, *patterns, within=0):
        """Live and not ready, for reasons that match, which the command says as well."""
        def matches():
            return all(re.search(pattern, daemon.get("/ready")[1], re.M) for pattern in patterns)
        rig.until(within, matches, lambda: f"{patterns} in {daemon.get('/ready')[1]}\n{daemon.log()}")
        code, text = daemon.get("/ready")
        self.assertEqual(code, 503, text)
        self.assertRegex(text, "^not ready: ")
        self.assertEqual(daemon.get("/live"), (200, "ok\n"))
        done = daemon.ask("ready")
        self.assertEqual((done.returncode, done.stdout), (75, text), done.stderr)
        self.assertEqual(daemon.ask("live").returncode, 0)
        self.assertEqual(daemon.metrics()[("ready",)], 0)

    def is_degraded(self, daemon, *patterns, within=0):
        def matches():
            return all(re.search(pattern, daemon.get("/ready")[1], re.M) for pattern in patterns)
        rig.until(within, matches, lambda: f"{patterns} in {daemon.get('/ready')[1]}")
        code, text = daemon.get("/ready")
        self.assertEqual(code, 200, text)
        self.assertRegex(text, "^ready, degraded: ")
        self.assertEqual(daemon.get("/live"), (200, "ok\n"))
        self.assertEqual(daemon.ask("ready").returncode, 0)
        values = daemon.metrics()
        self.assertEqual((values[("ready",)], values[("degraded",)]), (1, 1))

    def is_quick(self, daemon, times=300):
        """Nine of ten probes within what one may take, from the connection to the end of the answer; the machine is shared,
        and stops everything for longer now and then."""
        took = []
        for n in range(times):
            began = time.perf_counter()
            daemon.get(("/ready", "/live", "/metrics")[n % 3])
            took.append((time.perf_counter() - began) * 1000)
        took.sort()
        p50, p90 = statistics.median(took), took[times * 9 // 10]
        print(f"probe: p50 {p50:.2f} ms, p90 {p90:.2f} ms, longest {took[-1]:.2f} ms ... ", end="", flush=True)
        self.assertLess(p90, PROBE)


class Keys(TestCase):
    def test_a_healthy_daemon_says_so(self):
        with Daemon() as daemon:
            self.is_well(daemon)
            self.assertEqual(daemon.headers["content-type"], "text/plain; charset=utf-8")
            self.assertEqual(daemon.get("/ready", "HEAD"), (200, ""))

    def test_a_key_that_is_missing_is_named_until_a_reload_finds_it(self):
        """Case 080: the daemon goes on without it, also when a reload is refused meanwhile."""
        with Daemon() as daemon:
            (daemon.home / "two").rename(daemon.home / "away")
            daemon.stop()
            daemon.start()
            reason = rf"^key: {daemon.home}/KeyTable:2: key \"k2\" in {daemon.home}/two: No such file or directory$"
            self.is_not_ready(daemon, "^not ready: 1 key; 1 cannot be used$", reason)
            self.assertEqual(outside.selectors(sent(daemon)[1]), ["r"], "the other key signs")
            daemon.options["Canonicalisation"] = "simple"
            daemon.write()
            daemon.signal("SIGHUP")
            self.is_not_ready(daemon, "the last reload was refused$", reason,
                              f"^reload: .*{daemon.configuration}:.*Canonicalisation", within=5)
            self.assertEqual(daemon.metrics()[("reloads_total", "refused")], 1)
            del daemon.options["Canonicalisation"]
            daemon.write()
            (daemon.home / "away").rename(daemon.home / "two")
            daemon.signal("SIGHUP")
            rig.until(5, lambda: daemon.get("/ready")[0] == 200, daemon.log)
            self.is_well(daemon)

    def test_a_reason_plays_with_no_terminal(self):
        """What asks may be curl, and what names a key may be somebody else's table."""
        with Daemon() as daemon:
            table = daemon.home / "KeyTable"
            table.write_text(table.read_text() + "k3 three.example:r:/no\x9b31m/\u202eyek\n")
            daemon.stop()
            with open(daemon.home / "SigningTable", "a") as signing:
                signing.write("*@three.example k3\n")
            daemon.start()
            rig.until(5, lambda: rig.answers(daemon.status), daemon.log)
            daemon.configuration.write_text(daemon.configuration.read_text() + "Canon\x9bicalization simple\n")
            daemon.signal("SIGHUP")
            self.is_not_ready(daemon, r"^key: .*/no\\u\{9b\}31m/\\u\{202e\}yek", r"^reload: .*Canon\\u\{9b\}ic", within=5)

    def test_a_key_that_a_reload_lost_still_signs_and_is_named(self):
        """What is in force can sign; the next start could not."""
        with Daemon() as daemon:
            (daemon.home / "two").unlink()
            self.is_well(daemon)
            daemon.signal("SIGHUP")
            self.is_degraded(daemon, f"^reload: .* holds: .*KeyTable:2: key \"k2\" in {daemon.home}/two: No such",
                             within=5)
            self.assertEqual(outside.selectors(sent(daemon, "alice@two.example")[1]), ["r"])

    def test_a_key_whose_record_is_wrong_is_named_if_it_is_held(self):
        with dns_server({"r._domainkey.example.com": first.record, "r._domainkey.two.example": first.record}) as server:
            with Daemon(Nameservers=f"127.0.0.1:{server.port}", CheckKeyRecords="hold") as daemon:
                self.is_not_ready(daemon, r"^record: r._domainkey.two.example: .*another key", within=10)
                self.assertEqual(daemon.metrics()[("keys_held",)], 1)
                for table, line in (("KeyTable", "k2 "), ("SigningTable", "*@two.example ")):
                    path = daemon.home / table
                    path.write_text("".join(l for l in path.read_text().splitlines(True) if not l.startswith(line)))
                daemon.signal("SIGHUP")
                # Nobody is to wait for the record of a key that is gone.
                rig.until(5, lambda: daemon.get("/ready")[0] == 200, daemon.log)

    def test_systemd_is_told_in_the_same_words(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.settimeout(10)
            notify.bind(str(home / "notify"))
            daemon = Daemon()
            daemon.environment["NOTIFY_SOCKET"] = str(home / "notify")
            with daemon:
                self.assertEqual(status(notify), "2 keys")
                daemon.socket.unlink()
                told = status(notify)
                self.assertEqual(daemon.get("/ready")[1].splitlines()[0], f"not ready: {told}")
                self.assertIn("was removed", told)


def status(notify):
    """The next status that systemd is told."""
    while True:
        for line in notify.recv(4096).decode().splitlines():
            if line.startswith("STATUS="):
                return line.partition("=")[2]


class dns_server(dns.Server):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Tokens(TestCase):
    def daemon(self, source, **options):
        daemon = Daemon(keys=("pkcs11:token=fake;object=dkim", second.path), Pkcs11Module=source.module,
                        Pkcs11PinFile=pin, **{"Pkcs11Timeout": 1, **options})
        daemon.environment = dict(source.environment)
        return daemon

    def test_a_token_that_goes_under_mail_is_named_at_once_and_comes_back_by_itself(self):
        source = token.FakeToken(home)
        with self.daemon(source) as daemon:
            rig.until(5, lambda: daemon.get("/ready")[0] == 200, daemon.log)
            self.is_well(daemon)
            self.assertEqual(daemon.metrics()[("keys", "token", "usable")], 1)
            source.set(present=0)
            rig.until(5, lambda: sent(daemon)[0] not in "ac", "mail to be deferred")
            self.is_not_ready(daemon, "^not ready: 1 key; 1 in tokens that are away$",
                              f"^token: {daemon.home}/KeyTable:1: key \"k1\": no token matches pkcs11:")
            self.assertEqual(daemon.metrics()[("keys", "token", "unusable")], 1)
            self.assertGreater(daemon.metrics()[("signatures_total", "pkcs11", "failed")], 0)
            source.set(present=None)
            rig.until(10, lambda: daemon.get("/ready")[0] == 200, daemon.log)
            self.is_well(daemon)
        self.assertEqual(source.crimes(), [])

    def test_a_token_that_goes_unnoticed_by_mail_is_noticed_all_the_same(self):
        source = token.FakeToken(home)
        with self.daemon(source) as daemon:
            rig.until(5, lambda: daemon.get("/ready")[0] == 200, daemon.log)
            source.set(present=0)
            self.is_not_ready(daemon, "1 in tokens that are away", within=TRIED + 10)
            source.set(present=None)
            rig.until(10, lambda: daemon.get("/ready")[0] == 200, daemon.log)
        self.assertEqual(source.crimes(), [])

    def test_a_token_is_left_alone_where_nobody_asks(self):
        source = token.FakeToken(home)
        daemon = self.daemon(source)
        del daemon.options["StatusSocket"]
        daemon.write()
        with daemon:
            daemon.logged("ready: 2 keys")
            before = len(source.calls("C_Sign"))
            time.sleep(TRIED + 4)
            self.assertEqual(len(source.calls("C_Sign")), before)

    def test_a_daemon_that_still_opens_its_tokens_is_live_and_not_ready(self):
        """The status socket is there first."""
        source = token.FakeToken(home)
        source.set({"C_Initialize.hang": 1})
        daemon = self.daemon(source, Pkcs11Timeout=4)
        starting = threading.Thread(target=daemon.start, daemon=True)
        starting.start()
        try:
            rig.until(5, lambda: rig.answers(daemon.status), "the status socket")
            self.is_not_ready(daemon, "^starting: ", "being opened")
        finally:
            starting.join()
            daemon.stop()

    def test_a_probe_calls_no_token(self):
        source = token.FakeToken(home)
        with self.daemon(source) as daemon:
            # Just after a trial, so that none is due.
            signatures = len(source.calls("C_Sign"))
            rig.until(TRIED + 5, lambda: len(source.calls("C_Sign")) > signatures, "a trial")
            time.sleep(0.5)
            before = len(source.calls())
            self.is_quick(daemon)
            self.assertEqual(len(source.calls()), before)


class Dns(TestCase):
    SELECTOR = "r._domainkey.stranger.example"

    def verified(self, daemon):
        raw = outside.dkimpy_sign(messages.plain(author="eve@stranger.example"), "stranger.example", "r", first,
                                  "relaxed/relaxed")
        return sent(daemon, raw=raw, address="192.0.2.7")

    @rig.cases({"silent": dns.SILENT, "SERVFAIL": dns.SERVFAIL})
    def test_a_dead_dns_is_degraded_and_not_dead(self, trouble):
        with dns_server({self.SELECTOR: first.record}) as server:
            with Daemon(Nameservers=f"127.0.0.1:{server.port}", DNSTimeout=1) as daemon:
                self.is_well(daemon)
                server.zone[self.SELECTOR] = trouble
                self.assertEqual(self.verified(daemon)[0], "y", "deferred")
                self.is_degraded(daemon, "^ready, degraded: 2 keys; the DNS does not answer$",
                                 rf"^dns: the last look-up failed, and none was ever answered: .*127.0.0.1:{server.port}")
                self.assertEqual(daemon.metrics()[("key_record_answers_total", "failed")], 1)
                self.assertEqual(outside.selectors(sent(daemon)[1]), ["r"], "mail is signed")
                asked = sum(server.asked.values())
                self.is_quick(daemon)
                self.assertEqual(sum(server.asked.values()), asked, "a probe asks nothing")
                server.zone[self.SELECTOR] = first.record
                # A failure is remembered for five seconds.
                rig.until(10, lambda: self.verified(daemon)[0] in "ac", "an answer")
                self.is_well(daemon)


class Sockets(TestCase):
    def test_a_socket_that_was_removed_is_named(self):
        with Daemon() as daemon:
            self.is_well(daemon)
            connections = daemon.metrics()[("connections_total",)]
            daemon.socket.unlink()
            self.is_not_ready(daemon, f"^socket: local:{daemon.socket} was removed: no MTA can connect")
            daemon.logged("error: .*was removed")
            time.sleep(2)
            self.assertEqual(daemon.log().count("was removed"), 1)
            self.assertEqual(daemon.metrics()[("connections_total",)], connections, "a probe opens no connection")
            daemon.stop()
            daemon.start()
            self.is_well(daemon)

    def test_a_socket_that_another_took_over_is_named_and_its_return_noticed(self):
        with Daemon() as daemon:
            daemon.socket.rename(daemon.home / "aside")
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(daemon.socket))
            self.is_not_ready(daemon, f"^socket: local:{daemon.socket} was replaced")
            (daemon.home / "aside").rename(daemon.socket)
            self.is_well(daemon)

    def test_a_socket_of_the_service_manager_is_looked_after_too(self):
        daemon = Daemon()
        del daemon.options["Socket"]
        daemon.write()
        with socket.socket(socket.AF_UNIX) as ours, open(daemon.home / "log", "ab") as log:
            ours.bind(str(daemon.socket))
            ours.listen()
            command = ["sh", "-c", 'exec env LISTEN_FDS=1 LISTEN_PID=$$ "$@"', "sh", daemon.path, "-f", "-x",
                       daemon.configuration]
            with subprocess.Popen(command, stderr=log, preexec_fn=lambda: os.dup2(ours.fileno(), 3),
                                  pass_fds=(3,)) as process:
                try:
                    rig.until(10, lambda: rig.answers(daemon.status) and daemon.get("/ready")[0] == 200, daemon.log)
                    self.is_well(daemon)
                    self.assertEqual(outside.selectors(sent(daemon)[1]), ["r"])
                    daemon.socket.unlink()
                    self.is_not_ready(daemon, f"^socket: local:{daemon.socket} was removed")
                finally:
                    process.terminate()

    @rig.cases({"unix": "unix", "inet": "inet"})
    def test_the_socket_of_mtas_is_no_status_socket(self, transport):
        daemon = Daemon(transport)
        daemon.options["StatusSocket"] = daemon.options["Socket"]
        daemon.write()
        done = subprocess.run([daemon.path, "-n", "-x", daemon.configuration], capture_output=True, text=True)
        self.assertEqual(done.returncode, 78)
        self.assertRegex(done.stderr, rf"error: {daemon.configuration}:\d+: StatusSocket: .* is taken by the Socket of "
                                      rf"{daemon.configuration}:\d+")

    def test_tcp_needs_no_file(self):
        with Daemon("inet") as daemon:
            self.is_well(daemon)


class Stuck(TestCase):
    def test_a_stuck_pool_is_not_live_and_the_probe_answers(self):
        """Standard error is a pipe that nobody reads, as when a container's log is stuck: the worker threads wait in it."""
        daemon = Daemon()
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        with subprocess.Popen([daemon.path, "-f", "-x", daemon.configuration], stderr=writer) as daemon.process:
            try:
                rig.until(10, daemon.socket.is_socket, "the daemon")
                rig.until(10, lambda: daemon.get("/ready")[0] == 200, "it to be ready")
                fill(writer)
                with concurrent.futures.ThreadPoolExecutor(16) as pool:
                    jobs = [pool.submit(sent, daemon) for _ in range(16)]
                    rig.until(SILENCE + 5, lambda: daemon.get("/live")[0] == 503, lambda: daemon.get("/ready")[1])
                    code, text = daemon.get("/live")
                    self.assertRegex(text, r"^stuck: no worker thread has taken up anything for \d+ s")
                    self.assertEqual(daemon.get("/ready")[0], 503)
                    done = daemon.ask("live")
                    self.assertEqual((done.returncode, done.stdout[:7]), (75, "stuck: "))
                    self.is_quick(daemon)
                    # What was stuck goes on.
                    draining = threading.Thread(target=drain, args=(reader,), daemon=True)
                    draining.start()
                    rig.until(10, lambda: daemon.get("/live") == (200, "ok\n"), lambda: daemon.get("/ready")[1])
                    self.assertEqual({outside.selectors(job.result()[1])[0] for job in jobs}, {"r"})
                self.is_well(daemon)
                self.assertEqual(daemon.metrics()[("messages_total", "signed", "accepted")], 16)
            finally:
                os.close(writer)
                daemon.process.terminate()

    def test_a_daemon_that_stops_is_live_and_not_ready(self):
        with Daemon() as daemon, session(daemon):
            daemon.signal("SIGTERM")
            self.is_not_ready(daemon, "^stopping: ", within=2)
            self.assertNotIn("socket:", daemon.get("/ready")[1])


def fill(pipe):
    """Fills a pipe to its last octet."""
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for size in (4096, 1):
        try:
            while True:
                os.write(pipe, b"-" * size)
        except BlockingIOError:
            pass
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


def drain(pipe):
    while os.read(pipe, 4096):
        pass


class Probes(TestCase):
    def test_a_probe_is_quick_and_leaves_no_trace(self):
        with Daemon() as daemon:
            self.is_well(daemon)
            log, connections = daemon.log(), daemon.metrics()[("connections_total",)]
            self.is_quick(daemon)
            self.assertEqual((daemon.log(), daemon.metrics()[("connections_total",)]), (log, connections))

    def test_a_probe_is_quick_under_load(self):
        with Daemon() as daemon, concurrent.futures.ThreadPoolExecutor(8) as pool:
            stop = threading.Event()

            def traffic():
                with session(daemon) as conversation:
                    while not stop.is_set():
                        conversation.message(messages.plain())

            jobs = [pool.submit(traffic) for _ in range(8)]
            try:
                took = sorted(self.seconds(daemon) for _ in range(200))
                self.assertLess(took[100] * 1000, PROBE, "as half of them; the test itself takes most of the machine")
            finally:
                stop.set()
            for job in jobs:
                job.result()

    @staticmethod
    def seconds(daemon):
        began = time.perf_counter()
        assert daemon.get("/ready")[0] == 200
        return time.perf_counter() - began

    def test_other_requests_are_refused(self):
        with Daemon() as daemon:
            self.assertEqual(daemon.get("/")[0], 404)
            self.assertEqual(daemon.get("/ready/")[0], 404)
            self.assertEqual(daemon.get("/ready?verbose=1")[0], 200)
            self.assertEqual(daemon.get("/live", "POST")[0], 405)
            self.assertEqual(daemon.headers["allow"], "GET, HEAD")

    JUNK = {
        "nothing": b"", "half a line": b"GET /li", "no HTTP": b"\0\xff" * 50, "SMTP": b"EHLO x\r\n",
        "a milter's MTA": wire.packet("O", bytes(12)), "a long line": b"GET /" + b"x" * 100_000,
        "a long header": b"GET /live HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        "a body without end": b"POST /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n" + b"x" * 9000,
    }

    def test_junk_and_those_who_dawdle_do_no_harm(self):
        with Daemon() as daemon:
            self.is_well(daemon)
            log, descriptors, memory = daemon.log(), daemon.descriptors(), daemon.peak_memory()
            clients = []
            for junk in list(self.JUNK.values()) * 25:
                client = socket.create_connection(("127.0.0.1", daemon.status))
                client.setblocking(False)
                try:
                    client.send(junk)
                except OSError:
                    pass
                clients.append(client)
            # No more of them are served than there are seats, each for as long as a request may take.
            self.assertLess(daemon.descriptors(), descriptors + 40)
            began = time.monotonic()
            self.assertEqual(daemon.get("/live", timeout=60)[0], 200)
            print(f"a probe behind 200 others: {time.monotonic() - began:.1f} s ... ", end="")
            for client in clients:
                client.close()
            rig.until(5, lambda: daemon.descriptors() <= descriptors,
                      lambda: f"{descriptors} open descriptors, not {daemon.descriptors()}")
            self.assertLess(daemon.peak_memory() - memory, 8 << 20)
            self.assertEqual(daemon.log(), log)
            self.is_well(daemon)


@contextlib.contextmanager
def stranger(port, talk):
    """Another program that has the port, and talks to who asks."""
    with socket.create_server(("127.0.0.1", port)) as server:
        def serve():
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, contextlib.suppress(OSError):
                    client.recv(4096)
                    talk(client)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)


class Metrics(TestCase):
    def test_what_happens_is_counted(self):
        with dns_server({"r._domainkey.stranger.example": first.record}) as server:
            with Daemon(Nameservers=f"127.0.0.1:{server.port}") as daemon:
                before = daemon.metrics()
                self.assertEqual(daemon.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
                raw = outside.dkimpy_sign(messages.plain(author="eve@stranger.example"), "stranger.example", "r", first,
                                          "relaxed/relaxed")
                sent(daemon)
                sent(daemon, "alice@two.example")
                for _ in range(3):
                    sent(daemon, raw=raw, address="192.0.2.7")
                sent(daemon, raw=raw.replace(b"Subject: ", b"Subject: not "), address="192.0.2.7")
                sent(daemon, address="192.0.2.7")
                with session(daemon), session(daemon):
                    after = daemon.metrics()
                changed = {name: value - before[name] for name, value in after.items() if value != before[name]}
                self.assertEqual(changed, {
                    ("messages_total", "signed", "accepted"): 2, ("messages_total", "verified", "accepted"): 5,
                    ("verdicts_total", "pass"): 3, ("verdicts_total", "fail"): 1, ("verdicts_total", "none"): 1,
                    ("signatures_total", "aws-lc", "made"): 2, ("key_record_cache_total", "miss"): 1,
                    ("key_record_cache_total", "hit"): 3, ("key_record_answers_total", "found"): 1,
                    ("connections_total",): 9, ("connections",): 2})
                version = subprocess.run([daemon.path, "-V"], capture_output=True, text=True).stdout.split()[1]
                self.assertEqual(after[("build_info", version)], 1)
                self.assertAlmostEqual(after[("start_time_seconds",)], time.time(), delta=60)

    def test_mail_that_fails_here_is_told_from_mail_that_is_left_alone(self):
        for mode, options, want in [("sv", {}, ("failed", "deferred")),
                                    ("sv", {"On-InternalError": "accept"}, ("failed", "accepted")),
                                    ("v", {"ExemptDomains": "two.example"}, ("left_alone", "accepted"))]:
            daemon = Daemon(**{**options, "Mode": mode})
            (daemon.home / "two").unlink()
            with daemon:
                sent(daemon, "alice@two.example")
                counts = {name[1:]: value for name, value in daemon.metrics().items()
                          if name[0] == "messages_total" and value}
                self.assertEqual(counts, {want: 1})

    def test_connections_over_the_limit_are_counted_with_their_mail(self):
        with Daemon(MaximumConnections=1) as daemon, session(daemon):
            self.assertEqual(sent(daemon)[0], "y")
            values = daemon.metrics()
            self.assertEqual(values[("connections_refused_total",)], 1)
            self.assertEqual(values[("messages_total", "failed", "deferred")], 1)

    def test_no_label_comes_from_mail(self):
        """However many domains write, the text has as many lines."""
        with Daemon() as daemon:
            before = daemon.metrics().keys()
            with session(daemon, address="192.0.2.7") as conversation:
                for n in range(50):
                    conversation.message(messages.plain(author=f"a@d{n}.example"))
            self.assertEqual(daemon.metrics().keys(), before)


class Command(TestCase):
    def test_the_configuration_says_whom_to_ask(self):
        path = home / "status.sock"
        daemon = Daemon(StatusSocket=f"local:{path}")
        with daemon:
            done = daemon.ask("ready")
            self.assertEqual((done.returncode, done.stdout), (0, "ready: 2 keys\n"), done.stderr)
            self.assertIn("dkim_milter_ready 1\n", daemon.ask("metrics").stdout)
            # What else is wrong in it does not matter, as the daemon runs.
            daemon.options["Canonicalisation"] = "simple"
            daemon.write()
            self.assertEqual(daemon.ask("live").returncode, 0)
            self.assertEqual(daemon.ask("live", "--set", f"StatusSocket=local:{home}/none").returncode, 69)
        self.assertFalse(path.exists(), "it is gone with the daemon")
        done = daemon.ask("live")
        self.assertEqual(done.returncode, 69)
        self.assertEqual(done.stderr, f"error: no answer from local:{path}: No such file or directory\n")

    @rig.cases({"inet:PORT": "127.0.0.1", "inet:PORT@localhost": "127.0.0.1", "inet6:PORT@::1": "::1",
                "inet:PORT@0.0.0.0": "127.0.0.1"})
    def test_it_finds_each_form_of_socket(self, host):
        form = self.id().partition("[")[2].rstrip("]")
        port = rig.free_port()
        with Daemon(StatusSocket=form.replace("PORT", str(port))) as daemon:
            self.assertEqual(daemon.ask("ready").returncode, 0)
            socket.create_connection((host, port)).close()
            warnings = [line for line in daemon.log().splitlines() if "names of keys" in line]
            self.assertEqual(len(warnings), 2 if "0.0.0.0" in form else 0, daemon.log())

    def test_it_says_when_nobody_can_be_asked(self):
        daemon = Daemon()
        done = daemon.ask("ready")
        self.assertEqual(done.returncode, 69)
        self.assertRegex(done.stderr, rf"^error: no answer from inet:{daemon.status}@127.0.0.1: Connection refused\n$")
        with socket.create_server(("127.0.0.1", daemon.status)) as other:
            def greet():
                with other.accept()[0] as client:
                    client.recv(4096)
                    client.sendall(b"220 mail ESMTP\r\n")

            threading.Thread(target=greet, daemon=True).start()
            done = daemon.ask("ready")
            self.assertEqual(done.returncode, 69)
            self.assertIn("something else listens there", done.stderr)
            began = time.monotonic()
            done = daemon.ask("ready")
            self.assertEqual(done.returncode, 69)
            self.assertIn("does not answer", done.stderr)
            self.assertLess(time.monotonic() - began, 4)
        del daemon.options["StatusSocket"]
        daemon.write()
        done = daemon.ask("ready")
        self.assertEqual((done.returncode, done.stdout), (78, ""))
        self.assertRegex(done.stderr, f"^error: StatusSocket is not set in {daemon.configuration}; set it")
        for value, words in [("inet:http@localhost", "port \"http\" is not a number"), ("inet:0@localhost", "port 0")]:
            daemon.options["StatusSocket"] = value
            daemon.write()
            done = daemon.ask("ready")
            self.assertEqual(done.returncode, 78)
            self.assertIn(words, done.stderr)
        daemon.configuration.unlink()
        self.assertEqual(daemon.ask("ready").returncode, 78)

    LIARS = {
        "another web server": (b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 3\r\n\r\nok\n", "something else"),
        "half an answer": (b"HTTP/1.1 200 OK\r\nServer: dkim-milter\r\nContent-Length: 300\r\n\r\nready: 2", "cut off"),
        "no end": (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000_000, "something else"),
    }

    @rig.cases(LIARS)
    def test_it_believes_nobody_but_a_daemon_of_ours(self, case):
        said, words = case
        daemon = Daemon()
        with stranger(daemon.status, lambda client: client.sendall(said)):
            for question in ("live", "ready", "metrics"):
                done = daemon.ask(question)
                self.assertEqual((done.returncode, done.stdout), (69, ""))
                self.assertIn(words, done.stderr)

    def test_it_ends_although_the_other_side_never_does(self):
        def drip(client):
            for octet in b"HTTP/1.1 200 OK\r\n" * 10:
                client.sendall(bytes([octet]))
                time.sleep(0.5)

        daemon = Daemon()
        with stranger(daemon.status, drip):
            self.is_given_up(daemon, "does not answer")
        # A stopped daemon: who connects to a UNIX socket waits as long as the queue is full.
        path = home / "full"
        with socket.socket(socket.AF_UNIX) as full, contextlib.ExitStack() as clients:
            full.bind(str(path))
            full.listen(1)
            for _ in range(2):
                clients.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
            daemon.options["StatusSocket"] = f"local:{path}"
            daemon.write()
            self.is_given_up(daemon, "takes no connection")

    def is_given_up(self, daemon, words):
        began = time.monotonic()
        done = daemon.ask("live")
        self.assertEqual(done.returncode, 69)
        self.assertIn(words, done.stderr)
        self.assertLess(time.monotonic() - began, 5)

    def test_counters_that_cannot_be_written_are_an_error(self):
        with Daemon() as daemon, open("/dev/full", "w") as full:
            for question, code in [("metrics", 74), ("live", 0)]:
                done = subprocess.run([daemon.path, "--status", question, "-x", daemon.configuration], stdout=full)
                self.assertEqual(done.returncode, code)

    def test_it_takes_no_other_question(self):
        self.assertEqual(Daemon().ask("well").returncode, 64)
        self.assertEqual(Daemon().ask("live", "-n").returncode, 64)

    def test_a_change_of_it_takes_a_restart(self):
        with Daemon() as daemon:
            daemon.options["StatusSocket"] = f"local:{home}/elsewhere"
            daemon.write()
            daemon.signal("SIGHUP")
            daemon.logged("StatusSocket was changed, which takes effect at the next start only")
            self.is_ready_by_port(daemon)

    def is_ready_by_port(self, daemon):
        self.assertEqual(daemon.get("/ready")[0], 200)


if __name__ == "__main__":
    rig.main()
