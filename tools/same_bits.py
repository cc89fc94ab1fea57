#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hash of each example, shortened, in each precision, on each instruction set that this CPU has, with several
numbers of threads and workers: docs/results/same_bits.md is what it prints.

    tools/same_bits.py [--bin FOLDER] [--steps N] [NAME..]

Exits with 1 where two hashes of one row differ.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = ("fashion-mnist", "fashion-cnn", "resnet18", "gpt-tiny", "bert-tiny")
PRECISIONS = ("fp32", "bf16")
# (workers, threads): of the CPU's best set all of them, of the others the first two.
PLACES = ((1, 1), (2, 3), (1, 2), (1, 5), (2, 1), (3, 1), (4, 2))
SETS = ("portable", "avx2", "avx512", "avx512_bf16")


def shortened(name, steps, precision, folder):
    with open(os.path.join(ROOT, "examples", name + ".yaml"), encoding="utf-8") as file:
        text = re.sub(r"epochs: \d+", f"steps: {steps}", file.read())
    text = re.sub(r"(?m)^( +)(eval|precision):.*\n", "", text)
    text = re.sub(r"(?m)^elastic:.*\n", "", text)
    text = re.sub(r"shards: \d+", "shards: 4", text)
    text = re.sub(r"warmup_steps: \d+", "warmup_steps: 2", text)
    text += f"  precision: {precision}\n  eval: {{every: never}}\n"
    path = os.path.join(folder, f"{name}-{precision}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def hash_of(launcher, job, folder, isa, workers, threads, *more):
    command = [launcher, f"--nproc-per-node={workers}", "--set", f"resources.cpus_per_proc={threads}", "--set",
               "resources.device=cpu", *more, "-o", "json", job]
    made = subprocess.run(command, cwd=folder, env=dict(os.environ, LOCKSTEP_ISA=isa), capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        if "has no " + isa in made.stderr:
            return None
        sys.exit(f"{' '.join(command)}: {made.stderr}")
    return json.loads(made.stdout.strip().splitlines()[-1])["model"]["sha256"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("names", nargs="*", default=EXAMPLES)
    options = parser.parse_args()
    launcher = os.path.join(options.bin, "launcher")
    print(f"| example, {options.steps} steps | instruction sets | runs | sha256 |\n|---|---|---|---|")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            for precision in PRECISIONS:
                job = shortened(name, options.steps, precision, folder)
                hashes, sets = [], []
                for isa in SETS:
                    best = isa == "avx2"
                    for workers, threads in PLACES if best else PLACES[:2]:
                        found = hash_of(launcher, job, folder, isa, workers, threads)
                        if found is None:
                            break
                        hashes.append(found)
                        if isa not in sets:
                            sets.append(isa)
                if precision == "bf16":
                    hashes.append(hash_of(launcher, job, folder, sets[-1], 1, 1, "--set",
                                          "train.passes.bf16_pairs=true"))
                    sets.append("pairs")
                same = len(set(hashes)) == 1
                wrong += not same
                shown = f"`{hashes[0][:16]}`" if same else "DIFFER: " + ", ".join(sorted({h[:8] for h in hashes}))
                print(f"| {name}, {precision} | {', '.join(sets)} | {len(hashes)} | {shown} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
