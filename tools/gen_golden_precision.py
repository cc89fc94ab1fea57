#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/precision.txt: 16-bit training in PyTorch, by its autocast and GradScaler.

A small GPT (that of gen_golden_transformers.py) under autocast in bfloat16 and float16, and in fp32
beside them: the losses of 10 SGD steps and the norm of each parameter's first gradient. Then the
scales of a GradScaler over steps some of which overflow, with the weight that its optimizer moves.
Needs torch and numpy: python3 tools/gen_golden_precision.py
"""

import pathlib

import torch
import torch.nn.functional as F

from gen_golden_transformers import LR, MOMENTUM, SMOOTHING, STEPS, Weights, gpt, make_batch

FP16_SCALE = 1024.0
OVERFLOWS = {0, 1, 7, 13, 14, 15}
SCALER_STEPS = 24


def train(dtype):
    """Losses, and the norm of each first gradient, unscaled."""
    weights, losses, norms = Weights(), [], []
    optimizer = None
    scale = FP16_SCALE if dtype == torch.float16 else 1.0
    for step in range(STEPS):
        batch = {k: v for k, v in make_batch(step, 0.1).items() if k in {"tokens", "labels"}}
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits, labels = gpt(weights, batch)
            loss = F.cross_entropy(
                logits.reshape(-1, logits.shape[-1]),
                labels.reshape(-1),
                ignore_index=-1,
                label_smoothing=SMOOTHING,
            )
        if optimizer is None:
            optimizer = torch.optim.SGD(weights.values(), lr=LR, momentum=MOMENTUM)
        optimizer.zero_grad()
        (loss * scale).backward()
        for weight in weights.values():
            weight.grad /= scale
        losses.append(loss.item())
        if step == 0:
            norms = [(name, weight.grad.norm().item()) for name, weight in weights.items()]
        optimizer.step()
    return losses, norms


def scaler_sequence():
    """(scale before the step, overflow, weight after it) of one weight with gradient 1."""
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3
    )
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.125)
    rows = []
    for step in range(SCALER_STEPS):
        scaled = scaler.scale(weight.sum())
        scale = scaler.get_scale()
        optimizer.zero_grad()
        scaled.backward()
        if step in OVERFLOWS:
            weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        rows.append((scale, int(step in OVERFLOWS), weight.item()))
    return rows


def main():
    torch.set_num_threads(1)
    lines = []
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        losses, norms = train(dtype)
        lines.append(f"{name}.losses {STEPS} " + " ".join(f"{loss:.9g}" for loss in losses) + "\n")
        lines += [f"{name}.{key} 1 {norm:.7g}\n" for key, norm in norms]
    rows = scaler_sequence()
    flat = " ".join(f"{value:.9g}" for row in rows for value in row)
    lines.append(f"scaler {3 * len(rows)} {flat}\n")
    path = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "precision.txt"
    path.write_text("".join(lines))


if __name__ == "__main__":
    main()
