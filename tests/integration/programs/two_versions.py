# SPDX-License-Identifier: Apache-2.0
"""Two builds of different versions speak with each other: coordinators are upgraded first, agents after them.

By hand (tools/two_versions.sh COMMIT): LOCKSTEP_OLD_BIN is the folder with the programs of the version before.
"""

import contextlib
import os
import signal
import unittest

import harness
from harness import steps_that_last, wait_until
from nodes import Nodes

OLD = os.environ.get("LOCKSTEP_OLD_BIN", "")
NEW = harness.BIN


@contextlib.contextmanager
def programs(folder):
    """What is started within is from `folder`."""
    before, harness.BIN = harness.BIN, folder
    try:
        yield
    finally:
        harness.BIN = before


@unittest.skipUnless(OLD, "LOCKSTEP_OLD_BIN names no other version")
class TwoVersions(Nodes):
    def setUp(self):
        with programs(OLD):
            super().setUp()

    def tearDown(self):
        harness.BIN = NEW
        super().tearDown()

    def job(self, seconds, name):
        return self.job_file(1, 2, steps_that_last(seconds), name)

    def trains(self, job):
        wait_until(lambda: self.step(job) > 50, 60, "it trains")

    def train_on_old(self):
        """A job that trains on a node, all of the old version, and what it gives undisturbed."""
        with programs(OLD):
            path = self.job(30, "tiny")
            expected = self.undisturbed(path)
            self.join("node", 2)
            job = self.submit(path)
            self.trains(job)
        return job, expected

    def upgrade_coordinator(self):
        self.coordinator.send_signal(signal.SIGTERM)
        self.coordinator.wait(timeout=harness.patient())
        with programs(NEW):
            self.start_again()

    def test_a_coordinator_is_upgraded_while_a_job_trains(self):
        job, expected = self.train_on_old()
        workers = {process.pid for process in self.processes("worker")}
        self.upgrade_coordinator()
        step = self.step(job)
        wait_until(lambda: self.step(job) > step, 60, "it goes on")
        self.assertEqual({process.pid for process in self.processes("worker")}, workers)
        self.end_of(job, expected)
        # And the new one gives the old agent work.
        self.end_of(self.submit(self.job(1, "next")), self.undisturbed_of_old("next"))

    def undisturbed_of_old(self, name):
        with programs(OLD):
            return self.undisturbed(os.path.join(self.dir, name + ".yaml"))

    def test_an_agent_is_upgraded_after_its_coordinator(self):
        with programs(OLD):
            node = self.join("node", 2)
        self.upgrade_coordinator()
        self.await_state(node, "up")
        self.agents["node"].send_signal(signal.SIGTERM)
        self.agents["node"].wait(timeout=harness.patient())
        with programs(NEW):
            self.start_agent("node", 2)
            wait_until(lambda: self.node(node)["connected"], 20, "the new agent is the same node")
            path = self.job(1, "tiny")
            self.end_of(self.submit(path), self.undisturbed(path))

    def test_an_agent_that_is_upgraded_first_is_told_and_ends_nothing(self):
        job, expected = self.train_on_old()
        with programs(NEW):
            self.start_agent("other", 2)
        wait_until(lambda: "the coordinator refuses this node" in self.said("other"), 20, "it is told")
        self.assertIn("protocol", self.said("other"))
        with programs(OLD):
            self.end_of(job, expected)


if __name__ == "__main__":
    unittest.main()
