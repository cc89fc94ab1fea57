// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/hub.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/log.h"
#include "common/status.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {
namespace {

// A coordinator's events are numbered within so many bits.
constexpr int kLifeShift = 40;

// Six letters and digits that are not mistaken for one another.
std::string RandomId() {
  static constexpr char kAlphabet[] = "23456789abcdefghjkmnpqrstuvwxyz";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 6; ++i) id += kAlphabet[random() % (sizeof(kAlphabet) - 1)];
  return id;
}

// A run on one machine tells its user itself.
bool IsPrivate(const State& state, const Job& job) {
  return std::any_of(state.nodes.begin(), state.nodes.end(), [&](const auto& node) {
    return node.second.is_private && node.second.private_job == job.id;
  });
}

// What followers of a job that was there before this coordinator begin with.
std::vector<JobEvent> WhereItStands(const State& state, const Job& job, absl::Time now) {
  std::vector<JobEvent> events;
  if (!job.final() && !job.slots.empty() && !IsPrivate(state, job)) {
    events.emplace_back().set_notice(
        absl::StrCat("the coordinator was started again and goes on from its journal; what the ",
                     "workers printed before is in ", job.run_dir, "/logs"));
  }
  *events.emplace_back().mutable_state() = DescribeJob(state, job.id, now)->status();
  for (JobEvent& event : events) *event.mutable_time() = ToProto(now);
  return events;
}

}  // namespace

Hub::Hub(Clock* clock, Store* store, State state, int64_t life)
    : clock_(clock),
      store_(store),
      first_sequence_((life - 1) << kLifeShift),
      state_(std::move(state)) {
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, job] : state_.jobs) {
      EventLog& log = logs_.try_emplace(id, first_sequence_).first->second;
      for (JobEvent& event : WhereItStands(state_, job, clock_->Now()))
        log.Append(std::move(event));
    }
    if (!state_.jobs.empty()) wake_at_ = clock_->Now();
  }
  journal_ = Thread("coord-journal", [this] { RunJournal(); });
  ticker_ = Thread("coord-ticker", [this] { RunTicker(); });
}

Hub::~Hub() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    wake_changed_ = true;
  }
  ticker_.Join();
  journal_.Join();
}

void Hub::Calls::Make() {
  for (const auto& pump : pumps) pump->Pump();
  for (auto& [done, reply] : answers) {
    if (done) done(std::move(reply));
  }
}

void Hub::RunTicker() {
  for (;;) {
    Calls calls;
    {
      absl::MutexLock lock(&mu_);
      const absl::Duration wait = wake_at_ - clock_->Now();
      if (wait > absl::ZeroDuration()) {
        mu_.AwaitWithTimeout(absl::Condition(&wake_changed_), wait);
      }
      wake_changed_ = false;
      if (stopping_) return;
      if (clock_->Now() >= wake_at_) StepLocked(Tick{}, nullptr, calls);
    }
    calls.Make();
  }
}

void Hub::RunJournal() {
  for (;;) {
    Batch batch;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Hub::HasWork));
      if (queued_.effects.rows.empty()) return;
      batch = std::exchange(queued_, {});
      writing_ = true;
    }
    std::vector<Put> puts;
    for (const Row& row : batch.effects.rows) puts.push_back({row.key, row.value, -1, row.erased});
    const absl::Status saved = store_->PutBatch(puts).status();
    Calls calls;
    bool end = false;
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (saved.ok()) {
        if (std::exchange(failing_, false)) {
          LS_LOG_WARNING << "the journal is written again";
        }
        Tell(std::move(batch), calls);
        if (queued_.effects.rows.empty()) Tell(std::exchange(queued_, {}), calls);
      } else {
        HoldBack(std::move(batch), saved, calls);
        end = stopping_;
      }
    }
    calls.Make();
    if (end) return;
  }
}

