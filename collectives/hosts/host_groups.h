// SPDX-License-Identifier: Apache-2.0
// Which ranks of a generation share memory, and who speaks to whom between those that do not; and
// how the shard tree is cut when each host adds what it holds whole. All ranks compute the same.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_HOST_GROUPS_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_HOST_GROUPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/communicator.h"
#include "collectives/shards.h"

namespace lockstep {

// Hosts are numbered by their lowest rank.
struct HostGroups {
  std::vector<std::vector<int>> ranks;  // by host, ascending
  std::vector<int> host;                // by rank
  std::vector<int> index;               // by rank: its place among the ranks of its host

  int hosts() const { return static_cast<int>(ranks.size()); }
  int size(int h) const { return static_cast<int>(ranks[static_cast<size_t>(h)].size()); }
  int host_of(int rank) const { return host[static_cast<size_t>(rank)]; }
  int index_of(int rank) const { return index[static_cast<size_t>(rank)]; }
  // The rank of host `h` at place `i`, counted around.
  int At(int h, int i) const {
    return ranks[static_cast<size_t>(h)][static_cast<size_t>(i % size(h))];
  }
  // The rank of host `h` that tells `rank`, of another host, what its host calls.
  int Teller(int h, int rank) const { return At(h, index_of(rank)); }
  // The rank of host `h` that receives for its host what `rank`, of another one, gives.
  int Receiver(int h, int rank) const { return At(h, index_of(rank)); }
  // The most ranks of a host.
  int most() const;
};

// By GroupMember::node.
HostGroups GroupByHost(absl::Span<const GroupMember> members);

// The additions of a generation's tree reductions.
struct TreeDeal {
  struct Input {
    int rank = 0;
    int node = 0;  // among the whole nodes of that rank
  };
  // A node of the tree that a host holds whole, and what it is the sum of, left to right.
  struct Partial {
    ShardRange node;
    std::vector<Input> inputs;
    std::vector<ShardRange> input_nodes;
  };
  int shards = 0;
  std::vector<std::vector<ShardRange>> nodes;  // by rank
  std::vector<std::vector<Partial>> partials;  // by host

  // The most partials of a host.
  int most_partials() const;
};

// Errors: Internal when the members' shards do not cover the tree once.
absl::StatusOr<TreeDeal> DealTree(absl::Span<const GroupMember> members, const HostGroups& hosts);

// How what a rank owns of a vector is cut between two hosts. It is one slice, or one of each part
// of the vector, one after another. A slice is cut into pieces, one for each rank of the larger
// host (piece g is that of At(host, g)), and these into chunks, which are numbered through so that
// all pieces move on together. Chunks may be empty.
class ChunkGrid {
 public:
  ChunkGrid(std::vector<ElementRange> slices, int pieces, int64_t chunk);

  int64_t count() const { return first_.back(); }
  int piece(int64_t k) const { return static_cast<int>(k % pieces_); }
  ElementRange chunk(int64_t k) const;
  // The elements of a piece of a slice.
  ElementRange range(size_t slice, int piece) const;
  // The first chunk from `k` on that has elements and whose piece is place `index` of a host of
  // `size` ranks; count() when there is none.
  int64_t NextOf(int64_t k, int size, int index) const;

 private:
  // In which slice chunk `k` lies.
  size_t SliceAt(int64_t k) const;

  std::vector<ElementRange> slices_;
  int pieces_;
  int64_t chunk_;
  std::vector<int64_t> first_;  // chunk of each slice, then how many there are
};

// What a block of a reduce_scatter holds for a host: so many elements of the part of each of so
// many of its ranks.
struct ScatterBlock {
  int ranks = 0;
  int64_t elements = 0;
};
// A block of at most `elements`, for as many ranks at a time as can be: all of a host, of which
// none has more than `most`, where each has an element. REQUIRES: both are at least 1.
ScatterBlock FitScatterBlock(int64_t elements, int most);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOST_GROUPS_H_
