#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/checkpoint.py: PyTorch's distributed checkpoint, saved asynchronously.

A state as large as AdamW's of GPT-2 124M: parameters and two moments, fp32. Prints, for each of two
saves, how long the caller was held (until the state is staged) and when it was durable.
"""
import argparse
import json
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def shapes(layers=12, width=768, vocab=50304, context=1024):
    """GPT-2's parameters, the token table padded as in examples of training it."""
    yield "wte", (vocab, width)
    yield "wpe", (context, width)
    for layer in range(layers):
        for name, shape in (("ln_1.w", (width,)), ("ln_1.b", (width,)), ("attn.w", (width, 3 * width)),
                            ("attn.b", (3 * width,)), ("proj.w", (width, width)), ("proj.b", (width,)),
                            ("ln_2.w", (width,)), ("ln_2.b", (width,)), ("fc.w", (width, 4 * width)),
                            ("fc.b", (4 * width,)), ("out.w", (4 * width, width)), ("out.b", (width,))):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.w", (width,)
    yield "ln_f.b", (width,)


def save(state, path, plain):
    options = {}
    if plain:
        staging = dcp.staging.StagingOptions(use_pinned_memory=False, use_shared_memory=False,
                                             use_async_staging=False, use_non_blocking_copy=False)
        options["async_stager"] = dcp.staging.DefaultStager(staging)
    start = time.perf_counter()
    response = dcp.async_save(state, checkpoint_id=path, **options)
    held = time.perf_counter() - start
    if hasattr(response, "staging_completion"):
        response.staging_completion.result()
        held = time.perf_counter() - start
        response = response.upload_completion
    response.result()
    return {"held": held, "durable": time.perf_counter() - start}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--plain", action="store_true", help="the stager without shared memory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        state = {f"{kind}.{name}": torch.randn(shape) for name, shape in shapes()
                 for kind in ("model", "exp_avg", "exp_avg_sq")}
        saves = []
        for number in range(2):
            saves.append(save(state, os.path.join(folder, str(number)), args.plain))
            shutil.rmtree(os.path.join(folder, str(number)))
        print(json.dumps({"bytes": sum(t.numel() * 4 for t in state.values()), "saves": saves}))
        dist.destroy_process_group()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
