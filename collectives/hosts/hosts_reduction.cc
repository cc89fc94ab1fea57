// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_reduction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"

namespace lockstep {
namespace {

constexpr int64_t kLine = 16;              // floats; what slices are multiples of
constexpr int64_t kMostChunk = 64 << 10;   // floats
constexpr int64_t kLeastChunk = 4 << 10;   // floats
constexpr int64_t kChunkBudget = 8 << 20;  // floats of one chunk for each rank of the world

}  // namespace

// ---- HostsSums ----

absl::StatusOr<HostsSums> HostsSums::Create(const TreeDeal& deal, const HostGroups& hosts,
                                            int rank) {
  HostsSums sums;
  const int mine = hosts.host_of(rank);
  std::vector<std::pair<ShardRange, Source>> all;
  for (int h = 0; h < hosts.hosts(); ++h) {
    const std::vector<TreeDeal::Partial>& partials = deal.partials[static_cast<size_t>(h)];
    sums.partials_.push_back(static_cast<int>(partials.size()));
    for (size_t i = 0; h != mine && i < partials.size(); ++i) {
      all.push_back({partials[i].node, {false, h, static_cast<int>(i)}});
    }
  }
  for (const TreeDeal::Partial& partial : deal.partials[static_cast<size_t>(mine)]) {
    Own own;
    own.inputs = partial.inputs;
    for (size_t i = 0; i < partial.inputs.size(); ++i) {
      all.push_back(
          {partial.input_nodes[i], {true, partial.inputs[i].rank, partial.inputs[i].node}});
    }
    LS_ASSIGN_OR_RETURN(TreeSum sum, TreeSum::CreateFor(partial.node, partial.input_nodes));
    own.sum = std::move(sum);
    sums.own_.push_back(std::move(own));
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  std::vector<ShardRange> nodes;
  for (const auto& [node, source] : all) {
    nodes.push_back(node);
    sums.sources_.push_back(source);
  }
  LS_ASSIGN_OR_RETURN(TreeSum sum, TreeSum::Create(deal.shards, nodes));
  sums.sum_ = std::move(sum);
  return sums;
}

const float* HostsSums::OwnPartial(int i, ElementRange range, const NodeOf& node, float* scratch) {
  Own& own = own_[static_cast<size_t>(i)];
  inputs_.clear();
  for (const TreeDeal::Input& input : own.inputs) {
    inputs_.push_back(node(input.rank, input.node) + range.begin);
  }
  if (inputs_.size() == 1) return inputs_[0];
  own.sum->Run(inputs_, scratch, range.size());
  return scratch;
}

void HostsSums::Sum(ElementRange range, const NodeOf& node,
                    const std::function<const float*(int host, int i)>& partial, float* out) {
  inputs_.clear();
  for (const Source& source : sources_) {
    inputs_.push_back(source.own ? node(source.first, source.second) + range.begin
                                 : partial(source.first, source.second));
  }
  sum_->Run(inputs_, out, range.size());
}

// ---- HostsReduction ----

int64_t HostsReduction::ChunkOf(int64_t count, int world, int most_pieces) {
  // A piece is at least four chunks, so that its sums begin while the rest is on its way.
  const int64_t piece = count / world / most_pieces;
  const int64_t most = std::clamp(kChunkBudget / world, kLeastChunk, kMostChunk);
  return std::clamp(piece / 4 / kLine * kLine, kLeastChunk, most);
}

HostsReduction::HostsReduction(HostsContext* context, const Operation& operation, Parts parts)
    : HostsCall(context, operation), parts_(std::move(parts)) {
  const int world = static_cast<int>(hosts().host.size());
  chunk_ = ChunkOf(parts_.count, world, hosts().most());
  for (int r = 0; r < world; ++r) {
    grids_.emplace_back(SliceOf(parts_.count, world, r), hosts().most(), chunk_);
  }
  peers_.resize(static_cast<size_t>(world));
  for (const int rank : context->mesh->ranks()) {
    Peer& each = peer(rank);
    const int host = hosts().host_of(rank);
    const auto mine = [&](int of) {
      return grid(of).NextOf(0, hosts().size(context->my_host()), context->my_index());
    };
    each.send = each.get = mine(rank);
    each.give = each.take = grid(self()).NextOf(0, hosts().size(host), hosts().index_of(rank));
    if (each.take < grid(self()).count()) {
      memory(rank).ring.resize(static_cast<size_t>(kRing * parts_.sums->partials(host) * chunk_));
    }
  }
}

float* HostsReduction::RingPlace(int rank, int64_t chunk_number, int part) {
  const int partials = parts_.sums->partials(hosts().host_of(rank));
  return memory(rank).ring.data() + (chunk_number % kRing * partials + part) * chunk_;
}

OutgoingFrame HostsReduction::Frame(ElementRange range, uint32_t part, const float* data) const {
  OutgoingFrame frame;
  frame.header.kind = FrameKind::kData;
  frame.header.dtype = DType::kFloat32;
  frame.header.operation = operation();
  frame.header.offset = static_cast<uint64_t>(range.begin);
  frame.header.bytes = static_cast<uint32_t>(range.size() * static_cast<int64_t>(sizeof(float)));
  frame.header.part = part;
  frame.payload = data;
  return frame;
}

bool HostsReduction::NextData(int rank, OutgoingFrame* frame) {
  Peer& to = peer(rank);
  const int host = hosts().host_of(rank);
  if (to.give < summed_) {
    const ElementRange range = grid(self()).chunk(to.give);
    *frame = Frame(range, kResult, parts_.result + range.begin);
    to.give = grid(self()).NextOf(to.give + 1, hosts().size(host), hosts().index_of(rank));
    return true;
  }
  if (to.send == grid(rank).count()) return false;
  const ElementRange range = grid(rank).chunk(to.send);
  memory(rank).scratch.resize(static_cast<size_t>(chunk_));
  *frame = Frame(range, static_cast<uint32_t>(to.part),
                 parts_.sums->OwnPartial(to.part, range, parts_.node, memory(rank).scratch.data()));
  if (++to.part == parts_.sums->own_partials()) {
    to.part = 0;
    to.send =
        grid(rank).NextOf(to.send + 1, hosts().size(context().my_host()), context().my_index());
  }
  return true;
}

absl::StatusOr<char*> HostsReduction::PlaceData(int rank, const FrameHeader& header) {
  Peer& from = peer(rank);
  const bool result = header.part == kResult;
  const ChunkGrid& of = grid(result ? rank : self());
  const int64_t due = result ? from.get : from.take;
  if (due >= of.count()) return Unexpected(rank, header);
  const ElementRange range = of.chunk(due);
  if (header.offset != static_cast<uint64_t>(range.begin) ||
      header.bytes != static_cast<size_t>(range.size()) * sizeof(float) ||
      header.dtype != DType::kFloat32 ||
      (!result && header.part != static_cast<uint32_t>(from.take_part))) {
    return Unexpected(rank, header);
  }
  if (result) return reinterpret_cast<char*>(parts_.result + range.begin);
  if (from.taken - from.added == kRing) return nullptr;
  return reinterpret_cast<char*>(RingPlace(rank, from.taken, from.take_part));
}

absl::Status HostsReduction::ArrivedData(int rank, const FrameHeader& header) {
  Peer& from = peer(rank);
  if (header.part == kResult) {
    from.get =
        grid(rank).NextOf(from.get + 1, hosts().size(context().my_host()), context().my_index());
    return absl::OkStatus();
  }
  const int host = hosts().host_of(rank);
  if (++from.take_part < parts_.sums->partials(host)) return absl::OkStatus();
  from.take_part = 0;
  ++from.taken;
  from.take = grid(self()).NextOf(from.take + 1, hosts().size(host), hosts().index_of(rank));
  AddUp();
  return absl::OkStatus();
}

bool HostsReduction::IsThere(int64_t k) const {
  for (int h = 0; h < hosts().hosts(); ++h) {
    if (h == context().my_host()) continue;
    const Peer& from = peer(hosts().At(h, grid(self()).piece(k)));
    if (from.taken == from.added) return false;
  }
  return true;
}

void HostsReduction::AddUp() {
  const ChunkGrid& own = grid(self());
  for (; summed_ < own.count(); ++summed_) {
    const ElementRange range = own.chunk(summed_);
    if (range.size() == 0) continue;
    if (!IsThere(summed_)) return;
    const auto sender = [&](int h) { return hosts().At(h, own.piece(summed_)); };
    parts_.sums->Sum(
        range, parts_.node,
        [&](int h, int i) { return RingPlace(sender(h), peer(sender(h)).added, i); },
        parts_.result + range.begin);
    for (int h = 0; h < hosts().hosts(); ++h) {
      if (h != context().my_host()) ++peer(sender(h)).added;
    }
  }
}

bool HostsReduction::DataDone() const {
  if (summed_ < grid(self()).count()) return false;
  for (const int rank : context().mesh->ranks()) {
    if (WaitsForData(rank)) return false;
  }
  return true;
}

bool HostsReduction::WaitsForData(int rank) const {
  const Peer& with = peer(rank);
  const int64_t own = grid(self()).count(), theirs = grid(rank).count();
  return with.send < theirs || with.get < theirs || with.give < own || with.take < own;
}

}  // namespace lockstep
