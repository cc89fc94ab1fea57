#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rejects undocumented headers, sources without a licence line, dead links and torn tables in the documents, and
commands in them that no test runs (see run_docs.py).

Headers of the product open with the licence line, a description and a `Thread-safety:` line; each
public class and function has a comment of its own or shares that of the declarations right above it.
What documents itself needs none: overrides, constructors, destructors, accessors (`rank() const`),
predicates and conversions (`IsEmpty`, `ToProto`), what the opening names, and the first class. A
function's comment opens with what it does, not with "What" or "Whether". Long files are reported, not
rejected.
"""
import os
import re
import sys

from run_docs import blocks_of
from source_files import ROOT, read, repository_files

CODE_ENDINGS = (".h", ".cc", ".c", ".cu", ".cuh", ".proto", ".py", ".sh", ".cmake")
UNDOCUMENTED_FOLDERS = ("tests/", "bench/", "tools/")
LONG_FILE = 500
SPDX = "SPDX-License-Identifier: Apache-2.0"


def check_spdx(path, text):
    lines = text.splitlines()
    # A script's first line may be its interpreter.
    if any(SPDX in line for line in lines[:2]):
        return []
    return [(1, f"the first line must be '{SPDX}' in a comment")]


def check_header_opening(text):
    """The block of // lines at the top: licence, what it is, Thread-safety."""
    block = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        block.append(line[2:].strip())
    problems = []
    description = [line for line in block if line and SPDX not in line
                   and not line.startswith("Thread-safety:")]
    if not description:
        problems.append((1, "the header must open with a description of what it is"))
    if "Thread-safety:" not in text:
        problems.append((1, "the header must have a 'Thread-safety:' line"))
    return problems


def strip_line(line):
    """A line of code without strings and trailing comment, so that braces can be counted."""
    line = re.sub(r'"(\\.|[^"\\])*"', '""', line)
    line = re.sub(r"'(\\.|[^'\\])'", "''", line)
    return line.split("//")[0].rstrip()


CLASS = re.compile(r"^\s*(?:template\s*<.*>\s*)?(class|struct)\s+"
                   r"(?:\w+\([^)]*\)\s+|alignas\([^)]*\)\s+|\[\[\w+\]\]\s+|[A-Z_]+\s+)*(\w+)"
                   r"(?:\s+final)?\s*(?::[^;]*)?\{?$")
ACCESS = re.compile(r"^\s*(public|protected|private)\s*:\s*$")
NAMESPACE = re.compile(r"^\s*(inline\s+)?namespace\b")
EXEMPT = re.compile(r"\boverride\b|\bfinal\b\s*[;{]|=\s*delete|=\s*default|\boperator\b|~\w+\s*\(|"
                    r"^\s*(using|friend|typedef|enum|static_assert|template|return|extern)\b")
# Predicates and conversions: the name and the types say all.
NAMES_ITSELF = re.compile(r"(Is|Has|To|From)[A-Z]|Has$")
METHOD = re.compile(r"([A-Za-z_]\w*)\s*\(")


