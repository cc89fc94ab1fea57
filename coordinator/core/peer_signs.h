// SPDX-License-Identifier: Apache-2.0
// What the members of a generation show of each other: none can commit a step without all, so one
// that is not heard of here lives while the others go on. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_PEER_SIGNS_H_
#define LOCKSTEP_COORDINATOR_CORE_PEER_SIGNS_H_

#include "absl/time/time.h"
#include "coordinator/core/context.h"
#include "coordinator/core/state.h"

namespace lockstep::coordinator {

// The latest of some times, each a worker's, and the latest one of all others.
class Latest {
 public:
  // Takes in one of the worker's.
  void Note(const Worker& worker, absl::Time time);
  // Returns the latest of those that are not this worker's; InfinitePast: there is none.
  absl::Time But(const Worker& worker) const { return of_ == &worker ? second_ : latest_; }

 private:
  absl::Time latest_ = absl::InfinitePast();
  const Worker* of_ = nullptr;
  absl::Time second_ = absl::InfinitePast();
};

// The signs of a job, which outlives this and does not change meanwhile. They are looked up when
// one is first asked for, as many workers may be silent at once.
class PeerSigns {
 public:
  explicit PeerSigns(const Job& job);
  absl::Duration detection() const { return detection_; }

  // Returns whether peers of the worker's active generation commit steps: it lives, and only the
  // way from it to here is cut. Where its node cannot be heard either, a step may take its time,
  // but no longer than a node is waited for; a worker that says nothing beside an agent that speaks
  // is not cut off.
  bool Heard(const Context& context, const Worker& worker);

 private:
  void Look();

  const Job& job_;
  const absl::Duration detection_;
  bool looked_ = false;
  // Until when a member's newest commit speaks for the others.
  Latest committed_;
  // Until when a member that moves does: no longer than a step may take since its commit, and
  // through an evaluation, in which it needs nobody.
  Latest moves_;
};

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_PEER_SIGNS_H_
