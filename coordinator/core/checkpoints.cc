// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/checkpoints.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

std::pair<int64_t, int64_t> Order(const CheckpointMark& mark) {
  return {mark.generation(), mark.step()};
}

std::string WhyNot(const Job& job, const Worker& worker, const CheckpointMark& mark) {
  if (!IsMember(job, worker)) return "the job goes on without this worker";
  if (mark.generation() > job.generation.message.generation() + kMostAhead || mark.step() < 0) {
    return "the job has had no such generation";
  }
  if (!job.checkpoint || Order(*job.checkpoint) <= Order(mark)) return "";
  return absl::StrCat("the job has a newer one: step ", job.checkpoint->step(), " of generation ",
                      job.checkpoint->generation(), " (", job.checkpoint->path(), ")");
}

}  // namespace

void OnCheckpoint(Context& context, Job& job, const Worker& worker, const CheckpointOffer& offer) {
  CheckpointMark mark = offer.mark();
  const std::string refused = WhyNot(job, worker, mark);
  if (refused.empty()) {
    mark.set_host(worker.host);
    job.checkpoint = mark;
    context.touched_jobs.insert(job.id);
  }
  ToWorker reply;
  reply.session = worker.session;
  CheckpointVerdict& verdict = *reply.command.mutable_checkpoint();
  *verdict.mutable_mark() = offer.mark();
  verdict.set_refused(refused);
  context.effects.to_workers.push_back(std::move(reply));
}

bool IsBehindCheckpoint(const Job& job) {
  return job.checkpoint && job.checkpoint->generation() > job.generation.message.generation();
}

int64_t NewestPublisher(const Job& job) {
  const Generation& newest = job.generation.message;
  return job.generation.stepped ? newest.generation() : newest.previous_generation();
}

void TellCheckpoint(const Job& job, int64_t previous, Generation* generation) {
  if (job.checkpoint) *generation->mutable_newest_checkpoint() = *job.checkpoint;
  generation->set_previous_generation(previous);
}

}  // namespace lockstep::coordinator
