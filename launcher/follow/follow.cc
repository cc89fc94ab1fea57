// SPDX-License-Identifier: Apache-2.0
#include "launcher/follow/follow.h"

#include "common/status.h"
#include "job/meaning/job_state.h"

namespace lockstep::launcher {

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
  if (job::IsFinal(last.state())) return last;
  LS_RETURN_IF_ERROR(followed);
  return absl::CancelledError("stopped following");
}

}  // namespace lockstep::launcher
