#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy with .clang-tidy over the product's sources, several at a time.

Only files of the repository that the compilation database knows are looked at (generated ones are
not); tests and benchmarks are not, because GoogleTest's headers alone would take half of the time,
and the sanitizers run the tests anyway. Most of the work is in the headers, so the sources of one
unit of the build (LOCKSTEP_UNITY) are looked at together, and one by one where that shows anything:
what is printed is always what a source shows alone. A file that passed is not looked at again until
it, a header of ours, the checks or its flags change: the record is in the build folder. --changed
takes only files that differ from the newest commit of the main line, and what includes such a header.
--rotating, which CI uses, takes what changed lately, what includes such a header directly, and one
part of all the rest, the next one after each commit: all is looked at again and again. It takes
everything where the history does not say what changed (a shallow clone, an archive) and when the
checks changed.
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
import zlib

from source_files import ROOT, cxx_files, read

# What clang must not complain about: flags of gcc that it does not know.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unused-command-line-argument",
         "--extra-arg=-Wthread-safety"]
# Precompiled headers are gcc's; sources include what they need without them.
PRECOMPILED = re.compile(r" (-Winvalid-pch|-include \S*cmake_pch\.hxx)(?= )")
# A prime: whatever the number of commits that come at a time, the parts take turns.
PARTS = 7
CHECKS = {".clang-tidy", "tools/run_clang_tidy.py"}
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


def split_units(database, read_file):
    """The entries by source, relative to the repository, and the unit that each is compiled in.

    An entry of a unit stands for the sources that it includes, with its flags.
    """
    entries, units = {}, {}
    for entry in database:
        file = os.path.join(entry["directory"], entry["file"])
        members = [file]
        if os.path.basename(file).startswith("unity_"):
            members = [m for m in INCLUDE.findall(read_file(file)) if os.path.isabs(m)]
        for member in members:
            name = os.path.relpath(member, ROOT)
            command = PRECOMPILED.sub("", entry["command"].replace(entry["file"], member))
            entries.setdefault(name, {**entry, "file": member, "command": command})
            units.setdefault(name, file)
    return entries, units


def write_batches(folder, files, entries, units):
    """Writes the compilation database of `files` as clang reads it, and of what is looked at first.

    Returns the latter: (path, the files in it), a unit's files together, the largest first.
    """
    os.makedirs(folder, exist_ok=True)
    by_unit = {}
    for name in files:
        by_unit.setdefault(units[name], []).append(name)
    batches, database = [], [entries[name] for name in files]
    for number, members in enumerate(by_unit.values()):
        if len(members) == 1:
            batches.append((members[0], members))
            continue
        first = entries[members[0]]
        path = os.path.join(folder, f"batch_{number}.cc")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{entries[m]["file"]}"\n' for m in members)
        database.append({**first, "file": path, "command": first["command"].replace(first["file"], path)})
        batches.append((path, members))
    with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(database, file)
    return sorted(batches, key=lambda batch: -len(batch[1]))


def fingerprint(path, entry, texts, config):
    digest = hashlib.sha256(config.encode())
    digest.update("\0".join(clang_arguments(entry)).encode())
    for name in [path] + sorted(own_headers(path, texts)):
        digest.update(name.encode() + b"\0" + texts[name].encode())
    return digest.hexdigest()


def is_product(path):
    return not path.startswith(("tests/", "bench/"))


