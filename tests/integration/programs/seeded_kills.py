# SPDX-License-Identifier: Apache-2.0
"""Seeded runs in which the coordinator is killed at random moments: when jobs are submitted and placed, when a
generation changes, when a job ends. What was acknowledged is there, nothing runs twice, workers that nobody killed are
the same processes until the end, and the weights are those of an undisturbed run.

LOCKSTEP_TEST_SEEDS is how many runs there are, LOCKSTEP_TEST_FIRST_SEED the first. The journal is in SQLite; with
LOCKSTEP_TEST_STORE=etcd there are two coordinators on an etcd, of which the one that leads is killed."""

import json
import os
import random
import threading
import time
import unittest

import harness
from etcd import EtcdTest
from harness import PACED, steps_that_last, wait_until

SEEDS = int(os.environ.get("LOCKSTEP_TEST_SEEDS", "2"))
FIRST = int(os.environ.get("LOCKSTEP_TEST_FIRST_SEED", "1"))
STORE = os.environ.get("LOCKSTEP_TEST_STORE", "sqlite")
EXTRA = "elastic: {min_workers: 1, max_workers: 2}\nfailure_detection: 1s\nrestart: {max_restarts: 20}\n"
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


class Kills:
    """A test of runs on one kind of store, which says how coordinators are started, killed and asked."""

    def setUp(self):
        super().setUp()
        self.job = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(self.job_seconds), nproc=2, shards=2, train_extra="  eval: {every: never}\n",
            extra=EXTRA))

    def ask(self, *arguments):
        return self.launch(arguments[0], f"--coordinator={self.all_addresses()}", *arguments[1:], seconds=90)

    def submit(self, taken, problems):
        code, out, err = self.ask("submit", "--no-follow", "-o", "json", self.job)
        if code == 0:
            taken.append(json.loads(out.strip().splitlines()[-1])["job"])
        elif code != 4:
            problems.append(err)

    def jobs(self):
        code, out, err = self.ask("list", "-o", "json")
        self.assertEqual(code, 0, err)
        return {job["job_id"]: job for job in json.loads(out)["jobs"]}

    def describe(self, job):
        code, out, err = self.ask("describe", "-o", "json", job)
        self.assertEqual(code, 0, err)
        return json.loads(out)["job"]

    def look(self):
        """The workers that are there now, which it remembers."""
        workers = self.processes("worker")
        self.seen.update(worker.pid for worker in workers)
        return workers

    def maybe_kill_a_worker(self, draw):
        if draw.random() >= 0.3:
            return
        workers = self.look()
        if workers:
            victim = draw.choice(workers)
            self.killed.add(victim.pid)
            try:
                victim.kill()
            except ProcessLookupError:
                pass  # it has just ended
            time.sleep(draw.uniform(0, 0.05))

    def one_run(self, seed, wanted):
        draw = random.Random(seed)
        self.seen, self.killed = set(), set()
        self.start_coordinators(seed)
        agent = self.start("launcher", "join", f"--coordinator={self.all_addresses()}", "--slots=4",
                           f"--state-dir={self.dir}/agent{seed}", env=PACED)
        taken, problems = [], []
        clients = [threading.Thread(target=self.submit, args=(taken, problems)) for _ in range(2)]
        for client in clients:
            client.start()
        for longest in self.moments:
            time.sleep(draw.uniform(0, longest))
            self.maybe_kill_a_worker(draw)
            self.look()
            self.kill_coordinator()
            self.look()
        for client in clients:
            client.join()
        self.assertEqual(problems, [])

        found_last = None
        try:
            found_last = self.jobs()
            wait_until(lambda: all(job["state"] in FINAL for job in self.jobs().values()), 60,
                       f"seed {seed}: all jobs end")
        except AssertionError as error:
            agent.kill()
            raise AssertionError(f"{error}: {found_last}\n{agent.communicate()[1]}{self.stop_coordinators()}") from None
        found = self.jobs()
        self.assertLessEqual(set(taken), set(found), f"seed {seed}: acknowledged jobs")
        self.assertLessEqual(len(found), 2, f"seed {seed}: one job for each request")
        restarts, last = 0, set()
        for job in map(self.describe, found):
            status = job["status"]
            self.assertEqual(status["state"], "SUCCEEDED", f"seed {seed}: {status}")
            self.assertEqual(status["result"]["model_sha256"], wanted, f"seed {seed}")
            restarts += int(status["restarts"])
            last.update(int(member["pid"]) for member in job["members"])
        self.assertLessEqual(self.seen - self.killed, last, f"seed {seed}: nobody else was started again")
        self.assertLessEqual(restarts, len(self.killed), f"seed {seed}: restarts")
        agent.terminate()
        agent.communicate()
        self.stop_coordinators()
        wait_until(lambda: not [p for p in self.processes() if p.name != "etcd"], 10, "nothing is left")
        return len(found), len(self.seen - self.killed), len(self.killed)

    def test_seeds(self):
        wanted = self.train("--nproc-per-node=2", self.job)["model"]["sha256"]
        began = time.monotonic()
        jobs, same, killed = map(sum, zip(*(self.one_run(seed, wanted) for seed in range(FIRST, FIRST + SEEDS))))
        print(f"{SEEDS} runs from seed {FIRST}, {3 * SEEDS} kills, {jobs} jobs; {killed} workers killed, {same} seen "
              f"that were the same until the end; {(time.monotonic() - began) / SEEDS:.1f} s a run", flush=True)


@unittest.skipUnless(STORE == "sqlite", f"the store is {STORE}")
class WithSqlite(Kills, harness.ProgramTest):
    job_seconds = 0.5
    # A submit and its scheduling take some 20 ms, the job's start 200 ms, the training 500 ms.
    moments = (0.03, 0.3, 0.9)

    def start_coordinators(self, seed):
        self.state = os.path.join(self.dir, f"state{seed}")
        self.coordinator, self.address = self.start_coordinator("--state-dir", self.state)

    def all_addresses(self):
        return self.address

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.communicate()
        self.coordinator, self.address = self.start_coordinator("--state-dir", self.state)

    def stop_coordinators(self):
        """What the last one said."""
        self.coordinator.terminate()
        return self.coordinator.communicate()[1]


@unittest.skipUnless(STORE == "etcd", f"the store is {STORE}")
class WithEtcd(Kills, EtcdTest):
    # Another one leads after more than two seconds, and who asks meanwhile asks again a moment later.
    job_seconds = 8
    moments = (0.5, 1.5, 1.5)

    def start_coordinators(self, seed):
        self.store = f"etcd://127.0.0.1:{self.ports[0]}/seed{seed}"
        self.term = None
        for number in range(2):
            self.start_candidate(number)
        self.await_another()

    def await_another(self):
        """Until one leads, since later than the one before."""
        self.term = wait_until(lambda: (now := self.leadership()) != self.term and now, 20, "one leads")

    def kill_coordinator(self):
        address, _ = self.term
        self.kill(address)
        self.start_candidate(self.addresses.index(address))
        self.await_another()

    def stop_coordinators(self):
        """What they have said."""
        for child in self.coordinators.values():
            child.terminate()
            child.wait()
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()


if __name__ == "__main__":
    unittest.main()
