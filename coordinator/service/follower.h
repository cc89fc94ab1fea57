// SPDX-License-Identifier: Apache-2.0
// The server's side of FollowJob: takes the next event from the hub whenever the one before is
// written, so a slow follower holds nobody up and keeps nothing but its place.
// Thread-safety: thread-safe.
#ifndef LOCKSTEP_COORDINATOR_SERVICE_FOLLOWER_H_
#define LOCKSTEP_COORDINATOR_SERVICE_FOLLOWER_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "coordinator/service/hub.h"

namespace lockstep::coordinator {

class Follower : public grpc::ServerWriteReactor<JobEvent>, public StreamWriter {
 public:
  // Serves `request` of `who`, or ends at once when that is an error. Owns itself until its end.
  static Follower* Start(Hub* hub, const FollowJobRequest& request,
                         const absl::StatusOr<Requester>& who);

  Follower(Hub* hub, std::string job_id, const FollowJobRequest& request)
      : hub_(hub),
        job_id_(std::move(job_id)),
        request_(request),
        place_(request.after_sequence(), request.follow()) {}

  void WriteNext() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  Hub* const hub_;
  const std::string job_id_;  // that the request names
  const FollowJobRequest request_;
  std::shared_ptr<Follower> self_;

  absl::Mutex mu_;
  FollowerPlace place_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const JobEvent> event_;  // being written
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_SERVICE_FOLLOWER_H_
