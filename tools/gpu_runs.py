#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What has run on which GPU and when: the table in docs/gpu.md, made from the results of run-gpu-tests that
docs/results/gpu/ keeps (a folder's results.jsonl, under any name). Says whether the table is theirs; with
--write it is made anew. A check that ran several times counts with its last result.
"""
import glob
import json
import os
import sys

from source_files import ROOT

BEGIN, END = "<!-- runs: tools/gpu_runs.py --write -->\n", "<!-- end of runs -->"
NO_BUNDLE = "not told"
NONE = "**Nothing here has run on a GPU yet.**\n"


def rows_of(path):
    """The last result of each check on each device by each bundle; lines that were cut off are of no account."""
    rows = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
                rows[row["check"], row["device"], row.get("bundle", NO_BUNDLE)] = row
            except (ValueError, KeyError, TypeError):
                continue
    return [row for row in rows.values() if row["state"] not in ("skipped", "cut")]


def table(folder):
    """The lines between the marks."""
    lines = []
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        rows = rows_of(path)
        for device, bundle in sorted({(row["device"], row.get("bundle", NO_BUNDLE)) for row in rows}):
            own = [row for row in rows if (row["device"], row.get("bundle", NO_BUNDLE)) == (device, bundle)]
            days = sorted(row["day"] for row in own)
            wrong = sorted(row["check"] for row in own if row["state"] != "passed")
            lines.append(f"| {device} | {bundle} | {days[0]}" + (f" to {days[-1]}" if days[-1] != days[0] else "")
                         + f" | {len(own) - len(wrong)} of {len(own)} | {', '.join(wrong) or 'none'} "
                         + f"| [{os.path.basename(path)}](results/gpu/{os.path.basename(path)}) |\n")
    if not lines:
        return NONE
    return "| GPU | commit | when | passed | went wrong | results |\n|---|---|---|---|---|---|\n" + "".join(lines)


def replaced(text, made):
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + made + text[end:]


def main():
    path = os.path.join(ROOT, "docs", "gpu.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    made = replaced(text, table(os.path.join(ROOT, "docs", "results", "gpu")))
    if made == text:
        return 0
    if "--write" in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(made)
        return 0
    print("docs/gpu.md: the table of runs is not that of docs/results/gpu: tools/gpu_runs.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
