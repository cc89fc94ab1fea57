# SPDX-License-Identifier: Apache-2.0
"""Certificates and authorities are replaced under a coordinator and those who are connected to it."""

import json
import os
import shutil
import ssl
import subprocess
import time
import unittest

import harness
import tokens
from harness import PACED, steps_that_last, wait_until
from tls_test import TlsTest


class Renewed(TlsTest):
    def served(self, address):
        """The coordinator's certificate."""
        host, port = address.rsplit(":", 1)
        return ssl.get_server_certificate((host, int(port)))

    def renewals(self, role):
        """How many have taken a new certificate."""
        with open(os.path.join(self.state, "audit.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return sum(line["what"] == "renew_token" and line["role"] == role for line in lines)

    def test_the_coordinator_takes_its_certificate_without_a_restart(self):
        self.init()
        _, address = self.coordinator()
        before = self.served(address)
        self.init()
        wait_until(lambda: self.served(address) != before, 20, "the new one is shown")
        self.assertEqual(self.list_jobs(address, LOCKSTEP_TOKEN=self.read_token())[0], 0)

    def test_a_folder_of_an_earlier_version(self):
        self.init()
        os.unlink(os.path.join(self.state, "callers.pem"))
        former = tokens.without_certificate(self.read_token())
        os.unlink(self.token)
        os.chmod(self.write("state/token", former + "\n"), 0o600)
        code, _, err = self.run_program("coordinator", "--listen=127.0.0.1:0", f"--state-dir={self.state}")
        self.assertEqual(code, 1)
        self.assertIn("of an earlier version", err)
        self.assertIn("--admit-without-certificate", err)
        _, err = self.init()
        self.assertIn("--admit-without-certificate", err)
        child, address = self.coordinator("--admit-without-certificate")
        copy = self.write("copy", former + "\n")
        os.chmod(copy, 0o600)
        elsewhere = {"XDG_RUNTIME_DIR": os.path.join(self.dir, "elsewhere")}
        link = os.path.join(self.dir, "link")
        os.symlink("copy", link)
        code, _, err = self.launch("token", "renew", f"--coordinator={address}", f"--token-file={link}", env=elsewhere)
        self.assertEqual(code, 0, err)
        self.assertTrue(os.path.islink(link))
        child.terminate()
        self.finish(child)
        self.coordinator(listen=address)
        self.assertEqual(self.list_jobs(address, LOCKSTEP_TOKEN=self.text(copy).strip())[0], 0)
        code, _, err = self.list_jobs(address, LOCKSTEP_TOKEN=former)
        self.assertEqual(code, 5, err)
        self.assertIn("the token has none", err)

    def test_who_follows_for_long_fetches_the_model_with_the_renewed_token(self):
        self.init()
        child, address = self.coordinator()
        copy = shutil.copy(self.token, os.path.join(self.dir, "copied"))
        self.start("launcher", "join", f"--coordinator={address}", "--slots=1", f"--token-file={copy}",
                   f"--state-dir={os.path.join(self.dir, 'node')}", env=PACED)
        path = self.write("job.yaml", harness.synthetic_job(nproc=1, steps=steps_that_last(600),
                                                            train_extra="  eval: {every: never}\n"))
        # It shows the result, and looks for the model, when somebody reads what is there already.
        read, write = os.pipe()
        os.set_blocking(write, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(write, bytes(1000))
        os.set_blocking(write, True)
        follower = subprocess.Popen(
            [os.path.join(harness.BIN, "launcher"), "submit", f"--coordinator={address}", f"--token-file={copy}", path],
            cwd=self.dir, env=self.environment(), stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE,
            text=True)
        self.children.append(follower)
        os.close(write)

        def job():
            code, out, err = self.launch("list", f"--coordinator={address}", "-o", "json")
            self.assertEqual(code, 0, err)
            return (json.loads(out)["jobs"] or [{}])[0]

        def start_again(old):
            old.kill()
            old.wait()
            return self.coordinator(listen=address)[0]
        wait_until(lambda: job().get("state") == "RUNNING", 60, "it trains")
        self.init("--rotate")
        child = start_again(child)  # they ask when they have come back; else every ten minutes
        wait_until(lambda: self.renewals("worker") >= 1 and self.renewals("admin") >= 2, 60,
                   "the worker, the node and who follows have new certificates")
        self.init("--finish-rotation")
        start_again(child)
        self.unpace()
        wait_until(lambda: job()["state"] == "SUCCEEDED", 240, "the job ends")
        code, out, err = self.launch("describe", f"--coordinator={address}", "-o", "json", job()["job_id"])
        self.assertEqual(code, 0, err)
        model = os.path.join(self.dir, json.loads(out)["job"]["status"]["result"]["model_path"])
        os.rename(model, model + ".away")  # which lies in the run's folder, too, and is fetched
        with os.fdopen(read, "rb") as out:
            out.read()
        _, err = follower.communicate(timeout=harness.patient())
        self.assertIn("the model is in ", err)

    def test_who_follows_with_a_token_that_is_taken_no_more_is_told_at_once(self):
        self.init()
        child, address = self.coordinator()
        self.start("launcher", "join", f"--coordinator={address}", "--slots=1", f"--token-file={self.token}",
                   f"--state-dir={os.path.join(self.dir, 'node')}", env=PACED)
        ann = os.path.join(self.dir, "token-of-ann")
        at = (f"--coordinator={address}", f"--token-file={self.token}")
        code, _, err = self.launch("token", "create", *at, "--user=ann", "--role=submit", f"--save-as={ann}")
        self.assertEqual(code, 0, err)
        path = self.write("job.yaml", harness.synthetic_job(nproc=1, steps=steps_that_last(600),
                                                            train_extra="  eval: {every: never}\n"))
        followers = [self.start("launcher", "submit", *how, f"--coordinator={address}", f"--token-file={ann}", path)
                     for how in ([], ["--wait"])]

        def jobs():
            code, out, err = self.launch("list", *at, "-o", "json")
            self.assertEqual(code, 0, err)
            return json.loads(out)["jobs"]
        wait_until(lambda: len(jobs()) == 2 and any(job["state"] == "RUNNING" for job in jobs()), 60, "they are there")
        waiting = next(job for job in jobs() if job["state"] == "PENDING")
        followers.append(self.start("launcher", "logs", "-f", f"--coordinator={address}", f"--token-file={ann}",
                                    waiting["job_id"]))
        followers[-1].stderr.readline()  # what the job waits for
        # Nobody listens at its other address, which says nothing of the token.
        followers.append(self.start("launcher", "logs", "-f", f"--coordinator={address},127.0.0.1:1",
                                    f"--token-file={ann}", waiting["job_id"]))
        followers[-1].stderr.readline()
        code, _, err = self.launch("token", "revoke", *at, err.split()[1])
        self.assertEqual(code, 0, err)
        began = time.monotonic()
        child.kill()
        child.wait()
        self.coordinator(listen=address)
        for follower in followers:
            code, _, err = self.finish(follower)
            self.assertEqual(code, 5, err)
            self.assertRegex(err, "the token was revoked or has expired.*; the job is not ended by that")
        self.assertLess(time.monotonic() - began, 50)  # and not when a minute is over
        self.assertEqual(len([job for job in jobs() if job["state"] in ("RUNNING", "PENDING")]), 2)

    def test_authorities_are_replaced_while_a_job_trains(self):
        self.init()
        child, address = self.coordinator()
        copy = shutil.copy(self.token, os.path.join(self.dir, "copied"))
        former = self.read_token()
        node = os.path.join(self.dir, "node")
        self.start("launcher", "join", f"--coordinator={address}", "--slots=2", f"--token-file={copy}",
                   f"--state-dir={node}", env=PACED)
        path = self.write("job.yaml", harness.synthetic_job(nproc=2, steps=steps_that_last(600)))
        code, out, err = self.launch("submit", "--no-follow", f"--coordinator={address}", "-o", "json", path)
        self.assertEqual(code, 0, out + err)
        job = json.loads(out.strip().splitlines()[-1])["job"]

        def status():
            code, out, err = self.launch("describe", f"--coordinator={address}", f"--token-file={copy}", "-o", "json", job)
            self.assertEqual(code, 0, err)
            return json.loads(out)["job"]["status"]
        wait_until(lambda: int(status().get("progress", {}).get("step", 0)) > 5, 60, "it trains")
        workers = sorted(p.pid for p in self.processes("worker"))

        def start_again(old):
            old.kill()
            old.wait()
            return self.coordinator(listen=address)[0]
        self.init("--rotate")
        child = start_again(child)  # they ask when they have come back; else every ten minutes
        wait_until(lambda: self.renewals("worker") >= 2 and os.path.exists(os.path.join(node, "token")), 60,
                   "the node and its workers have new certificates")
        before = self.text(copy)
        code, _, err = self.launch("token", "renew", f"--coordinator={address}", f"--token-file={copy}")
        self.assertEqual(code, 0, err)
        self.assertNotEqual(self.text(copy), before)
        shown = self.served(address)
        self.init("--finish-rotation")
        wait_until(lambda: self.served(address) != shown, 20, "the new authority's is shown")
        code, _, err = self.list_jobs(address, LOCKSTEP_TOKEN=former)
        self.assertEqual(code, 5, err)
        self.assertIn("of another cluster than the token", err)
        start_again(child)
        wait_until(lambda: status()["state"] == "RUNNING", 30, "the coordinator knows it again")
        step = int(status().get("progress", {}).get("step", 0))
        wait_until(lambda: int(status().get("progress", {}).get("step", 0)) > step, 60, "its workers are heard")
        self.assertEqual(sorted(p.pid for p in self.processes("worker")), workers, "nobody was ended")
        self.assertEqual(int(status()["generation"]), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
