# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a launcher whose output nobody reads, or that waits for what is typed."""

import array
import contextlib
import fcntl
import os
import signal
import termios
import time
import unittest

import harness
import nodes
from harness import wait_until

# Prints without end, and goes on when it is asked to leave.
TALK = """
import os, signal
def asked(*_):
    open("asked", "w").close()
signal.signal(signal.SIGTERM, asked)
while True:
    print("x" * 1000, flush=True)
"""


class Interrupt(harness.ProgramTest):
    def there(self, name):
        wait_until(lambda: os.path.exists(os.path.join(self.dir, name)), 30, name)

    def await_full(self, pipe):
        """Waits until nothing more comes into a pipe."""
        def waiting():
            count = array.array("i", [0])
            fcntl.ioctl(pipe, termios.FIONREAD, count)
            return count[0]
        def stands():
            before = waiting()
            time.sleep(0.3)
            return 0 < waiting() == before
        wait_until(stands, 60, "the pipe is full")

    def test_nobody_reads_and_a_second_one_kills(self):
        self.write("talk.py", TALK)
        child = self.start("launcher", "--", "python3", "talk.py")
        self.await_full(child.stdout)
        child.send_signal(signal.SIGINT)
        self.there("asked")
        child.send_signal(signal.SIGINT)
        # Nothing is read until it has ended.
        wait_until(lambda: child.poll() is not None, 30, "the launcher ends")
        _, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)
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
                wait_until(lambda child=child: self.reads(child.pid), 30, "it reads")
                typed.write(b"name: begun")
                typed.flush()
                child.send_signal(signal.SIGINT)
                # By the signal itself, as who never heard of it: a shell says 130.
                self.assertIn(child.wait(timeout=harness.patient()), (-signal.SIGINT, 130), verb)
                child.communicate()

    def reads(self, pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError), \
                open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            number, first = file.read().split()[:2]
            return (int(number), int(first, 16)) == (0 if os.uname().machine == "x86_64" else 63, 0)
        return False


class SubmitAndFollow(nodes.Nodes):
    def test_nobody_reads_and_the_job_goes_on(self):
        self.write("talk.py", TALK)
        self.join("a", 1)
        path = self.write("job.yaml", "run: python3 talk.py\n")
        child = self.start("launcher", "submit", f"--coordinator={self.address}", path)
        Interrupt.await_full(self, child.stdout)
        child.send_signal(signal.SIGINT)
        wait_until(lambda: child.poll() is not None, 30, "it ends")
        _, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)
        self.assertIn("no longer following; the job goes on", err)
        self.assertTrue(self.processes("python3"))


if __name__ == "__main__":
    unittest.main()
