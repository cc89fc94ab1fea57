# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/models.py: PyTorch trains one of the models; prints one line of JSON.

Under torchrun the ranks train data-parallel over gloo. Each step has the same work as ours: the same
sizes, optimizer and batch per rank; its data is made once, before the clock starts. With --inference
it computes logits instead; with --compile by torch.compile, for inference with frozen weights; with
--bf16 under autocast.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WORDS = 30522


def mlp():
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, lambda b: (torch.randn(b, 784), torch.randint(10, (b,)))


def cnn():
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(64 * 7 * 7, 10))
    return model, lambda b: (torch.randn(b, 1, 28, 28), torch.randint(10, (b,)))


class Block(nn.Module):
    """A basic residual block."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or before != width:
            self.downsample = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False),
                                            nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


def resnet18():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    before = 64
    for width in (64, 128, 256, 512):
        for first in (True, False):
            layers.append(Block(before, width, 2 if first and width > 64 else 1))
            before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), lambda b: (torch.randn(b, 3, 32, 32), torch.randint(10, (b,)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions around a shortcut."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if before != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(before, width, 2 if i == 0 and width > 64 else 1))
            before = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers), lambda b: (torch.randn(b, 3, 224, 224), torch.randint(1000, (b,)))


class Bert(nn.Module):
    def __init__(self, every_token, layers=4, width=256, heads=4, vocab=WORDS):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(512, width)
        self.segments, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pool = None if every_token else nn.Linear(width, width)
        self.head = nn.Linear(width, vocab if every_token else 2)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]] + self.segments.weight[0]
        x = self.encoder(F.dropout(self.norm(x), 0.1, self.training))
        return self.head(x) if self.pool is None else self.head(torch.tanh(self.pool(x[:, 0])))


def bert():
    return Bert(False), lambda b: (torch.randint(WORDS, (b, 128)), torch.randint(2, (b,)))


def bert_mlm():
    return Bert(True), lambda b: (torch.randint(WORDS, (b, 128)), torch.randint(WORDS, (b, 128)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(y.reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, length=256, vocab=256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt():
    def data(batch):
        ids = torch.randint(256, (batch, 257))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return Gpt(), data


# name -> (model and data, batch, whether AdamW trains it)
MODELS = {"mlp": (mlp, 64, False), "cnn": (cnn, 64, False), "resnet18": (resnet18, 64, False),
          "resnet50": (resnet50, 32, False),
          "bert": (bert, 16, True), "bert-mlm": (bert_mlm, 16, True), "gpt": (gpt, 8, True)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    make, batch, adamw = MODELS[args.model]
    batch = args.batch or batch
    model, data = make()
    x, labels = data(batch)
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(
            memory_format=torch.channels_last)
    if ranks > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) if adamw else
                 torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True))

    if args.inference and args.compile:
        from torch._inductor import config
        config.freezing = True
    run = torch.compile(model) if args.compile else model
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16)

    def step():
        optimizer.zero_grad()
        with autocast:
            loss = F.cross_entropy(run(x).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()

    if args.inference:
        model.eval()

        def step():
            with torch.inference_mode(not args.compile), torch.no_grad(), autocast:
                run(x)

    for _ in range(args.warm):
        step()
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    if rank == 0:
        seconds = statistics.median(times)
        print(json.dumps({"samples_per_second": batch * ranks / seconds, "step_s": seconds,
                          "step_min_s": min(times), "step_max_s": max(times),
                          "parameters": sum(p.numel() for p in model.parameters()),
                          "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                          * 1024, "torch": torch.__version__}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
