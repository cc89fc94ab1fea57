# SPDX-License-Identifier: Apache-2.0
"""A usual DDP script: gloo, a small network, snapshots, elastic's record; it knows torchrun alone."""
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    snapshot, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert int(os.environ["LOCAL_RANK"]) < int(os.environ["LOCAL_WORLD_SIZE"])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(),
                                                        torch.nn.Linear(32, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = 0
    if os.path.exists(snapshot):
        saved = torch.load(snapshot)
        model.module.load_state_dict(saved["model"])
        begin = saved["step"]
    for step in range(begin, steps):
        generator = torch.Generator().manual_seed(step * world + rank)
        inputs = torch.randn(16, 20, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "step": step + 1}, snapshot + ".new")
            os.replace(snapshot + ".new", snapshot)
        dist.barrier()
        if os.environ.get("FAIL_AT") == str(step) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
            raise RuntimeError(f"step {step} went wrong")
    if rank == 0:
        print(f"DONE world={world} begin={begin} loss={loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
