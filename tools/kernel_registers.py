#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Registers, shared memory and spills of every CUDA kernel, as ptxas tells them: a table in Markdown for each
architecture. Needs nvcc and no GPU, and ends with 1 where a kernel spills or does not compile.

    tools/kernel_registers.py [--architectures 80,90a,100a] [--keep FOLDER] [NAME..]

NAMEs are those of files in engine/cuda/kernels without ".cu"; without any all are compiled. What was compiled is
kept in FOLDER and not compiled again while no source is newer, so that a run that was cut off goes on. WARPS is how
many of a multiprocessor's 64 warps its registers have room for.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from source_files import ROOT

KERNELS = os.path.join(ROOT, "engine", "cuda", "kernels")
WARPS, REGISTERS = 64, 65536


def nvcc():
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def parse(text):
    """One (kernel, registers, shared bytes, stack bytes, spilled bytes) for each kernel that ptxas speaks of."""
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
            rows.append((name, int(found.group(1)), int(shared.group(1)) if shared else 0, stack, spilled))
            name = None
    return rows


def warps(registers):
    """Warps of a multiprocessor; registers are given to a warp 256 at a time."""
    each = (registers * 32 + 255) // 256 * 256
    return min(WARPS, REGISTERS // each) if each else WARPS


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
    """ptxas's words on one file, or None when it does not compile."""
    log = os.path.join(keep, f"{name}.{architecture}.txt")
    if not os.path.exists(log) or os.path.getmtime(log) < newest_source():
        done = subprocess.run([nvcc(), "-std=c++20", "-O3", f"-I{ROOT}", "-cubin", f"-arch=sm_{architecture}", "-Xptxas",
                               "-v", os.path.join(KERNELS, f"{name}.cu"), "-o", os.path.join(keep, "made.cubin")],
                              text=True, capture_output=True, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return None
        with open(log + ".part", "w", encoding="utf-8") as file:
            file.write(done.stderr + done.stdout)
        os.replace(log + ".part", log)
    with open(log, encoding="utf-8") as file:
        return file.read()


def table(rows):
    lines = ["| file | kernel | registers | warps | shared bytes | stack | spilled |", "|---|---|---|---|---|---|---|"]
    for file, name, registers, shared, stack, spilled in rows:
        lines.append(f"| {file} | `{name}` | {registers} | {warps(registers)} | {shared} | {stack} | {spilled} |")
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
        for architecture in args.architectures.split(","):
            rows = []
            for name in names:
                text = compile_one(name, architecture, keep)
                if text is None:
                    wrong.append(f"{name} does not compile for sm_{architecture}")
                    continue
                found = parse(text)
                rows += [(name, kernel, *row[1:]) for kernel, row in zip(demangle([row[0] for row in found]), found)]
            print(f"## sm_{architecture}\n\n{table(rows)}\n")
            wrong += [f"{row[1]} of {row[0]} spills {row[5]} bytes on sm_{architecture}" for row in rows if row[5] > 0]
    for what in wrong:
        print(what, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
