# SPDX-License-Identifier: Apache-2.0
"""PyTorch scripts under the launcher, as they run under torchrun. `./dev test --pytorch` makes the environment.

LOCKSTEP_BIN names the programs, LOCKSTEP_PYTORCH a Python with torch, accelerate and transformers.
"""
import json
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration", "programs"))

import harness  # noqa: E402  (found by the line above)
import nodes  # noqa: E402

PYTHON = os.environ.get("LOCKSTEP_PYTORCH", sys.executable)


def script(name):
    return os.path.join(HERE, name)


class PyTorch(harness.ProgramTest):
    def run_script(self, *arguments, expected=0, env=None):
        code, out, err = self.launch("-o", "json", *arguments, seconds=300, env=dict(env or {}, PYTHON_EXEC=PYTHON))
        self.assertEqual(code, expected, out + err)
        return json.loads(out.strip().splitlines()[-1]), out + err

    def test_ddp(self):
        for ranks in (2, 4):
            snapshot = os.path.join(self.dir, f"snapshot-{ranks}.pt")
            _, text = self.run_script(f"--nproc-per-node={ranks}", script("ddp.py"), snapshot, "5")
            self.assertIn(f"DONE world={ranks} begin=0", text)

    def test_ddp_fails_and_goes_on(self):
        snapshot = os.path.join(self.dir, "snapshot.pt")
        result, text = self.run_script("--nproc-per-node=2", "--max-restarts=1", script("ddp.py"), snapshot, "8",
                                       env={"FAIL_AT": "3"})
        self.assertIn("DONE world=2 begin=4", text)
        self.assertEqual(result["faults"][0]["rank"], 1, result["faults"])
        self.assertIn("step 3 went wrong", result["faults"][0]["cause"])

    def test_checkpoint(self):
        self.assertIn("DONE", self.run_script("--nproc-per-node=2", script("dcp.py"), os.path.join(self.dir, "c"))[1])

    def test_spawn(self):
        self.assertIn("DONE", self.run_script(script("spawned.py"))[1])

    def test_accelerate(self):
        self.assertIn("DONE world=2", self.run_script("--nproc-per-node=2", script("accelerated.py"))[1])

    def test_transformers(self):
        self.assertIn("DONE world=2", self.run_script("--nproc-per-node=2", script("transformer.py"),
                                                      os.path.join(self.dir, "out"))[1])


class PyTorchOnNodes(nodes.Nodes):
    def test_ddp(self):
        self.join("a", 2)
        self.join("b", 2)
        snapshot = os.path.join(self.dir, "snapshot.pt")
        job = self.submit("--nnodes=2", "--nproc-per-node=2", "--", PYTHON, script("ddp.py"), snapshot, "5")
        status = harness.wait_until(lambda: (s := self.describe(job)["status"])["state"] in ("SUCCEEDED", "FAILED")
                                    and s, 300, "the job ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        with open(os.path.join(self.dir, status["run_dir"], "logs", "0.log"), encoding="utf-8") as log:
            self.assertIn("DONE world=4", log.read())


if __name__ == "__main__":
    unittest.main()
