// SPDX-License-Identifier: Apache-2.0
// TreeReduce between hosts. A small vector takes one exchange: every rank gets the partial nodes of
// every other host and adds all itself. A large one goes by slices and their owners
// (hosts_reduction.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/hosts/hosts_communicator.h"

namespace lockstep {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Bytes that a host's partials of a small vector may have.
constexpr int64_t kSmallTree = 32 << 10;

}  // namespace

absl::Status HostsCommunicator::CheckArgs(const TreeReduceArgs& args) const {
  const std::vector<ShardRange>& nodes = group_.deal.nodes[static_cast<size_t>(rank())];
  bool same = nodes.size() == args.nodes.size();
  for (size_t i = 0; same && i < nodes.size(); ++i) same = args.nodes[i].node == nodes[i];
  if (!same) {
    return absl::InternalError(
        absl::StrCat("rank ", rank(), " contributes other nodes than its shards make"));
  }
  LS_RETURN_IF_ERROR(CheckResult(args));
  const auto bytes = static_cast<size_t>(args.count * kFloat);
  bool inside = args.count == 0 || group_.transport->Holds(args.result, bytes);
  for (const NodeBuffer& node : args.nodes) {
    inside &= args.count == 0 || group_.transport->Holds(node.data, bytes);
  }
  if (inside) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("rank ", rank(), ": its nodes or its result do not lie in the arena"));
}

const float* HostsCommunicator::LocalNode(int rank, int node) const {
  const auto index = static_cast<size_t>(group_.hosts.index_of(rank));
  return reinterpret_cast<const float*>(
      group_.areas[index] + places_of_[index * places_ + 1 + static_cast<size_t>(node)]);
}

const float* HostsCommunicator::LocalResult(int index) const {
  const auto i = static_cast<size_t>(index);
  return reinterpret_cast<const float*>(group_.areas[i] + places_of_[i * places_]);
}

Operation HostsCommunicator::TreeOperation(OpKind kind, const TreeReduceArgs& args) {
  Operation operation = NewOperation(kind, args.count, DType::kFloat32);
  operation.step = args.step;
  operation.bucket = args.bucket;
  operation.layout = LayoutOf(args.wanted);
  if (args.rounded > 0) operation.dtype = DType::kBFloat16;
  return operation;
}

bool HostsCommunicator::IsSmallTree(const TreeReduceArgs& args) const {
  return group_.deal.most_partials() * args.count * kFloat <= kSmallTree;
}

absl::Status HostsCommunicator::AnnouncePlaces(const TreeReduceArgs& args,
                                               const Operation& operation, absl::Time deadline,
                                               HostsCall* ends) {
  my_places_.assign(places_, 0);
  my_places_[0] = reinterpret_cast<const char*>(args.result) - group_.area;
  for (size_t i = 0; i < args.nodes.size(); ++i) {
    my_places_[1 + i] = reinterpret_cast<const char*>(args.nodes[i].data) - group_.area;
  }
  places_of_.resize(places_ * static_cast<size_t>(local_size()));
  return AnnounceHere(operation, my_places_.data(), places_ * sizeof(int64_t), places_of_.data(),
                      deadline, ends);
}

absl::StatusOr<absl::Span<const Slice>> HostsCommunicator::TreeReduce(const TreeReduceArgs& args,
                                                                      absl::Time deadline) {
  const Operation operation = TreeOperation(OpKind::kTreeReduce, args);
  LS_RETURN_IF_ERROR(Run(operation, args.count * kFloat, [&]() -> absl::Status {
    LS_RETURN_IF_ERROR(CheckArgs(args));
    if (begun_.reduction != nullptr) return EndBegun(args, operation, deadline);
    LS_RETURN_IF_ERROR(AnnouncePlaces(args, operation, deadline));
    slices_.clear();
    return IsSmallTree(args) ? ReduceSmall(args, operation, deadline)
                             : ReduceLarge(args, operation, deadline);
  }));
  return absl::MakeConstSpan(slices_);
}

