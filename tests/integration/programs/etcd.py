# SPDX-License-Identifier: Apache-2.0
"""A real etcd and several coordinators on it, for tests of high availability."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import harness
from harness import wait_until

ETCD = shutil.which("etcd")  # Debian's etcd-server


class EtcdTest(harness.ProgramTest):
    """An etcd with a folder and ports of its own, which may be killed and started again."""

    scheme, host = "http", "127.0.0.1"

    def setUp(self):
        if ETCD is None:
            self.skipTest("SKIPPED: there is no program `etcd` here (Debian's etcd-server)")
        super().setUp()
        self.etcd = None
        self.log = open(os.path.join(self.dir, "coordinators.log"), "w+", encoding="utf-8")
        for _ in range(3):  # somebody may take a port first
            self.ports = harness.free_port(), harness.free_port()
            if self.start_etcd():
                break
        else:
            self.fail("etcd does not start")
        self.store = f"etcd://127.0.0.1:{self.ports[0]}/test"
        self.addresses = []
        self.coordinators = {}  # by address

    def tearDown(self):
        self.log.close()
        super().tearDown()

    def start_etcd(self):
        client, peer = f"{self.scheme}://{self.host}:{self.ports[0]}", f"http://127.0.0.1:{self.ports[1]}"
        with open(os.path.join(self.dir, "etcd.log"), "a", encoding="utf-8") as log:
            self.etcd = subprocess.Popen(
                [ETCD, "--data-dir", os.path.join(self.dir, "etcd"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"default={peer}", *self.etcd_flags()],
                env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append(self.etcd)
        deadline = time.monotonic() + harness.LEAST_SECONDS
        while time.monotonic() < deadline and self.etcd.poll() is None:
            try:
                socket.create_connection((self.host, self.ports[0]), 1).close()
                return True
            except OSError:
                time.sleep(0.02)
        return False

    def etcd_flags(self):
        return []

    def kill_etcd(self):
        self.etcd.kill()
        self.etcd.wait()

    def start_candidate(self, number):
        """The coordinator with that number, each time at the same address."""
        address = f"unix:{self.dir}/c{number}"
        if address not in self.addresses:
            self.addresses.append(address)
        ready_read, ready_write = os.pipe()
        child = subprocess.Popen(
            [os.path.join(harness.BIN, "coordinator"), f"--listen={address}", f"--ready-fd={ready_write}",
             f"--store={self.store}"], cwd=self.dir, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self.log, pass_fds=(ready_write,))
        os.close(ready_write)
        self.children.append(child)
        self.coordinators[address] = child
        with os.fdopen(ready_read) as ready:
            self.assertEqual(ready.readline().strip(), address)
        return child

    def all_addresses(self):
        return ",".join(self.addresses)

    def leads(self, address, seconds="1"):
        """Whether that one answers itself, asked alone."""
        code, _, _ = self.launch("nodes", f"--coordinator={address}", seconds=30)
        return code == 0

    def leader(self):
        return wait_until(lambda: next((a for a in self.addresses if self.coordinators[a].poll() is None and
                                        self.key_is(a)), None), 20, "one leads")

    def key_is(self, address):
        """Whether etcd's key of the leader names the address."""
        return self.leader_key() == address

    def leadership(self):
        """(address, revision of etcd's since which it leads) by the leader's key, which stays for its lease when that
        one is dead; None: there is no key."""
        import base64
        import urllib.request
        key = f"/{self.store.rsplit('/', 1)[1]}/leader"
        body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[0]}/v3/kv/range", body, 2) as reply:
                found = json.load(reply).get("kvs", [])
        except OSError:
            return None
        if not found:
            return None
        return base64.b64decode(found[0]["value"])[2:].decode(), int(found[0]["create_revision"])

    def leader_key(self):
        """The address in the leader's key, by etcd's JSON interface; None: there is no key."""
        leads = self.leadership()
        return leads and leads[0]

    def verb(self, *arguments, **options):
        return self.launch(arguments[0], f"--coordinator={self.all_addresses()}", *arguments[1:], **options)

    def stop(self, address):
        self.coordinators[address].send_signal(signal.SIGSTOP)

    def wake(self, address):
        self.coordinators[address].send_signal(signal.SIGCONT)

    def kill(self, address):
        self.coordinators[address].kill()
        self.coordinators[address].wait()
