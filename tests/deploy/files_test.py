# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/ by themselves: units by systemd, manifests by kustomize, what they say against the programs.

Takes seconds; what a machine has no program for is skipped, loudly."""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DEPLOY = os.path.join(ROOT, "deploy")
BIN = os.environ.get("LOCKSTEP_BIN", "")


def read(path):
    with open(os.path.join(DEPLOY, path), encoding="utf-8") as file:
        return file.read()


def needs(program):
    return unittest.skipIf(shutil.which(program) is None, f"SKIPPED: there is no program '{program}'")


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class TokensTest(unittest.TestCase):
    """What the documents say of tokens."""

    def test_no_page_gives_a_node_or_a_user_the_administrators_token(self):
        pages = glob.glob(os.path.join(ROOT, "docs/*.md")) + [os.path.join(ROOT, "README.md")]
        joins = 0
        for page in pages:
            with open(page, encoding="utf-8") as file:
                lines = file.read().splitlines()
            for number, line in enumerate(lines, 1):
                place = f"{os.path.basename(page)}:{number}: {line}"
                joins += "launcher join" in line and "--token-file token-of-" in line
                # Who makes tokens has it, on the coordinator's host; what runs a job on several hosts makes its own.
                if re.search(r"launcher (join|submit|nodes)\b|lockstep-hosts install|/etc/lockstep/token$", line):
                    self.assertNotRegex(line, r"(--token(-file)?[ =]|install .* )token( |$)", place)
                self.assertNotRegex(line, r"(cat|cp) \S*(/state|/var/lib/lockstep)/token", place)
                self.assertNotRegex(line, r"LOCKSTEP_TOKEN_FILE=\$PWD/token\b(?!-)", place)
        self.assertGreater(joins, 2)


class SystemdTest(unittest.TestCase):
    """The units, with the programs of this build in their place."""

    UNITS = ("lockstep-coordinator.service", "lockstep-agent.service")

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-units-")
        self.addCleanup(shutil.rmtree, self.dir)

    def here(self, unit):
        """A copy of the unit whose programs are where this build has them."""
        path = os.path.join(self.dir, unit)
        with open(path, "w", encoding="utf-8") as file:
            file.write(read("systemd/" + unit).replace("/usr/lib/lockstep", BIN))
        return path

    @needs("systemd-analyze")
    def test_systemd_understands_them(self):
        result = run("systemd-analyze", "verify", "--man=no", *[self.here(unit) for unit in self.UNITS])
        said = [line for line in result.stdout.splitlines() if "lockstep" in line]
        self.assertEqual((result.returncode, said), (0, []), result.stdout)

    def test_drivers_are_loaded_before_devices_are_allowed(self):
        """What /proc/devices does not name when a unit starts, DeviceAllow leaves out for the unit's life."""
        text = read("systemd/lockstep-agent.service")
        self.assertIn("\nDeviceAllow=char-nvidia-uvm rw\n", text)
        for word in ("Wants", "After"):
            self.assertIn("modprobe@nvidia_uvm.service", re.search(rf"^{word}=(.*)$", text, re.M)[1].split(), word)
        self.assertNotIn("nvidia-persistenced", re.search(r"^Wants=(.*)$", text, re.M)[1], "which may be disabled on purpose")

    @needs("systemd-analyze")
    def test_they_may_do_little(self):
        for unit in self.UNITS:
            result = run("systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager",
                         self.here(unit))
            self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_programs_know_their_flags(self):
        for unit, program in zip(self.UNITS, ("coordinator", "launcher")):
            line = re.search(r"^ExecStart=(.*)$", read("systemd/" + unit), re.M).group(1)
            verb = ["join"] if program == "launcher" else []
            known = run(os.path.join(BIN, program), *verb, "--help").stdout
            for flag in re.findall(r"--[a-z-]+", line):
                self.assertIn(flag, known)


