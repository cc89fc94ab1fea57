#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the simulator sees: each patch of tests/simulation/planted is a bug, and some seed must find it.

The patches are applied one after another to a copy of the repository, in which the simulator alone is built,
with little optimisation, and run: seeds 1 to N as CI runs them, then with users, then with drained nodes.
Prints a row of a table for each bug. Exits with 1 when one is not found, or a patch does not apply.

  tools/planted_bugs.py [--seeds=400] [--build=DIR] [--cmake=-DNAME=VALUE] [NAME...]
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLANTED = ROOT / "tests" / "simulation" / "planted"
MODES = ([], ["--users"], ["--drains"])
CHUNK = 25


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False, **options)


def make_copy(work, more):
    """The tracked files as they are now, and a build folder for the simulator."""
    source = work / "source"
    source.mkdir(parents=True, exist_ok=True)
    files = run(["git", "ls-files", "-z"], ROOT).stdout.split("\0")
    for name in filter(None, files):
        target = source / name
        if not (ROOT / name).is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            shutil.copy2(ROOT / name, target)
    if not (work / "build" / "build.ninja").exists():
        # A bug is one source that is compiled anew, so each source is a unit of its own.
        flags = ["-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DLOCKSTEP_UNITY=OFF", "-DLOCKSTEP_TESTS=ON", *more]
        made = run(["cmake", "--preset", "release", "-B", str(work / "build"), *flags], source)
        if made.returncode != 0:
            sys.exit(f"cmake fails:\n{made.stderr}")
    return source


def build(work):
    made = run(["ninja", "-C", str(work / "build"), "-j2", "simulator"], work)
    return made.returncode == 0, made.stdout[-2000:]


def plant(patch, source, *more):
    return run(["patch", "-p1", "-s", "--no-backup-if-mismatch", *more, "-i", str(patch)], source)


def find(work, seeds):
    """The first seed that sees something, with what flags, and what; or nothing."""
    simulator = work / "build" / "tests" / "simulator"
    for flags in MODES:
        for first in range(1, seeds + 1, CHUNK):
            count = min(CHUNK, seeds - first + 1)
            command = ["nice", str(simulator), f"--seed={first}", f"--seeds={count}", *flags]
            try:
                ran = run(command, work, timeout=300)
            except subprocess.TimeoutExpired:
                return first, flags, "the seeds do not end"
            match = re.search(r"^seed (\d+) \(.*?\) after \S+ (.*)$", ran.stdout, re.MULTILINE)
            if match:
                return int(match.group(1)), flags, match.group(2)
            if ran.returncode != 0:
                return first, flags, f"ended with {ran.returncode}: {ran.stderr.strip()[-200:]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--build", default=str(ROOT / "build" / "planted"))
    parser.add_argument("--cmake", action="append", default=[])
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    work = pathlib.Path(arguments.build)
    source = make_copy(work, arguments.cmake)
    blind = 0
    print("| planted bug | found by | seconds | as |\n|---|---|---|---|", flush=True)
    for patch in sorted(PLANTED.glob("*.patch")):
        if arguments.names and patch.stem not in arguments.names:
            continue
        begun = time.monotonic()
        applied = plant(patch, source)
        built, output = build(work) if applied.returncode == 0 else (False, applied.stdout)
        found = find(work, arguments.seeds) if built else None
        plant(patch, source, "-R")
        row = [patch.stem.replace("_", " ")]
        if not built:
            row += ["cannot be planted", "", output]
        elif found is None:
            row += [f"NOT FOUND in {len(MODES)} x {arguments.seeds} seeds", "", ""]
        else:
            row += [" ".join([f"seed {found[0]}", *found[1]]), "", found[2]]
        row[2] = f"{time.monotonic() - begun:.0f}"
        print("| " + " | ".join(row) + " |", flush=True)
        blind += found is None
    return 1 if blind else 0


if __name__ == "__main__":
    sys.exit(main())
