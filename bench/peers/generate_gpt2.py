# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/generate.py: transformers makes tokens with a GPT-2 of 124M random weights; prints one line of JSON."""
import argparse
import json
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt whose first answer is timed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = GPT2Config(bos_token_id=None, eos_token_id=None, pad_token_id=0)  # nothing ends a text
    model = GPT2LMHeadModel(config).eval().to(torch.bfloat16 if args.precision == "bf16" else torch.float32)
    prompt, long = torch.tensor([[464]]), torch.full((1, args.prompt), 464)
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "use_cache": True}
    with torch.inference_mode():
        model.generate(prompt, max_new_tokens=4, **options)
        start, processor = time.perf_counter(), os.times().user
        made = model.generate(prompt, max_new_tokens=args.tokens, **options).shape[1] - 1
        seconds, processor = time.perf_counter() - start, os.times().user - processor
        options["attention_mask"] = torch.ones_like(long)
        took = []
        for _ in range(3):
            start = time.perf_counter()
            model.generate(long, max_new_tokens=1, **options)
            took.append(time.perf_counter() - start)
    print(json.dumps({"made": made, "tokens_per_second": made / seconds,
                      "tokens_per_processor_second": made / processor, "prompt_seconds": sorted(took)[1]}))


if __name__ == "__main__":
    main()
