#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The GPU tests of a bundle (./dev bundle), in an order in which an hour on a GPU tells most:

A  doctor, what cuBLASLt has, each op and each test of the executor by itself, equal bits;
B  our speed, with profiles;   C  the same beside PyTorch;   D  the largest model beside PyTorch,
the kernels under compute-sanitizer and Nsight Compute where these are installed.

    run-gpu-tests [--out FOLDER] [--budget SECONDS] [--phases ABCD] [--retry]

Each check is a process of its own with a limit of its own; as soon as it ends, FOLDER/results.jsonl has
a line for it: passed, failed, crashed (by a signal), hung (beyond its limit), skipped, or cut (the budget,
or a signal to this command). What the file has of this bundle and
this GPU is not run again, but for what was cut; --retry runs what went wrong again. FOLDER keeps the last output of each. What the doctor misses is
reported and stops nothing. Exit codes: 0; 1 something went wrong; 3 not all was run: run it again; 77
there is no GPU, all is skipped.
"""
import argparse
import contextlib
import ctypes
import functools
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))  # as /proc names the programs
sys.path.insert(0, os.path.join(HERE, "bench"))
import gpu  # noqa: E402  (its environment is the programs')

WRONG = ("failed", "crashed", "hung")
NCCL_SHARES_GPUS = (2, 30)  # the first NCCL whose ranks may share a GPU
AT_ONCE = 8  # ops that are tested at once
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
SKIPPED = "[  SKIPPED ]"  # as GoogleTest marks a test that skips itself
COMPILED = "speed: peers, compiled"
LAUNCHER = os.path.join(HERE, "bin", "launcher")
OPS = os.path.join(HERE, "tests", "conformance_cuda_ops_test")
EXECUTOR = os.path.join(HERE, "tests", "engine_cuda_executor_test")
BENCH = os.path.join(HERE, "bench", "bench_device")
KERNELS = "*DeviceKernelAgreesWithFloat64*"
PROFILED = ("attention_backward", "batch_norm", "conv2d_backward_weight")  # ops, by Nsight Compute


class Check:
    """A command with its limit; without a command the reason why it is skipped."""

    def __init__(self, phase, name, command, limit=120, reason="", informs=False, refusal=("", "")):
        self.phase, self.name, self.command, self.limit = phase, name, command, limit
        self.reason, self.informs = reason, informs
        self.refusal = refusal  # what its output has where this host does not let it run, and what that means
        self.process, self.start, self.end, self.killed = None, 0.0, 0.0, ""

    def log(self, out):
        return os.path.join(out, re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name) + ".log")


# ---- what runs in a process of its own: run-gpu-tests --check NAME FOLDER ----

def job(name, work, gpus, text):
    path = os.path.join(work, name + ".yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"name: {name}\n{text}")
    os.environ["LOCKSTEP_GPUS"] = ",".join([first_gpu()] * gpus)
    return path


def first_gpu():
    """The UUID of the GPU that all checks are on: the first one that CUDA shows."""
    return gpu.first_gpu(BENCH, os.environ)[0] or sys.exit("CUDA shows no GPU")


def memory_used(uuid):
    """MiB of the GPU's memory; None where the driver's command does not say, as of an instance of a GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-i", uuid, "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              text=True, capture_output=True, timeout=60, check=False)
        return int(done.stdout.split()[0]) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def sha(work, label, *args):
    """The hash of the weights that a run leaves; empty when it fails."""
    done = subprocess.run([LAUNCHER, *args, "-o", "json"], cwd=work, text=True, stdout=subprocess.PIPE, check=False)
    found = re.search(r'"sha256":"([0-9a-f]+)"', (done.stdout.strip().splitlines() or [""])[-1])
    print(f"{label:<24} {found.group(1) if found else 'exit code ' + str(done.returncode)}", flush=True)
    return found.group(1) if found else ""


BITS = """resources: {nproc_per_node: 2, device: cuda}
train:
  model: {mlp: {hidden: [256, 256]}}
  data: {synthetic: {train_samples: 4000, test_samples: 400, features: 100, classes: 10}}
  global_batch: 128
  shards: 4
  steps: 60
  optimizer: {adamw: {lr: 0.001}}
  precision: bf16
  seed: 1
"""
LOOKS = 6  # at the memory, the fewest that say something
SOAK = """resources: {nproc_per_node: 1, device: cuda}
train:
  model: {gpt: {layers: 8, heads: 8, width: 512, vocab: 320}}
  data: {text: {path: text, length: 512}}
  global_batch: 32
  shards: 1
  steps: 3000
  optimizer: {adamw: {lr: 0.0003}}
  clip_norm: 1
  precision: bf16
  eval: {every: never}
  seed: 1
"""


