# SPDX-License-Identifier: Apache-2.0
"""The same job on a coordinator that runs as a daemon, with this machine as a node."""

import json
import os
import re
import signal
import unittest

import harness
from harness import wait_until


class Daemon(harness.ProgramTest):
    def start_cluster(self, slots=4):
        coordinator, address = self.start_coordinator()
        agent = self.start("launcher", "join", f"--coordinator={address}", f"--slots={slots}")
        return address, coordinator, agent

    def test_submit_trains_the_same_weights_as_a_run_here(self):
        job = self.write("job.yaml", harness.synthetic_job())
        here = self.train("--nproc-per-node=4", job)
        address, _, _ = self.start_cluster()
        code, out, err = self.launch("submit", f"--coordinator={address}", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        there = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(there["model"]["sha256"], here["model"]["sha256"])
        code, out, err = self.launch("list", f"--coordinator={address}", "-o", "json")
        self.assertEqual(code, 0, err)
        self.assertIn("SUCCEEDED", out)

    def test_what_is_said_of_a_runs_folder_holds_where_the_node_has_its_own(self):
        _, address = self.start_coordinator()
        self.start("launcher", "join", f"--coordinator={address}", "--slots=1", "--runs-dir=elsewhere")
        path = self.write("job.yaml", harness.synthetic_job(name="kept", nproc=1, shards=1, steps=5))
        code, out, err = self.launch("submit", f"--coordinator={address}", path)
        self.assertEqual(code, 0, err)
        said = re.search(r"^  logs +launcher (fetch .*)$", out + err, re.M)
        self.assertTrue(said, out + err)
        job = said.group(1).split()[-1]
        code, out, _ = self.launch("describe", f"--coordinator={address}", job)
        self.assertIn(f"\nfolder      launcher {said.group(1)}\n", out)
        self.assertEqual(os.listdir(os.path.join(self.dir, "elsewhere")), [f"kept-{job}"])
        code, out, err = self.launch(*said.group(1).split())
        self.assertEqual(code, 0, err)
        # From then on the folder is here.
        code, out, _ = self.launch("describe", f"--coordinator={address}", job)
        self.assertIn(f"\nfolder      runs/kept-{job}\n", out)
        self.assertTrue(os.path.exists(os.path.join(self.dir, re.search(r"logs +(runs/\S+)", out).group(1), "0.log")))

    def test_a_job_waits_for_a_node_and_says_why(self):
        _, address = self.start_coordinator()
        job = self.write("job.yaml", harness.synthetic_job())
        code, out, err = self.launch("submit", f"--coordinator={address}", "--no-follow", job)
        self.assertEqual(code, 0, out + err)
        job_id = out.strip()
        self.assertIn(f"no node is connected. On each machine that shall run workers: launcher join "
                      f"--coordinator={address}\n", err)
        self.assertIn(f"launcher logs --coordinator={address} -f {job_id}\n", err)
        code, out, err = self.launch("list", f"--coordinator={address}")
        columns, row = out.splitlines()
        self.assertEqual(columns.split(), "JOB NAME STATE WORKERS STEP AGE USER REASON".split())
        self.assertEqual(row.split()[:4], [job_id, "tiny", "PENDING", "0/4"])
        self.assertIn("no node is connected", row)
        code, out, err = self.launch("describe", f"--coordinator={address}", "-o", "json", job_id)
        status = json.loads(out)["job"]["status"]
        self.assertEqual((status["name"], status["wanted_workers"], status["generation"]), ("tiny", 4, 0))
        self.assertIn("age_seconds", status)
        agent = self.start("launcher", "join", f"--coordinator={address}", "--slots=4")

        def succeeded():
            _, out, _ = self.launch("list", f"--coordinator={address}", "-o", "json")
            return "SUCCEEDED" in out
        wait_until(succeeded, 20, "the job runs once a node has joined")
        agent.send_signal(signal.SIGINT)
        agent.communicate(timeout=harness.patient())

    def test_top_shows_the_workers(self):
        address, _, _ = self.start_cluster()
        job = self.write("job.yaml", harness.synthetic_job(steps=100000000, train_extra="  eval: {every: never}\n"))
        self.launch("submit", f"--coordinator={address}", "--no-follow", job)
        wait_until(lambda: len(self.processes("worker")) == 4, 10, "four workers")

        def figures():
            code, out, err = self.launch("top", f"--coordinator={address}", "-o", "json")
            self.assertEqual(code, 0, err)
            return json.loads(out)

        def busy():
            members = figures()["jobs"][0].get("members", [])
            return len(members) == 4 and all(
                m.get("usage", {}).get("cpu_percent", 0) > 0 and int(m["usage"]["rss_bytes"]) > 1 << 20
                and int(m["progress"].get("step", 0)) > 0 for m in members)
        wait_until(busy, 20, "all workers' figures")
        node = figures()["nodes"][0]
        self.assertEqual((node["slots"], node["used_slots"]), (4, 4))
        code, out, err = self.launch("top", f"--coordinator={address}")  # no terminal: once
        self.assertEqual(code, 0, err)
        self.assertIn("1 node, 4 of 4 slots in use, 1 job", out)
        self.assertNotIn("\033", out)
        code, _, err = self.launch("top", f"--coordinator={address}", "no-such-job")
        self.assertNotEqual(code, 0)
        self.assertIn("no-such-job", err)

    def test_cancel_and_logs(self):
        address, _, _ = self.start_cluster()
        job = self.write("job.yaml", harness.synthetic_job(steps=100000000, train_extra="  eval: {every: never}\n"))
        code, out, err = self.launch("submit", f"--coordinator={address}", "--no-follow", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        job_id = json.loads(out.strip().splitlines()[-1])["job"]
        wait_until(lambda: len(self.processes("worker")) == 4, 10, "four workers")
        code, out, err = self.launch("cancel", f"--coordinator={address}", job_id)
        self.assertEqual(code, 0, out + err)
        wait_until(lambda: not self.processes("worker"), 10, "the workers leave")
        # The coordinator hears of their end a moment later.
        wait_until(lambda: "CANCELLED" in self.launch("describe", f"--coordinator={address}", job_id)[1], 10,
                   "the job is cancelled")
        code, out, err = self.launch("logs", f"--coordinator={address}", job_id)
        self.assertEqual(code, 0, err)
        code, out, err = self.launch("cancel", f"--coordinator={address}", "no-such-job")
        self.assertNotEqual(code, 0)
        self.assertIn("no-such-job", err)

    def test_a_node_without_a_coordinator_says_so(self):
        agent = self.start("launcher", "join", "--coordinator=127.0.0.1:9", "--slots=1")
        os.set_blocking(agent.stderr.fileno(), False)
        said = bytearray()

        def complained():
            try:
                said.extend(os.read(agent.stderr.fileno(), 65536))
            except BlockingIOError:
                pass
            return b"no connection to the coordinator at 127.0.0.1:9" in said
        wait_until(complained, 10, "the node says that nobody answers")
        agent.send_signal(signal.SIGINT)
        wait_until(lambda: agent.poll() is not None, 5, "the node leaves")

    def test_a_node_that_leaves_takes_its_workers_along(self):
        address, _, agent = self.start_cluster()
        job = self.write("job.yaml", harness.synthetic_job(steps=100000000, train_extra="  eval: {every: never}\n"))
        self.launch("submit", f"--coordinator={address}", "--no-follow", job)
        wait_until(lambda: len(self.processes("worker")) == 4, 10, "four workers")
        agent.send_signal(signal.SIGINT)
        agent.communicate()
        wait_until(lambda: not self.processes("worker"), 1, "no orphan")


if __name__ == "__main__":
    unittest.main(verbosity=2)
