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

Group::Group(World* world, std::string job_id, std::shared_ptr<const Generation> generation)
    : world_(world),
      job_id_(std::move(job_id)),
      generation_(std::move(generation)),
      places_(static_cast<size_t>(generation_->members_size())),
      at_(places_.size(), At::kAway),
      reductions_(world->options.seed * 15485863 +
                  static_cast<uint64_t>(generation_->generation())) {
  counts_[static_cast<size_t>(At::kAway)] = places_.size();
  for (int rank = 0; rank < generation_->members_size(); ++rank) {
    ranks_.emplace(generation_->members(rank).incarnation(), rank);
  }
}

int Group::RankOf(const WorkerProcess* worker) const {
  const auto found = ranks_.find(worker->incarnation());
  return found == ranks_.end() ? -1 : found->second;
}

void Group::Move(int rank, At to) {
  At& at = at_[static_cast<size_t>(rank)];
  --counts_[static_cast<size_t>(at)];
  at = to;
  ++counts_[static_cast<size_t>(at)];
  if (to == At::kLeft && places_[rank].worker != nullptr) {
    gone_.insert(rank);
  } else {
    gone_.erase(rank);
  }
}

void Group::After(int rank, absl::Duration delay, void (Group::*what)(int)) {
  places_[rank].worker->After(delay, [self = shared_from_this(), rank, what] {
    if (self->at(rank) != At::kLeft) (self.get()->*what)(rank);
  });
}

void Group::Join(std::shared_ptr<WorkerProcess> worker) {
  const int rank = RankOf(worker.get());
  if (rank < 0) return world_->checker.Fail("a worker is given a generation without it");
  places_[rank] = {std::move(worker)};
  Move(rank, At::kJoined);
  if (broken_) return TellLoss(rank);
  if (All(At::kJoined)) Begin();
}

// All are there: they bring each other to the same state.
void Group::Begin() {
  std::vector<const WorkerProcess*> members;
  for (const Place& place : places_) members.push_back(place.worker.get());
  start_ = world_->checker.StartOf(*generation_, members);
  const bool nobody = std::none_of(members.begin(), members.end(),
                                   [](const WorkerProcess* w) { return w->has_state(); });
  if (nobody) {
    start_ = world_->JobOf(job_id_).checkpoint;
    resumed_ = start_ > 0;
  }
  world_->checker.OnEnter(job_id_, generation_->generation(), start_);
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    After(static_cast<int>(rank),
          world_->timeline.random.Between(absl::Milliseconds(1), absl::Milliseconds(60)),
          &Group::Enter);
  }
}

void Group::Enter(int rank) {
  if (broken_) return;
  places_[rank].worker->Enter(start_, resumed_);
  Move(rank, At::kEntered);
  if (!All(At::kEntered)) return;
  step_ = start_;
  NextStep();
}

void Group::NextStep() {
  if (step_ >= world_->JobOf(job_id_).steps || stop_after_) {
    over_ = true;
    std::vector<std::shared_ptr<WorkerProcess>> members;
    for (const Place& place : places_) members.push_back(place.worker);
    world_->OnLastStep(members);
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
    for (size_t rank = 0; rank < places_.size(); ++rank) Move(static_cast<int>(rank), At::kLeft);
    for (Place& place : places) {
      place.worker->After(absl::Milliseconds(1), [worker = place.worker] { worker->RegroupNow(); });
    }
    return;
  }
  ++step_;
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    Move(static_cast<int>(rank), At::kComputing);
    const absl::Duration work = world_->JobOf(job_id_).step_time;
    After(static_cast<int>(rank), world_->timeline.random.Between(work / 2, work), &Group::Arrive);
  }
}

void Group::Arrive(int rank) {
  if (broken_) return;
  Place& place = places_[rank];
  Move(rank, At::kArrived);
  // The step's header: what one member was told, all do after this step.
  stop_after_ |= place.worker->wants_drain();
  regroup_after_ |= place.worker->regroup() == generation_->generation();
  if (!All(At::kArrived)) return;
  for (size_t other = 0; other < places_.size(); ++other) {
    const absl::Duration commits =
        world_->timeline.random.Between(absl::Microseconds(100), absl::Milliseconds(8));
    After(static_cast<int>(other), reductions_.Between(absl::ZeroDuration(), commits),
          &Group::Reduce);
    After(static_cast<int>(other), commits, &Group::CommitStep);
  }
}

