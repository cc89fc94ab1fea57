# SPDX-License-Identifier: Apache-2.0
"""lockstep-slurm on a real Slurm: a controller and two hosts, which are network namespaces, with munge.

Needs root, iproute2, slurmctld, slurmd, slurm-client and munge (./dev test --slurm installs them)."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests/integration/programs"))

import harness  # noqa: E402
import hosts  # noqa: E402

SCRIPT = os.path.join(ROOT, "deploy/slurm/lockstep-slurm")
CONF = """ClusterName=test
SlurmctldHost=head({head})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge/socket,cred_expire=5
StateSaveLocation={dir}/state
SlurmctldPidFile={dir}/slurmctld.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdSpoolDir={dir}/spool-%n
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmdLogFile={dir}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=300
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=n1 NodeAddr={n1} CPUs=8 State=UNKNOWN
NodeName=n2 NodeAddr={n2} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    for program in ("slurmctld", "slurmd", "sbatch", "munged"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is None:
            return f"there is no program '{program}'"
    return hosts.why_not()


class SlurmTest(hosts.HostsTest):
    """A cluster of its own for each test."""

    def setUp(self):
        super().setUp()
        if why := why_not():
            raise unittest.SkipTest(f"SKIPPED: {why}")
        self.daemons = {}
        self.slurm = os.path.join(self.dir, "slurm")
        try:
            self.start_slurm()
        except BaseException:
            self.tearDown()  # which nobody calls after this
            raise

    def start_slurm(self):
        self.n1, self.n2 = self.make_network("n1", "n2")
        os.makedirs(os.path.join(self.slurm, "state"))
        os.makedirs(os.path.join(self.slurm, "munge"), mode=0o755)
        os.mkdir(os.path.join(self.slurm, "spool-n1"))
        os.mkdir(os.path.join(self.slurm, "spool-n2"))
        os.chmod(self.dir, 0o755)
        self.name_hosts()
        with open(os.path.join(self.slurm, "slurm.conf"), "w", encoding="utf-8") as file:
            file.write(CONF.format(dir=self.slurm, head=self.network["head"].address, n1=self.n1.address,
                                   n2=self.n2.address))
        self.start_munge()
        self.daemon(self.network["head"], "slurmctld", "-D", "-f", f"{self.slurm}/slurm.conf")
        for host in (self.n1, self.n2):
            self.start_node(host)
        harness.wait_until(lambda: self.sinfo() == {"n1": "idle", "n2": "idle"}, 120, "nodes that are idle")

    def tearDown(self):
        for process in self.daemons.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        with contextlib.suppress(OSError, ValueError):
            with open(f"{self.slurm}/munge/munged.pid", encoding="utf-8") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        super().tearDown()

    def name_hosts(self):
        with open(f"{self.slurm}/hosts", "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(f"{host.address} {host.name}\n" for host in self.network.hosts.values())

    def inside(self, host):
        """What runs a command on a host that knows the others' names. Not by `ip netns exec`, which would hide
        the control groups that slurmd looks for."""
        return ["nsenter", f"--net=/run/netns/{host.namespace}", "unshare", "--uts", "--mount", "sh", "-c",
                'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"', host.name,
                f"{self.slurm}/hosts"]

    def start_munge(self):
        folder = f"{self.slurm}/munge"
        with open(f"{folder}/key", "wb") as file:
            os.chmod(file.fileno(), 0o600)
            file.write(os.urandom(128))
        subprocess.run(["munged", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket",
                        f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log",
                        f"--seed-file={folder}/seed"], check=True, env=self.environment())

    def daemon(self, host, program, *arguments):
        with open(f"{self.slurm}/{program}-{host.name}.out", "ab") as out:
            self.daemons[host.name] = subprocess.Popen(
                [*self.inside(host), program, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=self.environment(PATH=os.environ["PATH"] + ":/usr/sbin"))

    def start_node(self, host):
        self.daemon(host, "slurmd", "-D", "-N", host.name, "-f", f"{self.slurm}/slurm.conf")

    def client(self, *command):
        """What a Slurm command, or the script, prints on the head."""
        result = subprocess.run(
            [*self.inside(self.network["head"]), *command], cwd=self.dir, capture_output=True, text=True,
            env=self.environment(SLURM_CONF=f"{self.slurm}/slurm.conf",
                                 PATH=harness.BIN + ":" + os.environ["PATH"]))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + self.logs())
        return result.stdout

    def sinfo(self):
        try:
            lines = self.client("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
        except AssertionError:
            return {}  # not up yet
        return dict(line.split() for line in lines if line)

    def submit(self, path, *flags, launcher=os.path.join(harness.BIN, "launcher"), sbatch=()):
        return self.client(SCRIPT, "--launcher", launcher, path, "-o", "json", *flags, "--", "--output=%j.out",
                           *sbatch).strip()

    def state(self, job):
        fields = self.client("scontrol", "-o", "show", "job", job)
        return fields.split("JobState=")[1].split()[0]

    def output(self, job):
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self.dir, f"{job}.out"), encoding="utf-8", errors="replace") as file:
                return file.read()
        return ""

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.slurm)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.slurm, name), encoding="utf-8", errors="replace") as file:
                    text += f"--- {name}\n" + "".join(file.readlines()[-15:])
        return text

    def await_(self, condition, job, seconds, what):
        """Waits until condition(the job's state); not for a job that has failed."""
        def holds():
            state = self.state(job)
            self.assertNotIn(state, ("FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"), "the job")
            return condition(state)
        try:
            harness.wait_until(holds, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- job\n{self.output(job)}\n{self.logs()}") from None

    def await_end(self, job, seconds=300):
        """The result of a job that ended well."""
        self.await_(lambda state: state == "COMPLETED", job, seconds, "the end of the job")
        lines = [line for line in self.output(job).splitlines() if line.startswith('{"schema"')]
        result = json.loads(lines[-1])
        self.assertEqual(result["state"], "SUCCEEDED")
        return result

    def job(self, name, steps, elastic=""):
        return self.write(f"{name}.yaml", harness.synthetic_job(
            name=name, steps=steps, nproc=2, global_batch=480, hidden="[64, 64]",
            extra=f"checkpoint: {{every: 100 steps, dir: {self.dir}/checkpoints-{name}}}\n{elastic}"
        ).replace("nproc_per_node: 2", "nodes: 2, nproc_per_node: 2"))

    def undisturbed(self, steps):
        """The sha256 of the model of the same training on this machine."""
        return self.train("--nnodes=1", "--nproc-per-node=1", "--set", f"checkpoint.dir={self.dir}/alone",
                          self.job("alone", steps), seconds=300)["model"]["sha256"]

    def await_checkpoint(self, job, name):
        self.await_(lambda state: os.path.lexists(f"{self.dir}/checkpoints-{name}/last"), job, 180, "a checkpoint")

    def test_a_job_ends_on_slurm_with_the_bits_of_one_machine_also_when_it_is_queued_again(self):
        steps = 4000
        job = self.submit(self.job("again", steps))
        self.await_checkpoint(job, "again")
        self.client("scancel", "--batch", "--signal=USR1", job)  # as Slurm does before the end of its time
        result = self.await_end(job)
        self.assertIn("queued again, time 1", self.output(job))
        self.assertEqual(result["workers"], 4)
        self.assertEqual(result["model"]["sha256"], self.undisturbed(steps))

    def test_a_guest_whose_launcher_is_killed_comes_back_and_scancel_lets_it_save(self):
        job = self.submit(self.job("guest", 100000000))
        self.await_checkpoint(job, "guest")
        guests = [p for p in self.processes("launcher") if "--node-rank=1" in p.argv and p.pid in self.n2.pids()]
        self.assertTrue(guests)
        for guest in guests:
            guest.kill()

        def back():
            return {p.pid for p in self.processes("worker")} & set(self.n2.pids())
        harness.wait_until(back, 180, "workers on the second host again")
        newest = os.readlink(f"{self.dir}/checkpoints-guest/last")
        self.await_(lambda state: os.readlink(f"{self.dir}/checkpoints-guest/last") != newest, job, 180, "more steps")
        self.client("scancel", job)
        harness.wait_until(lambda: "stopping: the workers finish their step" in self.output(job), 60, "a stop in peace")
        harness.wait_until(lambda: not self.processes("worker"), 60, "the end of all workers")

    def test_a_site_that_exports_nothing(self):
        steps = 200
        job = self.submit(self.job("closed", steps), sbatch=["--export=NONE"])
        self.assertEqual(self.await_end(job)["workers"], 4)

    def test_a_host_without_the_launcher_ends_the_job_before_it_begins(self):
        launcher = self.write("launcher", f'#!/bin/sh\n[ "$(hostname)" != n2 ] || exit 127\nexec {harness.BIN}/launcher "$@"\n')
        os.chmod(launcher, 0o755)
        job = self.submit(self.job("nowhere", 200), launcher=launcher)
        harness.wait_until(lambda: self.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), 90,
                           "the end of the job")
        self.assertEqual(self.state(job), "FAILED", self.output(job) + self.logs())
        self.assertIn(" ExitCode=127:0 ", self.client("scontrol", "-o", "show", "job", job))
        self.assertIn("could not take part", self.output(job))
        self.assertNotIn("queued again", self.output(job))

    def test_a_host_that_fails(self):
        steps = 4000
        job = self.submit(self.job("shrinks", steps, elastic="elastic: {min_workers: 2}\n"))
        self.await_checkpoint(job, "shrinks")
        self.n2.power_off()
        self.client("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        # By this the script knows of it.
        harness.wait_until(lambda: self.client("squeue", "-h", "-j", job, "-o", "%N").strip() == "n1", 30, "one host less")
        result = self.await_end(job)
        self.assertNotIn("queued again", self.output(job), "the other host goes on with it")
        self.assertEqual(result["model"]["sha256"], self.undisturbed(steps))


if __name__ == "__main__":
    unittest.main(verbosity=2)
