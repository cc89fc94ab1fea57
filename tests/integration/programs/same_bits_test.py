# SPDX-License-Identifier: Apache-2.0
"""The math belongs to the job: the same weights for any number of workers and threads, on any instruction set, and run
after run."""

import json
import os
import unittest

import harness


# Those that every CPU has on which a worker starts.
SETS = ("portable", "avx2")
MODELS = {
    "mlp": """
  model: {mlp: {hidden: [70, 33]}}
  data: {synthetic: {train_samples: 300, test_samples: 40}}
  optimizer: {muon: {lr: 1e-3}}
""",
    "resnet": """
  model: {resnet: {depth: 18, stem: cifar, width: 16}}
  data: {synthetic: {train_samples: 300, test_samples: 40, shape: [3, 16, 16], classes: 5}}
  optimizer: {sgd: {lr: 0.05, momentum: 0.9}}
  precision: bf16
""",
    "gpt": """
  model: {gpt: {layers: 2, heads: 2, width: 48, dropout: 0.1}}
  data: {tokens: {length: 33, vocab: 50, train_samples: 300, test_samples: 20}}
  optimizer: {adamw: {lr: 1e-3}}
  schedule: {cosine: {}}
  precision: bf16
""",
}


def job_of(model):
    return f"""name: {model}
resources: {{nproc_per_node: 1, device: cpu}}
train:{MODELS[model]}
  global_batch: 24
  shards: 4
  steps: 5
  eval: {{every: never}}
  seed: 3
"""


class SameBits(harness.ProgramTest):
    def test_any_instruction_set_and_any_number_of_threads_give_the_same_weights(self):
        for model in MODELS:
            job = self.write("job.yaml", job_of(model))
            hashes = {}
            for name in SETS:
                for workers, threads in ((1, 1), (2, 3), (3, 2)) if name == "avx2" else ((1, 1),):
                    result = self.train(f"--nproc-per-node={workers}", "--set", f"resources.cpus_per_proc={threads}",
                                        job, env={"LOCKSTEP_ISA": name}, seconds=120)
                    hashes[name, workers, threads] = result["model"]["sha256"]
            self.assertEqual(len(set(hashes.values())), 1, (model, hashes))

    def test_workers_of_one_job_may_have_other_instruction_sets(self):
        job = self.write("job.yaml", job_of("gpt"))
        alone = self.train("--nproc-per-node=1", job)
        endpoint = f"127.0.0.1:{harness.free_port()}"
        token = {"LOCKSTEP_TOKEN": "0123456789abcdef0123456789abcdef"}
        hosts = [self.start("launcher", "--nnodes=2", f"--rdzv-endpoint={endpoint}", f"--node-rank={rank}", "-o", "json",
                            job, env=dict(token, LOCKSTEP_ISA=name)) for rank, name in enumerate(SETS)]
        code, out, err = self.finish(hosts[0], 120)
        other, _, said = self.finish(hosts[1], 60)
        self.assertEqual((code, other), (0, 0), f"host 0:\n{err}\nhost 1:\n{said}")
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], alone["model"]["sha256"])

    def test_kernels_are_chosen_once_by_measurement(self):
        doctor = lambda **env: json.loads(self.launch("doctor", "-o", "json", env=env)[1])["kernels"]  # noqa: E731
        first = doctor()
        self.assertEqual(first["why"], "measured")
        works = {choice["work"]: choice for choice in first["chosen"]}
        for work in ("rows", "images", "products", "bf16 products", "attention", "bf16 convolutions"):
            times = works[work]["microseconds"]
            self.assertGreaterEqual(set(times), set(SETS))
            self.assertLessEqual(times[works[work]["set"]], 1.06 * min(times.values()), work)
        again = doctor()
        self.assertIn("as measured before", again["why"])
        self.assertEqual([c["set"] for c in again["chosen"]], [c["set"] for c in first["chosen"]])
        self.assertIn("products: ", self.launch("doctor")[1])
        forced = doctor(LOCKSTEP_ISA="portable")
        self.assertEqual((forced["why"], forced["chosen"][0]),
                         ("LOCKSTEP_ISA", {"work": "rows", "set": "portable", "microseconds": {}}))

    def test_a_choice_that_is_damaged_or_wrong_changes_no_bit(self):
        job = self.write("job.yaml", job_of("gpt"))
        expected = self.train("--nproc-per-node=1", job)["model"]["sha256"]
        kept = os.path.join(self.dir, "cache", "lockstep", "cpu-kernels.tsv")
        with open(kept, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("bf16 products\t", text)
        for other in (text[:len(text) // 3], text.replace("portable=", "portable=0.0")):
            with open(kept, "w", encoding="utf-8") as file:
                file.write(other)
            self.assertEqual(self.train("--nproc-per-node=2", job)["model"]["sha256"], expected)

    def test_a_set_that_is_none_is_refused(self):
        job = self.write("job.yaml", job_of("mlp"))
        code, _, err = self.launch(job, env={"LOCKSTEP_ISA": "sse2"})
        self.assertNotEqual(code, 0)
        self.assertIn("LOCKSTEP_ISA: no instruction set 'sse2'", err)

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
