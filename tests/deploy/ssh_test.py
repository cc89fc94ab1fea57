# SPDX-License-Identifier: Apache-2.0
"""deploy/ssh/lockstep-hosts, with stand-ins for ssh and for what it calls on a host. Takes seconds."""
import contextlib
import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DEPLOY = os.path.join(ROOT, "deploy")


SSH = """#!/bin/bash
cd "$(dirname "$0")"
echo "host $1" >>log
PATH=$PWD/there:$PATH exec bash -c "$2"
"""
INSTALL = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -D ]] || shift; shift; done
for file in "$@"; do [[ ! -f $file ]] || [[ $file != */stage.* ]] || echo "installed $(basename "$file")=$(head -n 1 "$file")" >>log; done
"""


class HostsTest(unittest.TestCase):
    """lockstep-hosts, with a stand-in for ssh and a host that is nothing but a log."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-hosts-")
        self.addCleanup(shutil.rmtree, self.dir)
        os.makedirs(os.path.join(self.dir, "there"))
        os.makedirs(os.path.join(self.dir, "bin"))
        self.write("ssh", SSH)
        self.write("there/install", INSTALL)
        self.write("there/mktemp", '#!/bin/bash\nexec /usr/bin/mktemp -d "$PWD/stage.XXXXXX"\n')
        for name in ("getent", "useradd", "ln", "systemctl"):
            self.write(f"there/{name}", "#!/bin/bash\n")
        self.write("there/rm", '#!/bin/bash\necho "rm $*" >>log\n[[ $2 != *stage.* ]] || exec /bin/rm -rf "$2"\n')
        for name in ("launcher", "worker"):
            self.write(f"bin/{name}", f"the {name}\n")
        self.write("token", "a-secret\n")

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def installed(self, programs="bin"):
        """What an installation did on the host."""
        log = os.path.join(self.dir, "log")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(log)
        result = subprocess.run(
            [os.path.join(DEPLOY, "ssh/lockstep-hosts"), "install", "host1", "--coordinator", "10.0.0.1:7070", "--token",
             os.path.join(self.dir, "token"), "--programs", os.path.join(self.dir, programs)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env=dict(os.environ, SSH=os.path.join(self.dir, "ssh")))
        self.assertEqual(result.returncode, 0, result.stdout)
        with open(log, encoding="utf-8") as file:
            return file.read().splitlines()

    MODULE = "/usr/lib/lockstep/liblockstep_cuda.so"

    def test_the_gpu_module_is_installed_where_it_came_and_else_removed(self):
        lines = self.installed()
        self.assertIn("installed worker=the worker", lines)
        self.assertIn("rm -f " + self.MODULE, lines)
        self.write("bin/liblockstep_cuda.so", "the module\n")
        lines = self.installed()
        self.assertIn("installed liblockstep_cuda.so=the module", lines)
        self.assertNotIn("rm -f " + self.MODULE, lines)

    def test_a_folder_of_links_brings_what_they_lead_to(self):
        os.makedirs(os.path.join(self.dir, "of/links"))
        for name in ("launcher", "worker", "liblockstep_cuda.so"):
            self.write(f"bin/{name}", f"the {name}\n")
            os.symlink(f"../../bin/{name}", os.path.join(self.dir, "of/links", name))
        lines = self.installed("of/links")
        for name in ("launcher", "worker", "liblockstep_cuda.so"):
            self.assertIn(f"installed {name}=the {name}", lines)
        self.assertIn("installed token=a-secret", lines)


# Stands for ssh, to a host whose folders are in `host`.
SSH_TO_FOLDERS = r"""#!/bin/bash
cd "$(dirname "$0")"
there=$2
for folder in /etc/lockstep /etc/default /etc/systemd /usr/lib/lockstep /usr/bin/launcher /run/systemd; do
  there=${there//$folder/$PWD/host$folder}
done
PATH=$PWD/there:$PATH exec bash -c "$there"
"""


class HostFilesTest(unittest.TestCase):
    """What lockstep-hosts leaves on a host and takes from it."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-hosts-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.write("ssh", SSH_TO_FOLDERS)
        for name, code in (("getent", 0), ("systemctl", 0), ("dpkg", 1)):
            self.write(f"there/{name}", f"#!/bin/bash\nexit {code}\n")
        for name in ("bin/launcher", "bin/worker", "token"):
            self.write(name, f"the {name}\n")
        os.makedirs(os.path.join(self.dir, "host/usr/bin"))

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def hosts(self, *words):
        result = subprocess.run([os.path.join(DEPLOY, "ssh/lockstep-hosts"), *words], stdin=subprocess.DEVNULL, cwd=self.dir,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                env=dict(os.environ, SSH=os.path.join(self.dir, "ssh")))
        return result.returncode, result.stdout

    def install(self, coordinator="10.0.0.1:7070"):
        return self.hosts("install", "host1", "--coordinator", coordinator, "--token", "token", "--programs", "bin")

    def there(self):
        """The host's files."""
        top = os.path.join(self.dir, "host")
        return {os.path.relpath(os.path.join(folder, name), top) for folder, _, names in os.walk(top) for name in names}

    def defaults(self):
        with open(os.path.join(self.dir, "host/etc/default/lockstep-agent"), encoding="utf-8") as file:
            return file.read().splitlines()

    def test_an_upgrade_keeps_what_the_administrator_has_written(self):
        self.assertEqual(self.install(), (0, "host1: installed\n"))
        self.assertEqual(self.defaults(), ["LOCKSTEP_COORDINATOR=10.0.0.1:7070"])
        kept = ["# rack 7", "#LOCKSTEP_COORDINATOR=10.9.9.9:7070", 'LOCKSTEP_AGENT_FLAGS="--slots 4 --label rack=7"']
        path = "host/etc/default/lockstep-agent"
        self.write(path, "\n".join([kept[0], "LOCKSTEP_COORDINATOR=10.0.0.1:7070", *kept[1:]]) + "\n")
        os.chmod(os.path.join(self.dir, path), 0o600)
        self.assertEqual(self.install("10.0.0.2:7070"), (0, "host1: installed\n"))
        self.assertEqual(sorted(self.defaults()), sorted(["LOCKSTEP_COORDINATOR=10.0.0.2:7070", *kept]))
        self.assertEqual(os.stat(os.path.join(self.dir, path)).st_mode & 0o777, 0o600)
        # One that is a link, as to a store of such files, stays one.
        path = os.path.join(self.dir, path)
        os.rename(path, os.path.join(self.dir, "store"))
        os.symlink(os.path.join(self.dir, "store"), path)
        self.assertEqual(self.install("10.0.0.3:7070"), (0, "host1: installed\n"))
        self.assertEqual(sorted(self.defaults()), sorted(["LOCKSTEP_COORDINATOR=10.0.0.3:7070", *kept]))
        self.assertTrue(os.path.islink(path))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def test_what_it_has_put_there_is_removed_and_nothing_else(self):
        self.assertEqual(self.install()[0], 0)
        self.assertLess({"usr/lib/lockstep/worker", "etc/lockstep/token", "usr/bin/launcher"}, self.there())
        self.assertEqual(self.hosts("remove", "host1"), (0, "host1: removed\n"))
        self.assertEqual(self.there(), set())
        self.assertFalse(os.path.exists(os.path.join(self.dir, "host/usr/lib/lockstep")))
        self.assertEqual(self.install()[0], 0)
        self.write("host/usr/lib/lockstep/coordinator", "the coordinator\n")
        self.assertEqual(self.hosts("remove", "host1"), (0, "host1: removed\n"))
        self.assertEqual(self.there(), {"usr/lib/lockstep/coordinator", "usr/lib/lockstep/launcher", "usr/bin/launcher"})

    def test_a_hosts_packages_are_left_alone(self):
        self.write("host/usr/lib/lockstep/launcher", "the package's\n")
        self.write("there/dpkg", '#!/bin/bash\n[[ $1 == -S ]] && echo "lockstep: $2"\n')
        for said in (self.install(), self.hosts("remove", "host1")):
            self.assertEqual(said[0], 1)
            self.assertIn("host1: FAILED", said[1])
            self.assertRegex(said[1], "its programs are the package lockstep's, which apt upgrades")
        self.assertEqual(self.there(), {"usr/lib/lockstep/launcher"})

    def test_a_flag_without_its_value_is_answered_by_how_it_is_used(self):
        for flag in ("--token", "--coordinator", "--programs"):
            code, said = self.hosts("install", "host1", flag)
            self.assertEqual(code, 2)
            self.assertIn("usage: lockstep-hosts install", said)


if __name__ == "__main__":
    unittest.main()
