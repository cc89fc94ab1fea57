#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of the models of the comparison, beside PyTorch.

Training with one worker of one thread, or with two workers (`--workers 2`; PyTorch's
DistributedDataParallel over gloo), and inference of ResNet-50 with two threads and batches of 1 and 32.
Both sides do the same work on data that is made before the clock starts: the same sizes, optimizer and
batch; a step is forward, backward and update. A name with `-bf16` trains or infers in bf16 on both
sides, PyTorch by autocast. They alternate, so that a drift of the machine meets
both; each repetition is a process of its own and gives the median of its steps (of two workers: the
mean). Of the peer's variants that MODELS names the quickest counts: CNNs train in both memory layouts, inference is
with channels last, eager and compiled with frozen weights, GPT in bf16 is eager and compiled; all else is eager.
`--variant` tries others, as `--variant=--compile` does. The FMA peak is measured before and after each repetition: one is
left out when two threads do not get two whole cores both times, or when one thread's peak changed meanwhile.

    ./dev bench models [NAME..]     mlp cnn resnet18 bert bert-mlm gpt resnet50-1 resnet50-32
                                    resnet18-bf16 gpt-bf16 resnet50-32-bf16

On a machine that is quiet for half a minute at a time: `-n 1 --add FILE NAME` keeps the repetition in
FILE and reports on all that are there; `-n 0 --add FILE` reports alone.
"""
import json
import os
import struct
import tempfile

from common import (BIN, LAUNCHER, MIN_SCALING_PER_CORE, ROOT, fail, last_json, machine, note, parser,
                    peak, peer_python, report, run, summary, text)

# The peaks of one thread before and after a repetition lie this near to each other.
MAX_DRIFT = 0.1

# name -> (our steps, the peer's steps, the peer's variants)
PLAIN, IMAGES = ("",), ("", "--channels-last")
COMPILED = ("", "--compile")
INFERENCE = ("--inference --channels-last", "--inference --channels-last --compile")
MODELS = {"mlp": (1000, 500, PLAIN), "cnn": (50, 30, IMAGES), "resnet18": (3, 2, IMAGES),
          "bert": (5, 5, PLAIN), "bert-mlm": (3, 2, PLAIN), "gpt": (3, 3, PLAIN),
          "resnet50-1": (20, 20, INFERENCE), "resnet50-32": (3, 3, INFERENCE),
          "resnet18-bf16": (3, 3, IMAGES), "gpt-bf16": (5, 5, COMPILED),
          "resnet50-32-bf16": (5, 5, INFERENCE)}

# What a job file says of the models that two workers train: model, data, samples a worker, optimizer.
SGD = "{sgd: {lr: 0.01, momentum: 0.9}}"
ADAMW = "{adamw: {lr: 1.0e-4}}"
JOBS = {
    "cnn": ("{cnn: {channels: [32, 64]}}", "{synthetic: {shape: [1, 28, 28]}}", 64, SGD),
    "resnet18": ("{resnet: {depth: 18, stem: cifar}}", "{synthetic: {shape: [3, 32, 32]}}", 64, SGD),
    "bert": ("{bert: {preset: bert-mini, context: 512}}",
             "{npy: {train_inputs: FOLDER/x.npy, train_labels: FOLDER/y.npy, vocab: 30522}}", 16, ADAMW),
    "bert-mlm": ("{bert: {preset: bert-mini, context: 512}}",
                 "{npy: {train_inputs: FOLDER/x.npy, train_labels: FOLDER/x.npy, vocab: 30522}}", 16,
                 ADAMW),
    "gpt": ("{gpt: {layers: 6, heads: 6, width: 384, dropout: 0}}",
            "{tokens: {length: 256, vocab: 256}}", 8, ADAMW)}
JOB = """name: bench-models
resources: {{nproc_per_node: {workers}}}
failure_detection: 60s
train:
  precision: {precision}
  model: {model}
  data: {data}
  global_batch: {batch}
  shards: {workers}
  steps: {steps}
  optimizer: {optimizer}
  eval: {{every: never}}
"""


def write_npy(path, kind, shape, values):
    """An array in NumPy's format; `kind` as in `<i8`, with its letter for struct in front."""
    letter, kind = kind.split()
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(struct.pack(f"<{len(values)}{letter}", *values))


def parts(name):
    """The model, the batch of an inference (else empty) and the precision that `name` means."""
    plain = name.removesuffix("-bf16")
    model, _, batch = plain.partition("-")
    precision = "fp32" if plain == name else "bf16"
    return (model, batch, precision) if batch.isdigit() else (plain, "", precision)


def ours(name, args):
    """One process of ours, or a run with several workers."""
    steps = args.steps or MODELS[name][0]
    model, inference, precision = parts(name)
    if args.workers == 1:
        more = ["--inference", "--threads", "2", "--batch", inference] if inference else []
        return last_json(run([os.path.join(BIN, "bench_model"), model, "--steps", str(steps), "--json",
                              "--precision", precision, *more])[0])
    model, data, batch, optimizer = JOBS[model]
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        if "FOLDER" in data:
            words = [(i * 2654435761 >> 7) % 30522 for i in range(256 * 128)]
            write_npy(f"{folder}/x.npy", "q <i8", (256, 128), words)
            write_npy(f"{folder}/y.npy", "q <i8", (256,), [i % 2 for i in range(256)])
        with open(f"{folder}/job.yaml", "w", encoding="utf-8") as file:
            file.write(JOB.format(workers=args.workers, precision=precision, model=model, steps=4 * steps,
                                  data=data.replace("FOLDER", folder),
                                  batch=batch * args.workers, optimizer=optimizer))
        result = last_json(run([LAUNCHER, "-o", "json", "--run-dir", f"{folder}/run",
                                f"{folder}/job.yaml"])[0])
    if result.get("state") != "SUCCEEDED":
        fail(f"our run did not succeed: {result}")
    return {"samples_per_second": result["samples_per_second"]}


