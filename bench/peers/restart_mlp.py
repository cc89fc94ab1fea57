# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/recovery.py: a DDP loop under torchrun that resumes from its own checkpoint.

Rank 1 kills itself once at a given step. Every rank writes a line for each step: its number and the
time. A checkpoint is written every 10 steps, as a script that wants to lose little would.
"""
import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kill-at", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    checkpoint = os.path.join(args.folder, "checkpoint.pt")
    done = 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    killed = os.path.join(args.folder, "killed")
    loss_of = nn.CrossEntropyLoss()
    with open(os.path.join(args.folder, f"steps.{rank}"), "a", buffering=1, encoding="utf-8") as log:
        while done < args.steps:
            optimizer.zero_grad()
            loss_of(model(torch.randn(64, 784)), torch.randint(10, (64,))).backward()
            optimizer.step()
            done += 1
            log.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {done} {time.time():.6f}\n")
            if done % 10 == 0 and rank == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": done}, checkpoint + ".tmp")
                os.replace(checkpoint + ".tmp", checkpoint)
            if done == args.kill_at and rank == 1 and not os.path.exists(killed):
                with open(killed, "w", encoding="utf-8") as mark:
                    mark.write(f"{time.time():.6f}")
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