def same_bits(work, nccl):
    """Two workers share the GPU, and reduce by NCCL or not as `nccl.use: NCCL` has it."""
    path = job("bits", work, 2, BITS + f"nccl: {{use: {nccl}}}\n")
    one = sha(work, "1 worker", "--nproc-per-node=1", path)
    two = sha(work, "2 workers", "--nproc-per-node=2", path)
    killed = sha(work, "1 of 2 killed", "chaos", "--nproc-per-node=2", "--kill", "rank:1@step:20", path)
    return one != "" and one == two == killed


def moments_elsewhere(work, nccl):
    """Where the moments lie changes no bit."""
    path = job("moments", work, 4, BITS + f"nccl: {{use: {nccl}}}\n")
    one = sha(work, "whole", "--nproc-per-node=1", path)
    host = sha(work, "on the host", "--nproc-per-node=1", "--set", "resources.offload_optimizer=true", path)
    parts = sha(work, "in parts, one killed", "chaos", "--nproc-per-node=4", "--set", "train.zero_stage=1",
                "--kill", "rank:1@step:20/begun", path)
    return one != "" and one == host == parts


def recordings(work):
    """How a step is recorded changes no bit."""
    path = job("recordings", work, 1, BITS)
    single = ("--nproc-per-node=1", "--set", "train.shards=1")
    one = sha(work, "one recording", *single, path)
    each = sha(work, "many", *single, "--set", "train.passes.step_graph=false", path)
    step = sha(work, "with the update", *single, "--set", "train.passes.whole_step_graph=true", path)
    return one != "" and one == each == step


def resident_kib():
    """Of the newest worker of this bundle; None without one."""
    worker, newest = os.path.join(HERE, "bin", "worker"), None
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if os.readlink(f"/proc/{pid}/exe") == worker:
                with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                    newest = int(re.search(r"VmRSS:\s*(\d+)", file.read()).group(1))
        except (OSError, AttributeError):
            continue
    return newest


def has_step(work):
    """Whether a run in the folder has committed a step: what is allocated before, or tuned, is no leak."""
    return any(os.path.getsize(path) > 0 for path in glob.glob(f"{work}/runs/*/metrics.jsonl"))


def soak(work):
    """3,000 steps of a small GPT: from the first one on the memory of the GPU and of the worker is looked at, and is flat
    after a third of the looks."""
    with open(os.path.join(work, "text"), "w", encoding="utf-8") as file:
        file.write(os.urandom(400000).hex(" "))
    path = job("soak", work, 1, SOAK.replace("path: text", f"path: {work}/text"))
    uuid, looks = first_gpu(), []
    with subprocess.Popen([LAUNCHER, "--nproc-per-node=1", "-o", "json", path], cwd=work) as run:
        while run.poll() is None:
            used, resident = memory_used(uuid), resident_kib()
            if resident is not None and has_step(work):
                looks.append((used, resident))
            time.sleep(1)
        if run.returncode != 0:
            return False
    if len(looks) < LOOKS:
        print(f"no leak was seen and none ruled out: {len(looks)} looks at the memory between the first step and the end "
              f"of the run, of {LOOKS} at least: this GPU wants more steps in SOAK (run-gpu-tests)")
        return False
    flat = looks[len(looks) // 3:-1]  # at the last look the worker may be on its way out
    device = [used for used, _ in flat]
    print(f"worker {flat[0][1]} to {flat[-1][1]} KiB, {len(looks)} looks")
    if flat[-1][1] - flat[0][1] > 16384:
        return False
    if None in device:
        print(f"{SKIPPED} nvidia-smi does not say how much memory of {uuid} is used: a leak on the GPU is not ruled out")
        return True
    print(f"GPU memory {min(device)} to {max(device)} MiB")
    return max(device) - min(device) <= 2


WAYS = {"by the host": "never", "by NCCL": "always"}  # in which gradients are reduced: nccl.use
BY_NAME = {**{f"{name} {way}": functools.partial(check, nccl=use) for way, use in WAYS.items()
              for name, check in (("same-bits", same_bits), ("moments-elsewhere", moments_elsewhere))},
           "recordings": recordings, "soak": soak}


# ---- the list of checks ----

def tests_of(phase, title, program, pattern, env):
    """A check for each test of a gtest program; one that cannot list its tests is a failed check."""
    name = f"{title}: list"
    try:
        done = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], text=True, timeout=60,
                              capture_output=True, stdin=subprocess.DEVNULL, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Check(phase, name, ["sh", "-c", 'echo "$0" >&2; exit 1', str(error)])]
    suite, found = "", []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        word = line.split("#")[0].rstrip()
        if not word.startswith(" "):
            suite = word if word.endswith(".") else ""
        elif suite:
            found.append(suite + word.strip())
    if not found:
        return [Check(phase, name, [program, "--gtest_list_tests", f"--gtest_filter={pattern}"]),
                Check(phase, title, None, reason="its tests cannot be listed")]
    return [Check(phase, f"{title}: {test}", [program, f"--gtest_filter={test}"]) for test in found]


