# SPDX-License-Identifier: Apache-2.0
"""TLS between a coordinator and everybody else: certificates of `coordinator init`, what each mistake says, and runs
over several hosts that need no certificates."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import struct
import subprocess
import unittest
import warnings

import harness
import tokens
from harness import PACED, steps_that_last, wait_until

DAY = 24 * 60 * 60
STEPPED_CLOCK = os.environ.get("LOCKSTEP_STEPPED_CLOCK_LIBRARY", "")


class TlsTest(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.dir, "state")
        self.token = os.path.join(self.state, "token")

    def init(self, *arguments, days=0, state=None):
        """`coordinator init`, on a machine whose clock is `days` off."""
        environment = {}
        if days:
            clock = os.path.join(self.dir, "clock")
            with open(clock, "wb") as file:
                file.write(struct.pack("q", int(days * DAY * 1e9)))
            environment = {"LD_PRELOAD": STEPPED_CLOCK, "LOCKSTEP_STEPPED_CLOCK": clock}
        code, out, err = self.run_program("coordinator", "init", f"--state-dir={state or self.state}", *arguments,
                                          env=environment)
        self.assertEqual(code, 0, err)
        return out, err

    def coordinator(self, *arguments, listen="127.0.0.1:0"):
        child, address = self.start_coordinator(f"--state-dir={self.state}", *arguments, listen=listen)
        return child, address

    def read_token(self, state=None):
        with open(os.path.join(state or self.state, "token"), encoding="ascii") as file:
            return file.read().strip()

    def list_jobs(self, address, **environment):
        return self.launch("list", f"--coordinator={address}", seconds=20,
                           env={"XDG_RUNTIME_DIR": os.path.join(self.dir, "elsewhere"), **environment})

    def assert_refused(self, address, token, *words, code=5):
        """A verb and an agent with this token are told the same."""
        got, out, err = self.list_jobs(address, LOCKSTEP_TOKEN=token)
        self.assertEqual(got, code, out + err)
        for word in words:
            self.assertIn(word, err)
        self.assertLess(len(err.splitlines()), 3, err)
        log = os.path.join(self.dir, "join.log")
        with open(log, "w", encoding="utf-8") as file:
            agent = self.start_logged(file, "launcher", "join", f"--coordinator={address}", "--slots=1",
                                      f"--state-dir={self.dir}/agent", env={"LOCKSTEP_TOKEN": token})
        said = wait_until(lambda: (text := self.text(log)) and "no connection to the coordinator" in text and text, 20,
                          "the agent says why it is not connected")
        for word in words:
            self.assertIn(word, said)
        self.assertIsNone(agent.poll(), "it tries again")
        agent.kill()
        agent.wait()

    def start_logged(self, file, program, *arguments, env=None):
        child = subprocess.Popen([os.path.join(harness.BIN, program), *arguments], cwd=self.dir,
                                 env=self.environment(LOCKSTEP_WORKER="/bin/true", **(env or {})), stdin=subprocess.DEVNULL, stdout=file,
                                 stderr=file)
        self.children.append(child)
        return child

    @staticmethod
    def text(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()


class Init(TlsTest):
    def test_its_files_and_its_command(self):
        out, err = self.init("--host=10.1.2.3", "--host=head.example.org")
        # Nodes and users get tokens of their own; the administrator's stays where it is.
        self.assertEqual(out, "launcher join --coordinator 10.1.2.3:7070 --token-file token-of-node1\n")
        self.assertIn(f"{self.token} is an administrator's: let it stay here", err)
        create = "launcher token create --coordinator 10.1.2.3:7070"
        self.assertIn(f"{create} --user node1 --role join --save-as token-of-node1\n", err)
        self.assertIn(f"{create} --user ann --role submit --save-as token-of-ann\n", err)
        self.assertIn("made a new cluster", err)
        self.assertEqual(stat.S_IMODE(os.stat(self.state).st_mode), 0o700)
        self.assertEqual(sorted(os.listdir(self.state)), ["authority.pem", "callers.pem", "server.pem", "token"])
        for name in os.listdir(self.state):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.state, name)).st_mode), 0o600, name)
        before = self.read_token()
        out, err = self.init()
        self.assertIn("renewed the certificate", err)
        self.assertIn("head.example.org", err)
        self.assertEqual(self.read_token(), before)

    def test_wrong_use(self):
        for arguments, word in ((["--hosts=a"], "unknown flag"), (["x"], "unexpected"), (["--host"], "needs a value"),
                                (["--host=a b"], "neither a host's name"), (["--host=10.0.0.1:7070"], "without the port")):
            code, _, err = self.run_program("coordinator", "init", f"--state-dir={self.state}", *arguments)
            self.assertEqual(code, 2, err)
            self.assertIn(word, err)
        code, out, _ = self.run_program("coordinator", "init", "--help")
        self.assertEqual(code, 0)
        self.assertIn("--host", out)

    def test_other_machines_need_it(self):
        code, _, err = self.run_program("coordinator", "--listen=0.0.0.0:0", f"--state-dir={self.state}")
        self.assertEqual(code, 1)
        self.assertIn("coordinator init", err)
        self.init()
        self.coordinator(listen="0.0.0.0:0")

    def test_what_does_not_belong_together_is_not_served(self):
        self.init()
        code, _, err = self.run_program("coordinator", "--listen=127.0.0.1:0", f"--state-dir={self.state}", "--plaintext")
        self.assertEqual(code, 1)
        self.assertIn("leave --plaintext out", err)
        other = os.path.join(self.dir, "other")
        self.init(state=other)
        token = os.path.join(other, "token")
        code, _, err = self.run_program("coordinator", "--listen=127.0.0.1:0", f"--state-dir={self.state}",
                                        f"--token-file={token}")
        self.assertEqual(code, 1)
        self.assertIn("does not belong to the certificate", err)
        code, _, err = self.run_program("coordinator", "--listen=127.0.0.1:0", f"--token-file={token}")
        self.assertEqual(code, 1)
        self.assertIn("asks for TLS", err)


class Served(TlsTest):
    def test_a_job_is_trained_and_outlives_a_renewed_certificate(self):
        self.init()
        child, address = self.coordinator()
        copy = shutil.copy(self.token, os.path.join(self.dir, "copied"))
        self.start("launcher", "join", f"--coordinator={address}", "--slots=2", f"--token-file={copy}",
                   env=PACED)
        path = self.write("job.yaml", harness.synthetic_job(nproc=2, steps=steps_that_last(30)))
        here = self.train("--nproc-per-node=2", path, seconds=600)
        code, out, err = self.launch("submit", "--no-follow", f"--coordinator={address}", "-o", "json", path)
        self.assertEqual(code, 0, out + err)  # the token of this user's own coordinator is found
        job = json.loads(out.strip().splitlines()[-1])["job"]

        def status():
            code, out, err = self.launch("describe", f"--coordinator={address}", f"--token-file={copy}", "-o", "json", job)
            self.assertEqual(code, 0, err)
            return json.loads(out)["job"]["status"]
        wait_until(lambda: int(status().get("progress", {}).get("step", 0)) > 20, 60, "it trains")
        before = sorted(p.pid for p in self.processes("worker"))
        child.send_signal(signal.SIGKILL)
        child.wait()
        self.init()
        self.coordinator(listen=address)
        wait_until(lambda: status()["state"] == "RUNNING", 30, "the coordinator knows it again")
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), before, "nobody was ended")
        self.unpace()
        end = wait_until(lambda: (s := status())["state"] in ("SUCCEEDED", "FAILED") and s, 240, "it ends")
        self.assertEqual(end["state"], "SUCCEEDED", end["reason"])
        self.assertEqual(end["result"]["model_sha256"], here["model"]["sha256"])
        self.assertEqual(int(end["generation"]), 1)

    def test_a_token_is_replaced_while_all_are_served(self):
        self.init()
        before = self.read_token()
        self.init("--new-token")
        tokens = self.text(self.token).split()
        self.assertEqual(tokens[1:], [before])
        child, address = self.coordinator()
        for token in tokens:
            code, _, err = self.list_jobs(address, LOCKSTEP_TOKEN=token)
            self.assertEqual(code, 0, err)
        child.terminate()
        self.finish(child)
        with open(self.token, "w", encoding="ascii") as file:
            file.write(tokens[0] + "\n")
        self.coordinator(listen=address)
        self.assertEqual(self.list_jobs(address, LOCKSTEP_TOKEN=tokens[0])[0], 0)
        self.assertEqual(self.list_jobs(address, LOCKSTEP_TOKEN=before)[0], 5)

    def test_names_and_ipv6(self):
        self.init()
        for listen in ("[::1]:0", "localhost:0"):
            child, address = self.coordinator(listen=listen)
            code, _, err = self.list_jobs(address, LOCKSTEP_TOKEN=self.read_token())
            self.assertEqual(code, 0, err)
            child.terminate()
            self.finish(child)

    def test_nothing_is_said_without_tls(self):
        self.init()
        _, address = self.coordinator()
        place = ("127.0.0.1", int(address.rsplit(":", 1)[1]))
        with socket.create_connection(place, timeout=20) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            answer = plain.recv(4096)
            self.assertFalse(answer[:1] == b"\x00", "no HTTP/2 in the clear")
        context = ssl.create_default_context(cadata=self.authority())
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(place, timeout=20) as raw, \
                context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            self.assertIn(tls.version(), ("TLSv1.2", "TLSv1.3"))
            self.assertIn(("IP Address", "127.0.0.1"), tls.getpeercert()["subjectAltName"])
        old = ssl.create_default_context(cadata=self.authority())
        old.set_ciphers("DEFAULT:@SECLEVEL=0")  # so that this end would
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(place, timeout=20) as raw, self.assertRaisesRegex(OSError, "(?i)alert|EOF|reset"):
            old.wrap_socket(raw, server_hostname="127.0.0.1")

    def authority(self):
        """The authority's certificate without its key."""
        return re.search(r"-----BEGIN CERTIFICATE-----.*-----END CERTIFICATE-----\n",
                         self.text(os.path.join(self.state, "authority.pem")), re.DOTALL).group()


