# SPDX-License-Identifier: Apache-2.0
"""Jobs whose work is a command: torchrun's contract, restarts, ends, and that nothing is left behind."""

import json
import os
import re
import signal
import unittest

import harness
import nodes
from harness import wait_until

# Rank 0 listens where the contract says; everybody says who it is, and hears how many came.
MEET = """
import json, os, socket, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
         "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "MASTER_PORT"]
place = {name: int(os.environ[name]) for name in names}
rank, world = place["RANK"], place["WORLD_SIZE"]
at = (os.environ["MASTER_ADDR"], place["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(at)
    peers = [server.accept()[0] for _ in range(world - 1)]
    come = sorted([0] + [int(peer.recv(16)) for peer in peers])
    for peer in peers:
        peer.sendall(b"%d" % len(come))
        peer.close()
    assert come == list(range(world)), come
else:
    import time
    while True:
        try:
            peer = socket.create_connection(at, timeout=120)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    peer.sendall(b"%d" % rank)
    assert peer.recv(16) == b"%d" % world
print("PLACE", json.dumps(dict(place, argv=sys.argv[1:], omp=os.environ.get("OMP_NUM_THREADS"))))
"""

# Waits for its end, with a child in a session of its own; says when it is there.
STAY = """
import os, signal, subprocess, sys, time
def leave(*_):
    time.sleep(float(os.environ.get("SAVES", 0)))
    open("asked-%s" % os.environ["RANK"], "w").close()
    sys.exit(0)
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, leave)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
open("there-%s-%s" % (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]), "w").write(str(os.getpid()))
while True:
    time.sleep(0.05)
"""

# Rank 1 fails in the first attempt as the argument says, the others stay.
FAIL = """
import json, os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open("ports", "a") as file:
    if rank == 0:
        file.write(os.environ["MASTER_PORT"] + "\\n")
if attempt == 0 and rank == 1:
    while not os.path.getsize("ports"):  # it fails when both have begun
        time.sleep(0.01)
    if sys.argv[1] == "record":
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "ValueError: a bad day", "extraInfo": {}}}, file)
    if sys.argv[1] == "segv":
        os.kill(os.getpid(), 11)
    print("the last words", file=sys.stderr)
    sys.exit(7)
if attempt == 0:
    time.sleep(1000)
"""