def speed(phase, name, out, retry, *args, limit=560):
    command = [sys.executable, os.path.join(HERE, "bench", "gpu.py"), "--strict", "--out",
               os.path.join(out, "gpu-bench.jsonl"), "--budget", str(limit - 20), *(["--retry"] if retry else []), *args]
    return Check(phase, name, command, limit)


def all_checks(out, env, phases, retry):
    """Those of the phases, and the doctor, in the order in which they run."""
    own = [sys.executable, os.path.abspath(__file__), "--check"]
    checks = [Check("A", "doctor", [LAUNCHER, "doctor"], informs=True)]
    # What cuBLASLt has for the products of the large models: a line of JSON each, in its log.
    checks.append(Check("A", "probe", [BENCH, "--probe"]))
    checks += tests_of("A", "op", OPS, "*Device*", env)
    checks += tests_of("A", "executor", EXECUTOR, "*", env)
    checks += [Check("A", name, [*own, name, out], 300 if name == "soak" else 120) for name in BY_NAME]
    checks.append(speed("B", "speed: ours", out, retry, "--ours-only"))
    tuning = gpu.tuning_file(os.path.join(out, "gpu-bench.jsonl"))
    for model, batch in (("gpt2", 64), ("resnet50", 256), ("bert-large-512", 64)):
        command = [BENCH, model, "--batch", str(batch), "--steps", "3", "--tuning", tuning, "--profile"]
        checks.append(Check("B", f"profile: {model}", command))
    # The last one's attention, with dropout, is our own kernels'.
    checks.append(Check("B", f"profile: {model} without wgmma", ["env", "LOCKSTEP_WARPGROUPS=0", *command]))
    small = [case.name for case in gpu.CASES if case.name != "gpt2-xl"]
    torch = bool({"C", "D"} & set(phases)) and gpu.peer_has_torch()
    for phase, name, cases in (("C", "speed: peers", small), ("D", "speed: peers, gpt2-xl", ["gpt2-xl"])):
        checks.append(speed(phase, name, out, retry, "--judge", "peers", *cases) if torch else
                      Check(phase, name, None, reason=f"{gpu.peer_python()} has no PyTorch"))
    lacks = gpu.compile_lacks() if torch else ""
    if lacks:
        checks.append(Check("C", COMPILED, None, reason=lacks))
    sanitizer = os.environ.get("LOCKSTEP_COMPUTE_SANITIZER", tool("compute-sanitizer"))
    for kind in ("memcheck", "racecheck", "synccheck"):
        # Our kernels alone, by their namespace; cuBLASLt asks the driver for what it may not have, which is no error.
        command = [sanitizer, "--tool", kind, "--kernel-regex", "kns=lockstep", "--report-api-errors", "no",
                   "--error-exitcode", "86", OPS, f"--gtest_filter={KERNELS}"]
        checks.append(Check("D", f"kernels under {kind}", command if sanitizer else None, 300,
                            "compute-sanitizer is not here"))
    ncu = tool("ncu")
    for op in PROFILED:
        # Each launch is repeated some 40 times. The report is a file; its details are in the log, too.
        command = [ncu, "--set", "full", "--clock-control", "none", "--launch-count", "20", "--page", "details", "-f",
                   "-o", os.path.join(out, f"ncu-{op}"), OPS, f"--gtest_filter=*DeviceHalfOperandsAreRoundedOnce/{op}"]
        checks.append(Check("D", f"ncu: {op}", command if ncu else None, 300, "Nsight Compute is not here",
                            refusal=("ERR_NVGPUCTRPERM", "the driver lets root alone read the GPU's counters")))
    return [check for check in checks if check.phase in phases or check.name == "doctor"]


def tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin") or ""


# ---- running them ----

