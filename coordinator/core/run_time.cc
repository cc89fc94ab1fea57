// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/run_time.h"

#include <algorithm>

#include "coordinator/core/failures.h"

namespace lockstep::coordinator {
namespace {

// Returns whether the place has a worker, or will have it when its agent has started it.
bool IsFilled(const Slot& slot) {
  return slot.worker && !slot.unplaced() && !slot.worker->gone() && !Failed(*slot.worker);
}

// Returns when one of the job's workers was last heard, or was placed when it never was.
absl::Time LastHeard(const Job& job) {
  absl::Time last = job.started;
  const auto count = [&](const Worker& worker) {
    last = std::max(last,
                    worker.last_heard == absl::InfinitePast() ? worker.since : worker.last_heard);
  };
  for (const Slot& slot : job.slots) {
    if (slot.worker && !slot.unplaced()) count(*slot.worker);
  }
  for (const Worker& worker : job.former) count(worker);
  return last;
}

absl::Duration Waited(const Job& job, absl::Time now) {
  if (!job.waits_since) return job.waited;
  return job.waited + std::max(absl::ZeroDuration(), now - *job.waits_since);
}

}  // namespace

void NoteWait(Job& job, absl::Time now) {
  if (!job.has_begun()) return;
  const bool waits = std::none_of(job.slots.begin(), job.slots.end(), IsFilled);
  if (waits == job.waits_since.has_value()) return;
  if (waits) {
    if (job.ending || job.drain) return;  // it waits for nobody any more
    job.waits_since = std::min(now, LastHeard(job));
    return;
  }
  job.waited = Waited(job, now);
  job.waits_since.reset();
}

absl::Duration RanFor(const Job& job, absl::Time now) {
  if (job.started == absl::InfinitePast()) return job.ran;
  return job.ran + std::max(absl::ZeroDuration(), now - job.started - Waited(job, now));
}

void SkipTime(Job& job, absl::Duration span, absl::Time now) {
  job.started = std::min(now, job.started + span);
  if (job.waits_since) job.waits_since = std::min(now, *job.waits_since + span);
}

void EndFuture(Job& job, absl::Time now) {
  if (job.started > now) {
    job.started = now;
    job.waited = absl::ZeroDuration();
  }
  if (job.waits_since) job.waits_since = std::min(now, *job.waits_since);
}

void EndRun(Job& job, absl::Time now) {
  job.ran = RanFor(job, now);
  job.started = absl::InfinitePast();
  job.waited = absl::ZeroDuration();
  job.waits_since.reset();
}

}  // namespace lockstep::coordinator
