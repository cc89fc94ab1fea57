#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the simulator sees: each patch of tests/simulation/planted is a bug, and some seed must find it.

The patches are applied one after another to a copy of the repository, in which the simulator is built and
run. Prints one line for each bug. Exits with 1 when one is not found, or a patch does not apply.

  tools/planted_bugs.py [--seeds=1000] [--build=DIR] [NAME...]
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


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False, **options)


def make_copy(work):
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
        made = run(["cmake", "--preset", "release", "-B", str(work / "build")], source)
        if made.returncode != 0:
            sys.exit(f"cmake fails:\n{made.stderr}")
    return source


def build(work):
    made = run(["ninja", "-C", str(work / "build"), "-j2", "simulator"], work)
    return made.returncode == 0, made.stdout[-2000:]


def find(work, seeds):
    """The first seed that sees something, and what; or nothing."""
    simulator = work / "build" / "tests" / "simulator"
    for first in range(1, seeds + 1, 50):
        count = min(50, seeds - first + 1)
        command = [str(simulator), f"--seed={first}", f"--seeds={count}"]
        try:
            ran = run(command, work, timeout=300)
        except subprocess.TimeoutExpired:
            return first, "the seeds do not end"
        match = re.search(r"^seed (\d+) \(.*?\) (.*)$", ran.stdout, re.MULTILINE)
        if match:
            return int(match.group(1)), match.group(2)
        if ran.returncode != 0:
            return first, f"ended with {ran.returncode}: {ran.stderr[-200:]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--build", default=str(ROOT / "build" / "planted"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    work = pathlib.Path(arguments.build)
    source = make_copy(work)
    blind = 0
    for patch in sorted(PLANTED.glob("*.patch")):
        if arguments.names and patch.stem not in arguments.names:
            continue
        begun = time.monotonic()
        applied = run(["patch", "-p1", "-s", "--no-backup-if-mismatch", "-i", str(patch)], source)
        built, output = build(work) if applied.returncode == 0 else (False, applied.stdout)
        found = find(work, arguments.seeds) if built else None
        run(["patch", "-p1", "-s", "--no-backup-if-mismatch", "-R", "-i", str(patch)], source)
        took = time.monotonic() - begun
        if not built:
            print(f"{patch.stem}: cannot be planted: {output}", flush=True)
        elif found is None:
            print(f"{patch.stem}: NOT FOUND in {arguments.seeds} seeds ({took:.0f} s)", flush=True)
        else:
            print(f"{patch.stem}: seed {found[0]} ({took:.0f} s): {found[1]}", flush=True)
        blind += found is None
    return 1 if blind else 0


if __name__ == "__main__":
    sys.exit(main())
