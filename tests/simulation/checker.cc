// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/context.h"
#include "coordinator/core/journal.h"
#include "coordinator/outbox/request_rows.h"
#include "job/meaning/job_state.h"
#include "tests/machines/coordinator_process.h"
#include "tests/simulation/worker_process.h"
#include "tests/simulation/world.h"

namespace lockstep::simulation {
namespace {

using coordinator::Job;
using coordinator::Slot;
using coordinator::Worker;

std::string Names(const Generation& generation) {
  std::string names;
  for (const Member& member : generation.members()) {
    absl::StrAppend(&names, member.incarnation(), "[", member.shard_begin(), ",",
                    member.shard_end(), ") ");
  }
  return absl::StrCat(names, "after ", generation.start_step());
}

// Wakes between which no time passes.
constexpr int64_t kMostWakesAtOnce = 1000;
// Generations of a job that begin within a second: each takes messages to and fro.
constexpr int64_t kMostGenerations = 100;

const Worker* Find(const Job& job, const std::string& incarnation) {
  for (const Slot& slot : job.slots) {
    if (slot.worker && slot.worker->incarnation == incarnation) return &*slot.worker;
  }
  for (const Worker& worker : job.former) {
    if (worker.incarnation == incarnation) return &worker;
  }
  return nullptr;
}

}  // namespace

void Checker::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ = absl::StrCat("after ", absl::FormatDuration(world_->Age()), ": ", what);
}

bool Checker::Disturbed(const std::string& job_id) const {
  const absl::Time now = world_->timeline.now();
  const auto alive = alive_.find(job_id);
  if (now <= world_->JobOf(job_id).disturbed) return true;
  if (alive == alive_.end()) return false;
  return std::any_of(alive->second.begin(), alive->second.end(),
                     [&](const WorkerProcess* worker) { return now <= worker->host()->disturbed; });
}

void Checker::OnBegin(const CoordinatorProcess& coordinator) {
  const coordinator::State& state = coordinator.state();
  unsteady_ = world_->timeline.now() + absl::Seconds(5);
  world_->queue_checker.OnBegin();
  heard_.clear();
  placed_.clear();
  for (const std::string& id : accepted_) {
    // What was asked and is written down is carried out next.
    const bool is_asked = std::any_of(
        world_->disk.rows.begin(), world_->disk.rows.end(),
        [&](const auto& row) { return absl::EndsWith(row.first, absl::StrCat("/submit/", id)); });
    if (state.jobs.count(id) == 0 && !is_asked) {
      Fail(absl::StrCat("job ", id, " was accepted and is lost"));
    }
  }
  for (const auto& [id, told] : told_) {
    const auto job = state.jobs.find(id);
    if (job == state.jobs.end()) continue;
    if (told.final != JOB_STATE_UNSPECIFIED && job->second.state != told.final) {
      Fail(absl::StrCat("job ", id, " had ended and has not any more"));
    }
    if (told.generation > job->second.generation.message.generation()) {
      Fail(absl::StrCat("generation ", told.generation, " of job ", id, " was told and is lost"));
    }
    if (told.aborted != 0 && told.aborted == job->second.generation.message.generation() &&
        !job->second.generation.aborted) {
      Fail(absl::StrCat("generation ", told.aborted, " of job ", id, " was ended and goes on"));
    }
  }
  for (const SimulatedJob& simulated : world_->jobs) {
    const auto job = state.jobs.find(simulated.accepted);
    if (!simulated.is_to_end || job == state.jobs.end()) continue;
    if (!job->second.drain && !job->second.ending && !job->second.final()) {
      Fail(absl::StrCat("the end of job ", job->first, " was asked for, answered and is lost"));
    }
  }
  for (const std::string& incarnation : forgotten_) {
    const auto job = state.jobs.find(incarnation.substr(0, incarnation.find('.')));
    if (job == state.jobs.end()) continue;
    const Worker* worker = Find(job->second, incarnation);
    if (worker != nullptr && !worker->gone()) {
      Fail(absl::StrCat("the end of ", incarnation, " was acknowledged and is lost"));
    }
  }
}

void Checker::OnContinue() { unsteady_ = world_->timeline.now() + absl::Seconds(5); }

