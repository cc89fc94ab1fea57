// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/queue_pass.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/make_room.h"

namespace lockstep::coordinator {
namespace {

struct Use {
  int slots = 0;
  int gpus = 0;
  int jobs = 0;
};

Use UseOf(const std::vector<Taken>& holds) {
  Use use{0, 0, 1};
  for (const Taken& hold : holds) {
    use.slots += hold.slots;
    use.gpus += hold.gpus;
  }
  return use;
}

// Adds what it is to get to what it has; the devices are of one kind.
void Owe(int slots, Use& use) {
  use.slots += slots;
  if (use.gpus > 0) use.gpus += slots;
}

void Add(const Use& more, Use& use) {
  use.slots += more.slots;
  use.gpus += more.gpus;
  use.jobs += more.jobs;
}

bool Exceeds(const Quota& quota, const Use& use) {
  return (quota.slots > 0 && use.slots > quota.slots) ||
         (quota.gpus > 0 && use.gpus > quota.gpus) || (quota.jobs > 0 && use.jobs > quota.jobs);
}

// What a pass has found out so far.
class Pass {
 public:
  Pass(const QueueRules& rules, Queue& queue) : rules_(rules), queue_(queue) {
    for (const Running& job : queue.running) {
      Use use = UseOf(job.holds);
      use.jobs = job.part ? 0 : 1;
      Owe(job.owed, use);
      Add(use, uses_[job.user]);
    }
  }

  Decisions Run() {
    Sort();
    for (const int place : decisions_.order) {
      Waiting& waiting = queue_.waiting[static_cast<size_t>(place)];
      over_quota_ = false;
      if (MayNot(waiting) || Start(place, waiting)) continue;
      if (decisions_.reservation || over_quota_) continue;
      if (!Reserve(place, waiting)) continue;
      if (!rules_.backfill) break;
    }
    return std::move(decisions_);
  }

 private:
  void Sort() {
    std::vector<int>& order = decisions_.order;
    order.resize(queue_.waiting.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      const Waiting& x = queue_.waiting[static_cast<size_t>(a)];
      const Waiting& y = queue_.waiting[static_cast<size_t>(b)];
      if (x.ask->priority != y.ask->priority) return x.ask->priority > y.ask->priority;
      if (x.overdue != y.overdue) return x.overdue;
      if (!x.overdue && x.use != y.use) return x.use < y.use;
      return x.ask->order < y.ask->order;
    });
  }

  bool MayNot(const Waiting& waiting) {
    if (waiting.array >= 0 && queue_.array_left[static_cast<size_t>(waiting.array)] <= 0) {
      return true;
    }
    const Quota& quota = QuotaOf(rules_, waiting.ask->user);
    if (quota.slots == 0 && quota.jobs == 0) return false;
    Use use{waiting.ask->wanted, 0, 1};
    Add(uses_[waiting.ask->user], use);
    return Exceeds(quota, use);
  }

  // It has ended when the one that room is kept for starts.
  bool IsShort(const Waiting& waiting) const {
    const absl::Time when = decisions_.reservation->when;
    return when != absl::InfiniteFuture() && queue_.now + waiting.ask->limit <= when;
  }

  // Where it starts now; empty: it waits.
  Placement PlaceNow(Waiting& waiting, const Offer& offer) {
    if (waiting.avoided == nullptr) return PlaceOn(waiting, offer);
    const absl::Time starts_at = waiting.starts_at;
    Placement placement =
        PlaceOn(waiting, {offer.cluster, offer.free, offer.leave, waiting.avoided});
    const bool soon = MayStartSmaller(*waiting.ask) && waiting.starts_at != absl::InfiniteFuture();
    if (!placement.empty() || soon) return placement;
    waiting.starts_at = starts_at;
    return PlaceOn(waiting, offer);
  }

  static bool MayStartSmaller(const Ask& ask) { return ask.least != ask.wanted || ask.anywhere; }

  Placement PlaceOn(Waiting& waiting, const Offer& offer) {
    const Ask& ask = *waiting.ask;
    Placement placement = Place(ask, offer);
    if (!placement.empty() || !MayStartSmaller(ask)) return placement;
    placement = PlaceLeast(ask, offer);
    if (placement.empty()) {
      waiting.starts_at = absl::InfiniteFuture();
      return {};
    }
    waiting.starts_at = std::min(waiting.starts_at, queue_.now + rules_.elastic_wait);
    return queue_.now >= waiting.starts_at ? placement : Placement{};
  }

