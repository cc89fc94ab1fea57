// SPDX-License-Identifier: Apache-2.0
// First which hosts have a shard, then which of their ranks.
#include "worker/state/host_deal.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/check.h"

namespace lockstep::worker {
namespace {

constexpr int kCopies = 2;

// `total` in parts as large as `weights`, to one.
std::vector<int> Shares(int total, absl::Span<const int> weights) {
  const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int> shares;
  int64_t seen = 0, given = 0;
  for (const int weight : weights) {
    seen += weight;
    const int64_t until = sum == 0 ? 0 : total * seen / sum;
    shares.push_back(static_cast<int>(until - given));
    given = until;
  }
  return shares;
}

// How many of `shards` each host has: both copies of all together, none more than all.
std::vector<int> Quotas(int shards, absl::Span<const int> ranks) {
  const int world = std::accumulate(ranks.begin(), ranks.end(), 0);
  const auto big = std::find_if(ranks.begin(), ranks.end(),
                                [world](int count) { return kCopies * count > world; });
  if (big == ranks.end()) return Shares(kCopies * shards, ranks);
  std::vector<int> others(ranks.begin(), ranks.end());
  const auto at = static_cast<size_t>(big - ranks.begin());
  others[at] = 0;
  std::vector<int> quotas = Shares(shards, others);
  quotas[at] = shards;
  return quotas;
}

class HostDeal {
 public:
  HostDeal(const ShardHolders& before, absl::Span<const int> hosts)
      : before_(before), hosts_(hosts), shards_(before.size()) {
    std::vector<int> sizes;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      const auto host = static_cast<size_t>(hosts[rank]);
      if (host >= ranks_.size()) ranks_.resize(host + 1);
      ranks_[host].push_back(static_cast<int>(rank));
    }
    for (const std::vector<int>& ranks : ranks_) sizes.push_back(static_cast<int>(ranks.size()));
    quota_ = Quotas(static_cast<int>(shards_), sizes);
    load_.resize(ranks_.size(), 0);
    has_.resize(ranks_.size(), std::vector<bool>(shards_, false));
    for (size_t shard = 0; shard < shards_; ++shard) {
      for (const int rank : before[shard]) Give(HostOf(rank), shard);
    }
    had_ = has_;
  }

  ShardHolders Run() {
    for (size_t shard = 0; shard < shards_; ++shard) {
      while (HostsWith(shard) > kCopies) Take(FullestWith(shard), shard);
    }
    for (size_t shard = 0; shard < shards_; ++shard) {
      while (HostsWith(shard) < kCopies) Give(EmptiestWithout(shard), shard);
    }
    while (MoveOne()) {
    }
    ShardHolders holders(shards_);
    for (size_t host = 0; host < ranks_.size(); ++host) DealWithin(host, &holders);
    for (std::vector<int>& ranks : holders) std::sort(ranks.begin(), ranks.end());
    return holders;
  }

 private:
  size_t HostOf(int rank) const { return static_cast<size_t>(hosts_[static_cast<size_t>(rank)]); }
  int Room(size_t host) const { return quota_[host] - load_[host]; }
  void Give(size_t host, size_t shard) {
    if (!has_[host][shard]) ++load_[host];
    has_[host][shard] = true;
  }
  void Take(size_t host, size_t shard) {
    has_[host][shard] = false;
    --load_[host];
  }
  int HostsWith(size_t shard) const {
    return static_cast<int>(
        std::count_if(has_.begin(), has_.end(), [shard](const auto& host) { return host[shard]; }));
  }
  size_t FullestWith(size_t shard) const {
    size_t fullest = ranks_.size();
    for (size_t host = 0; host < ranks_.size(); ++host) {
      if (!has_[host][shard]) continue;
      if (fullest == ranks_.size() || Room(host) < Room(fullest)) fullest = host;
    }
    return fullest;
  }
  // Among equals the host that sums the shard's gradients.
  size_t EmptiestWithout(size_t shard) const {
    const size_t first = HostOf(OwnerOfShard(shard, shards_, static_cast<int>(hosts_.size())));
    size_t emptiest = ranks_.size();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const size_t host = (first + i) % ranks_.size();
      if (has_[host][shard]) continue;
      if (emptiest == ranks_.size() || Room(host) > Room(emptiest)) emptiest = host;
    }
    return emptiest;
  }

