# SPDX-License-Identifier: Apache-2.0
"""Every kind of model, with all that is random or summed switched on: the same bits for any number of
workers. And memory: what `plan` says is what a worker takes."""

import json
import os
import unittest

import harness

IMAGES = "cifar10: {path: cifar}, augment: {crop_padding: 2, flip: true}"
MODELS = {
    "mlp": ("mlp: {hidden: [24], dropout: 0.2}", IMAGES),
    "cnn": ("cnn: {channels: [4, 6], batch_norm: true, hidden: [16], dropout: 0.2}", IMAGES),
    "resnet": ("resnet: {depth: 18, stem: cifar, width: 2}", IMAGES),
    "layers": (
        "layers: {sequence: [conv: {channels: 4, kernel: 3, stride: 2}, batch_norm, silu, dropout: {rate: 0.2}, "
        "residual: {body: [conv: {channels: 4}, layer_norm, gelu]}, max_pool: {kernel: 3}, tanh, "
        "linear: {features: 12}, sigmoid, dropout, linear]}", IMAGES),
    "bert": ("bert: {preset: bert-tiny, layers: 1, heads: 2, width: 16, dropout: 0.2}",
             "text: {path: text, length: 24, masked: 0.3}"),
    "gpt": ("gpt: {layers: 2, heads: 2, width: 16, dropout: 0.2}", "text: {path: text, length: 24}"),
}


class Models(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.dir, "cifar"))
        for name, count in [(f"data_batch_{i}", 12) for i in range(1, 6)] + [("test_batch", 10)]:
            with open(os.path.join(self.dir, "cifar", name + ".bin"), "wb") as file:
                for k in range(count):
                    seed = k * 7 + len(name) + sum(name.encode())
                    file.write(bytes([seed % 10]) + bytes((seed * 31 + i * (seed % 5 + 3)) % 251 for i in range(3072)))
        self.write("text/words", " ".join(str(i * i * 7919) for i in range(1500)))

    def job(self, kind, shards=4, steps=3, extra=""):
        model, data = MODELS[kind]
        # Two micro-batches of two samples a shard; clipping and smoothing that change every step.
        return self.write("job.yaml", f"""name: {kind}
resources: {{nproc_per_node: 1, device: cpu}}
train:
  model: {{{model}}}
  data: {{{data}}}
  global_batch: {4 * shards}
  shards: {shards}
  accumulate: 2
  steps: {steps}
  optimizer: {{adamw: {{lr: 0.01}}}}
  clip_norm: 0.2
  label_smoothing: 0.1
  ema: {{decay: 0.9}}
  eval: {{every: never}}
  seed: 5
{extra}""")

    def sha256(self, job, workers, *arguments):
        return self.train(f"--nproc-per-node={workers}", *arguments, job)["model"]["sha256"]

    def check(self, kind):
        job = self.job(kind)
        hashes = {workers: self.sha256(job, workers) for workers in (1, 2, 3, 4)}
        self.assertEqual(len(set(hashes.values())), 1, (kind, hashes))
        for shards in (5, 6, 8):
            job = self.job(kind, shards)
            hashes = {workers: self.sha256(job, workers) for workers in (3, 5)}
            self.assertEqual(len(set(hashes.values())), 1, (kind, shards, hashes))

    def test_mlp(self):
        self.check("mlp")

    def test_cnn(self):
        self.check("cnn")

    def test_resnet(self):
        self.check("resnet")

    def test_layers(self):
        self.check("layers")

    def test_bert(self):
        self.check("bert")

    def test_gpt(self):
        self.check("gpt")

    def test_each_switch_changes_the_weights(self):
        """Else the tests above would prove nothing about them."""
        job = self.job("cnn")
        hashes = [self.sha256(job, 2)]
        for change in ("model.cnn.dropout=0", "data.augment.flip=false", "data.augment.crop_padding=0",
                       "model.cnn.batch_norm=false", "clip_norm=0", "label_smoothing=0", "accumulate=1"):
            hashes.append(self.sha256(job, 2, "--set", "train." + change))
        self.assertEqual(len(set(hashes)), len(hashes), hashes)

    def memory(self, job):
        """(what the plan promises, the largest peak of a worker), both in bytes."""
        code, out, err = self.launch("plan", "-o", "json", job)
        self.assertEqual(code, 0, err)
        promised = json.loads(out)["memory"]["total"]
        return promised, max(self.train(job)["peak_rss_bytes"])

    def test_a_worker_takes_what_the_plan_says(self):
        if harness.SANITIZED:
            self.skipTest("a sanitizer takes memory of its own")
        mlp = harness.synthetic_job(steps=3, nproc=1, shards=2, hidden="[2048, 2048]")
        gpt = (self.read_example("gpt-tiny.yaml").replace("path: LICENSE", "path: text")
               .replace("epochs: 30", "steps: 21").replace("nproc_per_node: 2", "nproc_per_node: 1"))
        # Its weights are twice as large in the model's file.
        pure = harness.synthetic_job(steps=3, nproc=1, shards=2, hidden="[4096, 4096]",
                                     train_extra="  precision: pure_bf16\n")
        for name, text in (("mlp", mlp), ("gpt", gpt), ("pure", pure)):
            promised, peak = self.memory(self.write(name + ".yaml", text))
            # The program, its libraries and their buffers are not the plan's.
            self.assertLess(peak, promised + 60 * 2**20, name)
            # Most of it is touched: the plan does not promise too much either.
            self.assertGreater(peak, 0.8 * promised, name)

    def read_example(self, name):
        path = os.path.join(os.path.dirname(__file__), "../../../examples", name)
        with open(path, encoding="utf-8") as file:
            return file.read()


if __name__ == "__main__":
    unittest.main(verbosity=2)
