// SPDX-License-Identifier: Apache-2.0
// A communicator that reduces in parts, as those over hosts do, and sees that a rank leaves the
// last result alone until all have committed its step: peers read it in place. Thread-safety: as
// what it wraps.
#ifndef LOCKSTEP_TESTS_UNIT_WORKER_PARTS_COMMUNICATOR_H_
#define LOCKSTEP_TESTS_UNIT_WORKER_PARTS_COMMUNICATOR_H_

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"
#include "gtest/gtest.h"

namespace lockstep::worker {

class PartsCommunicator : public Communicator {
 public:
  explicit PartsCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  bool reduces_parts() const override { return true; }
  // All is reduced in the end.
  absl::Status BeginPart(const TreeReduceArgs&, absl::Time) override { return absl::OkStatus(); }
  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override {
    auto slices = inner_->TreeReduce(args, deadline);
    own_.clear();
    if (!slices.ok()) return slices;
    for (const Slice& slice : *slices) {
      const bool is_own = slice.data >= args.result && slice.data < args.result + args.count;
      if (is_own) own_.push_back({slice.data, {slice.data, slice.data + slice.end - slice.begin}});
    }
    return slices;
  }
  absl::Status WaitCommitted(int64_t step, absl::Time deadline) override {
    const absl::Status all = inner_->WaitCommitted(step, deadline);
    for (const auto& [data, numbers] : own_) {
      EXPECT_EQ(std::memcmp(data, numbers.data(), numbers.size() * sizeof(float)), 0)
          << "rank " << rank() << " writes over the result of step " << step
          << " before all have committed it";
    }
    own_.clear();
    return all;
  }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  int64_t generation() const override { return inner_->generation(); }
  std::vector<int> hosts() const override { return inner_->hosts(); }
  Abilities abilities() const override { return inner_->abilities(); }
  absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                     absl::Time deadline) override {
    return inner_->Share(pieces, deadline);
  }
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override {
    return inner_->AllGather(input, output, count, dtype, deadline);
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override {
    return inner_->AllReduce(data, count, dtype, op, order, deadline);
  }
  absl::Status ReduceScatter(const void* input, void* output, int64_t count, DType dtype,
                             ReduceOp op, absl::Time deadline) override {
    return inner_->ReduceScatter(input, output, count, dtype, op, deadline);
  }
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         absl::Time deadline) override {
    return inner_->Broadcast(data, count, dtype, root, deadline);
  }
  absl::Status Send(const void* data, int64_t count, DType dtype, int to,
                    absl::Time deadline) override {
    return inner_->Send(data, count, dtype, to, deadline);
  }
  absl::Status Recv(void* data, int64_t count, DType dtype, int from,
                    absl::Time deadline) override {
    return inner_->Recv(data, count, dtype, from, deadline);
  }
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override {
    return inner_->Replicate(data, bytes, have, deadline);
  }
  absl::Status Barrier(absl::Time deadline) override { return inner_->Barrier(deadline); }
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override {
    return inner_->ExchangeRanges(data, count, transfers, deadline);
  }
  void PublishCommitted(int64_t step) override { inner_->PublishCommitted(step); }
  std::vector<int64_t> CommittedSteps() const override { return inner_->CommittedSteps(); }
  std::optional<ReducedStep> NewestReduce() const override { return inner_->NewestReduce(); }
  void ReleaseDead() override { inner_->ReleaseDead(); }
  ControlPlane* control_plane() override { return inner_->control_plane(); }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  bool aborted() const override { return inner_->aborted(); }
  std::string DescribeState() const override { return inner_->DescribeState(); }

 private:
  struct Own {
    const float* data;
    std::vector<float> numbers;
  };
  std::unique_ptr<Communicator> inner_;
  std::vector<Own> own_;  // of the last result, what lies in this rank's memory
};

}  // namespace lockstep::worker

#endif  // LOCKSTEP_TESTS_UNIT_WORKER_PARTS_COMMUNICATOR_H_
