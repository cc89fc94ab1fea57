# SPDX-License-Identifier: Apache-2.0
"""Several coordinators on a real etcd: the leader dies, is stopped and wakes, etcd dies. Jobs go on, nothing that was
acknowledged is lost, and nothing runs twice."""

import glob
import json
import os
import re
import shutil
import statistics
import threading
import time
import unittest

import harness
from etcd import EtcdTest
from harness import PACED, newest_record, steps_that_last, wait_until

FAILOVERS = int(os.environ.get("LOCKSTEP_TEST_FAILOVERS", "3"))
HEAL = "elastic: {min_workers: 1, max_workers: 4}\nfailure_detection: 1s\nrestart: {max_restarts: 20}\n"
TRAIN = "  eval: {every: 500 steps, block: 40}\n"


class Failover(EtcdTest):
    def start_cluster(self, coordinators=2, slots=4):
        for number in range(coordinators):
            self.start_candidate(number)
        self.leader()
        self.start("launcher", "join", f"--coordinator={self.all_addresses()}", f"--slots={slots}", env=PACED)

    def submit(self, job):
        code, out, err = self.verb("submit", "--no-follow", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        return json.loads(out.strip().splitlines()[-1])["job"]

    def status(self, job):
        code, out, err = self.verb("describe", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        return json.loads(out)["job"]["status"]

    def await_end(self, job, seconds=120):
        self.unpace()

        def ended():
            status = self.status(job)
            return status if status["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None
        status = wait_until(ended, seconds, "the job ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        return status

    def metrics(self, job):
        runs = os.path.join(self.dir, "runs")
        for name in os.listdir(runs) if os.path.isdir(runs) else []:
            path = os.path.join(runs, name, "metrics.jsonl")
            if name.endswith("-" + job) and os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    return [json.loads(line) for line in file if line.endswith("\n")]
        return []

    def steps(self, job):
        """The newest one that is written down."""
        return max((newest_record(path)[0] for path in glob.glob(os.path.join(self.dir, f"runs/*-{job}/ledger.bin"))),
                   default=0)

    def fail_over(self, end):
        """Ends the leader by `end`; seconds until another one answers."""
        old = self.leader()
        began = time.monotonic()
        end(old)
        code, out, err = self.verb("nodes", seconds=30)
        while code != 0 or self.leader_key() == old:
            self.assertLess(time.monotonic() - began, harness.LEAST_SECONDS, f"{out}{err}")
            code, out, err = self.verb("nodes", seconds=30)
        return time.monotonic() - began, old

    def test_the_leader_dies_again_and_again_and_a_job_trains(self):
        job_file = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(15 + 40 * FAILOVERS), train_extra=TRAIN, extra=HEAL))
        wanted = self.train("--nproc-per-node=4", job_file, seconds=600)["model"]["sha256"]
        self.start_cluster()
        job = self.submit(job_file)
        wait_until(lambda: self.steps(job) > 5, 30, "the job trains")
        workers = sorted(p.pid for p in self.processes("worker"))
        times = []
        for _ in range(FAILOVERS):
            before = self.steps(job)
            took, old = self.fail_over(self.kill)
            times.append(took)
            self.assertGreater(self.steps(job), before, "steps while nobody led")
            number = self.addresses.index(old)
            self.start_candidate(number)
        print(f"failovers: {len(times)}, median {statistics.median(times):.2f} s, most {max(times):.2f} s", flush=True)
        # Beside other tests one takes longer now and then; by hand (LOCKSTEP_TEST_FAILOVERS) none may, and most are
        # as quick as docs/results/high_availability.md says.
        self.assertLessEqual(statistics.median(times), 6 * harness.PATIENCE)
        if "LOCKSTEP_TEST_FAILOVERS" in os.environ:
            self.assertLessEqual(statistics.median(times), 3)
            self.assertLessEqual(max(times), 6)
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "nobody was started again")
        code, out, err = self.verb("list")
        self.assertEqual(code, 0, err)
        self.assertIn(job, out)
        status = self.await_end(job)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        self.assertEqual(int(status["generation"]), 1, "nobody left the generation")
        self.assertEqual(status["result"].get("faults", []), [])

    def test_what_was_acknowledged_is_there_whoever_leads(self):
        self.start_cluster(slots=2)
        text = harness.synthetic_job(steps=5, nproc=1, shards=1, train_extra="  eval: {every: never}\n")
        job_file = self.write("job.yaml", text)
        acknowledged, problems = [], []
        over = threading.Event()

        def submit_again_and_again(who):
            while not over.is_set():
                code, out, err = self.verb("submit", "--no-follow", "-o", "json", f"--set=name=by{who}", job_file)
                if code == 0:
                    acknowledged.append(json.loads(out.strip().splitlines()[-1])["job"])
                elif code != 4:
                    problems.append(err)
                time.sleep(0.5)  # as many jobs as two slots do in seconds

        clients = [threading.Thread(target=submit_again_and_again, args=(who,)) for who in range(3)]
        for client in clients:
            client.start()
        for _ in range(2):
            before = len(acknowledged)
            wait_until(lambda: len(acknowledged) > before + 1, 30, "jobs are taken")
            _, old = self.fail_over(self.kill)
            self.start_candidate(self.addresses.index(old))
        over.set()
        for client in clients:
            client.join()
        self.assertEqual(problems, [])
        self.assertEqual(len(acknowledged), len(set(acknowledged)))

        def listed():
            code, out, err = self.verb("list", "-o", "json")
            self.assertEqual(code, 0, err)
            jobs = {}
            for line in out.strip().splitlines():
                for job in json.loads(line).get("jobs", []):
                    jobs[job["job_id"]] = job["state"]
            return jobs
        self.assertLessEqual(set(acknowledged), set(listed()), "acknowledged jobs are known")

        def all_succeeded():
            states = listed()
            for job in states:
                self.assertNotIn(states[job], ("FAILED", "CANCELLED"), self.status(job))
            return all(state == "SUCCEEDED" for state in states.values())
        wait_until(all_succeeded, 300, "all jobs succeed")
        # A request that was repeated is one job, and no job ran twice: its steps are there once.
        for job in acknowledged:
            steps = [line["step"] for line in self.metrics(job) if line.get("kind") == "step"]
            self.assertEqual(steps, sorted(set(steps)), job)

    def test_a_leader_that_was_stopped_says_nothing_when_it_wakes(self):
        self.start_cluster(coordinators=3)
        job_file = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(600), nproc=2, train_extra=TRAIN, extra=HEAL))
        job = self.submit(job_file)
        _, old = self.fail_over(self.stop)
        # What it is told while it is stopped waits in its socket until it wakes.
        late = self.start("launcher", "submit", "--no-follow", f"--coordinator={old}", job_file)
        time.sleep(0.5)
        new = self.leader()
        self.assertNotEqual(new, old)
        self.wake(old)
        code, out, err = self.finish(late, 30)
        self.assertNotEqual(code, 0, out + err)
        self.assertEqual(out, "")
        code, out, err = self.verb("list")
        self.assertEqual(len([line for line in out.splitlines() if "tiny" in line]), 1, out)
        self.assertIn(job, out)
        # It stands by, and says who leads.
        code, out, err = self.launch("nodes", f"--coordinator={old}", seconds=30)
        self.assertEqual(code, 4)
        self.assertIn(f"stands by: ask the one that leads, {new}", err)
        self.assertIsNone(self.coordinators[old].poll())
        code, out, err = self.verb("cancel", "--kill", job)
        self.assertEqual(code, 0, err)

    def test_etcd_dies_and_comes_back(self):
        self.start_cluster()
        job_file = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(600), nproc=2, train_extra=TRAIN, extra=HEAL))
        job = self.submit(job_file)
        wait_until(lambda: self.steps(job) > 5, 30, "the job trains")
        workers = sorted(p.pid for p in self.processes("worker"))
        self.kill_etcd()
        before = self.steps(job)
        code, _, err = self.verb("submit", "--no-follow", job_file, seconds=60)
        self.assertEqual(code, 4, err)
        self.assertGreater(self.steps(job), before, "steps without etcd")
        self.assertTrue(self.start_etcd())
        self.leader()
        wait_until(lambda: self.verb("cancel", "--kill", job)[0] == 0, 30, "requests are taken again")
        self.assertEqual(len(workers), 2)
        wait_until(lambda: self.status(job)["state"] == "CANCELLED", 20, "it is carried out")

    def test_a_backup_moves_between_the_stores(self):
        self.start_cluster(coordinators=1)
        job_file = self.write("job.yaml", harness.synthetic_job(steps=5, nproc=1, shards=1))
        job = self.submit(job_file)
        self.await_end(job)
        for arguments, wanted in (
                (["backup", "copy.db", f"--store={self.store}"], 0),
                (["backup", "copy.db", f"--store={self.store}"], 1),     # replaces nothing
                (["restore", "copy.db", f"--store={self.store}"], 1),    # while one leads
                (["restore", "copy.db", "--state-dir=state"], 0),
                (["restore", "copy.db", "--state-dir=state"], 1),
                (["backup", "again.db", "--state-dir=state"], 0),
                (["restore", "again.db", f"--store={self.store}2"], 0)):
            code, out, err = self.run_program("coordinator", *arguments)
            self.assertEqual(code, wanted, f"{arguments}: {out}{err}")
        _, address = self.start_coordinator("--state-dir=state", listen=f"unix:{self.dir}/restored")
        code, out, err = self.launch("list", f"--coordinator={address}")
        self.assertEqual(code, 0, err)
        self.assertIn(job, out)

    def test_a_state_directory_that_is_missing_is_made(self):
        state = os.path.join(self.dir, "not", "there")
        _, address = self.start_coordinator(f"--state-dir={state}", f"--store={self.store}", listen=f"unix:{self.dir}/c0")
        code, out, err = self.launch("cancel", f"--coordinator={address}", "nothing", seconds=30)
        self.assertEqual(code, 1, out + err)
        file = os.path.join(state, "audit.jsonl")
        wait_until(lambda: os.path.exists(file) and os.path.getsize(file) > 0, 20, "the audit has a line")
        with open(file, encoding="utf-8") as lines:
            self.assertEqual(json.loads(lines.readline())["what"], "cancel")

    def test_who_stands_by_with_another_state_directory_says_so(self):
        def candidate(state, name):
            path = os.path.join(self.dir, name)
            with open(path, "w", encoding="utf-8") as log:
                child, address = self.start_coordinator(f"--state-dir={state}", f"--store={self.store}", listen="127.0.0.1:0",
                                                        stderr=log)

            def said():
                with open(path, encoding="utf-8") as file:
                    return file.read()
            return child, address, said
        for state in ("one", "other"):
            code, out, err = self.run_program("coordinator", "init", f"--state-dir={state}", "--host=127.0.0.1")
            self.assertEqual(code, 0, out + err)
        shutil.copytree(os.path.join(self.dir, "one"), os.path.join(self.dir, "copied"))
        leader, address, _ = candidate("one", "leader.log")
        wait_until(lambda: self.key_is(address), 20, "one leads")
        other, _, said = candidate("other", "other.log")
        # It may not lead yet when the others know that it is to.
        line = wait_until(lambda: re.search("does not take this coordinator's token.*", said()), 30, "a warning")[0]
        self.assertIn("of another cluster than the token", line)
        self.assertIn(f"copy that of {address}", line)
        _, copied, said = candidate("copied", "copied.log")
        wait_until(lambda: f"the leader at {address} takes its token" in said(), 20, "it is looked at")
        self.assertNotIn("does not take", said())
        self.assertIsNone(other.poll())
        self.assertIsNone(leader.poll())
        # Whoever stands by names the leader, and makes no token itself.
        code, out, err = self.launch("token", "create", f"--coordinator={copied},{address}", "--token-file=one/token",
                                     "--user=node1", "--role=join")
        self.assertEqual(code, 0, err)
        self.assertIn(" of node1 with the role join", err)
        # With one token more, as `init --new-token` on one host alone makes it.
        code, out, err = self.run_program("coordinator", "init", "--state-dir=copied", "--new-token")
        self.assertEqual(code, 0, out + err)
        _, _, said = candidate("copied", "newer.log")
        line = wait_until(lambda: re.search("takes an older token of .*", said()), 20, "a warning")[0]
        self.assertIn("not yet the newest: start that one again", line)


if __name__ == "__main__":
    unittest.main()
