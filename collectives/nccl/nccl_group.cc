// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_group.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/group_end.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep {
namespace {

// Looks before the first yield, then yields, then sleeps between looks.
constexpr int kSpins = 100;
constexpr absl::Duration kYieldFor = absl::Milliseconds(1);
constexpr absl::Duration kPoll = absl::Microseconds(50);

// Returns whether NCCL may be at work after such an answer: it gives either one when its thread has
// begun.
bool Began(NcclResult started) { return started == kNcclSuccess || started == kNcclInProgress; }

}  // namespace

absl::Status NcclGroup::WaitUntil(const std::function<absl::StatusOr<bool>()>& done,
                                  const std::string& what, const NcclWait& wait) {
  absl::Time begin = absl::InfinitePast();
  bool stalled = false;
  for (int looks = 0;; ++looks) {
    LS_ASSIGN_OR_RETURN(const bool there, done());
    if (there) return absl::OkStatus();
    if (looks < kSpins) continue;
    if (wait.alive) LS_RETURN_IF_ERROR(wait.alive());
    const absl::Time now = Clock::Real()->Now();
    if (begin == absl::InfinitePast()) begin = now;
    if (now >= wait.deadline) {
      return WithEnd(absl::DeadlineExceededError(
                         absl::StrCat(what, " on rank ", rank_, ": NCCL did not finish in time")),
                     {EndCause::kPeerMissing, -1});
    }
    if (!stalled && wait.on_stall && now - begin >= wait.stall_after) {
      stalled = true;
      wait.on_stall();
    }
    if (now - begin < kYieldFor) {
      ::sched_yield();
    } else {
      Clock::Real()->Sleep(kPoll);
    }
  }
}

absl::Status NcclGroup::AsyncError(const std::string& what, bool* busy) const {
  NcclResult state = kNcclSuccess;
  const NcclResult asked = api().async_error(comm_, &state);
  if (asked != kNcclSuccess) return NcclStatus(api(), comm_, asked, what);
  *busy = state == kNcclInProgress;
  return *busy ? absl::OkStatus() : NcclStatus(api(), comm_, state, what);
}

absl::Status NcclGroup::Settle(NcclResult started, const std::string& what, const NcclWait& wait) {
  if (!Began(started)) return NcclStatus(api(), comm_, started, what);
  return WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        bool busy = false;
        LS_RETURN_IF_ERROR(AsyncError(what, &busy));
        return !busy;
      },
      what, wait);
}

