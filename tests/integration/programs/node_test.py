# SPDX-License-Identifier: Apache-2.0
"""Nodes: agents that are killed and come back, two agents of one host, low limits."""

import os
import resource
import signal
import subprocess
import time
import unittest

import harness
from harness import steps_that_last, wait_until
from nodes import Nodes

# How long a killed agent stays away: longer than anything is judged by in the jobs here. The
# scenarios of the coordinator's core have longer absences.
AWAY_SECONDS = float(os.environ.get("LOCKSTEP_TEST_AWAY", "6"))
NOBODY = 65534


class Node(Nodes):
    def job_file(self, nodes, nproc, steps):
        return self.write("job.yaml", harness.synthetic_job(
            steps=steps, shards=2, hidden="[64]", train_extra="  eval: {every: never}\n",
            extra="checkpoint: {dir: saved, every: 200 steps}\nrestart: {max_restarts: 0}\n"
                  "elastic: {min_workers: 1}\nfailure_detection: 1s\n").replace(
                      "nproc_per_node: 4", f"nodes: {nodes}, nproc_per_node: {nproc}"))

    def end_of(self, job, expected):
        self.unpace()
        status = wait_until(lambda: (s := self.status(job))["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") and s,
                            240, "the job ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        self.assertEqual(int(status.get("restarts", 0)), 0, status)
        self.assertEqual(status["result"]["model_sha256"], expected)

    def kill_and_stay_away(self, agent):
        agent.kill()
        agent.wait()
        time.sleep(AWAY_SECONDS)

    def test_a_killed_agent_comes_back_as_the_same_node(self):
        agent = self.start_agent("node", 1)

        (before,) = wait_until(lambda: [n["node_id"] for n in self.nodes() if n["connected"]], 10, "the node is there")
        agent.kill()
        agent.wait()
        self.start_agent("node", 1)
        wait_until(lambda: [n["node_id"] for n in self.nodes() if n["connected"]] == [before], 10, "it is the same node")
        self.assertEqual(len(self.nodes()), 1, "no second node")

    def test_a_second_agent_needs_a_state_folder_of_its_own(self):
        first = self.start_agent("node", 1)
        wait_until(lambda: "connected to the coordinator" in self.said("node"), 10, "the first one is there")
        second = self.start_agent("node", 1)
        self.assertEqual(second.wait(timeout=harness.patient()), 5)
        self.assertIn(f"another agent (process {first.pid}) runs with the state folder", self.said("node"))
        self.assertIn("--state-dir", self.said("node"))
        self.start_agent("other", 1)
        wait_until(lambda: "connected to the coordinator" in self.said("other"), 10, "the other one is there")

    def test_a_node_whose_interfaces_leave_no_address_says_so(self):
        self.join("one", 1)
        self.join("two", 1, "--interfaces=nobodys0")
        self.assertIn("no address of this host is among --interfaces", self.said("two"))
        job = self.submit("--nnodes=2", "--nproc-per-node=1",
                          self.write("two.yaml", harness.synthetic_job(shards=2, steps=5)))
        # There is no third node to go on with, so it waits for one; either rank may be the one without.
        status = wait_until(lambda: "no address" in (s := self.status(job)).get("reason", "") and s, 60,
                            "the job says what keeps it")
        self.assertIn("whose node has no address for workers of other nodes: --interfaces", status["reason"])
        self.assertEqual(status["state"], "STARTING", status)
        self.ask("cancel", job)

    def submit_from(self, folder, *arguments):
        """The ids of the jobs that are submitted from that folder."""
        code, out, err = self.launch("submit", f"--coordinator={self.address}", "--no-follow", *arguments, cwd=folder)
        self.assertEqual(code, 0, out + err)
        return out.split()

    def ends(self, jobs):
        def statuses():
            of_jobs = [self.status(job) for job in jobs]
            return all(s["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for s in of_jobs) and of_jobs
        return wait_until(statuses, 60, "the jobs end")

    def test_a_node_without_the_jobs_folder_fails_no_job(self):
        folder = os.path.join(self.dir, "home")
        os.mkdir(folder)
        hide = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                'mount -t tmpfs tmpfs "$0" && mkdir "$0/other" && exec "$@"']
        probe = subprocess.run([*hide, folder, "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"SKIPPED: there can be no mount namespace: {probe.stderr}")
        work = os.path.join(folder, "work")
        os.mkdir(work)
        self.join("well", 1)
        self.join("ill", 2, prefix=[*hide, folder])
        jobs = self.submit_from(work, "--array", "0-5", "--set", "restart.max_restarts=3", "--", "sleep", "0.3")
        self.assertEqual(len(jobs), 6)
        for status in self.ends(jobs):
            self.assertEqual(status["state"], "SUCCEEDED", status)
        told = [self.launch("logs", f"--coordinator={self.address}", job) for job in jobs]
        self.assertTrue(any("another node is tried" in out + err for _, out, err in told), told)

    def test_a_folder_that_no_node_has_ends_the_job_at_once(self):
        work = os.path.join(self.dir, "wrok")
        os.mkdir(work)
        nodes = [self.join("one", 1), self.join("two", 1)]
        (job,) = self.submit_from(work, "--hold", "--", "true")
        os.rmdir(work)
        self.ask("release", job)
        (status,) = self.ends([job])
        self.assertEqual(status["state"], "FAILED", status)
        self.assertIn("No such file or directory", status["reason"])
        self.assertIn("nor could it begin on", status["reason"])
        self.assertEqual([self.node(node)["state"] for node in nodes], ["up", "up"])

    def test_an_agent_whose_container_ends_with_it_leaves(self):
        """As under docker run --init: the container's first process has started it, and ends when it does."""
        tini = self.write("tini", '#!/bin/sh\n"$@"\ntrue\n')
        os.chmod(tini, 0o755)
        init = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", "-u", "INVOCATION_ID", tini]
        probe = subprocess.run([*init, "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"SKIPPED: there can be no PID namespace: {probe.stderr}")
        container = self.start_agent("node", 1, prefix=init)
        job = self.submit(self.job_file(nodes=1, nproc=1, steps=100000000))
        wait_until(lambda: self.step(job) > 50, 60, "it trains")
        agent, = [process for process in self.processes("launcher") if "join" in process.argv and process.parent() != container.pid
                  and process.parent() not in [other.pid for other in self.processes("launcher")]]
        os.kill(agent.pid, signal.SIGTERM)
        container.wait(timeout=harness.patient())
        self.assertIn("leaving: workers hand over to other nodes or save", self.said("node"))
        self.assertEqual(self.status(job).get("restarts", 0), 0, "nobody failed")

    def test_a_job_goes_on_elsewhere_when_an_agent_is_killed(self):
        path = self.job_file(nodes=2, nproc=1, steps=steps_that_last(30))
        expected = self.undisturbed(path)
        agents = [self.start_agent(name, 1) for name in ("one", "two")]
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 100, 60, "both train")
        self.kill_and_stay_away(agents[1])
        self.start_agent("two", 1)
        self.end_of(job, expected)

    def test_a_job_waits_for_its_only_node_and_goes_on_from_its_checkpoint(self):
        path = self.job_file(nodes=1, nproc=2, steps=steps_that_last(30))
        expected = self.undisturbed(path)
        agent = self.start_agent("node", 2)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 100, 60, "it trains")
        self.kill_and_stay_away(agent)
        self.start_agent("node", 2)
        self.end_of(job, expected)

    def test_an_empty_coordinator_ends_nothing_and_the_old_one_finds_all(self):
        path = self.job_file(nodes=1, nproc=2, steps=200000)
        self.start_agent("node", 2)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 100, 60, "it trains")
        before = sorted(p.pid for p in self.processes("worker"))
        self.coordinator.kill()
        self.coordinator.wait()
        os.rename(self.journal, self.journal + ".kept")
        self.start_again()
        started = time.monotonic()
        wait_until(lambda: "are ended at" in self.said("node"), 20, "the agent names the orphans")
        named = time.monotonic() - started
        self.assertIn(job, self.said("node"))
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), before)
        self.coordinator.kill()
        self.coordinator.wait()
        os.rename(self.journal, self.journal + ".empty")
        os.rename(self.journal + ".kept", self.journal)
        self.start_again()
        started = time.monotonic()
        wait_until(lambda: "is back" in self.said("node"), 20, "the agent hears of them again")
        back = time.monotonic() - started
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), before)
        step = self.step(job)
        wait_until(lambda: self.step(job) > step, 20, "the job goes on")
        self.measured(12, f"0 workers ended; those that nobody knows are named after {named:.1f} s, "
                          f"known again {back:.1f} s after the journal is back")


