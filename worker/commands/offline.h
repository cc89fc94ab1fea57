// SPDX-License-Identifier: Apache-2.0
// The worker program as a child of a verb: one request, one answer on stdout, no coordinator.
// Thread-safety: called by main.
#ifndef LOCKSTEP_WORKER_COMMANDS_OFFLINE_H_
#define LOCKSTEP_WORKER_COMMANDS_OFFLINE_H_

#include "proto/offline.pb.h"

namespace lockstep::worker {

// Answers `request`; errors go to stderr, with -o json as {"schema":1,"ok":false,"error":...} to
// stdout too. Blocks. Returns the launcher's exit code (docs/exit_codes.md).
int RunOffline(const OfflineRequest& request);

// Threads of the engine that the request asks for.
int ThreadsOf(const OfflineRequest& request);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_COMMANDS_OFFLINE_H_
