# SPDX-License-Identifier: Apache-2.0
import os
import unittest

from run_clang_tidy import (ROOT, clang_arguments, fingerprint, is_product, look_at_batch, own_headers,
                            split_units)


class RunClangTidyTest(unittest.TestCase):
    TEXTS = {"a/a.cc": '#include "a/a.h"\n#include <vector>\n', "a/a.h": '#include "b/b.h"\n',
             "b/b.h": '#include "a/a.h"\n', "c/c.h": ""}
    ENTRY = {"command": "g++ -DX=1 -O2 -o a.o -c a/a.cc"}

    def test_headers_are_followed(self):
        self.assertEqual(own_headers("a/a.cc", self.TEXTS), {"a/a.h", "b/b.h"})

    def test_a_change_of_a_header_or_flag_or_check_counts_and_nothing_else(self):
        first = fingerprint("a/a.cc", self.ENTRY, self.TEXTS, "checks")
        self.assertEqual(first, fingerprint("a/a.cc", self.ENTRY, {**self.TEXTS, "c/c.h": "x"},
                                            "checks"))
        self.assertNotEqual(first, fingerprint("a/a.cc", self.ENTRY, {**self.TEXTS, "b/b.h": "x"},
                                               "checks"))
        self.assertNotEqual(first, fingerprint("a/a.cc", self.ENTRY, self.TEXTS, "other checks"))
        self.assertNotEqual(first, fingerprint("a/a.cc", {"command": "g++ -DX=2 a/a.cc"}, self.TEXTS,
                                               "checks"))

    def test_the_product_alone(self):
        self.assertTrue(is_product("engine/ops/linear.cc"))
        self.assertFalse(is_product("tests/unit/engine/graph_test.cc"))
        self.assertFalse(is_product("bench/peak.cc"))

    def test_a_unit_stands_for_its_sources(self):
        one, two = os.path.join(ROOT, "a/one.cc"), os.path.join(ROOT, "a/two.cc")
        unit = "/b/Unity/unity_a_0_cxx.cxx"
        database = [{"directory": "/b", "file": unit, "command": f"g++ -DX=1 -o u.o -c {unit}"},
                    {"directory": "/b", "file": "/b/alone.cc", "command": "g++ -c /b/alone.cc"}]
        entries, units = split_units(database, lambda path: f'#include "{one}"\n#include "{two}"\n')
        self.assertEqual(entries["a/two.cc"]["command"], f"g++ -DX=1 -o u.o -c {two}")
        self.assertEqual(units["a/one.cc"], units["a/two.cc"])
        self.assertEqual(len(entries), 3)

    def test_a_batch_with_findings_is_looked_at_file_by_file(self):
        looked = []

        def look(path):
            looked.append(path)
            return "" if path == "a.cc" else "a finding"

        self.assertEqual(look_at_batch(("batch.cc", ["a.cc", "b.cc"]), look),
                         [("a.cc", ""), ("b.cc", "a finding")])
        self.assertEqual(looked, ["batch.cc", "a.cc", "b.cc"])
        self.assertEqual(look_at_batch(("batch.cc", ["a.cc", "b.cc"]), lambda path: ""),
                         [("a.cc", ""), ("b.cc", "")])
        self.assertEqual(look_at_batch(("a.cc", ["a.cc"]), lambda path: "one"), [("a.cc", "one")])

    def test_arguments(self):
        self.assertEqual(clang_arguments(self.ENTRY), ["-DX=1"])


if __name__ == "__main__":
    unittest.main()
