# SPDX-License-Identifier: Apache-2.0
import pathlib
import tempfile
import unittest

import extension_trial
from extension_trial import differences, renew, stated, touched

TABLE = """
| to add | should be | today | where |
|---|---|---|---|
| an operator | 5 and a test | 2 and 1 test where it is small, else 8 and 1 test | the op |
| a model | 3 and a test | 1 and 2 tests and 1 page | its file |
| a verb | 4 | 4 | its arguments |
"""
OPERATOR = """--- a/engine/ops/op_list.inc
+++ b/engine/ops/op_list.inc
@@ -1 +1,2 @@
 a
+b
--- /dev/null
+++ b/engine/ops/square.cc
@@ -0,0 +1 @@
+a
--- a/tests/conformance/ops/reference.cc
+++ b/tests/conformance/ops/reference.cc
@@ -1 +1,2 @@
 a
+b
"""


class ExtensionTrialTest(unittest.TestCase):
    def test_files_of_the_product_tests_and_pages_are_counted_apart(self):
        self.assertEqual(touched(OPERATOR), (2, 1, 0))
        self.assertEqual(touched("+++ b/docs/job_file.md\n+++ b/proto/job_model.proto\n"), (1, 0, 1))

    def test_the_table_is_read(self):
        self.assertEqual(stated(TABLE, "operator"), (2, 1, 0))
        self.assertEqual(stated(TABLE, "model"), (1, 2, 1))
        self.assertIsNone(stated(TABLE, "verb"))
        self.assertIsNone(stated(TABLE, "data format"))

    def test_another_number_is_rejected(self):
        self.assertEqual(differences(TABLE, {"operator": OPERATOR}), [])
        self.assertEqual(differences(TABLE.replace("2 and 1 test where", "3 and 1 test where"), {"operator": OPERATOR}),
                         ["operator: its patch touches 2 of the product, 1 tests, 0 pages; "
                          "CONTRIBUTING.md says 3 of the product, 1 tests, 0 pages"])
        self.assertEqual(len(differences(TABLE, {"model": OPERATOR, "verb": OPERATOR})), 2)

    def test_what_a_trial_breaks_is_found_in_the_copy(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            extension_trial.extend(copy)
            self.assertTrue((copy / "engine/ops/square.cc").exists())
            (copy / "engine/ops/unlisted.cc").write_text('#include "engine/cpu/kernels.h"\n')
            found = "".join(extension_trial.check(copy))
        self.assertIn("engine/ops/unlisted.cc:1: no CMakeLists.txt names this source", found)
        self.assertIn("engine/ops/ must not include engine/cpu", found)

    def test_files_are_written_where_they_changed_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            fresh, source = pathlib.Path(folder, "fresh"), pathlib.Path(folder, "source")
            for name, text in (("a/same", "1"), ("changed", "2")):
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).write_text(text)
            renew(fresh, source)
            before = (source / "a/same").stat().st_mtime_ns
            (fresh / "changed").write_text("3")
            (source / "gone").write_text("4")
            renew(fresh, source)
            self.assertEqual((source / "a/same").stat().st_mtime_ns, before)
            self.assertEqual((source / "changed").read_text(), "3")
            self.assertFalse((source / "gone").exists())


if __name__ == "__main__":
    unittest.main()
