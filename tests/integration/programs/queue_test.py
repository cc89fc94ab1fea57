# SPDX-License-Identifier: Apache-2.0
"""What docs/queue.md promises, of a coordinator with agents: who waits for whom and why, and what was used. Who makes
room for whom is preemption_test.py's."""

import contextlib
import json
import os
import re
import signal
import unittest

import harness
from gates import Gates, seconds_between
from harness import steps_that_last, wait_until


def threads_of(pid):
    names = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
            names.append(file.read().strip())
    return names


class Submissions(Gates):
    def test_wait_has_the_jobs_exit_code(self):
        self.join("one", 3)
        for name, code, state in (("good", 0, "SUCCEEDED"), ("bad", 7, "FAILED")):
            child = self.start_waiting(self.gate_file(name))
            self.await_began(name)
            self.assertIsNone(child.poll(), "it waits for the end")
            self.end(name, code)
            got, out, err = self.finish(child)
            self.assertEqual(got, code, out + err)
            self.assertIn(state, err)
            self.assertNotIn("this is", out + err, "nothing of the job is shown")

        child = self.start_waiting(self.gate_file("ended"))
        self.await_began("ended")
        self.ask("cancel", "ended")
        code, out, err = self.finish(child)
        self.assertEqual(code, 130, out + err)
        self.assertIn("CANCELLED", err)

        child = self.start_waiting(self.gate_file("killed"))
        self.await_began("killed")
        victim, = [p for p in self.processes() if p.argv[1:] == ["gate.py", "killed"]]
        victim.kill()
        code, out, err = self.finish(child)
        self.assertEqual(code, 128 + signal.SIGKILL, out + err)

    def test_wait_for_an_array_has_the_code_of_the_first_that_failed(self):
        self.join("one", 3)
        path = self.write("many.yaml", "run: [python3, gate.py, 'many${LOCKSTEP_ARRAY_INDEX}']\n")
        child = self.start_waiting("--array=0-2", path)
        for index, code in ((2, 9), (1, 8), (0, 0)):
            self.await_began(f"many{index}")
            self.assertIsNone(child.poll(), "it waits for all")
            self.end(f"many{index}", code)
        code, out, err = self.finish(child)
        self.assertEqual(code, 8, out + err)
        self.assertEqual(len(out.split()), 3, "the ids of all")

    def test_an_array_that_is_interrupted_says_what_was_accepted(self):
        path = self.write("many.yaml", "run: 'true'\n")
        self.coordinator.send_signal(signal.SIGSTOP)
        child = self.start("launcher", "submit", f"--coordinator={self.address}", "--array=0-999", path)
        wait_until(lambda: "signals" in threads_of(child.pid), 20, "it listens to signals")
        child.send_signal(signal.SIGINT)
        self.coordinator.send_signal(signal.SIGCONT)
        code, out, err = self.finish(child)
        self.assertEqual(code, 130, out + err)
        accepted = re.search(r"interrupted; (\d+) of 1000 jobs of the array were accepted; to end (?:it|them): "
                             r"launcher cancel --coordinator=\S+ (.*)", err)
        self.assertEqual(out, "")
        jobs = [job["job_id"] for job in json.loads(self.ask("list", "-o", "json"))["jobs"]]
        self.assertLess(len(jobs), 1000)
        if accepted is None:
            self.assertEqual(jobs, [], err)
            self.assertIn("error: interrupted", err)
        else:
            self.assertEqual(sorted(accepted[2].split()), sorted(jobs))
            self.assertEqual(int(accepted[1]), len(jobs))

    def test_a_commands_logs_are_fetched_and_no_model_is_missed(self):
        self.join("one", 1)
        path = self.write("says.yaml", "run: echo what it says\n")
        job = self.ask("submit", "--wait", path).strip()
        self.ask("fetch", "--to", "got", job)
        with open(os.path.join(self.dir, "got", "logs", "0.log"), encoding="utf-8") as file:
            self.assertIn("what it says", file.read())
        code, out, err = self.launch("logs", f"--coordinator={self.address}", "--rank=7", job)
        self.assertEqual((code, out), (0, ""), err)
        self.assertIn("no line of a rank 7", err)
        code, out, err = self.launch("fetch", f"--coordinator={self.address}", "--model", "--to", "model", job)
        self.assertEqual(code, 1, out + err)
        self.assertIn("runs a command, which writes no model", err)

    def test_an_array_is_cancelled_as_submit_says(self):
        path = self.write("many.yaml", "run: 'true'\n")
        coordinator = f"--coordinator={self.address}"
        code, out, err = self.launch("submit", coordinator, "--no-follow", "--array=0-2", path)
        self.assertEqual(code, 0, err)
        jobs = out.split()
        told = re.search(rf"end them: +launcher cancel {coordinator} (.*)", err)
        self.assertEqual(told and told[1].split(), jobs, err)
        code, out, err = self.launch("cancel", coordinator, jobs[0], "nobody", *jobs[1:])
        self.assertEqual(code, 1, "of the one that is not there")
        self.assertIn("there is no job 'nobody'", err)
        states = {job["state"] for job in json.loads(self.ask("list", "-o", "json"))["jobs"]}
        self.assertEqual(states, {"CANCELLED"})

    def test_a_pipe_has_the_file_of_a_whole_array(self):
        read, write = os.pipe()
        with os.fdopen(write, "w", encoding="utf-8") as file:
            file.write("name: piped\nrun: 'true'\n")
        with os.fdopen(read) as pipe:
            code, out, err = self.launch("submit", f"--coordinator={self.address}", "--no-follow", "--array=0-1", "-",
                                         stdin=pipe)
        self.assertEqual(code, 0, err)
        self.assertEqual([self.status(job)["name"] for job in out.split()], ["piped-0", "piped-1"])

    def test_an_array_runs_one_at_once(self):
        self.join("one", 3)
        path = self.write("many.yaml", "run: [python3, gate.py, 'many${LOCKSTEP_ARRAY_INDEX}']\n")
        out = self.ask("submit", "--no-follow", "-o", "json", "--array=0-2%1", path)
        jobs = [json.loads(line)["job"] for line in out.splitlines()]
        self.assertEqual(len(jobs), 3)
        # What waits for the array waits for all of it.
        after = self.gate("after", f"--after={jobs[0]}")
        for index, job in enumerate(jobs):
            described = self.describe(job)
            self.assertEqual(described["status"]["name"], f"many-{index}")
            element = described["status"]["queue"]["array"]
            self.assertEqual((element["id"], element.get("index", 0), element["at_once"]), (jobs[0], index, 1))
            self.assertEqual(self.await_began(f"many{index}"), [f"0 {index}"], "a variable of the workers")
            for later in range(index + 1, 3):
                self.await_reason(jobs[later], "its array runs 1 at once")
                self.assertEqual(self.began(f"many{later}"), [])
            self.await_reason(after, "waits for the success of ")
            wait_until(lambda: int(self.nodes()[0]["used_slots"]) == 1, 20, "the other slots are free")
            self.end(f"many{index}")
        self.await_began("after")
        for job in jobs:
            self.assertEqual(self.status(job)["state"], "SUCCEEDED")
        self.end("after")
        self.await_end(after)
        folders = {self.status(job)["run_dir"] for job in jobs}
        self.assertEqual(len(folders), 3, folders)

    def test_set_and_a_name_of_ones_own_have_the_number(self):
        path = self.write("many.yaml", "name: 'set${LOCKSTEP_ARRAY_INDEX}of2'\nrun: [python3, gate.py, x]\n"
                                       "env: {SEED: '1'}\n")
        out = self.ask("submit", "--no-follow", "-o", "json", "--array=3-5", "--set",
                       "env.SEED=${LOCKSTEP_ARRAY_INDEX}7", path)
        for index, line in zip((3, 4, 5), out.splitlines(), strict=True):
            job = self.describe(json.loads(line)["job"])
            self.assertEqual(job["status"]["name"], f"set{index}of2")
            self.assertEqual(job["spec"]["env"]["SEED"], f"{index}7")

    def test_after_waits_for_a_success(self):
        self.join("one", 4)
        first = self.gate("first")
        good = self.gate("good", f"--after={first}")
        self.await_began("first")
        reason = self.await_reason(good, "waits for the success of ")
        self.assertIn(first, reason)
        self.assertEqual(self.describe(good)["status"]["queue"]["after"], [first])
        self.assertIn("not known: it waits for other jobs", self.ask("describe", good))
        # The order outlives the coordinator.
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()
        self.await_reason(good, "waits for the success of ")
        self.assertEqual(self.began("good"), [])
        self.end("first")
        self.await_began("good")
        self.end("good")
        self.await_end(good)
        ended, started = self.describe(first)["status"]["ended"], self.describe(good)["status"]["started"]
        self.assertLessEqual(ended, started)

    def test_what_waits_for_a_failure_is_cancelled_unless_any_end_will_do(self):
        self.join("one", 4)
        first = self.gate("first")
        needs = self.gate("needs", f"--after={first}")
        next_one = self.gate("next", f"--after={needs}")
        whatever = self.gate("whatever", f"--after-any={first}")
        self.await_began("first")
        self.assertIn(first, self.await_reason(whatever, "waits for the end of "))
        self.end("first", 3)
        self.await_end(first, "FAILED")
        self.assertIn(first, self.await_end(needs, "CANCELLED")["reason"])
        self.assertIn(needs, self.await_end(next_one, "CANCELLED")["reason"])
        self.await_began("whatever")
        self.assertEqual(self.began("needs") + self.began("next"), [])
        self.end("whatever")
        self.await_end(whatever)
        # The same for one that comes when it is known already.
        code, out, err = self.launch("submit", f"--coordinator={self.address}", "--wait", f"--after={first}",
                                     self.gate_file("late"))
        self.assertNotEqual(code, 0, out + err)
        self.assertEqual(self.began("late"), [])

    def test_held_jobs_wait_until_they_are_released(self):
        self.join("one", 1)
        held = self.gate("held", "--hold")
        self.await_reason(held, "held; 'launcher release' lets it start")
        self.assertTrue(self.status(held)["queue"]["held"])
        # It holds nobody up.
        other = self.gate("other")
        self.await_began("other")
        waits = self.gate("waits")
        self.await_reason(waits, "needs 1 slot on 1 node; 1 node with 1 slot is connected, 0 free")
        self.ask("hold", waits)
        self.await_reason(waits, "held; ")
        self.ask("release", held)
        self.await_reason(held, "0 free")
        self.end("other")
        self.await_began("held")
        self.await_end(other)
        self.end("held")
        self.await_end(held)
        self.await_reason(waits, "held; ")
        self.assertEqual(self.began("waits"), [])
        self.ask("release", "waits")
        self.await_began("waits")
        self.end("waits")
        self.await_end(waits)
        for verb in ("hold", "release"):
            code, out, err = self.launch(verb, f"--coordinator={self.address}", held)
            self.assertNotEqual(code, 0, out + err)