absl::Status HostsCommunicator::ReduceSmall(const TreeReduceArgs& args, const Operation& operation,
                                            absl::Time deadline) {
  const int partials = sums_->own_partials();
  const ElementRange all{0, args.count};
  const auto node = [this](int rank, int i) { return LocalNode(rank, i); };
  small_.resize(static_cast<size_t>((partials + 1) * args.count + 1));
  for (int i = 0; i < partials; ++i) {
    float* const place = small_.data() + i * args.count;
    const float* const sum = sums_->OwnPartial(i, all, args.rounded, node, place);
    if (sum != place && args.count > 0) std::memcpy(place, sum, all.size() * kFloat);
  }
  HostsCall call(&context_, operation, small_.data(),
                 static_cast<size_t>(partials * args.count * kFloat));
  LS_RETURN_IF_ERROR(Exchange(&call, deadline));
  for (int h = 0; h < group_.hosts.hosts(); ++h) {
    if (h == context_.my_host()) continue;
    const auto due = static_cast<size_t>(sums_->partials(h) * args.count * kFloat);
    if (call.heard(h).size() == due) continue;
    return absl::InternalError(absl::StrCat(ToString(operation), ": a host's part has ",
                                            call.heard(h).size(), " bytes, not ", due));
  }
  if (args.count == 0) return absl::OkStatus();
  const auto partial = [&](int h, int i) {
    return reinterpret_cast<const float*>(call.heard(h).data()) + i * args.count;
  };
  // Peers of this host read its nodes, which the result may lie in.
  const bool shared = local_size() > 1;
  float* const sum = shared ? small_.data() + partials * args.count : args.result;
  sums_->Sum(all, args.rounded, node, partial, sum);
  if (shared) {
    LS_RETURN_IF_ERROR(Meet(deadline));
    std::memcpy(args.result, sum, static_cast<size_t>(args.count * kFloat));
  }
  AddSlice(all, args.result);
  newest_ = ReducedStep{args.step, slices_, args.wanted.empty()};
  newest_tick_ = 0;
  newest_is_own_ = true;
  return absl::OkStatus();
}

absl::Status HostsCommunicator::ReduceLarge(const TreeReduceArgs& args, const Operation& operation,
                                            absl::Time deadline) {
  HostsReduction reduction(&context_, operation,
                           {&*sums_, [this](int rank, int i) { return LocalNode(rank, i); },
                            args.result, args.count, args.rounded, &memory_, args.wanted});
  newest_.reset();  // its slices are overwritten
  LS_RETURN_IF_ERROR(Exchange(&reduction, deadline));
  return TakeResult(args, reduction, deadline);
}

absl::Status HostsCommunicator::TakeResult(const TreeReduceArgs& args,
                                           const HostsReduction& reduction, absl::Time deadline) {
  ListSlices(reduction);
  newest_is_own_ = !args.wanted.empty();
  newest_tick_ = newest_is_own_ ? 0 : group_.local->next_tick();
  if (!newest_is_own_) newest_ = ReducedStep{args.step, slices_, true};
  LS_RETURN_IF_ERROR(Meet(deadline));
  if (!newest_is_own_) return absl::OkStatus();
  TakeWanted(args);
  newest_ = ReducedStep{args.step, slices_, false};
  return Meet(deadline);  // nobody changes its result while others take from it
}

void HostsCommunicator::TakeWanted(const TreeReduceArgs& args) {
  const std::vector<Slice> found = std::move(slices_);
  slices_.clear();
  for (const ElementRange& wanted : args.wanted[static_cast<size_t>(rank())]) {
    for (const Slice& slice : found) {
      const ElementRange range{std::max(wanted.begin, slice.begin),
                               std::min(wanted.end, slice.end)};
      if (range.size() <= 0) continue;
      const float* const from = slice.data + (range.begin - slice.begin);
      float* const to = args.result + range.begin;
      if (from != to) std::memcpy(to, from, static_cast<size_t>(range.size() * kFloat));
    }
    AddSlice(wanted, args.result + wanted.begin);
  }
}

void HostsCommunicator::AddSlice(ElementRange range, const float* data) {
  if (range.size() == 0) return;
  if (!slices_.empty() && slices_.back().end == range.begin &&
      slices_.back().data + (range.begin - slices_.back().begin) == data) {
    slices_.back().end = range.end;
    return;
  }
  slices_.push_back({range.begin, range.end, data});
}

void HostsCommunicator::ListSlices(const HostsReduction& reduction) {
  for (size_t part = 0; part < reduction.parts().size(); ++part) {
    for (int r = 0; r < world_size(); ++r) {
      for (int g = 0; g < group_.hosts.most(); ++g) {
        const ElementRange range = reduction.grid(r).range(part, g);
        const int index = IsLocal(r) ? group_.hosts.index_of(r) : g % local_size();
        AddSlice(range, LocalResult(index) + range.begin);
      }
    }
  }
}

}  // namespace lockstep
