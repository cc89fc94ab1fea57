#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training speed of the models of the comparison, beside PyTorch: one worker, one thread.

Both sides do the same work on data that is made before the clock starts: the same sizes, optimizer and
batch; a step is forward, backward and update. They alternate, so that a drift of the machine meets
both; each repetition is a process of its own and gives the median of its steps. Convolutional models
of the peer run with both of its memory layouts and the quicker one counts.

    ./dev bench models [NAME..]     mlp cnn resnet18 bert bert-mlm gpt
"""
import os

from common import (BIN, ROOT, fail, last_json, machine, note, parser, peer_python, report, run,
                    summary, text)

# name -> (our steps, the peer's steps, whether it has images)
MODELS = {"mlp": (1000, 500, False), "cnn": (50, 30, True), "resnet18": (3, 2, True),
          "bert": (5, 5, False), "bert-mlm": (3, 2, False), "gpt": (3, 3, False)}


def ours(name):
    """One process of ours."""
    program = os.path.join(BIN, "bench_model")
    return last_json(run([program, name, "--steps", str(MODELS[name][0]), "--json"])[0])


def peer(name, layout):
    """One process of the peer, with the memory layout `layout` of images."""
    command = [peer_python(), f"{ROOT}/bench/peers/models.py", name, "--steps",
               str(MODELS[name][1])]
    if layout == "channels-last":
        command.append("--channels-last")
    return last_json(run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})[0])


def measure(name, args):
    """The result of one model, and its lines for people."""
    layouts = ["plain", "channels-last"] if MODELS[name][2] else ["plain"]
    mine, theirs = [], {layout: [] for layout in layouts}
    for repetition in range(args.repetitions):
        mine.append(ours(name))
        note(f"{name} {repetition + 1}/{args.repetitions} ours: "
             f"{mine[-1]['samples_per_second']:,.1f} samples/s")
        if args.ours_only:
            continue
        for layout in layouts:
            theirs[layout].append(peer(name, layout)["samples_per_second"])
            note(f"{name} {repetition + 1}/{args.repetitions} PyTorch {layout}: "
                 f"{theirs[layout][-1]:,.1f} samples/s")
    result = {"samples_per_second": summary([r["samples_per_second"] for r in mine]),
              "of_peak": summary([r["of_peak"] for r in mine])}
    lines = [(f"{name}: ours, samples/s", text(result["samples_per_second"])),
             ("  of the FMA peak", text(result["of_peak"]))]
    if not args.ours_only:
        best = max(layouts, key=lambda layout: summary(theirs[layout])["median"])
        result["peer"] = {layout: summary(values) for layout, values in theirs.items()}
        result["ratio"] = summary([a["samples_per_second"] / b
                                   for a, b in zip(mine, theirs[best])])
        lines += [(f"  PyTorch ({best})", text(result["peer"][best])),
                  ("  ours against it", text(result["ratio"], " x"))]
    return result, lines


def main():
    options = parser(__doc__.splitlines()[0], repetitions=3)
    options.add_argument("models", nargs="*", metavar="NAME")
    args = options.parse_args()
    names = args.models or list(MODELS)
    for name in names:
        if name not in MODELS:
            fail(f"no model is named {name}: use {' '.join(MODELS)}", 2)
    if not args.ours_only:
        peer_python()
    result = {"machine": machine(len(os.sched_getaffinity(0))), "models": {}}
    lines = []
    for name in names:
        result["models"][name], more = measure(name, args)
        lines += more
    report("models", args, result, lines)


if __name__ == "__main__":
    main()
