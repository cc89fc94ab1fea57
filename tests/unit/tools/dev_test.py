# SPDX-License-Identifier: Apache-2.0
"""./dev with programs in the place of those that would change the machine. What they were asked stands in `log`."""
import json
import os
import re
import shutil
import subprocess
import unittest

from scratch_folder import ROOT, ScratchFolderTest

# `there` names the packages that are installed, `lock` has a line for each time that apt's lists are locked, `cut` says what
# becomes of an installation when half of it is done.
APT_GET = r"""#!/bin/bash
here=$(dirname "$0")/..
words=" $* "
for verb in update install; do [[ $words == *" $verb "* ]] && echo "apt-get $verb${words#*" $verb"}" >>"$here/log"; done
if [[ $words == *" install "* ]]; then
  for package in ${words#*--no-install-recommends}; do
    echo "$package" >>"$here/there"
    [[ ! -e $here/cut || $package != munge ]] || source "$here/cut"
  done
fi
[[ $words == *" update "* ]] || exit 0
if [[ -s $here/lock ]]; then
  sed -i 1d "$here/lock"
  echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)'
  exit 100
fi
[[ ! -e $here/away ]] || { echo "E: The repository 'http://example.org Release' does not have a Release file."; exit 100; }
"""
DPKG_QUERY = r"""#!/bin/bash
here=$(dirname "$0")/..
format=$3
grep -qx -- "$4" "$here/there" || exit 1
for architecture in amd64 i386; do
  said=${format//'${db:Status-Status}'/installed}
  printf '%b' "$said"
done
"""
LOGS = '#!/bin/bash\necho "$(basename "$0") $*" >>"$(dirname "$0")/../log"\n'
SUDO = '#!/bin/bash\nshift\nexec "$@"\n'
# In the place of a build beside tests: one of two processes, which go on and say when they are there, in a session of its own.
GOES_ON = """#!/bin/sh
exec "%s" sh -c 'tail -f /dev/null & echo begun >"$0"; wait' "$(dirname "$0")/../begun"
"""
CTEST = '#!/bin/bash\nhere=$(dirname "$0")/..\n[[ ! -p $here/begun ]] || read -r begun <"$here/begun"\nexit "$(cat "$here/tested")"\n'


