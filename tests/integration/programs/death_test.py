# SPDX-License-Identifier: Apache-2.0
"""Whoever dies, nothing is left running and the message says what happened."""

import contextlib
import json
import os
import signal
import unittest

import harness
from harness import wait_until

LONG = dict(steps=100000000, hidden="[64]", train_extra="  eval: {every: never}\n")


class Death(harness.ProgramTest):
    def start_long_run(self, *arguments):
        # Who dies is not known by his silence: until that is judged nobody waits here.
        job = self.write("job.yaml", harness.synthetic_job(
            extra="restart: {max_restarts: 0}\nfailure_detection: 10m\n", **LONG))
        child = self.start("launcher", *arguments, "--nproc-per-node=4", job)
        wait_until(self.is_training, 20, "four workers train")
        return child

    def is_training(self):
        """Four workers run and the first steps are in the metrics."""
        for root, _, files in os.walk(os.path.join(self.dir, "runs")):
            if "metrics.jsonl" in files and os.path.getsize(os.path.join(root, "metrics.jsonl")) > 0:
                return len(self.processes("worker")) == 4
        return False

    def worker_of_rank(self, rank):
        """The worker that writes logs/<rank>.log is found by its slot in the agent's start order."""
        return sorted(self.processes("worker"), key=lambda process: process.pid)[rank]

    def test_a_killed_worker_is_named_and_takes_all_down(self):
        child = self.start_long_run()
        victim = self.worker_of_rank(2)
        victim.kill()
        code, out, err = self.finish(child, 30)
        self.assertEqual(code, 128 + signal.SIGKILL, err)
        self.assertIn("rank 2", err)
        self.assertIn("SIGKILL", err)
        self.assert_nothing_left()

    def test_a_crashed_worker_gives_its_signal(self):
        child = self.start_long_run()
        self.worker_of_rank(1).kill(signal.SIGSEGV)
        code, out, err = self.finish(child, 30)
        self.assertEqual(code, 128 + signal.SIGSEGV, err)
        self.assertIn("rank 1", err)
        self.assertIn("SIGSEGV", err)
        self.assert_nothing_left()

    def test_a_flipped_bit_is_found_and_its_rank_named(self):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=60, train_extra="  eval: {every: never}\n", extra="verify_replicas: 10 steps\n"))
        self.train("--nproc-per-node=4", job)
        code, out, err = self.launch("chaos", "-o", "json", "--flip", "rank:2@step:15/committed",
                                     "--nproc-per-node=4", job)
        self.assertEqual(code, 1, out + err)
        result = json.loads(out.splitlines()[-1])
        self.assertEqual(result["state"], "FAILED")
        self.assertEqual(result["faults"][0]["rank"], 2, result)
        self.assertIn("silent corruption: after step 20 the training state of rank 2",
                      result["faults"][0]["cause"])
        self.assert_nothing_left()

    def test_a_spare_takes_over(self):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=300, train_extra="  eval: {every: never}\n", extra="elastic: {min_workers: 4}\n"))
        wanted = self.train("--nproc-per-node=4", job)["model"]["sha256"]
        # So slowly that the spare is ready by then.
        code, out, err = self.launch("chaos", "-o", "json", "--set", "resources.standby=1", "--kill", "rank:1@step:270",
                                     "--nproc-per-node=4", job, env=harness.PACED)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], wanted)
        self.assertEqual([f["rank"] for f in result["faults"]], [1])
        self.assertIn("a standby takes over", err)
        self.assert_nothing_left()

    def test_a_killed_coordinator_takes_all_down(self):
        child = self.start_long_run()
        coordinator = wait_until(lambda: self.processes("coordinator"), 5, "a coordinator")[0]
        coordinator.kill()
        code, out, err = self.finish(child, 30)
        self.assertNotEqual(code, 0)
        self.assertIn("coordinator", err)
        self.assert_nothing_left()

    def test_a_killed_launcher_leaves_no_orphan(self):
        child = self.start_long_run()
        child.kill()
        child.communicate()
        self.assert_nothing_left()

    def test_ctrl_c_stops_cleanly_with_the_model_saved(self):
        child = self.start_long_run()
        child.send_signal(signal.SIGINT)
        code, out, err = self.finish(child, 30)
        self.assertEqual(code, 130, err)
        self.assertIn("model.safetensors", out + err)
        models = [os.path.join(root, "model.safetensors")
                  for root, _, files in os.walk(os.path.join(self.dir, "runs")) if "model.safetensors" in files]
        self.assertEqual(len(models), 1)
        self.assertGreater(os.path.getsize(models[0]), 1000)
        self.assert_nothing_left()

    def test_nothing_is_left_in_dev_shm(self):
        # What other programs have there comes and goes meanwhile.
        before = set(os.listdir("/dev/shm"))
        child = self.start_long_run()
        used = {path for process in self.processes() for path in self.shared_files(process)}
        child.kill()
        child.communicate()
        self.assert_nothing_left()
        self.assertEqual({path for path in used if os.path.exists(path)}, set())
        left = set(os.listdir("/dev/shm")) - before
        self.assertEqual({name for name in left if "lockstep" in name}, set())

    @staticmethod
    def shared_files(process):
        """Those in /dev/shm that the process has mapped or open."""
        with open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as file:
            found = [line.split(maxsplit=5)[-1].strip() for line in file if "/dev/shm/" in line]
        for number in os.listdir(f"/proc/{process.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/{process.pid}/fd/{number}"))
        return [path for path in found if path.startswith("/dev/shm/")]


if __name__ == "__main__":
    unittest.main(verbosity=2)
