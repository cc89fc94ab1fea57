# SPDX-License-Identifier: Apache-2.0
"""Runs the real programs for the integration tests: launcher, coordinator and workers as processes.

Every process of a test carries a mark in its environment, so that a test can find them all, kill one
and see that none is left. LOCKSTEP_BIN names the folder with the programs.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

BIN = os.environ.get("LOCKSTEP_BIN", "")
SANITIZED = os.environ.get("LOCKSTEP_SANITIZED", "") == "1"
# Instrumented programs on busy machines are an order of magnitude slower.
PATIENCE = 10.0 if SANITIZED else 1.0
GLOBAL_BATCH = 48  # of synthetic_job
# What only says that nothing hangs waits no shorter, since other programs may have the machine for seconds.
LEAST_SECONDS = 120
# A job that is to outlast what a test does to it has steps that take so long at least, on any machine, until the test
# has done it (unpace()): it is started with PACED in its environment, and waits more than it computes.
STEP_SECONDS = 0.03
PACED = {"LOCKSTEP_STEP_TIME": "30ms"}
LEDGER_RECORD = struct.Struct("<qiiQ")  # of ledger.bin: step, shard, generation, hash


def steps_that_last(seconds):
    """Steps of a paced job that take so many seconds at least."""
    return int(seconds / STEP_SECONDS)


def patient(seconds=0):
    """Seconds after which what ends by itself within `seconds` where nothing else runs is taken to hang."""
    return max(seconds, LEAST_SECONDS) * PATIENCE


def wait_until(condition, seconds, what):
    """Returns the first true value of condition(); fails after `seconds`, and LEAST_SECONDS at least.

    Most conditions run a program or read /proc: asking takes a quarter of the time at most, so that many tests
    can wait beside each other.
    """
    seconds = patient(seconds)
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(min(max(0.005, 3 * (now - asked)), 0.5))


def signal_again(child, number=signal.SIGINT):
    """Sends a signal once more, as another wish: what comes at once is taken for the same one."""
    time.sleep(0.6)
    child.send_signal(number)


class Process:
    """One process found in /proc."""

    def __init__(self, pid):
        self.pid = pid
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.argv = [a.decode(errors="replace") for a in file.read().split(b"\0")[:-1]]
        self.name = os.path.basename(self.argv[0]) if self.argv else ""

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)

    def parent(self):
        with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])


class ProgramTest(unittest.TestCase):
    """A test with a folder of its own that leaves no process behind."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-test-")
        self.runtime = os.path.join(self.dir, "runtime")
        os.mkdir(self.runtime, 0o700)
        self.mark = f"LOCKSTEP_TEST_MARK={uuid.uuid4()}"
        self.children = []

    def tearDown(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        left = self.processes()
        for process in left:
            try:
                process.kill()
            except ProcessLookupError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)

    def environment(self, **more):
        key, value = self.mark.split("=")
        environment = dict(os.environ, **{key: value})
        environment["XDG_CACHE_HOME"] = os.path.join(self.dir, "cache")
        environment["XDG_RUNTIME_DIR"] = self.runtime  # default sockets of a test's own
        environment["XDG_STATE_HOME"] = os.path.join(self.dir, "state")
        environment["LOCKSTEP_STEP_TIME_UNTIL"] = os.path.join(self.dir, "unpaced")
        environment.update(more)
        return environment

    def processes(self, name=None):
        """All live processes of this test, or those of one program."""
        found = []
        mark = self.mark.encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/stat", "rb") as file:
                    if file.read().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X"):
                        continue
                process = Process(int(entry))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if name is None or process.name == name:
                found.append(process)
        return found

    def measured(self, row, text):
        """For docs/results/fault_matrix.md: `ctest -V` shows it."""
        print(f"measured, row {row} of the fault matrix: {text}", file=sys.stderr)

    def pace(self):
        """Paced jobs that are to come are so until unpace()."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.dir, "unpaced"))

    def unpace(self):
        """What was to happen to paced jobs has: from now on they take no longer than they must."""
        self.write("unpaced", "")

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, program, *arguments, **options):
        child = subprocess.Popen(
            [os.path.join(BIN, program), *arguments],
            cwd=options.pop("cwd", self.dir),
            env=self.environment(**options.pop("env", {})),
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            **options,
        )
        self.children.append(child)
        return child

    def start_coordinator(self, *arguments, listen=None, **options):
        """A coordinator as a daemon, and its address: a socket of the test's own unless told otherwise."""
        ready_read, ready_write = os.pipe()
        child = self.start("coordinator", f"--listen={listen or f'unix:{self.dir}/socket'}",
                           f"--ready-fd={ready_write}", *arguments, pass_fds=(ready_write,), **options)
        os.close(ready_write)
        with os.fdopen(ready_read) as ready:
            address = ready.readline().strip()
        self.assertTrue(address, "the coordinator says where it listens")
        return child, address

    def finish(self, child, seconds=60):
        """(exit code, stdout, stderr) of a child that ends by itself, within `seconds` and LEAST_SECONDS at least."""
        seconds = patient(seconds)
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            raise AssertionError(f"did not end within {seconds:g} s:\n{out}\n{err}") from None
        return child.returncode, out, err

    def run_program(self, program, *arguments, seconds=60, **options):
        return self.finish(self.start(program, *arguments, **options), seconds)

    def launch(self, *arguments, seconds=60, **options):
        return self.run_program("launcher", *arguments, seconds=seconds, **options)

    def train(self, *arguments, seconds=60, **options):
        """Runs a job to its good end and returns the result object."""
        code, out, err = self.launch("-o", "json", *arguments, seconds=seconds, **options)
        self.assertEqual(code, 0, f"stdout:\n{out}\nstderr:\n{err}")
        return json.loads(out.strip().splitlines()[-1])

    def assert_nothing_left(self, seconds=10):
        wait_until(lambda: not self.processes(), seconds, f"processes left: {[p.argv for p in self.processes()]}")


