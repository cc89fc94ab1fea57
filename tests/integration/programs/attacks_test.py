# SPDX-License-Identifier: Apache-2.0
"""What an attacker sends a coordinator, and that it stays what it was for everybody else."""

import json
import os
import random
import socket
import ssl
import struct
import time
import unittest
import warnings

import harness
import http2
import tokens
from harness import wait_until

STEPPED_CLOCK = os.environ.get("LOCKSTEP_STEPPED_CLOCK_LIBRARY", "")
# What the coordinator may hold for callers that have proven nothing, in a test that lasts a second.
MOST_GROWTH = 128 << 20
# Of those whose handshake fails nothing is kept.
MOST_GROWTH_WITHOUT_A_CERTIFICATE = 16 << 20
# gRPC 1.51 keeps about 13 KiB of each call that is reset at once, and never gives it back (docs/security.md).
MOST_OF_A_RESET = 20 << 10


class Attacks(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.dir, "state-dir")

    def serve(self):
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.state}", listen="127.0.0.1:0")
        with open(os.path.join(self.state, "token"), encoding="ascii") as file:
            self.token = file.read().strip()
        self.before = self.rss()

    def rss(self):
        with open(f"/proc/{self.coordinator.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

    def assert_serves(self, growth=MOST_GROWTH):
        """It lives, serves its owner, and has not grown by more than `growth`."""
        self.assertIsNone(self.coordinator.poll())
        wait_until(lambda: self.launch("list", f"--coordinator={self.address}", "-o", "json")[0] == 0, 5,
                   "its owner is served")
        if not harness.SANITIZED:
            self.assertLess(self.rss() - self.before, growth)

    def test_without_the_token_no_call_does_anything(self):
        self.serve()
        calls = [f"/lockstep.Coordinator/{name}" for name in
                 ("SubmitJob", "ListJobs", "DescribeJob", "CancelJob", "FollowJob", "GetCluster", "ScaleJob",
                  "DrainNode", "UndrainNode", "HoldJob", "GetUsage", "AgentSession", "WorkerSession")]
        calls += [f"/lockstep.Files/{name}" for name in ("FindFiles", "Fetch", "Send")]
        calls += [f"/lockstep.Packages/{name}" for name in ("HasPackage", "PutPackage", "GetPackage")]
        calls += [f"/lockstep.Access/{name}" for name in ("CreateToken", "ListTokens", "RevokeToken", "WhoAmI", "RenewToken")]
        forged = [b"", http2.header("lockstep-token", ""), http2.header("lockstep-token", "x" * 64),
                  http2.header("lockstep-token", self.token[:-1]), http2.header("lockstep-token", self.token + "0"),
                  http2.header("lockstep-token", "worker.x.0.1." + "0" * 64),
                  http2.header("authorization", "Bearer " + self.token)]
        refusal = b"asks for a token|does not know the token"
        connection = http2.Connection(self.address)
        stream = 1
        for call in calls:
            for more in forged:
                connection.send(http2.call(call, stream, more) + http2.message(b"", stream))
                self.assertRegex(connection.status_of(stream), refusal, (call, more))
                stream += 2
        connection.send(http2.call("/lockstep.Coordinator/GetCluster", stream, http2.header("lockstep-token", self.token))
                        + http2.message(b"", stream))
        self.assertNotRegex(connection.status_of(stream), refusal, "the right one is taken")
        connection.close()
        self.assert_serves()

    def test_a_flood_of_resets(self):
        self.serve()
        connections = [http2.Connection(self.address) for _ in range(4)]
        started, stream, sent = time.monotonic(), 1, 0
        while sent < 2000 or (sent < 20000 and time.monotonic() - started < 5):
            for connection in list(connections):
                burst = b"".join(
                    http2.call("/lockstep.Coordinator/ListJobs", stream + 2 * i, http2.header("x", "y" * 100))
                    + http2.frame(http2.RST_STREAM, 0, stream + 2 * i, b"\0\0\0\x08") for i in range(100))
                try:
                    connection.send(burst)
                    alive = connection.drain()
                except OSError:
                    alive = False
                if not alive:  # cut off, as it should be: the attacker comes again
                    connection.close()
                    connections.remove(connection)
                sent += 100
            stream += 200
            if not connections:
                connections, stream = [http2.Connection(self.address) for _ in range(4)], 1
        self.assert_serves(MOST_GROWTH + sent * MOST_OF_A_RESET)
        for connection in connections:
            connection.close()

    def test_malformed_and_oversized(self):
        self.serve()
        path = "/lockstep.Coordinator/SubmitJob"
        known = http2.header("lockstep-token", self.token)
        noise = random.Random(1)
        streams = {
            "no HTTP/2": (False, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            "noise": (False, noise.randbytes(4096)),
            "noise after the preface": (True, noise.randbytes(4096)),
            "a frame of 16 MiB": (True, b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 100000),
            "headers without an end": (True, http2.frame(http2.HEADERS, 0, 1, b"\x83\x86")
                                       + 200 * http2.frame(http2.CONTINUATION, 0, 1, b"\x00" + http2.text("a") + http2.text("b" * 16000))),
            "64 KiB of metadata": (True, http2.call(path, 1, b"".join(http2.header(f"k{i}", "v" * 4000) for i in range(4)), True)),
            "a message that says 4 GiB": (True, http2.call(path, 1, known) + http2.message(b"x", 1, length=0xffffffff)),
            "a message that is none": (True, http2.call(path, 1, known) + http2.message(b"\xff" * 1000, 1)),
            "a message cut short": (True, http2.call(path, 1, known) + http2.message(b"x" * 10, 1, length=1000)),
            "nesting without an end": (True, http2.call(path, 1, known) + http2.message(b"\x0b" * 5000, 1)),
            "data on a stream that is not there": (True, http2.message(b"x", 77)),
            "settings that cannot be": (True, http2.frame(http2.SETTINGS, 0, 0, b"\0\x05\0\0\0\0")),
            "a ping flood": (True, 20000 * http2.frame(http2.PING, 0, 0, b"12345678")),
        }
        for name, (preface, data) in streams.items():
            with self.subTest(name):
                connection = http2.Connection(self.address, preface)
                try:
                    connection.send(data)
                    connection.socket.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it has hung up already
                connection.read_to_end()  # it ends, and nobody hangs
                connection.close()
                self.assertIsNone(self.coordinator.poll())
        self.assert_serves()
        code, out, _ = self.launch("list", f"--coordinator={self.address}", "-o", "json")
        self.assertEqual((code, json.loads(out).get("jobs", [])), (0, []))

    def test_against_tls(self):
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={self.state}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        self.serve()
        host, port = self.address.rsplit(":", 1)
        # In the clear: not a byte of HTTP/2 is answered.
        for data in (http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0), b"GET / HTTP/1.1\r\n\r\n",
                     random.Random(2).randbytes(5000), b"\x16\x03\x01\xff\xff" + b"\x01" * 20000):
            connection = http2.Connection(self.address, preface=False)
            try:
                connection.send(data)
                connection.socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has hung up already
            self.assertNotIn(http2.frame(http2.SETTINGS, 0, 0)[3:5] + b"\0\0\0\0", connection.read_to_end()[:9])
            connection.close()
        # TLS, and then what is no HTTP/2.
        own = tokens.context(tokens.certificate_of(self.token, self.dir))
        for context in (own, tokens.context()):
            connection = http2.Connection(self.address, preface=False, tls=context)
            try:
                connection.send(b"x" * 1000)
            except OSError:
                pass  # it has hung up already
            connection.read_to_end()
            connection.close()
        # Of versions that are broken, none is spoken.
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                old.minimum_version = ssl.TLSVersion.TLSv1
                old.maximum_version = ssl.TLSVersion.TLSv1_1
        except ValueError:
            old = None  # this Python's library does not know them
        if old is not None:
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                old.wrap_socket(socket.create_connection((host, int(port)), timeout=10))
        self.assert_serves()

    def test_nobody_passes_the_handshake_without_a_certificate_of_a_good_token(self):
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={self.state}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        elsewhere = os.path.join(self.dir, "elsewhere")
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={elsewhere}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        self.serve()
        with open(os.path.join(elsewhere, "token"), encoding="ascii") as file:
            foreign = file.read()
        code, short, err = self.launch("token", "create", f"--coordinator={self.address}", "--user=ann", "--role=submit",
                                       "--valid-for=1h")
        self.assertEqual(code, 0, err)
        code, revoked, err = self.launch("token", "create", f"--coordinator={self.address}", "--user=bob", "--role=submit")
        self.assertEqual(code, 0, err)
        own, of_ann, of_bob, of_others = (tokens.context(tokens.certificate_of(token, self.dir))
                                          for token in (self.token, short, revoked, foreign))
        for context in (own, of_ann, of_bob):
            self.assertTrue(self.passes(context))
        code, _, err = self.launch("token", "revoke", f"--coordinator={self.address}", err.split()[1])
        self.assertEqual(code, 0, err)
        strangers = {"none": tokens.context(), "of a foreign authority": of_others, "of a revoked token": of_bob}
        old = tokens.context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        strangers["none, TLS 1.2"] = old
        for name, context in strangers.items():
            with self.subTest(name):
                self.assertFalse(self.passes(context))
        self.assertTrue(self.passes(own))
        self.assert_serves()
        if STEPPED_CLOCK:  # two days later Ann's has expired
            self.coordinator.terminate()
            self.finish(self.coordinator)
            clock = os.path.join(self.dir, "clock")
            with open(clock, "wb") as file:
                file.write(struct.pack("q", 2 * 24 * 60 * 60 * 10**9))
            later = {"LD_PRELOAD": STEPPED_CLOCK, "LOCKSTEP_STEPPED_CLOCK": clock}
            self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.state}", listen="127.0.0.1:0",
                                                                    env=later)
            self.assertFalse(self.passes(of_ann))
            self.assertTrue(self.passes(own))
            for environment, words in (({}, "does not take the token's certificate"), (later, "certificate expired on")):
                code, _, err = self.launch("list", f"--coordinator={self.address}",
                                           env={"LOCKSTEP_TOKEN": short.strip(), **environment})
                self.assertEqual(code, 5, err)
                self.assertIn(words, err)

    def passes(self, context):
        """Whether HTTP/2 is spoken with who connects like this."""
        try:
            connection = http2.Connection(self.address, tls=context)
        except (ssl.SSLError, ConnectionError):
            return False
        try:
            with connection.socket as secure:
                return secure.recv(9)[3:4] == bytes([http2.SETTINGS])
        except (ssl.SSLError, ConnectionError):
            return False

    def test_a_flood_of_resets_without_a_certificate_gets_nowhere(self):
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={self.state}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        self.serve()
        burst = b"".join(http2.call("/lockstep.Coordinator/ListJobs", 1 + 2 * i, http2.header("x", "y" * 100))
                         + http2.frame(http2.RST_STREAM, 0, 1 + 2 * i, b"\0\0\0\x08") for i in range(1000))
        started, sent = time.monotonic(), 0
        while sent < 2000 or (sent < 300000 and time.monotonic() - started < 5):
            try:
                connection = http2.Connection(self.address, tls=tokens.context())
                connection.send(burst)
            except (ssl.SSLError, ConnectionError):
                pass  # cut off
            self.assertNotIn(bytes([http2.SETTINGS]), connection.read_to_end()[3:4], "no HTTP/2")
            connection.close()
            sent += 1000
        self.assert_serves(MOST_GROWTH_WITHOUT_A_CERTIFICATE)

    def test_names_and_files_that_lead_elsewhere(self):
        self.serve()
        self.start("launcher", "join", f"--coordinator={self.address}", "--slots=1", f"--state-dir={self.dir}/node")
        outside = os.path.join(self.dir, "outside")
        for name in ("../outside", "a/../../outside", "/outside", "..", "a\\nb", "$(touch outside)", "a;touch outside"):
            job = self.write("job.yaml", harness.synthetic_job(name=f'"{name}"', nproc=1, shards=1))
            code, out, err = self.launch("submit", f"--coordinator={self.address}", job)
            self.assertEqual(code, 3, f"{name}: {out}{err}")
            self.assertIn("job.yaml", err)
        # Past the launcher's own check, straight to the coordinator: JobSpec.name = "../outside".
        spec = b"\x0a\x0a../outside"
        body = b"\x0a" + bytes([len(spec)]) + spec + b"\x1a\x04/tmp"
        connection = http2.Connection(self.address)
        connection.send(http2.call("/lockstep.Coordinator/SubmitJob", 1, http2.header("lockstep-token", self.token))
                        + http2.message(body, 1))
        self.assertIn(b"grpc-status", connection.status_of(1))
        connection.close()
        code, out, _ = self.launch("list", f"--coordinator={self.address}", "-o", "json")
        self.assertEqual((code, json.loads(out).get("jobs", [])), (0, []))
        self.assertFalse(os.path.exists(outside))
        self.assert_serves()

    def test_a_bomb_of_aliases(self):
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]" for i in range(1, 12)]
        job = self.write("bomb.yaml", "\n".join(lines) + "\nname: *a11\n")
        code, _, err = self.launch("validate", job)  # who makes all of it has not done by then
        self.assertEqual(code, 3, err)
        self.assertLess(len(err), 20000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
