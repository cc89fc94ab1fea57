#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects files that nothing builds or runs.

A source that no CMakeLists.txt names is dead code, and a test that none names is not a test. Golden
files and examples must be named by a test, scenarios by a test or their own CMakeLists.txt (a folder
that is run as a whole counts, when its name is given).
"""
import os
import re
import sys

from source_files import ROOT, read, repository_files

SOURCES = (".cc", ".cu", ".c", ".proto")
# Test inputs: folder -> what must name the file.
INPUTS = {
    "tests/golden": "a test or a CMakeLists.txt",
    "tests/scenarios": "a test or a CMakeLists.txt",
    "examples": "a test, a benchmark or ./dev",
}
WORD = re.compile(r"[\w.-]+")
CMAKE_COMMENT = re.compile(r"#[^\n]*")


def names_in_cmake(text):
    """The words of a CMake file without its comments."""
    return set(re.split(r"[\s()\"]+", CMAKE_COMMENT.sub("", text)))


def cmake_names(path, cmake_files):
    """True when a CMakeLists.txt in the file's folder or above names it, relative to itself."""
    folder = os.path.dirname(path)
    while True:
        words = cmake_files.get(os.path.join(folder, "CMakeLists.txt") if folder
                                else "CMakeLists.txt")
        if words is not None:
            relative = os.path.relpath(path, folder or ".")
            wanted = {relative, "${CMAKE_CURRENT_SOURCE_DIR}/" + relative,
                      "${CMAKE_SOURCE_DIR}/" + path, "${PROJECT_SOURCE_DIR}/" + path}
            if words & wanted:
                return True
        if not folder:
            return False
        folder = os.path.dirname(folder)


def is_runner(path):
    """Files that can run a test input: tests, benchmarks, the task entry, build files."""
    return (path in ("dev", ".ci/run") or path.endswith("CMakeLists.txt")
            or (path.startswith(("tests/", "bench/")) and path.endswith((".cc", ".h", ".py", ".sh"))))


def names_in(text):
    """What a text may call files: its words, and what of them stands before a '.'."""
    names = set()
    for word in set(WORD.findall(text)):
        names.add(word)
        names.update(word[:dot.start()] for dot in re.finditer(r"\.", word))
    return names


def input_is_named(path, runners, names):
    """True when a runner gives the file's name, or the name of its folder with a wildcard."""
    base = os.path.basename(path)
    wanted = {base, os.path.splitext(base)[0]}
    if any(wanted & of for runner, of in names.items() if runner != path):
        return True
    folder = re.escape(os.path.dirname(path))
    whole = re.compile(folder + r"(/\*|[\"'/]*\s*\))")
    return any(whole.search(text) for runner, text in runners.items() if runner != path)


def check(files, reader):
    """Problems as (path, message). `reader(path)` gives a file's text."""
    cmake_files = {f: names_in_cmake(reader(f)) for f in files
                   if os.path.basename(f) == "CMakeLists.txt"}
    runners = {f: reader(f) for f in files if is_runner(f)}
    names = {f: names_in(text) for f, text in runners.items()}
    problems = []
    for path in files:
        base = os.path.basename(path)
        # The peers' programs are compiled by the benchmark that runs them.
        if path.endswith(SOURCES) and path.startswith("bench/peers/"):
            if not input_is_named(path, runners, names):
                problems.append((path, "a benchmark must use this program"))
        elif path.endswith(SOURCES):
            if not cmake_names(path, cmake_files):
                kind = "test" if base.endswith("_test.cc") else "source"
                problems.append((path, f"no CMakeLists.txt names this {kind}"))
        elif base.endswith("_test.py") and not cmake_names(path, cmake_files):
            problems.append((path, "no CMakeLists.txt names this test"))
        else:
            for folder, who in INPUTS.items():
                if path.startswith(folder + "/") and base not in ("CMakeLists.txt", "README.md") \
                        and not path.endswith((".h", ".py", ".sh")):
                    if not input_is_named(path, runners, names):
                        problems.append((path, f"{who} must use this file"))
    return problems


def main():
    files = repository_files()
    problems = check(files, lambda path: read(ROOT, path))
    for path, message in problems:
        print(f"{path}:1: {message}")
    print(f"registered: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
