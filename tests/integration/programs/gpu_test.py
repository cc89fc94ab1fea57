# SPDX-License-Identifier: Apache-2.0
"""Jobs on GPUs: on emulated ones, so that all but the GPU itself is what a user runs.

The workers load the emulated module instead of the real one, and the agents are told of GPUs that
are not there.
"""

import json
import os
import pathlib
import shutil
import unittest

import harness

MODULE = os.environ.get("LOCKSTEP_EMULATED_MODULE", "")
GPUS = {"LOCKSTEP_CUDA_MODULE": MODULE, "LOCKSTEP_GPUS": "GPU-a,GPU-b"}
# The same with an NCCL, made of sockets.
NCCL = dict(GPUS, LOCKSTEP_NCCL_LIBRARY=os.environ.get("LOCKSTEP_FAKE_NCCL", ""))
# Several are handed to NCCL while the backward pass goes on.
SMALL_BUCKETS = "  passes: {bucket_size: 512B}\n"
NVML = os.environ.get("LOCKSTEP_FAKE_NVML", "")
CUDNN = dict(GPUS, LOCKSTEP_CUDNN_LIBRARY=os.environ.get("LOCKSTEP_FAKE_CUDNN", ""))
BY_NCCL = "gradients are reduced by NCCL"
FOUR = dict(GPUS, LOCKSTEP_GPUS="GPU-a,GPU-b,GPU-c,GPU-d")
FOUR_BY_NCCL = dict(NCCL, LOCKSTEP_GPUS="GPU-a,GPU-b,GPU-c,GPU-d")
ZERO = ("--set", "train.zero_stage=1")


def job(**more):
    return harness.synthetic_job(nproc=2, **more).replace("device: cpu", "device: cuda")


