# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/gpu.py: PyTorch trains or runs one of its models on a GPU; prints one line of JSON.

The work of a step is ours: the same sizes, batch, loss and optimizer, on data that lies on the device
before the clock starts. bf16 is autocast over fp32 weights, tf32 allows it in products, and --pure
keeps weights in bf16 as well. Attention is scaled_dot_product_attention, the optimizer fused.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import models


class Gpt2(nn.Module):
    """GPT-2 with a tied head and a padded vocabulary."""

    def __init__(self, layers, heads, width, length=1024, vocab=50304):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(models.GptBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt2(layers, heads, width):
    def data(batch):
        ids = torch.randint(50257, (batch, 1025))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return lambda: (Gpt2(layers, heads, width), data)


def bert_large(length):
    def make():
        # Rows of whole 16 bytes, as ours (bench/model_specs.cc).
        return models.Bert(True, layers=24, width=1024, heads=16, vocab=30528), lambda b: (
            torch.randint(models.WORDS, (b, length)), torch.randint(models.WORDS, (b, length)))
    return make


# name -> (model and data, whether AdamW trains it)
MODELS = {"gpt2": (gpt2(12, 12, 768), True), "gpt2-xl": (gpt2(48, 25, 1600), True),
          "bert-large-128": (bert_large(128), True), "bert-large-512": (bert_large(512), True),
          "resnet50": (models.resnet50, False)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
    make, adamw = MODELS[args.model]
    model, data = make()
    x, labels = (part.to(args.device) for part in data(args.batch))
    images = args.model.startswith("resnet")
    model = model.to(args.device)
    if images:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(
            memory_format=torch.channels_last)
    half = args.precision == "bf16"
    if half and (args.pure or args.inference):
        model = model.to(torch.bfloat16)
        x = x.to(torch.bfloat16) if images else x
    optimizer = (torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu) if adamw else
                 torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=on_gpu))
    # Compiled graphs are launched as CUDA graphs where that is possible.
    run = torch.compile(model, mode="reduce-overhead" if args.inference else None) \
        if args.compile else model

    def train():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=half and not args.pure):
            loss = F.cross_entropy(run(x).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss

    @torch.no_grad()
    def infer():
        return run(x).float()

    step = infer if args.inference else train
    if args.inference:
        model.eval()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    start = time.perf_counter()
    for _ in range(args.warm):
        step()
    wait()
    prepared = time.perf_counter() - start
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        result = step()
        if args.inference:
            result.cpu()
        wait()
        times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    print(json.dumps({
        "samples_per_second": args.batch / seconds, "step_s": seconds, "step_min_s": min(times),
        "step_max_s": max(times), "parameters": sum(p.numel() for p in model.parameters()),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
        "prepare_s": prepared, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except torch.cuda.OutOfMemoryError as error:
        print(f"out of memory: {error}", file=sys.stderr)
        sys.exit(5)
