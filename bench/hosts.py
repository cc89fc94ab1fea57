#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The data plane between hosts beside Open MPI's, gloo's and what the network gives to iperf3.

    ./dev bench hosts [--ranks-per-host N] [--rate 1gbit] [--sizes 4,1048576] [--compressed]

Two hosts are network namespaces of this machine joined by a veth pair, which needs root and iproute2
(and iperf3; Open MPI: openmpi-bin, libopenmpi-dev; gloo: PyTorch, in the environment of ./dev bench setup or of
LOCKSTEP_PEER_PYTHON). With --rate what a host sends goes at that rate. --compressed adds tree_reduce_bf16, ours
with train.gradient_compression: bf16. Both hosts share the processors, so what either computes the other lacks.
Ours, Open MPI (TCP alone between the hosts), gloo and iperf3 alternate in many short rounds; each time is that of
the slowest rank. A round of one side gives the median and the least of its calls in a row: the medians are
compared round by round, the least ones over all rounds, which other work on the machine touches least. The limit
of an all-reduce of S bytes between two hosts is S each way at once, which is what iperf3 is asked for. A peer that
fails in a round is left out of it.
"""
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from common import (BIN, ROOT, fail, last_json, machine, note, parser, report, run, summary, text)

SIZES = [4, 1024, 65536, 1 << 20, 16 << 20, 256 << 20]
SECONDS = "0.25"
ADDRESSES = ("10.77.9.1", "10.77.9.2")
PATIENCE = 120  # seconds that one side may take for its round


@contextlib.contextmanager
def two_hosts(rate=None):
    names = [f"ls{os.getpid()}{side}" for side in "ab"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that they go then, too
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


def by_size(args, rows, median, least):
    """{(operation, size): (median, least)}; sizes that were cut for the ranks count as what was asked for."""
    return {(row["operation"], min(args.sizes, key=lambda s: abs(s - row["bytes"]))): (row[median], row[least])
            for row in rows}


def ours(args, names):
    places = [f"{name}={address}" for name, address in zip(names, ADDRESSES)
              for _ in range(args.ranks_per_host)]
    operations = ["tree_reduce"] + ["tree_reduce_bf16"] * args.compressed + ["all_reduce"]
    out, _ = run([f"{BIN}/bench_hosts", ",".join(places), ",".join(operations),
                  ",".join(map(str, args.sizes)), SECONDS], timeout=PATIENCE)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    args.sent = {(row["operation"], row["bytes"]): row["sent_bytes"] for row in rows}
    return by_size(args, rows, "median_us", "min_us")


def mpi(args, names, program, agent):
    hosts = ",".join(f"{address}:{args.ranks_per_host}" for address in ADDRESSES)
    command = within(names[0]) + [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-H", hosts,
        "-n", str(2 * args.ranks_per_host), "--mca", "plm_rsh_agent", agent,
        "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader", "--mca", "btl_tcp_if_include", "eth0",
        "--mca", "oob_tcp_if_include", "eth0", program, SECONDS, "all_reduce", *map(str, args.sizes)]
    return by_size(args, last_json(finish([start(command)])[0])["rows"], "microseconds", "least_microseconds")


def gloo(args, names, python):
    """Without torchrun, which asks for names that nobody answers for in a namespace."""
    ranks = 2 * args.ranks_per_host
    children = []
    for rank in range(ranks):
        command = [python, f"{ROOT}/bench/peers/gloo_collectives.py", SECONDS, "all_reduce", *map(str, args.sizes)]
        children.append(start(within(names[rank // args.ranks_per_host]) + command, env={
            **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": "29533", "RANK": str(rank), "WORLD_SIZE": str(ranks), "USE_LIBUV": "0"}))
    return by_size(args, last_json(finish(children)[0])["rows"], "microseconds", "least_microseconds")


def start(command, **options):
    return subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True, **options)


class PeerFailed(Exception):
    pass


def finish(children):
    """What they print, when all of them end well in time; none is left behind."""
    until, outputs = time.monotonic() + PATIENCE, []
    try:
        for child in children:
            out, err = child.communicate(timeout=max(1.0, until - time.monotonic()))
            if child.returncode != 0:
                raise PeerFailed(f"exit code {child.returncode}: {(out + err)[-500:]}")
            outputs.append(out)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"not done after {PATIENCE} s") from error
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait()
    return outputs


def iperf3(names):
    """Bytes a second each way when both ways are used at once; the slower way counts."""
    server = subprocess.Popen(["ip", "netns", "exec", names[1], "iperf3", "-s", "-1"],
                              stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):  # until it listens
            listening = run(["ip", "netns", "exec", names[1], "ss", "-ltnH"])[0]
            if ":5201" in listening:
                break
            time.sleep(0.1)
        out, _ = run(["ip", "netns", "exec", names[0], "iperf3", "-c", ADDRESSES[1], "-t", "1",
                      "--bidir", "-J"], timeout=PATIENCE)
    finally:
        server.terminate()
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


def compare(mine, theirs):
    """Our time in theirs: round by round by their medians, and once by the least of all calls."""
    both = [(a[0] / b[0], a[1], b[1]) for a, b in zip(mine, theirs) if a is not None and b is not None]
    if not both:
        return None
    result = summary([ratio for ratio, _, _ in both])
    result["of least"] = min(a for _, a, _ in both) / min(b for _, _, b in both)
    return result


def rows_of(args, times, rates):
    rows, lines = [], []
    for key in times["ours"][0]:
        operation, size = key
        mine = [t[key] for t in times["ours"]]
        row = {"operation": operation, "bytes": size, "microseconds": summary([m for m, _ in mine]),
               "least_microseconds": min(least for _, least in mine), "sent_bytes": args.sent[key]}
        lines.append((f"{operation} {size:,} B, us", f"{text(row['microseconds'])}, least "
                                                     f"{row['least_microseconds']:,.1f}"))
        lines.append(("  sent by a host, B", f"{row['sent_bytes']:,}"))
        for name in [n for n in times if n != "ours"]:
            theirs = [None if t is None else t.get(("all_reduce", size)) for t in times[name]]
            ratio = compare(mine, theirs)
            if ratio is None:
                continue
            row[name] = summary([t[0] for t in theirs if t is not None])
            row["of " + name] = ratio
            lines.append((f"  {name}'s all_reduce, us", text(row[name])))
            lines.append((f"  our time in {name}'s", f"{text(ratio, ' x')}, of the least {ratio['of least']:.3f} x"))
        if rates and size >= 1 << 20 and args.ranks_per_host == 1:
            row["of iperf3"] = compare(mine, [(1e6 * size / rate,) * 2 for rate in rates])
            lines.append(("  our time in iperf3's for as many bytes",
                          f"{text(row['of iperf3'], ' x')}, of the least {row['of iperf3']['of least']:.3f} x"))
        rows.append(row)
    return rows, lines


def measure(args, names, sides):
    times, rates, failed = {name: [] for name in sides}, [], {}
    begun = time.monotonic()
    for repetition in range(args.repetitions):
        spent = time.monotonic() - begun
        if repetition > 0 and spent * (repetition + 1) / repetition > args.budget:
            note(f"{repetition} rounds in {spent:.0f} s: another one does not fit into --budget {args.budget:.0f}")
            break
        for name, side in sides.items():
            if failed.get(name, 0) >= 2:
                times[name].append(None)
                continue
            try:
                times[name].append(side())
            except PeerFailed as error:
                failed[name] = failed.get(name, 0) + 1
                times[name].append(None)
                note(f"{name} failed: {error}")
        rates.append(iperf3(names))
        note(f"{repetition + 1}/{args.repetitions} done, iperf3 {rates[-1] / 1e9:.2f} GB/s each way, "
             f"load {os.getloadavg()[0]:.1f}")
    return times, rates


def main():
    options = parser(__doc__.splitlines()[0], repetitions=7)
    options.add_argument("--ranks-per-host", type=int, default=1)
    options.add_argument("--rate", help="of what a host sends, as tc writes it: 1gbit")
    options.add_argument("--sizes", type=lambda t: [int(size) for size in t.split(",")], default=SIZES,
                         help="bytes, with commas")
    options.add_argument("--budget", type=float, default=300, help="seconds after which no other round is begun")
    options.add_argument("--compressed", action="store_true", help="ours with bf16 on the wire, too")
    args = options.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("iperf3") is None:
        print("bench hosts: SKIPPED: it needs root, iproute2 and iperf3 (apt install iproute2 iperf3)",
              file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, two_hosts(args.rate) as names:
        times, rates = measure(args, names, sides_of(args, names, folder))
    rows, lines = rows_of(args, times, rates)
    result = {"machine": machine(len(os.sched_getaffinity(0))), "ranks_per_host": args.ranks_per_host,
              "rate": args.rate, "iperf3_bytes_per_second": summary(rates), "rows": rows}
    report("hosts", args, result, lines)


if __name__ == "__main__":
    main()
