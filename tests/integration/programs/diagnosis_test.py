# SPDX-License-Identifier: Apache-2.0
"""A job that stands or is slowed down says live why, long before anybody is judged."""

import json
import re
import signal
import threading
import time
import unittest

import harness
from harness import wait_until

DETECTION = 10  # seconds; who stands still for longer is judged
STALL = re.compile(r"^step (\d+), bucket 0, tree_reduce (\d+) f32\[.*\]: ranks 0,1,3 wait ([\d.]+) s; "
                   r"rank 2 last completed \d+, (.*), host \S+ pid (\d+)$", re.MULTILINE)

STRAGGLER = re.compile(r"^rank (\d) \(host \S+, pid \d+\) is the last at (\d+) of the last (\d+) reductions, "
                       r"the others wait \S+ m?s of \S+ m?s a step for it$", re.MULTILINE)


class Diagnosis(harness.ProgramTest):
    def lines_of(self, *arguments, job):
        """(when, line) of what chaos says on stderr, and its exit code."""
        child = self.start("launcher", "chaos", *arguments, "--nproc-per-node=4", job)
        lines = [(time.monotonic(), line) for line in child.stderr]
        code, _, _ = self.finish(child, 60)
        return lines, code

    def stall(self, fault):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=700, train_extra="  eval: {every: never}\n",
            extra=f"failure_detection: {DETECTION}s\nelastic: {{min_workers: 1}}\n"))
        lines, code = self.lines_of(fault, job=job)
        text = "".join(line for _, line in lines)
        self.assertEqual(code, 0, text)
        said = STALL.findall(text)
        self.assertEqual(len(said), 1, text)
        self.assertEqual(said[0][0], "600", text)
        self.assertLess(float(said[0][2]), DETECTION / 2, text)
        stalled = next(when for when, line in lines if STALL.match(line))
        judged = next(when for when, line in lines if line.startswith("error: "))
        # The wait was not half as old as one that is judged.
        self.assertGreater(judged - stalled, DETECTION / 4, text)
        return said[0][3], text

    def test_a_rank_that_stands_still_is_named(self):
        doing, text = self.stall("--hang=rank:2@step:600")
        self.assertEqual(doing, "is between two steps", text)

    def test_a_stopped_rank_is_named(self):
        doing, text = self.stall("--stop=rank:2@step:600")
        self.assertRegex(doing, r"^has said nothing for [\d.]+ s \(before: .+\)$", text)

    def test_a_rank_that_takes_three_times_as_long_is_named(self):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=100000000, hidden="[256, 256]", global_batch=256, train_extra="  eval: {every: never}\n"))
        child = self.start("launcher", "chaos", "--slow=rank:1:3x", "--nproc-per-node=4", job)
        lines = []

        def end_after(seconds):
            timer = threading.Timer(seconds, child.send_signal, [signal.SIGINT])
            timer.start()
            return timer
        ends = [end_after(2 * harness.LEAST_SECONDS)]
        for line in child.stderr:
            lines.append((time.monotonic(), line))
            if STRAGGLER.match(line) and len(ends) == 1:  # once: it goes on for a while
                ends.append(end_after(3))
        for timer in ends:
            timer.cancel()
        code, _, _ = self.finish(child)
        text = "".join(line for _, line in lines)
        self.assertEqual(code, 130, text)
        named = [(when, found.group(1)) for when, line in lines if (found := STRAGGLER.match(line))]
        self.assertEqual({rank for _, rank in named}, {"1"}, text)
        # Once a minute, and a machine with much else to do may take longer than that for the steps.
        for (before, _), (after, _) in zip(named, named[1:]):
            self.assertGreater(after - before, 50, text)
        self.assertNotRegex(text, STALL)

    def test_describe_tells_of_a_stall_while_it_lasts(self):
        address = self.start_cluster()
        job = self.write("job.yaml", harness.synthetic_job(
            steps=100000000, train_extra="  eval: {every: never}\n", extra="failure_detection: 60s\n"))
        code, out, err = self.launch("submit", f"--coordinator={address}", "--no-follow", "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        job_id = json.loads(out)["job"]

        def described():
            return self.launch("describe", f"--coordinator={address}", job_id)[1]

        def line(first):
            return next((l for l in described().splitlines() if l.startswith(first)), "")
        # A few seconds' worth of steps, so that the median is known.
        wait_until(lambda: int((re.search(r"^step +(\d+)/", described(), re.MULTILINE) or [0, 0])[1]) > 100,
                   30, "the job trains")
        self.assertEqual(line("stands "), "")
        stopped = next(p for p in self.processes("worker")
                       if re.search(rf"^1 +\S+ +{p.pid} ", described(), re.MULTILINE))
        stopped.kill(signal.SIGSTOP)
        said = wait_until(lambda: line("stands "), 20, "describe tells of the stall")
        self.assertRegex(said, r"^stands +(step \d+, bucket 0, tree_reduce \d+ f32\[.*\]|wait_committed of step \d+): "
                               r"ranks 0,2,3 wait [\d.]+ s; "
                               rf"rank 1 last completed \d+, has said nothing for .*, host \S+ pid {stopped.pid}$")
        longer = wait_until(lambda: line("stands ") != said and line("stands "), 20, "it tells how long now")
        waits = [float(re.search(r"wait ([\d.]+) s", text).group(1)) for text in (said, longer)]
        self.assertGreater(waits[1], waits[0])
        stopped.kill(signal.SIGCONT)
        wait_until(lambda: not line("stands "), 20, "the stall is over")
        self.assertIn("RUNNING", described())
        self.launch("cancel", "--kill", f"--coordinator={address}", job_id)

    def start_cluster(self):
        """A coordinator's address, with this machine as its node."""
        _, address = self.start_coordinator()
        self.start("launcher", "join", f"--coordinator={address}", "--slots=4")
        return address


if __name__ == "__main__":
    unittest.main(verbosity=2)
