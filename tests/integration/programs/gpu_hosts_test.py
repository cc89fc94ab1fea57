# SPDX-License-Identifier: Apache-2.0
"""Jobs on emulated GPUs of several hosts (network namespaces): NCCL, the fake one, joins them, with the bits of one worker."""

import os
import re
import signal
import unittest

import harness
from harness import wait_until
from hosts import HostsTest

GPUS = {"LOCKSTEP_CUDA_MODULE": os.environ.get("LOCKSTEP_EMULATED_MODULE", ""), "LOCKSTEP_GPUS": "GPU-a,GPU-b"}
NCCL = dict(GPUS, LOCKSTEP_NCCL_LIBRARY=os.environ.get("LOCKSTEP_FAKE_NCCL", ""))
# An emulated step takes tens of milliseconds of a processor: few, long ones.
HEALS = "restart: {max_restarts: 3}\nelastic: {min_workers: 1}\nenv: {LOCKSTEP_STEP_TIME: 400ms}\n"
# Survivors that stand in a shorter step know sooner of a death, before the replacement is ready.
SHRINKS = HEALS.replace("400ms", "100ms")
TRAINS = 15  # steps from which on it is sure that all train


class OnGpusOfHosts(HostsTest):
    """A test with jobs on the GPUs of hosts."""

    def alone(self, path):
        """The sha256 of the same job on one GPU of one host, with the whole state, without NCCL."""
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"resources: .*", "resources: {nproc_per_node: 1, device: cuda}", file.read())
        text = re.sub(r"(?m)^(elastic|restart|nccl|checkpoint|env): .*\n|^  zero_stage: .*\n", "", text)
        own = self.write("alone/job.yaml", text)
        return self.train(own, cwd=os.path.dirname(own), env=GPUS, seconds=600)["model"]["sha256"]

    def no_step_lost(self, status):
        faults = status["result"].get("faults", [])
        self.assertGreaterEqual(len(faults), 1)
        self.assertEqual([int(fault.get("steps_lost", 0)) for fault in faults], [0] * len(faults), status)


