# SPDX-License-Identifier: Apache-2.0
"""train.zero_stage: 1 spares memory and changes nothing else: weights, checkpoints, what deaths cost."""

import json
import os
import re

import unittest

import harness
from harness import PACED, steps_that_last

ADAMW = "  optimizer: {adamw: {lr: 0.002, weight_decay: 0.1}, no_decay: auto}\n"
MORE = "  zero_stage: 1\n  clip_norm: 0.5\n  ema: {decay: 0.9}\n  eval: {every: 10 steps}\n"
SGD = "  optimizer: {sgd: {lr: 0.05, momentum: 0.9}}\n"
OFF = ("--set", "train.zero_stage=0")


def job(steps=40, optimizer=ADAMW, extra="", **more):
    text = harness.synthetic_job(steps=steps, train_extra=MORE, extra=extra, **more)
    assert SGD in text
    return text.replace(SGD, optimizer)


class Zero(harness.ProgramTest):
    def outcome(self, result):
        folder = os.path.join(self.dir, os.path.dirname(result["model"]["path"]))
        with open(os.path.join(folder, "ema.safetensors"), "rb") as file:
            averages = file.read()
        return {"sha256": result["model"]["sha256"], "ema": averages,
                "eval": {k: result["eval"][k] for k in ("loss", "accuracy", "step")}}

    def test_the_same_weights_at_any_number_of_workers(self):
        for optimizer in (ADAMW, SGD, SGD.replace(", momentum: 0.9", "")):
            path = self.write("job.yaml", job(optimizer=optimizer))
            wanted = self.outcome(self.train(*OFF, path))
            for workers in (1, 2, 3, 4):
                result = self.train(f"--nproc-per-node={workers}", path)
                self.assertEqual(result["workers"], workers)
                self.assertEqual(self.outcome(result), wanted, (optimizer, workers))

    def test_deaths_and_other_sizes_leave_no_trace(self):
        path = self.write("job.yaml", job(
            steps=120, extra="elastic: {min_workers: 1, max_workers: 4}\nverify_replicas: 5 steps\n"
                             "restart: {max_restarts: 9}\n"))
        wanted = self.outcome(self.train(*OFF, path))
        faults = ["--slow", "rank:3:20x", "--kill", "rank:1@step:10/begun", "--kill", "rank:0@step:30/reduced",
                  "--scale", "3@step:50", "--kill", "rank:2@step:60/begun", "--scale", "4@step:80"]
        # Steps take their time: whom the second and the third fault strike has to be back by then.
        code, out, err = self.launch("chaos", "-o", "json", *faults, "--set", "env.LOCKSTEP_STEP_TIME=20ms", path)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(self.outcome(result), wanted)
        self.assertEqual([fault["steps_lost"] for fault in result["faults"]], [0] * len(result["faults"]))
        self.assertGreaterEqual(len(result["faults"]), 3)

    def test_going_on_with_one_of_four_workers_loses_nothing(self):
        path = self.write("job.yaml", job(
            steps=200, extra="elastic: {min_workers: 1, max_workers: 4}\nverify_replicas: 5 steps\n"))
        wanted = self.outcome(self.train(*OFF, path))
        code, out, err = self.launch("chaos", "-o", "json", "--slow", "rank:0:100x", "--scale", "1@step:20", path)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(self.outcome(result), wanted)
        self.assertEqual(result["workers"], 1)
        self.assertNotIn("goes back", err)

    def saved(self, name):
        """The tensor files of the newest checkpoint of a run."""
        folder = os.path.join(self.dir, name, "last")
        found = {}
        for file in sorted(os.listdir(folder)):
            if file.endswith(".safetensors"):
                with open(os.path.join(folder, file), "rb") as tensors:
                    found[file] = tensors.read()
        return found

    def test_checkpoints_are_those_of_a_run_without(self):
        path = self.write("job.yaml", job())
        save = "--set", "checkpoint.every=15 steps"
        wanted = self.outcome(self.train(*OFF, *save, "--set", "checkpoint.dir=plain", path))
        self.assertEqual(self.outcome(self.train(*save, "--set", "checkpoint.dir=zero", path)), wanted)
        self.assertEqual(self.saved("zero"), self.saved("plain"))
        self.assertIn("training.safetensors", self.saved("zero"))

    def test_either_goes_on_from_the_others_checkpoint(self):
        steps = steps_that_last(6)  # long enough for a checkpoint to be whole, however slow the disk is
        path = self.write("job.yaml", job(steps=steps))
        wanted = self.outcome(self.train(*OFF, path))
        for name, before, after in (("a", OFF, ()), ("b", (), OFF), ("c", (), ("--nproc-per-node=3",))):
            save = ("--set", "checkpoint={every: 15 steps, dir: %s}" % name)
            code, _, err = self.launch("chaos", "--set", "restart.max_restarts=0", "--kill",
                                       f"rank:1@step:{steps - 20}",
                                       *save, *before, path, env=PACED)
            self.assertNotEqual(code, 0, err)
            code, out, err = self.launch("-o", "json", *save, *after, path)
            self.assertEqual(code, 0, err)
            self.assertRegex(err, "goes on after step [0-9]+ from the checkpoint")
            self.assertEqual(self.outcome(json.loads(out.strip().splitlines()[-1])), wanted, name)

    def test_both_holders_gone_means_the_newest_checkpoint(self):
        steps = steps_that_last(6)  # as above
        path = self.write("job.yaml", job(
            steps=steps, extra="elastic: {min_workers: 1, max_workers: 4}\nrestart: {max_restarts: 9}\n"
                               f"checkpoint: {{every: {steps // 20} steps, dir: saved}}\n"))
        wanted = self.outcome(self.train(*OFF, "--set", "checkpoint.dir=plain", path))
        code, out, err = self.launch("chaos", "-o", "json", "--kill", f"rank:1@step:{steps - 20}/begun",
                                     "--kill", f"rank:2@step:{steps - 20}/begun", path, env=PACED)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.outcome(json.loads(out.strip().splitlines()[-1])), wanted)
        self.assertRegex(err, "both holders of part .* are gone")
        self.assertGreater(int(re.search(r"goes on after step (\d+)", err).group(1)), 0)

    def test_it_takes_less_memory_and_the_plan_says_so(self):
        big = job(steps=3, hidden="[2000, 2000]").replace("eval: {every: 10 steps}", "eval: {every: never}")
        path = self.write("job.yaml", big.replace("  ema: {decay: 0.9}\n", ""))
        self.train(*OFF, path)  # the first run measures kernels, which takes memory too
        with_zero, without = (self.train(*more, path)["peak_rss_bytes"] for more in ((), OFF))
        moments = 2 * 4 * 2000 * 2000
        # Half of them is spared; but the pages of peers that a worker reads count as its own, too.
        self.assertLess(max(with_zero), max(without) - 0.25 * moments)
        plans = []
        for more in ((), OFF):
            code, out, err = self.launch("plan", "-o", "json", *more, path)
            self.assertEqual(code, 0, err)
            plans.append(json.loads(out)["memory"])
        self.assertLess(plans[0]["optimizer"], plans[1]["optimizer"] - 0.3 * moments)
        code, out, _ = self.launch("plan", path)
        self.assertIn("zero_stage 1: 24 of 48 parts", out)

    def test_what_cannot_be_done_is_refused_with_its_place(self):
        path = self.write("job.yaml", job(optimizer="  optimizer: {muon: {lr: 0.02}}\n"))
        code, _, err = self.launch("validate", path)
        self.assertEqual(code, 3)
        self.assertIn("muon needs whole ones", err)
        self.assertIn("job.yaml:12", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