  // A shard of `from` that `to` has not, one that has moved anyway if there is one; shards_: none.
  size_t Movable(size_t from, size_t to) const {
    size_t found = shards_;
    for (size_t shard = 0; shard < shards_; ++shard) {
      if (!has_[from][shard] || has_[to][shard]) continue;
      if (!had_[from][shard] || had_[to][shard]) return shard;
      if (found == shards_) found = shard;
    }
    return found;
  }
  // Takes one shard from a host that has too many, for one that has too few. It may have none that
  // the other lacks; then others in between hand on theirs.
  bool MoveOne() {
    size_t over = 0;
    while (over < ranks_.size() && Room(over) >= 0) ++over;
    if (over == ranks_.size()) return false;
    std::vector<size_t> reached = {over};
    std::vector<size_t> before(ranks_.size(), ranks_.size());
    before[over] = over;
    for (size_t i = 0; i < reached.size(); ++i) {
      for (size_t host = 0; host < ranks_.size(); ++host) {
        if (before[host] != ranks_.size() || Movable(reached[i], host) == shards_) continue;
        before[host] = reached[i];
        reached.push_back(host);
        if (Room(host) <= 0) continue;
        for (size_t to = host; to != over; to = before[to]) {
          const size_t shard = Movable(before[to], to);
          Take(before[to], shard);
          Give(to, shard);
        }
        return true;
      }
    }
    // Each shard has two hosts, and no quota is larger than the shards: somebody can hand on.
    LS_CHECK(false) << "host " << over << " cannot give a shard away";
    return false;
  }

  // The host's shards to its ranks.
  void DealWithin(size_t host, ShardHolders* holders) const {
    const std::vector<int>& ranks = ranks_[host];
    std::vector<std::vector<size_t>> held(ranks.size());
    const auto emptiest = [&](auto allowed) {
      size_t best = ranks.size();
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (!allowed(ranks[i])) continue;
        if (best == ranks.size() || held[i].size() < held[best].size()) best = i;
      }
      return best;
    };
    const auto anybody = [](int) { return true; };
    for (const bool known : {true, false}) {
      for (size_t shard = 0; shard < shards_; ++shard) {
        if (!has_[host][shard] || had_[host][shard] != known) continue;
        const std::vector<int>& had = before_[shard];
        held[known ? emptiest([&](int rank) {
          return std::find(had.begin(), had.end(), rank) != had.end();
        })
                   : emptiest(anybody)]
            .push_back(shard);
      }
    }
    const size_t most = (static_cast<size_t>(load_[host]) + ranks.size() - 1) / ranks.size();
    for (std::vector<size_t>& own : held) {
      while (own.size() > most) {
        held[emptiest(anybody)].push_back(own.back());
        own.pop_back();
      }
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      for (const size_t shard : held[i]) (*holders)[shard].push_back(ranks[i]);
    }
  }

  const ShardHolders& before_;
  const absl::Span<const int> hosts_;
  const size_t shards_;
  std::vector<std::vector<int>> ranks_;  // by host
  std::vector<int> quota_;               // by host
  std::vector<int> load_;                // shards that each host has
  std::vector<std::vector<bool>> has_;   // by host and shard
  std::vector<std::vector<bool>> had_;   // before the deal
};

}  // namespace

ShardHolders DealOverHosts(const ShardHolders& before, absl::Span<const int> hosts) {
  const int world = static_cast<int>(hosts.size());
  const bool one = std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
  if (one || world <= kCopies) return DealHolders(before, world);
  return HostDeal(before, hosts).Run();
}

int MostHeldOverHosts(int shards, absl::Span<const int> ranks_of_host) {
  const int world = std::accumulate(ranks_of_host.begin(), ranks_of_host.end(), 0);
  if (ranks_of_host.size() < 2 || world <= kCopies) return MostHeld(shards, world);
  const std::vector<int> quotas = Quotas(shards, ranks_of_host);
  int most = 0;
  for (size_t host = 0; host < quotas.size(); ++host) {
    const int ranks = std::max(1, ranks_of_host[host]);
    most = std::max(most, (quotas[host] + ranks - 1) / ranks);
  }
  return most;
}

}  // namespace lockstep::worker