def git(*arguments):
    """What git prints, stripped; None where it fails, or where there is no git."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def main_line():
    """The newest commit of the main line that HEAD has; None where there is no main line."""
    for branch in ("origin/main", "main"):
        base = git("merge-base", branch, "HEAD")
        if base:
            return base
    return None


def differing_files(base):
    """Files that differ from `base`, the working tree included; None where git does not know it."""
    names, new = git("diff", "--name-only", base), git("ls-files", "--others", "--exclude-standard")
    return None if names is None or new is None else set(names.split("\n") + new.split("\n")) - {""}


def recent_base():
    """The commit that CI compares with: CI_BASE, or where this branch left the main line, or, on the
    main line itself, the commit PARTS before the newest; None where the history is not known."""
    if os.environ.get("CI_BASE"):
        return os.environ["CI_BASE"]
    if git("rev-parse", "--is-shallow-repository") != "false":
        return None
    base = main_line()
    if base and base != git("rev-parse", "HEAD"):
        return base
    return (git("rev-list", "--first-parent", "-n", str(PARTS + 1), "HEAD") or "").split("\n")[-1] or None


def rotating(files, texts, units, different, turn):
    """Those of `files` that differ or include directly what does, and the part of the rest whose turn
    it is. The sources of one unit are in one part."""
    part = {}
    for name in sorted(units):
        part.setdefault(units[name], zlib.crc32(name.encode()) % PARTS)
    return [f for f in files if f in different or different & set(INCLUDE.findall(texts[f])) or
            part[units[f]] == turn % PARTS]


def choose(args, files, texts, units):
    """Those of `files` that the arguments ask for, and what to say about the choice."""
    if args.changed:
        different = differing_files(main_line() or "HEAD")
        if different is None:
            return files, "all"
        return [f for f in files if f in different or own_headers(f, texts) & different], "changed"
    if args.rotating:
        base, count = recent_base(), git("rev-list", "--count", "--first-parent", "HEAD")
        different = differing_files(base) if base else None
        if different is not None and count and not different & CHECKS:
            turn = int(count)
            return (rotating(files, texts, units, different, turn),
                    f"changed since {base[:12]}, and part {turn % PARTS + 1} of {PARTS}")
    return files, "all"


def look_at(path, database):
    """What clang-tidy finds in `path`, "" if nothing."""
    result = subprocess.run(["clang-tidy", "--quiet", "-p", database, *EXTRA, path], cwd=ROOT, text=True,
                            capture_output=True)
    if result.returncode == 0 and "warning:" not in result.stdout:
        return ""
    return result.stdout.strip() or result.stderr.strip() or f"{path}: clang-tidy failed"


def look_at_batch(batch, look):
    """(file, findings) of the files of a batch, which are looked at alone if it is not clean."""
    path, members = batch
    if len(members) > 1 and not look(path):
        return [(name, "") for name in members]
    return [(name, look(name)) for name in members]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", dest="build", default="build/lint")
    parser.add_argument("-j", dest="jobs", type=int, default=os.cpu_count())
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--changed", action="store_true")
    which.add_argument("--rotating", action="store_true")
    args = parser.parse_args()

    with open(os.path.join(ROOT, args.build, "compile_commands.json"), encoding="utf-8") as file:
        database = json.load(file)
    entries, units = split_units(database, lambda path: read("/", path))
    texts = {name: read(ROOT, name) for name in cxx_files()}
    config = read(ROOT, ".clang-tidy") + " ".join(EXTRA)
    record_path = os.path.join(ROOT, args.build, "clang_tidy_passed.json")
    try:
        with open(record_path, encoding="utf-8") as file:
            passed = json.load(file)
    except (OSError, ValueError):
        passed = {}
    wanted, choice = choose(args, [f for f in texts if f in entries and is_product(f)], texts, units)
    prints = {f: fingerprint(f, entries[f], texts, config) for f in wanted}
    todo = [f for f in wanted if passed.get(f) != prints[f]]
    folder = os.path.join(ROOT, args.build, "clang_tidy")
    batches = write_batches(folder, todo, entries, units)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        found = pool.map(lambda b: look_at_batch(b, lambda path: look_at(path, folder)), batches)
        for results in found:
            for name, findings in results:
                if not findings:
                    passed[name] = prints[name]
                    continue
                failed += 1
                print(findings, flush=True)
    with open(record_path, "w", encoding="utf-8") as file:
        json.dump({f: p for f, p in passed.items() if f in texts}, file)
    print(f"clang-tidy ({choice}): {len(todo)} files looked at in {len(batches)} batches, "
          f"{len(wanted) - len(todo)} unchanged since they passed, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
