# SPDX-License-Identifier: Apache-2.0
"""Whole hosts (network namespaces) that are lost: how soon the others commit a step, and the bits of the job."""

import json
import os
import re
import time
import unittest

import harness
from harness import newest_record, wait_until
from hosts import HostsTest

DETECTION, PATIENT_DETECTION = 2, 20  # seconds
NODE_LOST = 30  # the same for a node
# Steps between hosts take much of a processor: few, long ones, that outlast what a test does to them.
PACE = "env: {LOCKSTEP_STEP_TIME: 100ms}\n"
STEPS = 1200


class LostHosts(HostsTest):
    def job_file(self, resources, extra="", name="tiny", detection=DETECTION):
        text = harness.synthetic_job(
            name=name, steps=STEPS, shards=4, hidden="[64]", train_extra="  eval: {every: never}\n",
            extra=f"restart: {{max_restarts: 0}}\nfailure_detection: {detection}s\n{PACE}{extra}")
        return self.write(f"{name}.yaml", re.sub(r"resources: .*", f"resources: {{{resources}, device: cpu}}", text))

    def last_record(self, job):
        """(step, generation) of the newest step that is written down."""
        return newest_record(os.path.join(self.dir, f"runs/tiny-{job}/ledger.bin"))

    def await_workers(self, job, count):
        """So many train together, in a generation of which steps are written down; its number."""
        def trains():
            status = self.status(job)
            step, generation = self.last_record(job)
            return (int(status["workers"]) == count and status["state"] == "RUNNING" and step > 20 and
                    generation == int(status["generation"]) and generation)
        return wait_until(trains, 60, f"{count} workers train")

    def time_to_next_step(self, job, workers, lose):
        """Seconds from the loss to the first step without the lost host that is written down."""
        before = self.await_workers(job, workers)
        lose()
        lost = time.monotonic()
        wait_until(lambda: self.last_record(job)[1] > before, 60, "the others go on")
        return time.monotonic() - lost

    def test_the_next_step_without_a_host_of_three(self):
        third = self.up(1, 1, 1)[2]
        resources, elastic = "nodes: 3, nproc_per_node: 1", "elastic: {min_workers: 2}\n"
        # Who is found to be gone much sooner than its silence is judged was found by the ends of its connections.
        path = self.job_file(resources, elastic, detection=PATIENT_DETECTION)
        job = self.submit(path)
        killed = []
        for _ in range(2):
            killed.append(self.time_to_next_step(job, 3, third.kill_all))
            self.join(third, 1)
        status = self.assert_good(job, path)
        faults = status["result"]["faults"]
        self.await_nodes(3)
        path = self.job_file(resources, elastic)
        job = self.submit(path)
        silent = self.time_to_next_step(job, 3, third.power_off)
        faults += self.assert_good(job, path, status["result"]["model_sha256"])["result"]["faults"]
        print(f"next step: {killed[0]:.2f} and {killed[1]:.2f} s after its processes were killed, {silent:.2f} s "
              f"after its power was off; committed after {[round(fault['to_next_step_ms']) for fault in faults]} ms",
              flush=True)
        self.assertEqual([fault["host"] for fault in faults], ["h3"] * 3)
        # Beside other tests one takes longer now and then.
        self.assertLess(min(killed), PATIENT_DETECTION / 2)
        # By its silence, and not only when its node is given up for lost.
        self.assertLess(silent, NODE_LOST / 2 * harness.PATIENCE)

    def test_each_host_in_turn(self):
        hosts = self.up(1, 1, 2)
        path = self.job_file("ranks_per_node: [1, 1, 2]", "elastic: {min_workers: 2}\n")
        job = self.submit(path)
        self.time_to_next_step(job, 4, hosts[0].power_off)
        hosts[0].plug()
        self.join(hosts[0], 1)
        self.time_to_next_step(job, 4, hosts[1].kill_all)
        self.join(hosts[1], 1)
        self.time_to_next_step(job, 4, hosts[2].power_off)
        self.assert_good(job, path)
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h2"})

    def workers_on(self, host):
        pids = set(host.pids())
        return [process for process in self.processes("worker") if process.pid in pids]

    def test_the_first_host_and_one_that_is_unplugged_for_ever(self):
        # Two jobs at once, since a guest waits half a minute for its coordinator: a submitted one that needs all its
        # workers, on the first three hosts, and one without a daemon on the third and the second.
        first, second, third, _ = self.up(1, 1, 2, 2)
        path = self.job_file("ranks_per_node: [1, 1, 2]")
        job = self.submit(path)
        guests = self.job_file("nodes: 2, nproc_per_node: 1", name="guests",
                               extra="elastic: {min_workers: 1}\ncheckpoint: {dir: saved}\n")
        run = [self.on(host, "launcher", "--nnodes=2", f"--rdzv-endpoint={third.address}:29500", f"--node-rank={rank}",
                       "-o", "json", guests, log=f"guests{rank}",
                       env=dict(harness.PACED, LOCKSTEP_TOKEN="a-secret-of-all-hosts"))
               for rank, host in enumerate((third, second))]
        self.time_to_next_step(job, 4, first.power_off)
        self.await_workers(job, 4)
        wait_until(lambda: len(self.workers_on(second)) == 2, 60, "two workers are on the second host")
        self.time_to_next_step(job, 4, second.unplug)
        self.assert_good(job, path)
        self.assertEqual(set(self.hosts_of(job)), {"h3", "h4"})
        # On that host nobody goes on: the guest's worker saves and ends, the agent's waits for its coordinator.
        self.assertEqual([child.wait(timeout=harness.patient()) for child in run], [0, 4], self.said("guests1"))
        self.assertRegex(self.said("guests1"), r"the state of this host's workers is saved as \S*/saved/step-0*\d+;")
        result = json.loads(next(line for line in self.said("guests0").splitlines() if line.startswith("{")))
        self.assertEqual(result["model"]["sha256"], self.alone(guests))
        with open(os.path.join(self.dir, "saved/last/manifest.json"), encoding="utf-8") as file:
            newest = json.load(file)["checkpoint"]["step"]
        self.assertEqual(newest, result["steps"], "not the older state that was saved later")
        self.assertEqual(len(self.workers_on(second)), 1)
        second.plug()
        wait_until(lambda: not self.workers_on(second), 60, "they end when they hear that the job goes on without them")

    def test_a_standby_on_a_third_host_takes_over(self):
        second = self.up(1, 1, 1)[1]
        path = self.job_file("nodes: 2, nproc_per_node: 1, standby: 1")
        job = self.submit(path)
        self.on(self.network["head"], "launcher", "logs", f"--coordinator={self.address}", f"--token-file={self.token}",
                "-f", job, log="followed")
        wait_until(lambda: int(self.status(job).get("standbys", 0)) == 1, 60, "the standby is ready")
        self.time_to_next_step(job, 2, second.power_off)
        self.assert_good(job, path)
        wait_until(lambda: "a standby takes over" in self.said("followed"), 60, "who follows hears of it")
        self.assertEqual(set(self.hosts_of(job)), {"h1", "h3"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