  bool Start(int place, Waiting& waiting) {
    const Ask& ask = *waiting.ask;
    const bool lasts = decisions_.reservation && !IsShort(waiting);
    auto& known = lasts ? none_for_long_ : none_;
    if (!waiting.special && (none_.contains(ask.shape) || known.contains(ask.shape))) return false;
    const Offer offer{queue_.cluster, queue_.cluster.free,
                      lasts ? &decisions_.reservation->leave : nullptr, waiting.barred};
    Placement placement = PlaceNow(waiting, offer);
    if (placement.empty()) {
      const bool soon = waiting.starts_at != absl::InfiniteFuture();
      if (!waiting.special && !soon) known.insert(ask.shape);
      return false;
    }
    std::vector<Free> before = queue_.cluster.free;
    std::vector<Taken> holds;
    std::optional<Ask> counted;
    const Ask& taken = Counted(waiting, counted);
    for (const auto& [node, workers] : placement) {
      holds.push_back(Take(taken, queue_.cluster, node, workers, queue_.cluster.free));
    }
    Use use = UseOf(holds);
    Owe(std::max(0, ask.wanted - use.slots), use);
    Add(uses_[ask.user], use);
    if (Exceeds(QuotaOf(rules_, ask.user), use)) {
      queue_.cluster.free = std::move(before);
      over_quota_ = true;
      return false;
    }
    uses_[ask.user] = use;
    if (lasts) {
      for (const auto& [node, workers] : placement) {
        Take(taken, queue_.cluster, node, workers, decisions_.reservation->leave);
      }
    }
    if (waiting.array >= 0) --queue_.array_left[static_cast<size_t>(waiting.array)];
    started_.push_back(Running{ask.priority, ask.user, queue_.now, queue_.now + ask.limit, holds});
    decisions_.starts.push_back({place, std::move(placement), std::move(holds)});
    return true;
  }

  // What it asks for once its workers are counted, in `counted`: GPUs for all of them or for none.
  const Ask& Counted(const Waiting& waiting, std::optional<Ask>& counted) const {
    const Ask& ask = *waiting.ask;
    if (ask.counted.empty()) return ask;
    const std::vector<Free> whole = Whole(queue_.cluster);
    const bool gpus =
        CountedDevice(ask, Offer{queue_.cluster, whole, nullptr, waiting.barred}) == "cuda";
    counted = ask;
    counted->gpus = gpus ? Ask::Gpus::kAlways : Ask::Gpus::kNever;
    return *counted;
  }

  // Returns whether the job would have more there than its user may; the quota counts GPUs, and
  // workers that are as many as a node has, where they are.
  bool IsOverQuota(const Waiting& waiting, const Placement& placement) {
    std::optional<Ask> counted;
    const Ask& ask = Counted(waiting, counted);
    std::vector<Free> free = Whole(queue_.cluster);
    std::vector<Taken> holds;
    for (const auto& [node, workers] : placement) {
      holds.push_back(Take(ask, queue_.cluster, node, workers, free));
    }
    Use use = UseOf(holds);
    Owe(std::max(0, ask.wanted - use.slots), use);
    Add(uses_[ask.user], use);
    return Exceeds(QuotaOf(rules_, ask.user), use);
  }

  // Keeps room for the first one that has none. False: there will never be any as things are, or
  // none that its user may have now.
  bool Reserve(int place, const Waiting& waiting) {
    const std::string& shape = waiting.ask->shape;
    const std::pair<std::string, std::string> of_user{waiting.ask->user, shape};
    if (!waiting.special && (never_.contains(shape) || over_.contains(of_user))) return false;
    std::vector<Running> running = queue_.running;
    running.insert(running.end(), started_.begin(), started_.end());
    Decisions room;
    if (rules_.preempt) room = MakeRoom(queue_.cluster, waiting, running);
    std::optional<Reservation> reservation = WhenFree(queue_, waiting, running);
    if (!reservation) {
      if (!waiting.special) never_.insert(shape);
      return false;
    }
    if (IsOverQuota(waiting, reservation->placement)) {
      if (!waiting.special) over_.insert(of_user);
      return false;
    }
    decisions_.stop = std::move(room.stop);
    decisions_.shrink = std::move(room.shrink);
    reservation->waiting = place;
    decisions_.reservation = std::move(reservation);
    return true;
  }