void Group::Reduce(int rank) {
  // What one who left had yet to send does not come any more.
  if (at(rank) == At::kArrived && !broken_) Move(rank, At::kReduced);
}

void Group::CommitStep(int rank) {
  Place& place = places_[rank];
  if (at(rank) != At::kReduced) return;  // it was ended before it left
  place.worker->Commit(step_);
  Move(rank, At::kCommitted);
  if (rank == 0 && step_ % kCheckpointEvery == 0) world_->SaveCheckpoint(job_id_, step_);
  if (!broken_ && All(At::kCommitted)) NextStep();
}

void Group::FinishModel(int rank) {
  const std::shared_ptr<WorkerProcess> worker = std::exchange(places_[rank].worker, nullptr);
  Move(rank, At::kLeft);
  if (rank == 0) world_->checker.OnModel(job_id_, step_, stop_after_);
  if (rank == 0 && stop_after_) {  // what it saved is what it goes on with
    SimulatedJob& job = world_->JobOf(job_id_);
    job.checkpoint = std::max(job.checkpoint, step_);
  }
  worker->FinishTraining(stop_after_);
}

void Group::Gone(WorkerProcess* worker) {
  const int rank = RankOf(worker);
  if (rank < 0) return;
  Move(rank, At::kLeft);
  if (over_ && rank != 0) return;  // nobody waits for it any more
  broken_ = true;
  told_of_ = -1;
  TellAll();
}

void Group::TellAll() {
  // To tell all of each who leaves takes long in a large group, and most hear nothing new.
  constexpr size_t kLarge = 200;
  const int first = gone_.empty() ? -1 : *gone_.begin();
  if (places_.size() > kLarge && first >= 0 && first == told_of_) return;
  told_of_ = first;
  for (int other = 0; other < generation_->members_size(); ++other) {
    if (at(other) != At::kAway && at(other) != At::kLeft) TellLoss(other);
  }
}

void Group::TellLoss(int rank) {
  // The life word at once, a connection's end soon; nothing at all tells of a host that vanished.
  Place& place = places_[rank];
  int lost = -1;
  absl::Duration delay = absl::Milliseconds(1);
  if (!gone_.empty()) {
    const int first = *gone_.begin();
    const WorkerProcess& gone = *places_[first].worker;
    lost = gone.alive() ? -1 : first;
    const bool seen = Passes(*gone.host(), *place.worker->host());
    delay = !seen ? world_->options.detection
                  : (gone.host() == place.worker->host() ? absl::Milliseconds(1)
                                                         : absl::Milliseconds(30));
  }
  const absl::Time at_time = world_->timeline.now() + delay;
  if (at_time >= place.told) return;
  place.told = at_time;
  place.worker->After(delay, [self = shared_from_this(), rank, lost] {
    if (self->at(rank) == At::kLeft || self->places_[rank].worker == nullptr) return;
    self->LeaveWhenUpdated(self->places_[rank].worker.get(), lost, "a peer is lost");
  });
}

void Group::LeaveWhenUpdated(WorkerProcess* worker, int lost_rank, const std::string& why) {
  const int rank = RankOf(worker);
  if (rank < 0 || at(rank) == At::kLeft || worker->Hangs()) return;
  if (at(rank) == At::kReduced) worker->Commit(step_);
  Move(rank, At::kLeft);
  const std::shared_ptr<WorkerProcess> leaving = places_[rank].worker;
  if (!over_ || rank == 0) {
    broken_ = true;
    TellAll();
  }
  leaving->LeaveGroup(lost_rank, why);
}

int Group::WaitsFor(const WorkerProcess* worker) const {
  const int rank = RankOf(worker);
  if (rank < 0) return -1;
  const At own = at(rank);
  if (own != At::kJoined && own != At::kArrived && own != At::kCommitted) return -1;
  const auto* const before = counts_.begin() + static_cast<size_t>(own);
  if (std::all_of(counts_.begin(), before, [](size_t count) { return count == 0; })) return -1;
  const auto first = std::find_if(at_.begin(), at_.end(), [own](At other) { return other < own; });
  return first == at_.end() ? -1 : static_cast<int>(first - at_.begin());
}

}  // namespace lockstep::simulation
