#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy with .clang-tidy over the product's sources, several at a time.

Only files of the repository that the compilation database knows are looked at (generated ones are
not), the slowest first; tests and benchmarks are not, because GoogleTest's headers alone would take
half of the time, and the sanitizers run the tests anyway. A file that passed is not looked at again
until it, a header of ours, the checks or its flags change: the record is in the build folder.
--changed takes only files that differ from the newest commit of the main line.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

from source_files import ROOT, cxx_files, read

# What clang must not complain about: flags of gcc that it does not know.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unused-command-line-argument",
         "--extra-arg=-Wthread-safety"]
# Precompiled headers are gcc's; sources include what they need without them.
PRECOMPILED = re.compile(r" (-Winvalid-pch|-include \S*cmake_pch\.hxx)(?= )")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def clang_arguments(entry):
    """The entry's flags that decide its meaning, for the record."""
    return [w for w in shlex.split(entry["command"]) if w.startswith(("-D", "-I", "-std", "-m", "-isystem", "-f"))]


def own_headers(path, texts, seen=None):
    """The repository's headers that `path` includes, directly or not."""
    seen = set() if seen is None else seen
    for header in INCLUDE.findall(texts.get(path, "")):
        if header in texts and header not in seen:
            seen.add(header)
            own_headers(header, texts, seen)
    return seen


def write_database(build, entries):
    """Writes the compilation database as clang can read it, and returns its folder."""
    folder = os.path.join(ROOT, build, "clang_tidy")
    os.makedirs(folder, exist_ok=True)
    for entry in entries:
        entry["command"] = PRECOMPILED.sub("", entry["command"])
    with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file)
    return folder


def fingerprint(path, entry, texts, config):
    digest = hashlib.sha256(config.encode())
    digest.update("\0".join(clang_arguments(entry)).encode())
    for name in [path] + sorted(own_headers(path, texts)):
        digest.update(name.encode() + b"\0" + texts[name].encode())
    return digest.hexdigest()


def is_product(path):
    return not path.startswith(("tests/", "bench/"))


def changed_files():
    """Files that differ from the main line, the working tree included."""
    base = "HEAD"
    for branch in ("origin/main", "main"):
        merge = subprocess.run(["git", "merge-base", branch, "HEAD"], cwd=ROOT, text=True,
                               capture_output=True)
        if merge.returncode == 0:
            base = merge.stdout.strip()
            break
    names = subprocess.run(["git", "diff", "--name-only", base], cwd=ROOT, text=True,
                           capture_output=True, check=True).stdout.split("\n")
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                         capture_output=True, check=True).stdout.split("\n")
    return set(names + new) - {""}


def tidy(path, build):
    start = time.monotonic()
    result = subprocess.run(["clang-tidy", "--quiet", "-p", build, *EXTRA, path], cwd=ROOT, text=True,
                            capture_output=True)
    return path, result.returncode, result.stdout, result.stderr, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", dest="build", default="build/release")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count())
    parser.add_argument("--changed", action="store_true")
    args = parser.parse_args()

    with open(os.path.join(ROOT, args.build, "compile_commands.json"), encoding="utf-8") as file:
        database = json.load(file)
    folder = write_database(args.build, database)
    entries = {os.path.relpath(os.path.join(e["directory"], e["file"]), ROOT): e for e in database}
    texts = {name: read(ROOT, name) for name in cxx_files()}
    config = read(ROOT, ".clang-tidy") + " ".join(EXTRA)
    record_path = os.path.join(ROOT, args.build, "clang_tidy_passed.json")
    try:
        with open(record_path, encoding="utf-8") as file:
            passed = json.load(file)
    except (OSError, ValueError):
        passed = {}
    wanted = [f for f in texts if f in entries and is_product(f)]
    if args.changed:
        different = changed_files()
        wanted = [f for f in wanted if f in different or own_headers(f, texts) & different]
    prints = {f: fingerprint(f, entries[f], texts, config) for f in wanted}
    todo = [f for f in wanted if passed.get(f) != prints[f]]
    # gRPC's headers take longest.
    todo.sort(key=lambda f: ("grpc" not in texts[f], "proto/" not in texts[f], f))

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for path, code, out, err, _ in pool.map(lambda f: tidy(f, folder), todo):
            if code == 0 and "warning:" not in out:
                passed[path] = prints[path]
                continue
            failed += 1
            print(out.strip() or err.strip(), flush=True)
    with open(record_path, "w", encoding="utf-8") as file:
        json.dump({f: p for f, p in passed.items() if f in texts}, file)
    print(f"clang-tidy: {len(todo)} files looked at, {len(wanted) - len(todo)} unchanged since they "
          f"passed, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
