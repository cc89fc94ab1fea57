// SPDX-License-Identifier: Apache-2.0
#include "collectives/hosts/hosts_reduction.h"

#include <algorithm>
#include <cstring>
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
constexpr int64_t kHalf = sizeof(uint16_t);

// Rounded floats are their upper halves.
void Pack(const float* from, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    const auto upper = static_cast<uint16_t>(bits >> 16);
    std::memcpy(to + i * kHalf, &upper, sizeof(upper));
  }
}
void Unpack(const char* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint16_t upper;
    std::memcpy(&upper, from + i * kHalf, sizeof(upper));
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

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

const float* HostsSums::OwnPartial(int i, ElementRange range, int64_t rounded, const NodeOf& node,
                                   float* scratch) {
  Own& own = own_[static_cast<size_t>(i)];
  inputs_.clear();
  for (const TreeDeal::Input& input : own.inputs) {
    inputs_.push_back(node(input.rank, input.node) + range.begin);
  }
  if (inputs_.size() == 1) return inputs_[0];
  own.sum->Run(inputs_, scratch, range.size(), rounded - range.begin);
  return scratch;
}

void HostsSums::Sum(ElementRange range, int64_t rounded, const NodeOf& node,
                    const std::function<const float*(int host, int i)>& partial, float* out) {
  inputs_.clear();
  for (const Source& source : sources_) {
    inputs_.push_back(source.own ? node(source.first, source.second) + range.begin
                                 : partial(source.first, source.second));
  }
  sum_->Run(inputs_, out, range.size(), rounded - range.begin);
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
  if (parts_.parts.empty()) parts_.parts = {{0, parts_.count}};
  int64_t largest = 0;
  for (const ElementRange& part : parts_.parts) largest = std::max(largest, part.size());
  chunk_ = ChunkOf(largest, world, hosts().most());
  for (int r = 0; r < world; ++r) {
    std::vector<ElementRange> slices;
    for (const ElementRange& part : parts_.parts) {
      const ElementRange slice = SliceOf(part.size(), world, r);
      slices.push_back({part.begin + slice.begin, part.begin + slice.end});
    }
    grids_.emplace_back(std::move(slices), hosts().most(), chunk_);
  }
  peers_.resize(static_cast<size_t>(world));
  for (const int rank : context->mesh->ranks()) {
    Peer& each = peer(rank);
    const int host = hosts().host_of(rank);
    const auto mine = [&](int of) {
      return grid(of).NextOf(0, hosts().size(context->my_host()), context->my_index());
    };
    each.send = mine(rank);
    each.get = NextSum(rank, 0, self());
    each.give = NextSum(self(), 0, rank);
    each.take = grid(self()).NextOf(0, hosts().size(host), hosts().index_of(rank));
    if (each.take < grid(self()).count()) {
      memory(rank).ring.resize(static_cast<size_t>(kRing * parts_.sums->partials(host) * chunk_));
    }
  }
}

bool HostsReduction::Wanted(int host, ElementRange range) const {
  if (parts_.wanted.empty()) return true;
  const std::vector<int>& ranks = hosts().ranks[static_cast<size_t>(host)];
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const std::vector<ElementRange>& wanted = parts_.wanted[static_cast<size_t>(rank)];
    const auto next =
        std::upper_bound(wanted.begin(), wanted.end(), range.begin,
                         [](int64_t at, const ElementRange& each) { return at < each.end; });
    return next != wanted.end() && next->begin < range.end;
  });
}

int64_t HostsReduction::NextSum(int owner, int64_t k, int rank) const {
  const int host = hosts().host_of(rank);
  const ChunkGrid& of = grid(owner);
  for (;; ++k) {
    k = of.NextOf(k, hosts().size(host), hosts().index_of(rank));
    if (k == of.count() || Wanted(host, of.chunk(k))) return k;
  }
}

float* HostsReduction::RingPlace(int rank, int64_t chunk_number, int part) {
  const int partials = parts_.sums->partials(hosts().host_of(rank));
  return memory(rank).ring.data() + (chunk_number % kRing * partials + part) * chunk_;
}

