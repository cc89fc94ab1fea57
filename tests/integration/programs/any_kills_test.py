# SPDX-License-Identifier: Apache-2.0
"""Seeded runs in which anything is killed at random moments: workers, their supervisors, agents and the coordinator,
on two nodes, several at once among them. Agents and the coordinator are started again. The job ends well, its weights
are those of an undisturbed run, and nothing is left.

LOCKSTEP_TEST_SEEDS is how many runs there are, LOCKSTEP_TEST_FIRST_SEED the first."""

import os
import random
import time
import unittest

import harness
from harness import steps_that_last, wait_until
from nodes import Nodes

SEEDS = int(os.environ.get("LOCKSTEP_TEST_SEEDS", "2"))
FIRST = int(os.environ.get("LOCKSTEP_TEST_FIRST_SEED", "1"))
KILLS = 8
AGENTS = ("one", "two")
PROGRAMS = {"worker": "worker", "supervisor": "lockstep-supervisor"}


class AnyKills(Nodes):
    def kill(self, kind, draw):
        """One process of this kind; a word for the report."""
        if kind == "agent":
            name = draw.choice(AGENTS)
            self.agents[name].kill()
            self.agents[name].wait()
            time.sleep(draw.choice((0, 0.05, 0.5)))
            self.start_agent(name, 2)
            return f"agent {name}"
        if kind == "coordinator":
            self.coordinator.kill()
            self.coordinator.wait()
            time.sleep(draw.choice((0, 0.05, 0.5)))
            self.start_again()
            return kind
        there = self.processes(PROGRAMS[kind])
        if not there:
            return f"no {kind}"
        victim = draw.choice(there)
        try:
            victim.kill()
        except ProcessLookupError:
            return f"no {kind}"  # it has just ended
        return f"{kind} {victim.pid}"

    def one_run(self, seed, path, expected):
        draw = random.Random(seed)
        for name in AGENTS:
            self.start_agent(name, 2)
        wait_until(lambda: len([n for n in self.nodes() if n["connected"]]) == 2, 20, "both nodes are there")
        job = self.submit(path)
        done = []
        for _ in range(KILLS):
            time.sleep(draw.choice((0, draw.uniform(0, 0.1), draw.uniform(0, 1.5))))
            done.append(self.kill(draw.choice(("worker", "supervisor", "agent", "coordinator")), draw))
        self.unpace()
        try:
            status = wait_until(lambda: (s := self.status(job))["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") and s,
                                240, "the job ends")
            self.assertEqual(status["state"], "SUCCEEDED", status)
            self.assertEqual(status["result"]["model_sha256"], expected)
            wait_until(lambda: not self.processes("worker") and not self.processes("lockstep-supervisor"), 20,
                       "nothing is left")
        except AssertionError as error:
            said = {name: self.said(name) for name in (*AGENTS, "coordinator")}
            raise AssertionError("\n".join([f"seed {seed}: {error}", *done, self.ask("describe", job), *(
                f"-- {name}:\n{text}" for name, text in said.items())])) from None
        for agent in self.agents.values():
            agent.terminate()
            agent.wait()

    def test_seeds(self):
        path = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(6), shards=4, hidden="[64]", train_extra="  eval: {every: never}\n",
            extra="restart: {max_restarts: 50}\nelastic: {min_workers: 1}\nfailure_detection: 1s\n").replace(
                "nproc_per_node: 4", "nodes: 2, nproc_per_node: 2"))
        expected = self.undisturbed(path)
        began = time.monotonic()
        for seed in range(FIRST, FIRST + SEEDS):
            self.one_run(seed, path, expected)
        print(f"{SEEDS} runs from seed {FIRST}, {KILLS} kills each; {(time.monotonic() - began) / SEEDS:.1f} s a run",
              flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
