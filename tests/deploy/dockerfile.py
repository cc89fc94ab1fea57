# SPDX-License-Identifier: Apache-2.0
"""Reads a Dockerfile as far as ours needs: instructions with their arguments, stages, the mounts of a RUN."""
import json
import re
import shlex

KNOWN = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD", "ENV", "LABEL", "STOPSIGNAL"}


class Run:
    """`mounts` are dictionaries (type, from, source, target); `script` is what /bin/sh gets."""

    def __init__(self, text):
        self.mounts = []
        while match := re.match(r"--(\w+)=(\S+)\s+", text):
            if match.group(1) != "mount":
                raise ValueError(f"RUN --{match.group(1)} is not known here")
            self.mounts.append(dict(part.partition("=")[::2] for part in match.group(2).split(",")))
            text = text[match.end():]
        self.script = text


class Stage:
    def __init__(self, base, name):
        self.base, self.name = base, name
        self.instructions = []  # (word, text) in order

    def all(self, word):
        return [text for name, text in self.instructions if name == word]

    def last(self, word):
        return self.all(word)[-1] if self.all(word) else None

    def words(self, word):
        """The arguments of the last ENTRYPOINT or CMD, which are to be a list: nothing passes through a shell."""
        found = json.loads(self.last(word) or "[]")
        if not all(isinstance(argument, str) for argument in found):
            raise ValueError(f"{word} is no list of texts")
        return found

    def runs(self):
        return [Run(text) for text in self.all("RUN")]

    def copies(self):
        """(stage or None, sources, target) of each COPY."""
        found = []
        for text in self.all("COPY"):
            words = shlex.split(text)
            options = [word for word in words if word.startswith("--")]
            stage = next((option[7:] for option in options if option.startswith("--from=")), None)
            paths = [word for word in words if not word.startswith("--")]
            found.append((stage, paths[:-1], paths[-1]))
        return found


def stages_of(text):
    """The stages of a Dockerfile, whose bases are what arguments mean that nobody gives. ValueError: an instruction that is
    not known here, or none of a stage."""
    arguments = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word not in KNOWN:
            raise ValueError(f"not known here: {line}")
        if word == "FROM":
            match = re.fullmatch(r"(\S+)(?: AS (\S+))?", rest.strip())
            base = re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], match.group(1))
            stages.append(Stage(base, match.group(2)))
        elif word == "ARG" and not stages:
            name, _, default = rest.strip().partition("=")
            arguments[name] = default
        elif not stages:
            raise ValueError(f"before the first FROM: {line}")
        else:
            stages[-1].instructions.append((word, rest.strip()))
    return stages