class Scanner:
    """Walks a header line by line, keeping the scopes that it is in.

    Not a C++ parser: it knows headers that clang-format has laid out, one declaration a line.
    """

    def __init__(self, text):
        self.lines = text.splitlines()
        self.opening = text[:text.find("\n#")]
        self.classes = 0
        self.scopes = []  # (kind, name, access) for each open brace
        self.problems = []
        self.documented = False  # the declaration group that we are in has a comment
        self.opens = ""          # the first word of the comment right above
        self.pending = ""        # a declaration that goes on over several lines
        self.pending_line = 0

    def visible(self):
        """In a public part: every enclosing scope is a named namespace or a public part."""
        return all(kind == "namespace" and name not in ("", "internal")
                   and not name.endswith(("_internal", "internal"))
                   or kind == "class" and access == "public"
                   for kind, name, access in self.scopes)

    def class_name(self):
        return self.scopes[-1][1] if self.scopes and self.scopes[-1][0] == "class" else ""

    def run(self):
        in_macro = False
        for number, line in enumerate(self.lines, 1):
            stripped = line.strip()
            if in_macro or stripped.startswith("#"):
                in_macro = stripped.endswith("\\")
                self.documented = False
                continue
            if stripped.startswith("//"):
                if not self.pending:
                    if not (number > 1 and self.lines[number - 2].strip().startswith("//")):
                        self.opens = (stripped[2:].split() or [""])[0]
                    self.documented = True
                continue
            if not stripped:
                if not self.pending:
                    self.documented = False
                    self.opens = ""
                continue
            self.code_line(number, line)
            if not self.pending:
                self.opens = ""
        return self.problems

    def code_line(self, number, line):
        code = strip_line(line)
        access = ACCESS.match(code)
        if access and self.scopes and not self.pending:
            kind, name, _ = self.scopes[-1]
            self.scopes[-1] = (kind, name, access.group(1))
            self.documented = False
            return
        if not self.pending:
            self.pending_line = number
        self.pending = (self.pending + " " + code.strip()).strip()
        if re.match(r"^template\s*<[^{;]*>$", self.pending):
            return  # what it is a template of follows
        balanced = self.pending.count("(") == self.pending.count(")")
        if "{" in code or "}" in code or (self.pending.endswith(";") and balanced):
            self.declaration(self.pending, "//" in line)
            self.braces(self.pending)
            self.pending = ""

    def declaration(self, text, trailing_comment):
        if not self.visible():
            return
        found = CLASS.match(text)
        if found and "{" in text:
            self.classes += found.group(1) == "class"
            # The file's opening stands for its first class and those that it names; a struct's
            # fields speak for themselves.
            if (found.group(1) == "class" and self.classes > 1 and not self.documented
                    and not trailing_comment
                    and not re.search(rf"\b{found.group(2)}\b", self.opening)):
                self.report(f"class {found.group(2)} has no comment")
            return
        if NAMESPACE.match(text):
            return
        head = text.split("{")[0].split("=")[0]
        while "<" in head:  # a call's type inside a template argument is no method
            shorter = re.sub(r"<[^<>]*>", "", head)
            if shorter == head:
                break
            head = shorter
        method = METHOD.search(head)
        named = (method and "(*" not in head
                 and method.group(1) not in ("bool", "void", "int", self.class_name()))
        if named and self.opens in ("What", "Whether") and not text.startswith("using "):
            self.report(f"the comment of {method.group(1)}() opens with '{self.opens}': "
                        f"say what it does ('Returns {self.opens.lower()}')")
        if EXEMPT.search(text) or self.documented or trailing_comment:
            return
        if not method or method.group(1) == self.class_name():
            return  # a field, or a constructor
        if (re.search(rf"\b{method.group(1)}\b", self.opening)
                or NAMES_ITSELF.match(method.group(1))):
            return
        if method.group(1).islower() and re.search(r"\)\s*const\b", head):
            return  # an accessor's name says what it returns
        self.report(f"{method.group(1)}() has no comment")

    def report(self, message):
        self.problems.append((self.pending_line, message))

    def braces(self, text):
        opened = CLASS.match(text)
        namespace = NAMESPACE.match(text)
        first = True
        for character in text:
            if character == "{":
                if first and namespace:
                    name = re.sub(r"^\s*(inline\s+)?namespace\s*", "", text).split("{")[0].strip()
                    self.scopes.append(("namespace", name, "public"))
                elif first and opened:
                    access = "public" if opened.group(1) == "struct" else "private"
                    self.scopes.append(("class", opened.group(2), access))
                else:
                    self.scopes.append(("code", "", ""))
                first = False
                self.documented = False
            elif character == "}" and self.scopes:
                self.scopes.pop()


