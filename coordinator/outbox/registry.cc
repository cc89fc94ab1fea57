// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::coordinator {
namespace {

template <typename Messages, typename Outlets>
void Enqueue(Messages& messages, const Outlets& outlets, Registry::Writers& writers) {
  for (auto& message : messages) {
    const auto found = outlets.find(message.session);
    if (found == outlets.end()) continue;
    found->second->Enqueue(std::move(message));
    writers.push_back(found->second);
  }
  messages.clear();
}

}  // namespace

SessionId Registry::AddAgent(std::shared_ptr<Outlet<ToAgent>> outlet) {
  agents_[++last_session_] = std::move(outlet);
  return last_session_;
}

SessionId Registry::AddWorker(std::shared_ptr<Outlet<ToWorker>> outlet) {
  workers_[++last_session_] = std::move(outlet);
  return last_session_;
}

std::shared_ptr<Outlet<ToAgent>> Registry::AgentAt(SessionId session) const {
  const auto found = agents_.find(session);
  return found == agents_.end() ? nullptr : found->second;
}

Registry::Writers Registry::Deliver(Outgoing& outgoing) {
  Writers writers;
  Enqueue(outgoing.to_agents, agents_, writers);
  Enqueue(outgoing.to_workers, workers_, writers);
  for (coordinator::Append& append : outgoing.events) {
    Append(append.job_id, std::move(append.event));
    AddFollowersTo(append.job_id, writers);
  }
  outgoing.events.clear();
  for (const std::string& id : outgoing.forgotten_jobs) {
    logs_.Forget(id);
    AddFollowersTo(id, writers);  // who follows it still is told that it is not there
  }
  outgoing.forgotten_jobs.clear();
  std::sort(writers.begin(), writers.end());
  writers.erase(std::unique(writers.begin(), writers.end()), writers.end());
  return writers;
}

void Registry::Append(const std::string& job_id, JobEvent event) {
  logs_.Append(job_id, std::move(event));
}

void Registry::AddFollowersTo(const std::string& job_id, Writers& writers) const {
  const auto found = followers_.find(job_id);
  if (found == followers_.end()) return;
  writers.insert(writers.end(), found->second.begin(), found->second.end());
}

absl::StatusOr<Registry::Next> Registry::NextEvent(const std::string& job_id, FollowerPlace& place,
                                                   bool logs) const {
  const EventLog* const log = logs_.Find(job_id);
  if (log == nullptr) return absl::NotFoundError(absl::StrCat("there is no job ", job_id));
  if (!place.waits && !place.end.has_value()) place.end = log->last_sequence();
  Next next;
  if (!place.end.has_value() || place.sequence < *place.end) next.event = log->After(place, logs);
  next.ended = next.event == nullptr && (log->ended() || !place.waits);
  return next;
}

void Registry::AddFollower(const std::string& job_id, std::shared_ptr<StreamWriter> follower) {
  followers_[job_id].insert(std::move(follower));
}

void Registry::RemoveFollower(const std::string& job_id,
                              const std::shared_ptr<StreamWriter>& follower) {
  const auto found = followers_.find(job_id);
  if (found == followers_.end()) return;
  found->second.erase(follower);
  if (found->second.empty()) followers_.erase(found);
}

}  // namespace lockstep::coordinator
