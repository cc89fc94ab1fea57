# SPDX-License-Identifier: Apache-2.0
"""A job over hosts (network namespaces) with unusual addresses and interfaces: the same bits as on one."""

import re
import unittest

import harness
from harness import steps_that_last, wait_until
from hosts import HostsTest


class HostsAddresses(HostsTest):
    def job_file(self, nodes, steps):
        text = harness.synthetic_job(
            steps=steps, shards=4, hidden="[96, 96, 96]",
            train_extra="  eval: {every: never}\n  passes: {bucket_size: 8KiB}\n",
            extra="restart: {max_restarts: 0}\nfailure_detection: 2s\n")
        return self.write("job.yaml", re.sub(r"resources: .*",
                                             f"resources: {{nodes: {nodes}, nproc_per_node: 1, device: cpu}}", text))

    def join_all(self, hosts, *more):
        for host in hosts:
            self.join(host, 1, *more)
        self.await_nodes(len(hosts))

    def assert_good(self, job, path, expected=None):
        """Its bits, and nothing happened to it on the way."""
        status = super().assert_good(job, path, expected)
        self.assertEqual((status["result"].get("faults", []), int(status["generation"])), ([], 1), status)
        return status

    def test_hosts_without_any_ipv4(self):
        hosts = self.make_network("h1", "h2", "h3")
        head = self.network["head"]
        for host in (head, *hosts[:2]):  # the third has both
            for interface in ("lo", "eth0"):
                host.run("ip", "-4", "addr", "flush", "dev", interface)
            self.assertEqual(host.run("ip", "-4", "addr"), "")
        self.start_head(listen=f"[{head.address6}]")
        self.join_all(hosts)
        path = self.job_file(3, steps=100)
        self.assert_good(self.submit(path), path)

    def test_a_name_that_is_loopback_alone_means_all_addresses_of_both_families(self):
        hosts = self.make_network("h1", "h2")
        head = self.network["head"]
        names = self.write("names", "127.0.0.1 localhost\n127.0.1.1 head\n")
        prefix = head.prefix()
        head.prefix = lambda: [*prefix, "unshare", "--mount", "--propagation", "private", "sh", "-c",
                               'mount --bind "$0" /etc/hosts && exec "$@"', names]
        self.start_head(plaintext=True, listen="head")
        port = self.address.rpartition(":")[2]
        for count, (host, address) in enumerate(zip(hosts, (head.address, f"[{head.address6}]")), 1):
            self.address = f"{address}:{port}"
            self.join(host, 1)
            self.await_nodes(count)

    def test_of_two_interfaces_the_one_that_is_named_is_used(self):
        first, second = hosts = self.make_network("h1", "h2")
        self.network.add_second()
        self.start_head()
        self.join_all(hosts, "--interfaces=eth1")
        path = self.job_file(2, steps=steps_that_last(30))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 20, 60, "both hosts train")
        peers = first.run("ss", "-tnH", "state", "established")
        self.assertIn(second.second, peers)
        for other in (second.address, second.address6):
            self.assertNotIn(other, peers)
        # Longer than failure_detection; each still hears the coordinator there.
        first.hear_nothing_from(second)
        second.hear_nothing_from(first)
        at = self.step(job)
        wait_until(lambda: self.step(job) > at + steps_that_last(3), 60, "the job goes on")
        self.assert_good(job, path)

    def test_an_mtu_of_1280_at_one_end(self):
        hosts = self.make_network("h1", "h2")
        hosts[1].run("ip", "link", "set", "eth0", "mtu", "1280")
        self.start_head()
        self.join_all(hosts)
        path = self.job_file(2, steps=steps_that_last(30))
        job = self.submit(path)
        wait_until(lambda: self.step(job) > 20, 60, "both hosts train")
        sizes = [int(size) for size in re.findall(r" mss:(\d+)", hosts[0].run("ss", "-tniH", "dst", hosts[1].address))]
        self.assertTrue(sizes and max(sizes) < 1280, sizes)
        self.assert_good(job, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