def say(text):
    """Prints a line for who watches. Nobody may be there any more (`| head`): what counts is in results.jsonl."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def at_start():
    """A check ends with this command, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Runner:
    """Runs checks, and keeps results.jsonl, whose lines are whole or of no account."""

    def __init__(self, out, env, deadline, retry, limit):
        self.out, self.env, self.deadline, self.limit = out, env, deadline, limit
        self.path = os.path.join(out, "results.jsonl")
        self.rows, self.running, self.stopped = {}, [], False
        self.uuid, self.device = gpu.first_gpu(BENCH, env)
        self.no_warpgroups = "LOCKSTEP_WARPGROUPS=0 was set" if env.get("LOCKSTEP_WARPGROUPS") == "0" else ""
        self.own = {"device": self.device, "bundle": gpu.bundle()}
        torn = False
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            torn = text != "" and not text.endswith("\n")
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                    if gpu.is_of(row, self.own):
                        self.rows[row["check"]] = row
                except (ValueError, KeyError, TypeError):
                    continue
        again = ("cut", "skipped") + (WRONG if retry else ())
        # The doctor is asked anew: what it says decides what can run.
        self.known = {name for name, row in self.rows.items() if row["state"] not in again and name != "doctor"}
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if torn:
            os.write(self.file, b"\n")

    def add(self, check, state, seconds=0.0, reason="", code=None):
        row = {"check": check.name, "phase": check.phase, "state": state, "seconds": round(seconds, 1),
               **self.own, "day": time.strftime("%Y-%m-%d", time.gmtime())}
        row.update({"reason": reason} if reason else {})
        row.update({"warpgroups": 0, "no_warpgroups": self.no_warpgroups} if self.no_warpgroups else {})
        row.update({"exit_code": code} if code is not None else {})
        self.rows[check.name] = row
        os.write(self.file, (json.dumps(row) + "\n").encode())
        os.fsync(self.file)
        say(f"{state:<8} {seconds:6.1f} s  {check.name}" + (f": {reason}" if reason else ""))

    def start(self, check):
        left = self.deadline - time.monotonic()
        if check.command is None:
            self.add(check, "skipped", reason=check.reason)
            return
        if self.stopped or left < 1:
            self.add(check, "cut", reason="not begun")
            return
        # A benchmark that was cut off while it repeated what had failed goes on behind that.
        fresh = self.rows.get(check.name, {}).get("state") not in WRONG
        command = [word for word in check.command if not (fresh and word == "--retry")]
        with open(check.log(self.out), "wb") as log:
            try:
                check.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                 env=self.env, start_new_session=True, preexec_fn=at_start)
            except OSError as error:
                self.add(check, "failed", reason=str(error))
                return
        check.start = time.monotonic()
        check.end = check.start + min(check.limit, self.limit)
        self.running.append(check)

    def kill(self, check, why, now):
        """SIGTERM to its group, SIGKILL when it does not end."""
        strong = check.killed != ""
        check.killed, check.end = check.killed or why, now + GRACE
        try:
            os.killpg(check.process.pid, signal.SIGKILL if strong else signal.SIGTERM)
        except ProcessLookupError:
            pass

    def look(self):
        """Reaps what has ended and ends what is beyond its time."""
        for check in list(self.running):
            now = time.monotonic()
            if check.process.poll() is not None:
                try:
                    os.killpg(check.process.pid, signal.SIGKILL)  # what it left behind
                except ProcessLookupError:
                    pass
                self.running.remove(check)
                self.finish(check, now - check.start)
            elif check.killed == "" and (self.stopped or now >= self.deadline):
                self.kill(check, "cut", now)
            elif now >= check.end:
                self.kill(check, "hung", now)

    def finish(self, check, seconds):
        code = check.process.returncode
        with open(check.log(self.out), encoding="utf-8", errors="replace") as file:
            text = file.read()
        last = (text.strip().splitlines() or ["no output"])[-1][-300:]
        if check.killed:
            reason = f"not done after {seconds:.0f} s" if check.killed == "hung" else "cut off while it ran"
            self.add(check, check.killed, seconds, reason)
        elif check.refusal[0] and check.refusal[0] in text:
            self.add(check, "skipped", seconds, f"{check.refusal[1]} ({check.refusal[0]})")
        elif code < 0:
            self.add(check, "crashed", seconds, f"{signal.Signals(-code).name}: {last}", code)
        elif code != 0 and check.informs:
            self.add(check, "passed", seconds, f"exit code {code}: {last}", code)
        elif code != 0:
            self.add(check, "cut" if code == 3 and check.name.startswith("speed") else "failed", seconds, last, code)
        elif SKIPPED in text and "[       OK ]" not in text:
            self.add(check, "skipped", seconds, "it skipped itself: its log says why")
        else:
            self.add(check, "passed", seconds)

    def run(self, checks):
        """Ops several at a time, all else alone."""
        for check in checks:
            if check.name in self.known:
                continue
            parallel = check.name.startswith(("op:", "executor:"))
            while self.running and not (parallel and len(self.running) < AT_ONCE
                                        and self.running[0].name.startswith(("op:", "executor:"))):
                self.look()
                time.sleep(0.02)
            self.start(check)
        while self.running:
            self.look()
            time.sleep(0.02)


