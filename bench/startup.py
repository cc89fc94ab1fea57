#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time from Enter to exit of a job that trains one step, beside torchrun.

Ours: the whole `launcher --nproc-per-node=4` of examples/one-step.yaml, and of one step on
Fashion-MNIST, which bounds the time to the first step from above (with the decoded images in the
user's cache and with an empty cache). The peer: torchrun with a script that only forms the group.
"""
import os
import tempfile

from common import (LAUNCHER, ROOT, machine, note, parser, peer_python, report, run, summary, text)

RANKS = 4


def one_step(environment=None):
    return run([LAUNCHER, f"--nproc-per-node={RANKS}", "examples/one-step.yaml"],
               env=environment)[1]


def fashion_mnist(environment=None):
    return run([LAUNCHER, f"--nproc-per-node={RANKS}", "--set", "train.steps=1", "--set",
                f"train.shards={RANKS}", "examples/bench-mlp.yaml"], env=environment)[1]


def empty_cache():
    """One step on Fashion-MNIST with nothing decoded yet."""
    with tempfile.TemporaryDirectory() as folder:
        return fashion_mnist({**os.environ, "XDG_CACHE_HOME": folder})


def torchrun():
    return run([peer_python(), "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={RANKS}", f"{ROOT}/bench/peers/noop.py"])[1]


def main():
    options = parser(__doc__.splitlines()[0], repetitions=10)
    options.add_argument("--peer-repetitions", type=int, default=3)
    args = options.parse_args()
    description = machine(len(os.sched_getaffinity(0)))
    one_step()  # programs and libraries into the page cache
    fashion_mnist()
    sides = {"one_step": one_step, "fashion_mnist": fashion_mnist,
             "fashion_mnist_empty_cache": empty_cache}
    if not args.ours_only:
        sides["torchrun"] = torchrun
    times = {name: [] for name in sides}
    for repetition in range(args.repetitions):
        for name, side in sides.items():
            if name != "torchrun" or repetition < args.peer_repetitions:
                times[name].append(side())
        note(f"{repetition + 1}/{args.repetitions} "
             + ", ".join(f"{name} {v[-1]:.3f} s" for name, v in times.items()))
    result = {"machine": description, "ranks": RANKS,
              "seconds": {name: summary(v) for name, v in times.items()}}
    labels = {"one_step": "one step, made data, 4 workers", "fashion_mnist": "one step, Fashion-MNIST",
              "fashion_mnist_empty_cache": "one step, Fashion-MNIST, empty cache",
              "torchrun": "torchrun, a script that does nothing"}
    lines = [(labels[name], text(result["seconds"][name], " s")) for name in sides]
    if "torchrun" in sides:
        ratio = summary([t / o for t, o in zip(times["torchrun"], times["one_step"])])
        result["ratio"] = ratio
        lines.append(("  ours is quicker by", text(ratio, " x")))
    report("startup", args, result, lines)


if __name__ == "__main__":
    main()
