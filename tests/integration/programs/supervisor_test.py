# SPDX-License-Identifier: Apache-2.0
"""Workers outlive their agent: supervisors keep them, and the next agent takes them over."""

import array
import fcntl
import os
import resource
import shutil
import signal
import sys
import termios
import time
import unittest

import harness
from harness import steps_that_last, wait_until
from nodes import Nodes


DISK = os.environ.get("LOCKSTEP_DISK_TROUBLE", "")  # the library that makes the trouble

# Prints numbered lines, and none while it is held.
COUNT = """
import os, time
i = 0
while not os.path.exists("go"):
    if os.path.exists("hold"):
        open("held", "w").close()
    else:
        print("line", i, flush=True)
        i += 1
        with open("printing", "w") as file:
            file.write(str(i))
        os.rename("printing", "printed")
    time.sleep(0.002)
"""


class Supervised(Nodes):
    def job_file(self, nodes=1, nproc=2, steps=steps_that_last(30), restarts=0, name="tiny"):
        return self.write(f"{name}.yaml", harness.synthetic_job(
            name=name, steps=steps, shards=2, hidden="[64]", train_extra="  eval: {every: never}\n",
            extra=f"restart: {{max_restarts: {restarts}}}\nelastic: {{min_workers: 1}}\nfailure_detection: 1s\n").replace(
                "nproc_per_node: 4", f"nodes: {nodes}, nproc_per_node: {nproc}"))

    def workers(self):
        return {p.pid for p in self.processes("worker")}

    def supervisors(self):
        return {p.pid for p in self.processes("lockstep-supervisor")}

    def end(self, agent, number):
        """Ends the agent alone, and sees that steps go on without it."""
        agent.send_signal(number)
        agent.wait(timeout=harness.patient())

    def steps_go_on(self, job):
        step = self.step(job)
        wait_until(lambda: self.step(job) > step + 50, 30, "the job goes on")

    def training(self, path, *arguments, **env):
        """A node with the job on it."""
        agent = self.start_agent("node", 2, *arguments, **env)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "it trains")
        return agent, job

    def ended(self, job, expected=None):
        self.unpace()
        status = wait_until(lambda: (s := self.status(job))["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") and s,
                            240, "the job ends")
        self.assertEqual(status["state"], "SUCCEEDED", status)
        if expected is not None:
            self.assertEqual(status["result"]["model_sha256"], expected)
        return status

    def read(self, path):
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def submit_command(self, program, restarts=0, nproc=1):
        path = self.write("program.py", program)
        job = self.write("command.yaml", f"name: command\nresources: {{nodes: 1, nproc_per_node: {nproc}, device: cpu}}\n"
                         f"run: [{sys.executable}, {path}]\nrestart: {{max_restarts: {restarts}}}\n")
        return self.submit(job)


