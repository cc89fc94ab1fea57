// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/follow.h"

#include "common/status.h"

namespace lockstep::launcher {

bool IsFinal(JobState state) { return state == SUCCEEDED || state == FAILED || state == CANCELLED; }

absl::StatusOr<JobStatus> FollowToEnd(coordinator::Client* client, const std::string& job_id,
                                      Renderer* renderer, absl::Duration give_up_after) {
  FollowJobRequest request;
  request.set_job_id(job_id);
  request.set_logs(true);
  request.set_follow(true);
  JobStatus last;
  const absl::Status followed = client->FollowJob(
      request,
      [&](const JobEvent& event) {
        renderer->Show(event);
        if (event.has_state()) last = event.state();
        return true;
      },
      give_up_after);
  if (IsFinal(last.state())) return last;
  LS_RETURN_IF_ERROR(followed);
  return absl::CancelledError("stopped following");
}

}  // namespace lockstep::launcher
