# SPDX-License-Identifier: Apache-2.0
"""PyTorch scripts under the launcher, as they run under torchrun. `./dev test --pytorch` makes the environment.

LOCKSTEP_BIN names the programs, LOCKSTEP_PYTORCH a Python with torch, accelerate and transformers.
"""
import collections
import glob
import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration", "programs"))

import harness  # noqa: E402  (found by the line above)
import hosts  # noqa: E402
import nodes  # noqa: E402

PYTHON = os.environ.get("LOCKSTEP_PYTORCH", sys.executable)
# What accelerate's test_script says near its end.
SAME_TRAINING = "Training yielded the same results on one CPU or distributed setup with batch split."


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


def lines_of(paths):
    """How often each line is said in these files."""
    said = collections.Counter()
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            said.update(line.strip() for line in file if line.strip())
    return said


class ScriptsOfOthers(harness.ProgramTest):
    """Modules that accelerate brings to try out its installation, by torchrun and by the launcher: the same end, and
    what is said under torchrun is said under the launcher, by as many ranks."""

    # Nothing is fetched, and the device is the CPU.
    ENVIRONMENT = {"ACCELERATE_USE_CPU": "1", "HF_HUB_OFFLINE": "1", "PYTHON_EXEC": PYTHON}

    def by_torchrun(self, *arguments):
        """(exit code, lines)"""
        logs = os.path.join(self.dir, "torchrun")
        result = subprocess.run([PYTHON, "-m", "torch.distributed.run", "--standalone", f"--log-dir={logs}",
                                 "--redirects=3", *arguments], cwd=self.dir, timeout=300, stdin=subprocess.DEVNULL,
                                env=self.environment(**self.ENVIRONMENT), stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        return result.returncode, lines_of(glob.glob(f"{logs}/**/stdout.log", recursive=True))

    def by_launcher(self, *arguments):
        runs = os.path.join(self.dir, "launcher")
        code, out, err = self.launch(f"--runs-dir={runs}", *arguments, seconds=300, env=self.ENVIRONMENT)
        return code, lines_of(glob.glob(f"{runs}/*/logs/*.log")), out + err

    def check(self, module, must=None):
        """With `must`, under both it ends well and says so."""
        arguments = ("--nproc-per-node=2", "-m", f"accelerate.test_utils.scripts.{module}")
        code, theirs = self.by_torchrun(*arguments)
        ours_code, ours, text = self.by_launcher(*arguments)
        self.assertEqual(ours_code, code, text)
        self.assertEqual(theirs - ours, collections.Counter(), text)
        if must is not None:
            self.assertEqual(code, 0, text)
            self.assertIn(must, theirs)

    def test_training(self):
        self.check("test_script", SAME_TRAINING)

    def test_gradients_are_summed_when_they_should_be(self):
        self.check("test_sync", "**Test Distributed `no_sync` context manager**")

    def test_a_script_that_wants_gpus_fails_as_it_does_under_torchrun(self):
        self.check("test_ddp_comm_hook")


class PyTorchOnHosts(hosts.HostsTest):
    """Two hosts with a network of their own, which know no host's name: gloo is told the interface, as for torchrun."""

    def run_on_both(self, *command, **env):
        """What rank 0 says, and how often."""
        self.up(1, 1, env=dict(env, GLOO_SOCKET_IFNAME="eth0"))
        job = self.submit("--nnodes=2", "--nproc-per-node=1", "--", PYTHON, *command)
        status = self.end_of(job, seconds=300)
        self.assertEqual(status["state"], "SUCCEEDED", status.get("reason"))
        self.assertEqual({member["host"] for member in self.describe(job)["members"]}, {"h1", "h2"})
        return lines_of([os.path.join(self.dir, status["run_dir"], "logs", "0.log")])

    def test_ddp(self):
        said = self.run_on_both(script("ddp.py"), os.path.join(self.dir, "snapshot.pt"), "5")
        self.assertTrue([line for line in said if line.startswith("DONE world=2 begin=0")], said)

    def test_a_script_of_others(self):
        said = self.run_on_both("-m", "accelerate.test_utils.scripts.test_script", ACCELERATE_USE_CPU="1",
                                HF_HUB_OFFLINE="1")
        self.assertIn(SAME_TRAINING, said)


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
