// SPDX-License-Identifier: Apache-2.0
// TreeReduce: two ticks. With the first every rank says where its nodes lie; then each adds its
// slice from everyone's memory into its own; with the second it says that the slice is whole.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/shm/shm_communicator.h"

namespace lockstep {
namespace {

// Sorts the nodes of all ranks by their shards (they are in order already unless ranks were dealt
// anew).
void SortByShard(std::vector<ShardRange>* nodes, std::vector<const float*>* inputs) {
  const auto before = [](const ShardRange& a, const ShardRange& b) { return a.begin < b.begin; };
  if (std::is_sorted(nodes->begin(), nodes->end(), before)) return;
  std::vector<std::pair<ShardRange, const float*>> pairs;
  for (size_t i = 0; i < nodes->size(); ++i) pairs.emplace_back((*nodes)[i], (*inputs)[i]);
  std::sort(pairs.begin(), pairs.end(),
            [&](const auto& a, const auto& b) { return before(a.first, b.first); });
  for (size_t i = 0; i < pairs.size(); ++i) std::tie((*nodes)[i], (*inputs)[i]) = pairs[i];
}

}  // namespace

absl::StatusOr<absl::Span<const Slice>> ShmCommunicator::TreeReduce(const TreeReduceArgs& args,
                                                                    absl::Time deadline) {
  Operation operation = NewOperation(OpKind::kTreeReduce, args.count, DType::kFloat32);
  operation.step = args.step;
  operation.bucket = args.bucket;
  if (args.rounded > 0) operation.dtype = DType::kBFloat16;
  LS_RETURN_IF_ERROR(Run(operation, args.count * 4, [&]() -> absl::Status {
    const ElementRange slice = SliceOf(args.count, world_size(), rank());
    CallSlot call = NewCall(operation, nullptr, 0);
    LS_RETURN_IF_ERROR(FillNodes(args, slice, &call));
    LS_RETURN_IF_ERROR(Enter(call, deadline));
    LS_RETURN_IF_ERROR(GatherNodes(args.count, slice));
    LS_RETURN_IF_ERROR(ListSlices(args.count));
    if (slice.size() > 0) {
      tree_sum_->Run(tree_inputs_, args.result + slice.begin, slice.size(),
                     args.rounded - slice.begin);
    }
    if (!newest_.has_value()) newest_.emplace();
    newest_->step = args.step;
    newest_->slices.assign(slices_.begin(), slices_.end());
    newest_for_all_ = args.wanted.empty();
    newest_tick_ = tick_ + 1;
    return Tick(deadline);
  }));
  return absl::MakeConstSpan(slices_);
}

std::optional<ReducedStep> ShmCommunicator::NewestReduce() const {
  std::optional<ReducedStep> newest = newest_;
  if (!newest.has_value()) return newest;
  newest->whole = newest_for_all_;
  for (const ShmWaiter::Peer& peer : waiter_.peers()) {
    newest->whole &= Reached(*peer.header, newest_tick_);
  }
  return newest;
}

absl::Status ShmCommunicator::FillNodes(const TreeReduceArgs& args, ElementRange slice,
                                        CallSlot* call) const {
  if (args.nodes.empty() || args.nodes.size() > kMaxNodes) {
    return absl::InternalError(absl::StrCat("rank ", rank(), " contributes ", args.nodes.size(),
                                            " nodes, not 1 to ", kMaxNodes));
  }
  LS_RETURN_IF_ERROR(CheckResult(args));
  for (const NodeBuffer& node : args.nodes) {
    const uint64_t offset = group_.own->OffsetOf(node.data, args.count * sizeof(float));
    if (offset == CallSlot::kForeign) {
      return absl::InternalError(absl::StrCat("rank ", rank(), ": node [", node.node.begin, ", ",
                                              node.node.end, ") does not lie in the arena"));
    }
    call->nodes[call->node_count++] = {node.node.begin, node.node.end, offset};
  }
  if (slice.size() == 0) return absl::OkStatus();
  call->owned = group_.own->OffsetOf(args.result + slice.begin, slice.size() * sizeof(float));
  if (call->owned == CallSlot::kForeign) {
    return absl::InternalError(
        absl::StrCat("rank ", rank(), ": the owned slice does not lie in the arena"));
  }
  return absl::OkStatus();
}

absl::Status ShmCommunicator::GatherNodes(int64_t count, ElementRange slice) {
  tree_nodes_.swap(last_tree_nodes_);  // both keep their memory
  tree_nodes_.clear();
  tree_inputs_.clear();
  const size_t bytes = count * sizeof(float);
  for (int r = 0; r < world_size(); ++r) {
    const CallSlot& call = CallOf(r);
    const uint32_t nodes = std::min<uint32_t>(call.node_count, kMaxNodes);
    for (uint32_t i = 0; i < nodes; ++i) {
      const NodeEntry& node = call.nodes[i];
      if (node.offset > arena_bytes(r) || bytes > arena_bytes(r) - node.offset) {
        return absl::InternalError(absl::StrCat("rank ", r, " announced a node outside its arena"));
      }
      tree_nodes_.push_back({node.begin, node.end});
      tree_inputs_.push_back(reinterpret_cast<const float*>(base(r) + node.offset) + slice.begin);
    }
  }
  SortByShard(&tree_nodes_, &tree_inputs_);
  if (tree_sum_.has_value() && last_tree_nodes_ == tree_nodes_) return absl::OkStatus();
  absl::StatusOr<TreeSum> sum = TreeSum::Create(shards_, tree_nodes_);
  if (!sum.ok()) {
    return absl::InternalError(absl::StrCat("the ranks' nodes do not make the tree over ", shards_,
                                            " shards: ", sum.status().message()));
  }
  tree_sum_ = *std::move(sum);
  return absl::OkStatus();
}

absl::Status ShmCommunicator::ListSlices(int64_t count) {
  slices_.resize(world_size());
  for (int r = 0; r < world_size(); ++r) {
    const ElementRange range = SliceOf(count, world_size(), r);
    slices_[r] = {range.begin, range.end, nullptr};
    if (range.size() == 0) continue;
    const uint64_t offset = CallOf(r).owned;
    if (offset > arena_bytes(r) || range.size() * sizeof(float) > arena_bytes(r) - offset) {
      return absl::InternalError(absl::StrCat("rank ", r, " announced a slice outside its arena"));
    }
    slices_[r].data = reinterpret_cast<const float*>(base(r) + offset);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
