// SPDX-License-Identifier: Apache-2.0
// The communicator of one generation between ranks that each have a GPU. Every call is announced,
// compared and recorded by a control communicator (shared memory, or hosts/) first; what lies in
// the GPU's memory then moves by NCCL, everything else by the control communicator itself. Sums in
// fixed order are slices sent to their owners, added there in order, and gathered: the bits are
// those of every other transport. Few things that a step never does go through the host: messages,
// and fixed orders of other types than floats.
//
// The sources: nccl_communicator.cc (calls, waits, commit), nccl_tree_reduce.cc,
// nccl_collectives.cc.
// Thread-safety: as Communicator.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/control_plane.h"
#include "collectives/nccl/nccl_group.h"
#include "collectives/nccl/nccl_memory.h"
#include "collectives/tree_sum.h"
#include "common/status.h"

namespace lockstep {

// What a communicator is made from.
struct NcclMembership {
  std::unique_ptr<Communicator> control;
  // Null when there is one rank.
  std::unique_ptr<NcclGroup> group;
  NcclMemory* memory = nullptr;
  int shards = 0;
  // TreeReduce adds as NCCL likes, not in the tree's order.
  bool fastest = false;
  // Floats of one rank's slice that are exchanged and added at a time.
  int64_t piece = 0;
  std::function<void()> on_stall;
  absl::Duration stall_after = absl::InfiniteDuration();
  // Takes the group back, for the next generation to be made from.
  std::function<void(int64_t generation, std::unique_ptr<NcclGroup> group)> give_back;
};

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(NcclMembership membership);
  ~NcclCommunicator() override;

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  int64_t generation() const override { return control_->generation(); }
  std::vector<int> hosts() const override { return control_->hosts(); }
  // Results are gathered in memory of NCCL's own.
  Abilities abilities() const override {
    Abilities abilities = control_->abilities();
    abilities.results_with_owners = false;
    abilities.rounds = false;
    return abilities;
  }

  absl::StatusOr<absl::Span<const Slice>> TreeReduce(const TreeReduceArgs& args,
                                                     absl::Time deadline) override;
  bool reduces_parts() const override { return group_ != nullptr; }
  absl::Status BeginPart(const TreeReduceArgs& args, absl::Time deadline) override;
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
  absl::Status Barrier(absl::Time deadline) override { return control_->Barrier(deadline); }
  absl::Status ExchangeRanges(float* data, int64_t count, absl::Span<const RangeTransfer> transfers,
                              absl::Time deadline) override;
  absl::Status Replicate(void* data, int64_t bytes, bool have, absl::Time deadline) override;
  absl::StatusOr<SharedPieces> Share(absl::Span<const SharedPiece> pieces,
                                     absl::Time deadline) override {
    return control_->Share(pieces, deadline);
  }

  void PublishCommitted(int64_t step) override { control_->PublishCommitted(step); }
  absl::Status WaitCommitted(int64_t step, absl::Time deadline) override {
    return control_->WaitCommitted(step, deadline);
  }
  std::vector<int64_t> CommittedSteps() const override { return control_->CommittedSteps(); }

  std::optional<ReducedStep> NewestReduce() const override { return newest_; }
  void ReleaseDead() override { control_->ReleaseDead(); }

  void Abort(const std::string& reason) override { control_->Abort(reason); }
  bool aborted() const override { return control_->aborted(); }
  std::string DescribeState() const override { return control_->DescribeState(); }

 private:
  // A whole node that somebody holds.
  struct Node {
    ShardRange shards;
    int rank = 0;
    int index = 0;  // among that rank's
  };
  // One summand of a sum in order: where it lies, when it is this rank's, else it is received.
  struct Source {
    int rank = 0;
    const float* data = nullptr;
  };

  // ---- one call (nccl_communicator.cc) ----
  // Runs `body` as one recorded call; an error finishes the communicator.
  template <typename Body>
  absl::Status Run(const Operation& operation, int64_t bytes, Body body) {
    LS_RETURN_IF_ERROR(plane_->BeginCall(operation, bytes));
    return Conclude(operation, body());
  }
  absl::Status Conclude(const Operation& operation, absl::Status status);
  // Ends what is in flight. Errors: Internal where the GPU can do nothing more.
  absl::Status Revoke();
  absl::Status Announce(const Operation& operation, absl::Time deadline);
  NcclWait WaitOf(absl::Time deadline) const;
  // Queues NCCL's calls as one group. No group: there is one rank, and nothing to do.
  absl::Status Queue(const std::function<NcclResult()>& calls, const Operation& operation,
                     absl::Time deadline);
  // Waits until all that was queued is done.
  absl::Status Finish(const Operation& operation, absl::Time deadline);
  bool OnGpu(const void* data) const { return memory_->Holds(data); }
  void* stream() const { return memory_->queue()->stream(); }

