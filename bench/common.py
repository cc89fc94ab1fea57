# SPDX-License-Identifier: Apache-2.0
"""What the benchmark scripts share: the machine, runs of ours and of the peer, medians and spread.

Python's standard library only. The peer runs in an environment of its own (./dev bench setup, or
LOCKSTEP_PEER_PYTHON names an interpreter that has PyTorch).
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.path.join(ROOT, "build", "release", "bin")
LAUNCHER = os.path.join(BIN, "launcher")
# Two threads must do this much of twice the work of one, else something else uses the cores.
MIN_SCALING_PER_CORE = 0.95


def fail(message, code=1):
    print(f"bench: {message}", file=sys.stderr)
    sys.exit(code)


def note(message):
    print(message, file=sys.stderr, flush=True)


def peer_python():
    """The peer's interpreter; fails with what to do when there is none."""
    path = os.environ.get("LOCKSTEP_PEER_PYTHON",
                          os.path.join(ROOT, "build", "bench-venv", "bin", "python"))
    if not os.access(path, os.X_OK):
        fail("the peer (PyTorch) is not installed: run ./dev bench setup, or give --ours-only")
    return path


def run(command, timeout=600, **options):
    """Runs a command to its end; fails with its last lines when it does. Returns (stdout, seconds)."""
    start = time.perf_counter()
    try:
        result = subprocess.run(command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=timeout, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"{command[0]}: {error}")
    seconds = time.perf_counter() - start
    if result.returncode != 0:
        fail(f"{' '.join(command)}: exit code {result.returncode}\n"
             + "\n".join((result.stdout + result.stderr).splitlines()[-20:]))
    return result.stdout, seconds


def last_json(text):
    """The object on the last line that is one."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return fail(f"expected a line of JSON, got: {text[-500:]!r}")


def peak(threads):
    """What the CPU can do at most, and whether `threads` threads get whole cores now."""
    return last_json(run([os.path.join(BIN, "peak"), str(threads)])[0])


def machine(threads):
    """The CPU, its cores and its measured ceiling."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
            **peak(threads)}


def has_whole_cores(threads):
    """True when `threads` threads are not disturbed at this moment."""
    return peak(threads)["scaling"] >= MIN_SCALING_PER_CORE * threads


def wait_for_whole_cores(threads, tries=20):
    """Waits until nothing else uses the cores; fails when that does not come."""
    if len(os.sched_getaffinity(0)) < threads:
        fail(f"needs {threads} cores, has {len(os.sched_getaffinity(0))}")
    for _ in range(tries):
        if has_whole_cores(threads):
            return
        time.sleep(1)
    fail(f"rejected: {threads} threads do less than {MIN_SCALING_PER_CORE * threads:.2f} times the "
         "work of one, so something else uses the cores; run it on a quiet machine", 3)


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "runs": len(values)}


def text(value, unit=""):
    """`median (min - max)`, for people."""
    form = "{:,.0f}" if value["median"] >= 100 else "{:.3f}"
    return (f"{form.format(value['median'])}{unit} "
            f"({form.format(value['min'])} - {form.format(value['max'])}, {value['runs']} runs)")


def parser(description, repetitions):
    result = argparse.ArgumentParser(description=description)
    result.add_argument("-n", "--repetitions", type=int, default=repetitions)
    result.add_argument("-o", "--output", choices=("table", "json"), default="table")
    result.add_argument("--ours-only", action="store_true", help="leave the peer out")
    result.add_argument("--save", action="store_true", help="write bench/results/NAME.json too")
    return result


def report(name, args, result, lines):
    """Prints the result as asked and keeps it when asked."""
    result = {"benchmark": name, "time": datetime.datetime.now(datetime.timezone.utc)
              .isoformat(timespec="seconds"), **result}
    if args.output == "json":
        print(json.dumps(result))
    else:
        m = result["machine"]
        print(f"{m['cpu']}, {m['cores']} cores, {m['isa']}: {m['gflops_one']:.0f} GFLOP/s on one "
              f"thread, {m['gflops_all']:.0f} on {m['threads']} (x {m['scaling']:.2f})")
        for label, value in lines:
            print(f"{label:<44} {value}")
    if args.save:
        folder = os.path.join(ROOT, "bench", "results")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