  const QueueRules& rules_;
  Queue& queue_;
  Decisions decisions_;
  std::map<std::string, Use> uses_;
  std::vector<Running> started_;
  bool over_quota_ = false;  // the last one: no room would help it
  // Shapes for which there is no room now, none that does not delay the reservation, and none ever.
  std::unordered_set<std::string> none_, none_for_long_, never_;
  // Users and shapes for which room would be more than their quota.
  std::set<std::pair<std::string, std::string>> over_;
};

// Frees what has ended by `queue.now`.
void EndJobs(Queue& queue) {
  std::erase_if(queue.running, [&](const Running& job) {
    if (!job.leaving && job.ends > queue.now) return false;
    for (const Taken& hold : job.holds) Give(queue.cluster, hold, queue.cluster.free);
    if (job.array >= 0 && !job.part) ++queue.array_left[static_cast<size_t>(job.array)];
    return true;
  });
}

// Takes those out that the pass has started, and lets them run. Returns whether `place` was one of
// them, and else where it is now.
bool Begin(Queue& queue, const Decisions& decisions, int* place) {
  std::vector<bool> gone(queue.waiting.size());
  for (const Decisions::Start& start : decisions.starts) {
    if (start.waiting == *place) return true;
    gone[static_cast<size_t>(start.waiting)] = true;
    const Waiting& waiting = queue.waiting[static_cast<size_t>(start.waiting)];
    const Ask& ask = *waiting.ask;
    Running job{ask.priority, ask.user, queue.now, queue.now + ask.limit, start.holds};
    job.array = waiting.array;
    queue.running.push_back(std::move(job));
  }
  std::vector<Waiting> left;
  int moved = *place;
  for (size_t i = 0; i < queue.waiting.size(); ++i) {
    if (static_cast<int>(i) == *place) moved = static_cast<int>(left.size());
    if (!gone[i]) left.push_back(queue.waiting[i]);
  }
  *place = moved;
  queue.waiting = std::move(left);
  return false;
}

}  // namespace

const Quota& QuotaOf(const QueueRules& rules, const std::string& user) {
  const auto own = rules.quotas.find(user);
  return own == rules.quotas.end() ? rules.quota : own->second;
}

Decisions RunPass(const QueueRules& rules, Queue& queue) { return Pass(rules, queue).Run(); }

std::string WhyOverQuota(const QueueRules& rules, const std::vector<Running>& running,
                         const Ask& ask) {
  const Quota& quota = QuotaOf(rules, ask.user);
  Use use{0, 0, 0};
  for (const Running& job : running) {
    if (job.user != ask.user) continue;
    Use more = UseOf(job.holds);
    more.jobs -= job.part;
    Owe(job.owed, more);
    Add(more, use);
  }
  if (quota.jobs > 0 && use.jobs >= quota.jobs) {
    return absl::StrCat(ask.user, " may run ", quota.jobs, quota.jobs == 1 ? " job" : " jobs",
                        " at once");
  }
  if (quota.slots > 0 && use.slots + ask.wanted > quota.slots) {
    return absl::StrCat(ask.user, " has ", use.slots, " of ", quota.slots,
                        quota.slots == 1 ? " slot" : " slots", " and asks for ", ask.wanted);
  }
  if (quota.gpus > 0 && ask.gpus != Ask::Gpus::kNever && use.gpus + ask.wanted > quota.gpus) {
    return absl::StrCat(ask.user, " has ", use.gpus, " of ", quota.gpus,
                        quota.gpus == 1 ? " GPU" : " GPUs", " and asks for ", ask.wanted);
  }
  return "";
}

absl::Time Forecast(const QueueRules& rules, Queue queue, int place, std::string* why) {
  constexpr int kPasses = 200;
  // A pass looks at nodes for each kind of job, and the coordinator does nothing else meanwhile: so
  // often, for a node and a job that waits.
  constexpr size_t kWork = 5000000;
  constexpr size_t kOfAnyPass = 20;  // what a pass takes for each node besides, in such looks
  constexpr size_t kWaiting = 2000;
  if (queue.waiting.size() > kWaiting) {
    *why = absl::StrCat("more than ", kWaiting, " jobs wait before it");
    return absl::InfiniteFuture();
  }
  QueueRules calm = rules;
  calm.preempt = false;
  for (Waiting& waiting : queue.waiting) waiting.starts_at = queue.now;
  size_t work = 0;
  for (int i = 0; i < kPasses && work < kWork; ++i) {
    work += queue.cluster.nodes.size() * (queue.waiting.size() + kOfAnyPass);
    EndJobs(queue);
    if (Begin(queue, RunPass(calm, queue), &place)) return queue.now;
    absl::Time next = absl::InfiniteFuture();
    for (const Running& job : queue.running) next = std::min(next, job.ends);
    // What is kept until then is others' when they are not back.
    for (const NodeFacts& node : queue.cluster.nodes) {
      if (!node.open && node.awaited_until > queue.now) next = std::min(next, node.awaited_until);
    }
    if (next == absl::InfiniteFuture()) {
      *why = queue.running.empty() ? "no nodes for it are there"
                                   : "jobs without a time limit run or come before it";
      return next;
    }
    queue.now = std::max(next, queue.now + absl::Nanoseconds(1));
  }
  *why = "too much happens before";
  return absl::InfiniteFuture();
}

}  // namespace lockstep::coordinator