def peer(name, variant, args):
    """One process of the peer, or its ranks under torchrun."""
    model, inference, precision = parts(name)
    command = [peer_python()]
    if args.workers > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.workers}"]
    command += [f"{ROOT}/bench/peers/models.py", model, "--steps", str(args.steps or MODELS[name][1]),
                *variant.split()]
    if precision == "bf16":
        command.append("--bf16")
    if inference:
        command += ["--batch", inference, "--threads", "2"]
    if args.steps:
        command += ["--warm", "1"]
    return last_json(run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})[0])


def is_whole(before, after, threads):
    """Whether the machine gave `threads` threads the same whole cores before and after."""
    drift = abs(before["gflops_one"] / after["gflops_one"] - 1)
    return drift <= MAX_DRIFT and (threads == 1 or all(
        bracket["scaling"] >= MIN_SCALING_PER_CORE * threads for bracket in (before, after)))


def repeat(name, args):
    """One repetition: both sides in turn. None when the machine was disturbed."""
    threads = 2 if args.workers > 1 or name.startswith("resnet50") else 1
    before = peak(threads)
    record = {"model": name, "workers": args.workers, "ours": ours(name, args), "peer": {}}
    note(f"{name} ours: {record['ours']['samples_per_second']:,.1f} samples/s")
    for variant in () if args.ours_only else args.variant or MODELS[name][2]:
        record["peer"][variant] = peer(name, variant, args)["samples_per_second"]
        note(f"{name} PyTorch {variant}: {record['peer'][variant]:,.1f} samples/s")
    after = peak(threads)
    record["gflops_one"] = [before["gflops_one"], after["gflops_one"]]
    record["scaling"] = [before["scaling"], after["scaling"]]
    if is_whole(before, after, threads):
        return record
    note(f"{name}: left out, the machine was disturbed: one thread's peak {record['gflops_one']}, "
         f"scaling {record['scaling']}")
    return None


def kept(args):
    """The repetitions of the file."""
    if args.add is None or not os.path.exists(args.add):
        return []
    with open(args.add, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measure(name, args):
    """All repetitions of one model."""
    records = [r for r in kept(args) if r["model"] == name and r["workers"] == args.workers]
    for _ in range(args.repetitions):
        record = repeat(name, args)
        if record is None:
            continue
        records.append(record)
        if args.add is not None:
            with open(args.add, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    return records


def summarise(name, records):
    """The result of one model, and its lines for people."""
    result = {"samples_per_second": summary([r["ours"]["samples_per_second"] for r in records]),
              "gflops_one": summary([g for r in records for g in r["gflops_one"]])}
    lines = [(f"{name}: ours, samples/s", text(result["samples_per_second"]))]
    shares = [r["ours"]["of_peak"] for r in records if "of_peak" in r["ours"]]
    if shares:
        result["of_peak"] = summary(shares)
        lines.append(("  of the FMA peak", text(result["of_peak"])))
    result["peer"] = {v: summary([r["peer"][v] for r in records if v in r["peer"]])
                      for v in sorted({v for r in records for v in r["peer"]})}
    if result["peer"]:
        best = max(result["peer"], key=lambda v: result["peer"][v]["median"])
        result["ratio"] = summary([r["ours"]["samples_per_second"] / r["peer"][best]
                                   for r in records if best in r["peer"]])
        lines += [(f"  PyTorch {variant.replace('--', '')}", text(result["peer"][variant]))
                  for variant in result["peer"]]
        lines.append(("  ours against its quickest", text(result["ratio"], " x")))
    return result, lines


def main():
    options = parser(__doc__.splitlines()[0], repetitions=3)
    options.add_argument("models", nargs="*", metavar="NAME")
    options.add_argument("--workers", type=int, choices=(1, 2), default=1)
    options.add_argument("--add", metavar="FILE", help="keep the repetitions there and report on all")
    options.add_argument("--steps", type=int, help="of each process of both sides; the peer warms up by one then")
    options.add_argument("--variant", action="append", metavar="FLAGS",
                         help="of the peer instead of all, such as --variant=--channels-last")
    args = options.parse_args()
    known = [name for name in MODELS if args.workers == 1 or parts(name)[0] in JOBS]
    names = args.models or known
    for name in names:
        if name not in known:
            fail(f"no such model with {args.workers} workers: {name}; use {' '.join(known)}", 2)
    if not args.ours_only:
        peer_python()
    result = {"machine": machine(len(os.sched_getaffinity(0))), "models": {}}
    lines = []
    for name in names:
        records = measure(name, args)
        if not records:
            note(f"{name}: no repetition was undisturbed")
            continue
        result["models"][name], more = summarise(name, records)
        lines += more
    report("models", args, result, lines)


if __name__ == "__main__":
    main()
