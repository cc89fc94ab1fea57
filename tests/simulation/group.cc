// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "tests/simulation/worker_process.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

constexpr int64_t kCheckpointEvery = 5;

}  // namespace

Group::Group(World* world, std::string job_id, const Generation& generation)
    : world_(world),
      job_id_(std::move(job_id)),
      generation_(generation),
      places_(static_cast<size_t>(generation.members_size())) {}

int Group::RankOf(const WorkerProcess* worker) const {
  for (int rank = 0; rank < generation_.members_size(); ++rank) {
    if (generation_.members(rank).incarnation() == worker->incarnation()) return rank;
  }
  return -1;
}

bool Group::All(At at) const {
  return std::all_of(places_.begin(), places_.end(),
                     [at](const Place& place) { return place.at == at; });
}

void Group::After(int rank, absl::Duration delay, void (Group::*what)(int)) {
  places_[rank].worker->After(delay, [self = shared_from_this(), rank, what] {
    if (self->places_[rank].at != At::kLeft) (self.get()->*what)(rank);
  });
}

void Group::Join(std::shared_ptr<WorkerProcess> worker) {
  const int rank = RankOf(worker.get());
  if (rank < 0) return world_->checker.Fail("a worker is given a generation without it");
  places_[rank] = {std::move(worker), At::kJoined};
  if (broken_) return TellLoss(rank);
  if (All(At::kJoined)) Begin();
}

// All are there: they bring each other to the same state.
void Group::Begin() {
  begun_ = true;
  std::vector<const WorkerProcess*> members;
  for (const Place& place : places_) members.push_back(place.worker.get());
  start_ = world_->checker.StartOf(job_id_, generation_, members);
  const bool nobody = std::none_of(members.begin(), members.end(),
                                   [](const WorkerProcess* w) { return w->has_state(); });
  if (nobody) {
    start_ = world_->JobOf(job_id_).checkpoint;
    resumed_ = start_ > 0;
  }
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    After(static_cast<int>(rank),
          world_->timeline.random.Between(absl::Milliseconds(1), absl::Milliseconds(60)),
          &Group::Enter);
  }
}

void Group::Enter(int rank) {
  if (broken_) return;
  places_[rank].worker->Enter(start_, resumed_);
  places_[rank].at = At::kEntered;
  if (!All(At::kEntered)) return;
  step_ = start_;
  NextStep();
}

void Group::NextStep() {
  if (step_ >= world_->JobOf(job_id_).steps || stop_after_) {
    over_ = true;
    for (size_t rank = 0; rank < places_.size(); ++rank) {
      // Rank 0 makes the model durable; the others are done.
      const absl::Duration write = world_->timeline.random.Between(
          absl::Milliseconds(50), absl::Milliseconds(rank == 0 ? 800 : 60));
      After(static_cast<int>(rank), write, &Group::FinishModel);
    }
    return;
  }
  if (regroup_after_) {
    std::vector<Place> places = places_;
    for (Place& place : places_) place.at = At::kLeft;
    for (Place& place : places) {
      place.worker->After(absl::Milliseconds(1), [worker = place.worker] { worker->RegroupNow(); });
    }
    return;
  }
  ++step_;
  reduced_ = false;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    places_[rank].at = At::kComputing;
    const absl::Duration work = world_->JobOf(job_id_).step_time;
    After(static_cast<int>(rank), world_->timeline.random.Between(work / 2, work), &Group::Arrive);
  }
}

void Group::Arrive(int rank) {
  if (broken_) return;
  Place& place = places_[rank];
  place.at = At::kArrived;
  // The step's header: what one member was told, all do after this step.
  stop_after_ |= place.worker->wants_drain();
  regroup_after_ |= place.worker->regroup() == generation_.generation();
  if (!All(At::kArrived)) return;
  reduced_ = true;
  for (size_t other = 0; other < places_.size(); ++other) {
    After(static_cast<int>(other),
          world_->timeline.random.Between(absl::Microseconds(100), absl::Milliseconds(8)),
          &Group::CommitStep);
  }
}

void Group::CommitStep(int rank) {
  Place& place = places_[rank];
  if (place.at != At::kArrived) return;  // it was ended before it left
  place.worker->Commit(step_);
  place.at = At::kCommitted;
  if (rank == 0 && step_ % kCheckpointEvery == 0) world_->SaveCheckpoint(job_id_, step_);
  if (!broken_ && All(At::kCommitted)) NextStep();
}

void Group::FinishModel(int rank) {
  Place& place = places_[rank];
  place.at = At::kLeft;
  if (rank == 0) world_->checker.OnModel(job_id_, step_, stop_after_);
  std::exchange(place.worker, nullptr)->FinishTraining(stop_after_);
}

void Group::Gone(WorkerProcess* worker) {
  const int rank = RankOf(worker);
  if (rank < 0) return;
  places_[rank].at = At::kLeft;
  if (over_ && rank != 0) return;  // nobody waits for it any more
  broken_ = true;
  for (size_t other = 0; other < places_.size(); ++other) {
    const Place& place = places_[other];
    if (place.at == At::kAway || place.at == At::kLeft || (over_ && place.at == At::kLeft))
      continue;
    TellLoss(static_cast<int>(other));
  }
}

void Group::TellLoss(int rank) {
  // The life word at once, a connection's end soon; nothing at all tells of a host that vanished.
  const Place& place = places_[rank];
  int lost = -1;
  absl::Duration delay = absl::Milliseconds(1);
  for (size_t other = 0; other < places_.size(); ++other) {
    if (places_[other].at != At::kLeft || places_[other].worker == nullptr) continue;
    const WorkerProcess& gone = *places_[other].worker;
    lost = gone.alive() ? -1 : static_cast<int>(other);
    const bool seen = Passes(*gone.host(), *place.worker->host());
    delay = !seen ? world_->options.detection
                  : (gone.host() == place.worker->host() ? absl::Milliseconds(1)
                                                         : absl::Milliseconds(30));
    break;
  }
  place.worker->After(delay, [self = shared_from_this(), rank, lost] {
    if (self->places_[rank].at == At::kLeft || self->places_[rank].worker == nullptr) return;
    self->LeaveWhenUpdated(self->places_[rank].worker.get(), lost, "a peer is lost");
  });
}

void Group::LeaveWhenUpdated(WorkerProcess* worker, int lost_rank, const std::string& why) {
  const int rank = RankOf(worker);
  Place& place = places_[rank];
  if (place.at == At::kLeft) return;
  if (reduced_ && place.at == At::kArrived) place.worker->Commit(step_);
  place.at = At::kLeft;
  const std::shared_ptr<WorkerProcess> leaving = place.worker;
  if (!over_ || rank == 0) {
    broken_ = true;
    for (size_t other = 0; other < places_.size(); ++other) {
      if (places_[other].at != At::kAway && places_[other].at != At::kLeft) {
        TellLoss(static_cast<int>(other));
      }
    }
  }
  leaving->LeaveGroup(lost_rank, why);
}

int Group::WaitsFor(const WorkerProcess* worker) const {
  const int rank = RankOf(worker);
  if (rank < 0) return -1;
  const At at = places_[rank].at;
  if (at != At::kJoined && at != At::kArrived && at != At::kCommitted) return -1;
  for (size_t other = 0; other < places_.size(); ++other) {
    if (places_[other].at < at && places_[other].at != At::kLeft) return static_cast<int>(other);
  }
  return -1;
}

}  // namespace lockstep::simulation