template <typename T>
absl::StatusOr<T> NcclGroup::Fetch(const std::function<NcclResult(T*)>& call,
                                   const std::string& what, const NcclWait& wait) {
  auto place = std::make_unique<T>();
  const NcclResult started = call(place.get());
  const absl::Status status = Settle(started, what, wait);
  if (status.ok()) return *place;
  if (Began(started)) unfilled_.emplace_back(std::move(place));
  return status;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(const NcclLibrary* library,
                                                             GpuQueue* queue, int world, int rank,
                                                             const NcclUniqueId& id,
                                                             NcclConfig config,
                                                             const NcclWait& wait) {
  std::unique_ptr<NcclGroup> made(new NcclGroup(library, queue, world, rank, wait.end_within));
  config.blocking = 0;
  const NcclResult started = library->api.init_rank_config(&made->comm_, world, id, rank, &config);
  LS_RETURN_IF_ERROR(made->Settle(started, "joining NCCL", wait));
  return made;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Await(NcclGroup* filler,
                                                            std::unique_ptr<NcclGroup> made,
                                                            NcclResult started,
                                                            const std::string& what,
                                                            const NcclWait& wait) {
  if (filler != nullptr) {
    const absl::Status status = filler->Settle(started, what, wait);
    if (!status.ok()) {
      if (Began(started)) filler->unfilled_.emplace_back(std::move(made));
      return status;
    }
  }
  if (made->comm_ == nullptr) {
    return NcclStatus(made->api(), nullptr, Began(started) ? kNcclInternalError : started, what);
  }
  LS_RETURN_IF_ERROR(made->Settle(started, what, wait));
  return made;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Shrink(NcclGroup* old,
                                                             const std::vector<int>& excluded,
                                                             int world, int rank, NcclConfig config,
                                                             const NcclWait& wait) {
  std::unique_ptr<NcclGroup> made(
      new NcclGroup(old->library_, old->queue_, world, rank, wait.end_within));
  config.blocking = 0;
  std::vector<int> ranks = excluded;  // NCCL takes a pointer to what may change
  const NcclResult started =
      old->api().shrink(old->comm_, ranks.data(), static_cast<int>(ranks.size()), &made->comm_,
                        &config, kNcclShrinkAbort);
  // The handle is filled in by the thread of the old communicator, which is busy as long.
  return Await(old, std::move(made), started, "shrinking NCCL's communicator", wait);
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Grow(
    const NcclLibrary* library, GpuQueue* queue, NcclGroup* old, int world, int rank,
    const NcclUniqueId& id, NcclConfig config, const NcclWait& wait) {
  std::unique_ptr<NcclGroup> made(new NcclGroup(library, queue, world, rank, wait.end_within));
  config.blocking = 0;
  // Members give the id at the first rank alone and no rank; joiners have both.
  const bool gives_id = old == nullptr || rank == 0;
  const NcclResult started =
      library->api.grow(old == nullptr ? nullptr : old->comm_, world, gives_id ? &id : nullptr,
                        old == nullptr ? rank : -1, &made->comm_, &config);
  // The handle is there at once, with a thread of its own.
  return Await(nullptr, std::move(made), started, "growing NCCL's communicator", wait);
}

NcclGroup::~NcclGroup() {
  if (comm_ == nullptr) return;
  // Of one that failed or is busy, windows go with it: to say so to the others might wait for them.
  for (const NcclWindow window : windows_) {
    if (whole() && !busy()) api().window_deregister(comm_, window);
  }
  const NcclResult ended = api().abort(comm_);
  if (!Began(ended)) {
    LS_LOG_WARNING << "NCCL's communicator could not be ended: " << api().error_string(ended);
  }
  NcclWait wait;
  wait.deadline = Clock::Real()->Now() + end_within_;
  comm_ = nullptr;
  absl::Status left = queue_->Mark();
  if (left.ok()) {
    left = WaitUntil([&] { return queue_->Reached(); }, "ending NCCL's communicator", wait);
  }
  if (!left.ok()) {
    LS_LOG_ERROR << "the GPU does not come back from NCCL: " << left.message();
    if (absl::IsDeadlineExceeded(left)) queue_->Abandon();
  }
}

absl::StatusOr<NcclUniqueId> NcclGroup::GrowId(const NcclWait& wait) {
  return Fetch<NcclUniqueId>([this](NcclUniqueId* id) { return api().grow_id(comm_, id); },
                             "growing NCCL", wait);
}

absl::Status NcclGroup::Group(const std::function<NcclResult()>& calls, const std::string& what,
                              const NcclWait& wait) {
  LS_RETURN_IF_ERROR(NcclStatus(api(), comm_, api().group_start(), what));
  const NcclResult called = calls();
  const NcclResult ended = api().group_end();
  return Settle(Began(called) ? ended : called, what, wait);
}

absl::Status NcclGroup::Finish(const std::string& what, const NcclWait& wait) {
  LS_RETURN_IF_ERROR(queue_->Mark());
  return WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        LS_ASSIGN_OR_RETURN(const bool reached, queue_->Reached());
        // Also when it is reached: work that failed comes to its end too.
        bool busy = false;
        LS_RETURN_IF_ERROR(AsyncError(what, &busy));
        return reached;
      },
      what, wait);
}

absl::Status NcclGroup::Register(void* memory, size_t bytes, const NcclWait& wait) {
  const auto call = [&](NcclWindow* made) {
    return api().window_register(comm_, memory, bytes, made, kNcclWindowSymmetric);
  };
  LS_ASSIGN_OR_RETURN(const NcclWindow window,
                      Fetch<NcclWindow>(call, "registering memory with NCCL", wait));
  if (window != nullptr) windows_.push_back(window);
  return absl::OkStatus();
}

bool NcclGroup::Revoke() {
  const bool first = !std::exchange(revoked_, true);
  if (api().revoke == nullptr || api().shrink == nullptr || !first) return false;
  NcclWait wait;
  wait.deadline = Clock::Real()->Now() + end_within_;
  absl::Status status = Settle(api().revoke(comm_, 0), "revoking NCCL's communicator", wait);
  if (status.ok()) status = queue_->Mark();
  if (status.ok()) {
    status = WaitUntil([&] { return queue_->Reached(); }, "revoking NCCL's communicator", wait);
  }
  if (!status.ok()) {
    LS_LOG_DEBUG << status.message();
  }
  return status.ok();
}

}  // namespace lockstep
