// SPDX-License-Identifier: Apache-2.0
// What a coordinator is told at its start: limits that do not belong to a job.
// Thread-safety: plain data.
#ifndef LOCKSTEP_COORDINATOR_CORE_OPTIONS_H_
#define LOCKSTEP_COORDINATOR_CORE_OPTIONS_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/protocol_version.h"
#include "coordinator/core/node_trust.h"
#include "coordinator/core/queue_pass.h"

namespace lockstep::coordinator {

// How nodes come: by `launcher join`, with the command that has started this run on other hosts, or
// not by what a user could do.
enum class NodesBy { kJoin, kSameCommand, kNobody };

struct Options {
  // That the coordinator speaks, and the one before (common/protocol_version.h).
  int protocol_version = kProtocolVersion;
  // A node whose agent, which speaks once a second, was silent for this long is out of sight, as is
  // one without a connection: nothing is started there.
  absl::Duration node_silent_after = absl::Seconds(3);
  // Nodes that are out of sight with all that hold a job's state are waited for so long before the
  // job goes on elsewhere from its checkpoint.
  absl::Duration node_lost_after = absl::Seconds(30);
  // How long a job that can start with fewer workers than it wants waits for more.
  absl::Duration elastic_wait = absl::Seconds(2);
  // What users may have at once, and of the others each.
  std::map<std::string, Quota> quotas;
  Quota quota;
  // A user's use counts for half after so long when it is decided whose job is next. Zero: it does
  // not count.
  absl::Duration fair_share_half_life = absl::Hours(7 * 24);
  // For how long the use of each day is kept.
  absl::Duration keep_usage = absl::Hours(400 * 24);
  // How long a job starts no worker on a node whose data, memory or device does not do: doubled
  // each time, up to the second.
  absl::Duration exclude_for = absl::Seconds(30);
  absl::Duration exclude_most = absl::Minutes(10);
  // How long a job whose starts were hindered twice in a row by what may pass waits before the
  // next, where nobody else has its state: twice as long each time, up to the same.
  absl::Duration start_again = absl::Seconds(1);
  // How long the accounts of all workers are waited for after a first failure.
  absl::Duration settle = absl::Seconds(1);
  // How long finished workers may take to leave before the agent ends them.
  absl::Duration leave = absl::Seconds(5);
  // How long agents and workers may take to come back to a coordinator that was away: twice their
  // longest wait between two tries.
  absl::Duration reconnect = absl::Seconds(1);
  // Followers see progress at most this often.
  absl::Duration progress_every = absl::Milliseconds(100);
  // Ended jobs that are kept for questions, and for how long each of them is at least.
  size_t keep_ended = 1000;
  absl::Duration keep_ended_for = absl::Minutes(5);
  // What the log lines take that are kept for followers, of all jobs together, in bytes of memory:
  // those of the jobs that ended longest ago go first (outbox/event_logs.h).
  size_t log_memory = size_t{256} << 20;
  // How long a node without work is kept after it was last heard of.
  absl::Duration keep_node = absl::Hours(1);
  NodesBy nodes_by = NodesBy::kJoin;
  // When a node that fails is left out, by all jobs.
  TrustRules trust;
  // What follows from events is looked at once in so long for each job, worker and node that there
  // is, if that is long enough to matter (core.h).
  absl::Duration settle_spacing = absl::Microseconds(5);
  // A pass over the queue is made at once, and then not again before so long has passed for each
  // job that waits, if that is long enough to matter.
  absl::Duration pass_spacing = absl::Microseconds(50);
};

// Returns what messages call that; empty: there is nothing to do.
inline std::string NodesStarter(NodesBy by) {
  if (by == NodesBy::kJoin) return "'launcher join'";
  return by == NodesBy::kSameCommand ? "the same command" : "";
}

// Returns where the network that joins hosts is named, for messages.
inline std::string InterfacesFlag(NodesBy by) {
  return by == NodesBy::kJoin ? "'launcher join --interfaces'" : "--interfaces";
}

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_OPTIONS_H_
