# SPDX-License-Identifier: Apache-2.0
import unittest

from check_registered import check


def problems(files):
    """The paths that are rejected in a repository with these {path: text}."""
    return [path for path, _ in check(sorted(files), lambda path: files[path])]


class CheckRegisteredTest(unittest.TestCase):
    def test_named_sources_pass(self):
        self.assertEqual(problems({
            "engine/CMakeLists.txt": "lockstep_library(NAME engine SRCS ops/linear.cc a.cc)",
            "engine/ops/linear.cc": "", "engine/a.cc": "",
            "proto/CMakeLists.txt": "set(protos job.proto)", "proto/job.proto": "",
        }), [])

    def test_a_source_without_a_target_is_rejected(self):
        self.assertEqual(problems({
            "engine/CMakeLists.txt": "lockstep_library(NAME engine SRCS a.cc)",
            "engine/a.cc": "", "engine/b.cc": "",
        }), ["engine/b.cc"])

    def test_a_commented_out_test_is_not_registered(self):
        self.assertEqual(problems({
            "tests/unit/x/CMakeLists.txt": "# lockstep_test(NAME t SRCS clock_test.cc)\n",
            "tests/unit/x/clock_test.cc": "",
        }), ["tests/unit/x/clock_test.cc"])

    def test_a_name_in_another_folder_does_not_count(self):
        self.assertEqual(problems({
            "engine/CMakeLists.txt": "x(SRCS a.cc)", "engine/a.cc": "",
            "data/CMakeLists.txt": "", "data/a.cc": "",
        }), ["data/a.cc"])

    def test_a_part_of_a_name_does_not_count(self):
        self.assertEqual(problems({
            "engine/CMakeLists.txt": "x(SRCS aa.cc)", "engine/a.cc": "", "engine/aa.cc": "",
        }), ["engine/a.cc"])

    def test_python_tests_are_registered_too(self):
        self.assertEqual(problems({"tests/unit/tools/x_test.py": ""}), ["tests/unit/tools/x_test.py"])

    def test_examples_golden_files_and_scenarios_are_used(self):
        files = {
            "examples/one.yaml": "", "examples/two.yaml": "", "examples/README.md": "",
            "tests/golden/mlp.json": "", "tests/scenarios/join.txt": "",
            "dev": "launcher examples/one.yaml",
        }
        self.assertEqual(problems(files),
                         ["examples/two.yaml", "tests/golden/mlp.json", "tests/scenarios/join.txt"])
        files["tests/scenarios/CMakeLists.txt"] = 'add_scenarios(join.txt)'
        files["tests/golden/golden_test.cc"] = 'Read("tests/golden/mlp.json")'
        files["tests/golden/CMakeLists.txt"] = "lockstep_test(NAME g SRCS golden_test.cc)"
        files["bench/mlp.py"] = '"examples/two.yaml"'
        self.assertEqual(problems(files), [])


if __name__ == "__main__":
    unittest.main()
