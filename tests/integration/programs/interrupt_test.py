# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a launcher whose output nobody reads, that waits for what is typed, or that gets it twice at once."""

import array
import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import termios
import time
import unittest

import harness
import nodes
from harness import wait_until

DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")  # the library that makes the trouble

# Prints without end, and goes on when it is asked to leave.
TALK = """
import os, signal
def asked(*_):
    open("asked", "w").close()
signal.signal(signal.SIGTERM, asked)
while True:
    print("x" * 1000, flush=True)
"""

# Says when it is asked to leave, and leaves when it is let.
STAY = """
import os, signal, sys, time
def asked(*_):
    open("asked", "w").close()
signal.signal(signal.SIGTERM, asked)
open("there", "w").close()
while not os.path.exists("leave"):
    time.sleep(0.02)
"""


class AtTheStart(harness.ProgramTest):
    def test_a_launcher_that_has_just_begun(self):
        job = self.write("job.yaml", harness.synthetic_job(steps=100000000))
        for quarters in list(range(60)) * 2:
            child = self.start("launcher", "--nproc-per-node=1", job, start_new_session=True)
            time.sleep(quarters / 4000)
            os.killpg(child.pid, signal.SIGINT)
            code, _, err = self.finish(child, 60)
            self.assertIn(code, (130, -signal.SIGINT), err)  # the latter: before it looks at signals
            self.assertNotIn("error:", err)


class NoAnswer(harness.ProgramTest):
    def test_top_waits_for_no_coordinator(self):
        coordinator, address = self.start_coordinator()
        coordinator.send_signal(signal.SIGSTOP)
        verb = [os.path.join(harness.BIN, "launcher"), "top", f"--coordinator={address}"]
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        with os.fdopen(slave, "wb") as terminal:
            for more, stdout, expected in ((["-o", "json"], subprocess.DEVNULL, -signal.SIGINT), ([], terminal, 0)):
                child = subprocess.Popen([*verb, *more], env=self.environment(), stdin=subprocess.DEVNULL, stdout=stdout)
                self.children.append(child)
                wait_until(lambda pid=child.pid: len(os.listdir(f"/proc/{pid}/task")) > 1, 30, "it asks")
                child.send_signal(signal.SIGINT)
                self.assertEqual(child.wait(timeout=harness.patient()), expected, more)


    def test_join_on_a_terminal_that_nobody_reads(self):
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        with os.fdopen(slave, "wb") as terminal:
            own = os.open(os.ttyname(slave), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            self.addCleanup(os.close, own)
            with contextlib.suppress(BlockingIOError):
                while os.write(own, b"x" * 100):
                    pass
            folder = os.path.join(self.dir, "node")
            child = subprocess.Popen(
                [os.path.join(harness.BIN, "launcher"), "join", "--coordinator=127.0.0.1:9", "--slots=1",
                 f"--state-dir={folder}"], env=self.environment(), stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal)
            self.children.append(child)
            wait_until(lambda: os.path.exists(os.path.join(folder, "supervisors")), 30, "it begins")
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.wait(timeout=harness.patient()), 130)


class Pipes(harness.ProgramTest):
    def there(self, name):
        wait_until(lambda: os.path.exists(os.path.join(self.dir, name)), 30, name)

    def waiting(self, pipe):
        """How many bytes nobody has read."""
        count = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, count)
        return count[0]

    def await_full(self, pipe):
        """Waits until nothing more comes into a pipe."""
        def stands():
            before = self.waiting(pipe)
            time.sleep(0.3)
            return 0 < self.waiting(pipe) == before
        wait_until(stands, 60, "the pipe is full")

    def end_by_two(self, child):
        """Ends a launcher whose worker says that it is asked to leave, and does not; what the launcher said."""
        child.send_signal(signal.SIGINT)
        self.there("asked")
        harness.signal_again(child)
        # Nothing is read until it has ended.
        wait_until(lambda: child.poll() is not None, 30, "the launcher ends")
        _, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)
        return err


