#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time of a step in bf16 beside fp32, model by model, on one thread of a CPU.

Pairs of runs in turn, each of bench_model with few and with more steps; what the more take is the steps' own, without
the start. Processor time in user mode leaves out other processes, though not what they do to caches and clocks.
The aim is a ratio of 0.95, and 0.85 for models that are mostly convolutions (docs/adr/0039).
"""
import os
import resource
import subprocess

from common import BIN, machine, note, parser, report, summary, text

# name, arguments, few steps, more steps, aim
CASES = [("MLP, batch 64", ["mlp"], 200, 3000, 0.95), ("CNN, batch 64", ["cnn"], 10, 110, 0.85),
         ("ResNet-18, batch 64", ["resnet18"], 1, 3, 0.85), ("BERT-mini, batch 16", ["bert"], 1, 6, 0.95),
         ("GPT 6 x 384, batch 8", ["gpt"], 1, 4, 0.95),
         ("ResNet-50, inference, batch 1", ["resnet50", "--inference", "--batch", "1"], 2, 22, 0.85),
         ("ResNet-50, inference, batch 32", ["resnet50", "--inference", "--batch", "32"], 1, 3, 0.85)]


def user_seconds(arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([os.path.join(BIN, "bench_model"), *arguments], check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def step(arguments, precision, few, more):
    """Seconds of a step; the first tenth of the steps, and at least one, warms up."""
    ran = {count: count + max(1, count // 10) for count in (few, more)}
    took = {count: user_seconds([*arguments, "--precision", precision, "--steps", str(count)]) for count in ran}
    return (took[more] - took[few]) / (ran[more] - ran[few])


def main():
    args = parser(__doc__.splitlines()[0], repetitions=4).parse_args()
    result, lines = {"machine": machine(1), "cases": {}}, []
    for label, arguments, few, more, aim in CASES:
        note(label)
        pairs = []
        for _ in range(args.repetitions):
            pairs.append([step(arguments, precision, few, more) * 1e3 for precision in ("fp32", "bf16")])
        case = {"fp32": summary([fp32 for fp32, _ in pairs]), "bf16": summary([bf16 for _, bf16 in pairs]),
                "ratio": summary([fp32 / bf16 for fp32, bf16 in pairs]), "aim": aim}
        result["cases"][label] = case
        lines += [(f"{label}: fp32", text(case["fp32"], " ms")), (f"{label}: bf16", text(case["bf16"], " ms")),
                  (f"{label}: speed of bf16 (aim {aim})", text(case["ratio"]))]
    report("bf16", args, result, lines)


if __name__ == "__main__":
    main()