class Refused(TlsTest):
    """Each mistake has a message that says what to do."""

    def test_a_token_of_another_cluster(self):
        self.init()
        other = os.path.join(self.dir, "other")
        self.init(state=other)
        _, address = self.coordinator()
        self.assert_refused(address, self.read_token(other), "of another cluster than the token", "Take the token from")

    def test_a_wrong_token(self):
        self.init()
        _, address = self.coordinator()
        kind, secret, authority, certificate = self.read_token().split(".")
        self.assertEqual(len(secret), 64)
        self.assert_refused(address, f"{kind}.{'0' * 64}.{authority}.{certificate}", "does not know the token")

    def test_a_token_without_a_certificate(self):
        self.init()
        _, address = self.coordinator()
        self.assert_refused(address, tokens.without_certificate(self.read_token()), "the token has none", "token create")

    def test_a_damaged_token(self):
        self.init()
        _, address = self.coordinator()
        for token in (self.read_token()[:-9], "lockstep1.x"):
            code, _, err = self.list_jobs(address, LOCKSTEP_TOKEN=token)
            self.assertEqual(code, 5, err)
            self.assertIn("LOCKSTEP_TOKEN: it is damaged or cut short", err)

    def test_a_token_that_is_none(self):
        for verb in (["list"], ["nodes"], ["join", "--slots=1"]):
            code, _, err = self.launch(*verb, "--coordinator=127.0.0.1:1", env={"LOCKSTEP_TOKEN": "a b"}, seconds=20)
            self.assertEqual(code, 5, err)
            self.assertIn("LOCKSTEP_TOKEN is not one line of plain letters", err)

    def test_plain_text_to_a_port_with_tls(self):
        self.init()
        _, address = self.coordinator()
        self.assert_refused(address, "just-a-token", "speaks TLS alone", "the token is not that of its cluster")
        code, _, err = self.list_jobs(address)
        self.assertEqual(code, 5, err)
        self.assertIn("no token was given", err)

    def test_tls_to_a_port_without(self):
        self.init()
        plain = self.write("plain", "just-a-token\n")
        os.chmod(plain, 0o600)
        _, address = self.start_coordinator(f"--token-file={plain}", listen="127.0.0.1:0")
        self.assert_refused(address, self.read_token(), "does not speak TLS", "coordinator init")

    def test_a_name_that_the_certificate_lacks(self):
        self.init("--host=head.example.org")
        _, address = self.coordinator(listen="127.0.0.2:0")
        self.assert_refused(address, self.read_token(), "is for head.example.org, localhost", "not for 127.0.0.2",
                            "coordinator init --host 127.0.0.2")

    @unittest.skipUnless(STEPPED_CLOCK, "the library that steps the clock is not named")
    def test_an_expired_certificate(self):
        self.init(days=-400)
        _, address = self.coordinator()
        self.assert_refused(address, self.read_token(), "expired on 20", "run `coordinator init` again")

    @unittest.skipUnless(STEPPED_CLOCK, "the library that steps the clock is not named")
    def test_a_certificate_of_the_future(self):
        self.init(days=10)
        _, address = self.coordinator()
        self.assert_refused(address, self.read_token(), "is valid from 20", "clocks")

    @unittest.skipUnless(STEPPED_CLOCK, "the library that steps the clock is not named")
    def test_a_certificate_that_expires_soon_is_said(self):
        self.init(days=-340)
        child, address = self.coordinator()
        code, out, err = self.launch("nodes", f"--coordinator={address}")
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"warning: the coordinator's certificate expires in 2[45] days")
        self.assertIn("NODE", out)
        child.terminate()
        self.assertRegex(self.finish(child)[2], r"certificate expires in 2[45] days")
        self.init()
        _, address = self.coordinator()
        self.assertEqual(self.launch("nodes", f"--coordinator={address}")[2], "")

    def test_an_agent_says_it_when_the_coordinator_came_back_as_another(self):
        self.init()
        child, address = self.coordinator()
        log = os.path.join(self.dir, "join.log")
        with open(log, "w", encoding="utf-8") as file:
            self.start_logged(file, "launcher", "join", f"--coordinator={address}", "--slots=1",
                              f"--token-file={shutil.copy(self.token, os.path.join(self.dir, 'copied'))}")
        wait_until(lambda: "connected to the coordinator" in self.text(log), 20, "the agent is there")
        child.kill()
        child.wait()
        shutil.rmtree(self.state)
        self.init()
        self.coordinator(listen=address)
        wait_until(lambda: "of another cluster than the token" in self.text(log), 20, "the agent says why it is away")


