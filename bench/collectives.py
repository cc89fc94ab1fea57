#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared-memory collectives beside Open MPI's and gloo's, and beside what memory allows.

    ./dev bench collectives [--ranks N] [--shards S]

Ours, Open MPI (Debian: openmpi-bin, libopenmpi-dev; shared memory between ranks of one host) and gloo
(PyTorch) alternate; each time is that of the slowest rank, the median of five rounds of calls in a
row. The limit is local_sum: the same additions in memory that no other rank uses.
"""
import os
import shutil
import tempfile

from common import (LAUNCHER, ROOT, fail, last_json, machine, note, parser, peer_python, report, run,
                    summary, text)

SIZES = [4, 4096, 65536, 1 << 20, 16 << 20, 256 << 20]
SECONDS = "0.2"


def bench(ranks, shards, size, operations):
    out, _ = run([LAUNCHER, "bench", "collectives", f"--nproc-per-node={ranks}", "-o", "json",
                  f"--shards={shards}", f"--min-bytes={size}", f"--max-bytes={size}",
                  f"--seconds={SECONDS}", "--operations", operations])
    return {row["operation"]: row["microseconds"] for row in last_json(out)["rows"]}


def uneven():
    """Three ranks with four shards: one of them contributes two leaves that are one node of the tree."""
    return {size: bench(3, 4, size, "tree_reduce,local_sum") for size in SIZES}


def ours(args):
    rows = {}
    for size in SIZES:
        times = bench(args.ranks, args.shards, size,
                      "tree_reduce,all_reduce,reduce_scatter,all_gather,broadcast,local_sum")
        rows.update({(operation, size): time for operation, time in times.items()})
    return rows


def by_size(result):
    """The rows of a peer; sizes that were cut for the ranks count as what was asked for."""
    return {(row["operation"], min(SIZES, key=lambda s: abs(s - row["bytes"]))): row["microseconds"]
            for row in result["rows"]}


def mpi(args, program):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "-n",
               str(args.ranks), program, SECONDS, "all_reduce,reduce_scatter,all_gather,broadcast", *map(str, SIZES)]
    return by_size(last_json(run(command)[0]))


def gloo(args):
    command = [peer_python(), "-m", "torch.distributed.run", "--standalone",
               f"--nproc-per-node={args.ranks}", f"{ROOT}/bench/peers/gloo_collectives.py", SECONDS,
               "all_reduce,all_gather,broadcast", *map(str, SIZES)]
    return by_size(last_json(run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})[0]))


def main():
    options = parser(__doc__.splitlines()[0], repetitions=3)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--shards", type=int, help="of tree_reduce (one a rank)")
    args = options.parse_args()
    args.shards = args.shards or args.ranks
    sides = {"ours": lambda: ours(args)}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        if not args.ours_only:
            peer_python()
            if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
                fail("Open MPI is not installed: apt install openmpi-bin libopenmpi-dev, or --ours-only")
            program = os.path.join(folder, "mpi_collectives")
            run(["mpicc", "-O2", "-o", program, f"{ROOT}/bench/peers/mpi_collectives.c"])
            sides["Open MPI"] = lambda: mpi(args, program)
            sides["gloo"] = lambda: gloo(args)
        times = {name: [] for name in sides}
        for repetition in range(args.repetitions):
            for name, side in sides.items():
                times[name].append(side())
                note(f"{repetition + 1}/{args.repetitions} {name} done")
    result = {"machine": machine(len(os.sched_getaffinity(0))), "ranks": args.ranks,
              "shards": args.shards, "rows": []}
    lines = []
    for key in times["ours"][0]:
        operation, size = key
        mine = [t[key] for t in times["ours"]]
        row = {"operation": operation, "bytes": size, "microseconds": summary(mine)}
        lines.append((f"{operation} {size:,} B, us", text(row["microseconds"])))
        if operation == "tree_reduce":
            row["of_limit"] = summary([t["local_sum", size] / t[key] for t in times["ours"]])
            lines.append(("  of what memory allows", text(row["of_limit"])))
        # A tree_reduce is a reduce-scatter whose result stays with its owners.
        theirs = ("reduce_scatter", size) if operation == "tree_reduce" else key
        for name in [n for n in times if n != "ours" and theirs in times[n][0]]:
            row[name] = summary([t[theirs] for t in times[name]])
            row["ratio " + name] = summary([b[theirs] / a for a, b in zip(mine, times[name])])
            lines.append((f"  {name}, us", text(row[name])))
            lines.append((f"  ours is quicker than {name}", text(row["ratio " + name], " x")))
        result["rows"].append(row)
    times = [uneven() for _ in range(args.repetitions)]
    for size in SIZES:
        row = {"operation": "tree_reduce", "ranks": 3, "shards": 4, "bytes": size,
               "microseconds": summary([t[size]["tree_reduce"] for t in times]),
               "of_limit": summary([t[size]["local_sum"] / t[size]["tree_reduce"] for t in times])}
        lines.append((f"tree_reduce, 3 ranks with 4 shards, {size:,} B, us", text(row["microseconds"])))
        lines.append(("  of what memory allows", text(row["of_limit"])))
        result["rows"].append(row)
    report("collectives", args, result, lines)


if __name__ == "__main__":
    main()
