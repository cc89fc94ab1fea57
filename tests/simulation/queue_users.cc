// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/queue_users.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

constexpr std::array<const char*, 3> kUsers = {"ann", "bob", "eve"};

// In some seeds every other job is a long one that can shrink for the rest, which are small and of
// high priority.
void MakeOneOfTwoShrink(int number, SimulatedJob& job) {
  JobSpec& spec = *job.request.mutable_spec();
  if (number % 2 == 0) {
    spec.set_priority(0);
    spec.mutable_elastic()->set_min_workers(1);
    job.submitted = std::min(job.submitted, absl::Duration(absl::Seconds(2)));
    job.steps = 200;
    return;
  }
  spec.set_priority(3);
  spec.mutable_resources()->set_nodes(1);
  spec.mutable_resources()->set_nproc_per_node(1);
  spec.mutable_train()->set_shards(2);
}

}  // namespace

QueueUsers::QueueUsers(World* world)
    : world_(world),
      random_(world->options.seed * 15485863 + 1),
      scaling_(world->options.seed * 86028121 + 1) {}

void QueueUsers::SetQuotas(SimulationOptions& options) {
  Random random(options.seed * 32452843 + 1);
  const int all = options.agents * options.slots;
  // Some want all nodes: one that failed often is left out for a while that is short here.
  options.limits.trust.first = absl::Seconds(10);
  options.limits.trust.longest = absl::Seconds(60);
  for (const char* user : kUsers) {
    if (random.Chance(0.4)) continue;
    coordinator::Quota& quota = options.limits.quotas[user];
    if (random.Chance(0.7)) {
      quota.slots = static_cast<int>(random.Between(std::max(1, all / 3), all));
    } else {
      quota.jobs = static_cast<int>(random.Between(1, 3));
    }
  }
}

SimulatedJob QueueUsers::MakeJob(int number, int max_restarts) {
  const SimulationOptions& options = world_->options;
  SimulatedJob job;
  job.name = absl::StrCat("job-", number);
  job.steps = random_.Between(10, 60);
  job.step_time = random_.Between(absl::Milliseconds(50), absl::Milliseconds(300));
  job.submitted = random_.Between(absl::ZeroDuration(), absl::Seconds(30));
  job.request.set_request_id(absl::StrCat("request-", number));
  job.request.set_user(kUsers[static_cast<size_t>(random_.Below(kUsers.size()))]);
  job.request.set_hold(random_.Chance(0.1));
  const auto quota = options.limits.quotas.find(job.request.user());
  const bool limited = quota != options.limits.quotas.end() && quota->second.slots > 0;
  const int most = limited ? quota->second.slots : options.agents * options.slots;
  const int per_node = static_cast<int>(random_.Between(1, std::min(options.slots, most)));
  // Small ones are many, and some want all that there is.
  const int64_t nodes_at_most =
      random_.Chance(0.7) ? std::max(1, options.agents / 3) : options.agents;
  const int nodes =
      static_cast<int>(std::min<int64_t>(random_.Between(1, nodes_at_most), most / per_node));
  JobSpec& spec = *job.request.mutable_spec();
  spec.set_name(job.name);
  spec.set_priority(static_cast<int>(random_.Chance(0.5) ? 0 : random_.Between(0, 3)));
  spec.mutable_resources()->set_nodes(nodes);
  spec.mutable_resources()->set_nproc_per_node(per_node);
  spec.mutable_train()->set_shards(nodes * per_node * 2);
  if ((options.seed + static_cast<uint64_t>(number)) % 3 == 0)
    spec.mutable_train()->set_zero_stage(1);
  spec.mutable_checkpoint()->set_dir("saved");
  spec.mutable_checkpoint()->set_resume("auto");
  spec.mutable_failure_detection()->set_seconds(absl::ToInt64Seconds(options.detection));
  spec.mutable_restart()->set_max_restarts(max_restarts);
  spec.mutable_time_limit()->set_seconds(random_.Between(900, 7200));
  if (random_.Chance(0.4)) spec.mutable_elastic()->set_min_workers(1);
  const uint64_t kind = options.seed % 19;
  if (kind == 12 || kind == 14 || kind == 15) MakeOneOfTwoShrink(number, job);
  return job;
}