class RunOverHosts(TlsTest):
    """The same command on each host; nothing is configured but the token. Here all hosts are this one."""

    def setUp(self):
        super().setUp()
        self.endpoint = f"127.0.0.1:{harness.free_port()}"
        self.path = self.write("job.yaml", harness.synthetic_job(nproc=1, train_extra="  eval: {every: never}\n"))

    def launch_on(self, rank, *more, token):
        return self.start("launcher", "--nnodes=2", f"--rdzv-endpoint={self.endpoint}", f"--node-rank={rank}", "-o",
                          "json", *more, self.path, env={"LOCKSTEP_TOKEN": token})

    def test_it_is_encrypted_and_trains_to_the_same_bits(self):
        token = "0123456789abcdef0123456789abcdef"
        host, guest = self.launch_on(0, token=token), self.launch_on(1, token=token)
        code, out, err = self.finish(host, 120)
        self.assertEqual((code, self.finish(guest, 60)[0]), (0, 0), err)
        alone = self.train("--nnodes=1", "--nproc-per-node=1", self.path)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], alone["model"]["sha256"])

    def test_a_guest_with_another_token_or_without_tls_is_told_so(self):
        token = "0123456789abcdef0123456789abcdef"
        host = self.launch_on(0, token=token)
        port = int(self.endpoint.rsplit(":", 1)[1])

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0
        wait_until(listens, 20, "the run's coordinator listens")
        code, _, err = self.finish(self.launch_on(1, token=token + "x"), 30)
        self.assertEqual(code, 5, err)
        self.assertIn("of another cluster than the token (or another run's)", err)
        code, _, err = self.finish(self.launch_on(1, "--plaintext", token=token), 30)
        self.assertEqual(code, 5, err)
        self.assertIn("--plaintext on all of them or on none", err)
        host.terminate()
        self.finish(host, 30)

    def test_a_stranger_does_not_pass_the_handshake(self):
        host = self.launch_on(0, token="0123456789abcdef0123456789abcdef")
        port = int(self.endpoint.rsplit(":", 1)[1])

        def answer():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=20) as raw, \
                        tokens.context().wrap_socket(raw) as secure:
                    return [secure.recv(100)]
            except ConnectionRefusedError:
                return None
            except OSError:
                return [b""]
        self.assertEqual(wait_until(answer, 20, "the run's coordinator listens"), [b""])
        host.terminate()
        self.finish(host, 30)

    def test_a_token_that_is_quickly_guessed_is_refused(self):
        code, _, err = self.finish(self.launch_on(0, token="short"), 30)
        self.assertEqual(code, 5, err)
        self.assertIn("openssl rand -hex 32", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
