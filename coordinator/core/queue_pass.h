// SPDX-License-Identifier: Apache-2.0
// The queue's rules as a function: who waits, who runs and what is free -> who starts where, who is
// to make room, and for whom room is kept.
//
// Jobs come by priority, then those that have waited for long, then by their users' recent use (the
// smaller first), then in the order of their submission. A gang starts whole or not at all. The
// first one that has no room, and would have some in an empty cluster, gets a reservation: the
// nodes that are free for it the soonest. Later jobs start before it where they do not delay it:
// when their time limit ends before it starts, or in what it leaves over (EASY backfill). So large
// gangs are never starved by small ones, and no slot idles for them without need. Jobs that would
// not fit an empty cluster hold nobody up.
//
// For the first one that waits, jobs of lower priority make room: first elastic ones give up
// workers, then whole jobs stop; as few as will do, the lowest priority first, and of those the
// ones that started last. Thread-safety: pure functions.
#ifndef LOCKSTEP_COORDINATOR_CORE_QUEUE_PASS_H_
#define LOCKSTEP_COORDINATOR_CORE_QUEUE_PASS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/capacity.h"
#include "coordinator/core/placement.h"

namespace lockstep::coordinator {

// What all jobs of a user may have at once; 0: as much as there is.
struct Quota {
  int slots = 0;
  int gpus = 0;
  int jobs = 0;
};

struct QueueRules {
  std::map<std::string, Quota> quotas;  // by user
  Quota quota;                          // of the others
  // How long a job that can start with fewer workers than it wants waits for more.
  absl::Duration elastic_wait = absl::Seconds(2);
  bool preempt = true;
  bool backfill = true;  // false: nobody starts before one that has no room (for comparisons)
};
const Quota& QuotaOf(const QueueRules& rules, const std::string& user);

// A job that may start.
struct Waiting {
  const Ask* ask = nullptr;
  double use = 0;  // of its user
  // It has waited for so long that its user's use does not count any more.
  bool overdue = false;
  Barred barred;
  // These and nodes that it is to have only where it finds no place without them; null: none such.
  Barred avoided;
  bool special = false;  // either has more than the nodes that its labels leave out
  int array = -1;        // the place in Queue::array_left; -1: it is of none
  // When it starts with fewer workers than it wants; the pass sets it.
  absl::Time starts_at = absl::InfiniteFuture();
};

// A job that has nodes.
struct Running {
  int priority = 0;
  std::string user;
  absl::Time started = absl::InfinitePast();
  absl::Time ends = absl::InfiniteFuture();  // at the latest; infinite: it has no time limit
  std::vector<Taken> holds = {};
  bool leaving = false;   // it stops already
  bool may_stop = false;  // for one of higher priority
  bool part = false;      // workers that another entry's job lets go, not a job of its own
  int array = -1;         // as in Waiting
  // Slots that it is yet to get: it started with fewer workers than it wants, has lent some, or one
  // died and is replaced, also while the job saves and leaves. They count against its user's quota.
  int owed = 0;
  // Workers that it can do without, each a part of `holds`, in the order in which they go.
  std::vector<Taken> spare = {};
};

struct Queue {
  absl::Time now;
  NodePool cluster;
  std::vector<Waiting> waiting;
  std::vector<Running> running;
  std::vector<int> array_left;  // of each array, so many more may run
};

// Room that is kept for a job.
struct Reservation {
  int waiting = 0;  // whose
  absl::Time when;  // it starts then at the latest; infinite: when somebody without limit has ended
  Placement placement;
  std::vector<Free> leave;  // what it leaves for jobs that will still run then
};

struct Decisions {
  struct Start {
    int waiting = 0;
    Placement placement;
    std::vector<Taken> holds;  // what it takes there
  };
  std::vector<Start> starts;
  std::optional<Reservation> reservation;
  std::vector<int> stop;  // of Queue::running
  // Of these so many of `spare` are let go, by their places there.
  std::map<int, std::vector<int>> shrink;
  // The order in which those that wait come, as places in Queue::waiting.
  std::vector<int> order;
};

// Decides, and takes what the starts need from `queue.cluster.free`.
Decisions RunPass(const QueueRules& rules, Queue& queue);

// Returns why the user may not start the job now, in a sentence; empty: they may.
std::string WhyOverQuota(const QueueRules& rules, const std::vector<Running>& running,
                         const Ask& ask);

// When the job at `place` of `queue.waiting` starts if all jobs take their whole time limits, none
// is submitted and none stops for another. Not known: infinite, and `why` says why.
absl::Time Forecast(const QueueRules& rules, Queue queue, int place, std::string* why);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_QUEUE_PASS_H_
