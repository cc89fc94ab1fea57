# SPDX-License-Identifier: Apache-2.0
"""A job over several hosts (network namespaces): the same bits as on one, whatever their network does."""

import glob
import itertools
import json
import os
import re
import time
import unittest

import harness
from harness import PACED, steps_that_last, wait_until
from hosts import HostsTest


# A model whose gradients go to other hosts in parts, while later ones are computed.
IN_PARTS = "[96, 96, 96]"


class Hosts(HostsTest):
    def job_file(self, resources, steps=200, shards=4, detection="2s", extra="", hidden="[64]"):
        text = harness.synthetic_job(
            steps=steps, shards=shards, hidden=hidden,
            train_extra="  eval: {every: 100 steps}\n  passes: {bucket_size: 8KiB}\n",
            extra=f"restart: {{max_restarts: 0}}\nfailure_detection: {detection}\n{extra}")
        return self.write("job.yaml", re.sub(r"resources: .*", f"resources: {{{resources}, device: cpu}}", text))

    # --- where ranks are ---
    def test_the_same_bits_on_any_hosts(self):
        self.up(3, 3, 3)
        expected = None
        for resources, hosts in (("nodes: 2, nproc_per_node: 2", ["h1", "h1", "h2", "h2"]),
                                 ("ranks_per_node: [3, 1]", ["h1", "h1", "h1", "h2"]),
                                 ("ranks_per_node: [1, 1, 2]", ["h1", "h2", "h3", "h3"]),
                                 ("ranks_per_node: [1, 3], rank0_node: h3", ["h3", "h1", "h1", "h1"])):
            with self.subTest(resources):
                path = self.job_file(resources, hidden=IN_PARTS)
                expected = expected or self.alone(path)
                ledger = glob.glob(os.path.join(self.dir, "alone/runs/*/ledger.bin"))[0]
                job = self.submit(path)
                status = self.end_of(job)
                self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
                self.assertEqual(status["result"]["model_sha256"], expected)
                self.assertEqual(self.hosts_of(job), hosts)
                own = glob.glob(os.path.join(self.dir, f"runs/*-{job}/ledger.bin"))[0]
                self.assertEqual(harness.hashes_in(own), harness.hashes_in(ledger), "each step is of the same samples")
        secrets = [self.said(log) for log in ("coordinator", "h1", "h2", "h3")]
        with open(self.token, encoding="utf-8") as file:
            token = file.read().strip()
        self.assertFalse(any(token in text for text in secrets), "no secret is logged")

    def test_hosts_that_meet_over_ipv6_alone(self):
        self.up(1, 1, more=("--interfaces=fd77::/64",))
        path = self.job_file("nodes: 2, nproc_per_node: 1")
        self.assert_good(self.submit(path), path)

    def test_a_coordinator_that_does_not_encrypt(self):
        self.up(1, 1, plaintext=True)
        path = self.job_file("nodes: 2, nproc_per_node: 1")
        self.assert_good(self.submit(path), path)

    # --- what happens to hosts ---
    def test_a_host_that_loses_its_power_is_replaced(self):
        _, second, third = self.up(2, 2, 0)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(30), hidden=IN_PARTS)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        second.power_off()
        self.join(third, 2)
        self.assert_good(job, path)
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h3"})

    def test_a_host_without_the_jobs_folder_is_left_out(self):
        hosts = self.make_network("h1", "h2", "h3")
        self.start_head()
        folder = os.path.join(self.dir, "home")
        os.mkdir(folder)
        self.join(hosts[0], 1)
        # In its own view of the file system the submitter's folder is empty and cannot be written to.
        hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"', folder]
        prefix = hosts[1].prefix
        hosts[1].prefix = lambda: [*prefix(), *hide]
        self.join(hosts[1], 1)
        self.await_nodes(2)
        with open(self.job_file("nodes: 2, nproc_per_node: 1"), encoding="utf-8") as file:
            path = self.write("home/job.yaml", file.read())
        job = self.submit(path, cwd=folder)
        wait_until(lambda: "h2" in self.status(job)["reason"] and "home" in self.status(job)["reason"], 20,
                   "the job names the host and the folder")
        self.join(hosts[2], 1)
        self.assert_good(job, path)
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h3"})

    def test_a_death_as_an_evaluation_ends_costs_no_evaluation(self):
        """Some have counted it then and others not, and a standby copies the state of all of them."""
        def decided(folder):
            [run] = glob.glob(os.path.join(self.dir, folder))
            with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            with open(os.path.join(run, "model/best.safetensors"), "rb") as file:
                return {line["step"]: line for line in lines if line["kind"] == "eval"}, file.read()

        self.up(3, 3)
        text = harness.synthetic_job(
            steps=60, hidden="[64]", train_extra="  eval: {every: 2 steps}\n  best: {metric: loss}\n",
            extra="restart: {max_restarts: 9}\nelastic: {min_workers: 4}\nfailure_detection: 2s\n"
                  'env: {LOCKSTEP_CHAOS: "kill rank:0@step:40/best"}\n')
        path = self.write("job.yaml", re.sub(
            r"resources: .*", "resources: {nodes: 2, nproc_per_node: 2, standby: 1, device: cpu}", text))
        expected = self.alone(path)
        for attempt in range(12):  # who has counted it is chance
            with self.subTest(attempt):
                job = self.submit(path)
                status = self.assert_good(job, path, expected)
                self.assertEqual(len(status["result"].get("faults", [])), 1, status)
                self.assertEqual(decided(f"runs/*-{job}"), decided("alone/runs/*"))

    # --- what happens to the network ---
    def test_a_cable_that_is_out_for_ten_seconds(self):
        _, second = self.up(2, 2)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(30), detection="20s")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        workers = sorted(p.pid for p in self.processes("worker"))
        second.unplug()
        time.sleep(10)
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "nobody was killed")
        second.plug()
        status = self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_a_cable_that_is_out_for_longer_than_failure_detection(self):
        _, second = self.up(2, 2)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=steps_that_last(30))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        second.unplug()
        time.sleep(6)
        second.plug()
        status = self.assert_good(job, path)
        self.assertEqual(int(status.get("restarts", 0)), 0, status)

    def test_the_way_to_the_coordinator_alone_is_cut(self):
        _, second = self.up(1, 1)
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=steps_that_last(30))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        workers = sorted(p.pid for p in self.processes("worker"))
        second.hear_nothing_from(self.network["head"])
        at = self.step(job)
        time.sleep(6)  # three times failure_detection
        self.assertGreater(self.step(job), at, "the job goes on meanwhile")
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "nobody was killed")
        second.hear_again_from(self.network["head"])
        status = self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_hosts_that_cannot_reach_each_other_are_named(self):
        first, second, third = self.up(1, 1, 0)
        first.hear_nothing_from(second)
        path = self.job_file("nodes: 2, nproc_per_node: 1")
        job = self.submit(path)
        submitted = time.monotonic()
        reason = wait_until(lambda: (r := self.status(job)["reason"]) and "cannot reach" in r and r, 30,
                            "the job says that hosts cannot reach each other")
        self.measured(22, f"named {time.monotonic() - submitted:.1f} s after the submission")
        self.assertRegex(reason, r"h2 cannot reach h1: .*(10\.77\.0\.2|\[fd77::2\]):\d+.*--interfaces")
        self.join(third, 1)
        self.assert_good(job, path)
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h3"}, "of two the higher one goes")

    def test_one_pair_of_three_hosts_is_cut(self):
        _, second, third = self.up(1, 1, 1)
        second.hear_nothing_from(third)
        third.hear_nothing_from(second)
        path = self.job_file("nodes: 3, nproc_per_node: 1", extra="elastic: {min_workers: 2}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 0, 30, "the two that reach each other train")
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h2"}, "of two the higher one goes")
        status = self.assert_good(job, path)
        self.assertRegex(json.dumps(status["result"].get("faults", [])), "h[23] cannot reach h[23]: ")
        self.assertEqual(int(status.get("restarts", 0)), 0, status)

    def test_hosts_that_are_cut_into_halves(self):
        hosts = self.up(1, 1, 1, 1)
        for near, far in itertools.product(hosts[:2], hosts[2:]):
            near.hear_nothing_from(far)
            far.hear_nothing_from(near)
        path = self.job_file("nodes: 4, nproc_per_node: 1", extra="elastic: {min_workers: 2}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 0, 40, "the half that stays trains")
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h2"}, "of two the higher one goes")
        status = self.assert_good(job, path)
        # All give up after the same time, each from when it began to connect: one of a busy host may be late.
        self.assertLessEqual(int(status["generation"]), 3, "one look at all that is cut is enough, or two")
        self.assertEqual(int(status.get("restarts", 0)), 0, status)

    def test_large_packets_are_lost_between_two_of_three_hosts(self):
        _, second, third = self.up(1, 1, 1)
        path = self.job_file("nodes: 3, nproc_per_node: 1", steps=steps_that_last(30),
                             extra="elastic: {min_workers: 1}\n")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "all train")
        second.lose_large_from(third)
        third.lose_large_from(second)
        wait_until(lambda: set(self.hosts_of(job)) == {"h1", "h2"}, 60, "of the two the higher one goes")
        at = self.step(job)
        wait_until(lambda: self.step(job) > at or self.status(job)["state"] == "SUCCEEDED", 30, "the others go on")
        status = self.assert_good(job, path)
        self.assertRegex(json.dumps(status["result"].get("faults", [])), "h[23] cannot reach h[23]: .*no answer for")
        self.assertEqual(int(status.get("restarts", 0)), 0, status)

    def test_one_packet_in_five_is_lost(self):
        _, second = self.up(2, 2)
        second.lose(0.2)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=100, detection="5s")
        job = self.submit(path)
        submitted = time.monotonic()
        status = self.end_of(job)
        self.measured(23, f"20 % loss: 0 false deaths, 100 steps in {time.monotonic() - submitted:.1f} s")
        self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_everything_comes_200_ms_late(self):
        first, second = self.up(1, 1, more=("--interfaces=10.77.0.0/24",))  # the proxy's
        for host in (first, second):
            host.spoil(delay=0.2, jitter=0.02)
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=20)
        job = self.submit(path)
        submitted = time.monotonic()
        status = self.end_of(job)
        self.measured(23, f"200 ms of delay: 0 false deaths, 20 steps in {time.monotonic() - submitted:.1f} s")
        self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_everything_comes_late_and_one_of_two_coordinators_is_silent(self):
        # An attempt to connect gets two seconds then. The proxy answers TCP's own handshake at once, so 300 ms for
        # what TLS and gRPC say are as long as 200 ms for all.
        [host] = self.up(0)
        host.run("ip", "route", "add", "10.78.0.0/24", "dev", "eth0")
        host.filter("-A", "OUTPUT", "-d", "10.78.0.0/24", "-j", "DROP")
        host.spoil(delay=0.3)
        near, self.address = self.address, f"10.78.0.1:7070,{self.address}"
        self.join(host, 1, "--interfaces=10.77.0.0/24")
        self.address = near
        self.await_nodes(1)
        path = self.job_file("nodes: 1, nproc_per_node: 1", steps=20, detection="5s")
        status = self.assert_good(self.submit(path), path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_what_comes_over_several_connections_comes_in_any_order(self):
        # Within a connection TCP keeps it; of the four between the workers, and the coordinator's, each has its own time.
        first, second = self.up(2, 2, more=("--interfaces=10.77.0.0/24",))
        for host in (first, second):
            host.spoil(jitter=0.1)
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=30)
        job = self.submit(path)
        status = self.assert_good(job, path)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)
        self.assertEqual(int(status["generation"]), 1)

    def test_bits_that_are_turned_on_the_way(self):
        first, second = self.up(1, 1, more=("--interfaces=10.77.0.0/24",))
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=400)
        expected = self.alone(path)
        for host in (first, second):
            host.spoil(flip=3_000_000)
        job = self.submit(path)
        submitted = time.monotonic()
        status = self.end_of(job)
        self.measured(27, f"0 wrong bits; one bit of each 3,000,000 bytes turned: found, and the step done again, "
                          f"{int(status['generation']) - 1} times, 400 steps in {time.monotonic() - submitted:.1f} s")
        self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
        self.assertEqual(status["result"]["model_sha256"], expected)
        self.assertGreater(int(status["generation"]), 1, "damage was seen, and the connection made anew")

    def test_a_connection_that_is_open_and_silent(self):
        first, second = self.up(1, 1, more=("--interfaces=10.77.0.0/24",))
        for host in (first, second):
            host.spoil(spare=self.network["head"], delay=0.0)
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=steps_that_last(30))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        second.spoil(withhold=True)
        time.sleep(6)
        at = self.step(job)
        second.spoil(withhold=False)
        since = time.monotonic()
        wait_until(lambda: self.step(job) > at or self.status(job)["state"] == "SUCCEEDED", 60, "steps go on")
        self.measured(24, f"silent for 6 s: next step {time.monotonic() - since:.1f} s after the end of it at the latest")
        self.assert_good(job, path)

    def test_a_narrow_link(self):
        first, second = self.up(2, 2)
        for host in (first, second):
            host.narrow("20mbit")
        path = self.job_file("nodes: 2, nproc_per_node: 2", steps=100, hidden=IN_PARTS)
        job = self.submit(path)
        submitted = time.monotonic()
        status = self.end_of(job)
        self.measured(24, f"20 Mbit/s: {len(status['result'].get('faults', []))} false deaths, "
                          f"100 steps in {time.monotonic() - submitted:.1f} s")
        self.assert_good(job, path)

    def test_a_state_that_is_long_on_its_way_is_no_hang(self):
        # The state takes some 17 s over this link, and a sum of gradients 6 s: no worker may stand still so long.
        hosts = self.make_network("h1", "h2")
        for host in hosts:
            host.narrow("6mbit")
        self.start_head()
        self.join(hosts[0], 1)
        self.await_nodes(1)
        path = self.write("job.yaml", harness.synthetic_job(
            steps=100000, shards=2, hidden="[1000, 1000]", train_extra="  eval: {every: never}\n",
            extra="restart: {max_restarts: 0}\nfailure_detection: 2s\nelastic: {min_workers: 1}\n").replace(
                "nproc_per_node: 4", "nodes: 2, nproc_per_node: 1").replace("sgd: {lr: 0.05, momentum: 0.9}", "adamw: {lr: 0.001}"))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 30, 60, "one host trains")
        self.join(hosts[1], 1)
        wait_until(lambda: int(self.status(job)["generation"]) == 2, 60, "the other one comes to it")
        time.sleep(3)  # what the first one had done is known now
        at = self.step(job)
        wait_until(lambda: self.step(job) >= at + 2 or int(self.status(job)["generation"]) > 2, 120, "they train")
        status = self.status(job)
        self.assertEqual((int(status["generation"]), status["state"]), (2, "RUNNING"), status)
        self.verb("cancel", job)

    def test_a_link_that_flaps(self):
        _, second = self.up(1, 1)
        # TCP waits twice as long before each try: where all of them meet a link that is down, it is silent for
        # up to twice the five seconds for which the link flaps, however long a command of it takes.
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=steps_that_last(30), detection="12s")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "both hosts train")
        workers = sorted(p.pid for p in self.processes("worker"))
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            second.unplug()
            time.sleep(0.3)
            second.plug()
            time.sleep(0.3)
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "nobody was killed")
        status = self.assert_good(job, path)
        self.assertEqual(int(status.get("restarts", 0)), 0, status)
        self.assertEqual(len(status["result"].get("faults", [])), 0, status)

    def test_connections_that_are_reset_again_and_again(self):
        first, second = self.up(1, 1, more=("--interfaces=10.77.0.0/24",))  # the proxy's
        for host in (first, second):
            host.spoil()
        path = self.job_file("nodes: 2, nproc_per_node: 1", steps=steps_that_last(30))
        job = self.submit(path)
        before = wait_until(lambda: (s := self.step(job)) > 50 and s, 60, "both hosts train")
        for _ in range(3):
            for host in (first, second):
                host.spoil(reset=True)  # those of agents and workers with the coordinator, too
            before = wait_until(lambda: (s := self.step(job)) > before and s or
                                self.status(job)["state"] == "SUCCEEDED" and s, 60, "steps go on")
        status = self.assert_good(job, path)
        self.assertEqual(int(status.get("restarts", 0)), 0, status)
        self.assertGreater(int(status["generation"]), 1, "the connections between workers were made anew")