void Checker::AfterStep(const CoordinatorProcess& coordinator) {
  if (coordinator.holding()) unsteady_ = world_->timeline.now() + absl::Seconds(5);
  const bool large = coordinator.state().nodes.size() > 200;
  const absl::Time before = std::exchange(stepped_, world_->timeline.now());
  // What came while it was stopped is read at once, so what it does by itself counts.
  if (before != stepped_) woken_ = coordinator.wakes();
  if (!large && coordinator.wakes() - woken_ > kMostWakesAtOnce)
    Fail("the coordinator goes round in circles");
  if (large && coordinator.steps() % 1000 != 0) return;
  if (!large && coordinator.steps() % 16 == 0) {
    const std::string stale = coordinator::FindStaleRow(coordinator.state());
    if (!stale.empty()) Fail(absl::StrCat("row ", stale, " is not what the coordinator knows"));
    const std::string misplaced = coordinator::FindMisplaced(coordinator.state());
    if (!misplaced.empty()) Fail(absl::StrCat("job ", misplaced, " is not where its state says"));
    CheckRequests(coordinator);
  }
  std::set<std::string> requests;
  for (const auto& [id, job] : coordinator.state().jobs) {
    if (!requests.insert(job.request.request_id()).second) {
      Fail(absl::StrCat("job ", id, " was accepted twice"));
    }
    CheckJob(coordinator, job);
    if (!large) CheckPlacement(coordinator, job);
  }
  if (world_->options.queue) world_->queue_checker.AfterStep(coordinator);
}

// One that stays would be carried out again by the next coordinator.
void Checker::CheckRequests(const CoordinatorProcess& coordinator) {
  if (!coordinator.HasWrittenAll()) return;
  for (const auto& [key, value] : world_->disk.rows) {
    if (!coordinator::IsRequestRow(key)) continue;
    Fail(absl::StrCat("request ", key, " was carried out and is still in the journal"));
  }
}

void Checker::CheckPace(const std::string& job_id, Told& told) {
  const absl::Time now = world_->timeline.now();
  if (now - told.paced_since > absl::Seconds(1)) {
    told.paced_since = now;
    told.paced_from = told.formed;
  }
  if (told.formed - told.paced_from <= kMostGenerations) return;
  Fail(absl::StrCat("job ", job_id, " begins one generation after another"));
}

void Checker::CheckMembers(const Job& job) {
  const int64_t number = job.generation.message.generation();
  Told& told = told_[job.id];
  if (number <= told.formed) return;
  told.formed = number;
  CheckPace(job.id, told);
  for (const Slot& slot : job.slots) {
    if (!slot.worker || !slot.worker->dead() || !coordinator::IsMember(job, *slot.worker)) continue;
    Fail(absl::StrCat("generation ", number, " of job ", job.id, " begins with ",
                      slot.worker->incarnation, ", which is dead"));
  }
}

void Checker::CheckJob(const CoordinatorProcess&, const Job& job) {
  CheckMembers(job);
  CheckPlaces(job);
  CheckCosts(job);
  SimulatedJob& simulated = world_->JobOf(job.id);
  const auto look = [&](const Worker& worker) {
    if (worker.verdict.empty()) return;
    // A verdict that was not written when a coordinator died may be another one for the next.
    if (!judged_.emplace(worker.incarnation, worker.node_lost).second) return;
    NoteSilence(worker, simulated);
    CheckVerdict(worker);
  };
  for (const Slot& slot : job.slots) {
    if (slot.worker) look(*slot.worker);
  }
  for (const Worker& worker : job.former) look(worker);
  if (job.restarts > simulated.own_failures) {
    Fail(absl::StrCat("job ", job.id, " has spent ", job.restarts, " restarts and had ",
                      simulated.own_failures, " failures of its own: ", world_->Standing(job.id)));
  }
}

void Checker::CheckPlaces(const Job& job) {
  if (job.state == PENDING || job.final() || job.ending || job.drain) return;
  for (size_t place = 0; place < job.slots.size(); ++place) {
    if (!job.slots[place].works() || !job.slots[place].vacant()) continue;
    Fail(absl::StrCat("place ", place, " of job ", job.id, " is to work and nobody is to come"));
  }
}

void Checker::CheckCosts(const Job& job) {
  for (const Fault& fault : job.faults) {
    double last = fault.detect_ms();
    for (const double time :
         {fault.rendezvous_ms(), fault.restore_ms(), fault.to_next_step_ms(), fault.replay_ms()}) {
      if (time == 0) continue;  // not known
      if (time < last) {
        Fail(absl::StrCat("a failure of job ", job.id,
                          " took times that do not follow each other: ", fault.ShortDebugString()));
      }
      last = time;
    }
  }
}

