# SPDX-License-Identifier: Apache-2.0
"""Whether a GPT learns a text as PyTorch does: the same weights, data order and hyper-parameters.

    ./dev bench gpt_learning --text FILE [--steps 500]

Trains 6 layers of width 384 on windows of 256 bytes, 8 a step, with AdamW and clipping, here and in
PyTorch from the same first weights, and compares the losses step by step. 500 steps take some twenty
minutes of one core on each side; 100 show the beginning. Fails when the loss of the last step, or the
mean over the last tenth, is more than 1 % away.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

import common

TOLERANCE = 0.01
SEED = 7
JOB = """name: gpt-learning
resources: {{nproc_per_node: {workers}}}
elastic: {{min_workers: 1, max_workers: {workers}}}
failure_detection: 60s
train:
  model: {{gpt: {{layers: {layers}, heads: {layers}, width: {width}, dropout: 0}}}}
  data: {{text: {{path: {text}, length: {length}}}}}
  global_batch: {batch}
  shards: 2
  steps: {steps}
  optimizer: {{adamw: {{lr: {lr}, beta1: 0.9, beta2: 0.95, eps: 1.0e-8, weight_decay: 0.1}}}}
  clip_norm: 1.0
  eval: {{every: never}}
  seed: {seed}
"""


def train(args, steps, lr, folder):
    """Runs our side; returns the run's folder."""
    job = os.path.join(folder, "job.yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(**dict(vars(args), steps=steps, lr=lr, seed=SEED)))
    run_dir = os.path.join(folder, f"run-{steps}-{lr}")
    out, seconds = common.run([args.launcher, "-o", "json", "--run-dir", run_dir, job], timeout=args.timeout)
    if common.last_json(out)["state"] != "SUCCEEDED":
        common.fail(f"the run did not succeed: {out[-500:]}")
    return run_dir, seconds


def losses_of(run_dir):
    """The loss of each step that the run has recorded."""
    losses = {}
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as file:
        for line in map(json.loads, file):
            if line["kind"] == "step":
                losses[line["step"]] = line["loss"]
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="a file of text, a megabyte or so")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=7200, help="seconds for each side")
    parser.add_argument("--launcher", default=common.LAUNCHER)
    args = parser.parse_args()
    args.text = os.path.abspath(args.text)
    python = common.peer_python()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        # One step with a learning rate that moves nothing writes the first weights.
        first, _ = train(args, 1, 1e-30, folder)
        run_dir, ours_seconds = train(args, args.steps, args.lr, folder)
        ours = losses_of(run_dir)
        out, peer_seconds = common.run(
            [python, os.path.join(common.ROOT, "bench", "peers", "gpt_learning.py"),
             "--weights", os.path.join(first, "model", "model.safetensors"), "--text", args.text,
             "--steps", str(args.steps), "--length", str(args.length), "--batch", str(args.batch),
             "--heads", str(args.layers), "--lr", str(args.lr), "--seed", str(SEED)], timeout=args.timeout)
    peer = {int(step): loss for step, loss in common.last_json(out)["losses"].items()}
    steps = sorted(set(ours) & set(peer))
    for step in [s for s in steps if s in (1, 2, 5, 10) or s % max(1, args.steps // 10) == 0]:
        print(f"step {step:4d}  ours {ours[step]:.6f}  PyTorch {peer[step]:.6f}  {ours[step] / peer[step] - 1:+.4%}")
    tail = [s for s in steps if s > args.steps * 0.9]
    last = ours[args.steps] / peer[args.steps] - 1
    mean = statistics.fmean(ours[s] for s in tail) / statistics.fmean(peer[s] for s in tail) - 1
    print(json.dumps({"steps": args.steps, "ours": ours[args.steps], "peer": peer[args.steps],
                      "difference_last": last, "difference_last_tenth": mean,
                      "largest_difference": max(abs(ours[s] / peer[s] - 1) for s in steps),
                      "ours_seconds": round(ours_seconds, 1), "peer_seconds": round(peer_seconds, 1)}))
    if max(abs(last), abs(mean)) > TOLERANCE:
        common.fail(f"the losses are more than {TOLERANCE:.0%} apart")


if __name__ == "__main__":
    sys.exit(main())
