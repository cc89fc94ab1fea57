# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile of deploy/docker, against ./dev, the manifests and its page."""
import os
import re
import unittest

import dockerfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read(path):
    with open(os.path.join(ROOT, "deploy", path), encoding="utf-8") as file:
        return file.read()


class DockerTest(unittest.TestCase):
    """The Dockerfile by itself; packages_test.py runs its steps."""

    def setUp(self):
        self.stages = dockerfile.stages_of(read("docker/Dockerfile"))
        self.build, self.image = self.stages

    def test_both_stages_are_the_debian_that_the_project_is_for(self):
        for stage in self.stages:
            self.assertEqual(stage.base, "debian:12-slim")

    def test_what_is_copied_is_there(self):
        with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as file:
            ignored = file.read().split()
        self.assertLessEqual({".git", "build", "runs"}, set(ignored), "nothing of this machine's gets into the image")
        for number, stage in enumerate(self.stages):
            earlier = {other.name: other for other in self.stages[:number]}
            for origin, sources, _ in stage.copies():
                self.assertTrue(origin is None or origin in earlier, origin)
                for source in sources if origin is None else []:
                    self.assertTrue(os.path.exists(os.path.join(ROOT, source)), source)
                    self.assertNotIn(source.strip("/").split("/")[0], ignored)
            for mount in (mount for run_of in stage.runs() for mount in run_of.mounts):
                self.assertEqual(mount["type"], "bind")
                packages = os.path.relpath(mount["source"], earlier[mount["from"]].last("WORKDIR"))
                [script] = [step.script for step in earlier[mount["from"]].runs()]
                made = re.search(rf' mv "(.*)" {packages}$', script)[1]
                with open(os.path.join(ROOT, "dev"), encoding="utf-8") as file:
                    self.assertIn(f' "{made.lower()}"/*.deb\n', file.read(), "where ./dev package leaves them")

    def test_it_is_for_gpus_where_that_is_asked_for(self):
        self.assertEqual(self.build.all("ARG"), ["PRESET=release"])
        with open(os.path.join(ROOT, "docs/deploy_docker.md"), encoding="utf-8") as file:
            asked = set(re.findall(r"--build-arg (\w+)=", file.read()))
        self.assertEqual(asked, set(re.findall(r"^ARG (\w+)=", read("docker/Dockerfile"), re.M)))

    def test_the_only_list_of_packages_is_that_of_dev(self):
        self.assertEqual([step.script.split(" && ")[0] for step in self.build.runs()], ['./dev package "$PRESET"'])
        script = "".join(step.script for step in self.image.runs())
        [target] = [mount["target"] for step in self.image.runs() for mount in step.mounts]
        self.assertEqual(re.findall(r"apt-get install ([^&]*)", script),
                         [f"-y --no-install-recommends {target}/lockstep_*.deb "])
        self.assertIn("rm -rf /var/lib/apt/lists/*", script)

    def test_the_user_is_that_of_the_manifests_and_owns_where_it_starts(self):
        uid, _, gid = self.image.last("USER").partition(":")
        self.assertEqual(uid, gid)
        added = re.search(r"useradd --uid (\d+) --user-group --home-dir (\S+) --create-home ",
                          self.image.runs()[-1].script)
        self.assertEqual(added.groups(), (uid, self.image.last("WORKDIR")))
        for path in ("coordinator/stateful-set", "agents/stateful-set", "job/job", "jobset/job-set"):
            self.assertIn(f"runAsUser: {uid}\n", read(f"kubernetes/{path}.yaml"))

    def test_it_starts_the_launcher_which_listens_nowhere_unless_it_is_told_to(self):
        self.assertEqual((self.image.words("ENTRYPOINT"), self.image.words("CMD")), (["launcher"], ["--help"]))
        self.assertEqual(self.image.all("EXPOSE"), [])

    def test_the_coordinator_of_the_page_is_reached_from_outside(self):
        """Its socket alone would be in the container; other machines want certificates and a token, so `init` comes first."""
        with open(os.path.join(ROOT, "docs/deploy_docker.md"), encoding="utf-8") as file:
            lines = [line.split(" --entrypoint coordinator lockstep ") for line in file.read().splitlines() if "-v lockstep-state:" in line]
        init, serve = (line[1] for line in lines if len(line) == 2)
        state = "--state-dir " + self.image.last("WORKDIR") + "/state"
        self.assertRegex(init, rf"^init {state} --host [\d.]+$")
        self.assertEqual(serve, f"{state} --listen {init.split()[-1]}:7070")
        self.assertTrue(all(f"-v lockstep-state:{self.image.last('WORKDIR')}" in line[0] for line in lines), "whose owner is its user")

    def test_a_file_that_is_not_understood_is_refused(self):
        for text in ("RUN true\n", "FROM a\nADD x y\n", "FROM a\nVOLUME /x\n"):
            with self.assertRaises(ValueError, msg=text):
                dockerfile.stages_of(text)
        shell = dockerfile.stages_of("FROM a\nENTRYPOINT launcher\n")[0]
        with self.assertRaises(ValueError):
            shell.words("ENTRYPOINT")


if __name__ == "__main__":
    unittest.main()