class Interrupt(Pipes):
    def test_nobody_reads_and_a_second_one_kills(self):
        self.write("talk.py", TALK)
        child = self.start("launcher", "--", "python3", "talk.py")
        self.await_full(child.stdout)
        err = self.end_by_two(child)
        self.assertIn("Ctrl-C again kills", err)
        self.assertIn("killing the workers", err)
        self.assert_nothing_left()

    def test_what_is_read_late_is_whole(self):
        lines = 30_000
        self.write("many.py", f"for i in range({lines}): print('line %d of many' % i)\n")
        child = self.start("launcher", "--", "python3", "many.py")
        self.await_full(child.stdout)
        wait_until(lambda: not self.processes("python3"), 30, "the rank waits for no reader")
        code, out, err = self.finish(child)
        self.assertEqual(code, 0, err)
        told = [line.split("] ")[1] for line in out.splitlines() if line.endswith("of many")]
        self.assertEqual(told, [f"line {i} of many" for i in range(lines)])
        self.assertIn("succeeded", out)

    def test_a_wait_for_what_is_typed_ends(self):
        address = self.start_coordinator()[1]
        for verb in ([], ["submit", f"--coordinator={address}"]):
            read, write = os.pipe()
            with os.fdopen(read), os.fdopen(write, "wb") as typed:
                child = self.start("launcher", *verb, "-", stdin=read)
                typed.write(b"name: begun")
                typed.flush()
                wait_until(lambda read=read: self.waiting(read) == 0, 30, "it reads")
                child.send_signal(signal.SIGINT)
                # By the signal itself, as who never heard of it: a shell says 130.
                self.assertIn(child.wait(timeout=harness.patient()), (-signal.SIGINT, 130), verb)
                child.communicate()

    def test_a_forwarded_one_is_the_same(self):
        self.write("stay.py", STAY)
        child = self.start("launcher", "--", "python3", "stay.py")
        self.there("there")
        # Another process sends the second one, as a script that forwards what it got itself.
        forwarder = subprocess.Popen(["sh", "-c", f"echo ready; read go; kill -INT {child.pid}"],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(forwarder.stdout.readline(), b"ready\n")
        child.send_signal(signal.SIGINT)
        forwarder.communicate(b"go\n")
        self.there("asked")
        self.assertIsNone(child.poll())
        self.write("leave", "")
        code, _, err = self.finish(child)
        self.assertEqual(code, 130, err)
        self.assertNotIn("killing", err)
        self.assert_nothing_left()

    def interrupt_at_the_end(self, folder):
        """Interrupts a first host that knows of its job's success: (exit code, stdout, stderr); None: it ended before."""
        os.mkdir(folder)
        token = {"LOCKSTEP_TOKEN": "a-token-for-this-test-alone"}
        line = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}"]
        wait = os.path.join(self.dir, "wait.py")
        start = lambda host, *more: self.start("launcher", *line, *more, wait, cwd=folder, env=dict(token, HOST=host))
        guests = {name: start(name, "--node-rank=1", f"--log-dir={name}") for name in ("one", "two")}
        head = start("head", "-o", "json")
        runs = lambda name: os.path.exists(os.path.join(folder, "on-" + name))
        wait_until(lambda: runs("head"), 60, "the first host has a rank")
        (spare,) = wait_until(lambda: (left := [guest for name, guest in guests.items() if not runs(name)])
                              and len(left) == 1 and left, 60, "a guest has a rank")
        spare.send_signal(signal.SIGSTOP)  # the first host waits for it to leave, for a moment

        def looks():
            """How often its main thread has waited for something: when the job has ended it looks again and again who has left."""
            with open(f"/proc/{head.pid}/status", encoding="utf-8") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
        with open(os.path.join(folder, "leave"), "w", encoding="utf-8"):
            pass
        wait_until(lambda: not self.processes("worker"), 30, "the job ends")
        before = looks()
        wait_until(lambda: head.poll() is not None or looks() >= before + 30, 30, "the first host hears of it")
        head.send_signal(signal.SIGINT)
        ended = head.returncode is not None  # looked at once more before a signal is sent
        result = self.finish(head)
        spare.kill()
        for guest in guests.values():
            self.finish(guest)
        return None if ended else result

    def test_one_that_comes_when_the_job_has_succeeded_changes_nothing(self):
        self.write("wait.py", "import os, time\nopen('on-' + os.environ['HOST'], 'w').close()\n"
                              "while not os.path.exists('leave'): time.sleep(0.02)\n")
        for number in range(5):
            interrupted = self.interrupt_at_the_end(os.path.join(self.dir, f"try{number}"))
            if interrupted is not None:
                break
        else:
            self.fail("the first host never waited for the guest that did not leave")
        code, out, err = interrupted
        self.assertEqual(code, 0, err)
        result = json.loads(out.strip().splitlines()[-1])
        self.assertEqual((result["state"], result["exit_code"]), ("SUCCEEDED", 0))
        self.assertNotIn("stop", err)

    def test_what_timeout_sends_is_one_wish(self):
        """timeout(1) signals the program and then its group, which the program is in: workers save, and are not killed."""
        self.write("stay.py", STAY)
        tried = 0
        for _ in range(20):
            if tried == 3:
                break
            child = self.start("launcher", "--", "python3", "stay.py", start_new_session=True)
            self.there("there")
            sent = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            os.killpg(child.pid, signal.SIGTERM)
            at_once = time.monotonic() - sent < 0.1  # else this test had no CPU between
            if at_once:
                self.there("asked")
            self.write("leave", "")
            _, _, err = self.finish(child)
            self.assertIn("stopping", err)
            if at_once:
                self.assertNotIn("killing", err)
                tried += 1
            for name in ("asked", "leave", "there"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self.dir, name))
        self.assert_nothing_left()
        if tried == 0:
            self.skipTest("between two signals this machine never had the CPU for 0.1 s")


@unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
class HungDisk(Pipes):
    def setUp(self):
        super().setUp()
        self.write("stay.py", "print('stays', flush=True)\n" +
                   STAY.replace('"there"', '"there" + os.environ["GROUP_RANK"]'))
        self.write("disk", "stalls")
        self.env = {"LD_PRELOAD": DISK, "LOCKSTEP_TEST_DISK": os.path.join(self.dir, "disk"),
                    "LOCKSTEP_TEST_DISK_OF": "/logs"}

    def end(self, child):
        err = self.end_by_two(child)
        self.assertIn("a run's disk does not answer", err)
        self.assertIn("may lack what came last: ends without waiting", err)

    def test_a_second_one_ends_a_run_whose_log_hangs(self):
        child = self.start("launcher", "--", "python3", "stay.py", env=self.env)
        self.there("there0")
        self.end(child)
        self.assert_nothing_left()

    def test_one_is_enough_when_the_job_is_over(self):
        self.write("leave", "")
        child = self.start("launcher", "--", "python3", "stay.py", env=self.env, stderr=subprocess.STDOUT)
        shown = ""
        while "Ctrl-C ends" not in shown:
            line = child.stdout.readline()
            self.assertTrue(line, shown)
            shown += line
        child.send_signal(signal.SIGINT)
        wait_until(lambda: child.poll() is not None, 30, "it ends")
        shown += child.communicate(timeout=harness.patient())[0]
        self.assertIn("succeeded", shown)
        self.assertIn("ends without waiting", shown)

    def test_a_disk_that_answers_again_ends_the_wait(self):
        self.write("leave", "")
        child = self.start("launcher", "--", "python3", "stay.py", env=self.env, stderr=subprocess.STDOUT)
        while "Ctrl-C ends" not in (line := child.stdout.readline()):
            self.assertTrue(line, "it has ended")
        self.write("disk", "well")
        out = child.communicate(timeout=harness.patient())[0]
        self.assertEqual(child.returncode, 0, out)
        self.assertNotIn("ends without waiting", out)

    def test_a_second_one_ends_a_guest_whose_log_hangs(self):
        line = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}"]
        token = {"LOCKSTEP_TOKEN": "a-token-for-this-test-alone"}
        guest = self.start("launcher", *line, "--node-rank=1", "--log-dir=guest", "stay.py",
                           env=dict(self.env, **token, LOCKSTEP_TEST_DISK_OF="logs/"))
        head = self.start("launcher", *line, "stay.py", env=token)
        self.there("there0")
        self.there("there1")
        self.end(guest)
        head.kill()  # it waits for another host
        head.communicate()


