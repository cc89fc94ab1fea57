// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/follower.h"

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/client/grpc_status.h"

namespace lockstep::coordinator {

Follower* Follower::Start(Hub* hub, const FollowJobRequest& request,
                          const absl::StatusOr<Requester>& who) {
  const absl::StatusOr<std::string> job_id =
      who.ok() ? hub->JobId(request.job_id(), *who) : who.status();
  auto follower = std::make_shared<Follower>(hub, job_id.value_or(""), request);
  Follower* raw = follower.get();
  raw->self_ = follower;
  if (!job_id.ok()) {
    {
      absl::MutexLock lock(&raw->mu_);
      raw->finished_ = true;
    }
    raw->Finish(ToGrpc(job_id.status()));
    return raw;
  }
  // Listens before it looks, so that nothing falls between.
  hub->AddFollower(raw->job_id_, follower);
  raw->WriteNext();
  return raw;
}

void Follower::WriteNext() {
  grpc::Status status;
  bool finish = false;
  {
    absl::MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    absl::StatusOr<Hub::Next> next = hub_->NextEvent(job_id_, place_, request_.logs());
    if (cancelled_ || !next.ok() || next->ended) {
      finished_ = finish = true;
      status = next.ok() ? grpc::Status::OK : ToGrpc(next.status());
    } else if (next->event == nullptr) {
      return;
    } else {
      event_ = next->event;
      writing_ = true;
    }
  }
  if (finish) {
    Finish(status);
  } else {
    StartWrite(event_.get());
  }
}

void Follower::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    cancelled_ |= !ok;
  }
  WriteNext();
}

void Follower::OnCancel() {
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
  }
  WriteNext();
}

void Follower::OnDone() {
  hub_->RemoveFollower(job_id_, self_);
  self_.reset();  // may free this object
}

}  // namespace lockstep::coordinator
