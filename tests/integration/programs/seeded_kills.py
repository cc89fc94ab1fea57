# SPDX-License-Identifier: Apache-2.0
"""Seeded runs in which the coordinator (its journal in SQLite) is killed at random moments: when jobs are submitted and
placed, when a generation changes, when a job ends. What was acknowledged is there, nothing runs twice, and the weights
are those of an undisturbed run. LOCKSTEP_TEST_SEEDS is how many runs there are, LOCKSTEP_TEST_FIRST_SEED the first."""

import json
import os
import random
import threading
import time
import unittest

import harness
from harness import PACED, steps_that_last, wait_until

SEEDS = int(os.environ.get("LOCKSTEP_TEST_SEEDS", "2"))
FIRST = int(os.environ.get("LOCKSTEP_TEST_FIRST_SEED", "1"))
EXTRA = "elastic: {min_workers: 1, max_workers: 2}\nfailure_detection: 1s\nrestart: {max_restarts: 20}\n"


class SeededKills(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.job = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(0.5), nproc=2, shards=2, train_extra="  eval: {every: never}\n", extra=EXTRA))

    def start_daemon(self):
        child, self.address = self.start_coordinator("--state-dir", self.state)
        return child

    def verb(self, *arguments):
        return self.launch(arguments[0], f"--coordinator={self.address}", *arguments[1:], seconds=90)

    def submit(self, taken, problems):
        code, out, err = self.verb("submit", "--no-follow", "-o", "json", self.job)
        if code == 0:
            taken.append(json.loads(out.strip().splitlines()[-1])["job"])
        elif code != 4:
            problems.append(err)

    def one_run(self, seed, wanted):
        draw = random.Random(seed)
        self.state = os.path.join(self.dir, f"state{seed}")
        coordinator = self.start_daemon()
        agent = self.start("launcher", "join", f"--coordinator={self.address}", "--slots=4",
                           f"--state-dir={self.dir}/agent{seed}", env=PACED)
        taken, problems = [], []
        clients = [threading.Thread(target=self.submit, args=(taken, problems)) for _ in range(2)]
        for client in clients:
            client.start()
        # A submit and its scheduling take some 20 ms, the job's start 200 ms, the training 500 ms.
        for longest in (0.03, 0.3, 0.9):
            time.sleep(draw.uniform(0, longest))
            if draw.random() < 0.3:
                workers = self.processes("worker")
                if workers:
                    draw.choice(workers).kill()
                    time.sleep(draw.uniform(0, 0.05))
            coordinator.kill()
            coordinator.communicate()
            coordinator = self.start_daemon()
        for client in clients:
            client.join()
        self.assertEqual(problems, [])

        def jobs():
            code, out, err = self.verb("list", "-o", "json")
            self.assertEqual(code, 0, err)
            return {job["job_id"]: job for job in json.loads(out)["jobs"]}
        try:
            found_last = jobs()
            wait_until(lambda: all(j["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for j in jobs().values()),
                       60, f"seed {seed}: all jobs end")
        except AssertionError as error:
            agent.kill()
            coordinator.kill()
            said = agent.communicate()[1] + coordinator.communicate()[1]
            raise AssertionError(f"{error}: {found_last}\n{said}") from None
        found = jobs()
        self.assertLessEqual(set(taken), set(found), f"seed {seed}: acknowledged jobs")
        self.assertLessEqual(len(found), 2, f"seed {seed}: one job for each request")
        for name in found:
            code, out, err = self.verb("describe", "-o", "json", name)
            self.assertEqual(code, 0, err)
            status = json.loads(out)["job"]["status"]
            self.assertEqual(status["state"], "SUCCEEDED", f"seed {seed}: {status}")
            self.assertEqual(status["result"]["model_sha256"], wanted, f"seed {seed}")
        agent.terminate()
        agent.communicate()
        coordinator.terminate()
        coordinator.communicate()
        self.assert_nothing_left()
        return len(found)

    def test_seeds(self):
        wanted = self.train("--nproc-per-node=2", self.job)["model"]["sha256"]
        jobs = 0
        for seed in range(FIRST, FIRST + SEEDS):
            jobs += self.one_run(seed, wanted)
        print(f"{SEEDS} runs from seed {FIRST}, {3 * SEEDS} kills, {jobs} jobs", flush=True)


if __name__ == "__main__":
    unittest.main()
