#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/job_file.md from the comments of proto/job.proto and proto/job_*.proto.

  tools/gen_job_reference.py            writes the page
  tools/gen_job_reference.py --check    fails when the page is not what would be written
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "proto" / name for name in ("job.proto", "job_train.proto", "job_model.proto",
                                              "job_data.proto", "job_nccl.proto")]
PAGE = ROOT / "docs" / "job_file.md"
FIELD = re.compile(r"(optional |repeated )?([\w.]+(?:<[^>]*>)?) (\w+) = \d+;\s*(?://\s*(.*))?$")
TYPES = {
    "int32": "whole number", "int64": "whole number", "uint64": "whole number, at least 0",
    "double": "number", "string": "text", "bool": "true or false",
    "google.protobuf.Duration": "duration, such as 30s", "map<string, string>": "names to texts",
}
# Not keys of the file: said by the form of another one.
HIDDEN = {("Run", "shell")}


def parse(source):
    """Returns [(message, comment, fields)]; a field is {names, type, comment, oneof}."""
    messages, comment, message, oneof, fresh = [], [], None, False, False
    for line in source.read_text().splitlines():
        line = line.strip()
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        if match := re.match(r"message (\w+) \{(\})?$", line):
            message = (match[1], " ".join(comment), [])
            messages.append(message)
            if match[2]:
                message = None
        elif line.startswith("oneof"):
            oneof = True
            message[2].append(None)
        elif line == "}":
            if oneof:
                oneof = False
            else:
                message = None
        elif message and (match := FIELD.match(line)):
            add_field(message, match, " ".join(comment), oneof)
        elif message and line:
            sys.exit(f"{source}: cannot read: {line}")
        comment = []
    return messages


def add_field(message, match, comment, oneof):
    label, kind, name, unit = match.groups()
    if (message[0], name) in HIDDEN:
        return
    kind = TYPES.get(kind, kind)
    if unit == "bytes":
        kind = "size, such as 64MiB"
    if label == "repeated ":
        kind = kind if kind[0].isupper() else f"list of {kind}s"
    fields = message[2]
    message_kind = kind[0].isupper()
    # One comment may stand over several fields: they share a row.
    if not comment and not message_kind and fields and fields[-1] and fields[-1]["kind"] == kind:
        fields[-1]["names"].append(name)
        return
    fields.append({"names": [name], "kind": kind, "comment": comment, "oneof": oneof})


def render(messages):
    comments = {name: comment for name, comment, _ in messages}
    known = set(comments)
    out = ["# The job file", "",
           "<!-- Written by tools/gen_job_reference.py from proto/job*.proto: change those. -->", "",
           "Every section is a mapping; every key below it is a key of that mapping. Unknown keys, wrong",
           "types and values out of range are errors: `launcher validate job.yaml` shows all of them.",
           "`--set train.epochs=10` overrides a key from the command line. Its value is YAML: one that ends in `:` stands in",
           "quotes, and these in the shell's, as `--set 'profile.steps=\"10:\"'` (or `--profile-steps 10:`).", "",
           "Nothing in the file is expanded: a `~` at the beginning of a path and a `$NAME` or `${NAME}` in it",
           "are errors (`./~` and `./$NAME` are folders of that name), and `env: {PATH: $PATH:/opt/bin}` is just",
           "this text. A text `run` is for the shell, which expands what is in it, and `submit --array` replaces",
           "`${LOCKSTEP_ARRAY_INDEX}` in the whole file.", ""]
    for name, comment, fields in messages:
        rows = [field for field in fields if field]
        out += ["## The file" if name == "JobSpec" else f"## {name}", ""]
        if comment:
            out += [comment, ""]
        if not rows:
            out += ["Has no keys: `{}`.", ""]
            continue
        out += ["| key | value | meaning |", "|---|---|---|"]
        for field in rows:
            kind = field["kind"]
            text = field["comment"] or comments.get(kind, "")
            if kind in known:
                kind = f"[{kind}](#{kind.lower()})"
            keys = ", ".join(f"`{key}`" for key in field["names"])
            out.append(f"| {keys} | {kind} | {text.replace('|', chr(92) + '|')} |")
        out.append("")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    page = render([message for source in SOURCES for message in parse(source)])
    if not arguments.check:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not up to date: run tools/gen_job_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
