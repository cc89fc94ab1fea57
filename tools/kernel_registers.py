#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, shared memory, spills and occupancy of every CUDA kernel, as ptxas tells them: a table in Markdown with a column
for each architecture. Needs nvcc and no GPU, and ends with 1 where a kernel spills, does not compile, or does not say how
large its blocks are.

    tools/kernel_registers.py [--architectures 80,90a,100a] [--keep FOLDER] [NAME..]

NAMEs are those of files in engine/cuda/kernels without ".cu"; without any all are compiled. What was compiled is
kept in FOLDER and not compiled again while no source is newer, so that a run that was cut off goes on. Behind a thread's
registers stands the part of a multiprocessor's warps that blocks of the kernel can be at once (gpu_occupancy.py).
"""
import argparse
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import gpu_occupancy
from source_files import ROOT

KERNELS = os.path.join(ROOT, "engine", "cuda", "kernels")
Kernel = collections.namedtuple("Kernel", "name registers shared stack spilled")  # bytes but for registers


def nvcc():
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def parse(text):
    """Each Kernel that ptxas speaks of."""
    rows, name, stack, spilled = [], None, 0, 0
    for line in text.splitlines():
        found = re.search(r"Compiling entry function '(\S+)'", line)
        if found:
            name, stack, spilled = found.group(1), 0, 0
        found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if found:  # of the kernel, or of a function that it calls
            stack = max(stack, int(found.group(1)))
            spilled = max(spilled, int(found.group(2)), int(found.group(3)))
        found = re.search(r"Used (\d+) registers", line)
        if found and name:
            shared = re.search(r"(\d+) bytes smem", line)
            rows.append(Kernel(name, int(found.group(1)), int(shared.group(1)) if shared else 0, stack, spilled))
            name = None
    return rows


def short(name):
    """A kernel's name with what its template is made for, without namespaces and arguments."""
    name = re.sub(r"\(anonymous namespace\)::|lockstep::engine::cuda::", "", name)
    name = re.sub(r"\((?:[\w:]+)\)(-?\d)", r"\1", name)
    return re.sub(r"^void ", "", name).split("(")[0]


def demangle(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=False)
    plain = done.stdout.splitlines() if done.returncode == 0 else []
    return [short(name) for name in plain] if len(plain) == len(names) else names


def newest_source():
    return max(os.path.getmtime(path) for path in glob.glob(os.path.join(KERNELS, "*")))


def compile_one(name, architecture, keep):
    """ptxas's words on one file and its .cubin, or None when it does not compile."""
    cubin, log = (os.path.join(keep, f"{name}.{architecture}.{kind}") for kind in ("cubin", "txt"))
    if not os.path.exists(log) or os.path.getmtime(log) < newest_source():
        done = subprocess.run([nvcc(), "-std=c++20", "-O3", f"-I{ROOT}", "-cubin", f"-arch=sm_{architecture}", "-Xptxas",
                               "-v", os.path.join(KERNELS, f"{name}.cu"), "-o", cubin],
                              text=True, capture_output=True, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return None
        with open(log + ".part", "w", encoding="utf-8") as file:  # last: without it nothing is there
            file.write(done.stderr + done.stdout)
        os.replace(log + ".part", log)
    with open(log, encoding="utf-8") as text, open(cubin, "rb") as code:
        return text.read(), code.read()


def measured(text, cubin):
    """Short name -> (Kernel, threads of a block or None), its shared memory with what it is launched with."""
    rows, threads = parse(text), gpu_occupancy.block_sizes(cubin)
    found = {}
    for short_name, row in zip(demangle([row.name for row in rows]), rows):
        shared = row.shared + gpu_occupancy.dynamic_shared(short_name)
        found[short_name] = row._replace(shared=shared), threads.get(row.name)
    return found


def complaints(file, architecture, found):
    """What is wrong with a file's kernels."""
    for kernel, (row, threads) in found.items():
        if row.spilled > 0:
            yield f"{kernel} of {file} spills {row.spilled} bytes on sm_{architecture}"
        if threads is None:
            yield f"{kernel} of {file} has no __launch_bounds__"


def cell(architecture, entry):
    """What ptxas says of a kernel on one architecture."""
    if entry is None:
        return ""
    row, threads = entry
    text = f"{row.registers}"
    if threads is not None:
        warps = gpu_occupancy.resident_warps(architecture, threads, row.registers, row.shared)
        text += f", {100 * warps / gpu_occupancy.most_warps(architecture):.0f} %"
    return text + (f", {row.spilled} bytes spilled" if row.spilled else "")


def table(found, architectures):
    """`found`: (file, kernel) -> architecture -> value of `measured`."""
    names = " | ".join(f"sm_{architecture}" for architecture in architectures)
    lines = [f"| file | kernel | threads | shared bytes | {names} |", "|---|---|---|---" + "|---" * len(architectures) + "|"]
    for (file, name), entries in found.items():
        threads = next(iter(entries.values()))[1]
        shared = max(row.shared for row, _ in entries.values())
        cells = " | ".join(cell(architecture, entries.get(architecture)) for architecture in architectures)
        lines.append(f"| {file} | `{name}` | {threads} | {shared} | {cells} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--architectures", default="80,90a,100a")
    parser.add_argument("--keep")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    names = args.names or sorted(os.path.basename(path)[:-3] for path in glob.glob(os.path.join(KERNELS, "*.cu")))
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        keep = args.keep or folder
        os.makedirs(keep, exist_ok=True)
        architectures = args.architectures.split(",")
        found = {}
        for name in names:
            for architecture in architectures:
                made = compile_one(name, architecture, keep)
                if made is None:
                    wrong.append(f"{name} does not compile for sm_{architecture}")
                    continue
                kernels = measured(*made)
                wrong += complaints(name, architecture, kernels)
                for kernel, entry in kernels.items():
                    found.setdefault((name, kernel), {})[architecture] = entry
        print(table(found, architectures))
    for what in wrong:
        print(what, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
