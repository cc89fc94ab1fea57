# SPDX-License-Identifier: Apache-2.0
"""A script that makes its ranks itself, by mp.spawn, as one rank of the launcher."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, world, address):
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=world)
    total = torch.ones(3) * (rank + 1)
    dist.all_reduce(total)
    assert total[0].item() == world * (world + 1) / 2
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(2, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"), nprocs=2)
    print("DONE")
