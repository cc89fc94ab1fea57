// SPDX-License-Identifier: Apache-2.0
#include "worker/state/recovery.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/available_memory.h"
#include "common/hash_bytes.h"
#include "common/status.h"

namespace lockstep::worker {
namespace {

// What each rank says of itself; it travels as bytes.
struct Row {
  int64_t committed;
  int64_t evaluated;
  engine::Tracking tracking;
};

template <typename T>
absl::StatusOr<std::vector<T>> Exchange(Communicator* communicator, const T& mine,
                                        absl::Time deadline) {
  std::vector<T> all(static_cast<size_t>(communicator->world_size()));
  LS_RETURN_IF_ERROR(
      communicator->AllGather(&mine, all.data(), sizeof(T), DType::kUInt8, deadline));
  return all;
}

}  // namespace

OldState::OldState(const Communicator& communicator, const engine::StateAccess& executor,
                   const char* state, size_t bytes)
    : step_(executor.committed_step()), tracking_(executor.tracking()), count_(bytes) {
  if (bytes == 0) return;
  const std::vector<int> hosts = communicator.hosts();
  const auto ranks =
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(communicator.rank())]);
  if (static_cast<int64_t>(bytes) > AvailableMemory() / 2 / ranks) return;
  bytes_.reset(new (std::nothrow) char[bytes]);
  if (bytes_ != nullptr) std::memcpy(bytes_.get(), state, bytes);
}

bool OldState::PutBack(engine::StateAccess* executor) const {
  if (bytes_ == nullptr) return false;
  std::memcpy(executor->BeginLoad(), bytes_.get(), count_);
  executor->EndLoad();
  executor->SetTracking(tracking_);
  return true;
}

absl::Status CopyState(Communicator* communicator, char* state, int64_t bytes,
                       const std::vector<int>& holders, bool have, absl::Time deadline) {
  const int count = static_cast<int>(holders.size());
  const auto slice_hash = [&](int holder) {
    const ElementRange slice = SliceOf(bytes, count, holder);
    return HashBytes(state + slice.begin, static_cast<size_t>(slice.size()));
  };
  uint64_t mine = 0;
  for (int i = 0; i < count; ++i) {
    if (holders[i] == communicator->rank()) mine = slice_hash(i);
  }
  LS_RETURN_IF_ERROR(communicator->Replicate(state, bytes, have, deadline));
  LS_ASSIGN_OR_RETURN(const std::vector<uint64_t> hashes, Exchange(communicator, mine, deadline));
  for (int i = 0; i < count && !have; ++i) {
    if (slice_hash(i) == hashes[holders[i]]) continue;
    return absl::UnavailableError(absl::StrCat("rank ", communicator->rank(),
                                               ": the part of the training state copied from rank ",
                                               holders[i], " is not what that rank has"));
  }
  return absl::OkStatus();
}

absl::Status AgreeOnState(Communicator* communicator, engine::StateAccess* executor, void* state,
                          size_t bytes, int64_t start_step, StateAgreement* agreement,
                          absl::Time deadline) {
  const Row row{executor->committed_step(), agreement->evaluated_step, executor->tracking()};
  LS_ASSIGN_OR_RETURN(const std::vector<Row> rows, Exchange(communicator, row, deadline));
  std::vector<int> holders;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].committed == start_step) holders.push_back(static_cast<int>(rank));
  }
  if (holders.empty()) {
    return absl::InternalError(absl::StrCat("no member of generation ", communicator->generation(),
                                            " has the state after step ", start_step,
                                            ", where it is to go on"));
  }
  agreement->holders = holders;
  const bool have = row.committed == start_step;
  agreement->copied = !have;
  const Row& least = LeastEvaluated(rows, holders);
  if (have) {
    executor->SetTracking(least.tracking);
    agreement->evaluated_step = least.evaluated;
  }
  if (holders.size() == rows.size()) return absl::OkStatus();
  const bool survives = !have && row.committed > 0;
  const OldState old(*communicator, *executor, static_cast<const char*>(state),
                     survives ? bytes : 0);
  if (!have) executor->BeginLoad();
  absl::Status copied = CopyState(communicator, static_cast<char*>(state),
                                  static_cast<int64_t>(bytes), holders, have, deadline);
  if (!have) executor->EndLoad();
  if (!copied.ok() && !have && !old.PutBack(executor)) executor->InitState();
  if (copied.ok()) agreement->evaluated_step = least.evaluated;
  return copied;
}

}  // namespace lockstep::worker
