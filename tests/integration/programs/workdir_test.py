# SPDX-License-Identifier: Apache-2.0
"""A job's workdir goes with it to the nodes."""

import glob
import json
import os
import re
import unittest

import harness
from nodes import Nodes


class Workdir(Nodes):
    def job_file(self, name="tiny", steps=20):
        rows = "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(200))
        self.write("code/data/train.csv", rows)
        self.write("code/.lockstepignore", "*.tmp\n")
        self.write("code/left.tmp", "x")
        text = harness.synthetic_job(name=name, steps=steps, shards=2, nproc=2, extra="workdir: code\n")
        return self.write(f"{name}.yaml", re.sub(r"(?m)^  data: .*",
                                                 "  data: {csv: {train: data/train.csv, test: data/train.csv}}", text))

    def run_of(self, job):
        return glob.glob(os.path.join(self.dir, f"runs/*-{job}"))[0]

    def ended(self, job):
        return harness.wait_until(lambda: (s := self.describe(job)["status"])["state"] in
                                  ("SUCCEEDED", "FAILED", "CANCELLED") and s, 120, "the job ends")

    def test_it_is_sent_once_and_each_run_has_a_copy(self):
        self.join("one", 2)
        path = self.job_file()
        job = self.submit(path)
        status = self.ended(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
        folder = os.path.join(self.run_of(job), "workdir")
        self.assertEqual(sorted(os.listdir(folder)), [".lockstepignore", "data"])
        again = self.ended(self.submit(os.path.join(self.run_of(job), "job.yaml")))
        self.assertEqual(again["state"], "SUCCEEDED", again["reason"])
        self.assertEqual(again["result"]["model_sha256"], status["result"]["model_sha256"])
        # In place, the same.
        alone = self.train("--nproc-per-node=2", path, cwd=self.dir)
        self.assertEqual(status["result"]["model_sha256"], alone["model"]["sha256"])
        # The models know where their data was, wherever one asks from; so does another job's file.
        self.write("elsewhere/x", "")
        for model, data in ((os.path.join(self.run_of(job), "model"), ()), (os.path.dirname(alone["model"]["path"]), ()),
                            (os.path.dirname(alone["model"]["path"]), ("--data", path))):
            cwd = self.dir if data else os.path.join(self.dir, "elsewhere")
            code, out, err = self.launch("eval", os.path.join(self.dir, model), *data, "-o", "json", cwd=cwd)
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["loss"], alone["eval"]["loss"])
            code, _, err = self.launch("predict", os.path.join(self.dir, model), *data, "--out=out.jsonl", cwd=cwd)
            self.assertEqual(code, 0, err)
            self.assertTrue(os.path.exists(os.path.join(cwd, "out.jsonl")))
        kept = os.listdir(os.path.join(self.journal, "packages"))
        self.assertEqual(len(kept), 1)
        # What a run does to its copy is no other run's affair; and what changed here goes along.
        self.write(os.path.join(folder, "data/train.csv"), "broken")
        again = self.submit(path)
        self.assertEqual(self.ended(again)["state"], "SUCCEEDED")
        self.assertEqual(os.listdir(os.path.join(self.journal, "packages")), kept, "it was there")
        # A coordinator that was started again has it, too.
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_coordinator(f"--state-dir={self.journal}")
        self.assertEqual(self.ended(self.submit(path))["state"], "SUCCEEDED")
        self.write("code/data/train.csv", "1,2,0\n" * 200)
        self.assertEqual(self.ended(self.submit(path))["state"], "SUCCEEDED")
        self.assertEqual(len(os.listdir(os.path.join(self.journal, "packages"))), 2)

    def test_each_element_of_an_array_knows_the_jobs_own_workdir(self):
        self.join("one", 2)
        out = self.ask("submit", "--no-follow", "-o", "json", "--array=0-1", self.job_file())
        for line in out.splitlines():
            job = json.loads(line)["job"]
            self.assertEqual(self.ended(job)["state"], "SUCCEEDED")
            with open(os.path.join(self.run_of(job), "job.yaml"), encoding="utf-8") as file:
                self.assertRegex(file.read(), "(?m)^workdir: code$")

    def test_what_cannot_be_sent_is_refused_before_it_is_submitted(self):
        path = self.job_file()
        os.symlink("/etc", os.path.join(self.dir, "code/etc"))
        code, _, err = self.launch("submit", f"--coordinator={self.address}", path)
        self.assertEqual(code, 5, err)
        self.assertIn("workdir: etc is a link out of the workdir (/etc)", err)
        self.assertEqual(self.ask("list", "-o", "json").count('"job_id"'), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