def text_of(path):
    """The text of a file; empty while it is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Command(harness.ProgramTest):
    def setUp(self):
        super().setUp()
        for name, text in (("meet.py", MEET), ("stay.py", STAY), ("fail.py", FAIL)):
            self.write(name, text)

    def result(self, *arguments, expected=0, **options):
        code, out, err = self.launch("-o", "json", *arguments, **options)
        self.assertEqual(code, expected, out + err)
        self.assertEqual([p.argv for p in self.processes()], [], "nothing is left")
        return json.loads(out.strip().splitlines()[-1]), out + err

    def places(self, text):
        return sorted((json.loads(line.split("PLACE ", 1)[1]) for line in text.splitlines() if "PLACE " in line),
                      key=lambda place: place["RANK"])

    def there(self, rank, attempt=0):
        path = os.path.join(self.dir, f"there-{rank}-{attempt}")
        return wait_until(lambda: text_of(path), 60, path)

    def test_ranks_meet(self):
        result, text = self.result("--nproc-per-node=2", "--", "python3", "meet.py", "a b", "--flag")
        self.assertEqual(result["state"], "SUCCEEDED")
        self.assertEqual(result["name"], "meet")
        places = self.places(text)
        self.assertEqual([p["RANK"] for p in places], [0, 1])
        self.assertEqual([p["LOCAL_RANK"] for p in places], [0, 1])
        for place in places:
            self.assertEqual(place["argv"], ["a b", "--flag"])
            self.assertEqual(place["omp"], "1")
            self.assertEqual(place["TORCHELASTIC_MAX_RESTARTS"], 0)
        for rank in range(2):
            with open(os.path.join(self.dir, result["run_dir"], "logs", f"{rank}.log"), encoding="utf-8") as log:
                self.assertIn(f'"RANK": {rank}', log.read())

    def test_as_torchrun(self):
        link = os.path.join(self.dir, "torchrun")
        os.symlink(os.path.join(harness.BIN, "launcher"), link)
        child = self.start(link, "--standalone", "--nproc_per_node", "2", "--tee", "3", "--rdzv-id=x", "meet.py",
                           "--nproc-per-node=9", env={"PET_MAX_RESTARTS": "4"})
        code, out, err = self.finish(child)
        self.assertEqual(code, 0, out + err)
        places = self.places(out + err)
        self.assertEqual([p["argv"] for p in places], [["--nproc-per-node=9"]] * 2)
        self.assertEqual(places[0]["TORCHELASTIC_MAX_RESTARTS"], 4)

    def test_signals_that_its_parent_ignores_or_blocks(self):
        def parent():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM, signal.SIGINT])
        result, _ = self.result("--nproc-per-node=2", "--", "python3", "meet.py", preexec_fn=parent)
        self.assertEqual(result["state"], "SUCCEEDED")
        code, out, err = self.launch("plan", self.write("job.yaml", harness.synthetic_job()), preexec_fn=parent)
        self.assertEqual(code, 0, out + err)

    def test_the_same_command_on_two_hosts(self):
        port = harness.free_port()
        line = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                "--set=secrets={LOCKSTEP_KEY: }"]
        # The secret comes with the job from the first host.
        token = {"LOCKSTEP_TOKEN": "a-token-for-this-test-alone"}
        guest = self.start("launcher", *line, "--node-rank=1", "--log-dir=guest", "meet.py", env=token)
        code, out, err = self.launch(*line, "meet.py", env=dict(token, LOCKSTEP_KEY="x"))
        self.assertEqual(code, 0, out + err)
        self.assertEqual([p["GROUP_RANK"] for p in self.places(out + err)], [0, 1])
        self.assertEqual(self.finish(guest)[0], 0)

    def test_the_first_failure_ends_all(self):
        result, _ = self.result("--nproc-per-node=2", "--", "python3", "fail.py", "record", expected=7)
        self.assertEqual(result["state"], "FAILED")
        fault = result["faults"][0]
        self.assertEqual((fault["rank"], fault["exit_code"]), (1, 7))
        self.assertIn("ValueError: a bad day", fault["cause"])
        self.assertIn("the last words", fault["last_lines"])
        result, _ = self.result("--nproc-per-node=2", "--", "python3", "fail.py", "segv", expected=128 + 11)
        self.assertEqual(result["faults"][0]["signal"], 11)
        result, _ = self.result("--", "no-such-program", expected=127)
        self.assertIn("no-such-program", result["reason"])

    def test_a_failure_is_not_told_with_the_message_of_a_former_run(self):
        common = ("--nproc-per-node=2", "--run-dir=again", "--", "python3", "fail.py")
        result, _ = self.result(*common, "record", expected=7)
        self.assertIn("ValueError: a bad day", result["faults"][0]["cause"])
        os.remove(os.path.join(self.dir, "ports"))
        result, _ = self.result(*common, "exit", expected=7)
        self.assertNotIn("a bad day", result["faults"][0]["cause"])

    def test_restarts_on_another_port(self):
        result, _ = self.result("--nproc-per-node=2", "--max-restarts=2", "--", "python3", "fail.py", "exit")
        self.assertEqual((result["restarts"], result["generations"]), (1, 2))
        self.assertEqual(result["faults"][0]["rank"], 1)
        with open(os.path.join(self.dir, "ports"), encoding="ascii") as file:
            ports = file.read().split()
        self.assertEqual(len(ports), 2)
        self.assertNotEqual(ports[0], ports[1])

    def test_a_progress_bar_is_shown_now_and_then_and_its_log_has_all(self):
        self.write("bar.py", "import os, sys, time\ni = 0\nwhile not os.path.exists('enough'):\n"
                             "    i += 1\n    sys.stderr.write(f'\\r{i} done')\n    sys.stderr.flush()\n    time.sleep(0.05)\n"
                             "sys.stderr.write('\\rall done\\n')\n")
        with open(os.path.join(self.dir, "err"), "wb") as file:
            child = self.start("launcher", "-o", "json", "--", "python3", "bar.py", stderr=file)
        err = os.path.join(self.dir, "err")
        wait_until(lambda: " done\n" in text_of(err), 60, "a state is shown while it runs")
        self.write("enough", "")
        code, out, _ = self.finish(child)
        shown = [line.split("] ", 1)[1] for line in text_of(err).splitlines() if "done" in line]
        self.assertEqual((code, shown[-1]), (0, "all done"))
        self.assertTrue(all(re.fullmatch(r"\d+ done", line) for line in shown[:-1]), shown)
        with open(os.path.join(self.dir, json.loads(out)["run_dir"], "logs/0.log"), "rb") as log:
            states = log.read().split(b"\r")
        self.assertEqual(states[1:], [b"%d done" % i for i in range(1, len(states) - 1)] + [b"all done\n"])

    def test_asked_to_stop(self):
        child = self.start("launcher", "--nproc-per-node=2", "--", "python3", "stay.py")
        for rank in range(2):
            self.there(rank)
        child.send_signal(signal.SIGINT)
        code, out, err = self.finish(child)
        self.assertEqual(code, 130, out + err)
        for rank in range(2):
            self.assertTrue(os.path.exists(os.path.join(self.dir, f"asked-{rank}")), out + err)
        self.assertEqual([p.argv for p in self.processes()], [])

    def test_what_a_shell_runs_has_its_grace(self):
        path = self.write("job.yaml", "run: python3 stay.py; true\nenv: {SAVES: 1}\n")
        child = self.start("launcher", path)
        self.there(0)
        child.send_signal(signal.SIGTERM)
        code, out, err = self.finish(child)
        self.assertEqual(code, 130, out + err)
        self.assertTrue(os.path.exists(os.path.join(self.dir, "asked-0")), out + err)
        self.assertEqual([p.argv for p in self.processes()], [])

    def test_killed_after_its_grace(self):
        path = self.write("job.yaml", "run: exec python3 stay.py\nenv: {STUBBORN: 1}\npreemption: {grace: 200ms}\n")
        child = self.start("launcher", path)
        self.there(0)
        child.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(child)[0], 130)
        self.assertEqual([p.argv for p in self.processes()], [])

    def test_nothing_outlives_the_launcher(self):
        for victim in ("launcher", "worker"):
            child = self.start("launcher", "--", "python3", "stay.py")
            self.there(0)
            os.remove(os.path.join(self.dir, "there-0-0"))
            # A process has no environment to be known by while it is being replaced by its program.
            wait_until(lambda: self.processes("sleep"), 20, "the script's child")
            self.assertEqual(len(self.processes("sleep")), 1)
            if victim == "launcher":
                child.kill()
            else:
                self.processes("worker")[0].kill()
            code = self.finish(child)[0]
            self.assertEqual(code, -9 if victim == "launcher" else 128 + 9)
            wait_until(lambda: not self.processes(), 20, f"all end after {victim}")


class CommandOnNodes(nodes.Nodes):
    def setUp(self):
        super().setUp()
        for name, text in (("meet.py", MEET), ("stay.py", STAY)):
            self.write(name, text)

    def ended(self, job):
        return wait_until(lambda: (s := self.describe(job)["status"])["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
                          and s, 120, "the job ends")

    def pid_of(self, rank, attempt):
        path = os.path.join(self.dir, f"there-{rank}-{attempt}")
        return wait_until(lambda: text_of(path), 60, path)

    def test_two_nodes(self):
        self.join("a", 2)
        self.join("b", 2)
        path = self.write("job.yaml", "run: [python3, meet.py]\nsetup: echo done >> setups\n"
                                      "resources: {nodes: 2, nproc_per_node: 2}\nlogs: {tee: none}\n")
        job = self.submit(path)
        status = self.ended(job)
        self.assertEqual(status["state"], "SUCCEEDED", status)
        with open(os.path.join(self.dir, "setups"), encoding="ascii") as file:
            self.assertEqual(file.read(), "done\n" * 2, "once on each node")
        places = []
        for rank in range(4):
            with open(os.path.join(self.dir, status["run_dir"], "logs", f"{rank}.log"), encoding="utf-8") as log:
                places += [json.loads(line.split(" ", 1)[1]) for line in log if line.startswith("PLACE")]
        self.assertEqual([p["RANK"] for p in places], [0, 1, 2, 3])
        self.assertEqual([p["LOCAL_RANK"] for p in places], [0, 1, 0, 1])
        self.assertEqual([p["GROUP_RANK"] for p in places], [0, 0, 1, 1])

    def test_memory_is_counted_of_the_command_and_not_of_its_setup(self):
        self.join("a", 1)
        much = 256 << 20
        path = self.write("job.yaml", "run: [sh, -c, 'true']\n"
                                      f"setup: dd if=/dev/zero of=/dev/null bs={much} count=1\n")
        status = self.ended(self.submit(path))
        self.assertEqual(status["state"], "SUCCEEDED", status)
        (peak,) = status["result"]["peak_rss_bytes"]
        self.assertLess(int(peak), much)

    def test_a_setup_that_is_killed_costs_a_restart_and_one_that_fails_the_job(self):
        self.join("a", 2)
        setup = "echo try >> tries; [ $(wc -l < tries) -gt 2 ] || kill -9 $$"
        path = self.write("job.yaml", f"run: [sh, -c, 'echo ran >> runs.txt']\nsetup: '{setup}'\n"
                                      "resources: {nproc_per_node: 2}\nrestart: {max_restarts: 4}\n")
        status = self.ended(self.submit(path))
        self.assertEqual(status["state"], "SUCCEEDED", status)
        self.assertEqual((text_of(os.path.join(self.dir, "tries")), text_of(os.path.join(self.dir, "runs.txt"))),
                         ("try\n" * 3, "ran\n" * 2))
        path = self.write("bad.yaml", "run: [sh, -c, 'echo ran >> none.txt']\nsetup: exit 255\nrestart: {max_restarts: 4}\n")
        status = self.ended(self.submit(path))
        self.assertEqual(status["state"], "FAILED", status)
        self.assertIn("the job's setup exited with code 255", status["reason"])
        self.assertFalse(os.path.exists(os.path.join(self.dir, "none.txt")))

    def test_goes_on_without_its_coordinator_and_restarts_with_it(self):
        self.join("a", 2)
        path = self.write("job.yaml", "run: exec python3 stay.py\nresources: {nproc_per_node: 2}\n"
                                      "restart: {max_restarts: 1}\n")
        job = self.submit(path)
        first = [self.pid_of(rank, 0) for rank in range(2)]
        self.coordinator.kill()
        self.coordinator.wait()
        self.coordinator, _ = self.start_coordinator(f"--state-dir={self.journal}")
        wait_until(lambda: self.describe(job)["status"]["state"] == "RUNNING", 60, "it is known again")
        for pid in first:
            os.kill(int(pid), 0)
        os.kill(int(first[1]), signal.SIGKILL)
        for rank in range(2):
            self.pid_of(rank, 1)
        self.ask("cancel", job)
        status = self.ended(job)
        self.assertEqual(status["state"], "CANCELLED", status)
        self.assertEqual(int(status["restarts"]), 1, status)
        self.assertIsNone(self.describe(job)["goodput"], "of what a command does nothing is known")
        # What it printed went with the coordinator; `logs` says how to have it, also after the job's end.
        self.coordinator.kill()
        self.coordinator.wait()
        self.coordinator, _ = self.start_coordinator(f"--state-dir={self.journal}")
        code, out, err = self.launch("logs", f"--coordinator={self.address}", job)
        self.assertEqual((code, out), (0, ""), err)
        self.assertIn(f"what the workers printed before is in its log files: launcher fetch --logs {job}", err)


if __name__ == "__main__":
    unittest.main()
