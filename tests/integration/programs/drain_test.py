# SPDX-License-Identifier: Apache-2.0
"""Nodes that an administrator empties and gives back."""

import os
import signal
import unittest

from harness import steps_that_last, wait_until
from nodes import Nodes


class Drain(Nodes):
    def test_workers_move_while_the_job_trains_and_the_bits_stay(self):
        path = self.job_file(nodes=1, nproc=2, steps=steps_that_last(180))
        expected = self.undisturbed(path)
        first = self.join("first", 2)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 100, 60, "it trains")

        # No other place: it goes on where it is, and both say so.
        self.ask("drain", first, "--reason", "memory errors")
        node = self.await_state(first, "draining")
        self.assertEqual(node["drain"]["reason"], "memory errors")
        self.assertTrue(node["drain"]["user"])
        self.assertIn("memory errors", node["reason"])
        self.assertIn("stays until another node has room", node["moves"][0])
        self.assertIn("stays until another node has room", self.describe(job)["status"]["moves"])
        self.assertIn("stays until another node has room", self.ask("describe", job))
        self.assertIn("draining", self.ask("nodes"))
        before = self.step(job)
        wait_until(lambda: self.step(job) > before + 100, 60, "it goes on")

        # The order outlives the coordinator.
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()
        self.assertEqual(self.await_state(first, "draining")["drain"]["reason"], "memory errors")

        # A place: both move to it, one after the other, and the node is empty.
        second = self.join("second", 2)
        self.await_state(first, "drained")
        self.assertEqual(self.places(job), [second, second])
        self.assertIsNone(self.agents["first"].poll(), "the agent of a drained node stays")
        self.assertTrue(self.node(first)["connected"])

        # Given back, and the other one drained: one worker moves where one has room.
        self.ask("undrain", first)
        self.await_state(first, "up")
        code, _, err = self.launch("undrain", f"--coordinator={self.address}", first)
        self.assertNotEqual(code, 0)
        self.assertIn("neither drained nor left out", err)
        self.ask("drain", second)
        self.await_state(second, "drained")
        self.assertEqual(self.places(job), [first, first])
        self.end_of(job, expected)

    def test_a_cancelled_job_below_its_fewest_workers_is_saved_by_who_is_left(self):
        path = self.job_file(nodes=2, nproc=1, steps=100000000)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"failure_detection: 2s\ncheckpoint: {{dir: {self.dir}/saved}}\n")
        self.join("first", 1)
        second = self.join("second", 1)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 20, 60, "it trains")
        pid = next(int(m["pid"]) for m in self.describe(job)["members"] if m["node_id"] == second)
        self.agents["second"].kill()
        self.agents["second"].wait()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "waits for 1 worker" in self.status(job)["reason"], 60, "it waits")
        self.ask("cancel", job)
        status = wait_until(lambda: (s := self.status(job))["state"] == "CANCELLED" and s, 60, "it ends")
        step = int(status["result"]["steps"])
        self.assertGreater(step, 20)
        self.assertIn(f"drained at step {step}; model saved", status["reason"])
        self.assertEqual(os.readlink(f"{self.dir}/saved/last"), f"step-{step:010}")

    def test_a_node_is_named_by_its_id_its_host_or_the_beginning_of_its_id(self):
        first = self.join("first", 1)
        self.ask("drain", self.node(first)["host"])
        self.await_state(first, "drained")
        self.ask("undrain", first[:-3])
        self.await_state(first, "up")
        self.join("second", 1)
        code, _, err = self.launch("drain", f"--coordinator={self.address}", self.node(first)["host"])
        self.assertNotEqual(code, 0)
        self.assertIn("is the host of 2 nodes", err)
        self.assertIn(first, err)
        code, _, err = self.launch("drain", f"--coordinator={self.address}", "nobody")
        self.assertIn("there is no node 'nobody'", err)
        # Nothing starts on a drained node, whatever becomes of its agent.
        for node in self.nodes():
            self.ask("drain", node["node_id"])
        self.agents["first"].kill()
        self.agents["first"].wait()
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=10))
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] == "PENDING" and
                            "it is drained" in s["reason"] and s, 20, "it waits")
        self.assertIn("no node takes work", status["reason"])
        self.ask("undrain", first)
        self.assertEqual(self.describe(job)["status"]["state"], "PENDING", "that one's agent is gone")


if __name__ == "__main__":
    unittest.main()
