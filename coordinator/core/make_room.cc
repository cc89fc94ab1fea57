// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/make_room.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep::coordinator {
namespace {

absl::Time EndOf(const Queue& queue, const Running& job) {
  return job.leaving ? queue.now : std::max(job.ends, queue.now);
}

Placement Fit(const NodePool& cluster, const Waiting& waiting, const std::vector<Free>& free) {
  return PlaceLeast(*waiting.ask, Offer{cluster, free, nullptr, waiting.barred});
}

void GiveAll(const NodePool& cluster, const std::vector<Taken>& holds, std::vector<Free>& free) {
  for (const Taken& hold : holds) Give(cluster, hold, free);
}

// The nodes with those that are expected back: what is free there is taken by `until_back`, until
// then. Nothing: none is expected.
std::optional<NodePool> WithAwaited(const Queue& queue, std::vector<Running>& until_back) {
  std::optional<NodePool> all;
  for (size_t i = 0; i < queue.cluster.nodes.size(); ++i) {
    const NodeFacts& node = queue.cluster.nodes[i];
    if (node.open || node.awaited_until <= queue.now) continue;
    if (!all) all = queue.cluster;
    const Free free = std::exchange(all->free[i], Free{});
    all->nodes[i].open = true;
    Running taken;
    taken.ends = node.awaited_until;
    taken.holds = {{static_cast<int>(i), free.slots, std::popcount(free.gpus), free.gpus}};
    until_back.push_back(std::move(taken));
  }
  return all;
}

// The first so many of `order` have ended.
std::vector<Free> FreeAfter(const NodePool& cluster, const std::vector<const Running*>& order,
                            size_t ended) {
  std::vector<Free> free = cluster.free;
  for (size_t i = 0; i < ended; ++i) GiveAll(cluster, order[i]->holds, free);
  return free;
}

// The smallest number in [low, high] for which `holds` is true; it is true for `high`, and for all
// after one for which it is.
template <typename Predicate>
size_t Smallest(size_t low, size_t high, Predicate holds) {
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

// A part of what is running that may be freed.
struct Source {
  int running = 0;
  int spare = -1;  // the place of the worker that is let go; -1: the job stops
};

// Takes the part away from what a job has.
void Subtract(const Taken& part, std::vector<Taken>& holds) {
  const auto from = std::find_if(holds.begin(), holds.end(), [&](const Taken& hold) {
    return hold.node == part.node && hold.slots >= part.slots;
  });
  if (from == holds.end()) return;
  from->slots -= part.slots;
  from->gpus -= part.gpus;
  from->gpu_places &= ~part.gpu_places;
}

std::vector<Taken> HoldsOf(const std::vector<Running>& running, const Source& source) {
  const Running& job = running[static_cast<size_t>(source.running)];
  if (source.spare >= 0) return {job.spare[static_cast<size_t>(source.spare)]};
  // Its spare workers came before it in the list of sources.
  std::vector<Taken> holds = job.holds;
  for (const Taken& spare : job.spare) Subtract(spare, holds);
  return holds;
}

// A worker of the job is on its way out.
void LetGo(const Source& source, std::vector<Running>& running) {
  Running& job = running[static_cast<size_t>(source.running)];
  const Taken worker = job.spare[static_cast<size_t>(source.spare)];
  Subtract(worker, job.holds);
  Running part = job;
  part.leaving = part.part = true;
  part.owed = 0;
  part.holds = {worker};
  part.spare.clear();
  running.push_back(std::move(part));
}

// Who may make room, in the order in which they are asked.
std::vector<Source> Sources(const Waiting& waiting, const std::vector<Running>& running) {
  std::vector<int> lower;
  for (size_t i = 0; i < running.size(); ++i) {
    const Running& job = running[i];
    if (job.priority < waiting.ask->priority && !job.leaving && job.may_stop) {
      lower.push_back(static_cast<int>(i));
    }
  }
  std::sort(lower.begin(), lower.end(), [&](int a, int b) {
    const Running& x = running[static_cast<size_t>(a)];
    const Running& y = running[static_cast<size_t>(b)];
    if (x.priority != y.priority) return x.priority < y.priority;
    if (x.started != y.started) return x.started > y.started;
    return a < b;
  });
  std::vector<Source> sources;
  for (const int job : lower) {
    const int spare = static_cast<int>(running[static_cast<size_t>(job)].spare.size());
    for (int i = 0; i < spare; ++i) sources.push_back({job, i});
  }
  for (const int job : lower) sources.push_back({job, -1});
  return sources;
}

// Returns what is free when all but one of `sources` have made room; `but` < 0: all.
std::vector<Free> FreeWith(const NodePool& cluster, const std::vector<Running>& running,
                           const std::vector<Source>& sources, size_t count, int but) {
  std::vector<Free> free = cluster.free;
  for (const Running& job : running) {
    if (job.leaving) GiveAll(cluster, job.holds, free);
  }
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<int>(i) != but) GiveAll(cluster, HoldsOf(running, sources[i]), free);
  }
  return free;
}

}  // namespace