class SubmitAndFollow(nodes.Nodes, Pipes):
    def interrupt_unread(self):
        """A submission that follows a job whose lines nobody reads, after its first Ctrl-C."""
        self.write("talk.py", TALK)
        self.join("a", 1)
        path = self.write("job.yaml", "run: python3 talk.py\n")
        child = self.start("launcher", "submit", f"--coordinator={self.address}", path)
        self.await_full(child.stdout)
        child.send_signal(signal.SIGINT)
        return child

    def test_nobody_reads_and_the_job_goes_on(self):
        child = self.interrupt_unread()
        wait_until(lambda: child.poll() is not None, 30, "it ends")
        _, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)
        self.assertIn("no longer following; the job goes on", err)
        self.assertTrue(self.processes("python3"))

    def test_a_second_one_does_not_keep_it_from_saying_that_the_job_goes_on(self):
        child = self.interrupt_unread()
        harness.signal_again(child)  # while it is seen that nobody reads what was shown
        code, _, err = self.finish(child)
        self.assertEqual(code, 130, err)
        self.assertIn("no longer following; the job goes on", err)

    def test_nobody_reads_the_end(self):
        self.write("many.py", "for i in range(10_000): print('line %d of many' % i)\n")
        self.join("a", 1)
        path = self.write("job.yaml", "run: python3 many.py\n")
        child = self.start("launcher", "submit", f"--coordinator={self.address}", path)
        self.await_full(child.stdout)
        wait_until(lambda: "SUCCEEDED" in self.ask("list"), 30, "the job ends")
        time.sleep(0.5)  # it is heard of
        child.send_signal(signal.SIGINT)
        wait_until(lambda: child.poll() is not None, 30, "the launcher ends")
        child.communicate()

    def test_nobody_reads_what_logs_follows(self):
        self.write("talk.py", TALK)
        self.join("a", 1)
        job = self.submit(self.write("job.yaml", "run: python3 talk.py\n"))
        child = self.start("launcher", "logs", f"--coordinator={self.address}", "-f", job)
        self.await_full(child.stdout)
        child.send_signal(signal.SIGINT)
        wait_until(lambda: child.poll() is not None, 30, "it ends")
        _, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)

    def test_who_reads_no_more_ends_logs(self):
        self.write("talk.py", TALK)
        self.join("a", 1)
        job = self.submit(self.write("job.yaml", "run: python3 talk.py\n"))
        child = self.start("launcher", "logs", f"--coordinator={self.address}", "-f", job)
        self.assertIn("xxx", child.stdout.readline())
        child.stdout.close()
        wait_until(lambda: child.poll() is not None, 30, "it ends")
        self.assertEqual(child.returncode, 1)
        self.assertIn("cannot write to the standard output", child.stderr.read())

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_second_one_ends_who_waits_for_the_models_disk(self):
        self.join("a", 1)
        path = self.job_file(nodes=1, nproc=1, steps=20)
        child = self.start("launcher", "submit", f"--coordinator={self.address}", path, env={
            "LD_PRELOAD": DISK, "LOCKSTEP_TEST_DISK": self.write("disk", "stalls"), "LOCKSTEP_TEST_DISK_OF": "/model"})
        shown = ""
        while "logs" not in shown:
            line = child.stdout.readline()
            self.assertTrue(line, shown)
            shown += line
        child.send_signal(signal.SIGINT)
        harness.signal_again(child)
        self.assertEqual(child.wait(timeout=harness.patient()), 130, shown)
        self.assertIn("succeeded", shown)

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_one_that_comes_while_the_result_is_shown_fetches_no_model(self):
        self.join("a", 1)
        path = self.job_file(nodes=1, nproc=1, steps=20)
        # Who writes where it shows the result asks this pipe how the disk is, and waits for the answer.
        disk = os.path.join(self.dir, "disk")
        os.mkfifo(disk)
        with open(os.path.join(self.dir, "shown"), "wb") as shown:
            child = subprocess.Popen(
                [os.path.join(harness.BIN, "launcher"), "submit", f"--coordinator={self.address}", path], cwd=self.dir,
                env=self.environment(LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK=disk, LOCKSTEP_TEST_DISK_OF="/shown"),
                stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE, text=True)
        self.children.append(child)

        def asked():
            try:
                return os.open(disk, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads
                    raise
                return None
        answer = wait_until(asked, 60, "the result is shown")
        (job,) = json.loads(self.ask("list", "-o", "json"))["jobs"]
        self.assertEqual(job["state"], "SUCCEEDED")
        model = os.path.join(self.dir, self.status(job["job_id"])["result"]["model_path"])
        os.rename(model, model + ".away")
        child.send_signal(signal.SIGINT)
        err = ""
        while "fetch it" not in err:
            line = child.stderr.readline()
            self.assertTrue(line, err)
            err += line
        self.assertIn("the model is not on this host: interrupted; fetch it", err)
        os.rename(self.write("well", "well"), disk)
        os.close(answer)
        self.assertEqual(child.wait(timeout=harness.patient()), 130)


if __name__ == "__main__":
    unittest.main()
