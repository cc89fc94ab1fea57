# SPDX-License-Identifier: Apache-2.0
"""Many at once: submissions beside followers that do not read, and all agents back at a coordinator that was killed."""

import json
import os
import time
import unittest

import harness
import http2
from gates import Gates
from harness import wait_until

# How many of each; more by hand.
JOBS = int(os.environ.get("LOCKSTEP_TEST_JOBS", "500"))
AGENTS = int(os.environ.get("LOCKSTEP_TEST_AGENTS", "40"))
CLIENTS = 8
READERS = 8
# Of each rank's output the coordinator keeps 20,000 lines: more than that, and several times it for each reader, is
# what it must not hold.
LINES, LINE_BYTES = 60000, 1000
MOST_GROWTH = 128 << 20
WINDOW = 65535  # what HTTP/2 lets be sent to who has read nothing
# Prints them, and waits to be ended.
CHATTER = f"""
import os, sys, time
for i in range({LINES}):
    print(str(i).rjust({LINE_BYTES - 1}, "."))
sys.stdout.flush()
open("printed", "w").close()
while not os.path.exists("end-chatter"):
    time.sleep(0.05)
"""


class Crowd(Gates):
    def load(self, *arguments):
        """What bench's load_clients says."""
        code, out, err = self.run_program("load_clients", *arguments, seconds=120)
        self.assertEqual(code, 0, out + err)
        return json.loads(out)

    def highest_rss(self):
        with open(f"/proc/{self.coordinator.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

    def kill_and_start_again(self):
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()

    def workers(self):
        return sorted(p.pid for p in self.processes("worker"))

    def assert_undisturbed(self, job, workers):
        status = self.status(job)
        self.assertEqual((status["state"], int(status.get("restarts", 0))), ("RUNNING", 0))
        self.assertEqual(int(status["generation"]), 1)
        self.assertEqual(self.workers(), workers, "nobody was started anew")

    def still_follows(self, reader):
        self.assertTrue(reader.drain(), "it is followed still")
        return True

    @unittest.skipUnless(os.path.exists(os.path.join(harness.BIN, "load_clients")), "built without LOCKSTEP_BENCH")
    def test_readers_that_do_not_read_hold_nobody_up(self):
        self.join("node", 1)
        self.write("chatter.py", CHATTER)
        job = self.submit(self.write("chatter.yaml", "name: chatter\nrun: [python3, chatter.py]\n"))
        # {job_id, logs, follow}: the window that HTTP/2 grants is never made larger, and nothing is read.
        request = b"\x0a" + bytes([len(job)]) + job.encode() + b"\x18\x01\x20\x01"
        readers = [http2.Connection(self.address) for _ in range(READERS)]
        for reader in readers:
            reader.send(http2.call("/lockstep.Coordinator/FollowJob", 1) + http2.message(request, 1))
        for reader in readers:
            wait_until(lambda: self.still_follows(reader) and reader.drained > WINDOW * 3 // 4, 60,
                       "it is told as much as it takes")
        before = self.highest_rss()
        ids = os.path.join(self.dir, "ids")
        said = self.load("submit", self.address, "", str(CLIENTS), str(JOBS), ids)
        self.assertEqual((said["accepted"], said["failed"]), (JOBS, 0), said)
        wait_until(lambda: os.path.exists(os.path.join(self.dir, "printed")), 120, "all is printed")
        growth = self.highest_rss() - before
        if not harness.SANITIZED:
            self.assertLess(growth, MOST_GROWTH)
        for reader in readers:
            reader.drain()  # who answers no ping need not be followed still
            self.assertLess(reader.drained, WINDOW * 5 // 4)
        workers = self.workers()
        self.kill_and_start_again()
        self.assertEqual(self.load("missing", self.address, "", ids)["missing"], 0, "what was accepted is there")
        self.assert_undisturbed(job, workers)
        print(f"{JOBS} jobs, {said['per_second']} a second, p99 {said['p99_ms']} ms, 0 lost; "
              f"{READERS} readers: {growth >> 20} MiB")
        for reader in readers:
            reader.close()

    def test_all_agents_come_back_at_once(self):
        for i in range(AGENTS):
            self.start_agent(f"node-{i}", 1)

        def connected():
            return sum(node["connected"] for node in self.nodes()) == AGENTS

        wait_until(connected, 120, "all agents join")
        job = self.gate("wide", extra=f"resources: {{nodes: {AGENTS}, nproc_per_node: 1}}\n")
        self.await_began("wide", AGENTS)
        wait_until(lambda: self.status(job)["state"] == "RUNNING", 60, "it runs")
        workers = self.workers()
        self.kill_and_start_again()
        began = time.monotonic()
        wait_until(connected, 30, "all agents are back")
        took = time.monotonic() - began
        self.assert_undisturbed(job, workers)
        self.end("wide")
        self.await_end(job)
        self.assertEqual(len(self.began("wide")), AGENTS, "each rank began once")
        print(f"{AGENTS} agents are back after {took:.2f} s; 0 of {AGENTS} ranks began anew")


if __name__ == "__main__":
    unittest.main(verbosity=2)