// Nothing of `batch` and of the steps after it is saved, and they are not told.
void Hub::HoldBack(Batch batch, const absl::Status& why, Calls& calls) {
  if (!std::exchange(failing_, true)) {
    LS_LOG_ERROR << "cannot write the journal, nobody is told anything: " << why.message();
  }
  AppendEffects(batch.effects, std::move(queued_.effects));
  std::move(queued_.answers.begin(), queued_.answers.end(), std::back_inserter(batch.answers));
  SaveFailed(state_, batch.effects, clock_->Now());
  // Old progress interests nobody.
  std::erase_if(batch.effects.events, [](const Append& a) { return a.event.has_progress(); });
  for (Answer& answer : batch.answers) {
    if (!answer.second.status.ok()) continue;
    answer.second.status = Annotate(why, "the coordinator's journal cannot be written");
  }
  WakeAt(std::min(wake_at_, batch.effects.wake_at));
  calls.answers = std::move(batch.answers);
  queued_ = Batch();
  queued_.effects = std::move(batch.effects);
}

void Hub::Tell(Batch batch, Calls& calls) {
  Pumps& pumps = calls.pumps;
  for (ToAgent& message : batch.effects.to_agents) {
    const auto found = agents_.find(message.session);
    if (found == agents_.end()) continue;
    found->second->Enqueue(std::move(message.command), message.close);
    pumps.push_back(found->second);
  }
  for (ToWorker& message : batch.effects.to_workers) {
    const auto found = workers_.find(message.session);
    if (found == workers_.end()) continue;
    found->second->Enqueue(std::move(message.command), message.close);
    pumps.push_back(found->second);
  }
  for (Append& append : batch.effects.events) {
    if (append.event.has_state()) {
      LS_LOG_INFO << "job " << append.job_id << " " << JobState_Name(append.event.state().state())
                  << ": " << append.event.state().reason();
    }
    logs_.try_emplace(append.job_id, first_sequence_).first->second.Append(std::move(append.event));
    const auto found = followers_.find(append.job_id);
    if (found == followers_.end()) continue;
    pumps.insert(pumps.end(), found->second.begin(), found->second.end());
  }
  for (const std::string& id : batch.effects.forgotten_jobs) {
    logs_.erase(id);
    // Who follows it still is told that it is not there.
    const auto found = followers_.find(id);
    if (found != followers_.end()) {
      pumps.insert(pumps.end(), found->second.begin(), found->second.end());
    }
  }
  std::sort(pumps.begin(), pumps.end());
  pumps.erase(std::unique(pumps.begin(), pumps.end()), pumps.end());
  std::move(batch.answers.begin(), batch.answers.end(), std::back_inserter(calls.answers));
}

void Hub::WakeAt(absl::Time time) {
  if (time == wake_at_) return;
  wake_changed_ |= time < wake_at_;
  wake_at_ = time;
}

void Hub::StepLocked(const Event& event, Done done, Calls& calls) {
  Effects effects = Step(state_, event, clock_->Now());
  WakeAt(effects.wake_at);
  queued_.answers.emplace_back(
      std::move(done),
      Reply{std::move(effects.reply), std::move(effects.submitted), std::move(effects.scaled)});
  AppendEffects(queued_.effects, std::move(effects));
  if (queued_.effects.rows.empty() && !writing_) Tell(std::exchange(queued_, {}), calls);
}

void Hub::Post(const Event& event, Done done) {
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    StepLocked(event, std::move(done), calls);
  }
  calls.Make();
}

Hub::Reply Hub::Handle(const Event& event) {
  absl::Notification there;
  Reply reply;
  Post(event, [&](Reply given) {
    reply = std::move(given);
    there.Notify();
  });
  there.WaitForNotification();
  return reply;
}

void Hub::Submit(const SubmitJobRequest& request, Done done) {
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    std::string id = RandomId();
    while (state_.jobs.count(id) != 0) id = RandomId();
    StepLocked(Submitted{id, request}, std::move(done), calls);
  }
  calls.Make();
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
  Post(AgentGone{session});
}

void Hub::RemoveWorker(SessionId session) {
  {
    absl::MutexLock lock(&mu_);
    if (workers_.erase(session) == 0) return;
  }
  Post(WorkerGone{session});
}

absl::StatusOr<DescribeJobResponse> Hub::Describe(const std::string& job_id) {
  absl::MutexLock lock(&mu_);
  return DescribeJob(state_, job_id, clock_->Now());
}

ListJobsResponse Hub::List(bool include_ended) {
  absl::MutexLock lock(&mu_);
  return ListJobs(state_, include_ended, clock_->Now());
}

GetClusterResponse Hub::Cluster() {
  absl::MutexLock lock(&mu_);
  return GetCluster(state_, clock_->Now());
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
