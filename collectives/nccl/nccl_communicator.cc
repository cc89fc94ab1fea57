// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_communicator.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {

NcclCommunicator::NcclCommunicator(NcclMembership membership)
    : control_(std::move(membership.control)),
      plane_(control_->control_plane()),
      group_(std::move(membership.group)),
      memory_(membership.memory),
      shards_(membership.shards),
      fastest_(membership.fastest),
      piece_(membership.piece),
      on_stall_(std::move(membership.on_stall)),
      stall_after_(membership.stall_after),
      give_back_(std::move(membership.give_back)) {
  LS_CHECK(plane_ != nullptr);
  LS_CHECK(group_ != nullptr || control_->world_size() == 1);
  LS_CHECK(piece_ > 0 && piece_ % 16 == 0) << piece_;
}

NcclCommunicator::~NcclCommunicator() {
  if (in_flight_) Revoke().IgnoreError();  // parts that nobody has waited for
  if (group_ != nullptr && give_back_) give_back_(generation(), std::move(group_));
}

absl::Status NcclCommunicator::Conclude(const Operation& operation, absl::Status status) {
  // Nothing of this generation runs on the GPU any more when the error is known, unless the error
  // is that it does not end: then there is no other generation either.
  if (!status.ok() && in_flight_) {
    if (const absl::Status lost = Revoke(); !lost.ok()) {
      status = absl::Status(
          lost.code(),
          absl::StrCat(lost.message(), ", after this: ", std::string(status.message())));
    }
  }
  return plane_->EndCall(operation, std::move(status));
}

absl::Status NcclCommunicator::Revoke() {
  if (!group_->Revoke()) group_.reset();
  in_flight_ = false;
  return memory_->queue()->Mark();
}

absl::Status NcclCommunicator::Announce(const Operation& operation, absl::Time deadline) {
  return plane_->Announce(operation, nullptr, 0, nullptr, deadline);
}

NcclWait NcclCommunicator::WaitOf(absl::Time deadline) const {
  NcclWait wait;
  wait.deadline = deadline;
  wait.alive = [this] { return plane_->CheckAlive(); };
  wait.on_stall = on_stall_;
  wait.stall_after = stall_after_;
  return wait;
}

absl::Status NcclCommunicator::Queue(const std::function<NcclResult()>& calls,
                                     const Operation& operation, absl::Time deadline) {
  if (group_ == nullptr) return absl::OkStatus();
  in_flight_ = true;
  return group_->Group(calls, ToString(operation), WaitOf(deadline));
}

absl::Status NcclCommunicator::Finish(const Operation& operation, absl::Time deadline) {
  if (group_ == nullptr) return memory_->Wait();
  LS_RETURN_IF_ERROR(group_->Finish(ToString(operation), WaitOf(deadline)));
  in_flight_ = false;
  return absl::OkStatus();
}

}  // namespace lockstep