class Adoption(Supervised):
    def check_undisturbed(self, end, path=None, step_time=harness.PACED["LOCKSTEP_STEP_TIME"], **env):
        path = path or self.job_file()
        expected = self.undisturbed(path, env=env)
        agent, job = self.training(path, LOCKSTEP_STEP_TIME=step_time, **env)
        before, supervisors = self.workers(), self.supervisors()
        self.assertEqual((len(before), len(supervisors)), (2, 1))
        end(agent)
        self.steps_go_on(job)
        self.assertEqual(self.workers(), before)
        self.start_agent("node", 2, **env)
        wait_until(lambda: self.said("node").count("is taken over") == 2, 20, "the next agent takes them over")
        self.assertEqual((self.workers(), self.supervisors()), (before, supervisors))
        status = self.ended(job, expected)
        self.assertEqual(int(status["restarts"]), 0)
        self.assertEqual(status["result"]["faults"], [], "nobody failed")
        wait_until(lambda: not self.supervisors() and not self.workers(), 20, "nothing is left")
        self.assertEqual(os.listdir(os.path.join(self.dir, "node/supervisors")), [])

    def test_an_agent_that_is_killed(self):
        self.check_undisturbed(lambda agent: self.end(agent, signal.SIGKILL))

    def test_an_agent_that_is_to_be_started_again(self):
        self.check_undisturbed(lambda agent: self.end(agent, signal.SIGTERM))

    def kill_spawner(self, agent):
        """The agent that has tried its GPUs ends without the process that it starts such trials with."""
        spawner, = [process for process in self.processes("launcher") if process.parent() == agent.pid]
        spawner.kill()
        self.assertEqual(agent.wait(timeout=harness.patient()), 1)
        self.assertIn("the spawner process was killed", self.said("node"))

    def test_an_agent_of_gpus_whose_spawner_is_killed(self):
        path = self.job_file(steps=400)  # emulated steps are long: few, that outlast this
        with open(path, encoding="utf-8") as file:
            text = file.read().replace("device: cpu", "device: cuda")
        # Emulated GPUs have no cuBLASLt, without which the trial fails.
        program = self.write("well", "#!/bin/sh\ncase $1 in --offline-fd=*) exit 0;; esac\n"
                             f'exec {os.path.join(harness.BIN, "worker")} "$@"\n')
        os.chmod(program, 0o755)
        self.check_undisturbed(self.kill_spawner, self.write("gpu.yaml", text), "100ms", LOCKSTEP_WORKER=program,
                               LOCKSTEP_CUDA_MODULE=os.environ["LOCKSTEP_EMULATED_MODULE"],
                               LOCKSTEP_NVML_LIBRARY=os.environ["LOCKSTEP_FAKE_NVML"], CUDA_VISIBLE_DEVICES="1,0")

    def test_a_worker_that_dies_without_an_agent_is_replaced_by_the_next_one(self):
        path = self.job_file(restarts=1)
        expected = self.undisturbed(path)
        agent, job = self.training(path)
        before = self.workers()
        self.end(agent, signal.SIGKILL)
        dead = min(before)
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{dead}"), 10, "its supervisor knows that it is gone")
        self.assertEqual(len(self.workers()), 1)
        self.start_agent("node", 2)
        wait_until(lambda: "has ended while no agent was here" in self.said("node"), 20, "the agent hears of it")
        wait_until(lambda: len(self.workers()) == 2, 20, "it is replaced")
        status = self.ended(job, expected)
        self.assertEqual(int(status["restarts"]), 1)
        self.assertIn("SIGKILL", status["result"]["faults"][0]["cause"])

    def test_replacements_are_of_the_others_build_where_the_next_agents_lies_elsewhere(self):
        programs = []
        for folder in ("before", "after"):
            os.mkdir(os.path.join(self.dir, folder))
            programs.append(shutil.copy(os.path.join(harness.BIN, "worker"), os.path.join(self.dir, folder)))
        path = self.job_file(restarts=1)
        expected = self.undisturbed(path)
        agent, job = self.training(path, LOCKSTEP_WORKER=programs[0])
        before = self.workers()
        self.end(agent, signal.SIGTERM)
        self.start_agent("node", 2, LOCKSTEP_WORKER=programs[1])
        wait_until(lambda: self.said("node").count("is taken over") == 2, 20, "the next agent takes them over")
        os.kill(min(before), signal.SIGKILL)
        newcomer = wait_until(lambda: self.workers() - before, 30, "it is replaced")
        self.assertEqual({os.stat(f"/proc/{pid}/exe").st_ino for pid in newcomer}, {os.stat(programs[0]).st_ino})
        self.assertEqual(int(self.ended(job, expected)["restarts"]), 1)

    def test_the_job_ends_while_no_agent_is_there(self):
        path = self.job_file()
        expected = self.undisturbed(path)
        agent, job = self.training(path)
        self.end(agent, signal.SIGKILL)
        self.unpace()
        wait_until(lambda: not self.workers(), 60, "the workers are through")
        self.start_agent("node", 2)
        self.assertEqual(int(self.ended(job, expected)["restarts"]), 0)
        wait_until(lambda: not self.supervisors(), 20, "the supervisor ends")

    def test_what_is_printed_meanwhile_is_in_the_log(self):
        job, log = self.counting()
        self.kill_between_lines(log)
        count = self.printed()
        wait_until(lambda: self.read(log).count("\n") > count + 20, 30, "it prints on")
        meanwhile = range(count, self.printed())
        self.start_agent("node", 1)
        self.take_over(1)
        self.prints_on(20, "it prints to the next agent")
        self.write("go", "")
        self.ended(job)
        self.assertEqual(self.read(log).splitlines(), [f"line {i}" for i in range(self.printed())])
        told = [line.split("] ")[1] for line in self.ask("logs", job).splitlines() if "] line" in line]
        self.assertEqual([line for line in told if int(line.split()[1]) in meanwhile],
                         [f"line {i}" for i in meanwhile], "who asks for it hears of it, in order")

    def test_a_line_that_is_begun_is_whole_with_the_next_agent(self):
        self.start_agent("node", 1)
        job = self.submit_command("import os, time\nprint('begun', end=' ', flush=True)\nopen('ran', 'w').close()\n"
                                  "while not os.path.exists('go'): time.sleep(0.05)\nprint('and ended')\n")
        wait_until(lambda: os.path.exists(os.path.join(self.dir, "ran")), 30, "it runs")
        (rank,) = [p for p in self.processes() if "program.py" in p.argv[-1] and p.name.startswith("python")]
        with open(f"/proc/{rank.pid}/fd/1", "wb", buffering=0) as pipe:
            def unread():
                count = array.array("i", [0])
                fcntl.ioctl(pipe, termios.FIONREAD, count)
                return count[0]
            wait_until(lambda: unread() == 0, 30, "the agent has read it")
        self.end(self.agents["node"], signal.SIGTERM)
        self.start_agent("node", 1)
        self.write("go", "")
        status = self.ended(job)
        self.assertEqual(self.read(os.path.join(self.dir, status["run_dir"], "logs/0.log")), "begun and ended\n")

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_runs_disk_that_hangs_does_not_keep_its_agent(self):
        disk = self.write("disk", "well")
        self.start_agent("node", 1, LD_PRELOAD=DISK, LOCKSTEP_TEST_DISK=disk, LOCKSTEP_TEST_DISK_OF="logs/0.log")
        job = self.submit_command("import os, time\nwhile not os.path.exists('go'):\n"
                                  "  print('line', flush=True)\n  time.sleep(0.01)\n")
        log = os.path.join(self.dir, self.describe(job)["status"]["run_dir"], "logs/0.log")
        wait_until(lambda: "line" in self.read(log), 30, "it prints")
        self.write("disk", "stalls")
        wait_until(lambda: "has not answered" in self.said("node"), 60, "the agent waits for the disk")
        self.end(self.agents["node"], signal.SIGTERM)
        self.assertIn("a run's disk does not answer", self.said("node"))
        self.write("disk", "well")
        self.write("go", "")
        self.start_agent("node", 1)
        self.ended(job)

    def trouble(self):
        """An agent's environment with which its logs' disk is as the file `disk` says."""
        return {"LD_PRELOAD": DISK, "LOCKSTEP_TEST_DISK": self.write("disk", "well"),
                "LOCKSTEP_TEST_DISK_OF": "logs/0.log"}

    def take_over(self, times):
        wait_until(lambda: self.said("node").count("is taken over") == times, 20, "the next agent takes it over")

    def counting(self, program=COUNT, **trouble):
        """A node with a job that prints numbered lines; the job, and its log."""
        self.start_agent("node", 1, **trouble)
        job = self.submit_command(program)
        log = os.path.join(self.dir, self.describe(job)["status"]["run_dir"], "logs/0.log")
        wait_until(lambda: "line" in self.read(log), 30, "it prints")
        return job, log

    def printed(self):
        return int(self.read(os.path.join(self.dir, "printed")) or 0)

    def prints_on(self, lines, why):
        count = self.printed()
        wait_until(lambda: self.printed() > count + lines, 30, why)

    def kill_between_lines(self, log):
        """Kills the agent when it has written what it has read, which is lost with it otherwise."""
        hold, held = self.write("hold", ""), os.path.join(self.dir, "held")
        wait_until(lambda: os.path.exists(held), 30, "the job prints nothing for a while")
        wait_until(lambda: self.read(log).count("\n") == self.printed(), 30, "its lines are written")
        self.end(self.agents["node"], signal.SIGKILL)
        os.remove(hold)

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_a_log_that_hangs_keeps_no_worker_from_the_next_agent(self):
        trouble = self.trouble()
        job, log = self.counting(**trouble)
        self.kill_between_lines(log)
        self.prints_on(50, "it prints on")
        self.write("disk", "stalls")
        count = self.printed()
        self.prints_on(500, "nor does the worker wait for its log")
        self.start_agent("node", 1, **trouble)
        self.take_over(1)
        self.write("disk", "well")
        self.write("go", "")
        self.ended(job)
        # This disk lets those that wait write in any order.
        lines = self.read(log).splitlines()
        self.assertEqual(sorted(lines), sorted(f"line {i}" for i in range(len(lines))), "nothing is missing")
        self.assertGreater(len(lines), count)
        wait_until(lambda: not self.supervisors(), 20, "the supervisor ends")

    @unittest.skipIf(harness.SANITIZED, "a sanitizer's runtime must be loaded first")
    def test_an_agent_that_ends_while_a_log_hangs_leaves_its_lines_to_the_next_one(self):
        trouble = self.trouble()
        job, log = self.counting(**trouble)
        self.kill_between_lines(log)
        self.write("disk", "stalls")
        self.prints_on(500, "its supervisor keeps what it prints")
        for number in (1, 2):
            self.start_agent("node", 1, **trouble)
            self.take_over(number)
            self.prints_on(200, "and reads on")
            self.end(self.agents["node"], signal.SIGTERM)
        self.start_agent("node", 1, **trouble)
        self.take_over(3)
        self.write("disk", "well")
        self.write("go", "")
        self.ended(job)
        lines = self.read(log).splitlines()
        self.assertEqual(sorted(lines), sorted(f"line {i}" for i in range(self.printed())), "nothing is missing")
        told = [line.split("] ")[1] for line in self.ask("logs", job).splitlines() if "] line" in line]
        self.assertGreater(len(told), 0)
        self.assertEqual(len(told), len(set(told)), "nothing is told twice")
        wait_until(lambda: not self.supervisors(), 20, "the supervisor ends")

    def test_a_supervisor_without_a_descriptor_tells_the_next_agent_later(self):
        job, log = self.counting(COUNT.replace('"line", i', '"line", i, "x" * 1000'))
        self.kill_between_lines(log)
        supervisor, = self.supervisors()
        before = os.path.getsize(log)
        wait_until(lambda: os.path.getsize(log) > before + 100_000, 60, "what it keeps takes a descriptor to tell")
        used = {int(fd) for fd in os.listdir(f"/proc/{supervisor}/fd")}
        # For the agent's connection and what the agent gets: its pipes, its log and the life page.
        free = [fd for fd in range(len(used) + 6) if fd not in used][:5]
        limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (free[-1] + 1, limits[1]))
        self.start_agent("node", 1)
        wait_until(lambda: len(os.listdir(f"/proc/{supervisor}/fd")) == len(used) + 5, 20, "it cannot tell of its worker")
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
        self.take_over(1)
        self.write("go", "")
        self.ended(job)
        lines = [line.removesuffix(" " + "x" * 1000) for line in self.read(log).splitlines()]
        self.assertEqual(lines, [f"line {i}" for i in range(self.printed())])

    def test_a_command_goes_on_without_an_agent(self):
        self.start_agent("node", 2)
        job = self.submit_command("import os, time\nopen('ran', 'a').write(os.environ['RANK'])\ntime.sleep(8)\n", nproc=2)
        wait_until(lambda: sorted(self.read(os.path.join(self.dir, "ran"))) == ["0", "1"], 30, "both ranks run")
        self.end(self.agents["node"], signal.SIGKILL)
        self.start_agent("node", 2)
        self.assertEqual(int(self.ended(job)["restarts"]), 0)
        self.assertEqual(sorted(self.read(os.path.join(self.dir, "ran"))), ["0", "1"], "each once")

    def test_a_command_that_fails_without_an_agent_begins_again_with_the_next_one(self):
        self.start_agent("node", 1)
        job = self.submit_command(
            "import os, sys, time\nopen('ran', 'a').write('x')\n"
            "while not os.path.exists('go'): time.sleep(0.05)\n"
            "sys.exit(0 if os.path.getsize('ran') > 1 else 7)\n", restarts=1)
        wait_until(lambda: self.read(os.path.join(self.dir, "ran")) == "x", 30, "it runs")
        self.end(self.agents["node"], signal.SIGKILL)
        self.write("go", "")
        wait_until(lambda: not self.workers(), 20, "it fails")
        self.start_agent("node", 1)
        status = self.ended(job)
        self.assertEqual(int(status["restarts"]), 1)
        self.assertIn("7", status["result"]["faults"][0]["cause"])


