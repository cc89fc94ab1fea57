#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a document as a reader would type them, and fails where one of them does.

    run_docs.py --bin FOLDER DOCUMENT..

All lines of the ```sh blocks of a document run in order, in one scratch folder with a copy of examples/
and the programs both on PATH and at build/release/bin, with a home and a runtime folder of their own. A
coordinator, a node (join) and a line that ends in & have a terminal of their own until the document ends;
the next line is typed when they have said something. job.yaml is a copy of examples/fashion-mnist.yaml. An
HTML comment on the line before a block may say

    <!-- not run: REASON -->     the block cannot run here (a GPU, other hosts, minutes of training)
    <!-- before: COMMAND -->     what makes the files that the text speaks of; runs first, unseen by readers

Nothing else is left out. Blocks without a language are output and files; a command among them is an error.
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

from source_files import ROOT

FENCE = re.compile(r"^(```|~~~)\s*(\w*)\s*$")
MARK = re.compile(r"^<!-- (not run|before): (.+?) -->$")
COMMAND = re.compile(r"^(\$ |\./dev |\.ci/run|(build/\w+/bin/)?(launcher|coordinator|worker) )")
HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
STAYS = re.compile(r"^(\S*/)?(coordinator|launcher join)(?!.*(--help|--version))\b|(^|[^&])&$")
COMMAND_SECONDS = 180
FIRST_WORD_SECONDS = 10


class Block:
    """The commands of one fenced block: (line number, text), and why it is not run, if so."""

    def __init__(self, line, reason, before):
        self.line, self.reason, self.before = line, reason, before
        self.commands = []


def logical_lines(lines):
    """(number, command) of numbered lines; one that ends in a backslash, or begins a here-document, goes on."""
    whole, first, end = "", 0, None
    for number, line in lines:
        first = first if whole else number
        if end:
            whole += "\n" + line
            if line != end:
                continue
            end = None
        elif line.endswith("\\"):
            whole += line[:-1]
            continue
        else:
            whole += line
            here = HERE_DOCUMENT.search(line)
            if here:
                end = here.group(1)
                continue
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield first, whole.strip()
        whole = ""


def blocks_of(text):
    """The ```sh blocks of a document, and its problems as (line, message)."""
    blocks, problems, marks = [], [], {}
    language, inside, start = None, [], 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if language is None:
            mark = MARK.match(line)
            if mark:
                marks.setdefault(mark.group(1), []).append((number, mark.group(2)))
            elif fence:
                language, inside, start = fence.group(2), [], number
            elif line.strip() and marks:
                problems.append((number, "a mark must stand right before its block"))
                marks = {}
            continue
        if not fence:
            inside.append((number, line))
            continue
        if language in ("sh", "bash", "console"):
            reason = marks.get("not run", [(0, "")])[0][1]
            block = Block(start, reason, marks.get("before", []))
            block.commands = list(logical_lines(inside))
            blocks.append(block)
            if language != "sh":
                problems.append((start, "commands stand in ```sh blocks"))
        else:
            problems += [(n, "a command outside a ```sh block: no test runs it")
                         for n, command in inside if not language and COMMAND.match(command)]
        language, marks = None, {}
    return blocks, problems


class Reader:
    """Types the commands of one document."""

    def __init__(self, programs):
        self.dir = tempfile.mkdtemp(prefix="lockstep-docs-")
        self.mark = f"LOCKSTEP_DOCS_MARK={uuid.uuid4()}"
        self.background = []
        here = os.path.join(self.dir, "lockstep")
        shutil.copytree(os.path.join(ROOT, "examples"), os.path.join(here, "examples"))
        shutil.copy(os.path.join(ROOT, "LICENSE"), here)  # the text that examples learn
        shutil.copy(os.path.join(ROOT, "examples/fashion-mnist.yaml"), os.path.join(here, "job.yaml"))
        os.makedirs(os.path.join(here, "build/release"))
        os.symlink(programs, os.path.join(here, "build/release/bin"))
        self.here = here
        key, value = self.mark.split("=")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self.environment.update({key: value, "PATH": programs + ":" + os.environ["PATH"]})
        for name, folder in (("HOME", "home"), ("XDG_RUNTIME_DIR", "run"), ("XDG_CACHE_HOME", "cache"),
                             ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config"),
                             ("XDG_DATA_HOME", "data")):
            self.environment[name] = os.path.join(self.dir, folder)
            os.mkdir(self.environment[name], 0o700)

    def start(self, command, output):
        return subprocess.Popen(["bash", "-o", "pipefail", "-c", command], cwd=self.here, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                start_new_session=True)

    def type(self, command):
        """Runs one command. Returns what was wrong, or None, and its output."""
        log = os.path.join(self.dir, f"output-{uuid.uuid4()}")
        bare = re.sub(r"\s+#\s.*$", "", command)
        waits = not STAYS.search(bare)
        if not waits:
            command = bare.rstrip("& ")
        with open(log, "w", encoding="utf-8") as output:
            process = self.start(command, output)
        if waits:
            try:
                code = process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return f"goes on after {COMMAND_SECONDS} s", self.said(log)
            return (f"exit code {code}" if code else None), self.said(log)
        self.background.append((command, process, log))
        deadline = time.monotonic() + FIRST_WORD_SECONDS
        while time.monotonic() < deadline and process.poll() is None and not self.said(log):
            time.sleep(0.02)
        code = process.poll()
        return (f"exit code {code}" if code else None), self.said(log)

    @staticmethod
    def said(log):
        with open(log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def close(self):
        """Ends what runs in the background, and all that it started. Returns what is worth seeing."""
        seen = ""
        for command, process, log in reversed(self.background):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    pass
            seen += f"--- {command.strip()}\n" + "".join(self.said(log).splitlines(True)[-20:])
        for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() in file.read().split(b"\0"):
                        os.kill(int(pid), signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.dir, ignore_errors=True)
        return seen


def run_document(path, programs):
    """True when the document has no problem and all of its commands succeed."""
    with open(path, encoding="utf-8") as file:
        blocks, problems = blocks_of(file.read())
    for line, message in problems:
        print(f"{path}:{line}: {message}")
    reader, failed = Reader(programs), bool(problems)
    try:
        for block in blocks:
            if block.reason:
                print(f"{path}:{block.line}: not run: {block.reason}")
                continue
            for line, command in block.before + block.commands:
                start = time.monotonic()
                wrong, output = reader.type(command)
                print(f"{path}:{line}: {wrong or 'ok'}, {time.monotonic() - start:.1f} s: "
                      f"{command.splitlines()[0]}", flush=True)
                if wrong:
                    print("".join(output.splitlines(True)[-30:]))
                    failed = True
                    break
            if failed:
                break
    finally:
        seen = reader.close()
    if failed:
        print(seen)
    return not failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("documents", nargs="+")
    args = parser.parse_args()
    return 0 if all([run_document(d, os.path.abspath(args.bin)) for d in args.documents]) else 1


if __name__ == "__main__":
    sys.exit(main())