class WithoutDaemon(HostsTest):
    """The same command on each host."""

    def job_file(self, **job):
        return self.write("job.yaml", harness.synthetic_job(
            hidden="[64]", nproc=2, train_extra="  eval: {every: never}\n", **job))

    def launch_on(self, host, rank, path, *more, token="a-secret-of-all-hosts"):
        endpoint = f"{self.network['h1'].address}:29500"
        return self.on(host, "launcher", "--nnodes=2", f"--rdzv-endpoint={endpoint}", f"--node-rank={rank}",
                       "-o", "json", *more, path, log=host.name, env=dict(PACED, LOCKSTEP_TOKEN=token))

    def code_of(self, child, seconds=120):
        return child.wait(timeout=harness.patient(seconds))

    def test_hosts_started_in_any_order_train_to_the_same_bits(self):
        h1, h2 = self.make_network("h1", "h2")
        path = self.job_file(steps=200)
        guest = self.launch_on(h2, 1, path)
        wait_until(lambda: "waiting for the host with --node-rank=0" in self.said("h2"), 10, "the guest waits")
        host = self.launch_on(h1, 0, path)
        self.assertEqual((self.code_of(host), self.code_of(guest)), (0, 0), self.said("h1") + self.said("h2"))
        result = json.loads(next(line for line in self.said("h1").splitlines() if line.startswith("{")))
        self.assertEqual(result["workers"], 4)
        alone = self.train("--nnodes=1", "--nproc-per-node=2", path, cwd=self.dir)
        self.assertEqual(result["model"]["sha256"], alone["model"]["sha256"])
        self.assertIn("the job has ended: SUCCEEDED", self.said("h2"))
        self.assertEqual(self.processes(), [])

    def test_another_token_is_refused(self):
        h1, h2 = self.make_network("h1", "h2")
        path = self.job_file(steps=200)
        for more, why in ((), "of another cluster than the token"), (("--plaintext",), "does not know the token"):
            with self.subTest(more):
                before = self.length_said("h1")
                host = self.launch_on(h1, 0, path, *more)
                wait_until(lambda: re.search("waiting|needs", self.said("h1")[before:]), 20, "the host waits for the other")
                guest = self.launch_on(h2, 1, path, *more, token="another-secret-of-some-host")
                self.assertEqual(self.code_of(guest, 20), 5, self.said("h2"))
                self.assertIn(why, self.said("h2"))
                host.terminate()
                self.assertEqual(self.code_of(host, 20), 130, self.said("h1"))

    def test_a_run_that_does_not_encrypt(self):
        h1, h2 = self.make_network("h1", "h2")
        path = self.job_file(steps=20)
        host = self.launch_on(h1, 0, path, "--plaintext", token="short")
        guest = self.launch_on(h2, 1, path, "--plaintext", token="short")
        self.assertEqual((self.code_of(host), self.code_of(guest)), (0, 0), self.said("h1") + self.said("h2"))

    def test_a_guest_that_leaves_costs_no_step(self):
        h1, h2 = self.make_network("h1", "h2")
        path = self.job_file(steps=steps_that_last(30), extra="elastic: {min_workers: 1}\n")
        host, guest = self.launch_on(h1, 0, path), self.launch_on(h2, 1, path)
        wait_until(lambda: self.processes("worker") and len(self.processes("worker")) == 4, 60, "four workers run")
        guest.terminate()
        self.assertEqual(self.code_of(guest, 60), 130)
        self.unpace()
        self.assertEqual(self.code_of(host, 240), 0, self.said("h1"))
        result = json.loads(next(line for line in self.said("h1").splitlines() if line.startswith("{")))
        alone = self.train("--nnodes=1", "--nproc-per-node=2", path, cwd=self.dir, seconds=600)
        self.assertEqual(result["model"]["sha256"], alone["model"]["sha256"])

    def test_without_the_coordinators_host_the_guests_save_and_end(self):
        h1, h2 = self.make_network("h1", "h2")
        steps = steps_that_last(30)
        path = self.job_file(name="guests", steps=steps, extra="checkpoint: {dir: saved}\nfailure_detection: 2s\n")
        self.launch_on(h1, 0, path)
        guest = self.launch_on(h2, 1, path)
        wait_until(lambda: os.path.exists(self.metrics()) and os.path.getsize(self.metrics()), 60, "they train")
        h1.power_off()
        self.assertEqual(self.code_of(guest, 120), 4, self.said("h2"))
        said = re.search(r"the run's coordinator at .* is gone; the state .* is saved as \S*/saved/step-0*(\d+);",
                         self.said("h2"))
        self.assertTrue(said, self.said("h2"))
        self.assertEqual(self.processes(), [])
        self.assertLess(int(said[1]), steps, "it was cut short")
        resumed = self.train("--nnodes=1", "--nproc-per-node=2", path, cwd=self.dir, seconds=600)
        self.assertIn(f"goes on after step {said[1]} from the checkpoint saved/step-", self.logs_of(resumed))
        undisturbed = self.train("--nnodes=1", "--nproc-per-node=2", "--set", "checkpoint.resume=never", "--set",
                                 "checkpoint.dir=other", path, cwd=self.dir, seconds=600)
        self.assertEqual(resumed["model"]["sha256"], undisturbed["model"]["sha256"])

    def metrics(self):
        return next(iter(glob.glob(os.path.join(self.dir, "runs/guests-*/metrics.jsonl"))), "")

    def logs_of(self, result):
        text = ""
        for log in glob.glob(os.path.join(os.path.dirname(os.path.dirname(result["model"]["path"])), "logs/*.log")):
            with open(log, encoding="utf-8") as file:
                text += file.read()
        return text


if __name__ == "__main__":
    unittest.main(verbosity=2)
