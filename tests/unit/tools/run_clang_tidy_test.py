# SPDX-License-Identifier: Apache-2.0
import argparse
import os
import subprocess
import tempfile
import unittest
from unittest import mock

import run_clang_tidy
from run_clang_tidy import (PARTS, ROOT, choose, clang_arguments, fingerprint, is_product, look_at_batch,
                            own_headers, rotating, split_units)


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

    FILES = [f"a/{i}.cc" for i in range(100)]
    UNITS = {f"a/{i}.cc": f"unit_{i // 5}" for i in range(100)}

    def test_each_source_has_its_turn_and_units_stay_together(self):
        texts = {name: "" for name in self.FILES}
        turns = [rotating(self.FILES, texts, self.UNITS, set(), turn) for turn in range(PARTS)]
        self.assertEqual(sorted(sum(turns, [])), sorted(self.FILES))
        self.assertTrue(all(len(turn) < 50 for turn in turns))
        for turn in turns:
            units = {self.UNITS[name] for name in turn}
            self.assertEqual(len(turn), 5 * len(units))
        self.assertEqual(turns[3], rotating(self.FILES, texts, self.UNITS, set(), 3 + 5 * PARTS))

    def test_what_changed_and_what_includes_it_is_always_taken(self):
        texts = {name: "" for name in self.FILES}
        texts["a/7.cc"] = '#include "b/b.h"\n'
        for turn in range(PARTS):
            taken = rotating(self.FILES, texts, self.UNITS, {"b/b.h", "a/70.cc"}, turn)
            self.assertIn("a/7.cc", taken)
            self.assertIn("a/70.cc", taken)


class ChoiceTest(unittest.TestCase):
    """What --rotating and --changed take, in real repositories."""

    FILES = [f"f{i}.cc" for i in range(40)]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "origin")
        self.clone = os.path.join(folder.name, "clone")
        os.mkdir(self.root)
        self.git("init", "-q", "-b", "main")
        self.commit(*self.FILES)

    def git(self, *arguments, at=None):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments],
                       cwd=at or self.root, check=True, capture_output=True)

    def commit(self, *names):
        for name in names:
            with open(os.path.join(self.root, name), "a", encoding="utf-8") as file:
                file.write("// one more line\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "m")

    def taken(self, at=None, environment={}, changed=False):
        args = argparse.Namespace(changed=changed, rotating=not changed)
        texts, units = {f: "" for f in self.FILES}, {f: f for f in self.FILES}
        with mock.patch.object(run_clang_tidy, "ROOT", at or self.root), \
             mock.patch.dict(os.environ, {"CI_BASE": "", **environment}):
            return choose(args, self.FILES, texts, units)[0]

    def test_what_the_last_commits_of_the_main_line_changed(self):
        for name in self.FILES[:PARTS + 1]:
            self.commit(name)
        taken = self.taken()
        self.assertTrue(set(self.FILES[1:PARTS + 1]) <= set(taken))
        self.assertLess(len(taken), len(self.FILES))

    def test_all_has_its_turn_while_others_change(self):
        seen = set()
        for _ in range(PARTS):
            self.commit("readme")
            self.commit("readme")  # two commits at a time
            seen |= set(self.taken())
        self.assertEqual(seen, set(self.FILES))

    def test_what_a_branch_changed(self):
        self.git("checkout", "-q", "-b", "branch")
        for i in range(2 * PARTS):
            self.commit(self.FILES[i])
        self.assertTrue(set(self.FILES[:2 * PARTS]) <= set(self.taken()))
        self.assertEqual(self.taken(changed=True), self.FILES[:2 * PARTS])

    def test_what_changed_since_the_base_that_ci_names(self):
        for i in range(2 * PARTS):
            self.commit(self.FILES[i])
        taken = self.taken(environment={"CI_BASE": f"HEAD~{2 * PARTS}"})
        self.assertTrue(set(self.FILES[:2 * PARTS]) <= set(taken))

    def test_everything_where_the_history_does_not_say(self):
        self.commit("readme")
        self.assertEqual(self.taken(environment={"CI_BASE": "nothing"}), self.FILES)
        self.git("clone", "-q", "--depth", "1", "file://" + self.root, self.clone)
        self.assertEqual(self.taken(at=self.clone), self.FILES)
        with tempfile.TemporaryDirectory() as bare:  # an unpacked archive
            self.assertEqual(self.taken(at=bare), self.FILES)
            self.assertEqual(self.taken(at=bare, changed=True), self.FILES)

    def test_everything_when_the_checks_changed(self):
        self.commit(".clang-tidy")
        self.assertEqual(self.taken(), self.FILES)


if __name__ == "__main__":
    unittest.main()
