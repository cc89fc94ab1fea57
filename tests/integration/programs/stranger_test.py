# SPDX-License-Identifier: Apache-2.0
"""Another user of a machine where jobs run: what they find of them, and what they do not get.

Every folder of the test's own is open to all, so that it is the product's modes that keep others out.
"""

import contextlib
import glob
import json
import os
import stat
import subprocess
import sys
import unittest

import harness
from harness import wait_until

SECRET = "the-secret-of-the-job"
STRANGER = 65534
# Run as the stranger, with what to try on its standard input; writes what it got.
PROBE = r"""
import array, ctypes, json, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
PIDFD_OPEN, PIDFD_GETFD = 434, 438
asked = json.load(sys.stdin)
# After the start, as the interpreter may be in a folder of another user's.
os.setgroups([])
os.setresgid(*[asked["user"]] * 3)
os.setresuid(*[asked["user"]] * 3)
got = []


def attempt(what, call):
    try:
        result = call()
    except (OSError, ValueError):
        return
    got.append(f"{what}: {result!r}"[:200])


def read(path):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(file, 64)
    finally:
        os.close(file)


def enter(path, how):
    os.close(os.open(path, how | os.O_NONBLOCK))


def make(folder):
    path = os.path.join(folder, "stranger")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(path)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def attach(request, pid):
    checked(libc.ptrace(request, pid, None, None))
    if request == PTRACE_ATTACH:
        os.waitpid(pid, 0x40000000)
        checked(libc.ptrace(PTRACE_DETACH, pid, None, None))


def vm_read(pid):
    here = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(here), 8)
    remote = struct.pack("PN", 0x400000, 8)
    checked(libc.process_vm_readv(pid, local, 1, remote, 1, 0))


def take_descriptors(pid):
    pidfd = checked(libc.syscall(PIDFD_OPEN, pid, 0))
    for number in range(64):
        attempt(f"descriptor {number} of {pid}", lambda: checked(libc.syscall(PIDFD_GETFD, pidfd, number, 0)))
    os.close(pidfd)
    raise OSError("open to all")


def talk(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(20)
        peer.connect(address)
        try:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        except OSError:
            pass
        data, control, _, _ = peer.recvmsg(4096, socket.CMSG_SPACE(16 * array.array("i").itemsize))
        if not data and not control:
            raise OSError("turned away")
        return data, control


for path in asked["files"]:
    attempt(f"read {path}", lambda: read(path))
    attempt(f"write {path}", lambda: enter(path, os.O_WRONLY))
for path in asked["folders"]:
    attempt(f"list {path}", lambda: os.listdir(path))
    attempt(f"make a file in {path}", lambda: make(path))
for path in asked["sockets"]:
    attempt(f"connect to {path}", lambda: talk(path))
for name in asked["abstract"]:
    attempt(f"connect to @{name}", lambda: talk(b"\0" + name.encode()))
for pid, descriptors in asked["processes"]:
    for name in ("environ", "maps", "auxv", "io", "stack"):
        attempt(f"read {name} of {pid}", lambda: read(f"/proc/{pid}/{name}"))
    attempt(f"open the memory of {pid}", lambda: enter(f"/proc/{pid}/mem", os.O_RDWR))
    for name in ("fd", "map_files"):
        attempt(f"list {name} of {pid}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    for name in ("root", "cwd"):
        attempt(f"enter {name} of {pid}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    for number in descriptors:
        attempt(f"open descriptor {number} of {pid}", lambda: enter(f"/proc/{pid}/fd/{number}", os.O_RDONLY))
    attempt(f"attach to {pid}", lambda: attach(PTRACE_ATTACH, pid))
    attempt(f"seize {pid}", lambda: attach(PTRACE_SEIZE, pid))
    attempt(f"read the memory of {pid}", lambda: vm_read(pid))
    attempt(f"descriptors of {pid}", lambda: take_descriptors(pid))
    attempt(f"signal {pid}", lambda: os.kill(pid, 0))
print(json.dumps({"user": os.getresuid(), "got": got}))
"""


def abstract_sockets(processes):
    """The names of the abstract sockets that these processes listen on."""
    inodes = set()
    for process in processes:
        for number in os.listdir(f"/proc/{process.pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{process.pid}/fd/{number}"))
            except FileNotFoundError:
                pass
    names = []
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file.read().splitlines()[1:]:
            words = line.split()
            listens = int(words[3], 16) & 0x10000
            if len(words) > 7 and words[7].startswith("@") and listens and f"socket:[{words[6]}]" in inodes:
                names.append(words[7][1:])
    return names


