# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import io
import json
import os
import sys
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
        args = argparse.Namespace(tuning="t", ours_only=False, timeout=100, device="x", no_compile="")
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
        args = argparse.Namespace(tuning="t", ours_only=True, timeout=100, device="x", no_compile="")
        results = gpu.Results(f"{self.folder}/r", False)
        now = iter((0.0, 50.0))
        with mock.patch.object(gpu, "run", lambda *_: (None, "not done after 50 s")), \
                mock.patch("gpu.time.monotonic", lambda: next(now)):
            self.assertFalse(gpu.measure(gpu.CASES[0], "p", args, results, 50.0))
        self.assertEqual(results.rows, [])

    def bench(self, program, *args):
        """Exit code, table and rows of a call whose program is a shell script that is given a case's model as $1."""
        path = self.file("bin/bench_device")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n"
                       'case "$1" in --gpus) echo \'{"gpus":[{"uuid":"GPU-1","name":"fake"}]}\'; exit ;; esac\n' + program)
        os.chmod(path, 0o755)
        out, said = f"{self.folder}/rows", io.StringIO()
        with mock.patch.object(gpu, "find_program", lambda: path), mock.patch("gpu.say"), \
                mock.patch.object(sys, "argv", ["gpu.py", "--strict", "--out", out, *args]), \
                contextlib.redirect_stdout(said), self.assertRaises(SystemExit) as end:
            gpu.main()
        with open(out, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return end.exception.code, said.getvalue().splitlines(), rows

    ROW = """echo '{"samples_per_second":10.0,"step_s":0.1,"loss":1.5}'\n"""
    GPT2_FAILS = 'case "$1" in gpt2) echo it broke >&2; exit 1 ;; esac\n' + ROW

    def test_a_loss_that_is_not_finite_is_a_failure_and_ends_nothing(self):
        for loss, reason in (("nan", "its last line is no JSON"), ("null", "the loss is not finite"),
                             ("NaN", "the loss is not finite"), ("Infinity", "the loss is not finite")):
            program = ("case \"$1\" in gpt2) echo '{\"samples_per_second\":10.0,\"step_s\":0.1,\"loss\":" + loss
                       + "}'; exit ;; esac\n" + self.ROW)
            code, _, rows = self.bench(program, "--ours-only", "gpt2", "resnet50")
            os.unlink(f"{self.folder}/rows")
            self.assertEqual((code, [row["case"] for row in rows]), (1, ["gpt2", "resnet50"]), loss)
            self.assertIn(reason, rows[0]["error"])
            self.assertEqual((rows[1]["loss"], rows[1]["device"]), (1.5, "fake"))

    def test_failures_are_the_last_lines(self):
        code, table, _ = self.bench(self.GPT2_FAILS, "--ours-only", "gpt2", "resnet50")
        self.assertEqual(code, 1)
        self.assertRegex(table[-2], "resnet50 .*10.0 samples/s")
        self.assertRegex(table[-1], "gpt2 .*exit code 1: it broke")

    def test_while_not_all_is_measured_that_is_what_it_says(self):
        now = iter((0.0, 0.0, 0.0, 85.0))
        with mock.patch("gpu.time.monotonic", lambda: next(now)):
            code, _, rows = self.bench(self.GPT2_FAILS, "--ours-only", "--budget", "100", "gpt2", "resnet50")
        self.assertEqual((code, [row["case"] for row in rows]), (3, ["gpt2"]))
        code, _, rows = self.bench(self.GPT2_FAILS, "--ours-only", "gpt2", "resnet50")
        self.assertEqual((code, [row["case"] for row in rows]), (1, ["gpt2", "resnet50"]))

    def test_what_failed_is_measured_again_when_that_is_asked_for(self):
        self.bench(self.GPT2_FAILS, "--ours-only", "gpt2")
        self.assertEqual(self.bench(self.ROW, "--ours-only", "gpt2")[0], 1)
        self.assertEqual(self.bench(self.ROW, "--ours-only", "--retry", "gpt2")[0], 0)
        self.assertEqual(self.bench("exit 1\n", "--ours-only", "gpt2")[0], 0)  # the last result counts

    def test_a_retry_that_is_cut_off_is_gone_on_with_behind_what_it_repeated(self):
        self.bench("exit 1\n", "--ours-only", "gpt2", "resnet50")
        now = iter((0.0, 0.0, 0.0, 85.0))
        with mock.patch("gpu.time.monotonic", lambda: next(now)):
            code, _, rows = self.bench("exit 1\n", "--ours-only", "--retry", "--budget", "100", "gpt2", "resnet50")
        self.assertEqual((code, [row["case"] for row in rows]), (3, ["gpt2"]))
        with open(f"{self.folder}/rows", "a", encoding="utf-8") as file:
            file.write('{"case": "resn')  # and its writer was killed
        code, _, rows = self.bench(self.ROW, "--ours-only", "gpt2", "resnet50")
        self.assertEqual((code, [(row["case"], "error" in row) for row in rows]),
                         (1, [("gpt2", True), ("resnet50", False)]))

    def test_whose_failures_count(self):
        self.assertEqual(self.bench(self.GPT2_FAILS, "--ours-only", "gpt2")[0], 1)
        peer = self.file("peer")
        with open(peer, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + self.ROW)
        os.chmod(peer, 0o755)
        with mock.patch.dict(os.environ, LOCKSTEP_PEER_PYTHON=peer):
            self.assertEqual(self.bench(self.ROW, "--judge", "peers", "gpt2")[0], 0)
            self.assertEqual(self.bench(self.ROW, "gpt2")[0], 1)

    def test_torch_is_not_compiled_where_there_is_no_compiler(self):
        peer = self.file("peer")
        with open(peer, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\ncase "$1" in -c) exec {sys.executable} "$@" ;; esac\n' + self.ROW)
        os.chmod(peer, 0o755)
        with mock.patch.dict(os.environ, LOCKSTEP_PEER_PYTHON=peer, PATH=""):
            os.environ.pop("CC", None)
            code, table, rows = self.bench(self.ROW, "gpt2")
        self.assertEqual((code, [row["side"] for row in rows if "skipped" not in row]), (0, ["ours", "torch"]))
        skipped = [row for row in rows if "skipped" in row]
        self.assertEqual([row["side"] for row in skipped], ["torch compile"])
        self.assertIn("no C compiler (gcc, clang, cc)", skipped[0]["skipped"])
        self.assertIn("no C compiler (gcc, clang, cc)", table[-1])

    def test_a_row_of_another_bundle_or_gpu_is_not_known(self):
        for bundle in ("first", "second", "second"):
            with mock.patch.object(gpu, "bundle", lambda made=bundle: made):
                rows = self.bench(self.ROW, "--ours-only", "gpt2")[2]
        self.assertEqual([row["bundle"] for row in rows], ["first", "second"])
        with mock.patch.object(sys, "argv", ["gpu.py", "--report", "--out", f"{self.folder}/rows"]), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            gpu.main()
        self.assertEqual(said.getvalue().count("gpt2 "), 1)
        other = gpu.Results(f"{self.folder}/rows", False, {"bundle": "second", "device": "another"})
        self.assertEqual(other.rows, [])

    def test_a_speed_without_warpgroups_says_so(self):
        with mock.patch.dict(os.environ, LOCKSTEP_WARPGROUPS="0"):
            _, table, rows = self.bench(self.ROW, "--ours-only", "gpt2")
        self.assertEqual(rows[0]["warpgroups"], 0)
        self.assertIn("without wgmma", table[-1])

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
