# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "cmake" / "compile_with.sh"
# Says what it was given, and whether what it is to write is there already.
COMPILER = """#!/bin/sh
echo "$@"
if [ -e "$LAST" ]; then echo there; fi
"""


class CompileWithTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.compiler = pathlib.Path(folder.name, "clang++")
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        self.output = pathlib.Path(folder.name, "headers.gch")
        self.output.write_text("another compiler's")

    def run_with(self, *arguments):
        ran = subprocess.run([SCRIPT, self.compiler, "/usr/bin/c++", *arguments], env={"LAST": str(self.output)},
                             text=True, capture_output=True, check=True)
        return ran.stdout.splitlines()

    def test_the_other_compiler_is_not_run(self):
        self.assertEqual(self.run_with("-c", "a b.cc", "-o", "a.o")[0], "-c a b.cc -o a.o")

    def test_headers_that_another_compiler_made_are_not_read(self):
        said = self.run_with("-x", "c++-header", "-include", "all.h", "-o", str(self.output), "-c", "all.cc")
        self.assertEqual(said, [f"-x c++-header -include all.h -o {self.output} -c all.cc"])

    def test_an_object_stays_until_it_is_written(self):
        self.assertEqual(self.run_with("-c", "a.cc", "-o", str(self.output))[-1], "there")


if __name__ == "__main__":
    unittest.main()