class GpuHosts(OnGpusOfHosts):
    def job_file(self, steps=60, extra=""):
        text = harness.synthetic_job(
            steps=steps, shards=4, hidden="[64, 32]", train_extra="  passes: {bucket_size: 2KiB}\n",
            extra=f"failure_detection: 2s\n{extra}")
        resources = "resources: {nodes: 2, nproc_per_node: 2, device: cuda}"
        return self.write("job.yaml", re.sub(r"resources: .*", resources, text))

    def received(self, host, interface):
        return int(host.run("cat", f"/sys/class/net/{interface}/statistics/rx_bytes"))

    def test_nccl_joins_the_gpus_of_two_hosts(self):
        self.up(2, 2, env=NCCL)
        path = self.job_file()
        job = self.submit(path)
        expected = self.assert_good(job, path)["result"]["model_sha256"]
        self.assertEqual([member["host"] for member in self.members(job)], ["h1", "h1", "h2", "h2"])
        self.assertRegex(self.logs_of(job), r"gradients are reduced by NCCL \S+ on 4 GPUs \(new communicator")
        # Without it they go through the hosts' memory, to the same bits.
        job = self.submit("--set", "nccl.use=never", path)
        self.assert_good(job, path, expected)
        self.assertNotIn("reduced by NCCL", self.logs_of(job))

    def test_a_rank_that_is_killed_costs_no_step(self):
        self.up(2, 2, env=NCCL)
        path = self.job_file(steps=100, extra=SHRINKS)
        expected = self.alone(path)
        for rank in (0, 3):
            # Where the replacement is ready as soon as the survivors are, nothing has shrunk: again.
            for _ in range(5):
                job = self.submit(path)
                wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
                os.kill(int(self.members(job)[rank]["pid"]), signal.SIGKILL)
                self.no_step_lost(self.assert_good(job, path, expected))
                logs = self.logs_of(job)
                if "on 3 GPUs" in logs:
                    break
            self.assertRegex(logs, r"on 3 GPUs \(shrunk communicator")

    def test_a_host_that_loses_its_power_costs_no_step(self):
        hosts = self.up(2, 2, 0, env=NCCL)
        path = self.job_file(steps=150, extra=HEALS)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
        hosts[1].power_off()
        self.join(hosts[2], 2, env=NCCL)
        self.await_host(job, hosts[2])
        self.no_step_lost(self.assert_good(job, path))
        self.assertEqual({member["host"] for member in self.members(job)}, {"h1", "h3"})

    def test_the_job_names_the_interface_else_the_environment_does(self):
        hosts = self.make_network("h1", "h2")
        self.network.add_second()
        self.start_head()
        environment = dict(NCCL, NCCL_SOCKET_IFNAME="eth7")  # there is none
        self.agents = [self.join(host, 2, "--interfaces=eth0", env=environment) for host in hosts]
        self.await_nodes(2)
        path = self.job_file(extra="nccl: {use: always, socket_ifname: eth1, env: {NCCL_SOCKET_FAMILY: AF_INET}}\n")
        before = self.received(hosts[1], "eth1")
        self.assert_good(self.submit(path), path)
        gradients = 4 * (40 * 64 + 64 * 32 + 32 * 5)
        self.assertGreater(self.received(hosts[1], "eth1") - before, 60 * gradients // 2)
        job = self.submit(self.job_file(extra="nccl: {use: always}\nrestart: {max_restarts: 0}\n"))
        status = self.end_of(job)
        self.assertEqual(status["state"], "FAILED")
        self.assertRegex(status["reason"], "rank 0 has no id for NCCL's communicator: .*NCCL says: invalid usage")

    def test_a_host_without_nccl_is_named(self):
        first, second = self.make_network("h1", "h2")
        self.start_head()
        self.agents = [self.join(first, 2, env=NCCL), self.join(second, 2, env=GPUS)]
        self.await_nodes(2)
        path = self.job_file(extra="restart: {max_restarts: 0}\n")
        status = self.end_of(self.submit(path))
        self.assertEqual(status["state"], "FAILED")
        self.assertRegex(status["reason"], r"rank [02] \(h[12]\) compiled another plan than rank [02] \(h[12]\): .*"
                                           "which reduces gradients by NCCL")
        path = self.job_file(extra="nccl: {use: never}\n")
        self.assert_good(self.submit(path), path)


class ZeroOnGpuHosts(OnGpusOfHosts):
    """train.zero_stage: 1: each part of the moments is on GPUs of two hosts."""

    def job_file(self, steps=60, extra="", resources="nodes: 2, nproc_per_node: 2", name="job.yaml"):
        text = harness.synthetic_job(
            steps=steps, shards=4, hidden="[48, 21]",
            train_extra="  zero_stage: 1\n  clip_norm: 0.5\n  ema: {decay: 0.9}\n  eval: {every: 20 steps}\n"
                        "  passes: {bucket_size: 2KiB}\n",
            extra=f"failure_detection: 2s\nverify_replicas: 5 steps\n{extra}")
        text = text.replace("{sgd: {lr: 0.05, momentum: 0.9}}", "{adamw: {lr: 0.002, weight_decay: 0.1}}")
        return self.write(name, re.sub(r"resources: .*", f"resources: {{{resources}, device: cuda}}", text))

    def test_parts_of_the_moments_have_the_bits_of_the_whole(self):
        self.up(3, 3, 3, env=dict(NCCL, LOCKSTEP_GPUS="GPU-a,GPU-b,GPU-c"))
        expected = None
        for resources in ("nodes: 2, nproc_per_node: 2", "ranks_per_node: [3, 1]", "ranks_per_node: [1, 1, 2]",
                          "nodes: 2, nproc_per_node: 1"):
            with self.subTest(resources):
                path = self.job_file(resources=resources)
                expected = expected or self.alone(path)
                job = self.submit(path)
                self.assert_good(job, path, expected)
                self.assertRegex(self.logs_of(job), r"gradients are reduced by NCCL \S+ on [24] GPUs")
        path = self.job_file()
        for setting in ("nccl.use=never", "resources.offload_optimizer=true"):
            with self.subTest(setting):
                self.assert_good(self.submit("--set", setting, path), path, expected)

    def test_deaths_in_every_half_of_a_step_lose_none(self):
        self.up(2, 2, env=NCCL)
        kills = ("kill rank:1@step:11/begun;kill rank:2@step:25/reduced;kill rank:3@step:38/reduce;"
                 "kill rank:0@step:52/begun")
        # A step is so long that who replaces a dead worker is there before the next one dies.
        path = self.job_file(steps=60, extra="restart: {max_restarts: 9}\nelastic: {min_workers: 1}\n"
                             f'env: {{LOCKSTEP_CHAOS: "{kills}", LOCKSTEP_STEP_TIME: 450ms}}\n')
        expected = self.alone(path)
        for use in ("auto", "never"):
            status = self.assert_good(self.submit("--set", f"nccl.use={use}", path), path, expected)
            self.no_step_lost(status)
            self.assertEqual(len(status["result"]["faults"]), 4, status)

    def test_a_host_that_loses_its_power_takes_no_part_with_it(self):
        hosts = self.up(2, 2, 0, env=NCCL)
        path = self.job_file(steps=150, extra=HEALS)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > TRAINS, 60, "both hosts train")
        hosts[0].power_off()
        self.join(hosts[2], 2, env=NCCL)
        self.await_host(job, hosts[2])
        self.no_step_lost(self.assert_good(job, path))
        self.assertEqual({member["host"] for member in self.members(job)}, {"h2", "h3"})

    def test_more_and_fewer_workers(self):
        self.up(2, 2, env=NCCL)
        path = self.job_file(steps=300, extra="elastic: {min_workers: 1, max_workers: 4}\n"
                             "env: {LOCKSTEP_STEP_TIME: 700ms}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 3, 60, "both hosts train")
        for workers in (3, 4, 2, 1, 4):
            code, _, err = self.verb("scale", job, str(workers))
            self.assertEqual(code, 0, err)
            wait_until(lambda: len(self.members(job)) == workers, 60, f"{workers} workers")
            at = self.step(job)
            wait_until(lambda: self.step(job) > at + 5, 60, "it goes on")
        self.assertEqual(len(self.assert_good(job, path)["result"].get("faults", [])), 0)
        self.assertNotIn("are gone", self.logs_of(job))

    def test_a_checkpoint_is_that_of_a_run_without_and_goes_on_with_other_hosts(self):
        self.up(2, 2, 2, env=NCCL)
        path = self.job_file(extra="checkpoint: {every: 20 steps, dir: saved}\n")
        expected = self.alone(path)
        self.assert_good(self.submit(path), path, expected)
        one = self.job_file(extra="checkpoint: {every: 20 steps, dir: plain}\n", resources="nproc_per_node: 1",
                            name="plain.yaml")
        self.train("--set", "train.zero_stage=0", one, cwd=self.dir, env=GPUS)
        for name in ("model.safetensors", "training.safetensors"):
            both = [self.read(os.path.join(folder, "last", name)) for folder in ("saved", "plain")]
            self.assertEqual(both[0], both[1], name)
        saved = os.path.join(self.dir, "saved")
        newest = max(name for name in os.listdir(saved) if name.startswith("step-"))
        os.rename(os.path.join(saved, newest), os.path.join(self.dir, "aside"))
        path = self.job_file(extra="checkpoint: {every: 20 steps, dir: saved}\n", resources="ranks_per_node: [1, 1, 2]")
        job = self.submit(path)
        self.assert_good(job, path, expected)
        self.assertRegex(self.logs_of(job), r"step-0*40\b")

    def read(self, name):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()


if __name__ == "__main__":
    unittest.main(verbosity=2)
