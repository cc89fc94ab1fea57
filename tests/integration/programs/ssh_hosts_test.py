# SPDX-License-Identifier: Apache-2.0
"""A run over several hosts (network namespaces) that one launcher begins, with a script in the place of ssh."""

import contextlib
import glob
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import unittest

import harness
from harness import steps_that_last, wait_until
from hosts import HostsTest

# What enters a host, `enter HOST COMMAND`: as ssh does, it has a process of another tree there run the command, whose
# standard streams are its own, and ends with its exit code, or with 255 and a line that says what is wrong with a host.
ENTER = """#!{python}
import socket, sys
if sys.argv[1] not in {hosts}:
    sys.exit(print("enter: Could not resolve hostname " + sys.argv[1], file=sys.stderr) or 255)
if sys.argv[1] == "locked":
    sys.exit(print("Permission denied (publickey).", file=sys.stderr) or 255)
with socket.socket(socket.AF_UNIX) as server:
    server.connect("{server}")
    socket.send_fds(server, ["\\0".join(sys.argv[1:]).encode()], [0, 1, 2])
    sys.exit(int(server.recv(16)))
"""


class SshHosts(HostsTest):
    def up(self, *names):
        """Hosts that can be entered."""
        hosts = self.make_network(*names)
        path = os.path.join(self.dir, "server")
        self.server = socket.socket(socket.AF_UNIX)
        self.addCleanup(self.server.close)
        self.server.bind(path)
        self.server.listen(16)
        threading.Thread(target=self.serve, daemon=True).start()
        self.enter = self.write("enter", ENTER.format(python=sys.executable, server=path, hosts=[*names, "locked"]))
        os.chmod(self.enter, 0o755)
        return hosts

    def serve(self):
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.run_there, args=[client], daemon=True).start()

    def run_there(self, client):
        with client:
            words, fds, _, _ = socket.recv_fds(client, 65536, 3)
            host, command = words.decode().split("\0")
            child = subprocess.Popen([*self.network[host].prefix(), "sh", "-c", command], cwd="/", stdin=fds[0],
                                     stdout=fds[1], stderr=fds[2], env=self.environment(**harness.PACED))
            for fd in fds:
                os.close(fd)
            code = child.wait()
            with contextlib.suppress(OSError):
                client.send(str(code if code >= 0 else 128 - code).encode())

    def job_file(self, nproc=2, **job):
        return self.write("job.yaml", harness.synthetic_job(
            hidden="[64]", nproc=nproc, train_extra="  eval: {every: never}\n", **job))

    def launch_from_head(self, *arguments, **options):
        return self.on(self.network["head"], "launcher", f"--ssh={self.enter}", *arguments, log="head",
                       env={"LOCKSTEP_LOG": "warning"}, **options)

    def code_of(self, child, seconds=120):
        return child.wait(timeout=harness.patient(seconds))

    def await_steps(self, runs):
        """Waits until so many runs have made steps."""
        wait_until(lambda: sum(os.path.getsize(p) > 0 for p in glob.glob(os.path.join(self.dir, "runs/*/metrics.jsonl"))) ==
                   runs, 60, "it trains")

    def result(self):
        return json.loads(next(line for line in self.said("head").splitlines() if line.startswith("{")))

    def alone_with(self, path, nproc):
        return self.train("--nnodes=1", f"--nproc-per-node={nproc}", path, cwd=self.dir, seconds=600)["model"]["sha256"]

    def test_one_command_trains_on_all_hosts_to_the_same_bits(self):
        self.up("h1", "h2")
        path = self.job_file(steps=200)
        run = self.launch_from_head("-o", "json", "--hosts=h1:1,h2:3", path)
        wait_until(lambda: self.processes("worker"), 60, "workers run")
        for process in self.processes():
            shown = b""
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), \
                    open(f"/proc/{process.pid}/environ", "rb") as file:  # it may have ended
                shown = file.read()
            self.assertNotRegex(b" ".join(a.encode() for a in process.argv) + shown, rb"[0-9a-f]{64}", "no token is shown")
        self.assertEqual(self.code_of(run), 0, self.said("head"))
        result = self.result()
        self.assertEqual(result["workers"], 4)
        self.assertEqual(result["model"]["sha256"], self.alone_with(path, 2))
        self.assertEqual(self.processes(), [])
        # A host file says the same; and the job's workdir goes with it.
        hosts = self.write("hosts", "# the cluster\nh1 slots=2\nh2\n")
        self.write("code/train.csv", "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(200)))
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"(?m)^  data: .*", "  data: {csv: {train: train.csv, test: train.csv}}", file.read())
        path = self.write("shipped.yaml", text.replace("name: tiny", "name: shipped") + "workdir: code\n")
        run = self.launch_from_head("-q", f"--hostfile={hosts}", path)
        self.assertEqual(self.code_of(run), 0, self.said("head"))
        self.assertEqual(len(glob.glob(os.path.join(self.dir, "runs/shipped-*/workdir/train.csv"))), 1)
        self.assertEqual(self.processes(), [])
        self.assertEqual(glob.glob(os.path.join(self.runtime, "lockstep-*")), [])

    def test_hosts_that_cannot_take_part_are_named(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000)
        false = self.write("old-launcher", "#!/bin/sh\necho \"error: 'guest' is neither a verb nor a .yaml file\" >&2\nexit 2\n")
        os.chmod(false, 0o755)
        for hosts, more, why in (
                ("h1,nowhere", (), r"host nowhere cannot be entered: .*Could not resolve hostname nowhere.*/enter nowhere true' has to work"),
                ("h1,locked", (), r"host locked cannot be entered: Permission denied \(publickey\)"),
                ("h1,h2", ("--ssh=./no/such/ssh -p 2",), r"this host has no program './no/such/ssh', which hosts are to be"),
                ("h1,h2", ("--launcher=/no/such/launcher",), r"has no launcher that can be run at /no/such/launcher"),
                ("h1,h2", (f"--launcher={false}",), r"is no launcher of this version: error: 'guest' is neither")):
            with self.subTest(hosts=hosts, more=more):
                before = self.length_said("head")
                run = self.launch_from_head(f"--hosts={hosts}", *more, path)
                self.assertEqual(self.code_of(run, 60), 5, self.said("head"))
                self.assertRegex(self.said("head")[before:], why)
                wait_until(lambda: not self.processes(), 30, "nothing is left on any host")

    def test_ctrl_c_drains_on_all_hosts_and_another_one_kills(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000, extra="checkpoint: {dir: saved}\n")
        run = self.launch_from_head("-o", "json", "--hosts=h1,h2", path)
        self.await_steps(1)
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        self.assertEqual(self.processes(), [])
        saved = os.readlink(os.path.join(self.dir, "saved/last"))
        run = self.launch_from_head("--hosts=h1,h2", path)
        self.await_steps(2)
        for worker in self.processes("worker"):
            worker.kill(signal.SIGSTOP)  # none can save
        run.send_signal(signal.SIGINT)
        wait_until(lambda: self.said("head").count("stopping: the workers") == 2, 30, "it drains")
        harness.signal_again(run)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        wait_until(lambda: not self.processes(), 30, "nothing is left on any host")
        self.assertEqual(os.readlink(os.path.join(self.dir, "saved/last")), saved)

    def test_ctrl_c_while_the_model_is_fetched_says_where_it_is(self):
        hosts = self.up("h1", "h2")
        for host in hosts:
            self.own_view(host, "runs")
        path = self.job_file(steps=steps_that_last(20), extra="failure_detection: 60s\n")
        run = self.launch_from_head("-o", "json", "--hosts=h1:1,h2:1", path)
        wait_until(lambda: len(self.processes("worker")) == 2, 60, "both train")
        # The agents stand still, so that nobody sends the model; their workers do not.
        there = {pid for host in hosts for pid in host.pids()}
        for process in self.processes("launcher"):
            if process.pid in there:
                process.kill(signal.SIGSTOP)
        self.unpace()
        wait_until(lambda: glob.glob(os.path.join(self.dir, "only-h1/runs/*/model/model.safetensors")), 60, "it is done")
        wait_until(lambda: glob.glob(os.path.join(self.dir, "runs/*/.fetched")), 60, "it is asked for")
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        self.assertIn("the model stays on the host of rank 0: interrupted while host h1 sent its files; copy it from ",
                      self.said("head"))
        self.assertEqual((self.result()["state"], self.result()["exit_code"]), ("SUCCEEDED", 130))

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_disk_that_hangs_when_the_job_is_over_keeps_no_launcher(self):
        host, = self.up("h1")
        self.own_view(host, "out")
        disk = {"LD_PRELOAD": os.environ["LOCKSTEP_DISK_TROUBLE"], "LOCKSTEP_TEST_DISK": self.write("disk", "stalls"),
                "LOCKSTEP_TEST_DISK_OF": "/model"}
        run = self.on(self.network["head"], "launcher", f"--ssh={self.enter}", "-o", "json", "--hosts=h1", "--run-dir=out",
                      self.job_file(nproc=1, steps=20), log="head", env=disk)
        wait_until(lambda: glob.glob(os.path.join(self.dir, "only-h1/out/model/model.safetensors")), 60, "it is done")
        wait_until(lambda: not self.processes("worker"), 60, "its worker leaves")
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        self.assertIn("the disk of the run's folder does not answer", self.said("head"))
        self.assertEqual((self.result()["state"], self.result()["exit_code"]), ("SUCCEEDED", 130))

    def test_another_runs_model_and_logs_are_not_taken_for_this_ones(self):
        host, = self.up("h1")
        self.own_view(host, "out")
        path = self.job_file(nproc=1, steps=20)
        model = os.path.join(self.dir, "out/model/model.safetensors")

        def run(*arguments):
            before = self.length_said("head")
            child = self.launch_from_head("--run-dir=out", *arguments, path)
            self.assertEqual(self.code_of(child), 0, self.said("head"))
            with open(model, "rb") as file:
                return self.said("head")[before:], hashlib.sha256(file.read()).hexdigest()

        said, first = run("--hosts=head")
        self.assertIn(first, said)
        self.assertRegex(said, r"(?m)^  logs +out/logs$")
        self.write("out/model/ema.safetensors", "of the first run")
        said, second = run("--hosts=h1", "--set=train.seed=4")
        self.assertNotEqual(first, second)
        self.assertIn(second, said)
        self.assertIn("the model is in out/model on this host", said)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "out/model/ema.safetensors")))
        self.assertRegex(said, r"(?m)^  logs +out/logs \(not on this host\)$")

    def test_without_their_launcher_the_hosts_save_and_end(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000, extra="checkpoint: {dir: saved}\n")
        run = self.launch_from_head("--hosts=h1,h2", path)
        self.await_steps(1)
        run.kill()
        wait_until(lambda: not self.processes(), 60, "all of them have left")
        self.assertGreater(int(os.readlink(os.path.join(self.dir, "saved/last"))[5:]), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
