// SPDX-License-Identifier: Apache-2.0
// The data of a large TreeReduce between hosts. Every slice has an owner, and is cut into pieces by
// which the ranks of each other host share the work: a rank adds what its host holds whole of the
// piece, straight from its peers' memory, and sends that to the owner; the owner adds what has come
// for a chunk to its own host's nodes, in tree order, and sends the chunk to the rank of each host
// that has the piece (and wants it), into whose memory it goes. Chunks move on one after another,
// so sums, sending and receiving overlap. A vector that becomes ready in parts has a slice of each
// part for every owner. Thread-safety: confined to the thread that drives the mesh.
#ifndef LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_REDUCTION_H_
#define LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_REDUCTION_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/hosts/host_groups.h"
#include "collectives/hosts/hosts_call.h"
#include "collectives/tree_sum.h"

namespace lockstep {

// The sums that a rank makes in a generation, and the memory for them; kept from call to call.
class HostsSums {
 public:
  using NodeOf = std::function<const float*(int rank, int node)>;

  // Errors: Internal when the nodes do not make the tree.
  static absl::StatusOr<HostsSums> Create(const TreeDeal& deal, const HostGroups& hosts, int rank);

  int partials(int host) const { return partials_[static_cast<size_t>(host)]; }
  int own_partials() const { return static_cast<int>(own_.size()); }
  // Partial `i` of this host, elements [range): where it lies, or it is added to `scratch`. `node`
  // tells where the nodes of this host's ranks lie; elements up to `rounded` are as
  // TreeReduceArgs::rounded says.
  const float* OwnPartial(int i, ElementRange range, int64_t rounded, const NodeOf& node,
                          float* scratch);
  // The whole sum of elements [range), to `out`. `partial(host, i)` are those of other hosts, from
  // the range's first element on.
  void Sum(ElementRange range, int64_t rounded, const NodeOf& node,
           const std::function<const float*(int host, int i)>& partial, float* out);

 private:
  struct Source {
    bool own = false;
    int first = 0;   // rank or host
    int second = 0;  // node or partial
  };
  struct Own {
    std::vector<TreeDeal::Input> inputs;
    std::optional<TreeSum> sum;
  };
  std::vector<int> partials_;  // by host: how many
  std::vector<Own> own_;
  std::vector<Source> sources_;
  std::optional<TreeSum> sum_;
  std::vector<const float*> inputs_;
};

// One such call.
class HostsReduction : public HostsCall {
 public:
  struct Memory {
    std::vector<float> scratch;  // a chunk
    std::vector<float> ring;     // chunks of each partial that have come
    std::vector<char> sending;   // a chunk as it goes over the wire, where that is not as it lies
    std::vector<char> coming;
  };
  struct Parts {
    HostsSums* sums = nullptr;
    HostsSums::NodeOf node;
    float* result = nullptr;
    int64_t count = 0;
    int64_t rounded = 0;                    // as TreeReduceArgs::rounded
    std::vector<Memory>* memory = nullptr;  // by rank; kept from call to call
    // As TreeReduceArgs::wanted: a sum goes to the hosts that have a rank which wants it.
    absl::Span<const std::vector<ElementRange>> wanted = {};
    // What is cut into slices each for itself; empty: the whole vector.
    std::vector<ElementRange> parts = {};
    // Up to which element the nodes of this host's ranks are there; null: they are.
    std::function<int64_t()> ready = nullptr;
  };

  HostsReduction(HostsContext* context, const Operation& operation, Parts parts);

  // The grid of the slice of `rank`.
  const ChunkGrid& grid(int rank) const { return grids_[static_cast<size_t>(rank)]; }
  const std::vector<ElementRange>& parts() const { return parts_.parts; }
  // Floats of a chunk, for so many elements; the same on all ranks.
  static int64_t ChunkOf(int64_t count, int world, int most_pieces);

 protected:
  bool NextData(int rank, OutgoingFrame* frame) override;
  absl::StatusOr<char*> PlaceData(int rank, const FrameHeader& header) override;
  absl::Status ArrivedData(int rank, const FrameHeader& header) override;
  bool DataDone() const override;
  bool WaitsForData(int rank) const override;

 private:
  static constexpr int kRing = 4;  // chunks of a sender that may wait for those of others
  static constexpr uint32_t kResult = UINT32_MAX;
  // Where the exchange with one rank stands; all are chunk numbers.
  struct Peer {
    int64_t send = 0;  // next partial of its slice to go
    int part = 0;      // of the chunk
    int64_t give = 0;  // next chunk of this rank's slice to go
    int64_t take = 0;  // next partial of this rank's slice to come
    int take_part = 0;
    int64_t taken = 0;  // chunks that came, and that were added
    int64_t added = 0;
    int64_t get = 0;  // next chunk of its slice to come
  };

  // Returns whether this host's nodes have these elements.
  bool IsReady(ElementRange range);
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  // Returns whether a rank of `host` wants any of it.
  bool Wanted(int host, ElementRange range) const;
  // The first chunk from `k` on of the slice of `owner` whose sum goes to `rank`, of another host;
  // the grid's count when there is none.
  int64_t NextSum(int owner, int64_t k, int rank) const;
  Memory& memory(int rank) { return (*parts_.memory)[static_cast<size_t>(rank)]; }
  float* RingPlace(int rank, int64_t chunk_number, int part);
  // Adds the chunks that are complete.
  void AddUp();
  bool IsThere(int64_t k) const;
  // Frames for `rank` with these elements, the first ones in 16 bits if they are rounded.
  OutgoingFrame Frame(int rank, ElementRange range, uint32_t part, const float* data);
  int64_t RoundedIn(ElementRange range) const {
    return std::clamp<int64_t>(parts_.rounded - range.begin, 0, range.size());
  }
  size_t WireBytes(ElementRange range) const {
    return static_cast<size_t>(range.size()) * sizeof(float) -
           static_cast<size_t>(RoundedIn(range)) * sizeof(uint16_t);
  }
  // Where the frame that is due from `rank` belongs.
  float* PlaceOf(int rank, ElementRange range, bool result);

  Parts parts_;
  std::vector<ChunkGrid> grids_;  // by rank
  std::vector<Peer> peers_;       // by rank
  int64_t chunk_ = 0;
  int64_t summed_ = 0;  // chunks of this rank's slice, in order
  int64_t ready_ = 0;   // what Parts::ready said last
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOSTS_HOSTS_REDUCTION_H_
