# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
import unittest
from unittest import mock

from run_docs import STAYS, Reader, blocks_of, run_document

DOCUMENT = """# A title

<!-- not run: it needs a GPU -->
```sh
launcher doctor
```

Text.

<!-- before: touch x -->
```sh
# a comment
launcher plan \\
  job.yaml       # what it costs
```
"""


class RunDocsTest(unittest.TestCase):
    def test_blocks_marks_and_joined_lines(self):
        blocks, problems = blocks_of(DOCUMENT)
        self.assertEqual(problems, [])
        self.assertEqual([b.reason for b in blocks], ["it needs a GPU", ""])
        self.assertEqual(blocks[1].before, [(10, "touch x")])
        self.assertEqual([n for n, _ in blocks[1].commands], [13])
        self.assertIn("plan   job.yaml", blocks[1].commands[0][1])

    def test_here_documents(self):
        blocks, _ = blocks_of("```sh\ncat >a <<'END'\nx: 1\n# y\nEND\ncat a\n```\n")
        self.assertEqual(blocks[0].commands, [(2, "cat >a <<'END'\nx: 1\n# y\nEND"), (6, "cat a")])

    def test_commands_elsewhere_are_found(self):
        self.assertEqual(blocks_of("```\nlauncher list\n```\n")[1],
                         [(2, "a command outside a ```sh block: no test runs it")])
        self.assertEqual(blocks_of("```\nerror: launcher list\n```\n")[1], [])
        self.assertEqual(len(blocks_of("<!-- not run: x -->\ntext\n```sh\nls\n```\n")[1]), 1)

    def test_what_stays_has_a_terminal_of_its_own(self):
        for command in ("coordinator", "build/release/bin/coordinator --listen x", "launcher join", "sleep 9 &"):
            self.assertTrue(STAYS.search(command), command)
        for command in ("coordinator --help", "launcher submit job.yaml", "true && true", "ls coordinator"):
            self.assertFalse(STAYS.search(command), command)

    def run_text(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.md")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            with mock.patch("builtins.print"):
                return run_document(path, folder)

    def test_commands_run_in_order_in_one_folder(self):
        self.assertTrue(self.run_text("```sh\necho a > x\n```\n\n```sh\ngrep -q a x\ntest -f job.yaml\n```\n"))
        self.assertFalse(self.run_text("```sh\nfalse\n```\n"))
        self.assertTrue(self.run_text("<!-- not run: no -->\n```sh\nfalse\n```\n"))
        self.assertFalse(self.run_text("<!-- before: false -->\n```sh\ntrue\n```\n"))

    def test_what_runs_in_the_background_ends_with_the_document(self):
        reader = Reader("/bin")
        self.assertIsNone(reader.type("echo here; sleep 1000 &")[0])
        process = reader.background[0][1]
        reader.close()
        self.assertIsNotNone(process.poll())
        self.assertFalse(os.path.exists(reader.dir))


if __name__ == "__main__":
    unittest.main()
