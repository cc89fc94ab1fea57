# SPDX-License-Identifier: Apache-2.0
"""The coordinator dies by SIGKILL and comes back: nothing is lost, and the weights are the same."""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import time
import unittest

import harness
from harness import PACED, steps_that_last, wait_until

STEPS = steps_that_last(30)
TRAIN = "  eval: {every: 500 steps, block: 40}\n"
HEAL = "elastic: {min_workers: 1, max_workers: 4}\nfailure_detection: 1s\nrestart: {max_restarts: 20}\n"


def job_text(steps, hidden="[64]"):
    return harness.synthetic_job(steps=steps, hidden=hidden, train_extra=TRAIN, extra=HEAL)


class CoordinatorDeath(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.job = self.write("job.yaml", job_text(STEPS))
        self.address = None

    def undisturbed(self, job=None):
        return self.train("--nproc-per-node=4", job or self.job, seconds=600)["model"]["sha256"]

    def start_agent(self):
        self.start("launcher", "join", f"--coordinator={self.address}", "--slots=4", env=PACED)

    def start_daemon(self):
        """A daemon with a journal, each time at the same address."""
        child, self.address = self.start_coordinator("--state-dir=state")
        return child

    def kill(self, child):
        child.kill()
        child.communicate()

    def verb(self, *arguments):
        return self.launch(arguments[0], f"--coordinator={self.address}", *arguments[1:])

    def submit(self, *arguments):
        code, out, err = self.verb("submit", "--no-follow", "-o", "json", *arguments, self.job)
        self.assertEqual(code, 0, out + err)
        return json.loads(out.strip().splitlines()[-1])["job"]

    def describe(self, job):
        code, out, err = self.verb("describe", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        return json.loads(out)["job"]["status"]

    def metrics(self, job=None):
        """Lines of the job's metrics, or of the only run's."""
        runs = os.path.join(self.dir, "runs")
        for name in os.listdir(runs) if os.path.isdir(runs) else []:
            path = os.path.join(runs, name, "metrics.jsonl")
            if (job is None or name.endswith("-" + job)) and os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    return file.read().count("\n")
        return 0

    def await_training(self, job=None, lines=1):
        wait_until(lambda: self.metrics(job) >= lines, 30, "the job trains")

    def await_end(self, job, state="SUCCEEDED"):
        self.unpace()

        def ended():
            status = self.describe(job)
            return status if status["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None
        status = wait_until(ended, 600, "the job ends")
        self.assertEqual(status["state"], state, status)
        return status

    def test_workers_go_on_and_are_taken_back(self):
        wanted = self.undisturbed()
        coordinator = self.start_daemon()
        self.start_agent()
        job = self.submit()
        self.await_training(job)
        follower = self.start("launcher", "logs", "-f", f"--coordinator={self.address}", job)
        workers = sorted(p.pid for p in self.processes("worker"))
        draw = random.Random(5)
        for _ in range(3):
            time.sleep(draw.uniform(0.01, 0.15))
            self.kill(coordinator)
            before = self.metrics(job)
            wait_until(lambda: self.metrics(job) > before, 10, "steps without a coordinator")
            coordinator = self.start_daemon()
        status = self.await_end(job)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        self.assertEqual(int(status["generation"]), 1, "nobody left the generation")
        self.assertEqual(status["result"]["faults"], [])
        code, out, err = self.finish(follower, 20)
        self.assertEqual(code, 0, err)
        self.assertEqual(len(workers), 4)
        self.assertEqual(len(out.splitlines()), len(set(out.splitlines())), "lines came twice:\n" + out)

    def test_a_worker_that_dies_meanwhile_is_replaced(self):
        wanted = self.undisturbed()
        coordinator = self.start_daemon()
        self.start_agent()
        job = self.submit()
        self.await_training(job)
        self.kill(coordinator)
        victim = sorted(p.pid for p in self.processes("worker"))[1]
        os.kill(victim, signal.SIGKILL)
        # The others leave their generation and park with their state.
        wait_until(lambda: len(self.processes("worker")) == 3, 10, "three workers")
        stands = -1
        while stands != self.metrics(job):
            stands = self.metrics(job)
            time.sleep(0.3)
        self.assertEqual(len(self.processes("worker")), 3, "survivors keep their state")
        self.start_daemon()
        status = self.await_end(job)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        faults = status["result"]["faults"]
        self.assertEqual([(f.get("signal"), int(f.get("pid", 0))) for f in faults], [(9, victim)], faults)
        self.assertEqual(int(faults[0].get("steps_lost", 0)), 0)

    def test_killed_at_the_start_and_again_and_again(self):
        wanted = self.undisturbed()
        coordinator = self.start_daemon()
        self.start_agent()
        job = self.submit()
        draw = random.Random(11)
        for kill_worker in (False, True, False, True):
            time.sleep(draw.uniform(0.0, 0.08))
            self.kill(coordinator)
            workers = self.processes("worker")
            if kill_worker and workers:
                draw.choice(workers).kill()
            time.sleep(draw.uniform(0.0, 0.08))
            coordinator = self.start_daemon()
        status = self.await_end(job)
        self.assertEqual(status["result"]["model_sha256"], wanted)
        for fault in status["result"].get("faults", []):
            self.assertEqual(fault["signal"], 9, fault)
            self.assertGreater(int(fault["pid"]), 0, fault)

    def test_a_job_that_ended_meanwhile_is_known_to_have(self):
        coordinator = self.start_daemon()
        self.start_agent()
        job = self.submit()
        follower = self.start("launcher", "logs", "-f", f"--coordinator={self.address}", job)
        self.await_training()
        self.kill(coordinator)
        self.unpace()
        saved = lambda: [f for _, _, files in os.walk(os.path.join(self.dir, "runs")) for f in files
                         if f == "model.safetensors"]
        wait_until(saved, 60, "the model is written without a coordinator")
        code, _, err = self.verb("submit", "--no-follow", self.job)
        self.assertEqual(code, 4, err)
        self.assertIn("no coordinator answers", err)
        coordinator = self.start_daemon()
        self.await_end(job)
        self.finish(follower, 20)
        # One that has ended before is remembered, too.
        self.kill(coordinator)
        self.start_daemon()
        self.assertEqual(self.describe(job)["state"], "SUCCEEDED")

    def test_accepted_jobs_and_wishes_are_kept(self):
        self.job = self.write("long.yaml", job_text(steps=100000000))  # ends by the wish alone
        coordinator = self.start_daemon()
        first, second = self.submit(), self.submit()
        code, _, err = self.verb("cancel", second)
        self.assertEqual(code, 0, err)
        self.kill(coordinator)
        coordinator = self.start_daemon()
        self.assertEqual(self.describe(first)["state"], "PENDING")
        self.assertEqual(self.describe(second)["state"], "CANCELLED")
        self.start_agent()
        self.await_training()
        code, _, err = self.verb("cancel", first)  # a drain that the next coordinator sees through
        self.assertEqual(code, 0, err)
        self.kill(coordinator)
        self.start_daemon()
        self.await_end(first, "CANCELLED")
        wait_until(lambda: not self.processes("worker"), 10, "the workers leave")

    def test_one_state_dir_has_one_coordinator(self):
        self.start_daemon()
        started = time.monotonic()
        code, _, err = self.run_program("coordinator", "--state-dir=state", seconds=10)
        self.measured(35, f"the second refuses after {1000 * (time.monotonic() - started):.0f} ms")
        self.assertEqual(code, 1)
        self.assertIn("used by another coordinator (process ", err)

    def test_a_bad_state_dir_is_named(self):
        self.write("file", "x")
        for folder in ("file", "file/below"):
            code, _, err = self.run_program("coordinator", f"--state-dir={folder}", seconds=10)
            self.assertEqual(code, 1)
            self.assertIn("file", err)
        self.write("damaged/journal.db", "no database at all, whatever its name says" * 100)
        code, _, err = self.run_program("coordinator", "--state-dir=damaged", seconds=10)
        self.assertEqual(code, 1)
        self.assertIn("damaged/journal.db", err)
        self.assertIn("put a copy back", err)

    def test_a_run_here_starts_its_coordinator_again(self):
        job = self.write("short.yaml", job_text(steps=1500))
        wanted = self.undisturbed(job)
        code, out, err = self.launch(
            "chaos", "-o", "json", "--kill", "coordinator@step:100", "--kill", "rank:2@step:101",
            "--kill", "coordinator@step:200/reduced", "--kill", "rank:0@step:300",
            "--kill", "coordinator@step:300", job)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], wanted)
        self.assertTrue(all(i["happened"] for i in result["injections"]), result["injections"])
        self.assertEqual([f["signal"] for f in result["faults"]], [9, 9])
        self.assertIn("coordinator was killed by SIGKILL; it is started again", err)
        self.assert_nothing_left()

    def replace_a_worker(self):
        victim = self.processes("worker")[1]
        victim.kill()
        def replaced():
            pids = [process.pid for process in self.processes("worker")]
            return len(pids) == 4 and victim.pid not in pids
        wait_until(replaced, 30, "a worker in place of the one that died")

    def test_a_run_here_outlives_its_users_session(self):
        job = self.write("short.yaml", job_text(steps=3000))
        session = os.path.join(self.dir, "session")
        os.mkdir(session, 0o700)
        child = self.start("launcher", "-o", "json", "--nproc-per-node=4", job,
                           env={**PACED, "XDG_RUNTIME_DIR": session})
        self.await_training()
        shutil.rmtree(session)  # the user logs out
        self.replace_a_worker()
        self.processes("coordinator")[0].kill()
        self.unpace()
        code, out, err = self.finish(child, 60)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], self.undisturbed(job))
        self.assertEqual([f["signal"] for f in result["faults"]], [9])
        self.assert_nothing_left()

    def test_a_run_here_makes_its_socket_again(self):
        child = self.start("launcher", "--nproc-per-node=4",
                           self.write("long.yaml", job_text(steps=100000000)), env=PACED)
        self.await_training()
        coordinator = self.processes("coordinator")[0]
        sock = coordinator.argv[coordinator.argv.index("--listen") + 1].removeprefix("unix:")
        os.remove(sock)
        wait_until(lambda: os.path.exists(sock), 30, "the coordinator is back at its address")
        self.replace_a_worker()
        harness.signal_again(child)
        code, _, err = self.finish(child, 60)
        self.assertEqual(code, 130, err)
        self.assertIn("coordinator has answered nothing for 12s and was killed; it is started again", err)
        self.assert_nothing_left()

    def test_a_coordinator_that_dies_too_often_ends_the_run(self):
        job = self.write("long.yaml", job_text(steps=100000000))
        child = self.start("launcher", "--nproc-per-node=4", job, env=PACED)
        self.await_training()
        killed = set()
        while child.poll() is None and len(killed) < 20:
            for process in self.processes("coordinator"):
                if process.pid not in killed:
                    killed.add(process.pid)
                    process.kill()
            time.sleep(0.01)
        code, _, err = self.finish(child, 20)
        self.assertEqual(code, 4, err)
        self.assertIn("for the 11th time within a minute", err)
        self.assertEqual(len(killed), 11)
        self.assert_nothing_left()

    def saved(self):
        """(generation, step) of the newest checkpoint."""
        found = [(0, 0)]
        for manifest in glob.glob(os.path.join(self.dir, "saved", "step-*", "manifest.json")):
            with contextlib.suppress(FileNotFoundError), open(manifest, encoding="utf-8") as file:
                checkpoint = json.load(file)["checkpoint"]
                found.append((checkpoint["generation"], checkpoint["step"]))
        return max(found)

    def test_a_restored_journal_saves_after_checkpoints_of_later_generations(self):
        wanted = self.undisturbed()
        saves = f"checkpoint: {{dir: {os.path.join(self.dir, 'saved')}, every: 20 steps, resume: auto}}\n"
        self.job = self.write("saves.yaml", job_text(STEPS) + saves)
        coordinator = self.start_daemon()
        self.start_agent()
        job = self.submit()
        wait_until(lambda: self.saved() > (0, 0), 30, "a checkpoint")
        code, out, err = self.run_program("coordinator", "backup", "copy.db", "--state-dir=state")
        self.assertEqual(code, 0, out + err)
        while (generation := self.saved()[0]) < 4:
            with contextlib.suppress(ProcessLookupError, IndexError):
                self.processes("worker")[0].kill()
            wait_until(lambda before=generation: self.saved()[0] > before, 30, "a checkpoint without the dead one")
        # The machines end together, and the newest journal with them.
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):  # another one's end was its end, too
                process.kill()
        self.kill(coordinator)
        self.assert_nothing_left()
        before = self.saved()
        code, out, err = self.run_program("coordinator", "restore", "copy.db", "--state-dir=restored")
        self.assertEqual(code, 0, out + err)
        self.start_coordinator("--state-dir=restored")
        self.start_agent()
        wait_until(lambda: self.saved()[0] > before[0], 60, "a checkpoint after the restore")
        self.assertGreater(self.saved()[1], before[1])
        status = self.await_end(job)
        self.assertEqual(status["result"]["model_sha256"], wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
