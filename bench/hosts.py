#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The data plane between hosts beside Open MPI's, gloo's and what the network gives to iperf3.

    ./dev bench hosts [--ranks-per-host N] [--rate 1gbit]

tree_reduce_bf16 is ours with train.gradient_compression: bf16. With --rate what a host sends goes at that
rate. Two hosts are network namespaces of this machine joined by a veth pair, which needs root and iproute2
(and iperf3; Open MPI: openmpi-bin, libopenmpi-dev). Both hosts share the processors, so what either
computes the other lacks. Ours, Open MPI (TCP alone between the hosts), gloo (where PyTorch is
installed) and iperf3 alternate; each time is that of the slowest rank, the median of rounds of calls
in a row. The limit of an all-reduce of S bytes between two hosts is S each way at once.
"""
import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time

from common import (BIN, ROOT, fail, last_json, machine, note, parser, report, run, summary, text)

SIZES = [4, 1024, 65536, 1 << 20, 16 << 20, 256 << 20]
SECONDS = "0.7"
ADDRESSES = ("10.77.9.1", "10.77.9.2")


@contextlib.contextmanager
def two_hosts(rate=None):
    names = [f"ls{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            run(["ip", "netns", "add", name])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        run(["ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0",
             "netns", names[1]])
        for name, address in zip(names, ADDRESSES):
            run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0"])
            run(["ip", "-n", name, "link", "set", "eth0", "up"])
            if rate:
                run(["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                     "burst", "256kb", "latency", "200ms"])
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def within(name):
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"',
            name]


def ours(args, names):
    places = [f"{name}={address}" for name, address in zip(names, ADDRESSES)
              for _ in range(args.ranks_per_host)]
    out, _ = run([f"{BIN}/bench_hosts", ",".join(places),
                  "tree_reduce,tree_reduce_bf16,all_reduce",
                  ",".join(map(str, SIZES)), SECONDS])
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    args.sent = {(row["operation"], row["bytes"]): row["sent_bytes"] for row in rows}
    return {(row["operation"], row["bytes"]): row["median_us"] for row in rows}


def mpi(args, names, program, agent):
    hosts = ",".join(f"{address}:{args.ranks_per_host}" for address in ADDRESSES)
    command = within(names[0]) + [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-H", hosts,
        "-n", str(2 * args.ranks_per_host), "--mca", "plm_rsh_agent", agent,
        "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "eth0",
        "--mca", "oob_tcp_if_include", "eth0", program, SECONDS, *map(str, SIZES)]
    return {("all_reduce", min(SIZES, key=lambda s: abs(s - row["bytes"]))): row["microseconds"]
            for row in last_json(run(command)[0])["rows"] if row["operation"] == "all_reduce"}


def gloo(args, names, python):
    command = [python, "-m", "torch.distributed.run", "--nnodes=2",
               f"--nproc-per-node={args.ranks_per_host}", f"--master-addr={ADDRESSES[0]}",
               "--master-port=29533"]
    rest = [f"{ROOT}/bench/peers/gloo_collectives.py", SECONDS, *map(str, SIZES)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    other = subprocess.Popen(within(names[1]) + command + ["--node-rank=1"] + rest, env=env,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        out = run(within(names[0]) + command + ["--node-rank=0"] + rest, env=env)[0]
    finally:
        other.wait(timeout=60)
    return {("all_reduce", min(SIZES, key=lambda s: abs(s - row["bytes"]))): row["microseconds"]
            for row in last_json(out)["rows"] if row["operation"] == "all_reduce"}


def iperf3(names):
    """Bytes a second each way when both ways are used at once; the slower way counts."""
    server = subprocess.Popen(["ip", "netns", "exec", names[1], "iperf3", "-s", "-1"],
                              stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        out, _ = run(["ip", "netns", "exec", names[0], "iperf3", "-c", ADDRESSES[1], "-t", "2",
                      "--bidir", "-J"])
    finally:
        server.wait(timeout=30)
    end = json.loads(out)["end"]
    return min(end["sum_received"]["bits_per_second"],
               end["sum_received_bidir_reverse"]["bits_per_second"]) / 8


def write_agent(folder, names):
    """What mpirun starts its daemon on the other host with, in the place of ssh."""
    path = os.path.join(folder, "agent")
    cases = "\n".join(f"  {address}) name={name};;" for address, name in zip(ADDRESSES, names))
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"#!/bin/sh\ncase $1 in\n{cases}\nesac\nshift\n"
                  "exec ip netns exec $name unshare --uts sh -c "
                  "'hostname \"$0\" && exec sh -c \"$1\"' $name \"$*\"\n")
    os.chmod(path, stat.S_IRWXU)
    return path


def sides_of(args, names, folder):
    sides = {"ours": lambda: ours(args, names)}
    if args.ours_only:
        return sides
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        fail("Open MPI is not installed: apt install openmpi-bin libopenmpi-dev, or --ours-only")
    program = os.path.join(folder, "mpi_collectives")
    run(["mpicc", "-O2", "-o", program, f"{ROOT}/bench/peers/mpi_collectives.c"])
    agent = write_agent(folder, names)
    sides["Open MPI"] = lambda: mpi(args, names, program, agent)
    python = os.environ.get("LOCKSTEP_PEER_PYTHON", f"{ROOT}/build/bench-venv/bin/python")
    if os.access(python, os.X_OK):
        sides["gloo"] = lambda: gloo(args, names, python)
    else:
        note("gloo is left out: PyTorch is not installed (./dev bench setup)")
    return sides


def rows_of(args, times, rates):
    rows, lines = [], []
    for key in times["ours"][0]:
        operation, size = key
        mine = [t[key] for t in times["ours"]]
        row = {"operation": operation, "bytes": size, "microseconds": summary(mine),
               "sent_bytes": args.sent[key]}
        lines.append((f"{operation} {size:,} B, us", text(row["microseconds"])))
        lines.append(("  sent by a host, B", f"{row['sent_bytes']:,}"))
        for name in [n for n in times if n != "ours"]:
            theirs = [t["all_reduce", size] for t in times[name]]
            row[name] = summary(theirs)
            row["of " + name] = summary([a / b for a, b in zip(mine, theirs)])
            lines.append((f"  {name}'s all_reduce, us", text(row[name])))
            lines.append((f"  our time in {name}'s", text(row["of " + name], " x")))
        if rates and size >= 1 << 20 and args.ranks_per_host == 1:
            row["of iperf3"] = summary([a * 1e-6 * rate / size for a, rate in zip(mine, rates)])
            lines.append(("  our time in iperf3's for as many bytes", text(row["of iperf3"], " x")))
        rows.append(row)
    return rows, lines


def main():
    options = parser(__doc__.splitlines()[0], repetitions=5)
    options.add_argument("--ranks-per-host", type=int, default=1)
    options.add_argument("--rate", help="of what a host sends, as tc writes it: 1gbit")
    args = options.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iperf3") is None:
        print("bench hosts: SKIPPED: it needs root, iproute2 and iperf3 (apt install iproute2 iperf3)",
              file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, two_hosts(args.rate) as names:
        sides = sides_of(args, names, folder)
        times, rates = {name: [] for name in sides}, []
        for repetition in range(args.repetitions):
            for name, side in sides.items():
                times[name].append(side())
            rates.append(iperf3(names))
            note(f"{repetition + 1}/{args.repetitions} done, iperf3 {rates[-1] / 1e9:.2f} GB/s each way")
    rows, lines = rows_of(args, times, rates)
    result = {"machine": machine(len(os.sched_getaffinity(0))), "ranks_per_host": args.ranks_per_host,
              "rate": args.rate, "iperf3_bytes_per_second": summary(rates), "rows": rows}
    report("hosts", args, result, lines)


if __name__ == "__main__":
    main()
