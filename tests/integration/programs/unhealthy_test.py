# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not well: what their agents find before they take work."""

import os
import subprocess
import unittest

from harness import wait_until
from nodes import Nodes


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


if __name__ == "__main__":
    unittest.main()
