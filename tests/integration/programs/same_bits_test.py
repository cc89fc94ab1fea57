# SPDX-License-Identifier: Apache-2.0
"""The math belongs to the job: the same weights for any number of workers, and run after run."""

import json
import os
import unittest

import harness


class SameBits(harness.ProgramTest):
    def test_any_number_of_workers_gives_the_same_weights(self):
        job = self.write("job.yaml", harness.synthetic_job())
        hashes = {}
        for workers in (1, 2, 3, 4):
            result = self.train(f"--nproc-per-node={workers}", job)
            self.assertEqual(result["workers"], workers)
            self.assertEqual(result["steps"], 20)
            hashes[workers] = result["model"]["sha256"]
        again = self.train("--nproc-per-node=4", job)
        hashes["again"] = again["model"]["sha256"]
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_shards_that_workers_do_not_divide(self):
        for shards, batch in ((5, 40), (6, 48), (8, 48)):
            job = self.write("job.yaml", harness.synthetic_job(shards=shards, global_batch=batch, nproc=1))
            hashes = {n: self.train(f"--nproc-per-node={n}", job)["model"]["sha256"] for n in (1, 3, 5)}
            self.assertEqual(len(set(hashes.values())), 1, (shards, hashes))

    def test_accumulation_gives_the_same_weights_at_any_number_of_workers(self):
        job = self.write("job.yaml", harness.synthetic_job(train_extra="  accumulate: 3\n"))
        hashes = {n: self.train(f"--nproc-per-node={n}", job)["model"]["sha256"] for n in (1, 2, 4)}
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_another_seed_gives_other_weights(self):
        job = self.write("job.yaml", harness.synthetic_job())
        one = self.train("--nproc-per-node=2", job)
        other = self.train("--nproc-per-node=2", "--set", "train.seed=4", job)
        self.assertNotEqual(one["model"]["sha256"], other["model"]["sha256"])

    def test_the_run_leaves_its_folder(self):
        job = self.write("job.yaml", harness.synthetic_job())
        result = self.train("--nproc-per-node=3", job)
        model = result["model"]["path"]
        run = os.path.dirname(os.path.dirname(model))
        self.assertTrue(os.path.isfile(model))
        self.assertTrue(os.path.isfile(os.path.join(run, "model", "config.json")))
        for rank in range(3):
            self.assertTrue(os.path.isfile(os.path.join(run, "logs", f"{rank}.log")))
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        steps = [line["step"] for line in lines if line["kind"] == "step"]
        self.assertEqual(steps, list(range(1, 21)))
        evals = [line for line in lines if line["kind"] == "eval"]
        self.assertEqual(evals[-1]["accuracy"], result["eval"]["accuracy"])
        # Every shard of every step once in the ledger.
        with open(os.path.join(run, "ledger.bin"), "rb") as file:
            ledger = file.read()
        keys = {(int.from_bytes(ledger[i : i + 8], "little"), int.from_bytes(ledger[i + 8 : i + 12], "little"))
                for i in range(0, len(ledger), 24)}
        self.assertEqual(len(ledger) // 24, 20 * 4)
        self.assertEqual(keys, {(step, shard) for step in range(1, 21) for shard in range(4)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
