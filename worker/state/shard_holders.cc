// SPDX-License-Identifier: Apache-2.0
#include "worker/state/shard_holders.h"

#include <algorithm>

namespace lockstep::worker {
namespace {

constexpr int kCopies = 2;
// Divisible by every number of workers up to four, by six, eight and twelve.
constexpr int kLeastShards = 48;

bool Holds(const std::vector<int>& holders, int rank) {
  return std::find(holders.begin(), holders.end(), rank) != holders.end();
}

ShardHolders FreshDeal(size_t shards, int world) {
  ShardHolders holders;
  for (size_t shard = 0; shard < shards; ++shard) {
    std::vector<int>& ranks = holders.emplace_back();
    for (int i = 1; i <= kCopies; ++i) {
      ranks.push_back((OwnerOfShard(shard, shards, world) + i) % world);
    }
    std::sort(ranks.begin(), ranks.end());
  }
  return holders;
}

class Deal {
 public:
  Deal(const ShardHolders& before, int world)
      : holders_(before),
        world_(world),
        most_(MostHeld(static_cast<int>(before.size()), world)),
        load_(static_cast<size_t>(world), 0) {
    for (const std::vector<int>& ranks : holders_) {
      for (const int rank : ranks) ++load_[static_cast<size_t>(rank)];
    }
  }

  ShardHolders Run() {
    for (std::vector<int>& ranks : holders_) {
      while (ranks.size() > kCopies) Remove(&ranks, Fullest(ranks));
    }
    for (size_t shard = 0; shard < holders_.size(); ++shard) {
      while (holders_[shard].size() < kCopies) Add(&holders_[shard], Emptiest(shard));
    }
    while (MoveOne()) {
    }
    for (std::vector<int>& ranks : holders_) std::sort(ranks.begin(), ranks.end());
    return holders_;
  }

 private:
  int Load(int rank) const { return load_[static_cast<size_t>(rank)]; }
  void Add(std::vector<int>* ranks, int rank) {
    ranks->push_back(rank);
    ++load_[static_cast<size_t>(rank)];
  }
  void Remove(std::vector<int>* ranks, int rank) {
    ranks->erase(std::find(ranks->begin(), ranks->end(), rank));
    --load_[static_cast<size_t>(rank)];
  }
  // The last of the fullest.
  int Fullest(const std::vector<int>& ranks) const {
    return *std::max_element(ranks.begin(), ranks.end(), [this](int a, int b) {
      return Load(a) != Load(b) ? Load(a) < Load(b) : a < b;
    });
  }
  // Of those that do not hold the shard; among equals one whose slice it does not lie in.
  int Emptiest(size_t shard) const {
    const int owner = OwnerOfShard(shard, holders_.size(), world_);
    int best = -1;
    for (int i = 1; i <= world_; ++i) {
      const int rank = (owner + i) % world_;
      if (Holds(holders_[shard], rank)) continue;
      if (best < 0 || Load(rank) < Load(best)) best = rank;
    }
    return best;
  }
  // Takes one shard from a rank that has too many.
  bool MoveOne() {
    for (size_t shard = 0; shard < holders_.size(); ++shard) {
      const int from = Fullest(holders_[shard]);
      if (Load(from) <= most_) continue;
      const int to = Emptiest(shard);
      if (to < 0 || Load(to) >= most_) continue;
      Remove(&holders_[shard], from);
      Add(&holders_[shard], to);
      return true;
    }
    return false;
  }

  ShardHolders holders_;
  const int world_;
  const int most_;
  std::vector<int> load_;  // shards that each rank holds
};

}  // namespace

int OwnerOfShard(size_t shard, size_t shards, int world) {
  return static_cast<int>(shard * static_cast<size_t>(world) / shards);
}

int OptimizerShards(int most_workers) { return std::max(kLeastShards, kCopies * most_workers); }

int MostHeld(int shards, int world) {
  if (world <= kCopies) return shards;
  return std::min(shards, kCopies * ((shards + world - 1) / world));
}

ShardHolders DealHolders(const ShardHolders& before, int world) {
  const bool fresh = std::all_of(before.begin(), before.end(),
                                 [](const std::vector<int>& ranks) { return ranks.empty(); });
  if (world > kCopies) return fresh ? FreshDeal(before.size(), world) : Deal(before, world).Run();
  std::vector<int> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(rank);
  return ShardHolders(before.size(), all);
}

}  // namespace lockstep::worker
