// SPDX-License-Identifier: Apache-2.0
// The communicator of FakeTransport.
// Thread-safety: as Communicator.
#ifndef LOCKSTEP_COLLECTIVES_FAKE_FAKE_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_FAKE_FAKE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/control_plane.h"
#include "collectives/fake/fake_group.h"
#include "collectives/flight_recorder.h"

namespace lockstep {

class FakeCommunicator : public Communicator, public ControlPlane {
 public:
  FakeCommunicator(std::shared_ptr<FakeGroup> group, int64_t generation, int rank, int world_size,
                   int shards, std::vector<int> hosts, FlightRecorder* recorder);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int64_t generation() const override { return generation_; }
  std::vector<int> hosts() const override { return hosts_; }

  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override;
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op, ReduceOrder order,
                         absl::Time deadline) override;
  absl::Status ReduceScatter(const void* input, void* output, int64_t count, DType dtype,
                             ReduceOp op, absl::Time deadline) override;
  absl::Status AllGather(const void* input, void* output, int64_t count, DType dtype,
                         absl::Time deadline) override;
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         absl::Time deadline) override;
  absl::Status Send(const void* data, int64_t count, DType dtype, int to,
                    absl::Time deadline) override;
  absl::Status Recv(void* data, int64_t count, DType dtype, int from, absl::Time deadline) override;
  absl::Status Barrier(absl::Time deadline) override;
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override;
  absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                     absl::Time deadline) override;
  void PublishCommitted(int64_t step) override { group_->Commit(rank_, step); }
  absl::Status WaitCommitted(int64_t step, absl::Time deadline) override;
  std::vector<int64_t> CommittedSteps() const override { return group_->Committed(); }
  std::optional<ReducedStep> NewestReduce() const override { return newest_; }
  ControlPlane* control_plane() override { return this; }
  FlightRecorder* recorder() const override { return recorder_; }
  Operation NewOperation(OpKind kind, int64_t count, DType dtype) const override;
  absl::Status BeginCall(const Operation& operation, int64_t bytes) override;
  absl::Status Announce(const Operation& operation, const void* mine, size_t size, void* all,
                        absl::Time deadline) override;
  absl::Status EndCall(const Operation& operation, absl::Status status) override;
  void RestartNumbering() override { sequence_ = 0; }
  absl::Status CheckAlive() const override { return group_->aborted(); }
  void Abort(const std::string& reason) override { group_->Abort(reason); }
  bool aborted() const override { return !group_->aborted().ok(); }
  std::string DescribeState() const override;

 private:
  // Runs `body` as one recorded call; an error finishes the communicator.
  template <typename Body>
  absl::Status Run(const Operation& operation, Body body);
  // Exchanges the calls and compares them.
  absl::StatusOr<std::vector<FakeCall>> Enter(const FakeCall& call, absl::Time deadline);
  // All have read everyone's buffers.
  absl::Status Leave(const FakeCall& call, absl::Time deadline);

  const std::shared_ptr<FakeGroup> group_;
  const int64_t generation_;
  const int rank_;
  const int world_size_;
  const int shards_;
  const std::vector<int> hosts_;
  FlightRecorder* const recorder_;
  absl::Status finished_;
  int64_t sequence_ = 0;
  std::vector<Slice> slices_;  // the result of the last TreeReduce
  std::optional<ReducedStep> newest_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_FAKE_FAKE_COMMUNICATOR_H_
