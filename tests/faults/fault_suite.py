#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and hangs workers, and kills the coordinator, by fixed schedules or by drawn ones, and
checks what is promised:

- the final weights, evaluations and losses are those of the undisturbed run, bit for bit;
- after every third step all workers have the same state (verify_replicas finds nothing);
- the ledger has every shard of every step, and whatever was done again read the same samples;
- each fault that was to happen happened, those of workers were named with their causes, and the job ended well;
- steps were lost only where all who had the state died, and no more than lay behind the newest checkpoint.

Three tiny models: an MLP, a CNN with batch norm, a GPT with dropout and AdamW. As a test it runs the
90 fixed schedules; `fault_suite.py --random 200 --model mlp` draws others from --seed.
"""

import argparse
import collections
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BIN = os.environ.get("LOCKSTEP_BIN", "")
STEPS = 40
WORKERS = 4
LIMIT = 60  # seconds for one run

MODELS = {
    "mlp": """  model: {mlp: {hidden: [32]}}
  data: {synthetic: {train_samples: 500, test_samples: 100, features: 24, classes: 5}}
  optimizer: {sgd: {lr: 0.05, momentum: 0.9}}
  shards: 5
  global_batch: 40
""",
    "cnn": """  model: {cnn: {channels: [4, 8], batch_norm: true, hidden: [16]}}
  data: {synthetic: {train_samples: 400, test_samples: 60, shape: [1, 12, 12], classes: 5}}
  optimizer: {sgd: {lr: 0.05, momentum: 0.9, nesterov: true}}
  shards: 4
  global_batch: 32
""",
    "gpt": """  model: {gpt: {layers: 1, heads: 2, width: 32, dropout: 0.1}}
  data: {text: {path: text.txt, length: 16}}
  optimizer: {adamw: {lr: 0.003}}
  shards: 4
  global_batch: 16