class Order(Gates):
    def test_it_says_why_a_job_waits_and_what_comes_before_it(self):
        self.join("one", 2)
        first = self.gate("first", nproc=2, extra="time_limit: 1h\n")
        self.await_began("first", 2)
        huge = self.gate("huge", nproc=3)
        self.await_reason(huge, "needs 3 slots on 1 node; 1 node with 2 slots is connected, 0 free; no node has 3 "
                                "slots: 'launcher join --slots=3' makes one that has")
        wide = self.gate("wide", nproc=2, extra="time_limit: 1h\n")
        small = self.gate("small")
        self.await_reason(wide, "needs 2 slots on 1 node; 1 node with 2 slots is connected, 0 free")
        self.await_reason(small, f"; waits behind job {wide}")
        queue = [self.status(job)["queue"] for job in (huge, wide, small)]
        self.assertEqual([q["ahead"] for q in queue], [0, 1, 2])
        self.assertRegex(self.ask("describe", small), r"\nahead +2\n"
                         r"starts +in .* at the latest, by the time limits of those before it\n")
        self.assertNotIn("starts", queue[0])
        for starts, hours in ((queue[1]["starts"], 1), (queue[2]["starts"], 2)):
            self.assertAlmostEqual(seconds_between(self.status(first)["started"], starts), 3600 * hours,
                                   delta=60 * harness.PATIENCE)
        # Without a time limit before it nobody can say.
        later = self.gate("later", nproc=2)
        self.assertNotIn("starts", self.status(later)["queue"])
        self.assertRegex(self.ask("describe", later), r"\nstarts +not known: jobs without a time limit")
        for name in ("first", "wide", "small", "later"):
            self.end(name)
        for job in (first, wide, small, later):
            self.await_end(job)
        self.await_reason(huge, "no node has 3 slots")

    def test_the_higher_priority_goes_first(self):
        self.join("one", 1)
        # Nobody stops for another of the same priority, so all wait for the first.
        first = self.gate("first", extra="priority: 5\n")
        self.await_began("first")
        low = self.gate("low", extra="priority: -1\n")
        none = self.gate("none")
        high = self.gate("high", extra="priority: 5\n")
        self.await_reason(high, "0 free")
        self.assertEqual([self.status(job)["queue"]["ahead"] for job in (low, none, high)], [2, 1, 0])
        names = ["high", "none", "low"]
        self.end("first")
        for place, name in enumerate(names):
            self.await_began(name)
            for later in names[place + 1:]:
                self.assertEqual(self.began(later), [])
            self.end(name)
        for job in (first, high, none, low):
            self.assertEqual(self.await_end(job)["queue"].get("preemptions", 0), 0)

    def test_short_jobs_start_before_a_large_one_that_they_do_not_delay(self):
        self.join("one", 2)
        first = self.gate("first", extra="time_limit: 1h\n")
        self.await_began("first")
        wide = self.gate("wide", nproc=2)
        self.await_reason(wide, "1 free")
        endless = self.gate("endless")
        too_long = self.gate("long", extra="time_limit: 2h\n")
        short = self.gate("short", extra="time_limit: 30m\n")
        self.await_began("short")
        for job in (endless, too_long):
            self.await_reason(job, f"; waits behind job {wide}")
        self.end("short")
        self.await_end(short)
        self.assertEqual(self.began("endless") + self.began("long"), [])
        self.end("first")
        self.await_began("wide", 2)
        for name in ("wide", "endless", "long"):
            self.end(name)
        for job in (first, wide, endless, too_long):
            self.await_end(job)

    def test_a_job_beyond_its_users_quota_waits_and_says_so(self):
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again("--quota=*:slots=3,jobs=2")
        self.join("one", 8)
        first = self.gate("first", nproc=2)
        self.await_began("first", 2)
        beyond = self.gate("beyond", nproc=2)
        self.assertIn("quota: ", self.await_reason(beyond, "6 free"))
        # It holds nobody up, not even another one of its user's.
        small = self.gate("small")
        self.await_began("small")
        third = self.gate("third")
        self.await_reason(third, "quota: ")
        user, = self.used().values()
        self.assertEqual((user["slots"], user["most_slots"], user["running_jobs"], user["most_jobs"]), (3, 3, 2, 2))
        self.end("first")
        self.await_began("beyond", 2)
        self.assertEqual(self.began("third"), [])
        for name in ("small", "beyond", "third"):
            self.end(name)
        for job in (first, small, beyond, third):
            self.await_end(job)

    def test_labels_name_the_nodes(self):
        self.join("plain", 2)
        path = dict(extra="resources: {nproc_per_node: 1, labels: {gpu: h100, rack: r2}}\n")
        job = self.gate("picky", **path)
        self.await_reason(job, "needs 1 slot on 1 node with gpu=h100, rack=r2; no node with these labels is connected; "
                               "start one with 'launcher join --label gpu=h100 --label rack=r2'")
        self.join("wrong", 2, "--label", "gpu=h100", "--label", "rack=r1")
        self.await_reason(job, "no node with these labels is connected")
        # Others are not held up.
        other = self.gate("other")
        self.await_began("other")
        right = self.join("right", 1, "--label", "gpu=h100", "--label=rack=r2")
        self.await_began("picky")
        self.assertEqual(self.places(job), [right])
        self.end("picky")
        self.end("other")
        self.await_end(job)
        self.await_end(other)
        again = self.gate("again", **path)
        self.await_began("again")
        self.assertEqual(self.places(again), [right])
        self.end("again")
        self.await_end(again)


