#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the repository's own files, from git or, in an unpacked archive, from the folders.

As a program: source_files.py prints the C++ sources; `--run COMMAND [ARGS..]` runs the command on
all of them. The other tools import `repository_files`.
"""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Folders that hold no sources: what git ignores, said again for trees without git.
IGNORED_FOLDERS = {".git", "build", "runs", ".cache", "__pycache__"}
CXX_ENDINGS = (".h", ".cc", ".cu", ".cuh", ".c")


def repository_files(root=ROOT):
    """Paths relative to `root`, sorted: tracked files and new ones that git does not ignore."""
    if os.path.exists(os.path.join(root, ".git")):
        try:
            listing = subprocess.run(
                ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                capture_output=True, check=True).stdout
            names = set(listing.decode().split("\0")) - {""}
            return sorted(n for n in names if os.path.isfile(os.path.join(root, n)))
        except (OSError, subprocess.CalledProcessError):
            pass  # no git here, or none that trusts this folder
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [s for s in subfolders if s not in IGNORED_FOLDERS]
        for name in names:
            if not name.endswith(".swp"):
                found.append(os.path.relpath(os.path.join(folder, name), root))
    return sorted(found)


def cxx_files(root=ROOT):
    return [f for f in repository_files(root) if f.endswith(CXX_ENDINGS)]


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def main():
    files = cxx_files()
    if sys.argv[1:2] == ["--run"] and len(sys.argv) > 2:
        return subprocess.run(sys.argv[2:] + files, cwd=ROOT).returncode
    print("\n".join(files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