""",
}

# Steps that last long enough for new workers to start and join before the last one, and for a
# checkpoint to be written; where they do not, since the machine is busy elsewhere, those of a second run.
SLOWLY = ("--slow", "rank:0:60x")
MORE_SLOWLY = ("--slow", "rank:0:300x")

ZERO = ("--set", "train.zero_stage=1")

# (name, elastic.min_workers, faults). A rank that is killed at the start of step s leaves the others
# with step s - 1 or s committed; /join is where its replacement copies the state.
SCHEDULES = (
    ("a worker", 1, ["--kill", "rank:1@step:10"]),
    ("rank 0, which writes", 1, ["--kill", "rank:0@step:10"]),
    ("before the reduction", 1, ["--kill", "rank:2@step:10/reduce"]),
    ("between reduction and update", 1, ["--kill", "rank:0@step:10/reduced"]),
    ("just after the commit", 1, ["--kill", "rank:3@step:10/committed"]),
    ("two at once", 1, ["--kill", "rank:1@step:10", "--kill", "rank:2@step:10/committed"]),
    ("one after the other", 1,
     ["--kill", "rank:0@step:6", "--segv", "rank:1@step:14", "--exit", "rank:2@step:25=3"]),
    ("all", 1, [f for r in range(WORKERS) for f in ("--kill", f"rank:{r}@step:10")]),
    ("all, with checkpoints", 1,
     ["--set", "checkpoint.every=7 steps", "--set", "checkpoint.dir=saved",
      *[f for r in range(WORKERS) for f in ("--kill", f"rank:{r}@step:25")]]),
    ("while saving, then all", 1,
     [*SLOWLY, "--set", "checkpoint.every=7 steps", "--set", "checkpoint.dir=saved", "--kill",
      "rank:0@step:7/checkpoint", *[f for r in range(WORKERS) for f in ("--kill", f"rank:{r}@step:30")]]),
    ("stopped", 1, ["--stop", "rank:1@step:12"]),
    ("hung before the reduction", 1, ["--hang", "rank:2@step:12/reduce"]),
    ("waits for its replacement, which dies copying", WORKERS,
     ["--kill", "rank:1@step:10", "--kill", "rank:1@step:9/join", "--segv", "rank:0@step:30"]),
    ("in the evaluation and while saving", 1,
     ["--kill", "rank:1@step:20/eval", "--kill", f"rank:0@step:{STEPS}/save"]),
    ("the coordinator, twice", 1,
     ["--kill", "coordinator@step:8", "--kill", "coordinator@step:24/reduced"]),
    ("the coordinator and a worker meanwhile", 1,
     ["--kill", "coordinator@step:10", "--kill", "rank:1@step:10/reduce"]),
    ("the coordinator while a replacement copies", 1,
     ["--kill", "rank:2@step:10", "--kill", "coordinator@step:12", "--kill", "rank:0@step:13"]),
    ("the coordinator, then all at once, then again", 1,
     ["--kill", "coordinator@step:9", *[f for r in range(WORKERS) for f in ("--kill", f"rank:{r}@step:10")],
      "--kill", "coordinator@step:30"]),
    ("spares take over", WORKERS,
     ["--set", "resources.standby=1", "--kill", "rank:1@step:15", "--kill", "coordinator@step:20",
      "--kill", "rank:2@step:28"]),
    ("the coordinator at the end", 1, ["--kill", f"coordinator@step:{STEPS}/save"]),
    ("fewer workers", 1, ["--scale", "2@step:10"]),
    ("one worker, then all", 1, ["--scale", "1@step:5", "--scale", "4@step:12", *SLOWLY]),
    ("from two to all", 1, ["--nproc-per-node", "2", "--scale", "4@step:4/reduced", *SLOWLY]),
    ("fewer, and one dies meanwhile", 1,
     ["--scale", "2@step:10", "--kill", "rank:1@step:10/reduce", "--kill", "rank:0@step:12"]),
    ("fewer, and those who leave die first", 1,
     ["--scale", "2@step:10", "--kill", "rank:3@step:10/reduced", "--kill", "rank:2@step:10/reduced"]),
    ("more, and rank 0 dies meanwhile", 1,
     ["--nproc-per-node", "2", "--scale", "4@step:4", "--kill", "rank:0@step:5", "--kill", "rank:1@step:20"]),
    ("parts of the moments, all of a step's places", 3,
     [*ZERO, "--kill", "rank:1@step:6/reduce", "--kill", "rank:0@step:12/reduced", "--kill",
      "rank:2@step:18/begun", "--kill", "rank:3@step:24/committed"]),
    ("parts of the moments, below three and back", 1,
     [*ZERO, *SLOWLY, "--scale", "2@step:5", "--kill", "rank:0@step:9/reduced", "--scale", "4@step:14",
      "--kill", "rank:1@step:30/reduced"]),
    ("parts of the moments, both holders, with checkpoints", 1,
     [*ZERO, "--set", "checkpoint.every=7 steps", "--set", "checkpoint.dir=saved", "--kill",
      "rank:1@step:25/begun", "--kill", "rank:2@step:25/begun"]),
    # The last step is not done before the coordinator is back and told again.
    ("the coordinator dies while it is told", 1,
     ["--kill", "coordinator@step:10", "--scale", "3@step:10", "--kill", "rank:1@step:20", *MORE_SLOWLY]),
)


# Where all who have the state, or a part of it, die, or the last one before others have joined him: the steps that may be
# done again. Elsewhere none is.
MAY_LOSE = {
    "all": 10,
    "all, with checkpoints": 25,
    "while saving, then all": 30,
    "the coordinator, then all at once, then again": 10,
    "fewer, and one dies meanwhile": 12,
    "more, and rank 0 dies meanwhile": 20,
    "parts of the moments, all of a step's places": 1,  # of one that was skipped it is said so (docs/adr/0011)
    "parts of the moments, below three and back": 30,
    "parts of the moments, both holders, with checkpoints": 25,
}

# What is said of a worker that failed so.
CAUSES = {
    "kill": lambda fault, _: fault["signal"] == signal.SIGKILL,
    "segv": lambda fault, _: fault["signal"] == signal.SIGSEGV,
    "exit": lambda fault, code: fault["exit_code"] == int(code),
    "stop": lambda fault, _: "no heartbeat" in fault["cause"],
    "hang": lambda fault, _: "no progress" in fault["cause"],
}


def job_text(model, minimum):
    return f"""name: {model}
resources: {{nproc_per_node: {WORKERS}, device: cpu}}
elastic: {{min_workers: {minimum}, max_workers: {WORKERS}}}
failure_detection: 500ms
restart: {{max_restarts: 20}}
verify_replicas: 3 steps
train:
{MODELS[model]}  steps: {STEPS}
  seed: 5
  schedule: {{cosine: {{}}}}
  eval: {{every: 10 steps, block: 20}}
