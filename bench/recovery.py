#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Downtime after SIGKILL of one worker: kill to the first new commit, less one step, beside torchrun.

Ours: examples/bench-mlp.yaml under `launcher chaos`, killed at the start of a step. "survivors" is the
first commit without the dead worker, "full strength" the first with its replacement; "out of the
collective" is when the survivors left theirs. With elastic.min_workers at its default the survivors
wait for the replacement ("waiting"). With resources.standby: 1 a spare is in the next generation. --job
takes another job, such as one that compiles for long. Times are those of the workers' logs, in milliseconds. The peer:
torchrun --standalone --max-restarts with a script that resumes from a checkpoint of every 10 steps.

With --stop the worker is stopped (SIGSTOP) instead, which only its silence tells: it says nothing for
failure_detection, is judged, killed and replaced. Ours alone; torchrun waits for its collectives' timeout.
"""
import os
import re
import tempfile
import time

from common import (LAUNCHER, ROOT, last_json, machine, note, parser, peer_python, report, run,
                    summary, text)

STEPS = 6000
KILL_AT = 1000
LINE = re.compile(r"^[DIWE] (\d\d):(\d\d):(\d\d\.\d+) \[r\d+ g(\d+)\] (.*)$")


def of_day(seconds):
    """Seconds since midnight, local time, as the logs have them."""
    local = time.localtime(seconds)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + seconds % 1


def read_logs(folder):
    """[(seconds of the day, generation, text)] of all ranks."""
    lines = []
    for name in os.listdir(os.path.join(folder, "logs")):
        with open(os.path.join(folder, "logs", name), encoding="utf-8") as file:
            for line in file:
                match = LINE.match(line.rstrip("\n"))
                if match:
                    hour, minute, second, generation, words = match.groups()
                    at = int(hour) * 3600 + int(minute) * 60 + float(second)
                    lines.append((at, int(generation), words))
    return lines


def heal(args, minimum, standby=0, fault="kill"):
    """Seconds from the kill to: survivors out, next commit, full strength."""
    ranks = args.ranks
    with tempfile.TemporaryDirectory() as folder:
        command = [LAUNCHER, "chaos", f"--{fault}", f"rank:1@step:{args.kill_at}", "-o", "json",
                   f"--nproc-per-node={ranks}", "--run-dir", folder, "--set", f"train.steps={args.steps}",
                   "--set", f"train.shards={ranks}", "--set", f"elastic.min_workers={minimum}",
                   "--set", f"elastic.max_workers={ranks}", "--set", f"resources.standby={standby}",
                   args.job]
        result = last_json(run(command, env={**os.environ, "LOCKSTEP_LOG": "debug"})[0])
        lines = read_logs(folder)
    killed = of_day(result["injections"][0]["time"])
    batch_seconds = result["train_seconds"] / max(1, result["steps"])
    commits = {}
    for at, generation, words in lines:
        if words.startswith("first commit"):
            commits[generation] = min(at, commits.get(generation, at))
    out = [at for at, generation, words in lines if generation == 1 and "generation 1 ended" in words]
    last = max(commits)
    return {"out": max(out) - killed, "next": commits[2] - killed - batch_seconds,
            "full": commits[last] - killed - batch_seconds, "step": batch_seconds,
            "faults": result["faults"], "generations": result["generations"]}


def torchrun(ranks):
    """Seconds from the kill until every rank has done its next step, and the steps done again."""
    with tempfile.TemporaryDirectory() as folder:
        run([peer_python(), "-m", "torch.distributed.run", "--standalone",
             f"--nproc-per-node={ranks}", "--max-restarts=3", f"{ROOT}/bench/peers/restart_mlp.py",
             "--folder", folder],
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"})
        with open(os.path.join(folder, "killed"), encoding="utf-8") as file:
            killed = float(file.read())
        first, again = [], 0
        for rank in range(ranks):
            with open(os.path.join(folder, f"steps.{rank}"), encoding="utf-8") as file:
                rows = [line.split() for line in file]
            later = [(int(step), float(at)) for restart, step, at in rows if int(restart) > 0]
            first.append(later[0][1])
            before = max(int(step) for restart, step, _ in rows if int(restart) == 0)
            again = max(again, before - later[0][0] + 1)
    return max(first) - killed, again


def stopped(args):
    """Reports how long a stopped worker holds the job up."""
    description = machine(len(os.sched_getaffinity(0)))
    times = {"next": [], "full": []}
    for repetition in range(args.repetitions):
        healed = heal(args, 1, fault="stop")
        for name, values in times.items():
            values.append(healed[name])
        note(f"{repetition + 1}/{args.repetitions} "
             + ", ".join(f"{name} {v[-1]:.3f} s" for name, v in times.items()))
    result = {"machine": description, "ranks": args.ranks, "fault": "stop",
              "seconds": {name: summary(v) for name, v in times.items()}}
    labels = {"next": "stopped: on with the survivors", "full": "stopped: back at full strength"}
    report("recovery-stop", args, result,
           [(labels[name], text(value, " s")) for name, value in result["seconds"].items()])


def main():
    options = parser(__doc__.splitlines()[0], repetitions=5)
    options.add_argument("--peer-repetitions", type=int, default=2)
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--job", default="examples/bench-mlp.yaml")
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--kill-at", type=int, default=KILL_AT)
    options.add_argument("--stop", action="store_true", help="a stopped worker instead of a killed one")
    args = options.parse_args()
    if args.stop:
        stopped(args)
        return
    description = machine(len(os.sched_getaffinity(0)))
    times = {name: [] for name in ("out", "next", "full", "waiting", "standby", "standby_waiting",
                                 "torchrun")}
    again = 0
    for repetition in range(args.repetitions):
        healed = heal(args, 1)
        for name in ("out", "next", "full"):
            times[name].append(healed[name])
        times["waiting"].append(heal(args, args.ranks)["next"])
        times["standby"].append(heal(args, 1, standby=1)["full"])
        times["standby_waiting"].append(heal(args, args.ranks, standby=1)["next"])
        if not args.ours_only and repetition < args.peer_repetitions:
            seconds, redone = torchrun(args.ranks)
            times["torchrun"].append(seconds)
            again = max(again, redone)
        note(f"{repetition + 1}/{args.repetitions} "
             + ", ".join(f"{name} {v[-1]:.3f} s" for name, v in times.items() if v))
    labels = {"out": "survivors out of the collective", "next": "on with the survivors",
              "full": "back at full strength", "waiting": "waiting for the replacement",
              "standby": "back at full strength, with a spare",
              "standby_waiting": "waiting, with a spare",
              "torchrun": f"torchrun, all restarted, {again} steps again"}
    result = {"machine": description, "ranks": args.ranks,
              "seconds": {name: summary(v) for name, v in times.items() if v},
              "torchrun_steps_again": again}
    report("recovery", args, result,
           [(labels[name], text(value, " s")) for name, value in result["seconds"].items()])


if __name__ == "__main__":
    main()