class Gpus(harness.ProgramTest):
    def on_gpus(self, *arguments, **options):
        return self.train(*arguments, env=GPUS, **options)

    def test_one_worker_and_two_have_the_same_weights(self):
        path = self.write("job.yaml", job())
        hashes = {n: self.on_gpus(f"--nproc-per-node={n}", path)["model"]["sha256"] for n in (1, 2)}
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_each_rank_has_its_own_gpu_in_any_order_of_devices(self):
        a, b, c = (f"GPU-{digit * 8}-0000-0000-0000-000000000001" for digit in "abc")
        # CUDA counts the fastest first, the driver and PCI_BUS_ID by bus; agents choose by name. The driver says that
        # no GPU reaches another, too: nothing of ours wants it, and the emulated runtime has no function for it.
        machine = dict(NCCL, LOCKSTEP_EMULATED_GPUS=f"{c},{a},{b}", LOCKSTEP_GPUS=f"{b},{c}",
                       CUDA_VISIBLE_DEVICES="1,0", LOCKSTEP_NVML_LIBRARY=NVML, LOCKSTEP_FAKE_NVML_APART="1")
        path = self.write("job.yaml", job())
        whole = self.on_gpus(path)["model"]["sha256"]
        for order in ("FASTEST_FIRST", "PCI_BUS_ID"):
            code, out, err = self.launch("-o", "json", "--set", "nccl.use=always", path,
                                         env=dict(machine, CUDA_DEVICE_ORDER=order))
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], whole)
        code, _, err = self.launch(path, env=dict(machine, LOCKSTEP_EMULATED_GPUS=f"{a},{b}"))
        self.assertNotEqual(code, 0)
        self.assertIn("this host has no GPU", err)

    def test_the_loss_is_that_of_the_cpu(self):
        one = self.on_gpus(self.write("gpu.yaml", job()))
        other = self.train(self.write("cpu.yaml", harness.synthetic_job(nproc=2)))
        self.assertAlmostEqual(one["eval"]["loss"], other["eval"]["loss"], places=3)
        self.assertNotEqual(one["model"]["sha256"], other["model"]["sha256"], "not on the device")

    def test_a_killed_worker_changes_no_bit(self):
        path = self.write("job.yaml", job())
        whole = self.on_gpus(path)["model"]["sha256"]
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:1@step:8", path, env=GPUS)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], whole)

    def test_nccl_has_the_bits_of_the_hosts_memory_and_of_one_worker(self):
        path = self.write("job.yaml", job(train_extra=SMALL_BUCKETS))
        by_host = self.on_gpus(self.write("whole.yaml", job()))["model"]["sha256"]
        for workers in (1, 2):
            code, out, err = self.launch("-o", "json", f"--nproc-per-node={workers}",
                                         "--set", "nccl.use=always", path, env=NCCL)
            self.assertEqual(code, 0, err)
            result = json.loads(out.strip().splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], by_host)
            self.assertEqual(BY_NCCL in err, workers > 1, err)

    def test_with_nccl_a_killed_worker_changes_no_bit(self):
        path = self.write("job.yaml", job(train_extra=SMALL_BUCKETS))
        whole = self.on_gpus(path)["model"]["sha256"]
        for where in ("step:8", "step:8/reduce", "step:8/reduced"):
            code, out, err = self.launch("chaos", "-o", "json", "--kill", f"rank:1@{where}", path,
                                         env=NCCL)
            self.assertEqual(code, 0, err)
            result = json.loads(out.strip().splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], whole, where)
            self.assertIn(BY_NCCL, err)

    def test_survivors_shrink_their_communicator(self):
        three = {"LOCKSTEP_GPUS": "GPU-a,GPU-b,GPU-c"}
        text = harness.synthetic_job(nproc=3, steps=60).replace("device: cpu", "device: cuda")
        whole = self.train(self.write("whole.yaml", text), env=dict(GPUS, **three))["model"]["sha256"]
        path = self.write("job.yaml", text + "elastic: {min_workers: 1, max_workers: 3}\n")
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:2@step:8/reduced", path,
                                     env=dict(NCCL, **three))
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], whole)
        self.assertRegex(err, "on 2 GPUs .shrunk communicator")

    def test_nccl_is_refused_or_done_without_where_it_is_not_possible(self):
        path = self.write("job.yaml", job())
        none = dict(NCCL, LOCKSTEP_NCCL_LIBRARY="/nowhere.so")
        code, out, err = self.launch("-o", "json", path, env=none)
        self.assertEqual(code, 0, err)
        self.assertIn("gradients go through the host's memory: NCCL cannot be loaded", err)
        code, _, err = self.launch("--set", "nccl.use=always", path, env=none)
        self.assertNotEqual(code, 0)
        self.assertIn("nccl.use is always: NCCL cannot be loaded", err)
        shared = dict(NCCL, LOCKSTEP_GPUS="GPU-a,GPU-a")
        code, _, err = self.launch("--set", "nccl.multi_rank_gpu=false", path, env=shared)
        self.assertEqual(code, 0, err)
        self.assertIn("workers of this host share GPUs, and nccl.multi_rank_gpu is false", err)
        code, _, err = self.launch(path, env=dict(shared, LOCKSTEP_FAKE_NCCL_VERSION="22907"))
        self.assertEqual(code, 0, err)
        self.assertIn("NCCL 2.29.7 cannot join: NCCL 2.30 is the first", err)
        code, _, err = self.launch(path, env=dict(NCCL, LOCKSTEP_GPUS="MIG-a,MIG-b"))
        self.assertEqual(code, 0, err)
        self.assertIn("NCCL does not join instances of GPUs", err)
        code, _, err = self.launch(path, env=shared)
        self.assertEqual(code, 0, err)
        self.assertIn(BY_NCCL, err)

    def test_when_all_die_it_goes_on_from_the_checkpoint_to_the_same_bits(self):
        whole = self.on_gpus(self.write("whole.yaml", job()))["model"]["sha256"]
        extra = "checkpoint: {dir: saved, every: 5 steps}\nrestart: {max_restarts: 9}\n"
        path = self.write("saved.yaml", job(extra=extra))
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:0@step:13",
                                     "--kill", "rank:1@step:13", path, env=GPUS)
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], whole)

    def zero_job(self, steps=40, more=""):
        more += "  clip_norm: 0.5\n  ema: {decay: 0.9}\n  eval: {every: 10 steps}\n"
        text = harness.synthetic_job(
            steps=steps, train_extra=more, extra="elastic: {min_workers: 1, max_workers: 4}\n"
            "verify_replicas: 5 steps\nrestart: {max_restarts: 9}\n").replace("device: cpu", "device: cuda")
        return text.replace("{sgd: {lr: 0.05, momentum: 0.9}}", "{adamw: {lr: 0.002, weight_decay: 0.1}}")

    def test_parts_of_the_moments_by_nccl_have_the_bits_of_the_whole(self):
        path = self.write("job.yaml", self.zero_job(more=SMALL_BUCKETS))
        save = "--set", "checkpoint={every: 7 steps, dir: %s}"
        plain = self.train("--nproc-per-node=1", save[0], save[1] % "plain", path, env=FOUR)
        for workers in (2, 3, 4):
            name = f"zero{workers}"
            code, out, err = self.launch("-o", "json", f"--nproc-per-node={workers}", *ZERO, save[0],
                                         save[1] % name, path, env=FOUR_BY_NCCL)
            self.assertEqual(code, 0, err)
            self.assertIn(BY_NCCL, err)  # nccl.use is auto
            result = json.loads(out.strip().splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], plain["model"]["sha256"], workers)
            self.assertEqual(result["eval"]["loss"], plain["eval"]["loss"])
            for file in ("model.safetensors", "training.safetensors", "ema.safetensors"):
                folders = [os.path.join(self.dir, run, "last", file) for run in ("plain", name)]
                if os.path.exists(folders[0]):
                    self.assertEqual(*[pathlib.Path(folder).read_bytes() for folder in folders])

    def test_with_parts_of_the_moments_by_nccl_a_death_loses_nothing(self):
        path = self.write("job.yaml", self.zero_job(steps=60))
        plain = self.train("--nproc-per-node=1", path, env=FOUR)["model"]["sha256"]
        faults = {
            "in every half": ["--kill", "rank:1@step:10/begun", "--kill", "rank:0@step:20/reduced",
                              "--kill", "rank:2@step:30/reduce", "--kill", "rank:3@step:40/begun"],
            "of every size": ["--scale", "3@step:10", "--kill", "rank:2@step:20/begun", "--scale", "4@step:30",
                              "--kill", "rank:0@step:40/begun"],
        }
        for name, more in faults.items():
            code, out, err = self.launch("chaos", "-o", "json", "--slow", "rank:3:20x", *more, *ZERO, path,
                                         env=FOUR_BY_NCCL)
            self.assertEqual(code, 0, err)
            self.assertIn(BY_NCCL, err)
            result = json.loads(out.strip().splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], plain, name)
            self.assertEqual([fault["steps_lost"] for fault in result["faults"]], [0] * len(result["faults"]))
            self.assertGreaterEqual(len(result["faults"]), 2)

    def test_with_parts_of_the_moments_by_nccl_survivors_go_on_alone(self):
        path = self.write("job.yaml", self.zero_job(steps=60))
        plain = self.train("--nproc-per-node=1", path, env=FOUR)["model"]["sha256"]
        code, out, err = self.launch("chaos", "-o", "json", "--set", "restart.max_restarts=2", "--kill",
                                     "rank:3@step:10/begun", "--kill", "rank:0@step:11/begun", *ZERO, path,
                                     env=FOUR_BY_NCCL)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, "on 3 GPUs .shrunk communicator")
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], plain)

    def test_parts_of_the_moments_give_the_same_weights_and_a_death_loses_nothing(self):
        path = self.write("job.yaml", self.zero_job())
        zero = ZERO
        save = "--set", "checkpoint={every: 7 steps, dir: %s}"
        plain = self.train("--nproc-per-node=1", save[0], save[1] % "plain", path, env=FOUR)
        # Moments travel to the host for checkpoints, which other ranks read.
        whole = self.train(*zero, save[0], save[1] % "zero", path, env=FOUR)
        self.assertEqual(whole["model"]["sha256"], plain["model"]["sha256"])
        for file in ("model.safetensors", "training.safetensors"):
            folders = [os.path.join(self.dir, name, "last", file) for name in ("plain", "zero")]
            self.assertEqual(*[pathlib.Path(folder).read_bytes() for folder in folders])
        faults = ["--slow", "rank:3:20x", "--kill", "rank:1@step:10/begun", "--kill", "rank:0@step:20/reduced",
                  "--kill", "rank:1@step:30/begun"]
        for offload in ("false", "true"):
            code, out, err = self.launch("chaos", "-o", "json", *faults, *zero, "--set",
                                         f"resources.offload_optimizer={offload}", path, env=FOUR)
            self.assertEqual(code, 0, err)
            result = json.loads(out.strip().splitlines()[-1])
            self.assertEqual(result["model"]["sha256"], plain["model"]["sha256"])
            self.assertEqual([fault["steps_lost"] for fault in result["faults"]], [0] * len(result["faults"]))

    def test_moments_on_the_host_take_less_of_the_gpu_and_give_the_same_weights(self):
        path = self.write("job.yaml", job())
        offload = "--set", "resources.offload_optimizer=true"
        self.assertEqual(self.on_gpus(*offload, path)["model"]["sha256"], self.on_gpus(path)["model"]["sha256"])
        big = self.write("big.yaml", job(hidden="[4000, 4000]"))
        bytes_of = []
        for more in ((), offload):
            code, out, err = self.launch("plan", "-o", "json", *more, big)
            self.assertEqual(code, 0, err)
            bytes_of.append(json.loads(out)["gpu_memory"]["total"])
        self.assertLess(bytes_of[1], bytes_of[0])
        self.assertIn("GPU memory", self.launch("plan", *offload, big)[1])

    def test_a_step_that_is_one_recording_gives_the_same_weights(self):
        path = self.write("job.yaml", job(
            shards=1, train_extra="  accumulate: 2\n  ema: {decay: 0.9}\n  clip_norm: 0.5\n",
            extra="checkpoint: {dir: saved, every: 5 steps}\nrestart: {max_restarts: 3}\n"))
        one = "--nproc-per-node=1", "--set", "resources.nproc_per_node=1"
        whole = "--set", "train.passes.whole_step_graph=true"
        plain = self.on_gpus(*one, "--set", "checkpoint.dir=plain", path)
        self.assertEqual(self.on_gpus(*one, *whole, "--set", "checkpoint.dir=whole", path)["model"]["sha256"],
                         plain["model"]["sha256"])
        code, out, err = self.launch("chaos", "-o", "json", "--kill", "rank:0@step:8/reduce", *one, *whole, path,
                                     env=GPUS)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], plain["model"]["sha256"])

    def test_a_gpu_that_fails_in_an_update_is_named_and_healed(self):
        path = self.write("job.yaml", job())
        whole = self.on_gpus(path)["model"]["sha256"]
        marker = self.write("failure", "")
        failing = dict(GPUS, LOCKSTEP_EMULATED_FAILURE=f"400 {marker}")
        code, out, err = self.launch("-o", "json", path, env=failing)
        self.assertEqual(code, 0, err)
        self.assertFalse(os.path.exists(marker), "nothing has failed")
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(result["model"]["sha256"], whole)
        self.assertEqual(len(result["faults"]), 1)
        self.assertRegex(result["faults"][0]["cause"], "an emulated GPU .*unspecified launch failure")

    def test_a_model_too_large_for_the_cap_is_refused(self):
        path = self.write("job.yaml", job())
        code, _, err = self.launch("--set", "resources.gpu_memory=1MiB", path, env=GPUS)
        self.assertEqual(code, 5, err)
        self.assertIn("resources.gpu_memory", err)

    def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu(self):
        none = {"LOCKSTEP_CUDA_MODULE": MODULE, "LOCKSTEP_GPUS": ""}
        path = self.write("job.yaml", job())
        code, _, err = self.launch(path, env=none)
        self.assertNotEqual(code, 0)
        self.assertIn("no GPU left for worker", err)
        result = self.train("--set", "resources.device=auto", path, env=none)
        cpu = self.train(self.write("cpu.yaml", harness.synthetic_job(nproc=2)))
        self.assertEqual(result["model"]["sha256"], cpu["model"]["sha256"])

    def test_compare_finds_no_node_that_differs(self):
        path = self.write("job.yaml", job())
        code, out, err = self.launch("compare", "--a", "cpu", "--b", "cuda", path, env=GPUS)
        self.assertEqual(code, 0, out + err)
        code, out, err = self.launch("compare", "--a", "cpu", "--b", "cuda+bf16", path, env=GPUS)
        self.assertEqual(code, 1, out + err)

    def test_a_saved_model_runs_on_either_device(self):
        self.on_gpus("--run-dir", "run", self.write("job.yaml", job()))
        model = os.path.join(self.dir, "run", "model")
        answers = {}
        for device in ("cpu", "cuda", "cuda:0"):
            code, out, err = self.launch("eval", model, "--device", device, "-o", "json", env=GPUS)
            self.assertEqual(code, 0, err)
            answers[device] = json.loads(out)
        self.assertAlmostEqual(answers["cpu"]["loss"], answers["cuda"]["loss"], places=4)
        self.assertEqual(answers["cpu"]["accuracy"], answers["cuda"]["accuracy"])
        self.assertEqual(answers["cuda"]["loss"], answers["cuda:0"]["loss"])
        labels = {}
        for device in ("cpu", "cuda"):
            code, out, err = self.launch("predict", model, "--device", device, env=GPUS)
            self.assertEqual(code, 0, err)
            labels[device] = [json.loads(line)["label"] for line in out.splitlines()]
        self.assertEqual(labels["cpu"], labels["cuda"])
        code, _, err = self.launch("eval", model, "--device", "cuda:7", env=GPUS)
        self.assertEqual(code, 1, err)
        self.assertIn("there is no GPU 7", err)
        code, _, err = self.launch("eval", model, "--device", "gpu", env=GPUS)
        self.assertEqual(code, 2, err)

    def test_a_gpu_goes_on_with_a_text_as_the_cpu(self):
        self.write("alphabet", "abcdefgh\n" * 300)
        path = self.write("text.yaml", """name: text
resources: {nproc_per_node: 1, device: cpu}
train:
  model: {gpt: {layers: 1, heads: 2, width: 32, dropout: 0, vocab: 320}}
  data: {text: {path: alphabet, length: 12}}
  global_batch: 16
  steps: 60
  optimizer: {adamw: {lr: 0.01}}
  eval: {every: never}
  seed: 2
""")
        self.train("--run-dir", "run", path)
        texts = set()
        for device in ("cpu", "cuda"):
            code, out, err = self.launch("generate", os.path.join(self.dir, "run", "model"),
                                         "--prompt=cde", "--tokens=20", "--temperature=0", "-q",
                                         "--device", device, env=GPUS)
            self.assertEqual(code, 0, err)
            texts.add(out)
        self.assertEqual(len(texts), 1, texts)

    def test_algorithms_are_kept_with_the_run_and_in_the_cache(self):
        path = self.write("job.yaml", job())
        self.on_gpus("--run-dir", "first", path)
        kept = os.path.join(self.dir, "first", "matmul-algorithms.tsv")
        cache = os.path.join(self.dir, "cache", "lockstep", "matmul-algorithms.tsv")
        with open(kept, encoding="utf-8") as one, open(cache, encoding="utf-8") as other:
            self.assertEqual(one.read(), other.read())
        self.on_gpus("--run-dir", "second", "--set", "resources.matmul=library", path)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "second", "matmul-algorithms.tsv")))

    def test_workers_take_the_convolutions_of_one_file(self):
        text = job(steps=3, global_batch=8, train_extra="  eval: {every: never, block: 4}\n").replace(
            "mlp: {hidden: [32]}", "cnn: {channels: [3], batch_norm: true, hidden: [8]}").replace(
            "features: 40", "shape: [2, 6, 6]")
        path = self.write("job.yaml", text)
        own = self.on_gpus(path)["model"]["sha256"]
        measured = self.train("--run-dir", "first", path, env=CUDNN)
        self.assertEqual(measured["model"]["sha256"], own)  # which the emulated clock calls quickest
        cache = os.path.join(self.dir, "cache", "lockstep", "matmul-algorithms.tsv")
        with open(cache, encoding="utf-8") as file:
            lines = file.read()
        self.assertRegex(lines, "cuDNN 9.19.0\tconv-weight:.*\town\n")
        with open(cache, "w", encoding="utf-8") as file:
            file.write(lines.replace("\town\n", "\tcudnn.2.40\n"))
        hashes = {n: self.train(f"--nproc-per-node={n}", path, env=CUDNN)["model"]["sha256"] for n in (1, 2)}
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        self.assertNotEqual(hashes[1], own, "sums in another order")
        never = self.train("--set", "resources.cudnn=never", path, env=CUDNN)
        self.assertEqual(never["model"]["sha256"], own)
        code, _, err = self.launch("--set", "resources.cudnn=always", path, env=GPUS)
        self.assertNotEqual(code, 0)
        self.assertIn("resources.cudnn is always", err)

    def test_workers_take_the_attention_of_one_file(self):
        self.write("alphabet", "abcdefgh\n" * 300)
        path = self.write("text.yaml", """name: text
resources: {nproc_per_node: 2, device: cuda}
train:
  model: {gpt: {layers: 2, heads: 2, width: 32, dropout: 0, vocab: 320}}
  data: {text: {path: alphabet, length: 12}}
  global_batch: 8
  steps: 3
  precision: bf16
  optimizer: {adamw: {lr: 0.01}}
  eval: {every: never, block: 4}
  seed: 2
""")
        own = self.train("--set", "resources.cudnn=never", path, env=CUDNN)["model"]["sha256"]
        cache = os.path.join(self.dir, "cache", "lockstep", "matmul-algorithms.tsv")
        with open(cache, encoding="utf-8") as file:
            gpu = file.read().split("\t")[0]
        with open(cache, "a", encoding="utf-8") as file:
            for node in ("attention", "attention-backward"):
                file.write(f"{gpu}, cuDNN 9.19.0\t{node}:4x2x12x16:96:bf16:causal\tcudnn.2.40\n")
        hashes = {n: self.train(f"--nproc-per-node={n}", path, env=CUDNN)["model"]["sha256"] for n in (1, 2)}
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        self.assertNotEqual(hashes[1], own, "sums in another order")

    def test_doctor_says_what_is_missing(self):
        code, out, _ = self.launch("doctor", "-o", "json", env={"LOCKSTEP_CUDA_MODULE": "/nowhere.so"})
        self.assertEqual(code, 1)
        answer = json.loads(out)
        self.assertFalse(answer["cuda"])
        states = {part["part"]: part["state"] for part in answer["parts"]}
        self.assertEqual(states["CUDA module"], "missing")
        _, out, _ = self.launch("doctor", env=GPUS)
        self.assertIn("an emulated GPU", out)
        self.assertIn("a matrix product is right", out)
        self.assertRegex(out, "cuDNN +absent .*our own kernels")
        self.assertRegex(out, "attention +ok +by wgmma it is what it is by mma.sync")
        _, out, _ = self.launch("doctor", env=dict(CUDNN, LOCKSTEP_WARPGROUPS="0"))
        self.assertNotIn("wgmma", out)
        self.assertRegex(out, "cuDNN +ok +cuDNN 9.19.0, .*; convolutions and attention use it where it is measured quicker")
        self.assertRegex(out, r"copies +ok +to the GPU [0-9.]+ GB/s, back [0-9.]+ GB/s")
        self.assertRegex(out, r"products +ok +64 x 64 by one CPU thread .*64 x 64 by the GPU fp32 .*tf32 .*bf16 ")
        _, out, _ = self.launch("doctor", env=NCCL)
        self.assertIn("NCCL 2.30.7 (revoke, shrink, grow, windows)", out)
        self.assertRegex(out, r"reduction +ok +in the host's memory: 2 ranks, 4.0 MiB: right, [0-9.]+ GB/s")
        self.assertRegex(out, r"reduction +ok +by NCCL: 2 ranks, 4.0 MiB: right, [0-9.]+ GB/s")
        one = dict(NCCL, LOCKSTEP_GPUS="GPU-a")
        _, out, _ = self.launch("doctor", env=one)
        self.assertRegex(out, r"reduction +ok +by NCCL: 2 ranks")
        _, out, _ = self.launch("doctor", env=dict(one, LOCKSTEP_FAKE_NCCL_VERSION="22907"))
        self.assertRegex(out, r"reduction +absent +by NCCL: nothing to try with one GPU")

    def test_a_driver_that_is_too_old_leaves_auto_to_the_cpu(self):
        old = {"LOCKSTEP_CUDA_MODULE": MODULE, "LOCKSTEP_NVML_LIBRARY": NVML,
               "LOCKSTEP_FAKE_NVML_DRIVER": "570.124.06", "LOCKSTEP_FAKE_NVML_CUDA": "12080"}
        text = job().replace("device: cuda", "device: auto")
        code, out, err = self.launch("-o", "json", self.write("auto.yaml", text), env=old)
        self.assertEqual(code, 0, err)
        why = "driver 570.124.06 runs CUDA 12.8; CUDA 13 needs driver 580 or newer: update it, or use device: cpu"
        self.assertEqual(err.count(f"no GPU of this host is used: {why}"), 1, err)
        code, _, err = self.launch(self.write("cuda.yaml", job()), env=old)
        self.assertNotEqual(code, 0)
        self.assertRegex(err, "this host has no GPU left for worker [01]:")  # whichever comes to it first
        code, out, _ = self.launch("doctor", env=old)
        self.assertEqual(code, 1)
        self.assertRegex(out, f"driver +missing +{why}")
        self.assertIn("device: cuda cannot be used here; device: auto takes the CPU", out)

    def test_doctor_says_where_auto_does_not_take_the_cpu(self):
        # An emulated GPU has no name that the driver knows, so a real module's part is played by a file that is none.
        module = self.write("liblockstep_cuda.so", "")
        code, out, _ = self.launch("doctor", env={"LOCKSTEP_CUDA_MODULE": module, "LOCKSTEP_NVML_LIBRARY": NVML})
        self.assertEqual(code, 1)
        self.assertIn("jobs of device: auto are given GPUs all the same", out)

    def test_the_module_is_found_beside_the_folder_of_the_tests(self):
        # As in a checkout: tests are in build/cuda/tests, the module in build/cuda/bin.
        os.mkdir(os.path.join(self.dir, "bin"))
        os.mkdir(os.path.join(self.dir, "tests"))
        module = self.write("bin/liblockstep_cuda.so", "")
        program = shutil.copy(os.path.join(harness.BIN, "worker"), os.path.join(self.dir, "tests"))
        _, out, _ = self.launch("doctor", env={"LOCKSTEP_WORKER": program})
        self.assertRegex(out, f"CUDA module +missing .*{os.path.dirname(program)}/../bin/{os.path.basename(module)}: "
                              "file too short")

    def test_a_gpu_in_mig_mode_without_an_instance_is_told(self):
        _, out, _ = self.launch("doctor", env={"LOCKSTEP_CUDA_MODULE": "/nowhere.so", "LOCKSTEP_NVML_LIBRARY": NVML,
                                               "LOCKSTEP_FAKE_NVML_UNCUT": "1"})
        self.assertRegex(out, "MIG +doubtful GPU 1 is in MIG mode and has no instance")

    def test_doctor_tells_what_the_driver_says(self):
        driver = {"LOCKSTEP_CUDA_MODULE": "/nowhere.so", "LOCKSTEP_NVML_LIBRARY": NVML}
        _, out, _ = self.launch("doctor", "-o", "json", env=driver)
        told = [(part["part"], part["state"]) for part in json.loads(out)["parts"]]
        for expected in (("driver", "ok"), ("place", "ok"), ("ECC", "ok"), ("ECC", "doubtful"),
                         ("NVLink", "ok"), ("NVLink", "doubtful"), ("processes", "ok"),
                         ("peers", "ok"), ("RDMA", "absent")):
            self.assertIn(expected, told)

    def test_workers_stay_near_their_gpus(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest("one CPU")
        driver = {"LOCKSTEP_CUDA_MODULE": MODULE, "LOCKSTEP_NVML_LIBRARY": NVML}
        near = dict(driver, LOCKSTEP_FAKE_NVML_CPUS=hex(1 << cpus[1]))
        text = job().replace("nproc_per_node: 2", "nproc_per_node: 1")
        path = self.write("job.yaml", text)
        code, out, err = self.launch("-o", "json", path, env=near)
        self.assertEqual(code, 0, err)
        self.assertIn(f"runs on CPUs {cpus[1]}, which are near its GPU", err)
        whole = json.loads(out.strip().splitlines()[-1])["model"]["sha256"]
        code, out, err = self.launch("-o", "json", "--set", "resources.bind_cpus=never", path, env=near)
        self.assertEqual(code, 0, err)
        self.assertNotIn("near its GPU", err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], whole)
        other = next(cpu for cpu in range(64) if cpu not in cpus)
        far = dict(driver, LOCKSTEP_FAKE_NVML_CPUS=hex(1 << other))
        code, out, err = self.launch("-o", "json", path, env=far)
        self.assertEqual(code, 0, err)
        self.assertIn(f"not bound to the CPUs near its GPU ({other}): it may run on", err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["model"]["sha256"], whole)


if __name__ == "__main__":
    if not MODULE or not NCCL["LOCKSTEP_NCCL_LIBRARY"] or not NVML or not CUDNN["LOCKSTEP_CUDNN_LIBRARY"]:
        raise SystemExit("LOCKSTEP_EMULATED_MODULE, _FAKE_NCCL, _FAKE_NVML or _FAKE_CUDNN names no module")
    unittest.main()
