# SPDX-License-Identifier: Apache-2.0
"""A run over hosts that are known by name, and not yet known when it starts, as in Kubernetes (hosts are network
namespaces; needs root)."""
import json
import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/integration/programs"))

import harness  # noqa: E402
import hosts  # noqa: E402


class NamesTest(hosts.HostsTest):
    """Each host sees the same file as its /etc/hosts."""

    def test_a_name_that_becomes_known_later(self):
        pods = self.make_network("n1", "n2")
        known = self.write("hosts", "127.0.0.1 localhost\n")
        job = self.write("job.yaml", harness.synthetic_job(nproc=2, steps=50).replace(
            "nproc_per_node: 2", "nodes: 2, nproc_per_node: 2"))
        runs = []
        for rank, pod in enumerate(pods):
            runs.append(subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{pod.namespace}", "unshare", "--uts", "--mount", "sh", "-c",
                 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"', pod.name, known,
                 os.path.join(harness.BIN, "launcher"), "-o", "json", f"--node-rank={rank}",
                 "--rdzv-endpoint=pod-0.service:29500", job],
                cwd=self.dir, env=self.environment(LOCKSTEP_TOKEN="for-this-test-alone"), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        self.children += runs
        harness.wait_until(lambda: self.processes("coordinator"), 20, "the run's coordinator")
        with open(known, "a", encoding="utf-8") as file:
            file.write(f"{pods[0].address} pod-0.service\n")
        for run in runs:
            code, out, err = self.finish(run, 90)
            self.assertEqual(code, 0, err)
            if run is runs[0]:
                self.assertEqual(json.loads(out.splitlines()[-1])["workers"], 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
