#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a checkpoint of GPT-2 124M with AdamW (1.5 GB) holds training, and when it is durable.

Ours: examples' GPT-2 on made tokens, one worker with one thread, a checkpoint after steps 13 and 26 of 30.
"held" is what the steps waited for the copy, as the worker's log says it, "durable" the time from the
boundary to the checkpoint's name. The peer, in turn in the same run: PyTorch's
torch.distributed.checkpoint.async_save of a state of the same size, with its default stager and with
the plain one; "held" until the state is staged. First and second save of a process are told apart,
since the first finds no memory ready. LOCKSTEP_BENCH_DIR names the disk (default: the temporary folder).
"""
import os
import re
import shutil
import tempfile

from common import (LAUNCHER, ROOT, last_json, machine, note, parser, peer_python, report, run,
                    summary, text)

JOB = """name: save
resources: {{nproc_per_node: {ranks}, device: cpu}}
train:
  model: {{gpt: {{preset: gpt2, vocab: 50304, context: 1024, dropout: 0}}}}
  data: {{tokens: {{length: 32, train_samples: 1000, test_samples: 10}}}}
  global_batch: {ranks}
  shards: {ranks}
  steps: 30
  optimizer: {{adamw: {{lr: 0.0001}}}}
  eval: {{every: never}}
checkpoint: {{dir: {dir}, every: 13 steps, keep: 1, resume: never}}
"""
LINE = re.compile(r"saved the state after step (\d+) as .*: ([\d.]+) GiB, held the steps for ([\d.]+) ms, "
                  r"durable after ([\d.]+) s")


def ours(folder, ranks):
    """[{held, durable}] of the saves in the middle of a run, in seconds."""
    job = os.path.join(folder, "save.yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(ranks=ranks, dir=os.path.join(folder, "saved")))
    run_dir = os.path.join(folder, "run")
    run([LAUNCHER, "run", "-o", "json", "--run-dir", run_dir, job], timeout=300,
        env={**os.environ, "LOCKSTEP_LOG": "debug"})
    with open(os.path.join(run_dir, "logs", "0.log"), encoding="utf-8") as file:
        found = LINE.findall(file.read())
    shutil.rmtree(run_dir)
    shutil.rmtree(os.path.join(folder, "saved"))
    return [{"held": float(held) / 1e3, "durable": float(durable)}
            for step, _, held, durable in found if int(step) < 30]


def peer(folder, *options):
    return last_json(run([peer_python(), f"{ROOT}/bench/peers/save_gpt2.py", "--folder", folder,
                          *options])[0])["saves"]


def main():
    options = parser(__doc__.splitlines()[0], repetitions=3)
    options.add_argument("--ranks", type=int, default=1)
    args = options.parse_args()
    description = machine(len(os.sched_getaffinity(0)))
    sides = {"lockstep": lambda folder: ours(folder, args.ranks)}
    if not args.ours_only:
        sides["DCP async_save"] = peer
        sides["DCP async_save, plain stager"] = lambda folder: peer(folder, "--plain")
    seconds = {}
    for repetition in range(args.repetitions):
        for name, measure in sides.items():
            folder = tempfile.mkdtemp(dir=os.environ.get("LOCKSTEP_BENCH_DIR"))
            try:
                for place, save in zip(("first", "second"), measure(folder)):
                    for what, value in save.items():
                        seconds.setdefault(f"{name}: {place} save, {what}", []).append(value)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        note(f"{repetition + 1}/{args.repetitions} "
             + ", ".join(f"{name} {v[-1]:.3f} s" for name, v in seconds.items()))
    result = {"machine": description, "seconds": {name: summary(v) for name, v in seconds.items()}}
    report("checkpoint", args, result,
           [(name, text(value, " s")) for name, value in result["seconds"].items()])


if __name__ == "__main__":
    main()
