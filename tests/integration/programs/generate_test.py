# SPDX-License-Identifier: Apache-2.0
"""`generate`, and the other verbs on models of text and tokens, on averages and best weights."""

import json
import os
import shutil
import unittest

import harness
import json_tables

TEXT_JOB = """name: text
resources: {nproc_per_node: 2, device: cpu}
train:
  model: {gpt: {layers: 1, heads: 2, width: 32, dropout: 0, vocab: 320}}
  data: {text: {path: alphabet, length: 12}}
  global_batch: 16
  shards: 2
  steps: 120
  optimizer: {adamw: {lr: 0.01}}
  ema: {decay: 0.9}
  best: {metric: accuracy}
  eval: {every: 60 steps, block: 8}
  seed: 2
"""
LETTERS = "abcdefgh\n"


class Generate(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("alphabet", LETTERS * 300)

    def text_model(self):
        result = self.train(self.write("job.yaml", TEXT_JOB))
        return os.path.join(self.dir, os.path.dirname(result["model"]["path"])), result

    def generate(self, model, *arguments):
        # A text of bytes need not be one of characters.
        code, out, err = self.launch("generate", model, *arguments, errors="replace")
        self.assertEqual(code, 0, err)
        return out, err

    def test_another_runs_weights_are_not_beside_the_model(self):
        path = self.write("job.yaml", TEXT_JOB.replace("steps: 120", "steps: 4").replace("every: 60", "every: 2"))
        model = os.path.join(self.dir, "run/model")

        def run(*arguments):
            self.train("--run-dir=run", *arguments, path)
            return sorted(name for name in os.listdir(model) if name.endswith(".safetensors"))
        self.assertEqual(run(), ["best.safetensors", "ema.safetensors", "model.safetensors"])
        self.assertEqual(run("--set", "train.best=null"), ["ema.safetensors", "model.safetensors"])
        self.assertEqual(run(), ["best.safetensors", "ema.safetensors", "model.safetensors"])
        self.assertEqual(run("--set", "train.ema=null"), ["best.safetensors", "model.safetensors"])

    def test_a_text_is_gone_on_with(self):
        model, result = self.text_model()
        # Far beyond the twelve positions that the model has.
        out, err = self.generate(model, "--prompt=cde", "--tokens=60", "--temperature=0")
        self.assertEqual(out, (LETTERS * 8)[2:2 + 63].rstrip("\n") + "\n")
        self.assertIn("60 tokens in", err)
        self.assertEqual(self.generate(model, "--prompt=cde", "--tokens=60", "--temperature=0", "-q")[1], "")
        self.assertEqual(self.generate(model, "--prompt=abc", "--tokens=0")[0], "abc\n")
        # Without a prompt a line begins.
        self.assertTrue(self.generate(model, "--tokens=8", "--temperature=0")[0].startswith("abcdefgh"))
        # The averages and the best weights are models too.
        for name in ("ema.safetensors", "best.safetensors"):
            out, _ = self.generate(os.path.join(model, name), "--prompt=ef", "--tokens=4", "--temperature=0")
            self.assertRegex(out, r"(?s)^ef.{4,5}$")
        # Drawn texts are a function of the seed, whatever shows them and however many threads compute them.
        hot = ("--prompt=a", "--tokens=40", "--temperature=3", "--top-k=50")
        text, _ = self.generate(model, *hot)
        answer = json.loads(self.generate(model, *hot, "-o", "json", "--threads=2")[0])
        tables = json_tables.JsonTables(self)
        tables.check("launcher generate", answer)
        tables.check_all_written()
        self.assertEqual(len(answer["tokens"]), 40)
        self.assertEqual(answer["prompt"], "a")
        self.assertTrue(text.encode(errors="replace").startswith(b"a"))
        self.assertEqual(bytes(answer["tokens"]).decode(errors="replace").rstrip("\n"), text[1:].rstrip("\n"))
        other = json.loads(self.generate(model, *hot, "-o", "json", "--seed=1")[0])
        self.assertNotEqual(answer["tokens"], other["tokens"])

    def test_it_ends_with_who_asks(self):
        model, _ = self.text_model()
        child = self.start("launcher", "generate", model, "--tokens=1000000000", "--seed=1", errors="replace")
        self.assertTrue(child.stdout.read(1), "it is under way")
        child.terminate()
        self.finish(child)
        self.assert_nothing_left()

    def test_a_padded_table_predicts_and_evaluates_alike(self):
        model, result = self.text_model()
        for name, key in (("model.safetensors", "eval"), ("ema.safetensors", "ema")):
            code, out, err = self.launch("eval", os.path.join(model, name), "-o", "json")
            self.assertEqual(code, 0, err)
            answer = json.loads(out)
            self.assertGreater(answer["accuracy"], 0.5)
            code, out, err = self.launch("predict", os.path.join(model, name))
            self.assertEqual(code, 0, err)
            labels = [json.loads(line)["label"] for line in out.splitlines()]
            # The test split is the end of the text; its windows follow one another.
            windows = (len(LETTERS) * 300 - 1) // 12
            first = (windows - windows // 10) * 12
            text = (LETTERS * 300).encode()
            right = sum(label == text[first + 1 + i] for i, label in enumerate(labels))
            self.assertEqual(len(labels), windows // 10 * 12)
            self.assertAlmostEqual(right / len(labels), answer["accuracy"], places=12)

    def test_models_of_tokens_speak_in_numbers(self):
        job = TEXT_JOB.replace("text: {path: alphabet, length: 12}", "tokens: {length: 8, vocab: 50, train_samples: 64, test_samples: 8}")
        model = os.path.dirname(self.train(self.write("job.yaml", job.replace("steps: 120", "steps: 2")))["model"]["path"])
        out, _ = self.generate(model, "--prompt=3 14,15", "--tokens=5")
        numbers = [int(word) for word in out.split()]
        self.assertEqual(numbers[:3], [3, 14, 15])
        self.assertEqual(len(numbers), 8)
        self.assertTrue(all(0 <= number < 50 for number in numbers))
        answer = json.loads(self.generate(model, "--prompt=3 14,15", "--tokens=5", "-o", "json")[0])
        self.assertEqual(answer["tokens"], numbers[3:])
        self.assertNotIn("text", answer)
        for prompt, word in (("hello", "'hello' is not a number"), ("50", "from 0 to 49"), (" ", "at least one")):
            code, out, err = self.launch("generate", model, f"--prompt={prompt}")
            self.assertEqual(code, 3, err)
            self.assertIn(word, err)

    def test_what_does_not_generate_says_so(self):
        model = os.path.dirname(self.train(self.write("job.yaml", harness.synthetic_job(nproc=1)))["model"]["path"])
        code, out, err = self.launch("generate", model, "-o", "json")
        self.assertEqual(code, 3)
        self.assertIn("does not generate", err)
        self.assertFalse(json.loads(out)["ok"])
        code, out, err = self.launch("generate", "nowhere")
        self.assertEqual(code, 1)
        self.assertIn("config.json", err)
        code, out, err = self.launch("generate", "job.yaml")
        self.assertEqual(code, 3)
        self.assertIn("is a job file", err)

    def test_averages_and_best_weights_of_batch_norm_models_evaluate_as_in_training(self):
        job = harness.synthetic_job(steps=12, nproc=2).replace("mlp: {hidden: [32]}", "cnn: {channels: [4], batch_norm: true}")
        job = job.replace("features: 40", "shape: [2, 6, 6]") + (
            "  ema: {decay: 0.8}\n  best: {metric: loss}\n  eval: {every: 4 steps, block: 64}\n")
        result = self.train(self.write("job.yaml", job))
        model = os.path.dirname(result["model"]["path"])
        run = os.path.dirname(os.path.join(self.dir, model))
        with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
            evals = [line for line in map(json.loads, file) if line["kind"] == "eval"]
        best = min(evals, key=lambda line: line["loss"])
        for name, loss in (("model", evals[-1]["loss"]), ("ema", evals[-1]["ema"]["loss"]), ("best", best["loss"])):
            code, out, err = self.launch("eval", os.path.join(model, name + ".safetensors"), "-o", "json")
            self.assertEqual(code, 0, err)
            self.assertAlmostEqual(json.loads(out)["loss"], loss, 7, name)  # the record has nine digits
            if name == "model":
                self.assertEqual(json.loads(out)["loss"], result["eval"]["loss"])

    def test_models_and_data_of_other_kinds_are_told_apart(self):
        text, _ = self.text_model()
        image = os.path.dirname(self.train(self.write("i.yaml", harness.synthetic_job(nproc=1)))["model"]["path"])
        for verb, model, data in (("eval", text, "i.yaml"), ("predict", image, "job.yaml")):
            code, out, err = self.launch(verb, model, "--data", data)
            self.assertEqual(code, 3, out)
            self.assertIn("the model takes samples of", err)
        # Another model's weights under this config, a cut file, and one of noise.
        mixed = os.path.join(self.dir, "mixed")
        shutil.copytree(os.path.join(self.dir, image), mixed)
        shutil.copy(os.path.join(text, "model.safetensors"), mixed)
        code, out, err = self.launch("eval", mixed)
        self.assertEqual(code, 1)
        self.assertIn("has no tensor", err)
        for data, word in ((b"\x10\0\0\0\0\0\0\0{", "model.safetensors"), (b"noise" * 100, "model.safetensors")):
            with open(os.path.join(mixed, "model.safetensors"), "wb") as file:
                file.write(data)
            code, out, err = self.launch("predict", mixed)
            self.assertEqual(code, 1)
            self.assertIn(word, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
