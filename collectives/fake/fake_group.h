// SPDX-License-Identifier: Apache-2.0
// The meeting place of the ranks of one generation of a FakeNetwork.
// Thread-safety: thread-safe; one thread for each rank.
#ifndef LOCKSTEP_COLLECTIVES_FAKE_FAKE_GROUP_H_
#define LOCKSTEP_COLLECTIVES_FAKE_FAKE_GROUP_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/operation.h"
#include "common/cond_var.h"

namespace lockstep {

// What a rank brings to a call.
struct FakeCall {
  Operation operation;
  const void* buffer = nullptr;
  const float* owned = nullptr;
  std::vector<NodeBuffer> nodes;
};

struct FakeMessage {
  Operation operation;
  std::string data;
};

class FakeGroup {
 public:
  explicit FakeGroup(int world_size);

  // Blocks until every rank has brought its call; all get all, by rank.
  absl::StatusOr<std::vector<FakeCall>> Exchange(int rank, const FakeCall& call,
                                                 absl::Time deadline);
  void Post(int from, int to, FakeMessage message);
  absl::StatusOr<FakeMessage> Take(int from, int to, absl::Time deadline);
  void Commit(int rank, int64_t step);
  absl::Status WaitCommitted(int64_t step, absl::Time deadline);
  std::vector<int64_t> Committed() const;
  void Abort(const std::string& reason);
  absl::Status aborted() const;

 private:
  // Waits for the next change. DeadlineExceeded when there is none by `deadline`.
  absl::Status Wait(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Missing(const Operation& operation, const std::vector<int>& ranks) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int world_size_;
  mutable absl::Mutex mu_;
  CondVar changed_;
  bool is_aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::string reason_ ABSL_GUARDED_BY(mu_);
  int64_t round_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<bool> present_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> gave_up_ ABSL_GUARDED_BY(mu_);  // came, and left when their deadline was over
  std::vector<FakeCall> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<FakeCall> exchanged_ ABSL_GUARDED_BY(mu_);  // of the round before
  std::map<std::pair<int, int>, std::deque<FakeMessage>> mail_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> committed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_FAKE_FAKE_GROUP_H_
