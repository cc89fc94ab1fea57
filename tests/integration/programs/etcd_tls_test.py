# SPDX-License-Identifier: Apache-2.0
"""A coordinator whose etcd speaks TLS and lets in who shows a certificate; what each mistake says."""

import os
import re
import shutil
import subprocess
import time
import unittest

import harness
import tokens
from etcd import EtcdTest
from harness import wait_until


class EtcdTls(EtcdTest):
    def setUp(self):
        super().setUp()
        # A coordinator's authorities and certificates are as good as others.
        self.pki = os.path.join(self.dir, "pki")
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={self.pki}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        with open(os.path.join(self.pki, "token"), encoding="ascii") as file:
            self.client = tokens.certificate_of(file.read(), self.dir)
        with open(os.path.join(self.pki, "callers.pem"), encoding="ascii") as file:
            certificate = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", file.read(), re.DOTALL)
        self.callers = self.write("callers.pem", certificate.group())  # etcd takes no file with a key in it
        self.number = 0
        self.start_again("https", "127.0.0.1")

    def start_again(self, scheme, host):
        """Etcd, empty and with another address."""
        self.kill_etcd()
        shutil.rmtree(os.path.join(self.dir, "etcd"))
        self.scheme, self.host = scheme, host
        self.assertTrue(self.start_etcd())
        self.store = f"etcds://{host}:{self.ports[0]}/test"

    def etcd_flags(self):
        if self.scheme == "http":
            return []
        server = os.path.join(self.pki, "server.pem")
        return ["--cert-file", server, "--key-file", server, "--client-cert-auth", "--trusted-ca-file", self.callers]

    def flags(self, authority=None, client=None):
        client = client or self.client
        return [f"--store-ca={authority or os.path.join(self.pki, 'authority.pem')}", f"--store-cert={client}",
                f"--store-key={client}"]

    def start_with(self, *flags, store=None):
        """A coordinator, which listens whether or not it can lead."""
        self.number += 1
        address = f"unix:{self.dir}/with{self.number}"
        child = subprocess.Popen(
            [os.path.join(harness.BIN, "coordinator"), f"--listen={address}", f"--store={store or self.store}", *flags],
            cwd=self.dir, env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log)
        self.children.append(child)
        return child, address

    def said(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()

    def assert_says(self, words, *flags, store=None):
        """It stands by, and says why."""
        child, _ = self.start_with(*flags, store=store)
        wait_until(lambda: words in self.said(), 20, words)
        self.assertIsNone(child.poll(), "it stands by")
        child.terminate()
        self.finish(child)

    def test_its_jobs_are_kept_there(self):
        child, address = self.start_with(*self.flags())
        job = self.write("job.yaml", harness.synthetic_job(steps=5, nproc=1, shards=1))
        wait_until(lambda: self.launch("submit", "--no-follow", f"--coordinator={address}", job)[0] == 0, 20, "it leads")
        child.kill()
        child.wait()
        _, address = self.start_with(*self.flags())
        wait_until(lambda: "tiny" in self.launch("list", f"--coordinator={address}")[1], 20, "the next one knows the job")

    def test_each_mistake_has_its_words(self):
        other = os.path.join(self.dir, "other")
        code, _, err = self.run_program("coordinator", "init", f"--state-dir={other}", "--host=127.0.0.1")
        self.assertEqual(code, 0, err)
        theirs = os.path.join(other, "authority.pem")
        with open(os.path.join(other, "token"), encoding="ascii") as file:
            stranger = tokens.certificate_of(file.read(), self.dir)
        authority = os.path.join(self.pki, "authority.pem")
        self.assert_says("is not of the authority in --store-ca", *self.flags(authority=theirs))
        self.assert_says("is of no authority that this host trusts", f"--store-cert={self.client}",
                         f"--store-key={self.client}")
        self.assert_says("none was given (--store-cert and --store-key)", f"--store-ca={authority}")
        self.assert_says("does not take that in --store-cert", *self.flags(client=stranger))
        self.assert_says("speaks TLS alone: write --store etcds://", store=self.store.replace("etcds", "etcd"))

    def test_tls_to_an_etcd_without(self):
        self.start_again("http", "127.0.0.1")
        self.assert_says("does not speak TLS: write --store etcd://", *self.flags())

    def test_a_name_that_its_certificate_lacks(self):
        self.start_again("https", "127.0.0.2")
        self.assert_says("not for 127.0.0.2: name one of these in --store", *self.flags())


if __name__ == "__main__":
    unittest.main(verbosity=2)
