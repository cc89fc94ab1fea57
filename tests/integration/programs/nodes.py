# SPDX-License-Identifier: Apache-2.0
"""A coordinator with a journal and agents on this host, each a node of its own."""

import json
import os
import re
import subprocess

import harness
from harness import wait_until


class Nodes(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.journal = os.path.join(self.dir, "journal")
        self.address = f"unix:{self.dir}/socket"
        self.agents = {}
        self.start_again()

    def start_again(self, *arguments, **env):
        """A coordinator; what it says goes to a file, since a pipe that nobody reads is full one day."""
        with open(os.path.join(self.dir, "coordinator.log"), "ab") as log:
            self.coordinator, _ = self.start_coordinator(f"--state-dir={self.journal}", *arguments, stderr=log, env=env)

    def start_agent(self, name, slots, *arguments, prefix=(), **env):
        """With a state folder of its own; its workers' steps are paced, its messages go to a file. `prefix` runs it."""
        with open(os.path.join(self.dir, name + ".log"), "ab") as log:
            child = subprocess.Popen(
                [*prefix, os.path.join(harness.BIN, "launcher"), "join", f"--coordinator={self.address}", f"--slots={slots}",
                 f"--state-dir={os.path.join(self.dir, name)}", *arguments],
                cwd=self.dir, env=self.environment(**dict(harness.PACED, **env)), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log)
        self.children.append(child)
        self.agents[name] = child
        return child

    def join(self, name, slots, *arguments, **options):
        """A node that was not there before; its id."""
        known = {node["node_id"] for node in self.nodes()}
        self.start_agent(name, slots, *arguments, **options)
        node = wait_until(lambda: next((n for n in self.nodes() if n["node_id"] not in known and n["connected"]), None),
                          20, f"{name} joins")
        return node["node_id"]

    def said(self, name):
        with open(os.path.join(self.dir, name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def ask(self, verb, *arguments):
        code, out, err = self.launch(verb, f"--coordinator={self.address}", *arguments)
        self.assertEqual(code, 0, out + err)
        return out

    def nodes(self):
        return json.loads(self.ask("nodes", "-o", "json"))["nodes"]

    def node(self, node_id):
        return next(node for node in self.nodes() if node["node_id"] == node_id)

    def await_state(self, node_id, state, seconds=60):
        return wait_until(lambda: (n := self.node(node_id))["state"] == state and n, seconds, f"{node_id} is {state}")

    def describe(self, job):
        return json.loads(self.ask("describe", "-o", "json", job))["job"]

    def status(self, job):
        return self.describe(job)["status"]

    def step(self, job):
        return int(self.status(job).get("progress", {}).get("step", 0))

    def job_file(self, nodes, nproc, steps, name="tiny"):
        return self.write(f"{name}.yaml", harness.synthetic_job(
            name=name, steps=steps, shards=2, hidden="[64]", train_extra="  eval: {every: never}\n",
            extra="restart: {max_restarts: 0}\n").replace(
                "nproc_per_node: 4", f"nodes: {nodes}, nproc_per_node: {nproc}"))

    def undisturbed(self, path, **options):
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"nodes: \d+, nproc_per_node: \d+", "nproc_per_node: 2", file.read())
        alone = self.write("alone/job.yaml", text)
        return self.train(alone, cwd=os.path.dirname(alone), seconds=600, **options)["model"]["sha256"]

    def submit(self, *arguments):
        self.pace()
        out = self.ask("submit", "--no-follow", "-o", "json", *arguments)
        return json.loads(out.strip().splitlines()[-1])["job"]

    def end_of(self, job, expected):
        self.unpace()
        status = wait_until(lambda: (s := self.describe(job)["status"])["state"] in
                            ("SUCCEEDED", "FAILED", "CANCELLED") and s, 600, "the job ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        self.assertEqual(int(status["restarts"]), 0, status)
        self.assertEqual(status["result"]["faults"], [], "nobody failed")
        self.assertEqual(status["result"]["model_sha256"], expected)
        return status["result"]

    def places(self, job):
        return sorted(member["node_id"] for member in self.describe(job)["members"])
