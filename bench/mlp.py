#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training speed of the MLP 784-256-10 on Fashion-MNIST, beside PyTorch.

The same work on both sides: batch 64 per rank, SGD with momentum 0.9, two ranks of one thread; time
of training alone, no start, evaluation or saving. The peer runs as DistributedDataParallel over gloo,
and as what is quickest for it here: one process with two threads and batch 128. All sides alternate in
one run, and each repetition starts only when two threads get two whole cores.
"""
import json

from common import (LAUNCHER, ROOT, fail, last_json, machine, note, parser, peer_python, report, run,
                    summary, text, wait_for_whole_cores)

RANKS = 2
PARAMETER_FLOP = 6 * (784 * 256 + 256 * 10)  # a sample: forward, and two products backward
# ... of which the gradient of the input is never needed.
SAMPLE_FLOP = PARAMETER_FLOP - 2 * 784 * 256


def ours(args):
    out, _ = run([LAUNCHER, f"--nproc-per-node={RANKS}", "-o", "json", "examples/bench-mlp.yaml"])
    result = last_json(out)
    if result.get("state") != "SUCCEEDED":
        fail(f"our run did not succeed: {json.dumps(result)}")
    return result


def peer(args, ranks, threads, batch):
    script = [f"{ROOT}/bench/peers/mlp_ddp.py", "--data", args.data, "--threads", str(threads),
              "--batch", str(batch), "--epochs", str(args.peer_epochs)]
    command = [peer_python()]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return last_json(run(command + script)[0])


def main():
    options = parser(__doc__.splitlines()[0], repetitions=5)
    options.add_argument("--data", default="/usr/share/datasets/fashion-mnist",
                         help="folder of the data set, for the peer")
    options.add_argument("--peer-epochs", type=int, default=1)
    args = options.parse_args()
    wait_for_whole_cores(RANKS)
    description = machine(RANKS)

    sides = {"ours": lambda: ours(args)}
    if not args.ours_only:
        peer_python()
        sides["ddp"] = lambda: peer(args, RANKS, 1, 64)
        sides["single"] = lambda: peer(args, 1, RANKS, 64 * RANKS)
    speeds = {name: [] for name in sides}
    rss = {name: [] for name in sides}
    for repetition in range(args.repetitions):
        for name, side in sides.items():
            wait_for_whole_cores(RANKS)
            result = side()
            speeds[name].append(result["samples_per_second"])
            rss[name].append(max(result["peak_rss_bytes"]))
            note(f"{repetition + 1}/{args.repetitions} {name}: {speeds[name][-1]:,.0f} samples/s")

    result = {"machine": description, "ranks": RANKS, "batch_per_rank": 64,
              "samples_per_second": {name: summary(v) for name, v in speeds.items()},
              "peak_rss_mb": {name: max(v) / 1e6 for name, v in rss.items()}}
    mine = result["samples_per_second"]["ours"]["median"]
    result["of_peak"] = mine * SAMPLE_FLOP / (description["gflops_all"] * 1e9)
    lines = [("ours, 2 workers x 1 thread, samples/s", text(result["samples_per_second"]["ours"])),
             ("  of the measured FMA peak", f"{100 * result['of_peak']:.0f} %"),
             ("  peak memory of a worker", f"{result['peak_rss_mb']['ours']:.0f} MB")]
    labels = {"ddp": "PyTorch DDP over gloo, 2 x 1 thread", "single": "PyTorch, one process, 2 threads"}
    result["ratio"] = {}
    for name, label in labels.items():
        if name in speeds:
            # Each repetition against the one beside it, so that a drift of the machine cancels.
            ratio = summary([a / b for a, b in zip(speeds["ours"], speeds[name])])
            result["ratio"][name] = ratio
            lines.append((label + ", samples/s", text(result["samples_per_second"][name])))
            lines.append(("  ours against it", text(ratio, " x")))
    report("mlp", args, result, lines)


if __name__ == "__main__":
    main()
