# SPDX-License-Identifier: Apache-2.0
"""Users of one coordinator: tokens with roles, each their own jobs, and jobs that run as their users."""

import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import harness
from harness import wait_until
from nodes import Nodes


class Users(harness.ProgramTest):
    """A coordinator over TCP, whose administrator has the cluster's token."""

    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.dir, "state-dir")
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.state}", listen="127.0.0.1:0")

    def verb(self, token, *arguments, code=0):
        """One verb with a token's file; its output."""
        with_token = [f"--token-file={token}"] if token else []
        got, out, err = self.launch(*arguments, f"--coordinator={self.address}", *with_token)
        self.assertEqual(got == 0, code == 0, out + err)
        return out + err

    def token(self, user, role, *more):
        path = os.path.join(self.dir, f"token-of-{user}")
        said = self.verb(None, "token", "create", f"--user={user}", f"--role={role}", f"--save-as={path}", *more)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        return path, said.split()[1]

    def audit(self):
        with open(os.path.join(self.state, "audit.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def test_who_submits_with_no_node_there_is_told_which_token_a_node_needs(self):
        ann, _ = self.token("ann", "submit")
        said = self.verb(ann, "submit", "--no-follow", self.write("job.yaml", harness.synthetic_job()))
        self.assertIn(f"workers: launcher join --coordinator={self.address}, with --token-file and a token of role join "
                      "(launcher token create --role join)\n", said)

    def test_each_user_has_their_own(self):
        ann, ann_id = self.token("ann", "submit", "--note=laptop")
        bob, _ = self.token("bob", "submit", "--valid-for=1h")
        olga, _ = self.token("olga", "operate")
        node, node_id = self.token("node1", "join")
        # A file that is there is left alone, and no token made for nobody.
        with open(ann, encoding="utf-8") as file:
            before = file.read()
        # One that nobody has seen is taken by nobody.
        unread, broken = os.pipe()
        os.close(unread)
        for stdout in (os.open("/dev/full", os.O_WRONLY), broken):
            lost = subprocess.run([os.path.join(harness.BIN, "launcher"), "token", "create", "--user=lost", "--role=submit",
                                   f"--coordinator={self.address}"], check=False, stdin=subprocess.DEVNULL, stdout=stdout,
                                  stderr=subprocess.PIPE, env=self.environment(), timeout=harness.patient())
            os.close(stdout)
            self.assertEqual(lost.returncode, 1, lost.stderr)
            self.assertIn(b"the token is revoked again", lost.stderr)
            self.assertNotIn("lost", self.verb(None, "token", "list"))
        for wrong in ("--user=ann --valid-for=0s", "--user=a/b"):
            code, _, err = self.launch("token", "create", "--role=submit", f"--coordinator={self.address}", *wrong.split())
            self.assertEqual(code, 2, err)
        self.assertIn("is there", self.verb(None, "token", "create", "--user=eve", "--role=submit",
                                            f"--save-as={ann}", code=1))
        with open(ann, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)
        who = json.loads(self.verb(ann, "token", "whoami"))
        self.assertEqual((who["user"], who["role"], who["token"]), ("ann", "submit", ann_id))
        listed = json.loads(self.verb(None, "token", "list", "-o", "json"))["tokens"]
        self.assertEqual([t["user"] for t in listed], ["ann", "bob", "olga", "node1"])
        self.assertIn("expires", listed[1])
        self.assertEqual([t["user"] for t in json.loads(self.verb(bob, "token", "list", "-o", "json"))["tokens"]],
                         ["bob"])

        with open(node, encoding="ascii") as file:
            own = {"LOCKSTEP_TOKEN": file.read().strip(), "CREDENTIALS_DIRECTORY": os.path.dirname(node),
                   "NOTIFY_SOCKET": os.path.join(self.dir, "of-the-service-manager")}
        agent = self.start("launcher", "join", f"--coordinator={self.address}", "--slots=1", f"--state-dir={self.dir}/node",
                           env=own)
        job = self.write("job.yaml", harness.synthetic_job(nproc=1, shards=1, steps=100000000,
                                                            train_extra="  eval: {every: never}\n")
                         + "secrets: {KEY: the-secret-of-ann}\n")
        self.verb(ann, "submit", "--no-follow", job)
        wait_until(lambda: json.loads(self.verb(ann, "list", "-o", "json"))["jobs"][0]["state"] == "RUNNING", 20,
                   "the job runs")
        # No job file is wrong, but what was typed.
        for wrong in (["scale", "tiny", "2"], ["drain", "nowhere", f"--reason={'x' * 1100}"]):
            code, _, err = self.launch(*wrong, f"--coordinator={self.address}")
            self.assertEqual(code, 2, err)
        # No command line shows a secret, and workers do not get the node's.
        secrets = []
        for path in (ann, bob, olga, node):
            with open(path, encoding="ascii") as file:
                secrets.append(file.read().strip())
        for process in self.processes():
            for secret in secrets + ["the-secret-of-ann"]:
                self.assertNotIn(secret, " ".join(process.argv))
        for name in ("worker", "lockstep-supervisor"):
            process, = self.processes(name)
            with open(f"/proc/{process.pid}/environ", encoding="utf-8", errors="replace") as file:
                names = {entry.split("=")[0] for entry in file.read().split("\0")}
            self.assertIn("PATH", names)
            self.assertEqual(names & set(own), set(), name)

        # Others see that it is there, and no more.
        seen = json.loads(self.verb(bob, "list", "-o", "json"))["jobs"][0]
        self.assertEqual((seen["name"], seen["user"]), ("tiny", "ann"))
        self.assertEqual((seen["run_dir"], seen["reason"], seen.get("result")), ("", "", None))
        for refused in (["describe", "tiny"], ["cancel", "tiny"], ["logs", "tiny"], ["scale", "tiny", "1"],
                        ["hold", "tiny"], ["fetch", "tiny"], ["describe", seen.get("job_id", "tiny")]):
            said = self.verb(bob, *refused, code=1)
            self.assertIn("is ann's", said)
            self.assertIn("operate or admin", said)
        for token in (ann, bob):
            self.assertIn("that takes the role operate or admin", self.verb(token, "drain", "n", code=1))
            self.assertIn("that takes the role admin",
                          self.verb(token, "token", "create", "--user=x", "--role=admin", code=1))
        self.assertIn("the role join may not", self.verb(node, "list", code=1))
        self.assertIn("there is no token", self.verb(bob, "token", "revoke", ann_id, code=1))

        # A node whose token is revoked is one no more.
        self.verb(None, "token", "revoke", node_id)
        wait_until(lambda: not json.loads(self.verb(olga, "nodes", "-o", "json"))["nodes"][0].get("connected"), 20,
                   "the node is away")
        agent.kill()
        self.verb(olga, "cancel", "--kill", "tiny")
        self.verb(ann, "token", "revoke", ann_id)
        self.assertIn("does not know the token", self.verb(ann, "list", code=1))

        def done():
            return [(line["user"], line["what"], line["outcome"]) for line in self.audit()]
        for expected in (("ann", "submit", "ok"), ("bob", "cancel", "permission_denied"), ("olga", "cancel", "ok"),
                         ("node1", "join", "ok"), ("ann", "revoke_token", "ok"),
                         ("bob", "Coordinator/DrainNode", "permission_denied")):
            wait_until(lambda expected=expected: expected in done(), 20, f"the audit has {expected}")
        with open(os.path.join(self.state, "audit.jsonl"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.state, "audit.jsonl")).st_mode), 0o600)
        for secret in secrets + ["the-secret-of-ann"]:
            self.assertNotIn(secret, text)

    def list_seconds(self):
        """What `list` takes: of some, the one that met least else on this machine."""
        def once():
            began = time.monotonic()
            self.verb(None, "list")
            return time.monotonic() - began
        return min(once() for _ in range(3))

    def test_a_token_that_is_taken_no_more_is_nobodys_on_a_socket_either(self):
        # Who calls without one is the coordinator's own user, and so an administrator.
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.dir}/local")
        ci, ci_id = self.token("ci", "submit")
        self.verb(None, "submit", "--hold", "--no-follow", self.write("job.yaml", harness.synthetic_job()))
        self.assertIn("operate or admin", self.verb(ci, "cancel", "tiny", code=5))
        self.verb(None, "token", "revoke", ci_id)
        mistyped = self.write("mistyped", "f" * 64 + "\n")
        os.chmod(mistyped, 0o600)
        for token in (ci, mistyped):
            for verb in (["cancel", "tiny"], ["token", "whoami"]):
                code, _, err = self.launch(*verb, f"--coordinator={self.address}", env={"LOCKSTEP_TOKEN_FILE": token})
                self.assertEqual(code, 5, err)
                self.assertIn("does not know the token that was shown: it was revoked", err)
                self.assertIn("LOCKSTEP_TOKEN_FILE", err)
        self.assertEqual(json.loads(self.verb(None, "token", "whoami"))["role"], "admin")
        self.assertEqual(json.loads(self.verb(None, "list", "-o", "json"))["jobs"][0]["state"], "PENDING")

    def test_the_clusters_token_is_an_administrators_on_a_socket_too(self):
        state = os.path.join(self.dir, "local")
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={state}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={state}")
        token = {"LOCKSTEP_TOKEN_FILE": os.path.join(state, "token")}
        code, out, err = self.launch("token", "whoami", f"--coordinator={self.address}", env=token)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["role"], "admin")
        self.start("launcher", "join", f"--coordinator={self.address}", "--slots=1", f"--state-dir={self.dir}/agent", env=token)
        wait_until(lambda: json.loads(self.verb(None, "nodes", "-o", "json"))["nodes"], 20, "the node is there")
        mistyped = self.write("mistyped", "f" * 64 + "\n")
        os.chmod(mistyped, 0o600)
        self.verb(mistyped, "list", code=5)

    def test_an_audit_whose_file_system_hangs_holds_nobody_up(self):
        usual = self.list_seconds()
        self.coordinator.terminate()
        self.coordinator.wait()
        file = os.path.join(self.state, "audit.jsonl")
        if os.path.exists(file):
            os.remove(file)
        os.mkfifo(file, 0o600)  # whoever opens it waits until somebody reads
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.state}", listen="127.0.0.1:0")
        self.assertIn("no job", self.verb(None, "cancel", "nothing", code=1))
        # Who waits for the audit waits for as long as its writer does (coordinator/service/audit_writer.h).
        self.assertLess(self.list_seconds(), usual + 3)
        said = self.verb(None, "token", "create", "--user=ann", "--role=submit", code=1)
        self.assertIn("makes and revokes no tokens that its audit lacks", said)
        self.assertNotIn("ann", self.verb(None, "token", "list"))
        self.coordinator.terminate()
        self.coordinator.wait(timeout=harness.patient())

    def test_a_full_disk_of_the_audit_keeps_tokens_as_they_are(self):
        ann, ann_id = self.token("ann", "submit")
        code, out, err = self.run_program("coordinator", "backup", "copy.db", f"--state-dir={self.state}")
        self.assertEqual(code, 0, out + err)
        self.coordinator.terminate()
        self.coordinator.wait()
        disk = {"LD_PRELOAD": os.environ["LOCKSTEP_DISK_TROUBLE"], "LOCKSTEP_TEST_DISK": self.write("disk", "full"),
                "LOCKSTEP_TEST_DISK_OF": "audit.jsonl"}
        self.coordinator, self.address = self.start_coordinator(f"--state-dir={self.state}", listen="127.0.0.1:0",
                                                                env=disk)
        self.assertIn("no job", self.verb(None, "cancel", "nothing", code=1))
        code, _, err = self.launch("token", "revoke", ann_id, f"--coordinator={self.address}")
        self.assertEqual(code, 5, err)
        self.assertIn("makes and revokes no tokens that its audit lacks: cannot write the audit", err)
        self.assertIn("No space left on device", err)
        self.verb(ann, "list")  # what is refused has not happened
        self.verb(None, "token", "create", "--user=mallory", "--role=submit", code=1)
        self.write("disk", "forgets")
        self.assertIn("Input/output error", self.verb(None, "token", "create", "--user=mallory", "--role=submit", code=1))
        self.assertNotIn("mallory", self.verb(None, "token", "list"))
        self.write("disk", "well")
        self.verb(None, "token", "revoke", ann_id)
        self.verb(ann, "list", code=5)
        self.coordinator.terminate()
        self.coordinator.wait()
        what = [(line["what"], line["outcome"]) for line in self.audit()]
        self.assertEqual(what[-3:], [("lose_lines", "data_loss"), ("revoke_token", "asked"), ("revoke_token", "ok")])
        code, _, err = self.run_program("coordinator", "restore", "copy.db", "--state-dir=knows",
                                        f"--audit={self.state}/audit.jsonl")
        self.assertEqual(code, 0, err)
        self.assertIn("left out 1 token", err)

    def test_tokens_outlive_the_coordinator_as_hashes(self):
        ann, _ = self.token("ann", "submit")
        with open(ann, encoding="ascii") as file:
            secret = file.read().strip()
        self.coordinator.kill()
        self.coordinator.wait()
        for name in os.listdir(self.state):
            path = os.path.join(self.state, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    self.assertNotIn(secret.encode(), file.read(), name)
        port = self.address.rsplit(":", 1)[1]
        self.start_coordinator(f"--state-dir={self.state}", listen=f"127.0.0.1:{port}")
        self.assertEqual(json.loads(self.verb(ann, "token", "whoami"))["user"], "ann")

    def test_a_restored_journal_takes_revoked_tokens_unless_it_has_the_audit(self):
        path, token_id = self.token("ann", "submit")
        self.token("bob", "submit")
        code, out, err = self.run_program("coordinator", "backup", "copy.db", f"--state-dir={self.state}")
        self.assertEqual(code, 0, out + err)
        self.verb(None, "token", "revoke", token_id)
        self.verb(path, "list", code=5)
        self.coordinator.terminate()
        self.coordinator.wait()
        audit = os.path.join(self.state, "audit.jsonl")
        with open(audit, encoding="utf-8") as file:
            self.write("cut.jsonl", file.read()[:-3])
        code, _, err = self.run_program("coordinator", "restore", "copy.db", "--state-dir=none", "--audit=cut.jsonl")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "line [0-9]+ of cut.jsonl is none of an audit")
        if os.geteuid() == 0:  # who else could give a folder away
            os.mkdir(os.path.join(self.dir, "others"))
            os.chown(os.path.join(self.dir, "others"), 12345, 12345)
            code, _, err = self.run_program("coordinator", "restore", "copy.db", "--state-dir=others")
            self.assertEqual(code, 1, err)
            self.assertIn("belongs to user 12345: run `coordinator restore` as that user, as the coordinator runs", err)
            self.assertEqual(os.listdir(os.path.join(self.dir, "others")), [])
        for place, flags, said, code in (
                ("forgets", [], "revoked since the backup are taken again.*audit.jsonl", 0),
                ("knows", [f"--audit={audit}"], "left out 1 token that the audit", 5)):
            got, out, err = self.run_program("coordinator", "restore", "copy.db", f"--state-dir={place}", *flags)
            self.assertEqual(got, 0, out + err)
            self.assertRegex(err, said)
            shutil.copy(os.path.join(self.state, "token"), os.path.join(self.dir, place))
            coordinator, self.address = self.start_coordinator(f"--state-dir={place}", listen="127.0.0.1:0")
            self.verb(path, "list", code=code)
            self.verb(os.path.join(self.dir, "token-of-bob"), "list")
            coordinator.terminate()
            coordinator.wait()


