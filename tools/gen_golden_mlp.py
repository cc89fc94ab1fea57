#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/mlp_losses.txt: the losses of 100 steps of PyTorch on the MLP 784-256-10.

Initial weights and batches come from an integer hash that tests/golden/mlp_test.cc computes too, so
that the file holds the losses alone. Needs torch and numpy: python3 tools/gen_golden_mlp.py
"""

import math
import pathlib

import numpy as np
import torch

STEPS, BATCH, WIDTHS = 100, 64, (784, 256, 10)
LR, MOMENTUM = 0.05, 0.9


def mix(x):
    """splitmix64's finaliser; common/philox.h has it as MixBits."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(site, count):
    """`count` floats in [0, 1) with 24 bits: element i of the stream `site`."""
    bits = mix(np.uint64(site) * np.uint64(1 << 32) + np.arange(count, dtype=np.uint64))
    return ((bits & np.uint64(0xFFFFFF)).astype(np.float32)) * np.float32(2.0**-24)


def signed(site, shape, bound):
    values = (uniform(site, math.prod(shape)) * np.float32(2) - np.float32(1)) * np.float32(bound)
    return torch.from_numpy(values.reshape(shape))


def batch(step):
    labels = (uniform(1000 + step, BATCH) * np.float32(10)).astype(np.int64)
    templates = uniform(7, 10 * WIDTHS[0]).reshape(10, WIDTHS[0])
    noise = uniform(2000 + step, BATCH * WIDTHS[0]).reshape(BATCH, WIDTHS[0])
    inputs = templates[labels] * np.float32(0.25) + noise * np.float32(0.75)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def main():
    torch.set_num_threads(1)
    layers = []
    for i in range(2):
        linear = torch.nn.Linear(WIDTHS[i], WIDTHS[i + 1])
        bound = 1 / math.sqrt(WIDTHS[i])
        linear.weight.data = signed(1 + 2 * i, (WIDTHS[i + 1], WIDTHS[i]), bound)
        linear.bias.data = signed(2 + 2 * i, (WIDTHS[i + 1],), bound)
        layers += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: 0.5 * (1 + math.cos(math.pi * update / STEPS))
    )
    lines = [f"# torch {torch.__version__}, fp32: mean loss before each of {STEPS} updates\n"]
    for step in range(STEPS):
        inputs, labels = batch(step)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        lines.append(f"{loss.item():.9g}\n")
    path = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "mlp_losses.txt"
    path.write_text("".join(lines))


if __name__ == "__main__":
    main()
