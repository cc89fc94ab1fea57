// SPDX-License-Identifier: Apache-2.0
// Where what a job's run left is: on the nodes that its workers were on.
// Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_FILES_H_
#define LOCKSTEP_COORDINATOR_CORE_FILES_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "proto/files.pb.h"

namespace lockstep::coordinator {

// The worker's place becomes another's, or nobody's: its node has files of it.
void NoteLeft(const Worker& worker, Job& job);

// The nodes come in the order of the ranks. Errors: as FindJobId.
absl::StatusOr<FindFilesResponse> FindFiles(const State& state, const std::string& reference,
                                            absl::Time now);

// The connection of the agent that is to send files of the job from the node. Errors: as FindJobId;
// NotFound (no worker of the job was there); Unavailable (the node is away).
absl::StatusOr<SessionId> FileSender(const State& state, const std::string& reference,
                                     const std::string& node_id, absl::Time now);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_FILES_H_
