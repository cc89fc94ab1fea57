# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not well: what their agents find before they take work."""

import os
import signal
import subprocess
import unittest

import harness
from harness import wait_until
from nodes import Nodes

DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")  # the library that makes the trouble


class Unhealthy(Nodes):
    def mount(self, path, options):
        """A small disk of the test's own; skips where none can be had."""
        os.makedirs(path, exist_ok=True)
        if os.geteuid() != 0:
            self.skipTest("only root can mount a disk")
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True,
                                 check=False)
        if mounted.returncode != 0:
            self.skipTest(f"no disk can be mounted here: {mounted.stderr}")
        self.addCleanup(subprocess.run, ["umount", "-l", path], check=False)

    def test_a_full_disk_takes_a_node_out_until_there_is_room(self):
        disk = os.path.join(self.dir, "disk")
        self.mount(disk, "size=160m")
        ballast = os.path.join(disk, "ballast")
        with open(ballast, "wb") as file:
            file.write(bytes(150 << 20))
        node = self.join("node", 1, f"--runs-dir={disk}/runs", LOCKSTEP_HEALTH_AGAIN="200ms")
        found = self.await_state(node, "unhealthy")
        self.assertIn(f"the disk of {disk}/runs has ", found["reason"])
        self.assertIn("make room", found["reason"])
        wait_until(lambda: "this node takes no work" in self.said("node"), 10, "it says so")
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=20))
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] == "PENDING" and
                            "MiB left" in s["reason"] and s, 20, "the job waits")
        self.assertIn(node, status["reason"])
        os.remove(ballast)
        self.await_state(node, "up")
        wait_until(lambda: self.describe(job)["status"]["state"] == "SUCCEEDED", 60, "the job runs there")
        self.assertIn("this node is well again", self.said("node"))

    def test_a_disk_that_fills_before_a_jobs_first_worker_costs_the_job_nothing(self):
        disk = os.path.join(self.dir, "disk")
        self.mount(disk, "size=160m")
        bad = self.join("bad", 1, f"--runs-dir={disk}/runs", LOCKSTEP_HEALTH_AGAIN="1h")
        self.await_state(bad, "up")
        with open(os.path.join(disk, "ballast"), "wb") as file:
            file.write(bytes(150 << 20))
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=20))
        self.assertIn("MiB left", self.await_state(bad, "unhealthy")["reason"])
        good = self.join("good", 1)
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] == "SUCCEEDED" and s, 60,
                            "it runs elsewhere")
        self.assertEqual(int(status["restarts"]), 0)
        self.assertNotEqual(good, bad)

    def test_a_node_whose_state_folder_was_removed_takes_no_work(self):
        bad = self.join("bad", 1, LOCKSTEP_HEALTH_AGAIN="1h")
        self.await_state(bad, "up")
        os.rename(os.path.join(self.dir, "bad"), os.path.join(self.dir, "was_bad"))
        os.mkdir(os.path.join(self.dir, "bad"))
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=20))
        self.assertIn("was removed: start the agent again", self.await_state(bad, "unhealthy")["reason"])
        self.join("good", 1)
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] == "SUCCEEDED" and s, 60,
                            "it runs elsewhere")
        self.assertEqual(int(status["restarts"]), 0)

    def test_a_read_only_disk(self):
        disk = os.path.join(self.dir, "disk")
        self.mount(disk, "size=160m")
        node = self.join("node", 1, f"--runs-dir={disk}/runs", LOCKSTEP_HEALTH_AGAIN="200ms")
        self.await_state(node, "up")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=20))
        self.assertIn("Read-only file system", self.await_state(node, "unhealthy")["reason"])
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        self.await_state(node, "up")
        wait_until(lambda: self.describe(job)["status"]["state"] == "SUCCEEDED", 60, "the job runs there")

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_disk_that_hangs_before_a_jobs_first_worker_is_named(self):
        os.makedirs(os.path.join(self.dir, "runs"))
        node = self.join("node", 1, "--runs-dir=runs", LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK_OF="/runs/",
                         LOCKSTEP_TEST_DISK=self.write("disk", "well"))
        self.await_state(node, "up")
        self.write("disk", "stalls")
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=20))
        why = "have not come back for 10s: the folder runs does not answer"
        self.assertIn(why, self.await_state(node, "unhealthy")["reason"])
        wait_until(lambda: f"this worker is not started yet: its checks {why}" in self.ask("logs", job), 20,
                   "who follows the job hears of it")
        self.write("disk", "well")
        wait_until(lambda: self.describe(job)["status"]["state"] == "SUCCEEDED", 60, "the job runs")

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_disk_that_hangs_does_not_keep_its_agent(self):
        os.makedirs(os.path.join(self.dir, "runs"))
        agent = self.start_agent("node", 1, "--runs-dir=runs", LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK_OF="/runs/",
                                 LOCKSTEP_TEST_DISK=self.write("disk", "stalls"))
        wait_until(lambda: "this host offers" in self.said("node"), 30, "it begins")
        agent.send_signal(signal.SIGTERM)
        agent.wait(timeout=harness.patient())
        self.assertIn("a look at the folder runs does not come back: ends without waiting", self.said("node"))


if __name__ == "__main__":
    unittest.main()
