// SPDX-License-Identifier: Apache-2.0
// What a worker makes of a generation that ended for it, or did not come about: whom it names to
// the coordinator, and whether it is ready for the next one.
// Thread-safety: pure functions.
#ifndef LOCKSTEP_WORKER_CONTROL_GENERATION_END_H_
#define LOCKSTEP_WORKER_CONTROL_GENERATION_END_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "proto/coordinator.pb.h"

namespace lockstep::worker {

struct GenerationEnd {
  // What the coordinator is told; nothing: this worker knows of nobody to name.
  std::vector<PeerLost> told;
  // Aborted: the next generation follows. Anything else ends the worker.
  absl::Status status;
  // The members did not find each other, so nothing is known of how one ended.
  bool not_met = false;
};

// GroupSpec::reach_within: the coordinator has to hear soon who cannot be reached.
absl::Duration ReachPatience(const JobSpec& job);

// The members could not be joined, for `status`. Members elsewhere that cannot be reached are the
// coordinator's to judge: one of each node is named. One of this node that did not come ends this
// worker where the coordinator was `heard` all the time; else it may not have been told of the
// generation.
GenerationEnd AfterNoConnection(const GroupSpec& group, const std::string& node_id,
                                const absl::Status& status, bool heard);

// The generation ended with `status`, an error. Names the rank to blame, if this one knows it; the
// coordinator then takes this one, whatever becomes of it, for its victim. The network's fault is
// nobody's else.
GenerationEnd AfterFailure(const GroupSpec& group, const std::string& node_id,
                           const absl::Status& status);

}  // namespace lockstep::worker

#endif  // LOCKSTEP_WORKER_CONTROL_GENERATION_END_H_
