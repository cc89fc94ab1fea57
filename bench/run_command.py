#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands under torchrun's contract: launcher beside torchrun, from Enter to exit, and after a kill.

A script that does nothing, with 1, 2 and 4 ranks; and a script of 2 ranks of which one kills itself in the first
attempt: the time until every rank of the second attempt runs. Neither script imports PyTorch, so that the launchers
alone are measured.
"""
import os
import tempfile

from common import LAUNCHER, machine, note, parser, peer_python, report, run, summary, text

RANKS = (1, 2, 4)
NOOP = "pass\n"
DIES = """
import os, signal, time
os.chdir(os.path.dirname(os.path.abspath(__file__)))
rank, attempt = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"there-{attempt}-{rank}", "w") as file:
    file.write(repr(time.time()))
if attempt == 0:
    while not all(os.path.exists(f"there-0-{r}") for r in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.001)
    if rank == "1":
        with open("killed", "w") as file:
            file.write(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""


def ours(ranks, *flags):
    return lambda script, logs: [LAUNCHER, "--quiet", f"--nproc-per-node={ranks}", f"--log-dir={logs}", *flags, script]


def torchrun(ranks, *flags):
    return lambda script, logs: [peer_python(), "-m", "torch.distributed.run", "--standalone",
                                 f"--nproc-per-node={ranks}", f"--log-dir={logs}", *flags, script]


def in_folder(script, command):
    """Seconds of the command that runs `script`, and the times that the script left, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        seconds = run(command(path, os.path.join(folder, "logs")))[1]
        left = {}
        for name in os.listdir(folder):
            if name == "killed" or name.startswith("there-"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    left[name] = float(file.read())
        return seconds, left


def restart(side):
    _, left = in_folder(DIES, side(2, "--max-restarts=1"))
    return max(left[f"there-1-{rank}"] for rank in range(2)) - left["killed"]


def main():
    args = parser(__doc__.splitlines()[0], repetitions=5).parse_args()
    description = machine(len(os.sched_getaffinity(0)))
    sides = {"ours": ours} if args.ours_only else {"ours": ours, "torchrun": torchrun}
    cases = [f"{ranks} ranks" for ranks in RANKS] + ["restart"]
    times = {(name, case): [] for name in sides for case in cases}
    for repetition in range(args.repetitions):
        for name, side in sides.items():
            for ranks in RANKS:
                times[name, f"{ranks} ranks"].append(in_folder(NOOP, side(ranks))[0])
            times[name, "restart"].append(restart(side))
        note(f"{repetition + 1}/{args.repetitions} "
             + ", ".join(f"{name} {case} {v[-1]:.3f} s" for (name, case), v in times.items()))
    result = {"machine": description,
              "seconds": {f"{name}, {case}": summary(v) for (name, case), v in times.items()}}
    lines = []
    for case in cases:
        what = "kill of a rank until all run again" if case == "restart" else f"nothing, {case}"
        for name in sides:
            lines.append((f"{what}: {name}", text(summary(times[name, case]), " s")))
        if "torchrun" in sides:
            ratio = summary([t / o for t, o in zip(times["torchrun", case], times["ours", case])])
            lines.append(("  ours is quicker by", text(ratio, " x")))
    report("run_command", args, result, lines)


if __name__ == "__main__":
    main()
