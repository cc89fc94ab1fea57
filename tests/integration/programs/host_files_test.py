# SPDX-License-Identifier: Apache-2.0
"""The files of a job over several hosts (network namespaces): checkpoints, data, and what a run leaves."""

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import time
import unittest

import harness
from harness import steps_that_last, wait_until
from hosts import HostsTest


# Steps that outlast the coming of another host.
PACE = "env: {LOCKSTEP_STEP_TIME: 60ms}\n"


def state_of(pid):
    """As /proc has it; X: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


class HostFiles(HostsTest):
    def job_file(self, resources="nodes: 2, nproc_per_node: 1", steps=200, shards=4, extra="", hidden="[64]", data=None,
                 detection="2s"):
        text = harness.synthetic_job(
            steps=steps, shards=shards, hidden=hidden, train_extra="  eval: {every: 100 steps}\n",
            extra=f"restart: {{max_restarts: 3}}\nfailure_detection: {detection}\n{extra}")
        text = re.sub(r"resources: .*", f"resources: {{{resources}, device: cpu}}", text)
        if data is not None:
            text = re.sub(r"(?m)^  data: .*", f"  data: {data}", text)
        return self.write("job.yaml", text)

    def in_dir(self, *parts):
        return os.path.join(self.dir, *parts)

    def workers_on(self, host):
        pids = set(host.pids())
        return [p for p in self.processes("worker") if p.pid in pids]

    # --- which checkpoint is the newest ---
    def newest(self, folder="runs/tiny"):
        """(generation, step) of the checkpoint that `last` names."""
        with open(self.in_dir(folder, "last", "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)["checkpoint"]
        return manifest["generation"], manifest["step"]

    def test_a_writer_that_wakes_up_late_does_not_become_the_newest(self):
        first, _ = self.up(1, 1, env={"LOCKSTEP_CHAOS": "stop rank:0@step:20/checkpoint"})
        # It stands still for less until its host does, too.
        path = self.job_file(steps=steps_that_last(30), detection="20s",
                             extra="checkpoint: {every: 20 steps}\nelastic: {min_workers: 1}\n")
        job = self.submit(path)
        # Its host stands still with it, so that nobody ends it.
        writer = wait_until(lambda: next((p for p in self.workers_on(first) if state_of(p.pid) == "T"), None), 60,
                            "rank 0 stands still with a whole checkpoint")
        others = [pid for pid in first.pids() if pid != writer.pid]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        self.assertEqual(len(glob.glob(self.in_dir("runs/tiny/.saving-*0020-*-g1"))), 1)
        self.assertFalse(os.path.exists(self.in_dir("runs/tiny/last")))
        def later():
            return os.path.exists(self.in_dir("runs/tiny/last")) and self.newest()[1] > 60 and self.newest()

        before = wait_until(later, 60, "the job saves without it")
        writer.kill(signal.SIGCONT)
        wait_until(lambda: state_of(writer.pid) in "XZ", 30, "it hears that it is not wanted any more")
        self.assertGreater(before[0], 1)
        self.assertGreaterEqual(self.newest(), before)
        self.assertFalse(os.path.exists(self.in_dir("runs/tiny/step-0000000020")))
        self.assertEqual(glob.glob(self.in_dir("runs/tiny/.saving-*0020-*-g1*")), [])
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        self.assert_good(job, path)

    # --- folders of their own ---
    def up_apart(self, *folders, slots=(1, 1, 0)):
        """Hosts with these folders of their own; those with slots have agents."""
        hosts = self.make_network(*[f"h{i}" for i in range(1, len(slots) + 1)])
        for host in hosts:
            self.own_view(host, *folders)
        self.start_head()
        for host, count in zip(hosts, slots):
            if count:
                self.join(host, count)
        self.await_nodes(sum(count > 0 for count in slots))
        return hosts

    def kill_workers(self):
        for process in self.processes("worker"):
            process.kill()

    def copies(self):
        """By host: the steps that it has checkpoints of."""
        found = {}
        for path in glob.glob(self.in_dir("only-*/runs/tiny/step-*")):
            host = path.split("/only-")[1].split("/")[0]
            found.setdefault(host, set()).add(int(path[-10:]))
        return found

    def test_hosts_that_share_no_folder_keep_a_copy_each(self):
        _, second, third = self.up_apart("runs")
        path = self.job_file(steps=steps_that_last(30), extra="checkpoint: {every: 40 steps}\n"
                             f"elastic: {{min_workers: 1}}\n{PACE}")
        job = self.submit(path)
        wait_until(lambda: all(max(self.copies().get(h, {0})) > 80 for h in ("h1", "h2")), 60,
                   "both hosts have checkpoints")
        self.assertEqual(glob.glob(self.in_dir("runs/tiny/*")), [], "none of it is shared")
        self.kill_workers()
        wait_until(lambda: re.search("goes on after step [1-9].* of the checkpoint", self.status(job)["reason"]), 60,
                   "it goes on from a checkpoint")
        # One that has nothing takes the place of one that had all.
        second.power_off()
        self.join(third, 1)
        self.await_host(job, third)
        wait_until(lambda: self.copies().get("h3"), 60, "it has checkpoints, too")
        self.kill_workers()
        status = self.assert_good(job, path)
        self.assertEqual(glob.glob(self.in_dir("only-h[13]/runs/tiny/.s*")), [], status)

    def test_a_host_alone_goes_on_from_its_copy(self):
        first, second, third = self.up_apart("runs")
        path = self.job_file(steps=steps_that_last(30), extra="checkpoint: {every: 40 steps}\n"
                             f"elastic: {{min_workers: 1}}\n{PACE}")
        job = self.submit(path)
        wait_until(lambda: all(max(self.copies().get(h, {0})) > 80 for h in ("h1", "h2")), 60,
                   "both hosts have checkpoints")
        # Only the second one's files are left; the others begin with nothing.
        for pid in self.workers_on(second):
            os.kill(pid.pid, signal.SIGKILL)
        first.power_off()
        self.join(third, 1)
        self.await_host(job, third)
        status = self.assert_good(job, path)
        self.assertIn("h3", self.hosts_of(job), status)

    def test_a_host_whose_copies_were_removed_takes_the_state_from_the_other(self):
        # The run's folder, in which the run notes that it has checkpoints, is shared.
        _, second = self.up_apart("ckpt", slots=(1, 1))
        path = self.job_file(steps=steps_that_last(30), extra="checkpoint: {dir: ckpt/tiny, every: 40 steps}\n" + PACE)
        job = self.submit(path)
        def saved(host):
            return glob.glob(self.in_dir(f"only-{host}/ckpt/tiny/step-*"))

        wait_until(lambda: saved("h1") and saved("h2") and glob.glob(
            self.in_dir("runs/tiny-*/checkpoint_folder.json")), 60, "both hosts have checkpoints, which is noted")
        stopped = self.workers_on(second)
        for worker in stopped:
            worker.kill(signal.SIGSTOP)
        wait_until(lambda: all(state_of(worker.pid) == "T" for worker in stopped), 30, "nobody writes there")
        shutil.rmtree(self.in_dir("only-h2/ckpt/tiny"))
        self.kill_workers()
        wait_until(lambda: re.search("goes on after step [1-9].* of the checkpoint", self.status(job)["reason"]), 60,
                   "it goes on from the copy of the first")
        wait_until(lambda: saved("h2"), 60, "the second one has copies again")
        self.assert_good(job, path)

    def test_a_folder_that_is_not_shared_as_stated(self):
        self.up_apart("runs", slots=(1, 1))
        job = self.submit(self.job_file(extra="checkpoint: {every: 50 steps, shared: always}\n"))
        status = self.end_of(job, 60)
        self.assertEqual(status["state"], "FAILED")
        self.assertRegex(status["reason"], r"checkpoint\.dir: host h2 does not see in runs/tiny what host h1 wrote")

    # --- data ---
    def test_other_data_at_the_same_path(self):
        hosts = self.up_apart("data", slots=(1, 1))
        rows = "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(200))
        for host in hosts:
            self.write(f"only-{host.name}/data/train.csv", rows)
        csv = "{csv: {train: data/train.csv, test: data/train.csv}}"
        path = self.job_file(steps=20, shards=2, data=csv)
        self.assertEqual(self.end_of(self.submit(path), 60)["state"], "SUCCEEDED")
        self.write("only-h2/data/train.csv", rows.replace("3,3,0", "3,4,0", 1))
        status = self.end_of(self.submit(path), 60)
        self.assertEqual(status["state"], "FAILED")
        self.assertRegex(status["reason"], r"host h2 are not those of .*host h1: data/train\.csv .*other bytes")
        self.assertEqual(int(status["generation"]) if "generation" in status else 0, 0, "before the first step")

    # --- what a run left ---
    def test_fetch(self):
        first, _ = self.up_apart("runs", slots=(1, 1))
        path = self.job_file(steps=100)
        code, out, err = self.verb("submit", "-o", "json", path, seconds=60)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        job = result["job"]
        self.assertIn("on this host", err)
        folder = self.in_dir(f"runs/tiny-{job}")
        self.assertEqual(self.sha256(f"{folder}/model/model.safetensors"), result["model"]["sha256"])
        self.assertEqual(sorted(n for n in os.listdir(folder) if n[0] != "."), ["model"])
        code, out, err = self.verb("fetch", "-o", "json", "--all", "--to", "got", job)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["missing"], [])
        own = self.in_dir(f"only-h1/runs/tiny-{job}")
        for name in ("job.yaml", "metrics.jsonl", "logs/0.log", "model/config.json"):
            with open(f"{own}/{name}", "rb") as wanted, open(self.in_dir("got", name), "rb") as got:
                self.assertEqual(got.read(), wanted.read(), name)
        self.assertTrue(os.path.exists(self.in_dir("got/logs/1.log")), "of the other host")
        # A host that had ranks other than 0 has the run's folder, and not the model.
        shutil.rmtree(f"{folder}/model")
        os.remove(f"{folder}/.fetched")
        shutil.copy(f"{own}/job.yaml", f"{folder}/job.yaml")
        code, out, err = self.verb("fetch", job)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.sha256(f"{folder}/model/model.safetensors"), result["model"]["sha256"])
        # The user's own job file is not the run's, and is not overwritten.
        self.write("mine/job.yaml", "name: mine\n")
        code, out, err = self.verb("fetch", "--all", "--to", "mine", job)
        self.assertEqual(code, 5, err)
        self.assertIn("has a job.yaml that no fetch has put there", err)
        self.assertEqual(os.listdir(self.in_dir("mine")), ["job.yaml"])
        # The logs of a job that runs can be had, and its model not yet.
        running = self.submit(self.job_file(steps=10_000_000))
        wait_until(lambda: self.step(running) > 10, 60, "it trains")
        code, out, err = self.verb("fetch", "--to", "early", running)
        self.assertEqual(code, 1)
        self.assertIn("has not written a model yet", err)
        self.assertEqual(sorted(os.listdir(self.in_dir("early/logs"))), ["0.log", "1.log"])
        self.assertEqual(self.verb("fetch", "--model", running)[0], 1)
        self.assertEqual(self.verb("cancel", "--kill", running)[0], 0)
        self.end_of(running, 60)
        # A node that is away is named, and the rest comes.
        first.power_off()
        wait_until(lambda: sum(n["connected"] for n in self.nodes()) == 1, 20, "one host is away")
        code, out, err = self.verb("fetch", "--logs", "--to", "rest", job)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"host h1.* is away")
        self.assertEqual(sorted(os.listdir(self.in_dir("rest/logs"))), ["1.log"])
        code, _, err = self.verb("fetch", "nothing")
        self.assertEqual(code, 1, err)

    def test_fetch_of_a_job_that_moved(self):
        self.up_apart("runs", slots=(1, 1, 1, 1))
        path = self.job_file(steps=steps_that_last(20), extra=f"elastic: {{min_workers: 1}}\n{PACE}")
        job = self.submit(path)
        moved = []
        for _ in range(2):
            before = self.step(job)
            wait_until(lambda: self.step(job) > before + 10, 60, "it trains")
            host = self.hosts_of(job)[0]
            self.assertEqual(self.verb("drain", host)[0], 0)
            wait_until(lambda: host not in self.hosts_of(job), 60, "rank 0 moved")
            moved.append(host)
        self.assertEqual(self.end_of(job, 90)["state"], "SUCCEEDED")
        code, _, err = self.verb("fetch", "--all", "--to", "got", job)
        self.assertEqual(code, 0, err)
        # What rank 0 has written before on other hosts, those that have other ranks now among them.
        earlier = os.listdir(self.in_dir("got/hosts"))
        self.assertGreaterEqual(len(earlier), 2)
        steps = set()
        for name in (*(f"hosts/{node}/metrics.jsonl" for node in earlier), "metrics.jsonl"):
            if os.path.exists(self.in_dir("got", name)):
                with open(self.in_dir("got", name), encoding="utf-8") as file:
                    steps.update(line["step"] for line in map(json.loads, file) if line["kind"] == "step")
        self.assertEqual(steps, set(range(1, max(steps) + 1)), "none is missing")
        self.assertEqual(len(glob.glob(self.in_dir("got/hosts/*/logs/*.log"))), 2)
        # That it is away takes nothing from what the job's own hosts have.
        self.network[moved[0]].power_off()
        wait_until(lambda: sum(n["connected"] for n in self.nodes()) == 3, 20, "the host is away")
        code, out, err = self.verb("fetch", "--all", "-o", "json", "--to", "rest", job)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, rf"left behind: host {moved[0]}, where the job was before: .* is away")
        self.assertEqual(len(json.loads(out)["left_behind"]), 1)

    def sha256(self, path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


if __name__ == "__main__":
    unittest.main(verbosity=2)
