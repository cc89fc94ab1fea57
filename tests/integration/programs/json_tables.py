# SPDX-License-Identifier: Apache-2.0
"""Compares JSON that the programs write with the tables of docs/json_output.md, both ways: each key that is written
stands there with its type, and each key that stands there is written."""

import collections
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "json_output.md"

SCALARS = {"text": str, "true or false": bool, "whole number": int, "number": (int, float), "object": dict}


def read_tables():
    """section -> key -> type."""
    tables = collections.defaultdict(dict)
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        row = re.match(r"\| (`.*`) \| (.*?) \|", line)
        if row:
            tables[section].update((key, row[2]) for key in re.findall("`([^`]+)`", row[1]))
    return dict(tables)


class JsonTables:
    """Of one test, which checks what it has read."""

    def __init__(self, test):
        self.test = test
        self.tables = read_tables()
        self.written = collections.defaultdict(set)

    def check(self, section, value):
        """That `value` is an object as `section` has it."""
        self.test.assertIn(section, self.tables)
        self.test.assertIsInstance(value, dict)
        for key, element in value.items():
            self.test.assertIn(key, self.tables[section], f"written, and not in the table of '{section}'")
            self.written[section].add(key)
            self._check(self.tables[section][key], element, f"{section}.{key}")

    def check_all_written(self):
        """That the sections that were checked have no key that was never written."""
        for section, keys in self.written.items():
            self.test.assertEqual(set(self.tables[section]) - keys, set(), f"'{section}' has keys that nobody writes")

    def _check(self, kind, value, where):
        if kind.endswith(" or null"):
            if value is None:
                return
            kind = kind.removesuffix(" or null")
        elements = re.match("list of (.*)", kind)
        section = re.match(r"\[(\w+)\]\(#\w+\)$", kind)
        if elements:
            self.test.assertIsInstance(value, list, where)
            for element in value:
                self._check(re.sub("s$", "", elements[1]), element, where)
        elif section:
            self.check(section[1], value)
        else:
            self.test.assertIn(kind, SCALARS, where)
            self.test.assertIsInstance(value, SCALARS[kind], where)
            self.test.assertTrue(isinstance(value, bool) == (kind == "true or false"), where)
