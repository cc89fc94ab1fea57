// SPDX-License-Identifier: Apache-2.0
#include "collectives/fake/fake_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives/group_end.h"
#include "common/clock.h"
#include "common/status.h"

namespace lockstep {

FakeGroup::FakeGroup(int world_size)
    : world_size_(world_size),
      present_(world_size, false),
      gave_up_(world_size, false),
      calls_(world_size),
      committed_(world_size, -1) {}

absl::Status FakeGroup::Wait(absl::Time deadline) {
  const absl::Duration left = deadline - Clock::Real()->Now();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("");
  changed_.WaitFor(&mu_, left);
  if (is_aborted_) return absl::AbortedError(reason_);
  return absl::OkStatus();
}

absl::Status FakeGroup::Missing(const Operation& operation, const std::vector<int>& ranks) const {
  std::vector<std::string> details;
  for (const int rank : ranks) {
    details.push_back(absl::StrCat("rank ", rank, " (last completed ",
                                   rank < static_cast<int>(exchanged_.size())
                                       ? ToString(exchanged_[rank].operation)
                                       : "nothing",
                                   ")"));
  }
  return WithEnd(absl::DeadlineExceededError(absl::StrCat(
                     ToString(operation), ": waited in vain for ", absl::StrJoin(details, ", "))),
                 {EndCause::kPeerMissing, ranks.empty() ? -1 : ranks.front()});
}

absl::StatusOr<std::vector<FakeCall>> FakeGroup::Exchange(int rank, const FakeCall& call,
                                                          absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (is_aborted_) return absl::AbortedError(reason_);
  calls_[rank] = call;
  present_[rank] = true;
  gave_up_[rank] = false;
  const int64_t round = round_;
  if (std::count(present_.begin(), present_.end(), true) == world_size_) {
    exchanged_ = calls_;
    present_.assign(world_size_, false);
    gave_up_.assign(world_size_, false);
    ++round_;
    changed_.NotifyAll();
  }
  while (round_ == round) {
    const absl::Status status = Wait(deadline);
    if (round_ != round) break;
    if (status.ok()) continue;
    std::vector<int> missing;
    for (int r = 0; r < world_size_; ++r) {
      if (!present_[r] && !gave_up_[r]) missing.push_back(r);
    }
    present_[rank] = false;  // this rank goes away with its buffers; it did come, though
    gave_up_[rank] = true;
    return absl::IsDeadlineExceeded(status) ? Missing(call.operation, missing) : status;
  }
  return exchanged_;
}

void FakeGroup::Post(int from, int to, FakeMessage message) {
  absl::MutexLock lock(&mu_);
  mail_[{from, to}].push_back(std::move(message));
  changed_.NotifyAll();
}

absl::StatusOr<FakeMessage> FakeGroup::Take(int from, int to, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (is_aborted_) return absl::AbortedError(reason_);
  std::deque<FakeMessage>& box = mail_[{from, to}];
  while (box.empty()) {
    const absl::Status status = Wait(deadline);
    if (!box.empty()) break;
    if (absl::IsDeadlineExceeded(status)) {
      return WithEnd(absl::DeadlineExceededError(absl::StrCat("waited in vain for rank ", from)),
                     {EndCause::kPeerMissing, from});
    }
    LS_RETURN_IF_ERROR(status);
  }
  FakeMessage message = std::move(box.front());
  box.pop_front();
  return message;
}

void FakeGroup::Commit(int rank, int64_t step) {
  absl::MutexLock lock(&mu_);
  committed_[rank] = step;
  changed_.NotifyAll();
}

absl::Status FakeGroup::WaitCommitted(int64_t step, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (is_aborted_) return absl::AbortedError(reason_);
  while (true) {
    std::vector<int> missing;
    for (int r = 0; r < world_size_; ++r) {
      if (committed_[r] < step) missing.push_back(r);
    }
    if (missing.empty()) return absl::OkStatus();
    const absl::Status status = Wait(deadline);
    if (absl::IsDeadlineExceeded(status)) {
      Operation operation;
      operation.kind = OpKind::kWaitCommitted;
      operation.step = step;
      return Missing(operation, missing);
    }
    LS_RETURN_IF_ERROR(status);
  }
}

std::vector<int64_t> FakeGroup::Committed() const {
  absl::MutexLock lock(&mu_);
  return committed_;
}

void FakeGroup::Abort(const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (is_aborted_) return;
  is_aborted_ = true;
  reason_ = reason;
  changed_.NotifyAll();
}

absl::Status FakeGroup::aborted() const {
  absl::MutexLock lock(&mu_);
  return is_aborted_ ? absl::AbortedError(reason_) : absl::OkStatus();
}

}  // namespace lockstep
