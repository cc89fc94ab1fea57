# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import tempfile
import unittest
from unittest import mock

import source_files


class SourceFilesTest(unittest.TestCase):
    def test_a_clone_is_listed_without_git(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-sources-") as folder:
            for name in (".git/HEAD", "build/made.h", "a/a.cc"):
                os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
                with open(f"{folder}/{name}", "w", encoding="utf-8"):
                    pass
            for failure in (FileNotFoundError("git"), subprocess.CalledProcessError(128, "git")):
                with mock.patch.object(subprocess, "run", side_effect=failure):
                    self.assertEqual(source_files.repository_files(folder), ["a/a.cc"])


if __name__ == "__main__":
    unittest.main()
