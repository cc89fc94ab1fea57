# SPDX-License-Identifier: Apache-2.0
"""Wrong input and a hostile environment: a clear message and the documented exit code each."""

import gzip
import os
import re
import shutil
import socket
import struct
import subprocess
import time
import unittest

import harness

USAGE, BAD_JOB, UNREACHABLE, CANNOT_FIT = 2, 3, 4, 5


def idx_job(folder, steps=5):
    return f"""name: images
resources: {{nproc_per_node: 2, device: cpu}}
train:
  model: {{mlp: {{hidden: [16]}}}}
  data:
    idx:
      train_images: {folder}/train-images.gz
      train_labels: {folder}/train-labels.gz
      test_images: {folder}/test-images.gz
      test_labels: {folder}/test-labels.gz
  global_batch: 16
  steps: {steps}
  optimizer: {{sgd: {{lr: 0.1}}}}
"""


def write_idx(folder, split, count):
    images = struct.pack(">IIII", 0x803, count, 6, 6) + bytes((i * 37) % 256 for i in range(count * 36))
    labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
    for kind, data in (("images", images), ("labels", labels)):
        with gzip.open(os.path.join(folder, f"{split}-{kind}.gz"), "wb") as file:
            file.write(data)


class BadInput(harness.ProgramTest):
    def images(self):
        folder = os.path.join(self.dir, "images")
        os.makedirs(folder)
        write_idx(folder, "train", 100)
        write_idx(folder, "test", 30)
        return folder

    def assert_fails(self, code, words, *arguments, **options):
        got, out, err = self.launch(*arguments, seconds=20, **options)
        self.assertEqual(got, code, f"{out}\n{err}")
        for word in words:
            self.assertIn(word, out + err)
        self.assert_nothing_left()
        return out, err

    def test_good_idx_files_train(self):
        job = self.write("job.yaml", idx_job(self.images()))
        self.assertEqual(self.train(job)["steps"], 5)

    def test_no_arguments_is_a_usage_error(self):
        self.assert_fails(USAGE, ["job.yaml"])

    def test_an_unknown_flag_is_named_with_the_nearest(self):
        self.assert_fails(USAGE, ["--nproc-per-nod", "--nproc-per-node"], "--nproc-per-nod=4", "job.yaml")

    def test_a_secret_that_is_not_there(self):
        job = self.write("job.yaml", harness.synthetic_job(extra="secrets: {LOCKSTEP_NO_SUCH: }\n"))
        for verb in ((), ("submit", "--coordinator=unix:nowhere")):
            self.assert_fails(BAD_JOB, ["error: the job wants the secret LOCKSTEP_NO_SUCH and"], *verb, job)
        # What starts no worker needs none.
        out, err = self.assert_fails(1, ["model"], "eval", "model", "--data", job)
        self.assertNotIn("secret", out + err)

    def test_a_folder_for_checkpoints_whose_name_is_too_long(self):
        job = self.write("job.yaml", harness.synthetic_job(extra="checkpoint: {every: 2 steps}\n"))
        out, err = self.assert_fails(1, ["File name too long", "take another path"],
                                     "--set", "checkpoint.dir=" + 300 * "a", job)
        self.assertNotIn("its replacement starts", out + err)

    def test_no_more_faults_are_drawn_than_have_room(self):
        job = self.write("job.yaml", harness.synthetic_job())
        for within, most in ((2, 1), (40, 20)):
            self.assert_fails(USAGE, [f"{within} steps have room for at most {most} faults", "draw fewer", "--within"],
                              "chaos", "--random", str(most + 1), "--within", str(within), job)
        out, err = self.assert_fails(BAD_JOB, ["20 steps have room for at most 10 faults", "draw fewer, or train more steps"],
                                     "chaos", "--random", "11", job)
        self.assertNotIn("--within", out + err)

    def test_a_missing_job_file(self):
        self.assert_fails(BAD_JOB, ["nowhere.yaml"], "nowhere.yaml")

    def test_all_mistakes_of_a_file_in_one_go(self):
        job = self.write("job.yaml", harness.synthetic_job().replace("global_batch: 48", "globl_batch: 48")
                         .replace("lr: 0.05", "lr: fast"))
        out, err = self.assert_fails(BAD_JOB, ["job.yaml:6:3: error:", "global_batch", "fast", "^"], job)
        self.assertGreaterEqual((out + err).count("error:"), 2)

    def test_what_is_not_in_this_version_is_refused_where_it_stands(self):
        job = self.write("job.yaml", harness.synthetic_job() + "queue: night\n")
        out, err = self.assert_fails(BAD_JOB, ["job.yaml:", "not in this version", "queue: night", "^"], job)
        two = self.write("two.yaml", harness.synthetic_job())
        self.assert_fails(CANNOT_FIT, ["2 nodes", "one host", "--nnodes=1"], "--set", "resources.nodes=2",
                          "--set", "train.shards=8", "--set", "train.global_batch=48", two)

    def test_a_wrong_flag_of_the_coordinator_is_named_and_nothing_hides_it(self):
        for arguments, word in ((["--frob"], "unknown flag --frob"), (["--frob=1"], "unknown flag --frob"),
                                (["--listen"], "--listen needs a value"), (["--plaintext=1"], "--plaintext takes no value")):
            code, out, err = self.run_program("coordinator", *arguments, seconds=10)
            self.assertEqual(code, USAGE, out + err)
            self.assertEqual(err, f"coordinator: {word}; `coordinator --help` shows all flags\n")

    def test_a_run_here_does_not_wait_for_other_hosts(self):
        job = self.write("job.yaml", harness.synthetic_job())
        self.assert_fails(CANNOT_FIT, ["resources.labels", "launcher join --label"],
                          "--set", "resources.labels={gpu: h100}", job)
        self.assert_fails(CANNOT_FIT, ["nobodys-host", "resources.rank0_node"],
                          "--set", "resources.rank0_node=nobodys-host", job)

    def test_a_workdir_that_is_not_there(self):
        job = self.write("job.yaml", harness.synthetic_job())
        self.assert_fails(1, ["could not be started: its folder /nowhere/at/all", "No such file"],
                          "--set", "workdir=/nowhere/at/all", job)

    def test_flags_are_applied_before_the_rules_are_checked(self):
        job = self.write("job.yaml", harness.synthetic_job())
        flags = ("--nproc-per-node=2", "--set", "train.shards=2", job)
        for verb in ("validate", "plan"):
            code, out, err = self.launch(verb, *flags)
            self.assertEqual(code, 0, out + err)
        self.assert_fails(BAD_JOB, ["elastic.max_workers", "'elastic.max_workers' 4: 4 workers for 2 shards"],
                          "--set", "elastic={min_workers: 1, max_workers: 4}", *flags)

    def test_more_workers_at_most_than_the_machine_has_memory_for(self):
        self.assert_fails(BAD_JOB, ["'elastic.max_workers' is '2147483647': must be at least 1 and at most 4096"],
                          "--set", "elastic.max_workers=2147483647", "--", "true")
        with open("/proc/meminfo", encoding="utf-8") as file:
            kilobytes = int(re.search(r"MemAvailable: +(\d+) kB", file.read())[1])
        if kilobytes > 40 << 20:
            self.skipTest("this machine has memory for as many workers as there may be")
        self.assert_fails(CANNOT_FIT, ["4096 workers need at least", "lower elastic.max_workers"],
                          "--set", "elastic.max_workers=4096", "--", "true")

    def test_no_workers_and_too_many(self):
        job = self.write("job.yaml", harness.synthetic_job())
        self.assert_fails(USAGE, ["--nproc-per-node"], "--nproc-per-node=0", job)
        self.assert_fails(CANNOT_FIT, ["500", "shards"], "--nproc-per-node=500", job)
        self.assert_fails(CANNOT_FIT, ["1000", "512"], "--nproc-per-node=1000", job)

    def test_a_run_that_has_ended_early_gets_no_warning_of_its_coordinator(self):
        for of_a_run, warns in (("--parent-death", False), (None, True)):
            read, write = os.pipe()
            os.close(read)  # who started it is about to end
            child = self.start("coordinator", f"--listen=unix:{self.dir}/s", f"--ready-fd={write}",
                               *filter(None, [of_a_run]), pass_fds=(write,))
            os.close(write)
            harness.wait_until(lambda: os.path.exists(f"{self.dir}/s"), 20, "its socket")
            time.sleep(0.2)
            child.terminate()
            _, _, err = self.finish(child, 20)
            self.assertEqual("nobody reads" in err, warns, err)

    def test_missing_data(self):
        job = self.write("job.yaml", idx_job("/nowhere/at/all"))
        self.assert_fails(1, ["/nowhere/at/all/train-images.gz"], job)

    def test_a_corrupt_gz(self):
        folder = self.images()
        path = os.path.join(folder, "train-images.gz")
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)
        job = self.write("job.yaml", idx_job(folder))
        self.assert_fails(1, ["train-images.gz"], job)

    def test_labels_that_do_not_match(self):
        folder = self.images()
        shutil.copy(os.path.join(folder, "test-labels.gz"), os.path.join(folder, "train-labels.gz"))
        job = self.write("job.yaml", idx_job(folder))
        self.assert_fails(1, ["train-labels.gz", "30", "100"], job)

    def test_a_run_folder_that_cannot_be_made(self):
        job = self.write("job.yaml", harness.synthetic_job())
        self.write("runs", "a file where the folder should be")
        self.assert_fails(1, ["runs"], job)

    def test_a_folder_without_write_permission(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to drop it")
        # Root may write anywhere, so the run is made as nobody, who may not write here.
        job = self.write("job.yaml", harness.synthetic_job())
        os.chmod(self.dir, 0o755)
        child = self.start("launcher", job, user=65534, group=65534)
        code, out, err = self.finish(child, 20)
        self.assertEqual(code, 1, out + err)
        self.assertIn("ermission denied", out + err)
        self.assertIn("runs", out + err)

    def mount_small_disk(self):
        """A folder with room for 64 KiB; skips where none can be had. To be unmounted."""
        if os.geteuid() != 0:
            self.skipTest("needs root, for a small file system")
        small = os.path.join(self.dir, "small")
        os.makedirs(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False)
        if mounted.returncode != 0:
            self.skipTest("this machine does not let root mount")
        return small

    def test_a_full_disk(self):
        small = self.mount_small_disk()
        try:
            job = self.write("job.yaml", harness.synthetic_job(hidden="[2000]"))
            code, out, err = self.launch(job, cwd=small)
            self.assertNotEqual(code, 0)
            self.assertIn("No space left", out + err)
            self.assertIn("model.safetensors", out + err)
            left = [name for _, _, names in os.walk(small) for name in names]
            self.assertNotIn("model.safetensors", left)
        finally:
            self.assert_nothing_left()
            subprocess.run(["umount", small], check=True)

    def test_a_disk_without_room_for_a_runs_first_file(self):
        small = self.mount_small_disk()
        try:
            with open(os.path.join(small, "full"), "wb", buffering=0) as full:
                full.write(bytes(100 << 10))
            self.assert_fails(CANNOT_FIT, ["job.yaml: No space left"], self.write("job.yaml", "run: ls\n"), cwd=small)
        finally:
            subprocess.run(["umount", small], check=True)

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            code, out, err = self.run_program("coordinator", f"--listen=127.0.0.1:{port}", seconds=10)
        self.assertEqual(code, 1)
        self.assertIn(str(port), err)
        self.assertIn("in use: another program listens there", err)

    def test_a_run_whose_own_coordinator_cannot_start_has_failed(self):
        """Nobody is missing who may come yet, which is what UNREACHABLE says."""
        job = self.write("tiny.yaml", harness.synthetic_job())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for address, why in ((f"127.0.0.1:{port}", "in use"), ("192.0.2.1:29500", "cannot listen on")):  # nobody's
                _, err = self.assert_fails(1, [why, "the run's coordinator exited with code 1"], "--nnodes=2", "--nproc-per-node=1",
                                           f"--rdzv-endpoint={address}", "--node-rank=0", job,
                                           env={"LOCKSTEP_TOKEN": "a-token-for-this-test-alone"})
                self.assertNotIn("its workers were ended", err, "there were none")

    def test_an_address_that_is_none_is_wrong_use(self):
        """systemd starts it again after other ends."""
        for address in (":7070", "0.0.0.0", "127.0.0.1:99999"):
            code, _, err = self.run_program("coordinator", "--listen", address, seconds=10)
            self.assertEqual(code, 2, err)
            self.assertIn(f"'{address}' is not", err)

    def test_a_socket_in_no_folder(self):
        code, out, err = self.run_program("coordinator", "--listen=unix:/nowhere/at/all/socket", seconds=10)
        self.assertEqual(code, 1)
        self.assertIn("/nowhere/at/all", err)
        self.assertIn("No such file", err)

    def test_a_token_file_that_is_not_there(self):
        code, out, err = self.run_program("coordinator", "--listen=127.0.0.1:0", "--token-file=/nowhere/token",
                                          seconds=10)
        self.assertEqual(code, 1)
        self.assertIn("/nowhere/token", err)
        self.assertIn("No such file", err)

    def test_a_level_of_logging_that_there_is_none_of_is_told_once(self):
        job = self.write("job.yaml", harness.synthetic_job(steps=2))
        code, out, err = self.launch(job, env={"LOCKSTEP_LOG": "foo"})
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count("LOCKSTEP_LOG"), 1, err)
        self.assertIn("LOCKSTEP_LOG is 'foo', which is none of debug, info, warning, error: info it is", err)
        code, out, err = self.run_program("coordinator", "--version", env={"LOCKSTEP_LOG": "foo"})
        self.assertIn("LOCKSTEP_LOG is 'foo'", err)

    def test_an_answer_that_cannot_be_written(self):
        for arguments in (("--help",), ("--version",), ("init", "--help")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([os.path.join(harness.BIN, "coordinator"), *arguments], check=False,
                                      stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=harness.patient())
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(b"standard output", done.stderr)
        job = self.write("job.yaml", harness.synthetic_job())
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([os.path.join(harness.BIN, "launcher"), "validate", job], check=False,
                                  stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=harness.patient())
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"standard output", done.stderr)
        # Short answers and long ones, of which a part was to be written before.
        for arguments in ((), ("--dump=text",)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([os.path.join(harness.BIN, "launcher"), "plan", *arguments, job], check=False,
                                      stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=harness.patient())
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(b"could not be written to stdout", done.stderr)

    def without_stdout(self, program, *arguments):
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", os.path.join(harness.BIN, program), *arguments],
                              check=False, cwd=self.dir, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              env=self.environment(), text=True, timeout=harness.patient())
        return done.returncode, done.stderr

    def test_an_answer_without_a_standard_output(self):
        """Nothing else of the program gets its number."""
        job = self.write("job.yaml", harness.synthetic_job(nproc=1))
        for arguments in (("validate", job), ("plan", job), ("run", "-o", "json", job), ("run", job)):
            code, err = self.without_stdout("launcher", *arguments)
            self.assertEqual(code, 1, (arguments, err))
            self.assertIn("error: ", err)
        bench = ("bench", "collectives", "-e", "4", "--operations=barrier", "--seconds=0.01")
        code, err = self.without_stdout("launcher", *bench)
        self.assertEqual(code, 1, err)

    def test_a_coordinator_without_streams_writes_its_log_nowhere_else(self):
        state = os.path.join(self.dir, "state")
        ready_read, ready_write = os.pipe()
        command = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", os.path.join(harness.BIN, "coordinator"),
                   f"--listen=unix:{self.dir}/socket", f"--state-dir={state}", f"--ready-fd={ready_write}"]
        child = subprocess.Popen(command, env=self.environment(LOCKSTEP_LOG="debug"), cwd=self.dir,
                                 pass_fds=(ready_write,), stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.terminate)
        os.close(ready_write)
        with os.fdopen(ready_read) as ready:
            self.assertTrue(ready.readline(), "it says where it listens")
        self.assertEqual(self.launch("list", "--coordinator", f"unix:{self.dir}/socket")[0], 0)
        with open(os.path.join(state, "journal.lock"), encoding="utf-8") as lock:
            self.assertEqual(lock.read().strip(), str(child.pid))

    def test_a_result_that_cannot_be_written(self):
        job = self.write("job.yaml", harness.synthetic_job())
        for form in ("json", "table"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([os.path.join(harness.BIN, "launcher"), "-o", form, job], check=False,
                                      cwd=self.dir, stdin=subprocess.DEVNULL, stdout=full,
                                      stderr=subprocess.PIPE, timeout=harness.patient())
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"result is not on the standard output", done.stderr)
            self.assertIn(b"No space left", done.stderr)

    def test_an_address_that_is_not_private_needs_more(self):
        code, out, err = self.run_program("coordinator", "--listen=0.0.0.0:0", seconds=10)
        self.assertEqual(code, 1, err)
        self.assertIn("TLS", err)

    def test_no_coordinator_there(self):
        job = self.write("job.yaml", harness.synthetic_job())
        self.assert_fails(UNREACHABLE, ["127.0.0.1:9"], "submit", "--coordinator=127.0.0.1:9", job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
