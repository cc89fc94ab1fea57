# SPDX-License-Identifier: Apache-2.0
"""A job that stands or is slowed down says live why, long before anybody is judged."""

import re
import time
import unittest

import harness

STALL = re.compile(r"^step (\d+), bucket 0, tree_reduce (\d+) f32\[.*\]: ranks 0,1,3 wait ([\d.]+) s; "
                   r"rank 2 last completed \d+, (.*), host \S+ pid (\d+)$", re.MULTILINE)


class Diagnosis(harness.ProgramTest):
    def lines_of(self, *arguments, job):
        """(when, line) of what chaos says on stderr, and its exit code."""
        child = self.start("launcher", "chaos", *arguments, "--nproc-per-node=4", job)
        lines = [(time.monotonic(), line) for line in child.stderr]
        code, _, _ = self.finish(child, 60)
        return lines, code

    def stall(self, fault, detection):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=700, train_extra="  eval: {every: never}\n",
            extra=f"failure_detection: {detection}\nelastic: {{min_workers: 1}}\n"))
        lines, code = self.lines_of(fault, job=job)
        text = "".join(line for _, line in lines)
        self.assertEqual(code, 0, text)
        said = STALL.findall(text)
        self.assertEqual(len(said), 1, text)
        self.assertEqual(said[0][0], "600", text)
        self.assertLess(float(said[0][2]), 2.0 * harness.PATIENCE, text)
        stalled = next(when for when, line in lines if STALL.match(line))
        judged = next(when for when, line in lines if line.startswith("error: "))
        # The wait was at most 2 s old, and the judgement comes after failure_detection.
        self.assertGreater(judged - stalled, 1.0, text)
        return said[0][3], text

    def test_a_rank_that_stands_still_is_named(self):
        doing, text = self.stall("--hang=rank:2@step:600", "5s")
        self.assertEqual(doing, "is between two steps", text)

    def test_a_stopped_rank_is_named(self):
        doing, text = self.stall("--stop=rank:2@step:600", "5s")
        self.assertRegex(doing, r"^has said nothing for [\d.]+ s \(before: .+\)$", text)

    def test_a_slow_rank_is_named(self):
        job = self.write("job.yaml", harness.synthetic_job(
            steps=500, hidden="[256, 256]", global_batch=256, train_extra="  eval: {every: never}\n"))
        lines, code = self.lines_of("--slow=rank:1:8x", job=job)
        text = "".join(line for _, line in lines)
        self.assertEqual(code, 0, text)
        named = re.findall(r"^rank (\d) \(host \S+, pid \d+\) is the last at (\d+) of the last (\d+) reductions, "
                           r"the others wait \S+ m?s of \S+ m?s a step for it$", text, re.MULTILINE)
        self.assertEqual([rank for rank, _, _ in named], ["1"], text)
        self.assertNotRegex(text, STALL)


if __name__ == "__main__":
    unittest.main(verbosity=2)
