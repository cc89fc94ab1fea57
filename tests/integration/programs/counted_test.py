# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers the coordinator counts: one for each slot of the nodes that it gives them."""

import glob
import os
import unittest

from nodes import Nodes


class Counted(Nodes):
    def test_a_worker_for_each_slot(self):
        path = self.job_file(nodes=1, nproc=1, steps=200)
        expected = self.undisturbed(path)
        self.join("one", 2)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        worded = self.write("worded.yaml", text.replace("nproc_per_node: 1", "nproc_per_node: auto"))
        for arguments in (["--nproc-per-node=cpu", path], [worded]):
            job = self.submit(*arguments)
            result = self.end_of(job, expected)
            self.assertEqual(int(result["workers"]), 2)
            self.assertEqual(self.describe(job)["spec"]["resources"]["ranks_per_node"], [2])
            (run,) = glob.glob(os.path.join(self.dir, f"runs/*-{job}"))
            again = self.submit(os.path.join(run, "job.yaml"))
            self.assertEqual(int(self.end_of(again, expected)["workers"]), 2)

    def test_what_cannot_be_meant_is_refused(self):
        path = self.job_file(nodes=1, nproc=1, steps=10)
        code, _, err = self.launch("submit", f"--coordinator={self.address}", "--nproc-per-node=gpu", path)
        self.assertNotEqual(code, 0)
        self.assertIn("cannot both be meant", err)  # device: cpu


if __name__ == "__main__":
    unittest.main()
