// SPDX-License-Identifier: Apache-2.0
// Follows a job to its end and shows what happens.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_LAUNCHER_FOLLOW_FOLLOW_H_
#define LOCKSTEP_LAUNCHER_FOLLOW_FOLLOW_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/client/client.h"
#include "launcher/follow/renderer.h"
#include "proto/coordinator.pb.h"

namespace lockstep::launcher {

// Blocks until the job is in a final state; returns that. Errors: NotFound; Unavailable when the
// coordinator is unreachable for `give_up_after`; Cancelled after client->StopFollowing().
absl::StatusOr<JobStatus> FollowToEnd(coordinator::Client* client, const std::string& job_id,
                                      Renderer* renderer, absl::Duration give_up_after);

}  // namespace lockstep::launcher

#endif  // LOCKSTEP_LAUNCHER_FOLLOW_FOLLOW_H_
