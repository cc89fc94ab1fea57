# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: lintian, and all that docs/deploy_debian.md says, in a Debian that is made here and booted. The
container image: what deploy/docker/Dockerfile does for it, in a bare Debian.

Needs root, mmdebstrap, systemd-nspawn, lintian and cpack (./dev test --deb). LOCKSTEP_BUILD is the build folder; the
bare Debians are kept there, so that the next run is quicker."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "tests/integration/programs")]

import dockerfile  # noqa: E402
import harness  # noqa: E402
from run_docs import blocks_of  # noqa: E402

BUILD = os.environ.get("LOCKSTEP_BUILD", os.path.join(ROOT, "build/release"))
MADE = os.path.join(BUILD, "packages")
BASE = os.path.join(BUILD, "bare-debian")
HERE_NOT = "here; ./dev test --deb runs it in a Debian of its own"
UNITS = ("lockstep-coordinator", "lockstep-agent")
IN_BASE = "systemd systemd-sysv dbus adduser iproute2"


def run(*command, **options):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)[:300]}: exit code {result.returncode}\n{result.stdout[-6000:]}")
    return result.stdout


def bare(script, *arguments):
    """Runs lines of bash that use tools/bare_root.sh."""
    return run("bash", "-euo", "pipefail", "-c", f"source tools/bare_root.sh; {script}", "bare", *arguments, cwd=ROOT)


def make_base():
    """A Debian that boots and has what our packages depend on, made once."""
    if os.path.exists(os.path.join(BASE, "made")):
        return
    shutil.rmtree(BASE, ignore_errors=True)
    bare(f'make_bare_root "$1" {IN_BASE}', BASE)
    for package in glob.glob(f"{MADE}/*.deb"):
        shutil.copy(package, f"{BASE}/var/tmp")
    bare('mount_bare_root "$1"; trap \'unmount_bare_root "$1"\' EXIT; '
         'in_bare_root "$1" sh -c "apt-get -q update && apt-get -q -y install --no-install-recommends /var/tmp/*.deb && '
         'apt-get -q -y purge lockstep-agent lockstep-coordinator lockstep; rm /var/tmp/*.deb"', BASE)
    with open(os.path.join(BASE, "made"), "w", encoding="utf-8"):
        pass


def setUpModule():
    for program in ("mmdebstrap", "systemd-nspawn", "lintian", "cpack", "dpkg-deb"):
        if shutil.which(program) is None:
            raise unittest.SkipTest(f"SKIPPED: there is no program '{program}'")
    if os.geteuid() != 0:
        raise unittest.SkipTest("SKIPPED: a Debian of its own needs root")
    for old in glob.glob(f"{MADE}/*.deb"):
        os.unlink(old)
    run("cpack", "--config", f"{BUILD}/CPackConfig.cmake", cwd=BUILD)


class Machine:
    """A booted Debian without a network of others."""

    def __init__(self, folder):
        self.folder = folder
        self.log = open(folder + ".log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--boot", f"--directory={folder}", "--machine=lockstep-packages",
             "--register=no", "--keep-unit", "--private-network", "--console=pipe"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            self.boot()
        except AssertionError:
            self.close()
            raise

    def boot(self):
        self.leader = harness.wait_until(self.find_leader, 30, "the container's first process")
        harness.wait_until(lambda: self.try_run("systemctl is-system-running")[1].strip() in ("running", "degraded"),
                           60, "a system that has booted")
        self.run("ip link set lo up; ip address add 10.0.0.1/32 dev lo")

    def find_leader(self):
        if self.process.poll() is not None:
            with open(self.folder + ".log", encoding="utf-8") as file:
                raise AssertionError("systemd-nspawn does not start: " + file.read())
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="utf-8") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/comm", encoding="utf-8") as file:
                if file.read().strip() in ("systemd", "init"):
                    return child
        return None

    def try_run(self, script):
        result = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--all", "env", "-i", "HOME=/root", "LANG=C.UTF-8",
             "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
             "bash", "-c", "cd /srv/work && " + script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return result.returncode, result.stdout

    def run(self, script):
        code, out = self.try_run(script)
        if code != 0:
            journal = self.try_run("journalctl --no-pager -n 60")[1]
            raise AssertionError(f"{script}: exit code {code}\n{out}\n--- journal\n{journal}")
        return out

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def make_later(folder):
    """The packages of later sources, by cpack as all are, into `folder`."""
    sources = os.path.join(BUILD, "later-sources")
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(os.path.join(ROOT, "deploy/debian"), f"{sources}/deploy/debian")
    made = os.path.join(BUILD, "later-packages")
    run("cpack", "--config", f"{BUILD}/CPackConfig.cmake", "-B", made, "-D", f"CPACK_LOCKSTEP_SOURCES={sources}", cwd=BUILD,
        env=dict(os.environ, SOURCE_DATE_EPOCH=str(int(time.time()) + 1)))
    for package in glob.glob(f"{made}/*.deb"):
        shutil.copy(package, folder)
    shutil.rmtree(made)
    shutil.rmtree(sources)


