# SPDX-License-Identifier: Apache-2.0
"""Jobs of lower priority that make room, as docs/queue.md promises: with the same bits, and no restart spent."""

import json
import os
import unittest

import harness
from gates import Gates
from harness import steps_that_last, wait_until


class Preemption(Gates):
    def training(self, seconds, extra):
        """Its file, and the sha256 of an undisturbed run."""
        path = self.write("low.yaml", harness.synthetic_job(
            name="low", steps=steps_that_last(seconds), shards=2, nproc=2, hidden="[64]",
            train_extra="  eval: {every: never}\n", extra=extra + "restart: {max_restarts: 0}\npriority: 1\n"))
        return path, self.undisturbed(path)

    def high(self, nproc=2):
        job = self.gate("high", nproc=nproc, extra="priority: 2\n")
        self.await_began("high", nproc)
        return job

    def steps_of(self, job):
        with open(os.path.join(self.dir, self.status(job)["run_dir"], "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return [line["step"] for line in lines if line.get("kind") == "step"]

    def test_training_stops_saves_and_goes_on_with_the_same_bits(self):
        path, expected = self.training(30, "checkpoint: {dir: saved, every: 100000 steps}\n")
        self.join("one", 2)
        low = self.submit(path)
        wait_until(lambda: self.step(low) > 100, 60, "it trains")
        high = self.high()
        status = self.status(low)
        self.assertEqual((status["state"], status["queue"]["preemptions"]), ("PENDING", 1), status)
        self.await_reason(low, "0 free")
        self.assertIn("preempted   1 time", self.ask("describe", low))
        # That it waits to go on outlives the coordinator.
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()
        wait_until(lambda: self.status(high)["state"] == "RUNNING", 60, "it is known again")
        self.await_reason(low, "0 free")
        self.end("high")
        self.await_end(high)
        self.end_of(low, expected)
        self.assertEqual(int(self.status(low)["queue"]["preemptions"]), 1)
        # Where it was stopped it went on: no step was done again.
        steps = self.steps_of(low)
        self.assertEqual(steps, sorted(set(steps)))

    def test_scale_says_when_a_job_has_so_many(self):
        path = self.write("low.yaml", harness.synthetic_job(
            name="low", steps=steps_that_last(30), shards=2, nproc=2, hidden="[64]",
            extra="checkpoint: {dir: saved, every: 100000 steps}\n"
                  "elastic: {min_workers: 1, max_workers: 2}\npriority: 1\n"))
        self.join("one", 2)
        low = self.submit(path)
        wait_until(lambda: self.step(low) > 50, 60, "it trains")
        code, _, err = self.launch("scale", f"--coordinator={self.address}", low, "2")
        self.assertEqual((code, err), (0, f"{low}: from 2 to 2 workers at the next step's end\n"))
        high = self.high()
        self.assertEqual(self.status(low)["state"], "PENDING")
        code, _, err = self.launch("scale", f"--coordinator={self.address}", low, "1")
        self.assertEqual((code, err), (0, f"{low}: from 2 to 1 workers when it begins again\n"))
        self.end("high")
        self.await_end(high)
        wait_until(lambda: len(self.places(low)) == 1, 60, "it goes on with one")
        self.ask("cancel", "--kill", low)

    def test_without_a_checkpoint_it_begins_anew(self):
        path, expected = self.training(30, "")
        self.join("one", 2)
        low = self.submit(path)
        wait_until(lambda: self.step(low) > 50, 60, "it trains")
        high = self.high()
        self.assertEqual(self.status(low)["state"], "PENDING")
        self.end("high")
        self.await_end(high)
        self.end_of(low, expected)
        self.assertEqual(int(self.status(low)["queue"]["preemptions"]), 1)
        self.assertEqual(self.steps_of(low).count(1), 2)

    def test_an_elastic_job_gives_workers_up_and_has_them_again(self):
        path, expected = self.training(30, "elastic: {min_workers: 1, max_workers: 2}\n")
        self.join("one", 2)
        low = self.submit(path)
        wait_until(lambda: self.step(low) > 50, 60, "it trains")
        high = self.high(nproc=1)
        before = self.step(low)
        wait_until(lambda: self.step(low) > before + 20, 60, "it goes on with one")
        self.assertEqual((self.status(low)["state"], len(self.places(low))), ("RUNNING", 1))
        self.end("high")
        self.await_end(high)
        wait_until(lambda: len(self.places(low)) == 2, 60, "it has both again")
        self.end_of(low, expected)
        self.assertEqual(int(self.status(low)["queue"].get("preemptions", 0)), 0)

    def test_a_command_is_asked_and_begins_again(self):
        self.join("one", 2)
        low = self.gate("low", nproc=2)
        self.await_began("low", 2)
        high = self.high()
        self.assertTrue(os.path.exists(os.path.join(self.dir, "asked-low")))
        status = self.status(low)
        self.assertEqual((status["state"], status["queue"]["preemptions"]), ("PENDING", 1), status)
        self.end("high")
        self.await_end(high)
        self.await_began("low", 4)
        self.end("low")
        self.assertEqual(int(self.await_end(low)["restarts"]), 0)

    def test_as_few_as_will_do_stop_the_lowest_and_newest_first(self):
        self.join("one", 3)
        jobs = {}
        for name, priority in (("older", 0), ("newer", 0), ("above", 1)):
            jobs[name] = self.gate(name, extra=f"priority: {priority}\n")
            self.await_began(name)
        high = self.high(nproc=1)
        states = {name: self.status(job)["state"] for name, job in jobs.items()}
        self.assertEqual(states, {"older": "RUNNING", "newer": "PENDING", "above": "RUNNING"})
        for name in ("high", "older", "newer", "above"):
            self.end(name)
        for job in (high, *jobs.values()):
            self.await_end(job)


if __name__ == "__main__":
    unittest.main()