class LowLimits(harness.ProgramTest):
    def check(self, limit, value, flag, **options):
        job = self.write("job.yaml", harness.synthetic_job(nproc=2))
        os.chmod(self.dir, 0o755)
        join = ["join", "--coordinator=unix:/nowhere/sock", "--slots=2"]
        for arguments in ([job], join):
            code, out, err = self.launch(*arguments, preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
                                         seconds=20, **options)
            self.assertEqual(code, 5, out + err)
            self.assertIn(f"(ulimit {flag})", err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)

    def test_open_files(self):
        self.check(resource.RLIMIT_NOFILE, 64, "-n")

    def test_file_size(self):
        self.check(resource.RLIMIT_FSIZE, 1 << 20, "-f")

    def test_addresses(self):
        self.check(resource.RLIMIT_AS, 400 << 20, "-v")

    def test_data(self):
        self.check(resource.RLIMIT_DATA, 120 << 20, "-d")

    def test_processes(self):
        if os.geteuid() == 0:
            # Root has no such limit.
            if os.spawnlp(os.P_WAIT, "setpriv", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}",
                          "--clear-groups", "test", "-x", os.path.join(harness.BIN, "launcher")) != 0:
                self.skipTest("SKIPPED: another user cannot run the programs where they lie")
            self.check(resource.RLIMIT_NPROC, 10, "-u", user=NOBODY, group=NOBODY, extra_groups=[])
        else:
            self.check(resource.RLIMIT_NPROC, 10, "-u")

    def test_programs_without_workers(self):
        job = self.write("job.yaml", harness.synthetic_job(nproc=2))
        for limit, value, flag in ((resource.RLIMIT_NOFILE, 12, "-n"), (resource.RLIMIT_AS, 400 << 20, "-v")):
            for command in (["launcher", "plan", job], ["coordinator", f"--state-dir={self.dir}/state"]):
                with self.subTest(flag=flag, program=command[0]):
                    ended = subprocess.run([os.path.join(harness.BIN, command[0]), *command[1:]], env=self.environment(),
                                           preexec_fn=lambda: resource.setrlimit(limit, (value, value)),
                                           capture_output=True, text=True, timeout=harness.patient(), check=False)
                    self.assertNotEqual(ended.returncode, 0, ended.stdout)
                    self.assertIn(f"(ulimit {flag})", ended.stderr)
                    self.assertEqual(len(ended.stderr.strip().splitlines()), 1, ended.stderr)

    def test_a_journal_at_the_limit_of_a_files_size_names_it(self):
        ended = subprocess.run([os.path.join(harness.BIN, "coordinator"), f"--state-dir={self.dir}/state"],
                               env=self.environment(), preexec_fn=lambda: resource.setrlimit(
                                   resource.RLIMIT_FSIZE, (4096, 4096)),
                               capture_output=True, text=True, timeout=harness.patient(), check=False)
        self.assertNotEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("ulimit -f", ended.stderr)

    def test_a_file_that_grows_beyond_the_limit_is_named(self):
        # Enough to start with, not enough for the state that the workers share.
        job = self.write("job.yaml", harness.synthetic_job(nproc=2, hidden="[8000, 1000]"))
        limit = 16 << 20
        code, out, err = self.launch(
            job, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), seconds=60)
        self.assertNotIn(code, (0, 128 + signal.SIGXFSZ), out + err)
        self.assertIn("ulimit -f", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
