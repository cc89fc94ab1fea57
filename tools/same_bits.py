#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hash of each example, in all the ways that must not change it: docs/results/same_bits.md is what it prints.

    tools/same_bits.py [--bin FOLDER] [--other FOLDER].. [--steps N] [NAME..]
    tools/same_bits.py --whole [--bin FOLDER] [NAME..]

The first shortens the examples to a few steps and runs each in fp32 and bf16, in bf16 also with two micro-batches a
shard: on each instruction set that this CPU has, with several numbers of threads and workers, with a worker killed on
the way, with the optimizer's state divided (zero_stage), with recomputation, with workers of all these instruction sets
in one job, and with the programs of each other FOLDER, such as those of another compiler.
The second runs the examples as they are, those that state a hash or the named ones, and holds them to it.

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
# What a row's job says, beside its example.
ROWS = {"fp32": {"precision": "fp32"}, "bf16": {"precision": "bf16"},
        "bf16, accumulate 2": {"precision": "bf16", "accumulate": "2"}}
SETS = ("portable", "avx2", "avx512", "avx512_bf16")
# (workers, threads): of the best set that every machine has all of them, of the others the first two.
PLACES = ((1, 1), (2, 3), (1, 2), (1, 5), (2, 1), (3, 1), (4, 2))
STATED = re.compile(r"^# sha256 of the weights, on any CPU: ([0-9a-f]{64})$", re.M)


def source(name):
    with open(os.path.join(ROOT, "examples", name + ".yaml"), encoding="utf-8") as file:
        return file.read()


def shortened(name, steps, fields, folder):
    text = re.sub(r"epochs: \d+", f"steps: {steps}", source(name))
    text = re.sub(r"(?m)^( +)(eval|precision):.*\n", "", text)
    text = re.sub(r"(?m)^elastic:.*\n", "", text)
    text = re.sub(r"shards: \d+", "shards: 4", text)
    text = re.sub(r"warmup_steps: \d+", "warmup_steps: 2", text)
    text += "  eval: {every: never}\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items())
    path = os.path.join(folder, f"{name}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def hash_of(launcher, job, folder, isa="", more=(), worker=None):
    """The model's hash, or None where this CPU lacks the instruction set. Examples name data of the repository."""
    command = [launcher, *more, "--runs-dir", os.path.join(folder, "runs"), "-o", "json", job]
    environment = dict(os.environ, LOCKSTEP_ISA=isa)
    if worker:
        environment["LOCKSTEP_WORKER"] = worker
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        if "has no " + (isa or "?") in made.stderr:
            return None
        sys.exit(f"{' '.join(command)}: {made.stderr}")
    return json.loads(made.stdout.strip().splitlines()[-1])["model"]["sha256"]


def place(workers, threads):
    return (f"--nproc-per-node={workers}", "--set", f"resources.cpus_per_proc={threads}", "--set",
            "resources.device=cpu")


def ways(options, precision):
    """(what the way is called, launcher, instruction set, arguments)."""
    own = os.path.join(options.bin, "launcher")
    for isa in SETS:
        for workers, threads in PLACES if isa == "avx2" else PLACES[:2]:
            yield isa, own, isa, place(workers, threads)
    yield "zero", own, "", (*place(3, 1), "--set", "train.zero_stage=1")
    yield "recompute", own, "", (*place(2, 1), "--set", "train.recompute=blocks")
    yield "kill", own, "", ("chaos", "--kill", "rank:1@step:2", *place(3, 1))
    if precision == "bf16":
        yield "pairs", own, "", (*place(1, 1), "--set", "train.passes.bf16_pairs=true")
    for other in options.other:
        name = os.path.basename(os.path.dirname(os.path.abspath(other)))
        for isa in SETS:
            yield f"{name} {isa}", os.path.join(other, "launcher"), isa, place(2, 3)


def mixed_hash(options, job, folder, sets):
    """Of a job with one worker of each of these instruction sets, in the order in which they start."""
    with tempfile.TemporaryDirectory(dir=folder) as taken:
        worker = os.path.join(taken, "worker")
        with open(worker, "w", encoding="utf-8") as file:
            file.write(f"""#!/bin/sh
for set in {' '.join(sets)}; do
  mkdir {taken}/$set 2>/dev/null && LOCKSTEP_ISA=$set exec {os.path.abspath(options.bin)}/worker "$@"
done
""")
        os.chmod(worker, 0o755)
        made = hash_of(os.path.join(options.bin, "launcher"), job, folder, more=place(len(sets), 1), worker=worker)
        for name in sets:
            if not os.path.isdir(os.path.join(taken, name)):
                sys.exit(f"no worker had {name}")
        return made


def row(options, name, title, folder):
    job = shortened(name, options.steps, ROWS[title], folder)
    found, lacks = {}, set()
    for way, launcher, isa, more in ways(options, ROWS[title]["precision"]):
        if isa in lacks:
            continue
        made = hash_of(launcher, job, folder, isa, more)
        if made is None:
            lacks.add(isa)
        else:
            found.setdefault(way, []).append(made)
    sets = [isa for isa in SETS if isa in found]
    if len(sets) > 1:
        found["mixed"] = [mixed_hash(options, job, folder, sets)]
    hashes = [made for way in found.values() for made in way]
    same = len(set(hashes)) == 1
    shown = f"`{hashes[0][:16]}`" if same else f"DIFFER: { {way: sorted({h[:8] for h in f}) for way, f in found.items()} }"
    print(f"| {name}, {title} | {', '.join(found)} | {len(hashes)} | {shown} |", flush=True)
    return same


def whole(options, name, folder):
    stated = STATED.search(source(name))
    made = hash_of(os.path.join(options.bin, "launcher"), os.path.join(ROOT, "examples", name + ".yaml"), folder)
    same = stated is not None and stated[1] == made
    print(f"| {name} | `{made}` | {'as stated' if same else 'NOT as stated'} |", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"))
    parser.add_argument("--other", action="append", default=[], metavar="FOLDER", help="programs of another build")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--whole", action="store_true", help="the examples as they are, held to their stated hashes")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.whole:
            print("| example | sha256 | |\n|---|---|---|")
            names = options.names or [name for name in EXAMPLES if STATED.search(source(name))]
            same = [whole(options, name, folder) for name in names]
            return 0 if all(same) else 1
        print(f"| example, {options.steps} steps | ways | runs | sha256 |\n|---|---|---|---|")
        same = [row(options, name, title, folder) for name in options.names or EXAMPLES for title in ROWS]
        return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
