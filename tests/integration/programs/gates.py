# SPDX-License-Identifier: Apache-2.0
"""Jobs that a test ends when it likes, for tests of a coordinator's queue."""

import datetime
import json
import os
import re

from harness import wait_until
from nodes import Nodes

FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
# Says that it is there, and ends with the code that the file `end-NAME` has, once that is there.
GATE = """
import os, signal, sys, time
name = sys.argv[1]
def asked(*_):
    open("asked-" + name, "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
with open("began-" + name, "a") as file:
    print(os.environ["RANK"], os.environ.get("LOCKSTEP_ARRAY_INDEX"), file=file)
print("this is", name, flush=True)
while not os.path.exists("end-" + name):
    time.sleep(0.05)
with open("end-" + name) as file:
    sys.exit(int(file.read() or 0))
"""


def seconds_between(begin, end):
    # Of fractions Python takes six digits at most.
    begin, end = (datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", t).replace("Z", "+00:00"))
                  for t in (begin, end))
    return (end - begin).total_seconds()


class Gates(Nodes):
    def setUp(self):
        super().setUp()
        self.write("gate.py", GATE)

    def gate_file(self, name, extra="", nproc=1):
        """A job whose command goes on until end()."""
        resources = "" if "resources:" in extra else f"resources: {{nproc_per_node: {nproc}}}\n"
        return self.write(f"{name}.yaml", f"name: {name}\nrun: [python3, gate.py, {name}]\n{resources}{extra}")

    def gate(self, name, *arguments, **file):
        return self.submit(*arguments, self.gate_file(name, **file))

    def end(self, name, code=0):
        path = os.path.join(self.dir, f"end-{name}")
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(code))
        os.rename(path + ".new", path)

    def began(self, name):
        """The lines of those that began: rank and number in an array."""
        try:
            with open(os.path.join(self.dir, f"began-{name}"), encoding="ascii") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def await_began(self, name, times=1):
        return wait_until(lambda: len(b := self.began(name)) >= times and b, 60, f"{name} begins")

    def await_end(self, job, state="SUCCEEDED"):
        status = wait_until(lambda: (s := self.status(job))["state"] in FINAL and s, 120, "the job ends")
        self.assertEqual(status["state"], state, status)
        return status

    def await_reason(self, job, part):
        """The reason, which list and describe say alike, of a job that waits."""
        def said():
            status = self.status(job)
            self.assertEqual(status["state"], "PENDING", status)
            reason = status["reason"]
            if part not in reason:
                return None
            row, = [line for line in self.ask("list").splitlines() if line.startswith(job)]
            listed, = [j for j in json.loads(self.ask("list", "-o", "json"))["jobs"] if j["job_id"] == job]
            # Between two questions something may become free.
            alike = reason in self.ask("describe", job) and reason in row and listed["reason"] == reason
            return alike and reason
        return wait_until(said, 20, f"list and describe say: {part}")

    def start_waiting(self, *arguments):
        return self.start("launcher", "submit", f"--coordinator={self.address}", "--wait", *arguments)

    def used(self, *arguments):
        """What each user has used."""
        return {user["user"]: user for user in json.loads(self.ask("usage", "-o", "json", *arguments))["users"]}
