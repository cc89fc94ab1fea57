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
# Steps between hosts take much of a processor: few, long ones.
PACE = "env: {LOCKSTEP_STEP_TIME: 300ms}\n"
HEALS = f"restart: {{max_restarts: 3}}\nelastic: {{min_workers: 1}}\n{PACE}"
TRAINS = 15  # steps from which on it is sure that all train


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

    def kill(self, job, rank):
        os.kill(int(self.members(job)[rank]["pid"]), signal.SIGKILL)

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
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=300, extra=HEALS)
        expected = self.alone(path)
        for rank in (0, 3):
            job = self.submit(path)
            wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
            self.kill(job, rank)
            status = self.assert_good(job, path, expected)
            self.no_step_lost(status)
            self.assertGreaterEqual(len(status["result"]["faults"]), 1)

    def lose_a_host(self, lost):
        hosts = self.up(2, 2, 0)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=300, extra=HEALS)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
        hosts[lost].power_off()
        self.join(hosts[2], 2)
        self.await_host(job, hosts[2])
        self.no_step_lost(self.assert_good(job, path))
        self.assertNotIn(hosts[lost].name, {member["host"] for member in self.members(job)})

    def test_the_first_host_loses_its_power(self):
        self.lose_a_host(0)

    def test_the_second_host_loses_its_power(self):
        self.lose_a_host(1)

    def test_three_and_one_when_the_one_goes(self):
        hosts = self.up(3, 1, 0)
        path = self.job_file("ranks_per_node: [3, 1]", steps=300,
                             extra=f"restart: {{max_restarts: 3}}\n{PACE}")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
        hosts[1].power_off()
        self.join(hosts[2], 1)
        self.no_step_lost(self.assert_good(job, path))
        self.assertEqual({member["host"] for member in self.members(job)}, {"h1", "h3"})

    def test_more_and_fewer_workers(self):
        self.up(2, 2)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=600,
                             extra=f"elastic: {{min_workers: 1, max_workers: 4}}\n{PACE}")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
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
        steps = steps_that_last(20)
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


class WithoutDaemon(HostsTest):
    """Hosts whose coordinator's host loses its power: each worker of the others has a part of the state."""

    STEPS = steps_that_last(30)
    PACE = dict(harness.PACED, LOCKSTEP_TOKEN="a-secret-of-all-hosts")

    def job_file(self, name, hosts, nproc):
        text = harness.synthetic_job(
            name=name, steps=self.STEPS, shards=4, nproc=nproc, hidden="[128, 67]",
            train_extra="  zero_stage: 1\n  clip_norm: 0.5\n  eval: {every: never}\n  passes: {bucket_size: 8KiB}\n",
            extra=f"checkpoint: {{dir: saved-{name}}}\nfailure_detection: 2s\n")
        return self.write(f"{name}.yaml", text.replace(SGD, ADAMW))

    def run_on(self, name, hosts, nproc):
        path = self.job_file(name, len(hosts), nproc)
        endpoint = f"{hosts[0].address}:29500"
        return [self.on(host, "launcher", f"--nnodes={len(hosts)}", f"--rdzv-endpoint={endpoint}",
                        f"--node-rank={rank}", path, log=host.name, env=self.PACE) for rank, host in enumerate(hosts)]

    def await_steps(self, name, count):
        def trained():
            for folder, _, files in os.walk(os.path.join(self.dir, "runs")):
                if f"/{name}-" in folder and "metrics.jsonl" in files:
                    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                        return len(file.readlines()) >= count
            return False
        wait_until(trained, 60, f"{name} trains")

    def saved_step(self, host):
        said = re.search(r"the run's coordinator at .* is gone; the state .* is saved as \S*/step-0*(\d+);",
                         self.said(host.name))
        self.assertTrue(said, self.said(host.name))
        return int(said[1])

    def assert_goes_on(self, name, step):
        """To the weights of the run to which nothing happened, and which has no parts of anything."""
        path = os.path.join(self.dir, f"{name}.yaml")
        resumed = self.train("--nproc-per-node=2", path, cwd=self.dir, seconds=600)
        logs = os.path.join(os.path.dirname(os.path.dirname(resumed["model"]["path"])), "logs")
        text = ""
        for log in os.listdir(logs):
            with open(os.path.join(logs, log), encoding="utf-8") as file:
                text += file.read()
        self.assertIn(f"goes on after step {step} from the checkpoint saved-{name}/step-", text)
        plain = self.train("--nproc-per-node=2", "--set", "checkpoint.resume=never", "--set", "checkpoint.dir=other",
                           "--set", "train.zero_stage=0", path, cwd=self.dir, seconds=600)
        self.assertEqual(resumed["model"]["sha256"], plain["model"]["sha256"])

    def test_those_that_are_left_save_together_what_they_hold(self):
        # At once, since each waits half a minute for its coordinator: two workers of one host hold all that the other
        # host held; so do two hosts of three; one of three does not.
        hosts = self.make_network("a1", "a2", "b1", "b2", "b3", "c1", "c2", "c3")
        a, b, c = hosts[:2], hosts[2:5], hosts[5:]
        children = {}
        for name, where, nproc in (("a", a, 2), ("b", b, 1), ("c", c, 1)):
            for host, child in zip(where, self.run_on(name, where, nproc)):
                children[host.name] = child
        for name, lost in (("a", a[:1]), ("b", b[:1]), ("c", c[:2])):
            self.await_steps(name, 1)
            for host in lost:
                host.unplug()
            for host in lost:
                host.power_off()
        for host in (a[1], b[1], b[2], c[2]):
            self.assertEqual(children[host.name].wait(timeout=harness.patient()), 4, self.said(host.name))
        self.assertEqual(self.processes(), [])
        step = self.saved_step(a[1])
        self.assertTrue(0 < step < self.STEPS, "it was cut short")
        self.assert_goes_on("a", step)
        step = self.saved_step(b[1])
        self.assertEqual(self.saved_step(b[2]), step, "both say the same")
        self.assert_goes_on("b", step)
        self.assertRegex(self.said("c3"), r"this host's workers saved nothing \(.*both holders of part \d+(, part \d+)* "
                                          r"of \d+ of the optimizer's state after step \d+ are gone.*\): the newest "
                                          r"checkpoint is that in .*saved-c")
        self.assertFalse(os.path.exists(os.path.join(self.dir, "saved-c", "last")), "half of a state is none")


if __name__ == "__main__":
    unittest.main(verbosity=2)
