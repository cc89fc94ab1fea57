# SPDX-License-Identifier: Apache-2.0
"""Jobs in a control group with little memory: who replaces the dead has room only in what they give back."""

import glob
import json
import os
import unittest
import uuid

import harness
from harness import newest_record, wait_until

MIB = 1 << 20
ROOT = "/sys/fs/cgroup"
V1 = os.path.isdir(f"{ROOT}/memory")


class MemoryGroup:
    """A control group of version 1 or 2 for memory, as this machine has it."""

    def __init__(self):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            fields = [line.strip().split(":", 2) for line in file]
        own = next((f[2] for f in fields if ("memory" in f[1].split(",")) == V1 and (V1 or f[1] == "")), "/")
        parent = f"{ROOT}/memory{own}" if V1 else ROOT
        if V1 and not os.path.isdir(parent):
            parent = f"{ROOT}/memory"
        self.folder = os.path.join(parent, f"lockstep-test-{uuid.uuid4().hex[:8]}")
        os.mkdir(self.folder)
        if not os.path.exists(os.path.join(self.folder, self.limit_file())):
            os.rmdir(self.folder)
            raise OSError("the memory controller is not there")

    @staticmethod
    def limit_file():
        return "memory.limit_in_bytes" if V1 else "memory.max"

    def write(self, name, value):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(str(value))

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def limit(self, size):
        """Whether it could be set: not while more is used."""
        try:
            self.write(self.limit_file(), size)
        except OSError:
            return False
        return True

    def used(self):
        """Bytes, without page cache that can go."""
        with open(os.path.join(self.folder, "memory.usage_in_bytes" if V1 else "memory.current"),
                  encoding="utf-8") as file:
            used = int(file.read())
        with open(os.path.join(self.folder, "memory.stat"), encoding="utf-8") as file:
            stat = dict(line.split() for line in file)
        return used - int(stat["total_inactive_file" if V1 else "inactive_file"])


class Memory(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        try:
            self.group = MemoryGroup()
        except OSError as error:
            super().tearDown()
            self.skipTest(f"no control group for memory can be made here: {error}")

    def tearDown(self):
        super().tearDown()
        if hasattr(self, "group"):
            wait_until(self.gone, 10, "the group is empty")

    def gone(self):
        try:
            os.rmdir(self.group.folder)
        except OSError:
            return False
        return True

    def steps_said(self):
        """Lines of the metrics of all runs."""
        lines = 0
        for root, _, files in os.walk(os.path.join(self.dir, "runs")):
            if "metrics.jsonl" in files:
                with open(os.path.join(root, "metrics.jsonl"), encoding="utf-8") as file:
                    lines += sum(1 for _ in file)
        return lines

    def newest_generation(self):
        """Of all runs; of those of which steps are written down."""
        return max(newest_record(path)[1] for path in glob.glob(os.path.join(self.dir, "runs/*/ledger.bin")))

    def run_with_a_death(self, margin, generations):
        """Trains with two workers of some 100 MiB each, limits the group to what is used and `margin` more, kills
        one, and lets the job end no sooner than so many generations have trained. Returns the result and stderr of
        that run and the model's hash of an undisturbed one."""
        job = self.write("job.yaml", harness.synthetic_job(
            steps=60, nproc=2, hidden="[1024, 4096]", train_extra="  eval: {every: never}\n",
            extra="elastic: {min_workers: 1}\n"))
        wanted = self.train("--nproc-per-node=2", job, seconds=120)["model"]["sha256"]
        before = self.steps_said()
        child = self.start("launcher", "-o", "json", "--nproc-per-node=2", job,
                           preexec_fn=self.group.enter, env={"LOCKSTEP_STEP_TIME": "300ms"})
        wait_until(lambda: len(self.processes("worker")) == 2 and self.steps_said() > before, 60, "two workers train")
        victim = self.processes("worker")[1]
        wait_until(lambda: self.group.limit(self.group.used() + margin), 10, "the limit is set")
        victim.kill()
        wait_until(lambda: self.newest_generation() >= generations or child.poll() is not None, 60,
                   f"generation {generations} trains")
        self.unpace()
        code, out, err = self.finish(child, 180)
        self.assertEqual(code, 0, out + err)
        return json.loads(out.strip().splitlines()[-1]), err, wanted

    def test_a_replacement_takes_the_memory_of_the_dead(self):
        result, err, wanted = self.run_with_a_death(80 * MIB, 3)
        self.assertEqual(result["model"]["sha256"], wanted)
        self.assertEqual(len(result["faults"]), 1, err)
        self.assertEqual(result["generations"], 3, err)

    def test_without_room_for_a_replacement_the_others_go_on(self):
        result, err, wanted = self.run_with_a_death(8 * MIB, 2)
        self.assertEqual(result["model"]["sha256"], wanted)
        self.assertEqual(result["generations"], 2, err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
