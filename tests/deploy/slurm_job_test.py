# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm/lockstep-slurm inside of a job, with stand-ins for Slurm's programs and the launcher. Takes half a minute."""
import contextlib
import glob
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/slurm/lockstep-slurm")

# A launcher that waits for hosts until it is stopped; with `begun` it has a worker.
LAUNCHER = """#!/bin/bash
trap 'echo stopped >>log; exit 130' TERM
sleep 0.2  # by then the script listens to signals
echo "launcher $*" >>log
if [[ -e begun ]]; then
  bash -c 'bash -c "echo works >>log; while [[ ! -e over ]] && ! grep -q stopped log; do sleep 0.05; done" w --bootstrap-fd=3 & wait' &
fi
while [[ ! -e over ]]; do sleep 0.05; done
echo "ended by itself $$" >>log
exit 7
"""
# As srun does it, a variable of sbatch's decides what is handed on, unless a flag does.
SRUN = """#!/bin/bash
[[ ${SLURM_EXPORT_ENV:-ALL} == ALL || " $* " == *" --export=ALL "* ]] || unset LOCKSTEP_TOKEN
echo "srun token=${LOCKSTEP_TOKEN:+there}" >>log
[[ ! -e one-is-out ]] || kill -USR2 $PPID
trap 'exit 130' TERM
if [[ -e guest-runs ]]; then  # one, in place of this
  while [[ $1 != bash ]]; do shift; done
  echo "guest $$" >>log
  SLURM_NODEID=0 exec "$@"
fi
while [[ ! -e guests-end ]]; do
  [[ ! -e one-is-out ]] && grep -q stopped log && exit 130
  sleep 0.05
done
exit "$(cat guests-end)"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>log
case $1 in
  show) tr , '\n' <<<"$3" ;;
  requeue)
    [[ -e requeue-waits ]] || kill -KILL $PPID
    (sleep 0.2; kill -TERM $PPID) &
    ;;
esac
"""


