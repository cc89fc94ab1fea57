#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many clients and many agents at one real coordinator, over gRPC on this machine.

    ./dev bench load [--jobs 10000] [--clients 32] [--agents 1000] [--etcd PROGRAM]
    ./dev bench load --only verbs [--jobs 100000]

submit: clients submit jobs one after the other, each on a connection of its own; the coordinator is killed
(SIGKILL) as soon as the last one is accepted, started again, and asked for all that it had accepted. Where
etcd is installed (--etcd names it), once more with etcd as the store. agents: as many agents as said, each
with a connection of its own, join, and a job of as many ranks is submitted: the time until every rank, again
on a connection of its own, was told the generation of all of them; then they send heartbeats, five a second
from each rank. Nothing is trained: agents and ranks are one process, load_clients, whose CPU is told apart
from the coordinator's. verbs (only when asked for): jobs that wait are submitted over a Unix socket, then the
launcher lists, describes and cancels: wall, its CPU and highest RSS, and the coordinator's CPU meanwhile. RSS is
the coordinator's highest.
"""
import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from common import BIN as BUILT, fail, machine, note, parser, report, run

BIN = os.environ.get("LOCKSTEP_BIN", BUILT)
COORDINATOR = os.path.join(BIN, "coordinator")
CLIENTS = os.path.join(BIN, "load_clients")
LAUNCHER = os.path.join(BIN, "launcher")


class Coordinator:
    """One that keeps its journal in `folder`, or with `flags` elsewhere."""

    def __init__(self, folder, flags=(), listen=None):
        read, write = os.pipe()
        self.began = time.monotonic()
        command = [COORDINATOR, "--state-dir", folder, "--ready-fd", str(write), "--log-level", "error",
                   "--listen", listen or "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, pass_fds=[write])
        os.close(write)
        with os.fdopen(read) as ready:
            self.address = ready.readline().strip()
        if not self.address:
            fail(f"{' '.join(command)} does not start")
        self.start_s = time.monotonic() - self.began
        self.token = os.path.join(folder, "token")

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
        return 0

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(folder, flags=()):
    coordinator = Coordinator(folder, flags)
    try:
        yield coordinator
    finally:
        coordinator.kill()


def submit(args, flags=()):
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids")
        with running(folder, flags) as coordinator:
            before = coordinator.cpu()
            out, _ = run([CLIENTS, "submit", coordinator.address, coordinator.token, str(args.clients),
                          str(args.jobs), ids])
            result = json.loads(out)
            result["coordinator_cpu_s"] = round(coordinator.cpu() - before, 2)
            result["coordinator_rss_mb"] = round(coordinator.rss_mb())
        with running(folder, flags) as again:
            result["start_again_s"] = round(again.start_s, 2)
            result["lost"] = json.loads(run([CLIENTS, "missing", again.address, again.token, ids])[0])["missing"]
        return result


def agents(args, tls):
    with tempfile.TemporaryDirectory() as folder:
        if tls:
            run([COORDINATOR, "init", "--state-dir", folder, "--host", "127.0.0.1"])
        with running(folder) as coordinator:
            process = subprocess.Popen([CLIENTS, "agents", coordinator.address, coordinator.token,
                                        str(args.agents), str(args.seconds)], stdout=subprocess.PIPE, text=True)
            process.stdout.readline()  # all agents have joined
            join_cpu = coordinator.cpu()
            process.stdout.readline()  # all ranks are admitted
            rendezvous_cpu, begin = coordinator.cpu(), time.monotonic()
            line = process.stdout.readline()
            steps = time.monotonic() - begin
            cpu = coordinator.cpu() - rendezvous_cpu
            if not line:
                fail("the agents' process has failed")
            result = json.loads(line)
            result["coordinator_cpu_join_s"] = round(join_cpu, 2)
            result["coordinator_cpu_rendezvous_s"] = round(rendezvous_cpu - join_cpu, 2)
            result["coordinator_cores"] = round(cpu / max(steps, 0.001), 3)
            result["agents_cores"] = round(result["agents_cpu_steps_s"] / max(steps, 0.001), 3)
            result["coordinator_rss_mb"] = round(coordinator.rss_mb())
            if process.wait() != 0:
                fail(f"not all agents joined, or not all ranks were told their generation: {result}")
        return result


def measured(coordinator, verb, *arguments):
    """One call of the launcher: what it took, and what it took of the coordinator."""
    before, begin = coordinator.cpu(), time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([LAUNCHER, verb, f"--coordinator={coordinator.address}", *arguments],
                                   stdin=subprocess.DEVNULL, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, written = time.monotonic() - begin, out.seek(0, os.SEEK_END)
    if process.returncode != 0:
        fail(f"launcher {verb}: exit code {process.returncode}")
    return {"verb": " ".join([verb, *arguments]), "wall_s": round(wall, 3), "written_mb": round(written / 1e6, 1),
            "launcher_cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
            "launcher_rss_mb": round(usage.ru_maxrss / 1024),
            "coordinator_cpu_s": round(coordinator.cpu() - before, 2), "coordinator_rss_mb": round(coordinator.rss_mb())}


def verbs(args):
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids")
        coordinator = Coordinator(folder, listen=f"unix:{folder}/socket")
        try:
            begin = time.monotonic()
            run([CLIENTS, "submit", coordinator.address, "", str(args.clients), str(args.jobs), ids])
            note(f"verbs: {args.jobs} jobs wait after {time.monotonic() - begin:.1f} s")
            with open(ids, encoding="utf-8") as file:
                job = file.readlines()[args.jobs // 2].strip()
            results = []
            for _ in range(args.repetitions):
                for call in (("list",), ("list", "-o", "json"), ("describe", job), ("nodes",)):
                    results.append(measured(coordinator, *call))
                    note(f"verbs {results[-1]}")
            results.append(measured(coordinator, "cancel", job))
            note(f"verbs {results[-1]}")
            return results
        finally:
            coordinator.kill()


@contextlib.contextmanager
def etcd(program):
    with tempfile.TemporaryDirectory() as folder:
        ports = []
        for _ in range(2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        process = subprocess.Popen(
            [program, "--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
             "--log-level", "error"], stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)
            yield f"etcd://127.0.0.1:{ports[0]}"
        finally:
            process.kill()
            process.wait()


def main():
    options = parser(__doc__.splitlines()[0], repetitions=3)
    options.add_argument("--jobs", type=int, help="10,000; 100,000 for the verbs")
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--agents", type=int, default=1000)
    options.add_argument("--seconds", type=int, default=10, help="of heartbeats")
    options.add_argument("--etcd", default=shutil.which("etcd"), help="its program; empty: without")
    options.add_argument("--only", choices=("submit", "agents", "verbs"), help="one of the parts")
    options.add_argument("--short", action="store_true", help="few of all, and only whether it works")
    args = options.parse_args()
    if args.jobs is None:
        args.jobs = 100000 if args.only == "verbs" else 10000
    if args.short:
        args.repetitions, args.jobs, args.clients, args.agents, args.seconds, args.etcd = 1, 500, 8, 50, 1, ""
    files = 8 * args.agents + 4096
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if most < 0 else min(files, most), most))
    result = {"machine": {} if args.short else machine(len(os.sched_getaffinity(0))),
              "submit": [], "submit_etcd": [], "agents": [], "agents_tls": [], "verbs": []}
    if args.only == "verbs" or args.short:
        result["verbs"] = verbs(args)
    for repetition in range(0 if args.only == "verbs" else args.repetitions):
        if args.only != "agents":
            result["submit"].append(submit(args))
            note(f"submit {result['submit'][-1]}")
            if args.etcd and repetition == 0:
                with etcd(args.etcd) as address:
                    result["submit_etcd"].append(submit(args, ["--store", address]))
                note(f"submit, etcd {result['submit_etcd'][-1]}")
        if args.only != "submit":
            for tls in (False, True):
                name = "agents_tls" if tls else "agents"
                result[name].append(agents(args, tls))
                note(f"{name} {result[name][-1]}")
    lines = [(name, str(value)) for name in ("submit", "submit_etcd", "agents", "agents_tls", "verbs")
             for value in result[name]]
    if not args.short:
        report("load", args, result, lines)
    lost = sum(value["lost"] for name in ("submit", "submit_etcd") for value in result[name])
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
