#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects includes outside the layer table of docs/architecture.md, and the wall clock outside its list.

The table below is the one source of truth for the layers: which folder may include which, and who
may include the libraries that are kept behind one wall. CMake rejects cycles; this rejects edges.
Deadlines and timed waits run on the monotonic clock (docs/adr/0013-one-clock-for-deadlines.md):
what reads the wall clock, or sleeps until a time of it, is in a list too.
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
    "grpcpp/": ["coordinator/service", "coordinator/client", "coordinator/store/etcd",
                "coordinator/main.cc"],
    "grpc/": ["coordinator/service", "coordinator/client", "coordinator/main.cc"],
    "proto/access.grpc.pb.h": ["coordinator/service", "coordinator/client"],
    "proto/etcd.grpc.pb.h": ["coordinator/store/etcd"],
    "proto/coordinator.grpc.pb.h": ["coordinator/service", "coordinator/client"],
    "yaml-cpp/": ["job"],
    "cuda": ["engine/cuda", "collectives/nccl"],
    "cublas": ["engine/cuda"],
    "cudnn": ["engine/cuda"],
    "nccl": ["collectives/nccl"],
    "sqlite3": ["coordinator/store"],
    "nlohmann/": ["checkpoint"],
    "openssl/": ["common", "checkpoint", "collectives/tcp", "coordinator/client"],
    "google/protobuf/": ["proto", "job", "coordinator", "worker", "launcher"],
}
# One part of a folder must not reach another, though the folder's row would let it.
INNER_WALLS = {
    "coordinator/core": ["coordinator/outbox", "coordinator/service", "coordinator/client",
                         "coordinator/store"],
    # What all programs include does not bring YAML with it.
    "job/meaning": ["job"],
    "coordinator/outbox": ["coordinator/service", "coordinator/client", "coordinator/store"],
    "coordinator/client": ["coordinator/core", "coordinator/outbox", "coordinator/service",
                           "coordinator/store"],
}
# The groups of the worker -> those that each may include; what lies in none (worker.cc, main.cc)
# joins them.
WORKER_GROUPS = {
    "text": [],
    "profile": ["text"],
    "control": ["text"],
    "command": ["control", "text"],
    "state": ["control", "text"],
    "checkpoint": ["control", "state", "text"],
    "setup": ["checkpoint", "control", "state", "text"],
    "step": ["checkpoint", "control", "profile", "setup", "state", "text"],
    "commands": ["checkpoint", "control", "profile", "setup", "state", "text"],
}
INNER_WALLS.update({
    f"worker/{group}": ["worker/worker.h"] + [f"worker/{other}" for other in WORKER_GROUPS
                                              if other != group and other not in allowed]
    for group, allowed in WORKER_GROUPS.items()})
# The groups of the engine -> those that each may include, lowest first. engine/*.h is what the rest of
# the house sees: every group may include it, and it includes none. back_ends.cc joins the groups.
ENGINE_GROUPS = {
    "math": [],
    "graph": [],
    "ops": ["graph"],
    "passes": ["graph", "ops"],
    "models": ["graph", "math", "ops"],
    "cpu": ["graph", "math", "ops"],
    "optim": ["cpu", "math", "models"],
    "exec": ["cpu", "graph", "models", "ops", "optim", "passes"],
    "cuda": ["cpu", "exec", "graph", "ops", "optim", "passes"],
}
INNER_WALLS.update({
    f"engine/{group}": [f"engine/{other}" for other in ENGINE_GROUPS
                        if other != group and other not in allowed]
    for group, allowed in ENGINE_GROUPS.items()})
INNER_WALLS.update({
    f"engine/{header}.h": [f"engine/{group}" for group in ENGINE_GROUPS]
    for header in ("engine", "executor", "model_spec", "plan", "train_spec")})

# Reads the wall clock, or waits for a time of it: Abseil's timed waits do, whatever they are given.
WALL_CLOCK = re.compile(
    r"\babsl::(?:Now|GetCurrentTimeNanos)\(|\bCLOCK_REALTIME\b|\bsystem_clock\b|\bgettimeofday\(|"
    r"(?:\bstd|\s|\()::time\(|\b(?:Await|Wait|LockWhen|ReaderLockWhen|WriterLockWhen)With(?:Timeout|Deadline)\(|"
    r"\bWaitForNotificationWith(?:Timeout|Deadline)\(")
# The folders that it is looked for in, and the files that may: they stamp what people read, and
# judge what ends at a date.
CLOCKED = ("common", "collectives", "engine", "data", "checkpoint", "job", "coordinator", "launcher",
           "worker")
WALL_CLOCK_FILES = {
    "common/clock.cc": "where Clock::Real begins to count",
    "common/log.cc": "the time of a line",
    "coordinator/client/channel.cc": "gRPC's deadline of a single call",
    "coordinator/service/front.cc": "gRPC's deadline of the shutdown",
    "coordinator/store/etcd/client.cc": "gRPC's deadline of a single call",
    "coordinator/service/standby_server.cc": "gRPC's deadline of the shutdown",
    "coordinator/service/wall_clock.cc": "the date at which a token ends",
    "launcher/agent/agent.cc": "when a process died",
    "launcher/agent/host.cc": "random bits where the kernel gives none",
    "launcher/spawner/spawner_process.cc": "when a process began and ended",
    "worker/step/fault_injector.cc": "when a fault was carried out",
}

# The C library's functions differ in the last bits from one version to another (docs/same_bits.md).
C_MATH = re.compile(r"(?:\bstd|(?<!\w))::(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|tanh|cbrt|hypot)f?\(")
OWN_MATH = ("engine", "worker")

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
            return f"{owner(path, INNER_WALLS)}/ must not include {wall}"
    top = path.split("/")[0]
    if within(header, top) or any(within(header, a) for a in LAYERS[row]):
        return None
    allowed = ", ".join([row] + LAYERS[row])
    return f"{row}/ may include only: {allowed}"


def check_clock(path, text):
    """Lines of `path` that use the wall clock although it is in no list, as (line number, message)."""
    if owner(path, CLOCKED) is None or path in WALL_CLOCK_FILES:
        return []
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        match = WALL_CLOCK.search(line.split("//")[0])
        if match:
            problems.append((number, f"{match.group(0).strip('( ')}: deadlines are Clock::Real()'s, timed waits "
                                     "CondVar's (docs/adr/0013-one-clock-for-deadlines.md)"))
    return problems


def check_math(path, text):
    """Lines of `path` whose numbers would be those of the C library, as (line number, message)."""
    if owner(path, OWN_MATH) is None:
        return []
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        match = C_MATH.search(line.split("//")[0])
        if match:
            problems.append((number, f"{match.group(0)}: engine/math/math.h has functions of the same bits everywhere "
                                     "(docs/same_bits.md)"))
    return problems


def check_file(path, text):
    """Problems of one file as (line number, message)."""
    if owner(path, UNRESTRICTED):
        return []
    if owner(path, LAYERS) is None:
        return [(1, f"folder {path.split('/')[0]}/ is not in the layer table of "
                    "tools/check_layers.py")]
    problems = check_clock(path, text) + check_math(path, text)
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