class SlurmJobTest(unittest.TestCase):
    """One job of two hosts, this one and that of the guest."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-slurm-")
        self.addCleanup(shutil.rmtree, self.dir)
        for name, text in (("launcher", LAUNCHER), ("srun", SRUN), ("scontrol", SCONTROL),
                           ("squeue", "#!/bin/bash\ncat hosts\n")):
            self.write(name, text)
            os.chmod(os.path.join(self.dir, name), 0o755)
        self.write("hosts", "n1,n2\n")
        self.write("log", "")

    def write(self, name, text=""):
        with open(os.path.join(self.dir, name), "w", encoding="utf-8") as file:
            file.write(text)

    def log(self):
        with open(os.path.join(self.dir, "log"), encoding="utf-8") as file:
            return file.read()

    def start(self, **environment):
        """The script, when the launcher and the guests have started."""
        script = subprocess.Popen(
            [SCRIPT, "--in-job", "./launcher", "job.yaml"], cwd=self.dir, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PATH": self.dir + ":" + os.environ["PATH"], "SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": "2",
                 "SLURM_JOB_NODELIST": "n1,n2", **environment})
        self.addCleanup(self.kill, script)
        self.await_log("launcher --node-rank=0", "srun token=")
        return script

    @staticmethod
    def kill(script):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.stdout.close()
        script.wait()

    def await_log(self, *words):
        end = time.monotonic() + 20
        while not all(word in self.log() for word in words):
            self.assertLess(time.monotonic(), end, f"{words}: {self.log()}")
            time.sleep(0.05)

    def ended(self, script):
        """Its exit code and what it said; what it started has no end of its own."""
        code = script.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        return code, script.stdout.read()

    def test_guests_have_the_token_whatever_the_site_exports(self):
        self.start(SLURM_EXPORT_ENV="NONE")
        self.assertIn("srun token=there", self.log())

    def test_guests_that_cannot_take_part_end_the_job_with_their_code(self):
        script = self.start()
        self.write("guests-end", "5")
        code, said = self.ended(script)
        self.assertEqual(code, 5, said)
        self.assertIn("before the run has begun", said)
        self.assertIn("stopped", self.log())
        self.assertNotIn("requeue", self.log())

    def test_one_of_several_guests_that_cannot_take_part_ends_the_job(self):
        self.write("one-is-out")
        script = self.start()
        self.await_log("stopped")
        self.write("guests-end", "130")  # the others, which were stopped
        code, said = self.ended(script)
        self.assertEqual(code, 5, said)
        self.assertNotIn("requeue", self.log())

    def test_guests_that_end_later_leave_the_run_to_go_on(self):
        self.write("begun")
        script = self.start()
        self.await_log("works")
        self.write("guests-end", "5")
        time.sleep(1.5)  # it looks each second
        self.assertIsNone(script.poll())
        self.write("over")
        code, said = self.ended(script)
        self.assertEqual(code, 7, said)
        self.assertNotIn("stopped", self.log())

    def test_a_job_that_is_cancelled_while_it_waits_is_no_hosts_fault(self):
        script = self.start()
        self.write("guests-end", "130")
        time.sleep(1.5)
        script.send_signal(signal.SIGTERM)
        code, said = self.ended(script)
        self.assertEqual((code, "could not take part" in said), (130, False), said)

    def test_a_result_that_guests_have_first_is_the_launchers(self):
        script = self.start()
        self.write("guests-end", "7")
        time.sleep(0.5)
        self.write("over")
        code, said = self.ended(script)
        self.assertEqual(code, 7, said)
        self.assertNotIn("stopped", self.log())

    def test_a_signal_after_the_launchers_end_leaves_its_exit_code(self):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            self.write("log", "")
            self.write("begun")
            script = self.start()
            self.await_log("works")
            self.write("over")
            self.await_log("ended by itself")
            launcher = re.search(r"ended by itself (\d+)", self.log())[1]
            end = time.monotonic() + 20
            while os.path.exists(f"/proc/{launcher}"):  # the script has heard of its end; guests are still there
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            script.send_signal(number)
            self.write("guests-end", "0")
            code, said = self.ended(script)
            self.assertEqual(code, 7, said)
            self.assertNotIn("requeue", self.log())
            for name in ("over", "guests-end"):
                os.remove(os.path.join(self.dir, name))

    def test_a_run_that_has_begun_is_queued_again_when_its_time_is_up(self):
        self.write("begun")
        script = self.start()
        self.await_log("works")
        script.send_signal(signal.SIGUSR1)
        self.ended(script)
        self.assertIn("stopped", self.log())
        self.assertIn("scontrol requeue 5", self.log())

    def test_one_whose_launcher_is_within_others_is_queued_again_too(self):
        self.write("begun")
        os.rename(os.path.join(self.dir, "launcher"), os.path.join(self.dir, "within"))
        for outer, inner in (("launcher", "between"), ("between", "within")):  # as those of a container
            self.write(outer, f"#!/bin/bash\n./{inner} \"$@\" & trap 'kill $!' TERM; wait $!; wait $!\n")
            os.chmod(os.path.join(self.dir, outer), 0o755)
        script = self.start()
        self.await_log("works")
        script.send_signal(signal.SIGUSR1)
        self.ended(script)
        self.assertIn("scontrol requeue 5", self.log())

    def test_what_was_queued_again_ends_as_soon_as_slurm_says_so(self):
        self.write("begun")
        self.write("requeue-waits")
        script = self.start()
        self.await_log("works")
        script.send_signal(signal.SIGUSR1)
        self.assertEqual(script.wait(30), 130)
        self.assertIn("scontrol requeue 5", self.log())
        left = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if os.getsid(int(path.split("/")[2])) == script.pid:
                    left.append(file.read())
        self.assertNotIn(b"sleep\0" + b"60\0", left, "the hosts are not free before all has ended")

    def test_a_port_is_taken_that_is_free_at_all_addresses(self):
        with socket.socket() as other:
            while True:
                port = random.randrange(20000, 29000)
                with contextlib.suppress(OSError):
                    other.bind(("127.0.0.2", port))
                    break
            other.listen()
            self.start(SLURM_JOB_ID=str(port - 20000))
            chosen = int(re.search(r"--rdzv-endpoint=n1:(\d+)", self.log())[1])
        self.assertTrue(port < chosen < port + 100, chosen)

    def guest(self):
        """The script with one guest, that guest's shell, and how often its launcher was started."""
        self.write("guest-runs")
        script = self.start(SLURM_JOB_NODELIST="localhost,n2")
        self.await_log("launcher --node-rank=1 ")
        return script, int(re.search(r"guest (\d+)", self.log())[1]), lambda: self.log().count("launcher --node-rank=1 ")

    @staticmethod
    def kill_launcher_of(guest):
        with open(f"/proc/{guest}/task/{guest}/children", encoding="utf-8") as file:
            [launcher] = file.read().split()
        os.kill(int(launcher), signal.SIGKILL)

    def test_a_guest_that_is_told_to_end_tells_its_launcher(self):
        """Where control groups keep track of processes, Slurm signals the task's first one alone."""
        script, guest, starts = self.guest()
        os.kill(guest, signal.SIGTERM)
        self.await_log("stopped")
        self.write("over")
        code, said = self.ended(script)
        self.assertEqual((code, starts()), (7, 1), said + self.log())

    def test_a_guest_that_is_killed_comes_back_while_the_run_is_there(self):
        script, guest, starts = self.guest()
        port = int(re.search(r"--rdzv-endpoint=localhost:(\d+)", self.log())[1])
        with socket.create_server(("localhost", port)):
            self.kill_launcher_of(guest)
            end = time.monotonic() + 20
            while starts() < 2:
                self.assertLess(time.monotonic(), end, self.log())
                time.sleep(0.05)
        self.kill_launcher_of(guest)
        code, said = self.ended(script)
        self.assertEqual((code, starts()), (137, 2), said + self.log())

    def test_one_that_has_not_is_queued_again_only_if_a_host_failed(self):
        for hosts, again in (("n1,n2\n", False), ("n1\n", True)):
            self.write("hosts", hosts)
            self.write("log", "")
            script = self.start()
            script.send_signal(signal.SIGUSR1)
            self.await_log("stopped")
            code, said = self.ended(script)
            self.assertEqual("scontrol requeue 5" in self.log(), again, said + self.log())
            if not again:
                self.assertEqual(code, 130)
                self.assertIn("has not begun", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