std::vector<SimulatedJob> QueueUsers::MakeJobs(int max_restarts) {
  std::vector<SimulatedJob> jobs;
  const int64_t count = random_.Between(3, 12);
  for (int i = 0; i < count; ++i) {
    SimulatedJob job = MakeJob(i, max_restarts);
    if (i > 0 && random_.Chance(0.2)) {
      job.waits_for = random_.Below(i);
      job.waits_for_success = random_.Chance(0.5);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

bool QueueUsers::CompleteRequest(SimulatedJob& job) const {
  if (job.waits_for < 0) return true;
  const std::string& id = world_->jobs[static_cast<size_t>(job.waits_for)].accepted;
  if (id.empty()) return false;
  job.request.clear_after();
  job.request.clear_after_any();
  (job.waits_for_success ? job.request.add_after() : job.request.add_after_any())->assign(id);
  return true;
}

void QueueUsers::Begin(absl::Time until) {
  until_ = until;
  world_->timeline.In(absl::Seconds(3), [this] { Next(); });
}

void QueueUsers::Next() {
  if (world_->timeline.now() >= until_) return ReleaseAll();
  // In some seeds they seldom do anything: nothing but what the jobs do makes others start.
  const int64_t pace = world_->options.seed % 11 < 2 ? 10 : 1;
  world_->timeline.In(absl::Milliseconds(pace * random_.Between(200, 6000)), [this] { Next(); });
  const auto index = random_.Below(static_cast<int64_t>(world_->jobs.size()));
  SimulatedJob& job = world_->jobs[static_cast<size_t>(index)];
  if (job.accepted.empty()) return;
  SimulatedJob* const lender = OneThatLends();
  if (lender != nullptr && scaling_.Chance(0.5)) {
    Scale(*lender);
  } else if (scaling_.Chance(0.3)) {
    Scale(job);
  }
  if (random_.Chance(0.05)) {
    world_->Say(absl::StrCat(job.accepted, " is to end"));
    return world_->Ask(coordinator::CancelRequested{job.accepted, random_.Chance(0.3)},
                       &job.cancelled);
  }
  world_->Ask(coordinator::HoldRequested{job.accepted, /*release=*/random_.Chance(0.6)});
}

SimulatedJob* QueueUsers::OneThatLends() const {
  if (world_->coordinator == nullptr || !world_->coordinator->begun()) return nullptr;
  for (const auto& [id, job] : world_->coordinator->state().jobs) {
    const bool lends = std::any_of(job.slots.begin(), job.slots.end(),
                                   [](const coordinator::Slot& slot) { return slot.lent; });
    if (lends && !job.final()) return &world_->JobOf(id);
  }
  return nullptr;
}

void QueueUsers::Scale(SimulatedJob& job) {
  const JobSpec& spec = job.request.spec();
  if (spec.elastic().min_workers() == 0) return;
  const Resources& resources = spec.resources();
  const int workers =
      static_cast<int>(scaling_.Between(1, resources.nodes() * resources.nproc_per_node()));
  world_->Say(absl::StrCat(job.accepted, " is to have ", workers, " workers"));
  world_->Ask(coordinator::ScaleRequested{job.accepted, workers}, &job.scaled);
}

void QueueUsers::ReleaseAll() {
  bool any = world_->coordinator == nullptr || !world_->coordinator->begun();
  if (!any) {
    for (const auto& [id, job] : world_->coordinator->state().jobs) {
      if (!job.held) continue;
      any = true;
      world_->Ask(coordinator::HoldRequested{id, /*release=*/true});
    }
  }
  const bool all = std::all_of(world_->jobs.begin(), world_->jobs.end(),
                               [](const SimulatedJob& job) { return !job.accepted.empty(); });
  if (any || !all) world_->timeline.In(absl::Seconds(1), [this] { ReleaseAll(); });
}

}  // namespace lockstep::simulation
