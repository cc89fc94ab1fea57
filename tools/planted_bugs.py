#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that the simulator sees: each patch of tests/simulation/planted is a bug, and some seed must find it.

The patches are applied, all together, to a copy of the repository, in which the simulator alone is built, with
little optimisation. Each of them does its harm where PLANTED("its name") says so: that is a macro of this build
alone, true when the environment's LOCKSTEP_PLANTED is that name, so one build has all bugs and none by itself.
Then each is run: seeds 1 to N plainly, with users, with drained nodes and with a queue, a chunk of each in turn.
Prints a row of a table for each bug. Exits with 1 when one is not found, a patch does not apply, or the build
fails without any.

  tools/planted_bugs.py [--seeds=400] [--build=DIR] [--cmake=-DNAME=VALUE] [NAME...]
  tools/planted_bugs.py --check  # only whether each patch applies
"""
import argparse
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLANTED = ROOT / "tests" / "simulation" / "planted"
MODES = ([], ["--users"], ["--drains"], ["--queue"])
CHUNK = 25
MOST_CPU_S = 120  # of a chunk, which takes a second or two when its seeds end
SWITCH = """#pragma once
#ifdef __cplusplus
#include <cstdlib>
#include <cstring>
// Whether the bug of this name is to happen.
inline bool IsPlanted(const char* name) {
  const char* const chosen = std::getenv("LOCKSTEP_PLANTED");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}
#define PLANTED(name) ([] { static const bool is = IsPlanted(name); return is; }())
#endif
"""


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, check=False, **options)


def write(target, content):
    """Nothing is compiled anew that is as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)


def places(text):
    """The files that a patch changes, with the lines that each of its hunks is to find there."""
    name, found = "", []
    for line in text.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            found.append((name, []))
        elif found and not line.startswith(("+", "--- ")):
            found[-1][1].append(line[1:])
    return [(name, "\n" + "\n".join(lines) + "\n") for name, lines in found]


def plant(copy):
    """Applies all patches to a copy of the sources, where their lines are and nowhere else."""
    for patch in sorted(PLANTED.glob("*.patch")):
        text = patch.read_text()
        if f'PLANTED("{patch.stem}")' not in text:
            sys.exit(f"{patch}: it does not ask PLANTED(\"{patch.stem}\")")
        for name, lines in places(text):
            times = ("\n" + (pathlib.Path(copy) / name).read_text()).count(lines)
            if times != 1:
                sys.exit(f"{patch}: its lines are in {name} {times} times; make it anew for the sources as they are")
        applied = run(["patch", "-p1", "-s", "-F0", "--no-backup-if-mismatch", "-i", str(patch)], copy)
        if applied.returncode != 0:
            sys.exit(f"{patch} does not apply; make it anew for the sources as they are:\n{applied.stdout}")


def check():
    """Whether the patches apply to the sources as they are."""
    with tempfile.TemporaryDirectory() as folder:
        for patch in PLANTED.glob("*.patch"):
            for name in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE):
                write(pathlib.Path(folder) / name, (ROOT / name).read_bytes())
        plant(folder)


def make_copy(work, more):
    """The tracked files as they are now, with all bugs, and a build folder for the simulator."""
    fresh, source = work / "fresh", work / "source"
    shutil.rmtree(fresh, ignore_errors=True)
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    for name in files:
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, fresh / name)
    plant(fresh)
    for name in files:
        write(source / name, (fresh / name).read_bytes())
    shutil.rmtree(fresh)
    switch = work / "planted.h"
    write(switch, SWITCH.encode())
    if not (work / "build" / "build.ninja").exists():
        flags = [f"-DCMAKE_CXX_FLAGS=-include {switch}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
                 "-DLOCKSTEP_UNITY=ON", "-DLOCKSTEP_PCH=OFF", "-DLOCKSTEP_TESTS=ON", *more]
        made = run(["cmake", "--preset", "release", "-B", str(work / "build"), *flags], source)
        if made.returncode != 0:
            sys.exit(f"cmake fails:\n{made.stderr}")


def build(work):
    made = run(["ninja", "-C", str(work / "build"), "-j2", "simulator"], work)
    if made.returncode != 0:
        sys.exit(f"the simulator with its bugs does not build:\n{made.stdout[-4000:]}")


def look(work, name, first, count, flags):
    """What the first of these seeds that sees something sees; or nothing. An empty name is no bug."""
    command = ["nice", str(work / "build" / "tests" / "simulator"), f"--seed={first}", f"--seeds={count}", "--first",
               *flags]
    # Of CPU time, as others may use the machine.
    ran = run(command, work, env={**os.environ, "LOCKSTEP_PLANTED": name},
              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1)))
    if ran.returncode in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        sys.exit(f"{name}: its search was stopped from outside, which says nothing of it")
    if ran.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return first, flags, "the seeds do not end"
    match = re.search(r"^seed (\d+) \(.*?\) after \S+ (.*)$", ran.stdout, re.MULTILINE)
    if match:
        return int(match.group(1)), flags, match.group(2)
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or [""]
        return first, flags, f"ended with {ran.returncode}: {said[0][:200]}"
    return None


def find(work, name, seeds):
    """A seed that sees something, with what flags, and what; or nothing. A chunk of each kind in turn."""
    for first in range(1, seeds + 1, CHUNK):
        for flags in MODES:
            found = look(work, name, first, min(CHUNK, seeds - first + 1), flags)
            if found is None:
                continue
            if look(work, "", found[0], 1, flags) is not None:
                sys.exit(f"seed {found[0]} {' '.join(flags)} fails without any bug")
            return found
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--build", default=str(ROOT / "build" / "planted"))
    parser.add_argument("--cmake", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.check:
        return check()
    work = pathlib.Path(arguments.build).absolute()
    make_copy(work, arguments.cmake)
    build(work)
    known = sorted(patch.stem for patch in PLANTED.glob("*.patch"))
    if unknown := set(arguments.names) - set(known):
        sys.exit(f"no such planted bug: {', '.join(sorted(unknown))}")
    blind = 0
    print("| planted bug | found by | seconds | as |\n|---|---|---|---|", flush=True)
    for name in arguments.names or known:
        begun = time.monotonic()
        found = find(work, name, arguments.seeds)
        seed, seen = f"NOT FOUND in {len(MODES)} x {arguments.seeds} seeds", ""
        if found is not None:
            seed, seen = " ".join([f"seed {found[0]}", *found[1]]), found[2]
        print(f"| {name.replace('_', ' ')} | {seed} | {time.monotonic() - begun:.1f} | {seen} |", flush=True)
        blind += found is None
    return 1 if blind else 0


if __name__ == "__main__":
    sys.exit(main())