class KubernetesTest(unittest.TestCase):
    """The manifests, as kubectl reads them; whether a cluster takes them is beyond this machine."""

    FOLDERS = ("coordinator", "agents", "job", "job-kueue", "jobset")

    def rendered(self, folder):
        result = run("kubectl", "kustomize", os.path.join(DEPLOY, "kubernetes", folder))
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout

    @needs("kubectl")
    def test_all_of_them_are_rendered_and_run_without_rights(self):
        for folder in self.FOLDERS:
            text = self.rendered(folder)
            containers = len(re.findall(r"image: lockstep$", text, re.M))
            self.assertGreater(containers, 0)
            for must in ("readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false"):
                self.assertEqual(text.count(must), containers, f"{folder}: {must}")
            for must in ("runAsNonRoot: true", "automountServiceAccountToken: false", "type: RuntimeDefault"):
                self.assertIn(must, text, folder)
            self.assertNotIn("kind: Role", text)

    @needs("kubectl")
    def test_selectors_mean_their_own_pods(self):
        for folder, component in (("coordinator", "coordinator"), ("agents", "agent")):
            documents = self.rendered(folder).split("\n---\n")
            labels = ["app.kubernetes.io/component: " + component, "app.kubernetes.io/name: lockstep"]
            [budget] = [text for text in documents if "kind: PodDisruptionBudget" in text]
            for label in labels:
                self.assertIn(label, budget[budget.index("selector:"):], folder)
        [policy] = [text for text in self.rendered("coordinator").split("\n---\n") if "kind: NetworkPolicy" in text]
        rules, selector = policy[policy.index("ingress:"):].split("podSelector:\n    matchLabels:", 1)
        for label in ("app.kubernetes.io/component: coordinator", "app.kubernetes.io/name: lockstep"):
            self.assertIn(label, selector)
            self.assertNotIn(label, rules, "who may come is no coordinator")
        self.assertIn("lockstep-client", rules)

    @needs("kubectl")
    def test_volumes_keep_the_modes_of_tokens(self):
        for folder in self.FOLDERS:
            text = self.rendered(folder)
            self.assertEqual(text.count("fsGroupChangePolicy: OnRootMismatch"), text.count("fsGroup: "), folder)

    def test_a_budget_of_a_job_leaves_one_pod_to_evict(self):
        pods = int(re.search(r"completions: (\d+)", read("kubernetes/job/job.yaml"))[1])
        # Of pods that belong to a Job nothing but a whole number of available ones can be asked for.
        self.assertIn(f"minAvailable: {pods - 1} ", read("kubernetes/job/disruption-budget.yaml"))

    def test_a_coordinator_is_ready_by_what_costs_little(self):
        """A list has all jobs that wait."""
        probe = re.search(r"readinessProbe:.*\n +exec:\n +command: \[launcher, (\w+), ", read("kubernetes/coordinator/stateful-set.yaml"))
        self.assertEqual(probe[1], "nodes")

    @needs("kubectl")
    def test_kueue_gets_a_job_that_waits_for_it(self):
        text = self.rendered("job-kueue")
        self.assertIn("kueue.x-k8s.io/queue-name: lockstep", text)
        self.assertIn("suspend: true", text)

    @staticmethod
    def codes(action):
        """The exit codes of which a pod's failure policy does so."""
        text = read("kubernetes/job/job.yaml")
        return re.search(rf"action: {action} +#.*\n +onExitCodes: .* values: \[([\d, ]+)\]", text)[1].split(", ")

    def test_the_end_of_the_first_pod_counts_as_no_failure_of_the_others(self):
        with open(os.path.join(ROOT, "docs/exit_codes.md"), encoding="utf-8") as file:
            meanings = dict(re.findall(r"^\| (\d+) \| (.*) \|$", file.read(), re.M))
        # Lost without a word, and told to end, as by an eviction.
        self.assertEqual([meanings[code] for code in self.codes("Ignore")], ["no coordinator answers", "stopped by Ctrl-C, SIGTERM, SIGHUP or 'launcher cancel'"])
        self.assertFalse(set(self.codes("Ignore")) & set(self.codes("FailJob")))

    def test_a_job_that_has_succeeded_ends(self):
        """A pod that comes after the first one has succeeded finds nobody, which is no failure, and so would be replaced forever."""
        text = read("kubernetes/job/job.yaml")
        self.assertIn("4", self.codes("Ignore"))
        self.assertRegex(text, r'\n  successPolicy: \{rules: \[\{succeededIndexes: "0"\}\]\}')

    def test_their_job_files_are_good(self):
        for path in ("kubernetes/job/fashion-mnist.yaml", "kubernetes/jobset/job.yaml"):
            result = run(os.path.join(BIN, "launcher"), "validate", os.path.join(DEPLOY, path))
            self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_programs_know_their_flags(self):
        help_of = {verb: run(os.path.join(BIN, "launcher"), verb, "--help").stdout for verb in ("run", "join")}
        for path, verb in (("job/job.yaml", "run"), ("jobset/job-set.yaml", "run"), ("agents/stateful-set.yaml", "join")):
            for flag in re.findall(r"--[a-z-]+(?==)", read("kubernetes/" + path)):
                self.assertIn(flag, help_of[verb], path)

    def test_both_ways_to_run_a_job_have_the_same_pods(self):
        def template(path, indent):
            text = read(path)
            text = text[text.index("\n" + " " * indent + "template:\n" + " " * (indent + 2) + "spec:\n      ") + 1:]
            return [line[indent:] for line in text.splitlines() if "subdomain:" not in line and "rdzv-endpoint" not in line]
        self.assertEqual(template("kubernetes/job/job.yaml", 2), template("kubernetes/jobset/job-set.yaml", 8))


