// SPDX-License-Identifier: Apache-2.0
// Communicators that end the generation at a given point, as deaths would.
// Thread-safety: as what it wraps.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_MORTAL_COMMUNICATORS_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_MORTAL_COMMUNICATORS_H_

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "gtest/gtest.h"

namespace lockstep::worker {

// Ends the generation in its nth call, as the death of its rank would.
class DyingCommunicator : public Communicator {
 public:
  DyingCommunicator(Communicator* inner, int calls) : inner_(*inner), calls_(calls) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int64_t generation() const override { return inner_.generation(); }
  std::vector<int> hosts() const override { return inner_.hosts(); }
  absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                     absl::Time deadline) override {
    if (Dies()) return Dead();
    return inner_.Share(pieces, deadline);
  }
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override {
    return Dies() ? Dead() : inner_.AllGather(input, output, count, dtype, deadline);
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override {
    return Dies() ? Dead() : inner_.AllReduce(data, count, dtype, op, order, deadline);
  }
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override {
    return Dies() ? Dead() : inner_.Replicate(data, bytes, have, deadline);
  }
  absl::Status Barrier(absl::Time deadline) override {
    return Dies() ? Dead() : inner_.Barrier(deadline);
  }
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override {
    return Dies() ? Dead() : inner_.ExchangeRanges(data, count, transfers, deadline);
  }
  bool died() const { return died_; }

  // Not for what is tested here.
  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs&, absl::Time) override {
    return Dead();
  }
  absl::Status ReduceScatter(const void*, void*, int64_t, DType, ReduceOp, absl::Time) override {
    return Dead();
  }
  absl::Status Broadcast(void*, int64_t, DType, int, absl::Time) override { return Dead(); }
  absl::Status Send(const void*, int64_t, DType, int, absl::Time) override { return Dead(); }
  absl::Status Recv(void*, int64_t, DType, int, absl::Time) override { return Dead(); }
  void PublishCommitted(int64_t) override {}
  absl::Status WaitCommitted(int64_t, absl::Time) override { return Dead(); }
  std::vector<int64_t> CommittedSteps() const override { return {}; }
  std::optional<ReducedStep> NewestReduce() const override { return std::nullopt; }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  bool aborted() const override { return inner_.aborted(); }
  std::string DescribeState() const override { return ""; }

 private:
  static absl::Status Dead() { return absl::AbortedError("dead"); }
  // Once dead it stays so.
  bool Dies() {
    if (died_) return true;
    died_ = calls_-- == 0;
    if (died_) inner_.Abort("a rank died");
    return died_;
  }
  Communicator& inner_;
  int calls_;  // that it still makes; negative: it does not die
  bool died_ = false;
};

// Does its part of what follows a step's first half, and learns that the generation is over: what
// it was to get came in part.
class TornCommunicator : public DyingCommunicator {
 public:
  explicit TornCommunicator(Communicator* inner) : DyingCommunicator(inner, -1), inner_(*inner) {}
  absl::Status Barrier(absl::Time deadline) override {
    EXPECT_TRUE(inner_.Barrier(deadline).ok());
    return absl::AbortedError("torn");
  }
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override {
    EXPECT_TRUE(inner_.ExchangeRanges(data, count, transfers, deadline).ok());
    for (const RangeTransfer& transfer : transfers) {
      if (std::count(transfer.to.begin(), transfer.to.end(), rank()) == 0) continue;
      std::fill(data + transfer.begin, data + transfer.end, -1.0f);
    }
    return absl::AbortedError("torn");
  }

 private:
  Communicator& inner_;
};

// Learns that the generation is over when it has told the others that its moments are right.
class ToldCommunicator : public DyingCommunicator {
 public:
  explicit ToldCommunicator(Communicator* inner) : DyingCommunicator(inner, -1), inner_(*inner) {}
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override {
    EXPECT_TRUE(inner_.AllReduce(data, count, dtype, op, order, deadline).ok());
    return absl::AbortedError("told");
  }

 private:
  Communicator& inner_;
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_MORTAL_COMMUNICATORS_H_
