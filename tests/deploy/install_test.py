# SPDX-License-Identifier: Apache-2.0
"""What the install rules and the packages' scripts do to a machine that has been lived in; nothing leaves the scratch folder."""
import glob
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("LOCKSTEP_BUILD", os.path.join(ROOT, "build/release"))
SERVICES = ("lockstep-coordinator", "lockstep-agent")


def run(*command, **options):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)[:300]}: exit code {result.returncode}\n{result.stdout[-6000:]}")
    return result.stdout


def needs(program):
    return unittest.skipIf(shutil.which(program) is None, f"SKIPPED: there is no program '{program}'")


class ScratchTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-install-")
        self.addCleanup(shutil.rmtree, self.dir)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def read(self, name):
        with open(os.path.join(self.dir, name), encoding="utf-8") as file:
            return file.read()


class InstallTest(ScratchTest):
    """`cmake --install` as the administrator of a machine, who lets others read nothing that they make."""

    def install(self, component):
        run("cmake", "--install", BUILD, "--component", component, "--prefix", "/usr", umask=0o077,
            env=dict(os.environ, DESTDIR=self.dir))

    def test_all_may_enter_what_it_makes(self):
        for component in ("lockstep", *SERVICES):
            self.install(component)
        for folder, _, names in os.walk(self.dir):
            if folder != self.dir:
                self.assertEqual(os.stat(folder).st_mode & 0o777, 0o755, folder)
            for name in names:
                self.assertEqual(os.stat(os.path.join(folder, name)).st_mode & 0o444, 0o444, name)
        for program in ("launcher", "worker", "coordinator"):
            self.assertTrue(os.access(os.path.join(self.dir, "usr/lib/lockstep", program), os.X_OK), program)

    def test_what_the_administrator_has_written_stays(self):
        for service in SERVICES:
            self.install(service)
            name = f"etc/default/{service}"
            self.assertIn("LOCKSTEP_", self.read(name))
            unit = f"lib/systemd/system/{service}.service"
            self.write(name, "LOCKSTEP_COORDINATOR=10.0.0.1:7070\n", 0o600)
            self.write(unit, "of an earlier version\n")
            self.install(service)
            self.assertEqual(self.read(name), "LOCKSTEP_COORDINATOR=10.0.0.1:7070\n")
            self.assertEqual(os.stat(os.path.join(self.dir, name)).st_mode & 0o777, 0o600)
            self.assertIn("[Service]", self.read(unit))


# The install rules by themselves; nothing is compiled.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(lockstep VERSION 0.1.0 LANGUAGES NONE)
foreach(program launcher worker coordinator)
  add_library(lockstep_bin_${program} INTERFACE)
