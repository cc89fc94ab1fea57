# SPDX-License-Identifier: Apache-2.0
"""A disk that fails at one call, at each of them in turn: what was said to be safe is there, nothing wrong is loaded.
The coordinator is killed at each change of its journal, and its machine loses its power there."""

import json
import os
import shutil
import signal
import threading
import unittest

import harness
from harness import PACED, steps_that_last, wait_until

LIBRARY = os.environ.get("LOCKSTEP_DISK_CALLS", "")
# Of the calls each so many-th; by hand 1.
STRIDE = int(os.environ.get("LOCKSTEP_TEST_STRIDE", "7"))
MOST = 2000
STEPS = 12


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class DiskCalls(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(os.path.exists(LIBRARY), "LOCKSTEP_DISK_CALLS names no library")
        self.hit = os.path.join(self.dir, "hit")

    def at_call(self, program, part, number, what):
        if os.path.exists(self.hit):
            os.remove(self.hit)
        return {"LD_PRELOAD": LIBRARY, "LOCKSTEP_DISK_CALL": f"{program}:{part}:{number}:{what}:{self.hit}"}

    def call(self):
        """The call at which it happened; empty: the program made fewer."""
        if not os.path.exists(self.hit):
            return ""
        with open(self.hit, encoding="utf-8") as file:
            return file.read().strip()

    def each_call(self, program, part, attempt, what="fails"):
        """attempt(environment, number) for calls in turn, until there are no more; which there were."""
        kinds = set()
        for number in range(1, MOST, STRIDE):
            attempt(self.at_call(program, part, number, what), number)
            if not self.call():
                self.assertTrue(kinds, "no call was met at all")
                print(f"{program}, {part}, {what}: {len(range(1, number, STRIDE))} of the calls", flush=True)
                return kinds
            kinds.add(self.call().split()[0])
        raise AssertionError(f"more than {MOST} calls")

    def forget(self, *names):
        for name in names:
            shutil.rmtree(os.path.join(self.dir, name), ignore_errors=True)

    def job(self):
        return self.write("tiny.yaml", harness.synthetic_job(
            steps=STEPS, nproc=1, shards=2, extra="checkpoint: {dir: saved, every: 4 steps, keep: 2}\n"
                                                  "restart: {max_restarts: 0}\n"))

    def outcome(self, *arguments, **options):
        code, out, err = self.launch("-o", "json", *arguments, **options)
        sha256 = json.loads(out.strip().splitlines()[-1])["model"]["sha256"] if code == 0 else None
        return code, sha256, err

    def test_saving_checkpoints(self):
        path = self.job()
        _, wanted, _ = self.outcome(path)

        def attempt(env, number):
            self.forget("saved", "runs")
            code, sha256, err = self.outcome(path, env=env)
            if not self.call():
                return
            # It costs a checkpoint at most, and is said.
            self.assertEqual((code, sha256), (0, wanted), f"call {number}, {self.call()}:\n{err}")
            # Whatever appears as a checkpoint is one: another run goes on from the newest.
            there = sorted(name for name in os.listdir(os.path.join(self.dir, "saved")) if name.startswith("step-"))
            code, sha256, again = self.outcome(path)
            self.assertEqual((code, sha256), (0, wanted), f"call {number}, {self.call()}:\n{again}")
            self.assertNotIn("is damaged", again)
            if there:
                self.assertIn(f"goes on after step {int(there[-1][5:])} ", again)
            if f"step-{STEPS:010d}" not in there:
                self.assertRegex(err, "not saved|cannot be saved", f"call {number}, {self.call()}")
        kinds = self.each_call("worker", "/saved/", attempt)
        self.assertIn("write", kinds)

    def test_reading_a_checkpoint(self):
        path = self.job()
        _, wanted, _ = self.outcome(path)

        def attempt(env, number):
            before = sorted(os.listdir(os.path.join(self.dir, "saved")))
            code, sha256, err = self.outcome(path, env=env)
            if not self.call():
                return
            if code == 0:
                self.assertEqual(sha256, wanted, f"call {number}, {self.call()}:\n{err}")
                self.assertIn(f"goes on after step {STEPS} ", err)
            else:
                self.assertIn("Input/output error", err, f"call {number}, {self.call()}")
                self.assertEqual(sorted(os.listdir(os.path.join(self.dir, "saved"))), before, "it changed nothing")
        self.each_call("worker", "/saved/", attempt)

    def test_a_disk_that_is_slow_is_no_hang(self):
        best = "  eval: {every: 4 steps}\n  best: {metric: loss}\n"
        for part, train_extra, extra in (("/model/", "", ""), ("/model/", best, ""),
                                         ("/profile", "", "profile: {steps: \"2:4\"}\n")):
            with self.subTest(part=part, train_extra=train_extra):
                path = self.write("slow.yaml", harness.synthetic_job(
                    steps=STEPS, nproc=2, shards=2, train_extra=train_extra,
                    extra=extra + "failure_detection: 2s\nrestart: {max_restarts: 3}\n"))
                wanted = self.train(path)["model"]["sha256"]
                result = self.train(path, env=self.at_call("worker", part, 1, "slow"))
                self.assertIn(self.call().split()[0], ("fsync", "fdatasync"))
                self.assertEqual((result["model"]["sha256"], result["faults"]), (wanted, []))

    def test_the_journal(self):
        path = self.job()
        acknowledged = []

        def attempt(env, number):
            self.forget("state")
            child, kept = None, []
            try:
                child, address = self.start_coordinator("--state-dir=state", env=env)
            except AssertionError:
                pass  # it says why and does not start
            else:
                for _ in range(2):
                    code, out, _ = self.launch("submit", f"--coordinator={address}", "--no-follow", "-o", "json", path)
                    if code != 0:
                        break
                    kept.append(json.loads(out.strip().splitlines()[-1])["job"])
                if child.poll() is None and not self.call():
                    child.terminate()
            child = self.children[-1] if child is None else child
            if not self.call():
                self.finish(child, 20)
                return
            if child.poll() is None and len(kept) == 2:
                child.terminate()  # an error that it could live with
            code, _, err = self.finish(child, 20)
            self.assertIn(code, (0, 1, 3), f"call {number}, {self.call()}:\n{err}")
            if code != 0:
                self.assertIn("journal.db", err, f"call {number}, {self.call()}")
            again, address = self.start_coordinator("--state-dir=state")
            code, out, err = self.launch("list", f"--coordinator={address}", "-o", "json")
            self.assertEqual(code, 0, err)
            there = [job["job_id"] for job in json.loads(out)["jobs"]]
            self.assertLessEqual(set(kept), set(there), f"call {number}, {self.call()}: an acknowledged job is lost")
            acknowledged.extend(kept)
            again.terminate()
            self.finish(again, 20)
        kinds = self.each_call("coordinator", "journal.db", attempt)
        self.assertLessEqual({"pwrite64"}, kinds)
        self.assertTrue(acknowledged)

    def verb(self, address, *arguments):
        """What a verb of the launcher answers; what it complains about: a string."""
        code, out, err = self.launch(arguments[0], f"--coordinator={address}", *arguments[1:])
        return json.loads(out or "{}") if code == 0 else err

    def test_the_coordinator_is_killed_at_each_change_of_its_journal(self):
        trains = self.write("trains.yaml", harness.synthetic_job(
            name="trains", steps=steps_that_last(0.5), nproc=2, shards=2, train_extra="  eval: {every: never}\n",
            extra="failure_detection: 1s\nrestart: {max_restarts: 0}\n"))
        waits = self.job()
        wanted = self.train("--nproc-per-node=2", trains)["model"]["sha256"]

        def attempt(env, number):
            self.forget("state", "agent")
            address = f"unix:{self.dir}/socket"
            over = threading.Event()
            where = f"call {number}"

            def supervise():
                child = self.start("coordinator", f"--listen={address}", "--state-dir=state", env=env)
                while not over.is_set():
                    if child.poll() is not None:
                        child.communicate()
                        child = self.start("coordinator", f"--listen={address}", "--state-dir=state")
                    over.wait(0.02)
                child.terminate()
                self.finish(child, 20)

            supervisor = threading.Thread(target=supervise)
            supervisor.start()
            agent = self.start("launcher", "join", f"--coordinator={address}", "--slots=2",
                               f"--state-dir={self.dir}/agent", env=PACED)
            try:
                first = self.verb(address, "submit", "--no-follow", "-o", "json", trains)["job"]
                second = self.verb(address, "submit", "--no-follow", "--hold", "-o", "json", waits)["job"]
                self.verb(address, "cancel", "-o", "json", second)

                def states():
                    return {job["job_id"]: job["state"] for job in self.verb(address, "list", "-o", "json")["jobs"]}
                wait_until(lambda: states()[first] == "SUCCEEDED", 60, f"{where}: {states()}")
                self.assertEqual(states(), {first: "SUCCEEDED", second: "CANCELLED"}, where)
                status = self.verb(address, "describe", "-o", "json", first)["job"]["status"]
                self.assertEqual(status["result"]["model_sha256"], wanted, where)
                self.assertEqual(int(status["generation"]), 1, f"{where}: {status}")
                self.assertEqual(int(status.get("restarts", 0)), 0, f"{where}: {status}")
            finally:
                over.set()
                supervisor.join()
                # Not SIGTERM: it would keep what nobody has acknowledged for the next agent.
                agent.send_signal(signal.SIGINT)
                agent.communicate()
            self.assert_nothing_left()
        kinds = self.each_call("coordinator", "journal.db", attempt, "killed")
        self.assertIn("pwrite64", kinds)

    def test_the_coordinators_machine_loses_its_power_at_each_change_of_its_journal(self):
        path = self.job()

        def attempt(env, number):
            self.forget("state")
            kept, cancelled = [], []
            try:
                child, address = self.start_coordinator("--state-dir=state", env=env)
            except AssertionError:
                child = self.children[-1]
            else:
                for _ in range(3):
                    said = self.verb(address, "submit", "--no-follow", "--hold", "-o", "json", path)
                    if isinstance(said, str):
                        break
                    kept.append(said["job"])
                    if not isinstance(self.verb(address, "cancel", "-o", "json", kept[-1]), str):
                        cancelled.append(kept[-1])
            if not self.call():
                child.terminate()
            self.finish(child, 20)
            if not self.call():
                return
            again, address = self.start_coordinator("--state-dir=state")
            there = {job["job_id"]: job["state"] for job in self.verb(address, "list", "-o", "json")["jobs"]}
            self.assertLessEqual(set(kept), set(there), f"call {number}, {self.call()}: an acknowledged job is lost")
            for job in cancelled:
                self.assertEqual(there[job], "CANCELLED", f"call {number}, {self.call()}")
            again.terminate()
            self.finish(again, 20)
        kinds = self.each_call("coordinator", "journal.db", attempt, "power")
        self.assertLessEqual({"pwrite64", "fdatasync"}, kinds)


if __name__ == "__main__":
    unittest.main(verbosity=2)
