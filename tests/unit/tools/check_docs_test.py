# SPDX-License-Identifier: Apache-2.0
import unittest

from check_docs import check, check_header, check_links, check_spdx, check_tables, check_variables

OPENING = """// SPDX-License-Identifier: Apache-2.0
// A thing that is there to be read.
// Thread-safety: immutable.
#ifndef A_H_
#define A_H_
"""


def messages(text):
    return [message for _, message in check_header(text)]


class CheckDocsTest(unittest.TestCase):
    def test_opening(self):
        self.assertEqual(messages(OPENING), [])
        self.assertEqual(len(messages("// SPDX-License-Identifier: Apache-2.0\n#ifndef A\n")), 2)
        self.assertIn("Thread-safety", messages("// SPDX\n// A thing.\n\nint x;\n")[0])

    def test_undocumented_function_is_found_with_its_line(self):
        found = check_header(OPENING + "namespace lockstep {\n\nint Count(int a);\n\n}\n")
        self.assertEqual(found, [(8, "Count() has no comment")])

    def test_a_comment_covers_the_group_until_a_blank_line(self):
        text = OPENING + "// Both count.\nint Count(int a);\nint CountAll(int a);\n\nint Other(int b);\n"
        self.assertEqual(messages(text), ["Other() has no comment"])

    def test_a_functions_comment_says_what_it_does(self):
        text = OPENING + "// Whether it is\n// there.\nbool There(int at);\n"
        self.assertEqual(messages(text), ["the comment of There() opens with 'Whether': say what it does "
                                          "('Returns whether')"])
        self.assertEqual(messages(text.replace("Whether it", "Returns whether it")), [])
        self.assertEqual(messages(OPENING + "// What it holds.\nstruct A {\n  // Whether.\n  bool is = false;\n};\n"), [])

    def test_methods_of_the_public_part_only(self):
        text = OPENING + """
class Thing {
 public:
  explicit Thing(int a);
  ~Thing();
  int rank() const { return rank_; }
  void Go(const std::string& name,
          int count);
  void Stop() override;
  std::function<absl::Status()> hook;

  // Starts.
  absl::StatusOr<int> Start();

 private:
  void Inner();
  int rank_ = 0;
};
"""
        self.assertEqual(messages(text), ["Go() has no comment"])

    def test_second_class_needs_a_comment_or_a_mention(self):
        text = OPENING + "class A {\n};\n\nclass B {\n};\n"
        self.assertEqual(messages(text), ["class B has no comment"])
        self.assertEqual(messages(text.replace("A thing", "A thing, with B")), [])
        self.assertEqual(messages(text.replace("class B", "// It.\nclass B")), [])

    def test_names_that_say_all(self):
        self.assertEqual(messages(OPENING + "bool IsEmpty(int a);\nint ToProto(int a);\n"), [])
        self.assertEqual(messages(OPENING + "int Total(int a);\n"), ["Total() has no comment"])
        named = OPENING.replace("A thing", "Total is a thing")
        self.assertEqual(messages(named + "int Total(int a);\n"), [])

    def test_internal_namespaces_are_left_alone(self):
        self.assertEqual(messages(OPENING + "namespace x_internal {\nint F(int a);\n}\n"), [])

    def test_code_after_a_body_is_still_seen(self):
        text = OPENING + 'namespace a {\n// F.\ninline int F() { return 1; }\n\nint G();\n}\n'
        self.assertEqual(messages(text), ["G() has no comment"])

    def test_spdx(self):
        self.assertEqual(check_spdx("a.py", "#!/x\n# SPDX-License-Identifier: Apache-2.0\n"), [])
        self.assertEqual(len(check_spdx("a.cc", "int x;\n")), 1)

    def test_links(self):
        there = {"docs/a.md": "# The Life of a job\n", "README.md": ""}

        def links(text):
            return [m for _, m in check_links("docs/b.md", text, there.__contains__, there.get)]

        self.assertEqual(links("[a](a.md) [b](../README.md) [c](https://example.org/x)"), [])
        self.assertEqual(links("[a](a.md#the-life-of-a-job)"), [])
        self.assertEqual(len(links("[a](a.md#no)")), 1)
        self.assertEqual(len(links("[a](c.md)")), 1)
        self.assertEqual(links("```\n[a](c.md)\n```"), [])

    def test_a_row_after_a_tables_end(self):
        table = "| a | b |\n|---|:-:|\n| 1 | 2 |\n"
        self.assertEqual(check_tables(table + "\ntext\n" + table), [])
        self.assertEqual([line for line, _ in check_tables(table + "\n| 3 | 4 |\n\ntext\n")], [5])
        self.assertEqual([line for line, _ in check_tables("text\n| 3 | 4 |")], [2])
        self.assertEqual(check_tables("```\n| 3 | 4 |\n```\n"), [])

    def test_variables_are_on_their_page(self):
        files = {"a.cc": 'getenv("LOCKSTEP_A"); env("HOME"); f("LOCKSTEP_B", "NCCL")', "tests/b.cc": '"LOCKSTEP_C"',
                 "docs/environment.md": "`LOCKSTEP_A` `HOME` `LOCKSTEP_D`"}
        self.assertEqual([(path, message) for path, _, message in check_variables(files, files.get)],
                         [("a.cc", "the variable LOCKSTEP_B is not in docs/environment.md"),
                          ("docs/environment.md", "nobody reads LOCKSTEP_D")])

    def test_long_files_are_warnings(self):
        text = "// SPDX-License-Identifier: Apache-2.0\n" + "\n" * 600
        problems, warnings = check(["engine/a.cc"], lambda _: text, lambda _: True)
        self.assertEqual(problems, [])
        self.assertEqual(len(warnings), 1)


if __name__ == "__main__":
    unittest.main()