class Used(Gates):
    def test_usage_counts_slots_times_seconds(self):
        self.join("one", 3)
        self.assertEqual(self.used(), {})
        jobs = [self.gate("wide", nproc=2), self.gate("small")]
        self.await_began("wide", 2)
        self.await_began("small")
        waits = self.gate("waits", nproc=2)
        user, = self.used().values()
        self.assertEqual((user["slots"], user["running_jobs"], user["waiting_jobs"]), (3, 2, 1))
        # What runs is counted until now.
        first = user["slot_seconds"]
        wait_until(lambda: next(iter(self.used().values()))["slot_seconds"] > first, 20, "it goes on")
        self.end("wide")
        self.end("small")
        self.end("waits")
        total = 0
        for job, slots in zip(jobs + [waits], (2, 1, 2)):
            status = self.await_end(job)
            used = status["queue"]["slot_seconds"]
            self.assertGreater(used, 0)
            self.assertAlmostEqual(used, slots * seconds_between(status["started"], status["ended"]),
                                   delta=0.05 * slots, msg=status)
            total += used
        user, = self.used(f"--user={user['user']}").values()
        self.assertAlmostEqual(user["slot_seconds"], total, delta=0.1)
        self.assertEqual((user["ended_jobs"], user["slots"], user["running_jobs"]), (3, 0, 0))
        self.assertEqual(self.used("--user=nobody-else"), {})
        columns, row = self.ask("usage").splitlines()
        self.assertEqual(columns.split(),
                         "USER SLOT-HOURS GPU-HOURS ENDED RUNNING SLOTS GPUS WAITING".split())
        self.assertEqual(row.split()[0], user["user"])
        # It is kept beyond the coordinator.
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_again()
        again, = self.used().values()
        self.assertAlmostEqual(again["slot_seconds"], total, delta=0.1)

    def test_describe_says_what_a_failure_cost(self):
        path = self.write("job.yaml", harness.synthetic_job(
            steps=steps_that_last(60), shards=2, nproc=2, train_extra="  eval: {every: never}\n",
            extra="elastic: {min_workers: 1, max_workers: 2}\nrestart: {max_restarts: 3}\n"))
        self.join("one", 3)
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 100, 60, "it trains")
        self.assertNotIn("FAULT", self.ask("describe", job))
        victim = self.describe(job)["members"][1]
        os.kill(int(victim["pid"]), signal.SIGKILL)
        wait_until(lambda: self.step(job) > 200 and self.describe(job)["faults"], 60, "it trains again")
        described = wait_until(lambda: (d := self.describe(job))["faults"][0].get("replay_ms") and d, 60,
                               "it knows what it took")
        fault, = described["faults"]
        self.assertEqual((fault["rank"], fault["pid"], fault["signal"], fault["generation"]),
                         (victim["rank"], victim["pid"], signal.SIGKILL, 1))
        self.assertEqual(fault["host"], victim["host"])
        self.assertLessEqual(0, fault["detect_ms"])
        self.assertLessEqual(fault["detect_ms"], fault["rendezvous_ms"])
        self.assertLess(fault["rendezvous_ms"], fault["restore_ms"])
        self.assertLess(fault["restore_ms"], fault["to_next_step_ms"])
        self.assertLessEqual(fault["to_next_step_ms"], fault["replay_ms"])
        self.assertLess(fault["replay_ms"], 60e3 * harness.PATIENCE)
        self.assertIn("signal 9", fault["cause"])
        self.assertGreaterEqual(int(fault["steps_lost"]), 0)
        # The part of its time for which the oldest worker trained: its steps take as long as they are paced to.
        status = described["status"]
        trained = max(member["progress"]["train_seconds"] for member in described["members"])
        self.assertGreater(trained, 200 * harness.STEP_SECONDS / 2)
        self.assertAlmostEqual(described["goodput"], trained / seconds_between(status["started"], status["now"]),
                               delta=0.01)
        self.assert_table(job, fault)
        self.ask("cancel", "--kill", job)
        self.await_end(job, "CANCELLED")
        # That is kept, also for a coordinator that reads its journal.
        goodput = self.describe(job)["goodput"]
        self.coordinator.terminate()  # a kill may come before the end, which is told at once, is in the journal
        self.coordinator.wait()
        self.start_again()
        described = self.describe(job)
        self.assertEqual(described["faults"], [fault])
        self.assertAlmostEqual(described["goodput"], goodput, delta=0.01)
        self.assertGreater(goodput, 0)
        self.assert_table(job, fault)

    def assert_table(self, job, fault):
        """What describe shows to a person of a job's only failure."""
        lines = self.ask("describe", job).splitlines()
        at, = [i for i, line in enumerate(lines) if line.startswith("FAULT")]
        self.assertEqual(lines[at].split(),
                         ["FAULT", "RANK", "HOST", "DETECT", "RENDEZVOUS", "RESTORE", "REPLAY", "STEPS", "CAUSE"])
        ends = [0, *(fault[f"{part}_ms"] for part in ("detect", "rendezvous", "restore", "replay"))]
        times = [f"{end - begin:.0f} ms" if end > begin else "-" for begin, end in zip(ends, ends[1:])]
        self.assertEqual(re.split(r"  +", lines[at + 1]),
                         ["1", str(fault["rank"]), fault["host"], *times, str(fault["steps_lost"]), fault["cause"]])
        goodput, = [line for line in lines if line.startswith("goodput")]
        self.assertRegex(goodput, r"^goodput +\d+\.\d % of its time it trained$")


if __name__ == "__main__":
    unittest.main()
