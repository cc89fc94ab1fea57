# SPDX-License-Identifier: Apache-2.0
"""A run over several hosts (network namespaces) that one launcher begins, with a script in the place of ssh."""

import json
import os
import re
import signal
import unittest

import harness
from harness import wait_until
from hosts import HostsTest

# What enters a host: `enter HOST COMMAND`. As ssh does, it gives the command to a shell, says what is wrong with a host
# on stderr, and ends with 255.
ENTER = """#!/bin/sh
case "$1" in
{cases}
*) echo "enter: Could not resolve hostname $1: Name or service not known" >&2; exit 255;;
esac
"""


class SshHosts(HostsTest):
    def up(self, *names):
        hosts = self.make_network(*names)
        cases = "\n".join(f"{h.name}) exec ip netns exec {h.namespace} unshare --uts sh -c "
                          f"'hostname {h.name}; cd /; exec sh -c \"$0\"' \"$2\" ;;" for h in hosts)
        self.enter = self.write("enter", ENTER.format(cases=cases + "\nlocked) echo 'Permission denied (publickey).' >&2; "
                                                      "exit 255;;"))
        os.chmod(self.enter, 0o755)
        return hosts

    def job_file(self, nproc=2, **job):
        return self.write("job.yaml", harness.synthetic_job(
            hidden="[64]", nproc=nproc, train_extra="  eval: {every: never}\n", **job))

    def launch_from_head(self, *arguments, **options):
        return self.on(self.network["head"], "launcher", f"--ssh={self.enter}", *arguments, log="head",
                       env={"LOCKSTEP_LOG": "warning"}, **options)

    def code_of(self, child, seconds=120):
        return child.wait(timeout=seconds * harness.PATIENCE)

    def result(self):
        return json.loads(next(line for line in self.said("head").splitlines() if line.startswith("{")))

    def alone_with(self, path, nproc):
        return self.train("--nnodes=1", f"--nproc-per-node={nproc}", path, cwd=self.dir, seconds=240)["model"]["sha256"]

    def test_one_command_trains_on_all_hosts_to_the_same_bits(self):
        self.up("h1", "h2")
        path = self.job_file(steps=200)
        run = self.launch_from_head("-o", "json", "--hosts=h1:1,h2:3", path)
        wait_until(lambda: self.processes("worker"), 60, "workers run")
        for process in self.processes():
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                shown = file.read()
            self.assertNotRegex(b" ".join(a.encode() for a in process.argv) + shown, rb"[0-9a-f]{64}", "no token is shown")
        self.assertEqual(self.code_of(run), 0, self.said("head"))
        result = self.result()
        self.assertEqual(result["workers"], 4)
        self.assertEqual(result["model"]["sha256"], self.alone_with(path, 2))
        self.assertEqual(self.processes(), [])
        # A host file says the same.
        hosts = self.write("hosts", "# the cluster\nh1 slots=2\nh2\n")
        run = self.launch_from_head("-q", f"--hostfile={hosts}", path)
        self.assertEqual(self.code_of(run), 0, self.said("head"))
        self.assertEqual(self.processes(), [])

    def test_hosts_that_cannot_take_part_are_named(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000)
        false = self.write("old-launcher", "#!/bin/sh\necho \"error: 'guest' is neither a verb nor a .yaml file\" >&2\nexit 2\n")
        os.chmod(false, 0o755)
        for hosts, more, why in (
                ("h1,nowhere", (), r"host nowhere cannot be entered: .*Could not resolve hostname nowhere.*BatchMode=yes"),
                ("h1,locked", (), r"host locked cannot be entered: Permission denied \(publickey\)"),
                ("h1,h2", ("--launcher=/no/such/launcher",), r"has no launcher that can be run at /no/such/launcher"),
                ("h1,h2", (f"--launcher={false}",), r"is no launcher of this version: error: 'guest' is neither")):
            with self.subTest(hosts=hosts, more=more):
                before = len(self.said("head")) if os.path.exists(os.path.join(self.dir, "head.log")) else 0
                run = self.launch_from_head(f"--hosts={hosts}", *more, path)
                self.assertEqual(self.code_of(run, 60), 5, self.said("head"))
                self.assertRegex(self.said("head")[before:], why)
                wait_until(lambda: not self.processes(), 30, "nothing is left on any host")

    def test_ctrl_c_drains_on_all_hosts_and_another_one_kills(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000, extra="checkpoint: {dir: saved}\n")
        run = self.launch_from_head("-o", "json", "--hosts=h1,h2", path)
        wait_until(lambda: len(self.processes("worker")) == 4, 60, "four workers run")
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        self.assertEqual(self.processes(), [])
        saved = os.readlink(os.path.join(self.dir, "saved/last"))
        run = self.launch_from_head("--hosts=h1,h2", path)
        wait_until(lambda: len(self.processes("worker")) == 4, 60, "four workers run")
        for worker in self.processes("worker"):
            worker.kill(signal.SIGSTOP)  # none can save
        run.send_signal(signal.SIGINT)
        wait_until(lambda: self.said("head").count("stopping: the workers") == 2, 30, "it drains")
        run.send_signal(signal.SIGINT)
        self.assertEqual(self.code_of(run), 130, self.said("head"))
        wait_until(lambda: not self.processes(), 30, "nothing is left on any host")
        self.assertEqual(os.readlink(os.path.join(self.dir, "saved/last")), saved)

    def test_without_their_launcher_the_hosts_save_and_end(self):
        self.up("h1", "h2")
        path = self.job_file(steps=100_000_000, extra="checkpoint: {dir: saved}\n")
        run = self.launch_from_head("--hosts=h1,h2", path)
        wait_until(lambda: re.search(r"step [1-9]", self.said("head")), 60, "they train")
        run.kill()
        wait_until(lambda: not self.processes(), 60, "all of them have left")
        self.assertGreater(int(os.readlink(os.path.join(self.dir, "saved/last"))[5:]), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
