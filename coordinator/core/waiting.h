// SPDX-License-Identifier: Apache-2.0
// Why jobs wait, in a sentence each. It is made when somebody asks, or for the few at the front of
// the queue, and not kept in the journal. Thread-safety: thread-compatible.
#ifndef LOCKSTEP_COORDINATOR_CORE_WAITING_H_
#define LOCKSTEP_COORDINATOR_CORE_WAITING_H_

#include <map>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "coordinator/core/queue_view.h"

namespace lockstep::coordinator {

// Says it for jobs of one state at one time.
class WaitingTexts {
 public:
  // `view` and `decisions`, those of a pass over it, outlive this. `view` is as after the pass.
  WaitingTexts(const State& state, const QueueView& view, const Decisions& decisions);

  // Of a job that is ready: the one at `place` of view.queue.waiting.
  std::string Of(int place);
  // Of any job that waits.
  std::string Of(const Job& job);

 private:
  struct Counts {
    int nodes = 0, largest = 0;
    int64_t slots = 0, free = 0;
    bool gpus = false;  // some of its workers would have GPUs
  };
  const Counts& CountsOf(const Waiting& waiting);
  std::string OfNodes(const Job& job, const Waiting& waiting);
  std::string WhyNotRankZero(const Job& job, const Waiting& waiting) const;
  std::string WhyNotWithinQuota(const Waiting& waiting);

  const State& state_;
  const QueueView& view_;
  const Decisions& decisions_;
  std::vector<Free> whole_;
  std::unordered_map<const Job*, int> places_;  // of the jobs that are ready
  std::vector<int> ranks_;                      // of each of them, how many come before it
  std::map<std::string, Counts> counts_;        // by shape
  Counts special_;
  std::string closed_;  // why nodes take no work
  int silent_ = 0;
  int closed_count_ = 0;
};

// Returns why a job that is held or waits for others does so.
std::string WhyNotReady(const Job& job);

// Returns what users are told about how the job waits, without an estimate.
QueueStatus QueueStatusOf(const Job& job, absl::Time now);
// Adds how many come before it, and when it starts.
void AddEstimate(const State& state, const Job& job, absl::Time now, QueueStatus* status);

}  // namespace lockstep::coordinator

#endif  // LOCKSTEP_COORDINATOR_CORE_WAITING_H_
