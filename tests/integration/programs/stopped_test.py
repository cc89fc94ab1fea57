# SPDX-License-Identifier: Apache-2.0
"""Processes that stand still, all at once or the coordinator alone, and processes that are told to go: nobody is
judged for what nobody could do, and who is told to go saves first."""

import glob
import json
import os
import random
import re
import signal
import struct
import time
import unittest

import harness
from harness import PACED, steps_that_last, wait_until
from nodes import Nodes

DETECTION = 1.0  # seconds; who is silent for longer is judged
# How long they stand. By hand a minute and more, with a failure_detection as it is without one.
STANDS = float(os.environ.get("LOCKSTEP_TEST_STANDS", "5"))
PRELOADED = os.environ.get("LOCKSTEP_STEPPED_CLOCK_LIBRARY", "")
DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")  # the library that makes the trouble


def job_text(seconds, detection=f"failure_detection: {DETECTION:g}s\n", **more):
    extra = f"{detection}restart: {{max_restarts: 0}}\nelastic: {{min_workers: 1}}\n"
    return harness.synthetic_job(steps=steps_that_last(seconds), nproc=2, shards=2, hidden="[64]",
                                 train_extra="  eval: {every: never}\n", extra=extra + more.pop("extra", ""), **more)


# Of an agent that leaves: its workers save, or hand over, however slow the machine is.
TIME_TO_LEAVE = "--leave-grace=100s"


class Metrics:
    """For tests with runs/ in their folder."""

    def lines(self):
        count = 0
        for root, _, files in os.walk(os.path.join(self.dir, "runs")):
            if "metrics.jsonl" in files:
                with open(os.path.join(root, "metrics.jsonl"), encoding="utf-8") as file:
                    count += file.read().count("\n")
        return count

    def await_lines(self, more=1):
        before = self.lines()
        wait_until(lambda: self.lines() >= before + more, 30, "steps are written down")

    def saved_step(self, folder):
        """Of the checkpoint that `last` names; 0: there is none."""
        try:
            return int(os.path.basename(os.readlink(os.path.join(self.dir, folder, "last")))[5:])
        except FileNotFoundError:
            return 0


class StoppedCoordinator(Nodes, Metrics):
    def test_nobody_is_judged_when_it_wakes(self):
        path = self.write("tiny.yaml", job_text(STANDS + 30))
        for name in ("one", "two"):
            self.join(name, 1)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 20, 30, "both nodes train")
        workers = sorted(p.pid for p in self.processes("worker"))
        self.assertEqual(len(workers), 2)
        self.coordinator.send_signal(signal.SIGSTOP)
        end = time.monotonic() + STANDS
        while time.monotonic() < end:
            self.await_lines()  # steps wait for no coordinator
        self.coordinator.send_signal(signal.SIGCONT)
        # Whoever is to be judged is judged within this.
        end = time.monotonic() + 2 * DETECTION
        while time.monotonic() < end:
            self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "healthy workers were killed")
            time.sleep(0.05)
        status = self.describe(job)["status"]
        self.assertEqual((status["state"], int(status["generation"])), ("RUNNING", 1), status)
        self.assertEqual([node["state"] for node in self.nodes()], ["up", "up"])
        self.unpace()
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] == "SUCCEEDED" and s, 120, "it ends")
        self.assertEqual(status["result"]["faults"], [])
        self.assertEqual(int(status["generation"]), 1)