class SlurmTest(unittest.TestCase):
    """What lockstep-slurm would ask Slurm for."""

    def asked(self, *arguments, job="examples/fashion-mnist.yaml"):
        result = run(os.path.join(DEPLOY, "slurm/lockstep-slurm"), "--launcher", os.path.join(BIN, "launcher"), "--dry-run",
                     os.path.join(ROOT, job), *arguments)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result.stdout.split()

    def test_hosts_and_processors_are_those_of_the_job(self):
        words = self.asked("--set", "resources.cpus_per_proc=3", "--", "--time=10",
                           job="deploy/kubernetes/job/fashion-mnist.yaml")
        for word in ("--nodes=2", "--cpus-per-task=6", "--requeue", "--time=10", "--job-name=fashion-mnist"):
            self.assertIn(word, words)
        self.assertLess(words.index("--time=10"), words.index("--in-job"))

    def test_an_allocation_is_kept_when_the_job_can_do_with_fewer_hosts(self):
        job = "deploy/kubernetes/job/fashion-mnist.yaml"
        self.assertIn("--no-kill", self.asked(job=job))
        self.assertNotIn("--no-kill", self.asked("--set", "elastic.min_workers=3", job=job))
        self.assertNotIn("--no-kill", self.asked())
        # Whichever host fails.
        uneven = ["--set", "resources.ranks_per_node=[1, 3]", "--set", "resources.nproc_per_node=3", "--set",
                  "train.shards=4", "--set", "elastic.min_workers=1"]
        self.assertIn("--no-kill", self.asked(*uneven, job=job))
        self.assertNotIn("--no-kill", self.asked(*uneven[:-1], "elastic.min_workers=2", job=job))
        self.assertNotIn("--no-kill", self.asked(*uneven[:-1], "elastic.min_workers=3", job=job))

    def test_a_word_for_the_workers_is_refused_and_not_counted_on_the_login_node(self):
        for word in ("cpu", "gpu", "auto"):
            for flag in (f"--set=resources.nproc_per_node={word}", f"--nproc-per-node={word}"):
                result = run(os.path.join(DEPLOY, "slurm/lockstep-slurm"), "--launcher", os.path.join(BIN, "launcher"),
                             "--dry-run", os.path.join(ROOT, "examples/fashion-mnist.yaml"), flag)
                self.assertEqual(result.returncode, 3, result.stdout)
                self.assertIn(f"nproc_per_node must be a number here, not '{word}'", result.stdout)

    def test_a_bad_job_file_never_gets_to_slurm(self):
        result = run(os.path.join(DEPLOY, "slurm/lockstep-slurm"), "--launcher", os.path.join(BIN, "launcher"), "--dry-run",
                     os.path.join(ROOT, "examples/fashion-mnist.yaml"), "--set", "train.epochs=none")
        self.assertEqual(result.returncode, 3, result.stdout)


# Stands for ssh: what it runs on a host has stand-ins for what changes one, and says what it installs where.
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
  requeue) kill -KILL $PPID ;;
esac
"""


class SlurmJobTest(unittest.TestCase):
    """lockstep-slurm inside of a job, with stand-ins for Slurm's programs and the launcher."""

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
            [os.path.join(DEPLOY, "slurm/lockstep-slurm"), "--in-job", "./launcher", "job.yaml"], cwd=self.dir, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env=dict(os.environ, PATH=self.dir + ":" + os.environ["PATH"], SLURM_JOB_ID="5", SLURM_JOB_NUM_NODES="2",
                     SLURM_JOB_NODELIST="n1,n2", **environment))
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
