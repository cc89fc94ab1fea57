# SPDX-License-Identifier: Apache-2.0
"""Who may speak to a coordinator: its own user finds it without a flag, other users are refused."""

import json
import os
import pwd
import shutil
import signal
import stat
import tempfile
import unittest
import uuid

import harness
from harness import wait_until


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


class Access(harness.ProgramTest):
    def test_the_users_verbs_find_the_socket(self):
        child = self.start("coordinator", preexec_fn=lambda: os.umask(0))
        socket = os.path.join(self.runtime, "lockstep", "coordinator.sock")
        wait_until(lambda: os.path.exists(socket), 10, "the default socket")
        self.assertEqual(mode(socket), 0o600)
        self.assertEqual(mode(os.path.dirname(socket)), 0o700)
        self.start("launcher", "join", "--slots=2")
        job = self.write("job.yaml", harness.synthetic_job(nproc=2))
        code, out, err = self.launch("submit", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        job_id = json.loads(out.strip().splitlines()[-1])["job"]
        for verb in (["list"], ["logs", job_id], ["describe", job_id]):
            code, out, err = self.launch(*verb)
            self.assertEqual(code, 0, out + err)
        child.terminate()
        self.assertEqual(self.finish(child, 10)[0], 0)
        self.assertFalse(os.path.exists(socket))

    def test_a_terminal_that_closes_stops_it_as_sigterm_does(self):
        child, _ = self.start_coordinator()
        child.send_signal(signal.SIGHUP)
        code, _, err = self.finish(child)
        self.assertEqual(code, 0, err)
        self.assertIn("stopping: SIGHUP\n", err)
        self.assertRegex(err, r"\AI \S+ [A-Z][a-z]+, \d{4}-\d\d-\d\d, UTC\S+\n")
        # nohup
        child, address = self.start_coordinator(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        child.send_signal(signal.SIGHUP)
        code, _, err = self.launch("list", f"--coordinator={address}")
        self.assertEqual(code, 0, err)
        child.terminate()
        self.assertIn("stopping: SIGTERM\n", self.finish(child)[2])

    def test_a_job_runs_over_tcp_with_a_token(self):
        _, address = self.start_coordinator("--state-dir=state", listen="127.0.0.1:0")
        token = os.path.join(self.dir, "state", "token")
        self.assertEqual(mode(token), 0o600)
        with open(token, encoding="ascii") as file:
            self.assertEqual(len(file.read().strip()), 64)
        self.start("launcher", "join", f"--coordinator={address}", "--slots=2", f"--token-file={token}")
        job = self.write("job.yaml", harness.synthetic_job(nproc=2))
        here = self.train("--nproc-per-node=2", job)
        code, out, err = self.launch("submit", f"--coordinator={address}", "-o", "json", job)  # finds the token
        self.assertEqual(code, 0, out + err)
        there = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(there["model"]["sha256"], here["model"]["sha256"])

    def test_a_token_that_others_can_read_is_refused(self):
        token = self.write("token", "secret\n")
        os.chmod(token, 0o644)
        code, _, err = self.run_program("coordinator", "--listen=127.0.0.1:0", f"--token-file={token}", seconds=10)
        self.assertEqual(code, 1)
        self.assertIn("others can read", err)
        os.chmod(token, 0o600)
        _, address = self.start_coordinator(f"--token-file={token}", listen="127.0.0.1:0")
        os.chmod(token, 0o644)
        code, _, err = self.launch("list", f"--coordinator={address}", f"--token-file={token}")
        self.assertNotEqual(code, 0)
        self.assertIn("others can read", err)


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: refusing another user needs root, to become one")
class Stranger(harness.ProgramTest):
    """Another user of this machine, who knows every address."""

    def setUp(self):
        super().setUp()
        # Folders above the built programs may be closed to others.
        self.public = tempfile.mkdtemp(prefix="lockstep-public-")
        os.chmod(self.public, 0o755)
        self.launcher = shutil.copy(os.path.join(harness.BIN, "launcher"), self.public)
        nobody = pwd.getpwnam("nobody")
        self.who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": self.public}
        self.job = os.path.join(self.public, "job.yaml")
        with open(self.job, "w", encoding="utf-8") as file:
            file.write(harness.synthetic_job(nproc=1))
        os.chmod(self.job, 0o644)

    def tearDown(self):
        super().tearDown()
        shutil.rmtree(self.public, ignore_errors=True)

    def environment(self, **more):
        environment = super().environment(**more)
        environment["LOCKSTEP_WORKER"] = "/bin/true"
        return environment

    def as_stranger(self, *arguments):
        return self.start(self.launcher, *arguments, env={"XDG_RUNTIME_DIR": ""}, **self.who)

    def assert_refused(self, address, why):
        """No verb of another user reaches the coordinator, and nothing of them is left there."""
        named = f"--coordinator={address}"
        verbs = [self.as_stranger("list", named), self.as_stranger("submit", "--no-follow", named, self.job),
                 self.as_stranger("cancel", named, "x")]
        join = self.as_stranger("join", named, "--slots=1")
        os.set_blocking(join.stderr.fileno(), False)
        said = bytearray()

        def complained():
            try:
                said.extend(os.read(join.stderr.fileno(), 65536))
            except BlockingIOError:
                pass
            return b"no connection to the coordinator" in said or join.poll() is not None
        wait_until(complained, 20, "the stranger's node says that it is refused")
        join.kill()
        for child in verbs:
            code, out, err = self.finish(child, 30)
            self.assertNotEqual(code, 0, out + err)
            self.assertIn(why, err)
        code, out, err = self.launch("top", named, "-o", "json")  # its owner is served
        self.assertEqual(code, 0, err)
        figures = json.loads(out)
        self.assertEqual((figures.get("nodes", []), figures.get("jobs", [])), ([], []))

    def test_on_the_socket_in_a_public_folder(self):
        path = os.path.join(self.public, "socket")
        _, address = self.start_coordinator(listen=f"unix:{path}", preexec_fn=lambda: os.umask(0))
        self.assertEqual(mode(path), 0o600)
        self.assert_refused(address, "no coordinator answers")
        os.chmod(path, 0o777)  # the kernel's word is asked even then
        self.assert_refused(address, "no coordinator answers")

    def test_on_an_abstract_socket(self):
        _, address = self.start_coordinator(listen=f"unix-abstract:lockstep-test-{uuid.uuid4()}")
        self.assert_refused(address, "no coordinator answers")

    def test_over_tcp_without_the_token(self):
        _, address = self.start_coordinator(listen="127.0.0.1:0")
        self.assert_refused(address, "asks for a token")

    def test_the_default_socket_cannot_be_reached(self):
        self.start("coordinator")
        socket = os.path.join(self.runtime, "lockstep", "coordinator.sock")
        wait_until(lambda: os.path.exists(socket), 10, "the default socket")
        self.assert_refused(f"unix:{socket}", "no coordinator answers")


if __name__ == "__main__":
    unittest.main(verbosity=2)
