# SPDX-License-Identifier: Apache-2.0
import unittest

from run_clang_tidy import clang_arguments, fingerprint, is_product, own_headers


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

    def test_arguments(self):
        self.assertEqual(clang_arguments(self.ENTRY), ["-DX=1"])


if __name__ == "__main__":
    unittest.main()
