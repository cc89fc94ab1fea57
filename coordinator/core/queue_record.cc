// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/queue_record.h"

#include <algorithm>

#include "coordinator/core/context.h"

namespace lockstep::coordinator {

QueueRecord ToQueueRecord(const Job& job) {
  QueueRecord record;
  record.set_held(job.held);
  record.mutable_after()->Assign(job.after.begin(), job.after.end());
  record.mutable_after_any()->Assign(job.after_any.begin(), job.after_any.end());
  record.set_preemptions(job.preemptions);
  if (job.preempted) {
    record.set_preempted(job.preempted->reason);
    *record.mutable_preempted_since() = ToProto(job.preempted->since);
  }
  record.set_lives(job.lives);
  record.set_ran_seconds(absl::ToDoubleSeconds(job.ran));
  record.set_slot_seconds(job.meter.slot_seconds);
  record.set_gpu_seconds(job.meter.gpu_seconds);
  if (job.meter.since != absl::InfinitePast()) {
    *record.mutable_metered() = ToProto(job.meter.since);
  }
  record.set_slots(job.meter.slots);
  record.set_gpus(job.meter.gpus);
  record.set_metered_regularly(job.meter.regular);
  record.set_scaled_to(job.scaled_to);
  *record.mutable_ready_since() = ToProto(job.ready_since);
  record.set_waited_seconds(absl::ToDoubleSeconds(job.waited));
  if (job.waits_since) *record.mutable_waits_since() = ToProto(*job.waits_since);
  return record;
}

void FromQueueRecord(const QueueRecord& record, Job& job) {
  job.held = record.held();
  job.after.assign(record.after().begin(), record.after().end());
  job.after_any.assign(record.after_any().begin(), record.after_any().end());
  job.preemptions = record.preemptions();
  if (!record.preempted().empty()) {
    job.preempted = Preempted{record.preempted(), FromProto(record.preempted_since())};
  }
  job.lives = record.lives();
  job.ran = absl::Seconds(record.ran_seconds());
  job.meter.slot_seconds = record.slot_seconds();
  job.meter.gpu_seconds = record.gpu_seconds();
  if (record.has_metered()) job.meter.since = FromProto(record.metered());
  job.meter.slots = record.slots();
  job.meter.gpus = record.gpus();
  job.meter.regular = record.metered_regularly();
  // Earlier versions let a job that waits be scaled to any number.
  job.scaled_to = std::min<int32_t>(record.scaled_to(), kMaxWorkers);
  job.ready_since = record.has_ready_since() ? FromProto(record.ready_since()) : job.submitted;
  job.waited = absl::Seconds(record.waited_seconds());
  if (record.has_waits_since()) job.waits_since = FromProto(record.waits_since());
}

}  // namespace lockstep::coordinator