def hashes_in(ledger):
    """The hash of each (step, shard) of this ledger.bin."""
    with open(ledger, "rb") as file:
        return {(step, shard): value for step, shard, _, value in LEDGER_RECORD.iter_unpack(file.read())}


def newest_record(ledger):
    """(step, generation) of the newest step that is written down in this ledger.bin; (0, 0): there is none."""
    try:
        with open(ledger, "rb") as file:
            whole = os.fstat(file.fileno()).st_size // LEDGER_RECORD.size
            if whole == 0:
                return 0, 0
            file.seek((whole - 1) * LEDGER_RECORD.size)
            step, _, generation, _ = LEDGER_RECORD.unpack(file.read(LEDGER_RECORD.size))
            return step, generation
    except FileNotFoundError:
        return 0, 0


def free_port():
    """One of 127.0.0.1 that nobody has. Not of those that the kernel gives away, to clients of others for instance,
    before the program comes that is to listen there."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = map(int, file.read().split())
    unprivileged = 1024
    quiet = [*range(max(unprivileged, first // 2), first), *range(last + 1, 65536)]
    # Where the kernel gives all away any will do: mostly nobody comes in between.
    for port in random.choices(quiet or range(unprivileged, 65536), k=1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port of 127.0.0.1 is free")


def synthetic_job(name="tiny", steps=20, shards=4, global_batch=GLOBAL_BATCH, nproc=4, hidden="[32]", extra="",
                  train_extra=""):
    """A job on made data that takes a moment."""
    return f"""name: {name}
resources: {{nproc_per_node: {nproc}, device: cpu}}
train:
  model: {{mlp: {{hidden: {hidden}}}}}
  data: {{synthetic: {{train_samples: 1000, test_samples: 200, features: 40, classes: 5}}}}
  global_batch: {global_batch}
  shards: {shards}
  steps: {steps}
  optimizer: {{sgd: {{lr: 0.05, momentum: 0.9}}}}
  schedule: {{cosine: {{}}}}
  seed: 3
{train_extra}{extra}"""
