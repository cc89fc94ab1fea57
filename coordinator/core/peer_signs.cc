// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/peer_signs.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/health.h"
#include "coordinator/core/nodes.h"

namespace lockstep::coordinator {

void Latest::Note(const Worker& worker, absl::Time time) {
  if (time > latest_) {
    second_ = std::exchange(latest_, time);
    of_ = &worker;
  } else {
    second_ = std::max(second_, time);
  }
}

PeerSigns::PeerSigns(const Job& job) : job_(job), detection_(FailureDetection(job)) {}

bool PeerSigns::Heard(const Context& context, const Worker& worker) {
  if (!HasActiveGeneration(job_) || !IsMember(job_, worker)) return false;
  if (!std::exchange(looked_, true)) Look();
  if (context.now <= committed_.But(worker)) return true;
  // A host that is gone looks like this, too.
  if (context.now - worker.last_heard > context.state.options.node_lost_after) return false;
  return context.now <= moves_.But(worker) && !NodeInSight(context.state, worker, context.now);
}

void PeerSigns::Look() {
  for (const Slot& slot : job_.slots) {
    if (slot.vacant()) continue;
    const Worker& peer = *slot.worker;
    if (!IsMember(job_, peer) || peer.dead() ||
        peer.heartbeat.generation() != job_.generation.message.generation()) {
      continue;
    }
    committed_.Note(peer, peer.step_seen + detection_);
    const absl::Time moves = peer.progress_moved + detection_;
    const bool evaluates = peer.progress.phase() == EVALUATING;
    moves_.Note(peer, evaluates ? moves : std::min(moves, peer.step_seen + StepLimit(peer)));
  }
}

}  // namespace lockstep::coordinator
