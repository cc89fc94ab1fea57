# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/gpt_learning.py: GPT-2 in plain PyTorch, fed with the windows that our sampler deals.

The order of the windows is computed again here from its definition (data/sampler.h): what is compared
is the learning, so both sides must see the same data. Prints one line of JSON.
"""
import argparse
import json

import torch
from torch.nn import functional as F

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix_bits(x):
    """The finaliser of splitmix64."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def site_key(seed, site):
    h = 0xCBF29CE484222325
    for byte in site.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return mix_bits(h ^ mix_bits(seed))


class Permutation:
    """A keyed bijection of [0, n): eight Feistel rounds with cycle walking."""

    def __init__(self, n, key):
        bits = max(8, (n - 1).bit_length())
        self.n, self.low = n, bits // 2
        self.high = bits - self.low
        self.keys = [mix_bits((key + GOLDEN * (r + 1)) & MASK) for r in range(8)]

    @staticmethod
    def round(x, key, bits):
        h = ((x ^ key) * GOLDEN) & MASK
        h ^= h >> 32
        h = (h * 0xD6E8FEB86659FD93) & MASK
        return h >> (64 - bits)

    def __call__(self, i):
        while True:
            high, low = i >> self.low, i & ((1 << self.low) - 1)
            for r in range(0, 8, 2):
                high ^= self.round(low, self.keys[r], self.high)
                low ^= self.round(high, self.keys[r + 1], self.low)
            i = high << self.low | low
            if i < self.n:
                return i


def windows(step, batch, n, seed):
    """The samples of a 0-based step."""
    key = site_key(seed, "data.sampler")
    indices = []
    for position in range(step * batch, (step + 1) * batch):
        epoch, offset = divmod(position, n)
        indices.append(Permutation(n, mix_bits((key + GOLDEN * epoch) & MASK))(offset))
    return indices


def read_safetensors(path):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float32, offset=8 + size + begin, count=(end - begin) // 4)
        tensors[name] = flat.clone().reshape(entry["shape"]).requires_grad_(True)
    return tensors


def logits_of(w, tokens, heads):
    """GPT-2 with the names and layouts of Hugging Face's files."""
    batch, length = tokens.shape
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:length]
    width = x.shape[-1]

    def norm(name, y):
        return F.layer_norm(y, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(name, y):
        return y @ w[name + ".weight"] + w[name + ".bias"]

    layer = 0
    while f"transformer.h.{layer}.ln_1.weight" in w:
        block = f"transformer.h.{layer}."
        parts = linear(block + "attn.c_attn", norm(block + "ln_1", x)).split(width, dim=-1)
        q, k, v = (p.reshape(batch, length, heads, width // heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(block + "attn.c_proj", y.transpose(1, 2).reshape(batch, length, width))
        y = F.gelu(linear(block + "mlp.c_fc", norm(block + "ln_2", x)), approximate="tanh")
        x = x + linear(block + "mlp.c_proj", y)
        layer += 1
    return norm("transformer.ln_f", x) @ w["transformer.wte.weight"].T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with open(args.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    count = (len(text) - 1) // args.length
    count -= int(count * 0.1)  # the test split
    w = read_safetensors(args.weights)
    optimizer = torch.optim.AdamW(w.values(), lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    losses = {}
    for step in range(args.steps):
        at = [i * args.length for i in windows(step, args.batch, count, args.seed)]
        tokens = torch.stack([text[a:a + args.length] for a in at])
        labels = torch.stack([text[a + 1:a + 1 + args.length] for a in at])
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(logits_of(w, tokens, args.heads).flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(w.values()), 1.0)
        optimizer.step()
        losses[step + 1] = loss.item()
    print(json.dumps({"losses": losses}))


if __name__ == "__main__":
    main()
