# SPDX-License-Identifier: Apache-2.0
"""The wall clock is set while a job runs, by hours and in both directions: nobody is judged, no wait sticks."""

import datetime
import json
import os
import shutil
import struct
import time
import unittest

import harness
from etcd import EtcdTest
from harness import PACED, steps_that_last, wait_until

PRELOADED = os.environ.get("LOCKSTEP_STEPPED_CLOCK_LIBRARY", "")
HOURS = 3600 * 10**9
DETECTION = 2.0  # seconds; who is silent for longer is judged
JOB = dict(nproc=2, hidden="[64]", train_extra="  eval: {every: never}\n",
           extra=f"failure_detection: {DETECTION:g}s\n")


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class SteppedClock(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.clock = os.path.join(self.dir, "clock")
        self.step_clock(0)

    def step_clock(self, hours):
        """From now on the wall clock of the run's processes is off by this."""
        with open(self.clock, "r+b" if os.path.exists(self.clock) else "wb") as file:
            file.write(struct.pack("=q", hours * HOURS))

    def metrics(self):
        for root, _, files in os.walk(os.path.join(self.dir, "runs")):
            if "metrics.jsonl" in files:
                return os.path.getsize(os.path.join(root, "metrics.jsonl"))
        return 0

    def goes_on(self, child):
        """Steps are made for longer than who is silent would be borne with."""
        end = time.monotonic() + 1.5 * DETECTION
        while time.monotonic() < end:
            size = self.metrics()
            wait_until(lambda: self.metrics() > size or child.poll() is not None, 4 * DETECTION, "steps are written down")
            self.assertIsNone(child.poll(), "the job was over too soon for this test")

    def undisturbed(self, seconds):
        """Of the job that lasts so long with a clock that is stepped; it is made."""
        text = harness.synthetic_job(steps=steps_that_last(seconds), **JOB)
        result = self.train(self.write("job.yaml", text), seconds=120)
        shutil.rmtree(os.path.join(self.dir, "runs"))
        return result

    def start_stepped(self):
        child = self.start("launcher", "-o", "json", "job.yaml",
                           env=dict(PACED, LD_PRELOAD=PRELOADED, LOCKSTEP_STEPPED_CLOCK=self.clock))
        wait_until(lambda: self.metrics() > 0, 20, "the job trains")
        return child

    def result_of(self, child):
        self.unpace()
        code, out, err = self.finish(child, 120)
        self.assertEqual(code, 0, f"stdout:\n{out}\nstderr:\n{err}")
        return json.loads(out.strip().splitlines()[-1])

    def test_hours_forwards_and_backwards_change_nothing(self):
        undisturbed = self.undisturbed(30)
        child = self.start_stepped()
        for hours in (2, -2):
            self.step_clock(hours)
            self.goes_on(child)
        result = self.result_of(child)
        self.assertEqual(result["faults"], [])
        self.assertEqual(result["generations"], 1)
        self.measured(28, "2 h forwards and backwards: 0 judged, 1 generation")
        self.assertEqual(result["model"]["sha256"], undisturbed["model"]["sha256"])
        self.assert_nothing_left()

    def test_healing_does_not_wait_for_the_wall_clock(self):
        undisturbed = self.undisturbed(30)
        child = self.start_stepped()
        for hours in (2, -2):
            self.step_clock(hours)
            workers = self.processes("worker")
            self.assertEqual(len(workers), 2)
            victim = workers[1]
            victim.kill()
            size = self.metrics()

            def heals():
                pids = {worker.pid for worker in self.processes("worker")}
                return victim.pid not in pids and len(pids) == 2 and self.metrics() > size
            wait_until(heals, 20, "the job heals")
        result = self.result_of(child)
        self.assertEqual(len(result["faults"]), 2)
        self.measured(28, "a worker killed after each step of the clock: next step after " +
                      ", ".join(f"{fault['to_next_step_ms']:.0f} ms" for fault in result["faults"]))
        self.assertEqual(result["model"]["sha256"], undisturbed["model"]["sha256"])
        self.assert_nothing_left()


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class SteppedWhileItStandsBy(EtcdTest):
    def setUp(self):
        self.clock = None
        super().setUp()

    def environment(self, **more):
        clock = dict(LD_PRELOAD=PRELOADED, LOCKSTEP_STEPPED_CLOCK=self.clock) if self.clock else {}
        return super().environment(**clock, **more)

    def test_who_leads_after_the_clock_was_set_goes_by_what_it_was_set_to(self):
        first = self.start_candidate(0)
        self.leader()  # an etcd that is killed amid its first start elects nobody later
        first.terminate()
        first.wait(timeout=harness.patient())
        self.kill_etcd()  # so that the coordinator stands by
        self.clock = os.path.join(self.dir, "clock")
        with open(self.clock, "wb") as file:
            file.write(struct.pack("=q", 0))
        self.start_candidate(0)
        with open(self.clock, "r+b") as file:
            file.write(struct.pack("=q", 3 * HOURS))
        self.assertTrue(self.start_etcd())
        self.leader()
        job = self.write("job.yaml", harness.synthetic_job())
        wait_until(lambda: self.verb("submit", "--hold", "--no-follow", job)[0] == 0, 20, "it takes jobs")
        code, out, err = self.verb("list", "-o", "json")
        self.assertEqual(code, 0, out + err)
        submitted = datetime.datetime.fromisoformat(json.loads(out)["jobs"][0]["submitted"][:19] + "+00:00")
        ahead = submitted.timestamp() - time.time()
        self.assertGreater(ahead, 2 * 3600)
        self.assertLess(ahead, 4 * 3600)


if __name__ == "__main__":
    unittest.main()
