// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/trained.h"

#include <algorithm>

namespace lockstep::coordinator {
namespace {

// Workers begin a heartbeat apart: less than this is not worth a row of the journal.
constexpr double kLeastBefore = 1;

}  // namespace

double TrainedSeconds(const Job& job) {
  double most = job.trained_seconds;
  for (const Slot& slot : job.slots) {
    if (!slot.worker) continue;
    const Worker& worker = *slot.worker;
    double own = worker.progress.train_seconds();
    if (worker.finished) own = std::max(own, worker.finished->train_seconds());
    most = std::max(most, worker.trained_before.value_or(0) + own);
  }
  return most;
}

void NoteTraining(Context& context, Job& job, Worker& worker, double seconds) {
  if (worker.trained_before || seconds <= 0) return;
  // What it has trained itself, others have trained with it.
  const double before = TrainedSeconds(job) - seconds;
  worker.trained_before = before < kLeastBefore ? 0 : before;
  if (*worker.trained_before <= 0) return;
  ++worker.reports;
  context.touched_jobs.insert(job.id);
}

void KeepTraining(Job& job) { job.trained_seconds = TrainedSeconds(job); }

}  // namespace lockstep::coordinator
