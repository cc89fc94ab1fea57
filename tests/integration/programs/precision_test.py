# SPDX-License-Identifier: Apache-2.0
"""16-bit precisions and recomputation: the same weights for any number of workers."""

import json
import os
import unittest

import harness

MODELS = {
    "gpt": """
  model: {gpt: {layers: 2, heads: 2, width: 32, dropout: 0.1}}
  data: {tokens: {length: 16, vocab: 50, train_samples: 200, test_samples: 20}}
""",
    "cnn": """
  model: {cnn: {channels: [4, 8], batch_norm: true, hidden: [16]}}
  data: {synthetic: {train_samples: 200, test_samples: 40, shape: [1, 12, 12], classes: 5}}
""",
    "resnet": """
  model: {resnet: {depth: 18, stem: cifar, width: 8}}
  data: {synthetic: {train_samples: 200, test_samples: 40, shape: [4, 16, 16], classes: 5}}
""",
}


def job(model, precision, extra=""):
    return f"""name: {model}-{precision}
resources: {{nproc_per_node: 4, device: cpu}}
train:{MODELS[model]}
  global_batch: 24
  shards: 4
  accumulate: 2
  steps: 6
  optimizer: {{adamw: {{lr: 1e-3}}}}
  clip_norm: 1.0
  precision: {precision}
  seed: 3
{extra}"""


class Precision(harness.ProgramTest):
    def hashes(self, text, workers, *more):
        path = self.write("job.yaml", text)
        return {n: self.train(f"--nproc-per-node={n}", *more, path)["model"]["sha256"] for n in workers}

    def test_any_number_of_workers_gives_the_same_weights(self):
        for model in MODELS:
            seen = set()
            for precision in ("bf16", "fp16"):
                hashes = self.hashes(job(model, precision), (1, 2, 3, 4))
                self.assertEqual(len(set(hashes.values())), 1, (model, precision, hashes))
                seen |= set(hashes.values())
            self.assertEqual(len(seen), 2, "bf16 and fp16 give other weights")

    def test_ways_of_products_give_the_same_weights_with_any_workers_and_a_killed_one(self):
        # Each on every CPU, whatever its default there.
        for model, way, same in (("gpt", "train.fp8", False), ("gpt", "train.passes.bf16_pairs", True),
                                 ("resnet", "train.passes.bf16_pairs", True)):
            text = job(model, "bf16")
            without = self.hashes(text, (2,), "--set", f"{way}=false")[2]
            way += "=true"
            hashes = self.hashes(text, (1, 2, 3, 4), "--set", way)
            self.assertEqual(len(set(hashes.values())), 1, (way, hashes))
            self.assertEqual(hashes[2] == without, same, way)
            path = self.write("killed.yaml", text)
            code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:1@step:3", "--set", way, path)
            self.assertEqual(code, 0, err)
            result = json.loads(out.splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], hashes[1], way)
            self.assertGreater(result["generations"], 1, "nobody was killed")

    def test_recomputation_changes_no_bit(self):
        for precision in ("fp32", "bf16"):
            text = job("gpt", precision)
            kept = self.hashes(text, (2,))
            for mode in ("selective", "blocks"):
                again = self.hashes(text, (1, 2), "--set", f"train.recompute={mode}")
                self.assertEqual(set(kept.values()), set(again.values()), (precision, mode))

    def test_weights_in_16_bits_are_saved_as_fp32(self):
        hashes = self.hashes(job("gpt", "pure_bf16"), (1, 4))
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_metrics_show_scale_and_skips(self):
        extra = "  loss_scale: {init_scale: 1099511627776, growth_interval: 3}\n"
        path = self.write("job.yaml", job("gpt", "fp16", extra).replace("steps: 6", "steps: 40"))
        result = self.train("--nproc-per-node=2", path)
        run = os.path.dirname(os.path.dirname(result["model"]["path"]))
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            steps = [line for line in map(json.loads, file) if line["kind"] == "step"]
        self.assertEqual(steps[0]["loss_scale"], 2.0**40)
        self.assertTrue(steps[0]["skipped"])
        self.assertEqual(steps[1]["loss_scale"], 2.0**39)
        self.assertFalse(all(line["skipped"] for line in steps))
        for before, after in zip(steps, steps[1:]):
            if before["skipped"]:
                self.assertEqual(after["loss_scale"], before["loss_scale"] / 2)
            else:
                self.assertIn(after["loss_scale"], (before["loss_scale"], before["loss_scale"] * 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