void Checker::CheckVerdict(const Worker& worker) {
  const bool is_meant = absl::StartsWith(worker.verdict, "no heartbeat") ||
                        absl::StartsWith(worker.verdict, "no progress") ||
                        absl::StartsWith(worker.verdict, "did not leave") ||
                        absl::StartsWith(worker.verdict, "its connections ended");
  if (!is_meant) return;
  const std::string job_id = worker.incarnation.substr(0, worker.incarnation.find('.'));
  for (const WorkerProcess* process : alive_[job_id]) {
    if (process->incarnation() != worker.incarnation) continue;
    if (process->Ails()) {
      // However long that took: the job is healed, or ends, from here on.
      SimulatedJob& job = world_->JobOf(job_id);
      job.disturbed = std::max(job.disturbed, world_->timeline.now() + absl::Seconds(60));
      continue;
    }
    Fail(absl::StrCat(worker.incarnation, " is well, and judged: ", worker.verdict));
  }
}

void Checker::NoteSilence(const Worker& worker, SimulatedJob& job) {
  if (worker.node_lost || !absl::StartsWith(worker.verdict, "no heartbeat")) return;
  const auto heard = worker_heard_.find(worker.incarnation);
  if (heard == worker_heard_.end()) return;
  // Before its node was back it could not speak. In a large cluster the verdict is seen too late
  // for that.
  const auto node = back_.find(worker.node_id);
  const bool known = node != back_.end() && !world_->IsLarge();
  const absl::Time back = known ? node->second : absl::InfinitePast();
  const absl::Time since = std::max(heard->second, back);
  const absl::Duration silent = world_->timeline.now() - since;
  if (silent < world_->options.detection && since > heard->second && IsSteadySince(heard->second)) {
    return Fail(absl::StrCat(worker.incarnation, " is judged ", absl::FormatDuration(silent),
                             " after its node was back: ", worker.verdict));
  }
  ++job.own_failures;
}

void Checker::CheckPlacement(const CoordinatorProcess&, const Job& job) {
  const absl::Time now = world_->timeline.now();
  for (const Slot& slot : job.slots) {
    if (slot.vacant() || slot.worker->phase != Worker::Phase::kPlaced) continue;
    const Worker& worker = *slot.worker;
    if (!placed_.insert(absl::StrCat(worker.incarnation, " ", worker.node_id)).second) continue;
    if (now <= unsteady_) continue;
    const auto heard = heard_.find(worker.node_id);
    const absl::Duration most = world_->options.limits.node_silent_after + absl::Seconds(1);
    if (heard == heard_.end() || now - heard->second > most) {
      Fail(
          absl::StrCat(worker.incarnation, " is started on ", worker.node_id, ", which is silent"));
    }
  }
}

void Checker::OnTold(const CoordinatorProcess& coordinator, const coordinator::Append& append) {
  if (!append.event.has_state()) return;
  const JobState state = append.event.state().state();
  world_->Say(
      absl::StrCat(append.job_id, " ", JobState_Name(state), ": ", append.event.state().reason()));
  const bool is_final = job::IsFinal(state);
  // One that was replaced and does not know it yet may still say why a job waits, as no row says
  // so.
  if (!is_final && !world_->IsCurrent(coordinator)) return;
  Told& told = told_[append.job_id];
  if (told.final != JOB_STATE_UNSPECIFIED && state != told.final) {
    Fail(absl::StrCat("job ", append.job_id, " was ", JobState_Name(told.final), " and is now ",
                      JobState_Name(state)));
  }
  if (!is_final) return;
  told.final = state;
  CheckEnd(append.job_id, state, append.event.state().reason());
}

void Checker::CheckEnd(const std::string& job_id, JobState state, const std::string& reason) {
  if (state == SUCCEEDED && !told_[job_id].model) {
    Fail(absl::StrCat("job ", job_id, " succeeded without a model"));
  }
  const SimulatedJob& job = world_->JobOf(job_id);
  const bool poison = absl::StrContains(reason, "before the first step once before");
  const int budget = job.request.spec().restart().max_restarts();
  if (state == CANCELLED && job.cancelled) return;
  if (state == CANCELLED && job.waits_for_success) {
    const JobState other = told_[world_->jobs[static_cast<size_t>(job.waits_for)].accepted].final;
    if (other == FAILED || other == CANCELLED) return;
  }
  if (state != SUCCEEDED && !(poison && job.own_failures > 1) && job.own_failures <= budget) {
    Fail(absl::StrCat("job ", job_id, " ended as ", JobState_Name(state), ": ", reason));
  }
}

