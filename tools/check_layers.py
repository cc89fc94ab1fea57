#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects includes outside the layer table of docs/architecture.md.

The table below is the one source of truth for the layers: which folder may include which, and who
may include the libraries that are kept behind one wall. CMake rejects cycles; this rejects edges.
"""
import re
import sys

from source_files import ROOT, cxx_files, read

# Folder -> folders that it may include (besides itself). The longest matching folder of a file
# counts, so a row can be given for a part of a folder.
LAYERS = {
    "common": [],
    "proto": ["common"],
    "collectives": ["common"],
    "engine": ["common"],
    "data": ["common"],
    "checkpoint": ["common"],
    "job": ["common", "proto"],
    # What a job means, without YAML.
    "job/meaning": ["common", "proto"],
    "coordinator": ["common", "proto", "job/meaning"],
    "coordinator/core": ["common", "proto", "job/meaning"],
    "coordinator/client": ["common", "proto"],
    "worker": ["common", "proto", "collectives", "engine", "data", "checkpoint", "job/meaning",
               "coordinator/client"],
    "launcher": ["common", "proto", "job", "coordinator/client"],
}
# These may include every folder and library.
UNRESTRICTED = ("tests", "bench", "tools", "examples")

# Header prefix -> the folders that may include it. Sets the walls inside and around the layers.
LIBRARIES = {
    "grpcpp/": ["coordinator/service", "coordinator/client", "coordinator/main.cc"],
    "grpc/": ["coordinator/service", "coordinator/client", "coordinator/main.cc"],
    "proto/coordinator.grpc.pb.h": ["coordinator/service", "coordinator/client"],
    "yaml-cpp/": ["job"],
    "oneapi/dnnl/": ["engine"],
    "dnnl": ["engine"],
    "cuda": ["engine/cuda", "collectives/nccl"],
    "cublas": ["engine/cuda"],
    "cudnn": ["engine/cuda"],
    "nccl": ["collectives/nccl"],
    "sqlite3": ["coordinator/store"],
    "nlohmann/": ["checkpoint"],
    "google/protobuf/": ["proto", "job", "coordinator", "worker", "launcher"],
}
# One part of a folder must not reach another, though the folder's row would let it.
INNER_WALLS = {
    "coordinator/core": ["coordinator/service", "coordinator/client", "coordinator/store",
                         "coordinator/web"],
    # What all programs include does not bring YAML with it.
    "job/meaning": ["job"],
    "coordinator/client": ["coordinator/core", "coordinator/service", "coordinator/store",
                           "coordinator/web"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def within(path, prefix):
    """True when `path` is the folder or file `prefix` or lies in it."""
    return path == prefix or path.startswith(prefix.rstrip("/") + "/")


def owner(path, folders):
    """The longest of `folders` that `path` lies in, or None."""
    matches = [f for f in folders if within(path, f)]
    return max(matches, key=len) if matches else None


def check_include(path, header):
    """The reason why file `path` may not include `header`, or None."""
    for prefix, allowed in LIBRARIES.items():
        if header.startswith(prefix) and not any(within(path, a) for a in allowed):
            return f"only {', '.join(allowed)} may include <{prefix}...>"
    if owner(header, LAYERS) is None:
        if "/" in header and owner(header, UNRESTRICTED):
            return f"nothing outside {', '.join(UNRESTRICTED)} includes {header.split('/')[0]}/"
        return None  # a system or third-party header without a wall of its own
    row = owner(path, LAYERS)
    for wall in INNER_WALLS.get(owner(path, INNER_WALLS) or "", []):
        if within(header, wall) and not within(header, owner(path, INNER_WALLS)):
            return f"{row}/ must not include {wall}/"
    top = path.split("/")[0]
    if within(header, top) or any(within(header, a) for a in LAYERS[row]):
        return None
    allowed = ", ".join([row] + LAYERS[row])
    return f"{row}/ may include only: {allowed}"


def check_file(path, text):
    """Problems of one file as (line number, message)."""
    if owner(path, UNRESTRICTED):
        return []
    if owner(path, LAYERS) is None:
        return [(1, f"folder {path.split('/')[0]}/ is not in the layer table of "
                    "tools/check_layers.py")]
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        if match.group(1) == '"' and "/" not in match.group(2):
            problems.append((number, f'"{match.group(2)}": includes are written from the '
                                     "repository's root"))
            continue
        reason = check_include(path, match.group(2))
        if reason:
            problems.append((number, f"{match.group(2)}: {reason}"))
    return problems


def main():
    count = 0
    files = cxx_files()
    for path in files:
        for line, message in check_file(path, read(ROOT, path)):
            print(f"{path}:{line}: {message}")
            count += 1
    print(f"layers: {len(files)} files, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