class StoppedPrivateCoordinator(harness.ProgramTest, Metrics):
    def test_it_is_killed_and_started_again(self):
        path = self.write("tiny.yaml", job_text(60).replace("max_restarts: 0", "max_restarts: 1"))
        wanted = self.train(path)["model"]["sha256"]
        before = self.lines()
        child = self.start("launcher", "-o", "json", path, env=PACED)
        wait_until(lambda: self.lines() > before, 30, "it trains")
        (coordinator,) = self.processes("coordinator")
        workers = sorted(p.pid for p in self.processes("worker"))
        coordinator.kill(signal.SIGSTOP)
        wait_until(lambda: [p.pid for p in self.processes("coordinator")] not in ([], [coordinator.pid]), 60,
                   "another one is there")
        self.await_lines()
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers)
        self.unpace()
        code, out, err = self.finish(child, 60)
        self.assertEqual(code, 0, out + err)
        self.assertIn("has answered nothing for 12s and was killed; it is started again", err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual((result["faults"], result["generations"], result["model"]["sha256"]), ([], 1, wanted))
        self.assert_nothing_left()

    def stand(self, restarts=1):
        """A run whose coordinator does not answer, which it was to, since Ctrl-C."""
        path = self.write("tiny.yaml", job_text(60).replace("max_restarts: 0", f"max_restarts: {restarts}"))
        with open(os.path.join(self.dir, "err"), "wb") as file:
            child = self.start("launcher", path, env=PACED, stderr=file)
        self.await_lines()
        (coordinator,) = self.processes("coordinator")
        coordinator.kill(signal.SIGSTOP)

        def stands():
            with open(f"/proc/{coordinator.pid}/stat", "rb") as file:
                return file.read().rsplit(b")", 1)[1].split()[0] == b"T"
        wait_until(stands, 10, "it stands still")
        child.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping: the workers finish their step, save and leave" in self.said(), 10, "it says so")
        return child, coordinator

    def said(self):
        with open(os.path.join(self.dir, "err"), encoding="utf-8") as file:
            return file.read()

    def end(self, child):
        code, out, _ = self.finish(child, 60)
        err = self.said()
        self.assertEqual(code, 130, out + err)
        self.assertEqual(err.count("stopping:"), 1, err)
        self.assert_nothing_left()
        return err

    def test_ctrl_c_waits_for_the_next_one_and_the_workers_save(self):
        child, _ = self.stand()
        self.assertNotIn("killing", self.end(child))
        self.assertEqual(len(glob.glob(os.path.join(self.dir, "runs/*/model/model.safetensors"))), 1)

    def test_ctrl_c_again_kills_at_once(self):
        child, _ = self.stand()
        began = time.monotonic()
        harness.signal_again(child)
        err = self.end(child)
        self.assertIn("killing the workers", err)
        self.assertNotIn("error:", err)
        self.assertLess(time.monotonic() - began, 10, "it waited for the coordinator")

    def test_ctrl_c_waits_for_no_next_one_where_there_is_none(self):
        child, _ = self.stand(restarts=0)
        began = time.monotonic()
        self.assertIn("cannot stop the job politely, killing it", self.end(child))
        self.assertLess(time.monotonic() - began, 20)

    def test_ctrl_c_ends_with_the_coordinator_that_is_lost_meanwhile(self):
        child, coordinator = self.stand(restarts=0)
        coordinator.kill(signal.SIGKILL)
        self.assertNotIn("politely", self.end(child), "it asked on")

    def test_a_run_of_which_nothing_is_heard_waits_for_the_next_one(self):
        self.write("quiet.py", "import os, time\nopen('there', 'w').close()\n"
                   "while not os.path.exists('leave'): time.sleep(0.05)\n")
        child = self.start("launcher", "--", "python3", "quiet.py")
        wait_until(lambda: os.path.exists(os.path.join(self.dir, "there")), 30, "it runs")
        (coordinator,) = self.processes("coordinator")
        coordinator.kill(signal.SIGSTOP)
        wait_until(lambda: [p.pid for p in self.processes("coordinator")] not in ([], [coordinator.pid]), 60,
                   "another one is there")
        self.write("leave", "")
        code, out, err = self.finish(child, 60)
        self.assertEqual(code, 0, out + err)
        self.assertIn("has answered nothing for 12s and was killed; it is started again", err)
        self.assert_nothing_left()


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class StandingRecord(harness.ProgramTest, Metrics):
    """The disk of metrics.jsonl alone stands still, for longer than anybody may be silent."""

    def start_with_disk(self, path, *arguments):
        self.write("disk", "well")
        return self.start("launcher", *arguments, "-o", "json", path,
                          env=dict(PACED, LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK=os.path.join(self.dir, "disk"),
                                   LOCKSTEP_TEST_DISK_OF="metrics.jsonl"))

    def result_of(self, child):
        code, out, err = self.finish(child, 60)
        self.assertEqual(code, 0, out + err)
        self.assert_nothing_left()
        return json.loads(out.strip().splitlines()[-1])

    def steps_written(self):
        (path,) = glob.glob(os.path.join(self.dir, "runs/*/metrics.jsonl"))
        with open(path, encoding="utf-8") as file:
            return [record["step"] for record in map(json.loads, file) if record["kind"] == "step"]

    def test_its_worker_trains_on_and_is_not_judged(self):
        path = self.write("tiny.yaml", job_text(STANDS + 5).replace("nproc_per_node: 2", "nproc_per_node: 1"))
        child = self.start_with_disk(path, "--nproc-per-node=1")
        self.await_lines(20)
        (worker,) = self.processes("worker")
        self.write("disk", "stalls")
        time.sleep(STANDS)
        self.assertEqual([p.pid for p in self.processes("worker")], [worker.pid])
        self.write("disk", "well")
        self.await_lines(20)
        self.unpace()
        result = self.result_of(child)
        self.assertEqual((result["faults"], result["generations"]), ([], 1), result)
        self.assertEqual(self.steps_written()[:100], list(range(1, 101)))

    def test_the_last_one_there_is_waited_for_at_the_end(self):
        path = self.write("tiny.yaml", job_text(20))
        child = self.start_with_disk(path)
        self.await_lines(20)
        self.write("disk", "stalls")
        self.unpace()
        wait_until(lambda: glob.glob(os.path.join(self.dir, "runs/*/model/model.safetensors")), 60, "the model is saved")
        workers = sorted(p.pid for p in self.processes("worker"))
        time.sleep(STANDS)
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers)
        self.write("disk", "well")
        result = self.result_of(child)
        self.assertEqual((result["faults"], result["generations"]), ([], 1), result)
        self.assertEqual(self.steps_written()[-1], result["steps"])


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class StandingRecordOfASurvivor(Nodes, Metrics):
    @staticmethod
    def has_that_disk(process):
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            return b"LOCKSTEP_TEST_DISK_OF=" in file.read()

    def test_no_checkpoint_is_whole_before_it_has_written_what_the_dead_one_may_not_have(self):
        self.write("disk", "well")
        disk = os.path.join(self.dir, "disk")
        node = self.join("one", 1)
        self.join("two", 1, LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK=disk, LOCKSTEP_TEST_DISK_OF="metrics.jsonl")
        # Rank 0 is on the node that has it, also when it is a newcomer there.
        text = job_text(60, extra="checkpoint: {dir: saved, every: 5 steps}\n").replace(
            "max_restarts: 0", "max_restarts: 1").replace("elastic: {min_workers: 1}\n", "")
        path = self.write("tiny.yaml", text.replace(
            "nproc_per_node: 2", f"nodes: 2, nproc_per_node: 1, rank0_node: '{node}'"))
        job = self.submit(path)
        wait_until(lambda: self.saved_step("saved") > 0, 30, "it saves")
        first, survivor = sorted(self.processes("worker"), key=self.has_that_disk)
        self.assertEqual([self.has_that_disk(first), self.has_that_disk(survivor)], [False, True])
        self.write("disk", "stalls")
        first.kill(signal.SIGKILL)
        wait_until(lambda: int(self.status(job)["generation"]) > 1, 60, "it is replaced")
        saved = self.saved_step("saved")
        time.sleep(STANDS)
        self.assertEqual(self.saved_step("saved"), saved)
        self.assertIn(survivor.pid, [p.pid for p in self.processes("worker")])
        self.write("disk", "well")
        wait_until(lambda: self.saved_step("saved") > saved, 30, "it goes on")
        self.unpace()
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] in ("SUCCEEDED", "FAILED") and s, 120,
                            "it ends")
        self.assertEqual((status["state"], int(status["generation"])), ("SUCCEEDED", 2), status)


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class SuspendedMachine(harness.ProgramTest, Metrics):
    """As near as signals come: every process stands, and the wall clock has gone on by an hour, or years, meanwhile."""

    def test_a_run_goes_on_as_if_nothing_had_been(self):
        clock = os.path.join(self.dir, "clock")

        def set_clock(seconds):
            with open(clock, "r+b" if os.path.exists(clock) else "wb") as file:
                file.write(struct.pack("=q", seconds * 10**9))
        set_clock(0)
        path = self.write("tiny.yaml", job_text(30))
        wanted = self.train(path, cwd=self.dir)["model"]["sha256"]
        before = self.lines()
        child = self.start("launcher", "-o", "json", path,
                           env=dict(PACED, LD_PRELOAD=PRELOADED, LOCKSTEP_STEPPED_CLOCK=clock))
        wait_until(lambda: self.lines() > before, 30, "it trains")
        draw = random.Random(1)
        for seconds in (3600, 20 * 365 * 86400):
            everybody = self.processes()
            self.assertGreaterEqual(len(everybody), 4, "launcher, spawner, coordinator, workers")
            for process in draw.sample(everybody, len(everybody)):
                process.kill(signal.SIGSTOP)
            time.sleep(STANDS / 2)
            set_clock(seconds)
            for process in draw.sample(everybody, len(everybody)):
                process.kill(signal.SIGCONT)
            self.await_lines()
        self.unpace()
        code, out, err = self.finish(child, 60)
        self.assertEqual(code, 0, out + err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual((result["faults"], result["generations"]), ([], 1))
        self.assertEqual(result["model"]["sha256"], wanted)
        self.assert_nothing_left()


class ToldToGo(Nodes, Metrics):
    """SIGTERM to the launcher of a run and to a worker; an agent that leaves."""

    SAVING = "checkpoint: {dir: saved}\n"

    def test_a_launcher_saves_and_says_so(self):
        path = self.write("tiny.yaml", job_text(30, detection="", extra=self.SAVING))
        child = self.start("launcher", path, env=PACED)
        wait_until(lambda: self.lines() > 0, 30, "it trains")
        child.terminate()
        code, out, err = self.finish(child, 20)
        self.assertEqual(code, 130, out + err)
        # The newest step that was committed is in the checkpoint.
        self.assertEqual(self.saved_step("saved"), self.lines())

    def test_an_agents_jobs_save_before_it_leaves(self):
        path = self.write("tiny.yaml", job_text(
            30, detection="", extra="checkpoint: {dir: saved, every: 100000 steps}\n"))
        wanted = self.undisturbed(path)
        self.join("one", 2, TIME_TO_LEAVE)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 120, 30, "it trains")
        self.agents["one"].send_signal(signal.SIGINT)
        self.assertEqual(self.agents["one"].wait(timeout=harness.patient()), 130, self.said("one"))
        # Nothing was due to be saved yet, and the newest step is.
        saved = self.saved_step("saved")
        self.assertEqual(saved, self.lines())
        self.join("two", 2)
        result = self.end_of(job, wanted)
        self.assertIn(f"goes on after step {saved} from the checkpoint", self.ask("logs", job))
        self.assertEqual(result["faults"], [])

    def test_an_agents_workers_hand_over_before_it_leaves(self):
        path = self.write("tiny.yaml", job_text(120, detection=""))
        wanted = self.undisturbed(path)
        self.join("one", 2, TIME_TO_LEAVE)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 30, "it trains")
        second = self.join("two", 2)
        self.agents["one"].send_signal(signal.SIGINT)
        self.assertEqual(self.agents["one"].wait(timeout=harness.patient()), 130, self.said("one"))
        self.assertEqual(self.places(job), [second, second])
        self.end_of(job, wanted)

    def test_an_agents_jobs_go_on_elsewhere_from_their_checkpoint(self):
        # It gives its workers no time, so they have what was saved before.
        text = job_text(30, detection="", extra="checkpoint: {dir: saved, every: 50 steps}\n")
        path = self.write("tiny.yaml", text.replace("max_restarts: 0", "max_restarts: 1"))
        wanted = self.undisturbed(path)
        self.join("one", 2, "--leave-grace=0s")
        job = self.submit(path)
        # A checkpoint is whole a while after its step.
        wait_until(lambda: self.saved_step("saved") >= 100, 30, "it trains and saves")
        self.agents["one"].send_signal(signal.SIGINT)
        self.assertEqual(self.agents["one"].wait(timeout=harness.patient()), 130, self.said("one"))
        wait_until(lambda: not self.processes("worker"), 2, "its workers are gone with it")
        saved = self.saved_step("saved")
        self.assertGreaterEqual(saved, 100)
        self.join("two", 2)
        self.unpace()
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] in ("SUCCEEDED", "FAILED") and s, 120,
                            "it ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        # One that was whole is newer than the link where the worker died between the two.
        resumed = int(re.search(r"goes on after step (\d+) from the checkpoint", self.ask("logs", job)).group(1))
        self.assertIn(resumed, (saved, saved + 50))

    def test_a_worker_is_replaced_and_no_step_is_lost(self):
        path = self.write("tiny.yaml", job_text(30, detection="").replace("max_restarts: 0", "max_restarts: 3"))
        wanted = self.undisturbed(path)
        self.join("one", 2)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 30, "it trains")
        self.processes("worker")[0].kill(signal.SIGTERM)
        wait_until(lambda: int(self.status(job)["generation"]) > 1, 60, "it is replaced")
        self.unpace()
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] in ("SUCCEEDED", "FAILED") and s, 120,
                            "it ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        (fault,) = status["result"]["faults"]
        self.assertIn("SIGTERM", fault["cause"])
        self.assertEqual(int(fault.get("steps_lost", 0)), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
