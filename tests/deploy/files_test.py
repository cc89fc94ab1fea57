# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/ by themselves: units by systemd, manifests by kustomize, what they say against the programs.

Takes seconds; what a machine has no program for is skipped, loudly."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
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
    def codes(action, path="job/job.yaml"):
        """The exit codes of which a pod's failure policy does so."""
        text = read("kubernetes/" + path)
        return re.search(rf"action: {action} +#.*\n +onExitCodes: .* values: \[([\d, ]+)\]", text)[1].split(", ")

    def test_the_end_of_the_first_pod_counts_as_no_failure_of_the_others(self):
        with open(os.path.join(ROOT, "docs/exit_codes.md"), encoding="utf-8") as file:
            meanings = dict(re.findall(r"^\| (\d+) \| (.*) \|$", file.read(), re.M))
        # Lost without a word, and told to end, as by an eviction.
        self.assertEqual([meanings[code] for code in self.codes("Ignore")], ["no coordinator answers", "stopped by Ctrl-C, SIGTERM, SIGHUP or 'launcher cancel'"])
        self.assertFalse(set(self.codes("Ignore")) & set(self.codes("FailJob")))

    def test_what_no_other_try_makes_right_ends_a_job_set_too(self):
        of_set = "jobset/job-set.yaml"
        self.assertEqual(self.codes("FailJob", of_set), self.codes("FailJob"))
        self.assertRegex(read("kubernetes/" + of_set), r"action: FailJobSet, onJobFailureReasons: \[PodFailurePolicy\]")
        self.assertEqual(self.codes("Ignore", of_set), ["130"], "without its first pod all begin again at once")

    def test_the_coordinator_is_reached_over_both_families(self):
        self.assertIn('"--listen=[::]:7070"', read("kubernetes/coordinator/stateful-set.yaml"))

    def test_a_job_that_has_succeeded_ends(self):
        """A pod that comes after the first one has succeeded finds nobody, which is no failure, and so would be replaced forever."""
        self.assertIn("4", self.codes("Ignore"))
        for path in ("kubernetes/job/job.yaml", "kubernetes/jobset/job-set.yaml"):
            self.assertRegex(read(path), r'\n +successPolicy: \{rules: \[\{succeededIndexes: "0"\}\]\}')

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
