#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and memory of the models on a GPU, beside PyTorch eager and compiled.

One command gives all numbers and can be cut off at any time: each measurement is appended to the file
of results as soon as it is there, and one that the file has already is not made again. Ours and the
peer's runs alternate on the same GPU. Both do the same work on made data that lies on the device; a
step is forward, backward and update. MFU counts 6 N + 6 L C T operations for each token of a causal
model and 6 N + 12 L C T of another (N parameters, L layers of width C, T tokens of a sample) against
the dense bf16 peak of the GPU.

    bench/gpu.py [--out FILE] [--budget SECONDS] [NAME..]

What the file has of another bundle or another GPU is left there and measured anew.
A measurement that went wrong is a result, too, with its reason; --retry makes it again. It has gone wrong as well where
the loss is not finite. Failures come last in the table.

It runs from a checkout (./dev build cuda first) or from a bundle, with a Python that has PyTorch:
$LOCKSTEP_PEER_PYTHON, or the one that runs this script.
"""
import argparse
import glob
import json
import math
import os
import re
import site
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Dense bf16 operations a second, by a part of the device's name.
PEAKS = (("H200", 989.5e12), ("H100 PCIe", 756e12), ("H100", 989.5e12), ("B200", 2250e12), ("A100", 312e12),
         ("L40S", 362e12), ("RTX 4090", 165e12))
# name -> (layers, width, tokens of a sample, causal)
SIZES = {"gpt2": (12, 768, 1024, True), "gpt2-xl": (48, 1600, 1024, True),
         "bert-large-128": (24, 1024, 128, False), "bert-large-512": (24, 1024, 512, False)}


class Case:
    """One row of the results: a model in a precision, with the batches to try, the largest first."""

    def __init__(self, name, model, batches, precision="bf16", inference=False, pure=False, steps=20,
                 peers=("", "--compile")):
        self.name, self.model, self.batches, self.precision = name, model, batches, precision
        self.inference, self.pure, self.steps, self.peers = inference, pure, steps, peers


# The most wanted first.
CASES = [
    Case("gpt2", "gpt2", (64, 32, 16)),
    Case("resnet50-infer", "resnet50", (100,), inference=True, steps=50),
    Case("resnet50", "resnet50", (256, 128)),
    Case("bert-large-128", "bert-large-128", (256, 128, 64)),
    Case("bert-large-512", "bert-large-512", (64, 32, 16)),
    Case("gpt2-xl", "gpt2-xl", (16, 8, 4), steps=8),
    Case("gpt2-pure", "gpt2", (64, 32, 16), pure=True, peers=("",)),
    # Mixed precision against fp32, at one batch.
    Case("gpt2-fp32", "gpt2", (16,), precision="fp32", peers=("",), steps=8),
    Case("gpt2-tf32", "gpt2", (16,), precision="tf32", peers=("",), steps=8),
    Case("gpt2-amp", "gpt2", (16,), peers=("",)),
    # The share of launches is largest where the device has the least to do.
    Case("gpt2-one", "gpt2", (1,), peers=("", "--compile"), steps=50),
]


def say(text):
    print(text, file=sys.stderr, flush=True)


def find_program():
    """bench_device of the bundle that this script lies in, or of the checkout."""
    for path in (f"{HERE}/bench_device", f"{HERE}/../build/cuda/bin/bench_device"):
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    sys.exit("gpu.py: no bench_device: run ./dev build cuda bench_device, or use a bundle")


def package_folders():
    """Where the wheels of this interpreter and of the peer's may lie."""
    folders = site.getsitepackages() + [site.getusersitepackages()]
    peer = os.environ.get("LOCKSTEP_PEER_PYTHON")
    if peer:
        folders += sorted(glob.glob(os.path.join(os.path.dirname(peer), "..", "lib", "python3*", "site-packages")))
    return folders