"""


class Wrong(Exception):
    """The run is not what was promised."""


class Late(Wrong):
    """Workers that were asked for had not joined by the end, or nothing was saved by then."""


def launch(folder, arguments):
    """One run; returns its result and its folder."""
    command = [os.path.join(BIN, "launcher"), *arguments[:1], "-o", "json", *arguments[1:]]
    child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache")))
    try:
        out, err = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            out, err = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        raise Wrong(f"did not end within {LIMIT} s:\n{err[-3000:]}") from None
    if child.returncode != 0:
        raise Wrong(f"exit code {child.returncode}:\n{err[-3000:]}")
    result = json.loads(out.strip().splitlines()[-1])
    run = os.path.dirname(os.path.dirname(result["model"]["path"]))
    return result, os.path.join(folder, run)


def read_ledger(run):
    """{(step, shard): hash}, and the steps that more than one generation did; whatever is there twice must be equal."""
    ledger, generations = {}, collections.defaultdict(set)
    with open(os.path.join(run, "ledger.bin"), "rb") as file:
        data = file.read()
    if len(data) % 24:
        raise Wrong(f"the ledger has {len(data)} bytes")
    for step, shard, generation, ids in struct.iter_unpack("<qiiQ", data):
        generations[step].add(generation)
        if ledger.setdefault((step, shard), ids) != ids:
            raise Wrong(f"step {step} of shard {shard} read other samples when it was done again")
    return ledger, sorted(step for step, those in generations.items() if len(those) > 1)


def read_metrics(run):
    """The last line of each step and of each evaluation."""
    metrics = {}
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            key = (entry["kind"], entry["step"])
            if metrics.setdefault(key, entry) != entry:
                raise Wrong(f"{key} was written with other numbers: {metrics[key]} and {entry}")
    return metrics


def summary(result, run):
    return {"sha256": result["model"]["sha256"], "steps": result["steps"],
            "eval": {k: result["eval"][k] for k in ("loss", "accuracy", "samples", "step")},
            "ledger": read_ledger(run)[0], "metrics": read_metrics(run)}


def compare(got, wanted):
    for name, value in wanted.items():
        if got[name] == value:
            continue
        if name in ("ledger", "metrics"):
            keys = sorted(k for k in set(got[name]) | set(value) if got[name].get(k) != value.get(k))
            raise Wrong(f"the {name} differs at {len(keys)} keys, such as {keys[:3]}: "
                        f"{[got[name].get(k) for k in keys[:3]]}, "
                        f"undisturbed {[value.get(k) for k in keys[:3]]}")
        raise Wrong(f"{name}: {got[name]}, undisturbed {value}")


def check_faults(result, failed):
    """Each worker that failed is named, or fell with one that is, and what is said of it is so."""
    named = {fault["pid"]: fault for fault in result["faults"]}
    fell = sum(len(fault["victims"]) for fault in result["faults"])
    unnamed = [i["fault"] for i in failed if i["pid"] not in named]
    if len(unnamed) > fell:
        raise Wrong(f"not named: {unnamed}, and {fell} fell with others: {result['faults']}")
    for injection in failed:
        fault = named.get(injection["pid"])
        action, code = injection["fault"].split()[0], injection["fault"].partition("=")[2]
        if fault is not None and not CAUSES[action](fault, code):
            raise Wrong(f"{injection['fault']} is said to be: {fault}")


def check_losses(result, run, most):
    """At most so many steps were lost, as far as that is told, and were done again."""
    told = [fault["steps_lost"] for fault in result["faults"]]
    if max(told, default=0) > most:
        raise Wrong(f"steps lost: {told}, and at most {most} may be")
    again = read_ledger(run)[1]
    # The step in which somebody fails may be done by him alone.
    if len(again) > max(most, len(result["faults"])):
        raise Wrong(f"steps {again} were done again, and at most {most} may be")


def check(result, run, wanted, drawn, most_lost):
    compare(summary(result, run), wanted)
    if drawn and not any(i["happened"] for i in result["injections"]):
        raise Wrong("none of the drawn faults happened")
    missing = [i["fault"] for i in result["injections"] if not i["happened"]]
    # A drawn fault may be meant for a worker whose replacement has not joined yet.
    if missing and not drawn:
        unsaved = all(fault.endswith("/checkpoint") for fault in missing)
        raise (Late if unsaved else Wrong)(f"did not happen: {missing}")
    failed = [i for i in result["injections"] if i["happened"] and i["fault"].split()[0] in CAUSES and
              "rank" in i["fault"]]
    if failed and not result["faults"]:
        raise Wrong("no fault was reported")
    check_faults(result, failed)
    if not drawn:
        check_losses(result, run, most_lost)
    scaled = [i["fault"] for i in result["injections"] if i["happened"] and i["fault"].startswith("scale")]
    # Replacements may come too late to be in the last generation.
    if scaled and not drawn and not failed:
        workers = int(scaled[-1].split()[1].split("@")[0])
        if result["workers"] != workers:
            raise Late(f"{scaled[-1]}: {result['workers']} workers at the end")


def slower(faults):
    """The same with longer steps."""
    if SLOWLY[1] not in faults:
        return [*SLOWLY, *faults]
    return [MORE_SLOWLY[1] if f == SLOWLY[1] else f for f in faults]


class Suite:
    def __init__(self, folder):
        self.folder = folder
        self.undisturbed = {}
        with open(os.path.join(folder, "text.txt"), "w", encoding="utf-8") as file:
            file.write("".join(f"{i} sheep jump over {i * i} fences; " for i in range(300)))

    def job(self, model, minimum):
        path = os.path.join(self.folder, f"{model}-{minimum}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(job_text(model, minimum))
        return path

    def run(self, model, minimum, faults, most_lost):
        """Returns the result of a run with these faults, checked."""
        job = self.job(model, minimum)
        if model not in self.undisturbed:
            self.undisturbed[model] = summary(*launch(self.folder, ["run", job]))
        # Each run begins without the checkpoints of the one before.
        shutil.rmtree(os.path.join(self.folder, "saved"), ignore_errors=True)
        result, run = launch(self.folder, ["chaos", *faults, job])
        try:
            check(result, run, self.undisturbed[model], "--random" in faults, most_lost)
        except Late:
            if MORE_SLOWLY[1] in faults:
                raise
            return self.run(model, minimum, slower(faults), most_lost)
        shutil.rmtree(run, ignore_errors=True)
        return result


def describe(result):
    delays = [fault["to_next_step_ms"] for fault in result["faults"]]
    longest = f"{max(delays):.0f} ms at most to the next step" if delays else "no fault"
    happened = sum(1 for injection in result["injections"] if injection["happened"])
    return (f"{happened} of {len(result['injections'])} happened, {len(result['faults'])} faults, "
            f"{result['generations']} generations, {longest}")


def kind(fault):
    """"kill", "kill coordinator", "scale"..."""
    words = fault.split("@")[0].split()
    return " ".join(words) if words[-1] == "coordinator" else words[0]


def drawn_run(model, seed, faults, zero):
    """One drawn schedule: (model, name, elastic.min_workers, arguments)."""
    # The seed's last bits say from where on the job waits for workers, and whether it starts with
    # two of them (more join then); others have checkpoints, others a spare.
    minimum = (1, WORKERS, 1, 2)[seed % 4]
    arguments = ["--random", str(faults), "--seed", str(seed), "--within", str(STEPS)]
    if seed % 4 == 2:
        arguments += ["--nproc-per-node", "2", *SLOWLY]
    if seed % 3 == 0:
        arguments += ["--set", "checkpoint.every=7 steps", "--set", "checkpoint.dir=saved"]
    if seed % 5 == 0:
        arguments += ["--set", "resources.standby=1"]
    if zero:
        arguments += ZERO
    return (model, f"seed {seed}", minimum, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), action="append")
    parser.add_argument("--schedule", type=int, help="one of the fixed ones, from 0")
    parser.add_argument("--random", type=int, default=0, help="so many drawn schedules instead")
    parser.add_argument("--seed", type=int, default=1, help="of the first drawn one")
    parser.add_argument("--faults", type=int, default=3, help="in each drawn schedule")
    parser.add_argument("--zero", action="store_true", help="drawn ones with train.zero_stage: 1")
    args = parser.parse_args()
    runs = []
    for model in args.model or MODELS:
        if args.random:
            runs += [drawn_run(model, seed, args.faults, args.zero)
                     for seed in range(args.seed, args.seed + args.random)]
        else:
            chosen = SCHEDULES if args.schedule is None else (SCHEDULES[args.schedule],)
            runs += [(model, *schedule) for schedule in chosen]
    folder = tempfile.mkdtemp(prefix="lockstep-faults-")
    suite, wrong, begin, happened = Suite(folder), 0, time.monotonic(), collections.Counter()
    try:
        for model, name, minimum, faults in runs:
            start = time.monotonic()
            try:
                result = suite.run(model, minimum, faults, MAY_LOSE.get(name, 0))
                said = describe(result)
                happened.update(kind(i["fault"]) for i in result["injections"] if i["happened"])
            except Wrong as error:
                wrong += 1
                said = f"WRONG: {error}\n  again with: launcher chaos {' '.join(faults)} (min_workers {minimum})"
            print(f"{model} {name}: {said} ({time.monotonic() - start:.1f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(", ".join(f"{count} x {what}" for what, count in happened.most_common()))
    print(f"{len(runs)} schedules, {wrong} wrong, {sum(happened.values())} faults happened, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if wrong or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
