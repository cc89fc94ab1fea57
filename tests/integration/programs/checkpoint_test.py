# SPDX-License-Identifier: Apache-2.0
"""Whatever stops a run, it goes on from its newest whole checkpoint to the same bits."""

import glob
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import unittest

import harness
from harness import wait_until

STEPS = 240
# With evaluations that decide something, so that what they decided must be carried too.
TRAIN = "  eval: {every: 30 steps}\n  best: {metric: loss}\n  ema: {decay: 0.9}\n"
SAVED = "runs/tiny"


def job(steps=STEPS, extra="", **more):
    return harness.synthetic_job(steps=steps, train_extra=TRAIN, extra=extra, **more)


CHECKPOINT = "checkpoint: {every: 20 steps, keep: 3}\nrestart: {max_restarts: 9}\n"


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, by the format's definition."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


class Checkpoints(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        self.job = self.write("tiny.yaml", job(extra=CHECKPOINT))

    def in_dir(self, *parts):
        return os.path.join(self.dir, *parts)

    def files_of(self, result):
        """The weights that a run leaves, by name."""
        folder = self.in_dir(os.path.dirname(result["model"]["path"]))
        found = {}
        for name in ("model.safetensors", "ema.safetensors", "best.safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = file.read()
        return found

    def outcome(self, result):
        return {"sha256": result["model"]["sha256"], "steps": result["steps"],
                "eval": {k: result["eval"][k] for k in ("loss", "accuracy", "step")},
                "files": self.files_of(result)}

    def undisturbed(self):
        plain = self.write("plain.yaml", job())
        return self.outcome(self.train(plain))

    def checkpoints(self):
        return sorted(name for name in os.listdir(self.in_dir(SAVED)) if name.startswith("step-"))

    def run_until(self, step, *more):
        """Starts a run that stands still in `step` until somebody ends it."""
        # Steps take their time: one that is due while another is still written to a slow disk is begun in a later step.
        child = self.start("launcher", "chaos", "--hang", f"rank:1@step:{step}", "--set", "failure_detection=10m",
                           "--set", "env.LOCKSTEP_STEP_TIME=10ms", *more, self.job)
        wait_until(lambda: os.path.exists(self.in_dir(SAVED, "last"))
                   and int(os.readlink(self.in_dir(SAVED, "last"))[5:]) >= 40, 30, "a checkpoint")
        return child

    def kill_run(self, step):
        child = self.run_until(step)
        child.kill()
        child.communicate()
        self.assert_nothing_left(5)

    def train_and_tell(self, *arguments):
        """(result, what was said) of a run to its good end."""
        code, out, err = self.launch("-o", "json", *arguments)
        self.assertEqual(code, 0, f"stdout:\n{out}\nstderr:\n{err}")
        return json.loads(out.strip().splitlines()[-1]), err

    def test_a_killed_run_goes_on_at_any_number_of_workers(self):
        wanted = self.undisturbed()
        self.kill_run(150)
        kept = self.in_dir("kept")
        shutil.copytree(self.in_dir(SAVED), kept, symlinks=True)
        for workers in (1, 3, 4):
            shutil.rmtree(self.in_dir(SAVED))
            shutil.copytree(kept, self.in_dir(SAVED), symlinks=True)
            result, said = self.train_and_tell(f"--nproc-per-node={workers}", self.job)
            self.assertIn("goes on after step", said)
            self.assertEqual(self.outcome(result), wanted, workers)
        # The run is done: there is nothing to do again, and the same comes out.
        result, said = self.train_and_tell(self.job)
        self.assertIn(f"goes on after step {STEPS}", said)
        self.assertEqual(self.outcome(result), wanted)

    def test_all_workers_at_once(self):
        wanted = self.undisturbed()
        faults = [f for rank in range(4) for f in ("--kill", f"rank:{rank}@step:150")]
        # So slowly that the disk has a checkpoint by then.
        code, out, err = self.launch("chaos", "-o", "json", *faults, self.job, env=harness.PACED)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertIn("goes on after step", err)
        self.assertEqual(self.outcome(result), wanted)
        lost = [fault["steps_lost"] for fault in result["faults"]]
        resumed = int(re.search(r"goes on after step (\d+)", err).group(1))
        self.assertGreater(resumed, 0)
        self.assertLessEqual(max(lost), 149 - resumed, "it began at the start again")

    def test_a_death_while_saving_leaves_nothing_half_done(self):
        """A state of two parts: the writer of either dies between its flush and the manifest."""
        big = job(steps=50, hidden="[3000, 1000]", nproc=2, shards=2, extra="restart: {max_restarts: 9}\n")
        wanted = self.outcome(self.train(self.write("big.yaml", big)))
        saving = self.write("tiny.yaml", big + "checkpoint: {every: 10 steps}\n")
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:0@step:10/checkpoint", "--kill",
                                     "rank:1@step:50/checkpoint", saving)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertTrue(all(injection["happened"] for injection in result["injections"]), result)
        self.assertEqual(self.outcome(result), wanted)
        last = self.in_dir(SAVED, "last")
        self.assertEqual(int(os.readlink(last)[5:]), 50)
        self.assertIn("model-00002-of-00002.safetensors", os.listdir(last))
        self.assertEqual([n for n in os.listdir(self.in_dir(SAVED)) if n.startswith(".")], [])
        with open(os.path.join(last, "model.safetensors.index.json"), encoding="utf-8") as file:
            places = json.load(file)["weight_map"]
        merged = {}
        for name in set(places.values()):
            merged.update(read_safetensors(os.path.join(last, name)))
        self.assertEqual(set(merged), set(places))
        self.assertEqual(merged, read_safetensors(self.in_dir(result["model"]["path"])))
        result, said = self.train_and_tell("--nproc-per-node=1", saving)
        self.assertIn("goes on after step 50", said)
        self.assertEqual(self.outcome(result), wanted)

    def test_a_damaged_checkpoint_is_left_for_the_one_before(self):
        wanted = self.undisturbed()
        self.kill_run(150)
        newest, before = self.checkpoints()[-1], self.checkpoints()[-2]
        path = self.in_dir(SAVED, newest, "model.safetensors")
        with open(path, "r+b") as file:
            file.seek(-3, os.SEEK_END)
            byte = file.read(1)
            file.seek(-3, os.SEEK_END)
            file.write(bytes([byte[0] ^ 4]))
        result, said = self.train_and_tell(self.job)
        self.assertIn(f"{newest} is damaged, an earlier one is looked for", said)
        self.assertIn(f"goes on after step {int(before[5:])} from the checkpoint {SAVED}/{before}", said)
        self.assertEqual(self.outcome(result), wanted)

    def test_a_half_written_checkpoint_is_none(self):
        wanted = self.undisturbed()
        self.kill_run(150)
        newest = self.checkpoints()[-1]
        with open(self.in_dir(SAVED, newest, "manifest.json"), "r+", encoding="utf-8") as file:
            file.truncate(400)
        os.remove(self.in_dir(SAVED, self.checkpoints()[-2], "training.safetensors"))
        left = self.in_dir(SAVED, ".saving-step-0000000200-dead-g1")
        os.mkdir(left)
        result, said = self.train_and_tell(self.job)
        self.assertIn(f"not a whole checkpoint: {SAVED}/{newest}", said)
        self.assertIn(f"{self.checkpoints()[0]}", "".join(self.checkpoints()))
        self.assertEqual(self.outcome(result), wanted)
        self.assertFalse(os.path.exists(left))

    def test_ctrl_c_and_then_another_number_of_steps(self):
        child = self.start("launcher", "-o", "json", self.write("tiny.yaml", job(
            extra="checkpoint: {}\n", steps=STEPS)), "--set", "train.steps=100000000")
        wait_until(lambda: self.has_metrics() and len(self.processes("worker")) == 4, 20, "it trains")
        child.send_signal(signal.SIGINT)
        code, _, err = self.finish(child, 30)
        self.assertEqual(code, 130, err)
        self.assertEqual(len(self.checkpoints()), 1)
        stopped = int(self.checkpoints()[0][5:])
        self.assertGreater(stopped, 0)
        # Fewer steps may end before the checkpoint: refused by name, not begun anew in silence.
        code, _, err = self.launch(self.in_dir("tiny.yaml"))
        self.assertNotEqual(code, 0)
        self.assertIn("train.steps: 100000000 -> 240", err)
        result, said = self.train_and_tell("--set", "checkpoint.resume=never", self.in_dir("tiny.yaml"))
        self.assertNotIn("goes on after", said)
        self.assertEqual(self.outcome(result), self.undisturbed())

    def test_a_run_that_is_made_longer_is_as_if_it_had_been_so_long_from_the_start(self):
        rates = ("--set", "train.schedule={step: {every: 50}}")
        wanted = self.outcome(self.train(*rates, "--set", "checkpoint.dir=other", self.job))
        brief = ("--set", f"train.steps={STEPS // 2}")
        self.train(*rates, *brief, self.job)
        result, said = self.train_and_tell(*rates, self.job)
        self.assertIn(f"goes on after step {STEPS // 2} ", said)
        self.assertEqual(self.outcome(result), wanted)
        # With a schedule over the run's length it is another training.
        self.train(*brief, "--set", "checkpoint.dir=cosine", self.job)
        code, _, err = self.launch("--set", "checkpoint.dir=cosine", self.job)
        self.assertNotEqual(code, 0)
        self.assertIn(f"train.steps: {STEPS // 2} -> {STEPS}", err)

    def has_metrics(self):
        return any("metrics.jsonl" in files and os.path.getsize(os.path.join(root, "metrics.jsonl")) > 0
                   for root, _, files in os.walk(self.in_dir("runs")))

    def test_a_drained_run_goes_on_where_it_was(self):
        wanted = self.undisturbed()
        child = self.start("launcher", "chaos", "--stop", "rank:1@step:100", "--set",
                           "failure_detection=10m", self.job)
        # Rank 1 sleeps in step 100; the wish to stop is there when it wakes.
        stopped = wait_until(lambda: [p for p in self.processes("worker") if self.is_stopped(p.pid)], 30,
                             "a stopped worker")
        child.send_signal(signal.SIGINT)
        wait_until(lambda: self.said_drain(child), 10, "the wish to stop has come")
        stopped[0].kill(signal.SIGCONT)
        code, _, err = self.finish(child, 30)
        self.assertEqual(code, 130, err)
        last = int(os.readlink(self.in_dir(SAVED, "last"))[5:])
        self.assertIn(last, (100, 101))
        result, said = self.train_and_tell(self.job)
        self.assertIn(f"goes on after step {last} ", said)
        self.assertEqual(self.outcome(result), wanted)

    @staticmethod
    def is_stopped(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except (FileNotFoundError, ProcessLookupError):
            return False

    @staticmethod
    def said_drain(child):
        """The launcher tells at once that it was asked to stop."""
        line = child.stderr.readline()
        return "stop" in line or "drain" in line

    def test_another_job_is_refused_by_name(self):
        self.train(self.job)
        other = self.write("tiny.yaml", job(extra=CHECKPOINT).replace("lr: 0.05", "lr: 0.1"))
        code, _, err = self.launch(other)
        self.assertNotEqual(code, 0)
        self.assertIn("train.optimizer.sgd.lr: 0.05 -> 0.1", err)
        self.assertIn("resume: never", err)
        result, said = self.train_and_tell("--set", "train.reproducible=false", other)
        self.assertIn("train.optimizer.sgd.lr: 0.05 -> 0.1", said)
        # Another state cannot be gone on with at all, nor is it damage to begin anew after.
        code, _, err = self.launch("--set", "train.reproducible=false",
                                   "--set", "train.optimizer={adamw: {lr: 0.01}}", self.job)
        self.assertNotEqual(code, 0)
        self.assertRegex(err, "of another training, whose state this job cannot take: tensor '.*' is missing")

    def test_data_that_changed_is_refused_by_name(self):
        rows = "".join(f"{i % 7},{i * 5 % 11},{i % 3}\n" for i in range(500))
        for length, changed, said in (
                (f"steps: {STEPS}", rows.replace("3,", "4,", 1), "train.data: train.csv is not what it was"),
                ("epochs: 3", rows + "1,2,0\n", "train.data: 500 -> 501 samples; train.data: train.csv is")):
            shutil.rmtree(self.in_dir("runs"), ignore_errors=True)
            self.write("train.csv", rows)
            text = re.sub(r"data: .*", "data: {csv: {train: train.csv, test: train.csv}}", job(extra=CHECKPOINT))
            path = self.write("tiny.yaml", text.replace(f"steps: {STEPS}", length))
            self.train(path)
            self.train(path)  # the same data: what it finds is taken
            self.write("train.csv", changed)
            code, _, err = self.launch(path)
            self.assertNotEqual(code, 0)
            self.assertIn(said, err)
            self.assertNotIn("another plan", err)

    def test_data_that_is_replaced_while_a_run_goes_on_is_not_trained_on(self):
        """The survivors read the file that they opened; who takes a dead one's place opens another."""
        rows = "".join(f"{i % 7},{i * 5 % 11},{i % 3}\n" for i in range(500))
        self.write("train.csv", rows)
        text = re.sub(r"data: .*", "data: {csv: {train: train.csv, test: train.csv}}", job(extra=CHECKPOINT))
        path = self.write("tiny.yaml", text)
        wanted = self.outcome(self.train_and_tell(path)[0])
        for same in (True, False):
            shutil.rmtree(self.in_dir("runs"))
            self.write("train.csv", rows)
            self.pace()
            child = self.start("launcher", "-o", "json", path, env=self.environment(**harness.PACED))
            wait_until(lambda: os.path.exists(self.in_dir(SAVED, "last")), 30, "a checkpoint")
            self.write("other.csv", rows if same else rows.replace("3,", "4,", 1))
            os.rename(self.in_dir("other.csv"), self.in_dir("train.csv"))
            before = {process.pid: process for process in self.processes("worker")}
            before[sorted(before)[1]].kill()
            if same:
                wait_until(lambda: len(now := {p.pid for p in self.processes("worker")}) == 4 and now != before.keys(),
                           30, "its replacement")
                self.unpace()
                code, out, err = self.finish(child, 60)
                self.assertEqual(code, 0, err)
                self.assertEqual(self.outcome(json.loads(out.strip().splitlines()[-1])), wanted)
            else:  # the others keep their state and wait until somebody puts the file back
                refused = "train.data: train.csv is not what it was when this run began"
                self.assertTrue(any(refused in line for line in child.stderr))
                for process in self.processes("worker"):  # nobody has the state any more
                    process.kill()
                code, _, err = self.finish(child, 60)
                self.assertNotEqual(code, 0)
                self.assertIn(refused, err)
                self.unpace()
                self.write("train.csv", rows)
                self.assertEqual(self.outcome(self.train_and_tell(path)[0]), wanted)
        self.assert_nothing_left()

    def test_data_that_is_replaced_in_a_run_without_checkpoints_is_said(self):
        """Nothing tells what the file held before, so who takes a dead one's place joins."""
        rows = "".join(f"{i % 7},{i * 5 % 11},{i % 3}\n" for i in range(500))
        self.write("train.csv", rows)
        text = job(extra="restart: {max_restarts: 9}\n")
        text = re.sub(r"data: .*", "data: {csv: {train: train.csv, test: train.csv}}", text)
        path = self.write("tiny.yaml", text)
        self.pace()
        child = self.start("launcher", path, env=self.environment(**harness.PACED))
        wait_until(lambda: glob.glob(self.in_dir("runs/**/ledger.bin"), recursive=True), 30, "a step")
        self.write("other.csv", rows.replace("3,", "4,", 1))
        os.rename(self.in_dir("other.csv"), self.in_dir("train.csv"))
        before = {process.pid: process for process in self.processes("worker")}
        before[sorted(before)[1]].kill()
        said = "files of its data were replaced or written to since rank"
        self.assertTrue(any(said in line for line in child.stderr))
        self.unpace()
        code, _, err = self.finish(child, 60)
        self.assertEqual(code, 0, err)
        self.assert_nothing_left()

    def test_data_that_is_written_to_is_said_though_the_first_worker_of_its_host_died(self):
        self.write("train.csv", "".join(f"{i % 7},{i * 5 % 11},{i % 3}\n" for i in range(500)))
        text = job(steps=harness.steps_that_last(60), nproc=2, extra=CHECKPOINT + "elastic: {min_workers: 2}\n")
        text = re.sub(r"data: .*", "data: {csv: {train: train.csv, test: train.csv}}", text)
        path = self.write("tiny.yaml", text)
        self.pace()
        child = self.start("launcher", "--set", "resources.standby=1", path, env=harness.PACED)
        coordinator = wait_until(lambda: self.processes("coordinator"), 30, "a coordinator")[0]
        address = coordinator.argv[coordinator.argv.index("--listen") + 1]

        def ask(*verb):
            code, out, _ = self.launch(*verb, "-o", "json", f"--coordinator={address}")
            return json.loads(out) if code == 0 else {}

        def run_with_a_spare():
            runs = ask("list").get("jobs", [])
            return runs and int(runs[0].get("standbys", 0)) == 1 and runs[0]["job_id"]

        run = wait_until(run_with_a_spare, 60, "the standby is ready")
        members = ask("describe", run)["job"]["members"]
        first = next(member for member in members if int(member["rank"]) == 0 and not member.get("standby"))
        os.kill(int(first["pid"]), signal.SIGKILL)
        self.assertTrue(any("a standby takes over" in line for line in child.stderr))
        os.utime(self.in_dir("train.csv"))
        self.unpace()
        code, _, err = self.finish(child, 60)
        self.assertEqual(code, 0, err)
        said = "files of the data were replaced or written to since this worker opened them"
        self.assertEqual(err.count(said), 1, err)

    def test_a_file_that_is_never_opened_may_be_anything(self):
        """Where nothing is evaluated, the test split is no part of the training."""
        self.write("train.csv", "".join(f"{i % 7},{i * 5 % 11},{i % 3}\n" for i in range(500)))
        os.mkfifo(self.in_dir("test.csv"))  # which not even root reads as a file
        text = harness.synthetic_job(steps=STEPS, train_extra="  eval: {every: never}\n", extra=CHECKPOINT)
        path = self.write("tiny.yaml", re.sub(r"data: .*", "data: {csv: {train: train.csv, test: test.csv}}", text))
        result, said = self.train_and_tell(path)
        self.assertEqual(result["steps"], STEPS)
        self.assertNotIn("test.csv", said)
        os.remove(self.in_dir("test.csv"))
        for rows in ("1,2,0\n", "1,2,0\n3,4,1\n"):
            self.write("test.csv", rows)
            _, said = self.train_and_tell(path)
            self.assertIn(f"goes on after step {STEPS} ", said)

    def test_a_path_is_taken_and_a_missing_one_is_said(self):
        wanted = self.undisturbed()
        self.kill_run(150)
        oldest = self.checkpoints()[0]
        result, said = self.train_and_tell("--set", f"checkpoint.resume={SAVED}/{oldest}", "--set",
                                           "checkpoint.dir=elsewhere", self.job)
        self.assertIn(f"goes on after step {int(oldest[5:])} ", said)
        self.assertEqual(self.outcome(result), wanted)
        code, _, err = self.launch("--set", "checkpoint.resume=nowhere", self.job)
        self.assertNotEqual(code, 0)
        self.assertIn("no whole checkpoint at nowhere", err)

    def test_a_folder_that_cannot_be_made_costs_checkpoints_alone(self):
        wanted = self.undisturbed()
        self.write("file", "not a folder")
        result, said = self.train_and_tell("--set", "checkpoint.dir=file/below", self.job)
        self.assertEqual(self.outcome(result), wanted)
        self.assertIn("training goes on", said)
        self.assertIn("change checkpoint.dir", said)

    def test_a_full_disk_costs_checkpoints_alone(self):
        disk = self.in_dir("disk")
        os.mkdir(disk)
        if os.geteuid() != 0 or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=False).returncode != 0:
            self.skipTest("a small disk needs root and mount(8)")
        try:
            wanted = self.undisturbed()
            result, said = self.train_and_tell("--set", "checkpoint.dir=disk/saved", self.job)
            self.assertEqual(self.outcome(result), wanted)
            self.assertNotIn("not saved", said)
            before = sorted(os.listdir(os.path.join(disk, "saved")))
            with open(os.path.join(disk, "filler"), "wb") as file:
                file.write(bytes(400 << 10))
        except OSError:
            shutil.copytree(os.path.join(disk, "saved"), self.in_dir("saved"), symlinks=True)
            result, said = self.train_and_tell("--set", "checkpoint.dir=disk/saved", "--set",
                                               "checkpoint.resume=never", self.job)
            self.assertEqual(self.outcome(result), wanted)
            self.assertIn("No space left", said)
            self.assertIn("free some space", said)
            for name in before:
                self.assertTrue(os.path.lexists(os.path.join(disk, "saved", name)), name)
        finally:
            subprocess.run(["umount", disk], check=False)

    def test_the_best_weights_are_there_when_who_saves_them_dies(self):
        wanted = self.undisturbed()
        # Evaluation 60 is the best: no later one makes up for it.
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:0@step:60/best", self.job)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertTrue(all(injection["happened"] for injection in result["injections"]), result)
        self.assertEqual(self.outcome(result), wanted)

    def test_better_weights_take_the_place_of_those_before(self):
        """Each evaluation is better, and no checkpoint is made before the 70th step."""
        def kept():
            names = os.listdir(self.in_dir(SAVED)) if os.path.isdir(self.in_dir(SAVED)) else []
            return sorted(int(name[5:15]) for name in names if name.startswith("best-"))

        self.job = self.write("tiny.yaml", harness.synthetic_job(
            steps=80, train_extra="  eval: {every: 2 steps}\n  best: {metric: loss}\n",
            extra="checkpoint: {every: 70 steps}\n"))
        child = self.start("launcher", "chaos", "--hang", "rank:1@step:50", "--set", "failure_detection=10m", self.job)
        wait_until(lambda: max(kept(), default=0) >= 40, 30, "best weights of the 40th step or later")
        wait_until(lambda: len(kept()) == 1, 10, "a single file of best weights")
        child.kill()
        child.communicate()
        self.assert_nothing_left(5)
        # As when they died before they had removed one.
        shutil.copyfile(self.in_dir(SAVED, f"best-{kept()[0]:010}.safetensors"),
                        self.in_dir(SAVED, f"best-{kept()[0] - 1:010}.safetensors"))
        result = self.train(self.job)
        known = set()
        for name in self.checkpoints():
            with open(self.in_dir(SAVED, name, "manifest.json"), encoding="utf-8") as file:
                known.add(json.load(file)["checkpoint"]["best_step"])
        self.assertEqual(self.checkpoints(), [f"step-{step:010}" for step in (70, 80)])
        self.assertEqual(kept(), sorted(known))
        self.assertEqual(read_safetensors(self.in_dir(SAVED, "best")),
                         read_safetensors(self.in_dir(os.path.dirname(result["model"]["path"]), "best.safetensors")))

    def test_files_are_those_that_the_ecosystem_reads(self):
        # Steps take their time: a checkpoint that is due while another is still written is left out.
        result = self.train("--set", "env.LOCKSTEP_STEP_TIME=5ms", self.job)
        last = self.in_dir(SAVED, "last")
        saved = read_safetensors(os.path.join(last, "model.safetensors"))
        final = read_safetensors(self.in_dir(result["model"]["path"]))
        self.assertEqual(saved, final)
        training = read_safetensors(os.path.join(last, "training.safetensors"))
        for name in final:
            self.assertEqual(training[f"{name}.momentum"][1], final[name][1])
            self.assertIn(f"{name}.ema", training)
        self.assertEqual(struct.unpack("<q", training["lockstep.step"][2])[0], STEPS)
        # The three newest, and the best one where it is another.
        self.assertEqual(int(self.checkpoints()[-1][5:]), STEPS)
        self.assertIn(len(self.checkpoints()), (3, 4))
        self.assertEqual(read_safetensors(self.in_dir(SAVED, "best")),
                         read_safetensors(self.in_dir(os.path.dirname(result["model"]["path"]), "best.safetensors")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
