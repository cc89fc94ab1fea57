# SPDX-License-Identifier: Apache-2.0
"""A test of a script in a folder of its own, in which other programs stand in for those that it calls."""
import os
import shutil
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


class ScratchFolderTest(unittest.TestCase):
    """self.dir is the folder; self.dir/path is to be put before PATH."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lockstep-tools-")
        self.addCleanup(shutil.rmtree, self.dir)

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def stand_in(self, program, text):
        os.chmod(self.write(f"path/{program}", text), 0o755)
