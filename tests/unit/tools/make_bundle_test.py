# SPDX-License-Identifier: Apache-2.0
"""tools/make_bundle.sh with a build that is text, and with programs in the place of those that read programs."""
import os
import subprocess
import tarfile
import unittest

from scratch_folder import ROOT, ScratchFolderTest

STANDS_FOR = {
    "cmake": 'while [ "$1" != --prefix ]; do shift; done\nmkdir -p "$2/lib/lockstep"\n'
             'for program in launcher coordinator worker; do echo new >"$2/lib/lockstep/$program"; done',
    "strip": 'cp "$3" "$2"',
    "ldd": ":"}


class MakeBundleTest(ScratchFolderTest):
    def setUp(self):
        super().setUp()
        for name, script in STANDS_FOR.items():
            self.stand_in(name, f"#!/bin/sh\n{script}\n")
        for name in ("bin/liblockstep_cuda.so", "bin/bench_device", "tests/conformance_cuda_ops_test", "tests/engine_cuda_executor_test"):
            self.write(f"build/{name}", "new\n")
        os.mkdir(f"{self.dir}/to")

    def make(self, build, out):
        return subprocess.run([f"{ROOT}/tools/make_bundle.sh", build, out], cwd=self.dir, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              env=dict(os.environ, PATH=f"{self.dir}/path:{os.environ['PATH']}"))

    def test_a_folder_of_other_files_is_left_alone(self):
        self.write("to/mine", "x\n")
        self.write("file", "x\n")
        os.symlink("nowhere", f"{self.dir}/link")
        for out in ("to", "to/", f"{self.dir}/to", ".", "file", "link"):
            for build in ("build", "--check"):
                made = self.make(build, out)
                self.assertEqual(made.returncode, 1, out)
                self.assertIn("is there and is no bundle", made.stdout)
        self.assertEqual(os.listdir(f"{self.dir}/to"), ["mine"])

    def test_an_archive_of_no_bundle_is_left_alone(self):
        self.write("new.tar.xz", "mine\n")
        os.symlink("nowhere", f"{self.dir}/to.tar.xz")
        for out in ("new", "to/"):
            for build in ("build", "--check"):
                made = self.make(build, out)
                self.assertEqual(made.returncode, 1, out)
                self.assertIn(f"{out.rstrip('/')}.tar.xz is there and is of no bundle", made.stdout)
        with open(f"{self.dir}/new.tar.xz", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine\n")
        self.assertTrue(os.path.islink(f"{self.dir}/to.tar.xz"))
        self.assertEqual(sorted(os.listdir(self.dir)), ["build", "new.tar.xz", "path", "to", "to.tar.xz"])

    def test_a_build_without_the_module_or_with_less_takes_nothing_away(self):
        self.write("to/run-gpu-tests", "old\n")
        for missing, said in (("tests/engine_cuda_executor_test", "engine_cuda_executor_test"), ("bin/liblockstep_cuda.so", "no GPU module")):
            os.remove(f"{self.dir}/build/{missing}")
            made = self.make("build", "to")
            self.assertNotEqual(made.returncode, 0)
            self.assertIn(said, made.stdout)
            self.assertEqual(os.listdir(f"{self.dir}/to"), ["run-gpu-tests"])
        self.assertEqual(sorted(os.listdir(self.dir)), ["build", "path", "to"])

    def test_an_empty_folder_and_an_earlier_bundle_become_a_bundle(self):
        self.assertEqual(self.make("--check", "to").returncode, 0)
        for out in ("to/", "to", "new/folder/"):
            self.write("to/lib/of-the-last-one", "x\n") if out == "to" else None
            made = self.make("build", out)
            self.assertEqual(made.returncode, 0, made.stdout)
            folder = os.path.join(self.dir, out.rstrip("/"))
            self.assertLess({"bin", "lib", "tests", "bench", "examples", "launcher", "run-gpu-tests"}, set(os.listdir(folder)))
            self.assertFalse(os.path.exists(f"{folder}/lib/of-the-last-one"))
            with open(f"{folder}/commit", encoding="utf-8") as file:
                self.assertRegex(file.read(), r"^(v?[0-9].*|[0-9a-f]{12}.*|of no git checkout, made .*Z)\n$")
            with tarfile.open(f"{folder}.tar.xz") as archive:
                self.assertIn(f"{os.path.basename(folder)}/bin/worker", archive.getnames())
        self.assertEqual(sorted(os.listdir(self.dir)), ["build", "new", "path", "to", "to.tar.xz"])


if __name__ == "__main__":
    unittest.main()
