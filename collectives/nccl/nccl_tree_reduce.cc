// SPDX-License-Identifier: Apache-2.0
// TreeReduce: every rank announces its nodes; then, piece by piece, sends its part of everybody's
// slice to the owner and adds the parts of its own slice in the tree's order; at last the slices
// are gathered. All of it is queued on the GPU; the host waits once at the end. Parts of the vector
// that are begun early are cut into slices each for itself: who owns an element changes no bit.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/nccl_communicator.h"
#include "common/check.h"
#include "common/round_up.h"
#include "common/status.h"

namespace lockstep {
namespace {

// What a rank announces besides the call.
struct TreeCall {
  static constexpr int kMaxNodes = 64;  // whole nodes of one rank: at most 2 log2(shards)
  int32_t node_count = 0;
  std::array<ShardRange, kMaxNodes> nodes = {};
};
static_assert(sizeof(TreeCall) <= ControlPlane::kAnnouncedBytes);

// Floats that the lengths of slices may differ by: SliceOf's grain.
constexpr int64_t kLine = 16;

// The part [begin, begin + piece) of a slice that begins there, in elements of the vector.
ElementRange PieceOf(ElementRange slice, int64_t begin, int64_t piece) {
  return {std::min(slice.begin + begin, slice.end),
          std::min(slice.begin + begin + piece, slice.end)};
}

int64_t Longest(absl::Span<const ElementRange> slices) {
  int64_t longest = 0;
  for (const ElementRange& slice : slices) longest = std::max(longest, slice.size());
  return longest;
}

bool IsGood(NcclResult result) { return result == kNcclSuccess || result == kNcclInProgress; }

}  // namespace

Operation NcclCommunicator::TreeOperation(const TreeReduceArgs& args, ElementRange range) const {
  Operation operation = plane_->NewOperation(OpKind::kTreeReduce, range.size(), DType::kFloat32);
  operation.step = args.step;
  operation.bucket = args.bucket + static_cast<int>(parts_begun_);
  operation.order = fastest_ ? ReduceOrder::kFastest : ReduceOrder::kFixed;
  operation.layout = LayoutOf(args.wanted);
  return operation;
}

absl::Status NcclCommunicator::BeginPart(const TreeReduceArgs& args, absl::Time deadline) {
  LS_CHECK(group_ != nullptr);
  LS_CHECK_LT(parts_begun_, args.parts.size());
  const ElementRange range = args.parts[parts_begun_];
  const Operation operation = TreeOperation(args, range);
  LS_RETURN_IF_ERROR(Run(operation, range.size() * 4,
                         [&] { return ReduceRange(args, range, operation, deadline); }));
  ++parts_begun_;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const Slice>> NcclCommunicator::TreeReduce(const TreeReduceArgs& args,
                                                                     absl::Time deadline) {
  const int64_t begun = parts_begun_ == 0 ? 0 : args.parts[parts_begun_ - 1].end;
  const ElementRange rest = {begun, args.count};
  const Operation operation = TreeOperation(args, rest);
  LS_RETURN_IF_ERROR(Run(operation, rest.size() * 4, [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(ReduceRange(args, rest, operation, deadline));
    LS_RETURN_IF_ERROR(Finish(operation, deadline));
    newest_ = ReducedStep{args.step, slices_, args.wanted.empty()};
    parts_begun_ = 0;
    return absl::OkStatus();
  }));
  return absl::MakeConstSpan(slices_);
}

absl::Status NcclCommunicator::ReduceRange(const TreeReduceArgs& args, ElementRange range,
                                           const Operation& operation, absl::Time deadline) {
  LS_CHECK_EQ(args.rounded, 0);
  LS_RETURN_IF_ERROR(GatherNodes(args, operation, deadline));
  if (parts_begun_ == 0) LS_RETURN_IF_ERROR(BeginResult(args));
  return fastest_ ? ReduceFastest(args, range, operation, deadline)
                  : ReduceInOrder(args, range, operation, deadline);
}

absl::Status NcclCommunicator::BeginResult(const TreeReduceArgs& args) {
  slices_.clear();
  result_used_ = 0;
  if (nodes_.size() == 1) return absl::OkStatus();
  const int64_t world = world_size();
  const auto parts = static_cast<int64_t>(args.parts.size());
  int64_t pieces = (world + 1) * (parts + 1);
  if (!args.wanted.empty()) {
    pieces += static_cast<int64_t>(args.wanted[static_cast<size_t>(rank())].size());
  }
  LS_ASSIGN_OR_RETURN(result_, memory_->Result(args.count + kLine * pieces));
  if (fastest_) return absl::OkStatus();
  return memory_->Staging(StagingFloats(nodes_.size(), world_size(), args.count, piece_)).status();
}

absl::Status NcclCommunicator::GatherNodes(const TreeReduceArgs& args, const Operation& operation,
                                           absl::Time deadline) {
  newest_.reset();  // what was reduced before is overwritten from here on
  TreeCall mine;
  if (args.nodes.empty() || args.nodes.size() > mine.nodes.size()) {
    return absl::InternalError(absl::StrCat("rank ", rank(), " contributes ", args.nodes.size(),
                                            " nodes, not 1 to ", mine.nodes.size()));
  }
  for (const NodeBuffer& node : args.nodes) {
    if (!OnGpu(node.data)) {
      return absl::InternalError(absl::StrCat("rank ", rank(), ": node [", node.node.begin, ", ",
                                              node.node.end, ") does not lie in the GPU's memory"));
    }
    mine.nodes[static_cast<size_t>(mine.node_count++)] = node.node;
  }
  std::vector<TreeCall> calls(static_cast<size_t>(world_size()));
  LS_RETURN_IF_ERROR(plane_->Announce(operation, &mine, sizeof(mine), calls.data(), deadline));
  std::vector<Node> nodes;
  for (int r = 0; r < world_size(); ++r) {
    const TreeCall& call = calls[static_cast<size_t>(r)];
    for (int i = 0; i < std::clamp(call.node_count, 0, TreeCall::kMaxNodes); ++i) {
      nodes.push_back({call.nodes[static_cast<size_t>(i)], r, i});
    }
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.shards.begin < b.shards.begin; });
  std::vector<ShardRange> ranges;
  for (const Node& node : nodes) ranges.push_back(node.shards);
  nodes_ = std::move(nodes);
  if (tree_sum_.has_value() && ranges == node_ranges_) return absl::OkStatus();
  absl::StatusOr<TreeSum> sum = TreeSum::Create(shards_, ranges);
  if (!sum.ok()) {
    return absl::InternalError(absl::StrCat("the ranks' nodes do not make the tree over ", shards_,
                                            " shards: ", sum.status().message()));
  }
  tree_sum_ = *std::move(sum);
  node_ranges_ = std::move(ranges);
  return absl::OkStatus();
}

absl::Status NcclCommunicator::ReduceInOrder(const TreeReduceArgs& args, ElementRange range,
                                             const Operation& operation, absl::Time deadline) {
  if (nodes_.size() == 1) {  // one rank with all the shards: its sum is the result
    slices_.push_back({range.begin, range.end, args.nodes[0].data + range.begin});
    return absl::OkStatus();
  }
  std::vector<Source> sources;
  for (const Node& node : nodes_) {
    const bool here = node.rank == rank();
    sources.push_back(
        {node.rank, here ? args.nodes[static_cast<size_t>(node.index)].data : nullptr});
  }
  std::vector<ElementRange> slices;
  for (int r = 0; r < world_size(); ++r) {
    const ElementRange slice = SliceOf(range.size(), world_size(), r);
    slices.push_back({range.begin + slice.begin, range.begin + slice.end});
  }
  if (!args.wanted.empty()) {
    float* const own = TakeResult(slices[static_cast<size_t>(rank())].size());
    LS_RETURN_IF_ERROR(SumInOrder(sources, slices, tree_sum_->program(), own, operation, deadline));
    return DeliverSlices(args.wanted, slices, own, operation, deadline);
  }
  const int64_t longest = Longest(slices);
  float* const gathered = TakeResult(longest * world_size());
  LS_RETURN_IF_ERROR(SumInOrder(sources, slices, tree_sum_->program(), gathered + rank() * longest,
                                operation, deadline));
  LS_RETURN_IF_ERROR(GatherSlices(gathered, longest, operation, deadline));
  for (int r = 0; r < world_size(); ++r) {
    const ElementRange& slice = slices[static_cast<size_t>(r)];
    slices_.push_back({slice.begin, slice.end, gathered + r * longest});
  }
  return absl::OkStatus();
}

float* NcclCommunicator::TakeResult(int64_t count) {
  float* const taken = result_ + result_used_;
  result_used_ += RoundUp(count, kLine);
  return taken;
}

// Between two ranks, sends and receives meet in the order of the elements.
absl::Status NcclCommunicator::DeliverSlices(absl::Span<const std::vector<ElementRange>> wanted,
                                             absl::Span<const ElementRange> slices,
                                             const float* own, const Operation& operation,
                                             absl::Time deadline) {
  struct Move {
    int peer = 0;
    const float* from = nullptr;  // null: it is received
    float* to = nullptr;
    int64_t count = 0;
  };
  std::vector<Move> moves;
  for (int owner = 0; owner < world_size(); ++owner) {
    const ElementRange slice = slices[static_cast<size_t>(owner)];
    for (int to = 0; to < world_size(); ++to) {
      if (owner != rank() && to != rank()) continue;
      for (const ElementRange& want : wanted[static_cast<size_t>(to)]) {
        const int64_t begin = std::max(want.begin, slice.begin);
        const int64_t end = std::min(want.end, slice.end);
        if (begin >= end) continue;
        const float* data = own + (begin - slice.begin);
        if (to != rank()) {
          moves.push_back({to, data, nullptr, end - begin});
          continue;
        }
        if (owner != rank()) {
          float* const place = TakeResult(end - begin);
          moves.push_back({owner, nullptr, place, end - begin});
          data = place;
        }
        slices_.push_back({begin, end, data});
      }
    }
  }
  const auto calls = [&] {
    NcclResult result = kNcclSuccess;
    for (size_t i = 0; i < moves.size() && IsGood(result); ++i) {
      const Move& move = moves[i];
      const auto count = static_cast<size_t>(move.count);
      result = move.from != nullptr ? group_->api().send(move.from, count, kNcclFloat32, move.peer,
                                                         group_->comm(), stream())
                                    : group_->api().recv(move.to, count, kNcclFloat32, move.peer,
                                                         group_->comm(), stream());
    }
    return result;
  };
  return moves.empty() ? absl::OkStatus() : Queue(calls, operation, deadline);
}

absl::Status NcclCommunicator::GatherSlices(float* gathered, int64_t longest,
                                            const Operation& operation, absl::Time deadline) {
  const auto calls = [&] {
    return group_->api().all_gather(gathered + rank() * longest, gathered,
                                    static_cast<size_t>(longest), kNcclFloat32, group_->comm(),
                                    stream());
  };
  return longest == 0 ? absl::OkStatus() : Queue(calls, operation, deadline);
}

absl::Status NcclCommunicator::SumInOrder(absl::Span<const Source> sources,
                                          absl::Span<const ElementRange> slices,
                                          absl::Span<const int> program, float* out,
                                          const Operation& operation, absl::Time deadline) {
  const int64_t longest = Longest(slices);
  const int64_t stride = std::min(piece_, longest);
  LS_ASSIGN_OR_RETURN(float* const staging,
                      memory_->Staging(static_cast<int64_t>(sources.size()) * stride));
  std::vector<float*> slots;
  for (size_t i = 0; i < sources.size(); ++i) {
    slots.push_back(staging + static_cast<int64_t>(i) * stride);
  }
  const ElementRange mine = slices[static_cast<size_t>(rank())];
  for (int64_t begin = 0; begin < longest; begin += piece_) {
    std::vector<ElementRange> parts;
    for (const ElementRange& slice : slices) parts.push_back(PieceOf(slice, begin, piece_));
    LS_RETURN_IF_ERROR(Queue([&] { return Exchange(sources, parts, slots); }, operation, deadline));
    const ElementRange part = parts[static_cast<size_t>(rank())];
    if (part.size() == 0) continue;
    std::vector<const float*> inputs;
    for (size_t i = 0; i < sources.size(); ++i) {
      inputs.push_back(sources[i].data == nullptr ? slots[i] : sources[i].data + part.begin);
    }
    LS_RETURN_IF_ERROR(
        AddInOrder(program, inputs, slots, out + (part.begin - mine.begin), part.size()));
  }
  return absl::OkStatus();
}

// Between two ranks, sends and receives meet in the order of the sender's sources.
NcclResult NcclCommunicator::Exchange(absl::Span<const Source> sources,
                                      absl::Span<const ElementRange> parts,
                                      absl::Span<float* const> slots) const {
  const NcclApi& api = group_->api();
  const auto floats_of = [&](int r) {
    return static_cast<size_t>(parts[static_cast<size_t>(r)].size());
  };
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    NcclResult result = kNcclSuccess;
    if (source.data == nullptr && floats_of(rank()) > 0) {
      result = api.recv(slots[i], floats_of(rank()), kNcclFloat32, source.rank, group_->comm(),
                        stream());
    }
    for (int r = 0; r < world_size() && IsGood(result); ++r) {
      if (source.data == nullptr || r == rank() || floats_of(r) == 0) continue;
      result = api.send(source.data + parts[static_cast<size_t>(r)].begin, floats_of(r),
                        kNcclFloat32, r, group_->comm(), stream());
    }
    if (!IsGood(result)) return result;
  }
  return kNcclSuccess;
}

