// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/core_world.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "coordinator/core/accounting.h"
#include "coordinator/core/context.h"
#include "coordinator/core/job_record.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/node_record.h"
#include "tests/scenarios/peer_messages.h"
#include "tests/scenarios/requests.h"

namespace lockstep::coordinator {
namespace {

// The rows that say what this state holds, by key.
std::map<std::string, std::string> RowsOf(const State& state) {
  std::map<std::string, std::string> rows;
  for (const auto& [id, node] : state.nodes) {
    rows[absl::StrCat("node/", id)] = Bytes(ToRecord(node));
  }
  for (const auto& [id, job] : state.jobs) {
    rows[absl::StrCat("request/", id)] = Bytes(job.request);
    rows[absl::StrCat("job/", id)] = Bytes(ToRecord(job));
    if (job.generation.message.generation() != 0) {
      rows[absl::StrCat("generation/", id)] = Bytes(job.generation.message);
    }
    for (size_t i = 0; i < job.slots.size(); ++i) {
      const int place = static_cast<int>(i);
      rows[absl::StrCat("worker/", id, "/", place)] = Bytes(ToRecord(job.slots[i], place));
    }
  }
  for (const auto& [day, use] : state.usage) rows[UsageKey(day)] = UsageRow(state, day);
  return rows;
}

}  // namespace

std::vector<std::string> CoreWorld::Do(const Command& command) {
  lines_.clear();
  const std::string& verb = command.verb();
  if (const std::optional<Event> request = ParseRequest(command)) {
    Take(*request);
  } else if (auto answer = Answered(command, state_, now_)) {
    lines_ = *std::move(answer);
  } else if (SetOptions(command, state_.options)) {
    // Nothing is said of that.
  } else if (verb == "health") {
    AgentMessage message;
    message.mutable_heartbeat()->mutable_health()->set_problem(command.text("problem"));
    Take(AgentSaid{sessions_[command.word(0)], message});
  } else if (verb == "agent") {
    Agent(command);
  } else if (verb == "agent-gone") {
    Take(AgentGone{sessions_[command.word(0)]});
  } else if (verb == "agent-leaves") {
    AgentMessage message;
    message.mutable_stopping()->mutable_grace()->set_seconds(command.number("grace", 0));
    Take(AgentSaid{sessions_[command.word(0)], message});
  } else if (verb == "worker-gone") {
    const SessionId newest = sessions_[command.word(0)];
    Take(WorkerGone{command.number("session", newest)});
  } else if (verb == "tick") {
    Tick(command);
  } else if (verb == "pause") {
    now_ += ParseTime(command.word(0));
    Take(coordinator::Tick{});
  } else if (verb == "held") {
    Take(Held{});
  } else if (verb == "released") {
    Take(Released{});
  } else if (verb == "up") {
    Up(command.word(0));
  } else if (verb == "restart") {
    if (!command.word(0).empty()) now_ += ParseTime(command.word(0));  // that it was away
    Restart();
  } else if (verb == "show") {
    lines_ = Overview(state_, now_);
  } else if (!AgentReport(command) && !WorkerReport(command)) {
    lines_.push_back(absl::StrCat("unknown command '", verb, "'"));
  }
  if (lines_.empty()) lines_.push_back("nothing");
  return lines_;
}

void CoreWorld::Take(const Event& event) {
  const Effects effects = Step(state_, event, now_);
  wake_at_ = effects.wake_at;
  for (const Row& row : effects.rows) {
    if (row.erased) {
      rows_.erase(row.key);
    } else {
      rows_[row.key] = row.value;
    }
  }
  if (!effects.reply.ok()) lines_.push_back(absl::StrCat("refused: ", effects.reply.ToString()));
  for (std::string& line : ToText(effects, names_)) lines_.push_back(std::move(line));
  CheckRestored();
}

// Whatever has happened: a coordinator that goes on from the rows knows the same of jobs and nodes.
// AddressSanitizer, for which that takes most of the time, sees it now and then.
void CoreWorld::CheckRestored() {
#ifdef LOCKSTEP_SANITIZE_ADDRESS
  static int64_t steps = 0;
  if (++steps % 8 != 0) return;
#endif
  const absl::StatusOr<State> restored = Rows();
  if (!restored.ok()) {
    lines_.push_back(absl::StrCat("cannot be restored: ", restored.status().ToString()));
    return;
  }
  State connected = *restored;
  // What peers say again when they connect.
  for (auto& [id, node] : connected.nodes) {
    node.session = state_.nodes[id].session;
    node.last_contact = state_.nodes[id].last_contact;
    node.problem = state_.nodes[id].problem;
    node.stopping = state_.nodes[id].stopping;
  }
  for (auto& [id, job] : connected.jobs) {
    const std::vector<Slot>& slots = state_.jobs[id].slots;
    for (size_t i = 0; i < std::min(slots.size(), job.slots.size()); ++i) {
      if (job.slots[i].worker && slots[i].worker) {
        job.slots[i].worker->ready = slots[i].worker->ready;
      }
    }
  }
  const Lines now = Overview(state_, now_), then = Overview(connected, now_);
  for (size_t i = 0; i < std::max(now.size(), then.size()); ++i) {
    const std::string is = i < now.size() ? now[i] : "", was = i < then.size() ? then[i] : "";
    if (is != was) lines_.push_back(absl::StrCat("restored as: ", was, "; not: ", is));
  }
  CheckRows(*restored);
}

// What is restored would be written as it was.
void CoreWorld::CheckRows(State restored) {
  for (auto& [id, job] : restored.jobs) {
    const Job& known = state_.jobs.at(id);
    // Its grace begins anew.
    if (job.preempted && known.preempted) job.preempted->since = known.preempted->since;
    // In a journal of an earlier version a vacant place alone says where it was.
    if (known.left_nodes.empty()) job.left_nodes.clear();
  }
  const std::map<std::string, std::string> again = RowsOf(restored);
  for (const auto& [key, value] : rows_) {
    const auto row = again.find(key);
    if (row == again.end()) {
      lines_.push_back(absl::StrCat("nothing is restored of ", key));
    } else if (row->second != value) {
      lines_.push_back(absl::StrCat("restored otherwise: ", key));
    }
  }
}

absl::StatusOr<State> CoreWorld::Rows() const {
  std::vector<Row> rows;
  for (const auto& [key, value] : rows_) rows.push_back({key, value});
  return coordinator::Restore(rows, state_.options, now_);
}

// The session of a hello: a new one, unless the command names one.
SessionId CoreWorld::Connect(const Command& command) {
  if (command.has("session")) return command.number("session");
  const std::string who = command.word(0);
  ++last_session_;
  names_[last_session_] = absl::StrCat(who, "#", last_session_);
  return sessions_[who] = last_session_;
}

void CoreWorld::Agent(const Command& command) {
  const SessionId session = Connect(command);
  AgentMessage message;
  AgentHello& hello = *message.mutable_hello() = ParseHello(command);
  for (const std::string& worker : command.list("running")) {
    WorkerStarted& running = *hello.add_running();
    running.set_job_id(JobOf(worker));
    running.set_worker_incarnation(Incarnation(worker));
    running.set_pid(PidOf(worker));
  }
  for (const std::string& worker : command.list("ended")) hello.add_ended(Incarnation(worker));
  Take(AgentSaid{.session = session, .message = message, .owner = command.text("owner")});
}

bool CoreWorld::AgentReport(const Command& command) {
  const std::string worker = command.word(0);
  const std::string job_id = JobOf(worker);
  const std::string incarnation = Incarnation(worker);
  AgentMessage message;
  if (!ParseAgentReport(command, incarnation, message)) return false;
  std::string node = command.text("node");
  const auto job = state_.jobs.find(job_id);
  if (node.empty() && job != state_.jobs.end()) {
    Worker* found = nullptr;
    for (Slot& slot : job->second.slots) {
      if (slot.worker && slot.worker->incarnation == incarnation) found = &*slot.worker;
    }
    if (found == nullptr) {
      for (Worker& former : job->second.former) {
        if (former.incarnation == incarnation) found = &former;
      }
    }
    if (found != nullptr) node = found->node_id;
  }
  Take(AgentSaid{sessions_[node], message});
  return true;
}

bool CoreWorld::WorkerReport(const Command& command) {
  const std::string worker = command.word(0);
  WorkerMessage message = From(worker);
  if (command.verb() == "hello") {
    Connect(command);
    message.mutable_hello()->set_pid(command.number("pid", PidOf(worker)));
    message.mutable_hello()->set_protocol_version(static_cast<int>(command.number("version", 1)));
  } else if (command.verb() == "beat") {
    for (size_t i = 0; !command.word(i).empty(); ++i) {
      if (command.word(i) == "stands" || command.word(i) == "first") continue;
      resumed_ = command.number("resumed");
      restored_.reset();
      if (command.has("restored")) restored_ = command.duration("restored", absl::ZeroDuration());
      const SessionId newest = sessions_[command.word(i)];
      Beat(command.word(i), command.number("step"), command.flag("stands"), command.flag("first"),
           command.number("session", newest));
    }
    return true;
  } else if (command.verb() == "does") {
    for (size_t i = 0; !command.word(i).empty(); ++i) {
      if (command.word(i).find('.') != std::string::npos) SetDoing(command.word(i), command);
    }
    return true;
  } else if (!ParseWorkerReport(command, message)) {
    return false;
  }
  Take(WorkerSaid{command.number("session", sessions_[worker]), message});
  return true;
}

void CoreWorld::SetDoing(const std::string& worker, const Command& command) {
  Doing& doing = doings_[worker];
  doing.since = now_;
  WorkerHeartbeat& heartbeat = doing.heartbeat;
  heartbeat.Clear();
  heartbeat.mutable_progress()->set_phase(command.flag("saving")       ? SAVING
                                          : command.flag("loading")    ? LOADING
                                          : command.flag("evaluating") ? EVALUATING
                                                                       : TRAINING);
  heartbeat.mutable_progress()->set_train_seconds(
      absl::ToDoubleSeconds(command.duration("trained", absl::ZeroDuration())));
  heartbeat.set_activity(REDUCING);
  for (int value = Activity_MIN; value <= Activity_MAX; ++value) {
    if (command.flag(Activity_Name(static_cast<Activity>(value)))) {
      heartbeat.set_activity(static_cast<Activity>(value));
    }
  }
  FlightState& flight = *heartbeat.mutable_flight();
  flight.set_last_completed(command.number("completed"));
  if (command.has("for")) {
    heartbeat.set_waiting_for(static_cast<int>(command.number("for")) + 1);
    flight.set_operation("tree_reduce");
    flight.set_sequence(command.number("sequence"));
    flight.set_dtype("f32");
    flight.set_count(25'600'000);
    flight.set_step(812);
    flight.set_bucket(3);
  }
  heartbeat.mutable_arrivals()->set_reductions(command.number("reductions"));
  heartbeat.mutable_arrivals()->set_last(command.number("last"));
  heartbeat.mutable_arrivals()->set_waited_us(
      absl::ToInt64Microseconds(command.duration("waited", absl::ZeroDuration())));
}

void CoreWorld::Beat(const std::string& worker, int64_t step, bool stands, bool first,
                     SessionId session) {
  WorkerMessage message = From(worker);
  const auto job = state_.jobs.find(JobOf(worker));
  if (job != state_.jobs.end()) {
    message.mutable_heartbeat()->set_generation(job->second.generation.message.generation());
  }
  counters_[worker] += stands ? 0 : 1;
  message.mutable_heartbeat()->set_progress_counter(counters_[worker]);
  message.mutable_heartbeat()->mutable_progress()->set_step(step);
  if (const auto doing = doings_.find(worker); doing != doings_.end()) {
    message.mutable_heartbeat()->MergeFrom(doing->second.heartbeat);
    if (message.heartbeat().waiting_for() != 0) {
      message.mutable_heartbeat()->mutable_flight()->set_open_us(
          absl::ToInt64Microseconds(now_ - doing->second.since));
    }
  }
  message.mutable_heartbeat()->set_resumed_step(resumed_);
  if (first) {
    message.mutable_heartbeat()->mutable_since_first_commit();
  }
  if (restored_) {
    SetDuration(*restored_, message.mutable_heartbeat()->mutable_since_restored());
  }
  Take(WorkerSaid{session, message});
}

void CoreWorld::Tick(const Command& command) {
  constexpr absl::Duration kBeat = absl::Milliseconds(100);
  const absl::Time until = now_ + ParseTime(command.word(0));
  absl::Time next_beat = now_, next_agents = now_;
  const std::vector<std::string> mute = command.list("mute");
  const absl::Time begin = now_;
  while (now_ < until) {
    now_ = std::min({until, next_beat + kBeat, std::max(wake_at_, now_ + absl::Milliseconds(1))});
    const size_t before = lines_.size();
    if (now_ >= next_beat + kBeat) {
      next_beat = now_;
      const auto step = [&](const std::string& worker) {
        return command.number("step", HasGeneration(worker) ? 1 : 0);
      };
      for (const std::string& worker : command.list("beat")) {
        Beat(worker, step(worker), /*stands=*/false, /*first=*/false, sessions_[worker]);
      }
      for (const std::string& worker : command.list("stands")) {
        Beat(worker, step(worker), /*stands=*/true, /*first=*/false, sessions_[worker]);
      }
    }
    if (now_ >= next_agents + absl::Seconds(1)) {
      next_agents = now_;
      AgentsBeat(mute);
    }
    Take(coordinator::Tick{});
    std::erase_if(lines_, [](const std::string& line) {
      return line.find(": progress: step") != std::string::npos;
    });
    if (lines_.size() > before) {
      lines_.insert(lines_.begin() + static_cast<long>(before),
                    absl::StrCat("after ", absl::FormatDuration(now_ - begin)));
    }
  }
}

bool CoreWorld::HasGeneration(const std::string& worker) const {
  const auto job = state_.jobs.find(JobOf(worker));
  return job != state_.jobs.end() && job->second.generation.message.generation() != 0;
}

// Every connected agent but those of `mute` says that it is there.
void CoreWorld::AgentsBeat(const std::vector<std::string>& mute) {
  std::vector<SessionId> sessions;
  for (const auto& [id, node] : state_.nodes) {
    if (node.session != 0 && std::count(mute.begin(), mute.end(), id) == 0) {
      sessions.push_back(node.session);
    }
  }
  for (const SessionId session : sessions) {
    AgentMessage message;
    message.mutable_heartbeat();
    Take(AgentSaid{session, message});
  }
}

void CoreWorld::Up(const std::string& job_id) {
  const auto job = state_.jobs.find(job_id);
  LS_CHECK(job != state_.jobs.end()) << "no job " << job_id;
  const size_t workers = job->second.slots.size();
  size_t placed = workers;
  while (placed > 0 && job->second.slots[placed - 1].unplaced()) --placed;
  for (size_t i = 0; i < placed; ++i) {
    const std::string worker = absl::StrCat(job_id, ".", i);
    Do(Command(absl::StrCat("started ", worker)));
    Do(Command(absl::StrCat("hello ", worker)));
  }
  Lines all;
  for (size_t i = 0; i < placed; ++i) all = Do(Command(absl::StrCat("ready ", job_id, ".", i)));
  lines_ = all;
}

void CoreWorld::Restart() {
  absl::StatusOr<State> state = Rows();
  LS_CHECK(state.ok()) << state.status().ToString();
  state_ = *std::move(state);
  for (auto& [name, session] : sessions_) session = 0;
  Take(coordinator::Tick{});
}

std::string CoreWorld::Incarnation(const std::string& worker) const {
  const std::vector<std::string> parts = absl::StrSplit(worker, '.');
  if (parts.size() != 2) return worker;
  const auto job = state_.jobs.find(parts[0]);
  size_t place = 0;
  int64_t life = 1;
  if (job != state_.jobs.end() && absl::SimpleAtoi(parts[1], &place) &&
      place < job->second.slots.size()) {
    life = job->second.slots[place].lives;
  }
  return absl::StrCat(worker, ".", life);
}

WorkerMessage CoreWorld::From(const std::string& worker) const {
  WorkerMessage message;
  message.set_job_id(JobOf(worker));
  message.set_incarnation(Incarnation(worker));
  return message;
}

}  // namespace lockstep::coordinator
