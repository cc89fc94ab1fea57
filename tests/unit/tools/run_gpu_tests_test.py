# SPDX-License-Identifier: Apache-2.0
"""The hour on a GPU rehearsed: a bundle of fake programs with faults planted in them."""
import contextlib
import glob
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
# Each answers by what the folder of plans says for it.
LAUNCHER = """
if [ "$1" = doctor ]; then . "$PLANS/doctor"; exit; fi
echo '{"sha256":"abc123"}'
"""
GTEST = """
case "$*" in *list_tests*) . "$PLANS/list"; exit ;; esac
for word in "$@"; do case "$word" in --gtest_filter=*) name=${word##*[/.]} ;; esac; done
if [ -e "$PLANS/$name" ]; then . "$PLANS/$name"; else echo '[       OK ] x'; fi
"""
LIST = r"printf 'Running main() from x\nAll/CudaOpsTest.\n  Device/add  # GetParam() = 1\n  Device/relu\n  Device/sum\n'"
BENCH = """case "$1" in
--gpus) echo "{\\"gpus\\":[{\\"uuid\\":\\"GPU-${CUDA_VISIBLE_DEVICES:-0}\\",\\"name\\":\\"fake\\"}]}"; exit ;;
esac
echo "bench $* $LD_LIBRARY_PATH" >&2; . "$PLANS/bench" """
ROW = """echo '{"samples_per_second":10.0,"step_s":0.1,"idle_share":0.0}'"""
HANGS = "exec tail -f /dev/null"


class RunGpuTestsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        for path in ("bin", "lib", "tests", "bench", "plans", "path"):
            os.mkdir(os.path.join(self.folder, path))
        shutil.copy(f"{ROOT}/tools/run_gpu_tests.py", f"{self.folder}/run-gpu-tests")
        shutil.copy(f"{ROOT}/bench/gpu.py", f"{self.folder}/bench/")
        self.script("bin/launcher", LAUNCHER)
        self.script("tests/conformance_cuda_ops_test", GTEST)
        self.script("tests/engine_cuda_executor_test", GTEST)
        self.script("bench/bench_device", BENCH)
        # It knows nothing of CUDA_VISIBLE_DEVICES.
        self.script("path/nvidia-smi", 'case "$*" in -L) echo "GPU 0" ;; "-i GPU-1 "*memory.used*) echo 111 ;; '
                    '*memory.used*) echo 100; echo 111 ;; *) exit 9 ;; esac')
        self.script("path/no-torch", "exit 1")
        self.plan(doctor="echo 'NCCL         ok       NCCL 2.30.4 (revoke), /x'; echo can be used", list=LIST, bench=ROW)
        self.out = f"{self.folder}/out"

    def script(self, path, text):
        with open(f"{self.folder}/{path}", "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(f"{self.folder}/{path}", 0o755)

    def plan(self, **plans):
        for name, text in plans.items():
            with open(f"{self.folder}/plans/{name}", "w", encoding="utf-8") as file:
                file.write(text + "\n")

    def command(self, *args):
        return [sys.executable, f"{self.folder}/run-gpu-tests", "--out", self.out, *args]

    def env(self):
        return {**os.environ, "PLANS": f"{self.folder}/plans", "LOCKSTEP_COMPUTE_SANITIZER": "",
                "LOCKSTEP_PEER_PYTHON": f"{self.folder}/path/no-torch",
                "PATH": f"{self.folder}/path:{os.environ['PATH']}"}

    def run_it(self, *args, phases="A", **env):
        return subprocess.run(self.command("--phases", phases, *args), env={**self.env(), **env}, text=True,
                              capture_output=True, check=False)

    def states(self):
        with open(f"{self.out}/results.jsonl", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip().endswith("}")]
        return {row["check"]: row for row in rows}

    def log(self, name):
        with open(f"{self.out}/{name}.log", encoding="utf-8") as file:
            return file.read()

    def state(self, check):
        return self.states()[check]["state"]

    def without_soak(self):
        """A launcher that ends at once gives the soak nothing to look at: the one check that fails here."""
        states = self.states()
        self.assertEqual(states.pop("soak")["state"], "failed")
        return states

    def test_each_check_is_run_and_told(self):
        done = self.run_it()
        states = self.without_soak()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual({row["state"] for row in states.values()}, {"passed"}, done.stdout)
        self.assertEqual({row["device"] for row in states.values()}, {"fake"})
        for check in ("doctor", "probe", "op: All/CudaOpsTest.Device/add", "executor: All/CudaOpsTest.Device/sum",
                      "same-bits by the host", "same-bits by NCCL", "moments-elsewhere by the host",
                      "moments-elsewhere by NCCL", "recordings"):
            self.assertIn(check, states)

    def test_gradients_are_reduced_by_the_host_and_by_nccl(self):
        self.script("bin/launcher", 'for word; do case "$word" in *.yaml) grep ^nccl: "$word" >&2 ;; esac; done\n' + LAUNCHER)
        self.run_it()
        for check in ("same-bits", "moments-elsewhere"):
            for way, use in (("the-host", "never"), ("NCCL", "always")):
                self.assertEqual(self.log(f"{check}-by-{way}").count(f"nccl: {{use: {use}}}"), 3)

    def test_without_an_nccl_that_shares_gpus_its_part_is_skipped(self):
        for says, reason in (("NCCL         ok       NCCL 2.28.9 (no grow), /x", "NCCL 2.28 gives a GPU to no two workers"),
                             ("NCCL         absent   NCCL cannot be loaded (x)", "NCCL cannot be loaded (x)"),
                             ("nothing of it", "the doctor does not say which NCCL is here")):
            self.plan(doctor=f"echo '{says}'")
            self.run_it("--retry")
            row = self.states()["same-bits by NCCL"]
            self.assertEqual(row["state"], "skipped", says)
            self.assertIn(reason, row["reason"])
            self.assertEqual(self.state("same-bits by the host"), "passed")
            shutil.rmtree(self.out)

    def test_the_gpu_is_asked_for_and_what_is_tuned_is_kept(self):
        self.plan(add=f'[ "$LOCKSTEP_TEST_GPU $XDG_CACHE_HOME" = "1 {self.out}/cache" ] || exit 1; echo "[       OK ] x"')
        self.run_it()
        for program in ("op", "executor"):
            self.assertEqual(self.state(f"{program}: All/CudaOpsTest.Device/add"), "passed")

    def test_kernels_that_end_all_work_are_left_out(self):
        self.plan(doctor="echo 'attention missing: set LOCKSTEP_WARPGROUPS=0'; exit 1",
                  add='[ "$LOCKSTEP_WARPGROUPS" = 0 ] || exit 1; echo "[       OK ] x"')
        self.assertIn("doctor.log says why", self.run_it().stdout)
        row = self.states()["op: All/CudaOpsTest.Device/add"]
        self.assertEqual((row["state"], row["warpgroups"], row["no_warpgroups"]), ("passed", 0, "doctor.log says why"))

    def test_a_doctor_that_hangs_may_hang_in_these_kernels(self):
        self.plan(doctor="sleep 100", add='[ "$LOCKSTEP_WARPGROUPS" = 0 ] || exit 1; echo "[       OK ] x"')
        self.assertIn("LOCKSTEP_WARPGROUPS=0 from here on: the doctor hung", self.run_it("--limit", "1").stdout)

    def test_programs_that_do_not_start(self):
        self.script("bin/launcher", "echo \"bin/launcher: version 'GLIBC_2.34' not found\" >&2; exit 1")
        done = self.run_it()
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (1, ["the programs do not start here: bin/launcher: version 'GLIBC_2.34' not found"]))

    def test_the_own_cxx_library_is_taken_where_the_machines_is_too_old(self):
        os.mkdir(f"{self.folder}/lib/fallback")
        says = 'echo "[       OK ] $LD_LIBRARY_PATH" >&2'
        self.plan(add=says)
        self.run_it()
        # An inherited path may hold one, too, so ours comes before it.
        self.script("bin/launcher", 'case "$LD_LIBRARY_PATH" in *fallback | *fallback:/older) ;; '
                    '*) echo "no GLIBCXX_3.4.29" >&2; exit 1 ;; esac'
                    + LAUNCHER)
        self.assertNotIn("fallback", self.log("op-All-CudaOpsTest.Device-add"))
        for inherited in ("", "/older"):
            shutil.rmtree(self.out)
            with mock.patch.dict(os.environ, LD_LIBRARY_PATH=inherited):
                self.run_it()
            self.assertIn("lib/fallback", self.log("op-All-CudaOpsTest.Device-add"))

    def test_one_that_crashes_hides_no_other(self):
        self.plan(add="echo a CHECK failed; kill -ABRT $$", sum="echo wrong by 1; exit 1")
        self.assertEqual(self.run_it().returncode, 1)
        row = self.states()["op: All/CudaOpsTest.Device/add"]
        self.assertEqual((row["state"], row["reason"]), ("crashed", "SIGABRT: a CHECK failed"))
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/relu"), "passed")
        self.assertEqual(self.states()["op: All/CudaOpsTest.Device/sum"]["reason"], "wrong by 1")

    def test_one_that_hangs_ends_at_its_limit(self):
        self.plan(relu=HANGS)
        self.run_it("--limit", "1")
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/relu"), "hung")
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/sum"), "passed")

    def test_a_program_without_its_library(self):
        self.plan(list="echo 'libx.so: cannot open shared object file' >&2; exit 127")
        self.assertEqual(self.run_it().returncode, 1)
        row = self.states()["op: list"]
        self.assertEqual(row["state"], "failed")
        self.assertIn("libx.so", row["reason"])
        self.assertEqual(self.state("op"), "skipped")
        self.assertEqual(self.state("same-bits by the host"), "passed")

    def test_what_skips_itself_has_not_passed(self):
        self.plan(sum="echo '[  SKIPPED ] no GPU'")
        self.run_it()
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/sum"), "skipped")

    def test_the_probe_leaves_its_lines_and_stops_nothing(self):
        line = '{"product":"2x3x4nt","fused":0,"plain":3,"error":""}'
        self.plan(bench=f"""case "$*" in --probe) echo '{line}'; echo no such handle; exit 1 ;; esac""")
        self.run_it()
        states = self.without_soak()
        self.assertEqual((states["probe"]["state"], states["probe"]["reason"]), ("failed", "no such handle"))
        with open(f"{self.out}/probe.log", encoding="utf-8") as file:
            self.assertIn(line, file.read().splitlines())
        self.assertEqual(states["op: All/CudaOpsTest.Device/add"]["state"], "passed")

    def test_ops_that_are_profiled_exist(self):
        ops = set()
        for path in glob.glob(f"{ROOT}/engine/ops/*.cc"):
            with open(path, encoding="utf-8") as file:
                ops.update(re.findall(r'\.name = "(\w+)"', file.read()))
        with open(f"{ROOT}/tools/run_gpu_tests.py", encoding="utf-8") as file:
            profiled = re.findall(r'"(\w+)"', re.search(r"^PROFILED = \((.*?)\)", file.read(), re.MULTILINE).group(1))
        self.assertEqual((len(profiled), set(profiled) - ops), (3, set()))

    def test_the_doctor_informs_only(self):
        self.plan(doctor="echo reduction missing; exit 1")
        self.run_it()
        states = self.without_soak()
        self.assertEqual(states["doctor"]["reason"], "exit code 1: reduction missing")
        self.assertEqual(states["op: All/CudaOpsTest.Device/add"]["state"], "passed")

    def test_a_doctor_that_hangs_stops_nothing(self):
        self.plan(doctor=HANGS)
        self.run_it("--limit", "1")
        self.assertEqual(self.state("doctor"), "hung")
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "passed")

    def test_without_a_gpu_all_is_skipped(self):
        self.plan(doctor="exit 1")
        self.script("path/nvidia-smi", "exit 9")
        self.script("bench/bench_device", "exit 1")
        self.assertEqual(self.run_it().returncode, 77)
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "skipped")

    def test_a_gpu_that_cuda_alone_shows_is_one(self):
        self.plan(doctor="exit 1")
        self.script("path/nvidia-smi", "exit 9")  # as in a container without the driver's tools
        self.run_it()
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "passed")

    def cut_off(self, number):
        """Sends a signal while one op hangs and another, in both programs, has its line; the plan tells when that is."""
        told = f"{self.folder}/told"
        os.mkfifo(told)
        self.plan(sum=f'until [ "$(grep -c Device/add {self.out}/results.jsonl)" -ge 2 ]; do sleep 0.01; done\n'
                      f"echo > {told}; {HANGS}")
        with subprocess.Popen(self.command("--phases", "A"), env=self.env(), stdout=subprocess.DEVNULL) as run:
            with open(told, encoding="utf-8") as file:
                file.readline()
            run.send_signal(number)
        return run.returncode

    def test_cut_off_by_a_signal_it_goes_on(self):
        self.assertEqual(self.cut_off(signal.SIGTERM), 3)
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/sum"), "cut")
        self.assertEqual(self.state("same-bits by the host"), "cut")
        self.plan(sum="echo '[       OK ] x'", add="exit 1")  # add was tested before
        self.run_it()
        self.assertEqual({row["state"] for row in self.without_soak().values()}, {"passed"})

    def test_killed_in_the_middle_it_goes_on(self):
        self.cut_off(signal.SIGKILL)
        self.assertNotIn("op: All/CudaOpsTest.Device/sum", self.states())
        with open(f"{self.out}/results.jsonl", "a", encoding="utf-8") as file:
            file.write('{"check": "same-bi')  # a line cut off too
        self.plan(sum="echo '[       OK ] x'")
        self.run_it()
        self.assertEqual({row["state"] for row in self.without_soak().values()}, {"passed"})

    def test_the_budget_cuts_what_runs(self):
        self.plan(doctor=HANGS)
        self.assertEqual(self.run_it("--budget", "2").returncode, 3)
        self.assertEqual({row["state"] for row in self.states().values()}, {"cut"})

    def test_retry_runs_again_what_went_wrong(self):
        self.plan(add="exit 1")
        self.run_it()
        self.plan(add="echo '[       OK ] x'", relu="exit 1")
        self.run_it()
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "failed")
        self.run_it("--retry")
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "passed")
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/relu"), "passed")

    def commit(self, text):
        with open(f"{self.folder}/commit", "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def test_another_bundle_or_gpu_runs_all_again(self):
        self.commit("first")
        self.run_it()
        self.assertEqual(self.states()["op: All/CudaOpsTest.Device/add"]["bundle"], "first")
        self.plan(add="exit 1")
        self.run_it()
        self.assertEqual(self.state("op: All/CudaOpsTest.Device/add"), "passed")
        self.commit("second")
        self.run_it()
        row = self.states()["op: All/CudaOpsTest.Device/add"]
        self.assertEqual((row["state"], row["bundle"]), ("failed", "second"))
        self.plan(add="echo '[       OK ] x'")
        self.script("bench/bench_device", BENCH.replace("fake", "other"))
        self.run_it()
        row = self.states()["op: All/CudaOpsTest.Device/add"]
        self.assertEqual((row["state"], row["device"]), ("passed", "other"))

    def test_a_peer_that_cannot_compile_is_told_once(self):
        self.script("path/torch", 'case "$2" in *sysconfig*) echo no C compiler; exit ;; "import torch") exit ;; '
                    f'esac\ncase "$*" in *--compile*) exit 1 ;; esac\n{ROW}')
        self.run_it(phases="CD", LOCKSTEP_PEER_PYTHON=f"{self.folder}/path/torch")
        row = self.states()["speed: peers, compiled"]
        self.assertEqual(row["state"], "skipped")
        self.assertIn("finds no C compiler", row["reason"])
        self.assertEqual((self.state("speed: peers"), self.state("speed: peers, gpt2-xl")), ("passed", "passed"))

    def test_speed_and_tools_that_are_not_here(self):
        done = self.run_it(phases="BCD")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.state("speed: ours"), "passed")
        self.assertIn("has no PyTorch", self.states()["speed: peers"]["reason"])
        self.assertEqual(self.states()["kernels under memcheck"]["reason"], "compute-sanitizer is not here")
        self.plan(bench="echo out of order >&2; exit 1")
        shutil.rmtree(self.out)
        self.assertEqual(self.run_it(phases="B").returncode, 1)
        self.assertEqual(self.state("speed: ours"), "failed")

    def test_a_speed_that_failed_is_measured_again_when_that_is_asked_for(self):
        self.plan(bench=f'case "$1" in gpt2) echo it broke >&2; exit 1 ;; esac\n{ROW}')
        self.run_it(phases="B")
        row = self.states()["speed: ours"]
        self.assertEqual(row["state"], "failed")
        self.assertIn("it broke", row["reason"])
        self.plan(bench=ROW)
        self.run_it(phases="B")
        self.assertEqual(self.state("speed: ours"), "failed")
        self.run_it("--retry", phases="B")
        self.assertEqual(self.state("speed: ours"), "passed")

    def test_what_ours_did_wrong_is_no_fault_of_the_peers(self):
        self.plan(bench=f'case "$1" in gpt2) echo it broke >&2; exit 1 ;; esac\n{ROW}')
        self.script("path/torch", f'case "$1" in -c) exit ;; esac\n{ROW}')  # and it lacks nothing
        self.run_it(phases="BC", LOCKSTEP_PEER_PYTHON=f"{self.folder}/path/torch")
        self.assertEqual((self.state("speed: ours"), self.state("speed: peers")), ("failed", "passed"))

    def test_all_is_on_the_first_gpu_that_cuda_shows(self):
        self.script("bin/launcher", 'echo "on $LOCKSTEP_GPUS" >&2\n' + LAUNCHER)
        self.run_it(CUDA_VISIBLE_DEVICES="1")
        for check, gpus in (("same-bits-by-NCCL", "GPU-1,GPU-1"), ("moments-elsewhere-by-the-host", "GPU-1,GPU-1,GPU-1,GPU-1"),
                            ("recordings", "GPU-1"), ("soak", "GPU-1")):
            self.assertIn(f"on {gpus}\n", self.log(check))
        with mock.patch.dict(os.environ, self.env()):
            self.assertEqual([self.module(self.folder).memory_used(uuid) for uuid in ("GPU-1", "GPU-0")], [111, 100])
            self.script("path/nvidia-smi", "exit 9")
            self.assertIsNone(self.module(self.folder).memory_used("GPU-1"))
            self.script("path/nvidia-smi", "echo '[N/A]'")
            self.assertIsNone(self.module(self.folder).memory_used("MIG-1"))

    def test_what_the_tools_of_cuda_are_asked_for(self):
        self.script("path/sanitizer", 'echo "asked: $*"')
        self.script("path/ncu", 'echo "asked: $*"')
        self.run_it(phases="D", LOCKSTEP_COMPUTE_SANITIZER=f"{self.folder}/path/sanitizer")
        for kind in ("memcheck", "racecheck", "synccheck"):
            self.assertEqual(self.state(f"kernels under {kind}"), "passed")
            # Our kernels alone, and no error that a call of the driver gives somebody who can do without.
            self.assertIn(f"--tool {kind} --kernel-regex kns=lockstep --report-api-errors no ",
                          self.log(f"kernels-under-{kind}"))
        self.assertEqual(self.state("ncu: batch_norm"), "passed")
        log = self.log("ncu-batch_norm")
        self.assertIn("--launch-count 20 ", log)
        self.assertIn(f"-f -o {self.out}/ncu-batch_norm ", log)

    def test_counters_that_the_driver_keeps_to_itself_are_no_failure(self):
        self.script("path/ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1")
        self.run_it(phases="D")
        row = self.states()["ncu: batch_norm"]
        self.assertEqual(row["state"], "skipped")
        self.assertIn("ERR_NVGPUCTRPERM", row["reason"])

    def test_nobody_has_to_read_what_it_says(self):
        reads, writes = os.pipe()
        os.close(reads)
        done = subprocess.run(self.command("--phases", "A"), env=self.env(), text=True, stdout=writes,
                              stderr=subprocess.PIPE, check=False)
        os.close(writes)
        self.assertEqual((done.returncode, done.stderr), (1, ""))  # the soak's
        self.assertEqual({row["state"] for row in self.without_soak().values()}, {"passed"})

    def module(self, folder):
        """The command as Python has it, in a folder that may be a link."""
        loader = importlib.machinery.SourceFileLoader("run_gpu_tests_copy", f"{folder}/run-gpu-tests")
        made = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        with mock.patch.object(sys, "path", list(sys.path)), mock.patch.object(sys, "dont_write_bytecode", True):
            loader.exec_module(made)
        return made

    def test_a_worker_is_found_through_a_link(self):
        os.symlink(self.folder, f"{self.folder}/link")
        shutil.copy(shutil.which("tail"), f"{self.folder}/bin/worker")
        with subprocess.Popen([f"{self.folder}/bin/worker", "-f", "/dev/null"]) as worker:
            found = self.module(f"{self.folder}/link").resident_kib()
            worker.kill()
        self.assertGreater(found, 0)

    def soaked(self, first_step, memory, resident=1000):
        """What the soak makes of the GPU's memory at each look, when a step is there from one of them on, and what it says."""
        looks = iter(memory)
        run = mock.MagicMock(returncode=0)
        run.__enter__.return_value = run
        run.poll.side_effect = [None] * len(memory) + [0]
        steps = iter(number >= first_step for number in range(len(memory)))
        module = self.module(self.folder)
        said = io.StringIO()
        kib = iter(resident * number if resident > 1000 else resident for number in range(len(memory)))
        with mock.patch.multiple(module, resident_kib=lambda: next(kib), has_step=lambda _: next(steps), job=lambda *_: "j",
                                 first_gpu=lambda: "GPU-1", memory_used=lambda _: next(looks)), \
                mock.patch.object(module.subprocess, "Popen", return_value=run), \
                mock.patch.object(module.time, "sleep"), contextlib.redirect_stdout(said):
            return module.soak(self.folder), said.getvalue()

    def test_the_soak_looks_from_the_first_step_on(self):
        start = [100, 900, 5000, 5100, 5200, 6000, 7000, 7900]  # libraries, tuning
        self.assertTrue(self.soaked(8, start + [8000] * 9)[0])
        self.assertFalse(self.soaked(0, start + [8000] * 9)[0])
        self.assertFalse(self.soaked(8, start + list(range(8000, 8090, 10)))[0])
        flat, said = self.soaked(8, start + [8000] * 3)
        self.assertFalse(flat)
        self.assertIn("none ruled out: 3 looks", said)

    def test_a_soak_that_cannot_see_the_gpus_memory_says_nothing_of_it(self):
        flat, said = self.soaked(0, [None] * 12)
        self.assertTrue(flat)
        self.assertIn("[  SKIPPED ] nvidia-smi does not say how much memory of GPU-1 is used", said)
        self.assertFalse(self.soaked(0, [None] * 12, resident=10000)[0])  # the worker's grows

    def test_a_step_is_seen_in_the_metrics(self):
        module = self.module(self.folder)
        self.assertFalse(module.has_step(self.folder))
        os.makedirs(f"{self.folder}/runs/soak-1")
        metrics = f"{self.folder}/runs/soak-1/metrics.jsonl"
        with open(metrics, "w", encoding="utf-8") as file:
            file.flush()
            self.assertFalse(module.has_step(self.folder))
            file.write('{"kind":"step","step":1}\n')
        self.assertTrue(module.has_step(self.folder))


if __name__ == "__main__":
    unittest.main()