absl::Status NcclCommunicator::AddInOrder(absl::Span<const int> program,
                                          absl::Span<const float* const> inputs,
                                          absl::Span<float* const> slots, float* out,
                                          int64_t count) {
  // What stands on the stack: a sum or an input, and the first input in it, whose slot is free for
  // the sum: only this rank's own inputs do not lie in theirs.
  std::vector<std::pair<const float*, size_t>> stack;
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i] != TreeSum::kAdd) {
      const auto input = static_cast<size_t>(program[i]);
      stack.emplace_back(inputs[input], input);
      continue;
    }
    const float* const right = stack.back().first;
    stack.pop_back();
    float* const sum = i + 1 == program.size() ? out : slots[stack.back().second];
    LS_RETURN_IF_ERROR(memory_->queue()->Add(stack.back().first, right, sum, count));
    stack.back().first = sum;
  }
  if (stack.back().first == out) return absl::OkStatus();
  return memory_->queue()->Copy(out, stack.back().first,
                                static_cast<size_t>(count) * sizeof(float));
}

absl::Status NcclCommunicator::ReduceFastest(const TreeReduceArgs& args, ElementRange range,
                                             const Operation& operation, absl::Time deadline) {
  // This rank's nodes become one; then NCCL adds those of all ranks as it likes.
  float* const sum = result_ + range.begin;
  const float* whole = args.nodes[0].data + range.begin;
  for (size_t n = 1; n < args.nodes.size(); ++n) {
    LS_RETURN_IF_ERROR(
        memory_->queue()->Add(whole, args.nodes[n].data + range.begin, sum, range.size()));
    whole = sum;
  }
  const auto calls = [&] {
    return group_->api().all_reduce(whole, sum, static_cast<size_t>(range.size()), kNcclFloat32,
                                    kNcclSum, group_->comm(), stream());
  };
  LS_RETURN_IF_ERROR(Queue(calls, operation, deadline));
  slices_.push_back({range.begin, range.end, group_ == nullptr ? whole : sum});
  return absl::OkStatus();
}

}  // namespace lockstep