void Checker::OnHeard(const AgentMessage& message, const Process& client) {
  const absl::Time now = world_->timeline.now();
  absl::Time& heard = heard_.try_emplace(client.host()->name, now).first->second;
  if (now - heard > world_->options.limits.node_silent_after) back_[client.host()->name] = now;
  heard = now;
  if (!message.has_log()) return;
  const auto& agent = static_cast<const AgentProcess&>(client);
  const int64_t line = message.log().lines().slot();
  // Of one that has died it is not known what was taken.
  if (!agent.alive() || agent.HasWrittenBefore(line)) return;
  Fail(absl::StrCat("line ", line, " of the workers on ", client.host()->name,
                    " came, and an older one was left out"));
}

void Checker::OnHeard(const WorkerMessage& message, const Process&) {
  worker_heard_[message.incarnation()] = world_->timeline.now();
}

void Checker::OnShown(const std::string& job_id, JobState final) { told_[job_id].final = final; }

void Checker::OnAccepted(const std::string& job_id) { accepted_.insert(job_id); }

void Checker::OnAgentActs(const std::string& what) {
  if (in_old_command_) Fail(absl::StrCat("an agent ", what, " for a coordinator that is over"));
}

void Checker::OnEndedByAgent(const WorkerProcess& worker) {
  const auto told = told_.find(worker.job_id());
  const bool over = told != told_.end() && told->second.final != JOB_STATE_UNSPECIFIED;
  // What has nothing yet begins anew elsewhere when its node is drained.
  const auto drains = drains_.find(worker.host()->name);
  const bool moves = drains != drains_.end() && drains->second > 0 && !worker.has_state();
  if (over || moves || worker.finished() || Disturbed(worker.job_id())) return;
  const SimulatedJob& job = world_->JobOf(worker.job_id());
  if (job.cancelled || (job.scaled && IsLetGo(worker))) return;
  if (world_->options.queue && (IsPreempted(worker) || IsLetGo(worker))) return;
  Fail(absl::StrCat(worker.incarnation(), " is ended, and nothing ails it"));
}

// Its job stops for another one, or has done so.
bool Checker::IsPreempted(const WorkerProcess& worker) const {
  if (world_->coordinator == nullptr || !world_->coordinator->begun()) return true;
  const auto job = world_->coordinator->state().jobs.find(worker.job_id());
  return job != world_->coordinator->state().jobs.end() &&
         (job->second.preempted || job->second.preemptions > 0);
}

// Its job was scaled down; while there is no coordinator that is not known.
bool Checker::IsLetGo(const WorkerProcess& worker) const {
  if (world_->coordinator == nullptr || !world_->coordinator->begun()) return true;
  const auto job = world_->coordinator->state().jobs.find(worker.job_id());
  if (job == world_->coordinator->state().jobs.end()) return true;
  const Worker* const known = Find(job->second, worker.incarnation());
  return known == nullptr || !known->serves() || known->leaving();
}

void Checker::OnStart(WorkerProcess& worker) {
  alive_[worker.job_id()].insert(&worker);
  SimulatedJob& job = world_->JobOf(worker.job_id());
  if (worker.host()->disturbed > world_->timeline.now()) {
    job.disturbed = std::max(job.disturbed, worker.host()->disturbed);
  }
}

void Checker::OnDeath(WorkerProcess& worker) {
  alive_[worker.job_id()].erase(&worker);
  const SimulationOptions& options = world_->options;
  const SimulatedJob& job = world_->JobOf(worker.job_id());
  const bool others_may = options.queue || options.drains || job.scaled > 0 || job.cancelled > 0;
  Told& told = told_[worker.job_id()];
  if (others_may || MayBeGivenUp(worker) || worker.committed() <= told.ended_with) return;
  told.ended_with = worker.committed();
  told.ended = worker.incarnation();
}

bool Checker::MayBeGivenUp(const WorkerProcess& worker) const {
  const auto& agent = world_->agents[static_cast<size_t>(worker.host()->number)];
  return worker.IsGivenUp() || agent == nullptr || agent->leaves();
}

void Checker::OnObeyed(const std::string& incarnation, int64_t highest, int64_t epoch) {
  if (epoch < highest) {
    Fail(absl::StrCat(incarnation, " obeys epoch ", epoch, " and knows of ", highest));
  }
}