def check_header(text):
    return check_header_opening(text) + Scanner(text).run()


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^\s*(```|~~~)")


def anchors(text):
    """The anchors of a document's headings, as the usual renderers make them."""
    found = set()
    for line in text.splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def check_links(path, text, exists, reader):
    """Relative links that lead nowhere. `exists` and `reader` work on repository paths."""
    problems, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        if fenced:
            continue
        for target in LINK.findall(line):
            if re.match(r"^[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            full = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
            if not exists(full):
                problems.append((number, f"the link '{target}' leads nowhere"))
            elif anchor and full.endswith(".md") and anchor not in anchors(reader(full)):
                problems.append((number, f"'{full}' has no heading for '#{anchor}'"))
    return problems


def check_tables(text):
    """Rows that no renderer shows in a table: a blank line, say, has ended it before them."""
    problems, fenced, before, lines = [], False, "", text.splitlines()
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            fenced = not fenced
        if not fenced and line.startswith("|") and not before.startswith("|"):
            if not re.match(r"^\|[ :|-]*-[ :|-]*\|$", lines[number] if number < len(lines) else ""):
                problems.append((number, "a row without a table: no line of dashes follows it"))
        before = line
    return problems


# Names of environment variables as product code asks for them, by call or as a constant.
VARIABLE = re.compile(r'"(LOCKSTEP_[A-Z_]+|XDG_[A-Z_]+)"|(?:getenv|env(?:ironment)?)\("([A-Z_]+)"\)')
VARIABLES_PAGE = "docs/environment.md"
# Set by the programs themselves and read by nobody's users.
OWN_VARIABLES = {"GRPC_VERBOSITY"}


def check_variables(files, reader):
    """Every variable that the programs read is on its page, and the page names no other of ours."""
    used = {}
    for path in files:
        if not path.endswith((".cc", ".h", ".cu")) or path.startswith(("tests/", "bench/")):
            continue
        for match in VARIABLE.finditer(reader(path)):
            used.setdefault(match.group(1) or match.group(2), path)
    page = set(re.findall(r"`([A-Z][A-Z_]+)`", reader(VARIABLES_PAGE)))
    problems = [(path, 1, f"the variable {name} is not in {VARIABLES_PAGE}")
                for name, path in sorted(used.items()) if name not in page | OWN_VARIABLES]
    problems += [(VARIABLES_PAGE, 1, f"nobody reads {name}")
                 for name in sorted(page - set(used)) if name.startswith("LOCKSTEP_")]
    return problems


def check(files, reader, exists):
    problems, warnings = [], []
    for path in files:
        base = os.path.basename(path)
        if path.endswith(CODE_ENDINGS) or path in ("dev", ".ci/run") or base == "CMakeLists.txt":
            text = reader(path)
            if base != "CMakeLists.txt" and not path.endswith(".cmake"):
                problems += [(path, *p) for p in check_spdx(path, text)]
            length = text.count("\n")
            if length > LONG_FILE:
                warnings.append((path, length, f"{length} lines: more than {LONG_FILE} ask to be "
                                               "split"))
            if path.endswith((".h", ".cuh")) and not path.startswith(UNDOCUMENTED_FOLDERS):
                problems += [(path, *p) for p in check_header(text)]
        elif path.endswith(".md"):
            problems += [(path, *p) for p in blocks_of(reader(path))[1]]
            problems += [(path, *p) for p in check_links(path, reader(path), exists, reader)]
            problems += [(path, *p) for p in check_tables(reader(path))]
    if VARIABLES_PAGE in files:
        problems += check_variables(files, reader)
    return problems, warnings


def main():
    files = repository_files()
    problems, warnings = check(files, lambda path: read(ROOT, path),
                               lambda path: os.path.exists(os.path.join(ROOT, path)))
    for path, line, message in warnings:
        print(f"{path}:{line}: warning: {message}")
    for path, line, message in problems:
        print(f"{path}:{line}: {message}")
    print(f"docs: {len(files)} files, {len(problems)} problems, {len(warnings)} warnings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