@unittest.skipUnless(os.geteuid() == 0, "NOT TESTED: what another user gets needs root, to become one")
class Stranger(harness.ProgramTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        for folder in (self.dir, self.runtime):
            os.chmod(folder, 0o755)

    def asked(self):
        """All that there is to try: what the programs have left in folders, and the programs themselves."""
        asked = {"files": [], "folders": [], "sockets": [], "processes": []}
        for folder, folders, files in os.walk(self.dir):
            for name in folders + files:
                path = os.path.join(folder, name)
                try:
                    mode = os.lstat(path).st_mode
                except FileNotFoundError:  # a checkpoint that a newer one replaced
                    continue
                kind = "folders" if stat.S_ISDIR(mode) else "sockets" if stat.S_ISSOCK(mode) else "files"
                asked[kind].append(path)
        processes = self.processes()
        for process in processes:
            numbers = [int(number) for number in os.listdir(f"/proc/{process.pid}/fd")]
            asked["processes"].append((process.pid, numbers))
        asked["abstract"] = abstract_sockets(processes)
        return asked

    def probe(self, asked, user):
        """What this user gets of it."""
        done = subprocess.run([sys.executable, "-c", PROBE], input=json.dumps({"user": user, **asked}), text=True,
                              stdout=subprocess.PIPE, timeout=harness.patient(), check=True, cwd="/", env={})
        answer = json.loads(done.stdout)
        self.assertEqual(answer["user"], [user] * 3)
        return answer

    def assert_closed(self, asked, around):
        """A stranger gets nothing of it but names in the folders `around`, and how long kernels take; its owner, by the
        same means, all of it."""
        names = tuple(f"list {os.path.join(self.dir, folder)}: " for folder in (*around, "cache", "cache/lockstep"))
        names += (f"read {self.dir}/cache/lockstep/cpu-kernels.tsv: ",)
        answer = self.probe(asked, STRANGER)
        self.assertEqual([what for what in answer["got"] if not what.startswith(names)], [])
        # Else the probe would be refused whatever it asked.
        owners = self.probe(asked, os.geteuid())
        for kind in ("read ", "write ", "list ", "make a file", "connect to ", "read environ", "open the memory",
                     "list fd", "enter cwd", "attach to", "descriptor ", "signal "):
            self.assertTrue(any(what.startswith(kind) for what in owners["got"]), kind)

    def test_of_jobs_on_a_node(self):
        self.start("coordinator")
        own = os.path.join(self.runtime, "lockstep", "coordinator.sock")
        wait_until(lambda: os.path.exists(own), 10, "the default socket")
        self.start("launcher", "join", "--slots=3")
        train = self.write("train.yaml", harness.synthetic_job(nproc=2, steps=harness.steps_that_last(600), extra=f"""
secrets: {{KEY: {SECRET}}}
checkpoint: {{dir: saved, every: 100 steps}}
"""))
        command = self.write("run.yaml", f"""name: command
resources: {{nproc_per_node: 1, device: cpu}}
run: [sleep, "600"]
secrets: {{KEY: {SECRET}}}
""")
        for job in (train, command):
            code, out, err = self.launch("submit", "--no-follow", job, env=harness.PACED)
            self.assertEqual(code, 0, out + err)

        def both_run():
            jobs = json.loads(self.launch("list", "-o", "json")[1])["jobs"]
            return [job["state"] for job in jobs] == ["RUNNING"] * 2 and self.processes("sleep")
        wait_until(both_run, 60, "both jobs run")
        wait_until(lambda: glob.glob(f"{self.dir}/saved/*/*"), 30, "a checkpoint")
        self.assertEqual({process.name for process in self.processes()},
                         {"coordinator", "launcher", "lockstep-supervisor", "worker", "sleep"})
        asked = self.asked()
        asked["files"] = [path for path in asked["files"] if path not in (train, command)]
        # Checkpoints are where the job says, with the modes that the agent's umask gives; they hold no secret.
        saved = os.path.join(self.dir, "saved")
        for path in glob.glob(f"{saved}/*/*"):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                self.assertNotIn(SECRET.encode(), file.read(), path)
        for kind in ("files", "folders"):
            asked[kind] = [path for path in asked[kind] if os.path.commonpath((path, saved)) != saved]
        self.assert_closed(asked, ("runtime", "runs", "state", "state/lockstep"))

    def test_of_a_run_here(self):
        job = self.write("job.yaml", harness.synthetic_job(nproc=2, steps=harness.steps_that_last(600), extra=f"""
secrets: {{KEY: {SECRET}}}
"""))
        self.start("launcher", job, env={**harness.PACED, "TMPDIR": self.runtime})
        wait_until(lambda: glob.glob(f"{self.dir}/runs/*/metrics.jsonl"), 30, "its first steps")
        asked = self.asked()
        asked["files"].remove(job)
        self.assert_closed(asked, ("runtime", "runs"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
