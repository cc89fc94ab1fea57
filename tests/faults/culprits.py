#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets one worker fail and checks that the launcher names it, and how it failed, every time.

How it fails: SIGSEGV, SIGABRT, an exit code, SIGKILL from outside (as by the kernel when memory runs
out), SIGSTOP, a hang, or SIGKILL while it holds so much memory that its process ends long after the
others have seen its death. In many runs some of the others are killed a moment later, in other ways,
by somebody who has seen the death: they are victims. Ranks, steps, places and ways are drawn from
--seed. Every second job heals, the others end with the failure (restart.max_restarts: 0).

- the first fault names the rank and its cause, and of the others only those that fell with it;
- without healing the exit code is the culprit's and the message names it;
- with healing the job ends well.

As a test it runs a fixed set; `culprits.py -n 200 --seed 7` draws others.
"""

import argparse
import glob
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BIN = os.environ.get("LOCKSTEP_BIN", "")
STEPS = 60
LIMIT = 300  # seconds for one run
BIG_MEBIBYTES = 384
DETECTION = 2  # seconds; longer than a busy machine keeps others from their heartbeats
# Runs in which somebody outside is to find a rank at work take so long for a step until he has: 18 s at least.
PACE = {"LOCKSTEP_STEP_TIME": "30ms"}
PACED_STEPS = 600
PLACES = ("", "", "/reduce", "/reduced", "/committed")
ENDS = ("segv", "abort", "exit", "kill", "stop", "hang", "big")
# A robust futex: the owner's thread id, and the bit that the kernel sets when it died.
TID, DIED = 0x3FFFFFFF, 0x40000000

JOB = """name: culprit
resources: {{nproc_per_node: {workers}, device: cpu}}
elastic: {{min_workers: 1}}
failure_detection: {detection}
restart: {{max_restarts: {restarts}}}
train:
  model: {{mlp: {{hidden: [32]}}}}
  data: {{synthetic: {{train_samples: 500, test_samples: 100, features: 24, classes: 5}}}}
  optimizer: {{sgd: {{lr: 0.05, momentum: 0.9}}}}
  shards: {workers}
  global_batch: 48
  steps: {steps}
  seed: 5
  eval: {{every: 20 steps, block: 20}}
"""


class Wrong(Exception):
    """Another rank or another cause was named."""


class Case:
    """What happens in one run."""

    def __init__(self, number, seed, end=None):
        draw = random.Random(f"{seed}/{number}")
        self.number = number
        self.workers = draw.choice((2, 3, 4, 4))
        self.rank = draw.randrange(self.workers)
        self.end = end or draw.choice(ENDS)
        self.step = draw.randint(3, STEPS - 2)
        self.place = draw.choice(PLACES)
        self.code = draw.choice((0, 1, 3, 77, 134, 137, 255))
        self.heals = number % 2 == 1
        # From outside, at any moment of the run, and not at a place of a step.
        self.outside = self.end in ("kill", "stop", "segv", "abort") and draw.random() < 0.4
        self.delay = draw.uniform(0, 0.15)
        others = [rank for rank in range(self.workers) if rank != self.rank]
        falls = self.end != "stop" and self.end != "hang" and (self.end == "big" or draw.random() < 0.5)
        self.victims = draw.sample(others, draw.randint(1, len(others))) if falls else []
        self.moment = draw.uniform(0.0005, 0.005)  # between two deaths
        self.ways = [draw.choice((signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)) for _ in self.victims]

    def number_of_signal(self):
        return {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "stop": signal.SIGSTOP}.get(
            self.end, signal.SIGKILL)

    def flags(self):
        """The faults of `launcher chaos`; empty: it is done from outside."""
        if self.outside:
            return []
        where = f"rank:{self.rank}@step:{self.step}{self.place}"
        if self.end == "big":
            return ["--grow", f"rank:{self.rank}@step:2={BIG_MEBIBYTES}", "--kill", where]
        return [f"--{self.end}", where + (f"={self.code}" if self.end == "exit" else "")]

    def cause(self):
        """What the fault's cause begins with."""
        if self.end == "exit":
            return (f"exited with code {self.code}" if self.code else
                    "exited with code 0 before its work was done")
        if self.end == "stop":
            return f"no heartbeat for {DETECTION} s"
        if self.end == "hang":
            return "no progress for "
        number = self.number_of_signal()
        return f"killed by {number.name} (signal {number.value})"

    def exit_code(self):
        if self.end == "exit":
            return self.code or 1
        return 1 if self.end in ("stop", "hang") else 128 + self.number_of_signal()

    def describe(self):
        where = (f"{self.delay * 1000:.0f} ms after the start" if self.outside
                 else f"step {self.step}{self.place}")
        code = f" {self.code}" if self.end == "exit" else ""
        fell = f", then {self.victims}" if self.victims else ""
        return (f"{self.number}: {self.end}{code} of rank {self.rank} of {self.workers} at {where}{fell}"
                f"{', heals' if self.heals else ''}")


class LifeWords:
    """The first lives of a launcher's workers, as its life page shows them: pids and deaths."""

    def __init__(self, launcher):
        self.page = None
        for path in glob.glob(f"/proc/{launcher}/fd/*"):
            try:
                if os.readlink(path).startswith("/memfd:lockstep-life"):
                    with open(path, "rb") as file:
                        self.page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                    return
            except (OSError, ValueError):  # gone, or not as large as it will be
                continue

    def word(self, rank):
        # A head of 8 bytes, 8 bytes of turns for each word, then the words (common/life.cc).
        count = (len(self.page) - 8) // 12
        return struct.unpack_from("<I", self.page, 8 + 8 * count + 4 * rank)[0]

    def pid(self, rank):
        return self.word(rank) & TID

    def died(self, rank):
        return bool(self.word(rank) & DIED)


