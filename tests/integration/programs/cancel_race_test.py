# SPDX-License-Identifier: Apache-2.0
"""Cancels at any time, several at once: one final state each, and nothing is left."""

import concurrent.futures
import json
import os
import random
import time
import unittest

import harness
from harness import wait_until
from nodes import Nodes

JOBS = int(os.environ.get("LOCKSTEP_TEST_CANCELS", "150"))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "1"))
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


class CancelRace(Nodes):
    def jobs(self):
        return {job["job_id"]: job for job in json.loads(self.ask("list", "-o", "json"))["jobs"]}

    def open_files(self, child):
        return len(os.listdir(f"/proc/{child.pid}/fd"))

    def race(self, path, number):
        """A job that is cancelled after a random time, once or twice, softly or not; what each cancel said.

        Every second one does not end by itself before that.
        """
        draw = random.Random(SEED * 1000 + number)
        job = self.submit(*(("--set=train.steps=100000000",) if number % 2 else ()), path)
        time.sleep(draw.choice((0.0, draw.uniform(0, 0.1), draw.uniform(0, 1.0))))
        said = []
        for _ in range(draw.choice((1, 1, 2))):
            kill = ("--kill",) if draw.random() < 0.3 else ()
            said.append(self.launch("cancel", f"--coordinator={self.address}", *kill, job))
        return job, said

    def test_one_final_state_each_and_nothing_is_left(self):
        path = self.write("tiny.yaml", harness.synthetic_job(
            steps=40, nproc=2, shards=2, train_extra="  eval: {every: never}\n",
            extra="checkpoint: {dir: saved, every: 5 steps, resume: never}\nrestart: {max_restarts: 3}\n"))
        self.join("one", 4)
        self.race(path, 0)
        wait_until(lambda: all(job["state"] in FINAL for job in self.jobs().values()), 60, "the first one ends")
        files = self.open_files(self.agents["one"])
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            raced = dict(pool.map(lambda number: self.race(path, number), range(1, JOBS)))
        wait_until(lambda: all(job["state"] in FINAL for job in self.jobs().values()), 120, "all jobs end")
        ended = self.jobs()
        self.assertEqual(len(ended), JOBS)
        for job, said in raced.items():
            self.assertIn(ended[job]["state"], ("CANCELLED", "SUCCEEDED"), ended[job])
            for code, out, err in said:
                # It was over already, and that is said.
                self.assertTrue(code == 0 or "has already ended" in err, (code, out, err, ended[job]))
        states = sorted(job["state"] for job in ended.values())
        self.assertGreater(states.count("CANCELLED"), JOBS // 3, states)
        wait_until(lambda: not self.processes("worker"), 20, "no worker is left")
        node = wait_until(lambda: (n := self.nodes()[0])["state"] == "up" and not int(n.get("used_slots", 0)) and n, 20,
                          "all slots are free")
        self.assertTrue(node["connected"])
        # What is final stays so, also for a coordinator that reads its journal.
        self.assertEqual({i: job["state"] for i, job in self.jobs().items()}, {i: job["state"] for i, job in ended.items()})
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()
        self.assertEqual({i: job["state"] for i, job in self.jobs().items()}, {i: job["state"] for i, job in ended.items()})
        now = self.open_files(self.agents["one"])
        self.assertLessEqual(now, files + 8, "the agent's descriptors do not grow with the jobs")
        job = self.submit(path)
        wait_until(lambda: self.jobs()[job]["state"] == "SUCCEEDED", 60, "the next job runs as ever")


if __name__ == "__main__":
    unittest.main(verbosity=2)
