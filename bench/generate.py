#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of `launcher generate` on a GPT-2 of 124M parameters beside transformers on the same CPU.

Both sides make tokens after one, each the likeliest, with random weights: one and two threads, fp32 and bf16, in
turn. Ours is what 128 more tokens than 16 take, so that loading and the packing of weights, which the first token
waits for, are left out; the peer makes 4 tokens before its clock runs for 128. With one thread the speeds by processor
time in user mode are told too, which other processes disturb less. Then the seconds from a prompt of 512 tokens to the
first token after it (ours without the packing of weights: less those after a prompt of one, and a token's). The peer is
transformers' GPT2LMHeadModel.generate with its default cache, in an environment of its own: ./dev bench setup, and
build/bench-venv/bin/pip install transformers.
Afterwards bench_few_rows measures the products of a token against the reading of as many bytes.
"""
import os
import resource
import shutil
import tempfile

from common import (BIN, LAUNCHER, ROOT, last_json, machine, note, parser, peer_python, report, run,
                    summary, text)

JOB = """name: gpt2
resources: {{nproc_per_node: 1, device: cpu}}
train:
  model: {{gpt: {{preset: gpt2, vocab: 50257, context: 1024, dropout: 0}}}}
  data: {{tokens: {{length: 1024, train_samples: 8, test_samples: 1}}}}
  global_batch: 1
  steps: 1
  optimizer: {{sgd: {{lr: 0.001}}}}
  eval: {{every: never}}
  precision: {precision}
"""
FEW, MORE = 16, 144
PROMPT = 512
CASES = [(precision, threads) for precision in ("fp32", "bf16") for threads in (1, 2)]


def model_of(folder, precision):
    """The folder of a model that has made one step."""
    job = os.path.join(folder, precision + ".yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(precision=precision))
    run_dir = os.path.join(folder, precision)
    run([LAUNCHER, "run", "-o", "json", "--run-dir", run_dir, job])
    return os.path.join(run_dir, "model")


def generate(model, threads, prompt, tokens):
    """Seconds of the clock and of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    made = last_json(run([LAUNCHER, "generate", "-o", "json", model, "--prompt", " ".join(["464"] * prompt),
                          "--tokens", str(tokens), "--temperature", "0", "--threads", str(threads)])[0])
    return made["seconds"], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def ours(model, threads):
    """Tokens/s of the clock and of processor time, and the seconds that a prompt takes."""
    took = [generate(model, threads, 1, tokens) for tokens in (FEW, MORE)]
    rates = [(MORE - FEW) / (more - few) for few, more in zip(*took)]
    prompt = generate(model, threads, PROMPT, 1)[0] - generate(model, threads, 1, 1)[0] + 1 / rates[0]
    return [*rates, prompt]


def peer(precision, threads):
    made = last_json(run([peer_python(), f"{ROOT}/bench/peers/generate_gpt2.py", "--precision", precision,
                          "--threads", str(threads), "--tokens", str(MORE - FEW), "--prompt", str(PROMPT)])[0])
    return made["tokens_per_second"], made["tokens_per_processor_second"], made["prompt_seconds"]


def main():
    args = parser(__doc__.splitlines()[0], repetitions=3).parse_args()
    found = {case: {"ours": [], "peer": []} for case in CASES}
    folder = tempfile.mkdtemp(dir=os.environ.get("LOCKSTEP_BENCH_DIR"))
    try:
        models = {precision: model_of(folder, precision) for precision in ("fp32", "bf16")}
        for repetition in range(args.repetitions):
            note(f"repetition {repetition + 1} of {args.repetitions}")
            for precision, threads in CASES:
                of = found[precision, threads]
                of["ours"].append(ours(models[precision], threads))
                if not args.ours_only:
                    of["peer"].append(peer(precision, threads))
    finally:
        shutil.rmtree(folder)
    products = run([os.path.join(BIN, "bench_few_rows")])[0]
    lines, result = [], {"machine": machine(2), "tokens": MORE - FEW, "cases": {}, "products": products.splitlines()}
    for (precision, threads), of in found.items():
        label = f"{precision}, {threads} thread{'s' * (threads > 1)}"
        result["cases"][label] = {}
        for at, what in enumerate(("tokens/s", "tokens/s of processor time", f"s for a prompt of {PROMPT}")):
            if at == 1 and threads > 1:
                continue
            case = {side: summary([value[at] for value in values]) for side, values in of.items() if values}
            for side, values in case.items():
                lines.append((f"{label}: {'launcher generate' if side == 'ours' else 'transformers'}",
                              text(values, " " + what)))
            if "peer" in case:
                faster, slower = ("ours", "peer") if at < 2 else ("peer", "ours")
                case["ratio"] = case[faster]["median"] / case[slower]["median"]
                lines.append((f"{label}: ratio", f"{case['ratio']:.2f}"))
            result["cases"][label][what] = case
    report("generate", args, result, lines + [(line, "") for line in result["products"]])


if __name__ == "__main__":
    main()
