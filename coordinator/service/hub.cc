// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/hub.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status.h"

namespace lockstep::coordinator {
namespace {

// Six letters and digits that are not mistaken for one another.
std::string RandomId() {
  static constexpr char kAlphabet[] = "23456789abcdefghjkmnpqrstuvwxyz";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 6; ++i) id += kAlphabet[random() % (sizeof(kAlphabet) - 1)];
  return id;
}

void PumpAll(const std::vector<std::shared_ptr<Pumped>>& pumps) {
  for (const auto& pump : pumps) pump->Pump();
}

// What followers of a job that was there before this coordinator begin with.
JobEvent WhereItStands(const State& state, const std::string& job_id) {
  JobEvent event;
  *event.mutable_state() = DescribeJob(state, job_id)->status();
  return event;
}

template <typename T>
void AppendTo(std::vector<T>& all, std::vector<T>& more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Hub::Hub(Clock* clock, Store* store, State state)
    : clock_(clock), store_(store), state_(std::move(state)) {
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, job] : state_.jobs) {
      logs_[id].Append(WhereItStands(state_, id));
    }
    if (!state_.jobs.empty()) wake_at_ = clock_->Now();
  }
  ticker_ = Thread("coord-ticker", [this] { RunTicker(); });
}

Hub::~Hub() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    wake_changed_ = true;
  }
  ticker_.Join();
}

void Hub::RunTicker() {
  for (;;) {
    Pumps pumps;
    {
      absl::MutexLock lock(&mu_);
      const absl::Duration wait = wake_at_ - clock_->Now();
      if (wait > absl::ZeroDuration()) {
        mu_.AwaitWithTimeout(absl::Condition(&wake_changed_), wait);
      }
      wake_changed_ = false;
      if (stopping_) return;
      if (clock_->Now() >= wake_at_) StepLocked(Tick{}, pumps);
    }
    PumpAll(pumps);
  }
}

absl::Status Hub::Save(const Effects& effects) {
  if (effects.rows.empty()) return absl::OkStatus();
  std::vector<Put> puts;
  for (const Row& row : effects.rows) puts.push_back({row.key, row.value});
  return store_->PutBatch(puts).status();
}

void Hub::HoldBack(Effects& effects) {
  AppendTo(held_.to_agents, effects.to_agents);
  AppendTo(held_.to_workers, effects.to_workers);
  AppendTo(held_.events, effects.events);
}

void Hub::Tell(Effects effects, Pumps& pumps) {
  for (ToAgent& message : effects.to_agents) {
    const auto found = agents_.find(message.session);
    if (found == agents_.end()) continue;
    found->second->Enqueue(std::move(message.command), message.close);
    pumps.push_back(found->second);
  }
  for (ToWorker& message : effects.to_workers) {
    const auto found = workers_.find(message.session);
    if (found == workers_.end()) continue;
    found->second->Enqueue(std::move(message.command), message.close);
    pumps.push_back(found->second);
  }
  for (Append& append : effects.events) {
    if (append.event.has_state()) {
      LS_LOG_INFO << "job " << append.job_id << " " << JobState_Name(append.event.state().state())
                  << ": " << append.event.state().reason();
    }
    logs_[append.job_id].Append(std::move(append.event));
    const auto found = followers_.find(append.job_id);
    if (found == followers_.end()) continue;
    pumps.insert(pumps.end(), found->second.begin(), found->second.end());
  }
  std::sort(pumps.begin(), pumps.end());
  pumps.erase(std::unique(pumps.begin(), pumps.end()), pumps.end());
}

Hub::Reply Hub::StepLocked(const Event& event, Pumps& pumps) {
  const absl::Time now = clock_->Now();
  Effects effects = Step(state_, event, now);
  const absl::Status saved = Save(effects);
  if (!saved.ok()) {
    LS_LOG_ERROR << "cannot write the journal, nobody is told anything: " << saved.message();
    SaveFailed(state_, effects, now);
    if (effects.reply.ok()) {
      effects.reply = Annotate(saved, "the coordinator's journal cannot be written");
    }
  }
  if (effects.wake_at != wake_at_) {
    wake_changed_ = effects.wake_at < wake_at_;
    wake_at_ = effects.wake_at;
  }
  Reply reply = {std::move(effects.reply), std::move(effects.submitted), std::move(effects.scaled)};
  if (!saved.ok()) {  // old progress interests nobody
    std::erase_if(effects.events, [](const Append& a) { return a.event.has_progress(); });
  }
  HoldBack(effects);
  if (saved.ok()) Tell(std::exchange(held_, {}), pumps);
  return reply;
}

Hub::Reply Hub::Handle(const Event& event) {
  Pumps pumps;
  Reply reply;
  {
    absl::MutexLock lock(&mu_);
    reply = StepLocked(event, pumps);
  }
  PumpAll(pumps);
  return reply;
}

absl::StatusOr<SubmitJobResponse> Hub::Submit(const SubmitJobRequest& request) {
  Pumps pumps;
  Reply reply;
  {
    absl::MutexLock lock(&mu_);
    std::string id = RandomId();
    while (state_.jobs.count(id) != 0) id = RandomId();
    reply = StepLocked(Submitted{id, request}, pumps);
  }
  PumpAll(pumps);
  if (!reply.status.ok()) return reply.status;
  return std::move(reply.submitted);
}

SessionId Hub::AddAgent(std::shared_ptr<Outlet<AgentCommand>> outlet) {
  absl::MutexLock lock(&mu_);
  agents_[++last_session_] = std::move(outlet);
  return last_session_;
}

SessionId Hub::AddWorker(std::shared_ptr<Outlet<WorkerCommand>> outlet) {
  absl::MutexLock lock(&mu_);
  workers_[++last_session_] = std::move(outlet);
  return last_session_;
}

void Hub::RemoveAgent(SessionId session) {
  {
    absl::MutexLock lock(&mu_);
    if (agents_.erase(session) == 0) return;
  }
  Handle(AgentGone{session});
}

void Hub::RemoveWorker(SessionId session) {
  {
    absl::MutexLock lock(&mu_);
    if (workers_.erase(session) == 0) return;
  }
  Handle(WorkerGone{session});
}

absl::StatusOr<DescribeJobResponse> Hub::Describe(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  return DescribeJob(state_, job_id);
}

ListJobsResponse Hub::List(bool include_ended) {
  absl::MutexLock lock(&mu_);
  return ListJobs(state_, include_ended);
}

GetClusterResponse Hub::Cluster() {
  absl::MutexLock lock(&mu_);
  return GetCluster(state_);
}

absl::StatusOr<Hub::Next> Hub::NextEvent(const std::string& job_id, int64_t sequence, bool logs) {
  absl::MutexLock lock(&mu_);
  const auto found = logs_.find(job_id);
  if (found == logs_.end()) return absl::NotFoundError(absl::StrCat("there is no job ", job_id));
  Next next;
  next.event = found->second.After(sequence, logs);
  next.ended = next.event == nullptr && found->second.ended();
  return next;
}

void Hub::AddFollower(const std::string& job_id, std::shared_ptr<Pumped> follower) {
  absl::MutexLock lock(&mu_);
  followers_[job_id].insert(std::move(follower));
}

void Hub::RemoveFollower(const std::string& job_id, const std::shared_ptr<Pumped>& follower) {
  absl::MutexLock lock(&mu_);
  const auto found = followers_.find(job_id);
  if (found == followers_.end()) return;
  found->second.erase(follower);
  if (found->second.empty()) followers_.erase(found);
}

}  // namespace lockstep::coordinator