  // ---- sums in order (nccl_tree_reduce.cc) ----
  // Reduces elements `range` of the vector, part `part` of it. Queues.
  absl::Status ReduceRange(const TreeReduceArgs& args, ElementRange range,
                           const Operation& operation, absl::Time deadline);
  absl::Status ReduceInOrder(const TreeReduceArgs& args, ElementRange range,
                             const Operation& operation, absl::Time deadline);
  absl::Status ReduceFastest(const TreeReduceArgs& args, ElementRange range,
                             const Operation& operation, absl::Time deadline);
  Operation TreeOperation(const TreeReduceArgs& args, ElementRange range) const;
  absl::Status GatherNodes(const TreeReduceArgs& args, const Operation& operation,
                           absl::Time deadline);
  // Forgets the last result and makes room for all parts of the next: nothing that is queued for
  // one of them has to make way for another.
  absl::Status BeginResult(const TreeReduceArgs& args);
  // out[0..) = this rank's slice of the sum of `sources`, which `program` (as TreeSum's) puts in
  // order; slices[r] is owned by rank r, and every rank's sources are vectors alike. Queues.
  absl::Status SumInOrder(absl::Span<const Source> sources, absl::Span<const ElementRange> slices,
                          absl::Span<const int> program, float* out, const Operation& operation,
                          absl::Time deadline);
  // Sends parts[r] of this rank's sources to rank r, and receives its own part of the others' into
  // their slots.
  NcclResult Exchange(absl::Span<const Source> sources, absl::Span<const ElementRange> parts,
                      absl::Span<float* const> slots) const;
  absl::Status AddInOrder(absl::Span<const int> program, absl::Span<const float* const> inputs,
                          absl::Span<float* const> slots, float* out, int64_t count);
  // This rank's slice of a sum, which lies at `own`, goes to those who want parts of it, and it
  // gets what it wants of the others' slices. Queues.
  absl::Status DeliverSlices(absl::Span<const std::vector<ElementRange>> wanted,
                             absl::Span<const ElementRange> slices, const float* own,
                             const Operation& operation, absl::Time deadline);
  // The next `count` floats of the result.
  float* TakeResult(int64_t count);
  // `gathered` has a place of `longest` floats for each rank's slice, of which its own is there.
  absl::Status GatherSlices(float* gathered, int64_t longest, const Operation& operation,
                            absl::Time deadline);

  // ---- collectives (nccl_collectives.cc) ----
  // The vector `data` of each rank, added in their order; `out` gets this rank's slice.
  absl::Status SumOfRanks(const float* data, absl::Span<const ElementRange> slices, float* out,
                          const Operation& operation, absl::Time deadline);
  // `data` becomes the sum. Queues.
  absl::Status AllReduceFloats(float* data, int64_t count, const Operation& operation,
                               absl::Time deadline);
  // Copies `input` to the host, runs `body` there, and copies its result to `output`.
  absl::Status ThroughHost(const void* input, size_t input_bytes, void* output, size_t output_bytes,
                           const std::function<absl::Status(const char* in, char* out)>& body);
  absl::Status CopyAndWait(void* to, const void* from, size_t bytes);
  // A slice of `data` from each holder to each of the others.
  NcclResult ExchangeState(char* data, int64_t bytes, const std::vector<int>& holders,
                           const std::vector<int>& others) const;

  std::unique_ptr<Communicator> control_;
  ControlPlane* const plane_;
  std::unique_ptr<NcclGroup> group_;
  NcclMemory* const memory_;
  const int shards_;
  const bool fastest_;
  const int64_t piece_;
  const std::function<void()> on_stall_;
  const absl::Duration stall_after_;
  const std::function<void(int64_t, std::unique_ptr<NcclGroup>)> give_back_;

  bool in_flight_ = false;  // something that was queued may not be done

  // TreeReduce: all ranks' nodes in the order of their shards, and the sum made from them.
  std::vector<Node> nodes_;
  std::vector<ShardRange> node_ranges_;
  std::optional<TreeSum> tree_sum_;
  std::vector<Slice> slices_;
  std::optional<ReducedStep> newest_;
  size_t parts_begun_ = 0;   // of the reduction that comes next
  float* result_ = nullptr;  // its sums
  int64_t result_used_ = 0;  // floats of it
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
