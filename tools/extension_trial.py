#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Extends a copy of the repository, and holds CONTRIBUTING.md to the number of files that it took.

Each patch of tests/trial adds one thing of the kind that its name says: operator.patch an operator with its
gradient, model.patch a model. CONTRIBUTING.md's table says how many files of the product, tests and pages such
a thing touches; the patch must touch as many. All patches are applied to one copy, in which the layers, the
lists of files and the documents must hold. Then the copy is built, and what is new is tested there.
Exits with 1 when a number is another one, a patch does not apply, or a check, the build or a test fails.

  tools/extension_trial.py [--build=DIR] [--cmake=-DNAME=VALUE]
  tools/extension_trial.py --check  # without building: seconds
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from source_files import repository_files

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRIAL = ROOT / "tests" / "trial"
TABLE = ROOT / "CONTRIBUTING.md"
COUNT = re.compile(r"(\d+) and (\d+) tests?(?: and (\d+) pages?)?")
CHECKS = (["tools/check_layers.py"], ["tools/check_registered.py"], ["tools/check_docs.py"],
          ["tools/gen_job_reference.py", "--check"])
PROGRAMS = ["lockstep_bin_launcher", "lockstep_bin_worker", "lockstep_bin_coordinator"]
# What is run of a test program of the build, and how many tests must pass.
TESTS = (
    ("conformance_ops_test", "*/square*", 5),
    ("conformance_cuda_ops_test", "*Emulated*/square*", 4),
    ("engine_precision_test", "*/resmlp_*", 26),
    ("engine_recompute_test", "*/resmlp_*", 4),
    ("engine_cuda_executor_test", "*/resmlp_*", 6),
    ("worker_model_plan_test", "*", 4),
    ("job_keys_test", "*", 2),
)
# A job of the new model with different numbers of workers.
JOB = ["tests/integration/programs/models_test.py", "Models.test_resmlp"]


def kind_of(path):
    """What a file counts as."""
    if path.startswith(("tests/", "bench/")):
        return "tests"
    return "pages" if path.endswith(".md") else "product"


def touched(patch):
    """How many files of the product, tests and pages the text of a patch changes or makes."""
    kinds = [kind_of(path) for path in re.findall(r"^\+\+\+ b/(\S+)", patch, re.MULTILINE)]
    return tuple(kinds.count(kind) for kind in ("product", "tests", "pages"))


def stated(table, name):
    """The same numbers, as the table's row for a thing of this name says them ("today")."""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and cells[1] in (f"a {name}", f"an {name}"):
            match = COUNT.match(cells[3])
            return tuple(int(count or 0) for count in match.groups()) if match else None
    return None


def say(counts):
    return "nothing that can be read" if counts is None else "%d of the product, %d tests, %d pages" % counts


def differences(table, patches):
    """Sentences about {name: text of its patch} of which the table says something else."""
    return [f"{name}: its patch touches {say(touched(text))}; {TABLE.name} says {say(stated(table, name))}"
            for name, text in sorted(patches.items()) if touched(text) != stated(table, name)]


def run(command, cwd, **options):
    return subprocess.run(command, cwd=cwd, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **options)


def extend(copy):
    """Copies the sources as they are now, and applies all patches."""
    for name in repository_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for patch in sorted(TRIAL.glob("*.patch")):
        applied = run(["patch", "-p1", "-s", "--no-backup-if-mismatch", "-i", str(patch)], copy)
        if applied.returncode != 0:
            sys.exit(f"{patch} does not apply; make it anew for the sources as they are:\n{applied.stdout}")


def check(copy):
    """What the repository's own checks find in the copy."""
    found = []
    for command in CHECKS:
        checked = run([sys.executable, *command], copy, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        if checked.returncode != 0:
            found.append(f"{' '.join(command)} in the copy:\n{checked.stdout}")
    return found


def renew(fresh, source):
    """Makes `source` what `fresh` is. Nothing is compiled anew that is as it was."""
    kept = set()
    for path in sorted(path for path in fresh.rglob("*") if path.is_file()):
        target = source / path.relative_to(fresh)
        kept.add(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != path.read_bytes():
            shutil.copy(path, target)
    for path in [path for path in source.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()


def build(work, more):
    if not (work / "build" / "build.ninja").exists():
        flags = ["-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DLOCKSTEP_UNITY=ON", "-DLOCKSTEP_TESTS=ON", *more]
        made = run(["cmake", "--preset", "release", "-B", str(work / "build"), *flags], work / "source")
        if made.returncode != 0:
            sys.exit(f"cmake fails:\n{made.stdout[-4000:]}")
    made = run(["ninja", "-C", str(work / "build"), "-j2", *PROGRAMS, *(row[0] for row in TESTS)], work)
    if made.returncode != 0:
        sys.exit(f"the copy does not build:\n{made.stdout[-4000:]}")


def test(work):
    """Runs what is new; returns what failed."""
    build = work / "build"
    rows = [([str(build / "tests" / program), f"--gtest_filter={some}"], f"{program} {some}", least)
            for program, some, least in TESTS]
    rows.append(([sys.executable, *JOB], " ".join(JOB), 1))
    failed = []
    for command, name, least in rows:
        begun = time.monotonic()
        ran = run(command, work / "source", env={**os.environ, "LOCKSTEP_BIN": str(build / "bin")})
        passed = re.search(r"^\[  PASSED  \] (\d+) tests?|^Ran (\d+) tests?", ran.stdout, re.MULTILINE)
        count = int(passed[1] or passed[2]) if passed else 0
        print(f"{name}: {count} tests passed in {time.monotonic() - begun:.1f} s", flush=True)
        if ran.returncode != 0 or count < least:
            failed.append(f"{name}: {count} of at least {least} tests passed\n{ran.stdout[-4000:]}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "trial"))
    parser.add_argument("--cmake", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    patches = {patch.stem: patch.read_text() for patch in TRIAL.glob("*.patch")}
    problems = differences(TABLE.read_text(), patches)
    for name, text in sorted(patches.items()):
        print(f"{name}: {say(touched(text))}")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        extend(copy)
        problems += check(copy)
        if not arguments.check and not problems:
            work = pathlib.Path(arguments.build).absolute()
            renew(copy, work / "source")
            build(work, arguments.cmake)
            problems += test(work)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
