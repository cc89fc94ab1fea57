# SPDX-License-Identifier: Apache-2.0
"""The disk of the coordinator's journal fills up, stalls or breaks under a job that runs."""

import json
import os
import time
import unittest

import harness
from harness import wait_until

DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")  # the library that makes the trouble
STALL_SECONDS = float(os.environ.get("LOCKSTEP_TEST_STALL", "6"))
EXTRA = "failure_detection: 1s\nelastic: {min_workers: 1, max_workers: 4}\nrestart: {max_restarts: 20}\n"


class Journal(harness.ProgramTest):
    def disk(self, says):
        fresh = self.write("disk.new", says)
        os.rename(fresh, os.path.join(self.dir, "disk"))

    def start_cluster(self):
        self.disk("well")
        env = {"LD_PRELOAD": DISK, "LOCKSTEP_TEST_DISK": os.path.join(self.dir, "disk")}
        self.coordinator, self.address = self.start_coordinator("--state-dir=state", env=env)
        self.agent = self.start("launcher", "join", f"--coordinator={self.address}", "--slots=2")

    def verb(self, *arguments):
        return self.launch(arguments[0], f"--coordinator={self.address}", *arguments[1:])

    def submit(self, nproc=2, extra=EXTRA):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=100000000, nproc=nproc, train_extra="  eval: {every: never}\n", extra=extra))
        code, out, err = self.verb("submit", "--no-follow", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        return json.loads(out.strip().splitlines()[-1])["job"]

    def job(self, job_id):
        code, out, err = self.verb("describe", "-o", "json", job_id)
        self.assertEqual(code, 0, out + err)
        return json.loads(out)["job"]

    def step(self, job_id):
        return int(self.job(job_id)["status"].get("progress", {}).get("step", 0))

    def await_steps(self, job_id, more=1):
        before = self.step(job_id)
        wait_until(lambda: self.step(job_id) >= before + more, 30, "the job trains")

    def test_a_full_disk_refuses_what_is_asked_and_the_job_goes_on(self):
        self.start_cluster()
        job = self.submit()
        self.await_steps(job)
        self.disk("full")
        for verb in (("cancel", job), ("scale", job, "1"), ("cancel", "--kill", job)):
            code, out, err = self.verb(*verb)
            self.assertNotEqual(code, 0, out + err)
            self.assertIn("journal.db", err)
            self.assertIn("make room", err)
        self.await_steps(job)
        self.disk("well")
        self.await_steps(job)
        status = self.job(job)["status"]
        self.assertEqual((status["state"], int(status["generation"])), ("RUNNING", 1))
        self.assertEqual(len(self.processes("worker")), 2, "what was refused has not happened")
        code, out, err = self.verb("cancel", job)
        self.assertEqual(code, 0, out + err)
        wait_until(lambda: self.job(job)["status"]["state"] == "CANCELLED", 20, "it is cancelled once it is asked again")

    def test_a_disk_that_breaks_ends_the_coordinator_and_the_next_goes_on(self):
        self.start_cluster()
        job = self.submit()
        self.await_steps(job)
        self.disk("broken")
        code, _, err = self.verb("cancel", job)
        self.assertEqual(code, 4, err)
        code, _, err = self.finish(self.coordinator, 10)
        self.assertEqual(code, 3, err)
        self.assertIn("journal.db", err)
        self.disk("well")
        self.start_coordinator("--state-dir=state")
        self.await_steps(job)
        status = self.job(job)["status"]
        self.assertEqual((status["state"], int(status["generation"])), ("RUNNING", 1))

    def test_a_disk_that_stalls_counts_against_nobody(self):
        self.start_cluster()
        job = self.submit()
        self.await_steps(job)
        self.disk("stalls")
        first = self.processes("worker")
        first[0].kill()  # its death cannot be written down, and the other waits for what is decided
        time.sleep(STALL_SECONDS)  # failure_detection is a second
        self.assertEqual([p.pid for p in self.processes("worker")], [first[1].pid])
        self.disk("well")
        self.await_steps(job)
        status = self.job(job)["status"]
        self.assertEqual(status["state"], "RUNNING")
        self.assertIn(first[1].pid, [p.pid for p in self.processes("worker")], "only the dead one was replaced")

    def test_an_end_that_may_be_lost_is_not_told_as_one_that_is_written(self):
        self.start_cluster()
        job = self.submit(nproc=1, extra="restart: {max_restarts: 0}\n")
        self.await_steps(job)
        _, _, err = self.verb("describe", job)
        self.assertNotIn("lost", err)
        self.disk("stalls")
        self.processes("worker")[0].kill()
        wait_until(lambda: self.job(job)["status"]["state"] == "FAILED", 20, "its end is seen")
        for verb in (("describe", job), ("list",)):
            code, out, err = self.verb(*verb)
            self.assertEqual(code, 0, out + err)
            self.assertIn("FAILED", out)
            self.assertIn("may be lost with the coordinator", err)
        self.agent.kill()  # which would tell the next one of it
        self.coordinator.kill()
        self.finish(self.coordinator, 10)
        self.disk("well")
        self.start_coordinator("--state-dir=state")
        code, out, err = self.verb("describe", job)
        self.assertEqual(code, 0, out + err)
        self.assertNotIn("FAILED", out, "it was lost indeed")
        self.assertNotIn("lost", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
