// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_machine.h"

namespace lockstep::coordinator {
namespace {

constexpr int kExitNotAdmitted = 5;

bool Reproducible(const Job& job) {
  return !job.spec().train().has_reproducible() || job.spec().train().reproducible();
}

// Whether all workers run the same plan on the same kind of device; ends the job otherwise.
bool Admit(Context& context, Job& job) {
  const WorkerReady& first = *job.slots[0].worker.ready;
  for (const Slot& slot : job.slots) {
    const WorkerReady& ready = *slot.worker.ready;
    const int rank = slot.worker.slot;
    if (ready.plan_hash() != first.plan_hash()) {
      BeginEnding(context, job, FAILED,
                  absl::StrCat("rank ", rank, " (", slot.worker.host,
                               ") compiled another plan than rank 0 (", job.slots[0].worker.host,
                               "): ", ready.plan_hash(), " against ", first.plan_hash(),
                               "; do all nodes run the same build of lockstep?"),
                  1, /*kill=*/true);
      return false;
    }
    if (ready.device_hash() != first.device_hash() && Reproducible(job)) {
      BeginEnding(
          context, job, FAILED,
          absl::StrCat("the device of rank ", rank, " (", ready.device_description(),
                       ") computes other bits than that of rank 0 (", first.device_description(),
                       "); use one kind of device or set train.reproducible: false"),
          kExitNotAdmitted, /*kill=*/true);
      return false;
    }
  }
  return true;
}

Generation Deal(const Job& job, int64_t number) {
  const int world = static_cast<int>(job.slots.size());
  const int shards = job.spec().train().shards() > 0 ? job.spec().train().shards() : world;
  Generation generation;
  generation.set_generation(number);
  generation.set_shards(shards);
  for (int rank = 0; rank < world; ++rank) {
    const Worker& worker = job.slots[rank].worker;
    Member& member = *generation.add_members();
    member.set_rank(rank);
    member.set_local_rank(worker.local_rank);
    member.set_incarnation(worker.incarnation);
    member.set_host(worker.host);
    member.set_pid(worker.pid);
    *member.mutable_address() = worker.ready->address();
    member.set_device_uuid(worker.ready->device_uuid());
    member.set_shard_begin(static_cast<int>(static_cast<int64_t>(rank) * shards / world));
    member.set_shard_end(static_cast<int>(static_cast<int64_t>(rank + 1) * shards / world));
    if (worker.ready->has_committed_step()) {
      member.set_committed_step(worker.ready->committed_step());
      generation.set_start_step(
          std::max<int64_t>(generation.start_step(), worker.ready->committed_step()));
    }
  }
  return generation;
}

bool IsMember(const Job& job, const Worker& worker) {
  const auto& members = job.generation.message.members();
  return std::any_of(members.begin(), members.end(), [&](const Member& member) {
    return member.incarnation() == worker.incarnation;
  });
}

void Send(Context& context, const Worker& worker, WorkerCommand command, bool close = false) {
  context.effects.to_workers.push_back({worker.session, std::move(command), close});
}

}  // namespace

void MaybeFormGeneration(Context& context, Job& job) {
  const bool active = job.generation.message.generation() != 0 && !job.generation.aborted;
  if (active || job.slots.empty()) return;
  int64_t highest = job.generation.message.generation();
  for (const Slot& slot : job.slots) {
    if (!slot.worker.ready || slot.worker.dead()) return;
    highest = std::max<int64_t>(highest, slot.worker.ready->highest_generation());
  }
  if (!Admit(context, job)) return;
  job.generation = GenerationState{};
  job.generation.message = Deal(job, highest + 1);
  ++job.generations;
  const std::string reason =
      absl::StrCat("generation ", highest + 1, " of ", Count(job.slots.size(), "worker"),
                   " goes on after step ", job.generation.message.start_step());
  SetState(context, job, job.drain ? DRAINING : RUNNING, job.drain ? *job.drain : reason);
}

void AbortCurrentGeneration(Context& context, Job& job, const std::string& reason) {
  if (job.generation.message.generation() == 0 || job.generation.aborted) return;
  job.generation.aborted = true;
  job.generation.abort_reason = reason;
  for (Slot& slot : job.slots) slot.worker.ready.reset();
  context.touched_jobs.insert(job.id);
}

void PushWorker(Context& context, const Job& job, Worker& worker) {
  if (worker.session == 0 || worker.told.exit) return;
  const int64_t number = job.generation.message.generation();
  WorkerCommand command;
  const bool leave =
      job.final() || (job.ending && !job.ending->kill && job.ending->target != FAILED);
  if (leave) {
    command.mutable_exit()->set_reason(job.ending ? job.ending->reason : job.reason);
    command.mutable_exit()->set_code(worker.finished ? 0 : 1);
    worker.told.exit = true;
    Send(context, worker, std::move(command));
    return;
  }
  if (number == 0 || !IsMember(job, worker)) return;
  if (job.generation.aborted) {
    if (worker.told.abort == number) return;
    command.mutable_abort()->set_generation(number);
    command.mutable_abort()->set_reason(job.generation.abort_reason);
    worker.told.abort = number;
    Send(context, worker, std::move(command));
    return;
  }
  if (worker.told.generation != number) {
    *command.mutable_generation() = job.generation.message;
    worker.told.generation = number;
    Send(context, worker, std::move(command));
  }
  if (job.drain && !worker.told.drain) {
    WorkerCommand drain;
    drain.mutable_drain()->set_reason(*job.drain);
    *drain.mutable_drain()->mutable_grace() = job.spec().preemption().grace();
    worker.told.drain = true;
    Send(context, worker, std::move(drain));
  }
}

}  // namespace lockstep::coordinator
