# SPDX-License-Identifier: Apache-2.0
"""bench_device on an emulated GPU: what it lists and prints, and a GPU that fails anywhere in a step."""

import json
import os
import unittest

import harness

MODULE = os.environ.get("LOCKSTEP_EMULATED_MODULE", "")
TRAINING = ("mlp", "--batch", "2", "--precision", "fp32", "--steps", "1", "--warm", "1")


class BenchDevice(harness.ProgramTest):
    def bench(self, *arguments, **env):
        return self.run_program("bench_device", *arguments, env=dict(env, LOCKSTEP_CUDA_MODULE=MODULE))

    def test_the_gpus_that_cuda_shows_are_listed_in_its_order(self):
        a, b = (f"GPU-{digit * 8}-0000-0000-0000-000000000001" for digit in "ab")
        code, out, err = self.bench("--gpus", LOCKSTEP_EMULATED_GPUS=f"{a},{b}", CUDA_VISIBLE_DEVICES="1,0")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out), {"gpus": [{"uuid": b, "name": "an emulated GPU"},
                                                    {"uuid": a, "name": "an emulated GPU"}]})

    def test_what_it_prints_is_json(self):
        code, out, err = self.bench(*TRAINING)
        self.assertEqual(code, 0, err)
        self.assertGreater(json.loads(out)["loss"], 0)

    def test_a_gpu_that_fails_anywhere_in_a_step_is_an_error(self):
        failed = []
        for work in range(10, 60):  # of the first step, which has an update at its end
            marker = self.write("failure", "")
            code, _, err = self.bench(*TRAINING, LOCKSTEP_EMULATED_FAILURE=f"{work} {marker}")
            if not os.path.exists(marker):
                self.assertEqual(code, 1, err)
                self.assertIn("unspecified launch failure", err)
                failed.append(work)
        self.assertTrue(failed)


if __name__ == "__main__":
    if not MODULE:
        raise SystemExit("LOCKSTEP_EMULATED_MODULE names no module")
    unittest.main()