class Endings(Supervised):
    def test_without_an_agent_the_workers_end_after_the_grace(self):
        agent, _ = self.training(self.job_file(steps=200000), "--orphan-grace=10s")
        self.end(agent, signal.SIGKILL)
        self.assertEqual(len(self.workers()), 2, "not at once")
        wait_until(lambda: not self.workers() and not self.supervisors(), 30, "they are ended")

    def test_no_grace_ends_them_with_the_agent(self):
        agent, _ = self.training(self.job_file(steps=200000), "--orphan-grace=0s")
        self.end(agent, signal.SIGKILL)
        wait_until(lambda: not self.workers() and not self.supervisors(), 20, "they are ended")

    def test_a_killed_supervisor_takes_its_workers_along_and_they_are_replaced(self):
        path = self.job_file(restarts=1)
        expected = self.undisturbed(path)
        _, job = self.training(path)
        before = self.workers()
        os.kill(min(self.supervisors()), signal.SIGKILL)
        wait_until(lambda: len(self.workers() - before) == 2, 30, "they are replaced")
        # All that held the state are gone, so it begins anew.
        status = self.ended(job, expected)
        self.assertEqual(int(status["restarts"]), 1)
        self.assertIn("SIGKILL", status["result"]["faults"][0]["cause"])

    def test_what_is_asked_of_an_ending_supervisor_is_ended_too(self):
        agent, job = self.training(self.job_file(steps=200000, restarts=5), "--orphan-grace=2s")
        supervisor = min(self.supervisors())
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(min(self.workers()), signal.SIGKILL)
        wait_until(lambda: int(self.status(job)["restarts"]) == 1, 20, "a replacement is asked for")
        time.sleep(0.2)  # the agent has asked too
        os.kill(supervisor, signal.SIGTERM)
        os.kill(supervisor, signal.SIGCONT)
        self.end(agent, signal.SIGKILL)
        wait_until(lambda: not self.workers() and not self.supervisors(), 30, "all have ended")

    def test_a_stopped_keeper_of_a_killed_supervisor_is_ended(self):
        self.start_agent("node", 1)
        job = self.submit_command(
            "import os, time\nopen('ran', 'a').write('x')\nwhile not os.path.exists('go'): time.sleep(0.05)\n",
            restarts=1)
        ran = os.path.join(self.dir, "ran")
        wait_until(lambda: self.read(ran) == "x", 30, "it runs")
        before = self.workers()
        os.kill(min(before), signal.SIGSTOP)
        os.kill(min(self.supervisors()), signal.SIGKILL)
        wait_until(lambda: self.read(ran) == "xx", 60, "it runs anew")
        self.assertFalse(before & self.workers(), "the stopped one is gone")
        self.write("go", "")
        self.assertEqual(int(self.ended(job)["restarts"]), 1)

    def test_a_node_that_leaves_costs_no_restart(self):
        path = self.job_file(nodes=2, nproc=1)
        expected = self.undisturbed(path)
        agents = [self.start_agent(name, 1, "--leave-grace=100s") for name in ("one", "two")]
        wait_until(lambda: len([n for n in self.nodes() if n["connected"]]) == 2, 20, "both are there")
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "it trains")
        self.end(agents[1], signal.SIGINT)
        wait_until(lambda: len(self.workers()) == 1, 20, "its worker has left with it")
        self.start_agent("two", 1)
        status = self.ended(job, expected)
        self.assertEqual(int(status["restarts"]), 0, status)
        self.assertEqual(status["result"]["faults"], [], "its worker left between two steps")

    def test_sigterm_means_leaving_where_it_is_told_so(self):
        agent, _ = self.training(self.job_file(steps=200000), "--leave-on-sigterm")
        self.end(agent, signal.SIGTERM)
        wait_until(lambda: not self.workers() and not self.supervisors(), 20, "all has left")


