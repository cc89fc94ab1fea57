// SPDX-License-Identifier: Apache-2.0
// The supervisor of one job's processes on this host: their parent, which outlives the agent that
// had it started. An agent connects, has processes started and signalled, and hears how they end;
// when it is gone they go on, what they print goes to their logs, and how they end is kept, until
// the next agent has taken it over. With no agent for the orphan grace, and at SIGTERM, it ends
// them: SIGTERM, and SIGKILL after their own grace. When the supervisor dies, the kernel kills its
// processes. One thread has everything but the logs, which wait for their disk on another.
// Thread-safety: runs in a process of its own.
#ifndef LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_PROCESS_H_
#define LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_PROCESS_H_

namespace lockstep::launcher {

// The whole life of a supervisor: what the launcher's program does with kSupervisorFlag
// (launcher/supervisor/wire.h). Returns the exit code.
int RunSupervisorProcess();

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_SUPERVISOR_SUPERVISOR_PROCESS_H_