def has_gpu(runner):
    """Whether CUDA or the driver lists one or the doctor can use one; a doctor that hangs says nothing."""
    doctor = runner.rows["doctor"]
    if runner.uuid or doctor["state"] == "passed" and "exit_code" not in doctor:
        return True
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=60, text=True,
                              check=False).stdout.startswith("GPU")
    except (OSError, subprocess.TimeoutExpired):
        return False


def without_nccl(log, uuid):
    """Why no two workers can reduce by NCCL on the GPU, by the doctor's words; empty when they can."""
    if uuid.startswith("MIG-"):
        return "NCCL does not join instances of GPUs (MIG)"
    text = ""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        text = file.read()
    told = re.search(r"^NCCL +(\w+) +(.*)", text, re.MULTILINE)
    version = re.match(r"NCCL (\d+)\.(\d+)", told.group(2)) if told and told.group(1) == "ok" else None
    if version is None:
        return told.group(2) if told else "the doctor does not say which NCCL is here"
    if tuple(map(int, version.groups())) < NCCL_SHARES_GPUS:
        return f"{version.group()} gives a GPU to no two workers: that wants 2.30 or newer"
    return ""


def without_warpgroups(state, log, runner):
    """Where the doctor says that attention's kernels of sm_90a end the GPU's work, or hangs, perhaps at a barrier of
    theirs, all goes on without them. Who has set the variable has decided."""
    if "LOCKSTEP_WARPGROUPS" in runner.env:
        return
    reason = "the doctor hung" if state == "hung" else ""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        if "LOCKSTEP_WARPGROUPS=0" in file.read():
            reason = "doctor.log says why"
    if reason:
        say(f"LOCKSTEP_WARPGROUPS=0 from here on: {reason}")
        runner.env["LOCKSTEP_WARPGROUPS"], runner.no_warpgroups = "0", reason


def run_all(args):
    out = os.path.abspath(args.out)
    os.makedirs(out, exist_ok=True)
    env = gpu.environment(BENCH)
    # Tests take the GPU or fail; what workers tune is kept with the results, HOME or not.
    env.update({"LOCKSTEP_TEST_GPU": "1", "XDG_CACHE_HOME": os.path.join(out, "cache" + gpu.bundle_suffix())})
    error = gpu.loader_error(LAUNCHER, env)
    if error:
        say(f"the programs do not start here: {error}")
        return 1
    runner = Runner(out, env, time.monotonic() + args.budget, args.retry, args.limit)

    def stop(*_):
        runner.stopped = True
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    checks = all_checks(out, env, args.phases, args.retry)
    if runner.rows.get(COMPILED, {}).get("state") == "skipped" and all(check.name != COMPILED for check in checks):
        runner.known -= {check.name for check in checks if check.name.startswith("speed: peers")}
    runner.run(checks[:1])
    without_warpgroups(runner.rows["doctor"]["state"], checks[0].log(out), runner)
    cut = runner.rows["doctor"]["state"] == "cut"
    no_nccl = "" if cut else without_nccl(checks[0].log(out), runner.uuid)
    for check in checks if no_nccl else ():
        if check.name.endswith(" by NCCL"):
            check.command, check.reason = None, no_nccl
    usable = cut or has_gpu(runner)
    if not usable:
        for check in checks[1:]:
            check.command, check.reason = None, "there is no GPU"
    runner.run(checks[1:])
    states = [runner.rows[check.name]["state"] for check in checks]
    counts = {state: states.count(state) for state in ("passed", *WRONG, "skipped", "cut")}
    say(", ".join(f"{count} {state}" for state, count in counts.items()) + f"; {runner.path}")
    if not usable:
        return 77
    return 1 if any(counts[state] for state in WRONG) else 3 if counts["cut"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gpu-tests", help="the folder of results and logs")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which all is cut off")
    parser.add_argument("--limit", type=float, default=float("inf"), help="most seconds of any check")
    parser.add_argument("--phases", default="ABCD", help="those to run")
    parser.add_argument("--retry", action="store_true", help="what went wrong before too")
    parser.add_argument("--check", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check is None:
        sys.exit(run_all(args))
    work = os.path.join(args.check[1], args.check[0].replace(" ", "-"))
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    sys.exit(0 if BY_NAME[args.check[0]](work) else 1)


if __name__ == "__main__":
    main()