class Versions(Supervised):
    def test_a_newer_agent_is_refused_and_ends_nothing(self):
        path = self.job_file()
        expected = self.undisturbed(path)
        agent, job = self.training(path)
        before = self.workers()
        self.end(agent, signal.SIGTERM)
        newer = self.start_agent("node", 2, LOCKSTEP_PROTOCOL_VERSION="99")
        wait_until(lambda: "upgrade the coordinator first" in self.said("node"), 20, "it is told why")
        self.assertIn("2 workers of this node go on", self.said("node"))
        self.steps_go_on(job)
        self.assertEqual(self.workers(), before)
        # Undone in time.
        self.end(newer, signal.SIGTERM)
        self.start_agent("node", 2)
        self.assertEqual(int(self.ended(job, expected)["restarts"]), 0)

    def other_build(self, path):
        """A job that trains on one node, and another one whose workers say other things to each other."""
        first = self.join("node", 2)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 50, 60, "it trains")
        return job, first, self.join("upgraded", 2, LOCKSTEP_PEER_PROTOCOL="99")

    def check_left_out(self, job, node):
        """The job goes on with its own workers, to what they give undisturbed."""
        exclusion, = wait_until(lambda: self.node(node)["exclusions"], 60, "the node is left out by the job")
        self.assertIn("another build of lockstep", exclusion["reason"])
        self.assertIn("another build of lockstep", self.ask("nodes"))
        self.assertEqual(self.node(node)["state"], "up", "by this job alone")
        self.steps_go_on(job)

    def test_a_node_of_another_build_relieves_no_drained_one(self):
        path = self.job_file()
        expected = self.undisturbed(path)
        job, first, upgraded = self.other_build(path)
        before = self.workers()
        self.ask("drain", first)
        self.check_left_out(job, upgraded)
        self.assertLessEqual(before, self.workers(), "they stay")
        self.end_of(job, expected)

    def test_a_node_of_another_build_takes_no_dead_workers_place(self):
        path = self.job_file(restarts=1)
        expected = self.undisturbed(path)
        job, first, upgraded = self.other_build(path)
        self.ask("drain", first)
        self.check_left_out(job, upgraded)
        os.kill(min(self.workers()), signal.SIGKILL)
        wait_until(lambda: int(self.status(job)["restarts"]) == 1, 60, "the job goes on with the other one")
        self.steps_go_on(job)
        self.assertEqual(int(self.ended(job, expected)["restarts"]), 1)

    def test_agents_of_the_version_before_are_served(self):
        path = self.job_file(steps=100)
        self.start_agent("node", 2, LOCKSTEP_PROTOCOL_VERSION="1")
        self.ended(self.submit(path), self.undisturbed(path))

    def test_older_ones_are_told_and_end_nothing(self):
        agent, job = self.training(self.job_file(steps=200000))
        before = self.workers()
        self.coordinator.terminate()
        self.coordinator.wait()
        self.start_again(LOCKSTEP_PROTOCOL_VERSION="4")
        wait_until(lambda: "the coordinator 4 and 3: upgrade the agent" in self.said("node"), 20, "it is told why")
        self.assertIsNone(agent.poll())
        self.assertEqual(self.workers(), before)
        self.coordinator.terminate()
        self.coordinator.wait()
        self.start_again()
        self.steps_go_on(job)
        self.assertEqual(self.workers(), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
