// SPDX-License-Identifier: Apache-2.0
#include "coordinator/outbox/batch.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace lockstep::coordinator {
namespace {

template <typename T>
void MoveAll(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

// Keeps the elements for which `keep` holds, asked from the last to the first.
template <typename T, typename Keep>
void KeepFromBack(std::vector<T>& all, Keep keep) {
  std::vector<T> kept;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (keep(*it)) kept.push_back(std::move(*it));
  }
  std::reverse(kept.begin(), kept.end());
  all = std::move(kept);
}

// One wish and one acknowledgement of everything for each connection.
void CompactAgents(std::vector<ToAgent>& messages) {
  std::set<SessionId> wished;
  std::map<SessionId, std::set<std::string>> acknowledged;
  for (const ToAgent& message : messages) {
    const auto& ids = message.command.acknowledged().worker_incarnations();
    if (!ids.empty()) acknowledged[message.session].insert(ids.begin(), ids.end());
  }
  KeepFromBack(messages, [&](ToAgent& message) {
    if (message.command.has_desired()) return wished.insert(message.session).second;
    if (!message.command.has_acknowledged()) return true;
    const auto found = acknowledged.find(message.session);
    if (found == acknowledged.end()) return false;
    auto& ids = *message.command.mutable_acknowledged()->mutable_worker_incarnations();
    ids.Assign(found->second.begin(), found->second.end());
    acknowledged.erase(found);
    return true;
  });
}

void CompactEvents(std::vector<Append>& events) {
  std::map<std::string, size_t> kept;
  std::set<std::string> progress;
  KeepFromBack(events, [&](const Append& append) {
    if (append.event.has_progress()) return progress.insert(append.job_id).second;
    return ++kept[append.job_id] <= Batch::kMaxEvents;
  });
}

}  // namespace

void Batch::Add(Effects added, int64_t ticket, bool durable, absl::Time now) {
  since = std::min(since, now);
  if (ticket != 0) {
    answers.push_back({ticket, std::move(added.reply), std::move(added.submitted),
                       std::move(added.scaled), durable});
  }
  AppendEffects(effects, std::move(added));
  CompactWhenLarge();
}

void Batch::Add(WaitingRequest request, absl::Time now) {
  since = std::min(since, now);
  requests.push_back(std::move(request));
}

void Batch::Append(Batch later) {
  since = std::min(since, later.since);
  AppendEffects(effects, std::move(later.effects));
  MoveAll(later.answers, answers);
  MoveAll(later.requests, requests);
  MoveAll(later.shown, shown);
  CompactWhenLarge();
}

std::vector<Row> Batch::RowsToWrite() const {
  std::vector<Row> rows = effects.rows;
  for (const WaitingRequest& request : requests) rows.push_back(request.row);
  return rows;
}

bool Batch::empty() const { return !HasRows() && answers.empty() && shown.empty() && Size() == 0; }

void Batch::DropAgent(SessionId session) {
  std::erase_if(effects.to_agents, [session](const ToAgent& m) { return m.session == session; });
}

void Batch::DropWorker(SessionId session) {
  std::erase_if(effects.to_workers, [session](const ToWorker& m) { return m.session == session; });
}

size_t Batch::Size() const {
  return effects.rows.size() + effects.to_agents.size() + effects.to_workers.size() +
         effects.events.size() + effects.forgotten_jobs.size();
}

void Batch::CompactWhenLarge() {
  if (Size() < compact_at_) return;
  std::set<std::string> keys;
  KeepFromBack(effects.rows, [&](const Row& row) { return keys.insert(row.key).second; });
  CompactAgents(effects.to_agents);
  std::set<std::pair<SessionId, int>> told;
  KeepFromBack(effects.to_workers, [&](const ToWorker& message) {
    return told.emplace(message.session, message.command.command_case()).second;
  });
  CompactEvents(effects.events);
  compact_at_ = std::max(kMaxEvents, 2 * Size());
}

}  // namespace lockstep::coordinator
