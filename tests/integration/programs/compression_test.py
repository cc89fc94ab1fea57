# SPDX-License-Identifier: Apache-2.0
"""train.gradient_compression: bf16 gives the same bits on any workers and hosts, whatever dies."""

import json
import os
import re
import signal
import unittest

import harness
from harness import steps_that_last, wait_until
from hosts import HostsTest

OFF = ("--set", "train.gradient_compression=none")


class Compression(HostsTest):
    def job_file(self, resources="nproc_per_node: 4", steps=200, extra="", train="", name="job.yaml"):
        # More gradients than go in one exchange.
        text = harness.synthetic_job(
            steps=steps, shards=4, hidden="[200, 67]",
            train_extra=f"  gradient_compression: bf16\n  clip_norm: 0.5\n{train}  eval: {{every: 100 steps}}\n"
                        "  passes: {bucket_size: 8KiB}\n",
            extra=f"failure_detection: 2s\nverify_replicas: 5 steps\n{extra}")
        return self.write(name, re.sub(r"resources: .*", f"resources: {{{resources}, device: cpu}}", text))

    def alone(self, steps):
        """The sha256 of the model of the same job with one worker."""
        own = self.job_file("nproc_per_node: 1", steps, name="alone/job.yaml")
        return self.train(own, cwd=os.path.dirname(own), seconds=600)["model"]["sha256"]

    def assert_good(self, job, expected):
        status = self.end_of(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
        self.assertEqual(status["result"]["model_sha256"], expected)
        return status

    def test_the_same_bits_with_any_number_of_workers(self):
        path = self.job_file()
        results = {workers: self.train(f"--nproc-per-node={workers}", path)["model"]["sha256"]
                   for workers in (1, 2, 3, 4)}
        self.assertEqual(len(set(results.values())), 1, results)
        self.assertNotEqual(self.train(*OFF, path)["model"]["sha256"], results[4])
        faults = ["--kill", "rank:1@step:50/reduced", "--kill", "rank:0@step:90"]
        code, out, err = self.launch("chaos", "-o", "json", "--set", "elastic.min_workers=1", *faults, path)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], results[4])

    def test_the_same_bits_on_any_hosts(self):
        first, second, _ = self.up(3, 3, 3)
        expected = self.alone(200)
        for resources, train in (("nodes: 2, nproc_per_node: 2", ""), ("ranks_per_node: [3, 1]", ""),
                                 ("ranks_per_node: [1, 1, 2]", ""),
                                 ("ranks_per_node: [2, 1, 1]", "  zero_stage: 1\n")):
            with self.subTest(resources + train):
                self.assert_good(self.submit(self.job_file(resources, train=train)), expected)
        for host in (first, second):
            host.narrow("20mbit")
        self.assert_good(self.submit(self.job_file("nodes: 2, nproc_per_node: 2", steps=200)), expected)

    def test_a_rank_and_a_host_that_go(self):
        _, second, third = self.up(2, 2, 0)
        steps = steps_that_last(30)
        expected = self.alone(steps)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps,
                             extra="restart: {max_restarts: 3}\nelastic: {min_workers: 1}\n"
                                   "env: {LOCKSTEP_STEP_TIME: 60ms}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        members = sorted(self.describe(job)["members"], key=lambda m: m["rank"])
        os.kill(int(members[0]["pid"]), signal.SIGKILL)
        at = self.step(job)
        wait_until(lambda: self.step(job) > at + 50, 60, "it goes on")
        second.power_off()
        self.join(third, 2)
        self.await_host(job, third)
        self.assert_good(job, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