def environment(program):
    """Where our program finds its libraries and CUDA's."""
    env = dict(os.environ)
    folder = os.path.dirname(program)
    bundled = os.path.join(folder, "..", "lib")
    paths = [bundled] if os.path.isdir(bundled) else []
    wheels = [path for where in package_folders()
              for path in glob.glob(f"{where}/nvidia/*/lib")]
    for path in wheels + ["/usr/local/cuda/lib64"]:
        if glob.glob(f"{path}/libcublasLt.so.1[3-9]"):
            env.setdefault("LOCKSTEP_CUDA_LIBRARIES", path)
            paths.append(path)
            break
    # Of this interpreter or the peer's: without cuDNN a benchmark would show other engines.
    for variable, pattern in (("LOCKSTEP_CUDNN_LIBRARY", "cudnn/lib/libcudnn.so.9"),
                              ("LOCKSTEP_NCCL_LIBRARY", "nccl/lib/libnccl.so.2")):
        for path in [path for where in package_folders() for path in glob.glob(f"{where}/nvidia/{pattern}")][:1]:
            env.setdefault(variable, path)
    for module in (f"{folder}/liblockstep_cuda.so", f"{folder}/../bin/liblockstep_cuda.so"):
        if os.path.exists(module):
            env.setdefault("LOCKSTEP_CUDA_MODULE", os.path.abspath(module))
    inherited = env.get("LD_LIBRARY_PATH", "")
    env["LD_LIBRARY_PATH"] = ":".join(paths + [inherited]).strip(":")
    launcher, fallback = os.path.join(folder, "..", "bin", "launcher"), os.path.join(bundled, "fallback")
    # The C++ library that is found, of this machine or on the inherited path, is too old, or there is none.
    if os.path.isdir(fallback) and loader_error(launcher, env):
        env["LD_LIBRARY_PATH"] = ":".join(paths + [fallback, inherited]).strip(":")
    return env