def wait_for(condition, child):
    """The first true value; none when the launcher ends before."""
    while child.poll() is None:
        value = condition()
        if value:
            return value
        time.sleep(0.0002)
    return None


def life_words(child):
    words = LifeWords(child.pid)
    return words if words.page is not None else None


def signal_pid(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def unpaced(folder):
    return os.path.join(folder, "unpaced")


def interfere(case, child, folder):
    """What somebody outside does to the run. Returns whether he found it at work."""
    if not case.outside and not case.victims:
        return True
    words = wait_for(lambda: life_words(child), child)
    ready = words and wait_for(lambda: all(words.pid(r) for r in range(case.workers)), child)
    if not ready:
        return False
    pids = [words.pid(rank) for rank in range(case.workers)]
    if case.outside:
        time.sleep(case.delay)
        signal_pid(pids[case.rank], case.number_of_signal())
        with open(unpaced(folder), "w", encoding="ascii"):
            pass
    if not case.victims or not wait_for(lambda: words.died(case.rank), child):
        return True
    for victim, way in zip(case.victims, case.ways):
        time.sleep(case.moment)
        signal_pid(pids[victim], way)
    return True


def check(case, code, out, err):
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        raise Wrong(f"no result, exit code {code}:\n{err[-2000:]}")
    result = json.loads(lines[-1])
    faults = result["faults"]
    said = [(fault["rank"], fault["cause"], fault["victims"]) for fault in faults]
    if not faults:
        raise Wrong(f"no fault was named; exit code {code}, {result['state']}\n{err[-2000:]}")
    first = faults[0]
    if first["rank"] != case.rank or not first["cause"].startswith(case.cause()):
        raise Wrong(f"named {said}, not rank {case.rank} ({case.cause()})\n{err[-2000:]}")
    if not case.heals:
        if len(faults) != 1 or set(first["victims"]) - set(range(case.workers)) or case.rank in first["victims"]:
            raise Wrong(f"faults {said}")
        if code != case.exit_code() or first["exit_code"] != code:
            raise Wrong(f"exit code {code}, not {case.exit_code()}: {said}")
        if f"rank {case.rank} " not in err or first["cause"] not in err:
            raise Wrong(f"not told: {err[-2000:]}")
        return
    if code != 0 or result["state"] != "SUCCEEDED":
        raise Wrong(f"exit code {code}: {said}\n{err[-2000:]}")
    # Whoever was killed after the others went on is a failure of its own.
    named = {fault["rank"] for fault in faults} | {v for fault in faults for v in fault["victims"]}
    if named - {case.rank} - set(case.victims):
        raise Wrong(f"also named: {said}")


def run(case, folder):
    """Returns what was named; None when the run ended before anything happened to it."""
    job = os.path.join(folder, "job.yaml")
    with open(job, "w", encoding="utf-8") as file:
        file.write(JOB.format(workers=case.workers, detection=f"{DETECTION}s" if case.end in ("stop", "hang") else "60s",
                              steps=PACED_STEPS if case.outside else STEPS, restarts=10 if case.heals else 0))
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)
    environment = dict(os.environ)
    if case.outside:
        environment.update(PACE, LOCKSTEP_STEP_TIME_UNTIL=unpaced(folder))
        if os.path.exists(unpaced(folder)):
            os.remove(unpaced(folder))
    flags = case.flags()
    command = [os.path.join(BIN, "launcher"), "chaos" if flags else "run", "-o", "json", *flags, job]
    child = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        happened = interfere(case, child, folder)
        out, err = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        raise Wrong(f"did not end within {LIMIT} s:\n{err[-3000:]}") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if case.outside and not happened:
        return None
    check(case, child.returncode, out, err)
    return json.loads(out.strip().splitlines()[-1])["faults"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=28, help="so many failures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the one of this number")
    parser.add_argument("--end", choices=ENDS, help="in this way alone")
    args = parser.parse_args()
    numbers = range(args.n) if args.only is None else (args.only,)
    # The first ones come in every way, with and without healing.
    cases = [Case(n, args.seed, args.end or (ENDS[n // 2 % len(ENDS)] if n < 2 * len(ENDS) else None))
             for n in numbers]
    folder = tempfile.mkdtemp(prefix="lockstep-culprits-")
    wrong, none, begin = 0, 0, time.monotonic()
    counts = {}
    try:
        for case in cases:
            start = time.monotonic()
            try:
                faults = run(case, folder)
                said = "nothing happened" if faults is None else "; ".join(
                    f"rank {f['rank']}: {f['cause']}, victims {f['victims']}" for f in faults)
                none += faults is None
                counts[case.end] = counts.get(case.end, 0) + (faults is not None)
            except Wrong as error:
                wrong += 1
                said = f"WRONG: {error}\n  again with: --seed {args.seed} --only {case.number}"
            print(f"{case.describe()}: {said} ({time.monotonic() - start:.2f} s)", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(cases)} failures ({', '.join(f'{n} {end}' for end, n in sorted(counts.items()))}), "
          f"{none} did not happen, {wrong} named wrongly, {time.monotonic() - begin:.0f} s")
    return 1 if wrong or none or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
