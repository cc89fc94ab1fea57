#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of a step between two hosts, with and without moving gradients while later ones are computed.

    ./dev bench overlap [--rates 1gbit,10gbit,none] [--hidden 1024,1024,1024] [--steps 30]

Two hosts are network namespaces of this machine joined by a veth pair, each with one worker, which needs
root and iproute2; what a host sends goes at the rate (`none`: as fast as it goes). A multilayer perceptron
trains with LOCKSTEP_OVERLAP unset and 0 in turn; the first of a pair changes with each. A time is the mean
of a run's steps. Both hosts share the processors, so what either computes the other lacks.
"""
import os
import shutil
import subprocess
import sys
import tempfile

from common import LAUNCHER, fail, last_json, machine, note, parser, report, summary, text
from hosts import ADDRESSES, two_hosts, within

PORT = 29541
JOB = """name: overlap
resources: {{nproc_per_node: 1, device: cpu}}
train:
  model: {{mlp: {{hidden: [{hidden}]}}}}
  data: {{synthetic: {{train_samples: 4096, test_samples: 64, features: 784, classes: 10}}}}
  global_batch: {batch}
  shards: 2
  steps: {steps}
  optimizer: {{sgd: {{lr: 0.01, momentum: 0.9}}}}
  eval: {{every: never}}
  seed: 3
restart: {{max_restarts: 0}}
failure_detection: 60s
"""
SIDES = {"overlapped": None, "at the end": "0"}


def train(names, path, folder, overlap):
    """(seconds of a step, the model's sha256)."""
    env = {**os.environ, "LOCKSTEP_TOKEN": "a-token-for-a-benchmark-alone"}
    env.pop("LOCKSTEP_OVERLAP", None)
    if overlap is not None:
        env["LOCKSTEP_OVERLAP"] = overlap
    children = []
    try:
        for rank in (1, 0):
            command = [LAUNCHER, "--nnodes=2", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", f"--node-rank={rank}",
                       "-o", "json", path]
            children.append(subprocess.Popen(within(names[rank]) + command, cwd=folder, env=env, text=True,
                                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE))
        out, err = children[1].communicate(timeout=300)
        if children[1].returncode != 0:
            fail(f"a run failed:\n{err[-2000:]}")
        children[0].communicate(timeout=60)
    finally:
        for child in children:
            child.kill()
            child.wait()
    result = last_json(out)
    return result["train_seconds"] / result["steps"], result["model"]["sha256"]


def pairs(args, rate, folder):
    path = os.path.join(folder, "job.yaml")
    times, models = {name: [] for name in SIDES}, set()
    with two_hosts(None if rate == "none" else rate) as names:
        for number in range(args.repetitions):
            order = list(SIDES) if number % 2 == 0 else list(reversed(SIDES))
            for name in order:
                seconds, model = train(names, path, folder, SIDES[name])
                times[name].append(seconds * 1e3)
                models.add(model)
            note(f"{rate}: {number + 1}/{args.repetitions} pairs, overlapped {times['overlapped'][-1]:.1f} ms, "
                 f"at the end {times['at the end'][-1]:.1f} ms")
    if len(models) != 1:
        fail(f"the models differ: {models}")
    return times


def main():
    options = parser(__doc__.splitlines()[0], repetitions=5)
    options.add_argument("--rates", default="1gbit,10gbit")
    options.add_argument("--hidden", default="1024,1024,1024")
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--steps", type=int, default=30)
    args = options.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        print("bench overlap: SKIPPED: it needs root and iproute2 (apt install iproute2)", file=sys.stderr)
        return
    rows, lines = [], []
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        with open(os.path.join(folder, "job.yaml"), "w", encoding="utf-8") as out:
            out.write(JOB.format(hidden=args.hidden, batch=args.batch, steps=args.steps))
        for rate in args.rates.split(","):
            times = pairs(args, rate, folder)
            ratio = summary([a / b for a, b in zip(times["overlapped"], times["at the end"])])
            rows.append({"rate": rate, "milliseconds": {n: summary(t) for n, t in times.items()}, "ratio": ratio})
            for name, values in times.items():
                lines.append((f"{rate}, {name}, ms a step", text(summary(values))))
            lines.append(("  overlapped in the other's time", text(ratio, " x")))
    result = {"machine": machine(len(os.sched_getaffinity(0))), "hidden": args.hidden, "batch": args.batch,
              "steps": args.steps, "load": os.getloadavg()[0], "rows": rows}
    report("overlap", args, result, lines)


if __name__ == "__main__":
    main()
