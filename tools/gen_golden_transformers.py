#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/{gpt,bert,bert_classifier}.txt: small transformers in PyTorch, by functions alone.

Each file holds the losses of 10 SGD steps and, before the first update, the gradient of every
parameter, under the names of Hugging Face's files. Weights and samples come from an integer hash
that tests/golden/transformer_test.cc computes too. Needs torch and numpy:
python3 tools/gen_golden_transformers.py
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F

from gen_golden_mlp import uniform

STEPS, BATCH, LENGTH, WIDTH, HEADS, LAYERS = 10, 3, 11, 16, 2, 2
TOKENS, PADDED, CLASSES = 61, 64, 5
LR, MOMENTUM, SMOOTHING = 0.05, 0.9, 0.1
DEPTH = WIDTH // HEADS


class Weights(dict):
    """Parameters in the order in which they are asked for first."""

    def get_or_make(self, name, *shape):
        if name not in self:
            count = int(np.prod(shape))
            values = (uniform(1 + len(self), count) * np.float32(2) - np.float32(1)) * np.float32(0.3)
            if name.endswith(".weight") and ("ln_" in name or "LayerNorm" in name):
                values = values + np.float32(1)
            self[name] = torch.from_numpy(values.reshape(shape)).requires_grad_()
        return self[name]


def linear(w, name, x, outputs, in_out=False):
    inputs = x.shape[-1]
    shape = (inputs, outputs) if in_out else (outputs, inputs)
    weight, bias = w.get_or_make(name + ".weight", *shape), w.get_or_make(name + ".bias", outputs)
    return x @ weight + bias if in_out else F.linear(x, weight, bias)


def norm(w, name, x, eps):
    weight, bias = w.get_or_make(name + ".weight", WIDTH), w.get_or_make(name + ".bias", WIDTH)
    return F.layer_norm(x, (WIDTH,), weight, bias, eps)


def attend(q, k, v, **how):
    def heads(t):
        return t.view(BATCH, LENGTH, HEADS, DEPTH).transpose(1, 2)

    y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **how)
    return y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


def gpt(w, batch):
    wte = w.get_or_make("transformer.wte.weight", PADDED, WIDTH)
    wpe = w.get_or_make("transformer.wpe.weight", LENGTH, WIDTH)
    x = wte[batch["tokens"]] + wpe
    for layer in range(LAYERS):
        h = f"transformer.h.{layer}."
        y = linear(w, h + "attn.c_attn", norm(w, h + "ln_1", x, 1e-5), 3 * WIDTH, True)
        y = attend(*y.split(WIDTH, -1), is_causal=True)
        x = x + linear(w, h + "attn.c_proj", y, WIDTH, True)
        y = linear(w, h + "mlp.c_fc", norm(w, h + "ln_2", x, 1e-5), 4 * WIDTH, True)
        x = x + linear(w, h + "mlp.c_proj", F.gelu(y, approximate="tanh"), WIDTH, True)
    x = norm(w, "transformer.ln_f", x, 1e-5)
    return (x @ wte.T)[..., :TOKENS], batch["labels"]


def encode(w, batch, mask):
    e = "bert.embeddings."
    words = w.get_or_make(e + "word_embeddings.weight", PADDED, WIDTH)
    x = words[batch["tokens"]] + w.get_or_make(e + "position_embeddings.weight", LENGTH, WIDTH)
    if "segments" in batch:
        x = x + w.get_or_make(e + "token_type_embeddings.weight", 2, WIDTH)[batch["segments"]]
    x = norm(w, e + "LayerNorm", x, 1e-12)
    for layer in range(LAYERS):
        h = f"bert.encoder.layer.{layer}."
        q, k, v = (
            linear(w, h + "attention.self." + part, x, WIDTH) for part in ("query", "key", "value")
        )
        y = linear(w, h + "attention.output.dense", attend(q, k, v, attn_mask=mask), WIDTH)
        x = norm(w, h + "attention.output.LayerNorm", x + y, 1e-12)
        y = F.gelu(linear(w, h + "intermediate.dense", x, 4 * WIDTH))
        y = linear(w, h + "output.dense", y, WIDTH)
        x = norm(w, h + "output.LayerNorm", x + y, 1e-12)
    return x, words


def bert(w, batch):
    x, words = encode(w, batch, (batch["attention_mask"] != 0)[:, None, None, :])
    x = F.gelu(linear(w, "cls.predictions.transform.dense", x, WIDTH))
    x = norm(w, "cls.predictions.transform.LayerNorm", x, 1e-12)
    bias = w.get_or_make("cls.predictions.bias", PADDED)
    return (x @ words.T + bias)[..., :TOKENS], batch["labels"]


def bert_classifier(w, batch):
    mask = torch.arange(LENGTH)[None, :] < batch["lengths"][:, None]
    x, _ = encode(w, batch, mask[:, None, None, :])
    x = torch.tanh(linear(w, "bert.pooler.dense", x[:, 0], WIDTH))
    return linear(w, "classifier", x, CLASSES), batch["label"]


def numbers(site, count, below):
    return torch.from_numpy((uniform(site, count) * np.float32(below)).astype(np.int64))


def make_batch(step, ignored):
    site = 10000 + 10 * step
    places = BATCH * LENGTH
    labels = numbers(site + 1, places, TOKENS)
    labels[torch.from_numpy(uniform(site + 2, places) < np.float32(ignored))] = -1
    mask = torch.from_numpy(uniform(site + 3, places) < np.float32(0.8)).view(BATCH, LENGTH).long()
    mask[:, 0] = 1
    return {
        "tokens": numbers(site, places, TOKENS).view(BATCH, LENGTH),
        "labels": labels.view(BATCH, LENGTH),
        "attention_mask": mask,
        "segments": numbers(site + 4, places, 2).view(BATCH, LENGTH),
        "lengths": numbers(site + 5, BATCH, LENGTH) + 1,
        "label": numbers(site + 6, BATCH, CLASSES),
    }


def write(name, model, ignored, fields):
    weights, losses, lines = Weights(), [], []
    optimizer = None
    for step in range(STEPS):
        batch = {k: v for k, v in make_batch(step, ignored).items() if k in fields}
        logits, labels = model(weights, batch)
        loss = F.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            labels.reshape(-1),
            ignore_index=-1,
            label_smoothing=SMOOTHING,
        )
        if optimizer is None:
            optimizer = torch.optim.SGD(weights.values(), lr=LR, momentum=MOMENTUM)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for key, value in weights.items():
                values = " ".join(f"{g:.7g}" for g in value.grad.reshape(-1).tolist())
                lines.append(f"{key} {value.numel()} {values}\n")
        optimizer.step()
    text = f"losses {STEPS} " + " ".join(f"{loss:.9g}" for loss in losses) + "\n"
    path = pathlib.Path(__file__).parent.parent / "tests" / "golden" / f"{name}.txt"
    path.write_text(text + "".join(lines))


def main():
    torch.set_num_threads(1)
    write("gpt", gpt, 0.1, {"tokens", "labels"})
    write("bert", bert, 0.6, {"tokens", "segments", "attention_mask", "labels"})
    write("bert_classifier", bert_classifier, 0, {"tokens", "lengths", "label"})


if __name__ == "__main__":
    main()
