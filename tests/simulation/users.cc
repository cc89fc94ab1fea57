// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/users.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {

Users::Users(World* world)
    : world_(world),
      random_(world->options.seed * 104729 + 1),
      onlooker_(world->options.seed * 7919 + 5) {}

void Users::Prepare(SubmitJobRequest& request) {
  JobSpec& spec = *request.mutable_spec();
  const int shards = spec.train().shards();
  spec.mutable_elastic()->set_min_workers(1);
  spec.mutable_elastic()->set_max_workers(shards);
  if (random_.Chance(0.5)) spec.mutable_resources()->set_standby(1);
}

void Users::Begin(absl::Time until) {
  until_ = until;
  world_->timeline.In(absl::Seconds(3), [this] { Next(); });
}

void Users::Next() {
  if (world_->timeline.now() >= until_) return;
  world_->timeline.In(absl::Milliseconds(random_.Between(200, 10000)), [this] { Next(); });
  const auto index = random_.Below(static_cast<int64_t>(world_->jobs.size()));
  SimulatedJob& job = world_->jobs[static_cast<size_t>(index)];
  if (job.accepted.empty()) return;
  if (random_.Chance(0.1)) {
    Cancel(job);
  } else {
    Scale(job);
  }
}

void Users::Scale(SimulatedJob& job) {
  const int most = std::max(1, job.request.spec().elastic().max_workers());  // 0: none is said
  const int workers = static_cast<int>(random_.Between(1, most));
  world_->Say(absl::StrCat(job.accepted, " is to have ", workers, " workers"));
  world_->Ask(coordinator::ScaleRequested{job.accepted, workers}, &job.scaled);
}

void Users::Cancel(SimulatedJob& job) {
  const bool kill = random_.Chance(0.3);
  world_->Say(absl::StrCat(job.accepted, kill ? " is to be killed" : " is to end"));
  world_->Ask(coordinator::CancelRequested{job.accepted, kill}, &job.cancelled,
              [this, &job](const coordinator::Answer& answer) {
                if (!answer.status.ok()) return;
                job.is_to_end = true;
                Tempt();
              });
}

void Users::AfterStep() {
  if (world_->options.seed % 4 != 1) return;
  for (const auto& [id, job] : world_->coordinator->state().jobs) {
    if (!job.final() || !looked_at_.insert(id).second || !onlooker_.Chance(0.7)) continue;
    const auto look = [this, id = id, state = job.state, asked = world_->coordinator.get()] {
      asked->AwaitSaved([this, id, state](const coordinator::Answer& answer) {
        if (!answer.status.ok()) return;  // with which it may be lost
        world_->checker.OnShown(id, state);
        if (!onlooker_.Chance(0.4) || world_->timeline.now() >= until_) return;
        world_->timeline.In(absl::Microseconds(onlooker_.Between(0, 5000)),
                            [this] { world_->CrashCoordinator(); });
      });
    };
    world_->coordinator->After(absl::ZeroDuration(), look);
  }
}

void Users::Tempt() {
  if (!random_.Chance(0.4) || world_->timeline.now() >= until_) return;
  // Who is killed is gone soon.
  const absl::Duration most = random_.Chance(0.5) ? absl::Milliseconds(100) : absl::Seconds(3);
  world_->timeline.In(random_.Between(absl::ZeroDuration(), most),
                      [this] { world_->CrashCoordinator(); });
}

}  // namespace lockstep::simulation
