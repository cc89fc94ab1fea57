# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import tempfile
import unittest
from unittest import mock

import gpu


class GpuBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def file(self, path):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8"):
            return path

    def environ(self, **values):
        return mock.patch.dict(os.environ, values, clear=True)

    def test_a_peer_does_not_find_our_libraries(self):
        toolkit = os.path.dirname(self.file("toolkit/libcublasLt.so.13"))
        bundled = os.path.abspath(f"{gpu.HERE}/../lib")
        with self.environ(LD_LIBRARY_PATH=f"{bundled}:{toolkit}:/own", HOME="/h", LOCKSTEP_CUDA_LIBRARIES=toolkit):
            self.assertEqual(gpu.peer_environment(), {"LD_LIBRARY_PATH": "/own", "HOME": "/h"})
        with self.environ(LD_LIBRARY_PATH=f"{bundled}:{bundled}/fallback"):
            self.assertEqual(gpu.peer_environment(), {})

    def measured(self, argument):
        """The environment that a measurement of gpt2 gives to each side."""
        seen = {}

        def run(command, env, timeout):
            seen["ours" if command[0] == argument else "peer"] = env
            return {"samples_per_second": 1.0}, None
        args = argparse.Namespace(tuning="t", ours_only=False, timeout=100, device="x")
        results = gpu.Results(f"{self.folder}/r", False)
        with mock.patch.object(gpu, "run", run), mock.patch("gpu.say"):
            self.assertTrue(gpu.measure(gpu.CASES[0], argument, args, results, float("inf")))
        return seen

    def test_each_side_has_its_own_environment(self):
        with self.environ(LOCKSTEP_CUDA_MODULE="m", LD_LIBRARY_PATH="/own"):
            seen = self.measured(f"{self.folder}/bench_device")
        self.assertEqual(seen["ours"]["LOCKSTEP_CUDA_MODULE"], "m")
        self.assertEqual(seen["peer"], {"LD_LIBRARY_PATH": "/own"})

    def test_what_the_budget_cuts_off_is_no_result(self):
        args = argparse.Namespace(tuning="t", ours_only=True, timeout=100, device="x")
        results = gpu.Results(f"{self.folder}/r", False)
        now = iter((0.0, 50.0))
        with mock.patch.object(gpu, "run", lambda *_: (None, "not done after 50 s")), \
                mock.patch("gpu.time.monotonic", lambda: next(now)):
            self.assertFalse(gpu.measure(gpu.CASES[0], "p", args, results, 50.0))
        self.assertEqual(results.rows, [])

    def test_libraries_of_the_interpreter_are_named(self):
        cublas = self.file("site/nvidia/cu13/lib/libcublasLt.so.13")
        cudnn, nccl = self.file("site/nvidia/cudnn/lib/libcudnn.so.9"), self.file("site/nvidia/nccl/lib/libnccl.so.2")
        with self.environ(), mock.patch("gpu.site.getsitepackages", lambda: [f"{self.folder}/site"]):
            env = gpu.environment(f"{self.folder}/bin/bench_device")
        self.assertEqual(env["LOCKSTEP_CUDA_LIBRARIES"], os.path.dirname(cublas))
        self.assertEqual((env["LOCKSTEP_CUDNN_LIBRARY"], env["LOCKSTEP_NCCL_LIBRARY"]), (cudnn, nccl))
        with self.environ(LOCKSTEP_CUDNN_LIBRARY="own"), \
                mock.patch("gpu.site.getsitepackages", lambda: [f"{self.folder}/site"]):
            self.assertEqual(gpu.environment(f"{self.folder}/bin/bench_device")["LOCKSTEP_CUDNN_LIBRARY"], "own")


if __name__ == "__main__":
    unittest.main()
