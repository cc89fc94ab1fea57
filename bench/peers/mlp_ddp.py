# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/mlp.py: the same MLP and data in PyTorch, tuned as PyTorch's own guides advise.

Images are normalised once and stay in memory; batches are index_select of them (no DataLoader, which
is several times slower for data this small); the optimizer is the fused one; gradients are views of
DDP's buckets and the graph is static. Prints one line of JSON from rank 0.
"""
import argparse
import gzip
import json
import os
import resource
import time

import torch
import torch.distributed as dist
from torch import nn

MEAN, STD = 0.2860, 0.3530
WARMUP_STEPS = 50


def read_idx(path):
    """A tensor of bytes from an IDX file, gzipped or not."""
    opener = gzip.open if os.path.exists(path + ".gz") else open
    with opener(path + ".gz" if opener is gzip.open else path, "rb") as file:
        raw = bytearray(file.read())
    dimensions = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * dimensions).reshape(shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="of one rank")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    rank = 0
    if ranks > 1:
        dist.init_process_group("gloo")
        rank = dist.get_rank()

    images = read_idx(os.path.join(args.data, "train-images-idx3-ubyte")).flatten(1)
    images = (images.float() / 255 - MEAN) / STD
    labels = read_idx(os.path.join(args.data, "train-labels-idx1-ubyte")).long()

    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    model = net
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True,
                                                    static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    loss_of = nn.CrossEntropyLoss()

    def train(indices):
        optimizer.zero_grad()
        loss_of(model(images.index_select(0, indices)), labels.index_select(0, indices)).backward()
        optimizer.step()

    def order_of(epoch):
        """This rank's batches of an epoch, whole ones only."""
        generator = torch.Generator().manual_seed(epoch)
        mine = torch.randperm(len(images), generator=generator)[rank::ranks]
        return mine[:len(mine) // args.batch * args.batch].split(args.batch)

    for indices in order_of(0)[:WARMUP_STEPS]:
        train(indices)
    if ranks > 1:
        dist.barrier()
    start, steps = time.perf_counter(), 0
    for epoch in range(args.epochs):
        for indices in order_of(epoch):
            train(indices)
            steps += 1
    if ranks > 1:
        dist.barrier()
    seconds = time.perf_counter() - start
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"samples_per_second": steps * args.batch * ranks / seconds, "steps": steps,
                          "train_seconds": seconds, "peak_rss_bytes": [peak],
                          "torch": torch.__version__}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