std::optional<Reservation> WhenFree(const Queue& queue, const Waiting& waiting,
                                    const std::vector<Running>& running) {
  std::vector<Running> until_back;
  const std::optional<NodePool> with_awaited = WithAwaited(queue, until_back);
  const NodePool& cluster = with_awaited ? *with_awaited : queue.cluster;
  std::vector<const Running*> order;
  order.reserve(running.size() + until_back.size());
  for (const Running& job : running) order.push_back(&job);
  for (const Running& taken : until_back) order.push_back(&taken);
  std::stable_sort(order.begin(), order.end(), [&](const Running* a, const Running* b) {
    const absl::Time x = EndOf(queue, *a), y = EndOf(queue, *b);
    return x != y ? x < y : a->started < b->started;
  });
  Reservation reservation;
  reservation.leave = FreeAfter(cluster, order, order.size());
  reservation.placement = Fit(cluster, waiting, reservation.leave);
  if (reservation.placement.empty()) {
    // Processes that are of no running job will be gone, too.
    reservation.leave = Whole(cluster);
    reservation.placement = Fit(cluster, waiting, reservation.leave);
    if (reservation.placement.empty()) return std::nullopt;
    reservation.when = absl::InfiniteFuture();
  } else {
    const size_t ended = Smallest(0, order.size(), [&](size_t count) {
      return !Fit(cluster, waiting, FreeAfter(cluster, order, count)).empty();
    });
    reservation.when = ended == 0 ? queue.now : EndOf(queue, *order[ended - 1]);
    // All that end at the same time are gone then.
    size_t gone = ended;
    while (gone < order.size() && reservation.when != absl::InfiniteFuture() &&
           EndOf(queue, *order[gone]) <= reservation.when) {
      ++gone;
    }
    reservation.leave = FreeAfter(cluster, order, gone);
    reservation.placement = Fit(cluster, waiting, FreeAfter(cluster, order, ended));
  }
  for (const auto& [node, workers] : reservation.placement) {
    Take(*waiting.ask, cluster, node, workers, reservation.leave);
  }
  return reservation;
}

Decisions MakeRoom(const NodePool& cluster, const Waiting& waiting, std::vector<Running>& running) {
  Decisions decisions;
  std::vector<Source> sources = Sources(waiting, running);
  const auto fits = [&](size_t count, int but) {
    return !Fit(cluster, waiting, FreeWith(cluster, running, sources, count, but)).empty();
  };
  if (sources.empty() || fits(0, -1) || !fits(sources.size(), -1)) return decisions;
  sources.resize(Smallest(1, sources.size(), [&](size_t count) { return fits(count, -1); }));
  // The last one is needed. Of those before it whoever is not goes on, the highest priority first;
  // the workers of a job that stops go.
  constexpr size_t kTried = 256;
  const size_t untried = sources.size() > kTried ? sources.size() - kTried : 0;
  for (size_t i = sources.size() - 1; i-- > untried;) {
    const Source source = sources[i];
    const bool stops =
        source.spare >= 0 && std::any_of(sources.begin(), sources.end(), [&](const Source& other) {
          return other.running == source.running && other.spare < 0;
        });
    if (!stops && fits(sources.size(), static_cast<int>(i))) {
      sources.erase(sources.begin() + static_cast<long>(i));
    }
  }
  for (const Source& source : sources) {
    if (source.spare < 0) decisions.stop.push_back(source.running);
  }
  for (const int job : decisions.stop) running[static_cast<size_t>(job)].leaving = true;
  for (const Source& source : sources) {
    if (source.spare < 0 || running[static_cast<size_t>(source.running)].leaving) continue;
    decisions.shrink[source.running].push_back(source.spare);
    LetGo(source, running);
  }
  return decisions;
}

}  // namespace lockstep::coordinator