def loader_error(program, env):
    """Why a program that can say its version does not start; empty when it does."""
    try:
        done = subprocess.run([program, "--version"], env=env, text=True, capture_output=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


def peer_python():
    return os.environ.get("LOCKSTEP_PEER_PYTHON", sys.executable)


def peer_environment():
    """As the peer's own user has it: PyTorch brings its libraries along, and must not find ours."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    ours = {os.path.realpath(path) for path in (f"{HERE}/../lib", f"{HERE}/../lib/fallback", f"{HERE}/../bin")}
    paths = [path for path in env.pop("LD_LIBRARY_PATH", "").split(":")
             if path and os.path.realpath(path) not in ours
             and not glob.glob(f"{path}/libcublasLt.so.*")]
    return {**env, "LD_LIBRARY_PATH": ":".join(paths)} if paths else env


# What torch.compile's kernels are launched by is C, which is compiled where they are. Prints what is not there.
COMPILE_LACKS = """
import os, shutil, sysconfig
compilers = [os.environ["CC"].split()[0]] if os.environ.get("CC") else ["gcc", "clang", "cc"]
scheme = sysconfig.get_default_scheme()
folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
lacks = [] if any(map(shutil.which, compilers)) else ["no C compiler (" + ", ".join(compilers) + ")"]
lacks += [] if os.path.exists(folder + "/Python.h") else ["no " + folder + "/Python.h"]
print(" and ".join(lacks))
"""


def compile_lacks():
    """Why torch.compile cannot work in the peer's Python; empty when nothing is missing, or it does not say."""
    try:
        done = subprocess.run([peer_python(), "-c", COMPILE_LACKS], env=peer_environment(), text=True, timeout=60,
                              capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lacks = done.stdout.strip()
    return f"torch.compile cannot work: {peer_python()} finds {lacks}" if done.returncode == 0 and lacks else ""


def peer_has_torch():
    try:
        return subprocess.run([peer_python(), "-c", "import torch"], env=peer_environment(), check=False, timeout=60,
                              capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def bundle_suffix():
    """Of the names of what is kept for one bundle's kernels alone; empty in a checkout."""
    name = bundle()
    return "" if name == "none" else "-" + re.sub("[^0-9A-Za-z]+", "-", name)


def tuning_file(results):
    return os.path.abspath(results) + ".algorithms" + bundle_suffix()


def bundle():
    """Which bundle this file lies in, by the commit that it was made of; "none" in a checkout."""
    try:
        with open(f"{HERE}/../commit", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return "none"


def is_of(row, own):
    """Whether a row of results is of the bundle and the GPU that `own` names."""
    return all(row.get(key) == value for key, value in own.items())


def first_gpu(program, env):
    """(UUID, name) of the GPU that our programs take: the first one that CUDA shows, of those of CUDA_VISIBLE_DEVICES,
    which nvidia-smi knows nothing of; ("", "unknown") without one."""
    result, _ = run([program, "--gpus"], env, 60)
    gpus = result.get("gpus") if result is not None else None
    return (gpus[0]["uuid"], gpus[0]["name"]) if gpus else ("", "unknown")


def run(command, env, timeout):
    """(result, error): the object on the command's last line, or why there is none."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=timeout, env=env)
    except subprocess.TimeoutExpired:
        return None, f"not done after {timeout:.0f} s"
    except OSError as error:
        return None, str(error)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        try:
            result = json.loads(lines[-1])
        except ValueError as error:
            return None, f"its last line is no JSON: {error}"
        loss = result.get("loss", 0)
        if loss is None or not math.isfinite(loss):  # nothing was trained in that time
            return None, "the loss is not finite"
        return result, None
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
    return None, f"exit code {done.returncode}: " + " | ".join(last)


class Results:
    """The file of results: one object for each line, in the order in which they were made. What was measured again counts
    as it came out last. With `own`, the bundle and the device of the measurements to come, `rows` has those of the same
    alone."""

    def __init__(self, path, retry, own=None):
        self.path, self.own, self.rows = path, own or {}, []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
            torn = lines and not lines[-1].endswith("\n")
            rows = [json.loads(line) for line in (lines[:-1] if torn else lines) if line.strip()]
            rows = list({(row["case"], row["side"], row.get("bundle"), row.get("device")): row for row in rows}.values())
            if retry:
                rows = [row for row in rows if "error" not in row or not is_of(row, self.own)]
            if retry or torn:  # from the file, too: who goes on after this one is cut off makes none a third time
                with open(path + ".new", "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
                os.replace(path + ".new", path)
            self.rows = [row for row in rows if is_of(row, self.own)]

    def find(self, case, side):
        for row in self.rows:
            if row["case"] == case and row["side"] == side:
                return row
        return None

    def add(self, row):
        row = {**row, **self.own}
        self.rows = [known for known in self.rows if (known["case"], known["side"]) != (row["case"], row["side"])] + [row]
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def commands(case, program, args):
    """(side, command without the batch) for ours and the peer's variants."""
    flags = ["--precision", case.precision, "--steps", str(case.steps)]
    flags += ["--inference"] if case.inference else []
    own = list(flags)
    if case.pure:
        own[1] = "pure_bf16"
    sides = [("ours", [program, case.model, *own, "--tuning", args.tuning])]
    python = peer_python()
    for variant in () if args.ours_only else case.peers:
        if variant == "--compile" and args.no_compile:
            continue
        side = "torch" + variant.replace("--", " ")
        sides.append((side, [python, f"{HERE}/peers/gpu_models.py", case.model, *flags, *variant.split(),
                             *(["--pure"] if case.pure else [])]))
    return sides


def with_rates(case, row, peak):
    """The row with its tokens a second and its share of the peak, where the model has them."""
    if case.model not in SIZES or "samples_per_second" not in row:
        return row
    row["tokens_per_second"] = row["samples_per_second"] * SIZES[case.model][2]
    if peak and mfu(case, row, peak):
        row["mfu"] = mfu(case, row, peak)
    return row


def measure(case, program, args, results, deadline):
    """All sides of a case at the largest batch that ours fits; False when the time is over."""
    batches = list(case.batches)
    for side, command in commands(case, program, args):
        if results.find(case.name, side):
            known = results.find(case.name, side)
            batches = [known["batch"]] if side == "ours" and "error" not in known else batches
            continue
        env = environment(program) if side == "ours" else peer_environment()
        for batch in batches:
            left = deadline - time.monotonic()
            if left < 20:
                return False
            result, error = run([*command, "--batch", str(batch)], env, min(left, args.timeout))
            if result is None and left < args.timeout and time.monotonic() >= deadline:
                return False  # cut off by the budget: this says nothing of the case
            row = {"case": case.name, "side": side, "batch": batch, "precision": case.precision}
            row.update(result if result is not None else {"error": error})
            row.update({"batch": batch, "device": args.device})
            if side == "ours" and env.get("LOCKSTEP_WARPGROUPS") == "0":
                row["warpgroups"] = 0
            if result is None and error.startswith("exit code 5") and batch != batches[-1]:
                say(f"{case.name} {side}: batch {batch} does not fit")
                continue
            results.add(with_rates(case, row, peak_of(args.device)))
            say(f"{case.name} {side} batch {batch}: "
                + (f"{result['samples_per_second']:,.1f} samples/s" if result else error))
            if side == "ours" and result is not None:
                batches = [batch]
            break
    return True


def peak_of(device):
    """Dense bf16 operations a second; None for a device that is not in the table."""
    return next((value for name, value in PEAKS if name in device), None)


def mfu(case, row, peak):
    """Model operations a second over the GPU's peak; None for models that are no transformers."""
    if case.model not in SIZES or "parameters" not in row:
        return None
    layers, width, tokens, causal = SIZES[case.model]
    each = 6 * row["parameters"] + (6 if causal else 12) * layers * width * tokens
    return row["samples_per_second"] * tokens * each / peak


def memory(row):
    """Bytes of the device at the peak; ours is what was allocated before the first step."""
    return row.get("device_bytes", row.get("peak_reserved_bytes"))


def failed_rows(results, args):
    """The measurements that went wrong, of the cases and sides that the call was for."""
    judged = "ours" if args.ours_only else args.judge
    return [row for row in results.rows if "error" in row and (not args.names or row["case"] in args.names)
            and judged in ("all", "ours" if row["side"] == "ours" else "peers")]


def table(results, device, failed):
    """The results as lines for people; the last lines are those of `failed`."""
    peak = peak_of(device)
    lines, last = [f"{device}, bf16 peak {peak / 1e12:.0f} TFLOP/s" if peak else device], []
    for case in CASES:
        rows = [row for row in results.rows if row["case"] == case.name]
        ours = next((row for row in rows if row["side"] == "ours" and "error" not in row), None)
        for row in rows:
            head = f"{case.name:<16} {row['side']:<14} batch {row['batch']:<4}"
            if "error" in row:
                (last if row in failed else lines).append(f"{head} {row['error']}")
                continue
            text = f"{head} {row['samples_per_second']:>11,.1f} samples/s {row['step_s'] * 1e3:>9.2f} ms"
            if "tokens_per_second" in row:
                text += f" {row['tokens_per_second']:>12,.0f} tokens/s"
            if "mfu" in row:
                text += f" MFU {row['mfu']:6.1%}"
            if memory(row):
                text += f" {memory(row) / 2**30:6.1f} GiB"
            if row.get("warpgroups") == 0:
                text += " without wgmma"
            if row["side"] == "ours" and "idle_share" in row:
                text += f" idle {row['idle_share']:.2%}"
            if ours is not None and row is not ours and row["batch"] == ours["batch"]:
                text += f"   ours x {ours['samples_per_second'] / row['samples_per_second']:.2f}"
            lines.append(text)
    lines += [f"{row['side']} skipped: {row['skipped']}" for row in results.rows if "skipped" in row]
    return lines + last


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of cases; all without any")
    parser.add_argument("--out", default="gpu-bench.jsonl", help="the file of results")
    parser.add_argument("--tuning", default=None, help="the file of algorithms; beside --out")
    parser.add_argument("--budget", type=float, default=570, help="seconds after which nothing begins")
    parser.add_argument("--timeout", type=float, default=240, help="seconds of one measurement")
    parser.add_argument("--ours-only", action="store_true", help="leave the peer out")
    parser.add_argument("--retry", action="store_true", help="what failed before too")
    parser.add_argument("--strict", action="store_true",
                        help="exit code 3 while not all is measured, then 1 when a measurement failed")
    parser.add_argument("--judge", choices=("all", "ours", "peers"), default="all",
                        help="whose failures count with --strict")
    parser.add_argument("--report", action="store_true", help="only show what the file has")
    args = parser.parse_args()
    args.tuning = args.tuning or tuning_file(args.out)
    known = [case.name for case in CASES]
    for name in args.names:
        if name not in known:
            sys.exit(f"gpu.py: no case {name}; use {' '.join(known)}")
    done, deadline = True, time.monotonic() + args.budget
    if args.report:
        results = Results(args.out, args.retry)
        last = results.rows[-1] if results.rows else {}
        args.device = last.get("device", "unknown")
        results.rows = [row for row in results.rows if is_of(row, {key: last.get(key) for key in ("bundle", "device")})]
    else:
        program = find_program()
        args.device = first_gpu(program, environment(program))[1]
        results = Results(args.out, args.retry, {"bundle": bundle(), "device": args.device})
        args.no_compile = "" if args.ours_only else compile_lacks()
        results.rows = [row for row in results.rows if "skipped" not in row]
        if args.no_compile:
            results.add({"case": "", "side": "torch compile", "skipped": args.no_compile})
        for case in CASES:
            if args.names and case.name not in args.names:
                continue
            done = measure(case, program, args, results, deadline)
            if not done:
                break
    failed = failed_rows(results, args)
    print("\n".join(table(results, args.device, failed)), flush=True)
    if not done:
        say("the time is over: run it again for the rest")
    if args.strict:
        sys.exit(3 if not done else 1 if failed else 0)


if __name__ == "__main__":
    main()
