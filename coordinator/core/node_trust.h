// SPDX-License-Identifier: Apache-2.0
// Whether a node is trusted with work, by the failures that are its own: it was lost with work on
// it, workers could not begin there though they can elsewhere, its agent's checks failed. One that
// fails too often is left out by all jobs for a while, twice as long each time.
//
// It is left out when it failed TrustRules::failures times within TrustRules::window, or with so
// many different jobs within TrustRules::memory. Once it was, each further failure within
// TrustRules::memory of the end is enough. What happens to several jobs in one moment is one
// failure, and so is what one job's workers meet when they begin, however often: the cause may be
// the job's. Thread-safety: pure functions on values.
#ifndef LOCKSTEP_COORDINATOR_CORE_NODE_TRUST_H_
#define LOCKSTEP_COORDINATOR_CORE_NODE_TRUST_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::coordinator {

struct TrustRules {
  int failures = 3;
  absl::Duration window = absl::Minutes(10);
  absl::Duration memory = absl::Hours(1);
  // Failures that are no further apart are one.
  absl::Duration moment = absl::Seconds(5);
  // How long it is left out the first time, and at most.
  absl::Duration first = absl::Minutes(1);
  absl::Duration longest = absl::Minutes(30);
};

struct NodeFailure {
  absl::Time time = absl::InfinitePast();
  std::string what;    // in words that all users may see
  std::string job_id;  // whose workers could not begin, or all of a user's; empty: the node's own
};

struct NodeTrust {
  std::vector<NodeFailure> failures;  // those that count, the newest last
  int times = 0;                      // that it was left out
  absl::Time until = absl::InfinitePast();
  std::string reason;  // why it is, or was last
};

bool IsLeftOut(const NodeTrust& trust, absl::Time now);

// Counts a failure at `failure.time`. Returns for how long the node is left out because of it from
// now on; zero: it is not, or was so already.
absl::Duration NoteFailure(const TrustRules& rules, const NodeFailure& failure, NodeTrust& trust);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_NODE_TRUST_H_