def document_blocks(page="docs/deploy_debian.md", reason=HERE_NOT):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        blocks, problems = blocks_of(file.read())
    assert not problems, problems
    return [block for block in blocks if block.reason == reason]


class PackagesTest(unittest.TestCase):
    """One Debian, from the installation to the end."""

    @classmethod
    def setUpClass(cls):
        cls.packages = sorted(glob.glob(f"{MADE}/*.deb"))

    def test_1_lintian_has_nothing_to_say(self):
        self.assertEqual(len(self.packages), 3)
        out = run("lintian", "--allow-root", "--fail-on", "error,warning", *self.packages)
        self.assertEqual(out.replace("running with root privileges is not recommended!", "").strip(), "")

    def test_1_each_says_how_much_it_takes(self):
        """A symbolic link takes next to nothing, whatever it points to."""
        for package in self.packages:
            entries = [line.split() for line in run("dpkg-deb", "--contents", package).splitlines()]
            takes = sum(-(-int(entry[2]) // 1024) if entry[0].startswith("-") else 1 for entry in entries)
            says = int(run("dpkg-deb", "--field", package, "Installed-Size"))
            self.assertEqual(says, takes, package)

    def test_2_what_the_page_says(self):
        start = time.monotonic()
        make_base()
        folder = os.path.join(BUILD, "debian-under-test")
        shutil.rmtree(folder, ignore_errors=True)
        run("cp", "-a", "--reflink=auto", BASE, folder)
        work = os.path.join(folder, "srv/work")
        os.makedirs(os.path.join(work, "new"))
        for package in self.packages:
            shutil.copy(package, work)
        make_later(os.path.join(work, "new"))
        with open(os.path.join(work, "job.yaml"), "w", encoding="utf-8") as file:
            file.write(harness.synthetic_job(name="page", nproc=2))
        machine = Machine(folder)
        try:
            self.follow_the_page(machine)
        finally:
            machine.close()
        shutil.rmtree(folder)
        print(f"the page took {time.monotonic() - start:.0f} s")

    def follow_the_page(self, machine):
        blocks = {self.kind(block): block for block in document_blocks()}
        self.assertEqual(set(blocks), {"install", "serve", "tokens", "node", "job", "upgrade", "purge"})
        self.type(machine, blocks["install"])
        self.assertEqual(machine.run("stat -c '%a %U' /run/lockstep/coordinator.sock").split(), ["600", "lockstep"])
        self.assertEqual(machine.run("stat -c '%a %U' /var/lib/lockstep").split(), ["700", "lockstep"])
        self.type(machine, blocks["serve"])
        self.type(machine, blocks["tokens"])
        self.type(machine, blocks["node"])
        self.look_at_units(machine)
        self.type(machine, blocks["job"])
        self.assertIn("SUCCEEDED", machine.run("launcher list --coordinator 10.0.0.1:7070 --token-file token-of-ann"))
        self.as_users(machine)
        self.coordinator_again(machine)
        self.upgrade(machine, blocks["upgrade"])
        self.assertIn("page", machine.run("launcher list --coordinator 10.0.0.1:7070 --token-file token-of-ann"))
        machine.run("systemctl stop lockstep-agent && ! systemctl is-failed lockstep-agent")
        self.removed_and_installed_again(machine)
        self.type(machine, blocks["purge"])
        self.assertEqual(machine.run("ls -d /var/lib/lockstep* /etc/default/lockstep* /lib/systemd/system/lockstep* "
                                     "/usr/lib/lockstep /etc/systemd/system/*/lockstep* 2>/dev/null || true"), "")
        self.by_ssh(machine)
        self.assertEqual(machine.run("systemctl --failed --no-legend --plain").strip(), "")

    def upgrade(self, machine, block):
        """A job does not notice new packages, of the coordinator, the agent and the worker."""
        common = "--coordinator 10.0.0.1:7070 --token-file token-of-ann"
        machine.run(f"launcher submit --no-follow --name upgraded --set train.steps=100000000 {common} job.yaml")

        def status():
            return json.loads(machine.run(f"launcher describe -o json {common} upgraded"))["job"]["status"]

        def steps():
            return int(status().get("progress", {}).get("step", 0))
        harness.wait_until(lambda: steps() > 0, 30, "steps")
        before = [self.pid(machine, unit) for unit in UNITS]
        workers = self.workers(machine)
        self.assertEqual(len(workers), 2)
        self.type(machine, block)
        for unit, pid in zip(UNITS, before):
            self.assertNotEqual(self.pid(machine, unit), pid, f"{unit} is started again")
        self.assertEqual(self.workers(machine), workers, "no worker is")
        step = steps()
        harness.wait_until(lambda: steps() > step, 30, "more steps")
        self.assertEqual((status()["generation"], int(status().get("restarts", 0))), (1, 0), "nobody left it")
        machine.run(f"launcher cancel {common} upgraded")

    def removed_and_installed_again(self, machine):
        """Each service starts as at its first installation, but for one that the administrator has masked."""
        units = " ".join(UNITS)
        again = "apt-get -q -y remove lockstep && apt-get -q -y install --no-install-recommends ./new/*.deb"
        machine.run("apt-get -q -y remove lockstep")
        self.assertEqual(machine.run(f"systemctl is-active {units}; true").split(), ["inactive"] * 2)
        machine.run("apt-get -q -y install --no-install-recommends ./new/*.deb")
        self.assertEqual(machine.run(f"systemctl is-active {units}; systemctl is-enabled {units}; true").split(),
                         ["active"] * 2 + ["enabled"] * 2)
        machine.run(f"systemctl stop lockstep-agent && systemctl mask lockstep-agent && {again}")
        self.assertEqual(machine.run(f"systemctl is-active {units}; true").split(), ["active", "inactive"])
        machine.run("systemctl unmask lockstep-agent")

    def by_ssh(self, machine):
        """deploy/ssh/lockstep-hosts, on a host without packages; what stands for ssh enters it."""
        enter = os.path.join(BUILD, "enter")
        with open(enter, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nshift\nexec nsenter --target=$LEADER --all sh -c \"$*\"\n")
        os.chmod(enter, 0o755)
        token = os.path.join(BUILD, "token-for-ssh")
        with open(token, "w", encoding="utf-8") as file:
            file.write("0123456789abcdef\n")
        environment = dict(os.environ, SSH=enter, LEADER=machine.leader)
        script = os.path.join(ROOT, "deploy/ssh/lockstep-hosts")
        run(script, "install", "host1", "--coordinator", "10.0.0.1:7070", "--token", token, "--programs", f"{BUILD}/bin",
            env=environment)
        machine.run("systemctl is-active lockstep-agent && test $(stat -c %a%U /etc/lockstep/token) = 600root")
        run(script, "remove", "host1", env=environment)
        machine.run("! systemctl is-active lockstep-agent && ! test -e /usr/lib/lockstep -o -e /etc/lockstep/token")

    @staticmethod
    def kind(block):
        text = "\n".join(command for _, command in block.commands)
        for word, name in (("purge", "purge"), ("./new", "upgrade"), ("token create", "tokens"), ("submit", "job"),
                           ("coordinator init", "serve"), ("lockstep-agent", "node"), ("apt-get install", "install")):
            if word in text:
                return name
        raise AssertionError(f"a block that this test does not know: {text}")

    def type(self, machine, block):
        for line, command in block.before + block.commands:
            start = time.monotonic()
            machine.run(command)
            print(f"docs/deploy_debian.md:{line}: ok, {time.monotonic() - start:.1f} s: {command}", flush=True)
        # The agent is a node a moment after its service has started.
        if "launcher nodes" in block.commands[-1][1]:
            harness.wait_until(lambda: " up " in machine.run(
                "launcher nodes --coordinator 10.0.0.1:7070 --token-file token-of-ann"), 20, "the node")

    @staticmethod
    def pid(machine, unit):
        return machine.run(f"systemctl show --value -p MainPID {unit}").strip()

    @staticmethod
    def workers(machine):
        """Process ids. The machine has no pgrep; the brackets keep grep from finding itself."""
        return sorted(machine.run("grep -las 'bootstrap-f[d]' /proc/[0-9]*/cmdline | cut -d/ -f3; true").split())

    def look_at_units(self, machine):
        for unit in UNITS:
            machine.run(f"systemd-analyze verify --man=no {unit}.service")
            machine.run(f"systemd-analyze security --threshold=30 --no-pager {unit}.service")
            self.assertEqual(machine.run(f"systemctl show --value -p NRestarts {unit}").strip(), "0")

    def as_users(self, machine):
        """docs/deploy_systemd.md, and back again."""
        [block] = document_blocks("docs/deploy_systemd.md", "it changes the machine; the packages' test does it")
        with open(os.path.join(ROOT, "docs/deploy_systemd.md"), encoding="utf-8") as file:
            text = file.read()
        lines = re.search(r"```ini\n(\[Service\]\nUser=root\n.*?)```", text, re.S)[1]
        folder, defaults = "/etc/systemd/system/lockstep-agent.service.d", "/etc/default/lockstep-agent"
        edit = f"mkdir {folder} && printf '%s' '{lines}' > {folder}/override.conf && systemctl daemon-reload"
        machine.run(f"cp {defaults} {defaults}.before && useradd --create-home ann")
        for _, command in block.commands:
            machine.run(edit if command.startswith("systemctl edit ") else command)
        said = machine.run("launcher submit --coordinator 10.0.0.1:7070 --token-file token-of-ann -- /usr/bin/id -un")
        self.assertIn("ann", re.findall(r"\w+", said))
        self.assertEqual(machine.run("stat -c %U /var/lib/lockstep-runs/*").split(), ["ann"])
        machine.run(f"rm -r {folder} /var/lib/lockstep-runs /var/lib/lockstep-agent.before && "
                    f"mv {defaults}.before {defaults} && systemctl daemon-reload && "
                    "systemctl restart lockstep-agent && userdel --remove ann 2>/dev/null")

    def coordinator_again(self, machine):
        """A job does not notice a coordinator that is started again."""
        common = "--coordinator 10.0.0.1:7070 --token-file token-of-ann"
        machine.run(f"launcher submit --no-follow --name long --set train.steps=100000000 {common} job.yaml")
        describe = f"launcher describe -o json {common} long"

        def status():
            return json.loads(machine.run(describe))["job"]["status"]

        def steps():
            return status().get("progress", {}).get("step", 0)
        harness.wait_until(lambda: steps() > 0, 30, "steps")
        machine.run("systemctl restart lockstep-coordinator")
        before = steps()
        harness.wait_until(lambda: steps() > before, 30, "more steps")
        self.assertEqual(status()["generation"], 1, "nobody left it")
        machine.run(f"launcher cancel {common} long")


SLIM = "/usr/share/doc /usr/share/man /usr/share/locale /usr/share/info"


def make_slim(folder):
    """What debian:12-slim is: a bare Debian without documents, whose apt keeps no packages. Made once."""
    if os.path.exists(folder + ".made"):
        return
    shutil.rmtree(folder, ignore_errors=True)
    bare('make_bare_root "$1"; rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin', folder)
    with open(f"{folder}/etc/dpkg/dpkg.cfg.d/docker", "w", encoding="utf-8") as file:
        file.writelines(f"path-exclude {path}/*\n" for path in SLIM.split())
    with open(f"{folder}/etc/apt/apt.conf.d/docker-clean", "w", encoding="utf-8") as file:
        file.write('DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };\n'
                   'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";\n')
    for path in SLIM.split():
        shutil.rmtree(folder + path, ignore_errors=True)
    with open(folder + ".made", "w", encoding="utf-8"):
        pass


def mebibytes(folder):
    return int(run("du", "--summarize", "--one-file-system", "--block-size=1M", folder).split()[0])


class ImageTest(unittest.TestCase):
    """The last stage of the Dockerfile, by its own lines, with the packages that were built for those of the first."""

    MOST_ADDED = 80  # MiB over debian:12-slim; docs/deploy_docker.md states what it was

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "deploy/docker/Dockerfile"), encoding="utf-8") as file:
            cls.stages = dockerfile.stages_of(file.read())
        cls.image = cls.stages[-1]
        slim = os.path.join(BUILD, "bare-slim")
        make_slim(slim)
        cls.root = os.path.join(BUILD, "image-under-test")
        shutil.rmtree(cls.root, ignore_errors=True)
        run("cp", "-a", "--reflink=auto", slim, cls.root)
        cls.before = mebibytes(cls.root)
        for step in cls.image.runs():
            cls.build(step)
        cls.uid, _, cls.gid = cls.image.last("USER").partition(":")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    @classmethod
    def mounted(cls, script, *arguments):
        """Lines of bash with the root as $1, in which it may mount what it likes."""
        return run("unshare", "--mount", "bash", "-euo", "pipefail", "-c", f"source tools/bare_root.sh; {script}",
                   "image", cls.root, *arguments, cwd=ROOT)

    @classmethod
    def build(cls, step):
        """A RUN, as root, with its mounts, each of which is of the folder with the packages."""
        for mount in step.mounts:
            target = cls.root + mount["target"]
            os.makedirs(target)
            cls.mounted('mount_bare_root "$1"; mount --bind "$2" "$3"; in_bare_root "$1" /bin/sh -c "$4"', MADE, target,
                        step.script)
            os.rmdir(target)
        if not step.mounts:
            cls.mounted('mount_bare_root "$1"; in_bare_root "$1" /bin/sh -c "$2"', step.script)

    def started(self, *command, read_only=False):
        """What the image does with a command: as its user, where it starts. `read_only`: as Kubernetes starts it, which
        lets it write in /tmp alone."""
        place = "/tmp" if read_only else self.image.last("WORKDIR")
        before = 'mount --bind "$1" "$1"; ' if read_only else ""
        after = 'mount -o remount,bind,ro "$1"; mount -t tmpfs tmpfs "$1/tmp"; ' if read_only else ""
        as_user = 'setpriv "--reuid=$2" "--regid=$3" --clear-groups --no-new-privs --bounding-set=-all'
        at = 'sh -c "cd $4 && export HOME=$4 XDG_CACHE_HOME=/tmp/cache && exec \\"\\$@\\"" sh'
        return self.mounted(f'{before} mount_bare_root "$1"; {after} in_bare_root "$1" {as_user} {at} "${{@:5}}"', self.uid,
                            self.gid, place, *command)

    def test_it_starts_the_launcher(self):
        entry = self.image.words("ENTRYPOINT")
        self.assertIn("usage", self.started(*entry, *self.image.words("CMD")).lower())
        said = self.started(*entry, "version")
        self.assertIn(said.split()[1], os.path.basename(glob.glob(f"{MADE}/lockstep_*.deb")[0]), said)
        self.assertEqual(self.started("id", "-u").strip(), self.uid)
        self.assertIn("--state-dir", self.started("coordinator", "--help"))

    def test_it_trains_where_it_starts_and_on_a_root_that_cannot_be_written(self):
        job = harness.synthetic_job(name="image", nproc=2).replace("\n", "\\n")
        for read_only in (False, True):
            said = self.started("sh", "-c", f"printf '{job}' > job.yaml && launcher job.yaml", read_only=read_only)
            self.assertIn("succeeded", said)
        with self.assertRaisesRegex(AssertionError, "Read-only file system"):
            self.started("sh", "-c", f"touch {self.image.last('WORKDIR')}/new", read_only=True)

    def test_its_user_owns_no_program(self):
        self.assertEqual(self.started("stat", "-c", "%u:%g", ".").strip(), f"{self.uid}:{self.gid}")
        self.assertEqual(self.started("find", "/usr", "/etc", "/bin", "-writable", "!", "-type", "l").strip(), "")

    def test_it_is_small(self):
        added = mebibytes(self.root) - self.before
        print(f"the image: {self.before} MiB of Debian and {added} MiB", flush=True)
        self.assertLessEqual(added, self.MOST_ADDED)
        self.assertEqual(os.listdir(f"{self.root}/var/lib/apt/lists"), [])
        for left in ("/packages", "/usr/bin/g++", "/usr/bin/python3"):
            self.assertFalse(os.path.exists(self.root + left), left)


if __name__ == "__main__":
    unittest.main(verbosity=2)
