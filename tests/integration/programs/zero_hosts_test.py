# SPDX-License-Identifier: Apache-2.0
"""train.zero_stage: 1 over several hosts (network namespaces): the bits of a job without it on one host, whatever dies."""

import os
import re
import signal
import unittest

import harness
from harness import steps_that_last, wait_until
from hosts import HostsTest

ADAMW = "  optimizer: {adamw: {lr: 0.002, weight_decay: 0.1}, no_decay: auto}\n"
SGD = "  optimizer: {sgd: {lr: 0.05, momentum: 0.9}}\n"


class ZeroHosts(HostsTest):
    def job_file(self, resources, steps=200, extra="", name="job.yaml"):
        text = harness.synthetic_job(
            steps=steps, shards=4, hidden="[128, 67]",
            train_extra="  zero_stage: 1\n  clip_norm: 0.5\n  ema: {decay: 0.9}\n  eval: {every: 100 steps}\n"
                        "  passes: {bucket_size: 8KiB}\n",
            extra=f"failure_detection: 2s\nverify_replicas: 5 steps\n{extra}")
        assert SGD in text
        text = text.replace(SGD, ADAMW)
        return self.write(name, re.sub(r"resources: .*", f"resources: {{{resources}, device: cpu}}", text))

    def alone(self, path):
        """The sha256 of the model of the same job on one host, without zero_stage."""
        return super().alone(path, lambda text: text.replace("zero_stage: 1", "zero_stage: 0"))

    def assert_good(self, job, path, expected=None):
        status = self.end_of(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
        self.assertEqual(status["result"]["model_sha256"], expected or self.alone(path))
        return status

    def members(self, job):
        return sorted(self.describe(job)["members"], key=lambda m: m["rank"])

    def kill(self, job, rank):
        os.kill(int(self.members(job)[rank]["pid"]), signal.SIGKILL)

    def logs_of(self, job):
        text = ""
        for folder, _, files in os.walk(os.path.join(self.dir, "runs")):
            for name in files:
                if f"-{job}" in folder and name.endswith(".log"):
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                        text += file.read()
        self.assertTrue(text, "there are logs")
        return text

    def no_step_lost(self, status):
        self.assertEqual([int(f.get("steps_lost", 0)) for f in status["result"].get("faults", [])],
                         [0] * len(status["result"].get("faults", [])), status)

    def test_the_same_bits_on_any_hosts(self):
        self.up(3, 3, 3)
        expected = None
        for resources in ("nodes: 2, nproc_per_node: 2", "ranks_per_node: [3, 1]", "ranks_per_node: [1, 1, 2]",
                          "nodes: 2, nproc_per_node: 1"):
            with self.subTest(resources):
                path = self.job_file(resources)
                expected = expected or self.alone(path)
                self.assert_good(self.submit(path), path, expected)

    def test_a_rank_that_is_killed_costs_no_step(self):
        self.up(2, 2)
        for rank in (0, 3):
            path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(6),
                                 extra="restart: {max_restarts: 3}\nelastic: {min_workers: 1}\n")
            job = self.submit(path)
            wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
            self.kill(job, rank)
            status = self.assert_good(job, path)
            self.no_step_lost(status)
            self.assertGreaterEqual(len(status["result"]["faults"]), 1)

    def lose_a_host(self, lost):
        hosts = self.up(2, 2, 0)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(6),
                             extra="restart: {max_restarts: 3}\nelastic: {min_workers: 1}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        hosts[lost].power_off()
        self.join(hosts[2], 2)
        self.no_step_lost(self.assert_good(job, path))
        self.assertNotIn(hosts[lost].name, {member["host"] for member in self.members(job)})

    def test_the_first_host_loses_its_power(self):
        self.lose_a_host(0)

    def test_the_second_host_loses_its_power(self):
        self.lose_a_host(1)

    def test_three_and_one_when_the_one_goes(self):
        hosts = self.up(3, 1, 0)
        path = self.job_file("ranks_per_node: [3, 1]", steps=steps_that_last(6), extra="restart: {max_restarts: 3}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        hosts[1].power_off()
        self.join(hosts[2], 1)
        self.no_step_lost(self.assert_good(job, path))
        self.assertEqual({member["host"] for member in self.members(job)}, {"h1", "h3"})

    def test_more_and_fewer_workers(self):
        self.up(2, 2)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(30),
                             extra="elastic: {min_workers: 1, max_workers: 4}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 20, 60, "both hosts train")
        for workers in (3, 4, 2, 1, 3, 4):
            code, _, err = self.verb("scale", job, str(workers))
            self.assertEqual(code, 0, err)
            wait_until(lambda: len(self.members(job)) == workers, 60, f"{workers} workers")
            at = self.step(job)
            wait_until(lambda: self.step(job) > at + 5, 60, "it goes on")
        status = self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)
        self.assertNotIn("are gone", self.logs_of(job))

    def test_a_checkpoint_is_that_of_a_run_without_and_goes_on_with_other_hosts(self):
        self.up(2, 2, 2)
        saving = "checkpoint: {every: 50 steps, dir: saved}\n"
        path = self.job_file("nodes: 2, nproc_per_node: 2", extra=saving)
        expected = self.alone(path)
        self.assert_good(self.submit(path), path, expected)
        plain = self.job_file("nodes: 1, nproc_per_node: 2", extra=saving.replace("saved", "plain"), name="plain.yaml")
        self.train("--set", "train.zero_stage=0", plain, cwd=self.dir)
        for name in ("model.safetensors", "training.safetensors"):
            both = []
            for folder in ("saved", "plain"):
                with open(os.path.join(self.dir, folder, "last", name), "rb") as file:
                    both.append(file.read())
            self.assertEqual(both[0], both[1], name)
        # All workers die at once: what replaces them is elsewhere.
        steps = steps_that_last(10)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps, name="long.yaml",
                             extra=f"checkpoint: {{every: {steps // 20} steps, dir: long}}\nrestart: {{max_restarts: 3}}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > steps // 4, 120, "there is a checkpoint")
        for member in self.members(job):
            os.kill(int(member["pid"]), signal.SIGKILL)
        self.assert_good(job, path)
        # Another run goes on from the last one's with other hosts.
        for resources in ("ranks_per_node: [1, 1, 2]", "nodes: 3, nproc_per_node: 1"):
            path = self.job_file(resources, name="again.yaml", extra=saving)
            steps_dir = os.path.join(self.dir, "saved")
            newest = max(d for d in os.listdir(steps_dir) if d.startswith("step-"))
            os.rename(os.path.join(steps_dir, newest), os.path.join(self.dir, f"aside-{newest}-{resources[:5]}"))
            self.assert_good(self.submit(path), path, expected)

    def test_a_narrow_link(self):
        first, second = self.up(2, 2)
        for host in (first, second):
            host.narrow("20mbit")
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=50)
        self.assert_good(self.submit(path), path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
