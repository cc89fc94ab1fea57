# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/collectives.py: torch.distributed over gloo, timed as ours are. One line of JSON.

    torchrun ... gloo_collectives.py SECONDS OPERATION,.. BYTES..
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROUNDS, WARM_UPS = 5, 3


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    wanted = float(sys.argv[1]) / ROUNDS
    rows = []

    def timed(call, calls):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return max(seconds.item(), 1e-9)

    for name in sys.argv[2].split(","):
        for size in map(int, sys.argv[3:]):
            count = size // 4
            if name == "all_gather":
                count = max(count // ranks, 1) * ranks
            x = torch.zeros(count)
            parts = [torch.zeros(count // ranks) for _ in range(ranks)]
            call = {"all_reduce": lambda: dist.all_reduce(x),
                    "all_gather": lambda: dist.all_gather(parts, x[:count // ranks]),
                    "broadcast": lambda: dist.broadcast(x, 0)}[name]
            calls = int(min(max(wanted / timed(call, WARM_UPS), 1), 100000))
            times = [timed(call, calls) for _ in range(ROUNDS)]
            rows.append({"operation": name, "bytes": count * 4,
                         "microseconds": statistics.median(times) * 1e6,
                         "least_microseconds": min(times) * 1e6})
    if dist.get_rank() == 0:
        print(json.dumps({"rows": rows}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
