# SPDX-License-Identifier: Apache-2.0
"""The verbs that look into a job: plan, eval, predict, compare; --profile, --interpret, --dump-tensors."""

import glob
import json
import os
import re
import resource
import struct
import subprocess
import unittest

import harness
import json_tables
from harness import wait_until


def read_npy(path):
    """(type, shape, bytes) of a .npy file, without NumPy."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == b"\x93NUMPY", path
    length = int.from_bytes(data[8:10], "little")
    header = eval(data[10 : 10 + length], {})  # the format is a Python dictionary
    return header["descr"], header["shape"], data[10 + length :]


class Verbs(harness.ProgramTest):
    def run_dir(self, result):
        return os.path.join(self.dir, os.path.dirname(os.path.dirname(result["model"]["path"])))

    def write_npy(self, name, descr, shape, data):
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        path = os.path.join(self.dir, name)
        with open(path, "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)
        return path

    def test_plan_says_what_a_job_costs_without_running_it(self):
        job = self.write("job.yaml", harness.synthetic_job())
        code, out, err = self.launch("plan", "-o", "json", job)
        self.assertEqual(code, 0, err)
        plan = json.loads(out)
        self.assertEqual(plan["parameters"], 40 * 32 + 32 + 32 * 5 + 5)
        memory = plan["memory"]
        parts = ("weights", "gradients", "optimizer", "activations", "workspace", "data")
        self.assertEqual(memory["total"], sum(memory[part] for part in parts))
        self.assertEqual(len(plan["ranks"]), 4)
        self.assertGreater(plan["ranks"][3]["bytes_received"], 0)
        self.assertGreater(plan["ranks"][0]["step_seconds_estimate"], 0)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "runs")))
        code, out, err = self.launch("plan", "--nproc-per-node=1", job)
        self.assertEqual(code, 0, err)
        self.assertIn("activations", out)
        code, out, err = self.launch("plan", "--dump=dot", job)
        self.assertEqual(code, 0, err)
        self.assertTrue(out.startswith("digraph"), out[:50])

    def test_a_relative_worker_is_that_of_the_current_folder_whatever_the_workdir(self):
        os.mkdir(os.path.join(self.dir, "elsewhere"))
        os.symlink(os.path.join(harness.BIN, "worker"), os.path.join(self.dir, "worker"))
        job = self.write("job.yaml", harness.synthetic_job() + f"workdir: {self.dir}/elsewhere\n")
        for command in (["plan", job], [job]):
            code, out, err = self.launch(*command, env={"LOCKSTEP_WORKER": "./worker"})
            self.assertEqual(code, 0, out + err)

    def test_plan_estimates_a_gpu_that_is_not_here(self):
        job = self.write("job.yaml", harness.synthetic_job())
        code, out, err = self.launch("plan", "-o", "json", "--device", "cuda:h200", job)
        self.assertEqual(code, 0, err)
        plan = json.loads(out)
        roofline = plan["roofline"]
        self.assertEqual((roofline["gpu"], roofline["architecture"]), ("h200", "sm_90"))
        for row in roofline["launches"]:
            self.assertGreaterEqual(row["moved_bytes"], row["least_bytes"], row)
        self.assertEqual(sum(row["launches"] for row in roofline["kinds"]), len(roofline["launches"]) + 1)
        self.assertGreater(plan["gpu_memory"]["total"], 0)
        self.assertGreater(plan["ranks"][0]["step_seconds_estimate"], 0)
        self.assertLess(plan["ranks"][0]["step_seconds_estimate"], 1e-3)
        code, out, err = self.launch("plan", "--device=cuda:sm_90", job)
        self.assertEqual(code, 0, err)
        self.assertIn("On paper: h100 (sm_90)", out)
        code, out, err = self.launch("plan", "--device=cuda:voodoo", job)
        self.assertEqual(code, 2, err)
        self.assertIn("h200 (sm_90)", err)

    def test_plan_for_a_gpu_that_is_not_here_has_the_workers_that_would_be_here(self):
        def plan(*arguments):
            code, out, err = self.launch("plan", "--device=cuda:h200", "-o", "json", *arguments,
                                         env={"LOCKSTEP_CUDA_MODULE": "/nowhere.so"})
            self.assertEqual(code, 0, err)
            return len(json.loads(out)["ranks"]), json.loads(out)["warnings"]

        most = len(os.sched_getaffinity(0))  # control groups may give less
        job = harness.synthetic_job(shards=most, global_batch=most, nproc="cpu")
        counted = self.write("counted.yaml", job)
        cores, warnings = plan(counted)
        self.assertEqual(warnings, [])
        self.assertIn(cores, range(1, most + 1))
        by_gpus = self.write("gpu.yaml", job.replace("{nproc_per_node: cpu, device: cpu}", "{nproc_per_node: gpu}"))
        for arguments in ((by_gpus,), ("--nproc-per-node=gpu", "--set=resources.device=auto", counted)):
            ranks, warnings = plan(*arguments)
            self.assertEqual(ranks, 1)
            self.assertIn("planned for 1 worker; say --nproc-per-node=N", warnings[-1])
        self.assertEqual(plan("--nproc-per-node=1", by_gpus), (1, []))
        self.assertEqual(plan("--nproc-per-node=cpu", by_gpus), (cores, []))

    def test_bench_collectives_measures_and_checks_every_operation(self):
        code, out, err = self.launch("bench", "collectives", "--nproc-per-node=3", "--shards=4", "-b", "12",
                                     "-e", "48KiB", "--factor=64", "--seconds=0.01", "-o", "json")
        self.assertEqual(code, 0, err)
        result = json.loads(out)
        self.assertTrue(result["ok"])
        self.assertEqual({row["operation"] for row in result["rows"]},
                         {"tree_reduce", "all_reduce", "reduce_scatter", "all_gather", "broadcast",
                          "sendrecv", "barrier", "local_sum", "memcpy"})
        for row in result["rows"]:
            self.assertGreater(row["microseconds"], 0, row)
            self.assertIn(row["wrong"], (0, None), row)

    def test_bench_collectives_without_room_for_its_table_fails(self):
        # More than what stdout keeps until it is flushed, and less.
        for form, operations in (("json", "barrier"), ("table", "barrier"), ("json", "all_reduce,broadcast,memcpy")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([os.path.join(harness.BIN, "launcher"), "bench", "collectives", "-b", "4",
                                       "-e", "4KiB", "--factor=2", "--nproc-per-node=2",
                                       f"--operations={operations}", "--seconds=0.01", "-o", form],
                                      check=False, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=harness.patient())
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("could not be written to stdout: No space left on device", done.stderr)

    def test_bench_collectives_without_the_memory_says_so(self):
        code, out, err = self.launch("bench", "collectives", "-e", "900GiB", "--operations=barrier")
        self.assertNotEqual(code, 0, out)
        self.assertIn("error: ", err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_a_job_that_cannot_fit_is_refused_before_it_starts(self):
        job = self.write("job.yaml", harness.synthetic_job())
        few = ("--set", "resources.memory=20KiB", job)
        code, out, err = self.launch("plan", *few)
        self.assertEqual(code, 5, out + err)
        self.assertIn("resources.memory allows 20.0 KiB", err)
        code, out, err = self.launch("--set", "restart.max_restarts=0", *few)
        self.assertEqual(code, 5, out + err)
        self.assertIn("resources.memory allows 20.0 KiB", out + err)

    def test_plan_without_the_data_says_where_it_looked(self):
        text = harness.synthetic_job().replace(
            "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}",
            "cifar10: {path: nowhere}")
        code, out, err = self.launch("plan", self.write("job.yaml", text))
        self.assertEqual(code, 1, out)
        self.assertIn("nowhere/data_batch_1.bin", err)

    def test_a_saved_model_evaluates_as_it_did_in_training(self):
        result = self.train("--nproc-per-node=2", self.write("job.yaml", harness.synthetic_job()))
        model = os.path.dirname(result["model"]["path"])
        code, out, err = self.launch("eval", "-o", "json", model)
        self.assertEqual(code, 0, err)
        answer = json.loads(out)
        self.assertEqual(answer["accuracy"], result["eval"]["accuracy"])
        self.assertEqual(answer["loss"], result["eval"]["loss"])
        other = self.write("other.yaml", harness.synthetic_job().replace("test_samples: 200", "test_samples: 77"))
        code, out, err = self.launch("eval", model, "--data", other, "-o", "json")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["samples"], 77)
        # They have no workers to count.
        counted = self.write("counted.yaml", harness.synthetic_job().replace(
            "{nproc_per_node: 4, device: cpu}", "{nproc_per_node: gpu}"))
        for command in (("eval", model, "--data"), ("predict", model, "--data"), ("plan", "--device=cuda:h200"),
                        ("compare", "--a=planned", "--b=unplanned")):
            code, out, err = self.launch(*command, counted, env={"LOCKSTEP_CUDA_MODULE": "/nowhere.so"})
            self.assertEqual(code, 0, (command, err))

        code, out, err = self.launch("predict", model)
        self.assertEqual(code, 0, err)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line["index"] for line in lines], list(range(200)))
        path = os.path.join(self.dir, "p.npy")
        code, out, err = self.launch("predict", model, "--out", path)
        self.assertEqual(code, 0, err)
        descr, shape, data = read_npy(path)
        self.assertEqual((descr, shape), ("<f4", (200, 5)))
        for i, line in enumerate(lines):
            row = struct.unpack_from("<5f", data, 20 * i)
            self.assertAlmostEqual(sum(row), 1, places=5)
            self.assertEqual(row.index(max(row)), line["label"])

    def test_their_json_is_what_the_documents_say(self):
        job = self.write("job.yaml", harness.synthetic_job())
        tables = json_tables.JsonTables(self)

        def answer(section, code, *arguments, **options):
            got, out, err = self.launch(*arguments, "-o", "json", **options)
            self.assertEqual(got, code, out + err)
            for line in out.splitlines():
                tables.check(section, json.loads(line))

        model = os.path.dirname(self.train("--nproc-per-node=1", job)["model"]["path"])
        answer("launcher plan", 0, "plan", job)
        answer("launcher plan", 0, "plan", "--device=cuda:h200", job)
        kept = ("--set=train.accumulate=2", "--set=train.precision=bf16", "--set=train.fp8=true")
        deep = self.write("deep.yaml", harness.synthetic_job(hidden="[32, 32]"))
        answer("launcher plan", 0, "plan", "--device=cuda:h200", *kept, deep)
        answer("launcher eval", 0, "eval", model)
        answer("launcher predict", 0, "predict", model, "--probabilities")
        answer("launcher compare", 0, "compare", "--a=planned", "--b=unplanned", job)
        answer("launcher compare", 1, "compare", "--a=fused", "--b=unfused+bf16", "--tolerance=1e-12", job)
        answer("launcher bench", 0, "bench", "collectives", "-e", "4KiB", "--operations=tree_reduce,memcpy",
               "--seconds=0.01")
        answer("launcher doctor", 1, "doctor", env={"LOCKSTEP_CUDA_MODULE": "/nowhere.so"})
        answer("launcher", 1, "eval", os.path.join(self.dir, "none"))
        tables.check_all_written()

    def test_inputs_of_a_file_are_predicted(self):
        result = self.train("--nproc-per-node=1", self.write("job.yaml", harness.synthetic_job(nproc=1)))
        model = os.path.dirname(result["model"]["path"])
        path = self.write_npy("x.npy", "<f4", (3, 40), bytes(3 * 40 * 4))
        code, out, err = self.launch("predict", model, "--inputs", path, "--probabilities")
        self.assertEqual(code, 0, err)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[0]["probabilities"], lines[2]["probabilities"])
        before = read_npy(path)
        os.symlink(path, os.path.join(self.dir, "y.npy"))
        for out in (path, "y.npy"):
            code, _, err = self.launch("predict", model, "--inputs", path, "--out", out)
            self.assertEqual(code, 2, err)
            self.assertIn("--out would write over --inputs", err)
            self.assertEqual(read_npy(path), before)
        code, out, err = self.launch("predict", os.path.join(self.dir, "none"))
        self.assertEqual(code, 1)
        self.assertIn("config.json", err)

    def test_a_picture_in_another_layout_is_refused(self):
        made = "synthetic: {train_samples: 1000, test_samples: 200, shape: [2, 6, 6], classes: 5}"
        job = harness.synthetic_job(nproc=1).replace("mlp: {hidden: [32]}", "cnn: {channels: [4]}")
        job = self.write("job.yaml", re.sub(r"synthetic: {.*?}", made, job))
        model = os.path.dirname(self.train("--nproc-per-node=1", job)["model"]["path"])
        first = self.write_npy("first.npy", "<f4", (3, 2, 6, 6), bytes(3 * 72 * 4))
        code, out, err = self.launch("predict", model, "--inputs", first)
        self.assertEqual(code, 0, err)
        last = self.write_npy("last.npy", "<f4", (3, 6, 6, 2), bytes(3 * 72 * 4))
        code, out, err = self.launch("predict", model, "--inputs", last)
        self.assertEqual(code, 3, out)
        self.assertIn("the model takes samples of inputs[2,6,6], labels[], but the data has inputs[6,6,2]", err)

    def test_tokens_of_a_file_are_predicted_one_by_one(self):
        ids = struct.pack("<24i", *(i * 5 % 19 for i in range(24)))
        tokens = self.write_npy("ids.npy", "<i4", (4, 6), ids)
        arrays = "npy: {train_inputs: ids.npy, train_labels: ids.npy, test_inputs: ids.npy, test_labels: ids.npy, vocab: 19}"
        made = "tokens: {length: 6, vocab: 19, train_samples: 64, test_samples: 8}"
        for model, data in (("bert", arrays), ("gpt", made)):
            job = harness.synthetic_job(steps=4, nproc=1).replace(
                "mlp: {hidden: [32]}", f"{model}: {{layers: 1, heads: 2, width: 16}}")
            job = self.write("job.yaml", re.sub(r"synthetic: {.*?}", data, job))
            saved = os.path.dirname(self.train("--nproc-per-node=1", "--name", model, job)["model"]["path"])
            code, out, err = self.launch("predict", saved, "--inputs", tokens, "--probabilities")
            self.assertEqual(code, 0, err)
            lines = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(lines), 4 * 6)
            self.assertEqual(len(lines[0]["probabilities"]), 19)
            if data == arrays:  # the test split is the same samples
                self.assertEqual(self.launch("predict", saved, "--probabilities")[1], out)

    def test_compare_names_the_first_node_that_differs(self):
        job = self.write("job.yaml", harness.synthetic_job())
        code, out, err = self.launch("compare", "--a=planned", "--b=unplanned", "--tolerance=0", "-o", "json", job)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["worst"], 0)
        code, out, err = self.launch("compare", "--a=fused", "--b=unfused+portable", job)
        self.assertEqual(code, 0, out + err)
        code, out, err = self.launch(
            "compare", "--a=fused", "--b=unfused+bf16", "--tolerance=1e-12", "--step=2", "--shard=3", "-o", "json", job)
        self.assertEqual(code, 1, out + err)
        first = json.loads(out)["first"]
        self.assertIn("linear", first["a_node"])
        self.assertNotEqual(first["a_value"], first["b_value"])
        code, out, err = self.launch("compare", "--a=fused", "--b=nonsense", job)
        self.assertEqual(code, 2)
        self.assertIn("'nonsense'", err)

    def test_profile_measures_and_changes_nothing(self):
        job = self.write("job.yaml", harness.synthetic_job())
        plain = self.train("--nproc-per-node=2", job)
        measured = self.train("--nproc-per-node=2", "--profile-steps=5:9", "--profile-sort=average", job)
        self.assertEqual(plain["model"]["sha256"], measured["model"]["sha256"])
        self.assertFalse(os.path.exists(os.path.join(self.run_dir(plain), "trace.json")))
        run = self.run_dir(measured)
        with open(os.path.join(run, "profile.json"), encoding="utf-8") as file:
            profile = json.load(file)
        self.assertEqual(profile["ranks"], 2)
        self.assertEqual(profile["steps"], 5)
        rows = profile["rows"]
        phases = {row["name"]: row for row in rows if row["kind"] != "node"}
        self.assertEqual(phases["step"]["calls"], 10)  # five steps of two ranks
        self.assertEqual(phases["compute"]["calls"], 20)  # two shards each
        self.assertLessEqual(
            sum(row["total_seconds"] for row in rows if row["kind"] == "phase"), phases["step"]["total_seconds"])
        nodes = [row for row in rows if row["kind"] == "node"]
        self.assertEqual(nodes, sorted(nodes, key=lambda row: -row["average_seconds"]))
        self.assertTrue(all(row["calls"] == 20 for row in nodes))
        with open(os.path.join(run, "trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        complete = [event for event in events if event["ph"] == "X"]
        self.assertEqual({event["pid"] for event in complete}, {0, 1})
        self.assertTrue({0, 1, 2} <= {event["tid"] for event in complete})
        self.assertEqual({event["args"]["step"] for event in complete}, {5, 6, 7, 8, 9})
        lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertTrue({"compute", "communication", "data 0"} <= lanes)
        # What measuring and putting together takes is not the job's.
        plain_peak, peak = (max(result["peak_rss_bytes"]) for result in (plain, measured))
        if not harness.SANITIZED:
            self.assertLess(peak, plain_peak + 64 * 2**20)
        code, out, err = self.launch("--nproc-per-node=2", "--profile", job)
        self.assertEqual(code, 0, err)
        self.assertIn("profile: ", out)
        self.assertIn("TOTAL ms", out)

    def test_a_profile_without_memory_costs_the_profile_alone(self):
        if harness.SANITIZED:
            self.skipTest("a sanitizer takes memory of its own")
        job = self.write("job.yaml", harness.synthetic_job(steps=200, nproc=1))
        child = self.start("launcher", "-o", "json", "--profile", "--max-restarts=0", job, env=harness.PACED)
        wait_until(lambda: glob.glob(os.path.join(self.dir, "runs", "*", "metrics.jsonl")), 30, "it trains")
        (worker,) = self.processes("worker")
        with open(f"/proc/{worker.pid}/status", encoding="utf-8") as file:
            used = int(re.search(r"VmData:\s+(\d+) kB", file.read())[1]) << 10
        limit = used + (64 << 20)  # a pass over memory takes twice that
        resource.prlimit(worker.pid, resource.RLIMIT_DATA, (limit, limit))
        self.unpace()
        code, out, err = self.finish(child)
        self.assertEqual(code, 0, err)
        measured = json.loads(out)
        self.assertEqual(measured["model"]["sha256"], self.train(job)["model"]["sha256"])
        with open(os.path.join(self.run_dir(measured), "profile.json"), encoding="utf-8") as file:
            self.assertNotIn("peak_bytes_per_second", json.load(file))

    def test_interpret_has_the_same_bits_and_dumps_tensors(self):
        job = self.write("job.yaml", harness.synthetic_job())
        plain = self.train("--nproc-per-node=2", job)
        dump = os.path.join(self.dir, "dump")
        looked = self.train("--nproc-per-node=2", "--dump-tensors", dump, job)
        self.assertEqual(plain["model"]["sha256"], looked["model"]["sha256"])
        self.assertEqual(sorted(os.listdir(dump)), ["step-1"])
        self.assertEqual(sorted(os.listdir(os.path.join(dump, "step-1"))), [f"shard-{i}" for i in range(4)])
        files = glob.glob(os.path.join(dump, "step-1/shard-2/micro-0/*-linear-0.0.npy"))
        self.assertEqual(len(files), 1)
        self.assertEqual(read_npy(files[0])[1], (12, 32))

    def test_interpret_names_the_node_that_overflows(self):
        job = self.write("job.yaml", harness.synthetic_job())
        code, out, err = self.launch(
            "--nproc-per-node=2", "--interpret", "--set", "train.optimizer.sgd.lr=1e30", "--max-restarts=0", job)
        self.assertNotEqual(code, 0)
        self.assertRegex(out + err, r"node %\d+ .* made (-?inf|-?nan) at element \d+ .* in step \d+, shard \d")

    def test_interpret_takes_no_overflow_of_the_loss_scale_for_a_fault(self):
        job = self.write("job.yaml", harness.synthetic_job())
        scaled = ["--nproc-per-node=2", "--set", "train.precision=fp16", "--set", "train.loss_scale.init_scale=16777216"]
        plain = self.train(*scaled, job)
        dump = os.path.join(self.dir, "dump")
        code, out, err = self.launch(*scaled, "--dump-tensors", dump, "-o", "json", job)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(plain["model"]["sha256"], json.loads(out)["model"]["sha256"])
        self.assertRegex(err, r"node %\d+ .* an overflow at a loss scale of \S+")
        self.assertNotIn("step 0,", err)
        code, out, err = self.launch(
            *scaled, "--interpret", "--set", "train.optimizer.sgd.lr=1e30", "--max-restarts=0", job)
        self.assertNotEqual(code, 0)
        self.assertRegex(out + err, r"node %\d+ .* made (-?inf|-?nan) at element \d+ .* in step [1-9]\d*, shard \d, "
                                    r"micro-batch \d+: lower the learning rate")

    def test_tables_and_arrays_are_trained_on_alike(self):
        rows = [[((i * 7 + j * 3) % 11) / 4.0 for j in range(6)] + [i % 3] for i in range(60)]
        table = "\n".join(",".join(str(value) for value in row) for row in rows) + "\n"
        self.write("train.csv", "a,b,c,d,e,f,label\n" + table)
        self.write("test.csv", table)

        self.write_npy("x.npy", "<f4", (60, 6), b"".join(struct.pack("<6f", *row[:6]) for row in rows))
        self.write_npy("y.npy", "<i8", (60,), b"".join(struct.pack("<q", row[6]) for row in rows))
        base = harness.synthetic_job()
        made = "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}"
        csv = self.write("csv.yaml", base.replace(made, "csv: {train: train.csv, test: test.csv}"))
        arrays = self.write("npy.yaml", base.replace(
            made, "npy: {train_inputs: x.npy, train_labels: y.npy, test_inputs: x.npy, test_labels: y.npy}"))
        one = self.train("--nproc-per-node=2", csv)
        two = self.train("--nproc-per-node=4", arrays)
        self.assertEqual(one["model"]["sha256"], two["model"]["sha256"])
        self.assertEqual(one["eval"], dict(two["eval"], seconds=one["eval"].get("seconds")) if "seconds" in one["eval"] else two["eval"])

    def test_a_saved_model_needs_no_training_files(self):
        # The test split lacks the last class, and the table's is named.
        rows = [[((i * 7 + j * 3) % 11) / 4.0 for j in range(6)] + [i % 3] for i in range(60)]
        few = [row for row in rows if row[6] < 2]
        made = "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}"

        def idx(name, kind, shape, data):
            with open(os.path.join(self.dir, name), "wb") as file:
                file.write(bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data)

        for split, part in (("train", rows), ("test", few)):
            count = len(part)
            self.write(f"{split}.csv", "a,b,c,d,e,f,label\n" + "".join(",".join(map(str, row)) + "\n" for row in part))
            self.write_npy(f"{split}-x.npy", "<f4", (count, 6), b"".join(struct.pack("<6f", *row[:6]) for row in part))
            self.write_npy(f"{split}-y.npy", "<i8", (count,), b"".join(struct.pack("<q", row[6]) for row in part))
            idx(f"{split}-images", 8, (count, 2, 3), bytes(int(value * 4) for row in part for value in row[:6]))
            idx(f"{split}-labels", 8, (count,), bytes(row[6] for row in part))
        arrays = "{0}_inputs: {0}-x.npy, {0}_labels: {0}-y.npy"
        pictures = "{0}_images: {0}-images, {0}_labels: {0}-labels"
        for data in ("csv: {train: train.csv, test: test.csv}",
                     f"npy: {{{arrays.format('train')}, {arrays.format('test')}}}",
                     f"idx: {{{pictures.format('train')}, {pictures.format('test')}}}"):
            job = self.write("job.yaml", harness.synthetic_job(extra="", nproc=2).replace(made, data))
            result = self.train(job)
            model = os.path.dirname(result["model"]["path"])
            code, predicted, err = self.launch("predict", model)
            self.assertEqual(code, 0, err)
            hidden = [name for name in os.listdir(self.dir) if name.startswith("train")]
            for name in hidden:
                os.rename(os.path.join(self.dir, name), os.path.join(self.dir, "away-" + name))
            code, out, err = self.launch("eval", "-o", "json", model)
            self.assertEqual(code, 0, err)
            answer = json.loads(out)
            self.assertEqual((answer["loss"], answer["accuracy"]), (result["eval"]["loss"], result["eval"]["accuracy"]))
            self.assertEqual(self.launch("predict", model)[:2], (0, predicted))
            for name in hidden:
                os.rename(os.path.join(self.dir, "away-" + name), os.path.join(self.dir, name))

    def test_a_table_without_labels_is_refused_with_what_to_do(self):
        rows = [(i % 7, i % 5, i % 3) for i in range(200)]
        self.write("rows.csv", "a,b,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in rows))
        self.write("bare.csv", "a,b\n" + "".join(f"{a / 2},{b / 2}\n" for a, b, _ in rows))
        made = "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}"
        table = "csv: {{train: rows.csv, test: {}, label: {}}}"
        job = self.write("job.yaml", harness.synthetic_job().replace(made, table.format("rows.csv", "label")))
        model = os.path.join(self.dir, os.path.dirname(self.train("--nproc-per-node=2", job)["model"]["path"]))
        for label in ("label", "-1"):
            bare = self.write("bare.yaml", harness.synthetic_job().replace(made, table.format("bare.csv", label)))
            code, _, err = self.launch("predict", model, "--data", bare)
            self.assertNotEqual(code, 0)
            self.assertIn("samples without labels are a .npy file, --inputs FILE.npy", err)

    def test_a_test_split_that_is_missed_says_from_where_it_is_meant(self):
        self.write("rows.csv", "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(200)))
        made = "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}"
        job = self.write("job.yaml", harness.synthetic_job().replace(made, "csv: {train: rows.csv, test: rows.csv}"))
        model = os.path.join(self.dir, os.path.dirname(self.train("--nproc-per-node=2", job)["model"]["path"]))
        self.write("elsewhere/x", "")
        for verb in ("eval", "predict"):
            code, _, err = self.launch(verb, model, cwd=os.path.join(self.dir, "elsewhere"))
            self.assertNotEqual(code, 0)
            self.assertRegex(err, "rows.csv.*No such file.*; relative paths are meant from .*/elsewhere, as the job has no workdir")

    def test_augmented_pictures_are_the_same_for_any_number_of_workers(self):
        def record(label, seed):
            return bytes([label]) + bytes((seed * 31 + i * 7) % 251 for i in range(3072))

        for i in range(1, 6):
            path = os.path.join(self.dir, "cifar", f"data_batch_{i}.bin")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(b"".join(record((i + k) % 10, 13 * i + k) for k in range(20)))
        with open(os.path.join(self.dir, "cifar", "test_batch.bin"), "wb") as file:
            file.write(b"".join(record(k % 10, k) for k in range(10)))
        made = "synthetic: {train_samples: 1000, test_samples: 200, features: 40, classes: 5}"
        base = harness.synthetic_job(steps=6).replace(
            made, "cifar10: {path: cifar}, augment: {crop_padding: 4, flip: true}")
        job = self.write("job.yaml", base)
        hashes = {n: self.train(f"--nproc-per-node={n}", job)["model"]["sha256"] for n in (1, 3, 4)}
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        plain = self.train("--nproc-per-node=2", "--set", "train.data.augment.flip=false", job)
        self.assertNotEqual(plain["model"]["sha256"], hashes[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