endforeach()
include(cmake/LockstepPackages.cmake)
"""


class BlankTest(ScratchTest):
    """A clone in a folder whose name has a blank in it, which is installed to one."""

    def test_the_services_are_installed(self):
        for folder in ("cmake", "deploy", "examples"):
            shutil.copytree(os.path.join(ROOT, folder), f"{self.dir}/a clone/{folder}")
        self.write("a clone/CMakeLists.txt", PROJECT)
        build = f"{self.dir}/a clone/a build"
        run("cmake", "-G", "Ninja", "-S", f"{self.dir}/a clone", "-B", build, "-DLOCKSTEP_UNIT_DIR=/lib/my units")
        for service in SERVICES:
            run("cmake", "--install", build, "--component", service, "--prefix", "/a prefix", env=dict(os.environ, DESTDIR=f"{self.dir}/to"))
            for file in (f"etc/default/{service}", f"lib/my units/{service}.service", f"a prefix/share/doc/{service}/copyright"):
                self.assertTrue(os.path.isfile(f"{self.dir}/to/{file}"), file)


@needs("dpkg")
class VersionTest(ScratchTest):
    """Packages of sources that are newer are newer, by what dpkg says."""

    def setUp(self):
        super().setUp()
        self.sources = os.path.join(self.dir, "sources")
        os.makedirs(f"{self.sources}/deploy/debian")
        shutil.copy(os.path.join(ROOT, "deploy/debian/changelog.in"), f"{self.sources}/deploy/debian")
        self.environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}

    def said(self, **environment):
        return run("cmake", "-DCPACK_PACKAGE_VERSION=0.1.0", f"-DCPACK_LOCKSTEP_SOURCES={self.sources}", "-P",
                   os.path.join(ROOT, "cmake/PackageVersion.cmake"), env={**self.environment, **environment})

    def version(self, **environment):
        [version] = self.said(**environment).splitlines()
        return version

    def git(self, *words, **environment):
        return run("git", "-C", self.sources, "-c", "user.name=t", "-c", "user.email=t@example.org", *words,
                   env={**self.environment, **environment})

    def commit(self, epoch):
        self.git("add", ".")
        self.git("commit", "-q", "--allow-empty", "-m", "x", GIT_AUTHOR_DATE="1700000000 +0000", GIT_COMMITTER_DATE=f"{epoch} +0200")
        return self.git("rev-parse", "--short=8", "HEAD").strip()

    def assert_newer(self, newer, older):
        self.assertEqual(subprocess.run(["dpkg", "--compare-versions", newer, "gt", older], check=False).returncode, 0, (newer, older))

    @needs("git")
    def test_each_commit_has_one_and_files_that_are_not_committed_another(self):
        self.git("init", "-q")
        first = self.commit(1796077458)
        clean = self.version()
        self.assertEqual(clean, f"0.1.0+20261130222418.g{first}")
        self.assertEqual(self.version(SOURCE_DATE_EPOCH="1"), clean)
        # As for root in a user's clone.
        self.assertEqual(self.version(GIT_TEST_ASSUME_DIFFERENT_OWNER="1"), clean)
        self.write("sources/new", "x\n")
        self.assertRegex(self.version(GIT_TEST_ASSUME_DIFFERENT_OWNER="1"), r"\+dirty\d{14}$")
        dirty = [self.version(SOURCE_DATE_EPOCH=epoch) for epoch in ("1796077500", "1796077501")]
        self.assertEqual(dirty[0], clean + "+dirty20261130222500")
        self.assertRegex(self.version(), r"\+dirty\d{14}$")
        self.commit(1796077459)
        self.assert_newer(dirty[0], clean)
        self.assert_newer(dirty[1], dirty[0])
        self.assert_newer(self.version(), dirty[1])

    def test_without_git_the_newest_file_counts(self):
        def touch(path, epoch):
            os.utime(os.path.join(self.sources, path), (epoch, epoch))
        touch("deploy/debian/changelog.in", 1796077400)
        self.write("sources/build/new", "x\n")
        self.assertEqual(self.version(), "0.1.0+20261130222320")
        self.write("sources/a.cc", "x\n")
        touch("a.cc", 1796077458.5)
        self.assertEqual(self.version(), "0.1.0+20261130222418")
        self.assertEqual(self.version(SOURCE_DATE_EPOCH="1796077000"), "0.1.0+20261130221640")
        os.makedirs(os.path.join(self.sources, ".git"))  # as without the program git
        said, version = self.said().splitlines()
        self.assertEqual(version, "0.1.0+20261130222418")
        self.assertIn("git says nothing of the commit", said)
        self.assert_newer("0.1.0+20261130222418", "0.1.0")

    @needs("dpkg-deb")
    def test_services_depend_on_programs_of_their_version(self):
        version = self.version()
        run("cpack", "--config", f"{BUILD}/CPackConfig.cmake", "-B", f"{self.dir}/made", "-D", f"CPACK_LOCKSTEP_SOURCES={self.sources}",
            "-D", f"CPACK_COMPONENTS_ALL={';'.join(SERVICES)}", cwd=self.dir, umask=0o077,
            env={**self.environment, "TAR_OPTIONS": "--no-same-permissions"})  # as for a user who is not root
        packages = glob.glob(f"{self.dir}/made/*.deb")
        self.assertEqual(sorted(os.path.basename(package) for package in packages), sorted(f"{service}_{version}_all.deb" for service in SERVICES))
        for package in packages:
            self.assertEqual(run("dpkg-deb", "--field", package, "Version", "Depends").splitlines(),
                             [f"Version: {version}", f"Depends: lockstep (= {version}), adduser"])
            name = os.path.basename(package).partition("_")[0]
            tree = os.path.join(self.dir, name)
            run("dpkg-deb", "--extract", package, tree)
            changelog = f"{tree}/usr/share/doc/{name}/changelog.gz"
            self.assertTrue(run("gzip", "-dc", changelog).startswith(f"lockstep ({version}) "))
            self.assertEqual(os.stat(changelog).st_mode & 0o777, 0o644)
            self.assertTrue(os.path.exists(f"{tree}/etc/default/{name}"))
            modes = {line.split()[0] for line in run("dpkg-deb", "--contents", package).splitlines()}
            self.assertEqual(modes, {"drwxr-xr-x", "-rw-r--r--"})
            control = f"{self.dir}/{name}.tar"
            with open(control, "wb") as file:
                subprocess.run(["dpkg-deb", "--ctrl-tarfile", package], stdout=file, check=True)
            with tarfile.open(control) as archive:
                self.assertEqual({os.path.normpath(member.name): member.mode for member in archive.getmembers()},
                                 {**dict.fromkeys(("control", "md5sums", "conffiles"), 0o644),
                                  **dict.fromkeys(("postinst", "prerm", "postrm"), 0o755)})


# As root of its own, so that it may mount.
PURGE = r"""set -e
if [ "$2" = tmpfs ]; then mount -t tmpfs tmpfs "$3"; else mount --bind "$2" "$3"; fi
echo kept >"$3/theirs"
sh "$1/postrm" purge
cat "$3/theirs"
"""


class PurgeTest(ScratchTest):
    """The packages' postrm, with folders here in the place of the machine's."""

    def setUp(self):
        super().setUp()
        with open(f"{BUILD}/packages/lockstep-agent/postrm", encoding="utf-8") as file:
            self.write("postrm", file.read().replace("/var/", f"{self.dir}/var/"))
        self.write("bin/deb-systemd-helper", "#!/bin/sh\n", 0o755)
        self.write("var/lib/lockstep-agent/runs/job/log", "x\n")
        self.write("var/lib/lockstep/token", "another package's\n")

    def purge(self, *command):
        return run(*command, env=dict(os.environ, PATH=f"{self.dir}/bin:{os.environ['PATH']}"))

    def test_it_leaves_nothing(self):
        self.write("var/cache/lockstep-agent/data", "x\n")
        for _ in range(2):
            self.assertEqual(self.purge("sh", f"{self.dir}/postrm", "purge"), "")
            self.assertEqual(os.listdir(f"{self.dir}/var/lib"), ["lockstep"])
            self.assertEqual(os.listdir(f"{self.dir}/var/lib/lockstep"), ["token"])
            self.assertFalse(glob.glob(f"{self.dir}/var/cache/*"))

    def test_where_something_is_mounted_all_stays(self):
        alone = ["unshare", "--user", "--map-root-user", "--mount"]
        if shutil.which("unshare") is None or subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("SKIPPED: this user may mount nothing")
        # Mounts are listed by the path without links, where a blank is written in octal.
        os.rename(f"{self.dir}/var", f"{self.dir}/the\\ var")
        os.symlink("the\\ var", f"{self.dir}/var")
        agent = f"{self.dir}/var/lib/lockstep-agent"
        for what, where in (("tmpfs", "runs/a share"), ("elsewhere", "runs/a share"), ("elsewhere", ".")):
            os.makedirs(f"{self.dir}/elsewhere", exist_ok=True)
            self.write("elsewhere/file", "x\n")
            self.write("var/lib/lockstep-agent/runs/job/log", "x\n")
            os.makedirs(f"{agent}/{where}", exist_ok=True)
            self.write("var/cache/lockstep-agent/data", "x\n")
            what = what if what == "tmpfs" else f"{self.dir}/{what}"
            said = self.purge(*alone, "sh", "-c", PURGE, "purge", self.dir, what, os.path.normpath(f"{agent}/{where}"))
            self.assertEqual(said.splitlines(), [f"{agent} stays: something is mounted there (or may be, without /proc)", "kept"])
            self.assertEqual(self.read("elsewhere/file"), "x\n")
            self.assertEqual(self.read("var/lib/lockstep-agent/runs/job/log"), "x\n")
            self.assertFalse(glob.glob(f"{self.dir}/var/cache/*"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
