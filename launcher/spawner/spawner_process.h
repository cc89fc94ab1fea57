// SPDX-License-Identifier: Apache-2.0
// The spawner process itself: starts, signals and reaps processes for the launcher. It stays
// single-threaded, which makes starting cheap (vfork) and the parent-death signal of its children
// meaningful (the kernel ties it to the parent thread).
// Thread-safety: runs in a process of its own.
#ifndef LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_PROCESS_H_
#define LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_PROCESS_H_

#include <sys/types.h>

namespace lockstep::launcher {

// The whole life of the spawner, called in the child of the fork. Serves commands on `socket` until
// the launcher (process `launcher`) is gone, then kills everything that descends from here, removes
// the files that it was asked to remember, and ends the process.
[[noreturn]] void RunSpawnerProcess(int socket, pid_t launcher);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SPAWNER_SPAWNER_PROCESS_H_
