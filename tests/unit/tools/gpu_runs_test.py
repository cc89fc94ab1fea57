# SPDX-License-Identifier: Apache-2.0
import json
import os
import tempfile
import unittest

import gpu_runs


class GpuRunsTest(unittest.TestCase):
    def table(self, *rows):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "h200.jsonl"), "w", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows) + '{"check": "torn')
            return gpu_runs.table(folder)

    def row(self, check, state, day="2026-01-02"):
        return {"check": check, "state": state, "device": "NVIDIA H200", "day": day}

    def test_the_last_result_of_each_check_counts(self):
        made = self.table(self.row("a", "failed"), self.row("b", "hung"), self.row("a", "passed", "2026-01-03"))
        self.assertIn("| NVIDIA H200 | not told | 2026-01-02 to 2026-01-03 | 1 of 2 | b | [h200.jsonl](results/gpu/h200.jsonl) |",
                      made)

    def test_each_bundle_has_a_line_of_its_own(self):
        rows = [{**self.row("a", state), "bundle": bundle} for bundle, state in (("v1", "failed"), ("v2", "passed"), ("v1", "skipped"))]
        made = self.table(*rows)
        self.assertIn("| NVIDIA H200 | v2 | 2026-01-02 | 1 of 1 | none |", made)
        self.assertNotIn("| v1 |", made)  # its last result is that nothing ran

    def test_what_did_not_run_is_no_run(self):
        self.assertEqual(self.table(self.row("a", "skipped"), self.row("b", "cut")), gpu_runs.NONE)

    def test_the_documents_table_is_that_of_the_files(self):
        self.assertEqual(gpu_runs.main(), 0)


if __name__ == "__main__":
    unittest.main()
