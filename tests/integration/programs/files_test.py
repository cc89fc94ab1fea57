# SPDX-License-Identifier: Apache-2.0
"""Files that are truncated while in use, disks that fail or are full, folders that are not mounted."""

import gzip
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
import unittest

import harness
from harness import PACED, wait_until

FAULTS = os.environ.get("LOCKSTEP_FILE_FAULTS", "")
DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")
STEPS = 60
CHECKPOINT = "checkpoint: {every: 20 steps, keep: 3}\n"
SAVED = "runs/tiny"


def npy(descr, shape, data):
    """A .npy file, by the format's definition."""
    text = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }" % (descr, "".join(f"{n}, " for n in shape))
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


class Files(harness.ProgramTest):
    def in_dir(self, *parts):
        return os.path.join(self.dir, *parts)

    def text_of(self, name):
        with open(self.in_dir(name), encoding="utf-8") as file:
            return file.read()

    def write_bytes(self, name, data):
        with open(self.in_dir(name), "wb") as file:
            file.write(data)

    def faulty(self, fault):
        self.assertTrue(os.path.exists(FAULTS), "LOCKSTEP_FILE_FAULTS names no library")
        return {"LD_PRELOAD": FAULTS, "LOCKSTEP_FILE_FAULT": fault}

    def checkpoints(self, folder=SAVED):
        return sorted(name for name in os.listdir(self.in_dir(folder)) if name.startswith("step-"))

    def assert_clear_failure(self, code, said, *parts):
        self.assertNotEqual(code, 0, said)
        for part in parts:
            self.assertIn(part, said)
        self.assertNotIn("SIGBUS", said)
        self.assertNotEqual(code, 128 + 7, said)

    def array_job(self, steps):
        samples, features = 4000, 64
        inputs = b"".join(struct.pack("<f", (i * 7 % 13) / 13) for i in range(samples * features))
        self.write_bytes("x.npy", npy("<f4", (samples, features), inputs))
        self.write_bytes("y.npy", npy("|u1", (samples,), bytes(i % 5 for i in range(samples))))
        text = harness.synthetic_job(steps=steps)
        data = "data: {npy: {train_inputs: x.npy, train_labels: y.npy, test_inputs: x.npy, test_labels: y.npy}}"
        return self.write("tiny.yaml", re.sub(r"data: .*", data, text))

    def has_metrics(self):
        return any("metrics.jsonl" in files and os.path.getsize(os.path.join(root, "metrics.jsonl")) > 0
                   for root, _, files in os.walk(self.in_dir("runs")))

    def metrics(self):
        for root, _, files in os.walk(self.in_dir("runs")):
            if "metrics.jsonl" in files:
                with open(os.path.join(root, "metrics.jsonl"), encoding="utf-8") as file:
                    return file.read()
        return ""

    def saved_and_noted(self):
        """The newest checkpoint is there with all that follows it."""
        last = self.in_dir(SAVED, "last")
        names = [name for name in os.listdir(self.in_dir(SAVED)) if not name.startswith(".run-")]  # who saves here
        if not os.path.lexists(last) or any(name[0] == "." or name.endswith(".tmp") for name in names):
            return False
        if len(self.checkpoints()) > 3:  # CHECKPOINT's keep
            return False
        noted = any("checkpoint_folder.json" in files for _, _, files in os.walk(self.in_dir("runs")))
        return noted and os.readlink(last) == self.checkpoints()[-1]

    def test_the_rank_is_named_whose_data_are_not_finite(self):
        job = self.array_job(steps=100)  # more than an epoch, so that the sample comes
        with open(self.in_dir("x.npy"), "r+b") as file:
            file.seek(-4 * 64 * 1000, os.SEEK_END)
            file.write(64 * struct.pack("<f", math.nan))

        def culprit(ranks):
            code, out, err = self.launch(f"--nproc-per-node={ranks}", "--set=train.on_nonfinite=fail",
                                         "--max-restarts=0", job)
            self.assertEqual(code, 1, out + err)
            match = re.search(r"step (\d+): .* is not finite .*; it came from rank (\d) alone", out + err)
            self.assertTrue(match, out + err)
            return int(match[1]), int(match[2])

        step, rank = culprit(4)
        self.assertEqual(culprit(2), (step, rank // 2), "the same shard, in the same step")

    def test_two_runs_at_once_have_not_one_folder(self):
        here = ("-o", "json", "--run-dir", "here")
        job = self.write("long.yaml", harness.synthetic_job(steps=100_000_000))
        first = self.start("launcher", *here, job)
        wait_until(lambda: os.path.exists(self.in_dir("here/metrics.jsonl")), 30, "it trains")
        short = self.write("short.yaml", harness.synthetic_job(name="short"))
        code, out, err = self.launch(*here, short)
        self.assertEqual(code, 5, out + err)
        first.send_signal(signal.SIGINT)
        _, out, _ = self.finish(first)
        job_id = json.loads(out.splitlines()[-1])["job"]
        self.assertIn(f"the folder here (--run-dir) is in use by the run {job_id},", err)
        self.train("--run-dir", "here", short)  # one after the other
        # A launcher that was killed holds nothing.
        before = self.text_of("here/.lock")
        first = self.start("launcher", *here, job)
        wait_until(lambda: self.text_of("here/.lock") not in ("", before), 30, "it has the folder")
        self.assertEqual(self.launch(*here, short)[0], 5)
        first.kill()
        self.finish(first)
        self.train("--run-dir", "here", short)

    def test_a_folder_of_texts_that_holds_the_run_is_refused(self):
        model = "model: {gpt: {layers: 1, heads: 1, width: 8}}"
        text = harness.synthetic_job(nproc=1, steps=5).replace("model: {mlp: {hidden: [32]}}", model)
        text = re.sub(r"data: .*", "data: {text: {path: ./, length: 16}}", text)
        job = self.write("books/job.yaml", text)
        self.write("books/a.txt", "all that is to be read\n" * 200)
        books = {"cwd": self.in_dir("books")}
        code, out, err = self.launch(job, **books)
        self.assertEqual(code, 1, out + err)
        self.assertRegex(err, r"the folder \./ holds this run's folder \(.*/books/runs/tiny-.*--runs-dir")
        shutil.rmtree(self.in_dir("books/runs"))
        code, out, err = self.launch("--runs-dir=../runs", "--set=checkpoint.dir=saved", job, **books)
        self.assertEqual(code, 1, out + err)
        self.assertIn("the folder ./ holds this job's checkpoints (saved)", err)
        outside = [self.train("--runs-dir=../runs", job, **books)["model"]["sha256"] for _ in range(2)]
        self.assertEqual(outside[0], outside[1])

    def test_a_training_that_fails_keeps_its_metrics(self):
        # Whichever rank is heard of first. Step 1 is the last one that is finite, and 100 in a row are skipped.
        # A machine that is busy gets the time that it takes (LeaveWait, coordinator/core/failures.cc).
        text = harness.synthetic_job(steps=1000, nproc=2, extra="failure_detection: 60s\n")
        job = self.write("job.yaml", text.replace("lr: 0.05", "lr: 1e30"))
        for _ in range(6):
            code, out, err = self.launch("-o", "json", job)
            self.assertEqual(code, 1, out + err)
            result = json.loads(out.splitlines()[-1])
            with open(self.in_dir(result["run_dir"], "metrics.jsonl")) as file:
                lines = [json.loads(line) for line in file]
            steps = [line["step"] for line in lines if line["kind"] == "step"]
            self.assertEqual(steps, list(range(1, 102)), err)
            self.assertEqual(result["steps"], 101)

    def test_data_truncated_while_it_is_read(self):
        for length in (0, 300_000):
            child = self.start("launcher", self.array_job(steps=100_000_000))
            wait_until(self.has_metrics, 30, "it trains")
            os.truncate(self.in_dir("x.npy"), length)
            code, _, said = self.finish(child)
            self.assert_clear_failure(code, said, "x.npy was truncated while in use")
            self.assert_nothing_left(5)
            shutil.rmtree(self.in_dir("runs"))

    def test_a_decoded_copy_truncated_while_it_is_read_is_made_again(self):
        pixels = 28 * 28
        images = bytes((i * 31 + i // 7) % 251 for i in range(2000 * pixels))
        for name, data in (("images.gz", struct.pack(">IIII", 0x803, 2000, 28, 28) + images),
                           ("labels.gz", struct.pack(">II", 0x801, 2000) + bytes(i % 10 for i in range(2000)))):
            with gzip.open(self.in_dir(name), "wb", compresslevel=1) as file:
                file.write(data)
        data = ("data: {idx: {train_images: images.gz, train_labels: labels.gz, test_images: images.gz, "
                "test_labels: labels.gz}}")
        text = re.sub(r"data: .*", data, harness.synthetic_job(steps=3000, extra="restart: {max_restarts: 9}\n"))
        path = self.write("tiny.yaml", text)
        wanted = self.train(path)["model"]["sha256"]
        shutil.rmtree(self.in_dir("runs"))
        child = self.start("launcher", "-o", "json", path, env=PACED)
        wait_until(self.has_metrics, 30, "it trains")
        (copy,) = [os.path.join(root, name) for root, _, names in os.walk(self.in_dir("cache")) for name in names
                   if name.startswith("images") and name.endswith(".decoded")]
        os.truncate(copy, 5000)
        self.unpace()
        code, out, said = self.finish(child)
        self.assertEqual(code, 0, said)
        self.assertNotIn("SIGBUS", said)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], wanted)

    def saved_run(self):
        path = self.write("tiny.yaml", harness.synthetic_job(steps=STEPS, extra=CHECKPOINT))
        return path, self.train(path)["model"]["sha256"]

    def test_a_disk_that_fails_stops_the_restore_and_changes_nothing(self):
        path, wanted = self.saved_run()
        before = self.checkpoints()
        for name in (f"{before[-1]}/model.safetensors", f"{before[-1]}/training.safetensors"):
            code, _, said = self.launch(path, env=self.faulty(f"{name}:fail:0"))
            self.assert_clear_failure(code, said, name, "Input/output error", "no older state is used")
            self.assertNotIn("goes on after step", said)
            self.assertEqual(self.checkpoints(), before)
        code, out, said = self.launch("-o", "json", path)
        self.assertEqual(code, 0, said)
        self.assertIn(f"goes on after step {STEPS}", said)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], wanted)

    def test_a_checkpoint_truncated_while_it_is_read_is_damaged(self):
        path, wanted = self.saved_run()
        newest, older = self.checkpoints()[-1], self.checkpoints()[-2]
        code, out, said = self.launch("-o", "json", path,
                                      env=self.faulty(f"{newest}/training.safetensors:truncate:0"))
        self.assertEqual(code, 0, said)
        self.assertIn(f"{newest} is damaged", said)
        self.assertIn(f"goes on after step {int(older[5:])} ", said)
        self.assertNotIn("SIGBUS", said)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], wanted)

    def test_a_model_truncated_while_it_is_read(self):
        path, _ = self.saved_run()
        (run,) = [name for name in os.listdir(self.in_dir("runs")) if name.startswith("tiny-")]
        model = self.in_dir("runs", run, "model")
        kept = self.in_dir("kept")
        shutil.copytree(model, kept)
        for verb in (["eval", kept], ["predict", kept]):
            shutil.copy(os.path.join(model, "model.safetensors"), kept)
            code, _, said = self.launch(*verb, env=self.faulty("kept/model.safetensors:truncate:0"))
            self.assert_clear_failure(code, said, "model.safetensors was truncated while in use")
            shutil.copy(os.path.join(model, "model.safetensors"), kept)
            code, _, said = self.launch(*verb, env=self.faulty("kept/model.safetensors:fail:0"))
            self.assert_clear_failure(code, said, "model.safetensors: Input/output error")
        self.assertTrue(os.path.exists(path))

    def mounted(self, size):
        disk = self.in_dir("disk")
        os.makedirs(disk, exist_ok=True)
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk],
                                               check=False, capture_output=True).returncode != 0:
            self.skipTest("a disk of its own needs root and mount(8)")
        self.addCleanup(subprocess.run, ["umount", disk], check=False, capture_output=True)
        return disk

    def test_a_folder_that_is_not_mounted_is_not_an_empty_one(self):
        disk = self.mounted("8m")
        path = self.write("tiny.yaml", harness.synthetic_job(steps=STEPS, extra=CHECKPOINT))
        there = ["--set", "checkpoint.dir=disk/saved", path]
        wanted = self.train(*there)["model"]["sha256"]
        subprocess.run(["umount", disk], check=True)
        code, _, said = self.launch(*there)
        self.assert_clear_failure(code, said, f"mounted at {os.path.realpath(disk)} and is not now")
        self.assertEqual(os.listdir(disk), [])
        result = self.train("--set", "checkpoint.resume=never", *there)
        self.assertEqual(result["model"]["sha256"], wanted)

    def test_a_removed_folder_is_missed_by_the_run_that_had_it(self):
        # Its one worker stands still in step 150 and dies there: there are but the checkpoints to go on from.
        path = self.write("tiny.yaml", harness.synthetic_job(
            steps=200, nproc=1, extra=CHECKPOINT + "restart: {max_restarts: 9}\n"))
        child = self.start("launcher", "chaos", "--hang", "rank:0@step:150", "--set", "failure_detection=10m", path)
        wait_until(lambda: '"step":149,' in self.metrics(), 30, "it stands still")
        wait_until(self.saved_and_noted, 30, "checkpoints, and none under way")
        shutil.rmtree(self.in_dir(SAVED))
        (worker,) = self.processes("worker")
        worker.kill()
        code, _, said = self.finish(child)
        self.assert_clear_failure(code, said, "this run has saved checkpoints in", "there is none any more")

    def test_a_folder_that_was_removed_is_a_fresh_start_for_the_next_run_in_the_same_place(self):
        path = self.write("tiny.yaml", harness.synthetic_job(steps=STEPS, extra=CHECKPOINT))
        hashes = []
        for more in ((), (), ("--set", "checkpoint.resume=never")):
            shutil.rmtree(self.in_dir(SAVED), ignore_errors=True)
            hashes.append(self.train("--run-dir", "here", *more, path)["model"]["sha256"])
        self.assertEqual(len(set(hashes)), 1)

    def test_a_full_disk_costs_lines_and_names_the_model(self):
        disk = self.mounted("3m")
        path = self.write("tiny.yaml", harness.synthetic_job(steps=50_000_000, extra=""))
        shutil.copy(path, disk)
        child = self.start("launcher", os.path.join(disk, "tiny.yaml"), cwd=disk)
        wait_until(lambda: any("ledger.bin" in files for _, _, files in os.walk(disk)), 30, "it trains")
        with open(os.path.join(disk, "filler"), "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        said = []
        wait_until(lambda: said.append(child.stderr.readline())
                   or re.search(r"(metrics\.jsonl|ledger\.bin): No space left", said[-1]), 30, "it is said")
        self.assertIn("training goes on", said[-1])
        child.send_signal(2)  # it ends, and has no room for its model
        code, _, rest = self.finish(child)
        self.assertNotEqual(code, 0)
        self.assertIn("No space left", rest)
        self.assertIn("model", rest)

    def test_a_limit_on_files_is_named(self):
        path = self.write("tiny.yaml", harness.synthetic_job(steps=20, hidden="[2000]"))
        limit = 300 << 10
        code, _, said = self.launch(
            path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assert_clear_failure(code, said, "ulimit -f")


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class SlowReads(Files):
    """A file of the data gives nothing for several times as long as a worker may stand still."""

    DETECTION = 1.0
    STANDS = 4.0

    def slow_job(self, loader):
        extra = f"failure_detection: {self.DETECTION:g}s\nrestart: {{max_restarts: 0}}\n"
        path = self.array_job(steps=250)
        shutil.copy(self.in_dir("x.npy"), self.in_dir("e.npy"))
        with open(path, encoding="utf-8") as file:
            text = file.read().replace("test_inputs: x.npy", "test_inputs: e.npy")
        text = text.replace("nproc_per_node: 4", "nproc_per_node: 2").replace("e.npy, test_labels: y.npy}}",
                                                                              "e.npy, test_labels: y.npy}, %s}" % loader)
        return self.write("tiny.yaml", text + "  eval: {every: 60 steps}\n" + extra)

    def assert_waits(self, name, loader):
        path = self.slow_job(loader)
        wanted = self.train(path)["model"]["sha256"]
        shutil.rmtree(self.in_dir("runs"))
        self.pace()
        child = self.start("launcher", "-o", "json", path,
                           env=dict(PACED, LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK=self.write("disk", "well"),
                                    LOCKSTEP_TEST_DISK_OF=name))
        wait_until(lambda: '"step":20,' in self.metrics(), 30, "it trains")
        self.write("disk", "stalls")

        def stands():
            before = self.metrics()
            time.sleep(self.STANDS)
            return self.metrics() == before
        wait_until(stands, 30, "it waits for its data")
        self.write("disk", "well")
        self.unpace()
        code, out, said = self.finish(child)
        self.assertEqual(code, 0, said)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual((result["faults"], result["generations"], result["model"]["sha256"]), ([], 1, wanted), said)
        shutil.rmtree(self.in_dir("runs"))

    def test_a_batch_that_takes_long_to_read_is_waited_for(self):
        for loader in ("loader: {prefetch: 2}", "loader: {threads: 1}"):
            self.assert_waits("x.npy", loader)

    def test_an_evaluation_whose_data_take_long_to_read_is_waited_for(self):
        self.assert_waits("e.npy", "loader: {prefetch: 2}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