void Checker::OnGenerationTold(const std::string& job_id, int64_t generation) {
  Told& told = told_[job_id];
  told.generation = std::max(told.generation, generation);
}

void Checker::OnAbortTold(const std::string& job_id, int64_t generation) {
  Told& told = told_[job_id];
  told.aborted = std::max(told.aborted, generation);
}

void Checker::CheckSameGeneration(const std::string& job_id, const Generation& one,
                                  const Generation& other) {
  const std::string names = Names(one);
  const std::string other_names = Names(other);
  if (names == other_names) return;
  Fail(absl::StrCat("generation ", one.generation(), " of ", job_id, " is ", names, " and ",
                    other_names));
}

int64_t Checker::StartOf(const Generation& generation,
                         const std::vector<const WorkerProcess*>& members) {
  const int64_t start = generation.start_step();
  for (const WorkerProcess* member : members) {
    if (!member->has_state()) continue;
    if (member->committed() > start || member->committed() < start - 1) {
      Fail(absl::StrCat(member->incarnation(), " has step ", member->committed(),
                        " and its generation begins after ", start));
    }
  }
  return start;
}

void Checker::OnCommit(const WorkerProcess& worker, int64_t generation, int64_t before,
                       int64_t step) {
  if (step != before + 1) {
    Fail(absl::StrCat(worker.incarnation(), " commits step ", step, " after ", before));
  }
  Told& told = told_[worker.job_id()];
  if (generation < told.committing && !Disturbed(worker.job_id())) {
    Fail(absl::StrCat(worker.incarnation(), " commits step ", step, " in generation ", generation,
                      " and generation ", told.committing, " does so too"));
  }
  told.committing = std::max(told.committing, generation);
  if (step > told.newest_step) told.stepped = world_->timeline.now();
  told.newest_step = std::max(told.newest_step, step);
}

void Checker::OnEnter(const std::string& job_id, int64_t generation, int64_t step) {
  Told& told = told_[job_id];
  const auto fail = [&](const std::string& who, int64_t has) {
    Fail(absl::StrCat("generation ", generation, " of ", job_id, " begins after step ", step,
                      " and ", who, " has ", has));
  };
  if (generation < told.generation) return;  // it was cut off, and comes late
  for (const WorkerProcess* worker : alive_[job_id]) {
    if (worker->committed() <= step + 1 || MayBeGivenUp(*worker)) continue;
    fail(worker->incarnation(), worker->committed());
  }
  if (told.ended_with > step + 1)
    fail(absl::StrCat(told.ended, ", which was ended,"), told.ended_with);
  told.ended_with = -1;
  if (step >= told.newest_step || told.stepped <= world_->JobOf(job_id).disturbed) return;
  Fail(absl::StrCat("generation ", generation, " of ", job_id, " begins after step ", step, " and ",
                    told.newest_step, " was done, and no fault since explains it"));
}

bool Checker::IsSteadySince(absl::Time then) const {
  return world_->coordinator != nullptr && world_->coordinator->begun() &&
         !world_->coordinator->stopped() && unsteady_ < then;
}

void Checker::OnModel(const std::string& job_id, int64_t step, bool drained) {
  if (!drained && step != world_->JobOf(job_id).steps) {
    Fail(absl::StrCat("the model of ", job_id, " is that of step ", step));
  }
  told_[job_id].model = true;
}

void Checker::AtEnd() {
  for (const SimulatedJob& job : world_->jobs) {
    if (job.accepted.empty()) {
      Fail(absl::StrCat("job ", job.name, " was never accepted"));
      continue;
    }
    // What was being said when a coordinator died is asked for.
    const auto known = world_->coordinator->state().jobs.find(job.accepted);
    const bool ended = known != world_->coordinator->state().jobs.end() && known->second.final();
    if (ended) CheckEnd(job.accepted, known->second.state, known->second.reason);
    if (!ended && told_[job.accepted].final == JOB_STATE_UNSPECIFIED) {
      Fail(absl::StrCat("job ", job.accepted, " does not end: ", world_->Standing(job.accepted)));
    }
    for (const WorkerProcess* worker : alive_[job.accepted]) {
      Fail(absl::StrCat(worker->incarnation(), " is left over: ", world_->Standing(job.accepted)));
    }
  }
  world_->queue_checker.AtEnd(*world_->coordinator);
}

}  // namespace lockstep::simulation