OutgoingFrame HostsReduction::Frame(int rank, ElementRange range, uint32_t part,
                                    const float* data) {
  const int64_t rounded = RoundedIn(range);
  OutgoingFrame frame;
  frame.header.kind = FrameKind::kData;
  frame.header.dtype = rounded > 0 ? DType::kBFloat16 : DType::kFloat32;
  frame.header.operation = operation();
  frame.header.offset = static_cast<uint64_t>(range.begin);
  frame.header.bytes = static_cast<uint32_t>(WireBytes(range));
  frame.header.part = part;
  frame.payload = data;
  if (rounded > 0) {
    std::vector<char>& packed = memory(rank).sending;
    packed.resize(std::max(packed.size(), WireBytes(range)));
    Pack(data, rounded, packed.data());
    std::memcpy(packed.data() + rounded * kHalf, data + rounded,
                static_cast<size_t>(range.size() - rounded) * sizeof(float));
    frame.payload = packed.data();
  }
  return frame;
}

bool HostsReduction::IsReady(ElementRange range) {
  if (parts_.ready == nullptr || range.end <= ready_) return true;
  ready_ = parts_.ready();
  return range.end <= ready_;
}

bool HostsReduction::NextData(int rank, OutgoingFrame* frame) {
  Peer& to = peer(rank);
  if (parts_.ready != nullptr) AddUp();  // what came early may have waited for this host's part
  if (to.give < summed_) {
    const ElementRange range = grid(self()).chunk(to.give);
    *frame = Frame(rank, range, kResult, parts_.result + range.begin);
    to.give = NextSum(self(), to.give + 1, rank);
    return true;
  }
  if (to.send == grid(rank).count()) return false;
  const ElementRange range = grid(rank).chunk(to.send);
  if (!IsReady(range)) return false;
  memory(rank).scratch.resize(static_cast<size_t>(chunk_));
  *frame = Frame(rank, range, static_cast<uint32_t>(to.part),
                 parts_.sums->OwnPartial(to.part, range, parts_.rounded, parts_.node,
                                         memory(rank).scratch.data()));
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
  const bool packed = RoundedIn(range) > 0;
  if (header.offset != static_cast<uint64_t>(range.begin) || header.bytes != WireBytes(range) ||
      header.dtype != (packed ? DType::kBFloat16 : DType::kFloat32) ||
      (!result && header.part != static_cast<uint32_t>(from.take_part))) {
    return Unexpected(rank, header);
  }
  if (!result && from.taken - from.added == kRing) return nullptr;
  if (!packed) return reinterpret_cast<char*>(PlaceOf(rank, range, result));
  std::vector<char>& coming = memory(rank).coming;
  coming.resize(std::max(coming.size(), WireBytes(range)));
  return coming.data();
}

float* HostsReduction::PlaceOf(int rank, ElementRange range, bool result) {
  if (result) return parts_.result + range.begin;
  return RingPlace(rank, peer(rank).taken, peer(rank).take_part);
}

absl::Status HostsReduction::ArrivedData(int rank, const FrameHeader& header) {
  Peer& from = peer(rank);
  const bool result = header.part == kResult;
  const ElementRange range = result ? grid(rank).chunk(from.get) : grid(self()).chunk(from.take);
  if (const int64_t rounded = RoundedIn(range); rounded > 0) {
    const char* const packed = memory(rank).coming.data();
    float* const place = PlaceOf(rank, range, result);
    Unpack(packed, rounded, place);
    std::memcpy(place + rounded, packed + rounded * kHalf,
                static_cast<size_t>(range.size() - rounded) * sizeof(float));
  }
  if (result) {
    from.get = NextSum(rank, from.get + 1, self());
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
    if (!IsReady(range) || !IsThere(summed_)) return;
    const auto sender = [&](int h) { return hosts().At(h, own.piece(summed_)); };
    parts_.sums->Sum(
        range, parts_.rounded, parts_.node,
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