class Secrets(Nodes):
    """A job's secrets reach its workers, and nothing that is shown or kept beside the coordinator's journal."""

    # One that the file has, and one that is taken from the environment of who submits.
    SECRETS = {"KEY": "secret-of-the-file", "OTHER_KEY": "secret-of-the-environment"}
    # It has them, and fails the first time.
    LOOK = """
import os, sys, time
assert os.environ["KEY"] == "secret-" + "of-the-file" and os.environ["OTHER_KEY"] == "secret-" + "of-the-environment"
print("it has both", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
sys.exit(1 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""

    def setUp(self):
        super().setUp()
        self.write("look.py", self.LOOK)
        self.path = self.write("job.yaml", "run: [python3, look.py]\nrestart: {max_restarts: 1}\n"
                                           "env: {SHOWN: a-plain-value}\n"
                                           f"secrets: {{KEY: {self.SECRETS['KEY']}, OTHER_KEY: ''}}\n")
        self.shown = {}  # what -> the text

    def see(self, *arguments):
        for more in ([], ["-o", "json"]):
            code, out, err = self.launch(*arguments, *more, env={"OTHER_KEY": self.SECRETS["OTHER_KEY"]})
            self.assertEqual(code, 0, out + err)
            self.shown[" ".join(arguments[:1] + tuple(more))] = out + err

    def look_around(self, job):
        at = f"--coordinator={self.address}"
        for verb in ("list", "nodes", "usage", "top"):
            self.see(verb, at)
        for verb in ("describe", "logs"):
            self.see(verb, at, job)
        # A plain variable is shown, so this is where a secret would be.
        self.assertIn("a-plain-value", self.shown["describe -o json"])
        self.assertEqual(self.describe(job)["spec"]["secrets"], dict.fromkeys(self.SECRETS, "***"))
        for what, text in self.shown.items():
            self.assert_no_secret(what, text.encode())

    def assert_no_secret(self, what, text):
        for secret in self.SECRETS.values():
            self.assertNotIn(secret.encode(), text, what)

    def test_no_output_log_or_folder_has_them(self):
        self.coordinator.terminate()
        self.coordinator.wait()
        self.start_again("--log-level=debug")
        self.join("one", 1, "--log-level=debug")
        self.see("validate", self.path)
        code, out, err = self.launch("submit", f"--coordinator={self.address}", "--no-follow", "-o", "json", self.path,
                                     env={"OTHER_KEY": self.SECRETS["OTHER_KEY"]})
        self.assertEqual(code, 0, out + err)
        self.shown["submit"] = out + err
        job = json.loads(out)["job"]
        wait_until(lambda: "it has both" in self.ask("logs", job), 60, "the command has its secrets")
        self.look_around(job)
        self.write("go", "")
        status = wait_until(lambda: (s := self.status(job))["state"] in ("SUCCEEDED", "FAILED") and s, 60, "it ends")
        self.assertEqual((status["state"], int(status["restarts"])), ("SUCCEEDED", 1), status)
        self.look_around(job)
        self.see("fetch", f"--coordinator={self.address}", "--logs", f"--to={self.dir}/fetched", job)

        # An agent's and a coordinator's end write something, too.
        for child in (self.agents["one"], self.coordinator):
            child.terminate()
            child.wait()
        self.assertIn("connected to the coordinator", self.said("one"))
        self.assertIn(job, self.said("coordinator"))
        with open(os.path.join(self.dir, status["run_dir"], "job.yaml"), encoding="utf-8") as file:
            kept = file.read()
        self.assertIn("a-plain-value", kept)
        for name in self.SECRETS:
            self.assertIn(f'{name}: "***"', kept)
        # Nothing else in any folder: of the run, the agent's state, caches, the audit.
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.dir) for name in names]
        files = [path for path in files if os.path.isfile(path) and path != self.path
                 and not os.path.basename(path).startswith("journal.db")]
        self.assertGreater(len(files), 8, files)
        for path in files:
            with open(path, "rb") as file:
                self.assert_no_secret(path, file.read())


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: jobs as other users need root")
class AsUsers(harness.ProgramTest):
    """An agent of root's that runs jobs as those who submitted them."""

    OTHER = 20001  # a user who does harm

    def setUp(self):
        super().setUp()
        # Folders above the built programs may be closed to others.
        self.public = tempfile.mkdtemp(prefix="lockstep-public-")
        os.chmod(self.public, 0o755)
        for program in ("launcher", "worker"):
            shutil.copy(os.path.join(harness.BIN, program), self.public)
        self.nobody = pwd.getpwnam("nobody")
        self.home = os.path.join(self.public, "home")
        os.mkdir(self.home, 0o755)
        os.chown(self.home, self.nobody.pw_uid, self.nobody.pw_gid)
        os.chmod(self.dir, 0o755)
        # Where a job's process writes only if it runs the other user's program.
        os.mkdir(os.path.join(self.public, "loot"))
        os.chmod(os.path.join(self.public, "loot"), 0o1777)
        self.stolen = os.path.join(self.public, "loot", "stolen")
        _, self.address = self.start_coordinator("--local-users", listen=f"unix:{self.public}/socket",
                                                 preexec_fn=lambda: os.umask(0o077))

    def tearDown(self):
        super().tearDown()
        shutil.rmtree(self.public, ignore_errors=True)

    def environment(self, **more):
        return dict(super().environment(**more), LOCKSTEP_WORKER=os.path.join(self.public, "worker"))

    def as_nobody(self, *arguments, cwd=None):
        child = self.start(os.path.join(self.public, "launcher"), *arguments, cwd=cwd or self.home, user=self.nobody.pw_uid, group=self.nobody.pw_gid, extra_groups=[],
                           env={"XDG_RUNTIME_DIR": "", "LOCKSTEP_WORKER": "", "LOCKSTEP_COORDINATOR": self.address})
        return self.finish(child, 60)

    def join(self, *more):
        self.start("launcher", "join", f"--coordinator={self.address}", "--slots=1", f"--state-dir={self.dir}/node",
                   "--as-users", *more)

    def test_a_job_is_its_users(self):
        self.join()
        self.assertEqual(stat.S_IMODE(os.stat(f"{self.public}/socket").st_mode), 0o666)
        code, out, err = self.as_nobody("submit", "--", "/bin/sh", "-c",
                                        "id -u; id -G; echo $HOME; touch made; cat /proc/$PPID/environ | tr '\\0' '\\n'")
        self.assertEqual(code, 0, out + err)
        said = out + err
        self.assertIn(str(self.nobody.pw_uid), said)
        self.assertNotIn("LOCKSTEP_TOKEN", said)
        for folder, _, files in os.walk(self.home):
            for path in [folder] + [os.path.join(folder, name) for name in files]:
                self.assertEqual(os.stat(path).st_uid, self.nobody.pw_uid, path)
        self.assertTrue(any("logs" in folder for folder, _, _ in os.walk(self.home)))

    def test_an_agent_has_the_rights_that_it_needs_or_says_which_it_lacks(self):
        def join(*rights, node="node"):
            setpriv = [shutil.which("setpriv"), "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all" + "".join(f",+{right}" for right in rights)]
            return self.start(*setpriv, os.path.join(self.public, "launcher"), "join", f"--coordinator={self.address}",
                              "--slots=1", f"--state-dir={self.dir}/{node}", "--as-users")
        for rights, missing in (((), "CAP_SETGID"), (("setgid", "kill"), "CAP_SETUID"), (("setgid", "setuid"), "CAP_KILL")):
            code, out, err = self.finish(join(*rights, node="none"))
            self.assertEqual(code, 5, out + err)
            self.assertIn(missing, err)
        join("setgid", "setuid", "kill")
        os.chmod(self.home, 0o700)  # the agent cannot look into it but as its user
        code, out, err = self.as_nobody("submit", "--", "/bin/sh", "-c", "id -u")
        self.assertEqual(code, 0, out + err)
        code, out, err = self.as_nobody("submit", "--no-follow", "-o", "json", "--", "/bin/sleep", "1000")
        self.assertEqual(code, 0, out + err)
        job = json.loads(out)["job"]

        def state():
            return json.loads(self.as_nobody("describe", "-o", "json", job)[1])["job"]["status"]["state"]
        wait_until(lambda: state() == "RUNNING", 60, "it runs")
        self.assertEqual(self.as_nobody("cancel", job)[0], 0)
        wait_until(lambda: state() == "CANCELLED", 60, "it is ended")

    def test_files_are_read_as_the_user_reads_them(self):
        self.join()
        code, out, err = self.as_nobody("submit", "-o", "json", "--", "/bin/true")
        self.assertEqual(code, 0, out + err)
        job = json.loads(out.strip().splitlines()[-1])["job"]
        # The user's own link on the way there is followed, and nothing of root's is read for them.
        os.rename(f"{self.home}/runs", f"{self.home}/elsewhere")
        os.symlink("elsewhere", f"{self.home}/runs")
        os.chown(f"{self.home}/runs", self.nobody.pw_uid, self.nobody.pw_gid, follow_symlinks=False)
        code, out, err = self.as_nobody("fetch", "--all", "--to", "copy", job)
        self.assertEqual(code, 0, out + err)
        self.assertTrue(os.path.exists(f"{self.home}/copy/job.yaml"), os.listdir(self.home))
        [run] = os.listdir(f"{self.home}/elsewhere")
        with open(os.open(f"{self.home}/elsewhere/{run}/secret.txt", os.O_CREAT | os.O_WRONLY, 0o600), "w",
                  encoding="utf-8") as file:
            file.write("root's")
        code, out, err = self.as_nobody("fetch", "--all", "--to", "again", job)
        self.assertNotEqual(code, 0, out + err)
        self.assertIn("Permission denied", err)
        self.assertFalse(os.path.exists(f"{self.home}/again/secret.txt"))

    # Prints the numbers of a session's keyring and of a key that can be found there; -1: there is none.
    KEYS = """
import ctypes, platform
syscall = ctypes.CDLL(None, use_errno=True).syscall
syscall.restype = ctypes.c_long
ADD_KEY, KEYCTL = (217, 219) if platform.machine() == "aarch64" else (248, 250)
SESSION, GET_KEYRING_ID, JOIN_SESSION_KEYRING, SEARCH = ctypes.c_long(-3), 0, 1, 10
def look():
    print("keyring", syscall(KEYCTL, GET_KEYRING_ID, SESSION, 0), "key",
          syscall(KEYCTL, SEARCH, SESSION, b"user", b"lockstep-test", 0), flush=True)
"""

    def test_a_job_has_no_keys_of_others(self):
        keys = {}
        exec(self.KEYS, keys)  # pylint: disable=exec-used

        def of_a_session():
            keys["syscall"](keys["KEYCTL"], keys["JOIN_SESSION_KEYRING"], None)
            if keys["syscall"](keys["ADD_KEY"], b"user", b"lockstep-test", b"secret", 6, keys["SESSION"]) < 0:
                os._exit(3)
        probe = subprocess.run([sys.executable, "-c", self.KEYS + "look()"], preexec_fn=of_a_session, check=False,
                               capture_output=True, text=True)
        if probe.returncode == 3:
            self.skipTest("SKIPPED: there are no keyrings here")
        self.assertNotIn("key -1", probe.stdout)
        self.start("launcher", "join", f"--coordinator={self.address}", "--slots=1", f"--state-dir={self.dir}/node",
                   "--as-users", preexec_fn=of_a_session)
        with open(os.path.join(self.public, "look.py"), "w", encoding="utf-8") as file:
            file.write(self.KEYS + "look()\n")
        os.chmod(file.name, 0o644)
        code, out, err = self.as_nobody("submit", "--", "python3", file.name)
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out + err, r"keyring [0-9]+ key -1\b")

    def test_training_as_a_user(self):
        self.join()
        path = os.path.join(self.home, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(harness.synthetic_job(nproc=1, shards=1))
        code, out, err = self.as_nobody("submit", "-o", "json", path)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["state"], "SUCCEEDED")

    def refused(self, folder, attack):
        """Submits nobody's job in `folder`, has another user do `attack` before it runs, and looks how it fails."""
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("name: prey\nrun: [python3, train.py]\nworkdir: code\nsecrets: {KEY: the-secret}\n")
        os.makedirs(f"{folder}/code", exist_ok=True)
        with open(f"{folder}/code/train.py", "w", encoding="utf-8") as file:
            file.write("print('of the user')\n")
        code, out, err = self.as_nobody("submit", "--hold", "--no-follow", "-o", "json", "job.yaml", cwd=folder)
        self.assertEqual(code, 0, out + err)
        job = json.loads(out)["job"]
        for command in attack:
            subprocess.run(["/bin/sh", "-c", "umask 0; " + command.format(run=f"prey-{job}")], check=True, cwd=folder,
                           user=self.OTHER, group=self.OTHER, extra_groups=[])
        self.assertEqual(self.as_nobody("release", job)[0], 0)
        status = wait_until(lambda: (s := json.loads(self.as_nobody("describe", "-o", "json", job)[1])["job"]["status"])["state"]
                            in ("SUCCEEDED", "FAILED") and s, 60, "it ends")
        self.assertFalse(os.path.exists(self.stolen), "another user's code ran")
        self.assertEqual(status["state"], "FAILED", status)
        return job, status["reason"]

    def test_what_another_user_made_is_no_jobs_folder(self):
        runs = os.path.join(self.public, "runs")
        os.mkdir(runs)
        os.chmod(runs, 0o1777)
        self.join(f"--runs-dir={runs}")
        train = f"echo \"open('{self.stolen}', 'w')\" > {runs}/{{run}}/workdir/train.py"
        for attack in ([f"mkdir -p {runs}/{{run}}/workdir", train],
                       [f"mkdir -p {runs}/{{run}}/logs", f"touch {runs}/{{run}}/logs/0.log"],
                       [f"ln -s {self.home} {runs}/{{run}}"]):
            job, reason = self.refused(self.home, attack)
            self.assertIn(f"{runs}/prey-{job}", reason)
            self.assertIn("symbolic link" if "ln" in attack[0] else f"was made by user {self.OTHER}: remove it", reason)
            if "logs" in attack[0]:
                self.assertEqual(os.path.getsize(f"{runs}/prey-{job}/logs/0.log"), 0)
        self.assertEqual(sorted(os.listdir(self.home)), ["code", "job.yaml"])

    def test_another_users_folder_of_runs_is_not_used(self):
        shared = os.path.join(self.public, "shared")
        os.mkdir(shared)
        os.chmod(shared, 0o1777)
        subprocess.run(["/bin/sh", "-c", "umask 0; mkdir runs"], check=True, cwd=shared, user=self.OTHER,
                       group=self.OTHER, extra_groups=[])
        self.join()
        train = f"echo \"open('{self.stolen}', 'w')\" > runs/{{run}}/workdir/train.py"
        _, reason = self.refused(shared, ["mkdir -p runs/{run}/workdir", train])
        self.assertIn(f"'{shared}/runs', in which runs lie, was made by user {self.OTHER}", reason)

    def test_roots_jobs_need_a_flag(self):
        self.join()
        code, out, err = self.launch("submit", f"--coordinator={self.address}", "--", "/bin/true", cwd=self.public)
        self.assertNotEqual(code, 0)
        self.assertIn("would run as root", out + err)

    def test_too_many_users_are_told_so(self):
        # 64 at most, and the coordinator's own user is one of them: each only has to connect.
        for uid in range(20001, 20065):
            child = os.fork()
            if child == 0:
                try:
                    os.setresuid(uid, uid, uid)
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.connect(f"{self.public}/socket")
                        connection.recv(1)  # it is served: gRPC speaks first
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0, uid)
        code, out, err = self.as_nobody("token", "whoami")
        self.assertNotEqual(code, 0, out)
        self.assertIn("takes no more", err)
        code, out, err = self.launch("token", "whoami", f"--coordinator={self.address}")
        self.assertEqual(code, 0, out + err)

    def test_a_user_cannot_drain_or_take_others(self):
        code, _, err = self.as_nobody("token", "create", "--user=x", "--role=admin")
        self.assertNotEqual(code, 0)
        self.assertIn("that takes the role admin", err)
        code, out, _ = self.as_nobody("token", "whoami")
        self.assertEqual((code, json.loads(out)["user"]), (0, "nobody"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
