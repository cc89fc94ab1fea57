# SPDX-License-Identifier: Apache-2.0
"""Hosts of a cluster as network namespaces, joined by a bridge, for tests that need root and iproute2.

Each host has a network of its own with one interface, eth0, and a host name of its own; the file system is
everybody's. Nothing of the machine's own network is touched. There is no netem in many kernels, so delays come
from bad_network.py, losses from the packet filter, and narrow links from a token bucket.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
import uuid

import bad_network
import harness

HERE = os.path.dirname(os.path.abspath(__file__))
PROXY_PORT = 9


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise OSError(f"{' '.join(command)}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


class Host:
    """One host. `address` is its own in IPv4, `address6` in IPv6, `second` that of eth1, where it has one."""

    def __init__(self, network, name, number):
        self.network = network
        self.name = name
        self.namespace = f"{network.id}-{name}"
        self.port = f"{network.id}p{number}"  # of the bridge
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number}"
        self.second = f"10.78.0.{number}"
        self.proxy = None

    def prefix(self):
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c",
                'hostname "$0" && exec "$@"', self.name]

    def run(self, *command):
        return run(*self.prefix(), *command)

    def pids(self):
        return [int(pid) for pid in run("ip", "netns", "pids", self.namespace).split()]

    # --- what happens to it ---
    def unplug(self):
        run("ip", "-n", self.network.switch, "link", "set", self.port, "down")

    def plug(self):
        run("ip", "-n", self.network.switch, "link", "set", self.port, "up")

    def kill_all(self):
        """Its processes are gone, and its kernel tells whoever was connected to them."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def power_off(self):
        """Nobody hears of it: the cable goes first."""
        self.unplug()
        self.kill_all()

    def hear_nothing_from(self, other):
        """One way alone: what `other` sends is lost, what this one sends arrives."""
        self.filter("-A", "INPUT", "-s", other.address, "-j", "DROP")
        self.run("ip6tables", "-w", "-A", "INPUT", "-s", other.address6, "-j", "DROP")

    def hear_again_from(self, other):
        self.filter("-D", "INPUT", "-s", other.address, "-j", "DROP")
        self.run("ip6tables", "-w", "-D", "INPUT", "-s", other.address6, "-j", "DROP")

    def lose_large_from(self, other):
        """Small packets of `other` arrive, larger ones are lost and nobody says so."""
        for program, source in (("iptables", other.address), ("ip6tables", other.address6)):
            self.run(program, "-w", "-A", "INPUT", "-s", source, "-m", "length", "--length", "600:65535", "-j", "DROP")

    def lose(self, share):
        """So much of what comes in is lost, at random."""
        for program in ("iptables", "ip6tables"):
            self.run(program, "-w", "-A", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random",
                     "--probability", str(share), "-j", "DROP")

    def narrow(self, rate):
        """What it sends goes at `rate` ("10mbit")."""
        run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb",
            "latency", "200ms")

    def filter(self, *rule):
        self.run("iptables", "-w", *rule)

    def spoil(self, spare=None, **faults):
        """What it sends over connections that it makes from now on in IPv4, and their answers, meet these faults
        (bad_network.py). Not those to the host `spare`."""
        if self.proxy is None:
            self.proxy = subprocess.Popen([*self.prefix(), sys.executable, os.path.join(HERE, "bad_network.py"),
                                           str(PROXY_PORT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self.proxy.stdout.readline() != "ready\n":
                raise OSError("bad_network.py does not start")
            if spare is not None:
                self.filter("-t", "nat", "-A", "OUTPUT", "-d", spare.address, "-j", "RETURN")
            self.filter("-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", "10.77.0.0/24", "-m", "mark", "!", "--mark",
                        str(bad_network.MARK), "-j", "REDIRECT", "--to-ports", str(PROXY_PORT))
        self.proxy.stdin.write(json.dumps(faults) + "\n")
        self.proxy.stdin.flush()
        self.proxy.stdout.readline()


class Network:
    """Hosts of the given names, each with a cable to one bridge."""

    def __init__(self, *names):
        self.id = "ls" + uuid.uuid4().hex[:5]
        self.switch = self.id + "-switch"
        self.hosts = {}
        try:
            self.build(names)
        except OSError:
            self.remove()
            raise

    def build(self, names):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            host = self.hosts[name] = Host(self, name, number)
            run("ip", "netns", "add", host.namespace)
            run("ip", "link", "add", host.port, "netns", self.switch, "type", "veth", "peer", "name", "eth0", "netns",
                host.namespace)
            run("ip", "-n", self.switch, "link", "set", host.port, "master", "bridge", "up")
            for command in (["link", "set", "lo", "up"], ["addr", "add", f"{host.address}/24", "dev", "eth0"],
                            ["addr", "add", f"{host.address6}/64", "dev", "eth0", "nodad"],
                            ["link", "set", "eth0", "up"]):
                run("ip", "-n", host.namespace, *command)

    def add_second(self):
        """A second interface for each host, eth1, with a cable to a bridge of its own."""
        run("ip", "-n", self.switch, "link", "add", "second", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "second", "up")
        for host in self.hosts.values():
            port = host.port.replace("p", "q")
            run("ip", "link", "add", port, "netns", self.switch, "type", "veth", "peer", "name", "eth1", "netns",
                host.namespace)
            run("ip", "-n", self.switch, "link", "set", port, "master", "second", "up")
            run("ip", "-n", host.namespace, "addr", "add", f"{host.second}/24", "dev", "eth1")
            run("ip", "-n", host.namespace, "link", "set", "eth1", "up")

    def __getitem__(self, name):
        return self.hosts[name]

    def remove(self):
        for host in self.hosts.values():
            with contextlib.suppress(OSError):
                for pid in host.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if host.proxy is not None:
                host.proxy.communicate()
            with contextlib.suppress(OSError):
                run("ip", "netns", "del", host.namespace)
        with contextlib.suppress(OSError):
            run("ip", "netns", "del", self.switch)


def why_not():
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "hosts as network namespaces need root"
    for program in ("ip", "tc", "iptables", "ip6tables", "unshare", "hostname"):
        if shutil.which(program) is None:
            return f"there is no program '{program}'"
    try:
        Network("probe").remove()
    except OSError as error:
        return str(error)
    return None


class HostsTest(harness.ProgramTest):
    """A test with a coordinator on the host `head` and agents on others."""

    def setUp(self):
        super().setUp()
        self.network = None

    def tearDown(self):
        if self.network is not None:
            self.network.remove()
        super().tearDown()

    def make_network(self, *names):
        if why := why_not():
            raise unittest.SkipTest(f"SKIPPED: {why}")
        self.network = Network("head", *names)
        return [self.network[name] for name in names]

    def own_view(self, host, *folders):
        """Below `folders` this host has files of its own, in DIR/only-HOST, whatever the others have there."""
        prefix = host.prefix
        mounts = []
        for folder in folders:
            own = os.path.join(self.dir, "only-" + host.name, folder)
            os.makedirs(own, exist_ok=True)
            os.makedirs(os.path.join(self.dir, folder), exist_ok=True)
            mounts += [own, os.path.join(self.dir, folder)]
        bind = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 99; shift 2; done; shift; exec "$@"'
        host.prefix = lambda: [*prefix(), "unshare", "--mount", "--propagation", "private", "sh", "-c", bind, "sh",
                               *mounts, "--"]

    def on(self, host, program, *arguments, log, **options):
        """Starts one of the programs on a host; what it says goes to a file."""
        with open(os.path.join(self.dir, log + ".log"), "ab") as file:
            child = subprocess.Popen([*host.prefix(), os.path.join(harness.BIN, program), *arguments],
                                     cwd=options.pop("cwd", self.dir), env=self.environment(**options.pop("env", {})),
                                     stdin=subprocess.DEVNULL, stdout=file, stderr=file, **options)
        self.children.append(child)
        return child

    def said(self, log):
        with open(os.path.join(self.dir, log + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def length_said(self, log):
        """Taken before a program starts: what it says itself comes after so many characters."""
        return len(self.said(log)) if os.path.exists(os.path.join(self.dir, log + ".log")) else 0

    def start_head(self, plaintext=False, listen=None):
        """The coordinator, on a host of its own, at `listen` or its address in IPv4; with TLS unless told otherwise."""
        head = self.network["head"]
        state = os.path.join(self.dir, "journal")
        self.token = os.path.join(state, "token")
        if not plaintext:
            init = self.on(head, "coordinator", "init", f"--state-dir={state}", log="init")
            self.assertEqual(init.wait(timeout=harness.patient()), 0, self.said("init"))
        ready_read, ready_write = os.pipe()
        child = self.on(head, "coordinator", f"--listen={listen or head.address}:0",
                        *(["--plaintext"] if plaintext else []), f"--state-dir={state}", f"--ready-fd={ready_write}",
                        log="coordinator", pass_fds=(ready_write,))
        os.close(ready_write)
        with os.fdopen(ready_read) as ready:
            self.address = ready.readline().strip()
        self.assertTrue(self.address, self.said("coordinator"))
        return child

    def join(self, host, slots, *more, log=None, **options):
        """An agent on a host, with a state folder of its own; its workers' steps are paced."""
        log = log or host.name
        options["env"] = dict(harness.PACED, **options.get("env", {}))
        return self.on(host, "launcher", "join", f"--coordinator={self.address}", f"--token-file={self.token}",
                       f"--slots={slots}", f"--state-dir={os.path.join(self.dir, 'agents', log)}", *more, log=log,
                       **options)

    def up(self, *slots, more=(), plaintext=False, **options):
        """Hosts h1, h2, ... with these slots under one coordinator; on one with 0 there is no agent."""
        hosts = self.make_network(*[f"h{i}" for i in range(1, len(slots) + 1)])
        self.start_head(plaintext)
        self.agents = [self.join(host, count, *more, **options) for host, count in zip(hosts, slots) if count]
        self.await_nodes(len(self.agents))
        return hosts

    def alone(self, path, edit=lambda text: text):
        """The sha256 of the model of the same job, with what `edit` changes, on one host."""
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"resources: .*", "resources: {nproc_per_node: 2, device: cpu}", file.read())
        text = edit(re.sub(r"(?m)^(elastic|checkpoint|restart|env): .*\n", "", text))
        own = self.write("alone/job.yaml", text)
        return self.train(own, cwd=os.path.dirname(own), seconds=600)["model"]["sha256"]

    def verb(self, *arguments, seconds=harness.LEAST_SECONDS, cwd=None):
        """A verb at the coordinator, from its own host: (exit code, stdout, stderr)."""
        verb, *rest = arguments
        result = subprocess.run([*self.network["head"].prefix(), os.path.join(harness.BIN, "launcher"), verb,
                                 f"--coordinator={self.address}", f"--token-file={self.token}", *rest],
                                cwd=cwd or self.dir, env=self.environment(), capture_output=True, text=True,
                                timeout=harness.patient(seconds))
        return result.returncode, result.stdout, result.stderr

    def nodes(self):
        code, out, err = self.verb("nodes", "-o", "json")
        self.assertEqual(code, 0, err)
        return json.loads(out)["nodes"]

    def await_nodes(self, count):
        harness.wait_until(lambda: sum(node["connected"] for node in self.nodes()) == count, 20,
                           f"{count} nodes are there")

    def submit(self, *arguments, **options):
        self.pace()
        code, out, err = self.verb("submit", "--no-follow", "-o", "json", *arguments, **options)
        self.assertEqual(code, 0, out + err)
        return json.loads(out.strip().splitlines()[-1])["job"]

    def describe(self, job):
        code, out, err = self.verb("describe", "-o", "json", job)
        self.assertEqual(code, 0, err)
        return json.loads(out)["job"]

    def status(self, job):
        return self.describe(job)["status"]

    def step(self, job):
        return int(self.status(job).get("progress", {}).get("step", 0))

    def hosts_of(self, job):
        """By rank; places that nobody has are left out."""
        return [member["host"] for member in self.members(job) if member["host"]]

    def members(self, job):
        """By rank."""
        return sorted(self.describe(job)["members"], key=lambda member: member["rank"])

    def logs_of(self, job):
        """What its workers have logged, which have files for it."""
        text, logs = "", 0
        for folder, _, files in os.walk(os.path.join(self.dir, "runs")):
            for name in files:
                if f"-{job}" in folder and name.endswith(".log"):
                    with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                        text += file.read()
                        logs += 1
        self.assertGreater(logs, 0, "there are logs")
        return text

    def await_host(self, job, host):
        harness.wait_until(lambda: host.name in self.hosts_of(job), 60, f"{host.name} has a worker")

    def end_of(self, job, seconds=600):
        self.unpace()
        final = ("SUCCEEDED", "FAILED", "CANCELLED")
        return harness.wait_until(lambda: (s := self.status(job))["state"] in final and s, seconds, "the job ends")

    def assert_good(self, job, path, expected=None):
        """It succeeds with these bits, or with those of `path` alone on one host. Returns its status."""
        status = self.end_of(job)
        self.assertEqual(status["state"], "SUCCEEDED", status["reason"])
        self.assertEqual(status["result"]["model_sha256"], expected or self.alone(path))
        return status