class DevTest(ScratchFolderTest):
    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(ROOT, "dev"), self.dir)
        for name, text in (("apt-get", APT_GET), ("dpkg-query", DPKG_QUERY), ("systemctl", LOGS), ("sleep", LOGS), ("sudo", SUDO)):
            self.stand_in(name, text)
        self.packages = {name: words.split() for name, words in
                         re.findall(r"^packages_(\w+)=\((?:  #.*)?([^)]*)\)", self.read("dev"), re.M)}

    def read(self, name):
        with open(os.path.join(self.dir, name), encoding="utf-8") as file:
            return file.read()

    def dev(self, *words, there=(), pass_fds=(), **environment):
        """The exit code, what was said, and what was asked of other programs. What ./dev reads of the environment is `environment`."""
        self.write("there", "".join(f"{package}\n" for package in there))
        self.write("log", "")
        others = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "CI_"))}
        result = subprocess.run([os.path.join(self.dir, "dev"), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, check=False, pass_fds=pass_fds, start_new_session=True,
                                env={**others, "PATH": f"{self.dir}/path:{os.environ['PATH']}", **environment})
        return result.returncode, result.stdout, self.read("log").splitlines()

    def all_packages(self):
        return {package for kind in self.packages.values() for package in kind}

    def all_but(self, *packages):
        return {package for kind in ("build", "data", "test", "lint") for package in self.packages[kind]} - set(packages)

    def test_a_package_of_several_architectures_is_installed(self):
        code, said, asked = self.dev("setup", there=self.all_but())
        self.assertEqual((code, asked), (0, []), said)
        self.assertIn("nothing to do", said)

    def test_a_lock_of_the_lists_is_waited_for(self):
        self.write("lock", "x\n" * 3)
        code, said, asked = self.dev("setup", there=self.all_but("lld"))
        self.assertEqual(code, 0, said)
        self.assertEqual(asked, ["apt-get update ", "sleep 5"] * 3 + ["apt-get update ", "apt-get install --no-install-recommends lld "])

    def test_one_that_stays_is_given_up_and_so_is_a_source_that_is_away(self):
        for obstacle, text, tries in (("lock", "x\n" * 1000, 60), ("away", "", 1)):
            path = self.write(obstacle, text)
            code, said, asked = self.dev("setup", there=self.all_but("lld"))
            self.assertEqual(code, 0, said)
            self.assertIn("going on with those that are there", said)
            self.assertEqual(asked.count("apt-get update "), tries)
            self.assertEqual(asked[-1], "apt-get install --no-install-recommends lld ")
            os.remove(path)

    def test_daemons_that_come_along_do_not_run(self):
        code, said, asked = self.dev("setup", there=self.all_but("etcd-server", "lld"))
        self.assertEqual((code, asked[-1]), (0, "systemctl --quiet disable --now etcd"), said)
        self.assertIn("stopped and disabled, tests start their own: etcd", said)
        self.assertIn("etcd-server lld ", asked[-2])
        # One that was there is the administrator's, and where there is no systemd nothing runs.
        asked = self.dev("setup", there=self.all_but("lld"))[2]
        self.assertNotIn("systemctl", " ".join(asked))
        self.write("path/systemctl", "#!/bin/sh\nexit 1\n")
        code, said, _ = self.dev("setup", there=self.all_but("etcd-server"))
        self.assertEqual((code, "etcd" in said), (0, False), said)

    def test_each_daemon_is_stopped_whatever_became_of_another_or_of_the_installation(self):
        for name in ("cmake", "ctest"):
            os.chmod(self.write(f"path/{name}", "#!/bin/sh\n"), 0o755)
        there = self.all_packages() - {"etcd-server", "munge", "slurmctld", "slurmd"}
        daemons = ("etcd", "munge", "slurmctld", "slurmd")
        disabled = "systemctl --quiet disable --now "
        self.write("path/systemctl", LOGS + "[[ $4 != munge ]]\n")
        code, said, asked = self.dev("test", "--slurm", there=there)
        self.assertEqual((code, asked[-4:]), (0, [disabled + name for name in daemons]), said)
        self.assertIn("tests start their own: etcd slurmctld slurmd\n", said)
        # The last one reaches ./dev alone, the leader of its session, which waits for apt.
        for cut, expected, stopped in (("exit 100", 100, 2), ("kill -INT 0; exit 130", 130, 2), ("kill -TERM 0; exit 143", 143, 2),
                                       ("kill -TERM $(cut -d' ' -f6 /proc/$$/stat)", 143, 4)):
            self.write("cut", cut + "\n")
            code, said, asked = self.dev("test", "--slurm", there=there)
            self.assertEqual((code, asked[2:]), (expected, [disabled + name for name in daemons[:stopped]]), cut + said)
            self.assertNotIn("configure", said)

    def test_an_environment_that_was_cut_off_is_made_again(self):
        for name in ("cmake", "ctest"):
            os.chmod(self.write(f"path/{name}", "#!/bin/sh\n"), 0o755)
        os.chmod(self.write("path/python3", LOGS + 'mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/pip"\n'), 0o755)
        os.chmod(self.write("build/pytorch-venv/bin/python", "#!/bin/sh\n"), 0o755)
        for made in (["python3 -m venv --clear build/pytorch-venv"], []):
            code, said, asked = self.dev("test", "--pytorch", there=self.all_packages())
            self.assertEqual(code, 0, said)
            self.assertEqual(asked, made)

    def test_what_is_built_beside_tests_ends_with_them_and_leaves_their_exit_code(self):
        os.chmod(self.write("path/cmake", "#!/bin/sh\n"), 0o755)
        os.chmod(self.write("path/ctest", CTEST), 0o755)
        # One that has ended, one that has no session yet, and one that goes on.
        for setsid in ("#!/bin/sh\n", "#!/bin/sh\nexec tail -f /dev/null\n", GOES_ON % shutil.which("setsid")):
            if "begun" in setsid:
                os.mkfifo(os.path.join(self.dir, "begun"))
            os.chmod(self.write("path/setsid", setsid), 0o755)
            for tested in (0, 8):
                self.write("tested", f"{tested}\n")
                self.assertEqual(self.built_beside(), tested, setsid)

    def built_beside(self):
        """The exit code of tests with a build beside them, when all of it has ended: each process holds the pipe."""
        ended, held = os.pipe()
        try:
            code, said, _ = self.dev("test", there=self.all_packages(), pass_fds=(held,), LOCKSTEP_BUILD_BESIDE="asan tsan")
        finally:
            os.close(held)
        with open(ended, "rb") as file:
            self.assertEqual(file.read(), b"", said)
        return code

    def test_packages_are_of_what_users_run(self):
        code, said, asked = self.dev("package", "tsan")
        self.assertEqual((code, asked), (2, []))
        self.assertIn("packages are of the preset release or cuda, not 'tsan'", said)

    def test_packages_for_gpus_want_the_module(self):
        os.chmod(self.write("path/cmake", LOGS), 0o755)
        self.write("build/cuda/CMakeCache.txt", "LOCKSTEP_CUDA:BOOL=OFF\n")
        there = {*self.packages["build"], "dpkg-dev", "file"}
        code, said, asked = self.dev("package", "cuda", there=there)
        self.assertEqual((code, len(asked)), (1, 1), said)
        self.assertIn("without nvcc", said)

    def test_the_preset_cuda_takes_nothing_from_an_earlier_build(self):
        """What a command line once said stays in CMake's cache, unless the preset says it."""
        with open(os.path.join(ROOT, "CMakePresets.json"), encoding="utf-8") as file:
            [preset] = [preset for preset in json.load(file)["configurePresets"] if preset["name"] == "cuda"]
        with open(os.path.join(ROOT, "engine/cuda/CMakeLists.txt"), encoding="utf-8") as file:
            default = re.search(r'set\(LOCKSTEP_CUDA_ARCHITECTURES "(.*)" CACHE', file.read())[1]
        self.assertEqual(preset["cacheVariables"].get("LOCKSTEP_CUDA_ARCHITECTURES"), default)
        self.assertEqual(preset["cacheVariables"].get("LOCKSTEP_WERROR"), "OFF")


if __name__ == "__main__":
    unittest.main()
